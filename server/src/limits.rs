//! The limits of a request.

use std::time::Duration;

/// The limits of a request. One that exceeds them is answered with a 4xx and a sentence.
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
    /// Time from the request's first byte to the answer's last one.
    pub time: Duration,
    /// Open connections; more wait to be accepted.
    pub connections: usize,
    /// Hosts from which pictures are fetched.
    pub image_hosts: Vec<String>,
}

impl Limits {
    /// The default limits for a context of `context` tokens.
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
