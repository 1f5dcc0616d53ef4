//! The modules of a run that is recorded. They are specs: names, for which the model gives the parameters' values as the forward pass has
//! them, with adapters and rounding, each time.

use crate::functions::{
    activate, add, add_low_rank, add_rows, attention, layer_norm, linear_onto, low_rank, matrix_times,
    quantized_linear, replace_rows, reshape, rms_norm, rope, silu_mul, some_heads,
};
use crate::tape::{Tape, Var};
use crate::values::Values;
use pascaline::ops::{Activation, Attention};
use pascaline::quant::QuantTensor;
use pascaline::{Error, Result, Tensor};
use qwen3_vl::forward::{Load, Modules, Part, Run};
use qwen3_vl::spec::{AttentionSpec, BlockSpec, LinearSpec, MlpSpec, NormSpec, TableSpec};
use std::ops::Range;

/// Modules over a tape.
pub(crate) enum Taped {}

impl Modules for Taped {
    type Value = Var;
    type Linear = LinearSpec;
    type Norm = NormSpec;
    type Mlp = MlpSpec;
    type Blocks = Vec<BlockSpec>;
    type Table = TableSpec;
    type Place = Place;
}

/// The sequences that are packed into the rows, each of which sees only itself.
#[derive(Clone)]
pub(crate) struct Place {
    /// Cosines and sines, each [rows, head_dim / 2].
    pub angles: [Tensor; 2],
    pub sequences: Vec<Range<usize>>,
}

/// Keeps the specs.
pub(crate) struct Specs;

impl Load<Taped> for Specs {
    fn linear(&mut self, spec: LinearSpec) -> Result<LinearSpec> {
        Ok(spec)
    }

    fn norm(&mut self, spec: NormSpec) -> Result<NormSpec> {
        Ok(spec)
    }

    fn mlp(&mut self, spec: MlpSpec) -> Result<MlpSpec> {
        Ok(spec)
    }

    fn push(&mut self, blocks: &mut Vec<BlockSpec>, spec: BlockSpec) -> Result<()> {
        blocks.push(spec);
        Ok(())
    }

    fn table(&mut self, spec: TableSpec) -> Result<TableSpec> {
        Ok(spec)
    }
}

/// A pass that is recorded.
pub(crate) struct Recording<'a> {
    pub values: Values<'a>,
    pub tape: &'a mut Tape,
    /// Whether blocks are computed again in the backward pass instead of being kept.
    pub checkpoint_layers: bool,
}

impl Run<Taped> for Recording<'_> {
    fn constant(&mut self, values: Tensor) -> Var {
        self.tape.constant(values)
    }

    fn linear(&mut self, map: &LinearSpec, x: &Var) -> Result<Var> {
        let maps = maps(self.values, self.tape, map)?;
        forward_one(&maps, self.tape, x, None)
    }

    fn norm(&mut self, norm: &NormSpec, x: &Var) -> Result<Var> {
        Norm::new(self.values, self.tape, norm)?.forward(self.tape, x)
    }

    fn mlp(&mut self, mlp: &MlpSpec, x: &Var) -> Result<Var> {
        Mlp::new(self.values, self.tape, mlp)?.forward(self.tape, x, None)
    }

    fn in_rows_of(&mut self, x: &Var, columns: usize) -> Result<Var> {
        reshape(self.tape, x, [x.value().shape().elements() / columns, columns])
    }

    fn block(&mut self, blocks: &Vec<BlockSpec>, index: usize, x: &Var, place: &Place) -> Result<Var> {
        let Some(spec) = blocks.get(index) else { return Ok(x.clone()) }; // callers count them
        let block = Block::new(self.values, self.tape, spec)?;
        if !self.checkpoint_layers {
            return block.forward(self.tape, x, place);
        }
        let (x, place) = (x.clone(), place.clone());
        self.tape.checkpoint(move |tape| block.forward(tape, &x, &place))
    }

    fn place(&mut self, angles: [Tensor; 2]) -> Result<Place> {
        let rows = angles[0].dims().first().copied().unwrap_or(0);
        Ok(Place { angles, sequences: std::iter::once(0..rows).collect() })
    }

    fn mixed(&mut self, table: &TableSpec, rows: usize, mix: &dyn Fn(&[f32]) -> Vec<f32>) -> Result<Var> {
        // the matrix of a linear map has its values of the identity
        let places = table.shape[0];
        let mut identity = vec![0.0; places * places];
        identity.iter_mut().step_by(places + 1).for_each(|x| *x = 1.0);
        let matrix = Tensor::from_slice(&mix(&identity), [rows, places], self.values.device)?;
        let table = self.values.parameter(self.tape, &table.name)?;
        matrix_times(self.tape, &matrix, &table)
    }

    fn add(&mut self, x: &Var, y: &Var) -> Result<Var> {
        add(self.tape, x, y)
    }

    fn replace_rows(&mut self, x: Var, parts: &[Part<Var>]) -> Result<Var> {
        parts.iter().try_fold(x, |x, part| replace_rows(self.tape, &x, whole(part)?, part.1.start))
    }

    fn add_rows(&mut self, x: Var, parts: &[Part<Var>]) -> Result<Var> {
        parts.iter().try_fold(x, |x, part| add_rows(self.tape, &x, whole(part)?, part.1.start))
    }
}

/// The values of a part that has all rows of them: each image and each group of a video's frames is an output of its own.
fn whole<'a>((values, run): &Part<'a, Var>) -> Result<&'a Var> {
    match (run.row, values.value().dims()) {
        (0, &[rows, _]) if rows == run.len => Ok(values),
        (_, dims) => {
            let (expected, found) = (format!("[{}, hidden]", run.len), dims.into());
            Err(Error::Shape { op: "train", argument: "image", expected, found })
        }
    }
}

#[derive(Clone)]
enum Weight {
    Plain(Var),
    Quantized(QuantTensor),
}

/// A linear map.
struct Linear {
    weight: Weight,
    bias: Option<Var>,
    /// A, B and the factor of B·A.
    adapter: Option<(Var, Var, f32)>,
}

impl Linear {
    /// With its adapter if it has one. `name` is the module's.
    fn new(values: Values, tape: &mut Tape, name: &str, has_bias: bool) -> Result<Self> {
        let weight = match values.parameters.quantized(&format!("{name}.weight")) {
            Some(matrix) => Weight::Quantized(matrix.clone()),
            None => Weight::Plain(values.parameter(tape, &format!("{name}.weight"))?),
        };
        let bias = match has_bias {
            true => Some(values.parameter(tape, &format!("{name}.bias"))?),
            false => None,
        };
        Ok(Self { weight, bias, adapter: values.beside(tape, name) })
    }

    /// Without the adapter, plus `residual` if there is one.
    fn base(&self, tape: &mut Tape, x: &Var, residual: Option<&Var>) -> Result<Var> {
        let bias = self.bias.as_ref();
        match (&self.weight, residual) {
            (Weight::Plain(weight), _) => linear_onto(tape, x, weight, bias, residual),
            (Weight::Quantized(weight), None) => quantized_linear(tape, x, weight, bias),
            (Weight::Quantized(weight), Some(residual)) => {
                let y = quantized_linear(tape, x, weight, bias)?;
                add(tape, residual, &y)
            }
        }
    }
}

/// What linear maps of one x give, each plus `residual` if there is one. The first products of their adapters are one.
fn forward_all(maps: &[Linear], tape: &mut Tape, x: &Var, residual: Option<&Var>) -> Result<Vec<Var>> {
    let adapters: Vec<_> = maps.iter().filter_map(|map| map.adapter.as_ref()).collect();
    let low = match adapters.first() {
        Some((_, _, factor)) => {
            let a: Vec<&Var> = adapters.iter().map(|(a, _, _)| a).collect();
            Some(low_rank(tape, x, &a, *factor)?)
        }
        None => None,
    };
    let mut start = 0;
    let mut forward = |map: &Linear| {
        let y = map.base(tape, x, residual)?;
        let (Some(low), Some((a, b, _))) = (&low, &map.adapter) else { return Ok(y) };
        let first = start;
        start += a.value().dims()[0];
        add_low_rank(tape, y, low, first, b)
    };
    maps.iter().map(&mut forward).collect()
}

/// What the only map of a spec gives, plus `residual` if there is one.
fn forward_one(maps: &[Linear], tape: &mut Tape, x: &Var, residual: Option<&Var>) -> Result<Var> {
    one(forward_all(maps, tape, x, residual)?)
}

fn one(outputs: Vec<Var>) -> Result<Var> {
    match <[Var; 1]>::try_from(outputs) {
        Ok([y]) => Ok(y),
        Err(outputs) => Err(parts(outputs.len(), "one map is needed")),
    }
}

/// The maps of a spec, one for each part.
fn maps(values: Values, tape: &mut Tape, spec: &LinearSpec) -> Result<Vec<Linear>> {
    spec.parts.iter().map(|(name, _)| Linear::new(values, tape, name, spec.has_bias)).collect()
}

/// The error for a map of another number of parts than its module computes with.
fn parts(found: usize, reason: &str) -> Error {
    let (value, reason) = (format!("{found} parts"), reason.to_owned());
    Error::Unsupported { op: "train", argument: "linear map", value, reason }
}

struct Norm {
    weight: Var,
    /// Of a norm by mean and variance.
    bias: Option<Var>,
    eps: f32,
}

impl Norm {
    fn new(values: Values, tape: &mut Tape, spec: &NormSpec) -> Result<Self> {
        let weight = values.parameter(tape, &spec.weight())?;
        let bias = spec.bias().map(|bias| values.parameter(tape, &bias)).transpose()?;
        Ok(Self { weight, bias, eps: spec.eps })
    }

    fn forward(&self, tape: &mut Tape, x: &Var) -> Result<Var> {
        match &self.bias {
            Some(bias) => layer_norm(tape, x, &self.weight, bias, self.eps),
            None => rms_norm(tape, x, &self.weight, self.eps),
        }
    }
}

struct Mlp {
    fc1: Vec<Linear>,
    activation: Activation,
    fc2: Vec<Linear>,
}

impl Mlp {
    fn new(values: Values, tape: &mut Tape, spec: &MlpSpec) -> Result<Self> {
        let (fc1, fc2) = (maps(values, tape, &spec.fc1)?, maps(values, tape, &spec.fc2)?);
        Ok(Self { fc1, activation: spec.activation, fc2 })
    }

    /// Plus `residual` if there is one.
    fn forward(&self, tape: &mut Tape, x: &Var, residual: Option<&Var>) -> Result<Var> {
        let inner = forward_all(&self.fc1, tape, x, None)?;
        let inner = match (self.activation, &inner[..]) {
            (Activation::SwiGlu, [gate, up]) => silu_mul(tape, gate, up)?,
            (Activation::SwiGlu, maps) => {
                return Err(parts(maps.len(), "a gate and what it gates are needed"));
            }
            (activation, _) => activate(tape, &one(inner)?, activation)?,
        };
        forward_one(&self.fc2, tape, &inner, residual)
    }
}

/// The parameters of a block.
struct Block {
    norms: [Norm; 2],
    qkv: Vec<Linear>,
    head_norms: Option<[Norm; 2]>,
    out: Vec<Linear>,
    heads: [usize; 3],
    options: Attention,
    mlp: Mlp,
}

/// The MLP of a block; a mixture of experts is not trained.
fn dense(spec: &BlockSpec) -> Result<&MlpSpec> {
    spec.mlp.dense().ok_or_else(|| Error::Unsupported {
        op: "train",
        argument: "mlp",
        value: "a mixture of experts".into(),
        reason: "its gradients are not computed".into(),
    })
}

impl Block {
    fn new(values: Values, tape: &mut Tape, spec: &BlockSpec) -> Result<Self> {
        let AttentionSpec { qkv, norms, out, heads, causal } = &spec.attention;
        let mut norm = |spec| Norm::new(values, tape, spec);
        Ok(Self {
            norms: [norm(&spec.norm1)?, norm(&spec.norm2)?],
            head_norms: match norms {
                Some([q, k]) => Some([norm(q)?, norm(k)?]),
                None => None,
            },
            qkv: maps(values, tape, qkv)?,
            out: maps(values, tape, out)?,
            heads: *heads,
            options: Attention { causal: *causal, ..Attention::default() },
            mlp: Mlp::new(values, tape, dense(spec)?)?,
        })
    }

    /// x: [rows, hidden] → [rows, hidden]
    fn forward(&self, tape: &mut Tape, x: &Var, place: &Place) -> Result<Var> {
        let normed = self.norms[0].forward(tape, x)?;
        let attended = self.attend(tape, &normed, place)?;
        let x = forward_one(&self.out, tape, &attended, Some(x))?;
        let normed = self.norms[1].forward(tape, &x)?;
        self.mlp.forward(tape, &normed, Some(&x))
    }

    /// [rows, heads · head_dim]
    fn attend(&self, tape: &mut Tape, x: &Var, place: &Place) -> Result<Var> {
        let [mut q, mut k, v] = self.project(tape, x)?;
        if let Some([q_norm, k_norm]) = &self.head_norms {
            (q, k) = (q_norm.forward(tape, &q)?, k_norm.forward(tape, &k)?);
        }
        let (q, k) = (rope(tape, &q, &place.angles)?, rope(tape, &k, &place.angles)?);
        let attended = attention(tape, [&q, &k, &v], &place.sequences, self.options)?;
        let [heads, _, head_dim] = self.heads;
        reshape(tape, &attended, [x.value().dims()[0], heads * head_dim])
    }

    /// q, k and v: [rows, their heads, head_dim]
    fn project(&self, tape: &mut Tape, x: &Var) -> Result<[Var; 3]> {
        let (rows, [heads, kv_heads, head_dim]) = (x.value().dims()[0], self.heads);
        let outputs = forward_all(&self.qkv, tape, x, None)?;
        let mut in_heads = |y: &Var, heads: usize| reshape(tape, y, [rows, heads, head_dim]);
        match &outputs[..] {
            [q, k, v] => Ok([in_heads(q, heads)?, in_heads(k, kv_heads)?, in_heads(v, kv_heads)?]),
            [all] => {
                let all = in_heads(all, heads + 2 * kv_heads)?;
                let mut part = |start, heads| some_heads(tape, &all, start, heads);
                Ok([part(0, heads)?, part(heads, kv_heads)?, part(heads + kv_heads, kv_heads)?])
            }
            maps => Err(parts(maps.len(), "one map to q, k and v is needed, or one to each")),
        }
    }
}
