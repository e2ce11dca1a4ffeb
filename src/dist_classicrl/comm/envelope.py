"""The bytes of a message: a kind and some arrays of numbers in one buffer. Nothing is ever unpickled.

Layout, native byte order, all of it on 8-byte boundaries: four int64 (mark, total bytes, kind, number of
parts), two int64 per part (type code, length), then the parts. Text travels as JSON in UTF-8.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import numpy as np

from dist_classicrl.errors import ProtocolError

_MARK = 0x44435231
_TYPES = tuple(np.dtype(name) for name in ("int64", "float64", "int32", "uint32", "float32", "uint8"))
_CODES = {dtype: code for code, dtype in enumerate(_TYPES)}
_INT64, _FLOAT64 = _CODES[np.dtype(np.int64)], _CODES[np.dtype(np.float64)]
_HEAD = 4 * 8
_PADDING = tuple(bytes(size) for size in range(8))

MARK_BYTES = 16
"""Bytes from the start within which `total_bytes` finds what it needs."""


class Kind(IntEnum):
    """What a message is."""

    PUSH = 1  # worker: maps, steps made
    REPLY = 2  # server: receipt, refresh, lease
    ROUND = 3  # worker: one logical worker's maps of a round
    MERGED = 4  # server: the table after a round
    DONE = 5  # server: final table, result
    BYE = 6  # worker: has everything, sends nothing more; server, to one that failed: may end the job
    FAILED = 7  # either: an exception was raised
    BEAT = 8  # either: still there
    STATE = 9  # worker: what a logical worker's learner would go on with
    STOP = 10  # worker: this rank was asked to stop; server: push what you have, and wait
    STOPPED = 11  # server: why and where to go on from; nothing comes after it
    GATHER = 12  # of a rooted collective, to the root: a rank's part of something
    TOLD = 13  # of a rooted collective, from the root
    PREPARE = 14  # election: promise to follow nobody older
    PROMISE = 15  # the answer, with the base that the sender has
    REFUSE = 16  # the other answer
    VIEW = 17  # server or coordinator: who is in the run, and who serves
    JOIN = 18  # from a rank that is not in the run, or not any more
    WELCOME = 19  # server: it is now
    OVER = 20  # the answer where there is nothing left to join
    HAND_IN = 21  # worker, to a new server: a push that it may lack
    RELEASE = 22  # server: everybody has everything, this rank may go
    LEAVE = 23  # worker: sends nothing more, though the run goes on
    ASSIGNMENT = 24  # server, to a process that it has started: which rank it is
    TAKEN = 25  # detector and monitor: so many messages were taken
    ALIVE = 26  # detector: still there
    POINTS = 27  # monitor, to rank 0: what was measured
    AT_WORK = 28  # of a rooted collective: the answer takes a while
    LEARNERS = 29  # in the setup, from the head: what all learners go on with
    BEGIN = 30  # supersteps, server: who owns what, and where the run is
    PLAY = 31  # server: make supersteps
    PLAYED = 32  # the answer
    TELL = 33  # server: tell your rows
    ROWS = 34  # the answer
    KEEP = 35  # server: the whole table
    WALKERS = 36  # between owners of rows: walkers, or the targets that they asked for
    CAME = 37  # barrier: the sender has come to it
    OFFER = 38  # synchronization: what the sender gives
    PARTED = 39  # synchronization: why the sender has left, and what is not complete there
    HALT = 41  # supersteps, server: touch no rows until the next BEGIN
    HALTED = 42  # the answer
    ASK_ROWS = 43  # server, to one rank of each other host: some rows that its host owns
    SOME_ROWS = 44  # the answer; from the server: rows as they are
    GOT_ROWS = 45  # the answer to that
    COMPRESSED = 46  # another message, in fewer bytes
    COMPACT = 47  # likewise, each array in the form that is shortest
    ROUTE = 48  # server: through which rank maps go from now on, and whose the receiver composes
    COMPOSED = 49  # server of a node: maps of its workers as one
    PASSED_ON = 50  # the answer: receipt, refresh for all of its workers
    PROBE = 51  # server: to be sent back at once, which tells how fast the link is
    SAVE_ROWS = 52  # supersteps, server, to one rank of each other host: write the rows that your host has
    SAVED_ROWS = 53  # the answer
    LOAD_ROWS = 54  # likewise: read them from a checkpoint
    PUT_ROWS = 55  # server: these are rows of your host from now on
    ASK_VALUES = 56  # to a host that has some rows: what stands in them
    VALUES = 57  # the answer
    LEAVES = 58  # nothing more will be asked
    ROUNDS_BEGIN = 60  # rounds without a server, coordinator: who takes part, and where the run is
    ROUNDS_PLAY = 61  # coordinator: learn in rounds
    ROUNDS_PLAYED = 62  # the answer
    ROUNDS_SUMS = 63  # between ranks: what some of them have learned in a round


_KINDS = {int(kind): kind for kind in Kind}


def encode(
    kind: Kind, *arrays: np.ndarray, ints: Sequence[int] | None = None, reals: Sequence[float] | None = None
) -> np.ndarray:
    """Return a message as one ndarray(uint8), which shares no memory with its parts; these arrive flat.

    The first parts are `ints` and `reals`, where they are given.
    """
    head: list[int] = [_MARK, 0, kind, len(arrays) + (ints is not None) + (reals is not None)]
    if ints is not None:
        head += (_INT64, len(ints))
    if reals is not None:
        head += (_FLOAT64, len(reals))
    ints, reals = ints or (), reals or ()
    total = _HEAD + 16 * head[3] + 8 * (len(ints) + len(reals))
    pieces: list[Any] = [b""]  # bytes and arrays
    for array in arrays:
        head += (_CODES[array.dtype], array.size)
        pieces.append(array if array.flags.c_contiguous else array.copy())
        size = array.nbytes
        if over := size & 7:
            pieces.append(_PADDING[8 - over])
            size += 8 - over
        total += size
    head[1] = total
    try:
        pieces[0] = struct.pack(f"{len(head) + len(ints)}q{len(reals)}d", *head, *ints, *reals)
    except struct.error as error:
        raise OverflowError(f"A number is too large for a message: {error}.") from error
    return np.frombuffer(bytearray().join(pieces), np.uint8)


def bytes_of(parts: Sequence[np.ndarray]) -> int:
    """Return the length of the message that has these parts."""
    return _HEAD + sum(16 + part.nbytes + (-part.nbytes & 7) for part in parts)


def total_bytes(start: np.ndarray) -> int:
    """Return the length of the message that begins with the bytes `start`; ProtocolError if none does."""
    if start.size < MARK_BYTES:
        raise ProtocolError(f"A message of {start.size} bytes came; the shortest has {_HEAD}.")
    mark, total = struct.unpack_from("=2q", start.data)
    if mark != _MARK or total < _HEAD:
        raise ProtocolError(
            "Bytes came that are no message of this library: do all ranks run the same version of it?"
        )
    return total


def has_kind(message: np.ndarray, kind: Kind) -> bool:
    """Whether a message says that it is of this kind; nothing else of it is looked at."""
    return message.size >= _HEAD and struct.unpack_from("=q", message.data, MARK_BYTES) == (kind,)


def decode(message: np.ndarray) -> tuple[Kind, list[np.ndarray]]:
    """Return the kind and the parts, as views of `message`; ProtocolError if the bytes are no message."""
    total = total_bytes(message)
    if total != message.size:
        raise ProtocolError(f"A message of {total} bytes came as {message.size} bytes.")
    kind, n_parts = struct.unpack_from("=2q", message.data, MARK_BYTES)
    if kind not in _KINDS:
        raise damaged(kind, "there is no such kind")
    offset = _HEAD + 16 * n_parts
    if n_parts < 0 or offset > total:
        raise damaged(kind, f"it claims {n_parts} parts")
    table = iter(struct.unpack_from(f"={2 * n_parts}q", message.data, _HEAD))
    parts = []
    for code, size in zip(table, table, strict=True):
        if not 0 <= code < len(_TYPES):
            raise damaged(kind, f"a part has the unknown type {code}")
        dtype = _TYPES[code]
        end = offset + size * dtype.itemsize
        if size < 0 or end > total:
            raise damaged(kind, f"a part claims {size} numbers")
        parts.append(np.frombuffer(message, dtype, size, offset))
        offset = end + (-end & 7)
    if offset != total:
        raise damaged(kind, f"its parts end at byte {offset} of {total}")
    return _KINDS[kind], parts


def damaged(kind: object, why: str) -> ProtocolError:
    """Return what is raised where a message of this kind is no such message."""
    return ProtocolError(f"A damaged message of kind {kind} came: {why}. Do all ranks run the same version?")


def text(data: Any) -> np.ndarray:
    """Return `data` as JSON for a message part."""
    return np.frombuffer(json.dumps(data).encode(), np.uint8)


def from_text(part: np.ndarray, kind: type = dict) -> Any:
    """Return what `text` packed, which was of type `kind`; ProtocolError if the bytes are no such text."""
    try:
        data = json.loads(part.tobytes().decode())
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"A message's text cannot be read: {error}.") from error
    if not isinstance(data, kind):
        wanted = "object" if kind is dict else "array"
        raise ProtocolError(f"A message's text is no JSON {wanted}: {data!r:.80}.")
    return data
