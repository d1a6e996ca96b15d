//! A simulated link, one direction of it: rate, delay, queue, loss, reordering, duplication, corruption, ECN marks and
//! outages, all drawn from a seed.

use super::Random;
use super::mark::{mark_congestion, rewrite};
use super::segment::repair;
use crate::time::{Duration, Instant};
use crate::wire::{EcnField, EthernetHeader};
use alloc::vec::Vec;

/// Loss in bursts: the channel of Gilbert and Elliott, which is good or bad; [`LinkConfig::loss`] is the loss of the
/// good one. A bad period has a duration, not a number of frames, so that it also ends for a sender that backs off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Burst {
    /// Frames out of a million at which the good channel becomes bad.
    pub begins: u32,
    /// Mean length of a bad period; the longest is twice that.
    pub lasts: Duration,
    /// Frames out of a million that the bad channel loses.
    pub loss: u32,
}

/// A link that goes down again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flap {
    /// First time that it goes down.
    pub from: Duration,
    /// Length of each outage.
    pub down: Duration,
    /// Time between two outages.
    pub up: Duration,
    /// Number of outages in all.
    pub times: u32,
}

impl Flap {
    fn is_down(&self, since_start: Duration) -> bool {
        let Some(since) = since_start.checked_sub(self.from).map(|since| since.as_nanos()) else {
            return false;
        };
        let period = (self.down + self.up).as_nanos().max(1);
        since / period < u128::from(self.times) && since % period < self.down.as_nanos()
    }
}

/// Properties of one direction of a link. Chances are out of a million frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkConfig {
    /// Bits per second; zero for no serialization delay.
    pub rate: u64,
    /// Propagation delay of every frame.
    pub delay: Duration,
    /// Largest random delay on top: frames that are closer together than this may be reordered.
    pub jitter: Duration,
    /// Chance to be delayed by [`Self::hold`] more.
    pub reorder: u32,
    /// Additional delay of such a frame.
    pub hold: Duration,
    /// Chance to be lost.
    pub loss: u32,
    /// Loss in bursts, in addition.
    pub burst: Option<Burst>,
    /// Chance to arrive twice.
    pub duplicate: u32,
    /// Chance that one bit arrives wrong.
    pub corrupt: u32,
    /// Chance that one bit arrives wrong under correct checksums.
    pub forge: u32,
    /// Length of the queue, bytes; a frame that finds more than this waiting is lost.
    pub queue: u64,
    /// Bytes in the queue from which on ECN-capable packets are marked (RFC 3168, RFC 8257 §3.1).
    pub mark: Option<u64>,
    /// True to clear the ECN field of every packet, as some networks do.
    pub bleach: bool,
    /// Largest IP packet, bytes; larger ones are lost.
    pub mtu: usize,
    /// True to send an ICMP error for a packet that is too large (RFC 792, RFC 4443), false for a black hole.
    pub reports_too_big: bool,
    /// Period in which all frames are lost, since the start.
    pub outage: Option<(Duration, Duration)>,
    /// Repeated outages, if the link has any.
    pub flap: Option<Flap>,
}

impl LinkConfig {
    /// A link without loss: 1 Gbit/s, 50 µs, 256 KiB of queue.
    pub const CLEAN: Self = Self {
        rate: 1_000_000_000,
        delay: Duration::from_micros(50),
        jitter: Duration::ZERO,
        reorder: 0,
        hold: Duration::from_micros(500),
        loss: 0,
        burst: None,
        duplicate: 0,
        corrupt: 0,
        forge: 0,
        queue: 256 << 10,
        mark: None,
        bleach: false,
        mtu: 9600,
        reports_too_big: false,
        outage: None,
        flap: None,
    };
}

/// Counters of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounts {
    /// Frames put on it.
    pub sent: u64,
    /// Frames lost by chance, or in an outage.
    pub lost: u64,
    /// Frames lost because the queue was full.
    pub overflowed: u64,
    /// Frames lost because they were too large.
    pub too_large: u64,
    /// Frames that arrived twice.
    pub duplicated: u64,
    /// Frames that arrived with a wrong bit.
    pub corrupted: u64,
    /// Frames delayed by [`LinkConfig::hold`].
    pub held: u64,
    /// Packets marked with CE.
    pub marked: u64,
    /// Sum of the queue lengths that the accepted frames found, bytes.
    pub waited: u64,
    /// Longest queue that an accepted frame found, bytes.
    pub waited_max: u64,
    /// Sum of the times that frames waited in the queue, microseconds.
    pub waited_us: u64,
}

/// One direction of a link.
#[derive(Debug)]
pub struct Link {
    config: LinkConfig,
    random: Random,
    bad_until: Instant,
    /// Time at which the last frame put on it will have been sent.
    busy_until: Instant,
    /// Start of its schedule of outages.
    origin: Instant,
    counts: LinkCounts,
}

impl Link {
    /// Returns a link whose behavior depends on `config` and the seed of `random` alone.
    pub const fn new(config: LinkConfig, random: Random) -> Self {
        let zero = Instant::ZERO;
        Self { config, random, bad_until: zero, busy_until: zero, origin: zero, counts: LinkCounts::ZERO }
    }

    /// Returns the same link with outages that count from `origin` instead of time zero.
    #[must_use]
    pub const fn starting_at(self, origin: Instant) -> Self {
        Self { origin, ..self }
    }

    /// Returns the counters so far.
    pub const fn counts(&self) -> LinkCounts {
        self.counts
    }

    /// Returns the frame of the ICMP error for a frame that is too large, unless the link is a black hole.
    pub fn too_big(&self, frame: &[u8]) -> Option<Vec<u8>> {
        if !self.config.reports_too_big || !self.is_too_large(frame) {
            return None;
        }
        super::router::too_big(frame, self.config.mtu)
    }

    fn is_too_large(&self, frame: &[u8]) -> bool {
        // A tagged frame has this much before its packet; an untagged one, 4 bytes less.
        frame.len().saturating_sub(EthernetHeader::LEN_TAGGED) > self.config.mtu
    }

    /// Returns the time at which a frame put on it now will have been sent: until then the port holds its buffer.
    pub fn busy_until(&self, now: Instant) -> Instant {
        self.busy_until.max(now)
    }

    /// Puts a frame on the link; calls `arrive` once per copy that will arrive.
    pub fn send(&mut self, now: Instant, frame: &[u8], arrive: &mut dyn FnMut(Instant, Vec<u8>)) {
        self.counts.sent = self.counts.sent.saturating_add(1);
        if self.is_too_large(frame) {
            self.counts.too_large = self.counts.too_large.saturating_add(1);
            return;
        }
        let waiting = self.waiting(now);
        if waiting > self.config.queue {
            self.counts.overflowed = self.counts.overflowed.saturating_add(1);
            return;
        }
        let start = self.busy_until.max(now);
        let waited = u64::try_from((start - now).as_micros()).unwrap_or(0);
        self.counts.waited_us = self.counts.waited_us.saturating_add(waited);
        self.busy_until = start + self.sending_time(frame.len());
        if self.loses(now) || self.is_down(now) {
            self.counts.lost = self.counts.lost.saturating_add(1);
            return;
        }
        self.counts.waited = self.counts.waited.saturating_add(waiting);
        self.counts.waited_max = self.counts.waited_max.max(waiting);
        let mut frame = frame.to_vec();
        if self.config.mark.is_some_and(|limit| waiting >= limit) && mark_congestion(&mut frame) {
            self.counts.marked = self.counts.marked.saturating_add(1);
        }
        if self.config.bleach {
            rewrite(&mut frame, |_| EcnField::NotEct);
        }
        let copies = if self.random.chance(self.config.duplicate) { 2 } else { 1 };
        for _ in 1..copies {
            self.counts.duplicated = self.counts.duplicated.saturating_add(1);
        }
        for _ in 0..copies {
            let mut at = self.busy_until + self.config.delay;
            let jitter = u64::try_from(self.config.jitter.as_nanos()).unwrap_or(0);
            at += Duration::from_nanos(self.random.between(0, jitter));
            if self.random.chance(self.config.reorder) {
                self.counts.held = self.counts.held.saturating_add(1);
                at += self.config.hold;
            }
            arrive(at, self.damage(&frame));
        }
    }

    fn sending_time(&self, len: usize) -> Duration {
        // Preamble, FCS and interframe gap take as long as 24 bytes.
        let bits = u64::try_from(len).unwrap_or(u64::MAX).saturating_add(24).saturating_mul(8);
        let nanos = bits.saturating_mul(1_000_000_000).checked_div(self.config.rate);
        Duration::from_nanos(nanos.unwrap_or(0))
    }

    /// Returns the number of bytes that wait for the link.
    fn waiting(&self, now: Instant) -> u64 {
        let waiting = (self.busy_until - now).as_nanos();
        let bytes = waiting.saturating_mul(u128::from(self.config.rate)) / 8_000_000_000;
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    fn is_down(&self, now: Instant) -> bool {
        let since_start = now - self.origin;
        self.config.outage.is_some_and(|(from, to)| (from..to).contains(&since_start))
            || self.config.flap.is_some_and(|flap| flap.is_down(since_start))
    }

    fn loses(&mut self, now: Instant) -> bool {
        let mut lost = self.random.chance(self.config.loss);
        if let Some(burst) = self.config.burst {
            if now >= self.bad_until && self.random.chance(burst.begins) {
                let mean = u64::try_from(burst.lasts.as_nanos()).unwrap_or(0);
                let spell = self.random.between(1, mean.saturating_mul(2).saturating_add(1));
                self.bad_until = now + Duration::from_nanos(spell);
            }
            lost |= now < self.bad_until && self.random.chance(burst.loss);
        }
        lost
    }

    fn damage(&mut self, frame: &[u8]) -> Vec<u8> {
        let mut frame = frame.to_vec();
        let forged = self.random.chance(self.config.forge);
        if forged || self.random.chance(self.config.corrupt) {
            let at = self.random.index(frame.len());
            let bit = self.random.below(8);
            if let Some(byte) = frame.get_mut(at) {
                *byte ^= 1 << bit;
            }
            self.counts.corrupted = self.counts.corrupted.saturating_add(1);
        }
        if forged {
            repair(&mut frame);
        }
        frame
    }
}

impl LinkCounts {
    /// Adds the counters of another link.
    pub const fn add(&mut self, other: &Self) {
        let Self {
            sent,
            lost,
            overflowed,
            too_large,
            duplicated,
            corrupted,
            held,
            marked,
            waited,
            waited_max,
            waited_us,
        } = other;
        self.sent = self.sent.saturating_add(*sent);
        self.lost = self.lost.saturating_add(*lost);
        self.overflowed = self.overflowed.saturating_add(*overflowed);
        self.too_large = self.too_large.saturating_add(*too_large);
        self.duplicated = self.duplicated.saturating_add(*duplicated);
        self.corrupted = self.corrupted.saturating_add(*corrupted);
        self.held = self.held.saturating_add(*held);
        self.marked = self.marked.saturating_add(*marked);
        self.waited = self.waited.saturating_add(*waited);
        if *waited_max > self.waited_max {
            self.waited_max = *waited_max;
        }
        self.waited_us = self.waited_us.saturating_add(*waited_us);
    }

    const ZERO: Self = Self {
        sent: 0,
        lost: 0,
        overflowed: 0,
        too_large: 0,
        duplicated: 0,
        corrupted: 0,
        held: 0,
        marked: 0,
        waited: 0,
        waited_max: 0,
        waited_us: 0,
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(config: LinkConfig, frames: u32, gap: Duration) -> (Vec<(Instant, Vec<u8>)>, LinkCounts) {
        let mut link = Link::new(config, Random::new(1));
        let mut arrived = Vec::new();
        for index in 0..frames {
            let mut frame = [0; 100];
            frame[..4].copy_from_slice(&index.to_be_bytes());
            let now = Instant::ZERO + gap * index;
            link.send(now, &frame, &mut |at, frame| arrived.push((at, frame)));
        }
        arrived.sort();
        (arrived, link.counts())
    }

    #[test]
    fn a_clean_link_is_fifo_and_has_a_rate() {
        let config = LinkConfig { rate: 1_000_000, queue: u64::MAX, ..LinkConfig::CLEAN };
        let (arrived, counts) = run(config, 10, Duration::ZERO);
        // 124 bytes at 1 Mbit/s.
        for (index, (at, frame)) in (0..).zip(&arrived) {
            let sent = Duration::from_micros(992) * (index + 1);
            assert_eq!(*at, Instant::ZERO + sent + config.delay);
            assert_eq!(frame[..4], index.to_be_bytes());
        }
        // Each waits for all before it: 0 + 1 + … + 9 times 992 µs.
        let waited = 124 * (0..10).sum::<u64>();
        let counts_of =
            LinkCounts { sent: 10, waited, waited_max: 9 * 124, waited_us: 45 * 992, ..LinkCounts::ZERO };
        assert_eq!(counts, counts_of);
    }

    #[test]
    fn the_queue_has_an_end() {
        let config = LinkConfig { rate: 1_000_000, queue: 1000, ..LinkConfig::CLEAN };
        let (arrived, counts) = run(config, 100, Duration::ZERO);
        assert_eq!((arrived.len(), counts.overflowed), (9, 91));
    }

    #[test]
    fn chances_are_as_configured() {
        let gap = Duration::from_millis(1);
        let config = LinkConfig {
            loss: 100_000,
            duplicate: 50_000,
            reorder: 50_000,
            hold: gap * 3,
            ..LinkConfig::CLEAN
        };
        let (arrived, counts) = run(config, 20_000, gap);
        assert!(counts.lost.abs_diff(2_000) < 200, "{counts:?}");
        assert!(counts.duplicated.abs_diff(900) < 100, "{counts:?}");
        assert_eq!(arrived.len() as u64, 20_000 - counts.lost + counts.duplicated);
        let inversions = arrived.windows(2).filter(|pair| pair[0].1 > pair[1].1).count();
        assert!(inversions.abs_diff(950) < 150, "{inversions}");
    }

    #[test]
    fn bursts_are_bursts() {
        let burst = Burst { begins: 10_000, lasts: Duration::from_millis(5), loss: 1_000_000 };
        let config = LinkConfig { burst: Some(burst), ..LinkConfig::CLEAN };
        let (arrived, counts) = run(config, 100_000, Duration::from_millis(1));
        // A bad period every hundred frames, of one frame and up to ten more.
        assert!(counts.lost.abs_diff(5_260) < 500, "{counts:?}");
        let number = |frame: &[u8]| u32::from_be_bytes(*frame.first_chunk().unwrap());
        let gaps = arrived.windows(2).filter(|pair| number(&pair[1].1) - number(&pair[0].1) > 1).count();
        assert!(gaps.abs_diff(950) < 150, "{gaps}");
    }

    #[test]
    fn large_packets_disappear() {
        let (arrived, counts) = run(LinkConfig { mtu: 81, ..LinkConfig::CLEAN }, 3, Duration::ZERO);
        assert_eq!((arrived.len(), counts.too_large), (0, 3));
        let (arrived, _) = run(LinkConfig { mtu: 82, ..LinkConfig::CLEAN }, 3, Duration::ZERO);
        assert_eq!(arrived.len(), 3);
    }

    #[test]
    fn nothing_passes_in_an_outage() {
        let gap = Duration::from_millis(1);
        let outage = Some((gap * 3, gap * 7));
        let (arrived, counts) = run(LinkConfig { outage, ..LinkConfig::CLEAN }, 10, gap);
        assert_eq!((arrived.len(), counts.lost), (6, 4));
    }

    #[test]
    fn a_flapping_link_comes_back() {
        let gap = Duration::from_millis(1);
        let flap = Some(Flap { from: gap * 2, down: gap * 3, up: gap * 5, times: 2 });
        let (arrived, counts) = run(LinkConfig { flap, ..LinkConfig::CLEAN }, 40, gap);
        assert_eq!(counts.lost, 6);
        let came: Vec<_> = arrived.iter().take(9).map(|(_, frame)| frame[3]).collect();
        assert_eq!(came, [0, 1, 5, 6, 7, 8, 9, 13, 14]);
    }

    #[test]
    fn one_bit_is_wrong_and_the_same_seed_does_the_same() {
        let config = LinkConfig { corrupt: 1_000_000, jitter: Duration::from_millis(9), ..LinkConfig::CLEAN };
        let (arrived, counts) = run(config, 50, Duration::ZERO);
        assert_eq!(counts.corrupted, 50);
        assert_eq!(run(config, 50, Duration::ZERO).0, arrived);
        let ones = |frame: &[u8]| frame[4..].iter().map(|byte| byte.count_ones()).sum::<u32>();
        assert!(arrived.iter().all(|(_, frame)| ones(frame) <= 1));
    }
}
