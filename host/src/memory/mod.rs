//! Device memory.

mod buffer;

pub use buffer::DeviceBuffer;
