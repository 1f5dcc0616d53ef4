//! The list of probes, and the values that their kernels must compute.

use cuda_std::KernelSpec;
use kernels_gpu::probe::{
    self as kernels, CHAINS, DEPENDENT, FMAS_PER_LOAD, LOAD_STEP, LOADS, SLOW_STEPS, STEPS, WORDS,
};
use std::array;

/// The cost model's latencies.
const ARITHMETIC: f64 = 6.0;
const SHARED: f64 = 24.0;

/// The numbers that a probe computes.
#[derive(Clone, Copy)]
pub(super) enum Values {
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
    /// Sums c + a·b of three pairs of vectors: word i of a goes with words i + b and i + c of the others.
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

/// The measured quantity.
#[derive(Clone, Copy)]
pub(super) enum Cost {
    /// The slower of the schedulers, by issue slots, and another unit, which takes these clocks.
    Rate { unit: f64 },
    /// Clocks from one to the next that needs it.
    Latency(f64),
}

/// One probe.
pub(super) struct Probe {
    pub id: &'static str,
    pub what: &'static str,
    pub kernel: &'static KernelSpec<kernels::Probe>,
    /// SASS's opcode of what is counted, and how many a round has.
    pub opcode: &'static str,
    pub count: usize,
    pub cost: Cost,
    pub words: fn(usize) -> u32,
    /// A lane's byte in shared memory.
    pub offset: fn(u32) -> u32,
    pub values: Values,
}

/// Of whole numbers, for which one rounding and two are the same.
fn fma(a: u32, b: u32, c: u32) -> u32 {
    (f32::from_bits(a) * f32::from_bits(b) + f32::from_bits(c)).to_bits()
}

fn dp4a(a: u32, b: u32, c: u32) -> u32 {
    let products = a.to_le_bytes().into_iter().zip(b.to_le_bytes());
    products.fold(c, |sum, (a, b)| sum.wrapping_add_signed(i32::from(a as i8) * i32::from(b as i8)))
}

/// Small whole numbers.
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
pub(super) fn next(at: usize) -> u32 {
    ((at + 33) % WORDS * 4) as u32
}

fn own_word(lane: u32) -> u32 {
    4 * lane
}

/// The probes, in the order of the report.
pub(super) const PROBES: &[Probe] = {
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
            "IADD and LOP, for both",
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
    pub fn expected(&self, thread: u32, rounds: usize) -> u32 {
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
}
