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

    Parameters
    ----------
    folder : RunFolder
    result : TrainingResult
    evaluation : EvaluationResult, str or None
        A text says why there is none. None: it was not evaluated now.
    """
    asked = folder.read_config().get("total_steps", result.steps)
    workers = "1 worker" if result.workers == 1 else f"{result.workers} workers"
    rows = [
        (
            "trained",
            f"{result.steps:,} steps in {result.seconds:.3g} s, {result.steps_per_second:,.0f} steps/s "
            f"on {workers}",
        ),
        (
            "mean return",
            f"{result.mean_return:.4g} while exploring, {result.episodes:,} episodes"
            if result.episodes
            else "no episode has ended",
        ),
    ]
    if result.steps < asked:
        rows.insert(1, ("ended early", f"of {asked:,} steps{_why_early(folder)}"))
    if isinstance(evaluation, str):
        rows.append(("greedy return", evaluation))
    elif evaluation is not None:
        rows.append(
            (
                "greedy return",
                f"{evaluation.mean_return:.4g} (standard deviation {evaluation.std_return:.3g}, "
                f"{evaluation.episodes:,} episodes)",
            )
        )
    if result.resumed_from is not None:
        rows.append(("resumed from", short_path(result.resumed_from)))
    if result.lost_workers:
        rows.append(("lost", ", ".join(f"rank {rank}" for rank in result.lost_workers)))
    place = short_path(folder.path)
    rows.append(("files", f"{place}: {', '.join(_files(folder))}"))
    rows.append(("next", f"dist-classicrl show {place}; dist-classicrl plot {place}"))
    return [f"{name:<14} {text}" for name, text in rows]


def _why_early(folder: RunFolder) -> str:
    threshold = folder.read_config().get("stop_at_return")
    return "" if threshold is None else f": the mean return has reached --stop-at-return {threshold:g}"


def _files(folder: RunFolder) -> list[str]:
    return sorted(path.name for path in folder.path.iterdir() if not path.name.startswith("."))
