//! A blocking client of the control socket.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::bounds::{REPLY_BYTES_MAX, REQUEST_BYTES_MAX};
use crate::error::ErrorObject;
use crate::event::{EventMessage, EventRecord};
use crate::exit::Exit;
use crate::message::{Id, Request, Response, Version};
use crate::method::Method;
use crate::transfer;

/// The longest silence of the daemon before a call fails, by default.
const PATIENCE: Duration = Duration::from_secs(10);
/// Name of the daemon whose methods are those of the crate's root.
const IWARPD: &str = "iwarpd";
/// Bytes read at a time.
const CHUNK: usize = 16 * 1024;

/// A connection to the daemon's control socket.
#[derive(Debug)]
pub struct Client {
    socket: UnixStream,
    daemon: &'static str,
    path: PathBuf,
    patience: Duration,
    last_id: i64,
    /// Bytes received after the last reply.
    pending: Vec<u8>,
}

/// The error of a request.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No daemon listens on the control socket.
    #[error("cannot reach {daemon} at {}: {cause}", path.display())]
    Unreachable {
        /// The name of the daemon.
        daemon: &'static str,
        /// The path of the control socket.
        path: PathBuf,
        /// The error of the system call.
        cause: io::Error,
    },
    /// The socket exists, and the caller may not connect to it.
    #[error("not allowed to talk to {daemon} at {}: {cause}", path.display())]
    Denied {
        /// The name of the daemon.
        daemon: &'static str,
        /// The path of the control socket.
        path: PathBuf,
        /// The error of the system call.
        cause: io::Error,
    },
    /// The request is longer than one line may be.
    #[error("the request has {bytes} bytes; the daemon reads at most {REQUEST_BYTES_MAX}")]
    RequestTooLong {
        /// The length of the request in bytes.
        bytes: usize,
    },
    /// The daemon did not answer within the time limit.
    #[error("{daemon} at {} did not answer within {} s", path.display(), waited.as_secs_f32())]
    Timeout {
        /// The name of the daemon.
        daemon: &'static str,
        /// The path of the control socket.
        path: PathBuf,
        /// The time limit of the call.
        waited: Duration,
    },
    /// The connection ended before the reply.
    #[error("the connection to {daemon} at {} was lost: {cause}", path.display())]
    Lost {
        /// The name of the daemon.
        daemon: &'static str,
        /// The path of the control socket.
        path: PathBuf,
        /// The error of the system call.
        cause: io::Error,
    },
    /// The reply violates the protocol.
    #[error("{daemon} at {} answered with what this program cannot read: {reason}", path.display())]
    Malformed {
        /// The name of the daemon.
        daemon: &'static str,
        /// The path of the control socket.
        path: PathBuf,
        /// The violation, in words.
        reason: String,
    },
    /// The daemon refused the request.
    #[error(transparent)]
    Refused(#[from] ErrorObject),
}

impl ClientError {
    /// Returns the exit code of a command that met this error.
    #[must_use]
    pub const fn exit(&self) -> Exit {
        match self {
            Self::Unreachable { .. } | Self::Timeout { .. } => Exit::Unreachable,
            Self::Denied { .. } => Exit::Permission,
            Self::RequestTooLong { .. } | Self::Lost { .. } | Self::Malformed { .. } => Exit::Failed,
            Self::Refused(error) => error.data.kind.exit(),
        }
    }

    /// Returns the action that helps, if one is known.
    #[must_use]
    pub fn help(&self) -> Option<String> {
        match self {
            Self::Unreachable { daemon, .. } => {
                let option = if *daemon == IWARPD { "--socket" } else { "--server" };
                Some(format!(
                    "is the daemon running? `systemctl status {daemon}`; another socket: {option} PATH"
                ))
            }
            Self::Denied { .. } => Some(
                "run as root, or join the socket's group (control.group in the configuration)".to_owned(),
            ),
            Self::RequestTooLong { .. } => None,
            Self::Timeout { daemon, .. } | Self::Lost { daemon, .. } => {
                Some(format!("the daemon's log says more: `journalctl -u {daemon}`"))
            }
            Self::Malformed { .. } => Some(
                "the daemon and this program may be of different versions: compare `version` of both"
                    .to_owned(),
            ),
            Self::Refused(error) => error.data.help.clone(),
        }
    }

    /// Returns a stable identifier of the kind of error, for programs.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Unreachable { .. } => "unreachable",
            Self::Denied { .. } => "not_permitted",
            Self::RequestTooLong { .. } => "too_large",
            Self::Timeout { .. } => "timeout",
            Self::Lost { .. } => "connection_lost",
            Self::Malformed { .. } => "malformed_reply",
            Self::Refused(error) => error.data.kind.name(),
        }
    }
}

impl AsFd for Client {
    /// Borrows the socket, which is readable once the daemon has ended.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Client {
    /// Connects to the daemon, which may be silent for 10 s before a call fails.
    ///
    /// # Errors
    /// [`ClientError::Unreachable`] or [`ClientError::Denied`].
    pub fn connect(path: impl AsRef<Path>) -> Result<Self, ClientError> {
        Self::connect_with(path, PATIENCE)
    }

    /// Connects to the daemon, which may be silent for `patience` (more than zero) before a call fails.
    ///
    /// # Errors
    /// [`ClientError::Unreachable`] or [`ClientError::Denied`].
    pub fn connect_with(path: impl AsRef<Path>, patience: Duration) -> Result<Self, ClientError> {
        Self::connect_to(IWARPD, path, patience)
    }

    /// Connects to another daemon that serves the protocol, such as `iwarp-nfsd`. Errors name it.
    ///
    /// # Errors
    /// As [`Self::connect_with`].
    pub fn connect_to(
        daemon: &'static str,
        path: impl AsRef<Path>,
        patience: Duration,
    ) -> Result<Self, ClientError> {
        let path = path.as_ref().to_path_buf();
        let open = || {
            let socket = UnixStream::connect(&path)?;
            socket.set_read_timeout(Some(patience))?;
            socket.set_write_timeout(Some(patience))?;
            Ok(socket)
        };
        match open() {
            Ok(socket) => Ok(Self { socket, daemon, path, patience, last_id: 0, pending: Vec::new() }),
            Err(source) if denied(&source) => Err(ClientError::Denied { daemon, path, cause: source }),
            Err(source) => Err(ClientError::Unreachable { daemon, path, cause: source }),
        }
    }

    /// Calls a method and waits for its reply.
    ///
    /// # Errors
    /// Any [`ClientError`]; after one that is not [`ClientError::Refused`] the client is of no more use.
    pub fn call<M: Method>(&mut self, params: &M::Params) -> Result<M::Reply, ClientError> {
        self.call_with_fds::<M>(params).map(|(reply, _)| reply)
    }

    /// Calls a method and waits for its reply and the descriptor that may come with it.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn call_with_fd<M: Method>(
        &mut self,
        params: &M::Params,
    ) -> Result<(M::Reply, Option<OwnedFd>), ClientError> {
        self.call_with_fds::<M>(params).map(|(reply, mut fds)| (reply, fds.pop()))
    }

    /// Calls a method and waits for its reply and the descriptors that may come with it, in the method's order.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn call_with_fds<M: Method>(
        &mut self,
        params: &M::Params,
    ) -> Result<(M::Reply, Vec<OwnedFd>), ClientError> {
        let params = serde_json::to_value(params).map_err(|error| self.malformed(error.to_string()))?;
        self.exchange(M::NAME, params, &[])
    }

    /// Calls a method with descriptors, at most [`DESCRIPTORS_MAX`](crate::bounds::DESCRIPTORS_MAX), and waits for its
    /// reply.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn call_sending_fds<M: Method>(
        &mut self,
        params: &M::Params,
        fds: &[BorrowedFd<'_>],
    ) -> Result<M::Reply, ClientError> {
        let params = serde_json::to_value(params).map_err(|error| self.malformed(error.to_string()))?;
        self.exchange(M::NAME, params, fds).map(|(reply, _)| reply)
    }

    /// Calls a method by its name, with parameters and a reply of any shape.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn call_raw(&mut self, method: &str, params: Value) -> Result<Value, ClientError> {
        self.exchange(method, params, &[]).map(|(reply, _)| reply)
    }

    /// Waits for the next event of a daemon that [`MonitorMethod`](crate::MonitorMethod) was called of, for `patience`,
    /// or for ever.
    ///
    /// # Errors
    /// [`ClientError::Timeout`], or the daemon has ended the connection.
    pub fn next_event(&mut self, patience: Option<Duration>) -> Result<EventRecord, ClientError> {
        self.socket.set_read_timeout(patience).map_err(|error| self.failed(error))?;
        let (line, _) = self.receive_line()?;
        let message: EventMessage =
            serde_json::from_slice(&line).map_err(|error| self.malformed(format!("an event: {error}")))?;
        Ok(message.params)
    }

    /// Waits for the next bytes of a capture ([`CaptureMethod`](crate::CaptureMethod)), for `patience`, or for ever.
    ///
    /// # Errors
    /// [`ClientError::Timeout`], or the daemon has ended the connection.
    pub fn next_bytes(&mut self, patience: Option<Duration>) -> Result<Vec<u8>, ClientError> {
        if !self.pending.is_empty() {
            return Ok(std::mem::take(&mut self.pending));
        }
        self.socket.set_read_timeout(patience).map_err(|error| self.failed(error))?;
        let mut chunk = vec![0; CHUNK];
        let (length, _) =
            transfer::receive(&self.socket, &mut chunk).map_err(|error| self.failed(error.into()))?;
        if length == 0 {
            return Err(self.failed(io::ErrorKind::UnexpectedEof.into()));
        }
        chunk.truncate(length);
        Ok(chunk)
    }

    fn exchange<T: DeserializeOwned>(
        &mut self,
        method: &str,
        params: Value,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(T, Vec<OwnedFd>), ClientError> {
        self.last_id = self.last_id.wrapping_add(1);
        let id = Some(Id::Number(self.last_id));
        let request = Request { jsonrpc: Version::V2, id: id.clone(), method: method.to_owned(), params };
        let line = request.to_line().map_err(|error| self.malformed(error.to_string()))?;
        if line.len() > REQUEST_BYTES_MAX {
            return Err(ClientError::RequestTooLong { bytes: line.len() });
        }
        self.send(&line, fds)?;
        let (line, fds) = self.receive_line()?;
        let response: Response<T> =
            serde_json::from_slice(&line).map_err(|error| self.malformed(format!("{method}: {error}")))?;
        match (response.result, response.error) {
            // A request that could not be read is answered with a null id.
            (None, Some(error)) if response.id == id || response.id.is_none() => Err(error.into()),
            (Some(result), None) if response.id == id => Ok((result, fds)),
            (Some(_), None) | (None, Some(_)) => Err(self.malformed("the reply is not to this request")),
            (Some(_), Some(_)) => Err(self.malformed("the reply has both a result and an error")),
            (None, None) => Err(self.malformed("the reply has neither a result nor an error")),
        }
    }

    /// A daemon that refuses the connection itself answers and closes before it reads: its answer is
    /// worth more than the broken pipe.
    fn send(&self, mut bytes: &[u8], mut fds: &[BorrowedFd<'_>]) -> Result<(), ClientError> {
        while !bytes.is_empty() {
            match transfer::send(&self.socket, bytes, fds) {
                Ok(sent) => {
                    bytes = bytes.get(sent..).unwrap_or_default();
                    // They have gone with the first byte.
                    fds = &[];
                }
                Err(rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET) => break,
                Err(error) => return Err(self.failed(error.into())),
            }
        }
        Ok(())
    }

    /// Returns the next line without its newline, and the descriptors that came with it.
    fn receive_line(&mut self) -> Result<(Vec<u8>, Vec<OwnedFd>), ClientError> {
        let mut line = std::mem::take(&mut self.pending);
        let mut descriptors = Vec::new();
        let mut searched = 0;
        let mut chunk = [0; CHUNK];
        loop {
            let found = line.iter().skip(searched).position(|&byte| byte == b'\n');
            if let Some(end) = found.and_then(|at| at.checked_add(searched)) {
                self.pending = line.split_off(end.saturating_add(1));
                line.truncate(end);
                return Ok((line, descriptors));
            }
            searched = line.len();
            if line.len() > REPLY_BYTES_MAX {
                return Err(self.malformed(format!("a line of more than {REPLY_BYTES_MAX} bytes")));
            }
            let (length, fds) =
                transfer::receive(&self.socket, &mut chunk).map_err(|error| self.failed(error.into()))?;
            let Some(received) = chunk.get(..length).filter(|received| !received.is_empty()) else {
                return Err(self.failed(io::ErrorKind::UnexpectedEof.into()));
            };
            line.extend_from_slice(received);
            descriptors.extend(fds);
        }
    }

    fn failed(&self, source: io::Error) -> ClientError {
        let (daemon, path) = (self.daemon, self.path.clone());
        match source.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                ClientError::Timeout { daemon, path, waited: self.patience }
            }
            _ => ClientError::Lost { daemon, path, cause: source },
        }
    }

    fn malformed(&self, reason: impl Into<String>) -> ClientError {
        ClientError::Malformed { daemon: self.daemon, path: self.path.clone(), reason: reason.into() }
    }
}

fn denied(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied
}
