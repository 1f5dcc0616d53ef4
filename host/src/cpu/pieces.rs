//! Loops over elements of any float type. f16 is converted by vector instructions, a piece at a time, in buffers that stay
//! in the L1 cache. f32 is read in place.
//!
//! These functions are inlined, so that [`vectorized`](crate::simd::vectorized) compiles them for the processor's features.

use crate::dtype::Float;

/// Elements of a piece. Few, because the buffers are cleared for each row and rows may be short.
const PIECE: usize = 64;

/// y[i] = f(x[0][i], x[1][i], …), for as many elements as y has.
#[inline(always)]
pub(super) fn map<Y: Float, X: Float, const N: usize>(
    y: &mut [Y],
    x: [&[X]; N],
    f: impl Fn([f32; N]) -> f32,
) {
    let (mut rooms, mut room) = ([[0.0; PIECE]; N], [0.0; PIECE]);
    for (piece, y) in y.chunks_mut(PIECE).enumerate() {
        let len = y.len();
        // loops and no `array::map`, which for each f is eight more functions to compile
        let mut inputs = [&[][..]; N];
        for ((input, x), room) in inputs.iter_mut().zip(x).zip(&mut rooms) {
            *input = &X::values(&x[piece * PIECE..][..len], &mut room[..len])[..len];
        }
        Y::fill(y, &mut room[..len], |y| {
            for (i, y) in y[..len].iter_mut().enumerate() {
                let mut values = [0.0; N];
                for n in 0..N {
                    values[n] = inputs[n][i];
                }
                *y = f(values);
            }
        });
    }
}

/// Calls `f` with x in f32, piece by piece.
#[inline(always)]
pub(super) fn each<X: Float>(x: &[X], mut f: impl FnMut(&[f32])) {
    let mut room = [0.0; PIECE];
    for x in x.chunks(PIECE) {
        f(X::values(x, &mut room[..x.len()]));
    }
}

/// Σ f(x[i]), in eight partial sums, so that it vectorises.
#[inline(always)]
pub(super) fn sum<X: Float>(x: &[X], f: impl Fn(f32) -> f64) -> f64 {
    let mut sums = [0.0; 8];
    each(x, |x| {
        let (eights, rest) = x.as_chunks::<8>();
        for eight in eights {
            for (sum, &x) in sums.iter_mut().zip(eight) {
                *sum += f(x);
            }
        }
        for (sum, &x) in sums.iter_mut().zip(rest) {
            *sum += f(x);
        }
    });
    sums.iter().sum()
}
