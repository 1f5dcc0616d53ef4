//! Files that are replaced atomically: they appear under their names when they are complete, or not at all.

use pascaline::{Error, Result, Tensor};
use serde_json::{Map, Value, json};
use std::io::{self, Write};
use std::path::Path;
use tempfile::NamedTempFile;

/// The error of a file.
pub(crate) fn bad(file: &Path, reason: impl ToString) -> Error {
    Error::Checkpoint { file: file.display().to_string(), item: None, reason: reason.to_string() }
}

/// Writes a file, in place of an existing one.
pub(crate) fn write(file: &Path, bytes: &[u8]) -> Result<()> {
    write_with(file, |to| to.write_all(bytes))
}

/// Writes f32 tensors as safetensors. They are read back from their device one at a time.
pub(crate) fn write_tensors(
    file: &Path,
    tensors: &[(String, &Tensor)],
    shape_of: impl Fn(&str, &Tensor) -> Vec<usize>,
) -> Result<()> {
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
    let mut failure = None;
    let written = write_with(file, |to| {
        to.write_all(&(header.len() as u64).to_le_bytes())?;
        to.write_all(header.as_bytes())?;
        for (_, tensor) in tensors {
            match tensor.to_vec::<f32>() {
                Ok(values) => values.chunks(1 << 16).try_for_each(|chunk| {
                    to.write_all(&chunk.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>())
                })?,
                Err(error) => {
                    failure = Some(error);
                    return Err(io::ErrorKind::Other.into());
                }
            }
        }
        Ok(())
    });
    failure.map_or(written, Err)
}

fn write_with(file: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<()> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let whole = || -> io::Result<()> {
        let mut to = temporary(folder)?;
        {
            let mut buffer = io::BufWriter::new(to.as_file_mut());
            write(&mut buffer)?;
            buffer.flush()?;
        }
        to.as_file().sync_all()?;
        to.persist(file).map_err(|error| error.error)?;
        Ok(())
    };
    whole().map_err(|error| bad(file, error))
}

/// A temporary file in the folder of its final name, with the permissions of an ordinary new file.
fn temporary(folder: &Path) -> io::Result<NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".pascaline-").suffix(".part");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        builder.permissions(std::fs::Permissions::from_mode(0o666)); // minus the umask
    }
    builder.tempfile_in(folder)
}
