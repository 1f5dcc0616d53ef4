use cuda_std::{DevicePtr, DevicePtrMut, KernelParams, KernelSpec, kernel};

#[derive(KernelParams)]
#[repr(C)]
struct Scale<'a> {
    y: DevicePtrMut<'a, f32>,
    x: DevicePtr<'a, f32>,
    factor: f32,
}

/// # Safety
/// None: it does nothing.
#[kernel(block = 64)]
unsafe fn scale(_p: Scale<'_>) {}

struct Memory;

impl Memory {
    fn read<T>(&self) -> DevicePtr<'_, T> {
        // SAFETY: nobody accesses it.
        unsafe { DevicePtr::from_address(0) }
    }
    fn write<T>(&mut self) -> DevicePtrMut<'_, T> {
        // SAFETY: nobody accesses it.
        unsafe { DevicePtrMut::from_address(0) }
    }
}

fn launch<P: KernelParams>(_: &KernelSpec<P>, _: &P) {}

pub fn main() {
    let (mut y, x) = (Memory, Memory);
    let mut written = y.write();
    launch(&scale, &Scale { y: written.reborrow(), x: x.read(), factor: 2.0 });
    launch(&scale, &Scale { y: written, x: x.read(), factor: 2.0 });
}
