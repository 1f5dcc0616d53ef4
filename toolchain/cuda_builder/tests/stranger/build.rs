use cuda_builder::{CudaBuilder, CudaBuilderError};

fn main() -> Result<(), CudaBuilderError> {
    CudaBuilder::new("kernels").copy_to("kernels.ptx").build()?;
    Ok(())
}
