//! Whether the alignment of operands allows vector loads and stores. Views start at any element.

/// Bytes of the widest load and store.
const VECTOR: usize = 16;

/// The first of `n` elements from which on all operands, given as (address, element size), are aligned to vectors of `len`
/// elements. `n` if there is none, so that all elements are handled singly.
pub(crate) fn head(n: u32, len: u32, operands: &[(u64, usize)]) -> u32 {
    let mut heads = operands.iter().map(|&(address, size)| {
        let phase = (address / size as u64) % u64::from(len);
        (u64::from(len) - phase) % u64::from(len)
    });
    let first = heads.next().unwrap_or(0);
    if heads.all(|head| head == first) { n.min(first as u32) } else { n }
}

/// Whether every row of `cols` elements of `size` bytes starts and ends at a vector, in all operands.
pub(crate) fn rows_aligned(cols: u32, size: usize, addresses: &[u64]) -> bool {
    (cols as usize * size).is_multiple_of(VECTOR)
        && addresses.iter().all(|address| address.is_multiple_of(VECTOR as u64))
}

/// Number of elements of `size` bytes in a vector.
pub(crate) fn len(size: usize) -> u32 {
    (VECTOR / size) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_head_reaches_the_first_aligned_element_of_all() {
        assert_eq!(head(100, 4, &[(256, 4), (512, 4)]), 0);
        assert_eq!(head(100, 4, &[(260, 4), (516, 4)]), 3);
        assert_eq!(head(2, 4, &[(260, 4), (516, 4)]), 2, "an array that ends before");
        assert_eq!(head(100, 4, &[(260, 4), (512, 4)]), 100, "never aligned together");
        assert_eq!(head(100, 8, &[(258, 2)]), 7);
        assert_eq!(head(100, 4, &[(260, 4), (514, 2)]), 3, "four elements of different sizes");
    }

    #[test]
    fn rows_are_aligned_only_with_their_ends() {
        assert!(rows_aligned(8, 2, &[0, 16]));
        assert!(!rows_aligned(12, 2, &[0, 16]));
        assert!(!rows_aligned(8, 2, &[0, 18]));
    }
}
