//! The state that all handlers share, and the way from a request to the model that it names and to the answer.

use super::account::{Account, Charge};
use super::admission::Client;
use super::error::ApiError;
use super::form::Form;
use super::lanes::{self, Lanes};
use super::log::Record;
use super::model::{App, Config};
use super::models::{Models, Served, Several};
use super::request::{Chat, Parsed};
use super::visitors::Visitors;
use super::{json, prepare, stream};
use axum::body::Body;
use axum::extract::Request;
use axum::http::header;
use axum::response::Response;
use http_body_util::BodyExt;
use serde_json::Value;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::{Instant, timeout, timeout_at};

type Result<T> = std::result::Result<T, ApiError>;

/// The most bytes beyond the limit that are read and discarded.
const DISCARDED: usize = 64 << 20;

/// The state that all handlers share.
pub(crate) struct Server {
    /// Of several models its name and defaults are none's.
    pub config: Config,
    pub models: Models,
    /// The memory of requests.
    pub account: Arc<Account>,
    /// Where work runs that keeps a thread busy.
    pub lanes: Arc<Lanes>,
    pub visitors: Visitors,
    /// When the server was started, in Unix time.
    pub created: u64,
}

impl Server {
    pub fn new(served: Served, config: Config, address: IpAddr) -> Arc<Self> {
        let Config { api_key, allowed_hosts, cors_origins, .. } = &config;
        let visitors = Visitors::new(address, api_key.is_some(), allowed_hosts, cors_origins);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let (account, lanes) = (Account::new(config.limits.memory), Arc::new(Lanes::new()));
        let models = match served {
            Served::One(worker) => Models::One(Arc::new(App::new(
                worker,
                config.clone(),
                Arc::clone(&account),
                Arc::clone(&lanes),
            ))),
            Served::Several { sources, keep, queue } => {
                let (config, account, lanes) = (config.clone(), Arc::clone(&account), Arc::clone(&lanes));
                Models::Several(Arc::new(Several::new((sources, keep, queue), config, account, lanes)))
            }
        };
        Arc::new(Self { config, models, account, lanes, visitors, created: now.as_secs() })
    }

    /// When the answer to a request that starts now must be complete.
    pub fn deadline(&self) -> Instant {
        Instant::now() + self.config.limits.time
    }

    pub fn too_slow(&self) -> ApiError {
        ApiError::too_slow(self.config.limits.time.as_secs())
    }
}

/// The longest that nothing of a body may come.
const STALL: Duration = Duration::from_secs(20);

/// A body within the limits, and its charge.
async fn body(server: &Server, request: Request, deadline: Instant) -> Result<(Vec<u8>, Charge)> {
    let kind = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let kind = kind.and_then(|kind| kind.split(';').next()).map(str::trim);
    // a form of another page can't be JSON by its header; `curl -d` says that it sends a form, and is no browser
    let is_of_browser = [header::ORIGIN, header::HeaderName::from_static("sec-fetch-site")];
    let is_of_browser = is_of_browser.iter().any(|name| request.headers().contains_key(name));
    if is_of_browser && !kind.is_some_and(|kind| kind.eq_ignore_ascii_case("application/json")) {
        return Err(ApiError::wrong_type());
    }
    let client = request.extensions().get::<Arc<Client>>().cloned();
    let limit = server.config.limits.body;
    let length = request.headers().get(header::CONTENT_LENGTH);
    let length = length.and_then(|value| value.to_str().ok()?.parse::<usize>().ok()).unwrap_or(0);
    let mut charge = server.account.open();
    let refused = match length > limit {
        true => Some(ApiError::too_large(limit)),
        false => charge.grow(length).err().map(ApiError::from),
    };
    charge.shrink_to(0); // what has not come takes no memory: a slow client keeps none from others
    let room = if refused.is_none() { length } else { 0 };
    let bytes = Vec::with_capacity(room); // not resident before it is written
    let stall = STALL.min(server.config.limits.time);
    let read = read(request.into_body(), bytes, limit, &mut charge, refused, stall);
    let bytes = timeout_at(deadline, read).await.map_err(|_| server.too_slow())??;
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

/// Parses a body with `read`, for the model that it names, which is loaded if it is not. The charge is then that of the result.
pub(crate) async fn parsed<T: Parsed>(
    server: &Arc<Server>,
    request: Request,
    deadline: Instant,
    read: impl FnOnce(Value, &Config) -> Result<T> + Send + 'static,
) -> Result<(Arc<App>, T, Charge)> {
    let (app, value, charge) = value(server, request, deadline).await?;
    let same = Arc::clone(&app);
    let work = lanes::run(&server.lanes, charge, move |_, _| read(value, &same.config));
    let (parsed, mut charge) = timeout_at(deadline, work).await.map_err(|_| server.too_slow())??;
    charge.shrink_to(parsed.bytes());
    Ok((app, parsed, charge))
}

/// A body's JSON, and the model that it names.
async fn value(
    server: &Arc<Server>,
    request: Request,
    deadline: Instant,
) -> Result<(Arc<App>, Value, Charge)> {
    let record = Record::current();
    let one = server.models.one().cloned();
    record.concerns(one.as_ref().map_or("", |app| &app.config.name));
    let too_slow = |_| server.too_slow();
    let (body, mut charge) = body(server, request, deadline).await?;
    charge.grow(2 * body.len())?; // the texts and files that are made of its values, and the parser's own memory
    let work = lanes::run(&server.lanes, charge, move |_, charge| json::parse(&body, charge));
    let (value, charge): (Value, _) = timeout_at(deadline, work).await.map_err(too_slow)??;
    let app = match one {
        Some(app) => app,
        None => {
            let name = value.get("model").and_then(Value::as_str);
            let app = timeout_at(deadline, server.models.acquire(name)).await.map_err(too_slow)??;
            record.concerns(&app.config.name);
            app
        }
    };
    Ok((app, value, charge))
}

/// Prepares and queues a conversation, and answers it in the interface's form.
pub(crate) async fn answer(
    app: Arc<App>,
    chat: Chat,
    charge: Charge,
    form: Box<dyn Form>,
    deadline: Instant,
) -> Result<Response> {
    let wish = chat.wish.clone();
    let work = prepare::chat(&app, chat, charge);
    let prepared = timeout_at(deadline, work).await.map_err(|_| app.too_slow())??;
    let answers = prepare::submit(&app, prepared, &wish)?;
    stream::reply(app, answers, form, wish.stream, deadline).await
}

/// Another interface's request as one conversation, with the form of its answers.
pub(crate) struct Asked {
    pub chat: Chat,
    pub form: Box<dyn Form>,
}

impl Parsed for Asked {
    fn bytes(&self) -> usize {
        self.chat.bytes()
    }
}

/// Answers a request of another interface, whose body `read` translates and whose errors `refuse` writes.
pub(crate) async fn translated(
    server: Arc<Server>,
    request: Request,
    read: fn(Value, &Config) -> Result<Asked>,
    refuse: fn(&ApiError) -> Value,
) -> Response {
    let deadline = server.deadline();
    let result = async {
        let (app, Asked { chat, form }, charge) = parsed(&server, request, deadline, read).await?;
        answer(app, chat, charge, form, deadline).await
    };
    result.await.unwrap_or_else(|error: ApiError| error.response(&refuse(&error)))
}
