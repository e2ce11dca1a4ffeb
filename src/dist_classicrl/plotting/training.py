"""What a training in this process was, without any file: learning curves, and a map of what it learned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dist_classicrl.errors import EnvError, PlotError
from dist_classicrl.monitoring.reports import metrics_of
from dist_classicrl.plotting import canvas, curves, maps

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dist_classicrl.engines.progress import Progress
    from dist_classicrl.model.agent_state import AgentState
    from dist_classicrl.plotting.grids import GridMap

_UNHEARD = (
    "Nobody listened to this training, so there are no reports of it to draw. Give train "
    'callbacks=MetricsCallback("runs/1"), or progress=, a function that gets each report.'
)


@canvas.styled
def plot_training(reports: Sequence[Progress], grid_map: GridMap | None = None) -> Figure:
    """Draw learning curves, and below them a map where there is one; PlotError where there is neither."""
    if not reports:
        if grid_map is None:
            raise PlotError(_UNHEARD)
        return maps.plot_map(grid_map)
    lines = curves.curves_of(metrics_of(reports), ("steps",), "this training")
    heights = [curves.height_of(lines)] + ([] if grid_map is None else [maps.height_of(grid_map)])
    figure = canvas.new_figure(sum(heights))
    parts: Any = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)
    curves.draw_curves(parts[0, 0], lines, "")
    if grid_map is not None:
        maps.draw_map(parts[1, 0], grid_map, "")
    return figure


@canvas.styled
def plot_agent(state: AgentState, env: Any) -> Figure:
    """Draw what `DistAsyncQLearning.plot` says, of an agent that holds `state`."""
    if env is not None and state.keyed is not None:
        raise PlotError(
            "States of this agent are keys, in rows in which they were met, so there is no map of them. "
            "Leave env out to draw the curves."
        )
    if env is not None:
        return plot_training(state.reports, maps.map_of(state.q_table, env, state.visits))
    grid_map = None
    try:
        if (known := _known_env(state)) is not None:
            grid_map = maps.map_of(state.q_table, known, state.visits)
    except (PlotError, EnvError):  # it is no grid, or not made in this way any more
        pass
    return plot_training(state.reports, grid_map)


def _known_env(state: AgentState) -> Any:
    """Return what makes the environment that was trained in, if it is one of Gymnasium's toy texts."""
    import gymnasium

    from dist_classicrl.environments.resolve import resolve

    there = state.environment
    spec = None if there is None else gymnasium.registry.get(there.env_id)
    if there is None or spec is None or not str(spec.entry_point).startswith("gymnasium.envs.toy_text."):
        return None
    name, arguments = there.env_id, there.env_arguments
    found = resolve(lambda: gymnasium.make(name, **arguments), 1, state.settings.use_action_mask)
    found.close()
    return (lambda: gymnasium.make(name, **arguments)) if found.identity.is_same(there) else None
