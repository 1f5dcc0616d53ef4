//! Which device and which cases: the arguments that `bench` and `validate` have in common.

use super::device::DeviceArg;
use super::failure::Failure;
use super::output::Output;
use pascaline_testing::{self as testing, Case};

#[derive(clap::Args)]
pub(super) struct Select {
    #[command(flatten)]
    pub device: DeviceArg,

    /// Take only the cases whose id contains this.
    #[arg(long, value_name = "SUBSTRING")]
    only: Option<String>,

    #[command(flatten)]
    pub output: Output,
}

impl Select {
    /// The cases whose id is asked for, of those that `suit` takes.
    pub fn cases(&self, suit: impl Fn(&dyn Case) -> bool) -> Result<Vec<Box<dyn Case>>, Failure> {
        let mut cases = testing::cases();
        cases.retain(|case| suit(case.as_ref()));
        let mut ops: Vec<_> = cases.iter().map(|case| case.op()).collect();
        ops.dedup();
        let only = self.only.as_deref().unwrap_or("");
        cases.retain(|case| case.id().contains(only));
        if cases.is_empty() {
            let ops = ops.join(", ");
            return Err(Failure::Usage(format!("no case's id contains `{only}`; the ops are {ops}")));
        }
        Ok(cases)
    }
}
