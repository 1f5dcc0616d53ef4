//! What stops a server: signals, or messages of a program that embeds it.

use std::io;
use tokio::sync::mpsc::UnboundedReceiver;

/// The signal that stops a server.
pub enum Stop {
    /// SIGINT or SIGTERM; on Windows, Ctrl-C.
    Signals,
    /// A message on this channel.
    Messages(UnboundedReceiver<()>),
}

/// What a server waits for to be stopped. A signal that arrives from now on is not lost, and does not kill the process.
pub(super) enum Stops {
    Signals(Signals),
    Messages(UnboundedReceiver<()>),
}

impl Stops {
    pub(super) fn new(stop: Stop) -> io::Result<Self> {
        Ok(match stop {
            Stop::Signals => Self::Signals(Signals::new()?),
            Stop::Messages(receiver) => Self::Messages(receiver),
        })
    }

    pub(super) async fn next(&mut self) {
        let next = match self {
            Self::Signals(signals) => signals.next().await,
            Self::Messages(receiver) => receiver.recv().await,
        };
        if next.is_none() {
            std::future::pending().await // the sender is gone: nothing stops it
        }
    }
}

#[cfg(unix)]
pub(super) struct Signals([tokio::signal::unix::Signal; 2]);

#[cfg(unix)]
impl Signals {
    fn new() -> io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self([signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?]))
    }

    async fn next(&mut self) -> Option<()> {
        let Self([interrupt, terminate]) = self;
        tokio::select! {
            next = interrupt.recv() => next,
            next = terminate.recv() => next,
        }
    }
}

#[cfg(windows)]
pub(super) struct Signals(tokio::signal::windows::CtrlC);

#[cfg(windows)]
impl Signals {
    fn new() -> io::Result<Self> {
        tokio::signal::windows::ctrl_c().map(Self)
    }

    async fn next(&mut self) -> Option<()> {
        self.0.recv().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// A server answers from before it waits for a signal; the default of SIGTERM would kill it.
    #[cfg(unix)]
    #[test]
    fn a_signal_before_the_wait_counts() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let mut stops = Stops::new(Stop::Signals).expect("signals");
            let id = std::process::id().to_string();
            let sent = std::process::Command::new("kill").args(["-TERM", &id]).status();
            assert!(sent.expect("kill is there").success());
            let next = tokio::time::timeout(Duration::from_secs(60), stops.next());
            assert!(next.await.is_ok(), "the signal is lost");
        });
    }
}
