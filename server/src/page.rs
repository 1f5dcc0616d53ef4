//! The web page: files embedded in the program. It loads nothing from elsewhere.

use super::server::Server;
use axum::Router;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use std::sync::Arc;

/// Content security policy: only the page's own files are loaded, and no text can become a script.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; media-src blob:; \
    connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const SCRIPT: &str = "text/javascript; charset=utf-8";

const FILES: [(&str, &str, &str); 19] = [
    ("/", "text/html; charset=utf-8", include_str!("../page/index.html")),
    ("/page.css", "text/css; charset=utf-8", include_str!("../page/page.css")),
    ("/icon.svg", "image/svg+xml", include_str!("../page/icon.svg")),
    ("/theme.js", SCRIPT, include_str!("../page/theme.js")),
    ("/page.js", SCRIPT, include_str!("../page/page.js")),
    ("/element.js", SCRIPT, include_str!("../page/element.js")),
    ("/settings.js", SCRIPT, include_str!("../page/settings.js")),
    ("/key.js", SCRIPT, include_str!("../page/key.js")),
    ("/store.js", SCRIPT, include_str!("../page/store.js")),
    ("/chats.js", SCRIPT, include_str!("../page/chats.js")),
    ("/sidebar.js", SCRIPT, include_str!("../page/sidebar.js")),
    ("/transfer.js", SCRIPT, include_str!("../page/transfer.js")),
    ("/conversation.js", SCRIPT, include_str!("../page/conversation.js")),
    ("/answer.js", SCRIPT, include_str!("../page/answer.js")),
    ("/pictures.js", SCRIPT, include_str!("../page/pictures.js")),
    ("/markdown.js", SCRIPT, include_str!("../page/markdown.js")),
    ("/math.js", SCRIPT, include_str!("../page/math.js")),
    ("/highlight.js", SCRIPT, include_str!("../page/highlight.js")),
    ("/stream.js", SCRIPT, include_str!("../page/stream.js")),
];

pub(crate) fn routes() -> Router<Arc<Server>> {
    FILES.into_iter().fold(Router::new(), |router, (path, kind, text)| {
        router.route(path, get(move || async move { file(kind, text) }))
    })
}

fn file(kind: &'static str, text: &'static str) -> Response {
    let headers: [(HeaderName, &'static str); 5] = [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers.map(|(name, value)| (name, HeaderValue::from_static(value))), text).into_response()
}
