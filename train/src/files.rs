//! Files that are replaced atomically: they appear under their names when they are complete, or not at all.

use pascaline::{Error, Result, Tensor};
use qwen3_vl::files::{part_in, sync_folder};
use serde_json::{Map, Value, json};
use std::io::{self, Write};
use std::path::Path;

/// The error of a file.
pub(crate) fn bad(file: &Path, reason: impl ToString) -> Error {
    Error::Checkpoint { file: file.display().to_string(), item: None, reason: reason.to_string() }
}

/// Writes a file, in place of an existing one.
pub(crate) fn write(file: &Path, bytes: &[u8]) -> Result<()> {
    write_with(file, |to| to.write_all(bytes))
}

/// Writes f32 tensors as a safetensors file, in place of an existing one.
pub(crate) fn write_tensors(
    file: &Path,
    tensors: &[(String, &Tensor)],
    shape_of: impl Fn(&str, &Tensor) -> Vec<usize>,
) -> Result<()> {
    write_with(file, |to| put_tensors(to, tensors, shape_of))
}

/// f32 tensors as safetensors. They are read back from their device one at a time; a device's error is inside the one returned.
pub(crate) fn put_tensors(
    to: &mut dyn Write,
    tensors: &[(String, &Tensor)],
    shape_of: impl Fn(&str, &Tensor) -> Vec<usize>,
) -> io::Result<()> {
    let (mut header, mut at) = (Map::new(), 0);
    for (name, tensor) in tensors {
        let bytes = tensor.shape().elements() * size_of::<f32>();
        let shape = shape_of(name, tensor);
        header
            .insert(name.clone(), json!({"dtype": "F32", "shape": shape, "data_offsets": [at, at + bytes]}));
        at += bytes;
    }
    header.insert("__metadata__".into(), json!({"format": "pt"}));
    let mut header = Value::Object(header).to_string();
    header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
    to.write_all(&(header.len() as u64).to_le_bytes())?;
    to.write_all(header.as_bytes())?;
    for (_, tensor) in tensors {
        let values = tensor.to_vec::<f32>().map_err(io::Error::other)?;
        for chunk in values.chunks(1 << 16) {
            to.write_all(&chunk.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>())?;
        }
    }
    Ok(())
}

/// Writes a file by a function, in place of an existing one.
pub(crate) fn write_with(file: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<()> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let whole = || -> io::Result<()> {
        let mut to = part_in(folder)?;
        {
            let mut buffer = io::BufWriter::new(to.as_file_mut());
            write(&mut buffer)?;
            buffer.flush()?;
        }
        to.as_file().sync_all()?;
        to.persist(file).map_err(|error| error.error)?;
        sync_folder(folder)
    };
    whole().map_err(|error| match error.downcast::<Error>() {
        Ok(of_device) => of_device,
        Err(error) => bad(file, error),
    })
}
