//! Warp reductions: a butterfly of shuffles and the instructions that combine their values, as one block of inline PTX.
//!
//! Lane l combines its value with that of lane l ^ 16, then of l ^ 8, and so on down to l ^ 1. In the end every lane has the
//! same result, combined in the same order.
//!
//! ```text
//! shfl.sync.bfly.b32 other, own, 16, 31, -1;
//! add.rn.f32 own, own, other;                 // and so for 8, 4 and 2
//! shfl.sync.bfly.b32 other, own, 1, 31, -1;   // own + other is left to the compiler
//! ```
//!
//! The last combination is left out because the compiler can then move it to where the result is used. Inside the block it
//! cost up to 18 instructions in kernels that reduce many values of which each lane keeps one (vector products).
//!
//! # Convergence
//!
//! rustc does not mark `asm!` as convergent, so LLVM copies it into both arms of a divergent branch. LLVM copies whole basic
//! blocks, and none that holds a convergent call. So each block of PTX has one in front of it, its anchor: a vote whose
//! result nobody uses. (LLVM sees it only once this function is inlined; `cuda_builder` switches off the copying until then.) By the disassembly for sm_61, over the 131 kernels that reduce:
//!
//! | anchor                       | costs                                                                 |
//! |------------------------------|-----------------------------------------------------------------------|
//! | `llvm.nvvm.vote.any.sync`    | nothing: ptxas drops a vote whose result is unused                    |
//! | `llvm.nvvm.vote.ballot.sync` | nothing                                                               |
//! | `llvm.nvvm.activemask`       | nothing itself, but LLVM orders 9 kernels differently: −3 to +1 instructions, −2 to +1 registers |
//! | `llvm.nvvm.bar.warp.sync`    | a `NOP` for each butterfly, 705 in all                                |

use crate::gpu_only;
use crate::warp::WarpShuffleValue;
#[cfg(target_arch = "nvptx64")]
use core::arch::asm;

#[cfg(target_arch = "nvptx64")]
unsafe extern "C" {
    #[link_name = "llvm.nvvm.vote.any.sync"]
    fn vote_any(mask: u32, predicate: bool) -> bool;
}

/// Keeps the inline PTX that follows it from being copied. Nothing may come between the two.
///
/// # Safety
/// All 32 lanes call it together.
#[cfg(target_arch = "nvptx64")]
#[inline(always)]
unsafe fn anchor() {
    // SAFETY: the caller promises that all lanes of the mask are here.
    unsafe { vote_any(u32::MAX, true) };
}

/// An operation that combines values over the lanes of a warp: associative and commutative, up to rounding.
pub trait Butterfly<T: WarpShuffleValue>: Copy {
    /// Combines two values of one thread.
    fn combine(self, a: T, b: T) -> T;

    /// The two operands of the last combination in a butterfly over `WIDTH` lanes.
    ///
    /// # Safety
    /// As [`over`](Self::over).
    #[doc(hidden)]
    unsafe fn halves<const WIDTH: u32>(self, word: u32) -> (u32, u32);

    /// The two operands of the last combination in a butterfly over `width` lanes.
    ///
    /// # Safety
    /// As [`over_lanes`](Self::over_lanes).
    #[doc(hidden)]
    unsafe fn halves_of_lanes(self, word: u32, width: u32) -> (u32, u32);

    /// Combines `value` over segments of `WIDTH` lanes: 8, 16 or 32. The result is valid in all lanes.
    ///
    /// # Safety
    /// All 32 lanes call it together.
    #[inline(always)]
    unsafe fn over<const WIDTH: u32>(self, value: T) -> T {
        // SAFETY: the caller promises what `halves` asks for.
        let (own, other) = unsafe { self.halves::<WIDTH>(value.to_word()) };
        self.combine(T::from_word(own), T::from_word(other))
    }

    /// [`over`](Self::over) for a width that only the launch knows. All shuffles are made; those across segments are not
    /// combined.
    ///
    /// # Safety
    /// All 32 lanes call it together, with the same `width`: 8, 16 or 32.
    #[inline(always)]
    unsafe fn over_lanes(self, value: T, width: u32) -> T {
        // SAFETY: the caller promises what `halves_of_lanes` asks for.
        let (own, other) = unsafe { self.halves_of_lanes(value.to_word(), width) };
        self.combine(T::from_word(own), T::from_word(other))
    }
}

/// a + b; integers wrap.
#[derive(Clone, Copy)]
pub struct Sum;

/// The larger. Of two floats one of which is NaN, the other.
#[derive(Clone, Copy)]
pub struct Max;

/// The larger, or a NaN if there is one.
#[derive(Clone, Copy)]
pub struct MaxOrNan;

/// The smaller.
#[derive(Clone, Copy)]
pub struct Min;

/// a | b
#[derive(Clone, Copy)]
pub struct Or;

/// A step of a butterfly: `other` is register `$own` of the lane at this distance, and `$combine` is the PTX that uses it.
/// Each shuffle begins a line, where the test that counts them looks.
#[cfg(target_arch = "nvptx64")]
macro_rules! step {
    ($distance:literal, $own:literal, $combine:expr) => {
        concat!("shfl.sync.bfly.b32 {other}, {", $own, "}, ", $distance, ", 31, -1;\n", $combine)
    };
}

/// A step in whose PTX the predicate `p` says whether the other lane is in the same segment.
#[cfg(target_arch = "nvptx64")]
macro_rules! step_if {
    ($distance:literal, $own:literal, $combine:expr) => {
        concat!(
            "{{\n.reg .pred p;\nsetp.gt.u32 p, {width}, ",
            $distance,
            ";\n",
            step!($distance, $own, $combine),
            "\n}}"
        )
    };
}

/// The steps of a butterfly and its last shuffle as one block of PTX.
#[cfg(target_arch = "nvptx64")]
macro_rules! steps {
    ($own:ident, $other:ident $(, $width:ident)?; $($step:expr),*) => {
        asm!(
            $($step,)*
            step!(1, "own", ""),
            own = inout(reg32) $own,
            other = out(reg32) $other,
            $(width = in(reg32) $width,)?
            options(nomem, nostack, preserves_flags)
        )
    };
}

/// The butterflies of an operation on a type, from the operation in Rust and in PTX: an instruction, or what makes `own` of
/// `own` and `other`, and then the same again under the predicate `p`.
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
                // SAFETY: the caller promises that all lanes are here; the anchor keeps them together.
                unsafe {
                    anchor();
                    match WIDTH {
                        8 => steps!(own, other; step!(4, "own", $ptx), step!(2, "own", $ptx)),
                        16 => steps!(
                            own, other; step!(8, "own", $ptx), step!(4, "own", $ptx), step!(2, "own", $ptx)
                        ),
                        _ => steps!(
                            own, other;
                            step!(16, "own", $ptx), step!(8, "own", $ptx), step!(4, "own", $ptx), step!(2, "own", $ptx)
                        ),
                    }
                }
                (own, other)
            }

            #[gpu_only]
            #[inline(always)]
            unsafe fn halves_of_lanes(self, word: u32, width: u32) -> (u32, u32) {
                let mut own = word;
                let other;
                // SAFETY: the caller promises that all lanes are here, with one width; the anchor keeps them together.
                unsafe {
                    anchor();
                    steps!(
                        own, other, width;
                        step_if!(16, "own", $ptx_if), step_if!(8, "own", $ptx_if), step!(4, "own", $ptx),
                        step!(2, "own", $ptx)
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
// The other is taken if this one is a number and not larger than it, or if the other is NaN.
butterfly!(
    MaxOrNan,
    f32,
    |a: f32, b: f32| if a > b || a.is_nan() { a } else { b },
    "{{\n.reg .pred p;\nsetp.num.f32 p, {own}, {own};\nsetp.leu.and.f32 p, {own}, {other}, p;\n@p mov.b32 {own}, {other};\n}}",
    "setp.num.and.f32 p, {own}, {own}, p;\nsetp.leu.and.f32 p, {own}, {other}, p;\n@p mov.b32 {own}, {other};"
);

/// The largest key over segments of `width` lanes, and the least index among those that have it. Both are valid in all lanes.
///
/// Two butterflies in one block: the maximum of the keys, then the minimum of the indices that have it. As one butterfly of
/// pairs it takes half as many dependent shuffles, but 10 instructions more on sm_61.
///
/// # Safety
/// All 32 lanes call it together, with the same `width`: 8, 16 or 32.
#[gpu_only]
#[inline(always)]
pub unsafe fn argmax(key: u32, index: u32, width: u32) -> (u32, u32) {
    let (largest, least);
    // SAFETY: the caller promises that all lanes are here; the anchor keeps them together.
    unsafe {
        anchor();
        asm!(
            step_if!(16, "largest", "@p max.u32 {largest}, {largest}, {other};"),
            step_if!(8, "largest", "@p max.u32 {largest}, {largest}, {other};"),
            step!(4, "largest", "max.u32 {largest}, {largest}, {other};"),
            step!(2, "largest", "max.u32 {largest}, {largest}, {other};"),
            step!(1, "largest", "max.u32 {largest}, {largest}, {other};"),
            "{{",
            ".reg .pred p;",
            "setp.eq.u32 p, {key}, {largest};",
            "selp.b32 {least}, {least}, -1, p;",
            "}}",
            step_if!(16, "least", "@p min.u32 {least}, {least}, {other};"),
            step_if!(8, "least", "@p min.u32 {least}, {least}, {other};"),
            step!(4, "least", "min.u32 {least}, {least}, {other};"),
            step!(2, "least", "min.u32 {least}, {least}, {other};"),
            step!(1, "least", "min.u32 {least}, {least}, {other};"),
            key = in(reg32) key,
            largest = inout(reg32) key => largest,
            least = inout(reg32) index => least,
            other = out(reg32) _,
            width = in(reg32) width,
            options(nomem, nostack, preserves_flags)
        );
    }
    (largest, least)
}
