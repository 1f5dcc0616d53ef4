//! One file into the cache: described by the hub, fetched or resumed, compared with what is stated, and shown.

use super::cache::{Repo, is_complete, is_name, is_sha256, remove};
use super::http::{Client, Failure};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::thread;
use std::time::Duration;
use ureq::Response;
use url::Url;

/// The events of a download.
#[derive(Debug)]
pub enum Event<'a> {
    /// Bytes of a file were downloaded.
    Progress {
        /// Its path in the repository.
        file: &'a str,
        /// Bytes so far, those of an earlier download included.
        loaded: u64,
        /// Its size in bytes.
        size: u64,
    },
    /// A file is complete and is what the hub says it is.
    Fetched {
        /// Its path in the repository.
        file: &'a str,
    },
    /// A transfer was interrupted, and will resume.
    Retry {
        /// The file's path in the repository.
        file: &'a str,
        /// The reason.
        reason: &'a str,
    },
    /// The hub can't be reached, so the files in the cache are used.
    Unreachable {
        /// The reason.
        reason: &'a str,
    },
}

/// How often a file's download is tried.
const ATTEMPTS: u32 = 5;

/// A file as the hub lists it.
#[derive(Debug)]
pub(super) struct Stated {
    pub(super) size: u64,
    /// Of large files, in hexadecimal.
    pub(super) sha256: Option<String>,
}

/// From which commit files are fetched, and where to.
pub(super) struct Download<'a> {
    pub(super) client: &'a Client,
    pub(super) repo: &'a Repo,
    pub(super) id: &'a str,
    pub(super) commit: &'a str,
}

impl Download<'_> {
    /// Downloads one file into the cache; each attempt resumes the one before.
    pub(super) fn fetch(
        &self,
        file: &str,
        stated: &Stated,
        on: &mut dyn FnMut(Event),
    ) -> Result<(), Failure> {
        let mut attempt = 1;
        loop {
            match self.attempt(file, stated, on) {
                Err(Failure::Interrupted(reason)) if attempt == ATTEMPTS => {
                    let reason = format!("can't be downloaded: {reason}; the same command resumes it");
                    return Err(Failure::Interrupted(reason));
                }
                Err(Failure::Interrupted(reason)) => on(Event::Retry { file, reason: &reason }),
                result => return result,
            }
            thread::sleep(Duration::from_millis(200) * 2u32.pow(attempt));
            attempt += 1;
        }
    }

    fn attempt(&self, file: &str, stated: &Stated, on: &mut dyn FnMut(Event)) -> Result<(), Failure> {
        let parts = self.id.split('/').chain(["resolve", self.commit]).chain(file.split('/'));
        let url = self.client.url(parts);
        let first = (stated.size > 0).then_some("bytes=0-0");
        let described = self.client.describe(url.clone(), first)?;
        let etag = etag(&described, self.commit)?;
        drop(described);
        let sha256 = match (&stated.sha256, is_sha256(&etag)) {
            (Some(listed), true) if !listed.eq_ignore_ascii_case(&etag) => {
                return Err(Failure::Final("the hub states two different hashes".to_owned()));
            }
            (Some(listed), _) => Some(&**listed),
            (None, is_hash) => is_hash.then_some(&*etag),
        };
        let blob = self.repo.blob(&etag)?;
        let _locked = self.repo.lock(&etag, &mut || {
            on(Event::Retry { file, reason: "another process downloads it; waiting for its end" });
        })?;
        if !is_complete(&blob, stated.size, sha256)? {
            let partial = blob.with_file_name(format!("{etag}.incomplete"));
            self.transfer(url, file, stated.size, &partial, sha256.is_some(), on)?;
            if !is_complete(&partial, stated.size, sha256)? {
                remove(&partial)?;
                return Err(Failure::Final(
                    "the download is not what the hub states (size or SHA-256); it was deleted, the same command tries \
                     again"
                        .to_owned(),
                ));
            }
            fs::rename(&partial, &blob)?;
        }
        Ok(self.repo.link(self.commit, file, &etag)?)
    }

    /// Completes the partial file. It is only resumed if a hash will tell whether the parts fit.
    fn transfer(
        &self,
        url: Url,
        file: &str,
        size: u64,
        partial: &Path,
        resume: bool,
        on: &mut dyn FnMut(Event),
    ) -> Result<(), Failure> {
        let usable = |found: fs::Metadata| resume && found.is_file() && found.len() <= size;
        if !fs::symlink_metadata(partial).is_ok_and(usable) {
            remove(partial)?;
        }
        let mut open = OpenOptions::new().append(true).create(true).open(partial)?;
        let mut loaded = open.metadata()?.len();
        on(Event::Progress { file, loaded, size });
        if loaded < size {
            let response = self.client.get(url, Some(&format!("bytes={loaded}-")))?;
            if starts_anew(&response, loaded, size)? {
                open.set_len(0)?;
                loaded = 0;
            }
            self.client.read(response, size - loaded, &mut |bytes| {
                open.write_all(bytes)?;
                loaded += bytes.len() as u64;
                on(Event::Progress { file, loaded, size });
                Ok(())
            })?;
            if loaded < size {
                let reason = format!("the connection ended after {loaded} of {size} bytes");
                return Err(Failure::Interrupted(reason));
            }
        }
        Ok(open.sync_all()?) // before the name says that it is complete
    }
}

/// The ETag that names a file's blob, from an answer that is of the right commit.
fn etag(response: &Response, commit: &str) -> Result<String, Failure> {
    if response.header("x-repo-commit") != Some(commit) {
        return Err(Failure::Final(format!("the hub's answer is not of commit {commit}")));
    }
    let etag = response.header("x-linked-etag").or_else(|| response.header("etag")).unwrap_or_default();
    let etag = etag.strip_prefix("W/").unwrap_or(etag).trim_matches('"');
    match is_name(etag) {
        true => Ok(etag.to_owned()),
        false => Err(Failure::Final("the hub's ETag can't name a file".to_owned())),
    }
}

/// Whether the answer to a request for the bytes from `loaded` on begins with the first byte.
fn starts_anew(response: &Response, loaded: u64, size: u64) -> Result<bool, Failure> {
    match response.status() {
        200 => Ok(true),
        206 => {
            let range = response.header("content-range").unwrap_or_default();
            let fits = range.strip_prefix("bytes ").and_then(|range| {
                let (first, rest) = range.split_once('-')?;
                let (_, total) = rest.split_once('/')?;
                Some(first.parse() == Ok(loaded) && total.parse() == Ok(size))
            });
            match fits {
                Some(true) => Ok(false),
                _ => Err(Failure::Final(format!(
                    "the answer is not the rest of {size} bytes from {loaded} on"
                ))),
            }
        }
        status => Err(Failure::Final(format!("the answer has status {status}"))),
    }
}
