//! The finished PTX against the kernels' contracts. Needs no GPU.

use cuda_builder::ptx::{self, Entry};
use kernels_gpu::KernelSpec;
use pascaline::cuda::PTX;
use std::collections::BTreeMap;

/// What a block may use on sm_61.
const MAX_SHARED_BYTES: u32 = 48 << 10;

fn specs() -> impl Iterator<Item = KernelSpec> {
    kernels_gpu::KERNELS.iter().flat_map(|specs| specs.iter().copied())
}

fn entries() -> BTreeMap<String, Entry> {
    let entries = ptx::entries(PTX).expect("the builder has checked it");
    entries.into_iter().map(|entry| (entry.name.clone(), entry)).collect()
}

#[test]
fn target_and_version() {
    assert_eq!(ptx::check(PTX, "sm_61", (6, 4)), Ok(()));
}

#[test]
fn every_contract_has_its_kernel_and_every_kernel_its_contract() {
    let mut declared: Vec<_> = specs().map(|spec| spec.name.to_owned()).collect();
    declared.sort();
    let compiled: Vec<_> = entries().into_keys().collect();
    assert_eq!(declared, compiled);
}

#[test]
fn launch_bounds_and_shared_memory_are_as_declared() {
    let entries = entries();
    let mut wrong = Vec::new();
    for spec in specs() {
        let entry = &entries[spec.name];
        let found = (entry.max_threads, entry.min_blocks, entry.shared_bytes);
        if found != (spec.threads(), spec.min_blocks, spec.shared_bytes)
            || spec.shared_bytes > MAX_SHARED_BYTES
        {
            wrong.push(format!("{}: (threads, blocks, bytes) = {found:?}, declared {spec:?}", spec.name));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The convergence trap: a shuffle that LLVM copied into both arms of a branch shows as one too many.
#[test]
fn no_shuffle_was_duplicated() {
    let entries = entries();
    let mut wrong = Vec::new();
    for spec in specs() {
        let found = entries[spec.name].count("shfl.sync") as u32;
        if found != spec.shuffles {
            wrong.push(format!("{}: {found} shuffles, declared {}", spec.name, spec.shuffles));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Arrays that are indexed by variables, and calls that were not inlined, end up in local memory, which is DRAM.
#[test]
fn nothing_lives_in_local_memory() {
    let local: Vec<_> =
        entries().into_values().filter(|e| e.body.contains(".local")).map(|e| e.name).collect();
    assert!(local.is_empty(), "{local:?}");
    assert!(!PTX.contains("\n.func"), "a device function was not inlined");
}

/// Machines without `core`'s sources use the committed PTX, so it must be what the sources give.
#[test]
fn the_committed_ptx_is_what_the_sources_give() {
    let committed = std::fs::read_to_string("kernels-gpu/prebuilt/kernels.ptx").expect("committed");
    assert!(
        committed == PTX,
        "run `PASCALINE_UPDATE_PREBUILT=1 cargo build` and commit kernels-gpu/prebuilt"
    );
}
