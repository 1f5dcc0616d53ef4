//! Wrong arguments of the ops that training needs: typed errors that name the argument, before anything is launched.

use pascaline::ops::{self, Activation, AdamW, AdamWTensor, Attention};
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
    let shared = parameter.clone();
    let refused = step(&mut parameter, &zeros(&[3]), 1);
    assert!(matches!(refused, Err(Error::SharedOutput { .. })), "{refused:?}");
    drop(shared);
}
