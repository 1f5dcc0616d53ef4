//! Conversion to and from 16-bit formats: kernel and grid.

use crate::cuda::CudaDevice;
use crate::float16::{Float16Tensor, MIN_EXPONENT_BITS, Overflow};
use crate::{Result, Tensor, TensorMut};
use kernels_gpu::float16::convert::{
    DECODE, Decode, ENCODE, ENCODE_SATURATING, Encode, THREADS, VALUES_PER_THREAD,
};

fn grid(count: u32) -> [u32; 3] {
    [count.div_ceil(THREADS * VALUES_PER_THREAD), 1, 1]
}

pub(crate) fn encode(
    device: &CudaDevice,
    y: &mut Float16Tensor,
    x: &Tensor,
    overflow: Overflow,
) -> Result<()> {
    let index = (y.exponent_bits - MIN_EXPONENT_BITS) as usize;
    let spec = match overflow {
        Overflow::Infinity => ENCODE[index],
        Overflow::Saturate => ENCODE_SATURATING[index],
    };
    let count = x.shape().elements() as u32;
    let codes = y.codes.view_mut()?.address() as *mut u16;
    // SAFETY: `ops::float16_encode` has checked x, a 16-byte aligned contiguous f32 tensor of less than 2³¹ elements on this
    // stream, and allocated as many codes.
    unsafe { device.launch(&spec, grid(count), &Encode { codes, values: x.ptr(), count }) }
}

pub(crate) fn decode(device: &CudaDevice, y: TensorMut, x: &Float16Tensor) -> Result<()> {
    let spec = DECODE[(x.exponent_bits - MIN_EXPONENT_BITS) as usize];
    let count = x.shape().elements() as u32;
    let codes = x.codes.address() as *const u16;
    // SAFETY: `ops::float16_decode_into` has checked y: contiguous f32, aligned, with as many values as there are codes, on
    // their stream. The codes are a separate allocation of fewer than 2³¹.
    unsafe { device.launch(&spec, grid(count), &Decode { values: y.ptr(), codes, count }) }
}
