//! The environment that results depend on: device, driver, CPU. It has nothing that changes from run to run.

use pascaline::Device;
use pascaline::cuda::{CudaDevice, Properties, driver_version};
use pascaline::format_bytes as bytes;
use pascaline::governor::nvml::Monitor;
use pascaline_driver as driver;
use serde::Serialize;
use std::{env, fs, thread};

/// The origin of a report's numbers.
#[derive(Serialize)]
pub(super) struct Environment {
    pub pascaline: &'static str,
    /// From `PASCALINE_COMMIT` at build time.
    pub commit: Option<&'static str>,
    pub os: &'static str,
    pub arch: &'static str,
    pub cpu: Cpu,
    /// `cpu`, `cuda:N` or `virtual`.
    pub device: String,
    pub gpu: Option<Gpu>,
    /// The driver in use; none in CPU mode.
    pub driver: Option<Driver>,
}

#[derive(Serialize)]
pub(super) struct Cpu {
    pub name: Option<String>,
    pub threads: usize,
}

#[derive(Serialize)]
pub(super) struct Driver {
    /// The newest CUDA it supports, `12.4`.
    pub cuda: String,
    /// Its own version, `550.54.14`.
    pub version: Option<String>,
}

#[derive(Serialize)]
pub(super) struct Gpu {
    pub ordinal: u32,
    pub name: String,
    pub compute_capability: String,
    pub multiprocessors: u32,
    pub clock_mhz: u32,
    pub memory_clock_mhz: u32,
    pub memory_bus_bits: u32,
    pub l2_bytes: usize,
    pub memory_bytes: usize,
    pub memory_pools: bool,
    pub watchdog: bool,
}

impl Environment {
    pub fn new(device: &Device) -> Self {
        let (gpu, driver) = match device {
            Device::Cpu => (None, None),
            Device::Cuda(device) => {
                let driver = Driver::in_use().map(|driver| driver.with_version_of(device));
                (Some(Gpu::new(device.properties())), driver)
            }
        };
        let name = match &gpu {
            None => "cpu".to_owned(),
            Some(_) if is_virtual() => "virtual".to_owned(),
            Some(gpu) => format!("cuda:{}", gpu.ordinal),
        };
        Self {
            pascaline: env!("CARGO_PKG_VERSION"),
            commit: option_env!("PASCALINE_COMMIT"),
            os: env::consts::OS,
            arch: env::consts::ARCH,
            cpu: Cpu::here(),
            device: name,
            gpu,
            driver,
        }
    }

    /// One line for people.
    pub fn line(&self) -> String {
        let Some(gpu) = &self.gpu else {
            return format!("cpu: {}", self.cpu.line());
        };
        let mut line = format!("{}: {}", self.device, gpu.line());
        if let Some(driver) = &self.driver {
            line += &format!(", driver {}", driver.line());
        }
        line
    }
}

impl Cpu {
    pub fn here() -> Self {
        let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let name = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
        Self {
            // Windows has no such file; an environment variable has family and model
            name: name
                .map(|(_, name)| name.trim().to_owned())
                .or_else(|| env::var("PROCESSOR_IDENTIFIER").ok()),
            threads: thread::available_parallelism().map_or(1, usize::from),
        }
    }

    pub fn line(&self) -> String {
        let threads =
            if self.threads == 1 { "1 thread".to_owned() } else { format!("{} threads", self.threads) };
        match &self.name {
            Some(name) => format!("{name}, {threads}"),
            None => threads,
        }
    }
}

impl Driver {
    /// The driver, if it starts. This starts the driver, so it is not called in CPU mode.
    pub fn in_use() -> Option<Self> {
        let version = driver_version().ok()?;
        let cuda = format!("{}.{}", version / 1000, version % 1000 / 10);
        Some(Self { cuda, version: if is_virtual() { None } else { kernel_module() } })
    }

    /// Adds the version from NVML, for systems such as Windows and WSL where nothing else has it.
    fn with_version_of(self, device: &CudaDevice) -> Self {
        match self.version {
            None if !is_virtual() => {
                let version = Monitor::new(device).ok().and_then(|monitor| monitor.driver_version());
                Self { version, ..self }
            }
            _ => self,
        }
    }

    pub fn line(&self) -> String {
        match &self.version {
            Some(version) => format!("{version} (CUDA {})", self.cuda),
            None => format!("CUDA {}", self.cuda),
        }
    }
}

impl Gpu {
    pub fn new(properties: &Properties) -> Self {
        let &Properties { capability: (major, minor), clock_khz, memory_clock_khz, .. } = properties;
        Self {
            ordinal: properties.ordinal,
            name: properties.name.clone(),
            compute_capability: format!("{major}.{minor}"),
            multiprocessors: properties.multiprocessors,
            clock_mhz: clock_khz / 1000,
            memory_clock_mhz: memory_clock_khz / 1000,
            memory_bus_bits: properties.memory_bus_bits,
            l2_bytes: properties.l2_bytes,
            memory_bytes: properties.memory_bytes,
            memory_pools: properties.memory_pools,
            watchdog: properties.watchdog,
        }
    }

    pub fn line(&self) -> String {
        let Self { name, compute_capability, multiprocessors, clock_mhz, memory_bytes, .. } = self;
        let memory = bytes(*memory_bytes);
        format!(
            "{name}, compute capability {compute_capability}, {multiprocessors} SMs at {clock_mhz} MHz, {memory}"
        )
    }
}

/// Whether the driver is the virtual GPU.
pub(super) fn is_virtual() -> bool {
    driver::backend() == Some(driver::Backend::Virtual)
}

/// The version of NVIDIA's kernel module on Linux.
fn kernel_module() -> Option<String> {
    let text = fs::read_to_string("/proc/driver/nvidia/version").ok()?;
    version_in(&text).map(str::to_owned)
}

/// The first word like 535.104.05.
fn version_in(text: &str) -> Option<&str> {
    let is_version =
        |word: &&str| word.contains('.') && word.split('.').all(|part| part.parse::<u32>().is_ok());
    text.lines().next()?.split_whitespace().find(is_version)
}

#[cfg(test)]
mod tests {
    use super::version_in;

    #[test]
    fn driver_versions_are_found_in_both_spellings() {
        let closed =
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\nGCC";
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.82.07  Release Build";
        assert_eq!(version_in(closed), Some("535.104.05"));
        assert_eq!(version_in(open), Some("580.82.07"));
        assert_eq!(version_in(""), None);
    }
}
