"""How arrays go to a card and come back; in the simulator they are copies in main memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from dist_classicrl.learning.card.cards import is_simulated, numba_cuda
from dist_classicrl.learning.card.plan import memory_of

cuda: Any = numba_cuda()


def on_card(value: Any) -> Any:
    """Return a copy of an array on the card, or of a NamedTuple, or a tuple, of such; numbers as they are.

    Arrays that are the same memory, seen as numbers of several types, are so there, too.
    """
    return _on_card(value, {})


def _on_card(value: Any, there: dict[tuple[int, int, bool], Any]) -> Any:
    if isinstance(value, np.ndarray):
        if is_simulated():
            return value.copy()
        if value.ndim != 1 or not value.size or not value.flags.c_contiguous:
            return cuda.to_device(np.ascontiguousarray(value))
        memory = memory_of(value)
        if memory not in there:
            there[memory] = cuda.to_device(np.ascontiguousarray(value))
        return there[memory].view(value.dtype)
    if isinstance(value, tuple):
        every = [_on_card(each, there) for each in value]
        return type(value)(*every) if hasattr(value, "_fields") else tuple(every)
    return value


def new_on_card(size: int, kind: Any) -> Any:
    """Return an array on the card whose numbers nobody has written yet."""
    return np.zeros(size, kind) if is_simulated() else cuda.device_array(size, kind)


def from_card(array: Any) -> np.ndarray:
    """Return an array of the card's in main memory."""
    copy: np.ndarray = array if is_simulated() else array.copy_to_host()
    return copy


def write_to_card(there: Any, here: np.ndarray) -> None:
    """Let an array on the card be one that is here, of the same size and type."""
    if is_simulated():
        there[:] = here
    else:
        there.copy_to_device(here)


def read_from_card(there: Any, here: np.ndarray) -> None:
    """Let an array that is here be one on the card, of the same size and type; nothing else takes memory."""
    if is_simulated():
        here[:] = there
    else:
        there.copy_to_host(here)


def zeros_on_card(size: int, kind: Any) -> Any:
    """Return an array on the card that is all 0; nothing is sent there for that."""
    array = new_on_card(size, kind)
    if size and not is_simulated():
        array.gpu_data.memset(0)
    return array


class CardMemory:
    """How arrays go to a card and come back."""

    put = staticmethod(on_card)
    new = staticmethod(new_on_card)
    zeros = staticmethod(zeros_on_card)
    get = staticmethod(from_card)
    write = staticmethod(write_to_card)
    read = staticmethod(read_from_card)
