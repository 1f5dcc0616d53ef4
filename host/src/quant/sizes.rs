//! Sizes of quantised tensors before they are allocated, for planning memory.

use super::format::{Format, bits};
use super::rows::QuantRows;
use super::tensor::QuantTensor;
use crate::{Result, Shape};
use kernels_gpu::quant::blocks::{BLOCK, SUPER_BLOCK};

impl QuantTensor {
    /// The bytes of the quants and of the scales of a matrix [n, k]; each is one allocation.
    ///
    /// ```
    /// use pascaline::quant::{Format, QuantTensor};
    /// assert_eq!(QuantTensor::part_bytes(Format::Q4_0, [2, 64])?, [64, 8]);
    /// # Ok::<(), pascaline::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for a tensor of that shape: [`Error::Shape`](crate::Error::Shape) or [`Error::TooLarge`](crate::Error::TooLarge).
    pub fn part_bytes(format: Format, shape: [usize; 2]) -> Result<[usize; 2]> {
        let (n, k) = Self::padded(format, &Shape::from(shape))?;
        Ok([n * k / 8 * bits(format), n * format.descriptor().scales.row_bytes(k)])
    }
}

impl QuantRows {
    /// The bytes of the quants and of the scales of [rows, k] activations; each is one allocation.
    pub fn part_bytes(rows: usize, k: usize) -> [usize; 2] {
        let k = k.next_multiple_of(SUPER_BLOCK);
        [rows * k, rows * (k / BLOCK) * 8]
    }
}

#[cfg(test)]
mod tests {
    use super::super::FORMATS;
    use super::*;
    use crate::{Device, Tensor};

    #[test]
    fn sizes_are_those_of_tensors() -> Result<()> {
        let bytes = |tensor: &Tensor| tensor.shape().elements() * tensor.dtype().size();
        for shape in [[3, 256], [1, 7], [5, 300]] {
            for format in FORMATS {
                let tensor = QuantTensor::uninitialized(format, Shape::from(shape), &Device::Cpu)?;
                let found = QuantTensor::part_bytes(format, shape)?;
                assert_eq!(found, [bytes(&tensor.quants), bytes(&tensor.scales)], "{format:?} {shape:?}");
            }
            let rows = QuantRows::uninitialized(Shape::from(shape), &Device::Cpu)?;
            assert_eq!(QuantRows::part_bytes(shape[0], shape[1]), [bytes(&rows.quants), bytes(&rows.scales)]);
        }
        Ok(())
    }
}
