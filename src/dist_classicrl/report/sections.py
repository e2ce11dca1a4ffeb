"""What a page tells of one run, as sections: each is made of what is known, and left out where nothing is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dist_classicrl import plotting
from dist_classicrl._urls import without_password
from dist_classicrl._words import counted
from dist_classicrl.errors import MetricsError, PlotError
from dist_classicrl.monitoring.machine import this_machine
from dist_classicrl.monitoring.scaling import measure
from dist_classicrl.plotting.timeline import MARKS
from dist_classicrl.report.page import Section

if TYPE_CHECKING:
    from dist_classicrl.evaluation.exact import ExactValue
    from dist_classicrl.monitoring.reading import Metrics
    from dist_classicrl.plotting import Greedy, GridMap

_MOST_EVENTS = 500


@dataclass(frozen=True)
class RunFacts:
    """What is known of a run; nothing but its name has to be."""

    name: str
    steps: int = 0  # that the agent has learned
    environment: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)  # of the environment
    settings: Mapping[str, Any] = field(default_factory=dict)
    result: Mapping[str, Any] | None = None  # as `TrainingResult.to_dict` gives it
    evaluation: Mapping[str, Any] | None = None  # of the greedy policy, at the end
    metrics: Metrics | None = None
    greedy: Greedy | None = None
    exact: ExactValue | None = None
    grid_map: GridMap | None = None


def run_sections(facts: RunFacts) -> list[Section]:
    """Return the sections of a run's page, in order; MissingExtraError without matplotlib."""
    metrics = facts.metrics if facts.metrics is not None and len(facts.metrics) else None
    made = [
        _summary(facts),
        None if facts.exact is None else _exact(facts.exact),
        None if metrics is None else _curves(metrics, facts),
        None if facts.grid_map is None else _map(facts.grid_map),
        None if metrics is None else _workers(metrics, facts),
        None if facts.metrics is None else _events(facts.metrics),
        _environment(facts),
        _settings(facts),
        _machine(facts),
    ]
    return [section for section in made if section is not None]


def _summary(facts: RunFacts) -> Section:
    rows = [("steps learned", f"{facts.steps:,}")]
    if facts.result is not None:
        said = facts.result
        rows += [
            ("episodes", f"{said['episodes']:,}"),
            ("mean return while exploring", _number(said["mean_return"])),
            ("mean length of an episode", _number(said["mean_length"])),
            ("training time", f"{said['seconds']:,.3g} s"),
            ("compilation", f"{said['compile_seconds']:,.3g} s"),
            ("rate", f"{said['steps_per_second']:,.0f} steps/s"),
            ("workers", str(said["workers"])),
            ("lost workers", ", ".join(map(str, said["lost_workers"])) or "none"),
            ("communication", f"{said['communication_fraction']:.2%} of the workers' time"),
            ("resumed from", said["resumed_from"] or "began afresh"),
        ]
    elif facts.metrics is not None and len(facts.metrics):
        rows.append(("state", "not ended, or stopped: there is no result yet"))
    if facts.evaluation is not None:
        said = facts.evaluation
        rows += [
            ("return of the greedy policy", f"{said['mean_return']:.4g} in {said['episodes']:,} episodes"),
        ]
    return Section("Summary").add_table((), rows)


def _exact(exact: ExactValue) -> Section:
    rows = [
        ("value of the greedy policy", f"{exact.value:.6g}"),
        ("value of the best policy", f"{exact.optimum:.6g}"),
        ("gap", exact.gap_text),
        ("discount factor", f"{exact.discount_factor:g}"),
    ]
    said = (
        "Computed from the model of the environment, from its start states, without a time limit on episodes."
    )
    return Section("Exact gap").add_text(said).add_table((), rows)


def _curves(metrics: Metrics, facts: RunFacts) -> Section | None:
    try:
        figure, _ = plotting.plot_curves(metrics, greedy=facts.greedy or plotting.Greedy())
    except PlotError:  # the reports tell nothing that is drawn
        return None
    described = f"Learning curves over {int(metrics['step'][-1]):,} steps, {counted(len(metrics), 'report')}"
    return Section("Learning curves").add_figure(figure, described)


def _map(grid_map: GridMap) -> Section:
    figure = plotting.plot_map(grid_map)
    return Section("Policy map").add_figure(figure, f"Greedy value and policy of {grid_map.grid.name}")


def _workers(metrics: Metrics, facts: RunFacts) -> Section | None:
    section = Section("Workers")
    try:
        figure, timeline = plotting.plot_timeline(metrics)
        section.add_figure(figure, f"When {counted(len(timeline.ranks), 'rank')} learned, and what happened")
        run = measure(facts.name, metrics, facts.result)
    except (PlotError, MetricsError):  # nothing is told of any rank, or no step was made
        return section if section.html else None
    rows = [
        (
            load.rank,
            load.host,
            f"{load.steps:,}",
            f"{load.steps_per_second:,.0f}",
            "-" if load.communication is None else f"{load.communication.mean:.2%}",
        )
        for load in run.per_worker
    ]
    return section.add_table(("rank", "host", "steps", "steps/s", "communication"), rows)


def _events(metrics: Metrics) -> Section:
    section = Section("Events")
    events = metrics.events
    if not events:
        return section.add_text("Nothing happened to any rank, and no checkpoint is in the records.")
    if len(events) > _MOST_EVENTS:
        section.add_text(f"The last {_MOST_EVENTS:,} of {len(events):,}.")
    rows = [
        (
            f"{event['time']:,.2f} s",
            f"{event['step']:,}",
            MARKS[event["kind"]].label if event["kind"] in MARKS else event["kind"],
            "-" if event["kind"] == "checkpoint" else event["rank"],
            f"{event['steps_returned']:,}" if event["steps_returned"] else "-",
            event["detail"],
        )
        for event in events[-_MOST_EVENTS:]
    ]
    return section.add_table(("time", "step", "what", "rank", "steps given back", "detail"), rows)


def _environment(facts: RunFacts) -> Section:
    rows = [("environment", facts.environment or "not known"), *facts.arguments.items()]
    return Section("Environment").add_table((), rows)


def _settings(facts: RunFacts) -> Section | None:
    rows = [(name, _shown(value)) for name, value in facts.settings.items()]
    return Section("Settings").add_table((), rows) if rows else None


def _machine(facts: RunFacts) -> Section:
    hosts = set()
    for series in () if facts.metrics is None else facts.metrics.ranks.values():
        hosts |= set(map(str, series["host"]))
    rows = [("hosts of the workers", ", ".join(sorted(hosts)))] if hosts else []
    rows += [each for each in this_machine().items() if each[0] != "host"]
    said = (
        "System, processor and versions are those of where this page was made; a run does not keep its own."
    )
    return Section("Machine and versions").add_text(said).add_table((), rows)


def _number(value: float | None) -> str:
    return "none ended" if value is None else f"{value:.4g}"


def _shown(value: Any) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
    return without_password(text)
