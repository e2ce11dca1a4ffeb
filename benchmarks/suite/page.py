"""Draw docs/benchmarks.md from the results: `python -m suite.page` in the folder benchmarks."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from suite import gaps, plots
from suite.options import CASES, RESULTS, ROOT

PAGE = ROOT / "docs" / "benchmarks.md"
MEASURED = PAGE.with_name("measurements.md")
FIGURES = PAGE.parent / "figures" / "benchmarks"
INTRODUCTION = """\
# Benchmarks

Side by side with what people would use instead. All figures are medians over rounds in which the candidates
took turns, after warm-up; beside them the lowest and the highest round. This page is drawn from
`benchmarks/results/suite.json` whenever the documentation is built. To repeat it, in a clone of the
repository:

```sh
scripts/benchmark
```

This is made to take some ten minutes on two idle cores. It makes `.venv`, installs the peers from the
package index into `.venv-peers`, measures, and draws this page anew. `--full` measures longer and more
often, `--list` names the cases, `--only` chooses some of them, and with `--merge` these take the place of
what is here. What single scripts found is on [a page of its own](measurements.md); `scripts/benchmark`
runs them by their names.
"""
GAPS = """\
## Aims and gaps

What the package aims at against what is measured below; then, for each part, the case in which it is the
farthest from a bound that it cannot or hardly pass, as a ratio of which 1 is as good. Parts that are said to
be slow somewhere below are in this table, too. What was done about them, with the figures of before and
after, and why what is left is left, is told
[elsewhere](measurements.md#what-the-benchmarks-showed-and-what-was-done).

"""
MEASUREMENTS = """\
# Further measurements

What single scripts of `benchmarks/` found, each on the machine that it names. `scripts/benchmark` runs a
script by its name, as in `scripts/benchmark large_tables --rounds 3`, and `--list` has the names. Figures go
to `benchmarks/results`. Side by side with other libraries is [another page](benchmarks.md).
"""
SUBJECTS = {
    "learning": (
        "Steps per second with learning",
        """\
One process. All learn with a step size of 0.1, a discount factor of 0.99 and an epsilon of 0.1. "Ours,
stepped" steps, in a batch, the environment that the others step. The loops are written as tutorials teach
them. "Bare" steps with actions drawn beforehand and learns nothing: nobody who steps that environment and
learns, too, is faster.
In Blackjack "ours, compiled" was measured with the package's own `dist_classicrl/Blackjack-v0`, as
Gymnasium's `Blackjack-v1`, or EnvPool's, which the others step, was not compiled then.
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
    "counts": (
        "Instructions and cache misses per step",
        """\
Counted by valgrind, which simulates the processor's caches, of code that is compiled for x86-64-v3 and so not
quite that of the tables above. Counts repeat from run to run, so there is no spread. The training loop keeps
its affine maps, too, which the loop in C does not.
""",
    ),
    "memory": (
        "Memory bandwidth",
        """\
What the memory gives one process, and what a step of a large table takes of it.
""",
    ),
    "server": (
        "Pushes and replies",
        """\
What a worker and the server do with maps, in entries per second, against the same work in C. Then a whole
push with its reply, in a job of two ranks: the worker packs, sends, and takes in the refresh that the server
answers with, and learns on while it waits. The ping-pong sends as many bytes there and back by MPI's blocking
calls, which take both cores while they wait.
""",
    ),
    "scaling": (
        "1 to 32 ranks",
        """\
By number of entries of the table and engine, in jobs of mpirun on one machine. Where there are more ranks
than cores it says how many a core has. Rank 0 learns nothing where it is the server of copies. Efficiency is
the rate over that of one process times the ranks, or the cores where those are fewer. "Not learning" is the
share of the workers' time that did not go into learning; memory is of its own for each rank, and what ranks
share; to start takes from the command until the last rank has its imports and its model. In "server" and
"rounds" each worker has a copy of the table, in "sharded" there is one table in shared memory.
""",
    ),
    "startup": (
        "Start-up",
        """\
Seconds from the command until the first step of training, compiled code being on disk from an earlier run,
against processes that import NumPy, Numba, Gymnasium and mpi4py, and end. When a process calls its first
compiled function, of whomever, Numba loads most of itself, which its import alone does not. The rows of
imports without ours start MPI, also in one process. Ours starts it only as a job begins to train: where it is
imported and no more, and in all rows of one process, what MPI takes is not among its seconds.
""",
    ),
    "curves": (
        "Learning",
        """\
The error is the root mean square, over pairs that can be reached, of the difference to the true values; the
gap is what the greedy policy lacks of the best value from the start states, exactly. The discount factor is
0.99.
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
    "failure": (
        "Deaths",
        """\
FrozenLake 8x8 on four ranks, of which one is killed with SIGKILL in the middle: seconds until somebody else
calls it lost, and until the number of steps made grows beyond what it was. What the dead rank had been given
to do and had not reported is made again by others, so that a run makes the steps asked for, all of them.
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
    lines = _own_table(row["table"]) if "table" in row else _compared(row)
    width = lines[0].count("|") - 1
    for name, reason in row["left_out"].items():
        told = f"left out: {' '.join(reason.split()).replace('|', '/')}"
        lines.append(f"| {name} | {told} |" + " |" * (width - 2))
    return "\n".join(lines) + "\n"


def _own_table(table: dict[str, Any]) -> list[str]:
    headers = table["headers"]
    lines = [f"| {' | '.join(headers)} |", "|---|" + "---:|" * (len(headers) - 1)]
    return lines + [f"| {' | '.join(map(_cell, cells))} |" for cells in table["rows"]]


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else number(value)


def _compared(row: dict[str, Any]) -> list[str]:
    unit, figures = row["unit"], row["figures"]
    first = next(iter(figures), "")
    lines = [f"| | {unit} | lowest and highest | how many times as fast ours is |", "|---|---:|---:|---:|"]
    for name, figure in figures.items():
        ratio = figures[first]["median"] / figure["median"]
        # Where ours did not take part, the first is another.
        times = number(ratio if unit == "steps/s" else 1.0 / ratio) if first.startswith("ours") else ""
        spread = f"{number(figure['lowest'])} to {number(figure['highest'])}"
        lines.append(f"| {name} | {number(figure['median'])} | {spread} | {times} |")
    return lines


def page_of(data: dict[str, Any]) -> str:
    """Return the page that the results make."""
    rows = data["results"]
    parts = [INTRODUCTION, _machine(data["machine"], data["settings"], rows), GAPS + gaps.tables(rows)]
    for subject, (title, text) in SUBJECTS.items():
        rows = [row for row in data["results"] if row["subject"] == subject]
        if rows:
            parts.append(f"## {title}\n\n{text}")
            parts += [_case(row) for row in rows]
    parts.append(_when(data["results"]))
    return "\n".join(parts)


def _case(row: dict[str, Any]) -> str:
    text = f"{row['text']}\n\n" if row.get("text") else ""
    plots = "".join(
        f"\n![{what}](figures/benchmarks/{name})\n" for name, (what, _) in figures_of(row).items()
    )
    return f"### {row['case']}\n\n{text}{table_of(row)}{plots}"


def figures_of(row: dict[str, Any]) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return the plots of a case by the names of their files, each with what it shows."""
    made = {}
    for plot in row.get("plots", []):
        words = f"{row['subject']} {row['case']} {plot['y']} {plot['x']}".lower()
        name = "-".join(re.findall("[a-z0-9]+", words)) + ".svg"
        made[name] = (f"{row['case']}: {plot['y']} over {plot['x']}", plot)
    return made


def _machine(machine: dict[str, Any], settings: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in settings["peers"].items())
    minutes = sum(row["measured"]["seconds"] for row in rows) / 60.0
    lines = [
        "| | |",
        "|---|---|",
        f"| machine | {machine['processor']}, {machine['cores']} cores, {machine['system']} |",
        f"| this package | {settings['version']}, Python {machine['python']}, "
        f"NumPy {machine['numpy']}, Numba {machine['numba']}, {settings['mpi'] or 'no MPI'} |",
        f"| the peers' environment | {versions or 'none'} |",
        f"| C compiler | {settings['gcc'] or 'none'} |",
        f"| measured | {number(minutes)} minutes in all; "
        "[when, and under which load](#when-it-was-measured) |",
    ]
    lines += [f"| {name} | {reason} |" for name, reason in settings["not_installed"].items()]
    return "\n".join(lines) + "\n"


def _when(rows: list[dict[str, Any]]) -> str:
    lines = [
        "## When it was measured",
        "",
        "The load is the mean number of processes that wanted a core, over the minute before it began and "
        "before it ended. "
        "What the benchmark itself does is in the second.",
        "",
        "| | when, UTC | commit | effort | seconds | load |",
        "|---|---|---|---|---:|---:|",
    ]
    for row in rows:
        about = row["measured"]
        load = " to ".join(f"{value:.1f}" for value in about["load"])
        name = f"{row['subject']}/{row['case']}"
        lines.append(
            f"| {name} | {about['when']} | {about['commit']} | {about['effort']} "
            f"| {about['seconds']:.0f} | {load} |"
        )
    there = {(row["subject"], row["case"]) for row in rows}
    missing = [f"{s}/{case}" for s, cases in CASES.items() for case in cases if (s, case) not in there]
    if missing:
        lines += ["", f"Not measured on this machine: {', '.join(missing)}."]
    return "\n".join(lines) + "\n"


def measurements_of() -> str:
    """Return the page of what the other scripts found, from the texts beside their figures."""
    texts = {path.name: path.read_text(encoding="utf-8").strip() for path in RESULTS.parent.glob("*.md")}
    parts = [MEASUREMENTS]
    for name in sorted(texts):
        text = re.sub(r"^#", "##", texts[name], flags=re.MULTILINE)
        for other, its_text in texts.items():
            title = its_text.partition("\n")[0].lstrip("# ").lower()
            place = re.sub(r"[^a-z0-9]+", "-", title.replace(",", "")).strip("-")
            text = text.replace(f"]({other})", f"](#{place})")
        parts.append(text + "\n")
    return "\n".join(parts)


def drawn() -> dict[Path, str]:
    """Return the text of every file that is drawn from the results."""
    data = json.loads(RESULTS.read_text(encoding="utf-8"))
    made = {PAGE: page_of(data), MEASURED: measurements_of()}
    for row in data["results"]:
        for name, (what, plot) in figures_of(row).items():
            made[FIGURES / name] = plots.svg(plot, what)
    return made


def write() -> None:
    """Write what has changed; files keep their time where nothing did."""
    made = drawn()
    FIGURES.mkdir(parents=True, exist_ok=True)
    for path in set(FIGURES.glob("*.svg")) - set(made):
        path.unlink()
    for path, text in made.items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path}", file=sys.stderr)


if __name__ == "__main__":
    write()
