//! An sm_61 GPU in software, under the CUDA driver API.

mod api;
mod card;
mod config;
mod cost;
mod counters;
mod exec;
mod finding;
mod memory;
mod ptx;

pub use api::{InUse, configure, restart, symbol, symbols};
pub use card::{Card, GTX1050TI, GTX1080, MX330, P4, P40};
pub use config::{Checks, Config};
pub use cost::{Bound, Estimate, GRAPH_LAUNCH_SECONDS, LAUNCH_SECONDS, blocks_per_sm, estimate};
pub use counters::{Class, Counters, Traffic};
pub use exec::{Gpu, Launch, LaunchReport, LoadedModule};
pub use finding::{Fault, Finding, FindingKind, take_findings};
pub use memory::{MemoryError, POISON};
pub use ptx::{Kernel, Module, Param, PtxError};
