//! Ops of training: gradients, losses and steps.

use super::Op;
use super::call::{Call, into};
use super::plain::{EXACT, near};
use pascaline::ops::{self, AdamW, AdamW8bitTensor, AdamWTensor, Moments8bit, Sgd, SgdTensor};
use pascaline::{DType, Result, Tensor};

pub(super) const OPS: &[Op] = &[
    ("softmax_backward", softmax_backward),
    ("activate_backward", activate_backward),
    ("silu_mul_backward", silu_mul_backward),
    ("rms_norm_backward", rms_norm_backward),
    ("layer_norm_backward", layer_norm_backward),
    ("embedding_backward", |call| embedding_backward(call, false)),
    ("embedding_backward_add", |call| embedding_backward(call, true)),
    ("cross_entropy", cross_entropy),
    ("adamw", adamw),
    ("adamw8bit", adamw8bit),
    ("sgd", sgd),
    ("squared_norm", squared_norm),
];

fn softmax_backward(call: &mut Call) -> Result<()> {
    let (dims, dtype) = (call.shape(), call.float());
    let (dy, y) = (call.input(&dims, dtype)?, call.input(&dims, dtype)?);
    let mut dx = call.output(&dims, dtype, near(dtype, 1e-4, 1e-5))?;
    into!(call, dx => ops::softmax_backward_into(dx.view()?, &dy, &y))
}

fn activate_backward(call: &mut Call) -> Result<()> {
    let (mut dims, dtype, activation) = (call.shape(), call.float(), call.pick(&super::plain::ACTIVATIONS));
    let x = call.input(&dims, dtype)?;
    let mut dx = call.output(&dims, dtype, near(dtype, 1e-5, 1e-5))?;
    let last = dims.len() - 1;
    if activation == ops::Activation::SwiGlu {
        dims[last] /= 2;
    }
    let dy = call.input(&dims, dtype)?;
    into!(call, dx => ops::activate_backward_into(dx.view()?, &dy, &x, activation))
}

fn silu_mul_backward(call: &mut Call) -> Result<()> {
    let (dims, dtype) = (call.shape(), call.float());
    let (dy, gate, up) = (call.input(&dims, dtype)?, call.input(&dims, dtype)?, call.input(&dims, dtype)?);
    let mut dgate = call.output(&dims, dtype, near(dtype, 1e-5, 1e-5))?;
    let mut dup = call.output(&dims, dtype, near(dtype, 1e-5, 1e-5))?;
    into!(call, dgate, dup => ops::silu_mul_backward_into([dgate.view()?, dup.view()?], &dy, &gate, &up))
}

fn rms_norm_backward(call: &mut Call) -> Result<()> {
    let (dims, dtype) = (call.shape(), call.float());
    let cols = dims.len() - 1;
    let (dy, x, weight) =
        (call.input(&dims, dtype)?, call.input(&dims, dtype)?, call.input(&dims[cols..], dtype)?);
    let mut dx = call.output(&dims, dtype, near(dtype, 2e-4, 1e-4))?;
    let mut dweight = call.output(&dims[cols..], DType::F32, near(DType::F32, 1e-4, 1e-5))?;
    let with_sum = call.below(4) > 0;
    into!(call, dx, dweight => {
        let sum = if with_sum { Some(dweight.view()?) } else { None };
        ops::rms_norm_backward_into(dx.view()?, sum, &dy, &x, &weight, 0.01)
    })
}

fn layer_norm_backward(call: &mut Call) -> Result<()> {
    let (dims, dtype) = (call.shape(), call.float());
    let cols = dims.len() - 1;
    let (dy, x, weight) =
        (call.input(&dims, dtype)?, call.input(&dims, dtype)?, call.input(&dims[cols..], dtype)?);
    let mut dx = call.output(&dims, dtype, near(dtype, 1e-3, 1e-4))?;
    let mut dweight = call.output(&dims[cols..], DType::F32, near(DType::F32, 1e-3, 1e-4))?;
    let mut dbias = call.output(&dims[cols..], DType::F32, near(DType::F32, 1e-4, 1e-5))?;
    let with_sums = call.below(4) > 0;
    into!(call, dx, dweight, dbias => {
        let sums = if with_sums { Some([dweight.view()?, dbias.view()?]) } else { None };
        ops::layer_norm_backward_into(dx.view()?, sums, &dy, &x, &weight, 0.01)
    })
}

fn embedding_backward(call: &mut Call, add: bool) -> Result<()> {
    let (n, rows, cols) = (call.size(), call.size(), call.size());
    let dy = call.input(&[n, cols], DType::F32)?;
    let ids = call.indices(&[n], rows)?;
    let mut dtable = call.output(&[rows, cols], DType::F32, near(DType::F32, 1e-5, 1e-6))?;
    into!(call, dtable => match add {
        true => ops::embedding_backward_add(dtable.view()?, &dy, &ids),
        false => ops::embedding_backward_into(dtable.view()?, &dy, &ids),
    })
}

fn cross_entropy(call: &mut Call) -> Result<()> {
    let (rows, cols) = (call.size(), call.size());
    let labels = call.indices(&[rows], cols)?;
    let mut loss = call.output(&[rows], DType::F32, near(DType::F32, 1e-5, 1e-5))?;
    let mut x = call.output(&[rows, cols], DType::F32, near(DType::F32, 1e-5, 1e-5))?;
    let logits = call.input(&[rows, cols], DType::F32)?;
    into!(call, loss, x => {
        ops::copy_into(x.view()?, &logits)?;
        ops::cross_entropy_into(loss.view()?, x.view()?, &labels, 0.5)
    })
}

/// A tensor that a step changes, alone in its storage.
fn owned(call: &mut Call, dims: &[usize]) -> Result<Tensor> {
    ops::copy(&call.input(dims, DType::F32)?)
}

const STEP: [f64; 2] = [2e-6, 4e-6];

fn adamw(call: &mut Call) -> Result<()> {
    let (dims, step) = (call.shape(), call.pick(&[1u32, 2, 100, 0]));
    let gradient = call.input(&dims, DType::F32)?;
    let (mut parameter, mut first, mut second) =
        (owned(call, &dims)?, owned(call, &dims)?, owned(call, &dims)?);
    second = ops::mul(&second, &second.contiguous()?)?; // a mean of squares
    let options = AdamW { lr: 0.125, step, eps: 0.5, ..AdamW::default() };
    let one = AdamWTensor {
        parameter: &mut parameter,
        gradient: &gradient,
        first: &mut first,
        second: &mut second,
        weight_decay: 0.1,
    };
    let verdict = ops::adamw_step(&mut [one], &options);
    [parameter, first, second].into_iter().for_each(|tensor| call.result(tensor, STEP));
    verdict
}

fn adamw8bit(call: &mut Call) -> Result<()> {
    let (dims, step) = (call.shape(), call.pick(&[1u32, 2, 100, 0]));
    let gradient = call.input(&dims, DType::F32)?;
    let mut parameter = owned(call, &dims)?;
    let mut moments = Moments8bit::zeros(dims.iter().product(), call.device)?;
    let options = AdamW { lr: 0.125, step, eps: 0.5, ..AdamW::default() };
    let one = AdamW8bitTensor {
        parameter: &mut parameter,
        gradient: &gradient,
        moments: &mut moments,
        weight_decay: 0.1,
    };
    let verdict = ops::adamw8bit_step(&mut [one], &options);
    call.result(parameter, STEP);
    verdict
}

fn sgd(call: &mut Call) -> Result<()> {
    let dims = call.shape();
    let gradient = call.input(&dims, DType::F32)?;
    let (mut parameter, mut momentum) = (owned(call, &dims)?, owned(call, &dims)?);
    let one = SgdTensor {
        parameter: &mut parameter,
        gradient: &gradient,
        momentum: &mut momentum,
        weight_decay: 0.1,
    };
    let verdict = ops::sgd_step(&mut [one], &Sgd { lr: 0.25, momentum: 0.875, gradient_scale: 0.5 });
    [parameter, momentum].into_iter().for_each(|tensor| call.result(tensor, STEP));
    verdict
}

fn squared_norm(call: &mut Call) -> Result<()> {
    let count = call.below(4);
    let tensors = (0..count).map(|_| {
        let dims = call.shape();
        call.input(&dims, DType::F32)
    });
    let tensors = tensors.collect::<Result<Vec<_>>>()?;
    let sum = ops::squared_norm(&tensors.iter().collect::<Vec<_>>())?;
    call.result(Tensor::from_slice(&[sum as f32], [1], &pascaline::Device::Cpu)?, [1e-5, 1e-5]);
    call.result(Tensor::from_slice(&[count as u32], [1], &pascaline::Device::Cpu)?, EXACT);
    Ok(())
}
