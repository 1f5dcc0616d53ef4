//! Qwen3-VL as a model of the language crate.

use super::config::{
    Config, PreprocessorConfig, Seeing, VisionConfig, experts_config, only, positive, text_config,
};
use super::gguf;
use super::names;
use super::pictures::Pictures;
use super::vision::VisionTower;
use language::gguf::{Field, Gguf};
use language::json::{Fields, bad};
use language::media::VisionSizes;
use language::seam::{self, Model, Progress, Tensors, Tower, Vision, VisionFiles, VisionScores};
use pascaline::{Device, Result};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Qwen3-VL.
#[derive(Debug)]
pub struct Qwen3VlFamily {
    model_type: &'static str,
    architecture: &'static str,
    has_experts: bool,
}

/// Dense: 2B, 4B, 8B, 32B.
pub static DENSE: Qwen3VlFamily =
    Qwen3VlFamily { model_type: "qwen3_vl", architecture: "qwen3vl", has_experts: false };

/// Mixtures of experts: 30B-A3B, 235B-A22B.
pub static MIXTURE: Qwen3VlFamily =
    Qwen3VlFamily { model_type: "qwen3_vl_moe", architecture: "qwen3vlmoe", has_experts: true };

impl Model for Qwen3VlFamily {
    fn model_type(&self) -> &'static str {
        self.model_type
    }

    fn architecture(&self) -> &'static str {
        self.architecture
    }

    fn prefix(&self) -> &'static str {
        "model.language_model."
    }

    fn config(&'static self, top: Fields) -> Result<Config> {
        let text = top.required("text_config", top.object("text_config", "text_config.")?)?;
        let tie_word_embeddings = match top.bool("tie_word_embeddings")? {
            Some(tied) => tied,
            None => text.bool("tie_word_embeddings")?.unwrap_or(false),
        };
        // `rope_parameters` is the newer spelling of `rope_theta` + `rope_scaling`.
        let parameters = text.object("rope_parameters", "text_config.rope_parameters.")?;
        let scaling = text.object("rope_scaling", "text_config.rope_scaling.")?;
        let Some(rope) = parameters.or(scaling) else {
            return Err(text.bad("rope_scaling", "missing, and so is rope_parameters"));
        };
        only(rope, "rope_type", "default")?;
        if rope.bool("mrope_interleaved")? == Some(false) {
            return Err(rope.bad("mrope_interleaved", "false is not supported"));
        }
        let theta = match rope.f64("rope_theta")? {
            Some(theta) => positive(rope, "rope_theta", theta)?,
            None => positive(text, "rope_theta", text.required("rope_theta", text.f64("rope_theta")?)?)?,
        };
        let sections = rope.required("mrope_section", rope.sizes("mrope_section")?)?;
        let Ok(sections) = <[usize; 3]>::try_from(sections) else {
            return Err(rope.bad("mrope_section", "needs three numbers: time, height, width"));
        };
        let experts = self.has_experts.then(|| experts_config(text, true)).transpose()?;
        let text = text_config(text, theta, Some((rope, sections)), experts)?;
        let vision = Seeing::read(top, &text)?;
        Ok(Config { model: self, text, tie_word_embeddings, vision: Some(Arc::new(vision)), fp8_block: None })
    }

    fn gguf_config(&'static self, text: &Gguf, vision: Option<&Gguf>) -> Result<Config> {
        let metadata = text.metadata();
        let missing = || bad(text.path(), Some("mmproj"), "the model has no vision file");
        let file = vision.ok_or_else(missing)?;
        gguf::check_vision(file)?;
        let config =
            gguf::text_config(text, self.architecture, |_| gguf::sections(metadata, self.architecture))?;
        let seeing = gguf::seeing(text, file, &config, self.architecture)?;
        let tie_word_embeddings = text.tensor("output.weight").is_none();
        let config = Config {
            model: self,
            text: config,
            tie_word_embeddings,
            vision: Some(Arc::new(seeing)),
            fp8_block: None,
        };
        gguf::refuse_missing(&config, text, vision)?;
        Ok(config)
    }

    fn vision_file(&self, text: &Gguf) -> Result<Option<Gguf>> {
        gguf::vision_file(text, self.architecture).map(Some)
    }

    fn gguf_keys(&self, config: &Config) -> Vec<(&'static str, Field)> {
        let sections = config.text.mrope_section.map(|section| section as i32);
        let deepstack =
            super::config::seeing(config).map_or(0, |seeing| seeing.tower.deepstack_visual_indexes.len());
        vec![
            ("rope.dimension_sections", Field::I32s([&sections[..], &[0]].concat())),
            ("n_deepstack_layers", Field::U32(deepstack as u32)),
        ]
    }
}

impl VisionConfig {
    /// The sizes that the language crate needs of them.
    pub fn sizes(&self) -> VisionSizes {
        VisionSizes {
            depth: self.depth,
            hidden_size: self.hidden_size,
            heads: self.num_heads,
            patch_len: self.patch_len(),
            patch_side: self.patch_size,
            merge: self.spatial_merge_size,
        }
    }
}

impl Vision for Seeing {
    fn sizes(&self) -> VisionSizes {
        self.tower.sizes()
    }

    fn tensors(&self) -> BTreeMap<String, Vec<usize>> {
        names::tensors(&self.tower)
    }

    fn tensor_count(&self) -> usize {
        names::count(&self.tower)
    }

    fn gguf_name(&self, published: &str) -> Option<String> {
        names::gguf_name(published, &self.tower)
    }

    fn special_tokens(&self) -> Vec<(&'static str, u32)> {
        self.tokens().to_vec()
    }

    fn pictures(&self, files: VisionFiles) -> Result<Box<dyn seam::Pictures>> {
        let (images, videos) = match files {
            VisionFiles::Directory(dir) => {
                let images = PreprocessorConfig::load(dir, &self.tower)?;
                let videos = PreprocessorConfig::load_video(dir, &self.tower)?;
                let videos = videos.unwrap_or_else(|| images.for_video());
                (images, videos)
            }
            VisionFiles::Gguf(file) => {
                let images = gguf::preprocessor(file, &self.tower)?;
                let videos = gguf::video_preprocessor(file, &self.tower, &images)?;
                (images, videos)
            }
        };
        Ok(Box::new(Pictures { seeing: self.clone(), images, videos }))
    }

    fn tower(
        &self,
        tensors: &mut dyn Tensors,
        device: &Device,
        passing: Option<&Device>,
        scores: VisionScores,
        done: &mut dyn FnMut(Progress),
    ) -> Result<Box<dyn Tower>> {
        Ok(Box::new(VisionTower::load(tensors, &self.tower, device, passing, scores, done)?))
    }
}
