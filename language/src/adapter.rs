//! Low-rank adapters in PEFT's files: W + scale · B·A (Hu et al. 2021, "LoRA").
//!
//! A folder has `adapter_config.json` and `adapter_model.safetensors`, whose tensors are called
//! `base_model.model.‹module›.lora_A.weight` [rank, in] and `….lora_B.weight` [out, rank].

use super::json::{self, Fields, MAX_CONFIG, bad};
use super::placement::SplitMode;
use super::safetensors::SafeTensors;
use pascaline::Result;
use rayon::prelude::*;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

/// The file with the tensors.
pub const ADAPTER_TENSORS: &str = "adapter_model.safetensors";
/// The file with rank and alpha.
pub const ADAPTER_CONFIG: &str = "adapter_config.json";
/// The prefix of every tensor's name in the file.
pub const ADAPTER_PREFIX: &str = "base_model.model.";
/// The largest `lora_alpha`; ranks are at most 2¹⁶, and alphas are about as large.
const MAX_ALPHA: f64 = (1u32 << 24) as f64;

/// A low-rank adapter: changes to some of the model's matrices.
#[derive(Debug)]
pub struct Adapter {
    rank: usize,
    alpha: f32,
    /// By the module's name.
    maps: BTreeMap<String, LowRank>,
}

/// The change of one matrix, without the factor alpha / rank.
#[derive(Clone, Debug)]
pub struct LowRank {
    /// A: [rank, in]
    pub a: Vec<f32>,
    /// B: [out, rank]
    pub b: Vec<f32>,
    /// [out, in]
    pub shape: [usize; 2],
}

impl Adapter {
    /// Reads a folder that PEFT or `pascaline finetune` has written.
    ///
    /// # Errors
    /// [`Error::Checkpoint`](pascaline::Error::Checkpoint) with the file and what in it is wrong or not supported.
    pub fn load(dir: &Path) -> Result<Self> {
        let file = dir.join(ADAPTER_CONFIG);
        let map = json::read_object(&file, MAX_CONFIG)?;
        let fields = Fields::new(&file, "", &map);
        if let Some(other) = fields.str("peft_type")?.filter(|kind| *kind != "LORA") {
            return Err(fields.bad("peft_type", format!("{other} is not LORA")));
        }
        for name in ["use_dora", "use_rslora", "fan_in_fan_out", "lora_bias"] {
            if fields.bool(name)? == Some(true) {
                return Err(fields.bad(name, "is not supported"));
            }
        }
        if let Some(other) = fields.str("bias")?.filter(|bias| *bias != "none") {
            return Err(fields.bad("bias", format!("{other} is not supported, only none")));
        }
        for name in ["rank_pattern", "alpha_pattern"] {
            if fields.get(name).and_then(|value| value.as_object()).is_some_and(|map| !map.is_empty()) {
                return Err(fields.bad(name, "is not supported"));
            }
        }
        let rank = fields.required("r", fields.u64("r")?)?;
        let rank = usize::try_from(rank).ok().filter(|rank| (1..=1 << 16).contains(rank));
        let rank = fields.required("r", rank)?;
        let alpha = fields.required("lora_alpha", fields.f64("lora_alpha")?)?;
        if alpha.abs() > MAX_ALPHA {
            return Err(fields.bad("lora_alpha", format!("{alpha} is larger than {MAX_ALPHA}")));
        }
        let alpha = alpha as f32;
        let tensors = SafeTensors::open(dir.join(ADAPTER_TENSORS))?;
        let mut maps = BTreeMap::new();
        for (name, entry) in tensors.entries() {
            let wrong = |reason: String| bad(tensors.path(), Some(name), reason);
            let inner = name.strip_prefix(ADAPTER_PREFIX).unwrap_or(name);
            let Some(module) = inner.strip_suffix(".lora_A.weight") else {
                match inner.strip_suffix(".lora_B.weight") {
                    Some(_) => continue,
                    None => return Err(wrong("is neither lora_A nor lora_B".into())),
                }
            };
            let other = name.replace(".lora_A.weight", ".lora_B.weight");
            let b = tensors.entries().get(&other).ok_or_else(|| wrong(format!("has no matching {other}")))?;
            let (&[own_rank, k], &[n, other_rank]) = (&entry.shape[..], &b.shape[..]) else {
                return Err(wrong("is no matrix, or its B is none".into()));
            };
            if own_rank != rank || other_rank != rank {
                return Err(wrong(format!(
                    "is of rank {own_rank} and {other_rank}, the configuration says {rank}"
                )));
            }
            let low = LowRank { a: tensors.read_f32(name)?, b: tensors.read_f32(&other)?, shape: [n, k] };
            maps.insert(module.to_owned(), low);
        }
        let pairs = tensors.entries().len();
        if maps.is_empty() || 2 * maps.len() != pairs {
            return Err(bad(
                tensors.path(),
                None,
                format!("{} pairs of A and B in {pairs} tensors", maps.len()),
            ));
        }
        Ok(Self { rank, alpha, maps })
    }

    /// The rank, the same for all matrices.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The numerator of the factor alpha / rank.
    pub fn alpha(&self) -> f32 {
        self.alpha
    }

    /// The changes, by module name.
    pub fn maps(&self) -> &BTreeMap<String, LowRank> {
        &self.maps
    }

    /// Whether the adapter changes a tensor whose name begins so.
    pub(crate) fn changes_below(&self, prefix: &str) -> bool {
        self.maps.keys().any(|module| module.starts_with(prefix))
    }

    /// Whether the adapter changes the tensor of this published name.
    pub(crate) fn changes(&self, name: &str) -> bool {
        name.strip_suffix(".weight").is_some_and(|module| self.maps.contains_key(module))
    }

    /// The changes of several matrices, each below the one before, as one: A and the factor times B, with the shapes' dimensions. Of each
    /// matrix the rows and columns that `ranges` names are taken. `None` if it changes none of them.
    ///
    /// A has the rows of each that is changed below those of the one before. B has its columns beside theirs, and zeros elsewhere.
    pub(crate) fn stacked(
        &self,
        names: &[impl AsRef<str>],
        ranges: &[[Range<usize>; 2]],
    ) -> Option<[(Vec<f32>, [usize; 2]); 2]> {
        let lows: Vec<Option<&LowRank>> =
            names.iter().map(|name| self.maps.get(name.as_ref().strip_suffix(".weight")?)).collect();
        let rank = self.rank * lows.iter().flatten().count();
        let width = ranges.first()?[1].len();
        let (factor, mut column) = (self.alpha / self.rank as f32, 0);
        let (mut a, mut b) = (Vec::with_capacity(rank * width), Vec::new());
        for (low, [rows, columns]) in lows.into_iter().zip(ranges) {
            let start = b.len();
            b.resize(start + rows.len() * rank, 0.0);
            let Some(low) = low else { continue };
            a.extend(low.a.chunks_exact(low.shape[1].max(1)).flat_map(|row| &row[columns.clone()]));
            let own = low.b.chunks_exact(self.rank).skip(rows.start);
            for (to, from) in b[start..].chunks_exact_mut(rank).zip(own) {
                to[column..column + self.rank].iter_mut().zip(from).for_each(|(to, b)| *to = factor * b);
            }
            column += self.rank;
        }
        let n = ranges.iter().map(|[rows, _]| rows.len()).sum();
        (rank > 0).then_some([(a, [rank, width]), (b, [n, rank])])
    }

    /// Adds the change to the matrix [out, in] of this published name, if the adapter has one for it.
    pub(crate) fn add_to(&self, name: &str, values: &mut [f32]) {
        let Some(LowRank { a, b, shape: [_, k] }) =
            name.strip_suffix(".weight").and_then(|m| self.maps.get(m))
        else {
            return;
        };
        let (factor, rank) = (self.alpha / self.rank as f32, self.rank);
        values.par_chunks_exact_mut((*k).max(1)).zip(b.par_chunks_exact(rank)).for_each(|(row, b)| {
            for (b, a) in b.iter().zip(a.chunks_exact((*k).max(1))) {
                let b = b * factor;
                row.iter_mut().zip(a).for_each(|(value, a)| *value += b * a);
            }
        });
    }
}

/// Bytes that adapters beside matrices take on devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdapterBytes {
    /// Their tensors beside the matrices of each layer.
    pub layers: Vec<usize>,
    /// Those beside the embedding and the output projection.
    pub ends: usize,
    /// Those beside the vision tower's matrices, and what a tower takes that shares no memory with the model's own.
    pub vision: usize,
    /// What a pass of a prompt takes with them on each device: the inputs and outputs of the widest changed matrix.
    pub pass: usize,
}

impl AdapterBytes {
    /// On one device.
    pub fn on_one(&self) -> usize {
        self.layers.iter().sum::<usize>() + self.ends + self.vision + self.pass
    }

    /// On each of several devices with so many layers each, and the tower on number `vision`. In a row split each device is counted with
    /// whole tensors, of which it has a part.
    pub fn on_each(&self, mode: SplitMode, layers: &[usize], vision: usize) -> Vec<usize> {
        let (all, mut first) = (self.layers.iter().sum::<usize>(), 0);
        let on = |(index, &count): (usize, &usize)| {
            let tower = if index == vision { self.vision } else { 0 };
            if mode == SplitMode::Row {
                return all + self.ends + self.pass + tower;
            }
            let own: usize = self.layers.iter().skip(first).take(count).sum();
            first += count;
            let ends = if index == 0 { self.ends } else { 0 };
            let parts = own + ends + tower;
            if parts > 0 { parts + self.pass } else { 0 }
        };
        layers.iter().enumerate().map(on).collect()
    }
}
