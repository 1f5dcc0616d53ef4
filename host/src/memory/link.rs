//! Passing values from one device to another while both continue to compute.
//!
//! Two slots are used in turn, so that the sender may be up to two values ahead of the receiver:
//!
//! ```text
//! with peer access   sender's stream    wait until the slot was emptied · copy to the slot, on the receiver's device
//!                    receiver's stream  wait for the copy · copy from the slot to the target
//! without            sender's stream    wait until the slot was emptied · copy to the slot, in pinned memory
//!                    receiver's stream  wait for the copy · copy from the slot to the target
//! ```

use super::buffer;
use super::buffer::DeviceBuffer;
use super::pinned::PinnedBuffer;
use crate::cuda::{CudaDevice, Event, check};
use crate::mutation::{Wait, left_out};
use crate::{Error, Result};
use cust::sys;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How values get from device to device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Directly into the other device's memory.
    Peer,
    /// Through pinned host memory.
    Pinned,
    /// As NCCL chooses. Only for sums over devices, not for a [`Link`].
    Nccl,
}

/// A connection from one device's stream to another's. Values arrive in the order in which they were sent.
#[derive(Debug)]
pub struct Link {
    from: CudaDevice,
    to: CudaDevice,
    way: Way,
    slots: Mutex<Slots>,
}

#[derive(Debug, Default)]
struct Slots {
    pair: Option<[Slot; 2]>,
    /// The slot that is used next.
    next: usize,
}

/// Memory for a value in transit.
#[derive(Debug)]
struct Slot {
    place: Place,
    bytes: usize,
    /// Recorded on the sender's stream: the slot holds the value.
    filled: Event,
    /// Recorded on the receiver's stream: the value is in the target.
    emptied: Event,
}

#[derive(Debug)]
enum Place {
    /// Allocated outside the device's pool, because peers can't access the memory of the driver's pools.
    Peer(PeerMemory),
    Pinned(PinnedBuffer),
}

/// Memory of a device that its peers can access.
#[derive(Debug)]
struct PeerMemory {
    device: CudaDevice,
    address: u64,
}

impl PeerMemory {
    fn new(device: &CudaDevice, bytes: usize) -> Result<Self> {
        device.bind()?;
        buffer::refused(bytes)?;
        let mut address = 0;
        // SAFETY: the context is current; `address` is written before it is used.
        let result = check("cuMemAlloc", unsafe { sys::cuMemAlloc_v2(&mut address, bytes) });
        super::device::out_of_memory(device, bytes, result)?;
        Ok(Self { device: device.clone(), address })
    }
}

impl Drop for PeerMemory {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: allocated by `new` and freed once; `Slot::drop` has waited for the copies that use it. An error can't
            // be reported from a drop.
            let _ = check("cuMemFree", unsafe { sys::cuMemFree_v2(self.address) });
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let waited = self.filled.synchronize().and_then(|()| self.emptied.synchronize());
        if waited.is_err()
            && let Place::Pinned(buffer) = &mut self.place
        {
            buffer.leak(); // a copy may still use it
        }
    }
}

impl Slot {
    fn new(link: &Link, bytes: usize) -> Result<Self> {
        let place = match link.way {
            Way::Peer => Place::Peer(PeerMemory::new(&link.to, bytes)?),
            Way::Pinned | Way::Nccl => Place::Pinned(PinnedBuffer::new(&link.from, bytes)?),
        };
        link.from.bind()?;
        let filled = Event::untimed()?;
        link.to.bind()?;
        Ok(Self { place, bytes, filled, emptied: Event::untimed()? })
    }
}

impl Link {
    /// From the stream of one device to that of another. Directly, if the driver lets the first device access the second's
    /// memory, otherwise through pinned memory; `way` requests one of the two.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if both are the same device, or if [`Way::Peer`] is requested and not possible; a driver
    /// error.
    pub fn new(from: &CudaDevice, to: &CudaDevice, way: Option<Way>) -> Result<Self> {
        let refused = |reason: &str| Error::Unsupported {
            op: "Link",
            argument: "to",
            value: format!("{to:?}"),
            reason: reason.to_owned(),
        };
        if from.properties().ordinal == to.properties().ordinal {
            return Err(refused("values are passed between two devices, and this is the sender itself"));
        }
        let way = match way {
            Some(Way::Nccl) => return Err(refused("NCCL is only for sums over devices")),
            Some(Way::Pinned) => Way::Pinned,
            asked => match (enable_peer_access(from, to)?, asked) {
                (true, _) => Way::Peer,
                (false, None) => Way::Pinned,
                (false, Some(_)) => {
                    return Err(refused(&format!("the driver gives {from:?} no peer access to it")));
                }
            },
        };
        Ok(Self { from: from.clone(), to: to.clone(), way, slots: Mutex::default() })
    }

    /// How values get from device to device.
    pub fn way(&self) -> Way {
        self.way
    }

    /// Bytes that the slots take on the receiver's device for values of up to `bytes` bytes.
    pub fn slot_bytes(bytes: usize) -> usize {
        2 * bytes
    }

    /// Queues a copy of `bytes` bytes of a buffer on the sender's stream to the start of one on the receiver's. Work queued
    /// there from now on reads the new bytes. Work queued on the source's stream from now on may overwrite the source.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if a buffer belongs to another stream or is shorter, or if a stream is being captured; a
    /// driver error.
    pub fn send(
        &self,
        source: &DeviceBuffer,
        at: usize,
        bytes: usize,
        target: &mut DeviceBuffer,
    ) -> Result<()> {
        self.leave(source, at, bytes)?.arrive(target)
    }

    /// The first half of [`send`](Self::send), on the sender's stream. If two devices send to each other, queue both first
    /// halves before the second halves, so that neither waits for the other before it has sent.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn leave(&self, source: &DeviceBuffer, at: usize, bytes: usize) -> Result<InFlight<'_>> {
        self.check(source, &self.from, "source")?;
        let from = source.range("send", at, bytes)?;
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let sender = source.device().stream().lock_to_copy("send")?;
        if bytes == 0 {
            return Ok(InFlight { link: self, slots, slot: 0, bytes });
        }
        if slots.pair.as_ref().is_none_or(|[slot, _]| slot.bytes < bytes) {
            slots.pair = None; // waits for copies in flight
            slots.pair = Some([Slot::new(self, bytes)?, Slot::new(self, bytes)?]);
        }
        let number = slots.next;
        slots.next = 1 - number;
        if let Some(pair) = &slots.pair {
            let slot = &pair[number];
            self.from.bind()?;
            let out = self.from.stream();
            if !left_out(Wait::SlotEmptied) {
                out.wait_locked(&slot.emptied)?;
            }
            let result = match &slot.place {
                Place::Peer(memory) => {
                    let (there, here) = (self.to.context(), self.from.context());
                    // SAFETY: the range is inside the source (checked above), the slot is as long, and stream and contexts
                    // are alive. The slot is freed only after both of its events; the source is freed after the copy in its
                    // own stream's order.
                    unsafe { sys::cuMemcpyPeerAsync(memory.address, there, from, here, bytes, out.raw()) }
                }
                Place::Pinned(host) => {
                    let slot = host.address().cast();
                    // SAFETY: the range is inside the source (checked above), and the slot is as long. It goes only after both of
                    // its events; the source is freed after the copy in its own stream's order.
                    unsafe { sys::cuMemcpyDtoHAsync_v2(slot, from, bytes, out.raw()) }
                }
            };
            check("a copy to another device", result)?;
            slot.filled.record_locked(out)?;
        }
        drop(sender);
        Ok(InFlight { link: self, slots, slot: number, bytes })
    }

    fn check(&self, buffer: &DeviceBuffer, device: &CudaDevice, argument: &'static str) -> Result<()> {
        if buffer.device().same_stream(device) {
            return Ok(());
        }
        let (value, reason) = (format!("on {:?}", buffer.device()), format!("the link's is on {device:?}"));
        Err(Error::Unsupported { op: "Link", argument, value, reason })
    }
}

/// A value in a slot of a link; the slot is locked.
pub(crate) struct InFlight<'l> {
    link: &'l Link,
    slots: MutexGuard<'l, Slots>,
    slot: usize,
    bytes: usize,
}

impl InFlight<'_> {
    /// The second half of [`Link::send`], on the receiver's stream.
    ///
    /// # Errors
    /// As there.
    pub fn arrive(self, target: &mut DeviceBuffer) -> Result<()> {
        let Self { link, slots, slot, bytes } = self;
        link.check(target, &link.to, "target")?;
        let to = target.range("send", 0, bytes)?;
        let _receiver = target.device().stream().lock_to_copy("send")?;
        let Some(slot) = slots.pair.as_ref().filter(|_| bytes > 0).map(|pair| &pair[slot]) else {
            return Ok(());
        };
        link.to.bind()?;
        let into = link.to.stream();
        if !left_out(Wait::SlotFilled) {
            into.wait_locked(&slot.filled)?;
        }
        let result = match &slot.place {
            Place::Peer(memory) => {
                // SAFETY: the range is inside the target (checked above), and the slot is as long. The slot is freed only after
                // the event recorded below; the target is freed after the copy in its own stream's order.
                unsafe { sys::cuMemcpyDtoDAsync_v2(to, memory.address, bytes, into.raw()) }
            }
            Place::Pinned(host) => {
                let slot = host.address().cast_const().cast();
                // SAFETY: the range is inside the target (checked above), and the slot is as long. It goes only after the event
                // recorded below; the target is freed after the copy in its own stream's order.
                unsafe { sys::cuMemcpyHtoDAsync_v2(to, slot, bytes, into.raw()) }
            }
        };
        check("a copy from another device", result)?;
        slot.emptied.record_locked(into)
    }
}

/// Enables kernels of `from` to access the memory that `to`'s pool allocates. Returns whether they can.
pub(crate) fn reach(from: &CudaDevice, to: &CudaDevice) -> Result<bool> {
    Ok(enable_peer_access(from, to)? && super::device::let_reach(to, from)?)
}

/// Enables kernels and copies of `from` to access the memory of `to`, except that of the driver's pools. Returns whether they
/// can.
fn enable_peer_access(from: &CudaDevice, to: &CudaDevice) -> Result<bool> {
    const ALREADY_ENABLED: u32 = 704;
    let mut can = 0;
    let [a, b] = [from, to].map(|device| device.properties().ordinal as i32);
    from.bind()?;
    // SAFETY: `can` is written before it is used; ordinals and device handles are the same numbers.
    check("cuDeviceCanAccessPeer", unsafe { sys::cuDeviceCanAccessPeer(&mut can, a, b) })?;
    if can == 0 {
        return Ok(false);
    }
    // SAFETY: a context of `from` is current, and that of `to` lives as long as the process.
    match check("cuCtxEnablePeerAccess", unsafe { sys::cuCtxEnablePeerAccess(to.context(), 0) }) {
        Ok(()) | Err(Error::Driver { code: ALREADY_ENABLED, .. }) => Ok(true),
        Err(lost @ Error::DeviceLost { .. }) => Err(lost),
        Err(_) => Ok(false), // for example, no room for another mapping: pinned memory always works
    }
}
