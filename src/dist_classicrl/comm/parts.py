"""Records, which are frozen dataclasses and NamedTuples, as parts of a message, by the types of their fields.

- ``int`` and ``bool``, ``tuple[int, ...]``, ``tuple[int, int]`` and the like, ``dict[int, int]`` and enums of
  ints share one int64 part, which also has the counts of all that has no fixed length;
- ``float`` and ``tuple[float, ...]`` share one float64 part;
- ``np.ndarray`` is a part of its own, of one dimension and of a type that `envelope` knows; on arrival it is
  a view of the message;
- ``dict[str, np.ndarray]`` is several with names, of any shape, bool as well;
- ``str``, and ``dict[str, Any]`` and ``list[...]`` as JSON, are a part each;
- another frozen dataclass, or a NamedTuple, of such fields is what its fields are;
- ``tuple[X, ...]`` is several of any of these, and any may be ``| None``.

How a class travels is found out once, when it is first used.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import chain, islice
from operator import attrgetter, itemgetter
from typing import Any, TypeVar

import numpy as np

from dist_classicrl.comm.envelope import damaged, from_text, text

T = TypeVar("T")

# What is written, and read in the same order. The first two are one part each, a third one each array.
_INTS, _REALS, _ARRAYS = range(3)
_Written = tuple[list[Any], list[Any], list[Any]]
_Read = tuple[Iterator[Any], Iterator[Any], Iterator[Any]]


def to_parts(record: object) -> list[np.ndarray]:
    """Return a record as parts of a message; TypeError if a field of its class cannot travel."""
    ints, reals, arrays = to_streams(record)
    numbers = [] if ints is None else [np.array(ints, np.int64)]
    return [*numbers, *([] if reals is None else [np.array(reals, np.float64)]), *arrays]


def to_streams(record: object) -> tuple[list[int] | None, list[float] | None, list[np.ndarray]]:
    """Return the same, with what is not an array yet: the numbers of the first parts, None where none is."""
    codec = _codec_of(type(record))
    written: _Written = [], [], []
    codec.write(record, written)
    ints, reals, arrays = written
    return ints if _INTS in codec.streams else None, reals if _REALS in codec.streams else None, arrays


def from_parts(cls: type[T], parts: Sequence[np.ndarray]) -> T:
    """Return the dataclass of type `cls` whose `to_parts` these are; ProtocolError if they are of no such."""
    codec = _codec_of(cls)
    arrays = iter(parts)
    try:
        ints = _numbers(next(arrays), np.int64) if _INTS in codec.streams else iter(())
        reals = _numbers(next(arrays), np.float64) if _REALS in codec.streams else iter(())
        record: T = codec.read((ints, reals, arrays))
    except (ValueError, TypeError, IndexError, OverflowError, StopIteration) as error:
        raise damaged(cls.__name__, f"its fields cannot be read ({error!r})") from error
    for left in (ints, reals, arrays):
        if next(left, None) is not None:
            raise damaged(cls.__name__, "it has more than belongs to it")
    return record


def _numbers(part: np.ndarray, dtype: type) -> Iterator[Any]:
    if part.dtype != dtype:
        raise TypeError(f"{part.dtype} where {dtype.__name__} belongs")
    return iter(part.tolist())


@dataclass(frozen=True)
class _Codec:
    """How values of one type travel."""

    write: Callable[[Any, _Written], None]
    read: Callable[[_Read], Any]
    streams: frozenset[int]  # which of what is written it may add to


def _codec_of(kind: Any) -> _Codec:
    """Return how values of a type travel."""
    codec = _codecs.get(kind)
    if codec is None:
        codec = _codecs[kind] = _new_codec(kind)
    return codec


def _new_codec(kind: Any) -> _Codec:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union) and len(arguments) == 2 and arguments[1] is type(None):
        return _optional(_codec_of(arguments[0]))
    if origin is tuple and arguments[1:] == (...,):
        return _counted(_codec_of(arguments[0]))
    if origin is tuple and set(arguments) == {int}:
        return _ints(len(arguments))
    if origin is list:
        return _mapped(_one(_ARRAYS), text, lambda part: from_text(part, list))
    if _is_record(kind):
        return _of_record(kind)
    if isinstance(kind, type) and issubclass(kind, IntEnum):
        return _mapped(_one(_INTS), int, kind)
    raise TypeError(f"What is of type {kind} cannot travel in a message: see {__name__}.")


def _of_record(cls: type) -> _Codec:
    """Return how a record travels: all that is simple in it and in its records at once, then the others."""
    leaves = list(_leaves(cls))
    simplest = [[leaf for leaf in leaves if leaf[1] is kind] for kind in (int, bool, float, np.ndarray)]
    others = [leaf for leaf in leaves if leaf[1] not in (int, bool, float, np.ndarray)]
    paths = [path for path, _ in chain(*simplest, others)]
    n_ints, n_flags, n_reals, n_arrays = map(len, simplest)
    ints_end, reals_end = n_ints + n_flags, n_ints + n_flags + n_reals
    get_ints = _getter(paths[:ints_end])
    get_reals = _getter(paths[ints_end:reals_end])
    get_arrays = _getter(paths[reals_end : reals_end + n_arrays])
    codecs = {path: _codec_of(kind) for path, kind in leaves}
    writes = [(attrgetter(path), codecs[path].write) for path, _ in others]
    reads = [codecs[path].read for path, _ in others]
    builds = list(_builds(cls, "", list(paths)))

    def write(record: Any, written: _Written) -> None:
        ints, reals, arrays = written
        ints += get_ints(record)
        reals += get_reals(record)
        arrays += get_arrays(record)
        for get, write_other in writes:
            write_other(get(record), written)

    def read(source: _Read) -> Any:
        ints, reals, arrays = source
        values: list[Any] = [*islice(ints, n_ints), *map(bool, islice(ints, n_flags))]
        values += islice(reals, n_reals)
        values += islice(arrays, n_arrays)
        for read_other in reads:
            values.append(read_other(source))
        if len(values) < len(paths):
            raise ValueError(f"{len(values)} fields where {len(paths)} belong")
        for build in builds:
            values.append(build(values))
        return values[-1]

    return _Codec(write, read, frozenset(chain(*(codec.streams for codec in codecs.values()))))


def _is_record(kind: Any) -> bool:
    return isinstance(kind, type) and (
        dataclasses.is_dataclass(kind) or issubclass(kind, tuple) and hasattr(kind, "_fields")
    )


def _leaves(cls: type, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the path and the type of each field of a record that is no record itself."""
    if hasattr(cls, "__post_init__") or dataclasses.is_dataclass(cls) and "__slots__" in vars(cls):
        raise TypeError(f"{cls.__name__} cannot travel in a message: it has a __post_init__, or __slots__.")
    for name, kind in _fields(cls):
        if _is_record(kind):
            yield from _leaves(kind, f"{prefix}{name}.")
        else:
            yield prefix + name, kind


def _fields(cls: Any) -> list[tuple[str, Any]]:
    """Return the name and the type of each field of a record, in order."""
    hints = typing.get_type_hints(cls)
    names = cls._fields if issubclass(cls, tuple) else [field.name for field in dataclasses.fields(cls)]
    return [(name, hints[name]) for name in names]


def _builds(cls: Any, prefix: str, paths: list[str]) -> Iterator[Callable[[list[Any]], Any]]:
    """Yield what makes the records of `cls` of the values of `paths`, the innermost first.

    The value of each record is appended, and `paths` tells where.
    """
    fields = _fields(cls)
    for name, kind in fields:
        if _is_record(kind):
            yield from _builds(kind, f"{prefix}{name}.", paths)
    names = [name for name, _ in fields]
    get = _tuple_getter(itemgetter, [paths.index(prefix + name) for name in names])
    paths.append(prefix.removesuffix("."))

    def build(values: list[Any]) -> Any:
        # As the constructor of a frozen dataclass does, which takes five times as long.
        record: Any = object.__new__(cls)
        record.__dict__.update(zip(names, get(values), strict=True))
        return record

    yield (lambda values: cls._make(get(values))) if issubclass(cls, tuple) else build


def _getter(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that gives these attributes of an object."""
    return _tuple_getter(attrgetter, names)


def _tuple_getter(getter: Callable[..., Any], keys: list[Any]) -> Callable[[Any], tuple[Any, ...]]:
    """Return what gives a tuple of these attributes or items, however many."""
    if len(keys) > 1:
        return getter(*keys)
    gets = [getter(key) for key in keys]
    return lambda record: tuple([get(record) for get in gets])


def _one(stream: int) -> _Codec:
    def write(value: Any, written: _Written) -> None:
        written[stream].append(value)

    return _Codec(write, lambda source: next(source[stream]), frozenset({stream}))


def _several(stream: int) -> _Codec:
    """Return how a tuple travels: its length, then its items."""

    def write(values: Any, written: _Written) -> None:
        written[_INTS].append(len(values))
        written[stream].extend(values)

    return _Codec(
        write, lambda source: _take(next(source[_INTS]), source[stream]), frozenset({_INTS, stream})
    )


def _counted(codec: _Codec) -> _Codec:
    """Return how a tuple of what travels like this does."""
    if not codec.streams:
        raise TypeError("What has no fields cannot be counted in a message.")

    def write(values: tuple[Any, ...], written: _Written) -> None:
        written[_INTS].append(len(values))
        for value in values:
            codec.write(value, written)

    def read(source: _Read) -> tuple[Any, ...]:
        count = next(source[_INTS])
        if count < 0:
            raise ValueError(f"{count} items")
        return tuple([codec.read(source) for _ in range(count)])

    return _Codec(write, read, codec.streams | {_INTS})


def _ints(count: int) -> _Codec:
    def write(values: tuple[int, ...], written: _Written) -> None:
        written[_INTS].extend(values)

    return _Codec(write, lambda source: _take(count, source[_INTS]), frozenset({_INTS}))


def _take(count: int, source: Iterator[T]) -> tuple[T, ...]:
    taken = tuple(islice(source, count))
    if len(taken) < count:
        raise ValueError(f"{len(taken)} where {count} belong")
    return taken


def _write_pairs(pairs: dict[int, int], written: _Written) -> None:
    ints = written[_INTS]
    ints.append(len(pairs))
    for pair in pairs.items():
        ints += pair


def _read_pairs(source: _Read) -> dict[int, int]:
    ints = source[_INTS]
    return dict(_take(next(ints), zip(ints, ints, strict=True)))


def _optional(codec: _Codec) -> _Codec:
    def write(value: Any, written: _Written) -> None:
        written[_INTS].append(value is not None)
        if value is not None:
            codec.write(value, written)

    return _Codec(
        write, lambda source: codec.read(source) if next(source[_INTS]) else None, codec.streams | {_INTS}
    )


def _mapped(codec: _Codec, there: Callable[[Any], Any], back: Callable[[Any], Any]) -> _Codec:
    """Return how values travel that are made into others, and on arrival made from those."""
    return _Codec(
        lambda value, written: codec.write(there(value), written),
        lambda source: back(codec.read(source)),
        codec.streams,
    )


@dataclass(frozen=True)
class _NamedArrays:
    about: dict[str, Any]  # by name: whether it is of type bool, then its shape
    flat: tuple[np.ndarray, ...]

    @classmethod
    def of(cls, arrays: dict[str, np.ndarray]) -> _NamedArrays:
        about = {name: [array.dtype == bool, *array.shape] for name, array in arrays.items()}
        flat = (array.view(np.uint8) if array.dtype == bool else array for array in arrays.values())
        return cls(about, tuple(flat))

    def arrays(self) -> dict[str, np.ndarray]:
        return {
            name: (part.view(bool) if is_bool else part).reshape(shape)
            for (name, (is_bool, *shape)), part in zip(self.about.items(), self.flat, strict=True)
        }


_codecs: dict[Any, _Codec] = {
    int: _one(_INTS),
    bool: _mapped(_one(_INTS), int, bool),
    float: _one(_REALS),
    np.ndarray: _one(_ARRAYS),
    tuple[int, ...]: _several(_INTS),
    tuple[float, ...]: _several(_REALS),
    tuple[np.ndarray, ...]: _several(_ARRAYS),
    dict[int, int]: _Codec(_write_pairs, _read_pairs, frozenset({_INTS})),
    str: _mapped(
        _one(_ARRAYS),
        lambda string: np.frombuffer(string.encode("utf-8", "surrogatepass"), np.uint8),
        lambda part: part.tobytes().decode("utf-8", "surrogatepass"),
    ),
    dict[str, Any]: _mapped(_one(_ARRAYS), text, from_text),
}
_codecs[dict[str, np.ndarray]] = _mapped(_codec_of(_NamedArrays), _NamedArrays.of, _NamedArrays.arrays)
