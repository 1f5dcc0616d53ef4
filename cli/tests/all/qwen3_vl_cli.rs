//! The commands that take a model, as a user meets them.

use serde_json::Value;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/qwen3-vl/tiny")
}

fn pascaline(command: &str, model: &Path, arguments: &[&str]) -> Command {
    let mut program = Command::new(env!("CARGO_BIN_EXE_pascaline"));
    program.arg(command).arg("--model").arg(model).args(["--device", "cpu"]).args(arguments);
    program.env_remove("PASCALINE_DEVICE");
    program
}

fn run(command: &str, model: &Path, arguments: &[&str]) -> Output {
    pascaline(command, model, arguments).output().expect("the program starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("output is UTF-8")
}

fn square() -> String {
    tiny().join("cases/square.png").display().to_string()
}

#[test]
fn generate_prints_the_references_answer() {
    let arguments = [
        "--image",
        &square(),
        "--prompt",
        "What colour is the circle?",
        "--max-new-tokens",
        "24",
        "--greedy",
    ];
    let output = run("generate", &tiny(), &arguments);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let cases: Value = serde_json::from_slice(&fs::read(tiny().join("cases.json")).unwrap()).unwrap();
    let want = &cases["runs"][1];
    assert_eq!(text(&output.stdout), format!("{}\n", want["generated_text"].as_str().unwrap()));

    let file = temporary("generate.json");
    let name = file.display().to_string();
    let with_file = run("generate", &tiny(), &[&arguments[..], &["--json", &name, "--quiet"]].concat());
    assert_eq!((with_file.stdout, text(&with_file.stderr)), (output.stdout, String::new()));
    let in_file: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    fs::remove_file(file).unwrap();

    let output = run("generate", &tiny(), &[&arguments[..], &["--json"]].concat());
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(in_file["generated_ids"], json["generated_ids"]);
    assert_eq!(json["seed"], Value::Null, "greedy draws nothing");
    assert_eq!(json["generated_ids"], want["generated_ids"]);
    assert_eq!(json["text"], want["generated_text"]);
    assert_eq!(json["stop_reason"], "max_new_tokens");
    assert_eq!(json["prompt_ids"].as_array().unwrap().len(), 35);
    for number in ["time_to_first_token", "prefill_tokens_per_second", "decode_tokens_per_second"] {
        assert!(json[number].as_f64().unwrap() > 0.0, "{number}");
    }
}

#[test]
fn errors_name_the_file_and_set_the_exit_status() {
    for (model, arguments, status, part) in [
        (tiny(), vec!["--prompt", "x", "--image", "/none.png"], 1, "/none.png"),
        (tiny().join("none"), vec!["--prompt", "x"], 1, "`--model Qwen/Qwen3-VL-2B-Instruct` fetches one"),
        (
            tiny().join("Qwen3-VL-4B-Thinking"),
            vec!["--prompt", "x"],
            1,
            "`--model Qwen/Qwen3-VL-4B-Thinking` fetches",
        ),
        (tiny().join("cases"), vec!["--prompt", "x"], 1, "no config.json in it"),
        (tiny().join("config.json"), vec!["--prompt", "x"], 1, "no GGUF file"),
        (tiny(), vec!["--prompt", "x", "--greedy", "--top-k", "3"], 2, "--greedy"),
        (tiny(), vec!["--prompt", "x", "--gpu-layers", "1"], 2, "on the CPU all weights are in host memory"),
        (tiny(), vec!["--prompt", "x", "--memory-trace", "/none"], 2, "add `--device cuda`"),
        (tiny(), vec!["--prompt", "@/none.txt"], 1, "/none.txt"),
        (tiny(), vec!["--prompt", "-", "--image", "-"], 2, "stdin holds one thing"),
        (tiny(), vec!["--prompt", "x", "--image", "-"], 1, "image stdin: "), // which is empty
        (tiny(), vec![], 2, "--prompt"),
    ] {
        let output = run("generate", &model, &arguments);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {}", text(&output.stderr));
        assert!(text(&output.stderr).contains(part), "{arguments:?}: {}", text(&output.stderr));
        assert!(output.stdout.is_empty());
    }
}

/// Numbers out of range are told from the command line alone: the model is not even there.
#[test]
fn wrong_numbers_are_told_before_anything_is_loaded() {
    let none = tiny().join("none");
    for (option, value, part) in [
        ("--temperature", "-1", "it must be finite and not negative"),
        ("--temperature", "hot", "it must be a number"),
        ("--top-p", "0", "it must be above 0 and at most 1"),
        ("--min-p", "1.5", "it must be between 0 and 1"),
        ("--repetition-penalty", "-1", "it must be finite and above 0"),
        ("--presence-penalty", "inf", "it must be finite"),
        ("--top-k", "-1", "it must be a whole number that is not negative"),
        ("--max-new-tokens", "-1", "it must be a whole number from 1 on"),
        ("--max-new-tokens", "0", "it must be a whole number from 1 on"),
        ("--seed", "-1", "invalid"),
        ("--fps", "-2", "it must be a number above 0"),
    ] {
        let output = run("generate", &none, &["--prompt", "x", option, value]);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{option} {value}: {said}");
        assert!(said.contains(part) && said.contains(option), "{option} {value}: {said}");
    }
}

/// Three generated tokens, as JSON.
fn generated(arguments: &[&str], stdin: &[u8]) -> Value {
    let fixed = ["--max-new-tokens", "3", "--json"];
    let output = fed(&mut pascaline("generate", &tiny(), &[&fixed, arguments].concat()), stdin);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Runs a program that reads this from a pipe.
fn fed(command: &mut Command, stdin: &[u8]) -> Output {
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    child.stdin.take().expect("stdin is a pipe").write_all(stdin).expect("it reads");
    child.wait_with_output().expect("it ends")
}

#[test]
fn a_prompt_may_begin_with_a_hyphen_or_come_from_stdin_or_a_file() {
    let file = temporary("prompt.txt");
    fs::write(&file, "-1 + 2 = ?\n").unwrap();
    let at = format!("@{}", file.display());
    let ids = |arguments: &[&str], stdin: &str| generated(arguments, stdin.as_bytes())["prompt_ids"].clone();
    let here = ids(&["--prompt", "-1 + 2 = ?"], "");
    assert_eq!(ids(&["--prompt", "-"], "-1 + 2 = ?\n"), here);
    assert_eq!(ids(&["--prompt", &at], ""), here);
    fs::remove_file(file).unwrap();
    assert_ne!(ids(&["--prompt", "@@home"], ""), ids(&["--prompt", "home"], ""));
    assert_ne!(ids(&["--prompt", "-1 + 2 = ?", "--system", "-v"], ""), here);

    let picture = fs::read(square()).unwrap();
    let from_stdin = generated(&["--prompt", "x", "--image", "-"], &picture);
    assert_eq!(
        from_stdin["generated_ids"],
        generated(&["--prompt", "x", "--image", &square()], b"")["generated_ids"]
    );
}

#[test]
fn a_random_seed_can_be_taken_again() {
    let draw = ["--prompt", "x", "--temperature", "5", "--ignore-eos"];
    let first = generated(&draw, b"");
    let seed = first["seed"].as_u64().expect("a seed").to_string();
    let again = generated(&[&draw[..], &["--seed", &seed]].concat(), b"");
    assert_eq!((&again["generated_ids"], &again["seed"]), (&first["generated_ids"], &first["seed"]));
    assert_ne!(generated(&draw, b"")["seed"], first["seed"]);

    let output = run("generate", &tiny(), &[&draw[..], &["--max-new-tokens", "3"]].concat());
    assert!(text(&output.stderr).contains("--seed "), "{}", text(&output.stderr));
}

#[test]
fn more_tokens_than_the_context_has_are_cut() {
    let short = changed("short", |folder| {
        let file = folder.join("config.json");
        let config = fs::read_to_string(&file).unwrap();
        let changed = config.replace("\"max_position_embeddings\": 4096", "\"max_position_embeddings\": 40");
        assert_ne!(changed, config);
        fs::write(file, changed).unwrap();
    });
    let ask = |prompt: &str| {
        let limit = ["--max-new-tokens", "512"];
        run("generate", &short, &[&["--prompt", prompt, "--ignore-eos", "--json"], &limit[..]].concat())
    };
    let unlimited = run("generate", &short, &["--prompt", "Hello?", "--ignore-eos", "--json"]);
    let output = ask("Hello?");
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let room = 40 - json["prompt_ids"].as_array().unwrap().len();
    assert_eq!(json["generated_ids"].as_array().unwrap().len(), room);
    assert_eq!(json["stop_reason"], "context_full");
    let found: Value = serde_json::from_slice(&unlimited.stdout).unwrap();
    assert_eq!(found["generated_ids"], json["generated_ids"], "without a limit only the context ends it");
    let in_words = run("generate", &short, &["--prompt", "Hello?", "--ignore-eos"]);
    let said = text(&in_words.stderr);
    assert!(said.contains("prompt and answer fill the model's context of 40"), "{said}");
    assert!(!said.contains("--max-new-tokens"), "{said}");
    let said = text(&output.stderr);
    assert!(
        said.contains(&format!("--max-new-tokens 512 is cut to {room}: the model's context of 40")),
        "{said}"
    );

    let output = ask(&"Hello? ".repeat(20));
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("the model's context 40"), "{}", text(&output.stderr));
    fs::remove_dir_all(short).unwrap();
}

#[test]
fn a_git_lfs_pointer_is_named() {
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 4255140312\n";
    for name in ["model.safetensors", "tokenizer.json"] {
        let folder = changed("lfs", |folder| fs::write(folder.join(name), pointer).unwrap());
        let output = run("generate", &folder, &["--prompt", "x"]);
        fs::remove_dir_all(folder).unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(name) && said.contains("`git lfs pull`"), "{said}");
    }
}

#[test]
fn a_model_that_can_not_fit_says_what_it_needs() {
    let run = |arguments: &[&str]| {
        let fixed = ["--prompt", "x", "--device", "virtual"];
        let mut command = Command::new(env!("CARGO_BIN_EXE_pascaline"));
        command.arg("generate").arg("--model").arg(tiny()).args(fixed).args(arguments);
        let output = command.env("PASCALINE_VIRTUAL_MEMORY", "100000").output().expect("the program starts");
        assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
        text(&output.stderr)
    };
    let said = run(&[]);
    for part in ["does not fit 0 MiB", "MiB are needed for a context of 5", "--max-new-tokens"] {
        assert!(said.contains(part) && !said.contains("leave out"), "{part}: {said}");
    }
    let said = run(&["--cache", "f32", "--gpu-layers", "2"]);
    assert!(said.contains("leave out --cache and --gpu-layers"), "{said}");
}

/// The turn that does not fit is lost, and not the conversation.
#[test]
fn a_conversation_goes_on_after_it_was_out_of_memory() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pascaline"));
    command.arg("chat").arg("--model").arg(tiny()).args(["--device", "virtual", "--max-new-tokens", "2"]);
    command.env("PASCALINE_VIRTUAL_MEMORY", "4500000");
    let output = fed(&mut command, format!("Hello?\n{}\nAnd now?\n", "word ".repeat(600)).as_bytes());
    let notes = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{notes}");
    assert_eq!(notes.matches("out of memory").count(), 1, "{notes}");
    assert_eq!(notes.matches("prompt tokens").count(), 2, "{notes}");
}

/// `chat` over a pipe, with its JSON.
fn chat(model: &Path, arguments: &[&str], input: &str) -> (Output, Value) {
    let file = temporary("chat.json");
    let name = file.display().to_string();
    let fixed = ["--max-new-tokens", "3", "--json", &name];
    let output = fed(&mut pascaline("chat", model, &[&fixed, arguments].concat()), input.as_bytes());
    let json = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    fs::remove_file(file).unwrap();
    (output, json)
}

#[test]
fn chat_keeps_the_conversation() {
    let input = format!("/image {}\nWhat colour?\nAnd now?\n/reset\nHello?\n/quit\nno\n", square());
    let (output, json) = chat(&tiny(), &[], &input);
    let notes = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{notes}");
    assert_eq!(notes.matches("prompt tokens").count(), 3, "{notes}");
    assert_eq!(notes.matches("cached").count(), 2, "{notes}"); // the turn's beginning is the same everywhere
    for part in ["square.png: ", "tokens; shown with the next message", "forgotten"] {
        assert!(notes.contains(part), "{part}: {notes}");
    }
    let turns = json["turns"].as_array().unwrap();
    assert_eq!(turns.iter().map(|turn| turn["images"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 0, 0]);
    let answers: Vec<_> = turns.iter().map(|turn| turn["text"].as_str().unwrap()).collect();
    assert_eq!(text(&output.stdout), format!("{}\n", answers.join("\n")));

    let (quiet, _) = chat(&tiny(), &["--quiet"], &input);
    assert_eq!((quiet.stdout, text(&quiet.stderr)), (output.stdout, String::new()));
}

#[test]
fn chat_fails_if_a_line_of_its_input_did() {
    for (line, part) in
        [("/image /none.png", "/none.png"), ("/what", "/what is no command"), ("/image", "needs a file")]
    {
        let (output, _) = chat(&tiny(), &[], &format!("{line}\nHello?\n"));
        let notes = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{notes}");
        assert!(notes.contains(part) && notes.contains("a turn or command failed"), "{notes}");
        assert_eq!(notes.matches("prompt tokens").count(), 1, "it goes on: {notes}");
    }
}

/// A turn that is too long is taken back: its picture waits for the next turn, and the cache keeps what it has.
#[test]
fn a_rejected_turn_costs_nothing() {
    let long = "word ".repeat(5000);
    let input = format!("First?\n/image {}\n{long}\nSecond?\n/image {}\n/drop\nThird?\n", square(), square());
    let (output, json) = chat(&tiny(), &[], &input);
    let notes = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{notes}");
    for part in ["the model's context 4096", "1 picture still wait", "left out: 1 picture"] {
        assert!(notes.contains(part), "{part}: {notes}");
    }
    let turns = json["turns"].as_array().unwrap();
    let images: Vec<_> = turns.iter().map(|turn| turn["images"].as_u64().unwrap()).collect();
    assert_eq!(images, [0, 1, 1, 0]);
    assert!(turns[1]["error"].is_string() && turns[1]["text"].is_null());
    let count = |turn: usize, what: &str| turns[turn]["statistics"][what].as_u64().unwrap();
    let kept = count(2, "prompt_tokens") - count(2, "prefill_tokens");
    assert!(kept >= count(0, "prompt_tokens"), "{kept} of the first turn's tokens were kept");
}

/// A path of this process's own.
fn temporary(name: &str) -> PathBuf {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed); // tests of one process run side by side
    std::env::temp_dir().join(format!("pascaline-{}-{number}-{name}", std::process::id()))
}

/// A copy of the checkpoint in which something is changed.
fn changed(name: &str, change: impl FnOnce(&Path)) -> PathBuf {
    let folder = temporary(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(folder.join("cases")).unwrap();
    for from in [tiny(), tiny().join("cases")] {
        let to = if from == tiny() { folder.clone() } else { folder.join("cases") };
        for entry in fs::read_dir(from).unwrap().map(Result::unwrap).filter(|entry| entry.path().is_file()) {
            fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
    change(&folder);
    folder
}

#[test]
fn validate_tells_a_right_model_from_a_wrong_one() {
    let output = run("validate", &tiny(), &["--json", "-"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&json["passed"], &json["capacity"]["text_layers"]), (&Value::Bool(true), &3.into()));
    assert_eq!(json["runs"].as_array().unwrap().len(), 8); // two of them videos

    for option in [["--vision-dtype", "q8_0"], ["--vision-scores", "int8"]] {
        let output = run("validate", &tiny(), &[&option[..], &["--json", "-"]].concat());
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let json: Value = serde_json::from_slice(&output.stdout).unwrap();
        let run = &json["runs"][1];
        let stages = run["stages"].as_array().unwrap();
        let embeddings = stages.iter().find(|stage| stage["name"] == "image_embeds").unwrap();
        let error = embeddings["error"].as_f64().unwrap();
        assert!((1e-3..6e-2).contains(&error), "{error} of a tower with {option:?}");
        assert_eq!(run["generated_equal"], true, "tokens with {option:?}");
    }

    let changed = changed("weight", |folder| {
        let file = folder.join("model.safetensors");
        let mut bytes = fs::read(&file).unwrap();
        let end = bytes.len();
        bytes[end - 4..].copy_from_slice(&9f32.to_le_bytes());
        fs::write(file, bytes).unwrap();
    });
    let output = run("validate", &changed, &[]);
    fs::remove_dir_all(&changed).unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stdout));
    let table = text(&output.stdout);
    assert!(table.contains("FAIL") && table.contains("PASS") && table.contains("DIFFER"), "{table}");
}

#[test]
fn layers_from_host_memory_are_reported() {
    let generate = |arguments: &[&str]| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_pascaline"));
        program.args([
            "generate",
            "--device",
            "virtual",
            "--greedy",
            "--prompt",
            "Hi",
            "--max-new-tokens",
            "2",
        ]);
        let output = program.arg("--model").arg(tiny()).args(arguments).output().expect("the program starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output
    };
    let json = |arguments: &[&str]| -> Value {
        serde_json::from_slice(&generate(&[&["--json"], arguments].concat()).stdout).unwrap()
    };
    let (resident, streamed) = (json(&[]), json(&["--gpu-layers", "0"]));
    assert_eq!(resident["generated_ids"], streamed["generated_ids"]);
    assert_eq!((&streamed["streamed_layers"], &streamed["graph_launches"]), (&3.into(), &Value::Null));
    assert_eq!(resident["streamed_layers"], 0);
    let notes = String::from_utf8(generate(&["--gpu-layers", "0"]).stderr).unwrap();
    assert!(notes.contains("3 layers from host memory, launched kernel by kernel"), "{notes}");
}

/// The measured quantities, not their values.
#[test]
fn bench_measures_a_model() {
    let tests = ["-p", "6,12", "-n", "3", "-d", "0,5", "-r", "2", "--picture", "64x64"];
    let output = run("bench", &tiny(), &[&tests[..], &["--json", "-"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = json["tests"].as_array().unwrap();
    let names: Vec<_> = rows.iter().map(|row| row["test"].as_str().unwrap()).collect();
    let all = ["pp6", "pp12", "pp6 @ d5", "pp12 @ d5", "tg3", "tg3 @ d5", "picture 64x64"];
    assert_eq!(names, all);
    for row in rows {
        assert_eq!(row["seconds"].as_array().unwrap().len(), 2, "{row}");
        assert!(
            row["tokens_per_second"].as_f64().unwrap() > 0.0 && row["tokens"].as_u64().unwrap() > 0,
            "{row}"
        );
    }
    let tokens = |test: usize| rows[test]["tokens"].as_u64().unwrap();
    assert_eq!(
        [tokens(0), tokens(3), tokens(4), tokens(5)],
        [6, 12, 3, 3],
        "those in the cache are not counted"
    );

    let few = ["-p", "4", "-n", "2", "--sequences", "1,3", "-r", "1"];
    let markdown = run("bench", &tiny(), &[&few[..], &["--format", "markdown", "--dtype", "q8_0"]].concat());
    let lines: Vec<_> = text(&markdown.stdout).lines().map(str::to_owned).collect();
    assert_eq!(lines.len(), 5, "{lines:?}");
    let columns: Vec<_> = lines.iter().map(|line| line.matches('|').count()).collect();
    assert_eq!(columns, [9; 5], "{lines:?}");
    assert!(lines[3].contains("| tg2 |") && lines[4].contains("| tg2 x3 |"), "{lines:?}");

    let csv = run("bench", &tiny(), &["-p", "4", "-n", "0", "-r", "2", "--format", "csv", "--cache", "q8_0"]);
    let lines: Vec<_> = text(&csv.stdout).lines().map(str::to_owned).collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[1].contains(",\"pp4\",4,0,1,") && lines[1].contains(",q8_0,"), "{lines:?}");
}

#[test]
fn bench_refuses_what_can_not_be_measured() {
    for (arguments, part) in [
        (vec!["-p", "0", "-n", "0"], "nothing to measure"),
        (vec!["-r", "0"], "--repetitions"),
        (vec!["-p", "many"], "--prompt-tokens"),
        (vec!["-d", "1000000000"], "the model has"),
        (vec!["--sequences", "0"], "--sequences"),
        (vec!["--picture", "640"], "WIDTHxHEIGHT"),
        (vec!["--gpu-layers", "1"], "--gpu-layers 1 is for a GPU"),
        (vec!["--serve", "http://127.0.0.1:1"], "--serve"),
    ] {
        let output = run("bench", &tiny(), &arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", text(&output.stderr));
        assert!(text(&output.stderr).contains(part), "{arguments:?}: {}", text(&output.stderr));
    }
    let program = Command::new(env!("CARGO_BIN_EXE_pascaline")).args(["bench", "-p", "4"]).output();
    let output = program.expect("the program starts");
    assert_eq!(output.status.code(), Some(2), "without a model");
    assert!(text(&output.stderr).contains("--model"));
}
