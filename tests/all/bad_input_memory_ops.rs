//! Bad arguments to the memory-bound ops are typed errors that name op and argument; nothing is written.

use pascaline::{DType, Device, Error, Tensor, ops};

fn zeros(shape: &[usize]) -> Tensor {
    Tensor::zeros(shape, DType::F32, &Device::Cpu).unwrap()
}

fn typed(shape: &[usize], dtype: DType) -> Tensor {
    Tensor::zeros(shape, dtype, &Device::Cpu).unwrap()
}

/// The op and argument that an error names, and its kind.
fn named<T: std::fmt::Debug>(result: Result<T, Error>) -> (&'static str, &'static str, &'static str) {
    match result.unwrap_err() {
        Error::Shape { op, argument, .. } => (op, argument, "shape"),
        Error::DType { op, argument, .. } => (op, argument, "dtype"),
        Error::Layout { op, argument, .. } => (op, argument, "layout"),
        Error::Unsupported { op, argument, .. } => (op, argument, "value"),
        Error::TooLarge { op, argument, .. } => (op, argument, "size"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn copy() {
    let x = zeros(&[2, 3]);
    assert_eq!(named(ops::copy_into(zeros(&[3, 2]).view_mut().unwrap(), &x)), ("copy", "y", "shape"));
    let mut y = typed(&[2, 3], DType::F16);
    assert_eq!(named(ops::copy_into(y.view_mut().unwrap(), &x)), ("copy", "y", "dtype"));
    // seven dimensions, no two of which can be merged
    let mut x = zeros(&[3; 7]);
    for dim in 0..7 {
        x = x.narrow(dim, 0, 2).unwrap();
    }
    assert_eq!(named(ops::copy(&x)), ("copy", "x", "value"));
    assert_eq!(ops::copy(&x.narrow(3, 0, 1).unwrap()).unwrap().shape().elements(), 64, "six can be copied");
}

#[test]
fn cat() {
    let (x, columns) = (zeros(&[2, 3]), zeros(&[2, 5]));
    assert_eq!(named(ops::cat::<Tensor>(&[], 0)), ("cat", "tensors", "value"));
    assert_eq!(named(ops::cat(&[&x], 2)), ("cat", "dim", "value"));
    assert_eq!(named(ops::cat(&[&zeros(&[])], 0)), ("cat", "dim", "value"));
    assert_eq!(named(ops::cat(&[&x, &columns], 0)), ("cat", "tensors", "shape"));
    assert_eq!(named(ops::cat(&[&x, &zeros(&[2, 3, 1])], 0)), ("cat", "tensors", "shape"));
    let error = ops::cat(&[&x, &x, &zeros(&[4])], 1).unwrap_err().to_string();
    assert!(error.contains("[4]") && error.contains("index 2"), "{error}");
    assert_eq!(named(ops::cat(&[&x, &typed(&[2, 3], DType::F16)], 0)), ("cat", "tensors", "dtype"));
    let into = |mut y: Tensor, dim| named(ops::cat_into(y.view_mut().unwrap(), &[&x, &columns], dim));
    assert_eq!(into(zeros(&[2, 7]), 1), ("cat", "y", "shape"));
    assert_eq!(into(typed(&[2, 8], DType::U32), 1), ("cat", "y", "dtype"));
    // the second tensor has seven dimensions that can't be merged, which is too many: nothing is written
    let mut gaps = zeros(&[3; 7]);
    for dim in 0..7 {
        gaps = gaps.narrow(dim, 0, 2).unwrap();
    }
    let ones = Tensor::ones([2; 7], DType::F32, &Device::Cpu).unwrap();
    let mut y = zeros(&[4, 2, 2, 2, 2, 2, 2]);
    let result = ops::cat_into(y.view_mut().unwrap(), &[&ones, &gaps], 0);
    assert_eq!(named(result), ("cat", "tensors", "value"));
    assert!(y.to_vec::<f32>().unwrap().iter().all(|&value| value == 0.0));
}

#[test]
fn stack() {
    let x = zeros(&[2, 3]);
    assert_eq!(named(ops::stack::<&Tensor>(&[], 0)), ("stack", "tensors", "value"));
    assert_eq!(named(ops::stack(&[&x], 3)), ("stack", "dim", "value"));
    assert_eq!(named(ops::stack(&[&x, &zeros(&[3, 2])], 0)), ("stack", "tensors", "shape"));
    assert_eq!(named(ops::stack(&[&x, &typed(&[2, 3], DType::U32)], 0)), ("stack", "tensors", "dtype"));
    let mut y = zeros(&[2, 2, 3]);
    let result = ops::stack_into(y.view_mut().unwrap(), &[&x, &x], 2);
    assert_eq!(named(result), ("stack", "y", "shape"), "it would be [2, 3, 2]");
}

#[test]
fn transpose() {
    assert_eq!(named(ops::transpose(&zeros(&[6]))), ("transpose", "x", "shape"));
    assert_eq!(named(ops::transpose(&zeros(&[]))), ("transpose", "x", "shape"));
    let x = zeros(&[2, 3]);
    assert_eq!(named(ops::transpose(&x.swap_dims(0, 1).unwrap())), ("transpose", "x", "layout"));
    assert_eq!(
        named(ops::transpose_into(zeros(&[2, 3]).view_mut().unwrap(), &x)),
        ("transpose", "y", "shape")
    );
    let mut y = typed(&[3, 2], DType::U32);
    assert_eq!(named(ops::transpose_into(y.view_mut().unwrap(), &x)), ("transpose", "y", "dtype"));
}

#[test]
fn elementwise() {
    let x = zeros(&[4, 6]);
    assert_eq!(named(ops::add(&x, &zeros(&[4]))), ("add", "y", "shape"));
    assert_eq!(named(ops::add(&x, &zeros(&[1, 6]))), ("add", "y", "shape"));
    assert_eq!(named(ops::mul(&x, &typed(&[4, 6], DType::F16))), ("mul", "y", "dtype"));
    assert_eq!(named(ops::mul(&typed(&[6], DType::U32), &x)), ("mul", "x", "dtype"));
    assert_eq!(named(ops::silu_mul(&x, &zeros(&[6]))), ("silu_mul", "up", "shape"));
    let columns = zeros(&[4, 8]).narrow(1, 1, 6).unwrap();
    assert_eq!(named(ops::silu_mul(&columns, &x)), ("silu_mul", "gate", "layout"));
    assert_eq!(named(ops::scale(&columns, 2.0)), ("scale", "x", "layout"));
    assert_eq!(named(ops::gelu_erf(&typed(&[3], DType::U32))), ("gelu_erf", "x", "dtype"));
    let mut y = zeros(&[6, 4]);
    assert_eq!(named(ops::gelu_tanh_into(y.view_mut().unwrap(), &x)), ("gelu_tanh", "y", "shape"));
}

#[test]
fn cast() {
    assert_eq!(named(ops::cast(&zeros(&[3]), DType::U32)), ("cast", "y", "dtype"));
    assert_eq!(named(ops::cast(&typed(&[3], DType::U32), DType::F32)), ("cast", "x", "dtype"));
    let mut y = typed(&[4], DType::F16);
    assert_eq!(named(ops::cast_into(y.view_mut().unwrap(), &zeros(&[3]))), ("cast", "y", "shape"));
}

#[test]
fn reductions() {
    assert_eq!(named(ops::max(&zeros(&[3, 0]))), ("max", "x", "shape"));
    assert_eq!(named(ops::argmax(&zeros(&[0, 0]))), ("argmax", "x", "shape"));
    assert_eq!(ops::sum(&zeros(&[3, 0])).unwrap().to_vec::<f32>().unwrap(), [0.0; 3]);
    assert_eq!(named(ops::sum(&zeros(&[]))), ("sum", "x", "shape"));
    assert_eq!(named(ops::sum(&typed(&[3], DType::U32))), ("sum", "x", "dtype"));
    let mut y = zeros(&[3]);
    assert_eq!(named(ops::argmax_into(y.view_mut().unwrap(), &zeros(&[3, 4]))), ("argmax", "y", "dtype"));
    assert_eq!(named(ops::max_into(y.view_mut().unwrap(), &zeros(&[4, 3]))), ("max", "y", "shape"));
}

#[test]
fn norms() {
    let (x, w) = (zeros(&[3, 4]), zeros(&[4]));
    assert_eq!(named(ops::rms_norm(&x, &zeros(&[3]), 1e-6)), ("rms_norm", "weight", "shape"));
    assert_eq!(named(ops::rms_norm(&x, &typed(&[4], DType::F16), 1e-6)), ("rms_norm", "weight", "dtype"));
    assert_eq!(named(ops::layer_norm(&x, &w, &zeros(&[1, 4]), 1e-6)), ("layer_norm", "bias", "shape"));
    for eps in [-1e-6, f32::NAN, f32::INFINITY] {
        assert_eq!(named(ops::rms_norm(&x, &w, eps)), ("rms_norm", "eps", "value"));
        assert_eq!(named(ops::layer_norm(&x, &w, &w, eps)), ("layer_norm", "eps", "value"));
    }
    let columns = zeros(&[3, 9]).narrow(1, 1, 4).unwrap();
    assert_eq!(named(ops::layer_norm(&columns, &w, &w, 1e-6)), ("layer_norm", "x", "layout"));
}

/// 2³¹ elements are refused. Zeroed host memory of f32 is not touched before it is used, so it costs nothing.
#[test]
fn more_than_32_bit_indices_reach() {
    let x = zeros(&[1 << 16, 1 << 15]);
    assert_eq!(named(ops::sum_into(zeros(&[1 << 16]).view_mut().unwrap(), &x)), ("sum", "x", "size"));
    assert_eq!(named(ops::copy_into(zeros(&[1]).view_mut().unwrap(), &x)), ("copy", "x", "size"));
    assert_eq!(named(ops::transpose_into(zeros(&[1]).view_mut().unwrap(), &x)), ("transpose", "x", "size"));
    let half = x.narrow(0, 0, 1 << 15).unwrap();
    assert_eq!(named(ops::cat(&[&half, &half], 0)), ("cat", "y", "size"), "before it is allocated");
    assert_eq!(named(ops::stack(&[&half, &half], 2)), ("stack", "y", "size"));
}
