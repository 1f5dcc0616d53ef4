//! f32 → blocks, in the layout of files.

use half::{bf16, f16};
use pascaline::quant::{DeviceStorage, GgmlType, QuantTensor};
use pascaline::{Device, Error, Result};
use rayon::prelude::*;

/// Encodes `values` [n, k], row-major, in a type. Types with kernels are encoded on `device`, with the same bits on
/// every device.
///
/// # Errors
/// [`Error::Unsupported`] for types without an encoder here and for values beyond f16's range, or a device error.
pub fn encode(ty: GgmlType, values: &[f32], shape: [usize; 2], device: &Device) -> Result<Vec<u8>> {
    if let DeviceStorage::AsIs(format) = DeviceStorage::from(ty) {
        return QuantTensor::from_f32(values, shape, format, device)?.to_gguf_bytes();
    }
    if let Some(encode) = ty.descriptor().encode {
        let mut bytes = vec![0; ty.bytes(values.len())];
        let blocks = bytes.par_chunks_exact_mut(ty.block_bytes()).zip(values.par_chunks_exact(ty.block()));
        blocks.for_each(|(bytes, values)| encode(values, bytes));
        return Ok(bytes);
    }
    let unsupported = |argument, value: String, reason: &str| Error::Unsupported {
        op: "encode",
        argument,
        value,
        reason: reason.into(),
    };
    match ty {
        GgmlType::F32 => Ok(values.iter().flat_map(|value| value.to_le_bytes()).collect()),
        GgmlType::BF16 => Ok(values.iter().flat_map(|&value| bf16::from_f32(value).to_le_bytes()).collect()),
        GgmlType::F16 => {
            let halves = values.iter().map(|&value| match f16::from_f32(value) {
                half if half.is_finite() => Ok(half.to_le_bytes()),
                _ => Err(unsupported("values", value.to_string(), "beyond the range of f16 (±65504)")),
            });
            Ok(halves.collect::<Result<Vec<_>>>()?.concat())
        }
        _ => Err(unsupported("type", ty.name().into(), "nothing here writes it")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_f16_does_not_hold_is_refused() {
        let encoded = |value: f32| encode(GgmlType::F16, &[value], [1, 1], &Device::Cpu);
        assert_eq!(encoded(-65504.0).unwrap(), f16::MIN.to_le_bytes());
        assert!(matches!(encoded(65520.0), Err(Error::Unsupported { argument: "values", .. })));
    }
}
