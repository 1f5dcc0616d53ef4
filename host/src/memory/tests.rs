//! Each wait of the pool is needed: without it, a writer that runs late causes wrong bytes or a wrong order.

use super::adaptor::{parse, replay};
use super::simulated::{Call, Simulated, SimulatedStream};
use super::{MemoryPool, Statistics, Upstream, slab};
use crate::mutation::{Wait, without};
use crate::{Error, Result};
use std::sync::Mutex;

/// The waits of the pool, which the simulated device checks.
const WAITS: [Wait; 6] = [
    Wait::ReadyQuery,
    Wait::FreshRecord,
    Wait::HandOver,
    Wait::OtherUses,
    Wait::RetiredStream,
    Wait::GiveBack,
];
const BLOCK: usize = 1 << 20;
const SEGMENT: usize = 2 << 20;

/// [`MemoryPool::free`] of memory that nothing reads.
fn free(pool: &MemoryPool<Simulated, Simulated>, address: u64, bytes: usize) -> Result<()> {
    // SAFETY: a simulated device has no memory behind its addresses.
    unsafe { pool.free(address, bytes) }
}

/// [`MemoryPool::retire`] of a stream that nothing runs on.
fn retire(pool: &MemoryPool<Simulated, Simulated>, stream: &SimulatedStream) -> Result<()> {
    // SAFETY: a simulated stream runs no work.
    unsafe { pool.retire(stream) }
}

struct World {
    device: Simulated,
    pool: MemoryPool<Simulated, Simulated>,
    a: SimulatedStream,
    b: SimulatedStream,
}

impl World {
    fn new(capacity: usize) -> Self {
        let device = Simulated::with_contents(capacity, 1);
        let (a, b) = (device.stream(), device.stream());
        let pool = MemoryPool::new(device.clone(), device.clone(), device.stream());
        Self { device, pool, a, b }
    }

    /// A block that late work on `a` writes and reads.
    fn written_on_a(&self) -> u64 {
        let block = self.pool.allocate(BLOCK, &self.a).unwrap();
        self.device.write(self.a, block, BLOCK, 1);
        self.device.check(self.a, block, BLOCK, 1);
        block
    }

    /// A block on `stream`, written with 2 as soon as its order allows, before anything else runs.
    fn taken_at_once(&self, stream: SimulatedStream) -> u64 {
        let block = self.pool.allocate(BLOCK, &stream).unwrap();
        self.device.write(stream, block, BLOCK, 2);
        self.device.run_stream(stream);
        self.device.run_stream(self.a);
        self.device.run_stream(self.b);
        self.device.check(stream, block, BLOCK, 2);
        block
    }

    fn books(&self) -> Statistics {
        self.pool.statistics()
    }
}

/// The device's violations in a sequence of events where only `wait` keeps memory safe.
fn violations(wait: Wait, removed: bool) -> Vec<String> {
    without(removed.then_some(wait), || {
        // Most cases have one segment: then new memory can't replace a wait.
        let world = World::new(if wait == Wait::ReadyQuery { 2 * SEGMENT } else { SEGMENT });
        let block = world.written_on_a();
        match wait {
            Wait::ReadyQuery | Wait::FreshRecord | Wait::HandOver => {
                free(&world.pool, block, BLOCK).unwrap();
                world.taken_at_once(world.b);
            }
            Wait::OtherUses => {
                // Both halves of the segment are in use, so the next allocation on `a` needs this block.
                let rest = world.pool.allocate(BLOCK, &world.a).unwrap();
                world.device.run_stream(world.a);
                world.device.check(world.b, block, BLOCK, 1);
                world.pool.record_use(block, &world.b).unwrap();
                free(&world.pool, block, BLOCK).unwrap();
                world.taken_at_once(world.a);
                free(&world.pool, rest, BLOCK).unwrap();
            }
            Wait::RetiredStream => {
                free(&world.pool, block, BLOCK).unwrap();
                retire(&world.pool, &world.a).unwrap();
                world.device.destroy(world.a);
                world.taken_at_once(world.b);
            }
            Wait::GiveBack => {
                free(&world.pool, block, BLOCK).unwrap();
                assert_eq!(world.pool.trim(), Ok(SEGMENT));
            }
            _ => unreachable!("not of the pool"),
        }
        world.device.finish();
        world.pool.audit().unwrap();
        world.device.violations()
    })
}

#[test]
fn what_is_idle_goes_back_when_asked_and_with_the_pool() {
    let World { device, pool, a, .. } = World::new(4 * SEGMENT);
    let used = || {
        let block = pool.allocate(BLOCK, &a).unwrap();
        free(&pool, block, BLOCK).unwrap();
        device.finish();
    };
    for _ in 0..2 {
        used();
        Upstream::trim(&pool).unwrap();
        assert_eq!(device.allocated(), 0);
    }
    let books = pool.statistics();
    assert_eq!((books.segments_asked, books.segments_returned), (2, 2));
    used();
    used();
    used();
    let books = pool.statistics();
    assert_eq!((books.found.same_stream, books.segments_asked), (2, 3));
    assert_eq!(books.largest_free, SEGMENT);
    assert!(device.allocated() > 0);
    drop(pool);
    assert_eq!(device.allocated(), 0);
}

#[test]
fn fragmentation_is_the_share_of_idle_memory_outside_the_largest_piece() {
    let of = |free, pending, largest_free| {
        Statistics { free, pending, largest_free, ..Statistics::default() }.fragmentation()
    };
    assert_eq!((of(0, 0, 0), of(100, 0, 100), of(60, 40, 25)), (0.0, 0.0, 0.75));
}

#[test]
fn no_wait_can_be_left_out() {
    for wait in WAITS {
        assert_eq!(violations(wait, false), [""; 0], "{wait:?} in place");
        let found = violations(wait, true);
        assert!(!found.is_empty(), "nothing notices that {wait:?} is left out");
        println!("{wait:?} left out: {}", found.join("; "));
    }
}

#[test]
fn late_writers_show_as_wrong_bytes() {
    // A block used on `a` is reused on `b` without an event; `b` writes first, then the late writer of `a`.
    let found = violations(Wait::HandOver, true);
    assert!(found.iter().any(|violation| violation.ends_with("hold 1, not 2")), "{found:?}");
    let found = violations(Wait::RetiredStream, true);
    assert!(found.iter().any(|violation| violation.ends_with("hold 1, not 2")), "{found:?}");
}

#[test]
fn one_stream_asks_for_no_events() {
    let world = World::new(64 << 20);
    world.device.calls();
    for round in 0..100 {
        let blocks: Vec<_> =
            (0..20).map(|i| (world.pool.allocate(i << 12, &world.a).unwrap(), i << 12)).collect();
        blocks.iter().for_each(|&(block, bytes)| free(&world.pool, block, bytes).unwrap());
        assert!(round == 0 || world.device.calls().is_empty(), "the driver is asked in a steady state");
        world.device.calls();
    }
    world.pool.allocate(8 * SEGMENT, &world.a).unwrap();
    let grown = Call::Allocate { bytes: 8 * SEGMENT, refused: false };
    assert_eq!(world.device.calls(), [grown], "all idle memory is the stream's own");
}

/// By a quarter of what is reserved, if upstream has that much, else by just enough. No size is asked for twice in a row.
#[test]
fn the_pool_grows_by_a_quarter() {
    const MIB: usize = 1 << 20;
    let World { device, pool, a, .. } = World::new(24 * MIB);
    let calls = |bytes| {
        device.calls();
        let _ = pool.allocate(bytes, &a);
        device.calls()
    };
    let (given, refused) = (
        |mib| Call::Allocate { bytes: mib * MIB, refused: false },
        |mib| Call::Allocate { bytes: mib * MIB, refused: true },
    );
    assert_eq!(calls(16 * MIB), [given(16)]);
    assert_eq!(calls(MIB), [given(4)]);
    assert_eq!(calls(4 * MIB), [refused(6), given(4)]);
    for mib in [6, 8] {
        assert_eq!(calls(mib * MIB), [refused(mib), Call::Trim, refused(mib)]);
    }
    let books = pool.statistics();
    assert_eq!((books.found.upstream, books.found.trimmed, books.refused), (3, 0, 2));
    assert_eq!((books.reserved, books.free), (24 * MIB, 3 * MIB));
}

/// Memory whose last use is done is found before new memory is asked for, also when all of it waits for several streams.
#[test]
fn pending_memory_is_asked_about_first() {
    let World { device, pool, a, b } = World::new(4 * SEGMENT);
    let block = pool.allocate(SEGMENT, &a).unwrap();
    pool.record_use(block, &b).unwrap();
    free(&pool, block, SEGMENT).unwrap();
    assert_eq!(pool.statistics().pending, SEGMENT);
    // the first question queues the events, which are reached as soon as they run
    pool.settle().unwrap();
    device.finish();
    assert_eq!(pool.allocate(SEGMENT, &a), Ok(block));
    assert_eq!((pool.statistics().found.ready, pool.statistics().segments_asked), (1, 1));
}

/// A wait takes one block from another stream, not all that it has.
#[test]
fn a_wait_is_for_one_block() {
    let World { device, pool, a, b } = World::new(2 * SEGMENT);
    let blocks = [(); 2].map(|()| pool.allocate(SEGMENT, &a).unwrap());
    for block in blocks {
        device.write(a, block, SEGMENT, 1);
        free(&pool, block, SEGMENT).unwrap();
    }
    pool.allocate(SEGMENT, &b).unwrap();
    pool.allocate(SEGMENT, &a).unwrap();
    let found = pool.statistics().found;
    assert_eq!((found.waited, found.same_stream), (1, 1));
}

#[test]
fn events_are_recorded_and_queried_once_per_epoch() {
    let World { device, pool, a, .. } = World::new(4 * SEGMENT);
    let settled = || {
        device.calls();
        pool.settle().unwrap();
        device.calls()
    };
    for _ in 0..2 {
        let block = pool.allocate(BLOCK, &a).unwrap();
        free(&pool, block, BLOCK).unwrap();
        assert_eq!(settled(), [Call::Record, Call::Query { done: false }]);
        assert_eq!(settled(), [Call::Query { done: false }]);
        device.run_stream(a);
        assert_eq!(settled(), [Call::Query { done: true }]);
        assert_eq!(settled(), []);
    }
}

/// A stream of which only the pool has a handle is released when another one comes, and its memory is free when it is done.
#[test]
fn abandoned_streams_are_released() {
    let World { device, pool, a, b } = World::new(8 * SEGMENT);
    let kept = pool.allocate(BLOCK, &a).unwrap();
    let block = pool.allocate(SEGMENT, &b).unwrap();
    free(&pool, block, SEGMENT).unwrap();
    let idle = || (pool.statistics().free, pool.statistics().pending);
    assert_eq!(idle(), (BLOCK + SEGMENT, 0));
    device.abandon(b);
    let [c, d] = [(); 2].map(|()| device.stream());
    pool.record_use(kept, &c).unwrap();
    assert_eq!(idle(), (BLOCK, SEGMENT), "no stream can use it now");
    device.finish();
    device.abandon(c);
    pool.record_use(kept, &d).unwrap();
    assert_eq!(idle(), (BLOCK + SEGMENT, 0));
    device.calls();
    pool.record_use(kept, &device.stream()).unwrap();
    assert_eq!(device.calls(), [], "nothing is asked where none is abandoned");
    pool.audit().unwrap();
}

#[test]
fn slots_of_a_stream_that_is_gone_go_to_others() {
    let World { device, pool, a, b } = World::new(8 * SEGMENT);
    pool.allocate(256, &a).unwrap();
    let [slot, _used] = [(); 2].map(|()| pool.allocate(256, &b).unwrap());
    free(&pool, slot, 256).unwrap();
    retire(&pool, &b).unwrap();
    device.finish();
    assert_eq!(pool.allocate(256, &device.stream()), Ok(slot));
    pool.audit().unwrap();
}

/// A stream that was given another's slabs, and never used them, passes on what they wait for.
#[test]
fn slabs_that_move_twice_wait_for_their_first_stream() {
    let World { device, pool, a, b } = World::new(SEGMENT);
    let c = device.stream();
    let slots = [256, 256].map(|bytes| pool.allocate(bytes, &a).unwrap()); // one of them keeps the slab
    device.write(a, slots[0], 256, 1);
    device.check(a, slots[0], 256, 1);
    let rest = pool.allocate(SEGMENT - slab::SLAB, &a).unwrap();
    free(&pool, slots[0], 256).unwrap();
    assert!(matches!(pool.allocate(BLOCK, &b), Err(Error::OutOfMemory { .. }))); // the slab is now b's
    assert_eq!(pool.allocate(256, &c), Ok(slots[0]));
    device.write(c, slots[0], 256, 2);
    device.run_stream(c);
    device.run_stream(a);
    device.check(c, slots[0], 256, 2);
    free(&pool, slots[0], 256).unwrap();
    free(&pool, slots[1], 256).unwrap();
    free(&pool, rest, SEGMENT - slab::SLAB).unwrap();
    device.finish();
    assert_eq!(device.violations(), [""; 0]);
}

/// Memory from upstream must be aligned, have an address, and not overlap memory that is live.
#[test]
fn memory_that_cannot_be_is_refused() {
    struct Given(Mutex<Vec<u64>>);
    impl Upstream<SimulatedStream> for Given {
        fn allocate(&self, _: usize, _: &SimulatedStream) -> Result<u64> {
            Ok(self.0.lock().unwrap().pop().unwrap())
        }

        unsafe fn free(&self, _: u64, _: usize, _: &SimulatedStream) -> Result<()> {
            Ok(())
        }
    }
    let device = Simulated::new(0, 1);
    let stream = device.stream();
    let given = vec![(1 << 32) + SEGMENT as u64 - 256, 0, (1 << 33) + 128, 1 << 32];
    let pool = MemoryPool::new(device.clone(), Given(Mutex::new(given)), device.stream());
    assert_eq!(pool.allocate(SEGMENT, &stream), Ok(1 << 32));
    for _ in 0..3 {
        let refused = pool.allocate(SEGMENT, &stream);
        assert!(matches!(refused, Err(Error::Unsupported { argument: "address", .. })), "{refused:?}");
    }
    assert_eq!(pool.statistics().reserved, SEGMENT);
}

#[test]
fn a_captured_stream_is_left_alone() {
    let world = World::new(2 * SEGMENT);
    let block = world.written_on_a();
    free(&world.pool, block, BLOCK).unwrap();
    world.device.capture(world.a, true);
    let other = world.pool.allocate(2 * BLOCK, &world.b).unwrap();
    assert!(matches!(world.pool.allocate(2 * BLOCK, &world.b), Err(Error::OutOfMemory { .. })));
    world.device.capture(world.a, false);
    let third = world.pool.allocate(2 * BLOCK, &world.b).unwrap();
    assert_eq!(world.books().found.waited, 1);
    assert_ne!(other, third);
    world.device.finish();
    assert_eq!(world.device.violations(), [""; 0]);
}

#[test]
fn after_a_fault_nothing_is_asked_of_the_device() {
    let world = World::new(64 << 20);
    let (block, other) = (world.written_on_a(), world.written_on_a());
    world.pool.record_use(other, &world.b).unwrap();
    world.device.lose();
    assert!(matches!(world.pool.allocate(BLOCK, &world.a), Err(Error::DeviceLost { .. })));
    assert!(matches!(world.pool.trim(), Err(Error::DeviceLost { .. })));
    assert!(matches!(retire(&world.pool, &world.a), Err(Error::DeviceLost { .. })));
    free(&world.pool, block, BLOCK).unwrap();
    free(&world.pool, other, BLOCK).unwrap();
    let device = world.device.clone();
    drop(world); // including the pool's drop
    assert_eq!(device.violations(), [""; 0]);
}

#[test]
fn sizes_that_overflow_are_errors_and_zero_bytes_are_nothing() {
    let world = World::new(64 << 20);
    // the largest block leaves room for its segment to be rounded up
    let most = (isize::MAX as usize - 2 * SEGMENT) / 256 * 256;
    for bytes in [usize::MAX, usize::MAX - 255, isize::MAX as usize, isize::MAX as usize - SEGMENT, most + 1]
    {
        assert!(matches!(world.pool.allocate(bytes, &world.a), Err(Error::TooLarge { .. })), "{bytes}");
    }
    assert!(matches!(world.pool.allocate(most, &world.a), Err(Error::OutOfMemory { .. })));
    assert_eq!(world.pool.allocate(0, &world.a), Ok(0));
    assert_eq!(free(&world.pool, 0, 0), Ok(()));
    assert_eq!((world.books().live, world.books().refused, world.books().invalid_frees), (0, 1, 0));
}

#[test]
fn leaks_say_where_they_come_from() {
    let world = World::new(64 << 20);
    let (block, line) = (world.pool.allocate(1000, &world.a).unwrap(), line!());
    let leaks = world.pool.leaks();
    assert_eq!((leaks.len(), leaks[0].address, leaks[0].bytes), (1, block, 1000));
    let site = leaks[0].site.map(|site| (site.file().ends_with("memory/tests.rs"), site.line()));
    assert_eq!(site, cfg!(debug_assertions).then_some((true, line)));
}

#[test]
fn a_forward_pass_is_held_in_little_more_than_it_needs() {
    let trace = parse(include_str!("../../../tests/data/qwen3_vl_2b.trace")).unwrap();
    let device = Simulated::new(8 << 30, 1);
    let pool = MemoryPool::new(device.clone(), device.clone(), device.stream());
    let stream = [device.stream()];
    for pass in 0..3 {
        replay(&trace, &pool, &stream).unwrap();
        let books = pool.statistics();
        assert!(books.peak_reserved * 5 <= books.peak_live * 6, "pass {pass}: {books:?}");
    }
}

#[test]
fn after_out_of_memory_the_pool_works_on() {
    let world = World::new(4 * SEGMENT);
    let old = world.written_on_a();
    assert!(matches!(world.pool.allocate(5 * SEGMENT, &world.a), Err(Error::OutOfMemory { .. })));
    world.device.check(world.a, old, BLOCK, 1);
    let big = world.pool.allocate(3 * SEGMENT, &world.a).unwrap();
    assert!(matches!(world.pool.allocate(3 * SEGMENT, &world.b), Err(Error::OutOfMemory { .. })));
    free(&world.pool, big, 3 * SEGMENT).unwrap();
    let again = world.pool.allocate(3 * SEGMENT, &world.b).unwrap();
    world.device.write(world.b, again, 3 * SEGMENT, 2);
    world.device.check(world.a, old, BLOCK, 1);
    world.device.finish();
    assert_eq!(world.device.violations(), [""; 0]);
    assert_eq!(world.books().refused, 2);
}
