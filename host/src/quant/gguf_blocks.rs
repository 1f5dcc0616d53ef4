//! One block or super-block between GGUF's layout and the one in memory, as words. Both are in
//! [`kernels_gpu::quant::blocks`]; each function here has its inverse beside it.
//!
//! Words are taken as little-endian numbers; the library has no host of the other order, as the compiler checks.

use super::Format;
use kernels_gpu::quant::blocks::{
    BlockIq4Nl, BlockIq4Xs, BlockQ4_0, BlockQ4K, BlockQ5K, BlockQ6K, BlockQ8_0,
};

const _: () = assert!(cfg!(target_endian = "little"));

/// Bytes of a block of the file; `None` if the format is none of GGUF's.
pub(super) const fn file_bytes(format: Format) -> Option<usize> {
    match format {
        Format::I8 => None,
        Format::Q8_0 => Some(size_of::<BlockQ8_0>()),
        Format::Q4_0 => Some(size_of::<BlockQ4_0>()),
        Format::Q4K => Some(size_of::<BlockQ4K>()),
        Format::Q5K => Some(size_of::<BlockQ5K>()),
        Format::Q6K => Some(size_of::<BlockQ6K>()),
        Format::Iq4Nl => Some(size_of::<BlockIq4Nl>()),
        Format::Iq4Xs => Some(size_of::<BlockIq4Xs>()),
    }
}

/// A block of the file, of [`file_bytes`], to its quants and its scales, in bytes as they lie in memory.
pub(super) fn read(format: Format, file: &[u8], quants: &mut [u8], scales: &mut [u8]) {
    match format {
        Format::I8 | Format::Q8_0 | Format::Q4_0 | Format::Q4K => {
            let (from_scales, from_quants) = file.split_at(scales.len());
            scales.copy_from_slice(from_scales);
            quants.copy_from_slice(from_quants);
        }
        Format::Q5K => {
            let (from_scales, from_quants) = file.split_at(scales.len());
            let (fifth, low) = from_quants.split_at(32);
            scales.copy_from_slice(from_scales);
            quants[..128].copy_from_slice(low);
            quants[128..].copy_from_slice(bytes(&fifth_from_file(words(fifth))));
        }
        Format::Q6K => {
            let (low, rest) = file.split_at(128);
            let (upper, from_scales) = rest.split_at(64);
            scales[..from_scales.len()].copy_from_slice(from_scales);
            scales[from_scales.len()..].fill(0);
            quants[..128].copy_from_slice(bytes(&low_from_file(words(low))));
            quants[128..].copy_from_slice(bytes(&upper_from_file(words(upper))));
        }
        Format::Iq4Nl | Format::Iq4Xs => {
            let (from_scales, from_quants) = file.split_at(scales.len());
            scales.copy_from_slice(from_scales);
            for (to, from) in quants.chunks_exact_mut(4).zip(from_quants.chunks_exact(4)) {
                to.copy_from_slice(&nibbles_from_file(word(from)).to_le_bytes());
            }
        }
    }
}

/// The inverse of [`read`].
pub(super) fn write(format: Format, file: &mut [u8], quants: &[u8], scales: &[u8]) {
    match format {
        Format::I8 | Format::Q8_0 | Format::Q4_0 | Format::Q4K => {
            let (to_scales, to_quants) = file.split_at_mut(scales.len());
            to_scales.copy_from_slice(scales);
            to_quants.copy_from_slice(quants);
        }
        Format::Q5K => {
            let (to_scales, to_quants) = file.split_at_mut(scales.len());
            let (fifth, low) = to_quants.split_at_mut(32);
            to_scales.copy_from_slice(scales);
            low.copy_from_slice(&quants[..128]);
            fifth.copy_from_slice(bytes(&fifth_to_file(words(&quants[128..]))));
        }
        Format::Q6K => {
            let (low, rest) = file.split_at_mut(128);
            let (upper, to_scales) = rest.split_at_mut(64);
            to_scales.copy_from_slice(&scales[..to_scales.len()]);
            low.copy_from_slice(bytes(&low_to_file(words(&quants[..128]))));
            upper.copy_from_slice(bytes(&upper_to_file(words(&quants[128..]))));
        }
        Format::Iq4Nl | Format::Iq4Xs => {
            let (to_scales, to_quants) = file.split_at_mut(scales.len());
            to_scales.copy_from_slice(scales);
            for (to, from) in to_quants.chunks_exact_mut(4).zip(quants.chunks_exact(4)) {
                to.copy_from_slice(&nibbles_to_file(word(from)).to_le_bytes());
            }
        }
    }
}

fn word(bytes: &[u8]) -> u32 {
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

/// The words of N · 4 bytes, wherever they begin.
fn words<const N: usize>(bytes: &[u8]) -> [u32; N] {
    std::array::from_fn(|i| word(&bytes[4 * i..]))
}

fn bytes(words: &[u32]) -> &[u8] {
    bytemuck::cast_slice(words)
}

/// Exchanges the bits of `x` under `mask` with those `shift` higher.
const fn exchange(x: u32, mask: u32, shift: u32) -> u32 {
    let different = (x ^ x >> shift) & mask;
    x ^ different ^ different << shift
}

/// The low nibbles of a word's bytes, in order, and then the high ones.
const fn nibbles_from_file(word: u32) -> u32 {
    exchange(exchange(word, 0x00f0_00f0, 4), 0x0000_ff00, 8)
}

const fn nibbles_to_file(word: u32) -> u32 {
    exchange(exchange(word, 0x0000_ff00, 8), 0x00f0_00f0, 4)
}

/// Q5_K's fifth bits. The file: bit j of byte l is of value 32·j + l. In memory word 2·p + c is of the blocks 2·p and 2·p + 1,
/// values 16·c to 16·c + 15 of each: bit i of byte b of the first block's value 16·c + 4·i + b, bit 4 + i of the second's.
fn fifth_from_file(file: [u32; 8]) -> [u32; 8] {
    std::array::from_fn(|at| {
        let (pair, c) = (at / 2, at % 2);
        (0..4).fold(0, |word, i| {
            let bits = file[4 * c + i] >> (2 * pair);
            word | (bits & 0x0101_0101) << i | (bits >> 1 & 0x0101_0101) << (4 + i)
        })
    })
}

fn fifth_to_file(memory: [u32; 8]) -> [u32; 8] {
    std::array::from_fn(|at| {
        let (c, i) = (at / 4, at % 4);
        (0..4).fold(0, |word, pair| {
            let bits = memory[2 * pair + c] >> i;
            word | (bits & 0x0101_0101) << (2 * pair) | (bits >> 4 & 0x0101_0101) << (2 * pair + 1)
        })
    })
}

/// Q6_K's low nibbles. In each half of 16 words of the file the first 8 are of blocks 0 and 2, the others of blocks 1 and 3;
/// in memory the first are of blocks 0 and 1, the others of blocks 2 and 3.
fn low_from_file(file: [u32; 32]) -> [u32; 32] {
    std::array::from_fn(|at| {
        let (a, b) = (file[at & !8], file[at | 8]);
        if at & 8 == 0 {
            a & 0x0f0f_0f0f | (b & 0x0f0f_0f0f) << 4
        } else {
            a >> 4 & 0x0f0f_0f0f | b & 0xf0f0_f0f0
        }
    })
}

fn low_to_file(memory: [u32; 32]) -> [u32; 32] {
    low_from_file(memory) // pairs (0, 2), (1, 3) from (0, 1), (2, 3) is the same exchange
}

/// q in two's complement from q + 32, and back: the highest of six bits.
const SIGN: u32 = 0xaaaa_aaaa;

/// Q6_K's upper bits. The file: bits 2·i and 2·i + 1 of byte l of a half are of its block i, value l. In memory words 4·p + 2·c
/// and the next are of blocks 2·p and 2·p + 1, values 16·c to 16·c + 15 of each: the fields of byte b of the word j are of
/// value 16·c + 4·j + b of the first block, that 8 further on, and the same two of the second block.
fn upper_from_file(file: [u32; 16]) -> [u32; 16] {
    std::array::from_fn(|at| {
        let (pair, c, j) = (at / 4, at / 2 % 2, at % 2);
        let of_half = &file[pair / 2 * 8..];
        (0..2).fold(0, |word, further| {
            let bits = (of_half[4 * c + j + 2 * further] ^ SIGN) >> (pair % 2 * 4);
            word | (bits & 0x0303_0303) << (2 * further) | (bits >> 2 & 0x0303_0303) << (4 + 2 * further)
        })
    })
}

fn upper_to_file(memory: [u32; 16]) -> [u32; 16] {
    std::array::from_fn(|at| {
        let (half, c, further, j) = (at / 8, at / 4 % 2, at / 2 % 2, at % 2);
        let word = (0..2).fold(0, |word, pair| {
            let bits = memory[8 * half + 4 * pair + 2 * c + j] >> (2 * further);
            word | (bits & 0x0303_0303) << (4 * pair) | (bits >> 4 & 0x0303_0303) << (4 * pair + 2)
        });
        word ^ SIGN
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nibble_goes_where_the_layout_says() {
        assert_eq!(nibbles_from_file(0x7654_3210), 0x7531_6420);
        assert_eq!(nibbles_to_file(0x7531_6420), 0x7654_3210);
    }

    /// One bit at a time: each is somewhere, alone, and comes back.
    #[test]
    fn every_bit_comes_back() {
        for format in [Format::Q5K, Format::Q6K, Format::Iq4Nl, Format::Iq4Xs] {
            let (size, quants, scales) = match format {
                Format::Q5K => (176, 160, 16),
                Format::Q6K => (210, 192, 20),
                Format::Iq4Xs => (136, 128, 8),
                _ => (18, 16, 2),
            };
            assert_eq!(file_bytes(format), Some(size));
            let of = |file: &[u8]| {
                let (mut q, mut s) = (vec![0xff; quants], vec![0xff; scales]);
                read(format, file, &mut q, &mut s);
                [q, s].concat()
            };
            let none = of(&vec![0; size]);
            for bit in 0..size * 8 {
                let mut file = vec![0; size];
                file[bit / 8] = 1 << (bit % 8);
                let memory = of(&file);
                let changed: u32 = memory.iter().zip(&none).map(|(a, b)| (a ^ b).count_ones()).sum();
                assert_eq!(changed, 1, "{format:?}, bit {bit}");
                let mut back = vec![0xff; size];
                write(format, &mut back, &memory[..quants], &memory[quants..]);
                assert_eq!(back, file, "{format:?}, bit {bit}");
            }
        }
    }
}
