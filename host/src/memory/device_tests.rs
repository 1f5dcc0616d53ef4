//! Each wait is also needed on a device: without it, a writer that runs late leaves wrong bytes. Runs on the real GPU, or
//! else on the virtual one, whose streams run late on their own.
//!
//! `PASCALINE_HAND_OVERS=100000` sets the number of hand-overs, which is the default on a real GPU.

use super::adaptor::Limit;
use super::{CHUNK, Upstream};
use super::{CudaTimeline, DeviceBuffer, LayerStream, MemoryPool, PinnedBuffer, PlainMemory, StreamHandle};
use crate::cuda::{CudaDevice, Graph, check};
use crate::mutation::{Wait, without};
use crate::{Device, Result};
use cust::sys;
use pascaline_driver::{self as driver, faults};
use std::env;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

const SEGMENT: usize = 2 << 20;
/// How many attempts with a wait left out must all succeed before it counts as not noticed.
const ROUNDS: u8 = 30;

/// Two streams of a device, and a buffer on each to keep it busy.
struct Rig {
    streams: [CudaDevice; 2],
    busy: [DeviceBuffer; 2],
    _turn: MutexGuard<'static, ()>,
}

const A: usize = 0;
const B: usize = 1;

fn is_virtual() -> bool {
    driver::backend() == Some(driver::Backend::Virtual)
}

/// The lock for using a device: calls are counted per process, and waiting for one stream of the virtual GPU lets work of
/// others run early.
pub(crate) fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The CUDA device of all tests in this process, which can use only one driver: the first real one, or else the virtual GPU.
pub(crate) fn cuda_device() -> CudaDevice {
    let real = driver::real_devices().is_ok_and(|count| count > 0);
    let required = env::var_os("REQUIRE_GPU").is_some_and(|value| value == "1");
    assert!(real || !required, "REQUIRE_GPU=1 asks for a real GPU");
    let device = if real { Device::cuda(0) } else { Device::virtual_gpu() };
    let Device::Cuda(device) = device.unwrap() else { unreachable!("a CUDA device was asked for") };
    device
}

impl Rig {
    fn new() -> Self {
        let turn = turn();
        let a = cuda_device();
        let streams = [a.clone(), a.with_new_stream().unwrap()];
        let bytes = if is_virtual() { 4096 } else { 256 << 20 };
        let busy = [A, B].map(|stream| DeviceBuffer::uninitialized(&streams[stream], bytes).unwrap());
        Self { streams, busy, _turn: turn }
    }

    /// Queues about a millisecond of work.
    fn late(&mut self, stream: usize) {
        (0..16).for_each(|byte| self.busy[stream].fill(byte).unwrap());
    }

    /// Reads on the stream, after work that other streams still have queued has run.
    fn read_late(&mut self, stream: usize, address: u64, bytes: usize) -> Vec<u8> {
        self.late(stream);
        self.late(stream);
        let mut found = vec![0u8; bytes];
        let raw = self.streams[stream].stream().raw();
        // SAFETY: the range is the caller's device memory; the stream is waited for before the vector is read.
        let result = unsafe { sys::cuMemcpyDtoHAsync_v2(found.as_mut_ptr().cast(), address, bytes, raw) };
        check("cuMemcpyDtoHAsync", result).unwrap();
        self.streams[stream].synchronize().unwrap();
        found
    }

    fn finish(&self) {
        self.streams.iter().for_each(|stream| stream.synchronize().unwrap());
    }

    fn handles(&self) -> [StreamHandle; 2] {
        [A, B].map(|stream| StreamHandle::new(&self.streams[stream]))
    }
}

fn set(device: &CudaDevice, address: u64, bytes: usize, word: u32) {
    // SAFETY: the callers' blocks are at least `bytes` long.
    let result = unsafe { sys::cuMemsetD32Async(address, word, bytes / 4, device.stream().raw()) };
    check("cuMemsetD32Async", result).unwrap();
}

/// Number of rounds of `right` that end in wrong bytes; with the wait left out if one is named.
fn wrong(removed: Option<Wait>, rig: &mut Rig, right: &mut dyn FnMut(&mut Rig, u8) -> bool) -> usize {
    let rounds = (1..=ROUNDS).filter(|&round| {
        let right = without(removed, || right(rig, round));
        rig.finish();
        !right
    });
    rounds.count()
}

/// Runs a sequence that leads to the right bytes, then again with the wait left out, which must lead to wrong bytes at least
/// once.
fn notices(wait: Wait, rig: &mut Rig, mut right: impl FnMut(&mut Rig, u8) -> bool) {
    assert_eq!(wrong(None, rig, &mut right), 0, "{wait:?} in place");
    let noticed = wrong(Some(wait), rig, &mut right);
    assert!(noticed > 0, "nothing notices that {wait:?} is left out");
    println!("{wait:?} left out: wrong bytes in {noticed} of {ROUNDS}");
}

/// A block written late on one stream, then handed to the other, written there and read.
fn handed_over(rig: &mut Rig, wait: Wait) -> bool {
    let [a, b] = rig.handles();
    let device = rig.streams[A].clone();
    let segments = if wait == Wait::ReadyQuery { 2 } else { 1 };
    let upstream = Limit::new(PlainMemory::new(&device), segments * SEGMENT);
    let service = StreamHandle::new(&device.with_new_stream().unwrap());
    let pool = MemoryPool::new(CudaTimeline::new(&device), upstream, service);
    let block = pool.allocate(SEGMENT, &a).unwrap();
    let (first, second) = if wait == Wait::OtherUses { (B, A) } else { (A, B) };
    rig.late(first);
    set(&rig.streams[first], block, SEGMENT, 1);
    if wait == Wait::OtherUses {
        pool.record_use(block, &b).unwrap();
    }
    // SAFETY: allocated above; only the recorded uses are queued.
    unsafe { pool.free(block, SEGMENT) }.unwrap();
    if wait == Wait::RetiredStream {
        // SAFETY: the stream's work that uses the pool's memory is queued.
        unsafe { pool.retire(&a) }.unwrap();
    }
    let again = pool.allocate(SEGMENT, if second == A { &a } else { &b }).unwrap();
    set(&rig.streams[second], again, SEGMENT, 2);
    let found = rig.read_late(second, again, SEGMENT);
    // SAFETY: allocated above, and its last use has been waited for.
    unsafe { pool.free(again, SEGMENT) }.unwrap();
    rig.finish();
    found.chunks(4).all(|word| word == [2, 0, 0, 0])
}

#[test]
fn each_wait_of_the_pool_is_needed_on_a_device() {
    let mut rig = Rig::new();
    for wait in [Wait::ReadyQuery, Wait::FreshRecord, Wait::HandOver, Wait::OtherUses, Wait::RetiredStream] {
        notices(wait, &mut rig, |rig, _| handed_over(rig, wait));
    }
}

/// One block alternates between two streams; each time it is written late and read once the other stream has it.
#[test]
fn hand_overs_keep_every_blocks_pattern() {
    const BLOCK: usize = 20 << 10;
    const BATCH: usize = 1024;
    let rig = Rig::new();
    let default = if is_virtual() { 2_000 } else { 100_000 };
    let wanted: usize = env::var("PASCALINE_HAND_OVERS").ok().and_then(|n| n.parse().ok()).unwrap_or(default);
    let device = &rig.streams[A];
    let upstream = Limit::new(PlainMemory::new(device), SEGMENT);
    let service = StreamHandle::new(&device.with_new_stream().unwrap());
    let pool = MemoryPool::new(CudaTimeline::new(device), upstream, service);
    let handles = rig.handles();
    let rest = pool.allocate(SEGMENT - BLOCK, &handles[A]).unwrap(); // leaves room for one block
    let busy_bytes = rig.busy[A].bytes().min(4 << 20);
    let mut results = DeviceBuffer::uninitialized(device, BATCH * BLOCK).unwrap();
    let mut only = None;
    for batch in 0..wanted.div_ceil(BATCH) {
        for slot in 0..BATCH {
            let (stream, tag) = (slot % 2, (batch * BATCH + slot + 1) as u32);
            let on = &rig.streams[stream];
            let block = pool.allocate(BLOCK, &handles[stream]).unwrap();
            assert_eq!(*only.get_or_insert(block), block, "there is room for one block only");
            (0..4).for_each(|word| set(on, rig.busy[stream].address(), busy_bytes, word));
            set(on, block, BLOCK, tag);
            (0..2).for_each(|word| set(on, rig.busy[stream].address(), busy_bytes, word));
            let to = results.address() + (slot * BLOCK) as u64;
            // SAFETY: both ranges are BLOCK long and in different allocations.
            let result = unsafe { sys::cuMemcpyDtoDAsync_v2(to, block, BLOCK, on.stream().raw()) };
            check("cuMemcpyDtoDAsync", result).unwrap();
            // SAFETY: allocated above for this stream, on which all its uses are queued.
            unsafe { pool.free(block, BLOCK) }.unwrap();
        }
        rig.finish();
        let mut found = vec![0u8; BATCH * BLOCK];
        results.download(0, &mut found).unwrap();
        for (slot, block) in found.chunks(BLOCK).enumerate() {
            let tag = ((batch * BATCH + slot + 1) as u32).to_ne_bytes();
            assert!(block.chunks(4).all(|word| word == tag), "hand-over {slot} of batch {batch}");
        }
        results.fill(0).unwrap();
    }
    let books = pool.statistics();
    println!("{} hand-overs: {:?}", wanted.div_ceil(BATCH) * BATCH, books.found);
    assert!(books.found.waited > books.allocations / 2, "the writers were not late: {books:?}");
    // SAFETY: allocated above and never used.
    unsafe { pool.free(rest, SEGMENT - BLOCK) }.unwrap();
    pool.audit().unwrap();
}

fn filled(device: &CudaDevice, bytes: usize, byte: u8) -> PinnedBuffer {
    let mut pinned = PinnedBuffer::new(device, bytes).unwrap();
    pinned.fill(byte);
    pinned
}

#[test]
fn each_wait_of_a_copy_is_needed() {
    const BYTES: usize = 512 << 10;
    let mut rig = Rig::new();
    let device = rig.streams[A].clone();
    let mut buffer = DeviceBuffer::uninitialized(&device, 3 * CHUNK).unwrap();
    notices(Wait::PinnedReuse, &mut rig, |rig, round| {
        rig.late(A);
        buffer.upload_async(0, filled(&device, BYTES, round)).unwrap();
        // None of these may be the block that the copy still reads.
        let _others: Vec<_> = (0..4).map(|_| filled(&device, BYTES, !round)).collect();
        rig.read_late(A, buffer.address(), BYTES).iter().all(|&byte| byte == round)
    });
    notices(Wait::Download, &mut rig, |rig, round| {
        drop(filled(&device, BYTES, !round)); // the initial contents of the copy's target
        rig.late(A);
        buffer.fill(round).unwrap();
        let found = buffer.download_async(0, BYTES).unwrap().wait().unwrap();
        found.iter().all(|&byte| byte == round)
    });
    notices(Wait::ChunkReuse, &mut rig, |rig, round| {
        let source: Vec<u8> =
            (0..3).flat_map(|chunk| std::iter::repeat_n(round.wrapping_mul(3) + chunk, CHUNK)).collect();
        rig.late(A);
        buffer.upload(0, &source).unwrap();
        rig.read_late(A, buffer.address(), source.len()) == source
    });
}

#[test]
fn each_wait_between_tensors_is_needed() {
    const BYTES: usize = 1 << 20;
    let mut rig = Rig::new();
    let [a, b] = [A, B].map(|stream| rig.streams[stream].clone());
    let mut from = DeviceBuffer::uninitialized(&a, BYTES).unwrap();
    let mut to = DeviceBuffer::uninitialized(&b, BYTES).unwrap();
    notices(Wait::CopyAfterWriter, &mut rig, |rig, round| {
        rig.late(A);
        from.fill(round).unwrap();
        to.copy_across(&from, 0, BYTES).unwrap();
        rig.read_late(B, to.address(), BYTES).iter().all(|&byte| byte == round)
    });
    notices(Wait::WriterAfterCopy, &mut rig, |rig, round| {
        from.fill(round).unwrap();
        rig.finish();
        rig.late(B);
        to.copy_across(&from, 0, BYTES).unwrap();
        from.fill(!round).unwrap();
        rig.read_late(B, to.address(), BYTES).iter().all(|&byte| byte == round)
    });
}

/// Memory that a copy on another stream reads is not reused before the copy, although its owner has been dropped.
#[test]
fn a_source_that_is_dropped_is_read_first() {
    const BYTES: usize = 1 << 20;
    let mut rig = Rig::new();
    let [a, b] = [A, B].map(|stream| rig.streams[stream].clone());
    let mut to = DeviceBuffer::uninitialized(&b, BYTES).unwrap();
    notices(Wait::WriterAfterCopy, &mut rig, |rig, round| {
        let mut from = DeviceBuffer::uninitialized(&a, BYTES).unwrap();
        from.fill(round).unwrap();
        rig.finish();
        rig.late(B);
        to.copy_from(0, &from, 0, BYTES).unwrap();
        drop(from);
        let mut next = DeviceBuffer::uninitialized(&a, BYTES).unwrap();
        next.fill(!round).unwrap();
        rig.read_late(B, to.address(), BYTES).iter().all(|&byte| byte == round)
    });
}

#[test]
fn memory_of_a_graph_is_waited_for() {
    const BYTES: usize = 4 << 20;
    const LEFT_OUT: &str = "PASCALINE_TEST_GRAPH_MEMORY_LEFT_OUT";
    let mut rig = Rig::new();
    let [a, b] = [A, B].map(|stream| rig.streams[stream].clone());
    let pool = super::pool(&a).unwrap();
    let mut right = |rig: &mut Rig, round: u8| {
        pool.trim().unwrap();
        let mut block = DeviceBuffer::uninitialized(&b, BYTES).unwrap();
        rig.late(B);
        block.fill(!round).unwrap();
        drop(block);
        super::set_limit(&a, pool.statistics().reserved).unwrap(); // no other memory is available
        let captured = Graph::capture(&a, || {
            let mut memory = DeviceBuffer::uninitialized(&a, BYTES)?;
            memory.fill(round)?;
            Ok(memory)
        });
        super::set_limit(&a, usize::MAX).unwrap();
        let (graph, memory) = captured.unwrap();
        graph.launch().unwrap();
        rig.read_late(A, memory.address(), BYTES).iter().all(|&byte| byte == round)
    };
    if env::var_os(LEFT_OUT).is_some() {
        assert!(wrong(Some(Wait::GraphMemory), &mut rig, &mut right) > 0, "nothing notices it");
        return;
    }
    assert_eq!(wrong(None, &mut rig, &mut right), 0, "the wait in place");
    // Without it memory is written after it was freed: that shows as wrong bytes, or as a fault that ends a process.
    let output = Command::new(env::current_exe().unwrap())
        .args(["--exact", "memory::device_tests::memory_of_a_graph_is_waited_for", "--nocapture"])
        .env(LEFT_OUT, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() || text.contains("DeviceLost"), "{text}");
    assert!(text.contains("1 test"), "it did not run: {text}");
}

#[test]
fn each_wait_of_a_layer_stream_is_needed() {
    let mut rig = Rig::new();
    let bytes = if is_virtual() { 64 << 10 } else { 16 << 20 };
    const LAYERS: usize = 5;
    let device = rig.streams[A].clone();
    let mut layers = LayerStream::new(&device, bytes).unwrap();
    (0..LAYERS).for_each(|layer| layers.push(filled(&device, bytes, layer as u8 + 1)).unwrap());
    let places = layers.places().unwrap();
    assert!(layers.push(filled(&device, bytes + 1, 0)).is_err(), "more than a place has");
    let mut results = DeviceBuffer::uninitialized(&device, LAYERS * bytes).unwrap();
    assert!(layers.layer(LAYERS).is_err());
    for wait in [Wait::LayerUploaded, Wait::LayerReuse] {
        notices(wait, &mut rig, |rig, _| {
            results.fill(0).unwrap();
            for layer in 0..LAYERS {
                let from = places[layers.layer(layer).unwrap()].address();
                if wait == Wait::LayerReuse {
                    rig.late(A);
                }
                let to = results.address() + (layer * bytes) as u64;
                // SAFETY: both ranges are a layer long, in different allocations, and on this stream.
                let result = unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes, device.stream().raw()) };
                check("cuMemcpyDtoDAsync", result).unwrap();
            }
            let found = rig.read_late(A, results.address(), LAYERS * bytes);
            found.chunks(bytes).zip(1..).all(|(layer, byte)| layer.iter().all(|&found| found == byte))
        });
    }
}

/// Calls of `function` that `work` makes, with and without the wait.
fn calls(function: &str, wait: Wait, mut work: impl FnMut() -> Result<()>) -> [u64; 2] {
    [None, Some(wait)].map(|removed| {
        faults::count_calls(true);
        without(removed, &mut work).unwrap();
        let calls = faults::calls(function);
        faults::count_calls(false);
        calls
    })
}

#[test]
fn the_host_waits_before_memory_goes() {
    let rig = Rig::new();
    let device = &rig.streams[A];
    let (plain, [a, _]) = (PlainMemory::new(device), rig.handles());
    let free = || {
        let block = plain.allocate(SEGMENT, &a)?;
        // SAFETY: allocated above and never used.
        unsafe { plain.free(block, SEGMENT, &a) }
    };
    assert_eq!(calls("cuStreamSynchronize", Wait::PlainFree, free), [1, 0]);
    let drop_large = || PinnedBuffer::new(device, 65 << 20).map(drop); // more than the pool keeps
    assert_eq!(calls("cuEventSynchronize", Wait::PinnedFree, drop_large), [1, 0]);
    let mut buffer = DeviceBuffer::uninitialized(device, 4096).unwrap();
    let drop_graph = || {
        let (graph, ()) = Graph::capture(device, || buffer.fill(1))?;
        graph.launch()?;
        device.synchronize() // one call in any case; the graph's own is the second
    };
    assert_eq!(calls("cuStreamSynchronize", Wait::GraphEnd, drop_graph), [2, 1]);
}
