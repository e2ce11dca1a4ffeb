"""Models of Gymnasium's environments: which instances are known, and how they are read.

An instance is read, not its id: its transitions, its start distribution and its time limit are what it will
do, even where they have been edited. What is not known to be the same process is not compiled.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

import numpy as np

from dist_classicrl._words import error_told
from dist_classicrl.environments.blackjack import rules
from dist_classicrl.environments.making.conversion import fields_of_dict
from dist_classicrl.errors import EnvError

#: Attributes that, set on one instance, replace what its class does.
_BEHAVIOR = ("step", "reset", "action_mask", "encode", "decode")


def fields_of(env: Any, use_action_mask: bool, make_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the model of an environment; see `TabularMDP.from_gymnasium`."""
    import gymnasium

    if isinstance(env, (str, gymnasium.envs.registration.EnvSpec)):
        with closing(_made(env, make_kwargs)) as made:
            return fields_of_instance(made, use_action_mask)
    if callable(env) and not isinstance(env, gymnasium.Env):
        name = getattr(env, "__name__", repr(env))
        made = f"{name}()" if name.isidentifier() else "what it returns"
        raise EnvError(
            f"{name} is a class or function that makes environments, and an id or an instance is needed. "
            f"Give {made} in place of it."
        )
    if make_kwargs:
        raise EnvError(
            f"{sorted(make_kwargs)} cannot be set on an environment that is made already; give its id instead"
        )
    return fields_of_instance(env, use_action_mask)


def _made(env: Any, make_kwargs: Mapping[str, Any]) -> Any:
    import gymnasium

    try:
        return gymnasium.make(env, **make_kwargs)
    except Exception as error:  # of Gymnasium, or of the environment's own class
        options = "".join(f", {name}={value!r}" for name, value in make_kwargs.items())
        told = error_told(error).rstrip(".")
        raise EnvError(
            f"gymnasium.make({env!r}{options}) raised {told}. Correct the id or its options."
        ) from error


def fields_of_instance(env: Any, use_action_mask: bool) -> dict[str, Any]:
    """Return the fields of the model of a known instance; EnvError, with the reason, for anything else."""
    from gymnasium.envs.toy_text.blackjack import BlackjackEnv
    from gymnasium.envs.toy_text.cliffwalking import CliffWalkingEnv
    from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv
    from gymnasium.envs.toy_text.taxi import TaxiEnv

    base, limits = unwrap_unchanged(env)
    if "model_fields" in vars(type(base)):  # a ProblemEnv, and not a subclass, which may do something else
        return {**base.model_fields(), "max_episode_steps": min(limits, default=None)}
    if type(base) is BlackjackEnv:
        return {
            **_fields_of_blackjack(env, base),
            "max_episode_steps": min(limits, default=None),
            "name": name_of(base),
        }
    mask = None
    grid_shape: Any = None
    if type(base) is FrozenLakeEnv:
        grid_shape = np.shape(base.desc)
    elif type(base) is CliffWalkingEnv:
        grid_shape = base.shape
    elif type(base) is TaxiEnv:
        # Older versions of Gymnasium have no such option.
        if getattr(base, "fickle_passenger", False):
            raise EnvError(
                "a Taxi with fickle_passenger=True has no model over its observations: whether the passenger "
                "will still change its mind is hidden; it can only be stepped"
            )
        if use_action_mask:
            mask = np.array([base.action_mask(s) for s in range(len(base.P))], dtype=bool)
    else:
        raise EnvError(
            f"{type(base).__module__}.{type(base).__qualname__} has no known model; those that have are "
            "Gymnasium's own FrozenLakeEnv, TaxiEnv, CliffWalkingEnv and BlackjackEnv, subclasses excepted, "
            f"and the problems of dist_classicrl.environments.registry(){_own_tables(base)}"
        )
    _require_plain_spaces(env, base)
    fields = fields_of_dict(base.P, int(base.action_space.n), mask)
    if fields["action_mask"] is not mask:
        raise EnvError(f"P of this {type(base).__name__} has pairs without outcomes, which cannot be stepped")
    return {
        **fields,
        "start_prob": base.initial_state_distrib,
        "max_episode_steps": min(limits, default=None),
        "name": name_of(base),
        "grid_shape": grid_shape,
    }


def name_of(base: Any) -> str:
    """Return the id of an environment, or else the name of its class."""
    return base.spec.id if base.spec is not None else type(base).__name__


def _fields_of_blackjack(env: Any, base: Any) -> dict[str, Any]:
    natural, sab = rules.played_by(env, base)
    if natural or sab:
        raise EnvError(
            f"a Blackjack with {'sab' if sab else 'natural'} has no model over its observations: whether "
            "21 came with the first two cards is hidden. It is learned in compiled code all the same. "
            f"registry()['dist_classicrl/Blackjack-v0'].make(natural={natural}, sab={sab}), from "
            "dist_classicrl.environments, has a model whose states tell it"
        )
    return rules.fields_of(natural, sab)


def _own_tables(base: Any) -> str:
    """Return what to do with an environment that has tables in the form of Gymnasium's; "" for others."""
    if not isinstance(getattr(base, "P", None), Mapping):
        return ""
    start = "env.unwrapped.initial_state_distrib" if hasattr(base, "initial_state_distrib") else "..."
    return (
        ". It has a P of its own: if that is what its step does, write "
        f"TabularMDP.from_dict(env.unwrapped.P, start_prob={start})"
    )


def unwrap_unchanged(env: Any) -> tuple[Any, list[int]]:
    """Return what is inside wrappers that are known to change nothing, and the time limits among them."""
    import gymnasium
    from gymnasium import wrappers

    limits: list[int] = []
    while True:
        replaced = sorted(set(_BEHAVIOR) & set(vars(env)) if hasattr(env, "__dict__") else ())
        if replaced:
            raise EnvError(f"this {type(env).__name__} has its own {replaced[0]}, which is not its class's")
        if not isinstance(env, gymnasium.Wrapper):
            return env, limits
        if type(env) is wrappers.TimeLimit:
            limits.append(int(env._max_episode_steps))
        elif type(env) not in (
            wrappers.OrderEnforcing,
            wrappers.PassiveEnvChecker,
            wrappers.RecordEpisodeStatistics,
        ):
            raise EnvError(
                f"the wrapper {type(env).__qualname__} may change the process; those known to change nothing "
                "are TimeLimit, OrderEnforcing, PassiveEnvChecker and RecordEpisodeStatistics"
            )
        env = env.env


def unheard(env: Any, is_kept: bool) -> list[str]:
    """Return what stays idle of an environment in place of which compiled code runs, a clause each.

    `is_kept`: somebody has it, and may read what it keeps.
    """
    from gymnasium import Wrapper, wrappers

    found = []
    while isinstance(env, Wrapper):
        if is_kept and isinstance(env, wrappers.RecordEpisodeStatistics):
            found.append(
                "its RecordEpisodeStatistics hears of no episode, and return_queue stays empty. Read the "
                "result, such as result.mean_return, or write train(callbacks=MetricsCallback(folder))"
            )
        env = env.env
    if getattr(env, "render_mode", None) == "human":
        found.append(
            "nothing is drawn, which render_mode='human' asks for. Step it with agent.policy to see what was "
            "learned"
        )
    return found


def _require_plain_spaces(env: Any, base: Any) -> None:
    """Refuse spaces that someone replaced: states and actions must be numbered from 0, as in `P`."""
    from gymnasium.spaces import Discrete

    for name, size in (("observation_space", len(base.P)), ("action_space", len(base.P[0]))):
        for holder in (env, base):
            space = getattr(holder, name)
            if type(space) is not Discrete or space.start != 0 or space.n != size:
                raise EnvError(f"{name} is {space}, which does not match the {size} of the transitions in P")
