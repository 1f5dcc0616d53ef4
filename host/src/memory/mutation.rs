//! The list of everything that orders one use of memory behind another, and a way to leave one of them out.
//!
//! In the crate's own tests [`without`] runs code with one of them missing, to see that a test notices
//! (`memory/tests.rs`). In every other build [`left_out`] is the constant `false`.

/// One place where memory's next use is put behind its last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Memory of another stream counts as ready only when its event has been reached.
    ReadyQuery,
    /// The event waited for is recorded behind the last use, not an older one.
    FreshRecord,
    /// A stream that takes another's memory waits for that one's event.
    HandOver,
    /// Memory freed on its stream also waits for the other streams that used it.
    OtherUses,
    /// A stream that goes away leaves an event behind its last work.
    RetiredStream,
    /// Memory given back upstream is behind its last use.
    GiveBack,
    /// Pinned memory is used again only when its last copy is done.
    PinnedReuse,
    /// A download is read only when its copy is done.
    Download,
}

#[cfg(test)]
impl Wait {
    /// Those of the pool; the other two are the copies'.
    pub const POOL: [Self; 6] = [
        Self::ReadyQuery,
        Self::FreshRecord,
        Self::HandOver,
        Self::OtherUses,
        Self::RetiredStream,
        Self::GiveBack,
    ];
}

#[cfg(test)]
thread_local! {
    static LEFT_OUT: std::cell::Cell<Option<Wait>> = const { std::cell::Cell::new(None) };
}

/// Whether a test wants to see what happens without this one.
#[inline]
pub(crate) fn left_out(_wait: Wait) -> bool {
    #[cfg(test)]
    return LEFT_OUT.get() == Some(_wait);
    #[cfg(not(test))]
    false
}

/// Runs `work` on this thread with `wait` left out.
#[cfg(test)]
pub(crate) fn without<R>(wait: Option<Wait>, work: impl FnOnce() -> R) -> R {
    LEFT_OUT.set(wait);
    let result = work();
    LEFT_OUT.set(None);
    result
}
