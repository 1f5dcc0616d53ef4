//! A launch on a virtual GPU of its own, without the driver API.

use super::Result;
use pascaline_virtual_gpu::{Gpu, Launch, Module};
use std::sync::Arc;

/// Launches a kernel in one block.
pub fn launch(
    gpu: &mut Gpu,
    module: &Arc<Module>,
    kernel: &str,
    threads: u32,
    arguments: &[u64],
) -> Result<()> {
    let module = gpu.load(module.clone()).expect("enough memory");
    let params: Vec<u8> = arguments.iter().flat_map(|argument| argument.to_le_bytes()).collect();
    let launch = Launch { grid: [1; 3], block: [threads, 1, 1], dynamic_shared: 0, params: &params };
    gpu.launch(&module, kernel, launch)?;
    Ok(())
}

/// Device memory with these bytes.
pub fn buffer(gpu: &mut Gpu, bytes: &[u8]) -> Result<u64> {
    let address = gpu.alloc(bytes.len() as u64).expect("enough memory");
    gpu.write(address, bytes).expect("just allocated");
    Ok(address)
}
