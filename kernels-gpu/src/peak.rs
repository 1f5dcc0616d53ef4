//! What arithmetic alone can do: the rate of `dp4a` that a multiprocessor sustains when nothing else is in its way.
//!
//! Every thread runs chains of `dp4a` that do not depend on each other, from registers to registers. The number of rounds
//! is an argument, so that a launch takes long enough to time and stays short enough for a display's card.

use crate::device::int8::dp4a;
use crate::spec::KernelSpec;
use cuda_std::prelude::*;

/// Threads in a block.
pub const THREADS: u32 = 256;
/// Independent chains of a thread: more than an instruction's latency (6 clocks) times its rate.
pub const CHAINS: usize = 8;
/// `dp4a` of each chain in a round.
const STEPS: usize = 16;

/// Multiply-adds of a thread in a round: each `dp4a` has four.
pub const MULTIPLY_ADDS: u64 = 4 * (CHAINS * STEPS) as u64;

/// grid = whatever fills the device
pub const DP4A: KernelSpec = KernelSpec::new("peak_dp4a", THREADS);

/// # Safety
/// `sums`: [gridDim.x · THREADS] words, valid on the launching stream; launched as [`DP4A`] says.
#[kernel(launch_bounds(THREADS))]
pub unsafe fn peak_dp4a(sums: *mut i32, a: u32, b: u32, rounds: u32) {
    let thread = thread::index_1d();
    // different, or the compiler would make one chain of them
    let mut chains = [0; CHAINS];
    let mut c = 0;
    while c < CHAINS {
        chains[c] = (thread + c as u32) as i32;
        c += 1;
    }
    let mut round = 0;
    while round < rounds {
        let mut step = 0;
        while step < STEPS {
            let mut c = 0;
            while c < CHAINS {
                chains[c] = dp4a(a, b, chains[c]);
                c += 1;
            }
            step += 1;
        }
        round += 1;
    }
    let mut sum = 0i32;
    let mut c = 0;
    while c < CHAINS {
        sum = sum.wrapping_add(chains[c]);
        c += 1;
    }
    // SAFETY: the thread's own word.
    unsafe { *sums.add(thread as usize) = sum };
}
