//! Probes of a multiprocessor: what its clock says of loops of known instructions, beside the cost model's assumption.
//!
//! Everything runs as one block on one multiprocessor, so clocks are those of a warp instruction on a multiprocessor with all its
//! warps at work, or of one warp alone. The slots of each loop are ptxas's (`probe_loops.csv`, written by `scripts/sass-report`); the
//! driver's own compiler may allocate other registers.

mod table;

use crate::Result;
use crate::cuda::CudaDevice;
use crate::memory::DeviceBuffer;
use kernels_gpu::probe::{self as kernels, WORDS};
use table::{Cost, PROBES, Probe, Values};

/// The compiler whose machine code the slots were counted in.
pub const COUNTED: &str = "ptxas 12.6";
/// A multiprocessor's clocks for which an instruction occupies one of its four schedulers.
const SLOT: f64 = 0.25;

/// The finding of one probe.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    pub id: &'static str,
    /// The instructions and their operands.
    pub what: &'static str,
    /// Clocks that the cost model assumes, of one instruction.
    pub assumed: f64,
    /// Clocks measured.
    pub measured: f64,
    /// Issue slots of one instruction with its share of the loop; none of a latency.
    pub slots: Option<f64>,
    /// Whether the kernel's values were right.
    pub right: bool,
}

/// A row of the table of ptxas's loops.
struct Loop {
    /// SASS's opcode and how often it is in the loop.
    instructions: Vec<(&'static str, f64)>,
    slots: f64,
}

impl Loop {
    fn find(kernel: &str) -> Option<Self> {
        let row = include_str!("probe_loops.csv")
            .lines()
            .find_map(|line| line.strip_prefix(kernel)?.strip_prefix(','));
        let mut cells = row?.split(',');
        let one = |text: &'static str| text.split_once(':').and_then(|(op, n)| Some((op, n.parse().ok()?)));
        let instructions = cells.next()?.split(' ').filter_map(one).collect();
        Some(Self { instructions, slots: cells.next_back()?.parse().ok()? })
    }

    fn count(&self, opcode: &str) -> f64 {
        self.instructions.iter().filter(|(op, _)| *op == opcode).map(|(_, n)| n).sum()
    }
}

impl Probe {
    fn is_right(&self, thread: u32, rounds: usize, value: u32) -> bool {
        let expected = self.expected(thread, rounds);
        match self.values {
            Values::Approximate { .. } => {
                let (value, expected) = (f32::from_bits(value), f32::from_bits(expected));
                // chains converge, so the errors of 2 ulp of their steps do not add up
                (value - expected).abs() <= 1e-5
            }
            _ => value == expected,
        }
    }

    /// Clocks of an instruction that the cost model assumes, and the issue slots that its share of the loop takes.
    fn assumed(&self) -> (f64, Option<f64>) {
        match self.cost {
            Cost::Latency(clocks) => (clocks, None),
            Cost::Rate { unit } => {
                let slots = Loop::find(self.kernel.name).map(|found| found.slots / found.count(self.opcode));
                (slots.map_or(unit, |slots| unit.max(slots * SLOT)), slots)
            }
        }
    }

    /// Launches the kernel `launches` times and takes the fastest: the first one also fills the instruction cache.
    fn measure(&self, device: &CudaDevice, rounds: u32, launches: u32) -> Result<Finding> {
        let threads = self.kernel.threads();
        let warps = threads / 32;
        let upload = |words: Vec<u32>| {
            let mut buffer = DeviceBuffer::uninitialized(device, size_of_val(&*words))?;
            buffer.upload(0, bytemuck::cast_slice(&words)).map(|()| buffer)
        };
        let words = upload((0..WORDS).map(self.words).collect())?;
        let offsets = upload((0..32).map(self.offset).collect())?;
        let (mut clocks, mut values) = (vec![0u32; 2 * warps as usize], vec![0u32; threads as usize]);
        let on_device =
            [&clocks, &values].map(|words| DeviceBuffer::uninitialized(device, size_of_val(&**words)));
        let [clocks_there, values_there] = on_device;
        let (clocks_there, values_there) = (clocks_there?, values_there?);
        let parameters = kernels::Probe {
            clocks: clocks_there.ptr(),
            values: values_there.ptr(),
            words: words.ptr(),
            offsets: offsets.ptr(),
            rounds,
        };
        let (mut fewest, mut right) = (u32::MAX, true);
        for _ in 0..launches {
            // SAFETY: the buffers have two words for each warp, one for each thread, WORDS and 32, on this device's stream. The
            // table's offsets are inside the words with the last load of a round (a test).
            unsafe { device.launch(self.kernel, [1; 3], &parameters)? };
            clocks_there.download(0, bytemuck::cast_slice_mut(&mut clocks))?;
            values_there.download(0, bytemuck::cast_slice_mut(&mut values))?;
            fewest = fewest.min(elapsed(&clocks));
            let all =
                || (0..).zip(&values).all(|(thread, &value)| self.is_right(thread, rounds as usize, value));
            right = right && all();
        }
        let each = f64::from(rounds) * f64::from(warps) * self.count as f64;
        let (assumed, slots) = self.assumed();
        let Self { id, what, .. } = *self;
        Ok(Finding { id, what, assumed, measured: f64::from(fewest) / each, slots, right })
    }
}

/// Clocks from the first warp's beginning to the last one's end. The counter may have passed zero.
fn elapsed(clocks: &[u32]) -> u32 {
    let Some(&origin) = clocks.first() else { return 0 };
    let since = |clock: u32| i64::from(clock.wrapping_sub(origin) as i32);
    let pairs = || clocks.chunks_exact(2);
    let begin = pairs().map(|pair| since(pair[0])).min().unwrap_or(0);
    let end = pairs().map(|pair| since(pair[1])).max().unwrap_or(0);
    (end - begin) as u32
}

/// Runs every probe. A launch of 64 rounds takes 0.1 ms at most on a Pascal card.
///
/// # Errors
/// A driver error.
pub fn run(device: &CudaDevice, rounds: u32, launches: u32) -> Result<Vec<Finding>> {
    PROBES.iter().map(|probe| probe.measure(device, rounds, launches)).collect()
}

#[cfg(test)]
mod tests {
    use super::table::next;
    use super::*;
    use crate::memory::device_tests::{cuda_device, turn};
    use kernels_gpu::probe::{LOAD_STEP, LOADS};
    use std::collections::BTreeSet;

    #[test]
    fn every_probe_computes_what_it_says() -> Result<()> {
        let _turn = turn();
        for finding in run(&cuda_device(), 4, 1)? {
            assert!(finding.right, "{finding:?}");
            assert!(finding.measured > 0.0, "{finding:?}");
        }
        Ok(())
    }

    #[test]
    fn a_wrong_value_is_noticed() {
        for probe in PROBES {
            let right = probe.expected(3, 5);
            assert!(probe.is_right(3, 5, right), "{}", probe.id);
            // the sums of the approximations converge, so they do not tell one round from another
            let wrong = [right ^ 1 << 16, probe.expected(3, 6)];
            let wrong = if matches!(probe.values, Values::Approximate { .. }) { &wrong[..1] } else { &wrong };
            for &wrong in wrong {
                assert!(!probe.is_right(3, 5, wrong) || wrong == right, "{}: {wrong}", probe.id);
            }
        }
    }

    /// The loops are what the source says, so that the compiler removed and added nothing that counts.
    #[test]
    fn machine_code_has_the_probed_instructions() {
        for probe in PROBES {
            let found = Loop::find(probe.kernel.name).expect(probe.id);
            let rounds = found.count(probe.opcode) / probe.count as f64;
            assert!([1.0, 2.0, 4.0].contains(&rounds), "{}: {rounds} rounds in a loop", probe.id);
            // the pass of the loop itself
            let others: f64 = ["BRA", "ISETP", "DEPBAR", "IADD32I"].map(|op| found.count(op)).iter().sum();
            let loads = found.count("IADD3") + found.count("LDS");
            let extra = match probe.id {
                "ex2" => found.count("RRO") + found.count("LOP32I"),
                _ => loads,
            };
            let all: f64 = found.instructions.iter().map(|(_, n)| n).sum();
            let own = if probe.opcode == "LDS" { 0.0 } else { found.count(probe.opcode) };
            assert_eq!(all, others + extra + own, "{}", probe.id);
        }
    }

    #[test]
    fn sources_in_one_bank_cost_a_slot_each_and_nothing_else_does() {
        let slots =
            |id| PROBES.iter().find(|probe| probe.id == id).and_then(|probe| probe.assumed().1).expect(id);
        for (id, slots_each) in [
            ("ffma_banks3", 1.0),
            ("ffma_banks2", 2.0),
            ("ffma_banks1", 3.0),
            ("dp4a_banks3", 1.0),
            ("dp4a_banks2", 2.0),
            ("fadd", 1.0),
        ] {
            assert!((slots(id) - slots_each).abs() < 0.03, "{id}: {}", slots(id));
        }
        // 48 FFMA, 8 loads, the loop: nearly every load is issued together with an FFMA
        assert!(slots("ffma_lds") < 1.15, "{}", slots("ffma_lds"));
    }

    #[test]
    fn every_kernel_is_launched_and_every_offset_is_in_shared_memory() {
        let launched: BTreeSet<_> = PROBES.iter().map(|probe| probe.kernel.name).collect();
        let declared: BTreeSet<_> = kernels::KERNELS.iter().map(|kernel| kernel.name).collect();
        assert_eq!(launched, declared);
        let ids: BTreeSet<_> = PROBES.iter().map(|probe| probe.id).collect();
        assert_eq!(ids.len(), PROBES.len());
        for probe in PROBES {
            for lane in 0..32 {
                let (words, loads) = match probe.values {
                    Values::Loads { words } => (words, LOADS),
                    _ => (1, LOADS),
                };
                let end = (probe.offset)(lane) as usize + (loads - 1) * LOAD_STEP as usize + 4 * words;
                assert!(
                    end <= 4 * WORDS && (probe.offset)(lane).is_multiple_of(4 * words as u32),
                    "{}",
                    probe.id
                );
            }
        }
        assert!((0..WORDS).all(|at| next(at).is_multiple_of(4) && next(at) < 4 * WORDS as u32));
    }

    #[test]
    fn the_clock_may_pass_zero_between_two_readings() {
        assert_eq!(elapsed(&[u32::MAX - 9, 20, u32::MAX - 19, 10]), 40);
        assert_eq!(elapsed(&[5, 7]), 2);
    }
}
