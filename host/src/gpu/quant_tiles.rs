//! The tiles of a product of quantised rows: how high they are, and in how many parts k is.
//!
//! The time of a product is that of the multiprocessor with the most blocks, which has four schedulers. For every four warps it takes a time
//! at the start and the end, and one for each 64 columns of k; both have a part that does not depend on the number of warps: latency.

use kernels_gpu::quant::tile::{BN, COLUMNS};

/// A product's tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tiling {
    /// Rows of a tile: 32, 64 or 128.
    pub rows: u32,
    /// Parts of k, each with blocks of its own.
    pub parts: u32,
}

/// What a multiprocessor takes for tiles of so many rows: `[a constant, for every four warps]`.
struct Times {
    rows: u32,
    /// Of a block.
    warps: u32,
    start: [f32; 2],
    /// For 64 columns of k.
    step: [f32; 2],
    /// Of a block, where k is in parts.
    part: f32,
}

/// Clocks on sm_61, simulated from the machine code of Q4_0's kernels (virtual-gpu/src/hot_loops.csv). Sums of a part are written and read
/// once, at 7.5 bytes a clock: 80 % of a multiprocessor's share of a P40's memory bandwidth. Of 64 rows a step takes 6 % more than Q4_0's
/// does: beside tiles of 128 other formats take 1 % less to 20 % more.
const PASCAL: [Times; 3] = [
    Times { rows: 32, warps: 2, start: [1040.0, 670.0], step: [470.0, 830.0], part: 2200.0 },
    Times { rows: 64, warps: 2, start: [1590.0, 1070.0], step: [580.0, 1550.0], part: 4400.0 },
    Times { rows: 128, warps: 4, start: [1670.0, 1050.0], step: [525.0, 1480.0], part: 8700.0 },
];

/// Of all GPUs but Pascal's. Microseconds, fitted to 2,226 times on an H200: 96 products in Q4_0 and Q4_K by several tiles and parts. By
/// these numbers a product is 1.2 % slower than by the fastest of those on average (with Q8_0, to which they were not fitted).
const HOPPER: [Times; 3] = [
    Times { rows: 32, warps: 2, start: [4.75, 0.0], step: [0.44, 0.79], part: 0.56 },
    Times { rows: 64, warps: 2, start: [6.27, 0.0], step: [0.21, 1.50], part: 0.69 },
    Times { rows: 128, warps: 4, start: [4.60, 0.0], step: [0.28, 1.52], part: 1.61 },
];

/// The fewest tiles of k in a part.
const LEAST_TILES: u32 = 4;
/// The most parts.
const MAX_PARTS: u32 = 12;

impl Times {
    /// The time of a product of `tiles` tiles of so many steps of k.
    fn product(&self, tiles: u32, steps: u32, parts: u32, multiprocessors: u32) -> f32 {
        let blocks = (tiles * parts).div_ceil(multiprocessors);
        let fours = (blocks * self.warps).div_ceil(4) as f32;
        let take = |[constant, each]: [f32; 2]| constant + each * fours;
        let part = if parts > 1 { self.part * blocks as f32 } else { 0.0 };
        take(self.start) + take(self.step) * steps.div_ceil(parts) as f32 + part
    }
}

/// The tiles for y: [m, n] with k columns, where at most `most` tiles may have their k in parts.
pub(super) fn tiling([m, n, k]: [u32; 3], is_pascal: bool, multiprocessors: u32, most: usize) -> Tiling {
    let steps = k.div_ceil(COLUMNS);
    let mut best = (f32::INFINITY, Tiling { rows: 128, parts: 1 });
    for times in if is_pascal { &PASCAL } else { &HOPPER } {
        let tiles = m.div_ceil(times.rows) * n.div_ceil(BN);
        // more blocks than these have no places that are left
        let room = if tiles as usize <= most { 12 * multiprocessors / tiles } else { 1 };
        for parts in 1..=room.min(steps / LEAST_TILES).clamp(1, MAX_PARTS) {
            let time = times.product(tiles, steps, parts, multiprocessors);
            if time < best.0 {
                best = (time, Tiling { rows: times.rows, parts });
            }
        }
    }
    best.1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(shape: [u32; 3], is_pascal: bool, multiprocessors: u32) -> (u32, u32) {
        let Tiling { rows, parts } = tiling(shape, is_pascal, multiprocessors, 1 << 14);
        (rows, parts)
    }

    /// Those that were measured to be fastest, or within 6 % of it.
    #[test]
    fn tiles_on_an_h200() {
        let of = |m, n, k| of([m, n, k], false, 132);
        assert_eq!([of(17, 2048, 6144), of(32, 12288, 2048)], [(32, 8), (32, 4)]);
        assert_eq!([of(64, 2048, 2048), of(64, 12288, 2048)], [(64, 8), (64, 4)]);
        assert_eq!([of(96, 12288, 2048), of(192, 4096, 12288)], [(32, 2), (64, 8)]);
        assert_eq!([of(384, 6144, 4096), of(512, 24576, 4096)], [(128, 4), (64, 1)]);
    }

    #[test]
    fn tiles_on_pascal() {
        // 3, 10, 20 and 30 multiprocessors: MX330, GTX 1060, GTX 1080, P40
        for multiprocessors in [3, 10, 20, 30] {
            assert_eq!(of([9, 12288, 2048], true, multiprocessors), (32, 1));
            assert_eq!(of([512, 4096, 2048], true, multiprocessors), (128, 1));
        }
        assert_eq!(of([32, 2048, 6144], true, 30), (32, 7));
        assert_eq!(of([32, 2048, 6144], true, 3), (32, 1), "32 blocks are enough");
    }

    /// Every part has work, and there is a counter for each tile that is divided.
    #[test]
    fn parts_are_no_more_than_there_is_room_for() {
        for is_pascal in [false, true] {
            for multiprocessors in [1, 2, 30, 132] {
                for [m, n, k] in
                    [[1, 1, 32], [9, 64, 256], [17, 41, 512], [33, 4096, 64], [200, 151936, 2048]]
                {
                    for most in [0, 1, 100, 1 << 14] {
                        let Tiling { rows, parts } = tiling([m, n, k], is_pascal, multiprocessors, most);
                        let tiles = m.div_ceil(rows) * n.div_ceil(BN);
                        assert!(parts == 1 || parts * LEAST_TILES <= k.div_ceil(COLUMNS), "{m} {n} {k}");
                        assert!(
                            parts == 1 || tiles as usize <= most && parts * tiles <= 12 * multiprocessors
                        );
                        assert!((1..=MAX_PARTS).contains(&parts));
                    }
                }
            }
        }
        assert_eq!(tiling([17, 41, 512], false, 132, 1).parts, 2);
        assert_eq!(tiling([17, 41, 512], false, 132, 0).parts, 1);
    }
}
