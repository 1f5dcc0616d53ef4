//! y[r, c] = f(x[r, c] + bias[c]): the epilogue of a linear map, in one pass.   x, y: [rows, cols], bias: [cols]
//!
//! [`SWIGLU`] takes two halves of a row: y[r, c] = silu(g)·u with g = x[r, c] + bias[c] and u = x[r, cols + c] + bias[cols + c];
//! x: [rows, 2·cols], bias: [2·cols].   Source: Shazeer 2020, "GLU variants improve transformer".
//!
//! | kernel       | a piece of a row is handled by | when |
//! |--------------|--------------------------------|------|
//! | activate_‹t› | 1 block, 16 bytes a thread     | all  |

use crate::device::{Columns, F16, Vector};
use crate::elementwise::{gelu_erf, gelu_tanh, silu};
use cuda_std::KernelInfo;
use cuda_std::prelude::*;

/// x
pub const IDENTITY: u32 = 0;
/// x·σ(x)
pub const SILU: u32 = 1;
/// GELU's tanh form.
pub const GELU_TANH: u32 = 2;
/// x·Φ(x)
pub const GELU_ERF: u32 = 3;
/// silu of the first half of the columns times the second half.
pub const SWIGLU: u32 = 4;

/// Threads in a block.
const BLOCK: u32 = 128;
/// Bytes of a row that a block handles.
pub const BLOCK_BYTES: u32 = BLOCK * 16;

/// The parameters of the kernels.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct Activate<T> {
    /// [gridDim.x, cols]
    pub y: *mut T,
    /// [gridDim.x, cols], with [`SWIGLU`] [gridDim.x, 2 · cols]; disjoint from y
    pub x: *const T,
    /// [cols], with [`SWIGLU`] [2 · cols], disjoint from y; or null
    pub bias: *const T,
    pub cols: u32,
    /// The activation, one of the numbers above.
    pub activation: u32,
    /// 1 if every row of all three tensors, and every half of a row, starts and ends at a multiple of 16 bytes, else 0.
    pub vectors: u32,
}

/// The activation with this number of one value; for [`SWIGLU`], of a value of the first half.
#[inline(always)]
pub(crate) fn activate(x: f32, activation: u32) -> f32 {
    match activation {
        SILU | SWIGLU => silu(x),
        GELU_TANH => gelu_tanh(x),
        GELU_ERF => gelu_erf(x),
        _ => x,
    }
}

/// # Safety
/// As the kernels below.
#[inline(always)]
unsafe fn rows<T: Vector>(p: Activate<T>) {
    let Activate { y, x, bias, cols, activation, vectors } = p;
    let (row, group) = (thread::block_idx_x() as usize, thread::block_idx_y());
    let columns = Columns::new::<T>(cols, thread::thread_idx_x(), BLOCK, vectors != 0);
    let gated = activation == SWIGLU;
    let x = x.wrapping_add(row * cols as usize * if gated { 2 } else { 1 });
    // SAFETY: each block has one row and one piece of it, so it accesses only elements of the tensors.
    unsafe {
        let biased = |first: usize| {
            let values = columns.load(x.wrapping_add(first), group, 0.0);
            if bias.is_null() {
                return values;
            }
            T::zip(values, columns.load(bias.wrapping_add(first), group, 0.0), |x, bias| x + bias)
        };
        let mut values = T::map(biased(0), |x| activate(x, activation));
        if gated {
            values = T::zip(values, biased(cols as usize), |gate, up| gate * up);
        }
        columns.store(y.add(row * cols as usize), group, values);
    }
}

macro_rules! kernels {
    ($($name:ident: $T:ty;)*) => {
        $(
            /// grid = [rows, ceil(cols · size / [`BLOCK_BYTES`])]
            ///
            /// # Safety
            /// [`Activate`] constrains the pointers, which are valid on the launching stream for fewer than 2³¹
            /// elements.
            #[kernel(block = BLOCK, min_blocks = 12)]
            pub unsafe fn $name(p: Activate<$T>) {
                // SAFETY: this kernel's contract is the body's.
                unsafe { rows(p) }
            }
        )*

        /// All kernels of this file.
        pub const KERNELS: &[KernelInfo] = &[$($name.info()),*];
    };
}

kernels! {
    activate_f32: f32;
    activate_f16: F16;
}
