//! Chooses the replica for a request.
//!
//! A prefix that a replica's cache holds need not be computed again, but a busy replica takes longer for each token. What
//! either costs depends on the card and on requests to come, so the rule uses no times: among replicas that are about
//! equally busy, the longest cached prefix decides.

/// The load difference up to which a cached prefix decides.
const SLACK: usize = 4;

/// A replica that can be chosen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub index: usize,
    /// Requests that it computes or that wait for it.
    pub jobs: usize,
    /// The most requests that it computes at a time.
    pub most: usize,
    /// Tokens of the request's prefix in its cache.
    pub held: usize,
}

impl Candidate {
    fn has_room(&self) -> bool {
        self.jobs < self.most
    }
}

/// The index of the best candidate; `None` if there are none. A replica is too busy if it has more than [`SLACK`] requests
/// more than the least busy one, or would let the request wait where the other has room.
pub(crate) fn choose(candidates: &[Candidate]) -> Option<usize> {
    let least = candidates.iter().min_by_key(|one| (!one.has_room(), one.jobs))?;
    let is_much_busier =
        |one: &Candidate| one.jobs > least.jobs + SLACK || (least.has_room() && !one.has_room());
    let near = candidates.iter().filter(|one| !is_much_busier(one));
    // of equal prefixes the least busy, and of equally busy ones the first
    let best = near.max_by_key(|one| (one.held, std::cmp::Reverse((one.jobs, one.index))));
    best.map(|best| best.index)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of replicas given as (requests, cached tokens), each of which computes up to eight.
    fn chosen(replicas: &[(usize, usize)]) -> Option<usize> {
        let all = replicas.iter().enumerate();
        let all: Vec<_> =
            all.map(|(index, &(jobs, held))| Candidate { index, jobs, most: 8, held }).collect();
        choose(&all)
    }

    #[test]
    fn the_least_busy_one_takes_what_nobody_holds() {
        assert_eq!(chosen(&[]), None);
        assert_eq!(chosen(&[(0, 0), (0, 0)]), Some(0));
        assert_eq!(chosen(&[(3, 0), (2, 0), (2, 0)]), Some(1));
        assert_eq!(chosen(&[(3, 64), (2, 64)]), Some(1), "both hold as much");
    }

    #[test]
    fn the_longest_beginning_decides_among_those_that_are_about_as_busy() {
        assert_eq!(chosen(&[(0, 16), (4, 32)]), Some(1));
        assert_eq!(chosen(&[(0, 16), (5, 32)]), Some(0), "it is much busier");
        assert_eq!(chosen(&[(0, 0), (3, 48), (9, 64)]), Some(1), "the longest of the others");
    }

    #[test]
    fn nothing_waits_for_a_beginning_where_another_has_room() {
        assert_eq!(chosen(&[(7, 0), (8, 512)]), Some(0));
        assert_eq!(chosen(&[(9, 0), (10, 512)]), Some(1), "all are full");
    }

    #[test]
    fn a_small_replica_that_is_full_is_not_the_least_busy() {
        let small = Candidate { index: 0, jobs: 2, most: 2, held: 0 };
        let large = Candidate { index: 1, jobs: 9, most: 32, held: 0 };
        assert_eq!(choose(&[small, large]), Some(1));
    }
}
