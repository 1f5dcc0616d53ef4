//! Strided copy.

use super::{About, Case, HostTensor, Purpose, Tolerance, misaligned};
use pascaline::{DType, Result, Shape, Tensor, TensorMut, ops};

#[derive(Clone)]
struct Copy {
    /// The shape that is allocated for x.
    storage: Vec<usize>,
    /// The part of each dimension that is copied, as (start, length); all of it if not given.
    narrow: Vec<(usize, usize)>,
    /// Dimensions of the view that are exchanged.
    swap: Option<(usize, usize)>,
    /// Columns of y left alone on both sides.
    gap: usize,
    dtype: DType,
    purpose: Purpose,
}

pub fn cases() -> Vec<Box<dyn Case>> {
    let mut cases = Vec::new();
    for dtype in [DType::F32, DType::F16, DType::U32] {
        let case = |storage: &[usize]| Copy {
            storage: storage.to_vec(),
            narrow: Vec::new(),
            swap: None,
            gap: 0,
            dtype,
            purpose: Purpose::Test,
        };
        for n in [0, 1, 3, 7, 16, 127, 2053, 5000] {
            let flat = case(&[n]);
            cases.extend(misaligned::both(&flat));
            cases.push(Box::new(flat) as Box<dyn Case>);
        }
        let mut add = |case: Copy| cases.push(Box::new(case));
        // a part of the columns, of the rows, of both; long and short rows
        for (storage, narrow) in [
            (vec![5, 7], vec![(0, 5), (1, 3)]),
            (vec![9, 40], vec![(2, 5), (8, 32)]),
            (vec![3, 1100], vec![(0, 3), (1, 1025)]),
            (vec![300, 3], vec![(7, 211), (0, 2)]),
            (vec![6, 5], vec![(0, 6), (2, 1)]),
            (vec![6, 5], vec![(0, 0), (2, 1)]),
        ] {
            add(Copy { narrow: narrow.clone(), ..case(&storage) });
            add(Copy { narrow, gap: 2, ..case(&storage) });
        }
        // exchanged dimensions: the tile kernel where the last two are, the strided one elsewhere
        for (storage, swap) in [
            (vec![33, 65], (0, 1)),
            (vec![1, 7], (0, 1)),
            (vec![3, 31, 34], (1, 2)),
            (vec![5, 3, 16], (0, 1)),
            (vec![2, 3, 5, 7], (0, 3)),
            (vec![2, 17, 4, 32], (1, 2)),
        ] {
            add(Copy { swap: Some(swap), ..case(&storage) });
            add(Copy { swap: Some(swap), gap: 1, ..case(&storage) });
        }
        // six dimensions, none of which can be merged
        add(Copy {
            narrow: vec![(0, 2), (1, 2), (0, 3), (1, 2), (1, 3), (0, 4)],
            ..case(&[3, 3, 4, 3, 4, 5])
        });
        add(Copy {
            narrow: vec![(0, 2), (1, 2), (0, 3), (1, 2), (1, 3), (0, 4)],
            swap: Some((1, 5)),
            gap: 1,
            ..case(&[3, 3, 4, 3, 4, 5])
        });
    }
    for dtype in [DType::F32, DType::F16] {
        let bench = |storage: &[usize], narrow: &[(usize, usize)]| Copy {
            storage: storage.to_vec(),
            narrow: narrow.to_vec(),
            swap: None,
            gap: 0,
            dtype,
            purpose: Purpose::Bench,
        };
        cases.push(Box::new(bench(&[64, 64], &[])));
        cases.push(Box::new(bench(&[8192, 8192], &[])));
        cases.push(Box::new(bench(&[8192, 8192], &[(0, 8192), (64, 4096)])));
        cases.push(Box::new(Copy { swap: Some((0, 1)), ..bench(&[4096, 16, 128], &[]) }));
    }
    cases
}

impl Copy {
    fn part(&self, dim: usize) -> (usize, usize) {
        self.narrow.get(dim).copied().unwrap_or((0, self.storage[dim]))
    }

    /// The dimensions of the view that is copied.
    fn view(&self) -> Vec<usize> {
        let mut view: Vec<_> = (0..self.storage.len()).map(|dim| self.part(dim).1).collect();
        if let Some((a, b)) = self.swap {
            view.swap(a, b);
        }
        view
    }
}

impl Case for Copy {
    fn about(&self) -> About {
        let mut id = format!("copy_{}/of={:?}", self.dtype, self.storage);
        if !self.narrow.is_empty() {
            id += &format!(",part={:?}", self.narrow);
        }
        if let Some((a, b)) = self.swap {
            id += &format!(",swap={a}-{b}");
        }
        if self.gap > 0 {
            id += &format!(",gap={}", self.gap);
        }
        let id = id.replace(' ', "");
        let mut shape = self.view();
        if let Some(cols) = shape.last_mut() {
            *cols += 2 * self.gap;
        }
        let output = (shape.into(), self.dtype);
        About { op: "copy", id, purpose: self.purpose, output, tolerance: Tolerance::EXACT }
    }

    fn inputs(&self) -> Vec<HostTensor> {
        let shape = Shape::from(self.storage.clone());
        // neighbours always differ, and all are exact in f16
        let values = (0..shape.elements()).map(|i| (i % 2039) as f32).collect();
        vec![HostTensor::new(shape, self.dtype, values)]
    }

    fn initial(&self) -> Option<HostTensor> {
        let (shape, dtype) = self.output();
        let values = vec![2047.0; shape.elements()];
        (self.gap > 0).then(|| HostTensor::new(shape, dtype, values))
    }

    fn run(&self, y: TensorMut, inputs: &[Tensor]) -> Result<()> {
        let mut x = inputs[0].clone();
        for dim in 0..self.storage.len() {
            let (start, len) = self.part(dim);
            x = x.narrow(dim, start, len)?;
        }
        if let Some((a, b)) = self.swap {
            x = x.swap_dims(a, b)?;
        }
        let last = x.shape().rank() - 1;
        let cols = x.dims()[last];
        ops::copy_into(y.narrow(last, self.gap, cols)?, &x)
    }

    fn reference(&self, inputs: &[HostTensor], rows: &[usize]) -> Vec<f64> {
        let view = self.view();
        let (&cols, outer) = view.split_last().expect("rank 1 or more");
        let strides = inputs[0].shape.contiguous_strides();
        let mut y = Vec::new();
        for &row in rows {
            let mut index = vec![0; view.len()];
            let mut rest = row;
            for (dim, &size) in outer.iter().enumerate().rev() {
                index[dim] = rest % size;
                rest /= size;
            }
            y.extend(vec![2047.0; self.gap]);
            for c in 0..cols {
                index[view.len() - 1] = c;
                let mut source = index.clone();
                if let Some((a, b)) = self.swap {
                    source.swap(a, b);
                }
                let at: usize =
                    source.iter().enumerate().map(|(dim, i)| (i + self.part(dim).0) * strides[dim]).sum();
                y.push(f64::from(inputs[0].values[at]));
            }
            y.extend(vec![2047.0; self.gap]);
        }
        y
    }

    fn bytes(&self, _: &[HostTensor]) -> f64 {
        2.0 * (self.view().iter().product::<usize>() * self.dtype.size()) as f64
    }
}
