//! Work that keeps a thread busy: parsing, decoding, tokenising. It has a place in one of two lanes, which it keeps as long
//! as it runs, whether its client is there or not; and it learns when its client has left.
//!
//! Light work waits behind light work alone. Heavy work runs on the threads of a pool of its own, so that it takes no more
//! than half of the cores and the model's own parallel work does not wait behind it.

use super::account::Charge;
use super::error::ApiError;
use rayon::ThreadPool;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

type Result<T> = std::result::Result<T, ApiError>;

/// Places for work.
pub(crate) struct Lanes {
    light: Arc<Semaphore>,
    heavy: Arc<Semaphore>,
    threads: usize,
    /// Started with the first heavy work. `None`: the system had no threads for it.
    pool: OnceLock<Option<ThreadPool>>,
}

impl Lanes {
    pub fn new() -> Self {
        let cores = thread::available_parallelism().map_or(2, usize::from);
        let (threads, light) = ((cores / 2).max(1), cores.max(2));
        let [light, heavy] = [light, threads].map(|places| Arc::new(Semaphore::new(places)));
        Self { light, heavy, threads, pool: OnceLock::new() }
    }

    fn pool(&self) -> Option<&ThreadPool> {
        let build = || rayon::ThreadPoolBuilder::new().num_threads(self.threads).build().ok();
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
    let is_light = charge.is_light();
    let lane = if is_light { &lanes.light } else { &lanes.heavy };
    let place = Arc::clone(lane).acquire_owned().await;
    let lanes = Arc::clone(lanes);
    aside(charge, move |wanted, charge| {
        let _place = place; // for as long as the work runs
        match lanes.pool() {
            Some(pool) if !is_light => pool.install(|| work(wanted, charge)),
            _ => work(wanted, charge),
        }
    })
    .await
}

/// Runs work off the threads that serve connections, and in no lane: work that mostly waits.
pub(crate) async fn aside<T: Send + 'static>(
    mut charge: Charge,
    work: impl FnOnce(&Wanted, &mut Charge) -> Result<T> + Send + 'static,
) -> Result<(T, Charge)> {
    let wanted = Wanted(Arc::new(AtomicBool::new(true)));
    let _waiting = Waiting(wanted.clone());
    let done = spawn_blocking(move || {
        wanted.check()?;
        Ok((work(&wanted, &mut charge)?, charge))
    });
    done.await.unwrap_or_else(|_| {
        Err(ApiError::internal("a bug ended this request; the server's standard error says where"))
    })
}
