"""Files of metrics of runs that never were, as `MetricsCallback` writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np


def report(
    step: int, time: float, ranks: list[dict[str, Any]] | None = None, **changed: Any
) -> dict[str, Any]:
    """A line of progress; `changed` replaces what it says otherwise."""
    return {
        "kind": "progress", "step": step, "time": time, "recent_return": 0.5, "steps": step,
        "total_steps": 10_000_000, "steps_per_second": 1e6, "episodes": 100, "mean_return": 0.5,
        "seconds": time, "mean_length": 20.0, "td_error": 0.1, "epsilon": 0.1, "learning_rate": 0.1,
        "communication_fraction": 0.02, "pushes": 10, "bytes_pushed": 1000, "bytes_pulled": 1000,
        "bytes_saved": 0, "compression_seconds": 0.0, "most_waiting": 0, "staleness": 1.0,
        "workers": len(ranks or [0]), "ranks": ranks or [], **changed,
    }  # fmt: skip


def rank(number: int, steps: int, seconds: float = 5.0, communication: float = 0.02) -> dict[str, Any]:
    """What a line of progress says of a rank."""
    return {
        "rank": number, "host": f"node{number}", "steps": steps, "steps_per_second": steps / seconds,
        "communication_fraction": communication, "staleness": 1.0, "silence": 0.1,
    }  # fmt: skip


def event(kind: str, number: int, step: int, time: float) -> dict[str, Any]:
    """A line about an event."""
    what = {"kind": kind, "rank": number, "seconds": time, "steps_returned": 0, "detail": ""}
    return {"kind": "event", "step": step, "time": time, "event": what}


def write(folder: Path, lines: list[dict[str, Any]]) -> Path:
    """Write a folder with `metrics.jsonl` in it."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.joinpath("metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def learning_run(
    folder: Path, reports: int = 40, workers: int = 3, seed: int = 0, every: float = 5.0, rate: float = 1e6
) -> Path:
    """A run whose return rises; each worker makes about `rate` steps per second."""
    draw = np.random.default_rng(seed)
    lines, step = [], 0
    for i in range(1, reports + 1):
        steps = (rate * every * draw.uniform(0.8, 1.2, workers)).astype(int).tolist()
        step += sum(steps)
        share = 1 - np.exp(-i / (reports / 4))
        ranks = [
            rank(number + 1, steps[number], every, float(draw.uniform(0.01, 0.04)))
            for number in range(workers)
        ]
        lines.append(
            report(
                step, i * every, ranks, steps_per_second=sum(steps) / every, episodes=int(step // 50),
                mean_return=float(0.7 * share + draw.normal(0, 0.03)),
                td_error=float(0.2 * np.exp(-3 * share)),
                communication_fraction=float(draw.uniform(0.015, 0.03)),
            )
        )  # fmt: skip
    return write(folder, lines)
