//! Kernels that print, that panic, and that use atomics by scope.

use core::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use cuda_std::atomic::{AtomicF64, AtomicIn, Scope};
use cuda_std::{kernel, println, thread};

/// Each thread prints a line.
#[kernel]
pub unsafe fn printed(x: &[f32]) {
    let i = thread::index_1d() as usize;
    if let Some(value) = x.get(i) {
        println!("x[{}] = {:.3}, {} % {{{:04x}}}", i, *value, -(i as i32), i as u16);
    }
}

/// Indexes behind the end of `x` in thread 5.
///
/// # Safety
/// `y` has an element for each thread.
#[kernel]
pub unsafe fn panics(x: &[f32], y: *mut f32) {
    let i = thread::index_1d() as usize;
    // SAFETY: the caller's contract.
    unsafe { *y.add(i) = x[i] }; // panics
}

/// Panics in its last thread, as `how` says.
///
/// # Safety
/// None: the compiler checks everything.
#[kernel]
pub unsafe fn says(how: u32, x: f32, long: &[u8]) {
    let i = thread::index_1d();
    if i + 1 < thread::block_dim_x() {
        return;
    }
    match how {
        0 => panic!("x is {x}, i is {i:#x}"),
        1 => assert_eq!(i * 2, 7, "twice"),
        2 => panic!("{long:?}"),
        3 => panic!("plain"),
        4 => {
            core::str::from_utf8(long).expect("no text");
        }
        _ => {
            (i > 1000).then_some(i).unwrap();
        }
    }
}

/// Each thread writes a line by `core::fmt`.
#[cfg(feature = "text")]
#[kernel]
pub unsafe fn lines(x: &[f64]) {
    use core::fmt::Write;
    let i = thread::index_1d() as usize;
    if let Some(value) = x.get(i) {
        let mut line = cuda_std::io::Line::<64>::new();
        let cut =
            write!(line, "{value:?} {:>9.3} {:e} {:?} {:04x}", *value as f32, value, Some(i), -(i as i8))
                .is_err();
        println!("{}: {} {}", i, &line, cut);
    }
}

/// Sums by each scope: an f64, and integers' sum, smallest, largest, swaps that succeed.
///
/// # Safety
/// `sum` is valid, `numbers` has 5 elements, `count` 1.
#[kernel]
pub unsafe fn scoped(sum: *mut f64, numbers: *mut i64, count: *mut u32) {
    let i = i64::from(thread::index_1d());
    // SAFETY: the caller's contract; an atomic has its number's layout.
    let (sum, at, count) = unsafe {
        let at = |i: usize| &*numbers.add(i).cast::<AtomicI64>();
        (&*sum.cast::<AtomicF64>(), at, &*count.cast::<AtomicU32>())
    };
    sum.fetch_add(0.5, Ordering::Relaxed);
    sum.fetch_add_in(1.5, Ordering::AcqRel, Scope::System);
    at(0).fetch_add_in(i, Ordering::Relaxed, Scope::Device);
    at(1).fetch_min_in(-i, Ordering::Relaxed, Scope::Device);
    at(2).fetch_max_in(i, Ordering::Relaxed, Scope::System);
    at(3).swap_in(7, Ordering::Relaxed, Scope::Device);
    // one thread of each value of `at(4)` succeeds
    at(4).compare_and_swap_in(0, i + 1, Ordering::AcqRel, Scope::Device);
    count.fetch_add_in(1, Ordering::SeqCst, Scope::Device);
}
