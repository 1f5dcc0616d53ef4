//! The forward pass, written once over how it is run: [`inference`](super::inference) computes, and a tape also remembers what
//! gradients need.
//!
//! [`Modules`] are the types of one kind of run, [`Load`] makes modules of their specs, and [`Run`] computes with them. Models are
//! written over these; the decoder is here.

use super::media::VisionOutput;
use super::spec::{BlockSpec, LinearSpec, MlpSpec, NormSpec, TableSpec};
use pascaline::{Result, Tensor};
use std::ops::Range;

/// The modules of one kind of run, and the values that pass through them.
pub trait Modules {
    /// [rows, features]
    type Value: Clone;
    /// A linear map.
    type Linear;
    /// A norm.
    type Norm;
    /// The position-wise part of a block, alone.
    type Mlp;
    /// A stack of transformer blocks.
    type Blocks: Default;
    /// A table whose rows are mixed.
    type Table;
    /// Where rows are in their sequences: their rotary angles, and which rows they attend to.
    type Place;
}

/// Makes modules. All functions return the errors of reading tensors.
pub trait Load<M: Modules> {
    /// A linear map.
    fn linear(&mut self, spec: LinearSpec) -> Result<M::Linear>;

    /// A norm.
    fn norm(&mut self, spec: NormSpec) -> Result<M::Norm>;

    /// An MLP.
    fn mlp(&mut self, spec: MlpSpec) -> Result<M::Mlp>;

    /// Appends a block.
    fn push(&mut self, blocks: &mut M::Blocks, spec: BlockSpec) -> Result<()>;

    /// A table.
    fn table(&mut self, spec: TableSpec) -> Result<M::Table>;
}

/// Values that are put into rows of others, and the rows.
pub type Part<'a, V> = (&'a V, ImageRun);

/// Computes. All functions return a device error, or [`Error::Shape`](pascaline::Error::Shape) for what does not match.
pub trait Run<M: Modules> {
    /// Values that depend on no parameter.
    fn constant(&mut self, values: Tensor) -> M::Value;

    /// x·Wᵀ + b
    fn linear(&mut self, map: &M::Linear, x: &M::Value) -> Result<M::Value>;

    /// The normalised rows.
    fn norm(&mut self, norm: &M::Norm, x: &M::Value) -> Result<M::Value>;

    /// fc2(activation(fc1(x)))
    fn mlp(&mut self, mlp: &M::Mlp, x: &M::Value) -> Result<M::Value>;

    /// The same elements in rows of `columns`.
    fn in_rows_of(&mut self, x: &M::Value, columns: usize) -> Result<M::Value>;

    /// Block `index` of `blocks`.
    fn block(&mut self, blocks: &M::Blocks, index: usize, x: &M::Value, place: &M::Place)
    -> Result<M::Value>;

    /// The place of the rows of one sequence with these cosines and sines, each [rows, head_dim / 2].
    fn place(&mut self, angles: [Tensor; 2]) -> Result<M::Place>;

    /// The `rows` rows that `mix` makes of the rows of a table. It is linear, and the same for each column.
    fn mixed(&mut self, table: &M::Table, rows: usize, mix: &dyn Fn(&[f32]) -> Vec<f32>) -> Result<M::Value>;

    /// x + y, of one shape.
    fn add(&mut self, x: &M::Value, y: &M::Value) -> Result<M::Value>;

    /// x with rows of it replaced by the parts'.
    fn replace_rows(&mut self, x: M::Value, parts: &[Part<M::Value>]) -> Result<M::Value>;

    /// x with the parts added to rows of it.
    fn add_rows(&mut self, x: M::Value, parts: &[Part<M::Value>]) -> Result<M::Value>;
}

/// Consecutive image tokens of a sequence, and where their features are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ImageRun {
    /// Index of the first one in the sequence.
    pub start: usize,
    /// Their number.
    pub len: usize,
    /// Index of the image's vision output.
    pub output: usize,
    /// The first one's row in that output.
    pub row: usize,
}

/// A pass's inputs in addition to its tokens.
pub struct Images<'a, V = Tensor> {
    /// The vision tower's output for each image and video.
    pub outputs: &'a [VisionOutput<V>],
    /// The runs of image tokens, counted from the start of the pass.
    pub runs: &'a [ImageRun],
}

impl<V> Clone for Images<'_, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<V> Copy for Images<'_, V> {}

impl<V> Default for Images<'_, V> {
    fn default() -> Self {
        Self { outputs: &[], runs: &[] }
    }
}

impl<'a, V> Images<'a, V> {
    /// The embeddings that take image tokens' places.
    fn embeddings(&self) -> Vec<Part<'a, V>> {
        let outputs = self.outputs;
        self.runs.iter().map(|run| (&outputs[run.output].embeddings, *run)).collect()
    }

    /// The features that are added after a layer; none if it has none.
    pub(super) fn deepstack(&self, layer: usize) -> Vec<Part<'a, V>> {
        let outputs = self.outputs;
        let features = |run: &ImageRun| Some((outputs[run.output].deepstack.get(layer)?, *run));
        self.runs.iter().filter_map(features).collect()
    }
}

/// The first layer's input: the tokens' embeddings, with those of image tokens replaced by the images'.
///
/// # Errors
/// Those of the run.
pub fn embed<M: Modules>(
    run: &mut impl Run<M>,
    tokens: M::Value,
    images: Images<M::Value>,
) -> Result<M::Value> {
    match images.runs {
        [] => Ok(tokens),
        _ => run.replace_rows(tokens, &images.embeddings()),
    }
}

/// Layers `range` of the decoder, which are all of `layers`. `trace` is called with each layer's number and its output before
/// deepstack features are added.
///
/// # Errors
/// Those of the run.
pub fn decode<M: Modules>(
    run: &mut impl Run<M>,
    layers: &M::Blocks,
    range: Range<usize>,
    mut h: M::Value,
    place: &M::Place,
    images: Images<M::Value>,
    trace: &mut dyn FnMut(usize, &M::Value) -> Result<()>,
) -> Result<M::Value> {
    for (at, index) in range.enumerate() {
        h = run.block(layers, at, &h, place)?;
        trace(index + 1, &h)?;
        let features = images.deepstack(index);
        if !features.is_empty() {
            h = run.add_rows(h, &features)?;
        }
    }
    Ok(h)
}
