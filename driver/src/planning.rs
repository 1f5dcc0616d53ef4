//! A driver that only writes down: what a plan's calls would allocate and launch, without a device or memory.
//!
//! It serves the calls of one thread during [`on_this_thread`], beside the real or virtual driver of all other threads. A pointer to
//! device memory is a number that nothing stands behind; copies and launches do nothing. Work that was queued counts as done only after
//! a call has waited for it, so what a plan finds holds for a device of any speed.

use std::alloc::{self, Layout};
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

const INVALID_VALUE: u32 = 1;
const OUT_OF_MEMORY: u32 = 2;
const NOT_READY: u32 = 600;
const NOT_SUPPORTED: u32 = 801;

/// Threads that plan at the moment.
static PLANNING: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static BOOKS: RefCell<Option<Books>> = const { RefCell::new(None) };
}

/// The books of one device of a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceBooks {
    /// Bytes by `cuMemAlloc`, which are no pool's.
    pub plain_bytes: usize,
    /// The most of them at a time.
    pub plain_peak: usize,
    /// Kernels that were launched or captured.
    pub launches: usize,
}

#[derive(Default)]
struct Books {
    devices: Vec<DeviceBooks>,
    /// The device of the calls that name none.
    current: usize,
    streams: Vec<StreamBooks>,
    /// For each event, the stream and the position of its last record.
    events: Vec<Option<(usize, u64)>>,
    /// Launches of the capture in progress.
    captured: Option<usize>,
    /// The next address.
    next: u64,
    /// The device and the bytes of each block of `cuMemAlloc`.
    plain: HashMap<u64, (usize, usize)>,
    /// The layout of each block of `cuMemHostAlloc`.
    pinned: HashMap<usize, Layout>,
}

/// A stream as the host knows it.
#[derive(Default)]
struct StreamBooks {
    /// Counts what was queued on it.
    position: u64,
    /// The host has waited for everything up to here.
    done: u64,
    /// For each wait: its position, and the stream and position that it waits for.
    waits: Vec<(u64, usize, u64)>,
}

impl Books {
    /// The host has waited for a stream up to a position, and so for what that waited for.
    fn wait(&mut self, stream: usize, position: u64) {
        let mut left = vec![(stream, position)];
        while let Some((stream, position)) = left.pop() {
            let Some(stream) = self.streams.get_mut(stream).filter(|stream| stream.done < position) else {
                continue;
            };
            stream.done = position;
            stream.waits.retain(|&(at, other, there)| {
                if at <= position {
                    left.push((other, there));
                }
                at > position
            });
        }
    }

    /// Work is queued on a stream.
    fn queue(&mut self, stream: *mut c_void) -> Result<(), u32> {
        self.streams.get_mut(number(stream)).ok_or(INVALID_VALUE)?.position += 1;
        Ok(())
    }

    fn is_done(&self, event: usize) -> bool {
        let recorded = self.events.get(event).copied().flatten();
        recorded.is_none_or(|(stream, position)| self.streams[stream].done >= position)
    }

    /// An address that touches no other block.
    fn address(&mut self, bytes: usize) -> Option<u64> {
        const GAP: u64 = 2 << 20;
        let address = self.next;
        self.next = (bytes as u64).checked_next_multiple_of(GAP)?.checked_add(GAP)?.checked_add(address)?;
        Some(address)
    }
}

/// Whether any thread plans.
#[inline(always)]
pub(crate) fn active() -> bool {
    PLANNING.load(Ordering::Relaxed) > 0
}

/// Runs `work`, whose driver calls on this thread go to the books of `devices` devices, and returns the books. `None` if the thread
/// plans already.
///
/// # Safety
/// No handle and no address that `work` gets from the driver is given to it after `work`.
pub unsafe fn on_this_thread<R>(devices: usize, work: impl FnOnce() -> R) -> Option<(R, Vec<DeviceBooks>)> {
    /// Ends the plan, after a panic too.
    struct Plan;
    impl Drop for Plan {
        fn drop(&mut self) {
            PLANNING.fetch_sub(1, Ordering::Relaxed);
            BOOKS.set(None); // pinned memory that was not freed stays: somebody may have it
        }
    }
    if BOOKS.with_borrow(Option::is_some) {
        return None;
    }
    // no device's addresses are as high
    let books = Books { devices: vec![DeviceBooks::default(); devices], next: 1 << 60, ..Books::default() };
    BOOKS.set(Some(books));
    PLANNING.fetch_add(1, Ordering::Relaxed);
    let plan = Plan;
    let result = work();
    let books = BOOKS.with_borrow(|books| books.as_ref().map(|books| books.devices.clone()));
    drop(plan);
    Some((result, books.unwrap_or_default()))
}

/// Makes one of the plan's devices current on this thread.
pub fn make_current(device: usize) {
    BOOKS.with_borrow_mut(|books| {
        if let Some(books) = books {
            books.current = device;
        }
    });
}

/// The planning driver's function, or the code that a call returns. `None` on a thread that does not plan.
pub(crate) fn address_of(name: &str) -> Option<Result<*mut c_void, u32>> {
    if !active() || !BOOKS.with_borrow(Option::is_some) {
        return None;
    }
    let found = FUNCTIONS.iter().find(|(own, _)| *own == name);
    Some(found.map(|(_, function)| function.0.cast_mut()).ok_or(NOT_SUPPORTED))
}

/// Changes the books of this thread.
fn with(change: impl FnOnce(&mut Books) -> Result<(), u32>) -> u32 {
    let changed = BOOKS.with_borrow_mut(|books| books.as_mut().map_or(Err(NOT_SUPPORTED), change));
    changed.err().unwrap_or(0)
}

/// A handle is a number, from 1 on, in the place of a pointer.
fn handle(number: usize) -> *mut c_void {
    std::ptr::without_provenance_mut(number + 1)
}

fn number(handle: *mut c_void) -> usize {
    handle.addr().wrapping_sub(1)
}

/// Writes a result. Null is not written to.
///
/// # Safety
/// `out` is null or valid for a write.
unsafe fn give<T>(out: *mut T, value: T) -> Result<(), u32> {
    if out.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null, so valid for a write, as this function's contract says.
    unsafe { out.write(value) };
    Ok(())
}

/// A function's address, for a table.
struct Address(*const c_void);

// SAFETY: the address of a function, which any thread may call.
unsafe impl Sync for Address {}

macro_rules! functions {
    ($($name:ident($($arg:ident: $ty:ty),*) |$books:ident| $body:block)*) => {
        static FUNCTIONS: &[(&str, Address)] = &[$((stringify!($name), Address(calls::$name as *const c_void))),*];

        #[allow(non_snake_case, clippy::too_many_arguments, reason = "the driver API's names and parameters")]
        mod calls {
            use super::*;
            $(
                /// # Safety
                /// As the driver API asks: pointers to results are null or valid for a write.
                pub(super) unsafe extern "C" fn $name($($arg: $ty),*) -> u32 {
                    $(let _ = &$arg;)*
                    with(|$books| $body)
                }
            )*
        }
    };
}

type Handle = *mut c_void;

functions! {
    cuMemGetInfo_v2(free: *mut usize, total: *mut usize) |_books| {
        // limits are the pool's
        // SAFETY: the caller's contract.
        unsafe { give(free, isize::MAX as usize)?; give(total, isize::MAX as usize) }
    }
    cuMemAlloc_v2(address: *mut u64, bytes: usize) |books| {
        let at = books.address(bytes).ok_or(OUT_OF_MEMORY)?;
        let current = books.current;
        books.plain.insert(at, (current, bytes));
        let device = books.devices.get_mut(current).ok_or(INVALID_VALUE)?;
        device.plain_bytes += bytes;
        device.plain_peak = device.plain_peak.max(device.plain_bytes);
        // SAFETY: the caller's contract.
        unsafe { give(address, at) }
    }
    cuMemFree_v2(address: u64) |books| {
        let (device, bytes) = books.plain.remove(&address).ok_or(INVALID_VALUE)?;
        books.devices[device].plain_bytes -= bytes;
        Ok(())
    }
    cuMemHostAlloc(address: *mut Handle, bytes: usize, flags: u32) |books| {
        let layout = Layout::from_size_align(bytes.max(1), 4096).map_err(|_| OUT_OF_MEMORY)?;
        // SAFETY: the layout is of a byte at least.
        let block = unsafe { alloc::alloc_zeroed(layout) };
        if block.is_null() {
            return Err(OUT_OF_MEMORY);
        }
        books.pinned.insert(block.expose_provenance(), layout);
        // SAFETY: the caller's contract.
        unsafe { give(address, block.cast()) }
    }
    cuMemFreeHost(address: Handle) |books| {
        let layout = books.pinned.remove(&address.addr()).ok_or(INVALID_VALUE)?;
        // SAFETY: `cuMemHostAlloc` allocated it with this layout, and it has just been taken from the list.
        unsafe { alloc::dealloc(address.cast(), layout) };
        Ok(())
    }
    cuMemPoolCreate(pool: *mut Handle, properties: *const c_void) |_books| {
        // SAFETY: the caller's contract.
        unsafe { give(pool, handle(0)) }
    }
    cuMemPoolDestroy(pool: Handle) |_books| { Ok(()) }
    cuMemPoolSetAttribute(pool: Handle, attribute: u32, value: *mut c_void) |_books| { Ok(()) }
    cuMemPoolSetAccess(pool: Handle, access: *const c_void, count: usize) |_books| { Ok(()) }
    cuMemPoolTrimTo(pool: Handle, keep: usize) |_books| { Ok(()) }
    cuMemAllocFromPoolAsync(address: *mut u64, bytes: usize, pool: Handle, stream: Handle) |books| {
        let at = books.address(bytes).ok_or(OUT_OF_MEMORY)?;
        // SAFETY: the caller's contract.
        unsafe { give(address, at) }
    }
    cuMemFreeAsync(address: u64, stream: Handle) |_books| { Ok(()) }
    cuMemsetD8Async(address: u64, value: u8, count: usize, stream: Handle) |books| { books.queue(stream) }
    cuMemsetD16Async(address: u64, value: u16, count: usize, stream: Handle) |books| { books.queue(stream) }
    cuMemsetD32Async(address: u64, value: u32, count: usize, stream: Handle) |books| { books.queue(stream) }
    cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: Handle) |books| { books.queue(stream) }
    cuMemcpyDtoHAsync_v2(to: Handle, from: u64, bytes: usize, stream: Handle) |books| { books.queue(stream) }
    cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, bytes: usize, stream: Handle) |books| { books.queue(stream) }
    cuMemcpyHtoD_v2(to: u64, from: *const c_void, bytes: usize) |_books| { Ok(()) }
    cuMemcpyPeerAsync(to: u64, there: Handle, from: u64, here: Handle, bytes: usize, stream: Handle) |books| { books.queue(stream) }
    cuDeviceCanAccessPeer(can: *mut c_int, from: c_int, to: c_int) |_books| {
        // SAFETY: the caller's contract.
        unsafe { give(can, 1) }
    }
    cuCtxEnablePeerAccess(context: Handle, flags: u32) |_books| { Ok(()) }
    cuStreamCreate(stream: *mut Handle, flags: u32) |books| {
        books.streams.push(StreamBooks::default());
        // SAFETY: the caller's contract.
        unsafe { give(stream, handle(books.streams.len() - 1)) }
    }
    cuStreamDestroy_v2(stream: Handle) |_books| { Ok(()) }
    cuStreamSynchronize(stream: Handle) |books| {
        let stream = number(stream);
        let position = books.streams.get(stream).ok_or(INVALID_VALUE)?.position;
        books.wait(stream, position);
        Ok(())
    }
    cuStreamWaitEvent(stream: Handle, event: Handle, flags: u32) |books| {
        let recorded = books.events.get(number(event)).copied().flatten();
        let stream = books.streams.get_mut(number(stream)).ok_or(INVALID_VALUE)?;
        if let Some((other, there)) = recorded {
            stream.position += 1;
            stream.waits.push((stream.position, other, there));
        }
        Ok(())
    }
    cuStreamBeginCapture_v2(stream: Handle, mode: u32) |books| {
        books.captured = Some(0);
        Ok(())
    }
    cuStreamEndCapture(stream: Handle, graph: *mut Handle) |books| {
        let launches = books.captured.take().ok_or(INVALID_VALUE)?;
        // SAFETY: the caller's contract.
        unsafe { give(graph, handle(launches)) }
    }
    cuGraphGetNodes(graph: Handle, nodes: *mut Handle, count: *mut usize) |_books| {
        // SAFETY: the caller's contract.
        unsafe { give(count, number(graph)) }
    }
    cuGraphInstantiate_v2(exec: *mut Handle, graph: Handle, node: *mut Handle, log: *mut u8, bytes: usize) |_books| {
        // SAFETY: the caller's contract.
        unsafe { give(exec, graph) }
    }
    cuGraphDestroy(graph: Handle) |_books| { Ok(()) }
    cuGraphExecDestroy(exec: Handle) |_books| { Ok(()) }
    cuGraphLaunch(exec: Handle, stream: Handle) |books| { books.queue(stream) }
    cuEventCreate(event: *mut Handle, flags: u32) |books| {
        books.events.push(None);
        // SAFETY: the caller's contract.
        unsafe { give(event, handle(books.events.len() - 1)) }
    }
    cuEventDestroy_v2(event: Handle) |_books| { Ok(()) }
    cuEventRecord(event: Handle, stream: Handle) |books| {
        let (event, number) = (number(event), number(stream));
        let at = books.streams.get(number).ok_or(INVALID_VALUE)?.position;
        *books.events.get_mut(event).ok_or(INVALID_VALUE)? = Some((number, at));
        Ok(())
    }
    cuEventQuery(event: Handle) |books| {
        if books.is_done(number(event)) { Ok(()) } else { Err(NOT_READY) }
    }
    cuEventSynchronize(event: Handle) |books| {
        if let Some((stream, position)) = books.events.get(number(event)).copied().flatten() {
            books.wait(stream, position);
        }
        Ok(())
    }
    cuEventElapsedTime(milliseconds: *mut f32, begin: Handle, end: Handle) |_books| {
        // SAFETY: the caller's contract.
        unsafe { give(milliseconds, 0.0) }
    }
    cuLaunchKernel(
        function: Handle, x: u32, y: u32, z: u32, bx: u32, by: u32, bz: u32, shared: u32, stream: Handle,
        parameters: *mut Handle, extra: *mut Handle
    ) |books| {
        let current = books.current;
        books.devices.get_mut(current).ok_or(INVALID_VALUE)?.launches += 1;
        books.captured = books.captured.map(|launches| launches + 1);
        books.queue(stream)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cust_raw::*;
    use std::ptr;

    /// A plan that no handle and no address leaves.
    fn planned<R>(devices: usize, work: impl FnOnce() -> R) -> Option<(R, Vec<DeviceBooks>)> {
        // SAFETY: the tests below return nothing from `work`.
        unsafe { on_this_thread(devices, work) }
    }

    fn stream() -> CUstream {
        let mut stream = ptr::null_mut();
        // SAFETY: `stream` outlives the call.
        assert_eq!(unsafe { cuStreamCreate(&mut stream, 0) }, CUresult::CUDA_SUCCESS);
        stream
    }

    fn recorded(stream: CUstream) -> CUevent {
        let mut event = ptr::null_mut();
        // SAFETY: `event` outlives the call; both handles are the planning driver's own.
        let codes = unsafe { [cuEventCreate(&mut event, 0), cuEventRecord(event, stream)] };
        assert_eq!(codes, [CUresult::CUDA_SUCCESS; 2]);
        event
    }

    #[test]
    fn work_is_done_once_it_was_waited_for() {
        let planned = planned(1, || {
            let (a, b) = (stream(), stream());
            // SAFETY: a plan's memory is not touched.
            let work = |stream| unsafe { cuMemsetD8Async(1 << 60, 0, 1, stream) };
            let none = recorded(a);
            work(a);
            let first = recorded(a);
            work(a);
            let second = recorded(a);
            // SAFETY: the handles are the planning driver's own.
            let done = |event| unsafe { cuEventQuery(event) } == CUresult::CUDA_SUCCESS;
            assert!(done(none) && !done(first));
            // SAFETY: the handles are the planning driver's own.
            unsafe { cuStreamWaitEvent(b, first, 0) };
            let after = recorded(b);
            // SAFETY: the handles are the planning driver's own.
            unsafe { cuStreamSynchronize(b) };
            assert_eq!([first, second, after].map(done), [true, false, true]);
            // SAFETY: the handles are the planning driver's own.
            unsafe { cuEventSynchronize(second) };
            assert!(done(second));
        });
        assert!(planned.is_some());
    }

    #[test]
    fn memory_of_no_pool_is_counted_by_device() {
        let allocate = |bytes| {
            let mut address = 0;
            // SAFETY: `address` outlives the call.
            assert_eq!(unsafe { cuMemAlloc_v2(&mut address, bytes) }, CUresult::CUDA_SUCCESS);
            address
        };
        let planned = planned(2, || {
            let first = allocate(100);
            make_current(1);
            allocate(7);
            // SAFETY: allocated above.
            unsafe { cuMemFree_v2(first) };
            assert!(planned(1, || ()).is_none(), "a plan inside a plan");
        });
        let book = |plain_bytes, plain_peak| DeviceBooks { plain_bytes, plain_peak, launches: 0 };
        assert_eq!(planned, Some(((), vec![book(0, 100), book(7, 7)])));
    }

    #[test]
    fn other_threads_keep_their_driver() {
        planned(1, || {
            let other = std::thread::spawn(|| address_of("cuMemAlloc_v2").is_none());
            assert!(other.join().unwrap());
            assert!(matches!(address_of("cuMemAlloc_v2"), Some(Ok(_))));
            assert_eq!(address_of("cuNoSuchCall"), Some(Err(NOT_SUPPORTED)));
        });
        assert!(address_of("cuMemAlloc_v2").is_none());
    }
}
