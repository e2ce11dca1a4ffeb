"""A policy as a Python program of its own, which needs neither this library nor any other."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from gymnasium import spaces

from dist_classicrl.environments.stepped.spaces import SpaceIndex
from dist_classicrl.model.policy import Policy, plain_value

_PLAIN_ENTRIES = 10_000  # up to this many numbers are written as text, which can be read and edited
_CHUNK = 1 << 14
_LINE = 108

_HEAD = '''\
"""{title}

    from {module} import act
    action = act(observation)

`act` gives the greedy action: the first of the best ones that are legal. Plain Python, no library needed.
"""

{imports}
'''

_UNPACK = """

def _unpacked(code, text):
    numbers = array.array(code, zlib.decompress(base64.b64decode(text)))
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
"""

_KNOWN = "what is known of the state"
_OBSERVED = f'what the observation holds as "action_mask" if it is a dict, or else {_KNOWN}'
_LOOK = """\
    if action_mask is None and isinstance(observation, dict):
        action_mask = observation.get("action_mask")
"""

_BODY = '''\
def act(observation, action_mask=None):
    """Return the action for an observation.

    `action_mask` has an entry for each action, true where the action is legal. By default it is
    {default}.
    """
    first = state_of(observation) * N_ACTIONS
{look}    if action_mask is None:
        legal = _LEGAL[first : first + N_ACTIONS]
        action_mask = legal if any(legal) else None
    elif len(action_mask) != N_ACTIONS or not any(action_mask):
        raise ValueError("action_mask must have %d entries and allow an action" % N_ACTIONS)
    for action in _BEST_FIRST[first : first + N_ACTIONS]:
        if action_mask is None or action_mask[action]:
            return copy.deepcopy(_ACTIONS[action])


def state_of(observation):
    """Return the number of an observation, from 0 to N_STATES - 1."""
    state = 0
    for path, shape, first, sizes, weights in _PARTS:
        part = observation
        for depth, step in enumerate(path):
            entries = _ENTRIES.get(path[:depth], 0)
            if entries and not isinstance(part, dict) and len(part) != entries:
                raise ValueError("%r has %d entries in place of %d" % (part, len(part), entries))
            part = part[step]
        numbers = _numbers(part, shape)
        for number, start, size, weight in zip(numbers, first, sizes, weights):
            if not 0 <= number - start < size:
                raise ValueError("%r is no observation: %d is outside of its range" % (observation, number))
            state += (number - start) * weight
    return state


def _numbers(value, shape):
    if not shape:
        number = int(value)
        if number != value:
            raise ValueError("%r is no whole number" % (value,))
        return [number]
    if len(value) != shape[0]:
        raise ValueError("%r has %d entries in place of %d" % (value, len(value), shape[0]))
    return [number for part in value for number in _numbers(part, shape[1:])]
'''


def program(policy: Policy, title: str, module: str) -> Iterator[str]:
    """Yield the text of the program, piece by piece.

    Its docstring begins with the title, and its example calls it by the name of the module.
    """
    entries = policy.n_states * policy.n_actions
    write = _plain if entries <= _PLAIN_ENTRIES else _packed
    modules = ["copy"] if write is _plain else ["array", "base64", "copy", "sys", "zlib"]
    yield _HEAD.format(
        title=title.replace("\\", "/").replace('"', "'"),
        module=module,
        imports="\n".join(f"import {each}" for each in modules),
    )
    if write is _packed:
        yield _UNPACK + "\n"
    yield f"\nN_STATES = {policy.n_states}\nN_ACTIONS = {policy.n_actions}\n\n"
    yield f"# What the environment takes for each action.\n_ACTIONS = {_actions(policy)}\n"
    if policy.labels.actions is not None:
        yield f"# They are called {', '.join(policy.action_names)}.\n"
    yield "\n# Parts of an observation: where they lie, shape, first values, numbers of values, weights.\n"
    parts = _parts(policy)
    space = policy.observations.space if isinstance(policy.observations, SpaceIndex) else None
    yield "_PARTS = [\n" + "".join(f"    {part},\n" for part in parts) + "]\n"
    yield f"# How many entries the tuples on these ways have.\n_ENTRIES = {_entries(space)}\n\n"
    yield "# The actions of each state, the best first.\n_BEST_FIRST = "
    yield from write(policy, _ranking)
    is_told = policy.legal is None and policy.has_told_masks
    if is_told:
        yield "\n# 1 for each action that was tried in a state: masks were told only as states were met."
    else:
        yield "\n# 1 for each legal action of each state; nothing where all are."
    yield "\n_LEGAL = "
    if policy.legal is None and not is_told:
        yield "()\n"
    else:
        yield from write(policy, _legal)
    default, look = (_OBSERVED, _LOOK) if policy.obeys_masks else (_KNOWN, "")
    yield "\n\n" + _BODY.format(default=default, look=look)


def _actions(policy: Policy) -> str:
    actions = policy.env_actions()
    plain = actions == list(range(policy.n_actions))
    return f"range({policy.n_actions})" if plain else "[\n" + "".join(f"    {a!r},\n" for a in actions) + "]"


def _parts(policy: Policy) -> list[tuple[Any, ...]]:
    if policy.observations is None:
        return [((), (), [0], [policy.n_states], [1])]
    assert isinstance(policy.observations, SpaceIndex)  # keys are not written
    # The keys of a Dict may be NumPy's, which the program does not know.
    return [(plain_value(path), *others) for path, *others in policy.observations.parts()]


def _entries(space: Any, path: tuple[Any, ...] = ()) -> dict[tuple[Any, ...], int]:
    """Return the lengths of the tuples in a space's values, by the path to each."""
    entries: dict[tuple[Any, ...], int] = {}
    parts: dict[Any, Any] = {}
    if isinstance(space, spaces.Tuple):
        entries, parts = {path: len(space.spaces)}, dict(enumerate(space.spaces))
    elif isinstance(space, spaces.Dict):
        parts = space.spaces
    for step, part in parts.items():
        entries |= _entries(part, (*path, plain_value(step)))
    return entries


def _ranking(policy: Policy, first: int, last: int) -> np.ndarray:
    # A stable order leaves actions that are equally good in their own order, as predict takes them.
    return np.argsort(-policy.q[first:last], axis=1, kind="stable")


def _legal(policy: Policy, first: int, last: int) -> np.ndarray:
    return policy.allowed(first, last).astype(np.int64)


_Rows = Callable[[Policy, int, int], np.ndarray]


def _plain(policy: Policy, rows: _Rows) -> Iterator[str]:
    yield "(\n"
    for state, row in enumerate(rows(policy, 0, policy.n_states).tolist()):
        told = f" {policy.state_text(state)}" if policy.has_observations else ""
        yield f"    {', '.join(map(str, row))},  # {state}{told}\n"
    yield ")\n"


def _packed(policy: Policy, rows: _Rows) -> Iterator[str]:
    code, kind = _type(policy.n_actions)
    packer = zlib.compressobj(9)
    yield f'_unpacked("{code}", """\n'
    rest = b""
    for first in range(0, policy.n_states, _CHUNK):
        rest += packer.compress(rows(policy, first, first + _CHUNK).astype(kind).tobytes())
        whole = len(rest) - len(rest) % (_LINE // 4 * 3)
        yield from _lines(rest[:whole])
        rest = rest[whole:]
    yield from _lines(rest + packer.flush())
    yield '""")\n'


def _lines(data: bytes) -> Iterator[str]:
    text = base64.b64encode(data).decode()
    for first in range(0, len(text), _LINE):
        yield text[first : first + _LINE] + "\n"


def _type(n_actions: int) -> tuple[str, str]:
    """Return the smallest type that holds the actions, as `array` and as NumPy call it."""
    if n_actions <= 1 << 8:
        return "B", "u1"
    return ("H", "<u2") if n_actions <= 1 << 16 else ("I", "<u4")
