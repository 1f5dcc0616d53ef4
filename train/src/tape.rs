//! A record of a computation, which is run in reverse for the gradients.
//!
//! A [`Var`] is a tensor and, if a gradient is wanted with respect to it, a number. Each function of [`functions`](crate::functions)
//! computes its result and records a `Step`: the result's number, and a closure that is given the result's gradient and adds
//! to the gradients of the inputs. The closure owns the tensors that it needs. Nothing is recorded for results that depend on no
//! parameter. [`Tape::backward`] runs the steps in reverse and drops each after it ran, and with it the tensors.

use crate::parameters::Parameters;
use pascaline::ops::{self, Matmul};
use pascaline::{DType, Result, Tensor};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// Each number is used once, so that variables of one tape can be used on another, as in [`Tape::checkpoint`].
static NEXT: AtomicU64 = AtomicU64::new(0);

/// A tensor on a tape.
#[derive(Clone, Debug)]
pub struct Var {
    value: Tensor,
    /// Its number, if a gradient with respect to it is wanted.
    number: Option<u64>,
}

impl Var {
    /// The tensor.
    pub fn value(&self) -> &Tensor {
        &self.value
    }

    /// The tensor, for a step that overwrites it.
    pub fn into_value(self) -> Tensor {
        self.value
    }

    /// Whether a gradient with respect to it is wanted.
    pub fn needs_gradient(&self) -> bool {
        self.number.is_some()
    }

    /// Where its gradient goes, for a step that does not need the tensor.
    pub fn place(&self) -> Place {
        Place(self.number)
    }
}

/// Where the gradient of a variable goes.
#[derive(Clone, Copy, Debug)]
pub struct Place(Option<u64>);

impl Place {
    /// Whether a gradient is wanted there.
    pub fn is_wanted(self) -> bool {
        self.0.is_some()
    }
}

impl From<&Var> for Place {
    fn from(of: &Var) -> Self {
        of.place()
    }
}

type Backward = Box<dyn FnOnce(Tensor, &mut Gradients) -> Result<()>>;

/// A result, and how its gradient is passed to its inputs.
struct Step {
    output: u64,
    backward: Backward,
}

/// The gradients found so far.
#[derive(Default)]
pub struct Gradients(HashMap<u64, Tensor>);

impl Gradients {
    /// Adds to the gradient of `to`; `gradient` is called only if that is wanted.
    ///
    /// # Errors
    /// A device error.
    pub fn add(&mut self, to: impl Into<Place>, gradient: impl FnOnce() -> Result<Tensor>) -> Result<()> {
        let Place(Some(number)) = to.into() else { return Ok(()) };
        let mut sum = gradient()?;
        if let Some(before) = self.0.remove(&number) {
            sum = ops::add(&before, &sum)?;
        }
        self.0.insert(number, sum);
        Ok(())
    }

    /// Calls `change` to add to the gradient of `to` in place, if that is wanted; the gradient is contiguous and zero at first.
    ///
    /// # Errors
    /// A device error.
    pub fn add_in_place(&mut self, to: &Var, change: impl FnOnce(&mut Tensor) -> Result<()>) -> Result<()> {
        let Some(number) = to.number else { return Ok(()) };
        let mut sum = match self.0.remove(&number) {
            Some(sum) => owned(sum)?,
            None => to.value.zeros_like()?,
        };
        change(&mut sum)?;
        self.0.insert(number, sum);
        Ok(())
    }

    /// Adds factor · a·b to the gradient of `to`, if that is wanted; by the product itself where there is a gradient already.
    ///
    /// # Errors
    /// A device error.
    pub fn add_product(&mut self, to: impl Into<Place>, [a, b]: [&Tensor; 2], factor: f32) -> Result<()> {
        let Place(Some(number)) = to.into() else { return Ok(()) };
        let sum = match self.0.remove(&number) {
            None => product([a, b], factor)?,
            Some(before) => {
                let mut sum = owned(before)?;
                let added = Matmul { alpha: factor, beta: 1.0, ..Matmul::default() };
                ops::matmul_into(sum.view_mut()?, a, b, &added)?;
                sum
            }
        };
        self.0.insert(number, sum);
        Ok(())
    }
}

/// A record of what was computed.
#[derive(Default)]
pub struct Tape {
    steps: Vec<Step>,
    /// Whether only values are wanted.
    is_silent: bool,
    /// Parameters in use, so that each has one number.
    parameters: HashMap<usize, Var>,
}

impl Tape {
    /// An empty tape.
    pub fn new() -> Self {
        Self::default()
    }

    /// A tape that records nothing, for results without gradients.
    pub fn silent() -> Self {
        Self { is_silent: true, ..Self::default() }
    }

    /// A tensor without a gradient.
    pub fn constant(&self, value: Tensor) -> Var {
        Var { value, number: None }
    }

    /// A parameter; the same variable each time.
    pub fn parameter(&mut self, parameters: &Parameters, index: usize) -> Var {
        let new = || {
            let parameter = parameters.get(index);
            let number = (parameter.is_trained() && !self.is_silent).then(new_number);
            Var { value: parameter.value().clone(), number }
        };
        self.parameters.entry(index).or_insert_with(new).clone()
    }

    /// A result of `inputs`; `backward` is given its gradient and adds to theirs.
    pub fn record(
        &mut self,
        value: Tensor,
        inputs: &[impl Into<Place> + Copy],
        backward: impl FnOnce(Tensor, &mut Gradients) -> Result<()> + 'static,
    ) -> Var {
        let wanted = |&input: &_| Into::<Place>::into(input).is_wanted();
        if self.is_silent || !inputs.iter().any(wanted) {
            return self.constant(value);
        }
        let output = new_number();
        self.steps.push(Step { output, backward: Box::new(backward) });
        Var { value, number: Some(output) }
    }

    /// The result of `compute`, which is run again when its gradient is needed, so that its intermediate results are
    /// not kept. `compute` must return the same result each time.
    ///
    /// # Errors
    /// Those of `compute`.
    pub fn checkpoint(&mut self, compute: impl Fn(&mut Self) -> Result<Var> + 'static) -> Result<Var> {
        if self.is_silent {
            return compute(self);
        }
        let value = compute(&mut Self::silent())?.value;
        let output = new_number();
        let backward = move |gradient: Tensor, gradients: &mut Gradients| {
            let mut again = Self::new();
            let output = compute(&mut again)?;
            gradients.add(&output, || Ok(gradient))?;
            again.run(gradients)
        };
        self.steps.push(Step { output, backward: Box::new(backward) });
        Ok(Var { value, number: Some(output) })
    }

    /// Adds the gradients of the sum of `result`'s elements to those of the parameters.
    ///
    /// # Errors
    /// A device error.
    pub fn backward(mut self, result: &Var, parameters: &mut Parameters) -> Result<()> {
        let ones = Tensor::ones(result.value.shape(), DType::F32, &result.value.device())?;
        let mut gradients = Gradients::default();
        gradients.add(result, || Ok(ones))?;
        let used = std::mem::take(&mut self.parameters);
        self.run(&mut gradients)?;
        for (index, variable) in used {
            let gradient = variable.number.and_then(|number| gradients.0.remove(&number));
            if let Some(gradient) = gradient {
                parameters.accumulate(index, gradient)?;
            }
        }
        Ok(())
    }

    /// Runs the steps in reverse.
    fn run(mut self, gradients: &mut Gradients) -> Result<()> {
        while let Some(Step { output, backward }) = self.steps.pop() {
            if let Some(gradient) = gradients.0.remove(&output) {
                backward(gradient, gradients)?;
            }
        }
        Ok(())
    }
}

/// factor · a·b.   a: [.., m, k], b: [k, n]
pub(crate) fn product([a, b]: [&Tensor; 2], factor: f32) -> Result<Tensor> {
    let rows = a.dims().split_last().map_or(&[][..], |(_, rows)| rows);
    let columns = b.dims().last().copied().unwrap_or(1);
    let mut c = Tensor::uninitialized([rows, &[columns]].concat(), DType::F32, &a.device())?;
    ops::matmul_into(c.view_mut()?, a, b, &Matmul { alpha: factor, ..Matmul::default() })?;
    Ok(c)
}

/// The tensor, contiguous and shared with no other; else a copy.
pub(crate) fn owned(tensor: Tensor) -> Result<Tensor> {
    let mut contiguous = tensor.contiguous()?;
    drop(tensor);
    match contiguous.view_mut() {
        Ok(_) => Ok(contiguous),
        Err(_) => ops::copy(&contiguous),
    }
}

fn new_number() -> u64 {
    NEXT.fetch_add(1, Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::functions::{add, linear};
    use pascaline::Device;

    /// Gradients of rows in several dimensions, of which two meet, the second added by its product.
    #[test]
    fn products_keep_leading_dimensions_and_add_up() {
        let mut parameters = Parameters::default();
        let x = Tensor::ones([2, 3, 4], DType::F32, &Device::Cpu).unwrap();
        let x = parameters.add("x", x, true).unwrap();
        let w = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0, 10.0, 20.0, 30.0, 40.0], [2, 4], &Device::Cpu)
            .unwrap();
        let mut tape = Tape::new();
        let (on_tape, w) = (tape.parameter(&parameters, x), tape.constant(w));
        let one = linear(&mut tape, &on_tape, &w, None).unwrap();
        let other = linear(&mut tape, &on_tape, &w, None).unwrap();
        let sum = add(&mut tape, &one, &other).unwrap();
        tape.backward(&sum, &mut parameters).unwrap();
        let gradient = parameters.get(x).gradient().unwrap();
        assert_eq!(gradient.dims(), [2, 3, 4]);
        assert_eq!(gradient.to_vec::<f32>().unwrap(), [22.0, 44.0, 66.0, 88.0].repeat(6));
    }
}
