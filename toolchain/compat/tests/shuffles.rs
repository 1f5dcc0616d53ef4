//! Shuffles of numbers of 8 to 128 bits on the virtual GPU, and how many instructions they take.
//!
//! A program of its own and not a `#[test]`, because it sets a variable of its environment, as cargo does for build scripts.

mod common;

use cuda_builder::ptx;
use cust::memory::DeviceCopy;
use cust::prelude::*;
use pascaline_driver as driver;
use std::fmt::Debug;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result<()> {
    let Some(text) = common::ptx(common::builder(), "shuffles")? else { return Ok(()) };
    driver::select(driver::Backend::Virtual).expect("nothing has asked for a device yet");
    let _context = cust::quick_init()?;
    let gpu = Gpu {
        entries: ptx::entries(&text)?,
        module: Module::from_ptx(text, &[])?,
        stream: Stream::new(StreamFlags::NON_BLOCKING, None)?,
    };
    // every byte of every value is another one
    let byte = |lane: u128, i: u32| ((lane * 7 + u128::from(i) * 37 + 1) % 256) << (8 * i);
    let bits: [u128; 32] = std::array::from_fn(|lane| (0..16).map(|i| byte(lane as u128, i)).sum());
    gpu.shuffle("shuffles_u8", bits.map(|bits| bits as u8))?;
    gpu.shuffle("shuffles_i8", bits.map(|bits| bits as i8))?;
    gpu.shuffle("shuffles_u16", bits.map(|bits| bits as u16))?;
    gpu.shuffle("shuffles_i16", bits.map(|bits| bits as i16))?;
    gpu.shuffle("shuffles_u32", bits.map(|bits| bits as u32))?;
    gpu.shuffle("shuffles_i32", bits.map(|bits| bits as i32))?;
    gpu.shuffle("shuffles_f32", bits.map(|bits| bits as f32))?;
    gpu.shuffle("shuffles_u64", bits.map(|bits| bits as u64))?;
    gpu.shuffle("shuffles_i64", bits.map(|bits| bits as i64))?;
    gpu.shuffle("shuffles_f64", bits.map(|bits| bits as f64))?;
    gpu.shuffle("shuffles_u128", bits)?;
    gpu.shuffle("shuffles_i128", bits.map(|bits| bits as i128))?;
    println!("test result: ok. 12 passed; 0 failed");
    Ok(())
}

struct Gpu {
    entries: Vec<ptx::Entry>,
    module: Module,
    stream: Stream,
}

impl Gpu {
    /// Launches the kernel, and compares with the lanes that each shuffle reads.
    fn shuffle<T: Copy + Debug + Default + PartialEq + DeviceCopy>(
        &self,
        kernel: &str,
        x: [T; 32],
    ) -> Result<()> {
        let entry = self.entries.iter().find(|entry| entry.name == kernel).expect("a kernel of this name");
        assert_eq!(entry.count("shfl.sync"), 4 * size_of::<T>().div_ceil(4), "{kernel}");
        let (device_x, y) = (DeviceBuffer::from_slice(&x)?, DeviceBuffer::from_slice(&[T::default(); 128])?);
        let inside = DeviceBuffer::from_slice(&[7u32; 128])?;
        let (function, stream) = (self.module.get_function(kernel)?, &self.stream);
        // SAFETY: 32 elements to read, 128 of both kinds to write; one warp.
        unsafe {
            launch!(function<<<1, 32, 0, stream>>>(
                device_x.as_device_ptr(), y.as_device_ptr(), inside.as_device_ptr()
            ))?;
        }
        self.stream.synchronize()?;
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
}
