//! The kernels of `gpu/src/output.rs` on the virtual GPU: what they print, where a panic was, and atomics by scope.

use crate::common::virtual_gpu::{buffer, launch};
use crate::common::{PLACES, PLAIN, Result, TEXTS, Variant};
use pascaline_virtual_gpu::{Config, FindingKind, Gpu};

const SOURCE: &str = include_str!("../../gpu/src/output.rs");

#[test]
fn a_kernel_prints_each_threads_line() -> Result<()> {
    let Some(module) = PLAIN.module() else { return Ok(()) };
    let mut gpu = Gpu::new(Config::default());
    let x: Vec<u8> = (0..40).flat_map(|i| (i as f32 / 3.0).to_le_bytes()).collect();
    let x = buffer(&mut gpu, &x)?;
    launch(&mut gpu, module, "printed", 64, &[x, 40])?;
    let got = gpu.take_printed();
    let mut lines: Vec<String> =
        (0..40).map(|i| format!("x[{i}] = {:.3}, {} % {{{i:04x}}}", i as f32 / 3.0, -i)).collect();
    let mut got: Vec<&str> = got.lines().collect();
    got.sort_unstable();
    lines.sort_unstable();
    assert_eq!(got, lines);
    Ok(())
}

/// The line of the kernel that panics.
fn line_of_panic() -> usize {
    1 + SOURCE.lines().position(|line| line.ends_with("// panics")).expect("it is marked")
}

#[test]
fn a_panic_is_a_trap() -> Result<()> {
    panics(&PLAIN, FindingKind::Trap, "trap")
}

#[test]
fn a_panic_with_the_feature_says_where_it_was() -> Result<()> {
    let message = format!("assertion `no panic` failed in a kernel, src/output.rs:{}", line_of_panic());
    panics(&PLACES, FindingKind::AssertFailed, &message)
}

#[test]
fn a_panic_with_texts_says_what_it_was_about() -> Result<()> {
    let wanted = "assertion `index out of bounds: the len is 5 but the index is 5` failed";
    let message = format!("{wanted} in a kernel, src/output.rs:{}", line_of_panic());
    panics(&TEXTS, FindingKind::AssertFailed, &message)
}

fn panics(variant: &Variant, kind: FindingKind, message: &str) -> Result<()> {
    let Some(module) = variant.module() else { return Ok(()) };
    let mut gpu = Gpu::new(Config::default());
    let x = buffer(&mut gpu, &[0; 20])?;
    let y = buffer(&mut gpu, &[0; 128])?;
    let error = launch(&mut gpu, module, "panics", 32, &[x, 5, y]).expect_err("thread 5 panics");
    let fault = error.downcast::<pascaline_virtual_gpu::Fault>()?;
    assert_eq!(fault.kind, kind, "{fault}");
    assert!(fault.to_string().contains(message), "{fault}");
    Ok(())
}

/// What each panic says, and from where.
#[test]
fn each_panic_says_its_text_and_its_place() -> Result<()> {
    let Some(module) = TEXTS.module() else { return Ok(()) };
    let long: Vec<u8> = (0..=255).collect();
    let cut = format!("{long:?}").chars().take(252).collect::<String>() + "…";
    let wanted = [
        ("0 => ", "x is 0.1, i is 0x1f"),
        ("1 => ", "assertion `left == right` failed: twice\n  left: 62\n right: 7"),
        ("2 => ", &cut),
        ("3 => ", "plain"),
        (".expect(", "no text: Utf8Error { valid_up_to: 128, error_len: Some(1) }"),
        (".unwrap()", "called `Option::unwrap()` on a `None` value"),
    ];
    for (how, (place, says)) in (0u64..).zip(wanted) {
        let line = 1 + SOURCE.lines().position(|line| line.contains(place)).expect("it is there");
        let mut gpu = Gpu::new(Config::default());
        let bytes = buffer(&mut gpu, &long)?;
        let arguments = [how | u64::from(0.1f32.to_bits()) << 32, bytes, long.len() as u64];
        let error = launch(&mut gpu, module, "says", 32, &arguments).expect_err("thread 31 panics");
        let fault = error.downcast::<pascaline_virtual_gpu::Fault>()?;
        let message = format!("assertion `{says}` failed in a kernel, src/output.rs:{line}");
        assert_eq!(
            (fault.kind, fault.thread, &fault.message),
            (FindingKind::AssertFailed, [31, 0, 0], &message)
        );
    }
    Ok(())
}

/// Lines that `core::fmt` writes are the host's.
#[test]
fn lines_of_core_fmt_are_the_hosts() -> Result<()> {
    let Some(module) = TEXTS.module() else { return Ok(()) };
    let mut gpu = Gpu::new(Config::default());
    let x: Vec<f64> =
        (0..40).map(|i| [0.1, -3.0, 1e21, 5e-324, f64::NAN, 1.0 / 3.0][i % 6] * i as f64).collect();
    let bytes: Vec<u8> = x.iter().flat_map(|x| x.to_le_bytes()).collect();
    let at = buffer(&mut gpu, &bytes)?;
    launch(&mut gpu, module, "lines", 64, &[at, x.len() as u64])?;
    let got = gpu.take_printed();
    let wanted = |(i, value): (usize, &f64)| {
        let line = format!("{value:?} {:>9.3} {:e} {:?} {:04x}", *value as f32, value, Some(i), -(i as i8));
        let cut = line.len() > 63;
        let line = if cut { line[..60].to_owned() + "…" } else { line };
        format!("{i}: {line} {}", u32::from(cut))
    };
    let mut wanted: Vec<String> = x.iter().enumerate().map(wanted).collect();
    let mut got: Vec<&str> = got.lines().collect();
    got.sort_unstable();
    wanted.sort_unstable();
    assert_eq!(got, wanted);
    Ok(())
}

#[test]
fn atomics_are_of_their_scope() -> Result<()> {
    let Some(text) = PLAIN.text() else { return Ok(()) };
    let Some(module) = PLAIN.module() else { return Ok(()) };
    for (scope, wanted) in
        [("atom.sys.add.f64", 1), ("atom.gpu.min.s64", 1), ("atom.gpu.cas.b64", 1), ("membar.sys", 2)]
    {
        assert_eq!(text.matches(scope).count(), wanted, "{scope}");
    }
    let mut gpu = Gpu::new(Config::default());
    let sum = buffer(&mut gpu, &[0; 8])?;
    let numbers = buffer(&mut gpu, &[0; 40])?;
    let count = buffer(&mut gpu, &[0; 4])?;
    launch(&mut gpu, module, "scoped", 64, &[sum, numbers, count])?;
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
