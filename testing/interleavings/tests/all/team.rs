//! A team's loops: threads that claim tasks, interleaved at every atomic access by shuttle's schedulers.

use pascaline::internals::Team;
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::sync::Arc;
use shuttle::sync::atomic::{AtomicUsize, Ordering};
use shuttle::{Config, Runner, thread};

const ITERATIONS: usize = 5000;
/// Tasks of the loops that follow each other.
const LOOPS: [usize; 4] = [3, 1, 4, 2];

/// Each task runs once and before its loop returns, wherever a thread is between two loops, and the threads leave at the end.
#[test]
fn tasks_run_once_while_their_loop_does() {
    let threads = || {
        let team = Arc::new(Team::default());
        let others = [(); 2].map(|()| {
            let team = team.clone();
            thread::spawn(move || team.serve())
        });
        let (runs, current) = (AtomicUsize::new(0), AtomicUsize::new(0));
        for (number, tasks) in LOOPS.into_iter().enumerate() {
            current.store(number, Ordering::SeqCst);
            let of_each: Vec<_> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
            // SAFETY: this thread alone calls it, and no task does.
            unsafe {
                team.run(tasks, &|task| {
                    assert_eq!(current.load(Ordering::SeqCst), number, "the loop has returned");
                    of_each[task].fetch_add(1, Ordering::SeqCst);
                    runs.fetch_add(1, Ordering::SeqCst);
                });
            }
            current.store(usize::MAX, Ordering::SeqCst);
            assert!(of_each.iter().all(|runs| runs.load(Ordering::SeqCst) == 1));
        }
        team.end();
        others.into_iter().for_each(|thread| thread.join().expect("no panic"));
        assert_eq!(runs.load(Ordering::SeqCst), LOOPS.iter().sum::<usize>());
    };
    Runner::new(RandomScheduler::new_from_seed(3, ITERATIONS), Config::new()).run(threads);
    Runner::new(PctScheduler::new_from_seed(4, 3, ITERATIONS), Config::new()).run(threads);
}
