//! The kernels of `gpu/`: compiled once in each way for all tests, and loaded on the virtual device.

#[path = "../../../../../tests/all/common/extent.rs"]
pub mod extent;
pub mod virtual_gpu;

use cuda_builder::{CudaBuilder, CudaBuilderError, DebugInfo};
use cust::prelude::*;
use pascaline_driver as driver;
use std::path::Path;
use std::sync::{Arc, Once, OnceLock};

pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// With no options. Without contraction each operation is rounded as the host's.
pub static PLAIN: Variant = Variant::new("without options", |builder| builder);
pub static LINES: Variant = Variant::new("with lines", |builder| builder.debug(DebugInfo::LineTables));
/// `core` is that of [`LINES`].
pub static FLUSHED: Variant = Variant::new("with lines, contracted and without subnormals", |builder| {
    builder.debug(DebugInfo::LineTables).fma_contraction(true).ftz(true)
});
pub static PLACES: Variant =
    Variant::new("with places of panics", |builder| builder.features(["panic-place"]));
pub static TEXTS: Variant =
    Variant::new("with texts of panics", |builder| builder.features(["panic-text", "text"]));

/// Where all tests that compile for the GPU do so: `core` is compiled once for each set of options, which takes longer than the kernels.
const FOLDER: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/the target folder");

/// A way to compile the GPU crate.
pub struct Variant {
    what: &'static str,
    options: fn(CudaBuilder) -> CudaBuilder,
    text: OnceLock<std::result::Result<String, CudaBuilderError>>,
    module: OnceLock<Arc<pascaline_virtual_gpu::Module>>,
    skipped: Once,
}

impl Variant {
    const fn new(what: &'static str, options: fn(CudaBuilder) -> CudaBuilder) -> Self {
        Self { what, options, text: OnceLock::new(), module: OnceLock::new(), skipped: Once::new() }
    }

    /// The PTX, which the first test that asks for it compiles. `None`, said once, where nothing is compiled for the GPU: the test is
    /// skipped then, or fails if everything is to be tested.
    pub fn text(&self) -> Option<&str> {
        let build = || {
            let builder = CudaBuilder::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("gpu"));
            let path = (self.options)(builder).out_dir(FOLDER).build()?;
            Ok(std::fs::read_to_string(path).expect("just written"))
        };
        match self.text.get_or_init(build) {
            Ok(text) => Some(text),
            Err(error @ (CudaBuilderError::NoToolchain(_) | CudaBuilderError::Unavailable(_))) => {
                let what = format!("kernels compiled {} ({error})", self.what);
                if extent::all() {
                    extent::skipped(&what); // a failure of each test
                }
                self.skipped.call_once(|| extent::skipped(&what));
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// The PTX as a virtual GPU loads it.
    pub fn module(&self) -> Option<&Arc<pascaline_virtual_gpu::Module>> {
        let text = self.text()?;
        let parse =
            || Arc::new(pascaline_virtual_gpu::Module::parse(text).expect("cuda_builder has checked it"));
        Some(self.module.get_or_init(parse))
    }
}

/// Kernels that cust has loaded on the virtual device. The test's thread is in its context.
pub struct Loaded {
    pub module: Module,
    pub stream: Stream,
    _context: Context, // dropped last
}

pub fn load(text: &str) -> Result<Loaded> {
    driver::select(driver::Backend::Virtual).expect("no test asks for another device");
    let context = cust::quick_init()?;
    let stream = Stream::new(StreamFlags::NON_BLOCKING, None)?;
    Ok(Loaded { module: Module::from_ptx(text, &[])?, stream, _context: context })
}

/// The kernels compiled without options.
pub fn load_plain() -> Result<Option<Loaded>> {
    PLAIN.text().map(load).transpose()
}
