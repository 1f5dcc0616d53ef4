//! Loads a tile of a or b from global into shared memory: along k, along the width, or by any strides.

use crate::device::banks::{turn, turned};
use crate::device::{Element, Shared};
use cuda_std::inlined;

/// Rows of a and b that a slice has in shared memory at a time.
pub const BK: u32 = 8;
/// Floats of padding after each row of a tile in shared memory. With 4, the transposing stores of a warp go to 32 different
/// banks, and every row begins at a multiple of 16 bytes.
pub(super) const PAD: u32 = 4;

/// Loads one operand from global memory into a tile [BK, STRIDE] of shared memory, where each four of a row are [turned](turn).
pub(super) trait Load: Copy {
    /// The part of the tile that is in flight, in registers.
    type Stage: Copy;

    /// Loads the next tile, of which only the first `valid` of `BK` rows exist; the rest is zero.
    ///
    /// # Safety
    /// Those rows lie in the operand.
    unsafe fn load_first(&self, valid: u32) -> Self::Stage;

    /// Loads the next tile, all of it.
    ///
    /// # Safety
    /// As [`load_first`](Self::load_first).
    unsafe fn load(&self) -> Self::Stage;

    /// Advances by `rows` rows.
    fn advance(&mut self, rows: u32);

    /// The element of a tile that this thread stores first.
    fn place(&self) -> u32;

    /// Puts what was loaded into a tile.
    ///
    /// # Safety
    /// `to` is [`place`](Self::place) in a tile of `BK` rows that are `STRIDE` apart, and no thread reads it.
    unsafe fn store(&self, to: Shared<f32>, stage: Self::Stage);
}

/// For an operand that is contiguous along k: a thread loads four k of one column and stores them transposed, as a column of
/// the tile.
#[derive(Clone, Copy)]
pub(super) struct AlongK<T, const STRIDE: u32, const THREADS: u32, const VECTORS: usize> {
    from: [*const T; VECTORS],
    tid: u32,
}

/// For an operand that is contiguous along its width: a thread loads four elements of one row.
#[derive(Clone, Copy)]
pub(super) struct AlongWidth<T, const STRIDE: u32, const THREADS: u32, const VECTORS: usize> {
    from: *const T,
    tid: u32,
    row_stride: u32,
}

impl<T: Element, const STRIDE: u32, const THREADS: u32, const VECTORS: usize>
    AlongK<T, STRIDE, THREADS, VECTORS>
{
    /// Four k at a time.
    const QUADS: u32 = BK / 4;

    /// The columns of the operand at `base` from `first` on; columns are `ld` apart. Columns from `columns` on are read as
    /// the last one, and not used.
    #[inline(always)]
    pub(super) fn new(base: *const T, ld: u32, first: u32, columns: u32, tid: u32) -> Self {
        let mut from = [base; VECTORS];
        let mut v = 0;
        while v < VECTORS {
            let index = tid + v as u32 * THREADS;
            let column = (first + index / Self::QUADS).min(columns - 1);
            from[v] = base.wrapping_add((column * ld + index % Self::QUADS * 4) as usize);
            v += 1;
        }
        Self { from, tid }
    }
}

#[inlined]
impl<T: Element, const STRIDE: u32, const THREADS: u32, const VECTORS: usize> Load
    for AlongK<T, STRIDE, THREADS, VECTORS>
{
    type Stage = [T::Packed4; VECTORS];

    unsafe fn load_first(&self, valid: u32) -> Self::Stage {
        let mut stage = [T::zero4(); VECTORS];
        let mut v = 0;
        while v < VECTORS {
            if (self.tid + v as u32 * THREADS) % Self::QUADS * 4 < valid {
                // SAFETY: k is a multiple of 4, so four rows exist where one does; aligned as the kernel demands.
                stage[v] = unsafe { T::load4_packed(self.from[v]) };
            }
            v += 1;
        }
        stage
    }

    unsafe fn load(&self) -> Self::Stage {
        let mut stage = [T::zero4(); VECTORS];
        let mut v = 0;
        while v < VECTORS {
            // SAFETY: the caller's tile exists in full; aligned as the kernel demands.
            stage[v] = unsafe { T::load4_packed(self.from[v]) };
            v += 1;
        }
        stage
    }

    fn advance(&mut self, rows: u32) {
        let mut v = 0;
        while v < VECTORS {
            self.from[v] = self.from[v].wrapping_add(rows as usize);
            v += 1;
        }
    }

    fn place(&self) -> u32 {
        self.tid % Self::QUADS * 4 * STRIDE + turned(self.tid / Self::QUADS)
    }

    unsafe fn store(&self, to: Shared<f32>, stage: Self::Stage) {
        let mut v = 0;
        while v < VECTORS {
            let to = to.at(v as u32 * (THREADS / Self::QUADS));
            let [x, y, z, w] = T::unpack4(stage[v]);
            // SAFETY: four rows of one column, inside the tile.
            unsafe {
                to.set_at::<0, STRIDE>(x);
                to.set_at::<1, STRIDE>(y);
                to.set_at::<2, STRIDE>(z);
                to.set_at::<3, STRIDE>(w);
            }
            v += 1;
        }
    }
}

#[inlined]
impl<T: Element, const STRIDE: u32, const THREADS: u32, const VECTORS: usize>
    AlongWidth<T, STRIDE, THREADS, VECTORS>
{
    /// Four columns at a time.
    const QUADS: u32 = (STRIDE - PAD) / 4;

    /// The columns of the operand at `base` from `first` on; rows are `ld` apart. Columns from `columns` on are read as the
    /// last four, and not used.
    pub(super) fn new(base: *const T, ld: u32, first: u32, columns: u32, tid: u32) -> Self {
        let column = (first + tid % Self::QUADS * 4).min(columns - 4);
        Self { from: base.wrapping_add((tid / Self::QUADS * ld + column) as usize), tid, row_stride: ld }
    }

    /// The index of this thread's `v`-th four.
    fn vector(&self, v: usize) -> *const T {
        let rows = v as u32 * (THREADS / Self::QUADS);
        self.from.wrapping_add((rows * self.row_stride) as usize)
    }
}

#[inlined]
impl<T: Element, const STRIDE: u32, const THREADS: u32, const VECTORS: usize> Load
    for AlongWidth<T, STRIDE, THREADS, VECTORS>
{
    type Stage = [T::Packed4; VECTORS];

    unsafe fn load_first(&self, valid: u32) -> Self::Stage {
        let mut stage = [T::zero4(); VECTORS];
        let mut v = 0;
        while v < VECTORS {
            if (self.tid + v as u32 * THREADS) / Self::QUADS < valid {
                // SAFETY: the row exists; the width is a multiple of 4; aligned as the kernel demands.
                stage[v] = unsafe { T::load4_packed(self.vector(v)) };
            }
            v += 1;
        }
        stage
    }

    unsafe fn load(&self) -> Self::Stage {
        let mut stage = [T::zero4(); VECTORS];
        let mut v = 0;
        while v < VECTORS {
            // SAFETY: the caller's tile exists in full; aligned as the kernel demands.
            stage[v] = unsafe { T::load4_packed(self.vector(v)) };
            v += 1;
        }
        stage
    }

    fn advance(&mut self, rows: u32) {
        self.from = self.from.wrapping_add((rows * self.row_stride) as usize);
    }

    fn place(&self) -> u32 {
        self.tid / Self::QUADS * STRIDE + self.tid % Self::QUADS * 4
    }

    unsafe fn store(&self, to: Shared<f32>, stage: Self::Stage) {
        let mut v = 0;
        while v < VECTORS {
            // SAFETY: four columns of one row, inside the tile; the address is a multiple of 16 bytes.
            unsafe { to.set4(v as u32 * (THREADS / Self::QUADS) * STRIDE, turn(T::unpack4(stage[v]))) };
            v += 1;
        }
    }
}

/// For any strides: a thread loads single elements. Neighbouring threads load those that are nearest in memory.
#[derive(Clone, Copy)]
pub(super) struct Strided<T, const STRIDE: u32, const THREADS: u32, const ELEMENTS: usize> {
    from: *const T,
    /// Distance between two elements of this thread.
    step: u32,
    /// Distance between two rows.
    row_stride: u32,
    /// This thread's first element in the tile, and the distance between its elements there.
    row: u32,
    column: u32,
    row_step: u32,
    column_step: u32,
    /// Number of existing columns from the tile's first on.
    columns: u32,
}

impl<T: Element, const STRIDE: u32, const THREADS: u32, const ELEMENTS: usize>
    Strided<T, STRIDE, THREADS, ELEMENTS>
{
    const WIDTH: u32 = STRIDE - PAD;

    /// The columns `first..columns` of the operand at `base`, with these strides between rows and columns.
    #[inline(always)]
    pub(super) fn new(
        base: *const T,
        row_stride: u32,
        column_stride: u32,
        first: u32,
        columns: u32,
        tid: u32,
    ) -> Self {
        let (row, column, row_step, column_step) = if row_stride <= column_stride {
            (tid % BK, tid / BK, 0, THREADS / BK)
        } else {
            (tid / Self::WIDTH, tid % Self::WIDTH, THREADS / Self::WIDTH, 0)
        };
        Self {
            from: base.wrapping_add(
                (row * row_stride) as usize + ((first + column) as usize * column_stride as usize),
            ),
            step: row_step * row_stride + column_step * column_stride,
            row_stride,
            row,
            column,
            row_step,
            column_step,
            columns: columns - first,
        }
    }
}

#[inlined]
impl<T: Element, const STRIDE: u32, const THREADS: u32, const ELEMENTS: usize> Load
    for Strided<T, STRIDE, THREADS, ELEMENTS>
{
    type Stage = [f32; ELEMENTS];

    unsafe fn load_first(&self, valid: u32) -> Self::Stage {
        let mut stage = [0.0; ELEMENTS];
        let mut e = 0;
        while e < ELEMENTS {
            let (row, column) =
                (self.row + e as u32 * self.row_step, self.column + e as u32 * self.column_step);
            if row < valid && column < self.columns {
                // SAFETY: row and column exist.
                stage[e] = unsafe { T::load(self.from.wrapping_add(e * self.step as usize)) };
            }
            e += 1;
        }
        stage
    }

    unsafe fn load(&self) -> Self::Stage {
        // SAFETY: the caller's tile exists in full.
        unsafe { self.load_first(BK) }
    }

    fn advance(&mut self, rows: u32) {
        self.from = self.from.wrapping_add(rows as usize * self.row_stride as usize);
    }

    fn place(&self) -> u32 {
        self.row * STRIDE + turned(self.column)
    }

    unsafe fn store(&self, to: Shared<f32>, stage: Self::Stage) {
        let step = self.row_step * STRIDE + self.column_step;
        let mut e = 0;
        while e < ELEMENTS {
            // SAFETY: THREADS · ELEMENTS = BK · WIDTH, so every element is inside the tile.
            unsafe { to.set(e as u32 * step, stage[e]) };
            e += 1;
        }
    }
}
