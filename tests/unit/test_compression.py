"""Messages in fewer bytes: nothing changes, and whatever is damaged is refused by name."""

import random

import numpy as np
import pytest
import zstandard

from dist_classicrl.comm import envelope, messages
from dist_classicrl.comm.compact import Compact, Form, lengthen, shorten
from dist_classicrl.comm.compression import Codec, Compressed, DeltaCodec, LosslessCodec
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
    message = push(np.random.default_rng(2).random(150_000))  # more than a table of one entry has
    assert LosslessCodec(1).encode(message)[1] == 0
    sent, spared = LosslessCodec(150_000).encode(message)
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


# Shorter forms of numbers

DRAW = np.random.default_rng(11)
SORTED = np.sort(DRAW.choice(40_000, 3000, replace=False))
FORMS = {
    "sorted entries": (SORTED.astype(np.int32), Form.STEPS, 1),
    "sparse entries": (400 * SORTED.astype(np.int32), Form.STEPS, 2),
    "counts": (DRAW.integers(70_000, 70_200, 500), Form.OFFSETS, 1),
    "negative numbers": (DRAW.integers(-30_000, 30_000, 500), Form.OFFSETS, 2),
    "visits": (DRAW.integers(2**32 - 9, 2**32, 500, dtype=np.uint32), Form.OFFSETS, 1),
    "far apart": (DRAW.integers(-(2**62), 2**62, 500), Form.PLAIN, 0),
    "eight bits": (DRAW.integers(-127, 128, 500) * 2.0**-9, Form.MULTIPLES, 1),
    "sixteen bits": (DRAW.integers(-32_767, 32_768, 500) * 2.0**40, Form.MULTIPLES, 2),
    "few weights": (
        DRAW.choice(np.append(DRAW.random(20), [np.nan, -0.0, 0.0, np.inf]), 900),
        Form.PLACES,
        24,
    ),
    "any": (DRAW.normal(size=500), Form.COLUMNS, 8),
    "tiny": (DRAW.integers(-9, 9, 500) * 5e-324, Form.MULTIPLES, 1),
}


@pytest.mark.parametrize("name", FORMS)
def test_each_kind_of_numbers_has_a_form_of_its_own_and_comes_back_to_the_bit(name):
    array, form, width = FORMS[name]
    encoded = envelope.encode(Kind.PUSH, array, np.zeros(0), array[:5])
    compact = shorten(encoded, columns=True)
    assert compact.told[0] == form and width in (None, compact.told[4])
    kind, parts = lengthen(messages.decode(messages.encode(compact)))
    again = envelope.encode(kind, *parts)
    np.testing.assert_array_equal(again, encoded)
    assert envelope.bytes_of(parts) == encoded.size
    assert form in (Form.PLAIN, Form.COLUMNS) or compact.arrays[0].nbytes < array.nbytes
    assert shorten(encoded, columns=False).told[0] == (Form.PLAIN if form is Form.COLUMNS else form)


def test_shorter_forms_that_are_none_are_refused_by_name():
    whole = [shorten(envelope.encode(Kind.PUSH, array), True) for array, *_ in FORMS.values()]
    draw = random.Random(3)
    refused = 0
    for compact in whole * 60:
        told = list(compact.told)
        told[draw.randrange(5)] = draw.choice([-1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 10**6, 2**62, -(2**63)])
        arrays = compact.arrays if draw.random() < 0.7 else (compact.arrays[0][: -draw.randrange(1, 30)],)
        try:
            lengthen(Compact(compact.kind, tuple(told), arrays))
        except ProtocolError:
            refused += 1
    assert refused > 300
    with pytest.raises(ProtocolError, match=f"40 numbers where {2**45 - 1} belong"):  # for which no memory is
        lengthen(Compact(Kind.PUSH, (Form.STEPS, 0, 2**45, 0, 1), (np.zeros(40, np.uint8),)))
    with pytest.raises(ProtocolError, match="kind 999"):
        lengthen(whole[0]._replace(kind=999))
    with pytest.raises(ProtocolError, match="other arrays than its 1"):
        lengthen(whole[0]._replace(told=(0,)))


def test_shorter_forms_need_no_library_and_count_what_they_spare():
    message, codec = push(np.sin(np.arange(2000.0))), DeltaCodec()
    plain = messages.encode(message)
    sent, spared = codec.encode(message)
    assert sent.size == plain.size - spared < 0.5 * plain.size
    told, spared_there = codec.decode(sent)
    assert spared_there == spared and codec.take_seconds() > 0.0 == codec.take_seconds()
    np.testing.assert_array_equal(messages.encode(told), plain)


@pytest.mark.parametrize("columns", [False, True])
def test_arrays_come_as_those_that_were_not_compressed_for_which_kernels_are_compiled(columns):
    codec = LosslessCodec(ENTRIES) if columns else DeltaCodec()
    message = push(np.sin(np.arange(2000.0)))._replace(made={number: 1 for number in range(9)})
    packed = codec.decode(codec.encode(message)[0])[0].pushed.packed
    for array, plain in zip(packed.parts, message.pushed.packed.parts, strict=True):
        assert array.dtype == plain.dtype
        assert array.flags.writeable and array.flags.aligned and array.flags.c_contiguous
    # Short arrays go as they are, and are views of what was restored.
    few = push(np.zeros(4))._replace(made={number: 1 for number in range(999)})
    packed = codec.decode(codec.encode(few)[0])[0].pushed.packed
    assert all(array.flags.writeable and array.flags.aligned for array in packed.parts)
