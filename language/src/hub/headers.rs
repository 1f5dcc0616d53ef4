//! A model's sizes without its weights: the small files, and the beginnings of GGUF files.

use super::cache::Repo;
use super::download::{Download, Event, Stated};
use super::files::{choose, is_gguf, is_small};
use super::http::Failure;
use super::{Hub, HubModel, denied};
use crate::checkpoint::directory_config;
use crate::seam::Models;
use pascaline::Result;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

/// Bytes of a GGUF file that are fetched: metadata, vocabulary and the list of tensors take some 6 MB.
const BEGINNING: u64 = 32 << 20;

impl Hub {
    /// As [`pull`](Self::pull), for plans: weights are not fetched. Returns a path that a checkpoint opens as far as its sizes. Of GGUF files,
    /// `scratch` gets the beginnings, as long as the files are.
    ///
    /// # Errors
    /// As [`pull`](Self::pull).
    pub fn headers(
        &self,
        models: Models,
        model: &HubModel,
        scratch: &Path,
        on: &mut dyn FnMut(Event),
    ) -> Result<PathBuf> {
        let (repo, listing) = (Repo::new(&self.cache, &model.id), self.files_of(model, on)?);
        let names: Vec<&str> = listing.files.keys().map(String::as_str).collect();
        let files = choose(&names, model.kind.as_deref()).map_err(|reason| model.error(None, reason))?;
        let folder = repo.snapshot(&listing.commit);
        let download = Download { client: &self.client, repo: &repo, id: &model.id, commit: &listing.commit };
        let explain = |file: &str, failure: Failure| match failure {
            Failure::Denied(status) => denied(model, status),
            Failure::Interrupted(reason) | Failure::Final(reason) => model.error(Some(file), reason),
        };
        let is_held = |file: &str, stated: &Stated| {
            fs::metadata(folder.join(file)).is_ok_and(|found| found.is_file() && found.len() == stated.size)
        };
        let missing = files.iter().copied().filter_map(|file| {
            let stated = listing.files.get(file)?.as_ref()?; // the cache's own list has no sizes, and all files
            (!is_held(file, stated)).then_some((file, stated))
        });
        let (small, weights): (Vec<_>, Vec<_>) = missing.partition(|(file, _)| is_small(file));
        for (file, stated) in small {
            download.fetch(file, stated, on).map_err(|failure| explain(file, failure))?;
        }
        let first = match files.first() {
            Some(first) if is_gguf(first) => *first,
            _ => {
                directory_config(models, &folder)?;
                return Ok(folder);
            }
        };
        if weights.is_empty() {
            return Ok(folder.join(first));
        }
        for &file in &files {
            let to = scratch.join(file);
            let beginning = || -> std::result::Result<(), Failure> {
                if let Some(above) = to.parent() {
                    fs::create_dir_all(above)?;
                }
                let mut new = File::create(&to)?;
                match weights.iter().find(|(missing, _)| *missing == file) {
                    Some((_, stated)) => {
                        self.beginning(model, &listing.commit, file, stated.size, &mut new)?;
                        new.set_len(stated.size)?;
                    }
                    None => {
                        let held = File::open(folder.join(file))?;
                        let size = held.metadata()?.len();
                        std::io::copy(&mut held.take(BEGINNING), &mut new)?;
                        new.set_len(size)?;
                    }
                }
                Ok(())
            };
            beginning().map_err(|failure| explain(file, failure))?;
        }
        Ok(scratch.join(first))
    }

    /// Fetches the first bytes of a file.
    fn beginning(
        &self,
        model: &HubModel,
        commit: &str,
        file: &str,
        size: u64,
        to: &mut File,
    ) -> std::result::Result<(), Failure> {
        let parts = model.id.split('/').chain(["resolve", commit]).chain(file.split('/'));
        let most = BEGINNING.min(size);
        let range = (most > 0).then(|| format!("bytes=0-{}", most - 1));
        let response = self.client.get(self.client.url(parts), range.as_deref())?;
        self.client.read(response, most, &mut |bytes| Ok(to.write_all(bytes)?))
    }
}
