//! The names of a published checkpoint's tensors in a text file and a vision file.

use crate::gguf::{GgmlType, Gguf};
use crate::number::Number;
use crate::seam::{Config, LM_HEAD, VISION};
use pascaline::Result;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A part of a layer's name, published and in a GGUF file.
const LAYER: [(&str, &str); 15] = [
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("mlp.gate", "ffn_gate_inp"),
    ("mlp.experts.gate_proj", "ffn_gate_exps"),
    ("mlp.experts.up_proj", "ffn_up_exps"),
    ("mlp.experts.down_proj", "ffn_down_exps"),
];

/// The GGUF name of a published tensor; `None` for names that no checkpoint has. A tensor with a dimension of frames is split, one
/// file's tensor per frame; this is the first.
pub(crate) fn gguf_name(published: &str, config: &Config) -> Option<String> {
    if published == LM_HEAD {
        return Some("output.weight".into());
    }
    if is_vision(published) {
        return config.vision.as_ref()?.gguf_name(published);
    }
    match published.strip_prefix(config.model.prefix())? {
        "embed_tokens.weight" => Some("token_embd.weight".into()),
        "norm.weight" => Some("output_norm.weight".into()),
        rest => numbered(rest.strip_prefix("layers.")?, "blk", &LAYER),
    }
}

/// `‹number›.‹part›.‹kind›` with the prefix and the part's name in a GGUF file.
pub fn numbered(rest: &str, prefix: &str, parts: &[(&str, &str)]) -> Option<String> {
    let (index, rest) = rest.split_once('.')?;
    let (part, kind) = rest.rsplit_once('.')?;
    let (_, name) = parts.iter().find(|(known, _)| *known == part)?;
    Some(format!("{prefix}.{index}.{name}.{kind}"))
}

/// Whether a published tensor is in the vision file.
pub(super) fn is_vision(published: &str) -> bool {
    published.starts_with(VISION)
}

/// The tensors of both files by their published names.
#[derive(Debug)]
pub(crate) struct Tensors {
    text: Arc<Gguf>,
    /// `None` for a model of text alone.
    vision: Option<Arc<Gguf>>,
    held: BTreeMap<String, Held>,
}

#[derive(Debug)]
struct Held {
    in_vision: bool,
    name: String,
    shape: Vec<usize>,
    /// The number of tensors in the file, one per frame: `name`, `name.1`, …
    frames: usize,
}

impl Tensors {
    /// Checks that the files have the tensors of a model of this configuration, in the right shapes, and no others.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] with the file and the tensor.
    pub fn new(text: Arc<Gguf>, vision: Option<Arc<Gguf>>, config: &Config) -> Result<Self> {
        let mut held = BTreeMap::new();
        let mut known = [BTreeSet::new(), BTreeSet::new()];
        for (published, shape) in config.tensors() {
            let in_vision = is_vision(&published);
            let file = vision.as_ref().filter(|_| in_vision).unwrap_or(&text);
            let frames = if shape.len() == 5 { shape[2] } else { 1 };
            let Some(name) = gguf_name(&published, config) else {
                return Err(file.bad(&published, "has no name in a GGUF file"));
            };
            let frame_shape = match (frames, &shape[..]) {
                (1, shape) => shape.to_vec(),
                (_, &[rows, channels, _, height, width]) => vec![rows, channels, height, width],
                (_, shape) => shape.to_vec(),
            };
            for frame in 0..frames {
                let name = frame_name(&name, frame);
                let Some(info) = file.tensor(&name) else {
                    return Err(file.bad(&name, "is not in the file"));
                };
                if info.shape != frame_shape {
                    let reason = format!("has shape {:?}, the metadata says {frame_shape:?}", info.shape);
                    return Err(file.bad(&name, reason));
                }
                known[usize::from(in_vision)].insert(name);
            }
            held.insert(published, Held { in_vision, name, shape, frames });
        }
        for (file, known) in [Some(&text), vision.as_ref()].into_iter().flatten().zip(&known) {
            if let Some(name) = file.names().find(|name| !known.contains(*name)) {
                return Err(file.bad(name, "is not a tensor of this model"));
            }
        }
        Ok(Self { text, vision, held })
    }

    pub fn names(&self) -> impl Iterator<Item = &String> {
        self.held.keys()
    }

    fn find(&self, published: &str) -> Result<(&Gguf, &Held)> {
        let missing = || self.text.bad(published, "is not a tensor of this model");
        let held = self.held.get(published).ok_or_else(missing)?;
        Ok((self.vision.as_ref().filter(|_| held.in_vision).unwrap_or(&self.text), held))
    }

    pub fn shape(&self, published: &str) -> Result<&[usize]> {
        Ok(&self.find(published)?.1.shape)
    }

    /// How a tensor is stored.
    pub fn ty(&self, published: &str) -> Result<GgmlType> {
        let (file, held) = self.find(published)?;
        let info = file.tensor(&held.name).ok_or_else(|| file.bad(&held.name, "is not in the file"))?;
        Ok(info.ty)
    }

    /// Whether a tensor is one of a file.
    pub fn is_whole(&self, published: &str) -> bool {
        self.find(published).is_ok_and(|(_, held)| held.frames == 1)
    }

    /// Values of such a tensor, as [`Gguf::read_into`].
    pub fn read_into<T: Number>(&self, published: &str, first: usize, values: &mut [T]) -> Result<()> {
        let (file, held) = self.find(published)?;
        file.read_into(&held.name, first, values)
    }

    /// A tensor's blocks, as [`Gguf::read_bytes`].
    pub fn read_bytes(&self, published: &str, bytes: &mut [u8]) -> Result<()> {
        let (file, held) = self.find(published)?;
        file.read_bytes(&held.name, bytes)
    }

    /// All values of a tensor, as [`Gguf::read`].
    pub fn read<T: Number>(&self, published: &str) -> Result<Vec<T>> {
        let (file, held) = self.find(published)?;
        if held.frames == 1 {
            return file.read(&held.name);
        }
        // Each frame is [rows, channels, height, width]; the result is [rows, channels, frames, height, width].
        let names = (0..held.frames).map(|frame| frame_name(&held.name, frame));
        let frames = names.map(|name| file.read(&name)).collect::<Result<Vec<Vec<T>>>>()?;
        let patch = held.shape[3..].iter().product::<usize>();
        let pieces = (0..frames[0].len() / patch).flat_map(|at| frames.iter().map(move |frame| (frame, at)));
        Ok(pieces.flat_map(|(frame, at)| &frame[at * patch..][..patch]).copied().collect())
    }
}

/// The name of one frame of a tensor that is split by frames.
pub(super) fn frame_name(name: &str, frame: usize) -> String {
    if frame == 0 { name.to_owned() } else { format!("{name}.{frame}") }
}
