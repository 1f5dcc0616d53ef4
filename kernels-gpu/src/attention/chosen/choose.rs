//! The fewest tiles of keys that have a share of the softmax of a block's sampled queries.
//!
//! A warp has a block of 64 queries of a head. A tile's weight is the mean of its share in the softmax of the block's samples. The tiles
//! that weigh most are those at or above a threshold: the largest one at which, with the tiles that are taken in any case, they have the
//! share that is asked for. It is found by bisection over the bits of f32, which are ordered as the numbers.

use super::keys::{SAMPLES_PER_BLOCK, TILE};
use crate::attention::prefill::BM;
use crate::device::Element;
use crate::device::element::load_word;
use crate::device::math::{exp2, rcp};
use crate::device::unroll::unroll;
use cuda_std::KernelInfo;
use cuda_std::prelude::*;

/// Elements of a list besides its tiles: their number before them, and the last one again after them.
pub const LIST_EXTRA: u32 = 2;

/// Tiles whose weights are in shared memory: of 262,144 keys, and so few bytes that twelve blocks are resident.
pub const HELD: u32 = 2048;

/// Samples of a block, as an index of arrays.
const SAMPLES: usize = SAMPLES_PER_BLOCK as usize;

/// The parameters of the kernel.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct ChooseTiles {
    /// For each head and block of 64 queries the number of its tiles, these in ascending order, and the last one again:
    /// [num_q_heads, gridDim.y, tiles + [`LIST_EXTRA`]]
    pub lists: *mut u32,
    /// Used by the kernel for more than [`HELD`] tiles: [num_q_heads, gridDim.y, tiles]
    pub weights: *mut f32,
    /// As [`TileSums`](super::TileSums) has them: [num_q_heads, samples, tiles, 2]
    pub sums: *const f32,
    /// The first of the keys before its own that each block takes in any case, with its own: \[gridDim.y\]
    pub local: *const u32,
    /// Not 0.
    pub q_len: u32,
    /// Not less than q_len.
    pub kv_len: u32,
    /// ceil(q_len / [`SAMPLED`](super::SAMPLED))
    pub samples: u32,
    /// ceil(kv_len / [`TILE`])
    pub tiles: u32,
    /// From 0 to 1; from 1 on all tiles are taken.
    pub share: f32,
}

/// grid = [num_q_heads, ceil(q_len / 64)]
///
/// # Safety
/// [`ChooseTiles`] constrains the pointers, which are valid on the launching stream, and the numbers.
#[kernel(block = 32, min_blocks = 16, module = "attention_choose_tiles", shuffles = 50, shared(held: [f32; HELD]))]
pub unsafe fn attention_choose_tiles(p: ChooseTiles) {
    let (head, block, lane) = (thread::block_idx_x(), thread::block_idx_y(), thread::thread_idx_x());
    let at = head * thread::grid_dim_y() + block;
    let first = block * SAMPLES_PER_BLOCK;
    let last_query = ((block + 1) * BM).min(p.q_len) - 1;
    let tiles = (p.kv_len - p.q_len + last_query + 1).div_ceil(TILE);
    let count = SAMPLES_PER_BLOCK.min(p.samples - first);
    // SAFETY: the sums of the block's samples and tiles are written; the block's own weights and list are of as many elements; all
    // lanes run the same loops, as their conditions are the same for all.
    unsafe {
        let of_sample = |s: usize| {
            let sample = head * p.samples + first + (s as u32).min(count - 1);
            p.sums.add((sample * p.tiles) as usize * 2)
        };
        // in shared memory as far as there is room
        let beyond = p.weights.add((at * p.tiles) as usize);
        let weight = |tile: u32| if tile < HELD { held.at(tile).get(0) } else { *beyond.add(tile as usize) };
        let own = p.kv_len - p.q_len + block * BM;
        let local = load_word(p.local.add(block as usize)).min(own) / TILE;
        let is_taken = |tile: u32| tile == 0 || tile >= local;

        // each sample's maximum, and one over its sum
        let (mut max, mut factor) = ([f32::NEG_INFINITY; SAMPLES], [0.0f32; SAMPLES]);
        unroll!(S < 4 => {
            let sums = of_sample(S);
            let mut tile = lane;
            while tile < tiles {
                max[S] = max[S].max(f32::load(sums.add(tile as usize * 2)));
                tile += 32;
            }
            max[S] = Max.over::<32>(max[S]);
            let mut sum = 0.0;
            let mut tile = lane;
            while tile < tiles {
                let sums = sums.add(tile as usize * 2);
                sum += f32::load(sums.add(1)) * exp2(f32::load(sums) - max[S]);
                tile += 32;
            }
            sum = Sum.over::<32>(sum);
            factor[S] = rcp(sum);
        });

        // the tiles' weights; a lane reads only what it has written
        let mut total = 0.0;
        let mut tile = lane;
        while tile < tiles {
            let mut sum = 0.0;
            unroll!(S < 4 => {
                let sums = of_sample(S).add(tile as usize * 2);
                sum += f32::load(sums.add(1)) * exp2(f32::load(sums) - max[S]) * factor[S];
            });
            if tile < HELD {
                held.at(tile).set(0, sum);
            } else {
                *beyond.add(tile as usize) = sum;
            }
            total += sum;
            tile += 32;
        }
        let wanted = p.share * Sum.over::<32>(total);

        // the largest threshold whose tiles have the share, as bits; 0 takes all
        let (mut low, mut high) = (0, if p.share < 1.0 { f32::INFINITY.to_bits() } else { 1 });
        while high - low > 1 {
            let threshold = (low + high) / 2;
            let mut sum = 0.0;
            let mut tile = lane;
            while tile < tiles {
                let weight = weight(tile);
                if weight.to_bits() >= threshold || is_taken(tile) {
                    sum += weight;
                }
                tile += 32;
            }
            if Sum.over::<32>(sum) >= wanted { low = threshold } else { high = threshold }
        }

        let list = p.lists.add((at * (p.tiles + LIST_EXTRA)) as usize);
        let mut number = 0;
        let mut start = 0;
        while start < tiles {
            let tile = start + lane;
            let is_listed = tile < tiles && (weight(tile).to_bits() >= low || is_taken(tile));
            let listed = warp::warp_vote_ballot(warp::FULL_MASK, is_listed);
            if is_listed {
                let before = (listed & ((1 << lane) - 1)).count_ones();
                *list.add((1 + number + before) as usize) = tile;
            }
            number += listed.count_ones();
            start += 32;
        }
        if lane == 0 {
            *list = number;
            *list.add((1 + number) as usize) = tiles - 1; // the block's last tile is its own keys'
        }
    }
}

/// All kernels of this file.
pub const KERNELS: &[KernelInfo] = &[attention_choose_tiles.info()];
