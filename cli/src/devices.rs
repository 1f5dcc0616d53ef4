//! `--devices`, `--split`, `--between`: a model over several GPUs; `--replicas`: one on each.

use super::device::{DeviceArg, asked_for};
use super::failure::Failure;
use pascaline::cuda::CudaDevice;
use pascaline::memory::Way;
use pascaline::{Device, Error};
use qwen3_vl::{Placement, SplitMode};

#[derive(clap::Args, Clone, Default, PartialEq)]
pub(super) struct DevicesArgs {
    /// The GPUs to spread the model over (with --replicas: to put a whole model on each): their numbers, as in cuda:N
    /// (0,1), or auto for all. Decoder layers are split in the ratio of the speeds at which the cards read matrices, which
    /// are measured if the cards differ, as far as each has room, and hidden states are copied from card to card. With
    /// `--device virtual` they are virtual GPUs, which PASCALINE_VIRTUAL_DEVICES names.
    #[arg(long, value_name = "LIST", value_parser = list)]
    devices: Option<List>,

    /// The ratio of the numbers of layers on these GPUs, such as 3,1.
    #[arg(long, value_name = "RATIO", value_parser = ratio)]
    split: Option<Ratio>,

    /// How these GPUs share the model. layer: each has some of the layers, and a pass goes through them one after the
    /// other. row: each has an equal part of every layer, and all compute at once. If not given, layer.
    #[arg(long, value_name = "MODE")]
    split_mode: Option<Mode>,

    /// How values are copied between GPUs; if not given, peer if the driver allows it, else pinned. With --split-mode row over
    /// more than two GPUs, or without peer access, those of prompts by nccl if its library is found: libnccl.so.2, or the
    /// file that PASCALINE_NCCL names.
    #[arg(long, value_name = "WAY")]
    between: Option<Between>,
}

/// `--split-mode`
#[derive(Clone, Copy, Debug, PartialEq, clap::ValueEnum)]
enum Mode {
    /// Some of the layers on each GPU (pipeline).
    Layer,
    /// A part of every layer on each GPU (tensor parallelism).
    Row,
}

/// `--between`
#[derive(Clone, Copy, Debug, PartialEq, clap::ValueEnum)]
enum Between {
    /// Directly into the other GPU's memory.
    Peer,
    /// Through pinned host memory.
    Pinned,
    /// By NVIDIA's NCCL, which does the all-reduce of --split-mode row.
    Nccl,
}

#[derive(Clone, Debug, PartialEq)]
enum List {
    All,
    These(Vec<u32>),
}

/// `--replicas`
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Replicas {
    /// One on each GPU that the model fits on.
    All,
    /// This many.
    These(usize),
}

/// Reads `--replicas`.
pub(super) fn replicas(text: &str) -> Result<Replicas, String> {
    let count = || text.parse().ok().filter(|count| *count > 0).map(Replicas::These);
    let found = if text == "auto" { Some(Replicas::All) } else { count() };
    found.ok_or_else(|| "it must be auto, or a whole number from 1 on".to_owned())
}

#[derive(Clone, Debug, PartialEq)]
struct Ratio(Vec<f64>);

fn list(text: &str) -> Result<List, String> {
    if text == "auto" {
        return Ok(List::All);
    }
    let numbers: Result<Vec<u32>, _> = text.split(',').map(|number| number.trim().parse()).collect();
    let numbers = numbers.map_err(|_| "it must be auto, or numbers of devices such as 0,1".to_owned())?;
    match (1..numbers.len()).find(|&at| numbers[..at].contains(&numbers[at])) {
        Some(at) => Err(format!("device {} is named twice", numbers[at])),
        None => Ok(List::These(numbers)),
    }
}

fn ratio(text: &str) -> Result<Ratio, String> {
    let shares: Result<Vec<f64>, _> = text.split(',').map(|share| share.trim().parse()).collect();
    let shares = shares.ok().filter(|shares| shares.iter().all(|share| share.is_finite() && *share >= 0.0));
    let shares = shares.ok_or_else(|| "it must be numbers such as 3,1".to_owned())?;
    match shares.iter().any(|share| *share > 0.0) {
        true => Ok(Ratio(shares)),
        false => Err("all shares are 0, so no device would get a layer".to_owned()),
    }
}

impl DevicesArgs {
    /// Whether any of these options was given.
    pub fn are_given(&self) -> bool {
        self.devices.is_some() || self.split.is_some() || self.split_mode.is_some() || self.between.is_some()
    }

    /// How the GPUs share the model.
    pub fn mode(&self) -> SplitMode {
        match self.split_mode {
            Some(Mode::Row) => SplitMode::Row,
            Some(Mode::Layer) | None => SplitMode::Layer,
        }
    }

    /// Refuses contradictory options.
    pub fn check(&self) -> Result<(), Failure> {
        match (self.mode(), &self.split) {
            (SplitMode::Row, Some(_)) => Err(Failure::Usage(
                "--split shares out layers; with --split-mode row each GPU has an equal part of every layer"
                    .to_owned(),
            )),
            (SplitMode::Layer, _) if matches!(self.between, Some(Between::Nccl)) => {
                Err(Failure::Usage("--between nccl makes the sums of --split-mode row".to_owned()))
            }
            _ => Ok(()),
        }
    }

    /// Places this many layers on each of these GPUs, and the vision tower on one of them.
    pub fn place(&self, devices: &[Device], layers: &[usize], vision: usize) -> pascaline::Result<Placement> {
        let placement = match self.mode() {
            SplitMode::Layer => Placement::split(devices, layers, vision)?,
            SplitMode::Row => Placement::rows(devices, layers.first().copied().unwrap_or(0), vision)?,
        };
        Ok(match self.way() {
            Some(way) => placement.by(way),
            None => placement,
        })
    }

    /// The ratio of the layers, if given.
    pub fn ratio(&self) -> Option<&[f64]> {
        self.split.as_ref().map(|ratio| &ratio.0[..])
    }

    /// The way of copying between GPUs, if given.
    pub fn way(&self) -> Option<Way> {
        self.between.map(|between| match between {
            Between::Peer => Way::Peer,
            Between::Pinned => Way::Pinned,
            Between::Nccl => Way::Nccl,
        })
    }

    /// The GPUs, opened, if several were requested; `device` is `--device`.
    pub fn open(&self, device: &DeviceArg) -> Result<Option<Vec<Device>>, Failure> {
        match self.are_given() {
            true => self.check().and_then(|()| self.all(device)).map(Some),
            false => Ok(None),
        }
    }

    /// The GPUs for replicas: the first `count`, or all. `device` is `--device`.
    pub fn replicas(&self, count: Replicas, device: &DeviceArg) -> Result<Vec<Device>, Failure> {
        if self.split.is_some() || self.between.is_some() || self.split_mode.is_some() {
            return Err(Failure::Usage(
                "--split, --split-mode and --between spread one model over GPUs; --replicas puts a whole one on each"
                    .to_owned(),
            ));
        }
        let mut devices = self.all(device)?;
        match (count, &self.devices) {
            (Replicas::All, _) => {}
            (Replicas::These(count), Some(List::These(numbers))) if count != numbers.len() => {
                let named = numbers.len();
                return Err(Failure::Usage(format!("--replicas {count}, and --devices names {named}")));
            }
            (Replicas::These(count), _) if count > devices.len() => {
                let found = devices.len();
                return Err(Failure::Failed(format!("--replicas {count}: the driver sees {found} devices")));
            }
            (Replicas::These(count), _) => devices.truncate(count),
        }
        Ok(devices)
    }

    /// Opens all GPUs that are named.
    fn all(&self, device: &DeviceArg) -> Result<Vec<Device>, Failure> {
        let kind = asked_for(device.name());
        let numbered = match kind.as_deref() {
            None | Some("auto" | "cuda") => Device::cuda,
            Some("virtual") => {
                Device::virtual_gpu()?; // replaces the driver before devices are counted
                Device::virtual_gpu_number
            }
            Some(name) => {
                return Err(Failure::Usage(format!(
                    "--devices and --replicas are of GPUs, and --device {name} is another place; say --device cuda or virtual"
                )));
            }
        };
        let numbers = match &self.devices {
            Some(List::These(numbers)) => numbers.clone(),
            Some(List::All) | None => (0..CudaDevice::count()?).collect(),
        };
        let refused = |error: Error| Failure::Failed(format!("--devices: {error}"));
        let devices: Result<Vec<_>, _> = numbers.into_iter().map(numbered).collect();
        let devices = devices.map_err(refused)?;
        if devices.is_empty() {
            return Err(Failure::Failed("--devices: the driver sees no device".to_owned()));
        }
        match self.ratio() {
            Some(ratio) if ratio.len() != devices.len() => Err(Failure::Usage(format!(
                "--split has {} shares for {} devices",
                ratio.len(),
                devices.len()
            ))),
            _ => Ok(devices),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_ratios_are_read() {
        assert_eq!(list("auto"), Ok(List::All));
        assert_eq!(list("0, 2"), Ok(List::These(vec![0, 2])));
        assert!(list("0,1,0").unwrap_err().contains("device 0 is named twice"));
        for wrong in ["", "0,", "-1", "cuda:0", "a"] {
            assert!(list(wrong).unwrap_err().contains("such as 0,1"), "{wrong}");
        }
        assert_eq!([replicas("auto"), replicas("2")], [Ok(Replicas::All), Ok(Replicas::These(2))]);
        for wrong in ["", "0", "-1", "all", "1.5"] {
            assert!(replicas(wrong).unwrap_err().contains("auto"), "{wrong}");
        }
        assert_eq!(ratio("3, 1.5"), Ok(Ratio(vec![3.0, 1.5])));
        assert!(ratio("0,0").unwrap_err().contains("all shares are 0"));
        for wrong in ["", "1,", "-1,2", "nan,1", "inf", "x"] {
            assert!(ratio(wrong).unwrap_err().contains("such as 3,1"), "{wrong}");
        }
    }
}
