//! A server's configuration, and what it needs to answer with a model.

use super::account::Account;
use super::error::ApiError;
use super::grammar::Grammars;
use super::lanes::Lanes;
use super::limits::Limits;
use super::worker::Worker;
use qwen3_vl::{ControlTokens, Options};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

type Result<T> = std::result::Result<T, ApiError>;

/// A server's configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// The model's name in answers and in `/v1/models`.
    pub name: String,
    /// The adapters that requests choose by `model`. If there are any, a request with another name is refused.
    pub adapters: Vec<String>,
    /// Defaults for fields that a request does not set, except the seed.
    pub defaults: Options,
    /// The seed of requests that give none; `None`: a random one for each.
    pub seed: Option<u64>,
    /// The limits of requests.
    pub limits: Limits,
    /// How control tokens that are spelled in texts are read.
    pub control_tokens: ControlTokens,
    /// The key that requests must have; `None`: none.
    pub api_key: Option<String>,
    /// Origins of web pages that may use the server besides its own; `*` for all.
    pub cors_origins: Vec<String>,
    /// Names that the server has besides this machine's own, if it is on a loopback address without a key. If there are
    /// any, it answers to no others.
    pub allowed_hosts: Vec<String>,
    /// How long running answers may take to end when the server is stopped.
    pub grace: Duration,
}

/// The model that a request names.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Named {
    /// Its name in the answer.
    pub name: String,
    pub adapter: Option<String>,
}

impl Config {
    /// The model and its adapters, as requests name them.
    pub(crate) fn names(&self) -> impl Iterator<Item = String> {
        let with = self.adapters.iter().map(|adapter| format!("{}:{adapter}", self.name));
        std::iter::once(self.name.clone()).chain(with)
    }

    /// What `model` names. Without adapters there is one model, so any name is it.
    pub(crate) fn named(&self, name: Option<&str>) -> Result<Named> {
        let own = Named { name: self.name.clone(), adapter: None };
        let Some(name) = name.filter(|name| !self.adapters.is_empty() && *name != self.name) else {
            return Ok(own);
        };
        let of_model = name.strip_prefix(&self.name).and_then(|rest| rest.strip_prefix(':'));
        let asked = of_model.unwrap_or(name);
        match self.adapters.iter().find(|adapter| *adapter == asked) {
            Some(adapter) => {
                Ok(Named { name: format!("{}:{adapter}", self.name), adapter: Some(adapter.clone()) })
            }
            None => Err(ApiError::no_model(name, self.names())),
        }
    }
}

/// What is needed to answer with a model.
pub(crate) struct App {
    pub worker: Arc<Worker>,
    pub config: Config,
    /// The server's.
    pub account: Arc<Account>,
    pub lanes: Arc<Lanes>,
    grammars: OnceLock<std::result::Result<Grammars, String>>,
    /// The most bytes of text that can fit the context.
    pub longest_text: usize,
    /// The most bytes of a token's text.
    pub longest_token: usize,
}

impl App {
    pub fn new(worker: Arc<Worker>, config: Config, account: Arc<Account>, lanes: Arc<Lanes>) -> Self {
        let processor = &worker.model().processor;
        let ids = 0..processor.config.text.vocab_size as u32;
        let bytes = |id| {
            let control = processor.tokenizer.control(id).map_or(0, |spelling| spelling.len());
            processor.tokenizer.token_bytes(id).len().max(control)
        };
        let longest_token = ids.map(bytes).max().unwrap_or(1);
        // normalisation to NFC shrinks text to no less than a third of its bytes
        let longest_text = config.limits.context.saturating_mul(3 * longest_token);
        Self { worker, config, account, lanes, grammars: OnceLock::new(), longest_text, longest_token }
    }

    /// Ends its threads and frees its memory, if nobody else has them.
    pub fn end(self) {
        if let Some(worker) = Arc::into_inner(self.worker) {
            worker.end();
        }
    }

    /// Built at the first use, which takes a moment.
    pub fn grammars(&self) -> Result<&Grammars> {
        let grammars = self.grammars.get_or_init(|| Grammars::new(&self.worker.model().processor));
        grammars.as_ref().map_err(|reason| ApiError::unsupported("response_format", reason))
    }

    pub fn too_slow(&self) -> ApiError {
        ApiError::too_slow(self.config.limits.time.as_secs())
    }
}
