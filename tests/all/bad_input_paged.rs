//! Arguments that attention over pages refuses: a typed error that names the argument, before anything is launched. Tables and lengths are in
//! device memory, where a GPU's kernels alone read them: whatever they hold, nothing outside of the pool is read.

use crate::common::refused::refused;
use pascaline::kv::{KvFormat, KvTensor};
use pascaline::nn::{Attention, KvPages, Linear, PagedRows, PromptRows, Rope};
use pascaline::ops::{self, PAGE, Projection};
use pascaline::{DType, Device, Result, Tensor};

fn zeros(dims: &[usize], dtype: DType) -> Tensor {
    Tensor::zeros(dims, dtype, &Device::Cpu).unwrap()
}

fn f32s(dims: &[usize]) -> Tensor {
    zeros(dims, DType::F32)
}

fn u32s(dims: &[usize]) -> Tensor {
    zeros(dims, DType::U32)
}

fn pool(dims: [usize; 3], format: KvFormat) -> KvTensor {
    KvTensor::uninitialized(dims, format, &Device::Cpu).unwrap()
}

/// Valid arguments of both ops: 4 query heads over 2 of keys and values, of 16 elements, in a pool of 3 pages.
struct Call {
    out: Tensor,
    q: Tensor,
    k: KvTensor,
    v: KvTensor,
    table: Tensor,
    /// The number of tokens, or of each sequence's.
    len: usize,
    lens: Tensor,
}

/// Five queries of one sequence.
fn one(change: impl Fn(&mut Call)) -> Result<()> {
    let kv = || pool([3 * PAGE, 2, 16], KvFormat::F32);
    let (out, q, table) = (f32s(&[4, 5, 16]), f32s(&[4, 5, 16]), u32s(&[2]));
    let mut call = Call { out, q, k: kv(), v: kv(), table, len: 2 * PAGE, lens: u32s(&[0]) };
    change(&mut call);
    let Call { mut out, q, k, v, table, len, .. } = call;
    ops::paged_attention_into(out.view_mut()?, &q, &k, &v, &table, len, None)
}

/// A query for each of five sequences.
fn each(change: impl Fn(&mut Call)) -> Result<()> {
    let kv = || pool([3 * PAGE, 2, 16], KvFormat::F32);
    let (out, q, table) = (f32s(&[5, 4, 16]), f32s(&[5, 4, 16]), u32s(&[5, 2]));
    let mut call = Call { out, q, k: kv(), v: kv(), table, len: 0, lens: u32s(&[5]) };
    change(&mut call);
    let Call { mut out, q, k, v, table, lens, .. } = call;
    ops::paged_attention_each_into(out.view_mut()?, &q, &k, &v, &table, &lens, None)
}

/// Both ops check these in the same way.
fn both(change: impl Fn(&mut Call)) -> (&'static str, &'static str) {
    let found = refused(one(&change));
    assert_eq!(refused(each(&change)), found);
    found
}

#[test]
fn queries_and_results() {
    assert_eq!((one(|_| {}), each(|_| {})), (Ok(()), Ok(())));
    assert_eq!(both(|call| call.q = f32s(&[4, 16])), ("shape", "q"));
    assert_eq!(both(|call| call.q = f32s(&[1, 4, 5, 16])), ("shape", "q"));
    assert_eq!(both(|call| call.q = zeros(call.q.dims(), DType::F16)), ("dtype", "q"));
    assert_eq!(both(|call| call.q = u32s(call.q.dims())), ("dtype", "q"));
    assert_eq!(both(|call| call.out = zeros(call.q.dims(), DType::F16)), ("dtype", "out"));
    assert_eq!(both(|call| call.out = f32s(&[5, 5, 16])), ("shape", "out"));
    assert_eq!(both(|call| call.q = call.q.swap_dims(0, 2).unwrap()), ("layout", "q"));
    let narrow = |dims: &[usize]| f32s(dims).narrow(2, 2, 16).unwrap();
    assert_eq!(
        refused(one(|call| call.q = narrow(&[4, 5, 20]))),
        ("layout", "q"),
        "its rows are not aligned"
    );
    assert_eq!(refused(each(|call| call.q = narrow(&[5, 4, 20]))), ("layout", "q"));
    for head_dim in [0, 8, 136] {
        let head_dim = |call: &mut Call| {
            let &[a, b, _] = call.q.dims() else { unreachable!("three dimensions") };
            (call.q, call.out) = (f32s(&[a, b, head_dim]), f32s(&[a, b, head_dim]));
            let kv = || pool([3 * PAGE, 2, head_dim], KvFormat::F32);
            (call.k, call.v) = (kv(), kv());
        };
        assert_eq!(both(head_dim), ("unsupported", "head_dim"));
    }
}

#[test]
fn pools() {
    let dims = |dims| {
        move |call: &mut Call| (call.k, call.v) = (pool(dims, KvFormat::F32), pool(dims, KvFormat::F32))
    };
    for wrong in [
        [3 * PAGE, 3, 16], // 4 heads are no multiple of 3
        [3 * PAGE, 0, 16],
        [3 * PAGE, 2, 32],
        [3 * PAGE + 1, 2, 16], // not whole pages
        [PAGE - 1, 2, 16],
        [0, 2, 16],
    ] {
        assert_eq!(both(dims(wrong)), ("shape", "k"), "{wrong:?}");
    }
    for wrong in [[2 * PAGE, 2, 16], [3 * PAGE, 1, 16], [3 * PAGE, 2, 32]] {
        assert_eq!(both(|call| call.v = pool(wrong, KvFormat::F32)), ("shape", "v"), "{wrong:?}");
    }
    let formats = |k, v| {
        move |call: &mut Call| (call.k, call.v) = (pool([3 * PAGE, 2, 16], k), pool([3 * PAGE, 2, 16], v))
    };
    for format in [KvFormat::F16, KvFormat::BF16, KvFormat::Q8_0] {
        assert_eq!(
            (one(formats(format, format)), each(formats(format, format))),
            (Ok(()), Ok(())),
            "{format}"
        );
        assert_eq!(both(formats(KvFormat::F32, format)), ("unsupported", "v"));
        assert_eq!(both(formats(format, KvFormat::F32)), ("unsupported", "v"));
    }
    let pages = |layers, pages| KvPages::new(layers, pages, 2, 16, KvFormat::F32, &Device::Cpu);
    assert_eq!(refused(pages(1, usize::MAX)), ("too large", "dims"));
    assert_eq!(refused(pages(1, 1 << 28)), ("too large", "dims"));
    assert!(pages(0, 4).is_ok());
}

#[test]
fn tables_and_lengths() {
    let table = |table: Tensor| refused(one(|call| call.table = table.clone()));
    assert_eq!(table(u32s(&[2, 1])), ("shape", "table"));
    assert_eq!(table(u32s(&[])), ("shape", "table"));
    assert_eq!(table(f32s(&[2])), ("dtype", "table"));
    assert_eq!(table(u32s(&[1])), ("unsupported", "len"), "32 tokens in one page");
    assert_eq!(table(u32s(&[0])), ("unsupported", "len"));
    for len in [2 * PAGE + 1, u32::MAX as usize, usize::MAX] {
        let found = refused(one(|call| call.len = len));
        assert!(found == ("unsupported", "len") || found == ("too large", "len"), "{len}: {found:?}");
    }
    let tables = |table: Tensor| refused(each(|call| call.table = table.clone()));
    assert_eq!(tables(u32s(&[4, 2])), ("shape", "tables"));
    assert_eq!(tables(u32s(&[10])), ("shape", "tables"));
    assert_eq!(tables(f32s(&[5, 2])), ("dtype", "tables"));
    assert_eq!(tables(u32s(&[2, 5]).swap_dims(0, 1).unwrap()), ("layout", "tables"));
    let lens = |lens: Tensor| refused(each(|call| call.lens = lens.clone()));
    assert_eq!(lens(u32s(&[4])), ("shape", "lens"));
    assert_eq!(lens(u32s(&[5, 1])), ("shape", "lens"));
    assert_eq!(lens(u32s(&[])), ("shape", "lens"));
    assert_eq!(lens(f32s(&[5])), ("dtype", "lens"));
}

/// On the CPU, where tables can be read.
#[test]
fn pages_that_the_pool_does_not_have() {
    let cpu = &Device::Cpu;
    for page in [3, 1 << 28, u32::MAX] {
        let table = Tensor::from_slice(&[0, page], [2], cpu).unwrap();
        let with = |len| one(|call| (call.table, call.len) = (table.clone(), len));
        assert_eq!(refused(with(2 * PAGE)), ("unsupported", "table"), "page {page}");
        assert_eq!(refused(with(PAGE + 1)), ("unsupported", "table"));
        assert_eq!(with(PAGE), Ok(()), "it is not read");
        let tables = Tensor::from_slice(&[0, 1, 2, 0, 1, 2, 0, page, 0, 0], [5, 2], cpu).unwrap();
        let with = |len: usize| {
            let lens = Tensor::from_slice(&[0, 1, 2, len as u32, 9], [5], cpu).unwrap();
            each(|call| (call.table, call.lens) = (tables.clone(), lens.clone()))
        };
        assert_eq!(refused(with(PAGE + 1)), ("unsupported", "tables"));
        assert_eq!(refused(with(usize::MAX)), ("unsupported", "tables"), "all its pages count");
        assert_eq!(with(PAGE), Ok(()));
    }
}

#[test]
fn modules() {
    let cpu = &Device::Cpu;
    let linear = |rows, cols| Linear::new(f32s(&[rows, cols]), None).unwrap();
    let attention = Attention::new(linear(48, 16), None, linear(16, 16), [1, 1, 16], true).unwrap();
    let run = |rows: usize, reads: &PagedRows| {
        let mut pages = KvPages::new(1, 4, 1, 16, KvFormat::F32, cpu).unwrap();
        let rope = Rope { cos: f32s(&[1, 8]), sin: f32s(&[1, 8]), at: u32s(&[2, rows]) };
        attention.forward(&f32s(&[rows, 16]), &rope, pages.caches(reads).next())
    };
    let each = |tables: &[usize], lens: &[usize]| PagedRows {
        each: Some([u32s(tables), u32s(lens)]),
        prompts: vec![],
    };
    let prompt = |rows, len| PromptRows { rows, table: u32s(&[2]), len, sparse: None };
    let prompts = |prompts| PagedRows { each: None, prompts };
    assert!(run(3, &each(&[3, 2], &[3])).is_ok());
    assert!(run(3, &prompts(vec![prompt(3, 20)])).is_ok());
    assert_eq!(refused(run(2, &each(&[3, 2], &[3]))), ("shape", "x"));
    assert_eq!(refused(run(3, &each(&[2, 2], &[3]))), ("shape", "tables"));
    assert_eq!(refused(run(0, &each(&[0, 2], &[]))), ("shape", "lens"));
    assert_eq!(refused(run(3, &prompts(vec![prompt(2, 20)]))), ("shape", "x"));
    assert_eq!(refused(run(3, &prompts(vec![prompt(usize::MAX, 20), prompt(4, 20)]))), ("shape", "x"));
    assert_eq!(refused(run(3, &prompts(vec![prompt(3, 2 * PAGE + 1)]))), ("unsupported", "len"));
    let endless = refused(run(3, &prompts(vec![prompt(3, usize::MAX)])));
    assert!(endless == ("unsupported", "len") || endless == ("too large", "len"), "{endless:?}");
}

/// A pool of one page of ones, so that the result is one whatever keys are read.
#[test]
fn nothing_outside_of_the_pool_is_read() {
    let gpu = &Device::virtual_gpu().unwrap();
    let is_one = |x: &f32| (x - 1.0).abs() < 1e-3; // a block's scale is rounded to f16
    for format in [KvFormat::F32, KvFormat::F16, KvFormat::Q8_0] {
        let room = || KvTensor::uninitialized([PAGE, 1, 64], format, gpu).unwrap();
        let (mut k, mut v) = (room(), room());
        let (mut q, qkv) = (
            Tensor::uninitialized([PAGE, 1, 64], DType::F32, gpu).unwrap(),
            Tensor::ones([PAGE, 3, 64], DType::F32, gpu).unwrap(),
        );
        let (cos, sin) = (Tensor::ones([1, 32], DType::F32, gpu), Tensor::zeros([1, 32], DType::F32, gpu));
        let at = Tensor::from_slice(&[0u32, 0], [2], gpu).unwrap();
        let views = [k.view_mut().unwrap(), v.view_mut().unwrap()];
        let [cos, sin] = [cos.unwrap(), sin.unwrap()];
        ops::rope_append_into(q.view_mut().unwrap(), views, &qkv, [&cos, &sin], None, &at).unwrap();
        // appended to places that there are not: dropped, and the others are read
        let places = Tensor::full(u32::MAX, [2, PAGE], gpu).unwrap();
        let one = Tensor::full(u32::MAX, [2], gpu).unwrap();
        let few = qkv.narrow(0, 0, 8).unwrap();
        let from = Projection { qkv: &few, cos: &cos, sin: &sin, norms: None, at: &one };
        let mut out = Tensor::zeros([8, 1, 64], DType::F32, gpu).unwrap();
        ops::append_attention_into(out.view_mut().unwrap(), [&mut k, &mut v], &from, None).unwrap();
        assert!(out.to_vec::<f32>().unwrap().iter().all(is_one), "{format}");
        for page in [1, 1 << 28, u32::MAX] {
            let table = Tensor::from_slice(&[page; 2], [2], gpu).unwrap();
            let mut out = Tensor::zeros([1, PAGE, 64], DType::F32, gpu).unwrap();
            let queries = q.swap_dims(0, 1).unwrap();
            let into = out.view_mut().unwrap();
            ops::paged_attention_into(into, &queries, &k, &v, &table, 2 * PAGE, None).unwrap();
            assert!(out.to_vec::<f32>().unwrap().iter().all(is_one), "{format}, page {page}");
            let tables = Tensor::from_slice(&[page; 2 * PAGE], [PAGE, 2], gpu).unwrap();
            let lens = Tensor::from_slice(&[u32::MAX; PAGE], [PAGE], gpu).unwrap();
            let mut out = Tensor::zeros([PAGE, 1, 64], DType::F32, gpu).unwrap();
            let into = out.view_mut().unwrap();
            ops::paged_attention_each_into(into, &q, &k, &v, &tables, &lens, None).unwrap();
            assert!(out.to_vec::<f32>().unwrap().iter().all(is_one), "{format}, page {page}");
            let from = Projection { qkv: &qkv, cos: &cos, sin: &sin, norms: None, at: &places };
            let (into, kv) = (out.view_mut().unwrap(), [&mut k, &mut v]);
            ops::paged_append_attention_into(into, kv, &from, [&tables, &lens], None).unwrap();
            assert!(out.to_vec::<f32>().unwrap().iter().all(is_one), "{format}, page {page}, appended");
        }
    }
    assert_eq!(pascaline_virtual_gpu::take_findings(), []);
}

/// Tables and lengths that are views: what is beside them in memory is not read.
#[test]
fn nothing_beyond_a_view_is_read() {
    let tables = |values: &[u32]| Tensor::from_slice(values, [values.len() / 2, 2], &Device::Cpu).unwrap();
    let lens = |values: &[u32]| Tensor::from_slice(values, [values.len()], &Device::Cpu).unwrap();
    let call = each(|call| {
        call.table = tables(&[0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 99, 99]).narrow(0, 0, 5).unwrap();
        call.lens = lens(&[1, 2, 3, 4, 5, 64]).narrow(0, 0, 5).unwrap();
    });
    assert_eq!(call, Ok(()));
    let call = each(|call| {
        call.table = tables(&[0, 1, 2, 0, 1, 2, 0, 1, 2, 99]).narrow(0, 0, 5).unwrap();
        call.lens = lens(&[64; 5]);
    });
    assert_eq!(refused(call), ("unsupported", "tables"), "a page of a sequence");
}
