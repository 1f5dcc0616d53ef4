//! What llama-server tells of itself under `/props` and `/slots`.

use super::error::{ApiError, json_response};
use super::server::Server;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use serde_json::{Value, json};
use std::sync::Arc;

/// The model that an address asks about: `?model=NAME`.
fn model(uri: &Uri) -> Option<String> {
    let pairs = url::form_urlencoded::parse(uri.query()?.as_bytes());
    pairs.into_iter().find(|(name, _)| name == "model").map(|(_, model)| model.into_owned())
}

/// The model and the defaults of requests.
pub(crate) async fn props(State(server): State<Arc<Server>>, uri: Uri) -> Result<Response, ApiError> {
    let app = server.models.seen(model(&uri).as_deref())?;
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
    Ok(json_response(StatusCode::OK, &value))
}

/// The places for requests that run at the same time, the taken ones first.
pub(crate) async fn slots(State(server): State<Arc<Server>>, uri: Uri) -> Result<Response, ApiError> {
    let app = server.models.seen(model(&uri).as_deref())?;
    let running = app.worker.gauges().running();
    let slot =
        |id: usize| json!({ "id": id, "n_ctx": app.config.limits.context, "is_processing": id < running });
    Ok(json_response(StatusCode::OK, &Value::Array((0..app.worker.places()).map(slot).collect())))
}
