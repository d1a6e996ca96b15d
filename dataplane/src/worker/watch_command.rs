//! Commands about programs that watch regions, on all ports of the worker.

use std::sync::Arc;

use iwarp_engine::memory::{SharedWords, Watch};
use iwarp_engine::wake::Waker;
use iwarp_shared_verbs::RingShape;
use iwarp_shared_verbs::worker::{NotificationRing, NotificationStats};
use rdma::RegionId;
use tokio::sync::oneshot;

use super::WorkerPort;

/// Watch to begin, with the memory of its rings.
#[derive(Clone, Debug)]
pub struct NewWatch {
    /// Number of the watch, which no other has.
    pub number: u64,
    /// Memory of the rings of all workers and ports, zero.
    pub memory: SharedWords,
    /// Size of each ring.
    pub shape: RingShape,
    /// Number of the ring of this worker's first port; those of its other ports follow.
    pub first_ring: usize,
    /// Wakes the program, which waits for all its rings.
    pub waker: Arc<Waker>,
}

/// A command about a watch.
#[derive(Debug)]
pub enum WatchCommand {
    /// Begins a watch of a region.
    Begin {
        /// Region whose messages the program wants.
        region: RegionId,
        /// Watch that receives the messages.
        watch: Box<NewWatch>,
        /// Receives true, or false if the worker does not have the region.
        reply: oneshot::Sender<bool>,
    },
    /// Ends a watch. After the answer, the worker does not touch its rings any more.
    End {
        /// Region that is watched.
        region: RegionId,
        /// Number of the watch.
        number: u64,
        /// Receives a notice when the watch has ended.
        reply: oneshot::Sender<()>,
    },
    /// Reports the counters of a watch.
    Stats {
        /// Region that is watched.
        region: RegionId,
        /// Number of the watch.
        number: u64,
        /// Receives the sum of the ports' counters.
        reply: oneshot::Sender<NotificationStats>,
    },
}

impl WatchCommand {
    /// Carries out the command on the ports of a worker. The requester may have gone; the answer is then dropped.
    pub(super) fn run(self, ports: &mut [WorkerPort]) {
        match self {
            Self::Begin { region, watch, reply } => {
                let mut begun = true;
                for (index, port) in ports.iter_mut().enumerate() {
                    let NewWatch { number, memory, shape, first_ring, waker } = (*watch).clone();
                    let ring = NotificationRing::new(memory, first_ring.saturating_add(index), shape);
                    let memory = port.engine_mut().memory_mut();
                    begun &= ring.is_some_and(|ring| memory.watch(region, Watch { number, ring, waker }));
                }
                let _ = reply.send(begun);
            }
            Self::End { region, number, reply } => {
                for port in ports {
                    port.engine_mut().memory_mut().unwatch(region, number);
                }
                let _ = reply.send(());
            }
            Self::Stats { region, number, reply } => {
                let mut sum = NotificationStats::default();
                for port in ports {
                    let stats = port.engine().memory().watch_stats(region, number).unwrap_or_default();
                    sum.delivered = sum.delivered.wrapping_add(stats.delivered);
                    sum.lost = sum.lost.wrapping_add(stats.lost);
                }
                let _ = reply.send(sum);
            }
        }
    }
}
