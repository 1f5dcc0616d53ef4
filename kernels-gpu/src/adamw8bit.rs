//! A step of AdamW with 8-bit moments: 2 bytes of state per element, where f32 needs 8.   p, g: [n] of each tensor
//!
//! The step is [`optimizer`](crate::optimizer)'s. A moment is stored as an f32 scale for every 256 elements, which is their
//! largest magnitude, and a code for each: value = scale · level(code). Levels are dense near 1 and reach down to 1e-6 or
//! 1e-7: half of the codes are in the decade from 0.1 to 1, a quarter in the next lower decade, and so on. The second moment
//! has no sign, so its levels have one bit more.
//!
//! Source: Dettmers, Lewis, Shleifer & Zettlemoyer 2021, "8-bit optimizers via block-wise quantization", sections 2 and 3
//! (blocks, dynamic tree quantisation). Two differences: 1 is a level, so the largest element of a block is exact; and a
//! positive second moment is never stored as 0, because a first moment is divided by it.
//!
//! | kernel        | 256 elements are handled by |
//! |---------------|-----------------------------|
//! | adamw8bit_f32 | 1 warp, 8 a lane            |

use crate::device::math::sqrt;
use crate::device::{Element, Shared};
use cuda_std::KernelInfo;
use cuda_std::butterfly::Butterfly;
use cuda_std::prelude::*;

/// Elements that share a scale.
pub const BLOCK: usize = 256;
/// The most elements of a chunk of a tensor; a multiple of [`BLOCK`].
pub const CHUNK: usize = 1 << 14;
/// Threads in a block.
const THREADS: u32 = 256;
const WARPS: u32 = THREADS / 32;
/// Bits of the first moment's levels; its codes have a sign bit above them.
const FIRST_BITS: u32 = 7;
/// Bits of the second moment's levels.
const SECOND_BITS: u32 = 8;
/// The sign of a code of the first moment.
const SIGN: u32 = 1 << FIRST_BITS;
/// Entries of the tables of levels.
const FIRST_LEVELS: u32 = 1 << FIRST_BITS;
const LEVELS: u32 = FIRST_LEVELS + (1 << SECOND_BITS);

/// The level of a code of `bits` bits, from 0 to 1. With h the position of the highest set bit and j the number in the bits
/// below it, it is 10^(h + 1 − bits) · (0.1 + 0.9 · (j + 1) / 2^h).
#[inline(always)]
fn level(code: u32, bits: u32) -> f32 {
    if code == 0 {
        return 0.0;
    }
    let high = 31 - code.leading_zeros();
    let below = (2 << high) - 1 - code; // larger codes of the decade
    let mut level = 1.0 - 0.9 * below as f32 / (1u32 << high) as f32;
    let mut decade = high + 1;
    while decade < bits {
        level *= 0.1;
        decade += 1;
    }
    level
}

/// The code of the level nearest to a magnitude from 0 to 1. Magnitudes below 0.55 of the smallest positive level give 0.
#[inline(always)]
fn code<const BITS: u32>(magnitude: f32) -> u32 {
    let (mut scaled, mut high) = (magnitude, BITS - 1);
    // scales it to the decade above 0.1, without a branch
    let mut decade = 1;
    while decade < BITS {
        let is_small = scaled <= 0.1;
        scaled = if is_small { scaled * 10.0 } else { scaled };
        high -= is_small as u32;
        decade += 1;
    }
    // the codes of a decade follow those of the next lower decade, whose last level is 0.1
    let decade = 1 << high;
    let steps = (scaled - 0.1) * (decade as f32 / 0.9) + 0.5;
    decade - 1 + (steps as u32).min(decade)
}

/// The code of a first moment divided by its block's scale.
#[inline(always)]
pub fn first_code(share: f32) -> u32 {
    let code = code::<FIRST_BITS>(share.abs());
    if share < 0.0 { code | SIGN } else { code }
}

/// The code of a second moment divided by its block's scale.
#[inline(always)]
pub fn second_code(share: f32) -> u32 {
    let code = code::<SECOND_BITS>(share);
    if share > 0.0 { code.max(1) } else { code }
}

/// The first moment of a code, divided by its block's scale.
pub fn first_share(code: u32) -> f32 {
    let magnitude = level(code & (SIGN - 1), FIRST_BITS);
    if code & SIGN != 0 { -magnitude } else { magnitude }
}

/// The second moment of a code, divided by its block's scale.
pub fn second_share(code: u32) -> f32 {
    level(code, SECOND_BITS)
}

/// A block's scale for its largest magnitude, and the reciprocal; below the normal numbers both are 0.
#[inline(always)]
pub fn scale(largest: f32) -> (f32, f32) {
    if largest >= f32::MIN_POSITIVE { (largest, 1.0 / largest) } else { (0.0, 0.0) }
}

/// A line of the table: one chunk of a tensor.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Chunk {
    /// [n]; read and written
    pub parameter: *mut f32,
    /// [n], disjoint from the others
    pub gradient: *const f32,
    /// [ceil(n / BLOCK), BLOCK / 4] words of codes, disjoint from the others; read and written
    pub first: *mut u32,
    /// [ceil(n / BLOCK)], disjoint from the others; read and written
    pub first_scales: *mut f32,
    /// As `first`.
    pub second: *mut u32,
    /// As `first_scales`.
    pub second_scales: *mut f32,
    pub n: u32,
    /// 1 − lr · decay
    pub keep: f32,
}

const _: () = assert!(size_of::<Chunk>() == 56 || size_of::<usize>() != 8);

/// The parameters of the kernel.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct Step {
    /// [gridDim.x]
    pub chunks: *const Chunk,
    /// The factor on the gradient.
    pub gradient_scale: f32,
    pub beta1: f32,
    pub beta2: f32,
    /// The learning rate divided by 1 − β₁ᵗ.
    pub rate: f32,
    /// 1 / √(1 − β₂ᵗ)
    pub root: f32,
    pub eps: f32,
}

/// All kernels of this file.
pub const KERNELS: &[KernelInfo] = &[adamw8bit_f32.info()];

/// grid = [chunks]
///
/// # Safety
/// [`Step`] and [`Chunk`] constrain the pointers, which are valid on the launching stream.
#[kernel(block = THREADS, min_blocks = 3, shared(levels: [f32; LEVELS]), shuffles = 10)]
pub unsafe fn adamw8bit_f32(p: Step) {
    let tid = thread::thread_idx_x();
    // SAFETY: `levels` has LEVELS elements; one thread writes each, before the barrier that all threads reach. There is a
    // block for each chunk. Its tensors have n elements, the moments whole blocks. A warp's block is its own, and all its
    // lanes stay converged.
    unsafe {
        levels.set(FIRST_LEVELS + tid, level(tid, SECOND_BITS));
        if tid < FIRST_LEVELS {
            levels.set(tid, level(tid, FIRST_BITS));
        }
        thread::sync_threads();
        let chunk = *p.chunks.add(thread::block_idx_x() as usize);
        let (lane, mut block) = (tid % 32, tid / 32);
        while block * (BLOCK as u32) < chunk.n {
            let scales = [*chunk.first_scales.add(block as usize), *chunk.second_scales.add(block as usize)];
            // a lane has two words of codes; neighbouring lanes have neighbouring words
            let (word, other) = ((block * 64 + lane) as usize, (block * 64 + 32 + lane) as usize);
            let (m, v) = four(&p, &chunk, word, scales, levels);
            let (other_m, other_v) = four(&p, &chunk, other, scales, levels);
            let (m_scale, m_inverse) = scale(Max.over::<32>(magnitude(m).max(magnitude(other_m))));
            let (v_scale, v_inverse) = scale(Max.over::<32>(magnitude(v).max(magnitude(other_v))));
            *chunk.first.add(word) = first_codes(m, m_inverse);
            *chunk.first.add(other) = first_codes(other_m, m_inverse);
            *chunk.second.add(word) = second_codes(v, v_inverse);
            *chunk.second.add(other) = second_codes(other_v, v_inverse);
            if lane == 0 {
                *chunk.first_scales.add(block as usize) = m_scale;
                *chunk.second_scales.add(block as usize) = v_scale;
            }
            block += WARPS;
        }
    }
}

/// The step of the four elements of word `word` of the codes; returns their moments. Elements past the end have moments of 0
/// and a gradient of 0, so they stay 0.
///
/// # Safety
/// The word exists in the chunk, and only this thread accesses it; `levels` is written.
#[inline(always)]
unsafe fn four(
    p: &Step,
    chunk: &Chunk,
    word: usize,
    scales: [f32; 2],
    levels: Shared<f32>,
) -> ([f32; 4], [f32; 4]) {
    let at = word * 4;
    let is_aligned = (chunk.parameter as usize | chunk.gradient as usize).is_multiple_of(16);
    let is_whole = is_aligned && at as u32 + 4 <= chunk.n;
    let exists = |i: usize| ((at + i) as u32) < chunk.n;
    let (to, from) = (chunk.parameter.wrapping_add(at), chunk.gradient.wrapping_add(at));
    // SAFETY: elements below n exist, and four that exist begin at a multiple of 16 bytes, as the tensors do. Codes are
    // indices of the tables.
    unsafe {
        let (values, gradients) = match is_whole {
            true => (load4(to), f32::load4(from)),
            false => (some(to, chunk.n, at), some(from, chunk.n, at)),
        };
        let (m_codes, v_codes) = (*chunk.first.add(word), *chunk.second.add(word));
        let (mut first, mut second, mut results) = ([0.0; 4], [0.0; 4], [0.0; 4]);
        let mut i = 0;
        while i < 4 {
            let (m_code, v_code) = (m_codes >> (8 * i) & 0xff, v_codes >> (8 * i) & 0xff);
            let m = levels.get(m_code & (SIGN - 1)) * scales[0];
            let m = if m_code & SIGN != 0 { -m } else { m };
            let v = levels.get(FIRST_LEVELS + v_code) * scales[1];
            let g = gradients[i] * p.gradient_scale;
            let m = m + (1.0 - p.beta1) * (g - m);
            let v = p.beta2 * v + (1.0 - p.beta2) * g * g;
            results[i] = values[i] * chunk.keep - p.rate * m / (sqrt(v) * p.root + p.eps);
            (first[i], second[i]) = (m, v);
            i += 1;
        }
        if is_whole {
            f32::store4(to, results);
        } else {
            let mut i = 0;
            while i < 4 {
                if exists(i) {
                    *to.add(i) = results[i];
                }
                i += 1;
            }
        }
        (first, second)
    }
}

/// The largest magnitude.
#[inline(always)]
fn magnitude([a, b, c, d]: [f32; 4]) -> f32 {
    a.abs().max(b.abs()).max(c.abs().max(d.abs()))
}

/// Four first moments as a word of codes.
#[inline(always)]
fn first_codes([a, b, c, d]: [f32; 4], inverse: f32) -> u32 {
    first_code(a * inverse)
        | first_code(b * inverse) << 8
        | first_code(c * inverse) << 16
        | first_code(d * inverse) << 24
}

/// Four second moments as a word of codes.
#[inline(always)]
fn second_codes([a, b, c, d]: [f32; 4], inverse: f32) -> u32 {
    second_code(a * inverse)
        | second_code(b * inverse) << 8
        | second_code(c * inverse) << 16
        | second_code(d * inverse) << 24
}

/// Four elements from index `at` on, of `n`; zeros for those past the end.
///
/// # Safety
/// `from` is at index `at` of n elements.
#[inline(always)]
unsafe fn some(from: *const f32, n: u32, at: usize) -> [f32; 4] {
    // SAFETY: only indices below n are read.
    let one = |i: usize| if ((at + i) as u32) < n { unsafe { *from.add(i) } } else { 0.0 };
    [one(0), one(1), one(2), one(3)]
}

/// Loads four elements that the kernel writes later, so not through the read-only path.
///
/// # Safety
/// `from` is valid for four elements and 16-byte aligned.
#[inline(always)]
unsafe fn load4(from: *const f32) -> [f32; 4] {
    /// Tells the compiler the alignment, so that it is one load.
    #[derive(Clone, Copy)]
    #[repr(align(16))]
    struct Four([f32; 4]);
    // SAFETY: this function's contract.
    unsafe { (*from.cast::<Four>()).0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_rise_from_their_smallest_to_one_and_each_has_its_code() {
        for bits in [FIRST_BITS, SECOND_BITS] {
            let levels: Vec<f32> = (0..1 << bits).map(|code| level(code, bits)).collect();
            assert!(levels.windows(2).all(|pair| pair[0] < pair[1]));
            assert_eq!((levels[0], levels[levels.len() - 1]), (0.0, 1.0));
            assert!((f64::from(levels[1]) * 10f64.powi(bits as i32 - 1) - 1.0).abs() < 1e-6);
        }
        for of in 0..256 {
            assert_eq!(second_code(second_share(of)), of);
            assert_eq!(first_code(first_share(of)), if of == SIGN { 0 } else { of }); // there is one zero
        }
    }

    #[test]
    fn a_code_is_that_of_the_nearest_level() {
        let levels: Vec<f32> = (0..256).map(second_share).collect();
        for i in 1..200_000 {
            let share = 10f32.powf(-7.0 * (i as f32 / 200_000.0));
            let nearest = levels.iter().map(|level| (level - share).abs()).fold(f32::MAX, f32::min);
            let error = (second_share(second_code(share)) - share).abs();
            assert!(error <= nearest * 1.001 + 1e-9, "{share}: {error}, not {nearest}");
        }
        assert_eq!((second_code(0.0), second_code(1e-30), second_code(1.0)), (0, 1, 255));
        assert_eq!((first_code(-0.0), first_code(1e-30), first_code(-1.0)), (0, 0, 255));
        assert_eq!(scale(1e-40), (0.0, 0.0));
    }
}
