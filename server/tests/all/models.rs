//! Requests that choose among adapters, and among several models that are loaded by need.

use crate::common::{PATIENCE, Server, config, question, tiny};
use pascaline::{DType, Device};
use pascaline_server::worker::Worker;
use pascaline_server::{Config, Loaded, Served, Source};
use qwen3_vl::batch::BatchOptions;
use qwen3_vl::{Checkpoint, LanguageModel, LoadOptions, Options, Qwen3Vl};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// An adapter that adds alpha to every weight of a matrix.
fn adapter(dir: &Path, alpha: f32) {
    let [n, k] = [64, 160];
    let name = |part: &str| {
        format!("base_model.model.model.language_model.layers.1.mlp.down_proj.lora_{part}.weight")
    };
    let header = json!({
        name("A"): {"dtype": "F32", "shape": [1, k], "data_offsets": [0, 4 * k]},
        name("B"): {"dtype": "F32", "shape": [n, 1], "data_offsets": [4 * k, 4 * (k + n)]},
    });
    let header = header.to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend((0..n + k).flat_map(|_| 1f32.to_le_bytes()));
    fs::create_dir_all(dir).unwrap();
    fs::write(dir.join("adapter_model.safetensors"), file).unwrap();
    let config = json!({"peft_type": "LORA", "r": 1, "lora_alpha": alpha, "bias": "none"});
    fs::write(dir.join("adapter_config.json"), config.to_string()).unwrap();
}

fn load(change: impl FnOnce(Checkpoint) -> Checkpoint) -> LanguageModel {
    let checkpoint = change(Checkpoint::open(tiny(), None).unwrap());
    let options = LoadOptions { dtype: DType::F32, ..LoadOptions::for_device(&Device::Cpu) };
    Qwen3Vl::load_checkpoint(&checkpoint, &Device::Cpu, options, |_| {}).unwrap().into()
}

fn body(model: &str) -> Value {
    let mut body = question("Why is the sky blue?");
    body["model"] = model.into();
    body["max_tokens"] = 8.into();
    body
}

fn text(answer: &Value) -> String {
    answer["choices"][0]["message"]["content"].as_str().expect("a text").to_owned()
}

fn listed(server: &Server) -> Vec<Value> {
    let list: Value = serde_json::from_str(&server.get("/v1/models").1).unwrap();
    list["data"].as_array().unwrap().clone()
}

#[test]
fn requests_choose_among_adapters() {
    let dir = tempfile::tempdir().unwrap();
    let [low, high] = ["low", "high"].map(|name| dir.path().join(name));
    adapter(&low, 1.0);
    adapter(&high, -3.0);
    let expected = [None, Some(&low), Some(&high)].map(|dir| {
        let with = |checkpoint: Checkpoint| match dir {
            Some(dir) => checkpoint.with_adapter(dir).unwrap(),
            None => checkpoint,
        };
        text(&Server::with(load(with), 8, config()).chat(&body("any")))
    });
    let named = |checkpoint: Checkpoint| {
        checkpoint.with_named_adapter("low", &low).unwrap().with_named_adapter("high", &high).unwrap()
    };
    let config = Config { adapters: vec!["low".into(), "high".into()], ..config() };
    let server = Server::with(load(named), 8, config);
    let [plain, low, high] = &expected;
    assert!(plain != low && low != high && high != plain);
    let cases = [("tiny", plain), ("tiny:low", low), ("high", high), ("tiny:high", high), ("low", low)];
    thread::scope(|scope| {
        for (model, expected) in cases {
            let server = &server;
            scope.spawn(move || {
                let answer = server.chat(&body(model));
                assert_eq!(text(&answer), *expected, "{model}");
                let of = if model.contains("tiny") { model.to_owned() } else { format!("tiny:{model}") };
                assert_eq!(answer["model"], of);
            });
        }
    });
    let names: Vec<_> = listed(&server).iter().map(|model| model["id"].clone()).collect();
    assert_eq!(names, ["tiny", "tiny:low", "tiny:high"]);
    let tags: Value = serde_json::from_str(&server.get("/api/tags").1).unwrap();
    assert_eq!(tags["models"][2]["name"], "tiny:high");
    for model in ["tiny:middle", "middle", "any"] {
        let (status, answer) = server.post("/v1/chat/completions", &body(model));
        assert_eq!((status, &answer["error"]["code"]), (404, &json!("model_not_found")), "{answer}");
        assert!(answer["error"]["message"].as_str().unwrap().contains(r#""tiny", "tiny:low", "tiny:high""#));
    }
    let (status, answer) = server.post("/v1/embeddings", &json!({ "input": "a", "model": "low" }));
    assert_eq!((status, &answer["error"]["param"]), (400, &json!("model")), "{answer}");
}

/// The tiny model with an adapter of this alpha; counted while it is loaded.
fn source(name: &str, alpha: f32, held: &Arc<AtomicUsize>) -> Source {
    let (dir, held) = (tempfile::tempdir().unwrap(), Arc::clone(held));
    adapter(dir.path(), alpha);
    let load = move |metrics| {
        let model = load(|checkpoint| checkpoint.with_adapter(dir.path()).unwrap());
        held.fetch_add(1, Ordering::SeqCst);
        let options = BatchOptions { pages: 400, ..BatchOptions::with_room(0) };
        let worker =
            Worker::start_counted(vec![(model, options)], 8, metrics).map_err(|error| error.to_string())?;
        let defaults = Options { max_new_tokens: 16, ..Options::default() };
        Ok(Loaded { worker, defaults, context: 4096 })
    };
    Source { name: name.to_owned(), load: Box::new(load) }
}

fn broken(name: &str) -> Source {
    Source { name: name.to_owned(), load: Box::new(|_| Err("its file is broken".to_owned())) }
}

#[test]
fn models_are_loaded_by_need() {
    let loads = Arc::new(AtomicUsize::new(0));
    let alphas = [("a", 0.0), ("b", 1.0), ("c", -3.0)];
    let expected = alphas.map(|(_, alpha)| {
        let dir = tempfile::tempdir().unwrap();
        adapter(dir.path(), alpha);
        let model = load(|checkpoint| checkpoint.with_adapter(dir.path()).unwrap());
        text(&Server::with(model, 8, config()).chat(&body("any")))
    });
    let mut sources: Vec<_> = alphas.iter().map(|(name, alpha)| source(name, *alpha, &loads)).collect();
    sources.push(broken("d"));
    let served = Served::Several { sources, keep: 2, queue: 16 };
    let server = Server::start_with(served, Config { name: String::new(), ..config() });
    let loaded = |server: &Server| -> Vec<String> {
        let all = listed(server).into_iter().filter(|model| model["loaded"] == true);
        all.map(|model| model["id"].as_str().unwrap().to_owned()).collect()
    };
    assert!(loaded(&server).is_empty());
    assert_eq!(server.get("/props").0, 404);
    let mut nameless = body("a");
    nameless.as_object_mut().unwrap().remove("model");
    for (body, status, said) in [
        (nameless, 400, "model is missing"),
        (body("e"), 404, r#"there is "a", "b", "c", "d""#),
        (body("d"), 503, "its file is broken"),
    ] {
        let (found, answer) = server.post("/v1/chat/completions", &body);
        assert_eq!(found, status, "{answer}");
        assert!(answer["error"]["message"].as_str().unwrap().contains(said), "{answer}");
    }

    for (name, expected) in ["a", "b", "a", "c"].into_iter().zip([0, 1, 0, 2].map(|at| &expected[at])) {
        let answer = server.chat(&body(name));
        assert_eq!((&text(&answer), &answer["model"]), (expected, &json!(name)));
    }
    assert_eq!(loads.load(Ordering::SeqCst), 3);
    assert_eq!(loaded(&server), ["a", "c"], "b was used longest ago");
    let metrics = server.get("/metrics").1;
    for line in [
        r#"pascaline_model_loaded{model="b"} 0"#,
        "pascaline_model_loads_total 3",
        r#"pascaline_requests_total{outcome="finished"} 4"#,
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line} in {metrics}");
    }
    let props: Value = serde_json::from_str(&server.get("/props?model=a").1).unwrap();
    assert_eq!((&props["model_alias"], server.get("/props?model=b").0), (&json!("a"), 404));
    let ps: Value = serde_json::from_str(&server.get("/api/ps").1).unwrap();
    assert_eq!(ps["models"].as_array().unwrap().len(), 2);

    // requests to all at once: each waits for its model, none starves, none is answered by another model
    thread::scope(|scope| {
        for at in 0..9 {
            let (server, expected) = (&server, &expected[at % 3]);
            scope.spawn(move || {
                let answer = server.chat(&body(alphas[at % 3].0));
                assert_eq!((&text(&answer), &answer["model"]), (expected, &json!(alphas[at % 3].0)));
            });
        }
    });
    assert_eq!(loaded(&server).len(), 2);
    server.stop();
    assert_eq!(server.wait(), pascaline_server::End::Stopped { cut_off: 0 });
}

#[test]
fn a_model_is_not_unloaded_while_it_answers() {
    let loads = Arc::new(AtomicUsize::new(0));
    let sources = vec![source("a", 0.0, &loads), source("b", 1.0, &loads)];
    let server = Server::start_with(Served::Several { sources, keep: 1, queue: 1 }, config());
    let mut long = body("a");
    (long["max_tokens"], long["ignore_eos"], long["stream"]) = (400.into(), true.into(), true.into());
    let request = ureq::post(&server.url("/v1/chat/completions")).set("Content-Type", "application/json");
    let answering = request.timeout(PATIENCE).send_string(&long.to_string()).expect("a stream");
    thread::scope(|scope| {
        let waiting = scope.spawn(|| server.chat(&body("b")));
        let metric = || server.get("/metrics").1;
        while !metric().contains("pascaline_requests_waiting_for_model 1") {
            assert!(!waiting.is_finished(), "b is answered while a answers");
            thread::yield_now();
        }
        // the one place in the queue is taken, for the loaded model too
        let (status, answer) = server.post("/v1/chat/completions", &body("a"));
        assert_eq!((status, &answer["error"]["code"]), (429, &json!("queue_full")), "{answer}");
        let rest = answering.into_string().expect("text");
        assert!(rest.contains("[DONE]") && !rest.contains("\"error\""), "{rest}");
        assert_eq!(waiting.join().expect("an answer")["model"], "b");
    });
    assert_eq!(loads.load(Ordering::SeqCst), 2);
}
