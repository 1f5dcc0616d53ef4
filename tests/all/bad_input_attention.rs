//! Arguments that attention refuses: a typed error that names the argument, before anything is launched.

use half::f16;
use pascaline::ops::{self, Attention};
use pascaline::{DType, Device, Error, Result, Tensor};

const PLAIN: Attention = Attention { scale: None, causal: false };

fn zeros(dims: &[usize], dtype: DType) -> Tensor {
    Tensor::zeros(dims, dtype, &Device::Cpu).expect("a small tensor")
}

fn f32s(dims: &[usize]) -> Tensor {
    zeros(dims, DType::F32)
}

fn run(q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
    ops::attention(q, k, v, &PLAIN)
}

#[test]
fn shapes() {
    let q = f32s(&[1, 4, 3, 64]);
    let kv = f32s(&[1, 2, 5, 64]);
    assert!(run(&q, &kv, &kv).is_ok());
    for (k, v, argument) in [
        (&[1, 3, 5, 64][..], &[1, 3, 5, 64][..], "k"), // 4 heads are no multiple of 3
        (&[1, 0, 5, 64], &[1, 0, 5, 64], "k"),
        (&[2, 2, 5, 64], &[2, 2, 5, 64], "k"), // another batch
        (&[1, 2, 5, 72], &[1, 2, 5, 72], "k"), // another head_dim
        (&[2, 5, 64], &[2, 5, 64], "k"),       // another rank
        (&[5, 64], &[5, 64], "k"),
        (&[1, 2, 5, 64], &[1, 2, 6, 64], "v"),
        (&[1, 2, 5, 64], &[1, 2, 5, 72], "v"),
    ] {
        match run(&q, &f32s(k), &f32s(v)) {
            Err(Error::Shape { op: "attention", argument: found, .. }) => {
                assert_eq!(found, argument, "{k:?} {v:?}")
            }
            other => panic!("{k:?} {v:?}: {other:?}"),
        }
    }
    let flat = f32s(&[3, 64]);
    assert!(matches!(run(&flat, &flat, &flat), Err(Error::Shape { argument: "q", .. })));
    let mut out = f32s(&[1, 4, 4, 64]);
    let wrong = ops::attention_into(out.view_mut().expect("unshared"), &q, &kv, &kv, &PLAIN);
    assert!(matches!(wrong, Err(Error::Shape { argument: "out", .. })), "{wrong:?}");
}

#[test]
fn head_dims() {
    for head_dim in [0, 8, 12, 100, 136, 256] {
        let x = f32s(&[1, 2, head_dim]);
        let refused = run(&x, &x, &x);
        assert!(
            matches!(refused, Err(Error::Unsupported { argument: "head_dim", .. })),
            "{head_dim}: {refused:?}"
        );
    }
}

#[test]
fn types() {
    let (f32s, f16s, u32s) =
        (zeros(&[1, 2, 64], DType::F32), zeros(&[1, 2, 64], DType::F16), zeros(&[1, 2, 64], DType::U32));
    for (q, k, v, argument) in [
        (&u32s, &f32s, &f32s, "q"),
        (&f32s, &u32s, &u32s, "k"),
        (&f16s, &f32s, &f32s, "k"),
        (&f32s, &f16s, &f32s, "v"),
    ] {
        match run(q, k, v) {
            Err(Error::DType { op: "attention", argument: found, .. }) => assert_eq!(found, argument),
            other => panic!("{argument}: {other:?}"),
        }
    }
    assert!(run(&f32s, &f16s, &f16s).is_ok());
    let mut out = zeros(&[1, 2, 64], DType::F16);
    let wrong = ops::attention_into(out.view_mut().expect("unshared"), &f32s, &f32s, &f32s, &PLAIN);
    assert!(matches!(wrong, Err(Error::DType { argument: "out", .. })), "{wrong:?}");
}

#[test]
fn layouts() {
    let x = f32s(&[2, 64, 64]);
    let transposed = x.swap_dims(1, 2).expect("two dimensions");
    assert!(matches!(run(&transposed, &x, &x), Err(Error::Layout { argument: "q", .. })));
    let odd_start = f32s(&[2, 64, 72]).narrow(2, 4, 64).expect("inside");
    assert!(matches!(run(&x, &odd_start, &x), Err(Error::Layout { argument: "k", .. })));
    let odd_stride = f32s(&[2, 64, 68]).narrow(2, 0, 64).expect("inside");
    assert!(matches!(run(&x, &x, &odd_stride), Err(Error::Layout { argument: "v", .. })));
    let aligned = f32s(&[2, 64, 80]).narrow(2, 8, 64).expect("inside");
    assert!(run(&x, &aligned, &aligned).is_ok());
}

#[test]
fn nothing_to_do_and_nothing_to_see() {
    let none = f32s(&[2, 0, 64]);
    let some = f32s(&[2, 3, 64]);
    assert_eq!(run(&none, &some, &some).expect("no queries").dims(), [2, 0, 64]);
    let no_heads = f32s(&[0, 3, 64]);
    assert!(run(&no_heads, &no_heads, &no_heads).is_ok());
    let unseeing = run(&some, &none, &none).expect("no keys");
    assert_eq!(unseeing.to_vec::<f32>().expect("f32"), vec![0.0; 2 * 3 * 64]);
    // causal, more queries than keys: the first two see nothing
    let ones = Tensor::from_slice(&[f16::ONE; 64], [1, 1, 64], &Device::Cpu).expect("64 elements");
    let q = zeros(&[1, 3, 64], DType::F16);
    let out = ops::attention(&q, &ones, &ones, &Attention { causal: true, ..PLAIN }).expect("fits");
    let out = out.to_vec::<f16>().expect("f16");
    assert!(out[..128].iter().all(|x| *x == f16::ZERO) && out[128..].iter().all(|x| *x == f16::ONE));
}

#[test]
fn the_scale_is_the_callers() {
    // scores 0 and 64·scale: with scale 0 both keys weigh the same
    let q = Tensor::from_slice(&[1.0f32; 16], [1, 1, 16], &Device::Cpu).expect("16 elements");
    let kv: Vec<f32> = [0.0, 4.0].into_iter().flat_map(|x| [x; 16]).collect();
    let kv = Tensor::from_slice(&kv, [1, 2, 16], &Device::Cpu).expect("32 elements");
    let with = |scale| {
        let out = ops::attention(&q, &kv, &kv, &Attention { scale, causal: false }).expect("fits");
        out.to_vec::<f32>().expect("f32")[0]
    };
    assert_eq!(with(Some(0.0)), 2.0);
    assert!(with(None) > 3.9 && with(Some(-1.0)) < 0.1);
}

#[test]
fn in_8_bit_integers() {
    let run = |q: &Tensor, k: &Tensor, v: &Tensor| ops::int8_attention(q, k, v, &PLAIN);
    let (f32s, f16s) = (zeros(&[1, 2, 64], DType::F32), zeros(&[1, 2, 64], DType::F16));
    for (q, k, v, argument) in
        [(&f16s, &f16s, &f16s, "q"), (&f32s, &f16s, &f16s, "k"), (&f32s, &f32s, &f16s, "v")]
    {
        match run(q, k, v) {
            Err(Error::DType { op: "int8_attention", argument: found, .. }) => assert_eq!(found, argument),
            other => panic!("{argument}: {other:?}"),
        }
    }
    let (wide, odd) = (zeros(&[1, 2, 136], DType::F32), zeros(&[1, 2, 20], DType::F32));
    for x in [wide, odd] {
        assert!(matches!(run(&x, &x, &x), Err(Error::Unsupported { argument: "head_dim", .. })));
    }
    let x = zeros(&[2, 64, 64], DType::F32);
    let transposed = x.swap_dims(1, 2).expect("two dimensions");
    assert!(matches!(run(&x, &transposed, &x), Err(Error::Layout { argument: "k", .. })));
    let (none, no_heads) = (zeros(&[1, 0, 64], DType::F32), zeros(&[0, 2, 64], DType::F32));
    assert_eq!(run(&none, &f32s, &f32s).expect("no queries").dims(), [1, 0, 64]);
    assert!(run(&no_heads, &no_heads, &no_heads).is_ok());
    assert_eq!(run(&f32s, &none, &none).expect("no keys").to_vec::<f32>().expect("f32"), [0.0; 128]);

    // what is not finite is not hidden: a query's NaN is in its row, a key's in all
    let mut values = [1.0f32; 128];
    values[3] = f32::NAN;
    let nan = Tensor::from_slice(&values, [1, 2, 64], &Device::Cpu).expect("128 elements");
    let of_query = run(&nan, &f32s, &f32s).and_then(|y| y.to_vec::<f32>()).expect("f32");
    assert!(of_query[..64].iter().all(|y| y.is_nan()) && of_query[64..].iter().all(|y| *y == 0.0));
    let of_key = run(&f32s, &nan, &f32s).and_then(|y| y.to_vec::<f32>()).expect("f32");
    assert!(of_key.iter().all(|y| y.is_nan()));
}
