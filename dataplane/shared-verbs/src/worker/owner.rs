//! Contexts that the device's ids belong to.

use rdma::verbs::{CmId, Device, Owner};

use super::{ContextId, ContextMemory, Contexts};

impl<M: ContextMemory> Contexts<M> {
    /// Returns the context that owns an id.
    pub fn owner_of<C: AsRef<[u8]>>(device: &Device<C>, id: CmId) -> Option<ContextId> {
        if let Some(Owner::Context(context)) = device.owner(id) { Some(ContextId(context)) } else { None }
    }

    /// Returns the context whose connection an id is, also that of a queue pair which is connected by number.
    pub fn context_of<C: AsRef<[u8]>>(device: &Device<C>, id: CmId) -> Option<ContextId> {
        match device.owner(id)? {
            Owner::Context(context) | Owner::QueuePairOf(context) => Some(ContextId(context)),
            Owner::Program | Owner::Region(_) | Owner::QueuePairs => None,
        }
    }
}
