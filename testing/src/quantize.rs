//! Quantising and reading back: both together, which is the op of quantisation-aware training, and reading back alone.

use super::quant::{Weights, reference_weights};
use super::{About, Case, HostTensor, Purpose, Tolerance, data};
use pascaline::quant::{FORMATS, Format, bits, name};
use pascaline::{DType, Result, Tensor, TensorMut, ops};

struct Quantize {
    rows: usize,
    cols: usize,
    format: Format,
    dtype: DType,
    purpose: Purpose,
    /// The quantised tensor, if the case is reading back alone.
    held: Option<Weights>,
}

impl Case for Quantize {
    fn about(&self) -> About {
        let (format, dtype, Self { rows, cols, .. }) = (name(self.format), self.dtype, self);
        let op = if self.held.is_some() { "dequantize" } else { "fake_quantize" };
        let id = format!("{op}_{format}_{dtype}/rows={rows},cols={cols}");
        About {
            op: "quantize",
            id,
            purpose: self.purpose,
            output: ([self.rows, self.cols].into(), self.dtype),
            tolerance: match self.dtype {
                DType::F32 => Tolerance::new(
                    2e-5,
                    1e-7,
                    "one rounding; a difference of exact products in Q4_K and Q5_K",
                ),
                _ => Tolerance::new(3e-5, 1.0 / 2048.0 + 1e-6, "one rounding to f16"),
            },
        }
    }

    fn inputs(&self) -> Vec<HostTensor> {
        vec![data::outliers(&self.id(), "x", [self.rows, self.cols], DType::F32)]
    }

    fn run(&self, y: TensorMut, inputs: &[Tensor]) -> Result<()> {
        let quantized = match &self.held {
            Some(held) => held.get(&inputs[0], self.format)?,
            None => ops::quantize(&inputs[0], self.format)?,
        };
        ops::dequantize_into(y, &quantized)
    }

    fn reference(&self, inputs: &[HostTensor], rows: &[usize]) -> Vec<f64> {
        let x = rows.iter().flat_map(|&r| inputs[0].row(r).to_vec()).collect();
        reference_weights(&HostTensor::new([rows.len(), self.cols], DType::F32, x), self.format)
    }

    fn flops(&self) -> f64 {
        (self.rows * self.cols) as f64
    }

    fn bytes(&self, _: &[HostTensor]) -> f64 {
        let quants = bits(self.format) as f64 / 8.0;
        let read_back = quants + self.dtype.size() as f64;
        let made = if self.held.is_some() { 0.0 } else { 4.0 + quants };
        (self.rows * self.cols) as f64 * (read_back + made)
    }
}

/// Quantising with given scales and reading back.
struct Scaled {
    rows: usize,
    cols: usize,
    format: Format,
    purpose: Purpose,
}

impl Scaled {
    fn range(&self) -> [f32; 2] {
        if self.format == Format::Q4_0 { [-8.0, 7.0] } else { [-127.0, 127.0] }
    }
}

impl Case for Scaled {
    fn about(&self) -> About {
        let id = format!("fake_quantize_scaled_{}/rows={},cols={}", name(self.format), self.rows, self.cols);
        About {
            op: "quantize",
            id,
            purpose: self.purpose,
            output: ([self.rows, self.cols].into(), DType::F32),
            tolerance: Tolerance::EXACT, // a scale of 11 bits times a quant of 8
        }
    }

    /// Outliers are clipped, far beyond the range; some scales are negative, and one in 16 is 0.
    fn inputs(&self) -> Vec<HostTensor> {
        let shape = [self.rows, self.cols.div_ceil(32)];
        let scales = data::normal(&self.id(), "scales", shape, DType::F32);
        let scale = |(i, s): (usize, &f32)| if i % 16 == 15 { 0.0 } else { s * 2.5 / self.range()[1] };
        let scales = scales.values.iter().enumerate().map(scale).collect();
        let x = data::outliers(&self.id(), "x", [self.rows, self.cols], DType::F32);
        vec![x, HostTensor::new(shape, DType::F32, scales)]
    }

    fn run(&self, y: TensorMut, inputs: &[Tensor]) -> Result<()> {
        ops::dequantize_into(y, &ops::quantize_scaled(&inputs[0], &inputs[1], self.format)?)
    }

    fn reference(&self, inputs: &[HostTensor], rows: &[usize]) -> Vec<f64> {
        let [low, high] = self.range();
        let value = |x: f32, scale: f32| {
            if scale == 0.0 {
                return 0.0;
            }
            let steps = x * (1.0 / scale); // which of two quants is nearer is decided in f32
            let quant =
                if self.format == Format::Q4_0 { (steps + 0.5).floor() } else { steps.round_ties_even() };
            f64::from(half::f16::from_f32(scale).to_f32()) * f64::from(quant.clamp(low, high))
        };
        let of_row = |&r: &usize| {
            let scales = inputs[1].row(r);
            inputs[0].row(r).iter().enumerate().map(|(c, &x)| value(x, scales[c / 32])).collect::<Vec<_>>()
        };
        rows.iter().flat_map(of_row).collect()
    }

    fn flops(&self) -> f64 {
        (self.rows * self.cols) as f64
    }

    fn bytes(&self, _: &[HostTensor]) -> f64 {
        (self.rows * self.cols) as f64 * (8.0 + 2.0 * bits(self.format) as f64 / 8.0)
    }
}

pub fn cases() -> Vec<Box<dyn Case>> {
    let mut cases = Vec::new();
    for format in FORMATS {
        let mut add = |rows, cols, dtype, purpose, held| {
            cases.push(Box::new(Quantize { rows, cols, format, dtype, purpose, held }) as Box<dyn Case>);
        };
        for dtype in [DType::F32, DType::F16] {
            for (rows, cols) in [(0, 32), (1, 1), (2, 31), (3, 256), (5, 300), (9, 1025)] {
                add(rows, cols, dtype, Purpose::Test, None);
                add(rows, cols, dtype, Purpose::Test, Some(Weights::default()));
            }
        }
        add(8192, 4096, DType::F32, Purpose::Bench, None);
        add(8192, 4096, DType::F32, Purpose::Bench, Some(Weights::default()));
    }
    for format in [Format::Q8_0, Format::Q4_0] {
        let sizes = [(0, 32), (1, 1), (2, 31), (3, 64), (33, 96), (5, 300), (9, 1025)];
        let tests = sizes.map(|(rows, cols)| Scaled { rows, cols, format, purpose: Purpose::Test });
        let bench = Scaled { rows: 8192, cols: 4096, format, purpose: Purpose::Bench };
        cases.extend(tests.into_iter().chain([bench]).map(|case| Box::new(case) as Box<dyn Case>));
    }
    cases
}
