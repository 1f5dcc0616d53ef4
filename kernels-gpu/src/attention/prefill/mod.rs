//! Attention over many queries: FlashAttention-2's tiling on the CUDA cores.
//!
//! Source: Dao 2023, "FlashAttention-2", algorithm 1; the running maximum and sum are Milakov & Gimelshein 2018,
//! algorithm 3.
//!
//! ```text
//! for each block of BM queries Q [BM, d] of a head:             (one thread block)
//!     O [BM, d] = 0; m [BM] = −∞; l [BM] = 0
//!     for each tile of BN keys that a query of the block attends to:
//!         S [BM, BN] = Q Kᵀ · scale, −∞ where masked
//!         m' = max(m, rowmax S); P = exp(S − m'); l = exp(m − m') l + rowsum P
//!         O = exp(m − m') O + P V; m = m'
//!     out = O / l
//! ```
//!
//! Differences between the code and this algorithm:
//! 1. Exponents are base 2, the factor log2 e is in `scale`.
//! 2. Q does not stay in shared memory. Q and K are loaded in chunks of BK = 16 columns, V in chunks of 16 keys, and P is stored
//!    half a tile at a time. So 48 KB of shared memory suffice for any head_dim.
//! 3. Chunks are double-buffered: while one is computed, the next is loaded into registers and then stored in the other
//!    buffer, with one barrier per chunk. P needs no barrier, because a warp reads only what it wrote.
//! 4. m and l are in shared memory, because O, S and the operands need the registers.
//! 5. A thread owns rows 16·warp + 8·ty + (0..8), keys 4·tx + (0..4) and, with KEYS = 8, those 64 further of S, and
//!    columns 4·tx + 64g + (0..4) of O, tx = lane mod 16, ty = lane / 16. So a row lies in the 16 lanes of half a warp: m
//!    is reduced by shuffles, l is kept per thread and reduced once at the end.
//! 6. Q, K and P are stored transposed, so that both products are sums of outer products. Otherwise both factors of a
//!    multiply-add would be in the same register bank. Keys of P and V are therefore taken by fours: a chunk of V has the keys
//!    4i + j of one j.
//! 7. Transposed tiles are padded or swizzled (XOR with the column's number), so that neither reads nor writes of shared
//!    memory have bank conflicts.
//! 8. A row that has seen no key has m = −∞. 0 is subtracted instead of m, which gives P = 0 and not NaN.
//! 9. A block has four warps, BM = 64. Block-sparse attention also has blocks of two and one, which load V in chunks of 8
//!    keys; one warp has a single chunk buffer, and synchronises itself instead of the block.
//! 10. Rows and keys past the end are read from the last valid one and masked, not zeroed.

mod block;
pub(super) mod dense;
mod factors;
mod load;
mod pass;
mod products;

pub use block::QUERIES_PER_BLOCK;
pub(super) use block::{
    BK, BM, PAD, Place, SHUFFLES, Scratch, THREADS, WARPS, Work, barrier, bm, bn, chunk_elements,
    chunks_elements, half_elements, key_of, read_indices, sums_elements, thread_index, threads,
};
pub use dense::*;
pub(super) use factors::Factors;
pub(super) use load::Loader;
pub(super) use pass::prefill;
pub(super) use products::scores;

/// Keys of a tile of the dense kernels.
pub const KEYS_PER_TILE: u32 = bn(dense::KEYS);
