//! How much is tested: `PASCALINE_TESTS=all` runs everything. Without it the long runs are left out, each with a line that says so.

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
pub fn left_out(what: &str) {
    let _ = writeln!(io::stderr(), "LEFT OUT: {what} (PASCALINE_TESTS=all runs it)");
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
