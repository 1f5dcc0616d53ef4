//! Files name each other in one direction: no file needs, through others, itself.
//!
//! A file names another if it imports from it, or writes a path to it. Unit tests may name anything.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// A module's path from the crate's root.
type Module = Vec<String>;

/// The order of the host's layers is kept by `layers.rs`.
const CRATES: &[&str] = &[
    "language",
    "qwen3-vl",
    "train",
    "testing",
    "fuzz",
    "python",
    "driver",
    "virtual-gpu",
    "cli",
    "server",
    "kernels-gpu",
    "host",
];

fn sources(folder: &Path, above: &Module, found: &mut BTreeMap<Module, String>) {
    for entry in fs::read_dir(folder).expect("the sources are here") {
        let path = entry.expect("a folder can be read").path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let mut module = above.clone();
        match (path.is_dir(), &*name) {
            (true, _) => {
                module.push(name);
                sources(&path, &module, found);
                continue;
            }
            (false, "lib" | "main" | "mod") => {}
            (false, _) => module.push(name),
        }
        let is_test = module.last().is_some_and(|name| name.ends_with("tests")); // unit tests may name anything
        if !is_test && path.extension().is_some_and(|extension| extension == "rs") {
            found.insert(module, code(&fs::read_to_string(&path).expect("a source can be read")));
        }
    }
}

/// A source without comments and without its unit tests.
fn code(source: &str) -> String {
    let lines: Vec<_> = source.lines().map(|line| line.split("//").next().unwrap_or_default()).collect();
    let is_test = |pair: &[&str]| pair[0] == "#[cfg(test)]" && pair[1].ends_with("mod tests {");
    let end = lines.windows(2).position(is_test).unwrap_or(lines.len());
    let is_inner = |line: &&&str| line.starts_with(' ') && line.trim() == "use super::*;"; // of a module in the file, from the file
    lines[..end].iter().filter(|line| !is_inner(line)).copied().collect::<Vec<_>>().join("\n")
}

/// The paths of a tree of imports: `a::{b, c::d}` is `a::b` and `a::c::d`.
fn leaves(tree: &str) -> Vec<String> {
    let Some((head, list)) = tree.split_once('{') else {
        return vec![tree.split(" as ").next().unwrap_or_default().split_whitespace().collect()];
    };
    let (mut found, mut depth, mut part) = (Vec::new(), 0, String::new());
    for c in list.chars() {
        match c {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                found.extend(leaves(&part).iter().map(|leaf| format!("{}{leaf}", head.trim())));
                part.clear();
                continue;
            }
            _ => {}
        }
        part.push(c);
    }
    found
}

/// Every path that a source writes: those that it imports, and those that begin at the crate's root or above it.
fn paths(code: &str) -> Vec<String> {
    let starts = |word: &'static str| {
        code.match_indices(word).filter(|(at, _)| {
            let before = code[..*at].chars().next_back();
            // `$crate` is for a macro's callers; `pub(in path)` needs nothing of it
            let is_scope = code[..*at].ends_with("pub(in ");
            !is_scope && !before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':' || c == '$')
        })
    };
    let trees =
        starts("use ").map(|(at, word)| code[at + word.len()..].split(';').next().unwrap_or_default());
    let mut found: Vec<_> = trees.flat_map(leaves).collect();
    for (at, _) in ["crate::", "super::", "self::"].into_iter().flat_map(starts) {
        let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
        let path: String = code[at..].chars().take_while(|c| is_part(*c)).collect();
        if !code[at + path.len()..].starts_with('{') {
            found.push(path); // the others are trees of imports, whose leaves are found already
        }
    }
    found
}

/// The module that a path of `from` leads to, if it is of this crate.
fn target(path: &str, from: &Module, files: &BTreeMap<Module, String>) -> Option<Module> {
    let mut parts = path.split("::").filter(|part| !part.is_empty()).peekable();
    let mut at = from.clone();
    match *parts.peek()? {
        "crate" => at.clear(),
        "self" => {}
        "super" => {
            at.pop();
        }
        child => {
            let inner = [&from[..], &[child.to_owned()]].concat();
            files.contains_key(&inner).then_some(())?;
            return descend(from.clone(), parts, files);
        }
    }
    parts.next();
    while parts.next_if_eq(&"super").is_some() {
        at.pop();
    }
    descend(at, parts, files)
}

fn descend<'a>(
    mut at: Module,
    parts: impl Iterator<Item = &'a str>,
    files: &BTreeMap<Module, String>,
) -> Option<Module> {
    for part in parts {
        let inner = [&at[..], &[part.to_owned()]].concat();
        if !files.contains_key(&inner) {
            break;
        }
        at = inner;
    }
    (!at.is_empty()).then_some(at) // the root re-exports; what it names is no file's need
}

/// The files that need themselves, through others.
fn in_circles(files: &BTreeMap<Module, String>) -> Vec<String> {
    let named = |(module, code): (&Module, &String)| {
        let targets =
            paths(code).iter().filter_map(|path| target(path, module, files)).collect::<BTreeSet<_>>();
        (module.clone(), targets.into_iter().filter(|target| target != module).collect::<Vec<_>>())
    };
    let edges: BTreeMap<_, _> = files.iter().map(named).collect();
    let needs_itself = |start: &&Module| {
        let (mut seen, mut open) = (BTreeSet::new(), vec![*start]);
        while let Some(module) = open.pop() {
            for next in edges.get(module).into_iter().flatten() {
                if next == *start {
                    return true;
                }
                if seen.insert(next) {
                    open.push(next);
                }
            }
        }
        false
    };
    files.keys().filter(needs_itself).map(|module| module.join("/")).collect()
}

#[test]
fn files_name_each_other_in_one_direction() {
    let mut circles = Vec::new();
    for name in CRATES {
        let mut files = BTreeMap::new();
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name).join("src");
        sources(&folder, &Module::new(), &mut files);
        circles.extend(in_circles(&files).into_iter().map(|file| format!("{name}: {file}")));
    }
    assert!(circles.is_empty(), "files in circles:\n{}", circles.join("\n"));
}

#[test]
fn a_circle_is_found() {
    let of = |files: &[(&str, &str)]| {
        let module = |path: &str| path.split('/').map(str::to_owned).collect::<Module>();
        in_circles(&files.iter().map(|(path, source)| (module(path), code(source))).collect())
    };
    let a = ("a", "use super::{b::X, c};\nfn f() {}");
    assert!(of(&[a, ("b", "use std::fs; // crate::a"), ("c", "")]).is_empty());
    assert_eq!(of(&[a, ("b", "fn f(x: crate::a::Y) {}"), ("c", "")]), ["a", "b"]);
    assert_eq!(of(&[a, ("b", ""), ("c", "use d::Z;"), ("c/d", "use crate::{b, a::Y};")]), ["a", "c", "c/d"]);
}
