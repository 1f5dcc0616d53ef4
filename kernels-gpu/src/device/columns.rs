//! How threads divide the columns of a row.
//!
//! A row is divided into *groups* of one 16-byte vector's worth of elements per thread. If rows are aligned, thread `lane`
//! has 16 consecutive bytes of a group. If not, it has every `width`-th element of it, so that loads are coalesced either
//! way.

use super::prefetch::prefetch;
use super::vector::Vector;
use cuda_std::inlined;

/// The columns of a row that belong to one thread.
#[derive(Clone, Copy)]
pub struct Columns {
    cols: u32,
    /// Columns of a group.
    group: u32,
    /// The thread's first column.
    base: u32,
    /// Distance between the thread's columns within a group.
    step: u32,
    vectors: bool,
}

#[inlined]
impl Columns {
    /// The columns of thread `lane` of `width`. `vectors` says that every row of every operand starts at a multiple of 16
    /// bytes and `cols` is a multiple of `T::LEN`; it must be the same in all threads.
    pub fn new<T: Vector>(cols: u32, lane: u32, width: u32, vectors: bool) -> Self {
        let (base, step) = if vectors { (lane * T::LEN, 1) } else { (lane, width) };
        Self { cols, group: width * T::LEN, base, step, vectors }
    }

    /// Whether group `i` has columns of any thread; the same in all threads.
    pub fn has(self, i: u32) -> bool {
        i * self.group < self.cols
    }

    /// The column of value `j` of group `i`; in increasing order over (i, j) in one thread.
    pub fn column(self, i: u32, j: u32) -> u32 {
        self.base + i * self.group + j * self.step
    }

    /// Whether value `j` of group `i` is a column of the row and not padding.
    pub fn is_valid(self, i: u32, j: u32) -> bool {
        self.column(i, j) < self.cols
    }

    /// The thread's values in group `i`, with `padding` where there is no column.
    ///
    /// # Safety
    /// `row` is valid for `cols` elements, in global memory, and not written while the kernel runs.
    pub unsafe fn load<T: Vector>(self, row: *const T, i: u32, padding: f32) -> T::Values {
        let mut values = T::splat(padding);
        let start = self.column(i, 0);
        if self.vectors {
            if start < self.cols {
                // SAFETY: `vectors` means that start is a multiple of LEN, the row aligned and cols a multiple of LEN.
                values = unsafe { T::load_vector(row.add(start as usize)) };
            }
        } else {
            let mut j = 0;
            while j < T::LEN {
                if self.is_valid(i, j) {
                    // SAFETY: the column is below cols.
                    values[j as usize] = unsafe { T::load(row.add(self.column(i, j) as usize)) };
                }
                j += 1;
            }
        }
        values
    }

    /// Prefetches the thread's vector of group `i` into the L2 cache, if it has one. No register waits for it.
    pub fn prefetch<T: Vector>(self, row: *const T, i: u32) {
        let start = self.column(i, 0);
        if self.vectors && start < self.cols {
            prefetch(row.wrapping_add(start as usize));
        }
    }

    /// Subtracts `x` from the thread's values of group `i`; values past the end of the row are zero and stay zero.
    pub fn centre<T: Vector>(self, i: u32, values: T::Values, x: f32) -> T::Values {
        if self.vectors {
            // a vector is entirely inside the row or entirely past its end
            let x = if self.is_valid(i, 0) { x } else { 0.0 };
            return T::map(values, |value| value - x);
        }
        let mut j = 0;
        T::map(values, |value| {
            let centred = if self.is_valid(i, j) { value - x } else { 0.0 };
            j += 1;
            centred
        })
    }

    /// Writes the thread's values of group `i`, without padding.
    ///
    /// # Safety
    /// `row` is valid for writing `cols` elements.
    pub unsafe fn store<T: Vector>(self, row: *mut T, i: u32, values: T::Values) {
        let start = self.column(i, 0);
        if self.vectors {
            if start < self.cols {
                // SAFETY: a vector is entirely inside the row, which is valid for writing (this function's contract).
                unsafe { T::store_vector(row.add(start as usize), values) };
            }
        } else {
            let mut j = 0;
            while j < T::LEN {
                if self.is_valid(i, j) {
                    // SAFETY: the column is below cols.
                    unsafe { *row.add(self.column(i, j) as usize) = T::from_f32(values[j as usize]) };
                }
                j += 1;
            }
        }
    }
}

/// Repeats `$body` for `$i` = 0, 1, … below the constant `$n` ≤ 8, as long as the row has a group `$i`. Expanded by a macro,
/// so that arrays indexed by `$i` stay in registers: LLVM does not unroll bodies of this size.
macro_rules! each_group {
    ($columns:expr, $i:ident < $n:expr, $body:expr) => {{
        each_group!(@ $columns, $i, $n, $body, 0 1 2 3 4 5 6 7)
    }};
    (@ $columns:expr, $i:ident, $n:expr, $body:expr, $($index:literal)*) => {{$(
        if $index < $n && $columns.has($index) {
            let $i: usize = $index;
            $body
        }
    )*}};
}
pub(crate) use each_group;
