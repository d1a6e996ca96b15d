//! Which connection carries which id, and what is kept for each.

use std::time::Duration;

use rdma::verbs::CmId;
use tcp_stack::{ConnId, ListenerId};

/// What carries an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transport {
    /// A listener of TCP's.
    Listener(ListenerId),
    /// A connection of TCP's, open or about to be.
    Conn(ConnId),
}

/// A connection of TCP's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Conn {
    conn: ConnId,
    /// Whose it is; `None` when we have closed it, and the peer has not yet.
    pub(super) id: Option<CmId>,
    /// The time limit that is kept for it.
    pub(super) deadline: Option<Duration>,
    /// It waits in the queue of tx_ready.
    tx_ready: bool,
}

/// Two tables: of the ids that something carries, by [`CmId::index`], and of the connections, by [`ConnId::index`].
/// They do not grow.
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

    /// A listener carries the id.
    pub(super) fn listen(&mut self, id: CmId, listener: ListenerId) {
        if let Some(place) = self.ids.get_mut(id.index()) {
            *place = Some((id, Transport::Listener(listener)));
        }
    }

    /// A connection, new, carries the id.
    pub(super) fn open(&mut self, id: CmId, conn: ConnId) {
        if let (Some(of_id), Some(of_conn)) =
            (self.ids.get_mut(id.index()), self.conns.get_mut(conn.index() as usize))
        {
            *of_id = Some((id, Transport::Conn(conn)));
            let before = of_conn.replace(Conn { conn, id: Some(id), deadline: None, tx_ready: false });
            self.count = self.count.saturating_add(usize::from(before.is_none()));
        }
    }

    /// What carries the id.
    pub(super) fn transport(&self, id: CmId) -> Option<Transport> {
        let (of, transport) = (*self.ids.get(id.index())?)?;
        (of == id).then_some(transport)
    }

    /// The id of a listener.
    pub(super) fn listener(&self, listener: ListenerId) -> Option<CmId> {
        let mut ids = self.ids.iter().flatten();
        ids.find(|(_, transport)| *transport == Transport::Listener(listener)).map(|(id, _)| *id)
    }

    /// Nothing carries the id any more: what has ids it. A connection stays until it has [closed](Self::close).
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

    /// A connection is gone: what was kept for it.
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

    /// Whose the connection is.
    #[inline]
    pub(super) fn id(&self, conn: ConnId) -> Option<CmId> {
        let of = self.conns.get(conn.index() as usize)?.as_ref()?;
        of.id.filter(|_| of.conn == conn)
    }

    /// Whose the connection is, and the time limit that is kept for it.
    #[inline]
    pub(super) fn deadline(&self, conn: ConnId) -> Option<(CmId, Option<Duration>)> {
        let of = self.conns.get(conn.index() as usize)?.as_ref().filter(|of| of.conn == conn)?;
        Some((of.id?, of.deadline))
    }

    /// Notes that the connection waits for its turn; `false` when it did already, or is gone.
    #[inline]
    pub(super) fn mark_tx_ready(&mut self, conn: ConnId) -> bool {
        self.conn(conn).is_some_and(|conn| !std::mem::replace(&mut conn.tx_ready, true))
    }

    pub(super) fn clear_tx_ready(&mut self, conn: ConnId) {
        if let Some(conn) = self.conn(conn) {
            conn.tx_ready = false;
        }
    }

    /// The connection has this time limit from here on, and had the one that is returned; `None`: it is gone.
    #[inline]
    pub(super) fn set_deadline(
        &mut self,
        conn: ConnId,
        deadline: Option<Duration>,
    ) -> Option<Option<Duration>> {
        self.conn(conn).map(|conn| std::mem::replace(&mut conn.deadline, deadline))
    }

    /// The time limit of a connection has passed: whose it is.
    pub(super) fn expired(&mut self, conn: ConnId) -> Option<Option<CmId>> {
        let conn = self.conn(conn)?;
        conn.deadline = None;
        Some(conn.id)
    }

    /// Every connection.
    pub(super) fn all(&self) -> impl Iterator<Item = ConnId> + '_ {
        self.conns.iter().flatten().map(|conn| conn.conn)
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    fn conn(&mut self, conn: ConnId) -> Option<&mut Conn> {
        self.conns.get_mut(conn.index() as usize)?.as_mut().filter(|of| of.conn == conn)
    }
}
