//! Quantised products, and reading quantised rows back.
//!
//! The reference decodes the quantised weights from their GGUF bytes with its own reader and sums in f64. So the error of
//! quantising is not part of the comparison; it is tested elsewhere.

use super::held::Held;
use super::{About, Case, HostTensor, Purpose, Tolerance, activate, data};
use pascaline::ops::{Activation, Epilogue};
use pascaline::quant::{Format, QuantTensor, block_len, name};
use pascaline::{DType, Device, Result, Shape, Tensor, TensorMut, ops};
use rayon::prelude::*;

/// Rows of weights as numbers: [n, k]. In parallel, as a bench has many.
pub(super) fn reference_weights(w: &HostTensor, format: Format) -> Vec<f64> {
    const ROWS: usize = 64;
    let (_, cols) = w.shape.rows_cols();
    w.values
        .par_chunks(ROWS * cols.max(1))
        .flat_map_iter(|rows| reference_of_rows(rows, cols, format))
        .collect()
}

fn reference_of_rows(values: &[f32], cols: usize, format: Format) -> Vec<f64> {
    if format == Format::I8 {
        let rows = values.chunks(cols).flat_map(|row| {
            let max = row.iter().fold(0f32, |max, x| max.max(x.abs()));
            let scale = max / 127.0;
            row.iter().map(move |x| match max > 0.0 {
                true => f64::from(scale) * f64::from((x * (1.0 / scale)).round_ties_even()),
                false => 0.0,
            })
        });
        return rows.collect();
    }
    let (n, k) = (values.len() / cols, cols.next_multiple_of(block_len(format)));
    let mut padded = vec![0.0; n * k];
    for (padded, row) in padded.chunks_mut(k).zip(values.chunks(cols)) {
        padded[..cols].copy_from_slice(row);
    }
    let bytes = Tensor::from_slice(&padded, [n, k], &Device::Cpu)
        .and_then(|x| ops::quantize(&x, format))
        .and_then(|w| w.to_gguf_bytes())
        .expect("a case's weights can be quantised");
    read_gguf(&bytes, format).chunks(k).flat_map(|row| row[..cols].to_vec()).collect()
}

/// GGUF blocks as numbers, exactly. A test compares what decodes them with gguf-py.
pub fn read_gguf(bytes: &[u8], format: Format) -> Vec<f64> {
    let Some(file) = &format.descriptor().file else { return Vec::new() };
    let mut values = vec![0.0; bytes.len() / file.bytes * file.block];
    let blocks = bytes.chunks_exact(file.bytes).zip(values.chunks_exact_mut(file.block));
    blocks.for_each(|(bytes, values)| (file.decode)(bytes, values));
    values
}

/// A row of activations quantised to 8 bits, as numbers.
pub(super) fn reference_row(x: &[f32]) -> Vec<f64> {
    let blocks = x.chunks(32).flat_map(|block| {
        let max = block.iter().fold(0f32, |max, x| max.max(x.abs()));
        let scale = max / 127.0;
        block.iter().map(move |x| match max > 0.0 {
            true => f64::from(scale) * f64::from((x * (1.0 / scale)).round_ties_even()),
            false => 0.0,
        })
    });
    blocks.collect()
}

/// The weights of a case in its format, quantised when it first runs on a device, as a model's are when it loads.
#[derive(Default)]
pub(super) struct Weights(Held<QuantTensor>);

impl Weights {
    pub fn get(&self, x: &Tensor, format: Format) -> Result<QuantTensor> {
        self.0.with(&x.device(), || ops::quantize(x, format), |weights| Ok(weights.clone()))
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Data {
    Normal,
    Outliers,
    /// Whole numbers whose scales are 1, so that every sum is exact.
    Integers,
}

struct Product {
    m: usize,
    n: usize,
    k: usize,
    format: Format,
    dtype: DType,
    purpose: Purpose,
    data: Data,
    activation: Activation,
    /// Whether there is a bias and a residual.
    adds: bool,
    weights: Weights,
}

impl Case for Product {
    fn about(&self) -> About {
        let data = data::label(self.data);
        let activation = activate::name(self.activation);
        let adds = if self.adds { ",bias,residual" } else { "" };
        let (format, dtype, Self { m, n, k, .. }) = (name(self.format), self.dtype, self);
        let id = format!("quant_matmul_{format}_{dtype}/m={m},n={n},k={k}{data}{activation}{adds}");
        let (k, blocks) = (self.k as f64, (self.k / 32 + 1) as f64);
        let size = if self.data == Data::Outliers { 160.0 } else { 1.0 }; // the root mean square of x·w
        let tolerance = match self.data {
            Data::Integers => Tolerance::EXACT,
            _ => Tolerance::new(
                4.0 * size * f64::from(f32::EPSILON) * (k * blocks).sqrt(),
                2e-5,
                "f32 sums over the blocks of a row, and exp in the activation",
            ),
        };
        About {
            op: "quant_matmul",
            id,
            purpose: self.purpose,
            output: ([self.m, self.n].into(), DType::F32),
            tolerance,
        }
    }

    fn inputs(&self) -> Vec<HostTensor> {
        let (id, m, n, k) = (self.id(), self.m, self.n, self.k);
        let make = |argument, shape: [usize; 2], dtype| match self.data {
            Data::Normal => data::normal(&id, argument, shape, dtype),
            Data::Outliers => data::outliers(&id, argument, shape, dtype),
            Data::Integers => {
                let mut tensor = data::small_integers(&id, argument, shape, dtype);
                let first = if argument == "w" && self.format == Format::Q4_0 { -8.0 } else { 127.0 };
                for row in tensor.values.chunks_mut(shape[1]) {
                    row.iter_mut().step_by(32).for_each(|x| *x = first);
                }
                tensor
            }
        };
        let mut inputs = vec![make("x", [m, k], self.dtype), make("w", [n, k], DType::F32)];
        if self.adds {
            let make = |argument, shape: Shape| match self.data {
                Data::Integers => data::small_integers(&id, argument, shape, DType::F32),
                _ => data::normal(&id, argument, shape, DType::F32),
            };
            inputs.push(make("bias", [n].into()));
            inputs.push(make("residual", [m, n].into()));
        }
        inputs
    }

    fn run(&self, y: TensorMut, inputs: &[Tensor]) -> Result<()> {
        let weights = self.weights.get(&inputs[1], self.format)?;
        let epilogue = Epilogue { bias: inputs.get(2), activation: self.activation, residual: inputs.get(3) };
        ops::quant_matmul_into(y, &inputs[0], &weights, &epilogue)
    }

    fn reference(&self, inputs: &[HostTensor], rows: &[usize]) -> Vec<f64> {
        let weights = reference_weights(&inputs[1], self.format);
        let mut y = Vec::with_capacity(rows.len() * self.n);
        for &r in rows {
            let x = reference_row(inputs[0].row(r));
            y.par_extend(weights.par_chunks_exact(self.k).enumerate().map(|(column, w)| {
                let mut sum: f64 = x.iter().zip(w).map(|(x, w)| x * w).sum();
                if let Some(bias) = inputs.get(2) {
                    sum += f64::from(bias.values[column]);
                }
                let value = activate::reference(sum, self.activation);
                value + inputs.get(3).map_or(0.0, |residual| f64::from(residual.row(r)[column]))
            }));
        }
        y
    }

    fn flops(&self) -> f64 {
        2.0 * (self.m * self.n * self.k) as f64
    }

    fn bytes(&self, _: &[HostTensor]) -> f64 {
        let Self { m, n, k, format, .. } = *self;
        let w = QuantTensor::part_bytes(format, [n, k]).map_or(0, |parts| parts.iter().sum());
        (w + m * k * self.dtype.size() + 4 * m * n) as f64
    }

    fn compute_bound(&self) -> bool {
        self.m > 64
    }

    fn dp4a(&self) -> bool {
        true
    }
}

fn products(cases: &mut Vec<Box<dyn Case>>) {
    let mut add = |(m, n, k), format, dtype, purpose, data, activation, adds| {
        let weights = Weights::default();
        let case = Product { m, n, k, format, dtype, purpose, data, activation, adds, weights };
        cases.push(Box::new(case) as Box<dyn Case>);
    };
    for format in pascaline::quant::FORMATS {
        let mut test = |shape, dtype, data, activation, adds| {
            add(shape, format, dtype, Purpose::Test, data, activation, adds);
        };
        let none = Activation::Identity;
        for shape in [(0, 5, 32), (3, 0, 32), (1, 1, 32), (1, 7, 40), (2, 33, 96), (3, 64, 256), (4, 65, 288)]
        {
            test(shape, DType::F32, Data::Normal, none, false);
        }
        for shape in [
            (5, 17, 1001),
            (8, 130, 512),
            (9, 65, 64),
            (16, 33, 1056),
            (17, 33, 64),
            (33, 64, 96),
            (64, 100, 256),
            (257, 700, 96),
        ] {
            test(shape, DType::F32, Data::Normal, none, false);
        }
        // more columns than all blocks compute at once, on a GPU of up to 132 multiprocessors; of up to 32, with rows of x in parts
        test((3, 9000, 96), DType::F32, Data::Normal, none, false);
        test((7, 1100, 2080), DType::F32, Data::Normal, none, true);
        // few rows after the last whole tile, on a GPU of up to 22 multiprocessors
        test((129, 2500, 64), DType::F32, Data::Normal, Activation::GeluTanh, true);
        // k in parts of unequal length, on a GPU of 20 multiprocessors or more
        test((30, 70, 1120), DType::F32, Data::Normal, Activation::Silu, true);
        test((60, 130, 800), DType::F32, Data::Normal, none, false);
        test((100, 600, 160), DType::F32, Data::Normal, none, false);
        test((1, 40, 2080), DType::F16, Data::Normal, none, false);
        test((1, 70, 1500), DType::F32, Data::Outliers, Activation::Silu, true);
        test((1, 9, 8192 + 96), DType::F32, Data::Normal, none, false); // x in two parts
        test((20, 40, 100), DType::F16, Data::Normal, none, false);
        test((11, 70, 96), DType::F32, Data::Normal, Activation::Silu, true);
        test((3, 40, 512), DType::F32, Data::Outliers, none, false);
        test((30, 40, 512), DType::F32, Data::Outliers, none, false);
        test((5, 70, 96), DType::F32, Data::Normal, Activation::Silu, true);
        test((40, 70, 96), DType::F32, Data::Normal, Activation::GeluTanh, true);
        test((6, 70, 96), DType::F32, Data::Normal, Activation::Silu, false);
        // the other formats search for their scales, so none is exactly 1
        if matches!(format, Format::I8 | Format::Q8_0 | Format::Q4_0) {
            test((7, 50, 1024), DType::F32, Data::Integers, none, false);
            test((40, 50, 1024), DType::F32, Data::Integers, none, true);
            test((290, 7500, 64), DType::F32, Data::Integers, none, true); // few last rows on up to 134 multiprocessors
        }
        let mut bench = |shape| {
            add(shape, format, DType::F32, Purpose::Bench, Data::Normal, none, false);
        };
        if format != Format::I8 {
            bench((1, 32768, 4096)); // 75 to 143 MB of weights
            bench((1, 2048, 2048));
            for m in [1, 2, 4, 8, 16] {
                bench((m, 6144, 2048));
            }
        }
        bench((256, 4096, 4096));
        bench((512, 6144, 2048));
        bench((2048, 4096, 4096));
    }
}

struct Embedding {
    rows: usize,
    n: usize,
    k: usize,
    format: Format,
    dtype: DType,
    purpose: Purpose,
    weights: Weights,
}

impl Case for Embedding {
    fn about(&self) -> About {
        let (format, dtype, Self { rows, n, k, .. }) = (name(self.format), self.dtype, self);
        let id = format!("quant_embedding_{format}_{dtype}/rows={rows},n={n},k={k}");
        About {
            op: "quant_embedding",
            id,
            purpose: self.purpose,
            output: ([self.rows, self.k].into(), self.dtype),
            tolerance: match self.dtype {
                DType::F32 => Tolerance::new(
                    2e-7,
                    1e-7,
                    "one rounding; a difference of exact products in Q4_K and Q5_K",
                ),
                _ => Tolerance::new(3e-7, 1.0 / 2048.0 + 1e-6, "one rounding to f16"),
            },
        }
    }

    fn inputs(&self) -> Vec<HostTensor> {
        let table = data::normal(&self.id(), "table", [self.n, self.k], DType::F32);
        // spread over the table; the last is out of range
        let mut ids: Vec<f32> = (0..self.rows).map(|i| ((i * 7919) % self.n) as f32).collect();
        if self.purpose == Purpose::Test
            && let Some(last) = ids.last_mut()
        {
            *last = self.n as f32;
        }
        vec![table, HostTensor::new([self.rows], DType::U32, ids)]
    }

    fn run(&self, y: TensorMut, inputs: &[Tensor]) -> Result<()> {
        ops::quant_embedding_into(y, &self.weights.get(&inputs[0], self.format)?, &inputs[1])
    }

    fn reference(&self, inputs: &[HostTensor], rows: &[usize]) -> Vec<f64> {
        let table = reference_weights(&inputs[0], self.format);
        let ids = rows.iter().map(|&r| inputs[1].values[r] as usize);
        ids.flat_map(|id| match id < self.n {
            true => table[id * self.k..(id + 1) * self.k].to_vec(),
            false => vec![f64::NAN; self.k],
        })
        .collect()
    }

    fn flops(&self) -> f64 {
        (self.rows * self.k) as f64
    }

    fn bytes(&self, _: &[HostTensor]) -> f64 {
        let bytes = pascaline::quant::bits(self.format) as f64 / 8.0 + self.dtype.size() as f64;
        (self.rows * self.k) as f64 * bytes
    }
}

/// Every case of the ops on quantised matrices.
pub fn cases() -> Vec<Box<dyn Case>> {
    let mut cases = Vec::new();
    products(&mut cases);
    for format in pascaline::quant::FORMATS {
        for dtype in [DType::F32, DType::F16] {
            for (rows, n, k) in [(0, 3, 32), (1, 1, 32), (5, 9, 41), (6, 7, 256), (3, 4, 600)] {
                let (purpose, weights) = (Purpose::Test, Weights::default());
                cases.push(Box::new(Embedding { rows, n, k, format, dtype, purpose, weights }));
            }
        }
        let (rows, n, k, dtype, purpose) = (8192, 8192, 2048, DType::F32, Purpose::Bench);
        cases.push(Box::new(Embedding { rows, n, k, format, dtype, purpose, weights: Weights::default() }));
    }
    cases
}
