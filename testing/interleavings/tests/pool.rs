//! The pool's lock protocol: threads that share it, interleaved at every lock by shuttle's schedulers.
//!
//!     RUSTFLAGS="--cfg shuttle" cargo test --package pascaline-interleavings --target-dir target/shuttle
//!
//! Under `cfg(shuttle)` the pool and the simulated device take their locks from shuttle (`host/src/sync.rs`). The simulated device
//! judges each use of memory, and the pool's books must be right at every point at which another thread can run.
#![cfg(shuttle)]

use pascaline::Error;
use pascaline::memory::MemoryPool;
use pascaline::memory::simulated::{Simulated, SimulatedStream};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::sync::Arc;
use shuttle::{Config, Runner, thread};

type Pool = MemoryPool<Simulated, Simulated>;

const BLOCK: usize = 1 << 20;
/// Too little for all that the threads ask for, so that memory is handed over, trimmed and refused.
const CAPACITY: usize = 6 << 20;
const ITERATIONS: usize = 5000;

fn check(threads: impl Fn() + Send + Sync + Copy + 'static) {
    let mut config = Config::new();
    config.stack_size = 1 << 20;
    Runner::new(RandomScheduler::new_from_seed(1, ITERATIONS), config.clone()).run(threads);
    Runner::new(PctScheduler::new_from_seed(2, 3, ITERATIONS), config).run(threads);
}

fn world() -> (Simulated, Arc<Pool>) {
    let device = Simulated::with_contents(CAPACITY, 1);
    let pool = MemoryPool::new(device.clone(), device.clone(), device.stream());
    (device, Arc::new(pool))
}

fn take(pool: &Pool, bytes: usize, stream: SimulatedStream) -> Option<u64> {
    match pool.allocate(bytes, &stream) {
        Ok(address) => Some(address),
        Err(Error::OutOfMemory { .. }) => None,
        Err(error) => panic!("{error}"),
    }
}

fn finish(device: &Simulated, pool: Arc<Pool>) {
    pool.audit().expect("books that are right");
    assert_eq!(pool.statistics().live, 0);
    device.finish();
    pool.trim().expect("a device that is there");
    device.finish();
    assert_eq!(pool.statistics().reserved, device.allocated());
    assert!(device.violations().is_empty(), "{:?}", device.violations());
}

/// Each thread has a stream; they take, use and free memory, and one trims meanwhile.
#[test]
fn threads_share_the_pool() {
    check(|| {
        let (device, pool) = world();
        let streams = [device.stream(), device.stream()];
        let users = streams.map(|stream| {
            let (device, pool) = (device.clone(), Arc::clone(&pool));
            thread::spawn(move || {
                for (turn, bytes) in [3 * BLOCK, 256, BLOCK, 4 * BLOCK].into_iter().enumerate() {
                    let Some(address) = take(&pool, bytes, stream) else { continue };
                    device.write(stream, address, bytes, turn as u32 + 1);
                    device.check(stream, address, bytes, turn as u32 + 1);
                    pool.audit().expect("books that are right");
                    pool.free(address, bytes).expect("it is live");
                }
            })
        });
        let trimmer = {
            let pool = Arc::clone(&pool);
            thread::spawn(move || {
                for _ in 0..3 {
                    pool.trim().expect("a device that is there");
                }
            })
        };
        users.into_iter().chain([trimmer]).for_each(|thread| thread.join().expect("no panic"));
        finish(&device, pool);
    });
}

/// A block that one thread frees while another notes a use of it: the note counts, or is refused, and nothing else.
#[test]
fn a_use_is_noted_or_refused() {
    check(|| {
        let (device, pool) = world();
        let (owner, reader) = (device.stream(), device.stream());
        let address = take(&pool, BLOCK, owner).expect("an empty device");
        let noting = {
            let pool = Arc::clone(&pool);
            thread::spawn(move || pool.record_use(address, &reader).is_ok())
        };
        let freeing = {
            let pool = Arc::clone(&pool);
            thread::spawn(move || pool.free(address, BLOCK).expect("it is live"))
        };
        let twice = {
            let pool = Arc::clone(&pool);
            thread::spawn(move || pool.free(address, BLOCK + 1).is_ok())
        };
        let _ = noting.join().expect("no panic");
        freeing.join().expect("no panic");
        assert!(!twice.join().expect("no panic"), "a free of another size is refused");
        finish(&device, pool);
    });
}
