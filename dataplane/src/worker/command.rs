//! Commands that the control side sends to a worker. The worker carries them out between two poll iterations.
//!
//! A command travels through a bounded ring and is answered through a one-shot channel. The answer is the quiescent
//! point: after a worker has answered [`Command::RegionRevoke`], it does not touch the region any more.

use std::sync::Arc;

use iwarp_engine::memory::RegionMemory;
use iwarp_engine::{ConnRow, ConnSelector};
use rdma::RegionId;
use rdma::service::RegionEntry;
use tokio::sync::oneshot;

use super::{ContextCommand, SettingsCommand, WatchCommand};
use crate::capture::Tap;
use crate::port::PortQueues;

/// Error of a worker that could not carry out a command.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("worker {worker}: {what}")]
pub struct CommandError {
    /// Index of the worker.
    pub worker: usize,
    /// Cause of the failure.
    pub what: String,
}

/// Use of a region on one worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegionUse {
    /// Grants that are valid now.
    pub grants: u64,
    /// Bytes placed by peers since the region was registered.
    pub bytes_placed: u64,
    /// Bytes fetched by peers since the region was registered.
    pub bytes_fetched: u64,
}

/// A page of a worker's connections.
#[derive(Debug)]
pub struct ConnPage {
    /// Port index and row of each connection; at most as many as the request's vector has capacity for.
    pub rows: Vec<(usize, ConnRow)>,
    /// Port index and slab index at which the next page begins; `None` after the last page.
    pub next: Option<(usize, u32)>,
}

/// A command to a worker.
#[derive(Debug)]
pub enum Command {
    /// Offers a region to peers.
    RegionAdd {
        /// Entry for the region service.
        entry: Box<RegionEntry>,
        /// Memory of the region; `None` if the region was hidden and is offered again.
        memory: Option<Arc<RegionMemory>>,
        /// Receives success, or the worker's error.
        reply: oneshot::Sender<Result<(), CommandError>>,
    },
    /// Stops granting a region. The answer is the number of grants that stay valid.
    RegionHide {
        /// Name of the region.
        name: String,
        /// Number of the region.
        region: RegionId,
        /// Receives the number of valid grants.
        reply: oneshot::Sender<u64>,
    },
    /// Revokes every grant and drops the memory. The answer is the number of grants revoked.
    RegionRevoke {
        /// Number of the region.
        region: RegionId,
        /// Receives the number of revoked grants.
        reply: oneshot::Sender<u64>,
    },
    /// Reports the use of a region.
    RegionUse {
        /// Number of the region.
        region: RegionId,
        /// Receives grants and byte counts.
        reply: oneshot::Sender<RegionUse>,
    },
    /// Reports a page of connections.
    Conns {
        /// Port index and slab index to begin at.
        from: (usize, u32),
        /// An empty vector with capacity for the page: the worker allocates nothing.
        rows: Vec<(usize, ConnRow)>,
        /// Receives a page of rows.
        reply: oneshot::Sender<ConnPage>,
    },
    /// Resets connections. The answer lists them.
    ConnsClose {
        /// Selection of connections to reset.
        selector: ConnSelector,
        /// Port index and slab index to begin at.
        from: (usize, u32),
        /// An empty vector with capacity for the page: the worker allocates nothing, and resets no more than fit.
        rows: Vec<(usize, ConnRow)>,
        /// Receives the page of reset connections.
        reply: oneshot::Sender<ConnPage>,
    },
    /// Reports one connection's row.
    Conn {
        /// Index of the port.
        port: usize,
        /// Slab index of the connection.
        index: u32,
        /// Receives the row, if there is such a connection.
        reply: oneshot::Sender<Option<ConnRow>>,
    },
    /// Carries out a command about a context of another process.
    Context {
        /// Index of the port.
        port: usize,
        /// Command for the port.
        command: ContextCommand,
    },
    /// Carries out a command about a program that watches a region.
    Watch(WatchCommand),
    /// Carries out a command of a reload or of a drain.
    Settings(SettingsCommand),
    /// Publishes the counters.
    Publish {
        /// Receives a notice when the published copy is current.
        reply: oneshot::Sender<()>,
    },
    /// Drops the queues of a port that has disappeared.
    Detach {
        /// Index of the port.
        port: usize,
        /// Receives a notice when the queues are dropped.
        reply: oneshot::Sender<()>,
    },
    /// Installs the queues of a port that has returned.
    Attach {
        /// Index of the port.
        port: usize,
        /// Receive and transmit queue for this worker.
        queues: Box<PortQueues>,
    },
    /// Begins or ends the capture of a port's frames.
    Capture {
        /// Index of the port.
        port: usize,
        /// Capture that begins; `None` ends the one that runs.
        tap: Option<Box<Tap>>,
        /// Receives the capture that ran before, whose memory the worker does not free.
        reply: oneshot::Sender<Option<Box<Tap>>>,
    },
    /// Resets every connection, transmits the RSTs and ends the thread.
    Stop,
}
