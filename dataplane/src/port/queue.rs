//! The queues of a port, of DPDK's drivers and of our own. Each is owned by one worker thread.

use std::time::Duration;

use arrayvec::ArrayVec;
use rustix::event::PollFd;
use tcp_stack::Buf;

use super::kernel::{KernelRx, KernelTx};
use crate::dpdk::{self, BURST, Mbuf, RxQueueStats, TxBatch, TxQueueStats, Wake};

/// A frame without data is no longer: Ethernet with a tag, IPv6, TCP with all options.
const ACKNOWLEDGEMENT_MAX: usize = 18 + 40 + 60;

/// The two ends of a worker's share in a port.
#[derive(Debug)]
pub struct PortQueues {
    /// The receive queue of the worker.
    pub rx: RxQueue,
    /// The transmit queue of the worker.
    pub tx: TxQueue,
}

impl From<dpdk::DeviceQueues> for PortQueues {
    fn from(queues: dpdk::DeviceQueues) -> Self {
        Self { rx: RxQueue::Dpdk(queues.rx), tx: TxQueue::Dpdk(queues.tx) }
    }
}

impl From<(KernelRx, KernelTx)> for PortQueues {
    fn from((rx, tx): (KernelRx, KernelTx)) -> Self {
        Self { rx: RxQueue::Kernel(Box::new(rx)), tx: TxQueue::Kernel(Box::new(tx)) }
    }
}

/// One receive queue of a port.
#[derive(Debug)]
pub enum RxQueue {
    /// A device of DPDK.
    Dpdk(dpdk::DeviceRx),
    /// An interface of the kernel.
    Kernel(Box<KernelRx>),
}

impl RxQueue {
    /// Returns the counters of the queue.
    pub fn stats(&self) -> &RxQueueStats {
        match self {
            Self::Dpdk(queue) => queue.stats(),
            Self::Kernel(queue) => queue.stats(),
        }
    }

    fn stats_mut(&mut self) -> &mut RxQueueStats {
        match self {
            Self::Dpdk(queue) => queue.stats_mut(),
            Self::Kernel(queue) => queue.stats_mut(),
        }
    }

    /// Continues the counters of the queue that this one replaces.
    pub fn resume(&mut self, stats: RxQueueStats) {
        *self.stats_mut() = stats;
    }

    /// Appends the frames that have arrived to `out`, as many as it has room for; how many those are.
    #[inline]
    pub fn burst(&mut self, out: &mut ArrayVec<Mbuf, BURST>) -> usize {
        match self {
            Self::Dpdk(queue) => queue.burst(out),
            Self::Kernel(queue) => queue.burst(out),
        }
    }

    /// Drops the frames that bring data: buffers have run low. Acknowledgments, which give some back, stay. Returns the
    /// number of frames dropped.
    #[cold]
    pub fn spare_buffers(&mut self, received: &mut ArrayVec<Mbuf, BURST>) -> usize {
        let before = received.len();
        received.retain(|mbuf| mbuf.bytes().len() <= ACKNOWLEDGEMENT_MAX);
        let dropped = before.saturating_sub(received.len());
        let stats = self.stats_mut();
        stats.drop_no_buffers = stats.drop_no_buffers.wrapping_add(dropped as u64);
        dropped
    }

    /// Returns true if [`RxQueue::wait`] wakes up for frames.
    pub fn has_descriptor(&self) -> bool {
        match self {
            Self::Dpdk(queue) => queue.has_descriptor(),
            Self::Kernel(_) => true,
        }
    }

    /// Returns true if [`RxQueue::wait`] misses no frame, so that its timeout may be long.
    pub fn wakes_for_all(&self) -> bool {
        match self {
            Self::Dpdk(queue) => queue.wakes_for_all(),
            Self::Kernel(_) => true,
        }
    }

    /// Returns true if the queue is a ring, which only the threads of this process fill.
    pub fn is_ring(&self) -> bool {
        matches!(self, Self::Dpdk(queue) if queue.is_ring())
    }

    /// Sleeps until frames arrive (if the port has an interrupt), one of `others` has an event, or `timeout` has
    /// passed. If a device of DPDK does not count frames, the wait may miss those that arrive while the interrupt is
    /// being armed; the timeout ends it then.
    pub fn wait(&mut self, others: &mut [PollFd<'_>], timeout: Duration) -> Wake {
        match self {
            Self::Dpdk(queue) => queue.wait(others, timeout),
            Self::Kernel(queue) => queue.wait(others, timeout),
        }
    }
}

/// One transmit queue of a port.
#[derive(Debug)]
pub enum TxQueue {
    /// A device of DPDK.
    Dpdk(dpdk::DeviceTx),
    /// An interface of the kernel.
    Kernel(Box<KernelTx>),
}

impl TxQueue {
    /// Frames will be sent soon: asks the cache for what that takes of a ring. Other ports know themselves.
    #[inline]
    pub fn expect(&self) {
        if let Self::Dpdk(queue) = self {
            queue.expect();
        }
    }

    /// Says that frames from `rx` will be sent into this queue: if both are rings, this one then keeps the pools of the
    /// frames until it has given them away. A ring knows only the pools of its own two ends.
    pub fn forwards(&self, rx: &RxQueue) {
        if let (Self::Dpdk(to), RxQueue::Dpdk(from)) = (self, rx) {
            to.forwards(from);
        }
    }

    /// Returns the counters of the queue.
    pub fn stats(&self) -> &TxQueueStats {
        match self {
            Self::Dpdk(queue) => queue.stats(),
            Self::Kernel(queue) => queue.stats(),
        }
    }

    fn stats_mut(&mut self) -> &mut TxQueueStats {
        match self {
            Self::Dpdk(queue) => queue.stats_mut(),
            Self::Kernel(queue) => queue.stats_mut(),
        }
    }

    /// Continues the counters of the queue that this one replaces.
    pub fn resume(&mut self, stats: TxQueueStats) {
        *self.stats_mut() = stats;
    }

    /// Sends from the front of the batch what the port takes now; how many frames those are. The rest stays in
    /// the batch, in order. Frames that the port could never send are dropped and counted: they would hold up
    /// the others for good.
    #[inline]
    pub fn burst(&mut self, batch: &mut TxBatch) -> usize {
        match self {
            Self::Dpdk(queue) => queue.burst(batch),
            Self::Kernel(queue) => queue.burst(batch),
        }
    }

    /// Drops the frames of a batch, because the port does not accept any.
    #[cold]
    pub fn drop_stalled(&mut self, batch: &mut TxBatch) {
        let stats = self.stats_mut();
        stats.drop_stalled = stats.drop_stalled.wrapping_add(batch.len() as u64);
        batch.clear();
        match self {
            Self::Dpdk(queue) => queue.forget_deferred(),
            Self::Kernel(queue) => queue.forget_deferred(),
        }
    }
}
