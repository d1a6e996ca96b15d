//! Table of the services of connections, indexed by the connection's slab index.

use tcp_stack::{Buf, ConnId, EvictionPolicy};

use super::chargen::Chargen;
use super::echo::Echo;
use super::region::RegionStream;

/// Service of a connection, with its state.
#[derive(Debug)]
pub(super) enum Service<B: Buf> {
    Echo(Echo<B>),
    Discard,
    Chargen(Chargen),
    Daytime,
    Region(Box<RegionStream<B>>),
}

impl<B: Buf> Service<B> {
    /// Returns the eviction rule for a connection that has just opened.
    pub(super) fn eviction_policy(&self) -> EvictionPolicy {
        match self {
            Self::Echo(_) | Self::Discard | Self::Chargen(_) => EvictionPolicy::WhenIdle,
            // A region peer has proven nothing before its grant, and a daytime peer needs nothing after its line.
            Self::Daytime | Self::Region(_) => EvictionPolicy::Anytime,
        }
    }
}

#[derive(Debug)]
struct Slot<B: Buf> {
    id: ConnId,
    service: Service<B>,
    /// True while the connection is queued as ready to transmit.
    tx_ready: bool,
    peer_closed: bool,
}

/// One slot for each connection of the stack.
#[derive(Debug)]
pub(super) struct Slots<B: Buf> {
    slots: Vec<Option<Slot<B>>>,
}

impl<B: Buf> Slots<B> {
    pub(super) fn new(connections_max: usize) -> Self {
        Self { slots: (0..connections_max).map(|_| None).collect() }
    }

    pub(super) fn open(&mut self, id: ConnId, service: Service<B>) {
        if let Some(slot) = self.slots.get_mut(id.index() as usize) {
            *slot = Some(Slot { id, service, tx_ready: false, peer_closed: false });
        }
    }

    pub(super) fn close(&mut self, id: ConnId) -> Option<Service<B>> {
        let slot = self.slots.get_mut(id.index() as usize)?;
        slot.take_if(|slot| slot.id == id).map(|slot| slot.service)
    }

    pub(super) fn service(&mut self, id: ConnId) -> Option<&mut Service<B>> {
        self.slot(id).map(|slot| &mut slot.service)
    }

    pub(super) fn peek(&self, id: ConnId) -> Option<&Service<B>> {
        let slot = self.slots.get(id.index() as usize)?.as_ref();
        slot.filter(|slot| slot.id == id).map(|slot| &slot.service)
    }

    /// Marks the connection as ready to transmit. Returns `false` if it was marked already, or is closed.
    pub(super) fn mark_tx_ready(&mut self, id: ConnId) -> bool {
        self.slot(id).is_some_and(|slot| !std::mem::replace(&mut slot.tx_ready, true))
    }

    pub(super) fn clear_tx_ready(&mut self, id: ConnId) {
        if let Some(slot) = self.slot(id) {
            slot.tx_ready = false;
        }
    }

    pub(super) fn peer_closed(&mut self, id: ConnId) {
        if let Some(slot) = self.slot(id) {
            slot.peer_closed = true;
        }
    }

    pub(super) fn is_peer_closed(&self, id: ConnId) -> bool {
        let slot = self.slots.get(id.index() as usize).and_then(Option::as_ref);
        slot.is_some_and(|slot| slot.id == id && slot.peer_closed)
    }

    /// Returns the number of slots: every slab index is below.
    pub(super) fn capacity(&self) -> u32 {
        u32::try_from(self.slots.len()).unwrap_or(u32::MAX)
    }

    /// Returns the open connection with this slab index.
    pub(super) fn at(&self, index: u32) -> Option<ConnId> {
        self.slots.get(index as usize)?.as_ref().map(|slot| slot.id)
    }

    /// Returns every open connection.
    pub(super) fn ids(&self) -> impl Iterator<Item = ConnId> + '_ {
        self.slots.iter().flatten().map(|slot| slot.id)
    }

    fn slot(&mut self, id: ConnId) -> Option<&mut Slot<B>> {
        self.slots.get_mut(id.index() as usize)?.as_mut().filter(|slot| slot.id == id)
    }
}
