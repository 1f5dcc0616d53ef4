//! Multi-head attention with its projections.

use super::{LayerCache, Linear, RmsNorm, misfit, rows_per_launch};
use crate::{DType, Error, Result, Tensor, ops};

/// Rotary angles of the rows of a pass: cosines and sines, each [rows, head_dim / 2] f32.
#[derive(Clone, Debug)]
pub struct Rope {
    /// [rows, head_dim / 2]
    pub cos: Tensor,
    /// [rows, head_dim / 2]
    pub sin: Tensor,
}

impl Rope {
    /// The angles of `len` rows from `start` on.
    ///
    /// # Errors
    /// [`Error::Shape`] if they are outside.
    pub fn narrow(&self, start: usize, len: usize) -> Result<Self> {
        Ok(Self { cos: self.cos.narrow(0, start, len)?, sin: self.sin.narrow(0, start, len)? })
    }
}

/// How queries, keys and values come from the input.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant)] // one per layer, and never moved about
pub enum Projections {
    /// By three maps, for grouped queries; each head of q and k may be normalised before it is turned.
    Separate {
        /// [num_heads · head_dim, hidden]
        q: Linear,
        /// [num_kv_heads · head_dim, hidden]
        k: Linear,
        /// [num_kv_heads · head_dim, hidden]
        v: Linear,
        /// Over head_dim, for q and k.
        norms: Option<(RmsNorm, RmsNorm)>,
    },
    /// By one map that gives q, k and v side by side, all with the same number of heads: [3 · hidden, hidden].
    Fused(Linear),
}

/// Attention over rows of one sequence.
#[derive(Clone, Debug)]
pub struct Attention {
    projections: Projections,
    out: Linear,
    num_heads: usize,
    num_kv_heads: usize,
    head_dim: usize,
    options: ops::Attention,
}

impl Attention {
    /// `out`: [hidden, num_heads · head_dim]; the scale is 1/√head_dim.
    ///
    /// # Errors
    /// [`Error::Shape`] if the weights do not fit each other.
    pub fn new(
        projections: Projections,
        out: Linear,
        num_heads: usize,
        num_kv_heads: usize,
        head_dim: usize,
        causal: bool,
    ) -> Result<Self> {
        let check = |argument, linear: &Linear, width: usize| match linear.out_features() == width {
            true => Ok(()),
            false => Err(Error::Shape {
                op: "Attention",
                argument,
                expected: format!("[{width}, _]"),
                found: [linear.out_features(), linear.in_features()].into(),
            }),
        };
        let (q_width, kv_width) = (num_heads * head_dim, num_kv_heads * head_dim);
        match &projections {
            Projections::Separate { q, k, v, .. } => {
                check("q", q, q_width)?;
                check("k", k, kv_width)?;
                check("v", v, kv_width)?;
            }
            Projections::Fused(qkv) => check("qkv", qkv, q_width + 2 * kv_width)?,
        }
        check("out", &out, out.out_features())?;
        if out.in_features() != q_width {
            let found = [out.out_features(), out.in_features()].into();
            let expected = format!("[_, {q_width}]");
            return Err(Error::Shape { op: "Attention", argument: "out", expected, found });
        }
        let options = ops::Attention { scale: None, causal };
        Ok(Self { projections, out, num_heads, num_kv_heads, head_dim, options })
    }

    /// `x`: [rows, hidden] f32 → [rows, hidden]. With a cache the rows' keys and values are appended to it, and the
    /// rows see all that is in it; without, they see each other.
    ///
    /// # Errors
    /// [`Error::Shape`] if `x` or `rope` do not fit or the cache is full, or a device error.
    pub fn forward(&self, x: &Tensor, rope: &Rope, cache: Option<&mut LayerCache>) -> Result<Tensor> {
        let &[rows, _] = x.dims() else { return Err(misfit("Attention", "x", "[rows, hidden]", x)) };
        let attended = match &self.projections {
            Projections::Separate { q, k, v, norms } => {
                let heads = |y: Tensor, heads: usize| y.reshape([rows, heads, self.head_dim]);
                let normed = |y: Tensor, norm: Option<&RmsNorm>| match norm {
                    Some(norm) => norm.forward(&y),
                    None => Ok(y),
                };
                let (q_norm, k_norm) = norms.as_ref().map(|(q, k)| (q, k)).unzip();
                let q = normed(heads(q.forward(x)?, self.num_heads)?, q_norm)?;
                let q = ops::rope(&q, &rope.cos, &rope.sin)?;
                let k = normed(heads(k.forward(x)?, self.num_kv_heads)?, k_norm)?;
                match cache {
                    Some(cache) => {
                        let width = self.num_kv_heads * self.head_dim;
                        cache.append(rows, |k_new, v_new| {
                            ops::rope_into(k_new, &k, &rope.cos, &rope.sin)?;
                            v.forward_into(v_new.reshape([rows, width])?, x)
                        })?;
                        let (k, v) = cache.views()?;
                        self.attend(&q, &k, &v)?
                    }
                    None => {
                        let k = ops::rope(&k, &rope.cos, &rope.sin)?;
                        let v = heads(v.forward(x)?, self.num_kv_heads)?;
                        self.attend(&q, &k.swap_dims(0, 1)?, &v.swap_dims(0, 1)?)?
                    }
                }
            }
            Projections::Fused(qkv) => {
                let (heads, kv_heads) = (self.num_heads, self.num_kv_heads);
                let qkv = qkv.forward(x)?.reshape([rows, heads + 2 * kv_heads, self.head_dim])?;
                // q and k turn by the same angles, so both are turned in one go
                let qk = ops::rope(&qkv.narrow(1, 0, heads + kv_heads)?, &rope.cos, &rope.sin)?;
                let (q, k) = (qk.narrow(1, 0, heads)?, qk.narrow(1, heads, kv_heads)?);
                let v = qkv.narrow(1, heads + kv_heads, kv_heads)?;
                match cache {
                    Some(cache) => {
                        cache.append(rows, |k_new, v_new| {
                            ops::copy_into(k_new, &k)?;
                            ops::copy_into(v_new, &v)
                        })?;
                        let (k, v) = cache.views()?;
                        self.attend(&q, &k, &v)?
                    }
                    None => self.attend(&q, &k.swap_dims(0, 1)?, &v.swap_dims(0, 1)?)?,
                }
            }
        };
        self.out.forward(&attended)
    }

    /// q: [rows, num_heads, head_dim], k, v: [num_kv_heads, len, head_dim] → [rows, num_heads · head_dim]
    fn attend(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        let flops_per_row = 4 * k.dims()[1] * self.num_heads * self.head_dim;
        attend_in_pieces(q, k, v, &self.options, rows_per_launch(flops_per_row))?
            .reshape([q.dims()[0], self.num_heads * self.head_dim])
    }

    /// Bytes of the weights.
    pub fn weight_bytes(&self) -> usize {
        self.out.weight_bytes()
            + match &self.projections {
                Projections::Separate { q, k, v, .. } => {
                    q.weight_bytes() + k.weight_bytes() + v.weight_bytes()
                }
                Projections::Fused(qkv) => qkv.weight_bytes(),
            }
    }
}

/// q: [rows, num_heads, head_dim], k, v: [num_kv_heads, len, head_dim] → as q; at most `most` rows in a launch.
fn attend_in_pieces(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    options: &ops::Attention,
    most: usize,
) -> Result<Tensor> {
    let (rows, len) = (q.dims()[0], k.dims()[1]);
    let mut out = Tensor::uninitialized(q.shape(), DType::F32, &q.device())?;
    for start in (0..rows).step_by(most) {
        let count = most.min(rows - start);
        // the last row of a causal piece sees all keys that are handed over
        let seen = if options.causal { (len + start + count).saturating_sub(rows) } else { len };
        let (k, v) = (k.narrow(1, 0, seen)?, v.narrow(1, 0, seen)?);
        let q = q.narrow(0, start, count)?.swap_dims(0, 1)?;
        ops::attention_into(out.view_mut()?.narrow(0, start, count)?.swap_dims(0, 1)?, &q, &k, &v, options)?;
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;
    use crate::testing::data;

    #[test]
    fn pieces_give_what_the_whole_gives() {
        let tensor = |name, shape: [usize; 3]| {
            data::normal("pieces", name, shape, DType::F32).to(&Device::Cpu).unwrap()
        };
        let (q, k, v) = (tensor("q", [10, 4, 16]), tensor("k", [2, 13, 16]), tensor("v", [2, 13, 16]));
        for causal in [false, true] {
            let options = ops::Attention { scale: None, causal };
            let values =
                |most| attend_in_pieces(&q, &k, &v, &options, most).unwrap().to_vec::<f32>().unwrap();
            let whole = values(10);
            for most in [1, 3, 9] {
                for (found, want) in values(most).iter().zip(&whole) {
                    assert!(
                        (found - want).abs() <= 1e-6,
                        "causal {causal}, {most} rows: {found} is not {want}"
                    );
                }
            }
        }
    }
}
