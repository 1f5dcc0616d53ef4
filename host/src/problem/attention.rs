//! Scaled dot-product attention.

/// Options of attention.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Attention {
    /// The factor on the scores; `None` for 1/√head_dim.
    pub scale: Option<f32>,
    /// Whether query i attends only to keys up to number i + kv_len − q_len, so that the last query attends to all.
    pub causal: bool,
}

impl Attention {
    /// The factor on the scores for this head_dim.
    pub(crate) fn scale_for(&self, head_dim: usize) -> f32 {
        self.scale.unwrap_or(1.0 / (head_dim as f32).sqrt())
    }
}

/// The sizes and strides of a checked call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Problem {
    pub batch: usize,
    pub num_q_heads: usize,
    pub num_kv_heads: usize,
    pub q_len: usize,
    pub kv_len: usize,
    pub head_dim: usize,
    pub scale: f32,
    pub causal: bool,
    pub out: HeadStrides,
    pub q: HeadStrides,
    pub k: HeadStrides,
    pub v: HeadStrides,
}

/// Strides in elements; 0 along dimensions of size 1. That of the last dimension is 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeadStrides {
    pub batch: usize,
    pub head: usize,
    pub row: usize,
}

impl Problem {
    /// Number of query heads that share a kv head.
    pub fn group(&self) -> usize {
        self.num_q_heads / self.num_kv_heads
    }

    /// The number of keys that query `i` attends to; these are the first ones.
    pub fn visible(&self, i: usize) -> usize {
        if self.causal { (i + 1 + self.kv_len).saturating_sub(self.q_len) } else { self.kv_len }
    }
}
