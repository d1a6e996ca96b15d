//! What the control side asks of a worker, between two rounds.
//!
//! A command goes through a bounded ring and is answered through a one-shot channel. That answer is the
//! quiescent point: when a worker has answered [`Command::RegionRevoke`], it touches the region no more.

use std::sync::Arc;

use ipnet::IpNet;
use rdma::RegionId;
use rdma::service::RegionEntry;
use tokio::sync::oneshot;

use crate::dpdk::PortQueues;
use crate::engine::ConnRow;
use crate::memory::RegionMemory;

/// Why a worker could not do as it was told.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("worker {worker}: {what}")]
pub struct CommandError {
    /// Worker index.
    pub worker: usize,
    /// What stood in the way.
    pub what: String,
}

/// What one worker knows of a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegionUse {
    /// Grants that are valid now.
    pub grants: u64,
    /// Bytes placed by peers since the region exists.
    pub bytes_placed: u64,
    /// Bytes fetched by peers since the region exists.
    pub bytes_fetched: u64,
}

/// A page of a worker's connections.
#[derive(Debug)]
pub struct ConnPage {
    /// Rows, at most as many as the vector sent had capacity for.
    pub rows: Vec<(usize, ConnRow)>,
    /// Where the next page begins, `None` after the last.
    pub next: Option<(usize, u32)>,
}

/// A choice of connections, to be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnSelector {
    /// The one with a port index, a slab index and the low bits of a generation.
    One {
        /// Index of the port.
        port: usize,
        /// Its slab index.
        index: u32,
        /// The [low bits](Self::GENERATION_MASK) of its generation.
        generation: u32,
    },
    /// Those with a peer of this prefix.
    Peer(IpNet),
    /// Those that a listener on this TCP port accepted.
    Listener(u16),
}

impl ConnSelector {
    /// The bits of a generation that a connection's number carries.
    pub const GENERATION_MASK: u32 = 0xf_ffff;

    /// True for a connection of a port that is one of them.
    pub fn has(&self, of_port: usize, row: &ConnRow) -> bool {
        match *self {
            Self::One { port, index, generation } => {
                (port, index) == (of_port, row.id.index())
                    && generation == row.id.generation() & Self::GENERATION_MASK
            }
            Self::Peer(prefix) => prefix.contains(&row.tcp.remote.ip()),
            Self::Listener(tcp_port) => row.tcp.listener.is_some() && row.tcp.local.port() == tcp_port,
        }
    }
}

/// A command.
#[derive(Debug)]
pub enum Command {
    /// Offer a region to peers.
    RegionAdd {
        /// The region, as the service sees it.
        entry: Box<RegionEntry>,
        /// Its memory; `None` for a region that was hidden and is offered again.
        memory: Option<Arc<RegionMemory>>,
        /// Whether it worked.
        reply: oneshot::Sender<Result<(), CommandError>>,
    },
    /// Grant no more on a region; answers how many grants there are.
    RegionHide {
        /// Its name.
        name: String,
        /// Its number.
        region: RegionId,
        /// Grants that are valid.
        reply: oneshot::Sender<u64>,
    },
    /// Revoke every grant and let go of the memory; answers how many grants were revoked.
    RegionRevoke {
        /// Its number.
        region: RegionId,
        /// Grants revoked.
        reply: oneshot::Sender<u64>,
    },
    /// What the worker knows of a region.
    RegionUse {
        /// Its number.
        region: RegionId,
        /// The answer.
        reply: oneshot::Sender<RegionUse>,
    },
    /// A page of connections.
    Conns {
        /// Port index and slab index to begin at.
        from: (usize, u32),
        /// An empty vector with room for the page: the worker does not allocate it.
        rows: Vec<(usize, ConnRow)>,
        /// The answer.
        reply: oneshot::Sender<ConnPage>,
    },
    /// Reset connections; answers which.
    ConnsClose {
        /// The choice.
        selector: ConnSelector,
        /// Port index and slab index to begin at.
        from: (usize, u32),
        /// An empty vector with room for the page: the worker does not allocate it, and closes no more.
        rows: Vec<(usize, ConnRow)>,
        /// The answer.
        reply: oneshot::Sender<ConnPage>,
    },
    /// One connection.
    Conn {
        /// Index of the port.
        port: usize,
        /// Its slab index.
        index: u32,
        /// The answer.
        reply: oneshot::Sender<Option<ConnRow>>,
    },
    /// Give up the queues of a port that is gone; answers when they are.
    Detach {
        /// Index of the port.
        port: usize,
        /// It is done.
        reply: oneshot::Sender<()>,
    },
    /// Take queues of a port that has returned.
    Attach {
        /// Index of the port.
        port: usize,
        /// The queues.
        queues: Box<PortQueues>,
    },
    /// Reset every connection, send what that takes, and end.
    Stop,
}
