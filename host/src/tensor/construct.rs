//! Tensors from a rule: a constant, a range, random numbers.

use super::Tensor;
use super::layout::Layout;
use super::storage::Storage;
use crate::parallel::{InTasks, try_pieces};
use crate::{DType, Device, Element, Error, Result, Shape};
use half::f16;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use rayon::prelude::*;
use std::f64::consts::TAU;
use std::sync::Arc;

/// Bytes of a piece of [`Tensor::from_pieces`] on the CPU.
const PIECE: usize = 512 << 10;
/// Elements per rayon task of [`Tensor::randn`]; even, because normals are computed in pairs.
const CHUNK: usize = 1 << 14;

impl Tensor {
    /// A tensor of ones.
    ///
    /// ```
    /// use pascaline::{DType, Device, Tensor};
    /// let x = Tensor::ones([2, 2], DType::F32, &Device::Cpu)?;
    /// assert_eq!(x.to_vec::<f32>()?, [1.0; 4]);
    /// # Ok::<(), pascaline::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`uninitialized`](Self::uninitialized).
    #[track_caller]
    pub fn ones(shape: impl Into<Shape>, dtype: DType, device: &Device) -> Result<Self> {
        match dtype {
            DType::F32 => Self::full(1.0f32, shape, device),
            DType::F16 => Self::full(f16::ONE, shape, device),
            DType::U32 => Self::full(1u32, shape, device),
        }
    }

    /// A tensor of zeros of this one's shape, type and device.
    ///
    /// ```
    /// use pascaline::{Device, Tensor};
    /// let x = Tensor::full(7.0f32, [2], &Device::Cpu)?;
    /// assert_eq!(x.zeros_like()?.to_vec::<f32>()?, [0.0, 0.0]);
    /// # Ok::<(), pascaline::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`uninitialized`](Self::uninitialized).
    #[track_caller]
    pub fn zeros_like(&self) -> Result<Self> {
        Self::zeros(self.shape(), self.dtype(), &self.device())
    }

    /// A tensor with all elements equal to `value`. On a GPU it is filled there; no elements are copied to it.
    ///
    /// ```
    /// use pascaline::{Device, Tensor};
    /// let x = Tensor::full(7u32, [3], &Device::Cpu)?;
    /// assert_eq!(x.to_vec::<u32>()?, [7, 7, 7]);
    /// # Ok::<(), pascaline::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`uninitialized`](Self::uninitialized).
    #[track_caller]
    pub fn full<T: Element>(value: T, shape: impl Into<Shape>, device: &Device) -> Result<Self> {
        let layout = Layout::contiguous(T::DTYPE, shape.into())?;
        let mut storage = Storage::uninitialized(device, T::DTYPE, layout.shape.elements())?;
        match &mut storage {
            Storage::Cpu(buffer) => bytemuck::cast_slice_mut::<u8, T>(buffer.bytes_mut()).fill(value),
            Storage::Cuda(buffer) => buffer.fill_elements(value)?,
        }
        Ok(Self { storage: Arc::new(storage), layout })
    }

    /// A tensor whose elements `write` writes in row-major order: in pieces, on several threads, each called with the number of its first
    /// element. Those of a GPU are written into the pinned memory that it copies from, while earlier ones are copied: so weights are read
    /// from a file once.
    ///
    /// ```
    /// use pascaline::{Device, Tensor};
    /// let x = Tensor::from_pieces([2, 2], &Device::Cpu, |first, piece: &mut [u32]| {
    ///     piece.iter_mut().enumerate().for_each(|(at, element)| *element = (first + at) as u32);
    ///     Ok(())
    /// })?;
    /// assert_eq!(x.to_vec::<u32>()?, [0, 1, 2, 3]);
    /// # Ok::<(), pascaline::Error>(())
    /// ```
    ///
    /// # Errors
    /// An error of `write`, and as [`uninitialized`](Self::uninitialized).
    #[track_caller]
    pub fn from_pieces<T: Element>(
        shape: impl Into<Shape>,
        device: &Device,
        write: impl Fn(usize, &mut [T]) -> Result<()> + Sync,
    ) -> Result<Self> {
        let layout = Layout::contiguous(T::DTYPE, shape.into())?;
        let elements = layout.shape.elements();
        let mut storage = Storage::uninitialized(device, T::DTYPE, elements)?;
        let write = |at: usize, piece: &mut [u8]| write(at / size_of::<T>(), bytemuck::cast_slice_mut(piece));
        match &mut storage {
            Storage::Cpu(buffer) => {
                try_pieces(&mut buffer.bytes_mut()[..elements * size_of::<T>()], PIECE, &write)?;
            }
            Storage::Cuda(buffer) => buffer.upload_by(elements * size_of::<T>(), &write)?,
        }
        Ok(Self { storage: Arc::new(storage), layout })
    }

    /// \[n\]: start, start + 1, … up to but not including `end`. Empty if there are no such numbers.
    ///
    /// Element i is start + i, computed in f64 and rounded to the element type ([`Element::from_f64`]).
    ///
    /// ```
    /// use pascaline::{Device, Tensor};
    /// let positions = Tensor::arange(3u32, 6, &Device::Cpu)?;
    /// assert_eq!(positions.to_vec::<u32>()?, [3, 4, 5]);
    /// let x = Tensor::arange(0.5f32, 2.0, &Device::Cpu)?;
    /// assert_eq!(x.to_vec::<f32>()?, [0.5, 1.5]);
    /// # Ok::<(), pascaline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Unsupported`] if `start` or `end` is infinite or NaN, and as [`uninitialized`](Self::uninitialized).
    #[track_caller]
    pub fn arange<T: Element>(start: T, end: T, device: &Device) -> Result<Self> {
        let (first, end) = (start.to_f64(), end.to_f64());
        for (argument, value) in [("start", first), ("end", end)] {
            if !value.is_finite() {
                let (value, reason) = (value.to_string(), "it must be finite".into());
                return Err(Error::Unsupported { op: "arange", argument, value, reason });
            }
        }
        let elements = (end - first).ceil().max(0.0) as usize;
        Layout::contiguous(T::DTYPE, [elements].into())?; // before the host allocates them
        let values: Vec<T> = (0..elements).map(|i| T::from_f64(first + i as f64)).collect();
        Self::from_slice(&values, [elements], device)
    }

    /// Random numbers of the standard normal distribution (mean 0, variance 1), in f32 or f16.
    ///
    /// The same seed gives the same numbers on every device and with any number of threads; the first n of them do not
    /// depend on the shape. The generator is ChaCha with 8 rounds,
    /// [`ChaCha8Rng::seed_from_u64(seed)`](rand_chacha::ChaCha8Rng). Its 64-bit outputs number 2i and 2i + 1, by their upper
    /// 53 bits, give u in (0, 1] and v in [0, 1). Elements 2i and 2i + 1 are √(−2 ln u)·cos 2πv and √(−2 ln u)·sin 2πv (Box
    /// & Muller 1958). This is computed in f64 on the host, with the platform's ln, cos and sin, and rounded to the element
    /// type.
    ///
    /// ```
    /// use pascaline::{DType, Device, Tensor};
    /// let x = Tensor::randn([2, 3], DType::F32, 42, &Device::Cpu)?;
    /// let same = Tensor::randn([6], DType::F32, 42, &Device::Cpu)?;
    /// assert_eq!(x.to_vec::<f32>()?, same.to_vec::<f32>()?);
    /// # Ok::<(), pascaline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::DType`] for u32, and as [`uninitialized`](Self::uninitialized).
    #[track_caller]
    pub fn randn(shape: impl Into<Shape>, dtype: DType, seed: u64, device: &Device) -> Result<Self> {
        let layout = Layout::contiguous(dtype, shape.into())?;
        match dtype {
            DType::F32 => {
                Self::from_slice(&normals::<f32>(layout.shape.elements(), seed), layout.shape, device)
            }
            DType::F16 => {
                Self::from_slice(&normals::<f16>(layout.shape.elements(), seed), layout.shape, device)
            }
            found => {
                let expected = "f32 or f16".into();
                Err(Error::DType { op: "randn", argument: "dtype", expected, found })
            }
        }
    }
}

/// The numbers of [`Tensor::randn`].
fn normals<T: Element>(elements: usize, seed: u64) -> Vec<T> {
    /// 32-bit words of the generator per element.
    const WORDS: u128 = 2;
    let mut values = vec![T::zeroed(); elements];
    values.par_chunks_mut(CHUNK).enumerate().in_tasks(|(chunk, values)| {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_word_pos((chunk * CHUNK) as u128 * WORDS);
        let mut bits = || (rng.next_u64() >> 11) as f64;
        for pair in values.chunks_mut(2) {
            let (u, v) = ((bits() + 1.0) / (1u64 << 53) as f64, bits() / (1u64 << 53) as f64);
            let (radius, (sin, cos)) = ((-2.0 * u.ln()).sqrt(), (TAU * v).sin_cos());
            for (value, part) in pair.iter_mut().zip([cos, sin]) {
                *value = T::from_f64(radius * part);
            }
        }
    });
    values
}
