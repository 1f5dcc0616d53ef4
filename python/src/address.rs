//! Where a tensor's elements are.

use half::f16;
use pascaline::internals::address as device_address;
use pascaline::{DType, Device, Tensor};

/// The address of the first element; 0 without elements.
pub fn address(x: &Tensor) -> u64 {
    fn first<T: pascaline::Element>(x: &Tensor) -> u64 {
        x.as_slice::<T>().filter(|values| !values.is_empty()).map_or(0, |values| values.as_ptr() as u64)
    }
    match (x.device(), x.dtype()) {
        (Device::Cuda(_), _) => device_address(x),
        (Device::Cpu, DType::F32) => first::<f32>(x),
        (Device::Cpu, DType::F16) => first::<f16>(x),
        (Device::Cpu, DType::U32) => first::<u32>(x),
    }
}
