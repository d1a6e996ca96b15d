//! What the stack tells the application, and the names of things.

use core::net::SocketAddr;
use core::num::NonZeroU32;
use core::ops::Range;
use core::time::Duration;

use crate::buf::Buf;
use crate::cc::BbrInfo;
use crate::error::CloseReason;
use crate::state::State;
use crate::time::Instant;

/// A connection. The index is below
/// [`connections_max`](crate::StackConfig::connections_max), so it serves as the index of the
/// application's own table; the generation tells apart the connections that had the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnId {
    index: u32,
    generation: u32,
}

impl ConnId {
    pub(crate) const fn new(index: u32, generation: u32) -> Self {
        Self { index, generation }
    }

    /// Which place in the table: below [`connections_max`](crate::StackConfig::connections_max).
    #[inline]
    pub const fn index(self) -> u32 {
        self.index
    }

    /// Which connection in that place.
    #[inline]
    pub const fn generation(self) -> u32 {
        self.generation
    }
}

/// A listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ListenerId {
    pub(crate) index: u32,
    pub(crate) generation: NonZeroU32,
}

impl ListenerId {
    /// Which place in the table.
    #[inline]
    pub const fn index(self) -> u32 {
        self.index
    }

    /// Which listener in that place.
    #[inline]
    pub const fn generation(self) -> u32 {
        self.generation.get()
    }
}

/// Received payload: part of the frame that it came in. Where [`Stack::offer_out_of_order`](crate::Stack::offer_out_of_order) was told
/// that the application has it already, only its length is left.
#[derive(Debug)]
pub struct Segment<B> {
    buf: Option<B>,
    range: Range<u16>,
}

impl<B: Buf> Segment<B> {
    pub(crate) fn new(buf: Option<B>, range: Range<u16>) -> Self {
        Self { buf, range }
    }

    /// The payload; empty where it [was taken](Self::was_taken).
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        let bytes = self.buf.as_ref().map_or(&[][..], Buf::bytes);
        bytes.get(usize::from(self.range.start)..usize::from(self.range.end)).unwrap_or(&[])
    }

    /// Whether the application has taken the payload while it lay behind a gap.
    #[inline]
    pub fn was_taken(&self) -> bool {
        self.buf.is_none()
    }

    /// Length of the payload, bytes: at least 1.
    #[inline]
    pub fn len(&self) -> usize {
        usize::from(self.range.end.saturating_sub(self.range.start))
    }

    /// Whether there is none; the stack never hands out such a segment.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// The last `len` bytes of the payload, in the buffer that they came in, which may be sent; the segment is given
    /// back when there are not so many, or when another handle shares the buffer.
    pub fn into_tail(mut self, len: usize) -> Result<B, Self> {
        let Some(start) = usize::from(self.range.end).checked_sub(len).filter(|_| len <= self.len()) else {
            return Err(self);
        };
        let fits = |buf: &mut B| buf.truncate(self.range.end.into()) && buf.trim_front(start);
        self.buf.take_if(fits).ok_or(self)
    }

    /// The frame, if it is there, and where the payload is in it.
    #[inline]
    pub fn into_parts(self) -> (Option<B>, Range<usize>) {
        (self.buf, usize::from(self.range.start)..usize::from(self.range.end))
    }
}

impl<B: Buf> AsRef<[u8]> for Segment<B> {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

/// What happened. The events of one connection come in their order; [`Event::Closed`] is always the
/// last.
#[derive(Debug)]
pub enum Event<B> {
    /// A connection to a listener is established.
    Accepted {
        /// The connection.
        conn: ConnId,
        /// The listener.
        listener: ListenerId,
    },
    /// The connection that was opened is established.
    Connected {
        /// The connection.
        conn: ConnId,
    },
    /// The peer has urgent data (RFC 9293 §3.8.5): more of the stream than was known to be. It comes in line, as any
    /// other data does; RFC 6093 §6 advises against relying on the mark.
    Urgent {
        /// The connection.
        conn: ConnId,
        /// Where the byte after the last urgent one is in the stream: not necessarily received yet, at most 65,535
        /// bytes beyond what the peer has sent.
        end: u64,
    },
    /// Payload, in order. The receive window stays closed by its length until
    /// [`Stack::consumed`](crate::Stack::consumed).
    Data {
        /// The connection.
        conn: ConnId,
        /// Where its first byte is in the stream, from 0.
        offset: u64,
        /// The payload.
        segment: Segment<B>,
    },
    /// Segments arrived behind a gap, on a connection that [asked for this](crate::ConnOptions::out_of_order): they are received
    /// and held, and may be looked at now, before anything else, with [`Stack::offer_out_of_order`](crate::Stack::offer_out_of_order), or never.
    OutOfOrder {
        /// The connection.
        conn: ConnId,
    },
    /// The peer will send no more; data may still be sent to it.
    PeerClosed {
        /// The connection.
        conn: ConnId,
    },
    /// A send was refused before, and there is room now.
    Writable {
        /// The connection.
        conn: ConnId,
    },
    /// What the application keeps of the segments that it was handed ([`Stack::retain`](crate::Stack::retain)) is wanted for
    /// others: it copies what it needs and lets go of the packet buffers, or ends the connection.
    Reclaim {
        /// The connection.
        conn: ConnId,
    },
    /// The payload of a full segment has changed.
    EmssChanged {
        /// The connection.
        conn: ConnId,
        /// Its new value, bytes.
        emss: usize,
    },
    /// The connection is gone, and its name with it.
    Closed {
        /// The connection.
        conn: ConnId,
        /// How it ended.
        reason: CloseReason,
    },
}

/// How far explicit congestion notification goes on a connection (RFC 3168 §6.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EcnState {
    /// Not agreed on.
    Off,
    /// The peer's marks are echoed; nothing is sent ECN-capable, since a SYN had to go without.
    Echo,
    /// In use in both directions.
    On,
}

impl EcnState {
    /// The name that is shown to operators.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Echo => "echo",
            Self::On => "on",
        }
    }
}

/// What is known of a connection, for people to look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnInfo {
    /// Its state.
    pub state: State,
    /// Our end.
    pub local: SocketAddr,
    /// The other end.
    pub remote: SocketAddr,
    /// The listener that accepted it; `None` when it was opened by us.
    pub listener: Option<ListenerId>,
    /// An ICMP error told that something of late did not arrive (RFC 9293 §3.9.2.2: a soft error); cleared by progress.
    pub soft_error: bool,
    /// Timeouts, or probes, in a row without a sign of life: three and more mean that excessive retransmission goes on
    /// (RFC 9293 §3.8.3: R1).
    pub attempts: u8,
    /// When it was opened.
    pub opened_at: Instant,
    /// When a segment of it arrived last, or up to 262 µs before that.
    pub heard_at: Instant,
    /// Payload of a full segment, bytes.
    pub emss: u16,
    /// The largest packet that the path is known to carry, bytes.
    pub path_mtu: u16,
    /// The MSS that the peer announced, bytes.
    pub peer_mss: u16,
    /// Congestion control: `newreno`, `cubic`, `dctcp`, `bbr`.
    pub congestion: &'static str,
    /// Explicit congestion notification.
    pub ecn: EcnState,
    /// What BBR knows of the path, where it is in use.
    pub bbr: Option<BbrInfo>,
    /// The rate at which segments leave, bytes per second; `None` without pacing.
    pub pacing_rate: Option<u64>,
    /// The rate at which data was delivered of late, bytes per second; `None` before the first sample.
    pub delivery_rate: Option<u64>,
    /// Whether it was the application, or the peer's window, and not the network that limited that rate.
    pub delivery_app_limited: bool,
    /// Congestion window, bytes.
    pub cwnd: u32,
    /// Slow start threshold, bytes.
    pub ssthresh: u32,
    /// In flight, bytes.
    pub in_flight: u32,
    /// Payload queued or in flight, bytes.
    pub send_queue_bytes: u32,
    /// Window that the peer offers, bytes.
    pub send_window: u32,
    /// Window that we offer, bytes.
    pub receive_window: u32,
    /// Received in order and not let go of by the application, bytes.
    pub unread_bytes: u32,
    /// Of what the application has not taken yet, or has not come yet, so much is urgent, bytes.
    pub urgent_bytes: u64,
    /// Held behind gaps, bytes of true buffer size.
    pub held_bytes: u32,
    /// Held behind gaps, segments.
    pub held_segments: u32,
    /// Smoothed round-trip time; `None` before the first sample.
    pub srtt: Option<Duration>,
    /// Its variation.
    pub rttvar: Duration,
    /// The least round-trip time of late.
    pub min_rtt: Option<Duration>,
    /// Retransmission timeout, with backoff.
    pub rto: Duration,
    /// Whether SACK is in use.
    pub sack: bool,
    /// Whether timestamps are in use.
    pub timestamps: bool,
    /// Shift of the windows that the peer offers.
    pub send_window_scale: u8,
    /// Shift of the windows that we offer.
    pub receive_window_scale: u8,
    /// Whether reordering was seen on the way to the peer.
    pub reordering_seen: bool,
    /// Segments received.
    pub segments_in: u64,
    /// Segments sent.
    pub segments_out: u64,
    /// Payload received in order, bytes.
    pub bytes_in: u64,
    /// Payload sent and acknowledged, bytes.
    pub bytes_acked: u64,
    /// Segments sent again.
    pub segments_retransmitted: u64,
    /// Payload sent again, bytes.
    pub bytes_retransmitted: u64,
    /// Selectively acknowledged now, bytes.
    pub sacked_bytes: u32,
    /// Believed lost now, bytes.
    pub lost_bytes: u32,
    /// Retransmission timeouts.
    pub timeouts: u32,
    /// Fast recoveries.
    pub recoveries: u32,
}
