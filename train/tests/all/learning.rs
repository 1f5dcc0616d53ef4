//! Training as a whole: the reference's gradients and losses, and a fine-tune that learns.

use crate::common::extent;
use pascaline::quant::Format;
use pascaline::{DType, Device, Tensor, ops};
use pascaline_train::finetune::{End, Event, FineTune, Plan};
use pascaline_train::lora::{LoraOptions, is_of_vision};
use pascaline_train::model::Frozen;
use pascaline_train::optimizer::{Decay, Method, Schedule};
use pascaline_train::reference::{self, Limits};
use pascaline_train::{Example, Lora, Model, Optimizer, QuantizeAware, StateFolder, Tape, data, shapes};
use qwen3_vl::LanguageModel;
use qwen3_vl::gguf::{self, GgmlType, PlannedTensor};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures").join(name)
}

fn tiny() -> PathBuf {
    fixture("qwen3-vl/tiny")
}

#[test]
fn gradients_and_losses_are_the_references() {
    for run in reference::load(&fixture("qwen3-vl-train/tiny")).unwrap() {
        let found = run.check(&tiny(), &Device::Cpu).unwrap();
        assert!(found.passed(&Limits::CPU), "{}: {found:?}", run.name);
        assert!(found.gradients.len() > 30 && found.adamw.found.len() == 9 && found.lora.found.len() == 9);
    }
}

/// All kernels of the backward pass, on a real GPU or else the virtual one.
#[test]
fn gradients_on_a_gpu_are_the_references() {
    let device = Device::cuda_or_virtual().unwrap();
    let runs = reference::load(&fixture("qwen3-vl-train/tiny")).unwrap();
    let run = runs.iter().find(|run| run.name == "one_image").unwrap();
    let mut model = Model::load(&tiny(), &device).unwrap();
    let (loss, gradients, unmatched) = run.check_gradients(&mut model).unwrap();
    assert!(loss.worst() <= Limits::GPU.loss && unmatched.is_empty(), "{loss:?} {unmatched:?}");
    // NaN counts as infinite
    let wrong: Vec<_> = gradients.iter().filter(|gradient| gradient.error > Limits::GPU.gradient).collect();
    assert!(gradients.len() > 100 && wrong.is_empty(), "{wrong:?}");
}

/// Layers that are computed again have the same gradients, bit for bit. So does a sequence that is packed with another.
#[test]
fn checkpoints_and_packs_change_nothing() {
    let example = reference::load(&fixture("qwen3-vl-train/tiny")).unwrap()[1].example().unwrap();
    let gradients = |checkpoint_layers: bool| {
        let mut model = Model::load(&tiny(), &Device::Cpu).unwrap();
        model.checkpoint_layers = checkpoint_layers;
        let mut tape = Tape::new();
        let loss = model.loss(&mut tape, std::slice::from_ref(&example), 1.0).unwrap();
        tape.backward(&loss.each, &mut model.parameters).unwrap();
        let all =
            model.parameters.iter().map(|parameter| parameter.gradient().unwrap().to_vec::<f32>().unwrap());
        all.collect::<Vec<_>>()
    };
    assert_eq!(gradients(false), gradients(true));

    let model = Model::load(&tiny(), &Device::Cpu).unwrap();
    let loss = |examples: &[Example]| model.loss(&mut Tape::silent(), examples, 1.0).unwrap().sum().unwrap();
    let other = reference::load(&fixture("qwen3-vl-train/tiny")).unwrap()[0].example().unwrap();
    let apart = loss(std::slice::from_ref(&example)) + loss(std::slice::from_ref(&other));
    let packed = loss(&[example.clone(), other]);
    assert!((apart - packed).abs() < 1e-4, "{apart} apart, {packed} packed");
}

fn examples(dir: &Path, count: usize) -> Vec<Example> {
    shapes::write(dir, count, 7).unwrap();
    let processor = qwen3_vl::processor(tiny()).unwrap();
    let conversations = data::read(&dir.join("pairs.jsonl")).unwrap();
    conversations.iter().map(|conversation| conversation.example(&processor).unwrap()).collect()
}

/// From random weights, 200 pairs of pictures and captions teach the captions of pictures that were held out.
#[test]
fn captions_are_learned_from_pictures() {
    if !extent::all() {
        return extent::left_out("a fine-tune of 640 steps that learns captions");
    }
    let dir = tempfile::tempdir().unwrap();
    let examples = examples(dir.path(), 200);
    let mut model = Model::load(&tiny(), &Device::Cpu).unwrap();
    model.randomize(2).unwrap();
    let plan = Plan { epochs: 16, batch: 4, tokens: 512, held_out: 0.2, seed: 0 };
    let total = plan.steps(160);
    let schedule = Schedule { peak: 2e-3, warmup: 20, total, decay: Decay::Cosine };
    let optimizer = Optimizer::new(Method::default(), schedule, 0.01).clip(1.0);
    let (mut last, mut losses) = (0.0, Vec::new());
    let end = FineTune { model: &mut model, optimizer, plan }.run(&examples, |_, event| {
        match event {
            Event::Step { loss, .. } => losses.push(loss),
            Event::Evaluation { right, .. } => last = right,
        }
        Ok(ControlFlow::Continue(()))
    });
    assert_eq!((end.unwrap(), losses.len()), (End::Done, total as usize));
    assert!(
        last >= 0.95,
        "{last} of the held-out captions are right; losses {:?}",
        losses.iter().step_by(20).collect::<Vec<_>>()
    );
}

/// A run that is stopped, stored and resumed ends with the same bits as one that was not.
#[test]
fn a_resumed_run_is_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let examples = examples(dir.path(), 12);
    let plan = Plan { epochs: 2, batch: 4, tokens: 128, held_out: 0.0, seed: 9 };
    let targets = vec!["q_proj".to_owned(), "down_proj".to_owned()];
    let options = LoraOptions { rank: 2, alpha: 4.0, targets, vision: false, seed: 3 };
    let adapted = || {
        let mut model = Model::load(&tiny(), &Device::Cpu).unwrap();
        model.lora = Lora::add(&mut model.parameters, &options, &Device::Cpu).unwrap();
        model
    };
    let optimizer = || Optimizer::new(Method::default(), Schedule::constant(1e-2), 0.01);
    let trained = |model: &Model| {
        let all = model.parameters.iter().filter(|parameter| parameter.is_trained());
        all.map(|parameter| parameter.value().to_vec::<f32>().unwrap()).collect::<Vec<_>>()
    };
    let mut whole = adapted();
    let mut run = FineTune { model: &mut whole, optimizer: optimizer(), plan };
    run.run(&examples, |_, _| Ok(ControlFlow::Continue(()))).unwrap();

    let state = StateFolder::open(&dir.path().join("state")).unwrap();
    let mut first = adapted();
    let mut run = FineTune { model: &mut first, optimizer: optimizer(), plan };
    let end = run.run(&examples, |run, _| {
        let stop = run.optimizer.steps() == 2;
        if stop {
            run.save(&state, &[])?;
        }
        Ok(if stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    });
    assert_eq!(end.unwrap(), End::Stopped);
    assert_ne!(trained(&first), trained(&whole));
    let mut second = adapted();
    let mut run = FineTune { model: &mut second, optimizer: optimizer(), plan };
    assert!(run.resume(&state).unwrap().is_some());
    run.run(&examples, |_, _| Ok(ControlFlow::Continue(()))).unwrap();
    assert_eq!(trained(&second), trained(&whole));

    let mut other = adapted();
    let plan = Plan { seed: 10, ..plan };
    let mut run = FineTune { model: &mut other, optimizer: optimizer(), plan };
    assert!(run.resume(&state).unwrap_err().to_string().contains("other options"));

    // an adapter that is stored and read is the same, in training and merged for inference
    whole.lora.save(&whole.parameters, dir.path(), "tiny").unwrap();
    let mut read = Model::load(&tiny(), &Device::Cpu).unwrap();
    read.lora = Lora::load(&mut read.parameters, dir.path(), &Device::Cpu).unwrap();
    let loss = |model: &Model| model.loss(&mut Tape::silent(), &examples[..1], 1.0).unwrap().sum().unwrap();
    assert_eq!(loss(&read), loss(&whole));
    let sum = merged_loss(&tiny(), dir.path(), &examples[0]);
    assert!((sum - loss(&whole)).abs() < 1e-4, "{sum} merged, {} trained", loss(&whole));
}

/// The loss of an example by the model that generates, with an adapter merged into it.
fn merged_loss(model: &Path, adapter: &Path, example: &Example) -> f64 {
    let checkpoint = qwen3_vl::Checkpoint::open(model, None).unwrap().with_adapter(adapter).unwrap();
    let options = qwen3_vl::LoadOptions::for_device(&Device::Cpu);
    let merged = LanguageModel::load_checkpoint(&checkpoint, &Device::Cpu, options, |_| {}).unwrap();
    let seen =
        example.visuals.iter().map(|patches| merged.encode_image(patches).unwrap()).collect::<Vec<_>>();
    let grids = example.visuals.iter().map(|patches| patches.grid).collect::<Vec<_>>();
    let logits = merged.trace(&example.ids, &seen, &grids, |_, _| {}).unwrap();
    let vocab = logits.dims()[1];
    let logits = logits.to_vec::<f32>().unwrap();
    let of_token = |i: usize| {
        let row = logits[(i - 1) * vocab..i * vocab].iter().map(|&x| f64::from(x));
        row.clone().map(f64::exp).sum::<f64>().ln() - row.clone().nth(example.ids[i] as usize).unwrap()
    };
    (1..example.ids.len()).filter(|&i| example.is_answer[i]).map(of_token).sum()
}

/// The text model is trained by the same forward pass: an adapter learns two sentences, and generates with what it has learned.
#[test]
fn a_text_model_is_fine_tuned() {
    let (dir, model) = (tempfile::tempdir().unwrap(), fixture("qwen3/tiny"));
    let lines = ["Who goes there?", "What is a warp?"].map(|question| {
        format!(
            r#"{{"conversations": [{{"from": "human", "value": "{question}"}}, {{"from": "gpt", "value": "Thirty-two threads."}}]}}"#
        )
    });
    std::fs::write(dir.path().join("pairs.jsonl"), lines.join("\n")).unwrap();
    let processor = qwen3_vl::processor(&model).unwrap();
    let conversations = data::read(&dir.path().join("pairs.jsonl")).unwrap();
    let examples: Vec<Example> =
        conversations.iter().map(|conversation| conversation.example(&processor).unwrap()).collect();
    let mut trained = Model::load(&model, &Device::Cpu).unwrap();
    let targets = vec!["q_proj".to_owned(), "down_proj".to_owned()];
    let options = LoraOptions { rank: 4, alpha: 8.0, targets, vision: false, seed: 3 };
    trained.lora = Lora::add(&mut trained.parameters, &options, &Device::Cpu).unwrap();
    let plan = Plan { epochs: 30, batch: 2, tokens: 128, held_out: 0.0, seed: 9 };
    let optimizer = Optimizer::new(Method::default(), Schedule::constant(1e-2), 0.0);
    let mut losses = Vec::new();
    let end = FineTune { model: &mut trained, optimizer, plan }.run(&examples, |_, event| {
        if let Event::Step { loss, .. } = event {
            losses.push(loss);
        }
        Ok(ControlFlow::Continue(()))
    });
    assert_eq!((end.unwrap(), losses.len()), (End::Done, 30));
    assert!(losses[29] < 0.5 * losses[0], "{losses:?}");
    trained.lora.save(&trained.parameters, dir.path(), "tiny").unwrap();
    let loss = trained.loss(&mut Tape::silent(), &examples[..1], 1.0).unwrap().sum().unwrap();
    let sum = merged_loss(&model, dir.path(), &examples[0]);
    assert!((sum - loss).abs() < 1e-4, "{sum} merged, {loss} trained");
}

/// A text's loss is the same without the vision tower; a picture's is an error.
#[test]
fn texts_need_no_vision_tower() {
    let runs = reference::load(&fixture("qwen3-vl-train/tiny")).unwrap();
    let [text, image] = ["text", "one_image"]
        .map(|name| runs.iter().find(|run| run.name == name).unwrap().example().unwrap());
    let loss = |model: &Model, example: &Example| {
        model.loss(&mut Tape::silent(), std::slice::from_ref(example), 1.0)?.sum()
    };
    let whole = Model::load(&tiny(), &Device::Cpu).unwrap();
    for storage in [Frozen::Float(DType::F32), Frozen::Quantized(Format::Q8_0)] {
        let alone = Model::load_text(&tiny(), storage, &Device::Cpu).unwrap();
        assert!(alone.parameters.iter().all(|parameter| !is_of_vision(parameter.name())));
        if storage == Frozen::Float(DType::F32) {
            assert_eq!(loss(&alone, &text).unwrap(), loss(&whole, &text).unwrap());
        }
        let error = loss(&alone, &image).unwrap_err().to_string();
        assert!(error.contains("visual."), "{error}");
    }
}

/// Adapters over quantised weights: the gradients are those of the same weights in f32, and steps lower the loss.
#[test]
fn adapters_train_over_quantized_weights() {
    let dir = tempfile::tempdir().unwrap();
    let examples = examples(dir.path(), 4);
    let targets = vec!["q_proj".to_owned(), "down_proj".to_owned()];
    let options = LoraOptions { rank: 2, alpha: 4.0, targets, vision: false, seed: 3 };
    for format in [Format::Q8_0, Format::Q4_0, Format::Q4K] {
        let mut quantized = Model::load_frozen(&tiny(), Frozen::Quantized(format), &Device::Cpu).unwrap();
        // the same values, in f32
        let mut plain = Model::load_frozen(&tiny(), Frozen::Float(DType::F16), &Device::Cpu).unwrap();
        let names: Vec<String> =
            plain.parameters.iter().map(|parameter| parameter.name().to_owned()).collect();
        for (number, name) in names.iter().enumerate() {
            if let Some(matrix) = quantized.parameters.quantized(name) {
                plain.parameters.set(number, ops::dequantize(matrix, DType::F32).unwrap()).unwrap();
            }
        }
        let mut gradients = Vec::new();
        for model in [&mut quantized, &mut plain] {
            model.lora = Lora::add(&mut model.parameters, &options, &Device::Cpu).unwrap();
            let mut tape = Tape::new();
            let loss = model.loss(&mut tape, &examples, 1.0).unwrap();
            tape.backward(&loss.each, &mut model.parameters).unwrap();
            let trained = model.parameters.iter().filter(|parameter| parameter.is_trained());
            let all = trained.map(|parameter| parameter.gradient().unwrap().to_vec::<f32>().unwrap());
            gradients.push(all.collect::<Vec<_>>());
        }
        assert_eq!(gradients[0].len(), 12);
        assert_eq!(gradients[0], gradients[1], "{format:?}");

        quantized.parameters.zero_gradients();
        let plan = Plan { epochs: 5, batch: 4, tokens: 512, held_out: 0.0, seed: 1 };
        let optimizer = Optimizer::new(Method::default(), Schedule::constant(1e-2), 0.0);
        let mut losses = Vec::new();
        let mut run = FineTune { model: &mut quantized, optimizer, plan };
        run.run(&examples, |_, event| {
            if let Event::Step { loss, .. } = event {
                losses.push(loss);
            }
            Ok(ControlFlow::Continue(()))
        })
        .unwrap();
        assert!(losses.windows(2).all(|pair| pair[1] < pair[0]), "{format:?}: {losses:?}");
    }
}

/// Moments in 8 bits: the run learns as one with moments in f32 does, and continues from its state with the same bits.
#[test]
fn moments_in_8_bits_are_stored_and_learn() {
    let dir = tempfile::tempdir().unwrap();
    let examples = examples(dir.path(), 6);
    let plan = Plan { epochs: 6, batch: 3, tokens: 128, held_out: 0.0, seed: 9 };
    let targets = vec!["q_proj".to_owned(), "down_proj".to_owned()];
    let options = LoraOptions { rank: 2, alpha: 4.0, targets, vision: false, seed: 3 };
    // the losses of a run that is stopped after some steps and resumed, and what it has trained
    let run = |method: Method, stop: Option<u32>| {
        let (mut losses, mut go_on) = (Vec::new(), true);
        let mut resumed = false;
        let state = StateFolder::open(&dir.path().join("state")).unwrap();
        loop {
            let mut model = Model::load(&tiny(), &Device::Cpu).unwrap();
            model.lora = Lora::add(&mut model.parameters, &options, &Device::Cpu).unwrap();
            let optimizer = Optimizer::new(method, Schedule::constant(3e-3), 0.01);
            let mut run = FineTune { model: &mut model, optimizer, plan };
            if resumed {
                run.resume(&state).unwrap();
            }
            let end = run.run(&examples, |run, event| {
                let Event::Step { loss, number, .. } = event else { return Ok(ControlFlow::Continue(())) };
                losses.push(loss);
                go_on = stop != Some(number);
                if !go_on {
                    run.save(&state, &[])?;
                }
                Ok(if go_on { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
            });
            if end.unwrap() == End::Done {
                let trained = model.parameters.iter().filter(|parameter| parameter.is_trained());
                let all: Vec<_> =
                    trained.map(|parameter| parameter.value().to_vec::<f32>().unwrap()).collect();
                return (losses, all);
            }
            resumed = true;
        }
    };
    let (losses, trained) = run(Method::adamw8bit(), None);
    let (resumed_losses, resumed) = run(Method::adamw8bit(), Some(5));
    assert_eq!((resumed_losses, resumed == trained), (losses.clone(), true));
    let (exact, _) = run(Method::default(), None);
    assert_eq!(losses[0], exact[0]);
    let (last, exact_last) = (losses[losses.len() - 1], exact[exact.len() - 1]);
    let (learned, by_exact) = (losses[0] - last, exact[0] - exact_last);
    assert!(by_exact > 0.1 && (learned / by_exact - 1.0).abs() < 0.05, "{losses:?}, in f32 {exact:?}");
}

/// Where weights are rounded, adapters are merged with theirs: the gradients are those of adapters beside the weights.
#[test]
fn merged_adapters_have_the_same_gradients() {
    let example = reference::load(&fixture("qwen3-vl-train/tiny")).unwrap()[0].example().unwrap();
    let targets = vec!["q_proj".to_owned(), "down_proj".to_owned()];
    let options = LoraOptions { rank: 2, alpha: 4.0, targets, vision: false, seed: 3 };
    // a norm that f16 holds exactly is all that is rounded
    let norm = PlannedTensor {
        name: "output_norm.weight".into(),
        ty: GgmlType::F16,
        shape: vec![64],
        published: "model.language_model.norm.weight".into(),
        frame: None,
    };
    let merging = QuantizeAware::new(&[gguf::Plan { tensors: vec![norm], ..gguf::Plan::default() }]);
    let gradients = |quantize_aware: QuantizeAware| {
        let mut model = Model::load(&tiny(), &Device::Cpu).unwrap();
        model.lora = Lora::add(&mut model.parameters, &options, &Device::Cpu).unwrap();
        let numbers: Vec<usize> =
            model.lora.adapters().values().flat_map(|adapter| [adapter.a, adapter.b]).collect();
        for number in numbers {
            let shape = model.parameters.get(number).value().shape().clone();
            let value = Tensor::randn(shape, DType::F32, number as u64, &Device::Cpu).unwrap();
            model.parameters.set(number, ops::scale(&value, 0.1).unwrap()).unwrap();
        }
        let norm = model.parameters.find("model.language_model.norm.weight").unwrap();
        let ones = Tensor::ones(model.parameters.get(norm).value().shape(), DType::F32, &Device::Cpu);
        model.parameters.set(norm, ones.unwrap()).unwrap();
        model.quantize_aware = quantize_aware;
        let mut tape = Tape::new();
        let loss = model.loss(&mut tape, std::slice::from_ref(&example), 1.0).unwrap();
        tape.backward(&loss.each, &mut model.parameters).unwrap();
        let trained = model.parameters.iter().filter(|parameter| parameter.is_trained());
        trained.map(|parameter| parameter.gradient().unwrap().to_vec::<f32>().unwrap()).collect::<Vec<_>>()
    };
    let (beside, merged) = (gradients(QuantizeAware::default()), gradients(merging));
    assert_eq!(beside.len(), 12);
    for (beside, merged) in beside.iter().zip(&merged) {
        let norm = |x: &mut dyn Iterator<Item = f32>| x.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt();
        let difference = norm(&mut beside.iter().zip(merged).map(|(a, b)| a - b));
        let whole = norm(&mut beside.iter().copied());
        assert!(whole > 0.0 && difference <= 1e-4 * whole, "{difference} of {whole}");
    }
}

/// Scales of 4 bits that are learned, with all weights as they are, begin about where fixed ones are and lower the loss.
#[test]
fn learned_scales_lower_the_loss() {
    let dir = tempfile::tempdir().unwrap();
    let examples = examples(dir.path(), 4);
    let config = tiny().join("config.json");
    let processor = qwen3_vl::processor(tiny()).unwrap();
    let plans = [
        gguf::vision_plan_of(&config, &processor).unwrap().unwrap(),
        gguf::text_plan(&tiny(), &processor.config, gguf::Mix::Q4_0).unwrap(),
    ];
    let losses = |is_learned: bool| {
        let mut model = Model::load(&tiny(), &Device::Cpu).unwrap();
        model.quantize_aware = QuantizeAware::new(&plans);
        model.parameters.train(|_| false); // scales alone
        if is_learned {
            model.parameters.train(|name| !name.starts_with("model.visual."));
            model.learn_scales().unwrap();
            model.parameters.train(|name| name.ends_with(".scale_factors"));
        }
        let loss = |model: &Model| model.loss(&mut Tape::silent(), &examples, 1.0).unwrap().sum().unwrap();
        let before = loss(&model);
        let plan = Plan { epochs: 30, batch: 4, tokens: 512, held_out: 0.0, seed: 1 };
        let optimizer = Optimizer::new(Method::default(), Schedule::constant(5e-3), 0.01);
        if is_learned {
            let mut run = FineTune { model: &mut model, optimizer, plan };
            run.run(&examples, |_, _| Ok(ControlFlow::Continue(()))).unwrap();
        }
        [before, loss(&model)]
    };
    let ([fixed, _], [before, after]) = (losses(false), losses(true));
    println!("fixed {fixed}, learned {before} → {after}");
    // f16 scales are divided by where the encoder divides by those before rounding, so some values go to the next quant
    assert!((before - fixed).abs() <= 0.01 * fixed, "{before} at first, {fixed} by fixed scales");
    assert!(after < 0.97 * before, "{before} → {after}");
}

fn conversation(folder: &Path, image: &str, turns: &[(&str, &str)]) -> data::Conversation {
    let turns: Vec<_> =
        turns.iter().map(|(from, value)| serde_json::json!({"from": from, "value": value})).collect();
    let file = folder.join("turns.jsonl");
    let line = serde_json::json!({"image": serde_json::from_str::<serde_json::Value>(image).unwrap(), "conversations": turns});
    std::fs::write(&file, line.to_string()).unwrap();
    data::read(&file).unwrap().remove(0)
}

/// The tokens of several turns are those of each answer's own prompt, which is prepared as a whole.
#[test]
fn turns_have_the_tokens_of_their_prompts() {
    let dir = tempfile::tempdir().unwrap();
    shapes::write(dir.path(), 2, 1).unwrap();
    let processor = qwen3_vl::processor(tiny()).unwrap();
    let found = conversation(
        dir.path(),
        r#"["0000.png", "0001.png"]"#,
        &[
            ("system", "Be brief."),
            ("human", "<image>\nWhat?"),
            ("gpt", "a red circle"),
            ("human", "And <image>?"),
            ("gpt", "it"),
            ("human", "x"),
        ],
    );
    let visuals: Vec<_> = found.images.iter().map(|file| qwen3_vl::Visual::image(file).unwrap()).collect();
    let (mut ids, mut is_answer): (Vec<u32>, Vec<bool>) = Default::default();
    for (turn, images, answer) in [(2, 1, "a red circle<|im_end|>\n"), (4, 2, "it<|im_end|>\n")] {
        let prompt = processor.prepare(&found.messages[..turn], &visuals[..images]).unwrap();
        assert!(prompt.ids.starts_with(&ids));
        ids = prompt.ids;
        is_answer.resize(ids.len(), false);
        ids.extend(processor.tokenizer.encode(answer).unwrap());
        is_answer.resize(ids.len(), true);
    }
    let example = found.example(&processor).unwrap();
    assert_eq!((example.ids, example.is_answer, example.visuals.len()), (ids, is_answer, 2));
}

/// Calls are learned in the words of the prompt that later has them, and tools and results are not.
#[test]
fn calls_of_tools_are_learned() {
    let dir = tempfile::tempdir().unwrap();
    let processor = qwen3_vl::processor(tiny()).unwrap();
    let file = dir.path().join("tools.jsonl");
    let call = r#"[{\"name\": \"crop\", \"arguments\": {\"side\": \"left\"}}]"#;
    let line = format!(
        r#"{{"tools": [{{"name": "crop"}}], "conversations": [{{"from": "human", "value": "Look."}},
        {{"from": "function_call", "value": "{call}"}}, {{"from": "observation", "value": "a cat"}},
        {{"from": "gpt", "value": "A cat."}}]}}"#
    );
    std::fs::write(&file, line.replace('\n', "")).unwrap();
    let found = data::read(&file).unwrap().remove(0);
    let example = found.example(&processor).unwrap();
    let told = |is_answer: bool| {
        let ids = example.ids.iter().zip(&example.is_answer).filter(|(_, is)| **is == is_answer);
        processor.tokenizer.decode(&ids.map(|(id, _)| *id).collect::<Vec<_>>())
    };
    let call = "<tool_call>\n{\"name\": \"crop\", \"arguments\": {\"side\": \"left\"}}\n</tool_call>";
    let learned = told(true).replace("<|im_end|>", "");
    assert_eq!(learned, format!("{call}\nA cat.\n"));
    let given = told(false);
    assert!(given.contains("\"name\": \"crop\"") && given.contains("a cat"), "{given}");
    assert!(!given.contains("\"left\""), "{given}");
    let last = processor.render(&found.messages[..3], &found.tools).unwrap();
    assert!(example.ids.starts_with(&processor.tokenizer.encode(&last).unwrap()));
}

#[test]
fn a_line_longer_than_the_context_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let processor = qwen3_vl::processor(tiny()).unwrap();
    let error = |turns: &[(&str, &str)]| {
        let error = conversation(dir.path(), "[]", turns).example(&processor).unwrap_err().to_string();
        assert!(error.contains("turns.jsonl") && error.contains("line 1"), "{error}");
        error
    };
    assert!(error(&[("human", &"a ".repeat(5000)), ("gpt", "x")]).contains("context holds 4096"));
    assert!(error(&[("human", &"a ".repeat(1 << 20)), ("gpt", "x")]).contains("at most 1048576"));
    // each prepares only what it adds
    let turns: Vec<_> = [("human", "a"), ("gpt", "b")].into_iter().cycle().take(128).collect();
    let since = std::time::Instant::now();
    let all = conversation(dir.path(), "[]", &turns).example(&processor);
    assert!(since.elapsed().as_secs() < 60, "{:?}", since.elapsed());
    let learned = all.unwrap().is_answer.iter().filter(|is_answer| **is_answer).count();
    assert!(learned >= 128, "{learned}");
}
