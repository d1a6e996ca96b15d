//! Memory windows: STags that are reserved first, and become valid when bound to a part of a memory region.
//!
//! These are windows of type 2B in the verbs: a work request binds them to the stream that it was posted on; an
//! invalidation from either side, or the end of the stream, makes them invalid.

use super::table::{Entry, Live, index_of};
use super::{Access, AccessError, GrantError, GrantedRange, Origin, PdId, Scope, StagTable};
use crate::wire::Stag;

/// Part of a memory region to bind a memory window to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bind {
    /// Key of the memory region.
    pub lkey: Stag,
    /// Address of the first byte, in the region's address space.
    pub address: u64,
    /// Length of the window in bytes.
    pub len: u64,
    /// Rights granted to the peer; rights of a peer only.
    pub access: Access,
    /// True if the window's tagged offsets start at 0, not at `address`.
    pub zero_based: bool,
}

/// Returns the local rights that the region must have for a window with these remote rights.
fn required(access: Access) -> Access {
    let mut required = Access::WINDOW_BIND;
    if access.contains(Access::REMOTE_READ) {
        required = required | Access::LOCAL_READ;
    }
    if access.contains(Access::REMOTE_WRITE) || access.contains(Access::REMOTE_ATOMIC) {
        required = required | Access::LOCAL_WRITE;
    }
    required
}

impl StagTable {
    /// Reserves an STag for a memory window of a protection domain. It is invalid until bound.
    pub fn keep(&mut self, pd: PdId) -> Result<Stag, GrantError> {
        if self.live >= self.limit {
            return Err(GrantError::NoResources);
        }
        let (stag, serial) = self.issue();
        self.entries.insert(index_of(stag), Entry { stag, serial, reserved_for: Some(pd), live: None });
        self.live = self.live.saturating_add(1);
        Ok(stag)
    }

    /// Frees a reserved STag, valid or not. Returns false if it was not reserved.
    pub fn release(&mut self, stag: Stag) -> bool {
        let index = index_of(stag);
        let Some(entry) = self.entries.get(&index).filter(|entry| entry.reserved_for.is_some()) else {
            return false;
        };
        let valid = entry.stag;
        self.revoke(valid);
        if let Some(entry) = self.entries.get_mut(&index) {
            entry.reserved_for = None;
        }
        self.retire(index);
        true
    }

    /// Makes a reserved STag valid on this stream, for a part of a memory region of the same protection domain. The
    /// caller chooses the key, the low eight bits of the STag, so that an old key of the peer becomes invalid.
    pub fn bind(&mut self, stag: Stag, bind: &Bind, origin: Origin) -> Result<(), AccessError> {
        let index = index_of(stag);
        let entry = self.entries.get(&index).ok_or(AccessError::InvalidStag)?;
        let pd = entry.reserved_for.ok_or(AccessError::InvalidStag)?;
        if entry.live.is_some() {
            return Err(AccessError::InvalidStag);
        }
        if !origin.is_in(pd) {
            return Err(AccessError::NotAssociated);
        }
        if !Access::REMOTE.contains(bind.access) {
            return Err(AccessError::Rights);
        }
        let (region, offset) =
            self.check(required(bind.access), bind.lkey, bind.address, bind.len, origin)?;
        let base_to = if bind.zero_based { 0 } else { bind.address };
        let range = GrantedRange { region, offset, bytes: bind.len, base_to };
        let next = self.streams.insert(origin.stream, index);
        let scope = Scope::Stream(origin.stream);
        let live = Live { range, access: bind.access, scope, next, parent: Some(bind.lkey), windows: 0 };
        if let Some(entry) = self.entries.get_mut(&index) {
            (entry.stag, entry.live) = (stag, Some(live));
        }
        if let Some(parent) = self.live_mut(bind.lkey) {
            parent.windows = parent.windows.saturating_add(1);
        }
        Ok(())
    }

    /// Returns the number of memory windows bound to a memory region.
    pub fn windows_of(&self, stag: Stag) -> u32 {
        let entry = self.entries.get(&index_of(stag)).filter(|entry| entry.stag == stag);
        entry.and_then(|entry| entry.live.as_ref()).map_or(0, |live| live.windows)
    }

    /// Removes one window from the region's count.
    pub(super) fn unbound_from(&mut self, parent: Stag) {
        if let Some(parent) = self.live_mut(parent) {
            parent.windows = parent.windows.saturating_sub(1);
        }
    }

    fn live_mut(&mut self, stag: Stag) -> Option<&mut Live> {
        self.entries.get_mut(&index_of(stag)).filter(|entry| entry.stag == stag)?.live.as_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{RegionId, StreamId};

    const PD: PdId = PdId(4);
    const HERE: Origin = Origin::new(StreamId(1), Some(PD));
    const THERE: Origin = Origin::new(StreamId(2), Some(PD));
    const REGION: RegionId = RegionId(9);

    fn table() -> (StagTable, Stag, Stag) {
        let mut table = StagTable::new(3, [5; 32]);
        let access = Access::LOCAL_READ | Access::WINDOW_BIND;
        let range = GrantedRange { region: REGION, offset: 100, bytes: 50, base_to: 1000 };
        let lkey = table.grant_range(range, access, Scope::Pd(PD)).unwrap();
        let stag = table.keep(PD).unwrap();
        (table, lkey, stag)
    }

    const fn bind(lkey: Stag) -> Bind {
        Bind { lkey, address: 1010, len: 20, access: Access::REMOTE_READ, zero_based: false }
    }

    #[test]
    fn a_window_is_valid_while_it_is_bound_and_there_only() {
        let (mut table, lkey, stag) = table();
        assert_eq!(table.check_fetch(stag, 1010, 1, HERE), Err(AccessError::InvalidStag));
        let newer = Stag(stag.0 ^ 1);
        table.bind(newer, &bind(lkey), HERE).unwrap();
        assert_eq!((table.windows_of(lkey), table.len()), (1, 2));
        let token = table.check_fetch(newer, 1012, 18, HERE).unwrap();
        assert_eq!((token.region(), token.offset(), token.len()), (REGION, 112, 18));
        assert_eq!(table.check_fetch(newer, 1012, 19, HERE), Err(AccessError::Bounds));
        assert_eq!(table.check_fetch(newer, 1009, 1, HERE), Err(AccessError::Bounds));
        assert_eq!(table.check_fetch(newer, 1010, 1, THERE), Err(AccessError::NotAssociated));
        assert_eq!(table.check_fetch(stag, 1010, 1, HERE), Err(AccessError::InvalidStag));
        assert_eq!(table.check_place(newer, 1010, 1, HERE), Err(AccessError::Rights));
        // Neither while it is bound, nor the region under it.
        assert_eq!(table.bind(newer, &bind(lkey), HERE), Err(AccessError::InvalidStag));
        assert_eq!(table.invalidate_local(lkey, HERE), Err(AccessError::Rights));
        table.invalidate_local(newer, HERE).unwrap();
        assert_eq!((table.windows_of(lkey), table.len()), (0, 2));
        table.bind(stag, &Bind { zero_based: true, ..bind(lkey) }, HERE).unwrap();
        assert_eq!(table.check_fetch(stag, 0, 20, HERE).unwrap().offset(), 110);
    }

    #[test]
    fn a_window_allows_no_more_than_its_region() {
        let (mut table, lkey, stag) = table();
        let wrong = [
            (Bind { access: Access::REMOTE_WRITE, ..bind(lkey) }, AccessError::Rights),
            (Bind { access: Access::REMOTE_ATOMIC, ..bind(lkey) }, AccessError::Rights),
            (Bind { access: Access::LOCAL_READ, ..bind(lkey) }, AccessError::Rights),
            (Bind { len: 41, ..bind(lkey) }, AccessError::Bounds),
            (Bind { address: 999, ..bind(lkey) }, AccessError::Bounds),
            (Bind { len: u64::MAX, ..bind(lkey) }, AccessError::Wrap),
            (bind(stag), AccessError::InvalidStag),
        ];
        for (bind, error) in wrong {
            assert_eq!(table.bind(stag, &bind, HERE), Err(error), "{bind:?}");
        }
        let elsewhere = Origin::new(HERE.stream, Some(PdId(5)));
        assert_eq!(table.bind(stag, &bind(lkey), elsewhere), Err(AccessError::NotAssociated));
        assert_eq!(table.bind(lkey, &bind(lkey), HERE), Err(AccessError::InvalidStag));
        assert_eq!((table.windows_of(lkey), table.revoke_stream(HERE.stream)), (0, 0));
    }

    #[test]
    fn a_window_ends_with_its_stream_or_region_and_keeps_its_index() {
        let (mut table, lkey, stag) = table();
        table.bind(stag, &bind(lkey), HERE).unwrap();
        assert_eq!(table.revoke_stream(HERE.stream), 1);
        assert_eq!((table.windows_of(lkey), table.len()), (0, 2));
        table.bind(stag, &bind(lkey), THERE).unwrap();
        assert_eq!(table.revoke_region(REGION), 2);
        assert_eq!(table.len(), 1);
        assert_eq!(table.check_fetch(stag, 1010, 1, THERE), Err(AccessError::InvalidStag));
        assert!(table.release(stag));
        assert!(!table.release(stag));
        assert!(table.is_empty() && table.streams.is_empty());
    }
}
