//! Calls by pointer: functions and objects that data chooses at run time.

use cuda_std::{kernel, thread};

/// An operation on integers.
type Function = fn(u32, u32) -> u32;

#[inline(never)]
fn sum(a: u32, b: u32) -> u32 {
    a.wrapping_add(b)
}

#[inline(never)]
fn product(a: u32, b: u32) -> u32 {
    a.wrapping_mul(b)
}

/// Euclid's: it calls itself by pointer.
#[inline(never)]
fn divisor(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { core::hint::black_box(divisor as Function)(b, a % b) }
}

static FUNCTIONS: [Function; 3] = [sum, product, divisor];

/// `y[i] = f(a[i], i)`, where `f` is function `which[i]` of three.
///
/// # Safety
/// `y` has an element for each of `a`.
#[kernel]
pub unsafe fn functions(a: &[u32], which: &[u32], y: *mut u32) {
    let i = thread::index_1d() as usize;
    let (Some(&value), Some(&which)) = (a.get(i), which.get(i)) else { return };
    if let Some(function) = FUNCTIONS.get(which as usize) {
        // SAFETY: the caller's contract.
        unsafe { *y.add(i) = function(value, i as u32) };
    }
}

/// A plane figure.
trait Figure {
    fn area(&self) -> f32;
    fn scaled(&self, by: f32) -> f32 {
        self.area() * by * by
    }
}

struct Square(f32);
struct Rectangle(f32, f32);

impl Figure for Square {
    fn area(&self) -> f32 {
        self.0 * self.0
    }
}

impl Figure for Rectangle {
    fn area(&self) -> f32 {
        self.0 * self.1
    }
    fn scaled(&self, by: f32) -> f32 {
        self.area() * by
    }
}

/// `y[i]` is the area, scaled by 3, of a square of side `a[i]`, or of a rectangle of which one side is `i`.
///
/// # Safety
/// `y` has an element for each of `a`.
#[kernel]
pub unsafe fn figures(a: &[f32], which: &[u32], y: *mut f32) {
    let i = thread::index_1d() as usize;
    let (Some(&side), Some(&which)) = (a.get(i), which.get(i)) else { return };
    let (square, rectangle) = (Square(side), Rectangle(side, i as f32));
    let figures: [&dyn Figure; 2] = [&square, &rectangle];
    if let Some(figure) = figures.get(which as usize) {
        // SAFETY: the caller's contract.
        unsafe { *y.add(i) = figure.scaled(3.0) };
    }
}
