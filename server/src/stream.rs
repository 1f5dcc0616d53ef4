//! The response: complete JSON, or server-sent events while tokens are generated.

use super::account::Charge;
use super::answer::{Answer, Answers, Part};
use super::app::App;
use super::error::{ApiError, json_response};
use super::reply::{Piece, Shape};
use super::request::Wish;
use super::worker::Usage;
use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_core::Stream;
use serde_json::Value;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::{Instant, sleep, timeout, timeout_at};

type Result<T> = std::result::Result<T, ApiError>;

/// How long the response waits for the first part. An error until then has an HTTP status of its own.
const FIRST: Duration = Duration::from_secs(5);
/// The longest silence on a connection: proxies close idle ones.
const SILENCE: Duration = Duration::from_secs(15);
/// Events buffered for a client that reads slowly.
const AHEAD: usize = 32;

/// Answers a request.
pub(crate) async fn reply(
    app: Arc<App>,
    answers: Answers,
    shape: Shape,
    wish: Wish,
    deadline: Instant,
) -> Result<Response> {
    if !wish.stream {
        let mut charge = app.account.open();
        let answers =
            timeout_at(deadline, collect(answers, &mut charge)).await.map_err(|_| app.too_slow())??;
        let tokenizer = &app.worker.model().processor.tokenizer;
        return Ok(json_response(StatusCode::OK, &shape.complete(&answers, wish.choices, tokenizer)));
    }
    let mut answers = answers;
    let first = match timeout_at(deadline.min(Instant::now() + FIRST), answers.next()).await {
        Ok(first) => first.transpose()?,
        Err(_) => None, // it is slow, or waits
    };
    let (sender, receiver) = channel(AHEAD);
    let (index, usages) = (answers.len(), vec![Usage::default(); answers.len()]);
    let outgoing = Outgoing { app, shape, wish, sender, usages, offsets: vec![None; index] };
    tokio::spawn(outgoing.send(answers, first, deadline));
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        // otherwise nginx would buffer the events
        (header::HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
    ];
    Ok((headers, Body::from_stream(Events(receiver))).into_response())
}

/// Bytes that a reported probability takes as JSON's fields.
const LOGPROB: usize = 2048;

/// The complete answers. The charge is that of the probabilities in them: there may be 20 to each token.
async fn collect(mut answers: Answers, charge: &mut Charge) -> Result<Vec<Answer>> {
    let mut complete: Vec<Answer> = (0..answers.len()).map(|_| Answer::default()).collect();
    while let Some((at, part)) = answers.next().await.transpose()? {
        if let Part::Token { logprobs: Some(logprobs), .. } = &part {
            charge.grow((1 + logprobs.top.len()) * LOGPROB)?;
        }
        complete[at].push(part);
    }
    Ok(complete)
}

/// The body of a response.
struct Events(Receiver<String>);

impl Stream for Events {
    type Item = std::result::Result<String, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context).map(|event| event.map(Ok))
    }
}

/// The client has disconnected.
struct Gone;

/// A response in progress.
struct Outgoing {
    app: Arc<App>,
    shape: Shape,
    wish: Wish,
    sender: Sender<String>,
    usages: Vec<Usage>,
    /// Bytes of text sent of each answer; `None` before its first chunk.
    offsets: Vec<Option<usize>>,
}

impl Outgoing {
    async fn send(mut self, mut answers: Answers, first: Option<(usize, Part)>, deadline: Instant) {
        let result = async {
            if let Some((at, part)) = first {
                self.part(at, part).await?;
            }
            loop {
                let silence = sleep(SILENCE);
                tokio::pin!(silence);
                let next = tokio::select! {
                    next = timeout_at(deadline, answers.next()) => next,
                    () = &mut silence => {
                        self.raw(": the answer is still to come\n\n".into()).await?;
                        continue;
                    }
                    () = self.sender.closed() => return Err(Gone),
                };
                match next {
                    Ok(Some(Ok((at, part)))) => self.part(at, part).await?,
                    Ok(Some(Err(error))) => return self.event(&error.to_json()).await,
                    Ok(None) => break,
                    Err(_) => return self.event(&self.app.too_slow().to_json()).await,
                }
            }
            if self.wish.include_usage {
                self.event(&self.shape.usage(&self.usages, self.wish.choices)).await?;
            }
            self.raw("data: [DONE]\n\n".into()).await
        };
        let _: std::result::Result<(), Gone> = result.await; // the client has disconnected
    }

    async fn part(&mut self, index: usize, part: Part) -> std::result::Result<(), Gone> {
        if let Part::Prompt(progress) = &part {
            return self.event(&self.shape.progress(index, progress)).await;
        }
        let is_first = self.offsets[index].is_none();
        let offset = self.offsets[index].unwrap_or(0);
        let mut piece = Piece { index, is_first, offset, ..Piece::default() };
        match part {
            Part::Prompt(_) => {}
            Part::Token { id, text, logprobs } => {
                // no text yet: the token begins a character
                if text.is_empty() && logprobs.is_none() && !is_first {
                    return Ok(());
                }
                (piece.text, piece.token) = (text, logprobs.map(|logprobs| (id, logprobs)));
            }
            Part::Done { rest, reason, usage } => {
                (piece.text, piece.reason) = (rest, Some(reason));
                self.usages[index] = usage;
            }
        }
        self.offsets[index] = Some(offset + piece.text.len());
        let tokenizer = &self.app.worker.model().processor.tokenizer;
        let value = self.shape.piece(&piece, self.wish.include_usage, tokenizer);
        self.event(&value).await
    }

    async fn event(&self, value: &Value) -> std::result::Result<(), Gone> {
        self.raw(format!("data: {value}\n\n")).await
    }

    async fn raw(&self, event: String) -> std::result::Result<(), Gone> {
        match timeout(self.app.config.limits.time, self.sender.send(event)).await {
            Ok(Ok(())) => Ok(()),
            _ => Err(Gone),
        }
    }
}
