//! Routes, and who may use them.

use super::account::{Account, Charge};
use super::admission::Client;
use super::error::{ApiError, json_response};
use super::grammar::Grammars;
use super::lanes::{self, Lanes};
use super::limits::Limits;
use super::prepare;
use super::request::{Chat, Completion, Parsed, Tokenize};
use super::visitors::{self, Visitors};
use super::worker::{Health, Worker};
use super::{embed, json, page, reply, stream};
use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http_body_util::BodyExt;
use qwen3_vl::{ControlTokens, Options};
use serde_json::{Value, json};
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::{Instant, timeout, timeout_at};
use tower_http::cors::{AllowOrigin, CorsLayer};

type Result<T> = std::result::Result<T, ApiError>;

/// The most bytes beyond the limit that are read and discarded.
const DISCARDED: usize = 64 << 20;

/// A server's configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// The model's name in answers and in `/v1/models`.
    pub name: String,
    /// Defaults for fields that a request does not set, except the seed.
    pub defaults: Options,
    /// The seed of requests that give none; `None`: a random one for each.
    pub seed: Option<u64>,
    /// The limits of requests.
    pub limits: Limits,
    /// How control tokens that are spelled in texts are read.
    pub control_tokens: ControlTokens,
    /// The key that requests must have; `None`: none.
    pub api_key: Option<String>,
    /// Origins of web pages that may use the server besides its own; `*` for all.
    pub cors_origins: Vec<String>,
    /// Names that the server has besides this machine's own, if it is on a loopback address without a key. If there are
    /// any, it answers to no others.
    pub allowed_hosts: Vec<String>,
    /// How long running answers may take to end when the server is stopped.
    pub grace: Duration,
}

/// The state that all handlers share.
pub(crate) struct App {
    pub worker: Arc<Worker>,
    pub config: Config,
    /// The memory of requests.
    pub account: Arc<Account>,
    /// Where work runs that keeps a thread busy.
    pub lanes: Arc<Lanes>,
    pub visitors: Visitors,
    grammars: OnceLock<std::result::Result<Grammars, String>>,
    /// When the server was started, in Unix time.
    pub created: u64,
    /// The most bytes of text that can fit the context.
    pub longest_text: usize,
}

impl App {
    pub fn new(worker: Arc<Worker>, config: Config, address: IpAddr) -> Self {
        let processor = &worker.model().processor;
        let ids = 0..processor.config.text.vocab_size as u32;
        let longest_token = ids.map(|id| processor.tokenizer.token_bytes(id).len()).max().unwrap_or(1);
        // normalisation to NFC shrinks text to no less than a third of its bytes
        let longest_text = config.limits.context.saturating_mul(3 * longest_token);
        let (account, lanes) = (Account::new(config.limits.memory), Arc::new(Lanes::new()));
        let Config { api_key, allowed_hosts, cors_origins, .. } = &config;
        let visitors = Visitors::new(address, api_key.is_some(), allowed_hosts, cors_origins);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let (created, grammars) = (now.as_secs(), OnceLock::new());
        Self { worker, config, account, lanes, visitors, grammars, created, longest_text }
    }

    /// Built at the first use, which takes a moment.
    pub fn grammars(&self) -> Result<&Grammars> {
        let grammars = self.grammars.get_or_init(|| Grammars::new(&self.worker.model().processor));
        grammars.as_ref().map_err(|reason| ApiError::unsupported("response_format", reason))
    }

    /// When the answer to a request that starts now must be complete.
    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + self.config.limits.time
    }

    pub fn too_slow(&self) -> ApiError {
        ApiError::too_slow(self.config.limits.time.as_secs())
    }
}

/// All routes.
pub(crate) fn router(app: Arc<App>) -> Router {
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
        .route("/metrics", get(metrics))
        .route_layer(middleware::from_fn_with_state(Arc::clone(&app), authorize));
    let all = open
        .merge(guarded)
        .fallback(|| async { ApiError::not_found("there is nothing at this address") })
        .method_not_allowed_fallback(|| async { ApiError::wrong_method() })
        .layer(middleware::from_fn_with_state(Arc::clone(&app), count));
    let all = match cors(&app.config.cors_origins) {
        Some(cors) => all.layer(cors),
        None => all,
    };
    all.layer(middleware::from_fn_with_state(Arc::clone(&app), visitors::check)).with_state(app)
}

/// The routes of connections beyond the limit: only whether the server is there.
pub(crate) fn overflow(app: Arc<App>) -> Router {
    let most = app.config.limits.connections;
    Router::new()
        .route("/health", get(health))
        .fallback(move || async move { ApiError::too_many_connections(most) })
        .layer(middleware::from_fn_with_state(Arc::clone(&app), visitors::check))
        .with_state(app)
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
    let headers = [header::AUTHORIZATION, header::CONTENT_TYPE];
    Some(
        CorsLayer::new()
            .allow_origin(allowed)
            .allow_methods([Method::GET, Method::POST])
            .allow_headers(headers),
    )
}

/// Refuses requests without the key.
async fn authorize(State(app): State<Arc<App>>, request: Request, next: Next) -> Result<Response> {
    if let Some(key) = &app.config.api_key {
        // as bytes: a key need not be ASCII
        let given = request.headers().get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
        let given = given.and_then(|value| value.split_at_checked("bearer ".len()));
        let given = given.filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"bearer "));
        if !given.is_some_and(|(_, given)| is_equal(given.trim_ascii(), key.as_bytes())) {
            return Err(ApiError::unauthorized());
        }
    }
    Ok(next.run(request).await)
}

/// Compares in constant time, so that the time does not tell where the first difference is.
fn is_equal(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |different, (a, b)| different | (a ^ b)) == 0
}

async fn count(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let response = next.run(request).await;
    if response.status().is_client_error() && response.status() != StatusCode::TOO_MANY_REQUESTS {
        app.worker.metrics().malformed.add(1);
    }
    response
}

/// The longest that nothing of a body may come.
const STALL: Duration = Duration::from_secs(20);

/// A body within the limits, and its charge.
async fn body(app: &App, request: Request, deadline: Instant) -> Result<(Vec<u8>, Charge)> {
    let kind = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let kind = kind.and_then(|kind| kind.split(';').next()).map(str::trim);
    if !kind.is_some_and(|kind| kind.eq_ignore_ascii_case("application/json")) {
        return Err(ApiError::wrong_type());
    }
    let client = request.extensions().get::<Arc<Client>>().cloned();
    let limit = app.config.limits.body;
    let length = request.headers().get(header::CONTENT_LENGTH);
    let length = length.and_then(|value| value.to_str().ok()?.parse::<usize>().ok()).unwrap_or(0);
    let mut charge = app.account.open();
    let refused = match length > limit {
        true => Some(ApiError::too_large(limit)),
        false => charge.grow(length).err().map(ApiError::from),
    };
    charge.shrink_to(0); // what has not come takes no memory: a slow client keeps none from others
    let room = if refused.is_none() { length } else { 0 };
    let bytes = Vec::with_capacity(room); // not resident before it is written
    let stall = STALL.min(app.config.limits.time);
    let read = read(request.into_body(), bytes, limit, &mut charge, refused, stall);
    let bytes = timeout_at(deadline, read).await.map_err(|_| app.too_slow())??;
    if let Some(client) = client {
        client.asks();
    }
    Ok((bytes, charge))
}

/// Reads a body to `bytes`, or refuses it with the error that is given or found. Part of a refused one is read all the same: a client
/// that is still sending when the connection closes would not see the answer.
async fn read(
    mut body: Body,
    mut bytes: Vec<u8>,
    limit: usize,
    charge: &mut Charge,
    mut refused: Option<ApiError>,
    stall: Duration,
) -> Result<Vec<u8>> {
    let mut discarded = 0;
    loop {
        let frame = timeout(stall, body.frame()).await.map_err(|_| ApiError::stalled(stall.as_secs()))?;
        let Some(frame) = frame else { break };
        let frame = frame.map_err(|_| ApiError::malformed("the body ended too early"))?;
        let Ok(data) = frame.into_data() else { continue };
        if refused.is_none() {
            if bytes.len() + data.len() > limit {
                refused = Some(ApiError::too_large(limit));
            } else if let Err(full) = charge.grow(data.len()) {
                refused = Some(full.into());
            } else {
                bytes.extend_from_slice(&data);
                continue;
            }
            bytes = Vec::new();
            charge.shrink_to(0);
        }
        discarded += data.len();
        if discarded > DISCARDED {
            break;
        }
    }
    refused.map_or(Ok(bytes), Err)
}

/// Parses a body with `read`. The charge is then that of the result.
pub(crate) async fn parsed<T: Parsed>(
    app: &Arc<App>,
    request: Request,
    deadline: Instant,
    read: impl FnOnce(&Value, &Config) -> Result<T> + Send + 'static,
) -> Result<(T, Charge)> {
    let (body, mut charge) = body(app, request, deadline).await?;
    charge.grow(2 * body.len())?; // the texts and files that are made of its values, and the parser's own memory
    let same = Arc::clone(app);
    let work = lanes::run(&app.lanes, charge, move |_, charge| {
        let value = json::parse(&body, charge)?;
        drop(body);
        read(&value, &same.config)
    });
    let (parsed, mut charge) = timeout_at(deadline, work).await.map_err(|_| app.too_slow())??;
    charge.shrink_to(parsed.bytes());
    Ok((parsed, charge))
}

async fn chat(State(app): State<Arc<App>>, request: Request) -> Result<Response> {
    let deadline = app.deadline();
    let (Chat { messages, pictures, wish }, charge) = parsed(&app, request, deadline, Chat::read).await?;
    let work = prepare::chat(&app, messages, pictures, &wish, charge);
    let prepared = timeout_at(deadline, work).await.map_err(|_| app.too_slow())??;
    let shape = reply::Shape::new(&app, reply::Kind::Chat);
    let answers = prepare::submit(&app, prepared, &wish)?;
    stream::reply(app, answers, shape, wish, deadline).await
}

async fn completion(State(app): State<Arc<App>>, request: Request) -> Result<Response> {
    let deadline = app.deadline();
    let (Completion { prompts, wish }, charge) = parsed(&app, request, deadline, Completion::read).await?;
    let work = prepare::raw(&app, prompts, &wish, charge);
    let prepared = timeout_at(deadline, work).await.map_err(|_| app.too_slow())??;
    let shape = reply::Shape::new(&app, reply::Kind::Text);
    let answers = prepare::submit(&app, prepared, &wish)?;
    stream::reply(app, answers, shape, wish, deadline).await
}

async fn tokenize(State(app): State<Arc<App>>, request: Request) -> Result<Response> {
    let deadline = app.deadline();
    let read = |body: &Value, config: &Config| Tokenize::read(body, &config.limits);
    let (wish, charge) = parsed(&app, request, deadline, read).await?;
    let work = prepare::tokens(&app, wish, charge);
    // the charge lasts until the tokens have been written
    let (tokens, _charge) = timeout_at(deadline, work).await.map_err(|_| app.too_slow())??;
    let context = app.config.limits.context;
    let value = json!({ "tokens": tokens, "count": tokens.len(), "max_model_len": context });
    Ok(json_response(StatusCode::OK, &value))
}

/// The description of the one model in `/v1/models`.
fn description(app: &App) -> Value {
    let Config { name, defaults, limits, .. } = &app.config;
    let sampling = &defaults.sampling;
    json!({
        "id": name,
        "object": "model",
        "created": app.created,
        "owned_by": "pascaline",
        "max_model_len": limits.context,
        "limits": { "pictures": limits.pictures, "pixels": limits.pixels, "body": limits.body },
        "defaults": {
            "max_tokens": defaults.max_new_tokens,
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

async fn models(State(app): State<Arc<App>>) -> Response {
    json_response(StatusCode::OK, &json!({ "object": "list", "data": [description(&app)] }))
}

async fn model(State(app): State<Arc<App>>, Path(name): Path<String>) -> Result<Response> {
    match name == app.config.name {
        true => Ok(json_response(StatusCode::OK, &description(&app))),
        false => Err(ApiError::not_found(format!("there is no model {name:?}, only {:?}", app.config.name))),
    }
}

async fn health(State(app): State<Arc<App>>) -> Response {
    let (health, replicas) = (app.worker.health().borrow().clone(), app.worker.gauges().replicas);
    let is_degraded = replicas.iter().any(|replica| replica.lost.is_some());
    let (status, mut value) = match health {
        Health::Up if is_degraded => (StatusCode::OK, json!({ "status": "degraded" })),
        Health::Up => (StatusCode::OK, json!({ "status": "ok" })),
        Health::Draining => (StatusCode::SERVICE_UNAVAILABLE, json!({ "status": "shutting down" })),
        Health::Lost(reason) => {
            (StatusCode::SERVICE_UNAVAILABLE, json!({ "status": "device lost", "reason": reason }))
        }
    };
    if replicas.len() > 1 {
        let each = replicas.into_iter().map(|replica| match replica.lost {
            None => json!({ "device": replica.device, "status": "ok" }),
            Some(reason) => json!({ "device": replica.device, "status": "device lost", "reason": reason }),
        });
        value["replicas"] = each.collect();
    }
    json_response(status, &value)
}

async fn metrics(State(app): State<Arc<App>>) -> Response {
    let mut text = app.worker.metrics().text(&app.worker.gauges());
    text += &app.account.metrics();
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    ([(header::CONTENT_TYPE, kind)], Body::from(text)).into_response()
}
