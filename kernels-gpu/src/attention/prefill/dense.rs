//! Many queries of a head with all keys, or causally with those up to each query's position.
//!
//! Where queries are too few to fill the device, several blocks have the same queries and a part of the keys each. A second
//! kernel merges their partial results (Milakov & Gimelshein 2018, section 3.1).
//!
//! | kernel                       | a block handles                                   |
//! |------------------------------|---------------------------------------------------|
//! | attention_prefill_d‹D›_‹t›   | 64 queries of a head, all keys or a part of them  |
//! | attention_prefill_merge_‹t›  | 4 or 8 rows of a head                             |
//!
//! On sm_61 two blocks of either width are resident on a multiprocessor. With eight keys a thread, 85 % of the loops'
//! instructions are multiply-adds. With four, a third block is resident; on an H200 that took 3 to 7 % longer (head_dim 64),
//! 7 to 38 % (128).

use super::block::{
    BM, PAD, Place, SHUFFLES, Scratch, THREADS, WARPS, Work, bn, chunks_elements, half_elements, key_of,
    read_indices, sums_elements,
};
use super::pass::prefill;
use crate::attention::merge::{base, partial_elements};
use crate::attention::tensors::{Strides, Width, not_zero, tensors};
use crate::device::math::{exp2, fma, rcp};
use crate::device::unroll::unroll;
use crate::device::{Element, F16};
use crate::kv::{Stored, for_each_storage};
use cuda_std::KernelInfo;
use cuda_std::prelude::*;

/// Columns of a tile's scores that a thread computes: tiles of 128 keys.
pub(in crate::attention) const KEYS: usize = 8;

/// The parameters of the kernels. q and out are of type `Q`; k and v are [`Stored`] as the kernel's name says.
///
/// First elements and strides of all four tensors are multiples of 8 elements; each tensor, with its gaps, spans less than
/// 2³¹ elements.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct Prefill<Q> {
    /// [b, num_q_heads, q_len, head_dim], disjoint from all others
    pub out: *mut Q,
    /// [b, num_q_heads, q_len, head_dim]
    pub q: *const Q,
    /// [b, num_kv_heads, kv_len, head_dim]
    pub k: *const u8,
    /// [b, num_kv_heads, kv_len, head_dim]
    pub v: *const u8,
    pub out_strides: Strides,
    pub q_strides: Strides,
    pub k_strides: Strides,
    pub v_strides: Strides,
    pub num_q_heads: u32,
    /// Query heads of a kv head.
    pub group: u32,
    pub q_len: u32,
    /// May be 0.
    pub kv_len: u32,
    /// A multiple of 8, at least 8 and at most the kernel's.
    pub head_dim: u32,
    /// scale · log₂ e
    pub scale_log2: f32,
    /// 1 if causal, else 0.
    pub causal: u32,
    /// The first so many rows of the grid are launched longest first, the others shortest first. In every second part all are
    /// launched shortest first, unless this is more than all rows.
    pub longest_first: u32,
    /// The keys are in 2 to this power parts, of as many tiles as possible each.
    pub parts_log2: u32,
    /// With more than one part, [gridDim.x, gridDim.y, parts, BM, [`partial_elements`](super::super::merge::partial_elements)(D)],
    /// 16-byte aligned, else not used. The second index is that of the queries.
    pub partial: *mut f32,
    /// Exponent bits of codes, 2 to 8; else not used.
    pub exponent_bits: u32,
    /// Scales of k's blocks, if it is stored in such; else not used.
    pub k_scales: *const F16,
    /// As `k_scales`, for v.
    pub v_scales: *const F16,
}

/// All keys, or those up to each query's position.
#[derive(Clone, Copy)]
pub(in crate::attention) struct Dense {
    pub num_q_heads: u32,
    pub q_len: u32,
    pub kv_len: u32,
    /// All ones if causal, else 0. A mask and not a condition, so that the compiler creates no branches.
    pub causal: u32,
    /// Rows of blocks that are launched longest first.
    pub longest_first: u32,
}

#[inlined]
impl Dense {
    /// `causal` is 0 or 1.
    pub fn new(num_q_heads: u32, [q_len, kv_len]: [u32; 2], causal: u32, longest_first: u32) -> Self {
        Self { num_q_heads, q_len, kv_len, causal: 0u32.wrapping_sub(causal), longest_first }
    }

    /// As [`visible`](crate::attention::visible).
    fn visible(self, i: u32) -> i32 {
        self.kv_len as i32 + ((i as i32 + 1 - self.q_len as i32) & self.causal as i32)
    }

    /// The block's first query.
    fn first(self, y: u32) -> u32 {
        let longest_first = y < self.longest_first;
        BM * if longest_first { thread::grid_dim_y() - 1 - y } else { y - self.longest_first }
    }

    /// Number of keys that the block's last query, and so any of its queries, attends to.
    fn seen(self) -> u32 {
        let [_, _, y] = read_indices();
        let last = (self.first(y) + BM).min(self.q_len) - 1;
        self.visible(last).max(0) as u32
    }
}

#[inlined]
impl Work<KEYS> for Dense {
    const STEP: u32 = 1;
    const LISTED: bool = false;

    /// The blocks with the most keys are launched first, so that short ones fill the gaps at the end. Blocks after
    /// `longest_first` are launched shortest first: where all are resident at once, each shares a multiprocessor with one
    /// that is longer by as much as it is shorter.
    fn place(self) -> Place {
        let [tid, x, y] = read_indices();
        Place::new(tid, x / self.num_q_heads, x % self.num_q_heads, self.first(y))
    }

    fn begin(self) -> u32 {
        0
    }

    fn end(self) -> u32 {
        self.seen().div_ceil(bn(KEYS))
    }

    fn keys(self, tile: u32) -> u32 {
        (self.seen() - tile * bn(KEYS)).next_multiple_of(64).min(bn(KEYS))
    }

    unsafe fn key(self, tile: u32, row: u32) -> u32 {
        tile * bn(KEYS) + row
    }

    unsafe fn sees(self, _: Place, _: u32) -> bool {
        true
    }

    /// Rows past q_len may attend to any key: they are not written.
    unsafe fn mask(self, s: &mut [[f32; KEYS]; 8], place: Place, tile: u32) {
        if ((tile + 1) * bn(KEYS)) as i32 > self.visible(place.first) {
            let key = tile * bn(KEYS) + 4 * place.tx;
            let past_row = key as i32 - self.visible(place.first + place.row);
            let per_row = (1 & self.causal) as i32;
            unroll!(I < 8 => {
                unroll!(J < KEYS => {
                    let masked = past_row + key_of(J) as i32 >= per_row * I as i32;
                    if masked || key + key_of(J) >= self.kv_len {
                        s[I][J] = f32::NEG_INFINITY;
                    }
                });
            });
        }
    }

    unsafe fn partial(self) -> Option<*mut f32> {
        None
    }
}

/// The blocks along the grid's z have a part of the tiles each.
#[derive(Clone, Copy)]
pub(in crate::attention) struct Part {
    dense: Dense,
    parts_log2: u32,
    partial: *mut f32,
    /// Elements of a partial result.
    elements: u32,
}

impl Part {
    /// For a kernel of `columns`. In every second part all rows of blocks are launched shortest first, unless `longest_first` is more than
    /// all rows.
    #[inline(always)]
    pub fn new(dense: Dense, parts_log2: u32, partial: *mut f32, columns: u32) -> Self {
        let turns = thread::block_idx_z() % 2 == 1 && dense.longest_first <= thread::grid_dim_y();
        let longest_first = if turns { 0 } else { dense.longest_first };
        let dense = Dense { longest_first, ..dense };
        Self { dense, parts_log2, partial, elements: BM * partial_elements(columns) }
    }

    /// The first tile of part `part`.
    #[inline(always)]
    fn tile(self, part: u32) -> u32 {
        (self.dense.end() * part) >> self.parts_log2
    }
}

#[inlined]
impl Work<KEYS> for Part {
    const STEP: u32 = <Dense as Work<KEYS>>::STEP;
    const LISTED: bool = <Dense as Work<KEYS>>::LISTED;

    fn place(self) -> Place {
        self.dense.place()
    }

    fn begin(self) -> u32 {
        self.tile(thread::block_idx_z())
    }

    fn end(self) -> u32 {
        self.tile(thread::block_idx_z() + 1)
    }

    fn keys(self, tile: u32) -> u32 {
        self.dense.keys(tile)
    }

    unsafe fn key(self, tile: u32, row: u32) -> u32 {
        // SAFETY: this function's contract.
        unsafe { self.dense.key(tile, row) }
    }

    unsafe fn sees(self, place: Place, tile: u32) -> bool {
        // SAFETY: this function's contract.
        unsafe { self.dense.sees(place, tile) }
    }

    unsafe fn mask(self, s: &mut [[f32; KEYS]; 8], place: Place, tile: u32) {
        // SAFETY: this function's contract.
        unsafe { self.dense.mask(s, place, tile) }
    }

    unsafe fn partial(self) -> Option<*mut f32> {
        if self.parts_log2 == 0 {
            return None;
        }
        let [_, x, y] = read_indices();
        let queries = self.dense.first(y) / BM;
        let part = ((x * thread::grid_dim_y() + queries) << self.parts_log2) + thread::block_idx_z();
        Some(self.partial.wrapping_add(part as usize * self.elements as usize))
    }
}

macro_rules! kernels {
    ($kernels:ident $q:ty; $($storage:ident: $stored:ty, $types:expr, $([$width:ident $d:literal $of_width:literal])+;)*) => {
        /// The kernels for queries of one type, by the storage of k and v, and width.
        pub mod $kernels {
            use super::*;

            $(mod $storage {
                use super::*;

                $(
                    /// # Safety
                    /// [`Prefill`] constrains the pointers, which are valid on the launching stream, and the numbers;
                    /// launched as [`Kernels::prefill`](crate::attention::Kernels::prefill) says.
                    #[kernel(
                        name = concat!("attention_prefill_", $of_width, "_", $types), block = THREADS, min_blocks = 2,
                        shuffles = SHUFFLES,
                        shared(
                            chunks: [f32; chunks_elements(WARPS, KEYS)], probabilities: [f32; half_elements(WARPS, KEYS)],
                            maxima: [f32; BM], sums: [f32; sums_elements(WARPS)]
                        )
                    )]
                    pub unsafe fn $width(p: Prefill<$q>) {
                        let [k, v] = <$stored>::of([p.k, p.v], p.exponent_bits, [p.k_scales, p.v_scales]);
                        let scratch = Scratch { chunks, probabilities, maxima, sums };
                        // SAFETY: the grid has a block, so there is a head; the parameters fulfil `prefill`'s contract.
                        unsafe {
                            not_zero(p.num_q_heads);
                            let dense = Dense::new(p.num_q_heads, [p.q_len, p.kv_len], p.causal, p.longest_first);
                            let work = Part::new(dense, p.parts_log2, p.partial, $d);
                            prefill::<_, _, _, WARPS, { $d / 64 }, { $d % 64 / 16 }, KEYS, { BM + PAD }, { bn(KEYS) + PAD }, _>(
                                tensors!(p, k, v), p.kv_len.wrapping_sub(1), work, scratch,
                            )
                        }
                    }
                )+
            })*

            pub(in crate::attention) const SPECS: &[&[Width<Prefill<$q>>]] =
                &[$(&[$(Width { columns: $d, spec: $storage::$width }),+]),*];
            /// All of them.
            pub const KERNELS: &[KernelInfo] = &[$($($storage::$width.info(),)+)*];
        }
    };
}

kernels! { of_f16 F16; as_f16: *const F16, "f16", [d64 64 "d64"] [d128 128 "d128"]; }
for_each_storage! { kernels of_f32 f32; }
kernels! { of_f32_d80 f32; as_f32: *const f32, "f32", [d80 80 "d80"]; }

/// The parameters of the kernels that merge the parts of [`Prefill`].
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct PrefillMerge<T> {
    /// [b, num_q_heads, q_len, head_dim], disjoint from the partial results
    pub out: *mut T,
    /// As the previous kernel has written it, with as many heads as gridDim.x and queries of `tiles` blocks.
    pub partial: *const f32,
    pub out_strides: Strides,
    pub num_q_heads: u32,
    pub q_len: u32,
    pub tiles: u32,
    pub parts_log2: u32,
    pub head_dim: u32,
    /// The head_dim D of the previous kernel: 64, 80 or 128.
    pub d: u32,
}

/// The rows that a block merges: a thread has four columns of one.
pub const fn rows_merged(d: u32) -> u32 {
    THREADS / lanes(d)
}

/// The threads of a row.
const fn lanes(d: u32) -> u32 {
    if d == 64 { 16 } else { 32 }
}

/// # Safety
/// As the kernels below.
#[inline(always)]
unsafe fn merge_parts<T: Element>(p: PrefillMerge<T>) {
    let PrefillMerge { out, partial, out_strides, num_q_heads, q_len, tiles, parts_log2, head_dim, d } = p;
    let (x, tid) = (thread::block_idx_x(), thread::thread_idx_x());
    let lanes = lanes(d);
    let (i, column) = (thread::block_idx_y() * (THREADS / lanes) + tid / lanes, tid % lanes * 4);
    if i >= q_len || column >= head_dim {
        return; // no barrier follows
    }
    // SAFETY: the grid has a block, so there is a head. Query i is in row i % BM of the records of tile i / BM, whose columns and
    // first two words of the state are written; head_dim is a multiple of 8, and row and columns are inside out.
    unsafe {
        not_zero(num_q_heads);
        let (width, parts) = (partial_elements(d) as usize, 1 << parts_log2);
        let first = ((x * tiles + i / BM) << parts_log2) * BM + i % BM;
        let record = |part: u32| partial.add((first + part * BM) as usize * width);
        let mut max = f32::NEG_INFINITY;
        let mut part = 0;
        while part < parts {
            max = max.max(f32::load(record(part).add(d as usize)));
            part += 1;
        }
        let (mut total, mut sum) = ([0.0; 4], 0.0);
        part = 0;
        while part < parts {
            let state = record(part).add(d as usize);
            let weight = exp2(f32::load(state) - base(max));
            sum = fma(weight, f32::load(state.add(1)), sum);
            let values = f32::load4(record(part).add(column as usize));
            unroll!(J < 4 => { total[J] = fma(weight, values[J], total[J]); });
            part += 1;
        }
        let factor = if sum == 0.0 { 0.0 } else { rcp(sum) };
        let at = out_strides.offset(x / num_q_heads, x % num_q_heads) + i * out_strides.row + column;
        T::store4(out.add(at as usize), total.map(|total| total * factor));
    }
}

macro_rules! merge_kernels {
    ($($name:ident: $t:ty;)*) => {$(
        /// grid = [b · num_q_heads, ceil(q_len / [`rows_merged`])]
        ///
        /// # Safety
        /// [`PrefillMerge`] constrains the pointers, which are valid on the launching stream, and the numbers.
        #[kernel(block = THREADS, min_blocks = 16, module = "attention_prefill_merge")]
        pub unsafe fn $name(p: PrefillMerge<$t>) {
            // SAFETY: this kernel's contract is the body's.
            unsafe { merge_parts(p) }
        }
    )*};
}

merge_kernels! {
    attention_prefill_merge_f32: f32;
    attention_prefill_merge_f16: F16;
}

/// The kernels that merge.
pub const MERGE: &[KernelInfo] = &[attention_prefill_merge_f32.info(), attention_prefill_merge_f16.info()];
