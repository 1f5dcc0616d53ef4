//! Weights in pinned host memory that are copied to the device layer by layer, for cards without room for them.
//!
//! Two places on the device are used in turn: while the kernels of one layer run, the next layer's weights are in flight on
//! a second stream.
//!
//! ```text
//! compute stream    layer 0 │ layer 1 │ layer 2 │ …
//! copy stream       1 → B   │ 2 → A   │ 3 → B   │ …     layer n is copied once layer n − 2 has been used
//! ```
//!
//! Parts of a layer may be in device memory too ([`Resident`]); these are copied from there.

use super::buffer::DeviceBuffer;
use super::pinned::{PinnedBuffer, SharedHost};
use crate::cuda::{CudaDevice, Event};
use crate::mutation::{Wait, left_out};
use crate::{Error, Result};
use std::sync::{Arc, Mutex, PoisonError};

/// Layers in host memory, of which two at a time are on the device.
#[derive(Debug)]
pub struct LayerStream {
    device: CudaDevice,
    /// The stream of the copies.
    copies: CudaDevice,
    layers: Vec<Layer>,
    places: [Place; 2],
}

/// The bytes of a layer.
#[derive(Debug)]
enum Layer {
    /// `None` only during a copy, or after one that failed.
    Own(Option<PinnedBuffer>),
    Shared(SharedHost, Option<Arc<Mutex<Resident>>>),
}

/// Parts of a layer that are in device memory also. They are written on the stream of the kernels alone.
#[derive(Debug)]
pub(crate) struct Resident {
    pub buffer: DeviceBuffer,
    /// In the order of the layer's bytes.
    pub runs: Vec<Run>,
}

/// Bytes of a layer from `to` on, that are in the buffer from `from` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub to: usize,
    pub from: usize,
    pub bytes: usize,
}

impl Resident {
    /// Makes one of runs that lie side by side at both places.
    pub fn join_runs(&mut self) {
        self.runs.sort_by_key(|run| run.to);
        self.runs.dedup_by(|next, run| {
            let is_beside = run.to + run.bytes == next.to && run.from + run.bytes == next.from;
            if is_beside {
                run.bytes += next.bytes;
            }
            is_beside
        });
    }
}

#[derive(Debug)]
struct Place {
    /// Memory of the handle's stream, as the model's other tensors, so that all of it is freed in one order.
    buffer: DeviceBuffer,
    layer: Option<usize>,
    uploaded: Event,
    used: Event,
}

impl LayerStream {
    /// Two places for layers of up to `bytes` bytes. Kernels that use them are queued on this handle's stream.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if twice `bytes` exceeds the free memory, or a driver error.
    pub fn new(device: &CudaDevice, bytes: usize) -> Result<Self> {
        let (copies, places) = (device.with_new_stream()?, Self::new_places(device, bytes)?);
        Ok(Self { device: device.clone(), copies, layers: Vec::new(), places })
    }

    fn new_places(device: &CudaDevice, bytes: usize) -> Result<[Place; 2]> {
        let place = || -> Result<Place> {
            let buffer = DeviceBuffer::uninitialized(device, bytes)?;
            Ok(Place { buffer, layer: None, uploaded: device.event()?, used: device.event()? })
        };
        Ok([place()?, place()?])
    }

    /// Makes room for layers of up to `bytes` bytes. Places that are smaller are replaced by new ones, which hold no layer.
    /// Returns whether they were replaced.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn reserve(&mut self, bytes: usize) -> Result<bool> {
        if bytes <= self.places[0].buffer.bytes() {
            return Ok(false);
        }
        self.places = Self::new_places(&self.device, bytes)?;
        Ok(true)
    }

    /// Appends the bytes of a layer.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the layer is larger than a place.
    pub fn push(&mut self, layer: PinnedBuffer) -> Result<()> {
        self.places[0].buffer.range("LayerStream", 0, layer.len())?;
        self.layers.push(Layer::Own(Some(layer)));
        Ok(())
    }

    /// As [`push`](Self::push), of bytes that others read too; those of [`readers`](Self::readers) are among the readers.
    pub(crate) fn push_shared(
        &mut self,
        layer: SharedHost,
        resident: Option<Arc<Mutex<Resident>>>,
    ) -> Result<()> {
        self.places[0].buffer.range("LayerStream", 0, layer.len())?;
        self.layers.push(Layer::Shared(layer, resident));
        Ok(())
    }

    /// Orders the kernels' stream after the copies that were queued so far, so that it may write what these read.
    pub(crate) fn after_copies(&self) -> Result<()> {
        let mut loaded = self.places.iter().filter(|place| place.layer.is_some());
        loaded.try_for_each(|place| self.device.stream().wait(&place.uploaded))
    }

    /// The streams of kernels and of copies.
    pub(crate) fn readers(&self) -> Vec<CudaDevice> {
        vec![self.device.clone(), self.copies.clone()]
    }

    /// The number of layers.
    pub(crate) fn len(&self) -> usize {
        self.layers.len()
    }

    /// The two places, for kernels on the handle's stream to read; the caller must not write them. [`layer`](Self::layer)
    /// tells which place holds which layer.
    ///
    /// ```compile_fail,E0624
    /// # fn two_writers(layers: &pascaline::memory::LayerStream) -> pascaline::Result<()> {
    /// let [mut a, _] = layers.places()?; // of this crate alone: handles to one place could write to it side by side
    /// let [mut the_same, _] = layers.places()?;
    /// # a.fill(1)?; the_same.fill(2) }
    /// ```
    ///
    /// # Errors
    /// [`Error::DeviceLost`].
    pub(crate) fn places(&self) -> Result<[DeviceBuffer; 2]> {
        let [a, b] = &self.places;
        Ok([a.buffer.on(&self.device)?, b.buffer.on(&self.device)?])
    }

    /// The place that holds a layer, for work queued on the handle's stream before the next call. Also begins to copy the
    /// next layer (after the last, the first), so that layers requested in order are already on the device.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if there is no such layer or the stream is being captured into a graph, or a driver error.
    pub fn layer(&mut self, index: usize) -> Result<usize> {
        let device = self.device.clone();
        device.bind()?;
        let lock = device.stream().lock_to_enqueue(); // held until the wait is queued, so that no capture begins before
        if lock.is_none() {
            let (argument, value) = ("stream", "being captured into a graph".to_owned());
            let reason = "a graph would replay kernels without the copies that they wait for".into();
            return Err(Error::Unsupported { op: "LayerStream", argument, value, reason });
        }
        let held = |this: &Self, layer| this.places.iter().position(|place| place.layer == Some(layer));
        let place = match held(self, index) {
            Some(place) => place,
            None => {
                self.load(index, 0)?;
                0
            }
        };
        let next = (index + 1) % self.layers.len().max(1);
        if held(self, next).is_none() {
            self.load(next, 1 - place)?;
        }
        if !left_out(Wait::LayerUploaded) {
            self.device.stream().wait_locked(&self.places[place].uploaded)?;
        }
        Ok(place)
    }

    /// Queues the copy of a layer to a place, after the queued work that uses the place's previous layer.
    fn load(&mut self, index: usize, place: usize) -> Result<()> {
        let layers = self.layers.len();
        let missing = || Error::Unsupported {
            op: "LayerStream",
            argument: "layer",
            value: index.to_string(),
            reason: format!("there are {layers}, and none may have been lost in a copy that failed"),
        };
        let Place { buffer, layer: held, uploaded, used } = &mut self.places[place];
        let layer = self.layers.get_mut(index).ok_or_else(missing)?;
        *held = None;
        let copies = self.copies.stream();
        used.record_locked(self.device.stream())?;
        if !left_out(Wait::LayerReuse) {
            copies.wait(used)?;
        }
        let mut target = buffer.on(&self.copies)?;
        match layer {
            Layer::Own(layer) => {
                let own = layer.take().ok_or_else(missing)?;
                let bytes = own.len();
                *layer = Some(target.queue_upload(0, own, bytes)?);
            }
            Layer::Shared(layer, None) => target.upload_shared(0, layer, 0..layer.len())?,
            Layer::Shared(layer, Some(resident)) => {
                let resident = resident.lock().unwrap_or_else(PoisonError::into_inner);
                let near = resident.buffer.on(&self.copies)?;
                let mut at = 0;
                for &Run { to, from, bytes } in &resident.runs {
                    target.upload_shared(at, layer, at..to)?;
                    target.copy_from(to, &near, from, bytes)?;
                    at = to + bytes;
                }
                target.upload_shared(at, layer, at..layer.len())?;
            }
        }
        uploaded.record(copies)?;
        *held = Some(index);
        Ok(())
    }
}
