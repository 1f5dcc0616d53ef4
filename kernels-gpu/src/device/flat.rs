//! How a grid divides a flat array: single elements up to the first 16-byte boundary, vectors of 16 bytes, then the rest.

use cuda_std::thread;

/// Threads in a block of every kernel that uses [`for_each`]. Blocks of 4 KiB were faster than larger ones, because memory
/// is then accessed more nearly in its order.
pub const BLOCK: u32 = 128;

/// Vectors that a thread loads before it stores the first: more would cost occupancy without more bytes in flight.
pub const UNROLL: u32 = 2;

/// Blocks for `n` elements of which the first `head` are single ones, in vectors of `len`.
pub const fn blocks(n: u32, head: u32, len: u32) -> u32 {
    let vectors = (n - head) / len;
    let singles = n - vectors * len;
    let most = if vectors > singles { vectors } else { singles };
    most.div_ceil(BLOCK * UNROLL)
}

/// Calls `load` and then `store` with the index of each vector's first element, and `single` with the index of each element
/// outside the vectors. Every thread of a grid of [`blocks`] blocks calls it.
///
/// `head ≤ n` is the number of elements before the first vector; `head = n` makes all elements single.
#[inline(always)]
pub fn for_each<V: Copy>(
    n: u32,
    head: u32,
    len: u32,
    load: impl Fn(u32) -> V,
    store: impl Fn(u32, V),
    single: impl Fn(u32),
) {
    const TILE: u32 = BLOCK * UNROLL;
    let vectors = (n - head) / len;
    let tile = thread::block_idx_x() * TILE;
    let vector = tile + thread::thread_idx_x();
    let index = |k: u32| head + (vector + k * BLOCK) * len;
    if tile + TILE <= vectors {
        let (first, second) = (load(index(0)), load(index(1)));
        store(index(0), first);
        store(index(1), second);
    } else {
        let mut k = 0;
        while k < UNROLL {
            if vector + k * BLOCK < vectors {
                store(index(k), load(index(k)));
            }
            k += 1;
        }
    }
    let singles = n - vectors * len;
    let mut i = thread::index_1d();
    while i < singles {
        single(if i < head { i } else { i + vectors * len });
        i += thread::grid_dim_x() * BLOCK;
    }
}
