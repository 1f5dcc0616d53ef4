//! Activations in 8 bits.

use crate::{DType, Device, Result, Shape, Tensor};
use kernels_gpu::quant::blocks::{BLOCK, SUPER_BLOCK};

/// Activations [m, k] in 8 bits, with a scale and a sum per 32 values, from
/// [`ops::quantize_rows`](crate::ops::quantize_rows), for one or more products.
#[derive(Clone, Debug)]
pub struct QuantRows {
    /// The shape of the tensor that was quantised.
    pub(crate) shape: Shape,
    /// Values of a row with padding, a multiple of 256.
    pub(crate) k: usize,
    /// u32 [m, k/4]
    pub(crate) quants: Tensor,
    /// u32 [m, k/32, 2]: `RowScale`
    pub(crate) scales: Tensor,
}

impl QuantRows {
    /// With undefined contents, for an op to write.
    pub(crate) fn uninitialized(shape: Shape, device: &Device) -> Result<Self> {
        let (m, cols) = shape.rows_cols();
        let k = cols.next_multiple_of(SUPER_BLOCK);
        let quants = Tensor::uninitialized([m, k / 4], DType::U32, device)?;
        let scales = Tensor::uninitialized([m, k / BLOCK, 2], DType::U32, device)?;
        Ok(Self { shape, k, quants, scales })
    }

    /// The shape of the tensor that was quantised.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The integer sums Σ q of every block of 32, and the quants, for checks: ([m, k] i8, [m, k/32] scale and sum).
    #[allow(clippy::type_complexity)] // two parallel arrays, as documented
    pub fn to_vecs(&self) -> Result<(Vec<i8>, Vec<(f32, i32)>)> {
        let quants = bytemuck::cast_slice(&self.quants.to_vec::<u32>()?).to_vec();
        let scales = self.scales.to_vec::<u32>()?;
        let scales = scales.chunks_exact(2).map(|pair| (f32::from_bits(pair[0]), pair[1] as i32)).collect();
        Ok((quants, scales))
    }
}
