//! Listeners and connections of a context.

use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::sync::Arc;

use iwarp_shared_verbs::{NextHop, Request, Response};
use rdma::verbs::{CmId, ConnParam};

use crate::context::{Context, Inner};
use crate::error::Error;
use crate::qp::QueuePair;

/// A listener or a connection (`rdma_cm_id`). Dropping it closes the listener, or resets the connection.
#[derive(Debug)]
pub struct Id {
    context: Arc<Inner>,
    id: CmId,
}

impl Context {
    /// Creates an id, with its local address if that matters (`rdma_create_id`, `rdma_bind_addr`).
    ///
    /// # Errors
    /// The device refuses, or the daemon has ended.
    pub fn create_id(&self, local: Option<SocketAddr>) -> Result<Id, Error> {
        match self.0.execute("create_id", Request::CreateId(local))? {
            Response::Id(id) => Ok(self.id(id)),
            _ => Err(Error::Protocol("create_id")),
        }
    }

    /// Asks for the next hop to a peer, and starts its resolution if it is not known: the caller asks again until it is
    /// (`rdma_resolve_addr`). Returns also the local address that a connection may have: `local`, with a port that no
    /// connection has now if that is 0.
    ///
    /// # Errors
    /// The daemon has ended.
    pub fn resolve(
        &self,
        local: Option<SocketAddr>,
        peer: SocketAddr,
    ) -> Result<(NextHop, Option<SocketAddr>), Error> {
        match self.0.execute("resolve", Request::Resolve { local, peer })? {
            Response::Resolved(hop, local) => Ok((hop, local)),
            _ => Err(Error::Protocol("resolve")),
        }
    }

    /// Takes the id of a connect request, which its event names.
    pub fn id(&self, id: CmId) -> Id {
        Id { context: Arc::clone(&self.0), id }
    }
}

impl Id {
    /// Returns the handle, as events name it.
    pub fn handle(&self) -> CmId {
        self.id
    }

    /// Listens at the local address (`rdma_listen`), or, at an unspecified one, at all addresses of its family. Of
    /// `param`, the read depths count.
    ///
    /// # Errors
    /// The device refuses, or the daemon has ended. An address that is not the device's, or in use, is reported by an
    /// event.
    pub fn listen(&self, backlog: NonZeroU16, param: &ConnParam<'_>) -> Result<(), Error> {
        let depths = (param.responder_resources, param.initiator_depth);
        self.done("listen", Request::Listen { id: self.id, backlog, depths })
    }

    /// Connects a queue pair (`rdma_connect`). Events report the outcome. If `param.rtr` is set, either side may send
    /// first, after one of these ready-to-receive messages; the peer chooses.
    ///
    /// # Errors
    /// The device refuses, or the daemon has ended.
    pub fn connect(&self, qp: &QueuePair, peer: SocketAddr, param: &ConnParam<'_>) -> Result<(), Error> {
        self.connect_from(qp, peer, param, false)
    }

    /// As [`Self::connect`]; with `any_port`, the connection has another local port than that of the id if that is in
    /// use.
    ///
    /// # Errors
    /// The device refuses, or the daemon has ended.
    pub fn connect_from(
        &self,
        qp: &QueuePair,
        peer: SocketAddr,
        param: &ConnParam<'_>,
        any_port: bool,
    ) -> Result<(), Error> {
        self.context.owns("connect", qp.context())?;
        if self.context.is_child() {
            return Err(Error::Lost);
        }
        // Before the request: the event may come first.
        self.context.connect(self.id, &qp.0);
        self.done(
            "connect",
            Request::Connect {
                id: self.id,
                qp: qp.0.num,
                peer,
                private_data: param.private_data.to_vec(),
                depths: (param.responder_resources, param.initiator_depth),
                revision: param.revision,
                rtr: param.rtr,
                any_port,
            },
        )
    }

    /// Accepts a connect request (`rdma_accept`). From here on the queue pair accepts work to send; the worker begins
    /// with it once the peer's first message has arrived (RFC 5044 §7.1.2).
    ///
    /// # Errors
    /// The device refuses, or the daemon has ended.
    pub fn accept(&self, qp: &QueuePair, private_data: &[u8]) -> Result<(), Error> {
        self.context.owns("accept", qp.context())?;
        if self.context.is_child() {
            return Err(Error::Lost);
        }
        self.context.connect(self.id, &qp.0);
        // Before the answer: another thread may poll the peer's first message at once, and answer it.
        qp.0.set_ready(true);
        let private_data = private_data.to_vec();
        let accepted = self.done("accept", Request::Accept { id: self.id, qp: qp.0.num, private_data });
        if accepted.is_err() {
            self.context.disconnect(self.id);
        }
        accepted
    }

    /// Rejects a connect request (`rdma_reject`).
    ///
    /// # Errors
    /// The device refuses, or the daemon has ended.
    pub fn reject(&self, private_data: &[u8]) -> Result<(), Error> {
        self.done("reject", Request::Reject { id: self.id, private_data: private_data.to_vec() })
    }

    /// Closes the connection when its work is done (`rdma_disconnect`).
    ///
    /// # Errors
    /// The daemon has ended.
    pub fn disconnect(&self) -> Result<(), Error> {
        self.context.disconnect(self.id);
        self.done("disconnect", Request::Disconnect(self.id))
    }

    /// Returns the local and the remote address, as far as they are known.
    ///
    /// # Errors
    /// The daemon has ended.
    pub fn addresses(&self) -> Result<(Option<SocketAddr>, Option<SocketAddr>), Error> {
        match self.context.execute("addresses", Request::Addresses(self.id))? {
            Response::Addresses(local, remote) => Ok((local, remote)),
            _ => Err(Error::Protocol("addresses")),
        }
    }

    /// Sets the traffic class of the connection's packets, or of those of connections that the listener accepts
    /// (`RDMA_OPTION_ID_TOS`). The two low bits, ECN, do not count.
    ///
    /// # Errors
    /// The daemon has ended.
    pub fn set_traffic_class(&self, class: u8) -> Result<(), Error> {
        self.done("set_traffic_class", Request::SetTrafficClass(self.id, class))
    }

    fn done(&self, call: &'static str, request: Request) -> Result<(), Error> {
        match self.context.execute(call, request)? {
            Response::Done => Ok(()),
            _ => Err(Error::Protocol(call)),
        }
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        self.context.disconnect(self.id);
        // Fails only if the daemon has ended.
        let _ = self.context.execute("destroy_id", Request::DestroyId(self.id));
    }
}
