"""Lossless compression of messages: nothing changes, and whatever is damaged is refused by name."""

import random

import numpy as np
import pytest
import zstandard

from dist_classicrl.comm import messages
from dist_classicrl.comm.compression import Codec, Compressed, LosslessCodec
from dist_classicrl.comm.envelope import Kind
from dist_classicrl.engines.outcome import NOTHING_LEARNED
from dist_classicrl.engines.server.messages import Push, Pushed, Wishes
from dist_classicrl.errors import ProtocolError
from dist_classicrl.tables.maps import PackedMap

ENTRIES = 5000


def push(shift):
    n = shift.size
    entries, visits = np.arange(n, dtype=np.int32), np.ones(n, np.uint32)
    packed = PackedMap(entries, np.full(n, 0.9), shift, visits, visits, None)
    return Push(Pushed(3, packed, n, NOTHING_LEARNED), {1: n}, Wishes(), 0, 7, 0, 2, False)


def test_what_comes_out_is_what_went_in_to_the_bit_and_the_count_of_bytes_is_right():
    message = push(np.sin(np.arange(2000.0)))
    plain = messages.encode(message)
    sent, spared = LosslessCodec(ENTRIES).encode(message)
    assert sent.size == plain.size - spared < 0.6 * plain.size
    told, spared_there = LosslessCodec(ENTRIES).decode(sent)
    assert spared_there == spared
    np.testing.assert_array_equal(messages.encode(told), plain)


def test_short_messages_and_what_does_not_get_smaller_go_as_they_are():
    codec = LosslessCodec(ENTRIES)
    bits = np.random.default_rng(0).integers(0, 2**32, (4, 2000), dtype=np.uint32)
    packed = PackedMap(bits[0].view(np.int32), *np.random.default_rng(1).random((2, 2000)), *bits[1:3], None)
    random_push = push(np.zeros(1))._replace(pushed=Pushed(3, packed, 1, NOTHING_LEARNED))
    for message in (push(np.zeros(4)), random_push):
        sent, spared = codec.encode(message)
        assert spared == 0
        np.testing.assert_array_equal(sent, messages.encode(message))
    # After one that did not, some are not tried; then they are.
    gains = [codec.encode(push(np.zeros(500)))[1] > 0 for _ in range(10)]
    assert gains == [False] * 8 + [True] * 2
    assert Codec().encode(push(np.zeros(500)))[1] == 0


def test_messages_longer_than_others_take_go_as_they_are():
    message = push(np.zeros(60_000))  # more than a table of one entry has
    assert LosslessCodec(1).encode(message)[1] == 0
    sent, spared = LosslessCodec(60_000).encode(message)
    assert spared > 0
    with pytest.raises(ProtocolError, match="COMPRESSED.*claims to hold 1[0-9]{6} bytes, where 1048704 are"):
        LosslessCodec(1).decode(sent)


def frame(data):
    return messages.encode(Compressed(np.frombuffer(data, np.uint8)))


@pytest.mark.parametrize(
    "data, why",
    [
        (b"", "cannot be decompressed"),
        (b"no frame at all", "cannot be decompressed"),
        (zstandard.ZstdCompressor(write_content_size=False).compress(bytes(64)), "claims to hold"),
        (zstandard.ZstdCompressor().compress(bytes(2**40 // 2**17)), "claims to hold 8388608 bytes"),
        (zstandard.ZstdCompressor().compress(bytes(63)), "claims to hold 63 bytes"),
        (zstandard.ZstdCompressor().compress(bytes(64)), "no message of this library"),
        (zstandard.ZstdCompressor().compress(bytes(64)) + b"more", "cannot be decompressed"),
    ],
)
def test_frames_that_are_none_are_refused_by_name(data, why):
    with pytest.raises(ProtocolError, match=why):
        LosslessCodec(ENTRIES).decode(frame(data))


def test_one_frame_inside_another_is_not_opened_again():
    codec = LosslessCodec(ENTRIES)
    inner = Compressed(np.zeros(4096, np.uint8))
    told, _ = codec.decode(codec.encode(inner)[0])
    assert isinstance(told, Compressed) and Kind.COMPRESSED == messages.kind_of(told)


def test_a_damaged_frame_is_refused_wherever_the_damage_is():
    codec = LosslessCodec(ENTRIES)
    told = messages.decode(codec.encode(push(np.sin(np.arange(500.0))))[0])
    whole = told.data.tobytes()
    draw = random.Random(4)
    for _ in range(300):
        damaged = bytearray(whole)
        damaged[draw.randrange(len(whole))] ^= 1 << draw.randrange(8)
        try:
            got, _ = codec.decode(frame(bytes(damaged)))
        except ProtocolError:
            continue
        # A few bits mean nothing to the library: then nothing has changed.
        np.testing.assert_array_equal(got.pushed.packed.shift, np.sin(np.arange(500.0)))
    for end in range(0, len(whole), 37):
        with pytest.raises(ProtocolError):
            codec.decode(frame(whole[:end]))
