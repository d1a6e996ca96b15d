//! Queue pairs that are connected by number (`ibv_modify_qp` INIT → RTR → RTS), as programs of InfiniBand do. They tell
//! each other number and GID by a way of their own; at RTR the device knows both ends, and makes the connection itself.
//!
//! ```text
//!             smaller (number, GID)                            larger
//!   RTR ──▶ Pausing ──▶ Opening ── request ──▶ held until RTR, accepted or rejected ◀── Waiting ◀── RTR
//!              ▲           │ │
//!              └── failed ─┘ └──── established ──▶ Up ──── stream ended ──▶ Orphan
//! ```
//! Both ends know all four values, so normally one of them opens. The other opens, too, if it has work to send and no
//! request has come for a second: the way may be closed in one direction, and GIDs may be seen differently. If both
//! open, the smaller nonce wins. A request that meets a queue pair before its RTR is held.
//!
//! The transitions never wait. Work that is posted before the connection stands is kept in front of the device, which
//! refuses it with [`PostError::State`](super::PostError::State). A stream that ends takes no work with it: the queue
//! pair is an orphan then, as one of InfiniBand whose peer has vanished, and its work fails once its time is over.

mod attempts;
mod requests;
pub(crate) mod wire;

use core::net::IpAddr;
use core::time::Duration;
use std::collections::{BTreeSet, VecDeque};

use super::connection::Termination;
use super::ids::{CmId, QpNum};
use super::queue_pair::{QpState, QpType};
use super::{Device, VerbsError};
use crate::qp::{Event, Extensions, WcStatus};
pub(super) use attempts::pause_after;
use requests::Held;
pub use wire::gid;

/// First TCP port of connections by number, unless another is configured: the number of RoCE's UDP port.
pub const RENDEZVOUS_PORT: u16 = 4791;
/// Workers that share a port's addresses, at most: a queue pair number has six bits for them.
pub const QP_WORKERS_MAX: u16 = 64;
/// Extensions that this device offers, and grants.
const OFFERED: Extensions = Extensions { send_immediate: true, immediate_length: true, progress: true };
/// Values of a number of 24 bits.
const NUMBERS: u32 = 1 << 24;
/// Time after which an end that waits for its peer's request, with work to send, opens a connection itself.
const FALLBACK: Duration = Duration::from_secs(1);
/// Shortest time after which work fails because the peer is not reached. InfiniBand counts from microseconds on: it
/// sends a packet again, where this device opens a connection again.
const RETRY_MIN: Duration = Duration::from_secs(5);
/// Shortest time that a message waits for a receive buffer, if the time is limited.
const RNR_MIN: Duration = Duration::from_secs(1);
/// Queue pairs that are looked at per call of [`Device::run_links`].
const LINKS_MAX: usize = 64;

/// Returns the bytes of a message of InfiniBand in a packet, for a port whose IP packets have up to `mtu` bytes: the
/// largest of InfiniBand's MTUs that fits.
pub const fn path_mtu(mtu: u16) -> u16 {
    match mtu {
        ..512 => 256,
        512..1024 => 512,
        1024..2048 => 1024,
        2048..4096 => 2048,
        _ => 4096,
    }
}

/// Returns true for two addresses of hosts, of one family.
pub(super) const fn are_hosts(local: IpAddr, remote: IpAddr) -> bool {
    let is_one_family = local.is_ipv4() == remote.is_ipv4();
    is_one_family
        && !local.is_unspecified()
        && !local.is_multicast()
        && !remote.is_unspecified()
        && !remote.is_multicast()
}

/// Where the ends of connections by number meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rendezvous {
    /// First TCP port: that of worker 0. The port of the others is as much higher as their number.
    pub port: u16,
    /// Key of the nonces.
    pub key: (u64, u64),
    /// Bytes of a datagram of this device, at most: the MTU of InfiniBand that fits the port's, up to 4096.
    pub datagram_max: u16,
}

/// Attributes of the transition to RTR of a queue pair that is connected by number (`ibv_qp_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RtrAttr {
    /// Number of the peer's queue pair (`dest_qp_num`).
    pub dest_qp_num: QpNum,
    /// First packet sequence number that this side expects, 24 bits.
    pub rq_psn: u32,
    /// Local address of the queue pair (`ah_attr.grh.sgid_index`).
    pub local: IpAddr,
    /// Address of the peer (`ah_attr.grh.dgid`), of the same family.
    pub remote: IpAddr,
    /// Time that the peer waits before it tries a message again that has met no buffer, as InfiniBand encodes it, 0–31.
    pub min_rnr_timer: u8,
}

/// Attributes of the transition to RTS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RtsAttr {
    /// First packet sequence number of this side, 24 bits.
    pub sq_psn: u32,
    /// Local ACK timeout: 4.096 µs · 2^`timeout`, 0–31; 0 for no limit.
    pub timeout: u8,
    /// Times that a packet is sent again, 0–7.
    pub retry_cnt: u8,
    /// Times that a message is sent again which has met no buffer, 0–7; 7 for ever.
    pub rnr_retry: u8,
}

impl RtsAttr {
    /// Returns the time after which work fails because the peer is not reached; `None` if it never does.
    fn retry_limit(&self) -> Option<Duration> {
        let ack_ns = 4096_u64.checked_shl(self.timeout.into()).filter(|_| self.timeout > 0)?;
        let times = u64::from(self.retry_cnt).saturating_add(1).saturating_mul(4);
        Some(Duration::from_nanos(ack_ns.saturating_mul(times)).max(RETRY_MIN))
    }

    /// Returns the time that a message waits for a buffer of a peer with this timer; `None` if for ever.
    fn rnr_limit(&self, min_rnr_timer: u8) -> Option<Duration> {
        let times = u32::from(self.rnr_retry).saturating_add(1);
        (self.rnr_retry < 7).then(|| rnr_timer(min_rnr_timer).saturating_mul(times).max(RNR_MIN))
    }
}

/// Returns the time of an encoded RNR NAK timer (InfiniBand Architecture Specification, volume 1, §9.7.5.2.8).
fn rnr_timer(encoded: u8) -> Duration {
    const UNIT_US: u64 = 10;
    let units = match encoded & 31 {
        0 => 65_536,
        1 => 1,
        even if even % 2 == 0 => 1 << (even / 2),
        odd => 3 << (odd.saturating_sub(3) / 2),
    };
    Duration::from_micros(UNIT_US.saturating_mul(units))
}

/// Stage of a connection by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LinkStage {
    /// The peer opens it.
    Waiting,
    /// This side opens it at this time.
    Pausing(Duration),
    /// This side has sent a request, or is about to.
    Opening,
    /// This side has accepted a request.
    Accepting,
    /// The stream is in full operation.
    Up,
    /// The stream has ended, and nobody opens another one.
    Orphan,
}

/// Connection by number of a queue pair, from RTR on.
#[derive(Debug)]
pub(super) struct Link {
    peer: RtrAttr,
    send: Option<RtsAttr>,
    nonce: u64,
    stage: LinkStage,
    /// Attempts in a row that have failed.
    failures: u32,
    /// Shortest pause that the peer has asked for.
    retry_after: Duration,
    /// Timer of the peer, from its request or reply.
    peer_timer: u8,
    /// Time since which work waits for the connection.
    pending_since: Option<Duration>,
    /// Time at which the queue pair is looked at.
    due: Option<Duration>,
}

impl Link {
    fn rnr_limit(&self) -> Option<Duration> {
        self.send.and_then(|send| send.rnr_limit(self.peer_timer))
    }

    /// Returns the time at which the work that waits fails.
    fn gives_up_at(&self) -> Option<Duration> {
        let limit = self.send.and_then(|send| send.retry_limit());
        self.pending_since.zip(limit).map(|(since, limit)| since.saturating_add(limit))
    }

    /// Returns the time at which something is to be done.
    fn next(&self) -> Option<Duration> {
        let opens_at = match self.stage {
            LinkStage::Pausing(until) => Some(until),
            LinkStage::Waiting => self.pending_since.map(|since| since.saturating_add(FALLBACK)),
            LinkStage::Opening | LinkStage::Accepting | LinkStage::Orphan => None,
            LinkStage::Up => return None,
        };
        [opens_at, self.gives_up_at()].into_iter().flatten().min()
    }
}

/// Connections by number of a device.
#[derive(Debug, Default)]
pub(super) struct Links {
    rendezvous: Option<Rendezvous>,
    /// Queue pairs by the time at which they are looked at.
    due: BTreeSet<(Duration, QpNum)>,
    /// Requests whose queue pair is not ready, oldest first.
    held: VecDeque<Held>,
    /// Nonces that were drawn.
    nonces: u64,
    /// False if nothing of this, nor of the links for datagrams, waits: most polls read this one alone.
    is_active: bool,
}

impl Links {
    /// Notes that something waits.
    pub(super) const fn activate(&mut self) {
        self.is_active = true;
    }

    /// Returns where connections by number meet, if there are any.
    pub(super) const fn rendezvous(&self) -> Option<Rendezvous> {
        self.rendezvous
    }

    /// Returns the bytes of the longest datagram.
    pub(super) fn datagram_max(&self) -> u64 {
        self.rendezvous.map_or(0, |rendezvous| rendezvous.datagram_max.into())
    }

    /// Returns true if there are connections by number.
    pub(super) const fn is_on(&self) -> bool {
        self.rendezvous.is_some()
    }
}

impl<C: AsRef<[u8]>> Device<C> {
    /// Sets where connections by number meet; without it, there are none. The adapter listens at the port of its
    /// [worker](Self::set_worker), for a listener of [`Owner::QueuePairs`](super::Owner::QueuePairs).
    pub const fn set_rendezvous(&mut self, rendezvous: Rendezvous) {
        self.links.rendezvous = Some(rendezvous);
    }

    /// Sets the number of the worker, below [`QP_WORKERS_MAX`], which the numbers of its queue pairs name. Returns
    /// false if there are queue pairs already.
    pub fn set_worker(&mut self, worker: u8) -> bool {
        self.qps.set_base(u32::from(worker & 63) << QpNum::WORKER_SHIFT)
    }

    /// Returns true if a TCP port is one of those at which connections by number meet.
    pub fn is_rendezvous_port(&self, port: u16) -> bool {
        let at = self.links.rendezvous.and_then(|rendezvous| port.checked_sub(rendezvous.port));
        at.is_some_and(|at| at < QP_WORKERS_MAX)
    }

    /// Changes a queue pair to RTR (`ibv_modify_qp` with `IBV_QP_AV` and `IBV_QP_DEST_QPN`): it receives from its peer
    /// once they are connected. A message without a receive buffer then waits for one.
    ///
    /// # Errors
    /// `NoSuchObject`. `NotPermitted`: the device makes no connections by number. `Invalid`: addresses of two families,
    /// or not of a host, a number of more than 24 bits, or a
    /// queue pair of another type. `State`: the queue pair is not `Idle`, or has a connection.
    pub fn ready_to_receive(&mut self, number: QpNum, attr: &RtrAttr) -> Result<(), VerbsError> {
        let qp = self.qps.get(number.0).ok_or(VerbsError::NoSuchObject)?;
        if self.links.rendezvous.is_none() {
            return Err(VerbsError::NotPermitted);
        }
        let RtrAttr { dest_qp_num, rq_psn, local, remote, min_rnr_timer: _ } = *attr;
        if !are_hosts(local, remote) || dest_qp_num.0 >= NUMBERS || rq_psn >= NUMBERS {
            return Err(VerbsError::Invalid);
        }
        if qp.init.qp_type != QpType::Rc {
            return Err(VerbsError::Invalid);
        }
        if qp.state != QpState::Idle || qp.id.is_some() || qp.link.is_some() {
            return Err(VerbsError::State);
        }
        let nonce = self.nonce();
        let (own, peer) = ((number, gid(local)), (dest_qp_num, gid(remote)));
        let stage = if own < peer { LinkStage::Pausing(self.now()) } else { LinkStage::Waiting };
        let Some(qp) = self.qps.get_mut(number.0) else { return Err(VerbsError::NoSuchObject) };
        if let Some(queues) = qp.queues.as_deref_mut() {
            (queues.keeps_work, queues.awaits_buffers) = (true, true);
        }
        qp.link = Some(Box::new(Link {
            peer: *attr,
            send: None,
            nonce,
            stage,
            failures: 0,
            retry_after: Duration::ZERO,
            peer_timer: 0,
            pending_since: None,
            due: None,
        }));
        if own == peer {
            self.connect_to_itself(number);
        } else {
            self.arm(number);
            self.answer_held(number);
        }
        Ok(())
    }

    /// Changes a queue pair to RTS. Its work is sent once it is connected.
    ///
    /// # Errors
    /// `NoSuchObject`. `Invalid`: a number outside its range. `State`: the queue pair is not connected by number, or
    /// was changed to RTS before.
    pub fn ready_to_send(&mut self, number: QpNum, attr: &RtsAttr) -> Result<(), VerbsError> {
        let RtsAttr { sq_psn, timeout, retry_cnt, rnr_retry } = *attr;
        if sq_psn >= NUMBERS || timeout > 31 || retry_cnt > 7 || rnr_retry > 7 {
            return Err(VerbsError::Invalid);
        }
        let qp = self.qps.get_mut(number.0).ok_or(VerbsError::NoSuchObject)?;
        let link = qp.link.as_deref_mut().filter(|link| link.send.is_none()).ok_or(VerbsError::State)?;
        link.send = Some(*attr);
        let limit = link.rnr_limit();
        let endpoint = qp.id.and_then(|id| self.ids.get_mut(id.0)?.endpoint.as_deref_mut());
        if let Some(numbered) = endpoint.and_then(|endpoint| endpoint.queue_pair().numbered.as_deref_mut()) {
            numbered.rnr_limit = limit;
        }
        self.arm(number);
        Ok(())
    }

    /// Opens connections, and fails what has waited for too long. The adapter calls it at
    /// [`Self::next_link_deadline`].
    pub fn run_links(&mut self) {
        let now = self.now();
        for _ in 0..LINKS_MAX {
            let Some((_, number)) = self.links.due.first().copied().filter(|(at, _)| *at <= now) else {
                break;
            };
            self.links.due.pop_first();
            if let Some(link) = self.link(number) {
                link.due = None;
                self.link_due(number, now);
            }
        }
        self.expire_held(now);
        self.close_idle_datagram_links();
        self.links.is_active = self.has_datagrams() || self.first_link_deadline().is_some();
    }

    /// Returns the time at which [`Self::run_links`] is due.
    #[inline]
    pub fn next_link_deadline(&self) -> Option<Duration> {
        if self.links.is_active { self.first_link_deadline() } else { None }
    }

    #[cold]
    fn first_link_deadline(&self) -> Option<Duration> {
        let due = self.links.due.first().map(|(at, _)| *at);
        let held = self.links.held.front().map(|held| held.until);
        [due, held, self.datagram_deadline()].into_iter().flatten().min()
    }

    /// Returns true if [`Self::run_links`] or [`Self::deliver_datagrams`] may have something to do, now or later.
    #[inline]
    pub const fn has_links(&self) -> bool {
        self.links.is_active
    }

    /// Handles an event of a connection that the device has itself.
    pub(super) fn link_event(&mut self, id: CmId, event: Event) {
        match event {
            Event::ConnectRequest { private_data, .. } => self.link_requested(id, &private_data),
            Event::Established { private_data, .. } => self.link_established(id, &private_data),
            Event::Rejected { private_data } => self.link_rejected(id, &private_data),
            // The status of a request reports it.
            Event::TerminateReceived { code, .. } => {
                self.note_termination(id, Termination { sent: false, code });
            }
            Event::Close { how } => {
                self.keep_work(id);
                self.end_stream(id, how);
            }
            // The end follows.
            Event::Failed { .. } => {}
            event => self.connection_event(id, event),
        }
    }

    /// Returns the time of the adapter's current poll.
    pub(super) fn now(&self) -> Duration {
        Duration::from_nanos(self.now_ns)
    }

    fn link(&mut self, number: QpNum) -> Option<&mut Link> {
        self.qps.get_mut(number.0)?.link.as_deref_mut()
    }

    fn link_due(&mut self, number: QpNum, now: Duration) {
        let Some(link) = self.link(number) else { return };
        let opens_at = match link.stage {
            LinkStage::Pausing(until) => Some(until),
            LinkStage::Waiting => link.pending_since.map(|since| since.saturating_add(FALLBACK)),
            _ => None,
        };
        if link.gives_up_at().is_some_and(|at| at <= now) {
            return self.fail_link(number, WcStatus::RetryExceeded);
        }
        if opens_at.is_some_and(|at| at <= now) {
            self.open_link(number);
        }
        self.arm(number);
    }

    /// Notes that work waits for a connection.
    #[cold]
    pub(super) fn note_pending(&mut self, number: QpNum) {
        let now = self.now();
        let Some(link) = self.link(number) else { return };
        if link.pending_since.is_none() {
            link.pending_since = Some(now);
            self.arm(number);
        }
    }

    /// Has the queue pair looked at when it is due.
    fn arm(&mut self, number: QpNum) {
        let Some(link) = self.qps.get_mut(number.0).and_then(|qp| qp.link.as_deref_mut()) else { return };
        let (before, next) = (link.due, link.next());
        link.due = next;
        if before == next {
            return;
        }
        if let Some(before) = before {
            self.links.due.remove(&(before, number));
        }
        if let Some(next) = next {
            self.links.due.insert((next, number));
            self.links.activate();
        }
    }

    /// Forgets the connection of a queue pair that goes into error.
    pub(super) fn drop_link(&mut self, number: QpNum) {
        let link = self.qps.get_mut(number.0).and_then(|qp| qp.link.take());
        if let Some(due) = link.and_then(|link| link.due) {
            self.links.due.remove(&(due, number));
        }
    }

    /// Ends a queue pair: its oldest request that is not finished has this status.
    fn fail_link(&mut self, number: QpNum, status: WcStatus) {
        let Some(qp) = self.qps.get_mut(number.0) else { return };
        if let Some(id) = qp.id {
            self.transport_lost(id);
        }
        if let Some(qp) = self.qps.get_mut(number.0) {
            let is_told =
                qp.queues.as_deref_mut().is_some_and(|queues| queues.sq.set_status_of_oldest(status));
            qp.first_status = (!is_told).then_some(status);
        }
        self.enter_error(number);
    }

    fn nonce(&mut self) -> u64 {
        use core::hash::Hasher as _;
        let (a, b) = self.links.rendezvous.map_or((0, 0), |rendezvous| rendezvous.key);
        self.links.nonces = self.links.nonces.wrapping_add(1);
        let mut hasher = siphasher::sip::SipHasher13::new_with_keys(a, b);
        // Other uses of the same key hash other bytes.
        hasher.write(b"queue pair nonce");
        hasher.write_u64(self.links.nonces);
        hasher.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_infiniband() {
        let us = |encoded| rnr_timer(encoded).as_micros();
        let known = [(0, 655_360), (1, 10), (4, 40), (5, 60), (6, 80), (7, 120), (12, 640), (16, 2560)];
        assert!(
            known.iter().all(|(encoded, time)| us(*encoded) == *time),
            "{:?}",
            known.map(|(at, _)| us(at))
        );
        assert_eq!((us(20), us(25), us(31)), (10_240, 61_440, 491_520));
        let attr = RtsAttr { sq_psn: 0, timeout: 14, retry_cnt: 7, rnr_retry: 7 };
        assert_eq!((attr.retry_limit(), attr.rnr_limit(12)), (Some(RETRY_MIN), None));
        let long = RtsAttr { timeout: 20, rnr_retry: 6, ..attr };
        assert_eq!(long.retry_limit().map(|limit| limit.as_secs()), Some(137));
        assert_eq!((long.rnr_limit(1), long.rnr_limit(31)), (Some(RNR_MIN), Some(7 * rnr_timer(31))));
        assert_eq!(RtsAttr { timeout: 0, ..attr }.retry_limit(), None);
    }
}
