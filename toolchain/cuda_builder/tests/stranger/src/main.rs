//! Embeds the PTX and prints how many kernels it has and where it came from.

const PTX: &str = include_str!("../kernels.ptx");

fn main() {
    let kernels = PTX.lines().filter(|line| line.contains(".entry ")).count();
    println!("kernels: {kernels}, {}", env!("CUDA_BUILDER_ORIGIN"));
}
