//! A model's modules as its checkpoint has them: the published names and shapes of their tensors, and how they compute.
//!
//! A model says these once. Its list of tensors, the modules of inference and the steps of training follow from them.

use super::config::ExpertsConfig;
use pascaline::ops::Activation;

/// A linear map: matrices of equal width, each above the next.
#[derive(Clone, Debug, PartialEq)]
pub struct LinearSpec {
    /// The names of the maps whose matrices these are, without `.weight`, and their rows.
    pub parts: Vec<(String, usize)>,
    /// Their width.
    pub columns: usize,
    /// Whether each has a bias.
    pub has_bias: bool,
}

/// A norm over the last dimension.
#[derive(Clone, Debug, PartialEq)]
pub struct NormSpec {
    /// Its name, without `.weight`.
    pub name: String,
    /// Elements of its weight.
    pub len: usize,
    /// Its ε.
    pub eps: f32,
    /// Root mean square, or mean and variance with a bias.
    pub kind: NormKind,
}

/// The two kinds of norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// Root mean square.
    Rms,
    /// Mean and variance, with a bias.
    Layer,
}

/// Multi-head attention with its projections.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionSpec {
    /// The projections to q, k and v: one part, or three.
    pub qkv: LinearSpec,
    /// Norms of each head of q and of k.
    pub norms: Option<[NormSpec; 2]>,
    /// The output projection.
    pub out: LinearSpec,
    /// Heads of q, heads of k and of v, elements of a head.
    pub heads: [usize; 3],
    /// Whether a row attends only to rows up to itself.
    pub causal: bool,
}

/// fc2(activation(fc1(x))); for a gated activation, fc1 has two parts: gate and up.
#[derive(Clone, Debug, PartialEq)]
pub struct MlpSpec {
    /// The first map.
    pub fc1: LinearSpec,
    /// What is between the maps.
    pub activation: Activation,
    /// The second map.
    pub fc2: LinearSpec,
}

/// Experts in an MLP's place: Σ weight · down(silu(gate(x)) ⊙ up(x)) over the experts that the router chooses for a row.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertsSpec {
    /// The name of the router's tensor, a row for each expert.
    pub router: String,
    /// The names of the stacked matrices: gates, ups, downs.
    pub matrices: [String; 3],
    /// Elements of a row.
    pub hidden: usize,
    /// The layer's experts.
    pub experts: ExpertsConfig,
}

/// The part of a block that computes each row separately.
#[derive(Clone, Debug, PartialEq)]
pub enum FeedForwardSpec {
    /// The same for all rows.
    Dense(MlpSpec),
    /// A few of many experts for each row.
    Experts(ExpertsSpec),
}

/// A transformer block: h = x + attention(norm1(x)); y = h + mlp(norm2(h)).
#[derive(Clone, Debug, PartialEq)]
pub struct BlockSpec {
    /// Applied before the attention.
    pub norm1: NormSpec,
    /// Combines the rows of different positions.
    pub attention: AttentionSpec,
    /// Applied before the MLP.
    pub norm2: NormSpec,
    /// Applied to each row separately.
    pub mlp: FeedForwardSpec,
}

/// A table whose rows are looked up or mixed.
#[derive(Clone, Debug, PartialEq)]
pub struct TableSpec {
    /// The name of its tensor.
    pub name: String,
    /// Rows and columns.
    pub shape: [usize; 2],
}

impl LinearSpec {
    /// The names of its matrices, from the top.
    pub fn weights(&self) -> Vec<String> {
        self.parts.iter().map(|(name, _)| format!("{name}.weight")).collect()
    }

    /// The names of its biases, from the top; none if it has none.
    pub fn biases(&self) -> Vec<String> {
        let parts = self.parts.iter().filter(|_| self.has_bias);
        parts.map(|(name, _)| format!("{name}.bias")).collect()
    }

    /// Calls `add` with the name and shape of each tensor.
    pub fn tensors(&self, add: &mut dyn FnMut(String, &[usize])) {
        self.weights()
            .into_iter()
            .zip(&self.parts)
            .for_each(|(name, (_, rows))| add(name, &[*rows, self.columns]));
        self.biases().into_iter().zip(&self.parts).for_each(|(name, (_, rows))| add(name, &[*rows]));
    }
}

impl NormSpec {
    /// The name of its weight.
    pub fn weight(&self) -> String {
        format!("{}.weight", self.name)
    }

    /// The name of its bias, if it has one.
    pub fn bias(&self) -> Option<String> {
        (self.kind == NormKind::Layer).then(|| format!("{}.bias", self.name))
    }

    /// As [`LinearSpec::tensors`].
    pub fn tensors(&self, add: &mut dyn FnMut(String, &[usize])) {
        [Some(self.weight()), self.bias()].into_iter().flatten().for_each(|name| add(name, &[self.len]));
    }
}

impl MlpSpec {
    /// As [`LinearSpec::tensors`].
    pub fn tensors(&self, add: &mut dyn FnMut(String, &[usize])) {
        [&self.fc1, &self.fc2].into_iter().for_each(|map| map.tensors(add));
    }
}

impl ExpertsSpec {
    /// As [`LinearSpec::tensors`]; a matrix is [experts, rows, columns].
    pub fn tensors(&self, add: &mut dyn FnMut(String, &[usize])) {
        let (count, width, hidden) = (self.experts.count, self.experts.width, self.hidden);
        let [gate, up, down] = self.matrices.clone();
        add(self.router.clone(), &[count, hidden]);
        add(gate, &[count, width, hidden]);
        add(up, &[count, width, hidden]);
        add(down, &[count, hidden, width]);
    }
}

impl FeedForwardSpec {
    /// As [`LinearSpec::tensors`].
    pub fn tensors(&self, add: &mut dyn FnMut(String, &[usize])) {
        match self {
            Self::Dense(mlp) => mlp.tensors(add),
            Self::Experts(experts) => experts.tensors(add),
        }
    }

    /// The MLP, if there are no experts.
    pub fn dense(&self) -> Option<&MlpSpec> {
        match self {
            Self::Dense(mlp) => Some(mlp),
            Self::Experts(_) => None,
        }
    }
}

impl BlockSpec {
    /// As [`LinearSpec::tensors`].
    pub fn tensors(&self, add: &mut dyn FnMut(String, &[usize])) {
        let AttentionSpec { qkv, norms, out, .. } = &self.attention;
        [&self.norm1, &self.norm2]
            .into_iter()
            .chain(norms.iter().flatten())
            .for_each(|norm| norm.tensors(add));
        [qkv, out].into_iter().for_each(|map| map.tensors(add));
        self.mlp.tensors(add);
    }
}
