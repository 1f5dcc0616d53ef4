//! Sum, max and argmax over rows.

use super::{About, Case, HostTensor, Purpose, Tolerance, data, misaligned};
use pascaline::{DType, Result, Tensor, TensorMut, ops};

#[derive(Clone, Copy, PartialEq)]
enum Op {
    Sum,
    Max,
    Argmax,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Data {
    Normal,
    /// Small whole numbers: exact sums, and maxima that many columns share.
    Integers,
    /// A row with two NaN, one of −∞ alone, one that holds −0 before +0, one of NaN alone, one with ∞, one of −∞ and a NaN.
    Special,
}

#[derive(Clone)]
struct Reduce {
    op: Op,
    rows: usize,
    cols: usize,
    dtype: DType,
    purpose: Purpose,
    data: Data,
}

pub fn cases() -> Vec<Box<dyn Case>> {
    let mut cases = Vec::new();
    for op in [Op::Sum, Op::Max, Op::Argmax] {
        for dtype in [DType::F32, DType::F16] {
            let case = |rows, cols, data| Reduce { op, rows, cols, dtype, purpose: Purpose::Test, data };
            for (rows, cols) in [
                (0, 5),
                (1, 1),
                (3, 31),
                (8, 32),
                (9, 33),
                (7, 257),
                (5003, 9),
                (3001, 130),
                (2, 1024),
                (3, 1025),
                (5, 1032),
                (2, 4099),
                (1, 20000),
                (2, 40963),
            ] {
                cases.push(Box::new(case(rows, cols, Data::Normal)) as Box<dyn Case>);
            }
            for (rows, cols) in [(17, 128), (5, 1000), (3, 2056), (3, 20000)] {
                cases.push(Box::new(case(rows, cols, Data::Integers)));
            }
            for cols in [5, 40, 1500, 1600, 9000] {
                if op != Op::Sum {
                    cases.push(Box::new(case(6, cols, Data::Special)));
                }
            }
            if op == Op::Sum {
                cases.push(Box::new(case(5, 0, Data::Normal)));
            }
            cases.extend(misaligned::both(&case(5, 96, Data::Normal)));
            cases.extend(misaligned::both(&case(2, 1040, Data::Normal)));
            for (rows, cols) in [(1, 4096), (1, 151936), (32, 151936), (8192, 128), (8192, 4096)] {
                cases.push(Box::new(Reduce { purpose: Purpose::Bench, ..case(rows, cols, Data::Normal) }));
            }
        }
    }
    cases
}

impl Case for Reduce {
    fn about(&self) -> About {
        let op = match self.op {
            Op::Sum => "sum",
            Op::Max => "max",
            Op::Argmax => "argmax",
        };
        let data = data::label(self.data);
        let id = format!("{op}_{}/rows={},cols={}{data}", self.dtype, self.rows, self.cols);
        // Each addition rounds a random walk of k normal values, whose size is √k, by up to 2⁻²⁴ of it. A chain of L additions thus has
        // an error of 0.41·2⁻²⁴·L, as a standard deviation, and the row's cols / L chains have 0.41·2⁻²⁴·√(cols·L). Where rows are
        // enough for all multiprocessors a block of 512 threads adds a row: L is 297 for 151936 columns.
        let chain = (self.cols as f64 / 512.0).max(10.0);
        let abs = 1.23 * f64::from(f32::EPSILON) * (self.cols as f64 * chain).sqrt();
        let tolerance = match self.dtype {
            _ if self.op != Op::Sum || self.data == Data::Integers => Tolerance::EXACT,
            DType::F16 => {
                Tolerance::new(abs + 3.0e-8, 4.9e-4, "f32 sums of normal data, rounded to f16 once")
            }
            _ => Tolerance::new(abs, 2e-7, "6 standard deviations of f32 sums of normal data"),
        };
        About {
            op,
            id,
            purpose: self.purpose,
            output: ([self.rows].into(), if self.op == Op::Argmax { DType::U32 } else { self.dtype }),
            tolerance,
        }
    }

    fn inputs(&self) -> Vec<HostTensor> {
        let (id, shape) = (self.id(), [self.rows, self.cols]);
        let mut x = match self.data {
            Data::Integers => data::small_integers(&id, "x", shape, self.dtype),
            _ => data::normal(&id, "x", shape, self.dtype),
        };
        if self.data == Data::Special {
            let last = self.cols - 1;
            let row = |r: usize| r * self.cols..(r + 1) * self.cols;
            x.values[row(0)][last] = f32::NAN;
            x.values[row(0)][last / 2] = f32::NAN;
            x.values[row(1)].fill(f32::NEG_INFINITY);
            x.values[row(2)].iter_mut().for_each(|x| *x = -x.abs());
            x.values[row(2)][last / 3] = -0.0;
            x.values[row(2)][last] = 0.0;
            x.values[row(3)].fill(f32::NAN);
            x.values[row(4)][last] = f32::INFINITY;
            x.values[row(5)].fill(f32::NEG_INFINITY);
            x.values[row(5)][last] = f32::NAN;
        }
        vec![x]
    }

    fn run(&self, y: TensorMut, inputs: &[Tensor]) -> Result<()> {
        match self.op {
            Op::Sum => ops::sum_into(y, &inputs[0]),
            Op::Max => ops::max_into(y, &inputs[0]),
            Op::Argmax => ops::argmax_into(y, &inputs[0]),
        }
    }

    /// The output has rank 1, so its one row is all of it.
    fn reference(&self, inputs: &[HostTensor], _rows: &[usize]) -> Vec<f64> {
        let one = |r: usize| {
            let x = inputs[0].row(r);
            let nan = x.iter().position(|x| x.is_nan());
            let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            match self.op {
                Op::Sum => x.iter().map(|&x| f64::from(x)).sum(),
                Op::Max if nan.is_some() => f64::NAN,
                Op::Max => f64::from(max),
                Op::Argmax => nan.or(x.iter().position(|x| *x == max)).unwrap_or(0) as f64,
            }
        };
        (0..self.rows).map(one).collect()
    }

    fn flops(&self) -> f64 {
        (self.rows * self.cols) as f64
    }
}
