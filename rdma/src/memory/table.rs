//! Valid STags, and the single check that every access passes, remote or local.

use core::fmt;

use foldhash::fast::FixedState;
use hashbrown::HashMap;

use super::issue::{CYCLE, QUARANTINE, StagIssuer};
use super::{Access, Fetch, Placement, RegionId, Word};
use crate::wire::Stag;

/// Identifier of a stream, unique for the lifetime of the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

/// Identifier of a protection domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PdId(pub u32);

/// Streams on which an STag is valid.
///
/// RFC 5041 §8.2: "Two required mechanisms for this association are a Protection Domain (PD) association and
/// a DDP Stream association."
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Valid on this stream only.
    Stream(StreamId),
    /// Valid on every stream of this protection domain.
    Pd(PdId),
}

/// Origin of an access. Each connection has one, of two words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Stream of the access.
    pub stream: StreamId,
    /// Protection domain of the stream, if `has_pd` is set.
    pd: PdId,
    has_pd: bool,
    /// Rights that the stream's queue pair leaves to its accesses.
    pub(crate) rights: Access,
}

impl Origin {
    /// Returns the origin of the accesses of a stream, in a protection domain if it has one, whose queue pair denies no
    /// right.
    pub const fn new(stream: StreamId, pd: Option<PdId>) -> Self {
        let (pd, has_pd) = match pd {
            Some(pd) => (pd, true),
            None => (PdId(0), false),
        };
        Self { stream, pd, has_pd, rights: Access::ALL }
    }

    /// Returns the origin with the rights that a queue pair leaves to the stream's accesses.
    pub(crate) const fn with_rights(self, rights: Access) -> Self {
        Self { rights, ..self }
    }

    /// Returns true if the stream belongs to a protection domain.
    pub(super) fn is_in(self, pd: PdId) -> bool {
        self.has_pd && self.pd == pd
    }
}

/// Part of a region that an STag opens, and the tagged offsets that address it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantedRange {
    /// Region that the STag gives access to.
    pub region: RegionId,
    /// Offset of the first byte in the region.
    pub offset: u64,
    /// Length of the part in bytes.
    pub bytes: u64,
    /// Tagged offset of the first byte.
    pub base_to: u64,
}

/// Reason why an access is refused, in the order of the checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessError {
    /// The STag was never granted, is revoked, or its key (the low 8 bits) differs.
    InvalidStag,
    /// The STag is valid on other streams only.
    NotAssociated,
    /// The STag or the stream's queue pair does not carry the right.
    Rights,
    /// Tagged offset plus length exceeds 2⁶⁴.
    Wrap,
    /// The bytes are outside the granted range.
    Bounds,
}

/// Reason why an STag is not granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrantError {
    /// The maximum number of STags is valid.
    NoResources,
    /// The range's end, in the region or in tagged offsets, exceeds 2⁶⁴ − 1.
    Range,
}

impl fmt::Display for GrantError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoResources => "no STag is free",
            Self::Range => "the range ends beyond 2^64 - 1",
        })
    }
}

impl core::error::Error for GrantError {}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) stag: Stag,
    pub(super) serial: u64,
    /// Protection domain of the memory window that has reserved this index, bound or not.
    pub(super) reserved_for: Option<PdId>,
    /// `None` if the STag is revoked and its index in quarantine (not to be reused yet), or if it belongs to an unbound
    /// window.
    pub(super) live: Option<Live>,
}

#[derive(Debug)]
pub(super) struct Live {
    pub(super) range: GrantedRange,
    pub(super) access: Access,
    pub(super) scope: Scope,
    /// Next index in the list of the stream, for STags of a stream.
    pub(super) next: Option<u32>,
    /// For a memory window: the memory region to which it is bound.
    pub(super) parent: Option<Stag>,
    /// For a memory region: the number of memory windows bound to it.
    pub(super) windows: u32,
}

/// STags of one worker. [`StagTable::new`] allocates all memory; it does not grow.
#[derive(Debug)]
pub struct StagTable {
    /// Entries by index, the upper 24 bits of an STag.
    pub(super) entries: HashMap<u32, Entry, FixedState>,
    /// First index in the list of each stream.
    pub(super) streams: HashMap<StreamId, u32, FixedState>,
    issuer: StagIssuer,
    /// Number of STags that are valid, or reserved for a memory window.
    pub(super) live: usize,
    pub(super) capacity: usize,
    /// Maximum of `live` for new STags, at most `capacity`.
    pub(super) limit: usize,
}

impl StagTable {
    /// Maximum capacity: one sixteenth of all indices, so that most guessed STags are invalid.
    pub const CAPACITY_MAX: usize = 1 << 20;

    /// Creates a table for `capacity` STags at a time (at most [`Self::CAPACITY_MAX`]). `seed` determines which STags
    /// are granted; it must be secret and new at every start, so that an STag does not outlive the daemon.
    pub fn new(capacity: usize, seed: [u8; 32]) -> Self {
        let capacity = capacity.min(Self::CAPACITY_MAX);
        let mut words =
            seed.chunks_exact(8).map(|word| word.iter().fold(0u64, |n, b| n << 8 | u64::from(*b)));
        let mut word = || words.next().unwrap_or_default();
        let (key, hash_seed) = ((word(), word()), word());
        // Four times the capacity: valid entries and those in quarantine use at most half of the map's room, so that
        // it rehashes in place and never grows.
        let room = capacity.saturating_mul(4).max(8);
        let hasher = FixedState::with_seed(hash_seed);
        Self {
            entries: HashMap::with_capacity_and_hasher(room, hasher.clone()),
            streams: HashMap::with_capacity_and_hasher(room, hasher),
            issuer: StagIssuer::new(key),
            live: 0,
            capacity,
            limit: capacity,
        }
    }

    /// Returns the number of STags that are valid, or reserved for a memory window.
    pub const fn len(&self) -> usize {
        self.live
    }

    /// Returns true if no STag is valid or reserved for a memory window.
    pub const fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// Returns the maximum number of STags, valid or reserved for memory windows.
    pub const fn capacity(&self) -> usize {
        self.capacity
    }

    /// Sets the number of STags up to which new ones are granted, at most [`Self::capacity`]. Valid ones stay.
    pub fn set_limit(&mut self, limit: usize) {
        self.limit = limit.min(self.capacity);
    }

    /// Returns the rights of the STags that are valid on this stream only, together.
    pub fn access_of(&self, stream: StreamId) -> Access {
        let (mut access, mut at) = (Access::NONE, self.streams.get(&stream).copied());
        while let Some(live) = at.and_then(|index| self.entries.get(&index)?.live.as_ref()) {
            access = access | live.access;
            at = live.next;
        }
        access
    }

    /// Returns the part of a region that a valid STag opens, and the rights that it carries.
    pub fn opened_by(&self, stag: Stag) -> Option<(GrantedRange, Access)> {
        let entry = self.entries.get(&index_of(stag)).filter(|entry| entry.stag == stag)?;
        entry.live.as_ref().map(|live| (live.range, live.access))
    }

    /// Returns the number of STags that open a region. Visits every STag.
    pub fn grants_of(&self, region: RegionId) -> usize {
        self.entries.values().filter(|entry| entry.opens(region)).count()
    }

    /// Grants an STag for the first `bytes` bytes of a region; their tagged offsets start at 0.
    pub fn grant(
        &mut self,
        region: RegionId,
        bytes: u64,
        access: Access,
        scope: Scope,
    ) -> Result<Stag, GrantError> {
        self.grant_range(GrantedRange { region, offset: 0, bytes, base_to: 0 }, access, scope)
    }

    /// Grants an STag for a part of a region, at tagged offsets of the caller's choice.
    pub fn grant_range(
        &mut self,
        range: GrantedRange,
        access: Access,
        scope: Scope,
    ) -> Result<Stag, GrantError> {
        if range.offset.checked_add(range.bytes).is_none() || range.base_to.checked_add(range.bytes).is_none()
        {
            return Err(GrantError::Range);
        }
        if self.live >= self.limit {
            return Err(GrantError::NoResources);
        }
        let (stag, serial) = self.issue();
        let index = index_of(stag);
        let next = match scope {
            Scope::Stream(stream) => self.streams.insert(stream, index),
            Scope::Pd(_) => None,
        };
        let live = Live { range, access, scope, next, parent: None, windows: 0 };
        self.entries.insert(index, Entry { stag, serial, reserved_for: None, live: Some(live) });
        self.live = self.live.saturating_add(1);
        Ok(stag)
    }

    /// Returns the next STag whose index is free. An index in quarantine is skipped once and its entry removed: the
    /// search returns to it only after all other indices.
    pub(super) fn issue(&mut self) -> (Stag, u64) {
        loop {
            let (stag, serial) = self.issuer.issue();
            let index = index_of(stag);
            // Index 0 is not used: a zero STag means "none" to many programs.
            if index == 0 {
                continue;
            }
            match self.entries.get(&index) {
                None => return (stag, serial),
                Some(Entry { live: Some(_), .. } | Entry { reserved_for: Some(_), .. }) => {}
                Some(Entry { live: None, .. }) => {
                    self.entries.remove(&index);
                }
            }
        }
    }

    /// Revokes an STag; returns false if it was not valid.
    pub fn revoke(&mut self, stag: Stag) -> bool {
        let index = index_of(stag);
        let Some(Entry { stag: valid, live: Some(live), .. }) = self.entries.get(&index) else {
            return false;
        };
        if *valid != stag {
            return false;
        }
        if let Scope::Stream(stream) = live.scope {
            let next = live.next;
            self.unlink(stream, index, next);
        }
        self.retire(index);
        true
    }

    /// Removes an index from the list of its stream.
    fn unlink(&mut self, stream: StreamId, index: u32, next: Option<u32>) {
        let Some(first) = self.streams.get(&stream).copied() else { return };
        if first == index {
            match next {
                Some(next) => self.streams.insert(stream, next),
                None => self.streams.remove(&stream),
            };
            return;
        }
        let mut at = Some(first);
        while let Some(live) = at.and_then(|at| self.entries.get_mut(&at)?.live.as_mut()) {
            if live.next == Some(index) {
                live.next = next;
                return;
            }
            at = live.next;
        }
    }

    /// Removes an entry, unless its index would be reused within [`QUARANTINE`] grants: then `issue` removes it when
    /// it reaches the index. The index of a memory window stays with the window.
    pub(super) fn retire(&mut self, index: u32) {
        let Some(entry) = self.entries.get_mut(&index) else { return };
        let parent = entry.live.take().and_then(|live| live.parent);
        if entry.reserved_for.is_none() {
            if !entry.is_in_quarantine(self.issuer.next) {
                self.entries.remove(&index);
            }
            self.live = self.live.saturating_sub(1);
        }
        if let Some(parent) = parent {
            self.unbound_from(parent);
        }
    }

    /// Revokes the STags that are valid on this stream only, after the stream has ended. Returns their number.
    pub fn revoke_stream(&mut self, stream: StreamId) -> usize {
        let mut at = self.streams.remove(&stream);
        let mut count = 0usize;
        while let Some(index) = at {
            at = self.entries.get(&index).and_then(|entry| entry.live.as_ref()?.next);
            self.retire(index);
            count = count.saturating_add(1);
        }
        count
    }

    /// Revokes every STag of a region, and returns their number. Visits every STag twice.
    pub fn revoke_region(&mut self, region: RegionId) -> usize {
        let Self { entries, streams, issuer, live, capacity: _, limit: _ } = self;
        streams.retain(|_, first| match list_without(entries, *first, region) {
            Some(kept) => {
                *first = kept;
                true
            }
            None => false,
        });
        let mut revoked = 0usize;
        entries.retain(|_, entry| {
            if !entry.opens(region) {
                return true;
            }
            entry.live = None;
            revoked = revoked.saturating_add(1);
            if entry.reserved_for.is_some() {
                return true;
            }
            *live = live.saturating_sub(1);
            entry.is_in_quarantine(issuer.next)
        });
        revoked
    }

    /// Performs the complete check of placing `len` bytes for a stream.
    #[inline]
    pub fn check_place(
        &self,
        stag: Stag,
        to: u64,
        len: usize,
        origin: Origin,
    ) -> Result<Placement, AccessError> {
        let (region, offset) = self.check(Access::REMOTE_WRITE, stag, to, len as u64, origin)?;
        Ok(Placement::checked(region, offset, len))
    }

    /// Performs the complete check of fetching `len` bytes for a stream.
    #[inline]
    pub fn check_fetch(&self, stag: Stag, to: u64, len: usize, origin: Origin) -> Result<Fetch, AccessError> {
        let (region, offset) = self.check(Access::REMOTE_READ, stag, to, len as u64, origin)?;
        Ok(Fetch::checked(region, offset, len))
    }

    /// Performs the complete check of an atomic operation for a stream; `None` if access is
    /// allowed and the address is not a multiple of 8.
    pub fn check_atomic(&self, stag: Stag, to: u64, origin: Origin) -> Result<Option<Word>, AccessError> {
        let (region, offset) =
            self.check(Access::REMOTE_ATOMIC, stag, to, size_of::<u64>() as u64, origin)?;
        Ok(Word::checked(region, offset))
    }

    /// Performs the complete check of fetching `len` bytes for a local work request on this stream. `lkey` is an STag
    /// of the stream's protection domain.
    #[inline]
    pub fn check_local_fetch(
        &self,
        lkey: Stag,
        address: u64,
        len: usize,
        origin: Origin,
    ) -> Result<Fetch, AccessError> {
        let (region, offset) = self.check(Access::LOCAL_READ, lkey, address, len as u64, origin)?;
        Ok(Fetch::checked(region, offset, len))
    }

    /// Performs the complete check of placing `len` bytes for a local work request on this stream.
    #[inline]
    pub fn check_local_place(
        &self,
        lkey: Stag,
        address: u64,
        len: usize,
        origin: Origin,
    ) -> Result<Placement, AccessError> {
        let (region, offset) = self.check(Access::LOCAL_WRITE, lkey, address, len as u64, origin)?;
        Ok(Placement::checked(region, offset, len))
    }

    /// Invalidates an STag for the peer of a stream.
    ///
    /// RFC 5040 §8.1.1: "An RNIC MUST ensure that a Remote Peer is not able to invalidate an STag enabled for
    /// remote access, if the STag is shared on multiple streams". An STag of a protection domain may be shared.
    pub fn invalidate(&mut self, stag: Stag, origin: Origin) -> Result<(), AccessError> {
        if let Scope::Pd(_) = self.entitled(Access::REMOTE_INVALIDATE, stag, origin)?.scope {
            return Err(AccessError::Rights);
        }
        self.invalidate_local(stag, origin)
    }

    /// Invalidates an STag for a local work request on a stream. An STag with bound memory windows is refused:
    /// the windows would outlive it.
    pub fn invalidate_local(&mut self, stag: Stag, origin: Origin) -> Result<(), AccessError> {
        if self.entitled(Access::NONE, stag, origin)?.windows > 0 {
            return Err(AccessError::Rights);
        }
        if self.revoke(stag) { Ok(()) } else { Err(AccessError::InvalidStag) }
    }

    /// Checks STag and key, then stream or protection domain, then right, in this order.
    #[inline]
    pub(super) fn entitled(&self, right: Access, stag: Stag, origin: Origin) -> Result<&Live, AccessError> {
        let entry = self.entries.get(&index_of(stag)).filter(|entry| entry.stag == stag);
        let live = entry.and_then(|entry| entry.live.as_ref()).ok_or(AccessError::InvalidStag)?;
        let associated = match live.scope {
            Scope::Stream(stream) => stream == origin.stream,
            Scope::Pd(pd) => origin.is_in(pd),
        };
        if !associated {
            return Err(AccessError::NotAssociated);
        }
        if !live.access.contains(right) || !origin.rights.contains(right) {
            return Err(AccessError::Rights);
        }
        Ok(live)
    }

    /// Performs the complete check of an access to bytes, and returns the region and the offset in it.
    #[inline]
    pub(super) fn check(
        &self,
        right: Access,
        stag: Stag,
        to: u64,
        len: u64,
        origin: Origin,
    ) -> Result<(RegionId, u64), AccessError> {
        let range = self.entitled(right, stag, origin)?.range;
        // RFC 5041 §7.1: "A 64-bit unsigned sum of the DDP Segment payload length and the TO does not wrap."
        to.checked_add(len).ok_or(AccessError::Wrap)?;
        let skip = to.checked_sub(range.base_to).ok_or(AccessError::Bounds)?;
        match skip.checked_add(len) {
            Some(end) if end <= range.bytes => Ok((range.region, range.offset.saturating_add(skip))),
            _ => Err(AccessError::Bounds),
        }
    }
}

/// Removes the STags of a region from a stream's list, and returns its new first index.
fn list_without(entries: &mut HashMap<u32, Entry, FixedState>, first: u32, region: RegionId) -> Option<u32> {
    let (mut begin, mut last, mut at) = (None, None, Some(first));
    while let Some(index) = at {
        let Some(live) = entries.get(&index).and_then(|entry| entry.live.as_ref()) else { break };
        at = live.next;
        if live.range.region != region {
            begin = begin.or(Some(index));
            link(entries, last, Some(index));
            last = Some(index);
        }
    }
    link(entries, last, None);
    begin
}

fn link(entries: &mut HashMap<u32, Entry, FixedState>, from: Option<u32>, to: Option<u32>) {
    if let Some(live) = from.and_then(|from| entries.get_mut(&from)?.live.as_mut()) {
        live.next = to;
    }
}

impl Entry {
    /// Returns true if the index is reused within [`QUARANTINE`] grants.
    const fn is_in_quarantine(&self, next_serial: u64) -> bool {
        let age = next_serial.wrapping_sub(self.serial) % CYCLE;
        CYCLE.saturating_sub(age) <= QUARANTINE
    }

    fn opens(&self, region: RegionId) -> bool {
        self.live.as_ref().is_some_and(|live| live.range.region == region)
    }
}

pub(super) const fn index_of(stag: Stag) -> u32 {
    stag.0 >> 8
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
