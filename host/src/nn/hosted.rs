//! Experts' matrices in host memory, and the ways to compute with them.
//!
//! ```text
//! the CPU             rows to the host, products there, rows to the device; the router and the weighted sum are the GPU's
//! few rows, no CPU    kernels read the matrices of the chosen experts over the bus
//! many rows, no CPU   the layer's matrices are copied to one of two places while the layer before computes
//! ```
//!
//! The experts that are used most may have slots in device memory (`expert_cache`): few rows read these there, also beside the CPU.

use super::expert_cache::{ExpertCache, Hits, Slices};
use crate::cuda::CudaDevice;
use crate::memory::{LayerStream, PinnedBuffer, SharedHost};
use crate::ops::MAX_UNSORTED_TOKENS;
use crate::{DType, Device, Error, Result, Shape, Tensor};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Parts begin at multiples of this, like allocations.
const ALIGNMENT: usize = 256;

/// The layers of a model whose experts are in host memory: they share two places on the device. Clones are the same.
///
/// ```
/// # #[cfg(feature = "virtual-gpu")] {
/// use pascaline::nn::{Experts, ExpertStream};
/// use pascaline::{DType, Device, Tensor};
/// let gpu = Device::virtual_gpu()?;
/// let Device::Cuda(cuda) = &gpu else { unreachable!() };
/// let random = |shape: [usize; 2], seed| Tensor::randn(shape, DType::F32, seed, &gpu);
/// let (gate, up, down) = (random([4 * 8, 16], 1)?, random([4 * 8, 16], 2)?, random([4 * 16, 8], 3)?); // four experts
/// let experts = Experts::new(random([4, 16], 4)?, gate, up, down, 2)?;
/// let x = random([20, 16], 5)?;
/// let expected = experts.forward(&x)?.to_vec::<f32>()?;
/// let streamed = experts.clone().in_host_memory(&ExpertStream::new(cuda, 0)?)?;
/// assert_eq!(streamed.forward(&x)?.to_vec::<f32>()?, expected); // the same bits
/// let by_the_cpu = experts.in_host_memory(&ExpertStream::new(cuda, usize::MAX)?)?;
/// for (y, expected) in by_the_cpu.forward(&x)?.to_vec::<f32>()?.iter().zip(expected) {
///     assert!((y - expected).abs() < 1e-3); // sums in another order
/// }
/// # }
/// # Ok::<(), pascaline::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ExpertStream {
    device: CudaDevice,
    stream: Arc<Mutex<LayerStream>>,
    cpu_rows: usize,
    /// Experts of each layer that are in device memory too.
    slots: usize,
}

/// A layer's part of it.
#[derive(Debug)]
pub(super) struct Hosted {
    stream: ExpertStream,
    /// The layer's number in the stream; `None` if the CPU computes all rows.
    layer: Option<usize>,
    parts: Vec<Part>,
    /// For the CPU; `None` in a plan.
    cpu: Option<Vec<Tensor>>,
    cache: Option<ExpertCache>,
}

/// A tensor, and its offset in the layer's bytes.
#[derive(Debug)]
struct Part {
    at: usize,
    dtype: DType,
    shape: Shape,
}

impl Part {
    fn bytes(&self) -> usize {
        self.shape.elements() * self.dtype.size()
    }
}

impl ExpertStream {
    /// The most rows of a pass whose experts kernels read over the bus, without a copy of the others.
    pub const READ_ROWS: usize = MAX_UNSORTED_TOKENS;

    /// For passes on this handle's stream, of which the CPU computes those of up to `cpu_rows` rows: all with `usize::MAX`, none with 0.
    ///
    /// # Errors
    /// A driver error.
    pub fn new(device: &CudaDevice, cpu_rows: usize) -> Result<Self> {
        let stream = Arc::new(Mutex::new(LayerStream::new(device, 0)?));
        Ok(Self { device: device.clone(), stream, cpu_rows, slots: 0 })
    }

    /// With the most used experts of each layer in device memory too: as many as `slots`, or all if there are fewer.
    ///
    /// Their number is counted while passes run, and between passes of few rows experts that were chosen more often take the slots of
    /// others. What the GPU computes has the same bits wherever an expert is; of a pass that is the CPU's, the GPU computes the experts
    /// with slots.
    pub fn with_slots(self, slots: usize) -> Self {
        Self { slots, ..self }
    }

    pub(super) fn device(&self) -> Device {
        Device::Cuda(self.device.clone())
    }

    fn lock(&self) -> MutexGuard<'_, LayerStream> {
        self.stream.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Hosted {
    /// Copies the tensors of a layer of so many experts to host memory: as many of each of three matrices. Gives the layer, and the
    /// tensors as kernels read them there.
    pub fn new(stream: &ExpertStream, tensors: &[Tensor], experts: usize) -> Result<(Self, Vec<Tensor>)> {
        let (parts, bytes) = parts(tensors);
        let mut layers = stream.lock();
        let readers = layers.readers();
        let (host, cpu, views);
        if stream.device.is_planned() {
            host = SharedHost::new(PinnedBuffer::new(&stream.device, 0)?, readers);
            cpu = None;
            views = tensors.iter().map(Tensor::in_host_memory).collect::<Result<_>>()?; // which counts the bytes
        } else {
            let mut memory = PinnedBuffer::new(&stream.device, bytes)?;
            for (tensor, part) in tensors.iter().zip(&parts) {
                tensor.contiguous()?.read_bytes(&mut memory[part.at..part.at + part.bytes()])?;
            }
            host = SharedHost::new(memory, readers);
            cpu = Some(placed(&parts, &Tensor::of_shared(&host, &Device::Cpu)?)?);
            views = placed(&parts, &Tensor::of_shared(&host, &stream.device())?)?;
        }
        let cache = match stream.slots.min(experts) {
            0 => None,
            slots => {
                let slices = slices(&parts, experts);
                Some(ExpertCache::new(&stream.device, &host, slices, (slots, experts), layers.len())?)
            }
        };
        let layer = match stream.cpu_rows {
            usize::MAX => None,
            _ => {
                layers.reserve(bytes)?;
                layers.push_shared(host, cache.as_ref().map(ExpertCache::resident))?;
                Some(layers.len() - 1)
            }
        };
        drop(layers);
        Ok((Self { stream: stream.clone(), layer, parts, cpu, cache }, views))
    }

    /// The experts in device memory, for a pass of few rows, before which some may change places.
    pub fn cache(&self) -> Result<Option<&ExpertCache>> {
        if let Some(cache) = self.cache.as_ref().filter(|_| !self.stream.device.is_planned()) {
            cache.turn(|| self.stream.lock().after_copies())?;
        }
        Ok(self.cache.as_ref())
    }

    /// As [`cache`](Self::cache), for its counts alone.
    pub fn counted(&self) -> Option<&ExpertCache> {
        self.cache.as_ref()
    }

    /// How often the router's choice was in device memory.
    pub fn hits(&self) -> Hits {
        self.cache.as_ref().map(ExpertCache::hits).unwrap_or_default()
    }

    /// Whether the CPU computes a pass of so many rows.
    pub fn is_for_cpu(&self, rows: usize) -> bool {
        rows <= self.stream.cpu_rows
    }

    /// The tensors for the CPU; `None` in a plan.
    pub fn cpu(&self) -> Option<&[Tensor]> {
        self.cpu.as_deref()
    }

    /// Calls `work` with the layer's tensors on the device. Also begins to copy the next layer's.
    pub fn on_device<R>(&self, work: impl FnOnce(&[Tensor]) -> Result<R>) -> Result<R> {
        let layer = self.layer.ok_or_else(|| Error::Unsupported {
            op: "Experts",
            argument: "rows",
            value: "any".into(),
            reason: "the CPU computes all of them".into(),
        })?;
        // until its kernels are queued, no other thread may have another layer copied to this layer's place
        let mut layers = self.stream.lock();
        let place = layers.layer(layer)?;
        let [a, b] = layers.places()?;
        work(&placed(&self.parts, &Tensor::of_buffer(if place == 0 { a } else { b })?)?)
    }
}

/// Where tensors are in a layer's bytes, and how many these are.
fn parts(tensors: &[Tensor]) -> (Vec<Part>, usize) {
    let mut bytes = 0;
    let part = |tensor: &Tensor| {
        let part = Part { at: bytes, dtype: tensor.dtype(), shape: tensor.shape().clone() };
        bytes += part.bytes().next_multiple_of(ALIGNMENT);
        part
    };
    (tensors.iter().map(part).collect(), bytes)
}

/// An expert's part of each tensor of three matrices.
fn slices(parts: &[Part], experts: usize) -> Vec<Slices> {
    let halves = (parts.len() / 3).max(1);
    let slice = |(index, part): (usize, &Part)| Slices {
        at: part.at,
        bytes: part.bytes() / experts,
        matrix: (index / halves).min(2),
    };
    parts.iter().enumerate().map(slice).collect()
}

/// The tensors in these bytes.
fn placed(parts: &[Part], bytes: &Tensor) -> Result<Vec<Tensor>> {
    let place = |part: &Part| {
        bytes.within(part.at, part.dtype, &part.shape).ok_or_else(|| Error::Shape {
            op: "ExpertStream",
            argument: "experts",
            expected: "bytes of the whole layer".into(),
            found: part.shape.clone(),
        })
    };
    parts.iter().map(place).collect()
}
