//! The modules of the vision tower: their names and shapes in a published checkpoint, and their names in a GGUF file.

use super::config::VisionConfig;
use language::gguf_model::numbered;
use language::seam::VISION;
use language::spec::{
    AttentionSpec, BlockSpec, FeedForwardSpec, LinearSpec, MlpSpec, NormKind, NormSpec, TableSpec,
};
use pascaline::ops::Activation;
use std::collections::BTreeMap;

/// In the reference a constant and not part of the configuration.
pub(crate) const LAYER_NORM_EPS: f32 = 1e-6;

/// The tower's modules.
pub(crate) struct TowerSpec {
    pub blocks: Vec<BlockSpec>,
    pub deepstack_mergers: Vec<Merging>,
    pub merger: Merging,
    /// Of patches as rows of values.
    pub patch_embed: LinearSpec,
    pub pos_embed: TableSpec,
}

/// Joins the patches of a merge block into one token.
pub(crate) struct Merging {
    pub norm: NormSpec,
    /// Whether the norm is over the joined patches, or over each patch before.
    pub norm_joined: bool,
    pub mlp: MlpSpec,
    /// Values of the joined patches.
    pub joined: usize,
}

impl TowerSpec {
    pub fn new(config: &VisionConfig) -> Self {
        let mergers = 0..config.deepstack_visual_indexes.len();
        Self {
            blocks: (0..config.depth).map(|index| block(config, index)).collect(),
            deepstack_mergers: mergers
                .map(|i| merging(config, &format!("deepstack_merger_list.{i}"), true))
                .collect(),
            merger: merging(config, "merger", false),
            patch_embed: map("patch_embed.proj", config.hidden_size, config.patch_len()),
            pos_embed: TableSpec {
                name: format!("{VISION}pos_embed.weight"),
                shape: [config.num_position_embeddings, config.hidden_size],
            },
        }
    }
}

fn map(name: &str, rows: usize, columns: usize) -> LinearSpec {
    LinearSpec { parts: vec![(format!("{VISION}{name}"), rows)], columns, has_bias: true }
}

fn norm(name: &str, len: usize) -> NormSpec {
    NormSpec { name: format!("{VISION}{name}"), len, eps: LAYER_NORM_EPS, kind: NormKind::Layer }
}

fn mlp(name: &str, [columns, inner, rows]: [usize; 3], activation: Activation) -> MlpSpec {
    let fc1 = map(&format!("{name}.linear_fc1"), inner, columns);
    MlpSpec { fc1, activation, fc2: map(&format!("{name}.linear_fc2"), rows, inner) }
}

fn block(config: &VisionConfig, index: usize) -> BlockSpec {
    let name = |part: &str| format!("blocks.{index}.{part}");
    let (hidden, heads) = (config.hidden_size, config.num_heads);
    BlockSpec {
        norm1: norm(&name("norm1"), hidden),
        attention: AttentionSpec {
            qkv: map(&name("attn.qkv"), 3 * hidden, hidden),
            norms: None,
            out: map(&name("attn.proj"), hidden, hidden),
            heads: [heads, heads, config.head_dim()],
            causal: false,
        },
        norm2: norm(&name("norm2"), hidden),
        mlp: FeedForwardSpec::Dense(mlp(
            &name("mlp"),
            [hidden, config.intermediate_size, hidden],
            Activation::GeluTanh,
        )),
    }
}

fn merging(config: &VisionConfig, name: &str, norm_joined: bool) -> Merging {
    let joined = config.hidden_size * config.merge_len();
    let norm = norm(&format!("{name}.norm"), if norm_joined { joined } else { config.hidden_size });
    let mlp = mlp(name, [joined, joined, config.out_hidden_size], Activation::GeluErf);
    Merging { norm, norm_joined, mlp, joined }
}

/// The names and shapes of the tower's tensors.
pub(crate) fn tensors(config: &VisionConfig) -> BTreeMap<String, Vec<usize>> {
    let mut tensors = BTreeMap::new();
    let mut add = |name: String, shape: &[usize]| drop(tensors.insert(name, shape.to_vec()));
    let spec = TowerSpec::new(config);
    spec.blocks.iter().for_each(|block| block.tensors(&mut add));
    for merger in spec.deepstack_mergers.iter().chain([&spec.merger]) {
        merger.norm.tensors(&mut add);
        merger.mlp.tensors(&mut add);
    }
    add(spec.pos_embed.name, &spec.pos_embed.shape);
    spec.patch_embed.tensors(&mut add);
    // files have the convolution's own shape
    let (frames, side) = (config.temporal_patch_size, config.patch_size);
    for name in spec.patch_embed.weights() {
        add(name, &[config.hidden_size, config.in_channels, frames, side, side]);
    }
    tensors
}

/// The number of [`tensors`], without the list.
pub(crate) fn count(vision: &VisionConfig) -> usize {
    let (patches, of_block, merger) = (3, 12, 6);
    patches + of_block * vision.depth + merger * (1 + vision.deepstack_visual_indexes.len())
}

/// A part of a vision block's name, published and in a GGUF file.
const BLOCK: [(&str, &str); 6] = [
    ("norm1", "ln1"),
    ("norm2", "ln2"),
    ("attn.qkv", "attn_qkv"),
    ("attn.proj", "attn_out"),
    ("mlp.linear_fc1", "ffn_up"),
    ("mlp.linear_fc2", "ffn_down"),
];

/// The GGUF name of a published tensor; `None` for names that no checkpoint has. The patch embedding's weight has one tensor per
/// frame; this is the first.
pub(crate) fn gguf_name(published: &str, vision: &VisionConfig) -> Option<String> {
    let rest = published.strip_prefix(VISION)?;
    if let Some(rest) = rest.strip_prefix("blocks.") {
        return numbered(rest, "v.blk", &BLOCK);
    }
    if let Some(rest) = rest.strip_prefix("deepstack_merger_list.") {
        let (index, rest) = rest.split_once('.')?;
        let block = vision.deepstack_visual_indexes.get(index.parse::<usize>().ok()?)?;
        return Some(format!("v.deepstack.{block}.{}", rest.replace("linear_", "")));
    }
    let (part, kind) = rest.rsplit_once('.')?;
    let name = match part {
        "patch_embed.proj" => "v.patch_embd",
        "pos_embed" => "v.position_embd",
        "merger.norm" => "v.post_ln",
        "merger.linear_fc1" => "mm.0",
        "merger.linear_fc2" => "mm.2",
        _ => return None,
    };
    Some(format!("{name}.{kind}"))
}
