//! Connection of one control client: reads lines, calls the handler, and writes replies, one request at a time.

use std::future::Future;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use iwarp_control::bounds::{API, REQUEST_BYTES_MAX};
use iwarp_control::{
    BadLine, ErrorKind, ErrorObject, Hello, HelloReply, Id, Method, Request, Response, params, transfer,
};
use serde::Serialize;
use serde_json::Value;
use tokio::io::{AsyncReadExt, Interest};
use tokio::net::UnixStream;
use tokio::time::{Instant, timeout, timeout_at};

use super::peer::Peer;
use super::stats::SharedStats;

/// Bytes per read of the socket.
const CHUNK: usize = 4096;

/// Implementation of the methods.
pub trait Handler {
    /// Carries out a request. Runs on the server's thread, so it must await and never block.
    ///
    /// # Errors
    /// The request is refused, with its reason.
    fn handle(&self, peer: &Peer, request: Request) -> impl Future<Output = Result<Reply, ErrorObject>>;
}

/// Result of a method, and a descriptor to send with it.
pub struct Reply {
    line: Box<dyn FnOnce(Option<Id>) -> serde_json::Result<Vec<u8>>>,
    fd: Option<OwnedFd>,
}

impl Reply {
    /// Creates a reply from a result, which is serialized in the order of its members.
    pub fn new<T: Serialize + 'static>(result: T) -> Self {
        Self { line: Box::new(move |id| Response::success(id, result).to_line()), fd: None }
    }

    /// Attaches a descriptor to the reply.
    #[must_use]
    pub fn with_fd(mut self, fd: OwnedFd) -> Self {
        self.fd = Some(fd);
        self
    }
}

impl std::fmt::Debug for Reply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reply").field("fd", &self.fd).finish_non_exhaustive()
    }
}

/// Reason why the server closed a connection.
enum End {
    Idle,
    SlowReader,
    Broken,
}

/// Time limits for a client.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClientLimits {
    /// Longest time between two whole lines.
    pub(super) line: Duration,
    /// Longest time to read a reply.
    pub(super) reply: Duration,
}

/// Connection of one client.
pub(super) struct Connection<'h, H> {
    stream: UnixStream,
    peer: Peer,
    handler: &'h H,
    stats: SharedStats,
    limits: ClientLimits,
    lines: Lines,
}

impl<'h, H: Handler> Connection<'h, H> {
    pub(super) fn new(
        stream: UnixStream,
        peer: Peer,
        handler: &'h H,
        stats: SharedStats,
        limits: ClientLimits,
    ) -> Self {
        Self { stream, peer, handler, stats, limits, lines: Lines::default() }
    }

    /// Serves the client until it disconnects, fails or exceeds a time limit.
    pub(super) async fn serve(mut self) {
        match self.serve_lines().await {
            Ok(()) => self.stats.count(|s| &mut s.closed_by_peer),
            Err(End::Idle) => self.stats.count(|s| &mut s.closed_idle),
            Err(End::SlowReader) => self.stats.count(|s| &mut s.closed_slow_reader),
            Err(End::Broken) => self.stats.count(|s| &mut s.closed_error),
        }
    }

    async fn serve_lines(&mut self) -> Result<(), End> {
        loop {
            // The limit holds for a whole line: single bytes do not extend it.
            let deadline = deadline(self.limits.line);
            let line = match timeout_at(deadline, self.lines.next(&mut self.stream)).await {
                Err(_) => return Err(End::Idle),
                Ok(Err(_)) => return Err(End::Broken),
                Ok(Ok(line)) => line,
            };
            match line {
                Line::End => return Ok(()),
                Line::Whole(line) => self.answer(&line).await?,
                Line::TooLong => {
                    self.stats.count(|s| &mut s.bad_too_long);
                    let message = format!("the line is longer than {REQUEST_BYTES_MAX} bytes");
                    self.refuse(None, ErrorObject::new(ErrorKind::TooLarge, message)).await?;
                }
                Line::Unfinished => {
                    self.stats.count(|s| &mut s.bad_unfinished);
                    let error = ErrorObject::new(ErrorKind::InvalidRequest, "the line was not ended")
                        .with_help("end each request with a newline");
                    self.refuse(None, error).await?;
                    return Ok(());
                }
            }
            tokio::task::yield_now().await;
        }
    }

    /// Answers one line of input.
    async fn answer(&mut self, line: &[u8]) -> Result<(), End> {
        if line.iter().all(u8::is_ascii_whitespace) {
            return Ok(());
        }
        let request = match Request::from_line(line) {
            Ok(request) => request,
            Err(BadLine::NotJson(error)) => {
                self.stats.count(|s| &mut s.bad_not_json);
                return self.refuse(None, error).await;
            }
            Err(BadLine::NotARequest(id, error)) => {
                self.stats.count(|s| &mut s.bad_not_a_request);
                return self.refuse(id, error).await;
            }
        };
        self.stats.count(|s| &mut s.requests);
        let id = request.id.clone();
        let outcome = if request.method == Hello::NAME {
            hello(request.params)
        } else {
            self.handler.handle(&self.peer, request).await
        };
        let (line, fd) = match outcome {
            Ok(Reply { line, fd }) => (line(id.clone()), fd),
            Err(error) => {
                self.stats.count(|s| &mut s.requests_refused);
                (Response::<()>::failure(id.clone(), error).to_line(), None)
            }
        };
        if id.is_none() {
            // JSON-RPC 2.0 §4.1: "The Server MUST NOT reply to a Notification".
            return Ok(());
        }
        match line {
            Ok(line) => {
                if fd.is_some() {
                    self.stats.count(|s| &mut s.descriptors_sent);
                }
                self.send(&line, fd).await
            }
            Err(e) => self.refuse(id, ErrorObject::new(ErrorKind::Internal, format!("the reply: {e}"))).await,
        }
    }

    async fn refuse(&mut self, id: Option<Id>, error: ErrorObject) -> Result<(), End> {
        match Response::<()>::failure(id, error).to_line() {
            Ok(line) => self.send(&line, None).await,
            Err(_) => Err(End::Broken),
        }
    }

    async fn send(&mut self, line: &[u8], fd: Option<OwnedFd>) -> Result<(), End> {
        match timeout(self.limits.reply, write(&self.stream, line, fd)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(End::Broken),
            Err(_) => Err(End::SlowReader),
        }
    }
}

/// Writes a line; the descriptor is sent with its first byte.
async fn write(stream: &UnixStream, line: &[u8], mut fd: Option<OwnedFd>) -> io::Result<()> {
    let mut rest = line;
    while !rest.is_empty() {
        let borrowed = fd.as_ref().map(AsFd::as_fd);
        let sent = stream
            .async_io(Interest::WRITABLE, || transfer::send(stream, rest, borrowed).map_err(io::Error::from))
            .await?;
        if sent > 0 {
            fd = None;
        }
        rest = rest.get(sent..).unwrap_or_default();
    }
    Ok(())
}

/// Sends a rejected client the reason, without waiting for its socket.
pub(super) fn reject(stream: &UnixStream, kind: ErrorKind, message: &str, help: &str) {
    let error = ErrorObject::new(kind, message).with_help(help);
    if let Ok(line) = Response::<()>::failure(None, error).to_line() {
        // The socket of a new connection is empty and has room for a short line.
        transfer::send(stream, &line, None).ok();
    }
}

fn hello(given: Value) -> Result<Reply, ErrorObject> {
    params::<Hello>(given)?;
    let version = env!("CARGO_PKG_VERSION").to_owned();
    Ok(Reply::new(HelloReply { api: API, version, pid: std::process::id() }))
}

fn deadline(after: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(after).unwrap_or(now)
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
}

impl Lines {
    async fn next(&mut self, stream: &mut UnixStream) -> io::Result<Line> {
        let mut chunk = [0; CHUNK];
        loop {
            if let Some(line) = self.take() {
                return Ok(line);
            }
            let received = stream.read(&mut chunk).await?;
            if received == 0 {
                let unfinished = !self.skipping && !self.pending.is_empty();
                self.pending = Vec::new();
                return Ok(if unfinished { Line::Unfinished } else { Line::End });
            }
            self.pending.extend_from_slice(chunk.get(..received).unwrap_or_default());
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
