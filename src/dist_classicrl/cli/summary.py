"""What a training did, and where its files are, in a few lines."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dist_classicrl._words import counted
from dist_classicrl.cli.run_folder import RunFolder, short_path

if TYPE_CHECKING:
    from dist_classicrl.agent.result import TrainingResult


def summary(
    folder: RunFolder, result: TrainingResult, greedy: Mapping[str, Any] | str | None = None
) -> list[str]:
    """Return lines that say what a training did, and where its files are.

    `greedy` is what the greedy policy is worth, as `EvaluationResult.in_short` has it, or why that is not
    known; None: nobody has found out.
    """
    asked = folder.read_config().get("total_steps", result.steps)
    rate = f"{result.steps_per_second:,.0f} steps/s on {counted(result.workers, 'worker')}"
    rows = {"trained": f"{result.steps:,} steps in {result.seconds:.3g} s, {rate}"}
    if result.steps < asked:
        rows["ended early"] = f"of {asked:,} steps{_why_early(folder, result)}"
    rows["mean return"] = "no episode has ended"
    if result.episodes:
        rows["mean return"] = f"{result.mean_return:.4g} while exploring, {result.episodes:,} episodes"
    place = short_path(folder.path)
    if greedy is None or isinstance(greedy, str):
        why = "" if greedy is None else f": {greedy}"
        rows["greedy return"] = f"not known{why}; see `{_program()} evaluate {shlex.quote(place)}`"
    else:
        rows["greedy return"] = (
            f"{greedy['mean_return']:.4g} (standard deviation {greedy['std_return']:.3g}, "
            f"{greedy['episodes']:,} episodes)"
        )
        if greedy["hint"]:
            rows["hint"] = greedy["hint"]
    if result.resumed_from is not None:
        rows["resumed from"] = short_path(result.resumed_from)
    if result.lost_workers:
        rows["lost"] = ", ".join(f"rank {rank}" for rank in result.lost_workers)
    rows["files"] = f"{place}: {', '.join(_files(folder))}"
    rows["next"] = "; ".join(f"{_program()} {verb} {shlex.quote(place)}" for verb in ("show", "plot"))
    return [f"{name:<14} {text}" for name, text in rows.items()]


def _program() -> str:
    """Return how this command line is typed."""
    if shutil.which("dist-classicrl") is not None:
        return "dist-classicrl"
    return f"{shlex.quote(short_path(sys.executable))} -m dist_classicrl"


def _why_early(folder: RunFolder, result: TrainingResult) -> str:
    config = folder.read_config()
    most, threshold = config.get("total_episodes"), config.get("stop_at_return")
    if most is not None and result.episodes >= most:
        return f": all --total-episodes {most:,} have ended"
    return "" if threshold is None else f": the mean return has reached --stop-at-return {threshold:g}"


def _files(folder: RunFolder) -> list[str]:
    return sorted(path.name for path in folder.path.iterdir() if not path.name.startswith("."))
