//! Attention of few queries over many keys (split-KV). It is bound by reading K and V. The keys are split over blocks. A
//! block serves all query heads of its kv head, so K and V are read once.
//!
//! Source: Dao et al. 2023, "Flash-Decoding for long-context inference"; the merging of partial results is
//! Milakov & Gimelshein 2018, section 3.1.
//!
//! ```text
//! for each kv head and split of its keys:                                        (one thread block)
//!     for each key of the split: s = q · k; m' = max(m, s); p = exp(s − m')
//!         l = exp(m − m') l + p; acc = exp(m − m') acc + p v; m = m'             for R rows
//!     write (acc, m, l)
//! the last block of a kv head: out = Σ exp(mᵢ − max m) accᵢ / Σ exp(mᵢ − max m) lᵢ over its splits
//! ```
//!
//! Differences between the code and this algorithm:
//! 1. The rows of a kv head are the q_len queries of its `group` query heads: row r is query r mod q_len of head
//!    r / q_len. A block takes R of them.
//! 2. L lanes share a key, 8 columns each; 128 / L keys are computed in parallel, each with its own (m, l, acc), which
//!    are merged in shared memory at the end. So only the dot products need shuffles.
//! 3. U keys are loaded before the first is used, and m is updated once for all of them. The values are loaded while the
//!    scores are computed, and the next keys while the values are used.
//! 4. With a single split the block writes the result itself; else the last of a kv head's blocks does (see [`merge`]).
//! 5. Columns of f32 rows are two pieces of 4, L · 4 apart, so that each 16-byte load of the L lanes is contiguous.
//! 6. Exponents are base 2; a row without a key has m = −∞ and gives 0, as in the prefill kernels.
//! 7. The number of keys may be read from device memory, so that a captured launch serves every length. The grid fixes the
//!    number of splits; their length follows from the number of keys.
//! 8. Keys past the end are read from the last one and masked; columns past head_dim are read from the last ones and
//!    q is 0 there.
//! 9. q may be a fused projection, with the queries' own keys and values: [`appended`](super::appended).

use super::appended::{Appended, KvHead, Rows};
use super::merge::{Merge, Scratch, base};
use super::tensors::{Floats, Strides, Tensors, by_width, not_zero, tensors, visible};
use crate::device::math::{exp2, fma};
use crate::device::order::opaque;
use crate::device::unroll::unroll;
use crate::device::{Element, F16};
use crate::kv::{Stored, for_each_storage};
use crate::rope_append::Rotation;
use cuda_std::prelude::*;
use cuda_std::{KernelInfo, KernelSpec};

pub(super) const THREADS: u32 = 128;

/// Keys that a block has in flight. Where the kernel chooses the length of a split, it is a multiple of this.
pub(super) const KEY_STEP: u32 = 32;

/// The parameters of the kernels. q and out are of type `Q`; k and v are [`Stored`] as the kernel's name says.
///
/// First elements and strides of all four tensors are multiples of 8 elements; each tensor, with its gaps, spans less than
/// 2³¹ elements.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct Decode<Q> {
    /// [b, num_q_heads, q_len, head_dim], disjoint from all others
    pub out: *mut Q,
    /// With more than one split, [b · num_q_heads · q_len, splits, [`partial_elements`](super::merge::partial_elements)(d)] for
    /// the instance's head_dim d, 16-byte aligned, disjoint from all others; else not used.
    pub partial: *mut f32,
    /// With more than one split, [gridDim.y · gridDim.z] zeros; the kernel leaves them zero. Else not used.
    pub counters: *mut u32,
    /// [b, num_q_heads, q_len, head_dim]; with `cos`, [b, num_q_heads + 2 · num_kv_heads, q_len, head_dim], whose further heads are
    /// appended to k and v
    pub q: *const Q,
    /// [b, num_kv_heads, kv_len, head_dim]; with `cos`, b is 1, and it is written
    pub k: *const u8,
    /// As k.
    pub v: *const u8,
    pub out_strides: Strides,
    pub q_strides: Strides,
    pub k_strides: Strides,
    pub v_strides: Strides,
    pub num_kv_heads: u32,
    /// Query heads of a kv head.
    pub group: u32,
    pub q_len: u32,
    /// May be 0.
    pub kv_len: u32,
    /// A multiple of 8, at least 8 and at most the instance's.
    pub head_dim: u32,
    /// With `past` null, keys_per_split · splits ≥ kv_len; else not used.
    pub keys_per_split: u32,
    /// scale · log₂ e
    pub scale_log2: f32,
    /// 1 if causal, else 0.
    pub causal: u32,
    /// Null, or [1]: then there are only past\[0\] + q_len keys, at most kv_len, and the splits divide these. With `cos`, [2]: the number
    /// of keys before the queries' own, at most kv_len, and the first query's angle.
    pub past: *const u32,
    /// Exponent bits of codes, 2 to 8; else not used.
    pub exponent_bits: u32,
    /// Scales of k's blocks, if it is stored in such; else not used.
    pub k_scales: *const F16,
    /// As `k_scales`, for v.
    pub v_scales: *const F16,
    /// Null, or [angles, head_dim / 2]: then q and k are normalised and rotated, as [`Append`](crate::rope_append::Append) says of these
    /// fields, and queries attend causally.
    pub cos: *const f32,
    pub sin: *const f32,
    pub q_weight: *const Q,
    pub k_weight: *const Q,
    pub angles: u32,
    pub eps: f32,
}

/// A kernel for a number of rows and a width of heads.
#[derive(Clone, Copy)]
pub struct Instance<P> {
    /// grid = [splits, b · num_kv_heads, ceil(q_len · group / rows)]
    pub spec: KernelSpec<P>,
    /// Rows of a kv head that a block handles.
    pub rows: u32,
    /// The largest head_dim.
    pub head_dim: u32,
}

/// For head_dim ≤ 64 and ≤ 128, each for 1, 2 and 4 rows.
pub type Instances<P> = [[Instance<P>; 3]; 2];

/// Elements of acc: [128 / L, R, D] with D = 8 L.
pub(super) const fn acc_elements(rows: u32) -> u32 {
    8 * THREADS * rows
}

/// Elements of m and of l: [128 / L, R].
pub(super) const fn state_elements(head_dim: u32, rows: u32) -> u32 {
    THREADS / (head_dim / 8) * rows
}

/// The shuffles of a dot product: one for each halving of a key's lanes, for every row and every key in flight.
pub(super) const fn shuffles(head_dim: u32, rows: u32, keys: u32) -> u32 {
    (head_dim / 8).ilog2() * rows * keys
}

/// The same of a kernel that may append: those of the queries' own keys, of a head's norm, and of storing it.
pub(super) const fn shuffles_appending<S: Stored>(head_dim: u32, rows: u32) -> u32 {
    shuffles(head_dim, rows, keys::<S>(rows as usize) as u32 + 1) + 5 + S::SHUFFLES
}

/// The first columns of the two pieces of four columns that lane `sub` of a key's lanes has.
#[inline(always)]
const fn pieces<S: Stored, const L: u32>(sub: u32) -> [u32; 2] {
    if S::APART { [sub * 4, (L + sub) * 4] } else { [sub * 8, sub * 8 + 4] }
}

/// Which keys a block reads, and which rows attend to them.
pub(super) trait Keys: Copy {
    /// The property of a row that decides which keys it attends to.
    type Row: Copy;

    /// The number of keys.
    fn count(self) -> u32;

    /// The number of splits that have keys; later blocks have none.
    #[inline(always)]
    fn splits(self) -> u32 {
        thread::grid_dim_x()
    }

    /// The kv head of unit `unit`; a unit is a set of query heads that share keys.
    fn kv_head(self, unit: u32) -> u32;

    /// The row of key `n`, which is below the count.
    ///
    /// # Safety
    /// n is below the count.
    unsafe fn key(self, n: u32) -> u32;

    /// The property of a row with query `i`, for keys below `end`.
    fn row(self, i: u32, end: u32) -> Self::Row;

    /// Whether the row attends to key `n`.
    ///
    /// # Safety
    /// As [`key`](Self::key), or n is the row's `end` or above.
    unsafe fn sees(self, row: Self::Row, n: u32) -> bool;
}

/// All keys, or those up to each query's position.
#[derive(Clone, Copy)]
struct Dense {
    q_len: u32,
    kv_len: u32,
    causal: bool,
}

impl Dense {
    /// The keys of a split. With `past`, the keys are those before it and `own` more, at most `kv_len`, and the splits divide these.
    ///
    /// # Safety
    /// `past` is null or points to one number.
    #[inline(always)]
    unsafe fn new(
        q_len: u32,
        mut kv_len: u32,
        causal: bool,
        past: *const u32,
        own: u32,
        mut keys_per_split: u32,
    ) -> (Self, u32) {
        if !past.is_null() {
            // SAFETY: `past` is not null, so it points to one number.
            kv_len = kv_len.min(unsafe { *past }.saturating_add(own));
            keys_per_split = kv_len.div_ceil(thread::grid_dim_x().max(1)).next_multiple_of(KEY_STEP);
        }
        (Self { q_len, kv_len, causal }, keys_per_split)
    }
}

#[inlined]
impl Keys for Dense {
    /// One past the last key.
    type Row = i32;

    fn count(self) -> u32 {
        self.kv_len
    }

    fn kv_head(self, unit: u32) -> u32 {
        unit
    }

    unsafe fn key(self, n: u32) -> u32 {
        n
    }

    fn row(self, i: u32, end: u32) -> i32 {
        visible(i, self.q_len, self.kv_len, self.causal).min(end as i32)
    }

    unsafe fn sees(self, row: i32, n: u32) -> bool {
        (n as i32) < row
    }
}

/// The softmax of R rows over the keys so far: (m, l, acc).
struct Softmax<const R: usize> {
    m: [f32; R],
    l: [f32; R],
    acc: [[[f32; 4]; 2]; R],
}

#[inlined]
impl<const R: usize> Softmax<R> {
    /// m' = max(m, s); p = exp(s − m'), in place of s; l = exp(m − m') l + p; acc = exp(m − m') acc.
    fn weigh<const U: usize>(&mut self, s: &mut [[f32; U]; R]) {
        unroll!(I < 4 => {
            if I < R {
                let mut next = self.m[I];
                unroll!(J < 4 => if J < U { next = next.max(s[I][J]); });
                let rescale = exp2(self.m[I] - base(next));
                self.m[I] = next;
                self.l[I] *= rescale;
                unroll!(E < 8 => { self.acc[I][E / 4][E % 4] *= rescale; });
                unroll!(J < 4 => {
                    if J < U {
                        s[I][J] = exp2(s[I][J] - base(next));
                        self.l[I] += s[I][J];
                    }
                });
            }
        });
    }

    /// acc += p v for one key.
    fn add(&mut self, p: [f32; R], v: [f32; 8]) {
        unroll!(I < 4 => {
            if I < R {
                unroll!(E < 8 => { self.acc[I][E / 4][E % 4] = fma(p[I], v[E], self.acc[I][E / 4][E % 4]); });
            }
        });
    }
}

/// # Safety
/// `t`: as [`Decode`] says, where kv heads are replaced by `units` of query heads that share keys; `scratch` belongs to the
/// block, its `partial` and `counters` are as [`Decode`] says; keys_per_split · splits ≥ the number of keys. L = D / 8
/// lanes. With `own`, q is a projection of the units' heads, and k and v have the rows that there is room for, which are not among
/// the keys.
#[inline(always)]
pub(super) unsafe fn decode<Q: Element, S: Stored, const L: u32, const R: usize, const U: usize, K: Keys>(
    t: Tensors<Q, Floats<Q, S>, S>,
    units: u32,
    keys_per_split: u32,
    work: K,
    own: Option<Appended<Q>>,
    scratch: Scratch,
) {
    let Tensors { out, factors: Floats { q, k }, v, group, q_len, head_dim, scale_log2, .. } = t;
    let Tensors { out_strides, q_strides, k_strides, v_strides, .. } = t;
    let slots = THREADS / L;
    let d = 8 * L;
    // SAFETY: the grid has a block, so there is a unit and a query.
    unsafe {
        not_zero(units);
        not_zero(q_len);
    }

    // place tile
    let tid = thread::thread_idx_x();
    let (slot, sub) = (tid / L, tid % L);
    let split = thread::block_idx_x();
    let (batch, unit) = (thread::block_idx_y() / units, thread::block_idx_y() % units);
    let (count, first) = (group * q_len, thread::block_idx_z() * R as u32);
    let rows = Rows { first, count, q_len, first_head: unit * group };
    let start = split * keys_per_split;
    let end = (start + keys_per_split).min(work.count());
    let [low, high] = pieces::<S, L>(sub);
    let last = head_dim - 8;
    // pieces past head_dim read the last one
    let read =
        if S::APART { [low.min(last + 4), high.min(last + 4)] } else { [low.min(last), low.min(last) + 4] };

    let kv_head = work.kv_head(unit);
    let (k_head, v_head) = (k_strides.offset(batch, kv_head), v_strides.offset(batch, kv_head));
    let load = |x: S, head: u32, row: u32, key: u32| {
        let mut words = [[[0; 4]; 2]; U];
        unroll!(J < 4 => {
            if J < U {
                // SAFETY: the key is below kv_len, the pieces below head_dim.
                words[J] = unsafe {
                    let at = work.key((key + J as u32 * slots + slot).min(end - 1));
                    x.load8_words((head + at * row) as usize, read)
                };
            }
        });
        words
    };
    // the first keys are loaded together with q
    let mut key = start;
    let mut keys = [[[0; 4]; 2]; U];
    if key < end {
        keys = load(k, k_head, k_strides.row, key);
    }

    // q [R, D], scaled
    let mut query = [[[0.0f32; 4]; 2]; R];
    let mut sights = [work.row(0, 0); R];
    let of_row = |strides: Strides, head, i| (strides.offset(batch, head) + i * strides.row) as usize;
    let own_keys = if split + 1 == work.splits() { q_len } else { 0 };
    if let Some(own) = own {
        let kv = KvHead { number: unit, count: units, first: units * group };
        // SAFETY: the caller's projection, k and v. R is 1 for one query and 2 for two at most, and there are 8 at most; so shared memory
        // has the rows, 8 R of D or more.
        unsafe {
            core::hint::assert_unchecked(2 * own.rotation.half <= d);
            let x = |head, i| q.wrapping_add(of_row(q_strides, head, i));
            own.rotate::<S, R>(rows, own_keys, kv, x, (scratch.acc, d));
        }
    }
    unroll!(I < 4 => {
        if I < R {
            let (head, i) = rows.at(I as u32);
            sights[I] = work.row(i, end);
            // SAFETY: the row and both pieces are inside q, or written before the barrier, at multiples of four columns from an aligned
            // address.
            unsafe {
                query[I] = match own {
                    Some(_) => read.map(|column| scratch.acc.get4(I as u32 * d + column)),
                    None => read.map(|column| Q::load4(q.add(of_row(q_strides, head, i) + column as usize))),
                };
            }
            let factors = [low, high].map(|column| if column < head_dim { scale_log2 } else { 0.0 });
            unroll!(E < 8 => { query[I][E / 4][E % 4] *= factors[E / 4]; });
        }
    });
    let score = |i: usize, k: [f32; 8]| {
        let mut s = 0.0;
        unroll!(E < 8 => { s = fma(query[i][E / 4][E % 4], k[E], s); });
        s
    };

    let mut softmax = Softmax { m: [f32::NEG_INFINITY; R], l: [0.0; R], acc: [[[0.0; 4]; 2]; R] };
    if let Some(own) = own {
        if own_keys > 0 {
            // slot i begins with key i, which queries from i on attend to
            let is_there = slot < own.room.min(own_keys);
            let pair = (R as u32 + 2 * slot.min(own_keys - 1)) * d;
            // SAFETY: all lanes of the block are here; the key and its value are written before the barrier.
            unsafe {
                let [[k0, k1, k2, k3], [k4, k5, k6, k7]] = read.map(|column| scratch.acc.get4(pair + column));
                let mut s = [0.0; R];
                unroll!(I < 4 => if I < R { s[I] = Sum.over::<L>(score(I, [k0, k1, k2, k3, k4, k5, k6, k7])); });
                let v = read.map(|column| scratch.acc.get4(pair + d + column));
                unroll!(I < 4 => {
                    if I < R && is_there && slot <= rows.at(I as u32).1 {
                        (softmax.m[I], softmax.l[I], softmax.acc[I]) = (s[I], 1.0, v);
                    }
                });
            }
        }
        thread::sync_threads(); // before this memory has other contents
        key = opaque(key); // else a register has the result of `key < end` all the while
    }

    while key < end {
        let values = load(v, v_head, v_strides.row, key);

        // s = q · k
        let mut s = [[0.0f32; U]; R];
        unroll!(J < 4 => {
            if J < U {
                let k = k.values8(keys[J]);
                unroll!(I < 4 => if I < R { s[I][J] = score(I, k); });
            }
        });
        let first = key;
        key += slots * U as u32;
        if key < end {
            keys = load(k, k_head, k_strides.row, key); // in flight while the values are computed with
        }
        unroll!(I < 4 => {
            if I < R {
                unroll!(J < 4 => {
                    if J < U {
                        // SAFETY: the loop's bounds are the same for the whole block, so all lanes are here; the row's keys
                        // end where the split does.
                        let seen = unsafe {
                            s[I][J] = Sum.over::<L>(s[I][J]);
                            work.sees(sights[I], first + J as u32 * slots + slot)
                        };
                        if !seen {
                            s[I][J] = f32::NEG_INFINITY;
                        }
                    }
                });
            }
        });
        softmax.weigh(&mut s);
        unroll!(J < 4 => {
            if J < U {
                let mut p = [0.0; R];
                unroll!(I < 4 => if I < R { p[I] = s[I][J]; });
                softmax.add(p, v.values8(values[J]));
            }
        });
    }

    let splits = work.splits();
    let Softmax { m, l, acc } = softmax;
    let merge = Merge {
        scratch,
        first_row: first,
        rows: count,
        slot,
        slots,
        columns: [low, high],
        d,
        head_dim,
        splits,
    };
    // SAFETY: all threads are here, out has the row, and the scratch memory is this block's and large enough (this
    // function's contract).
    unsafe {
        merge.finish::<Q, R>(m, l, acc, |row| {
            out.add(of_row(out_strides, unit * group + row / q_len, row % q_len))
        })
    }
}

pub(super) const fn instance<P: Copy>(spec: KernelSpec<P>, rows: u32, head_dim: u32) -> Instance<P> {
    Instance { spec, rows, head_dim }
}

/// Keys that a lane has in flight, for so many rows: as many as there are registers for, 4 at most. Of f32, half as many are.
pub(super) const fn keys<S: Stored>(rows: usize) -> usize {
    let keys = if S::APART { 4 / rows } else { 8 / rows };
    if keys > 4 { 4 } else { keys }
}

macro_rules! kernels {
    ($kernels:ident $q:ty; $($storage:ident: $stored:ty, $types:expr, $([$width:ident $d:literal $of_width:literal])+;)*) => {
        /// The kernels for queries of one type, by the storage of k and v, width and rows of a kv head.
        pub mod $kernels {
            use super::*;

            $(mod $storage {
                $(pub mod $width {
                    use super::super::*;

                    kernels! { @ r1 $q, $stored, $d, 1, concat!("attention_decode_", $of_width), "_r1_", $types }
                    kernels! { @ r2 $q, $stored, $d, 2, concat!("attention_decode_", $of_width), "_r2_", $types }
                    kernels! { @ r4 $q, $stored, $d, 4, concat!("attention_decode_", $of_width), "_r4_", $types }
                    pub const INSTANCES: [Instance<Decode<$q>>; 3] =
                        [instance(r1, 1, $d), instance(r2, 2, $d), instance(r4, 4, $d)];
                })+
            })*

            pub(in crate::attention) const INSTANCES: &[Instances<Decode<$q>>] =
                &[$(by_width(&[$($storage::$width::INSTANCES),+])),*];
            /// All of them.
            pub const KERNELS: &[KernelInfo] =
                &[$($($storage::$width::r1.info(), $storage::$width::r2.info(), $storage::$width::r4.info(),)+)*];
        }
    };
    (@ $name:ident $q:ty, $stored:ty, $d:literal, $rows:literal, $of_width:expr, $of_rows:literal, $types:expr) => {
        /// # Safety
        /// [`Decode`] constrains the pointers, which are valid on the launching stream, and the numbers;
        /// launched as [`Instance::spec`] says.
        #[kernel(
            name = concat!($of_width, $of_rows, $types), block = THREADS, min_blocks = 4,
            module = concat!($of_width, "_", $types), shuffles = shuffles_appending::<$stored>($d, $rows),
            shared(
                acc: [f32; acc_elements($rows)], m: [f32; state_elements($d, $rows)], l: [f32; state_elements($d, $rows)]
            )
        )]
        pub unsafe fn $name(p: Decode<$q>) {
            let [k, v] = <$stored>::of([p.k, p.v], p.exponent_bits, [p.k_scales, p.v_scales]);
            let scratch = Scratch { partial: p.partial, counters: p.counters, acc, m, l };
            // SAFETY: `past` is null, or points to one number, and to two with `cos`; the other parameters fulfil `decode`'s contract.
            unsafe {
                let appends = !p.cos.is_null();
                let (causal, queries) = (p.causal != 0 && !appends, if appends { 0 } else { p.q_len });
                let (work, keys_per_split) =
                    Dense::new(p.q_len, p.kv_len, causal, p.past, queries, p.keys_per_split);
                let own = appends.then(|| {
                    let past = *p.past;
                    Appended {
                        rotation: Rotation { cos: p.cos, sin: p.sin, angles: p.angles, half: p.head_dim / 2, eps: p.eps },
                        q_weight: p.q_weight,
                        k_weight: p.k_weight,
                        angle: *p.past.add(1),
                        row: past,
                        room: p.kv_len.saturating_sub(past),
                        k: (p.k.cast_mut(), p.k_scales.cast_mut()),
                        v: (p.v.cast_mut(), p.v_scales.cast_mut()),
                        exponent_bits: p.exponent_bits,
                    }
                });
                decode::<_, _, { $d / 8 }, $rows, { keys::<$stored>($rows) }, _>(
                    tensors!(p, k, v), p.num_kv_heads, keys_per_split, work, own, scratch,
                )
            }
        }
    };
}

kernels! { of_f16 F16; as_f16: *const F16, "f16", [d64 64 "d64"] [d128 128 "d128"]; }
for_each_storage! { kernels of_f32 f32; }
