//! The receive window: its size, and when its right edge moves.
//!
//! Each connection begins with a modest receive buffer. It grows to twice what the application reads in a round
//! trip, and beyond while that increases: one round trip's data arrives before an acknowledgment takes effect, and
//! the sender may double its own window meanwhile. All connections share one [`ReceiveMemory`]. The part of it that
//! is left bounds every window, so connections that do not read leave memory to the others. The right edge never
//! moves left.

use core::time::Duration;

use super::{Conn, Cx, Pending, Receiver};
use crate::budget::ReceiveBudget;
use crate::config::StackConfig;
use crate::time::{Instant, Stamp, nanos};

/// A connection's window is at most 1 / `SHARE_OF_FREE` of the memory that is left.
const SHARE_OF_FREE: u64 = 2;
/// Lower bound of every window, bytes; it is at least two segments, too.
const WINDOW_LEAST: u32 = 4096;
/// Round-trip time assumed before the first measurement.
const ROUND_TRIP_UNKNOWN: Duration = Duration::from_millis(100);
/// Segments added to twice what a round trip brought: a sender's initial window is ten segments.
const SEGMENTS_MORE: u32 = 16;

/// In-order bytes that the applications of all connections have not consumed, and their limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceiveMemory {
    used: u64,
    limit: u64,
    /// Packet buffers retained by received data.
    pub(crate) budget: ReceiveBudget,
}

impl ReceiveMemory {
    pub(crate) const fn new(limit: u64, budget: ReceiveBudget) -> Self {
        Self { used: 0, limit, budget }
    }

    pub(crate) const fn used(&self) -> u64 {
        self.used
    }

    #[inline]
    pub(super) fn take(&mut self, bytes: u32) {
        self.used = self.used.wrapping_add(u64::from(bytes));
    }

    pub(crate) fn give_back(&mut self, bytes: u32) {
        self.used = self.used.saturating_sub(u64::from(bytes));
    }

    /// Returns the unread bytes that one connection may have now.
    fn share(&self) -> u32 {
        u32::try_from(self.limit.saturating_sub(self.used) / SHARE_OF_FREE).unwrap_or(u32::MAX)
    }
}

/// The state of receive buffer tuning.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tuning {
    /// Bytes that the application has consumed since `since`.
    consumed: u32,
    /// Bytes consumed in the round trip before.
    consumed_before: u32,
    since: Stamp,
    /// Round-trip time by the echoes of our timestamps, microseconds; 0 if unknown, or too short for a millisecond
    /// clock.
    echo_rtt_us: u32,
}

impl Tuning {
    pub(super) fn new(now: Instant) -> Self {
        Self { consumed: 0, consumed_before: 0, since: Stamp::of(now), echo_rtt_us: 0 }
    }

    /// Takes a sample from an echo that arrived with text. A sender that pauses echoes late, so the estimate falls
    /// at once and rises slowly.
    fn on_echo(&mut self, elapsed_ms: u32) {
        let sample = elapsed_ms.saturating_mul(1000);
        self.echo_rtt_us = match sample.checked_sub(self.echo_rtt_us) {
            _ if elapsed_ms <= 1 => 0,
            Some(more) if self.echo_rtt_us > 0 => self.echo_rtt_us.saturating_add(more / 8),
            _ => sample,
        };
    }
}

impl Receiver {
    /// Notes that the application consumed `bytes`, and grows the buffer at the end of a round trip: the bytes
    /// consumed in one predict those of the next. When a gap closes, many bytes are delivered at once; all of them
    /// count, because all of them were on the path. `most` is the limit of the buffer, bytes.
    #[inline]
    fn tune(&mut self, now: Instant, bytes: u32, round_trip_ns: u64, most: u32) {
        let tuning = &mut self.tuning;
        if tuning.since.age_nanos(now) < round_trip_ns {
            tuning.consumed = tuning.consumed.saturating_add(bytes);
            return;
        }
        // A sender in slow start has doubled its window once more by now.
        let growth = tuning.consumed.saturating_sub(tuning.consumed_before);
        let needed = tuning.consumed.saturating_mul(2).saturating_add(growth.saturating_mul(4));
        let needed = needed.saturating_add(u32::from(self.mss).saturating_mul(SEGMENTS_MORE));
        self.buffer = self.buffer.max(needed.min(most));
        tuning.consumed_before = core::mem::replace(&mut tuning.consumed, bytes);
        tuning.since = Stamp::of(now);
    }
}

impl Conn {
    /// Returns the bound of unread bytes now: the tuned buffer, as far as memory is left.
    fn buffer<B>(&self, cx: &Cx<'_, B>) -> u32 {
        let least = WINDOW_LEAST.max(u32::from(self.rcv.mss).saturating_mul(2));
        self.rcv.buffer.min(cx.memory.share().max(least))
    }

    /// Returns the window field of a segment sent now, and moves the right edge accordingly.
    #[inline(always)]
    pub(super) fn offer_window<B>(&mut self, cx: &Cx<'_, B>, scaled: bool) -> u16 {
        let shift = if scaled { self.negotiated.rcv_wscale } else { 0 };
        // Before the handshake is complete, a repeated SYN must offer the same window.
        let buffer = if self.state.is_synchronized() { self.buffer(cx) } else { syn_window(cx.config) };
        let free = buffer.saturating_sub(self.rcv.unread);
        let current = self.current_window();
        // RFC 9293 §3.8.6.2.2: the edge moves when it can move by a segment or half the buffer.
        let step = (buffer / 2).min(u32::from(self.rcv.mss));
        let grown = if free >= current.saturating_add(step) { free >> shift } else { 0 };
        // Rounding must not shrink the window (§3.8.6: "shrinking the window") while the buffer has room for it. If
        // it were rounded up each time, the window would move with every segment and never close; RFC 7323 §2.4:
        // "or will have to advertise a smaller window". Data within the old edge is still accepted.
        let unit = 1_u32 << shift;
        let up = (current >> shift).saturating_add(u32::from(current & unit.wrapping_sub(1) != 0));
        let kept = if up << shift < free.saturating_add(unit) { up } else { current >> shift };
        let field = u16::try_from(grown.max(kept)).unwrap_or(u16::MAX);
        self.rcv.edge = self.rcv.edge.max(self.rcv.nxt + (u32::from(field) << shift));
        field
    }

    /// Notes the window of the SYN-ACK that was sent.
    pub(super) fn note_syn_window(&mut self, config: &StackConfig) {
        self.rcv.edge = self.rcv.nxt + syn_window(config);
    }

    /// Returns the window that was offered to the peer, bytes.
    pub(crate) fn current_window(&self) -> u32 {
        if self.rcv.edge.after(self.rcv.nxt) { self.rcv.edge.distance_from(self.rcv.nxt) } else { 0 }
    }

    /// Handles consumption by the application. A nearly closed window is reopened by an immediate acknowledgment; a
    /// wider one grows with the next acknowledgment.
    #[inline]
    pub(crate) fn on_consumed<B>(&mut self, cx: &mut Cx<'_, B>, bytes: u32) {
        let bytes = bytes.min(self.rcv.unread);
        self.rcv.unread = self.rcv.unread.saturating_sub(bytes);
        cx.memory.give_back(bytes);
        if !self.state.can_receive() {
            return;
        }
        let most = receive_buffer(cx.config);
        if !self.rcv.tuned {
            let round_trip = self.receive_round_trip();
            self.rcv.tune(cx.now, bytes, round_trip, most);
            self.rcv.tuned = self.rcv.buffer >= most;
        }
        if self.pending.has(Pending::Ack) {
            return;
        }
        let current = self.current_window();
        if current > self.rcv.buffer / 2 {
            // The window is not nearly closed: it exceeds half of the buffer.
            return;
        }
        let buffer = self.buffer(cx);
        let free = buffer.saturating_sub(self.rcv.unread);
        let step = (buffer / 2).min(u32::from(self.rcv.mss));
        if free >= current.saturating_mul(2) && free >= current.saturating_add(step) {
            self.pending.add(Pending::Ack);
        }
    }

    /// Returns the receiver's estimate of the round-trip time, nanoseconds: by echoes, or else from the handshake
    /// and from what it sent itself.
    #[inline]
    fn receive_round_trip(&self) -> u64 {
        match self.rcv.tuning.echo_rtt_us {
            0 => self.rtt.srtt_nanos().unwrap_or(nanos(ROUND_TRIP_UNKNOWN)),
            us => u64::from(us).saturating_mul(1000),
        }
    }

    /// Takes a round-trip sample from an in-order segment with text and timestamps.
    #[inline]
    pub(super) fn note_echo<B>(&mut self, cx: &Cx<'_, B>, echo: u32) {
        if !self.rcv.tuned
            && let Ok(elapsed_ms) = u16::try_from(self.ts_clock(cx.now).wrapping_sub(echo))
        {
            self.rcv.tuning.on_echo(elapsed_ms.into());
        }
    }
}

/// Returns the configured maximum of the receive buffer, bytes.
pub(crate) fn receive_buffer(config: &StackConfig) -> u32 {
    config.receive_window_bytes.clamp(1024, 1 << 30)
}

/// Returns the initial receive buffer, bytes.
pub(super) fn initial_buffer(config: &StackConfig) -> u32 {
    config.receive_window_initial_bytes.clamp(1024, receive_buffer(config))
}

/// Returns the window of our SYN, which cannot be scaled (RFC 7323 §2.2). It is the same for all connections,
/// because a cookie stores no window.
pub(super) fn syn_window(config: &StackConfig) -> u32 {
    initial_buffer(config).min(u16::MAX.into())
}

/// Returns our window scale: the least that can express the buffer.
pub(crate) fn offered_scale(config: &StackConfig) -> u8 {
    let buffer = receive_buffer(config);
    (0..=14).find(|shift| buffer >> shift <= u32::from(u16::MAX)).unwrap_or(14)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u16 = 1000;

    fn receiver() -> Receiver {
        let config = StackConfig { receive_window_initial_bytes: 64_000, ..StackConfig::default() };
        Receiver { mss: MSS, ..Receiver::new(Instant::ZERO, &config) }
    }

    #[test]
    fn the_buffer_becomes_twice_what_a_round_trip_brings() {
        let (mut rcv, round) = (receiver(), 10_000_000);
        let at = Instant::from_millis;
        let grown = 120_000 + 240_000 + 16 * u32::from(MSS);
        rcv.tune(at(5), 60_000, round, 1 << 20);
        assert_eq!(rcv.buffer, 64_000, "the round trip is not over");
        rcv.tune(at(10), 40_000, round, 1 << 20);
        assert_eq!(rcv.buffer, grown, "from nothing: it grows");
        // Less was consumed: the buffer does not grow, and never shrinks.
        rcv.tune(at(30), 10_000_000, round, 1 << 20);
        assert_eq!(rcv.buffer, grown);
        rcv.tune(at(40), 1, round, 1 << 20);
        assert_eq!(rcv.buffer, 1 << 20, "no more than configured");
    }

    #[test]
    fn a_pause_is_no_round_trip() {
        let (mut rcv, round) = (receiver(), 10_000_000);
        rcv.tune(Instant::from_millis(10_000), 1_000_000, round, 1 << 30);
        assert_eq!(rcv.buffer, 64_000);
    }

    #[test]
    fn echoes_fall_at_once_and_rise_slowly() {
        let mut tuning = receiver().tuning;
        let mut after = |ms| {
            tuning.on_echo(ms);
            tuning.echo_rtt_us
        };
        assert_eq!([after(80), after(40), after(48)], [80_000, 40_000, 41_000]);
        assert_eq!(after(1), 0, "a clock of milliseconds cannot tell");
        assert_eq!(after(0), 0);
        assert_eq!(after(65_535), 65_535_000);
    }

    #[test]
    fn the_share_follows_what_is_left() {
        let mut memory = ReceiveMemory::new(200_000, ReceiveBudget::new(0, 0));
        assert_eq!(memory.share(), 100_000);
        memory.take(150_000);
        assert_eq!((memory.share(), memory.used()), (25_000, 150_000));
        memory.take(150_000);
        assert_eq!(memory.share(), 0, "windows that were offered are filled all the same");
        memory.give_back(300_000);
        assert_eq!(memory.share(), 100_000);
        assert_eq!(ReceiveMemory::new(u64::MAX, ReceiveBudget::new(0, 0)).share(), u32::MAX);
    }

    #[test]
    fn the_scale_expresses_the_largest_window() {
        for (bytes, scale) in
            [(1000, 0), (65_535, 0), (65_536, 1), (1 << 20, 5), (1 << 30, 14), (u32::MAX, 14)]
        {
            let config = StackConfig { receive_window_bytes: bytes, ..StackConfig::default() };
            assert_eq!(offered_scale(&config), scale, "{bytes}");
        }
    }
}
