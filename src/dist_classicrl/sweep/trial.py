"""One run of a study: a training of one process by itself, and what is told of it."""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from collections.abc import Callable, Container, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from dist_classicrl._files import read_regular, whole_file
from dist_classicrl._words import error_told
from dist_classicrl.agent.agent import DistAsyncQLearning, state_of
from dist_classicrl.callbacks.base import BaseCallback
from dist_classicrl.checkpoint.plan import SIGNALS
from dist_classicrl.environments.finite_model import FiniteModel
from dist_classicrl.environments.resolve import Source, resolve
from dist_classicrl.environments.simulate import CompiledSimulator
from dist_classicrl.errors import DistClassicRLError
from dist_classicrl.evaluation.exact import greedy_value, optimal_value
from dist_classicrl.process.signals import is_meant
from dist_classicrl.settings import Settings, read_back
from dist_classicrl.sweep.hosts.compiling import kind_of
from dist_classicrl.sweep.plan import Plan, Trial, checked_settings

# A run that is longer than a minute or so, where it can go on to the same bits, keeps checkpoints.
LONG_STEPS = 3e9
_CHECKPOINT_INTERVAL = "60s"
# Solving a model of that size takes about as long as a run.
MOST_PAIRS = 1_000_000


class _OneRank:
    """Stands for a communicator with one rank: a run learns alone, whatever launcher started the process."""

    def Get_rank(self) -> int:
        """Return 0."""
        return 0

    def Get_size(self) -> int:
        """Return 1."""
        return 1


def next_point(after: int, total_steps: int, n_points: int) -> int | None:
    """Return the first step above `after` at which a curve of so many points has one; None: there is none."""
    point = after * n_points // total_steps + 1
    return None if point > n_points else -(-point * total_steps // n_points)


class Curve(BaseCallback):
    """Keeps the mean return of training between steps that are evenly spread over it.

    `points` has a list for each: the step, the mean undiscounted return of the episodes that ended since the
    last one (None if none did), and how many these were. A `file` keeps them for a run that goes on later.
    """

    only_own_steps = True

    def __init__(self, total_steps: int, n_points: int, file: Path | None = None) -> None:
        super().__init__()
        self.points: list[list[Any]] = []
        self._total, self._n_points, self._file = total_steps, n_points, file

    def _next_step(self, after: int) -> int | None:
        return next_point(after, self._total, self._n_points)

    def _on_training_start(self) -> None:
        if self._file is None:
            return
        # ValueError: the last line is half written.
        with suppress(FileNotFoundError, ValueError):
            for line in read_regular(self._file).splitlines():
                point = json.loads(line)
                if point[0] <= self.reported_timesteps:
                    self.points.append(point)
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(self._file) as file:
            file.write("".join(json.dumps(point) + "\n" for point in self.points).encode())

    def _on_step(self) -> bool:
        assert self.progress is not None
        point = [self.num_timesteps, number(self.progress.mean_return), self.progress.episodes]
        self.points.append(point)
        if self._file is not None:
            with open(self._file, "a") as file:
                file.write(json.dumps(point) + "\n")
                file.flush()
                os.fsync(file.fileno())  # before a checkpoint that has this step
        return True


class Laboratory:
    """Makes the runs of a study in this process; environments and their optimum are made ready once.

    `environments` are what `train` takes, by name; `folder` keeps checkpoints of long runs.
    """

    def __init__(self, plan: Plan, environments: Mapping[str, Any], folder: Path) -> None:
        self._plan, self._environments, self._folder = plan, environments, folder
        self._ready: dict[tuple[str, bool | None], Any] = {}
        self._settings: dict[int, Settings] = {}  # of each variant
        #: On which a long run saves what it has, and stops.
        self.stop_signals: Iterable[int | str] = SIGNALS

    def run(self, trial: Trial) -> dict[str, Any]:
        """Return the record of a run; what it raised is in there, too."""
        return record_of(trial, lambda: self._trained(trial))

    def tidy(self, trials: Iterable[Trial]) -> None:
        """Remove the checkpoints of runs that ended well: their records are on disk by now."""
        for trial in trials:
            if trial.total_steps > LONG_STEPS:
                shutil.rmtree(self._checkpoints(trial), ignore_errors=True)

    def _checkpoints(self, trial: Trial) -> Path:
        return self._folder / "checkpoints" / trial.key

    def compile(self, made: Container[str]) -> None:
        """Make a tiny run of each kind of those that are not `made` yet, so that what they need is compiled.

        Only of environments that are compiled: others might take long, or heed that they are stepped. And
        only on cores: what is compiled for a card is not kept, and helper processes could not use a card any
        more, which are forked from this one.
        """
        known: set[tuple[Any, ...]] = set()
        for environment in self._environments:
            for variant, given in enumerate(self._plan.variants):
                if given is None:
                    continue
                settings = self.settings_of(variant)
                kind = (environment, *kind_of(settings))
                trials = self._plan.trials(environment, variant, self._plan.total_steps)
                is_made = all(trial.key in made for trial in trials)
                if kind in known or is_made or settings.device == "cuda":
                    continue
                known.add(kind)
                if hasattr(self.environment(environment, settings.use_action_mask), "tables"):
                    self._make_tiny(trials[0])

    def try_out(self, trial: Trial, good: Trial | None) -> None:
        """Make the environment of a run, or a tiny run like one in it that was `good`."""
        if good is not None:
            self._make_tiny(good)
            return
        with suppress(Exception):  # the run itself will tell
            looked_at(self._environments[trial.environment], self.settings_of(trial.variant).use_action_mask)

    def _make_tiny(self, trial: Trial) -> None:
        tiny = replace(trial, total_steps=min(self._plan.points, trial.total_steps))
        with suppress(Exception):  # the runs themselves will tell
            self._trained(tiny, eval_episodes=1)

    def settings_of(self, variant: int) -> Settings:
        """Return the settings of this number, the same object each time."""
        if variant not in self._settings:
            self._settings[variant] = checked_settings(self._plan.variants[variant])
        return self._settings[variant]

    def environment(self, name: str, use_action_mask: bool | None) -> Any:
        """Return what `train` is given: the compiled form where there is one, which is made only once."""
        if (name, use_action_mask) not in self._ready:
            env = self._environments[name]
            source = looked_at(env, use_action_mask)
            self._ready[name, use_action_mask] = env if source.simulator is None else source.simulator
        return self._ready[name, use_action_mask]

    def _trained(self, trial: Trial, eval_episodes: int | None = None) -> dict[str, Any]:
        settings = self.settings_of(trial.variant)
        env = self.environment(trial.environment, settings.use_action_mask)
        # What is stepped may have a `model` of its own, which is a user's.
        simulator = env if isinstance(env, CompiledSimulator) else None
        model: FiniteModel | None = None if simulator is None else simulator.model
        arguments = {**settings.arguments(), "seed": trial.seed}
        with read_back():
            agent = DistAsyncQLearning(**arguments, comm=THIS_PROCESS)
        state_of(agent).is_of_study = True
        place = self._checkpoints(trial)
        is_long = simulator is not None and trial.total_steps > LONG_STEPS
        saving: dict[str, Any] = {}
        if is_long:
            saving = {
                "checkpoint_dir": place / "saved",
                "checkpoint_interval": _CHECKPOINT_INTERVAL,
                "stop_signals": self.stop_signals,
            }
        curve = Curve(trial.total_steps, self._plan.points, place / "curve.jsonl" if is_long else None)
        result = agent.train(
            env, total_steps=trial.total_steps, callbacks=curve, progress_bar=False, **saving
        )
        episodes = self._plan.eval_episodes if eval_episodes is None else eval_episodes
        final = agent.evaluate(env, episodes, seed=trial.seed)
        return {
            "steps": result.steps,
            "episodes": result.episodes,
            "training_return": number(result.mean_return),
            "final_return": final.mean_return,
            "curve": curve.points,
            **judged(lambda: agent.q_table, model, settings.discount_factor),
            "train_seconds": result.seconds,
            "device": result.device,
        }


# Of the methods of a communicator, those that are asked for where there is one rank.
THIS_PROCESS: Any = _OneRank()


def looked_at(env: Any, use_action_mask: bool | None = None) -> Source:
    """Return an environment as it is resolved, closed again."""
    source = resolve(env, 1, use_action_mask)
    source.close()
    return source


def record_of(trial: Trial, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the record of a run of which `make` tells what came out; what that raises is in there, too."""
    started = time.perf_counter()
    record: dict[str, Any] = {"key": trial.key, "run": trial.run, "error": None}
    try:
        record |= make()
    except BaseException as error:  # such as asyncio.CancelledError, or what pytest.fail raises
        if isinstance(error, KeyboardInterrupt) or (not isinstance(error, Exception) and is_meant(error)):
            raise
        # Of a user's environment or of ours: it costs this run alone.
        # A carriage return would end a line of a table, and what is no text cannot be written.
        said = error_told(error).replace("\r", "\n")
        record["error"] = said.encode(errors="backslashreplace").decode()
    record["seconds"] = time.perf_counter() - started
    return record


def can_be_solved(model: FiniteModel | None) -> TypeGuard[FiniteModel]:
    """Whether a model is known, and not too large to be solved for each run."""
    return model is not None and model.n_states * model.n_actions <= MOST_PAIRS


def judged(
    q_table: Callable[[], np.ndarray], model: FiniteModel | None, discount: float
) -> dict[str, float | None]:
    """Return the exact discounted value of the greedy policy, of the best, and of a random one.

    None where a value is infinite, and each where the model is not known, or too large; then nobody asks for
    the table.
    """
    known: dict[str, float | None] = dict.fromkeys(("exact_value", "optimal_value", "random_value"))
    if not can_be_solved(model):
        return known
    with suppress(DistClassicRLError):
        known["exact_value"] = greedy_value(model, q_table(), discount)
    with suppress(DistClassicRLError):
        known["optimal_value"] = optimal_value(model, discount)
    with suppress(DistClassicRLError):
        known["random_value"] = _random_value(model, discount)
    return known


@lru_cache(maxsize=64)
def _random_value(model: FiniteModel, discount: float) -> float:
    legal = model.legal_pairs().astype(np.float64)
    legal[legal.sum(axis=1) == 0.0] = 1.0
    return model.start_value(model.policy_value(legal / legal.sum(axis=1, keepdims=True), discount, True))


def number(value: float) -> float | None:
    """Return a number as JSON has it: None for NaN."""
    return None if math.isnan(value) else value
