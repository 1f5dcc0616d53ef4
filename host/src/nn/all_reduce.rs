//! Sums over devices, of which each has a part.

use super::misfit;
use crate::memory::{Link, Way};
use crate::{DType, Device, Error, Result, Tensor, ops};

/// What devices exchange that compute a part of each layer: Megatron's tensor parallelism (Shoeybi et al. 2019, section 3). Every
/// device holds the whole residual stream. The first half of a pair of matrices is divided by rows and the second by columns, so that
/// each device has a partial sum of the pair's result, and the sums are added here.
///
/// Parts are added in the order of the devices everywhere, so all devices have the same bits.
///
/// ```
/// use pascaline::nn::AllReduce;
/// use pascaline::{Device, Tensor};
/// let alone = AllReduce::new(&[Device::Cpu], None)?;
/// let part = Tensor::from_slice(&[1.0f32, 2.0], [1, 2], &Device::Cpu)?;
/// let sum = alone.sum(vec![part])?; // [1, 2] on each device
/// assert_eq!(sum[0].to_vec::<f32>()?, [1.0, 2.0]);
/// # Ok::<(), pascaline::Error>(())
/// ```
#[derive(Debug)]
pub struct AllReduce {
    devices: Vec<Device>,
    /// `links[from][to]`; none from a device to itself.
    links: Vec<Vec<Option<Link>>>,
}

impl AllReduce {
    /// Between these devices; values go as `way` says, or straight where the driver lets them.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for none, or for several that are not different GPUs, and as [`Link::new`].
    pub fn new(devices: &[Device], way: Option<Way>) -> Result<Self> {
        let refused = |value: String, reason: &str| Error::Unsupported {
            op: "AllReduce",
            argument: "devices",
            value,
            reason: reason.into(),
        };
        if devices.is_empty() {
            return Err(refused("none".into(), "there is nothing to add"));
        }
        let link = |from: &Device, to: &Device| match (from, to) {
            _ if from == to => Ok(None),
            (Device::Cuda(from), Device::Cuda(to)) => Link::new(from, to, way).map(Some),
            _ => Err(refused(format!("{from} and {to}"), "sums are made over GPUs alone")),
        };
        let from = |from: &Device| devices.iter().map(|to| link(from, to)).collect::<Result<Vec<_>>>();
        let links = devices.iter().map(from).collect::<Result<Vec<_>>>()?;
        if links.iter().flatten().filter(|link| link.is_none()).count() > devices.len() {
            return Err(refused(format!("{devices:?}"), "one comes twice"));
        }
        Ok(Self { devices: devices.to_vec(), links })
    }

    /// The ways that values take, of each device to the others.
    pub fn ways(&self) -> Vec<Way> {
        self.links.iter().flatten().flatten().map(Link::way).collect()
    }

    /// The sum of one tensor of each device, on each of them. All are f32 and of one shape.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if there is not one for each device, [`Error::Shape`] if they differ in shape, or a device error.
    pub fn sum(&self, parts: Vec<Tensor>) -> Result<Vec<Tensor>> {
        self.check("sum", &parts)?;
        if parts.len() == 1 {
            return Ok(parts);
        }
        // no device waits for what comes in before its own part has gone out
        let mut ways = Vec::with_capacity(parts.len() * parts.len());
        for (part, links) in parts.iter().zip(&self.links) {
            let part = part.contiguous()?;
            for link in links {
                ways.push(link.as_ref().map(|link| part.leave(link)).transpose()?);
            }
        }
        // [from][to]; none where it is the device's own
        let mut arrived = Vec::with_capacity(ways.len());
        for (at, way) in ways.into_iter().enumerate() {
            let to = &self.devices[at % parts.len()];
            let mut there = |way| -> Result<Tensor> {
                let mut there = Tensor::uninitialized(parts[0].shape().clone(), DType::F32, to)?;
                there.arrive(way)?;
                Ok(there)
            };
            arrived.push(way.map(&mut there).transpose()?);
        }
        let sum = |to: usize| {
            let part = |from: usize| arrived[from * parts.len() + to].as_ref().unwrap_or(&parts[to]);
            (2..parts.len()).try_fold(ops::add(part(0), part(1))?, |sum, from| ops::add(&sum, part(from)))
        };
        (0..parts.len()).map(sum).collect()
    }

    /// A tensor of the first device on each of them.
    ///
    /// # Errors
    /// A device error.
    pub fn broadcast(&self, x: &Tensor) -> Result<Vec<Tensor>> {
        let copy = |to: usize| Ok(self.sent(x, 0, to)?.unwrap_or_else(|| x.clone()));
        (0..self.devices.len()).map(copy).collect()
    }

    /// The columns of one matrix [rows, n] of each device, side by side, on the first.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if there is not one for each device, [`Error::Shape`] if they differ in rows, or a device error.
    pub fn gather_columns(&self, parts: Vec<Tensor>) -> Result<Tensor> {
        self.one_of_each("gather_columns", parts.len())?;
        let here = |(from, part): (usize, Tensor)| Ok(self.sent(&part, from, 0)?.unwrap_or(part));
        let mut parts = parts.into_iter().enumerate().map(here).collect::<Result<Vec<_>>>()?;
        if parts.len() == 1 { Ok(parts.remove(0)) } else { ops::cat(&parts, 1) }
    }

    fn check(&self, op: &'static str, parts: &[Tensor]) -> Result<()> {
        self.one_of_each(op, parts.len())?;
        match parts.iter().find(|part| part.shape() != parts[0].shape() || part.dtype() != DType::F32) {
            None => Ok(()),
            Some(other) => {
                Err(misfit(op, "part", format!("f32 {} on every device", parts[0].shape()), other))
            }
        }
    }

    fn one_of_each(&self, op: &'static str, parts: usize) -> Result<()> {
        let devices = self.devices.len();
        let reason = format!("there are {devices} devices, and each has one part");
        match parts == devices {
            true => Ok(()),
            false => Err(Error::Unsupported { op, argument: "parts", value: parts.to_string(), reason }),
        }
    }

    /// A copy of a tensor of one device on another; none if that is the same one.
    fn sent(&self, x: &Tensor, from: usize, to: usize) -> Result<Option<Tensor>> {
        let Some(link) = &self.links[from][to] else { return Ok(None) };
        let mut there = Tensor::uninitialized(x.shape().clone(), x.dtype(), &self.devices[to])?;
        x.contiguous()?.send(link, &mut there)?;
        Ok(Some(there))
    }
}
