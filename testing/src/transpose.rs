//! Transpose.

use super::{About, Case, HostTensor, Purpose, Tolerance, misaligned};
use pascaline::{DType, Result, Shape, Tensor, TensorMut, ops};

#[derive(Clone)]
struct Transpose {
    batch: Option<usize>,
    rows: usize,
    cols: usize,
    dtype: DType,
    purpose: Purpose,
}

pub fn cases() -> Vec<Box<dyn Case>> {
    let mut cases = Vec::new();
    for dtype in [DType::F32, DType::F16] {
        let case = |batch, rows, cols| Transpose { batch, rows, cols, dtype, purpose: Purpose::Test };
        for (rows, cols) in [
            (0, 5),
            (5, 0),
            (1, 1),
            (1, 37),
            (37, 1),
            (31, 33),
            (32, 32),
            (33, 31),
            (64, 97),
            (131, 67),
            (66, 130),
            (128, 72),
            (57, 64),
            (121, 65),
        ] {
            cases.push(Box::new(case(None, rows, cols)) as Box<dyn Case>);
            cases.push(Box::new(case(Some(3), rows, cols)));
        }
        cases.push(Box::new(case(Some(0), 4, 4)));
        cases.extend(misaligned::both(&case(Some(2), 33, 47)));
        cases.extend(misaligned::both(&case(None, 34, 66)));
        cases.extend(misaligned::both(&case(Some(2), 136, 80)));
    }
    for (rows, cols) in [(64, 64), (4096, 4096), (8192, 8192), (4097, 4093)] {
        for dtype in [DType::F32, DType::F16] {
            cases.push(Box::new(Transpose { batch: None, rows, cols, dtype, purpose: Purpose::Bench }));
        }
    }
    cases
}

impl Case for Transpose {
    fn about(&self) -> About {
        let batch = self.batch.map(|batch| format!("batch={batch},")).unwrap_or_default();
        let id = format!("transpose_{}/{batch}rows={},cols={}", self.dtype, self.rows, self.cols);
        let mut shape: Vec<_> = self.batch.into_iter().collect();
        shape.extend([self.cols, self.rows]);
        let output = (shape.into(), self.dtype);
        About { op: "transpose", id, purpose: self.purpose, output, tolerance: Tolerance::EXACT }
    }

    fn inputs(&self) -> Vec<HostTensor> {
        let mut shape: Vec<_> = self.batch.into_iter().collect();
        shape.extend([self.rows, self.cols]);
        let shape = Shape::from(shape);
        let values = (0..shape.elements()).map(|i| (i % 2039) as f32).collect();
        vec![HostTensor::new(shape, self.dtype, values)]
    }

    fn run(&self, y: TensorMut, inputs: &[Tensor]) -> Result<()> {
        ops::transpose_into(y, &inputs[0])
    }

    fn reference(&self, inputs: &[HostTensor], rows: &[usize]) -> Vec<f64> {
        let mut y = Vec::new();
        for &row in rows {
            let (batch, c) = (row / self.cols, row % self.cols);
            y.extend((0..self.rows).map(|r| f64::from(inputs[0].row(batch * self.rows + r)[c])));
        }
        y
    }
}
