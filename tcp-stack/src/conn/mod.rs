//! A connection: its transmission control block (TCB) and the functions that change it.
//!
//! Segments ([`Conn::on_segment`]), timers ([`Conn::on_timer`]) and the application's calls change the block. They
//! only note what must be sent ([`Pending`]) and which events the application gets ([`Notice`]).
//! [`Conn::next_frame`] builds segments when the port can take them. Nothing here depends on Ethernet or IP.
//! [`Stack`](crate::Stack) is the only caller.
//!
//! | file | RFC 9293 §3.10 |
//! |---|---|
//! | `listen`, `syn_sent`, `syn_received` | SEGMENT ARRIVES in LISTEN, SYN-SENT, SYN-RECEIVED |
//! | `half_open`, `syn_cookie`, `syn_options` | SYN-RECEIVED of a passive open: a record of its own, or a cookie |
//! | `established` | SEGMENT ARRIVES in the synchronized states: sequence, RST, SYN |
//! | `ack` | the ACK field: window, round-trip time, loss recovery, congestion control |
//! | `undo` | reverting the response to a spurious timeout or recovery |
//! | `receive` | segment text; delayed acknowledgments |
//! | `window` | the receive window |
//! | `halves`, `settings` | the send and receive variables (§3.3.1); the connection's options |
//! | `urgent` | the urgent pointer, in both directions |
//! | `closing` | CLOSE, ABORT, FIN, and the end of a connection |
//! | `time_wait` | TIME-WAIT, in a record of its own |
//! | `path_mtu` | path MTU discovery |
//! | `ecn` | explicit congestion notification, sender and receiver |
//! | `output`, `timeout` | the choice of the next segment; USER, RETRANSMISSION and other timeouts |
//! | `train` | batches of new segments |
//! | `pace` | delivery rate and pacing |

mod ack;
mod closing;
mod ecn;
mod established;
mod half_open;
mod halves;
#[cfg(test)]
mod layout;
mod listen;
mod output;
mod pace;
mod path_mtu;
mod predicted;
mod prefetch;
mod reassembly;
mod receive;
mod send_queue;
mod settings;
mod syn_cookie;
mod syn_options;
mod syn_received;
mod syn_sent;
mod table;
mod time_wait;
mod timeout;
mod train;
mod undo;
mod urgent;
mod window;

use core::net::SocketAddr;

pub(crate) use ecn::Ecn;
pub(crate) use half_open::{HalfOpen, HalfOpenTable, HalfOpenVerdict, syn_ack};
pub(crate) use halves::{Receiver, Sender};
pub(crate) use listen::{Listener, Listeners, SynOffer};
pub(crate) use output::{Frame, Limit};
pub(crate) use path_mtu::PathMtu;
pub(crate) use reassembly::{Held, HoldError, HoldLimits, Payload, Reassembly, RxNode};
pub(crate) use send_queue::{SendQueue, TxNode, TxState};
pub(crate) use settings::Settings;
pub(crate) use syn_cookie::{COOKIE_LIFE, Cookies};
pub(crate) use syn_options::SynOptions;
pub(crate) use syn_received::NOT_TIMED;
pub(crate) use table::{ConnTable, IndexQueue, QueueKind, Target};
pub(crate) use time_wait::{TimeWait, TimeWaitTable, TimeWaitVerdict};
pub(crate) use window::ReceiveMemory;

use crate::accounts::{AccountIds, Accounts};
use crate::buf::Buf;
use crate::cc::{CongestionWindow, Controller, Pacer};
use crate::config::{ConnOptions, EvictionPolicy, StackConfig};
use crate::error::CloseReason;
use crate::event::{ConnId, ListenerId};
use crate::four_tuple::FourTuple;
use crate::iface::{DropReason, PathMtuCache};
use crate::pool::Pool;
use crate::recovery::{DeliveryRate, Episode, Recovery, RttEstimator};
use crate::seq::SeqNum;
use crate::set::{Member, Set};
use crate::state::State;
use crate::stats::TcpStats;
use crate::time::{Duration, Instant, LongStamp, MilliStamp};
use crate::timer::{Deadlines, TimerKind, Timers};
use crate::wire::{EcnField, MacAddr, TcpHeader, TcpOptions};

/// The options that both SYNs agreed on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Negotiated {
    pub(crate) timestamps: bool,
    pub(crate) sack: bool,
    pub(crate) window_scale: bool,
    /// Shift of the peer's window field: Snd.Wind.Shift (RFC 7323 §2.2).
    pub(crate) snd_wscale: u8,
    /// Shift of our window field: Rcv.Wind.Shift.
    pub(crate) rcv_wscale: u8,
}

/// A segment that must be sent as soon as the port can take it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pending {
    /// The SYN or the SYN-ACK.
    Syn,
    /// An acknowledgment that is not delayed further.
    Ack,
    /// The first lost segment, regardless of the congestion window.
    Force,
    /// One byte into a closed window.
    Probe,
    /// A part of a segment into a window that is too small for all of it.
    Small,
    /// A tail loss probe.
    LossProbe,
    /// A keepalive probe (RFC 9293 §3.8.4).
    Keepalive,
}

impl Member for Pending {
    #[inline]
    fn number(self) -> u8 {
        self as u8
    }
}

/// An event that the application has not polled yet. Events are returned in this order; data comes after the first,
/// and [`Event::Closed`](crate::Event::Closed) last.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Notice {
    Opened,
    /// The urgent pointer has advanced.
    Urgent,
    PeerClosed,
    Writable,
    EmssChanged,
    /// The application must release received packet buffers that it retains.
    Reclaim,
}

impl Member for Notice {
    #[inline]
    fn number(self) -> u8 {
        self as u8
    }
}

/// Counters that change rarely; the others are in the halves.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ConnCounters {
    /// Segments received, rounded down to a multiple of 2^32; [`Receiver::segments`] holds the rest.
    pub(crate) segments_in: u64,
    pub(crate) bytes_retransmitted: u64,
    pub(crate) segments_retransmitted: u64,
    pub(crate) timeouts: u32,
    pub(crate) recoveries: u32,
}

/// A connection may queue 1 / `SHARE_OF_FREE` of the free nodes: n connections that do so leave 4/(n + 4).
const SHARE_OF_FREE: u32 = 4;
/// 1 / `KEPT_OF_ALL` of all nodes is kept free for received data and the replies to it.
const KEPT_OF_ALL: u32 = 4;
/// Every connection may queue this many segments, however few nodes are free.
const SHARE_MIN: u32 = 4;

/// Returns the segments that one connection may queue while `free` of `all` nodes are free.
const fn send_share(free: u32, all: u32) -> u32 {
    let (share, left) = (free / SHARE_OF_FREE, free.saturating_sub(all / KEPT_OF_ALL));
    let share = if share < left { share } else { left };
    if share < SHARE_MIN { SHARE_MIN } else { share }
}

/// The transmission control block. Fields that are used together share cache lines. Receiving in order, with
/// nothing outstanding, reads and writes only the two lines that begin at byte 192. The four-tuple is not among
/// them, because the stack keeps a copy of the previous segment's flow to compare with. A request and its response
/// use six more lines ([`Self::prefetch`] reads from all eight); each sub-structure keeps its rarely used fields at
/// the end that lies outside of these lines.
///
/// ```text
///     0 │ flow · rtt · window · snd: rare │ snd: queue …
///   192 │ snd: end una nxt wnd wl1 · timers · ecn · slot · state, notices
///   256 │ … · rcv: bytes nxt edge … ready runs
///   320 │ rcv: rare
///   384 │ rcv: tuning, dsack · rate · recovery · deadlines of retransmission and probe
///   512 │ the others · settings … path: rare
///   576 │ path · counters · last_sent_at · cc: tag and first fields
///   640 │ cc · loss recovery · rare counters …
/// ```
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Conn {
    pub(crate) flow: FourTuple,
    /// Offset that timestamps add to the clock (RFC 7323 §5.4: "a random offset").
    pub(crate) ts_offset: u32,
    pub(crate) rtt: RttEstimator,
    pub(crate) window: CongestionWindow,
    /// Time of the last reachability confirmation to the neighbor cache.
    pub(crate) confirmed_at: MilliStamp,
    pub(crate) snd: Sender,
    pub(crate) timers: Timers,
    pub(crate) ecn: Ecn,
    // Bookkeeping of [`ConnTable`] for this slot. The first two fields outlive the connection.
    /// Generation of the slot: distinguishes its successive connections.
    generation: u32,
    /// The index queues that hold this slot.
    queued: Set<QueueKind>,
    /// The state under which this connection is counted; `None` while the slot is free.
    pub(crate) counted: Option<State>,
    /// Arrival time of the last segment that only the peer can have sent.
    pub(crate) heard_at: LongStamp,
    pub(crate) state: State,
    /// Set once the application has learned of the connection: at once for an active open.
    pub(crate) announced: bool,
    pub(crate) pending: Set<Pending>,
    pub(crate) notices: Set<Notice>,
    /// The reason for the end, until its event is polled. That event is the last one and frees the slot.
    pub(crate) ended: Option<CloseReason>,
    /// Duplicate acknowledgments owed in addition to the pending one, for a peer without SACK.
    pub(crate) dup_acks_owed: u8,
    pub(crate) negotiated: Negotiated,
    pub(crate) keepalive_probes: u8,
    pub(crate) rcv: Receiver,
    pub(crate) rate: DeliveryRate,
    pub(crate) recovery: Recovery,
    pub(crate) deadlines: Deadlines,
    pub(crate) settings: Settings,
    /// Start of the current challenge interval, and the challenge acknowledgments that it has left (RFC 5961 §7).
    pub(crate) challenges_since: MilliStamp,
    pub(crate) challenges_left: u8,
    /// Set if a TIME-WAIT record follows the connection: it closed first, or a SYN cookie opened it and it has not
    /// failed.
    pub(crate) ends_in_time_wait: bool,
    /// Set once the connection has ended and its flow has left the flow table.
    pub(crate) unlinked: bool,
    /// Eviction policy of the connection.
    pub(crate) eviction_policy: EvictionPolicy,
    pub(crate) path: PathMtu,
    pub(crate) segments_out: u64,
    /// Payload acknowledged by the peer, bytes.
    pub(crate) bytes_acked: u64,
    /// Time of the last transmission of the SYN or of a queued segment.
    pub(crate) last_sent_at: Instant,
    pub(crate) cc: Controller,
    pub(crate) pacer: Pacer,
    pub(crate) episode: Episode,
    pub(crate) counters: ConnCounters,
    pub(crate) opened_at: Instant,
    /// The listener that accepted it; `None` for an active open.
    pub(crate) listener: Option<ListenerId>,
    /// Keyed hash of the four-tuple, for lookups in the flow table.
    pub(crate) hash: u32,
    /// Secret for this connection's random draws; never visible on the wire. [`ConnTable`] sets it.
    secret: u32,
    /// The account of its source. The stack sets it when the connection enters the table.
    pub(crate) source: u32,
    /// Packet buffers of delivered data that the application retains, as declared with
    /// [`Stack::retain`](crate::Stack::retain).
    pub(crate) app_retained: u32,
}

/// The parts of the stack that a connection uses while it handles a segment, a timer or a call.
#[derive(Debug)]
pub(crate) struct Cx<'a, B> {
    pub(crate) now: Instant,
    pub(crate) config: &'a StackConfig,
    pub(crate) tx: &'a mut Pool<TxNode<B>>,
    pub(crate) rx: &'a mut Pool<RxNode<B>>,
    pub(crate) memory: &'a mut ReceiveMemory,
    pub(crate) accounts: &'a mut Accounts,
    pub(crate) stats: &'a mut TcpStats,
    pub(crate) paths: &'a mut PathMtuCache,
}

/// A segment that arrived for a connection.
#[derive(Debug)]
pub(crate) struct Incoming<B> {
    pub(crate) header: TcpHeader,
    pub(crate) options: TcpOptions,
    pub(crate) payload: Payload<B>,
    /// Link address of the sender: the peer or a router.
    pub(crate) src_mac: MacAddr,
    /// The ECN field of the IP header.
    pub(crate) ecn: EcnField,
}

impl<B> Incoming<B> {
    /// Returns SEG.LEN: "the number of octets occupied by the data in the segment (counting SYN and FIN)".
    pub(crate) fn seq_len(&self) -> u32 {
        use crate::wire::TcpFlags;
        let flags = self.header.flags;
        self.payload
            .len()
            .wrapping_add(u32::from(flags.contains(TcpFlags::SYN)))
            .wrapping_add(u32::from(flags.contains(TcpFlags::FIN)))
    }
}

/// A segment that answers another one without changing a connection: a reset, a challenge or a cookie.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reply {
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    /// The TCP header, complete but for the checksum.
    pub(crate) header: TcpHeader,
    pub(crate) options: TcpOptions,
    /// Traffic class of the connection that it belongs to, without the ECN bits; 0 if it belongs to none.
    pub(crate) traffic_class: u8,
}

/// The result of handling a segment.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The connection used it.
    Accepted,
    /// The connection did not use it.
    Dropped(DropReason),
    /// It was dropped, and this reply, which is outside of the connection's stream, must be sent.
    Answered(DropReason, Reply),
}

/// The initial values of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin {
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    pub(crate) hash: u32,
    pub(crate) iss: SeqNum,
    pub(crate) ts_offset: u32,
    pub(crate) listener: Option<ListenerId>,
    pub(crate) options: ConnOptions,
    /// Path MTU known from other connections to the destination, bytes.
    pub(crate) path_mtu: u16,
}

impl Conn {
    /// Returns the traffic class of a packet with this ECN field.
    #[inline]
    pub(crate) fn traffic_class(&self, ecn: EcnField) -> u8 {
        self.snd.traffic_class | ecn.bits()
    }

    /// Offset of the two cache lines that receiving in order uses, bytes.
    #[cfg(test)]
    const HOT_AT: usize = 192;

    /// Makes a connection whose SYN or SYN-ACK has not been sent.
    fn new(now: Instant, origin: &Origin, config: &StackConfig, state: State) -> Self {
        let iss = origin.iss;
        let congestion = origin.options.congestion.unwrap_or(config.tcp.congestion);
        let mut pending = Set::EMPTY;
        pending.add(Pending::Syn);
        Self {
            generation: 0,
            queued: Set::EMPTY,
            counted: None,
            state,
            negotiated: Negotiated::default(),
            pending,
            notices: Set::EMPTY,
            ended: None,
            dup_acks_owed: 0,
            rcv: Receiver::new(now, config),
            snd: Sender::new(now, iss, &origin.options),
            window: CongestionWindow::initial(536, &config.tcp),
            timers: Timers::new(),
            rtt: RttEstimator::new(),
            recovery: Recovery::new(iss),
            episode: Episode::new(iss, ack::SACK_STEPS_SAVED_MAX),
            cc: Controller::new(congestion).with(iss.get(), config.tcp.bbr_loss_percent),
            pacer: Pacer::new(),
            rate: DeliveryRate::default(),
            ecn: Ecn::new(&config.tcp, &origin.options),
            flow: FourTuple::new(origin.local, origin.remote),
            hash: origin.hash,
            secret: 0,
            source: 0,
            app_retained: 0,
            ts_offset: origin.ts_offset,
            listener: origin.listener,
            announced: origin.listener.is_none(),
            ends_in_time_wait: false,
            unlinked: false,
            eviction_policy: EvictionPolicy::Never,
            path: PathMtu::new(now, origin.path_mtu.min(config.mtu)),
            confirmed_at: MilliStamp::of(now),
            keepalive_probes: 0,
            challenges_left: config.tcp.challenge_acks_max,
            challenges_since: MilliStamp::of(now),
            heard_at: LongStamp::of(now),
            last_sent_at: now,
            opened_at: now,
            settings: Settings::of(&origin.options),
            deadlines: Deadlines::NONE,
            segments_out: 0,
            bytes_acked: 0,
            counters: ConnCounters::default(),
        }
    }

    /// Returns the identifier of this connection in slot `index`.
    #[inline]
    pub(crate) fn id_at(&self, index: u32) -> ConnId {
        ConnId::new(index, self.generation)
    }

    /// Returns our address and port.
    pub(crate) fn local(&self) -> SocketAddr {
        self.flow.local()
    }

    /// Returns the peer's address and port.
    pub(crate) fn remote(&self) -> SocketAddr {
        self.flow.remote()
    }

    /// Returns the packet buffers with received data: out-of-order segments, and those that the application
    /// retains.
    pub(crate) fn retained(&self) -> u32 {
        self.rcv.held.payloads().saturating_add(self.app_retained)
    }

    /// Returns the accounts in which this connection is counted.
    pub(crate) fn accounts(&self) -> AccountIds {
        AccountIds::new(self.listener, self.source)
    }

    /// Returns the timestamp clock: milliseconds (RFC 7323 §5.4: "between 1 ms and 1 sec per tick").
    pub(crate) fn ts_clock(&self, at: Instant) -> u32 {
        ts_clock(at, self.ts_offset)
    }

    /// Counts a received segment.
    #[inline]
    fn count_arrival(&mut self) {
        self.rcv.segments = self.rcv.segments.wrapping_add(1);
        if self.rcv.segments == 0 {
            self.counters.segments_in = self.counters.segments_in.wrapping_add(1 << 32);
        }
    }

    /// SEGMENT ARRIVES (RFC 9293 §3.10.7.3 and .4), for a segment of this connection.
    pub(crate) fn on_segment<B: Buf>(&mut self, cx: &mut Cx<'_, B>, segment: Incoming<B>) -> Outcome {
        self.count_arrival();
        match self.state {
            State::SynSent => self.in_syn_sent(cx, segment),
            State::Closed => Outcome::Dropped(DropReason::TcpClosed),
            State::SynReceived
            | State::Established
            | State::FinWait1
            | State::FinWait2
            | State::CloseWait
            | State::Closing
            | State::LastAck => self.in_synchronized(cx, segment),
        }
    }

    /// True if the application has events to poll.
    #[inline]
    pub(crate) fn has_events(&self) -> bool {
        let notices = !self.notices.is_empty() || self.ended.is_some();
        self.announced && (notices || self.rcv.held.has_ready() || self.rcv.held.has_unoffered())
    }

    /// True if [`Conn::next_frame`] may return a segment.
    #[inline]
    pub(crate) fn wants_output(&self) -> bool {
        let pending = !self.pending.is_empty() || self.dup_acks_owed > 0;
        pending || (self.snd.end != self.snd.una && self.snd.queue.wants_output())
    }

    /// Starts a timer, or restarts it.
    #[inline]
    pub(crate) fn set_timer(&mut self, kind: TimerKind, now: Instant, after: Duration) {
        self.timers.set(&mut self.deadlines, kind, now, after);
    }

    /// Same as [`Self::set_timer`], in nanoseconds.
    #[inline]
    pub(crate) fn set_timer_nanos(&mut self, kind: TimerKind, now: Instant, after: u64) {
        self.timers.set_nanos(&mut self.deadlines, kind, now, after);
    }

    /// Returns the number of segments received.
    pub(crate) fn segments_in(&self) -> u64 {
        self.counters.segments_in.wrapping_add(self.rcv.segments.into())
    }

    /// Returns the number of segments that may be queued while `free` nodes are left for data of all connections.
    fn segments_max(&self, config: &StackConfig, free: u32) -> u32 {
        // Small segments are limited in number: a buffer costs the same however full it is.
        let segments_max = (config.send_buffer_bytes / 512).max(64);
        // A connection takes only a part of the free nodes: otherwise peers that do not read could take all buffers
        // and withhold them from the others.
        segments_max.min(send_share(free, config.buffers_max))
    }

    /// Returns the bytes that [`Stack::send`](crate::Stack::send) accepts while `free` nodes are left for data.
    pub(crate) fn send_room(&self, config: &StackConfig, free: u32) -> u32 {
        let segments = self.segments_max(config, free).saturating_sub(self.snd.queue.segments());
        self.append_room(config).min(segments.saturating_mul(self.snd.emss.into()))
    }

    /// True if [`Self::send_room`] is at least `len` bytes.
    #[inline]
    pub(crate) fn has_room_for(&self, config: &StackConfig, free: u32, len: u16) -> bool {
        let (bytes, queued) = (u32::from(len), self.snd.queue.segments());
        // The first `SHARE_MIN` segments of at most a full segment's length are limited in bytes only.
        let few = queued < SHARE_MIN && len <= self.snd.emss;
        if few { bytes <= self.append_room(config) } else { bytes <= self.send_room(config, free) }
    }

    /// True if there is enough room for [`Event::Writable`](crate::Event::Writable): a quarter of the send buffer
    /// and a full segment, or half of the segments that may be queued.
    pub(crate) fn has_room_to_announce(&self, config: &StackConfig, free: u32) -> bool {
        let segments = self.segments_max(config, free) / 2;
        let bytes = config.send_buffer_bytes;
        let much = (bytes / 4).max(self.snd.emss.into()).min(bytes);
        let much = much.min(segments.saturating_mul(self.snd.emss.into()));
        self.send_room(config, free) >= much.max(1)
    }

    /// Returns the bytes that may still be appended to a queued segment.
    pub(crate) fn append_room(&self, config: &StackConfig) -> u32 {
        if !self.state.can_send() || self.snd.fin_queued {
            return 0;
        }
        config.send_buffer_bytes.saturating_sub(self.snd.queue.bytes())
    }
}

/// Returns the timestamp clock at `at`, milliseconds plus `offset`, modulo 2^32.
pub(crate) fn ts_clock(at: Instant, offset: u32) -> u32 {
    let [.., a, b, c, d] = at.as_millis().to_be_bytes();
    u32::from_be_bytes([a, b, c, d]).wrapping_add(offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_that_do_not_read_leave_buffers_to_others() {
        let all = 65_536_u32;
        // Alone, a connection gets a quarter of them, counting those that it takes.
        assert_eq!(send_share(all, all), all / 4);
        for connections in [1_u32, 10, 64, 2000] {
            let (mut free, mut least) = (all, all / KEPT_OF_ALL);
            for _ in 0..connections {
                // Each queues as much as it may, at most a send buffer of 1 MiB.
                let queued = (1..=free.min(725)).take_while(|n| *n <= send_share(free - n, all)).count();
                free -= u32::try_from(queued).unwrap();
                least = least.saturating_sub(SHARE_MIN);
            }
            assert!(free >= least, "{connections} connections leave {free}, less than {least}");
        }
    }
}
