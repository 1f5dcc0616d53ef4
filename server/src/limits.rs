//! What one request may ask for.

use std::time::Duration;

/// The most of everything that a request may have. Beyond them it is answered with a 4xx and a sentence.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// Bytes of a body.
    pub body: usize,
    /// Pictures of a request.
    pub pictures: usize,
    /// Pixels of a picture file.
    pub pixels: u64,
    /// Tokens of a prompt and its answer together.
    pub context: usize,
    /// From the request's first byte to the answer's last one.
    pub time: Duration,
    /// Connections that are open at the same time; others wait to be accepted.
    pub connections: usize,
    /// Hosts from which pictures are fetched.
    pub image_hosts: Vec<String>,
}

impl Limits {
    /// Usual limits for a context of so many tokens.
    pub fn for_context(context: usize) -> Self {
        Self {
            body: 32 << 20,
            pictures: 16,
            pixels: 1 << 24,
            context,
            time: Duration::from_secs(600),
            connections: 256,
            image_hosts: Vec::new(),
        }
    }
}
