//! One connection: its transmission control block, and what moves it.
//!
//! A connection is moved by segments ([`Conn::on_segment`]), by timers ([`Conn::on_timer`]) and by the
//! application; each of these only changes the block and leaves notes on what is to be sent
//! ([`Pending`]) and told ([`Notice`]). What is sent is decided when the port can take it
//! ([`Conn::next_frame`]). Nothing here knows of Ethernet or IP.
//!
//! | file | RFC 9293 §3.10 |
//! |---|---|
//! | `listen`, `syn_sent`, `syn_received` | SEGMENT ARRIVES in LISTEN, SYN-SENT, SYN-RECEIVED |
//! | `half_open`, `syn_cookie`, `syn_options` | SYN-RECEIVED of a passive open: in a record of its own, or in nothing |
//! | `established` | SEGMENT ARRIVES in the synchronized states: sequence, RST, SYN |
//! | `ack` | the ACK field: window, round-trip time, loss recovery, congestion control |
//! | `undo` | taking back what a spurious timeout or recovery did |
//! | `receive` | segment text; when to acknowledge |
//! | `window` | the window that is offered |
//! | `halves`, `settings` | the variables of both halves (§3.3.1); options |
//! | `urgent` | the urgent pointer, both ways |
//! | `closing` | CLOSE, ABORT, FIN, and how a connection ends |
//! | `time_wait` | TIME-WAIT, in a record of its own |
//! | `path_mtu` | how long segments may be |
//! | `ecn` | explicit congestion notification, both halves |
//! | `output`, `timeout` | what is sent; USER, RETRANSMISSION and other timeouts |
//! | `train` | what is sent, for new segments in a row |
//! | `pace` | the rate of delivery, and of sending |

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
use crate::cc::{Controller, Pacer, Window};
use crate::config::{ConnOptions, GivesWay, StackConfig};
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

/// What both SYNs agreed on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Negotiated {
    pub(crate) timestamps: bool,
    pub(crate) sack: bool,
    pub(crate) window_scale: bool,
    /// Shift of the windows that the peer offers.
    pub(crate) snd_wscale: u8,
    /// Shift of the windows that we offer.
    pub(crate) rcv_wscale: u8,
}

/// What is to be sent when the port can take it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pending {
    /// The SYN, or the SYN and ACK.
    Syn,
    /// An acknowledgment, now.
    Ack,
    /// The first lost segment, whatever the congestion window.
    Force,
    /// An byte into a closed window.
    Probe,
    /// Less than a segment into a small window.
    Small,
    /// A tail loss probe.
    LossProbe,
    /// A keepalive.
    Keepalive,
}

impl Member for Pending {
    #[inline]
    fn number(self) -> u8 {
        self as u8
    }
}

/// What the application is to be told, in this order; data comes after the first, and the end after the last.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Notice {
    Opened,
    /// The urgent pointer has advanced.
    Urgent,
    PeerClosed,
    Writable,
    EmssChanged,
    /// What the application keeps of received data is wanted back.
    Reclaim,
}

impl Member for Notice {
    #[inline]
    fn number(self) -> u8 {
        self as u8
    }
}

/// What is seldom counted per connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ConnCounters {
    /// A multiple of 2^32, to which [`Receiver::segments`] is added.
    pub(crate) segments_in: u64,
    pub(crate) bytes_retransmitted: u64,
    pub(crate) segments_retransmitted: u64,
    pub(crate) timeouts: u32,
    pub(crate) recoveries: u32,
}

/// A connection queues segments up to this part of the nodes that are free: n connections that do so leave 4/(n + 4),
const SHARE_OF_FREE: u32 = 4;
/// but never less than this part of all buffers: what is received needs some too, and the answers to it;
const KEPT_OF_ALL: u32 = 4;
/// but for so many segments, which every connection may queue.
const SHARE_MIN: u32 = 4;

/// Segments that one connection may queue while `free` of `all` nodes are left.
const fn send_share(free: u32, all: u32) -> u32 {
    let (share, left) = (free / SHARE_OF_FREE, free.saturating_sub(all / KEPT_OF_ALL));
    let share = if share < left { share } else { left };
    if share < SHARE_MIN { SHARE_MIN } else { share }
}

/// The transmission control block. Its fields are in the order of the cache lines that they share. What receiving in
/// order reads and writes, while nothing that was sent is outstanding, lies in the two from byte 192 on; the addresses
/// are not among it: a segment of the flow of the one before is known by the stack's copy of them. What a request and its answer
/// need beside these lies in six more ([`Self::prefetch`] reads from all eight), each structure with what is seldom needed at its other end.
///
/// ```text
///     0 │ flow · rtt · window · snd: rarely │ snd: queue …
///   192 │ snd: end una nxt wnd wl1 · timers · ecn · place · state, notes
///   256 │ … · rcv: bytes nxt edge … ready runs
///   320 │ rcv: rarely
///   384 │ rcv: tuning, dsack · rate · recovery · deadlines of retransmission and probe
///   512 │ the others · settings … path: rarely
///   576 │ path · counters · last_sent_at · cc: which, and what it begins with
///   640 │ cc · what only losses need · counters of rarities …
/// ```
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Conn {
    pub(crate) flow: FourTuple,
    /// Added to the clock in timestamps (RFC 7323 §5.4: "a random offset").
    pub(crate) ts_offset: u32,
    pub(crate) rtt: RttEstimator,
    pub(crate) window: Window,
    /// When the neighbor was last told that it is reachable.
    pub(crate) confirmed_at: MilliStamp,
    pub(crate) snd: Sender,
    pub(crate) timers: Timers,
    pub(crate) ecn: Ecn,
    // What [`ConnTable`] knows of the place that the block is in; the first two outlive the connection.
    /// Which connection of that place it is.
    generation: u32,
    /// The queues that the place is in.
    queued: Set<QueueKind>,
    /// The state that it is counted in; `None` while there is no connection.
    pub(crate) counted: Option<State>,
    /// When the peer was heard of last: what only it can have sent.
    pub(crate) heard_at: LongStamp,
    pub(crate) state: State,
    /// The application knows of it.
    pub(crate) announced: bool,
    pub(crate) pending: Set<Pending>,
    pub(crate) notices: Set<Notice>,
    /// How it has ended, until that is told: it is the last that is, and frees the connection.
    pub(crate) ended: Option<CloseReason>,
    /// Duplicate acknowledgments beyond the one that is pending, for a peer that counts them.
    pub(crate) dup_acks_owed: u8,
    pub(crate) negotiated: Negotiated,
    pub(crate) keepalive_probes: u8,
    pub(crate) rcv: Receiver,
    pub(crate) rate: DeliveryRate,
    pub(crate) recovery: Recovery,
    pub(crate) deadlines: Deadlines,
    pub(crate) settings: Settings,
    /// When the current interval of challenge acknowledgments began, and how many it still has (RFC 5961 §7).
    pub(crate) challenges_since: MilliStamp,
    pub(crate) challenges_left: u8,
    /// It ends in TIME-WAIT.
    pub(crate) lingers: bool,
    /// It has ended and is no longer in the table of flows.
    pub(crate) unlinked: bool,
    /// When it gives way to newcomers.
    pub(crate) gives_way: GivesWay,
    pub(crate) path: PathMtu,
    pub(crate) segments_out: u64,
    /// Payload that was acknowledged, bytes.
    pub(crate) bytes_acked: u64,
    /// When the SYN, or a segment of the queue, was sent last.
    pub(crate) last_sent_at: Instant,
    pub(crate) cc: Controller,
    pub(crate) pacer: Pacer,
    pub(crate) episode: Episode,
    pub(crate) counters: ConnCounters,
    pub(crate) opened_at: Instant,
    /// Who accepted it; `None` for an active open.
    pub(crate) listener: Option<ListenerId>,
    /// Keyed hash of the addresses and ports, by which the flow is found.
    pub(crate) hash: u32,
    /// Another, which nothing but what is drawn by it tells of; the table of connections sets it.
    secret: u32,
    /// The account of its source; the stack sets it when it enters the connection.
    pub(crate) source: u32,
    /// Packet buffers that the application keeps of what it was handed.
    pub(crate) kept: u32,
}

/// What a connection needs of the stack while it is moved.
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
    /// The station that it came from: the peer, or a router.
    pub(crate) src_mac: MacAddr,
    /// The ECN field of its IP header.
    pub(crate) ecn: EcnField,
}

impl<B> Incoming<B> {
    /// SEG.LEN: "the number of octets occupied by the data in the segment (counting SYN and FIN)".
    pub(crate) fn seq_len(&self) -> u32 {
        use crate::wire::TcpFlags;
        let flags = self.header.flags;
        self.payload
            .len()
            .wrapping_add(u32::from(flags.contains(TcpFlags::SYN)))
            .wrapping_add(u32::from(flags.contains(TcpFlags::FIN)))
    }
}

/// A segment that answers one without changing a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reply {
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    /// Sequence and acknowledgment numbers, flags and window.
    pub(crate) header: TcpHeader,
    pub(crate) options: TcpOptions,
}

/// What became of a segment, and what else follows.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// It was of use.
    Accepted,
    /// It was not.
    Dropped(DropReason),
    /// It was not, and a segment from outside of any connection's stream answers it.
    Answered(DropReason, Reply),
}

/// Everything that a new connection starts from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin {
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    pub(crate) hash: u32,
    pub(crate) iss: SeqNum,
    pub(crate) ts_offset: u32,
    pub(crate) listener: Option<ListenerId>,
    pub(crate) options: ConnOptions,
    /// The longest packet that is known to reach the other end, bytes.
    pub(crate) path_mtu: u16,
}

impl Conn {
    /// Where the two cache lines begin that receiving in order touches, bytes.
    #[cfg(test)]
    const HOT_AT: usize = 192;

    /// A connection that is about to send its SYN.
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
            snd: Sender::new(now, iss, origin.options.nagle),
            window: Window::initial(536, &config.tcp),
            timers: Timers::new(),
            rtt: RttEstimator::new(),
            recovery: Recovery::new(iss),
            episode: Episode::new(iss, ack::SACK_STEPS_SAVED_MAX),
            cc: Controller::new(congestion).with_seed(iss.get()),
            pacer: Pacer::new(),
            rate: DeliveryRate::default(),
            ecn: Ecn::new(&config.tcp, &origin.options),
            flow: FourTuple::new(origin.local, origin.remote),
            hash: origin.hash,
            secret: 0,
            source: 0,
            kept: 0,
            ts_offset: origin.ts_offset,
            listener: origin.listener,
            announced: origin.listener.is_none(),
            lingers: false,
            unlinked: false,
            gives_way: GivesWay::Never,
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

    /// Its name, at this place of the table.
    #[inline]
    pub(crate) fn id_at(&self, index: u32) -> ConnId {
        ConnId::new(index, self.generation)
    }

    /// Our end.
    pub(crate) fn local(&self) -> SocketAddr {
        self.flow.local()
    }

    /// The other end.
    pub(crate) fn remote(&self) -> SocketAddr {
        self.flow.remote()
    }

    /// Packet buffers with received data: behind gaps, and in the hands of the application.
    pub(crate) fn retained(&self) -> u32 {
        self.rcv.held.buffers().saturating_add(self.kept)
    }

    /// Where it is counted.
    pub(crate) fn accounts(&self) -> AccountIds {
        AccountIds::new(self.listener, self.source)
    }

    /// The timestamp clock: milliseconds (RFC 7323 §5.4: "between 1 ms and 1 sec per tick").
    pub(crate) fn ts_clock(&self, at: Instant) -> u32 {
        ts_clock(at, self.ts_offset)
    }

    /// Counts a segment.
    #[inline]
    fn count_arrival(&mut self) {
        self.rcv.segments = self.rcv.segments.wrapping_add(1);
        if self.rcv.segments == 0 {
            self.counters.segments_in = self.counters.segments_in.wrapping_add(1 << 32);
        }
    }

    /// A segment for this connection.
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

    /// Whether there is something to tell the application.
    #[inline]
    pub(crate) fn has_events(&self) -> bool {
        let notices = !self.notices.is_empty() || self.ended.is_some();
        self.announced && (notices || self.rcv.held.has_ready() || self.rcv.held.has_fresh())
    }

    /// Whether [`Conn::next_frame`] may have something.
    #[inline]
    pub(crate) fn wants_output(&self) -> bool {
        let pending = !self.pending.is_empty() || self.dup_acks_owed > 0;
        pending || (self.snd.end != self.snd.una && self.snd.queue.wants_output())
    }

    /// Starts a timer.
    #[inline]
    pub(crate) fn set_timer(&mut self, kind: TimerKind, now: Instant, after: Duration) {
        self.timers.set(&mut self.deadlines, kind, now, after);
    }

    /// As [`Self::set_timer`], nanoseconds.
    #[inline]
    pub(crate) fn set_timer_nanos(&mut self, kind: TimerKind, now: Instant, after: u64) {
        self.timers.set_nanos(&mut self.deadlines, kind, now, after);
    }

    /// Segments received.
    pub(crate) fn segments_in(&self) -> u64 {
        self.counters.segments_in.wrapping_add(self.rcv.segments.into())
    }

    /// Segments that may be queued, with `free` nodes left for data of all connections.
    fn segments_max(&self, config: &StackConfig, free: u32) -> u32 {
        // Small segments are bounded by their number: a buffer costs the same however full it is.
        let segments_max = (config.send_buffer_bytes / 512).max(64);
        // No more than a part of what is left: peers that do not read could otherwise take all buffers together, and
        // keep them from everyone else for as long as they like.
        segments_max.min(send_share(free, config.buffers_max))
    }

    /// Bytes that [`Stack::send`](crate::Stack::send) still takes, with `free` nodes left for data.
    pub(crate) fn send_room(&self, config: &StackConfig, free: u32) -> u32 {
        let segments = self.segments_max(config, free).saturating_sub(self.snd.queue.segments());
        self.append_room(config).min(segments.saturating_mul(self.snd.emss.into()))
    }

    /// Whether [`Self::send_room`] is at least `len` bytes.
    #[inline]
    pub(crate) fn has_room_for(&self, config: &StackConfig, free: u32, len: u16) -> bool {
        let (bytes, queued) = (u32::from(len), self.snd.queue.segments());
        // Of a few segments of at most the usual length only the bytes count, however little is left.
        let few = queued < SHARE_MIN && len <= self.snd.emss;
        if few { bytes <= self.append_room(config) } else { bytes <= self.send_room(config, free) }
    }

    /// Whether there is so much room that it is worth telling: a quarter of the queue and a full segment's, or half of
    /// its segments.
    pub(crate) fn has_much_room(&self, config: &StackConfig, free: u32) -> bool {
        let segments = self.segments_max(config, free) / 2;
        let bytes = config.send_buffer_bytes;
        let much = (bytes / 4).max(self.snd.emss.into()).min(bytes);
        let much = much.min(segments.saturating_mul(self.snd.emss.into()));
        self.send_room(config, free) >= much.max(1)
    }

    /// Bytes that may still be appended to a segment that is queued.
    pub(crate) fn append_room(&self, config: &StackConfig) -> u32 {
        if !self.state.can_send() || self.snd.fin_queued {
            return 0;
        }
        config.send_buffer_bytes.saturating_sub(self.snd.queue.bytes())
    }
}

/// The timestamp clock with an offset.
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
        // Alone, a connection has a quarter of them: those that it takes count.
        assert_eq!(send_share(all, all), all / 4);
        for connections in [1_u32, 10, 64, 2000] {
            let (mut free, mut least) = (all, all / KEPT_OF_ALL);
            for _ in 0..connections {
                // One after the other queues all that it may, at most a send buffer of 1 MiB.
                let queued = (1..=free.min(725)).take_while(|n| *n <= send_share(free - n, all)).count();
                free -= u32::try_from(queued).unwrap();
                least = least.saturating_sub(SHARE_MIN);
            }
            assert!(free >= least, "{connections} connections leave {free}, less than {least}");
        }
    }
}
