//! The sizes of the published models of the family.

use super::failure::Failure;
use qwen3_vl::config::{Config, PUBLISHED_PIXELS};
use serde_json::{Value, json};
use std::path::Path;

/// A published model.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(super) enum Size {
    /// Qwen3-VL-2B-Instruct: 28 layers of width 2048, 24 vision blocks of width 1024.
    #[value(name = "2b")]
    TwoB,
    /// Qwen3-VL-4B-Instruct: 36 layers of width 2560, 24 vision blocks of width 1024.
    #[value(name = "4b")]
    FourB,
    /// Qwen3-VL-8B-Instruct: 36 layers of width 4096, 27 vision blocks of width 1152.
    #[value(name = "8b")]
    EightB,
    /// Qwen3-VL-32B-Instruct: 64 layers of width 5120, 27 vision blocks of width 1152.
    #[value(name = "32b")]
    ThirtyTwoB,
    /// Qwen3-VL-30B-A3B-Instruct: 48 layers of width 2048 with 128 experts, 27 vision blocks of width 1152.
    #[value(name = "30b-a3b")]
    ThirtyBA3B,
    /// Qwen3-VL-235B-A22B-Instruct: 94 layers of width 4096 with 128 experts, 27 vision blocks of width 1152.
    #[value(name = "235b-a22b")]
    TwoHundredThirtyFiveBA22B,
}

impl Size {
    /// The fields of the published model's `config.json`.
    pub fn fields(self) -> Value {
        let (hidden, layers, heads, mlp, tied) = match self {
            Self::TwoB => (2048, 28, 16, 6144, true),
            Self::FourB => (2560, 36, 32, 9728, true),
            Self::EightB => (4096, 36, 32, 12288, false),
            Self::ThirtyTwoB => (5120, 64, 64, 25600, false),
            Self::ThirtyBA3B => (2048, 48, 32, 6144, false),
            Self::TwoHundredThirtyFiveBA22B => (4096, 94, 64, 12288, false),
        };
        let (depth, vision_hidden, vision_mlp, deepstack) = match self {
            Self::TwoB | Self::FourB => (24, 1024, 4096, [5, 11, 17]),
            _ => (27, 1152, 4304, [8, 16, 24]),
        };
        let kv_heads = if self.expert_width().is_some() { 4 } else { 8 };
        let mut fields = json!({
            "tie_word_embeddings": tied,
            "text_config": {
                "hidden_size": hidden, "intermediate_size": mlp, "num_hidden_layers": layers,
                "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": 128, "vocab_size": 151936,
                "rms_norm_eps": 1e-6, "rope_theta": 5e6, "max_position_embeddings": 262144,
                "rope_scaling": {"mrope_section": [24, 20, 20]}, "tie_word_embeddings": tied,
            },
            "vision_config": {
                "depth": depth, "hidden_size": vision_hidden, "num_heads": 16, "intermediate_size": vision_mlp,
                "patch_size": 16, "temporal_patch_size": 2, "spatial_merge_size": 2,
                "num_position_embeddings": 2304, "deepstack_visual_indexes": deepstack, "out_hidden_size": hidden,
            },
        });
        if let Some(width) = self.expert_width() {
            fields["model_type"] = "qwen3_vl_moe".into();
            let text = &mut fields["text_config"];
            text["num_experts"] = 128.into();
            text["num_experts_per_tok"] = 8.into();
            text["moe_intermediate_size"] = width.into();
            text["decoder_sparse_step"] = 1.into();
            text["mlp_only_layers"] = json!([]);
        }
        fields
    }

    /// Width of an expert's MLP, in a mixture.
    const fn expert_width(self) -> Option<usize> {
        match self {
            Self::ThirtyBA3B => Some(768),
            Self::TwoHundredThirtyFiveBA22B => Some(1536),
            _ => None,
        }
    }

    pub fn preprocessor(self) -> Value {
        let [min, max] = PUBLISHED_PIXELS;
        json!({"size": {"shortest_edge": min, "longest_edge": max}})
    }

    /// Its published name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::TwoB => "2B",
            Self::FourB => "4B",
            Self::EightB => "8B",
            Self::ThirtyTwoB => "32B",
            Self::ThirtyBA3B => "30B-A3B",
            Self::TwoHundredThirtyFiveBA22B => "235B-A22B",
        }
    }

    /// The whole configuration, with the published token ids.
    pub fn config(self) -> Result<Config, Failure> {
        let mut fields = self.fields();
        let ids = [("image", 151655), ("video", 151656), ("vision_start", 151652), ("vision_end", 151653)];
        if self.expert_width().is_none() {
            fields["model_type"] = "qwen3_vl".into();
        }
        for (token, id) in ids {
            fields[format!("{token}_token_id")] = id.into();
        }
        Ok(qwen3_vl::config::parse(Path::new("config.json"), fields.to_string().as_bytes())?)
    }
}
