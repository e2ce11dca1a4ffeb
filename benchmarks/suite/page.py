"""Draw docs/benchmarks.md from the results: `python -m suite.page` in the folder benchmarks."""

from __future__ import annotations

import json
from typing import Any

from suite.options import RESULTS, ROOT

PAGE = ROOT / "docs" / "benchmarks.md"
INTRODUCTION = """\
# Benchmarks

Side by side with what people would use instead. All figures are medians over rounds in which the candidates
took turns, after warm-up; beside them the lowest and the highest round. This page is drawn from
`benchmarks/results/suite.json`. To repeat it, in a clone of the repository:

```sh
scripts/benchmark
```

This takes less than ten minutes on two cores. It makes `.venv`, installs the peers from the package index
into `.venv-peers`, measures, and draws this page anew. `--full` measures longer and more often, `--list`
names the cases, and `--only` chooses some of them.
"""
SUBJECTS = {
    "learning": (
        "Steps per second with learning",
        """\
One process. All learn with a step size of 0.1, a discount factor of 0.99 and an epsilon of 0.1. "Ours,
stepped" steps, in a batch, the environment that the others step. The loops are written as tutorials teach
them. "Bare" steps with actions drawn beforehand and learns nothing: nobody who steps that environment and
learns, too, is faster.
EnvPool steps 256 environments at a time. Ours is the time that `train` reports, without compiling and making
the table. MushroomRL runs without torch, which its tables do not use, and with newer versions of NumPy and
SciPy than it asks for.
""",
    ),
    "c": (
        "Against C",
        """\
The same loop in C, with the same random numbers, tables and tricks, by `gcc -O3 -march=native`, against the
loop that a worker runs, in stretches of 50,000 steps. Step sizes fall with visits.
""",
    ),
    "planning": (
        "Exact solutions",
        """\
Seconds to the optimal values with a discount factor of 0.95 and a tolerance of 1e-6, each library by its own
rule to stop. To make the model and the objects of a library is not counted. Ours uses all cores where a model
is large. madupite, which has no wheels on the index, is not among these.
""",
    ),
    "policy": (
        "Time to a policy within 1 % of the optimum",
        """\
Seconds of learning until the greedy policy lacks at most 1 % of the best value from the start states, by its
exact value, with a discount factor of 0.99. Step sizes are visits to the power of -0.7 and epsilon is 0.5,
but where default settings are named. Policies are looked at after 2,000 steps, and each time that 1.3 times
as many have been made; to look is not counted. A candidate that does not get there in one of the rounds is
left out.
""",
    ),
}


def number(value: float) -> str:
    """Return a figure with three digits that count, and commas."""
    if value >= 100:
        digits = len(str(int(value)))
        return f"{round(value, 3 - digits):,.0f}"
    return f"{value:.3g}"


def table_of(row: dict[str, Any]) -> str:
    """Return the table of one case, in markdown."""
    unit, figures = row["unit"], row["figures"]
    first = next(iter(figures), "")
    lines = [f"| | {unit} | lowest and highest | how many times as fast ours is |", "|---|---:|---:|---:|"]
    for name, figure in figures.items():
        ratio = figures[first]["median"] / figure["median"]
        # Where ours did not take part, the first is another.
        times = number(ratio if unit == "steps/s" else 1.0 / ratio) if first.startswith("ours") else ""
        spread = f"{number(figure['lowest'])} to {number(figure['highest'])}"
        lines.append(f"| {name} | {number(figure['median'])} | {spread} | {times} |")
    for name, reason in row["left_out"].items():
        lines.append(f"| {name} | left out | {' '.join(reason.split()).replace('|', '/')} | |")
    return "\n".join(lines) + "\n"


def page_of(data: dict[str, Any]) -> str:
    """Return the page that the results make."""
    machine, settings = data["machine"], data["settings"]
    parts = [INTRODUCTION, _machine(machine, settings)]
    for subject, (title, text) in SUBJECTS.items():
        rows = [row for row in data["results"] if row["subject"] == subject]
        if rows:
            parts.append(f"## {title}\n\n{text}")
            parts += [f"### {row['case']}\n\n{_facts(row)}{table_of(row)}" for row in rows]
    return "\n".join(parts)


def _facts(row: dict[str, Any]) -> str:
    return f"{row['text']}\n\n" if row.get("text") else ""


def _machine(machine: dict[str, Any], settings: dict[str, Any]) -> str:
    before, after = (settings["load"][when][0] for when in ("before", "after"))
    versions = ", ".join(f"{name} {version}" for name, version in settings["peers"].items())
    lines = [
        "| | |",
        "|---|---|",
        f"| machine | {machine['processor']}, {machine['cores']} cores, {machine['system']} |",
        f"| load when it began and ended | {before:.2f}, {after:.2f} |",
        f"| this package | {settings['version']}, commit {settings['commit']}, Python {machine['python']}, "
        f"NumPy {machine['numpy']}, Numba {machine['numba']} |",
        f"| the peers' environment | {versions or 'none'} |",
        f"| C compiler | {settings['gcc'] or 'none'} |",
        f"| measured | {settings['date']}, {settings['effort']}: {settings['rounds']} rounds of about "
        f"{settings['seconds']:g} s, {settings['minutes']:g} minutes in all |",
    ]
    lines += [f"| {name} | {reason} |" for name, reason in settings["not_installed"].items()]
    return "\n".join(lines) + "\n"


def write() -> None:
    """Write the page."""
    PAGE.write_text(page_of(json.loads(RESULTS.read_text())))
    print(f"wrote {PAGE}")


if __name__ == "__main__":
    write()
