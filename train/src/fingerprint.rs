//! Hashes of what a run is made from. A run is resumed only with the same.

use crate::files::bad;
use crate::model::Example;
use pascaline::Result;
use qwen3_vl::files::open_regular;
use sha2::{Digest, Sha256};
use std::fs;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Bytes that are read of each end of a file of weights.
const END: u64 = 1 << 20;

/// The hash of examples: their tokens, targets and patches.
pub fn examples(examples: &[Example]) -> String {
    let mut hash = Sha256::new();
    for Example { ids, is_answer, visuals } in examples {
        hash.update((ids.len() as u64).to_le_bytes());
        ids.iter().for_each(|id| hash.update(id.to_le_bytes()));
        is_answer.iter().for_each(|&is_answer| hash.update([u8::from(is_answer)]));
        for patches in visuals {
            patches.grid.iter().for_each(|&side| hash.update((side as u64).to_le_bytes()));
            patches.values.iter().for_each(|x| hash.update(x.to_le_bytes()));
        }
        hash.update((visuals.len() as u64).to_le_bytes());
    }
    hex(hash)
}

/// The hash of a checkpoint's directory: of its configuration, and of the sizes, beginnings and ends of its weights. Other weights
/// differ there too, and a whole model is not read twice.
///
/// # Errors
/// [`Error::Checkpoint`](pascaline::Error::Checkpoint) with the file that can't be read.
pub fn model(dir: &Path) -> Result<String> {
    let entries = fs::read_dir(dir).and_then(|entries| entries.collect::<io::Result<Vec<_>>>());
    let mut files: Vec<PathBuf> =
        entries.map_err(|error| bad(dir, error))?.into_iter().map(|entry| entry.path()).collect();
    files.retain(|file| {
        let name = file.file_name().unwrap_or_default();
        name == "config.json" || file.extension().is_some_and(|extension| extension == "safetensors")
    });
    files.sort();
    let mut hash = Sha256::new();
    for file in files {
        hash.update(file.file_name().unwrap_or_default().as_encoded_bytes());
        add_ends(&mut hash, &file).map_err(|error| bad(&file, error))?;
    }
    Ok(hex(hash))
}

fn add_ends(hash: &mut Sha256, file: &Path) -> io::Result<()> {
    let mut open = open_regular(file)?;
    let size = open.metadata()?.len();
    hash.update(size.to_le_bytes());
    for from in [0, size.saturating_sub(END).max(END.min(size))] {
        let mut bytes = Vec::new();
        open.seek(SeekFrom::Start(from))?;
        open.by_ref().take(END).read_to_end(&mut bytes)?;
        hash.update(&bytes);
    }
    Ok(())
}

pub(crate) fn hex(hash: Sha256) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
