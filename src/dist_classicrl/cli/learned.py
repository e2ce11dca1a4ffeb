"""What the commands that look at something learned take alike: the run, and its environment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from dist_classicrl.agent.agent import DistAsyncQLearning
    from dist_classicrl.model.agent_state import AgentState

_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Learned:
    """A trained agent and its environment.

    Attributes
    ----------
    agent : DistAsyncQLearning
    env : object or None
        In a form that `train` takes; None where nobody has told which it is.
    name : str or None
        What it is called.
    arguments : dict
        Those of what makes it.
    """

    agent: DistAsyncQLearning
    env: Any
    name: str | None
    arguments: dict[str, Any]

    @property
    def state(self) -> AgentState:
        """What the agent holds."""
        from dist_classicrl.agent.agent import state_of

        return state_of(self.agent)

    def described(self) -> dict[str, Any]:
        """Return what it is as plain data for JSON."""
        return {
            "environment": self.name,
            "environment_arguments": self.arguments,
            "steps": self.agent.steps,
        }

    @property
    def title(self) -> str | None:
        """The environment's name with its arguments."""
        shown = ", ".join(f"{key}={value}" for key, value in self.arguments.items())
        return f"{self.name} ({shown})" if shown else self.name


def of_run(function: _Function) -> _Function:
    """Let a command take a run, and another environment than the one that was trained in."""
    for add in (
        click.option(
            "--env-arg",
            "env_args",
            multiple=True,
            metavar="NAME=VALUE",
            help="An argument for what makes the environment, such as is_slippery=False; more than once for "
            "several.",
        ),
        click.option(
            "--env",
            metavar="ENV",
            help="The environment, where the run does not tell it or another is meant.",
        ),
        click.argument("run", metavar="RUN"),
    ):
        function = add(function)
    return function


def load(run: str, env: str | None, env_args: Sequence[str], needs_env: bool = False) -> Learned:
    """Return what the arguments of `of_run` name.

    Raises
    ------
    FileNotFoundError
        If there is no such run.
    SettingsError
        If nobody tells which environment it is, and one is needed or arguments for it are given.
    EnvError
        If the environment is not the one that the table was made for.
    """
    from dist_classicrl.agent.agent import state_of
    from dist_classicrl.cli import runs
    from dist_classicrl.cli.environment import parse_arguments

    loaded = runs.load(run)
    arguments = parse_arguments(env_args)
    name = env or loaded.env
    if name is None and not needs_env and not arguments:
        return Learned(loaded.agent, None, None, {})
    made = loaded.make_env(env, arguments)
    state_of(loaded.agent).check_made_for(made)
    own = loaded.env_arguments if name == loaded.env else {}
    return Learned(loaded.agent, made, name, {**own, **arguments})
