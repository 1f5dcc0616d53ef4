//! Plans: library code that runs on devices which keep books alone.
//!
//! The driver's calls of the thread go to [`pascaline_driver::planning`]. Pools, streams, graphs and modules are the library's own, so a
//! plan finds the segments, launches and modules of a real run.

use crate::cuda::{CudaDevice, Planning, refused};
use crate::{Result, memory};
use pascaline_driver::planning;

pub use crate::cuda::PlannedGpu;

/// The work that one of a plan's devices would have done.
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
/// use pascaline::plan::{PlannedGpu, plan};
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
/// Those of `work`; [`Error::Unsupported`](crate::Error::Unsupported) inside another plan. A device of the plan that is used after it, and any other device
/// inside it, answers with that error too.
pub fn plan<R>(
    gpus: &[PlannedGpu],
    work: impl FnOnce(&[CudaDevice]) -> Result<R>,
) -> Result<(R, Vec<Books>)> {
    let run = || {
        let planning = Planning::begin(gpus.len());
        let devices = gpus.iter().zip(planning.ordinals()).map(|(gpu, at)| CudaDevice::planned(gpu, at));
        let devices = devices.collect::<Result<Vec<_>>>()?;
        let _pools = Pools;
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
                host_bytes: planning.host_bytes(),
                ..Books::default()
            })
        });
        Ok((result, books.collect::<Result<Vec<_>>>()?))
    };
    // SAFETY: outside the plan the library refuses its devices, and so all that was made on them.
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

/// Ends the pools of a plan.
struct Pools;

impl Drop for Pools {
    fn drop(&mut self) {
        memory::forget_planned();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, Device, Error, Tensor};

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
