//! `--device`: the one device of a command. `devices.rs` has the options for several.

use super::failure::Failure;
use pascaline::{Device, Error};
use std::env;

#[derive(clap::Args, Clone, Default)]
pub(super) struct DeviceArg {
    /// Where to run: auto, cpu, cuda, cuda:N, or virtual (an sm_61 GPU in software; virtual:N of several). If not given, as
    /// PASCALINE_DEVICE says, else auto.
    #[arg(long, value_name = "DEVICE")]
    device: Option<String>,
}

impl DeviceArg {
    /// The option's value, if given.
    pub fn name(&self) -> Option<&str> {
        self.device.as_deref()
    }

    /// The device, and if it was not named the reason for the choice.
    pub fn open(&self) -> Result<(Device, Option<String>), Failure> {
        match asked_for(self.device.as_deref()).as_deref() {
            None | Some("auto") => {
                let choice = Device::choose();
                Ok((choice.device, Some(choice.reason)))
            }
            Some(name) => match name.parse() {
                Ok(device) => Ok((device, None)),
                Err(error @ Error::NoDevice { .. }) => {
                    Err(Failure::Failed(format!("{error}; `--device cpu` needs none")))
                }
                Err(error) => Err(error.into()),
            },
        }
    }
}

/// The device that the option or else the environment names. An empty variable counts as unset.
pub(super) fn asked_for(option: Option<&str>) -> Option<String> {
    let variable = || env::var_os("PASCALINE_DEVICE").filter(|name| !name.is_empty());
    option.map(str::to_owned).or_else(|| variable().map(|name| name.to_string_lossy().into_owned()))
}
