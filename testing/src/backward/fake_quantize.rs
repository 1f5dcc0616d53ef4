//! Quantising with learned scales.

use super::{About, Differentiable};
use crate::{HostTensor, Purpose, Tolerance, data};
use pascaline::quant::{Format, name};
use pascaline::{DType, Result, Shape, Tensor, TensorMut, ops};

/// Values that share a scale.
const BLOCK: usize = 32;

/// The input with respect to which the gradient is taken.
#[derive(Clone, Copy, PartialEq)]
enum Of {
    X,
    Scales,
}

pub(super) struct FakeQuantize {
    rows: usize,
    cols: usize,
    format: Format,
    of: Of,
    purpose: Purpose,
}

pub(super) fn all() -> Vec<FakeQuantize> {
    let mut all = Vec::new();
    for format in [Format::Q8_0, Format::Q4_0] {
        for of in [Of::X, Of::Scales] {
            let mut add = |rows, cols, purpose| all.push(FakeQuantize { rows, cols, format, of, purpose });
            for (rows, cols) in [(0, 32), (1, 1), (2, 31), (3, 64), (33, 96), (5, 300), (9, 1025)] {
                add(rows, cols, Purpose::Test);
            }
            add(8192, 4096, Purpose::Bench);
        }
    }
    all
}

impl FakeQuantize {
    fn blocks(&self) -> usize {
        self.cols.div_ceil(BLOCK)
    }

    fn range(&self) -> [f64; 2] {
        if self.format == Format::Q4_0 { [-8.0, 7.0] } else { [-127.0, 127.0] }
    }

    /// The scale of value `i`.
    fn scale(&self, scales: &[f64], i: usize) -> f64 {
        scales[i / self.cols * self.blocks() + i % self.cols / BLOCK]
    }

    /// A value's quant, and by how many steps rounding has moved it; `None` if it was clipped. The rounding follows the op's own
    /// arithmetic in f32: f64 would round some values near half-way differently.
    fn rounded(&self, x: f64, scale: f64) -> (f64, Option<f64>) {
        let [low, high] = self.range();
        let steps = x as f32 * (1.0 / scale as f32);
        let quant = match self.format {
            Format::Q4_0 => (f64::from(steps) + 0.5).floor(),
            _ => f64::from(steps).round_ties_even(),
        };
        let is_clipped = quant < low || quant > high;
        (quant.clamp(low, high), (!is_clipped).then(|| quant - x / scale))
    }
}

impl Differentiable for FakeQuantize {
    fn about(&self) -> About {
        let of = if self.of == Of::X { "x" } else { "scales" };
        let sizes = format!("format={},of={of},rows={},cols={}", name(self.format), self.rows, self.cols);
        About {
            op: "fake_quantize_scaled_backward",
            sizes,
            dtype: DType::F32,
            purpose: self.purpose,
            gradient: match self.of {
                Of::X => (self.forward_shape(), DType::F32),
                Of::Scales => ([self.rows, self.blocks()].into(), DType::F32),
            },
            tolerance: match self.of {
                Of::X => Tolerance::EXACT,
                // steps of up to 127 are off by 2 roundings, 1.6e-5, each; 32 of them, times dy, of random sign
                Of::Scales => Tolerance::new(1e-4, 1e-6, "rounding of steps and of the sum of a block"),
            },
        }
    }

    fn forward_shape(&self) -> Shape {
        [self.rows, self.cols].into()
    }

    /// Outliers are clipped, far beyond the range; some scales are negative.
    fn arguments(&self) -> Vec<HostTensor> {
        let x = data::outliers(&self.sizes(), "x", self.forward_shape(), DType::F32);
        let shape = [self.rows, self.blocks()];
        let scales = data::normal(&self.sizes(), "scales", shape, DType::F32);
        let [_, high] = self.range();
        let scales = scales.values.iter().map(|s| (0.1 * s + 1.0) * 2.5 / high as f32 * s.signum());
        vec![x, HostTensor::new(shape, DType::F32, scales.collect())]
    }

    fn run(&self, y: TensorMut, dy: &Tensor, arguments: &[Tensor]) -> Result<()> {
        let [x, scales] = arguments else { unreachable!("two arguments") };
        let like = if self.of == Of::X { scales } else { x };
        let mut other = Tensor::uninitialized(like.shape(), DType::F32, &x.device())?;
        let outputs = if self.of == Of::X { [y, other.view_mut()?] } else { [other.view_mut()?, y] };
        ops::fake_quantize_scaled_backward_into(outputs, dy, x, scales, self.format)
    }

    fn formula(&self, dy: &[f64], arguments: &[Vec<f64>]) -> Vec<f64> {
        let (x, scales) = (&arguments[0], &arguments[1]);
        let mut dscales = vec![0.0; scales.len()];
        let mut dx = Vec::with_capacity(x.len());
        for (i, (&x, &dy)) in x.iter().zip(dy).enumerate() {
            let (quant, moved) = self.rounded(x, self.scale(scales, i));
            dx.push(if moved.is_some() { dy } else { 0.0 });
            dscales[i / self.cols * self.blocks() + i % self.cols / BLOCK] += dy * moved.unwrap_or(quant);
        }
        if self.of == Of::X { dx } else { dscales }
    }

    fn point(&self, arguments: &[Vec<f64>]) -> Vec<f64> {
        arguments[usize::from(self.of == Of::Scales)].clone()
    }

    /// s · (x / s + r) with the rounding r held constant, or s · q for a clipped value: the gradient is exact for this function.
    fn forward(&self, point: &[f64], arguments: &[Vec<f64>]) -> Vec<f64> {
        let (x, scales) =
            if self.of == Of::X { (point, &arguments[1][..]) } else { (&arguments[0][..], point) };
        let value = |i: usize| {
            let (quant, moved) = self.rounded(arguments[0][i], self.scale(&arguments[1], i));
            let scale = self.scale(scales, i);
            moved.map_or(scale * quant, |moved| x[i] + scale * moved)
        };
        (0..x.len()).map(value).collect()
    }

    fn flops(&self) -> f64 {
        4.0 * (self.rows * self.cols) as f64
    }
}
