//! Every public op and every public type of `nn` has an example in its documentation, which `cargo test` runs.

use std::fs;
use std::path::Path;

/// A public item at the top level of a source file, and the documentation before it.
struct Item {
    kind: String,
    name: String,
    doc: String,
}

impl Item {
    fn has_example(&self) -> bool {
        self.doc.lines().filter(|line| line.starts_with("/// ```")).count() >= 2
    }
}

fn items(source: &str) -> Vec<Item> {
    let (mut items, mut doc) = (Vec::new(), String::new());
    for line in source.lines() {
        if line.starts_with("///") {
            doc += line;
            doc.push('\n');
        } else if let Some(rest) = line.strip_prefix("pub ") {
            let (kind, rest) = rest.split_once(' ').unwrap_or_default();
            let name = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
            items.push(Item { kind: kind.into(), name: name.into(), doc: std::mem::take(&mut doc) });
        } else if !line.starts_with("#[") {
            doc.clear();
        }
    }
    items
}

fn items_of(folder: &str) -> Vec<Item> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("host/src").join(folder);
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("the library's sources are here") {
        let path = entry.expect("a folder can be read").path();
        if path.file_name().is_some_and(|name| name != "textbook.rs") {
            found.extend(items(&fs::read_to_string(&path).expect("a source can be read")));
        }
    }
    found
}

/// `‹op›_into` is documented by `‹op›`'s example, if there is an `‹op›`.
#[test]
fn every_op_has_an_example() {
    // the textbook kernels are for benches and not public
    let is_op = |item: &Item| item.kind == "fn" && !item.name.starts_with("textbook");
    let ops: Vec<Item> = items_of("ops").into_iter().filter(is_op).collect();
    assert!(ops.len() > 60, "{} ops", ops.len());
    let plain_has_one = |op: &Item| {
        let plain = op.name.strip_suffix("_into");
        plain.is_some_and(|plain| ops.iter().any(|op| op.name == plain && op.has_example()))
    };
    let without: Vec<_> = ops.iter().filter(|op| !op.has_example() && !plain_has_one(op)).collect();
    let names: Vec<_> = without.iter().map(|op| &op.name).collect();
    assert!(names.is_empty(), "without an example: {names:?}");
}

#[test]
fn every_module_of_nn_has_an_example() {
    let types: Vec<Item> =
        items_of("nn").into_iter().filter(|item| ["struct", "enum"].contains(&item.kind.as_str())).collect();
    assert!(types.len() > 10, "{} types", types.len());
    let without: Vec<_> = types.iter().filter(|item| !item.has_example()).map(|item| &item.name).collect();
    assert!(without.is_empty(), "without an example: {without:?}");
}

#[test]
fn an_item_without_an_example_is_found() {
    let source =
        "/// Adds.\n///\n/// ```\n/// ```\n#[inline]\npub fn add(x: u32) {}\n\n/// Text.\npub fn sub() {}\n";
    let found = items(source);
    let found: Vec<_> = found.iter().map(|item| (item.name.as_str(), item.has_example())).collect();
    assert_eq!(found, [("add", true), ("sub", false)]);
}
