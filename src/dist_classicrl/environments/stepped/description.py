"""What an environment is, as plain data, so that two processes can tell whether they have the same one."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import gymnasium
import numpy as np


def describe_env(env: gymnasium.Env | gymnasium.vector.VectorEnv) -> dict[str, Any]:
    """Return the environment's id, arguments and layers of wrappers as JSON-able data.

    Equal environments give equal data in every process: objects among the arguments appear by the name of
    their class, and nothing depends on a memory address. Attributes that were set after construction are not
    seen.
    """
    layers = []
    layer = env
    while True:
        layers.append({"class": _name(type(layer)), "arguments": plain(getattr(layer, "_saved_kwargs", {}))})
        if not isinstance(layer, (gymnasium.Wrapper, gymnasium.vector.VectorWrapper)):
            break
        layer = layer.env
    spec = layer.spec
    data: dict[str, Any] = {"id": spec.id if spec else None, "arguments": plain(spec.kwargs if spec else {})}
    data["layers"] = layers
    if isinstance(layer, gymnasium.vector.SyncVectorEnv):
        data["single"] = describe_env(layer.envs[0])
    return data


def time_limit(description: dict[str, Any]) -> int | None:
    """Return the least time limit of an environment that `describe_env` described, by its wrappers.

    Of a batch, that of the environments in it. None where there is none, or where it is not known.
    """
    name = _name(gymnasium.wrappers.TimeLimit)
    layers = description.get("single", description)["layers"]
    limits = [each["arguments"].get("max_episode_steps") for each in layers if each["class"] == name]
    return min((limit for limit in limits if isinstance(limit, int)), default=None)


def plain(value: Any) -> Any:
    """Return `value` as JSON-able data; what JSON doesn't know appears by name."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, dict):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return plain(value.tolist())
    return _name(value if hasattr(value, "__qualname__") else type(value))


def digest(data: dict[str, Any]) -> str:
    """Return the SHA-256 of JSON-able data, as hex digits."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def _name(thing: Any) -> str:
    return f"{thing.__module__}.{thing.__qualname__}"
