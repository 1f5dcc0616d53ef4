//! Loops over rayon's indexed iterators whose tree of joins is compiled once.
//!
//! rayon's `for_each` compiles its joins, jobs and splits anew for each loop: about 4 kB of the program. Here the items are
//! divided into tasks beforehand, and one function that is not generic runs them.

mod team;

#[cfg(feature = "shuttle")]
pub use team::Team;
pub(crate) use team::{release as release_team, with as with_team};

use rayon::iter::plumbing::{Producer, ProducerCallback};
use rayon::prelude::*;
use std::sync::{Mutex, PoisonError};

/// Several, so that a slow task does not delay all.
const TASKS_PER_THREAD: usize = 8;

/// `for_each` for iterators that know their length, smaller than rayon's and as fast.
pub(crate) trait InTasks: IndexedParallelIterator {
    /// Calls `f` with each item, in parallel. A task has at least as many items as `with_min_len` says; a single one runs
    /// on the calling thread.
    fn in_tasks(self, f: impl Fn(Self::Item) + Sync) {
        let len = self.len();
        self.with_producer(Divide { len, f });
    }

    /// As [`in_tasks`](Self::in_tasks). All items are visited; gives the first error.
    fn try_in_tasks<E: Send>(self, f: impl Fn(Self::Item) -> Result<(), E> + Sync) -> Result<(), E> {
        let error = Mutex::new(None);
        self.in_tasks(|item| {
            if let Err(found) = f(item) {
                error.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(found);
            }
        });
        error.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }
}

impl<I: IndexedParallelIterator> InTasks for I {}

/// Writes a piece of an array of bytes, given the number of its first byte.
pub(crate) type Write<'a, E> = dyn Fn(usize, &mut [u8]) -> Result<(), E> + Sync + 'a;

/// Has threads write `bytes` in pieces of `piece` bytes. Gives the first error.
pub(crate) fn try_pieces<E: Send>(bytes: &mut [u8], piece: usize, write: &Write<E>) -> Result<(), E> {
    bytes
        .par_chunks_mut(piece.max(1))
        .enumerate()
        .try_in_tasks(|(number, bytes)| write(number * piece, bytes))
}

struct Divide<F> {
    len: usize,
    f: F,
}

impl<T, F: Fn(T) + Sync> ProducerCallback<T> for Divide<F> {
    type Output = ();

    fn callback<P: Producer<Item = T>>(self, producer: P) {
        let Self { len, f } = self;
        let tasks = task_count(len, producer.min_len());
        let (mut rest, mut parts) = (producer, Vec::with_capacity(tasks));
        for task in 1..tasks {
            let (part, others) = rest.split_at(begin(len, tasks, task) - begin(len, tasks, task - 1));
            parts.push(Mutex::new(Some(part)));
            rest = others;
        }
        parts.push(Mutex::new(Some(rest)));
        // the only call of `f`, so that a loop's body is compiled once
        run(tasks, &|task| {
            let part = parts[task].lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(part) = part {
                part.into_iter().for_each(&f);
            }
        });
    }
}

fn task_count(len: usize, min_len: usize) -> usize {
    match len / min_len.max(1) {
        0 | 1 => 1,
        most => most.min(TASKS_PER_THREAD * rayon::current_num_threads()),
    }
}

/// The first item of a task. Of sizes that differ, the larger come first.
fn begin(len: usize, tasks: usize, task: usize) -> usize {
    len / tasks * task + task.min(len % tasks)
}

fn run(tasks: usize, f: &(dyn Fn(usize) + Sync)) {
    if tasks == 1 || rayon::current_num_threads() == 1 {
        return (0..tasks).for_each(f);
    }
    if !team::run(tasks, f) {
        (0..tasks).into_par_iter().with_max_len(1).for_each(f);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_item_is_visited_once_and_with_its_number() {
        for len in [0, 1, 2, 3, 31, 32, 33, 97, 1000, 4096, 4097] {
            for min_len in [1, 2, 7, 5000] {
                let mut items = vec![0; len];
                items.par_iter_mut().enumerate().with_min_len(min_len).in_tasks(|(i, item)| *item += i + 1);
                assert!(items.iter().enumerate().all(|(i, &item)| item == i + 1), "{len} items, {min_len}");
            }
        }
    }

    #[test]
    fn tasks_are_of_nearly_equal_size_and_not_below_the_least() {
        for (len, min_len) in [(1000, 1), (1000, 30), (63, 1), (64, 7)] {
            let sizes = sizes(len, min_len);
            assert_eq!(sizes.iter().sum::<usize>(), len);
            let (least, most) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
            assert!(*least >= min_len && most - least <= 1, "{len}, {min_len}: {sizes:?}");
        }
    }

    fn sizes(len: usize, min_len: usize) -> Vec<usize> {
        let tasks = task_count(len, min_len);
        (0..tasks).map(|task| begin(len, tasks, task + 1) - begin(len, tasks, task)).collect()
    }

    #[test]
    #[should_panic(expected = "item 5")]
    fn a_panic_reaches_the_caller() {
        (0..64).into_par_iter().in_tasks(|i| assert!(i != 5, "item {i}"));
    }
}
