//! Mixture of experts: which experts a token has, the order of tokens by expert, and the sum of the experts' results.
//!
//! ```text
//! p = softmax(x · gateᵀ) [m, experts] → the top_k largest: ids, weights [m, top_k] (divided by their sum)
//! pairs (token, choice), row-major → rows sorted by expert: tokens, places [pairs]; starts [experts + 1]
//! y[t] = Σ weights[t, j] · x[places[t, j]] + residual[t]
//! ```
//!
//! The host knows none of it: how many rows an expert has stays on the device. A grouped product by tiles of `BM` rows has a slot of
//! the grid for every tile there can be. Expert e's tiles begin at slot ⌊starts[e] / BM⌋ + e, and ⌊(a + b) / BM⌋ ≥ ⌊a / BM⌋ +
//! ⌈b / BM⌉ − 1, so the experts' slots do not overlap, and ⌊pairs / BM⌋ + experts slots are enough. A block finds its expert
//! by counting those that begin at or before its slot.
//!
//! | kernel             | idea                                                                                  |
//! |--------------------|---------------------------------------------------------------------------------------|
//! | experts_route_‹t›  | a warp computes a logit; the last block of a token finds the largest by one warp      |
//! | experts_route4_‹t› | a block has four tokens, a warp four logits, so that the gate is read once for them   |
//! | experts_sort       | a block per expert counts the pairs of lower experts, then places its own in order    |
//! | experts_sum_f32    | a thread per element                                                                  |

use crate::device::math::{exp, fma, rcp};
use crate::device::unroll::unroll;
use crate::device::{Element, F16, Shared, shared, ticket};
use core::sync::atomic::{AtomicU32, Ordering};
use cuda_std::butterfly::argmax;
use cuda_std::prelude::*;
use cuda_std::warp::{FULL_MASK, warp_vote_ballot};
use cuda_std::{KernelInfo, KernelSpec};

/// Threads of a block.
const BLOCK: u32 = 256;
const WARPS: u32 = BLOCK / 32;
/// Logits of a block of [`ROUTE`] at a time.
pub const BLOCK_LOGITS: u32 = WARPS;
/// The most experts: a lane of the selecting warp marks every 32nd of them in a word.
pub const MAX_EXPERTS: u32 = 1024;

/// The parameters of the kernels that choose experts.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct Route<T> {
    /// [m, top_k], disjoint from all others, as each of the next two
    pub ids: *mut u32,
    /// [m, top_k]
    pub weights: *mut f32,
    /// [m, experts], scratch
    pub logits: *mut f32,
    /// [m], zeros, which they are again afterwards; not read if gridDim.x = 1
    pub counters: *mut u32,
    /// [experts]: how often each was chosen, to which this is added; or null
    pub uses: *mut u32,
    /// [m, cols]
    pub x: *const f32,
    /// [experts, cols]
    pub gate: *const T,
    /// At most [`MAX_EXPERTS`].
    pub experts: u32,
    /// 1 to `experts`.
    pub top_k: u32,
    pub m: u32,
    pub cols: u32,
    /// 1 if x and gate start at a multiple of four elements and cols is a multiple of four, else 0.
    pub vectors: u32,
    /// 1 if weights are divided by their sum, else 0.
    pub normalized: u32,
}

/// The parameters of [`experts_sort`].
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct Sort {
    /// [pairs]: the token of each sorted row
    pub tokens: *mut u32,
    /// [pairs]: the sorted row of each pair
    pub places: *mut u32,
    /// [gridDim.x + 1]: the first row of each expert, and their number
    pub starts: *mut u32,
    /// [pairs], below gridDim.x
    pub ids: *const u32,
    pub pairs: u32,
    pub top_k: u32,
}

/// The parameters of [`experts_sum_f32`].
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct Combine {
    /// [gridDim.x, cols], disjoint from all others
    pub y: *mut f32,
    /// [gridDim.x · top_k, cols]
    pub x: *const f32,
    /// [gridDim.x, top_k]
    pub weights: *const f32,
    /// [gridDim.x, top_k], rows of x; or null if x is in the order of the pairs
    pub places: *const u32,
    /// [gridDim.x, cols], or null
    pub residual: *const f32,
    pub cols: u32,
    pub top_k: u32,
}

/// All kernels of this file.
pub const KERNELS: &[KernelInfo] = &[
    experts_route_f32.info(),
    experts_route_f16.info(),
    experts_route4_f32.info(),
    experts_route4_f16.info(),
    experts_sort.info(),
    experts_sum_f32.info(),
];

/// By the type of the gate: f32, f16. grid = [blocks for the experts, m]
pub const ROUTE: (KernelSpec<Route<f32>>, KernelSpec<Route<F16>>) = (experts_route_f32, experts_route_f16);
/// By the type of the gate. grid = [1, ceil(m / ROUTE_TOKENS)]
pub const ROUTE4: (KernelSpec<Route<f32>>, KernelSpec<Route<F16>>) = (experts_route4_f32, experts_route4_f16);
/// Tokens of a block of [`ROUTE4`].
pub const ROUTE_TOKENS: u32 = 4;

/// Columns of y that a block of [`experts_sum_f32`] computes.
pub const SUM_COLUMNS: u32 = BLOCK;

/// Computes the logits of L experts from `first` on for each of T tokens from `token` on, in all lanes. Experts and tokens past the
/// last are that one. The order of additions does not depend on U, the vectors of each row in flight.
///
/// # Safety
/// As the kernels; all lanes of the warp are here.
#[inline(always)]
unsafe fn logits<E: Element, const T: usize, const L: usize, const U: usize>(
    p: &Route<E>,
    token: u32,
    first: u32,
) -> [[f32; L]; T] {
    let mut gates = [p.gate; L];
    unroll!(J < 4 => if J < L {
        gates[J] = p.gate.wrapping_add(((first + J as u32).min(p.experts - 1) * p.cols) as usize);
    });
    let mut tokens = [p.x; T];
    unroll!(I < 4 => if I < T {
        tokens[I] = p.x.wrapping_add((token + I as u32).min(p.m - 1) as usize * p.cols as usize);
    });
    let mut sums = [[0.0f32; L]; T];
    let lane = warp::lane_id();
    // SAFETY: rows are clamped to the last one and columns are below cols; all lanes are at the shuffles.
    unsafe {
        if p.vectors != 0 {
            let mut c = lane * 4;
            while c < p.cols {
                let (mut ws, mut xs) = ([[[0.0; 4]; L]; U], [[[0.0; 4]; T]; U]);
                unroll!(V < 4 => if V < U {
                    let c = c + 128 * V as u32;
                    if c < p.cols {
                        ws[V] = gates.map(|gate| E::load4(gate.add(c as usize)));
                        xs[V] = tokens.map(|x| f32::load4(x.add(c as usize)));
                    }
                });
                unroll!(V < 4 => if V < U {
                    unroll!(I < 4 => if I < T {
                        unroll!(J < 4 => if J < L {
                            let (x, w, sum) = (xs[V][I], ws[V][J], sums[I][J]);
                            sums[I][J] = fma(x[3], w[3], fma(x[2], w[2], fma(x[1], w[1], fma(x[0], w[0], sum))));
                        });
                    });
                });
                c += 128 * U as u32;
            }
        } else {
            let mut c = lane;
            while c < p.cols {
                let w = gates.map(|gate| E::load(gate.add(c as usize)));
                unroll!(I < 4 => if I < T {
                    let x = f32::load(tokens[I].add(c as usize));
                    unroll!(J < 4 => if J < L {
                        sums[I][J] = fma(x, w[J], sums[I][J]);
                    });
                });
                c += 32;
            }
        }
        unroll!(I < 4 => if I < T {
            unroll!(J < 4 => if J < L {
                sums[I][J] = Sum.over::<32>(sums[I][J]);
            });
        });
    }
    sums
}

/// Writes the `top_k` experts with the largest probabilities, of equal ones those with lower numbers.
///
/// # Safety
/// As the kernels; all lanes of one warp are here, and the token's logits are visible to them. `keys` has a word for each expert, and
/// nobody else accesses it.
#[inline(always)]
unsafe fn choose<T>(p: &Route<T>, token: usize, keys: Shared<u32>) {
    let lane = warp::lane_id();
    let logits = p.logits.wrapping_add(token * p.experts as usize);
    let (ids, weights) =
        (p.ids.wrapping_add(token * p.top_k as usize), p.weights.wrapping_add(token * p.top_k as usize));
    // SAFETY: indices are below `experts`, and of results below `top_k`; a lane reads only what it has written.
    // All lanes are at the shuffles: their loops have the same bounds.
    unsafe {
        let mut own = f32::NEG_INFINITY;
        let mut e = lane;
        while e < p.experts {
            let logit = *logits.add(e as usize);
            keys.set(e, logit.to_bits());
            own = own.max(logit);
            e += 32;
        }
        let max = Max.over::<32>(own);
        let mut own = 0.0;
        let mut e = lane;
        while e < p.experts {
            let weight = exp(f32::from_bits(keys.get(e)) - max);
            keys.set(e, weight.to_bits());
            own += weight;
            e += 32;
        }
        let scale = rcp(Sum.over::<32>(own));
        let mut e = lane;
        while e < p.experts {
            // Bits of floats that are not negative are in the order of their values; NaN's, without its sign, come last. Zero is
            // less than any.
            let probability = f32::from_bits(keys.get(e)) * scale;
            keys.set(e, (probability.to_bits() & 0x7fff_ffff) + 1);
            e += 32;
        }
        let mut total = 0.0;
        let mut j = 0;
        while j < p.top_k {
            let (mut best, mut index) = (0, u32::MAX);
            let mut e = lane;
            while e < p.experts {
                let key = keys.get(e);
                if key > best {
                    (best, index) = (key, e);
                }
                e += 32;
            }
            let (key, index) = argmax(best, index, 32);
            if index % 32 == lane {
                keys.set(index, 0);
            }
            let probability = f32::from_bits(key - 1);
            total += probability;
            if j % 32 == lane {
                *ids.add(j as usize) = index;
                *weights.add(j as usize) = probability;
                if !p.uses.is_null() {
                    AtomicU32::from_ptr(p.uses.add(index as usize)).fetch_add(1, Ordering::Relaxed);
                }
            }
            j += 1;
        }
        if p.normalized != 0 {
            let mut j = lane;
            while j < p.top_k {
                *weights.add(j as usize) /= total;
                j += 32;
            }
        }
    }
}

/// The experts of T tokens. With several blocks for the experts, the last of them chooses.
///
/// # Safety
/// As the kernels below.
#[inline(always)]
unsafe fn route<E: Element, const T: usize, const L: usize, const U: usize>(p: Route<E>, keys: Shared<u32>) {
    let (token, warp) = (thread::block_idx_y() * T as u32, thread::thread_idx_x() / 32);
    let mut first = (thread::block_idx_x() * WARPS + warp) * L as u32;
    // SAFETY: whole warps enter the loop. A logit is written by one lane, and read after all blocks of the token are done.
    unsafe {
        while first < p.experts {
            let sums = logits::<E, T, L, U>(&p, token, first);
            let lane = warp::lane_id();
            unroll!(I < 4 => if I < T {
                let mut logit = sums[I][0];
                unroll!(J < 4 => if J < L && lane == J as u32 {
                    logit = sums[I][J];
                });
                let token = token + I as u32;
                if lane < L as u32 && first + lane < p.experts && token < p.m {
                    *p.logits.add(token as usize * p.experts as usize + (first + lane) as usize) = logit;
                }
            });
            first += thread::grid_dim_x() * WARPS * L as u32;
        }
        if thread::grid_dim_x() == 1 {
            thread::sync_threads();
        } else if !ticket::is_last(p.counters.add(token as usize), thread::grid_dim_x()) {
            return;
        }
        if warp < T as u32 && token + warp < p.m {
            choose(&p, (token + warp) as usize, keys.at(warp * MAX_EXPERTS));
        }
    }
}

/// # Safety
/// [`Route`] constrains the pointers, which are valid on the launching stream for fewer than 2³¹ elements.
#[kernel(block = BLOCK, min_blocks = 5, shared_bytes = 4 * MAX_EXPERTS, shuffles = 25)]
pub unsafe fn experts_route_f32(p: Route<f32>) {
    // SAFETY: this kernel's contract is the body's.
    unsafe { route::<_, 1, 1, 4>(p, shared::declare::<u32, { MAX_EXPERTS as usize }>()) }
}

/// # Safety
/// As [`experts_route_f32`].
#[kernel(block = BLOCK, min_blocks = 5, shared_bytes = 4 * MAX_EXPERTS, shuffles = 25)]
pub unsafe fn experts_route_f16(p: Route<F16>) {
    // SAFETY: this kernel's contract is the body's.
    unsafe { route::<_, 1, 1, 4>(p, shared::declare::<u32, { MAX_EXPERTS as usize }>()) }
}

/// # Safety
/// As [`experts_route_f32`]; gridDim.x = 1.
#[kernel(block = BLOCK, min_blocks = 3, shared_bytes = 4 * ROUTE_TOKENS * MAX_EXPERTS, shuffles = 100)]
pub unsafe fn experts_route4_f32(p: Route<f32>) {
    // SAFETY: this kernel's contract is the body's.
    unsafe {
        let keys = shared::declare::<u32, { (ROUTE_TOKENS * MAX_EXPERTS) as usize }>();
        route::<_, { ROUTE_TOKENS as usize }, 4, 1>(p, keys)
    }
}

/// # Safety
/// As [`experts_route4_f32`].
#[kernel(block = BLOCK, min_blocks = 3, shared_bytes = 4 * ROUTE_TOKENS * MAX_EXPERTS, shuffles = 100)]
pub unsafe fn experts_route4_f16(p: Route<F16>) {
    // SAFETY: this kernel's contract is the body's.
    unsafe {
        let keys = shared::declare::<u32, { (ROUTE_TOKENS * MAX_EXPERTS) as usize }>();
        route::<_, { ROUTE_TOKENS as usize }, 4, 1>(p, keys)
    }
}

/// Sorts pairs by expert; those of one expert stay in their order. grid = [experts]
///
/// # Safety
/// [`Sort`] constrains the pointers, which are valid on the launching stream; pairs < 2³¹.
#[kernel(block = BLOCK, min_blocks = 8, shared(below: [u32; WARPS], own: [u32; WARPS]), shuffles = 0)]
pub unsafe fn experts_sort(Sort { tokens, places, starts, ids, pairs, top_k }: Sort) {
    let expert = thread::block_idx_x();
    let (warp, lane) = (thread::thread_idx_x() / 32, warp::lane_id());
    // A warp has a range of whole groups of 32 pairs.
    let per_warp = pairs.div_ceil(BLOCK) * 32;
    let (from, to) = (warp * per_warp, pairs.min((warp + 1) * per_warp));
    // SAFETY: pairs are below `pairs`. All lanes of a warp are at its votes, all threads at the barrier, after which the
    // counts are only read.
    unsafe {
        let id = |pair: u32| if pair < to { *ids.add(pair as usize) } else { u32::MAX };
        let (mut lower, mut equal) = (0, 0);
        let mut at = from;
        while at < to {
            let id = id(at + lane);
            lower += warp_vote_ballot(FULL_MASK, id < expert).count_ones();
            equal += warp_vote_ballot(FULL_MASK, id == expert).count_ones();
            at += 32;
        }
        if lane == 0 {
            below.set(warp, lower);
            own.set(warp, equal);
        }
        thread::sync_threads();
        let (start, before, count) = totals(below, own, warp);
        if thread::thread_idx_x() == 0 {
            *starts.add(expert as usize) = start;
            if expert + 1 == thread::grid_dim_x() {
                *starts.add(expert as usize + 1) = start + count;
            }
        }
        let mut next = start + before;
        let mut at = from;
        while at < to {
            let pair = at + lane;
            let is_own = id(pair) == expert;
            let votes = warp_vote_ballot(FULL_MASK, is_own);
            if is_own {
                let row = next + (votes & ((1 << lane) - 1)).count_ones();
                *places.add(pair as usize) = row;
                *tokens.add(row as usize) = pair / top_k.max(1); // .max: a division may not panic
            }
            next += votes.count_ones();
            at += 32;
        }
    }
}

/// The pairs of lower experts, this expert's in warps before `warp`, and this expert's.
///
/// # Safety
/// The counts are written, and a barrier has passed since.
#[inline(always)]
unsafe fn totals(below: Shared<u32>, own: Shared<u32>, warp: u32) -> (u32, u32, u32) {
    let (mut start, mut before, mut count) = (0, 0, 0);
    let mut other = 0;
    while other < WARPS {
        // SAFETY: the counts of every warp are there: this function's contract.
        unsafe {
            start += below.get(other);
            let own = own.get(other);
            before += if other < warp { own } else { 0 };
            count += own;
        }
        other += 1;
    }
    (start, before, count)
}

/// grid = [tokens, ceil(cols / SUM_COLUMNS)]
///
/// # Safety
/// [`Combine`] constrains the pointers, which are valid on the launching stream for fewer than 2³¹ elements.
#[kernel(block = BLOCK, min_blocks = 8)]
pub unsafe fn experts_sum_f32(Combine { y, x, weights, places, residual, cols, top_k }: Combine) {
    let (token, column) = (thread::block_idx_x(), thread::block_idx_y() * BLOCK + thread::thread_idx_x());
    if column >= cols {
        return;
    }
    let at = (token * cols + column) as usize;
    // SAFETY: the column and the token's pairs exist, places are rows of x, and the element is this thread's.
    unsafe {
        let mut sum = 0.0;
        let mut pair = token * top_k;
        while pair < (token + 1) * top_k {
            let row = if places.is_null() { pair } else { *places.add(pair as usize) };
            sum = fma(*weights.add(pair as usize), f32::load(x.add((row * cols + column) as usize)), sum);
            pair += 1;
        }
        if !residual.is_null() {
            sum += f32::load(residual.add(at));
        }
        *y.add(at) = sum;
    }
}

/// The slot of an expert that has none.
pub const NO_SLOT: u32 = u32::MAX;

/// Where an expert's rows of a matrix are, in a product of few rows.
#[derive(Clone, Copy)]
pub(crate) enum Place {
    /// From this row of the tensor of all experts on.
    All(u32),
    /// From this row of the tensor of slots on.
    Slot(u32),
    /// In the tensor of all experts, and another computes with it.
    Away,
}

/// The place of an expert with `n` rows. `slots`: each expert's slot or [`NO_SLOT`]; null if none has one.
///
/// # Safety
/// `slots` has the expert, or is null.
#[inline(always)]
pub(crate) unsafe fn place(slots: *const u32, on_device: u32, expert: u32, n: u32) -> Place {
    if slots.is_null() {
        return Place::All(expert * n);
    }
    // SAFETY: the expert has an entry: this function's contract.
    match unsafe { *slots.add(expert as usize) } {
        NO_SLOT if on_device != 0 => Place::Away,
        NO_SLOT => Place::All(expert * n),
        slot => Place::Slot(slot * n),
    }
}

/// A tile's rows in a grouped product.
#[derive(Clone, Copy)]
pub(crate) struct TileRows {
    pub expert: u32,
    /// Of the sorted rows.
    pub first: u32,
    /// 1 to the tile's.
    pub len: u32,
}

/// The number of slots of a grid whose tiles have `bm` rows.
pub const fn slots(pairs: u32, bm: u32, experts: u32) -> u32 {
    pairs / bm + experts
}

/// The rows of slot `slot` of a grid of [`slots`]; `None` if it has none.
///
/// # Safety
/// `starts` has `experts` + 1 elements, as [`experts_sort`] writes them. All lanes of the warp call it together.
#[inline(always)]
pub(crate) unsafe fn tile_rows(starts: *const u32, experts: u32, slot: u32, bm: u32) -> Option<TileRows> {
    let lane = warp::lane_id();
    let mut begun = 0;
    let mut base = 0;
    // SAFETY: indices are at most `experts`, and all lanes are at the votes: this function's contract.
    unsafe {
        while base < experts {
            let e = base + lane;
            let has_begun = e < experts && *starts.add(e.min(experts) as usize) / bm + e <= slot;
            begun += warp_vote_ballot(FULL_MASK, has_begun).count_ones();
            base += 32;
        }
        let expert = begun - 1; // the first begins at slot 0
        let start = *starts.add(expert as usize);
        let first = start + (slot - (start / bm + expert)) * bm;
        let end = *starts.add(expert as usize + 1);
        (first < end).then(|| TileRows { expert, first, len: bm.min(end - first) })
    }
}
