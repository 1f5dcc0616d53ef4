//! Q and K: how a block loads them, and how it multiplies them. V is not here.

use super::block::Place;
use crate::attention::tensors::Floats;
use crate::device::Element;
use crate::device::math::fma;
use crate::device::unroll::unroll;
use crate::kv::Stored;

/// Q and K of a run. Indices count elements of their type in memory.
pub(in crate::attention) trait Factors: Copy {
    /// What a sum of products begins with.
    const ZERO: f32;

    /// Whether the last chunk's columns are counted by fours.
    const RAGGED: bool;

    /// The elements of a row for heads of `head_dim`.
    fn columns(head_dim: u32) -> u32;

    /// Loads four neighbours of Q in their memory format.
    ///
    /// # Safety
    /// They are inside Q, and `at` is a multiple of four.
    unsafe fn load4_q(self, at: usize) -> [u32; 4];

    /// As [`load4_q`](Self::load4_q), of K.
    ///
    /// # Safety
    /// They are inside K, and `at` is a multiple of four.
    unsafe fn load4_k(self, at: usize) -> [u32; 4];

    /// Converts the result of [`load4_q`](Self::load4_q).
    fn q_values(self, words: [u32; 4]) -> [f32; 4];

    /// Converts the result of [`load4_k`](Self::load4_k).
    fn k_values(self, words: [u32; 4]) -> [f32; 4];

    /// q · k + sum, of converted elements.
    fn multiply_add(q: f32, k: f32, sum: f32) -> f32;

    /// Makes sums of products the scores of the thread's rows with keys `key` + 0 … 3 and, with KEYS = 8, those 64 further.
    ///
    /// # Safety
    /// `place` is a thread's with queries, and `key` that of one of its tiles.
    unsafe fn scale<const KEYS: usize>(
        self,
        s: &mut [[f32; KEYS]; 8],
        place: Place,
        key: u32,
        scale_log2: f32,
    );
}

impl<Q: Element, S: Stored> Factors for Floats<Q, S> {
    const ZERO: f32 = 0.0;
    const RAGGED: bool = false;

    #[inline(always)]
    fn columns(head_dim: u32) -> u32 {
        head_dim
    }

    #[inline(always)]
    unsafe fn load4_q(self, at: usize) -> [u32; 4] {
        // SAFETY: this function's contract.
        unsafe { Q::load4_words(self.q.add(at)) }
    }

    #[inline(always)]
    unsafe fn load4_k(self, at: usize) -> [u32; 4] {
        // SAFETY: this function's contract.
        unsafe { self.k.load4_words(at) }
    }

    #[inline(always)]
    fn q_values(self, words: [u32; 4]) -> [f32; 4] {
        Q::from_words(words)
    }

    #[inline(always)]
    fn k_values(self, words: [u32; 4]) -> [f32; 4] {
        self.k.values4(words)
    }

    #[inline(always)]
    fn multiply_add(q: f32, k: f32, sum: f32) -> f32 {
        fma(q, k, sum)
    }

    #[inline(always)]
    unsafe fn scale<const KEYS: usize>(self, s: &mut [[f32; KEYS]; 8], _: Place, _: u32, scale_log2: f32) {
        unroll!(I < 8 => {
            unroll!(J < KEYS => { s[I][J] *= scale_log2; });
        });
    }
}
