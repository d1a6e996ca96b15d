//! The control socket of a server: requests of its clients, one thread per client.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use iwarp_control::bounds::{API, REQUEST_BYTES_MAX};
use iwarp_control::socket::{SocketFile, group_id, listen};
use iwarp_control::{BadLine, ErrorKind, ErrorObject, Hello, HelloReply, Method, Request, Response, params};

/// Clients at a time. Another one is refused.
const CLIENTS_MAX: usize = 16;
/// Time after which the system is asked again that has refused to accept a client.
const RETRY: Duration = Duration::from_millis(100);
/// Time in which a client sends a request and reads its reply.
const PATIENCE: Duration = Duration::from_secs(30);

/// Methods of a control socket. `hello` is answered without them.
pub trait Methods: Send + Sync + 'static {
    /// Names of all methods, `hello` included, for a client that asks for another one.
    const NAMES: &'static [&'static str];

    /// Executes a request, and answers by [`answer`].
    ///
    /// # Errors
    /// There is no method of this name: the request is returned.
    fn answer(&self, request: Request) -> Result<Answer, Request>;
}

/// Answer to a request, which [`answer`] makes.
#[derive(Debug)]
pub struct Answer(Option<Vec<u8>>);

/// The control socket. Its file is removed when this is dropped.
#[derive(Debug)]
pub struct ControlSocket {
    listener: UnixListener,
    _file: SocketFile,
}

impl ControlSocket {
    /// Makes the socket, which no other server may have, with this mode, for a group by its name or number. Messages
    /// name the keys `control.socket` and `control.group`.
    ///
    /// # Errors
    /// Another server listens there, or the system refuses.
    pub fn bind(socket: &Path, mode: u32, group: Option<&str>) -> Result<Self> {
        let group = group.map(group_id).transpose().context("control.group")?;
        let (listener, file) = listen(socket, mode, group, "control.socket")?;
        listener.set_nonblocking(false)?;
        Ok(Self { listener, _file: file })
    }

    /// Serves clients until the program ends, by threads of the name `thread`: at most 16 at a time, each of which is
    /// disconnected once it is silent for 30 s.
    ///
    /// # Errors
    /// The system refuses.
    pub fn serve<M: Methods>(&self, thread: &'static str, methods: Arc<M>) -> Result<()> {
        let listener = self.listener.try_clone()?;
        let accept = move || accept(&listener, thread, &methods);
        std::thread::Builder::new().name(thread.to_owned()).spawn(accept)?;
        Ok(())
    }
}

#[allow(clippy::disallowed_methods, reason = "the thread waits before it asks the system again")]
fn accept<M: Methods>(listener: &UnixListener, thread: &str, methods: &Arc<M>) {
    let open = Arc::new(AtomicUsize::new(0));
    for stream in listener.incoming() {
        let Ok(mut stream) = stream else {
            // No file or memory to be had for the moment.
            std::thread::sleep(RETRY);
            continue;
        };
        let limits =
            stream.set_read_timeout(Some(PATIENCE)).and_then(|()| stream.set_write_timeout(Some(PATIENCE)));
        if limits.is_err() {
            continue;
        }
        if open.fetch_add(1, Ordering::AcqRel) >= CLIENTS_MAX {
            open.fetch_sub(1, Ordering::AcqRel);
            let message = format!("{CLIENTS_MAX} clients are connected to the control socket");
            let refusal = Response::<()>::failure(None, ErrorObject::new(ErrorKind::NoResources, message));
            let _ = refusal.to_line().map(|line| stream.write_all(&line));
            continue;
        }
        let (methods, counted) = (Arc::clone(methods), Arc::clone(&open));
        let serve = move || {
            let _ = serve(&stream, methods.as_ref());
            counted.fetch_sub(1, Ordering::AcqRel);
        };
        if std::thread::Builder::new().name(thread.to_owned()).spawn(serve).is_err() {
            open.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// Answers the requests of a client until it disconnects, or is silent for too long.
fn serve<M: Methods>(stream: &UnixStream, methods: &M) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut line = Vec::new();
    loop {
        line.clear();
        let limit = REQUEST_BYTES_MAX as u64;
        let read = Read::by_ref(&mut reader).take(limit).read_until(b'\n', &mut line)?;
        if read == 0 {
            return Ok(());
        }
        let whole = line.ends_with(b"\n");
        let reply = if whole || read < REQUEST_BYTES_MAX {
            reply(&line, methods)
        } else {
            let message = format!("the line is longer than {REQUEST_BYTES_MAX} bytes");
            refused(None, ErrorObject::new(ErrorKind::TooLarge, message))
        };
        if let Some(reply) = reply {
            (&*stream).write_all(&reply)?;
        }
        if !whole {
            return Ok(());
        }
    }
}

fn refused(id: Option<iwarp_control::Id>, error: ErrorObject) -> Option<Vec<u8>> {
    Response::<()>::failure(id, error).to_line().ok()
}

/// Returns the reply to a line; `None` if the client wants none.
fn reply<M: Methods>(line: &[u8], methods: &M) -> Option<Vec<u8>> {
    let request = match Request::from_line(line) {
        Ok(request) => request,
        Err(BadLine::NotJson(error)) => return refused(None, error),
        Err(BadLine::NotARequest(id, error)) => return refused(id, error),
    };
    let replies = request.id.is_some();
    let answered = if request.method == Hello::NAME {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        Ok(answer::<Hello>(request, || Ok(HelloReply { api: API, version, pid: std::process::id() })))
    } else {
        methods.answer(request)
    };
    let reply = match answered {
        Ok(Answer(reply)) => reply,
        Err(request) => {
            let message = format!("there is no method `{}`", request.method);
            let error = ErrorObject::new(ErrorKind::UnknownMethod, message);
            refused(request.id, error.with_help(format!("methods: {}", M::NAMES.join(", "))))
        }
    };
    reply.filter(|_| replies)
}

/// Answers a request of a method by what `work` returns, if its parameters are those of the method.
pub fn answer<M: Method>(request: Request, work: impl FnOnce() -> Result<M::Reply, ErrorObject>) -> Answer {
    Answer(match params::<M>(request.params).and_then(|_| work()) {
        Ok(result) => Response::success(request.id, result).to_line().ok(),
        Err(error) => refused(request.id, error),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    /// A server whose only method fails.
    struct Failing;

    impl Methods for Failing {
        const NAMES: &'static [&'static str] = &["hello", "status"];

        fn answer(&self, request: Request) -> Result<Answer, Request> {
            match request.method.as_str() {
                "status" => Ok(answer::<iwarp_control::StatusMethod>(request, || {
                    Err(ErrorObject::new(ErrorKind::Internal, "no status"))
                })),
                _ => Err(request),
            }
        }
    }

    fn asked(request: &str) -> Option<String> {
        reply(request.as_bytes(), &Failing).map(|reply| String::from_utf8(reply).unwrap())
    }

    fn called(method: &str, params: &str) -> String {
        let head = r#"{"jsonrpc":"2.0","id":1,"method":"#;
        asked(&format!("{head}\"{method}\",\"params\":{params}}}\n")).unwrap()
    }

    #[test]
    fn requests_have_answers_and_notifications_have_none() {
        assert!(called("hello", "{}").contains(&format!("\"pid\":{}", std::process::id())));
        assert!(called("status", "{}").contains("no status"));
        assert!(
            called("status", r#"{"no":1}"#).contains("error"),
            "parameters that the method does not have"
        );
        let other = called("reboot", "{}");
        assert!(other.contains("there is no method `reboot`") && other.contains("methods: hello, status"));
        assert!(asked("no JSON\n").unwrap().contains("error"));
        assert_eq!(asked("{\"jsonrpc\":\"2.0\",\"method\":\"hello\",\"params\":{}}\n"), None);
    }

    #[test]
    fn a_socket_answers_line_by_line_and_refuses_the_client_after_the_last() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control.sock");
        let socket = ControlSocket::bind(&path, 0o600, None).unwrap();
        assert!(ControlSocket::bind(&path, 0o600, None).is_err(), "another server has it");
        socket.serve("control", Arc::new(Failing)).unwrap();
        let line = |stream: &UnixStream| {
            let mut line = String::new();
            BufReader::new(stream).read_line(&mut line).unwrap();
            line
        };
        let clients: Vec<_> = (0..CLIENTS_MAX).map(|_| UnixStream::connect(&path).unwrap()).collect();
        for mut client in &clients {
            client.write_all(b"{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"hello\",\"params\":{}}\n").unwrap();
            assert!(line(client).contains("\"id\":7"));
        }
        assert!(line(&UnixStream::connect(&path).unwrap()).contains("16 clients are connected"));
    }
}
