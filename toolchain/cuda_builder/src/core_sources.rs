//! The sources of `core` as the GPU crate is compiled with them: the compiler's own, with fences in the atomics.
//!
//! Before sm_70 PTX has no orderings, and LLVM drops those of read-modify-writes without a word and ends at an acquire load or a
//! release store. So each function of `core::sync::atomic` that takes an [`Ordering`](std::sync::atomic::Ordering) does here
//! the relaxed operation, with `membar.gl` before it to release and after it to acquire:
//!
//! | ordering | load | store | read-modify-write |
//! |---|---|---|---|
//! | `Acquire` | `ld · membar` | | `atom · membar` |
//! | `Release` | | `membar · st` | `membar · atom` |
//! | `AcqRel` | | | `membar · atom · membar` |
//! | `SeqCst` | `membar · ld · membar` | `membar · st · membar` | `membar · atom · membar` |
//!
//! All other files are links to the compiler's.

use crate::whole;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// Folders on the way to the file that differs, from `library`.
const WAY: [&str; 3] = ["core", "src", "sync"];
const FILE: &str = "atomic.rs";

/// The functions of [`FILE`] with one ordering, and how it is fenced.
const ONE_ORDERING: [(&str, &str); 13] = [
    ("store", "store"),
    ("load", "load"),
    ("swap", "update"),
    ("add", "update"),
    ("sub", "update"),
    ("and", "update"),
    ("nand", "update"),
    ("or", "update"),
    ("xor", "update"),
    ("max", "update"),
    ("min", "update"),
    ("umax", "update"),
    ("umin", "update"),
];
/// Those with one for success and one for failure.
const TWO_ORDERINGS: [&str; 2] = ["compare_exchange", "compare_exchange_weak"];

/// Appended to [`FILE`]. The functions are `const` because those of newer compilers are.
const FENCES: &str = r#"
mod gpu_fences {
    use super::Ordering::{self, *};
    use crate::intrinsics::const_eval_select;

    unsafe extern "C" {
        #[link_name = "llvm.nvvm.membar.gl"]
        safe fn membar_gl();
    }

    /// A fence, if the ordering asks for one. Constants are computed by one thread, and need none.
    #[inline(always)]
    #[rustc_const_unstable(feature = "core_intrinsics", issue = "none")]
    pub(super) const fn fence(asked: bool) {
        const_eval_select!(@capture { asked: bool = asked }: if const {} else { if asked { membar_gl() } })
    }

    /// Fences before an operation; whether there is one after it, and the ordering that is left.
    /// An ordering that a load can't have stays, and panics.
    #[inline(always)]
    #[rustc_const_unstable(feature = "core_intrinsics", issue = "none")]
    pub(super) const fn load(order: Ordering) -> (bool, Ordering) {
        let strong = matches!(order, Acquire | SeqCst);
        fence(matches!(order, SeqCst));
        (strong, if strong { Relaxed } else { order })
    }

    #[inline(always)]
    #[rustc_const_unstable(feature = "core_intrinsics", issue = "none")]
    pub(super) const fn store(order: Ordering) -> (bool, Ordering) {
        let strong = matches!(order, Release | SeqCst);
        fence(strong);
        (matches!(order, SeqCst), if strong { Relaxed } else { order })
    }

    #[inline(always)]
    #[rustc_const_unstable(feature = "core_intrinsics", issue = "none")]
    pub(super) const fn update(order: Ordering) -> (bool, Ordering) {
        fence(matches!(order, Release | AcqRel | SeqCst));
        (matches!(order, Acquire | AcqRel | SeqCst), Relaxed)
    }

    #[inline(always)]
    #[rustc_const_unstable(feature = "core_intrinsics", issue = "none")]
    pub(super) const fn exchange(success: Ordering, failure: Ordering) -> (bool, Ordering, Ordering) {
        fence(matches!(success, Release | AcqRel | SeqCst) || matches!(failure, SeqCst));
        let failure_acquires = matches!(failure, Acquire | SeqCst);
        let acquires = failure_acquires || matches!(success, Acquire | AcqRel | SeqCst);
        (acquires, Relaxed, if failure_acquires { Relaxed } else { failure })
    }
}
"#;

/// Makes the changed copy of the sources in `library` below `folder`. Returns its path; `None` if the file is not there.
///
/// # Errors
/// The file system's; [`io::ErrorKind::InvalidData`] if the compiler's `atomic.rs` has another form than is known.
pub fn with_fences(library: &Path, folder: &Path) -> io::Result<Option<PathBuf>> {
    if !library.join("core/src/sync").join(FILE).is_file() {
        return Ok(None);
    }
    let (mut from, mut to) = (library.to_path_buf(), folder.join("library"));
    let root = to.clone();
    for name in WAY.into_iter().chain([FILE]) {
        fs::create_dir_all(&to)?;
        for entry in fs::read_dir(&from)? {
            let entry = entry?;
            if entry.file_name() != name {
                link(&entry.path(), &to.join(entry.file_name()))?;
            }
        }
        (from, to) = (from.join(name), to.join(name));
    }
    let fenced = fenced(&fs::read_to_string(&from)?).map_err(|function| {
        let reason = format!("{}: `{function}` has a form that is not known", from.display());
        io::Error::new(io::ErrorKind::InvalidData, reason)
    })?;
    whole::write(&to, &fenced)?;
    Ok(Some(root))
}

/// `atomic.rs` with the fences; an error is the name of a function that is not found.
fn fenced(text: &str) -> Result<String, String> {
    let mut text = text.to_owned();
    for (name, kind) in ONE_ORDERING {
        wrap(&mut text, name, &["order"], &format!("gpu_fences::{kind}(order)"))?;
    }
    for name in TWO_ORDERINGS {
        wrap(&mut text, name, &["success", "failure"], "gpu_fences::exchange(success, failure)")?;
    }
    text.push_str(FENCES);
    Ok(text)
}

/// Puts the fences of `atomic_NAME` around its body: `fences` gives whether one comes after, and the orderings anew.
fn wrap(text: &mut String, name: &str, orderings: &[&str], fences: &str) -> Result<(), String> {
    let unknown = || format!("atomic_{name}");
    let start = text.find(&format!("unsafe fn atomic_{name}<")).ok_or_else(unknown)?;
    let body = start + text[start..].find("{\n").ok_or_else(unknown)? + 1;
    let end = body + text[body..].find("\n}\n").ok_or_else(unknown)?; // rustfmt's: a function's brace is the line's first
    if !orderings.iter().all(|ordering| text[start..body].contains(&format!("{ordering}: Ordering"))) {
        return Err(unknown());
    }
    text.insert_str(end, "\n    };\n    gpu_fences::fence(after);\n    result");
    text.insert_str(
        body,
        &format!("\n    let (after, {}) = {fences};\n    let result = {{", orderings.join(", ")),
    );
    Ok(())
}

/// A link to a file or folder; a copy where links are not allowed.
fn link(from: &Path, to: &Path) -> io::Result<()> {
    if fs::read_link(to).is_ok_and(|target| target == from) {
        return Ok(());
    }
    let _ = fs::remove_file(to); // a link to another place
    #[cfg(unix)]
    let linked = std::os::unix::fs::symlink(from, to);
    #[cfg(windows)]
    let linked = if from.is_dir() {
        std::os::windows::fs::symlink_dir(from, to)
    } else {
        std::os::windows::fs::symlink_file(from, to)
    };
    match linked {
        Err(error) if !matches!(error.kind(), io::ErrorKind::AlreadyExists) => copy(from, to),
        _ => Ok(()),
    }
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    if !from.is_dir() {
        return fs::copy(from, to).map(drop);
    }
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        copy(&entry.path(), &to.join(entry.file_name()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_of_another_form_is_named() {
        let text = "unsafe fn atomic_store<T: Copy>(dst: *mut T, val: T, ordering: Order) {\n}\n";
        assert_eq!(fenced(text), Err("atomic_store".to_owned()));
        assert_eq!(fenced(""), Err("atomic_store".to_owned()));
    }
}
