//! A GPU without room for one request: that one is refused, the others are answered.

use crate::common::process::in_own_process;
use crate::common::{Server, config, model, picture, question};
use pascaline::{Device, memory};
use serde_json::json;

#[test]
fn a_request_that_does_not_fit_is_refused_alone() {
    in_own_process!();
    let device = Device::virtual_gpu().expect("the virtual GPU");
    let model = model(&device);
    let Device::Cuda(cuda) = &device else { unreachable!("it is a CUDA device") };
    let pool = memory::pool(cuda).expect("its pool");
    pool.trim().expect("it trims");
    memory::set_limit(cuda, pool.statistics().live + (6 << 20)).expect("a limit");
    let server = Server::with(model, 8, config());
    let mut small = question("Hi");
    small["max_tokens"] = json!(2);
    let before = server.chat(&small)["choices"].clone();
    let large = json!({ "max_tokens": 2, "messages": [{ "role": "user", "content": [
        { "type": "image_url", "image_url": { "url": picture(1024, 1024, 9) } } ] }] });
    let (status, answer) = server.post("/v1/chat/completions", &large);
    assert_eq!((status, &answer["error"]["code"]), (503, &json!("out_of_memory")), "{answer}");
    assert_eq!(server.get("/health").0, 200);
    assert_eq!(server.chat(&small)["choices"], before);
}
