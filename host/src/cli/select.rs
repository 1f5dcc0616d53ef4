//! Which device and which cases: the arguments that `bench` and `validate` have in common.

use super::failure::Failure;
use super::json::Report;
use super::output::Overwrite;
use crate::Device;
use crate::testing::{self, Case};
use std::path::PathBuf;

#[derive(clap::Args)]
pub(super) struct Select {
    /// Where to run: auto, cpu, cuda, cuda:N, or virtual (an sm_61 GPU in software).
    #[arg(long, value_name = "DEVICE", default_value = "auto", env = "PASCALINE_DEVICE")]
    device: String,

    /// Take only the cases whose id contains this.
    #[arg(long, value_name = "SUBSTRING")]
    only: Option<String>,

    /// Also write the results as JSON; `-` is stdout, the table then goes to stderr.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    #[command(flatten)]
    overwrite: Overwrite,
}

impl Select {
    /// Where the results go besides the screen.
    pub fn report(&self) -> Result<Option<Report>, Failure> {
        self.json.as_deref().map(|path| Report::open(path, self.overwrite.force)).transpose()
    }

    /// The device, and why it is the one if that was not said.
    pub fn device(&self) -> Result<(Device, Option<String>), Failure> {
        if self.device == "auto" {
            let choice = Device::choose();
            return Ok((choice.device, Some(choice.reason)));
        }
        Ok((self.device.parse()?, None))
    }

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
            return Err(Failure::Failed(format!("no case's id contains `{only}`; the ops are {ops}")));
        }
        Ok(cases)
    }
}
