//! The run of inference: the modules of `pascaline::nn`, with all that they fuse.

use super::adapter::Adapter;
use super::cut::Cut;
use super::forward::{Load, Modules, Part, Run};
use super::layers::Layers;
use super::seam::{Progress, Tensors, VisionScores};
use super::spec::{
    BlockSpec, ExpertsSpec, FeedForwardSpec, LinearSpec, MlpSpec, NormKind, NormSpec, TableSpec,
};
use super::weights::Weights;
use pascaline::nn::{
    Attention, Cache, Change, Experts, LayerNorm, Linear, Mlp, Norm, RmsNorm, Rope, TransformerBlock,
};
use pascaline::{DType, Device, Error, Result, Tensor, ops};

/// Modules that compute and remember nothing.
#[derive(Clone, Copy, Debug)]
pub enum Inference {}

impl Modules for Inference {
    type Value = Tensor;
    type Linear = Linear;
    type Norm = Norm;
    type Mlp = Mlp;
    type Blocks = Layers;
    type Table = HostTable;
    type Place = Rope;
}

/// A table in host memory.
#[derive(Clone, Debug)]
pub struct HostTable {
    values: Vec<f32>,
    columns: usize,
}

/// A pass over rows on one device.
pub struct Pass<'a, 'c> {
    device: &'a Device,
    /// Of the next blocks; without them, rows attend to each other alone.
    caches: Option<&'a mut dyn Iterator<Item = Cache<'c>>>,
}

impl<'a> Pass<'a, 'static> {
    /// Without caches of keys and values.
    pub fn new(device: &'a Device) -> Self {
        Self { device, caches: None }
    }
}

impl<'a, 'c> Pass<'a, 'c> {
    /// With the next caches of an iterator, one for each block.
    pub(super) fn with_caches(device: &'a Device, caches: &'a mut dyn Iterator<Item = Cache<'c>>) -> Self {
        Self { device, caches: Some(caches) }
    }
}

impl Run<Inference> for Pass<'_, '_> {
    fn constant(&mut self, values: Tensor) -> Tensor {
        values
    }

    fn linear(&mut self, map: &Linear, x: &Tensor) -> Result<Tensor> {
        map.forward(x)
    }

    fn norm(&mut self, norm: &Norm, x: &Tensor) -> Result<Tensor> {
        norm.to_device(self.device)?.forward(x) // a copy, where the weights pass through the device
    }

    fn mlp(&mut self, mlp: &Mlp, x: &Tensor) -> Result<Tensor> {
        mlp.to_device(self.device)?.forward(x)
    }

    fn in_rows_of(&mut self, x: &Tensor, columns: usize) -> Result<Tensor> {
        x.reshape([x.shape().elements() / columns, columns])
    }

    fn block(&mut self, blocks: &Layers, index: usize, x: &Tensor, rope: &Rope) -> Result<Tensor> {
        let cache = self.caches.as_mut().and_then(|caches| caches.next());
        blocks.forward(index, x, rope, cache)
    }

    fn place(&mut self, [cos, sin]: [Tensor; 2]) -> Result<Rope> {
        Rope::new(cos, sin, 0, 0)
    }

    fn mixed(&mut self, table: &HostTable, rows: usize, mix: &dyn Fn(&[f32]) -> Vec<f32>) -> Result<Tensor> {
        let columns = table.columns;
        let values = match self.device.is_planned() {
            true => vec![0.0; rows * columns],
            false => mix(&table.values),
        };
        Tensor::from_slice(&values, [rows, columns], self.device)
    }

    fn add(&mut self, x: &Tensor, y: &Tensor) -> Result<Tensor> {
        ops::add(x, y)
    }

    fn replace_rows(&mut self, mut x: Tensor, parts: &[Part<Tensor>]) -> Result<Tensor> {
        copy_rows(&mut x, parts)?;
        Ok(x)
    }

    fn add_rows(&mut self, x: Tensor, parts: &[Part<Tensor>]) -> Result<Tensor> {
        ops::add(&x, &sparse(x.dims(), parts, self.device)?)
    }
}

/// Parts at their rows, and zeros elsewhere.
pub(super) fn sparse(dims: &[usize], parts: &[Part<Tensor>], device: &Device) -> Result<Tensor> {
    let mut sparse = Tensor::zeros(dims, DType::F32, device)?;
    copy_rows(&mut sparse, parts)?;
    Ok(sparse)
}

fn copy_rows(to: &mut Tensor, parts: &[Part<Tensor>]) -> Result<()> {
    let device = to.device();
    for (values, run) in parts {
        let rows = values.narrow(0, run.row, run.len)?.to_device(&device)?; // a later stage's device is another
        ops::copy_into(to.view_mut()?.narrow(0, run.start, run.len)?, &rows)?;
    }
    Ok(())
}

/// Takes the tensors of a part of a model that is whole on one device.
pub struct Loader<'a> {
    /// The tensors.
    pub tensors: &'a mut dyn Tensors,
    /// The device that is loaded onto.
    pub device: &'a Device,
    /// Where the weights of blocks, norms and MLPs stay, if that is elsewhere: in host memory.
    pub passing: Option<&'a Device>,
    /// How blocks multiply queries and keys.
    pub scores: VisionScores,
    /// Called after each block.
    pub done: &'a mut dyn FnMut(Progress),
}

impl Load<Inference> for Loader<'_> {
    fn linear(&mut self, spec: LinearSpec) -> Result<Linear> {
        linear(self.tensors, &spec, Cut::Whole)
    }

    fn norm(&mut self, spec: NormSpec) -> Result<Norm> {
        let norm = norm(self.tensors, &spec)?;
        self.passing.map_or(Ok(norm.clone()), |host| norm.to_device(host))
    }

    fn mlp(&mut self, spec: MlpSpec) -> Result<Mlp> {
        let mlp = mlp(self.tensors, &spec, [Cut::Whole; 2])?;
        self.passing.map_or(Ok(mlp.clone()), |host| mlp.to_device(host))
    }

    fn push(&mut self, blocks: &mut Layers, spec: BlockSpec) -> Result<()> {
        let mut block = block(self.tensors, &spec, (0, 1))?;
        if self.scores == VisionScores::Int8 {
            block.attention = block.attention.with_int8_scores();
        }
        match self.device {
            Device::Cuda(device) if self.passing.is_some() => blocks.push_streamed(&block, device)?,
            _ => blocks.push(block),
        }
        (self.done)(self.tensors.progress());
        Ok(())
    }

    fn table(&mut self, spec: TableSpec) -> Result<HostTable> {
        Ok(HostTable { values: self.tensors.host(&spec.name)?, columns: spec.shape[1] })
    }
}

fn linear(tensors: &mut dyn Tensors, spec: &LinearSpec, cut: Cut) -> Result<Linear> {
    let weight = tensors.weight(&spec.weights(), cut)?;
    let bias = match &spec.biases()[..] {
        [] => None,
        [bias] if cut == Cut::Whole => Some(tensors.vector(bias)?),
        biases => {
            let reason = "a bias belongs to one whole matrix".into();
            let value = biases.join(", ");
            return Err(Error::Unsupported { op: "load", argument: "bias", value, reason });
        }
    };
    Linear::new(weight, bias)
}

fn norm(tensors: &mut dyn Tensors, spec: &NormSpec) -> Result<Norm> {
    match (spec.kind, spec.bias()) {
        (NormKind::Layer, Some(bias)) => {
            let weight = tensors.vector(&spec.weight())?;
            LayerNorm::new(weight, tensors.vector(&bias)?, spec.eps).map(Norm::Layer)
        }
        _ => rms_norm(tensors, spec).map(Norm::Rms),
    }
}

/// A norm that has a weight alone.
pub(super) fn rms_norm(tensors: &mut dyn Tensors, spec: &NormSpec) -> Result<RmsNorm> {
    RmsNorm::new(tensors.vector(&spec.weight())?, spec.eps)
}

fn mlp(tensors: &mut dyn Tensors, spec: &MlpSpec, [rows, columns]: [Cut; 2]) -> Result<Mlp> {
    let fc1 = linear(tensors, &spec.fc1, rows)?;
    Mlp::new(fc1, spec.activation, linear(tensors, &spec.fc2, columns)?)
}

/// Whole: experts are not divided between devices.
fn experts(tensors: &mut dyn Tensors, spec: &ExpertsSpec) -> Result<Experts> {
    let router = tensors.vector(&spec.router)?; // in f32, whatever matrices are stored in
    let mut matrix = |name: &String| tensors.weight(std::slice::from_ref(name), Cut::Whole);
    let [gate, up, down] = &spec.matrices;
    let all = Experts::new(router, matrix(gate)?, matrix(up)?, matrix(down)?, spec.experts.per_token)?;
    Ok(if spec.experts.normalized { all } else { all.unnormalized() })
}

/// A block, or part `index` of `of`, on the device that is loaded onto.
pub(super) fn block(
    tensors: &mut dyn Tensors,
    spec: &BlockSpec,
    (index, of): (usize, usize),
) -> Result<TransformerBlock> {
    let [rows, columns] = cuts(index, of);
    let attention = &spec.attention;
    let qkv = linear(tensors, &attention.qkv, rows)?;
    let out = linear(tensors, &attention.out, columns)?;
    let mlp = match &spec.mlp {
        FeedForwardSpec::Dense(spec) => mlp(tensors, spec, [rows, columns])?,
        FeedForwardSpec::Experts(spec) => experts(tensors, spec)?.into(),
    };
    let norms = match &attention.norms {
        Some([q, k]) => Some((rms_norm(tensors, q)?, rms_norm(tensors, k)?)),
        None => None,
    };
    let [heads, kv_heads, head_dim] = attention.heads;
    let heads = [heads / of, kv_heads / of, head_dim];
    Ok(TransformerBlock {
        norm1: norm(tensors, &spec.norm1)?,
        attention: Attention::new(qkv, norms, out, heads, attention.causal)?,
        norm2: norm(tensors, &spec.norm2)?,
        mlp,
    })
}

/// How part `index` of `of` of a block has its matrices cut: those before the heads and the activation, and those after.
fn cuts(index: usize, of: usize) -> [Cut; 2] {
    match of {
        1 => [Cut::Whole; 2],
        of => [Cut::Rows { index, of }, Cut::Columns { index, of }],
    }
}

/// What an adapter adds to the matrices of a [`block`] or its part, on the device that is loaded onto.
pub(super) fn changes(
    weights: &Weights,
    adapter: &Adapter,
    spec: &BlockSpec,
    (index, of): (usize, usize),
) -> Result<Vec<Change>> {
    let [rows, columns] = cuts(index, of);
    let mut matrices = vec![(spec.attention.qkv.weights(), rows), (spec.attention.out.weights(), columns)];
    match &spec.mlp {
        FeedForwardSpec::Dense(mlp) => {
            matrices.extend([(mlp.fc1.weights(), rows), (mlp.fc2.weights(), columns)]);
        }
        FeedForwardSpec::Experts(experts) => {
            matrices.extend(experts.matrices.iter().map(|name| (vec![name.clone()], Cut::Whole)));
        }
    }
    matrices.iter().map(|(names, cut)| weights.change(adapter, names, *cut)).collect()
}
