//! Conversion between f32 and f16.

use super::{About, Case, HostTensor, Purpose, Tolerance, data, misaligned};
use pascaline::{DType, Result, Tensor, TensorMut, ops};

#[derive(Clone)]
struct Cast {
    rows: usize,
    cols: usize,
    from: DType,
    to: DType,
    purpose: Purpose,
    special: bool,
}

pub fn cases() -> Vec<Box<dyn Case>> {
    let mut cases = Vec::new();
    for (from, to) in [(DType::F32, DType::F16), (DType::F16, DType::F32)] {
        let case = |rows, cols| Cast { rows, cols, from, to, purpose: Purpose::Test, special: false };
        for (rows, cols) in [(0, 5), (1, 1), (1, 7), (3, 31), (4, 32), (7, 1025), (2, 2053)] {
            cases.push(Box::new(case(rows, cols)) as Box<dyn Case>);
        }
        cases.extend(misaligned::both(&case(3, 347)));
        cases.push(Box::new(Cast { special: true, ..case(2, 24) }));
        for (rows, cols) in [(1, 4096), (8192, 4096)] {
            cases.push(Box::new(Cast { purpose: Purpose::Bench, ..case(rows, cols) }));
        }
    }
    cases.push(Box::new(Cast {
        rows: 3,
        cols: 5,
        from: DType::F16,
        to: DType::F16,
        purpose: Purpose::Test,
        special: false,
    }));
    cases
}

impl Case for Cast {
    fn about(&self) -> About {
        let data = if self.special { ",data=special" } else { "" };
        let id = format!("cast_{}_{}/rows={},cols={}{data}", self.to, self.from, self.rows, self.cols);
        About {
            op: "cast",
            id,
            purpose: self.purpose,
            output: ([self.rows, self.cols].into(), self.to),
            tolerance: Tolerance::EXACT,
        }
    }

    fn inputs(&self) -> Vec<HostTensor> {
        let mut x = data::normal(&self.id(), "x", [self.rows, self.cols], self.from);
        if self.special {
            let ulp = 1.0 / 1024.0;
            let special = [
                0.0,
                -0.0,
                f32::NAN,
                f32::INFINITY,
                f32::NEG_INFINITY,
                // the largest f16, the last value that rounds to it, and the first that overflows
                65504.0,
                65519.996,
                65520.0,
                -65520.0,
                1e30,
                // ties between neighbours go to the even one, and values next to a tie to the nearer
                1.0 + 0.5 * ulp,
                1.0 + 1.5 * ulp,
                1.0 + 0.500_1 * ulp,
                1.0 + 1.499_9 * ulp,
                // subnormals of f16: the smallest normal, the smallest, half of it (a tie to zero), a little more
                6.103_515_6e-5,
                5.960_464_5e-8,
                2.980_232_2e-8,
                2.980_232_6e-8,
                8.940_697e-8,
                -2.0e-8,
                1e-40,
            ];
            x.values.iter_mut().zip(special.iter().cycle()).for_each(|(x, special)| *x = *special);
        }
        vec![HostTensor::new(x.shape, x.dtype, x.values)]
    }

    fn run(&self, y: TensorMut, inputs: &[Tensor]) -> Result<()> {
        ops::cast_into(y, &inputs[0])
    }

    fn reference(&self, inputs: &[HostTensor], rows: &[usize]) -> Vec<f64> {
        let x = rows.iter().flat_map(|&r| inputs[0].row(r)).map(|&x| f64::from(x));
        if self.to == DType::F16 { x.map(nearest_f16).collect() } else { x.collect() }
    }
}

/// The nearest f16, ties to even, by the definition of the format: 11 significant bits, exponents from −14 to 15.
fn nearest_f16(x: f64) -> f64 {
    if x == 0.0 || !x.is_finite() {
        return x;
    }
    let exponent = (x.abs().log2().floor()).max(-14.0);
    let unit = (exponent - 10.0).exp2();
    let rounded = (x / unit).round_ties_even() * unit;
    if rounded.abs() >= 65536.0 { f64::INFINITY.copysign(x) } else { rounded }
}
