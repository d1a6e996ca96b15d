//! The neighbor cache: which link address an on-link IP address has.
//!
//! One state machine for ARP and neighbor discovery, that of RFC 4861 §7.3; ARP replies are taken as
//! solicited advertisements with the override flag. Timeouts are looked at in ticks, so that the work is
//! bounded whatever the neighbors do.
//!
//! ```text
//!             resolve                  answer                  30 s
//!   (none) ------------> INCOMPLETE -----------> REACHABLE ------------> STALE
//!     ^                    | 3 × 1 s                ^   ^                  | resolve
//!     | 1 s, next resolve  v                 answer |   | answer,          v
//!     +----------------- FAILED                     |   | progress   5 s DELAY
//!     ^                                             |   +------------------+
//!     |                 3 × 1 s                   PROBE <------------------+
//!     +---------------------------------------------+
//! ```
//!
//! Doubt of the layer above leads to PROBE from wherever an address is known.
//!
//! Where it departs from §7.2.3, §7.2.5 and RFC 826: a claim that a neighbor to whom something was sent has another link
//! address does not change the entry. The known link address is asked (CONTESTED, 3 × 0.2 s); only when it does not
//! answer, everybody is. One forged frame thus changes nothing while the neighbor is there, and one that has moved is
//! found within 0.7 s. Likewise everybody is asked as soon as PROBE ends without an answer. FIXED entries come from the
//! configuration and never change.

use crate::time::{Duration, Instant};
use crate::wire::MacAddr;
use alloc::vec::Vec;
use core::hash::BuildHasher;
use core::net::IpAddr;
use hashbrown::HashMap;
use siphasher::sip::SipHasher13;

/// RFC 4861 §10: MAX_MULTICAST_SOLICIT and MAX_UNICAST_SOLICIT, "3 transmissions".
const SOLICITATIONS_MAX: u8 = 3;
/// RFC 4861 §10: RETRANS_TIMER, "1,000 milliseconds"; also the rate that RFC 1122 §2.3.2.1 allows ARP:
/// "The recommended maximum rate is 1 per second per destination."
const RETRANSMIT: Duration = Duration::from_secs(1);
/// The time between two questions to a link address that another station contests: what a neighbor that has moved
/// waits for is a few of these.
const CHALLENGE_RETRANSMIT: Duration = Duration::from_millis(200);
/// RFC 4861 §10: DELAY_FIRST_PROBE_TIME, "5 seconds".
const FIRST_PROBE: Duration = Duration::from_secs(5);
/// RFC 4861 §10: REACHABLE_TIME, "30,000 milliseconds", to be multiplied by a random number between 0.5
/// and 1.5.
const REACHABLE_BASE_MS: u64 = 30_000;
/// How long a neighbor's link address stays after it has changed, or was contested and answered: who claims it again and
/// again moves it, or makes us ask, no more often than that.
const SETTLE_TIME: Duration = Duration::from_secs(1);
/// How long a neighbor with whom a connection made progress keeps its place, whoever else wants one.
const IN_USE_TIME: Duration = Duration::from_secs(60);
/// How long an address that did not answer is not asked again.
const HOLD_DOWN: Duration = Duration::from_secs(1);
/// Deadlines are rounded up to this.
const TICK_NS: u64 = 50_000_000;
/// Entries looked at to find one to forget.
const EVICTION_STEPS: usize = 8;

/// A solicitation to send: to `to` alone, or to everybody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Solicit {
    pub(super) target: IpAddr,
    pub(super) to: Option<MacAddr>,
}

/// What is known of a neighbor to whom something is to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lookup {
    /// Send it there.
    Ready(MacAddr),
    /// Wait; the neighbor has been or is asked.
    Resolving(Option<Solicit>),
    /// It does not answer, or the cache has no room for it.
    Unreachable,
}

/// What a neighbor says of itself in an advertisement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Advert {
    pub(super) mac: Option<MacAddr>,
    pub(super) solicited: bool,
    pub(super) overrides: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Asked, no answer yet: `sent` requests, the next at `next`.
    Incomplete { sent: u8, next: Instant },
    /// Known to be there until then.
    Reachable { until: Instant },
    /// Was there once.
    Stale,
    /// Sent to, without a sign of life yet: probed from then on.
    Delay { until: Instant },
    /// Asked again, with `sent` requests to its link address.
    Probe { sent: u8, next: Instant },
    /// Another station claims its address: its own link address is asked, with `sent` requests.
    Contested { sent: u8, next: Instant },
    /// Did not answer; not asked before then.
    Failed { until: Instant },
    /// As configured.
    Static,
}

impl State {
    /// When something must be done for an entry in this state.
    fn deadline(self) -> Option<Instant> {
        match self {
            Self::Incomplete { next, .. } | Self::Probe { next, .. } | Self::Contested { next, .. } => {
                Some(next)
            }
            Self::Delay { until } => Some(until),
            Self::Reachable { .. } | Self::Stale | Self::Failed { .. } | Self::Static => None,
        }
    }

    fn has_mac(self) -> bool {
        !matches!(self, Self::Incomplete { .. } | Self::Failed { .. })
    }
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    ip: IpAddr,
    mac: MacAddr,
    state: State,
    /// Looked up since the hand passed last.
    referenced: bool,
    /// When the layer above confirmed it last, and when its link address changed last, or was contested and answered.
    confirmed: Option<Instant>,
    settled: Option<Instant>,
}

impl Entry {
    fn new(ip: IpAddr, mac: MacAddr, state: State, referenced: bool) -> Self {
        Self { ip, mac, state, referenced, confirmed: None, settled: None }
    }

    /// Whether a connection makes progress through it.
    fn is_in_use(&self, now: Instant) -> bool {
        self.confirmed.is_some_and(|at| now.saturating_since(at) < IN_USE_TIME)
    }

    /// Whether its link address changed, or proved right, just now.
    fn has_just_settled(&self, now: Instant) -> bool {
        self.settled.is_some_and(|at| now.saturating_since(at) < SETTLE_TIME)
    }

    /// Whether its link address changes only after it was asked and did not answer: something was sent there.
    fn has_been_used(&self, now: Instant) -> bool {
        self.referenced || self.is_in_use(now) || self.state == State::Static
    }

    /// Takes the link address that an answer gives, when none is known any more; returns whether it is another one.
    fn set_mac(&mut self, now: Instant, mac: MacAddr) -> bool {
        let moved = self.mac != MacAddr::UNSPECIFIED && self.mac != mac;
        if moved {
            self.settled = Some(now);
        }
        self.mac = mac;
        moved
    }
}

/// Events worth counting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct NeighborCounts {
    pub(super) resolved: u64,
    pub(super) failed: u64,
    pub(super) evicted: u64,
    pub(super) refused: u64,
    pub(super) moved: u64,
    pub(super) flapping: u64,
    pub(super) contested: u64,
    pub(super) upheld: u64,
}

/// SipHash with the cache's keys: what neighbors there are must not tell which of them collide.
#[derive(Clone, Copy, Debug)]
pub(super) struct Keys(pub(super) u64, pub(super) u64);

impl BuildHasher for Keys {
    type Hasher = SipHasher13;
    fn build_hasher(&self) -> SipHasher13 {
        SipHasher13::new_with_keys(self.0, self.1)
    }
}

/// The cache: at most as many entries as it was made for.
#[derive(Debug)]
pub(super) struct NeighborCache {
    entries: Vec<Entry>,
    index: HashMap<IpAddr, u32, Keys>,
    capacity: usize,
    /// Where the search for an entry to forget begins, and how many are fixed: they are the first.
    hand: usize,
    static_count: usize,
    /// The entry found last: most packets go the same way.
    last: u32,
    deadline: Option<Instant>,
    reachable: Duration,
    /// Counts the changes from "not known" to "known".
    resolutions: u32,
    pub(super) counts: NeighborCounts,
}

impl NeighborCache {
    /// A cache of at most `capacity` neighbors (at least one), hashed with `keys`.
    pub(super) fn new(capacity: usize, keys: (u64, u64)) -> Self {
        let capacity = capacity.clamp(1, 1 << 20);
        // RFC 4861 §6.3.2: "a uniformly distributed random value between MIN_RANDOM_FACTOR and
        // MAX_RANDOM_FACTOR times" the base, so that hosts do not act in step.
        let reachable_ms = (REACHABLE_BASE_MS / 2).wrapping_add(keys.0 % REACHABLE_BASE_MS);
        Self {
            entries: Vec::with_capacity(capacity),
            // Twice the entries: removals then never make the table grow.
            index: HashMap::with_capacity_and_hasher(capacity.wrapping_mul(2), Keys(keys.0, keys.1)),
            capacity,
            hand: 0,
            static_count: 0,
            last: 0,
            deadline: None,
            reachable: Duration::from_millis(reachable_ms),
            resolutions: 0,
            counts: NeighborCounts::default(),
        }
    }

    /// Adds a neighbor whose link address never changes, beside as many others as the cache was made for. To be called
    /// before anything is learnt; of two for one address the first counts.
    pub(super) fn add_static(&mut self, ip: IpAddr, mac: MacAddr) {
        let slot = self.entries.len();
        let Ok(index) = u32::try_from(slot) else { return };
        if slot != self.static_count || self.index.contains_key(&ip) {
            return;
        }
        self.capacity = self.capacity.saturating_add(1);
        self.entries.reserve(self.capacity);
        self.index.reserve(self.capacity.saturating_mul(2));
        self.entries.push(Entry::new(ip, mac, State::Static, true));
        self.index.insert(ip, index);
        self.static_count = self.entries.len();
        self.hand = self.static_count;
    }

    pub(super) fn resolutions(&self) -> u32 {
        self.resolutions
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.deadline
    }

    fn slot(&mut self, ip: IpAddr) -> Option<usize> {
        if self.entries.get(self.last as usize).is_some_and(|entry| entry.ip == ip) {
            return Some(self.last as usize);
        }
        let slot = *self.index.get(&ip)?;
        self.last = slot;
        Some(slot as usize)
    }

    /// What [`Self::resolve`] says of the neighbor found last, if that is the one, and nothing else follows.
    #[inline(always)]
    pub(super) fn lookup_ready(&mut self, now: Instant, ip: IpAddr) -> Option<MacAddr> {
        let entry = self.entries.get_mut(self.last as usize).filter(|entry| entry.ip == ip)?;
        let ready = match entry.state {
            State::Reachable { until } => now < until,
            State::Static | State::Delay { .. } | State::Probe { .. } | State::Contested { .. } => true,
            State::Incomplete { .. } | State::Stale | State::Failed { .. } => false,
        };
        entry.referenced = true;
        ready.then_some(entry.mac)
    }

    /// Where to send a packet for an on-link address; starts asking when that is not known.
    pub(super) fn resolve(&mut self, now: Instant, ip: IpAddr) -> Lookup {
        let Some(slot) = self.slot(ip) else { return self.solicit(now, ip) };
        let Some(entry) = self.entries.get_mut(slot) else { return Lookup::Unreachable };
        entry.referenced = true;
        match entry.state {
            State::Reachable { until } if now < until => return Lookup::Ready(entry.mac),
            State::Static | State::Delay { .. } | State::Probe { .. } | State::Contested { .. } => {
                return Lookup::Ready(entry.mac);
            }
            State::Incomplete { .. } => return Lookup::Resolving(None),
            State::Failed { until } if now < until => return Lookup::Unreachable,
            State::Failed { .. } => {
                let next = tick(now + RETRANSMIT);
                entry.state = State::Incomplete { sent: 1, next };
                self.arm(next);
                return Lookup::Resolving(Some(Solicit { target: ip, to: None }));
            }
            State::Reachable { .. } | State::Stale => {}
        }
        // RFC 4861 §7.3.3: "The first time a node sends a packet to a neighbor whose entry is STALE, the
        // sender changes the state to DELAY".
        let until = tick(now + FIRST_PROBE);
        entry.state = State::Delay { until };
        let mac = entry.mac;
        self.arm(until);
        Lookup::Ready(mac)
    }

    #[cold]
    #[inline(never)]
    fn solicit(&mut self, now: Instant, ip: IpAddr) -> Lookup {
        let next = tick(now + RETRANSMIT);
        let state = State::Incomplete { sent: 1, next };
        if !self.insert(now, Entry::new(ip, MacAddr::UNSPECIFIED, state, true), true) {
            return Lookup::Unreachable;
        }
        self.arm(next);
        Lookup::Resolving(Some(Solicit { target: ip, to: None }))
    }

    /// A neighbor has asked for us, and gave its link address (RFC 4861 §7.2.3; RFC 826).
    pub(super) fn on_solicited_by(&mut self, now: Instant, ip: IpAddr, mac: MacAddr) {
        let Some(slot) = self.slot(ip) else {
            self.insert(now, Entry::new(ip, mac, State::Stale, false), false);
            return;
        };
        let Some(entry) = self.entries.get_mut(slot) else { return };
        if entry.state.has_mac() && entry.mac == mac {
            return;
        }
        if !entry.state.has_mac() {
            let moved = entry.set_mac(now, mac);
            entry.state = State::Stale;
            self.count_resolved(moved);
        } else if entry.has_been_used(now) {
            self.challenge(now, slot);
        } else if may_move(&mut self.counts, now, entry) {
            entry.mac = mac;
            entry.state = State::Stale;
        }
    }

    /// Another station claims the address of a neighbor that is relied on: the one that is known is asked first.
    fn challenge(&mut self, now: Instant, slot: usize) {
        let Some(entry) = self.entries.get_mut(slot) else { return };
        let upheld = match entry.state {
            // It is being asked already.
            State::Contested { .. } => return,
            State::Static => 1,
            _ => {
                let from = entry.settled.map_or(now, |at| now.max(at + SETTLE_TIME));
                let next = tick(from);
                entry.state = State::Contested { sent: 0, next };
                self.arm(next);
                0
            }
        };
        self.counts.contested = self.counts.contested.wrapping_add(1);
        self.counts.upheld = self.counts.upheld.wrapping_add(upheld);
    }

    /// A neighbor says what its link address is (RFC 4861 §7.2.5). Returns whether the neighbor is known
    /// here; one that is not is of no interest.
    pub(super) fn on_advert(&mut self, now: Instant, ip: IpAddr, advert: Advert) -> bool {
        let reachable = State::Reachable { until: now + self.reachable };
        let Some(slot) = self.slot(ip) else { return false };
        let Some(entry) = self.entries.get_mut(slot) else { return false };
        if !entry.state.has_mac() {
            // "If the link layer has addresses and no Target Link-Layer Address option is included, the
            // receiving node SHOULD silently discard the received advertisement."
            let Some(mac) = advert.mac else { return true };
            let moved = entry.set_mac(now, mac);
            entry.state = if advert.solicited { reachable } else { State::Stale };
            self.count_resolved(moved);
            return true;
        }
        let Some(mac) = advert.mac.filter(|mac| *mac != entry.mac) else {
            self.on_known_advert(now, slot, advert.solicited);
            return true;
        };
        if !advert.overrides {
            // I.: "If the state of the entry is REACHABLE, set it to STALE, but do not update the entry
            // in any other way", and "Otherwise, the received advertisement should be ignored".
            if matches!(entry.state, State::Reachable { .. }) {
                entry.state = State::Stale;
            }
            return true;
        }
        if entry.has_been_used(now) {
            self.challenge(now, slot);
        } else if may_move(&mut self.counts, now, entry) {
            entry.mac = mac;
            entry.state = if advert.solicited { reachable } else { State::Stale };
        }
        true
    }

    /// A neighbor says that its link address is the one that is known.
    fn on_known_advert(&mut self, now: Instant, slot: usize, solicited: bool) {
        let Some(entry) = self.entries.get_mut(slot).filter(|_| solicited) else { return };
        match entry.state {
            // What was asked before the claim says nothing of it.
            State::Static | State::Contested { sent: 0, .. } => return,
            State::Contested { .. } => {
                entry.settled = Some(now);
                self.counts.upheld = self.counts.upheld.wrapping_add(1);
            }
            _ => {}
        }
        entry.state = State::Reachable { until: now + self.reachable };
    }

    /// What was sent to this neighbor arrives: the layer above saw its answer (RFC 4861 §7.3.1).
    pub(super) fn confirm(&mut self, now: Instant, ip: IpAddr) {
        let reachable = State::Reachable { until: now + self.reachable };
        let Some(slot) = self.slot(ip) else { return };
        let Some(entry) = self.entries.get_mut(slot).filter(|entry| entry.state.has_mac()) else { return };
        entry.confirmed = Some(now);
        // What was sent to where it was before says nothing of where it is now.
        if !entry.has_just_settled(now) && !matches!(entry.state, State::Contested { .. } | State::Static) {
            entry.state = reachable;
        }
    }

    /// What was sent to this neighbor does not arrive, as far as the layer above can tell: it is asked at
    /// once whether it is there.
    pub(super) fn suspect(&mut self, now: Instant, ip: IpAddr) {
        let Some(slot) = self.slot(ip) else { return };
        let Some(entry) = self.entries.get_mut(slot) else { return };
        if matches!(entry.state, State::Reachable { .. } | State::Stale | State::Delay { .. }) {
            let next = tick(now);
            entry.state = State::Probe { sent: 0, next };
            self.arm(next);
        }
    }

    /// Does what is due; calls `send` for each solicitation.
    pub(super) fn handle_timeouts(&mut self, now: Instant, send: &mut dyn FnMut(Solicit)) {
        if self.deadline.is_none_or(|deadline| now < deadline) {
            return;
        }
        let mut failed = 0_u64;
        let mut earliest: Option<Instant> = None;
        for entry in &mut self.entries {
            if entry.state.deadline().is_some_and(|deadline| deadline <= now) {
                let solicit = step(entry, now);
                failed = failed.wrapping_add(u64::from(solicit.is_none()));
                if let Some(solicit) = solicit {
                    send(solicit);
                }
            }
            earliest = match (earliest, entry.state.deadline()) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
        }
        self.deadline = earliest;
        self.counts.failed = self.counts.failed.wrapping_add(failed);
    }

    fn arm(&mut self, deadline: Instant) {
        self.deadline = Some(self.deadline.map_or(deadline, |old| old.min(deadline)));
    }

    /// A link address became known; `moved` when another one was before.
    fn count_resolved(&mut self, moved: bool) {
        self.counts.moved = self.counts.moved.wrapping_add(u64::from(moved));
        self.resolutions = self.resolutions.wrapping_add(1);
        self.counts.resolved = self.counts.resolved.wrapping_add(1);
    }

    /// Adds an entry, in the place of another if need be; `wanted` when we have something to send there.
    fn insert(&mut self, now: Instant, entry: Entry, wanted: bool) -> bool {
        if self.entries.len() < self.capacity {
            let Ok(slot) = u32::try_from(self.entries.len()) else { return false };
            self.entries.push(entry);
            self.index.insert(entry.ip, slot);
            return true;
        }
        let Some(slot) = self.entry_to_evict(now, wanted) else {
            self.counts.refused = self.counts.refused.wrapping_add(1);
            return false;
        };
        let (Some(place), Ok(index)) = (self.entries.get_mut(slot), u32::try_from(slot)) else {
            return false;
        };
        self.index.remove(&place.ip);
        *place = entry;
        self.index.insert(entry.ip, index);
        self.counts.evicted = self.counts.evicted.wrapping_add(1);
        true
    }

    /// An entry to forget: one that was not looked up since the hand passed last. If the few that are
    /// looked at all were, the last of them must go for one that is wanted; but none through which a
    /// connection makes progress, lest anybody who makes us ask for many addresses cuts those off.
    fn entry_to_evict(&mut self, now: Instant, wanted: bool) -> Option<usize> {
        let mut last = None;
        for _ in 0..EVICTION_STEPS.min(self.entries.len()) {
            let slot = self.hand;
            let next = slot.wrapping_add(1);
            self.hand = if next >= self.entries.len() { self.static_count } else { next };
            let entry = self.entries.get_mut(slot)?;
            if entry.is_in_use(now) {
                continue;
            }
            if !entry.referenced {
                return Some(slot);
            }
            // Strangers that make themselves known must not wear out the marks of those in use.
            if wanted {
                entry.referenced = false;
            }
            last = Some(slot);
        }
        last.filter(|_| wanted)
    }
}

/// The link address of a neighbor that is not relied on is to change; `false` when it did so just now, and stays.
fn may_move(counts: &mut NeighborCounts, now: Instant, entry: &mut Entry) -> bool {
    if entry.has_just_settled(now) {
        counts.flapping = counts.flapping.wrapping_add(1);
        return false;
    }
    counts.moved = counts.moved.wrapping_add(1);
    entry.settled = Some(now);
    true
}

/// What is due for an entry whose deadline has passed; `None` when it has not answered.
fn step(entry: &mut Entry, now: Instant) -> Option<Solicit> {
    let next = tick(now + RETRANSMIT);
    let (state, to) = match entry.state {
        State::Incomplete { sent, .. } if sent < SOLICITATIONS_MAX => {
            (State::Incomplete { sent: sent.saturating_add(1), next }, None)
        }
        State::Delay { .. } => (State::Probe { sent: 1, next }, Some(entry.mac)),
        State::Probe { sent, .. } if sent < SOLICITATIONS_MAX => {
            (State::Probe { sent: sent.saturating_add(1), next }, Some(entry.mac))
        }
        State::Contested { sent, .. } if sent < SOLICITATIONS_MAX => {
            let next = tick(now + CHALLENGE_RETRANSMIT);
            (State::Contested { sent: sent.saturating_add(1), next }, Some(entry.mac))
        }
        State::Incomplete { .. } => {
            entry.state = State::Failed { until: now + HOLD_DOWN };
            return None;
        }
        // RFC 4861 §7.3.3: "retransmissions cease and the entry SHOULD be deleted", so that "address resolution" begins
        // anew; at once, since something is on its way there.
        State::Probe { .. } | State::Contested { .. } => (State::Incomplete { sent: 1, next }, None),
        State::Reachable { .. } | State::Stale | State::Failed { .. } | State::Static => return None,
    };
    entry.state = state;
    Some(Solicit { target: entry.ip, to })
}

/// A deadline rounded up to the next tick.
fn tick(at: Instant) -> Instant {
    Instant::from_nanos(at.as_nanos().checked_next_multiple_of(TICK_NS).unwrap_or(u64::MAX))
}

#[cfg(test)]
#[path = "tests/neighbor.rs"]
mod tests;
