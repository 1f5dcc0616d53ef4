//! The functions of `GpuFloat` and the approximations of `intrinsics`.

use crate::float_list;
use cuda_std::{intrinsics, kernel, thread};

macro_rules! floats {
    ($($(#[$doc:meta])* $name:ident: $float:ty;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// `results` is valid for as many elements as there are functions for each argument.
        #[kernel]
        pub unsafe fn $name(x: &[$float], y: &[$float], n: &[i32], results: *mut $float) {
            let i = thread::index_1d() as usize;
            let (Some(&x), Some(&y), Some(&n), len) = (x.get(i), y.get(i), n.get(i), x.len()) else { return };
            for (f, result) in float_list::all(x, y, n).into_iter().enumerate() {
                // SAFETY: i < len, and each thread has elements of its own.
                unsafe { *results.add(f * len + i) = result };
            }
        }
    )*};
}

floats! {
    /// `results[f · len + i]` is function f of `x[i]`, `y[i]` and `n[i]`, in f32.
    floats_f32: f32;
    /// The same in f64.
    floats_f64: f64;
}

/// The approximations, in the order of the list in the test.
///
/// # Safety
/// `results` is valid for 17 elements for each argument.
#[kernel]
pub unsafe fn approximations(x: &[f32], y: &[f32], results: *mut f32) {
    use intrinsics::*;
    let i = thread::index_1d() as usize;
    let (Some(&x), Some(&y), len) = (x.get(i), y.get(i), x.len()) else { return };
    let (sine, cosine) = fast_sincosf(x);
    let all = [
        fast_exp2f(x),
        fast_log2f(x),
        fast_sinf(x),
        fast_cosf(x),
        rsqrtf(x),
        fast_sqrtf(x),
        fast_rcpf(x),
        frcp_rn(x),
        fast_fdividef(x, y),
        saturatef(x),
        sine - cosine,
        fast_tanf(x),
        fast_expf(x),
        fast_exp10f(x),
        fast_logf(x) - fast_log10f(x),
        fast_powf(x, y),
        fast_tanhf(x),
    ];
    for (f, result) in all.into_iter().enumerate() {
        // SAFETY: i < len, and each thread has elements of its own.
        unsafe { *results.add(f * len + i) = result };
    }
}
