//! Checkpoints from the Hugging Face hub, in the cache that the hub's own tools use.
//!
//! A model is written `OWNER/NAME`, with `:TYPE` for one type of a repository of GGUF files and `@REVISION` for a
//! branch, tag or commit. Only the files that loading needs are fetched. An interrupted download resumes where it
//! ended, and a finished file must have the size and SHA-256 that the hub states.
//!
//! The hub is not trusted: names, sizes, commits and redirects that it sends are checked before they are used, and nothing
//! outside the cache is touched. Source: the hub's HTTP interface and the cache of its Python client, `huggingface_hub`.

mod cache;
mod download;
mod files;
mod headers;
mod held;
mod http;

use crate::checkpoint::directory_config;
use crate::seam::Models;
use cache::{Repo, is_commit, is_path, is_sha256};
use download::{Download, Stated};
use files::{choose, is_gguf, is_small};
use http::{Client, Failure};
use pascaline::{Error, Result};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use url::Url;

pub use download::Event;

/// Where models are if `HF_ENDPOINT` does not say otherwise.
const ENDPOINT: &str = "https://huggingface.co";
/// Seconds for which a transfer may stall if `HF_HUB_DOWNLOAD_TIMEOUT` does not say otherwise.
const TIMEOUT: u64 = 60;
/// The largest listing of a model's files in bytes.
const MAX_LISTING: u64 = 10 << 20;
/// The largest file, 1 TiB.
const MAX_FILE: u64 = 1 << 40;
/// The largest file that is not weights.
const MAX_SMALL_FILE: u64 = 64 << 20;

/// A model on the hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubModel {
    id: String,
    /// The type of GGUF files, such as `Q4_K_M`.
    kind: Option<String>,
    /// A branch, tag or commit.
    revision: String,
}

impl HubModel {
    /// Reads `OWNER/NAME[:TYPE][@REVISION]`; `None` for text of another form, which may be a path.
    ///
    /// ```
    /// use language::hub::HubModel;
    /// let model = HubModel::parse("Qwen/Qwen3-VL-2B-Instruct-GGUF:Q4_K_M").unwrap();
    /// assert_eq!(model.id(), "Qwen/Qwen3-VL-2B-Instruct-GGUF");
    /// assert_eq!(HubModel::parse("models/qwen/2b"), None);
    /// ```
    pub fn parse(text: &str) -> Option<Self> {
        let (text, revision) = text.split_once('@').unwrap_or((text, "main"));
        let (id, kind) = text.split_once(':').map_or((text, None), |(id, kind)| (id, Some(kind)));
        let word = |text: &str, more: &str| {
            let allowed = |c: char| c.is_ascii_alphanumeric() || more.contains(c);
            !text.is_empty() && !text.starts_with(['.', '-']) && text.chars().all(allowed)
        };
        let (owner, name) = id.split_once('/')?;
        let revision_parts = || revision.split('/').all(|part| word(part, "-_."));
        let fits = word(owner, "-_.")
            && word(name, "-_.")
            && kind.is_none_or(|kind| word(kind, "-_."))
            && revision_parts();
        fits.then(|| Self { id: id.to_owned(), kind: kind.map(str::to_owned), revision: revision.to_owned() })
    }

    /// `OWNER/NAME`
    pub fn id(&self) -> &str {
        &self.id
    }

    fn error(&self, item: Option<&str>, reason: impl Into<String>) -> Error {
        Error::Checkpoint { file: self.id.clone(), item: item.map(str::to_owned), reason: reason.into() }
    }
}

/// A model in the cache.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct HeldModel {
    /// `OWNER/NAME`
    pub name: String,
    /// Bytes of its files, those of unfinished downloads included.
    pub bytes: u64,
    /// The folder that holds it.
    pub path: PathBuf,
}

/// A hub and its cache on this machine.
pub struct Hub {
    cache: PathBuf,
    client: Client,
    offline: bool,
}

impl Hub {
    /// Configured by the environment as the hub's own tools: `HF_ENDPOINT`, `HF_TOKEN`, `HF_HOME`, `HF_HUB_CACHE`,
    /// `HF_HUB_DOWNLOAD_TIMEOUT`, and `HF_HUB_OFFLINE`, with which the network is not used.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] with the variable whose value can't be used.
    pub fn from_env() -> Result<Self> {
        let variable = |name| env::var(name).ok().filter(|value| !value.is_empty());
        let wrong = |name: &str, reason: &str| Error::Checkpoint {
            file: name.to_owned(),
            item: None,
            reason: reason.to_owned(),
        };
        let home = || match (variable("HF_HOME"), variable("XDG_CACHE_HOME")) {
            (Some(home), _) => Some(home.into()),
            (None, Some(cache)) => Some(Path::new(&cache).join("huggingface")),
            (None, None) => env::home_dir().map(|home| home.join(".cache/huggingface")),
        };
        let cache = match variable("HF_HUB_CACHE") {
            Some(cache) => PathBuf::from(cache),
            None => home()
                .ok_or_else(|| wrong("HF_HOME", "must name the cache, as no home is known"))?
                .join("hub"),
        };
        let token_file = || fs::read_to_string(cache.parent()?.join("token")).ok();
        let token = variable("HF_TOKEN").or_else(token_file).map(|token| token.trim().to_owned());
        let token = token.filter(|token| !token.is_empty());
        if token.as_ref().is_some_and(|token| !token.bytes().all(|byte| byte.is_ascii_graphic())) {
            return Err(wrong("HF_TOKEN", "holds a character that is in no token"));
        }
        let endpoint = variable("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.to_owned());
        let endpoint = Url::parse(&endpoint).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
        let endpoint =
            endpoint.ok_or_else(|| wrong("HF_ENDPOINT", "is no address of the form https://HOST"))?;
        let timeout = variable("HF_HUB_DOWNLOAD_TIMEOUT").map_or(Some(TIMEOUT), |text| text.parse().ok());
        let timeout = timeout
            .filter(|seconds| (1..=86400).contains(seconds))
            .ok_or_else(|| wrong("HF_HUB_DOWNLOAD_TIMEOUT", "is not a number of seconds from 1 to 86400"))?;
        let yes = |value: String| ["1", "on", "yes", "true"].contains(&value.to_lowercase().as_str());
        let offline = variable("HF_HUB_OFFLINE").is_some_and(yes);
        let client = Client::new(endpoint, token, Duration::from_secs(timeout));
        Ok(Self { cache, client, offline })
    }

    /// Fetches the files of a model, one of `models`, that the cache lacks and returns its path: a directory with `config.json` and
    /// safetensors, or a GGUF file with the vision file in the same folder.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] with the model and the file if there is no such model, type or file, if a token or network is
    /// needed and missing, or if an answer or a download is not what the hub states.
    pub fn pull(&self, models: Models, model: &HubModel, on: &mut dyn FnMut(Event)) -> Result<PathBuf> {
        let (repo, listing) = (Repo::new(&self.cache, &model.id), self.files_of(model, on)?);
        let names: Vec<&str> = listing.files.keys().map(String::as_str).collect();
        let mut files = choose(&names, model.kind.as_deref()).map_err(|reason| model.error(None, reason))?;
        files.sort_by_key(|file| !is_small(file)); // a model that can't be loaded is refused before its weights come
        let folder = repo.snapshot(&listing.commit);
        let download = Download { client: &self.client, repo: &repo, id: &model.id, commit: &listing.commit };
        for &file in &files {
            match (&listing.files[file], fs::metadata(folder.join(file))) {
                (None, _) => {} // the cache's own list
                (Some(stated), Ok(found)) if found.is_file() && found.len() == stated.size => {}
                (Some(stated), _) => {
                    if !is_small(file) && !is_gguf(file) {
                        directory_config(models, &folder)?;
                    }
                    download.fetch(file, stated, on).map_err(|failure| match failure {
                        Failure::Denied(status) => denied(model, status),
                        Failure::Interrupted(reason) | Failure::Final(reason) => {
                            model.error(Some(file), reason)
                        }
                    })?;
                    on(Event::Fetched { file });
                }
            }
        }
        let noted = repo.set_commit(&model.revision, &listing.commit);
        noted.map_err(|error| model.error(None, format!("the cache can't be used: {error}")))?;
        Ok(match files.first() {
            Some(file) if is_gguf(file) => folder.join(file),
            _ => folder,
        })
    }

    /// The files of a model, as the hub lists them or, where it is not asked or can't be reached, as the cache has them.
    fn files_of(&self, model: &HubModel, on: &mut dyn FnMut(Event)) -> Result<Listing> {
        let repo = Repo::new(&self.cache, &model.id);
        match self.offline {
            true => cached(&repo, model, "HF_HUB_OFFLINE is set"),
            false => match self.listing(model) {
                Ok(listing) => Ok(listing),
                Err(Failure::Interrupted(reason)) => {
                    let reason = format!("the hub can't be reached ({reason})");
                    let cached = cached(&repo, model, &reason)?;
                    on(Event::Unreachable { reason: &reason });
                    Ok(cached)
                }
                Err(Failure::Denied(status)) => Err(denied(model, status)),
                Err(Failure::Final(reason)) => Err(model.error(None, format!("the hub's answer: {reason}"))),
            },
        }
    }

    /// The files of a revision as the hub lists them.
    fn listing(&self, model: &HubModel) -> std::result::Result<Listing, Failure> {
        let parts = ["api", "models"].into_iter().chain(model.id.split('/'));
        let mut url = self.client.url(parts.chain(["revision", &model.revision]));
        url.set_query(Some("blobs=true"));
        let response = self.client.get(url, None)?;
        let mut text = Vec::new();
        self.client.read(response, MAX_LISTING, &mut |bytes| {
            text.extend_from_slice(bytes);
            Ok(())
        })?;
        Listing::parse(&text, &model.revision).map_err(Failure::Final)
    }
}

/// The files of a commit; `None` if only the cache is known.
#[derive(Debug)]
struct Listing {
    commit: String,
    files: BTreeMap<String, Option<Stated>>,
}

impl Listing {
    /// Reads the hub's answer; a name, size or hash that can't be used refuses it.
    fn parse(text: &[u8], revision: &str) -> std::result::Result<Self, String> {
        #[derive(Deserialize)]
        struct Info {
            sha: String,
            siblings: Vec<Sibling>,
        }
        #[derive(Deserialize)]
        struct Sibling {
            rfilename: String,
            size: Option<u64>,
            lfs: Option<Lfs>,
        }
        #[derive(Deserialize)]
        struct Lfs {
            sha256: String,
        }
        let info: Info = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        if !is_commit(&info.sha) || is_commit(revision) && info.sha != revision {
            return Err(format!("{:?} is no commit, or not the one that was asked for", info.sha));
        }
        let mut files = BTreeMap::new();
        for Sibling { rfilename: name, size, lfs } in info.siblings {
            if !is_path(&name) {
                return Err(format!("{name:?} is no file name"));
            }
            let size = size.ok_or_else(|| format!("{name} has no size"))?;
            let limit = if is_small(&name) { MAX_SMALL_FILE } else { MAX_FILE };
            if size > limit {
                return Err(format!("{name} has {size} bytes, more than {limit}"));
            }
            let sha256 = lfs.map(|lfs| lfs.sha256);
            if sha256.as_ref().is_some_and(|hash| !is_sha256(hash)) {
                return Err(format!("{name} has no valid SHA-256"));
            }
            files.insert(name, Some(Stated { size, sha256 }));
        }
        Ok(Self { commit: info.sha, files })
    }
}

/// The files of a revision in the cache; `reason` says why the hub is not asked.
fn cached(repo: &Repo, model: &HubModel, reason: &str) -> Result<Listing> {
    let absent = || model.error(None, format!("{reason}, and {} has no copy of it", repo.root().display()));
    let commit = repo.commit(&model.revision).ok_or_else(absent)?;
    let mut files = BTreeMap::new();
    collect(&repo.snapshot(&commit), "", &mut files).map_err(|_| absent())?;
    Ok(Listing { commit, files })
}

/// The files below `folder`, by their paths relative to the first folder. Links to folders are not followed.
fn collect(folder: &Path, above: &str, files: &mut BTreeMap<String, Option<Stated>>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let name = format!("{above}{name}");
        if entry.file_type()?.is_dir() {
            collect(&entry.path(), &format!("{name}/"), files)?;
        } else if is_path(&name) && entry.path().is_file() {
            files.insert(name, None);
        }
    }
    Ok(())
}

/// The error of a cache that can't be read or changed.
fn unusable(path: &Path, error: &io::Error) -> Error {
    Error::Checkpoint { file: path.display().to_string(), item: None, reason: error.to_string() }
}

/// The error for a refusal of the hub.
fn denied(model: &HubModel, status: u16) -> Error {
    model.error(
        None,
        match status {
            404 => format!("the hub has no such model, or it has no revision {}", model.revision),
            _ => "the hub does not give it to this user; a private or gated model needs a token in HF_TOKEN, and a \
                  gated one that its conditions were accepted on its page"
                .to_owned(),
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_told_from_paths() {
        let model = |id: &str, kind: Option<&str>, revision: &str| {
            let kind = kind.map(str::to_owned);
            Some(HubModel { id: id.to_owned(), kind, revision: revision.to_owned() })
        };
        assert_eq!(
            HubModel::parse("Qwen/Qwen3-VL-2B-Instruct"),
            model("Qwen/Qwen3-VL-2B-Instruct", None, "main")
        );
        assert_eq!(HubModel::parse("a/b:Q4_0@refs/pr/1"), model("a/b", Some("Q4_0"), "refs/pr/1"));
        for path in [
            "model", "./a/b", "../b", "/a/b", "a/b/c", "a/", "/b", "a/..", "a/b:", "a/b@", "a/b@..", "a\\b/c",
        ] {
            assert_eq!(HubModel::parse(path), None, "{path}");
        }
    }

    #[test]
    fn a_listing_that_can_not_be_true_is_refused() {
        let commit = "0123456789abcdef0123456789abcdef01234567";
        let parse = |revision: &str, sha: &str, file: &str| {
            let text = format!(r#"{{"sha": "{sha}", "siblings": [{file}]}}"#);
            Listing::parse(text.as_bytes(), revision).map(|listing| listing.files.into_keys().next())
        };
        let config = r#"{"rfilename": "config.json", "size": 9}"#;
        assert_eq!(parse("main", commit, config), Ok(Some("config.json".to_owned())));
        assert!(parse(commit, commit, config).is_ok());
        assert!(parse(&commit.replace('0', "f"), commit, config).unwrap_err().contains("asked for"));
        for sha in ["main", "../x", "/x", "0123", "", "\\u001b[2J"] {
            let error = parse("main", sha, config).unwrap_err();
            assert!(error.contains("is no commit") && !error.contains('\x1b'), "{error}");
        }
        let hash = "a".repeat(64);
        let weights = |size: &str, hash: &str| {
            format!(r#"{{"rfilename": "model.safetensors", "size": {size}, "lfs": {{"sha256": "{hash}"}}}}"#)
        };
        assert!(parse("main", commit, &weights("1099511627776", &hash)).is_ok());
        for (size, hash) in [
            ("1099511627777", &*hash),
            ("18446744073709551615", &hash),
            ("18446744073709551616", &hash),
            ("-1", &hash),
            ("1e3", &hash),
            ("null", &hash),
            ("9", "../x"),
            ("9", &hash[1..]),
        ] {
            assert!(parse("main", commit, &weights(size, hash)).is_err(), "{size} {hash}");
        }
        for name in ["../x", "/x", "a//b", "\\u202egpj.gguf", "\\u001b[2J.gguf"] {
            let error =
                parse("main", commit, &format!(r#"{{"rfilename": "{name}", "size": 9}}"#)).unwrap_err();
            assert!(error.contains("is no file name") && !error.contains(['\x1b', '\u{202e}']), "{error}");
        }
        assert!(parse("main", commit, r#"{"rfilename": "config.json", "size": 67108865}"#).is_err());
        assert!(Listing::parse(&b"[".repeat(1_000_000), "main").is_err());
    }
}
