//! The vision file (mmproj) that belongs to a text file.

use super::config::check_vision;
use super::{GgmlType, Gguf};
use crate::json::bad;
use pascaline::Result;
use std::fs;
use std::path::{Path, PathBuf};

/// The types of matrices of vision files, the preferred one first: f16 is what most are published in.
const PREFERRED: [GgmlType; 4] = [GgmlType::F16, GgmlType::BF16, GgmlType::Q8_0, GgmlType::F32];

/// The vision file in a text file's folder: the file with `mmproj` in its name that fits the text model. If several fit, the
/// one in the preferred type.
///
/// # Errors
/// [`Error::Checkpoint`](pascaline::Error::Checkpoint) if there is none or more than one, or the only one is damaged.
pub(crate) fn vision_file(text: &Gguf) -> Result<Gguf> {
    let path = text.path();
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let unreadable = |error: std::io::Error| bad(folder, None, error.to_string());
    let mut candidates: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let file = entry.map_err(unreadable)?.path();
        let name = file.file_name().map(|name| name.to_string_lossy().to_lowercase()).unwrap_or_default();
        if name.contains("mmproj") && name.ends_with(".gguf") {
            candidates.push(file);
        }
    }
    candidates.sort();
    let missing = |reason: String| bad(path, Some("mmproj"), reason);
    let width = text.metadata().unsigned("qwen3vl.embedding_length")?;
    let open = |file: &PathBuf| -> Result<Gguf> {
        let vision = Gguf::open(file)?;
        check_vision(&vision)?;
        let key = "clip.vision.projection_dim";
        match vision.metadata().unsigned(key)? {
            found if found == width => Ok(vision),
            found => Err(vision.metadata().bad(key, format!("is {found:?}, the text model has {width:?}"))),
        }
    };
    let mut fitting = match &candidates[..] {
        [] => {
            return Err(missing(
                "its folder has no vision file (mmproj*.gguf); name one with --mmproj".into(),
            ));
        }
        [only] => return open(only),
        several => several.iter().filter_map(|file| open(file).ok()).collect::<Vec<_>>(),
    };
    let rank = |vision: &Gguf| {
        let ty = vision.tensor("mm.0.weight").map(|info| info.ty);
        PREFERRED.iter().position(|preferred| Some(*preferred) == ty).unwrap_or(PREFERRED.len())
    };
    fitting.sort_by_key(rank);
    let same_rank = |other: &Gguf| fitting.first().is_some_and(|first| rank(first) == rank(other));
    if fitting.iter().filter(|other| same_rank(other)).count() > 1 {
        let names: Vec<_> = fitting.iter().map(|vision| vision.path().display().to_string()).collect();
        return Err(missing(format!("{} fit; name one with --mmproj", names.join(" and "))));
    }
    let none = || {
        missing(format!(
            "none of the {} vision files in its folder fits; name one with --mmproj",
            candidates.len()
        ))
    };
    fitting.into_iter().next().ok_or_else(none)
}
