//! The gradient of [`activate`](crate::activate): dx[r, c] = dy[r, c] · f′(x[r, c]).   dx, dy, x: [rows, cols]
//!
//! [`SWIGLU`]: dx[r, c] = dy[r, c] · up[r, c] · silu′(x[r, c]) and dup[r, c] = dy[r, c] · silu(x[r, c]).   dup, up: [rows, cols]
//!
//! | kernel                | a piece of a row is handled by | when |
//! |-----------------------|--------------------------------|------|
//! | activate_backward_‹t› | 1 block, 16 bytes a thread     | all  |

use crate::activate::{GELU_ERF, GELU_TANH, SILU, SWIGLU};
use crate::device::{Columns, F16, Vector};
use crate::elementwise::{gelu_erf_slope, gelu_tanh_slope, silu, silu_slope};
use cuda_std::KernelInfo;
use cuda_std::prelude::*;

/// Threads in a block.
const BLOCK: u32 = 128;
/// Bytes of a row of dy that a block handles.
pub const BLOCK_BYTES: u32 = BLOCK * 16;

/// The parameters of the kernels.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct Backward<T> {
    /// [gridDim.x, cols]
    pub dx: *mut T,
    /// With [`SWIGLU`] as dx, disjoint from it; else not accessed
    pub dup: *mut T,
    /// [gridDim.x, cols], contiguous, disjoint from dx and dup
    pub dy: *const T,
    /// As dx, disjoint from dx and dup
    pub x: *const T,
    /// With [`SWIGLU`] as x; else not accessed
    pub up: *const T,
    pub cols: u32,
    /// Distance between the rows of dx, dup, x and up.
    pub row: u32,
    /// The activation, one of [`activate`](crate::activate)'s numbers.
    pub activation: u32,
    /// 1 if every row of all tensors starts and ends at a multiple of 16 bytes, else 0.
    pub vectors: u32,
}

/// The derivative of the activation with this number; for [`SWIGLU`], of what gates.
#[inline(always)]
fn slope(x: f32, activation: u32) -> f32 {
    match activation {
        SILU | SWIGLU => silu_slope(x),
        GELU_TANH => gelu_tanh_slope(x),
        GELU_ERF => gelu_erf_slope(x),
        _ => 1.0,
    }
}

/// # Safety
/// As the kernels below.
#[inline(always)]
unsafe fn rows<T: Vector>(p: Backward<T>) {
    let Backward { dx, dup, dy, x, up, cols, activation, vectors, .. } = p;
    let (row, group) = (thread::block_idx_x() as usize, thread::block_idx_y());
    let columns = Columns::new::<T>(cols, thread::thread_idx_x(), BLOCK, vectors != 0);
    let at = row * p.row as usize;
    // SAFETY: each block has one row and one piece of it, so it accesses only elements of the tensors.
    unsafe {
        let dy = columns.load(dy.add(row * cols as usize), group, 0.0);
        let gate = columns.load(x.add(at), group, 0.0);
        let through = T::zip(dy, gate, |dy, gate| dy * slope(gate, activation));
        if activation == SWIGLU {
            let up = columns.load(up.add(at), group, 0.0);
            columns.store(dx.add(at), group, T::zip(through, up, |through, up| through * up));
            columns.store(dup.add(at), group, T::zip(dy, gate, |dy, gate| dy * silu(gate)));
        } else {
            columns.store(dx.add(at), group, through);
        }
    }
}

/// grid = [rows, ceil(cols · size / [`BLOCK_BYTES`])]
///
/// # Safety
/// [`Backward`] constrains the pointers, which are valid on the launching stream for fewer than 2³¹ elements.
#[kernel(block = BLOCK, min_blocks = 16)]
pub unsafe fn activate_backward_f32(p: Backward<f32>) {
    // SAFETY: this kernel's contract is the body's.
    unsafe { rows(p) }
}

/// As [`activate_backward_f32`].
///
/// # Safety
/// As [`activate_backward_f32`].
#[kernel(block = BLOCK, min_blocks = 12)]
pub unsafe fn activate_backward_f16(p: Backward<F16>) {
    // SAFETY: this kernel's contract is the body's.
    unsafe { rows(p) }
}

/// All kernels of this file.
pub const KERNELS: &[KernelInfo] = &[activate_backward_f32.info(), activate_backward_f16.info()];
