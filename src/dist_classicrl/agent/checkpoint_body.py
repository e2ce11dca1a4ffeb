"""What a checkpoint says of an agent besides its arrays: how it is described, and what is wrong with one."""

from __future__ import annotations

import platform
import reprlib
from collections.abc import Callable
from typing import Any

import numpy as np

from dist_classicrl._version import __version__
from dist_classicrl.checkpoint.folder import Saved
from dist_classicrl.engines.outcome import Outcome, Tally
from dist_classicrl.engines.saving import MODES
from dist_classicrl.engines.schedule import Pace
from dist_classicrl.environments.resolve import Source
from dist_classicrl.environments.stepped import space_data
from dist_classicrl.errors import CheckpointError
from dist_classicrl.model.agent_state import AgentState
from dist_classicrl.model.model_file import arrays_fault
from dist_classicrl.model.places import Place


def description(state: AgentState, source: Source, place: Place, begin: int, end: int) -> dict[str, Any]:
    """Return what a checkpoint says of a call, apart from how far it is."""
    import gymnasium
    import numba

    return {
        "run": place.run,
        "generation": place.generation,
        "seed": state.seed,
        "settings": state.settings.to_dict(),
        "environment": {"text": source.identity.text, **source.identity.to_dict()},
        "actions": source.n_actions,
        "spaces": space_data.to_data(*source.spaces),
        "call": {"begin": begin, "end": end},
        "versions": {
            "dist_classicrl": __version__,
            "python": platform.python_version(),
            "numpy": np.__version__,
            "numba": numba.__version__,
            "gymnasium": gymnasium.__version__,
        },
    }


def constant_arrays(state: AgentState) -> dict[str, np.ndarray]:
    """Return the arrays that each checkpoint of an agent holds unchanged."""
    return (
        {} if state.legal is None or state.keyed is not None else {"legal": np.ascontiguousarray(state.legal)}
    )


def checkpoint_fault(saved: Saved) -> str | None:
    """Return what in a checkpoint is not what this library writes, or None."""
    body, arrays = saved.body, saved.arrays
    missing = sorted({"q_table", "visits"} - set(arrays)) + sorted(set(_BODY) - set(body))
    if missing:
        return f"it lacks {', '.join(missing)}"
    for name, is_good in _BODY.items():
        if not is_good(body[name]):
            return f"its {name} is {reprlib.repr(body[name])}"
    steps, call, stream = body["steps"], body["call"], body["stream"]
    if not call["begin"] <= steps <= call["end"]:
        return f"it has {steps} steps, and its call goes from {call['begin']} to {call['end']}"
    if stream is not None and stream["start"] + stream["used"] != steps:
        return f"it has {steps} steps, and its stream is {stream!r}"
    pace = body.get("pace")  # older ones have none
    if pace is not None and not Pace.is_described_by(pace):
        return f"its pace is {reprlib.repr(pace)}"
    if not saved.name.endswith(f"-{body['run']}"):
        return f"its run is {body['run']!r}"
    q_table, exact = arrays["q_table"], arrays.get("exact")
    if q_table.dtype.name != body["settings"].get("dtype") or q_table.dtype.kind != "f":
        return f"its table is {q_table.dtype.name}, its settings say {body['settings'].get('dtype')!r}"
    if exact is not None and (exact.dtype != np.float64 or not np.isfinite(exact).all()):
        return f"its exact values are {exact.dtype.name} or not finite"
    return arrays_fault(arrays)


def refused(saved: Saved, fault: str, instead: str) -> CheckpointError:
    """Return the error of a checkpoint that has a fault, though its sums fit, and what to do `instead`.

    Where another version of this package wrote it, that one may have none to find.
    """
    writer, first = saved.body.get("package_version"), ""
    if writer != __version__:
        first = f"go on with dist_classicrl {writer!a}, which wrote it (this is {__version__}), or "
    advice = f"{first}{instead}"
    return CheckpointError(f"{saved.url} is no usable checkpoint: {fault}. {advice[:1].upper()}{advice[1:]}.")


def _is_whole(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _has_whole(value: Any, *names: str) -> bool:
    return isinstance(value, dict) and all(_is_whole(value.get(name)) for name in names)


def _is_finished_call(value: Any) -> bool:
    return _has_whole(value, "begin", "end") and Outcome.is_described_by(value.get("result"))


# What the manifest says, apart from the arrays, and how to tell that it may be that.
_BODY: dict[str, Callable[[Any], bool]] = {
    "run": lambda value: isinstance(value, str),
    "steps": _is_whole,
    "seed": _is_whole,
    "settings": lambda value: isinstance(value, dict),
    "environment": lambda value: isinstance(value, dict) and isinstance(value.get("text"), str),
    "call": lambda value: _has_whole(value, "begin", "end"),
    "mode": lambda value: value in MODES,
    "stream": lambda value: value is None or _has_whole(value, "start", "used"),
    "tally": Tally.is_described_by,
    "finished": lambda value: isinstance(value, list) and all(map(_is_finished_call, value)),
}
