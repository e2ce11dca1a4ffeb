"""What a page tells of a study, as sections: each is made of what is known, and left out where nothing is."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from dist_classicrl import durations, plotting
from dist_classicrl._urls import without_password
from dist_classicrl._words import counted
from dist_classicrl.checks import is_real
from dist_classicrl.report.page import Section
from dist_classicrl.settings import Settings
from dist_classicrl.sweep.comparison import (
    FEWEST,
    LEVEL,
    PERMUTATIONS,
    RESAMPLES,
    Estimate,
    bootstrap,
    caution,
    checked_count,
    interquartile_mean,
    undecidable,
)
from dist_classicrl.sweep.plan import cell, kept_value
from dist_classicrl.sweep.study import Study, scale_changers
from dist_classicrl.sweep.summaries import Band, curve_with_interval, performance_profile, sensitivity

_MOST_ROWS = 100  # of a table
_MOST_LINES = 7  # of a picture: as many as there are colors
_MOST_BARS = 16
_MOST_PICTURES = 6  # of one kind
_THRESHOLDS = 101


@dataclass(frozen=True)
class _Group:
    """The runs of one setting in one environment; `middle` is of their scores, None where a run failed."""

    environment: str
    variant: int
    name: str
    rows: tuple[Mapping[str, Any], ...]
    middle: Estimate | None

    @property
    def well(self) -> list[Mapping[str, Any]]:
        return [row for row in self.rows if row["error"] is None]

    @property
    def stopped(self) -> bool:
        return any(row["stopped"] for row in self.rows)

    @property
    def steps(self) -> int:
        """Of the longest run."""
        return max((row["steps"] or 0 for row in self.rows), default=0)


def study_sections(study: Study, resamples: int = RESAMPLES) -> list[Section]:
    """Return the sections of a study's page, in order.

    Parameters
    ----------
    study : Study
        Which may be under way.
    resamples : int
        Of the bootstrap, for the 95 % percentile intervals.

    Raises
    ------
    MissingExtraError
        Without scipy or matplotlib.
    """
    checked_count("resamples", resamples, 100)
    rows = study.rows()
    groups = _groups(study, rows, resamples)
    # Of which some may be under way, as those that were added.
    seeds = min((len(group.rows) for group in groups), default=len(study.plan.seeds))
    made = [
        _summary(study, rows),
        _settings(groups, study, seeds),
        _intervals(groups, caution(seeds)),
        _curves(study, groups, resamples, caution(seeds)),
        _profiles(study, groups, resamples),
        _sensitivity(study),
        _exact(groups),
        _failures(study, rows),
        _how(study),
        _machines(study),
    ]
    return [section for section in made if section is not None]


def _groups(study: Study, rows: Iterable[Mapping[str, Any]], resamples: int) -> list[_Group]:
    """Return the settings of each environment, the best interquartile mean first.

    Those that were stopped early come behind the others, the ones that had more steps first: scores after
    different numbers of steps are not compared. Among those with as many steps a setting with a run that
    failed comes last: of the others alone its mean would flatter it.
    """
    of: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for row in rows:
        of.setdefault((row["environment"], row["variant"]), []).append(row)
    rng = np.random.default_rng(0)
    groups = []
    for (environment, variant), theirs in of.items():
        scores = [row["score"] for row in theirs]
        middle = None
        if None not in scores:
            middle = (
                bootstrap([np.array(scores)], interquartile_mean, resamples, rng)
                if len(scores) >= FEWEST
                else Estimate(float(scores[0]), math.nan, math.nan)
            )
        groups.append(_Group(environment, variant, study.name_of(variant), tuple(theirs), middle))
    order = {name: place for place, name in enumerate(study.plan.environments)}

    def rank(group: _Group) -> tuple[int, bool, int, float]:
        value = -math.inf if group.middle is None else group.middle.value
        return order[group.environment], group.stopped, -group.steps if group.stopped else 0, -value

    return sorted(groups, key=rank)


def _best(groups: Iterable[_Group], most: int) -> list[int]:
    """Return the settings that are best over all environments, by their mean place: one order for all."""
    places: dict[int, list[int]] = {}
    for theirs in _by_environment(groups).values():
        for place, group in enumerate(theirs):
            places.setdefault(group.variant, []).append(place)
    return sorted(places, key=lambda one: (sum(places[one]) / len(places[one]), one))[:most]


def _by_environment(
    groups: Iterable[_Group], variants: Sequence[int] | None = None
) -> dict[str, list[_Group]]:
    """Return the groups of each environment: all as they are, or those of `variants` in that order."""
    found: dict[str, list[_Group]] = {}
    for group in groups:
        if variants is None or group.variant in variants:
            found.setdefault(group.environment, []).append(group)
    if variants is not None:
        for theirs in found.values():
            theirs.sort(key=lambda group: variants.index(group.variant))
    return found


def _summary(study: Study, rows: Sequence[Mapping[str, Any]]) -> Section:
    plan = study.plan
    failed, stopped = sum(row["error"] is not None for row in rows), sum(row["stopped"] for row in rows)
    seconds = sum(row["seconds"] or 0.0 for row in rows)
    steps = sum(row["steps"] or 0 for row in rows)
    left = plan.n_runs - len(rows)
    told = [
        ("runs", f"{len(rows) - failed:,} of {plan.n_runs:,} ended well"),
        ("failed", f"{failed:,}"),
        ("stopped early", f"{stopped:,}") if plan.stopping is not None else None,
        ("left", f"{left:,}: the study is under way, or was ended") if left else None,
        ("environments", ", ".join(plan.environments)),
        ("settings", f"{plan.n_variants:,}"),
        ("seeds", f"{len(plan.seeds):,} for each"),
        ("steps of a run", f"{plan.total_steps:,}"),
        ("steps in all", f"{steps:,}"),
        ("time of a core", f"{durations.about(seconds)} for all runs, evaluation included"),
    ]
    changers = scale_changers(study.varied)
    score = (
        "A score is 0 for a random policy and 1 for the best one."
        if study.bounds is not None
        else "A score is the mean return of the greedy policy, as settings differ in "
        f"{' and '.join(changers)}, and so in what a random policy and the best one are worth."
        if changers
        else "A score is the mean return of the greedy policy, or where the model is known 0 for a random "
        "policy and 1 for the best one."
    )
    return Section("Summary").add_text(score).add_table((), [row for row in told if row is not None])


def _settings(groups: Sequence[_Group], study: Study, seeds: int) -> Section | None:
    if not groups:
        return None
    environments = len(study.plan.environments)
    (why,) = undecidable([[(seeds, seeds)] * environments], LEVEL, PERMUTATIONS)
    section = Section("Settings compared").add_text(
        "Interquartile mean of the scores of all runs with its 95 % bootstrap interval, best first. Where a "
        "run failed there is none: without it the others would flatter the setting. Whether a difference is "
        f"more than chance, dist-classicrl compare says{f', but one {why}' if why else ''}. "
        f"{caution(seeds)}"
    )
    if any(group.stopped for group in groups):
        section.add_text(
            "Settings that were stopped early had fewer steps, and come behind the others, those with more "
            "steps first: scores are compared after the same number of steps only. Those that were not were "
            "chosen by the scores of earlier runs with the same seeds, so theirs are a little flattering; "
            "new seeds, as dist-classicrl compare --until-significant runs them, are not."
        )
    _cut(section, groups, "settings")
    several = len(study.plan.environments) > 1
    rows = []
    for group in groups[:_MOST_ROWS]:
        middle, final = group.middle, [row["final_return"] for row in group.well]
        rows.append(
            [
                group.name + (" (stopped early)" if group.stopped else ""),
                *([group.environment] if several else []),
                f"{group.steps:,}",
                f"{len(group.well):,}",
                f"{len(group.rows) - len(group.well):,}",
                "-" if middle is None else f"{middle.value:.4g}",
                "-"
                if middle is None or math.isnan(middle.low)
                else f"{middle.low:.4g}\u00a0to\u00a0{middle.high:.4g}",
                "-" if not final else f"{math.fsum(final) / len(final):.4g}",
            ]
        )
    head = ["settings", *(["environment"] if several else [])]
    head += ["steps", "runs", "failed", "interquartile mean", "interval", "mean final return"]
    return section.add_table(head, rows)


def _intervals(groups: Sequence[_Group], note: str) -> Section | None:
    section, drawn = Section("Intervals"), 0
    section.add_text(f"Interquartile means of the scores with their intervals, in each environment. {note}")
    for name, theirs in _by_environment(groups, _best(groups, _MOST_BARS)).items():
        bars = {
            each.name: (each.middle.value, each.middle.low, each.middle.high)
            for each in theirs
            if each.middle is not None and not math.isnan(each.middle.low) and not each.stopped
        }
        if bars and drawn < _MOST_PICTURES:
            figure = plotting.plot_comparison({name: bars})
            section.add_figure(figure, f"Interquartile means with intervals in {name}")
            drawn += 1
    return section if drawn else None


def _curves(study: Study, groups: Sequence[_Group], resamples: int, note: str) -> Section | None:
    points: dict[int, dict[int, float | None]] = {}
    for point in study.curves():
        points.setdefault(point["run"], {})[point["step"]] = point["mean_return"]
    section = Section("Learning curves").add_text(
        "Mean return of the episodes of the training, exploration included: interquartile mean over seeds "
        f"with its 95 % bootstrap interval. {note}"
    )
    drawn = 0
    for name, theirs in _by_environment(groups, _best(groups, _MOST_LINES)).items():
        lines = {}
        for group in [each for each in theirs if each.middle is not None and not each.stopped]:
            steps, band = _curve([points.get(row["run"], {}) for row in group.well], resamples)
            if len(steps):
                lines[group.name] = (steps, band)
        if not lines or drawn == _MOST_PICTURES:
            continue
        common = np.array(sorted(set.intersection(*(set(steps) for steps, _ in lines.values()))))
        if not len(common):
            continue
        shown = {}
        for each, (steps, band) in lines.items():
            is_common = np.isin(steps, common)
            shown[each] = (band.middle[is_common], band.low[is_common], band.high[is_common])
        figure = plotting.plot_learning_curves(common, shown, name, "mean return")
        section.add_figure(figure, f"Learning curves of {counted(len(shown), 'setting')} in {name}")
        drawn += 1
    return section if drawn else None


def _curve(runs: Sequence[Mapping[int, float | None]], resamples: int) -> tuple[np.ndarray, Band]:
    """Return the steps at which all runs have a return, and the middle there."""
    steps = [step for step in runs[0] if all(run.get(step) is not None for run in runs)]
    values = np.array([[run[step] for step in steps] for run in runs], float)
    if not steps or len(runs) < FEWEST:
        return np.array(steps), Band(*(values[0] if steps else np.empty(0),) * 3)
    return np.array(steps), curve_with_interval(values, resamples=resamples)


def _profiles(study: Study, groups: Sequence[_Group], resamples: int) -> Section | None:
    if len(study.plan.environments) > 1 and study.bounds is None:
        return None  # scores of several scales
    scores = study.scores()
    ranked = [study.name_of(variant) for variant in _best(groups, study.plan.n_variants)]
    whole = [name for name in ranked if all(name in each for each in scores.values())][:_MOST_LINES]
    if not whole or study.whole_seeds < FEWEST:
        return None
    values = np.concatenate([np.asarray(each[name]) for each in scores.values() for name in whole])
    margin = 0.05 * float(np.ptp(values)) or 0.05  # also where all scores are alike
    thresholds = np.linspace(values.min() - margin, values.max() + margin, _THRESHOLDS)
    profiles = {}
    for name in whole:
        band = performance_profile(scores, name, thresholds, resamples=resamples)
        profiles[name] = (band.middle, band.low, band.high)
    said = (
        "Fraction of runs, of all seeds and environments, that score above a threshold. Higher is better. "
        f"{caution(study.whole_seeds)}"
    )
    figure = plotting.plot_profiles(thresholds, profiles)
    return (
        Section("Performance profiles")
        .add_text(said)
        .add_figure(figure, f"Performance profiles of {counted(len(profiles), 'setting')}")
    )


def _sensitivity(study: Study) -> Section | None:
    section, drawn = Section("What each setting matters"), 0
    section.add_text(
        "Mean score of the runs with each value, over whatever else they had, with its 95 % t-interval, and "
        "the share of the variance of scores that a setting explains by itself."
    )
    rows = study.first_rows()
    if study.plan.stopping is not None:
        steps = max((row["steps"] or 0 for row in rows), default=0)
        section.add_text(
            f"Scores are those after the first rung, of {counted(steps, 'step')}, which all settings had: "
            "those that got further were chosen by their scores, and say nothing of the others."
        )
    for environment in study.plan.environments:
        ours = [row for row in rows if row["environment"] == environment and row["score"] is not None]
        settings = {name: _numbers([row[name] for row in ours]) for name in study.varied}
        settings = {name: values for name, values in settings.items() if len(set(values)) > 1}
        if len(ours) < FEWEST or not settings or drawn == _MOST_PICTURES:
            continue
        found = sensitivity(settings, [row["score"] for row in ours])
        figure = plotting.plot_sensitivity(
            {name: (each.values, each.means, each.low, each.high) for name, each in found.items()},
            {name: each.explained for name, each in found.items()},
            environment,
        )
        section.add_figure(figure, f"Mean score for each value of each setting in {environment}")
        drawn += 1
    return section if drawn else None


def _numbers(values: list[Any]) -> list[Any]:
    """Return values of a setting as numbers, where all of them are, and else as words."""
    are_numbers = all(is_real(value) and math.isfinite(value) for value in values)
    return [float(value) if are_numbers else str(value) for value in values]


def _exact(groups: Sequence[_Group]) -> Section | None:
    rows = []
    for group in groups:
        known = [row for row in group.well if row["optimal_value"] is not None]
        if not known:
            continue
        # Where the best is known, a value that is not is minus infinity, at discount factor 1.
        values = [-math.inf if row["exact_value"] is None else row["exact_value"] for row in known]
        best = known[0]["optimal_value"]
        gaps = [max(0.0, best - value) for value in values]  # rounding may be below
        mean = math.fsum(gaps) / len(gaps)
        rows.append(
            [
                group.name + (" (stopped early)" if group.stopped else ""),
                group.environment,
                "-" if known[0]["random_value"] is None else f"{known[0]['random_value']:.6g}",
                f"{best:.6g}",
                f"{math.fsum(values) / len(values):.6g}",
                f"{mean:.3g}" + (f" ({mean / abs(best):.2%})" if best and math.isfinite(mean) else ""),
                f"{max(gaps):.3g}",
            ]
        )
    if not rows:
        return None
    section = Section("Exact gaps").add_text(
        "Discounted values from the start states, computed from the models of the environments. They depend "
        "on discount_factor: with another one the best value is another one, too."
    )
    _cut(section, rows, "settings")
    head = ("settings", "environment", "random", "best", "mean of the runs", "mean gap", "largest gap")
    return section.add_table(head, rows[:_MOST_ROWS])


def _failures(study: Study, rows: Sequence[Mapping[str, Any]]) -> Section | None:
    failed = [row for row in rows if row["error"] is not None]
    if not failed:
        return None
    section = Section("Failed runs").add_text(
        "They cost the others nothing; dist-classicrl sweep --retry-failed makes them once more."
    )
    _cut(section, failed, "failed runs")
    told = [
        (row["run"], row["environment"], study.name_of(row["variant"]), row["seed"], _error(row["error"]))
        for row in failed[:_MOST_ROWS]
    ]
    return section.add_table(("run", "environment", "settings", "seed", "error"), told)


def _error(text: str) -> str:
    return " ".join(without_password(each) for each in text.split())


def _how(study: Study) -> Section:
    plan = study.plan
    first, last = plan.seeds[0], plan.seeds[-1]
    is_range = len(plan.seeds) == last - first + 1 and plan.seeds == tuple(range(first, last + 1))
    rows: list[tuple[str, str]] = [
        *((f"environment {name}", what) for name, what in plan.environments.items()),
        ("seeds", f"{first} to {last}" if is_range else ", ".join(map(str, plan.seeds))),
        ("steps of a run", f"{plan.total_steps:,}"),
        ("points of a curve", f"{plan.points:,}"),
        ("greedy episodes at the end", f"{plan.eval_episodes:,}"),
        ("early stopping", _words(plan.stopping)),
        ("settings that differ", ", ".join(plan.varied) or "none"),
    ]
    if plan.search is not None:
        rows.append(("search", f"{plan.search['sampler']}, from seed {plan.search['seed']}"))
    first_known = (settings for settings in plan.variants if settings is not None)
    shared: Mapping[str, Any] = next(first_known, plan.search["shared"] if plan.search else {})
    rows += [
        (each.name, without_password(str(cell(kept_value(shared, each.name)))))
        for each in fields(Settings)
        if each.name not in plan.varied and each.name != "seed"
    ]
    return Section("How it was made").add_table((), rows)


def _words(data: Mapping[str, Any] | None) -> str:
    return "none" if data is None else ", ".join(f"{name}={value}" for name, value in data.items())


def _machines(study: Study) -> Section | None:
    makers = [{name: str(value) for name, value in each.items()} for each in study.makers()]
    if not makers:
        return None
    section = Section("Machines and versions").add_text("Of the processes that made these runs.")
    runs: Counter[tuple[tuple[str, str], ...]] = Counter()
    processes: Counter[tuple[tuple[str, str], ...]] = Counter()
    for each in makers:
        count = int(each.pop("runs"))
        alike = tuple(each.items())
        runs[alike] += count
        processes[alike] += 1
    for alike, count in runs.most_common(_MOST_PICTURES):
        made = f"{count:,} in {counted(processes[alike], 'process')}"
        section.add_table((), [("runs", made), *alike])
    if len(runs) > _MOST_PICTURES:
        section.add_text(f"{len(runs) - _MOST_PICTURES:,} other machines or versions made fewer runs each.")
    return section


def _cut(section: Section, rows: Sequence[Any], what: str) -> None:
    if len(rows) > _MOST_ROWS:
        section.add_text(f"The first {_MOST_ROWS:,} of {len(rows):,} {what}.")
