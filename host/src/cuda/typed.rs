//! Launching a kernel of any crate as its [`KernelSpec`] says.

use super::foreign::PtxModule;
use super::launch::{check_grid, enqueue, traced};
use crate::{Error, Result};
use cuda_std::{KernelParams, KernelSpec};

/// The most shared memory of a block without asking the driver for more.
const MAX_SHARED_BYTES: u64 = 48 << 10;

impl PtxModule {
    /// Queues a kernel of this module on the stream of the module's device, with `shared_bytes` of dynamic shared memory. A grid
    /// with a zero dimension launches nothing.
    ///
    /// `spec` is what `#[kernel(block = ..)]` makes of the kernel's definition, in whatever crate that is. It names the type of
    /// the parameters. [`DevicePtr`](cuda_std::DevicePtr) and [`DevicePtrMut`](cuda_std::DevicePtrMut) among its fields come from
    /// [`Tensor::device_ptr`](crate::Tensor::device_ptr), [`Tensor::device_ptr_mut`](crate::Tensor::device_ptr_mut) and those of
    /// [`DeviceBuffer`](crate::memory::DeviceBuffer): another element type, a shared tensor that is written, and memory that does
    /// not live do not compile. They may be dropped after the launch: their memory is reused after the kernel. A graph that captures the
    /// launch keeps it.
    ///
    /// # Errors
    /// [`Error::ModuleLoad`] if the PTX has no such kernel or its parameters have other sizes, [`Error::TooLarge`] for a grid or
    /// shared memory beyond the hardware's limit, [`Error::Unsupported`] for memory of another device, a driver error.
    ///
    /// # Safety
    /// The PTX was compiled from the definition of `spec`, and grid, shared memory and the lengths of what is pointed to fulfil the
    /// kernel's own safety section.
    pub unsafe fn launch<P: KernelParams>(
        &self,
        spec: &KernelSpec<P>,
        grid: [u32; 3],
        shared_bytes: u32,
        parameters: &P,
    ) -> Result<()> {
        let function = self.typed_function(spec)?;
        if grid.contains(&0) {
            return Ok(());
        }
        check_grid(spec.name, grid)?;
        let total = u64::from(spec.shared_bytes) + u64::from(shared_bytes);
        if total > MAX_SHARED_BYTES {
            return Err(Error::TooLarge {
                op: spec.name,
                argument: "shared_bytes",
                elements: total as _,
                limit: MAX_SHARED_BYTES as _,
            });
        }
        let device = self.device();
        device.bind()?;
        let values = parameters.pointers();
        let fields = || values.iter().copied().zip(P::SIZES.iter().copied());
        // SAFETY: `KernelParams` gives for each size the address of a field of that size.
        unsafe {
            device.ensure_own(spec.name, fields())?;
            device.stream().keep_exposed(fields());
        }
        // SAFETY: `KernelParams` gives the address of a field for each parameter of the entry, whose sizes were compared with
        // the PTX. The memory that they point to is borrowed, or the caller vouches for it.
        unsafe { enqueue(device.stream(), function, grid, spec.block, shared_bytes, values.as_ptr()) }?;
        traced(spec.name);
        Ok(())
    }
}
