//! The device and the cases: the arguments that `bench` and `validate` share.

use super::device::DeviceArg;
use super::failure::Failure;
use super::output::Output;
use pascaline_testing::{self as testing, Case};

#[derive(clap::Args)]
pub(super) struct CaseArgs {
    #[command(flatten)]
    pub device: DeviceArg,

    /// Only cases whose id contains this; may be given more than once.
    #[arg(long, value_name = "SUBSTRING")]
    only: Vec<String>,

    #[command(flatten)]
    pub output: Output,
}

impl CaseArgs {
    /// The selected cases, of those that `suit` accepts.
    pub fn cases(&self, suit: impl Fn(&dyn Case) -> bool) -> Result<Vec<Box<dyn Case>>, Failure> {
        let mut cases = testing::cases();
        cases.retain(|case| suit(case.as_ref()));
        let mut ops: Vec<_> = cases.iter().map(|case| case.op()).collect();
        ops.dedup();
        let known: Vec<_> = cases.iter().map(|case| case.id()).collect();
        if let Some(only) = self.only.iter().find(|only| !known.iter().any(|id| id.contains(*only))) {
            let ops = ops.join(", ");
            return Err(Failure::Usage(format!("no case's id contains `{only}`; the ops are {ops}")));
        }
        let asked = |id: &str| self.only.is_empty() || self.only.iter().any(|only| id.contains(only));
        cases.retain(|case| asked(&case.id()));
        Ok(cases)
    }
}
