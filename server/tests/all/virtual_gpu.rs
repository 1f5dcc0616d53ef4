//! Answers on the virtual GPU are those of `generate`, alone and sixteen at once.

use crate::common::process::in_own_process;
use crate::common::{Server, config, model, picture, question};
use pascaline::Device;
use qwen3_vl::preprocess::Picture;
use qwen3_vl::{Options, Visual};
use serde_json::{Value, json};
use std::thread;

#[test]
fn greedy_answers_are_those_of_generate() {
    in_own_process!();
    use base64::Engine;
    const TOKENS: usize = 5;
    let device = Device::virtual_gpu().expect("the virtual GPU");
    let model = model(&device);
    let options = Options { max_new_tokens: TOKENS, ..Options::default() };
    let url = picture(32, 32, 90);
    let file = url.split_once(',').expect("a data URL").1;
    let file = base64::engine::general_purpose::STANDARD.decode(file).expect("base64");
    let shown: Visual = Picture::from_bytes("picture", &file).expect("a picture").into();
    let parts =
        json!([{ "type": "image_url", "image_url": { "url": url } }, { "type": "text", "text": "What?" }]);
    let mut asked: Vec<(Value, String)> = ["Hello", "How many?", "Why is it so?"]
        .map(|text| (question(text), model.generate(&[], text, &options).expect("an answer").text))
        .into();
    let answer = model.generate(&[shown], "What?", &options).expect("an answer").text;
    asked.push((json!({ "messages": [{ "role": "user", "content": parts }] }), answer));
    for (body, _) in &mut asked {
        body["max_tokens"] = json!(TOKENS);
    }
    let server = Server::with(model, 64, config());
    let check = |(body, expected): &(Value, String)| {
        assert_eq!(server.chat(body)["choices"][0]["message"]["content"], *expected, "{body}");
    };
    asked.iter().for_each(check);
    thread::scope(|scope| {
        for at in 0..16 {
            let asked = &asked[at % asked.len()];
            scope.spawn(move || check(asked));
        }
    });
}
