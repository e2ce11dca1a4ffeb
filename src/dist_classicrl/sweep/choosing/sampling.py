"""Settings that Optuna proposes by what came out of the runs so far.

Nothing of Optuna is kept: a study of it is made in memory of what lies in the folder, whenever settings are
asked for, so that any process can ask, and there is no database and no pickle.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dist_classicrl.checks import importing, is_whole, require_package
from dist_classicrl.sweep.choosing.search import Range

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

SAMPLERS = ("tpe",)
"""What `search` may be besides "grid" and "random": the tree-structured Parzen estimator."""


@dataclass(frozen=True)
class Told:
    """What is known of settings that were proposed before.

    `drawn` has the number of each setting, or its place in the list; `score` is None while they are under
    way, and NaN where a run failed.
    """

    drawn: Mapping[str, Any]
    score: float | None


def require_optuna(search: str) -> None:
    """Raise `MissingExtraError` where a search needs Optuna, which is not installed or cannot be imported."""
    who = f'search="{search}"'
    require_package("optuna", who, "optuna")
    with importing("optuna", who):
        import optuna  # noqa: F401


def proposed(
    vary: Mapping[str, Sequence[Any] | Range], seed: int, number: int, told: Sequence[Told]
) -> dict[str, Any]:
    """Return proposal `number`, as `Told.drawn` has it, which depends on nothing but the arguments.

    Settings that are under way count as bad ones, so that processes that ask at the same time are not all
    sent to one place ("constant liar").
    """
    import optuna

    state = optuna.trial.TrialState
    distributions = {name: _distribution(values) for name, values in vary.items()}
    own_seed = int(np.random.SeedSequence((seed, number)).generate_state(1)[0])
    with _quiet():
        sampler = optuna.samplers.TPESampler(seed=own_seed, multivariate=True, constant_liar=True)
        study = optuna.create_study(sampler=sampler, direction="maximize")
        for each in told:
            ended = each.score is not None and np.isfinite(each.score)
            kind = state.COMPLETE if ended else state.RUNNING if each.score is None else state.FAIL
            study.add_trial(
                optuna.trial.create_trial(
                    state=kind,
                    params=dict(each.drawn),
                    distributions=distributions,
                    value=each.score if ended else None,
                )
            )
        return dict(study.ask(distributions).params)


def values_of(vary: Mapping[str, Sequence[Any] | Range], drawn: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a proposal stands for."""
    return {
        name: drawn[name] if isinstance(values, Range) else values[drawn[name]]
        for name, values in vary.items()
    }


def _distribution(values: Sequence[Any] | Range) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if not isinstance(values, Range):
        return CategoricalDistribution(range(len(values)))
    if is_whole(values.low) and is_whole(values.high):
        return IntDistribution(int(values.low), int(values.high), values.log)
    return FloatDistribution(float(values.low), float(values.high), values.log)


@contextmanager
def _quiet() -> Iterator[None]:
    """Let Optuna tell neither that there is a new study nor that a part of it is experimental."""
    from optuna.exceptions import ExperimentalWarning

    logger = logging.getLogger("optuna")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            yield
    finally:
        logger.setLevel(level)
