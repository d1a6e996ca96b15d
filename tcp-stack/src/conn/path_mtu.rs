//! Path MTU discovery: by reports of routers (RFC 1191, RFC 8201, verified as in RFC 5927), and by probes (RFC
//! 4821).
//!
//! ```text
//!               reported, and nothing longer arrived ──────────────▶ lowered to it
//!   link's MTU  reported, and longer packets arrived ── a timeout ─▶ lowered to it
//!               long segments time out again and again ────────────▶ lowered to the base, then to the least
//!
//!               a while later: a probe of the link's MTU, then halfway
//!   lowered  ── a probe is acknowledged ─▶ raised to its size
//!            ── is lost, twice ──────────▶ the search ends below its size
//! ```
//!
//! A probe is one packet that carries the bytes of several queued segments. Each of them is in flight by itself: if
//! the probe is lost, they are sent again as segments.

use core::time::Duration;

use super::listen::TIMESTAMPS_LEN;
use super::{Conn, Cx, Notice, Pending, TxState};
use crate::buf::Buf;
use crate::config::StackConfig;
use crate::recovery::Phase;
use crate::seq::SeqNum;
use crate::time::Instant;

/// RFC 4821 §7.2: "a value of 1024 bytes is probably safe enough"; IPv6 guarantees more (RFC 8200 §5).
const BASE_MTU: (u16, u16) = (1024, 1280);
/// The least MTU of an IPv6 link, bytes.
const IPV6_MTU_MIN: u16 = 1280;
/// Time between two probes: losses of probes alone must stay rare (RFC 4821 §3).
const PROBE_GAP: Duration = Duration::from_secs(5);
/// Lost probes of one size that end the search there (RFC 8899 §5.1.2: MAX_PROBES is 3; here a congested path only
/// delays the next search).
const PROBES_MAX: u8 = 2;
/// The search ends if less than this is left to gain, bytes.
const SEARCH_STEP: u16 = 16;
/// MTUs of common networks (RFC 1191 §7.1), for routers that do not report theirs.
const PLATEAUS: [u16; 9] = [32_000, 17_914, 8166, 4352, 2002, 1492, 1006, 508, 296];

/// The path MTU state of a connection. Lengths are of IP packets, bytes, unless they are of payloads.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct PathMtu {
    /// Earliest time of the next probe.
    next_probe: Instant,
    reported_seq: SeqNum,
    /// Sequence range of the probe in flight.
    probe_start: SeqNum,
    probe_end: SeqNum,
    /// Upper bound of the search: no longer packet is known to pass (RFC 4821 §7.2: search_high).
    high: u16,
    /// Consecutive losses of probes of the present length.
    losses: u8,
    // The fields from here on are read with every acknowledgment.
    /// Set if the MTU was lowered because of timeouts alone, and nothing was acknowledged since.
    unproven: bool,
    /// MTU that a router reported for a segment, which must time out before the report is believed; 0 for none.
    reported: u16,
    /// Packet length of the probe in flight; 0 for none.
    probe: u16,
    /// The path MTU in use: the longest packet sent.
    pub(crate) mtu: u16,
    /// The longest payload acknowledged (RFC 5927 §7.2: maxsizeacked, without headers).
    pub(crate) acked: u16,
}

impl PathMtu {
    /// Offset of the fields that every acknowledgment reads, bytes.
    #[cfg(test)]
    pub(super) const PER_ACK_AT: usize = core::mem::offset_of!(Self, unproven);

    pub(crate) const fn new(now: Instant, mtu: u16) -> Self {
        let zero = SeqNum::new(0);
        Self {
            mtu,
            acked: 0,
            reported: 0,
            reported_seq: zero,
            high: u16::MAX,
            probe: 0,
            losses: 0,
            unproven: false,
            probe_start: zero,
            probe_end: zero,
            next_probe: now,
        }
    }

    /// True if an acknowledgment may change the path MTU state: a probe, a report or a lowered MTU awaits one.
    #[inline]
    pub(super) const fn awaits_acknowledgment(&self) -> bool {
        self.probe != 0 || self.reported != 0 || self.unproven
    }
}

impl Conn {
    /// Returns the length of the IP and TCP headers with timestamps, bytes.
    fn overhead(&self) -> u16 {
        let headers: u16 = if self.local().is_ipv4() { 40 } else { 60 };
        headers.saturating_add(if self.negotiated.timestamps { TIMESTAMPS_LEN } else { 0 })
    }

    /// Returns the longest packet that the link and the peer's MSS admit.
    fn path_ceiling(&self, config: &StackConfig) -> u16 {
        let headers = if self.local().is_ipv4() { 40 } else { 60 };
        config.mtu.min(self.snd.peer_mss.saturating_add(headers))
    }

    /// Returns the longest payload accepted for sending, bytes: a full segment's on a path as wide as the link.
    pub(crate) fn payload_max(&self, config: &StackConfig) -> usize {
        usize::from(self.path_ceiling(config).saturating_sub(self.overhead())).max(crate::SEND_LEAST)
    }

    /// Returns the least path MTU that is believed.
    fn path_floor(&self, config: &StackConfig) -> u16 {
        if self.local().is_ipv4() {
            config.tcp.path_mtu_min
        } else {
            config.tcp.path_mtu_min.max(IPV6_MTU_MIN)
        }
    }

    /// Handles a router's report that the segment at `seq`, in a packet of `packet_len` bytes, exceeded its `mtu`.
    /// The caller has checked that the segment is in flight. Returns true if the report is believed.
    pub(super) fn on_too_big<B: Buf>(
        &mut self,
        cx: &mut Cx<'_, B>,
        seq: SeqNum,
        packet_len: u32,
        mtu: u32,
    ) -> bool {
        let mtu =
            if mtu == 0 && self.local().is_ipv4() { plateau(packet_len) } else { u16::try_from(mtu).ok() };
        let Some(mtu) = mtu else { return false };
        let probed = seq.at_or_after(self.path.probe_start) && seq.before(self.path.probe_end);
        if self.path.probe > mtu && probed && mtu >= self.path.mtu {
            // The report narrows the search; the probe counts as lost by the usual rules.
            self.path.high = self.path.high.min(mtu);
            return true;
        }
        // RFC 8201 §4: "If a node receives a Packet Too Big message reporting a next-hop MTU that is less than the
        // IPv6 minimum link MTU, it must discard it." A report about a packet that fits is forged.
        let plausible = mtu >= self.path_floor(cx.config)
            && mtu < self.path.mtu
            && u32::from(mtu) < packet_len
            && self.state.is_synchronized();
        if !plausible {
            return false;
        }
        // RFC 5927 §7.2: a report that contradicts acknowledged packets is believed only after the segment times
        // out.
        if mtu < self.path.acked.saturating_add(self.overhead()) && self.path.acked > 0 {
            (self.path.reported, self.path.reported_seq) = (mtu, seq);
            cx.stats.path_mtu_doubted = cx.stats.path_mtu_doubted.wrapping_add(1);
            return true;
        }
        self.lower_path_mtu(cx, mtu);
        cx.paths.lower(cx.now, self.remote().ip(), mtu);
        true
    }

    /// Lowers the path MTU and marks longer segments in flight lost, to be sent in parts (RFC 1191 §6.4, RFC 8201
    /// §5.4).
    fn lower_path_mtu<B: Buf>(&mut self, cx: &mut Cx<'_, B>, mtu: u16) {
        self.path.mtu = mtu;
        self.path.reported = 0;
        self.path.probe = 0;
        self.path.losses = 0;
        let age = cx.config.tcp.path_mtu_age().unwrap_or(Duration::MAX);
        (self.path.high, self.path.next_probe) = (u16::MAX, cx.now + age);
        self.path.unproven = false;
        cx.stats.path_mtu_lowered = cx.stats.path_mtu_lowered.wrapping_add(1);
        self.resize_segments();
        self.path.acked = self.path.acked.min(self.snd.emss);
        let mut index = self.snd.queue.oldest();
        while let Some(node) = cx.tx.get(index) {
            let newer = self.snd.queue.newer(cx.tx, index);
            if node.len > self.snd.emss {
                self.snd.queue.mark_lost(cx.tx, index);
            }
            index = newer;
        }
        self.pending.add_if(self.snd.queue.lost() > 0, Pending::Force);
    }

    fn resize_segments(&mut self) {
        let before = self.snd.emss;
        self.set_emss();
        self.notices.add_if(self.snd.emss != before, Notice::EmssChanged);
    }

    /// Handles a timeout of the first segment, the `timeouts`th in a row. It confirms a doubted report, applies the
    /// path MTU that other connections found for the destination, and detects a black hole: a path that drops long
    /// segments silently (RFC 4821 §7.7, RFC 2923 §2.1).
    pub(super) fn suspect_path<B: Buf>(&mut self, cx: &mut Cx<'_, B>, timeouts: u8) {
        let Some(head) = cx.tx.get(self.snd.queue.head()) else { return };
        let head_len = head.len.saturating_add(self.overhead());
        self.path.probe = 0;
        let reported = core::mem::take(&mut self.path.reported);
        let known = cx.paths.get(cx.now, self.remote().ip()).unwrap_or(0);
        for mtu in [reported, known] {
            if mtu > 0 && mtu < self.path.mtu && mtu < head_len {
                self.lower_path_mtu(cx, mtu);
                if mtu == reported {
                    cx.paths.lower(cx.now, self.remote().ip(), mtu);
                }
                return;
            }
        }
        let patience = cx.config.tcp.black_hole_timeouts;
        if patience == 0 || timeouts < patience || !timeouts.is_multiple_of(patience) {
            return;
        }
        let floor = self.path_floor(cx.config);
        let base = if self.local().is_ipv4() { BASE_MTU.0 } else { BASE_MTU.1 };
        let next = if head_len > base.max(floor) { base.max(floor) } else { floor };
        if next < head_len && next < self.path.mtu {
            let failed = head_len.min(self.path.mtu);
            self.lower_path_mtu(cx, next);
            cx.stats.path_black_holes = cx.stats.path_black_holes.wrapping_add(1);
            self.path.unproven = true;
            self.path.high = failed.saturating_sub(1);
            self.path.next_probe = cx.now + PROBE_GAP;
        }
    }

    /// Handles an advance of SND.UNA: it may confirm the path MTU or acknowledge a probe.
    pub(super) fn confirm_path<B>(&mut self, cx: &mut Cx<'_, B>) {
        let una = self.snd.una;
        if self.path.reported != 0 && una.after(self.path.reported_seq) {
            self.path.reported = 0;
        }
        if core::mem::take(&mut self.path.unproven) {
            cx.paths.lower(cx.now, self.remote().ip(), self.path.mtu);
        }
        if self.path.probe == 0 || una.before(self.path.probe_end) {
            return;
        }
        let mtu = core::mem::take(&mut self.path.probe);
        self.path.mtu = mtu;
        self.path.losses = 0;
        self.path.next_probe = cx.now + PROBE_GAP;
        cx.paths.raise(self.remote().ip(), mtu);
        cx.stats.path_mtu_raised = cx.stats.path_mtu_raised.wrapping_add(1);
        // RFC 4821 §3: "Whenever the MTU is raised, the congestion state variables MUST be rescaled so as not to
        // raise the window size in bytes": ours are in bytes.
        self.resize_segments();
        self.end_search(cx);
    }

    /// Ends the search if little is left to gain, until the path may have changed.
    fn end_search<B>(&mut self, cx: &Cx<'_, B>) {
        let ceiling = self.path_ceiling(cx.config);
        if self.path.high.min(ceiling).saturating_sub(self.path.mtu) < SEARCH_STEP {
            let age = cx.config.tcp.path_mtu_age().unwrap_or(Duration::MAX);
            (self.path.high, self.path.next_probe) = (u16::MAX, cx.now + age);
        }
    }

    /// Returns the payload length of a probe that begins with `node`; `None` if none is due or too little is
    /// queued.
    #[inline]
    pub(super) fn path_probe_due<B: Buf>(&self, cx: &Cx<'_, B>, node: u32) -> Option<u16> {
        if self.path.mtu >= cx.config.mtu || cx.now < self.path.next_probe {
            return None;
        }
        self.path_probe_len(cx, node)
    }

    #[cold]
    #[inline(never)]
    fn path_probe_len<B: Buf>(&self, cx: &Cx<'_, B>, node: u32) -> Option<u16> {
        let ceiling = self.path_ceiling(cx.config);
        let high = self.path.high.min(ceiling);
        // Without SACK the loss of a probe cannot be distinguished from other losses.
        let may = self.negotiated.sack
            && self.recovery.phase == Phase::Open
            && self.path.probe == 0
            && self.snd.queue.lost() == 0
            && high > self.path.mtu
            && cx.config.tcp.path_mtu_age().is_some();
        if !may {
            return None;
        }
        let size = if high == ceiling { high } else { self.path.mtu.midpoint(high).saturating_add(1) };
        let len = size.saturating_sub(self.overhead());
        // RFC 4821 §7.4: more data must follow the probe, so that acknowledgments reveal its loss.
        let mut queued = 0_u32;
        let mut at = node;
        while let Some(segment) =
            cx.tx.get(at).filter(|segment| !segment.fin && segment.state == TxState::Ready)
        {
            queued = queued.saturating_add(segment.len.into());
            if queued > u32::from(len).saturating_add(self.snd.emss.into()) {
                break;
            }
            at = self.snd.queue.next_of(cx.tx, at);
        }
        let enough = queued > u32::from(len).saturating_add(self.snd.emss.into());
        let start = cx.tx.get(node)?.seq;
        let fits = u32::from(len) <= self.usable(start)
            && self.pipe().saturating_add(u32::from(len)) <= self.window.cwnd;
        (enough && fits && len > self.snd.emss).then_some(len)
    }

    /// Notes that a probe was sent, beginning at `sent`, or that it could not be made (`None`).
    pub(crate) fn on_path_probe<B>(&mut self, cx: &mut Cx<'_, B>, sent: Option<SeqNum>, len: u16) {
        self.path.next_probe = cx.now + PROBE_GAP;
        let Some(start) = sent else { return };
        self.path.probe = len.saturating_add(self.overhead());
        (self.path.probe_start, self.path.probe_end) = (start, start + u32::from(len));
        cx.stats.path_probes = cx.stats.path_probes.wrapping_add(1);
    }

    /// True if the probe alone is lost; then the search continues below its size.
    ///
    /// RFC 4821 §3: "the normal congestion (window or data rate) reduction […] SHOULD be suppressed" if the
    /// probe alone was lost.
    pub(super) fn only_probe_lost<B: Buf>(&mut self, cx: &mut Cx<'_, B>) -> bool {
        if self.path.probe == 0 {
            return false;
        }
        let Some(mut at) = self.snd.queue.first_lost(cx.tx) else { return false };
        let mut lost = 0_u32;
        while let Some(segment) = cx.tx.get(at) {
            if segment.seq.before(self.path.probe_start) || !segment.seq.before(self.path.probe_end) {
                break;
            }
            if segment.state == TxState::Lost {
                lost = lost.saturating_add(segment.seq_len());
            }
            at = self.snd.queue.next_of(cx.tx, at);
        }
        if lost != self.snd.queue.lost() {
            return false;
        }
        let size = core::mem::take(&mut self.path.probe);
        self.path.losses = self.path.losses.saturating_add(1);
        if self.path.losses >= PROBES_MAX {
            self.path.losses = 0;
            self.path.high = size.saturating_sub(1);
        }
        cx.stats.path_probes_lost = cx.stats.path_probes_lost.wrapping_add(1);
        self.recovery.tlp.reset();
        self.pending.add(Pending::Force);
        self.end_search(cx);
        true
    }
}

/// Returns the plateau below a packet that did not pass (RFC 1191 §5).
fn plateau(packet_len: u32) -> Option<u16> {
    PLATEAUS.into_iter().find(|mtu| u32::from(*mtu) < packet_len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_without_an_mtu_means_the_next_plateau() {
        assert_eq!(plateau(65_535), Some(32_000));
        assert_eq!(plateau(9000), Some(8166));
        assert_eq!(plateau(1500), Some(1492));
        assert_eq!(plateau(1492), Some(1006));
        assert_eq!(plateau(296), None);
    }
}
