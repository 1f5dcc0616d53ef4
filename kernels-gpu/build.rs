//! Tells the build script of `pascaline` where the compiled kernels are: in a package from a registry they are here alone.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let folder = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR");
    println!("cargo::metadata=folder={folder}");
}
