//! Lanes of a warp: masks, votes and shuffles.
//!
//! A *segment* is `width` consecutive lanes (a power of two up to 32); shuffles never cross a segment.

use crate::gpu_only;
#[cfg(target_arch = "nvptx64")]
use core::arch::asm;

/// The mask that names all 32 lanes.
pub const FULL_MASK: u32 = u32::MAX;

#[cfg(target_arch = "nvptx64")]
unsafe extern "C" {
    #[link_name = "llvm.nvvm.bar.warp.sync"]
    fn bar_warp_sync(mask: u32);
    #[link_name = "llvm.nvvm.shfl.sync.down.i32"]
    fn shfl_down(mask: u32, value: u32, delta: u32, clamp: u32) -> u32;
    #[link_name = "llvm.nvvm.shfl.sync.up.i32"]
    fn shfl_up(mask: u32, value: u32, delta: u32, clamp: u32) -> u32;
    #[link_name = "llvm.nvvm.shfl.sync.bfly.i32"]
    fn shfl_bfly(mask: u32, value: u32, lane_mask: u32, clamp: u32) -> u32;
    #[link_name = "llvm.nvvm.shfl.sync.idx.i32"]
    fn shfl_idx(mask: u32, value: u32, lane: u32, clamp: u32) -> u32;
    #[link_name = "llvm.nvvm.vote.all.sync"]
    fn vote_all(mask: u32, predicate: bool) -> bool;
    #[link_name = "llvm.nvvm.vote.any.sync"]
    fn vote_any(mask: u32, predicate: bool) -> bool;
    #[link_name = "llvm.nvvm.vote.ballot.sync"]
    fn vote_ballot(mask: u32, predicate: bool) -> u32;
}

/// This thread's lane in its warp, 0 to 31.
#[gpu_only]
#[inline(always)]
pub fn lane_id() -> u32 {
    let lane;
    // SAFETY: reads a special register that every thread has.
    unsafe { asm!("mov.u32 {}, %laneid;", out(reg32) lane, options(pure, nomem, nostack, preserves_flags)) };
    lane
}

/// The lanes of this warp that execute this call together.
///
/// On sm_61 this is what holds at this call, not a guarantee: the compiler may have split the warp earlier.
#[gpu_only]
#[inline(always)]
pub fn activemask() -> u32 {
    // An intrinsic and not inline PTX: it is convergent, so LLVM keeps it in place.
    #[cfg(target_arch = "nvptx64")]
    unsafe extern "C" {
        #[link_name = "llvm.nvvm.activemask"]
        safe fn active() -> u32;
    }
    active()
}

/// Waits for all lanes in `mask`, and orders their memory accesses among each other.
///
/// # Safety
/// Every lane in `mask` executes this same call with the same mask; the caller is one of them.
#[gpu_only]
#[inline(always)]
pub unsafe fn sync_warp(mask: u32) {
    // SAFETY: the caller's contract is the instruction's.
    unsafe { bar_warp_sync(mask) }
}

/// A 32-bit value that lanes can exchange.
pub trait WarpShuffleValue: Copy {
    /// The value's bits.
    fn to_word(self) -> u32;
    /// The value with these bits.
    fn from_word(word: u32) -> Self;
}

impl WarpShuffleValue for u32 {
    #[inline(always)]
    fn to_word(self) -> u32 {
        self
    }
    #[inline(always)]
    fn from_word(word: u32) -> Self {
        word
    }
}

impl WarpShuffleValue for i32 {
    #[inline(always)]
    fn to_word(self) -> u32 {
        self as u32
    }
    #[inline(always)]
    fn from_word(word: u32) -> Self {
        word as i32
    }
}

impl WarpShuffleValue for f32 {
    #[inline(always)]
    fn to_word(self) -> u32 {
        self.to_bits()
    }
    #[inline(always)]
    fn from_word(word: u32) -> Self {
        f32::from_bits(word)
    }
}

/// PTX's `c` operand: the segment mask above bit 8, the last lane of a segment below.
#[cfg(target_arch = "nvptx64")]
#[inline(always)]
fn clamp(width: u32, last: u32) -> u32 {
    ((32 - width) << 8) | last
}

/// The value of the lane `delta` above, and whether that lane is in this segment; if not, the own value.
///
/// # Safety
/// Every lane in `mask` executes this same call with the same mask and width; the caller is one of them.
#[gpu_only]
#[inline(always)]
pub unsafe fn warp_shuffle_down<T: WarpShuffleValue>(
    mask: u32,
    value: T,
    delta: u32,
    width: u32,
) -> (T, bool) {
    // SAFETY: the caller's contract is the instruction's.
    let word = unsafe { shfl_down(mask, value.to_word(), delta, clamp(width, 31)) };
    (T::from_word(word), (lane_id() & (width - 1)) + delta < width)
}

/// The value of the lane `delta` below, and whether that lane is in this segment; if not, the own value.
///
/// # Safety
/// As [`warp_shuffle_down`].
#[gpu_only]
#[inline(always)]
pub unsafe fn warp_shuffle_up<T: WarpShuffleValue>(mask: u32, value: T, delta: u32, width: u32) -> (T, bool) {
    // SAFETY: the caller's contract is the instruction's.
    let word = unsafe { shfl_up(mask, value.to_word(), delta, clamp(width, 0)) };
    (T::from_word(word), (lane_id() & (width - 1)) >= delta)
}

/// The value of lane `idx` of this segment, and whether `idx` is in it.
///
/// # Safety
/// As [`warp_shuffle_down`].
#[gpu_only]
#[inline(always)]
pub unsafe fn warp_shuffle_idx<T: WarpShuffleValue>(mask: u32, value: T, idx: u32, width: u32) -> (T, bool) {
    // SAFETY: the caller's contract is the instruction's.
    let word = unsafe { shfl_idx(mask, value.to_word(), idx, clamp(width, 31)) };
    (T::from_word(word), idx < width)
}

/// The value of the lane whose number differs in the bits of `lane_mask`, and whether it is in this segment.
///
/// # Safety
/// As [`warp_shuffle_down`].
#[gpu_only]
#[inline(always)]
pub unsafe fn warp_shuffle_xor<T: WarpShuffleValue>(
    mask: u32,
    value: T,
    lane_mask: u32,
    width: u32,
) -> (T, bool) {
    // SAFETY: the caller's contract is the instruction's.
    let word = unsafe { shfl_bfly(mask, value.to_word(), lane_mask, clamp(width, 31)) };
    (T::from_word(word), lane_mask < width)
}

/// Whether `predicate` holds in all lanes of `mask`.
///
/// # Safety
/// Every lane in `mask` executes this same call with the same mask; the caller is one of them.
#[gpu_only]
#[inline(always)]
pub unsafe fn warp_vote_all(mask: u32, predicate: bool) -> bool {
    // SAFETY: the caller's contract is the instruction's.
    unsafe { vote_all(mask, predicate) }
}

/// Whether `predicate` holds in any lane of `mask`.
///
/// # Safety
/// As [`warp_vote_all`].
#[gpu_only]
#[inline(always)]
pub unsafe fn warp_vote_any(mask: u32, predicate: bool) -> bool {
    // SAFETY: the caller's contract is the instruction's.
    unsafe { vote_any(mask, predicate) }
}

/// The lanes of `mask` in which `predicate` holds.
///
/// # Safety
/// As [`warp_vote_all`].
#[gpu_only]
#[inline(always)]
pub unsafe fn warp_vote_ballot(mask: u32, predicate: bool) -> u32 {
    // SAFETY: the caller's contract is the instruction's.
    unsafe { vote_ballot(mask, predicate) }
}
