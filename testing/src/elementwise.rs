//! Element-wise ops.

use super::{About, Case, HostTensor, Purpose, Tolerance, activate, data, misaligned};
use pascaline::ops::{self, Activation};
use pascaline::{DType, Result, Tensor, TensorMut};

#[derive(Clone, Copy, PartialEq)]
enum Op {
    Add,
    Mul,
    SiluMul,
    Scale,
    GeluTanh,
    GeluErf,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Data {
    Normal,
    /// Evenly from −14 to 14, so that the tails are seen.
    Grid,
    /// Zeros, infinities, NaN, subnormal and huge values.
    Special,
}

#[derive(Clone)]
struct Elementwise {
    op: Op,
    rows: usize,
    cols: usize,
    /// The second operand has one row for all.
    bias: bool,
    dtype: DType,
    purpose: Purpose,
    data: Data,
}

/// The factor of `scale`.
const FACTOR: f32 = -0.37;

const OPS: [Op; 6] = [Op::Add, Op::Mul, Op::SiluMul, Op::Scale, Op::GeluTanh, Op::GeluErf];

pub fn cases() -> Vec<Box<dyn Case>> {
    let mut cases = Vec::new();
    for op in OPS {
        for dtype in [DType::F32, DType::F16] {
            let case = |rows, cols| Elementwise {
                op,
                rows,
                cols,
                bias: false,
                dtype,
                purpose: Purpose::Test,
                data: Data::Normal,
            };
            for (rows, cols) in [(0, 5), (5, 0), (1, 1), (1, 7), (3, 31), (4, 32), (7, 1025), (2, 2053)] {
                cases.push(Box::new(case(rows, cols)) as Box<dyn Case>);
                if matches!(op, Op::Add | Op::Mul) {
                    cases.push(Box::new(Elementwise { bias: true, ..case(rows, cols) }));
                }
            }
            cases.extend(misaligned::both(&case(3, 347)));
            if matches!(op, Op::Add | Op::Mul) {
                cases.extend(misaligned::both(&Elementwise { bias: true, ..case(3, 352) }));
            }
            cases.push(Box::new(Elementwise { data: Data::Special, ..case(2, 16) }));
            cases.push(Box::new(Elementwise { data: Data::Grid, ..case(3, 1111) }));
        }
        for (rows, cols) in [(1, 4096), (1024, 2048), (8192, 2048), (8192, 4096)] {
            for dtype in [DType::F32, DType::F16] {
                let (purpose, data) = (Purpose::Bench, Data::Normal);
                let case = Elementwise { op, rows, cols, bias: false, dtype, purpose, data };
                if op == Op::Add {
                    cases.push(Box::new(Elementwise { bias: true, ..case.clone() }));
                }
                cases.push(Box::new(case));
            }
        }
    }
    cases
}

impl Elementwise {
    fn is_binary(&self) -> bool {
        matches!(self.op, Op::Add | Op::Mul | Op::SiluMul)
    }

    fn operand(&self, argument: &str, rows: usize) -> HostTensor {
        let shape = if argument == "y" && self.bias { vec![self.cols] } else { vec![rows, self.cols] };
        let mut x = data::normal(&self.id(), argument, shape, self.dtype);
        let n = x.values.len().max(1) as f32;
        if argument == "x" && self.data == Data::Grid {
            x.values = (0..x.values.len()).map(|i| 28.0 * (i as f32 + 0.5) / n - 14.0).collect();
        }
        if argument == "x" && self.data == Data::Special {
            let special = [
                0.0,
                -0.0,
                f32::NAN,
                f32::INFINITY,
                f32::NEG_INFINITY,
                1e-40,
                -1e-40,
                65504.0,
                -65504.0,
                1e-30,
                -90.0,
                -88.0,
                88.5,
                -103.0,
                1e15,
                -1e15,
            ];
            x.values.iter_mut().zip(special.iter().cycle()).for_each(|(x, special)| *x = *special);
        }
        HostTensor::new(x.shape, x.dtype, x.values)
    }
}

impl Case for Elementwise {
    fn about(&self) -> About {
        let op = match self.op {
            Op::Add => "add",
            Op::Mul => "mul",
            Op::SiluMul => "silu_mul",
            Op::Scale => "scale",
            Op::GeluTanh => "gelu_tanh",
            Op::GeluErf => "gelu_erf",
        };
        let data = data::label(self.data);
        let bias = if self.bias { ",y=bias" } else { "" };
        let id = format!("{op}_{}/rows={},cols={}{bias}{data}", self.dtype, self.rows, self.cols);
        About {
            op,
            id,
            purpose: self.purpose,
            output: ([self.rows, self.cols].into(), self.dtype),
            tolerance: match (self.dtype, self.op) {
                (DType::F16, _) => Tolerance::new(3.0e-8, 4.9e-4, "one rounding to f16, subnormals included"),
                (_, Op::Add | Op::Mul | Op::Scale) => Tolerance::new(1e-45, 6e-8, "one rounding"),
                (_, Op::GeluTanh) => Tolerance::new(
                    1e-9,
                    3e-6,
                    "the exponent's rounding, which grows with |x| as the result shrinks",
                ),
                _ => Tolerance::new(
                    1e-36,
                    1e-6,
                    "exp to 3e-7 and four roundings; what is subnormal may be zero",
                ),
            },
        }
    }

    fn inputs(&self) -> Vec<HostTensor> {
        let mut inputs = vec![self.operand("x", self.rows)];
        if self.is_binary() {
            inputs.push(self.operand("y", self.rows));
        }
        inputs
    }

    fn run(&self, z: TensorMut, inputs: &[Tensor]) -> Result<()> {
        match self.op {
            Op::Add => ops::add_into(z, &inputs[0], &inputs[1]),
            Op::Mul => ops::mul_into(z, &inputs[0], &inputs[1]),
            Op::SiluMul => ops::silu_mul_into(z, &inputs[0], &inputs[1]),
            Op::Scale => ops::scale_into(z, &inputs[0], FACTOR),
            Op::GeluTanh => ops::gelu_tanh_into(z, &inputs[0]),
            Op::GeluErf => ops::gelu_erf_into(z, &inputs[0]),
        }
    }

    fn reference(&self, inputs: &[HostTensor], rows: &[usize]) -> Vec<f64> {
        let mut z = Vec::with_capacity(rows.len() * self.cols);
        for &r in rows {
            for (c, &x) in inputs[0].row(r).iter().enumerate() {
                let x = f64::from(x);
                let y = || f64::from(inputs[1].row(if self.bias { 0 } else { r })[c]);
                z.push(match self.op {
                    Op::Add => x + y(),
                    Op::Mul => x * y(),
                    Op::SiluMul => activate::reference(x, Activation::Silu) * y(),
                    Op::Scale => x * f64::from(FACTOR),
                    Op::GeluTanh => activate::reference(x, Activation::GeluTanh),
                    Op::GeluErf => activate::reference(x, Activation::GeluErf),
                });
            }
        }
        if self.dtype == DType::F16 {
            // beyond the range of f16 the result is infinite, by the definition of the type
            z.iter_mut().filter(|z| z.abs() >= 65520.0).for_each(|z| *z = f64::INFINITY.copysign(*z));
        }
        z
    }

    fn flops(&self) -> f64 {
        let per_element = match self.op {
            Op::Add | Op::Mul | Op::Scale => 1.0,
            Op::SiluMul => 4.0,
            Op::GeluTanh => 10.0,
            Op::GeluErf => 14.0,
        };
        per_element * (self.rows * self.cols) as f64
    }
}
