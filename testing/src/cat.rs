//! Joining along an existing dimension, or along a new one.

use super::{About, Case, HostTensor, Purpose, Tolerance, misaligned};
use pascaline::{DType, Result, Shape, Tensor, TensorMut, ops};

#[derive(Clone, Copy, PartialEq)]
enum Op {
    Cat,
    Stack,
}

#[derive(Clone)]
struct Join {
    op: Op,
    /// The shapes of the tensors that are joined.
    shapes: Vec<Vec<usize>>,
    dim: usize,
    /// Whether these are views of tensors in memory, with the last two dimensions exchanged.
    swapped: bool,
    /// Columns of y left alone on both sides.
    gap: usize,
    dtype: DType,
    purpose: Purpose,
}

pub fn cases() -> Vec<Box<dyn Case>> {
    let mut cases = Vec::new();
    for dtype in [DType::F32, DType::F16, DType::U32] {
        let case = |op, shapes: &[&[usize]], dim| Join {
            op,
            shapes: shapes.iter().map(|shape| shape.to_vec()).collect(),
            dim,
            swapped: false,
            gap: 0,
            dtype,
            purpose: Purpose::Test,
        };
        let cat = |shapes: &[&[usize]], dim| case(Op::Cat, shapes, dim);
        let stack = |count, shape: &[usize], dim| case(Op::Stack, &vec![shape; count], dim);
        let mut add = |case: Join| cases.push(Box::new(case) as Box<dyn Case>);
        // one tensor; sizes that differ along dim, of which some are 0; parts that begin on and off a boundary of 16 bytes
        for (shapes, dim) in [
            (&[&[5][..]][..], 0),
            (&[&[3], &[0], &[1], &[2053]], 0),
            (&[&[0], &[0]], 0),
            (&[&[2, 7], &[1, 7], &[30, 7]], 0),
            (&[&[9, 8], &[9, 24], &[9, 0], &[9, 16]], 1),
            (&[&[33, 5], &[33, 1], &[33, 300]], 1),
            (&[&[0, 5], &[0, 2]], 1),
            (&[&[4, 2, 6], &[4, 5, 6], &[4, 1, 6]], 1),
            (&[&[2, 3, 4, 5], &[2, 3, 4, 1]], 3),
            (&[&[2, 3, 1, 5], &[2, 3, 6, 5]], 2),
        ] {
            add(cat(shapes, dim));
            add(Join { gap: 3, ..cat(shapes, dim) });
            if shapes[0].len() > 1 {
                add(Join { swapped: true, ..cat(shapes, dim) });
                add(Join { swapped: true, gap: 1, ..cat(shapes, dim) });
            }
        }
        for (count, shape, dim) in [
            (1, &[][..], 0),
            (5, &[], 0),
            (2, &[17], 0),
            (3, &[17], 1),
            (4, &[0], 1),
            (2, &[6, 8], 0),
            (3, &[6, 8], 1),
            (8, &[6, 9], 2),
            (3, &[2, 3, 4], 2),
        ] {
            add(stack(count, shape, dim));
            add(Join { gap: 2, ..stack(count, shape, dim) });
            if shape.len() > 1 {
                add(Join { swapped: true, ..stack(count, shape, dim) });
            }
        }
        for case in [cat(&[&[5, 8], &[5, 16]], 1), cat(&[&[3, 24], &[2, 24]], 0), stack(3, &[4, 8], 1)] {
            cases.extend(misaligned::both(&case));
        }
    }
    for dtype in [DType::F32, DType::F16] {
        let bench = |op, shape: &[usize], dim| Join {
            op,
            shapes: vec![shape.to_vec(); 2],
            dim,
            swapped: false,
            gap: 0,
            dtype,
            purpose: Purpose::Bench,
        };
        cases.push(Box::new(bench(Op::Cat, &[4096, 8192], 0)));
        cases.push(Box::new(bench(Op::Cat, &[8192, 4096], 1)));
        cases.push(Box::new(bench(Op::Stack, &[8192, 4096], 1)));
    }
    cases
}

impl Join {
    /// A tensor's shape, or an index into it, as it is in memory.
    fn stored(&self, shape: &[usize]) -> Vec<usize> {
        let mut stored = shape.to_vec();
        if self.swapped {
            let last = stored.len() - 1;
            stored.swap(last - 1, last);
        }
        stored
    }

    /// The entries of y along `dim` that tensor `index` takes.
    fn entries(&self, index: usize) -> usize {
        if self.op == Op::Stack { 1 } else { self.shapes[index][self.dim] }
    }

    /// The result's shape.
    fn joined(&self) -> Vec<usize> {
        let mut shape = self.shapes[0].clone();
        let size = (0..self.shapes.len()).map(|index| self.entries(index)).sum();
        match self.op {
            Op::Cat => shape[self.dim] = size,
            Op::Stack => shape.insert(self.dim, size),
        }
        shape
    }

    /// The element of y at `at`, which is without the gap.
    fn element(&self, inputs: &[HostTensor], at: &[usize]) -> f32 {
        let (mut index, mut entry) = (0, at[self.dim]);
        while entry >= self.entries(index) {
            entry -= self.entries(index);
            index += 1;
        }
        let mut at = at.to_vec();
        match self.op {
            Op::Cat => at[self.dim] = entry,
            Op::Stack => drop(at.remove(self.dim)),
        }
        let strides = inputs[index].shape.contiguous_strides();
        inputs[index].values
            [self.stored(&at).iter().zip(strides).map(|(i, stride)| i * stride).sum::<usize>()]
    }
}

impl Case for Join {
    fn about(&self) -> About {
        let op = if self.op == Op::Cat { "cat" } else { "stack" };
        let swapped = if self.swapped { ",swap=last" } else { "" };
        let gap = if self.gap > 0 { format!(",gap={}", self.gap) } else { String::new() };
        let id = format!("{op}_{}/of={:?},dim={}{swapped}{gap}", self.dtype, self.shapes, self.dim);
        let id = id.replace(' ', "");
        let mut shape = self.joined();
        if let Some(columns) = shape.last_mut() {
            *columns += 2 * self.gap;
        }
        let output = (shape.into(), self.dtype);
        About { op, id, purpose: self.purpose, output, tolerance: Tolerance::EXACT }
    }

    fn inputs(&self) -> Vec<HostTensor> {
        let mut next = 0;
        let mut input = |shape: &Vec<usize>| {
            let shape = Shape::from(self.stored(shape));
            // neighbours always differ, also across tensors, and all are exact in f16
            let values = (next..next + shape.elements()).map(|i| (i % 2039) as f32).collect();
            next += shape.elements();
            HostTensor::new(shape, self.dtype, values)
        };
        self.shapes.iter().map(&mut input).collect()
    }

    fn initial(&self) -> Option<HostTensor> {
        let (shape, dtype) = self.output();
        let values = vec![2047.0; shape.elements()];
        (self.gap > 0).then(|| HostTensor::new(shape, dtype, values))
    }

    fn run(&self, y: TensorMut, inputs: &[Tensor]) -> Result<()> {
        let views = inputs.iter().map(|input| match input.shape().rank() {
            rank if self.swapped => input.swap_dims(rank - 2, rank - 1),
            _ => Ok(input.clone()),
        });
        let views = views.collect::<Result<Vec<_>>>()?;
        let shape = self.joined();
        let (last, columns) = (shape.len() - 1, shape[shape.len() - 1]);
        let y = y.narrow(last, self.gap, columns)?;
        match self.op {
            Op::Cat => ops::cat_into(y, &views, self.dim),
            Op::Stack => ops::stack_into(y, &views, self.dim),
        }
    }

    fn reference(&self, inputs: &[HostTensor], rows: &[usize]) -> Vec<f64> {
        let shape = self.joined();
        let (&columns, outer) = shape.split_last().expect("rank 1 or more");
        let mut y = Vec::new();
        for &row in rows {
            let mut at = vec![0; shape.len()];
            let mut rest = row;
            for (dim, &size) in outer.iter().enumerate().rev() {
                at[dim] = rest % size;
                rest /= size;
            }
            y.extend(vec![2047.0; self.gap]);
            for column in 0..columns {
                at[shape.len() - 1] = column;
                y.push(f64::from(self.element(inputs, &at)));
            }
            y.extend(vec![2047.0; self.gap]);
        }
        y
    }

    fn bytes(&self, _: &[HostTensor]) -> f64 {
        2.0 * (self.joined().iter().product::<usize>() * self.dtype.size()) as f64
    }
}
