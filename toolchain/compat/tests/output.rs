//! The kernels of `gpu/src/output.rs` on the virtual GPU: what they print, where a panic was, and atomics by scope.
//!
//! A program of its own and not a `#[test]`, because it sets a variable of its environment, as cargo does for build scripts.

mod common;

use pascaline_virtual_gpu::{Config, FindingKind, Gpu, Launch, Module};
use std::sync::Arc;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const SOURCE: &str = include_str!("../gpu/src/output.rs");

fn main() -> Result<()> {
    let builder = common::builder();
    let with_places = builder.clone().features(["panic-place"]);
    let Some(text) = common::ptx(builder, "output of kernels")? else { return Ok(()) };
    printed(&text)?;
    scoped(&text)?;
    panics(&text, FindingKind::Trap, "trap")?;
    let line = 1 + SOURCE.lines().position(|line| line.ends_with("// panics")).expect("it is marked");
    let message = format!("assertion `no panic` failed in a kernel, src/output.rs:{line}");
    let Some(text) = common::ptx(with_places, "places of panics")? else { return Ok(()) };
    panics(&text, FindingKind::AssertFailed, &message)?;
    println!("test result: ok. 4 passed; 0 failed");
    Ok(())
}

fn launch(gpu: &mut Gpu, text: &str, kernel: &str, threads: u32, arguments: &[u64]) -> Result<()> {
    let module = gpu.load(Arc::new(Module::parse(text)?)).expect("enough memory");
    let params: Vec<u8> = arguments.iter().flat_map(|argument| argument.to_le_bytes()).collect();
    let launch = Launch { grid: [1; 3], block: [threads, 1, 1], dynamic_shared: 0, params: &params };
    gpu.launch(&module, kernel, launch)?;
    Ok(())
}

fn buffer(gpu: &mut Gpu, bytes: &[u8]) -> Result<u64> {
    let address = gpu.alloc(bytes.len() as u64).expect("enough memory");
    gpu.write(address, bytes).expect("just allocated");
    Ok(address)
}

fn printed(text: &str) -> Result<()> {
    let mut gpu = Gpu::new(Config::default());
    let x: Vec<u8> = (0..40).flat_map(|i| (i as f32 / 3.0).to_le_bytes()).collect();
    let x = buffer(&mut gpu, &x)?;
    launch(&mut gpu, text, "printed", 64, &[x, 40])?;
    let got = gpu.take_printed();
    let mut lines: Vec<String> =
        (0..40).map(|i| format!("x[{i}] = {:.3}, {} % {{{i:04x}}}", i as f32 / 3.0, -i)).collect();
    let mut got: Vec<&str> = got.lines().collect();
    got.sort_unstable();
    lines.sort_unstable();
    assert_eq!(got, lines);
    Ok(())
}

fn panics(text: &str, kind: FindingKind, message: &str) -> Result<()> {
    let mut gpu = Gpu::new(Config::default());
    let x = buffer(&mut gpu, &[0; 20])?;
    let y = buffer(&mut gpu, &[0; 128])?;
    let error = launch(&mut gpu, text, "panics", 32, &[x, 5, y]).expect_err("thread 5 panics");
    let fault = error.downcast::<pascaline_virtual_gpu::Fault>()?;
    assert_eq!(fault.kind, kind, "{fault}");
    assert!(fault.to_string().contains(message), "{fault}");
    Ok(())
}

fn scoped(text: &str) -> Result<()> {
    for (scope, wanted) in
        [("atom.sys.add.f64", 1), ("atom.gpu.min.s64", 1), ("atom.gpu.cas.b64", 1), ("membar.sys", 2)]
    {
        assert_eq!(text.matches(scope).count(), wanted, "{scope}");
    }
    let mut gpu = Gpu::new(Config::default());
    let sum = buffer(&mut gpu, &[0; 8])?;
    let numbers = buffer(&mut gpu, &[0; 40])?;
    let count = buffer(&mut gpu, &[0; 4])?;
    launch(&mut gpu, text, "scoped", 64, &[sum, numbers, count])?;
    let mut bytes = [0; 8];
    gpu.read(sum, &mut bytes).expect("allocated");
    assert_eq!(f64::from_le_bytes(bytes), 128.0);
    let mut got = [0i64; 5];
    for (i, got) in got.iter_mut().enumerate() {
        gpu.read(numbers + 8 * i as u64, &mut bytes).expect("allocated");
        *got = i64::from_le_bytes(bytes);
    }
    assert_eq!(got[..4], [63 * 32, -63, 63, 7]);
    assert!((1..=64).contains(&got[4]), "one thread has swapped: {}", got[4]);
    gpu.read(count, &mut bytes[..4]).expect("allocated");
    assert_eq!(bytes[..4], 64u32.to_le_bytes());
    Ok(())
}
