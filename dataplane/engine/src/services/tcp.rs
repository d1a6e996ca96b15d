//! Services on plain TCP connections. The engine passes received segments, and calls [`TcpServices::transmit`] for a
//! connection that may have output.

use std::collections::VecDeque;
use std::time::Duration;

use rdma::Sink as _;
use tcp_stack::{Buf, BufPool, ConnId, ConnInfo, EvictionPolicy, Instant, Segment};

use super::chargen::Chargen;
use super::echo::Echo;
use super::{ListenerService, ServiceStats, daytime};
use crate::transport::{StreamSink, Transport, TxOutcome, since_start};

/// State of one connection.
#[derive(Debug)]
pub(crate) enum TcpService<B> {
    /// Boxed, so that the entry of every other connection is small.
    Echo(Box<Echo<B>>),
    Discard,
    Chargen(Chargen),
    Daytime,
}

impl<B> TcpService<B> {
    /// Returns the name of the service, for reports.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Echo(_) => "echo",
            Self::Discard => "discard",
            Self::Chargen(_) => "chargen",
            Self::Daytime => "daytime",
        }
    }

    /// Returns true if the service sends before its peer does.
    pub(crate) const fn speaks_first(&self) -> bool {
        matches!(self, Self::Chargen(_) | Self::Daytime)
    }

    /// Returns the eviction policy of a connection. A daytime peer needs nothing after its line.
    pub(crate) const fn eviction_policy(&self) -> EvictionPolicy {
        match self {
            Self::Echo(_) | Self::Discard | Self::Chargen(_) => EvictionPolicy::WhenIdle,
            Self::Daytime => EvictionPolicy::Anytime,
        }
    }
}

/// State that the connections of all services share.
#[derive(Debug)]
pub(crate) struct TcpServices {
    /// Echo connections with spilled bytes that wait for packet buffers, each at most once.
    echo_waiting: VecDeque<ConnId>,
    /// Wall clock at [`Instant::ZERO`], time since 1970.
    wall_at_zero: Duration,
    /// Largest receive window, bytes.
    receive_window: usize,
    pub(crate) stats: ServiceStats,
}

impl TcpServices {
    /// Creates the services of a stack whose largest receive window is `receive_window` bytes.
    pub(crate) fn new(receive_window: usize) -> Self {
        Self {
            echo_waiting: VecDeque::new(),
            wall_at_zero: Duration::ZERO,
            receive_window,
            stats: ServiceStats::default(),
        }
    }

    /// Sets the wall clock, time since 1970.
    pub(crate) fn set_wall_clock(&mut self, now: Instant, since_epoch: Duration) {
        self.wall_at_zero = since_epoch.saturating_sub(since_start(now));
    }

    /// Creates the state of an accepted connection; `None` for a service on RDMA.
    pub(crate) fn accepted<B: Buf>(
        &mut self,
        service: &ListenerService,
        info: &ConnInfo,
    ) -> Option<TcpService<B>> {
        let (connections, service) = match service {
            ListenerService::Echo => {
                let echo = Echo::new(self.receive_window, usize::from(info.emss));
                (&mut self.stats.echo_connections, TcpService::Echo(Box::new(echo)))
            }
            ListenerService::Discard => (&mut self.stats.discard_connections, TcpService::Discard),
            ListenerService::Chargen => {
                (&mut self.stats.chargen_connections, TcpService::Chargen(Chargen::default()))
            }
            ListenerService::Daytime => (&mut self.stats.daytime_connections, TcpService::Daytime),
            ListenerService::Region(_) => return None,
        };
        *connections += 1;
        Some(service)
    }

    /// Passes a received segment to the service. Returns true if there may be output.
    #[inline]
    pub(crate) fn receive<T: Transport>(
        &mut self,
        service: &mut TcpService<T::Buf>,
        transport: &mut T,
        pool: &mut impl BufPool<Buf = T::Buf>,
        conn: ConnId,
        segment: Segment<T::Buf>,
    ) -> bool {
        match service {
            TcpService::Echo(echo) => {
                echo.receive(transport, pool, conn, segment);
                return true;
            }
            TcpService::Discard => self.stats.discard_bytes += segment.len() as u64,
            TcpService::Chargen(_) | TcpService::Daytime => {}
        }
        transport.consumed(conn, segment.len());
        false
    }

    /// Frees the received packet buffers that a connection retains; others need them.
    #[cold]
    pub(crate) fn reclaim<T: Transport>(
        &mut self,
        service: &mut TcpService<T::Buf>,
        transport: &mut T,
        conn: ConnId,
    ) {
        if let TcpService::Echo(echo) = service {
            echo.compact();
            self.stats.echo_copied_aside += 1;
            transport.retain(conn, 0);
        }
    }

    /// Handles the end of the peer's half of the connection. Returns true if there may be output.
    pub(crate) fn peer_closed<T: Transport>(
        service: &TcpService<T::Buf>,
        now: Instant,
        transport: &mut T,
        conn: ConnId,
    ) -> bool {
        match service {
            // Queued bytes are sent first; `transmit` closes after them.
            TcpService::Echo(_) => return true,
            // Daytime closes after its line.
            TcpService::Daytime => {}
            TcpService::Discard | TcpService::Chargen(_) => transport.close(now, conn),
        }
        false
    }

    /// Moves output of a connection into its send queue.
    #[inline]
    pub(crate) fn transmit<T: Transport>(
        &mut self,
        now: Instant,
        (conn, service, peer_closed): (ConnId, &mut TcpService<T::Buf>, bool),
        transport: &mut T,
        pool: &mut impl BufPool<Buf = T::Buf>,
    ) -> TxOutcome {
        match service {
            TcpService::Discard => TxOutcome::Idle,
            TcpService::Chargen(chargen) => fill_chargen(now, conn, chargen, transport, pool),
            TcpService::Daytime => {
                let line = daytime::line(self.wall_at_zero.saturating_add(since_start(now)));
                send_and_close(now, conn, line.as_bytes(), transport, pool)
            }
            TcpService::Echo(echo) => {
                let outcome = echo.pump(now, transport, pool, conn);
                if !transport.retain(conn, echo.waiting()) {
                    echo.compact();
                    self.stats.echo_copied_aside += 1;
                    transport.retain(conn, 0);
                }
                match outcome {
                    TxOutcome::Idle if peer_closed => transport.close(now, conn),
                    TxOutcome::Again => {
                        self.echo_waiting.extend(echo.mark_waits_for_buffers().then_some(conn));
                    }
                    TxOutcome::Idle | TxOutcome::Blocked => {}
                }
                if outcome == TxOutcome::Again { TxOutcome::Idle } else { outcome }
            }
        }
    }

    /// Returns true if a connection waits for packet buffers.
    #[inline]
    pub(crate) fn waits_for_buffers(&self) -> bool {
        !self.echo_waiting.is_empty()
    }

    /// Returns the connection that has waited longest for packet buffers, and forgets it.
    pub(crate) fn next_waiting(&mut self) -> Option<ConnId> {
        self.echo_waiting.pop_front()
    }
}

/// Ends the wait of a connection for packet buffers.
pub(crate) fn clear_waits_for_buffers<B: Buf>(service: &mut TcpService<B>) {
    if let TcpService::Echo(echo) = service {
        echo.clear_waits_for_buffers();
    }
}

/// Keeps the send queue of a chargen connection full.
fn fill_chargen<T: Transport>(
    now: Instant,
    conn: ConnId,
    chargen: &mut Chargen,
    transport: &mut T,
    pool: &mut impl BufPool<Buf = T::Buf>,
) -> TxOutcome {
    let mut sink = StreamSink::new(transport, pool, conn, now);
    let segment = sink.fpdu_max();
    if segment == 0 {
        return TxOutcome::Idle;
    }
    while sink.room() >= segment {
        if !sink.push(segment, &mut |out| chargen.fill(out)) {
            return TxOutcome::Again;
        }
    }
    if sink.budget < segment { TxOutcome::Again } else { TxOutcome::Blocked }
}

/// Sends a line and closes the connection, as soon as there is a packet buffer.
fn send_and_close<T: Transport>(
    now: Instant,
    conn: ConnId,
    line: &[u8],
    transport: &mut T,
    pool: &mut impl BufPool<Buf = T::Buf>,
) -> TxOutcome {
    let mut sink = StreamSink::new(transport, pool, conn, now);
    if line.len() > sink.room() {
        return TxOutcome::Blocked;
    }
    if !sink.push(line.len(), &mut |out| out.copy_from_slice(line)) {
        return TxOutcome::Again;
    }
    transport.close(now, conn);
    TxOutcome::Idle
}
