//! The kernels of `gpu/src/planted.rs` on the virtual GPU: each mistake is found, and named by its line of Rust.

use crate::common::{LINES, PLAIN, Result};
use pascaline_virtual_gpu::FindingKind::{self, *};
use pascaline_virtual_gpu::{Config, Fault, Gpu, Launch, LaunchReport, Module};
use std::sync::Arc;

const SOURCE: &str = include_str!("../../gpu/src/planted.rs");

macro_rules! planted {
    ($($test:ident: $kernel:literal, $blocks:literal, $threads:literal, $kind:ident, $message:literal;)*) => {$(
        #[test]
        fn $test() {
            is_found($kernel, $blocks, $threads, $kind, $message);
        }
    )*};
}

planted! {
    a_race_in_shared_memory_is_found:
        "planted_shared_race", 1, 64, SharedRace, "with no barrier between";
    a_store_past_an_end_is_found:
        "planted_overrun", 1, 64, OutOfBounds, "4-byte store";
    a_load_of_what_nobody_wrote_is_found:
        "planted_uninitialised", 1, 32, Uninitialized, "4-byte load";
    a_panic_is_found:
        "planted_panic", 2, 32, Trap, "trap";
    a_race_of_blocks_is_found:
        "planted_race_of_blocks", 4, 32, GlobalRace, "with no fences and flag between";
    a_race_of_warps_is_found:
        "planted_race_of_warps", 1, 64, GlobalRace, "of the same block read at ";
    an_access_past_a_shared_array_is_found:
        "planted_shared_overrun", 1, 32, OutOfBounds, "0 bytes past the end of a shared array of 128 bytes";
    a_block_at_two_barriers_is_found:
        "planted_two_barriers", 1, 64, BarrierDivergence, "at another one";
    an_exchange_in_a_warp_without_sync_warp_is_found:
        "planted_warp_exchange", 1, 32, SharedRace, "in the same warp with no sync_warp between";
}

fn is_found(kernel: &str, blocks: u32, threads: u32, kind: FindingKind, message: &str) {
    let Some((with_lines, plain)) = modules() else { return };
    let found = run(with_lines, kernel, blocks, threads).expect_err(kernel);
    let shown = found.to_string();
    assert_eq!(found.kind, kind, "{shown}");
    assert!(shown.contains(message), "{shown}");
    let wanted = line_of(kernel);
    assert!(
        shown.contains(&format!("src/planted.rs:{wanted}:")),
        "{kernel}: line {wanted} is wrong:\n{shown}"
    );
    let found = run(plain, kernel, blocks, threads).expect_err(kernel);
    assert!(found.kind == kind && found.source.is_empty(), "{found}");
}

#[test]
fn the_place_of_a_finding_is_the_innermost_call() {
    let Some((with_lines, _)) = modules() else { return };
    let found = run(with_lines, "planted_uninitialised", 1, 32).expect_err("uninitialised");
    assert_eq!(found.place().map(|place| place.line), Some(line_of("twice")), "{found}");
}

#[test]
fn right_exchanges_have_no_findings_in_any_order() -> Result<()> {
    let Some((with_lines, plain)) = modules() else { return Ok(()) };
    for module in [with_lines, plain] {
        for seed in 0..8 {
            run_seeded(module, "right_exchanges", 8, 64, seed)?;
        }
    }
    Ok(())
}

/// With lines and without.
fn modules() -> Option<(&'static Arc<Module>, &'static Arc<Module>)> {
    let (with_lines, plain) = (LINES.module()?, PLAIN.module()?);
    assert!(with_lines.has_lines() && !plain.has_lines());
    Some((with_lines, plain))
}

/// The line of the source that ends with this comment.
fn line_of(mark: &str) -> u32 {
    let at = SOURCE.lines().position(|line| line.ends_with(&format!("// {mark}")));
    1 + at.unwrap_or_else(|| panic!("no line is marked {mark}")) as u32
}

fn run(
    module: &Arc<Module>,
    kernel: &str,
    blocks: u32,
    threads: u32,
) -> std::result::Result<LaunchReport, Fault> {
    run_seeded(module, kernel, blocks, threads, 1)
}

/// Launches a kernel with the arguments that it has in `planted.rs`: each slice has 64 elements.
fn run_seeded(
    module: &Arc<Module>,
    kernel: &str,
    blocks: u32,
    threads: u32,
    seed: u64,
) -> std::result::Result<LaunchReport, Fault> {
    let mut gpu = Gpu::new(Config { seed, lockstep: false, ..Config::default() });
    let loaded = gpu.load(module.clone()).expect("enough memory");
    let zeroes = |gpu: &mut Gpu, elements: usize| {
        let address = gpu.alloc(4 * elements as u64).expect("enough memory");
        gpu.write(address, &vec![0; 4 * elements]).expect("just allocated");
        address
    };
    let x = zeroes(&mut gpu, 64);
    let y = zeroes(&mut gpu, 512);
    let arguments = match kernel {
        "planted_overrun" => {
            // the last allocation's end is the end of 64 elements
            let y = zeroes(&mut gpu, 32);
            vec![x, 32, y]
        }
        "planted_panic" => vec![x, 64, y],
        "planted_uninitialised" => vec![gpu.alloc(256).expect("enough memory"), y],
        "planted_race_of_warps" => vec![y, zeroes(&mut gpu, 64)],
        "planted_shared_overrun" => vec![y, 32],
        "right_exchanges" => vec![y, zeroes(&mut gpu, 1), zeroes(&mut gpu, 1)],
        _ => vec![y],
    };
    let params: Vec<u8> = arguments.iter().flat_map(|argument| argument.to_le_bytes()).collect();
    let launch = Launch { grid: [blocks, 1, 1], block: [threads, 1, 1], dynamic_shared: 0, params: &params };
    gpu.launch(&loaded, kernel, launch)
}
