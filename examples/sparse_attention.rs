//! Draws masks and attends with them: `cargo run --release --example sparse_attention -- [DIRECTORY FOR PICTURES]`.

use pascaline::block_mask::{BlockGrid, BlockMask, Choose};
use pascaline::ops::{self, Attention, Path, PreparedMask};
use pascaline::{Device, Result, Tensor};
use std::process::ExitCode;

fn masks(grid: BlockGrid) -> Result<[(&'static str, BlockMask); 7]> {
    Ok([
        ("causal", BlockMask::causal(grid)?),
        ("sliding_window", BlockMask::sliding_window(grid, 255, 0)?),
        ("global_window", BlockMask::global_window(grid, 48, 127, 127)?),
        ("strided", BlockMask::strided(grid, 4)?),
        ("fixed", BlockMask::fixed(grid, 4, 1)?),
        ("big_bird", BlockMask::big_bird(grid, 1, 1, 1, 2, 1)?),
        ("big_bird_causal", BlockMask::big_bird(grid, 1, 1, 1, 2, 1)?.and_causal()?),
    ])
}

fn run(pictures: Option<String>) -> Result<()> {
    let device = Device::auto(); // a CUDA device if there is one, else the CPU
    let wave: Vec<f32> = (0..2 * 1024 * 64).map(|i| (i as f32 * 0.37).sin()).collect();
    let q = Tensor::from_slice(&wave, [2, 1024, 64], &device)?; // [heads, length, head_dim]
    for (name, mask) in masks(BlockGrid::new(64, 1024, 1024)?)? {
        println!("{name}: {mask}\n{}", mask.text(0));
        if let Some(directory) = &pictures {
            let file = format!("{directory}/{name}.png");
            if let Err(error) = std::fs::write(&file, mask.png(0, 8)?) {
                eprintln!("{file}: {error}");
            }
        }
        let mask = PreparedMask::new(mask, Path::Auto, &device)?;
        let out = ops::sparse_attention(&q, &q, &q, &mask, None)?;
        println!("first result {:.4} on {device}\n", out.to_vec::<f32>()?[0]);
    }
    let causal = Attention { scale: None, causal: true };
    println!("chosen: {}", ops::choose_blocks(&q, &q, 64, Choose::Mass(0.8), &causal)?);
    Ok(())
}

fn main() -> ExitCode {
    run(std::env::args().nth(1)).map_or_else(
        |error| {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        },
        |()| ExitCode::SUCCESS,
    )
}
