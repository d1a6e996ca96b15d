//! Thread of one connection: receives the client's lines and descriptors, and closes the socket.
//!
//! Every use of a client's descriptor may block as long as the client likes: closing a TCP socket lingers, and a file
//! may belong to a file system of the client. `recvmsg` closes descriptors that find no room, and closing a socket
//! closes those that wait in it. So only the thread of the connection does any of this, and a thread that blocks costs
//! its own user a connection. The control thread writes to the socket and waits for it.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use iwarp_control::bounds::{DESCRIPTORS_MAX, REQUEST_BYTES_MAX};
use iwarp_control::{BadLine, ErrorObject, Request, transfer};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::Shutdown;
use tokio::io::Interest;
use tokio::sync::mpsc;

use super::connection::{Handler, reject};
use super::threads::Threads;

/// Bytes per read of the socket.
const CHUNK: usize = 4096;

/// Next item of a client's input. `D` is what its descriptors have become.
#[derive(Debug)]
pub(super) enum Input<D> {
    /// A request, with the descriptors that came since the last one.
    Request(Box<Request>, D),
    /// A line of nothing but white space.
    Blank,
    /// A line that is not a request.
    Bad(Box<BadLine>),
    /// A line longer than the bound, which is skipped.
    TooLong,
    /// The stream ended within a line.
    Unfinished,
    /// The client closed the stream.
    End,
    /// The connection failed: no further input follows.
    Broken,
}

/// The control thread's side of a connection. Dropping it ends the thread.
#[derive(Debug)]
pub(super) struct Connected<D> {
    // A duplicate. Dropped before `input`: the thread keeps the socket until it finds that closed, so that the thread
    // closes the last descriptor.
    socket: tokio::net::UnixStream,
    input: mpsc::Receiver<Input<D>>,
}

impl<D: Send + 'static> Connected<D> {
    /// Starts the thread of a connection of user `uid`. Must run on a runtime with I/O.
    ///
    /// # Errors
    /// There are no resources for it. The socket is closed elsewhere.
    pub(super) fn start<H: Handler<Descriptors = D>>(
        socket: Arc<UnixStream>,
        uid: u32,
        threads: &Threads,
    ) -> io::Result<Self> {
        let (sender, input) = mpsc::channel(1);
        let started = rustix::net::sockopt::set_socket_oobinline(&socket, true)
            .map_err(io::Error::from)
            .and_then(|()| tokio::net::UnixStream::from_std(socket.try_clone()?));
        let started = started.and_then(|registered| {
            let receiver = Receiver { socket: Arc::clone(&socket), input: sender };
            threads.start(uid, move || receiver.run::<H>()).map(|()| registered)
        });
        match started {
            Ok(registered) => {
                // The thread has a handle of its own.
                drop(socket);
                Ok(Self { socket: registered, input })
            }
            Err(error) => {
                threads.close(uid, socket);
                Err(error)
            }
        }
    }

    /// Sends a client the reason why it is rejected, and ends the connection.
    pub(super) fn reject(self, error: ErrorObject) {
        reject(&self.socket, error);
    }

    /// Awaits the next item. The thread reads one item ahead.
    pub(super) async fn next(&mut self) -> Input<D> {
        self.input.recv().await.unwrap_or(Input::Broken)
    }

    /// Writes bytes; the descriptors are sent with the first of them.
    pub(super) async fn write(&self, bytes: &[u8], fds: Vec<OwnedFd>) -> io::Result<()> {
        write(&self.socket, bytes, fds).await
    }

    /// Writes what `stream` yields, until it ends, or the client disconnects or sends anything.
    pub(super) async fn write_all_of(&mut self, mut stream: mpsc::Receiver<Arc<[u8]>>) -> io::Result<()> {
        let Self { socket, input } = self;
        let sending = async {
            while let Some(bytes) = stream.recv().await {
                write(socket, &bytes, Vec::new()).await?;
            }
            Ok(())
        };
        tokio::select! {
            received = input.recv() => match received {
                Some(Input::Broken) | None => Err(io::ErrorKind::BrokenPipe.into()),
                Some(_) => Ok(()),
            },
            sent = sending => sent,
        }
    }
}

impl<D> Drop for Connected<D> {
    fn drop(&mut self) {
        // Wakes the thread. Fails only if the client has disconnected, which does the same.
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Read);
    }
}

async fn write(socket: &tokio::net::UnixStream, bytes: &[u8], mut fds: Vec<OwnedFd>) -> io::Result<()> {
    let mut rest = bytes;
    while !rest.is_empty() {
        let borrowed: Vec<_> = fds.iter().map(std::os::fd::AsFd::as_fd).collect();
        let send = || transfer::send(socket, rest, &borrowed).map_err(io::Error::from);
        let sent = socket.async_io(Interest::WRITABLE, send).await?;
        if sent > 0 {
            fds.clear();
        }
        rest = rest.get(sent..).unwrap_or_default();
    }
    Ok(())
}

/// The thread's side of a connection.
struct Receiver<D> {
    socket: Arc<UnixStream>,
    input: mpsc::Sender<Input<D>>,
}

impl<D> Receiver<D> {
    /// Receives until the client disconnects or the control thread ends the connection. Returns the socket.
    fn run<H: Handler<Descriptors = D>>(self) -> Arc<UnixStream> {
        let Self { socket, input } = self;
        let mut lines = Lines::default();
        loop {
            let (next, is_last) = match lines.next(&socket) {
                Ok(Line::Whole(line)) if line.iter().all(u8::is_ascii_whitespace) => (Input::Blank, false),
                Ok(Line::Whole(line)) => (lines.request::<H>(&line), false),
                Ok(Line::TooLong) => (Input::TooLong, false),
                Ok(Line::Unfinished) => (Input::Unfinished, false),
                Ok(Line::End) => (Input::End, true),
                Err(_) => (Input::Broken, true),
            };
            if input.blocking_send(next).is_err() {
                break;
            }
            // The control thread has a handle of the socket, and this one must be the last.
            while is_last && input.blocking_send(Input::End).is_ok() {}
        }
        socket
    }
}

/// Next item of the input stream.
#[derive(Debug, PartialEq, Eq)]
enum Line {
    /// A line, without its newline.
    Whole(Vec<u8>),
    /// A line longer than the bound, which is skipped.
    TooLong,
    /// The stream ended within a line.
    Unfinished,
    /// The client closed the stream.
    End,
}

/// Cuts a stream into lines of at most [`REQUEST_BYTES_MAX`] bytes, newline included.
#[derive(Debug, Default)]
struct Lines {
    /// Bytes read and not yet returned; never more than the bound and one chunk.
    pending: Vec<u8>,
    /// Bytes at the start of `pending` known to contain no newline.
    searched: usize,
    /// True while the rest of a too long line is discarded.
    skipping: bool,
    /// Descriptors that came since the last request; never more than the bound.
    fds: Vec<OwnedFd>,
}

impl Lines {
    /// Waits for the next line.
    fn next(&mut self, socket: &UnixStream) -> Result<Line, Errno> {
        let mut chunk = [0; CHUNK];
        loop {
            if let Some(line) = self.take() {
                return Ok(line);
            }
            let (received, fds) = match transfer::receive(socket, &mut chunk) {
                Err(Errno::AGAIN) => {
                    wait(socket)?;
                    continue;
                }
                received => received?,
            };
            self.fds.extend(fds);
            self.fds.truncate(DESCRIPTORS_MAX);
            if received == 0 {
                let unfinished = !self.skipping && !self.pending.is_empty();
                self.pending = Vec::new();
                return Ok(if unfinished { Line::Unfinished } else { Line::End });
            }
            self.pending.extend_from_slice(chunk.get(..received).unwrap_or_default());
        }
    }

    /// Parses a line, and checks the descriptors that have come since the last request.
    fn request<H: Handler>(&mut self, line: &[u8]) -> Input<H::Descriptors> {
        match Request::from_line(line) {
            Ok(request) => {
                let descriptors = H::check(&request.method, std::mem::take(&mut self.fds));
                Input::Request(Box::new(request), descriptors)
            }
            Err(bad) => Input::Bad(Box::new(bad)),
        }
    }

    /// Returns the next line, if `pending` contains one.
    fn take(&mut self) -> Option<Line> {
        loop {
            let rest = self.pending.get(self.searched..).unwrap_or_default();
            let Some(at) = rest.iter().position(|&byte| byte == b'\n') else {
                self.searched = self.pending.len();
                if self.skipping {
                    self.pending.clear();
                    self.searched = 0;
                } else if self.pending.len() >= REQUEST_BYTES_MAX {
                    self.pending = Vec::new();
                    self.searched = 0;
                    self.skipping = true;
                    return Some(Line::TooLong);
                }
                return None;
            };
            let end = self.searched.saturating_add(at);
            let rest = self.pending.split_off(end.saturating_add(1));
            let mut line = std::mem::replace(&mut self.pending, rest);
            self.searched = 0;
            if std::mem::take(&mut self.skipping) {
                continue;
            }
            if line.len() > REQUEST_BYTES_MAX {
                return Some(Line::TooLong);
            }
            line.truncate(end);
            return Some(Line::Whole(line));
        }
    }
}

/// Waits until the socket can be read, or is shut down.
fn wait(socket: &UnixStream) -> Result<(), Errno> {
    let mut watched = [PollFd::new(socket, PollFlags::IN)];
    match poll(&mut watched, None) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error),
    }
}
