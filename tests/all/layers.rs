//! The library's imports run one way: no module names one above it. Between crates cargo sees to that.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The modules, lowest first. Those of one line do not name each other.
const LAYERS: &[&[&str]] = &[
    &["simd", "sync"],
    &["parallel"],
    &["mutation", "shape", "dtype"],
    &["error"],
    &["cuda"],
    &["memory"],
    &["device", "plan"],
    &["tensor"],
    &["block_mask", "governor", "quant"],
    &["float16"],
    &["kv"],
    &["problem"],
    &["cpu", "gpu"],
    &["ops"],
    &["nn"],
    &["internals"],
];

fn layer(module: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| layer.contains(&module))
}

/// A source without its comments and without its unit tests, which may name anything.
fn code(source: &str) -> String {
    let lines: Vec<&str> = source.lines().map(|line| line.split("//").next().unwrap_or_default()).collect();
    let is_test = |pair: &[&str]| pair[0].trim() == "#[cfg(test)]" && pair[1].contains("mod tests {");
    let end = lines.windows(2).position(is_test).unwrap_or(lines.len());
    let is_inner = |line: &&&str| line.starts_with(' ') && line.trim() == "use super::*;"; // of a module in the file, from the file
    lines[..end].iter().filter(|line| !is_inner(line)).copied().collect::<Vec<_>>().join("\n")
}

/// The names that follow a path's beginning: one, or those of a list in braces, each up to its first `::`.
fn first_names(rest: &str) -> Vec<String> {
    let word =
        |text: &str| text.trim().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    let Some(list) = rest.strip_prefix('{') else { return vec![word(rest)] };
    let (mut names, mut depth, mut begin) = (Vec::new(), 0, 0);
    for (at, c) in list.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            '}' | ',' if depth == 0 => {
                names.push(word(&list[begin..at]));
                begin = at + 1;
                if c == '}' {
                    break;
                }
            }
            _ => {}
        }
    }
    names.retain(|name| !name.is_empty());
    names
}

/// The names of the crate's root that code `depth` modules below it uses, by `crate::` or by as many `super::`.
fn names_of_the_root(code: &str, depth: usize) -> Vec<String> {
    let supers = "super::".repeat(depth);
    let after = |path: &str| -> Vec<String> {
        let begins = code.match_indices(path).filter(|(at, _)| {
            let before = code[..*at].chars().next_back();
            !before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':')
        });
        begins.flat_map(|(at, _)| first_names(&code[at + path.len()..])).collect()
    };
    let mut names = after("crate::");
    names.extend(after(&supers).into_iter().filter(|name| name != "super"));
    names
}

/// The module from which the crate's root re-exports each name.
fn exports(root: &str) -> BTreeMap<String, String> {
    let lines = root.lines().filter_map(|line| line.strip_prefix("pub use "));
    lines
        .filter_map(|line| line.split_once("::"))
        .flat_map(|(module, names)| first_names(names).into_iter().map(move |name| (name, module.to_owned())))
        .collect()
}

/// Each name in the file of `path` below the root's folder that no module of its layer may name.
fn violations(path: &Path, source: &str, exports: &BTreeMap<String, String>) -> Vec<String> {
    let mut parts: Vec<String> =
        path.with_extension("").iter().map(|part| part.to_string_lossy().into_owned()).collect();
    if parts.last().is_some_and(|part| part == "mod") {
        parts.pop();
    }
    let own = &parts[0];
    let Some(at) = layer(own) else { return vec![format!("{}: {own} has no layer", path.display())] };
    let mut found = Vec::new();
    for name in names_of_the_root(&code(source), parts.len()) {
        let module = exports.get(&name).unwrap_or(&name);
        if module != own && layer(module).is_none_or(|layer| layer >= at) {
            found.push(format!("{}: names {name} of {module}", path.display()));
        }
    }
    found
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("the library's sources are here") {
        let path = entry.expect("a folder can be read").path();
        match path.is_dir() {
            true => found.extend(sources(&path)),
            false if path.extension().is_some_and(|extension| extension == "rs") => found.push(path),
            false => {}
        }
    }
    found
}

#[test]
fn imports_point_down() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../host/src");
    let lib = fs::read_to_string(root.join("lib.rs")).expect("the root can be read");
    let (exports, mut wrong, mut files) = (exports(&lib), Vec::new(), 0);
    for path in sources(&root) {
        let below = path.strip_prefix(&root).expect("it was found there");
        if below == Path::new("lib.rs") || below.to_string_lossy().ends_with("tests.rs") {
            continue;
        }
        let source = fs::read_to_string(&path).expect("a source can be read");
        wrong.extend(violations(below, &source, &exports));
        let may_name_cust = ["cuda", "memory"].iter().any(|folder| below.starts_with(folder));
        if !may_name_cust && code(&source).contains("cust::") {
            wrong.push(format!("{}: names cust", below.display()));
        }
        files += 1;
    }
    assert!(files > 100, "only {files} files were read");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn an_import_that_points_up_is_found() {
    let exports = exports("pub use tensor::{MAX_ELEMENTS, Tensor};\npub use error::Error;\n");
    let wrong = |path: &str, source: &str| violations(Path::new(path), source, &exports).len();
    assert_eq!(wrong("gpu/copy.rs", "use crate::{Error, Tensor, problem::{copy, matmul}};"), 0);
    assert_eq!(
        wrong("gpu/copy.rs", "use crate::{Error, ops::{copy, add}, problem::copy, cpu};"),
        2,
        "ops, cpu"
    );
    assert_eq!(wrong("gpu/copy.rs", "fn f() { super::super::ops::copy() }"), 1);
    assert_eq!(wrong("gpu/copy.rs", "use super::copy;\nuse super::vectors;"), 0);
    assert_eq!(wrong("kv.rs", "use super::ops;"), 1);
    assert_eq!(wrong("cuda/mod.rs", "pub(crate) fn f(x: &crate::Tensor) {}"), 1);
    assert_eq!(wrong("cuda/mod.rs", "/// As [`Tensor`](crate::Tensor).\nfn f() {}"), 0, "a comment");
    assert_eq!(
        wrong("cuda/mod.rs", "fn f() {}\n#[cfg(test)]\nmod tests {\n    use crate::ops;\n}"),
        0,
        "a unit test"
    );
    assert_eq!(wrong("cuda/mod.rs", "mod inner {\n    use super::*;\n}"), 0, "a module in the file");
    assert_eq!(wrong("cuda/mod.rs", "use super::*;"), 1);
    assert_eq!(wrong("unheard_of.rs", ""), 1);
}
