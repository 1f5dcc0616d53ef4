//! For sampled queries and each tile of keys: the largest score m, and the sum of 2^(score − m).
//!
//! The scores are computed as by [`prefill`](crate::attention::prefill), whose loads and layout of shared memory they have.

use super::keys::{Rows, SAMPLED, TILE};
use crate::attention::prefill::dense::KEYS;
use crate::attention::prefill::{
    BK, BM, Loader, PAD, Place, SHUFFLES, THREADS, WARPS, Work, barrier, bn, chunk_elements, chunks_elements,
    key_of, read_indices, scores,
};
use crate::attention::tensors::{Floats, Strides, not_zero};
use crate::device::math::exp2;
use crate::device::unroll::unroll;
use crate::device::{F16, Shared};
use crate::kv::{Stored, for_each_storage};
use cuda_std::prelude::*;
use cuda_std::{KernelInfo, KernelSpec};

/// The parameters of the kernels: fields without a comment are as [`Prefill`](crate::attention::Prefill) has them.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct TileSums {
    /// m and the sum, −∞ and 0 of a tile whose keys the query does not see: [num_q_heads, samples, tiles, 2]
    pub sums: *mut f32,
    /// The sequence's pages [ceil(kv_len / PAGE)], or null where key n is row n.
    pub table: *const u32,
    /// [num_q_heads, q_len, head_dim]
    pub q: *const f32,
    /// [last_row + 1, num_kv_heads, head_dim]
    pub k: *const u8,
    pub q_strides: Strides,
    pub k_strides: Strides,
    pub group: u32,
    /// Not 0.
    pub q_len: u32,
    /// Keys of the sequence, including these queries' own; not less than q_len.
    pub kv_len: u32,
    pub head_dim: u32,
    /// The last row of k.
    pub last_row: u32,
    /// ceil(q_len / [`SAMPLED`])
    pub samples: u32,
    /// ceil(kv_len / [`TILE`])
    pub tiles: u32,
    pub scale_log2: f32,
    pub exponent_bits: u32,
    pub k_scales: *const F16,
}

/// The keys, as the loads ask for them.
#[derive(Clone, Copy)]
struct Sampled {
    rows: Rows,
    q_len: u32,
    /// Tiles that the block's last query sees.
    tiles: u32,
}

#[inlined]
impl Sampled {
    /// The query of sample `i`, or of the last one.
    fn query(self, i: u32) -> u32 {
        (i * SAMPLED + SAMPLED - 1).min(self.q_len - 1)
    }

    /// One past the last key that the query of sample `i` attends to.
    fn visible(self, i: u32) -> u32 {
        self.rows.kv_len - self.q_len + self.query(i) + 1
    }
}

#[inlined]
impl Work<KEYS> for Sampled {
    const STEP: u32 = 1;
    const LISTED: bool = false;

    fn place(self) -> Place {
        let [tid, head, y] = read_indices();
        Place::new(tid, 0, head, BM * y)
    }

    fn begin(self) -> u32 {
        thread::block_idx_z()
    }

    fn end(self) -> u32 {
        self.tiles
    }

    fn keys(self, _: u32) -> u32 {
        TILE
    }

    unsafe fn key(self, tile: u32, row: u32) -> u32 {
        // SAFETY: the table has a page for each key: the kernels' contract.
        unsafe { self.rows.row(tile * TILE + row) }
    }

    unsafe fn sees(self, _: Place, _: u32) -> bool {
        true
    }

    unsafe fn mask(self, s: &mut [[f32; KEYS]; 8], place: Place, tile: u32) {
        if (tile + 1) * TILE > self.visible(place.first) {
            let key = tile * TILE + 4 * place.tx;
            unroll!(I < 8 => {
                let visible = self.visible(place.first + place.row + I as u32);
                unroll!(J < KEYS => {
                    if key + key_of(J) >= visible {
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

/// # Safety
/// [`TileSums`] constrains the pointers, which are valid on the launching stream, and the numbers. All threads of the block call it
/// together, and `chunks` [[`chunks_elements`]] belongs to the block. Q_STRIDE = BM + PAD, K_STRIDE = BN + PAD.
#[inline(always)]
unsafe fn tile_sums<S: Stored, const Q_STRIDE: u32, const K_STRIDE: u32>(
    p: TileSums,
    k: S,
    chunks: Shared<f32>,
) {
    let TileSums { q_len, kv_len, head_dim, samples, .. } = p;
    // SAFETY: the grid has a head, so the group is not 0.
    unsafe { not_zero(p.group) };
    let rows = Rows { pages: p.table, last_row: p.last_row, kv_len };
    let mut work = Sampled { rows, q_len, tiles: 0 };
    let Place { tid, tx, row, head, first, .. } = work.place();
    work.tiles = work.visible(first + BM - 1).div_ceil(TILE);
    let load = Loader {
        factors: Floats { q: p.q, k },
        v: k,
        q_at: [0, 8 * WARPS]
            .map(|row| p.q_strides.offset(0, head) + work.query(first + tid / 4 + row) * p.q_strides.row),
        k_head: p.k_strides.offset(0, head / p.group),
        v_head: 0,
        k_row: p.k_strides.row,
        v_row: 0,
        last_key: p.last_row,
        head_dim,
        columns: head_dim,
    };
    let mut tile = work.begin();
    let step = thread::grid_dim_z();
    // the offset of the chunk buffer that is read next; the other one is written meanwhile
    let mut side = 0;
    if tile < work.end() {
        // SAFETY: there is a key, and the grid has no block without a sample.
        unsafe {
            load.put_qk::<WARPS, KEYS>(tid, chunks, load.qk::<WARPS, KEYS, _>(work, tid, tile, 0), 0);
        }
    }
    while tile < work.end() {
        let mut s = [[0.0f32; KEYS]; 8];
        let mut column = 0;
        while column < head_dim {
            // SAFETY: all threads run the same loops. After the barrier the chunk is complete, and no thread reads the other one. Keys
            // past the last are the last.
            unsafe {
                barrier::<WARPS>();
                column += BK;
                let is_next = column >= head_dim;
                let (tile, at) = if is_next { (tile + step, 0) } else { (tile, column) };
                let staged = load.qk::<WARPS, KEYS, _>(work, tid, tile, at);
                let both = |at: u32| [chunks.at(side + at), chunks.at((side + at) ^ 8)]; // rows exchanged as in `put_qk`
                scores::<Floats<f32, S>, 16, KEYS, KEYS, Q_STRIDE, K_STRIDE>(
                    &mut s,
                    both(row),
                    both(BK * Q_STRIDE + tx * 4),
                );
                side = chunk_elements(WARPS, KEYS) - side;
                load.put_qk::<WARPS, KEYS>(tid, chunks.at(side), staged, at);
            }
        }

        let place = work.place();
        unroll!(I < 8 => {
            unroll!(J < KEYS => { s[I][J] *= p.scale_log2; });
        });
        // SAFETY: the block has this tile.
        unsafe { work.mask(&mut s, place, tile) };
        unroll!(I < 8 => {
            let mut max = f32::NEG_INFINITY;
            unroll!(J < KEYS => { max = max.max(s[I][J]); });
            // SAFETY: all lanes are here.
            max = unsafe { Max.over::<16>(max) };
            let base = if max == f32::NEG_INFINITY { 0.0 } else { max };
            let mut sum = 0.0;
            unroll!(J < KEYS => { sum += exp2(s[I][J] - base); });
            // SAFETY: all lanes are here.
            sum = unsafe { Sum.over::<16>(sum) };
            let sample = place.first + place.row + I as u32;
            if place.tx == 0 && sample < samples {
                let at = ((place.head * samples + sample) * p.tiles + tile) as usize * 2;
                // SAFETY: the sample and the tile are inside sums; one lane writes a sample's two numbers.
                unsafe {
                    *p.sums.add(at) = max;
                    *p.sums.add(at + 1) = sum;
                }
            }
        });
        tile += step;
    }
}

macro_rules! kernels {
    ($($storage:ident: $stored:ty, $types:expr, $([$width:ident $d:literal $of_width:literal])+;)*) => {
        /// By the storage of k.
        mod kernels {
            use super::*;

            $(
                /// # Safety
                /// [`TileSums`] constrains the pointers, which are valid on the launching stream, and the numbers; launched as
                /// [`Kernels::sums`](crate::attention::chosen::Kernels::sums) says.
                #[kernel(
                    name = concat!("attention_tile_sums_", $types), block = THREADS, min_blocks = 3, shuffles = SHUFFLES,
                    shared(chunks: [f32; chunks_elements(WARPS, KEYS)])
                )]
                pub unsafe fn $storage(p: TileSums) {
                    let [k, _] = <$stored>::of([p.k, p.k], p.exponent_bits, [p.k_scales, p.k_scales]);
                    // SAFETY: the parameters and the grid fulfil the body's contract.
                    unsafe { tile_sums::<_, { BM + PAD }, { bn(KEYS) + PAD }>(p, k, chunks) }
                }
            )*
        }

        pub(super) const SPECS: &[KernelSpec<TileSums>] = &[$(kernels::$storage),*];
        /// All kernels of this file.
        pub const KERNELS: &[KernelInfo] = &[$(kernels::$storage.info(),)*];
    };
}

for_each_storage! { kernels }
