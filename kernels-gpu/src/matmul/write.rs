//! The epilogue: writes a kernel's sums to c, or with split-K to the partial sums.

use super::product::Product;
use crate::device::Element;
use crate::device::math::fma;
use cuda_std::inlined;

#[inlined]
impl<C: Element> Product<C> {
    /// alpha·sum + bias
    ///
    /// # Safety
    /// `column` exists.
    pub(super) unsafe fn scaled(&self, column: u32, sum: f32) -> f32 {
        let value = self.alpha * sum;
        // SAFETY: the bias has an element for each column, and the caller's column exists.
        if self.bias.is_null() { value } else { value + unsafe { C::load(self.bias.add(column as usize)) } }
    }

    /// value + beta·d
    ///
    /// # Safety
    /// `at` is the index of an element of c that no other thread writes.
    pub(super) unsafe fn added(&self, at: u32, value: f32) -> f32 {
        if self.beta == 0.0 {
            return value;
        }
        // SAFETY: d has c's layout. It may be c, so this is not a load through the read-only path.
        fma(self.beta, unsafe { (*self.addend.add(at as usize)).to_f32() }, value)
    }
}

/// Writes one sum.
///
/// # Safety
/// `row` and `column` exist, `c` is valid, and no other thread has this element.
#[inline(always)]
pub(super) unsafe fn one<C: Element>(c: *mut C, p: &Product<C>, row: u32, column: u32, sum: f32) {
    // SAFETY: the caller's row and column exist, in c and in the parts, and are this thread's alone.
    unsafe {
        if !p.partial.is_null() {
            *p.partial.add((row * p.n + column) as usize) = sum;
            return;
        }
        let at = row * p.ldc + column;
        *c.add(at as usize) = C::from_f32(p.added(at, p.scaled(column, sum)));
    }
}

/// Writes four neighbours in a row, as far as they exist; with `VECTOR`, by one store.
///
/// # Safety
/// As [`one`], for the columns below n. With `VECTOR`, n and ldc are multiples of 4 and c is aligned to 4 elements.
#[inline(always)]
pub(super) unsafe fn quad<C: Element, const VECTOR: bool>(
    c: *mut C,
    p: &Product<C>,
    row: u32,
    column: u32,
    sums: [f32; 4],
) {
    // SAFETY: the row exists and the elements are this thread's alone; columns are compared with n, and where the first of an
    // aligned four exists, all do.
    unsafe {
        if !VECTOR {
            let mut j = 0;
            while j < 4 {
                if column + (j as u32) < p.n {
                    one(c, p, row, column + j as u32, sums[j]);
                }
                j += 1;
            }
            return;
        }
        if column >= p.n {
            return;
        }
        if !p.partial.is_null() {
            f32::store4(p.partial.add((row * p.n + column) as usize), sums);
            return;
        }
        let at = row * p.ldc + column;
        let [w, x, y, z] = sums;
        let value = |j, sum| p.added(at + j, p.scaled(column + j, sum));
        C::store4(c.add(at as usize), [value(0, w), value(1, x), value(2, y), value(3, z)]);
    }
}
