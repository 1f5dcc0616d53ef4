//! Steps of optimisers: all tensors of a model in one launch.   p, m, v, g: [n] of each tensor
//!
//! adamw: m += (1 − β₁)(g − m); v = β₂v + (1 − β₂)g²; p = p·keep − rate·m / (√v·root + eps)
//! sgd:   m = β₁m + g + decay·p; p −= rate·m
//!
//! Tensors are divided into chunks; a table in device memory has the addresses of each.
//!
//! Source: Loshchilov & Hutter 2019, "Decoupled weight decay regularization", algorithm 2.
//!
//! | kernel           | a chunk is handled by | when |
//! |------------------|-----------------------|------|
//! | adamw_f32        | 1 block               | all  |
//! | sgd_f32          | 1 block               | all  |
//! | squared_norm_f32 | 1 block               | all  |

use crate::device::block_reduce;
use crate::device::math::sqrt;
use cuda_std::KernelInfo;
use cuda_std::prelude::*;

/// Threads in a block.
const BLOCK: u32 = 256;
const WARPS: u32 = BLOCK / 32;
/// The most elements of a chunk.
pub const CHUNK: usize = 1 << 14;

/// A line of the table: one chunk of a tensor.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Chunk {
    /// [n]; read and written
    pub parameter: *mut f32,
    /// [n], disjoint from the others
    pub gradient: *const f32,
    /// [n], disjoint from the others; read and written
    pub first: *mut f32,
    /// [n], disjoint from the others; read and written, by AdamW alone
    pub second: *mut f32,
    pub n: u32,
    /// AdamW: 1 − lr · decay. SGD: the decay.
    pub decay: f32,
}

const _: () = assert!(size_of::<Chunk>() == 40 || size_of::<usize>() != 8);

/// The parameters of the kernels.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct Step {
    /// [gridDim.x]
    pub chunks: *const Chunk,
    /// The factor on the gradient.
    pub gradient_scale: f32,
    /// AdamW: β₁. SGD: the momentum.
    pub beta1: f32,
    pub beta2: f32,
    /// The learning rate; for AdamW divided by 1 − β₁ᵗ.
    pub rate: f32,
    /// 1 / √(1 − β₂ᵗ)
    pub root: f32,
    pub eps: f32,
}

/// The parameters of the norm.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct Norm {
    /// [gridDim.x]
    pub sums: *mut f32,
    /// [gridDim.x]; only the gradients are read
    pub chunks: *const Chunk,
}

/// All kernels of this file.
pub const KERNELS: &[KernelInfo] = &[adamw_f32.info(), sgd_f32.info(), squared_norm_f32.info()];

/// grid = [chunks]
///
/// # Safety
/// [`Step`] and [`Chunk`] constrain the pointers, which are valid on the launching stream.
#[kernel(block = BLOCK, min_blocks = 8)]
pub unsafe fn adamw_f32(p: Step) {
    // SAFETY: a block for each chunk, whose tensors have n elements.
    unsafe {
        let Chunk { parameter, gradient, first, second, n, decay } =
            *p.chunks.add(thread::block_idx_x() as usize);
        let mut i = thread::thread_idx_x();
        while i < n {
            let at = i as usize;
            let g = *gradient.add(at) * p.gradient_scale;
            let m = *first.add(at);
            let m = m + (1.0 - p.beta1) * (g - m);
            let v = p.beta2 * *second.add(at) + (1.0 - p.beta2) * g * g;
            *first.add(at) = m;
            *second.add(at) = v;
            *parameter.add(at) = *parameter.add(at) * decay - p.rate * m / (sqrt(v) * p.root + p.eps);
            i += BLOCK;
        }
    }
}

/// grid = [chunks]
///
/// # Safety
/// As [`adamw_f32`].
#[kernel(block = BLOCK, min_blocks = 8)]
pub unsafe fn sgd_f32(p: Step) {
    // SAFETY: a block for each chunk, whose tensors have n elements.
    unsafe {
        let Chunk { parameter, gradient, first, n, decay, .. } =
            *p.chunks.add(thread::block_idx_x() as usize);
        let mut i = thread::thread_idx_x();
        while i < n {
            let at = i as usize;
            let value = *parameter.add(at);
            let m = p.beta1 * *first.add(at) + *gradient.add(at) * p.gradient_scale + decay * value;
            *first.add(at) = m;
            *parameter.add(at) = value - p.rate * m;
            i += BLOCK;
        }
    }
}

/// sums[b] = Σ g² of chunk b.   grid = [chunks]
///
/// # Safety
/// As [`adamw_f32`].
#[kernel(block = BLOCK, min_blocks = 8, shared(scratch: [f32; WARPS]), shuffles = 5)]
pub unsafe fn squared_norm_f32(Norm { sums, chunks }: Norm) {
    let block = thread::block_idx_x() as usize;
    // SAFETY: a block for each chunk, whose gradient has n elements; all threads are at the barrier.
    unsafe {
        let Chunk { gradient, n, .. } = *chunks.add(block);
        let mut sum = 0.0;
        let mut i = thread::thread_idx_x();
        while i < n {
            let g = *gradient.add(i as usize);
            sum += g * g;
            i += BLOCK;
        }
        let [sum] = block_reduce::reduce_once([sum], WARPS, scratch, Sum);
        if thread::thread_idx_x() == 0 {
            *sums.add(block) = sum;
        }
    }
}
