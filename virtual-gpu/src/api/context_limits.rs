//! The limits of a context (`cuCtxSetLimit`).
//!
//! | limit | here |
//! |---|---|
//! | stack size | once it is set, of kernels with calls by pointer or recursion; other kernels have what they need |
//! | size of printf's buffer | the text that a launch may print; it stays as it is once a kernel that prints was launched |
//! | heap of `malloc`; depth and pending launches of kernels that launch; granularity of L2 fetches | as set, for kernels that do not load, or a hint |
//! | persisting L2, and what is for graphics | unsupported |
//!
//! Source: the descriptions of `cuCtxSetLimit` and `CUlimit` in cuda.h of CUDA 12.9.

use std::ffi::c_uint;

use super::codes::*;
use crate::exec::LaunchLimits;
use crate::ptx::inst::MAX_LOCAL;

const STACK_SIZE: c_uint = 0;
const PRINTF_FIFO_SIZE: c_uint = 1;
const MALLOC_HEAP_SIZE: c_uint = 2;
const DEV_RUNTIME_SYNC_DEPTH: c_uint = 3;
const DEV_RUNTIME_PENDING_LAUNCH_COUNT: c_uint = 4;
const MAX_L2_FETCH_GRANULARITY: c_uint = 5;
/// Persisting L2, which compute capability 8.0 brought; shared memory and enablement of contexts that graphics share.
const UNSUPPORTED: std::ops::RangeInclusive<c_uint> = 6..=9;

/// The driver rounds a stack size up to a multiple of this.
const STACK_STEP: usize = 16;
const MOST_L2_FETCH: usize = 128;

/// The limits of one context.
#[derive(Clone, Copy)]
pub(super) struct ContextLimits {
    /// By the limit's number.
    values: [usize; 6],
    stack_is_set: bool,
    /// Whether a kernel that prints was launched.
    pub has_printed: bool,
}

impl Default for ContextLimits {
    fn default() -> Self {
        Self { values: [1 << 10, 1 << 20, 8 << 20, 2, 2048, 64], stack_is_set: false, has_printed: false }
    }
}

impl ContextLimits {
    pub fn value(&mut self, limit: c_uint) -> Result<&mut usize, u32> {
        if UNSUPPORTED.contains(&limit) {
            return Err(UNSUPPORTED_LIMIT);
        }
        self.values.get_mut(limit as usize).ok_or(INVALID_VALUE)
    }

    pub fn set(&mut self, limit: c_uint, value: usize) -> Answer {
        let has_printed = self.has_printed;
        let place = self.value(limit)?;
        match limit {
            STACK_SIZE if value > MAX_LOCAL as usize => return Err(INVALID_VALUE),
            STACK_SIZE => {
                *place = value.next_multiple_of(STACK_STEP);
                self.stack_is_set = true;
            }
            PRINTF_FIFO_SIZE if has_printed => return Err(INVALID_VALUE),
            MAX_L2_FETCH_GRANULARITY => *place = value.min(MOST_L2_FETCH),
            PRINTF_FIFO_SIZE
            | MALLOC_HEAP_SIZE
            | DEV_RUNTIME_SYNC_DEPTH
            | DEV_RUNTIME_PENDING_LAUNCH_COUNT => {
                *place = value;
            }
            _ => return Err(INVALID_VALUE),
        }
        Ok(())
    }

    pub fn of_launch(&self) -> LaunchLimits {
        let stack = if self.stack_is_set { self.values[STACK_SIZE as usize] as u32 } else { MAX_LOCAL };
        LaunchLimits { stack, printed: self.values[PRINTF_FIFO_SIZE as usize] }
    }
}
