//! Tests of the language crate that need a model.

use crate::batch::{Batch, BatchOptions};
use crate::config;
use crate::footprint::{Gpu, Planned};
use crate::generate::user_turn;
use crate::gguf::{GgmlType, Mix};
use crate::options::Storage;
use crate::rows::Cut;
use crate::tokenizer::Tokenizer;
use crate::weights::Weights;
use crate::{Checkpoint, LoadOptions, Matrices, Options, Qwen3Vl, Visual};
use half::f16;
use language::seam::LM_HEAD;
use language::seam::MANY;
use pascaline::kv::KvFormat;
use pascaline::nn::Matrix;
use pascaline::quant::Format;
use pascaline::{DType, Device, Result, Tensor, cuda};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/qwen3-vl/tiny")
}

#[test]
fn the_spellings_are_those_of_the_tokenizer() {
    let tokenizer = Tokenizer::load(&tiny(), &config::load(&tiny()).unwrap()).unwrap();
    assert_eq!(tokenizer.controls().len(), 8);
    for control in tokenizer.controls() {
        let ids = tokenizer.encode(control).unwrap();
        let spelled: Vec<_> = ids.iter().map(|&id| tokenizer.control(id)).collect();
        assert_eq!(spelled, [Some(control.clone())]);
    }
}

#[test]
fn parts_for_several_devices_are_read_once() {
    let config = config::load(&tiny()).unwrap();
    let names =
        ["q_proj", "k_proj"].map(|part| format!("model.language_model.layers.0.self_attn.{part}.weight"));
    for dtype in [DType::F32, DType::F16] {
        let mut weights = Weights::open(&tiny(), &config, dtype, &Device::Cpu).unwrap();
        let read = |matrix: Matrix| match matrix {
            Matrix::Plain(tensor) => tensor,
            _ => panic!("it is a float matrix"),
        };
        let whole = read(weights.weight(&names).unwrap());
        assert_eq!(weights.reads(), 0);
        for of in [2, 4] {
            let columns = whole.dims()[1] / of;
            for index in 0..of {
                let part = read(weights.cut(&names, Cut::Columns { index, of }).unwrap());
                let expected = whole.narrow(1, index * columns, columns).unwrap().contiguous().unwrap();
                assert_eq!(bits(&part), bits(&expected));
            }
        }
        assert_eq!(weights.reads(), 2, "one for each matrix");
        weights.let_go();
        weights.cut(&names, Cut::Rows { index: 0, of: 2 }).unwrap();
        assert_eq!(weights.reads(), 4);
    }
}

fn bits(tensor: &Tensor) -> Vec<u32> {
    match tensor.dtype() {
        DType::F16 => tensor.to_vec::<f16>().unwrap().into_iter().map(|x| x.to_bits().into()).collect(),
        _ => tensor.to_vec::<f32>().unwrap().into_iter().map(f32::to_bits).collect(),
    }
}

#[test]
fn the_count_is_that_of_the_list() {
    for (layers, depth, deepstack, tied) in [(3, 4, "0,2", true), (7, 11, "", false), (1, 1, "0", true)] {
        let config = format!(
            r#"{{"model_type": "qwen3_vl", "tie_word_embeddings": {tied}, "image_token_id": 1, "video_token_id": 1,
            "vision_start_token_id": 1, "vision_end_token_id": 1, "text_config": {{"hidden_size": 8,
            "intermediate_size": 8, "num_hidden_layers": {layers}, "num_attention_heads": 1, "vocab_size": 8,
            "rope_theta": 1.0, "rope_scaling": {{"mrope_section": [2, 1, 1]}}}}, "vision_config": {{"depth": {depth},
            "hidden_size": 4, "intermediate_size": 8, "num_heads": 1, "patch_size": 1, "temporal_patch_size": 1,
            "spatial_merge_size": 1, "num_position_embeddings": 4, "out_hidden_size": 8,
            "deepstack_visual_indexes": [{deepstack}]}}}}"#
        );
        let config = config::parse(Path::new("config.json"), config.as_bytes()).unwrap();
        assert_eq!(config.tensor_count(), config.tensors().len());
    }
}

#[test]
fn the_type_of_further_matrices_can_change() {
    let config = config::load(&tiny()).unwrap();
    let mut weights = Weights::open(&tiny(), &config, DType::F32, &Device::Cpu).unwrap();
    for dtype in [DType::F32, DType::F16] {
        weights.store_as(Matrices::Float(dtype));
        let matrix = weights.weight(&[config.embedding()]).unwrap();
        assert!(matches!(matrix, Matrix::Plain(tensor) if tensor.dtype() == dtype));
    }
}

#[test]
fn missing_tensors_are_listed_up_to_a_number() {
    let mut config = config::load(&tiny()).unwrap();
    config.text.num_hidden_layers = MANY;
    let count = config.tensor_count();
    assert_eq!(config.far_more_than(count - MANY), None);
    assert_eq!(config.far_more_than(count - MANY - 1), Some(count));
}

/// A module that is launched and was not loaded ahead makes the first answer wait.
#[test]
fn what_is_launched_was_loaded_ahead() -> Result<()> {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures");
    let tiny = tiny();
    let mixed = fixtures.join("qwen3-vl-gguf/model-Q4_K_M.gguf");
    let device = Device::virtual_gpu()?;
    let module_of = |kernel: &str| {
        let mut all = kernels_gpu::KERNELS.iter().copied().flatten();
        all.find(|info| info.name == kernel).map_or("none", |info| info.module)
    };
    for (path, dtype, quantize, cache) in [
        (&tiny, DType::F32, None, KvFormat::F32),
        (&tiny, DType::F16, None, KvFormat::F16),
        (&tiny, DType::F16, None, KvFormat::BF16),
        (&tiny, DType::F16, Some(Format::Q8_0), KvFormat::F32),
        (&tiny, DType::F16, Some(Format::Q4_0), KvFormat::Q8_0),
        (&tiny, DType::F16, Some(Format::Q4K), KvFormat::F16),
        (&tiny, DType::F16, Some(Format::Q6K), KvFormat::F16),
        (&mixed, DType::F16, None, KvFormat::F32),
    ] {
        let options = LoadOptions { dtype, quantize, cache, ..LoadOptions::for_device(&device) };
        let generation = Options { max_new_tokens: 3, ..Options::default() };
        let picture = [Visual::image(&tiny.join("cases/small.png"))?];
        let (answered, launched) = cuda::trace(|| -> Result<_> {
            let model = Qwen3Vl::load_with(path, &device, options, |_| {})?;
            model.generate(&picture, "What is it?", &generation)?;
            Ok(model)
        });
        let model = answered?;
        let checkpoint = Checkpoint::open(path, None)?;
        let storage = |name: &str| checkpoint.storage(model.config(), &options, name);
        let planned = Planned { config: model.config(), storage: &storage, options: &options };
        let Device::Cuda(gpu) = &device else { unreachable!("it is virtual") };
        let mut ahead: BTreeSet<_> = planned.modules(None, &Gpu::from_device(gpu))?.into_iter().collect();
        let late = |launched: Vec<&'static str>, ahead: &BTreeSet<&'static str>| {
            let launched: BTreeSet<_> = launched.into_iter().map(module_of).collect();
            let late: Vec<_> = launched.difference(ahead).copied().collect();
            assert!(late.is_empty(), "{path:?} {dtype:?} {quantize:?} {cache:?}: {late:?}");
        };
        late(launched, &ahead);
        let batch = BatchOptions::with_room(400);
        let (answered, launched) = cuda::trace(|| -> Result<()> {
            let mut batch = Batch::new(&model, batch)?;
            for _ in 0..2 {
                let prompt = model.processor.prepare(&[user_turn(&picture, "What is it?")], &picture)?;
                batch.add(prompt, &generation)?;
            }
            while !batch.is_idle() {
                batch.step();
            }
            Ok(())
        });
        answered?;
        ahead.extend(planned.modules(Some(&batch), &Gpu::from_device(gpu))?);
        late(launched, &ahead);
    }
    Ok(())
}

/// Of 36 layers, with four query heads for each key head, as in the 8B model: by hand from llama.cpp's rules.
#[test]
fn layers_that_matter_get_larger_types() {
    let mut config = config::load(&tiny()).unwrap();
    config.text.num_hidden_layers = 36;
    let mut heads = |of_keys: usize| {
        (config.text.num_attention_heads, config.text.num_key_value_heads) = (4 * of_keys, of_keys);
        let config = config.clone();
        move |mix: Mix, layer: usize, name: &str| {
            mix.type_for(&format!("model.language_model.layers.{layer}.{name}.weight"), &[512, 512], &config)
        }
    };
    let of = heads(8);
    let of_mix = |mix: Mix, name: &str, ty: GgmlType| -> Vec<usize> {
        (0..36).filter(|&layer| of(mix, layer, name) == ty).collect()
    };
    let matter = [0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 30, 31, 32, 33, 34, 35];
    assert_eq!(of_mix(Mix::Q4_K_M, "mlp.down_proj", GgmlType::Q6_K), matter);
    assert_eq!(of_mix(Mix::Q4_K_M, "self_attn.v_proj", GgmlType::Q6_K), matter);
    assert!(of_mix(Mix::Q4_K_M, "mlp.up_proj", GgmlType::Q6_K).is_empty());
    assert_eq!(of_mix(Mix::IQ4_XS, "mlp.down_proj", GgmlType::Q5_K), [0, 1, 2, 3]);
    assert_eq!(of_mix(Mix::IQ4_XS, "self_attn.v_proj", GgmlType::Q5_K).len(), 36);
    assert_eq!(of_mix(Mix::MXFP4_MOE, "mlp.experts.down_proj", GgmlType::MXFP4).len(), 36);
    assert_eq!(of_mix(Mix::MXFP4_MOE, "self_attn.v_proj", GgmlType::Q8_0).len(), 36);
    assert_eq!(of_mix(Mix::Q3_K_M, "self_attn.v_proj", GgmlType::Q5_K), [0, 1]);
    assert_eq!(of_mix(Mix::Q3_K_M, "mlp.down_proj", GgmlType::Q5_K), [0, 1]);
    for (mix, usual, [values, down, out]) in [
        (Mix::Q3_K_L, GgmlType::Q3_K, [GgmlType::Q5_K; 3]),
        (Mix::Q3_K_M, GgmlType::Q3_K, [GgmlType::Q4_K; 3]),
        (Mix::Q3_K_S, GgmlType::Q3_K, [GgmlType::Q3_K; 3]),
        (Mix::Q2_K, GgmlType::Q2_K, [GgmlType::Q4_K, GgmlType::Q3_K, GgmlType::Q3_K]),
    ] {
        for (name, ty) in [
            ("self_attn.q_proj", usual),
            ("self_attn.k_proj", usual),
            ("self_attn.v_proj", values),
            ("self_attn.o_proj", out),
            ("mlp.gate_proj", usual),
            ("mlp.up_proj", usual),
            ("mlp.down_proj", down),
        ] {
            assert_eq!(of(mix, 20, name), ty, "{mix:?} {name}");
        }
    }
}

#[test]
fn the_vision_tower_is_in_f16_and_the_output_in_more_bits() {
    let mut config = config::load(&tiny()).unwrap();
    config.tie_word_embeddings = false;
    let of = |name: &str| Mix::Q4_0.type_for(name, &[512, 512], &config);
    assert_eq!([of(LM_HEAD), of(&config.embedding())], [GgmlType::Q6_K, GgmlType::Q4_0]);
    let storage = Mix::Q8_0.storage(&config);
    let vision = |name: &str| name.starts_with("model.visual.");
    assert!(storage.iter().all(|(name, kept)| !vision(name) || *kept == Storage::Float(DType::F16)));
    let text = storage["model.language_model.layers.0.mlp.up_proj.weight"];
    assert_eq!(text, Storage::Stored(pascaline::quant::Format::Q8_0));
}
