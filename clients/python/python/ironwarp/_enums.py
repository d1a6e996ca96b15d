"""Enumerations of the verbs, with the values of libibverbs where libibverbs has them."""

import enum


class Access(enum.IntFlag):
    """Rights to registered memory, and rights to ask a peer for."""

    REMOTE_READ = 0x01
    REMOTE_WRITE = 0x02
    REMOTE_ATOMIC = 0x04
    REMOTE_INVALIDATE = 0x08
    LOCAL_READ = 0x10
    LOCAL_WRITE = 0x20
    WINDOW_BIND = 0x40
    #: Work requests of the program, and RDMA Reads, Writes and atomic operations of peers.
    ALL = 0x37


class SendFlags(enum.IntFlag):
    """Flags of a send request (``ibv_send_flags``)."""

    #: No completion on success.
    NONE = 0
    #: A completion also on success.
    SIGNALED = 1
    #: The peer receives an event when the message arrives.
    SOLICITED = 2
    #: The request waits until earlier reads and atomic operations are finished.
    FENCE = 4


class Status(enum.IntEnum):
    """Result of a work request (``ibv_wc_status``)."""

    SUCCESS = 0
    LOC_LEN_ERR = 1
    LOC_QP_OP_ERR = 2
    LOC_PROT_ERR = 4
    WR_FLUSH_ERR = 5
    MW_BIND_ERR = 6


class Opcode(enum.IntEnum):
    """Operation of a work completion (``ibv_wc_opcode``)."""

    SEND = 0
    RDMA_WRITE = 1
    RDMA_READ = 2
    COMP_SWAP = 3
    FETCH_ADD = 4
    BIND_MW = 5
    LOCAL_INV = 6
    RECV = 128
    RECV_RDMA_WITH_IMM = 129


class QpState(enum.IntEnum):
    """State of a queue pair."""

    IDLE = 0
    RTS = 1
    CLOSING = 2
    TERMINATE = 3
    ERROR = 4
