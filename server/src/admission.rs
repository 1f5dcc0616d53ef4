//! Places for connections. If all are taken, a new connection gets the place of one whose client has left, or else of the one
//! that has waited for its client for the longest time. Connections for which the server works keep theirs.

use super::left::is_left;
use axum::body::{Body, Bytes, HttpBody};
use axum::http::Response;
use hyper::body::{Frame, SizeHint};
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Instant;
use tokio::net::TcpStream;
use tokio::sync::Notify;

/// All open connections with a place.
pub(crate) struct Admission {
    most: usize,
    open: Mutex<Open>,
    began: Instant,
}

#[derive(Default)]
struct Open {
    by_number: BTreeMap<u64, Arc<Client>>,
    numbers: u64,
}

/// A connection's place. It is free again when this is dropped, if no other connection got it before.
pub(crate) struct Place {
    admission: Arc<Admission>,
    number: u64,
    pub client: Arc<Client>,
}

/// The state of a connection.
pub(crate) struct Client {
    pub stream: Arc<TcpStream>,
    began: Instant,
    /// When bytes last came or went, in microseconds.
    moved: AtomicU64,
    /// Whether a request has come as a whole, and its answer has not gone as a whole.
    is_served: AtomicBool,
    /// Whether the client takes none of the bytes that are there for it.
    is_behind: AtomicBool,
    replaced: Notify,
}

impl Client {
    pub fn new(stream: Arc<TcpStream>, began: Instant) -> Arc<Self> {
        let this = Self {
            stream,
            began,
            moved: AtomicU64::new(0),
            is_served: AtomicBool::new(false),
            is_behind: AtomicBool::new(false),
            replaced: Notify::new(),
        };
        this.moves();
        Arc::new(this)
    }

    /// Records that bytes came or went.
    pub fn moves(&self) {
        self.moved.store(self.began.elapsed().as_micros() as u64, Ordering::Relaxed);
    }

    /// Records whether the client takes its bytes.
    pub fn falls_behind(&self, is_behind: bool) {
        self.is_behind.store(is_behind, Ordering::Relaxed);
    }

    /// A request has come as a whole: the connection keeps its place until the answer is there.
    pub fn asks(&self) {
        self.is_served.store(true, Ordering::Relaxed);
    }

    /// The answer, whose end ends what [`asks`](Self::asks) begins.
    pub fn answered(self: Arc<Self>, response: Response<Body>) -> Response<Body> {
        response.map(|body| Body::new(Answer { body, client: self }))
    }

    /// Waits until another connection has the place.
    pub async fn replaced(&self) {
        self.replaced.notified().await;
    }

    /// When the client last did something, unless the server works for it.
    fn waited_for_since(&self) -> Option<u64> {
        let is_needed = self.is_served.load(Ordering::Relaxed) && !self.is_behind.load(Ordering::Relaxed);
        (!is_needed).then(|| self.moved.load(Ordering::Relaxed))
    }

    fn has_left(&self) -> bool {
        is_left(&mut Context::from_waker(Waker::noop()), &self.stream)
    }
}

/// The body of an answer to a client.
struct Answer {
    body: Body,
    client: Arc<Client>,
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.client.is_served.store(false, Ordering::Relaxed);
    }
}

impl Admission {
    /// Places for `most` connections.
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, open: Mutex::default(), began: Instant::now() })
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection with a place, or nothing if the server works for all that have one.
    pub fn admit(self: &Arc<Self>, stream: Arc<TcpStream>) -> Option<Place> {
        let mut open = self.open();
        if open.by_number.len() >= self.most {
            let left = open.by_number.iter().find(|(_, client)| client.has_left()).map(|(number, _)| *number);
            let idle = || {
                let waiting = open
                    .by_number
                    .iter()
                    .filter_map(|(number, client)| Some((client.waited_for_since()?, *number)));
                waiting.min().map(|(_, number)| number)
            };
            let number = left.or_else(idle)?;
            open.by_number.remove(&number)?.replaced.notify_one();
        }
        let client = Client::new(stream, self.began);
        let number = open.numbers;
        open.numbers += 1;
        open.by_number.insert(number, Arc::clone(&client));
        Some(Place { admission: Arc::clone(self), number, client })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.admission.open().by_number.remove(&self.number);
    }
}
