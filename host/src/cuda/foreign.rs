//! Kernels of a user's own PTX, launched through cust's `launch!`.

use super::module::load_ptx;
use super::{CudaDevice, Stream, check};
use crate::{Error, Result};
use cust::function::{BlockSize, GridSize};
use cust::sys;
use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::ptr;

/// The driver's code for a name that a module does not have.
const NOT_FOUND: u32 = 500;

/// A module of your own PTX on a device, from [`CudaDevice::load_ptx`]. It lives as long as the process.
///
/// Its kernels are launched on a [`Stream`] by cust's `launch!`, which takes this type and [`Function`] as it takes cust's
/// own; addresses come from [`Tensor::device_address`](crate::Tensor::device_address) and
/// [`TensorMut::device_address`](crate::TensorMut::device_address):
///
/// ```
/// use cust::launch;
/// use pascaline::{DType, Device, Tensor};
///
/// # // as cuda_builder makes it of `#[kernel] unsafe fn double(y: *mut f32, x: &[f32])`
/// # const PTX: &str = "
/// #     .version 6.4
/// #     .target sm_61
/// #     .address_size 64
/// #     .visible .entry double(.param .u64 y, .param .u64 x, .param .u64 len)
/// #     {
/// #         .reg .pred %p<2>; .reg .f32 %f<3>; .reg .b32 %r<2>; .reg .b64 %rd<8>;
/// #         ld.param.u64 %rd1, [y];
/// #         ld.param.u64 %rd2, [x];
/// #         ld.param.u64 %rd3, [len];
/// #         mov.u32 %r1, %tid.x;
/// #         cvt.u64.u32 %rd4, %r1;
/// #         setp.ge.u64 %p1, %rd4, %rd3;
/// #         @%p1 bra DONE;
/// #         shl.b64 %rd5, %rd4, 2;
/// #         add.u64 %rd6, %rd2, %rd5;
/// #         add.u64 %rd7, %rd1, %rd5;
/// #         ld.global.f32 %f1, [%rd6];
/// #         add.rn.f32 %f2, %f1, %f1;
/// #         st.global.f32 [%rd7], %f2;
/// #     DONE:
/// #         ret;
/// #     }";
/// # fn main() -> pascaline::Result<()> {
/// let device = Device::virtual_gpu()?;
/// let Device::Cuda(gpu) = &device else { unreachable!("it is a CUDA device") };
/// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0], [3], &device)?;
/// let mut y = Tensor::zeros([3], DType::F32, &device)?;
///
/// let module = gpu.load_ptx(PTX)?; // #[kernel] unsafe fn double(y: *mut f32, x: &[f32])
/// let stream = gpu.stream();
/// let (written, read) = (y.view_mut()?.device_address::<f32>()?, x.device_address::<f32>()?);
/// // SAFETY: `double` takes a pointer and a slice, which is a pointer and a length. x and y have 3 elements and are of
/// // this stream; y is not x.
/// unsafe { launch!(module.double<<<1, 32, 0, stream>>>(written, read, x.shape().elements()))? };
///
/// assert_eq!(y.to_vec::<f32>()?, [2.0, 4.0, 6.0]);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct PtxModule {
    device: CudaDevice,
    module: sys::CUmodule,
    /// The sizes of each kernel's parameters.
    parameters: HashMap<String, Vec<usize>>,
}

// SAFETY: the handle names code of the device's context, which outlives it; the driver lets any thread use it.
unsafe impl Send for PtxModule {}
// SAFETY: the driver serialises calls on one module, and the parameters only are read.
unsafe impl Sync for PtxModule {}

/// A kernel of a [`PtxModule`].
#[derive(Clone, Debug)]
pub struct Function {
    device: CudaDevice,
    function: sys::CUfunction,
    name: String,
    /// The sizes of its parameters.
    parameters: Vec<usize>,
}

// SAFETY: the handle names code of a module that is never unloaded; the driver lets any thread use it.
unsafe impl Send for Function {}
// SAFETY: the driver serialises calls on one function, and the rest is only read.
unsafe impl Sync for Function {}

impl CudaDevice {
    /// Loads PTX of your own; the driver compiles it for this device.
    ///
    /// # Errors
    /// [`Error::ModuleLoad`] with the log of the driver's compiler.
    pub fn load_ptx(&self, ptx: &str) -> Result<PtxModule> {
        self.bind()?;
        let module = load_ptx(ptx)?;
        Ok(PtxModule { device: self.clone(), module, parameters: parameter_sizes(ptx) })
    }
}

impl PtxModule {
    /// The kernel of this name.
    ///
    /// # Errors
    /// [`Error::ModuleLoad`] if there is none.
    pub fn get_function(&self, name: &str) -> Result<Function> {
        self.device.bind()?;
        let missing =
            |reason: String| Error::ModuleLoad { code: NOT_FOUND, log: format!("kernel {name}: {reason}") };
        let symbol = CString::new(name).map_err(|error| missing(error.to_string()))?;
        let mut function = ptr::null_mut();
        // SAFETY: `module` was loaded into the bound context and is never unloaded; the name is a C string.
        let result = unsafe { sys::cuModuleGetFunction(&mut function, self.module, symbol.as_ptr()) };
        check("cuModuleGetFunction", result).map_err(|error| match error {
            Error::Driver { code: NOT_FOUND, .. } => missing("the PTX has no such kernel".into()),
            other => other,
        })?;
        let parameters = self.parameters.get(name).cloned().unwrap_or_default();
        Ok(Function { device: self.device.clone(), function, name: name.to_owned(), parameters })
    }
}

impl Stream {
    /// Queues a kernel of your own. This is the method that cust's `launch!` calls. A grid with a zero dimension launches
    /// nothing.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the number of arguments differs from the number of the kernel's parameters, and driver
    /// errors. The next synchronisation reports a fault of the kernel; after it the GPU can't be used in this process.
    ///
    /// # Safety
    /// * Each argument points to a value of the type that the kernel declares for this parameter. A slice is two parameters:
    ///   a device address and a length (`usize`). `launch!` takes the pointers itself; write literals with a suffix
    ///   (`0u32`).
    /// * A device address is valid for all that the kernel reads and writes there. An address from
    ///   [`Tensor::device_address`](crate::Tensor::device_address) is valid while the tensor lives, for work queued on the
    ///   stream of the tensor's device: the memory is not reused before that work is done. For another stream of the device
    ///   the caller ensures order and lifetime. A graph keeps the memory of all tensors and buffers whose addresses are arguments
    ///   and that live at this call; the caller keeps other memory, and memory that is reached through it, as long as the graph.
    /// * Memory that the kernel writes comes from [`TensorMut::device_address`](crate::TensorMut::device_address), or only
    ///   the caller uses it.
    /// * Grid, block and shared memory fulfil the kernel's own safety section.
    pub unsafe fn launch<G: Into<GridSize>, B: Into<BlockSize>>(
        &self,
        function: &Function,
        grid: G,
        block: B,
        shared_bytes: u32,
        arguments: &[*mut c_void],
    ) -> Result<()> {
        let (grid, block): (GridSize, BlockSize) = (grid.into(), block.into());
        if arguments.len() != function.parameters.len() {
            return Err(Error::Unsupported {
                op: "launch",
                argument: "arguments",
                value: arguments.len().to_string(),
                reason: format!(
                    "{} has {} parameters, of which a slice is two: pointer and length",
                    function.name,
                    function.parameters.len()
                ),
            });
        }
        if [grid.x, grid.y, grid.z].contains(&0) {
            return Ok(());
        }
        function.device.bind()?;
        let sizes = function.parameters.iter().copied();
        // SAFETY: each argument points to a value of the type that the kernel declares, by this function's contract.
        unsafe { self.keep_exposed(arguments.iter().map(|argument| argument.cast_const()).zip(sizes)) };
        let _lock = self.lock_to_enqueue();
        // SAFETY: the function belongs to the bound context. `arguments` points to one value for each parameter: the
        // number was checked above, the types are this function's contract. The driver copies the values before it returns.
        let result = unsafe {
            sys::cuLaunchKernel(
                function.function,
                grid.x,
                grid.y,
                grid.z,
                block.x,
                block.y,
                block.z,
                shared_bytes,
                self.raw(),
                arguments.as_ptr().cast_mut(),
                ptr::null_mut(),
            )
        };
        check("cuLaunchKernel", result)
    }
}

/// The sizes of the parameters of each `.entry NAME(.param .u64 a, .param .align 8 .b8 p[16])`. The driver reports them only since
/// CUDA 12.4.
fn parameter_sizes(ptx: &str) -> HashMap<String, Vec<usize>> {
    let code: Vec<&str> = ptx.lines().map(|line| line.split("//").next().unwrap_or(line)).collect();
    let code = code.join("\n");
    let entries = code.split(".entry").skip(1).map(|rest| {
        let rest = rest.trim_start();
        let end = rest.find(|c: char| !c.is_alphanumeric() && !"_$%".contains(c)).unwrap_or(rest.len());
        let (name, rest) = rest.split_at(end);
        let list = rest.trim_start().strip_prefix('(').and_then(|list| list.split(')').next());
        (
            name.to_owned(),
            list.map_or(Vec::new(), |list| list.split(".param").skip(1).map(parameter_size).collect()),
        )
    });
    entries.collect()
}

/// The size of `.u64 .ptr .align 1 a` or `.align 8 .b8 p[16]`; 0 for a type that is not known.
fn parameter_size(text: &str) -> usize {
    let bits = text
        .split_whitespace()
        .find_map(|word| word.strip_prefix(['.'])?.strip_prefix(['u', 's', 'b', 'f'])?.parse().ok());
    let count = text.split_once('[').and_then(|(_, rest)| rest.split(']').next()?.trim().parse().ok());
    bits.unwrap_or(0usize) / 8 * count.unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::parameter_sizes;

    #[test]
    fn parameters_are_found_however_the_text_is_broken() {
        let ptx = ".visible .entry one(\n\t.param .u64 .ptr .align 1 a\n)\n{ ret; }\n// .entry two(.param .u32 n)\n\
                   .entry two ( .param .align 8 .b8 p[16], // .param\n .param .f32 x)\n.maxntid 32\n{ ret; }\n\
                   .entry none { ret; }\n.entry\nempty() { ret; }";
        let sizes = parameter_sizes(ptx);
        let of = |name: &str| sizes.get(name).map(Vec::as_slice);
        assert_eq!(
            [of("one"), of("two"), of("none"), of("empty")],
            [Some(&[8][..]), Some(&[16, 4]), Some(&[]), Some(&[])]
        );
        assert_eq!(sizes.len(), 4);
    }
}
