//! One connection: how long it may stand still.
//!
//! hyper bounds the time for a request's head, which is also that of an idle connection, and [`app`](super::app) the time
//! for a body. Here is the rest: a client that reads too little of its answer is cut off.

use super::admission::Client;
use hyper::rt::{Read, ReadBufCursor, Write};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep_until};

/// The longest that a client may take none of the bytes that are there for it.
const STALL: Duration = Duration::from_secs(20);

/// A connection that fails when its client reads too little.
pub(crate) struct Connection {
    client: Arc<Client>,
    /// The longest time for bytes that are there to be written.
    longest: Duration,
    /// Since when written bytes have been waiting for the client, and since when none has been taken.
    behind: Option<(Instant, Instant)>,
    timer: Pin<Box<Sleep>>,
}

impl Connection {
    /// A connection whose client has up to `longest` for what is there to be read.
    pub fn new(client: Arc<Client>, longest: Duration) -> Self {
        Self { client, longest, behind: None, timer: Box::pin(sleep_until(Instant::now())) }
    }

    /// Records that `count` of `all` bytes were taken, 0 if the socket is full.
    fn record(&mut self, count: usize, all: usize) {
        self.client.falls_behind(count == 0 && all > 0);
        if count > 0 {
            self.client.moves();
        }
        if count == all {
            self.behind = None;
            return;
        }
        let now = Instant::now();
        let (since, taken) = self.behind.unwrap_or((now, now));
        let taken = if count > 0 { now } else { taken };
        self.behind = Some((since, taken));
        self.timer.as_mut().reset((since + self.longest).min(taken + STALL.min(self.longest)));
    }

    fn write(
        &mut self,
        context: &mut Context,
        all: usize,
        write: impl Fn(&TcpStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            if let Poll::Ready(ready) = self.client.stream.poll_write_ready(context) {
                ready?;
                match write(&self.client.stream) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                    Ok(count) => {
                        self.record(count, all);
                        return Poll::Ready(Ok(count));
                    }
                    Err(error) => return Poll::Ready(Err(error)),
                }
            }
            self.record(0, all);
            ready!(self.timer.as_mut().poll(context));
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
    }
}

impl Read for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context,
        mut buffer: ReadBufCursor,
    ) -> Poll<io::Result<()>> {
        let mut piece = [0; 8 << 10];
        let room = piece.len().min(buffer.remaining());
        loop {
            ready!(self.client.stream.poll_read_ready(context))?;
            match self.client.stream.try_read(&mut piece[..room]) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Ok(count) => {
                    self.client.moves();
                    buffer.put_slice(&piece[..count]);
                    return Poll::Ready(Ok(()));
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl Write for Connection {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.write(context, bytes.len(), |stream| stream.try_write(bytes))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context,
        bytes: &[IoSlice],
    ) -> Poll<io::Result<usize>> {
        let all = bytes.iter().map(|bytes| bytes.len()).sum();
        self.write(context, all, |stream| stream.try_write_vectored(bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(())) // nothing is buffered here
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(())) // it is closed when it is dropped, which follows
    }
}
