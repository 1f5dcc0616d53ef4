//! Multi-head attention with its projections.

use super::cache::Cache;
use super::checks::misfit;
use super::kv_cache::LayerCache;
use super::kv_pages::{LayerPages, PagedRows, PromptRows};
use super::linear::Linear;
use super::map::Map;
use super::matrix::Change;
use super::norm::RmsNorm;
use super::sparse_prompt::SparsePrompt;
use crate::kv::{KvFormat, KvMut, KvTensor};
use crate::ops::{self, Epilogue, HeadNorms, Projection, QUERIES_PER_CHOICE, SequenceKv};
use crate::problem::pieces::rows_per_launch;
use crate::{DType, Device, Error, Result, Tensor, TensorMut};

/// The positions of a pass's rows: the rotary angles by position, and the index of the first row's angle.
///
/// All of it is in device memory, so a captured pass moves to the next position when these tensors are overwritten.
///
/// ```
/// use pascaline::nn::Rope;
/// use pascaline::{DType, Device, Tensor};
/// let (cos, sin) = (Tensor::ones([32, 8], DType::F32, &Device::Cpu)?, Tensor::zeros([32, 8], DType::F32, &Device::Cpu)?);
/// let rope = Rope::new(cos, sin, 5, 5)?; // after five tokens, with the angles of row 5 on
/// assert_eq!(rope.at.to_vec::<u32>()?, [5, 5]);
/// # Ok::<(), pascaline::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Rope {
    /// [angles, head_dim / 2] f32
    pub cos: Tensor,
    /// [angles, head_dim / 2] f32
    pub sin: Tensor,
    /// \[2\] u32: the number of tokens in the cache before this pass, and the index of the first row's angle. With
    /// [pages](super::KvPages) [2, rows] u32: each row's index in the pool, and the index of its angle.
    pub at: Tensor,
}

impl Rope {
    /// For rows that follow `past` tokens; the first row has angle number `first`.
    ///
    /// # Errors
    /// [`Error::TooLarge`] for numbers beyond 32 bits.
    pub fn new(cos: Tensor, sin: Tensor, past: usize, first: usize) -> Result<Self> {
        let at = Tensor::from_slice(&[number(past)?, number(first)?], [2], &cos.device())?;
        Ok(Self { cos, sin, at })
    }
}

fn number(value: usize) -> Result<u32> {
    let (elements, limit) = (value as u128, u32::MAX.into());
    u32::try_from(value).map_err(|_| Error::TooLarge { op: "Rope", argument: "past", elements, limit })
}

/// Multi-head attention with its projections, over rows of one sequence, or over pages of several.
///
/// ```
/// use pascaline::nn::{Attention, Linear, Rope};
/// use pascaline::{DType, Device, Tensor, ops};
/// # let cpu = Device::Cpu;
/// let eye = Tensor::from_slice(&std::array::from_fn::<f32, 256, _>(|i| (i % 17 == 0) as u8 as f32), [16, 16], &cpu)?;
/// let qkv = ops::cat(&[Tensor::zeros([32, 16], DType::F32, &cpu)?, eye.clone()], 0)?; // q = k = 0, v = x
/// let attention = Attention::new(Linear::new(qkv, None)?, None, Linear::new(eye, None)?, [1, 1, 16], true)?;
/// let angles = || Ok::<_, pascaline::Error>([Tensor::ones([8, 8], DType::F32, &cpu)?, Tensor::zeros([8, 8], DType::F32, &cpu)?]);
/// let [cos, sin] = angles()?;
/// let x = Tensor::arange(0.0f32, 32.0, &cpu)?.reshape([2, 16])?;
/// let y = attention.forward(&x, &Rope::new(cos, sin, 0, 0)?, None)?;
/// // all scores are equal: each row gives the mean of the rows up to itself
/// assert_eq!(y.narrow(1, 0, 2)?.to_vec::<f32>()?, [0.0, 1.0, 8.0, 9.0]);
/// # Ok::<(), pascaline::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Attention {
    qkv: Linear,
    norms: Option<(RmsNorm, RmsNorm)>,
    out: Linear,
    num_heads: usize,
    num_kv_heads: usize,
    head_dim: usize,
    options: ops::Attention,
    is_int8: bool,
}

impl Attention {
    /// `qkv`: [(num_heads + 2 · num_kv_heads) · head_dim, hidden], the rows of q, then k, then v, so that one launch reads x
    /// once. `norms`: applied to each head of q and of k, over head_dim, before the rotation; both have the same eps. `out`:
    /// [hidden, num_heads · head_dim]. The scale is 1/√head_dim.
    ///
    /// # Errors
    /// [`Error::Shape`] if the weights do not match each other, [`Error::Unsupported`] for norms that differ in eps.
    pub fn new(
        qkv: Linear,
        norms: Option<(RmsNorm, RmsNorm)>,
        out: Linear,
        [num_heads, num_kv_heads, head_dim]: [usize; 3],
        causal: bool,
    ) -> Result<Self> {
        let check = |argument, linear: &Linear, found: usize, width: usize| match found == width {
            true => Ok(()),
            false => Err(Error::Shape {
                op: "Attention",
                argument,
                expected: format!("a width of {width}"),
                found: [linear.out_features(), linear.in_features()].into(),
            }),
        };
        check("qkv", &qkv, qkv.out_features(), (num_heads + 2 * num_kv_heads) * head_dim)?;
        check("out", &out, out.in_features(), num_heads * head_dim)?;
        if let Some((q, k)) = &norms
            && q.parts().1 != k.parts().1
        {
            let (value, reason) = (k.parts().1.to_string(), "q's and k's norms must have the same".into());
            return Err(Error::Unsupported { op: "Attention", argument: "eps", value, reason });
        }
        let options = ops::Attention { scale: None, causal };
        Ok(Self { qkv, norms, out, num_heads, num_kv_heads, head_dim, options, is_int8: false })
    }

    /// With queries and keys multiplied in 8-bit integers ([`ops::int8_attention`]), in passes without a cache.
    pub fn with_int8_scores(self) -> Self {
        Self { is_int8: true, ..self }
    }

    /// `x`: [rows, hidden] f32 → [rows, hidden]. With a cache, the rows' keys and values are appended to it, and the rows
    /// attend to all tokens in it. Without one they attend to each other, and `rope` has 0 tokens before them.
    ///
    /// # Errors
    /// [`Error::Shape`] if `x` or `rope` do not match or the cache is full.
    pub fn forward(&self, x: &Tensor, rope: &Rope, cache: Option<Cache>) -> Result<Tensor> {
        self.forward_fused(x, None, None, rope, cache)
    }

    /// As [`Linear::map`].
    pub(super) fn map(&self, f: &mut Map) -> Result<Self> {
        let norms = self.norms.as_ref().map(|(q, k)| Ok((q.map(f)?, k.map(f)?))).transpose()?;
        Ok(Self { qkv: self.qkv.map(f)?, norms, out: self.out.map(f)?, ..*self })
    }

    /// With low-rank changes beside its matrices.
    pub(super) fn adapted(&self, [qkv, out]: [&Change; 2]) -> Result<Self> {
        let (qkv, out) = (self.qkv.adapted(qkv)?, self.out.adapted(out)?);
        Ok(Self { qkv, norms: self.norms.clone(), out, ..*self })
    }

    /// attention(norm(x)) + residual.
    pub(super) fn forward_fused(
        &self,
        x: &Tensor,
        norm: Option<&RmsNorm>,
        residual: Option<&Tensor>,
        rope: &Rope,
        cache: Option<Cache>,
    ) -> Result<Tensor> {
        let &[rows, _] = x.dims() else { return Err(misfit("Attention", "x", "[rows, hidden]", x)) };
        let device = x.device();
        match cache {
            Some(cache) => {
                let attended = self.attend(x, norm, rope, cache, false, &device)?;
                self.out.forward_fused(&attended, None, Epilogue { residual, ..Epilogue::default() })
            }
            None => {
                let (heads, d) = (self.num_kv_heads, self.head_dim);
                let mut own = LayerCache::with_room(rows, heads, d, KvFormat::F32, &device)?;
                let attended = self.attend(x, norm, rope, Cache::from(&mut own), self.is_int8, &device)?;
                self.out.forward_fused(&attended, None, Epilogue { residual, ..Epilogue::default() })
            }
        }
    }

    /// [rows, num_heads · head_dim]
    fn attend(
        &self,
        x: &Tensor,
        norm: Option<&RmsNorm>,
        rope: &Rope,
        cache: Cache,
        is_int8: bool,
        device: &Device,
    ) -> Result<Tensor> {
        let (rows, heads, d) = (x.dims()[0], self.num_heads, self.head_dim);
        let split = [rows, heads + 2 * self.num_kv_heads, d];
        let qkv = self.qkv.forward_fused(x, norm, Epilogue::default())?.reshape(split)?;
        let norms = self.norms.as_ref().map(|(q, k)| {
            let ((q, eps), (k, _)) = (q.parts(), k.parts());
            HeadNorms { q, k, eps }
        });
        let from = Projection { qkv: &qkv, cos: &rope.cos, sin: &rope.sin, norms, at: &rope.at };
        let out = match cache {
            Cache::Contiguous(cache, _)
                if rows <= ops::MAX_CACHED_QUERIES && self.options.causal && !is_int8 =>
            {
                let mut out = Tensor::uninitialized([rows, heads, d], DType::F32, device)?;
                let to = out.view_mut()?;
                cache.append(rows, |kv| ops::append_attention_into(to, kv, &from, self.options.scale))?;
                out
            }
            Cache::Contiguous(cache, sparse) => {
                let append =
                    |[k, v]: [&mut KvTensor; 2]| appended(&from, heads, [k.view_mut()?, v.view_mut()?]);
                let q = cache.append(rows, append)?;
                drop(qkv);
                self.attend_contiguous(&q, cache, sparse, is_int8)?
            }
            Cache::Pages(pages, reads) => self.attend_pages(from, pages, reads)?,
        };
        out.reshape([rows, heads * d])
    }

    /// Attention of q [rows, num_heads, head_dim] over all tokens of the cache; the output has q's shape.
    fn attend_contiguous(
        &self,
        q: &Tensor,
        cache: &LayerCache,
        sparse: Option<&SparsePrompt>,
        is_int8: bool,
    ) -> Result<Tensor> {
        let kv = cache.parts();
        let most = rows_per_launch(4 * cache.len() * self.num_heads * self.head_dim, &q.device());
        let mut out = Tensor::uninitialized(q.shape(), DType::F32, &q.device())?;
        in_pieces(out.view_mut()?, q, cache.len(), self.options.causal, most, |to, q, start, seen| {
            let [k, v] = kv;
            match sparse {
                Some(sparse) => {
                    self.attend_sparse(to, q, SequenceKv { k, v, table: None, len: seen }, start, sparse)
                }
                None if is_int8 => {
                    let [k, v] = [k, v].map(|x| x.values.narrow(0, 0, seen)?.swap_dims(0, 1));
                    ops::int8_attention_into(to, q, &k?, &v?, &self.options)
                }
                None => ops::attention_over_into(to, q, k, v, seen, &self.options),
            }
        })?;
        Ok(out)
    }

    /// Attention of q [num_heads, rows, head_dim], whose first is row `start` of a long prompt's, over a part of the keys.
    fn attend_sparse(
        &self,
        to: TensorMut,
        q: &Tensor,
        kv: SequenceKv,
        start: usize,
        sparse: &SparsePrompt,
    ) -> Result<()> {
        let scale = self.options.scale;
        let blocks = q.dims()[1].div_ceil(QUERIES_PER_CHOICE);
        let local = sparse.local.narrow(0, start / QUERIES_PER_CHOICE, blocks)?;
        let tiles = ops::choose_tiles(q, kv, &local, sparse.share, scale)?;
        ops::attention_over_tiles_into(to, q, kv, &tiles, scale)
    }

    /// Appends the rows of a projection to pages, and lets them attend; the output is [rows, num_heads, head_dim].
    fn attend_pages(&self, from: Projection, pages: &mut LayerPages, reads: &PagedRows) -> Result<Tensor> {
        let Projection { qkv, at, .. } = from;
        let rows = qkv.dims()[0];
        if rows != reads.len() {
            return Err(misfit("Attention", "x", format!("[{}, hidden]", reads.len()), qkv));
        }
        let scale = self.options.scale;
        let mut out =
            Tensor::uninitialized([rows, self.num_heads, self.head_dim], DType::F32, &qkv.device())?;
        // a row alone appends and attends in one launch; of several, one may attend to the keys of others
        let alone = reads.each.as_ref().filter(|[_, lens]| lens.dims() == [1]);
        let start = usize::from(alone.is_some());
        if let Some([tables, lens]) = alone {
            let (qkv, at) = (qkv.narrow(0, 0, 1)?, at.narrow(1, 0, 1)?);
            let (to, from) = (out.view_mut()?.narrow(0, 0, 1)?, Projection { qkv: &qkv, at: &at, ..from });
            ops::paged_append_attention_into(to, pages.parts_mut(), &from, [tables, lens], scale)?;
            if rows == 1 {
                return Ok(out);
            }
        }
        let count = rows - start;
        let (qkv, at) = (qkv.narrow(0, start, count)?, at.narrow(1, start, count)?);
        let [k, v] = pages.parts_mut();
        let from = Projection { qkv: &qkv, at: &at, ..from };
        let q = appended(&from, self.num_heads, [k.view_mut()?, v.view_mut()?])?;
        let (mut out_of_them, mut start) = (out.view_mut()?.narrow(0, start, count)?, 0);
        let [k, v] = pages.parts();
        if let (Some([tables, lens]), None) = (&reads.each, alone) {
            start = lens.dims().first().copied().unwrap_or(0);
            let (to, q) = (out_of_them.reborrow().narrow(0, 0, start)?, q.narrow(0, 0, start)?);
            ops::paged_attention_each_into(to, &q, k, v, tables, lens, scale)?;
        }
        for PromptRows { rows, table, len, sparse } in &reads.prompts {
            let most = rows_per_launch(len.saturating_mul(4 * self.num_heads * self.head_dim), &q.device());
            let (to, q) = (out_of_them.reborrow().narrow(0, start, *rows)?, q.narrow(0, start, *rows)?);
            in_pieces(to, &q, *len, true, most, |to, q, start, seen| match sparse {
                Some(sparse) => self.attend_sparse(
                    to,
                    q,
                    SequenceKv { k, v, table: Some(table), len: seen },
                    start,
                    sparse,
                ),
                None => ops::paged_attention_into(to, q, k, v, table, seen, scale),
            })?;
            start += rows;
        }
        Ok(out)
    }

    pub(super) fn linears(&self) -> [&Linear; 2] {
        [&self.qkv, &self.out]
    }

    /// Bytes of the projections' stored weights.
    pub fn weight_bytes(&self) -> usize {
        self.qkv.weight_bytes() + self.out.weight_bytes()
    }
}

/// Appends a projection's keys and values; its q [rows, heads, head_dim].
fn appended(from: &Projection, heads: usize, kv: [KvMut; 2]) -> Result<Tensor> {
    let &Projection { qkv, cos, sin, norms, at } = from;
    let mut q = Tensor::uninitialized([qkv.dims()[0], heads, qkv.dims()[2]], qkv.dtype(), &qkv.device())?;
    ops::rope_append_into(q.view_mut()?, kv, qkv, [cos, sin], norms, at)?;
    Ok(q)
}

/// Attention of q [rows, num_heads, head_dim] over `len` keys into `out` of q's shape, with at most `most` rows per launch.
/// `attend` is called with the output and the queries of a launch, both [num_heads, rows, head_dim], the number of its first row, and that of
/// its keys.
fn in_pieces(
    mut out: TensorMut,
    q: &Tensor,
    len: usize,
    causal: bool,
    most: usize,
    attend: impl Fn(TensorMut, &Tensor, usize, usize) -> Result<()>,
) -> Result<()> {
    let rows = q.dims()[0];
    for start in (0..rows).step_by(most) {
        let count = most.min(rows - start);
        // the last row of a causal piece attends to all keys of the launch
        let seen = if causal { len.saturating_add(start + count).saturating_sub(rows) } else { len };
        let q = q.narrow(0, start, count)?.swap_dims(0, 1)?;
        attend(out.reborrow().narrow(0, start, count)?.swap_dims(0, 1)?, &q, start, seen)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;
    use crate::kv::KvTensor;

    /// Distinct numbers between −2 and 2.
    fn tensor(shape: [usize; 3]) -> Result<Tensor> {
        let number = |i: u32| i.wrapping_mul(0x9e37_79b9) as f32 / (1u32 << 30) as f32 - 2.0;
        let values: Vec<f32> = (0..shape.iter().product::<usize>() as u32).map(number).collect();
        Tensor::from_slice(&values, shape, &Device::Cpu)
    }

    /// A cache with these keys and values [tokens, 2 · heads, dim], keys first, appended without norm or rotation.
    fn cache(kv: &Tensor, format: KvFormat) -> Result<[KvTensor; 2]> {
        let &[tokens, both, dim] = kv.dims() else { unreachable!("three dimensions") };
        let cache = || KvTensor::uninitialized([tokens, both / 2, dim], format, &Device::Cpu);
        let (mut k, mut v) = (cache()?, cache()?);
        let mut q = Tensor::uninitialized([tokens, 0, dim], kv.dtype(), &Device::Cpu)?;
        let cos = Tensor::from_slice(&vec![1.0f32; dim / 2], [1, dim / 2], &Device::Cpu)?;
        let sin = Tensor::zeros([1, dim / 2], DType::F32, &Device::Cpu)?;
        let at = Tensor::zeros([2], DType::U32, &Device::Cpu)?;
        ops::rope_append_into(q.view_mut()?, [k.view_mut()?, v.view_mut()?], kv, [&cos, &sin], None, &at)?;
        Ok([k, v])
    }

    #[test]
    fn pieces_give_what_the_whole_gives() -> Result<()> {
        let (q, kv) = (tensor([10, 4, 16])?, tensor([13, 4, 16])?);
        for format in [KvFormat::F32, KvFormat::BF16, KvFormat::Q8_0] {
            let [k, v] = cache(&kv, format)?;
            for causal in [false, true] {
                let options = ops::Attention { scale: None, causal };
                let values = |most| {
                    let attend = |to: TensorMut, q: &Tensor, _, seen| {
                        ops::attention_over_into(to, q, &k, &v, seen, &options)
                    };
                    let mut out = Tensor::uninitialized(q.shape(), DType::F32, &Device::Cpu)?;
                    in_pieces(out.view_mut()?, &q, 13, causal, most, attend)?;
                    out.to_vec::<f32>()
                };
                let whole = values(10)?;
                for most in [1, 3, 9] {
                    for (found, want) in values(most)?.iter().zip(&whole) {
                        let close = (found - want).abs() <= 1e-6;
                        assert!(close, "{format}, causal {causal}, {most} rows: {found} is not {want}");
                    }
                }
            }
        }
        Ok(())
    }
}
