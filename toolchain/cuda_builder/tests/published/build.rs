use cuda_builder::{CudaBuilder, CudaBuilderError, DebugInfo};

fn main() -> Result<(), CudaBuilderError> {
    CudaBuilder::new("kernels").debug(DebugInfo::LineTables).copy_to("kernels.ptx").build()?;
    Ok(())
}
