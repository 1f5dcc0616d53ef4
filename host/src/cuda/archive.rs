//! The kernels' PTX in this program: modules in families, which are compressed by zstd.

use super::packed;
use crate::{Error, Result};
use std::io::Read;

// FAMILIES: the compressed text of each family. MODULES: each module's name, where its family is, and where its own text is in that.
include!(concat!(env!("OUT_DIR"), "/modules.rs"));

/// Where the kernels come from: `built from source` with this program (and by which toolchain, if another), or `prebuilt`.
pub const PTX_ORIGIN: &str = env!("CUDA_BUILDER_ORIGIN");

/// The names of the modules.
pub fn ptx_modules() -> impl ExactSizeIterator<Item = &'static str> {
    MODULES.iter().map(|(name, ..)| *name)
}

/// Total size of the compressed modules, in bytes.
pub fn ptx_compressed_bytes() -> usize {
    FAMILIES.iter().map(|compressed| compressed.len()).sum()
}

/// The PTX of a module.
///
/// # Errors
/// [`Error::ModuleLoad`] if there is no such module in this program.
pub fn ptx_of(module: &str) -> Result<String> {
    let broken = |log: String| Error::ModuleLoad { code: 500, log: format!("PTX module {module}: {log}") };
    let missing = || broken("this program has no such module".into());
    let (_, family, range) = MODULES.iter().find(|(name, ..)| *name == module).ok_or_else(missing)?;
    let mut text = Vec::with_capacity(range.end);
    zstd::Decoder::with_buffer(FAMILIES[*family])
        .and_then(|family| family.take(range.end as u64).read_to_end(&mut text))
        .map_err(|error| broken(error.to_string()))?;
    let packed = text.get(range.clone()).ok_or_else(|| broken("its family's text is too short".into()))?;
    Ok(packed::unpack(str::from_utf8(packed).map_err(|error| broken(error.to_string()))?))
}

/// The PTX of all modules as one text, for tools that read or assemble it.
///
/// # Errors
/// As [`ptx_of`].
pub fn ptx() -> Result<String> {
    let mut all = String::new();
    for (index, name) in ptx_modules().enumerate() {
        let text = ptx_of(name)?;
        // each module begins with the same directives, which a file may have only once
        let is_header =
            |line: &str| [".version", ".target", ".address_size"].iter().any(|word| line.starts_with(word));
        for line in text.lines().filter(|line| index == 0 || !is_header(line)) {
            all.push_str(line);
            all.push('\n');
        }
    }
    Ok(all)
}
