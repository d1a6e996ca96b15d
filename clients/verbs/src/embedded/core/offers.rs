//! Regions that the device offers to peers by name, as a client of the engine's region service.
//!
//! A region has a number and a handle of its memory of its own, so that several of one memory region are withdrawn
//! one by one. The end of a memory region withdraws all of them: the program's memory may be unmapped then.

use std::collections::HashMap;
use std::net::SocketAddr;

use iwarp_engine::kernel::Listening;
use iwarp_engine::memory::{Backing, RegionBytes};
use rdma::service::{AddError, RegionEntry};
use rdma::verbs::{CmId, VerbsError};
use rdma::{Access, EndpointConfig, OutOfOrderPolicy, RegionId};
use tcp_stack::ListenOptions;

use super::{Core, now, refused};
use crate::error::Error;
use crate::offer::{NewOffer, OfferStats, OfferedMemory};

/// Name of the call that offers a region.
const OFFER: &str = "offer";
/// Most regions that are offered at the same time.
pub(super) const REGIONS_MAX: u16 = 1024;

/// A region that is offered.
#[derive(Debug)]
struct Offered {
    name: String,
    /// Number of the region's memory.
    region: RegionId,
    /// Memory region that it is of; `None` for a file.
    source: Option<RegionId>,
}

/// The regions of a device, and the listeners of the service.
#[derive(Debug, Default)]
pub(super) struct Offers {
    listeners: Vec<CmId>,
    /// Regions by the numbers of their handles, which are not used again.
    offered: HashMap<u64, Offered>,
    made: u64,
}

impl Core {
    /// Has the region service answer the connections of sockets that listen.
    pub(in crate::embedded) fn serve_regions(
        &mut self,
        sockets: Vec<(Listening, SocketAddr)>,
        options: ListenOptions,
    ) -> Result<(), Error> {
        let config = EndpointConfig { out_of_order: OutOfOrderPolicy::Off, ..EndpointConfig::default() };
        for (socket, local) in sockets {
            match self.engine.region_listen(socket, local, options, config) {
                Ok(id) => self.offers.listeners.push(id),
                Err(error) => {
                    self.end_regions();
                    let reason = Some(format!("no listener at {local}: {error}"));
                    return Err(refused("serve_regions", VerbsError::NoResources, reason));
                }
            }
        }
        Ok(())
    }

    /// Returns true if the region service has a listener.
    pub(in crate::embedded) const fn serves_regions(&self) -> bool {
        !self.offers.listeners.is_empty()
    }

    /// Withdraws all regions, and ends listeners and connections of the service.
    pub(in crate::embedded) fn end_regions(&mut self) {
        for id in std::mem::take(&mut self.offers.listeners) {
            self.engine.region_unlisten(now(), id);
        }
        let numbers: Vec<u64> = self.offers.offered.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.withdraw(number));
        self.engine.region_disconnect(now());
    }

    /// Offers a region, and returns the number of its handle.
    pub(in crate::embedded) fn offer(&mut self, new: NewOffer) -> Result<u64, Error> {
        let NewOffer { name, memory, options } = new;
        let invalid = |cause, reason: String| refused(OFFER, cause, Some(reason));
        let access = options.access;
        if access.is_empty() || !Access::REGION.contains(access) {
            let reason = format!("region `{name}`: its rights must be some of {}", names(Access::REGION));
            return Err(invalid(VerbsError::Invalid, reason));
        }
        let (backing, source, offset, bytes) = self.offered_memory(&name, memory, access)?;
        let region = RegionId(self.take_number()?);
        let crate::offer::OfferOptions { token, allow, .. } = options;
        let entry = RegionEntry { name: name.clone(), region, offset, bytes, access, token, allow };
        let added = self.engine.region_add(entry).map_err(|error| match error {
            AddError::Exists => {
                let reason =
                    format!("region `{name}` is offered already: withdraw it, or choose another name");
                invalid(VerbsError::Busy, reason)
            }
            AddError::Name(error) => invalid(VerbsError::Invalid, format!("region `{name}`: {error}")),
            AddError::Full => {
                let reason = format!("region `{name}`: {REGIONS_MAX} regions are offered; withdraw one");
                invalid(VerbsError::NoResources, reason)
            }
        });
        if let Err(error) = added {
            self.free.push(region.0);
            return Err(error);
        }
        if self.engine.memory_mut().attach(region, backing).is_err() {
            // Never: the number is free, and inside the table.
            self.engine.region_hide(&name, region);
            return Err(refused(OFFER, VerbsError::NoResources, None));
        }
        self.offers.made = self.offers.made.wrapping_add(1);
        self.offers.offered.insert(self.offers.made, Offered { name, region, source });
        Ok(self.offers.made)
    }

    /// Returns the memory of a new region, the memory region that it is of, its first byte and its length.
    fn offered_memory(
        &self,
        name: &str,
        memory: OfferedMemory,
        access: Access,
    ) -> Result<(Backing, Option<RegionId>, u64, u64), Error> {
        let key = match memory {
            OfferedMemory::File(file) => {
                if access.contains(Access::REMOTE_ATOMIC) {
                    let reason = format!("region `{name}`: a file has no atomic operations, memory has");
                    return Err(refused(OFFER, VerbsError::NotPermitted, Some(reason)));
                }
                let bytes = file.bytes();
                return Ok((Backing::File(file), None, 0, bytes));
            }
            OfferedMemory::Registered(key) => key,
        };
        let gone = || {
            let reason = format!("region `{name}`: its memory region is deregistered or invalidated");
            refused(OFFER, VerbsError::NoSuchObject, Some(reason))
        };
        let (range, has) = self.engine.opened_by(key).ok_or_else(gone)?;
        if !has.contains(access) {
            let lacks = Access::REGION_NAMES.into_iter().filter_map(Access::from_region_name);
            let lacks = lacks.filter(|right| access.contains(*right) && !has.contains(*right));
            let lacks = names(lacks.fold(Access::NONE, |all, right| all | right));
            let reason = format!("region `{name}`: its memory region is not registered with {lacks}");
            return Err(refused(OFFER, VerbsError::NotPermitted, Some(reason)));
        }
        let backing = self.engine.memory().backing(range.region).ok_or_else(gone)?.clone();
        Ok((backing, Some(range.region), range.offset, range.bytes))
    }

    /// Withdraws a region. From here on, no peer reaches its memory.
    pub(in crate::embedded) fn withdraw(&mut self, number: u64) {
        let Some(Offered { name, region, .. }) = self.offers.offered.remove(&number) else { return };
        self.engine.region_hide(&name, region);
        self.engine.region_revoke(region);
        self.engine.memory_mut().detach(region);
        self.free.push(region.0);
    }

    /// Withdraws the regions of a memory region that is deregistered.
    pub(super) fn withdraw_all_of(&mut self, source: RegionId) {
        if self.offers.offered.is_empty() {
            return;
        }
        let of_source =
            |(number, offered): (&u64, &Offered)| (offered.source == Some(source)).then_some(*number);
        let numbers: Vec<u64> = self.offers.offered.iter().filter_map(of_source).collect();
        numbers.into_iter().for_each(|number| self.withdraw(number));
    }

    /// Returns the counters of a region; `None` if it is withdrawn.
    pub(in crate::embedded) fn offer_stats(&self, number: u64) -> Option<OfferStats> {
        let region = self.offers.offered.get(&number)?.region;
        let RegionBytes { placed, fetched } = self.engine.memory().bytes(region);
        let grants = self.engine.region_grants(region) as u64;
        Some(OfferStats { grants, bytes_placed: placed, bytes_fetched: fetched })
    }
}

/// Joins the names of rights.
fn names(access: Access) -> String {
    access.names().collect::<Vec<_>>().join(", ")
}
