//! Mixes of types: how each tensor of a text model is stored. The rules and their numbers are those of llama.cpp's
//! `llama-quantize` (source: its published `llama-quant.cpp`), so that files have the same size and quality.

use crate::gguf::{DeviceStorage, GgmlType};
use crate::options::Storage;
use crate::seam::{Config, VISION};
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
    /// Experts in MXFP4, all else in Q8_0.
    MXFP4_MOE,
    Q3_K_L,
    Q3_K_M,
    Q3_K_S,
    Q2_K,
}

impl Mix {
    /// Every mix, the largest first.
    pub const ALL: [Self; 13] = [
        Self::F16,
        Self::Q8_0,
        Self::Q6_K,
        Self::Q5_K_M,
        Self::Q4_K_M,
        Self::IQ4_NL,
        Self::IQ4_XS,
        Self::Q4_0,
        Self::MXFP4_MOE,
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
            Self::MXFP4_MOE => ("MXFP4_MOE", 38, GgmlType::Q8_0),
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

    /// `general.file_type` in GGUF files.
    pub const fn file_type(self) -> u32 {
        self.row().1
    }

    /// The type of a text model's matrix, by its published name; norms are in f32 in every mix.
    pub fn type_for(self, published: &str, shape: &[usize], config: &Config) -> GgmlType {
        match *shape {
            _ if published.ends_with("mlp.gate.weight") => GgmlType::F32, // the router
            [_, columns] | [_, _, columns] => fitting(self.wanted(published, config), columns),
            _ => GgmlType::F32,
        }
    }

    /// How the tensors of a model, by their published names, are stored on a device from files of this mix; the vision file
    /// is in F16.
    pub fn storage(self, config: &Config) -> BTreeMap<String, Storage> {
        let float = Storage::Float(DType::F16);
        let of = |name: &str, shape: &[usize]| match DeviceStorage::from(self.type_for(name, shape, config)) {
            _ if name.starts_with(VISION) => float,
            DeviceStorage::Plain => float,
            DeviceStorage::AsIs(format) => Storage::Stored(format),
            DeviceStorage::Converted(format) => Storage::Quantized(format),
        };
        config.tensors().into_iter().map(|(name, shape)| (name.clone(), of(&name, &shape))).collect()
    }

    fn wanted(self, published: &str, config: &Config) -> GgmlType {
        let usual = self.row().2;
        if published == config.output() {
            return if matches!(self, Self::F16 | Self::Q8_0 | Self::MXFP4_MOE) {
                usual
            } else {
                GgmlType::Q6_K
            };
        }
        let layers = config.text.num_hidden_layers;
        let layer = published.split('.').find_map(|part| part.parse::<usize>().ok()).unwrap_or(0);
        let (values, down) = (published.contains("v_proj"), published.contains("down_proj"));
        let out = published.contains("o_proj");
        // The first and last eighth of the layers, and every third between, matter most.
        let eighth = layers / 8;
        let matters = layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2;
        let sharing = config.text.num_attention_heads / config.text.num_key_value_heads;
        // With eight experts attention is so small a part that it takes more bits.
        let eight = config.text.experts.as_ref().is_some_and(|experts| experts.count == 8);
        match self {
            Self::F16 | Self::Q8_0 => usual,
            Self::MXFP4_MOE if published.contains("experts") => GgmlType::MXFP4,
            Self::MXFP4_MOE => usual,
            _ if eight && (values || published.contains("k_proj")) => GgmlType::Q8_0,
            Self::Q2_K | Self::Q3_K_S | Self::Q3_K_M | Self::IQ4_NL | Self::IQ4_XS | Self::Q4_K_M
                if eight && out =>
            {
                GgmlType::Q5_K
            }
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
}
