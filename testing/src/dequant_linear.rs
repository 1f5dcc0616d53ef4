//! Products with the values of quantised matrices, in f32, and their gradients.

use super::held::Held;
use super::quant::reference_weights;
use super::{About, Case, HostTensor, Purpose, Tolerance, data};
use pascaline::quant::{Format, QuantTensor, block_len, name};
use pascaline::{DType, Result, Tensor, TensorMut, ops};

struct Product {
    rows: usize,
    /// The shape of w: [n, k]
    n: usize,
    k: usize,
    format: Format,
    is_gradient: bool,
    purpose: Purpose,
    stored: Held<QuantTensor>,
}

pub fn cases() -> Vec<Box<dyn Case>> {
    let mut all = Vec::new();
    for is_gradient in [false, true] {
        for format in [Format::Q8_0, Format::Q4_0, Format::Q4K, Format::Q6K] {
            let case = |rows, n, k, purpose| Product {
                rows,
                n,
                k,
                format,
                is_gradient,
                purpose,
                stored: Held::default(),
            };
            let k = if block_len(format) == 256 { 512 } else { 96 };
            // whole tiles, parts of tiles, one row, row counts that are no multiple of four, and padding
            for (rows, n, k) in
                [(64, 64, k), (1, 32, k), (65, 100, k), (7, 33, k), (130, 68, k + 4), (0, 4, k)]
            {
                all.push(case(rows, n, k, Purpose::Test));
            }
            if format != Format::Q6K {
                all.push(case(1024, 6144, 2048, Purpose::Bench));
            }
        }
    }
    all.into_iter().map(|case| Box::new(case) as Box<dyn Case>).collect()
}

impl Product {
    /// Columns of x or dy, and of the result.
    fn columns(&self) -> [usize; 2] {
        if self.is_gradient { [self.n, self.k] } else { [self.k, self.n] }
    }
}

impl Case for Product {
    fn about(&self) -> About {
        let op = if self.is_gradient { "dequant_linear_backward" } else { "dequant_linear" };
        let id = format!("{op}_{}/rows={},n={},k={}", name(self.format), self.rows, self.n, self.k);
        // as in `matmul`, which gives the reason
        let sums = f64::from(f32::EPSILON) * (6.0 + 2.0 * self.columns()[0] as f64);
        let tolerance = Tolerance::new(sums, 1e-6, "f32 sums in any order, of values of two roundings");
        About {
            op,
            id,
            purpose: self.purpose,
            output: ([self.rows, self.columns()[1]].into(), DType::F32),
            tolerance,
        }
    }

    fn inputs(&self) -> Vec<HostTensor> {
        let id = self.id();
        vec![
            data::normal(&id, "x", [self.rows, self.columns()[0]], DType::F32),
            data::normal(&id, "w", [self.n, self.k], DType::F32),
            data::normal(&id, "bias", [self.n], DType::F32),
        ]
    }

    fn run(&self, y: TensorMut, inputs: &[Tensor]) -> Result<()> {
        let [x, w, bias] = inputs else { return Ok(()) };
        let product = |w: &QuantTensor| match self.is_gradient {
            true => ops::dequant_linear_backward(x, w),
            false => ops::dequant_linear(x, w, Some(bias)),
        };
        ops::copy_into(y, &self.stored.with(&w.device(), || ops::quantize(w, self.format), product)?)
    }

    fn reference(&self, inputs: &[HostTensor], rows: &[usize]) -> Vec<f64> {
        let w = reference_weights(&inputs[1], self.format);
        let at = |n: usize, k: usize| w[n * self.k + k];
        let product = |row: &[f32], column: usize| -> f64 {
            let values = row.iter().map(|&x| f64::from(x)).enumerate();
            match self.is_gradient {
                true => values.map(|(n, x)| x * at(n, column)).sum(),
                false => {
                    values.map(|(k, x)| x * at(column, k)).sum::<f64>() + f64::from(inputs[2].values[column])
                }
            }
        };
        let columns = self.columns()[1];
        rows.iter()
            .flat_map(|&r| (0..columns).map(move |c| (r, c)))
            .map(|(r, c)| product(inputs[0].row(r), c))
            .collect()
    }

    fn flops(&self) -> f64 {
        2.0 * (self.rows * self.n * self.k) as f64
    }

    fn bytes(&self, _: &[HostTensor]) -> f64 {
        let w = QuantTensor::part_bytes(self.format, [self.n, self.k]).map_or(0, |parts| parts.iter().sum());
        (4 * self.rows * (self.n + self.k) + w) as f64
    }

    fn compute_bound(&self) -> bool {
        self.purpose == Purpose::Bench
    }
}
