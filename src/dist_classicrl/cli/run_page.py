"""Gathers what a page of HTML tells of a run: what lies in its folder, or what a saved agent knows."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from dist_classicrl._words import shown_name
from dist_classicrl.cli.config import ENVIRONMENT, ENVIRONMENT_ARGUMENTS
from dist_classicrl.cli.run_folder import RunFolder, folder_around
from dist_classicrl.cli.several import groups
from dist_classicrl.cli.trained_agent import TrainedAgent, load
from dist_classicrl.errors import CheckpointError, DistClassicRLError, MetricsError, PlotError

if TYPE_CHECKING:
    from dist_classicrl.report.sections import RunFacts

_OF_ENVIRONMENT = (ENVIRONMENT, ENVIRONMENT_ARGUMENTS)  # which are no settings


def facts_of(run: str) -> RunFacts:
    """Return what is known of a run, which is a folder, a model file or a folder of checkpoints.

    FileNotFoundError where there is nothing.
    """
    from dist_classicrl.report.sections import RunFacts

    folder = RunFolder(folder_around(run))
    trained: TrainedAgent | None = None
    try:
        trained = load(run)
    except CheckpointError:  # it has only begun
        if not folder.metrics.exists():
            raise
    known: dict[str, Any] = {}
    if folder.path.is_dir() and folder.exists():
        ended = folder.ended()
        if ended is not None:
            known |= {"result": ended[0].to_dict(), "evaluation": ended[1]}
        of_run = folder.read_config().items()
        known["settings"] = {name: value for name, value in of_run if name not in _OF_ENVIRONMENT}
    if trained is not None and not known.get("settings"):
        settings = trained.agent.settings
        known["settings"] = {each.name: getattr(settings, each.name) for each in fields(settings)}
    if folder.metrics.exists():
        try:
            records = groups.read(str(folder.path)).records
            known |= {"metrics": records.metrics, "greedy": records.greedy}
        except (MetricsError, PlotError) as error:
            click.echo(f"Warning: without learning curves. {error}", err=True)
    if trained is not None:
        known |= {
            "steps": trained.agent.steps,
            "environment": trained.env_name or _name_of(trained),
            "arguments": trained.env_arguments,
            **_of_environment(trained),
        }
    else:
        config = folder.read_config()
        known["environment"] = config.get(ENVIRONMENT)
        known["arguments"] = config.get(ENVIRONMENT_ARGUMENTS, {})
        known["steps"] = int(known["metrics"]["step"][-1]) if "metrics" in known else 0
    return RunFacts(name=shown_name(run), **known)


def _name_of(trained: TrainedAgent) -> str | None:
    there = trained.state.environment
    return None if there is None else str(there)


def _of_environment(trained: TrainedAgent) -> dict[str, Any]:
    """Return the exact value and the map, where the environment is here and has them."""
    from dist_classicrl.evaluation.exact import exact_value, model_of
    from dist_classicrl.plotting import map_of

    q_table = trained.agent.q_table
    if trained.env_name is None or not isinstance(q_table, np.ndarray):
        return {}
    known: dict[str, Any] = {}
    settings = trained.agent.settings
    try:
        model = model_of(trained.make_env(), settings.use_action_mask)
        if model is not None:
            known["exact"] = exact_value(model, q_table, settings.discount_factor)
    except (DistClassicRLError, ImportError) as error:
        click.echo(f"Warning: without an exact value. {error}", err=True)
    try:
        known["grid_map"] = map_of(q_table, trained.make_env(), trained.agent.visits)
    except PlotError:  # it is no grid
        pass
    except (DistClassicRLError, ImportError) as error:
        click.echo(f"Warning: without a map. {error}", err=True)
    return known
