//! Accepts connections and shuts the server down.

use super::admission::{Admission, Client};
use super::app;
use super::connection::Connection;
use super::left::left;
use super::model::Config;
use super::models::Served;
use super::server::Server;
use super::stop::{Stop, Stops};
use super::system::return_freed;
use super::worker::Health;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

/// Timeout for a request's headers, and for the next request of a connection.
const HEAD: Duration = Duration::from_secs(30);
/// Bytes of a connection's buffers, each; a request's head must fit.
const BUFFER: usize = 64 << 10;
/// Connections beyond the limit, and how long each of them may take.
const BEYOND: usize = 64;
const MOMENT: Duration = Duration::from_secs(2);
/// Time between a device's loss and the server's end, so that errors arrive and `/health` shows the reason.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// Timeout at shutdown for the step in progress.
const LAST_STEP: Duration = Duration::from_secs(5);

/// How a server ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// It was stopped.
    Stopped {
        /// Answers that were cut off because they took longer than the grace time.
        cut_off: usize,
    },
    /// The devices of all replicas are lost. Only a new process can use them.
    DeviceLost(String),
}

/// Serves until it is stopped or the devices of all replicas are lost.
///
/// After the first stop no new requests are accepted, and running answers have `config.grace` to end; a second stop cuts
/// them off.
///
/// # Errors
/// If the system has no threads, sockets or signals left.
pub fn run(listener: TcpListener, served: impl Into<Served>, config: Config, stop: Stop) -> io::Result<End> {
    return_freed();
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let address = listener.local_addr()?.ip();
    let server = Server::new(served.into(), config, address);
    let end = runtime.block_on(serve(listener, Arc::clone(&server), stop));
    // Drops connections, and with them the receivers of answers that were cut off, and waits for the computing threads: a
    // process that exits while another thread is inside the driver may crash.
    runtime.shutdown_timeout(LAST_STEP);
    let begin = Instant::now();
    while begin.elapsed() < LAST_STEP && server.models.gauges().running() > 0 {
        thread::sleep(Duration::from_millis(5));
    }
    end
}

async fn serve(listener: TcpListener, server: Arc<Server>, stop: Stop) -> io::Result<End> {
    // before the first answer: who gets one may end the server
    let mut stops = Stops::new(stop)?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let router = app::router(Arc::clone(&server));
    let (graceful, mut health) = (GracefulShutdown::new(), server.models.health());
    let (limits, overflow) = (&server.config.limits, app::overflow(Arc::clone(&server)));
    let admission = Admission::new(limits.connections);
    let beyond = Arc::new(Semaphore::new(BEYOND));
    let accept = async {
        loop {
            // a connection beyond the limit is accepted too, for a moment
            let Ok(last) = Arc::clone(&beyond).acquire_owned().await else { break };
            let stream = match listener.accept().await {
                Ok((stream, _)) => Arc::new(stream),
                Err(error) => {
                    // the connection is gone, or the process is out of file descriptors for the moment
                    if !is_of_one_connection(&error) {
                        sleep(Duration::from_millis(100)).await;
                    }
                    continue;
                }
            };
            let _ = stream.set_nodelay(true); // tokens are small, and Nagle's algorithm would delay them
            let place = admission.admit(Arc::clone(&stream));
            let (router, most) = match place {
                Some(_) => (&router, None),
                None => (&overflow, Some(MOMENT)),
            };
            let last = place.is_none().then_some(last);
            let client = place
                .as_ref()
                .map_or_else(|| Client::new(stream, Instant::now()), |place| Arc::clone(&place.client));
            let router = TowerToHyperService::new(router.clone());
            let asker = Arc::clone(&client);
            let service = service_fn(move |mut request: Request<Incoming>| {
                request.extensions_mut().insert(Arc::clone(&asker));
                let (asker, answer) = (Arc::clone(&asker), router.call(request));
                async move { answer.await.map(|response| asker.answered(response)) }
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .keep_alive(most.is_none())
                .header_read_timeout(most.unwrap_or(HEAD.min(limits.time)))
                .max_buf_size(BUFFER)
                .serve_connection(Connection::new(Arc::clone(&client), limits.time), service);
            let connection = graceful.watch(connection);
            tokio::spawn(async move {
                let longest = async {
                    match most {
                        Some(most) => sleep(most).await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    biased;
                    _ = connection => {} // a broken connection concerns only its client
                    () = left(&client.stream) => {} // dropping the connection ends what runs for it
                    () = client.replaced() => {}
                    () = longest => {}
                }
                drop((place, last));
            });
        }
    };
    let lost = async {
        let lost = health.wait_for(|health| matches!(health, Health::Lost(_))).await;
        match lost.as_deref() {
            Ok(Health::Lost(reason)) => reason.clone(),
            _ => std::future::pending().await,
        }
    };
    tokio::select! {
        () = accept => {}
        reason = lost => {
            // new requests still arrive, and are refused
            return Ok(last_words(&listener, &router, reason).await);
        }
        () = stops.next() => {}
    }
    drop(listener);
    server.models.drain();
    let all_ended = tokio::select! {
        ended = timeout(server.config.grace, graceful.shutdown()) => ended.is_ok(),
        () = stops.next() => false,
    };
    let gauges = server.models.gauges();
    Ok(match server.models.health().borrow().clone() {
        Health::Lost(reason) => End::DeviceLost(reason),
        Health::Up | Health::Draining if all_ended => End::Stopped { cut_off: 0 },
        Health::Up | Health::Draining => End::Stopped { cut_off: gauges.running() + gauges.waiting() },
    })
}

/// Keeps answering for a moment, so that clients see why the server ends.
async fn last_words(listener: &tokio::net::TcpListener, router: &axum::Router, reason: String) -> End {
    let accept = async {
        while let Ok((stream, _)) = listener.accept().await {
            let service = TowerToHyperService::new(router.clone());
            let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            tokio::spawn(async move { connection.await.is_ok() });
        }
    };
    let _ = timeout(LAST_WORDS, accept).await;
    End::DeviceLost(reason)
}

fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}
