"""Messages: what goes in comes out, and bytes that are no message are refused by name, whatever they are."""

import json

import numpy as np
import pytest

from dist_classicrl.comm import envelope
from dist_classicrl.comm.envelope import Kind
from dist_classicrl.errors import ProtocolError

TYPES = ("int64", "float64", "int32", "uint32", "float32", "uint8")


def random_parts(rng):
    parts = []
    for _ in range(rng.integers(0, 6)):
        raw = rng.integers(0, 256, 8 * int(rng.integers(0, 9)), dtype=np.uint8)
        parts.append(raw.view(TYPES[rng.integers(len(TYPES))])[: int(rng.integers(0, 9))].copy())
    return parts


def test_round_trip():
    rng = np.random.default_rng(1)
    for _ in range(300):
        parts = random_parts(rng)
        kind = Kind(int(rng.integers(1, 9)))
        message = envelope.encode(kind, *parts)
        assert message.dtype == np.uint8 and message.size % 8 == 0
        assert envelope.total_bytes(message[: envelope.MARK_BYTES]) == message.size
        got_kind, got = envelope.decode(message)
        assert got_kind is kind and len(got) == len(parts)
        for one, other in zip(parts, got, strict=True):
            assert other.dtype == one.dtype and other.tobytes() == one.tobytes()


def test_a_message_shares_no_memory_with_its_parts_but_decoding_copies_nothing():
    part = np.arange(5.0)
    message = envelope.encode(Kind.PUSH, part)
    part[:] = 0.0
    _, (got,) = envelope.decode(message)
    assert got.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert np.shares_memory(got, message)


def test_text_round_trip():
    data = {"rank": 3, "host": "knoten-ä", "trace": "line 1\nline 2", "nested": [1, 2.5, None]}
    assert envelope.from_text(envelope.text(data)) == data
    for bad in (b"", b"{", b"\xff\xfe", b"[1, 2]", b"7", b"[" * 100_000):
        with pytest.raises(ProtocolError, match="text"):
            envelope.from_text(np.frombuffer(bad, np.uint8))


def test_every_truncation_is_refused():
    message = envelope.encode(Kind.PUSH, np.arange(3), np.arange(5, dtype=np.int32), np.arange(2.0))
    for size in range(message.size):
        with pytest.raises(ProtocolError):
            envelope.decode(message[:size].copy())
    with pytest.raises(ProtocolError, match="came as"):
        envelope.decode(np.concatenate([message, np.zeros(8, np.uint8)]))


def edited(message, **numbers):
    """Return a copy with the int64 at some places of the head or of the parts' table overwritten."""
    copy = message.copy()
    for place, value in numbers.items():
        copy[: 8 * (copy.size // 8)].view(np.int64)[int(place[1:])] = value
    return copy


def test_damage_is_refused_by_name():
    # int64 0 to 3: mark, bytes, kind, parts; 4 and 5: type and length of the first part; 6, 7: of the next.
    message = envelope.encode(Kind.PUSH, np.arange(3), np.arange(2.0))
    for change, match in (
        (dict(p0=1), "no message of this library"),
        (dict(p1=8), "no message of this library"),
        (dict(p1=10**15), "came as"),
        (dict(p2=99), "kind 99 came: there is no such kind"),
        (dict(p3=-1), "claims -1 parts"),
        (dict(p3=2**60), "parts"),
        (dict(p3=1), "its parts end at"),
        (dict(p4=6), "unknown type 6"),
        (dict(p4=-1), "unknown type -1"),
        (dict(p5=-3), "claims -3 numbers"),
        (dict(p7=3), "claims 3 numbers"),
        (dict(p7=2**61), "numbers"),
        (dict(p7=1), "its parts end at"),
    ):
        with pytest.raises(ProtocolError, match=match):
            envelope.decode(edited(message, **change))


def test_any_bytes_give_a_message_or_a_protocol_error():
    rng = np.random.default_rng(2)
    message = envelope.encode(Kind.REPLY, np.arange(4), np.arange(3.0), np.arange(3, dtype=np.int32))
    refused = 0
    for _ in range(3000):
        copy = message.copy()
        for _ in range(rng.integers(1, 4)):
            copy[rng.integers(copy.size)] ^= 1 << rng.integers(8)
        try:
            _, parts = envelope.decode(copy)
        except ProtocolError:
            refused += 1
        else:
            # What is let through is a message: it can be written again, as long as it was.
            assert envelope.encode(Kind.REPLY, *parts).size == message.size
    assert refused > 1000
    for size in (0, 1, 15, 16, 31, 32, 33, 100):
        with pytest.raises(ProtocolError):
            envelope.decode(rng.integers(0, 256, size, dtype=np.uint8))


def test_nothing_is_ever_unpickled():
    import pickle

    for foreign in (
        pickle.dumps({"a": 1}),
        json.dumps({"a": 1}).encode(),
        b"GET / HTTP/1.1\r\n\r\n" + b" " * 40,
    ):
        with pytest.raises(ProtocolError):
            envelope.decode(np.frombuffer(foreign, np.uint8).copy())
