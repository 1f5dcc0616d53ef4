//! An sm_61 GPU in software, under the CUDA driver API. With a [`Card`] of another [`Arch`] it is of that architecture.
//!
//! It runs the PTX that ships, checks it more strictly than the hardware does, and estimates its time on a Pascal
//! card, so kernels and the host code above them can be tested on machines without a GPU.
//!
//! * [`Module::parse`] reads PTX; anything that sm_61 lacks is an error with its line. [`Module::parse_for`] takes the architecture.
//! * [`Gpu`] runs kernels without the driver API: memory, modules, launches, [`Finding`]s and [`Counters`].
//! * The feature `driver-api` has the driver API over such devices, whose streams run late and in a seeded order: `symbol` gives
//!   its functions, `configure` or the environment ([`Config`]) sets it up.
//! * [`take_findings`] returns the faults that were found and [`take_reports`] the counts of launches.
//! * [`estimate`] turns counts into a time on a [`Card`]: the model and its error are in `COSTS.md`.
//!
//! # Limits
//!
//! Not supported: mipmaps, cubemap lookups, `malloc` in kernels. Each is refused, never answered wrongly.
//! Managed memory is page-locked host memory.
//! Calls by pointer reach functions of the kernel's own module. Their stack, and that of recursion, is local memory up to 512 KB,
//! or what `cuCtxSetLimit` has set; hardware has 1 KB by default.
//! Races in global memory are found as far as no right exchange can be reported: fences order blocks, and atomics are
//! never races. Blocks start in order and each runs to its end, so a block may wait
//! for an earlier one; waiting for a later one ends as a time-out.

#![cfg_attr(not(feature = "driver-api"), allow(dead_code, reason = "what only the driver API uses"))]

#[cfg(feature = "driver-api")]
mod api;
mod arch;
mod card;
mod config;
mod cost;
mod counters;
mod exec;
mod finding;
mod hot_loops;
mod image;
mod kernel_clocks;
mod memory;
mod ptx;
mod refusal;
mod reports;
mod texture;

#[cfg(feature = "driver-api")]
pub use api::{InUse, configure, null_stream_is_per_thread, restart, symbol, symbols, take_peak_memory};
pub use arch::Arch;
pub use card::{Card, GTX1050TI, GTX1060, GTX1070, GTX1080, GTX1080TI, MX330, P4, P40, T4, V100};
pub use config::{Checks, Config};
pub use cost::{Bound, Estimate, GRAPH_LAUNCH_SECONDS, LAUNCH_SECONDS, estimate};
pub use counters::{Class, Counters, Traffic};
pub use exec::{Gpu, Launch, LaunchReport, LineCost, LoadedModule};
pub use finding::{Fault, Finding, FindingKind, on_finding, take_findings};
pub use memory::{MemoryError, POISON};
pub use pascaline_occupancy::Multiprocessor;
pub use ptx::{Kernel, Module, Param, PtxError, SourceLine};
pub use refusal::on_refusal;
pub use reports::{LaunchObserver, keep_reports, on_launch, take_reports};
