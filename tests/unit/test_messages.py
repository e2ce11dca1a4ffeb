"""Typed messages: what goes in comes out, and whatever is not what it should be is refused by name."""

import dataclasses
import importlib
import math
import pkgutil
import types
import typing
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dist_classicrl
from dist_classicrl.comm import envelope, messages
from dist_classicrl.comm.envelope import Kind
from dist_classicrl.comm.parts import from_parts, to_parts
from dist_classicrl.errors import ProtocolError
from dist_classicrl.membership.election import Base, Prepare, Promise
from dist_classicrl.membership.group import Over
from dist_classicrl.membership.view import View

for found in pkgutil.walk_packages(dist_classicrl.__path__, "dist_classicrl."):
    if found.name.split(".")[1] in ("comm", "membership", "engines", "mpi_tools"):
        importlib.import_module(found.name)
CLASSES = sorted(messages._kinds, key=lambda cls: messages._kinds[cls])


class Color(IntEnum):
    RED = 3
    BLUE = -7


@dataclass(frozen=True)
class Map:
    """What tables have: arrays, one of which may be missing."""

    entries: np.ndarray
    weight: np.ndarray
    replays: np.ndarray | None


class Sums(NamedTuple):
    """What is no dataclass, and yet has names."""

    total: float
    maps: Map
    count: int


@dataclass(frozen=True)
class Everything:
    """A field of each type that may travel, in an order of no meaning."""

    real: float
    made: dict[int, int]
    whole: int
    flag: bool
    ranks: tuple[int, ...]
    word: str
    map: Map
    key: tuple[int, int]
    reals: tuple[float, ...]
    other_map: Map | None
    color: Color
    arrays: tuple[np.ndarray, ...]
    told: dict[str, Any]
    events: list[dict[str, Any]]
    other_flag: bool
    state: dict[str, np.ndarray]
    array: np.ndarray
    maybe_whole: int | None
    maybe_real: float | None
    maybe_told: dict[str, Any] | None
    view: View
    sums: Sums
    maybe_sums: Sums | None
    all_sums: tuple[Sums, ...]


WHOLE = st.integers(-(2**63), 2**63 - 1)
REAL = st.floats()
TEXT = st.text() | st.just("caf\udce9")  # as Python has the names of files that are not UTF-8
JSON = st.recursive(
    st.none() | st.booleans() | WHOLE | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)
TYPES = ("int64", "float64", "int32", "uint32", "float32", "uint8")


@st.composite
def arrays(draw, types=TYPES, shape=None):
    shape = (draw(st.integers(0, 5)),) if shape is None else draw(shape)
    dtype = np.dtype(draw(st.sampled_from(types)))
    if dtype.kind == "b":
        size = math.prod(shape)
        return np.array(draw(st.lists(st.booleans(), min_size=size, max_size=size)), bool).reshape(shape)
    size = math.prod(shape) * dtype.itemsize
    return np.frombuffer(draw(st.binary(min_size=size, max_size=size)), dtype).reshape(shape)


STRATEGIES = {
    int: WHOLE,
    bool: st.booleans(),
    float: REAL,
    str: TEXT,
    np.ndarray: arrays(),
    tuple[int, ...]: st.lists(WHOLE, max_size=4).map(tuple),
    tuple[int, int]: st.tuples(WHOLE, WHOLE),
    tuple[float, ...]: st.lists(REAL, max_size=4).map(tuple),
    tuple[np.ndarray, ...]: st.lists(arrays(), max_size=3).map(tuple),
    dict[int, int]: st.dictionaries(WHOLE, WHOLE, max_size=4),
    dict[str, Any]: st.dictionaries(st.text(), JSON, max_size=3),
    dict[str, np.ndarray]: st.dictionaries(
        st.text(), arrays((*TYPES, "bool"), st.lists(st.integers(0, 3), max_size=3).map(tuple)), max_size=3
    ),
    list[dict[str, Any]]: st.lists(st.dictionaries(st.text(), JSON, max_size=2), max_size=2),
}


def values_of(kind):
    """Return a strategy for what a field of this type may be."""
    if kind in STRATEGIES:
        return STRATEGIES[kind]
    if isinstance(kind, type) and issubclass(kind, IntEnum):
        return st.sampled_from(kind)
    if isinstance(kind, types.UnionType):
        return st.none() | values_of(typing.get_args(kind)[0])
    if typing.get_origin(kind) is tuple:
        return st.lists(values_of(typing.get_args(kind)[0]), max_size=3).map(tuple)
    return st.builds(kind, **{name: values_of(hint) for name, hint in typing.get_type_hints(kind).items()})


def same(one, other):
    """Tell whether values are alike to the bit, and of the same types."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    if dataclasses.is_dataclass(one):
        return same(vars(one), vars(other))
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return one == other or one != one and other != other


@pytest.mark.slow
@given(values_of(Everything))
def test_fields_of_every_type_come_out_as_they_went_in(record):
    parts = envelope.decode(envelope.encode(Kind.PUSH, *to_parts(record)))[1]
    assert [part.dtype for part in parts[:2]] == [np.int64, np.float64]  # all numbers are in two parts
    assert same(from_parts(Everything, parts), record)


@pytest.mark.slow
@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
@settings(max_examples=25)
@given(data=st.data())
def test_each_message_comes_out_as_it_went_in_with_and_without_a_stamp(cls, data):
    message, stamp = data.draw(values_of(cls)), data.draw(WHOLE)
    encoded = messages.encode(message)
    assert envelope.decode(encoded)[0] is messages._kinds[cls]
    assert same(messages.decode(encoded), message)
    assert same(messages.decode_stamped(messages.encode(message, stamp)), (stamp, message))


def test_a_message_shares_no_memory_with_what_it_was_made_of_but_decoding_copies_no_array():
    weight = np.arange(5.0)
    message = envelope.encode(Kind.PUSH, *to_parts(Map(np.arange(5), weight, None)))
    weight[:] = 0.0
    got = from_parts(Map, envelope.decode(message)[1])
    assert got.weight.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0] and got.replays is None
    assert np.shares_memory(got.weight, message) and np.shares_memory(got.entries, message)


def test_arrays_that_are_not_in_one_piece_travel_in_order():
    table = np.arange(12).reshape(3, 4)
    for array in (table[:, 1], table.T, table[::-1, ::2], np.asfortranarray(table)):
        (got,) = envelope.decode(envelope.encode(Kind.PUSH, array))[1]
        assert got.tolist() == array.ravel().tolist()


# Damage


def read(encoded, cls):
    """Decode bytes in each way in which they may be taken. Nothing but `ProtocolError` is raised."""
    refused = 0
    ways = (
        messages.decode,
        messages.decode_stamped,
        lambda encoded: from_parts(cls, envelope.decode(encoded)[1]),
    )
    for way in ways:
        try:
            way(encoded)
        except ProtocolError:
            refused += 1
    return refused


@pytest.mark.slow
@pytest.mark.parametrize("cls", [*CLASSES, Everything], ids=lambda cls: cls.__name__)
@settings(max_examples=40)
@given(data=st.data())
def test_damaged_bytes_are_a_message_or_a_protocol_error(cls, data):
    kind = messages._kinds.get(cls, Kind.PUSH)
    encoded = envelope.encode(kind, *to_parts(data.draw(values_of(cls))))
    for _ in range(data.draw(st.integers(0, 3))):
        place = data.draw(st.integers(0, encoded.size - 1))
        encoded[place] ^= 1 << data.draw(st.integers(0, 7))
    read(encoded, cls)
    size = data.draw(st.integers(0, encoded.size))
    assert size == encoded.size or read(encoded[:size].copy(), cls) == 3


@pytest.mark.slow
@pytest.mark.parametrize("cls", [*CLASSES, Everything], ids=lambda cls: cls.__name__)
@settings(max_examples=40)
@given(st.data())
def test_parts_that_are_foreign_or_too_many_or_too_few_are_a_message_or_a_protocol_error(cls, data):
    kind = messages._kinds.get(cls, Kind.PUSH)
    parts = [part.copy() for part in to_parts(data.draw(values_of(cls)))]
    match data.draw(st.sampled_from(["drop", "add", "numbers", "foreign", "swap"])):
        case "drop":
            del parts[data.draw(st.integers(0, len(parts))) :]
        case "add":
            parts.insert(data.draw(st.integers(0, len(parts))), data.draw(arrays()))
        case "numbers" if parts and parts[0].dtype == np.int64 and parts[0].size:
            place = data.draw(st.integers(0, parts[0].size - 1))
            parts[0][place] = data.draw(st.integers(-3, 9) | WHOLE)
        case "foreign":
            parts = data.draw(st.lists(arrays(), max_size=6))
        case "swap":
            parts = data.draw(st.permutations(parts))
    read(envelope.encode(kind, *parts), cls)


PROMISE = Promise(4, Base(1, 2), View(1, 0, 0, (0, 1, 2)), [], (2,))


def test_what_is_wrong_is_said():
    ints, *texts = to_parts(PROMISE)
    one = np.array([1])
    for parts, match in (
        ([], "damaged message of kind Promise came: its fields cannot be read"),
        ([ints, *texts, one], "Promise came: it has more than belongs to it"),
        ([np.append(ints, 7), *texts], "it has more than belongs to it"),
        ([ints[:-1], *texts], "its fields cannot be read .*0 where 1 belong"),
        ([ints.astype(float), *texts], "float64 where int64 belongs"),
    ):
        with pytest.raises(ProtocolError, match=match):
            messages.decode(envelope.encode(Kind.PROMISE, *parts))


@pytest.mark.parametrize("count", [-1, 4, 2**62])
def test_more_or_less_is_claimed_than_there_is(count):
    ints, *texts = to_parts(PROMISE)
    ints[ints.tolist().index(len(PROMISE.view.members))] = count
    with pytest.raises(ProtocolError, match="kind Promise came"):
        messages.decode(envelope.encode(Kind.PROMISE, ints, *texts))


def test_a_message_without_a_stamp_has_none():
    with pytest.raises(ProtocolError, match="kind OVER came: it has no stamp"):
        messages.decode_stamped(messages.encode(Over()))
    with pytest.raises(ProtocolError, match="it has no stamp"):
        messages.decode_stamped(messages.encode(PROMISE))
    with pytest.raises(ProtocolError):
        messages.decode(messages.encode(Prepare(1, ()), 5))


# What is refused where it is written


def test_a_kind_belongs_to_one_class():
    with pytest.raises(TypeError, match="PREPARE is Prepare already, and cannot be Map"):
        messages.message(Kind.PREPARE)(Map)


@dataclass(frozen=True)
class Strange:
    when: complex


@dataclass(frozen=True)
class Checked:
    number: int

    def __post_init__(self):
        pass


@dataclass(frozen=True, slots=True)
class Slotted:
    number: int


@pytest.mark.parametrize(
    "record, match",
    [(Strange(1j), "complex.*cannot travel"), (Checked(1), "a __post_init__"), (Slotted(1), "__slots__")],
)
def test_what_cannot_travel_is_refused_by_its_name(record, match):
    with pytest.raises(TypeError, match=match):
        to_parts(record)
    with pytest.raises(TypeError, match=match):
        from_parts(type(record), [])


def test_a_number_that_is_too_large_is_refused():
    with pytest.raises(OverflowError):
        messages.encode(Prepare(2**63, ()))
