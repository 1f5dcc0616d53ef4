//! Q and K in 8-bit integers, as blocks multiply them.

use crate::attention::prefill::{Factors, Place};
use crate::attention::tensors::not_zero;
use crate::device::Element;
use crate::device::int8::{dp4a, load_words};
use crate::device::math::fma;
use crate::device::unroll::unroll;

/// Rows are padded to a multiple of this many, as blocks have tiles of so many keys.
pub const ROWS: u32 = 128;

/// The words of a row for heads of `head_dim`: whole pieces of 16 bytes.
pub const fn words(head_dim: u32) -> u32 {
    head_dim.div_ceil(16) * 4
}

/// Q and K as [`round`](super::round) writes them: a row has [`words`] of four integers each, and a scale.
#[derive(Clone, Copy)]
pub(super) struct Rounded {
    /// [b · num_q_heads, q_rows, words]
    pub q: *const u32,
    /// [b · num_kv_heads, k_rows, words]
    pub k: *const u32,
    /// [b · num_q_heads, q_rows], times the scale of scores
    pub q_scales: *const f32,
    /// [b · num_kv_heads, k_rows]
    pub k_scales: *const f32,
    pub q_rows: u32,
    pub k_rows: u32,
    pub num_q_heads: u32,
    /// Query heads of a kv head; not 0.
    pub group: u32,
}

/// 1.5 · 2²³. An integer within ±2²² that is added to its bits is added to its value.
const MAGIC: f32 = 12_582_912.0;

/// An element is a word of four 8-bit integers. Products are added by `dp4a` to the bits of [`MAGIC`], so that a sum, at most
/// 127² · 128 < 2²², needs no conversion.
impl Factors for Rounded {
    const ZERO: f32 = MAGIC;
    const RAGGED: bool = true;

    #[inline(always)]
    fn columns(head_dim: u32) -> u32 {
        words(head_dim)
    }

    #[inline(always)]
    unsafe fn load4_q(self, at: usize) -> [u32; 4] {
        // SAFETY: this function's contract; rows are multiples of 16 bytes.
        unsafe { load_words(self.q.add(at).cast()) }
    }

    #[inline(always)]
    unsafe fn load4_k(self, at: usize) -> [u32; 4] {
        // SAFETY: this function's contract; rows are multiples of 16 bytes.
        unsafe { load_words(self.k.add(at).cast()) }
    }

    #[inline(always)]
    fn q_values(self, words: [u32; 4]) -> [f32; 4] {
        words.map(f32::from_bits)
    }

    #[inline(always)]
    fn k_values(self, words: [u32; 4]) -> [f32; 4] {
        words.map(f32::from_bits)
    }

    #[inline(always)]
    fn multiply_add(q: f32, k: f32, sum: f32) -> f32 {
        f32::from_bits(dp4a(q.to_bits(), k.to_bits(), sum.to_bits() as i32) as u32)
    }

    /// Of consecutive keys. The scales of Q have the scores' scale in them.
    #[inline(always)]
    unsafe fn scale<const KEYS: usize>(self, s: &mut [[f32; KEYS]; 8], place: Place, key: u32, _: f32) {
        let plane = place.batch * self.num_q_heads + place.head;
        // SAFETY: the group is not 0. Queries and keys up to a multiple of 128 have scales; both numbers are multiples of four.
        let (rows, keys) = unsafe {
            not_zero(self.group);
            let rows = self.q_scales.add((plane * self.q_rows + place.first + place.row) as usize);
            let keys = self.k_scales.add((plane / self.group * self.k_rows + key) as usize);
            let far = if KEYS == 8 { f32::load4(keys.add(64)) } else { [0.0; 4] };
            ([f32::load4(rows), f32::load4(rows.add(4))], [f32::load4(keys), far])
        };
        unroll!(J < KEYS => {
            let scale = keys[J / 4][J % 4];
            let zero = -MAGIC * scale; // exact: see `scale_of`
            unroll!(I < 8 => { s[I][J] = fma(s[I][J], scale, zero) * rows[I / 4][I % 4]; });
        });
    }
}
