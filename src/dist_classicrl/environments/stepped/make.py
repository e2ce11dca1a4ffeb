"""Whatever Gymnasium makes, stepped as a batch of environments with integer states and actions.

`make_stepped` takes an id, a factory, an environment or a vector environment and returns a `SteppedEnv`,
which hides how the batch is stepped, when an ended environment starts again, how observations are nested, and
where action masks come from.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv

from dist_classicrl.environments.function_model import FunctionMDP
from dist_classicrl.environments.model import TabularMDP
from dist_classicrl.environments.simulate import CompiledSimulator
from dist_classicrl.environments.stepped.base import SteppedEnv
from dist_classicrl.environments.stepped.batches import LoopedEnvs, VectorEnvs
from dist_classicrl.errors import EnvError, SettingsError

_log = logging.getLogger(__name__)


def make_stepped(
    env: str | EnvSpec | gymnasium.Env | VectorEnv | Callable[[], gymnasium.Env | VectorEnv],
    n_envs: int = 16,  # enough to hide the cost of calling compiled code
    *,
    use_action_mask: bool | None = None,
) -> SteppedEnv:
    """Return a batch of environments with integer states and actions, whose `reset` has to be called first.

    - An id (or spec): `n_envs` copies from `gymnasium.make`.
    - A factory, called without arguments: `n_envs` copies, each from one call. If it returns a VectorEnv, it
      is called once and that is used.
    - An Env: that instance itself, as a batch of one. An id or a factory makes better use of the machine.
    - A VectorEnv: that instance itself with the number of environments that it has, in any autoreset mode.

    Masks in `info["action_mask"]` and in a Dict observation's `action_mask` are followed by default, except
    in the `info` of Gymnasium's Taxi (known by its class or id): its mask is advice, Gymnasium plays every
    action, and its compiled model leaves the mask out as well unless asked. If they are not, every
    action is legal. The mask is no part of the state in any case.

    SpaceError if a space is not finite, or has more than 2**62 values; ActionMaskError if the space of the
    mask in a Dict observation doesn't fit the actions; EnvError if `env` is none of the above.
    """
    if n_envs < 1:
        raise SettingsError(f"n_envs={n_envs} is not allowed: use 1 or more, for instance 16.")
    if isinstance(env, VectorEnv):
        return VectorEnvs(env, use_action_mask, owned=[])
    if isinstance(env, gymnasium.Env):
        _log.info("Stepping the one environment given: an id or a factory would give a batch of %d.", n_envs)
        return LoopedEnvs([env], use_action_mask, owned=[])
    if isinstance(env, (str, EnvSpec)):
        return _from_factory(partial(of_gymnasium, env), n_envs, use_action_mask)
    if callable(env):
        return _from_factory(env, n_envs, use_action_mask)
    raise EnvError(
        f"{env!r} is no environment. Use a Gymnasium id such as 'FrozenLake-v1', a gymnasium.Env, a "
        f"gymnasium.vector.VectorEnv, or a function without arguments that returns one."
    )


def of_gymnasium(env: str | EnvSpec) -> gymnasium.Env:
    """Return what `gymnasium.make` does; EnvError where there is no such environment."""
    module, colon, _ = env.rpartition(":") if isinstance(env, str) else ("", "", "")
    try:
        if colon and not all(name.isidentifier() for name in module.split(".")):
            raise ImportError(f"{module!r}, before the colon, is no module.")
        return gymnasium.make(env)
    except (gymnasium.error.Error, ImportError) as error:
        from dist_classicrl.environments.named import BUILT_IN

        meant = ""
        if isinstance(env, str) and env in BUILT_IN:
            place, _, made = BUILT_IN[env][0].partition(":")
            first = made.partition(".")[0]
            meant = f" By this name the command line has {made}: from {place} import {first}."
        raise EnvError(
            f"{env!r} is no environment that Gymnasium can make: {error}{meant} Write an id such as "
            "'FrozenLake-v1', or give the environment itself, or a function that makes it."
        ) from error


def _from_factory(
    factory: Callable[[], gymnasium.Env | VectorEnv], n_envs: int, use_action_mask: bool | None
) -> SteppedEnv:
    """Make the environments, and close those already made if anything fails."""
    made: list[Any] = []
    try:
        made.append(factory())
        if isinstance(made[0], VectorEnv):
            return VectorEnvs(made[0], use_action_mask, owned=made)
        while len(made) < n_envs:
            made.append(factory())
        seen: set[int] = set()
        for env in made:
            if not isinstance(env, gymnasium.Env):
                raise EnvError(_not_stepped(env))
            if id(env.unwrapped) in seen:
                raise EnvError(
                    f"The factory returned the same {env} twice. It must make a new environment at every "
                    f"call, or give the instance itself instead of a factory."
                )
            seen.add(id(env.unwrapped))
        return LoopedEnvs(made, use_action_mask, owned=made)
    except BaseException:
        for env in made:
            if hasattr(env, "close"):
                env.close()
        raise


def _not_stepped(env: Any) -> str:
    """Return what to say of what a factory returned, and is not to be stepped."""
    is_known = isinstance(env, (str, EnvSpec, TabularMDP, FunctionMDP, CompiledSimulator))
    cure = (
        "Give that itself as the environment, not a function that returns it."
        if is_known
        else "It must return a gymnasium.Env or a gymnasium.vector.VectorEnv."
    )
    return f"The factory returned {env!r}. {cure}"
