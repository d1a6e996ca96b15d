"""Exceptions of the package. Each is an OSError: ``errno`` has the number, ``strerror`` the text."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ironwarp._enums import Status
    from ironwarp._ironwarp import WorkCompletion


class Error(OSError):
    """Failure of a call. Without an exception of its own below, ``errno`` tells the reason."""


class Timeout(Error, TimeoutError):
    """The time of a call has passed (ETIMEDOUT)."""


class PermissionDenied(Error, PermissionError):
    """The user or the program may not do this (EACCES, EPERM)."""


class ConnectionRefused(Error, ConnectionRefusedError):
    """Nobody listens at the peer's address (ECONNREFUSED)."""


class Rejected(ConnectionRefused):
    """The peer has rejected the connection (ECONNREFUSED)."""

    #: Private data of the peer's answer.
    private_data: bytes = b""


class ConnectionLost(Error, ConnectionResetError):
    """The connection has ended (ECONNRESET)."""


class QueueFull(Error):
    """A queue has no slot for the work request (ENOMEM)."""


class RegionError(Error):
    """A peer does not grant a region."""


class RegionNotFound(RegionError, FileNotFoundError):
    """The peer has no region of the name (ENOENT)."""


class RegionDenied(RegionError, PermissionDenied):
    """The region lacks the right, or wants a token or another source address (EACCES)."""


class CompletionError(Error):
    """A work request has failed (EIO)."""

    #: Result of the work request.
    status: Status
    #: Completion of the work request.
    completion: WorkCompletion
