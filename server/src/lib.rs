//! Qwen3-VL behind an OpenAI-compatible HTTP interface, with a page to talk to.
//!
//! A request passes through these files: `listen` accepts it, `app` finds its handler, `request` reads its body, `images` gets its
//! pictures, `prepare` makes a prompt of it, [`worker`] queues it for the replica that `balance` chooses, `replica` computes,
//! `answer` collects events, `reply` gives them OpenAI's shape and `stream` sends them as they come.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod answer;
mod app;
mod balance;
mod error;
mod fields;
mod grammar;
mod images;
mod limits;
mod listen;
pub mod metrics;
mod page;
mod prepare;
mod replica;
mod reply;
mod request;
mod stream;
pub mod worker;

pub use app::Config;
pub use limits::Limits;
pub use listen::{End, Stop, run};

/// Reads bodies without a server: for tests.
pub struct Reader {
    config: Config,
    grammars: grammar::Grammars,
}

impl Reader {
    /// For a model's tokenizer.
    ///
    /// # Errors
    /// A sentence, if no grammars can be made for it.
    pub fn new(config: Config, processor: &qwen3_vl::Processor) -> Result<Self, String> {
        Ok(Self { config, grammars: grammar::Grammars::new(processor)? })
    }

    /// Whether one of the addresses would take this body. Nothing is fetched, no picture decoded and no token computed.
    pub fn takes(&self, body: &[u8]) -> bool {
        let Ok(body) = request::parse(body) else { return false };
        let has_rule = |chat: request::Chat| match chat.wish.schema {
            Some(schema) => self.grammars.json(schema).is_ok(),
            None => true,
        };
        request::Chat::read(&body, &self.config).is_ok_and(has_rule)
            || request::Completion::read(&body, &self.config).is_ok()
            || request::Tokenize::read(&body, &self.config.limits).is_ok()
    }
}
