//! Errors in OpenAI's form: `{"error": {"message", "type", "param", "code"}}`.

use super::account::Full;
use super::log::Code;
use super::worker::{Failure, Refused};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use pascaline::Error;
use serde_json::{Value, json};

/// Why a request is not answered: a sentence, and a code for programs.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ApiError {
    pub status: StatusCode,
    pub message: String,
    /// The field at fault.
    pub param: Option<String>,
    pub code: Option<&'static str>,
    /// Seconds after which a retry makes sense.
    pub retry_after: Option<u32>,
}

impl ApiError {
    fn new(status: StatusCode, code: Option<&'static str>, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), param: None, code, retry_after: None }
    }

    /// 400: a field is invalid.
    pub fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        let param = Some(param.into());
        Self { param, ..Self::new(StatusCode::BAD_REQUEST, Some("invalid_value"), message) }
    }

    /// 400: a feature of other servers that this one lacks.
    pub fn unsupported(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self { code: Some("unsupported"), ..Self::invalid(param, message) }
    }

    /// 400: the request as a whole is invalid.
    pub fn malformed(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, Some("invalid_request"), message)
    }

    /// 400: more tokens than the context has.
    pub fn too_long(param: &str, message: impl Into<String>) -> Self {
        Self { code: Some("context_length_exceeded"), ..Self::invalid(param, message) }
    }

    pub fn unauthorized() -> Self {
        let message = "the API key is missing or wrong; send it as `Authorization: Bearer KEY`";
        Self::new(StatusCode::UNAUTHORIZED, Some("invalid_api_key"), message)
    }

    /// 403: a name or a page that the server does not answer to.
    pub fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, Some("forbidden"), message)
    }

    /// 503: all connections are taken.
    pub fn too_many_connections(most: usize) -> Self {
        let message = format!("{most} connections are open, the most that this server has; try again later");
        let status = StatusCode::SERVICE_UNAVAILABLE;
        Self { retry_after: Some(1), ..Self::new(status, Some("too_many_connections"), message) }
    }

    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, Some("not_found"), message)
    }

    /// `model` is none of these.
    pub fn no_model(name: &str, names: impl Iterator<Item = String>) -> Self {
        let names = names.map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ");
        let mut error = Self::new(
            StatusCode::NOT_FOUND,
            Some("model_not_found"),
            format!("there is no model {name:?}; there is {names}"),
        );
        error.param = Some("model".into());
        error
    }

    /// There are several models, and the request names none.
    pub fn which_model(names: impl Iterator<Item = String>) -> Self {
        let names = names.map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ");
        Self::invalid("model", format!("model is missing; there is {names}"))
    }

    /// A model can't be loaded; perhaps it can when others are idle.
    pub fn not_loaded(name: &str, reason: &str, others_run: bool) -> Self {
        let message = format!("the model {name:?} can't be loaded: {reason}");
        Self {
            retry_after: others_run.then_some(5),
            ..Self::new(StatusCode::SERVICE_UNAVAILABLE, Some("model_not_loaded"), message)
        }
    }

    pub fn wrong_method() -> Self {
        let message = "this address does not take that method";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, Some("method_not_allowed"), message)
    }

    /// Browsers send other types from any web page without a preflight request.
    pub fn wrong_type() -> Self {
        let message = "the body must be JSON and the header `Content-Type: application/json`";
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, Some("unsupported_media_type"), message)
    }

    pub fn too_large(limit: usize) -> Self {
        let limit = pascaline::format_bytes(limit);
        let message = format!("the body has more than {limit}, the most that this server takes");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, Some("body_too_large"), message)
    }

    /// 413: more memory than one request may take.
    pub fn too_much_memory(message: impl Into<String>) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, Some("memory_limit"), message)
    }

    /// 429: memory that other requests have.
    pub fn no_memory_now(message: impl Into<String>) -> Self {
        Self {
            retry_after: Some(1),
            ..Self::new(StatusCode::TOO_MANY_REQUESTS, Some("memory_full"), message)
        }
    }

    /// 408: nothing of the body has come for a while.
    pub fn stalled(seconds: u64) -> Self {
        let message = format!("nothing of the body came for {seconds} s");
        Self::new(StatusCode::REQUEST_TIMEOUT, Some("timeout"), message)
    }

    pub fn too_slow(seconds: u64) -> Self {
        let message =
            format!("the answer took more than {seconds} s, the most that this server takes for one");
        Self::new(StatusCode::REQUEST_TIMEOUT, Some("timeout"), message)
    }

    /// 500: a bug.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, Some("internal"), message)
    }

    /// The `type` field of OpenAI's errors.
    pub fn kind(&self) -> &'static str {
        match self.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        }
    }

    pub fn to_json(&self) -> Value {
        let Self { message, param, code, .. } = self;
        json!({ "error": { "message": message, "type": self.kind(), "param": param, "code": code } })
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        self.response(&self.to_json())
    }
}

impl ApiError {
    /// The response with this body.
    pub fn response(&self, body: &Value) -> Response {
        let mut response = json_response(self.status, body);
        response.extensions_mut().insert(Code(self.code.unwrap_or("error")));
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

pub(crate) fn json_response(status: StatusCode, value: &Value) -> Response {
    let json = HeaderValue::from_static("application/json");
    (status, [(header::CONTENT_TYPE, json)], value.to_string()).into_response()
}

impl From<Full> for ApiError {
    fn from(full: Full) -> Self {
        let size = pascaline::format_bytes;
        match full {
            Full::Never { needed, most } => Self::too_much_memory(format!(
                "the request takes {} of this server's memory for requests, and may take {}; send less, or smaller pictures",
                size(needed),
                size(most)
            )),
            Full::Now { needed } => Self::no_memory_now(format!(
                "the request takes {} of this server's memory for requests, and others have it; try again later",
                size(needed)
            )),
        }
    }
}

impl From<Refused> for ApiError {
    fn from(refused: Refused) -> Self {
        let message = refused.to_string();
        match refused {
            Refused::QueueFull(_) => Self {
                retry_after: Some(1),
                ..Self::new(StatusCode::TOO_MANY_REQUESTS, Some("queue_full"), message)
            },
            Refused::Draining => Self::new(StatusCode::SERVICE_UNAVAILABLE, Some("shutting_down"), message),
            Refused::Lost(_) => Self::new(StatusCode::SERVICE_UNAVAILABLE, Some("device_lost"), message),
        }
    }
}

impl From<Failure> for ApiError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Model(error) => error.into(),
            Failure::Panicked => Self::internal(failure.to_string()),
        }
    }
}

impl From<Error> for ApiError {
    fn from(error: Error) -> Self {
        let message = error.to_string();
        match error {
            Error::Prompt { .. } => Self::malformed(message),
            Error::Image { file, reason } => {
                let message = format!("{file} can't be used: {reason}");
                Self { code: Some("invalid_image"), ..Self::invalid(file, message) }
            }
            Error::OutOfMemory { .. } => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, Some("out_of_memory"), message)
            }
            Error::DeviceLost { .. } => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, Some("device_lost"), message)
            }
            Error::Unsupported { op: "sampling" | "embed", argument, reason, .. } => {
                Self::invalid(argument, format!("{argument}: {reason}"))
            }
            Error::Unsupported { op: "grammar", .. } => Self::invalid("response_format", message),
            _ => Self::internal(message),
        }
    }
}
