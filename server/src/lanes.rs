//! Work that keeps a thread busy: parsing, decoding, tokenising. It has a place in one of two lanes, which it keeps as long
//! as it runs, whether its client is there or not; and it learns when its client has left.
//!
//! Light work waits behind light work alone, and in each lane small work passes large work: a question of some words does
//! not wait for all pictures that came before it. Heavy work runs on the threads of a pool of its own, which yield to other
//! threads and take no more than half of the cores, so that the model's own parallel work does not wait behind it.

use super::account::Charge;
use super::error::ApiError;
use super::system::yield_to_others;
use rayon::ThreadPool;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use tokio::sync::oneshot::{Sender, channel};
use tokio::task::spawn_blocking;

type Result<T> = std::result::Result<T, ApiError>;

/// Work of this many bytes waits up to a second behind smaller work that came later.
const BYTES_PER_SECOND: f64 = (4 << 20) as f64;

/// Places for work of one kind.
struct Lane(Mutex<Line>);

struct Line {
    free: usize,
    /// In the order in which they are due, then in which they came. Nobody waits while a place is free.
    waiting: BTreeMap<(Instant, u64), Sender<Place>>,
    came: u64,
}

/// A place in a lane, free again when it is dropped.
struct Place(Option<Arc<Lane>>);

impl Lane {
    fn new(places: usize) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Line { free: places, waiting: BTreeMap::new(), came: 0 })))
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a place for work of this many bytes. It is due some time after it came, by its bytes, so that no work waits
    /// for ever.
    async fn place(self: &Arc<Self>, bytes: usize) -> Place {
        let (sender, place) = channel();
        let _standing = {
            let mut line = self.line();
            if line.free > 0 {
                line.free -= 1;
                return Place(Some(Arc::clone(self)));
            }
            line.came += 1;
            let due = Instant::now() + Duration::from_secs_f64(bytes as f64 / BYTES_PER_SECOND);
            let key = (due, line.came);
            line.waiting.insert(key, sender);
            Standing { lane: self, key }
        };
        place.await.unwrap_or(Place(None)) // the sender is in the line until it sends
    }
}

/// Whoever stands in the line of a lane; dropped, it stands there no more.
struct Standing<'a> {
    lane: &'a Lane,
    key: (Instant, u64),
}

impl Drop for Standing<'_> {
    fn drop(&mut self) {
        self.lane.line().waiting.remove(&self.key);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Some(lane) = self.0.take() else { return };
        let mut line = lane.line();
        while let Some((_, next)) = line.waiting.pop_first() {
            match next.send(Self(Some(Arc::clone(&lane)))) {
                Ok(()) => return,
                Err(mut place) => place.0 = None, // whoever waited has left
            }
        }
        line.free += 1;
    }
}

/// Places for work.
pub(crate) struct Lanes {
    light: Arc<Lane>,
    heavy: Arc<Lane>,
    threads: usize,
    /// Started with the first heavy work. `None`: the system had no threads for it.
    pool: OnceLock<Option<ThreadPool>>,
}

impl Lanes {
    pub fn new() -> Self {
        let cores = thread::available_parallelism().map_or(2, usize::from);
        let (threads, light) = ((cores / 2).max(1), cores.max(2));
        let [light, heavy] = [light, threads].map(Lane::new);
        Self { light, heavy, threads, pool: OnceLock::new() }
    }

    fn pool(&self) -> Option<&ThreadPool> {
        let build = || {
            let threads = rayon::ThreadPoolBuilder::new().num_threads(self.threads);
            threads.start_handler(|_| yield_to_others()).build().ok()
        };
        self.pool.get_or_init(build).as_ref()
    }
}

/// Whether somebody still waits for a request's work.
#[derive(Clone)]
pub(crate) struct Wanted(Arc<AtomicBool>);

impl Wanted {
    pub fn is_so(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// An error, which nobody sees, if nobody waits.
    pub fn check(&self) -> Result<()> {
        if self.is_so() { Ok(()) } else { Err(ApiError::internal("the client has left")) }
    }
}

/// Ends the work when it is dropped, as the futures of clients that leave are.
struct Waiting(Wanted);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.0.store(false, Ordering::Relaxed);
    }
}

/// Runs work in the lane that its charge belongs in. The charge is what the work is about to take, and comes back with the
/// result.
pub(crate) async fn run<T: Send + 'static>(
    lanes: &Arc<Lanes>,
    charge: Charge,
    work: impl FnOnce(&Wanted, &mut Charge) -> Result<T> + Send + 'static,
) -> Result<(T, Charge)> {
    let (work, result) = boxed(work);
    let charge = run_boxed(lanes, charge, work).await?;
    Ok((result.take(), charge))
}

/// Runs work off the threads that serve connections, and in no lane: work that mostly waits.
pub(crate) async fn aside<T: Send + 'static>(
    charge: Charge,
    work: impl FnOnce(&Wanted, &mut Charge) -> Result<T> + Send + 'static,
) -> Result<(T, Charge)> {
    let (work, result) = boxed(work);
    let charge = aside_boxed(charge, work).await?;
    Ok((result.take(), charge))
}

/// Work of any kind. The runtime's tasks and the pool's jobs are compiled once, for it.
type Work = Box<dyn FnOnce(&Wanted, &mut Charge) -> Result<()> + Send>;

/// Where work leaves its result.
struct Slot<T>(Arc<Mutex<Option<T>>>);

fn boxed<T: Send + 'static>(
    work: impl FnOnce(&Wanted, &mut Charge) -> Result<T> + Send + 'static,
) -> (Work, Slot<T>) {
    let slot = Arc::new(Mutex::new(None));
    let result = Slot(Arc::clone(&slot));
    let work = move |wanted: &Wanted, charge: &mut Charge| {
        let result = work(wanted, charge)?;
        *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
        Ok(())
    };
    (Box::new(work), result)
}

impl<T> Slot<T> {
    /// The result of work that has ended without an error.
    fn take(self) -> T {
        let result = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        result.expect("work that ends without an error has left its result")
    }
}

async fn run_boxed(lanes: &Arc<Lanes>, charge: Charge, work: Work) -> Result<Charge> {
    let is_light = charge.is_light();
    let lane = if is_light { &lanes.light } else { &lanes.heavy };
    let place = lane.place(charge.bytes()).await;
    let lanes = Arc::clone(lanes);
    let in_its_lane = move |wanted: &Wanted, charge: &mut Charge| {
        let _place = place; // for as long as the work runs
        match lanes.pool() {
            Some(pool) if !is_light => pool.install(|| work(wanted, charge)),
            _ => work(wanted, charge),
        }
    };
    aside_boxed(charge, Box::new(in_its_lane)).await
}

async fn aside_boxed(mut charge: Charge, work: Work) -> Result<Charge> {
    let wanted = Wanted(Arc::new(AtomicBool::new(true)));
    let _waiting = Waiting(wanted.clone());
    let done = spawn_blocking(move || {
        wanted.check()?;
        work(&wanted, &mut charge)?;
        Ok(charge)
    });
    done.await.unwrap_or_else(|_| {
        Err(ApiError::internal("a bug ended this request; the server's standard error says where"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::task::yield_now;

    /// The order in which a lane of one place, which is taken at first, lets in work of these bytes, of which each comes after
    /// so long, and the third leaves.
    fn order(bytes: [usize; 3], apart: Duration) -> Vec<usize> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (lane, let_in) = (Lane::new(1), Arc::new(Mutex::new(Vec::new())));
            let held = lane.place(0).await;
            let mut work = Vec::new();
            for bytes in bytes {
                let (lane, let_in) = (Arc::clone(&lane), Arc::clone(&let_in));
                work.push(tokio::spawn(async move {
                    let _place = lane.place(bytes).await;
                    let_in.lock().unwrap().push(bytes);
                }));
                yield_now().await;
                thread::sleep(apart);
            }
            work.pop().unwrap().abort();
            yield_now().await;
            assert_eq!(lane.line().waiting.len(), 2, "whoever leaves stands there no more");
            drop(held);
            for work in work {
                work.await.unwrap();
            }
            let line = lane.line();
            assert_eq!((line.free, line.waiting.len()), (1, 0));
            let_in.lock().unwrap().clone()
        })
    }

    #[test]
    fn small_work_passes_large_work_that_has_not_waited_for_long() {
        assert_eq!(order([64 << 20, 100, 100], Duration::ZERO), [100, 64 << 20]);
        assert_eq!(order([4 << 10, 100, 100], Duration::from_millis(20)), [4 << 10, 100], "it has waited");
    }

    #[test]
    fn a_place_given_to_one_that_has_left_goes_to_the_next() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let lane = Lane::new(1);
            let held = lane.place(0).await;
            let mut first = Box::pin(lane.place(1));
            let mut second = Box::pin(lane.place(2));
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            assert!(
                first.as_mut().poll(&mut context).is_pending()
                    && second.as_mut().poll(&mut context).is_pending()
            );
            drop(held);
            drop(first); // it has the place, and has not seen it
            drop(second.await);
            assert_eq!(lane.line().free, 1);
        });
    }
}
