//! Sums over devices, of which each has a part.

use super::misfit;
use crate::cuda::nccl::Nccl;
use crate::memory::{Link, Way};
use crate::{DType, Device, Error, Result, Tensor, ops};

/// What devices exchange that compute a part of each layer: Megatron's tensor parallelism (Shoeybi et al. 2019, section 3). Every
/// device holds the whole residual stream. The first half of a pair of matrices is divided by rows and the second by columns, so that
/// each device has a partial sum of the pair's result, and the sums are added here.
///
/// NCCL adds where its library is found. Otherwise each device sends its part to all others, and adds them in the order of the devices
/// with the kernel of [`ops::add`]. All devices have the same bits either way.
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
    nccl: Option<Nccl>,
}

impl AllReduce {
    /// Between these devices; values go as `way` says, or by NCCL where its library is found (`libnccl.so.2`, or the file that
    /// `PASCALINE_NCCL` names), or straight where the driver lets them.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for none, for several that are not different GPUs, for [`Way::Nccl`] without the library, for one that
    /// can't be used, and as [`Link::new`].
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
        // embeddings and logits are copied in any case
        let copies = way.filter(|way| *way != Way::Nccl);
        let link = |from: &Device, to: &Device| match (from, to) {
            _ if from == to => Ok(None),
            (Device::Cuda(from), Device::Cuda(to)) => Link::new(from, to, copies).map(Some),
            _ => Err(refused(format!("{from} and {to}"), "sums are made over GPUs alone")),
        };
        let from = |from: &Device| devices.iter().map(|to| link(from, to)).collect::<Result<Vec<_>>>();
        let links = devices.iter().map(from).collect::<Result<Vec<_>>>()?;
        if links.iter().flatten().filter(|link| link.is_none()).count() > devices.len() {
            return Err(refused(format!("{devices:?}"), "one comes twice"));
        }
        let gpus = devices.iter().filter_map(|device| match device {
            Device::Cuda(device) => Some(device.clone()),
            Device::Cpu => None,
        });
        let gpus: Vec<_> = gpus.collect();
        let nccl = match way {
            None | Some(Way::Nccl) if gpus.len() > 1 => Nccl::open(&gpus)?,
            _ => None,
        };
        if way == Some(Way::Nccl) && nccl.is_none() {
            return Err(refused(
                format!("{devices:?}"),
                "there is no NCCL for them: libnccl.so.2 was looked for",
            ));
        }
        Ok(Self { devices: devices.to_vec(), links, nccl })
    }

    /// The ways that values take, of each device to the others.
    pub fn ways(&self) -> Vec<Way> {
        if self.nccl.is_some() {
            return vec![Way::Nccl];
        }
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
        if let Some(nccl) = &self.nccl {
            return sum_by(nccl, &parts);
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

    /// Waits for all devices, and reports their errors: what comes from them is to be used only then.
    ///
    /// # Errors
    /// [`Error::DeviceLost`](crate::Error::DeviceLost).
    pub fn wait(&self) -> Result<()> {
        match &self.nccl {
            Some(nccl) => nccl.wait(),
            None => self.devices.iter().try_for_each(Device::synchronize),
        }
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

fn sum_by(nccl: &Nccl, parts: &[Tensor]) -> Result<Vec<Tensor>> {
    let parts = parts.iter().map(Tensor::contiguous).collect::<Result<Vec<_>>>()?;
    let room = |part: &Tensor| Tensor::uninitialized(part.shape().clone(), DType::F32, &part.device());
    let mut sums = parts.iter().map(room).collect::<Result<Vec<_>>>()?;
    let read = parts.iter().map(Tensor::device_address::<f32>).collect::<Result<Vec<_>>>()?;
    let written = sums.iter_mut().map(|sum| sum.view_mut()?.device_address::<f32>());
    let written = written.collect::<Result<Vec<_>>>()?;
    // SAFETY: `check` has seen one part for each device, all of one shape; the sums are new. What is dropped is used again only after
    // the work that its stream has by then.
    unsafe { nccl.sum(&read, &written, parts[0].shape().elements()) }?;
    Ok(sums)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::nccl::stand_in::{FAILS, LOG};
    use std::env;
    use std::process::Command;

    /// Names the process that has two devices.
    const CASE: &str = "PASCALINE_NCCL_CASE";

    fn stood_in() -> Result<AllReduce> {
        let devices = [Device::virtual_gpu_number(0)?, Device::virtual_gpu_number(1)?];
        let gpus = devices.iter().filter_map(|device| match device {
            Device::Cuda(device) => Some(device.clone()),
            Device::Cpu => None,
        });
        let nccl = Some(Nccl::stand_in(&gpus.collect::<Vec<_>>())?);
        Ok(AllReduce { nccl, ..AllReduce::new(&devices, None)? })
    }

    fn parts(sums: &AllReduce) -> Result<Vec<Tensor>> {
        let part = |(index, device): (usize, &Device)| Tensor::full(1.5 + index as f32, [3, 5], device);
        sums.devices.iter().enumerate().map(part).collect()
    }

    fn sums_are_nccls() -> Result<()> {
        let sums = stood_in()?;
        assert_eq!(sums.ways(), [Way::Nccl]);
        for sum in sums.sum(parts(&sums)?)? {
            assert_eq!(sum.to_vec::<f32>()?, [4.0; 15]);
        }
        sums.wait()?;
        assert_eq!(LOG.take(), ["init_all", "group_start", "all_reduce", "all_reduce", "group_end"]);
        drop(sums);
        assert_eq!(LOG.take(), ["destroy"; 2]);

        for call in ["group_start", "all_reduce", "group_end"] {
            let sums = stood_in()?;
            FAILS.set(Some((call, 5)));
            let error = sums.sum(parts(&sums)?).unwrap_err();
            let Error::Driver { code: 5, text, .. } = &error else { panic!("{call}: {error}") };
            assert_eq!(text, "invalid usage");
            FAILS.set(None);
            LOG.take();
            drop(sums);
            assert_eq!(LOG.take(), [""; 0], "what was aborted is not destroyed");
        }
        FAILS.set(Some(("init_all", 2)));
        assert!(stood_in().unwrap_err().to_string().contains("an error without a text"));
        // the library knows no virtual devices
        let devices = [Device::virtual_gpu_number(0)?, Device::virtual_gpu_number(1)?];
        assert_eq!(AllReduce::new(&devices, None)?.ways().len(), 2);
        let error = AllReduce::new(&devices, Some(Way::Nccl)).unwrap_err();
        assert!(error.to_string().contains("there is no NCCL"), "{error}");
        Ok(())
    }

    /// In a process of its own, as one has one set of devices.
    #[test]
    fn sums_are_nccls_where_it_is_there() {
        if env::var_os(CASE).is_some() {
            return sums_are_nccls().unwrap();
        }
        let name = "nn::all_reduce::tests::sums_are_nccls_where_it_is_there";
        let mut test = Command::new(env::current_exe().unwrap());
        test.args(["--exact", name, "--nocapture"]).env(CASE, "1");
        let output = test.env("PASCALINE_VIRTUAL_DEVICES", "mx330,gtx1060").output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr) + String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
    }
}
