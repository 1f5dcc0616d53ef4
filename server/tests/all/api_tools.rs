//! Tools, thoughts, rules of answers and the fields of other servers, on the CPU.

use crate::common::{Server, config, model, picture, question, tiny};
use pascaline::Device;
use qwen3_vl::{LoadOptions, Qwen3Vl};
use serde_json::{Value, json};
use std::sync::LazyLock;
use std::{env, fs, process};

static SERVER: LazyLock<Server> = LazyLock::new(|| Server::start(config()));

const CHAT: &str = "/v1/chat/completions";

fn with(mut body: Value, fields: Value) -> Value {
    let more = fields.as_object().expect("fields").clone();
    body.as_object_mut().expect("an object").extend(more);
    body
}

fn tool(name: &str) -> Value {
    let parameters = json!({
        "type": "object",
        "properties": { "city": { "enum": ["Paris", "Rome"] }, "days": { "type": "integer", "minimum": 1, "maximum": 9 } },
        "required": ["city", "days"],
        "additionalProperties": false,
    });
    json!({ "type": "function", "function": { "name": name, "description": "Tells the weather.", "parameters": parameters } })
}

fn asked(fields: Value) -> Value {
    let tools = json!({ "tools": [tool("weather"), tool("forecast")], "max_tokens": 400, "seed": 4 });
    with(with(question("What is the weather?"), tools), fields)
}

fn is_call(call: &Value, names: &[&str]) {
    assert!(call["id"].as_str().is_some_and(|id| id.starts_with("call_")), "{call}");
    assert_eq!(call["type"], "function");
    assert!(names.contains(&call["function"]["name"].as_str().unwrap()), "{call}");
    let arguments: Value = serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
    assert!(["Paris", "Rome"].contains(&arguments["city"].as_str().unwrap()), "{call}");
    assert!((1..=9).contains(&arguments["days"].as_u64().unwrap()), "{call}");
}

#[test]
fn required_and_named_tools_are_called() {
    for (choice, names) in [
        (json!("required"), &["weather", "forecast"][..]),
        (json!({ "type": "function", "function": { "name": "forecast" } }), &["forecast"]),
    ] {
        for temperature in [0.0, 1.0] {
            let fields =
                json!({ "tool_choice": choice, "parallel_tool_calls": false, "temperature": temperature });
            let answer = SERVER.chat(&asked(fields));
            let choice = &answer["choices"][0];
            assert_eq!(
                (&choice["finish_reason"], &choice["message"]["content"]),
                (&json!("tool_calls"), &Value::Null),
                "{answer}"
            );
            let calls = choice["message"]["tool_calls"].as_array().unwrap();
            assert_eq!(calls.len(), 1);
            is_call(&calls[0], names);
        }
    }
}

#[test]
fn a_streamed_call_is_the_same_in_pieces() {
    let body = asked(json!({ "tool_choice": "required", "parallel_tool_calls": false, "temperature": 0 }));
    let whole = SERVER.chat(&body);
    let events = SERVER.stream(CHAT, &with(body, json!({ "stream": true })));
    let (mut call, mut reason) = (json!({ "name": "", "arguments": "" }), Value::Null);
    for event in &events[..events.len() - 1] {
        let choice = &event["choices"][0];
        if !choice["finish_reason"].is_null() {
            reason = choice["finish_reason"].clone();
        }
        for delta in choice["delta"]["tool_calls"].as_array().into_iter().flatten() {
            assert_eq!(delta["index"], 0);
            for name in ["name", "arguments"] {
                let more = delta["function"][name].as_str().unwrap_or_default();
                call[name] = (call[name].as_str().unwrap().to_owned() + more).into();
            }
        }
    }
    assert_eq!(reason, "tool_calls");
    assert_eq!(call, whole["choices"][0]["message"]["tool_calls"][0]["function"]);
}

/// A tool's result, with a picture, is part of the prompt; a history of calls needs no content.
#[test]
fn conversations_with_calls_go_on() {
    let call = json!({ "id": "call_1", "type": "function", "function": { "name": "weather", "arguments": "{\"city\": \"Rome\"}" } });
    let result = json!([
        { "type": "image_url", "image_url": { "url": picture(56, 40, 30) } },
        { "type": "text", "text": "sunny" },
    ]);
    let history = |content: Value| {
        json!({ "messages": [
            { "role": "user", "content": "Weather?" },
            { "role": "assistant", "content": content, "tool_calls": [call], "reasoning_content": "I look." },
            { "role": "tool", "tool_call_id": "call_1", "content": result },
        ], "tools": [tool("weather")] })
    };
    let processor = model(&Device::Cpu).processor;
    let tokens = |body: &Value| {
        let (status, answer) = SERVER.post("/tokenize", body);
        assert_eq!(status, 200, "{answer}");
        let ids = answer["tokens"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32);
        processor.tokenizer.decode(&ids.collect::<Vec<_>>())
    };
    let text = tokens(&history(Value::Null));
    for part in [
        "\"name\": \"weather\"",
        "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>",
        "\nsunny\n</tool_response>",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
    assert_eq!(tokens(&history(json!(""))), text);
    assert_eq!(SERVER.post(CHAT, &history(Value::Null)).0, 200);
}

/// With `tool_choice: none` and with no tools, nothing is a call, and nothing is refused.
#[test]
fn no_tool_need_be_called() {
    for fields in [json!({ "tool_choice": "none" }), json!({ "tool_choice": "auto" }), json!({ "tools": [] })]
    {
        let answer = SERVER.chat(&asked(with(json!({ "max_tokens": 8 }), fields)));
        assert!(answer["choices"][0]["message"]["content"].is_string(), "{answer}");
    }
    // free text, or calls whose arguments fit
    let mut strict = tool("weather");
    strict["function"]["strict"] = json!(true);
    for one in [true, false] {
        let fields =
            json!({ "tools": [strict], "parallel_tool_calls": !one, "max_tokens": 40, "temperature": 1.0 });
        let answer = SERVER.chat(&asked(fields));
        for call in answer["choices"][0]["message"]["tool_calls"].as_array().into_iter().flatten() {
            is_call(call, &["weather"]);
        }
    }
}

#[test]
fn answers_follow_the_rule_that_is_asked_for() {
    let content = |fields: Value| {
        let answer = SERVER.chat(&with(question("?"), with(json!({ "max_tokens": 200 }), fields)));
        answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
    };
    for fields in [
        json!({ "guided_choice": ["red", "green / blue"] }),
        json!({ "structured_outputs": { "choice": ["red", "green / blue"] } }),
        json!({ "guided_regex": "red|green / blue" }),
        json!({ "grammar": "start: \"red\" | GREEN\nGREEN: \"green / blue\"" }),
        json!({ "guided_grammar": "start: \"red\"" }),
    ] {
        let text = content(fields.clone());
        assert!(["red", "green / blue"].contains(&&*text), "{fields}: {text}");
    }
    let schema = json!({ "type": "object", "properties": { "a": { "enum": [1, 2] } }, "required": ["a"], "additionalProperties": false });
    for fields in [json!({ "guided_json": schema }), json!({ "guided_json": schema.to_string() })] {
        let value: Value = serde_json::from_str(&content(fields)).unwrap();
        assert!(value["a"] == 1 || value["a"] == 2, "{value}");
    }
    let (status, answer) =
        SERVER.post("/v1/completions", &json!({ "prompt": "It is", "guided_choice": ["ok"] }));
    assert_eq!((status, &answer["choices"][0]["text"]), (200, &json!("ok")), "{answer}");
}

#[test]
fn biases_forbid_and_force_tokens() {
    let ask = |bias: Value| {
        let body = with(
            question("Hi"),
            json!({ "logit_bias": bias, "max_tokens": 4, "ignore_eos": true, "temperature": 0 }),
        );
        SERVER.chat(&body)["choices"][0]["message"]["content"].clone()
    };
    let (_, found) = SERVER.post("/tokenize", &json!({ "content": "a" }));
    let id = found["tokens"][0].to_string();
    assert_eq!(ask(json!({ &*id: 100 })), "aaaa");
    let free = ask(json!({}));
    let (_, first) = SERVER.post("/tokenize", &json!({ "content": free }));
    assert_ne!(ask(json!({ first["tokens"][0].to_string(): -100 })), free);
    let (status, text) = SERVER.post("/detokenize", &json!({ "tokens": first["tokens"] }));
    assert_eq!((status, &text["content"]), (200, &free));
}

/// Each is refused with a sentence that names the field.
#[test]
fn what_is_wrong_is_named() {
    let function = |function: Value| json!({ "tools": [{ "type": "function", "function": function }] });
    let deep = (0..40).fold(json!({}), |inner, _| json!({ "properties": { "a": inner } }));
    let calls = |call: Value| json!({ "messages": [{ "role": "assistant", "tool_calls": [call] }] });
    for (fields, param) in [
        (json!({ "tools": 5 }), "tools"),
        (json!({ "tools": [{}] }), "tools[0].type"),
        (json!({ "tools": [{ "type": "retrieval" }] }), "tools[0].type"),
        (json!({ "tools": [{ "type": "function" }] }), "tools[0].function"),
        (function(json!({})), "tools[0].function.name"),
        (function(json!({ "name": "a b" })), "tools[0].function.name"),
        (function(json!({ "name": "x".repeat(65) })), "tools[0].function.name"),
        (function(json!({ "name": "a", "parameters": 5 })), "tools[0].function.parameters"),
        (function(json!({ "name": "a", "parameters": deep })), "tools[0].function.parameters"),
        (json!({ "tools": [tool("a"), tool("a")] }), "tools[1].function.name"),
        (json!({ "tools": (0..200).map(|at| tool(&format!("t{at}"))).collect::<Vec<_>>() }), "tools"),
        (json!({ "tool_choice": "required", "tools": [] }), "tool_choice"),
        (json!({ "tool_choice": "sometimes" }), "tool_choice"),
        (
            json!({ "tool_choice": { "type": "function", "function": { "name": "other" } } }),
            "tool_choice.function.name",
        ),
        (json!({ "functions": [{ "name": "a" }] }), "functions"),
        (json!({ "function_call": "auto" }), "function_call"),
        (json!({ "tool_choice": "required", "guided_choice": ["a"] }), "guided_choice"),
        (json!({ "messages": [{ "role": "tool", "content": "x" }] }), "messages[0].role"),
        (calls(json!({})), "messages[0].tool_calls[0].function"),
        (
            calls(
                json!({ "function": { "name": "a", "arguments": format!("{{\"a\": [{}0]}}", "[],".repeat(1 << 17)) } }),
            ),
            "messages[0].tool_calls[0].function.arguments",
        ),
        (function(json!({ "name": "a", "parameters": { "enum": vec![0; 30_000] } })), "tools"),
        (
            calls(json!({ "function": { "name": "a", "arguments": 5 } })),
            "messages[0].tool_calls[0].function.arguments",
        ),
        (json!({ "mirostat": 2 }), "mirostat"),
        (json!({ "typical_p": 0.5 }), "typical_p"),
        (json!({ "min_tokens": 5 }), "min_tokens"),
        (json!({ "chat_template_kwargs": { "a": true } }), "chat_template_kwargs"),
        (json!({ "repeat_penalty": 1.2 }), "repeat_penalty"),
        (json!({ "grammar": "root ::= \"a\"" }), "grammar"),
        (json!({ "grammar": "start: nothing" }), "grammar"),
        (json!({ "guided_regex": "(" }), "guided_regex"),
        (json!({ "guided_choice": [] }), "guided_choice"),
        (json!({ "guided_json": "{" }), "guided_json"),
        (json!({ "guided_regex": "a", "grammar": "start: \"a\"" }), "grammar"),
    ] {
        let body = asked(fields.clone());
        let (status, answer) = SERVER.post(CHAT, &body);
        let error = &answer["error"];
        assert_eq!((status, &error["param"]), (400, &json!(param)), "{fields}: {answer}");
        let message = error["message"].as_str().unwrap_or_default();
        assert!(message.contains(' ') && !message.contains("panic"), "{answer}");
    }
    for idle in [
        json!({ "mirostat": 0 }),
        json!({ "typical_p": 1.0 }),
        json!({ "functions": [] }),
        json!({ "grammar": "" }),
    ] {
        assert_eq!(SERVER.post(CHAT, &with(question("Hi"), idle)).0, 200);
    }
}

/// A server of the tiny model whose template opens a thought.
fn thinking() -> (Server, std::path::PathBuf) {
    let folder = env::temp_dir().join(format!("pascaline-thinking-{}", process::id()));
    fs::create_dir_all(&folder).unwrap();
    for entry in fs::read_dir(tiny()).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_file() {
            fs::copy(entry.path(), folder.join(entry.file_name())).unwrap();
        }
    }
    let template = fs::read_to_string(folder.join("chat_template.jinja")).unwrap();
    let template = template.replace("<|im_start|>assistant\n", "<|im_start|>assistant\n<think>\n");
    fs::write(folder.join("chat_template.jinja"), template).unwrap();
    let options = LoadOptions { dtype: pascaline::DType::F32, ..LoadOptions::for_device(&Device::Cpu) };
    let model = Qwen3Vl::load_with(&folder, &Device::Cpu, options, |_| {}).unwrap();
    (Server::with(model.into(), 16, config()), folder)
}

#[test]
fn thoughts_are_told_apart() {
    let (server, folder) = thinking();
    let lark = "start: \"because </think>\" \"\\n\\nyes\"";
    // a rule is for the answer; the thought before it is free and may not end
    let free = server.chat(&with(question("?"), json!({ "max_tokens": 6, "ignore_eos": true })));
    let message = &free["choices"][0]["message"];
    assert!(message["content"] == "" && message["reasoning_content"].is_string(), "{free}");
    assert_eq!(free["usage"]["completion_tokens_details"]["reasoning_tokens"], 6);
    let bias: serde_json::Map<String, Value> = {
        let (_, ids) = server.post("/tokenize", &json!({ "content": "</think>" }));
        ids["tokens"].as_array().unwrap().iter().map(|id| (id.to_string(), json!(3))).collect()
    };
    assert!(!bias.is_empty());
    let ruled = server.chat(&with(question("?"), json!({ "max_tokens": 6, "guided_choice": ["yes"] })));
    assert!(
        ruled["choices"][0]["message"]["content"] == "" || ruled["choices"][0]["message"]["content"] == "yes",
        "{ruled}"
    );
    drop(server);
    fs::remove_dir_all(folder).unwrap();

    // a thought that the answer itself begins
    let lark = lark.replacen("\"because", "\"<think>\\nbecause", 1);
    let body = with(question("?"), json!({ "grammar": lark, "max_tokens": 100 }));
    let answer = SERVER.chat(&body);
    let message = &answer["choices"][0]["message"];
    assert_eq!(
        (&message["reasoning_content"], &message["content"]),
        (&json!("because"), &json!("yes")),
        "{answer}"
    );
    assert!(answer["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap() > 0);
    let events = SERVER.stream(CHAT, &with(body, json!({ "stream": true })));
    let joined = |name: &str| -> String {
        events.iter().filter_map(|event| event["choices"][0]["delta"][name].as_str()).collect()
    };
    assert_eq!((joined("reasoning_content"), joined("content")), ("because".into(), "yes".into()));
}

#[test]
fn the_server_tells_its_state() {
    let (status, props) = SERVER.get("/props");
    let props: Value = serde_json::from_str(&props).unwrap();
    assert_eq!(
        (status, &props["modalities"]["vision"], &props["default_generation_settings"]["n_ctx"]),
        (200, &json!(true), &json!(4096))
    );
    let (status, slots) = SERVER.get("/slots");
    let slots: Value = serde_json::from_str(&slots).unwrap();
    assert_eq!(
        (status, slots.as_array().map(Vec::len)),
        (200, props["total_slots"].as_u64().map(|count| count as usize))
    );
}
