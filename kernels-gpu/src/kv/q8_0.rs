//! Q8_0: quants i8 \[w\], scales f16 \[w/32\] of a row, w = d padded to 32; a value is scale · quant.

use super::stored::{Pairs, Row, Stored, each_pair};
use crate::device::element::{load_half, load_word};
use crate::device::int8::load_pair;
use crate::device::{Element, F16};
use crate::quant::blocks::{BLOCK, Half, abs_bits, inverse, quant_i8, scale_i8, stored_scale};
use cuda_std::inlined;
use cuda_std::prelude::*;

/// The format.
#[derive(Clone, Copy)]
pub struct Q8_0 {
    quants: *const u8,
    scales: *const F16,
}

/// Four quants of a word, times their scale.
#[inline(always)]
fn scaled(word: u32, scale: f32) -> [f32; 4] {
    let quant = |byte: u32| (word >> (8 * byte)) as u8 as i8 as f32 * scale;
    [quant(0), quant(1), quant(2), quant(3)]
}

#[inlined]
impl Stored for Q8_0 {
    const APART: bool = false;
    const SHUFFLES: u32 = 5;

    fn of([k, v]: [*const u8; 2], _: u32, [k_scales, v_scales]: [*const F16; 2]) -> [Self; 2] {
        [Self { quants: k, scales: k_scales }, Self { quants: v, scales: v_scales }]
    }

    unsafe fn load4_words(self, at: usize) -> [u32; 4] {
        // SAFETY: the caller's four quants are inside a row at a multiple of four. Rows are whole blocks, so the index of an
        // element gives that of its scale.
        unsafe {
            let scale = load_half(self.scales.add(at / BLOCK).cast());
            [load_word(self.quants.add(at).cast()), scale as u32, 0, 0]
        }
    }

    fn values4(self, [quants, scale, ..]: [u32; 4]) -> [f32; 4] {
        scaled(quants, F16(scale as u16).to_f32())
    }

    unsafe fn load8_words(self, row: usize, [low, _]: [u32; 2]) -> [[u32; 4]; 2] {
        let at = row + low as usize;
        // SAFETY: the caller's pieces are neighbours inside the row, the first at a multiple of eight, so these are eight
        // aligned bytes of one block.
        unsafe {
            let [a, b] = load_pair(self.quants.add(at));
            [[a, b, load_half(self.scales.add(at / BLOCK).cast()) as u32, 0], [0; 4]]
        }
    }

    fn values8(self, [[low, high, scale, _], _]: [[u32; 4]; 2]) -> [f32; 8] {
        let scale = F16(scale as u16).to_f32();
        let ([a, b, c, d], [e, f, g, h]) = (scaled(low, scale), scaled(high, scale));
        [a, b, c, d, e, f, g, h]
    }

    /// Block by block: a block's columns may be in either half, or in both. So appending a token changes no other token's scale.
    unsafe fn store(row: Row, [mut low, mut high]: Pairs) -> Pairs {
        const WIDTH: u32 = BLOCK as u32;
        let Row { values: quants, scales, row, half, is_written, .. } = row;
        let blocks = (2 * half).div_ceil(WIDTH);
        let mut block = 0;
        while block < blocks {
            let is_in = |column: u32| column / WIDTH == block;
            let mut largest = 0;
            each_pair!(half, P, i => {
                largest = if is_in(i) { largest.max(abs_bits(low[P])) } else { largest };
                largest = if is_in(i + half) { largest.max(abs_bits(high[P])) } else { largest };
            });
            let number = row * blocks + block;
            // SAFETY: all lanes are here.
            let scale = scale_i8(f32::from_bits(unsafe { Max.over::<32>(largest) }));
            let (inverse, stored) = (inverse(scale), stored_scale(scale));
            let put = |column: u32, value: f32| {
                if !is_in(column) {
                    return value;
                }
                let quant = quant_i8(value, inverse);
                if is_written {
                    // SAFETY: a column of the row's block.
                    unsafe { *quants.add((number * WIDTH + column % WIDTH) as usize) = quant as u8 };
                }
                quant as f32 * F16(stored.0).to_f32()
            };
            each_pair!(half, P, i => (low[P], high[P]) = (put(i, low[P]), put(i + half, high[P])));
            if is_written && warp::lane_id() == 0 {
                // SAFETY: the scale of the row's block.
                unsafe { *scales.cast::<Half>().add(number as usize) = stored };
            }
            block += 1;
        }
        [low, high]
    }
}

#[cfg(not(target_arch = "nvptx64"))]
impl super::stored::HostBlocks for Q8_0 {
    /// Half a step.
    const LARGEST_ERROR: f64 = 0.5 / 127.0;

    #[inline(always)]
    fn read(quants: &[u8], scale: f32, to: &mut [f32]) {
        to.iter_mut().zip(quants).for_each(|(to, &quant)| *to = f32::from(quant as i8) * scale);
    }
}
