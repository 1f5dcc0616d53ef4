//! The gradients of attention: their kernels, one after the other.

use super::DeviceElement;
use super::attention::{by_width, scale_log2, strides};
use crate::cuda::CudaDevice;
use crate::memory::DeviceBuffer;
use crate::problem::attention::{HeadStrides, Problem as Forward};
use crate::problem::attention_backward::{ATTENTION_BACKWARD_BYTES, Problem};
use crate::{DType, Result, Tensor, TensorMut};
use kernels_gpu::attention::backward::{self, Dense, Kernels, MERGED, Merge, ROWS, SUMMED, Strides, Sums};
use kernels_gpu::attention::sparse::backward::{self as sparse, Backward};
use std::ptr;

/// Blocks wanted per multiprocessor: two are resident, and with a causal mask their work differs.
const BLOCKS_PER_SM: usize = 4;
/// The fewest tiles in a part: with fewer, adding the parts costs more than it saves.
const MIN_PART_TILES: usize = 4;

/// The tiles of a block-sparse mask, in device memory.
#[derive(Clone, Debug)]
#[cfg_attr(not(feature = "sparse"), allow(dead_code))] // only masks have them
pub(crate) struct Listed {
    pub mask_heads: usize,
    /// Where the tiles of each block of queries begin, and the tiles.
    pub queries: [Tensor; 2],
    /// As those of queries.
    pub keys: [Tensor; 2],
    pub patterns: Tensor,
}

/// `listed`: the tiles that are visited, and not all or those up to the diagonal.
pub(crate) fn attention_backward(
    device: &CudaDevice,
    outputs: [TensorMut; 3],
    inputs: [&Tensor; 5],
    problem: &Problem,
    listed: Option<&Listed>,
) -> Result<()> {
    match (inputs[0].dtype(), listed) {
        (DType::F16, None) => {
            Call::new(device, &backward::OF_F16, outputs, inputs, problem).launch(ATTENTION_BACKWARD_BYTES)
        }
        (_, None) => {
            Call::new(device, &backward::OF_F32, outputs, inputs, problem).launch(ATTENTION_BACKWARD_BYTES)
        }
        (DType::F16, Some(listed)) => {
            let kernels = (&sparse::OF_F16, &backward::OF_F16);
            launch_listed(device, kernels, outputs, inputs, problem, listed)
        }
        (_, Some(listed)) => {
            let kernels = (&sparse::OF_F32, &backward::OF_F32);
            launch_listed(device, kernels, outputs, inputs, problem, listed)
        }
    }
}

/// Gradients of dense attention.
struct Call<'a, T: 'static> {
    device: &'a CudaDevice,
    kernels: &'a Kernels<T>,
    /// Of dq, dk and dv.
    outputs: [*mut T; 3],
    /// Of dout, q, k, v and out.
    inputs: [*const T; 5],
    problem: &'a Problem,
}

/// What is computed with one matrix of scores: some heads of a batch entry, or all of all, and some queries or all.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Chunk {
    batch: usize,
    batches: usize,
    /// The first kv head.
    kv_head: usize,
    kv_heads: usize,
    /// The first query.
    query: usize,
    queries: usize,
    /// The keys that any of the queries sees: those before this number.
    keys: usize,
}

impl Chunk {
    /// The chunks in order, by batch entry and heads: those of the same heads begin with the last queries, which see all keys that
    /// others see.
    fn all(forward: &Forward, bytes: usize) -> Vec<Self> {
        let rows = |len: usize| len.next_multiple_of(ROWS as usize);
        // of a kv head for so many queries
        let of_head =
            |queries: usize| forward.group() * rows(queries) * rows(forward.kv_len) * size_of::<f32>();
        let fitting = (bytes / of_head(forward.q_len).max(1)).max(1);
        let (batches, kv_heads) = match fitting >= forward.batch * forward.num_kv_heads {
            true => (forward.batch, forward.num_kv_heads),
            false => (1, forward.num_kv_heads.div_ceil(forward.num_kv_heads.div_ceil(fitting).max(1))),
        };
        let tiles = (bytes / of_head(1).max(1)).max(1);
        let queries = if of_head(forward.q_len) > bytes { tiles * ROWS as usize } else { forward.q_len };
        let mut chunks = Vec::new();
        for batch in (0..forward.batch).step_by(batches.max(1)) {
            for kv_head in (0..forward.num_kv_heads).step_by(kv_heads.max(1)) {
                for query in (0..forward.q_len.max(1)).step_by(queries.max(1)).rev() {
                    let end = (query + queries).min(forward.q_len);
                    let keys = forward.visible(end.saturating_sub(1)).min(forward.kv_len);
                    let kv_heads = kv_heads.min(forward.num_kv_heads - kv_head);
                    chunks.push(Self {
                        batch,
                        batches,
                        kv_head,
                        kv_heads,
                        query,
                        queries: end - query,
                        keys,
                    });
                }
            }
        }
        chunks
    }
}

impl<'a, T: DeviceElement> Call<'a, T> {
    fn new(
        device: &'a CudaDevice,
        kernels: &'a Kernels<T>,
        outputs: [TensorMut; 3],
        inputs: [&Tensor; 5],
        problem: &'a Problem,
    ) -> Self {
        let (outputs, inputs) = (outputs.map(|x| x.ptr::<T>()), inputs.map(Tensor::ptr::<T>));
        Self { device, kernels, outputs, inputs, problem }
    }

    /// With so many bytes of scores at a time.
    fn launch(&self, bytes: usize) -> Result<()> {
        let chunks = Chunk::all(&self.problem.forward, bytes);
        for of_heads in chunks.chunk_by(|x, y| (x.batch, x.kv_head) == (y.batch, y.kv_head)) {
            self.launch_heads(of_heads)?;
        }
        Ok(())
    }

    /// The chunks of the same heads.
    fn launch_heads(&self, chunks: &[Chunk]) -> Result<()> {
        let Some(&largest) = chunks.iter().max_by_key(|chunk| chunk.queries) else { return Ok(()) };
        let &Call { device, problem, .. } = self;
        let forward = &problem.forward;
        let multiprocessors = device.properties().multiprocessors as usize;
        let tiles = |len: usize| len.div_ceil(ROWS as usize);
        let kv_heads = largest.batches * largest.kv_heads;
        let heads = kv_heads * forward.group();
        let (rows, keys) = (tiles(largest.queries) * ROWS as usize, tiles(forward.kv_len) * ROWS as usize);
        let buffer = |elements: usize| DeviceBuffer::uninitialized(device, elements * size_of::<f32>());
        let scores = buffer(heads * rows * keys)?;
        let stats = buffer(2 * heads * rows)?;
        let [splits, parts, part_tiles] = divide(
            kv_heads * tiles(forward.kv_len),
            forward.group(),
            tiles(largest.queries),
            multiprocessors,
        );
        // sums of several launches are those of parts too
        let in_parts = splits * parts > 1 || chunks.len() > 1;
        let of_part = kv_heads * forward.kv_len * forward.head_dim;
        let kv_parts = buffer(if in_parts { 2 * splits * parts * of_part } else { 0 })?;
        let q_parts = divided_into(heads * tiles(largest.queries), tiles(forward.kv_len), multiprocessors);
        let of_q =
            buffer(if q_parts > 1 { q_parts * heads * largest.queries * forward.head_dim } else { 0 })?;
        let part_stats = buffer(if q_parts > 1 { q_parts * 2 * heads * rows } else { 0 })?;
        let width = by_width(forward.head_dim);
        for (number, chunk) in chunks.iter().enumerate() {
            let p = Dense {
                scores: scores.ptr(),
                stats: stats.ptr(),
                part_stats: part_stats.ptr(),
                kv_parts: if in_parts { kv_parts.ptr() } else { ptr::null_mut() },
                q_parts: of_q.ptr(),
                splits: splits as u32,
                part_len: part_tiles as u32 * ROWS,
                adds: u32::from(number > 0),
                ..self.parameters(chunk)
            };
            let (q_tiles, kv_tiles) = (tiles(chunk.queries) as u32, tiles(chunk.keys) as u32);
            let of_queries = [heads as u32, q_tiles, q_parts as u32];
            let of_keys = [(kv_heads * splits) as u32, kv_tiles, parts as u32];
            let count = heads as u32 * q_tiles * ROWS;
            let merge = Merge {
                part_stats: part_stats.ptr::<f32>().cast_const(),
                stats: stats.ptr(),
                parts: q_parts as u32,
                count,
            };
            // SAFETY: `ops::attention_backward_into` has checked types, shapes, the alignment of first elements and strides, spans below
            // 2³¹ and that all tensors are on this stream; a TensorMut overlaps nothing. A chunk's heads and queries are some of these.
            // The scores have rows and columns for the tiles of the largest chunk, `stats` two numbers for each of their queries, and the
            // parts what `divide` and `divided_into` made of them. All are freed after the launches.
            unsafe {
                device.launch(&self.kernels.scores, of_queries, &p)?;
                if q_parts > 1 {
                    device.launch(&self.kernels.merge, [count.div_ceil(MERGED), 1, 1], &merge)?;
                }
                device.launch(&self.kernels.kv[width], of_keys, &p)?;
                device.launch(&self.kernels.q[width], of_queries, &p)?;
            }
            if q_parts > 1 {
                let strides = [p.dq_strides; 2];
                self.add(
                    [p.dq; 2],
                    &of_q,
                    q_parts,
                    strides,
                    [heads, p.num_q_heads as usize, chunk.queries],
                    1,
                )?;
            }
            if in_parts && number + 1 == chunks.len() {
                let strides = [p.dk_strides, p.dv_strides];
                let sizes = [kv_heads, chunk.kv_heads, forward.kv_len];
                self.add([p.dk, p.dv], &kv_parts, splits * parts, strides, sizes, 2)?;
            }
        }
        Ok(())
    }

    /// The parameters of a chunk that are not those of buffers and parts.
    fn parameters(&self, chunk: &Chunk) -> Dense<T> {
        let problem = self.problem;
        let forward = &problem.forward;
        let group = forward.group();
        // where a tensor's heads of the chunk begin: of queries, or of keys
        let of_q =
            |x: HeadStrides| chunk.batch * x.batch + chunk.kv_head * group * x.head + chunk.query * x.row;
        let of_k = |x: HeadStrides| chunk.batch * x.batch + chunk.kv_head * x.head;
        let ([dq, dk, dv], [dout, q, k, v, out]) = (self.outputs, self.inputs);
        Dense {
            dq: dq.wrapping_add(of_q(problem.dq)),
            dk: dk.wrapping_add(of_k(problem.dk)),
            dv: dv.wrapping_add(of_k(problem.dv)),
            dout: dout.wrapping_add(of_q(problem.dout)),
            q: q.wrapping_add(of_q(forward.q)),
            k: k.wrapping_add(of_k(forward.k)),
            v: v.wrapping_add(of_k(forward.v)),
            out: out.wrapping_add(of_q(forward.out)),
            scores: ptr::null_mut(),
            stats: ptr::null_mut(),
            part_stats: ptr::null_mut(),
            kv_parts: ptr::null_mut(),
            q_parts: ptr::null_mut(),
            dq_strides: strides(problem.dq),
            dk_strides: strides(problem.dk),
            dv_strides: strides(problem.dv),
            dout_strides: strides(problem.dout),
            q_strides: strides(forward.q),
            k_strides: strides(forward.k),
            v_strides: strides(forward.v),
            out_strides: strides(forward.out),
            num_q_heads: (chunk.kv_heads * group) as u32,
            group: group as u32,
            splits: 1,
            part_len: 0,
            part_rows: forward.kv_len as u32,
            q_len: chunk.queries as u32,
            kv_len: chunk.keys as u32,
            head_dim: forward.head_dim as u32,
            scale: forward.scale,
            causal: u32::from(forward.causal),
            adds: 0,
        }
    }

    /// Adds the parts of one or two gradients of so many heads in all, heads of a batch entry, and rows.
    fn add(
        &self,
        [dk, dv]: [*mut T; 2],
        parts: &DeviceBuffer,
        count: usize,
        [dk_strides, dv_strides]: [Strides; 2],
        [heads, num_kv_heads, rows]: [usize; 3],
        gradients: u32,
    ) -> Result<()> {
        let sums = Sums {
            dk,
            dv,
            partial: parts.ptr::<f32>().cast_const(),
            dk_strides,
            dv_strides,
            parts: count as u32,
            num_kv_heads: num_kv_heads as u32,
            kv_len: rows as u32,
            head_dim: self.problem.forward.head_dim as u32,
        };
        let blocks = (sums.kv_len * sums.head_dim).div_ceil(SUMMED);
        // SAFETY: as in `launch_heads`, whose launches have written the parts.
        unsafe { self.device.launch(&self.kernels.sum, [heads as u32, blocks, gradients], &sums) }
    }
}

fn launch_listed<T: DeviceElement>(
    device: &CudaDevice,
    (kernels, of_sums): (&sparse::Kernels<T>, &Kernels<T>),
    outputs: [TensorMut; 3],
    inputs: [&Tensor; 5],
    problem: &Problem,
    Listed { mask_heads, queries, keys, patterns }: &Listed,
) -> Result<()> {
    let forward = &problem.forward;
    let (heads, kv_heads) = (forward.batch * forward.num_q_heads, forward.batch * forward.num_kv_heads);
    let (q_tiles, kv_tiles) = (forward.q_len.div_ceil(ROWS as usize), forward.kv_len.div_ceil(ROWS as usize));
    let stats = DeviceBuffer::uninitialized(device, 2 * heads * q_tiles * ROWS as usize * size_of::<f32>())?;
    // listed tiles are not divided into parts
    let multiprocessors = device.properties().multiprocessors as usize;
    let [splits, _, _] = divide(kv_heads * kv_tiles, forward.group(), 0, multiprocessors);
    let of_kv = if splits == 1 { 0 } else { 2 * splits * kv_heads * forward.kv_len * forward.head_dim };
    let partial = DeviceBuffer::uninitialized(device, of_kv * size_of::<f32>())?;
    let call = Call::new(device, of_sums, outputs, inputs, problem);
    let ([dq, dk, dv], [dout, q, k, v, out]) = (call.outputs, call.inputs);
    let sharing = (forward.num_q_heads / mask_heads) as u32;
    let parameters = |[starts, tiles]: &[Tensor; 2]| Backward {
        dq,
        dk,
        dv,
        dout,
        q,
        k,
        v,
        out,
        stats: stats.ptr(),
        partial: partial.ptr(),
        dq_strides: strides(problem.dq),
        dk_strides: strides(problem.dk),
        dv_strides: strides(problem.dv),
        dout_strides: strides(problem.dout),
        q_strides: strides(forward.q),
        k_strides: strides(forward.k),
        v_strides: strides(forward.v),
        out_strides: strides(forward.out),
        num_q_heads: forward.num_q_heads as u32,
        group: forward.group() as u32,
        splits: splits as u32,
        q_len: forward.q_len as u32,
        kv_len: forward.kv_len as u32,
        head_dim: forward.head_dim as u32,
        scale: forward.scale,
        scale_log2: scale_log2(forward),
        starts: starts.ptr(),
        tiles: tiles.ptr(),
        patterns: patterns.ptr(),
        sharing,
    };
    let width = by_width(forward.head_dim);
    // SAFETY: `ops::attention_backward_into` has checked types, shapes, the alignment of first elements and strides, spans
    // below 2³¹ and that all tensors are on this stream; a TensorMut overlaps nothing. `BackwardLists` made the lists for these lengths,
    // and the mask's heads divide the query heads, as has been checked. `stats` has two numbers for each query of each head's tiles,
    // `partial` the gradients of each part. Both are freed after the launches.
    unsafe {
        device.launch(&kernels.q[width], [heads as u32, q_tiles as u32, 1], &parameters(queries))?;
        let of_keys = [(kv_heads * splits) as u32, kv_tiles as u32, 1];
        device.launch(&kernels.kv[width], of_keys, &parameters(keys))?;
    }
    if splits == 1 {
        return Ok(());
    }
    let strides = [strides(problem.dk), strides(problem.dv)];
    call.add([dk, dv], &partial, splits, strides, [kv_heads, forward.num_kv_heads, forward.kv_len], 2)
}

/// Divides the queries that attend to a tile of keys: the group's query heads into `splits`, and the tiles of queries into
/// `parts` of `part_tiles`. `blocks` is the number of blocks over keys without this division.
fn divide(blocks: usize, group: usize, q_tiles: usize, multiprocessors: usize) -> [usize; 3] {
    if blocks >= BLOCKS_PER_SM * multiprocessors {
        return [1, 1, q_tiles];
    }
    let parts = divided_into(blocks * group, q_tiles, multiprocessors);
    let part_tiles = q_tiles.div_ceil(parts).max(1);
    [group, q_tiles.div_ceil(part_tiles).max(1), part_tiles]
}

/// The parts of `tiles` tiles each that `blocks` blocks visit: as many as it takes to fill the device, as nearly as can be.
fn divided_into(blocks: usize, tiles: usize, multiprocessors: usize) -> usize {
    let blocks = blocks.max(1);
    ((BLOCKS_PER_SM * multiprocessors + blocks / 2) / blocks).min(tiles / MIN_PART_TILES).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Device, Error, ops};

    #[test]
    fn queries_are_divided_only_to_fill_the_device() {
        assert_eq!(divide(128, 2, 16, 20), [1, 1, 16], "enough blocks");
        assert_eq!(divide(128, 2, 16, 132), [2, 2, 8]);
        assert_eq!(divide(136, 2, 17, 132), [2, 2, 9], "544 blocks for 528");
        assert_eq!(divide(8, 1, 18, 20), [1, 4, 5], "parts of at least four tiles, the last one shorter");
        assert_eq!(divide(1, 2, 0, 20), [2, 1, 1], "no query");
    }

    fn problem(sizes: [usize; 6], causal: bool) -> Problem {
        let [batch, num_q_heads, num_kv_heads, q_len, kv_len, head_dim] = sizes;
        let contiguous = |heads: usize, len: usize| HeadStrides {
            batch: heads * len * head_dim,
            head: len * head_dim,
            row: head_dim,
        };
        let (of_q, of_k) = (contiguous(num_q_heads, q_len), contiguous(num_kv_heads, kv_len));
        let forward = Forward {
            batch,
            num_q_heads,
            num_kv_heads,
            q_len,
            kv_len,
            head_dim,
            scale: 0.25,
            causal,
            out: of_q,
            q: of_q,
            k: of_k,
            v: of_k,
        };
        Problem { forward, dout: of_q, dq: of_q, dk: of_k, dv: of_k }
    }

    #[test]
    fn scores_of_many_heads_and_queries_are_taken_in_chunks() {
        let chunks = |sizes, bytes| {
            let chunks = Chunk::all(&problem(sizes, true).forward, bytes);
            chunks
                .into_iter()
                .map(|x| [x.batch, x.batches, x.kv_head, x.kv_heads, x.query, x.queries, x.keys])
        };
        // a kv head with all queries has 2 · 256 · 320 · 4 bytes
        let (sizes, head) = ([2, 10, 5, 200, 300, 16], 655_360);
        assert!(chunks(sizes, 10 * head).eq([[0, 2, 0, 5, 0, 200, 300]]));
        let halves = [[0, 1, 0, 3, 0, 200, 300], [0, 1, 3, 2, 0, 200, 300]];
        let both = halves.iter().chain(&[[1, 1, 0, 3, 0, 200, 300], [1, 1, 3, 2, 0, 200, 300]]);
        assert!(chunks(sizes, 4 * head).eq(both.copied()), "of one entry at a time, divided evenly");
        let of_a_head: Vec<_> = chunks([1, 2, 1, 200, 300, 16], head / 2).collect();
        assert_eq!(of_a_head, [[0, 1, 0, 1, 128, 72, 300], [0, 1, 0, 1, 0, 128, 228]], "last queries first");
        assert!(
            chunks([1, 1, 1, 0, 3, 16], head).eq([[0, 1, 0, 1, 0, 0, 3]]),
            "no query: dk and dv are zeros"
        );
        let none: Vec<_> = chunks([1, 1, 1, 130, 60, 16], 0).collect();
        assert_eq!(none.last(), Some(&[0, 1, 0, 1, 0, 64, 0]), "queries that see nothing");
    }

    /// Heads by heads and tile by tile, as with all scores at a time.
    #[test]
    fn chunks_change_only_the_order_of_sums() -> Result<()> {
        let device = Device::virtual_gpu()?;
        let Device::Cuda(gpu) = &device else { panic!("the virtual GPU is no CUDA device") };
        for (sizes, causal) in
            [([2, 4, 2, 150, 170, 16], true), ([1, 2, 1, 200, 90, 16], true), ([1, 3, 3, 70, 65, 72], false)]
        {
            let problem = problem(sizes, causal);
            let [batch, q_heads, kv_heads, q_len, kv_len, head_dim] = sizes;
            let (of_q, of_k) = ([batch, q_heads, q_len, head_dim], [batch, kv_heads, kv_len, head_dim]);
            let [dout, q] = [1, 2].map(|seed| Tensor::randn(of_q, DType::F32, seed, &device));
            let [k, v] = [3, 4].map(|seed| Tensor::randn(of_k, DType::F32, seed, &device));
            let (dout, q, k, v) = (dout?, q?, k?, v?);
            let options = ops::Attention { scale: Some(problem.forward.scale), causal };
            let out = ops::attention(&q, &k, &v, &options)?;
            let gradients = |bytes| {
                let new = |shape| Tensor::uninitialized(shape, DType::F32, &device);
                let [mut dq, mut dk, mut dv] = [new(of_q)?, new(of_k)?, new(of_k)?];
                let outputs = [dq.view_mut()?, dk.view_mut()?, dv.view_mut()?];
                Call::new(gpu, &backward::OF_F32, outputs, [&dout, &q, &k, &v, &out], &problem)
                    .launch(bytes)?;
                Ok::<_, Error>([dq.to_vec::<f32>()?, dk.to_vec::<f32>()?, dv.to_vec::<f32>()?].concat())
            };
            let whole = gradients(usize::MAX)?;
            for bytes in [0, 200_000, 700_000] {
                let wrong =
                    whole.iter().zip(gradients(bytes)?).filter(|(x, y)| (*x - y).abs() > 2e-5).count();
                assert_eq!(wrong, 0, "{sizes:?} with {bytes} bytes");
            }
        }
        Ok(())
    }
}
