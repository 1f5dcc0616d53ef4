//! Launches by a kernel's contract, of a module that is not this library's own.

use super::{CudaDevice, DevicePtr, DevicePtrMut, Graph, KernelInfo, KernelSpec};
use crate::{DType, Device, Error, Tensor};
use cuda_std::{KernelParams, kernel};

/// As `cuda_builder` makes it of [`scale`].
const PTX: &str = "
.version 6.4
.target sm_61
.address_size 64
.extern .shared .align 4 .b8 dynamic[];
.visible .const .align 16 .b8 OFFSETS[8];
.visible .const .align 16 .b8 SHORT[4];
.visible .entry scale(.param .u64 y, .param .u64 x, .param .u64 len, .param .f32 factor)
{
    .reg .pred %p<2>; .reg .f32 %f<4>; .reg .b32 %r<6>; .reg .b64 %rd<8>;
    ld.param.u64 %rd1, [y];
    ld.param.u64 %rd2, [x];
    ld.param.u64 %rd3, [len];
    ld.param.f32 %f1, [factor];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %ctaid.x;
    mad.lo.u32 %r4, %r2, %r3, %r1;
    cvt.u64.u32 %rd4, %r4;
    setp.ge.u64 %p1, %rd4, %rd3;
    @%p1 bra DONE;
    shl.b64 %rd5, %rd4, 2;
    add.u64 %rd6, %rd2, %rd5;
    add.u64 %rd7, %rd1, %rd5;
    ld.global.f32 %f2, [%rd6];
    mul.rn.f32 %f3, %f1, %f2;
    mov.u32 %r5, %dynamic_smem_size;
    cvt.rn.f32.u32 %f2, %r5;
    add.rn.f32 %f3, %f3, %f2;
    ld.const.f32 %f2, [OFFSETS+4];
    add.rn.f32 %f3, %f3, %f2;
    st.global.f32 [%rd7], %f3;
DONE:
    ret;
}
";

#[derive(KernelParams)]
#[repr(C)]
struct Scale<'a> {
    y: DevicePtrMut<'a, f32>,
    x: DevicePtr<'a, f32>,
    len: u64,
    factor: f32,
}

/// # Safety
/// `x` and `y` have `len` elements.
#[kernel(block = 64)]
unsafe fn scale(_p: Scale<'_>) {}

cuda_std::constant!(OFFSETS: [f32; 2]);
cuda_std::constant!(SHORT: [f32; 2]);
cuda_std::constant!(ABSENT: [f32; 2]);

fn gpu() -> (Device, CudaDevice) {
    let device = Device::virtual_gpu().unwrap();
    let Device::Cuda(gpu) = &device else { unreachable!("asked for a CUDA device") };
    let gpu = gpu.clone();
    (device, gpu)
}

fn other(change: impl FnOnce(&mut KernelInfo)) -> KernelInfo {
    let mut info = scale.info();
    change(&mut info);
    info
}

#[test]
fn toolchain_a_kernel_of_any_crate_is_launched_by_its_contract() {
    let (device, gpu) = gpu();
    let module = gpu.load_kernels(PTX, &[scale.info()]).unwrap();
    let x = Tensor::from_slice(&[1.0f32; 100], [100], &device).unwrap();
    let mut y = Tensor::from_slice(&[-1.0f32; 100], [100], &device).unwrap();
    let launch = |y: &mut Tensor, x: &Tensor, grid: [u32; 3], shared: u32| {
        let p = Scale { y: y.device_ptr_mut()?, x: x.device_ptr()?, len: 100, factor: 2.0 };
        // SAFETY: the text is that of `scale`; both tensors have 100 elements.
        unsafe { module.launch(&scale, grid, shared, &p) }
    };
    launch(&mut y, &x, [0, 1, 1], 0).unwrap();
    assert_eq!(y.to_vec::<f32>().unwrap(), [-1.0; 100], "a grid without blocks");
    launch(&mut y, &x, [2, 1, 1], 1000).unwrap();
    assert_eq!(y.to_vec::<f32>().unwrap(), [1002.0; 100], "with dynamic shared memory");
    let error = launch(&mut y, &x, [2, 1, 1], 50_000).unwrap_err();
    assert!(matches!(error, Error::TooLarge { argument: "shared_bytes", .. }), "{error}");
    let error = launch(&mut y, &x, [1, 1 << 16, 1], 0).unwrap_err();
    assert!(matches!(error, Error::TooLarge { argument: "grid.y", .. }), "{error}");
    let half = Tensor::zeros([100], DType::F16, &device).unwrap();
    assert!(matches!(half.device_ptr::<f32>(), Err(Error::DType { .. })));
}

#[test]
fn toolchain_contracts_are_compared_with_the_ptx() {
    let (_, gpu) = gpu();
    let sizes = gpu.load_kernels(PTX, &[other(|info| info.parameters = &[8, 8, 8, 8])]).unwrap_err();
    assert!(sizes.to_string().contains("[8, 8, 8, 4] bytes in the PTX and [8, 8, 8, 8]"), "{sizes}");
    let name = gpu.load_kernels(PTX, &[other(|info| info.name = "skale")]).unwrap_err();
    assert!(name.to_string().contains("skale"), "{name}");

    // a contract that was not there when the module was loaded
    let module = gpu.load_ptx(PTX).unwrap();
    // SAFETY: the wrong contract is refused.
    let wrong: KernelSpec<()> = unsafe { KernelSpec::new(other(|info| info.parameters = &[])) };
    // SAFETY: nothing is launched, as the contract differs from the PTX.
    assert!(matches!(unsafe { module.launch(&wrong, [1; 3], 0, &()) }, Err(Error::ModuleLoad { .. })));
}

#[test]
fn toolchain_a_graph_keeps_what_a_captured_launch_took() {
    let (device, gpu) = gpu();
    let module = gpu.load_ptx(PTX).unwrap();
    let x = Tensor::from_slice(&[3.0f32; 64], [64], &device).unwrap();
    let mut y = Tensor::zeros([64], DType::F32, &device).unwrap();
    let read = x.device_ptr::<f32>().unwrap();
    let (graph, ()) = Graph::capture(&gpu, || {
        let p = Scale { y: y.device_ptr_mut()?, x: read, len: 64, factor: 2.0 };
        // SAFETY: the text is that of `scale`; both tensors have 64 elements.
        unsafe { module.launch(&scale, [1; 3], 0, &p) }
    })
    .unwrap();
    drop(x);
    let reused = Tensor::from_slice(&[9.0f32; 64], [64], &device).unwrap();
    graph.launch().unwrap();
    assert_eq!(y.to_vec::<f32>().unwrap(), [6.0; 64]);
    drop(reused);
}

#[test]
fn toolchain_arguments_of_a_foreign_launch_are_checked() {
    let (device, gpu) = gpu();
    let (module, stream) = (gpu.load_ptx(PTX).unwrap(), gpu.stream());
    let x = Tensor::from_slice(&[1.0f32; 64], [64], &device).unwrap();
    let mut y = Tensor::zeros([64], DType::F32, &device).unwrap();
    let written = y.view_mut().unwrap().device_address::<f32>().unwrap();
    let read = x.device_ptr::<f32>().unwrap();
    // SAFETY: two addresses of 64 elements, their number and a float.
    unsafe { crate::launch!(module.scale<<<1, 64, 0, stream>>>(written, read, 64usize, 2.0f32)) }.unwrap();
    assert_eq!(y.to_vec::<f32>().unwrap(), [2.0; 64]);
    let refused = |result: crate::Result<()>, part: &str| {
        let text = result.unwrap_err().to_string();
        assert!(text.contains(part), "{text}");
    };
    let f = module.get_function("scale").unwrap();
    // SAFETY: all are refused.
    unsafe {
        refused(
            crate::launch!(f<<<1, 64, 0, stream>>>(written, read, 64usize, 2.0)),
            "a float of 8 bytes in place 3",
        );
        refused(
            crate::launch!(f<<<1, 64, 0, stream>>>(written, read, 64u32, 2.0f32)),
            "of 4 bytes in place 2",
        );
        refused(
            crate::launch!(f<<<1, 64, 0, stream>>>(written, 1.0f64, 64u64, 2.0f32)),
            "a float of 8 bytes in place 1",
        );
        refused(crate::launch!(f<<<1, 64, 0, stream>>>(written, read, 64u64, 2u32)), "of 4 bytes in place 3");
        refused(crate::launch!(f<<<1, 64, 0, stream>>>(written, read, 64u64)), "4 parameters");
    }
}

#[test]
fn toolchain_constant_memory_is_written_between_launches() {
    let (device, gpu) = gpu();
    let module = gpu.load_kernels(PTX, &[scale.info()]).unwrap();
    let x = Tensor::from_slice(&[1.0f32; 64], [64], &device).unwrap();
    let mut y = Tensor::zeros([64], DType::F32, &device).unwrap();
    let mut launched = || -> crate::Result<f32> {
        let p = Scale { y: y.device_ptr_mut()?, x: x.device_ptr()?, len: 64, factor: 2.0 };
        // SAFETY: the text is that of `scale`; both tensors have 64 elements.
        unsafe { module.launch(&scale, [1; 3], 0, &p) }?;
        Ok(y.to_vec::<f32>()?[63])
    };
    assert_eq!(launched().unwrap(), 2.0, "zeros at first");
    module.set_constant(OFFSETS, &[5.0, 10.0]).unwrap();
    assert_eq!(launched().unwrap(), 12.0);
    let error = module.set_constant(OFFSETS, &[1.0]).unwrap_err();
    assert!(matches!(error, Error::Unsupported { argument: "values", .. }), "{error}");
    let error = module.set_constant(SHORT, &[1.0, 2.0]).unwrap_err();
    assert!(error.to_string().contains("SHORT: 4 bytes in the PTX, 8 here"), "{error}");
    let error = module.set_constant(ABSENT, &[1.0, 2.0]).unwrap_err();
    assert!(error.to_string().contains("ABSENT: the PTX has no such constant"), "{error}");
    let captured = Graph::capture(&gpu, || module.set_constant(OFFSETS, &[0.0, 0.0]));
    assert!(matches!(captured, Err(Error::Unsupported { argument: "stream", .. })), "{captured:?}");
    assert_eq!(launched().unwrap(), 12.0);
}
