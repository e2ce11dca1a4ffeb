"""What a training did, and where its files are, in a few lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dist_classicrl.cli.run_folder import RunFolder, short_path

if TYPE_CHECKING:
    from dist_classicrl.agent.result import TrainingResult
    from dist_classicrl.evaluation.episodes import EvaluationResult


def summary(
    folder: RunFolder, result: TrainingResult, evaluation: EvaluationResult | str | None = None
) -> list[str]:
    """Return lines that say what a training did, and where its files are.

    A text in place of an evaluation says why there is none. None: it was not evaluated now.
    """
    asked = folder.read_config().get("total_steps", result.steps)
    workers = "1 worker" if result.workers == 1 else f"{result.workers} workers"
    rate = f"{result.steps_per_second:,.0f} steps/s on {workers}"
    rows = {"trained": f"{result.steps:,} steps in {result.seconds:.3g} s, {rate}"}
    if result.steps < asked:
        rows["ended early"] = f"of {asked:,} steps{_why_early(folder)}"
    rows["mean return"] = "no episode has ended"
    if result.episodes:
        rows["mean return"] = f"{result.mean_return:.4g} while exploring, {result.episodes:,} episodes"
    if isinstance(evaluation, str):
        rows["greedy return"] = evaluation
    elif evaluation is not None:
        rows["greedy return"] = (
            f"{evaluation.mean_return:.4g} (standard deviation {evaluation.std_return:.3g}, "
            f"{evaluation.episodes:,} episodes)"
        )
    if result.resumed_from is not None:
        rows["resumed from"] = short_path(result.resumed_from)
    if result.lost_workers:
        rows["lost"] = ", ".join(f"rank {rank}" for rank in result.lost_workers)
    place = short_path(folder.path)
    rows["files"] = f"{place}: {', '.join(_files(folder))}"
    rows["next"] = f"dist-classicrl show {place}; dist-classicrl plot {place}"
    return [f"{name:<14} {text}" for name, text in rows.items()]


def _why_early(folder: RunFolder) -> str:
    threshold = folder.read_config().get("stop_at_return")
    return "" if threshold is None else f": the mean return has reached --stop-at-return {threshold:g}"


def _files(folder: RunFolder) -> list[str]:
    return sorted(path.name for path in folder.path.iterdir() if not path.name.startswith("."))
