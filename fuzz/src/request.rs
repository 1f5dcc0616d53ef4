//! Bodies of requests to the server, with the JSON schemas in them.

use super::checkpoint::tiny;
use pascaline_server::{Config, Limits, Reader};
use qwen3_vl::{ControlTokens, Options};
use std::sync::LazyLock;
use std::time::Duration;

static READER: LazyLock<Reader> = LazyLock::new(|| {
    let limits = Limits { image_hosts: vec!["a.example".into()], ..Limits::for_context(4096) };
    let config = Config {
        name: "tiny".into(),
        defaults: Options::default(),
        seed: None,
        limits,
        control_tokens: ControlTokens::AsText,
        api_key: None,
        adapters: Vec::new(),
        cors_origins: Vec::new(),
        allowed_hosts: Vec::new(),
        grace: Duration::ZERO,
    };
    let processor = qwen3_vl::processor(tiny()).expect("the fixture");
    Reader::new(config, &processor).expect("grammars for it")
});

pub fn request(input: &[u8]) {
    let _ = READER.takes(input);
}
