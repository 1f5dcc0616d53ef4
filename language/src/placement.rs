//! Which of a model's layers are on which device. `split` plans it, `text` and `rows` build the parts.

use pascaline::memory::Way;
use pascaline::{Device, Error, Result};
use std::ops::Range;

/// The devices that a model is on, in the order of a pass. The first also has the embedding and the output projection.
#[derive(Clone, Debug)]
pub struct Placement {
    stages: Vec<(Device, usize)>,
    vision: usize,
    way: Option<Way>,
    mode: SplitMode,
}

/// How several devices share a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SplitMode {
    /// Each has some of the layers (pipeline).
    #[default]
    Layer,
    /// Each has a part of every layer (tensor parallelism); see [`rows`](super::rows).
    Row,
}

impl Placement {
    /// All layers on one device.
    pub fn one(device: &Device, layers: usize) -> Self {
        Self { stages: vec![(device.clone(), layers)], vision: 0, way: None, mode: SplitMode::Layer }
    }

    /// As many consecutive decoder layers on each device as `layers` says, and the vision tower on device number `vision`.
    /// Devices without layers and without the tower are left out, except the first.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if a device is the CPU or comes twice, the numbers of layers are not one for each device or
    /// all 0, or there is no device number `vision`.
    pub fn split(devices: &[Device], layers: &[usize], vision: usize) -> Result<Self> {
        let wrong = |argument, value: String, reason: &str| {
            Err(Error::Unsupported { op: "split", argument, value, reason: reason.to_owned() })
        };
        if layers.len() != devices.len() {
            let value = format!("{} numbers for {} devices", layers.len(), devices.len());
            return wrong("layers", value, "there must be one for each device");
        }
        if layers.iter().all(|layers| *layers == 0) {
            return wrong("layers", format!("{layers:?}"), "no device gets any");
        }
        if vision >= devices.len() {
            return wrong("vision", vision.to_string(), "there is no device of this number");
        }
        for (index, device) in devices.iter().enumerate() {
            if !device.is_cuda() && devices.len() > 1 {
                return wrong("devices", device.to_string(), "only GPUs can share a model");
            }
            if devices[..index].contains(device) {
                return wrong("devices", device.to_string(), "it comes twice");
            }
        }
        let stages: Vec<_> = devices.iter().cloned().zip(layers.iter().copied()).collect();
        let is_used = |index: usize| index == 0 || stages[index].1 > 0 || index == vision;
        let used: Vec<_> = (0..stages.len()).filter(|&index| is_used(index)).collect();
        let vision = used.iter().position(|&index| index == vision).unwrap_or(0);
        let stages = used.into_iter().map(|index| stages[index].clone()).collect();
        Ok(Self { stages, vision, way: None, mode: SplitMode::Layer })
    }

    /// An equal part of each of `layers` decoder layers on each device, and the vision tower on device number `vision`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if a device is the CPU or comes twice, there are no layers, or there is no device number
    /// `vision`.
    pub fn rows(devices: &[Device], layers: usize, vision: usize) -> Result<Self> {
        let all = Self::split(devices, &vec![layers; devices.len()], vision)?;
        let mode = if devices.len() > 1 { SplitMode::Row } else { SplitMode::Layer };
        Ok(Self { mode, ..all })
    }

    /// With values copied between devices in this way; if not called, in the fastest that the devices support.
    #[must_use]
    pub fn by(self, way: Way) -> Self {
        Self { way: Some(way), ..self }
    }

    /// The devices.
    pub fn devices(&self) -> impl ExactSizeIterator<Item = &Device> {
        self.stages.iter().map(|(device, _)| device)
    }

    /// How the devices share the model.
    pub fn mode(&self) -> SplitMode {
        self.mode
    }

    /// The decoder layers of each device, whole or in part.
    pub fn layers(&self) -> Vec<Range<usize>> {
        if self.mode == SplitMode::Row {
            return self.stages.iter().map(|&(_, layers)| 0..layers).collect();
        }
        let mut first = 0;
        let range = |&(_, layers): &(Device, usize)| {
            first += layers;
            first - layers..first
        };
        self.stages.iter().map(range).collect()
    }

    /// The number of the device that has the vision tower.
    pub fn vision(&self) -> usize {
        self.vision
    }

    /// The device that tokens are copied to and logits come from.
    pub fn first(&self) -> &Device {
        &self.stages[0].0 // both constructors put one in
    }

    /// Checks that this is a placement of a model of `layers` layers.
    pub(super) fn check(&self, layers: usize) -> Result<()> {
        let placed = self.layers().last().map_or(0, |last| last.end);
        if placed == layers {
            return Ok(());
        }
        let (argument, value) = ("layers", placed.to_string());
        let reason = format!("the model has {layers} decoder layers");
        Err(Error::Unsupported { op: "split", argument, value, reason })
    }

    /// The way that was requested.
    pub(super) fn way(&self) -> Option<Way> {
        self.way
    }
}

/// Splits `layers` layers in the ratio of these shares, by largest remainders.
///
/// ```
/// assert_eq!(language::placement::in_ratio(28, &[3.0, 1.0]), [21, 7]);
/// assert_eq!(language::placement::in_ratio(3, &[1.0, 1.0]), [2, 1]);
/// ```
pub fn in_ratio(layers: usize, shares: &[f64]) -> Vec<usize> {
    let sum: f64 = shares.iter().sum();
    let exact: Vec<f64> = shares.iter().map(|share| layers as f64 * share / sum).collect();
    let mut parts: Vec<usize> = exact.iter().map(|part| *part as usize).collect();
    let mut by_rest: Vec<usize> = (0..shares.len()).collect();
    by_rest.sort_by(|&a, &b| exact[b].fract().total_cmp(&exact[a].fract()));
    let missing = layers.saturating_sub(parts.iter().sum());
    for &index in by_rest.iter().cycle().take(if shares.is_empty() { 0 } else { missing }) {
        parts[index] += 1;
    }
    parts
}
