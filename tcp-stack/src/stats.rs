//! Counters and gauges of a stack.

use crate::iface::{Drops, InterfaceStats};
use crate::state::State;

iwarp_counters::counters! {
    /// Counters of TCP. [`Drops`] counts the received segments that were dropped.
    pub struct TcpStats {
        /// Connections opened by a SYN of ours.
        active_opens,
        /// Connections opened by a peer's SYN.
        passive_opens,
        /// Connections that became established.
        established,
        /// Connections that both sides closed.
        closed,
        /// Connections that the peer reset.
        resets_received,
        /// Connections that were aborted by the application.
        aborted,
        /// Connections given up: the peer did not answer.
        timed_out,
        /// Half-open connections given up before their timeout to make room for a SYN.
        half_open_recycled,
        /// Idle or unproven connections reset to make room for one more while the table was full.
        evicted_table_full,
        /// Idle or unproven connections reset to make room for one more of a listener that had as many as configured.
        evicted_listener_full,
        /// Idle or unproven connections reset to make room for one more of a source that had as many as configured.
        evicted_source_full,
        /// SYNs answered with a cookie.
        syn_cookies_out,
        /// Connections opened by a valid cookie.
        syn_cookies_in,
        /// Acknowledgments that may have been a cookie's and were not.
        syn_cookies_failed,
        /// SYN-ACKs not sent again: too many SYN-ACKs are unanswered.
        syn_acks_withheld,
        /// Connections given up: the peer, or the network, refused them.
        refused,
        /// Segments sent, all kinds.
        segments_out,
        /// New segments with payload or FIN sent, without retransmissions.
        data_segments_out,
        /// New payload sent, bytes, without retransmissions.
        bytes_out,
        /// Payload received in order, bytes.
        bytes_in,
        /// Connections established with ECN (RFC 3168).
        ecn_negotiated,
        /// SYNs retransmitted without ECN, because the ECN-setup SYN was not answered.
        ecn_fallbacks,
        /// Segments sent that routers may mark instead of dropping (RFC 3168: ECT).
        ect_out,
        /// Segments received with a congestion mark (RFC 3168: CE).
        ce_in,
        /// Acknowledgments received that echo a congestion mark (RFC 3168: ECE).
        ece_in,
        /// Segments received that report that the peer has reduced its window (RFC 3168: CWR).
        cwr_in,
        /// Segments sent that report that our window was reduced (RFC 3168: CWR).
        cwr_out,
        /// Window reductions that an echoed congestion mark caused.
        ecn_reductions,
        /// Acknowledgments sent without payload.
        acks_out,
        /// Reset segments (RST) sent.
        resets_out,
        /// Number of segments retransmitted.
        retransmits,
        /// Payload of retransmitted segments, bytes.
        bytes_retransmitted,
        /// Segments retransmitted from a copy, because the port still held the buffer.
        retransmit_copies,
        /// Frames of several segments sent, which the port cuts (TSO).
        runs_out,
        /// Segments split, because of the peer's window or a smaller path MTU.
        splits,
        /// Of these, segments split because of the peer's window.
        window_splits,
/// Expirations of the retransmission timer.
        timeouts,
        /// Retransmission timeouts found to be spurious, and undone.
        spurious_timeouts,
        /// Loss recoveries without a timeout.
        fast_recoveries,
        /// Loss recoveries without a timeout found to be spurious, and undone.
        spurious_recoveries,
        /// Retransmissions found to be lost, too.
        lost_retransmits,
        /// Tail loss probes sent.
        loss_probes,
        /// Tail loss probes that repaired a loss.
        loss_probe_recoveries,
        /// Probes of closed windows sent.
        window_probes,
        /// Connections given up: the peer kept its window closed for too long (RFC 6429).
        window_never_opened,
        /// Advances of the peer's urgent pointer (RFC 9293 §3.8.5).
        urgent_in,
        /// Keepalive probes sent (RFC 9293 §3.8.4).
        keepalive_probes,
        /// Out-of-order segments held for reassembly.
        held_segments,
        /// Of these, segments that the application took out of order.
        taken_segments,
        /// Of these, short ones that were copied into the buffer of another segment.
        held_copied,
        /// Out-of-order segments dropped again, to make room for other connections.
        held_reclaimed,
        /// Out-of-order segments not held: received data may retain no more packet buffers.
        held_refused,
        /// Refusals to let an application retain more packet buffers with received data.
        keep_refused,
        /// Requests to an application to release retained packet buffers, to make room for other connections.
        keep_reclaimed,
        /// Duplicates that we reported (D-SACK).
        dsacks_out,
        /// Duplicates that the peer reported (D-SACK).
        dsacks_in,
        /// SACKed segments that the peer no longer reported (reneging, RFC 2018 §8).
        sack_reneged,
        /// Segments received without a timestamp on connections that use them: no old duplicate among them is detected.
        timestamps_missing,
        /// Challenge acknowledgments sent (RFC 5961).
        challenge_acks,
        /// Challenge acknowledgments not sent: too many in a short time.
        challenge_acks_limited,
        /// Replies to segments without a connection not sent: too many in a short time.
        replies_limited,
        /// ICMP errors that were believed.
        icmp_accepted,
        /// ICMP errors that were not believed (RFC 5927).
        icmp_ignored,
        /// Path MTUs lowered: reported by a router, known from another connection, or a black hole.
        path_mtu_lowered,
        /// Reports of a path MTU smaller than acknowledged packets, which a timeout must confirm (RFC 5927 §7.2).
        path_mtu_doubted,
        /// Paths that dropped long segments without an ICMP error (RFC 4821 §7.7).
        path_black_holes,
        /// Probes for a larger path MTU sent.
        path_probes,
        /// Probes for a larger path MTU lost.
        path_probes_lost,
        /// Path MTUs raised by a probe.
        path_mtu_raised,
        /// Connections that entered TIME-WAIT.
        time_wait,
        /// TIME-WAIT records removed before their time to make room.
        time_wait_evicted,
        /// TIME-WAIT records that gave way to a new connection.
        time_wait_reused,
        /// Frames not sent yet: no buffer.
        no_buffer,
        /// Frames not sent yet: the neighbor's link address is not known.
        no_neighbor,
        /// Segments not sent: no headroom for their headers.
        no_headroom,
    }
}

/// Number of connections now, by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateCounts([u32; State::COUNT]);

impl StateCounts {
    /// Returns the connections in a state now. [`State::Closed`] counts those whose last events were not polled
    /// yet.
    pub fn get(&self, state: State) -> u32 {
        self.0.get(state as usize).copied().unwrap_or(0)
    }

    /// Returns the connections in any state now.
    pub fn total(&self) -> u32 {
        self.0.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Returns the counts with `more` connections added to a state.
    pub(crate) fn plus(mut self, state: State, more: u32) -> Self {
        if let Some(count) = self.0.get_mut(state as usize) {
            *count = count.saturating_add(more);
        }
        self
    }

    pub(crate) fn enter(&mut self, state: State) {
        if let Some(count) = self.0.get_mut(state as usize) {
            *count = count.saturating_add(1);
        }
    }

    pub(crate) fn leave(&mut self, state: State) {
        if let Some(count) = self.0.get_mut(state as usize) {
            *count = count.saturating_sub(1);
        }
    }
}

/// All counters and gauges of a stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StackStats {
    /// Counters of Ethernet, ARP, IP and ICMP.
    pub interface: InterfaceStats,
    /// Counters of TCP connections and segments.
    pub tcp: TcpStats,
    /// Received frames dropped, by reason.
    pub drops: Drops,
    /// Connections now, half-open ones included.
    pub connections: u32,
    /// Connections now, by state; SYN-RECEIVED includes the half-open ones.
    pub states: StateCounts,
    /// Half-open connections now, in records of their own.
    pub half_open_now: u32,
    /// Number of TIME-WAIT records now.
    pub time_wait_now: u32,
    /// Buffers held for transmission now.
    pub send_buffers: u32,
    /// Received segments held now, and buffers that short ones share.
    pub receive_buffers: u32,
    /// Packet buffers that are retained now: those of held (out-of-order) segments, and those that the application
    /// retains. Short segments that share a buffer between gaps count as one each.
    pub retained_buffers: u32,
    /// Upper bound of `retained_buffers`.
    pub retained_limit: u32,
    /// The part of `retained_buffers` that the application retains.
    pub kept_buffers: u32,
    /// Bytes received in order that the application has not consumed.
    pub unread_bytes: u64,
}
