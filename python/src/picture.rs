//! Pictures from Python: files, PIL images, numpy arrays.

use crate::error::{Result, unsupported};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString, PyTuple};
use qwen3_vl::Visual;
use qwen3_vl::preprocess::Picture;
use std::path::PathBuf;

/// The path, if the object is one.
pub fn path(object: &Bound<'_, PyAny>) -> Option<PathBuf> {
    let is_path = object.is_instance_of::<PyString>() || object.hasattr("__fspath__").unwrap_or(false);
    is_path.then(|| object.extract::<PathBuf>().ok()).flatten()
}

/// A path, a PIL image, or a numpy array of 8-bit values [h, w, 3], [h, w, 4] or [h, w].
pub fn picture(object: &Bound<'_, PyAny>, name: &str) -> Result<Picture> {
    let py = object.py();
    if let Some(path) = path(object) {
        return Ok(py.detach(|| Picture::open(&path))?);
    }
    if let Ok(bytes) = object.cast::<PyBytes>() {
        return Ok(Picture::from_bytes(name, bytes.as_bytes())?);
    }
    let prepared = py.import("pascaline._pictures")?.call_method1("rgb", (object, name))?;
    let (height, width, pixels): (usize, usize, Bound<PyBytes>) = prepared.extract()?;
    Ok(Picture { height, width, pixels: pixels.as_bytes().to_vec() })
}

/// The images of a prompt.
pub fn images(given: Option<&Bound<'_, PyAny>>) -> Result<Vec<Visual>> {
    let Some(given) = given.filter(|given| !given.is_none()) else { return Ok(Vec::new()) };
    // A single picture may be given without a list.
    let is_one = path(given).is_some()
        || given.cast::<PyBytes>().is_ok()
        || given.hasattr("convert")?
        || given.hasattr("__array_interface__")?;
    let list = if is_one { vec![given.clone()] } else { given.extract::<Vec<Bound<PyAny>>>()? };
    let named = list.iter().enumerate().map(|(index, image)| {
        let name = match path(image) {
            Some(path) => path.display().to_string(),
            None => format!("number {index}"),
        };
        Ok(Visual::Image { picture: picture(image, &name)?, name })
    });
    named.collect()
}

/// The videos of a prompt: (frames, frames per second), frames being a list of pictures or a folder.
pub fn videos(given: Option<&Bound<'_, PyAny>>) -> Result<Vec<Visual>> {
    let Some(given) = given.filter(|given| !given.is_none()) else { return Ok(Vec::new()) };
    let videos = given.extract::<Vec<Bound<PyAny>>>()?;
    videos.iter().enumerate().map(|(index, video)| self::video(video, index)).collect()
}

fn video(given: &Bound<'_, PyAny>, index: usize) -> Result<Visual> {
    let name = format!("video number {index}");
    let pair = given.cast::<PyTuple>().ok().filter(|pair| pair.len() == 2);
    let Some(pair) = pair else {
        let reason = "a video is a pair (frames, frames per second)";
        return Err(unsupported("generate", "videos", given.get_type().name()?, reason));
    };
    let (frames, rate) = (pair.get_item(0)?, pair.get_item(1)?.extract::<f64>()?);
    if let Some(folder) = path(&frames) {
        return Ok(given.py().detach(|| Visual::video(&folder, rate))?);
    }
    if !(rate > 0.0 && rate.is_finite()) {
        let reason = format!("{rate} frames per second");
        return Err(pascaline::Error::Image { file: name, reason }.into());
    }
    let frames = frames.extract::<Vec<Bound<PyAny>>>()?;
    let frames = frames.iter().map(|frame| picture(frame, &name)).collect::<Result<_>>()?;
    Ok(Visual::Video { name, frames, rate })
}
