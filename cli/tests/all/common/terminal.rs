//! Runs a program on a terminal, as a user does who sits in front of it.

use nix::libc;
use nix::pty::{Winsize, openpty};
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

/// The longest that a test waits for anything.
const PATIENCE: Duration = Duration::from_secs(120);

nix::ioctl_write_int_bad!(set_controlling_terminal, libc::TIOCSCTTY);

/// A running program and its terminal.
pub struct Terminal {
    child: Child,
    keyboard: File,
    pieces: Receiver<Vec<u8>>,
    /// Its output since the last wait.
    printed: Vec<u8>,
}

impl Terminal {
    /// Starts a program whose stdin, stdout and stderr are a terminal of so many columns.
    pub fn start(mut command: Command, columns: u16) -> Self {
        let size = Winsize { ws_row: 50, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(Some(&size), None).expect("a pseudo-terminal");
        let end = || Stdio::from(pty.slave.try_clone().expect("a file descriptor"));
        command.env("TERM", "xterm-256color").env_remove("NO_COLOR");
        command.stdin(end()).stdout(end()).stderr(end());
        // SAFETY: between fork and exec only `setsid` and `ioctl` are called, which POSIX allows there; descriptor 0 is
        // the terminal, as the standard library has put it there by then.
        unsafe {
            command.pre_exec(|| {
                nix::unistd::setsid()?;
                set_controlling_terminal(0, 0)?;
                Ok(())
            });
        }
        let child = command.spawn().expect("the program starts");
        drop(command); // its ends of the terminal: reading ends with the program's
        drop(pty.slave);
        let mut screen = File::from(pty.master);
        let keyboard = screen.try_clone().expect("a file descriptor");
        let (sender, pieces) = channel();
        thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(count @ 1..) = screen.read(&mut piece) {
                if sender.send(piece[..count].to_vec()).is_err() {
                    break;
                }
            }
        });
        Self { child, keyboard, pieces, printed: Vec::new() }
    }

    /// Types.
    pub fn send(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).expect("the terminal takes keys");
    }

    /// Waits until the program has printed this since the last wait, and gives all up to there.
    pub fn wait_for(&mut self, text: &str) -> String {
        self.wait_until(text, |printed| printed.find(text).map(|at| at + text.len()))
    }

    /// Waits until `found` says where in what was printed since the last wait the wait ends.
    pub fn wait_until(&mut self, what: &str, found: impl Fn(&str) -> Option<usize>) -> String {
        loop {
            // bytes, as a piece may end inside a character
            let printed = String::from_utf8_lossy(&self.printed).into_owned();
            if let Some(end) = found(&printed) {
                self.printed = printed.as_bytes()[end..].to_vec();
                return printed[..end].to_owned();
            }
            match self.pieces.recv_timeout(PATIENCE) {
                Ok(piece) => self.printed.extend(piece),
                Err(RecvTimeoutError::Timeout) => panic!("{what:?} does not come; printed: {printed:?}"),
                Err(RecvTimeoutError::Disconnected) => panic!("{what:?} never came; printed: {printed:?}"),
            }
        }
    }

    /// Waits for the program's end, and gives what it has printed since the last wait.
    pub fn end(mut self) -> (ExitStatus, String) {
        loop {
            match self.pieces.recv_timeout(PATIENCE) {
                Ok(piece) => self.printed.extend(piece),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    let _ = self.child.kill();
                    panic!("the program does not end; printed: {}", String::from_utf8_lossy(&self.printed));
                }
            }
        }
        let status = self.child.wait().expect("the program has ended");
        (status, String::from_utf8_lossy(&self.printed).into_owned())
    }
}

/// Without colours and what else is no text. Each line ends with a carriage return, a progress bar's too.
pub fn plain(printed: &str) -> String {
    let mut text = String::new();
    let mut rest = printed;
    while let Some((before, after)) = rest.split_once('\x1b') {
        text += before;
        // CSI sequences, the only ones that programs here print: parameters, then a letter
        let end = after.find(|c: char| c.is_ascii_alphabetic()).map_or(after.len(), |at| at + 1);
        rest = &after[end..];
    }
    text + rest
}
