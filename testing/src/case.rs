//! The interface of a case.

use half::f16;
use pascaline::{DType, Device, Result, Shape, Tensor, TensorMut};
use rayon::prelude::*;

/// The purpose of a case, which decides how large it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// An edge or a typical small shape: checked in full, on any device.
    Test,
    /// A shape worth timing: checked on sampled rows.
    Bench,
}

/// How far a result may be from the reference: `abs + rel · |reference|`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// The absolute part.
    pub abs: f64,
    /// The relative part.
    pub rel: f64,
    /// The reason for these numbers.
    pub reason: &'static str,
}

impl Tolerance {
    /// The result equals the reference.
    pub const EXACT: Self = Self { abs: 0.0, rel: 0.0, reason: "only exact operations" };

    /// An absolute and a relative part, and why.
    pub const fn new(abs: f64, rel: f64, reason: &'static str) -> Self {
        Self { abs, rel, reason }
    }
}

/// A tensor in host memory, every value exact in its element type.
#[derive(Clone, Debug)]
pub struct HostTensor {
    /// The dimensions.
    pub shape: Shape,
    /// The element type.
    pub dtype: DType,
    /// The values, row-major. (Indices are whole numbers below 2²⁴.)
    pub values: Vec<f32>,
}

impl HostTensor {
    /// Rounds the values to the element type.
    pub fn new(shape: impl Into<Shape>, dtype: DType, mut values: Vec<f32>) -> Self {
        let shape = shape.into();
        assert_eq!(shape.elements(), values.len(), "a host tensor's values fill its shape");
        if dtype == DType::F16 {
            values.par_iter_mut().for_each(|value| *value = f16::from_f32(*value).to_f32());
        }
        Self { shape, dtype, values }
    }

    /// Copies it to a device.
    ///
    /// # Errors
    /// As [`Tensor::from_slice`].
    pub fn to(&self, device: &Device) -> Result<Tensor> {
        match self.dtype {
            DType::F32 => Tensor::from_slice(&self.values, &self.shape, device),
            DType::F16 => {
                let values: Vec<_> = self.values.par_iter().map(|&value| f16::from_f32(value)).collect();
                Tensor::from_slice(&values, &self.shape, device)
            }
            DType::U32 => {
                let values: Vec<_> = self.values.iter().map(|&value| value as u32).collect();
                Tensor::from_slice(&values, &self.shape, device)
            }
        }
    }

    /// Row `r` of the tensor seen as a matrix whose columns are its last dimension.
    pub fn row(&self, r: usize) -> &[f32] {
        let (_, cols) = self.shape.rows_cols();
        &self.values[r * cols..(r + 1) * cols]
    }
}

/// The matrix product that a case computes, in BLAS's terms:
/// `y[b] = op(x[b]) · op(w[b])` for every `b < batch`, with `x` the first input, `w` the second, all contiguous and
/// row-major, alpha = 1 and beta = 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gemm {
    /// Whether `x` is stored as [k, m] and not as [m, k].
    pub transpose_x: bool,
    /// Whether `w` is stored as [n, k] and not as [k, n].
    pub transpose_w: bool,
    /// The number of independent products.
    pub batch: usize,
    /// Rows of `y`.
    pub m: usize,
    /// Columns of `y`.
    pub n: usize,
    /// The dimension that is summed over.
    pub k: usize,
    /// The type of all three; sums are in f32.
    pub dtype: DType,
}

/// The description of a case.
pub struct About {
    /// The op, as its module is called.
    pub op: &'static str,
    /// `op_dtype/key=value,…`, unique in the table.
    pub id: String,
    /// Its purpose.
    pub purpose: Purpose,
    /// The output's shape and type.
    pub output: (Shape, DType),
    /// How close the result must be.
    pub tolerance: Tolerance,
}

/// One op on one shape.
pub trait Case: Send + Sync {
    /// Its description.
    fn about(&self) -> About;

    /// As in the description.
    fn op(&self) -> &'static str {
        self.about().op
    }

    /// As in the description.
    fn id(&self) -> String {
        self.about().id
    }

    /// As in the description.
    fn purpose(&self) -> Purpose {
        self.about().purpose
    }

    /// As in the description.
    fn output(&self) -> (Shape, DType) {
        self.about().output
    }

    /// As in the description.
    fn tolerance(&self) -> Tolerance {
        self.about().tolerance
    }

    /// The inputs, the same at every call.
    fn inputs(&self) -> Vec<HostTensor>;

    /// The output's values before the op runs, for ops that add to it; otherwise it is filled with NaN.
    fn initial(&self) -> Option<HostTensor> {
        None
    }

    /// Runs the op. `y` is contiguous and of the shape and type that [`output`](Self::output) says.
    ///
    /// # Errors
    /// The op's.
    fn run(&self, y: TensorMut, inputs: &[Tensor]) -> Result<()>;

    /// Runs the same work with the kernels that this one replaces, to compare speeds; `None` if there are none.
    fn baseline(&self, _y: TensorMut, _inputs: &[Tensor]) -> Option<Result<()>> {
        None
    }

    /// The given rows of the output (a matrix whose columns are its last dimension) in f64, computed by the definition.
    fn reference(&self, inputs: &[HostTensor], rows: &[usize]) -> Vec<f64>;

    /// Floating-point operations of the definition (a multiply-add counts two); none where values are only moved.
    fn flops(&self) -> f64 {
        0.0
    }

    /// The fewest bytes that must move: every one of these inputs read and every output written once.
    fn bytes(&self, inputs: &[HostTensor]) -> f64 {
        let (shape, dtype) = self.output();
        let output = shape.elements() * dtype.size();
        let inputs: usize = inputs.iter().map(|x| x.shape.elements() * x.dtype.size()).sum();
        (output + inputs) as f64
    }

    /// The plain matrix product that this case is, so that a BLAS can be timed on it; `None` if it is not one.
    fn gemm(&self) -> Option<Gemm> {
        None
    }

    /// Whether the op is bound by arithmetic and not by memory, so that benches print GFLOP/s.
    fn compute_bound(&self) -> bool {
        false
    }

    /// Whether its multiply-adds are those of `dp4a`, four of 8 bits at once, so that their rate is the ceiling.
    fn dp4a(&self) -> bool {
        false
    }
}
