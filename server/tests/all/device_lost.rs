//! A device that is lost while an answer is computed. In a process of its own, because device faults are permanent.

use crate::common::process::in_own_process;
use crate::common::{Server, config, model, question};
use pascaline::Device;
use pascaline_driver::faults;
use pascaline_server::End;
use serde_json::{Value, json};
use std::thread;
use std::time::Duration;

#[test]
fn a_lost_device_ends_answers_and_the_server() {
    in_own_process!();
    let device = Device::virtual_gpu().expect("the virtual GPU");
    let server = Server::with(model(&device), 8, config());
    let mut body = question("Hi");
    body["max_tokens"] = json!(4);
    let before = server.chat(&body);
    assert_eq!(before["choices"][0]["finish_reason"], "length");
    faults::script("cuMemcpyDtoHAsync_v2:3=700,cuMemcpyDtoH_v2:3=700,cuStreamSynchronize:6=700")
        .expect("a script");
    let (status, answer) = server.post("/v1/chat/completions", &body);
    assert_eq!((status, &answer["error"]["code"]), (503, &json!("device_lost")), "{answer}");
    // it says so while it is still there
    let (status, health) = server.get("/health");
    let health: Value = serde_json::from_str(&health).unwrap();
    assert_eq!((status, &health["status"]), (503, &json!("device lost")));
    let (status, answer) = server.post("/v1/chat/completions", &body);
    assert_eq!((status, &answer["error"]["code"]), (503, &json!("device_lost")), "{answer}");
    thread::sleep(Duration::from_millis(10));
    assert!(matches!(server.wait(), End::DeviceLost(_)));
}
