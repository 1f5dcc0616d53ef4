//! Probes of a multiprocessor: loops of one kind of instruction between two readings of its clock.
//!
//! `pascaline report` launches them, so that a real card answers what the cost model assumes (`virtual-gpu/COSTS.md`).
//! A probe of a rate runs independent chains in a full block of warps, one block on the whole device; a probe of a latency runs one
//! chain in one warp. `scripts/sass-report` counts the issue slots of each loop in ptxas's machine code and writes
//! `host/src/gpu/probe_loops.csv`.
//!
//! PTX does not name machine registers. But a 16-byte access takes four registers of which the first is a multiple of 4, so words
//! 0 of two such vectors lie in the same bank (number mod 4), and words 0 and 1 in different ones.

use crate::device::int8::dp4a;
use crate::device::math::{exp2, fma, rsqrt};
#[cfg(target_arch = "nvptx64")]
use core::arch::asm;
use cuda_std::prelude::*;
use cuda_std::shared::{Shared, Word};
use cuda_std::{KernelInfo, gpu_only};

/// Threads of the one block that measures a rate: 8 warps on each of the four schedulers.
pub const THREADS: u32 = 1024;
/// Threads of the one warp that measures a latency.
pub const WARP: u32 = 32;
/// Independent chains of a thread.
pub const CHAINS: usize = 8;
/// Instructions of each chain in a round, where the loop is of arithmetic that every scheduler issues once a clock.
pub const STEPS: usize = 16;
/// The same for special functions, conversions and shuffles.
pub const SLOW_STEPS: usize = 4;
/// Loads in a round, and the bytes from one to the next: a whole number of times all banks.
pub const LOADS: usize = 8;
pub const LOAD_STEP: u32 = 512;
/// Words in shared memory.
pub const WORDS: usize = 2048;
/// FFMA for each load, where both are issued together.
pub const FMAS_PER_LOAD: usize = 6;
/// Instructions of a chain in a round of a latency.
pub const DEPENDENT: usize = 64;

/// The parameters of all probes.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct Probe {
    /// [warps, 2]: the clock before and after the rounds
    pub clocks: *mut u32,
    /// [threads]: what the chains come to
    pub values: *mut u32,
    /// [[`WORDS`]]: what shared memory holds
    pub words: *const u32,
    /// [32]: the byte in shared memory from which each lane reads
    pub offsets: *const u32,
    pub rounds: u32,
}

/// The multiprocessor's clock, of which differences are wanted.
#[gpu_only]
#[inline(always)]
fn clock() -> u32 {
    let clock;
    // SAFETY: reads a special register. Not `pure`: two readings differ.
    unsafe { asm!("mov.u32 {}, %clock;", out(reg32) clock, options(nomem, nostack, preserves_flags)) };
    clock
}

/// Runs the rounds between two readings of the clock, and writes both and the value.
///
/// # Safety
/// `clocks` and `values` are valid; all threads of the block are here.
#[inline(always)]
unsafe fn measure<S>(p: Probe, mut state: S, round: impl Fn(S) -> S, value: impl Fn(S) -> u32) {
    let thread = thread::thread_idx_x();
    // every warp begins with the others
    thread::sync_threads();
    let begin = clock();
    let mut n = 0;
    while n < p.rounds {
        state = round(state);
        n += 1;
    }
    let end = clock();
    // SAFETY: the thread's own word, and its warp's own two.
    unsafe {
        *p.values.add(thread as usize) = value(state);
        if thread.is_multiple_of(32) {
            let own = p.clocks.add((thread / 32 * 2) as usize);
            *own = begin;
            *own.add(1) = end;
        }
    }
}

/// Fills shared memory with the words, plus `more`.
///
/// # Safety
/// `words` is valid; all threads of the block are here.
#[inline(always)]
unsafe fn fill(tile: Shared<u32>, p: &Probe, more: u32) {
    let mut at = thread::thread_idx_x();
    while at < WORDS as u32 {
        // SAFETY: at < WORDS, which both have; each word is one thread's.
        unsafe { tile.set(at, *p.words.add(at as usize) + more) };
        at += thread::block_dim_x();
    }
    thread::sync_threads();
}

/// A 4-byte load that is repeated although nothing writes there.
///
/// # Safety
/// The address is in the block's shared memory, and a multiple of 4.
#[gpu_only]
#[inline(always)]
unsafe fn load(address: u32) -> u32 {
    let word;
    // SAFETY: the address is readable, as the caller promises.
    unsafe {
        asm!(
            "ld.volatile.shared.u32 {word}, [{address}];",
            word = out(reg32) word, address = in(reg32) address,
            options(readonly, nostack, preserves_flags)
        );
    }
    word
}

/// A 16-byte load that is repeated although nothing writes there.
///
/// # Safety
/// As [`load`], for a multiple of 16.
#[gpu_only]
#[inline(always)]
unsafe fn load4(address: u32) -> [u32; 4] {
    let (a, b, c, d);
    // SAFETY: the address is readable, as the caller promises.
    unsafe {
        asm!(
            "ld.volatile.shared.v4.u32 {{{a}, {b}, {c}, {d}}}, [{address}];",
            a = out(reg32) a, b = out(reg32) b, c = out(reg32) c, d = out(reg32) d,
            address = in(reg32) address,
            options(readonly, nostack, preserves_flags)
        );
    }
    [a, b, c, d]
}

/// f16(x) as f32.
#[gpu_only]
#[inline(always)]
fn through_f16(x: f32) -> f32 {
    let y;
    // SAFETY: arithmetic only.
    unsafe {
        asm!(
            "{{ .reg .b16 half; cvt.rn.f16.f32 half, {x}; cvt.f32.f16 {y}, half; }}",
            y = out(reg32) y, x = in(reg32) x,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    y
}

/// Eight chains that begin with the thread's number and those after it.
#[inline(always)]
fn starts() -> [u32; CHAINS] {
    let mut chains = [thread::thread_idx_x(); CHAINS];
    let mut c = 1;
    while c < CHAINS {
        chains[c] += c as u32;
        c += 1;
    }
    chains
}

/// STEPS steps of every chain, one chain after the other.
#[inline(always)]
fn steps<T: Copy, const STEPS: usize>(mut chains: [T; CHAINS], step: impl Fn(T) -> T) -> [T; CHAINS] {
    let mut n = 0;
    while n < STEPS {
        let mut c = 0;
        while c < CHAINS {
            chains[c] = step(chains[c]);
            c += 1;
        }
        n += 1;
    }
    chains
}

/// The exclusive or of all words, word i shifted by i bits.
#[inline(always)]
fn joined<const N: usize>(words: [u32; N]) -> u32 {
    let (mut all, mut i) = (0, 0);
    while i < N {
        all ^= words[i] << i;
        i += 1;
    }
    all
}

#[inline(always)]
fn joined_f32<const N: usize>(values: [f32; N]) -> u32 {
    joined(values.map(f32::to_bits))
}

/// The sum, of values that are the same on all devices but for their last bits.
#[inline(always)]
fn sum(values: [f32; CHAINS]) -> u32 {
    let (mut all, mut i) = (0.0, 0);
    while i < CHAINS {
        all += values[i];
        i += 1;
    }
    all.to_bits()
}

macro_rules! rate {
    ($(#[$doc:meta])* $name:ident: $Type:ty, $steps:expr, $from:expr, $value:expr, |$x:ident| $step:expr) => {
        rate!($(#[$doc])* $name [shuffles = 0]: $Type, $steps, $from, $value, |$x| $step);
    };
    ($(#[$doc:meta])* $name:ident [shuffles = $shuffles:expr]: $Type:ty, $steps:expr, $from:expr, $value:expr, |$x:ident| $step:expr) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// [`Probe`]'s pointers are valid on the launching stream. grid = [1]
        #[kernel(block = THREADS, min_blocks = 2, shuffles = $shuffles)]
        pub unsafe fn $name(p: Probe) {
            let round = |chains| steps::<$Type, { $steps }>(chains, |$x| $step);
            // SAFETY: the launch has THREADS threads, and so many has this kernel's contract.
            unsafe { measure(p, starts().map($from), round, $value) };
        }
    };
}

rate!(
    /// FADD.
    probe_fadd: f32, STEPS, |start| start as f32, joined_f32, |x| x + 1.0
);
rate!(
    /// IADD and LOP in turn, which no instruction does together.
    probe_integer: u32, STEPS / 2, |start| start, joined, |x| x.wrapping_add(0x3333) ^ 0x5555
);
rate!(
    /// I2F.
    probe_i2f: u32, SLOW_STEPS, |start| start, joined, |x| (x as i32 as f32).to_bits()
);
rate!(
    /// MUFU.EX2, which needs an RRO before it and here also a change of sign.
    probe_ex2: f32, SLOW_STEPS, |start| start as f32, sum, |x| exp2(-x)
);
rate!(
    /// MUFU.RSQ.
    probe_rsqrt: f32, SLOW_STEPS, |start| start as f32 + 0.5, sum, |x| rsqrt(x)
);
rate!(
    /// Conversions to f16 and back.
    probe_f16: f32, SLOW_STEPS, |start| start as f32 / 3.0, joined_f32, |x| through_f16(x)
);
rate!(
    /// SHFL.
    probe_shfl [shuffles = (SLOW_STEPS * CHAINS) as u32]: u32, SLOW_STEPS, |start| start, joined,
    |x| {
        // SAFETY: every lane of the warp is here.
        unsafe { warp::warp_shuffle_idx(u32::MAX, x, thread::thread_idx_x() + 1, 32).0 }
    }
);

macro_rules! banks {
    ($(#[$doc:meta])* $name:ident: $Type:ty, $b:literal, $c:literal, |$x:ident, $y:ident, $sum:ident| $step:expr) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// [`Probe`]'s pointers are valid on the launching stream. grid = [1]
        #[kernel(block = THREADS, min_blocks = 2, shared(tile: [u32; WORDS]))]
        pub unsafe fn $name(p: Probe) {
            // SAFETY: all threads are here. The vectors are in the tile, aligned; the launch has THREADS threads.
            unsafe {
                fill(tile, &p, 0);
                let [a, b, c] = [0, 8, 16].map(|at| {
                    [tile.get4(at), tile.get4(at + 4)].map(|four| four.map(<$Type as Word>::from_bits))
                });
                let round = |mut sums: [[$Type; 4]; 2]| {
                    let mut step = 0;
                    while step < STEPS {
                        let mut i = 0;
                        while i < CHAINS {
                            let ($x, $y) = (a[i / 4][i % 4], b[i / 4][(i + $b) % 4]);
                            let own = &mut sums[i / 4][(i + $c) % 4];
                            let $sum = *own;
                            *own = $step;
                            i += 1;
                        }
                        step += 1;
                    }
                    sums
                };
                let value = |sums: [[$Type; 4]; 2]| {
                    let [[a, b, c, d], [e, f, g, h]] = sums.map(|four| four.map(Word::to_bits));
                    joined([a, b, c, d, e, f, g, h])
                };
                measure(p, c, round, value);
            }
        }
    };
}

banks!(
    /// FFMA with sources in three banks.
    probe_ffma_banks3: f32, 1, 2, |a, b, sum| fma(a, b, sum)
);
banks!(
    /// FFMA with two of the sources in one bank.
    probe_ffma_banks2: f32, 0, 1, |a, b, sum| fma(a, b, sum)
);
banks!(
    /// FFMA with all sources in one bank.
    probe_ffma_banks1: f32, 0, 0, |a, b, sum| fma(a, b, sum)
);
banks!(
    /// dp4a with sources in three banks.
    probe_dp4a_banks3: u32, 1, 2, |a, b, sum| dp4a(a, b, sum as i32) as u32
);
banks!(
    /// dp4a with two of the sources in one bank.
    probe_dp4a_banks2: u32, 0, 1, |a, b, sum| dp4a(a, b, sum as i32) as u32
);

/// The address from which this lane reads.
///
/// # Safety
/// `offsets` is valid.
#[inline(always)]
unsafe fn lane_address(tile: Shared<u32>, p: &Probe) -> u32 {
    // SAFETY: one of the 32 offsets.
    tile.address() + unsafe { *p.offsets.add((thread::thread_idx_x() % 32) as usize) }
}

/// 4-byte shared loads.
///
/// # Safety
/// [`Probe`]'s pointers are valid on the launching stream; with `LOADS − 1` times [`LOAD_STEP`] added, offsets are in the words. grid = [1]
#[kernel(block = THREADS, min_blocks = 2, shared(tile: [u32; WORDS]))]
pub unsafe fn probe_lds4(p: Probe) {
    // SAFETY: all threads are here; the addresses are in the tile, as the caller promises.
    unsafe {
        fill(tile, &p, 0);
        let address = lane_address(tile, &p);
        let round = |mut sums: [u32; LOADS]| {
            let mut words = [0; LOADS];
            let mut n = 0;
            while n < LOADS {
                words[n] = load(address + n as u32 * LOAD_STEP);
                n += 1;
            }
            n = 0;
            while n < LOADS {
                sums[n] = sums[n].wrapping_add(words[n]);
                n += 1;
            }
            sums
        };
        measure(p, [0; LOADS], round, joined);
    }
}

/// 16-byte shared loads.
///
/// # Safety
/// As [`probe_lds4`].
#[kernel(block = THREADS, min_blocks = 2, shared(tile: [u32; WORDS]))]
pub unsafe fn probe_lds16(p: Probe) {
    // SAFETY: all threads are here; the addresses are in the tile, as the caller promises.
    unsafe {
        fill(tile, &p, 0);
        let address = lane_address(tile, &p);
        let round = |mut sums: [u32; LOADS]| {
            let mut words = [[0; 4]; LOADS];
            let mut n = 0;
            while n < LOADS {
                words[n] = load4(address + n as u32 * LOAD_STEP);
                n += 1;
            }
            n = 0;
            while n < LOADS {
                let [a, b, c, d] = words[n];
                sums[n] = sums[n].wrapping_add(a).wrapping_add(b).wrapping_add(c).wrapping_add(d);
                n += 1;
            }
            sums
        };
        measure(p, [0; LOADS], round, joined);
    }
}

/// FFMA and 4-byte shared loads, which a scheduler may issue together.
///
/// # Safety
/// As [`probe_lds4`].
#[kernel(block = THREADS, min_blocks = 2, shared(tile: [u32; WORDS]))]
pub unsafe fn probe_ffma_lds(p: Probe) {
    // SAFETY: all threads are here; the addresses are in the tile, as the caller promises.
    unsafe {
        fill(tile, &p, 0);
        let address = lane_address(tile, &p);
        let factor = f32::from_bits(*p.words);
        let round = |mut sums: [f32; FMAS_PER_LOAD]| {
            let mut n = 0;
            while n < LOADS {
                let word = f32::from_bits(load(address + n as u32 * LOAD_STEP));
                let mut i = 0;
                while i < FMAS_PER_LOAD {
                    sums[i] = fma(word, factor, sums[i]);
                    i += 1;
                }
                n += 1;
            }
            sums
        };
        measure(p, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0], round, joined_f32);
    }
}

macro_rules! latency {
    ($(#[$doc:meta])* $name:ident: $Type:ty, |$a:ident, $b:ident, $x:ident| $step:expr) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// [`Probe`]'s pointers are valid on the launching stream. grid = [1]
        #[kernel(block = WARP, min_blocks = 16)]
        pub unsafe fn $name(p: Probe) {
            // SAFETY: three of the words; the launch has one warp.
            unsafe {
                let [$a, $b, start] = [0, 1, 2].map(|n| <$Type as Word>::from_bits(*p.words.add(n)));
                let round = |mut $x: $Type| {
                    let mut n = 0;
                    while n < DEPENDENT {
                        $x = $step;
                        n += 1;
                    }
                    $x
                };
                measure(p, start, round, Word::to_bits);
            }
        }
    };
}

latency!(
    /// FFMA, each of which waits for the one before.
    probe_latency_ffma: f32, |a, b, x| fma(a, x, b)
);
latency!(
    /// dp4a, each of which waits for the one before.
    probe_latency_dp4a: u32, |a, b, x| dp4a(a, b, x as i32) as u32
);

/// 4-byte shared loads, each from the address that the one before gives.
///
/// # Safety
/// [`Probe`]'s pointers are valid on the launching stream. Words and offsets are multiples of 4 in the bytes of shared memory.
/// grid = [1]
#[kernel(block = WARP, min_blocks = 16, shared(tile: [u32; WORDS]))]
pub unsafe fn probe_latency_lds(p: Probe) {
    // SAFETY: all threads are here; the addresses are in the tile, as the caller promises.
    unsafe {
        // offsets become addresses
        fill(tile, &p, tile.address());
        let round = |mut address| {
            let mut n = 0;
            while n < DEPENDENT {
                address = load(address);
                n += 1;
            }
            address
        };
        measure(p, lane_address(tile, &p), round, |address| address - tile.address());
    }
}

/// The contracts of this file's kernels.
pub const KERNELS: &[KernelInfo] = &[
    probe_dp4a_banks2.info(),
    probe_dp4a_banks3.info(),
    probe_ex2.info(),
    probe_f16.info(),
    probe_fadd.info(),
    probe_ffma_banks1.info(),
    probe_ffma_banks2.info(),
    probe_ffma_banks3.info(),
    probe_ffma_lds.info(),
    probe_i2f.info(),
    probe_integer.info(),
    probe_latency_dp4a.info(),
    probe_latency_ffma.info(),
    probe_latency_lds.info(),
    probe_lds16.info(),
    probe_lds4.info(),
    probe_rsqrt.info(),
    probe_shfl.info(),
];
