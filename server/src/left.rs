//! Whether a client has left. It is noticed also while unread bytes of it are there, behind which hyper does not look.

use std::pin::pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::time::sleep;

/// How often it is looked whether a client has left that has sent more than was read.
const LOOK: Duration = Duration::from_millis(100);

/// Waits until the client has closed its side. Unread bytes of it make the socket ready at once and for ever, so then it is
/// looked at from time to time.
pub(crate) async fn left(stream: &TcpStream) {
    while !stream.ready(Interest::READABLE).await.is_ok_and(|ready| ready.is_read_closed()) {
        sleep(LOOK).await;
    }
}

/// Whether [`left`] is known to be so now.
pub(crate) fn is_left(context: &mut Context, stream: &TcpStream) -> bool {
    let ready = pin!(stream.ready(Interest::READABLE)).poll(context);
    matches!(ready, Poll::Ready(Ok(ready)) if ready.is_read_closed())
}
