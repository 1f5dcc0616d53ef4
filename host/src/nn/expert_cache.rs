//! The most used experts of a layer whose experts are in host memory, in device memory.
//!
//! A layer has slots for as many of its experts as there is room for. Every choice of the router is counted on the device. Now and then
//! the counts come to the host, and experts that were chosen more often take the slots of those that were chosen less. Counts fade, so a
//! new topic has its experts soon. Copies and the table of slots are queued on the stream of the kernels that read them.
//!
//! Where the experts are is in the table alone: the host does not wait for the router's choice.

use crate::cuda::CudaDevice;
use crate::memory::{DeviceBuffer, Download, Resident, Run, SharedHost};
use crate::problem::experts::Places;
use crate::{DType, Device, Result, Tensor};
use kernels_gpu::experts::NO_SLOT;
use std::iter::Sum;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Each tensor's slots begin at a multiple of this, like allocations.
const ALIGNMENT: usize = 256;
/// Passes of few rows from one look at the counts to the next.
const PASSES: usize = 8;
/// Experts that take others' slots after a look, at most: each is copied over the bus.
const SWAPS: usize = 2;
/// What is left of older counts at a look.
const FADED: f32 = 0.9;
/// An expert takes the slot of one that it exceeds by this factor and by [`MARGIN`].
const FACTOR: f32 = 1.25;
const MARGIN: f32 = 2.0;

/// A tensor's part of a layer's bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slices {
    /// Of the tensor in the layer.
    pub at: usize,
    /// Of an expert.
    pub bytes: usize,
    /// Which of the three matrices it belongs to; its quants (or values) come first, then its scales.
    pub matrix: usize,
}

/// The slots of a layer.
#[derive(Debug)]
pub(super) struct ExpertCache {
    host: SharedHost,
    slices: Vec<Slices>,
    /// For each tensor an array of slots, one after the other.
    resident: Arc<Mutex<Resident>>,
    state: Mutex<State>,
    slots: usize,
}

#[derive(Debug)]
struct State {
    /// u32 [experts], on the device.
    uses: Tensor,
    /// u32 [experts], on the device: `slot_of` as kernels read it.
    table: DeviceBuffer,
    /// The slot of each expert that has one.
    slot_of: Vec<Option<usize>>,
    seen: Vec<u32>,
    scores: Vec<f32>,
    pending: Option<Download>,
    /// Passes until the next look.
    left: usize,
    hits: Hits,
}

/// How often the router's choice was in device memory.
///
/// ```
/// use pascaline::nn::Hits;
/// let layers = [Hits { hits: 3, choices: 4 }, Hits { hits: 0, choices: 2 }];
/// assert_eq!(layers.into_iter().sum::<Hits>().rate(), Some(0.5));
/// assert_eq!(Hits::default().rate(), None);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hits {
    /// Choices of experts with a slot.
    pub hits: u64,
    /// All choices that were counted.
    pub choices: u64,
}

impl Hits {
    /// The share of hits; `None` without choices.
    pub fn rate(self) -> Option<f64> {
        (self.choices > 0).then(|| self.hits as f64 / self.choices as f64)
    }
}

impl Sum for Hits {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |a, b| Self { hits: a.hits + b.hits, choices: a.choices + b.choices })
    }
}

impl ExpertCache {
    /// With `slots` of a layer's `experts`, at first for the first ones. `turn`: a number of the layer, so that layers look in turn.
    pub fn new(
        device: &CudaDevice,
        host: &SharedHost,
        slices: Vec<Slices>,
        (slots, experts): (usize, usize),
        turn: usize,
    ) -> Result<Self> {
        let bytes: usize = slices.iter().map(|slice| (slots * slice.bytes).next_multiple_of(ALIGNMENT)).sum();
        let resident = Resident { buffer: DeviceBuffer::uninitialized(device, bytes)?, runs: Vec::new() };
        let table = DeviceBuffer::uninitialized(device, experts * size_of::<u32>())?;
        let state = State {
            uses: Tensor::zeros([experts], DType::U32, &Device::Cuda(device.clone()))?,
            table,
            slot_of: vec![None; experts],
            seen: vec![0; experts],
            scores: vec![0.0; experts],
            pending: None,
            left: turn % PASSES,
            hits: Hits::default(),
        };
        let (resident, host) = (Arc::new(Mutex::new(resident)), host.clone());
        let this = Self { host, slices, resident, state: Mutex::new(state), slots };
        let mut state = this.lock();
        for expert in 0..slots {
            this.copy(expert, expert)?;
        }
        let first = (0..experts).map(|expert| (expert < slots).then_some(expert)).collect();
        this.write_table(&mut state, first)?;
        drop(state);
        Ok(this)
    }

    /// What of the layer is in device memory, for copies of all of it.
    pub fn resident(&self) -> Arc<Mutex<Resident>> {
        Arc::clone(&self.resident)
    }

    /// Calls `work` with the tensor that counts choices.
    pub fn counting<R>(&self, work: impl FnOnce(&mut Tensor) -> Result<R>) -> Result<R> {
        work(&mut self.lock().uses)
    }

    /// Whether each expert has a slot.
    pub fn is_here(&self) -> Vec<bool> {
        self.lock().slot_of.iter().map(Option::is_some).collect()
    }

    /// Calls `work` with the places of the three matrices; with `on_device`, rows of experts in host memory become zeros.
    pub fn with_places<R>(&self, on_device: bool, work: impl FnOnce([Places<'_>; 3]) -> R) -> R {
        let state = self.lock();
        let begin = self.resident.lock().unwrap_or_else(PoisonError::into_inner).buffer.address_to_queue();
        let mut places = [Places { slots: &state.table, cached: [0; 2], on_device }; 3];
        let mut halves = [0; 3];
        for (&Slices { matrix, .. }, at) in self.begins() {
            places[matrix].cached[halves[matrix]] = begin + at as u64;
            halves[matrix] += 1;
        }
        work(places)
    }

    /// How often the router's choice was here, as far as counts have come to the host.
    pub fn hits(&self) -> Hits {
        self.lock().hits
    }

    /// Before a pass of few rows: looks at the counts if it is time, and gives slots to the experts that are used most. `settle` orders
    /// the stream after copies from the slots that other streams make.
    pub fn turn(&self, settle: impl FnOnce() -> Result<()>) -> Result<()> {
        let mut state = self.lock();
        if let Some(counts) = state.pending.take() {
            let counts = counts.wait()?; // queued before the last pass
            state.look(bytemuck::cast_slice(&counts));
            let swaps = state.swaps();
            if !swaps.is_empty() {
                settle()?;
                let mut slot_of = state.slot_of.clone();
                let moves =
                    swaps.into_iter().filter_map(|(expert, other)| Some((expert, slot_of[other].take()?)));
                let moves: Vec<_> = moves.collect();
                // first nobody reads these slots, so that an error leaves none that is read with other bytes
                self.write_table(&mut state, slot_of.clone())?;
                for (expert, slot) in moves {
                    self.copy(expert, slot)?;
                    slot_of[expert] = Some(slot);
                }
                self.write_table(&mut state, slot_of)?;
            }
        }
        if state.left == 0 {
            state.left = PASSES;
            state.pending = state.uses.download_async()?;
        }
        state.left -= 1;
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first byte of each tensor's slots.
    fn begins(&self) -> impl Iterator<Item = (&Slices, usize)> {
        self.slices.iter().scan(0, |next, slice| {
            let begin = *next;
            *next += (self.slots * slice.bytes).next_multiple_of(ALIGNMENT);
            Some((slice, begin))
        })
    }

    /// Queues the copy of an expert to a slot.
    fn copy(&self, expert: usize, slot: usize) -> Result<()> {
        let mut resident = self.resident.lock().unwrap_or_else(PoisonError::into_inner);
        for (slice, begin) in self.begins() {
            let (from, to) = (slice.at + expert * slice.bytes, begin + slot * slice.bytes);
            resident.buffer.upload_shared(to, &self.host, from..from + slice.bytes)?;
        }
        Ok(())
    }

    /// Queues the table of these slots, and says what copies of the whole layer find in them.
    fn write_table(&self, state: &mut State, slot_of: Vec<Option<usize>>) -> Result<()> {
        let mut resident = self.resident.lock().unwrap_or_else(PoisonError::into_inner);
        resident.runs.clear();
        for (slice, begin) in self.begins() {
            for (expert, slot) in slot_of.iter().enumerate() {
                let Some(slot) = slot else { continue };
                let (to, from) = (slice.at + expert * slice.bytes, begin + slot * slice.bytes);
                resident.runs.push(Run { to, from, bytes: slice.bytes });
            }
        }
        resident.join_runs();
        let slots: Vec<u32> = slot_of.iter().map(|slot| slot.map_or(NO_SLOT, |slot| slot as u32)).collect();
        state.table.upload(0, bytemuck::cast_slice(&slots))?;
        state.slot_of = slot_of;
        Ok(())
    }
}

impl State {
    /// Takes the counts of all choices so far.
    fn look(&mut self, counts: &[u32]) {
        for (expert, &count) in counts.iter().enumerate().take(self.seen.len()) {
            let new = count.wrapping_sub(self.seen[expert]);
            self.seen[expert] = count;
            self.scores[expert] = self.scores[expert] * FADED + new as f32;
            self.hits.choices += u64::from(new);
            if self.slot_of[expert].is_some() {
                self.hits.hits += u64::from(new);
            }
        }
    }

    /// Experts without a slot, each with the one whose slot it takes.
    fn swaps(&self) -> Vec<(usize, usize)> {
        let (mut here, mut away): (Vec<_>, Vec<_>) =
            (0..self.scores.len()).partition(|&expert| self.slot_of[expert].is_some());
        let score = |expert: &usize| self.scores[*expert];
        here.sort_by(|a, b| score(a).total_cmp(&score(b)));
        away.sort_by(|a, b| score(b).total_cmp(&score(a)));
        let pairs = away.into_iter().zip(here).take(SWAPS);
        pairs.take_while(|(new, old)| score(new) >= score(old) * FACTOR + MARGIN).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(slot_of: &[Option<usize>]) -> State {
        State {
            uses: Tensor::zeros([slot_of.len()], DType::U32, &Device::Cpu).unwrap(),
            table: DeviceBuffer::uninitialized(
                match &Device::virtual_gpu().unwrap() {
                    Device::Cuda(cuda) => cuda,
                    Device::Cpu => unreachable!("it is a GPU"),
                },
                0,
            )
            .unwrap(),
            slot_of: slot_of.to_vec(),
            seen: vec![0; slot_of.len()],
            scores: vec![0.0; slot_of.len()],
            pending: None,
            left: 0,
            hits: Hits::default(),
        }
    }

    #[test]
    fn used_experts_take_the_slots_of_unused_ones() {
        let mut state = state(&[Some(0), Some(1), None, None]);
        state.look(&[10, 3, 4, 30]);
        assert_eq!(state.hits, Hits { hits: 13, choices: 47 });
        assert_eq!(state.swaps(), [(3, 1)], "4 do not exceed 10, nor 3 by the margin");
        // counts go on from where they were, and wrap
        state.seen = vec![u32::MAX, 0, 0, 0];
        state.scores = vec![0.0; 4];
        state.look(&[1, 0, 9, 0]);
        assert_eq!(state.scores, [2.0, 0.0, 9.0, 0.0]);
        assert_eq!(state.swaps(), [(2, 1)]);
    }
}
