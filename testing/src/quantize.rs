//! Quantising and reading back: both together, which is the op of quantisation-aware training, and reading back alone.

use super::quant::{Weights, reference_weights};
use super::{Case, HostTensor, Purpose, Tolerance, data};
use pascaline::quant::{FORMATS, Format, bits, name};
use pascaline::{DType, Result, Shape, Tensor, TensorMut, ops};

struct Quantize {
    rows: usize,
    cols: usize,
    format: Format,
    dtype: DType,
    purpose: Purpose,
    /// Where the quantised tensor is, if only reading it back is the case.
    held: Option<Weights>,
}

impl Case for Quantize {
    fn op(&self) -> &'static str {
        "quantize"
    }

    fn id(&self) -> String {
        let (format, dtype, Self { rows, cols, .. }) = (name(self.format), self.dtype, self);
        let op = if self.held.is_some() { "dequantize" } else { "fake_quantize" };
        format!("{op}_{format}_{dtype}/rows={rows},cols={cols}")
    }

    fn purpose(&self) -> Purpose {
        self.purpose
    }

    fn inputs(&self) -> Vec<HostTensor> {
        vec![data::outliers(&self.id(), "x", [self.rows, self.cols], DType::F32)]
    }

    fn output(&self) -> (Shape, DType) {
        ([self.rows, self.cols].into(), self.dtype)
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

    fn tolerance(&self) -> Tolerance {
        match self.dtype {
            DType::F32 => {
                Tolerance::new(2e-5, 1e-7, "one rounding; a difference of exact products in Q4_K and Q5_K")
            }
            _ => Tolerance::new(3e-5, 1.0 / 2048.0 + 1e-6, "one rounding to f16"),
        }
    }

    fn flops(&self) -> f64 {
        (self.rows * self.cols) as f64
    }

    fn bytes(&self) -> f64 {
        let quants = bits(self.format) as f64 / 8.0;
        let read_back = quants + self.dtype.size() as f64;
        let made = if self.held.is_some() { 0.0 } else { 4.0 + quants };
        (self.rows * self.cols) as f64 * (read_back + made)
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
    cases
}
