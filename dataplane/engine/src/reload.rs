//! Changes of listeners, limits and rights while the engine runs. A worker calls it for a reload.

use rdma::service::{Prefix, RegionEntry};
use rdma::{Access, Memory, OutOfOrderPolicy, RegionId};
use tcp_stack::{Buf, Instant, ListenError, ListenOptions, Stack};

use super::{Engine, ListenerOwner, ListenerService, Service};
use crate::services::RegionResponder;

/// Most slots examined per call, so that a worker with many connections polls its ports between two calls.
const SLOTS_PER_CALL: u32 = 1024;

/// A listener of the configuration.
#[derive(Clone, Debug)]
pub struct ListenerSetup {
    /// TCP port that accepts connections.
    pub port: u16,
    /// Limits, and TCP options of its connections.
    pub options: ListenOptions,
    /// Service that it offers.
    pub service: ListenerService,
}

/// Condition that the grants on a region must meet to stay valid.
#[derive(Clone, Debug)]
pub struct GrantRule {
    /// Region of the grants.
    pub region: RegionId,
    /// Rights that the region allows.
    pub access: Access,
    /// Source prefixes of permitted peers; empty: any peer.
    pub allow: Vec<Prefix>,
    /// True if no grant stays: peers must present another token.
    pub none: bool,
}

impl<B: Buf, M: Memory> Engine<Stack<B>, M> {
    /// Changes the options of the listener on a port, and its service. Its connections stay as they are.
    ///
    /// # Errors
    /// As for [`Self::listen`], if there is no listener yet. `TooMany` if a service becomes the region service, and the
    /// device has no identifier left; the listener is then as before.
    pub fn change_listener(&mut self, now: Instant, setup: ListenerSetup) -> Result<(), ListenError> {
        let ListenerSetup { port, mut options, service } = setup;
        let at = self.transport.listener_at(port);
        let Some(index) = self.listeners.iter().position(|(id, _)| Some(*id) == at) else {
            return self.listen(port, options, service);
        };
        let before = self.listeners.get(index).map(|(_, owner)| owner);
        let owner = match (service, before) {
            (ListenerService::Region(config), Some(ListenerOwner::Device(id))) => {
                options.conn.out_of_order = config.out_of_order != OutOfOrderPolicy::Off;
                // Fails only if the id is no listener, and a configured one is.
                let _ = self.device.configure_listener(*id, config);
                None
            }
            (ListenerService::Region(config), _) => Some(self.region_owner(port, &mut options, config)?),
            (service, _) => Some(ListenerOwner::Tcp(service)),
        };
        if let Some((listener, before)) = self.listeners.get_mut(index) {
            self.transport.set_listen_options(*listener, options);
            let before = owner.map(|owner| std::mem::replace(before, owner));
            if let Some(ListenerOwner::Device(id)) = before {
                // Fails only if the id is gone already.
                let _ = self.device.destroy_id(id);
            }
        }
        self.apply_requests(now);
        Ok(())
    }

    /// Stops listening on a port of the configuration. Established connections stay; half-open ones are reset, and
    /// later MPA Requests refused.
    pub fn remove_listener(&mut self, now: Instant, port: u16) {
        let Some(listener) = self.transport.listener_at(port) else { return };
        let Some(at) = self.listeners.iter().position(|(id, _)| *id == listener) else { return };
        let is_ours = match self.listeners.get(at) {
            Some((_, ListenerOwner::Device(id))) => RegionResponder::owns(&self.device, *id),
            Some((_, ListenerOwner::Tcp(_))) => true,
            None => false,
        };
        if !is_ours {
            // A program listens there.
            return;
        }
        let (_, owner) = self.listeners.swap_remove(at);
        self.transport.unlisten(listener);
        if let ListenerOwner::Device(id) = owner {
            // Fails only if the id is gone already.
            let _ = self.device.destroy_id(id);
        }
        self.apply_requests(now);
    }

    /// Replaces rights, token and prefixes of a region for requests from now on. [`Self::revoke_unless`] revokes the
    /// grants that no longer meet them.
    pub fn change_region(&mut self, entry: RegionEntry) {
        self.regions.service.replace(entry);
    }

    /// Revokes the grants that do not meet a rule, of the connections from slab index `from` on. Returns their number,
    /// and the index to continue at, `None` at the end.
    pub fn revoke_unless(&mut self, rule: &GrantRule, from: u32) -> (u64, Option<u32>) {
        let (end, capacity) = (from.saturating_add(SLOTS_PER_CALL), self.conns.capacity());
        let Self { conns, device, rdma, .. } = self;
        let mut revoked = 0_u64;
        for index in from..end.min(capacity) {
            let id = match conns.at(index).and_then(|conn| conns.service(conn)) {
                Some(Service::Rdma(rdma_conn)) if rdma_conn.is_region() => rdma_conn.id,
                _ => None,
            };
            let Some(id) = id.filter(|id| RegionResponder::granted(device, *id) == Some(rule.region)) else {
                continue;
            };
            let peer = device.addresses(id).ok().and_then(|(_, peer)| peer);
            let Some(stream) = device.stream(id) else { continue };
            let admitted = rule.allow.is_empty()
                || peer.is_some_and(|peer| rule.allow.iter().any(|prefix| prefix.contains(peer.ip())));
            if rule.none || !admitted || !rule.access.contains(rdma.stags.access_of(stream)) {
                revoked = revoked.saturating_add(rdma.stags.revoke_stream(stream) as u64);
            }
        }
        (revoked, (end < capacity).then_some(end))
    }

    /// Sets the maximum number of STags, up to that of the start, and of connections from one source.
    pub fn set_limits(&mut self, stags_max: u32, connections_per_source_max: u32) {
        self.rdma.stags.set_limit(stags_max as usize);
        self.transport.set_connections_per_source_max(connections_per_source_max);
    }
}
