//! Pictures of any size, embeddings and rankings.

use crate::common::{Server, config, model, picture, plain_picture, question, tiny};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use pascaline::Device;
use pascaline_server::{Config, Limits};
use serde_json::{Value, json};
use std::fs;
use std::sync::LazyLock;

const CHAT: &str = "/v1/chat/completions";
static SERVER: LazyLock<Server> = LazyLock::new(|| Server::start(config()));

fn reference() -> Value {
    let file = tiny().join("../../qwen3-vl-embed/tiny.json");
    serde_json::from_slice(&fs::read(file).expect("the reference")).expect("JSON")
}

/// A picture of the fixture as a part of content.
fn part(name: &str) -> Value {
    let file = STANDARD.encode(fs::read(tiny().join(name)).expect("a picture"));
    json!({ "type": "image_url", "image_url": { "url": format!("data:image/png;base64,{file}") } })
}

/// Pictures, then text, as parts.
fn parts(case: &Value) -> Value {
    let images = case["images"].as_array().into_iter().flatten();
    let mut parts: Vec<Value> = images.map(|name| part(name.as_str().expect("a name"))).collect();
    parts.extend(case["text"].as_str().map(|text| json!({ "type": "text", "text": text })));
    parts.into()
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().expect("a list").iter().map(|number| number.as_f64().expect("a number")).collect()
}

fn worst(found: &[f64], want: &[f64]) -> f64 {
    assert_eq!(found.len(), want.len());
    found.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

fn prompt_tokens(server: &Server, part: &Value, more: &Value) -> u64 {
    let mut body = question("Hi");
    body["messages"][0]["content"] = json!([part]);
    body["max_tokens"] = 1.into();
    more.as_object().into_iter().flatten().for_each(|(name, value)| body[name] = value.clone());
    let (status, answer) = server.post(CHAT, &body);
    assert_eq!(status, 200, "{answer}");
    answer["usage"]["prompt_tokens"].as_u64().expect("a count")
}

#[test]
fn media_pictures_are_shrunk_as_the_request_says() {
    let shown = |name: &str, value: Value| {
        let mut part = json!({ "type": "image_url", "image_url": { "url": picture(512, 512, 9) } });
        part[name] = value;
        part
    };
    let plain = shown("detail", json!("auto"));
    let tokens = |part: &Value, more: Value| prompt_tokens(&SERVER, part, &more);
    let whole = tokens(&plain, json!({})); // 16 × 16 tokens
    assert_eq!(whole - tokens(&shown("max_pixels", json!(16_384)), json!({})), 256 - 16);
    assert_eq!(whole - tokens(&plain, json!({ "max_pixels": 16_384 })), 256 - 16);
    assert_eq!(whole - tokens(&plain, json!({ "mm_processor_kwargs": { "max_pixels": 16_384 } })), 256 - 16);
    // the part decides over the request
    assert_eq!(whole, tokens(&shown("max_pixels", json!(262_144)), json!({ "max_pixels": 16_384 })));
    assert_eq!(
        tokens(&plain, json!({ "min_pixels": 400_000, "max_pixels": 600_000 })) - whole,
        20 * 20 - 256
    );
    for (name, value) in [("min_pixels", json!(0)), ("max_pixels", json!("many"))] {
        let mut body = question("Hi");
        body["messages"][0]["content"] = json!([shown(name, value)]);
        let (status, answer) = SERVER.post(CHAT, &body);
        assert_eq!(status, 400, "{answer}");
        assert!(answer["error"]["param"].as_str().is_some_and(|param| param.ends_with(name)), "{answer}");
    }
    // no request has more than the server's most, and none is refused for it
    let limits = Limits { resized_pixels: 65_536, ..Limits::for_context(4096) };
    let server = Server::start(Config { limits, ..config() });
    assert_eq!(whole - prompt_tokens(&server, &plain, &json!({ "max_pixels": 262_144 })), 256 - 64);
}

#[test]
fn media_embeddings_are_the_reference_s() {
    let reference = reference();
    for case in reference["embeddings"].as_array().expect("cases") {
        let mut body = json!({ "model": "tiny", "input": [parts(case)] });
        if let Some(instruction) = case.get("instruction") {
            body["instruction"] = instruction.clone();
        }
        let (status, answer) = SERVER.post("/v1/embeddings", &body);
        assert_eq!(status, 200, "{answer}");
        let want = numbers(&case["embedding"]);
        let off = worst(&numbers(&answer["data"][0]["embedding"]), &want);
        assert!(off <= 1e-5, "{off:e}: {}", case["prompt"]);
        assert_eq!(answer["usage"]["prompt_tokens"], case["n_tokens"]);

        // the same as messages, in base64
        body =
            json!({ "messages": [{ "role": "user", "content": parts(case) }], "encoding_format": "base64" });
        if let Some(instruction) = case.get("instruction") {
            body["messages"] = json!([
                { "role": "system", "content": instruction }, { "role": "user", "content": parts(case) }
            ]);
        }
        let (status, answer) = SERVER.post("/v1/embeddings", &body);
        assert_eq!(status, 200, "{answer}");
        let text = answer["data"][0]["embedding"].as_str().expect("base64");
        let bytes = STANDARD.decode(text).expect("base64");
        let found = bytes.as_chunks::<4>().0.iter().map(|&value| f64::from(f32::from_le_bytes(value)));
        assert!(worst(&found.collect::<Vec<_>>(), &want) <= 1e-5);
    }
}

#[test]
fn media_embeddings_are_shortened_and_wrong_requests_are_named() {
    let embed = |body: Value| SERVER.post("/v1/embeddings", &body);
    let (status, answer) = embed(json!({ "input": ["one", "two"], "dimensions": 16 }));
    assert_eq!((status, answer["data"].as_array().map(Vec::len)), (200, Some(2)), "{answer}");
    assert_eq!(answer["data"][1]["index"], 1);
    let vector = numbers(&answer["data"][0]["embedding"]);
    let length: f64 = vector.iter().map(|value| value * value).sum();
    assert!(vector.len() == 16 && (length - 1.0).abs() < 1e-5, "{length}");
    for (body, param) in [
        (json!({}), "input"),
        (json!({ "input": [] }), "input"),
        (json!({ "input": 5 }), "input"),
        (json!({ "input": [1, 2] }), "input"),
        (json!({ "input": "x", "dimensions": 0 }), "dimensions"),
        (json!({ "input": "x", "dimensions": 65 }), "dimensions"),
        (json!({ "input": "x", "encoding_format": "int8" }), "encoding_format"),
        (json!({ "messages": [] }), "messages"),
        (json!({ "input": vec![part("cases/square.png"); 17] }), "input"),
    ] {
        let (status, answer) = embed(body.clone());
        assert_eq!((status, &answer["error"]["param"]), (400, &json!(param)), "{body}: {answer}");
    }
    assert_eq!(SERVER.get("/v1/embeddings").0, 405);
}

#[test]
fn media_rankings_are_the_reference_s() {
    let reference = reference();
    let cases = reference["reranking"].as_array().expect("cases");
    let documents: Vec<Value> = cases.iter().map(|case| parts(&case["document"])).collect();
    let mut body = json!({ "query": cases[0]["query"]["text"], "documents": documents });
    for path in ["/v1/rerank", "/v2/rerank"] {
        let (status, answer) = SERVER.post(path, &body);
        assert_eq!(status, 200, "{answer}");
        let results = answer["results"].as_array().expect("results");
        let scores: Vec<f64> =
            results.iter().map(|result| result["relevance_score"].as_f64().expect("a score")).collect();
        assert!(results.len() == cases.len() && scores.is_sorted_by(|a, b| a >= b), "{scores:?}");
        for (result, score) in results.iter().zip(scores) {
            let want = cases[result["index"].as_u64().expect("an index") as usize]["score"].as_f64();
            assert!((score - want.expect("a score")).abs() <= 1e-5, "{result} instead of {want:?}");
        }
    }
    body["documents"] = json!(["red green blue", { "text": "A warp is thirty-two threads." }]);
    (body["top_n"], body["return_documents"]) = (1.into(), true.into());
    let (_, answer) = SERVER.post("/v1/rerank", &body);
    assert_eq!(answer["results"].as_array().map(Vec::len), Some(1), "{answer}");
    assert!(answer["results"][0]["document"]["text"].is_string(), "{answer}");
    for (field, value) in [("query", Value::Null), ("documents", json!([])), ("top_n", json!(0))] {
        let mut wrong = body.clone();
        wrong[field] = value;
        let (status, answer) = SERVER.post("/v1/rerank", &wrong);
        assert_eq!((status, &answer["error"]["param"]), (400, &json!(field)), "{answer}");
    }
}

/// Tasks run between the steps of an answer, which goes on.
#[test]
fn media_embeddings_and_answers_share_the_model() {
    let worker = pascaline_server::worker::Worker::start(model(&Device::Cpu), 8).expect("a thread");
    let server = Server::start_with(worker, config());
    std::thread::scope(|scope| {
        let mut body = question("Go on");
        (body["max_tokens"], body["ignore_eos"]) = (200.into(), true.into());
        let server = &server;
        let answer = scope.spawn(move || server.post(CHAT, &body));
        for _ in 0..4 {
            assert_eq!(server.post("/v1/embeddings", &json!({ "input": "x" })).0, 200);
        }
        let (status, answer) = answer.join().expect("no panic");
        assert_eq!((status, &answer["usage"]["completion_tokens"]), (200, &json!(200)), "{answer}");
    });
}

/// A data URL of frames, each a picture's file, joined as vLLM has it.
fn joined(frames: &[Vec<u8>]) -> String {
    let frames: Vec<String> = frames.iter().map(|frame| STANDARD.encode(frame)).collect();
    format!("data:video/jpeg;base64,{}", frames.join(","))
}

/// A data URL of a GIF whose frames are shown for half a second each.
fn gif(frames: u8) -> String {
    let mut bytes = Vec::new();
    let mut encoder = image::codecs::gif::GifEncoder::new(&mut bytes);
    for at in 0..frames {
        let image = image::RgbaImage::from_pixel(64, 64, image::Rgba([at * 20, 90, 200, 255]));
        let delay = image::Delay::from_numer_denom_ms(500, 1);
        encoder.encode_frame(image::Frame::from_parts(image, 0, 0, delay)).expect("a frame");
    }
    drop(encoder);
    format!("data:image/gif;base64,{}", STANDARD.encode(bytes))
}

#[test]
fn media_videos_are_the_reference_s() {
    let file = fs::read(tiny().join("cases_video.json")).expect("the reference");
    let reference: Value = serde_json::from_slice(&file).expect("JSON");
    let tokenizer = &model(&Device::Cpu).processor;
    for run in reference["runs"].as_array().expect("runs") {
        let folder =
            fs::read_dir(tiny().join(run["video"].as_str().expect("a folder"))).expect("it is there");
        let mut files: Vec<_> = folder.map(|entry| entry.expect("a file").path()).collect();
        files.sort();
        let frames: Vec<Vec<u8>> = files.iter().map(|file| fs::read(file).expect("a frame")).collect();
        let mut body = question("");
        body["messages"][0]["content"] = json!([
            { "type": "video_url", "video_url": { "url": joined(&frames) }, "fps": run["fps"] },
            { "type": "text", "text": run["question"] },
        ]);
        body["max_tokens"] = run["generated_ids"].as_array().map(Vec::len).into();
        let answer = SERVER.chat(&body);
        assert_eq!(answer["usage"]["prompt_tokens"], run["n_tokens"], "{answer}");
        let ids = run["generated_ids"].as_array().into_iter().flatten().filter_map(Value::as_u64);
        let ids: Vec<u32> = ids.map(|id| id as u32).collect();
        if ids.iter().all(|&id| id < 393) {
            let want = tokenizer.tokenizer.decode(&ids);
            assert_eq!(answer["choices"][0]["message"]["content"], want, "{answer}");
        }
    }
}

#[test]
fn media_videos_are_sampled_and_refused_by_name() {
    let shown = |url: &str, more: Value| {
        let mut part = json!({ "type": "video_url", "video_url": url });
        more.as_object().into_iter().flatten().for_each(|(name, value)| part[name] = value.clone());
        part
    };
    let tokens = |more: Value| prompt_tokens(&SERVER, &shown(&gif(8), more), &json!({}));
    let whole = tokens(json!({})); // 8 frames in 4 seconds
    assert!(tokens(json!({ "fps": 1 })) < whole && tokens(json!({ "fps": 4 })) > whole);
    let two = tokens(json!({ "max_frames": 2 }));
    assert!(two < whole);
    for more in [
        json!({ "mm_processor_kwargs": { "num_frames": 2 } }),
        json!({ "media_io_kwargs": { "video": { "num_frames": 2 } } }),
        json!({ "max_frames": 2 }),
    ] {
        assert_eq!(prompt_tokens(&SERVER, &shown(&gif(8), json!({})), &more), two, "{more}");
    }
    let refused = |server: &Server, part: Value, param: &str, reason: &str| {
        let mut body = question("Hi");
        body["messages"][0]["content"] = json!([part]);
        let (status, answer) = server.post(CHAT, &body);
        assert_eq!(status, 400, "{answer}");
        let message = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(answer["error"]["param"].as_str().is_some_and(|name| name.ends_with(param)), "{answer}");
        assert!(message.contains(reason), "{message}");
    };
    let still = picture(64, 64, 1);
    refused(&SERVER, shown(&still, json!({})), "video_url", "still picture");
    refused(&SERVER, shown(&joined(&[Vec::new()]), json!({})), "video_url", "");
    refused(&SERVER, shown(&joined(&vec![Vec::new(); 769]), json!({})), "video_url", "769 frames");
    refused(&SERVER, shown(&gif(2), json!({ "fps": 0 })), "fps", "above 0");
    refused(&SERVER, shown(&gif(2), json!({ "max_frames": 769 })), "max_frames", "768");
    refused(&SERVER, json!({ "type": "image_url", "image_url": joined(&[]) }), "image_url", "no picture");
    let file = format!("data:video/mp4;base64,{}", STANDARD.encode("a film"));
    let limits = Limits { reads_video_files: false, ..Limits::for_context(4096) };
    let server = Server::start(Config { limits, ..config() });
    refused(&server, shown(&file, json!({})), "video_url", "not read here");
    // a frame of 4096 × 4096 pixels has no room in 2 MiB, and none is taken
    let limits = Limits { memory: 16 << 20, ..Limits::for_context(4096) };
    let server = Server::start(Config { limits, ..config() });
    let large = plain_picture(1024);
    let frame = STANDARD.decode(large.split_once(',').expect("a data URL").1).expect("base64");
    refused(&server, shown(&joined(&[frame]), json!({})), "video_url", "frames take more");
}
