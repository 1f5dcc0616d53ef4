//! How a kernel's sums get into c, or into the parts of a split product.

use super::Product;
use crate::device::Element;
use crate::device::math::fma;

/// Writes one sum.
///
/// # Safety
/// `row` and `column` exist, `c` is valid, and no other thread has this element.
#[inline(always)]
pub(super) unsafe fn one<C: Element>(c: *mut C, p: &Product, row: u32, column: u32, sum: f32) {
    // SAFETY: the element exists, as the caller promises.
    unsafe {
        if !p.partial.is_null() {
            *p.partial.add((row * p.n + column) as usize) = sum;
            return;
        }
        let to = c.add((row * p.ldc + column) as usize);
        let mut value = p.alpha * sum;
        if p.beta != 0.0 {
            value = fma(p.beta, (*to).to_f32(), value);
        }
        *to = C::from_f32(value);
    }
}

/// Writes those of four neighbours in a row that exist; with `VECTOR`, by one store.
///
/// # Safety
/// As [`one`], for the columns below n. With `VECTOR`, n and ldc are multiples of 4 and c is aligned to 4 elements.
#[inline(always)]
pub(super) unsafe fn quad<C: Element, const VECTOR: bool>(
    c: *mut C,
    p: &Product,
    row: u32,
    column: u32,
    sums: [f32; 4],
) {
    // SAFETY: the elements exist, as the caller promises; where the first of an aligned four does, all do.
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
        let to = c.add((row * p.ldc + column) as usize);
        let mut values = sums.map(|sum| p.alpha * sum);
        if p.beta != 0.0 {
            let mut j = 0;
            while j < 4 {
                values[j] = fma(p.beta, (*to.add(j)).to_f32(), values[j]);
                j += 1;
            }
        }
        C::store4(to, values);
    }
}
