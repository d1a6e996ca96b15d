//! Connection of one control client: takes requests from its thread, calls the handler, and writes replies, one request
//! at a time.

use std::future::Future;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

#[cfg(doc)]
use iwarp_control::bounds::DESCRIPTORS_MAX;
use iwarp_control::bounds::{API, REQUEST_BYTES_MAX};
use iwarp_control::{
    BadLine, ErrorKind, ErrorObject, Hello, HelloReply, Id, Method, Request, Response, params, transfer,
};
use serde::Serialize;
use serde_json::Value;
use tokio::sync::mpsc::Receiver;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout, timeout_at};

use super::peer::Peer;
use super::receiver::{Connected, Input};
use super::stats::SharedStats;

/// Implementation of the methods. Its functions run on the server's thread, so they must await and never block.
pub trait Handler {
    /// State of one client.
    type Session;

    /// Descriptors of a client, as far as a request takes them. Dropping it does not block.
    type Descriptors: Send + 'static;

    /// Checks the descriptors that came with a request, at most [`DESCRIPTORS_MAX`], and closes those that the method
    /// does not take. Runs on the thread of the connection, because any use of a client's descriptor may block.
    fn check(method: &str, fds: Vec<OwnedFd>) -> Self::Descriptors;

    /// Begins a session with an admitted client.
    ///
    /// # Errors
    /// The client is refused, with the reason.
    fn open(&self, peer: &Peer) -> Result<Self::Session, ErrorObject>;

    /// Carries out a request, with the descriptors that came with it.
    ///
    /// # Errors
    /// The request is refused, with its reason.
    fn handle(
        &self,
        session: &mut Self::Session,
        request: Request,
        descriptors: Self::Descriptors,
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
    client: Connected<H::Descriptors>,
    session: H::Session,
    handler: &'h H,
    stats: SharedStats,
    limits: ClientLimits,
}

impl<'h, H: Handler> Connection<'h, H> {
    pub(super) fn new(
        client: Connected<H::Descriptors>,
        session: H::Session,
        handler: &'h H,
        stats: SharedStats,
        limits: ClientLimits,
    ) -> Self {
        Self { client, session, handler, stats, limits }
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
            let next = self.client.next();
            let input = match self.limits.line {
                Some(limit) => timeout_at(deadline(limit), next).await.map_err(|_| End::Idle)?,
                None => next.await,
            };
            match input {
                Input::End => return Ok(()),
                Input::Broken => return Err(End::Broken),
                Input::Blank => {}
                Input::Request(request, descriptors) => {
                    if let Some(stream) = self.answer(*request, descriptors).await? {
                        // The client ends a stream by a line, or by disconnecting.
                        return self.client.write_all_of(stream).await.map_err(|_| End::Broken);
                    }
                }
                Input::Bad(bad) => self.refuse_line(*bad).await?,
                Input::TooLong => {
                    self.stats.count(|s| &mut s.bad_too_long);
                    let message = format!("the line is longer than {REQUEST_BYTES_MAX} bytes");
                    self.refuse(None, ErrorObject::new(ErrorKind::TooLarge, message)).await?;
                }
                Input::Unfinished => {
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

    async fn refuse_line(&self, bad: BadLine) -> Result<(), End> {
        let (id, error) = match bad {
            BadLine::NotJson(error) => {
                self.stats.count(|s| &mut s.bad_not_json);
                (None, error)
            }
            BadLine::NotARequest(id, error) => {
                self.stats.count(|s| &mut s.bad_not_a_request);
                (id, error)
            }
        };
        self.refuse(id, error).await
    }

    /// Answers a request. Returns the stream that follows the reply, if one does.
    async fn answer(
        &mut self,
        request: Request,
        descriptors: H::Descriptors,
    ) -> Result<Option<Receiver<Arc<[u8]>>>, End> {
        self.stats.count(|s| &mut s.requests);
        let id = request.id.clone();
        let outcome = if request.method == Hello::NAME {
            hello(request.params)
        } else {
            self.handler.handle(&mut self.session, request, descriptors).await
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

    async fn refuse(&self, id: Option<Id>, error: ErrorObject) -> Result<(), End> {
        match Response::<()>::failure(id, error).to_line() {
            Ok(line) => self.send(&line, Vec::new()).await,
            Err(_) => Err(End::Broken),
        }
    }

    async fn send(&self, line: &[u8], fds: Vec<OwnedFd>) -> Result<(), End> {
        match timeout(self.limits.reply, self.client.write(line, fds)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(End::Broken),
            Err(_) => Err(End::SlowReader),
        }
    }
}

/// Sends a rejected client the reason, without waiting for its socket.
pub(super) fn reject(stream: impl AsFd, error: ErrorObject) {
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
