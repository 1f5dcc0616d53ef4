//! Converts blocks and super-blocks between GGUF's layout and the one in memory, as words. Both are described in
//! [`kernels_gpu::quant::blocks`]. Each function has its inverse beside it.
//!
//! Words are little-endian; a compile-time check rejects big-endian hosts.

use kernels_gpu::quant::blocks::{
    BlockIq4Nl, BlockIq4Xs, BlockQ4_0, BlockQ4K, BlockQ5K, BlockQ6K, BlockQ8_0,
};

const _: () = assert!(cfg!(target_endian = "little"));

/// How a format's blocks stand in a file.
pub(crate) struct FileBlocks {
    /// Bytes of a block.
    pub bytes: usize,
    /// Converts blocks of a file to quants and scales in their memory layout.
    pub read: fn(file: &[u8], quants: &mut [u8], scales: &mut [u8]),
    /// The inverse of `read`.
    pub write: fn(file: &mut [u8], quants: &[u8], scales: &[u8]),
}

/// From the type of a block in a file, the bytes of its quants and its scales in memory, and what converts one block.
macro_rules! blocks {
    ($Block:ty, $quants:literal, $scales:literal, $read:expr, $write:expr) => {
        FileBlocks {
            bytes: size_of::<$Block>(),
            read: |file, quants, scales| {
                let read: fn(&[u8; size_of::<$Block>()], &mut [u8; $quants], &mut [u8; $scales]) = $read;
                let memory = quants.as_chunks_mut().0.iter_mut().zip(scales.as_chunks_mut().0);
                file.as_chunks()
                    .0
                    .iter()
                    .zip(memory)
                    .for_each(|(file, (quants, scales))| read(file, quants, scales));
            },
            write: |file, quants, scales| {
                let write: fn(&mut [u8; size_of::<$Block>()], &[u8; $quants], &[u8; $scales]) = $write;
                let memory = quants.as_chunks().0.iter().zip(scales.as_chunks().0);
                file.as_chunks_mut()
                    .0
                    .iter_mut()
                    .zip(memory)
                    .for_each(|(file, (quants, scales))| write(file, quants, scales));
            },
        }
    };
    // scales followed by quants, both unchanged
    ($Block:ty, $quants:literal, $scales:literal) => {
        blocks!(
            $Block,
            $quants,
            $scales,
            |file, quants, scales| {
                scales.copy_from_slice(&file[..$scales]);
                quants.copy_from_slice(&file[$scales..]);
            },
            |file, quants, scales| {
                file[..$scales].copy_from_slice(scales);
                file[$scales..].copy_from_slice(quants);
            }
        )
    };
}

pub(super) const Q8_0: FileBlocks = blocks!(BlockQ8_0, 32, 2);
pub(super) const Q4_0: FileBlocks = blocks!(BlockQ4_0, 16, 2);
pub(super) const Q4K: FileBlocks = blocks!(BlockQ4K, 128, 16);

pub(super) const Q5K: FileBlocks = blocks!(
    BlockQ5K,
    160,
    16,
    |file, quants, scales| {
        scales.copy_from_slice(&file[..16]);
        quants[..128].copy_from_slice(&file[48..]);
        quants[128..].copy_from_slice(bytes(&fifth_from_file(words(&file[16..48]))));
    },
    |file, quants, scales| {
        file[..16].copy_from_slice(scales);
        file[16..48].copy_from_slice(bytes(&fifth_to_file(words(&quants[128..]))));
        file[48..].copy_from_slice(&quants[..128]);
    }
);

pub(super) const Q6K: FileBlocks = blocks!(
    BlockQ6K,
    192,
    20,
    |file, quants, scales| {
        scales[..18].copy_from_slice(&file[192..]);
        scales[18..].fill(0);
        quants[..128].copy_from_slice(bytes(&low_from_file(words(&file[..128]))));
        quants[128..].copy_from_slice(bytes(&upper_from_file(words(&file[128..192]))));
    },
    |file, quants, scales| {
        file[..128].copy_from_slice(bytes(&low_to_file(words(&quants[..128]))));
        file[128..192].copy_from_slice(bytes(&upper_to_file(words(&quants[128..]))));
        file[192..].copy_from_slice(&scales[..18]);
    }
);

pub(super) const IQ4_NL: FileBlocks = blocks!(
    BlockIq4Nl,
    16,
    2,
    |file, quants, scales| {
        scales.copy_from_slice(&file[..2]);
        quants.copy_from_slice(bytes(&words::<4>(&file[2..]).map(nibbles_from_file)));
    },
    |file, quants, scales| {
        file[..2].copy_from_slice(scales);
        file[2..].copy_from_slice(bytes(&words::<4>(quants).map(nibbles_to_file)));
    }
);

pub(super) const IQ4_XS: FileBlocks = blocks!(
    BlockIq4Xs,
    128,
    8,
    |file, quants, scales| {
        scales.copy_from_slice(&file[..8]);
        quants.copy_from_slice(bytes(&words::<32>(&file[8..]).map(nibbles_from_file)));
    },
    |file, quants, scales| {
        file[..8].copy_from_slice(scales);
        file[8..].copy_from_slice(bytes(&words::<32>(quants).map(nibbles_to_file)));
    }
);

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
        for (name, blocks, size, quants, scales) in [
            ("q5_k", Q5K, 176, 160, 16),
            ("q6_k", Q6K, 210, 192, 20),
            ("iq4_nl", IQ4_NL, 18, 16, 2),
            ("iq4_xs", IQ4_XS, 136, 128, 8),
        ] {
            assert_eq!(blocks.bytes, size);
            let of = |file: &[u8]| {
                let (mut q, mut s) = (vec![0xff; quants], vec![0xff; scales]);
                (blocks.read)(file, &mut q, &mut s);
                [q, s].concat()
            };
            let none = of(&vec![0; size]);
            for bit in 0..size * 8 {
                let mut file = vec![0; size];
                file[bit / 8] = 1 << (bit % 8);
                let memory = of(&file);
                let changed: u32 = memory.iter().zip(&none).map(|(a, b)| (a ^ b).count_ones()).sum();
                assert_eq!(changed, 1, "{name}, bit {bit}");
                let mut back = vec![0xff; size];
                (blocks.write)(&mut back, &memory[..quants], &memory[quants..]);
                assert_eq!(back, file, "{name}, bit {bit}");
            }
        }
    }
}
