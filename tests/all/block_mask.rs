//! Block masks: each builder against its definition, pair by pair; sets, pictures and refusals.

use pascaline::Error;
use pascaline::block_mask::{BlockGrid, BlockMask, Choose};
use proptest::prelude::*;

fn grid(block: usize, q_len: usize, kv_len: usize) -> BlockGrid {
    BlockGrid::new(block, q_len, kv_len).expect("a valid block size")
}

const SIZES: [(usize, usize, usize); 7] =
    [(16, 40, 40), (16, 33, 70), (32, 100, 65), (64, 65, 130), (128, 129, 300), (16, 1, 50), (16, 50, 1)];

/// Compares with `sees(position of the query, key)`.
fn compare(mask: &BlockMask, sees: impl Fn(i64, i64) -> bool) {
    let (q_len, kv_len) = (mask.grid().q_len(), mask.grid().kv_len());
    let mut pairs = 0;
    for i in 0..q_len {
        for j in 0..kv_len {
            let wanted = sees(i as i64 + kv_len as i64 - q_len as i64, j as i64);
            assert_eq!(mask.attends(0, i, j), wanted, "{:?} query {i} key {j}", mask.grid());
            pairs += u64::from(wanted);
        }
    }
    assert_eq!(mask.pairs(), pairs);
}

#[test]
fn masks_of_tokens() {
    for (block, q_len, kv_len) in SIZES {
        let grid = grid(block, q_len, kv_len);
        compare(&BlockMask::dense(grid).expect("small"), |_, _| true);
        compare(&BlockMask::causal(grid).expect("small"), |at, j| j <= at);
        for (before, after) in [(0, 0), (5, 0), (20, 3), (70, 70), (usize::MAX, 1)] {
            let window = BlockMask::sliding_window(grid, before, after).expect("small");
            let before = i64::try_from(before).unwrap_or(i64::MAX / 2);
            compare(&window, |at, j| at - before <= j && j <= at + after as i64);
        }
        let longformer = BlockMask::global_window(grid, 3, 10, 10).expect("small");
        compare(&longformer, |at, j| at < 3 || j < 3 || (at - j).abs() <= 10);
        let causal = longformer.and_causal().expect("the same grid");
        compare(&causal, |at, j| j <= at && (at < 3 || j < 3 || at - j <= 10));
    }
}

#[test]
fn masks_of_blocks() {
    for (block, len) in [(16, 160), (32, 200), (64, 640)] {
        let grid = grid(block, len, len);
        let of = |x: i64| x / block as i64;
        compare(&BlockMask::strided(grid, 3).expect("a stride"), |at, j| {
            let back = of(at) - of(j);
            j <= at && (back < 3 || back % 3 == 0)
        });
        compare(&BlockMask::fixed(grid, 4, 1).expect("a stride"), |at, j| {
            j <= at && (of(at) / 4 == of(j) / 4 || of(j) % 4 == 3)
        });
    }
}

#[test]
fn big_bird_is_what_its_seed_says() {
    let grid = grid(16, 320, 320);
    let make = |seed| BlockMask::big_bird(grid, 3, 1, 1, 2, seed).expect("small");
    let mask = make(1);
    assert_eq!(mask, make(1));
    assert_ne!(mask, make(2));
    assert_eq!((mask.heads(), mask.partial_blocks()), (3, 0));
    for row in 0..20 {
        let starts = &mask.row_starts()[row..];
        let columns = &mask.columns()[starts[0] as usize..starts[1] as usize];
        let near = |&column: &u32| column == 0 || (column as usize).abs_diff(row) <= 1;
        let wanted = if row == 0 { 20 } else { (0..20).filter(near).count() + 2 };
        assert_eq!(columns.len(), wanted, "row {row}");
    }
    assert_ne!(mask.columns()[..40], mask.columns()[mask.row_starts()[20] as usize..][..40], "heads differ");
}

#[test]
fn a_row_is_chosen_by_its_scores() {
    let grid = grid(16, 16, 80); // one row, five columns, the last its own
    let scores = [1.0, 4.0, f32::NAN, 3.0, -2.0];
    let columns = |choose| {
        BlockMask::from_scores(grid, 1, &scores, choose, false).expect("five scores").columns().to_vec()
    };
    assert_eq!(columns(Choose::TopK(0)), [4]);
    assert_eq!(columns(Choose::TopK(2)), [1, 4]);
    assert_eq!(columns(Choose::TopK(3)), [1, 3, 4]);
    assert_eq!(columns(Choose::TopK(99)), [0, 1, 2, 3, 4]);
    // shares of the softmax: 0.035, 0.704, 0, 0.259, 0.002
    assert_eq!(columns(Choose::Mass(0.001)), [4]);
    assert_eq!(columns(Choose::Mass(0.7)), [1, 4]);
    assert_eq!(columns(Choose::Mass(0.9)), [1, 3, 4]);
    assert_eq!(columns(Choose::Mass(1.0)).len(), 4); // all that weigh anything
    for mass in [0.0, -1.0, 1.1, f32::NAN] {
        let refused = BlockMask::from_scores(grid, 1, &scores, Choose::Mass(mass), false);
        assert!(matches!(refused, Err(Error::Unsupported { argument: "mass", .. })), "{mass}");
    }
    let short = BlockMask::from_scores(grid, 2, &scores, Choose::TopK(1), false);
    assert!(matches!(short, Err(Error::Unsupported { argument: "scores", .. })));
    // causal: later blocks do not compete, and its own is seen up to each query
    let square = BlockGrid::new(16, 48, 48).expect("a block");
    let causal = BlockMask::from_scores(square, 1, &[9.0; 9], Choose::TopK(1), true).expect("nine scores");
    compare(&causal, |at, j| at / 16 == j / 16 && j <= at);
}

#[test]
fn refusals() {
    for block in [0, 8, 24, 256] {
        assert!(matches!(BlockGrid::new(block, 1, 1), Err(Error::Unsupported { argument: "block", .. })));
    }
    assert!(matches!(BlockGrid::new(16, usize::MAX, 1), Err(Error::TooLarge { argument: "q_len", .. })));
    let grid = grid(16, 32, 48);
    assert!(BlockMask::strided(grid, 0).is_err() && BlockMask::fixed(grid, 0, 1).is_err());
    assert!(BlockMask::from_compressed(grid, 1, &[0, 2, 3], &[0, 2, 1]).is_ok());
    for (starts, columns, argument) in [
        (&[0, 2][..], &[0, 1][..], "row_starts"),
        (&[0, 2, 4], &[0, 1, 2], "row_starts"),
        (&[1, 2, 3], &[0, 1, 2], "row_starts"),
        (&[0, 3, 2], &[0, 1], "row_starts"),
        (&[0, 2, 3], &[2, 0, 1], "columns"),
        (&[0, 2, 3], &[1, 1, 1], "columns"),
        (&[0, 2, 3], &[0, 3, 1], "column"),
    ] {
        match BlockMask::from_compressed(grid, 1, starts, columns) {
            Err(Error::Unsupported { argument: found, .. }) => {
                assert_eq!(found, argument, "{starts:?} {columns:?}")
            }
            other => panic!("{starts:?} {columns:?}: {other:?}"),
        }
    }
    assert!(BlockMask::from_matrix(grid, 1, &[true; 7]).is_err());
    let other = BlockMask::dense(BlockGrid::new(32, 32, 48).expect("a block")).expect("small");
    assert!(BlockMask::dense(grid).expect("small").union(&other).is_err());
}

#[test]
fn drawn_as_text_and_as_png() {
    let mask = BlockMask::causal(grid(16, 40, 40)).expect("small");
    assert_eq!(mask.text(0), "░··\n█░·\n██░\n");
    assert_eq!(mask.text(1), "");
    let png = mask.png(0, 16).expect("a pixel for each pair");
    let picture = image::load_from_memory(&png).expect("a PNG").to_rgb8();
    assert_eq!(picture.dimensions(), (40, 40));
    for (x, y, pixel) in picture.enumerate_pixels() {
        assert_eq!(pixel.0 == [255; 3], x > y, "{x} {y}");
    }
    let coarse = image::load_from_memory(&mask.png(0, 1).expect("a pixel for each block")).expect("a PNG");
    assert_eq!((coarse.width(), coarse.height()), (3, 3));
    for (head, pixels) in [(1, 1), (0, 3), (0, 32), (0, 0)] {
        assert!(mask.png(head, pixels).is_err());
    }
    let line = mask.to_string();
    assert!(line.contains("6 blocks listed (66.7 %), 3 of them in part; 51.2 % of the pairs"), "{line}");
}

#[test]
fn cost_grows_with_the_blocks() {
    let cost = |len| {
        let mask = BlockMask::sliding_window(grid(64, len, len), 511, 0).expect("small");
        mask.cost(16, 128)
    };
    let (short, long) = (cost(4096), cost(8192));
    let growth = |a: f64, b: f64| b / a;
    assert!(growth(short.bytes as f64, long.bytes as f64) < 2.1);
    assert!(growth(short.flops, long.flops) < 2.1 && growth(short.dense_flops, long.dense_flops) == 4.0);
    let dense = BlockMask::dense(grid(64, 4096, 4096)).expect("small").cost(16, 128);
    assert_eq!((dense.flops, dense.dense_flops), (4.0 * 4096.0 * 4096.0 * 128.0 * 16.0, dense.flops));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_matrix_comes_back_and_sets_are_sets(
        block in prop::sample::select(vec![16usize, 32, 64, 128]),
        q_len in 0usize..150,
        kv_len in 0usize..150,
        densities in (0u32..=100, 0u32..=100),
        seed in any::<u64>(),
    ) {
        let mut state = seed;
        let mut matrix = |percent: u32| -> Vec<bool> {
            let draw = |_| {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (state >> 33) % 100 < u64::from(percent)
            };
            (0..q_len * kv_len).map(draw).collect()
        };
        let (a, b) = (matrix(densities.0), matrix(densities.1));
        let grid = grid(block, q_len, kv_len);
        let of = |matrix: &[bool]| BlockMask::from_matrix(grid, 1, matrix).expect("it fits");
        let first = of(&a);
        let (union, both) = (first.union(&of(&b)).expect("one grid"), first.intersection(&of(&b)).expect("one grid"));
        for (at, (&a_sees, &b_sees)) in a.iter().zip(&b).enumerate() {
            let (i, j) = (at / kv_len, at % kv_len);
            prop_assert_eq!(first.attends(0, i, j), a_sees);
            prop_assert_eq!(union.attends(0, i, j), a_sees || b_sees);
            prop_assert_eq!(both.attends(0, i, j), a_sees && b_sees);
        }
        let either: Vec<bool> = a.iter().zip(&b).map(|(a, b)| a | b).collect();
        prop_assert_eq!(union, of(&either));
    }
}
