"""Finite spaces as plain data: a model file keeps them, so that values are numbered as they were learned."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium import spaces

from dist_classicrl.checks import is_whole
from dist_classicrl.environments.stepped.masks import MASK_KEY
from dist_classicrl.environments.stepped.spaces import MAX_INDEX_BITS, SpaceIndex

_MOST_DEEP = 64


def to_data(observations: SpaceIndex | None, actions: SpaceIndex | None) -> dict[str, Any] | None:
    """Return the spaces as plain data for JSON.

    None: values are the integers themselves, or the keys of a Dict are something that JSON does not have.
    """
    if observations is None or actions is None:
        return None
    try:
        return {"observation": _to_data(observations.space), "action": _to_data(actions.space)}
    except TypeError:
        return None


def from_data(data: Any) -> tuple[SpaceIndex | None, SpaceIndex | None]:
    """Return the observations and the actions that `to_data` described.

    ValueError where `data`, which was read from a file, is nothing that it writes.
    """
    if data is None:
        return None, None
    try:
        observations = SpaceIndex(_from_data(data["observation"]), "observation", MASK_KEY)
        return observations, SpaceIndex(_from_data(data["action"]), "action")
    except Exception as error:  # Gymnasium's spaces raise errors of many kinds
        raise ValueError(f"its spaces cannot be used ({error or type(error).__name__})") from error


def _to_data(space: spaces.Space) -> dict[str, Any]:
    if isinstance(space, spaces.Tuple):
        return {"kind": "Tuple", "parts": [_to_data(part) for part in space.spaces]}
    if isinstance(space, spaces.Dict):
        if not all(isinstance(key, str) or is_whole(key) for key in space.spaces):
            raise TypeError("JSON has no such keys")
        return {"kind": "Dict", "parts": [[key, _to_data(part)] for key, part in space.spaces.items()]}
    data: dict[str, Any] = {"kind": type(space).__name__, "dtype": np.dtype(space.dtype).name}
    if isinstance(space, spaces.Discrete):
        return {**data, "kind": "Discrete", "n": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.MultiDiscrete):
        return {**data, "kind": "MultiDiscrete", "n": space.nvec.tolist(), "start": space.start.tolist()}
    if isinstance(space, spaces.MultiBinary):
        return {"kind": "MultiBinary", "shape": list(space.shape)}
    assert isinstance(space, spaces.Box)  # `SpaceIndex` takes no others
    return {**data, "kind": "Box", "low": space.low.tolist(), "high": space.high.tolist()}


def _from_data(data: dict[str, Any], depth: int = 0) -> spaces.Space:
    if depth > _MOST_DEEP:
        raise ValueError(f"its spaces are nested more than {_MOST_DEEP} deep")
    kind = data["kind"]
    if kind == "Tuple":
        return spaces.Tuple([_from_data(part, depth + 1) for part in data["parts"]])
    if kind == "Dict":
        return spaces.Dict([(key, _from_data(part, depth + 1)) for key, part in data["parts"]])
    if kind == "MultiBinary":
        shape = [_whole(size) for size in data["shape"]]
        if not 0 <= math.prod(shape) <= MAX_INDEX_BITS:
            raise ValueError(f"it has a MultiBinary of shape {shape}")
        return spaces.MultiBinary(shape)
    dtype: Any = np.dtype(data["dtype"])
    if dtype.kind not in "iub":
        raise ValueError(f"its numbers are {dtype}")
    if kind == "Discrete":
        return spaces.Discrete(_whole(data["n"]), start=_whole(data["start"]), dtype=dtype)
    if kind == "MultiDiscrete":
        return spaces.MultiDiscrete(_numbers(data["n"]), dtype, start=_numbers(data["start"]))
    if kind == "Box":
        return spaces.Box(_numbers(data["low"], dtype), _numbers(data["high"], dtype), dtype=dtype)
    raise ValueError(f"it has a space of the kind {kind!r}")


def _whole(value: Any) -> int:
    if not is_whole(value):
        raise TypeError(f"{value!r} is no whole number")
    return int(value)


def _numbers(value: Any, dtype: Any = np.int64) -> np.ndarray:
    """Return nested lists of whole numbers as an array."""
    array = np.array(value)
    if array.dtype.kind not in "iub":
        raise TypeError(f"{array.dtype} are no whole numbers")
    return array.astype(dtype)
