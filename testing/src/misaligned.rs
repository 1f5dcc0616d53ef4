//! Any case again with operands that start in the middle of an allocation, as views do: kernels with vector accesses
//! must handle them.

use super::{About, Case, HostTensor, Purpose};
use pascaline::{Result, Shape, Tensor, TensorMut};

/// The memory before the operands.
const BEFORE: f32 = 77.0;

/// How far the operands are shifted.
#[derive(Clone, Copy, PartialEq)]
enum Shift {
    /// All by one element: they become aligned after the same few elements.
    Alike,
    /// The output by one, the first input by two, the next by three, and so on: they are never aligned together.
    Apart,
}

struct Misaligned {
    case: Box<dyn Case>,
    shapes: Vec<Shape>,
    shift: Shift,
}

/// The case with all operands shifted by one element, and with all shifted differently.
pub fn both<C: Case + Clone + 'static>(case: &C) -> [Box<dyn Case>; 2] {
    [Shift::Alike, Shift::Apart].map(|shift| {
        let shapes = case.inputs().into_iter().map(|input| input.shape).collect();
        Box::new(Misaligned { case: Box::new(case.clone()), shapes, shift }) as Box<dyn Case>
    })
}

impl Misaligned {
    fn input_shift(&self, index: usize) -> usize {
        if self.shift == Shift::Alike { 1 } else { 2 + index }
    }
}

impl Case for Misaligned {
    fn about(&self) -> About {
        let shift = if self.shift == Shift::Alike { "alike" } else { "apart" };
        let About { op, id, output: (shape, dtype), tolerance, .. } = self.case.about();
        let (id, output) = (format!("{id},misaligned={shift}"), ([1 + shape.elements()].into(), dtype));
        About { op, id, purpose: Purpose::Test, output, tolerance }
    }

    fn inputs(&self) -> Vec<HostTensor> {
        let shifted = |(index, input): (usize, HostTensor)| {
            let mut values = vec![BEFORE; self.input_shift(index)];
            values.extend(input.values);
            HostTensor::new([values.len()], input.dtype, values)
        };
        self.case.inputs().into_iter().enumerate().map(shifted).collect()
    }

    fn initial(&self) -> Option<HostTensor> {
        let (shape, dtype) = self.output();
        let values = vec![BEFORE; shape.elements()];
        Some(HostTensor::new(shape, dtype, values))
    }

    fn run(&self, y: TensorMut, inputs: &[Tensor]) -> Result<()> {
        let (shape, _) = self.case.output();
        let views = inputs.iter().zip(&self.shapes).enumerate().map(|(index, (input, shape))| {
            input.narrow(0, self.input_shift(index), shape.elements())?.reshape(shape)
        });
        let views = views.collect::<Result<Vec<_>>>()?;
        self.case.run(y.narrow(0, 1, shape.elements())?.reshape(shape)?, &views)
    }

    fn reference(&self, inputs: &[HostTensor], _rows: &[usize]) -> Vec<f64> {
        let original = |(index, input): (usize, &HostTensor)| {
            let values = input.values[self.input_shift(index)..].to_vec();
            HostTensor::new(&self.shapes[index], input.dtype, values)
        };
        let inputs: Vec<_> = inputs.iter().enumerate().map(original).collect();
        let (rows, _) = self.case.output().0.rows_cols();
        let all_rows: Vec<_> = (0..rows).collect();
        let mut y = vec![f64::from(BEFORE)];
        y.extend(self.case.reference(&inputs, &all_rows));
        y
    }

    fn flops(&self) -> f64 {
        self.case.flops()
    }
}
