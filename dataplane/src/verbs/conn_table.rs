//! Tables that map connection identifiers to TCP connections and back, with the state kept for each.

use std::time::Duration;

use rdma::verbs::CmId;
use tcp_stack::{ConnId, ListenerId};

/// TCP object of a connection identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transport {
    /// A listener of the TCP stack.
    Listener(ListenerId),
    /// A TCP connection, open or opening.
    Conn(ConnId),
}

/// State kept for a TCP connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Conn {
    conn: ConnId,
    /// Connection identifier; `None` after our close, until the peer has closed too.
    pub(super) id: Option<CmId>,
    /// Deadline queued for the connection.
    pub(super) deadline: Option<Duration>,
    /// It waits in the queue of tx_ready.
    tx_ready: bool,
}

/// Two tables of fixed size: identifiers by [`CmId::index`], and connections by [`ConnId::index`].
#[derive(Debug)]
pub(super) struct ConnTable {
    ids: Box<[Option<(CmId, Transport)>]>,
    conns: Box<[Option<Conn>]>,
    count: usize,
}

impl ConnTable {
    pub(super) fn new(connections: usize, ids: usize) -> Self {
        Self { ids: vec![None; ids].into(), conns: vec![None; connections].into(), count: 0 }
    }

    /// Binds an identifier to a listener.
    pub(super) fn listen(&mut self, id: CmId, listener: ListenerId) {
        if let Some(place) = self.ids.get_mut(id.index()) {
            *place = Some((id, Transport::Listener(listener)));
        }
    }

    /// Binds an identifier to a new connection.
    pub(super) fn open(&mut self, id: CmId, conn: ConnId) {
        if let (Some(of_id), Some(of_conn)) =
            (self.ids.get_mut(id.index()), self.conns.get_mut(conn.index() as usize))
        {
            *of_id = Some((id, Transport::Conn(conn)));
            let before = of_conn.replace(Conn { conn, id: Some(id), deadline: None, tx_ready: false });
            self.count = self.count.saturating_add(usize::from(before.is_none()));
        }
    }

    /// Returns the listener or connection of an identifier.
    pub(super) fn transport(&self, id: CmId) -> Option<Transport> {
        let (of, transport) = (*self.ids.get(id.index())?)?;
        (of == id).then_some(transport)
    }

    /// Returns the identifier of a listener.
    pub(super) fn listener(&self, listener: ListenerId) -> Option<CmId> {
        let mut ids = self.ids.iter().flatten();
        ids.find(|(_, transport)| *transport == Transport::Listener(listener)).map(|(id, _)| *id)
    }

    /// Unbinds an identifier and returns its listener or connection. A connection stays in the table until
    /// [`Self::close`].
    pub(super) fn unbind(&mut self, id: CmId) -> Option<Transport> {
        let place = self.ids.get_mut(id.index())?;
        let (_, transport) = place.take_if(|(of, _)| *of == id)?;
        if let Transport::Conn(conn) = transport
            && let Some(conn) = self.conn(conn)
        {
            conn.id = None;
        }
        Some(transport)
    }

    /// Removes a closed connection and returns its state.
    pub(super) fn close(&mut self, conn: ConnId) -> Option<Conn> {
        let closed = self.conns.get_mut(conn.index() as usize)?.take_if(|of| of.conn == conn)?;
        self.count = self.count.saturating_sub(1);
        if let Some(id) = closed.id
            && let Some(place) = self.ids.get_mut(id.index())
        {
            place.take_if(|(of, _)| *of == id);
        }
        Some(closed)
    }

    /// Returns the identifier of a connection.
    #[inline]
    pub(super) fn id(&self, conn: ConnId) -> Option<CmId> {
        let of = self.conns.get(conn.index() as usize)?.as_ref()?;
        of.id.filter(|_| of.conn == conn)
    }

    /// Returns the identifier of a connection and its queued deadline.
    #[inline]
    pub(super) fn deadline(&self, conn: ConnId) -> Option<(CmId, Option<Duration>)> {
        let of = self.conns.get(conn.index() as usize)?.as_ref().filter(|of| of.conn == conn)?;
        Some((of.id?, of.deadline))
    }

    /// Marks the connection as ready to transmit. Returns `false` if it was marked already, or is closed.
    #[inline]
    pub(super) fn mark_tx_ready(&mut self, conn: ConnId) -> bool {
        self.conn(conn).is_some_and(|conn| !std::mem::replace(&mut conn.tx_ready, true))
    }

    pub(super) fn clear_tx_ready(&mut self, conn: ConnId) {
        if let Some(conn) = self.conn(conn) {
            conn.tx_ready = false;
        }
    }

    /// Replaces the deadline of a connection and returns the one before; `None` if the connection has closed.
    #[inline]
    pub(super) fn set_deadline(
        &mut self,
        conn: ConnId,
        deadline: Option<Duration>,
    ) -> Option<Option<Duration>> {
        self.conn(conn).map(|conn| std::mem::replace(&mut conn.deadline, deadline))
    }

    /// Clears the expired deadline of a connection and returns its identifier.
    pub(super) fn expired(&mut self, conn: ConnId) -> Option<Option<CmId>> {
        let conn = self.conn(conn)?;
        conn.deadline = None;
        Some(conn.id)
    }

    /// Returns every connection in the table.
    pub(super) fn all(&self) -> impl Iterator<Item = ConnId> + '_ {
        self.conns.iter().flatten().map(|conn| conn.conn)
    }

    /// Returns the number of connections.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    fn conn(&mut self, conn: ConnId) -> Option<&mut Conn> {
        self.conns.get_mut(conn.index() as usize)?.as_mut().filter(|of| of.conn == conn)
    }
}
