//! Arrays of which a launch uses small parts: each part is made at its first use.

use std::sync::OnceLock;

/// An array of default values in parts of `N`.
pub(super) struct Sparse<T, const N: usize> {
    parts: Box<[OnceLock<Box<[T]>>]>,
}

impl<T: Default, const N: usize> Sparse<T, N> {
    /// Values of a part.
    pub const PART: u64 = N as u64;

    /// At least `len` values.
    pub fn new(len: usize) -> Self {
        Self { parts: (0..len.div_ceil(N)).map(|_| OnceLock::new()).collect() }
    }

    /// Values `first` to `last`, which are in one part.
    #[inline(always)]
    pub fn range(&self, first: usize, last: usize) -> &[T] {
        &self.part(first / N)[first % N..=last % N]
    }

    /// `None` beyond the last part.
    #[inline(always)]
    pub fn get(&self, n: usize) -> Option<&T> {
        self.parts.get(n / N)?;
        Some(&self.part(n / N)[n % N])
    }

    #[inline(always)]
    fn part(&self, part: usize) -> &[T] {
        self.parts[part].get_or_init(fresh::<T, N>)
    }
}

#[cold]
fn fresh<T: Default, const N: usize>() -> Box<[T]> {
    (0..N).map(|_| T::default()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn parts_are_made_at_their_first_use() {
        let numbers = Sparse::<Cell<u32>, 8>::new(17);
        numbers.range(8, 15)[3].set(5);
        let made = |numbers: &Sparse<_, 8>| numbers.parts.iter().filter(|part| part.get().is_some()).count();
        assert_eq!((numbers.parts.len(), made(&numbers)), (3, 1));
        assert_eq!(numbers.get(11).map(Cell::get), Some(5));
        assert_eq!(numbers.get(23).map(Cell::get), Some(0));
        assert_eq!((numbers.get(24).map(Cell::get), made(&numbers)), (None, 2));
    }
}
