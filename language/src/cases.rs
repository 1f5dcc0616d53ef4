//! The results of a reference implementation on a checkpoint: `cases.json` and `cases/‹run›.safetensors`.
//! `cases_video.json` has runs with a video each: a folder of pictures and their number a second.
//!
//! In a folder of GGUF files, `cases_gguf.json` names the runs of each. Pictures and prepared inputs are in `source/`, the
//! logits for the weights of a file in `reference/‹file›.safetensors`.

use super::checkpoint::is_gguf;
use super::json::{self, Fields, MAX_CONFIG, bad};
use super::media::Visual;
use super::safetensors::SafeTensors;
use pascaline::Result;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// One run of the reference.
pub struct Run {
    /// Its name.
    pub name: String,
    /// The picture files, in order.
    pub images: Vec<PathBuf>,
    /// The folder of a video's frames, and the frames per second.
    pub video: Option<(PathBuf, f64)>,
    /// The user's text.
    pub question: String,
    /// The rendered prompt with one placeholder per image.
    pub prompt: String,
    /// The tokens of greedy decoding.
    pub generated_ids: Vec<u32>,
    /// Their text, if the reference has it.
    pub generated_text: Option<String>,
    /// The model's inputs, and the reference's results.
    pub tensors: SafeTensors,
    /// The reference's results, if they are in a file of their own, named `‹run›.‹stage›`.
    results: Option<Arc<SafeTensors>>,
}

/// Reads the runs of a directory; `None` if it has no `cases.json`. For a GGUF file, reads its runs in the `cases_gguf.json`
/// of its folder.
///
/// # Errors
/// [`Error::Checkpoint`](pascaline::Error::Checkpoint).
pub fn load(path: &Path) -> Result<Option<Vec<Run>>> {
    if is_gguf(path) {
        return load_gguf(path);
    }
    let files = ["cases.json", "cases_video.json"].map(|name| path.join(name));
    let files: Vec<_> = files.iter().filter(|file| file.exists()).collect();
    if files.is_empty() {
        return Ok(None);
    }
    let mut all = Vec::new();
    for file in files {
        let map = json::read_object(file, MAX_CONFIG)?;
        let Some(Value::Array(runs)) = map.get("runs") else {
            return Err(bad(file, Some("runs"), "missing or not a list"));
        };
        for run in runs {
            all.push(load_run(path, file, run)?);
        }
    }
    Ok(Some(all))
}

fn load_run(dir: &Path, file: &Path, run: &Value) -> Result<Run> {
    let Value::Object(map) = run else { return Err(bad(file, Some("runs"), "an entry is not an object")) };
    let fields = Fields::new(file, "runs.", map);
    let text = |name: &str| -> Result<String> { Ok(fields.required(name, fields.str(name)?)?.to_owned()) };
    let video = match fields.str("video")? {
        Some(folder) => Some((dir.join(folder), fields.required("fps", fields.f64("fps")?)?)),
        None => None,
    };
    let images = match fields.get("images") {
        Some(Value::Array(images)) => {
            images.iter().map(|image| image.as_str().map(|image| dir.join(image))).collect()
        }
        None if video.is_some() => Some(Vec::new()),
        _ => None,
    };
    let ids = fields.required("generated_ids", fields.sizes("generated_ids")?)?;
    let name = text("name")?;
    Ok(Run {
        images: fields.required("images", images)?,
        question: text("question")?,
        prompt: text("prompt")?,
        generated_ids: ids.into_iter().map(|id| u32::try_from(id).unwrap_or(u32::MAX)).collect(),
        generated_text: fields.str("generated_text")?.map(str::to_owned),
        video,
        tensors: SafeTensors::open(dir.join("cases").join(format!("{name}.safetensors")))?,
        results: None,
        name,
    })
}

/// The folder of prepared inputs in a GGUF file's folder.
fn source(model: &Path) -> PathBuf {
    model.with_file_name("source")
}

fn load_gguf(model: &Path) -> Result<Option<Vec<Run>>> {
    let file = model.with_file_name("cases_gguf.json");
    if !file.exists() {
        return Ok(None);
    }
    let map = json::read_object(&file, MAX_CONFIG)?;
    let (Some(Value::Array(runs)), Some(Value::Object(cases))) = (map.get("runs"), map.get("cases")) else {
        return Err(bad(&file, Some("runs and cases"), "missing, or not a list and an object"));
    };
    let name = model.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let Some(Value::Object(run)) = runs.iter().find(|run| run["file"] == name) else { return Ok(None) };
    let Some(Value::Object(generated)) = run.get("generated_ids") else {
        return Err(bad(&file, Some("runs.generated_ids"), "missing or not an object"));
    };
    let results = model.with_file_name("reference").join(name).with_extension("safetensors");
    let results = Arc::new(SafeTensors::open(results)?);
    let ids = Fields::new(&file, "runs.generated_ids.", generated);
    let load = |(name, case): (&String, &Value)| -> Result<Run> {
        let Value::Object(case) = case else { return Err(bad(&file, Some("cases"), "not an object")) };
        let fields = Fields::new(&file, "cases.", case);
        let images = case.get("images").and_then(Value::as_array);
        let images = images.and_then(|images| {
            images.iter().map(|image| image.as_str().map(|image| source(model).join(image))).collect()
        });
        let generated_ids = ids.required(name, ids.sizes(name)?)?;
        Ok(Run {
            images: fields.required("images", images)?,
            question: fields.required("question", fields.str("question")?)?.to_owned(),
            prompt: String::new(),
            generated_ids: generated_ids
                .into_iter()
                .map(|id| u32::try_from(id).unwrap_or(u32::MAX))
                .collect(),
            generated_text: None,
            video: None,
            tensors: SafeTensors::open(source(model).join("cases").join(format!("{name}.safetensors")))?,
            results: Some(Arc::clone(&results)),
            name: name.clone(),
        })
    };
    cases.iter().map(load).collect::<Result<_>>().map(Some)
}

impl Run {
    /// Whether the run's file has this tensor; some files leave out large ones.
    pub fn has(&self, tensor: &str) -> bool {
        self.tensors.entries().contains_key(tensor)
    }

    /// The reference's result of a stage of the computation, if it has one.
    ///
    /// # Errors
    /// [`Error::Checkpoint`](pascaline::Error::Checkpoint).
    pub fn result(&self, stage: &str) -> Result<Option<Vec<f32>>> {
        let (file, name) = match &self.results {
            Some(results) => (&**results, format!("{}.{stage}", self.name)),
            None => (&self.tensors, stage.to_owned()),
        };
        file.entries().contains_key(&name).then(|| file.read_f32(&name)).transpose()
    }

    /// The pictures and the video, in the order in which they come in the prompt.
    ///
    /// # Errors
    /// As [`Visual::image`] and [`Visual::video`].
    pub fn visuals(&self) -> Result<Vec<Visual>> {
        let images = self.images.iter().map(|file| Visual::image(file));
        images.chain(self.video.iter().map(|(folder, rate)| Visual::video(folder, *rate))).collect()
    }

    /// The prepared pixel values of all pictures and videos, if they are there.
    ///
    /// # Errors
    /// [`Error::Checkpoint`](pascaline::Error::Checkpoint).
    pub fn pixel_values(&self) -> Result<Option<Vec<f32>>> {
        let name = ["pixel_values", "pixel_values_videos"].into_iter().find(|name| self.has(name));
        name.map(|name| self.tensors.read_f32(name)).transpose()
    }

    /// The prompt's tokens, pads expanded.
    ///
    /// # Errors
    /// [`Error::Checkpoint`](pascaline::Error::Checkpoint).
    pub fn input_ids(&self) -> Result<Vec<u32>> {
        Ok(self.tensors.read_i64("input_ids")?.into_iter().map(|id| id as u32).collect())
    }

    /// The grid of each image and video; none for a run of text alone.
    ///
    /// # Errors
    /// [`Error::Checkpoint`](pascaline::Error::Checkpoint).
    pub fn grids(&self) -> Result<Vec<[usize; 3]>> {
        let mut grids = Vec::new();
        for name in ["image_grid_thw", "video_grid_thw"].into_iter().filter(|name| self.has(name)) {
            let flat = self.tensors.read_i64(name)?;
            grids.extend(flat.as_chunks::<3>().0.iter().map(|grid| grid.map(|size| size as usize)));
        }
        Ok(grids)
    }
}
