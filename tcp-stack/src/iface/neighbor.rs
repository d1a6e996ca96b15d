//! The neighbor cache: link addresses of on-link IP addresses.
//!
//! ARP and neighbor discovery share the state machine of RFC 4861 §7.3: an ARP reply counts as a solicited
//! advertisement with the override flag. Deadlines are rounded up to ticks, so that timer work is bounded for any
//! traffic.
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
//! Negative advice from TCP leads to PROBE from every state with a link address.
//!
//! Deviation from §7.2.3, §7.2.5 and RFC 826: a claim that a neighbor in use has another link address does not change
//! the entry. The known link address is solicited (CONTESTED, 3 × 0.2 s); only if it does not answer, a multicast or
//! broadcast solicitation follows. So one forged frame changes nothing while the neighbor is present, and one that has
//! moved is found within 0.7 s. A broadcast solicitation also follows as soon as PROBE ends without an answer. STATIC
//! entries come from the configuration and never change.

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
/// Interval of solicitations to a link address that another station contests: a neighbor that has moved is unreachable
/// for a few of these.
const CHALLENGE_RETRANSMIT: Duration = Duration::from_millis(200);
/// RFC 4861 §10: DELAY_FIRST_PROBE_TIME, "5 seconds".
const FIRST_PROBE: Duration = Duration::from_secs(5);
/// RFC 4861 §10: REACHABLE_TIME, "30,000 milliseconds", to be multiplied by a random number between 0.5
/// and 1.5.
const REACHABLE_BASE_MS: u64 = 30_000;
/// Time for which a link address stays after it has changed, or was contested and confirmed: repeated claims move an
/// entry, or cause solicitations, no more often than that.
const SETTLE_TIME: Duration = Duration::from_secs(1);
/// Time for which a neighbor through which a connection made progress is not evicted.
const IN_USE_TIME: Duration = Duration::from_secs(60);
/// Time for which an address that did not answer is not solicited again.
const HOLD_DOWN: Duration = Duration::from_secs(1);
/// Resolution of deadlines, nanoseconds.
const TICK_NS: u64 = 50_000_000;
/// Entries examined to find one to evict.
const EVICTION_STEPS: usize = 8;

/// A solicitation to send: unicast to `to`, or multicast without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Solicit {
    pub(super) target: IpAddr,
    pub(super) to: Option<MacAddr>,
}

/// The result of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lookup {
    /// The link address to send to.
    Ready(MacAddr),
    /// Resolution is in progress; the solicitation to send, if one is due.
    Resolving(Option<Solicit>),
    /// The neighbor does not answer.
    Unreachable,
    /// The cache has no room for it: all neighbors in it are in use.
    NoRoom,
}

/// An advertisement, or an ARP reply, of a neighbor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Advert {
    pub(super) mac: Option<MacAddr>,
    pub(super) solicited: bool,
    pub(super) overrides: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Solicited without an answer yet: `sent` requests, the next at `next`.
    Incomplete { sent: u8, next: Instant },
    /// Confirmed reachable until this time.
    Reachable { until: Instant },
    /// Its link address is known but not confirmed recently.
    Stale,
    /// Sent to without a confirmation yet: probed from this time on.
    Delay { until: Instant },
    /// Probed, with `sent` requests to its link address, the next at `next`.
    Probe { sent: u8, next: Instant },
    /// Another station claims its address: `sent` requests went to its known link address, the next follows at `next`.
    Contested { sent: u8, next: Instant },
    /// Did not answer; not solicited before this time.
    Failed { until: Instant },
    /// The link address is configured and never changes.
    Static,
}

impl State {
    /// Returns the time of the next action for an entry in this state.
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
    /// Set by a lookup, cleared by the clock hand of the eviction.
    referenced: bool,
    /// Times at which TCP confirmed it last, and at which its link address changed last or was contested and confirmed.
    confirmed: Option<Instant>,
    settled: Option<Instant>,
}

impl Entry {
    fn new(ip: IpAddr, mac: MacAddr, state: State, referenced: bool) -> Self {
        Self { ip, mac, state, referenced, confirmed: None, settled: None }
    }

    /// Returns true if a connection made progress through it recently.
    fn is_in_use(&self, now: Instant) -> bool {
        self.confirmed.is_some_and(|at| now.saturating_since(at) < IN_USE_TIME)
    }

    /// Returns true if its link address changed, or was confirmed after a claim, just now.
    fn has_just_settled(&self, now: Instant) -> bool {
        self.settled.is_some_and(|at| now.saturating_since(at) < SETTLE_TIME)
    }

    /// Returns true if packets were sent to it, so that its link address changes only after a solicitation without an
    /// answer.
    fn has_been_used(&self, now: Instant) -> bool {
        self.referenced || self.is_in_use(now) || self.state == State::Static
    }

    /// Sets the link address of an entry that has none, and returns true if it differs from the last one.
    fn set_mac(&mut self, now: Instant, mac: MacAddr) -> bool {
        let moved = self.mac != MacAddr::UNSPECIFIED && self.mac != mac;
        if moved {
            self.settled = Some(now);
        }
        self.mac = mac;
        moved
    }
}

/// Event counters of the cache.
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

/// SipHash with secret keys, so that neighbors cannot choose addresses that collide.
#[derive(Clone, Copy, Debug)]
pub(super) struct Keys(pub(super) u64, pub(super) u64);

impl BuildHasher for Keys {
    type Hasher = SipHasher13;
    fn build_hasher(&self) -> SipHasher13 {
        SipHasher13::new_with_keys(self.0, self.1)
    }
}

/// The cache, of a fixed capacity.
#[derive(Debug)]
pub(super) struct NeighborCache {
    entries: Vec<Entry>,
    index: HashMap<IpAddr, u32, Keys>,
    capacity: usize,
    /// Clock hand: the entry at which the next eviction search begins. Below it, the number of static entries, which
    /// come first.
    hand: usize,
    static_count: usize,
    /// Entry found last: most packets go to the same next hop.
    last: u32,
    deadline: Option<Instant>,
    reachable: Duration,
    /// Number of completed resolutions.
    resolutions: u32,
    pub(super) counts: NeighborCounts,
}

impl NeighborCache {
    /// Returns a cache of at most `capacity` neighbors (at least one), hashed with `keys`.
    pub(super) fn new(capacity: usize, keys: (u64, u64)) -> Self {
        let capacity = capacity.clamp(1, 1 << 20);
        // RFC 4861 §6.3.2: "a uniformly distributed random value between MIN_RANDOM_FACTOR and
        // MAX_RANDOM_FACTOR times" the base, so that hosts do not act in step.
        let reachable_ms = (REACHABLE_BASE_MS / 2).wrapping_add(keys.0 % REACHABLE_BASE_MS);
        Self {
            entries: Vec::with_capacity(capacity),
            // Twice the entries, so that removals never make the table grow.
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

    /// Adds a neighbor whose link address never changes, in addition to the capacity. Must be called before any other
    /// change; of two entries for one address the first counts.
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

    /// Returns what [`Self::resolve`] would if the neighbor is the one found last and its state does not change.
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

    /// Looks up the link address of an on-link address; starts resolution if it is not known.
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
            return Lookup::NoRoom;
        }
        self.arm(next);
        Lookup::Resolving(Some(Solicit { target: ip, to: None }))
    }

    /// Handles a solicitation of our address, which carries the sender's link address (RFC 4861 §7.2.3; RFC 826).
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

    /// Contests the entry of a neighbor in use whose address another station claims: its known link address is
    /// solicited first.
    fn challenge(&mut self, now: Instant, slot: usize) {
        let Some(entry) = self.entries.get_mut(slot) else { return };
        let upheld = match entry.state {
            // The solicitations have begun already.
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

    /// Handles an advertisement (RFC 4861 §7.2.5). Returns false if the neighbor has no entry; none is made then.
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

    /// Handles an advertisement that repeats the known link address.
    fn on_known_advert(&mut self, now: Instant, slot: usize, solicited: bool) {
        let Some(entry) = self.entries.get_mut(slot).filter(|_| solicited) else { return };
        match entry.state {
            // An answer to a solicitation from before the claim confirms nothing.
            State::Static | State::Contested { sent: 0, .. } => return,
            State::Contested { .. } => {
                entry.settled = Some(now);
                self.counts.upheld = self.counts.upheld.wrapping_add(1);
            }
            _ => {}
        }
        entry.state = State::Reachable { until: now + self.reachable };
    }

    /// Confirms reachability: TCP received an acknowledgment of what was sent (RFC 4861 §7.3.1).
    pub(super) fn confirm(&mut self, now: Instant, ip: IpAddr) {
        let reachable = State::Reachable { until: now + self.reachable };
        let Some(slot) = self.slot(ip) else { return };
        let Some(entry) = self.entries.get_mut(slot).filter(|entry| entry.state.has_mac()) else { return };
        entry.confirmed = Some(now);
        // Packets that went to the former link address confirm nothing about the present one.
        if !entry.has_just_settled(now) && !matches!(entry.state, State::Contested { .. } | State::Static) {
            entry.state = reachable;
        }
    }

    /// Handles negative advice: TCP's packets to this neighbor do not seem to arrive, so it is probed at once.
    pub(super) fn suspect(&mut self, now: Instant, ip: IpAddr) {
        let Some(slot) = self.slot(ip) else { return };
        let Some(entry) = self.entries.get_mut(slot) else { return };
        if matches!(entry.state, State::Reachable { .. } | State::Stale | State::Delay { .. }) {
            let next = tick(now);
            entry.state = State::Probe { sent: 0, next };
            self.arm(next);
        }
    }

    /// Runs expired timers; calls `send` for each solicitation.
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

    /// Counts a link address that was resolved; `moved` if it differs from the last one.
    fn count_resolved(&mut self, moved: bool) {
        self.counts.moved = self.counts.moved.wrapping_add(u64::from(moved));
        self.resolutions = self.resolutions.wrapping_add(1);
        self.counts.resolved = self.counts.resolved.wrapping_add(1);
    }

    /// Inserts an entry, evicting another if the cache is full; `wanted` if we have something to send to it.
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

    /// Returns an entry to evict: the first without a lookup since the clock hand passed it last. If all that it
    /// examines had one, the last of them is evicted for a wanted entry. An entry through which a connection makes
    /// progress is never evicted, so that solicitations of many addresses cannot cut it off.
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
            // Unwanted entries must not clear the marks of those in use.
            if wanted {
                entry.referenced = false;
            }
            last = Some(slot);
        }
        last.filter(|_| wanted)
    }
}

/// Returns true, and counts a move, if the link address of an unused entry may change; `false` if it changed just now.
fn may_move(counts: &mut NeighborCounts, now: Instant, entry: &mut Entry) -> bool {
    if entry.has_just_settled(now) {
        counts.flapping = counts.flapping.wrapping_add(1);
        return false;
    }
    counts.moved = counts.moved.wrapping_add(1);
    entry.settled = Some(now);
    true
}

/// Advances an entry whose deadline has passed; returns the solicitation to send, or `None` if the neighbor has failed.
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
        // anew; at once here, since packets wait.
        State::Probe { .. } | State::Contested { .. } => (State::Incomplete { sent: 1, next }, None),
        State::Reachable { .. } | State::Stale | State::Failed { .. } | State::Static => return None,
    };
    entry.state = state;
    Some(Solicit { target: entry.ip, to })
}

/// Rounds a deadline up to the next tick.
fn tick(at: Instant) -> Instant {
    Instant::from_nanos(at.as_nanos().checked_next_multiple_of(TICK_NS).unwrap_or(u64::MAX))
}

#[cfg(test)]
#[path = "tests/neighbor.rs"]
mod tests;
