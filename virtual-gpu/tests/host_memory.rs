//! The device gives back the host's memory that it takes. One test alone: it counts what the process allocates.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use pascaline_virtual_gpu::{Checks, Config, Gpu};

/// The system's allocator, with a count of the bytes in use.
struct Counting;

static IN_USE: AtomicUsize = AtomicUsize::new(0);

// SAFETY: all calls go to the system's allocator with the caller's arguments, and counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        IN_USE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        IN_USE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `GlobalAlloc::dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn freed_device_memory_goes_back_to_the_host() {
    const BYTES: usize = 8 << 20;
    const SMALL: usize = 1 << 20;
    let in_use = || IN_USE.load(Ordering::Relaxed);
    for (checks, copies) in [(Checks::ALL, 2), (Checks::NONE, 1)] {
        let mut gpu = Gpu::new(Config { checks, ..Config::default() });
        let before = in_use();
        let p = gpu.alloc(BYTES as u64).unwrap();
        assert!(
            (copies * BYTES..copies * BYTES + SMALL).contains(&(in_use() - before)),
            "with shadow if tracked"
        );
        gpu.free(p).unwrap();
        assert!(in_use() < before + SMALL, "freed");
        gpu.alloc(BYTES as u64).unwrap();
        drop(gpu);
        assert!(in_use() < before + SMALL, "dropped with the device");
    }
}
