//! Events of a worker: records of a fixed size in a bounded ring, which the control thread reads. A worker neither
//! formats nor allocates for them, and never waits.

use std::net::SocketAddr;

use arrayvec::ArrayString;
use rdma::ErrorCode;
use rdma::service::{NAME_MAX, Refusal};
use rtrb::{Consumer, Producer, RingBuffer};
use tcp_stack::ConnId;

/// Capacity of a ring: the events of a worker and port in the time between two reads.
const RING: usize = 256;

/// An event of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The region service refused a request.
    GrantRefused {
        /// Address of the peer.
        peer: SocketAddr,
        /// Reason for the refusal.
        refusal: Refusal,
        /// Name that the peer asked for; `None` if its request has none.
        region: Option<ArrayString<NAME_MAX>>,
    },
    /// A Terminate ended a stream.
    Terminated {
        /// Address of the peer.
        peer: SocketAddr,
        /// Address of this side.
        local: SocketAddr,
        /// Connection of the stream.
        conn: ConnId,
        /// Error that the Terminate names.
        code: ErrorCode,
        /// True if this side has sent the Terminate.
        sent: bool,
    },
}

iwarp_counters::counters! {
    /// Counters of a worker's events.
    pub struct NoticeStats {
        /// Events of the worker that were recorded for the log and the monitors.
        recorded,
        /// Events of the worker that were dropped: the control thread had not read those before.
        drop_ring_full,
    }
}

/// Worker's end of the ring. An engine without a daemon has no ring, and records nothing.
#[derive(Debug, Default)]
pub struct NoticeRing {
    ring: Option<Producer<Notice>>,
    stats: NoticeStats,
}

impl NoticeRing {
    /// Records an event, or counts it as dropped.
    #[cold]
    pub fn record(&mut self, notice: Notice) {
        let Some(ring) = &mut self.ring else { return };
        match ring.push(notice) {
            Ok(()) => self.stats.recorded += 1,
            Err(_) => self.stats.drop_ring_full += 1,
        }
    }

    /// Returns the counters since the daemon started.
    pub fn stats(&self) -> &NoticeStats {
        &self.stats
    }
}

/// Control thread's end of the ring of one worker and port.
#[derive(Debug)]
pub struct NoticeReader {
    /// Index of the worker.
    pub worker: usize,
    /// Index of the port.
    pub port: usize,
    ring: Consumer<Notice>,
}

impl NoticeReader {
    /// Returns the next event, at most as many per call of [`Self::batch`] as the ring holds.
    pub fn batch(&mut self) -> impl Iterator<Item = Notice> {
        (0..RING).map_while(|_| self.ring.pop().ok())
    }
}

/// Creates the ring of one worker and port.
pub fn notice_ring(worker: usize, port: usize) -> (NoticeRing, NoticeReader) {
    let (producer, consumer) = RingBuffer::new(RING);
    let ring = NoticeRing { ring: Some(producer), stats: NoticeStats::default() };
    (ring, NoticeReader { worker, port, ring: consumer })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(port: u16) -> Notice {
        let peer = SocketAddr::from(([10, 0, 0, 1], port));
        Notice::GrantRefused { peer, refusal: Refusal::Token, region: ArrayString::from("lab").ok() }
    }

    #[test]
    fn a_full_ring_drops_the_newest_and_counts_them() {
        let (mut ring, mut reader) = notice_ring(0, 0);
        for port in 0..u16::try_from(RING).unwrap() + 44 {
            ring.record(refused(port));
        }
        assert_eq!(*ring.stats(), NoticeStats { recorded: RING as u64, drop_ring_full: 44 });
        let first = reader.batch().next();
        assert_eq!(first, Some(refused(0)));
        assert_eq!(reader.batch().count(), RING - 1);
        ring.record(refused(9));
        assert_eq!(reader.batch().collect::<Vec<_>>(), [refused(9)]);
    }

    #[test]
    fn an_engine_without_a_daemon_records_nothing() {
        let mut ring = NoticeRing::default();
        ring.record(refused(1));
        assert_eq!(*ring.stats(), NoticeStats::default());
    }
}
