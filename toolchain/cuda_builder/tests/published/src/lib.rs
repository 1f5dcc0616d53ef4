//! Launches the kernel of `kernels/` on the virtual GPU.

use cuda_std::{DevicePtr, DevicePtrMut};
use kernels::Axpy;
use pascaline_virtual_gpu::{Config, Fault, Gpu, Launch, LaunchReport, Module};

/// `a * x + y`, of as many elements as the arrays that are not longer than 100.
pub fn axpy(a: f32, x: &[f32], y: &[f32], len: u32) -> Result<(Vec<f32>, LaunchReport), Box<Fault>> {
    let mut gpu = Gpu::new(Config::default());
    let ptx = include_str!("../kernels.ptx");
    let module = gpu.load(Module::parse(ptx).expect("cuda_builder's PTX")).expect("enough memory");
    let mut upload = |values: &[f32]| {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let address = gpu.alloc(bytes.len() as u64).expect("enough memory");
        gpu.write(address, &bytes).expect("just allocated");
        address
    };
    let (x, y, elements) = (upload(x), upload(y), y.len());
    // SAFETY: both are addresses of f32 in the memory of `gpu`, which outlives the launch and checks each access.
    let parameters =
        unsafe { Axpy { y: DevicePtrMut::from_address(y), x: DevicePtr::from_address(x), a, len } };
    let contract = kernels::axpy.info();
    // SAFETY: the struct is `repr(C)` and has no padding.
    let params =
        unsafe { std::slice::from_raw_parts((&raw const parameters).cast::<u8>(), size_of::<Axpy<'_>>()) };
    let launch = Launch { grid: [2, 1, 1], block: [64, 1, 1], dynamic_shared: 0, params };
    let report = gpu.launch(&module, contract.name, launch)?;
    let mut bytes = vec![0; 4 * elements];
    gpu.read(y, &mut bytes).expect("just written");
    let values = bytes.chunks_exact(4).map(|value| f32::from_le_bytes(value.try_into().expect("4 bytes")));
    Ok((values.collect(), report))
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_kernel_computes_and_its_lines_are_counted() {
        let (y, report) = super::axpy(2.0, &[3.0; 100], &[1.0; 100], 100).unwrap();
        assert_eq!(y, [7.0; 100]);
        assert!(report.lines[0].line.file.ends_with("kernels/src/lib.rs"), "{:?}", report.lines);
    }

    #[test]
    fn an_overrun_is_found_with_its_line() {
        let found = super::axpy(2.0, &[3.0; 100], &[1.0; 100], 101).unwrap_err().to_string();
        assert!(found.contains("out of bounds") && found.contains("kernels/src/lib.rs:27:"), "{found}");
    }
}
