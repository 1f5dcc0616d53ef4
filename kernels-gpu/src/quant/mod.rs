//! Quantised weights and activations, multiplied by `dp4a`.
//!
//! y = act(x·wᵀ + bias) + residual.   y: [m, n] f32, x: [m, k] in [`blocks`]' row layout, w: [n, k] in one of the [`formats`].
//!
//! | file     | idea                                                               |
//! |----------|--------------------------------------------------------------------|
//! | formats  | the formats of weights: a file each, and a table                   |
//! | blocks   | the layout of rows, and arithmetic of a block on host and device   |
//! | search   | the choice of scales of formats without minima                     |
//! | encode   | f32 to rows, and what the formats' encoders share                  |
//! | norm     | an RMS norm's result to 8-bit rows                                 |
//! | decode   | every format to f32 and f16, all rows or those at given indices    |
//! | weights  | how a kernel reads a format                                        |
//! | activations | how products with a vector read the activations                |
//! | vector   | x·wᵀ for m ≤ 16: every row of w is read once by a warp             |
//! | lora     | x·wᵀ + (x·aᵀ)·bᵀ for m = 1 in one launch                           |
//! | tile     | x·wᵀ for larger m: tiles of w and x in shared memory               |
//! | straight_through | the gradient of quantising (straight-through estimator)    |
//! | scaled   | f32 to Q8_0 and Q4_0 with given scales, and the gradients of both  |
//!
//! Inside a block, products are summed exactly, in integers. The sums of a row's blocks are added in f32.

mod activations;
pub mod blocks;
pub mod decode;
pub mod encode;
pub mod epilogue;
pub mod experts;
pub mod formats;
mod inputs;
pub mod lora;
pub mod norm;
pub mod scaled;
pub mod search;
pub mod straight_through;
pub mod tile;
pub mod vector;
pub(crate) mod weights;

pub use formats::{FORMATS, Format};

use cuda_std::KernelParams;

/// The parameters of the products of quantised rows: y = act(x·wᵀ + bias) + residual. The [formats] say how w is
/// laid out.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct Product {
    /// [m, n], disjoint from all else
    pub y: *mut f32,
    /// [m, x_k] quants
    pub x: *const u8,
    /// Of x.
    pub x_scales: *const u8,
    /// [n, k] quants
    pub w: *const u8,
    /// Of w.
    pub w_scales: *const u8,
    /// [n] or null
    pub bias: *const f32,
    /// [m, n] or null
    pub residual: *const f32,
    /// A [`tile`]'s sums for each block, if k is in parts.
    pub partial: *mut f32,
    /// A word for each tile that is zero, and zero again after the launch; if k is in parts.
    pub counters: *mut u32,
    pub m: u32,
    pub n: u32,
    pub k: u32,
    /// At least k.
    pub x_k: u32,
    /// The activation, one of [`activate`](crate::activate)'s numbers.
    pub activation: u32,
}

/// The parameters of grouped products: y[r] = x[r] · w[e]ᵀ, where row r is one of expert e's.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct Experts {
    /// [rows, n], disjoint from all else
    pub y: *mut f32,
    /// [rows, x_k] quants, sorted by expert
    pub x: *const u8,
    /// Of x.
    pub x_scales: *const u8,
    /// [experts · n, k] quants
    pub w: *const u8,
    /// Of w.
    pub w_scales: *const u8,
    /// [experts + 1], as [`experts_sort`](crate::experts::experts_sort) writes them
    pub starts: *const u32,
    pub experts: u32,
    pub n: u32,
    pub k: u32,
    /// At least k.
    pub x_k: u32,
}

/// The parameters of grouped gated products: the quantised rows silu(gate)·up, sorted by expert, of x's rows by an index.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct GatedExperts {
    /// [rows, y_k / 4] words of four quants, disjoint from all else
    pub quants: *mut u32,
    /// [rows, y_k / 32], disjoint from all else
    pub scales: *mut blocks::RowScale,
    /// [tokens, x_k] quants
    pub x: *const u8,
    /// Of x.
    pub x_scales: *const u8,
    /// [experts · n, k] quants of the gates
    pub w: *const u8,
    /// Of w.
    pub w_scales: *const u8,
    /// [experts · n, k] quants
    pub up: *const u8,
    /// Of up.
    pub up_scales: *const u8,
    /// [rows]: the row of x, as [`experts_sort`](crate::experts::experts_sort) writes them
    pub tokens: *const u32,
    /// [experts + 1], as `experts_sort` writes them
    pub starts: *const u32,
    pub experts: u32,
    /// Gates of an expert, and ups.
    pub n: u32,
    pub k: u32,
    /// At least k.
    pub x_k: u32,
    /// At least n, a multiple of 32. Columns from n are zeros.
    pub y_k: u32,
}

/// The parameters of gated products: y = the rows silu(gate)·up of x·wᵀ, quantised. A row of x·wᵀ is n/2 gates, then n/2 ups.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct Gated {
    /// [m, y_k / 4] words of four quants, disjoint from all else
    pub quants: *mut u32,
    /// [m, y_k / 32], disjoint from all else
    pub scales: *mut blocks::RowScale,
    /// [m, x_k] quants
    pub x: *const u8,
    /// Of x.
    pub x_scales: *const u8,
    /// [n, k] quants
    pub w: *const u8,
    /// Of w.
    pub w_scales: *const u8,
    pub m: u32,
    /// Even.
    pub n: u32,
    pub k: u32,
    /// At least k.
    pub x_k: u32,
    /// At least n / 2, a multiple of 32. Columns from n / 2 are zeros.
    pub y_k: u32,
}
