//! Plans: library code that runs on devices which keep books alone.
//!
//! The driver's calls of the thread go to [`pascaline_driver::planning`]. Pools, streams, graphs and modules are this library's own, so a
//! plan finds the segments, launches and modules of a real run.

use super::device::{self, CudaDevice};
use crate::{Error, Result, memory};
use pascaline_driver::planning;
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

/// The ordinals of planned devices begin here. Each has one of its own.
const FIRST: u32 = 1 << 20;

thread_local! {
    /// The ordinals of the plan that this thread makes.
    static PLANNED: RefCell<Option<Range<u32>>> = const { RefCell::new(None) };
    /// Bytes in host memory that only the plan knows.
    static HOST_BYTES: Cell<usize> = const { Cell::new(0) };
}

/// The properties of a GPU that decide which kernels run and what memory they take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedGpu {
    /// Compute capability, such as (6, 1).
    pub capability: (i32, i32),
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// The most bytes that its pool may reserve.
    pub memory: usize,
}

/// What one of a plan's devices would have done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Books {
    /// The most bytes that were in use at a time.
    pub peak_live: usize,
    /// The most bytes that the pool had reserved.
    pub peak_reserved: usize,
    /// How often the pool gave segments back because it was near its limit.
    pub trimmed: u64,
    /// The most bytes beside the pool: counters of streams, and slots of links.
    pub peak_beside: usize,
    /// Kernels that were launched or captured.
    pub launches: usize,
    /// The modules of these kernels, in the order of their first use.
    pub modules: Vec<&'static str>,
    /// Bytes of weights in host memory, those of all devices together.
    pub host_bytes: usize,
}

/// Runs `work` on devices that only keep books, one for each of `gpus`, and returns the books. On them tensors have shape, type and
/// an address, and no contents: copies and launches do nothing, and what is copied to the host is zero.
///
/// ```
/// use pascaline::cuda::{PlannedGpu, plan};
/// use pascaline::{DType, Device, Tensor, ops};
/// let gpu = PlannedGpu { capability: (6, 1), multiprocessors: 20, memory: usize::MAX };
/// let (shape, books) = plan(&[gpu], |devices| {
///     let x = Tensor::uninitialized([4096, 4096], DType::F32, &Device::Cuda(devices[0].clone()))?;
///     Ok(ops::matmul(&x, &x)?.dims().to_vec())
/// })?;
/// assert_eq!((&shape[..], books[0].launches), (&[4096, 4096][..], 1));
/// assert!(books[0].peak_live >= 2 * (4096 * 4096 * 4));
/// # Ok::<(), pascaline::Error>(())
/// ```
///
/// # Errors
/// Those of `work`; [`Error::Unsupported`] inside another plan. A device of the plan that is used after it, and any other device
/// inside it, answers with that error too.
pub fn plan<R>(
    gpus: &[PlannedGpu],
    work: impl FnOnce(&[CudaDevice]) -> Result<R>,
) -> Result<(R, Vec<Books>)> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let count = gpus.len() as u32;
    let first = FIRST + NEXT.fetch_add(count, Ordering::Relaxed) % (u32::MAX - FIRST - count);
    let run = || {
        let plan = Plan::begin(first..first + count);
        let devices: Vec<_> = gpus
            .iter()
            .zip(first..)
            .map(|(gpu, ordinal)| CudaDevice::planned(gpu, ordinal))
            .collect::<Result<_>>()?;
        for (device, gpu) in devices.iter().zip(gpus) {
            memory::set_limit(device, gpu.memory)?;
        }
        let result = work(&devices)?;
        let books = devices.iter().map(|device| {
            let statistics = memory::pool(device)?.statistics();
            Ok(Books {
                peak_live: statistics.peak_live,
                peak_reserved: statistics.peak_reserved,
                trimmed: statistics.found.trimmed,
                modules: device.modules().of_plan(),
                host_bytes: HOST_BYTES.get(),
                ..Books::default()
            })
        });
        let books = books.collect::<Result<Vec<_>>>()?;
        drop(plan);
        Ok((result, books))
    };
    // SAFETY: `check` refuses the devices of a plan, and so all that was made on them, after the plan.
    let planned = unsafe { planning::on_this_thread(gpus.len(), run) };
    let Some((planned, beside)) = planned else {
        return Err(refused("plan", "it is made inside another plan"));
    };
    let (result, mut books) = planned?;
    for (books, beside) in books.iter_mut().zip(beside) {
        (books.peak_beside, books.launches) = (beside.plain_peak, beside.launches);
    }
    Ok((result, books))
}

/// Exists while the thread plans.
struct Plan;

impl Plan {
    fn begin(ordinals: Range<u32>) -> Self {
        PLANNED.set(Some(ordinals));
        HOST_BYTES.set(0);
        device::forget_current();
        Self
    }
}

impl Drop for Plan {
    fn drop(&mut self) {
        memory::forget_planned();
        PLANNED.set(None);
        device::forget_current();
    }
}

/// Whether this thread plans.
pub(super) fn is_any() -> bool {
    PLANNED.with_borrow(Option::is_some)
}

/// Whether this is the ordinal of a planned device.
pub(super) fn is_planned(ordinal: u32) -> bool {
    ordinal >= FIRST
}

/// Refuses a device that is none of the plan in progress.
pub(super) fn check(ordinal: Option<u32>, call: &'static str) -> Result<()> {
    let reason = PLANNED.with_borrow(|planned| match (planned, ordinal) {
        (_, None) => None,
        (Some(own), Some(ordinal)) if own.contains(&ordinal) => None,
        (Some(_), _) => Some("a plan is made, which has devices of its own"),
        (None, _) => Some("its plan is over"),
    });
    reason.map_or(Ok(()), |reason| Err(refused(call, reason)))
}

/// Makes a device of the plan current.
pub(super) fn make_current(ordinal: u32) -> Result<()> {
    check(Some(ordinal), "cuCtxSetCurrent")?;
    let first = PLANNED.with_borrow(|planned| planned.as_ref().map_or(ordinal, |own| own.start));
    planning::make_current((ordinal - first) as usize);
    Ok(())
}

/// Counts weights that would be in host memory.
pub(crate) fn count_host_bytes(bytes: usize) {
    HOST_BYTES.set(HOST_BYTES.get() + bytes);
}

fn refused(op: &'static str, reason: &str) -> Error {
    let (argument, value) = ("device", "a planned GPU".to_owned());
    Error::Unsupported { op, argument, value, reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, Device, Tensor};

    const GPU: PlannedGpu = PlannedGpu { capability: (6, 1), multiprocessors: 20, memory: usize::MAX };

    #[test]
    fn devices_are_of_their_plan_alone() -> Result<()> {
        let (tensor, books) = plan(&[GPU], |devices| {
            assert!(plan(&[GPU], |_| Ok(())).is_err(), "a plan inside a plan");
            Tensor::zeros([1000], DType::F32, &Device::Cuda(devices[0].clone()))
        })?;
        assert!(books[0].peak_live >= 4000);
        assert!(tensor.to_vec::<f32>().is_err());
        assert!(Tensor::zeros_like(&tensor).is_err());
        drop(tensor);
        plan(&[GPU], |_| Ok(())).map(drop)
    }

    #[test]
    fn a_limit_is_kept() -> Result<()> {
        let small = PlannedGpu { memory: 8 << 20, ..GPU };
        let of = |elements: usize| {
            plan(&[GPU, small], |devices| {
                Tensor::zeros([elements], DType::F32, &Device::Cuda(devices[1].clone()))
            })
        };
        assert!(matches!(of(4 << 20), Err(Error::OutOfMemory { .. })));
        assert_eq!(of(1 << 20)?.1.iter().map(|books| books.peak_live).collect::<Vec<_>>(), [0, 4 << 20]);
        Ok(())
    }
}
