//! `pascaline finetune`, and `validate --train`.

use crate::common::extent;
use pascaline_train::shapes;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures").join(name)
}

fn program() -> PathBuf {
    std::env::var_os("PASCALINE_BIN").map_or_else(|| env!("CARGO_BIN_EXE_pascaline").into(), PathBuf::from)
}

fn pascaline(arguments: &[&str]) -> Output {
    let mut command = Command::new(program());
    command.args(arguments).env("PASCALINE_DEVICE", "cpu").output().expect("the program starts")
}

fn succeeds(arguments: &[&str]) -> String {
    let output = pascaline(arguments);
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{arguments:?}: {stdout}{stderr}");
    stdout.into_owned()
}

fn fails(arguments: &[&str]) -> (Option<i32>, String) {
    let output = pascaline(arguments);
    assert!(!output.status.success(), "{arguments:?} succeeded");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

#[test]
fn validate_compares_training_with_the_reference() {
    let (model, train) = (fixture("qwen3-vl/tiny"), fixture("qwen3-vl-train/tiny"));
    let all = succeeds(&["validate", "--model", text(&model), "--train", text(&train)]);
    assert!(all.contains("all 2 runs train as the reference does"), "{all}");
    assert!(all.contains("model.visual.pos_embed.weight") && all.contains("LoRA 8"), "{all}");

    // another loss than the reference's is a miss
    let folder = tempfile::tempdir().unwrap();
    for file in ["text.safetensors", "one_image.safetensors"] {
        fs::copy(train.join(file), folder.path().join(file)).unwrap();
    }
    let cases = fs::read_to_string(train.join("cases_train.json")).unwrap();
    let cases = cases.replace("6.295584201812744", "6.2958842");
    fs::write(folder.path().join("cases_train.json"), cases).unwrap();
    let output = pascaline(&["validate", "--model", text(&model), "--train", text(folder.path())]);
    let shown = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{shown}");
    assert!(shown.contains("1 of 2 runs DIFFER"), "{shown}");
}

#[test]
fn adapters_are_trained_stopped_resumed_and_used() {
    let folder = tempfile::tempdir().unwrap();
    let (model, data, to) =
        (fixture("qwen3-vl/tiny"), folder.path().join("data"), folder.path().join("adapter"));
    fs::create_dir(&data).unwrap();
    shapes::write(&data, 10, 1).unwrap();
    let pairs = data.join("pairs.jsonl");
    let base = ["finetune", "--model", text(&model), "--data", text(&pairs), "--to", text(&to)];
    let options = ["--rank", "2", "--batch", "4", "--epochs", "2", "--rate", "1e-2", "--hold-out", "0.2"];
    let command: Vec<&str> = base.iter().chain(&options).copied().collect();
    let shown = succeeds(&command);
    assert!(shown.contains("step 4/4") && shown.contains("held out"), "{shown}");
    for file in ["adapter_config.json", "adapter_model.safetensors", "losses.csv", "losses.png"] {
        assert!(to.join(file).is_file(), "{file} is missing");
    }
    let csv = fs::read_to_string(to.join("losses.csv")).unwrap();
    assert_eq!(csv.lines().count(), 5, "{csv}");

    // a folder with a run is not overwritten, and a finished run has nothing left to do
    let (code, error) = fails(&command);
    assert!(code == Some(1) && error.contains("--resume"), "{error}");
    let adapter = fs::read(to.join("adapter_model.safetensors")).unwrap();
    let resumed: Vec<&str> = command.iter().copied().chain(["--resume"]).collect();
    assert!(!succeeds(&resumed).contains("step"));
    assert_eq!(fs::read(to.join("adapter_model.safetensors")).unwrap(), adapter);

    // over quantised weights
    let quantized = folder.path().join("quantized");
    let over = ["finetune", "--model", text(&model), "--data", text(&pairs), "--to", text(&quantized)];
    let over: Vec<&str> = over.iter().chain(&options).copied().chain(["--dtype", "q4_k"]).collect();
    assert!(succeeds(&over).contains("step 4/4"));
    let again: Vec<&str> = over.iter().copied().chain(["--force", "--quiet"]).collect();
    let quiet = succeeds(&again);
    assert!(!quiet.contains("step") && quiet.contains("held out"), "{quiet}");

    let picture = data.join("0000.png");
    let ask = ["generate", "--model", text(&model), "--image", text(&picture), "--prompt", "What is it?"];
    let ask: Vec<&str> = ask.iter().copied().chain(["--max-new-tokens", "4"]).collect();
    let adapted: Vec<&str> = ask.iter().copied().chain(["--adapter", text(&to)]).collect();
    assert_ne!(succeeds(&ask), succeeds(&adapted), "the adapter changes the answer");
}

#[test]
fn what_is_wrong_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let (model, data) = (fixture("qwen3-vl/tiny"), folder.path().join("bad.jsonl"));
    fs::write(&data, "{\"conversations\": [{\"from\": \"human\"}]}\n").unwrap();
    let to = folder.path().join("out");
    let base = ["finetune", "--model", text(&model), "--data", text(&data), "--to", text(&to)];
    let (code, error) = fails(&base);
    assert!(code == Some(1) && error.contains("line 1"), "{error}");
    let negative: Vec<&str> = base.iter().copied().chain(["--rate", "0"]).collect();
    let (code, error) = fails(&negative);
    assert!(code == Some(2) && error.contains("--rate"), "{error}");
    for (options, named) in [
        (&["--scales", "learned"][..], "--quantize-aware"),
        (&["--quantize-aware", "q8_0", "--dtype", "q4_k"], "--dtype"),
    ] {
        let (code, error) = fails(&base.iter().chain(options).copied().collect::<Vec<_>>());
        assert!(code == Some(2) && error.contains(named), "{error}");
    }
    assert!(!to.exists(), "nothing is made where nothing is done");
}

/// The folder with the conversations, and the file of them.
fn conversations(folder: &Path, count: usize) -> PathBuf {
    let data = folder.join("data");
    fs::create_dir(&data).unwrap();
    shapes::write(&data, count, 1).unwrap();
    data.join("pairs.jsonl")
}

/// The name and bytes of every file.
fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let files =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_file());
    files
        .map(|file| (file.file_name().unwrap().to_str().unwrap().to_owned(), fs::read(&file).unwrap()))
        .collect()
}

/// Neither the checkpoint that training begins with nor another in the place of the results is touched.
#[test]
fn files_of_a_checkpoint_are_not_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let (model, pairs) = (folder.path().join("model"), conversations(folder.path(), 1));
    fs::create_dir(&model).unwrap();
    for entry in fs::read_dir(fixture("qwen3-vl/tiny")).unwrap().map(Result::unwrap) {
        if entry.path().is_file() {
            fs::copy(entry.path(), model.join(entry.file_name())).unwrap();
        }
    }
    let before = contents(&model);
    let finetune = |to: &Path, more: &[&str]| {
        let base = ["finetune", "--model", text(&model), "--data", text(&pairs), "--to", text(to)];
        fails(&base.iter().chain(more).copied().collect::<Vec<_>>())
    };
    let roundabout = folder.path().join("data/../model");
    for to in [&model, &roundabout] {
        for options in [&["--full"][..], &["--full", "--force"], &["--force"], &["--full", "--resume"]] {
            let (code, error) = finetune(to, options);
            assert!(code == Some(2) && error.contains("name another folder"), "{options:?}: {error}");
            assert!(contents(&model) == before, "{options:?}");
        }
    }

    let to = folder.path().join("to");
    fs::create_dir(&to).unwrap();
    let adapter = ["adapter_config.json", "adapter_model.safetensors", "losses.csv", "losses.png"];
    let whole = ["config.json", "tokenizer.json", "model.safetensors"];
    let cases =
        adapter.map(|name| (name, &[][..])).into_iter().chain(whole.map(|name| (name, &["--full"][..])));
    for (name, options) in cases {
        fs::write(to.join(name), "the user's own").unwrap();
        for resume in [&[][..], &["--resume"]] {
            let (code, error) = finetune(&to, &[options, resume].concat());
            assert!(code == Some(1) && error.contains(name) && error.contains("--force"), "{name}: {error}");
            assert_eq!(contents(&to), [(name.to_owned(), b"the user's own".to_vec())].into());
        }
        fs::remove_file(to.join(name)).unwrap();
    }
    // weights in parts would be read in place of the new ones
    for name in ["model.safetensors.index.json", "model-00001-of-00002.safetensors"] {
        fs::write(to.join(name), "the user's own").unwrap();
        let (code, error) = finetune(&to, &["--full", "--force"]);
        assert!(code == Some(1) && error.contains(name), "{name}: {error}");
        fs::remove_file(to.join(name)).unwrap();
    }
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(model.join("config.json"), to.join("config.json")).unwrap();
        let (code, error) = finetune(&to, &["--full", "--force"]);
        assert!(code == Some(2) && error.contains("read or written twice"), "{error}");
    }
    assert!(contents(&model) == before);
}

/// Ctrl-C stores the state, from which the run ends with the same bits as one that was never stopped.
#[cfg(target_os = "linux")]
#[test]
fn ctrl_c_stores_what_resume_goes_on_with() {
    use nix::fcntl::{FcntlArg, fcntl};
    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;
    use std::io::{BufRead, BufReader, Read, pipe};
    use std::process::Stdio;

    const STEPS: usize = 144;
    let folder = tempfile::tempdir().unwrap();
    let (model, pairs) = (fixture("qwen3-vl/tiny"), conversations(folder.path(), 12));
    let (whole, stopped) = (folder.path().join("whole"), folder.path().join("stopped"));
    let command = |to: &Path| {
        let base =
            ["finetune", "--model", text(&model), "--data", text(&pairs), "--to", text(to), "--rank", "2"];
        let options = ["--batch", "1", "--epochs", "12", "--targets", "q_proj,down_proj", "--rate", "1e-3"];
        base.iter().chain(&options).map(|&argument| argument.to_owned()).collect::<Vec<_>>()
    };
    let plain = |arguments: &[String]| succeeds(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    let lines = plain(&command(&whole));
    assert_eq!(lines.lines().count(), STEPS);

    // The pipe holds a part of the lines: the program waits for a reader before it is done, however fast it is.
    let (reader, writer) = pipe().unwrap();
    let room = fcntl(&writer, FcntlArg::F_SETPIPE_SZ(4096)).unwrap() as usize;
    assert!(room < lines.len() / 2, "{room} bytes of {}", lines.len());
    let mut child = Command::new(env!("CARGO_BIN_EXE_pascaline"));
    child.args(command(&stopped)).env("PASCALINE_DEVICE", "cpu").stdout(writer).stderr(Stdio::piped());
    // The program sets a handler of its own, also where it is started with the signal ignored, as jobs in the background are.
    let process = child.spawn().unwrap();
    drop(child); // and with it this side's writer
    let mut reader = BufReader::with_capacity(1, reader);
    let mut first = String::new();
    reader.read_line(&mut first).unwrap();
    assert!(first.starts_with("step 1/144"), "{first}");
    kill(Pid::from_raw(process.id() as i32), Signal::SIGINT).unwrap();
    let mut rest = String::new();
    reader.read_to_string(&mut rest).unwrap();
    let output = process.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("--resume goes on"), "{said}");
    let steps = 1 + rest.lines().count();
    assert!(steps < STEPS, "{steps} steps");
    assert!(!stopped.join("adapter_model.safetensors").exists(), "the run is not at its end");

    let resumed = plain(&[command(&stopped), vec!["--resume".to_owned()]].concat());
    assert_eq!(resumed.lines().count(), STEPS - steps);
    let adapter = |to: &Path| fs::read(to.join("adapter_model.safetensors")).unwrap();
    assert!(adapter(&stopped) == adapter(&whole), "after {steps} steps");
}

/// The folder of the state that counts.
fn saved(to: &Path) -> PathBuf {
    let manifest = fs::read(to.join("state/state.json")).unwrap();
    let manifest: serde_json::Value = serde_json::from_slice(&manifest).unwrap();
    to.join("state").join(manifest["folder"].as_str().unwrap())
}

/// Killed at random moments and resumed each time, a run ends with the bytes of one that was never stopped. `PASCALINE_TESTS=all` kills 200
/// times.
#[cfg(unix)]
#[test]
fn a_run_that_is_killed_at_any_moment_ends_with_the_same_bytes() {
    use rand::Rng;
    use std::process::Stdio;
    use std::time::Instant;

    let kills = if extent::all() { 200 } else { 20 };
    let folder = tempfile::tempdir().unwrap();
    let (model, pairs) = (fixture("qwen3-vl/tiny"), conversations(folder.path(), 6));
    let command = |to: &Path| {
        let base =
            ["finetune", "--model", text(&model), "--data", text(&pairs), "--to", text(to), "--rank", "2"];
        let options =
            ["--batch", "1", "--epochs", "3", "--targets", "q_proj", "--rate", "1e-3", "--save-every", "1"];
        let mut command = Command::new(program());
        command.args(base).args(options).arg("--resume").env("PASCALINE_DEVICE", "cpu");
        command
    };
    let done = |to: &Path| -> [Vec<u8>; 3] {
        let moments = fs::read(saved(to).join("moments.safetensors")).unwrap();
        let of = |name: &str| fs::read(to.join(name)).unwrap();
        // rates of tokens differ, losses do not
        let losses = String::from_utf8(of("losses.csv")).unwrap();
        let losses =
            losses.lines().flat_map(|line| line.split(',').take(3).chain(["\n"])).collect::<String>();
        [of("adapter_model.safetensors"), moments, losses.into_bytes()]
    };
    let whole = folder.path().join("whole");
    let since = Instant::now();
    assert!(command(&whole).output().unwrap().status.success());
    let (mut takes, expected) = (since.elapsed(), done(&whole));

    let (mut random, mut killed, mut runs, mut moments) = (rand::rng(), 0, 0, Vec::new());
    while killed < kills {
        let to = folder.path().join(format!("run {runs}"));
        loop {
            let since = Instant::now();
            let mut child = command(&to);
            let mut child = child.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
            if killed < kills {
                let moment = takes.mul_f64(random.random_range(0.0..1.1));
                moments.push(moment);
                std::thread::sleep(moment);
                if child.try_wait().unwrap().is_none() {
                    child.kill().unwrap();
                    killed += 1;
                }
            }
            let output = child.wait_with_output().unwrap();
            if output.status.success() {
                takes = takes.min(since.elapsed()); // the machine was busy before
                break;
            }
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.code().is_none(), "it ends by itself: {said} ({moments:?})");
        }
        let (found, state) = (done(&to), fs::read_dir(to.join("state")).unwrap().count());
        assert!(found == expected, "run {runs} ends with other bytes: {moments:?}");
        assert_eq!(state, 3, "the lock, the manifest and one state; moments {moments:?}");
        runs += 1;
        moments.clear();
    }
    println!("{killed} kills in {runs} runs");
}

/// A state is continued only with the model, the data and the options that it was made with, and by one process at a time.
#[test]
fn a_state_of_another_run_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let (model, pairs) = (fixture("qwen3-vl/tiny"), conversations(folder.path(), 2));
    let to = folder.path().join("to");
    let base =
        ["finetune", "--model", text(&model), "--data", text(&pairs), "--to", text(&to), "--rank", "2"];
    // nothing was stored yet: a first save that was cut short is no obstacle
    fs::create_dir_all(to.join("state/saved-1-0")).unwrap();
    fs::write(to.join("state/saved-1-0/parameters.safetensors"), "cut sh").unwrap();
    succeeds(&[&base[..], &["--resume"]].concat());
    let (code, error) = fails(&[&base[..], &["--resume", "--alpha", "7"]].concat());
    assert!(code == Some(1) && error.contains("state.json") && error.contains("other options"), "{error}");
    let lines = fs::read_to_string(&pairs).unwrap();
    let others = lines.replace(":\"a ", ":\"no ");
    assert_ne!(lines, others);
    fs::write(&pairs, others).unwrap();
    let (code, error) = fails(&[&base[..], &["--resume"]].concat());
    assert!(code == Some(1) && error.contains("other data"), "{error}");
    fs::write(&pairs, lines).unwrap();
    fs::write(to.join("state/state.json"), r#"{"steps": 1, "run": {}}"#).unwrap();
    let (code, error) = fails(&[&base[..], &["--resume"]].concat());
    assert!(code == Some(1) && error.contains("older version") && error.contains("--force"), "{error}");
    succeeds(&[&base[..], &["--force"]].concat());
    succeeds(&[&base[..], &["--resume"]].concat());
}

/// The files that a quantisation-aware run writes hold, bit for bit, the weights with which its forward pass has computed.
#[test]
fn quantize_aware_runs_export_what_they_have_trained() {
    use pascaline::{Device, Tensor};
    use pascaline_train::lora::LoraOptions;
    use pascaline_train::{Example, Lora, Model, QuantizeAware, Tape, data};
    use qwen3_vl::gguf::{GgmlType, Gguf, Mix, text_plan, vision_plan_of};
    use qwen3_vl::safetensors::SafeTensors;

    let folder = tempfile::tempdir().unwrap();
    let (model, pairs) = (fixture("qwen3-vl/tiny"), conversations(folder.path(), 4));
    let processor = qwen3_vl::processor(&model).unwrap();
    let examples: Vec<Example> =
        data::read(&pairs).unwrap().iter().map(|one| one.example(&processor).unwrap()).collect();
    for (option, mix, is_full, scales) in [
        ("q8_0", Mix::Q8_0, true, "fixed"),
        ("q4_0", Mix::Q4_0, true, "fixed"),
        ("q4_0", Mix::Q4_0, true, "learned"),
        ("q8_0", Mix::Q8_0, false, "fixed"),
        ("q4_0", Mix::Q4_0, false, "learned"),
    ] {
        let to = folder.path().join(format!("{option}-{is_full}-{scales}"));
        let base = ["finetune", "--model", text(&model), "--data", text(&pairs), "--to", text(&to)];
        let how = if is_full { &["--full"][..] } else { &["--rank", "2", "--alpha", "4", "--seed", "5"] };
        let options = ["--epochs", "4", "--rate", "1e-3", "--optimizer", "adamw8bit"];
        let rounding = ["--quantize-aware", option, "--scales", scales];
        let all = base.iter().chain(how).chain(&options).chain(&rounding);
        let shown = succeeds(&all.copied().collect::<Vec<_>>());
        assert!(shown.contains("step 4/4"), "{shown}");

        // as training has it
        let plans = [
            vision_plan_of(&model.join("config.json"), &processor).unwrap().unwrap(),
            text_plan(&model, &processor.config, mix).unwrap(),
        ];
        let mut trained = Model::load(&model, &Device::Cpu).unwrap();
        trained.quantize_aware = QuantizeAware::new(&plans);
        if !is_full {
            let targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"];
            let targets = targets.map(str::to_owned).to_vec();
            let lora = LoraOptions { rank: 2, alpha: 4.0, targets, vision: false, seed: 5 };
            trained.lora = Lora::add(&mut trained.parameters, &lora, &Device::Cpu).unwrap();
        }
        if scales == "learned" {
            trained.learn_scales().unwrap();
        }
        let state = SafeTensors::open(saved(&to).join("parameters.safetensors")).unwrap();
        let factors = state.entries().keys().filter(|name| name.ends_with(".scale_factors")).count();
        assert_eq!(factors > 10, scales == "learned", "{factors} matrices whose scales are learned");
        for name in state.entries().keys() {
            let number = trained.parameters.required(name).unwrap();
            let shape = trained.parameters.get(number).value().shape().clone();
            let before = trained.parameters.get(number).value().to_vec::<f32>().unwrap();
            assert!(before != state.read_f32(name).unwrap(), "{name} is trained");
            let value = Tensor::from_slice(&state.read_f32(name).unwrap(), shape, &Device::Cpu).unwrap();
            trained.parameters.set(number, value).unwrap();
        }
        let loss = |model: &Model| {
            let all = model.loss(&mut Tape::silent(), &examples, 1.0).unwrap();
            all.each.value().to_vec::<f32>().unwrap()
        };
        let found = loss(&trained);

        // as the files have it
        let mut exported = Model::load(&model, &Device::Cpu).unwrap();
        let files = ["mmproj-F16.gguf".to_owned(), format!("model-{}.gguf", mix.name())];
        let mut rounded = 0;
        for (file, plan) in files.iter().zip(&plans) {
            let gguf = Gguf::open(to.join(file)).unwrap();
            for tensor in &plan.tensors {
                let number = exported.parameters.required(&tensor.published).unwrap();
                let before = exported.parameters.get(number).value();
                let (stored, shape) = (gguf.read::<f32>(&tensor.name).unwrap(), before.shape().clone());
                let values = match tensor.frame {
                    None => stored,
                    // a frame of each patch's weights
                    Some((frame, frames)) => {
                        let (mut values, patch) =
                            (before.to_vec::<f32>().unwrap(), tensor.shape[2..].iter().product());
                        let patches = values.chunks_exact_mut(patch).skip(frame).step_by(frames);
                        patches
                            .zip(stored.chunks_exact(patch))
                            .for_each(|(to, from)| to.copy_from_slice(from));
                        values
                    }
                };
                rounded += usize::from(matches!(tensor.ty, GgmlType::Q8_0 | GgmlType::Q4_0));
                exported
                    .parameters
                    .set(number, Tensor::from_slice(&values, shape, &Device::Cpu).unwrap())
                    .unwrap();
            }
        }
        assert!(rounded > 10, "{rounded} quantised matrices");
        for parameter in exported.parameters.iter() {
            let seen = trained.seen(parameter.name()).unwrap().to_vec::<f32>().unwrap();
            let case = format!("{option}, full {is_full}, {scales} scales: {}", parameter.name());
            assert!(seen == parameter.value().to_vec::<f32>().unwrap(), "{case}");
        }
        assert_eq!(loss(&exported), found, "{option}");
        trained.quantize_aware = QuantizeAware::default();
        assert_ne!(loss(&trained), found, "{option}: rounding changes the loss");
        // and they generate
        let text_file = to.join(&files[1]);
        succeeds(&[
            "generate",
            "--model",
            text(&text_file),
            "--prompt",
            "What is it?",
            "--max-new-tokens",
            "2",
        ]);
    }
}
