//! Registers per thread: from ptxas if there is one, else estimated from the PTX.

use super::failure::Failure;
use pascaline_virtual_gpu::Module;
use std::collections::HashMap;
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, io};

/// The path of the ptxas installed by `pip install --target target/ptxas nvidia-cuda-nvcc-cu12==12.6.85`.
const BUNDLED: &str = "target/ptxas/nvidia/cuda_nvcc/bin/ptxas";

/// Why a newer CUDA's ptxas is not used.
const NO_SM_61: &str = "it does not know sm_61; CUDA 12.9's is the last that does";

#[derive(clap::Args)]
pub(super) struct Choice {
    /// The ptxas to ask for the kernels' registers. If not given, PTXAS names it; else target/ptxas and PATH are searched
    /// for one that knows sm_61, as CUDA's up to 12.9 do.
    #[arg(long, value_name = "PATH")]
    ptxas: Option<PathBuf>,
}

impl Choice {
    /// The one that the user named. An empty variable counts as unset.
    fn named(&self) -> Option<PathBuf> {
        let variable = || env::var_os("PTXAS").filter(|path| !path.is_empty());
        self.ptxas.clone().or_else(|| variable().map(PathBuf::from))
    }
}

/// Registers per thread of kernels.
pub(super) struct Registers {
    of: HashMap<String, u32>,
    /// Whether they are from ptxas.
    pub exact: bool,
    /// Their source, for people.
    pub source: String,
}

impl Registers {
    /// The registers of the named kernels.
    ///
    /// # Errors
    /// If the user named a ptxas that does not work; one that was only found is ignored then.
    pub fn count(choice: &Choice, ptx: &str, module: &Module, kernels: &[&str]) -> Result<Self, Failure> {
        let bundled = Path::new(BUNDLED);
        let named = choice.named();
        let (path, asked) = match &named {
            Some(path) => (path.as_path(), true),
            None if bundled.is_file() => (bundled, false),
            None => (Path::new("ptxas"), false),
        };
        let why = match assemble(path, ptx, kernels) {
            Ok(of) => {
                return Ok(Self { of, exact: true, source: format!("from ptxas ({})", path.display()) });
            }
            Err(reason) if asked => {
                return Err(Failure::Failed(format!("{} does not work as ptxas: {reason}", path.display())));
            }
            Err(reason) => reason,
        };
        let source = format!("estimated from what is live in the PTX (ptxas: {why}; --ptxas names another)");
        Ok(Self { source, ..Self::estimated(module, kernels) })
    }

    /// The registers of the named kernels, estimated from the PTX.
    pub fn estimated(module: &Module, kernels: &[&str]) -> Self {
        let known = kernels.iter().filter_map(|&name| module.kernel(name));
        let of = known.map(|kernel| (kernel.name.clone(), module.registers(kernel))).collect();
        Self { of, exact: false, source: "estimated from what is live in the PTX".to_owned() }
    }

    /// The registers of a kernel; 255, the maximum, if unknown.
    pub fn per_thread(&self, kernel: &str) -> u32 {
        self.of.get(kernel).copied().unwrap_or(255)
    }
}

fn assemble(ptxas: &Path, ptx: &str, kernels: &[&str]) -> Result<HashMap<String, u32>, String> {
    let folder = tempfile::tempdir().map_err(|error| format!("there is no temporary folder: {error}"))?;
    let (source, target) = (folder.path().join("kernels.ptx"), folder.path().join("kernels.cubin"));
    fs::write(&source, ptx).map_err(|error| format!("{} can't be written: {error}", source.display()))?;
    let mut command = Command::new(ptxas);
    command.args(["-arch=sm_61", "-v"]).arg(&source).arg("-o").arg(&target);
    for kernel in kernels {
        command.arg("-e").arg(kernel);
    }
    let output = command.output().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => "not found".to_owned(),
        _ => error.to_string(),
    })?;
    let log = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        if log.lines().any(|line| line.contains("'sm_61' is not defined")) {
            return Err(NO_SM_61.to_owned());
        }
        return Err(log.lines().next().unwrap_or("it fails without a message").trim().to_owned());
    }
    let registers = used_registers(&log);
    match kernels.iter().find(|&&kernel| !registers.contains_key(kernel)) {
        Some(kernel) => Err(format!("it does not report {kernel}")),
        None => Ok(registers),
    }
}

/// Parses the output of `ptxas -v`: `Compiling entry function 'NAME' …` and later `Used N registers`.
fn used_registers(log: &str) -> HashMap<String, u32> {
    let entries = log.split("Compiling entry function '").skip(1);
    let entry = |text: &str| {
        let (name, rest) = text.split_once('\'')?;
        let (count, _) = rest.split_once("Used ")?.1.split_once(" registers")?;
        Some((name.to_owned(), count.parse().ok()?))
    };
    entries.filter_map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::used_registers;

    #[test]
    fn registers_are_read_from_the_log() {
        let log = "ptxas info    : 0 bytes gmem\n\
            ptxas info    : Compiling entry function 'a' for 'sm_61'\n\
            ptxas info    : Function properties for a\n    0 bytes stack frame\n\
            ptxas info    : Used 12 registers, 348 bytes cmem[0]\n\
            ptxas info    : Compiling entry function 'b' for 'sm_61'\n\
            ptxas info    : Used 255 registers, 16640 bytes smem\n";
        let registers = used_registers(log);
        assert_eq!((registers.len(), registers["a"], registers["b"]), (2, 12, 255));
    }
}
