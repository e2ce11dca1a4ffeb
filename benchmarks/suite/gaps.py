"""The aims of the package against what was measured, and the largest gap of each part to its bound."""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]
Gap = tuple[float, str]
"""Ours over the bound, by which 1 and more is as good, and the case."""

AIMS = {
    # what, of which subject, against whom, how many times as good
    "500 times the loop of tutorials": ("learning", "ours, compiled", "loop in Python", 500.0),
    "100 times EnvPool's bare stepping, 1 thread": (
        "learning",
        "ours, compiled",
        "bare: EnvPool, 1 thread",
        100.0,
    ),
    "as fast as C": ("c", "ours", "C", 1.0),
    "start-up under 1.3 of bare imports": (
        "startup",
        "ours, until the first step",
        "bare imports, and exit",
        1.0 / 1.3,
    ),
}
STAGES = {"push": "push", "apply": "apply", "re-base": "re-base"}


def ratio(row: Row, ours: str, other: str) -> float | None:
    """Return how many times as good ours is as another candidate; None where one of them has no figure."""
    figures = row.get("figures", {})
    if ours not in figures or other not in figures:
        return None
    found = float(figures[ours]["median"]) / float(figures[other]["median"])
    return found if row["unit"].endswith("/s") else 1.0 / found


def ratios(rows: list[Row], subject: str, ours: str, other: str) -> list[Gap]:
    """Return the ratios of all cases of a subject, the smallest first."""
    found = [(ratio(row, ours, other), row["case"]) for row in rows if row["subject"] == subject]
    return sorted((value, case) for value, case in found if value is not None)


def largest_gaps(rows: list[Row]) -> dict[str, tuple[str, Gap]]:
    """Return by part its bound and the largest gap to it."""
    found: dict[str, tuple[str, list[Gap]]] = {
        "kernel": ("the same loop in C", ratios(rows, "c", "ours", "C")),
    }
    for stage, begins in STAGES.items():
        gaps = [
            (float(figures["ours"]["median"]) / float(figures["C"]["median"]), row["case"])
            for row in rows
            if row["subject"] == "server" and "figures" in row
            for name, figures in row["figures"].items()
            if name.startswith(begins) and "C" in figures
        ]
        found[stage] = ("the same work in C", sorted(gaps))
    trips = [
        (1.0 / cells[-1], f"a table of {cells[0]}")
        for row in rows
        if row["subject"] == "server" and row["case"] == "round trip"
        for cells in row["table"]["rows"]
    ]
    found["push with its reply"] = ("a bare ping-pong of the same bytes", sorted(trips))
    start = ratios(rows, "startup", "ours, until the first step", "bare imports, and exit")
    found["start-up"] = ("bare imports", start)
    stepped = ratios(rows, "learning", "ours, stepped", "bare: Gymnasium")
    found["stepping"] = ("Gymnasium's bare stepping", stepped)
    found["solver"] = ("the quickest peer", _solvers(rows))
    return {part: (bound, gaps[0]) for part, (bound, gaps) in found.items() if gaps}


def _solvers(rows: list[Row]) -> list[Gap]:
    found = []
    for row in rows:
        figures = row.get("figures", {}) if row["subject"] == "planning" else {}
        seconds = {name: float(figure["median"]) for name, figure in figures.items()}
        ours = [value for name, value in seconds.items() if name.startswith("ours")]
        others = [value for name, value in seconds.items() if not name.startswith("ours")]
        if ours and others:
            found.append((min(others) / min(ours), row["case"]))
    return sorted(found)


def tables(rows: list[Row]) -> str:
    """Return both tables, in markdown."""
    lines = ["| aim | reached in | the least | where |", "|---|---:|---:|---|"]
    for aim, (subject, ours, other, times) in AIMS.items():
        found = ratios(rows, subject, ours, other)
        if found:
            met = sum(value >= times for value, _ in found)
            shown = f"{1.0 / found[0][0]:.2f}" if times < 1.0 else _times(found[0][0])
            lines.append(f"| {aim} | {met} of {len(found)} cases | {shown} | {found[0][1]} |")
    lines += ["", "| part | its bound | ours / bound, where it is least | where |", "|---|---|---:|---|"]
    for part, (bound, (value, case)) in largest_gaps(rows).items():
        lines.append(f"| {part} | {bound} | {_times(value)} | {case} |")
    return "\n".join(lines) + "\n"


def _times(value: float) -> str:
    return f"{value:,.0f}" if value >= 10.0 else f"{value:.2g}" if value < 0.1 else f"{value:.2f}"
