//! Mixes of types: how each tensor of a text model is stored. The rules and their numbers are those of llama.cpp's
//! `llama-quantize` (source: its published `llama-quant.cpp`), so that files have the same size and quality.

use super::{DeviceStorage, GgmlType};
use crate::config::Config;
use crate::footprint::Storage;
use crate::weights::expected;
use pascaline::DType;
use std::collections::BTreeMap;

/// A mix, by the name that GGUF files use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, non_camel_case_types)] // the names say all there is
pub enum Mix {
    F16,
    Q8_0,
    Q6_K,
    Q5_K_M,
    Q4_K_M,
    IQ4_NL,
    IQ4_XS,
    Q4_0,
    Q3_K_L,
    Q3_K_M,
    Q3_K_S,
    Q2_K,
}

impl Mix {
    /// Every mix, the largest first.
    pub const ALL: [Self; 12] = [
        Self::F16,
        Self::Q8_0,
        Self::Q6_K,
        Self::Q5_K_M,
        Self::Q4_K_M,
        Self::IQ4_NL,
        Self::IQ4_XS,
        Self::Q4_0,
        Self::Q3_K_L,
        Self::Q3_K_M,
        Self::Q3_K_S,
        Self::Q2_K,
    ];

    /// Its name, its number in `general.file_type`, and the type of most matrices.
    const fn row(self) -> (&'static str, u32, GgmlType) {
        match self {
            Self::F16 => ("F16", 1, GgmlType::F16),
            Self::Q8_0 => ("Q8_0", 7, GgmlType::Q8_0),
            Self::Q6_K => ("Q6_K", 18, GgmlType::Q6_K),
            Self::Q5_K_M => ("Q5_K_M", 17, GgmlType::Q5_K),
            Self::Q4_K_M => ("Q4_K_M", 15, GgmlType::Q4_K),
            Self::IQ4_NL => ("IQ4_NL", 25, GgmlType::IQ4_NL),
            Self::IQ4_XS => ("IQ4_XS", 30, GgmlType::IQ4_XS),
            Self::Q4_0 => ("Q4_0", 2, GgmlType::Q4_0),
            Self::Q3_K_L => ("Q3_K_L", 13, GgmlType::Q3_K),
            Self::Q3_K_M => ("Q3_K_M", 12, GgmlType::Q3_K),
            Self::Q3_K_S => ("Q3_K_S", 11, GgmlType::Q3_K),
            Self::Q2_K => ("Q2_K", 10, GgmlType::Q2_K),
        }
    }

    /// Its name.
    pub const fn name(self) -> &'static str {
        self.row().0
    }

    pub(super) const fn file_type(self) -> u32 {
        self.row().1
    }

    /// The type of a text model's matrix, by its published name; norms are in f32 in every mix.
    pub(super) fn type_for(self, published: &str, shape: &[usize], config: &Config) -> GgmlType {
        let &[_, columns] = shape else { return GgmlType::F32 };
        fitting(self.wanted(published, config), columns)
    }

    /// How the tensors of a model, by their published names, are stored on a device from files of this mix; the vision file
    /// is in F16.
    pub fn storage(self, config: &Config) -> BTreeMap<String, Storage> {
        let float = Storage::Float(DType::F16);
        let of = |name: &str, shape: &[usize]| match DeviceStorage::from(self.type_for(name, shape, config)) {
            _ if name.starts_with("model.visual.") => float,
            DeviceStorage::Plain => float,
            DeviceStorage::AsIs(format) => Storage::Stored(format),
            DeviceStorage::Converted(format) => Storage::Quantized(format),
        };
        expected(config).into_iter().map(|(name, shape)| (name.clone(), of(&name, &shape))).collect()
    }

    fn wanted(self, published: &str, config: &Config) -> GgmlType {
        let usual = self.row().2;
        let is_output = match config.tie_word_embeddings {
            true => published == crate::weights::EMBEDDING,
            false => published == crate::weights::LM_HEAD,
        };
        if is_output {
            return if matches!(self, Self::F16 | Self::Q8_0) { usual } else { GgmlType::Q6_K };
        }
        let layers = config.text.num_hidden_layers;
        let layer = published.split('.').find_map(|part| part.parse::<usize>().ok()).unwrap_or(0);
        let (values, down) = (published.contains("v_proj"), published.contains("down_proj"));
        let out = published.contains("o_proj");
        // The first and last eighth of the layers, and every third between, matter most.
        let eighth = layers / 8;
        let matters = layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2;
        let sharing = config.text.num_attention_heads / config.text.num_key_value_heads;
        match self {
            Self::Q4_K_M | Self::Q5_K_M if (values || down) && matters => GgmlType::Q6_K,
            Self::IQ4_NL | Self::IQ4_XS if values && sharing >= 4 => GgmlType::Q5_K,
            Self::IQ4_NL | Self::IQ4_XS if down && layer < eighth => GgmlType::Q5_K,
            Self::Q3_K_L if values || down || out => GgmlType::Q5_K,
            Self::Q3_K_M if values && layer < 2 || down && layer < layers / 16 => GgmlType::Q5_K,
            Self::Q3_K_M if values || down || out => GgmlType::Q4_K,
            Self::Q2_K if values && sharing >= 4 => GgmlType::Q4_K,
            Self::Q2_K if values || down || out => GgmlType::Q3_K,
            _ => usual,
        }
    }
}

/// The type, or one with smaller blocks if rows are not whole blocks of it.
fn fitting(ty: GgmlType, columns: usize) -> GgmlType {
    let few_bits = 8 * ty.block_bytes() <= 9 * ty.block() / 2; // at most 4.5
    let smaller = if few_bits { GgmlType::IQ4_NL } else { GgmlType::Q8_0 };
    let choices = [ty, smaller, GgmlType::F16];
    choices.into_iter().find(|ty| columns.is_multiple_of(ty.block())).unwrap_or(GgmlType::F16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_are_no_whole_blocks_get_smaller_ones() {
        assert_eq!(fitting(GgmlType::Q4_K, 512), GgmlType::Q4_K);
        assert_eq!(fitting(GgmlType::Q4_K, 4304 * 2), GgmlType::IQ4_NL);
        assert_eq!(fitting(GgmlType::Q6_K, 96), GgmlType::Q8_0);
        assert_eq!(fitting(GgmlType::Q8_0, 90), GgmlType::F16);
    }

    /// Of 36 layers, with four query heads for each key head, as in the 8B model: by hand from llama.cpp's rules.
    #[test]
    fn layers_that_matter_get_larger_types() {
        let tiny = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/qwen3-vl/tiny");
        let mut config = Config::load(&tiny).unwrap();
        config.text.num_hidden_layers = 36;
        let mut heads = |of_keys: usize| {
            (config.text.num_attention_heads, config.text.num_key_value_heads) = (4 * of_keys, of_keys);
            let config = config.clone();
            move |mix: Mix, layer: usize, name: &str| {
                mix.type_for(
                    &format!("model.language_model.layers.{layer}.{name}.weight"),
                    &[512, 512],
                    &config,
                )
            }
        };
        let of = heads(8);
        let of_mix = |mix: Mix, name: &str, ty: GgmlType| -> Vec<usize> {
            (0..36).filter(|&layer| of(mix, layer, name) == ty).collect()
        };
        let matter = [0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 30, 31, 32, 33, 34, 35];
        assert_eq!(of_mix(Mix::Q4_K_M, "mlp.down_proj", GgmlType::Q6_K), matter);
        assert_eq!(of_mix(Mix::Q4_K_M, "self_attn.v_proj", GgmlType::Q6_K), matter);
        assert!(of_mix(Mix::Q4_K_M, "mlp.up_proj", GgmlType::Q6_K).is_empty());
        assert_eq!(of_mix(Mix::IQ4_XS, "mlp.down_proj", GgmlType::Q5_K), [0, 1, 2, 3]);
        assert_eq!(of_mix(Mix::IQ4_XS, "self_attn.v_proj", GgmlType::Q5_K).len(), 36);
        assert_eq!(of_mix(Mix::Q3_K_M, "self_attn.v_proj", GgmlType::Q5_K), [0, 1]);
        assert_eq!(of_mix(Mix::Q3_K_M, "mlp.down_proj", GgmlType::Q5_K), [0, 1]);
        for (mix, usual, [values, down, out]) in [
            (Mix::Q3_K_L, GgmlType::Q3_K, [GgmlType::Q5_K; 3]),
            (Mix::Q3_K_M, GgmlType::Q3_K, [GgmlType::Q4_K; 3]),
            (Mix::Q3_K_S, GgmlType::Q3_K, [GgmlType::Q3_K; 3]),
            (Mix::Q2_K, GgmlType::Q2_K, [GgmlType::Q4_K, GgmlType::Q3_K, GgmlType::Q3_K]),
        ] {
            for (name, ty) in [
                ("self_attn.q_proj", usual),
                ("self_attn.k_proj", usual),
                ("self_attn.v_proj", values),
                ("self_attn.o_proj", out),
                ("mlp.gate_proj", usual),
                ("mlp.up_proj", usual),
                ("mlp.down_proj", down),
            ] {
                assert_eq!(of(mix, 20, name), ty, "{mix:?} {name}");
            }
        }
    }

    #[test]
    fn the_vision_tower_is_in_f16_and_the_output_in_more_bits() {
        let tiny = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/qwen3-vl/tiny");
        let mut config = Config::load(&tiny).unwrap();
        config.tie_word_embeddings = false;
        let of = |name: &str| Mix::Q4_0.type_for(name, &[512, 512], &config);
        assert_eq!(
            [of(crate::weights::LM_HEAD), of(crate::weights::EMBEDDING)],
            [GgmlType::Q6_K, GgmlType::Q4_0]
        );
        let storage = Mix::Q8_0.storage(&config);
        let vision = |name: &str| name.starts_with("model.visual.");
        assert!(storage.iter().all(|(name, kept)| !vision(name) || *kept == Storage::Float(DType::F16)));
        let text = storage["model.language_model.layers.0.mlp.up_proj.weight"];
        assert_eq!(text, Storage::Stored(pascaline::quant::Format::Q8_0));
    }
}
