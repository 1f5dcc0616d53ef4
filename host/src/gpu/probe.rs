//! Probes of a multiprocessor: what its clock says of loops of known instructions, beside the cost model's assumption.
//!
//! Everything runs as one block on one multiprocessor, so clocks are those of a warp instruction on a multiprocessor with all its
//! warps at work, or of one warp alone. The slots of each loop are ptxas's (`probe_loops.csv`, written by `scripts/sass-report`); the
//! driver's own compiler may allocate other registers.

use crate::Result;
use crate::cuda::CudaDevice;
use crate::memory::DeviceBuffer;
use cuda_std::KernelSpec;
use kernels_gpu::probe::{
    self as kernels, CHAINS, DEPENDENT, FMAS_PER_LOAD, LOAD_STEP, LOADS, SLOW_STEPS, STEPS, WORDS,
};
use std::array;

/// The compiler whose machine code the slots were counted in.
pub const COUNTED: &str = "ptxas 12.6";
/// A multiprocessor's clocks for which an instruction occupies one of its four schedulers.
const SLOT: f64 = 0.25;
/// The cost model's latencies.
const ARITHMETIC: f64 = 6.0;
const SHARED: f64 = 24.0;

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
    fn of(kernel: &str) -> Option<Self> {
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

/// The numbers that a probe computes.
#[derive(Clone, Copy)]
enum Values {
    /// From each chain's start, so many steps of it a round.
    Chains {
        start: fn(u32) -> u32,
        steps: usize,
        step: fn(u32) -> u32,
    },
    /// The same, of which the sum is the same on all devices but for the last bits.
    Approximate {
        start: fn(u32) -> f32,
        steps: usize,
        step: fn(f32) -> f32,
    },
    Shuffles,
    /// Sums of products of three pairs of vectors, of which b and c begin at these words.
    Banks {
        b: usize,
        c: usize,
        step: fn(u32, u32, u32) -> u32,
    },
    /// Sums of loaded words, of so many a load.
    Loads {
        words: usize,
    },
    FmaAndLoads,
    /// One chain of the first two words' step on the third.
    Chain {
        step: fn(u32, u32, u32) -> u32,
    },
    Pointers,
}

/// What is measured.
#[derive(Clone, Copy)]
enum Cost {
    /// At most one for each issue slot of a scheduler and one for these clocks of another unit.
    Rate { unit: f64 },
    /// From one to the next that needs it.
    Latency(f64),
}

/// One probe.
struct Probe {
    id: &'static str,
    what: &'static str,
    kernel: &'static KernelSpec<kernels::Probe>,
    /// SASS's opcode of what is counted, and how many a round has.
    opcode: &'static str,
    count: usize,
    cost: Cost,
    words: fn(usize) -> u32,
    /// A lane's byte in shared memory.
    offset: fn(u32) -> u32,
    values: Values,
}

fn fma(a: u32, b: u32, c: u32) -> u32 {
    f32::from_bits(a).mul_add(f32::from_bits(b), f32::from_bits(c)).to_bits()
}

fn dp4a(a: u32, b: u32, c: u32) -> u32 {
    let products = a.to_le_bytes().into_iter().zip(b.to_le_bytes());
    products.fold(c, |sum, (a, b)| sum.wrapping_add_signed(i32::from(a as i8) * i32::from(b as i8)))
}

/// Words whose products and sums are whole numbers, so that sums are exact.
fn small(at: usize) -> u32 {
    ((at % 5 + 1) as f32).to_bits()
}

fn any(at: usize) -> u32 {
    (at as u32).wrapping_mul(2_654_435_761)
}

fn one(_: usize) -> u32 {
    1f32.to_bits()
}

/// Offsets of a list that visits every word and stays in the bank's order.
fn next(at: usize) -> u32 {
    ((at + 33) % WORDS * 4) as u32
}

fn own_word(lane: u32) -> u32 {
    4 * lane
}

/// The probes, in the order of the report.
const PROBES: &[Probe] = {
    const fn rate(
        id: &'static str,
        what: &'static str,
        kernel: &'static KernelSpec<kernels::Probe>,
        opcode: &'static str,
        count: usize,
        unit: f64,
        values: Values,
    ) -> Probe {
        Probe {
            id,
            what,
            kernel,
            opcode,
            count,
            cost: Cost::Rate { unit },
            words: any,
            offset: own_word,
            values,
        }
    }
    const ARITHMETIC_COUNT: usize = CHAINS * STEPS;
    const SLOW_COUNT: usize = CHAINS * SLOW_STEPS;
    const fn banks(
        id: &'static str,
        what: &'static str,
        kernel: &'static KernelSpec<kernels::Probe>,
        b: usize,
        c: usize,
    ) -> Probe {
        Probe {
            words: small,
            ..rate(id, what, kernel, "FFMA", ARITHMETIC_COUNT, 0.0, Values::Banks { b, c, step: fma })
        }
    }
    const fn loads(
        id: &'static str,
        what: &'static str,
        kernel: &'static KernelSpec<kernels::Probe>,
        words: usize,
        unit: f64,
        offset: fn(u32) -> u32,
    ) -> Probe {
        Probe { offset, ..rate(id, what, kernel, "LDS", LOADS, unit, Values::Loads { words }) }
    }
    const fn latency(
        id: &'static str,
        what: &'static str,
        kernel: &'static KernelSpec<kernels::Probe>,
        opcode: &'static str,
        words: fn(usize) -> u32,
        clocks: f64,
        values: Values,
    ) -> Probe {
        Probe {
            id,
            what,
            kernel,
            opcode,
            count: DEPENDENT,
            cost: Cost::Latency(clocks),
            words,
            offset: own_word,
            values,
        }
    }
    &[
        banks("ffma_banks3", "FFMA, sources in three register banks", &kernels::probe_ffma_banks3, 1, 2),
        banks("ffma_banks2", "FFMA, two sources in one bank", &kernels::probe_ffma_banks2, 0, 1),
        banks("ffma_banks1", "FFMA, three sources in one bank", &kernels::probe_ffma_banks1, 0, 0),
        rate(
            "dp4a_banks3",
            "DP4A, sources in three banks",
            &kernels::probe_dp4a_banks3,
            "IDP",
            ARITHMETIC_COUNT,
            0.0,
            Values::Banks { b: 1, c: 2, step: dp4a },
        ),
        rate(
            "dp4a_banks2",
            "DP4A, two sources in one bank",
            &kernels::probe_dp4a_banks2,
            "IDP",
            ARITHMETIC_COUNT,
            0.0,
            Values::Banks { b: 0, c: 1, step: dp4a },
        ),
        loads("lds4", "4-byte shared load, each lane its word", &kernels::probe_lds4, 1, 1.0, own_word),
        loads("lds4_same", "4-byte shared load, all lanes one word", &kernels::probe_lds4, 1, 1.0, |_| 0),
        loads(
            "lds4_2way",
            "4-byte shared load, two words of each bank",
            &kernels::probe_lds4,
            1,
            2.0,
            |lane| 8 * lane,
        ),
        loads("lds16", "16-byte shared load, each lane its words", &kernels::probe_lds16, 4, 4.0, |lane| {
            16 * lane
        }),
        loads(
            "lds16_halves",
            "16-byte shared load, half-warps the same words",
            &kernels::probe_lds16,
            4,
            4.0,
            |lane| 16 * (lane % 16),
        ),
        // as in `matmul::regtile`: 8 × 4 lanes
        loads(
            "lds16_rows",
            "16-byte shared load, shared as a tile's rows",
            &kernels::probe_lds16,
            4,
            2.0,
            |lane| 16 * (lane >> 1 & 7),
        ),
        loads(
            "lds16_columns",
            "16-byte shared load, shared as a tile's columns",
            &kernels::probe_lds16,
            4,
            2.0,
            |lane| 16 * (lane & 1 | lane >> 4 << 1),
        ),
        loads("lds16_same", "16-byte shared load, all lanes the same", &kernels::probe_lds16, 4, 2.0, |_| 0),
        Probe {
            words: small,
            ..rate(
                "ffma_lds",
                "FFMA, a 4-byte shared load issued with every sixth",
                &kernels::probe_ffma_lds,
                "FFMA",
                LOADS * FMAS_PER_LOAD,
                1.0 / FMAS_PER_LOAD as f64,
                Values::FmaAndLoads,
            )
        },
        rate(
            "fadd",
            "FADD",
            &kernels::probe_fadd,
            "FADD",
            ARITHMETIC_COUNT,
            0.0,
            Values::Chains {
                start: |n| (n as f32).to_bits(),
                steps: STEPS,
                step: |x| (f32::from_bits(x) + 1.0).to_bits(),
            },
        ),
        rate(
            "integer",
            "IADD and LOP in turn",
            &kernels::probe_integer,
            "LOP32I",
            ARITHMETIC_COUNT / 2,
            0.0,
            Values::Chains { start: |n| n, steps: STEPS / 2, step: |x| x.wrapping_add(0x3333) ^ 0x5555 },
        ),
        rate(
            "i2f",
            "I2F",
            &kernels::probe_i2f,
            "I2F",
            SLOW_COUNT,
            1.0,
            Values::Chains { start: |n| n, steps: SLOW_STEPS, step: |x| (x as i32 as f32).to_bits() },
        ),
        rate(
            "f16",
            "F2F between f32 and f16",
            &kernels::probe_f16,
            "F2F",
            2 * SLOW_COUNT,
            1.0,
            Values::Chains {
                start: |n| (n as f32 / 3.0).to_bits(),
                steps: SLOW_STEPS,
                step: |x| half::f16::from_f32(f32::from_bits(x)).to_f32().to_bits(),
            },
        ),
        rate(
            "rsqrt",
            "MUFU.RSQ",
            &kernels::probe_rsqrt,
            "MUFU",
            SLOW_COUNT,
            1.0,
            Values::Approximate { start: |n| n as f32 + 0.5, steps: SLOW_STEPS, step: |x| x.sqrt().recip() },
        ),
        rate(
            "ex2",
            "MUFU.EX2 with its RRO",
            &kernels::probe_ex2,
            "MUFU",
            SLOW_COUNT,
            1.0,
            Values::Approximate { start: |n| n as f32, steps: SLOW_STEPS, step: |x| (-x).exp2() },
        ),
        rate("shfl", "SHFL", &kernels::probe_shfl, "SHFL", SLOW_COUNT, 1.0, Values::Shuffles),
        latency(
            "latency_ffma",
            "FFMA after FFMA",
            &kernels::probe_latency_ffma,
            "FFMA",
            one,
            ARITHMETIC,
            Values::Chain { step: |a, b, x| fma(a, x, b) },
        ),
        latency(
            "latency_dp4a",
            "DP4A after DP4A",
            &kernels::probe_latency_dp4a,
            "IDP",
            any,
            ARITHMETIC,
            Values::Chain { step: dp4a },
        ),
        latency(
            "latency_lds",
            "4-byte shared load after load",
            &kernels::probe_latency_lds,
            "LDS",
            next,
            SHARED,
            Values::Pointers,
        ),
    ]
};

/// The exclusive or of all words, word i shifted by i bits.
fn joined<const N: usize>(words: [u32; N]) -> u32 {
    words.into_iter().enumerate().fold(0, |all, (i, word)| all ^ word << i)
}

impl Probe {
    /// The value of a thread after so many rounds.
    fn expected(&self, thread: u32, rounds: usize) -> u32 {
        let chain = |c: usize| thread + c as u32;
        let repeated =
            |times: usize, start: u32, step: &dyn Fn(u32) -> u32| (0..times).fold(start, |x, _| step(x));
        match self.values {
            Values::Chains { start, steps, step } => {
                joined::<CHAINS>(array::from_fn(|c| repeated(rounds * steps, start(chain(c)), &step)))
            }
            Values::Approximate { start, steps, step } => {
                let end = |c| (0..rounds * steps).fold(start(chain(c)), |x, _| step(x));
                (0..CHAINS).map(end).sum::<f32>().to_bits()
            }
            Values::Shuffles => {
                let from = thread / 32 * 32 + (thread + (rounds * SLOW_STEPS) as u32) % 32;
                joined::<CHAINS>(array::from_fn(|c| from + c as u32))
            }
            Values::Banks { b, c, step } => {
                let mut sums: [u32; 8] = array::from_fn(|i| (self.words)(16 + i));
                for i in 0..8 {
                    let other = |shift: usize| i / 4 * 4 + (i + shift) % 4;
                    let (x, y) = ((self.words)(i), (self.words)(8 + other(b)));
                    sums[other(c)] = repeated(rounds * STEPS, sums[other(c)], &|sum| step(x, y, sum));
                }
                joined(sums)
            }
            Values::Loads { words } => {
                let load =
                    |n| self.loaded(thread, n, words).fold(0, u32::wrapping_add).wrapping_mul(rounds as u32);
                joined::<LOADS>(array::from_fn(load))
            }
            Values::FmaAndLoads => {
                let factor = (self.words)(0);
                let round = |sum| {
                    (0..LOADS).fold(sum, |sum, n| {
                        self.loaded(thread, n, 1).fold(sum, |sum, word| fma(word, factor, sum))
                    })
                };
                joined::<FMAS_PER_LOAD>(array::from_fn(|i| repeated(rounds, (i as f32).to_bits(), &round)))
            }
            Values::Chain { step } => {
                let [a, b, x] = [0, 1, 2].map(self.words);
                repeated(rounds * DEPENDENT, x, &|x| step(a, b, x))
            }
            Values::Pointers => {
                repeated(rounds * DEPENDENT, (self.offset)(thread), &|at| (self.words)(at as usize / 4))
            }
        }
    }

    /// The words of a thread's load `n` of a round.
    fn loaded(&self, thread: u32, n: usize, words: usize) -> impl Iterator<Item = u32> {
        let at = ((self.offset)(thread % 32) + n as u32 * LOAD_STEP) as usize / 4;
        (at..at + words).map(self.words)
    }

    fn is_right(&self, thread: u32, rounds: usize, value: u32) -> bool {
        let expected = self.expected(thread, rounds);
        match self.values {
            Values::Approximate { .. } => {
                let (value, expected) = (f32::from_bits(value), f32::from_bits(expected));
                // each of 8 chains ends where an error of 2 ulp stays one of a few
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
                let slots = Loop::of(self.kernel.name).map(|found| found.slots / found.count(self.opcode));
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
    use super::*;
    use crate::memory::device_tests::{cuda_device, turn};
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
            let found = Loop::of(probe.kernel.name).expect(probe.id);
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
                assert!(end <= 4 * WORDS && (probe.offset)(lane) as usize % (4 * words) == 0, "{}", probe.id);
            }
        }
        assert!((0..WORDS).all(|at| next(at) % 4 == 0 && next(at) < 4 * WORDS as u32));
    }

    #[test]
    fn the_clock_may_pass_zero_between_two_readings() {
        assert_eq!(elapsed(&[u32::MAX - 9, 20, u32::MAX - 19, 10]), 40);
        assert_eq!(elapsed(&[5, 7]), 2);
    }
}
