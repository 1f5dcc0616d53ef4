//! The device that tensors are on and ops run on.

use crate::cuda::{CudaDevice, Properties, WITHOUT_VIRTUAL_GPU};
use crate::parallel::with_team;
use crate::{Error, Result};
use pascaline_driver as driver;
use std::fmt;
use std::str::FromStr;

/// The CPU, or a CUDA device (a real one or the virtual GPU) with a stream.
///
/// ```
/// use pascaline::{DType, Device, Tensor};
/// let device: Device = "cpu".parse()?; // or auto, cuda, cuda:1, virtual
/// let x = Tensor::zeros([2], DType::F32, &device)?;
/// assert!(x.device() == Device::Cpu && !device.is_cuda());
/// # Ok::<(), pascaline::Error>(())
/// ```
#[derive(Clone, Debug)]
pub enum Device {
    /// The CPU: the fallback for every op.
    Cpu,
    /// A CUDA device.
    Cuda(CudaDevice),
}

/// The device that `auto` chose, and the reason.
#[derive(Clone, Debug)]
pub struct Choice {
    /// The device.
    pub device: Device,
    /// One sentence for users.
    pub reason: String,
}

impl Device {
    /// The first CUDA device of compute capability 6.1 or newer; without one, the CPU. The virtual GPU only with
    /// `PASCALINE_DEVICE=virtual`.
    pub fn auto() -> Self {
        Self::choose().device
    }

    /// As [`auto`](Self::auto), with the reason.
    pub fn choose() -> Choice {
        let mut refused = match CudaDevice::count() {
            Ok(0) => vec!["the driver sees no device".to_owned()],
            Ok(count) => {
                let mut refused = Vec::new();
                for ordinal in 0..count {
                    match CudaDevice::new(ordinal) {
                        Ok(device) => {
                            let Properties { name, capability: (major, minor), .. } =
                                device.properties().clone();
                            let reason = format!(
                                "{name} is the first device of compute capability 6.1 or newer ({major}.{minor})"
                            );
                            return Choice { device: Self::Cuda(device), reason };
                        }
                        Err(error) => refused.push(error.to_string()),
                    }
                }
                refused
            }
            Err(error) => vec![error.to_string()],
        };
        refused.dedup();
        Choice { device: Self::Cpu, reason: refused.join("; ") }
    }

    /// CUDA device number `ordinal`.
    ///
    /// # Errors
    /// [`Error::NoDevice`] with the reason.
    pub fn cuda(ordinal: u32) -> Result<Self> {
        CudaDevice::new(ordinal).map(Self::Cuda)
    }

    /// The virtual GPU. It replaces the driver for the whole process, so it must be requested before any real device is
    /// used.
    ///
    /// # Errors
    /// [`Error::NoDevice`] if the real driver is in use already, or the feature `virtual-gpu` is off.
    pub fn virtual_gpu() -> Result<Self> {
        Self::virtual_gpu_number(0)
    }

    /// As [`virtual_gpu`](Self::virtual_gpu), with the number of a device in a list such as
    /// `PASCALINE_VIRTUAL_DEVICES=mx330,gtx1080`.
    ///
    /// # Errors
    /// As there, and if the list is shorter.
    pub fn virtual_gpu_number(ordinal: u32) -> Result<Self> {
        if !driver::HAS_VIRTUAL_GPU {
            return Err(Error::NoDevice { reason: WITHOUT_VIRTUAL_GPU.into() });
        }
        driver::select(driver::Backend::Virtual)
            .map_err(|_| Error::NoDevice { reason: "this process already uses the real driver".into() })?;
        Self::cuda(ordinal)
    }

    /// The first CUDA device, or the virtual GPU if the driver reports none: for programs that always need a GPU, such as
    /// those with their own kernels. The device's name says which it is.
    ///
    /// # Errors
    /// [`Error::NoDevice`] if the device can't be used, or as for [`virtual_gpu`](Self::virtual_gpu).
    pub fn cuda_or_virtual() -> Result<Self> {
        match driver::real_devices() {
            Ok(1..) => Self::cuda(0),
            Ok(0) | Err(_) => Self::virtual_gpu(),
        }
    }

    /// Whether it is a CUDA device.
    pub fn is_cuda(&self) -> bool {
        matches!(self, Self::Cuda(_))
    }

    /// Whether it only keeps the books of a [plan](crate::plan).
    pub fn is_planned(&self) -> bool {
        self.as_cuda().is_some_and(CudaDevice::is_planned)
    }

    /// Calls `f`, which runs many ops one after the other. On the CPU their loops are quicker inside of one call: rayon's threads wait
    /// awake for the next loop, for up to about a millisecond.
    pub fn pass<R>(&self, f: impl FnOnce() -> R) -> R {
        match self {
            Self::Cpu => with_team(f),
            Self::Cuda(_) => f(),
        }
    }

    /// The CUDA device; `None` on the CPU.
    pub fn as_cuda(&self) -> Option<&CudaDevice> {
        match self {
            Self::Cuda(device) => Some(device),
            Self::Cpu => None,
        }
    }

    /// Waits for all work queued on the device's stream and reports its errors.
    ///
    /// # Errors
    /// [`Error::DeviceLost`] if a kernel faulted.
    pub fn synchronize(&self) -> Result<()> {
        match self {
            Self::Cpu => Ok(()),
            Self::Cuda(device) => device.synchronize(),
        }
    }

    /// Whether tensors on these can be operands of one op: both on the CPU, or on the same stream of one device.
    pub fn same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Cpu, Self::Cpu) => true,
            (Self::Cuda(a), Self::Cuda(b)) => a.same_stream(b),
            _ => false,
        }
    }
}

/// The same device, regardless of the stream: both the CPU, or CUDA devices with the same number (a process has either real
/// or virtual ones). [`same`](Device::same) tells whether tensors can be operands of one op.
impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Cpu, Self::Cpu) => true,
            (Self::Cuda(a), Self::Cuda(b)) => a.properties().ordinal == b.properties().ordinal,
            _ => false,
        }
    }
}

impl Eq for Device {}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(device) => write!(f, "{device:?}"),
        }
    }
}

/// `auto`, `cpu`, `cuda`, `cuda:N`, `virtual` or `virtual:N`.
impl FromStr for Device {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "auto" => Ok(Self::auto()),
            "cpu" => Ok(Self::Cpu),
            "cuda" => Self::cuda(0),
            "virtual" => Self::virtual_gpu(),
            _ => match name.split_once(':').map(|(kind, number)| (kind, number.parse())) {
                Some(("cuda", Ok(ordinal))) => Self::cuda(ordinal),
                Some(("virtual", Ok(ordinal))) => Self::virtual_gpu_number(ordinal),
                _ => Err(Error::UnknownDevice { name: name.to_owned() }),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed() {
        assert!(matches!("cpu".parse(), Ok(Device::Cpu)));
        for name in ["", "gpu", "cuda:", "cuda:x", "cuda:-1", "virtual:", "virtual:x", "cpu:0", "CPU"] {
            assert_eq!(name.parse::<Device>().unwrap_err(), Error::UnknownDevice { name: name.into() });
        }
    }
}
