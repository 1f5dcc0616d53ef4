//! Decoder layers whose weights stay in host memory: the same kernels on the same numbers, so the same bits, in less of
//! the device's memory.

use crate::common;
use crate::common::process::in_own_process;
use pascaline::cuda::Graph;
use pascaline::nn::{Attention, Linear, Mlp, Norm, RmsNorm, Rope, StreamedBlocks, TransformerBlock};
use pascaline::ops::Activation;
use pascaline::quant::{FORMATS, Format};
use pascaline::{DType, Device, Error, Tensor, memory, ops};
use qwen3_vl::generate::user_turn;
use qwen3_vl::{LoadOptions, Options, Qwen3Vl, VisionPlace, Visual};
use std::path::{Path, PathBuf};

fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/qwen3-vl/tiny")
}

fn load(device: &Device, options: LoadOptions) -> Qwen3Vl {
    Qwen3Vl::load_with(tiny(), device, options, |_| {}).unwrap()
}

fn logits(model: &Qwen3Vl) -> Vec<u32> {
    let ids: Vec<u32> = (1..12).collect();
    let logits = model.trace(&ids, &[], &[], |_, _| {}).unwrap().to_vec::<f32>().unwrap();
    logits.into_iter().map(f32::to_bits).collect()
}

/// Bytes of the device's pool that `work` leaves handed out in its result.
fn taken<R>(device: &Device, work: impl FnOnce() -> R) -> (R, usize) {
    let Device::Cuda(device) = device else { unreachable!("a CUDA device was asked for") };
    let live = || memory::pool(device).unwrap().statistics().live;
    let before = live();
    let result = work();
    (result, live() - before)
}

/// The least bytes that a layer's matrices take, by their share of the weights; that is off by the 4-bit formats' padding to 256
/// columns, for which a tenth is given.
fn least_bytes_of_a_layer(model: &Qwen3Vl) -> usize {
    let text = &model.config().text;
    let (head, hidden) = (text.head_dim, text.hidden_size);
    let width = (2 * text.num_attention_heads + 2 * text.num_key_value_heads) * head;
    let in_layer = text.num_hidden_layers * (width + 3 * text.intermediate_size) * hidden;
    let in_head = text.vocab_size * hidden;
    model.weight_bytes() * in_layer / (in_layer + in_head) / text.num_hidden_layers * 9 / 10
}

/// All formats but those of the next test. Some have parts with sizes of their own: Q6_K's scales are 20 bytes for 256 values. (What is saved is not compared
/// to the byte: alone, such parts are rounded up, and in a layer's buffer less so.)
#[test]
fn layers_of_formats_with_uneven_parts_give_the_same_bits_from_host_memory() {
    in_own_process!();
    let device = common::cuda_device();
    let tested = [Format::I8, Format::Q8_0, Format::Q4_0, Format::Q4K];
    let uneven: Vec<_> = FORMATS.into_iter().filter(|format| !tested.contains(format)).collect();
    for &format in common::extent::first_of(3, &uneven, "formats of layers in host memory") {
        let options = LoadOptions { quantize: Some(format), ..LoadOptions::for_device(&device) };
        let expected = logits(&load(&device, options));
        let model = load(&device, LoadOptions { gpu_layers: Some(0), ..options });
        assert!(model.streamed_layers() > 0);
        assert_eq!(logits(&model), expected, "{options:?}");
    }
}

#[test]
fn layers_from_host_memory_give_the_same_bits_in_less_device_memory() {
    in_own_process!();
    let device = common::cuda_device();
    let usual = LoadOptions { dtype: DType::F32, ..LoadOptions::for_device(&device) };
    let quantize = |format| LoadOptions { quantize: Some(format), ..usual };
    let f16 = LoadOptions { dtype: DType::F16, ..usual };
    for options in [usual, f16, quantize(Format::Q8_0), quantize(Format::Q4_0), quantize(Format::Q4K)] {
        let (resident, all) = taken(&device, || load(&device, options));
        let expected = logits(&resident);
        assert_eq!(resident.streamed_layers(), 0);
        let layers = resident.config().text.num_hidden_layers;
        for gpu_layers in [0, 1, layers + 1] {
            let options = LoadOptions { gpu_layers: Some(gpu_layers), ..options };
            let (model, bytes) = taken(&device, || load(&device, options));
            let streamed = layers.saturating_sub(gpu_layers);
            assert_eq!(model.streamed_layers(), streamed);
            assert_eq!(model.weight_bytes(), resident.weight_bytes());
            assert_eq!(logits(&model), expected, "{options:?}");
            // Two buffers replace all the layers; the rounding of the small tensors is saved too.
            let saved = all.saturating_sub(bytes);
            let least = streamed.saturating_sub(2) * least_bytes_of_a_layer(&model);
            assert!(
                saved >= least && (saved > 0) == (streamed > 2),
                "{options:?}: {saved}, at least {least}"
            );
        }
    }
    answers_are_the_same(&device, usual);
}

/// With pictures, in pieces, token after token, and in a second turn.
fn answers_are_the_same(device: &Device, usual: LoadOptions) {
    let picture = || [Visual::image(&tiny().join("cases/square.png")).unwrap()];
    let options = Options { max_new_tokens: 4, stop_at_eos: false, ..Options::default() };
    let answer = |model: &Qwen3Vl| model.generate(&picture(), "What colour?", &options).unwrap();
    let expected = answer(&load(device, usual));
    assert!(expected.statistics.graph_launches.is_some());
    let streamed = LoadOptions { gpu_layers: Some(0), tokens_per_pass: 13, ..usual };
    let model = load(device, streamed);
    for turn in 0..2 {
        let found = answer(&model);
        assert_eq!(found.ids, expected.ids, "answer {turn}");
        assert_eq!((found.statistics.graph_launches, found.statistics.streamed_layers), (None, 3));
    }
}

#[test]
fn a_vision_tower_in_host_memory_sees_the_same() {
    in_own_process!();
    let device = common::cuda_device();
    let usual = LoadOptions { dtype: DType::F32, ..LoadOptions::for_device(&device) };
    let f16 = LoadOptions { dtype: DType::F16, ..usual };
    let options = Options { max_new_tokens: 4, stop_at_eos: false, ..Options::default() };
    let picture = [Visual::image(&tiny().join("cases/square.png")).unwrap()];
    for usual in [usual, f16, LoadOptions { quantize: Some(Format::Q8_0), ..usual }] {
        let embeddings = |model: &Qwen3Vl| {
            let prompt = model.processor.prepare(&[user_turn(&picture, "What?")], &picture).unwrap();
            let output = model.encode_image(&prompt.patches[0]).unwrap();
            assert!(output.embeddings.device().same(&device));
            let bits = |tensor: &Tensor| tensor.to_vec::<f32>().unwrap();
            output.deepstack.iter().chain([&output.embeddings]).flat_map(bits).collect::<Vec<_>>()
        };
        let (resident, all) = taken(&device, || load(&device, usual));
        let expected = (embeddings(&resident), resident.generate(&picture, "What?", &options).unwrap().ids);
        let at = |vision| taken(&device, || load(&device, LoadOptions { vision, ..usual }));
        let (streamed, some) = at(VisionPlace::Streamed);
        assert_eq!(embeddings(&streamed), expected.0, "the same bits");
        for turn in 0..2 {
            let ids = streamed.generate(&picture, "What?", &options).unwrap().ids;
            assert_eq!(ids, expected.1, "answer {turn}");
        }
        let (cpu, least) = at(VisionPlace::Cpu);
        assert!(least < some && some < all, "{least}, {some}, {all} bytes");
        let worst = embeddings(&cpu).iter().zip(&expected.0).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst < 1e-3, "{worst}: sums in another order"); // of values of about 1
        assert_eq!(cpu.generate(&picture, "What?", &options).unwrap().ids, expected.1);
    }
}

/// The tiny model with an output projection of its own: the embedding's rows, seven further.
pub fn untied(folder: &Path) {
    let read = |name: &str| std::fs::read(tiny().join(name)).unwrap();
    let write = |name: &str, bytes: &[u8]| std::fs::write(folder.join(name), bytes).unwrap();
    for file in std::fs::read_dir(tiny()).unwrap().map(|file| file.unwrap().path()) {
        if file.is_file() {
            std::fs::copy(&file, folder.join(file.file_name().unwrap())).unwrap();
        }
    }
    let config = String::from_utf8(read("config.json")).unwrap();
    let untied = config.replace("\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false");
    assert_ne!(config, untied);
    write("config.json", untied.as_bytes());
    let file = read("model.safetensors");
    let (length, rest) = file.split_at(8);
    let length = u64::from_le_bytes(length.try_into().unwrap()) as usize;
    let (header, data) = rest.split_at(length);
    let mut header: serde_json::Value = serde_json::from_slice(header).unwrap();
    let mut head = header["model.language_model.embed_tokens.weight"].clone();
    let [begin, end] = [0, 1].map(|index| head["data_offsets"][index].as_u64().unwrap() as usize);
    let mut values = data[begin..end].to_vec();
    let row = values.len() / head["shape"][0].as_u64().unwrap() as usize;
    values.rotate_left(7 * row);
    head["data_offsets"] = serde_json::json!([data.len(), data.len() + values.len()]);
    header["lm_head.weight"] = head;
    let header = header.to_string();
    let length = (header.len() as u64).to_le_bytes();
    write("model.safetensors", &[&length, header.as_bytes(), data, &values].concat());
}

#[test]
fn embedding_rows_from_host_memory_are_the_same() {
    in_own_process!();
    let device = common::cuda_device();
    let folder = tempfile::tempdir().unwrap();
    untied(folder.path());
    let load = |options| Qwen3Vl::load_with(folder.path(), &device, options, |_| {}).unwrap();
    let usual = LoadOptions { dtype: DType::F32, ..LoadOptions::for_device(&device) };
    let quantize = |format| LoadOptions { quantize: Some(format), ..usual };
    for options in
        [usual, LoadOptions { dtype: DType::F16, ..usual }, quantize(Format::Q8_0), quantize(Format::Q4K)]
    {
        let (resident, all) = taken(&device, || load(options));
        let text = &resident.config().text;
        let bits = if options.quantize.is_some() { 4 } else { 8 * options.dtype.size() };
        let least = text.vocab_size * text.hidden_size * bits / 8;
        let generation = Options { max_new_tokens: 6, stop_at_eos: false, ..Options::default() };
        let expected = (logits(&resident), resident.generate(&[], "What colour?", &generation).unwrap());
        let (model, some) = taken(&device, || load(LoadOptions { host_embedding: true, ..options }));
        assert!(all - some >= least, "{options:?}: {all} and {some} bytes");
        assert_eq!(logits(&model), expected.0, "{options:?}");
        let found = model.generate(&[], "What colour?", &generation).unwrap();
        assert_eq!(found.ids, expected.1.ids, "{options:?}");
        assert!(found.statistics.graph_launches.is_some(), "rows are read in a captured pass");
    }
    let tied = Qwen3Vl::load_with(tiny(), &device, LoadOptions { host_embedding: true, ..usual }, |_| {});
    assert!(matches!(tied, Err(Error::Unsupported { argument: "host_embedding", .. })));
}

/// A block of a hidden width of `n`, all ones.
fn block(n: usize, device: &Device) -> TransformerBlock {
    let tensor = |shape: &[usize]| {
        let ones = vec![1.0f32; shape.iter().product()];
        Tensor::from_slice(&ones, shape.to_vec(), device).unwrap()
    };
    let linear = |out, columns| Linear::new(tensor(&[out, columns]), Some(tensor(&[out]))).unwrap();
    let norm = || Norm::Rms(RmsNorm::new(tensor(&[n]), 1e-6).unwrap());
    TransformerBlock {
        norm1: norm(),
        attention: Attention::new(linear(3 * n, n), None, linear(n, n), [1, 1, n], true).unwrap(),
        norm2: norm(),
        mlp: Mlp::new(linear(n, n), Activation::GeluTanh, linear(n, n)).unwrap(),
    }
}

/// A block of a hidden width of 256 with random matrices in a format.
fn quantized_block(format: Format, seed: u64, device: &Device) -> TransformerBlock {
    let linear = |out: usize, seed| {
        let weight = Tensor::randn([out, 256], DType::F32, seed, device).unwrap();
        Linear::new(ops::quantize(&weight, format).unwrap(), None).unwrap()
    };
    let norm = || Norm::Rms(RmsNorm::new(Tensor::ones([256], DType::F32, device).unwrap(), 1e-6).unwrap());
    let (qkv, out) = (linear(768, seed), linear(256, seed + 1));
    TransformerBlock {
        norm1: norm(),
        attention: Attention::new(qkv, None, out, [4, 4, 64], true).unwrap(),
        norm2: norm(),
        mlp: Mlp::new(linear(256, seed + 2), Activation::Silu, linear(256, seed + 3)).unwrap(),
    }
}

/// Q4_0 and IQ4_NL have tensors of the same types and shapes; Q8_0's are larger than the buffers that were made for the first.
#[test]
fn blocks_in_different_formats_are_streamed_through_the_same_buffers() {
    in_own_process!();
    let device = common::cuda_device();
    let Device::Cuda(cuda) = &device else { unreachable!("a CUDA device was asked for") };
    let formats = [Format::Q4_0, Format::Iq4Nl, Format::Q8_0, Format::Q4_0];
    let blocks: Vec<_> =
        formats.iter().zip(1..).map(|(&format, seed)| quantized_block(format, 10 * seed, &device)).collect();
    let mut streamed = StreamedBlocks::like(&blocks[0], cuda).unwrap();
    blocks.iter().for_each(|block| streamed.push(block).unwrap());
    assert_eq!(streamed.weight_bytes(), blocks.iter().map(TransformerBlock::weight_bytes).sum::<usize>());
    let x = Tensor::randn([3, 256], DType::F32, 1, &device).unwrap();
    let angles = Tensor::zeros([3, 32], DType::F32, &device).unwrap();
    let rope = Rope::new(angles.clone(), angles, 0, 0).unwrap();
    for index in [0, 1, 2, 3, 1, 0] {
        let found = streamed.forward(index, &x, &rope, None).unwrap().to_vec::<f32>().unwrap();
        let want = blocks[index].forward(&x, &rope, None).unwrap().to_vec::<f32>().unwrap();
        assert_eq!(found, want, "block {index}");
    }
}

#[test]
fn what_can_not_pass_is_refused() {
    in_own_process!();
    let device = common::cuda_device();
    let Device::Cuda(cuda) = &device else { unreachable!("a CUDA device was asked for") };
    let mut blocks = StreamedBlocks::like(&block(32, &device), cuda).unwrap();
    let unlike = blocks.push(&block(64, &device));
    assert!(matches!(unlike, Err(Error::Shape { op: "StreamedBlocks", .. })), "{unlike:?}");
    blocks.push(&block(32, &device)).unwrap();
    assert_eq!((blocks.len(), blocks.is_empty()), (1, false));
    let x = Tensor::zeros([1, 32], DType::F32, &device).unwrap();
    let angles = Tensor::zeros([1, 16], DType::F32, &device).unwrap();
    let rope = Rope::new(angles.clone(), angles, 0, 0).unwrap();
    let missing = blocks.forward(1, &x, &rope, None);
    assert!(matches!(missing, Err(Error::Unsupported { argument: "layer", .. })), "{missing:?}");
    let captured = Graph::capture(cuda, || blocks.forward(0, &x, &rope, None));
    assert!(matches!(captured, Err(Error::Unsupported { argument: "stream", .. })), "{captured:?}");
    let expected = block(32, &device).forward(&x, &rope, None).unwrap().to_vec::<f32>().unwrap();
    assert_eq!(blocks.forward(0, &x, &rope, None).unwrap().to_vec::<f32>().unwrap(), expected);
}
