//! The target that rustc compiles for, and how a compiler is told of an architecture that it no longer lists.
//!
//! From 1.97 on rustc's description of the target (`rustc --print target-spec-json`) names the architectures before sm_70 as
//! unsupported, while its LLVM still generates code for them. A description of our own, the compiler's but for that list,
//! brings them back. What rustc does not promise for them, [`crate::ptx`], [`crate::ir`] and the fenced `core` look after, as
//! they do with compilers that list them.

use crate::whole;
use serde_json::Value;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, io};

/// The target's name.
pub(crate) const TARGET: &str = "nvptx64-nvidia-cuda";

/// The compiler's own description of the target, as JSON, for an architecture that it excludes. `None` if it excludes no such one.
pub(crate) fn describing(rustc: &OsStr, arch: &str) -> Option<String> {
    let mut command = Command::new(rustc);
    command.args(["-Zunstable-options", "--print", "target-spec-json", "--target", TARGET]);
    let output =
        command.env("RUSTC_BOOTSTRAP", "1").output().ok().filter(|output| output.status.success())?;
    including(&String::from_utf8(output.stdout).ok()?, arch)
}

fn including(description: &str, arch: &str) -> Option<String> {
    let mut description: Value = serde_json::from_str(description).ok()?;
    let fields = description.as_object_mut()?;
    let excluded = fields.remove("unsupported-cpus")?;
    if !excluded.as_array()?.iter().any(|cpu| cpu == arch) {
        return None;
    }
    fields.remove("metadata"); // rustc writes it and does not read it
    fields.insert("cpu".to_owned(), arch.into());
    Some(description.to_string())
}

/// Writes a description below `folder`, under the target's name, by which cargo names the folder of what it compiles.
///
/// # Errors
/// The file system's.
pub(crate) fn write(folder: &Path, arch: &str, description: &str) -> io::Result<PathBuf> {
    let path = folder.join("targets").join(arch).join(format!("{TARGET}.json"));
    fs::create_dir_all(path.parent().unwrap_or(folder))?;
    whole::write(&path, description)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn toolchain_an_excluded_architecture_is_described() {
        let own =
            r#"{"arch":"nvptx64","cpu":"sm_70","metadata":{"tier":2},"unsupported-cpus":["sm_60","sm_61"]}"#;
        assert_eq!(including(own, "sm_61").as_deref(), Some(r#"{"arch":"nvptx64","cpu":"sm_61"}"#));
        for (description, why) in [
            (own.replace("sm_61", "sm_62"), "it is not in the list"),
            (r#"{"arch":"nvptx64"}"#.to_owned(), "there is no list"),
            (r#"{"unsupported-cpus":"sm_61"}"#.to_owned(), "it is no list"),
            ("error".to_owned(), "it is no JSON"),
        ] {
            assert_eq!(including(&description, "sm_61"), None, "{why}");
        }
    }
}
