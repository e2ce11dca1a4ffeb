"""Gymnasium's FrozenLake, Taxi and CliffWalking as models: which instances are known, and how they are read.

An instance is read, not its id: its transitions, its start distribution and its time limit are what it will
do, also where somebody has edited them. What is not known to be the same process is not compiled.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from dist_classicrl.environments.conversion import from_dict
from dist_classicrl.environments.model import TabularMDP
from dist_classicrl.errors import EnvError, RewardError

logger = logging.getLogger(__name__)

#: Attributes that, set on one instance, replace what its class does.
_BEHAVIOUR = ("step", "reset", "action_mask", "encode", "decode")


def compile_gymnasium(env: Any, *, use_action_mask: bool = False) -> TabularMDP | None:
    """Return the model that is the same process as an environment, or None where none is known to be.

    Known are instances of exactly `FrozenLakeEnv`, `TaxiEnv` and `CliffWalkingEnv` (no subclasses), under
    any number of exactly `TimeLimit`, `OrderEnforcing`, `PassiveEnvChecker` and `RecordEpisodeStatistics`.
    The model has the instance's transitions `P`, its `initial_state_distrib`, and the smallest of the time
    limits around it. A Taxi whose passenger is fickle is not known: whether the passenger will still change
    its mind is not in the observation, so the observations are no Markov process.

    Parameters
    ----------
    env : gymnasium.Env
        It is not stepped or reset, and not closed.
    use_action_mask : bool
        Give a Taxi's model the mask of `TaxiEnv.action_mask`, which forbids the actions that have no
        effect: moves into a wall, picking up where no passenger waits, dropping off where nobody can get
        out. Gymnasium itself reports the mask in `info` and plays such actions nevertheless (reward -1 or
        -10), so without this all pairs are legal. FrozenLake and CliffWalking have no mask.

    Returns
    -------
    TabularMDP or None

    Raises
    ------
    RewardError
        A known environment has a NaN or infinite reward.
    """
    try:
        return _compiled(env, use_action_mask)
    except RewardError:
        raise
    except EnvError as reason:
        logger.debug("not compiled: %s", reason)
        return None


def from_gymnasium(env: Any, *, use_action_mask: bool = False, **make_kwargs: Any) -> TabularMDP:
    """Make the model of Gymnasium's FrozenLake, Taxi or CliffWalking.

    Parameters
    ----------
    env : str, gymnasium.envs.registration.EnvSpec or gymnasium.Env
        An id or a specification, which is made with `make_kwargs`, or an instance, which is only read.
    use_action_mask : bool
        As for `compile_gymnasium`.
    **make_kwargs
        For `gymnasium.make`: the environment's own options, and `max_episode_steps`.

    Returns
    -------
    TabularMDP

    Raises
    ------
    EnvError
        No model is known to be the same process; the message says why. Such an environment can still be
        stepped.
    RewardError
        A reward is NaN or infinite.
    """
    import gymnasium

    if isinstance(env, (str, gymnasium.envs.registration.EnvSpec)):
        made = gymnasium.make(env, **make_kwargs)
        try:
            return _compiled(made, use_action_mask)
        finally:
            made.close()
    if make_kwargs:
        raise EnvError(
            f"{sorted(make_kwargs)} cannot be set on an environment that is made already; give its id instead"
        )
    return _compiled(env, use_action_mask)


def _compiled(env: Any, use_action_mask: bool) -> TabularMDP:
    """Return the model of a known instance; raise EnvError, with the reason, for anything else."""
    from gymnasium.envs.toy_text.cliffwalking import CliffWalkingEnv
    from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv
    from gymnasium.envs.toy_text.taxi import TaxiEnv

    base, limits = unwrap_unchanged(env)
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
            "Gymnasium's own FrozenLakeEnv, TaxiEnv and CliffWalkingEnv, subclasses excepted"
        )
    _require_plain_spaces(env, base)
    model = from_dict(
        base.P,
        base.initial_state_distrib,
        n_actions=int(base.action_space.n),
        action_mask=mask,
        max_episode_steps=min(limits) if limits else None,
        name=base.spec.id if base.spec is not None else type(base).__name__,
        grid_shape=grid_shape,
    )
    if model.action_mask is not None and mask is None:
        raise EnvError(f"P of this {type(base).__name__} has pairs without outcomes, which cannot be stepped")
    return model


def unwrap_unchanged(env: Any) -> tuple[Any, list[int]]:
    """Return what is inside wrappers that are known to change nothing, and the time limits among them."""
    import gymnasium
    from gymnasium import wrappers

    limits: list[int] = []
    while True:
        replaced = sorted(set(_BEHAVIOUR) & set(vars(env)) if hasattr(env, "__dict__") else ())
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


def _require_plain_spaces(env: Any, base: Any) -> None:
    """Refuse spaces that someone replaced: states and actions must be numbered from 0, as in `P`."""
    from gymnasium.spaces import Discrete

    sizes = (("observation_space", len(base.P)), ("action_space", len(base.P[0])))
    for name, size in sizes:
        for holder in (env, base):
            space = getattr(holder, name)
            if type(space) is not Discrete or space.start != 0 or space.n != size:
                raise EnvError(f"{name} is {space}, which does not match the {size} of the transitions in P")
