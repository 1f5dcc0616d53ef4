//! Arguments that the fused ops refuse: a typed error that names the argument, before anything is launched.

use crate::common::{self, refused::refused};
use pascaline::kv::{KvFormat, KvTensor};
use pascaline::ops::{self, Activation, Attention, Epilogue, HeadNorms, PAGE, Projection};
use pascaline::quant::Format;
use pascaline::{DType, Device, Error, Tensor};

fn zeros(dims: &[usize], dtype: DType) -> Tensor {
    Tensor::zeros(dims, dtype, &Device::Cpu).unwrap()
}

fn f32s(dims: &[usize]) -> Tensor {
    zeros(dims, DType::F32)
}

fn cache(dims: [usize; 3], format: KvFormat) -> KvTensor {
    KvTensor::uninitialized(dims, format, &Device::Cpu).unwrap()
}

#[test]
fn linear() {
    let (x, w) = (f32s(&[2, 8]), f32s(&[6, 8]));
    let none = Epilogue::default();
    assert!(ops::linear(&x, &w, None, &none).is_ok());
    assert_eq!(refused(ops::linear(&f32s(&[]), &w, None, &none)), ("shape", "x"));
    assert_eq!(refused(ops::linear(&x, &f32s(&[6, 7]), None, &none)), ("shape", "w"));
    assert_eq!(refused(ops::linear(&x, &f32s(&[8]), None, &none)), ("shape", "w"));
    assert_eq!(
        refused(ops::linear(&x.swap_dims(0, 1).unwrap(), &f32s(&[6, 2]), None, &none)),
        ("layout", "x")
    );
    assert_eq!(
        refused(ops::linear(&x, &f32s(&[8, 6]).swap_dims(0, 1).unwrap(), None, &none)),
        ("layout", "w")
    );
    assert_eq!(refused(ops::linear(&zeros(&[2, 8], DType::U32), &w, None, &none)), ("dtype", "x"));
    assert_eq!(refused(ops::linear(&zeros(&[2, 8], DType::F16), &w, None, &none)), ("dtype", "w"));
    let huge = (f32s(&[1 << 31, 0]), f32s(&[2, 0]));
    assert_eq!(refused(ops::linear(&huge.0, &huge.1, None, &none)), ("too large", "y"));

    let with = |epilogue: &Epilogue| refused(ops::linear(&x, &w, None, epilogue));
    assert_eq!(with(&Epilogue { bias: Some(&f32s(&[5])), ..none }), ("shape", "bias"));
    assert_eq!(with(&Epilogue { bias: Some(&zeros(&[6], DType::F16)), ..none }), ("dtype", "bias"));
    assert_eq!(with(&Epilogue { residual: Some(&f32s(&[2, 5])), ..none }), ("shape", "residual"));
    let gated = Epilogue { activation: Activation::SwiGlu, ..none };
    assert_eq!(with(&Epilogue { residual: Some(&f32s(&[2, 6])), ..gated }), ("shape", "residual"));
    assert_eq!(refused(ops::linear(&x, &f32s(&[5, 8]), None, &gated)), ("shape", "w"));

    let norm = |weight: &Tensor, eps| refused(ops::linear(&x, &w, Some((weight, eps)), &none));
    assert_eq!(norm(&f32s(&[7]), 0.0), ("shape", "norm"));
    assert_eq!(norm(&zeros(&[8], DType::F16), 0.0), ("dtype", "norm"));
    assert_eq!(norm(&f32s(&[8]), -1.0), ("unsupported", "eps"));
    assert_eq!(norm(&f32s(&[8]), f32::NAN), ("unsupported", "eps"));
}

/// One row of x, whose product writes silu(gate) · up itself on a GPU, and many.
#[test]
fn quantised_gates_without_ups() {
    for device in [Device::Cpu, common::cuda_device()] {
        for rows in [1, 2, 40] {
            let tensor = |dims: [usize; 2]| Tensor::zeros(dims, DType::F32, &device).unwrap();
            let w = ops::quantize(&tensor([5, 32]), Format::Q8_0).unwrap();
            let gated = Epilogue { activation: Activation::SwiGlu, ..Epilogue::default() };
            let mut y = tensor([rows, 2]);
            let result = ops::quant_linear_into(y.view_mut().unwrap(), &tensor([rows, 32]), &w, None, &gated);
            assert_eq!(refused(result), ("unsupported", "activation"), "{rows} rows on {device}");
        }
    }
}

/// The residual of a product that is finished by a second pass is refused before the first, by the product's name.
#[test]
fn a_quantised_product_of_two_passes_and_a_wrong_residual() {
    for device in [Device::Cpu, common::cuda_device()] {
        for (activation, columns) in [(Activation::SwiGlu, 2), (Activation::GeluErf, 4)] {
            for rows in [1, 3] {
                let tensor = |dims: [usize; 2], dtype| Tensor::zeros(dims, dtype, &device).unwrap();
                let w = ops::quantize(&tensor([4, 32], DType::F32), Format::Q8_0).unwrap();
                let residual = tensor([rows, columns], DType::U32);
                let epilogue = Epilogue { activation, residual: Some(&residual), bias: None };
                let result = ops::quant_linear(&tensor([rows, 32], DType::F32), &w, None, &epilogue);
                let Err(Error::DType { op, argument, .. }) = result else { panic!("{result:?}") };
                assert_eq!(
                    (op, argument),
                    ("quant_matmul", "residual"),
                    "{activation:?}, {rows} rows on {device}"
                );
            }
        }
    }
}

#[test]
fn activate() {
    let x = f32s(&[2, 5]);
    assert_eq!(refused(ops::activate(&x, None, Activation::SwiGlu)), ("shape", "x"));
    assert_eq!(refused(ops::activate(&f32s(&[]), None, Activation::Silu)), ("shape", "x"));
    assert_eq!(refused(ops::activate(&x, Some(&f32s(&[4])), Activation::Silu)), ("shape", "bias"));
    assert_eq!(refused(ops::activate(&zeros(&[2], DType::U32), None, Activation::Silu)), ("dtype", "x"));
    let mut y = f32s(&[2, 4]);
    let into = ops::activate_into(y.view_mut().unwrap(), &x, None, Activation::Silu);
    assert_eq!(refused(into), ("shape", "y"));
}

#[test]
fn rope_append() {
    struct Call {
        qkv: Tensor,
        q: Tensor,
        k: KvTensor,
        v: KvTensor,
        cos: Tensor,
        at: Tensor,
        norm: Tensor,
        eps: f32,
    }
    let run = |change: &dyn Fn(&mut Call)| {
        let mut call = Call {
            qkv: f32s(&[2, 4, 8]),
            q: f32s(&[2, 2, 8]),
            k: cache([5, 1, 8], KvFormat::F32),
            v: cache([5, 1, 8], KvFormat::F32),
            cos: f32s(&[3, 4]),
            at: zeros(&[2], DType::U32),
            norm: f32s(&[8]),
            eps: 1e-6,
        };
        change(&mut call);
        let Call { qkv, mut q, mut k, mut v, cos, at, norm, eps } = call;
        let norms = Some(HeadNorms { q: &norm, k: &norm, eps });
        let caches = [k.view_mut()?, v.view_mut()?];
        ops::rope_append_into(q.view_mut()?, caches, &qkv, [&cos, &cos], norms, &at)
    };
    assert_eq!(run(&|_| {}), Ok(()));
    assert_eq!(refused(run(&|call| call.qkv = f32s(&[2, 32]))), ("shape", "qkv"));
    assert_eq!(refused(run(&|call| call.qkv = f32s(&[2, 1, 8]))), ("shape", "qkv"));
    assert_eq!(refused(run(&|call| call.qkv = f32s(&[2, 4, 7]))), ("unsupported", "dim"));
    assert_eq!(refused(run(&|call| call.qkv = f32s(&[2, 4, 258]))), ("unsupported", "dim"));
    assert_eq!(refused(run(&|call| call.qkv = zeros(&[2, 4, 8], DType::U32))), ("dtype", "qkv"));
    assert_eq!(refused(run(&|call| call.q = f32s(&[2, 3, 8]))), ("shape", "q"));
    assert_eq!(refused(run(&|call| call.k = cache([5, 1, 6], KvFormat::F32))), ("shape", "k"));
    assert_eq!(refused(run(&|call| call.v = cache([4, 1, 8], KvFormat::F32))), ("shape", "v"));
    assert_eq!(refused(run(&|call| call.v = cache([5, 1, 8], KvFormat::F16))), ("unsupported", "v"));
    assert_eq!(refused(run(&|call| call.k = cache([5, 1, 8], KvFormat::Q8_0))), ("unsupported", "v"));
    assert_eq!(refused(run(&|call| call.cos = f32s(&[0, 4]))), ("shape", "cos"));
    assert_eq!(refused(run(&|call| call.cos = f32s(&[3, 8]))), ("shape", "cos"));
    assert_eq!(refused(run(&|call| call.at = zeros(&[1], DType::U32))), ("shape", "at"));
    assert_eq!(refused(run(&|call| call.at = f32s(&[2]))), ("dtype", "at"));
    assert_eq!(refused(run(&|call| call.norm = f32s(&[4]))), ("shape", "norms.q"));
    assert_eq!(refused(run(&|call| call.eps = f32::INFINITY)), ("unsupported", "eps"));
}

#[test]
fn append_attention() {
    struct Call {
        qkv: Tensor,
        out: Tensor,
        k: KvTensor,
        v: KvTensor,
        at: Tensor,
        pages: Option<[Tensor; 2]>,
    }
    let run = |change: &dyn Fn(&mut Call)| {
        let mut call = Call {
            qkv: f32s(&[2, 4, 16]),
            out: f32s(&[2, 2, 16]),
            k: cache([2 * PAGE, 1, 16], KvFormat::F32),
            v: cache([2 * PAGE, 1, 16], KvFormat::F32),
            at: zeros(&[2], DType::U32),
            pages: None,
        };
        change(&mut call);
        let Call { qkv, mut out, mut k, mut v, at, pages } = call;
        let angles = f32s(&[3, qkv.dims()[2] / 2]);
        let from = Projection { qkv: &qkv, cos: &angles, sin: &angles, norms: None, at: &at };
        match &pages {
            None => ops::append_attention_into(out.view_mut()?, [&mut k, &mut v], &from, None),
            Some([tables, lens]) => {
                let (out, kv) = (out.view_mut()?, [&mut k, &mut v]);
                ops::paged_append_attention_into(out, kv, &from, [tables, lens], None)
            }
        }
    };
    assert_eq!(run(&|_| {}), Ok(()));
    assert_eq!(refused(run(&|call| call.at = zeros(&[2, 2], DType::U32))), ("shape", "at"));
    assert_eq!(refused(run(&|call| call.out = f32s(&[2, 4, 16]))), ("shape", "out"));
    assert_eq!(refused(run(&|call| call.out = zeros(&[2, 2, 16], DType::F16))), ("dtype", "out"));
    assert_eq!(refused(run(&|call| call.v = cache([2 * PAGE, 1, 16], KvFormat::F16))), ("unsupported", "v"));
    let no_queries = |call: &mut Call| (call.qkv, call.out) = (f32s(&[2, 2, 16]), f32s(&[2, 0, 16]));
    assert_eq!(refused(run(&no_queries)), ("shape", "qkv"));
    let many = |call: &mut Call| (call.qkv, call.out) = (f32s(&[9, 4, 16]), f32s(&[9, 2, 16]));
    assert_eq!(refused(run(&many)), ("unsupported", "qkv"));
    let narrow = |call: &mut Call| {
        (call.qkv, call.out) = (f32s(&[2, 4, 8]), f32s(&[2, 2, 8]));
        (call.k, call.v) = (cache([2 * PAGE, 1, 8], KvFormat::F32), cache([2 * PAGE, 1, 8], KvFormat::F32));
    };
    assert_eq!(refused(run(&narrow)), ("unsupported", "head_dim"));
    let uneven = |call: &mut Call| {
        (call.qkv, call.out) = (f32s(&[2, 7, 16]), f32s(&[2, 3, 16]));
        (call.k, call.v) = (cache([2 * PAGE, 2, 16], KvFormat::F32), cache([2 * PAGE, 2, 16], KvFormat::F32));
    };
    assert_eq!(refused(run(&uneven)), ("shape", "qkv"));

    let paged = |change: &dyn Fn(&mut Call)| {
        run(&|call| {
            call.at = zeros(&[2, 2], DType::U32);
            call.at.view_mut().unwrap().write(&[0u32, PAGE as u32, 0, 0]).unwrap();
            call.pages = Some([zeros(&[2, 1], DType::U32), zeros(&[2], DType::U32)]);
            change(call);
        })
    };
    let pages = |call: &mut Call, tables: &[usize], lens: &[usize]| {
        call.pages = Some([zeros(tables, DType::U32), zeros(lens, DType::U32)]);
    };
    assert_eq!(paged(&|_| {}), Ok(()));
    assert_eq!(refused(paged(&|call| call.at = zeros(&[2], DType::U32))), ("shape", "at"));
    assert_eq!(refused(paged(&|call| pages(call, &[3, 1], &[2]))), ("shape", "tables"));
    assert_eq!(refused(paged(&|call| pages(call, &[2], &[2]))), ("shape", "tables"));
    assert_eq!(refused(paged(&|call| pages(call, &[2, 1], &[3]))), ("shape", "lens"));
    let floats = |call: &mut Call| call.pages = Some([f32s(&[2, 1]), zeros(&[2], DType::U32)]);
    assert_eq!(refused(paged(&floats)), ("dtype", "tables"));
    let no_page = |call: &mut Call| {
        (call.k, call.v) = (cache([PAGE + 1, 1, 16], KvFormat::F32), cache([PAGE + 1, 1, 16], KvFormat::F32));
    };
    assert_eq!(refused(paged(&no_page)), ("shape", "k"));
    let elsewhere = |call: &mut Call| {
        let tables = Tensor::from_slice(&[7u32, 7], [2, 1], &Device::Cpu).unwrap();
        let lens = Tensor::from_slice(&[1u32, 1], [2], &Device::Cpu).unwrap();
        call.pages = Some([tables, lens]);
    };
    assert_eq!(refused(paged(&elsewhere)), ("unsupported", "tables"));
    let half = |call: &mut Call| {
        (call.qkv, call.out) = (zeros(&[2, 4, 16], DType::F16), zeros(&[2, 2, 16], DType::F16))
    };
    assert_eq!(refused(paged(&half)), ("dtype", "qkv"));
}

#[test]
fn rope_append_of_half_precision() {
    let qkv = zeros(&[2, 4, 8], DType::F16);
    let append = |format| {
        let (mut q, mut k, mut v) =
            (zeros(&[2, 2, 8], DType::F16), cache([5, 1, 8], format), cache([5, 1, 8], format));
        let (table, at) = (f32s(&[3, 4]), zeros(&[2], DType::U32));
        let caches = [k.view_mut()?, v.view_mut()?];
        ops::rope_append_into(q.view_mut()?, caches, &qkv, [&table, &table], None, &at)
    };
    assert_eq!(append(KvFormat::F16), Ok(()));
    for format in [KvFormat::F32, KvFormat::BF16, KvFormat::Q8_0] {
        assert_eq!(refused(append(format)), ("unsupported", "k"));
    }
}

#[test]
fn caches() {
    let new = |dims, format| KvTensor::uninitialized(dims, format, &Device::Cpu);
    assert_eq!(refused(new([1, 1, 8], KvFormat::Float16(1))), ("unsupported", "format"));
    assert_eq!(refused(new([1, 1, 8], KvFormat::Float16(9))), ("unsupported", "format"));
    for format in [KvFormat::F32, KvFormat::Q8_0] {
        assert_eq!(refused(new([1 << 20, 1 << 7, 1 << 4], format)), ("too large", "dims"));
        assert_eq!(refused(new([usize::MAX, 2, 16], format)), ("too large", "dims"));
        assert_eq!(refused(new([1, 1, usize::MAX], format)), ("too large", "dims"));
    }
    // 40 columns take two blocks with a scale each
    assert_eq!(new([3, 2, 40], KvFormat::Q8_0).unwrap().bytes(), 3 * 2 * (64 + 4));
    assert_eq!("e4".parse(), Ok(KvFormat::Float16(4)));
    assert_eq!(refused("e5".parse::<KvFormat>()), ("unsupported", "name"));
}

#[test]
fn attention_with_its_length_on_the_device() {
    let run = |q: &[usize], past: Tensor| {
        let (q, kv) = (f32s(q), cache([20, 2, 16], KvFormat::F32));
        let mut out = f32s(q.dims());
        ops::attention_cached_into(out.view_mut()?, &q, &kv, &kv, &past, &Attention::default())
    };
    let past = |dims: &[usize]| zeros(dims, DType::U32);
    assert_eq!(run(&[4, 8, 16], past(&[1])), Ok(()));
    assert_eq!(refused(run(&[4, 9, 16], past(&[1]))), ("unsupported", "q_len"));
    assert_eq!(refused(run(&[4, 1, 16], past(&[2]))), ("shape", "past"));
    assert_eq!(refused(run(&[4, 1, 16], f32s(&[1]))), ("dtype", "past"));
    assert_eq!(refused(run(&[4, 1, 24], past(&[1]))), ("shape", "k"));
}

#[test]
fn attention_over_a_cache() {
    let run = |q: &[usize], dtype, [k, v]: [KvTensor; 2], len| {
        let (q, mut out) = (zeros(q, dtype), zeros(q, dtype));
        ops::attention_over_into(out.view_mut()?, &q, &k, &v, len, &Attention::default())
    };
    let both = |dims, format| [cache(dims, format), cache(dims, format)];
    let (f32, some) = (DType::F32, [4usize, 9, 16]);
    assert_eq!(run(&some, f32, both([20, 2, 16], KvFormat::Q8_0), 20), Ok(()));
    assert_eq!(refused(run(&some, f32, both([20, 2, 16], KvFormat::Q8_0), 21)), ("unsupported", "len"));
    assert_eq!(refused(run(&some, f32, both([20, 3, 16], KvFormat::Q8_0), 20)), ("shape", "k"));
    assert_eq!(refused(run(&some, f32, both([20, 0, 16], KvFormat::Q8_0), 20)), ("shape", "k"));
    assert_eq!(refused(run(&some, DType::F16, both([20, 2, 16], KvFormat::Q8_0), 20)), ("unsupported", "k"));
    assert_eq!(refused(run(&some, DType::U32, both([20, 2, 16], KvFormat::F32), 20)), ("dtype", "q"));
    assert_eq!(refused(run(&some[..2], f32, both([20, 2, 16], KvFormat::F32), 20)), ("shape", "q"));
    assert_eq!(
        refused(run(&[4, 9, 12], f32, both([20, 2, 12], KvFormat::BF16), 20)),
        ("unsupported", "head_dim")
    );
    let mixed = [cache([20, 2, 16], KvFormat::BF16), cache([20, 2, 16], KvFormat::F16)];
    assert_eq!(refused(run(&some, f32, mixed, 20)), ("unsupported", "v"));
    let shorter = [cache([20, 2, 16], KvFormat::BF16), cache([19, 2, 16], KvFormat::BF16)];
    assert_eq!(refused(run(&some, f32, shorter, 19)), ("shape", "v"));
}
