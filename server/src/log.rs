//! A line for each request, by `tracing`; the program chooses its form and level (`cli/src/serve.rs`).
//!
//! A line is written when the last byte of the answer is on its way, or when the client has left. It has the request's id,
//! which the client gives in `x-request-id` or gets there. Nothing of what a request or an answer says is in it, nor a key.

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method};
use axum::middleware::Next;
use axum::response::Response;
use hyper::body::{Body as HttpBody, Bytes, Frame, SizeHint};
use qwen3_vl::StopReason;
use std::fmt::Write;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// The header with a request's id.
pub(crate) const ID: HeaderName = HeaderName::from_static("x-request-id");
/// Where Anthropic's packages read it.
const ANTHROPIC_ID: HeaderName = HeaderName::from_static("request-id");
const ANTHROPIC_PATH: &str = "/v1/messages";
/// The most bytes of an id, and those of a path or a name that are written.
const MAX_ID: usize = 64;
const MAX_NAME: usize = 256;
/// The status of a request whose client left before it had one, as nginx logs it.
const LEFT: u16 = 499;

tokio::task_local! {
    /// The record of the request that this task answers.
    static RECORD: Arc<Record>;
}

/// What becomes known of a request while it is answered.
#[derive(Debug)]
pub(crate) struct Record {
    begun: Instant,
    facts: Mutex<Facts>,
}

/// `None` is not known, and not written.
#[derive(Debug, Default)]
struct Facts {
    /// Of a request to a model.
    model: Option<String>,
    prompt_tokens: Option<usize>,
    cached_tokens: Option<usize>,
    generated_tokens: Option<usize>,
    queued: Option<Duration>,
    first_token: Option<Duration>,
    end: Option<&'static str>,
}

impl Record {
    fn new() -> Arc<Self> {
        Arc::new(Self { begun: Instant::now(), facts: Mutex::default() })
    }

    /// That of the request that the current task answers; outside of one, a record that nobody reads.
    pub fn current() -> Arc<Self> {
        RECORD.try_with(Arc::clone).unwrap_or_else(|_| Self::new())
    }

    fn facts(&self) -> MutexGuard<'_, Facts> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The request is one to this model.
    pub fn concerns(&self, model: &str) {
        self.facts().model = Some(model.to_owned()).filter(|name| !name.is_empty());
    }

    /// A prompt has been counted.
    pub fn add_prompt(&self, tokens: usize) {
        *self.facts().prompt_tokens.get_or_insert_default() += tokens;
    }

    /// Of its prompts' tokens, some were cached.
    pub fn add_cached(&self, tokens: usize) {
        *self.facts().cached_tokens.get_or_insert_default() += tokens;
    }

    /// One of its computations has begun after so long in the queue. The longest is written.
    pub fn add_queued(&self, time: Duration) {
        let mut facts = self.facts();
        facts.queued = facts.queued.max(Some(time));
    }

    /// A token has been generated.
    pub fn add_token(&self) {
        let mut facts = self.facts();
        *facts.generated_tokens.get_or_insert_default() += 1;
        facts.first_token.get_or_insert_with(|| self.begun.elapsed());
    }

    /// An answer has ended.
    pub fn stopped(&self, reason: StopReason) {
        self.ended(match reason {
            StopReason::MaxNewTokens | StopReason::ContextFull => "length",
            StopReason::Eos | StopReason::StopString | StopReason::Cancelled => "stop",
        });
    }

    /// An answer has ended for this reason, or with the code of an error.
    pub fn ended(&self, reason: &'static str) {
        self.facts().end = Some(reason);
    }
}

/// The code of the error that a response tells of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Code(pub &'static str);

/// Gives the request an id, and writes its line at the end.
pub(crate) async fn request(request: Request, next: Next) -> Response {
    let record = Record::new();
    let id = id(request.headers());
    let mut line = Line {
        method: request.method().clone(),
        path: plain(request.uri().path()),
        status: LEFT,
        is_complete: false,
        record: Arc::clone(&record),
        id,
    };
    let mut response = RECORD.scope(record, next.run(request)).await;
    if let Ok(value) = HeaderValue::from_str(&line.id) {
        if line.path.starts_with(ANTHROPIC_PATH) {
            response.headers_mut().insert(ANTHROPIC_ID, value.clone());
        }
        response.headers_mut().insert(ID, value);
    }
    if let Some(Code(code)) = response.extensions_mut().remove() {
        line.record.ended(code);
    }
    line.status = response.status().as_u16();
    line.is_complete = line.method == Method::HEAD; // hyper reads no body then
    response.map(|body| Body::new(Logged { body, line }))
}

/// The client's own id if it is a plain word, or a new one.
fn id(headers: &HeaderMap) -> String {
    let given = headers.get(ID).and_then(|value| value.to_str().ok());
    let is_plain = |id: &&str| {
        (1..=MAX_ID).contains(&id.len())
            && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
    };
    given.filter(is_plain).map_or_else(|| format!("req_{:032x}", rand::random::<u128>()), str::to_owned)
}

/// At most [`MAX_NAME`] bytes of a text, all but visible ASCII characters percent-encoded: nothing that a client sends moves
/// the cursor of who reads the lines.
fn plain(text: &str) -> String {
    let mut plain = String::new();
    for byte in text.bytes().take(MAX_NAME) {
        match byte {
            0x21..=0x7e => plain.push(byte.into()),
            _ => {
                let _ = write!(plain, "%{byte:02X}"); // a string takes everything
            }
        }
    }
    plain
}

/// A request's line, written when it is dropped.
struct Line {
    id: String,
    method: Method,
    path: String,
    status: u16,
    /// Whether all of the response was taken.
    is_complete: bool,
    record: Arc<Record>,
}

impl Drop for Line {
    fn drop(&mut self) {
        let facts = self.record.facts();
        let milliseconds = |time: Duration| (time.as_secs_f64() * 1e6).round() / 1e3;
        let end = match facts.end {
            _ if !self.is_complete => "left",
            Some(end) => end,
            None => "done",
        };
        macro_rules! write {
            ($level:ident) => {
                tracing::$level!(
                    request_id = self.id,
                    method = self.method.as_str(),
                    path = self.path,
                    status = self.status,
                    model = facts.model.as_deref().map(plain),
                    prompt_tokens = facts.prompt_tokens,
                    cached_tokens = facts.cached_tokens,
                    generated_tokens = facts.generated_tokens,
                    queued_ms = facts.queued.map(milliseconds),
                    first_token_ms = facts.first_token.map(milliseconds),
                    total_ms = milliseconds(self.record.begun.elapsed()),
                    end,
                    "request"
                )
            };
        }
        match self.status {
            500.. => write!(error),
            LEFT => write!(info),
            400.. => write!(warn),
            // asked for every few seconds
            _ if matches!(&*self.path, "/health" | "/metrics") => write!(debug),
            _ => write!(info),
        }
    }
}

/// A body, and the line that ends with it.
struct Logged {
    body: Body,
    line: Line,
}

impl HttpBody for Logged {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        self.line.is_complete |= matches!(frame, Poll::Ready(None));
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Logged {
    fn drop(&mut self) {
        self.line.is_complete |= self.body.is_end_stream(); // the end of a body of known length is not asked for
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_the_clients_if_it_is_a_plain_word() {
        let found = |given: &[u8]| id(&[(ID, HeaderValue::from_bytes(given).unwrap())].into_iter().collect());
        let longest = "x".repeat(MAX_ID);
        for given in ["a-1_b.C", &longest] {
            assert_eq!(found(given.as_bytes()), given);
        }
        let longer = "x".repeat(MAX_ID + 1);
        for given in [&b""[..], b"a b", b"a\"b", b"a:b", b"a\tb", b"a\x9b1m", longer.as_bytes()] {
            assert!(found(given).starts_with("req_"), "{given:?}");
        }
        assert!(id(&HeaderMap::new()).starts_with("req_"));
    }

    #[test]
    fn a_path_is_plain() {
        assert_eq!(plain("/v1/models/a:b"), "/v1/models/a:b");
        assert_eq!(plain("/a\u{9b}31m\u{202e}\x1b \n"), "/a%C2%9B31m%E2%80%AE%1B%20%0A");
        assert_eq!(plain(&"x".repeat(MAX_NAME + 9)).len(), MAX_NAME);
    }
}
