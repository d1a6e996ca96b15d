//! Table of TCP connections, indexed by [`ConnId::index`], with the state that `Engine` keeps for each.

use tcp_stack::ConnId;

/// Entry of a connection. `S` is the state of its service.
#[derive(Debug)]
pub(crate) struct Conn<S> {
    id: ConnId,
    /// State of the connection's service.
    pub(crate) service: S,
    /// True while the connection is queued as ready to transmit.
    tx_ready: bool,
    /// True once the peer has closed its half.
    pub(crate) peer_closed: bool,
}

/// One entry for each connection of the stack.
#[derive(Debug)]
pub(crate) struct ConnTable<S> {
    conns: Box<[Option<Conn<S>>]>,
}

impl<S> ConnTable<S> {
    /// Allocates room for every connection of the stack.
    pub(crate) fn new(connections_max: usize) -> Self {
        Self { conns: (0..connections_max).map(|_| None).collect() }
    }

    /// Adds a connection with its service.
    pub(crate) fn open(&mut self, id: ConnId, service: S) {
        if let Some(entry) = self.conns.get_mut(id.index() as usize) {
            *entry = Some(Conn { id, service, tx_ready: false, peer_closed: false });
        }
    }

    /// Removes a connection and returns the state of its service.
    pub(crate) fn close(&mut self, id: ConnId) -> Option<S> {
        let entry = self.conns.get_mut(id.index() as usize)?;
        entry.take_if(|conn| conn.id == id).map(|conn| conn.service)
    }

    /// Borrows the entry of a connection mutably.
    #[inline]
    pub(crate) fn get_mut(&mut self, id: ConnId) -> Option<&mut Conn<S>> {
        self.conns.get_mut(id.index() as usize)?.as_mut().filter(|conn| conn.id == id)
    }

    /// Borrows the state of a connection's service.
    #[inline]
    pub(crate) fn service(&self, id: ConnId) -> Option<&S> {
        let conn = self.conns.get(id.index() as usize)?.as_ref();
        conn.filter(|conn| conn.id == id).map(|conn| &conn.service)
    }

    /// Borrows the state of a connection's service mutably.
    #[inline]
    pub(crate) fn service_mut(&mut self, id: ConnId) -> Option<&mut S> {
        self.get_mut(id).map(|conn| &mut conn.service)
    }

    /// Marks the connection as ready to transmit. Returns `false` if it was marked already, or is closed.
    #[inline]
    pub(crate) fn mark_tx_ready(&mut self, id: ConnId) -> bool {
        self.get_mut(id).is_some_and(|conn| !std::mem::replace(&mut conn.tx_ready, true))
    }

    /// Clears the mark of [`Self::mark_tx_ready`] and returns the entry; `None` if the connection is closed.
    #[inline]
    pub(crate) fn take_tx_ready(&mut self, id: ConnId) -> Option<&mut Conn<S>> {
        let conn = self.get_mut(id)?;
        conn.tx_ready = false;
        Some(conn)
    }

    /// Returns the number of entries: every slab index is below.
    pub(crate) fn capacity(&self) -> u32 {
        u32::try_from(self.conns.len()).unwrap_or(u32::MAX)
    }

    /// Returns the open connection with this slab index.
    pub(crate) fn at(&self, index: u32) -> Option<ConnId> {
        self.conns.get(index as usize)?.as_ref().map(|conn| conn.id)
    }

    /// Returns every open connection.
    pub(crate) fn ids(&self) -> impl Iterator<Item = ConnId> + '_ {
        self.conns.iter().flatten().map(|conn| conn.id)
    }
}
