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
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../host/src").join(folder);
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("the library's sources are here") {
        let path = entry.expect("a folder can be read").path();
        found.extend(items(&fs::read_to_string(&path).expect("a source can be read")));
    }
    found
}

/// `‹op›_into` is documented by `‹op›`'s example, if there is an `‹op›`.
#[test]
fn every_op_has_an_example() {
    let is_op = |item: &Item| item.kind == "fn";
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

/// The public functions of a file, with their types: `Tensor::narrow`, or `pool`. Items of private modules of a type's own crate count too.
fn functions(source: &str) -> Vec<String> {
    let (mut found, mut owner) = (Vec::new(), String::new());
    for line in source.lines().take_while(|line| *line != "#[cfg(test)]") {
        if line.starts_with("impl") || line.starts_with("unsafe impl") {
            let mut plain = String::new();
            let mut depth = 0;
            for c in line.chars() {
                depth += i32::from(c == '<') - i32::from(c == '>');
                if depth == 0 && c != '>' {
                    plain.push(c);
                }
            }
            let name = plain.split(" for ").last().unwrap_or_default().trim_start_matches("impl").trim();
            owner = name.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_owned();
        }
        let (indented, rest) = match line.strip_prefix("    pub ") {
            Some(rest) => (true, rest),
            None => (false, line.strip_prefix("pub ").unwrap_or_default()),
        };
        let rest = rest.trim_start_matches("const ").trim_start_matches("unsafe ");
        let Some(rest) = rest.strip_prefix("fn ") else { continue };
        let name = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
        found.push(if indented { format!("{owner}::{name}") } else { name.to_owned() });
    }
    found
}

/// Left out of `docs/reports/soundness.md`: functions that give numbers, names and shapes, and types that are not public.
const REACH_NOTHING: &[&str] = &[
    "CudaDevice::blocks_per_multiprocessor",
    "CudaDevice::count",
    "CudaDevice::is_lost",
    "CudaDevice::is_planned",
    "CudaDevice::is_virtual",
    "CudaDevice::kernel_resources",
    "CudaDevice::memory_info",
    "CudaDevice::pci_bus_id",
    "CudaDevice::prefer_low_power",
    "CudaDevice::prefers_low_power",
    "CudaDevice::properties",
    "CudaDevice::properties_of",
    "CudaDevice::same_stream",
    "Counted::traffic",
    "Counters::",
    "Device::is_planned",
    "Device::as_cuda",
    "Device::auto",
    "Device::choose",
    "Device::is_cuda",
    "Device::same",
    "DeviceBuffer::bytes",
    "DeviceBuffer::device",
    "ErrorReport::",
    "Float16Tensor::device",
    "Float16Tensor::exponent_bits",
    "Float16Tensor::shape",
    "ForeignBytes::",
    "FreeLists::",
    "Graph::kept",
    "Graph::nodes",
    "InFlight::",
    "KvFormat::",
    "KvTensor::bytes",
    "KvTensor::device",
    "KvTensor::dims",
    "KvTensor::format",
    "KvTensor::part_bytes",
    "KvView::",
    "Limit::limit",
    "Limit::set_limit",
    "Limit::used",
    "Link::slot_bytes",
    "Link::way",
    "MemoryPool::audit",
    "MemoryPool::leaks",
    "MemoryPool::statistics",
    "Moments8bit::elements",
    "Nccl::",
    "Order::",
    "PinnedPool::",
    "Posted::",
    "Planning::host_bytes",
    "Planning::ordinals",
    "Resident::join_runs",
    "QuantRows::part_bytes",
    "QuantRows::shape",
    "QuantTensor::bytes",
    "QuantTensor::cols",
    "QuantTensor::device",
    "QuantTensor::format",
    "QuantTensor::part_bytes",
    "QuantTensor::rows",
    "QuantTensor::shape",
    "Recorder::",
    "Scales::of_row",
    "Scales::row_bytes",
    "Simulated::",
    "Slabs::",
    "Statistics::",
    "Tensor::device",
    "Tensor::dims",
    "Tensor::dtype",
    "Tensor::is_contiguous",
    "Tensor::shape",
    "Tensor::strides",
    "TensorMut::device",
    "TensorMut::dims",
    "TensorMut::dtype",
    "TensorMut::is_contiguous",
    "TensorMut::shape",
    "TensorMut::strides",
    "Trace::entries",
    "When::",
    "bits",
    "block_len",
    "dequantize_blocks",
    "driver_version",
    "error",
    "family",
    "forget_current",
    "is_lost",
    "least",
    "modules",
    "name",
    "on_slow_compilation",
    "pack",
    "parse",
    "peak_of_the_process",
    "ptx",
    "ptx_compressed_bytes",
    "ptx_modules",
    "ptx_of",
    "survey",
    "to_text",
    "trace",
    "unpack",
    "warps_block",
];

#[test]
fn every_function_that_reaches_device_memory_is_in_the_table() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let table = fs::read_to_string(root.join("docs/reports/soundness.md")).expect("the table is here");
    let named: Vec<&str> = table.split('`').skip(1).step_by(2).collect();
    let mut sources: Vec<_> =
        ["tensor.rs", "device.rs", "kv.rs", "float16.rs", "problem/adamw8bit.rs"].map(Into::into).into();
    for folder in ["memory", "memory/adaptor", "cuda", "tensor", "quant"] {
        let entries =
            fs::read_dir(root.join("host/src").join(folder)).expect("the library's sources are here");
        let files =
            entries.map(|entry| Path::new(folder).join(entry.expect("a folder can be read").file_name()));
        sources.extend(
            files.filter(|file| file.extension().is_some() && !file.to_string_lossy().ends_with("tests.rs")),
        );
    }
    let mut found = Vec::new();
    for source in &sources {
        let text = fs::read_to_string(root.join("host/src").join(source)).expect("a source can be read");
        found.extend(functions(&text));
    }
    assert!(found.len() > 200, "{} functions", found.len());
    let reaches = |name: &String| {
        !REACH_NOTHING.iter().any(|other| name == other || other.ends_with("::") && name.starts_with(other))
    };
    let missing: Vec<_> =
        found.iter().filter(|name| reaches(name) && !named.contains(&name.as_str())).collect();
    assert!(missing.is_empty(), "docs/reports/soundness.md has no row for {missing:?}");
    let gone: Vec<_> =
        named.iter().filter(|name| name.contains("::") && !found.iter().any(|one| one == *name)).collect();
    assert!(
        gone.is_empty() || gone.iter().all(|name| **name == "Upstream::free"),
        "nothing is called {gone:?}"
    );
    // and the tests that it names are there
    let mut tests = String::new();
    let mut folders = vec![root.join("tests"), root.join("host/src")];
    while let Some(folder) = folders.pop() {
        for path in
            fs::read_dir(folder).expect("a folder can be read").map(|entry| entry.expect("an entry").path())
        {
            match path.extension().and_then(|extension| extension.to_str()) {
                Some("rs") => tests += &fs::read_to_string(path).expect("a source can be read"),
                None if path.is_dir() => folders.push(path),
                _ => {}
            }
        }
    }
    let is_test =
        |name: &&&str| name.matches('_').count() > 3 && !name.ends_with("_into") && !name.contains('/');
    let unknown: Vec<_> =
        named.iter().filter(is_test).filter(|name| !tests.contains(&format!("fn {name}("))).collect();
    assert!(unknown.is_empty(), "no test is called {unknown:?}");
}

/// Each op is called by the differential fuzzer, by itself or into an output.
#[test]
fn every_op_is_fuzzed() {
    // they are made of ops that are called
    const NOT: [&str; 6] = [
        "fake_quantize",
        "fake_quantize_scaled",
        "linear_cross_entropy",
        "quantize_with",
        "quant_matmul_rows_into",
        "dequantize",
    ];
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/src/ops");
    let files = fs::read_dir(folder).expect("the fuzzer's sources are here");
    let calls: String =
        files.map(|file| fs::read_to_string(file.unwrap().path()).expect("a source can be read")).collect();
    let is_called = |name: &str| {
        let plain = name.strip_suffix("_into").unwrap_or(name);
        [plain.to_owned(), format!("{plain}_into")].iter().any(|name| {
            calls.match_indices(&format!("ops::{name}")).any(|(at, found)| {
                let next = calls[at + found.len()..].chars().next();
                !next.is_some_and(|c| c.is_alphanumeric() || c == '_')
            })
        })
    };
    let is_op = |item: &Item| {
        item.kind == "fn" && !item.name.starts_with("textbook") && !NOT.contains(&item.name.as_str())
    };
    let ops: Vec<_> = items_of("ops").into_iter().filter(is_op).map(|item| item.name).collect();
    let missing: Vec<_> = ops.iter().filter(|name| !is_called(name)).collect();
    assert!(missing.is_empty(), "not called by fuzz/src/ops: {missing:?}");
}
