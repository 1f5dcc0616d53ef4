//! Arguments that matmul refuses. A refused call changes nothing.

use pascaline::ops::{self, Matmul, Variant};
use pascaline::{DType, Device, Error, Tensor};

fn zeros(dims: &[usize], dtype: DType) -> Tensor {
    Tensor::zeros(dims, dtype, &Device::Cpu).unwrap()
}

fn f32s(dims: &[usize]) -> Tensor {
    zeros(dims, DType::F32)
}

#[test]
fn shapes_that_do_not_fit() {
    for (a, b, argument) in [
        (&[2, 3][..], &[4, 5][..], "b"),
        (&[3], &[3, 5], "a"),
        (&[2, 3], &[3], "b"),
        (&[], &[], "a"),
        (&[2, 2, 3], &[3, 3, 5], "b"),
        (&[0, 2, 3], &[2, 3, 5], "b"),
    ] {
        let error = ops::matmul(&f32s(a), &f32s(b)).unwrap_err();
        assert!(
            matches!(&error, Error::Shape { op: "matmul", argument: found, .. } if *found == argument),
            "{error}"
        );
    }
    let mut c = f32s(&[2, 4]);
    let refused = ops::matmul_into(c.view_mut().unwrap(), &f32s(&[2, 3]), &f32s(&[3, 5]), &Matmul::default());
    assert!(matches!(refused, Err(Error::Shape { argument: "c", .. })), "{refused:?}");
}

#[test]
fn types_that_do_not_meet() {
    let refused = |a, b| ops::matmul(&zeros(&[2, 3], a), &zeros(&[3, 4], b)).unwrap_err();
    assert!(matches!(refused(DType::F16, DType::F32), Error::DType { argument: "b", .. }));
    assert!(matches!(refused(DType::U32, DType::F32), Error::DType { argument: "a", .. }));
    assert!(matches!(refused(DType::F32, DType::U32), Error::DType { argument: "b", .. }));
    let mut c = zeros(&[2, 4], DType::F16);
    let refused = ops::matmul_into(c.view_mut().unwrap(), &f32s(&[2, 3]), &f32s(&[3, 4]), &Matmul::default());
    assert!(matches!(refused, Err(Error::DType { argument: "c", .. })), "{refused:?}");
}

/// Views whose elements do not exist in memory, so that 2³¹ and 2³² cost nothing to ask for.
#[test]
fn sizes_beyond_32_bits() {
    let (tall, wide) = (f32s(&[1 << 31, 0]), f32s(&[0, 2]));
    let error = ops::matmul(&tall, &wide);
    // the product would have 2³² elements; nothing may be truncated to an empty or small one
    match error {
        Err(Error::TooLarge { op: "matmul", argument: "c", elements, .. }) => assert_eq!(elements, 1 << 32),
        other => panic!("{other:?}"),
    }
    let huge = (f32s(&[usize::MAX / 2, 0]), f32s(&[0, 16]));
    assert!(matches!(ops::matmul(&huge.0, &huge.1), Err(Error::TooLarge { .. })));
}

#[test]
fn a_refused_product_leaves_its_output_alone() {
    let mut c = Tensor::from_slice(&[7.0f32; 4], [2, 2], &Device::Cpu).unwrap();
    let refused = ops::matmul_into(c.view_mut().unwrap(), &f32s(&[2, 3]), &f32s(&[4, 2]), &Matmul::default());
    assert!(refused.is_err());
    assert_eq!(c.to_vec::<f32>().unwrap(), [7.0; 4]);
}

#[test]
fn a_cut_that_leaves_a_product_empty_is_refused() {
    let device = crate::common::cuda_device();
    let of = |dims: [usize; 2]| Tensor::ones(dims, DType::F32, &device).unwrap();
    let (a, b) = (of([3, 5]), of([5, 4]));
    for (variant, is_right) in [
        (Variant::Rows(2), true),
        (Variant::Columns(3), true),
        (Variant::Rows(0), false),
        (Variant::Rows(3), false),
        (Variant::Columns(4), false),
        (Variant::Columns(u32::MAX), false),
    ] {
        let mut c = Tensor::zeros([3, 4], DType::F32, &device).unwrap();
        let options = Matmul { variant, ..Matmul::default() };
        match ops::matmul_into(c.view_mut().unwrap(), &a, &b, &options) {
            Ok(()) => assert!(is_right, "{variant:?}"),
            Err(error) => {
                assert!(!is_right && matches!(error, Error::Unsupported { .. }), "{variant:?}: {error}")
            }
        }
        let expected = if is_right { 5.0 } else { 0.0 };
        assert_eq!(c.to_vec::<f32>().unwrap(), [expected; 12]);
    }
}

#[test]
fn nan_in_an_output_that_is_not_read_disappears() {
    let mut c = Tensor::from_slice(&[f32::NAN; 4], [2, 2], &Device::Cpu).unwrap();
    let options = Matmul { variant: Variant::Auto, ..Matmul::default() };
    ops::matmul_into(c.view_mut().unwrap(), &f32s(&[2, 0]), &f32s(&[0, 2]), &options).unwrap();
    assert_eq!(c.to_vec::<f32>().unwrap(), [0.0; 4]);
}
