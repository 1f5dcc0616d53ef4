//! What llama-server tells of itself under `/props` and `/slots`.

use super::app::App;
use super::error::json_response;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json};
use std::sync::Arc;

/// The model and the defaults of requests.
pub(crate) async fn props(State(app): State<Arc<App>>) -> Response {
    let (model, options) = (app.worker.model(), &app.config.defaults);
    let sampling = &options.sampling;
    let value = json!({
        "default_generation_settings": {
            "n_ctx": app.config.limits.context,
            "params": {
                "n_predict": options.max_new_tokens,
                "seed": app.config.seed,
                "temperature": sampling.temperature,
                "top_k": sampling.top_k,
                "top_p": sampling.top_p,
                "min_p": sampling.min_p,
                "repeat_penalty": sampling.repetition_penalty,
                "presence_penalty": sampling.presence_penalty,
                "frequency_penalty": sampling.frequency_penalty,
                "stop": options.stop,
            },
        },
        "total_slots": app.worker.places(),
        "model_path": app.config.name,
        "model_alias": app.config.name,
        "modalities": { "vision": model.processor.pictures.is_some(), "audio": false },
        "build_info": concat!("pascaline-", env!("CARGO_PKG_VERSION")),
    });
    json_response(StatusCode::OK, &value)
}

/// The places for requests that run at the same time, the taken ones first.
pub(crate) async fn slots(State(app): State<Arc<App>>) -> Response {
    let running = app.worker.gauges().running();
    let slot =
        |id: usize| json!({ "id": id, "n_ctx": app.config.limits.context, "is_processing": id < running });
    json_response(StatusCode::OK, &Value::Array((0..app.worker.places()).map(slot).collect()))
}
