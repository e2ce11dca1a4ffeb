"""What the commands that look at something learned take alike: the run, and its environment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

_Function = TypeVar("_Function", bound=Callable[..., Any])


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
