//! Prefix caching: keys of prompt prefixes, and which of them a batch's pages hold.

use crate::media::Patches;
use crate::model::LanguageModel;
use crate::network::clip;
use crate::pass::pages_of;
use crate::processor::Prompt;
use crate::text::ImageRun;
use pascaline::ops::PAGE;
use pascaline::{Error, Result};
use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::sync::{Arc, LazyLock, PoisonError, RwLock};
use std::time::Duration;

/// Identifies the tokens of a page and of all pages before it: 128 bits of SipHash, keyed anew in each process. A collision
/// is practically impossible, and a client can't search for one.
pub(super) type Key = u128;

/// The hash of what `write` writes.
fn key_of(write: impl Fn(&mut dyn Hasher)) -> Key {
    let mut hashers = hashers();
    hashers.iter_mut().for_each(|hasher| write(hasher));
    finish(&hashers)
}

/// Hashers of a key's two halves.
fn hashers() -> [impl Hasher; 2] {
    static STATES: LazyLock<[RandomState; 2]> = LazyLock::new(Default::default);
    STATES.each_ref().map(BuildHasher::build_hasher)
}

fn finish([high, low]: &[impl Hasher; 2]) -> Key {
    u128::from(high.finish()) << 64 | u128::from(low.finish())
}

/// The hash of an image's contents: hundreds of megabytes, if it is large.
fn digest(patches: &Patches, network: usize, goes_on: &dyn Fn() -> bool) -> Result<Key> {
    let mut hashers = hashers();
    hashers.iter_mut().for_each(|hasher| network.hash(hasher)); // an adapter may change the tower
    hashers.iter_mut().for_each(|hasher| patches.grid.hash(hasher));
    for values in patches.values.chunks(1 << 20) {
        if !goes_on() {
            return Err(Error::Prompt { reason: "it is no longer wanted".into() });
        }
        hashers.iter_mut().for_each(|hasher| hasher.write(bytemuck::cast_slice(values)));
    }
    Ok(finish(&hashers))
}

/// The key of the full page of `ids` after those that have `keys`, computed by this network. `runs` are the image tokens among the
/// ids, and `digests` the images' keys.
pub(super) fn page_key(keys: &[Key], network: usize, ids: &[u32], runs: &[ImageRun], digests: &[Key]) -> Key {
    let (start, before) = (keys.len() * PAGE, keys.last().copied());
    let tokens = &ids[start..start + PAGE];
    // image tokens all have the same id: the image's hash and the row in it distinguish them
    let images: Vec<(Key, usize, usize, usize)> = clip(runs, start, PAGE)
        .into_iter()
        .map(|run| (digests[run.output], run.start, run.len, run.row))
        .collect();
    let page = (before, network, tokens, images);
    key_of(|mut hasher| page.hash(&mut hasher))
}

/// A prompt with the keys of its prefixes. All batches of a process have the same key for the same prefix. Clones share the
/// prompt and its patches.
#[derive(Clone)]
pub struct KeyedPrompt {
    pub(super) prompt: Arc<Prompt>,
    /// 0 for the model's own, or the number of its adapter, from 1 on.
    pub(super) network: usize,
    /// The runs of image tokens.
    pub(super) runs: Vec<ImageRun>,
    /// Of the images.
    pub(super) digests: Vec<Key>,
    /// Of the full pages before the last token, which is computed in any case.
    pub(super) keys: Vec<Key>,
    /// Is told of the progress.
    pub(super) receive: Option<ReceiveProgress>,
}

pub(super) type ReceiveProgress = Arc<dyn Fn(PromptProgress) + Send + Sync>;

/// How far a prompt of a batch is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromptProgress {
    /// Its tokens.
    pub total: usize,
    /// Of these, the ones that were found in the pool.
    pub cached: usize,
    /// Tokens that are computed or were found.
    pub processed: usize,
    /// The time since the request was added.
    pub time: Duration,
}

impl fmt::Debug for KeyedPrompt {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("KeyedPrompt").field("prompt", &self.prompt).finish_non_exhaustive()
    }
}

impl KeyedPrompt {
    /// With a receiver of the progress, which a batch calls after each part of the prompt, the last one included.
    pub fn reporting(self, receive: impl Fn(PromptProgress) + Send + Sync + 'static) -> Self {
        Self { receive: Some(Arc::new(receive)), ..self }
    }

    /// Computes the keys, for batches of this model or of others with the same weights.
    ///
    /// # Errors
    /// [`Error::Prompt`] if the image tokens are not those of the images.
    pub fn new(model: &LanguageModel, prompt: Prompt) -> Result<Self> {
        Self::new_while(model, prompt, &|| true)
    }

    /// As [`new`](Self::new), for as long as `goes_on` says so.
    ///
    /// # Errors
    /// As [`new`](Self::new), and [`Error::Prompt`] when `goes_on` ends it.
    pub fn new_while(model: &LanguageModel, prompt: Prompt, goes_on: &dyn Fn() -> bool) -> Result<Self> {
        Self::new_adapted(model, prompt, None, goes_on)
    }

    /// As [`new_while`](Self::new_while), to be answered with the model's adapter of this name.
    ///
    /// # Errors
    /// As there, and [`Error::Prompt`] if the model has no such adapter.
    pub fn new_adapted(
        model: &LanguageModel,
        prompt: Prompt,
        adapter: Option<&str>,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<Self> {
        let network = match adapter {
            None => 0,
            Some(name) => {
                let at = model.adapters().position(|other| other == name);
                at.map(|at| at + 1)
                    .ok_or_else(|| Error::Prompt { reason: format!("the model has no adapter {name:?}") })?
            }
        };
        let runs = model.prompt_runs(&prompt)?;
        let digests = prompt.patches.iter().map(|patches| digest(patches, network, goes_on));
        let digests = digests.collect::<Result<Vec<_>>>()?;
        let full = pages_of(prompt.ids.len()).saturating_sub(1);
        let mut keys = Vec::with_capacity(full);
        while keys.len() < full {
            keys.push(page_key(&keys, network, &prompt.ids, &runs, &digests));
        }
        Ok(Self { prompt: Arc::new(prompt), network, runs, digests, keys, receive: None })
    }

    /// The prompt.
    pub fn prompt(&self) -> &Prompt {
        &self.prompt
    }
}

/// Which page of a batch holds which prefix. Clones refer to the same batch, so that other threads can ask where a prompt
/// takes the least work.
#[derive(Clone, Debug, Default)]
pub struct Prefixes(Arc<RwLock<HashMap<Key, u32>>>);

impl Prefixes {
    /// How many tokens at the prompt's start need not be computed again, at this moment.
    pub fn tokens_held(&self, prompt: &KeyedPrompt) -> usize {
        let held = self.0.read().unwrap_or_else(PoisonError::into_inner);
        prompt.keys.iter().take_while(|key| held.contains_key(key)).count() * PAGE
    }

    pub(super) fn get(&self, key: Key) -> Option<u32> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(&key).copied()
    }

    pub(super) fn insert(&self, key: Key, page: u32) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(key, page);
    }

    pub(super) fn remove(&self, key: Key) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).remove(&key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::media::Positions;

    #[test]
    fn keys_tell_beginnings_apart() {
        let ids: Vec<u32> = (0..3 * PAGE as u32).collect();
        let first = page_key(&[], 0, &ids, &[], &[]);
        assert_eq!(page_key(&[], 0, &ids[..PAGE], &[], &[]), first, "the tokens after a page do not matter");
        assert_ne!(page_key(&[], 0, &ids[1..], &[], &[]), first);
        assert_ne!(page_key(&[], 1, &ids, &[], &[]), first, "another adapter");
        let second = page_key(&[first], 0, &ids, &[], &[]);
        assert_ne!(page_key(&[first + 1], 0, &ids, &[], &[]), second, "those before it do");
        let run = |row| [ImageRun { start: PAGE, len: PAGE, output: 0, row }];
        let with = |row, image| page_key(&[first], 0, &ids, &run(row), &[image]);
        assert_ne!(with(0, 7), second);
        assert_ne!(with(0, 7), with(0, 8), "another image");
        assert_ne!(with(0, 7), with(1, 7), "another part of it");
        assert_eq!(with(0, 7), with(0, 7));
    }

    #[test]
    fn a_beginning_is_held_up_to_the_first_page_that_is_not() {
        let prompt = Prompt {
            ids: Vec::new(),
            positions: Positions { axes: Vec::new(), rope_delta: 0 },
            patches: Vec::new(),
        };
        let keys = vec![1, 2, 3];
        let prompt = KeyedPrompt {
            prompt: Arc::new(prompt),
            network: 0,
            runs: Vec::new(),
            digests: Vec::new(),
            keys,
            receive: None,
        };
        let prefixes = Prefixes::default();
        let other_thread = prefixes.clone();
        assert_eq!(other_thread.tokens_held(&prompt), 0);
        [1, 3].into_iter().for_each(|key| prefixes.insert(key, 0));
        assert_eq!(other_thread.tokens_held(&prompt), PAGE);
        prefixes.insert(2, 1);
        assert_eq!(other_thread.tokens_held(&prompt), 3 * PAGE);
        prefixes.remove(1);
        assert_eq!(other_thread.tokens_held(&prompt), 0);
    }
}
