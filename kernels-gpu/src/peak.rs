//! Peak arithmetic: the rates of FFMA and `dp4a` that a multiprocessor sustains without memory access.
//!
//! Every thread runs independent chains of instructions between registers. The number of rounds is an argument, so that a
//! launch takes long enough to time, and not too long on a card that drives a display.

use crate::device::int8::dp4a;
use crate::device::math::fma;
use cuda_std::prelude::*;

/// Threads in a block.
pub const THREADS: u32 = 256;
/// Independent chains of a thread: more than an instruction's latency (6 clocks) times its rate.
pub const CHAINS: usize = 8;
/// Instructions of each chain in a round.
pub const STEPS: usize = 16;

/// The parameters of the kernels.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct Peak<S, F> {
    /// [gridDim.x · THREADS]
    pub sums: *mut S,
    pub a: F,
    pub b: F,
    pub rounds: u32,
}

macro_rules! peak_kernel {
    ($name:ident: $Sum:ty, $Factor:ty, |$a:ident, $b:ident, $sum:ident| $step:expr) => {
        /// grid = any number of blocks that fills the device
        ///
        /// # Safety
        /// [`Peak::sums`] is valid on the launching stream.
        #[kernel(block = THREADS, min_blocks = 8)]
        pub unsafe fn $name(Peak { sums, a: $a, b: $b, rounds }: Peak<$Sum, $Factor>) {
            let thread = thread::index_1d();
            // different, because otherwise the compiler would make them one chain
            let mut chains = [0 as $Sum; CHAINS];
            let mut c = 0;
            while c < CHAINS {
                chains[c] = (thread + c as u32) as $Sum;
                c += 1;
            }
            let mut round = 0;
            while round < rounds {
                let mut step = 0;
                while step < STEPS {
                    let mut c = 0;
                    while c < CHAINS {
                        let $sum = chains[c];
                        chains[c] = $step;
                        c += 1;
                    }
                    step += 1;
                }
                round += 1;
            }
            let mut c = 1;
            while c < CHAINS {
                chains[0] += chains[c];
                c += 1;
            }
            // SAFETY: the thread's own word.
            unsafe { *sums.add(thread as usize) = chains[0] };
        }
    };
}

peak_kernel!(peak_fma: f32, f32, |a, b, sum| fma(a, sum, b));
// four i8 in each factor
peak_kernel!(peak_dp4a: i32, u32, |a, b, sum| dp4a(a, b, sum));
