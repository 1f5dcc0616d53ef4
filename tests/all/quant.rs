//! Properties of quantising that the case table does not check: the published errors, the same bits on CPU and GPU, GGUF's bytes, and
//! typed errors for what can't be quantised.

use crate::common;
use pascaline::ops::{Activation, Epilogue};
use pascaline::quant::{ErrorReport, FORMATS, Format, QuantRows, QuantTensor, ScaleChoice, block_len, name};
use pascaline::{DType, Device, Error, Result, Tensor, cuda, ops, quant};
use pascaline_testing::data;
use pascaline_testing::quant::read_gguf;

/// The data of ggml's quantisation test (`generate_data` in its `test-quantize-fns`): 0.1 + 2·cos(i + offset).
fn ggml_data(offset: f32) -> Vec<f32> {
    (0..4096).map(|i| 0.1 + 2.0 * (i as f32 + offset).cos()).collect()
}

/// Its measure: √(Σ (x − y)²) / n.
fn ggml_error(x: &[f32], y: &[f32]) -> f64 {
    let sum: f64 = x.iter().zip(y).map(|(x, y)| f64::from(x - y).powi(2)).sum();
    sum.sqrt() / x.len() as f64
}

fn round_trip(x: &[f32], cols: usize, format: Format) -> Result<Vec<f32>> {
    let x = Tensor::from_slice(x, [x.len() / cols, cols], &Device::Cpu)?;
    ops::fake_quantize(&x, format)?.to_vec()
}

/// ggml's published figures for this data are 0.000092 (Q8_0) and 0.001143 (Q4_0); its limit for Q4_K is 0.002, and it
/// must beat Q4_0 here, whose bits it has. All are rounded to six places. Its limits for Q3_K and Q2_K are 0.004 and 0.0075.
#[test]
fn errors_are_at_most_the_published_ones() -> Result<()> {
    let data = ggml_data(0.0);
    let error = |format| round_trip(&data, 4096, format).map(|y| ggml_error(&data, &y));
    let (q8_0, q4_0, q4_k) = (error(Format::Q8_0)?, error(Format::Q4_0)?, error(Format::Q4K)?);
    common::say(&format!("ggml's measure: Q8_0 {q8_0:.6}, Q4_0 {q4_0:.6}, Q4_K {q4_k:.6}"));
    assert!(q8_0 < 0.0000925 && q4_0 < 0.0011435 && q4_k < q4_0, "{q8_0} {q4_0} {q4_k}");
    let (q3_k, q2_k) = (error(Format::Q3K)?, error(Format::Q2K)?);
    common::say(&format!("Q3_K {q3_k:.6}, Q2_K {q2_k:.6}"));
    assert!(q3_k < 0.004 && q2_k < 0.0075, "{q3_k} {q2_k}");
    Ok(())
}

/// ggml's limit for its dot-product test is 0.02 for |Σ − Σ'| / n, with offsets 0 and 1, and 0.04 for Q2_K.
#[test]
fn dot_products_are_within_ggmls_limit() -> Result<()> {
    let (a, b) = (ggml_data(0.0), ggml_data(1.0));
    let exact: f64 = a.iter().zip(&b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
    let x = Tensor::from_slice(&b, [1, 4096], &Device::Cpu)?;
    for format in FORMATS {
        let w = ops::quantize(&Tensor::from_slice(&a, [1, 4096], &Device::Cpu)?, format)?;
        let got = ops::quant_matmul(&x, &w, &ops::Epilogue::default())?.to_vec::<f32>()?[0];
        let error = (f64::from(got) - exact).abs() / 4096.0;
        assert!(error < if format == Format::Q2K { 0.04 } else { 0.02 }, "{}: {error}", name(format));
    }
    Ok(())
}

/// Rows that are hard to quantise: normal, outliers, tiny (subnormal scales), huge, zeros, NaN, infinity.
fn hard_rows(n: usize, cols: usize) -> Vec<f32> {
    let mut values = data::outliers("hard", "x", [n, cols], DType::F32).values;
    for (r, row) in values.chunks_mut(cols).enumerate() {
        match r {
            1 => row.fill(0.0),
            2 => row.iter_mut().for_each(|x| *x *= 1e-38),
            3 => row.iter_mut().for_each(|x| *x *= 1e8),
            4 => row[cols / 2] = f32::NAN,
            5 => row[cols - 1] = f32::INFINITY,
            6 => row.iter_mut().step_by(2).for_each(|x| *x = -x.abs()),
            _ => {}
        }
    }
    values
}

#[test]
fn the_gpu_gives_the_same_bits() -> Result<()> {
    let device = common::cuda_device();
    for (n, cols) in [(9, 256), (8, 1024), (7, 96), (10, 41), (33, 300), (96, 512)] {
        let x = Tensor::from_slice(&hard_rows(n, cols), [n, cols], &Device::Cpu)?;
        let on_gpu = x.to_device(&device)?;
        for format in FORMATS {
            let (want, got) = (ops::quantize(&x, format)?, ops::quantize(&on_gpu, format)?);
            let id = format!("{} [{n}, {cols}]", name(format));
            // NaNs as scales may differ in their payload
            let bits = |values: Vec<f32>| -> Vec<u32> {
                values.iter().map(|x| if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() }).collect()
            };
            let (want_values, got_values) =
                (ops::dequantize(&want, DType::F32)?.to_vec()?, ops::dequantize(&got, DType::F32)?.to_vec()?);
            assert_eq!(bits(want_values), bits(got_values), "{id}");
            if cols % 256 == 0 && format != Format::I8 {
                assert!(want.to_gguf_bytes()? == got.to_gguf_bytes()?, "{id}: blocks differ");
            }
        }
        for rows in [x.clone(), on_half(&x)?] {
            let (want, got) = (ops::quantize_rows(&rows)?, ops::quantize_rows(&rows.to_device(&device)?)?);
            same_rows(&want, &got, &format!("rows [{n}, {cols}]"))?;
        }
    }
    Ok(())
}

fn same_rows(want: &QuantRows, got: &QuantRows, id: &str) -> Result<()> {
    let ((want_q, want_s), (got_q, got_s)) = (want.to_vecs()?, got.to_vecs()?);
    assert_eq!(want_q, got_q, "{id}");
    let same = |(a, b): (&(f32, i32), &(f32, i32))| {
        a.1 == b.1 && (a.0.to_bits() == b.0.to_bits() || a.0.is_nan() && b.0.is_nan())
    };
    assert!(want_s.len() == got_s.len() && want_s.iter().zip(&got_s).all(same), "{id}: scales differ");
    Ok(())
}

/// One row, normalised and quantised by the kernel of its product, has the bits that it has among others, and so have two; also where
/// gates and ups are multiplied.
#[test]
fn a_few_normed_rows_are_those_among_others() -> Result<()> {
    let device = common::cuda_device();
    let bits = |values: Vec<f32>| -> Vec<Option<u32>> {
        values.into_iter().map(|x| (!x.is_nan()).then_some(x.to_bits())).collect()
    };
    for (m, cols) in [(6, 100), (7, 1028), (3, 2048), (2, 5120), (7, 8192)] {
        let x = Tensor::from_slice(&hard_rows(m, cols), [m, cols], &device)?;
        let weight = Tensor::randn([cols], DType::F32, 3, &device)?;
        let rows = ops::rms_norm_rows(&x, &weight, 1e-6)?;
        for &format in common::extent::first_of(2, &FORMATS, "formats of products with a norm") {
            let w = ops::quantize(&Tensor::randn([70, cols], DType::F32, 4, &device)?, format)?;
            let mut products = Tensor::uninitialized([m, 70], DType::F32, &device)?;
            ops::quant_matmul_rows_into(products.view_mut()?, &rows, &w, &Epilogue::default())?;
            for (activation, kernel) in
                [(Activation::Identity, "quant_normed1"), (Activation::SwiGlu, "quant_gated1")]
            {
                let want = ops::activate(&products, None, activation)?;
                let epilogue = Epilogue { activation, ..Epilogue::default() };
                for few in [1, 2] {
                    for row in (0..=m - few).step_by(few) {
                        let apart = x.narrow(0, row, few)?;
                        let (got, launched) =
                            cuda::trace(|| ops::quant_linear(&apart, &w, Some((&weight, 1e-6)), &epilogue));
                        if few == 1 {
                            assert_eq!(launched, [format!("{kernel}_{}", name(format))]);
                        }
                        let (want, got) = (want.narrow(0, row, few)?.to_vec()?, got?.to_vec()?);
                        let id = format!("{} {activation:?} {row}, {few} of [{m}, {cols}]", name(format));
                        assert_eq!(bits(want), bits(got), "{id}");
                    }
                }
            }
        }
    }
    Ok(())
}

/// One pass gives the bits that two do.
#[test]
fn fused_rows_are_those_of_separate_passes() -> Result<()> {
    let device = common::cuda_device();
    // enough for tiles of 128 rows on any GPU; ragged in every direction; with 44 rows after the last whole tile
    for (m, launches) in [(230, 1), (300, 4)] {
        let (cols, k) = (4001, 96);
        let x = ops::quantize_rows(&Tensor::randn([m, k], DType::F32, 4, &device)?)?;
        let w = Tensor::randn([2 * cols, k], DType::F32, 5, &device)?;
        for &format in common::extent::first_of(2, &FORMATS, "formats of gated products") {
            let w = ops::quantize(&w, format)?;
            let mut product = Tensor::uninitialized([m, 2 * cols], DType::F32, &device)?;
            ops::quant_matmul_rows_into(product.view_mut()?, &x, &w, &Epilogue::default())?;
            let want = ops::quantize_rows(&ops::activate(&product, None, Activation::SwiGlu)?)?;
            let (got, launched) = cuda::trace(|| ops::quant_gated_rows(&x, &w));
            same_rows(&want, &got?, &format!("{} {m}", name(format)))?;
            assert_eq!(
                (launched[0], launched.len()),
                (&*format!("quant_gated128_{}", name(format)), launches)
            );
        }
    }
    Ok(())
}

/// One row beside a low-rank change is one launch on a GPU, and its words are zeros again for the next. Operands that do not fit are refused.
#[test]
fn a_change_beside_a_row_is_one_launch() -> Result<()> {
    let device = common::cuda_device();
    let (n, k, rank) = (70, 96, 5);
    let randn = |shape: [usize; 2], seed| Tensor::randn(shape, DType::F32, seed, &device);
    let (x, a, b) = (randn([1, k], 1)?, randn([rank, k], 2)?, randn([n, rank], 3)?);
    let plain = Epilogue::default();
    for format in FORMATS {
        let w = ops::quantize(&randn([n, k], 4)?, format)?;
        let (first, launched) = cuda::trace(|| ops::quant_lora(&x, &w, None, [&a, &b], &plain));
        assert_eq!(launched, [&*format!("quant_lora_{}", name(format))]);
        let again = ops::quant_lora(&x, &w, None, [&a, &b], &plain)?;
        assert_eq!(first?.to_vec::<f32>()?, again.to_vec::<f32>()?);
    }
    let w = ops::quantize(&randn([n, k], 4)?, Format::Q4_0)?;
    let refused = |x: &Tensor, a: &Tensor, b: &Tensor| ops::quant_lora(x, &w, None, [a, b], &plain).map(drop);
    let narrow = randn([rank, k - 32], 1)?;
    assert!(matches!(refused(&x, &narrow, &b), Err(Error::Shape { argument: "a", .. })));
    assert!(matches!(refused(&x, &a, &randn([n, 6], 1)?), Err(Error::Shape { argument: "b", .. })));
    assert!(matches!(refused(&randn([1, k - 32], 1)?, &a, &b), Err(Error::Shape { argument: "x", .. })));
    let half = Tensor::zeros([rank, k], DType::F16, &device)?;
    assert!(matches!(refused(&x, &half, &b), Err(Error::DType { argument: "a", .. })));
    let across = randn([rank, n], 1)?.swap_dims(0, 1)?;
    assert!(matches!(refused(&x, &a, &across), Err(Error::Layout { argument: "b", .. })));
    let elsewhere = a.to_device(&Device::Cpu)?;
    assert!(matches!(refused(&x, &elsewhere, &b), Err(Error::DeviceMismatch { argument: "a", .. })));
    Ok(())
}

/// By hand: of each 32 values the largest becomes 127, and rows are padded to 256 values.
#[test]
fn activations_in_eight_bits() -> Result<()> {
    let mut x = [0.0; 40];
    x[..3].copy_from_slice(&[127.0, -3.0, 0.4]);
    x[32..].fill(-254.0);
    let (quants, scales) = ops::quantize_rows(&Tensor::from_slice(&x, [1, 40], &Device::Cpu)?)?.to_vecs()?;
    assert_eq!((quants.len(), &quants[..3], &quants[32..40]), (256, &[127, -3, 0][..], &[-127; 8][..]));
    assert!(quants[3..32].iter().chain(&quants[40..]).all(|&quant| quant == 0));
    let sums: Vec<i32> = scales.iter().map(|(_, sum)| *sum).collect();
    assert_eq!(sums, [124, -8 * 127, 0, 0, 0, 0, 0, 0]);
    assert!((scales[0].0 - 1.0).abs() < 1e-6 && (scales[1].0 - 2.0).abs() < 1e-6, "{scales:?}");
    for (shape, values) in [([0, 40], 0), ([2, 0], 0)] {
        let (quants, scales) =
            ops::quantize_rows(&Tensor::zeros(shape, DType::F32, &Device::Cpu)?)?.to_vecs()?;
        assert_eq!((quants.len(), scales.len()), (values, values));
    }
    Ok(())
}

fn on_half(x: &Tensor) -> Result<Tensor> {
    let values: Vec<half::f16> = x.to_vec::<f32>()?.into_iter().map(half::f16::from_f32).collect();
    Tensor::from_slice(&values, x.shape(), &Device::Cpu)
}

#[test]
fn nan_stays_nan() -> Result<()> {
    let mut values = vec![1.0f32; 2 * 256];
    values[256 + 7] = f32::NAN;
    for format in FORMATS {
        let y = round_trip(&values, 256, format)?;
        assert!(y[256 + 7].is_nan() && y[0].is_finite(), "{}", name(format));
    }
    Ok(())
}

/// Bytes in which every finite half, and every quant, occurs.
fn gguf_bytes(format: Format, blocks: usize) -> Vec<u8> {
    let file = format.descriptor().file.as_ref().expect("a format of files");
    let (size, scales) = (file.bytes, file.scales);
    let mut bytes: Vec<u8> = (0..blocks * size).map(|i| (i * i / 7 + i * 31) as u8).collect();
    for (b, block) in bytes.chunks_exact_mut(size).enumerate() {
        for (s, &at) in scales.iter().enumerate() {
            let half = half::f16::from_f32((b + 1) as f32 * if s == 0 { 0.01 } else { -0.003 });
            block[at..at + 2].copy_from_slice(&half.to_le_bytes());
        }
    }
    bytes
}

#[test]
fn gguf_bytes_there_and_back_and_their_values() -> Result<()> {
    let device = common::cuda_device();
    for format in FORMATS.into_iter().filter(|format| *format != Format::I8) {
        let (n, k) = (3, 512);
        let bytes = gguf_bytes(format, n * k / block_len(format));
        for device in [&Device::Cpu, &device] {
            let w = QuantTensor::from_gguf_bytes(format, [n, k], &bytes, device)?;
            assert!(w.to_gguf_bytes()? == bytes, "{}", name(format));
            let values = ops::dequantize(&w, DType::F32)?.to_vec::<f32>()?;
            for (got, want) in values.iter().zip(read_gguf(&bytes, format)) {
                assert!(
                    (f64::from(*got) - want).abs() <= 1e-7 * want.abs().max(1.0),
                    "{}: {got} {want}",
                    name(format)
                );
            }
        }
    }
    Ok(())
}

/// Blocks as another implementation wrote and read them: see tests/fixtures/gguf_blocks/README.md. One rounding gives the
/// same bits; of formats with a minimum it takes the difference of two rounded products, here it is rounded once.
#[test]
fn the_values_are_those_of_gguf_py() -> Result<()> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/gguf_blocks");
    let device = common::cuda_device();
    for format in FORMATS.into_iter().filter(|format| *format != Format::I8) {
        let file = std::fs::read(folder.join(format!("{}.bin", name(format)))).expect("a fixture");
        let (blocks, values) = file.split_at(file.len() - 512 * 4);
        let want: Vec<f32> =
            values.chunks_exact(4).map(|x| f32::from_le_bytes([x[0], x[1], x[2], x[3]])).collect();
        let largest = want.iter().fold(0f32, |max, x| max.max(x.abs()));
        for device in [&Device::Cpu, &device] {
            let w = QuantTensor::from_gguf_bytes(format, [2, 256], blocks, device)?;
            let got = ops::dequantize(&w, DType::F32)?.to_vec::<f32>()?;
            let tolerance = if format.descriptor().minimum { 4.0 * f32::EPSILON * largest } else { 0.0 };
            for (i, (got, want)) in got.iter().zip(&want).enumerate() {
                assert!((got - want).abs() <= tolerance, "{} {i}: {got} {want}", name(format));
            }
            assert!(w.to_gguf_bytes()? == blocks, "{}", name(format));
        }
    }
    Ok(())
}

#[test]
fn what_does_not_fit_is_a_typed_error() {
    let of = |format, shape: [usize; 2], bytes: usize| {
        QuantTensor::from_gguf_bytes(format, shape, &vec![0; bytes], &Device::Cpu)
    };
    assert!(of(Format::Q8_0, [2, 64], 136).is_ok());
    assert!(matches!(of(Format::Q8_0, [2, 64], 135), Err(Error::Unsupported { argument: "bytes", .. })));
    assert!(matches!(of(Format::Q8_0, [2, 60], 136), Err(Error::Unsupported { argument: "k", .. })));
    for format in FORMATS.into_iter().filter(|format| block_len(*format) == 256) {
        assert!(matches!(of(format, [2, 64], 136), Err(Error::Unsupported { argument: "k", .. })));
    }
    assert!(of(Format::Q6K, [2, 256], 420).is_ok() && of(Format::Q6K, [0, 256], 0).is_ok());
    assert!(matches!(of(Format::Q6K, [2, 256], 421), Err(Error::Unsupported { argument: "bytes", .. })));
    assert!(matches!(of(Format::I8, [2, 64], 136), Err(Error::Unsupported { argument: "format", .. })));
    let values = usize::MAX as u128 * 32;
    let found = of(Format::Q4_0, [usize::MAX, 32], 0);
    assert!(matches!(found, Err(Error::TooLarge { elements, .. }) if elements == values), "{found:?}");
    assert!(matches!(of(Format::Q4_0, [1, usize::MAX], 0), Err(Error::TooLarge { .. })));
    assert!(matches!(of(Format::Q4_0, [1, 0], 0), Err(Error::Shape { .. })));

    let w = ops::quantize(&Tensor::zeros([4, 64], DType::F32, &Device::Cpu).unwrap(), Format::Q4_0).unwrap();
    let x = Tensor::zeros([2, 65], DType::F32, &Device::Cpu).unwrap();
    let plain = ops::Epilogue::default();
    assert!(matches!(ops::quant_matmul(&x, &w, &plain), Err(Error::Shape { argument: "x", .. })));
    let x = Tensor::zeros([2, 64], DType::F32, &Device::Cpu).unwrap();
    let rows = ops::quantize_rows(&x).unwrap();
    let odd =
        ops::quantize(&Tensor::zeros([3, 64], DType::F32, &Device::Cpu).unwrap(), Format::Q4_0).unwrap();
    assert!(matches!(ops::quant_gated_rows(&rows, &odd), Err(Error::Unsupported { argument: "w", .. })));
    let narrow =
        ops::quantize(&Tensor::zeros([4, 32], DType::F32, &Device::Cpu).unwrap(), Format::Q4_0).unwrap();
    assert!(matches!(ops::quant_gated_rows(&rows, &narrow), Err(Error::Shape { argument: "x", .. })));
    for device in [Device::Cpu, common::cuda_device()] {
        let of = |dims: &[usize], dtype| Tensor::zeros(dims, dtype, &device).unwrap();
        let (x, weight) = (of(&[2, 64], DType::F32), of(&[64], DType::F32));
        assert!(matches!(ops::rms_norm_rows(&x, &of(&[63], DType::F32), 0.0), Err(Error::Shape { .. })));
        assert!(matches!(ops::rms_norm_rows(&x, &of(&[64], DType::F16), 0.0), Err(Error::DType { .. })));
        assert!(matches!(
            ops::rms_norm_rows(&x, &weight, -1.0),
            Err(Error::Unsupported { argument: "eps", .. })
        ));
        let gaps = of(&[2, 65], DType::F32).narrow(1, 0, 64).unwrap();
        assert!(matches!(ops::rms_norm_rows(&gaps, &weight, 0.0), Err(Error::Layout { .. })));
        // one row or several, the refusal is the product's own
        let w = ops::quantize(&of(&[4, 64], DType::F32), Format::Q4_0).unwrap();
        for x in [gaps, of(&[64, 2], DType::F32).narrow(1, 0, 1).unwrap().swap_dims(0, 1).unwrap()] {
            let refused = ops::quant_matmul(&x, &w, &plain).map(drop);
            assert!(
                matches!(refused, Err(Error::Layout { op: "quant_matmul", argument: "x", .. })),
                "{device}: {refused:?}"
            );
        }
    }
    let gpu = common::cuda_device();
    let (x_gpu, weight) =
        (x.to_device(&gpu).unwrap(), Tensor::zeros([64], DType::F32, &Device::Cpu).unwrap());
    assert!(matches!(ops::rms_norm_rows(&x_gpu, &weight, 0.0), Err(Error::DeviceMismatch { .. })));
    let rows = ops::quantize_rows(&x_gpu).unwrap();
    assert!(matches!(ops::quant_gated_rows(&rows, &w), Err(Error::DeviceMismatch { argument: "w", .. })));
    let bias = ops::Epilogue { bias: Some(&x), ..plain };
    assert!(matches!(ops::quant_matmul(&x, &w, &bias), Err(Error::Shape { argument: "bias", .. })));
    assert!(ops::quantize(&x.narrow(1, 0, 32).unwrap(), Format::Q8_0).is_err(), "a view with gaps");
}

/// A block of Q4_0 with this scale, read back, by a code of its own.
fn q4_0_block(block: &[f32], scale: f32) -> Vec<f32> {
    let stored = half::f16::from_f32(scale).to_f32();
    block.iter().map(|x| stored * ((x / scale + 8.5).floor().clamp(0.0, 15.0) - 8.0)).collect()
}

fn squared_error(x: &[f32], y: &[f32]) -> f64 {
    x.iter().zip(y).map(|(x, y)| f64::from(x - y).powi(2)).sum()
}

/// `LeastError` has in no block a larger error than the plain scale, and about the error of the best possible scale. The test
/// searches for the best in steps a tenth as large, over a range that extends lower. The difference is due to the number of
/// `CANDIDATES`: in sum at most 2 %.
#[test]
fn the_scale_of_least_error_is_the_best_there_is() -> Result<()> {
    let (n, k) = (16, 256);
    for x in
        [data::normal("choice", "x", [n, k], DType::F32), data::outliers("choice", "y", [n, k], DType::F32)]
    {
        let read_back = |choice| -> Result<Vec<f32>> {
            let w = ops::quantize_with(&x.values, [n, k], Format::Q4_0, choice, &Device::Cpu)?;
            ops::dequantize(&w, DType::F32)?.to_vec()
        };
        let (plain, chosen) = (read_back(ScaleChoice::AbsMax)?, read_back(ScaleChoice::LeastError)?);
        let (mut in_all, mut best_in_all) = (0.0, 0.0);
        let blocks = x.values.chunks(32).zip(plain.chunks(32).zip(chosen.chunks(32)));
        for (block, (plain, chosen)) in blocks {
            let error = squared_error(block, chosen);
            assert!(error <= squared_error(block, plain), "worse than the plain scale");
            let largest = block.iter().fold(0f32, |a, &b| if b.abs() > a.abs() { b } else { a });
            let best = (300..1400)
                .map(|step| squared_error(block, &q4_0_block(block, largest / -8.0 * step as f32 / 1000.0)))
                .fold(f64::INFINITY, f64::min);
            in_all += error;
            best_in_all += best;
        }
        assert!(in_all <= 1.02 * best_in_all, "{in_all} where {best_in_all} is possible");
    }
    Ok(())
}

/// The squared error weighted by the squares, as the search of the formats without minima weighs it.
fn weighted_error(x: &[f32], y: &[f32]) -> f64 {
    x.iter().zip(y).map(|(&x, &y)| f64::from(x).powi(2) * f64::from(x - y).powi(2)).sum()
}

/// The formats whose scales are searched for lose about as much as with the best possible scales. Those of Q6_K, Q3_K and
/// IQ4_XS are whole multiples of their super-block's d, of which all are tried; those of IQ4_NL are not, and 1400 are.
#[test]
fn searched_scales_are_about_the_best_there_are() -> Result<()> {
    let levels =
        [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113].map(|level| level as f32);
    let six_bits: Vec<f32> = (-32..32).map(|level| level as f32).collect();
    let three_bits: Vec<f32> = (-4..4).map(|level| level as f32).collect();
    let (n, k) = (4, 512);
    let x = data::normal("searched", "x", [n, k], DType::F32);
    let (w, x) = (x.to(&Device::Cpu)?, x.values);
    for (format, group, levels, limit) in [
        (Format::Iq4Nl, 32, &levels[..], 1.03),
        (Format::Iq4Xs, 32, &levels[..], 1.04),
        (Format::Q6K, 16, &six_bits[..], 1.1), // rounded to d's multiples after the search
        (Format::Q3K, 16, &three_bits[..], 1.1), // as well
    ] {
        let w = ops::quantize(&w, format)?;
        let (bytes, y) = (w.to_gguf_bytes()?, ops::dequantize(&w, DType::F32)?.to_vec::<f32>()?);
        let file = format.descriptor().file.as_ref().expect("a format of files");
        let d = |i: usize| {
            let at = i / file.block * file.bytes + file.scales[0];
            half::f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
        };
        let (mut in_all, mut best_in_all) = (0.0, 0.0);
        for (i, (x, y)) in x.chunks(group).zip(y.chunks(group)).enumerate() {
            let largest = x.iter().fold(0f32, |a, &b| if b.abs() > a.abs() { b } else { a });
            let scales: Vec<f32> = match format {
                Format::Q6K => (-128..128).map(|scale| d(i * group) * scale as f32).collect(),
                Format::Iq4Xs | Format::Q3K => (-32..32).map(|scale| d(i * group) * scale as f32).collect(),
                _ => (-1400..1400).map(|step| largest / levels[0] * step as f32 / 1000.0).collect(),
            };
            let of = |scale: f32| -> Vec<f32> {
                let distance = |level: f32, x: f32| (level * scale - x).abs();
                let nearest = |&x: &f32| {
                    levels.iter().copied().min_by(|a, b| distance(*a, x).total_cmp(&distance(*b, x))).unwrap()
                        * scale
                };
                x.iter().map(nearest).collect()
            };
            best_in_all +=
                scales.iter().map(|&scale| weighted_error(x, &of(scale))).fold(f64::INFINITY, f64::min);
            in_all += weighted_error(x, y);
        }
        common::say(&format!("{}: {:.4} of the least error", name(format), in_all / best_in_all));
        assert!(in_all <= limit * best_in_all, "{}: {in_all} where {best_in_all} is possible", name(format));
    }
    Ok(())
}

/// More bits lose less, and at the same size the formats that search lose less than Q4_0. Each loses what its descriptor says, at most and
/// about; I8's error grows with the length of a row, so there is one long row.
#[test]
fn formats_by_what_they_lose() -> Result<()> {
    let x = data::normal("formats", "x", [1, 8192], DType::F32).values;
    let error = |format| Ok(ErrorReport::new(&x, &round_trip(&x, x.len(), format)?).relative_rms);
    let order = [
        Format::Q8_0,
        Format::Q6K,
        Format::Q5K,
        Format::Q4K,
        Format::Iq4Nl,
        Format::Iq4Xs,
        Format::Q4_0,
        Format::Mxfp4,
        Format::Q3K,
        Format::Q2K,
    ];
    let errors = order.map(error).into_iter().collect::<Result<Vec<_>>>()?;
    common::say(&format!("relative RMS: {:?}", order.map(name).iter().zip(&errors).collect::<Vec<_>>()));
    assert!(errors[..4].is_sorted(), "{errors:?}");
    assert!(errors[3..6].iter().all(|error| *error <= errors[6]), "{errors:?}");
    assert!(errors[6..].is_sorted(), "{errors:?}");
    for format in FORMATS {
        let (error, most) = (error(format)?, quant::error(format));
        assert!(error <= most && error > 0.7 * most, "{}: {error}, said to be at most {most}", name(format));
    }
    Ok(())
}

#[test]
fn chosen_scales() -> Result<()> {
    let (n, k) = (16, 256);
    let x = data::normal("choice", "x", [n, k], DType::F32).values;
    for format in [Format::I8, Format::Q8_0, Format::Q4_0] {
        let error = |choice| -> Result<ErrorReport> {
            let w = ops::quantize_with(&x, [n, k], format, choice, &Device::Cpu)?;
            Ok(ErrorReport::new(&x, &ops::dequantize(&w, DType::F32)?.to_vec::<f32>()?))
        };
        let (plain, best) = (error(ScaleChoice::AbsMax)?, error(ScaleChoice::LeastError)?);
        let cut = error(ScaleChoice::Percentile(0.9))?;
        assert!(best.relative_rms <= plain.relative_rms, "{}: {best} against {plain}", name(format));
        assert!(cut.max > plain.max, "{}: nothing was cut off", name(format));
        assert_eq!(error(ScaleChoice::Percentile(1.0))?.max, plain.max);
    }
    // scales of I8 are stored in f32, so that a choice among them is the same for values far below f16's range
    let read_back = |x: &[f32]| -> Result<Vec<f32>> {
        let w = ops::quantize_with(x, [n, k], Format::I8, ScaleChoice::LeastError, &Device::Cpu)?;
        ops::dequantize(&w, DType::F32)?.to_vec()
    };
    let by = |factor: f32, x: &[f32]| x.iter().map(|x| x * factor).collect::<Vec<_>>();
    let far = 2f32.powi(-40);
    assert!(by(far, &read_back(&x)?) == read_back(&by(far, &x))?);
    let of = |format, choice| ops::quantize_with(&x, [n, k], format, choice, &Device::Cpu);
    let chosen = [Format::I8, Format::Q8_0, Format::Q4_0];
    for format in FORMATS.into_iter().filter(|format| !chosen.contains(format)) {
        assert!(of(format, ScaleChoice::LeastError).is_err() && of(format, ScaleChoice::AbsMax).is_ok());
    }
    assert!(of(Format::Q8_0, ScaleChoice::Percentile(f32::NAN)).is_err());
    assert!(of(Format::Q8_0, ScaleChoice::Percentile(0.0)).is_err());
    Ok(())
}

/// Kernels read four values at a time; a view may begin anywhere.
#[test]
fn views_that_begin_off_a_boundary() -> Result<()> {
    let device = common::cuda_device();
    let values = data::normal("views", "x", [1 + 2 * 256], DType::F32).values;
    for device in [&Device::Cpu, &device] {
        let whole = Tensor::from_slice(&values, [values.len()], device)?;
        let shifted = whole.narrow(0, 1, 2 * 256)?.reshape([2, 256])?;
        let copy = Tensor::from_slice(&values[1..], [2, 256], device)?;
        for format in FORMATS {
            let (w, same) = (ops::quantize(&shifted, format)?, ops::quantize(&copy, format)?);
            assert_eq!(
                ops::dequantize(&w, DType::F32)?.to_vec::<f32>()?,
                ops::dequantize(&same, DType::F32)?.to_vec::<f32>()?
            );
            for rows in [1, 2] {
                let of = |x: &Tensor| -> Result<Vec<f32>> {
                    ops::quant_matmul(&x.narrow(0, 0, rows)?, &w, &ops::Epilogue::default())?.to_vec()
                };
                assert_eq!(of(&shifted)?, of(&copy)?, "{} {rows}", name(format));
            }
        }
    }
    Ok(())
}

/// One row of x is quantised inside the product's kernel, several are quantised before: the same integers, and their products
/// are added in the same order, so a row has the same bits alone as among others. Longer than what a block holds at a time,
/// and with a ragged end.
#[test]
fn one_row_is_what_it_is_among_others() -> Result<()> {
    for device in [Device::Cpu, common::cuda_device()] {
        let (n, k) = (37, 2 * 8192 + 264);
        let w = data::normal("one row", "w", [n, k], DType::F32).to(&device)?;
        let most = 16;
        let x = data::normal("one row", "x", [most, k], DType::F32).to(&device)?;
        for format in FORMATS {
            let w = ops::quantize(&w, format)?;
            let product = |from, rows| -> Result<Vec<f32>> {
                let x = x.narrow(0, from, rows)?;
                ops::quant_matmul(&x, &w, &ops::Epilogue::default())?.to_vec::<f32>()
            };
            let all = product(0, most)?;
            for rows in [1, 2, 3, 7, 13] {
                let some = product(most - rows, rows)?;
                assert!(all.ends_with(&some), "{} of {rows} rows on {device:?}", name(format));
            }
        }
    }
    Ok(())
}

#[test]
fn the_gradient_stops_where_values_were_cut_off() -> Result<()> {
    for device in [Device::Cpu, common::cuda_device()] {
        let x = Tensor::from_slice(&[-2.0f32, -1.0, 0.0, 1.0, 1.5, f32::NAN], [6], &device)?;
        let dy = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], [6], &device)?;
        let of = |limit| ops::fake_quantize_gradient(&dy, &x, limit)?.to_vec::<f32>();
        assert_eq!(of(1.0)?, [0.0, 2.0, 3.0, 4.0, 0.0, 0.0]);
        assert_eq!(of(f32::INFINITY)?, [1.0, 2.0, 3.0, 4.0, 5.0, 0.0]);
    }
    Ok(())
}

/// Gates and ups of experts in one launch, of rows by an index, are the bits of the products one by one.
#[test]
fn gated_experts_are_their_parts() -> Result<()> {
    let device = common::cuda_device();
    let make = |name, shape: [usize; 2]| {
        let values = data::normal("gated experts", name, shape, DType::F32).values;
        Tensor::from_slice(&values, shape, &device)
    };
    for format in FORMATS {
        for [tokens, experts, n, k] in [[19, 5, 40, 33], [150, 2, 33, 96]] {
            let x = make("x", [tokens, k])?;
            let [gate, up] = ["gate", "up"].map(|name| ops::quantize(&make(name, [experts * n, k])?, format));
            let (gate, up) = (gate?, up?);
            let ids: Vec<u32> = (0..2 * tokens).map(|pair| (pair * pair % 7 % experts) as u32).collect();
            let routes = ops::Routes::from_slices(&ids, &vec![0.5; ids.len()], 2, experts, &device)?;
            let tokens = ops::ExpertRows::Tokens(&x);
            let [alone, beside] = [&gate, &up].map(|w| ops::quant_experts_linear(tokens, w, &routes));
            let parts = ops::quantize_rows(&ops::silu_mul(&alone?, &beside?)?)?;
            let found = ops::quant_experts_gated(&x, &gate, &up, &routes)?;
            assert_eq!(found.to_vecs()?, parts.to_vecs()?, "{}", name(format));
        }
    }
    Ok(())
}
