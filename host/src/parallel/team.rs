//! Threads of rayon's pool that stay awake for the loops of a pass.
//!
//! A pass on the CPU is some hundred loops, one after the other, most of them shorter than 100 µs. rayon's threads fall asleep between two
//! of them, and to wake them takes as long as a short loop. A team's threads spin instead, until the pass ends or no loop has come for about
//! a millisecond; then they are rayon's again. The calling thread leads: it works too, and one of rayon's threads has no part.

use crate::sync::{AtomicBool, AtomicUsize, Ordering, spin_loop, yield_now};
use std::any::Any;
use std::cell::{Cell, RefCell, UnsafeCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, PoisonError};

/// Looks for work before a thread offers its core to others: a few microseconds.
const SPINS: u32 = 200;
/// Looks after which a thread ends the team, most of them calls of the system: about a millisecond.
const PATIENCE: u32 = 3000;

type Task<'a> = dyn Fn(usize) + Sync + 'a;

/// Calls `f` with a team, so that the loops it runs are shared by threads which are awake. A call inside of another has the outer one's team.
pub(crate) fn with<R>(f: impl FnOnce() -> R) -> R {
    if LEADER.with_borrow(Option::is_some) {
        return f();
    }
    /// Ends the team, also if `f` panics.
    struct End;
    impl Drop for End {
        fn drop(&mut self) {
            LEADER.set(None);
        }
    }
    LEADER.set(Some(Leader::default()));
    let _end = End;
    f()
}

/// Gives the calling thread's team back to rayon until the next loop: for loops that are rayon's own.
pub(crate) fn release() {
    LEADER.with_borrow_mut(|leader| {
        if let Some(leader) = leader {
            *leader = Leader::default();
        }
    });
}

/// Calls `f` with each number below `tasks`, by the calling thread's team. Gives false if it has none. A loop inside of a task is the task's
/// thread's alone, as the others have tasks too.
pub(super) fn run(tasks: usize, f: &Task<'_>) -> bool {
    if IN_TASK.get() {
        (0..tasks).for_each(f);
        return true;
    }
    let Some(mut leader) = LEADER.take() else { return false };
    let outcome = catch_unwind(AssertUnwindSafe(|| leader.run(tasks, f)));
    LEADER.set(Some(leader));
    outcome.map_or_else(|panic| resume_unwind(panic), |()| true)
}

thread_local! {
    /// Whether this thread is in a team's task.
    static IN_TASK: Cell<bool> = const { Cell::new(false) };
    static LEADER: RefCell<Option<Leader>> = const { RefCell::new(None) };
}

/// Runs loops with the threads of a team. There is one for each team.
#[derive(Default)]
struct Leader {
    team: Arc<Team>,
    has_threads: bool,
}

impl Leader {
    fn run(&mut self, tasks: usize, f: &Task<'_>) {
        // those that have waited too long do not come back, and the others would be too few
        if self.has_threads && self.team.ended.load(Ordering::Relaxed) {
            *self = Self::default();
        }
        if !self.has_threads {
            self.has_threads = true;
            let team = self.team.clone();
            // for a leader outside of the pool number 0 does nothing
            let leader = rayon::current_thread_index().unwrap_or(0);
            rayon::spawn_broadcast(move |thread| {
                if thread.index() != leader {
                    team.serve();
                }
            });
        }
        // SAFETY: the team has this leader alone, which is borrowed mutably; a task's loops do not come here.
        unsafe { self.team.run(tasks, f) };
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        self.team.end();
    }
}

/// A loop, and how far it is.
#[derive(Default)]
pub struct Team {
    current: UnsafeCell<Option<Loop>>,
    /// Tasks that no thread has begun.
    unclaimed: AtomicUsize,
    /// Tasks that have not ended.
    unfinished: AtomicUsize,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    ended: AtomicBool,
}

#[derive(Clone, Copy)]
struct Loop {
    tasks: usize,
    f: *const Task<'static>,
}

// SAFETY: `current` is written by `run` alone, in which no two threads are at once: its contract. It writes while no task is unfinished, and
// is read by threads that hold an unfinished task. What `f` points to is `Sync`.
unsafe impl Sync for Team {}
// SAFETY: nothing belongs to a thread.
unsafe impl Send for Team {}

impl Team {
    /// Calls `f` with each number below `tasks`; returns when all calls have.
    ///
    /// # Safety
    /// No two threads are in it at once, and no task is.
    pub unsafe fn run(&self, tasks: usize, f: &Task<'_>) {
        // SAFETY: only the lifetime changes; `f` is called by threads that hold an unfinished task, and this function waits for all.
        let f = unsafe { std::mem::transmute::<*const Task<'_>, *const Task<'static>>(f) };
        // SAFETY: no task is unfinished, so no thread reads it, and no other is here to write: this function's contract.
        unsafe { *self.current.get() = Some(Loop { tasks, f }) };
        self.unfinished.store(tasks, Ordering::Relaxed);
        self.unclaimed.store(tasks, Ordering::Release);
        while self.work() {}
        let mut wait = Wait::default();
        while self.unfinished.load(Ordering::Acquire) != 0 {
            wait.a_little();
        }
        let panic = self.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }

    /// Works until the team has ended, which it does if no loop has run for a while.
    pub fn serve(&self) {
        let mut wait = Wait::default();
        while !self.ended.load(Ordering::Relaxed) {
            if self.work() {
                wait = Wait::default();
                continue;
            }
            wait.a_little();
            if self.unfinished.load(Ordering::Relaxed) != 0 {
                wait.0 = wait.0.min(SPINS);
            } else if wait.0 == PATIENCE {
                self.end();
            }
        }
    }

    /// Sends the threads away.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }

    /// Runs a task, if one is left.
    fn work(&self) -> bool {
        if self.unclaimed.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let claim =
            self.unclaimed.fetch_update(Ordering::Acquire, Ordering::Relaxed, |left| left.checked_sub(1));
        let Ok(left) = claim else { return false };
        // SAFETY: this thread holds an unfinished task, and the store to `unclaimed` that the claim has read came after the write.
        let current = unsafe { *self.current.get() };
        if let Some(Loop { tasks, f }) = current {
            // SAFETY: `run` does not return before this task has ended.
            let f = unsafe { &*f };
            IN_TASK.set(true);
            let outcome = catch_unwind(AssertUnwindSafe(|| f(tasks - left)));
            IN_TASK.set(false);
            if let Err(panic) = outcome {
                self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
            }
        }
        self.unfinished.fetch_sub(1, Ordering::Release);
        true
    }
}

#[derive(Default)]
struct Wait(u32);

impl Wait {
    fn a_little(&mut self) {
        match self.0 {
            SPINS.. => yield_now(),
            _ => spin_loop(),
        }
        self.0 = self.0.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rayon::ThreadPoolBuilder;

    fn in_team<R: Send>(threads: usize, f: impl FnOnce() -> R + Send) -> R {
        ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(|| with(f))
    }

    /// Sums that each task adds to once.
    fn check(tasks: usize) {
        let sums: Vec<_> = (0..tasks).map(AtomicUsize::new).collect();
        assert!(run(tasks, &|task| {
            sums[task].fetch_add(tasks, Ordering::Relaxed);
        }));
        assert!(
            sums.into_iter().enumerate().all(|(task, sum)| sum.into_inner() == task + tasks),
            "{tasks} tasks"
        );
    }

    #[test]
    fn each_task_of_many_loops_runs_once() {
        for threads in [2, 3, 8] {
            in_team(threads, || (0..2000).for_each(|i| check(i % 67)));
        }
    }

    /// More than one thread works: two tasks wait for each other.
    #[test]
    fn tasks_run_at_once() {
        in_team(2, || {
            for _ in 0..100 {
                let here = AtomicUsize::new(0);
                assert!(run(2, &|_| {
                    here.fetch_add(1, Ordering::Relaxed);
                    while here.load(Ordering::Relaxed) < 2 {
                        yield_now();
                    }
                }));
            }
        });
    }

    #[test]
    fn a_loop_in_a_task_is_its_threads_and_one_outside_not_the_teams() {
        in_team(4, || {
            let inner = AtomicUsize::new(0);
            assert!(run(8, &|_| {
                let outer = std::thread::current().id();
                assert!(run(8, &|_| {
                    assert_eq!(std::thread::current().id(), outer);
                    inner.fetch_add(1, Ordering::Relaxed);
                }));
            }));
            assert_eq!(inner.into_inner(), 64);
            with(|| check(5));
            check(9); // the outer team goes on
            release();
            check(11);
        });
        assert!(!run(8, &|_| {}));
    }

    #[test]
    fn a_panic_of_a_task_reaches_the_leader_and_the_team_goes_on() {
        in_team(4, || {
            for task in [0, 7, 31] {
                let outcome = catch_unwind(AssertUnwindSafe(|| run(32, &|i| assert!(i != task, "task {i}"))));
                let message = *outcome.unwrap_err().downcast::<String>().unwrap();
                assert_eq!(message, format!("task {task}"));
                check(32);
            }
        });
        let outcome = catch_unwind(|| in_team(4, || -> () { panic!("the pass") }));
        assert!(outcome.is_err());
        in_team(4, || check(32));
    }
}
