"""A training in this process, which may be one of many ranks, once all is decided."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dist_classicrl._hints import rank_of_environment
from dist_classicrl.callbacks.base import BaseCallback
from dist_classicrl.checkpoint.plan import checked_signals
from dist_classicrl.cli.requested_run import RequestedRun
from dist_classicrl.cli.signals import Ended, ended_after, with_terminal
from dist_classicrl.cli.summary import summary
from dist_classicrl.comm.remote_errors import without_exit
from dist_classicrl.errors import ExitCalledError
from dist_classicrl.process.stop import with_launchers

if TYPE_CHECKING:
    from dist_classicrl.agent.agent import DistAsyncQLearning
    from dist_classicrl.agent.result import TrainingResult
    from dist_classicrl.evaluation.episodes import EvaluationResult


_EVALUATION_SECONDS = 30.0


@dataclass(frozen=True)
class Display:
    """How a run is shown."""

    is_quiet: bool = False
    is_verbose: bool = False
    has_bar: bool = False  # this process draws a bar
    is_live: bool = False  # the process that somebody typed draws on the whole screen
    status: Path | None = None  # a file for the process that started this one and draws the bar
    tells_result: bool = True  # else the process that started this one does


def train_here(run: RequestedRun, display: Display) -> None:
    """Train in this process, alone or as a rank of the job that it is in.

    The rank that serves in the end evaluates the agent, saves it, and says what was done, unless the process
    that started it does.
    """
    from dist_classicrl.agent.agent import DistAsyncQLearning
    from dist_classicrl.callbacks import logs

    folder = run.folder
    log_dir = run.settings["log_dir"]
    console = logs.set_up(
        rank_of_environment() or 0,
        folder.logs if log_dir is None else Path(log_dir),
        display.is_quiet,
        display.is_verbose,
    )
    agent = DistAsyncQLearning(**run.of_agent())
    env = run.make_env()
    callbacks: list[BaseCallback] = [console, _SettingsKeeper(run), *_recorders(run, env)]
    arguments = run.of_train()
    leaving = checked_signals("leave_signals", arguments["leave_signals"])
    if signal.SIGHUP not in leaving:
        arguments["stop_signals"] = with_terminal(arguments["stop_signals"])
    if not display.has_bar:
        callbacks.append(_shown(run, display))
    verbose = display.has_bar and display.is_verbose
    with _named_exit():
        result = agent.train(
            env, callbacks=callbacks, progress_bar=display.has_bar, verbose=verbose, **arguments
        )
        if agent.rank == 0:
            _finish(run, agent, env, result, display)


@contextmanager
def _named_exit() -> Iterator[None]:
    """Tell of a SystemExit of an environment or a callback, and let its status not say what is not so."""
    try:
        yield
    except SystemExit as error:
        if not isinstance(instead := without_exit(error, is_alone=True), ExitCalledError):
            raise
        click.echo(f"Error: {instead}", err=True)
        raise SystemExit(instead.code) from error


class _SettingsKeeper(BaseCallback):
    """Writes the settings into the folder once the training has begun."""

    def __init__(self, run: RequestedRun) -> None:
        super().__init__()
        self._run = run

    def _on_training_start(self) -> None:
        self._run.save(self.model.seed, self.num_timesteps)


def _recorders(run: RequestedRun, env: Any) -> list[BaseCallback]:
    """Return what records the run, and ends it early if asked to."""
    from dist_classicrl import callbacks

    settings, folder = run.settings, run.folder.path
    recorders: list[BaseCallback] = []
    if settings["eval_every"] is not None:
        episodes, every = settings["eval_episodes"], settings["eval_every"]
        recorders.append(
            callbacks.EvalCallback(
                env,
                n_eval_episodes=episodes,
                eval_freq=every,
                log_path=folder,
                best_model_save_path=folder,
            )
        )
    if settings["stop_at_return"] is not None:
        recorders.append(callbacks.StopTrainingOnReturn(settings["stop_at_return"], verbose=1))
    if settings["tensorboard"]:
        recorders.append(callbacks.TensorBoardCallback(folder / "tensorboard"))
    return [*recorders, callbacks.MetricsCallback(folder)]


def _shown(run: RequestedRun, display: Display) -> BaseCallback:
    """Return what shows how far the run is where this process draws no bar: in a file, or as log lines."""
    from dist_classicrl.callbacks.display import LogCallback, StatusCallback

    return (
        LogCallback(run.settings["log_interval"])
        if display.status is None
        else StatusCallback(display.status)
    )


def _finish(
    run: RequestedRun, agent: DistAsyncQLearning, env: Any, result: TrainingResult, display: Display
) -> None:
    folder = run.folder
    if not folder.exists():  # somebody has removed it, and nothing but this knows what was learned
        run.prepare()
        run.save(agent.seed)
    agent.save_model(folder.model)
    folder.write_result(result.to_dict())  # what follows may take long
    evaluation = _evaluated(run, agent, env)
    if not isinstance(evaluation, str):
        folder.write_result(result.to_dict(), evaluation.in_short())
    if display.tells_result and not display.is_quiet:
        greedy = evaluation if isinstance(evaluation, str) else evaluation.in_short()
        click.echo("\n".join(summary(folder, result, greedy)))


def _evaluated(run: RequestedRun, agent: DistAsyncQLearning, env: Any) -> EvaluationResult | str:
    """Return what the greedy policy is worth, or why that is not known."""
    try:
        signals = checked_signals("stop_signals", run.settings["stop_signals"])
        with ended_after(_EVALUATION_SECONDS, with_launchers(signals)):
            return agent.evaluate(env, episodes=run.settings["eval_episodes"])
    except Ended as end:
        return str(end)
