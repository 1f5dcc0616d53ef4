//! Kernels of a user's own PTX, launched through cust's `launch!`.

use super::device::CudaDevice;
use super::fault::check;
use super::launch::enqueue;
use super::module::load_ptx;
use super::parameters::{Kind, Parameter, agree, parameters};
use super::stream::Stream;
use crate::{Error, Result};
use cuda_std::{DevicePtr, DevicePtrMut, KernelInfo};
use cust::function::{BlockSize, GridSize};
use cust::sys;
use std::collections::HashMap;
use std::ffi::{CString, c_char, c_void};
use std::marker::PhantomData;
use std::ptr;
use std::sync::{Mutex, PoisonError};

/// The driver's code for a name that a module does not have.
pub(super) const NOT_FOUND: u32 = 500;

/// A module of your own PTX on a device, from [`CudaDevice::load_ptx`]. It lives as long as the process.
///
/// A kernel with a contract is launched by [`launch`](Self::launch), which the compiler checks. Others are launched on a [`Stream`] by
/// [`launch!`](crate::launch), which compares sizes and kinds of the arguments with the PTX; cust's own `launch!` takes this type
/// and [`Function`] too, and only the number of arguments is compared. Addresses come from
/// [`Tensor::device_address`](crate::Tensor::device_address) and
/// [`TensorMut::device_address`](crate::TensorMut::device_address):
///
/// ```
/// use pascaline::{DType, Device, Tensor, launch};
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
    /// Each kernel's parameters.
    parameters: HashMap<String, Vec<Parameter>>,
    /// The kernels that were launched by their contract, which was compared with the PTX.
    typed: Mutex<HashMap<&'static str, (KernelInfo, sys::CUfunction)>>,
}

/// A value that [`launch!`](crate::launch) passes to a kernel.
///
/// # Safety
/// The value has no padding, and a kernel may read it as a parameter of this kind and of the value's size.
pub unsafe trait LaunchArgument {
    /// Its kind.
    const KIND: Kind;
}

macro_rules! arguments {
    ($($kind:ident: $($ty:ty)*;)*) => {$($(
        // SAFETY: a number.
        unsafe impl LaunchArgument for $ty {
            const KIND: Kind = Kind::$kind;
        }
    )*)*};
}

arguments! {
    Float: f32 f64;
    Integer: u8 i8 u16 i16 u32 i32 u64 i64 usize isize;
    Bytes: half::f16;
}

// SAFETY: a `repr(transparent)` pointer.
unsafe impl<T> LaunchArgument for DevicePtr<'_, T> {
    const KIND: Kind = Kind::Integer;
}
// SAFETY: a `repr(transparent)` pointer.
unsafe impl<T> LaunchArgument for DevicePtrMut<'_, T> {
    const KIND: Kind = Kind::Integer;
}
// SAFETY: a pointer.
unsafe impl<T> LaunchArgument for *const T {
    const KIND: Kind = Kind::Integer;
}
// SAFETY: a pointer.
unsafe impl<T> LaunchArgument for *mut T {
    const KIND: Kind = Kind::Integer;
}
// SAFETY: the elements are values without padding, one behind the other.
unsafe impl<T: LaunchArgument, const N: usize> LaunchArgument for [T; N] {
    const KIND: Kind = Kind::Bytes;
}

/// An argument of a launch: where it is, how large, of which kind.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Argument<'a> {
    value: *mut c_void,
    bytes: usize,
    kind: Kind,
    of: PhantomData<&'a ()>,
}

impl<'a> Argument<'a> {
    /// The argument that this value is.
    pub fn new<T: LaunchArgument>(value: &'a T) -> Self {
        let address = ptr::from_ref(value).cast_mut().cast();
        Self { value: address, bytes: size_of::<T>(), kind: T::KIND, of: PhantomData }
    }
}

/// cust's `launch!` with arguments whose sizes and kinds are compared with the PTX before the launch: an `f64` for an `f32`, a float
/// for an address or an `i32` for a `usize` are errors. Arguments are [`LaunchArgument`](crate::cuda::LaunchArgument)s: numbers,
/// device pointers, addresses, and arrays of them.
///
/// ```text
/// launch!(module.name<<<grid, block, shared_bytes, stream>>>(arguments))
/// launch!(function<<<grid, block, shared_bytes, stream>>>(arguments))
/// ```
///
/// # Safety
/// As [`Stream::launch`](crate::cuda::Stream::launch), but for the arguments' number, sizes and kinds.
#[macro_export]
macro_rules! launch {
    ($module:ident . $name:ident <<< $grid:expr, $block:expr, $shared:expr, $stream:ident >>> ($($argument:expr),* $(,)?)) => {
        match $module.get_function(::core::stringify!($name)) {
            Ok(function) => $stream.launch_checked(
                &function, $grid, $block, $shared, &[$($crate::cuda::Argument::new(&$argument)),*],
            ),
            Err(error) => Err(error),
        }
    };
    ($function:ident <<< $grid:expr, $block:expr, $shared:expr, $stream:ident >>> ($($argument:expr),* $(,)?)) => {
        $stream.launch_checked(
            &$function, $grid, $block, $shared, &[$($crate::cuda::Argument::new(&$argument)),*],
        )
    };
}

// SAFETY: the handle names code of the device's context, which outlives it; the driver lets any thread use it.
unsafe impl Send for PtxModule {}
// SAFETY: the driver serialises calls on one module; the parameters are only read, and the rest has a lock.
unsafe impl Sync for PtxModule {}

/// A kernel of a [`PtxModule`].
#[derive(Clone, Debug)]
pub struct Function {
    device: CudaDevice,
    function: sys::CUfunction,
    name: String,
    parameters: Vec<Parameter>,
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
        Ok(PtxModule { device: self.clone(), module, parameters: parameters(ptx), typed: Mutex::default() })
    }

    /// As [`load_ptx`](Self::load_ptx), for kernels with contracts, which are compared with the PTX: `spec.info()` of each kernel.
    ///
    /// # Errors
    /// As there, and [`Error::ModuleLoad`] if a kernel is not in the PTX or has parameters of other sizes.
    pub fn load_kernels(&self, ptx: &str, kernels: &[KernelInfo]) -> Result<PtxModule> {
        let module = self.load_ptx(ptx)?;
        kernels.iter().try_for_each(|info| module.typed_function(info).map(drop))?;
        Ok(module)
    }
}

impl PtxModule {
    /// The device that it was loaded on.
    pub fn device(&self) -> &CudaDevice {
        &self.device
    }

    /// The kernel of a contract, which has the parameters that the contract says.
    pub(super) fn typed_function(&self, info: &KernelInfo) -> Result<sys::CUfunction> {
        let mut typed = self.typed.lock().unwrap_or_else(PoisonError::into_inner);
        match typed.get(info.name) {
            Some((known, function)) if known.parameters == info.parameters => return Ok(*function),
            _ => {}
        }
        let function = self.get_function(info.name)?;
        agree(info, function.parameters.iter().map(|parameter| parameter.bytes))?;
        typed.insert(info.name, (*info, function.function));
        Ok(function.function)
    }

    /// The kernel of this name.
    ///
    /// # Errors
    /// [`Error::ModuleLoad`] if there is none.
    pub fn get_function(&self, name: &str) -> Result<Function> {
        let mut function = ptr::null_mut();
        self.find("kernel", name, "cuModuleGetFunction", |module, name| {
            // SAFETY: `find` gives the module, which was loaded into the bound context and is never unloaded, and a C string.
            unsafe { sys::cuModuleGetFunction(&mut function, module, name) }
        })?;
        let parameters = self.parameters.get(name).cloned().unwrap_or_default();
        Ok(Function { device: self.device.clone(), function, name: name.to_owned(), parameters })
    }

    /// Looks something up by its name: the driver's `call`, with the module and the name, in the module's context.
    pub(super) fn find(
        &self,
        kind: &str,
        name: &str,
        call: &'static str,
        look_up: impl FnOnce(sys::CUmodule, *const c_char) -> sys::CUresult,
    ) -> Result<()> {
        self.device.bind()?;
        let missing =
            |reason: String| Error::ModuleLoad { code: NOT_FOUND, log: format!("{kind} {name}: {reason}") };
        if name.is_empty() {
            return Err(missing("the name is empty".into())); // drivers answer CUDA_ERROR_INVALID_VALUE
        }
        let symbol = CString::new(name).map_err(|error| missing(error.to_string()))?;
        check(call, look_up(self.module, symbol.as_ptr())).map_err(|error| match error {
            Error::Driver { code: NOT_FOUND, .. } => missing(format!("the PTX has no such {kind}")),
            other => other,
        })
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
        function.check_count(arguments.len())?;
        // SAFETY: the number was checked, and this function's contract is the other's.
        unsafe { self.launch_raw(function, grid, block, shared_bytes, arguments) }
    }

    /// As [`launch`](Self::launch), with arguments of known sizes and kinds, which are compared with the kernel's parameters:
    /// [`launch!`](crate::launch) calls it.
    ///
    /// # Errors
    /// As there, and [`Error::Unsupported`] for an argument of another size or kind.
    ///
    /// # Safety
    /// As there; that the sizes and kinds fit is checked.
    pub unsafe fn launch_checked<G: Into<GridSize>, B: Into<BlockSize>>(
        &self,
        function: &Function,
        grid: G,
        block: B,
        shared_bytes: u32,
        arguments: &[Argument<'_>],
    ) -> Result<()> {
        function.check_count(arguments.len())?;
        for (index, (argument, parameter)) in arguments.iter().zip(&function.parameters).enumerate() {
            let is_of_kind = match (argument.kind, parameter.kind) {
                (Kind::Bytes, _) | (_, Kind::Bytes) => true,
                (given, declared) => given == declared,
            };
            if argument.bytes != parameter.bytes || !is_of_kind {
                return Err(Error::Unsupported {
                    op: "launch",
                    argument: "arguments",
                    value: format!("{} in place {index}", describe(argument.kind, argument.bytes)),
                    reason: format!(
                        "{} has {} there; write a number with its type, as in 2.0f32",
                        function.name,
                        describe(parameter.kind, parameter.bytes)
                    ),
                });
            }
        }
        let values: Vec<*mut c_void> = arguments.iter().map(|argument| argument.value).collect();
        // SAFETY: number, sizes and kinds were checked, and the rest is this function's contract.
        unsafe { self.launch_raw(function, grid.into(), block.into(), shared_bytes, &values) }
    }

    /// # Safety
    /// As [`launch`](Self::launch), and there are as many arguments as parameters.
    unsafe fn launch_raw(
        &self,
        function: &Function,
        grid: GridSize,
        block: BlockSize,
        shared_bytes: u32,
        arguments: &[*mut c_void],
    ) -> Result<()> {
        let (grid, block) = ([grid.x, grid.y, grid.z], [block.x, block.y, block.z]);
        if grid.contains(&0) {
            return Ok(());
        }
        function.device.bind()?;
        let sizes = function.parameters.iter().map(|parameter| parameter.bytes);
        // SAFETY: each argument points to a value of the type that the kernel declares, by this function's contract.
        unsafe {
            self.keep_exposed(arguments.iter().map(|argument| argument.cast_const().cast()).zip(sizes))
        };
        // SAFETY: the function belongs to the bound context; each value is of its parameter's type: this function's contract.
        unsafe { enqueue(self, function.function, grid, block, shared_bytes, arguments.as_ptr().cast()) }
    }
}

impl Function {
    fn check_count(&self, arguments: usize) -> Result<()> {
        if arguments == self.parameters.len() {
            return Ok(());
        }
        Err(Error::Unsupported {
            op: "launch",
            argument: "arguments",
            value: arguments.to_string(),
            reason: format!(
                "{} has {} parameters, of which a slice is two: pointer and length",
                self.name,
                self.parameters.len()
            ),
        })
    }
}

/// `a float of 8 bytes`
fn describe(kind: Kind, bytes: usize) -> String {
    let kind = match kind {
        Kind::Float => "a float of ",
        Kind::Integer => "an integer or address of ",
        Kind::Bytes => "",
    };
    format!("{kind}{bytes} bytes")
}
