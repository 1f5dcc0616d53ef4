//! The tensors of a model: their names, values and gradients, and which of them are trained.

use pascaline::quant::QuantTensor;
use pascaline::{Error, Result, Shape, Tensor, ops};
use std::collections::BTreeMap;

/// A tensor of a model.
pub struct Parameter {
    name: String,
    value: Tensor,
    gradient: Option<Tensor>,
    is_trained: bool,
}

impl Parameter {
    /// Its published name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its elements.
    pub fn value(&self) -> &Tensor {
        &self.value
    }

    /// Whether gradients with respect to it are wanted.
    pub fn is_trained(&self) -> bool {
        self.is_trained
    }

    /// Its gradient: the sum since the last step; zeros if nothing depended on it.
    ///
    /// # Errors
    /// A device error.
    pub fn gradient(&self) -> Result<Tensor> {
        match &self.gradient {
            Some(gradient) => Ok(gradient.clone()),
            None => self.value.zeros_like(),
        }
    }

    /// For a step: the value to be changed and the gradient.
    pub(crate) fn for_step(&mut self) -> (&mut Tensor, Option<&Tensor>) {
        (&mut self.value, self.gradient.as_ref())
    }

    /// The gradient, if there is one.
    pub(crate) fn found(&self) -> Option<&Tensor> {
        self.gradient.as_ref()
    }
}

/// The tensors of a model, by number and by name.
#[derive(Default)]
pub struct Parameters {
    all: Vec<Parameter>,
    index: BTreeMap<String, usize>,
    quantized: BTreeMap<String, QuantTensor>,
}

impl Parameters {
    /// Adds a tensor (contiguous, f32 if it is trained), and returns its number.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if there is one of that name.
    pub fn add(&mut self, name: impl Into<String>, value: Tensor, is_trained: bool) -> Result<usize> {
        let name = name.into();
        if self.index.contains_key(&name) {
            let reason = "there is a parameter of this name".into();
            return Err(Error::Unsupported { op: "parameters", argument: "name", value: name, reason });
        }
        let number = self.all.len();
        self.index.insert(name.clone(), number);
        self.all.push(Parameter { name, value, gradient: None, is_trained });
        Ok(number)
    }

    /// Adds a quantised matrix, which is never trained itself.
    pub fn add_quantized(&mut self, name: impl Into<String>, matrix: QuantTensor) {
        self.quantized.insert(name.into(), matrix);
    }

    /// The quantised matrix of a name, if there is one.
    pub fn quantized(&self, name: &str) -> Option<&QuantTensor> {
        self.quantized.get(name)
    }

    /// The names and shapes of all matrices, quantised or not.
    pub(crate) fn matrices(&self) -> BTreeMap<&str, &Shape> {
        let plain = self.all.iter().map(|parameter| (parameter.name(), parameter.value.shape()));
        let quantized = self.quantized.iter().map(|(name, matrix)| (name.as_str(), matrix.shape()));
        plain.filter(|(_, shape)| shape.rank() == 2).chain(quantized).collect()
    }

    /// The parameter of this number, as [`add`](Self::add) returned it.
    pub fn get(&self, number: usize) -> &Parameter {
        &self.all[number]
    }

    /// The number of a name.
    pub fn find(&self, name: &str) -> Option<usize> {
        self.index.get(name).copied()
    }

    /// The number of a name that the model has.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if there is none.
    pub fn required(&self, name: &str) -> Result<usize> {
        self.find(name).ok_or_else(|| Error::Unsupported {
            op: "parameters",
            argument: "name",
            value: name.to_owned(),
            reason: "the model has no parameter of this name".into(),
        })
    }

    /// All parameters, in the order in which they were added.
    pub fn iter(&self) -> impl Iterator<Item = &Parameter> {
        self.all.iter()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Parameter> {
        self.all.iter_mut()
    }

    /// Replaces a parameter's elements.
    ///
    /// # Errors
    /// [`Error::Shape`] if the shape differs.
    pub fn set(&mut self, number: usize, value: Tensor) -> Result<()> {
        let parameter = &mut self.all[number];
        if value.shape() != parameter.value.shape() {
            let expected = parameter.value.shape().to_string();
            let found = value.shape().clone();
            return Err(Error::Shape { op: "parameters", argument: "value", expected, found });
        }
        parameter.value = value;
        Ok(())
    }

    /// Chooses which are trained, by name, and drops all gradients.
    pub fn train(&mut self, is_trained: impl Fn(&str) -> bool) {
        for parameter in &mut self.all {
            parameter.is_trained = is_trained(&parameter.name);
            parameter.gradient = None;
        }
    }

    /// Drops all gradients.
    pub fn zero_gradients(&mut self) {
        self.all.iter_mut().for_each(|parameter| parameter.gradient = None);
    }

    /// Adds to a gradient.
    pub(crate) fn accumulate(&mut self, number: usize, gradient: Tensor) -> Result<()> {
        let parameter = &mut self.all[number];
        let sum = match parameter.gradient.take() {
            Some(before) => ops::add(&before, &gradient)?,
            None => gradient,
        };
        parameter.gradient = Some(sum.contiguous()?);
        Ok(())
    }
}
