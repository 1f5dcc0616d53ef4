//! The kernels of `gpu/src/indirect.rs`, which call by pointer, on the virtual GPU.

use crate::common::virtual_gpu::{buffer, launch};
use crate::common::{PLAIN, Result};
use pascaline_virtual_gpu::{Config, Gpu, Module};
use std::sync::Arc;

const THREADS: usize = 75;

#[test]
fn callees_that_are_left_to_data_are_called_by_pointer() {
    let Some(text) = PLAIN.text() else { return };
    let by_pointer = text.matches(".callprototype").count();
    assert!(by_pointer >= 3, "the compiler has found the {by_pointer} callees that are left to data");
}

#[test]
fn data_chooses_functions() -> Result<()> {
    let Some(module) = PLAIN.module() else { return Ok(()) };
    let (numbers, which) = (numbers(), which());
    let functions = run(module, "functions", &numbers, &which)?;
    for (i, got) in functions.into_iter().enumerate() {
        let (a, b) = (numbers[i], i as u32);
        let wanted = [a.wrapping_add(b), a.wrapping_mul(b), divisor(a, b), NOTHING];
        assert_eq!(got, wanted[which[i] as usize], "function {} of {a} and {b}", which[i]);
    }
    Ok(())
}

#[test]
fn data_chooses_objects() -> Result<()> {
    let Some(module) = PLAIN.module() else { return Ok(()) };
    let which = which();
    let sides: Vec<u32> = numbers().iter().map(|&n| (n as f32 / 8.0).to_bits()).collect();
    let figures = run(module, "figures", &sides, &which)?;
    for (i, got) in figures.into_iter().enumerate() {
        let side = f32::from_bits(sides[i]);
        let wanted = [side * side * 3.0 * 3.0, side * i as f32 * 3.0].map(f32::to_bits);
        assert_eq!(
            got,
            *wanted.get(which[i] as usize).unwrap_or(&NOTHING),
            "figure {} of side {side}",
            which[i]
        );
    }
    Ok(())
}

fn numbers() -> Vec<u32> {
    (0..THREADS as u32).map(|i| i.wrapping_mul(2654435761) % 1000).collect()
}

/// 3 is behind the table.
fn which() -> Vec<u32> {
    (0..THREADS as u32).map(|i| i * 7 / 3 % 4).collect()
}

/// The word of a thread that stores nothing.
const NOTHING: u32 = 0xdead;

fn divisor(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { divisor(b, a % b) }
}

fn run(module: &Arc<Module>, kernel: &str, a: &[u32], which: &[u32]) -> Result<Vec<u32>> {
    let mut gpu = Gpu::new(Config::default());
    let bytes = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let (a, n) = (buffer(&mut gpu, &bytes(a))?, a.len() as u64);
    let which = buffer(&mut gpu, &bytes(which))?;
    let y = buffer(&mut gpu, &bytes(&[NOTHING; THREADS]))?;
    launch(&mut gpu, module, kernel, 96, &[a, n, which, n, y])?;
    let mut got = [0; 4 * THREADS];
    gpu.read(y, &mut got).expect("allocated");
    Ok(got.chunks(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect())
}
