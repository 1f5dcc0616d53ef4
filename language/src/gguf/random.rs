//! Random weights in every type, generated on all cores, so that the disk limits the speed of writing them.

use super::encode::encode;
use half::f16;
use pascaline::quant::{GgmlType, dequantize_blocks};
use pascaline::{Device, Result};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use rayon::prelude::*;

/// The standard deviation with which such models are initialised.
const DEVIATION: f32 = 0.02;
/// Values that a thread generates at a time: whole blocks of every type.
const PIECE: usize = 1 << 17;
/// Chunks that are generated before they are written.
const BATCH: usize = 128;

/// The distribution of a tensor's values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fill {
    /// Like a norm's weight or a bias before training.
    Constant(f32),
    /// Like a matrix before training.
    Random,
}

impl Fill {
    /// For a published tensor.
    pub fn for_tensor(name: &str, shape: &[usize]) -> Self {
        match shape.len() {
            1 => Self::Constant(if name.ends_with("bias") { 0.0 } else { 1.0 }),
            _ => Self::Random,
        }
    }
}

/// The values of one tensor in a type. The same `seed` gives the same bytes.
pub struct RandomValues {
    ty: GgmlType,
    pattern: Pattern,
    seed: u64,
}

impl RandomValues {
    /// Values of a type, from a seed.
    ///
    /// # Errors
    /// As [`encode`].
    pub fn new(ty: GgmlType, fill: Fill, seed: u64) -> Result<Self> {
        Ok(Self { ty, pattern: Pattern::new(ty, fill)?, seed })
    }

    /// Calls a function with the bytes of the first `count` values in order, chunk by chunk, until it fails.
    ///
    /// # Errors
    /// Those of the function.
    pub fn each<E>(
        &self,
        count: usize,
        mut write: impl FnMut(&[u8]) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let mut buffer = vec![0; self.ty.bytes(count.min(BATCH * PIECE))];
        for (batch, start) in (0..count).step_by(BATCH * PIECE).enumerate() {
            let bytes = &mut buffer[..self.ty.bytes((count - start).min(BATCH * PIECE))];
            self.generate(batch, bytes);
            write(bytes)?;
        }
        Ok(())
    }

    fn generate(&self, batch: usize, bytes: &mut [u8]) {
        bytes.par_chunks_mut(self.ty.bytes(PIECE)).enumerate().for_each(|(piece, bytes)| {
            let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
            rng.set_stream((batch * BATCH + piece) as u64);
            self.pattern.fill(&mut rng, bytes);
        });
    }
}

/// How random bytes become values of a type.
enum Pattern {
    /// The same bytes for every value.
    Constant(Vec<u8>),
    /// Uniform: a random byte chooses one of 256 values.
    Values { size: usize, table: Vec<u8> },
    /// Random quants and sub-block scales, with these f16 scales at their offsets in the block. An exponent at its offset is this one, or
    /// for this share of the blocks in 256 the next.
    Blocks { size: usize, scales: Vec<(usize, [u8; 2])>, exponent: Option<(usize, u8, u8)> },
}

impl Pattern {
    fn new(ty: GgmlType, fill: Fill) -> Result<Self> {
        let encoded = |values: &[f32]| encode(ty, values, [1, values.len()], &Device::Cpu);
        Ok(match fill {
            Fill::Constant(value) => Self::Constant(encoded(&[value])?),
            Fill::Random if !ty.is_quantized() => {
                let half_width = DEVIATION * 3f32.sqrt();
                let table: Vec<_> = (0..256).map(|i| (i as f32 - 127.5) / 127.5 * half_width).collect();
                Self::Values { size: ty.block_bytes(), table: encoded(&table)? }
            }
            Fill::Random => {
                let whole = Self::blocks(ty, 1.0);
                let mut bytes = vec![0; ty.bytes(PIECE)];
                whole.fill(&mut ChaCha8Rng::seed_from_u64(0), &mut bytes);
                let mut values = vec![0.0; PIECE];
                dequantize_blocks(ty, &bytes, &mut values);
                let squares: f64 = values.iter().map(|&value| f64::from(value) * f64::from(value)).sum();
                Self::blocks(ty, DEVIATION / (squares / PIECE as f64).sqrt() as f32)
            }
        })
    }

    /// Blocks with scale `d`, and minima that centre the values.
    fn blocks(ty: GgmlType, d: f32) -> Self {
        let about = ty.descriptor();
        let scales = about.scales.iter().zip([d, about.centre * d]);
        let scales = scales.map(|(&at, scale)| (at, f16::from_f32(scale).to_le_bytes())).collect();
        let (power, square) = (d.log2().floor(), (d / d.log2().floor().exp2()).powi(2)); // of 1 to 4, between two powers' squares
        let exponent =
            about.exponent.map(|at| (at, (power + 127.0) as u8, ((square - 1.0) / 3.0 * 256.0) as u8));
        Self::Blocks { size: ty.block_bytes(), scales, exponent }
    }

    fn fill(&self, rng: &mut ChaCha8Rng, bytes: &mut [u8]) {
        match self {
            Self::Constant(value) => {
                bytes.chunks_exact_mut(value.len()).for_each(|bytes| bytes.copy_from_slice(value));
            }
            Self::Values { size, table } => {
                let mut random = vec![0; bytes.len() / size];
                rng.fill_bytes(&mut random);
                for (bytes, &which) in bytes.chunks_exact_mut(*size).zip(&random) {
                    bytes.copy_from_slice(&table[usize::from(which) * size..][..*size]);
                }
            }
            Self::Blocks { size, scales, exponent } => {
                rng.fill_bytes(bytes);
                for block in bytes.chunks_exact_mut(*size) {
                    for (at, scale) in scales {
                        block[*at..at + 2].copy_from_slice(scale);
                    }
                    if let Some((at, power, share)) = *exponent {
                        block[at] = power + u8::from(block[at] < share);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_the_deviation_in_every_type() -> Result<()> {
        for ty in GgmlType::ALL {
            let count = PIECE + 512;
            let (mut bytes, mut values) = (Vec::new(), vec![f32::NAN; count]);
            RandomValues::new(ty, Fill::Random, 1)?.each(count, |piece| {
                bytes.extend(piece);
                Result::Ok(())
            })?;
            dequantize_blocks(ty, &bytes, &mut values);
            let mean = values.iter().sum::<f32>() / count as f32;
            let deviation = (values.iter().map(|value| value * value).sum::<f32>() / count as f32).sqrt();
            assert!((deviation / DEVIATION - 1.0).abs() < 0.05, "{ty:?}: {deviation}");
            assert!(mean.abs() < 0.2 * DEVIATION, "{ty:?}: {mean}");
            assert_ne!(bytes[..ty.bytes(256)], bytes[ty.bytes(PIECE)..][..ty.bytes(256)], "{ty:?}");
        }
        Ok(())
    }
}
