//! Checkpoints from the Hugging Face hub, in the cache that the hub's own tools use.
//!
//! A model is written `OWNER/NAME`, with `:TYPE` for one type of a repository of GGUF files and `@REVISION` for a
//! branch, tag or commit. Only the files that loading needs are fetched. An interrupted download resumes where it
//! ended, and a finished file must have the size and SHA-256 that the hub states. Source: the hub's HTTP interface and
//! the layout of its cache, as the `hf-hub` crate implements them.

use super::checkpoint::SMALL_FILES;
use hf_hub::api::sync::{Api, ApiBuilder, ApiError};
use hf_hub::{Cache, Repo, RepoType};
use pascaline::{Error, Result};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::env;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// Where models are if `HF_ENDPOINT` does not say otherwise.
const ENDPOINT: &str = "https://huggingface.co";
/// How long a transfer may stall before it counts as interrupted.
const SILENCE: Duration = Duration::from_secs(60);
/// How often a file's download is tried.
const ATTEMPTS: u32 = 5;
/// The error if the partial file is at least as long as the whole.
const TOO_MUCH: &str =
    "the partial file of an earlier download is too long; delete the .part file in the cache";
/// The types to choose from if none is given: the first one that the repository has.
const USUAL_TYPES: [&str; 3] = ["Q4_K_M", "Q8_0", "Q4_0"];
/// The types of a vision file in the order in which they are preferred.
const VISION_TYPES: [&str; 4] = ["F16", "BF16", "Q8_0", "F32"];
/// A model on the hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubModel {
    /// `OWNER/NAME`
    pub id: String,
    /// The type of GGUF files, such as `Q4_K_M`.
    pub kind: Option<String>,
    /// A branch, tag or commit.
    pub revision: String,
}

impl HubModel {
    /// Reads `OWNER/NAME[:TYPE][@REVISION]`; `None` for text of another form, which may be a path.
    ///
    /// ```
    /// use qwen3_vl::hub::HubModel;
    /// let model = HubModel::parse("Qwen/Qwen3-VL-2B-Instruct-GGUF:Q4_K_M").unwrap();
    /// assert_eq!((&*model.id, model.kind.as_deref()), ("Qwen/Qwen3-VL-2B-Instruct-GGUF", Some("Q4_K_M")));
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

    fn error(&self, item: Option<&str>, reason: impl Into<String>) -> Error {
        Error::Checkpoint { file: self.id.clone(), item: item.map(str::to_owned), reason: reason.into() }
    }
}

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

/// A hub and its cache on this machine.
pub struct Hub {
    cache: Cache,
    endpoint: String,
    token: Option<String>,
    offline: bool,
}

impl Hub {
    /// Configured by the environment as the hub's own tools: `HF_ENDPOINT`, `HF_TOKEN`, `HF_HOME`, `HF_HUB_CACHE`, and
    /// `HF_HUB_OFFLINE`, with which the network is not used.
    pub fn from_env() -> Self {
        let variable = |name| env::var(name).ok().filter(|value| !value.is_empty());
        let cache = variable("HF_HUB_CACHE").map_or_else(Cache::from_env, |path| Cache::new(path.into()));
        let token = variable("HF_TOKEN").or_else(|| cache.token());
        let endpoint = variable("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.to_owned());
        let yes = |value: String| ["1", "on", "yes", "true"].contains(&value.to_lowercase().as_str());
        let offline = variable("HF_HUB_OFFLINE").is_some_and(yes);
        Self { cache, endpoint: endpoint.trim_end_matches('/').to_owned(), token, offline }
    }

    /// Fetches the files of a model that the cache lacks and returns its path: a directory with `config.json` and
    /// safetensors, or a GGUF file with the vision file in the same folder.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] with the model and the file if there is no such model, type or file, if a token or network is
    /// needed and missing, or if a download is not what the hub states.
    pub fn pull(&self, model: &HubModel, on: &mut dyn FnMut(Event)) -> Result<PathBuf> {
        let api = ApiBuilder::from_cache(self.cache.clone())
            .with_endpoint(self.endpoint.clone())
            .with_token(self.token.clone())
            .with_progress(false)
            .build()
            .map_err(|error| model.error(None, error.to_string()))?;
        let listing = match self.offline {
            true => self.cached(model, "HF_HUB_OFFLINE is set")?,
            false => match listing(&api, model) {
                Ok(listing) => listing,
                Err(Refusal::Final(error)) => return Err(error),
                Err(Refusal::Unreachable(reason)) => {
                    let cached = self.cached(model, &reason)?;
                    on(Event::Unreachable { reason: &reason });
                    cached
                }
            },
        };
        let names: Vec<&str> = listing.files.keys().map(String::as_str).collect();
        let files = choose(&names, model.kind.as_deref()).map_err(|reason| model.error(None, reason))?;
        for &file in &files {
            let path = listing.folder(&self.cache, model).join(file);
            match (&listing.files[file], fs::metadata(&path)) {
                (None, _) => {} // the cache's own list
                (Some(stated), Ok(found)) if found.len() == stated.size => {}
                (Some(stated), _) => {
                    fetch(&api, model, &listing.commit, file, stated.size, on)?;
                    verify(model, file, &path, stated)?;
                    on(Event::Fetched { file });
                }
            }
        }
        let repo = self.cache.repo(repo(model, &model.revision));
        repo.create_ref(&listing.commit).map_err(|error| model.error(None, format!("its cache: {error}")))?;
        let folder = listing.folder(&self.cache, model);
        Ok(match files.first() {
            Some(file) if is_gguf(file) => folder.join(file),
            _ => folder,
        })
    }

    /// The files of a revision in the cache; `reason` says why the hub is not asked.
    fn cached(&self, model: &HubModel, reason: &str) -> Result<Listing> {
        let root = self.cache.path().join(repo(model, &model.revision).folder_name());
        let by_name = fs::read_to_string(root.join("refs").join(&model.revision));
        let commit = by_name.map_or_else(|_| model.revision.clone(), |commit| commit.trim().to_owned());
        let absent = || model.error(None, format!("{reason}, and {} has no copy of it", root.display()));
        if !is_plain(&commit) {
            return Err(absent());
        }
        let folder = root.join("snapshots").join(&commit);
        let mut files = BTreeMap::new();
        collect(&folder, &folder, &mut files).map_err(|_| absent())?;
        Ok(Listing { commit, files })
    }
}

/// A file as the hub lists it.
struct Stated {
    size: u64,
    /// Of large files, in hexadecimal.
    sha256: Option<String>,
}

/// The files of a commit; sizes are `None` if only the cache is known.
struct Listing {
    commit: String,
    files: BTreeMap<String, Option<Stated>>,
}

impl Listing {
    /// Where the cache shows this commit's files.
    fn folder(&self, cache: &Cache, model: &HubModel) -> PathBuf {
        let repo = repo(model, &model.revision).folder_name();
        cache.path().join(repo).join("snapshots").join(&self.commit)
    }
}

/// Why there is no listing.
enum Refusal {
    Unreachable(String),
    Final(Error),
}

fn repo(model: &HubModel, revision: &str) -> Repo {
    Repo::with_revision(model.id.clone(), RepoType::Model, revision.to_owned())
}

/// Whether a path of a repository stays in the folder that it is joined to.
fn is_plain(path: &str) -> bool {
    !path.is_empty() && Path::new(path).components().all(|part| matches!(part, Component::Normal(_)))
}

/// The files below `folder`, by their paths relative to `root`.
fn collect(root: &Path, folder: &Path, files: &mut BTreeMap<String, Option<Stated>>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(root, &path, files)?;
        } else if let Some(name) = path.strip_prefix(root).ok().and_then(Path::to_str) {
            files.insert(name.replace('\\', "/"), None);
        }
    }
    Ok(())
}

fn listing(api: &Api, model: &HubModel) -> std::result::Result<Listing, Refusal> {
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
    let (api, copy) = (api.clone(), model.clone());
    let asked = with_limit(move |_| {
        let request = api.repo(repo(&copy, &copy.revision)).info_request().query("blobs", "true");
        match request.call() {
            Ok(response) => response.into_string().map_err(|error| (None, error.to_string())),
            Err(error) => {
                let text = error.to_string();
                Err((error.into_response().map(|response| response.status()), text))
            }
        }
    });
    let text = match asked.wait(&mut |_| {}).unwrap_or_else(|reason| Err((None, reason))) {
        Ok(text) => text,
        Err((status @ Some(401 | 403 | 404), _)) => return Err(Refusal::Final(denied(model, status))),
        Err((_, reason)) => return Err(Refusal::Unreachable(format!("the hub can't be reached ({reason})"))),
    };
    let wrong = |reason: String| Refusal::Final(model.error(None, format!("the hub's answer: {reason}")));
    let info: Info = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    if !info.sha.chars().all(|c| c.is_ascii_hexdigit()) || info.sha.is_empty() {
        return Err(wrong(format!("{:?} is no commit", info.sha)));
    }
    let mut files = BTreeMap::new();
    for file in info.siblings {
        if !is_plain(&file.rfilename) {
            return Err(wrong(format!("{:?} is no file name", file.rfilename)));
        }
        let Some(size) = file.size else { return Err(wrong(format!("{} has no size", file.rfilename))) };
        files.insert(file.rfilename, Some(Stated { size, sha256: file.lfs.map(|lfs| lfs.sha256) }));
    }
    Ok(Listing { commit: info.sha, files })
}

/// The error for a refusal of the hub.
fn denied(model: &HubModel, status: Option<u16>) -> Error {
    model.error(
        None,
        match status {
            Some(404) => format!("the hub has no such model, or it has no revision {}", model.revision),
            _ => "the hub does not give it to this user; a private or gated model needs a token in HF_TOKEN, and a \
                  gated one that its conditions were accepted on its page"
                .to_owned(),
        },
    )
}

/// The messages of a transfer's thread.
enum Told<T> {
    Bytes(u64),
    Done(T),
}

struct Limited<T>(mpsc::Receiver<Told<T>>);

/// Runs `work` on a thread. `hf-hub` has no timeouts, so a stalled connection is abandoned with its thread.
fn with_limit<T: Send + 'static>(
    work: impl FnOnce(mpsc::Sender<Told<T>>) -> T + Send + 'static,
) -> Limited<T> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let result = work(sender.clone());
        let _ = sender.send(Told::Done(result)); // nobody may wait any more
    });
    Limited(receiver)
}

impl<T> Limited<T> {
    /// The result; `on_bytes` sees the bytes that came meanwhile.
    fn wait(self, on_bytes: &mut dyn FnMut(u64)) -> std::result::Result<T, String> {
        loop {
            match self.0.recv_timeout(SILENCE) {
                Ok(Told::Bytes(count)) => on_bytes(count),
                Ok(Told::Done(result)) => return Ok(result),
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    return Err(format!("nothing came for {} seconds", SILENCE.as_secs()));
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => return Err("the transfer failed".to_owned()),
            }
        }
    }
}

struct Bytes(mpsc::Sender<Told<std::result::Result<(), ApiError>>>);

impl hf_hub::api::Progress for Bytes {
    fn init(&mut self, _size: usize, _filename: &str) {}

    fn update(&mut self, size: usize) {
        let _ = self.0.send(Told::Bytes(size as u64)); // nobody may wait any more
    }

    fn finish(&mut self) {}
}

/// Downloads one file into the cache; each attempt resumes the one before.
fn fetch(
    api: &Api,
    model: &HubModel,
    commit: &str,
    file: &str,
    size: u64,
    on: &mut dyn FnMut(Event),
) -> Result<()> {
    let mut attempt = 1;
    loop {
        on(Event::Progress { file, loaded: 0, size });
        let (repo, name) = (api.repo(repo(model, commit)), file.to_owned());
        let transfer =
            with_limit(move |sender| repo.download_with_progress(&name, Bytes(sender)).map(|_| ()));
        let mut loaded = 0;
        let result = transfer.wait(&mut |count| {
            loaded += count;
            on(Event::Progress { file, loaded, size });
        });
        let reason = match result {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(ApiError::RequestError(error))) => {
                let reason = error.to_string();
                match error.into_response().map(|response| response.status()) {
                    status @ Some(401 | 403 | 404) => return Err(denied(model, status)),
                    Some(416) => return Err(model.error(Some(file), TOO_MUCH)),
                    _ => reason,
                }
            }
            Ok(Err(ApiError::InvalidResume)) => return Err(model.error(Some(file), TOO_MUCH)),
            Ok(Err(error)) => error.to_string(),
            Err(reason) => reason,
        };
        if attempt == ATTEMPTS {
            let reason = format!("can't be downloaded: {reason}; the same command resumes it");
            return Err(model.error(Some(file), reason));
        }
        on(Event::Retry { file, reason: &reason });
        thread::sleep(Duration::from_millis(200) * 2u32.pow(attempt));
        attempt += 1;
    }
}

/// Checks a downloaded file's size and hash; one that differs is deleted.
fn verify(model: &HubModel, file: &str, path: &Path, stated: &Stated) -> Result<()> {
    let unreadable = |error: io::Error| model.error(Some(file), error.to_string());
    let mut open = File::open(path).map_err(unreadable)?;
    let size = open.metadata().map_err(unreadable)?.len();
    let same = size == stated.size
        && match &stated.sha256 {
            None => true,
            Some(sha256) => {
                let mut hash = Sha256::new();
                let mut buffer = vec![0; 1 << 20];
                loop {
                    match open.read(&mut buffer).map_err(unreadable)? {
                        0 => break,
                        count => hash.update(&buffer[..count]),
                    }
                }
                let found: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
                found.eq_ignore_ascii_case(sha256)
            }
        };
    if same {
        return Ok(());
    }
    for path in [fs::canonicalize(path).ok(), Some(path.to_owned())].into_iter().flatten() {
        let _ = fs::remove_file(path); // the error below is the one that counts
    }
    let reason = "the download is not what the hub states (size or SHA-256); it was deleted, the same command tries again";
    Err(model.error(Some(file), reason))
}

fn is_gguf(name: &str) -> bool {
    name.to_lowercase().ends_with(".gguf")
}

/// A GGUF file's name without folder, ending and part number, in lower case.
fn stem(name: &str) -> String {
    let name = name.rsplit('/').next().unwrap_or(name).to_lowercase();
    let name = name.strip_suffix(".gguf").unwrap_or(&name);
    match part(name) {
        Some(_) => name[..name.len() - "-00001-of-00002".len()].to_owned(),
        None => name.to_owned(),
    }
}

/// The number of a split file's part, from 1, of a name without its ending.
fn part(name: &str) -> Option<u32> {
    let (head, count) = name.rsplit_once("-of-")?;
    let (_, number) = head.rsplit_once('-')?;
    let digits = |text: &str| text.len() == 5 && text.chars().all(|c| c.is_ascii_digit());
    if digits(number) && digits(count) { number.parse().ok() } else { None }
}

fn has_type(stem: &str, kind: &str) -> bool {
    let kind = kind.to_lowercase();
    stem.strip_suffix(&kind).is_some_and(|rest| rest.ends_with(['-', '.', '_']))
}

/// The files of a repository that loading needs, the model's first.
fn choose<'a>(names: &[&'a str], kind: Option<&str>) -> std::result::Result<Vec<&'a str>, String> {
    let all: Vec<&str> = names.iter().copied().filter(|name| is_gguf(name)).collect();
    let (vision, text): (Vec<&str>, Vec<&str>) =
        all.into_iter().partition(|name| stem(name).contains("mmproj"));
    let weights = |name: &str| {
        let shard = name.strip_prefix("model-").and_then(|rest| rest.strip_suffix(".safetensors"));
        name == "model.safetensors"
            || name == "model.safetensors.index.json"
            || shard.is_some_and(|shard| part(&format!("-{shard}")).is_some())
    };
    if kind.is_none() && names.iter().any(|name| weights(name)) {
        let wanted = |name: &&str| SMALL_FILES.contains(name) || weights(name);
        return Ok(names.iter().copied().filter(wanted).collect());
    }
    if text.is_empty() {
        return Err("it has neither safetensors nor GGUF files".to_owned());
    }
    let with = |files: &[&'a str], kind: &str| -> Option<Vec<&'a str>> {
        // `X-Q4_K_M` rather than `X-UD-Q4_K_M`
        let model = files
            .iter()
            .map(|name| stem(name))
            .filter(|stem| has_type(stem, kind))
            .min_by_key(String::len)?;
        let mut parts: Vec<&str> = files.iter().copied().filter(|name| stem(name) == model).collect();
        parts.sort_unstable();
        Some(parts)
    };
    let mut files = match kind {
        Some(kind) => with(&text, kind),
        None => USUAL_TYPES.iter().find_map(|kind| with(&text, kind)).or_else(|| match &text[..] {
            [only] => Some(vec![*only]),
            _ => None,
        }),
    }
    .ok_or_else(|| {
        let wanted = kind.map_or_else(|| USUAL_TYPES.join(", "), str::to_owned);
        format!("it has no {wanted}; it has {}", text.join(", "))
    })?;
    let preferred = VISION_TYPES.iter().find_map(|kind| with(&vision, kind));
    files.extend(preferred.or_else(|| vision.first().map(|file| vec![*file])).into_iter().flatten());
    Ok(files)
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
    fn a_repository_of_gguf_files_gives_one_type_and_the_vision_file() {
        let names = [
            ".gitattributes",
            "README.md",
            "Qwen3VL-2B-Instruct-F16.gguf",
            "Qwen3VL-2B-Instruct-Q4_K_M.gguf",
            "Qwen3VL-2B-Instruct-UD-Q4_K_M.gguf",
            "Qwen3VL-2B-Instruct-Q8_0.gguf",
            "big/Qwen3VL-2B-Instruct-BF16-00001-of-00002.gguf",
            "big/Qwen3VL-2B-Instruct-BF16-00002-of-00002.gguf",
            "mmproj-Qwen3VL-2B-Instruct-F16.gguf",
            "mmproj-Qwen3VL-2B-Instruct-Q8_0.gguf",
        ];
        let vision = "mmproj-Qwen3VL-2B-Instruct-F16.gguf";
        assert_eq!(choose(&names, None).unwrap(), ["Qwen3VL-2B-Instruct-Q4_K_M.gguf", vision]);
        assert_eq!(choose(&names, Some("q8_0")).unwrap(), ["Qwen3VL-2B-Instruct-Q8_0.gguf", vision]);
        assert_eq!(
            choose(&names, Some("BF16")).unwrap(),
            [
                "big/Qwen3VL-2B-Instruct-BF16-00001-of-00002.gguf",
                "big/Qwen3VL-2B-Instruct-BF16-00002-of-00002.gguf",
                vision
            ]
        );
        let error = choose(&names, Some("Q5_K_M")).unwrap_err();
        assert!(error.starts_with("it has no Q5_K_M; it has Qwen3VL-2B-Instruct-F16.gguf, "), "{error}");
        assert!(choose(&["README.md"], None).unwrap_err().contains("neither"));
        assert_eq!(choose(&["x.gguf"], None).unwrap(), ["x.gguf"]);
    }

    #[test]
    fn a_repository_of_safetensors_gives_what_loading_reads() {
        let names = [
            "README.md",
            "chat_template.json",
            "config.json",
            "merges.txt",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model.safetensors.index.json",
            "tokenizer.json",
            "training_args.bin",
            "vocab.json",
        ];
        let wanted = [names[1], names[2], names[4], names[5], names[6], names[7]];
        assert_eq!(choose(&names, None).unwrap(), wanted);
    }
}
