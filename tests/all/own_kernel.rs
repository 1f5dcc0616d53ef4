//! Kernels of the user's own: addresses of tensors and launches through cust's `launch!`, on the device the tests take.

use crate::common;
use crate::common::process::in_own_process;
use cust::launch;
use pascaline::cuda::{CudaDevice, Graph};
use pascaline::{DType, Device, Error, Tensor};

/// As `cuda_builder` makes it of `#[kernel] unsafe fn scale(y: *mut f32, x: &[f32], factor: f32)`.
const PTX: &str = "
.version 6.4
.target sm_61
.address_size 64
.visible .entry scale(.param .u64 y, .param .u64 x, .param .u64 len, .param .f32 factor)
{
    .reg .pred %p<2>; .reg .f32 %f<4>; .reg .b32 %r<5>; .reg .b64 %rd<8>;
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
    st.global.f32 [%rd7], %f3;
DONE:
    ret;
}
.visible .entry nothing() { ret; }
";

fn device() -> (Device, CudaDevice) {
    let device = common::cuda_device();
    let Device::Cuda(gpu) = &device else { unreachable!("asked for a CUDA device") };
    let gpu = gpu.clone();
    (device, gpu)
}

#[test]
fn a_kernel_writes_its_part_of_a_tensor_and_nothing_else() {
    in_own_process!();
    let (device, gpu) = device();
    let (module, stream) = (gpu.load_ptx(PTX).unwrap(), gpu.stream());
    let values: Vec<f32> = (0..300).map(|i| i as f32).collect();
    let x = Tensor::from_slice(&values, [3, 100], &device).unwrap().narrow(0, 1, 1).unwrap();
    let mut y = Tensor::from_slice(&[-1.0f32; 300], [300], &device).unwrap();
    let part = y.view_mut().unwrap().narrow(0, 50, 100).unwrap();
    let (written, read) = (part.device_address::<f32>().unwrap(), x.device_address::<f32>().unwrap());
    let len = x.shape().elements();
    // SAFETY: `scale` takes a pointer, a slice and a float; both views have `len` elements and are of this stream.
    unsafe { launch!(module.scale<<<2, 64, 0, stream>>>(written, read, len, 2.0f32)).unwrap() };
    drop(x); // its memory is free after the kernel, which comes first on the stream
    let wanted = |i: usize| if (50..150).contains(&i) { 2.0 * values[i + 50] } else { -1.0 };
    assert_eq!(y.to_vec::<f32>().unwrap(), (0..300).map(wanted).collect::<Vec<_>>());
}

#[test]
fn launches_work_from_any_thread_and_may_have_no_arguments_or_no_blocks() {
    in_own_process!();
    let (_, gpu) = device();
    let module = gpu.load_ptx(PTX).unwrap();
    let (nothing, scale) = (module.get_function("nothing").unwrap(), module.get_function("scale").unwrap());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let stream = gpu.stream();
            // SAFETY: the kernel takes nothing and does nothing; a grid without blocks runs no thread.
            unsafe {
                launch!(nothing<<<(2, 2), 32, 0, stream>>>()).unwrap();
                launch!(scale<<<0, 32, 0, stream>>>(0u64, 0u64, 0u64, 0.0f32)).unwrap();
            }
            gpu.synchronize().unwrap();
        });
    });
}

#[test]
fn a_missing_argument_is_found_before_the_launch() {
    in_own_process!();
    let (_, gpu) = device();
    let (module, stream) = (gpu.load_ptx(PTX).unwrap(), gpu.stream());
    // SAFETY: refused, as the length of the slice is missing.
    let result = unsafe { launch!(module.scale<<<1, 32, 0, stream>>>(0u64, 0u64, 1.0f32)) };
    let text = result.unwrap_err().to_string();
    assert_eq!(
        text,
        "launch: arguments = 3 is not supported: scale has 4 parameters, of which a slice is two: pointer and length"
    );
    // SAFETY: refused by the driver, as no block has 4096 threads.
    let result = unsafe { launch!(module.nothing<<<1, 4096, 0, stream>>>()) };
    assert!(matches!(result, Err(Error::Driver { call: "cuLaunchKernel", .. })), "{result:?}");
}

#[test]
fn modules_and_kernels_that_are_not_there_are_typed_errors() {
    in_own_process!();
    let (_, gpu) = device();
    let module = gpu.load_ptx(PTX).unwrap();
    for name in ["none", "with\0nul", ""] {
        let error = module.get_function(name).unwrap_err();
        assert!(matches!(&error, Error::ModuleLoad { log, .. } if log.starts_with("kernel ")), "{error}");
    }
    for ptx in [
        "",
        "no PTX",
        "with\0nul",
        ".version 6.4\n.target sm_61\n.address_size 64\n.visible .entry a() { what; }",
    ] {
        let error = gpu.load_ptx(ptx).unwrap_err();
        assert!(matches!(error, Error::ModuleLoad { .. }), "{error}");
    }
}

#[test]
fn only_contiguous_tensors_on_a_gpu_have_an_address() {
    in_own_process!();
    let (device, _) = device();
    let mut x = Tensor::zeros([4, 6], DType::F32, &device).unwrap();
    let whole = x.device_address::<f32>().unwrap();
    assert_eq!(x.narrow(0, 1, 2).unwrap().device_address::<f32>(), Ok(whole + 6 * 4));
    assert!(matches!(x.device_address::<u32>(), Err(Error::DType { op: "device_address", .. })));
    assert!(matches!(x.narrow(1, 0, 2).unwrap().device_address::<f32>(), Err(Error::Layout { .. })));
    assert_eq!(x.narrow(0, 0, 0).unwrap().device_address::<f32>(), Ok(0), "no elements, no memory");
    let turned = x.view_mut().unwrap().swap_dims(0, 1).unwrap();
    assert!(matches!(turned.device_address::<f32>(), Err(Error::Layout { .. })));
    assert_eq!(x.view_mut().unwrap().device_address::<f32>(), Ok(whole));
    let host = x.to_device(&Device::Cpu).unwrap();
    assert!(matches!(host.device_address::<f32>(), Err(Error::Unsupported { op: "device_address", .. })));
}

#[test]
fn a_graph_keeps_memory_whose_address_was_taken_before_the_capture() {
    let (device, gpu) = device();
    let (module, stream) = (gpu.load_ptx(PTX).unwrap(), gpu.stream());
    let full = |value: f32| Tensor::full(value, [1 << 20], &device).unwrap();
    let x = full(20.0);
    let mut y = Tensor::zeros([256], DType::F32, &device).unwrap();
    let part = x.narrow(0, 1000, 256).unwrap(); // an address inside the memory
    let read = part.device_address::<f32>().unwrap();
    let written = y.view_mut().unwrap().device_address::<f32>().unwrap();
    let (graph, ()) = Graph::capture(&gpu, || {
        // SAFETY: `scale` takes a pointer, a slice and a float; both have 256 elements, live at this call and are of this stream.
        unsafe { launch!(module.scale<<<4, 64, 0, stream>>>(written, read, 256usize, 3.0f32)) }
    })
    .unwrap();
    drop((x, part));
    let stranger = full(60.0);
    graph.launch().unwrap();
    assert_eq!(y.to_vec::<f32>().unwrap(), [60.0; 256], "3 · 20, and not 3 · 60");
    assert_eq!(graph.kept(), 2, "x and y");
    assert_eq!(stranger.to_vec::<f32>().unwrap()[..256], [60.0; 256]);
}
