// A kernel and its parameters, memory to take them from, and a launch, for the files beside.

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
