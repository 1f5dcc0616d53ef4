//! The page allocator: a free list, reference counts of pages that sequences share, and the contents of full pages, by
//! which equal prefixes are found.
//!
//! Source: Kwon et al. 2023, "Efficient memory management for large language model serving with PagedAttention".

use super::prefix::{Key, Prefixes};
use std::collections::BTreeMap;

/// The allocator's state. A page without users whose contents are known stays findable until it is needed; the one released
/// first is reused first.
pub(super) struct Pages {
    /// Reference count of each page.
    users: Vec<u32>,
    /// The contents of each page, if known.
    keys: Vec<Option<Key>>,
    /// When each page was released.
    left: Vec<u64>,
    by_key: Prefixes,
    /// Pages without contents.
    free: Vec<u32>,
    /// Pages with contents and without users, by the time of their release.
    idle: BTreeMap<u64, u32>,
    clock: u64,
}

impl Pages {
    /// A pool of `pages` pages, all free.
    pub fn new(pages: usize) -> Self {
        let count = u32::try_from(pages).unwrap_or(u32::MAX);
        Self {
            users: vec![0; pages],
            keys: vec![None; pages],
            left: vec![0; pages],
            by_key: Prefixes::default(),
            free: (0..count).rev().collect(),
            idle: BTreeMap::new(),
            clock: 0,
        }
    }

    /// The number of pages.
    pub fn len(&self) -> usize {
        self.users.len()
    }

    /// Pages without users.
    pub fn available(&self) -> usize {
        self.free.len() + self.idle.len()
    }

    /// Allocates a page of undefined contents, with one user.
    pub fn take(&mut self) -> Option<u32> {
        let page = match self.free.pop() {
            Some(page) => page,
            None => {
                let (_, page) = self.idle.pop_first()?;
                if let Some(key) = self.keys[page as usize].take() {
                    self.by_key.remove(key);
                }
                page
            }
        };
        self.users[page as usize] = 1;
        Some(page)
    }

    /// The page with these contents; adds a user to it.
    pub fn find(&mut self, key: Key) -> Option<u32> {
        let page = self.by_key.get(key)?;
        let at = page as usize;
        if self.users[at] == 0 {
            self.idle.remove(&self.left[at]);
        }
        self.users[at] += 1;
        Some(page)
    }

    /// Whether a page has these contents and no user.
    pub fn is_idle(&self, key: Key) -> bool {
        self.by_key.get(key).is_some_and(|page| self.users[page as usize] == 0)
    }

    /// Whether a page has these contents.
    pub fn has(&self, key: Key) -> bool {
        self.by_key.get(key).is_some()
    }

    /// The index of contents, for others to look up.
    pub fn prefixes(&self) -> &Prefixes {
        &self.by_key
    }

    /// Records a page's contents, so that it can be found. If another page holds the same, that one stays in the index.
    pub fn set_key(&mut self, page: u32, key: Key) {
        if self.keys[page as usize].is_none() && !self.has(key) {
            self.keys[page as usize] = Some(key);
            self.by_key.insert(key, page);
        }
    }

    /// Releases a user's pages, given in order. The last one is least likely to be needed again, so it is reused first.
    pub fn release(&mut self, pages: &[u32]) {
        for &page in pages.iter().rev() {
            let at = page as usize;
            self.users[at] -= 1;
            if self.users[at] > 0 {
                continue;
            }
            if self.keys[at].is_some() {
                self.clock += 1;
                self.left[at] = self.clock;
                self.idle.insert(self.clock, page);
            } else {
                self.free.push(page);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_found_until_it_is_needed() {
        let mut pages = Pages::new(3);
        let (a, b) = (pages.take().unwrap(), pages.take().unwrap());
        pages.set_key(a, 1);
        pages.set_key(b, 2);
        assert_eq!((pages.find(1), pages.find(3)), (Some(a), None));
        pages.release(&[a, b]);
        assert_eq!(pages.available(), 2, "a has a user left");
        pages.release(&[a]);
        assert_eq!(pages.available(), 3);
        assert!(pages.is_idle(1) && pages.is_idle(2));
        let c = pages.take().unwrap();
        assert!(c != a && c != b, "a page without contents comes first");
        assert_eq!(pages.take(), Some(b), "left before a");
        assert!(!pages.has(2) && pages.has(1));
        assert_eq!(pages.find(1), Some(a));
        assert_eq!(pages.take(), None);
    }

    #[test]
    fn the_end_of_a_sequence_goes_before_its_beginning() {
        let mut pages = Pages::new(3);
        let all: Vec<_> = (0..3).map(|key| (pages.take().unwrap(), key)).collect();
        all.iter().for_each(|&(page, key)| pages.set_key(page, key));
        let order: Vec<_> = all.iter().map(|&(page, _)| page).collect();
        pages.release(&order);
        let taken: Vec<_> = (0..3).map(|_| pages.take().unwrap()).collect();
        assert_eq!(taken, order.into_iter().rev().collect::<Vec<_>>());
    }

    #[test]
    fn equal_contents_have_one_page() {
        let mut pages = Pages::new(2);
        let (a, b) = (pages.take().unwrap(), pages.take().unwrap());
        pages.set_key(a, 7);
        pages.set_key(b, 7);
        pages.release(&[a]);
        pages.release(&[b]);
        assert_eq!(pages.find(7), Some(a));
        assert_eq!(pages.available(), 1);
    }
}
