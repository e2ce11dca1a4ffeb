"""What to write where a space is not finite: the advice that `SpaceError` ends with.

Each piece of advice is code that works as it stands once `env` exists; only ranges and bin counts are guesses
that the user knows better.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv

_GUESSED_RANGE = 5.0
_HUGE = 1e6  # a bound beyond this is finite in name only: bins over it would hold everything in one


def advice_for(space: spaces.Space, path: tuple[str | int, ...], role: str) -> str:
    """Return a sentence and code that turn `space`, at `path` in the whole, into a finite one.

    `role` is "observation" or "action".
    """
    if isinstance(space, spaces.Box):
        bins = 10 if space.low.size <= 4 else 3
        if not path:
            code = _box_code(space, role, bins)
            return f"Divide it into bins with gymnasium.wrappers.Discretize{role.capitalize()}:\n\n{code}"
        if role == "observation" and len(path) == 1 and isinstance(path[0], str):
            code = _dict_box_code(path[0], bins)
            return f"Divide it into bins with gymnasium.wrappers.TransformObservation:\n\n{code}"
    name = role.capitalize()
    function = "number_of" if role == "observation" else "action_of"
    meaning = (
        "returns an integer from 0 to n - 1 for an observation"
        if role == "observation"
        else "returns the environment's action for an integer from 0 to n - 1"
    )
    return (
        f"Number the values that matter yourself with gymnasium.wrappers.Transform{name}, where your "
        f"function {function} {meaning}:\n\n    from gymnasium.spaces import Discrete\n"
        f"    from gymnasium.wrappers import Transform{name}\n"
        f"    env = Transform{name}(env, {function}, Discrete(n))\n"
    )


_OF_VECTORS = ("num_envs", "vectorization_mode", "vector_kwargs", "wrappers")  # of gymnasium.make_vec alone


def advice_for_each(told: str, env: VectorEnv, is_made: bool) -> str:
    """Return what a message tells of one environment's space as it is told to who has a vector environment.

    Wrappers, which it advises, go around one environment alone: its code goes into a function that makes one.
    `is_made`: what was given is a function that returned the vector environment.
    """
    if "gymnasium.wrappers." not in told:
        return told
    text, _, code = told.rstrip(".\n").partition(":\n\n")
    makers, spec = getattr(env.unwrapped, "env_fns", None), env.unwrapped.spec
    if isinstance(makers, Sequence):
        made = "first()"
        given = "env()" if is_made else "env"
        before = f"    first = {given}.unwrapped.env_fns[0]  # what makes the first of your environments\n"
    elif spec is not None:
        own = {name: value for name, value in spec.kwargs.items() if name not in _OF_VECTORS}
        given = "".join(f", {name}={value!r}" for name, value in own.items())
        made, before = f"gymnasium.make({spec.id!r}{given})", "    import gymnasium\n"
    else:
        made, before = "YourEnv()", ""
    lines = [f"env = {made}", *(line[4:] for line in (code or "    # here").splitlines()), "return env"]
    body = "".join(f"        {line}\n" for line in lines)
    return (
        f"{text}. The wrapper goes around one environment, and not around a vector environment: give train a "
        f"function that makes one, and the agent n_envs={env.num_envs}:\n\n{before}    def make_env():\n"
        f"{body}    env = make_env  # for train(env), of an agent with n_envs={env.num_envs}\n"
    )


def _box_code(space: spaces.Box, role: str, bins: int) -> str:
    """Return code for an environment whose whole observation or action is a Box."""
    name = role.capitalize()
    if (np.abs(space.low) < _HUGE).all() and (np.abs(space.high) < _HUGE).all():
        return (
            f"    from gymnasium.wrappers import Discretize{name}\n"
            f"    env = Discretize{name}(env, bins={bins})  # bins per dimension\n"
        )
    same = "lambda o: np.clip(o, low, high)" if role == "observation" else "lambda a: a"
    return (
        f"    import numpy as np\n"
        f"    from gymnasium.spaces import Box\n    from gymnasium.wrappers import Discretize{name}, "
        f"Transform{name}\n    low = np.maximum(env.{role}_space.low, -{_GUESSED_RANGE})  # the range that "
        f"matters to you\n    high = np.minimum(env.{role}_space.high, {_GUESSED_RANGE})\n"
        f"    env = Transform{name}(env, {same}, Box(low, high, dtype=env.{role}_space.dtype))\n"
        f"    env = Discretize{name}(env, bins={bins})  # bins per dimension\n"
    )


def _dict_box_code(key: str, bins: int) -> str:
    """Return code for a Box under a key of a Dict observation."""
    return (
        f"    import numpy as np\n"
        f"    from gymnasium.spaces import Dict, MultiDiscrete\n"
        f"    from gymnasium.wrappers import TransformObservation\n"
        f"    edges = np.linspace(-1.0, 1.0, {bins + 1})[1:-1]  # the range that matters to you\n"
        f"    binned = MultiDiscrete(np.full(env.observation_space[{key!r}].shape, {bins}))\n"
        f"    finite = Dict({{**env.observation_space.spaces, {key!r}: binned}})\n"
        f"    binning = lambda o: {{**o, {key!r}: np.digitize(o[{key!r}], edges)}}\n"
        f"    env = TransformObservation(env, binning, finite)\n"
    )
