//! Tests of the memory layout: the sizes of blocks and records, and the cache lines that each kind of work uses.

use alloc::vec::Vec;
use core::mem::offset_of;

use super::table::{Entry, Slot};
use super::window::Tuning;
use super::{
    Conn, HalfOpen, Notice, PathMtu, Pending, QueueKind, Receiver, RxNode, SendQueue, Sender, Settings,
    TimeWait, TxNode,
};
use crate::cc::CongestionWindow;
use crate::conn::{Negotiated, Reassembly};
use crate::error::CloseReason;
use crate::four_tuple::FourTuple;
use crate::pool::node_bytes;
use crate::recovery::{DeliveryRate, Phase, Rack, RttEstimator, TailLossProbe};
use crate::seq::SeqNum;
use crate::set::Set;
use crate::state::State;
use crate::time::{Instant, LongStamp, MilliStamp};
use crate::timer::{Deadlines, NODE_BYTES, Timers};
use crate::wire::SackRange;

/// A buffer as large as a port driver's handle: one pointer.
type Handle = core::ptr::NonNull<u8>;

/// Bytes of the flow table per connection. A connection and its TIME-WAIT record are two flows; the table has room
/// for twice as many, rounded up to a power of two; each place takes an entry and one control byte.
const FLOWS: usize = 8 * (size_of::<Entry>() + 1);

/// Bytes of all index queues per connection: one place in each.
const QUEUES: usize = QueueKind::COUNT * size_of::<u32>();

/// Bytes of the source accounts per connection.
const ACCOUNTS: usize = size_of::<crate::accounts::Account>();

#[test]
fn an_idle_connection_costs_less_than_a_kibibyte() {
    let all = size_of::<Slot>() + NODE_BYTES + FLOWS + QUEUES + ACCOUNTS;
    assert!(
        all <= 1024,
        "{all}: the block in its place {}, timer {NODE_BYTES}, flows {FLOWS}, queues {QUEUES}, accounts {ACCOUNTS}",
        size_of::<Slot>()
    );
}

#[test]
fn blocks_and_records_keep_their_sizes() {
    for (name, bytes, most) in [
        ("block", size_of::<Conn>(), 888),
        ("its place", size_of::<Slot>(), 896),
        ("flow", size_of::<FourTuple>(), 36),
        ("settings", size_of::<Settings>(), 16),
        ("entry of the table of flows", size_of::<Entry>(), 8),
        ("timer", NODE_BYTES, 24),
        ("half-open", node_bytes::<HalfOpen>(), 80),
        ("TIME-WAIT", node_bytes::<TimeWait>(), 88),
        ("segment to send", node_bytes::<TxNode<Handle>>(), 64),
        ("segment received", node_bytes::<RxNode<Handle>>(), 48),
    ] {
        assert!(bytes <= most, "{name}: {bytes} bytes, not {most}");
    }
}

/// A field's name, its offset in [`Conn`], and its size in bytes.
type Place = (&'static str, usize, usize);

/// Returns the [`Place`] of a field, given its type.
macro_rules! place {
    ($($field:ident).+: $kind:ty) => {
        (stringify!($($field).+), offset_of!(Conn, $($field).+), size_of::<$kind>())
    };
}

/// The fields that receiving in order reads and writes while nothing sent is outstanding and the receive buffer has
/// reached its maximum: from the comparison with the previous segment's flow until the application has consumed the
/// data. It includes what the table keeps in the block: the generation and the queue memberships.
/// `benches/per-packet/tests/lines.rs` shows that the list is complete.
///
/// The list leaves out what all connections share and what therefore stays in the first-level cache: the rings of
/// the queues, the pool node that each segment reuses, and counters. The wheel's timer node is read once after each
/// expiration, not per segment.
fn receiving_in_order() -> [Place; 34] {
    let held = offset_of!(Conn, rcv) + offset_of!(Receiver, held);
    let node = size_of::<u32>();
    [
        place!(snd.end: SeqNum),
        place!(snd.una: SeqNum),
        place!(snd.nxt: SeqNum),
        place!(snd.wnd: u32),
        place!(snd.wl1: SeqNum),
        place!(timers: Timers),
        place!(ecn: super::Ecn),
        place!(generation: u32),
        place!(queued: Set<QueueKind>),
        place!(counted: Option<State>),
        place!(heard_at: LongStamp),
        place!(state: State),
        place!(announced: u8),
        place!(pending: Set<Pending>),
        place!(notices: Set<Notice>),
        place!(ended: Option<CloseReason>),
        place!(dup_acks_owed: u8),
        place!(negotiated: Negotiated),
        place!(keepalive_probes: u8),
        place!(rcv.bytes: u64),
        place!(rcv.nxt: SeqNum),
        place!(rcv.edge: SeqNum),
        place!(rcv.last_ack_sent: SeqNum),
        place!(rcv.ts_recent: u32),
        place!(rcv.unread: u32),
        place!(rcv.unacked: u32),
        place!(rcv.buffer: u32),
        place!(rcv.segments: u32),
        place!(rcv.mss: u16),
        place!(rcv.tuned: u8),
        place!(rcv.fin_known: u8),
        ("rcv.held.ready_head", held + offset_of!(Reassembly, ready_head), node),
        ("rcv.held.ready_tail", held + offset_of!(Reassembly, ready_tail), node),
        ("rcv.held.first_run", held + offset_of!(Reassembly, first_run), node),
    ]
}

/// The fields that a request and its response use in addition, while nothing is lost, the congestion window exceeds
/// the bytes in flight, and the path MTU equals the link's.
fn answering() -> [Place; 35] {
    let queue = offset_of!(Conn, snd) + offset_of!(Sender, queue);
    let path = offset_of!(Conn, path);
    [
        place!(flow: FourTuple),
        place!(ts_offset: u32),
        place!(rtt: RttEstimator),
        place!(window: CongestionWindow),
        place!(confirmed_at: MilliStamp),
        place!(snd.emss: u16),
        ("snd.queue", queue + SendQueue::LOSS_FREE_AT, size_of::<SendQueue>() - SendQueue::LOSS_FREE_AT),
        place!(snd.small_end: SeqNum),
        place!(snd.progress_at: MilliStamp),
        place!(snd.peak_flight: u32),
        place!(snd.round_end: SeqNum),
        place!(snd.fin_queued: bool),
        place!(snd.urgent: bool),
        place!(snd.refused: bool),
        place!(snd.soft_error: bool),
        place!(snd.nagle: bool),
        place!(snd.traffic_class: u8),
        place!(rcv.tuning: Tuning),
        ("rcv.dsack", offset_of!(Conn, rcv) + offset_of!(Receiver, dsack), size_of::<SackRange>()),
        place!(rate: DeliveryRate),
        place!(recovery.rack: Rack),
        place!(recovery.tlp: TailLossProbe),
        place!(recovery.dup_acks: u32),
        place!(recovery.phase: Phase),
        place!(recovery.backoff: u8),
        place!(recovery.attempts: u8),
        // The first two deadlines: retransmission and loss probe.
        ("deadlines", offset_of!(Conn, deadlines), 8),
        ("path", path + PathMtu::PER_ACK_AT, size_of::<PathMtu>() - PathMtu::PER_ACK_AT),
        place!(segments_out: u64),
        place!(bytes_acked: u64),
        place!(last_sent_at: Instant),
        // The algorithm's tag and the start of its state.
        ("cc", offset_of!(Conn, cc), 16),
        ("where a request is found", offset_of!(Conn, snd.end), 20),
        ("its acknowledgment", offset_of!(Conn, timers), size_of::<Timers>()),
        ("its text", offset_of!(Conn, rcv.bytes), 56),
    ]
}

#[test]
fn a_request_and_its_answer_touch_eight_cache_lines_of_a_connection() {
    let lines: Vec<_> = Conn::PREFETCHED.iter().map(|at| at / 64).collect();
    assert!(lines.len() == 8 && lines.is_sorted_by(|a, b| a < b), "{lines:?}");
    for (name, at, bytes) in answering() {
        let within = (at / 64..=(at + bytes - 1) / 64).all(|line| lines.contains(&line));
        assert!(within, "{name}: bytes {at} to {}", at + bytes);
    }
}

#[test]
fn timer_expirations_use_the_prefetched_cache_lines() {
    let lines: Vec<_> = Conn::PREFETCHED_FOR_TIMERS.iter().map(|at| at / 64).collect();
    for (name, at, bytes) in [
        ("timers", offset_of!(Conn, timers), size_of::<Timers>()),
        ("deadlines", offset_of!(Conn, deadlines), size_of::<Deadlines>()),
        ("attempts", offset_of!(Conn, recovery.attempts), 1),
    ] {
        assert!((at / 64..=(at + bytes - 1) / 64).all(|line| lines.contains(&line)), "{name}");
    }
}

#[test]
fn receiving_in_order_touches_two_cache_lines_of_a_connection() {
    assert_eq!((align_of::<Slot>(), offset_of!(Slot, conn), Conn::HOT_AT % 64), (128, 0, 0));
    for (name, at, bytes) in receiving_in_order() {
        let (first, last) = (at / 64, (at + bytes - 1) / 64);
        let lines = Conn::HOT_AT / 64..Conn::HOT_AT / 64 + 2;
        assert!(lines.contains(&first) && lines.contains(&last), "{name}: bytes {at} to {}", at + bytes);
    }
}
