//! The ops on a tape: each computes its result and records how its gradient is passed to its inputs.
//!
//! `dy` is the gradient with respect to the result, `dx` that with respect to an input. Errors are those of the op that a function
//! computes.

use crate::quantize_aware::{Learned, rounded};
use crate::tape::{Place, Tape, Var, owned, product};
use pascaline::ops::{self, Activation, Attention, Epilogue, Matmul};
use pascaline::quant::{self, Format, QuantTensor};
use pascaline::{Result, Shape, Tensor};
use qwen3_vl::gguf::GgmlType;
use std::ops::Range;

/// y = x·wᵀ + bias.   x: [rows, k], w: [n, k], bias: \[n\]
pub fn linear(tape: &mut Tape, x: &Var, w: &Var, bias: Option<&Var>) -> Result<Var> {
    linear_onto(tape, x, w, bias, None)
}

/// y = x·wᵀ + bias + residual, as [`linear`].   residual: [rows, n]
pub fn linear_onto(
    tape: &mut Tape,
    x: &Var,
    w: &Var,
    bias: Option<&Var>,
    residual: Option<&Var>,
) -> Result<Var> {
    let (bias_value, residual_value) = (bias.map(Var::value), residual.map(Var::value));
    let epilogue = Epilogue { bias: bias_value, residual: residual_value, ..Epilogue::default() };
    let y = ops::linear(x.value(), w.value(), None, &epilogue)?;
    let (own_x, own_w, own_bias, own_residual) =
        (x.clone(), w.clone(), bias.map(Var::place), residual.map(Var::place));
    let inputs: Vec<&Var> = [x, w].into_iter().chain(bias).chain(residual).collect();
    Ok(tape.record(y, &inputs, move |dy, gradients| {
        gradients.add_product(&own_x, [&dy, own_w.value()], 1.0)?;
        gradients.add_product(&own_w, [&dy.swap_dims(0, 1)?, own_x.value()], 1.0)?;
        if let Some(bias) = own_bias {
            gradients.add(bias, || ops::column_sum(&dy.contiguous()?))?;
        }
        own_residual.map_or(Ok(()), |residual| gradients.add(residual, || Ok(dy)))
    }))
}

/// y = x·wᵀ + bias with the values of a quantised w, which is dequantised by the product here and by that of the gradient.
pub fn quantized_linear(tape: &mut Tape, x: &Var, w: &QuantTensor, bias: Option<&Var>) -> Result<Var> {
    let y = ops::dequant_linear(x.value(), w, bias.map(Var::value))?;
    let (own_x, own_w, own_bias) = (x.place(), w.clone(), bias.map(Var::place));
    let inputs: Vec<&Var> = [x].into_iter().chain(bias).collect();
    Ok(tape.record(y, &inputs, move |dy, gradients| {
        gradients.add(own_x, || ops::dequant_linear_backward(&dy.contiguous()?, &own_w))?;
        match own_bias {
            Some(bias) => gradients.add(bias, || ops::column_sum(&dy.contiguous()?)),
            None => Ok(()),
        }
    }))
}

/// factor · x·aᵀ for the matrices A of all adapters beside maps of one x, side by side: [rows, ranks].   x: [rows, k], a: [rank, k] each
pub fn low_rank(tape: &mut Tape, x: &Var, a: &[&Var], factor: f32) -> Result<Var> {
    let all = match a {
        [a] => a.value().clone(),
        _ => ops::cat(&a.iter().map(|a| a.value()).collect::<Vec<_>>(), 0)?,
    };
    let low = product([x.value(), &all.swap_dims(0, 1)?], factor)?;
    let inputs: Vec<Place> = [x].into_iter().chain(a.iter().copied()).map(Var::place).collect();
    let (own_x, own_a) = (x.clone(), a.iter().map(|&a| (a.place(), a.value().dims()[0])).collect::<Vec<_>>());
    Ok(tape.record(low, &inputs, move |dlow, gradients| {
        if own_a.iter().any(|(a, _)| a.is_wanted()) {
            let da = product([&dlow.swap_dims(0, 1)?, own_x.value()], factor)?;
            let mut first = 0;
            for (a, rank) in own_a {
                gradients.add(a, || da.narrow(0, first, rank))?;
                first += rank;
            }
        }
        gradients.add_product(&own_x, [&dlow, &all], factor)
    }))
}

/// y + low·bᵀ for the columns of `low` from `start` on: what an adapter adds to a linear map.   y: [rows, n], low: [rows, ranks], b: [n, rank]
pub fn add_low_rank(tape: &mut Tape, y: Var, low: &Var, start: usize, b: &Var) -> Result<Var> {
    let rank = b.value().dims()[1];
    let own = low.value().narrow(1, start, rank)?;
    let place = y.place();
    let mut sum = owned(y.into_value())?;
    let added = Matmul { beta: 1.0, ..Matmul::default() };
    ops::matmul_into(sum.view_mut()?, &own, &b.value().swap_dims(0, 1)?, &added)?;
    let (low, own_b) = (low.clone(), b.clone());
    Ok(tape.record(sum, &[place, low.place(), b.place()], move |dy, gradients| {
        gradients.add_product(&own_b, [&dy.swap_dims(0, 1)?, &own], 1.0)?;
        gradients.add_in_place(&low, |sum| {
            let columns = sum.view_mut()?.narrow(1, start, rank)?;
            ops::matmul_into(columns, &dy, own_b.value(), &Matmul::default())
        })?;
        gradients.add(place, || Ok(dy))
    }))
}

/// A weight as a file of this type will hold it: rounded in the forward pass, with its gradient passed through unchanged, as that of rounding
/// is 0 almost everywhere (the straight-through estimator of Bengio, Léonard & Courville 2013). The types' scales clip nothing.
pub fn fake_quantize(tape: &mut Tape, w: &Var, ty: GgmlType) -> Result<Var> {
    let y = rounded(w.value(), ty)?;
    let own = w.place();
    Ok(tape.record(y, &[w], move |dy, gradients| gradients.add(own, || Ok(dy))))
}

/// A weight as [`fake_quantize`] has it, by learned scales (Esser et al. 2020, "Learned step size quantization"): those of `learned`
/// times the factors. The factors' gradient is multiplied by the paper's 1/√(N·Q), for N values of a scale and a largest quant Q.
pub(crate) fn fake_quantize_learned(
    tape: &mut Tape,
    w: &Var,
    factors: &Var,
    learned: &Learned,
) -> Result<Var> {
    let (scales, format, first) = (learned.scales(factors.value())?, learned.format, learned.first.clone());
    let y = ops::fake_quantize_scaled(w.value(), &scales, format)?;
    let largest = if format == Format::Q4_0 { 7.0 } else { 127.0 };
    let share = (quant::block_len(format) as f32 * largest).sqrt().recip();
    let (own_w, own_factors) = (w.clone(), factors.clone());
    Ok(tape.record(y, &[w, factors], move |dy, gradients| {
        let dy = dy.contiguous()?;
        let [dw, dscales] = ops::fake_quantize_scaled_backward(&dy, own_w.value(), &scales, format)?;
        gradients.add(&own_w, || Ok(dw))?;
        gradients.add(&own_factors, || {
            ops::scale(&ops::mul(&dscales, &first)?, share)?.reshape(own_factors.value().shape())
        })
    }))
}

/// A weight with its adapter merged: w + factor · b·a.   w: [n, k], a: [rank, k], b: [n, rank]
pub fn adapted(tape: &mut Tape, w: &Var, [a, b]: [&Var; 2], factor: f32) -> Result<Var> {
    let change = ops::scale(&ops::matmul(b.value(), a.value())?, factor)?;
    let y = ops::add(w.value(), &change)?;
    let (own_w, own_a, own_b) = (w.place(), a.clone(), b.clone());
    Ok(tape.record(y, &[w, a, b], move |dy, gradients| {
        gradients.add(&own_a, || ops::scale(&ops::matmul(&own_b.value().swap_dims(0, 1)?, &dy)?, factor))?;
        gradients.add(&own_b, || ops::scale(&ops::matmul(&dy, &own_a.value().swap_dims(0, 1)?)?, factor))?;
        gradients.add(own_w, || Ok(dy))
    }))
}

/// x + y, of one shape.
pub fn add(tape: &mut Tape, x: &Var, y: &Var) -> Result<Var> {
    let sum = ops::add(x.value(), y.value())?;
    let (own_x, own_y) = (x.place(), y.place());
    Ok(tape.record(sum, &[x, y], move |dy, gradients| {
        gradients.add(own_x, || Ok(dy.clone()))?;
        gradients.add(own_y, || Ok(dy))
    }))
}

/// x · y, element by element, of one shape.
pub fn mul(tape: &mut Tape, x: &Var, y: &Var) -> Result<Var> {
    let product = ops::mul(x.value(), y.value())?;
    let (own_x, own_y) = (x.clone(), y.clone());
    Ok(tape.record(product, &[x, y], move |dy, gradients| {
        gradients.add(&own_x, || ops::mul(&dy, own_y.value()))?;
        gradients.add(&own_y, || ops::mul(&dy, own_x.value()))
    }))
}

/// The same elements in another shape.
pub fn reshape(tape: &mut Tape, x: &Var, shape: impl Into<Shape>) -> Result<Var> {
    let y = x.value().reshape(shape)?;
    let own = x.clone();
    Ok(tape.record(y, &[x], move |dy, gradients| {
        gradients.add(&own, || dy.contiguous()?.reshape(own.value().shape()))
    }))
}

/// Root mean square norm over the last dimension.
pub fn rms_norm(tape: &mut Tape, x: &Var, weight: &Var, eps: f32) -> Result<Var> {
    let y = ops::rms_norm(x.value(), weight.value(), eps)?;
    let (own_x, own_weight) = (x.clone(), weight.clone());
    Ok(tape.record(y, &[x, weight], move |dy, gradients| {
        let (x, weight) = (own_x.value(), own_weight.value());
        if !own_weight.needs_gradient() {
            return gradients.add(&own_x, || {
                let mut dx = uninitialized_like(x)?;
                ops::rms_norm_backward_into(dx.view_mut()?, None, &dy, x, weight, eps)?;
                Ok(dx)
            });
        }
        let [dx, dweight] = ops::rms_norm_backward(&dy, x, weight, eps)?;
        gradients.add(&own_x, || Ok(dx))?;
        gradients.add(&own_weight, || Ok(dweight))
    }))
}

/// Layer norm over the last dimension.
pub fn layer_norm(tape: &mut Tape, x: &Var, weight: &Var, bias: &Var, eps: f32) -> Result<Var> {
    let y = ops::layer_norm(x.value(), weight.value(), bias.value(), eps)?;
    let (own_x, own_weight, own_bias) = (x.clone(), weight.clone(), bias.clone());
    Ok(tape.record(y, &[x, weight, bias], move |dy, gradients| {
        let (x, weight) = (own_x.value(), own_weight.value());
        if !own_weight.needs_gradient() && !own_bias.needs_gradient() {
            return gradients.add(&own_x, || {
                let mut dx = uninitialized_like(x)?;
                ops::layer_norm_backward_into(dx.view_mut()?, None, &dy, x, weight, eps)?;
                Ok(dx)
            });
        }
        let [dx, dweight, dbias] = ops::layer_norm_backward(&dy, x, weight, eps)?;
        gradients.add(&own_x, || Ok(dx))?;
        gradients.add(&own_weight, || Ok(dweight))?;
        gradients.add(&own_bias, || Ok(dbias))
    }))
}

/// An activation of one value.
pub fn activate(tape: &mut Tape, x: &Var, activation: Activation) -> Result<Var> {
    let y = ops::activate(x.value(), None, activation)?;
    let own = x.clone();
    Ok(tape.record(y, &[x], move |dy, gradients| {
        gradients.add(&own, || ops::activate_backward(&dy, own.value(), activation))
    }))
}

/// silu(gate) · up.
pub fn silu_mul(tape: &mut Tape, gate: &Var, up: &Var) -> Result<Var> {
    let y = ops::silu_mul(gate.value(), up.value())?;
    let (own_gate, own_up) = (gate.clone(), up.clone());
    Ok(tape.record(y, &[gate, up], move |dy, gradients| {
        let [dgate, dup] = ops::silu_mul_backward(&dy.contiguous()?, own_gate.value(), own_up.value())?;
        gradients.add(&own_gate, || Ok(dgate))?;
        gradients.add(&own_up, || Ok(dup))
    }))
}

/// Rotates heads by the angles of their positions.   x: [tokens, heads, head_dim]
pub fn rope(tape: &mut Tape, x: &Var, [cos, sin]: &[Tensor; 2]) -> Result<Var> {
    let y = ops::rope(x.value(), cos, sin)?;
    let (own, cos, sin) = (x.clone(), cos.clone(), sin.clone());
    Ok(tape.record(y, &[x], move |dy, gradients| gradients.add(&own, || ops::rope_backward(&dy, &cos, &sin))))
}

/// Rows of a table.   table: [rows, cols], ids: \[n\]
pub fn embedding(tape: &mut Tape, table: &Var, ids: &Tensor) -> Result<Var> {
    let y = ops::embedding(table.value(), ids)?;
    let (own, ids) = (table.clone(), ids.clone());
    Ok(tape.record(y, &[table], move |dy, gradients| {
        let dy = dy.contiguous()?;
        gradients.add_in_place(&own, |sum| ops::embedding_backward_add(sum.view_mut()?, &dy, &ids))
    }))
}

/// x with the rows from `start` on replaced by those of `part`.
pub fn replace_rows(tape: &mut Tape, x: &Var, part: &Var, start: usize) -> Result<Var> {
    let len = part.value().dims()[0];
    let mut y = ops::copy(x.value())?;
    ops::copy_into(y.view_mut()?.narrow(0, start, len)?, part.value())?;
    let (own_x, own_part) = (x.clone(), part.clone());
    Ok(tape.record(y, &[x, part], move |dy, gradients| {
        gradients.add(&own_part, || ops::copy(&dy.narrow(0, start, len)?))?;
        gradients.add(&own_x, || {
            let mut dx = ops::copy(&dy)?;
            ops::copy_into(dx.view_mut()?.narrow(0, start, len)?, &own_part.value().zeros_like()?)?;
            Ok(dx)
        })
    }))
}

/// x with `part` added to the rows from `start` on.
pub fn add_rows(tape: &mut Tape, x: &Var, part: &Var, start: usize) -> Result<Var> {
    let len = part.value().dims()[0];
    let mut sparse = x.value().zeros_like()?;
    ops::copy_into(sparse.view_mut()?.narrow(0, start, len)?, part.value())?;
    let y = ops::add(x.value(), &sparse)?;
    let (own_x, own_part) = (x.clone(), part.clone());
    Ok(tape.record(y, &[x, part], move |dy, gradients| {
        gradients.add(&own_part, || ops::copy(&dy.narrow(0, start, len)?))?;
        gradients.add(&own_x, || Ok(dy))
    }))
}

/// Attention within each of `sequences`, which are ranges of rows.   q: [tokens, heads, head_dim], k, v: [tokens, kv heads, head_dim]
pub fn attention(
    tape: &mut Tape,
    [q, k, v]: [&Var; 3],
    sequences: &[Range<usize>],
    options: Attention,
) -> Result<Var> {
    let mut out = like(q.value(), sequences)?;
    for rows in sequences {
        let [q, k, v] = [q, k, v].map(|x| heads(x.value(), rows));
        let part = out.view_mut()?.narrow(0, rows.start, rows.len())?.swap_dims(0, 1)?;
        ops::attention_into(part, &q?, &k?, &v?, &options)?;
    }
    let owned = [q, k, v].map(Var::clone);
    let (result, sequences) = (out.clone(), sequences.to_vec());
    Ok(tape.record(out, &[q, k, v], move |dy, gradients| {
        let dy = dy.contiguous()?;
        let [q, k, v] = &owned;
        let new = |x: &Var| like(x.value(), &sequences);
        let [mut dq, mut dk, mut dv] = [new(q)?, new(k)?, new(v)?];
        for rows in &sequences {
            let part = |x| heads(x, rows);
            let mut outputs = Vec::with_capacity(3);
            for gradient in [&mut dq, &mut dk, &mut dv] {
                outputs.push(gradient.view_mut()?.narrow(0, rows.start, rows.len())?.swap_dims(0, 1)?);
            }
            let Ok(outputs) = outputs.try_into() else { continue }; // there are three
            let (q, k, v) = (part(q.value())?, part(k.value())?, part(v.value())?);
            ops::attention_backward_into(outputs, &part(&dy)?, &q, &k, &v, &part(&result)?, &options)?;
        }
        gradients.add(q, || Ok(dq))?;
        gradients.add(k, || Ok(dk))?;
        gradients.add(v, || Ok(dv))
    }))
}

/// A tensor as x for what is computed for each of `sequences`, with zeros unless these are all of its rows.
fn like(x: &Tensor, sequences: &[Range<usize>]) -> Result<Tensor> {
    let next = |end: usize, rows: &Range<usize>| (rows.start == end).then_some(rows.end);
    match sequences.iter().try_fold(0, next) == x.dims().first().copied() {
        true => uninitialized_like(x),
        false => x.zeros_like(),
    }
}

/// A tensor of this shape and type, for an op that writes all of it.
fn uninitialized_like(x: &Tensor) -> Result<Tensor> {
    Tensor::uninitialized(x.shape(), x.dtype(), &x.device())
}

/// Some rows of [tokens, heads, head_dim], as [heads, rows, head_dim].
fn heads(x: &Tensor, rows: &Range<usize>) -> Result<Tensor> {
    x.narrow(0, rows.start, rows.len())?.swap_dims(0, 1)
}

/// Some heads of a fused projection.   x: [tokens, heads, head_dim] → [tokens, len, head_dim]
pub fn some_heads(tape: &mut Tape, x: &Var, start: usize, len: usize) -> Result<Var> {
    let y = ops::copy(&x.value().narrow(1, start, len)?)?;
    let own = x.clone();
    Ok(tape.record(y, &[x], move |dy, gradients| {
        gradients.add_in_place(&own, |sum| {
            let before = ops::copy(&sum.narrow(1, start, len)?)?;
            let after = ops::add(&before, &dy.contiguous()?)?;
            ops::copy_into(sum.view_mut()?.narrow(1, start, len)?, &after)
        })
    }))
}

/// A constant matrix times a variable: m·x.   m: [rows, k], x: [k, cols]
pub fn matrix_times(tape: &mut Tape, m: &Tensor, x: &Var) -> Result<Var> {
    let y = ops::matmul(m, x.value())?;
    let (m, own) = (m.clone(), x.clone());
    Ok(tape
        .record(y, &[x], move |dy, gradients| gradients.add(&own, || ops::matmul(&m.swap_dims(0, 1)?, &dy))))
}

/// The cross-entropy of the logits x·wᵀ for each row: \[rows\]. Its gradient is multiplied by `factor`, and it is the last function of
/// a tape: the gradients are computed along with the values, for a `dy` of 1.   x: [rows, hidden], w: [vocab, hidden], labels: \[rows\]
pub fn cross_entropy(tape: &mut Tape, x: &Var, w: &Var, labels: &Tensor, factor: f32) -> Result<Var> {
    let found = ops::linear_cross_entropy(x.value(), w.value(), labels, factor, w.needs_gradient())?;
    let (own_x, own_w, dx, dw) = (x.clone(), w.clone(), found.dx, found.dw);
    Ok(tape.record(found.loss, &[x, w], move |_, gradients| {
        gradients.add(&own_x, || Ok(dx))?;
        match dw {
            Some(dw) => gradients.add(&own_w, || Ok(dw)),
            None => Ok(()),
        }
    }))
}
