//! Qwen3-VL behind an OpenAI-compatible HTTP interface, with a page to talk to.
//!
//! A request passes through these files: `listen` accepts it, `app` finds its handler, `request` reads its body, `images` gets its
//! pictures, `prepare` makes a prompt of it, [`worker`] computes, `answer` collects events, `reply` gives them OpenAI's shape and
//! `stream` sends them as they come.

mod answer;
mod app;
mod error;
mod fields;
mod grammar;
mod images;
mod limits;
mod listen;
pub mod metrics;
mod page;
mod prepare;
mod reply;
mod request;
mod stream;
pub mod worker;

pub use app::Config;
pub use limits::Limits;
pub use listen::{End, Stop, run};

/// Reads a body as each address would, and says whether one of them takes it. Nothing is computed or fetched.
pub fn takes(body: &[u8], config: &Config) -> bool {
    let Ok(body) = request::parse(body) else { return false };
    let (defaults, limits) = (&config.defaults, &config.limits);
    let chat = request::Chat::read(&body, defaults, limits).map(drop);
    let completion = request::Completion::read(&body, defaults).map(drop);
    let tokenize = request::Tokenize::read(&body, limits).map(drop);
    chat.or(completion).or(tokenize).is_ok()
}
