//! Commands of a reload and of a drain: they change what the engines of a running worker accept.

use std::sync::Arc;

use iwarp_engine::{DrainPage, GrantRule, ListenerSetup};
use rdma::service::RegionEntry;
use tcp_stack::Instant;
use tokio::sync::oneshot;

use super::{CommandError, WorkerPort};

/// Place in a worker's connections: index of the port, and slab index.
pub type Cursor = (usize, u32);

/// A command of a reload or of a drain.
#[derive(Debug)]
pub enum SettingsCommand {
    /// Listens on a TCP port.
    Listen {
        /// The listener, as the configuration has it.
        setup: Box<ListenerSetup>,
        /// Receives success, or the error of the first port that refuses; others listen then.
        reply: oneshot::Sender<Result<(), CommandError>>,
    },
    /// Changes options or the service of a listener.
    ChangeListener {
        /// The listener, with its new settings.
        setup: Box<ListenerSetup>,
        /// Receives success, or the error of the first port that refuses.
        reply: oneshot::Sender<Result<(), CommandError>>,
    },
    /// Stops listening on a TCP port.
    Unlisten {
        /// TCP port that no longer accepts connections.
        port: u16,
        /// Receives a notice when no port listens any more.
        reply: oneshot::Sender<()>,
    },
    /// Changes rights, token and prefixes of a region for new requests.
    ChangeRegion {
        /// The region, with its new settings.
        entry: Box<RegionEntry>,
        /// Receives a notice when they hold.
        reply: oneshot::Sender<()>,
    },
    /// Revokes the grants that do not meet a rule, one page of connections.
    RevokeUnless {
        /// Condition that grants must meet.
        rule: Arc<GrantRule>,
        /// Place to begin at.
        from: Cursor,
        /// Receives the number of revoked grants, and where the next page begins.
        reply: oneshot::Sender<(u64, Option<Cursor>)>,
    },
    /// Sets limits of STags and of connections.
    Limits {
        /// Most valid STags per port.
        stags_max: u32,
        /// Most connections from one source per port.
        connections_per_source_max: u32,
        /// Receives a notice when they hold.
        reply: oneshot::Sender<()>,
    },
    /// Stops accepting and opening connections.
    StopAccepting {
        /// Receives a notice when no port accepts any more.
        reply: oneshot::Sender<()>,
    },
    /// Closes idle connections, one page.
    Drain {
        /// Place to begin at.
        from: Cursor,
        /// Receives the number of connections that have not ended, and where the next page begins.
        reply: oneshot::Sender<(u64, Option<Cursor>)>,
    },
    /// Resets every connection. Frames that the worker transmits through another one are in that worker's ring then.
    Reset {
        /// Receives a notice when the RSTs have left the worker.
        reply: oneshot::Sender<()>,
    },
}

impl SettingsCommand {
    /// Carries out the command on the ports of a worker. A requester that has gone misses the answer.
    pub(super) fn run(self, worker: usize, now: Instant, ports: &mut [WorkerPort]) {
        let refused = |what: String| CommandError { worker, what };
        match self {
            Self::Listen { setup, reply } => {
                let ListenerSetup { port, options, service } = *setup;
                let listening = ports.iter_mut().try_for_each(|at| {
                    at.engine_mut().listen(port, options, service.clone()).map_err(|e| refused(e.to_string()))
                });
                let _ = reply.send(listening);
            }
            Self::ChangeListener { setup, reply } => {
                let changed = ports.iter_mut().try_for_each(|at| {
                    at.engine_mut().change_listener(now, (*setup).clone()).map_err(|e| refused(e.to_string()))
                });
                let _ = reply.send(changed);
            }
            Self::Unlisten { port, reply } => {
                ports.iter_mut().for_each(|at| at.engine_mut().remove_listener(now, port));
                let _ = reply.send(());
            }
            Self::ChangeRegion { entry, reply } => {
                ports.iter_mut().for_each(|at| at.engine_mut().change_region((*entry).clone()));
                let _ = reply.send(());
            }
            Self::RevokeUnless { rule, from: (port, cursor), reply } => {
                let page = ports.get_mut(port).map(|at| at.engine_mut().revoke_unless(&rule, cursor));
                let (revoked, next) = page.unwrap_or_default();
                let _ = reply.send((revoked, following(port, next, ports.len())));
            }
            Self::Limits { stags_max, connections_per_source_max, reply } => {
                for at in ports {
                    at.engine_mut().set_limits(stags_max, connections_per_source_max);
                }
                let _ = reply.send(());
            }
            Self::StopAccepting { reply } => {
                ports.iter_mut().for_each(|at| at.engine_mut().stop_accepting(now));
                let _ = reply.send(());
            }
            Self::Drain { from: (port, cursor), reply } => {
                let page = ports.get_mut(port).map(|at| at.engine_mut().drain(now, cursor));
                let DrainPage { open, next } = page.unwrap_or_default();
                let _ = reply.send((open, following(port, next, ports.len())));
            }
            Self::Reset { reply } => {
                ports.iter_mut().for_each(|at| at.shut_down(now));
                let _ = reply.send(());
            }
        }
    }
}

/// Returns where the next page begins after one of `port`.
fn following(port: usize, next: Option<u32>, ports: usize) -> Option<Cursor> {
    match next {
        Some(cursor) => Some((port, cursor)),
        None => Some((port.saturating_add(1), 0)).filter(|(port, _)| *port < ports),
    }
}
