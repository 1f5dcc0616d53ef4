//! Routes, and who may use them.

use super::error::{ApiError, json_response};
use super::log;
use super::model::{App, Config};
use super::reply::{Kind, Shape};
use super::request::{Chat, Completion, Detokenize, Tokenize};
use super::server::{Server, answer, parsed};
use super::worker::Health;
use super::{anthropic, embed, ollama, page, prepare, responses, state, stream};
use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::time::timeout_at;
use tower_http::cors::{AllowOrigin, CorsLayer};

type Result<T> = std::result::Result<T, ApiError>;

/// All routes.
pub(crate) fn router(server: Arc<Server>) -> Router {
    let open = Router::new().route("/health", get(health)).merge(page::routes());
    let guarded = Router::new()
        .route("/v1/chat/completions", post(chat))
        .route("/v1/completions", post(completion))
        .route("/v1/models", get(models))
        .route("/v1/models/{*name}", get(model))
        .route("/v1/embeddings", post(embed::embeddings))
        .route("/v1/rerank", post(embed::rerank))
        .route("/v2/rerank", post(embed::rerank))
        .route("/rerank", post(embed::rerank))
        .route("/tokenize", post(tokenize))
        .route("/detokenize", post(detokenize))
        .route("/props", get(state::props))
        .route("/slots", get(state::slots))
        .route("/v1/responses", post(responses::answer))
        .route("/v1/messages", post(anthropic::answer))
        .route("/v1/messages/count_tokens", post(anthropic::count))
        .merge(ollama::routes())
        .route("/metrics", get(metrics))
        .route_layer(middleware::from_fn_with_state(Arc::clone(&server), authorize));
    let all = open
        .merge(guarded)
        .fallback(|| async { ApiError::not_found("there is nothing at this address") })
        .method_not_allowed_fallback(|| async { ApiError::wrong_method() })
        .layer(middleware::from_fn_with_state(Arc::clone(&server), count));
    let all = match cors(&server.config.cors_origins) {
        Some(cors) => all.layer(cors),
        None => all,
    };
    all.layer(middleware::from_fn_with_state(Arc::clone(&server), known))
        .layer(middleware::from_fn(log::request))
        .with_state(server)
}

/// The routes of connections beyond the limit: only whether the server is there.
pub(crate) fn overflow(server: Arc<Server>) -> Router {
    let most = server.config.limits.connections;
    Router::new()
        .route("/health", get(health))
        .fallback(move || async move { ApiError::too_many_connections(most) })
        .layer(middleware::from_fn_with_state(Arc::clone(&server), known))
        .layer(middleware::from_fn(log::request))
        .with_state(server)
}

/// Which web pages may read answers. Without it browsers let only the server's own page read them.
fn cors(origins: &[String]) -> Option<CorsLayer> {
    if origins.is_empty() {
        return None;
    }
    let allowed = match origins.iter().any(|origin| origin == "*") {
        true => AllowOrigin::any(),
        false => AllowOrigin::list(origins.iter().filter_map(|origin| HeaderValue::from_str(origin).ok())),
    };
    let own = ["anthropic-beta", "anthropic-version", "x-api-key"].map(HeaderName::from_static);
    let headers: Vec<_> =
        [header::AUTHORIZATION, header::CONTENT_TYPE, log::ID].into_iter().chain(own).collect();
    Some(
        CorsLayer::new()
            .allow_origin(allowed)
            .allow_methods([Method::GET, Method::POST])
            .allow_headers(headers)
            .expose_headers([log::ID]),
    )
}

/// Refuses strangers before anything else is looked at.
async fn known(State(server): State<Arc<Server>>, request: Request, next: Next) -> Result<Response> {
    server.visitors.check(request.uri().authority(), request.headers())?;
    Ok(next.run(request).await)
}

/// Refuses requests without the key.
async fn authorize(State(server): State<Arc<Server>>, request: Request, next: Next) -> Result<Response> {
    if let Some(key) = &server.config.api_key {
        // as bytes: a key need not be ASCII
        let given = request.headers().get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
        let given = given.and_then(|value| value.split_at_checked("bearer ".len()));
        let given = given.filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"bearer "));
        // Anthropic's clients send it bare
        let bare = request
            .headers()
            .get("x-api-key")
            .is_some_and(|given| is_equal(given.as_bytes(), key.as_bytes()));
        if !bare && !given.is_some_and(|(_, given)| is_equal(given.trim_ascii(), key.as_bytes())) {
            return Err(ApiError::unauthorized());
        }
    }
    Ok(next.run(request).await)
}

/// Compares in constant time, so that the time does not tell where the first difference is.
fn is_equal(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |different, (a, b)| different | (a ^ b)) == 0
}

async fn count(State(server): State<Arc<Server>>, request: Request, next: Next) -> Response {
    let response = next.run(request).await;
    if response.status().is_client_error() && response.status() != StatusCode::TOO_MANY_REQUESTS {
        server.models.metrics().malformed.add(1);
    }
    response
}

async fn chat(State(server): State<Arc<Server>>, request: Request) -> Result<Response> {
    let deadline = server.deadline();
    let read = |body: Value, config: &Config| Chat::read(&body, config);
    let (app, chat, charge) = parsed(&server, request, deadline, read).await?;
    let shape = Shape::new(Kind::Chat, &chat.wish);
    answer(app, chat, charge, Box::new(shape), deadline).await
}

async fn completion(State(server): State<Arc<Server>>, request: Request) -> Result<Response> {
    let deadline = server.deadline();
    let read = |body: Value, config: &Config| Completion::read(&body, config);
    let (app, Completion { prompts, wish }, charge) = parsed(&server, request, deadline, read).await?;
    let work = prepare::raw(&app, prompts, &wish, charge);
    let prepared = timeout_at(deadline, work).await.map_err(|_| app.too_slow())??;
    let shape = Shape::new(Kind::Text, &wish);
    let answers = prepare::submit(&app, prepared, &wish)?;
    stream::reply(app, answers, Box::new(shape), wish.stream, deadline).await
}

async fn tokenize(State(server): State<Arc<Server>>, request: Request) -> Result<Response> {
    let deadline = server.deadline();
    let read = |body: Value, config: &Config| Tokenize::read(&body, &config.limits);
    let (app, wish, charge) = parsed(&server, request, deadline, read).await?;
    let work = prepare::tokens(&app, wish, charge);
    // the charge lasts until the tokens have been written
    let (tokens, _charge) = timeout_at(deadline, work).await.map_err(|_| app.too_slow())??;
    let context = app.config.limits.context;
    let value = json!({ "tokens": tokens, "count": tokens.len(), "max_model_len": context });
    Ok(json_response(StatusCode::OK, &value))
}

async fn detokenize(State(server): State<Arc<Server>>, request: Request) -> Result<Response> {
    let deadline = server.deadline();
    let read = |body: Value, config: &Config| Detokenize::read(&body, &config.limits);
    let (app, Detokenize { tokens }, mut charge) = parsed(&server, request, deadline, read).await?;
    let tokenizer = &app.worker.model().processor.tokenizer;
    let vocabulary = app.worker.model().config().text.vocab_size;
    if let Some(id) = tokens.iter().find(|&&id| id as usize >= vocabulary) {
        let message = format!("tokens has {id}; the vocabulary has {vocabulary}");
        return Err(ApiError::invalid("tokens", message));
    }
    charge.grow(app.longest_token * tokens.len())?;
    let bytes: Vec<u8> = tokens
        .iter()
        .flat_map(|&id| tokenizer.control(id).map_or_else(|| tokenizer.token_bytes(id), String::into_bytes))
        .collect();
    let text = String::from_utf8_lossy(&bytes);
    // llama-server's name and vLLM's
    Ok(json_response(StatusCode::OK, &json!({ "content": text, "prompt": text })))
}

/// The description of the model, or of it with an adapter, in `/v1/models`.
fn description(server: &Server, name: &str, app: Option<&App>) -> Value {
    let Some(app) = app else {
        let created = server.created;
        return json!({
            "id": name, "object": "model", "created": created, "owned_by": "pascaline", "loaded": false,
        });
    };
    let Config { defaults, limits, .. } = &app.config;
    let sampling = &defaults.sampling;
    json!({
        "id": name,
        "object": "model",
        "created": server.created,
        "owned_by": "pascaline",
        "loaded": true,
        "max_model_len": limits.context,
        "limits": { "pictures": limits.pictures, "pixels": limits.pixels, "body": limits.body },
        "defaults": {
            "max_tokens": Some(defaults.max_new_tokens).filter(|&most| most < usize::MAX),
            "temperature": sampling.temperature,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
            "min_p": sampling.min_p,
            "repetition_penalty": sampling.repetition_penalty,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
        },
    })
}

async fn models(State(server): State<Arc<Server>>) -> Response {
    let all = server.models.names().into_iter();
    let data: Vec<_> = all.map(|(name, app)| description(&server, &name, app.as_deref())).collect();
    json_response(StatusCode::OK, &json!({ "object": "list", "data": data }))
}

async fn model(State(server): State<Arc<Server>>, Path(name): Path<String>) -> Result<Response> {
    let all = server.models.names();
    match all.iter().find(|(other, _)| *other == name) {
        Some((_, app)) => Ok(json_response(StatusCode::OK, &description(&server, &name, app.as_deref()))),
        // the name is in the path, and no parameter
        None => {
            Err(ApiError { param: None, ..ApiError::no_model(&name, all.into_iter().map(|(name, _)| name)) })
        }
    }
}

async fn health(State(server): State<Arc<Server>>) -> Response {
    let (health, replicas) = (server.models.health().borrow().clone(), server.models.gauges().replicas);
    let is_degraded = replicas.iter().any(|replica| replica.lost.is_some());
    let (status, mut value) = match health {
        Health::Up if is_degraded => (StatusCode::OK, json!({ "status": "degraded" })),
        Health::Up => (StatusCode::OK, json!({ "status": "ok" })),
        Health::Draining => (StatusCode::SERVICE_UNAVAILABLE, json!({ "status": "shutting down" })),
        Health::Lost(reason) => {
            (StatusCode::SERVICE_UNAVAILABLE, json!({ "status": "device lost", "reason": reason }))
        }
    };
    if server.models.one().is_none() {
        let all = server.models.names().into_iter();
        value["models"] = all.map(|(name, app)| json!({ "name": name, "loaded": app.is_some() })).collect();
    }
    if replicas.len() > 1 {
        let each = replicas.into_iter().map(|replica| {
            let mut one = match replica.lost {
                None => json!({ "device": replica.device, "status": "ok" }),
                Some(reason) => {
                    json!({ "device": replica.device, "status": "device lost", "reason": reason })
                }
            };
            if let Some(model) = replica.model {
                one["model"] = model.into();
            }
            one
        });
        value["replicas"] = each.collect();
    }
    json_response(status, &value)
}

async fn metrics(State(server): State<Arc<Server>>) -> Response {
    let mut text = server.models.metrics().text(&server.models.gauges());
    text += &server.models.text();
    text += &server.account.metrics();
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    ([(header::CONTENT_TYPE, kind)], Body::from(text)).into_response()
}
