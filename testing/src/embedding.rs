//! Embedding lookup.

use super::{About, Case, HostTensor, Purpose, Tolerance, data};
use pascaline::{DType, Result, Tensor, TensorMut, ops};
use rand::Rng;

struct Embedding {
    rows: usize,
    cols: usize,
    n: usize,
    dtype: DType,
    purpose: Purpose,
    /// Whether some ids are out of range.
    outside: bool,
}

pub fn cases() -> Vec<Box<dyn Case>> {
    let mut cases = Vec::new();
    let mut add = |rows, cols, n, dtype, purpose, outside| {
        cases.push(Box::new(Embedding { rows, cols, n, dtype, purpose, outside }) as Box<dyn Case>);
    };
    for dtype in [DType::F32, DType::F16] {
        for (rows, cols, n) in
            [(1, 1, 1), (7, 3, 5), (50, 64, 33), (400, 257, 9), (3, 2050, 4), (9, 4, 0), (9, 0, 4)]
        {
            add(rows, cols, n, dtype, Purpose::Test, false);
        }
        add(5, 36, 20, dtype, Purpose::Test, true);
        add(0, 8, 3, dtype, Purpose::Test, true);
        add(151_936, 2048, 1, dtype, Purpose::Bench, false);
        add(151_936, 2048, 4096, dtype, Purpose::Bench, false);
    }
    cases
}

impl Case for Embedding {
    fn about(&self) -> About {
        let Self { rows, cols, n, dtype, .. } = self;
        let data = if self.outside { ",data=outside" } else { "" };
        let id = format!("embedding_{dtype}/rows={rows},cols={cols},n={n}{data}");
        About {
            op: "embedding",
            id,
            purpose: self.purpose,
            output: ([self.n, self.cols].into(), DType::F32),
            tolerance: Tolerance::EXACT,
        }
    }

    fn inputs(&self) -> Vec<HostTensor> {
        let id = self.id();
        let mut rng = data::rng(&id, "ids");
        let limit = if self.outside { self.rows + 5 } else { self.rows };
        let ids = (0..self.n).map(|_| rng.random_range(0..limit) as f32).collect();
        vec![
            data::normal(&id, "table", [self.rows, self.cols], self.dtype),
            HostTensor::new([self.n], DType::U32, ids),
        ]
    }

    fn run(&self, y: TensorMut, inputs: &[Tensor]) -> Result<()> {
        ops::embedding_into(y, &inputs[0], &inputs[1])
    }

    fn reference(&self, inputs: &[HostTensor], rows: &[usize]) -> Vec<f64> {
        let row = |&i: &usize| match inputs[1].values[i] as usize {
            id if id < self.rows => inputs[0].row(id).to_vec(),
            _ => vec![f32::NAN; self.cols],
        };
        rows.iter().flat_map(row).map(f64::from).collect()
    }

    /// The rows that are read, not the table.
    fn bytes(&self, _: &[HostTensor]) -> f64 {
        (self.n * (self.cols * (4 + self.dtype.size()) + 4)) as f64
    }
}
