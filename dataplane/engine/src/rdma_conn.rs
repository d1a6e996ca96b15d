//! State of one RDMA connection between TCP and the device, and the way from the device's identifiers to connections.

use std::time::Duration;

use rdma::verbs::{CmId, Device};
use rdma::{Memory, RdmaStats};
use tcp_stack::{BufPool, ConnId, EvictionPolicy, Instant, Segment};

use crate::transport::{RdmaState, StreamSink, Transport, TxOutcome, since_start};

/// State of a connection that the device uses.
#[derive(Clone, Copy, Debug)]
pub(super) struct RdmaConn {
    /// Identifier of the device; `None` after our close, until the peer has closed too.
    pub(super) id: Option<CmId>,
    /// Local port, which a program's connection claims for this worker; 0 if the region service has the connection.
    pub(super) claimed_port: u16,
    /// Deadline that is queued for the connection.
    pub(super) deadline: Option<Duration>,
    /// Packet buffers that the stack accounts to the connection for an incomplete FPDU: at most those of the longest
    /// FPDU.
    retained: u16,
    /// Eviction policy that was last reported to the stack.
    eviction_policy: EvictionPolicy,
    /// Way of the output.
    pub(super) looped: Looped,
    /// Time at which something last passed directly, in units of 64 ms, modulo 2^16. TCP does not see it.
    looped_at: u16,
}

/// Way of the output of a connection to another address of the port itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Looped {
    /// By TCP: the peer is another host, or the other end belongs to another worker.
    No,
    /// By TCP for now: the first messages of both ends have not passed.
    Later,
    /// Directly to the other end.
    Direct,
}

impl RdmaConn {
    /// Creates the state of a new connection. `claimed_port` is 0 for the region service; `is_looped`: its peer is an
    /// address of the port itself.
    pub(super) const fn new(id: CmId, claimed_port: u16, is_looped: bool) -> Self {
        let looped = if is_looped { Looped::Later } else { Looped::No };
        let eviction_policy = EvictionPolicy::Never;
        Self {
            id: Some(id),
            claimed_port,
            deadline: None,
            retained: 0,
            eviction_policy,
            looped,
            looped_at: 0,
        }
    }

    /// Returns true if the region service has the connection; otherwise a program has it.
    pub(super) const fn is_region(&self) -> bool {
        self.claimed_port == 0
    }

    /// Records that something passes directly.
    pub(super) fn note_looped(&mut self, now: Instant) {
        self.looped_at = coarse(now);
    }

    /// Returns the time since something last passed directly, up to 64 ms too long, modulo 70 minutes: a connection
    /// that is idle for longer counts as in use once in that time.
    pub(super) fn looped_age(&self, now: Instant) -> Duration {
        Duration::from_millis(u64::from(coarse(now).wrapping_sub(self.looped_at)) * COARSE_MS)
    }

    /// Reports the packet buffers retained for an incomplete FPDU to the stack. If the stack allows no more, their
    /// bytes are copied and the buffers freed.
    #[inline]
    pub(super) fn retain<T: Transport>(
        &mut self,
        (conn, chunks): (ConnId, usize),
        transport: &mut T,
        device: &mut Device<Segment<T::Buf>>,
        stats: &mut RdmaStats,
    ) {
        let chunks = u16::try_from(chunks).unwrap_or(u16::MAX);
        if chunks == self.retained {
            return;
        }
        self.retained = chunks;
        if !transport.retain(conn, chunks.into()) {
            self.release_retained(conn, transport, device, stats);
        }
    }

    /// Copies the bytes of retained packet buffers and frees the buffers.
    #[cold]
    pub(super) fn release_retained<T: Transport>(
        &mut self,
        conn: ConnId,
        transport: &mut T,
        device: &mut Device<Segment<T::Buf>>,
        stats: &mut RdmaStats,
    ) {
        let left = self.id.map_or(0, |id| device.compact(id, stats));
        self.retained = u16::try_from(left).unwrap_or(u16::MAX);
        transport.retain(conn, self.retained.into());
    }

    /// Reports the eviction policy to the stack if it has changed: a connection that the device uses never gives way
    /// once its peer has a claim on it.
    #[inline]
    pub(super) fn update_eviction<T: Transport>(
        &mut self,
        conn: ConnId,
        transport: &mut T,
        device: &Device<Segment<T::Buf>>,
    ) {
        let evictable = self.id.is_none_or(|id| device.is_evictable(id));
        let policy = if evictable { EvictionPolicy::Anytime } else { EvictionPolicy::Never };
        if std::mem::replace(&mut self.eviction_policy, policy) != policy {
            transport.set_eviction_policy(conn, policy);
        }
    }
}

/// Unit of [`RdmaConn::looped_age`], milliseconds.
const COARSE_MS: u64 = 64;

/// Returns a time in units of [`COARSE_MS`], modulo 2^16.
fn coarse(now: Instant) -> u16 {
    ((now.as_millis() / COARSE_MS) & u64::from(u16::MAX)).try_into().unwrap_or(0)
}

/// Moves the output of the device's connection into the send queue, up to the budget of one service.
#[inline]
pub(super) fn transmit<T: Transport, M: Memory>(
    now: Instant,
    (conn, id): (ConnId, CmId),
    transport: &mut T,
    pool: &mut impl BufPool<Buf = T::Buf>,
    device: &mut Device<Segment<T::Buf>>,
    rdma: &mut RdmaState<M>,
) -> TxOutcome {
    let mut sink = StreamSink::new(transport, pool, conn, now);
    let progress = device.transmit(id, since_start(now), &mut rdma.env(), &mut sink);
    sink.outcome(progress.pending)
}

/// Slab index of the TCP connection of each identifier, by [`CmId::index`]. Pages of the table are touched as
/// identifiers are used.
#[derive(Debug)]
pub(super) struct CmConns(Vec<u32>);

impl CmConns {
    /// Allocates room for `ids` identifiers.
    pub(super) fn new(ids: u32) -> Self {
        Self(vec![0; ids as usize])
    }

    /// Records the connection of an identifier.
    pub(super) fn bind(&mut self, id: CmId, conn: ConnId) {
        if let Some(index) = self.0.get_mut(id.index()) {
            *index = conn.index();
        }
    }

    /// Returns the slab index recorded last for the identifier's slot. The caller checks that the connection there has
    /// this identifier.
    #[inline]
    pub(super) fn index(&self, id: CmId) -> u32 {
        self.0.get(id.index()).copied().unwrap_or(u32::MAX)
    }
}
