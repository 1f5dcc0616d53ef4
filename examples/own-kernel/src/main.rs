//! Adds two vectors by a kernel of one's own, in the memory of Pascaline's tensors.
//!
//! `cargo run` takes the first CUDA device, or the virtual GPU where there is none; `cargo run -- cuda:1` and
//! `cargo run -- virtual` name one.

use cust::launch;
use pascaline::cuda::{CudaDevice, PtxModule};
use pascaline::{DType, Device, Error, Result, Tensor};
use std::process::ExitCode;

/// The code for the GPU, as `build.rs` has compiled it.
const PTX: &str = include_str!("../kernels.ptx");

/// Threads in a block.
const BLOCK: u32 = 256;

fn main() -> ExitCode {
    match run(std::env::args().nth(1)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(name: Option<String>) -> Result<()> {
    let device = match name {
        Some(name) => name.parse()?,
        None => Device::cuda_or_virtual()?,
    };
    let Device::Cuda(gpu) = &device else {
        return Err(Error::NoDevice { reason: format!("the kernel does not run on `{device}`") });
    };
    let module = gpu.load_ptx(PTX)?;

    let (x, y): (Vec<f32>, Vec<f32>) = (0..100_000).map(|i| (i as f32, 0.5 * i as f32)).unzip();
    let a = Tensor::from_slice(&x, [x.len()], &device)?;
    let b = Tensor::from_slice(&y, [y.len()], &device)?;
    let sum = add(gpu, &module, &a, &b)?.to_vec::<f32>()?;

    assert!(sum.iter().zip(x.iter().zip(&y)).all(|(sum, (x, y))| *sum == x + y));
    println!("{} right sums on {device}; the kernel was {}", sum.len(), env!("CUDA_BUILDER_ORIGIN"));
    Ok(())
}

/// a + b, as long as the shorter of the two; all on the stream of `gpu`.
fn add(gpu: &CudaDevice, module: &PtxModule, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let (a_len, b_len) = (a.shape().elements(), b.shape().elements());
    let mut sum = Tensor::uninitialized([a_len.min(b_len)], DType::F32, &Device::Cuda(gpu.clone()))?;
    let written = sum.view_mut()?.device_address::<f32>()?;
    let (a, b) = (a.device_address::<f32>()?, b.device_address::<f32>()?);
    let (stream, grid) = (gpu.stream(), (a_len.min(b_len) as u32).div_ceil(BLOCK));
    // SAFETY: `add` takes two slices, which are a pointer and a length each, and a pointer to as many elements as both have.
    // The three are on this stream, and nothing but `sum` refers to what is written.
    unsafe { launch!(module.add<<<grid, BLOCK, 0, stream>>>(a, a_len, b, b_len, written))? };
    Ok(sum)
}
