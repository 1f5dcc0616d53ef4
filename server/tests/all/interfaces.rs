//! OpenAI's responses, Anthropic's and Ollama's interfaces, on the CPU: each answers as the chat does.

use crate::common::{PATIENCE, Server, config, picture, question};
use serde_json::{Value, json};
use std::io::Read;
use std::sync::LazyLock;

static SERVER: LazyLock<Server> = LazyLock::new(|| Server::start(config()));

fn data(url: &str) -> String {
    url.split_once(',').expect("a data URL").1.to_owned()
}

/// The chat's text to the same question with the same picture.
fn expected(url: &str) -> String {
    let content = json!([{ "type": "image_url", "image_url": { "url": url } }, { "type": "text", "text": "What is it?" }]);
    let answer = SERVER.chat(&json!({ "messages": [
        { "role": "system", "content": "Be brief." }, { "role": "user", "content": content } ], "max_tokens": 12 }));
    answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
}

fn streamed(path: &str, body: &Value) -> String {
    let request = ureq::post(&SERVER.url(path)).set("Content-Type", "application/json");
    let response = request.timeout(PATIENCE).send_string(&body.to_string()).expect("a stream");
    let mut text = String::new();
    response.into_reader().read_to_string(&mut text).expect("text");
    text
}

fn events(path: &str, body: &Value) -> Vec<Value> {
    let text = streamed(path, body);
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    data.map(|data| serde_json::from_str(data).unwrap()).collect()
}

/// The strings of a field in events of a type, joined.
fn joined(events: &[Value], kind: &str, path: &str) -> String {
    let of_kind = events.iter().filter(|event| event["type"] == kind);
    of_kind.filter_map(|event| event.pointer(path).and_then(Value::as_str)).collect()
}

fn parameters() -> Value {
    json!({ "type": "object", "properties": { "x": { "enum": [1, 2] } }, "required": ["x"], "additionalProperties": false })
}

#[test]
fn responses_answer_as_the_chat() {
    let url = picture(56, 40, 30);
    let content =
        json!([{ "type": "input_image", "image_url": url }, { "type": "input_text", "text": "What is it?" }]);
    let body = json!({ "model": "tiny", "instructions": "Be brief.", "input": [{ "role": "user", "content": content }], "max_output_tokens": 12 });
    let (status, answer) = SERVER.post("/v1/responses", &body);
    assert_eq!((status, &answer["object"]), (200, &json!("response")), "{answer}");
    let text = expected(&url);
    assert_eq!(answer["output"][0]["content"][0]["text"], json!(text), "{answer}");
    let mut stream = body;
    stream["stream"] = json!(true);
    let events = events("/v1/responses", &stream);
    assert_eq!(events[0]["type"], "response.created");
    assert_eq!(joined(&events, "response.output_text.delta", "/delta"), text);
    let last = &events[events.len() - 1]["response"];
    assert_eq!(
        (&last["status"], &last["output"][0]["content"][0]["text"]),
        (&answer["status"], &json!(text))
    );
    for (at, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], at);
    }

    let tools = json!([{ "type": "function", "name": "f", "parameters": parameters() }]);
    let input = json!([
        { "role": "user", "content": "Call." },
        { "type": "function_call", "call_id": "c", "name": "f", "arguments": "{\"x\": 1}" },
        { "type": "function_call_output", "call_id": "c", "output": "done" },
    ]);
    let body = json!({ "input": input, "tools": tools, "tool_choice": { "type": "function", "name": "f" }, "max_output_tokens": 200 });
    let (status, answer) = SERVER.post("/v1/responses", &body);
    let call = &answer["output"][0];
    assert_eq!(
        (status, &call["type"], &call["name"]),
        (200, &json!("function_call"), &json!("f")),
        "{answer}"
    );
    assert!(["{\"x\":1}", "{\"x\":2}"].contains(&call["arguments"].as_str().unwrap()));
    for (body, param) in [
        (json!({}), "input"),
        (json!({ "input": 5 }), "input"),
        (json!({ "input": [5] }), "input[0]"),
        (json!({ "input": [{ "role": "user", "content": 5 }] }), "input[0].content"),
        (json!({ "input": "x", "previous_response_id": "y" }), "previous_response_id"),
        (json!({ "input": "x", "tools": [{ "type": "web_search" }] }), "tools[0].type"),
    ] {
        let (status, answer) = SERVER.post("/v1/responses", &body);
        assert_eq!((status, &answer["error"]["param"]), (400, &json!(param)), "{body}: {answer}");
    }
}

#[test]
fn anthropics_messages_answer_as_the_chat() {
    let url = picture(56, 40, 30);
    let content = json!([
        { "type": "image", "source": { "type": "base64", "media_type": "image/png", "data": data(&url) } },
        { "type": "text", "text": "What is it?" },
    ]);
    let body = json!({ "model": "tiny", "system": "Be brief.", "max_tokens": 12, "messages": [{ "role": "user", "content": content }] });
    let (status, answer) = SERVER.post("/v1/messages", &body);
    let text = expected(&url);
    assert_eq!((status, &answer["content"][0]["text"]), (200, &json!(text)), "{answer}");
    let mut stream = body.clone();
    stream["stream"] = json!(true);
    let events = events("/v1/messages", &stream);
    assert_eq!(
        (&events[0]["type"], &events[events.len() - 1]["type"]),
        (&json!("message_start"), &json!("message_stop"))
    );
    assert_eq!(joined(&events, "content_block_delta", "/delta/text"), text);
    assert_eq!(
        joined(&events, "message_delta", "/delta/stop_reason"),
        answer["stop_reason"].as_str().unwrap()
    );
    let (status, count) = SERVER.post("/v1/messages/count_tokens", &body);
    let usage = &answer["usage"];
    let all = usage["input_tokens"].as_u64().unwrap() + usage["cache_read_input_tokens"].as_u64().unwrap();
    assert_eq!((status, &count["input_tokens"]), (200, &json!(all)));

    let history = json!([
        { "role": "user", "content": "Call." },
        { "role": "assistant", "content": [{ "type": "thinking", "thinking": "hm", "signature": "" }, { "type": "tool_use", "id": "t", "name": "f", "input": { "x": 1 } }] },
        { "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "t", "content": [{ "type": "text", "text": "done" }] }, { "type": "text", "text": "Again." }] },
    ]);
    let body = json!({ "max_tokens": 200, "messages": history, "tools": [{ "name": "f", "input_schema": parameters() }], "tool_choice": { "type": "tool", "name": "f" } });
    let (status, answer) = SERVER.post("/v1/messages", &body);
    let call = &answer["content"][0];
    assert_eq!(
        (status, &answer["stop_reason"], &call["name"]),
        (200, &json!("tool_use"), &json!("f")),
        "{answer}"
    );
    assert!(call["input"]["x"] == 1 || call["input"]["x"] == 2, "{answer}");
    for body in [
        json!({}),
        json!({ "messages": [5] }),
        json!({ "messages": [{ "role": "user", "content": [5] }] }),
        json!({ "messages": "x" }),
    ] {
        let (status, answer) = SERVER.post("/v1/messages", &body);
        assert_eq!(
            (status, &answer["type"], &answer["error"]["type"]),
            (400, &json!("error"), &json!("invalid_request_error")),
            "{answer}"
        );
    }
}

#[test]
fn ollamas_addresses_answer_as_the_chat() {
    let url = picture(56, 40, 30);
    let options = json!({ "num_predict": 12, "temperature": 0 });
    let chat = json!({ "model": "tiny", "stream": false, "options": options, "messages": [
        { "role": "system", "content": "Be brief." },
        { "role": "user", "content": "What is it?", "images": [data(&url)] } ] });
    let (status, answer) = SERVER.post("/api/chat", &chat);
    let text = expected(&url);
    assert_eq!(
        (status, &answer["message"]["content"], &answer["done"]),
        (200, &json!(text), &json!(true)),
        "{answer}"
    );
    let generate = json!({ "model": "tiny", "stream": false, "options": options, "system": "Be brief.", "prompt": "What is it?", "images": [data(&url)] });
    let (status, found) = SERVER.post("/api/generate", &generate);
    assert_eq!(
        (status, &found["response"], &found["eval_count"]),
        (200, &json!(text), &answer["eval_count"]),
        "{found}"
    );
    let mut stream = chat;
    stream.as_object_mut().unwrap().remove("stream"); // the default
    let lines: Vec<Value> =
        streamed("/api/chat", &stream).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let joined: String = lines.iter().filter_map(|line| line["message"]["content"].as_str()).collect();
    assert_eq!((joined, &lines[lines.len() - 1]["done_reason"]), (text, &answer["done_reason"]));

    let schema =
        json!({ "stream": false, "format": parameters(), "options": { "num_predict": 100 }, "prompt": "?" });
    let (_, found) = SERVER.post("/api/generate", &schema);
    let value: Value = serde_json::from_str(found["response"].as_str().unwrap()).unwrap();
    assert!(value["x"] == 1 || value["x"] == 2);

    let (_, tags) = SERVER.get("/api/tags");
    assert_eq!(serde_json::from_str::<Value>(&tags).unwrap()["models"][0]["name"], "tiny");
    let (status, show) = SERVER.post("/api/show", &json!({ "model": "tiny" }));
    assert!(status == 200 && show["capabilities"].as_array().unwrap().contains(&json!("vision")), "{show}");
    for body in [
        json!({}),
        json!({ "messages": [5] }),
        json!({ "messages": [{ "role": "user", "content": "x", "images": ["?"] }] }),
        json!({ "messages": [{ "role": "user", "content": "x" }], "options": { "mirostat": 1 } }),
        json!({ "messages": [{ "role": "user", "content": "x" }], "format": 5 }),
    ] {
        let (status, answer) = SERVER.post("/api/chat", &body);
        assert!(status == 400 && answer["error"].is_string(), "{body}: {answer}");
    }
}

/// Anthropic's clients send the key in a header of their own.
#[test]
fn a_key_may_be_in_anthropics_header() {
    let server = Server::start(pascaline_server::Config { api_key: Some("secret".into()), ..config() });
    let status = |key: &str| {
        let request = ureq::post(&server.url("/v1/messages"))
            .set("x-api-key", key)
            .set("Content-Type", "application/json");
        match request.timeout(PATIENCE).send_string(&question("Hi").to_string()) {
            Ok(response) | Err(ureq::Error::Status(_, response)) => response.status(),
            Err(error) => panic!("{error}"),
        }
    };
    assert_eq!((status("secret"), status("other")), (200, 401));
}
