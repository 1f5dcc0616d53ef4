//! Ops that compute each row of the result from one row of x: what the cases of softmax and of the norms have in common.

use super::{About, Case, HostTensor, Purpose, Tolerance, data, misaligned};
use pascaline::{DType, Result, Tensor, TensorMut};
use std::marker::PhantomData;

/// Rows and columns that every such op is tried with: none, one, warps and blocks and their multiples ± 1, primes.
pub const SHAPES: [(usize, usize); 19] = [
    (0, 5),
    (5, 0),
    (1, 1),
    (3, 31),
    (8, 32),
    (9, 33),
    (17, 128),
    (5003, 9),
    (3001, 130),
    (1301, 260),
    (7, 257),
    (2, 1024),
    (3, 1025),
    (5, 2048),
    (3, 3333),
    (2, 4099),
    (2, 8192),
    (2, 8193),
    (2, 9000),
];

/// An op.
pub trait RowOp: Send + Sync + 'static {
    /// Its name.
    const NAME: &'static str;
    /// The arguments after x, each a vector of as many values as x has columns.
    const VECTORS: &'static [&'static str];
    /// Floating-point operations for a value.
    const FLOPS: f64;

    /// How close the result must be.
    fn tolerance(dtype: DType) -> Tolerance;

    /// Runs the op.
    fn run(y: TensorMut, inputs: &[Tensor]) -> Result<()>;

    /// The result of a row; `vectors` are the other arguments.
    fn reference(x: &[f64], vectors: &[Vec<f64>]) -> Vec<f64>;
}

/// The values of x.
#[derive(Clone, Copy)]
pub enum Data {
    /// Normal.
    Normal,
    /// A few are far larger than the others.
    Outliers,
    /// Normal, then changed by a function of all values and the number of columns; with a name.
    Changed(&'static str, fn(&mut [f32], usize)),
}

/// A case.
pub struct Rows<Op> {
    rows: usize,
    cols: usize,
    dtype: DType,
    purpose: Purpose,
    data: Data,
    op: PhantomData<Op>,
}

impl<Op> Clone for Rows<Op> {
    fn clone(&self) -> Self {
        Self { op: PhantomData, ..*self }
    }
}

impl<Op: RowOp> Rows<Op> {
    /// A case for tests.
    pub fn test(rows: usize, cols: usize, dtype: DType, data: Data) -> Box<dyn Case> {
        Box::new(Self { rows, cols, dtype, purpose: Purpose::Test, data, op: PhantomData })
    }

    /// A case to be timed.
    pub fn bench(rows: usize, cols: usize, dtype: DType) -> Box<dyn Case> {
        Box::new(Self { rows, cols, dtype, purpose: Purpose::Bench, data: Data::Normal, op: PhantomData })
    }

    /// Three rows whose operands start in the middle of an allocation.
    pub fn misaligned(cols: usize, dtype: DType) -> [Box<dyn Case>; 2] {
        let (purpose, data) = (Purpose::Test, Data::Normal);
        misaligned::both(&Self { rows: 3, cols, dtype, purpose, data, op: PhantomData })
    }
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&value| f64::from(value)).collect()
}

impl<Op: RowOp> Case for Rows<Op> {
    fn about(&self) -> About {
        let data = match self.data {
            Data::Normal => String::new(),
            Data::Outliers => ",data=outliers".into(),
            Data::Changed(name, _) => format!(",data={name}"),
        };
        About {
            op: Op::NAME,
            id: format!("{}_{}/rows={},cols={}{data}", Op::NAME, self.dtype, self.rows, self.cols),
            purpose: self.purpose,
            output: ([self.rows, self.cols].into(), self.dtype),
            tolerance: Op::tolerance(self.dtype),
        }
    }

    fn inputs(&self) -> Vec<HostTensor> {
        let (id, shape) = (self.id(), [self.rows, self.cols]);
        let mut x = match self.data {
            Data::Outliers => data::outliers(&id, "x", shape, self.dtype),
            _ => data::normal(&id, "x", shape, self.dtype),
        };
        if let Data::Changed(_, change) = self.data {
            change(&mut x.values, self.cols);
        }
        let mut inputs = vec![HostTensor::new(x.shape, x.dtype, x.values)];
        inputs.extend(Op::VECTORS.iter().map(|name| data::normal(&id, name, [self.cols], self.dtype)));
        inputs
    }

    fn run(&self, y: TensorMut, inputs: &[Tensor]) -> Result<()> {
        Op::run(y, inputs)
    }

    fn reference(&self, inputs: &[HostTensor], rows: &[usize]) -> Vec<f64> {
        let vectors: Vec<_> = inputs[1..].iter().map(|vector| wide(&vector.values)).collect();
        rows.iter().flat_map(|&r| Op::reference(&wide(inputs[0].row(r)), &vectors)).collect()
    }

    fn flops(&self) -> f64 {
        Op::FLOPS * (self.rows * self.cols) as f64
    }
}
