//! Converts blocks and super-blocks between GGUF's layout and the one in memory, as words. Both are described in
//! [`kernels_gpu::quant::blocks`]. Each function has its inverse beside it.
//!
//! Words are little-endian; a compile-time check rejects big-endian hosts.

use super::Format;
use kernels_gpu::quant::blocks::{
    BlockIq4Nl, BlockIq4Xs, BlockQ4_0, BlockQ4K, BlockQ5K, BlockQ6K, BlockQ8_0,
};

const _: () = assert!(cfg!(target_endian = "little"));

/// Bytes of a block in a file; `None` if the format does not exist in GGUF.
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

/// Converts blocks of a file, of [`file_bytes`] each, to quants and scales in their memory layout.
pub(super) fn read(format: Format, file: &[u8], quants: &mut [u8], scales: &mut [u8]) {
    match format {
        Format::I8 => {}
        Format::Q8_0 => read_each(file, quants, scales, split::<34, 32, 2>),
        Format::Q4_0 => read_each(file, quants, scales, split::<18, 16, 2>),
        Format::Q4K => read_each(file, quants, scales, split::<144, 128, 16>),
        Format::Q5K => read_each(
            file,
            quants,
            scales,
            |file: &[u8; 176], quants: &mut [u8; 160], scales: &mut [u8; 16]| {
                scales.copy_from_slice(&file[..16]);
                quants[..128].copy_from_slice(&file[48..]);
                quants[128..].copy_from_slice(bytes(&fifth_from_file(words(&file[16..48]))));
            },
        ),
        Format::Q6K => read_each(
            file,
            quants,
            scales,
            |file: &[u8; 210], quants: &mut [u8; 192], scales: &mut [u8; 20]| {
                scales[..18].copy_from_slice(&file[192..]);
                scales[18..].fill(0);
                quants[..128].copy_from_slice(bytes(&low_from_file(words(&file[..128]))));
                quants[128..].copy_from_slice(bytes(&upper_from_file(words(&file[128..192]))));
            },
        ),
        Format::Iq4Nl => {
            read_each(file, quants, scales, |file: &[u8; 18], quants: &mut [u8; 16], scales: &mut [u8; 2]| {
                scales.copy_from_slice(&file[..2]);
                quants.copy_from_slice(bytes(&words::<4>(&file[2..]).map(nibbles_from_file)));
            })
        }
        Format::Iq4Xs => read_each(
            file,
            quants,
            scales,
            |file: &[u8; 136], quants: &mut [u8; 128], scales: &mut [u8; 8]| {
                scales.copy_from_slice(&file[..8]);
                quants.copy_from_slice(bytes(&words::<32>(&file[8..]).map(nibbles_from_file)));
            },
        ),
    }
}

/// The inverse of [`read`].
pub(super) fn write(format: Format, file: &mut [u8], quants: &[u8], scales: &[u8]) {
    match format {
        Format::I8 => {}
        Format::Q8_0 => write_each(file, quants, scales, join::<34, 32, 2>),
        Format::Q4_0 => write_each(file, quants, scales, join::<18, 16, 2>),
        Format::Q4K => write_each(file, quants, scales, join::<144, 128, 16>),
        Format::Q5K => {
            write_each(file, quants, scales, |file: &mut [u8; 176], quants: &[u8; 160], scales: &[u8; 16]| {
                file[..16].copy_from_slice(scales);
                file[16..48].copy_from_slice(bytes(&fifth_to_file(words(&quants[128..]))));
                file[48..].copy_from_slice(&quants[..128]);
            })
        }
        Format::Q6K => {
            write_each(file, quants, scales, |file: &mut [u8; 210], quants: &[u8; 192], scales: &[u8; 20]| {
                file[..128].copy_from_slice(bytes(&low_to_file(words(&quants[..128]))));
                file[128..192].copy_from_slice(bytes(&upper_to_file(words(&quants[128..]))));
                file[192..].copy_from_slice(&scales[..18]);
            })
        }
        Format::Iq4Nl => {
            write_each(file, quants, scales, |file: &mut [u8; 18], quants: &[u8; 16], scales: &[u8; 2]| {
                file[..2].copy_from_slice(scales);
                file[2..].copy_from_slice(bytes(&words::<4>(quants).map(nibbles_to_file)));
            })
        }
        Format::Iq4Xs => {
            write_each(file, quants, scales, |file: &mut [u8; 136], quants: &[u8; 128], scales: &[u8; 8]| {
                file[..8].copy_from_slice(scales);
                file[8..].copy_from_slice(bytes(&words::<32>(quants).map(nibbles_to_file)));
            })
        }
    }
}

/// Calls `of_block` with each block: F bytes of the file, Q bytes of quants and S bytes of scales.
fn read_each<const F: usize, const Q: usize, const S: usize>(
    file: &[u8],
    quants: &mut [u8],
    scales: &mut [u8],
    of_block: impl Fn(&[u8; F], &mut [u8; Q], &mut [u8; S]),
) {
    let targets = quants.as_chunks_mut().0.iter_mut().zip(scales.as_chunks_mut().0);
    file.as_chunks()
        .0
        .iter()
        .zip(targets)
        .for_each(|(file, (quants, scales))| of_block(file, quants, scales));
}

/// As [`read_each`], in the other direction.
fn write_each<const F: usize, const Q: usize, const S: usize>(
    file: &mut [u8],
    quants: &[u8],
    scales: &[u8],
    of_block: impl Fn(&mut [u8; F], &[u8; Q], &[u8; S]),
) {
    let sources = quants.as_chunks().0.iter().zip(scales.as_chunks().0);
    file.as_chunks_mut()
        .0
        .iter_mut()
        .zip(sources)
        .for_each(|(file, (quants, scales))| of_block(file, quants, scales));
}

/// A block of scales followed by quants, both unchanged.
fn split<const F: usize, const Q: usize, const S: usize>(
    file: &[u8; F],
    quants: &mut [u8; Q],
    scales: &mut [u8; S],
) {
    scales.copy_from_slice(&file[..S]);
    quants.copy_from_slice(&file[S..]);
}

/// The inverse of [`split`].
fn join<const F: usize, const Q: usize, const S: usize>(
    file: &mut [u8; F],
    quants: &[u8; Q],
    scales: &[u8; S],
) {
    file[..S].copy_from_slice(scales);
    file[S..].copy_from_slice(quants);
}

fn word(bytes: &[u8]) -> u32 {
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

/// The N words of 4·N bytes, at any alignment.
fn words<const N: usize>(bytes: &[u8]) -> [u32; N] {
    std::array::from_fn(|i| word(&bytes[4 * i..]))
}

fn bytes(words: &[u32]) -> &[u8] {
    bytemuck::cast_slice(words)
}

/// Swaps the bits of `x` under `mask` with those `shift` higher.
const fn exchange(x: u32, mask: u32, shift: u32) -> u32 {
    let different = (x ^ x >> shift) & mask;
    x ^ different ^ different << shift
}

/// The low nibbles of a word's bytes, in order, then the high ones.
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

/// Q6_K's low nibbles. In each half of 16 words of the file the first 8 belong to blocks 0 and 2, the others to blocks 1 and
/// 3. In memory the first 8 belong to blocks 0 and 1, the others to blocks 2 and 3.
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

/// Converts q + 32 to q in two's complement and back: flips the highest of six bits.
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

    /// One bit at a time: each moves to exactly one position, and back.
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
