//! Embedding lookup, and sums over all rows.

use super::{About, Differentiable};
use crate::{HostTensor, Purpose, Tolerance, data};
use pascaline::{DType, Result, Shape, Tensor, TensorMut, ops};
use rand::Rng;

pub(super) struct Embedding {
    rows: usize,
    cols: usize,
    n: usize,
    /// Whether it is a bias: one row, which is added to all rows.
    is_bias: bool,
    /// Whether the gradient is added to an output, here of zeros.
    add: bool,
    dtype: DType,
    purpose: Purpose,
}

pub(super) fn all() -> Vec<Embedding> {
    let mut all = Vec::new();
    for (rows, cols, n) in
        [(1, 1, 1), (7, 3, 5), (5, 64, 33), (400, 257, 9), (3, 300, 600), (9, 4, 0), (9, 0, 4)]
    {
        for add in [false, true] {
            all.push(Embedding {
                rows,
                cols,
                n,
                is_bias: false,
                add,
                dtype: DType::F32,
                purpose: Purpose::Test,
            });
        }
    }
    let (rows, cols, n) = (151_936, 2048, 1024);
    all.push(Embedding {
        rows,
        cols,
        n,
        is_bias: false,
        add: false,
        dtype: DType::F32,
        purpose: Purpose::Bench,
    });
    for dtype in [DType::F32, DType::F16] {
        let bias =
            |n, cols, purpose| Embedding { rows: 1, cols, n, is_bias: true, add: false, dtype, purpose };
        for (n, cols) in [(0, 3), (1, 1), (5, 33), (300, 70), (1000, 31)] {
            all.push(bias(n, cols, Purpose::Test));
        }
        all.push(bias(8192, 2048, Purpose::Bench));
    }
    all
}

impl Differentiable for Embedding {
    fn about(&self) -> About {
        let add = if self.add { ",add=true" } else { "" };
        let sizes = match self.is_bias {
            true => format!("rows={},cols={}", self.n, self.cols),
            false => format!("rows={},cols={},n={}{add}", self.rows, self.cols, self.n),
        };
        let shape: Shape = if self.is_bias { [self.cols].into() } else { [self.rows, self.cols].into() };
        let gradient = (shape, DType::F32);
        About {
            op: if self.is_bias { "column_sum" } else { "embedding_backward" },
            sizes,
            dtype: self.dtype,
            purpose: self.purpose,
            gradient,
            tolerance: Tolerance::new(
                3e-7 * (self.n.max(1) as f64).sqrt(),
                1e-6,
                "a sum in f32 of numbers about 1",
            ),
        }
    }

    fn forward_shape(&self) -> Shape {
        [self.n, self.cols].into()
    }

    /// The ids; some are out of range.
    fn arguments(&self) -> Vec<HostTensor> {
        let mut rng = data::rng(&self.sizes(), "ids");
        let most = if self.is_bias { 1 } else { self.rows + 2 };
        vec![HostTensor::new(
            [self.n],
            DType::U32,
            (0..self.n).map(|_| rng.random_range(0..most) as f32).collect(),
        )]
    }

    fn run(&self, mut y: TensorMut, dy: &Tensor, arguments: &[Tensor]) -> Result<()> {
        if self.is_bias {
            return ops::column_sum_into(y, dy);
        }
        if !self.add {
            return ops::embedding_backward_into(y, dy, &arguments[0]);
        }
        ops::copy_into(y.reborrow(), &Tensor::zeros([self.rows, self.cols], DType::F32, &dy.device())?)?;
        ops::embedding_backward_add(y, dy, &arguments[0])
    }

    fn formula(&self, dy: &[f64], arguments: &[Vec<f64>]) -> Vec<f64> {
        let mut sums = vec![0.0; self.rows * self.cols];
        for (i, &id) in arguments[0].iter().enumerate().filter(|(_, id)| (**id as usize) < self.rows) {
            for c in 0..self.cols {
                sums[id as usize * self.cols + c] += dy[i * self.cols + c];
            }
        }
        sums
    }

    fn point(&self, _: &[Vec<f64>]) -> Vec<f64> {
        vec![0.0; self.rows * self.cols]
    }

    /// An id out of range gives zeros here, and no gradient.
    fn forward(&self, point: &[f64], arguments: &[Vec<f64>]) -> Vec<f64> {
        let row = |id: &f64| match (*id as usize) < self.rows {
            true => point[*id as usize * self.cols..][..self.cols].to_vec(),
            false => vec![0.0; self.cols],
        };
        arguments[0].iter().flat_map(row).collect()
    }

    fn flops(&self) -> f64 {
        (self.n * self.cols) as f64
    }
}
