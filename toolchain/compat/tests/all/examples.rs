//! The kernels of `gpu/src/examples.rs` on the virtual GPU, against sums in f64.

use crate::common::PLAIN;
use pascaline_virtual_gpu::{Config, Gpu, Launch, Module};
use std::sync::Arc;

/// Numbers between −1 and 1, which small sums of have exactly.
fn numbers(n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 37 + 11) % 65) as f32 / 32.0 - 1.0).collect()
}

fn buffer(gpu: &mut Gpu, values: &[f32]) -> u64 {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let address = gpu.alloc(bytes.len() as u64).expect("enough memory");
    gpu.write(address, &bytes).expect("just allocated");
    address
}

fn launch(gpu: &mut Gpu, module: &Arc<Module>, kernel: &str, grid: [u32; 3], block: [u32; 3], params: &[u8]) {
    let loaded = gpu.load(module.clone()).expect("enough memory");
    let launch = Launch { grid, block, dynamic_shared: 0, params };
    if let Err(fault) = gpu.launch(&loaded, kernel, launch) {
        panic!("{fault}");
    }
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn read(gpu: &Gpu, address: u64, n: usize) -> Vec<f32> {
    let mut bytes = vec![0; 4 * n];
    gpu.read(address, &mut bytes).expect("allocated");
    bytes.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().expect("4 bytes"))).collect()
}

#[test]
fn vectors_are_added() {
    let Some(module) = PLAIN.module() else { return };
    let (n, mut gpu) = (1000, Gpu::new(Config::default()));
    let x = numbers(n);
    let (a, b, c) = (buffer(&mut gpu, &x), buffer(&mut gpu, &x), buffer(&mut gpu, &vec![f32::NAN; n]));
    let params = words(&[a, n as u64, b, n as u64, c]);
    launch(&mut gpu, module, "vecadd", [8, 1, 1], [128, 1, 1], &params);
    assert_eq!(read(&gpu, c, n), x.iter().map(|x| 2.0 * x).collect::<Vec<_>>());
}

#[test]
fn a_tiled_product_is_exact_for_sizes_that_fill_no_tile() {
    let Some(module) = PLAIN.module() else { return };
    for (m, n, k) in [(16, 16, 16), (33, 17, 41), (1, 50, 1), (5, 3, 0)] {
        let mut gpu = Gpu::new(Config::default());
        let (x, y, z) = (numbers(m * k), numbers(k * n), numbers(m * n));
        let pad = |values: &[f32]| if values.is_empty() { vec![0.0] } else { values.to_vec() };
        let (a, b, c) = (buffer(&mut gpu, &pad(&x)), buffer(&mut gpu, &pad(&y)), buffer(&mut gpu, &z));
        let mut params = words(&[a, x.len() as u64, b, y.len() as u64, c, m as u64, n as u64, k as u64]);
        params.extend([2.0f32, 0.5].iter().flat_map(|factor| factor.to_le_bytes()));
        let blocks = [n.div_ceil(16) as u32, m.div_ceil(16) as u32, 1];
        launch(&mut gpu, module, "gemm_tiled", blocks, [16, 16, 1], &params);
        for (i, got) in read(&gpu, c, m * n).into_iter().enumerate() {
            let (row, column) = (i / n, i % n);
            let products = (0..k).map(|j| f64::from(x[row * k + j]) * f64::from(y[j * n + column]));
            let wanted = 2.0 * products.sum::<f64>() + 0.5 * f64::from(z[i]);
            // products are multiples of 2^-10 below 64: f32 has them and their sums
            assert_eq!(f64::from(got), wanted, "{m} x {n} x {k}, element {i}");
        }
    }
}

#[test]
fn each_block_has_its_sum() {
    let Some(module) = PLAIN.module() else { return };
    let (n, mut gpu) = (700, Gpu::new(Config::default()));
    let x = numbers(n);
    let (from, to) = (buffer(&mut gpu, &x), buffer(&mut gpu, &[f32::NAN; 3]));
    launch(&mut gpu, module, "block_sums", [3, 1, 1], [256, 1, 1], &words(&[from, n as u64, to]));
    assert_eq!(read(&gpu, to, 3), x.chunks(256).map(|part| part.iter().sum()).collect::<Vec<f32>>());
}

/// Statics in shared memory are the block's, and each is its own; indices are vectors.
#[test]
fn statics_in_shared_memory_are_each_blocks_own() {
    let Some(module) = PLAIN.module() else { return };
    const SIDE: usize = 24;
    let x: Vec<u32> = (0..(SIDE * SIDE) as u32).map(|i| i * 7 % 1000).collect();
    let mut gpu = Gpu::new(Config::default());
    let bytes: Vec<u8> = x.iter().flat_map(|value| value.to_le_bytes()).collect();
    let (from, to) = (buffer(&mut gpu, &vec![0.0; x.len()]), buffer(&mut gpu, &vec![0.0; x.len()]));
    gpu.write(from, &bytes).expect("allocated");
    launch(&mut gpu, module, "turned", [3, 3, 1], [8, 8, 1], &words(&[from, x.len() as u64, to]));
    let got: Vec<u32> = read(&gpu, to, x.len()).into_iter().map(f32::to_bits).collect();
    for (i, got) in got.into_iter().enumerate() {
        let (row, column) = (i / SIDE, i % SIDE);
        let element = |at: usize| x[(row / 8 * 8 + at / 8) * SIDE + column / 8 * 8 + at % 8];
        let at = row % 8 * 8 + column % 8;
        let before = if at == 0 { 7 } else { element(at - 1) };
        assert_eq!(got, element(63 - at) + 1000 * before, "element {i}");
    }
}
