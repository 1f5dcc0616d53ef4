//! libFuzzer's entry. `PASCALINE_FUZZ_TARGET` names the target; `scripts/fuzz` sets it.
#![no_main]

use pascaline_fuzz::{Run, target};
use std::sync::LazyLock;
use std::{env, panic};

static TARGET: LazyLock<Run> = LazyLock::new(|| {
    // libfuzzer-sys ends the process in its panic hook, also at panics of the tokenizers crate that are caught and made
    // errors. An uncaught panic ends it without the hook too.
    drop(panic::take_hook());
    let name = env::var("PASCALINE_FUZZ_TARGET").unwrap_or_default();
    target(&name).unwrap_or_else(|| panic!("PASCALINE_FUZZ_TARGET={name} is not a target"))
});

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    TARGET(input);
});
