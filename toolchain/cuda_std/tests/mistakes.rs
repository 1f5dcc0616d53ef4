//! Launches that must not compile, each in a file of `mistakes/` with the compiler's words beside it, and one that must.

/// Not a case of trybuild's: with one to run, it would generate code for all dependencies instead of checking them.
#[path = "mistakes/right.rs"]
mod right;

#[test]
fn toolchain_the_right_launch_compiles() {
    right::main();
}

#[test]
fn toolchain_mistakes_do_not_compile() {
    let cases = trybuild::TestCases::new();
    for name in [
        "element",
        "mutability",
        "lifetime",
        "exclusive",
        "twice",
        "parameters",
        "representation",
        "constant",
    ] {
        cases.compile_fail(format!("tests/mistakes/{name}.rs"));
    }
}
