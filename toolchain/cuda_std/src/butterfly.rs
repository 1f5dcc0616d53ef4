//! Warp reductions: a butterfly of shuffles and what combines them, as one block of inline PTX.
//!
//! Lane l combines its value with that of lane l ^ 16, then l ^ 8, and so on down to l ^ 1, so that in the end each lane
//! has the result over its segment, in the same order in all of them.
//!
//! # Convergence
//!
//! rustc does not mark `asm!` as convergent, so LLVM may copy it into both arms of a divergent branch. It copies whole
//! basic blocks only, and none that holds a convergent call. Each butterfly therefore begins with one: a vote whose
//! result nobody uses.
//!
//! | anchor                       | on sm_61                                              |
//! |------------------------------|-------------------------------------------------------|
//! | `llvm.nvvm.vote.any.sync`    | nothing: ptxas drops an unused vote                   |
//! | `llvm.nvvm.vote.ballot.sync` | nothing                                               |
//! | `llvm.nvvm.activemask`       | nothing, but LLVM orders the code around it differently: up to 5 instructions, ±2 registers |
//! | `llvm.nvvm.bar.warp.sync`    | a `NOP` for each butterfly                            |
//!
//! The last combination is left to the compiler, which may move it to where the result is used: inside the block it costs
//! up to 27 instructions where many results are reduced and each lane keeps one.

use crate::gpu_only;
use crate::warp::WarpShuffleValue;
#[cfg(target_arch = "nvptx64")]
use core::arch::asm;

#[cfg(target_arch = "nvptx64")]
unsafe extern "C" {
    #[link_name = "llvm.nvvm.vote.any.sync"]
    fn vote_any(mask: u32, predicate: bool) -> bool;
}

/// Keeps inline PTX that exchanges data between lanes in one place: to be called right before it.
///
/// # Safety
/// All 32 lanes call it together.
#[gpu_only]
#[inline(always)]
unsafe fn anchor() {
    // SAFETY: all lanes named by the mask are here, as the caller promises.
    unsafe { vote_any(u32::MAX, true) };
}

/// An operation that combines a value over neighbouring lanes: associative and commutative up to rounding.
pub trait Butterfly<T: WarpShuffleValue>: Copy {
    /// Combines two values of one thread.
    fn combine(self, a: T, b: T) -> T;

    /// All of a butterfly over `WIDTH` lanes but the last combination: its two operands.
    ///
    /// # Safety
    /// As [`over`](Self::over).
    #[doc(hidden)]
    unsafe fn halves<const WIDTH: u32>(self, word: u32) -> (u32, u32);

    /// The same over `width` lanes.
    ///
    /// # Safety
    /// As [`over_lanes`](Self::over_lanes).
    #[doc(hidden)]
    unsafe fn halves_of_lanes(self, word: u32, width: u32) -> (u32, u32);

    /// Combines `value` over segments of `WIDTH` lanes (8, 16 or 32); the result is valid in all of them.
    ///
    /// # Safety
    /// All 32 lanes call it together.
    #[inline(always)]
    unsafe fn over<const WIDTH: u32>(self, value: T) -> T {
        // SAFETY: as the caller promises.
        let (own, other) = unsafe { self.halves::<WIDTH>(value.to_word()) };
        self.combine(T::from_word(own), T::from_word(other))
    }

    /// [`over`](Self::over) for a width that only the launch knows: all shuffles are made, and those beyond it ignored.
    ///
    /// # Safety
    /// All 32 lanes call it together, with the same `width`: 8, 16 or 32.
    #[inline(always)]
    unsafe fn over_lanes(self, value: T, width: u32) -> T {
        // SAFETY: as the caller promises.
        let (own, other) = unsafe { self.halves_of_lanes(value.to_word(), width) };
        self.combine(T::from_word(own), T::from_word(other))
    }
}

/// a + b
#[derive(Clone, Copy)]
pub struct Sum;
/// The larger; of floats the one that is a number.
#[derive(Clone, Copy)]
pub struct Max;
/// The smaller.
#[derive(Clone, Copy)]
pub struct Min;
/// a | b
#[derive(Clone, Copy)]
pub struct Or;
/// The larger, a NaN if there is one.
#[derive(Clone, Copy)]
pub struct MaxOrNan;

/// The PTX of a step: the value from the lane at this distance, and `$combine`, which makes `own` of `own` and `other`.
macro_rules! step {
    ($distance:literal, $combine:expr) => {
        concat!("shfl.sync.bfly.b32 {other}, {own}, ", $distance, ", 31, -1;\n", $combine)
    };
}

/// A step that is ignored where the segments are no longer than the distance; `$combine` does nothing unless `p` holds.
macro_rules! step_if {
    ($distance:literal, $combine:expr) => {
        concat!(
            "{{\n.reg .pred p;\nsetp.gt.u32 p, {width}, ",
            $distance,
            ";\n",
            step!($distance, $combine),
            "\n}}"
        )
    };
}

/// The steps as one block of PTX, and the last shuffle.
macro_rules! block {
    ($own:ident, $other:ident $(, $name:ident: $operand:expr)*; $($step:expr),*) => {
        asm!(
            $($step,)*
            "shfl.sync.bfly.b32 {other}, {own}, 1, 31, -1;",
            own = inout(reg32) $own,
            other = out(reg32) $other,
            $($name = in(reg32) $operand,)*
            options(nomem, nostack, preserves_flags)
        )
    };
}

/// The butterflies of an operation on a type, from the operation in Rust and in PTX. The PTX is an instruction of two
/// operands, or statements that make `own` of `own` and `other`, and the same under the predicate `p`.
macro_rules! butterfly {
    ($op:ident, $type:ty, $combine:expr, $instruction:literal) => {
        butterfly! {
            $op, $type, $combine,
            concat!($instruction, " {own}, {own}, {other};"),
            concat!("@p ", $instruction, " {own}, {own}, {other};")
        }
    };
    ($op:ident, $type:ty, $combine:expr, $ptx:expr, $ptx_if:expr) => {
        impl Butterfly<$type> for $op {
            #[inline(always)]
            fn combine(self, a: $type, b: $type) -> $type {
                $combine(a, b)
            }

            #[gpu_only]
            #[inline(always)]
            unsafe fn halves<const WIDTH: u32>(self, word: u32) -> (u32, u32) {
                const { assert!(WIDTH == 8 || WIDTH == 16 || WIDTH == 32) };
                let mut own = word;
                let other;
                // SAFETY: all lanes are here, as the caller promises, and the anchor keeps them so.
                unsafe {
                    anchor();
                    match WIDTH {
                        8 => block!(own, other; step!(4, $ptx), step!(2, $ptx)),
                        16 => block!(own, other; step!(8, $ptx), step!(4, $ptx), step!(2, $ptx)),
                        _ => block!(own, other; step!(16, $ptx), step!(8, $ptx), step!(4, $ptx), step!(2, $ptx)),
                    }
                }
                (own, other)
            }

            #[gpu_only]
            #[inline(always)]
            unsafe fn halves_of_lanes(self, word: u32, width: u32) -> (u32, u32) {
                let mut own = word;
                let other;
                // SAFETY: as above.
                unsafe {
                    anchor();
                    block!(
                        own, other, width: width;
                        step_if!(16, $ptx_if), step_if!(8, $ptx_if), step!(4, $ptx), step!(2, $ptx)
                    );
                }
                (own, other)
            }
        }
    };
}

butterfly!(Sum, f32, |a, b| a + b, "add.rn.f32");
butterfly!(Sum, i32, i32::wrapping_add, "add.s32");
butterfly!(Max, f32, f32::max, "max.f32");
butterfly!(Max, u32, u32::max, "max.u32");
butterfly!(Min, u32, u32::min, "min.u32");
butterfly!(Or, u32, |a, b| a | b, "or.b32");
butterfly!(
    MaxOrNan,
    f32,
    |a: f32, b: f32| if a > b || a.is_nan() { a } else { b },
    "{{\n.reg .pred q;\nsetp.num.f32 q, {own}, {own};\nsetp.leu.and.f32 q, {own}, {other}, q;\n@q mov.b32 {own}, {other};\n}}",
    "setp.num.and.f32 p, {own}, {own}, p;\nsetp.leu.and.f32 p, {own}, {other}, p;\n@p mov.b32 {own}, {other};"
);
