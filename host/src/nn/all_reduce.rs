//! Sums over devices, of which each has a part.
//!
//! An exchange is a few calls for each device, all of which may be captured into one graph over the devices:
//!
//! ```text
//! each device   its part · record that it is there · wait for all others' · read the parts that it needs
//! ```
//!
//! Kernels read the others' parts in place, by peer access. Where the driver gives none, each device first copies its part to pinned
//! memory, which all kernels reach. A part stays until the next exchange has been queued: by then its device waits for the others, which
//! have read it before. So does each of the two places in pinned memory that are used in turn.

use super::checks::misfit;
use crate::cuda::nccl::Nccl;
use crate::cuda::{CudaDevice, Event};
use crate::memory::{Posted, Way, reach};
use crate::mutation::{Wait, left_out};
use crate::{DType, Device, Error, Result, Tensor, ops};
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// All-reduce for tensor parallelism, as in Megatron (Shoeybi et al. 2019, section 3). Every
/// device holds the whole residual stream. The first half of a pair of matrices is divided by rows and the second by columns, so that
/// each device has a partial sum of the pair's result, and the sums are added here.
///
/// Each device reads the others' parts and adds them in the order of the devices with the kernel of [`ops::add`]. NCCL adds where its
/// library is found, apart from what is captured into a [graph](crate::cuda::Graph::capture_over). All devices have the same bits either way.
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
    /// The same, where they are GPUs.
    gpus: Vec<CudaDevice>,
    /// Of all devices to all others.
    way: Way,
    /// On each device's stream: its part is there.
    there: Vec<Event>,
    in_flight: Mutex<InFlight>,
    nccl: Option<Nccl>,
}

/// Tensors that queued work still uses.
#[derive(Debug, Default)]
struct InFlight {
    /// The parts of the last exchange.
    parts: Vec<Option<Tensor>>,
    /// Of each device two places in pinned memory, and which is next.
    places: Vec<[Option<Arc<Posted>>; 2]>,
    next: usize,
    /// Places that were too small.
    small: Vec<Arc<Posted>>,
}

impl AllReduce {
    /// Between these devices, by `way`. If that is `None`, two devices with peer access read each other's parts. More than two, or
    /// devices without peer access, take NCCL where its library is found (`libnccl.so.2`, or the file that `PASCALINE_NCCL`
    /// names), else what there is.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for none, for several that are not different GPUs, for [`Way::Peer`] where the driver
    /// refuses, for [`Way::Nccl`] without the library, and for one that can't be used.
    pub fn new(devices: &[Device], way: Option<Way>) -> Result<Self> {
        let refused = |value: String, reason: &str| Error::Unsupported {
            op: "AllReduce",
            argument: "devices",
            value,
            reason: reason.into(),
        };
        let gpus: Vec<_> = devices.iter().filter_map(Device::as_cuda).cloned().collect();
        if devices.is_empty() {
            return Err(refused("none".into(), "there is nothing to add"));
        }
        if devices.len() > 1 && gpus.len() < devices.len() {
            return Err(refused(format!("{devices:?}"), "sums are made over GPUs alone"));
        }
        let ordinal = |gpu: &CudaDevice| gpu.properties().ordinal;
        if (1..gpus.len()).any(|at| gpus[..at].iter().any(|one| ordinal(one) == ordinal(&gpus[at]))) {
            return Err(refused(format!("{devices:?}"), "one comes twice"));
        }
        let all = way != Some(Way::Pinned) && all_reach(&gpus)?;
        if way == Some(Way::Peer) && !all {
            return Err(refused(
                format!("{devices:?}"),
                "the driver gives them no peer access to each other",
            ));
        }
        let mut there = Vec::with_capacity(gpus.len());
        for gpu in &gpus {
            gpu.bind()?;
            there.push(Event::untimed()?);
        }
        let planned = gpus.iter().any(CudaDevice::is_planned);
        let nccl = if !planned && takes_nccl(way, gpus.len(), all) { Nccl::open(&gpus)? } else { None };
        if way == Some(Way::Nccl) && nccl.is_none() {
            return Err(refused(
                format!("{devices:?}"),
                "there is no NCCL for them: libnccl.so.2 was looked for",
            ));
        }
        let way = if all { Way::Peer } else { Way::Pinned };
        let in_flight = InFlight { places: vec![[None, None]; gpus.len()], ..InFlight::default() };
        Ok(Self { devices: devices.to_vec(), gpus, way, there, in_flight: Mutex::new(in_flight), nccl })
    }

    /// Bytes that sums by `way` take of each device beside its pool: NCCL's buffers, if it makes them. An estimate, as they depend on
    /// the version and on what connects the devices: 4 MiB, NCCL_BUFFSIZE's default, to send and to receive in each of 32 channels.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for an NCCL that is named and can't be used.
    pub fn bytes_beside(devices: &[Device], way: Option<Way>) -> Result<usize> {
        const NCCL: usize = 2 * 32 * (4 << 20);
        let gpus = devices.iter().filter_map(Device::as_cuda).filter(|gpu| !gpu.is_virtual());
        let gpus: Vec<_> = gpus.cloned().collect();
        let asked = takes_nccl(way, gpus.len(), all_reach(&gpus)?);
        Ok(if asked && Nccl::is_there()? { NCCL } else { 0 })
    }

    /// The ways that values take: NCCL's, if it is there, and that of what it does not add.
    pub fn ways(&self) -> Vec<Way> {
        match (&self.nccl, self.gpus.len()) {
            (_, 0 | 1) => Vec::new(),
            (Some(_), _) => vec![Way::Nccl, self.way],
            (None, _) => vec![self.way],
        }
    }

    /// The sum of one tensor of each device, on each of them. All are f32 and of one shape.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if there is not one for each device, [`Error::Shape`] if they differ in shape.
    pub fn sum(&self, parts: Vec<Tensor>) -> Result<Vec<Tensor>> {
        self.check("sum", &parts)?;
        if parts.len() == 1 {
            return Ok(parts);
        }
        let captured = self.gpus.iter().any(|gpu| gpu.stream().is_capturing());
        if let Some(nccl) = self.nccl.as_ref().filter(|_| !captured) {
            return sum_by(nccl, &parts);
        }
        self.exchange(parts.into_iter().map(Some).collect(), |part| {
            let sum = |to: usize| {
                let first = ops::add(&part(0, to)?, &part(1, to)?)?;
                (2..self.gpus.len()).try_fold(first, |sum, from| ops::add(&sum, &part(from, to)?))
            };
            (0..self.gpus.len()).map(sum).collect()
        })
    }

    /// A tensor of the first device on each of them.
    pub fn broadcast(&self, x: &Tensor) -> Result<Vec<Tensor>> {
        if self.devices.len() == 1 {
            return Ok(vec![x.clone()]);
        }
        let mut parts = vec![None; self.gpus.len()];
        parts[0] = Some(x.clone());
        self.exchange(parts, |part| {
            let copy = |to: usize| {
                if to == 0 {
                    return Ok(x.clone());
                }
                let mut copy = Tensor::uninitialized(x.shape().clone(), x.dtype(), &self.devices[to])?;
                ops::copy_into(copy.view_mut()?, &part(0, to)?)?;
                Ok(copy)
            };
            (0..self.gpus.len()).map(copy).collect()
        })
    }

    /// The columns of one matrix [rows, n] of each device, side by side, on the first.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if there is not one for each device, [`Error::Shape`] if they differ in rows.
    pub fn gather_columns(&self, mut parts: Vec<Tensor>) -> Result<Tensor> {
        self.one_of_each("gather_columns", parts.len())?;
        if parts.len() == 1 {
            return Ok(parts.remove(0));
        }
        self.exchange(parts.into_iter().map(Some).collect(), |part| {
            let parts = (0..self.gpus.len()).map(|from| part(from, 0)).collect::<Result<Vec<_>>>()?;
            ops::cat(&parts, 1)
        })
    }

    /// Shows each device's part, if it has one, to the others: `read` gets part `from` as device `to` reads it.
    fn exchange<R>(
        &self,
        mut parts: Vec<Option<Tensor>>,
        read: impl FnOnce(&dyn Fn(usize, usize) -> Result<Tensor>) -> Result<R>,
    ) -> Result<R> {
        let mut in_flight = self.in_flight();
        let mut posted = vec![None; parts.len()];
        for (from, part) in parts.iter_mut().enumerate() {
            let Some(part) = part else { continue };
            *part = part.contiguous()?;
            if self.way == Way::Pinned {
                let place =
                    self.place(&mut in_flight, from, part.shape().elements() * part.dtype().size())?;
                posted[from] = Some((part.post(&place)?, place));
            }
        }
        in_flight.next = 1 - in_flight.next;
        for (gpu, there) in self.gpus.iter().zip(&self.there) {
            gpu.bind()?;
            there.record(gpu.stream())?;
        }
        for (to, gpu) in self.gpus.iter().enumerate().filter(|_| !left_out(Wait::PartThere)) {
            let others = self.there.iter().enumerate().filter(|(from, _)| *from != to);
            others.map(|(_, there)| there).try_for_each(|there| gpu.stream().wait(there))?;
        }
        let part = |from: usize, to: usize| -> Result<Tensor> {
            let reason = || "it has no part".to_owned();
            let (op, argument, value) = ("AllReduce", "device", from.to_string());
            let Some(part) = &parts[from] else {
                return Err(Error::Unsupported { op, argument, value, reason: reason() });
            };
            match &posted[from] {
                _ if from == to => Ok(part.clone()),
                // SAFETY: `new` has seen that all reach each other. The reader waits above for what wrote the part, which stays
                // in `in_flight` until its device waits for the reader.
                None => unsafe { part.seen_from(&self.gpus[to]) },
                Some((address, place)) => {
                    let (shape, owner) = (part.shape().clone(), Box::new(Arc::clone(place)));
                    let (strides, dtype) = (part.strides(), part.dtype());
                    // SAFETY: pinned memory, which kernels of all devices reach, with a copy of the contiguous part. It is filled
                    // again two exchanges later, when its device waits for the reader.
                    unsafe { Tensor::from_foreign(*address, shape, strides, dtype, &self.devices[to], owner) }
                }
            }
        };
        let result = read(&part);
        if !left_out(Wait::PartRead) {
            in_flight.parts = parts; // those before have been read: all devices wait for each other since
        }
        result
    }

    /// The place for the next part of a device.
    fn place(&self, in_flight: &mut InFlight, from: usize, bytes: usize) -> Result<Arc<Posted>> {
        let place = &mut in_flight.places[from][in_flight.next];
        if let Some(place) = place.as_ref().filter(|place| place.bytes() >= bytes) {
            return Ok(Arc::clone(place));
        }
        let larger = Arc::new(Posted::new(&self.gpus[from], bytes)?);
        in_flight.small.extend(place.replace(Arc::clone(&larger)));
        Ok(larger)
    }

    fn in_flight(&self) -> MutexGuard<'_, InFlight> {
        self.in_flight.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for all devices, and reports their errors: what comes from them is to be used only then. Nothing may be captured on them.
    ///
    /// # Errors
    /// [`Error::DeviceLost`](crate::Error::DeviceLost).
    pub fn wait(&self) -> Result<()> {
        let mut in_flight = self.in_flight();
        match &self.nccl {
            Some(nccl) => nccl.wait()?,
            None => self.devices.iter().try_for_each(Device::synchronize)?,
        }
        in_flight.parts.clear();
        in_flight.small.clear();
        Ok(())
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
}

impl Drop for AllReduce {
    fn drop(&mut self) {
        if self.devices.iter().any(|device| device.synchronize().is_err()) {
            // a device may still read or fill them
            mem::forget(mem::take(&mut *self.in_flight()));
        }
    }
}

/// Whether the driver lets each device read the memory of every other, which is enabled.
fn all_reach(gpus: &[CudaDevice]) -> Result<bool> {
    for (from, to) in gpus.iter().flat_map(|from| gpus.iter().map(move |to| (from, to))) {
        if from.properties().ordinal != to.properties().ordinal && !reach(from, to)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether NCCL is looked for. Two H200s add the parts of a prompt faster by reading them; with n devices each reads n − 1 parts,
/// where NCCL's ring passes on two at most.
fn takes_nccl(way: Option<Way>, devices: usize, all_reach: bool) -> bool {
    devices > 1 && way.map_or(devices > 2 || !all_reach, |way| way == Way::Nccl)
}

fn sum_by(nccl: &Nccl, parts: &[Tensor]) -> Result<Vec<Tensor>> {
    let parts = parts.iter().map(Tensor::contiguous).collect::<Result<Vec<_>>>()?;
    let room = |part: &Tensor| Tensor::uninitialized(part.shape().clone(), DType::F32, &part.device());
    let mut sums = parts.iter().map(room).collect::<Result<Vec<_>>>()?;
    let read = parts.iter().map(Tensor::device_address::<f32>).collect::<Result<Vec<_>>>()?;
    let written = sums.iter_mut().map(|sum| sum.view_mut()?.device_address::<f32>());
    let written = written.collect::<Result<Vec<_>>>()?;
    // SAFETY: `check` has seen one part for each device, all of one shape; the sums are new. Dropped memory is used again only after
    // the work that its stream has by then.
    unsafe { nccl.sum(&read, &written, parts[0].shape().elements()) }?;
    Ok(sums)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::Graph;
    use crate::cuda::nccl::stand_in::{FAILS, LOG};
    use crate::mutation::without;
    use std::env;
    use std::process::Command;

    /// Names the process that has two devices.
    const CASE: &str = "PASCALINE_NCCL_CASE";

    fn stood_in() -> Result<AllReduce> {
        let devices = [Device::virtual_gpu_number(0)?, Device::virtual_gpu_number(1)?];
        let gpus: Vec<_> = devices.iter().filter_map(Device::as_cuda).cloned().collect();
        let nccl = Some(Nccl::stand_in(&gpus)?);
        let mut sums = AllReduce::new(&devices, None)?;
        sums.nccl = nccl;
        Ok(sums)
    }

    fn parts(sums: &AllReduce) -> Result<Vec<Tensor>> {
        let part = |(index, device): (usize, &Device)| Tensor::full(1.5 + index as f32, [3, 5], device);
        sums.devices.iter().enumerate().map(part).collect()
    }

    fn sums_are_nccls() -> Result<()> {
        let sums = stood_in()?;
        assert_eq!(sums.ways(), [Way::Nccl, Way::Peer]);
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
        assert_eq!(AllReduce::new(&devices, None)?.ways(), [Way::Peer]);
        let error = AllReduce::new(&devices, Some(Way::Nccl)).unwrap_err();
        assert!(error.to_string().contains("there is no NCCL"), "{error}");
        Ok(())
    }

    /// Runs a test in a process of its own, as one has one set of devices; gives what it printed.
    fn in_a_process(name: &str, case: &str) -> String {
        let name = format!("nn::all_reduce::tests::{name}");
        let mut test = Command::new(env::current_exe().unwrap());
        test.args(["--exact", &name, "--nocapture"]).env(CASE, case);
        let output = test.env("PASCALINE_VIRTUAL_DEVICES", "mx330,gtx1060").output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr) + String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{case}: {text}");
        text.into_owned()
    }

    #[test]
    fn sums_are_nccls_where_it_is_there() {
        if env::var_os(CASE).is_some() {
            return sums_are_nccls().unwrap();
        }
        in_a_process("sums_are_nccls_where_it_is_there", "1");
    }

    /// Four sums, launched or by a graph that is replayed, of which the host waits for none.
    fn four(way: Way, captured: bool) -> Result<Vec<Vec<f32>>> {
        let devices = [Device::virtual_gpu_number(0)?, Device::virtual_gpu_number(1)?];
        let sums = AllReduce::new(&devices, Some(way))?;
        let input = |(number, device): (usize, &Device)| {
            let number = number as f32 + 1.0;
            Tensor::from_slice(&[number, 10.0 * number], [1, 2], device)
        };
        let inputs = devices.iter().enumerate().map(input).collect::<Result<Vec<_>>>()?;
        let work = || -> Result<Vec<Tensor>> {
            let mut found = Vec::new();
            for factor in 1..=4 {
                let part = |input| ops::scale(input, factor as f32);
                found.extend(sums.sum(inputs.iter().map(part).collect::<Result<_>>()?)?);
            }
            Ok(found)
        };
        let found = match captured {
            false => work()?,
            true => {
                let (graph, found) = Graph::capture_over(&sums.gpus, work)?;
                graph.launch()?;
                graph.launch()?;
                sums.wait()?;
                return found.iter().map(Tensor::to_vec).collect();
            }
        };
        sums.wait()?;
        found.iter().map(Tensor::to_vec).collect()
    }

    #[test]
    fn each_wait_of_a_sum_is_needed() {
        if let Ok(case) = env::var(CASE) {
            let wait = match case.split_once(' ').unwrap().1 {
                "there" => Some(Wait::PartThere),
                "read" => Some(Wait::PartRead),
                _ => None,
            };
            let way = if case.starts_with("pinned") { Way::Pinned } else { Way::Peer };
            let found = without(wait, || four(way, case.contains("captured")));
            match wait {
                None => {
                    let sum = |at: usize| vec![3.0 * (at / 2 + 1) as f32, 30.0 * (at / 2 + 1) as f32];
                    assert_eq!(found, Ok((0..8).map(sum).collect()));
                }
                Some(_) => assert!(matches!(found, Err(Error::DeviceLost { .. })), "{found:?}"),
            }
            return;
        }
        // where parts are copied to pinned memory nobody else reads them
        for way in ["peer", "peer-captured", "pinned", "pinned-captured"] {
            for wait in ["none", "there", "read"].iter().take(if way.starts_with("peer") { 3 } else { 2 }) {
                let case = format!("{way} {wait}");
                let text = in_a_process("each_wait_of_a_sum_is_needed", &case);
                // a missing wait, or what has never been written, as the order comes
                assert_eq!(text.contains("virtual GPU: "), *wait != "none", "{case}: {text}");
            }
        }
    }
}
