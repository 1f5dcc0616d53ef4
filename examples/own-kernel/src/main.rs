//! Adds two vectors by a kernel of one's own, in the memory of Pascaline's tensors.
//!
//! `cargo run` takes the first CUDA device, or the virtual GPU where there is none; `cargo run -- cuda:1` and
//! `cargo run -- virtual` name one.

use kernels::Add;
use pascaline::cuda::PtxModule;
use pascaline::{DType, Device, Error, Result, Tensor};
use std::process::ExitCode;

/// The code for the GPU, as `build.rs` has compiled it.
const PTX: &str = include_str!("../kernels.ptx");

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
    let x: Vec<f32> = (0..100_000).map(|i| i as f32).collect();
    let y: Vec<f32> = x.iter().map(|x| 0.5 * x).collect();
    let sums = sums(&x, &y, &device)?;
    assert!(sums.iter().zip(x.iter().zip(&y)).all(|(sum, (x, y))| *sum == x + y));
    println!("{} right sums on {device}; the kernel was {}", sums.len(), env!("CUDA_BUILDER_ORIGIN"));
    Ok(())
}

/// x + y, computed on `device`, which must be a CUDA device or the virtual GPU.
fn sums(x: &[f32], y: &[f32], device: &Device) -> Result<Vec<f32>> {
    let Device::Cuda(gpu) = device else {
        return Err(Error::NoDevice { reason: format!("the kernel does not run on `{device}`") });
    };
    let module = gpu.load_kernels(PTX, &[kernels::add.info()])?;
    let a = Tensor::from_slice(x, [x.len()], device)?;
    let b = Tensor::from_slice(y, [y.len()], device)?;
    add(&module, &a, &b)?.to_vec()
}

/// a + b, as long as the shorter of the two.
fn add(module: &PtxModule, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let elements = a.shape().elements().min(b.shape().elements());
    let mut sum = Tensor::uninitialized([elements], DType::F32, &a.device())?;
    let len = u32::try_from(elements).map_err(|_| Error::TooLarge {
        op: "add",
        argument: "a",
        elements: elements as _,
        limit: u32::MAX as _,
    })?;
    let parameters = Add { sum: sum.device_ptr_mut()?, a: a.device_ptr()?, b: b.device_ptr()?, len };
    let grid = [len.div_ceil(kernels::add.threads()), 1, 1];
    // SAFETY: PTX was compiled from `kernels`; the three tensors have `len` elements at least.
    unsafe { module.launch(&kernels::add, grid, 0, &parameters)? };
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No GPU is needed. The virtual one stops at accesses out of bounds, reads of memory never written, and races.
    #[test]
    fn sums_are_right_around_the_ends_of_blocks() -> Result<()> {
        let device = "virtual".parse()?;
        for elements in [1, 255, 256, 257, 1000] {
            let x: Vec<f32> = (0..elements).map(|i| i as f32).collect();
            let doubled: Vec<f32> = x.iter().map(|x| 2.0 * x).collect();
            assert_eq!(sums(&x, &x, &device)?, doubled);
        }
        Ok(())
    }
}
