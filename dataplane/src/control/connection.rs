//! Connection of one control client: reads lines, calls the handler, and writes replies, one request at a time.

use std::future::Future;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use iwarp_control::bounds::{API, DESCRIPTORS_MAX, REQUEST_BYTES_MAX};
use iwarp_control::{
    BadLine, ErrorKind, ErrorObject, Hello, HelloReply, Id, Method, Request, Response, params, transfer,
};
use serde::Serialize;
use serde_json::Value;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::mpsc::Receiver;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout, timeout_at};

use super::peer::Peer;
use super::stats::SharedStats;

/// Bytes per read of the socket.
const CHUNK: usize = 4096;

/// Implementation of the methods. Its functions run on the server's thread, so they must await and never block.
pub trait Handler {
    /// State of one client.
    type Session;

    /// Begins a session with an admitted client.
    ///
    /// # Errors
    /// The client is refused, with the reason.
    fn open(&self, peer: &Peer) -> Result<Self::Session, ErrorObject>;

    /// Carries out a request. `fds` are the descriptors that came with it, at most
    /// [`DESCRIPTORS_MAX`]; one that is not needed is closed.
    ///
    /// # Errors
    /// The request is refused, with its reason.
    fn handle(
        &self,
        session: &mut Self::Session,
        request: Request,
        fds: Vec<OwnedFd>,
    ) -> impl Future<Output = Result<Reply, ErrorObject>>;

    /// Ends a session: the client has disconnected, or was disconnected. Not called when the server stops.
    fn close(&self, session: Self::Session) -> impl Future<Output = ()>;
}

/// Result of a method, the descriptors to send with it, and the bytes that follow it.
pub struct Reply {
    line: Box<dyn FnOnce(Option<Id>) -> serde_json::Result<Vec<u8>>>,
    fds: Vec<OwnedFd>,
    stream: Option<Receiver<Arc<[u8]>>>,
    /// Dropped when the client has the reply, or cannot have it any more.
    sent: Option<oneshot::Sender<()>>,
}

impl Reply {
    /// Creates a reply from a result, which is serialized in the order of its members.
    pub fn new<T: Serialize + 'static>(result: T) -> Self {
        Self {
            line: Box::new(move |id| Response::success(id, result).to_line()),
            fds: Vec::new(),
            stream: None,
            sent: None,
        }
    }

    /// Has a sender dropped once the reply is written.
    #[must_use]
    pub fn with_sent(mut self, sent: oneshot::Sender<()>) -> Self {
        self.sent = Some(sent);
        self
    }

    /// Has bytes follow the reply, until their sender is dropped or the client disconnects. From then on the connection
    /// takes no further request.
    #[must_use]
    pub fn with_stream(mut self, stream: Receiver<Arc<[u8]>>) -> Self {
        self.stream = Some(stream);
        self
    }

    /// Attaches descriptors to the reply, at most [`DESCRIPTORS_MAX`].
    #[must_use]
    pub fn with_fds(mut self, fds: Vec<OwnedFd>) -> Self {
        self.fds = fds;
        self
    }
}

impl std::fmt::Debug for Reply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reply").field("fds", &self.fds).finish_non_exhaustive()
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
    /// Longest time between two whole lines; `None`: unlimited.
    pub(super) line: Option<Duration>,
    /// Longest time to read a reply.
    pub(super) reply: Duration,
    /// True if a reply may be followed by a stream, which has no time limit.
    pub(super) streams: bool,
}

/// Connection of one client.
pub(super) struct Connection<'h, H: Handler> {
    stream: UnixStream,
    session: H::Session,
    handler: &'h H,
    stats: SharedStats,
    limits: ClientLimits,
    lines: Lines,
}

impl<'h, H: Handler> Connection<'h, H> {
    pub(super) fn new(
        stream: UnixStream,
        session: H::Session,
        handler: &'h H,
        stats: SharedStats,
        limits: ClientLimits,
    ) -> Self {
        Self { stream, session, handler, stats, limits, lines: Lines::default() }
    }

    /// Serves the client until it disconnects, fails or exceeds a time limit.
    pub(super) async fn serve(mut self) {
        match self.serve_lines().await {
            Ok(()) => self.stats.count(|s| &mut s.closed_by_peer),
            Err(End::Idle) => self.stats.count(|s| &mut s.closed_idle),
            Err(End::SlowReader) => self.stats.count(|s| &mut s.closed_slow_reader),
            Err(End::Broken) => self.stats.count(|s| &mut s.closed_error),
        }
        self.handler.close(self.session).await;
    }

    async fn serve_lines(&mut self) -> Result<(), End> {
        loop {
            // The limit holds for a whole line: single bytes do not extend it.
            let next = self.lines.next(&mut self.stream);
            let line = match self.limits.line {
                Some(limit) => timeout_at(deadline(limit), next).await,
                None => Ok(next.await),
            };
            let line = match line {
                Err(_) => return Err(End::Idle),
                Ok(Err(_)) => return Err(End::Broken),
                Ok(Ok(line)) => line,
            };
            match line {
                Line::End => return Ok(()),
                Line::Whole(line) => {
                    if let Some(stream) = self.answer(&line).await? {
                        return self.stream(stream).await;
                    }
                }
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

    /// Sends a stream until it ends, or the client disconnects or sends anything.
    async fn stream(&mut self, mut stream: Receiver<Arc<[u8]>>) -> Result<(), End> {
        let socket = &self.stream;
        let mut input = [0; 1];
        // Reads, because a socket that was read may be taken for readable although nothing has come.
        let reading = || transfer::receive(socket, &mut input).map(|_| ()).map_err(io::Error::from);
        let sending = async {
            while let Some(bytes) = stream.recv().await {
                write(socket, &bytes, Vec::new()).await?;
            }
            Ok(())
        };
        tokio::select! {
            ended = socket.async_io(Interest::READABLE, reading) => ended,
            sent = sending => sent,
        }
        .map_err(|_| End::Broken)
    }

    /// Answers one line of input. Returns the stream that follows the reply, if one does.
    async fn answer(&mut self, line: &[u8]) -> Result<Option<Receiver<Arc<[u8]>>>, End> {
        if line.iter().all(u8::is_ascii_whitespace) {
            return Ok(None);
        }
        let request = match Request::from_line(line) {
            Ok(request) => request,
            Err(BadLine::NotJson(error)) => {
                self.stats.count(|s| &mut s.bad_not_json);
                return self.refuse(None, error).await.map(|()| None);
            }
            Err(BadLine::NotARequest(id, error)) => {
                self.stats.count(|s| &mut s.bad_not_a_request);
                return self.refuse(id, error).await.map(|()| None);
            }
        };
        self.stats.count(|s| &mut s.requests);
        let id = request.id.clone();
        let outcome = if request.method == Hello::NAME {
            hello(request.params)
        } else {
            let fds = std::mem::take(&mut self.lines.fds);
            self.handler.handle(&mut self.session, request, fds).await
        };
        let outcome = outcome.and_then(|reply| self.may_stream(reply));
        let mut _sent = None;
        let (line, fds, stream) = match outcome {
            Ok(Reply { line, fds, stream, sent }) => {
                _sent = sent;
                (line(id.clone()), fds, stream)
            }
            Err(error) => {
                self.stats.count(|s| &mut s.requests_refused);
                (Response::<()>::failure(id.clone(), error).to_line(), Vec::new(), None)
            }
        };
        if id.is_none() {
            // JSON-RPC 2.0 §4.1: "The Server MUST NOT reply to a Notification".
            return Ok(None);
        }
        match line {
            Ok(line) => {
                for _ in &fds {
                    self.stats.count(|s| &mut s.descriptors_sent);
                }
                self.send(&line, fds).await?;
                Ok(stream)
            }
            Err(e) => {
                let error = ErrorObject::new(ErrorKind::Internal, format!("the reply: {e}"));
                self.refuse(id, error).await.map(|()| None)
            }
        }
    }

    /// Refuses a stream in a slot that is reserved for short commands.
    fn may_stream(&self, reply: Reply) -> Result<Reply, ErrorObject> {
        if reply.stream.is_none() || self.limits.streams {
            return Ok(reply);
        }
        Err(ErrorObject::new(ErrorKind::NoResources, "as many clients as configured are connected")
            .with_help("end another client first: the place that root has left is for short commands"))
    }

    async fn refuse(&mut self, id: Option<Id>, error: ErrorObject) -> Result<(), End> {
        match Response::<()>::failure(id, error).to_line() {
            Ok(line) => self.send(&line, Vec::new()).await,
            Err(_) => Err(End::Broken),
        }
    }

    async fn send(&mut self, line: &[u8], fds: Vec<OwnedFd>) -> Result<(), End> {
        match timeout(self.limits.reply, write(&self.stream, line, fds)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(End::Broken),
            Err(_) => Err(End::SlowReader),
        }
    }
}

/// Writes a line; the descriptors are sent with its first byte.
async fn write(stream: &UnixStream, line: &[u8], mut fds: Vec<OwnedFd>) -> io::Result<()> {
    let mut rest = line;
    while !rest.is_empty() {
        let borrowed: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        let sent = stream
            .async_io(Interest::WRITABLE, || transfer::send(stream, rest, &borrowed).map_err(io::Error::from))
            .await?;
        if sent > 0 {
            fds.clear();
        }
        rest = rest.get(sent..).unwrap_or_default();
    }
    Ok(())
}

/// Sends a rejected client the reason, without waiting for its socket.
pub(super) fn reject(stream: &UnixStream, error: ErrorObject) {
    if let Ok(line) = Response::<()>::failure(None, error).to_line() {
        // The socket of a new connection is empty and has room for a short line.
        transfer::send(stream, &line, &[]).ok();
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
    /// Descriptors that came since the last request; never more than the bound.
    fds: Vec<OwnedFd>,
}

impl Lines {
    async fn next(&mut self, stream: &mut UnixStream) -> io::Result<Line> {
        let mut chunk = [0; CHUNK];
        loop {
            if let Some(line) = self.take() {
                return Ok(line);
            }
            let reading = || transfer::receive(&*stream, &mut chunk).map_err(io::Error::from);
            let (received, fds) = stream.async_io(Interest::READABLE, reading).await?;
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
