//! The pool's lock protocol: threads that share it, interleaved at every lock by shuttle's schedulers.
//!
//! With the feature `shuttle` the pool and the simulated device take their locks from shuttle (`host/src/sync.rs`). The simulated device
//! checks each use of memory, and the pool's accounting must be consistent wherever another thread can run.

use pascaline::Error;
use pascaline::memory::MemoryPool;
use pascaline::memory::simulated::{Simulated, SimulatedStream};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::sync::Arc;
use shuttle::{Config, Runner, thread};

type Pool = MemoryPool<Simulated, Simulated>;

const BLOCK: usize = 1 << 20;
/// Too little for all that the threads ask for, so that memory is handed to other streams, trimmed and refused.
const CAPACITY: usize = 6 << 20;
const ITERATIONS: usize = 5000;

fn check(threads: impl Fn() + Send + Sync + Copy + 'static) {
    let mut config = Config::new();
    config.stack_size = 1 << 20;
    Runner::new(RandomScheduler::new_from_seed(1, ITERATIONS), config.clone()).run(threads);
    Runner::new(PctScheduler::new_from_seed(2, 3, ITERATIONS), config).run(threads);
}

fn device_and_pool() -> (Simulated, Arc<Pool>) {
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

fn free(pool: &Pool, address: u64, bytes: usize) -> Result<(), Error> {
    // SAFETY: a simulated device has no memory behind its addresses.
    unsafe { pool.free(address, bytes) }
}

fn finish(device: &Simulated, pool: Arc<Pool>) {
    pool.audit().expect("consistent accounting");
    assert_eq!(pool.statistics().live, 0);
    device.finish();
    pool.trim().expect("a live device");
    device.finish();
    assert_eq!(pool.statistics().reserved, device.allocated());
    assert!(device.violations().is_empty(), "{:?}", device.violations());
}

/// Two threads with a stream each allocate, use and free memory; a third trims.
#[test]
fn threads_share_the_pool() {
    check(|| {
        let (device, pool) = device_and_pool();
        let streams = [device.stream(), device.stream()];
        let users = streams.map(|stream| {
            let (device, pool) = (device.clone(), Arc::clone(&pool));
            thread::spawn(move || {
                for (turn, bytes) in [3 * BLOCK, 256, BLOCK, 4 * BLOCK].into_iter().enumerate() {
                    let Some(address) = take(&pool, bytes, stream) else { continue };
                    device.write(stream, address, bytes, turn as u32 + 1);
                    device.check(stream, address, bytes, turn as u32 + 1);
                    pool.audit().expect("consistent accounting");
                    free(&pool, address, bytes).expect("it is live");
                }
            })
        });
        let trimmer = {
            let pool = Arc::clone(&pool);
            thread::spawn(move || {
                for _ in 0..3 {
                    pool.trim().expect("a live device");
                }
            })
        };
        users.into_iter().chain([trimmer]).for_each(|thread| thread.join().expect("no panic"));
        finish(&device, pool);
    });
}

/// One thread frees a block while another records a use of it: the use counts or is refused.
#[test]
fn a_use_is_recorded_or_refused() {
    check(|| {
        let (device, pool) = device_and_pool();
        let (owner, reader) = (device.stream(), device.stream());
        let address = take(&pool, BLOCK, owner).expect("an empty device");
        let recording = {
            let pool = Arc::clone(&pool);
            thread::spawn(move || pool.record_use(address, &reader).is_ok())
        };
        let freeing = {
            let pool = Arc::clone(&pool);
            thread::spawn(move || free(&pool, address, BLOCK).expect("it is live"))
        };
        let twice = {
            let pool = Arc::clone(&pool);
            thread::spawn(move || free(&pool, address, BLOCK + 1).is_ok())
        };
        let _ = recording.join().expect("no panic");
        freeing.join().expect("no panic");
        assert!(!twice.join().expect("no panic"), "a free of another size is refused");
        finish(&device, pool);
    });
}
