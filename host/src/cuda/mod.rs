//! The CUDA driver through cust: device, stream, event, module, launch. Knows no op.
//!
//! Only this folder and `memory` use cust. cust's own wrappers are used for initialisation, devices and the primary context.
//! Streams, events, modules and memory have types of our own over `cust::sys`, because cust removes `NON_BLOCKING` from
//! streams, returns no JIT error log, and frees memory synchronously on drop.

mod archive;
mod compiling;
mod constant;
mod context;
mod counters;
mod current;
mod device;
mod event;
mod exposed;
mod fault;
mod foreign;
mod graph;
mod launch;
mod module;
pub(crate) mod nccl;
pub mod occupancy;
mod packed;
mod parameters;
mod planned;
mod preload;
mod properties;
mod stream;
mod typed;
#[cfg(all(test, feature = "virtual-gpu"))]
mod typed_tests;

pub use archive::{PTX_ORIGIN, ptx, ptx_compressed_bytes, ptx_modules, ptx_of};
pub use compiling::on_slow_compilation;
pub use cuda_std::{DevicePtr, DevicePtrMut, KernelInfo, KernelParams, KernelSpec};
pub use current::forget_current;
pub use device::CudaDevice;
pub use event::Event;
pub(crate) use exposed::{conceal, expose};
pub use fault::is_lost;
pub(crate) use fault::{check, ensure_alive};
#[doc(hidden)]
pub use foreign::Argument;
pub use foreign::{Function, LaunchArgument, PtxModule};
pub use graph::Graph;
pub(crate) use launch::MAX_GRID;
pub use launch::trace;
pub use parameters::Kind;
pub use planned::PlannedGpu;
pub(crate) use planned::{Planning, count_host_bytes, refused};
pub use preload::Loaded;
pub(crate) use properties::WITHOUT_VIRTUAL_GPU;
pub use properties::{Properties, driver_version};
pub(crate) use stream::COUNTERS;
pub(crate) use stream::Kept;
pub use stream::Stream;
