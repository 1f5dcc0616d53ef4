//! An sm_61 GPU in software, under the CUDA driver API.
//!
//! It runs PTX as it ships, checks it more strictly than the hardware does, and says what it would cost on a Pascal
//! card; so kernels and the host code above them are tested on machines without one.
//!
//! * [`Module::parse`] reads PTX; what sm_61 does not have is an error with its line.
//! * [`Gpu`] runs kernels without the driver API: memory, modules, launches, [`Finding`]s and [`Counters`].
//! * [`symbol`] gives the driver API over one such device, with streams that run late and in a seeded order;
//!   [`configure`] and the environment ([`Config`]) say what the device is like, [`take_findings`] what it found,
//!   [`take_reports`] what its launches did.
//! * [`estimate`] turns counts into a time on a [`Card`]: the model and its error are in `COSTS.md`.
//!
//! # What it does not do
//!
//! Textures, surfaces, indirect and recursive calls, `vprintf`, `malloc`, video instructions, cooperative launches,
//! memory nodes and child graphs, managed memory: each is refused, none is answered wrongly. Races in global memory
//! are not looked for. Blocks start in order and run to their end, so a block may wait for an earlier one, not for a
//! later one (that ends as a time-out).

mod api;
mod card;
mod config;
mod cost;
mod counters;
mod exec;
mod finding;
mod memory;
mod ptx;
mod reports;

pub use api::{InUse, configure, restart, symbol, symbols};
pub use card::{Card, GTX1050TI, GTX1080, MX330, P4, P40};
pub use config::{Checks, Config};
pub use cost::{Bound, Estimate, GRAPH_LAUNCH_SECONDS, LAUNCH_SECONDS, estimate};
pub use counters::{Class, Counters, Traffic};
pub use exec::{Gpu, Launch, LaunchReport, LoadedModule};
pub use finding::{Fault, Finding, FindingKind, take_findings};
pub use memory::{MemoryError, POISON};
pub use pascaline_occupancy::Multiprocessor;
pub use ptx::{Kernel, Module, Param, PtxError};
pub use reports::{keep_reports, take_reports};
