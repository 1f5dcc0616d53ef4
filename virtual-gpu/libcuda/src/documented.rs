//! The table of functions in docs/virtual-driver.md is what the library has. `PASCALINE_UPDATE_DOCS=1` writes it.

use std::collections::BTreeMap;
use std::path::Path;

use crate::entry::NAMES;
use crate::lookup::function;

const BEGIN: &str = "<!-- functions: written by a test -->\n";
const END: &str = "<!-- end of functions -->\n";

/// A name without its version and variant.
fn base(name: &str) -> &str {
    let name = name.strip_suffix("_ptsz").or_else(|| name.strip_suffix("_ptds")).unwrap_or(name);
    let version = name.rsplit_once("_v").filter(|(_, number)| number.bytes().all(|b| b.is_ascii_digit()));
    version.map_or(name, |(name, _)| name)
}

/// The word after `cu`.
fn family(name: &str) -> &str {
    let rest = &name[2..];
    let end = rest.char_indices().skip(1).find(|(_, c)| c.is_ascii_uppercase() || c.is_ascii_digit());
    &name[..2 + end.map_or(rest.len(), |(at, _)| at)]
}

fn table() -> String {
    let mut exists = BTreeMap::<&str, bool>::new();
    for name in NAMES {
        *exists.entry(base(name)).or_default() |= function(name).is_some();
    }
    let mut families = BTreeMap::<&str, [Vec<&str>; 2]>::new();
    for (name, exists) in &exists {
        families.entry(family(name)).or_default()[!exists as usize].push(name);
    }
    let there = exists.values().filter(|exists| **exists).count();
    let mut text = format!(
        "{there} of {} functions are there.\n\n| family | there | refused |\n|---|---|---|\n",
        exists.len()
    );
    for (family, lists) in families {
        let [there, refused] = lists.map(|names| {
            let short = |name: &&str| name[family.len()..].to_owned();
            let words = names
                .iter()
                .map(|name| if short(name).is_empty() { (*name).to_owned() } else { short(name) });
            words.collect::<Vec<_>>().join(" ")
        });
        text += &format!("| `{family}` | {there} | {refused} |\n");
    }
    text
}

#[test]
fn the_table_of_functions_is_current() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/virtual-driver.md");
    let text = std::fs::read_to_string(&file).expect("the page is there");
    let (head, rest) = text.split_once(BEGIN).expect("the page has the table");
    let (written, tail) = rest.split_once(END).expect("the table ends");
    let table = table();
    if std::env::var_os("PASCALINE_UPDATE_DOCS").is_some() {
        std::fs::write(&file, format!("{head}{BEGIN}{table}{END}{tail}")).expect("the page can be written");
    } else {
        assert!(
            written == table,
            "PASCALINE_UPDATE_DOCS=1 cargo test -p pascaline-virtual-driver writes:\n{table}"
        );
    }
}

#[test]
fn names_are_sorted_for_the_search() {
    assert!(NAMES.is_sorted());
}

#[test]
fn every_function_of_the_virtual_gpu_is_exported() {
    let missing: Vec<_> =
        pascaline_virtual_gpu::symbols().filter(|name| NAMES.binary_search(name).is_err()).collect();
    assert_eq!(missing, [""; 0]);
}

#[test]
fn a_version_is_the_newest_that_the_program_knows() {
    let name =
        |name, version, per_thread| crate::lookup::version_of(name, version, per_thread).map(|at| NAMES[at]);
    assert_eq!(name("cuMemAlloc", 12_000, false), Some("cuMemAlloc_v2"));
    assert_eq!(name("cuCtxCreate", 11_000, false), Some("cuCtxCreate_v2"));
    assert_eq!(name("cuCtxCreate", 12_000, false), Some("cuCtxCreate_v3"));
    assert_eq!(name("cuCtxCreate", 13_000, false), Some("cuCtxCreate_v4"));
    assert_eq!(name("cuGraphInstantiate", 12_000, false), Some("cuGraphInstantiateWithFlags"));
    assert_eq!(name("cuGraphInstantiate", 11_040, false), Some("cuGraphInstantiate_v2"));
    assert_eq!(name("cuStreamQuery", 12_000, true), Some("cuStreamQuery_ptsz"));
    assert_eq!(name("cuMemcpyHtoD", 12_000, true), Some("cuMemcpyHtoD_v2_ptds"));
    assert_eq!(name("cuNothing", 12_000, false), None);
}
