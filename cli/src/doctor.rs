//! `pascaline doctor`: reports the driver, the devices, and the device that `auto` takes. Its errors are part of the
//! report, and it never fails.

use super::doctor_memory;
use super::environment::{Cpu, Driver, Gpu, is_virtual};
use super::failure::{Failure, loader_error};
use super::files;
use super::output::Output;
use super::screen::{Screen, Style};
use pascaline::Device;
use pascaline::cuda::{self, CudaDevice, PTX_ORIGIN, ptx_modules};
use pascaline::format_bytes as bytes;
use pascaline::internals::table;
use pascaline_driver as driver;
use serde::Serialize;
use std::path::PathBuf;
use std::time::Instant;

/// Reports the driver, the devices, and which device `auto` takes and why. Compiles nothing unless told to.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Load every module of the kernels on each device and report the time: with an empty cache the driver compiles them.
    #[arg(long)]
    modules: bool,

    /// Write the kernels' PTX to this file, as one text.
    #[arg(long, value_name = "FILE")]
    ptx: Option<PathBuf>,

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

/// The PTX in this program.
#[derive(Serialize)]
struct Kernels {
    /// `built from source` or `prebuilt`.
    origin: &'static str,
    isa: String,
    target: String,
    count: usize,
    modules: usize,
    /// Bytes in this program, compressed.
    bytes: usize,
}

#[derive(Serialize)]
struct DriverState {
    backend: &'static str,
    /// None if the driver does not start.
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
    /// The memory pool's source of memory, the device's temperature, and measured powers: a sentence each.
    memory_and_heat: Vec<String>,
    /// The source of the table by which matmul kernels are chosen, or why it can't be used.
    matmul_choice: Option<String>,
    /// The time of loading all modules, if requested.
    modules_loaded: Option<ModulesLoaded>,
    /// None if the device can be used.
    problem: Option<String>,
}

/// The result of loading all modules on a device.
#[derive(Serialize)]
struct ModulesLoaded {
    count: usize,
    seconds: f64,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let file = args.output.report()?;
    if let Some(path) = &args.ptx {
        let written = cuda::ptx()
            .map_err(Failure::from)
            .and_then(|text| files::write(path, text.as_bytes(), args.output.may_replace()));
        written?;
    }
    let report = Report::new(args.modules)?;
    // then stdout has the same report as JSON
    if !args.output.stdout_is_taken() {
        report.print(&mut args.output.screen())?;
    }
    file.map_or(Ok(()), |file| file.write(&report))
}

impl Report {
    fn new(load_modules: bool) -> Result<Self, Failure> {
        let count = CudaDevice::count();
        let problem = count.as_ref().err().map(ToString::to_string);
        let devices =
            (0..count.unwrap_or(0)).map(|ordinal| DeviceState::query(ordinal, load_modules)).collect();
        // The virtual GPU replaces the driver library; trying to open that would only report an error.
        let attempts = if is_virtual() { &[][..] } else { &driver::library().attempts };
        let looked_for =
            attempts.iter().map(|attempt| Attempt { path: attempt.path, error: attempt.error.clone() });
        let choice = Device::choose();
        Ok(Self {
            pascaline: env!("CARGO_PKG_VERSION"),
            cpu: Cpu::here(),
            kernels: Kernels::here()?,
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
        })
    }

    fn print(&self, screen: &mut Screen) -> Result<(), Failure> {
        let Kernels { origin, isa, target, count, modules, bytes: size } = &self.kernels;
        entry(screen, "Pascaline", self.pascaline, Style::Heading)?;
        entry(
            screen,
            "Kernels",
            &format!(
                "{count} in {modules} modules, PTX {isa} for {target}, {} compressed, {origin}",
                bytes(*size)
            ),
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

/// Prints a line, with a heading on the left or without one.
fn entry(screen: &mut Screen, heading: &str, text: &str, style: Style) -> Result<(), Failure> {
    screen.entry(&format!("{heading:<12}"), text, style)
}

impl DeviceState {
    fn query(ordinal: u32, load_modules: bool) -> Self {
        let properties = CudaDevice::properties_of(ordinal);
        let device = CudaDevice::new(ordinal);
        let mut memory_and_heat = Vec::new();
        let mut matmul_choice = None;
        if let Ok(device) = &device {
            let lines = doctor_memory::lines(device).into_iter();
            memory_and_heat.extend(lines.map(|(what, text)| format!("{}: {text}", what.to_lowercase())));
            matmul_choice = Some(match table::for_card(device.properties()) {
                Ok(table) => table.evidence.clone(),
                Err(error) => error.to_string(),
            });
        }
        let mut modules_loaded = None;
        let opened = device.and_then(|device| {
            if load_modules {
                let (started, all) = (Instant::now(), ptx_modules().collect::<Vec<_>>());
                device.load_modules(&all)?;
                let seconds = started.elapsed().as_secs_f64();
                modules_loaded = Some(ModulesLoaded { count: all.len(), seconds });
            }
            device.memory_info()
        });
        let problem = properties.as_ref().err().or(opened.as_ref().err()).map(ToString::to_string);
        Self {
            gpu: properties.ok().map(|p| Gpu::new(&p)),
            memory_free: opened.ok().map(|(free, _)| free),
            memory_and_heat,
            matmul_choice,
            modules_loaded,
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
        if let Some(ModulesLoaded { count, seconds }) = &self.modules_loaded {
            let line = format!("all {count} modules of the kernels loaded in {seconds:.1} s");
            entry(screen, "", &line, Style::Plain)?;
        }
        match &self.problem {
            Some(problem) => entry(screen, "", problem, Style::Bad),
            None => entry(screen, "", "ready", Style::Plain),
        }
    }
}

impl Kernels {
    fn here() -> Result<Self, Failure> {
        let ptx = match ptx_modules().next() {
            Some(module) => cuda::ptx_of(module)?,
            None => String::new(),
        };
        let directive = |name: &str| {
            let line = ptx.lines().find_map(|line| line.strip_prefix(name));
            line.map_or("?", str::trim).to_owned()
        };
        Ok(Self {
            origin: PTX_ORIGIN,
            isa: directive(".version "),
            target: directive(".target "),
            count: kernels_gpu::KERNELS.iter().copied().flatten().count(),
            modules: ptx_modules().len(),
            bytes: cuda::ptx_compressed_bytes(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ptx_says_what_it_is() -> Result<(), Failure> {
        let kernels = Kernels::here()?;
        assert_eq!((kernels.isa.as_str(), kernels.target.as_str()), ("6.4", "sm_61"));
        let entries = cuda::ptx()?.lines().filter(|line| line.starts_with(".visible .entry ")).count();
        assert_eq!(kernels.count, entries);
        Ok(())
    }
}
