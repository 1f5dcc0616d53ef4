//! What a reference implementation computed on a checkpoint: `cases.json` and `cases/‹run›.safetensors`.

use super::json::{self, Fields, MAX_CONFIG, bad};
use super::safetensors::SafeTensors;
use pascaline::Result;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// One run of the reference.
pub struct Run {
    /// Its name.
    pub name: String,
    /// The picture files, in order.
    pub images: Vec<PathBuf>,
    /// The user's text.
    pub question: String,
    /// The rendered prompt with one placeholder per image.
    pub prompt: String,
    /// The tokens that greedy decoding gives.
    pub generated_ids: Vec<u32>,
    /// Their text.
    pub generated_text: String,
    /// Its tensors.
    pub tensors: SafeTensors,
}

/// Reads the runs of a directory; `None` if it has no `cases.json`.
///
/// # Errors
/// [`Error::Checkpoint`](pascaline::Error::Checkpoint).
pub fn load(dir: &Path) -> Result<Option<Vec<Run>>> {
    let file = dir.join("cases.json");
    if !file.exists() {
        return Ok(None);
    }
    let map = json::read_object(&file, MAX_CONFIG)?;
    let Some(Value::Array(runs)) = map.get("runs") else {
        return Err(bad(&file, Some("runs"), "missing or not a list"));
    };
    runs.iter().map(|run| load_run(dir, &file, run)).collect::<Result<_>>().map(Some)
}

fn load_run(dir: &Path, file: &Path, run: &Value) -> Result<Run> {
    let Value::Object(map) = run else { return Err(bad(file, Some("runs"), "an entry is not an object")) };
    let fields = Fields::new(file, "runs.", map);
    let text = |name: &str| -> Result<String> { Ok(fields.required(name, fields.str(name)?)?.to_owned()) };
    let images = match fields.get("images") {
        Some(Value::Array(images)) => {
            images.iter().map(|image| image.as_str().map(|image| dir.join(image))).collect()
        }
        _ => None,
    };
    let ids = fields.required("generated_ids", fields.sizes("generated_ids")?)?;
    let name = text("name")?;
    Ok(Run {
        images: fields.required("images", images)?,
        question: text("question")?,
        prompt: text("prompt")?,
        generated_ids: ids.into_iter().map(|id| u32::try_from(id).unwrap_or(u32::MAX)).collect(),
        generated_text: text("generated_text")?,
        tensors: SafeTensors::open(dir.join("cases").join(format!("{name}.safetensors")))?,
        name,
    })
}

impl Run {
    /// Whether the run's file has this tensor; large ones are left out of some.
    pub fn has(&self, tensor: &str) -> bool {
        self.tensors.entries().contains_key(tensor)
    }

    /// The prompt's tokens, pads expanded.
    ///
    /// # Errors
    /// [`Error::Checkpoint`](pascaline::Error::Checkpoint).
    pub fn input_ids(&self) -> Result<Vec<u32>> {
        Ok(self.tensors.read_i64("input_ids")?.into_iter().map(|id| id as u32).collect())
    }

    /// The grid of each image; none for a run of text alone.
    ///
    /// # Errors
    /// [`Error::Checkpoint`](pascaline::Error::Checkpoint).
    pub fn grids(&self) -> Result<Vec<[usize; 3]>> {
        if !self.has("image_grid_thw") {
            return Ok(Vec::new());
        }
        let flat = self.tensors.read_i64("image_grid_thw")?;
        Ok(flat.as_chunks::<3>().0.iter().map(|grid| grid.map(|extent| extent as usize)).collect())
    }
}
