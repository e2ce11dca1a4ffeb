"""Messages between ranks: frozen dataclasses, each with a `Kind` of its own.

    @message(Kind.PROMISE)
    @dataclass(frozen=True)
    class Promise:
        number: int
        base: Base
        dead: tuple[int, ...]

    channel.send(encode(Promise(7, base, ())))
    ...
    decode(arrived)  # Promise(7, base, ())

A NamedTuple, which is made faster, does as well. `parts` says which types fields may have, and how these
travel. Bytes that are no message, whatever they are, give a `ProtocolError`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from dist_classicrl.comm import envelope
from dist_classicrl.comm.envelope import Kind, damaged
from dist_classicrl.comm.parts import from_parts, to_parts, to_streams

T = TypeVar("T")

_kinds: dict[type, Kind] = {}
_classes: dict[Kind, type] = {}


def message(kind: Kind) -> Callable[[type[T]], type[T]]:
    """Make a frozen dataclass what messages of this kind are."""

    def register(cls: type[T]) -> type[T]:
        if kind in _classes:
            raise TypeError(
                f"{kind.name} is {_classes[kind].__name__} already, and cannot be {cls.__name__}."
            )
        _kinds[cls], _classes[kind] = kind, cls
        return cls

    return register


def encode(message: object, stamp: int | None = None) -> np.ndarray:
    """Return a message as one ndarray(uint8), which shares no memory with it.

    `stamp` goes in front: what part of a conversation it belongs to. Who hears it has to know that there is
    one: see `decode_stamped`.
    """
    kind = _kinds[type(message)]
    if stamp is not None:
        return envelope.encode(kind, np.array([stamp], np.int64), *to_parts(message))
    ints, reals, arrays = to_streams(message)
    return envelope.encode(kind, *arrays, ints=ints, reals=reals)


def decode(message: np.ndarray) -> Any:
    """Return the message, of the class of its kind; its arrays are views of the bytes."""
    return of_parts(*envelope.decode(message))


def of_parts(kind: Kind, parts: list[np.ndarray]) -> Any:
    """Return the message of this kind and these parts; ProtocolError if they are none."""
    return from_parts(_class_of(kind), parts)


def decode_stamped(message: np.ndarray) -> tuple[int, Any]:
    """Return the stamp and the message; a ProtocolError is raised if there is no stamp, either."""
    kind, parts = envelope.decode(message)
    if not parts or parts[0].dtype != np.int64 or parts[0].size != 1:
        raise damaged(kind.name, "it has no stamp")
    return int(parts[0][0]), from_parts(_class_of(kind), parts[1:])


def kind_of(message: object) -> Kind:
    """Return the kind of a message."""
    return _kinds[type(message)]


def _class_of(kind: Kind) -> type:
    try:
        return _classes[kind]
    except KeyError:
        raise damaged(kind.name, "nobody here knows what belongs into it") from None


@message(Kind.BYE)
@dataclass(frozen=True)
class Bye:
    """The sender has everything, and sends nothing more."""
