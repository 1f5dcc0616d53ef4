//! The tensors of the vision tower: their names and shapes in a published checkpoint, and their names in a GGUF file.

use super::config::VisionConfig;
use language::gguf_model::numbered;
use language::seam::VISION;
use std::collections::BTreeMap;

/// The names and shapes of the tower's tensors.
pub(crate) fn tensors(vision: &VisionConfig) -> BTreeMap<String, Vec<usize>> {
    let mut tensors = BTreeMap::new();
    let (hidden, mlp) = (vision.hidden_size, vision.intermediate_size);
    let merged = hidden * vision.merge_len();
    let mut add = |name: String, shape: &[usize]| tensors.insert(format!("{VISION}{name}"), shape.to_vec());
    let (frames, side) = (vision.temporal_patch_size, vision.patch_size);
    add("patch_embed.proj.weight".into(), &[hidden, vision.in_channels, frames, side, side]);
    add("patch_embed.proj.bias".into(), &[hidden]);
    add("pos_embed.weight".into(), &[vision.num_position_embeddings, hidden]);
    // A linear map or norm: a weight, and a bias as long as the weight's first dimension.
    let mut pair = |name: String, weight: &[usize]| {
        add(format!("{name}.weight"), weight);
        add(format!("{name}.bias"), &weight[..1]);
    };
    for block in 0..vision.depth {
        pair(format!("blocks.{block}.norm1"), &[hidden]);
        pair(format!("blocks.{block}.norm2"), &[hidden]);
        pair(format!("blocks.{block}.attn.qkv"), &[3 * hidden, hidden]);
        pair(format!("blocks.{block}.attn.proj"), &[hidden, hidden]);
        pair(format!("blocks.{block}.mlp.linear_fc1"), &[mlp, hidden]);
        pair(format!("blocks.{block}.mlp.linear_fc2"), &[hidden, mlp]);
    }
    let mut merger = |name: String, norm: usize| {
        pair(format!("{name}.norm"), &[norm]);
        pair(format!("{name}.linear_fc1"), &[merged, merged]);
        pair(format!("{name}.linear_fc2"), &[vision.out_hidden_size, merged]);
    };
    merger("merger".into(), hidden);
    for index in 0..vision.deepstack_visual_indexes.len() {
        merger(format!("deepstack_merger_list.{index}"), merged);
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
