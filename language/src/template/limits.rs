//! The limits of templates, and the costs of steps.

/// The most bytes of a template; published ones have up to 20 kB.
pub(super) const MAX_SOURCE: usize = 1 << 20;
/// How deep expressions and blocks may be nested.
pub(super) const MAX_NESTING: usize = 64;
/// How deep lists and dictionaries may be nested.
pub(super) const MAX_DEPTH: usize = 32;
/// How deep macros may call each other.
pub(super) const MAX_CALLS: usize = 8;
/// The budget of one rendering: at most about 3 s and 0.5 GB. A prompt of a million bytes costs some tens of millions.
pub(super) const BUDGET: u64 = 1 << 28;
/// The most bytes of a name. Names are compared at each look-up.
pub(super) const MAX_NAME: usize = 256;
/// The most bytes of an error's reason, which may quote the template.
pub(super) const MAX_REASON: usize = 1000;
/// The cost of a step: it takes about as long as this many bytes.
pub(super) const STEP: usize = 32;
