//! Wrong arguments of the ops that training needs: typed errors that name the argument, before anything is launched.

use pascaline::block_mask::{BlockGrid, BlockMask};
use pascaline::ops::{self, Activation, AdamW, AdamW8bitTensor, AdamWTensor, Attention, Moments8bit};
use pascaline::ops::{Path, PreparedMask};
use pascaline::quant::Format;
use pascaline::{DType, Device, Error, Tensor};

fn zeros(dims: &[usize]) -> Tensor {
    Tensor::zeros(dims, DType::F32, &Device::Cpu).unwrap()
}

fn halves(dims: &[usize]) -> Tensor {
    Tensor::zeros(dims, DType::F16, &Device::Cpu).unwrap()
}

#[track_caller]
fn refuses<T: std::fmt::Debug>(result: pascaline::Result<T>, op: &str, argument: &str) {
    let error = result.unwrap_err();
    let (found_op, found) = match &error {
        Error::Shape { op, argument, .. }
        | Error::DType { op, argument, .. }
        | Error::Layout { op, argument, .. }
        | Error::Unsupported { op, argument, .. } => (*op, *argument),
        _ => panic!("{error}"),
    };
    assert_eq!((found_op, found), (op, argument), "{error}");
}

#[test]
fn row_ops_name_what_does_not_fit() {
    refuses(ops::softmax_backward(&zeros(&[2, 3]), &zeros(&[2, 4])), "softmax_backward", "dy");
    refuses(ops::softmax_backward(&halves(&[2, 4]), &zeros(&[2, 4])), "softmax_backward", "dy");
    let (x, weight) = (zeros(&[2, 4]), zeros(&[4]));
    refuses(ops::rms_norm_backward(&x, &x, &zeros(&[3]), 0.0), "rms_norm_backward", "weight");
    refuses(ops::rms_norm_backward(&x, &x, &weight, f32::NAN), "rms_norm_backward", "eps");
    refuses(ops::layer_norm_backward(&zeros(&[3, 4]), &x, &weight, 0.0), "layer_norm_backward", "dy");
    let odd = zeros(&[2, 3]);
    refuses(ops::activate_backward(&odd, &odd, Activation::SwiGlu), "activate_backward", "x");
    refuses(ops::activate_backward(&x, &x, Activation::SwiGlu), "activate_backward", "dy");
    refuses(ops::silu_mul_backward(&x, &odd, &x), "silu_mul_backward", "gate");
    refuses(ops::silu_mul_backward(&x, &x, &odd), "silu_mul_backward", "up");
    let transposed = zeros(&[4, 3]).swap_dims(0, 1).unwrap();
    refuses(ops::silu_mul_backward(&transposed, &transposed, &transposed), "silu_mul_backward", "dy");
    refuses(ops::column_sum(&zeros(&[4, 2]).swap_dims(0, 1).unwrap()), "column_sum", "x");
}

#[test]
fn attention_names_what_does_not_fit() {
    let (q, k) = (zeros(&[2, 5, 16]), zeros(&[1, 5, 16]));
    let run = |dout: &Tensor, v: &Tensor, out: &Tensor| {
        ops::attention_backward(dout, &q, &k, v, out, &Attention::default())
    };
    assert!(run(&q, &k, &q).is_ok());
    refuses(run(&k, &k, &q), "attention_backward", "dout");
    refuses(run(&q, &q, &q), "attention_backward", "v");
    refuses(run(&q, &k, &k), "attention_backward", "out");
    refuses(run(&halves(&[2, 5, 16]), &k, &q), "attention_backward", "dout");
}

#[test]
fn losses_and_steps_name_what_does_not_fit() {
    let labels = Tensor::zeros([2], DType::U32, &Device::Cpu).unwrap();
    let (x, w) = (zeros(&[2, 8]), zeros(&[5, 8]));
    assert!(ops::linear_cross_entropy(&x, &w, &labels, 1.0, true).is_ok());
    refuses(ops::linear_cross_entropy(&x, &zeros(&[5, 7]), &labels, 1.0, true), "linear_cross_entropy", "w");
    refuses(
        ops::linear_cross_entropy(&zeros(&[3, 8]), &w, &labels, 1.0, true),
        "linear_cross_entropy",
        "labels",
    );
    refuses(ops::embedding_backward(&zeros(&[3, 8]), &labels, 4), "embedding_backward", "dy");

    let step = |parameter: &mut Tensor, gradient: &Tensor, step| {
        let (mut first, mut second) = (zeros(&[3]), zeros(&[3]));
        let (first, second) = (&mut first, &mut second);
        let one = AdamWTensor { parameter, gradient, first, second, weight_decay: 0.0 };
        ops::adamw_step(&mut [one], &AdamW { step, ..AdamW::default() })
    };
    let mut parameter = zeros(&[3]);
    assert!(step(&mut parameter, &zeros(&[3]), 1).is_ok());
    refuses(step(&mut parameter, &zeros(&[4]), 1), "adamw_step", "gradient");
    refuses(step(&mut parameter, &zeros(&[3]), 0), "adamw_step", "step");
    let step8 = |gradient: &Tensor, elements, step| {
        let mut moments = Moments8bit::zeros(elements, &Device::Cpu).unwrap();
        let mut parameter = zeros(&[3]);
        let (parameter, moments) = (&mut parameter, &mut moments);
        let one = AdamW8bitTensor { parameter, gradient, moments, weight_decay: 0.0 };
        ops::adamw8bit_step(&mut [one], &AdamW { step, ..AdamW::default() })
    };
    assert!(step8(&zeros(&[3]), 3, 1).is_ok());
    refuses(step8(&zeros(&[4]), 3, 1), "adamw8bit_step", "gradient");
    refuses(step8(&zeros(&[3]), 4, 1), "adamw8bit_step", "moments");
    refuses(step8(&zeros(&[3]), 3, 0), "adamw8bit_step", "step");
    let w = ops::quantize(&zeros(&[4, 32]), Format::Q8_0).unwrap();
    refuses(ops::dequant_linear(&zeros(&[2, 31]), &w, None), "dequant_linear", "x");
    refuses(ops::dequant_linear(&zeros(&[2, 32]), &w, Some(&zeros(&[3]))), "dequant_linear", "bias");
    refuses(ops::dequant_linear_backward(&halves(&[2, 4]), &w), "dequant_linear_backward", "dy");
    refuses(ops::dequant_linear_backward(&zeros(&[2, 32]), &w), "dequant_linear_backward", "dy");
    let shared = parameter.clone();
    let refused = step(&mut parameter, &zeros(&[3]), 1);
    assert!(matches!(refused, Err(Error::SharedOutput { .. })), "{refused:?}");
    drop(shared);
}

#[test]
fn scaled_quantising_names_what_does_not_fit() {
    let (x, scales) = (zeros(&[2, 40]), zeros(&[2, 2]));
    assert!(ops::quantize_scaled(&x, &scales, Format::Q4_0).is_ok());
    refuses(ops::quantize_scaled(&x, &scales, Format::Q4K), "quantize_scaled", "format");
    refuses(ops::quantize_scaled(&x, &zeros(&[2, 1]), Format::Q8_0), "quantize_scaled", "scales");
    refuses(ops::quantize_scaled(&halves(&[2, 40]), &scales, Format::Q8_0), "quantize_scaled", "x");
    let backward = |dy: &Tensor| ops::fake_quantize_scaled_backward(dy, &x, &scales, Format::Q8_0);
    assert!(backward(&x).is_ok());
    refuses(backward(&zeros(&[2, 39])), "fake_quantize_scaled_backward", "dy");
    let i8 = ops::quantize(&x, Format::I8).unwrap();
    refuses(i8.block_scales(), "block_scales", "format");
}

#[test]
fn gradients_of_sparse_attention_name_what_does_not_fit() {
    let mask = |queries: usize| {
        let grid = BlockGrid::new(16, queries, 5).unwrap();
        PreparedMask::new(BlockMask::dense(grid).unwrap(), Path::Sparse, &Device::Cpu).unwrap()
    };
    let (q, k) = (zeros(&[2, 5, 16]), zeros(&[1, 5, 16]));
    let run = |dout: &Tensor, v: &Tensor, mask: &PreparedMask| {
        ops::sparse_attention_backward(dout, &q, &k, v, &q, mask, None)
    };
    assert!(run(&q, &k, &mask(5)).is_ok());
    refuses(run(&q, &k, &mask(6)), "sparse_attention_backward", "q");
    refuses(run(&k, &k, &mask(5)), "sparse_attention_backward", "dout");
    refuses(run(&q, &q, &mask(5)), "sparse_attention_backward", "v");
}
