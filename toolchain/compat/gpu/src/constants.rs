//! Kernels that read constant memory.

use cuda_std::{constant, kernel, prelude::Constant, thread};

constant!(
    /// The taps of [`filtered`].
    pub TAPS: [f32; 5]
);
constant!(
    /// Elements of each width that a load has.
    pub BYTES: [u8; 7]
);
constant!(pub HALVES: [[u16; 3]; 4]);
constant!(pub LONGS: [u64; 3]);

/// y[i] = sum of TAPS[j] · x[i + j].
///
/// # Safety
/// `y` has an element for each element of `x`.
#[kernel]
pub unsafe fn filtered(x: &[f32], y: *mut f32) {
    let i = thread::index_1d() as usize;
    if i < x.len() {
        let mut sum = 0.0f32;
        for j in 0..TAPS::LEN {
            // SAFETY: j is below the number of taps.
            sum += unsafe { TAPS.get_unchecked(j) } * x.get(i + j).copied().unwrap_or(0.0);
        }
        // SAFETY: i is inside `x`.
        unsafe { *y.add(i) = sum };
    }
}

/// Element i of three arrays, each as a number; u64::MAX for what is behind an end.
///
/// # Safety
/// `sums` has three elements for each thread.
#[kernel]
pub unsafe fn widths(sums: *mut u64) {
    let i = thread::index_1d() as usize;
    let halves = HALVES.get(i).map(|[a, b, c]| u64::from(a) + u64::from(b) * 10 + u64::from(c) * 100);
    let parts = [BYTES.get(i).map(u64::from), halves, LONGS.get(i)];
    // SAFETY: there are three elements for each thread.
    unsafe {
        for (k, part) in parts.into_iter().enumerate() {
            *sums.add(3 * i + k) = part.unwrap_or(u64::MAX);
        }
    }
}
