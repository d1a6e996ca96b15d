//! Requests of a program, which the worker executes, and their results. Each is a call of libibverbs or librdmacm.

use core::net::SocketAddr;
use core::num::NonZeroU16;

use rdma::verbs::{
    Access, AddressBase, CmId, CqId, MemoryRegion, MemoryWindow, MrId, MwId, PdId, QpAttr, QpInit, QpNum,
    QpState, RegionId, RtrAttr, RtsAttr, SrqAttr, SrqId,
};
use rdma::wire::mpa::RtrOptions;
use serde::{Deserialize, Serialize};

use crate::{CqPlace, QueuePlace};

/// Request of a program. Objects are named by the handles of earlier responses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Allocates a protection domain (`ibv_alloc_pd`).
    AllocPd,
    /// Deallocates a protection domain (`ibv_dealloc_pd`).
    DeallocPd(PdId),
    /// Registers memory (`ibv_reg_mr`). The daemon has attached it to the worker as a region before: a program names
    /// the memory by a method of its own, and cannot send this request.
    #[serde(skip)]
    RegMr {
        /// Protection domain of the memory region.
        pd: PdId,
        /// Region, first byte and length in bytes. The daemon guarantees that the region has them.
        memory: (RegionId, u64, u64),
        /// Address of the first byte.
        base: AddressBase,
        /// Rights of the memory region.
        access: Access,
    },
    /// Deregisters memory (`ibv_dereg_mr`).
    DeregMr(MrId),
    /// Allocates a memory window (`ibv_alloc_mw`).
    AllocMw(PdId),
    /// Deallocates a memory window (`ibv_dealloc_mw`).
    DeallocMw(MwId),
    /// Creates a completion queue of this many entries (`ibv_create_cq`).
    CreateCq(u32),
    /// Gives a completion queue this many entries (`ibv_resize_cq`): a new ring, with the completions of the old one,
    /// to which the worker has no access from the response on. The program does not poll or arm meanwhile.
    ResizeCq(CqId, u32),
    /// Destroys a completion queue (`ibv_destroy_cq`).
    DestroyCq(CqId),
    /// Creates a shared receive queue (`ibv_create_srq`).
    CreateSrq {
        /// Protection domain of the queue.
        pd: PdId,
        /// Maximum number of posted buffers.
        max_wr: u16,
        /// Most elements of a buffer.
        max_sge: u16,
    },
    /// Arms the low-water mark of a shared receive queue (`ibv_modify_srq`).
    ModifySrq(SrqId, u16),
    /// Asks for a snapshot of a shared receive queue (`ibv_query_srq`).
    QuerySrq(SrqId),
    /// Destroys a shared receive queue (`ibv_destroy_srq`).
    DestroySrq(SrqId),
    /// Creates a queue pair (`ibv_create_qp`).
    CreateQp(QpInit),
    /// Changes the state of a queue pair (`ibv_modify_qp`).
    ModifyQp(QpNum, QpState),
    /// Changes the rights of a queue pair's peer (`ibv_modify_qp` with `IBV_QP_ACCESS_FLAGS`).
    ModifyQpAccess(QpNum, Access),
    /// Lets messages to a queue pair wait for receive buffers, also on a connection of librdmacm.
    AwaitBuffers(QpNum),
    /// Changes a queue pair to RTR, and connects it with the peer that is named by number (`ibv_modify_qp` with
    /// `IBV_QP_DEST_QPN`).
    ReadyToReceive(QpNum, RtrAttr),
    /// Changes such a queue pair to RTS.
    ReadyToSend(QpNum, RtsAttr),
    /// Changes a queue pair of datagrams to RTR, or its key (`ibv_modify_qp` with `IBV_QP_QKEY`).
    ReadyForDatagrams(QpNum, u32),
    /// Asks for a snapshot of a queue pair (`ibv_query_qp`).
    QueryQp(QpNum),
    /// Destroys a queue pair (`ibv_destroy_qp`).
    DestroyQp(QpNum),
    /// Creates an id, with its local address (`rdma_create_id`, `rdma_bind_addr`).
    CreateId(Option<SocketAddr>),
    /// Destroys an id (`rdma_destroy_id`).
    DestroyId(CmId),
    /// Listens (`rdma_listen`).
    Listen {
        /// Handle of the listener.
        id: CmId,
        /// Most connect requests that wait for an answer.
        backlog: NonZeroU16,
        /// Inbound and outbound reads at a time.
        depths: (u16, u16),
    },
    /// Connects (`rdma_connect`).
    Connect {
        /// Handle of the connection.
        id: CmId,
        /// Queue pair of the connection.
        qp: QpNum,
        /// Address of the peer.
        peer: SocketAddr,
        /// Private data for the peer.
        private_data: Vec<u8>,
        /// Inbound and outbound reads at a time.
        depths: (u16, u16),
        /// MPA revision: 1 or 2.
        revision: u8,
        /// Ready-to-receive messages of the peer-to-peer model (RFC 6581 §9.2): either side may send first.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rtr: Option<RtrOptions>,
        /// True if another local port will do if that of the id is in use.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        any_port: bool,
    },
    /// Accepts a connection (`rdma_accept`).
    Accept {
        /// Handle of the connection.
        id: CmId,
        /// Queue pair of the connection.
        qp: QpNum,
        /// Private data for the peer.
        private_data: Vec<u8>,
    },
    /// Rejects a connection (`rdma_reject`).
    Reject {
        /// Handle of the connection.
        id: CmId,
        /// Private data for the peer.
        private_data: Vec<u8>,
    },
    /// Closes a connection when its work is done (`rdma_disconnect`).
    Disconnect(CmId),
    /// Asks for the addresses of an id (`rdma_get_local_addr`, `rdma_get_peer_addr`).
    Addresses(CmId),
    /// Sets the traffic class of an id's packets (`RDMA_OPTION_ID_TOS`). The two low bits, ECN, do not count.
    SetTrafficClass(CmId, u8),
    /// Asks if the next hop to a peer answers, and starts its resolution if it is not known (`rdma_resolve_addr`). The
    /// program asks again until it is.
    Resolve {
        /// Local address and port of the connection; `None`, an unspecified address and port 0: any.
        local: Option<SocketAddr>,
        /// Address of the peer.
        peer: SocketAddr,
    },
}

/// Next hop to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NextHop {
    /// Its link address is known.
    Known,
    /// It has not answered yet.
    Unknown,
    /// There is none: no gateway leads there, or the device has no address of that family.
    None,
}

/// Places of the queues of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpPlaces {
    /// Place of the send queue.
    pub send: QueuePlace,
    /// Place of the receive queue; `None` with a shared receive queue.
    pub recv: Option<QueuePlace>,
}

/// Result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Response {
    /// The request is done.
    Done,
    /// A new protection domain.
    Pd(PdId),
    /// A new memory region.
    Mr(MemoryRegion),
    /// A memory region is deregistered: the worker does not access this region for it any more.
    Deregistered(RegionId),
    /// A new memory window.
    Mw(MemoryWindow),
    /// A new completion queue, or one that has been resized.
    Cq(CqId, CqPlace),
    /// A new shared receive queue.
    Srq(SrqId, QueuePlace),
    /// Snapshot of a shared receive queue.
    SrqAttr(SrqAttr),
    /// A new queue pair.
    Qp(QpNum, QpPlaces),
    /// Snapshot of a queue pair.
    QpAttr(QpAttr),
    /// A new connection manager id.
    Id(CmId),
    /// Local and remote address of an id, as far as they are known.
    Addresses(Option<SocketAddr>, Option<SocketAddr>),
    /// The next hop to a peer, and the local end that a connection may have: that of the request, or one that no
    /// connection has now.
    Resolved(NextHop, Option<SocketAddr>),
}
