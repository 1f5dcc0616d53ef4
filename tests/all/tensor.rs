//! Tensors that are generated and printed, and the devices that they are on.

use crate::common;
use crate::common::process::in_own_process;
use common::cuda_device;
use half::f16;
use pascaline::cuda::Graph;
use pascaline::{DType, Device, Error, Result, Tensor, TensorMut, ops};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use std::f64::consts::TAU;

fn devices() -> [Device; 2] {
    [Device::Cpu, cuda_device()]
}

#[test]
fn one_value() -> Result<()> {
    for device in devices() {
        let x = Tensor::full(-1.5f32, [3, 5], &device)?;
        assert_eq!((x.dims(), x.to_vec::<f32>()?), (&[3, 5][..], vec![-1.5; 15]));
        let tenth = f16::from_f32(0.1);
        assert_eq!(Tensor::full(tenth, [7], &device)?.to_vec::<f16>()?, [tenth; 7]);
        assert_eq!(Tensor::full(0x0102_0304u32, [], &device)?.to_vec::<u32>()?, [0x0102_0304]);
        assert_eq!(Tensor::full(1.0f32, [4, 0], &device)?.to_vec::<f32>()?, [0.0; 0]);
        assert_eq!(Tensor::ones([2], DType::F32, &device)?.to_vec::<f32>()?, [1.0; 2]);
        assert_eq!(Tensor::ones([2], DType::F16, &device)?.to_vec::<f16>()?, [f16::ONE; 2]);
        assert_eq!(Tensor::ones([2], DType::U32, &device)?.to_vec::<u32>()?, [1; 2]);
    }
    let huge = Tensor::full(1u32, [usize::MAX, 2], &Device::Cpu);
    assert!(matches!(huge, Err(Error::TooLarge { .. })), "{huge:?}");
    Ok(())
}

#[test]
fn ranges() -> Result<()> {
    for device in devices() {
        assert_eq!(Tensor::arange(2u32, 5, &device)?.to_vec::<u32>()?, [2, 3, 4]);
        assert_eq!(Tensor::arange(-1.5f32, 1.0, &device)?.to_vec::<f32>()?, [-1.5, -0.5, 0.5]);
        let x = Tensor::arange(f16::from_f32(2047.0), f16::from_f32(2052.0), &device)?;
        let x: Vec<f32> = x.to_vec::<f16>()?.into_iter().map(f16::to_f32).collect();
        assert_eq!(x, [2047.0, 2048.0, 2048.0, 2050.0, 2052.0], "ties are rounded to even");
    }
    for (start, end) in [(5.0f32, 5.0), (5.0, -5.0)] {
        assert_eq!(Tensor::arange(start, end, &Device::Cpu)?.dims(), [0]);
    }
    let last = Tensor::arange(u32::MAX - 1, u32::MAX, &Device::Cpu)?;
    assert_eq!(last.to_vec::<u32>()?, [u32::MAX - 1]);
    let error = |start: f32, end: f32| Tensor::arange(start, end, &Device::Cpu).unwrap_err();
    assert!(matches!(error(0.0, f32::NAN), Error::Unsupported { op: "arange", argument: "end", .. }));
    assert!(matches!(error(f32::NEG_INFINITY, 0.0), Error::Unsupported { argument: "start", .. }));
    assert!(matches!(error(f32::MIN, f32::MAX), Error::TooLarge { .. }));
    Ok(())
}

/// The numbers are part of the interface: the expected ones were computed by another implementation of ChaCha8.
#[test]
fn random_numbers_stay_the_same() -> Result<()> {
    let seed_7 = [0.946_982_3f32, 1.672_162_5, -0.121_935_44, -0.828_433_04, -0.639_855_15];
    for device in devices() {
        assert_eq!(Tensor::randn([5], DType::F32, 7, &device)?.to_vec::<f32>()?, seed_7);
        let halves = Tensor::randn([5], DType::F16, 7, &device)?.to_vec::<f16>()?;
        assert_eq!(halves, seed_7.map(f16::from_f32));
    }
    let error = |shape: &[usize], dtype| Tensor::randn(shape, dtype, 7, &Device::Cpu).unwrap_err();
    assert!(matches!(error(&[5], DType::U32), Error::DType { op: "randn", argument: "dtype", .. }));
    assert!(matches!(error(&[usize::MAX], DType::F32), Error::TooLarge { .. }));
    assert_eq!(Tensor::randn([0, 3], DType::F32, 7, &Device::Cpu)?.to_vec::<f32>()?, [0.0; 0]);
    Ok(())
}

/// More than two tasks' worth, against one generator that goes on from pair to pair.
#[test]
fn random_numbers_do_not_depend_on_threads() -> Result<()> {
    let (n, seed) = (40_001, u64::MAX);
    let found = Tensor::randn([n], DType::F32, seed, &Device::Cpu)?.to_vec::<f32>()?;
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut uniform = || (rng.next_u64() >> 11) as f64 / 2f64.powi(53);
    let mut expected = Vec::new();
    while expected.len() < n {
        let (u, v) = (uniform() + 2f64.powi(-53), uniform());
        let radius = (-2.0 * u.ln()).sqrt();
        expected.extend([(radius * (TAU * v).cos()) as f32, (radius * (TAU * v).sin()) as f32]);
    }
    assert!(found == expected[..n]);
    let other = Tensor::randn([n], DType::F32, 0, &Device::Cpu)?.to_vec::<f32>()?;
    assert!(found.iter().zip(&other).all(|(a, b)| a != b), "another seed gives other numbers");
    Ok(())
}

#[test]
fn random_numbers_are_normal() -> Result<()> {
    let x = Tensor::randn([1 << 18], DType::F32, 3, &Device::Cpu)?.to_vec::<f32>()?;
    let n = x.len() as f64;
    let moment = |power| x.iter().map(|&x| f64::from(x).powi(power)).sum::<f64>() / n;
    // four standard errors: the k-th moment's variance is (m_2k − m_k²) / n, with m_2, m_4, m_6, m_8 = 1, 3, 15, 105
    for (power, mean, variance) in [(1, 0.0, 1.0), (2, 1.0, 2.0), (3, 0.0, 15.0), (4, 3.0, 96.0)] {
        let (found, allowed) = (moment(power), 4.0 * f64::sqrt(variance / n));
        assert!((found - mean).abs() <= allowed, "moment {power} is {found}, not {mean} ± {allowed}");
    }
    // not correlated within a pair, nor between neighbouring pairs
    for distance in [1, 2] {
        let product: f64 = x.iter().zip(&x[distance..]).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
        assert!((product / n).abs() <= 4.0 / n.sqrt(), "at distance {distance}: {}", product / n);
    }
    Ok(())
}

/// The values without the last line, which is checked here.
fn values(x: &Tensor) -> String {
    let text = x.to_string();
    let (values, last) = text.rsplit_once('\n').expect("two lines or more");
    assert_eq!(last, format!("Tensor {} {:?} on {}", x.dtype(), x.dims(), x.device()));
    values.to_owned()
}

#[test]
fn numbers_are_printed_alike() -> Result<()> {
    let line = |x: &[f32]| Tensor::from_slice(x, [x.len()], &Device::Cpu).map(|x| values(&x));
    assert_eq!(line(&[1.0, 2.0, -3.0])?, "[ 1.0,  2.0, -3.0]");
    assert_eq!(line(&[0.5, 0.25, 100.0])?, "[  0.50,   0.25, 100.00]");
    assert_eq!(line(&[1.0 / 3.0, 2.0])?, "[0.3333, 2.0000]");
    assert_eq!(line(&[1e-4, 999_999.0])?, "[     0.0001, 999999.0000]");
    assert_eq!(line(&[1e-5, 1.0, 0.0])?, "[1.0000e-5,  1.0000e0,  0.0000e0]");
    assert_eq!(line(&[1e6, -2.5])?, "[ 1.0000e6, -2.5000e0]");
    assert_eq!(line(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1.5])?, "[ NaN,  inf, -inf,  1.5]");
    assert_eq!(line(&[f32::NAN])?, "[NaN]");
    assert_eq!(line(&[])?, "[]");
    let x = Tensor::from_slice(&[1.0f32, 0.12345], [2], &Device::Cpu)?;
    assert_eq!(format!("{x:.2}"), "[1.00, 0.12]\nTensor f32 [2] on cpu");
    assert_eq!(values(&Tensor::full(2.5f32, [], &Device::Cpu)?), "2.5");
    assert_eq!(values(&Tensor::from_slice(&[7u32, 1234], [2], &Device::Cpu)?), "[   7, 1234]");
    assert_eq!(values(&Tensor::full(f16::from_f32(1.0 / 3.0), [1], &Device::Cpu)?), "[0.3333]");
    assert_eq!(values(&Tensor::zeros([1_000_000, 0], DType::F32, &Device::Cpu)?), "[]");
    Ok(())
}

#[test]
fn brackets_follow_the_dimensions() -> Result<()> {
    for device in devices() {
        let x = Tensor::arange(0u32, 12, &device)?.reshape([2, 3, 2])?;
        assert_eq!(
            values(&x),
            "[[[ 0,  1],\n  [ 2,  3],\n  [ 4,  5]],\n\n [[ 6,  7],\n  [ 8,  9],\n  [10, 11]]]"
        );
        let view = x.narrow(0, 1, 1)?.swap_dims(1, 2)?;
        assert_eq!(values(&view), "[[[ 6,  8, 10],\n  [ 7,  9, 11]]]");
    }
    // a long row is broken where the line ends, under its first number
    let row = Tensor::arange(100u32, 150, &Device::Cpu)?.reshape([1, 50])?;
    let text = values(&row);
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 4);
    assert!(lines.iter().all(|line| line.len() <= 80), "{text}");
    assert!(lines[0].starts_with("[[100, 101,") && lines[0].ends_with("114,"), "{text}");
    assert!(lines[1].starts_with("  115,") && lines[3].ends_with("149]]"), "{text}");
    Ok(())
}

#[test]
fn large_tensors_are_elided() -> Result<()> {
    for device in devices() {
        let line = Tensor::arange(0u32, 1001, &device)?;
        assert_eq!(values(&line), "[   0,    1,    2, ...,  998,  999, 1000]");
        let x = Tensor::arange(0u32, 1400, &device)?.reshape([100, 14])?;
        let expected = "[[   0,    1,    2, ...,   11,   12,   13],
 [  14,   15,   16, ...,   25,   26,   27],
 [  28,   29,   30, ...,   39,   40,   41],
 ...,
 [1358, 1359, 1360, ..., 1369, 1370, 1371],
 [1372, 1373, 1374, ..., 1383, 1384, 1385],
 [1386, 1387, 1388, ..., 1397, 1398, 1399]]";
        assert_eq!(values(&x), expected);
        // a view, one dimension of which is short and stays whole
        let view = Tensor::arange(0u32, 4000, &device)?.reshape([2, 1000, 2])?.swap_dims(0, 1)?;
        let text = values(&view);
        assert!(text.starts_with("[[[   0,    1],\n  [2000, 2001]],\n\n [[   2,"), "{text}");
        assert!(text.contains("\n\n ...,\n\n [[1994,") && text.ends_with("[3998, 3999]]]"), "{text}");
    }
    let all = values(&Tensor::arange(0u32, 1000, &Device::Cpu)?);
    assert!(!all.contains("...") && all.contains(" 500,"), "a thousand are printed");
    Ok(())
}

/// Printing inside a capture must neither end it nor add to the graph.
#[test]
fn nothing_is_printed_from_a_capture() -> Result<()> {
    in_own_process!(Ok(()));
    let Device::Cuda(device) = cuda_device() else { panic!("a CUDA device") };
    let x = Tensor::zeros([2000], DType::F32, &Device::Cuda(device.clone()))?;
    let mut text = String::new();
    let (graph, _y) = Graph::capture(&device, || {
        text = x.to_string();
        ops::scale(&x, 2.0)
    })?;
    assert_eq!(graph.nodes(), 1, "the launch of scale");
    assert!(text.starts_with("(the values can't be read: ") && text.ends_with(&format!("\n{x:?}")), "{text}");
    graph.launch()?;
    device.synchronize()?;
    assert_eq!(values(&x), "[0.0, 0.0, 0.0, ..., 0.0, 0.0, 0.0]");
    Ok(())
}

#[test]
fn devices_are_equal_by_kind_and_number() -> Result<()> {
    let [cpu, gpu] = devices();
    assert_eq!(cpu, Device::Cpu);
    assert_eq!(gpu, gpu.clone());
    assert_ne!(cpu, gpu);
    let Device::Cuda(device) = &gpu else { panic!("a CUDA device") };
    let other_stream = Device::Cuda(device.with_new_stream()?);
    assert!(gpu == other_stream && !gpu.same(&other_stream), "equal, but not on the same stream");
    assert_eq!(Tensor::zeros([1], DType::F32, &gpu)?.device(), gpu);
    Ok(())
}

/// Kernels that store several elements at once need an aligned output. Every device gives the same verdict, before anything runs.
#[test]
fn outputs_that_stores_do_not_reach_are_refused_alike() -> Result<()> {
    use pascaline::float16::Overflow;
    use pascaline::quant::Format;
    let within = |device: &Device, dtype, offset, op: &dyn Fn(TensorMut) -> Result<()>| {
        let mut room = Tensor::zeros([24], dtype, device)?;
        op(room.view_mut()?.narrow(0, offset, 8)?.reshape([2, 4])?)?;
        device.synchronize()
    };
    let x = |device: &Device| Tensor::arange(0.0f32, 8.0, device)?.reshape([2, 4]);
    let ids = |device: &Device| Tensor::from_slice(&[1u32, 0], [2], device);
    type Op<'a> = &'a dyn Fn(&Device, DType, usize) -> Result<()>;
    let ops: [(&str, Op); 4] = [
        ("dequantize", &|device, dtype, offset| {
            let w = ops::quantize(&x(device)?, Format::Q8_0)?;
            within(device, dtype, offset, &|y| ops::dequantize_into(y, &w))
        }),
        ("quant_embedding", &|device, dtype, offset| {
            let w = ops::quantize(&x(device)?, Format::Q8_0)?;
            within(device, dtype, offset, &|y| ops::quant_embedding_into(y, &w, &ids(device)?))
        }),
        ("float16_decode", &|device, _, offset| {
            let codes = ops::float16_encode(&x(device)?, 5, Overflow::Infinity)?;
            within(device, DType::F32, offset, &|y| ops::float16_decode_into(y, &codes))
        }),
        ("fake_quantize_scaled_backward", &|device, _, offset| {
            let (x, scales) = (x(device)?, Tensor::ones([2, 1], DType::F32, device)?);
            let mut dscales = scales.zeros_like()?;
            let gradient = dscales.view_mut()?;
            let gradient = std::cell::Cell::new(Some(gradient));
            within(device, DType::F32, offset, &|dx| {
                let outputs = [dx, gradient.take().expect("it is called once")];
                ops::fake_quantize_scaled_backward_into(outputs, &x, &x, &scales, Format::Q8_0)
            })
        }),
    ];
    for (name, run) in ops {
        for dtype in [DType::F32, DType::F16] {
            for offset in 0..=8 {
                let [cpu, gpu] = devices().map(|device| run(&device, dtype, offset));
                assert_eq!(cpu, gpu, "{name} {dtype} at {offset}");
                match offset.is_multiple_of(4) {
                    true => assert_eq!(cpu, Ok(()), "{name} {dtype} at {offset}"),
                    false => assert!(
                        matches!(&cpu, Err(Error::Layout { op, .. }) if *op == name),
                        "{name} at {offset}: {cpu:?}"
                    ),
                }
            }
        }
    }
    Ok(())
}

/// A view without elements may be narrowed anywhere, and is an argument like any other.
#[test]
fn views_without_elements_are_arguments() -> Result<()> {
    for device in devices() {
        for dtype in [DType::F32, DType::F16] {
            let x = Tensor::zeros([4, 0], dtype, &device)?.narrow(0, 3, 1)?;
            assert_eq!(ops::softmax(&x)?.dims(), [1, 0]);
            assert_eq!(ops::cast(&ops::sum(&x)?, DType::F32)?.to_vec::<f32>()?, [0.0]);
            assert_eq!(ops::matmul(&x, &x.swap_dims(0, 1)?)?.dims(), [1, 1]);
            assert_eq!(ops::transpose(&ops::scale(&x, 2.0)?)?.dims(), [0, 1]);
            assert_eq!(ops::column_sum(&x)?.dims(), [0]);
            let x = Tensor::zeros([4, 6], dtype, &device)?.narrow(0, 2, 2)?.narrow(1, 6, 0)?;
            assert_eq!(ops::add(&x, &x)?.dims(), [2, 0]);
            assert_eq!(ops::cat(&[&x, &x], 0)?.dims(), [4, 0]);
            let mut y = Tensor::zeros([4, 0], dtype, &device)?;
            ops::copy_into(y.view_mut()?.narrow(0, 2, 2)?, &x)?;
        }
    }
    Ok(())
}

/// A dimension of one entry may have any stride, and a matrix of one column is contiguous all the same.
#[test]
fn a_weight_of_one_column_has_norm_and_activation() -> Result<()> {
    for device in devices() {
        let w = Tensor::arange(0.0f32, 34.0, &device)?.reshape([1, 34])?.narrow(1, 1, 31)?.swap_dims(0, 1)?;
        assert!(w.is_contiguous() && w.strides() == [1, 34]);
        let x = Tensor::from_slice(&[-2.0f32], [1, 1], &device)?;
        let norm = Tensor::from_slice(&[3.0f32], [1], &device)?;
        let epilogue = ops::Epilogue { activation: ops::Activation::Silu, ..ops::Epilogue::default() };
        let y = ops::linear(&x, &w, Some((&norm, 0.0)), &epilogue)?.to_vec::<f32>()?;
        for (i, &y) in y.iter().enumerate() {
            let product = -3.0 * (i + 1) as f32; // the norm of one value is its sign
            let wanted = product / (1.0 + (-product).exp());
            assert!((y - wanted).abs() < 1e-5, "{device} {i}: {y} {wanted}");
        }
    }
    Ok(())
}
