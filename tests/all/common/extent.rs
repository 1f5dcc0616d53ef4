//! How much is tested: `PASCALINE_TESTS=all` runs everything. Without it the long runs are left out, and what a machine lacks the means
//! for is skipped, each with a line that says so.

use std::env;
use std::io::{self, Write};

/// Whether everything is to be tested.
///
/// # Panics
/// If the variable has another value than `all`, which would otherwise leave out what was asked for.
pub fn all() -> bool {
    env::var_os("PASCALINE_TESTS").is_some_and(|value| {
        assert!(value == "all", "PASCALINE_TESTS is {value:?}; it may be \"all\"");
        true
    })
}

/// Says what is left out, past the test harness, which shows nothing of tests that pass.
#[allow(dead_code)] // not all packages' tests leave something out
pub fn left_out(what: &str) {
    let _ = writeln!(io::stderr(), "LEFT OUT: {what} (PASCALINE_TESTS=all runs it)");
}

/// Says what can't be tested on this machine, past the test harness.
///
/// # Panics
/// If everything is to be tested: what did not run is no success.
#[allow(dead_code)] // not all packages' tests need what a machine may lack
pub fn skipped(what: &str) {
    assert!(!all(), "PASCALINE_TESTS is \"all\", and this can't be tested here: {what}");
    let _ = writeln!(io::stderr(), "SKIPPED: {what}");
}

/// Says again what a test in a process of its own said of its extent on stderr.
#[allow(dead_code)] // not all packages' tests have such processes
pub fn relay(said: &str) {
    for line in said.lines().filter(|line| line.starts_with("LEFT OUT: ") || line.starts_with("SKIPPED: ")) {
        let _ = writeln!(io::stderr(), "{line}");
    }
}

/// The first `count` of a list; all of it if everything is to be tested.
#[allow(dead_code)] // not all packages' tests have such a list
pub fn first_of<'a, T>(count: usize, list: &'a [T], what: &str) -> &'a [T] {
    if all() || list.len() <= count {
        return list;
    }
    left_out(&format!("{} of {} {what}", list.len() - count, list.len()));
    &list[..count]
}
