use cuda_std::{DevicePtr, DevicePtrMut, KernelParams, KernelSpec, kernel};

#[derive(KernelParams)]
#[repr(C)]
struct Scale<'a> {
    y: DevicePtrMut<'a, f32>,
    x: DevicePtr<'a, f32>,
    factor: f32,
}

#[kernel(block = 64)]
unsafe fn scale(_p: Scale<'_>) {}

struct Memory;

impl Memory {
    fn read<T>(&self) -> DevicePtr<'_, T> {
        unsafe { DevicePtr::from_address(0) }
    }
    fn write<T>(&mut self) -> DevicePtrMut<'_, T> {
        unsafe { DevicePtrMut::from_address(0) }
    }
}

fn launch<P: KernelParams>(_: &KernelSpec<P>, _: &P) {}

fn main() {
    let (mut y, x) = (Memory, Memory);
    let x: DevicePtr<'_, f64> = x.read();
    launch(&scale, &Scale { y: y.write(), x, factor: 2.0 });
}
