//! Arguments that block-sparse attention refuses, and rows that attend to no key.

use pascaline::block_mask::{BlockGrid, BlockMask, Choose};
use pascaline::ops::{self, Attention, Path, PreparedMask};
use pascaline::{DType, Device, Error, Tensor};

fn zeros(dims: &[usize]) -> Tensor {
    Tensor::zeros(dims, DType::F32, &Device::Cpu).expect("a small tensor")
}

fn prepared(q_len: usize, kv_len: usize, heads: usize) -> PreparedMask {
    let grid = BlockGrid::new(16, q_len, kv_len).expect("a block");
    let mask = BlockMask::from_rule(grid, heads, |_, _| vec![0]).expect("a column");
    PreparedMask::new(mask, Path::Auto, &Device::Cpu).expect("on the CPU")
}

#[test]
fn lengths_and_heads_are_the_masks() {
    let (q, kv) = (zeros(&[4, 20, 64]), zeros(&[2, 40, 64]));
    assert!(ops::sparse_attention(&q, &kv, &kv, &prepared(20, 40, 1), None).is_ok());
    for heads in [1, 2, 4] {
        assert!(ops::sparse_attention(&q, &kv, &kv, &prepared(20, 40, heads), None).is_ok(), "{heads}");
    }
    for (mask, wanted) in [(prepared(21, 40, 1), "q"), (prepared(20, 41, 1), "k")] {
        match ops::sparse_attention(&q, &kv, &kv, &mask, None) {
            Err(Error::Shape { op: "sparse_attention", argument, .. }) => assert_eq!(argument, wanted),
            other => panic!("{wanted}: {other:?}"),
        }
    }
    for heads in [0, 3, 8] {
        let refused = ops::sparse_attention(&q, &kv, &kv, &prepared(20, 40, heads), None);
        assert!(
            matches!(refused, Err(Error::Unsupported { argument: "mask's heads", .. })),
            "{heads}: {refused:?}"
        );
    }
}

#[test]
fn rows_without_a_key_are_zero() {
    let ones = Tensor::from_slice(&[1.0f32; 32 * 16], [1, 32, 16], &Device::Cpu).expect("512 elements");
    let grid = BlockGrid::new(16, 32, 32).expect("a block");
    let mask = BlockMask::from_rule(grid, 1, |_, row| vec![0; row]).expect("columns");
    let mask = PreparedMask::new(mask, Path::Auto, &Device::Cpu).expect("on the CPU");
    let out =
        ops::sparse_attention(&ones, &ones, &ones, &mask, None).expect("fits").to_vec::<f32>().expect("f32");
    assert!(out[..256].iter().all(|x| *x == 0.0) && out[256..].iter().all(|x| *x == 1.0));
}

#[test]
fn blocks_are_chosen_for_each_head() {
    let q: Vec<f32> = (0..2 * 64 * 16).map(|i| (i as f32).sin()).collect();
    let q = Tensor::from_slice(&q, [2, 64, 16], &Device::Cpu).expect("fits");
    let options = Attention { scale: None, causal: true };
    let mask = ops::choose_blocks(&q, &q, 16, Choose::TopK(2), &options).expect("fits");
    assert_eq!((mask.heads(), mask.blocks()), (2, 2 * (1 + 2 + 2 + 2)));
    let all = ops::choose_blocks(&q, &q, 16, Choose::TopK(4), &options).expect("fits");
    assert_eq!(all, BlockMask::causal(all.grid()).expect("small"));
    let other = zeros(&[3, 64, 16]);
    assert!(matches!(
        ops::choose_blocks(&q, &other, 16, Choose::TopK(2), &options),
        Err(Error::Shape { argument: "k", .. })
    ));
    assert!(matches!(ops::block_mean(&q, 0), Err(Error::Unsupported { argument: "block", .. })));
}
