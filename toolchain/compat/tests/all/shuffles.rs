//! Shuffles of numbers of 8 to 128 bits on the virtual GPU, and how many instructions they take.

use crate::common::{PLAIN, Result, load};
use cuda_builder::ptx;
use cust::memory::DeviceCopy;
use cust::prelude::*;
use std::fmt::Debug;

macro_rules! shuffles {
    ($($test:ident: $kernel:literal, $number:ty;)*) => {$(
        #[test]
        fn $test() -> Result<()> {
            shuffles_of($kernel, bits().map(|bits| bits as $number))
        }
    )*};
}

shuffles! {
    u8_is_exchanged: "shuffles_u8", u8;
    i8_is_exchanged: "shuffles_i8", i8;
    u16_is_exchanged: "shuffles_u16", u16;
    i16_is_exchanged: "shuffles_i16", i16;
    u32_is_exchanged: "shuffles_u32", u32;
    i32_is_exchanged: "shuffles_i32", i32;
    f32_is_exchanged: "shuffles_f32", f32;
    u64_is_exchanged: "shuffles_u64", u64;
    i64_is_exchanged: "shuffles_i64", i64;
    f64_is_exchanged: "shuffles_f64", f64;
    u128_is_exchanged: "shuffles_u128", u128;
    i128_is_exchanged: "shuffles_i128", i128;
}

/// Every byte of every value is another one.
fn bits() -> [u128; 32] {
    let byte = |lane: u128, i: u32| ((lane * 7 + u128::from(i) * 37 + 1) % 256) << (8 * i);
    std::array::from_fn(|lane| (0..16).map(|i| byte(lane as u128, i)).sum())
}

/// Launches the kernel, and compares with the lanes that each shuffle reads.
fn shuffles_of<T: Copy + Debug + Default + PartialEq + DeviceCopy>(kernel: &str, x: [T; 32]) -> Result<()> {
    let Some(text) = PLAIN.text() else { return Ok(()) };
    let (entries, gpu) = (ptx::entries(text)?, load(text)?);
    let entry = entries.iter().find(|entry| entry.name == kernel).expect("a kernel of this name");
    assert_eq!(entry.count("shfl.sync"), 4 * size_of::<T>().div_ceil(4), "{kernel}");
    let (device_x, y) = (DeviceBuffer::from_slice(&x)?, DeviceBuffer::from_slice(&[T::default(); 128])?);
    let inside = DeviceBuffer::from_slice(&[7u32; 128])?;
    let (function, stream) = (gpu.module.get_function(kernel)?, &gpu.stream);
    // SAFETY: 32 elements to read, 128 of both kinds to write; one warp.
    unsafe {
        launch!(function<<<1, 32, 0, stream>>>(
            device_x.as_device_ptr(), y.as_device_ptr(), inside.as_device_ptr()
        ))?;
    }
    stream.synchronize()?;
    let (y, inside) = (y.as_host_vec()?, inside.as_host_vec()?);
    for lane in 0..32 {
        let from = [
            (lane + 3 < 32).then_some(lane + 3),
            (lane % 16 >= 5).then(|| lane - 5),
            Some(31 - lane),
            Some(lane ^ 6),
        ];
        for (i, from) in from.into_iter().enumerate() {
            assert_eq!(y[32 * i + lane], x[from.unwrap_or(lane)], "{kernel}, shuffle {i}, lane {lane}");
            assert_eq!(
                inside[32 * i + lane],
                u32::from(from.is_some()),
                "{kernel}, shuffle {i}, lane {lane}"
            );
        }
    }
    Ok(())
}
