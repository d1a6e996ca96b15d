"""RDMA over IP (iWARP) for Python: in the process, or with the daemon iwarpd.

A region of a peer, read and written by its name::

    with ironwarp.connect_region("host:7400/lab") as region:
        region.write(0, b"hello")
        print(region.read(0, 5))

Queue pairs, memory and completions begin with ``Context.embedded()``.
"""

from ironwarp._enums import Access, Opcode, QpState, SendFlags, Status
from ironwarp._errors import (
    CompletionError,
    ConnectionLost,
    ConnectionRefused,
    Error,
    PermissionDenied,
    QueueFull,
    RegionDenied,
    RegionError,
    RegionNotFound,
    Rejected,
    Timeout,
)
from ironwarp._ironwarp import (
    AsyncEvent,
    CompletionQueue,
    Connection,
    ConnectRequest,
    Context,
    DeviceInfo,
    Listener,
    MemoryRegion,
    Offer,
    ProtectionDomain,
    QueuePair,
    RegionServer,
    RemoteRegion,
    Sge,
    WorkCompletion,
    __version__,
    connect_region,
    devices,
)
from ironwarp._region import AsyncRemoteRegion, aconnect_region

__all__ = [
    "Access",
    "AsyncEvent",
    "AsyncRemoteRegion",
    "CompletionError",
    "CompletionQueue",
    "ConnectRequest",
    "Connection",
    "ConnectionLost",
    "ConnectionRefused",
    "Context",
    "DeviceInfo",
    "Error",
    "Listener",
    "MemoryRegion",
    "Offer",
    "Opcode",
    "PermissionDenied",
    "ProtectionDomain",
    "QpState",
    "QueueFull",
    "QueuePair",
    "RegionDenied",
    "RegionError",
    "RegionNotFound",
    "RegionServer",
    "Rejected",
    "RemoteRegion",
    "SendFlags",
    "Sge",
    "Status",
    "Timeout",
    "WorkCompletion",
    "__version__",
    "aconnect_region",
    "connect_region",
    "devices",
]
