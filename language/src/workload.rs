//! The workload of a plan: an answer, and a picture that is seen.

use super::media::{Patches, VisionOutput};

/// The work that the memory must be enough for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Tokens that the cache has room for: prompt, pictures and answer.
    pub context: usize,
    /// Tokens of the prompt among them.
    pub prompt: usize,
    /// Patches of the largest picture; 0 without pictures.
    pub patches: usize,
}

/// A picture, its embeddings and a second one between two blocks of the tower.
pub(super) struct Seen {
    pub patches: Option<Patches>,
    pub outputs: Vec<VisionOutput>,
}
