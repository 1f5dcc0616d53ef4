//! Each wait of the pool is needed: without it, a writer that runs late causes wrong bytes or a wrong order.

use super::adaptor::{parse, replay};
use super::simulated::{Simulated, SimulatedStream};
use super::{MemoryPool, Statistics, Upstream};
use crate::Error;
use crate::mutation::{Wait, without};

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
                world.pool.free(block, BLOCK).unwrap();
                world.taken_at_once(world.b);
            }
            Wait::OtherUses => {
                // Both halves of the segment are in use, so the next allocation on `a` needs this block.
                let rest = world.pool.allocate(BLOCK, &world.a).unwrap();
                world.device.run_stream(world.a);
                world.device.check(world.b, block, BLOCK, 1);
                world.pool.record_use(block, &world.b).unwrap();
                world.pool.free(block, BLOCK).unwrap();
                world.taken_at_once(world.a);
                world.pool.free(rest, BLOCK).unwrap();
            }
            Wait::RetiredStream => {
                world.pool.free(block, BLOCK).unwrap();
                world.pool.retire(&world.a).unwrap();
                world.device.destroy(world.a);
                world.taken_at_once(world.b);
            }
            Wait::GiveBack => {
                world.pool.free(block, BLOCK).unwrap();
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
        pool.free(block, BLOCK).unwrap();
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
        blocks.iter().for_each(|&(block, bytes)| world.pool.free(block, bytes).unwrap());
        assert!(round == 0 || world.device.calls().is_empty(), "the driver is asked in a steady state");
        world.device.calls();
    }
}

#[test]
fn a_captured_stream_is_left_alone() {
    let world = World::new(2 * SEGMENT);
    let block = world.written_on_a();
    world.pool.free(block, BLOCK).unwrap();
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
    assert!(matches!(world.pool.retire(&world.a), Err(Error::DeviceLost { .. })));
    world.pool.free(block, BLOCK).unwrap();
    world.pool.free(other, BLOCK).unwrap();
    let device = world.device.clone();
    drop(world); // including the pool's drop
    assert_eq!(device.violations(), [""; 0]);
}

#[test]
fn sizes_that_overflow_are_errors_and_zero_bytes_are_nothing() {
    let world = World::new(64 << 20);
    for bytes in [usize::MAX, usize::MAX - 255, isize::MAX as usize, isize::MAX as usize - SEGMENT] {
        assert!(matches!(world.pool.allocate(bytes, &world.a), Err(Error::TooLarge { .. })), "{bytes}");
    }
    assert!(matches!(world.pool.allocate(1 << 50, &world.a), Err(Error::OutOfMemory { .. })));
    assert_eq!(world.pool.allocate(0, &world.a), Ok(0));
    assert_eq!(world.pool.free(0, 0), Ok(()));
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
    world.pool.free(big, 3 * SEGMENT).unwrap();
    let again = world.pool.allocate(3 * SEGMENT, &world.b).unwrap();
    world.device.write(world.b, again, 3 * SEGMENT, 2);
    world.device.check(world.a, old, BLOCK, 1);
    world.device.finish();
    assert_eq!(world.device.violations(), [""; 0]);
    assert_eq!(world.books().refused, 2);
}
