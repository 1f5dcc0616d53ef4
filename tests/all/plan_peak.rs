//! Planned memory, compared with the virtual GPU's peak use of memory from loading to an answer, which includes what is lost to
//! segments that are cut into blocks.
//!
//! Launches are not run, and files have holes in place of weights, so the models may be large: large enough that a segment of the
//! pool is a small part of what they take.

use crate::common::process::in_own_process;
use pascaline::{Device, memory};
use pascaline_virtual_gpu::{Checks, Config as VirtualGpu, configure, take_peak_memory};
use qwen3_vl::adapter::AdapterBytes;
use qwen3_vl::chat::Message;
use qwen3_vl::config::{PreprocessorConfig, seeing};
use qwen3_vl::fit::{Asked, Model};
use qwen3_vl::footprint::{Gpu, Workload};
use qwen3_vl::generate::user_turn;
use qwen3_vl::gguf::{Mix, Plan, text_plan, vision_plan};
use qwen3_vl::preprocess::Picture;
use qwen3_vl::{Checkpoint, LanguageModel, LoadOptions, Options, VisionPlace, Visual};
use serde_json::{Value, json};
use std::fs::File;
use std::io::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Takes the changed fields of one object into another.
fn change(value: &mut Value, changes: &Value) {
    match (value, changes) {
        (Value::Object(value), Value::Object(changes)) => {
            for (name, changes) in changes {
                change(value.entry(name.clone()).or_insert(Value::Null), changes);
            }
        }
        (value, changes) => *value = changes.clone(),
    }
}

/// Writes a file whose tensors are holes, which read as zeros.
fn write(path: &Path, plan: &Plan) {
    let header = plan.header();
    let tensors: usize =
        plan.tensors.iter().map(|tensor| tensor.bytes().next_multiple_of(Plan::ALIGNMENT)).sum();
    let mut file = File::create(path).unwrap();
    file.write_all(&header).unwrap();
    file.set_len((header.len() + tensors) as u64).unwrap();
}

/// A model of these sizes in a folder.
fn model(folder: &Path, sizes: &Value, mix: Mix) -> PathBuf {
    let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/qwen3-vl/tiny");
    let mut config: Value =
        serde_json::from_slice(&std::fs::read(tiny.join("config.json")).unwrap()).unwrap();
    change(&mut config, sizes);
    let file = tiny.join("config.json");
    let config = qwen3_vl::config::parse(&file, config.to_string().as_bytes()).unwrap();
    let images = PreprocessorConfig::load(&tiny, &seeing(&config).unwrap().tower).unwrap();
    let images = PreprocessorConfig { min_pixels: 65536, max_pixels: 16777216, ..images };
    write(&folder.join("mmproj-F16.gguf"), &vision_plan(&file, &config, &images).unwrap());
    let path = folder.join("model.gguf");
    write(&path, &text_plan(&tiny, &config, mix).unwrap());
    path
}

/// A text model of `layers` layers and a vision tower.
fn sizes(layers: usize, tied: bool) -> Value {
    json!({
        "tie_word_embeddings": tied,
        "text_config": {
            "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": layers,
            "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 40000,
            "rope_scaling": {"mrope_section": [24, 20, 20]}, "tie_word_embeddings": tied,
        },
        "vision_config": {
            "depth": 8, "hidden_size": 512, "num_heads": 8, "intermediate_size": 2048,
            "num_position_embeddings": 2304, "deepstack_visual_indexes": [1, 3, 5], "out_hidden_size": 1024,
        },
    })
}

/// The bytes that are planned within `limit`, the most that were used, and how the model was loaded. A second turn continues the first.
fn plan_and_answer(path: &Path, device: &Device, limit: usize, turns: usize) -> (usize, usize, LoadOptions) {
    let Device::Cuda(cuda) = device else { unreachable!("the virtual GPU") };
    let side = 512;
    let picture = Picture { width: side, height: side, pixels: vec![7; 3 * side * side] };
    let visuals = [Visual::from(picture)];
    let checkpoint = Checkpoint::open(path, None).unwrap();
    let config = checkpoint.config().unwrap();
    let processor = checkpoint.processor().unwrap();
    let question = || user_turn(&visuals, "What is it?");
    let conversation = [question(), Message::text("assistant", "A picture."), user_turn(&[], "Of what?")];
    let prompts =
        [&[question()][..], &conversation].map(|messages| processor.prepare(messages, &visuals).unwrap());
    let prompt = &prompts[0];
    let max_new_tokens = 4;
    let patches = prompt.patches[0].grid.iter().product();
    let context = prompts[turns - 1].ids.len() + max_new_tokens;
    let work = Workload { context, prompt: prompt.ids.len(), patches };
    let storage = |options: &LoadOptions, name: &str| checkpoint.storage(&config, options, name);
    let plan = Model {
        config: &config,
        is_quantized: checkpoint.is_quantized(),
        storage: &storage,
        adapter: &|_| AdapterBytes::default(),
    };
    let (usual, gpu) = (LoadOptions::for_device(device), Gpu::from_device(cuda));
    let choice = plan.fit(usual, &Asked::default(), &work, &gpu, limit).unwrap();
    memory::set_limit(cuda, limit.saturating_sub(gpu.beside_pool)).unwrap();
    take_peak_memory(0);
    let model = LanguageModel::load_prepared(&checkpoint, processor, device, choice.options, |_| {}).unwrap();
    let options = Options { max_new_tokens, stop_at_eos: false, ..Options::default() };
    let mut session = model.session().unwrap();
    if turns > 1 {
        session.reserve(work.context).unwrap(); // as a chat does
    }
    for prompt in &prompts[..turns] {
        model.generate_from(&mut session, prompt, &options, |_| ControlFlow::Continue(())).unwrap();
    }
    drop((session, model));
    memory::pool(cuda).unwrap().trim().unwrap();
    (choice.peak(), take_peak_memory(0) as usize, choice.options)
}

fn virtual_gpu(late: bool) -> Device {
    let checks = Checks::NONE;
    configure(VirtualGpu { skip: true, checks, late, ..VirtualGpu::default() }).unwrap();
    Device::virtual_gpu().unwrap()
}

/// Plans for each of these fractions of what the model takes without a limit, and compares. Returns how models were loaded.
fn compare(path: &Path, device: &Device, parts: &[f64]) -> Vec<LoadOptions> {
    let mut all = usize::MAX;
    let mut found = Vec::new();
    for &part in parts {
        let limit = if all == usize::MAX { all } else { (all as f64 * part) as usize };
        let (planned, used, options) = plan_and_answer(path, device, limit, 1);
        all = all.min(planned);
        let ratio = planned as f64 / used as f64;
        println!("limit {limit}: {planned} planned, {used} used, {ratio:.4}; {options:?}");
        assert!(
            planned <= limit && (1.0..=1.05).contains(&ratio),
            "{planned} planned, {used} used: {options:?}"
        );
        found.push(options);
    }
    found
}

#[test]
fn plans_are_what_the_device_uses_at_its_peak() {
    in_own_process!();
    if std::env::var_os(LATE).is_some() {
        return;
    }
    let device = virtual_gpu(false);
    let folder = tempfile::tempdir().unwrap();
    let mut found = Vec::new();
    for (mix, layers, tied, least) in
        [(Mix::Q4_K_M, 24, true, 0.6), (Mix::Q8_0, 12, false, 0.65), (Mix::F16, 10, true, 0.65)]
    {
        let path = model(folder.path(), &sizes(layers, tied), mix);
        found.extend(compare(&path, &device, &[1.0, 0.9, 0.75, least]));
    }
    let is_any = |is: &dyn Fn(&LoadOptions) -> bool| assert!(found.iter().any(is), "{found:?}");
    // a cache that has the planned context from the beginning is never copied to a larger one
    let (planned, used, options) = plan_and_answer(&folder.path().join("model.gguf"), &device, usize::MAX, 2);
    assert!(
        (1.0..=1.05).contains(&(planned as f64 / used as f64)),
        "{planned} planned, {used} used: {options:?}"
    );
    is_any(&|options| options.vision == VisionPlace::Resident);
    is_any(&|options| options.vision == VisionPlace::Streamed);
    is_any(&|options| options.host_embedding);
    is_any(&|options| options.gpu_layers.is_some());
    is_any(&|options| options.quantize.is_some());
}

/// The plan is the same for a device whose work has never ended when the pool asks.
#[test]
fn plans_do_not_depend_on_the_devices_speed() {
    in_own_process!();
    if std::env::var_os(LATE).is_none() {
        let test = "plans_do_not_depend_on_the_devices_speed";
        let itself = std::env::current_exe().unwrap(); // a process has one virtual GPU
        let run = Command::new(itself).args([test, "--exact"]).env(LATE, "1").output().unwrap();
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stdout));
        return;
    }
    let device = virtual_gpu(true);
    let folder = tempfile::tempdir().unwrap();
    let path = model(folder.path(), &sizes(12, true), Mix::Q4_K_M);
    let mut streamed = 0;
    // at some of these limits the pool returns segments to make room for others
    for limit in (124..=230).step_by(8).map(|mib| mib << 20) {
        let (planned, used, options) = plan_and_answer(&path, &device, limit, 1);
        streamed += usize::from(options.gpu_layers.is_some());
        assert!(
            (1.0..=1.05).contains(&(planned as f64 / used as f64)),
            "{planned} planned, {used} used: {options:?}"
        );
    }
    assert!(streamed > 0, "no limit lets layers pass through");
}

/// Set in the process whose virtual GPU works only when it is waited for.
const LATE: &str = "PLAN_PEAK_LATE";
