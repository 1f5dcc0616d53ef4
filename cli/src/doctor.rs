//! `pascaline doctor`: what is here, and what `auto` makes of it. Reports trouble, never fails of it.

use super::doctor_memory;
use super::environment::{Cpu, Driver, Gpu, is_virtual};
use super::failure::{Failure, loader_error};
use super::output::Output;
use super::screen::{Screen, Style};
use pascaline::Device;
use pascaline::cuda::{CudaDevice, PTX, PTX_ORIGIN};
use pascaline::format_bytes as bytes;
use pascaline::internals::table;
use pascaline_driver as driver;
use serde::Serialize;

/// Looks for the driver and the devices, loads the kernels on each, and says which device `auto` takes and why.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    output: Output,
}

#[derive(Serialize)]
struct Report {
    pascaline: &'static str,
    cpu: Cpu,
    kernels: Kernels,
    driver: DriverState,
    devices: Vec<DeviceState>,
    /// `cpu` or `cuda:N`.
    auto: String,
    auto_because: String,
}

/// What the PTX in this program is.
#[derive(Serialize)]
struct Kernels {
    /// `built from source` or `prebuilt`.
    origin: &'static str,
    isa: String,
    target: String,
    count: usize,
    bytes: usize,
}

#[derive(Serialize)]
struct DriverState {
    backend: &'static str,
    /// None if it does not start.
    found: Option<Driver>,
    problem: Option<String>,
    looked_for: Vec<Attempt>,
}

#[derive(Serialize)]
struct Attempt {
    path: &'static str,
    /// None if it was loaded.
    error: Option<String>,
}

#[derive(Serialize)]
struct DeviceState {
    #[serde(flatten)]
    gpu: Option<Gpu>,
    memory_free: Option<usize>,
    /// What the memory pool stands on and how warm the device is, a sentence each.
    memory_and_heat: Vec<String>,
    /// Where the table comes from by which matmul kernels are chosen, or why it can't be used.
    matmul_choice: Option<String>,
    /// None if the kernels are loaded on it.
    problem: Option<String>,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let file = args.output.report()?;
    let report = Report::new();
    // stdout holds the same as JSON then
    if !args.output.stdout_is_taken() {
        report.print(&mut args.output.screen())?;
    }
    file.map_or(Ok(()), |file| file.write(&report))
}

impl Report {
    fn new() -> Self {
        let count = CudaDevice::count();
        let problem = count.as_ref().err().map(ToString::to_string);
        let devices = (0..count.unwrap_or(0)).map(DeviceState::of).collect();
        // The virtual GPU takes the library's place; opening the library all the same would only say so.
        let attempts = if is_virtual() { &[][..] } else { &driver::library().attempts };
        let looked_for =
            attempts.iter().map(|attempt| Attempt { path: attempt.path, error: attempt.error.clone() });
        let choice = Device::choose();
        Self {
            pascaline: env!("CARGO_PKG_VERSION"),
            cpu: Cpu::here(),
            kernels: Kernels::read(PTX),
            driver: DriverState {
                backend: if is_virtual() { "virtual" } else { "real" },
                found: Driver::in_use(),
                problem,
                looked_for: looked_for.collect(),
            },
            devices,
            auto: match &choice.device {
                Device::Cpu => "cpu".to_owned(),
                Device::Cuda(device) => format!("cuda:{}", device.properties().ordinal),
            },
            auto_because: choice.reason,
        }
    }

    fn print(&self, screen: &mut Screen) -> Result<(), Failure> {
        let Kernels { origin, isa, target, count, bytes: size } = &self.kernels;
        entry(screen, "Pascaline", self.pascaline, Style::Heading)?;
        entry(
            screen,
            "Kernels",
            &format!("{count} in PTX {isa} for {target}, {}, {origin}", bytes(*size)),
            Style::Plain,
        )?;
        entry(screen, "CPU", &self.cpu.line(), Style::Plain)?;

        match (&self.driver.found, self.driver.backend) {
            (Some(driver), "virtual") => {
                entry(screen, "Driver", &format!("the virtual GPU, {}", driver.line()), Style::Good)?
            }
            (Some(driver), _) => entry(screen, "Driver", &driver.line(), Style::Good)?,
            (None, _) => entry(screen, "Driver", "none that starts", Style::Bad)?,
        }
        for Attempt { path, error } in &self.driver.looked_for {
            let result = error.as_deref().map_or("loaded", |error| loader_error(path, error));
            entry(screen, "", &format!("{path}: {result}"), Style::Faint)?;
        }
        if let Some(problem) = self.driver.problem.as_ref().filter(|problem| **problem != self.auto_because) {
            entry(screen, "", problem, Style::Plain)?;
        }

        for (ordinal, device) in self.devices.iter().enumerate() {
            device.print(ordinal, screen)?;
        }
        if self.devices.is_empty() {
            entry(screen, "Devices", "none", Style::Plain)?;
        }
        entry(screen, "auto takes", &self.auto, Style::Heading)?;
        entry(screen, "", &format!("because {}", self.auto_because), Style::Faint)
    }
}

/// A line under a heading on the left, or under none.
fn entry(screen: &mut Screen, heading: &str, text: &str, style: Style) -> Result<(), Failure> {
    screen.entry(&format!("{heading:<12}"), text, style)
}

impl DeviceState {
    fn of(ordinal: u32) -> Self {
        let properties = CudaDevice::properties_of(ordinal);
        let device = CudaDevice::new(ordinal);
        let mut memory_and_heat = Vec::new();
        let mut matmul_choice = None;
        if let Ok(device) = &device {
            let lines = doctor_memory::lines(device).into_iter();
            memory_and_heat.extend(lines.map(|(what, text)| format!("{}: {text}", what.to_lowercase())));
            matmul_choice = Some(match table::of(device.properties()) {
                Ok(table) => table.evidence.clone(),
                Err(error) => error.to_string(),
            });
        }
        let opened = device.and_then(|device| device.memory_info());
        let problem = properties.as_ref().err().or(opened.as_ref().err()).map(ToString::to_string);
        Self {
            gpu: properties.ok().map(|p| Gpu::new(&p)),
            memory_free: opened.ok().map(|(free, _)| free),
            memory_and_heat,
            matmul_choice,
            problem,
        }
    }

    fn print(&self, ordinal: usize, screen: &mut Screen) -> Result<(), Failure> {
        let heading = format!("cuda:{ordinal}");
        let Some(gpu) = &self.gpu else {
            let problem = self.problem.as_deref().unwrap_or("it does not say what it is");
            return entry(screen, &heading, problem, Style::Bad);
        };
        let Gpu { name, compute_capability, multiprocessors, clock_mhz, .. } = gpu;
        let style = if self.problem.is_none() { Style::Good } else { Style::Bad };
        entry(screen, &heading, name, style)?;
        let line =
            format!("compute capability {compute_capability}, {multiprocessors} SMs at {clock_mhz} MHz");
        entry(screen, "", &line, Style::Plain)?;
        let total = bytes(gpu.memory_bytes);
        let memory = match self.memory_free {
            Some(free) => format!("{} of {total} free", bytes(free)),
            None => total,
        };
        let Gpu { memory_bus_bits, memory_clock_mhz, l2_bytes, .. } = gpu;
        let l2 = bytes(*l2_bytes);
        let line = format!("memory {memory}, {memory_bus_bits} bits at {memory_clock_mhz} MHz, L2 {l2}");
        entry(screen, "", &line, Style::Plain)?;
        let pools = if gpu.memory_pools { "the driver's" } else { "none in the driver; plain allocation" };
        entry(screen, "", &format!("memory pools: {pools}"), Style::Plain)?;
        for line in &self.memory_and_heat {
            entry(screen, "", line, Style::Plain)?;
        }
        if let Some(choice) = &self.matmul_choice {
            entry(screen, "", &format!("matmul kernels are chosen by a table: {choice}"), Style::Plain)?;
        }
        let watchdog = match gpu.watchdog {
            true => "on: the system stops kernels that run for seconds, as this GPU drives a display",
            false => "off",
        };
        entry(screen, "", &format!("watchdog: {watchdog}"), Style::Plain)?;
        match &self.problem {
            Some(problem) => entry(screen, "", problem, Style::Bad),
            None => entry(screen, "", "the kernels are loaded", Style::Plain),
        }
    }
}

impl Kernels {
    fn read(ptx: &str) -> Self {
        let directive = |name: &str| {
            let line = ptx.lines().find_map(|line| line.strip_prefix(name));
            line.map_or("?", str::trim).to_owned()
        };
        Self {
            origin: PTX_ORIGIN,
            isa: directive(".version "),
            target: directive(".target "),
            count: ptx.lines().filter(|line| line.starts_with(".visible .entry ")).count(),
            bytes: ptx.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ptx_says_what_it_is() {
        let kernels = Kernels::read(PTX);
        assert_eq!((kernels.isa.as_str(), kernels.target.as_str()), ("6.4", "sm_61"));
        assert_eq!(kernels.count, kernels_gpu::KERNELS.iter().copied().flatten().count());
    }
}
