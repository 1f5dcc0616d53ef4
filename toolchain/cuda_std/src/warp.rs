//! Lanes of a warp: masks, votes and shuffles.
//!
//! Values have 8 to 128 bits; those of 64 take two shuffle instructions, those of 128 four, which stand in a row.
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

/// A number of 8 to 128 bits that lanes can exchange: by one shuffle of 32 bits, or two or four.
pub trait WarpShuffleValue: Copy {
    /// The shuffles that it takes.
    #[doc(hidden)]
    const WORDS: usize;
    /// The least significant 32 bits; those above a smaller type are zero.
    #[doc(hidden)]
    fn to_word(self) -> u32;
    /// The value with these bits, all others zero.
    #[doc(hidden)]
    fn from_word(word: u32) -> Self;
    /// All bits, the least significant first.
    #[doc(hidden)]
    fn to_words(self) -> [u32; 4];
    /// The value with these bits.
    #[doc(hidden)]
    fn from_words(words: [u32; 4]) -> Self;
}

macro_rules! shuffle_values {
    ($($type:ty as $bits:ty: $words:literal, |$value:ident| $to:expr, $from:expr;)*) => {$(
        impl WarpShuffleValue for $type {
            const WORDS: usize = $words;

            #[inline(always)]
            fn to_word(self) -> u32 {
                let $value = self;
                ($to) as u32
            }

            #[inline(always)]
            fn from_word(word: u32) -> Self {
                let $value = word as $bits;
                $from
            }

            #[inline(always)]
            fn to_words(self) -> [u32; 4] {
                let $value = self;
                let bits: $bits = $to;
                let bits = bits as u128;
                [bits as u32, (bits >> 32) as u32, (bits >> 64) as u32, (bits >> 96) as u32]
            }

            #[inline(always)]
            fn from_words(words: [u32; 4]) -> Self {
                let [a, b, c, d] = words.map(u128::from);
                let $value = (a | b << 32 | c << 64 | d << 96) as $bits;
                $from
            }
        }
    )*};
}

shuffle_values! {
    u8 as u8: 1, |value| value, value;
    i8 as u8: 1, |value| value as u8, value as i8;
    u16 as u16: 1, |value| value, value;
    i16 as u16: 1, |value| value as u16, value as i16;
    u32 as u32: 1, |value| value, value;
    i32 as u32: 1, |value| value as u32, value as i32;
    f32 as u32: 1, |value| value.to_bits(), f32::from_bits(value);
    u64 as u64: 2, |value| value, value;
    i64 as u64: 2, |value| value as u64, value as i64;
    f64 as u64: 2, |value| value.to_bits(), f64::from_bits(value);
    u128 as u128: 4, |value| value, value;
    i128 as u128: 4, |value| value as u128, value as i128;
}

/// A value whose words each go through this shuffle. The conditions are constants, so the shuffles follow each other in
/// one basic block, as if they were written so.
#[cfg(target_arch = "nvptx64")]
macro_rules! shuffled {
    ($shuffle:ident($mask:ident, $value:ident: $type:ident, $lane:ident, $clamp:expr)) => {
        if $type::WORDS == 1 {
            $type::from_word($shuffle($mask, $value.to_word(), $lane, $clamp))
        } else {
            let (mut words, clamp) = ($value.to_words(), $clamp);
            words[0] = $shuffle($mask, words[0], $lane, clamp);
            words[1] = $shuffle($mask, words[1], $lane, clamp);
            if $type::WORDS == 4 {
                words[2] = $shuffle($mask, words[2], $lane, clamp);
                words[3] = $shuffle($mask, words[3], $lane, clamp);
            }
            $type::from_words(words)
        }
    };
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
    let shuffled = unsafe { shuffled!(shfl_down(mask, value: T, delta, clamp(width, 31))) };
    (shuffled, (lane_id() & (width - 1)) + delta < width)
}

/// The value of the lane `delta` below, and whether that lane is in this segment; if not, the own value.
///
/// # Safety
/// As [`warp_shuffle_down`].
#[gpu_only]
#[inline(always)]
pub unsafe fn warp_shuffle_up<T: WarpShuffleValue>(mask: u32, value: T, delta: u32, width: u32) -> (T, bool) {
    // SAFETY: the caller's contract is the instruction's.
    let shuffled = unsafe { shuffled!(shfl_up(mask, value: T, delta, clamp(width, 0))) };
    (shuffled, (lane_id() & (width - 1)) >= delta)
}

/// The value of lane `idx` of this segment, and whether `idx` is in it.
///
/// # Safety
/// As [`warp_shuffle_down`].
#[gpu_only]
#[inline(always)]
pub unsafe fn warp_shuffle_idx<T: WarpShuffleValue>(mask: u32, value: T, idx: u32, width: u32) -> (T, bool) {
    // SAFETY: the caller's contract is the instruction's.
    let shuffled = unsafe { shuffled!(shfl_idx(mask, value: T, idx, clamp(width, 31))) };
    (shuffled, idx < width)
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
    let shuffled = unsafe { shuffled!(shfl_bfly(mask, value: T, lane_mask, clamp(width, 31))) };
    (shuffled, lane_mask < width)
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
