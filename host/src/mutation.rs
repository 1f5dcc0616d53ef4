//! The list of all waits that order one use of memory after another, and a way to leave one of them out.
//!
//! In the crate's own tests [`without`] runs code without one of them, to show that a test notices. In every other build
//! [`left_out`] is the constant `false`. The tests that notice, on the virtual GPU and on the simulated device:
//!
//! | left out | noticed by | as |
//! |---|---|---|
//! | `ReadyQuery`, `FreshRecord`, `HandOver`, `OtherUses`, `RetiredStream` | `memory/tests.rs` `no_wait_can_be_left_out`, `memory/device_tests.rs` `each_wait_of_the_pool_is_needed_on_a_device` | a use before the last one is done; wrong bytes |
//! | `GiveBack` | `memory/tests.rs` `no_wait_can_be_left_out` | memory given back before its last use is done |
//! | `PinnedReuse`, `Download`, `ChunkReuse` | `memory/device_tests.rs` `each_wait_of_a_copy_is_needed` | wrong bytes |
//! | `CopyAfterWriter`, `WriterAfterCopy` | `memory/device_tests.rs` `each_wait_between_tensors_is_needed` | wrong bytes |
//! | `GraphMemory` | `memory/device_tests.rs` `memory_of_a_graph_is_waited_for` | wrong bytes |
//! | `LayerUploaded`, `LayerReuse` | `memory/device_tests.rs` `each_wait_of_a_layer_stream_is_needed` | wrong bytes |
//! | `SlotFilled`, `SlotEmptied` | `memory/link_tests.rs` `each_wait_of_a_link_is_needed` | a finding of the virtual GPU |
//! | `PartThere`, `PartRead` | `nn/all_reduce.rs` `each_wait_of_a_sum_is_needed` | a finding of the virtual GPU |
//! | `PlainFree`, `PinnedFree`, `GraphEnd` | `memory/device_tests.rs` `the_host_waits_before_memory_goes` | the missing call; the drivers at hand also wait by themselves, which is not promised by all |

/// A place where memory's next use is ordered after its last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Memory of another stream counts as ready only when its event has been reached.
    ReadyQuery,
    /// The event waited for is recorded after the last use, not before it.
    FreshRecord,
    /// A stream that takes another stream's memory waits for that stream's event.
    HandOver,
    /// Memory freed on its stream also waits for the other streams that used it.
    OtherUses,
    /// A stream that is destroyed leaves an event after its last work.
    RetiredStream,
    /// Memory is returned upstream after its last use.
    GiveBack,
    /// `cuMemFree` is called only when the work before it is done.
    PlainFree,
    /// Pinned memory is reused only when its last copy is done.
    PinnedReuse,
    /// Pinned memory is returned to the system only when its last copy is done.
    PinnedFree,
    /// A download is read only when its copy is done.
    Download,
    /// A staging chunk is refilled only when its last copy is done.
    ChunkReuse,
    /// A copy to another stream comes after the work that wrote its source.
    CopyAfterWriter,
    /// The next work of the source's stream comes after a copy to another stream.
    WriterAfterCopy,
    /// Memory for a capture has completed its last use, since the graph waits for no event outside it.
    GraphMemory,
    /// A graph is destroyed only when its last replay is done.
    GraphEnd,
    /// A layer's weights are used only after they have been copied.
    LayerUploaded,
    /// A layer's place is refilled only when its previous layer has been used.
    LayerReuse,
    /// A value from another device is read only after it has arrived.
    SlotFilled,
    /// A slot between devices is refilled only when it has been emptied.
    SlotEmptied,
    /// A part of a sum over devices is read only when it is there.
    PartThere,
    /// A part of a sum over devices goes only when the others have read it.
    PartRead,
}

#[cfg(test)]
thread_local! {
    static LEFT_OUT: std::cell::Cell<Option<Wait>> = const { std::cell::Cell::new(None) };
}

/// Whether a test leaves out this wait.
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
