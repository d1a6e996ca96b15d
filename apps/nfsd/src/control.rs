//! The control socket: answers `iwarpctl nfs`, one thread per client.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use iwarp_config::NfsdControl;
use iwarp_control::bounds::{API, REQUEST_BYTES_MAX};
use iwarp_control::nfs::{
    ClientsMethod, ExportsMethod, Hello, ReloadMethod, Reloaded, StatsMethod, StatusMethod,
};
use iwarp_control::socket::{SocketFile, group_id, listen};
use iwarp_control::{BadLine, ErrorKind, ErrorObject, HelloReply, Method, Request, Response, params};
use serde::Serialize;

use crate::running::Running;

/// Clients at a time. Another one is refused.
const CLIENTS_MAX: usize = 16;
/// Time after which the system is asked again that has refused to accept a client.
const RETRY: Duration = Duration::from_millis(100);
/// Time in which a client sends a request and reads its reply.
const PATIENCE: Duration = Duration::from_secs(30);

/// The control socket. Its file is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct ControlSocket {
    listener: UnixListener,
    _file: SocketFile,
}

impl ControlSocket {
    /// Makes the socket, which no other server may have.
    ///
    /// # Errors
    /// Another server listens there, or the system refuses.
    pub(crate) fn bind(config: &NfsdControl) -> Result<Self> {
        let group = config.group.as_deref().map(group_id).transpose().context("control.group")?;
        let (listener, file) = listen(&config.socket, config.mode, group, "control.socket")?;
        listener.set_nonblocking(false)?;
        Ok(Self { listener, _file: file })
    }

    /// Serves clients until the program ends.
    ///
    /// # Errors
    /// The system refuses.
    pub(crate) fn serve(&self, running: Arc<Running>) -> Result<()> {
        let listener = self.listener.try_clone()?;
        let accept = move || accept(&listener, &running);
        std::thread::Builder::new().name("nfsd-control".to_owned()).spawn(accept)?;
        Ok(())
    }
}

#[allow(clippy::disallowed_methods, reason = "the thread waits before it asks the system again")]
fn accept(listener: &UnixListener, running: &Arc<Running>) {
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
        let (running, counted) = (Arc::clone(running), Arc::clone(&open));
        let serve = move || {
            let _ = serve(&stream, &running);
            counted.fetch_sub(1, Ordering::AcqRel);
        };
        if std::thread::Builder::new().name("nfsd-control".to_owned()).spawn(serve).is_err() {
            open.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// Answers the requests of a client until it disconnects, or is silent for too long.
fn serve(stream: &UnixStream, running: &Running) -> std::io::Result<()> {
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
            answer(&line, running)
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
pub(crate) fn answer(line: &[u8], running: &Running) -> Option<Vec<u8>> {
    let request = match Request::from_line(line) {
        Ok(request) => request,
        Err(BadLine::NotJson(error)) => return refused(None, error),
        Err(BadLine::NotARequest(id, error)) => return refused(id, error),
    };
    let replies = request.id.is_some();
    let reply = match request.method.as_str() {
        Hello::NAME => call::<Hello>(request, || {
            let version = env!("CARGO_PKG_VERSION").to_owned();
            Ok(HelloReply { api: API, version, pid: std::process::id() })
        }),
        StatusMethod::NAME => call::<StatusMethod>(request, || Ok(running.status())),
        ExportsMethod::NAME => call::<ExportsMethod>(request, || Ok(running.server.exports_report())),
        ClientsMethod::NAME => call::<ClientsMethod>(request, || Ok(running.server.clients_report())),
        StatsMethod::NAME => call::<StatsMethod>(request, || Ok(running.server.stats_report())),
        ReloadMethod::NAME => call::<ReloadMethod>(request, || {
            let loaded = running.reload().map(|exports| Reloaded { exports: exports as u64 });
            loaded.map_err(|error| {
                let message = format!("the exports stay as they are: {error:#}");
                ErrorObject::new(ErrorKind::InvalidParams, message).with_help(
                    "correct the file, check it with `iwarp-nfsd --check --machine`, and reload again",
                )
            })
        }),
        other => {
            let error = ErrorObject::new(ErrorKind::UnknownMethod, format!("there is no method `{other}`"));
            refused(
                request.id,
                error.with_help(format!("methods: {}", iwarp_control::nfs::METHODS.join(", "))),
            )
        }
    };
    reply.filter(|_| replies)
}

fn call<M: Method>(request: Request, work: impl FnOnce() -> Result<M::Reply, ErrorObject>) -> Option<Vec<u8>>
where
    M::Reply: Serialize,
{
    match params::<M>(request.params).and_then(|_| work()) {
        Ok(result) => Response::success(request.id, result).to_line().ok(),
        Err(error) => refused(request.id, error),
    }
}
