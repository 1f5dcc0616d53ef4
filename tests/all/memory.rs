//! The memory pool on the simulated device: its invariants on every operation of a random run.
//!
//! `PASCALINE_MEMORY_OPERATIONS=100000000 PASCALINE_MEMORY_WORLDS=16 cargo test --release --test all memory::random` makes the
//! long run: sixteen pools side by side, each with 16 threads, 8 streams and a seed of its own. It takes minutes.
//! `PASCALINE_MEMORY_SEED=N` is the first of the seeds. A seed also sets the device's size, from 24 GiB to 192 MiB: some
//! orders arise only where memory is short most of the time.
//!
//! A run depends on its seed and on the order in which its threads take their turns. A run that fails writes
//! that order down and prints the command that repeats it, operation for operation, on one thread.

use pascaline::Error;
use pascaline::memory::simulated::{Call, Simulated, SimulatedStream};
use pascaline::memory::{MemoryPool, Statistics};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::{env, fs};

const THREADS: usize = 16;
const STREAMS: usize = 8;
/// Bytes of the largest device.
const CAPACITY: usize = 24 << 30;

type Pool = MemoryPool<Simulated, Simulated>;

/// SplitMix64 (Steele, Lea, Flood 2014).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % limit as u64) as usize
    }

    /// 0 B to 1 GiB, every power of two as likely as the next.
    fn size(&mut self) -> usize {
        let bits = self.below(32);
        if bits == 0 { 0 } else { (1 << (bits - 1)) + self.below(1 << (bits - 1)) }
    }
}

/// The threads' shared state: the pool, and a shadow accounting that the pool's is compared with.
struct World {
    device: Simulated,
    pool: Pool,
    state: Mutex<Shadow>,
}

struct Shadow {
    streams: Vec<SimulatedStream>,
    /// Address → requested and rounded bytes.
    live: BTreeMap<u64, (usize, usize)>,
    live_bytes: usize,
    requested: usize,
    zero_sized: u64,
    invalid: u64,
    refused: u64,
    peak: usize,
    tag: u32,
    /// The threads in the order of their turns.
    turns: Vec<u8>,
}

#[derive(Clone)]
struct Block {
    address: u64,
    bytes: usize,
    tag: u32,
}

impl World {
    fn new(seed: u64) -> Self {
        let device = Simulated::new(CAPACITY >> (seed % 8), seed);
        let streams = (0..STREAMS).map(|_| device.stream()).collect();
        let pool = MemoryPool::new(device.clone(), device.clone(), device.stream());
        let shadow = Shadow {
            streams,
            live: BTreeMap::new(),
            live_bytes: 0,
            requested: 0,
            zero_sized: 0,
            invalid: 0,
            refused: 0,
            peak: 0,
            tag: 0,
            turns: Vec::new(),
        };
        Self { device, pool, state: Mutex::new(shadow) }
    }

    fn allocate(&self, shadow: &mut Shadow, random: &mut Random) -> Option<Block> {
        let bytes = random.size();
        let stream = shadow.streams[random.below(STREAMS)];
        let before = self.pool.statistics();
        self.device.calls();
        let result = self.pool.allocate(bytes, &stream);
        check_order(&self.device.calls());
        match result {
            Ok(0) => {
                assert_eq!(bytes, 0);
                shadow.zero_sized += 1;
                None
            }
            Ok(address) => {
                let rounded = self.pool.statistics().live - before.live;
                assert!(rounded >= bytes && rounded.is_multiple_of(256), "{bytes}: {rounded}");
                assert!(address.is_multiple_of(256), "P2: {address:#x}");
                let below = shadow.live.range(..address + rounded as u64).next_back();
                assert!(
                    below.is_none_or(|(&base, &(_, size))| base + size as u64 <= address),
                    "P1: {address:#x}, {rounded} bytes, overlaps {below:x?}"
                );
                shadow.live.insert(address, (bytes, rounded));
                shadow.live_bytes += rounded;
                shadow.requested += bytes;
                shadow.tag += 1;
                let block = Block { address, bytes, tag: shadow.tag };
                self.device.write(stream, address, rounded, block.tag); // P3: the device checks it
                Some(block)
            }
            Err(Error::OutOfMemory { .. }) => {
                shadow.refused += 1;
                let after = self.pool.statistics();
                assert_eq!((after.live, after.requested), (before.live, before.requested), "P7");
                assert_eq!(after.allocations, before.allocations, "P7");
                assert!(after.reserved <= before.reserved, "P7");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn free(&self, shadow: &mut Shadow, random: &mut Random, block: &Block) {
        let rounded = shadow.live[&block.address].1;
        while random.below(4) == 0 {
            let other = shadow.streams[random.below(STREAMS)];
            self.device.check(other, block.address, rounded, block.tag);
            self.pool.record_use(block.address, &other).unwrap();
        }
        // SAFETY: a simulated device has no memory behind its addresses.
        unsafe { self.pool.free(block.address, block.bytes) }.unwrap();
        shadow.live.remove(&block.address);
        shadow.live_bytes -= rounded;
        shadow.requested -= block.bytes;
    }

    /// P9: what is not live, or of another size, is refused and counted.
    fn free_wrongly(&self, shadow: &mut Shadow, random: &mut Random, block: Option<&Block>) {
        let (address, bytes) = match (block, random.below(3)) {
            (Some(block), 0) => (block.address, block.bytes + 1),
            (Some(block), 1) => (block.address + 256, block.bytes),
            _ => (random.size() as u64 | 1 << 60, 256),
        };
        if shadow.live.get(&address).is_none_or(|&(requested, _)| requested != bytes) {
            shadow.invalid += 1;
            // SAFETY: a simulated device has no memory behind its addresses.
            let freed = unsafe { self.pool.free(address, bytes) };
            assert!(matches!(freed, Err(Error::Unsupported { op: "free", .. })), "P9");
        }
    }

    fn replace_stream(&self, shadow: &mut Shadow, random: &mut Random) {
        let index = random.below(STREAMS);
        // SAFETY: the stream is destroyed next.
        unsafe { self.pool.retire(&shadow.streams[index]) }.unwrap();
        self.device.destroy(shadow.streams[index]);
        shadow.streams[index] = self.device.stream();
    }

    /// P4, P5 and P9, against the shadow accounting and against upstream's.
    fn check(&self, shadow: &mut Shadow) {
        let now: Statistics = self.pool.statistics();
        assert_eq!(now.live + now.free + now.pending, now.reserved, "P4: {now:?}");
        assert_eq!((now.live, now.requested), (shadow.live_bytes, shadow.requested), "P4: {now:?}");
        assert_eq!(now.reserved, self.device.allocated(), "P4: {now:?}");
        assert!(now.peak_live >= now.live && now.peak_reserved >= now.reserved, "P5: {now:?}");
        shadow.peak = shadow.peak.max(now.live);
        assert_eq!(now.peak_live, shadow.peak, "P5: {now:?}");
        assert_eq!((now.invalid_frees, now.refused), (shadow.invalid, shadow.refused), "P9: {now:?}");
        assert_eq!(now.allocations - now.frees, shadow.live.len() as u64);
    }

    fn finish(&self) -> Statistics {
        assert_eq!(self.device.violations(), [""; 0], "P3");
        let last = self.pool.statistics();
        assert_eq!((last.live, self.pool.leaks().len()), (0, 0), "P6");
        self.device.refuse(0);
        self.pool.trim().unwrap();
        let trimmed = self.pool.statistics();
        assert_eq!((trimmed.reserved, trimmed.free, trimmed.pending), (0, 0, 0), "P6: {trimmed:?}");
        assert_eq!(self.device.allocated(), 0, "P6");
        self.pool.audit().unwrap();
        self.device.finish();
        assert_eq!(self.device.violations(), [""; 0], "P3");
        last
    }
}

/// P8: questions about events, upstream (perhaps twice: with and without slack), waits on the GPU, segments given
/// back, upstream once more; each only after the one before was refused.
fn check_order(calls: &[Call]) {
    let stage = |call: &Call, asked: usize| match call {
        Call::Query { .. } => 0,
        Call::Allocate { .. } if asked == 0 => 1,
        Call::Wait => 2,
        Call::Free { .. } | Call::Trim => 3,
        _ => 4,
    };
    let (mut at, mut given) = (0, false);
    let mut last_was_upstream = false;
    for call in calls {
        assert!(!given, "P8: a call after memory was found: {calls:?}");
        if *call == Call::Record {
            continue; // belongs to the question or the wait that follows
        }
        let mut next = stage(call, at);
        if matches!(call, Call::Allocate { .. }) {
            next = if at <= 1 { 1 } else { 4 };
        }
        // Returning a segment waits too, for the stream in whose order it is returned.
        let giving_back = at == 3 && next == 2;
        assert!(next >= at || giving_back, "P8: {calls:?}");
        assert!(next < 2 || at >= 1, "P8: upstream was not asked first: {calls:?}");
        assert!(!(last_was_upstream && at == 4), "P8: a call after the last request to upstream: {calls:?}");
        at = at.max(next);
        last_was_upstream = matches!(call, Call::Allocate { .. }) && at == 4;
        given = matches!(call, Call::Allocate { refused: false, .. });
    }
}

/// The blocks that one of the threads holds, and its progress.
struct Actor {
    random: Random,
    blocks: Vec<Block>,
    operation: u64,
    operations: u64,
}

impl Actor {
    fn new(seed: u64, thread: usize, operations: u64) -> Self {
        let random = Random(seed << 32 | thread as u64);
        Self { random, blocks: Vec::new(), operation: 0, operations: operations / THREADS as u64 }
    }

    /// The next operation; after the last, one block is freed. False when none is left.
    fn turn(&mut self, world: &World, shadow: &mut Shadow) -> bool {
        let (random, blocks) = (&mut self.random, &mut self.blocks);
        if self.operation == self.operations {
            let Some(block) = blocks.pop() else { return false };
            world.free(shadow, random, &block);
            world.check(shadow);
            return true;
        }
        match random.below(400) {
            0..4 => world.replace_stream(shadow, random),
            4..12 => {
                let index = random.below(blocks.len().max(1));
                world.free_wrongly(shadow, random, blocks.get(index))
            }
            12 => drop(world.pool.trim().unwrap()),
            roll if roll % 2 == 0 && blocks.len() < 24 => blocks.extend(world.allocate(shadow, random)),
            _ if !blocks.is_empty() => {
                let block = blocks.swap_remove(random.below(blocks.len()));
                world.free(shadow, random, &block);
            }
            _ => {}
        }
        // Now the GPU keeps up, now it falls behind.
        let slow = self.operation % 256 < 16;
        world.device.run(if slow { random.below(8) / 7 } else { random.below(3) });
        world.check(shadow);
        if self.operation.is_multiple_of(4096) {
            world.pool.audit().unwrap();
        }
        self.operation += 1;
        true
    }
}

/// Runs the actors on threads, in whatever order these come.
fn on_threads(world: &World, actors: &mut [Actor]) {
    let progress = [const { AtomicU64::new(0) }; THREADS];
    std::thread::scope(|scope| {
        for (thread, actor) in actors.iter_mut().enumerate() {
            let progress = &progress;
            scope.spawn(move || {
                // Operations after a failure would tell no more about it.
                while let Ok(mut shadow) = world.state.lock() {
                    shadow.turns.push(thread as u8);
                    if !actor.turn(world, &mut shadow) {
                        break;
                    }
                    drop(shadow);
                    if actor.operation % 256 == 1 {
                        keep_together(&world.state, progress, thread, actor.operation);
                    }
                }
                progress[thread].store(u64::MAX, Ordering::Relaxed);
            });
        }
    });
}

/// Waits for threads that are far behind: run one after the other, they would never be short of memory together.
fn keep_together(state: &Mutex<Shadow>, progress: &[AtomicU64], thread: usize, operation: u64) {
    progress[thread].store(operation, Ordering::Relaxed);
    let behind = |other: &AtomicU64| other.load(Ordering::Relaxed) < operation.saturating_sub(1024);
    while !state.is_poisoned() && progress.iter().any(behind) {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// Runs the actors in this order, and then the rest of each in turn.
fn in_order(world: &World, actors: &mut [Actor], turns: &[u8]) {
    let mut shadow = world.state.lock().unwrap();
    for &thread in turns {
        shadow.turns.push(thread);
        actors[usize::from(thread)].turn(world, &mut shadow);
    }
    while actors.iter_mut().map(|actor| actor.turn(world, &mut shadow)).filter(|&more| more).count() > 0 {}
}

/// Runs one world from its beginning to its end. Returns its statistics and its turns. `turns`: those of an earlier run.
fn run(seed: u64, operations: u64, turns: Option<&[u8]>) -> (Statistics, Vec<u8>) {
    let world = World::new(seed);
    world.device.refuse(1);
    let mut actors: Vec<_> = (0..THREADS).map(|thread| Actor::new(seed, thread, operations)).collect();
    let run = || match turns {
        Some(turns) => in_order(&world, &mut actors, turns),
        None => on_threads(&world, &mut actors),
    };
    let ended = catch_unwind(AssertUnwindSafe(run)).and_then(|()| {
        catch_unwind(AssertUnwindSafe(|| world.finish())) // before a run counts as passed
    });
    let turns = std::mem::take(&mut world.state.lock().unwrap_or_else(PoisonError::into_inner).turns);
    match ended {
        Ok(statistics) => (statistics, turns),
        Err(failure) => {
            let file = format!("{}/memory-{seed}.turns", env!("CARGO_TARGET_TMPDIR"));
            let written = fs::write(&file, &turns).map_or_else(|error| error.to_string(), |()| file);
            eprintln!(
                "seed {seed} failed in turn {}; PASCALINE_MEMORY_OPERATIONS={operations} \
                 PASCALINE_MEMORY_WORLDS=1 PASCALINE_MEMORY_SEED={seed} PASCALINE_MEMORY_TURNS={written} \
                 cargo test --test all memory::random repeats it",
                turns.len()
            );
            resume_unwind(failure)
        }
    }
}

#[test]
fn random_operations_keep_every_invariant() {
    let number = |name: &str, default: u64| env::var(name).map_or(default, |n| n.parse().expect("a number"));
    let operations = number("PASCALINE_MEMORY_OPERATIONS", 1_000_000);
    let worlds = number("PASCALINE_MEMORY_WORLDS", 4).max(1);
    let first = number("PASCALINE_MEMORY_SEED", 1);
    let turns = env::var_os("PASCALINE_MEMORY_TURNS").map(|file| fs::read(file).expect("a file of turns"));
    std::thread::scope(|scope| {
        for seed in first..first + worlds {
            let turns = turns.as_deref();
            scope.spawn(move || {
                let (last, _) = run(seed, operations / worlds, turns);
                println!("{} operations with seed {seed}: {last:?}", operations / worlds);
                let found = last.found;
                for (way, count) in [
                    ("same stream", found.same_stream),
                    ("ready", found.ready),
                    ("upstream", found.upstream),
                    ("waited", found.waited),
                    ("trimmed", found.trimmed),
                    ("refused", last.refused),
                ] {
                    assert!(count > 0, "the run with seed {seed} never reached: {way}");
                }
            });
        }
    });
}

/// A failure can be repeated: with the turns of a run on threads, one thread makes the same operations.
#[test]
fn a_run_is_repeated_by_its_turns() {
    let (on_threads, turns) = run(11, 40_000, None);
    let (again, turns_again) = run(11, 40_000, Some(&turns));
    assert_eq!((again, turns_again.len()), (on_threads, turns.len()));
}

mod conformance {
    //! The conformance suite of all sources of memory, run on each upstream and adaptor.

    use super::{Random, Shadow, World};
    use crate::common::process::in_own_process;
    use pascaline::memory::adaptor::{Counted, Entry, Limit, Trace, parse, replay, to_text};
    use pascaline::memory::simulated::{Simulated, SimulatedStream};
    use pascaline::memory::{CudaTimeline, DriverPool, MemoryPool, PlainMemory, StreamHandle, Upstream};
    use pascaline::{Device, Error, Result};

    const SIZES: [usize; 14] =
        [1, 2, 255, 256, 257, 1000, 4096, 16384, 16385, 65537, 1 << 20, (1 << 20) + 1, 3 << 20, 5 << 20];

    /// [`Upstream::free`] of a block that nothing reads, or of none.
    fn free<S>(memory: &(impl Upstream<S> + ?Sized), address: u64, bytes: usize, stream: &S) -> Result<()> {
        // SAFETY: the tests here allocate blocks and queue no work that uses them.
        unsafe { memory.free(address, bytes, stream) }
    }

    fn conforms<S: Sync>(name: &str, memory: &dyn Upstream<S>, streams: &[S]) {
        // Aligned and disjoint.
        let mut blocks = Vec::new();
        for round in 0..3 {
            for (index, &bytes) in SIZES.iter().enumerate() {
                let stream = &streams[(index + round) % streams.len()];
                let address = memory.allocate(bytes, stream).unwrap();
                assert!(address != 0 && address.is_multiple_of(256), "{name}: {address:#x}");
                blocks.push((address, bytes, stream));
            }
        }
        let mut ranges: Vec<_> = blocks.iter().map(|&(at, bytes, _)| (at, at + bytes as u64)).collect();
        ranges.sort_unstable();
        assert!(ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{name}: {ranges:x?}");
        // Far too much is refused, and nothing else suffers.
        let refused = memory.allocate(1 << 46, &streams[0]);
        assert!(matches!(refused, Err(Error::OutOfMemory { .. })), "{name}: {refused:?}");
        for &(address, bytes, stream) in blocks.iter().rev() {
            free(memory, address, bytes, stream).unwrap();
        }
        // Only live memory can be freed, and freed memory can be allocated again.
        let (address, bytes, stream) = blocks[10];
        assert!(free(memory, address, bytes, stream).is_err(), "{name}: freed twice");
        for _ in 0..100 {
            let address = memory.allocate(1 << 20, stream).unwrap();
            free(memory, address, 1 << 20, stream).unwrap();
        }
        // From several threads.
        std::thread::scope(|scope| {
            for thread in 0..4 {
                scope.spawn(move || {
                    let mut random = Random(thread);
                    for _ in 0..50 {
                        let bytes = 1 + random.below(1 << 20);
                        let stream = &streams[random.below(streams.len())];
                        let address = memory.allocate(bytes, stream).unwrap();
                        free(memory, address, bytes, stream).unwrap();
                    }
                });
            }
        });
        memory.trim().unwrap();
        let address = memory.allocate(1, stream).unwrap();
        free(memory, address, 1, stream).unwrap();
        memory.trim().unwrap();
    }

    #[test]
    fn on_the_simulated_device() {
        let device = Simulated::with_contents(256 << 20, 7);
        let (a, b) = (device.stream(), device.stream());
        let pool = || MemoryPool::new(device.clone(), device.clone(), device.stream());
        conforms("simulated", &device, &[a, b]);
        conforms("limit", &Limit::new(device.clone(), 1 << 40), &[a, b]);
        conforms("counted", &Counted::new(device.clone()), &[a, b]);
        conforms("trace", &Trace::new(device.clone()), &[a, b]);
        conforms("pool", &pool(), &[a, b]);
        conforms("pool over pool", &MemoryPool::new(device.clone(), pool(), device.stream()), &[a, b]);
        let limited = Limit::new(Counted::new(device.clone()), 128 << 20);
        let pool_over = MemoryPool::new(device.clone(), limited, device.stream());
        conforms("pool over limit over counted", &pool_over, &[a, b]);
        conforms("trace over pool", &Trace::new(pool()), &[a, b]);
        drop(pool_over);
        device.finish();
        assert_eq!(device.violations(), [""; 0]);
        assert_eq!(device.allocated(), 0);
    }

    #[test]
    fn on_a_cuda_device() {
        in_own_process!();
        let Device::Cuda(device) = crate::common::cuda_device() else {
            unreachable!("a CUDA device was asked for")
        };
        let handles = [&device, &device.with_new_stream().unwrap()].map(StreamHandle::new);
        let plain = || PlainMemory::new(&device);
        conforms("cuMemAlloc", &plain(), &handles);
        let service = || StreamHandle::new(&device.with_new_stream().unwrap());
        let pool = MemoryPool::new(CudaTimeline::new(&device), plain(), service());
        conforms("pool over cuMemAlloc", &pool, &handles);
        match DriverPool::new(&device) {
            Ok(driver) => {
                conforms("driver pool", &driver, &handles);
                let pool = MemoryPool::new(CudaTimeline::new(&device), driver, service());
                conforms("pool over driver pool", &pool, &handles);
            }
            Err(error) => println!("SKIPPED: {error}"),
        }
        conforms("the device's pool", &*pascaline::memory::pool(&device).unwrap(), &handles);
    }

    #[test]
    fn a_limit_holds() {
        let device = Simulated::new(1 << 30, 1);
        let stream = device.stream();
        let limit = Limit::new(device.clone(), 1000);
        let block = limit.allocate(600, &stream).unwrap();
        let refused = limit.allocate(401, &stream);
        let expected =
            Error::OutOfMemory { device: "the memory limit".into(), requested: 401, free: 400, total: 1000 };
        assert_eq!(refused, Err(expected));
        assert!(limit.allocate(usize::MAX, &stream).is_err());
        let other = limit.allocate(400, &stream).unwrap();
        limit.set_limit(500);
        free(&limit, block, 600, &stream).unwrap();
        assert!(limit.allocate(101, &stream).is_err());
        free(&limit, other, 400, &stream).unwrap();
        assert_eq!((limit.used(), device.allocated()), (0, 0));
        device.refuse(100);
        assert!(limit.allocate(1, &stream).is_err());
        assert_eq!(limit.used(), 0, "what upstream refuses does not count");
    }

    #[test]
    fn counts_are_exact() {
        let device = Simulated::new(1 << 20, 1);
        let stream = device.stream();
        let counted = Counted::new(device.clone());
        let blocks: Vec<_> = (1..=3).map(|i| counted.allocate(i * 1000, &stream).unwrap()).collect();
        free(&counted, blocks[1], 2000, &stream).unwrap();
        assert!(
            counted.allocate(2 << 20, &stream).is_err() && free(&counted, blocks[1], 2000, &stream).is_err()
        );
        let traffic = counted.traffic();
        assert_eq!((traffic.bytes, traffic.peak_bytes, traffic.allocations), (4000, 6000, 3));
        assert_eq!((traffic.frees, traffic.refused, traffic.errors), (1, 1, 1));
    }

    #[test]
    fn a_trace_replays_to_the_same_statistics() {
        let world = World::new(3);
        let mut random = Random(3);
        let streams: Vec<SimulatedStream> = world.state.lock().map(|shadow| shadow.streams.clone()).unwrap();
        let trace =
            Trace::new(MemoryPool::new(world.device.clone(), world.device.clone(), world.device.stream()));
        let mut live = Vec::new();
        for _ in 0..2000 {
            let stream = streams[random.below(4)];
            if random.below(2) == 0 || live.is_empty() {
                let bytes = 1 + random.below(1 << 20);
                live.push((trace.allocate(bytes, &stream).unwrap(), bytes));
            } else {
                let (address, bytes) = live.swap_remove(random.below(live.len()));
                free(&trace, address, bytes, &stream).unwrap();
            }
        }
        let entries = trace.entries();
        assert_eq!(entries.len(), 2000);
        assert_eq!(parse(&to_text(&entries)), Ok(entries.clone()));
        let again =
            Trace::new(MemoryPool::new(world.device.clone(), world.device.clone(), world.device.stream()));
        replay(&entries, &again, &streams).unwrap();
        assert_eq!(again.entries()[..2000], entries[..]);
        let (first, second) = (trace.inner().statistics(), again.inner().statistics());
        assert_eq!((first.peak_live, first.allocations), (second.peak_live, second.allocations));
        assert_eq!(second.live, 0, "what the trace leaves live is freed");
    }

    #[test]
    fn lines_that_are_no_trace_are_named() {
        assert_eq!(
            parse("# nothing\n\n a 0 256 1 # ours\nf 0 1"),
            Ok(vec![
                Entry::Allocate { block: 0, bytes: 256, stream: 1 },
                Entry::Free { block: 0, stream: 1 },
            ])
        );
        for (text, line) in [
            ("a 0 256", 1),
            ("\nf 0 0", 2),
            ("a 0 1 0\na 0 1 0", 2),
            ("a 0 0 0", 1),
            ("a 0 -1 0", 1),
            ("x", 1),
        ] {
            assert_eq!(parse(text).map_err(|error| error.line), Err(line), "{text}");
        }
    }

    /// The random run's own check can fail: it detects a block that is freed too early.
    #[test]
    fn a_use_that_is_not_recorded_is_detected() {
        let world = World::new(5);
        let shadow: &mut Shadow = &mut world.state.lock().unwrap();
        let (a, b) = (shadow.streams[0], shadow.streams[1]);
        let block = world.pool.allocate(1 << 20, &a).unwrap();
        world.device.write(a, block, 1 << 20, 1);
        world.device.check(b, block, 1 << 20, 1); // not recorded by record_use
        // SAFETY: a simulated device has no memory behind its addresses.
        unsafe { world.pool.free(block, 1 << 20) }.unwrap();
        let again = world.pool.allocate(1 << 20, &a).unwrap();
        world.device.write(a, again, 1 << 20, 2);
        assert_eq!((again, world.device.violations().len()), (block, 1));
    }
}
