//! Long prompts that read a part of their keys: with all tiles nothing changes, with fewer a session and a batch still agree; and arguments
//! that the ops refuse.

use crate::common::refused::refused;
use pascaline::kv::{KvFormat, KvTensor};
use pascaline::ops::{self, PAGE, QUERIES_PER_CHOICE, SequenceKv};
use pascaline::{DType, Device, Result, Tensor};
use qwen3_vl::batch::{Batch, BatchOptions, Event};
use qwen3_vl::generate::user_turn;
use qwen3_vl::sparse::{LEAST_KEYS, SoftmaxShare};
use qwen3_vl::{LoadOptions, Options, Prompt, Qwen3Vl};
use std::ops::ControlFlow;
use std::path::Path;

fn model(share: Option<f64>) -> Qwen3Vl {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/qwen3-vl/tiny");
    let sparse_prefill = share.map(|share| SoftmaxShare::new(share).unwrap());
    let options = LoadOptions { sparse_prefill, ..LoadOptions::for_device(&Device::Cpu) };
    let mut model = Qwen3Vl::load_with(dir, &Device::Cpu, options, |_| {}).unwrap();
    model.processor.config.text.max_position_embeddings = 4 * LEAST_KEYS;
    model
}

fn prompt(model: &Qwen3Vl, words: usize) -> Prompt {
    let text: String = (0..words).map(|word| format!(" {}", word * word % 97)).collect();
    model.processor.prepare(&[user_turn(&[], &text)], &[]).unwrap()
}

/// The last token's normalised hidden state.
fn state(model: &Qwen3Vl, prompt: &Prompt) -> Vec<f32> {
    model.embed_prompt(prompt).unwrap().vector
}

#[test]
fn all_tiles_are_plain_attention_and_fewer_are_not() {
    let dense = model(None);
    let (long, short) = (prompt(&dense, 1600), prompt(&dense, 500));
    assert!(long.ids.len() > LEAST_KEYS + 300 && short.ids.len() < LEAST_KEYS, "{}", long.ids.len());
    let states = |share| [&long, &short].map(|prompt| state(&model(share), prompt));
    let [of_long, of_short] = states(None);
    assert_eq!(states(Some(1.0)), [of_long.clone(), of_short.clone()]);
    let [sparse, same] = states(Some(0.3));
    assert_eq!(same, of_short, "a short prompt reads all keys");
    assert_ne!(sparse, of_long);
    let error = sparse.iter().zip(&of_long).fold(0.0, |most: f32, (a, b)| most.max((a - b).abs()));
    assert!(error < 0.5, "an error of {error}, of a vector of length 1");
}

/// Keys are in consecutive rows there and in pages here.
#[test]
fn a_batch_answers_as_a_session() {
    let model = model(Some(0.3));
    let (prompt, options) =
        (prompt(&model, 1600), Options { max_new_tokens: 6, stop_at_eos: false, ..Options::default() });
    let go_on = |_: &str| ControlFlow::Continue(());
    let alone = model.generate_from(&mut model.session().unwrap(), &prompt, &options, go_on).unwrap();
    let mut batch = Batch::new(&model, BatchOptions::with_room(2 * prompt.ids.len())).unwrap();
    batch.add(prompt, &options).unwrap();
    let output = loop {
        let finished = batch.step().into_iter().find_map(|event| match event {
            Event::Finished { output, .. } => Some(output),
            Event::Failed { error, .. } => panic!("{error}"),
            Event::Token { .. } => None,
        });
        if let Some(output) = finished {
            break output;
        }
    };
    assert_eq!(output.ids, alone.ids);
}

/// Valid arguments: 4 query heads over 2 of keys and values, of 16 elements, 3 pages, and the choice for the same sizes.
struct Call {
    q: Tensor,
    k: KvTensor,
    v: KvTensor,
    table: Option<Tensor>,
    len: usize,
    local: Tensor,
    share: f32,
    out: Tensor,
}

fn zeros(dims: &[usize], dtype: DType) -> Tensor {
    Tensor::zeros(dims, dtype, &Device::Cpu).unwrap()
}

fn pool(dims: [usize; 3], format: KvFormat) -> KvTensor {
    KvTensor::uninitialized(dims, format, &Device::Cpu).unwrap()
}

fn call(change: impl Fn(&mut Call)) -> Result<()> {
    let kv = || pool([3 * PAGE, 2, 16], KvFormat::F32);
    let q = zeros(&[4, 5, 16], DType::F32);
    let mut call = Call {
        out: q.clone(),
        q,
        k: kv(),
        v: kv(),
        table: Some(zeros(&[2], DType::U32)),
        len: 2 * PAGE,
        local: zeros(&[1], DType::U32),
        share: 0.5,
    };
    change(&mut call);
    let Call { q, k, v, table, len, local, share, out } = call;
    let kv = SequenceKv { k: &k, v: &v, table: table.as_ref(), len };
    let tiles = ops::choose_tiles(&q, kv, &local, share, None)?;
    let mut out = Tensor::zeros(out.shape(), out.dtype(), &Device::Cpu)?;
    ops::attention_over_tiles_into(out.view_mut()?, &q, kv, &tiles, None)
}

#[test]
fn arguments_are_checked() {
    call(|_| {}).unwrap();
    call(|call| call.table = None).unwrap();
    let of = |change: &dyn Fn(&mut Call)| refused(call(change));
    assert_eq!(of(&|call| call.q = zeros(&[5, 16], DType::F32)), ("shape", "q"));
    assert_eq!(of(&|call| call.q = zeros(&[4, 5, 16], DType::F16)), ("dtype", "q"));
    assert_eq!(of(&|call| call.q = zeros(&[3, 5, 16], DType::F32)), ("shape", "k"));
    assert_eq!(of(&|call| call.q = zeros(&[4, 5, 24], DType::F32)), ("shape", "k"));
    assert_eq!(of(&|call| call.v = pool([2 * PAGE, 2, 16], KvFormat::F32)), ("shape", "v"));
    assert_eq!(of(&|call| call.v = pool([3 * PAGE, 2, 16], KvFormat::F16)), ("unsupported", "v"));
    assert_eq!(of(&|call| call.table = Some(zeros(&[2], DType::F32))), ("dtype", "table"));
    assert_eq!(of(&|call| call.table = Some(zeros(&[1, 2], DType::U32))), ("shape", "table"));
    let page = |page: u32| {
        move |call: &mut Call| call.table = Some(Tensor::from_slice(&[0, page], [2], &Device::Cpu).unwrap())
    };
    assert_eq!(of(&page(3)), ("unsupported", "table"));
    for (table, len) in [(true, 2 * PAGE + 1), (false, 3 * PAGE + 1), (false, 4), (true, usize::MAX)] {
        let change = |call: &mut Call| {
            call.len = len;
            call.table = call.table.take().filter(|_| table);
        };
        assert_eq!(of(&change), ("unsupported", "len"), "{len}");
    }
    for share in [-0.1, 1.5, f32::NAN] {
        assert_eq!(of(&|call| call.share = share), ("unsupported", "share"));
    }
    assert_eq!(of(&|call| call.local = zeros(&[2], DType::U32)), ("shape", "local"));
    assert_eq!(of(&|call| call.local = zeros(&[1], DType::F32)), ("dtype", "local"));
    assert_eq!(of(&|call| call.out = zeros(&[4, 6, 16], DType::F32)), ("shape", "out"));
}

#[test]
fn tiles_are_those_of_the_same_sizes() {
    let (k, v) = (pool([200, 2, 16], KvFormat::F32), pool([200, 2, 16], KvFormat::F32));
    let kv = |len| SequenceKv { k: &k, v: &v, table: None, len };
    let (q, local) = (zeros(&[4, 5, 16], DType::F32), zeros(&[1], DType::U32));
    let tiles = ops::choose_tiles(&q, kv(150), &local, 0.5, None).unwrap();
    let mut out = zeros(&[4, 5, 16], DType::F32);
    let mut with = |len| ops::attention_over_tiles_into(out.view_mut().unwrap(), &q, kv(len), &tiles, None);
    with(150).unwrap();
    assert_eq!(refused(with(151)), ("shape", "tiles"));
    let mut out = zeros(&[4, 6, 16], DType::F32);
    let more = zeros(&[4, 6, 16], DType::F32);
    assert_eq!(
        refused(ops::attention_over_tiles_into(out.view_mut().unwrap(), &more, kv(150), &tiles, None)),
        ("shape", "tiles")
    );
}

/// Bits, on the CPU and by the kernels.
#[test]
fn all_tiles_give_the_bits_of_attention_over_pages() {
    for device in [Device::Cpu, Device::virtual_gpu().unwrap()] {
        for (q_len, len) in [(70usize, 300usize), (64, 64), (130, 257)] {
            let pages = len.div_ceil(PAGE);
            let rows = pages * PAGE;
            let qkv = Tensor::randn([rows, 4, 64], DType::F32, 1, &device).unwrap();
            let room = || KvTensor::uninitialized([rows, 1, 64], KvFormat::F16, &device).unwrap();
            let (mut k, mut v) = (room(), room());
            let (cos, sin) =
                (Tensor::ones([1, 32], DType::F32, &device), Tensor::zeros([1, 32], DType::F32, &device));
            let at: Vec<u32> = (0..rows as u32).chain(std::iter::repeat_n(0, rows)).collect();
            let at = Tensor::from_slice(&at, [2, rows], &device).unwrap();
            let mut q = Tensor::zeros([rows, 2, 64], DType::F32, &device).unwrap();
            let views = [k.view_mut().unwrap(), v.view_mut().unwrap()];
            ops::rope_append_into(
                q.view_mut().unwrap(),
                views,
                &qkv,
                [&cos.unwrap(), &sin.unwrap()],
                None,
                &at,
            )
            .unwrap();
            let q = q.narrow(0, 0, q_len).unwrap().swap_dims(0, 1).unwrap();
            let table: Vec<u32> = (0..pages as u32).rev().collect();
            let table = Tensor::from_slice(&table, [pages], &device).unwrap();
            let blocks = q_len.div_ceil(QUERIES_PER_CHOICE);
            let local = Tensor::zeros([blocks], DType::U32, &device).unwrap();
            let kv = SequenceKv { k: &k, v: &v, table: Some(&table), len };
            let mut outs = [(); 2].map(|()| Tensor::zeros([2, q_len, 64], DType::F32, &device).unwrap());
            let [dense, chosen] = &mut outs;
            ops::paged_attention_into(dense.view_mut().unwrap(), &q, &k, &v, &table, len, None).unwrap();
            let tiles = ops::choose_tiles(&q, kv, &local, 1.0, None).unwrap();
            ops::attention_over_tiles_into(chosen.view_mut().unwrap(), &q, kv, &tiles, None).unwrap();
            let [dense, chosen] = outs.map(|out| out.to_vec::<f32>().unwrap());
            assert_eq!(dense, chosen, "{device}: {q_len} queries, {len} keys");
        }
    }
}
