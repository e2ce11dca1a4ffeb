"""Settings that play no part: which they are in a training, in a study and in `learn`, and why.

What changes nothing is no error, as who tries another algorithm or behavior keeps the other settings. It is
said once to whoever has set it, and a study that varies it is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from dist_classicrl._words import name_of
from dist_classicrl.engines.engine import OF_COPIES, Engine, Layout, is_built_in, written
from dist_classicrl.learning.rules import find
from dist_classicrl.rules import behaviors
from dist_classicrl.schedules.kinds import Schedule, as_schedule, without_call
from dist_classicrl.settings import COMMUNICATION, ByRule, Settings, defaults_of_rule, shown

_OUT = "leave that out"
_IN_LEARN = f"in learn(), which needs no environment and no server: {_OUT}, unless train() follows."
_IN_STUDY = f"in a study, whose runs learn alone, each in one process: {_OUT}."

#: Settings that `learn` or `evaluate` reads, those that choose actions, and what a process may do.
_OF_LEARN = {
    *("algorithm", "learning_rate", "discount_factor", "epsilon", "behavior", "initial_value", "seed"),
    *("dtype", "device", "state_size", "action_size", "max_states", "use_action_mask"),
    *("timeout", "allow_singletons", "n_envs"),
}


def idle_settings(settings: Settings, engine: Engine, layout: Layout) -> dict[str, str]:
    """Return what plays no part in a training, by name, each with why and what to write instead.

    These are settings and hyper-parameters of the rule, whether they were given or not. What has no use only
    for want of other ranks is not among them: a script is tried alone before it has some.
    """
    found = _by_choice(settings)
    if settings.replay_ratio == 0.0:
        found["buffer_size"] = (
            f"with replay_ratio=0, which replays nothing: write replay_ratio=1 as well, or {_OUT}."
        )
    if not is_built_in(engine):  # whoever wrote it knows what it does with the others
        return found
    if settings.async_updates:
        found["logical_workers"] = (
            f"with async_updates=True, where ranks play no rounds: write async_updates=False, or {_OUT}."
        )
    else:
        found["prefetch_factor"] = f"with async_updates=False, where all wait for each round: {_OUT}."
    if engine.name == "decentralized":
        found["prefetch_factor"] = f'with topology="decentralized", where nobody pushes to a server: {_OUT}.'
    if layout.is_keyed or engine.name in ("sharded", "supersteps"):
        found |= {
            name: f"where ranks have no copies of the table: {why}, so {_OUT}."
            for name, why in OF_COPIES.items()
        }
    if layout.is_compiled:
        found["n_envs"] = f"where the environment is compiled code and not stepped: {_OUT}."
    elif engine.name == "supersteps":
        found["n_envs"] = f"in supersteps, where walkers= of train says how many environments: {_OUT}."
    if settings.on_failure != "replace":
        found["max_replacements"] = (
            f'with on_failure="{settings.on_failure}", which starts no process: write on_failure="replace", '
            f"or {_OUT}."
        )
    if settings.topology == "tree" and settings.tree_group_size is None and layout.hosts == 1:
        found["topology"] = (
            "on one host, whose ranks all push to the server itself: write tree_group_size=4 for groups of "
            f"so many ranks, or {_OUT}."
        )
    return found


def idle_in_study(settings: Settings, engine: Engine, layout: Layout) -> dict[str, str]:
    """Return likewise what plays no part in the runs of a study, which never have other ranks."""
    found = idle_settings(settings, engine, layout)
    if not is_built_in(engine):
        return found
    # In the reproducible mode the length of rounds, and what decides whether there are some, play a part.
    kept = () if settings.async_updates else ("sync_frequency", "on_failure")
    about_ranks = (each.name for each in fields(Settings) if each.metadata["section"] == COMMUNICATION)
    found |= {name: _IN_STUDY for name in about_ranks if name not in kept}
    if settings.async_updates and layout.is_compiled:
        found["batch_size"] = f"where nothing is pushed, and no environment is stepped: {_OUT}."
    if layout.is_compiled and not layout.is_keyed:
        found["max_states"] = f"where states are counted: {_OUT}."
    return found


def idle_in_learn(settings: Settings, method: str) -> dict[str, str]:
    """Return likewise what plays no part in `learn` by this method."""
    found = _by_choice(settings)
    if method == "sweeps":
        found["learning_rate"] = (
            f'with method="sweeps", which solves for all values: write method="incremental", or {_OUT}.'
        )
    others = (each.name for each in fields(Settings) if each.name not in _OF_LEARN)
    return found | dict.fromkeys(others, _IN_LEARN)


def told(settings: Settings, idle: Mapping[str, str]) -> str:
    """Return, in sentences, which of these were given, and so in vain; "" where none were."""
    rule, parameters = find(settings.algorithm)
    given: dict[str, list[str]] = {}  # by the reason
    for name in idle:
        if name in rule.usual and name not in Settings.__dataclass_fields__:
            value, usual = getattr(parameters, name), rule.usual[name]
        else:
            value, usual = _as_given(getattr(settings, name)), _usual(settings, name)
        if value != usual:
            text = shown(value) if isinstance(value, Schedule) else written(value)
            given.setdefault(idle[name], []).append(f"{name}={text}")
    return " ".join(
        f"{', '.join(those)} {'play' if len(those) > 1 else 'plays'} no part {why}"
        for why, those in given.items()
    )


def _by_choice(settings: Settings) -> dict[str, str]:
    """Return what plays no part with the rule, or with the behavior."""
    rule, parameters = find(settings.algorithm)
    found = {
        name: f"with the algorithm {rule.name}, which {why}: {_OUT}, or take another."
        for name, why in rule.playing_no_part(parameters).items()
    }
    behavior = name_of(settings.behavior)
    if (why := behaviors.WITHOUT_EPSILON.get(behavior)) is not None:
        given = "an array as behavior" if behavior == behaviors.POLICY else f'behavior="{behavior}"'
        found["epsilon"] = f'with {given}, which {why}: write behavior="epsilon_greedy", or {_OUT}.'
    return found


def _usual(settings: Settings, name: str) -> Any:
    """Return the default of a setting, as the rule has it."""
    usual = getattr(Settings, name)
    if not isinstance(usual, ByRule):
        return usual
    return as_schedule(name, defaults_of_rule({name: usual, "algorithm": settings.algorithm})[name])


def _as_given(value: Any) -> Any:
    return without_call(value) if isinstance(value, Schedule) else value
