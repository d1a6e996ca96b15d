//! The region service of a device inside a program: its listeners at addresses of the machine, and the end of its
//! connections. Regions are added and removed as the daemon does ([`Engine::region_add`]).

use std::net::SocketAddr;

use rdma::verbs::{CmId, Owner};
use rdma::{Access, EndpointConfig, GrantedRange, Memory, OutOfOrderPolicy, Stag};
use tcp_stack::{Instant, ListenError, ListenOptions};

use super::{Engine, ListenerOwner};
use crate::kernel::{KernelTcp, Listening};
use crate::services::RegionResponder;
use crate::transport::Transport;

impl<M: Memory> Engine<KernelTcp, M> {
    /// Has the region service answer the connections of a socket that listens at `local`. Returns the listener, for
    /// [`Self::region_unlisten`].
    ///
    /// # Errors
    /// `TooMany`: there are as many listeners as the transport or the device allows.
    pub fn region_listen(
        &mut self,
        socket: Listening,
        local: SocketAddr,
        mut options: ListenOptions,
        config: EndpointConfig,
    ) -> Result<CmId, ListenError> {
        options.conn.out_of_order = config.out_of_order != OutOfOrderPolicy::Off;
        let id = self.device.create_listener(local, config, Owner::Region(None));
        let id = id.map_err(|_| ListenError::TooMany)?;
        match self.transport.listen_on(socket, options) {
            Ok(listener) => {
                self.serves_regions = true;
                self.listeners.push((listener, ListenerOwner::Device(id)));
                Ok(id)
            }
            Err(error) => {
                // Fails only if the id is gone already.
                let _ = self.device.destroy_id(id);
                Err(error)
            }
        }
    }
}

impl<T: Transport, M: Memory> Engine<T, M> {
    /// Ends a listener of the region service. Its connections stay.
    pub fn region_unlisten(&mut self, now: Instant, id: CmId) {
        let is_it = |owner: &ListenerOwner| matches!(owner, ListenerOwner::Device(of) if *of == id);
        if let Some(at) = self.listeners.iter().position(|(_, owner)| is_it(owner)) {
            let (listener, _) = self.listeners.swap_remove(at);
            self.transport.unlisten(listener);
        }
        // Fails only if the id is gone already.
        let _ = self.device.destroy_id(id);
        self.apply_requests(now);
    }

    /// Closes all connections of the region service: those without unfinished work by a FIN, the others by a reset.
    pub fn region_disconnect(&mut self, now: Instant) {
        let is_ours = |id: &CmId| RegionResponder::owns(&self.device, *id);
        let ids: Vec<CmId> = self.conns.ids().filter_map(|conn| self.cm_id(conn)).filter(is_ours).collect();
        for id in ids {
            // Fails only if the id is gone already.
            let _ = self.device.destroy_id(id);
        }
        self.apply_requests(now);
    }

    /// Returns the memory that a key of a memory region opens, and its rights; `None` if the key is not valid.
    pub fn opened_by(&self, key: Stag) -> Option<(GrantedRange, Access)> {
        self.rdma.stags.opened_by(key)
    }
}
