//! Messages, pictures and videos → the model's inputs.

use super::chat::{ChatTemplate, Media, Message, Part};
use super::config::GenerationConfig;
use super::control::{ControlTokens, StandIns};
use super::gguf::Gguf;
use super::gguf_model;
use super::media::{ImagePlan, Patches, PixelLimits, Positions, Visual};
use super::picture::{Picture, PictureHeader};
use super::reasoning;
use super::seam::{Config, Pictures, Vision, VisionFiles};
use super::tokenizer::Tokenizer;
use pascaline::{Error, Result};
use serde_json::Value;
use std::path::Path;

/// A checkpoint's configuration, tokenizer, chat template and preprocessing: all that needs no weights.
pub struct Processor {
    /// The model's configuration.
    pub config: Config,
    /// How the checkpoint's authors generate.
    pub generation: GenerationConfig,
    /// How pictures are prepared; `None` for a model of text alone.
    pub pictures: Option<Box<dyn Pictures>>,
    /// Text ↔ tokens.
    pub tokenizer: Tokenizer,
    template: ChatTemplate,
}

/// A prepared prompt: the model's inputs.
#[derive(Clone, Debug, PartialEq)]
pub struct Prompt {
    /// The tokens, with the pad tokens of images and videos.
    pub ids: Vec<u32>,
    /// The tokens' positions.
    pub positions: Positions,
    /// The patches of each image and video, in order.
    pub patches: Vec<Patches>,
}

impl Prompt {
    /// The prompt that goes on after the first tokens of its answer.
    ///
    /// # Errors
    /// [`Error::Prompt`] if their positions are beyond 32 bits.
    pub fn continued(&self, answer: &[u32]) -> Result<Self> {
        let mut prompt = self.clone();
        let len = self.ids.len();
        for (at, &id) in (len..).zip(answer) {
            let position = i64::try_from(at).ok().and_then(|at| at.checked_add(self.positions.rope_delta));
            let position = position.and_then(|position| u32::try_from(position).ok());
            let position =
                position.ok_or_else(|| Error::Prompt { reason: format!("token {at} has no position") })?;
            prompt.ids.push(id);
            prompt.positions.axes.push([position; 3]);
        }
        Ok(prompt)
    }
}

impl Processor {
    pub(crate) fn load_directory(dir: &Path, config: Config) -> Result<Self> {
        let pictures = |vision: &dyn Vision| vision.pictures(VisionFiles::Directory(dir));
        Ok(Self {
            generation: GenerationConfig::load(dir, &config.text)?,
            pictures: config.vision.as_deref().map(pictures).transpose()?,
            tokenizer: Tokenizer::load(dir, &config)?,
            template: ChatTemplate::load(dir)?,
            config,
        })
    }

    pub(crate) fn load_gguf(text: &Gguf, vision: Option<&Gguf>, config: Config) -> Result<Self> {
        let metadata = text.metadata();
        let template = "tokenizer.chat_template";
        let source = metadata.required(template, metadata.str(template)?)?;
        let pictures = |(part, file): (&dyn Vision, &Gguf)| part.pictures(VisionFiles::Gguf(file));
        Ok(Self {
            generation: gguf_model::generation(text, &config)?,
            pictures: config.vision.as_deref().zip(vision).map(pictures).transpose()?,
            tokenizer: gguf_model::tokenizer(text, &config)?,
            template: ChatTemplate::parse(text.path().to_owned(), source)?,
            config,
        })
    }

    /// The same with other limits of the pixels of pictures.
    pub fn with_pixel_limits(self, limits: PixelLimits) -> Self {
        Self { pictures: self.pictures.map(|pictures| pictures.within(limits)), ..self }
    }

    /// The prompt's text, with one placeholder per image and video.
    ///
    /// # Errors
    /// As [`ChatTemplate::render_with`].
    pub fn render(&self, messages: &[Message], tools: &[Value]) -> Result<String> {
        self.template.render_with(messages, tools, self.config.text.max_position_embeddings)
    }

    /// Prepares a conversation. `visuals` are the pictures of its [`Part::Image`]s and [`Part::Video`]s, in order. Control tokens that are spelled in texts are read as control tokens.
    ///
    /// # Errors
    /// [`Error::Prompt`] if messages and visuals do not fit each other, [`Error::Image`], [`Error::Checkpoint`],
    /// [`Error::Unsupported`] for pictures if the model is of text alone.
    pub fn prepare(&self, messages: &[Message], visuals: &[Visual]) -> Result<Prompt> {
        self.prepare_with(messages, &[], visuals, ControlTokens::Recognized)
    }

    /// As [`prepare`](Self::prepare), with tools, in OpenAI's form, and a choice for control tokens that are spelled in texts.
    ///
    /// # Errors
    /// As [`prepare`](Self::prepare).
    pub fn prepare_with(
        &self,
        messages: &[Message],
        tools: &[Value],
        visuals: &[Visual],
        spelled: ControlTokens,
    ) -> Result<Prompt> {
        let prepare = |visual| {
            let pictures = self.seeing()?;
            let patches = pictures.patches(visual)?;
            Ok((pictures.media(visual, patches.grid), patches))
        };
        let (media, patches): (Vec<_>, Vec<_>) =
            visuals.iter().map(prepare).collect::<Result<Vec<_>>>()?.into_iter().unzip();
        let ids = self.tokens(messages, tools, &media, spelled)?;
        let positions = self.positions(&ids, patches.iter().map(|patches: &Patches| patches.grid))?;
        Ok(Prompt { ids, positions, patches })
    }

    /// A conversation's prompt before its images and videos, of which only tokens and grids are known: its patches, which the caller
    /// adds, are theirs in order. `tools`, in OpenAI's form, are those that the assistant may call.
    ///
    /// # Errors
    /// As [`prepare`](Self::prepare).
    pub fn outline(
        &self,
        messages: &[Message],
        tools: &[Value],
        media: &[(Media, [usize; 3])],
        spelled: ControlTokens,
    ) -> Result<Prompt> {
        let (media, grids): (Vec<_>, Vec<_>) = media.iter().cloned().unzip();
        let ids = self.tokens(messages, tools, &media, spelled)?;
        let positions = self.positions(&ids, grids.into_iter())?;
        Ok(Prompt { ids, positions, patches: Vec::new() })
    }

    fn tokens(
        &self,
        messages: &[Message],
        tools: &[Value],
        media: &[Media],
        spelled: ControlTokens,
    ) -> Result<Vec<u32>> {
        let context = self.config.text.max_position_embeddings;
        let mut parts = messages.iter().flat_map(|message| &message.content);
        if self.pictures.is_none() && parts.any(|part| matches!(part, Part::Image | Part::Video)) {
            return Err(self.config.blind());
        }
        match spelled {
            ControlTokens::Recognized => {
                let text = self.expand(self.template.render_with(messages, tools, context)?, media)?;
                self.tokenizer.encode(&text)
            }
            ControlTokens::AsText => {
                let (messages, tools, stand_ins) =
                    StandIns::replace(messages, tools, self.tokenizer.controls())?;
                let text = self.expand(self.template.render_with(&messages, &tools, context)?, media)?;
                self.tokenizer.encode_with(&text, &stand_ins)
            }
        }
    }

    /// Whether an answer to this prompt begins inside a thought: the template has opened one.
    pub fn begins_in_thought(&self, prompt: &[u32]) -> bool {
        const TAIL: usize = 16; // tokens, of which the tag may take one for each byte
        let tail = &prompt[prompt.len().saturating_sub(TAIL)..];
        self.tokenizer.decode(tail).trim_end().ends_with(reasoning::OPEN)
    }

    fn expand(&self, prompt: String, media: &[Media]) -> Result<String> {
        match &self.pictures {
            Some(pictures) => pictures.expand(&prompt, media, &|id| self.tokenizer.spelling(id)),
            None => Ok(prompt),
        }
    }

    /// How pictures are prepared.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a model of text alone.
    pub fn seeing(&self) -> Result<&dyn Pictures> {
        self.pictures.as_deref().ok_or_else(|| self.config.blind())
    }

    /// The patches of a picture, which errors call `name`.
    ///
    /// # Errors
    /// [`Error::Image`], or [`Error::Unsupported`] for a model of text alone.
    pub fn image_patches(&self, name: &str, picture: Picture) -> Result<Patches> {
        self.seeing()?.patches(&Visual::Image { name: name.to_owned(), picture })
    }

    /// The tokens and the memory of a picture with this header.
    ///
    /// # Errors
    /// As [`image_patches`](Self::image_patches).
    pub fn image_plan(&self, name: &str, header: PictureHeader) -> Result<ImagePlan> {
        self.seeing()?.plan(name, header, None)
    }

    /// The positions of tokens that include the pads of these grids.
    ///
    /// # Errors
    /// [`Error::Prompt`] if the tokens and the grids do not fit each other.
    pub fn positions(&self, ids: &[u32], mut grids: impl Iterator<Item = [usize; 3]>) -> Result<Positions> {
        match &self.pictures {
            Some(pictures) => pictures.positions(ids, &mut grids),
            None => Positions::of_text(ids.len()),
        }
    }

    /// Whether an image's or video's embedding replaces this token's.
    pub fn is_pad(&self, id: u32) -> bool {
        self.pictures.as_ref().is_some_and(|pictures| pictures.is_pad(id))
    }
}
