//! Connections at listeners whose peers have not sent an MPA Request, oldest first. A device evicts the oldest for a
//! new one when there are too many.

use super::Device;
use super::ids::CmId;

/// Ends of a doubly linked list through the ids of the connections. Every operation takes constant time, because a
/// crowd of silent peers must not slow down the honest ones among them.
#[derive(Debug, Default)]
pub(super) struct Silent {
    oldest: Option<CmId>,
    newest: Option<CmId>,
    count: u32,
}

impl Silent {
    /// Returns the connection that was added first.
    pub(super) const fn oldest(&self) -> Option<CmId> {
        self.oldest
    }

    pub(super) const fn len(&self) -> u32 {
        self.count
    }
}

/// Neighbors of a connection in the list, or [`NOBODY`].
#[derive(Clone, Copy, Debug)]
pub(super) struct SilentLink {
    older: CmId,
    newer: CmId,
}

/// Handle that no connection has: generations are counted from 1.
const NOBODY: CmId = CmId(0);

impl SilentLink {
    /// Link of a connection outside the list.
    pub(super) const NONE: Self = Self { older: NOBODY, newer: NOBODY };
}

impl<C> Device<C> {
    /// Adds a connection as the newest one.
    pub(super) fn add_silent(&mut self, id: CmId) {
        let older = self.silent.newest;
        let Some(entry) = self.ids.get_mut(id.0).filter(|entry| !entry.is_silent) else { return };
        entry.is_silent = true;
        entry.details.silent = SilentLink { older: older.unwrap_or(NOBODY), newer: NOBODY };
        match older.and_then(|older| self.ids.get_mut(older.0)) {
            Some(entry) => entry.details.silent.newer = id,
            None => self.silent.oldest = Some(id),
        }
        self.silent.newest = Some(id);
        self.silent.count = self.silent.count.saturating_add(1);
    }

    /// Removes a connection. Returns false if it is not in the list: its peer had sent a request.
    pub(super) fn remove_silent(&mut self, id: CmId) -> bool {
        let Some(entry) = self.ids.get_mut(id.0).filter(|entry| entry.is_silent) else { return false };
        entry.is_silent = false;
        let SilentLink { older, newer } = core::mem::replace(&mut entry.details.silent, SilentLink::NONE);
        match self.ids.get_mut(older.0) {
            Some(entry) => entry.details.silent.newer = newer,
            None => self.silent.oldest = Some(newer).filter(|id| *id != NOBODY),
        }
        match self.ids.get_mut(newer.0) {
            Some(entry) => entry.details.silent.older = older,
            None => self.silent.newest = Some(older).filter(|id| *id != NOBODY),
        }
        self.silent.count = self.silent.count.saturating_sub(1);
        true
    }
}
