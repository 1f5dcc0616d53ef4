//! Reports, once, that the driver is compiling: with an empty cache the first start takes longer.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How long the driver may compile, all modules together, before the notice.
const PATIENCE: Duration = Duration::from_secs(1);

static NOTICE: OnceLock<fn()> = OnceLock::new();
static STATE: Mutex<State> =
    Mutex::new(State { spent: Duration::ZERO, running: 0, since: None, said: false });

struct State {
    /// Time in which at least one module was compiled.
    spent: Duration,
    running: usize,
    since: Option<Instant>,
    said: bool,
}

/// Sets the function that is called once per process, when the driver has compiled kernels for more than a second. It is
/// called on another thread. Later calls of this function have no effect.
pub fn on_slow_compilation(notice: fn()) {
    let _ = NOTICE.set(notice);
}

/// Exists while a module is being compiled.
pub(super) struct Compiling {
    /// Dropping it ends the watch.
    _done: Option<Sender<()>>,
}

impl Compiling {
    pub(super) fn begin() -> Self {
        let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
        state.running += 1;
        if state.running == 1 {
            state.since = Some(Instant::now());
        }
        if state.said || NOTICE.get().is_none() {
            return Self { _done: None };
        }
        let left = PATIENCE.saturating_sub(state.spent);
        let (done, ended) = mpsc::channel::<()>();
        let watch = move || {
            if ended.recv_timeout(left) == Err(RecvTimeoutError::Timeout) {
                say();
            }
        };
        // Without the thread only the notice is lost.
        let started = thread::Builder::new().name("compile notice".into()).spawn(watch);
        Self { _done: started.is_ok().then_some(done) }
    }
}

impl Drop for Compiling {
    fn drop(&mut self) {
        let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
        state.running -= 1;
        if state.running == 0 {
            let spent = state.since.take().map_or(Duration::ZERO, |since| since.elapsed());
            state.spent += spent;
        }
    }
}

fn say() {
    let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    if !std::mem::replace(&mut state.said, true)
        && let Some(notice) = NOTICE.get()
    {
        notice();
    }
}
