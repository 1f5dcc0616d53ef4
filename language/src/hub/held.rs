//! The models that the cache holds: their names and sizes, and how one is removed.

use super::cache::Repo;
use super::{HeldModel, Hub, HubModel};
use pascaline::Result;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

impl Hub {
    /// The models that the cache holds, by name. The network is not used.
    ///
    /// # Errors
    /// [`Error::Checkpoint`](pascaline::Error::Checkpoint) if the cache can't be read; one that does not exist is empty.
    pub fn held(&self) -> Result<Vec<HeldModel>> {
        let entries = match fs::read_dir(&self.cache) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(|error| super::unusable(&self.cache, &error))?,
        };
        let mut models: Vec<HeldModel> = entries
            .flatten()
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            .filter_map(|entry| {
                let folder = entry.file_name().into_string().ok()?;
                let name = folder.strip_prefix("models--")?.replacen("--", "/", 1);
                let path = entry.path();
                HubModel::parse(&name).map(|_| HeldModel { name, bytes: bytes_below(&path), path })
            })
            .collect();
        models.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(models)
    }

    /// Removes a model from the cache.
    ///
    /// # Errors
    /// [`Error::Checkpoint`](pascaline::Error::Checkpoint) if the cache does not hold it, or it can't be removed.
    pub fn remove(&self, model: &HubModel) -> Result<()> {
        let root = Repo::new(&self.cache, &model.id).root().to_owned();
        match fs::symlink_metadata(&root) {
            Ok(found) if found.is_dir() => {}
            _ => {
                return Err(model.error(None, format!("the cache {} does not hold it", self.cache.display())));
            }
        }
        fs::remove_dir_all(&root).map_err(|error| super::unusable(&root, &error))
    }
}

/// Bytes of the files below a folder. Links count nothing: they lead to files of the same folder.
fn bytes_below(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(found) if found.is_dir() => bytes_below(&entry.path()),
            Ok(found) if found.is_file() => found.len(),
            _ => 0,
        })
        .sum()
}
