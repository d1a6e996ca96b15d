"""Types of arguments, for checkers only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from typing_extensions import Buffer

    class HasArray(Protocol):
        """An array of numpy, whose types declare the buffer protocol for Python 3.12 and later only."""

        @property
        def __array_interface__(self) -> dict[str, Any]: ...

    AnyBuffer = Buffer | HasArray
