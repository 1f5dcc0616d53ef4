//! The one error type.

use crate::{DType, Shape};

/// The result of a function of this library that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error, with the op and the argument that caused it.
///
/// Errors of the first group are found before anything is launched: no tensor has changed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A shape that does not fit the op or the other arguments.
    #[error("{op}: {argument} has shape {found}, expected {expected}")]
    Shape {
        /// The op.
        op: &'static str,
        /// The argument's name in the op's documentation.
        argument: &'static str,
        /// The shape it must have, in words or letters.
        expected: String,
        /// The shape it has.
        found: Shape,
    },
    /// An element type that the op does not take for this argument.
    #[error("{op}: {argument} is {found}, expected {expected}")]
    DType {
        /// The op.
        op: &'static str,
        /// The argument.
        argument: &'static str,
        /// The types allowed.
        expected: String,
        /// The type it has.
        found: DType,
    },
    /// A view with strides that the op does not take.
    #[error("{op}: {argument} must be {needed}; call `.contiguous()` on it first")]
    Layout {
        /// The op.
        op: &'static str,
        /// The argument.
        argument: &'static str,
        /// The layout that is needed.
        needed: &'static str,
    },
    /// A tensor or a launch larger than the kernels' 32-bit indices reach.
    #[error("{op}: {argument} has {elements} elements, at most {limit} are supported; split it")]
    TooLarge {
        /// The op.
        op: &'static str,
        /// The argument.
        argument: &'static str,
        /// Its number of elements.
        elements: u128,
        /// The most elements that are supported.
        limit: u128,
    },
    /// Arguments on different devices or streams.
    #[error("{op}: {argument} is on {found}, the output is on {expected}; move it with `.to_device(..)`")]
    DeviceMismatch {
        /// The op.
        op: &'static str,
        /// The argument.
        argument: &'static str,
        /// The output's device.
        expected: String,
        /// The argument's device.
        found: String,
    },
    /// An output whose memory other tensors still refer to.
    #[error("{op}: the output's storage is shared with another tensor or view")]
    SharedOutput {
        /// The op.
        op: &'static str,
    },
    /// A value that the op does not support.
    #[error("{op}: {argument} = {value} is not supported: {reason}")]
    Unsupported {
        /// The op.
        op: &'static str,
        /// The argument.
        argument: &'static str,
        /// Its value.
        value: String,
        /// The values that are supported.
        reason: String,
    },

    /// A file of a model directory that can't be used, and the field or tensor in it that is at fault.
    #[error("{file}: {}{reason}", at(.item))]
    Checkpoint {
        /// The file, with the directory.
        file: String,
        /// The configuration field or the tensor.
        item: Option<String>,
        /// The fault in it.
        reason: String,
    },
    /// A table for the choice of kernels can't be read or written.
    #[error(
        "{file}: {reason}; `pascaline tune --force` writes a new one, and without the file the built-in one is used"
    )]
    Tuning {
        /// Its path.
        file: String,
        /// The fault in it.
        reason: String,
    },
    /// A picture that can't be used.
    #[error("image {file}: {reason}")]
    Image {
        /// The file, or another name for the source.
        file: String,
        /// The fault in it.
        reason: String,
    },
    /// A prompt that can't be converted to tokens, because of the chat template, the tokenizer or their input.
    #[error("prompt: {reason}")]
    Prompt {
        /// The fault.
        reason: String,
    },
    /// A result that must be finite and is not. No token is computed from it.
    #[error("{what} holds {value} at index {index}")]
    NotFinite {
        /// The result's name.
        what: &'static str,
        /// NaN or an infinity.
        value: String,
        /// Its position.
        index: usize,
    },

    /// A device name that is not known.
    #[error("unknown device `{name}`; use auto, cpu, cuda, cuda:N or virtual")]
    UnknownDevice {
        /// The name that was given.
        name: String,
    },
    /// A GPU was requested and can't be used.
    #[error("no usable GPU: {reason}")]
    NoDevice {
        /// The reason, and the remedy if one is known.
        reason: String,
    },
    /// The driver rejected the kernels.
    #[error("the driver does not load the kernels ({code}): {log}")]
    ModuleLoad {
        /// The driver's result code.
        code: u32,
        /// Its compiler's log.
        log: String,
    },
    /// The device has no memory left for this. Nothing was launched.
    #[error("out of memory on {device}: {} asked for, {} of {} free", format_bytes(*.requested), format_bytes(*.free), format_bytes(*.total))]
    OutOfMemory {
        /// The device's name.
        device: String,
        /// Bytes requested.
        requested: usize,
        /// Bytes free on the device.
        free: usize,
        /// Bytes of device memory.
        total: usize,
    },
    /// A driver call failed; the device is still usable.
    #[error("{call} failed: {text} ({code})")]
    Driver {
        /// The driver API function.
        call: &'static str,
        /// The raw result code.
        code: u32,
        /// The driver's text for it.
        text: String,
    },
    /// A kernel fault or a lost device. The process can't use this GPU any more; results not yet read are lost.
    #[error("the GPU stopped at {call}: {text} ({code}); start the program again to use it")]
    DeviceLost {
        /// The call that reported it; an earlier one may have caused it.
        call: &'static str,
        /// The raw result code.
        code: u32,
        /// The driver's text for it.
        text: String,
    },
}

/// `item: `, or an empty string.
fn at(item: &Option<String>) -> String {
    item.as_ref().map(|item| format!("{item}: ")).unwrap_or_default()
}

/// A number of bytes in the largest fitting unit: `1.5 GiB`.
pub fn format_bytes(count: usize) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{count} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

#[cfg(test)]
mod tests {
    use super::format_bytes as bytes;

    #[test]
    fn sizes_are_for_people() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(2 << 30), "2.0 GiB");
    }
}
