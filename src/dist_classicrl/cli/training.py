"""A training in this process, which may be one of many ranks: what `train` does once all is decided."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dist_classicrl._files import whole_file
from dist_classicrl._hints import rank_of_environment
from dist_classicrl.cli.job import Job
from dist_classicrl.cli.patience import Ended, ended_after
from dist_classicrl.cli.terminal import bar_of_this_process

if TYPE_CHECKING:
    from dist_classicrl.agent.agent import DistAsyncQLearning
    from dist_classicrl.agent.result import TrainingResult
    from dist_classicrl.callbacks.base import BaseCallback
    from dist_classicrl.evaluation.episodes import EvaluationResult


_EVALUATION_SECONDS = 30.0
_LONGEST_EPISODE = 10_000  # a greedy policy need not come to an end


@dataclass(frozen=True)
class Display:
    """How a run is shown.

    Attributes
    ----------
    is_quiet, is_verbose : bool
    has_bar : bool
        Whether this process draws a bar.
    status : Path or None
        A file for the process that started this one and draws the bar.
    """

    is_quiet: bool = False
    is_verbose: bool = False
    has_bar: bool = False
    status: Path | None = None


def train_here(job: Job, display: Display) -> None:
    """Train in this process, alone or as a rank of the job that it is in.

    The rank that serves in the end evaluates the agent, saves it, and says what was done.

    Raises
    ------
    TrainingStopped
        After a signal or at a time limit.
    """
    from dist_classicrl.agent.agent import DistAsyncQLearning
    from dist_classicrl.callbacks import logs

    folder = job.folder
    log_dir = job.settings["log_dir"]
    voice = logs.set_up(
        rank_of_environment() or 0,
        folder.logs if log_dir is None else Path(log_dir),
        display.is_quiet,
        display.is_verbose,
    )
    agent = DistAsyncQLearning(**job.of_agent())
    env = job.make_env()
    callbacks: list[BaseCallback] = [voice, _keeper(job), *_recorders(job, env)]
    arguments = job.of_train()
    if rank_of_environment() is None and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        # Its terminal goes; who started it with nohup wants it to stay.
        arguments["stop_signals"] = (*arguments["stop_signals"], signal.SIGHUP)
    with _shown(job, display, callbacks):
        result = agent.train(env, callbacks=callbacks, **arguments)
    if agent.rank == 0:
        _finish(job, agent, env, result, display)


def _keeper(job: Job) -> BaseCallback:
    """Return what writes the settings into the folder once the training has begun."""
    from dist_classicrl.callbacks.base import BaseCallback

    class Keeper(BaseCallback):
        def _on_training_start(self) -> None:
            job.save(self.model.seed)

    return Keeper()


def _recorders(job: Job, env: Any) -> list[BaseCallback]:
    """Return what records the run, and ends it early if asked to."""
    from dist_classicrl.callbacks import (
        EvalCallback,
        MetricsCallback,
        StopTrainingOnReturn,
        TensorBoardCallback,
    )

    settings, folder = job.settings, job.folder
    recorders: list[BaseCallback] = []
    if settings["eval_every"] is not None:
        recorders.append(
            EvalCallback(
                env,
                n_eval_episodes=settings["eval_episodes"],
                eval_freq=settings["eval_every"],
                log_path=folder.path,
                best_model_save_path=folder.path,
            )
        )
    if settings["stop_at_return"] is not None:
        recorders.append(StopTrainingOnReturn(settings["stop_at_return"], verbose=1))
    if settings["tensorboard"]:
        recorders.append(TensorBoardCallback(folder.path / "tensorboard"))
    return [*recorders, MetricsCallback(folder.path)]


@contextmanager
def _shown(job: Job, display: Display, callbacks: list[BaseCallback]) -> Iterator[None]:
    """Show how far the run is: on a terminal of this process, in a file, or as log lines."""
    from dist_classicrl.callbacks.base import BaseCallback
    from dist_classicrl.callbacks.display import LogCallback, StatusCallback

    if display.has_bar:
        last = BaseCallback()
        callbacks.append(last)
        with bar_of_this_process(lambda: last.progress, "preparing", display.is_verbose):
            yield
        return
    if display.status is not None:
        callbacks.append(StatusCallback(display.status))
    else:
        callbacks.append(LogCallback(job.settings["log_interval"]))
    yield


def _finish(job: Job, agent: DistAsyncQLearning, env: Any, result: TrainingResult, display: Display) -> None:
    agent.save_model(job.folder.model)
    with whole_file(job.folder.result) as file:
        file.write((json.dumps(result.to_dict(), indent=1) + "\n").encode())
    if not display.is_quiet:
        evaluation = _evaluated(job, agent, env)
        click.echo("\n".join(summary(job, result, evaluation)))


def _evaluated(job: Job, agent: DistAsyncQLearning, env: Any) -> EvaluationResult | str:
    """Return what the greedy policy is worth, or why that is not known."""
    try:
        with ended_after(_EVALUATION_SECONDS, job.settings["stop_signals"]):
            return agent.evaluate(env, episodes=job.settings["eval_episodes"], max_steps=_LONGEST_EPISODE)
    except Ended as end:
        return f"not known: {end}; see `dist-classicrl evaluate {short(job.folder.path)}`"


def summary(job: Job, result: TrainingResult, evaluation: EvaluationResult | str | None = None) -> list[str]:
    """Return lines that say what a training did, and where its files are.

    Parameters
    ----------
    job : Job
    result : TrainingResult
    evaluation : EvaluationResult, str or None
        A text says why there is none. None: it was not evaluated now.
    """
    asked = job.folder.read_config().get("total_steps", result.steps)
    workers = "1 worker" if result.workers == 1 else f"{result.workers} workers"
    rows = [
        (
            "trained",
            f"{result.steps:,} steps in {result.seconds:.3g} s, {result.steps_per_second:,.0f} steps/s "
            f"on {workers}",
        ),
        (
            "mean return",
            f"{result.mean_return:.4g} while exploring, {result.episodes:,} episodes"
            if result.episodes
            else "no episode has ended",
        ),
    ]
    if result.steps < asked:
        rows.insert(1, ("ended early", f"of {asked:,} steps{_why_early(job)}"))
    if isinstance(evaluation, str):
        rows.append(("greedy return", evaluation))
    elif evaluation is not None:
        rows.append(
            (
                "greedy return",
                f"{evaluation.mean_return:.4g} (standard deviation {evaluation.std_return:.3g}, "
                f"{evaluation.episodes:,} episodes)",
            )
        )
    if result.resumed_from is not None:
        rows.append(("resumed from", short(result.resumed_from)))
    if result.lost_workers:
        rows.append(("lost", ", ".join(f"rank {rank}" for rank in result.lost_workers)))
    folder = short(job.folder.path)
    rows.append(("files", f"{folder}: {', '.join(_files(job))}"))
    rows.append(("next", f"dist-classicrl show {folder}; dist-classicrl plot {folder}"))
    return [f"{name:<14} {text}" for name, text in rows]


def _why_early(job: Job) -> str:
    threshold = job.folder.read_config().get("stop_at_return")
    return "" if threshold is None else f": the mean return has reached --stop-at-return {threshold:g}"


def _files(job: Job) -> list[str]:
    return sorted(path.name for path in job.folder.path.iterdir() if not path.name.startswith("."))


def short(path: str | os.PathLike[str]) -> str:
    """Return a path relative to the current folder where it lies in that."""
    text = os.fspath(path)
    return os.path.relpath(text) if os.path.abspath(text).startswith(os.getcwd() + os.sep) else text
