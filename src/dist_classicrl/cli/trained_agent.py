"""The trained agent that a command is told to look at, with the environment that it was trained in."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dist_classicrl.cli.config import ENVIRONMENT, ENVIRONMENT_ARGUMENTS
from dist_classicrl.cli.option_types import Place, option, together
from dist_classicrl.cli.run_folder import RunFolder, known_runs, runs_below
from dist_classicrl.cli.shown_study import refuse_study
from dist_classicrl.environments import named
from dist_classicrl.errors import CheckpointError, EnvError, SettingsError

if TYPE_CHECKING:
    from dist_classicrl.agent.agent import DistAsyncQLearning
    from dist_classicrl.model.agent_state import AgentState


@dataclass(frozen=True)
class TrainedAgent:
    """A trained agent, with what is known of where it was trained."""

    agent: DistAsyncQLearning
    source: Path  # the file or folder that the agent was read from
    env_name: str | None = None  # the environment, as it was typed; None where nothing tells which it is
    env_arguments: dict[str, Any] = field(default_factory=dict)  # for what makes the environment

    @property
    def state(self) -> AgentState:
        """What the agent holds."""
        from dist_classicrl.agent.agent import state_of

        return state_of(self.agent)

    def in_environment(self, name: str | None, arguments: Mapping[str, Any]) -> TrainedAgent:
        """Return the agent with another environment; None: the one that was trained in.

        The arguments are for what makes it, besides those of the run if it is the run's.
        """
        chosen = name or self.env_name
        own = self.env_arguments if chosen == self.env_name else {}
        return replace(self, env_name=chosen, env_arguments={**own, **arguments})

    def make_env(self) -> Any:
        """Return the environment as `train` and `evaluate` take it; SettingsError if nothing tells which."""
        if self.env_name is None:
            known = self.state.environment
            what = "" if known is None else f", only that it is {known}"
            raise SettingsError(
                f"{self.source} does not tell which environment was trained in{what}. Name it, for instance "
                "as --env FrozenLake-v1, or give the folder of a run."
            )
        return named.make(self.env_name, self.env_arguments)

    def described(self) -> dict[str, Any]:
        """Return what it is as plain data for JSON."""
        return {
            "environment": self.env_name,
            "environment_arguments": self.env_arguments,
            "steps": self.agent.steps,
        }

    @property
    def title(self) -> str | None:
        """The environment's name with its arguments."""
        shown = ", ".join(f"{key}={value}" for key, value in self.env_arguments.items())
        return f"{self.env_name} ({shown})" if shown else self.env_name


run_argument = together(
    click.argument("run", type=Place(), metavar="RUN"),
    option(
        "--env", metavar="ENV", help="The environment, where the run does not tell it or another is meant."
    ),
    option(
        "--env-arg",
        "env_args",
        multiple=True,
        metavar="NAME=VALUE",
        help="An argument for what makes the environment, such as is_slippery=False; more than once for "
        "several.",
    ),
)
"""Lets a command take RUN, and another environment than the one that was trained in."""


def load_with_env(
    run: str, env: str | None, env_args: Sequence[str], needs_env: bool = False
) -> tuple[TrainedAgent, Any]:
    """Return what the parameters of `run_argument` name: an agent, and its environment or None.

    SettingsError if nothing tells which environment it is, and one is needed or arguments for it are given;
    EnvError if it is not the one that the table was made for.
    """
    loaded = load(run)
    arguments = named.parse_arguments(env_args)
    trained = loaded.in_environment(env, arguments)
    if trained.env_name is None and not needs_env and not arguments:
        return trained, None
    from dist_classicrl.model.fit import check_made_for

    made = trained.make_env()
    check_made_for(trained.state, made)
    return trained, made


def load(path: str | os.PathLike[str]) -> TrainedAgent:
    """Return the agent of a run's folder: its final model, or else its newest checkpoint.

    Or of a model file, or of a folder of checkpoints, which may be a URL.
    """
    from dist_classicrl.agent.agent import DistAsyncQLearning

    text = os.fspath(path)
    place = Path(text)
    if "://" in text:
        return _of_own_words(DistAsyncQLearning.load_model(text), place)
    if not place.exists():
        raise FileNotFoundError(f"There is no {text!r}.{known_runs(place)}")
    if found := runs_below(place):
        raise SettingsError(f"{text} is a folder of runs. Name one of them, such as {found[0].path}.")
    refuse_study(place)
    inner = place.is_file() or not (place / "config.toml").exists()
    folder = RunFolder(place.parent if inner else place)
    source = place if inner else _newest(folder)
    try:
        agent = DistAsyncQLearning.load_model(source)
    except CheckpointError as error:
        if inner and (said := _of_run_without_settings(place)):
            raise CheckpointError(said) from error
        raise
    saved = folder.read_config()
    if ENVIRONMENT not in saved:
        return _of_own_words(agent, Path(source))
    return TrainedAgent(agent, Path(source), saved[ENVIRONMENT], saved.get(ENVIRONMENT_ARGUMENTS, {}))


def _of_own_words(agent: DistAsyncQLearning, source: Path) -> TrainedAgent:
    """Return an agent with the environment that its file names, if Gymnasium has it and it is the same.

    A stranger may have written the file: nothing is imported for it, and nothing made but small games.
    """
    import gymnasium

    from dist_classicrl.environments.resolve import resolve

    trained = TrainedAgent(agent, source)
    there = trained.state.environment
    spec = None if there is None else gymnasium.registry.get(there.env_id)
    if there is None or spec is None or not str(spec.entry_point).startswith("gymnasium.envs.toy_text."):
        return trained
    named = replace(trained, env_name=there.env_id, env_arguments=there.env_arguments)
    try:
        found = resolve(named.make_env(), 1, agent.settings.use_action_mask)
        found.close()
    except (EnvError, SettingsError):  # of another release, or with arguments that it does not take
        return trained
    return named if found.identity.is_same(there) else trained


def _of_run_without_settings(place: Path) -> str:
    """Return what to write in place of the folder of a run that lacks its settings; nothing if it is none."""
    from dist_classicrl.agent.saved_runs import model_in_run

    folder = RunFolder(place)
    if any(place.glob("agent-*")) or not place.is_dir():  # checkpoints, which cannot be used
        return ""
    if (meant := model_in_run(place)) is not None:
        context = click.get_current_context(silent=True)
        words = "dist-classicrl show" if context is None else context.command_path
        takes_env = context is None or any(each.name == "env" for each in context.command.params)
        also = ", and --env where the agent there does not tell the environment" if takes_env else ""
        return (
            f"{place} has no {folder.config.name}, which tells what the run in it is. Write "
            f"`{words} {shlex.quote(meant)}`{also}."
        )
    if folder.metrics.exists() or folder.result.exists():
        return (
            f"{place} has neither {folder.config.name} nor a model or checkpoints, so nothing of what was "
            "learned is left in it. Give the folder of another run, or see the records of this one by "
            f"`dist-classicrl plot {shlex.quote(str(place))}`."
        )
    return ""


def _newest(folder: RunFolder) -> str | Path:
    """Return what holds the newest state of the agent: the model is removed when a run is made longer."""
    if folder.model.exists():
        return folder.model
    place = folder.place_of_checkpoints()
    if "://" not in str(place) and not Path(place).exists():
        raise CheckpointError(
            f"The run in {folder.path} has neither a model nor a checkpoint yet. Wait for its first "
            "checkpoint, or type its command again."
        )
    return place
