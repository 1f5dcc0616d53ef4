//! GGUF files from a checkpoint.

use crate::error::{Failure, Result, unsupported};
use pascaline::{DType, Device};
use pyo3::exceptions::{PyFileExistsError, PyOSError};
use pyo3::prelude::*;
use qwen3_vl::gguf::{Mix, Plan, encode, text_plan, vision_plan_of};
use qwen3_vl::weights::Weights;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Why a file was not written.
enum Unwritten {
    Library(pascaline::Error),
    File(PathBuf, io::Error),
}

impl From<pascaline::Error> for Unwritten {
    fn from(error: pascaline::Error) -> Self {
        Self::Library(error)
    }
}

impl From<Unwritten> for Failure {
    fn from(error: Unwritten) -> Self {
        match error {
            Unwritten::Library(error) => error.into(),
            Unwritten::File(path, error) => {
                let message = format!("{}: {error}", path.display());
                match error.kind() {
                    io::ErrorKind::AlreadyExists => PyFileExistsError::new_err(message).into(),
                    _ => PyOSError::new_err(message).into(),
                }
            }
        }
    }
}

/// Writes a checkpoint as a pair of GGUF files into a folder: the text model's matrices quantised, the vision tower's in float16.
///
/// checkpoint: a directory as published. type: "Q4_K_M", "Q5_K_M", "Q6_K", "Q8_0", "Q4_0", "F16" or another mix of GGUF files. Returns
/// the paths of the text file, which ``Qwen3VL.load`` takes, and of the vision file. Files appear when they are complete, and none
/// is replaced. Raises CheckpointError, UnsupportedError, FileExistsError, OSError.
#[pyfunction]
#[pyo3(signature = (checkpoint, folder, r#type = "Q4_K_M"))]
fn quantize_checkpoint(
    py: Python,
    checkpoint: PathBuf,
    folder: PathBuf,
    r#type: &str,
) -> Result<(PathBuf, PathBuf)> {
    let mix = Mix::ALL.into_iter().find(|mix| mix.name().eq_ignore_ascii_case(r#type)).ok_or_else(|| {
        let names = Mix::ALL.map(Mix::name).join(", ");
        unsupported("quantize_checkpoint", "type", r#type, format!("the types are {names}"))
    })?;
    Ok(py.detach(|| write(&checkpoint, &folder, mix))?)
}

fn write(checkpoint: &Path, folder: &Path, mix: Mix) -> Result<(PathBuf, PathBuf), Unwritten> {
    let processor = qwen3_vl::processor(checkpoint)?;
    let config = &processor.config;
    std::fs::create_dir_all(folder).map_err(|error| Unwritten::File(folder.to_owned(), error))?;
    let text = folder.join(format!("model-{}.gguf", mix.name()));
    let vision = folder.join("mmproj-F16.gguf");
    let mut plans = vec![(&text, text_plan(checkpoint, config, mix)?)];
    plans.extend(vision_plan_of(&checkpoint.join("config.json"), &processor)?.map(|plan| (&vision, plan)));
    for (to, _) in &plans {
        if to.exists() {
            return Err(Unwritten::File((*to).clone(), io::ErrorKind::AlreadyExists.into()));
        }
    }
    let mut weights = Weights::open(checkpoint, config, DType::F32, &Device::Cpu)?;
    let mut finished = Vec::new();
    for (to, plan) in &plans {
        finished.push((*to, file(folder, to, plan, &mut weights)?));
    }
    // The text file last: where it exists, the pair is complete.
    for (to, file) in finished.into_iter().rev() {
        file.persist_noclobber(to).map_err(|error| Unwritten::File(to.clone(), error.error))?;
    }
    Ok((text, vision))
}

/// The contents of a file, under a temporary name.
fn file(
    folder: &Path,
    to: &Path,
    plan: &Plan,
    weights: &mut Weights,
) -> Result<tempfile::NamedTempFile, Unwritten> {
    let failed = |error| Unwritten::File(to.to_owned(), error);
    let file = qwen3_vl::files::part_in(folder).map_err(failed)?;
    let mut out = io::BufWriter::new(file);
    let mut bytes = 0usize;
    let mut put = |data: &[u8]| {
        bytes += data.len();
        out.write_all(data)?;
        let end = bytes.next_multiple_of(Plan::ALIGNMENT);
        out.write_all(&[0; Plan::ALIGNMENT][..end - bytes])?;
        bytes = end;
        Ok(())
    };
    put(&plan.header()).map_err(failed)?;
    for tensor in &plan.tensors {
        let values = tensor.values(weights.host(&tensor.published)?);
        put(&encode(tensor.ty, &values, tensor.matrix(), &Device::Cpu)?).map_err(failed)?;
    }
    let file = out.into_inner().map_err(|error| failed(error.into_error()))?;
    file.as_file().sync_all().map_err(failed)?;
    Ok(file)
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(quantize_checkpoint, module)?)
}
