"""`Study`: what came out of a sweep, as one tidy table."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dist_classicrl._files import whole_file
from dist_classicrl.checks import checked_file, checked_path, require_package
from dist_classicrl.errors import StudyError
from dist_classicrl.sweep.choosing.halving import SuccessiveHalving
from dist_classicrl.sweep.folder import PLAN, StudyFolder, written
from dist_classicrl.sweep.kept.more_seeds import why_no_others
from dist_classicrl.sweep.plan import Plan, Trial

if TYPE_CHECKING:
    import pandas

# The columns of results.csv that follow the environment, the settings that differ, and the seed.
_RESULTS = (
    "steps",
    "episodes",
    "training_return",
    "final_return",
    "best_return",
    "exact_value",
    "optimal_value",
    "random_value",
    "score",
    "stopped",
    "error",
)
_LONG = 10  # characters of a number
_TIMES = ("seconds", "train_seconds")


class Study:
    """The runs of a study that are made, read from its folder.

    Parameters
    ----------
    folder : path
        Of a `Sweep`, which may be under way.

    Attributes
    ----------
    plan : Plan
        What the study consists of: environments, settings, seeds, steps.
    varied : tuple of str
        The settings that differ.

    Raises
    ------
    StudyError
        If there is no study, or its file is damaged.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(checked_path("folder", folder))
        self._files = StudyFolder(self.folder)
        self._made_rows: list[dict[str, Any]] = []
        self._rows_of = (0, 0, 0)  # records of which these rows are, those that others have replaced, seeds
        data = self._files.plan()
        try:
            self.plan = Plan.of_dict(data)
            stopping = data["stopping"]
            self._stopping = None if stopping is None else SuccessiveHalving(**stopping)
            self.varied = self.plan.varied
            self._shown: dict[int, dict[str, Any]] = {}
            self._names: dict[int, str] = {}
            self._learn_settings()
        except StudyError:
            raise
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            raise StudyError(
                f"{self.folder / PLAN} is damaged, or no study of this program ({error!r}). Give a folder "
                "that `dist-classicrl sweep` or Sweep has made."
            ) from error

    def __repr__(self) -> str:
        done, failed = self.done, self.failed
        return f"Study({str(self.folder)!r}, {done:,} of {self.plan.n_runs:,} runs done, {failed:,} failed)"

    def _learn_seeds(self) -> None:
        """Take in seeds that have been added since."""
        while more := self._files.seeds_after(seeds := self.plan.seeds):
            added = (*self.plan.added, len(seeds))
            self.plan = replace(self.plan, seeds=(*seeds, *more), added=added)

    def _learn_settings(self) -> None:
        """Take in settings that have been decided since."""
        for number in range(self.plan.n_variants):
            if number in self._shown:
                continue
            if self.plan.variants[number] is None:
                found = self._files.proposed(number)
                if found is None:
                    continue
                self.plan.variants[number] = found["settings"]  # type: ignore[index]
            shown = self.plan.shown(number)
            name = " ".join(f"{name}={_short(str(value))}" for name, value in shown.items()) or "default"
            # A search may draw the same once more, or almost.
            is_new = name not in self._names.values()
            self._shown[number] = shown
            self._names[number] = name if is_new else f"{name} (settings {number})"

    @property
    def done(self) -> int:
        """Runs that ended well."""
        return sum(row["error"] is None for row in self._rows())

    @property
    def failed(self) -> int:
        """Runs that raised an error."""
        return sum(row["error"] is not None for row in self._rows())

    @property
    def environments(self) -> tuple[str, ...]:
        """The names of the environments."""
        return tuple(self.plan.environments)

    @property
    def trainings(self) -> int:
        """How many trainings the study has in all: with early stopping, more than runs."""
        self._learn_seeds()
        return self.plan.n_trainings(self._stopping)

    @property
    def can_grow(self) -> bool:
        """Whether seeds can be added: nothing has been chosen by the scores of those that are there."""
        return why_no_others(self.plan.search, self.plan.stopping) is None

    @property
    def is_made(self) -> bool:
        """Whether all trainings have been made."""
        made, total = self._files.records(), self.trainings
        return len(made) >= total <= self.plan.n_made(made)

    def number_of(self, record: Mapping[str, Any]) -> int | None:
        """Return the number, as in `rows`, of the run that a record is of; None if the study has it not."""
        number = self.plan.number_of(record["run"])
        if number is None:
            self._learn_seeds()
            number = self.plan.number_of(record["run"])
        return number

    def group_of(self, run: int) -> tuple[str, str]:
        """Return the environment of a run of this number, and its settings as words."""
        trial = self.plan.trial(run)
        if trial.variant not in self._names:
            self._learn_settings()
        return trial.environment, self.name_of(trial.variant)

    def rows(self) -> list[dict[str, Any]]:
        """Return a dict for each run that is made, in the order of the plan.

        Keys are run, environment, variant, the settings that differ (numbers, flags and None as they are,
        others as words), seed, and what came out: steps, episodes, training_return (mean over all episodes),
        final_return (mean of greedy episodes), best_return (largest of the curve), exact_value, optimal_value
        and random_value (discounted, of the start states; None where the model is not known), score, stopped
        (whether early stopping ended it) and error. A score is 0 for a random policy and 1 for the best where
        these are known, and else the final_return; so it is where discount_factor or use_action_mask differ,
        with which these values are others. A policy whose value is minus infinity has 0 at most.
        """
        return [dict(row) for row in self._rows()]

    def first_rows(self) -> list[dict[str, Any]]:
        """Return `rows` of the first trainings of all runs, which have the same steps.

        With early stopping these are the trainings of the first rung, which all settings have, those that
        got further included; `stopped` is that of the run. Without it they are `rows`.
        """
        if self._stopping is None:
            return self.rows()
        records, steps = self._files.records(), self._stopping.steps(0, self.plan.total_steps)
        trials = [self.plan.trial(number, steps) for number in range(self.plan.n_runs)]
        stopped = {row["run"]: row["stopped"] for row in self._rows()}
        self._learn_settings()
        return [
            self._row(each, records[each.key], stopped[each.number]) for each in trials if each.key in records
        ]

    def _rows(self) -> list[dict[str, Any]]:
        """Return `rows`, made anew only where there are more records than before."""
        n_records = len(self._files.records())
        self._learn_seeds()
        known = (n_records, self._files.withdrawn, len(self.plan.seeds))
        found = list(self._records()) if known != self._rows_of else []
        self._learn_settings()  # after the records are read: those of all runs that have any are decided
        if known != self._rows_of:
            self._made_rows = [self._row(*each) for each in found]
            self._rows_of = known
        return self._made_rows

    def _records(self) -> Iterator[tuple[Trial, dict[str, Any], bool]]:
        """Yield the longest training of each run, its record, and whether it was stopped early."""
        records = self._files.records()
        stopping, total = self._stopping, self.plan.total_steps
        rungs = (
            [total] if stopping is None else [stopping.steps(rung, total) for rung in range(stopping.rungs)]
        )
        for number in range(self.plan.n_runs):
            trials = (self.plan.trial(number, steps) for steps in reversed(rungs))
            trial = next((trial for trial in trials if trial.key in records), None)
            if trial is not None:
                yield trial, records[trial.key], trial.total_steps != total

    def _row(self, trial: Trial, record: Mapping[str, Any], stopped: bool) -> dict[str, Any]:
        row: dict[str, Any] = {
            "run": trial.number,
            "environment": trial.environment,
            "variant": trial.variant,
        }
        row |= self._shown[trial.variant] | {"seed": trial.seed}
        row |= {name: record.get(name) for name in (*_RESULTS, *_TIMES)}
        returns = [point[1] for point in record.get("curve", ()) if point[1] is not None]
        row["best_return"] = max(returns, default=None)
        row["score"] = None if record["error"] is not None else score_of(record, self.varied)
        row["stopped"] = stopped
        return row

    def makers(self) -> list[dict[str, Any]]:
        """Return a dict for each process that made runs: how many `runs`, its host, system and versions."""
        return self._files.makers()

    def curves(self) -> list[dict[str, Any]]:
        """Return a dict for each point of each learning curve.

        Keys are run, step, mean_return (None if no episode ended since the last point) and episodes.
        """
        return [
            {"run": trial.number, "step": step, "mean_return": mean, "episodes": episodes}
            for trial, record, _ in self._records()
            for step, mean, episodes in record.get("curve", ())
        ]

    def scores(self) -> dict[str, dict[str, list[float]]]:
        """Return the scores of the seeds by environment and by settings, where all runs have all steps.

        They are of the first `whole_seeds`. Settings with a run that failed or is missing are left out, and
        those that were stopped early: their scores are chosen, and of fewer steps.
        """
        found: dict[str, dict[str, list[float]]] = {name: {} for name in self.plan.environments}
        rows, seeds = self._whole_rows()
        for row in rows:
            if row["score"] is not None and not row["stopped"]:
                found[row["environment"]].setdefault(self.name_of(row["variant"]), []).append(row["score"])
        return {
            name: {variant: scores for variant, scores in each.items() if len(scores) == seeds}
            for name, each in found.items()
        }

    @property
    def whole_seeds(self) -> int:
        """How many seeds there are, without those that were added and of which runs are missing."""
        return self._whole_rows()[1]

    def _whole_rows(self) -> tuple[list[dict[str, Any]], int]:
        """Return the rows of these seeds, and how many seeds they are."""
        rows, plan = self._rows(), self.plan
        if not plan.added:
            return rows, len(plan.seeds)
        made = Counter(row["seed"] for row in rows)
        whole = [made[seed] * len(plan.seeds) == plan.n_runs for seed in plan.seeds]
        ends = [end for end in (*plan.added, len(whole)) if all(whole[:end])]
        seeds = max([plan.begun_with, *ends])
        counted = set(plan.seeds[:seeds])
        return [row for row in rows if row["seed"] in counted], seeds

    def variants(self) -> list[int]:
        """Return the numbers of the settings, which a search by what came out decides one after the other."""
        self._learn_settings()
        return list(self._shown)

    def left_out(self) -> dict[str, str]:
        """Return the settings that `scores` does not have in each environment, and why."""
        scores, why = self.scores(), {}
        of: dict[tuple[str, int], list[dict[str, Any]]] = {}
        whole, seeds = self._whole_rows()
        for row in whole:
            of.setdefault((row["environment"], row["variant"]), []).append(row)
        for variant in self.variants():
            name, reasons = self.name_of(variant), []
            for environment in scores:
                rows = of.get((environment, variant), [])
                if name in scores[environment]:
                    continue
                if any(row["stopped"] for row in rows):
                    reasons.append(f"stopped early in {environment}")
                elif failed := sum(row["error"] is not None for row in rows):
                    reasons.append(f"{failed:,} of {len(rows):,} runs failed in {environment}")
                else:
                    reasons.append(f"{len(rows):,} of {seeds:,} runs are made in {environment}")
            if reasons:
                why[name] = ", ".join(reasons)
        return why

    @property
    def bounds(self) -> dict[str, tuple[float, float]] | None:
        """What `compare` takes as bounds of `scores`: 0 and 1, or None where some scores are returns."""
        well = [row for row in self._rows() if row["error"] is None]
        if not all(has_scale(row, self.varied) for row in well):
            return None
        return dict.fromkeys(self.plan.environments, (0.0, 1.0))

    def name_of(self, variant: int) -> str:
        """Return settings as words, as ``learning_rate=0.1 epsilon=0.2``; long numbers have four digits.

        A policy, as which `behavior` may be given, is ``behavior=policy 3f2a9c1d``, by a digest of its
        numbers. They stand in ``plan.variants[variant]``.
        """
        return self._names[variant]

    def summary(self) -> list[dict[str, Any]]:
        """Return a dict for each environment and settings: runs, failed, mean and spread of the scores.

        `steps` is how many the longest of these runs had: with early stopping scores of others are of fewer.
        `standard_error` is that of the mean score; None for a single run. Where a run failed both are None:
        of the others alone the mean would flatter the settings. So they are while some runs have more steps
        than others.
        """
        groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
        for row in self._rows():
            groups.setdefault((row["environment"], row["variant"]), []).append(row)
        return [
            {
                "environment": name,
                "settings": self.name_of(variant),
                "runs": len(rows),
                "failed": sum(row["error"] is not None for row in rows),
                "stopped": rows[0]["stopped"],
                "steps": max(row["steps"] or 0 for row in rows),
                **_spread([row["score"] if row["steps"] == rows[0]["steps"] else None for row in rows]),
            }
            for (name, variant), rows in groups.items()
        ]

    def frame(self) -> pandas.DataFrame:
        """Return `rows` as a pandas.DataFrame; MissingExtraError where pandas is not installed.

        The column of a setting that is a number in some rows and words in others, such as a schedule, holds
        both as they are.
        """
        require_package("pandas", "A data frame", "sweep")
        import pandas

        columns = ["run", "environment", "variant", *self.varied, "seed", *_RESULTS, *_TIMES]
        return pandas.DataFrame(self._rows(), columns=columns)

    def write_tables(self) -> tuple[Path, Path]:
        """Write results.csv and curves.csv into the folder, and return their paths.

        Neither has times: they are the same bytes however often the sweep was ended and by whom it was made.
        """
        results, curves = self.folder / "results.csv", self.folder / "curves.csv"
        head = ["run", "environment", *self.varied, "seed", *_RESULTS]
        rows = [row | {name: str(row[name]) for name in self.varied} for row in self._rows()]
        with written(self.folder):
            _write_csv(results, head, rows)
            _write_csv(curves, ["run", "step", "mean_return", "episodes"], self.curves())
        return results, curves

    def to_parquet(self, path: str | os.PathLike[str]) -> Path:
        """Write `frame` to a Parquet file; MissingExtraError where pandas or pyarrow is not installed.

        A column there is of one type: that of a setting which is a number in some rows, and words in others,
        has words alone.
        """
        target = Path(checked_file("to_parquet", path, "study.parquet"))
        require_package("pyarrow", "A Parquet file", "sweep")
        buffer, frame = io.BytesIO(), self.frame()
        for name in self.varied:
            if len({isinstance(value, str) for value in frame[name].dropna()}) > 1:
                frame[name] = frame[name].map(str, na_action="ignore")
        frame.to_parquet(buffer, index=False, engine="pyarrow")
        with whole_file(target) as file:
            file.write(buffer.getvalue())
        return target


def is_study(folder: str | os.PathLike[str]) -> bool:
    """Whether this is the folder of a study."""
    return (Path(folder) / PLAN).is_file()


def check_one_scale(study: Study) -> None:
    """Raise StudyError where scores of several environments are returns, which cannot be added up."""
    if study.bounds is None and len(study.environments) > 1:
        raise of_several_scales(f"Scores of {study.folder}", study.environments)


def of_several_scales(scores: str, environments: Iterable[str]) -> StudyError:
    """Return the error that says that these scores cannot be added up."""
    return StudyError(
        f"{scores} are returns, on a scale of its own in each of {', '.join(environments)}, so that settings "
        "cannot be compared by all of them. Make a study of each, or vary neither discount_factor nor "
        "use_action_mask where the models are known."
    )


def score_of(record: Mapping[str, Any], varied: Sequence[str]) -> float:
    """Return the score of a run: 0 for a random policy, 1 for the best; NaN for one that failed.

    Where these are not known, or are the same, the mean return of the greedy policy. So it is where
    discount_factor is `varied`: a smaller one makes the best value easier to come near to; and where
    use_action_mask is: a random policy that knows what is legal is a better one.
    """
    if record["error"] is not None:
        return math.nan
    value, best, random = (record[name] for name in ("exact_value", "optimal_value", "random_value"))
    if not has_scale(record, varied):
        return float(record["final_return"])
    if value is not None:
        return float((value - random) / (best - random))
    # Minus infinity, at discount factor 1: a time limit cuts off most of what it costs.
    return min(0.0, float((record["final_return"] - random) / (best - random)))


def has_scale(record: Mapping[str, Any], varied: Sequence[str]) -> bool:
    """Whether values of a random policy and a better best are known, and the same ones for all settings."""
    best, random = record["optimal_value"], record["random_value"]
    is_known = None not in (best, random) and not scale_changers(varied)
    return is_known and bool(best - random > 1e-9 * abs(best))


def scale_changers(varied: Sequence[str]) -> list[str]:
    """Return which settings that differ change what a random policy or the best one is worth."""
    return [name for name in ("discount_factor", "use_action_mask") if name in varied]


def _short(text: str) -> str:
    """Return a number of many digits with four."""
    try:
        return f"{float(text):.4g}" if len(text) > _LONG else text
    except ValueError:
        return text


def _spread(found: list[float | None]) -> dict[str, float | None]:
    scores = [score for score in found if score is not None]
    n = len(scores)
    if n < len(found):
        return {"mean_score": None, "standard_error": None}
    mean = math.fsum(scores) / n
    variance = math.fsum((score - mean) ** 2 for score in scores) / (n - 1) if n > 1 else math.nan
    return {"mean_score": mean, "standard_error": math.sqrt(variance / n) if n > 1 else None}


def _write_csv(path: Path, head: list[str], rows: list[dict[str, Any]]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, head, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        words = {name: json.dumps(value) if isinstance(value, bool) else value for name, value in row.items()}
        writer.writerow(words)
    with whole_file(path) as file:
        file.write(text.getvalue().encode(errors="backslashreplace"))
