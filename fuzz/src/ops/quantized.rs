//! Quantised matrices and the custom 16-bit float.

use super::Op;
use super::call::{Call, into};
use super::plain::{ACTIVATIONS, EXACT, near};
use pascaline::float16::Overflow;
use pascaline::ops::{self, Epilogue, ExpertRows, Routes};
use pascaline::quant::{FORMATS, Format, QuantRows, QuantTensor};
use pascaline::{DType, Device, Result, Tensor};

pub(super) const OPS: &[Op] = &[
    ("dequantize", dequantize),
    ("quant_embedding", quant_embedding),
    ("quantize_rows", quantize_rows),
    ("rms_norm_rows", rms_norm_rows),
    ("quant_gated_rows", quant_gated_rows),
    ("quant_matmul", quant_matmul),
    ("quant_linear", quant_linear),
    ("quant_lora", quant_lora),
    ("quant_experts_linear", quant_experts_linear),
    ("quant_experts_gated", quant_experts_gated),
    ("quant_experts_rows", quant_experts_rows),
    ("dequant_linear", dequant_linear),
    ("fake_quantize_gradient", fake_quantize_gradient),
    ("quantize_scaled", quantize_scaled),
    ("fake_quantize_scaled_backward", fake_quantize_scaled_backward),
    ("float16", float16),
    ("float16_matmul", float16_matmul),
];

const DECODED: [f64; 2] = [4e-7, 2e-7];

/// A quantised matrix [n, k], or some rows of a larger one.
fn matrix(call: &mut Call, n: usize, k: usize, format: Format) -> Result<QuantTensor> {
    let before = if call.below(3) == 2 { 1 + call.below(3) } else { 0 };
    let w = ops::quantize(&call.input(&[n + before, k], DType::F32)?, format)?;
    if before > 0 { w.narrow(before, n) } else { Ok(w) }
}

fn dequantize(call: &mut Call) -> Result<()> {
    let (n, k, format, dtype) = (call.size(), call.size() + 1, call.pick(&FORMATS), call.float());
    let w = matrix(call, n, k, format)?;
    let mut y = call.output(&[n, k], dtype, near(dtype, DECODED[0], DECODED[1]))?;
    into!(call, y => ops::dequantize_into(y.view()?, &w))
}

fn quant_embedding(call: &mut Call) -> Result<()> {
    let (n, k, format, dtype) = (call.size(), call.size() + 1, call.pick(&FORMATS), call.float());
    let (table, mut dims) = (matrix(call, n, k, format)?, call.shape());
    let ids = call.indices(&dims, n)?;
    dims.push(k);
    let mut y = call.output(&dims, dtype, near(dtype, DECODED[0], DECODED[1]))?;
    into!(call, y => ops::quant_embedding_into(y.view()?, &table, &ids))
}

/// The quants and scales of rows, with their tolerances.
fn compare(call: &mut Call, rows: &QuantRows, quants: f64, scale: [f64; 2]) -> Result<()> {
    let (values, scales) = rows.to_vecs()?;
    let len = values.len();
    let values: Vec<f32> = values.into_iter().map(f32::from).collect();
    call.result(Tensor::from_slice(&values, [len], &Device::Cpu)?, [quants, 0.0]);
    let (len, scales): (_, Vec<f32>) = (scales.len(), scales.into_iter().map(|(scale, _)| scale).collect());
    call.result(Tensor::from_slice(&scales, [len], &Device::Cpu)?, scale);
    Ok(())
}

fn quantize_rows(call: &mut Call) -> Result<()> {
    let (dims, dtype) = (call.shape(), call.float());
    let rows = ops::quantize_rows(&call.input(&dims, dtype)?)?;
    compare(call, &rows, 0.0, [0.0, 0.0])
}

fn rms_norm_rows(call: &mut Call) -> Result<()> {
    let dims = call.shape();
    let x = call.input(&dims, DType::F32)?;
    let weight = call.input(&dims[dims.len() - 1..], DType::F32)?;
    let rows = ops::rms_norm_rows(&x, &weight, 1e-5)?;
    compare(call, &rows, 1.0, [1e-30, 1e-5]) // a value between two quants may go to either
}

fn quant_gated_rows(call: &mut Call) -> Result<()> {
    let (dims, n, format) = (call.shape(), call.size(), call.pick(&FORMATS));
    let x = ops::quantize_rows(&call.input(&dims, DType::F32)?)?;
    let w = matrix(call, n, dims[dims.len() - 1].max(1), format)?;
    let rows = ops::quant_gated_rows(&x, &w)?;
    // a scale is 1/127 of a product of sums, which may cancel
    compare(call, &rows, 1.0, [product(dims[dims.len() - 1])[0] / 127.0, 1e-5])
}

/// `top_k` of `experts` experts for each of m tokens, of equal weights.
fn routes(call: &mut Call, m: usize, experts: usize, device: &Device) -> Result<Routes> {
    let (top_k, seed) = (1 + call.below(experts), call.below(251));
    let ids: Vec<u32> = (0..m * top_k).map(|pair| (pair * (2 * seed + 1) % 251 % experts) as u32).collect();
    Routes::from_slices(&ids, &vec![0.5; ids.len()], top_k, experts, device)
}

fn quant_experts_linear(call: &mut Call) -> Result<()> {
    let (m, experts, n, k) = (call.size(), 1 + call.below(8), call.size(), call.size() + 1);
    let format = call.pick(&FORMATS);
    let x = call.input(&[m, k], DType::F32)?;
    let w = matrix(call, experts * n, k, format)?;
    let routes = routes(call, m, experts, &x.device())?;
    let products = ops::quant_experts_linear(ExpertRows::Tokens(&x), &w, &routes)?;
    let y = ops::experts_sum(&products, &routes, None)?;
    let [abs, rel] = product(k);
    call.result(y, [abs * routes.top_k() as f64, rel]);
    Ok(())
}

/// Of more tokens than those whose rows are in the order of the pairs on a GPU.
fn quant_experts_gated(call: &mut Call) -> Result<()> {
    let (m, experts, n, k) = (17 + call.size(), 1 + call.below(8), call.size(), call.size() + 1);
    let formats = [call.pick(&FORMATS), call.pick(&FORMATS)];
    let up = if call.below(4) == 3 { formats[1] } else { formats[0] };
    let x = call.input(&[m, k], DType::F32)?;
    let (gate, up) = (matrix(call, experts * n, k, formats[0])?, matrix(call, experts * n, k, up)?);
    let routes = routes(call, m, experts, &x.device())?;
    let rows = ops::quant_experts_gated(&x, &gate, &up, &routes)?;
    compare(call, &rows, 1.0, [product(k)[0] / 127.0, 1e-5])
}

/// As [`quant_experts_gated`].
fn quant_experts_rows(call: &mut Call) -> Result<()> {
    let (m, experts, n, k) = (17 + call.size(), 1 + call.below(8), call.size(), call.size() + 1);
    let format = call.pick(&FORMATS);
    let w = matrix(call, experts * n, k, format)?;
    let routes = routes(call, m, experts, &w.device())?;
    let x = ops::quantize_rows(&call.input(&[m * routes.top_k(), k], DType::F32)?)?;
    let y = ops::quant_experts_rows(&x, &w, &routes)?;
    call.result(y, product(k));
    Ok(())
}

fn product(k: usize) -> [f64; 2] {
    let (k, blocks) = (k as f64, (k / 32 + 1) as f64);
    [64.0 * f64::from(f32::EPSILON) * (k * blocks).sqrt() + 1e-6, 4e-5]
}

fn quant_matmul(call: &mut Call) -> Result<()> {
    multiply(call, |y, x, w, _, epilogue| ops::quant_matmul_into(y, x, w, epilogue))
}

fn quant_linear(call: &mut Call) -> Result<()> {
    multiply(call, ops::quant_linear_into)
}

fn quant_lora(call: &mut Call) -> Result<()> {
    let (mut dims, n, rank, format) = (call.shape(), call.size(), call.size() + 1, call.pick(&FORMATS));
    let last = dims.len() - 1;
    let k = dims[last].max(1);
    dims[last] = k;
    let activation = call.pick(&ACTIVATIONS);
    let x = call.input(&dims, DType::F32)?;
    let w = matrix(call, n, k, format)?;
    let (a, b) = (call.input(&[rank, k], DType::F32)?, call.input(&[n, rank], DType::F32)?);
    let norm = if call.below(4) == 1 { Some(call.input(&[k], DType::F32)?) } else { None };
    let bias = if call.below(2) == 1 { Some(call.input(&[n], DType::F32)?) } else { None };
    dims[last] = if activation == ops::Activation::SwiGlu { n / 2 } else { n };
    let [abs, rel] = product(k);
    let sums = (rank as f64).sqrt() * (6.0 + 2.0 * k as f64) * f64::from(f32::EPSILON);
    let tolerance = match norm {
        Some(_) => [0.5 + k as f64 * 0.05, 0.05], // as in `multiply`
        None => [16.0 * (abs + sums), rel],
    };
    let mut y = call.output(&dims, DType::F32, tolerance)?;
    let epilogue = Epilogue { bias: bias.as_ref(), activation, residual: None };
    let norm = norm.as_ref().map(|weight| (weight, 1e-5));
    into!(call, y => ops::quant_lora_into(y.view()?, &x, &w, norm, [&a, &b], &epilogue))
}

type Multiply =
    fn(pascaline::TensorMut, &Tensor, &QuantTensor, Option<(&Tensor, f32)>, &Epilogue) -> Result<()>;

fn multiply(call: &mut Call, op: Multiply) -> Result<()> {
    let (mut dims, n, format, dtype) = (call.shape(), call.size(), call.pick(&FORMATS), call.float());
    let last = dims.len() - 1;
    let k = dims[last];
    let activation = call.pick(&ACTIVATIONS);
    let x = call.input(&dims, dtype)?;
    let w = matrix(call, n, k.max(1), format)?;
    let norm = if call.below(4) == 1 { Some(call.input(&[k], dtype)?) } else { None };
    let bias = if call.below(2) == 1 { Some(call.input(&[n], DType::F32)?) } else { None };
    dims[last] = if activation == ops::Activation::SwiGlu { n / 2 } else { n };
    let residual = if call.below(2) == 1 { Some(call.input(&dims, DType::F32)?) } else { None };
    let tolerance = match norm {
        Some(_) => [0.5 + k as f64 * 0.05, 0.05], // a normed value between two quants may go to either
        None => product(k),
    };
    let mut y = call.output(&dims, DType::F32, tolerance)?;
    let epilogue = Epilogue { bias: bias.as_ref(), activation, residual: residual.as_ref() };
    into!(call, y => op(y.view()?, &x, &w, norm.as_ref().map(|weight| (weight, 1e-5)), &epilogue))
}

fn dequant_linear(call: &mut Call) -> Result<()> {
    let (rows, n, k) = (call.size(), call.size(), call.size() + 1);
    let format = call.pick(&[Format::Q8_0, Format::Q4_0, Format::Q4K, Format::I8]);
    let w = matrix(call, n, k, format)?;
    if call.below(2) == 1 {
        let dy = call.input(&[rows, n], DType::F32)?;
        let dx = ops::dequant_linear_backward(&dy, &w)?;
        call.result(dx, product(n));
        return Ok(());
    }
    let x = call.input(&[rows, k], DType::F32)?;
    let bias = if call.below(2) == 1 { Some(call.input(&[n], DType::F32)?) } else { None };
    let y = ops::dequant_linear(&x, &w, bias.as_ref())?;
    call.result(y, product(k));
    Ok(())
}

fn fake_quantize_gradient(call: &mut Call) -> Result<()> {
    let (dims, limit) = (call.shape(), call.pick(&[1.0f32, f32::INFINITY, 0.0]));
    let (dy, x) = (call.input(&dims, DType::F32)?, call.input(&dims, DType::F32)?);
    let dx = ops::fake_quantize_gradient(&dy, &x, limit)?;
    call.result(dx, EXACT);
    Ok(())
}

fn quantize_scaled(call: &mut Call) -> Result<()> {
    let (n, k, format) =
        (call.size(), call.size() + 1, call.pick(&[Format::Q8_0, Format::Q4_0, Format::Q4K]));
    let (x, scales) = (call.input(&[n, k], DType::F32)?, call.input(&[n, k.div_ceil(32)], DType::F32)?);
    let y = ops::dequantize(&ops::quantize_scaled(&x, &scales, format)?, DType::F32)?;
    call.result(y, EXACT);
    Ok(())
}

fn fake_quantize_scaled_backward(call: &mut Call) -> Result<()> {
    let (n, k, format) = (call.size(), call.size() + 1, call.pick(&[Format::Q8_0, Format::Q4_0]));
    let (dy, x) = (call.input(&[n, k], DType::F32)?, call.input(&[n, k], DType::F32)?);
    let scales = call.input(&[n, k.div_ceil(32)], DType::F32)?;
    let mut dx = call.output(&[n, k], DType::F32, EXACT)?;
    let mut dscales = call.output(&[n, k.div_ceil(32)], DType::F32, [1e-3, 1e-5])?;
    into!(call, dx, dscales => {
        ops::fake_quantize_scaled_backward_into([dx.view()?, dscales.view()?], &dy, &x, &scales, format)
    })
}

fn float16(call: &mut Call) -> Result<()> {
    let (dims, bits) = (call.shape(), call.pick(&[2u32, 4, 5, 8, 3, 1, 9]));
    let overflow = call.pick(&[Overflow::Infinity, Overflow::Saturate]);
    let codes = ops::float16_encode(&call.input(&dims, DType::F32)?, bits, overflow)?;
    let mut y = call.output(&dims, DType::F32, EXACT)?;
    into!(call, y => ops::float16_decode_into(y.view()?, &codes))
}

fn float16_matmul(call: &mut Call) -> Result<()> {
    let (m, n, k, bits) = (call.size(), call.size(), call.size(), call.pick(&[4u32, 8, 5]));
    let w = ops::float16_encode(&call.input(&[n, k], DType::F32)?, bits, Overflow::Infinity)?;
    let y = ops::float16_matmul(&call.input(&[m, k], DType::F32)?, &w)?;
    call.result(y, product(k));
    Ok(())
}
