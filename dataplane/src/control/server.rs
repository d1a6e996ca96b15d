//! Server of the control socket: accepts clients, checks their admission, and serves them concurrently on one thread.

use std::future::Future;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

pub use iwarp_control::socket::BindError;
use iwarp_control::socket::{SocketFile, listen};
use iwarp_control::{ErrorKind, ErrorObject};
use tokio::net::UnixListener;
use tokio::task::{JoinSet, LocalSet};

use super::connection::{ClientLimits, Connection, Handler, reject};
use super::peer::Peer;
use super::receiver::Connected;
use super::settings::SharedSettings;
use super::stats::SharedStats;
use super::threads::{NOBODY, Threads};

/// Pause after a failed accept, such as when descriptors have run out.
const ACCEPT_REST: Duration = Duration::from_millis(100);

/// Longest time to read a reply, the same as the client library's timeout.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// Slots beyond [`ServerConfig::clients_max`] reserved for root, so that idle clients, including forgotten ones of
/// root, cannot lock the administrator out.
const ROOT_SLOTS: usize = 1;

/// Idle timeout in a reserved slot: long enough for a command, too short to occupy the slot.
const ROOT_SLOT_TIMEOUT: Duration = Duration::from_secs(2);

/// Settings of a socket.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Table of the configuration that the settings are from, for messages.
    pub table: &'static str,
    /// Key of the socket, for messages.
    pub socket_key: &'static str,
    /// Key of the most clients, for messages.
    pub clients_max_key: &'static str,
    /// Path of the socket file.
    pub socket: PathBuf,
    /// File mode of the socket, such as 0660.
    pub mode: u32,
    /// Group of the socket file, by name or number.
    pub group: Option<String>,
    /// Most clients connected at the same time.
    pub clients_max: usize,
    /// Most clients of one user connected at the same time. Root is limited if `limits_root` is set.
    pub user_clients_max: usize,
    /// Key of the most clients of one user, for messages.
    pub user_clients_max_key: &'static str,
    /// True if `user_clients_max` holds for root, too.
    pub limits_root: bool,
    /// Idle timeout: a client that sends no whole line for this long is disconnected; `None`: it may be silent.
    pub idle_timeout: Option<Duration>,
    /// Reply timeout: a client that does not read its reply for this long is disconnected.
    pub reply_timeout: Duration,
}

impl From<&iwarp_config::Control> for ServerConfig {
    fn from(control: &iwarp_config::Control) -> Self {
        Self {
            table: "control",
            socket_key: "control.socket",
            clients_max_key: "control.clients_max",
            socket: control.socket.clone(),
            mode: control.mode,
            group: control.group.clone(),
            clients_max: control.clients_max.into(),
            // One member of the group leaves half of the places to the others.
            user_clients_max: usize::from(control.clients_max).div_ceil(2),
            user_clients_max_key: "control.clients_max",
            limits_root: false,
            idle_timeout: Some(Duration::from_millis(control.idle_timeout_ms.into())),
            reply_timeout: REPLY_TIMEOUT,
        }
    }
}

impl From<&iwarp_config::Applications> for ServerConfig {
    fn from(applications: &iwarp_config::Applications) -> Self {
        Self {
            table: "applications",
            socket_key: "applications.socket",
            clients_max_key: "applications.contexts_max",
            socket: applications.socket.clone(),
            mode: applications.mode,
            group: applications.group.clone(),
            clients_max: applications.contexts_max.into(),
            user_clients_max: applications.user.contexts_max.into(),
            user_clients_max_key: "applications.user_contexts_max",
            limits_root: true,
            // A program that posts and polls in shared memory is silent here.
            idle_timeout: None,
            reply_timeout: REPLY_TIMEOUT,
        }
    }
}

/// A socket that listens for clients.
#[derive(Debug)]
pub struct Server {
    listener: std::os::unix::net::UnixListener,
    /// Removes the socket file when the server is dropped.
    _file: SocketFile,
    settings: SharedSettings,
    stats: SharedStats,
}

impl Server {
    /// Creates the socket. A socket file left behind by a dead daemon is replaced.
    ///
    /// # Errors
    /// Another daemon listens there, or the system refuses.
    pub fn bind(config: &ServerConfig) -> Result<Self, BindError> {
        let (settings, gid) = SharedSettings::new(config)?;
        let (listener, file) = listen(&config.socket, config.mode, Some(gid), config.socket_key)?;
        Ok(Self { listener, _file: file, settings, stats: SharedStats::default() })
    }

    /// Returns the settings, which can be changed while the server runs.
    pub fn settings(&self) -> SharedSettings {
        self.settings.clone()
    }

    /// Returns the counters, which stay readable while the server runs.
    pub fn stats(&self) -> SharedStats {
        self.stats.clone()
    }

    /// Serves until `stop` completes, then closes all connections. Must run on a current-thread runtime with I/O and
    /// time.
    ///
    /// # Errors
    /// The runtime cannot register the socket.
    pub async fn run<H: Handler + 'static>(
        self,
        handler: Rc<H>,
        stop: impl Future<Output = ()>,
    ) -> io::Result<()> {
        let Self { listener, _file, settings, stats } = self;
        let listener = UnixListener::from_std(listener)?;
        let (mut clients, threads) = (JoinSet::new(), Threads::default());
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
                if let Some((peer, client, limits)) = admit::<H>(stream, &settings, &threads, &stats) {
                    let session = match handler.open(&peer) {
                        Ok(session) => session,
                        Err(error) => {
                            stats.count(|s| &mut s.refused_too_many);
                            client.reject(error);
                            continue;
                        }
                    };
                    stats.count(|s| &mut s.clients);
                    let (handler, stats) = (Rc::clone(&handler), stats.clone());
                    clients.spawn_local(async move {
                        Connection::new(client, session, handler.as_ref(), stats, limits).serve().await;
                    });
                }
            }
            clients.shutdown().await;
        };
        LocalSet::new().run_until(serve).await;
        // Closes the sockets that nobody has accepted, and the descriptors in them. The process may end meanwhile.
        let listener = listener.into_std()?;
        std::thread::Builder::new().name("closer".to_owned()).spawn(move || drop(listener)).map(drop)
    }
}

/// Kind of slot that the next client would get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    Ordinary,
    /// A slot reserved for root.
    Reserved,
    None,
}

impl Slot {
    /// Returns the slot of the next client when `connected` clients are connected.
    const fn of(connected: usize, clients_max: usize) -> Self {
        if connected < clients_max {
            Self::Ordinary
        } else if connected < clients_max.saturating_add(ROOT_SLOTS) {
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

    fn limits(self, limits: ClientLimits) -> ClientLimits {
        match self {
            Self::Reserved => ClientLimits {
                line: Some(limits.line.map_or(ROOT_SLOT_TIMEOUT, |line| line.min(ROOT_SLOT_TIMEOUT))),
                streams: false,
                ..limits
            },
            Self::Ordinary | Self::None => limits,
        }
    }
}

/// Starts the thread of an admitted client; sends the reason to a rejected one. The socket is closed on other threads.
fn admit<H: Handler>(
    stream: tokio::net::UnixStream,
    settings: &SharedSettings,
    threads: &Threads,
    stats: &SharedStats,
) -> Option<(Peer, Connected<H::Descriptors>, ClientLimits)> {
    let peer = Peer::of(&stream);
    // Fails only if the socket is not registered with the runtime, which has just registered it.
    let socket: Arc<UnixStream> = Arc::new(stream.into_std().ok()?);
    let Ok(peer) = peer else {
        stats.count(|s| &mut s.accept_errors);
        threads.close(NOBODY, socket);
        return None;
    };
    let slot = match place(&peer, settings, threads, stats) {
        Ok(slot) => slot,
        Err(error) => {
            reject(&socket, error);
            threads.close(peer.uid, socket);
            return None;
        }
    };
    match Connected::start::<H>(socket, peer.uid, threads) {
        Ok(client) => Some((peer, client, slot.limits(settings.client_limits()))),
        Err(_) => {
            stats.count(|s| &mut s.accept_errors);
            None
        }
    }
}

/// Returns the slot of a client.
///
/// # Errors
/// The client is rejected, with the reason.
fn place(
    peer: &Peer,
    settings: &SharedSettings,
    threads: &Threads,
    stats: &SharedStats,
) -> Result<Slot, ErrorObject> {
    let config = settings.config();
    if !settings.policy().admits(peer) {
        stats.count(|s| &mut s.refused_not_permitted);
        let message = format!("user {} may not use this socket of iwarpd", peer.uid);
        let help =
            format!("run as root, or join the socket's group ({}.group in the configuration)", config.table);
        return Err(ErrorObject::new(ErrorKind::NotPermitted, message).with_help(help));
    }
    let (connected, of_user) = threads.count(peer.uid);
    let refused = |message: String, key: &str| {
        stats.count(|s| &mut s.refused_too_many);
        let help = format!("end another client, or raise {key} and reload");
        Err(ErrorObject::new(ErrorKind::NoResources, message).with_help(help))
    };
    let slot = Slot::of(connected, config.clients_max);
    if !slot.takes(peer.uid) {
        let message =
            format!("{connected} clients are connected, as many as {} allows", config.clients_max_key);
        return refused(message, config.clients_max_key);
    }
    if of_user >= config.user_clients_max && (config.limits_root || peer.uid != 0) {
        let (uid, key) = (peer.uid, config.user_clients_max_key);
        let message = format!("user {uid} has {of_user} connections, as many as {key} allows one user");
        return refused(message, key);
    }
    Ok(slot)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_slot_is_reserved_for_root() {
        for clients_max in [1, 2, 64, 1024] {
            for (connected, user, root) in [
                (0, true, true),
                (clients_max - 1, true, true),
                (clients_max, false, true),
                (clients_max + ROOT_SLOTS, false, false),
            ] {
                let slot = Slot::of(connected, clients_max);
                assert_eq!((slot.takes(1000), slot.takes(0)), (user, root), "{connected} of {clients_max}");
            }
        }
    }
}
