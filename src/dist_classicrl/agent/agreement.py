"""What the ranks of a call of `train` agree on before they begin, and how one process does."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np


class Agreement(Protocol):
    """How ranks agree; `dist_classicrl.membership.handshake.Setup` says more, and does it with messages.

    Attributes
    ----------
    rank : int
    members : tuple of int
        The ranks that take part, in whose order everything gathered stands.
    head : int
        The one that decides, and serves afterwards.
    is_head : bool
        Whether this rank is that one.
    """

    rank: int
    members: tuple[int, ...]
    head: int
    is_head: bool

    def agree(
        self, error: BaseException | None, description: dict[str, Any], numbers: list[int], what: str = ...
    ) -> np.ndarray:
        """Return every member's `numbers`, if none has an `error` and all have the same `description`."""

    def broadcast(self, array: np.ndarray, what: str) -> None:
        """Overwrite `array` with the head's."""

    def broadcast_message(self, message: np.ndarray | None, what: str) -> np.ndarray:
        """Return the head's `message`."""


class Alone:
    """A process alone, which agrees with itself."""

    rank = 0
    members: tuple[int, ...] = (0,)
    head = 0
    is_head = True

    def agree(
        self, error: BaseException | None, description: dict[str, Any], numbers: list[int], what: str = ""
    ) -> np.ndarray:
        """Return its `numbers`; raise its `error` if it has one."""
        if error is not None:
            raise error
        return np.array([numbers], np.int64)

    def broadcast(self, array: np.ndarray, what: str) -> None:
        """Leave `array` as it is."""

    def broadcast_message(self, message: np.ndarray | None, what: str) -> np.ndarray:
        """Return its `message`."""
        assert message is not None
        return message
