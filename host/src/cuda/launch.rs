//! Launching a kernel as its [`KernelSpec`] says.

use super::device::CudaDevice;
use super::fault::check;
use super::stream::Stream;
use crate::{Error, Result};
use cuda_std::{KernelInfo, KernelParams, KernelSpec};
use cust::sys;
use std::cell::RefCell;
use std::ptr;

thread_local! {
    static TRACE: RefCell<Option<Vec<&'static str>>> = const { RefCell::new(None) };
}

/// Runs `work`. Returns its result and the names of the kernels that this thread launched in it.
pub fn trace<R>(work: impl FnOnce() -> R) -> (R, Vec<&'static str>) {
    TRACE.with(|trace| *trace.borrow_mut() = Some(Vec::new()));
    let result = work();
    (result, TRACE.with(|trace| trace.borrow_mut().take()).unwrap_or_default())
}

/// The largest grid along x, y, z (CUDA C Programming Guide, compute capability 6.1).
pub(crate) const MAX_GRID: [u32; 3] = [i32::MAX as u32, 65535, 65535];

impl CudaDevice {
    /// Queues a kernel on this device's stream. A grid with a zero dimension launches nothing.
    ///
    /// The specification of a kernel names the type of its parameters, whose fields are typed pointers and numbers. A launch
    /// that swaps an output with an input, or takes another element type, does not compile:
    ///
    /// ```compile_fail,E0308
    /// use kernels_gpu::softmax::Softmax;
    /// fn parameters(y: *mut f32, x: *const f32) -> Softmax<f32> {
    ///     Softmax { y: x, x: y, rows: 1, cols: 1, vectors: 0, lanes: 32 }
    /// }
    /// ```
    ///
    /// ```compile_fail,E0308
    /// use kernels_gpu::softmax::{Softmax, softmax_warp_f16};
    /// use pascaline::cuda::CudaDevice;
    /// unsafe fn launch(device: &CudaDevice, p: &Softmax<f32>) -> pascaline::Result<()> {
    ///     unsafe { device.launch(&softmax_warp_f16, [1, 1, 1], p) }
    /// }
    /// ```
    ///
    /// ```
    /// use kernels_gpu::softmax::{Softmax, softmax_warp_f32};
    /// use pascaline::cuda::CudaDevice;
    /// unsafe fn launch(device: &CudaDevice, y: *mut f32, x: *const f32) -> pascaline::Result<()> {
    ///     let parameters = Softmax { y, x, rows: 1, cols: 1, vectors: 0, lanes: 32 };
    ///     unsafe { device.launch(&softmax_warp_f32, [1, 1, 1], &parameters) }
    /// }
    /// ```
    ///
    /// # Errors
    /// [`Error::TooLarge`] for a grid beyond the hardware's limit, [`Error::ModuleLoad`] if the driver refuses the kernel's
    /// module, a driver error.
    ///
    /// # Safety
    /// The caller fulfils the kernel's own safety section: pointers are device addresses, valid on this stream for the
    /// dimensions passed, and inputs and outputs overlap only where it allows. In a capture they are addresses of memory that the
    /// graph keeps: tensors' and buffers' that live at this call, or memory that the caller keeps as long as the graph.
    pub unsafe fn launch<P: KernelParams>(
        &self,
        spec: &KernelSpec<P>,
        grid: [u32; 3],
        parameters: &P,
    ) -> Result<()> {
        // SAFETY: `KernelParams` gives the address and the size of a field for each parameter of the entry, and `parameters`
        // lives until the driver has copied them. The pointers in them hold by this function's contract.
        unsafe { self.launch_raw(spec, grid, &parameters.pointers(), P::SIZES) }
    }

    /// All of a launch that is the same for every type of parameters, so that it is compiled once.
    ///
    /// # Safety
    /// As [`launch`](Self::launch); `values` points to one value for each of the kernel's parameters, whose sizes `sizes` has.
    unsafe fn launch_raw(
        &self,
        spec: &KernelInfo,
        grid: [u32; 3],
        values: &[*const ()],
        sizes: &[usize],
    ) -> Result<()> {
        // SAFETY: this function's contract.
        unsafe { self.stream().keep_exposed(values.iter().copied().zip(sizes.iter().copied())) };
        if grid.contains(&0) {
            return Ok(());
        }
        check_grid(spec.name, grid)?;
        self.bind()?;
        let function = self.modules().kernel(spec.name)?.function;
        // SAFETY: the function belongs to the bound context. `values` points to the kernel's parameters: this function's
        // contract.
        unsafe { enqueue(self.stream(), function, grid, spec.block, 0, values.as_ptr()) }?;
        traced(spec.name);
        Ok(())
    }
}

/// Fails for a grid beyond the hardware's limit.
pub(super) fn check_grid(op: &'static str, grid: [u32; 3]) -> Result<()> {
    for (axis, (&blocks, limit)) in grid.iter().zip(MAX_GRID).enumerate() {
        if blocks > limit {
            let argument = ["grid.x", "grid.y", "grid.z"][axis];
            return Err(Error::TooLarge { op, argument, elements: blocks.into(), limit: limit.into() });
        }
    }
    Ok(())
}

/// # Safety
/// The function belongs to the bound context, which is the stream's. `values` is an array of pointers to one value for each
/// of its parameters, and the kernel may use the memory in them on the stream.
pub(super) unsafe fn enqueue(
    stream: &Stream,
    function: sys::CUfunction,
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    values: *const *const (),
) -> Result<()> {
    let _lock = stream.lock_to_enqueue();
    let ([gx, gy, gz], [x, y, z]) = (grid, block);
    // SAFETY: this function's contract; the driver reads the values, and copies them, before it returns.
    let result = unsafe {
        sys::cuLaunchKernel(
            function,
            gx,
            gy,
            gz,
            x,
            y,
            z,
            shared_bytes,
            stream.raw(),
            values.cast_mut().cast(), // the driver writes neither to them nor to what they point to
            ptr::null_mut(),
        )
    };
    check("cuLaunchKernel", result)
}

/// Notes a launch for [`trace`].
pub(super) fn traced(name: &'static str) {
    TRACE.with(|trace| {
        if let Some(names) = trace.borrow_mut().as_mut() {
            names.push(name);
        }
    });
}
