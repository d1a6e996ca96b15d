//! Regions that the daemon offers: allocation, registration on every worker, revocation.

use std::collections::BTreeMap;
use std::sync::Arc;

use ipnet::IpNet;
use iwarp_config::RegionName;
use iwarp_control::{Backing, ErrorKind, ErrorObject, Origin, RegionDeregistered, RegionInfo};
use iwarp_engine::GrantRule;
use iwarp_engine::memory::{HUGEPAGE_BYTES, RegionMemory};
use rdma::service::{Prefix, RegionEntry, Token};
use rdma::{Access, RegionId};

use super::worker_handle::WorkerHandle;
use crate::worker::{Command, RegionUse, SettingsCommand};

/// Specification of a region, from the configuration or a control request.
#[derive(Clone, Debug)]
pub struct RegionSpec {
    /// Name of the region.
    pub name: RegionName,
    /// Size of the region, bytes.
    pub bytes: u64,
    /// Access rights of remote peers.
    pub access: Access,
    /// Token that peers must present, if any.
    pub token: Option<Token>,
    /// Source prefixes of permitted peers; empty: any peer.
    pub allow: Vec<IpNet>,
    /// Origin of the registration.
    pub origin: Origin,
}

impl From<&iwarp_config::Region> for RegionSpec {
    fn from(region: &iwarp_config::Region) -> Self {
        Self {
            name: region.name.clone(),
            bytes: region.bytes,
            access: region.access,
            token: region.token.clone(),
            allow: region.allow.clone(),
            origin: Origin::Config,
        }
    }
}

/// An offered region, with its memory.
#[derive(Debug)]
pub struct Region {
    spec: RegionSpec,
    id: RegionId,
    /// Random number of this registration.
    instance: u64,
    /// Memory of the region, shared with the workers.
    pub memory: Arc<RegionMemory>,
}

/// Set of all regions, by name.
#[derive(Debug)]
pub struct Regions {
    regions: BTreeMap<String, Region>,
    free: Vec<RegionId>,
    max: usize,
    /// True if regions may use ordinary pages when there are too few hugepages.
    ordinary_allowed: bool,
    /// Most memory of all regions and applications together, bytes of whole pages; `None`: unlimited.
    bytes_max: Option<u64>,
    /// Memory of applications, bytes of whole pages.
    app_bytes: u64,
}

impl Regions {
    /// Creates an empty set of at most `max` regions with at most `bytes_max` bytes together. Regions use hugepages,
    /// or, with `ordinary_allowed`, ordinary pages when there are too few.
    pub fn new(max: u32, ordinary_allowed: bool, bytes_max: Option<u64>) -> Self {
        let free = (0..max).rev().map(RegionId).collect();
        Self { regions: BTreeMap::new(), free, max: max as usize, ordinary_allowed, bytes_max, app_bytes: 0 }
    }

    /// Returns the names of the regions on ordinary pages.
    pub fn on_ordinary_pages(&self) -> impl Iterator<Item = &str> {
        self.regions.iter().filter(|(_, region)| !region.memory.is_huge()).map(|(name, _)| name.as_str())
    }

    /// Takes room for memory of an application from the configured memory limit. Returns whole pages, bytes, which
    /// [`Self::release`] gives back.
    ///
    /// # Errors
    /// There is not as much left.
    pub fn reserve(&mut self, bytes: u64) -> Result<u64, ErrorObject> {
        self.check_room("application memory", bytes)?;
        let bytes = bytes.next_multiple_of(HUGEPAGE_BYTES);
        self.app_bytes = self.app_bytes.saturating_add(bytes);
        Ok(bytes)
    }

    /// Gives back room that [`Self::reserve`] has returned.
    pub fn release(&mut self, bytes: u64) {
        self.app_bytes = self.app_bytes.saturating_sub(bytes);
    }

    /// Returns true if regions may use ordinary pages when there are too few hugepages.
    pub fn ordinary_allowed(&self) -> bool {
        self.ordinary_allowed
    }

    /// Checks memory against the configured limit.
    fn check_room(&self, what: &str, bytes: u64) -> Result<(), ErrorObject> {
        let Some(max) = self.bytes_max else { return Ok(()) };
        let taken: u64 = self.regions.values().map(|region| region.memory.mapped_bytes()).sum();
        let left = max.saturating_sub(taken).saturating_sub(self.app_bytes);
        if bytes.checked_next_multiple_of(HUGEPAGE_BYTES).is_some_and(|bytes| bytes <= left) {
            return Ok(());
        }
        let what = format!("{what}: {bytes} bytes asked for, {left} are left of memory.hugepage_limit");
        Err(ErrorObject::new(ErrorKind::NoResources, what)
            .with_help("deregister another region, or raise memory.hugepage_limit and restart"))
    }

    /// Returns the number of regions, the most allowed, and their bytes together.
    pub fn totals(&self) -> (usize, usize, u64) {
        (self.regions.len(), self.max, self.regions.values().map(|region| region.spec.bytes).sum())
    }

    /// Finds a region by name.
    ///
    /// # Errors
    /// No region has this name.
    pub fn find(&self, name: &str) -> Result<&Region, ErrorObject> {
        self.regions.get(name).ok_or_else(|| {
            ErrorObject::new(ErrorKind::NoSuchObject, format!("there is no region `{name}`"))
                .with_help("`iwarpctl region list` shows those there are")
        })
    }

    /// Returns the name of the region with this number.
    pub fn name_of(&self, id: RegionId) -> Option<String> {
        self.regions.values().find(|region| region.id == id).map(|region| region.spec.name.to_string())
    }

    /// Returns the names of all regions, in order.
    pub fn names(&self) -> Vec<String> {
        self.regions.keys().cloned().collect()
    }

    /// Allocates a region's memory and reserves its name. [`Region::offer`] then adds it to the workers.
    ///
    /// # Errors
    /// The name is taken, there are too many regions, or there is no memory for it.
    pub fn make(&mut self, spec: RegionSpec) -> Result<&Region, ErrorObject> {
        let name = spec.name.to_string();
        if self.regions.contains_key(&name) {
            return Err(ErrorObject::new(ErrorKind::Exists, format!("a region `{name}` exists already"))
                .with_help(format!("choose another name, or first `iwarpctl region deregister {name}`")));
        }
        self.check_room(&format!("region `{name}`"), spec.bytes)?;
        let instance = instance()?;
        let id = if self.regions.len() < self.max { self.free.pop() } else { None };
        let Some(id) = id else {
            return Err(ErrorObject::new(
                ErrorKind::NoResources,
                format!("there are {} regions, as many as limits.regions_max allows", self.max),
            )
            .with_help("deregister one, or raise limits.regions_max"));
        };
        let memory =
            RegionMemory::on_hugepages(&name, spec.bytes, self.ordinary_allowed).map_err(|error| {
                self.free.push(id);
                ErrorObject::new(ErrorKind::NoResources, format!("region `{name}`: {error}"))
                    .with_help("a smaller size, or more hugepages: `iwarpctl status` shows how many are free")
            })?;
        Ok(self.regions.entry(name).or_insert(Region { spec, id, instance, memory: Arc::new(memory) }))
    }

    /// Sets the most regions, at most as many as at the start. Those beyond it stay.
    pub fn set_max(&mut self, max: u32) {
        self.max = max as usize;
    }

    /// Changes rights, token and prefixes of a region on every worker, and revokes the grants that they do not permit:
    /// all of them, if peers must present another token. Returns the number of grants revoked.
    ///
    /// # Errors
    /// There is no such region, or a worker does not answer.
    pub async fn change(
        &mut self,
        spec: RegionSpec,
        other_token: bool,
        workers: &[WorkerHandle],
    ) -> Result<u64, ErrorObject> {
        self.find(spec.name.as_str())?;
        let Some(region) = self.regions.get_mut(spec.name.as_str()) else { return Ok(0) };
        region.spec = spec;
        for handle in workers {
            let entry = Box::new(region.entry());
            let change = |reply| SettingsCommand::ChangeRegion { entry, reply };
            handle.ask(|reply| Command::Settings(change(reply))).await?;
        }
        region.revoke_unless(other_token, workers).await
    }

    /// Removes a region that no worker offers any more.
    pub fn forget(&mut self, name: &str) {
        if let Some(region) = self.regions.remove(name) {
            self.free.push(region.id);
        }
    }
}

impl Region {
    fn entry(&self) -> RegionEntry {
        let RegionSpec { name, bytes, access, token, allow, .. } = &self.spec;
        RegionEntry {
            name: name.to_string(),
            region: self.id,
            offset: 0,
            bytes: *bytes,
            access: *access,
            token: token.clone(),
            allow: allow.iter().filter_map(|net| Prefix::new(net.addr(), net.prefix_len())).collect(),
        }
    }

    /// Adds the region to every worker; removes it from all if one refuses.
    ///
    /// # Errors
    /// A worker refused the region.
    pub async fn offer(&self, workers: &[WorkerHandle]) -> Result<(), ErrorObject> {
        self.add_to(workers, true).await
    }

    async fn add_to(&self, workers: &[WorkerHandle], new: bool) -> Result<(), ErrorObject> {
        for handle in workers {
            let (entry, memory) = (Box::new(self.entry()), new.then(|| Arc::clone(&self.memory)));
            let offered = handle.ask(|reply| Command::RegionAdd { entry, memory, reply }).await?;
            if let Err(refused) = offered {
                self.revoke(workers).await?;
                return Err(ErrorObject::new(ErrorKind::NoResources, refused.to_string()));
            }
        }
        Ok(())
    }

    /// Removes the region from every worker and revokes its grants. When this returns, no worker touches its memory any
    /// more. Returns the number of grants revoked.
    ///
    /// # Errors
    /// A worker does not answer.
    pub async fn revoke(&self, workers: &[WorkerHandle]) -> Result<u64, ErrorObject> {
        let mut revoked = 0;
        for handle in workers {
            let name = self.spec.name.to_string();
            handle.ask(|reply| Command::RegionHide { name, region: self.id, reply }).await?;
            revoked += handle.ask(|reply| Command::RegionRevoke { region: self.id, reply }).await?;
        }
        Ok(revoked)
    }

    /// Revokes the grants that the region does not permit any more; with `all`, every one. Returns their number.
    async fn revoke_unless(&self, all: bool, workers: &[WorkerHandle]) -> Result<u64, ErrorObject> {
        let RegionEntry { region, access, allow, .. } = self.entry();
        let rule = Arc::new(GrantRule { region, access, allow, none: all });
        let mut revoked = 0_u64;
        for handle in workers {
            let mut next = Some((0, 0));
            while let Some(from) = next {
                let rule = Arc::clone(&rule);
                let page = |reply| SettingsCommand::RevokeUnless { rule, from, reply };
                let (count, following) = handle.ask(|reply| Command::Settings(page(reply))).await?;
                (revoked, next) = (revoked.saturating_add(count), following);
            }
        }
        Ok(revoked)
    }

    /// Returns the origin of the region's registration.
    pub fn origin(&self) -> Origin {
        self.spec.origin
    }

    /// Removes the region, unless peers hold grants on it and `force` is not set.
    ///
    /// # Errors
    /// The region is in use, or a worker does not answer.
    pub async fn withdraw(
        &self,
        workers: &[WorkerHandle],
        force: bool,
    ) -> Result<RegionDeregistered, ErrorObject> {
        let mut grants = 0;
        for handle in workers {
            let name = self.spec.name.to_string();
            grants += handle.ask(|reply| Command::RegionHide { name, region: self.id, reply }).await?;
        }
        let name = self.spec.name.to_string();
        if grants > 0 && !force {
            self.add_to(workers, false).await?;
            return Err(ErrorObject::new(
                ErrorKind::InUse,
                format!("region `{name}` is in use by {}", connections(grants)),
            )
            .with_help("`iwarpctl conn list` shows them; --force revokes their STags and so ends them"));
        }
        Ok(RegionDeregistered { name, grants_revoked: self.revoke(workers).await? })
    }

    /// Returns the region's description with its use on all workers.
    ///
    /// # Errors
    /// A worker does not answer.
    pub async fn info(&self, workers: &[WorkerHandle]) -> Result<RegionInfo, ErrorObject> {
        let mut sum = RegionUse::default();
        for handle in workers {
            let used = handle.ask(|reply| Command::RegionUse { region: self.id, reply }).await?;
            sum.grants += used.grants;
            sum.bytes_placed += used.bytes_placed;
            sum.bytes_fetched += used.bytes_fetched;
        }
        Ok(RegionInfo {
            name: self.spec.name.to_string(),
            bytes: self.spec.bytes,
            access: self.spec.access,
            backing: if self.memory.is_huge() { Backing::Hugepages } else { Backing::Pages },
            page_bytes: self.memory.page_bytes(),
            token_required: self.spec.token.is_some(),
            allow: self.spec.allow.clone(),
            origin: self.spec.origin,
            grants: sum.grants,
            bytes_placed: sum.bytes_placed,
            bytes_fetched: sum.bytes_fetched,
            instance: self.instance,
        })
    }

    /// Returns the number of the region.
    pub fn id(&self) -> RegionId {
        self.id
    }

    /// Returns the access rights of remote peers.
    pub fn access(&self) -> Access {
        self.spec.access
    }
}

/// Returns a random number from 1 to 2^53, which every JSON parser reads exactly.
fn instance() -> Result<u64, ErrorObject> {
    let random = getrandom::u64();
    let random = random.map_err(|error| ErrorObject::new(ErrorKind::Internal, error.to_string()))?;
    Ok((random >> 11).saturating_add(1))
}

fn connections(count: u64) -> String {
    format!("{count} connection{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_later_region_of_the_same_name_has_another_instance() {
        let mut regions = Regions::new(2, true, None);
        let spec = RegionSpec {
            name: RegionName::new("lab").expect("a name"),
            bytes: 4096,
            access: Access::REMOTE_READ,
            token: None,
            allow: Vec::new(),
            origin: Origin::Control,
        };
        let mut seen = Vec::new();
        for _ in 0..2 {
            let region = regions.make(spec.clone()).expect("memory");
            let instance = region.info(&[]).await.expect("no worker").instance;
            assert_eq!(
                regions.find("lab").expect("it is there").info(&[]).await.expect("as before").instance,
                instance
            );
            seen.push(instance);
            regions.forget("lab");
        }
        assert!(seen.iter().all(|id| (1..=1 << 53).contains(id)) && seen[0] != seen[1], "{seen:?}");
    }

    #[test]
    fn connections_are_counted_in_the_right_number() {
        assert_eq!([0, 1, 2].map(connections), ["0 connections", "1 connection", "2 connections"]);
    }
}
