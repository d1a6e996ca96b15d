//! The socket's server: accepts, admits, and serves each client beside the others.

use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use iwarp_control::ErrorKind;
use tokio::net::{UnixListener, UnixStream};
use tokio::task::{JoinSet, LocalSet};

use super::connection::{Connection, Handler, Patience, turn_away};
use super::peer::{Peer, Policy, group_id};
pub use super::socket::BindError;
use super::socket::{SocketFile, listen};
use super::stats::SharedStats;

/// How long accepting rests after it failed, as it does when descriptors have run out.
const ACCEPT_REST: Duration = Duration::from_millis(100);

/// How long a client may leave its reply in the socket: as long as the library's client waits for one.
const REPLY_PATIENCE: Duration = Duration::from_secs(10);

/// How the socket is made and used.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// The socket's path.
    pub socket: PathBuf,
    /// Its mode, e.g. 0660.
    pub mode: u32,
    /// Its group, by name or number.
    pub group: Option<String>,
    /// Clients at a time.
    pub clients_max: usize,
    /// A client that sends no whole line for this long is let go.
    pub idle_timeout: Duration,
    /// A client that does not take its reply for this long is let go.
    pub reply_timeout: Duration,
}

impl From<&iwarp_config::Control> for ServerConfig {
    fn from(control: &iwarp_config::Control) -> Self {
        Self {
            socket: control.socket.clone(),
            mode: control.mode,
            group: control.group.clone(),
            clients_max: control.clients_max.into(),
            idle_timeout: Duration::from_millis(control.idle_timeout_ms.into()),
            reply_timeout: REPLY_PATIENCE,
        }
    }
}

/// A control socket that listens.
#[derive(Debug)]
pub struct Server {
    listener: std::os::unix::net::UnixListener,
    /// Removes the socket's file when the server goes.
    _file: SocketFile,
    policy: Policy,
    clients_max: usize,
    patience: Patience,
    stats: SharedStats,
}

impl Server {
    /// Makes the socket. A socket that a dead daemon left behind is replaced.
    ///
    /// # Errors
    /// Another daemon lives there, or the system refuses.
    pub fn bind(config: &ServerConfig) -> Result<Self, BindError> {
        let group = config.group.as_deref().map(group_id).transpose().map_err(BindError::Group)?;
        let gid = group.unwrap_or_else(|| rustix::process::getegid().as_raw());
        let (listener, file) = listen(&config.socket, config.mode, Some(gid))?;
        let group_may = config.mode & 0o060 != 0;
        let policy = Policy { uid: rustix::process::geteuid().as_raw(), gid: group_may.then_some(gid) };
        let patience = Patience { line: config.idle_timeout, reply: config.reply_timeout };
        let clients_max = config.clients_max;
        Ok(Self { listener, _file: file, policy, clients_max, patience, stats: SharedStats::default() })
    }

    /// The counters, which stay readable while the server runs.
    pub fn stats(&self) -> SharedStats {
        self.stats.clone()
    }

    /// Serves until `stop` is done; connections are then cut. Belongs on a current-thread runtime with I/O and time.
    ///
    /// # Errors
    /// The runtime does not take the socket.
    pub async fn run<H: Handler + 'static>(
        self,
        handler: Rc<H>,
        stop: impl Future<Output = ()>,
    ) -> io::Result<()> {
        let Self { listener, _file, policy, clients_max, patience, stats } = self;
        let listener = UnixListener::from_std(listener)?;
        let mut clients = JoinSet::new();
        let serve = async {
            let mut stop = std::pin::pin!(stop);
            loop {
                let accepted = tokio::select! {
                    biased;
                    () = &mut stop => break,
                    Some(_) = clients.join_next() => continue,
                    accepted = listener.accept() => accepted,
                };
                let Ok((stream, _)) = accepted else {
                    stats.count(|s| &mut s.accept_errors);
                    tokio::time::sleep(ACCEPT_REST).await;
                    continue;
                };
                if let Some(peer) = admit(&stream, policy, clients.len() < clients_max, &stats) {
                    let (handler, stats) = (Rc::clone(&handler), stats.clone());
                    clients.spawn_local(async move {
                        Connection::new(stream, peer, handler.as_ref(), stats, patience).serve().await;
                    });
                }
            }
            clients.shutdown().await;
        };
        LocalSet::new().run_until(serve).await;
        Ok(())
    }
}

/// Who the client is, if it is let in; else it is told why not.
fn admit(stream: &UnixStream, policy: Policy, room: bool, stats: &SharedStats) -> Option<Peer> {
    let Ok(peer) = Peer::of(stream) else {
        stats.count(|s| &mut s.accept_errors);
        return None;
    };
    if !policy.admits(&peer) {
        stats.count(|s| &mut s.refused_not_permitted);
        let message = format!("user {} may not control iwarpd", peer.uid);
        let help = "run as root, or join the socket's group (control.group in the configuration)";
        turn_away(stream, ErrorKind::NotPermitted, &message, help);
        return None;
    }
    if !room {
        stats.count(|s| &mut s.refused_too_many);
        let help = "try again later, or raise control.clients_max";
        turn_away(stream, ErrorKind::NoResources, "as many clients as configured are connected", help);
        return None;
    }
    stats.count(|s| &mut s.clients);
    Some(peer)
}
