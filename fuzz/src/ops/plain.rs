//! Ops bound by memory, and products.

use super::Op;
use super::call::{Call, into};
use pascaline::ops::{self, Activation, Epilogue, ExpertRows, Matmul};
use pascaline::{DType, Result, Tensor, TensorMut};

/// No difference is allowed.
pub(super) const EXACT: [f64; 2] = [0.0, 0.0];

/// Twice the case table's, since neither device's result is the exact one.
pub(super) fn near(dtype: DType, abs: f64, rel: f64) -> [f64; 2] {
    match dtype {
        DType::F16 => [2.0 * abs + 6.0e-8, 2.0 * rel + 1.0 / 512.0],
        _ => [2.0 * abs, 2.0 * rel],
    }
}

pub(super) const ACTIVATIONS: [Activation; 5] =
    [Activation::Identity, Activation::Silu, Activation::GeluTanh, Activation::GeluErf, Activation::SwiGlu];

pub(super) const OPS: &[Op] = &[
    ("softmax", softmax),
    ("rms_norm", rms_norm),
    ("layer_norm", layer_norm),
    ("sum", |call| reduce(call, ops::sum_into, None)),
    ("max", |call| reduce(call, ops::max_into, None)),
    ("argmax", |call| reduce(call, ops::argmax_into, Some(DType::U32))),
    ("add", |call| binary(call, ops::add_into)),
    ("mul", |call| binary(call, ops::mul_into)),
    ("silu_mul", |call| binary(call, ops::silu_mul_into)),
    ("scale", |call| unary(call, |y, x| ops::scale_into(y, x, 0.375))),
    ("gelu_tanh", |call| unary(call, ops::gelu_tanh_into)),
    ("gelu_erf", |call| unary(call, ops::gelu_erf_into)),
    ("activate", activate),
    ("cast", cast),
    ("copy", copy),
    ("transpose", transpose),
    ("cat", cat),
    ("stack", stack),
    ("embedding", embedding),
    ("rope", |call| rope(call, ops::rope_into)),
    ("rope_backward", |call| rope(call, ops::rope_backward_into)),
    ("column_sum", column_sum),
    ("matmul", matmul),
    ("linear", linear),
    ("experts", experts),
];

/// All experts of each token, since the devices may choose others where logits are near each other.
fn experts(call: &mut Call) -> Result<()> {
    let (m, experts, n, k, dtype) = (call.size(), call.below(9), call.size(), call.size(), call.float());
    let (x, gate) = (call.input(&[m, k], DType::F32)?, call.input(&[experts, k], dtype)?);
    let w = call.input(&[experts * n, k], dtype)?;
    let routes = ops::route(&x, &gate, experts, call.below(2) == 1)?;
    let products = ops::experts_linear(ExpertRows::Tokens(&x), &w, &routes)?;
    let residual = if call.below(2) == 1 { Some(call.input(&[m, n], DType::F32)?) } else { None };
    // logits are sums of k products of up to 4, whose exponentials are weights
    let mut y = call.output(&[m, n], DType::F32, near(DType::F32, 2e-5 * (k * k + 1) as f64, 1e-5))?;
    into!(call, y => ops::experts_sum_into(y.view()?, &products, &routes, residual.as_ref()))
}

fn softmax(call: &mut Call) -> Result<()> {
    let (dims, dtype) = (call.shape(), call.float());
    let x = call.input(&dims, dtype)?;
    let mut y = call.output(&dims, dtype, near(dtype, 1e-9, 8e-6))?;
    into!(call, y => ops::softmax_into(y.view()?, &x))
}

fn eps(call: &mut Call) -> f32 {
    call.pick(&[1e-6, 1e-5, 0.5, 1.0, -1.0, f32::NAN, 1e-6, 1e-6])
}

fn rms_norm(call: &mut Call) -> Result<()> {
    let (dims, dtype, eps) = (call.shape(), call.float(), eps(call));
    let x = call.input(&dims, dtype)?;
    let weight = call.input(&dims[dims.len() - 1..], dtype)?;
    let mut y = call.output(&dims, dtype, near(dtype, 1e-9, 1e-6))?;
    into!(call, y => ops::rms_norm_into(y.view()?, &x, &weight, eps))
}

fn layer_norm(call: &mut Call) -> Result<()> {
    let (dims, dtype, eps) = (call.shape(), call.float(), eps(call));
    let x = call.input(&dims, dtype)?;
    let [weight, bias] =
        [call.input(&dims[dims.len() - 1..], dtype)?, call.input(&dims[dims.len() - 1..], dtype)?];
    let mut y = call.output(&dims, dtype, near(dtype, 1e-4, 1e-5))?; // a small variance with a small eps magnifies
    into!(call, y => ops::layer_norm_into(y.view()?, &x, &weight, &bias, eps))
}

fn reduce(call: &mut Call, op: fn(TensorMut, &Tensor) -> Result<()>, result: Option<DType>) -> Result<()> {
    let (dims, dtype) = (call.shape(), call.float());
    let x = call.input(&dims, dtype)?;
    let mut y = call.output(&dims[..dims.len() - 1], result.unwrap_or(dtype), near(dtype, 1e-5, 1e-6))?;
    into!(call, y => op(y.view()?, &x))
}

fn binary(call: &mut Call, op: fn(TensorMut, &Tensor, &Tensor) -> Result<()>) -> Result<()> {
    let (dims, dtype) = (call.shape(), call.float());
    let x = call.input(&dims, dtype)?;
    let of_a_row = call.below(2) * (dims.len() - 1);
    let y = call.input(&dims[of_a_row..], dtype)?;
    let mut z = call.output(&dims, dtype, near(dtype, 1e-36, 1e-6))?;
    into!(call, z => op(z.view()?, &x, &y))
}

fn unary(call: &mut Call, op: fn(TensorMut, &Tensor) -> Result<()>) -> Result<()> {
    let (dims, dtype) = (call.shape(), call.float());
    let x = call.input(&dims, dtype)?;
    let mut y = call.output(&dims, dtype, near(dtype, 1e-9, 3e-6))?;
    into!(call, y => op(y.view()?, &x))
}

fn activate(call: &mut Call) -> Result<()> {
    let (dims, dtype, activation) = (call.shape(), call.float(), call.pick(&ACTIVATIONS));
    let mut result = dims.clone();
    let cols = dims.len() - 1;
    if activation == Activation::SwiGlu {
        result[cols] /= 2;
    }
    let x = call.input(&dims, dtype)?;
    let bias = if call.below(2) == 1 { Some(call.input(&dims[cols..], dtype)?) } else { None };
    let mut y = call.output(&result, dtype, near(dtype, 1e-7, 3e-6))?;
    into!(call, y => ops::activate_into(y.view()?, &x, bias.as_ref(), activation))
}

fn cast(call: &mut Call) -> Result<()> {
    let (dims, from) = (call.shape(), call.float());
    let to = call.float();
    let x = call.input(&dims, from)?;
    let mut y = call.output(&dims, to, EXACT)?;
    into!(call, y => ops::cast_into(y.view()?, &x))
}

fn copy(call: &mut Call) -> Result<()> {
    let (dims, dtype) = (call.shape(), call.pick(&[DType::F32, DType::F16, DType::U32]));
    let x = call.input(&dims, dtype)?;
    let mut y = call.output(&dims, dtype, EXACT)?;
    into!(call, y => ops::copy_into(y.view()?, &x))
}

fn transpose(call: &mut Call) -> Result<()> {
    let (dims, dtype) = (call.shape(), call.pick(&[DType::F32, DType::F16, DType::U32]));
    let mut result = dims.clone();
    if let [.., a, b] = &mut result[..] {
        std::mem::swap(a, b);
    }
    let x = call.input(&dims, dtype)?;
    let mut y = call.output(&result, dtype, EXACT)?;
    into!(call, y => ops::transpose_into(y.view()?, &x))
}

fn cat(call: &mut Call) -> Result<()> {
    let (mut dims, dtype) = (call.shape(), call.pick(&[DType::F32, DType::F16, DType::U32]));
    let (dim, parts) = (call.below(dims.len()), 1 + call.below(3));
    let mut tensors = Vec::new();
    let mut sum = 0;
    for _ in 0..parts {
        dims[dim] = call.below(6);
        sum += dims[dim];
        tensors.push(call.input(&dims, dtype)?);
    }
    dims[dim] = sum;
    let mut y = call.output(&dims, dtype, EXACT)?;
    into!(call, y => ops::cat_into(y.view()?, &tensors, dim))
}

fn stack(call: &mut Call) -> Result<()> {
    let (mut dims, dtype) = (call.shape(), call.pick(&[DType::F32, DType::F16, DType::U32]));
    let (dim, parts) = (call.below(dims.len() + 1), 1 + call.below(3));
    let tensors = (0..parts).map(|_| call.input(&dims, dtype)).collect::<Result<Vec<_>>>()?;
    dims.insert(dim, parts);
    let mut y = call.output(&dims, dtype, EXACT)?;
    into!(call, y => ops::stack_into(y.view()?, &tensors, dim))
}

fn embedding(call: &mut Call) -> Result<()> {
    let ([rows, cols, n], dtype) = ([call.size(), call.size(), call.size()], call.float());
    let table = call.input(&[rows, cols], dtype)?;
    let ids = call.indices(&[n], rows)?;
    let mut y = call.output(&[n, cols], DType::F32, EXACT)?;
    into!(call, y => ops::embedding_into(y.view()?, &table, &ids))
}

fn rope(call: &mut Call, op: fn(TensorMut, &Tensor, &Tensor, &Tensor) -> Result<()>) -> Result<()> {
    let (seq, heads, half, dtype) = (call.size(), 1 + call.below(4), call.size(), call.float());
    let odd = usize::from(call.one_in(32));
    let dims = [seq, heads, 2 * half + odd];
    let x = call.input(&dims, dtype)?;
    let [cos, sin] = [call.input(&[seq, half], DType::F32)?, call.input(&[seq, half], DType::F32)?];
    let mut y = call.output(&dims, dtype, near(dtype, 3e-6, 2e-7))?;
    into!(call, y => op(y.view()?, &x, &cos, &sin))
}

fn column_sum(call: &mut Call) -> Result<()> {
    let (dims, dtype) = (call.shape(), call.float());
    let x = call.input(&dims, dtype)?;
    let mut y = call.output(&dims[dims.len() - 1..], DType::F32, near(DType::F32, 1e-5, 1e-6))?;
    into!(call, y => ops::column_sum_into(y.view()?, &x))
}

/// The types of two factors and of the product.
fn types(call: &mut Call) -> [DType; 3] {
    use DType::{F16, F32};
    call.pick(&[[F32, F32, F32], [F16, F16, F16], [F32, F16, F32], [F16, F32, F32]])
}

fn sums(dtype: DType, k: usize) -> [f64; 2] {
    near(dtype, f64::from(f32::EPSILON) * (12.0 + 4.0 * k as f64), 1e-6)
}

fn matmul(call: &mut Call) -> Result<()> {
    let ([m, k, n], [of_a, of_b, of_c]) = ([call.size(), call.size(), call.size()], types(call));
    let leading = [&[][..], &[1], &[2], &[2, 3]];
    let [a_first, b_first] = [0, 1].map(|_| leading[call.below(4).min(call.below(4))]);
    let first = if a_first.len() >= b_first.len() { a_first } else { b_first };
    let with = |first: &[usize], last: [usize; 2]| [first, &last].concat();
    let a = call.input(&with(a_first, [m, k]), of_a)?;
    let b = call.input(&with(b_first, [k, n]), of_b)?;
    let (alpha, beta) = (call.pick(&[1.0f32, -0.5, 0.0]), call.pick(&[0.0f32, 0.0, 1.0, 0.5]));
    let tolerance = sums(of_c, k);
    let mut c = call.output(&with(first, [m, n]), of_c, [tolerance[0], tolerance[1] + 1e-6])?;
    let options = Matmul { alpha, beta, ..Matmul::default() };
    into!(call, c => ops::matmul_into(c.view()?, &a, &b, &options))
}

fn linear(call: &mut Call) -> Result<()> {
    let (mut dims, n, [of_x, of_w, of_y]) = (call.shape(), call.size(), types(call));
    let last = dims.len() - 1;
    let k = dims[last];
    let activation = call.pick(&ACTIVATIONS);
    let x = call.input(&dims, of_x)?;
    let w = call.input(&[n, k], of_w)?;
    let norm = if call.below(3) == 1 { Some(call.input(&[k], of_x)?) } else { None };
    let bias = if call.below(2) == 1 { Some(call.input(&[n], of_y)?) } else { None };
    dims[last] = if activation == Activation::SwiGlu { n / 2 } else { n };
    let residual = if call.below(2) == 1 { Some(call.input(&dims, of_y)?) } else { None };
    let tolerance = match of_y {
        DType::F16 => [0.1, 2e-2], // passes of their own round what one kernel does not
        _ => [f64::from(f32::EPSILON) * (64.0 + 32.0 * k as f64), 2e-5],
    };
    let mut y = call.output(&dims, of_y, tolerance)?;
    let epilogue = Epilogue { bias: bias.as_ref(), activation, residual: residual.as_ref() };
    into!(call, y => ops::linear_into(y.view()?, &x, &w, norm.as_ref().map(|weight| (weight, 1e-5)), &epilogue))
}
