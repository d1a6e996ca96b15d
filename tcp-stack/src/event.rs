//! Events for the application, identifiers of connections and listeners, and the state of a connection for display.

use core::net::SocketAddr;
use core::num::NonZeroU32;
use core::ops::Range;
use core::time::Duration;

use crate::buf::Buf;
use crate::cc::BbrInfo;
use crate::error::CloseReason;
use crate::state::State;
use crate::time::Instant;

/// Identifier of a connection. The index is below [`connections_max`](crate::StackConfig::connections_max), so the
/// application can index its own table with it. The generation distinguishes successive connections with the same
/// index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnId {
    index: u32,
    generation: u32,
}

impl ConnId {
    /// Returns the identifier with these numbers, which [`Self::index`] and [`Self::generation`] have returned.
    pub const fn new(index: u32, generation: u32) -> Self {
        Self { index, generation }
    }

    /// Returns the index in the table: below [`connections_max`](crate::StackConfig::connections_max).
    #[inline]
    pub const fn index(self) -> u32 {
        self.index
    }

    /// Returns the generation: a different number for each connection with this index.
    #[inline]
    pub const fn generation(self) -> u32 {
        self.generation
    }
}

/// Identifier of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ListenerId {
    pub(crate) index: u32,
    pub(crate) generation: NonZeroU32,
}

impl ListenerId {
    /// Returns the identifier with these numbers.
    pub const fn new(index: u32, generation: NonZeroU32) -> Self {
        Self { index, generation }
    }

    /// Returns the index in the table of listeners.
    #[inline]
    pub const fn index(self) -> u32 {
        self.index
    }

    /// Returns the generation: a different number for each listener with this index.
    #[inline]
    pub const fn generation(self) -> u32 {
        self.generation.get()
    }
}

/// Received payload, in the frame that it came in. If the application took the payload with
/// [`Stack::offer_out_of_order`](crate::Stack::offer_out_of_order), only the length is left.
#[derive(Debug)]
pub struct Segment<B> {
    buf: Option<B>,
    range: Range<u32>,
}

impl<B: Buf> Segment<B> {
    /// Returns the payload that lies in a range of `buf`, which is `None` if the application took it.
    pub const fn new(buf: Option<B>, range: Range<u32>) -> Self {
        Self { buf, range }
    }

    /// Returns the payload; empty if it [was taken](Self::was_taken).
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        let bytes = self.buf.as_ref().map_or(&[][..], Buf::bytes);
        bytes.get(self.range.start as usize..self.range.end as usize).unwrap_or(&[])
    }

    /// True if the application took the payload while it was out of order.
    #[inline]
    pub fn was_taken(&self) -> bool {
        self.buf.is_none()
    }

    /// Returns the length of the payload, bytes: at least 1.
    #[inline]
    pub fn len(&self) -> usize {
        self.range.end.saturating_sub(self.range.start) as usize
    }

    /// True if the payload is empty; the stack never delivers such a segment.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// Returns the last `len` bytes of the payload, in the buffer that they came in, which may be sent. Returns the
    /// segment as the error if it is shorter, or another handle shares the buffer.
    pub fn into_tail(mut self, len: usize) -> Result<B, Self> {
        let Some(start) = (self.range.end as usize).checked_sub(len).filter(|_| len <= self.len()) else {
            return Err(self);
        };
        let fits = |buf: &mut B| buf.truncate(self.range.end as usize) && buf.trim_front(start);
        self.buf.take_if(fits).ok_or(self)
    }

    /// Returns the frame, unless the payload was taken, and the range of the payload in it.
    #[inline]
    pub fn into_parts(self) -> (Option<B>, Range<usize>) {
        (self.buf, self.range.start as usize..self.range.end as usize)
    }
}

impl<B: Buf> AsRef<[u8]> for Segment<B> {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

/// An event. The events of one connection are in order; [`Event::Closed`] is always the last.
#[derive(Debug)]
pub enum Event<B> {
    /// A peer's connection to a listener is established.
    Accepted {
        /// Identifier of the new connection.
        conn: ConnId,
        /// The listener that accepted it.
        listener: ListenerId,
    },
    /// A connection that the application opened is established.
    Connected {
        /// Identifier of the connection.
        conn: ConnId,
    },
    /// The peer's urgent pointer advanced (RFC 9293 §3.8.5). Urgent data stays in line, as any other data; RFC 6093
    /// §6 advises against relying on the mark.
    Urgent {
        /// Identifier of the connection.
        conn: ConnId,
        /// Stream offset of the byte after the last urgent one: not necessarily received yet, at most 65,535 bytes
        /// beyond what the peer has sent.
        end: u64,
    },
    /// Payload, in order. The receive window stays closed by its length until
    /// [`Stack::consumed`](crate::Stack::consumed).
    Data {
        /// Identifier of the connection.
        conn: ConnId,
        /// Stream offset of its first byte, from 0.
        offset: u64,
        /// The payload, in its frame.
        segment: Segment<B>,
    },
    /// Out-of-order segments arrived, on a connection with
    /// [`ConnOptions::out_of_order`](crate::ConnOptions::out_of_order). They are received and held.
    /// [`Stack::offer_out_of_order`](crate::Stack::offer_out_of_order) offers them if it is called before any other
    /// method.
    OutOfOrder {
        /// Identifier of the connection.
        conn: ConnId,
    },
    /// The peer will send no more; data may still be sent to it.
    PeerClosed {
        /// Identifier of the connection.
        conn: ConnId,
    },
    /// There is send room again, after a refused send or [`Stack::notify_writable`](crate::Stack::notify_writable).
    Writable {
        /// Identifier of the connection.
        conn: ConnId,
    },
    /// The application must release the packet buffers that it retains ([`Stack::retain`](crate::Stack::retain)):
    /// it copies what it needs, or ends the connection.
    Reclaim {
        /// Identifier of the connection.
        conn: ConnId,
    },
    /// The payload length of a full segment has changed.
    EmssChanged {
        /// Identifier of the connection.
        conn: ConnId,
        /// The new effective send MSS, bytes.
        emss: usize,
    },
    /// The connection is gone, and its identifier is invalid.
    Closed {
        /// Identifier of the connection.
        conn: ConnId,
        /// The reason for the end.
        reason: CloseReason,
    },
}

/// State of explicit congestion notification on a connection (RFC 3168 §6.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EcnState {
    /// ECN was not negotiated.
    Off,
    /// Received marks are echoed, but nothing is sent ECN-capable, because one SYN was a non-ECN-setup SYN.
    Echo,
    /// ECN is in use in both directions.
    On,
}

impl EcnState {
    /// Returns the name shown to operators.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Echo => "echo",
            Self::On => "on",
        }
    }
}

/// The state of a connection, for display.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnInfo {
    /// State of the connection.
    pub state: State,
    /// Our address and port.
    pub local: SocketAddr,
    /// The peer's address and port.
    pub remote: SocketAddr,
    /// The listener that accepted it; `None` for an active open.
    pub listener: Option<ListenerId>,
    /// True if an ICMP error reported a recent loss (RFC 9293 §3.9.2.2: a soft error); cleared by progress.
    pub soft_error: bool,
    /// Consecutive timeouts or probes without an answer: from three on, retransmission is excessive (RFC 9293
    /// §3.8.3: R1).
    pub attempts: u8,
    /// Time at which it was opened.
    pub opened_at: Instant,
    /// Arrival time of its last segment, up to 262 µs too early.
    pub heard_at: Instant,
    /// Payload of a full segment, bytes.
    pub emss: u16,
    /// The largest packet that the path is known to carry, bytes.
    pub path_mtu: u16,
    /// The MSS that the peer announced, bytes.
    pub peer_mss: u16,
    /// Congestion control: `newreno`, `cubic`, `dctcp`, `bbr`.
    pub congestion: &'static str,
    /// State of explicit congestion notification.
    pub ecn: EcnState,
    /// BBR's model of the path; `None` with other algorithms.
    pub bbr: Option<BbrInfo>,
    /// Pacing rate, bytes per second; `None` without pacing.
    pub pacing_rate: Option<u64>,
    /// Recent delivery rate, bytes per second; `None` before the first sample.
    pub delivery_rate: Option<u64>,
    /// True if the application or the peer's window, not the network, limited that rate.
    pub delivery_app_limited: bool,
    /// Congestion window (cwnd), bytes.
    pub cwnd: u32,
    /// Slow start threshold, bytes.
    pub ssthresh: u32,
    /// Sequence space in flight, bytes.
    pub in_flight: u32,
    /// Payload queued or in flight, bytes.
    pub send_queue_bytes: u32,
    /// The peer's window (SND.WND), bytes.
    pub send_window: u32,
    /// Our window (RCV.WND), bytes.
    pub receive_window: u32,
    /// Bytes received in order that the application has not consumed.
    pub unread_bytes: u32,
    /// Urgent bytes that the application has not polled, or that have not arrived yet.
    pub urgent_bytes: u64,
    /// Memory of out-of-order segments, bytes of true buffer size.
    pub held_bytes: u32,
    /// Number of out-of-order segments held.
    pub held_segments: u32,
    /// Smoothed round-trip time; `None` before the first sample.
    pub srtt: Option<Duration>,
    /// Variation of the round-trip time (RTTVAR).
    pub rttvar: Duration,
    /// The least recent round-trip time.
    pub min_rtt: Option<Duration>,
    /// Retransmission timeout, with backoff.
    pub rto: Duration,
    /// True if SACK is in use.
    pub sack: bool,
    /// True if timestamps are in use.
    pub timestamps: bool,
    /// Shift of the peer's window field.
    pub send_window_scale: u8,
    /// Shift of our window field.
    pub receive_window_scale: u8,
    /// True if segments to the peer were reordered.
    pub reordering_seen: bool,
    /// Number of segments received.
    pub segments_in: u64,
    /// Number of segments sent.
    pub segments_out: u64,
    /// Payload received in order, bytes.
    pub bytes_in: u64,
    /// Payload sent and acknowledged, bytes.
    pub bytes_acked: u64,
    /// Number of segments retransmitted.
    pub segments_retransmitted: u64,
    /// Payload that was retransmitted, bytes.
    pub bytes_retransmitted: u64,
    /// SACKed sequence space now, bytes.
    pub sacked_bytes: u32,
    /// Sequence space marked lost now, bytes.
    pub lost_bytes: u32,
    /// Number of retransmission timeouts.
    pub timeouts: u32,
    /// Number of fast recoveries.
    pub recoveries: u32,
}

impl ConnInfo {
    /// Returns what is known of a connection of another TCP: its state, our end and the peer's, and since when it
    /// exists. The rest is zero, or unknown.
    pub const fn of(state: State, (local, remote): (SocketAddr, SocketAddr), opened_at: Instant) -> Self {
        Self {
            state,
            local,
            remote,
            listener: None,
            soft_error: false,
            attempts: 0,
            opened_at,
            heard_at: opened_at,
            emss: 0,
            path_mtu: 0,
            peer_mss: 0,
            congestion: "kernel",
            ecn: EcnState::Off,
            bbr: None,
            pacing_rate: None,
            delivery_rate: None,
            delivery_app_limited: false,
            cwnd: 0,
            ssthresh: 0,
            in_flight: 0,
            send_queue_bytes: 0,
            send_window: 0,
            receive_window: 0,
            unread_bytes: 0,
            urgent_bytes: 0,
            held_bytes: 0,
            held_segments: 0,
            srtt: None,
            rttvar: Duration::ZERO,
            min_rtt: None,
            rto: Duration::ZERO,
            sack: false,
            timestamps: false,
            send_window_scale: 0,
            receive_window_scale: 0,
            reordering_seen: false,
            segments_in: 0,
            segments_out: 0,
            bytes_in: 0,
            bytes_acked: 0,
            segments_retransmitted: 0,
            bytes_retransmitted: 0,
            sacked_bytes: 0,
            lost_bytes: 0,
            timeouts: 0,
            recoveries: 0,
        }
    }
}
