//! The response: complete JSON, or server-sent events while tokens are generated.

use super::account::Charge;
use super::answer::{Answer, Answers, Part};
use super::error::{ApiError, json_response};
use super::form::Form;
use super::model::App;
use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_core::Stream;
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

/// Answers a request in the interface's form: at once when it is complete, or in events.
pub(crate) async fn reply(
    app: Arc<App>,
    mut answers: Answers,
    mut form: Box<dyn Form>,
    is_stream: bool,
    deadline: Instant,
) -> Result<Response> {
    if !is_stream {
        let mut charge = app.account.open();
        let answers =
            timeout_at(deadline, collect(answers, &mut charge)).await.map_err(|_| app.too_slow())??;
        let tokenizer = &app.worker.model().processor.tokenizer;
        return Ok(json_response(StatusCode::OK, &form.complete(&answers, tokenizer)));
    }
    let first = match timeout_at(deadline.min(Instant::now() + FIRST), answers.next()).await {
        Ok(first) => first.transpose()?,
        Err(_) => None, // it is slow, or waits
    };
    let (sender, receiver) = channel(AHEAD);
    let kind = form.content_type();
    let outgoing = Outgoing { app, form, sender };
    tokio::spawn(outgoing.send(answers, first, deadline));
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(kind)),
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
    form: Box<dyn Form>,
    sender: Sender<String>,
}

impl Outgoing {
    async fn send(mut self, mut answers: Answers, first: Option<(usize, Part)>, deadline: Instant) {
        let result = async {
            let begin = self.form.begin();
            self.raw(begin).await?;
            if let Some((at, part)) = first {
                self.part(at, part).await?;
            }
            loop {
                let silence = sleep(SILENCE);
                tokio::pin!(silence);
                let next = tokio::select! {
                    next = timeout_at(deadline, answers.next()) => next,
                    () = &mut silence => {
                        self.raw(self.form.silence().to_owned()).await?;
                        continue;
                    }
                    () = self.sender.closed() => return Err(Gone),
                };
                let error = match next {
                    Ok(Some(Ok((at, part)))) => {
                        self.part(at, part).await?;
                        continue;
                    }
                    Ok(Some(Err(error))) => error,
                    Ok(None) => break,
                    Err(_) => self.app.too_slow(),
                };
                answers.record.ended(error.code.unwrap_or("error"));
                let error = self.form.error(&error);
                return self.raw(error).await;
            }
            let end = self.form.end();
            self.raw(end).await
        };
        let _: std::result::Result<(), Gone> = result.await; // the client has disconnected
    }

    async fn part(&mut self, index: usize, part: Part) -> std::result::Result<(), Gone> {
        let tokenizer = &self.app.worker.model().processor.tokenizer;
        let events = self.form.part(index, part, tokenizer);
        self.raw(events).await
    }

    async fn raw(&self, events: String) -> std::result::Result<(), Gone> {
        if events.is_empty() {
            return Ok(());
        }
        match timeout(self.app.config.limits.time, self.sender.send(events)).await {
            Ok(Ok(())) => Ok(()),
            _ => Err(Gone),
        }
    }
}
