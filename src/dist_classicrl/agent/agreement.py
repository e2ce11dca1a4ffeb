"""How the ranks of a call of `train` agree before they begin: with messages, or as a process alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from dist_classicrl.membership.handshake import Setup


class Alone:
    """A process alone, which agrees with itself; `Setup` says what each step is among several ranks."""

    rank = 0
    members = (0,)
    head = 0
    is_head = True

    def agree(
        self, error: BaseException | None, description: dict[str, Any], numbers: list[int], what: str = ""
    ) -> np.ndarray:
        """Return its `numbers`; raise its `error` if it has one."""
        try:
            if error is not None:
                raise error
        finally:
            del error  # its traceback leads here: it would keep itself, and the agent
        return np.array([numbers], np.int64)

    def broadcast(self, array: np.ndarray, what: str) -> None:
        """Leave `array` as it is."""

    def broadcast_message(self, message: np.ndarray | None, what: str) -> np.ndarray:
        """Return its `message`."""
        assert message is not None  # the head always has one
        return message


Agreement = Setup | Alone
