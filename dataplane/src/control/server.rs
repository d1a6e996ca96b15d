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

/// Places beyond [`ServerConfig::clients_max`] that only root gets, so that idle clients of others, and programs of root's
/// own that forget theirs, do not lock the administrator out.
const ROOT_PLACES: usize = 1;

/// How long the client in such a place may be silent: long enough for a command, too short to keep the place.
const ROOT_PLACE_PATIENCE: Duration = Duration::from_secs(2);

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
                let place = Place::of(clients.len(), clients_max);
                if let Some(peer) = admit(&stream, policy, place, &stats) {
                    let patience = place.patience(patience);
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

/// The place that the next client gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Ordinary,
    /// For root alone.
    Reserved,
    None,
}

impl Place {
    /// The next place when so many clients are connected.
    const fn of(connected: usize, clients_max: usize) -> Self {
        if connected < clients_max {
            Self::Ordinary
        } else if connected < clients_max.saturating_add(ROOT_PLACES) {
            Self::Reserved
        } else {
            Self::None
        }
    }

    const fn takes(self, uid: u32) -> bool {
        match self {
            Self::Ordinary => true,
            Self::Reserved => uid == 0,
            Self::None => false,
        }
    }

    fn patience(self, patience: Patience) -> Patience {
        match self {
            Self::Reserved => Patience { line: patience.line.min(ROOT_PLACE_PATIENCE), ..patience },
            Self::Ordinary | Self::None => patience,
        }
    }
}

/// Who the client is, if it is let in; else it is told why not.
fn admit(stream: &UnixStream, policy: Policy, place: Place, stats: &SharedStats) -> Option<Peer> {
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
    if !place.takes(peer.uid) {
        stats.count(|s| &mut s.refused_too_many);
        let help = "try again later, or raise control.clients_max";
        turn_away(stream, ErrorKind::NoResources, "as many clients as configured are connected", help);
        return None;
    }
    stats.count(|s| &mut s.clients);
    Some(peer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_place_is_root_s() {
        for clients_max in [1, 2, 64, 1024] {
            for (connected, user, root) in [
                (0, true, true),
                (clients_max - 1, true, true),
                (clients_max, false, true),
                (clients_max + ROOT_PLACES, false, false),
            ] {
                let place = Place::of(connected, clients_max);
                assert_eq!((place.takes(1000), place.takes(0)), (user, root), "{connected} of {clients_max}");
            }
        }
    }
}
