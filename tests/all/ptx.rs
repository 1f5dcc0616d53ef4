//! The finished PTX against the kernels' contracts. Needs no GPU.

use cuda_builder::ptx::{self, Entry};
use cuda_std::KernelInfo;
use pascaline::cuda::{PTX_ORIGIN, ptx_modules, ptx_of};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::LazyLock;

#[path = "../../host/src/cuda/packed.rs"]
mod packed;
#[path = "../../build/sources.rs"]
mod sources;

/// The shared memory that a block may use on sm_61.
const MAX_SHARED_BYTES: u32 = 48 << 10;

/// The most bytes of a file in the repository.
const MAX_FILE_BYTES: u64 = 3_000_000;

fn specs() -> impl Iterator<Item = KernelInfo> {
    kernels_gpu::KERNELS.iter().flat_map(|specs| specs.iter().copied())
}

/// The text of each module.
static MODULES: LazyLock<BTreeMap<&str, String>> = LazyLock::new(|| {
    ptx_modules().map(|name| (name, ptx_of(name).expect("the program's own module"))).collect()
});

/// Every kernel, and the module that it is in.
fn entries() -> BTreeMap<String, (Entry, &'static str)> {
    let mut all = BTreeMap::new();
    for (module, text) in MODULES.iter() {
        for entry in ptx::entries(text).expect("the builder has checked it") {
            let other = all.insert(entry.name.clone(), (entry, *module));
            assert!(other.is_none(), "a kernel in two modules: {other:?}");
        }
    }
    all
}

#[test]
fn target_and_version_of_every_module() {
    for (name, text) in MODULES.iter() {
        assert_eq!(ptx::check(text, "sm_61", (6, 4)), Ok(()), "{name}");
    }
}

#[test]
fn every_contract_has_its_kernel_in_its_module_and_every_kernel_its_contract() {
    let mut declared: Vec<_> = specs().map(|spec| (spec.name.to_owned(), spec.module)).collect();
    declared.sort();
    let compiled: Vec<_> = entries().into_iter().map(|(name, (_, module))| (name, module)).collect();
    assert_eq!(declared, compiled);
}

/// The host passes as many parameters as the entry takes, each of the same size.
#[test]
fn parameters_are_as_declared() {
    let entries = entries();
    let mut wrong = Vec::new();
    for spec in specs() {
        let found = &entries[spec.name].0.parameters;
        if *found != spec.parameters {
            wrong.push(format!("{}: {found:?} bytes, declared {:?}", spec.name, spec.parameters));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn launch_bounds_and_shared_memory_are_as_declared() {
    let entries = entries();
    let mut wrong = Vec::new();
    for spec in specs() {
        let entry = &entries[spec.name].0;
        let found = (entry.max_threads, entry.min_blocks, entry.shared_bytes);
        if found != (spec.threads(), spec.min_blocks, spec.shared_bytes)
            || spec.shared_bytes > MAX_SHARED_BYTES
        {
            wrong.push(format!("{}: (threads, blocks, bytes) = {found:?}, declared {spec:?}", spec.name));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A kernel that states no number of blocks per multiprocessor gets more registers by the driver's linker than by its compiler, and so is
/// loaded by the latter, which compiles one module at a time and lets every other call wait.
#[test]
fn every_kernel_states_its_blocks() {
    let open: Vec<_> = specs().filter(|spec| spec.min_blocks == 0).map(|spec| spec.name).collect();
    assert!(open.is_empty(), "without min_blocks: {open:?}");
}

/// The convergence trap: a shuffle that LLVM copied into both arms of a branch shows as one too many.
#[test]
fn no_shuffle_was_duplicated() {
    let entries = entries();
    let mut wrong = Vec::new();
    for spec in specs() {
        let found = entries[spec.name].0.count("shfl.sync") as u32;
        if found != spec.shuffles {
            wrong.push(format!("{}: {found} shuffles, declared {}", spec.name, spec.shuffles));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Arrays that are indexed by variables, and calls that were not inlined, end up in local memory, which is DRAM.
#[test]
fn nothing_lives_in_local_memory() {
    let local: Vec<_> = entries()
        .into_values()
        .filter(|(entry, _)| entry.body.contains(".local"))
        .map(|(entry, _)| entry.name)
        .collect();
    assert!(local.is_empty(), "{local:?}");
    for (name, text) in MODULES.iter() {
        assert!(!text.contains("\n.func"), "{name}: a device function was not inlined");
    }
}

/// Builds use the committed modules as long as the sources have the number beside them, so these must be what the sources compile to. The
/// comparison says something where the kernels were compiled: `CUDA_BUILDER_PREBUILT=0` asks for that.
#[test]
fn the_committed_modules_are_what_the_sources_give() {
    if std::env::var_os("CUDA_BUILDER_PREBUILT").is_some_and(|value| value == "0") {
        assert!(PTX_ORIGIN.starts_with("built from source"), "{PTX_ORIGIN}");
    }
    let mut committed = BTreeSet::new();
    let mut stale = Vec::new();
    let prebuilt = Path::new("../kernels-gpu/prebuilt");
    let unchanged = sources::are_unchanged(Path::new(".."), prebuilt).expect("the sources can be read");
    for entry in std::fs::read_dir(prebuilt).expect("committed") {
        let path = entry.expect("readable").path();
        if path.file_name().is_some_and(|name| name == sources::FILE) {
            continue;
        }
        let size = path.metadata().expect("readable").len();
        assert!(size <= MAX_FILE_BYTES, "{}: {size} bytes", path.display());
        let file = path.file_name().expect("a file").to_string_lossy().into_owned();
        let family = file.strip_suffix(".ptx.zst").expect("only modules are here");
        let text = zstd::decode_all(std::fs::File::open(&path).expect("readable")).expect("compressed");
        for (name, packed) in packed::modules(str::from_utf8(&text).expect("PTX")) {
            assert_eq!(packed::family(name), family);
            if MODULES.get(name).is_none_or(|module| *module != packed::unpack(packed)) {
                stale.push(name.to_owned());
            }
            committed.insert(name.to_owned());
        }
    }
    stale.extend(MODULES.keys().filter(|name| !committed.contains(**name)).map(|&name| name.to_owned()));
    assert!(
        stale.is_empty() && unchanged,
        "{stale:?}: run `PASCALINE_UPDATE_PREBUILT=1 cargo build` and commit kernels-gpu/prebuilt"
    );
}
