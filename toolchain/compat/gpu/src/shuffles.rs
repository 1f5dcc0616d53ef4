//! Shuffles of all types.

use cuda_std::{kernel, thread, warp};

macro_rules! shuffles {
    ($($name:ident: $type:ty;)*) => {$(
        /// The four shuffles of one warp's values, and the lanes whose result comes from within its segment.
        ///
        /// # Safety
        /// `x` has 32 elements, `y` and `inside` four times as many; launched with one warp.
        #[kernel]
        pub unsafe fn $name(x: *const $type, y: *mut $type, inside: *mut u32) {
            let lane = thread::thread_idx_x() as usize;
            // SAFETY: the whole warp is here, and each lane has elements of its own.
            unsafe {
                let value = *x.add(lane);
                let results = [
                    warp::warp_shuffle_down(warp::FULL_MASK, value, 3, 32),
                    warp::warp_shuffle_up(warp::FULL_MASK, value, 5, 16),
                    warp::warp_shuffle_idx(warp::FULL_MASK, value, 31 - lane as u32, 32),
                    warp::warp_shuffle_xor(warp::FULL_MASK, value, 6, 8),
                ];
                for (i, (result, is_inside)) in results.into_iter().enumerate() {
                    *y.add(32 * i + lane) = result;
                    *inside.add(32 * i + lane) = is_inside.into();
                }
            }
        }
    )*};
}

shuffles! {
    shuffles_u8: u8;
    shuffles_i8: i8;
    shuffles_u16: u16;
    shuffles_i16: i16;
    shuffles_u32: u32;
    shuffles_i32: i32;
    shuffles_f32: f32;
    shuffles_u64: u64;
    shuffles_i64: i64;
    shuffles_f64: f64;
    shuffles_u128: u128;
    shuffles_i128: i128;
}
