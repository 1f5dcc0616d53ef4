//! Remainders, orderings and comparisons of bytes: the kernels of `gpu/src/lowering.rs`, in the PTX and on the virtual GPU.

use crate::common::{PLAIN, Result, load_plain};
use cuda_builder::ptx;
use cust::prelude::*;

/// Where `membar` stands among the accesses of each kernel.
#[test]
fn fences_stand_where_orderings_ask_for_them() -> Result<()> {
    let Some(text) = PLAIN.text() else { return Ok(()) };
    let entries = ptx::entries(text)?;
    let order = |name: &str| -> String {
        let body = &entries.iter().find(|entry| entry.name == name).expect("a kernel of this name").body;
        let kind = |line: &str| {
            let line = line.trim();
            let kinds = [
                ("membar.gl", 'm'),
                ("ld.volatile", 'l'),
                ("st.volatile", 's'),
                ("atom", 'a'),
                ("red.", 'a'),
            ];
            kinds.iter().find(|(start, _)| line.starts_with(start)).map(|(_, kind)| *kind)
        };
        body.lines().filter_map(kind).collect()
    };
    assert_eq!(order("store_buffering"), "msmmlm", "SeqCst: store, load");
    assert!(order("last_block").starts_with("mam"), "AcqRel: {}", order("last_block"));
    let message = order("message");
    assert!(message.contains("ms") && message.contains("lm"), "Release, Acquire: {message}");
    assert_eq!(order("exchanges"), "maama", "Release, Acquire and Relaxed");
    Ok(())
}

#[test]
fn bytes_are_compared_and_moved_by_functions_that_are_there() {
    let Some(text) = PLAIN.text() else { return };
    let declared = text.lines().filter(|line| line.contains(".extern .func"));
    let missing: Vec<&str> =
        declared.filter(|line| !line.contains(" vprintf") && !line.contains(" __assertfail")).collect();
    assert!(
        missing.is_empty(),
        "bytes are compared and moved by functions that are there, not by {missing:?}"
    );
}

#[test]
fn remainders_have_the_bits_of_the_hosts() -> Result<()> {
    let Some(gpu) = load_plain()? else { return Ok(()) };
    let (module, stream) = (&gpu.module, &gpu.stream);
    let special = [
        1e300,
        -1e300,
        1e10,
        5.5,
        -5.5,
        0.0,
        -0.0,
        5e-324,
        1e-320,
        f64::MAX,
        f64::INFINITY,
        f64::NAN,
        3.7,
        0.1,
        1e-40,
        1e38,
        -3.0,
        7.5,
    ];
    let pairs: Vec<(f64, f64)> = special.iter().flat_map(|&x| special.iter().map(move |&y| (x, y))).collect();
    let n = pairs.len();
    let x: Vec<f64> = pairs.iter().map(|pair| pair.0).cycle().take(5 * n).collect();
    let y: Vec<f64> = pairs.iter().map(|pair| pair.1).collect();
    let (xs, ys): (Vec<f32>, Vec<f32>) =
        (x.iter().map(|&x| x as f32).collect(), y.iter().map(|&y| y as f32).collect());
    let (device_x, device_y) = (DeviceBuffer::from_slice(&x)?, DeviceBuffer::from_slice(&y)?);
    let (device_xs, device_ys) = (DeviceBuffer::from_slice(&xs)?, DeviceBuffer::from_slice(&ys)?);
    let blocks = n.div_ceil(64) as u32;
    // SAFETY: 5 · n elements to change and n divisors of both types, each slice a pointer and a length.
    unsafe {
        launch!(module.remainders<<<blocks, 64, 0, stream>>>(
            device_x.as_device_ptr(), device_y.as_device_ptr(), n, device_xs.as_device_ptr(), device_ys.as_device_ptr(), n
        ))?;
    }
    stream.synchronize()?;
    let (got, got_s) = (device_x.as_host_vec()?, device_xs.as_host_vec()?);
    for i in 0..5 * n {
        let operands = |x: f64, y: f64| [(x, y), (x, 3.7), (x, 1.0), (x, -0.25), (7.5, x)][i / n];
        let (a, b) = operands(x[i], y[i % n]);
        assert!(same(got[i], a % b), "{a:e} % {b:e} = {:e}, not {:e}", got[i], a % b);
        let (a, b) = operands(xs[i].into(), ys[i % n].into());
        let (a, b) = (a as f32, b as f32);
        assert!(same(got_s[i].into(), (a % b).into()), "{a:e} % {b:e} = {:e}, not {:e}", got_s[i], a % b);
    }
    Ok(())
}

/// Equal bits, or both NaN.
fn same(got: f64, wanted: f64) -> bool {
    got.to_bits() == wanted.to_bits() || got.is_nan() && wanted.is_nan()
}

fn zeros() -> Result<DeviceBuffer<u32>> {
    Ok(DeviceBuffer::from_slice(&[0; 8])?)
}

#[test]
fn who_sees_the_flag_sees_the_message() -> Result<()> {
    let Some(gpu) = load_plain()? else { return Ok(()) };
    let (module, stream) = (&gpu.module, &gpu.stream);
    let (data, flag, seen) = (zeros()?, zeros()?, zeros()?);
    // SAFETY: a word, a flag and a word for each block, zero all.
    unsafe {
        launch!(module.message<<<4, 1, 0, stream>>>(data.as_device_ptr(), flag.as_device_ptr(), seen.as_device_ptr()))?
    };
    stream.synchronize()?;
    assert_eq!(seen.as_host_vec()?[..4], [42; 4], "a block saw the flag and not the message");
    Ok(())
}

#[test]
fn the_last_block_sees_the_parts_of_all() -> Result<()> {
    let Some(gpu) = load_plain()? else { return Ok(()) };
    let (module, stream) = (&gpu.module, &gpu.stream);
    let (parts, count, sum) = (zeros()?, zeros()?, zeros()?);
    // SAFETY: a part for each block, a count and a sum.
    unsafe {
        launch!(module.last_block<<<8, 1, 0, stream>>>(parts.as_device_ptr(), count.as_device_ptr(), sum.as_device_ptr()))?
    };
    stream.synchronize()?;
    assert_eq!(sum.as_host_vec()?[0], 36);
    Ok(())
}

#[test]
fn of_two_blocks_one_sees_the_others_write() -> Result<()> {
    let Some(gpu) = load_plain()? else { return Ok(()) };
    let (module, stream) = (&gpu.module, &gpu.stream);
    let (flags, seen) = (zeros()?, zeros()?);
    // SAFETY: two flags and a word for each block.
    unsafe {
        launch!(module.store_buffering<<<2, 1, 0, stream>>>(flags.as_device_ptr(), seen.as_device_ptr()))?
    };
    stream.synchronize()?;
    assert!(seen.as_host_vec()?[..2].contains(&1), "neither block saw the other's write");
    Ok(())
}

#[test]
fn texts_are_compared_and_moved_as_on_the_host() -> Result<()> {
    let Some(gpu) = load_plain()? else { return Ok(()) };
    let (module, stream) = (&gpu.module, &gpu.stream);
    for (a, b) in [("same", "same"), ("same", "some"), ("some", "same"), ("longer", "long"), ("", "a")] {
        // a buffer has one element at least
        let (bytes_a, bytes_b) = (format!("{a}.").into_bytes(), format!("{b}.").into_bytes());
        let (device_a, device_b) = (DeviceBuffer::from_slice(&bytes_a)?, DeviceBuffer::from_slice(&bytes_b)?);
        let order = DeviceBuffer::from_slice(&[7i32; 2])?;
        let moved = DeviceBuffer::from_slice(&[0u8, 1, 2, 3, 4, 5, 6, 7])?;
        // SAFETY: two slices, two words and eight bytes.
        unsafe {
            launch!(module.texts<<<1, 1, 0, stream>>>(
                device_a.as_device_ptr(), a.len(), device_b.as_device_ptr(), b.len(), order.as_device_ptr(),
                moved.as_device_ptr()
            ))?;
        }
        stream.synchronize()?;
        assert_eq!(order.as_host_vec()?, [i32::from(a == b), a.cmp(b) as i32], "{a:?} and {b:?}");
        let mut wanted = [0u8, 1, 2, 3, 4, 5, 6, 7];
        wanted.copy_within(0..5, a.len().min(3));
        assert_eq!(moved.as_host_vec()?, wanted);
    }
    Ok(())
}
