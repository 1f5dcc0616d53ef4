//! Launches that must not compile, each in a file of `mistakes/` with the compiler's words beside it.

#[test]
fn toolchain_mistakes_do_not_compile() {
    let cases = trybuild::TestCases::new();
    cases.pass("tests/mistakes/right.rs");
    for name in ["element", "mutability", "lifetime", "exclusive", "twice", "parameters", "representation"] {
        cases.compile_fail(format!("tests/mistakes/{name}.rs"));
    }
}
