//! Protection domains, memory regions and memory windows (`ibv_pd`, `ibv_mr`, `ibv_mw`).

use super::ids::MwId;
use super::{Device, VerbsError};
use crate::memory::{Access, GrantedRange, PdId, RegionId, Scope, StagTable};
use crate::wire::Stag;

/// Handle of a memory region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct MrId(pub u32);

/// Addressing of a memory region's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum AddressBase {
    /// Addresses start at 0 (`IBV_ACCESS_ZERO_BASED`).
    Zero,
    /// Addresses start at this value, such as the address at which the program has mapped the region.
    At(u64),
}

/// A registered memory region. Its single STag is the key for local work and for peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct MemoryRegion {
    /// Handle of the region.
    pub id: MrId,
    /// Key for local work requests.
    pub lkey: Stag,
    /// Key for the peer.
    pub rkey: Stag,
    /// Address of the first byte.
    pub addr: u64,
    /// Length of the region in bytes.
    pub length: u64,
}

/// An allocated memory window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct MemoryWindow {
    /// Handle of the window.
    pub id: MwId,
    /// Key to bind the window with; see [`inc_rkey`].
    pub rkey: Stag,
}

/// Returns the same STag with the next key (`ibv_inc_rkey`). Binding a window with it makes the old key invalid.
pub const fn inc_rkey(rkey: Stag) -> Stag {
    Stag(rkey.0 & 0xffff_ff00 | rkey.0.wrapping_add(1) & 0xff)
}

#[derive(Debug, Default)]
pub(super) struct Pd {
    /// Number of objects that belong to the domain.
    pub(super) users: u32,
}

#[derive(Debug)]
pub(super) struct Mr {
    pd: PdId,
    stag: Stag,
}

#[derive(Debug)]
pub(super) struct Mw {
    pub(super) pd: PdId,
    pub(super) stag: Stag,
}

impl<C: AsRef<[u8]>> Device<C> {
    /// Allocates a protection domain (`ibv_alloc_pd`).
    ///
    /// # Errors
    /// `NoResources`.
    pub fn alloc_pd(&mut self) -> Result<PdId, VerbsError> {
        self.pds.insert(Pd::default()).map(PdId).ok_or(VerbsError::NoResources)
    }

    /// Deallocates a protection domain (`ibv_dealloc_pd`).
    ///
    /// # Errors
    /// `NoSuchObject`. `Busy`: objects belong to it.
    pub fn dealloc_pd(&mut self, pd: PdId) -> Result<(), VerbsError> {
        if self.pds.get(pd.0).ok_or(VerbsError::NoSuchObject)?.users > 0 {
            return Err(VerbsError::Busy);
        }
        self.pds.remove(pd.0);
        Ok(())
    }

    /// Registers `length` bytes of a region from `offset` on (`ibv_reg_mr`). The caller guarantees that the region has
    /// them.
    ///
    /// As in libibverbs, a remote right requires a local one: remote write and atomic require local write, remote read
    /// requires local read. Only memory windows can carry the right to invalidate, RFC 5040 §8.1.1: "An RNIC MUST
    /// ensure that a Remote Peer is not able to invalidate an STag enabled for remote access, if the STag is shared on
    /// multiple streams."
    ///
    /// # Errors
    /// `NoSuchObject`. `Invalid`: a remote right without its local one, the right to invalidate, or an end beyond
    /// 2⁶⁴ − 1. `NoResources`.
    pub fn reg_mr(
        &mut self,
        pd: PdId,
        (region, offset, length): (RegionId, u64, u64),
        base: AddressBase,
        access: Access,
        stags: &mut StagTable,
    ) -> Result<MemoryRegion, VerbsError> {
        let users = &mut self.pds.get_mut(pd.0).ok_or(VerbsError::NoSuchObject)?.users;
        let writes = access.contains(Access::REMOTE_WRITE) || access.contains(Access::REMOTE_ATOMIC);
        let reads = access.contains(Access::REMOTE_READ);
        let covered = (!writes || access.contains(Access::LOCAL_WRITE))
            && (!reads || access.contains(Access::LOCAL_READ));
        let shared = access.contains(Access::REMOTE_INVALIDATE);
        if !covered || shared || offset.checked_add(length).is_none() {
            return Err(VerbsError::Invalid);
        }
        let addr = match base {
            AddressBase::Zero => 0,
            AddressBase::At(address) => address,
        };
        addr.checked_add(length).ok_or(VerbsError::Invalid)?;
        let range = GrantedRange { region, offset, bytes: length, base_to: addr };
        let stag = stags.grant_range(range, access, Scope::Pd(pd)).map_err(|_| VerbsError::NoResources)?;
        let Some(id) = self.mrs.insert(Mr { pd, stag }) else {
            stags.revoke(stag);
            return Err(VerbsError::NoResources);
        };
        *users = users.saturating_add(1);
        Ok(MemoryRegion { id: MrId(id), lkey: stag, rkey: stag, addr, length })
    }

    /// Deregisters a memory region (`ibv_dereg_mr`). From here on, local and remote accesses with its key fail.
    ///
    /// # Errors
    /// `NoSuchObject`. `Busy`: a memory window is bound to it.
    pub fn dereg_mr(&mut self, mr: MrId, stags: &mut StagTable) -> Result<(), VerbsError> {
        let Mr { pd, stag } = *self.mrs.get(mr.0).ok_or(VerbsError::NoSuchObject)?;
        if stags.windows_of(stag) > 0 {
            return Err(VerbsError::Busy);
        }
        // The STag may already be invalid.
        stags.revoke(stag);
        self.mrs.remove(mr.0);
        self.leave_pd(pd);
        Ok(())
    }

    /// Allocates an unbound memory window of type 2 (`ibv_alloc_mw`).
    ///
    /// # Errors
    /// `NoSuchObject`. `NoResources`.
    pub fn alloc_mw(&mut self, pd: PdId, stags: &mut StagTable) -> Result<MemoryWindow, VerbsError> {
        let users = &mut self.pds.get_mut(pd.0).ok_or(VerbsError::NoSuchObject)?.users;
        let stag = stags.keep(pd).map_err(|_| VerbsError::NoResources)?;
        let Some(id) = self.mws.insert(Mw { pd, stag }) else {
            stags.release(stag);
            return Err(VerbsError::NoResources);
        };
        *users = users.saturating_add(1);
        Ok(MemoryWindow { id: MwId(id), rkey: stag })
    }

    /// Deallocates a memory window, bound or not (`ibv_dealloc_mw`).
    ///
    /// # Errors
    /// `NoSuchObject`.
    pub fn dealloc_mw(&mut self, mw: MwId, stags: &mut StagTable) -> Result<(), VerbsError> {
        let Mw { pd, stag } = self.mws.remove(mw.0).ok_or(VerbsError::NoSuchObject)?;
        stags.release(stag);
        self.leave_pd(pd);
        Ok(())
    }

    /// Removes an object from the count of its protection domain.
    pub(super) fn leave_pd(&mut self, pd: PdId) {
        if let Some(pd) = self.pds.get_mut(pd.0) {
            pd.users = pd.users.saturating_sub(1);
        }
    }
}
