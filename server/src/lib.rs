//! An OpenAI-compatible HTTP server for Qwen3-VL, with a web page for chat.
//!
//! The files in the order in which a request goes through them: `listen` accepts its `connection`, for which `admission` has
//! a place, until `stop` ends the server, `app` routes it if `visitors` lets it in, `server` reads it, `models` has the model that it names, `json` and `request` parse its body, `images` gets its pictures and
//! `videos` their frames,
//! `prepare` makes its prompt, [`worker`] puts it into the `queue` of the replica that `balance` chooses, `replica` computes, `answer`
//! collects events, `reply` formats them as OpenAI does and `stream` sends them; `embed` answers with vectors and scores. All the while `account` has its memory; `lanes` runs the work that
//! keeps a thread busy, and `log` writes its line. Batching and sampling are `qwen3_vl`'s, options of the command line `cli/src/serve.rs`'.

#![deny(unsafe_code)] // but for two calls of the C library, in `system`
#![deny(missing_docs)]

mod account;
mod admission;
mod answer;
mod anthropic;
mod app;
mod balance;
mod calls;
mod connection;
mod embed;
mod error;
mod fields;
mod form;
mod grammar;
mod images;
mod json;
mod lanes;
mod lark;
mod left;
mod limits;
mod listen;
mod log;
mod messages;
pub mod metrics;
mod model;
mod models;
mod ollama;
mod page;
mod prepare;
mod queue;
mod refused;
mod replica;
mod reply;
mod request;
mod responses;
mod rule;
mod server;
mod state;
mod stop;
mod stream;
mod system;
mod tool;
mod tools;
mod unfinished;
mod videos;
mod visitors;
pub mod worker;

pub use account::{Charge, default_memory};
pub use images::fetch_picture;
pub use limits::Limits;
pub use listen::{End, run};
pub use model::Config;
pub use models::{Loaded, Served, Source};
pub use stop::Stop;

/// Parses request bodies without a server: for tests.
pub struct Reader {
    config: Config,
    grammars: grammar::Grammars,
}

impl Reader {
    /// For a model's tokenizer.
    ///
    /// # Errors
    /// A sentence, if no grammar can be built on the tokenizer's vocabulary.
    pub fn new(config: Config, processor: &qwen3_vl::Processor) -> Result<Self, String> {
        Ok(Self { config, grammars: grammar::Grammars::new(processor)? })
    }

    /// Whether one of the routes would accept this body. Nothing is fetched, decoded or computed.
    pub fn takes(&self, body: &[u8]) -> bool {
        let mut charge = account::Account::new(self.config.limits.memory).open();
        let Ok(body) = json::parse(body, &mut charge) else { return false };
        let has_rule = |wish: &request::Wish| match &wish.rule {
            Some(rule) => [false, true].iter().all(|thought| self.grammars.matcher(rule, *thought).is_ok()),
            None => true,
        };
        let (config, limits) = (&self.config, &self.config.limits);
        let chats = [
            request::Chat::read(&body, config),
            anthropic::read(body.clone(), config).map(|asked| asked.chat),
            responses::read(body.clone(), config).map(|asked| asked.chat),
            ollama::read_chat(body.clone(), config).map(|asked| asked.chat),
            ollama::read_generate(body.clone(), config).map(|asked| asked.chat),
        ];
        chats.into_iter().flatten().any(|chat| has_rule(&chat.wish))
            || request::Completion::read(&body, config).is_ok_and(|completion| has_rule(&completion.wish))
            || request::Tokenize::read(&body, limits).is_ok()
            || request::Detokenize::read(&body, limits).is_ok()
            || embed::Embeddings::read(&body, config).is_ok()
            || embed::Rerank::read(&body, config).is_ok()
    }
}
