"""What a study of a thousand runs costs beside its kernels, and beside a script for each run.

20 settings times --seeds on FrozenLake 8x8. First the study by helper processes of this one, one per core:
processor time inside the compiled loops over the time that all processes have from the first run to the
last, less the exact values of policies, which a record needs and a training does not. The start and the
compilation are over by then.

Then commands as they are typed, whose start counts, with compiled code on disk: `dist-classicrl sweep` on the
same study, against `xargs -P` with one script a run, of which --sample runs are made and a run's share of
their time stands for all. Last the same study under mpirun: steps a second from the moment when all ranks
have made a run to the end.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import common

from dist_classicrl import Sweep
from dist_classicrl.cli.study_file import read_study
from dist_classicrl.evaluation import episodes
from dist_classicrl.launch.launcher import launch_environment
from dist_classicrl.launch.mpirun import mpirun_command
from dist_classicrl.learning import compiled
from dist_classicrl.sweep import trial
from dist_classicrl.sweep.folder import StudyFolder

STUDY = """
environment = "FrozenLake-v1"
total_steps = {steps}
seeds = {seeds}
[environment_arguments]
map_name = "8x8"
[vary]
learning_rate = [0.02, 0.05, 0.1, "per_visit:0.7"]
epsilon = [0.05, 0.1, 0.2, 0.5, 1.0]
"""
SETTINGS = 20
PARTS = ("command", "ranks", "share")
# What somebody writes who makes each run by a script of its own: the same record, on a line of JSON.
SCRIPT = """
import json, sys
from dist_classicrl import DistAsyncQLearning
from dist_classicrl.environments.model import TabularMDP
from dist_classicrl.evaluation.exact import exact_value
lake = TabularMDP.from_gymnasium("FrozenLake-v1", map_name="8x8")
agent = DistAsyncQLearning(learning_rate=0.1, epsilon=0.1, seed=int(sys.argv[2]))
result = agent.train(lake, total_steps=int(sys.argv[1]), progress_bar=False)
final = agent.evaluate(lake, 100, seed=int(sys.argv[2]), max_steps=100_000)
value = exact_value(lake, agent.q_table, agent.settings.discount_factor).value
print(json.dumps({"return": result.mean_return, "final": final.mean_return, "value": value}))
"""
_TIMEOUT = 3600.0
_POLL_SECONDS = 0.05


class Kernels:
    """Counts processor time of the compiled loops, and time of exact values, into the records of runs."""

    def __init__(self) -> None:
        self.kernel = self.exact = 0.0
        run_game, judged, run = compiled.run_game, trial.judged, trial.Laboratory.run

        def timed_game(simulator: Any, came: Any, reward: Any, kernel: Any, *arguments: Any) -> None:
            def timed_kernel(*given: Any) -> Any:
                begin = time.thread_time()
                try:
                    return kernel(*given)
                finally:
                    self.kernel += time.thread_time() - begin

            run_game(simulator, came, reward, timed_kernel, *arguments)

        def timed_judged(*arguments: Any) -> dict[str, Any]:
            begin = time.perf_counter()
            found = judged(*arguments)
            self.exact += time.perf_counter() - begin
            return found

        def noted_run(laboratory: trial.Laboratory, one: trial.Trial) -> dict[str, Any]:
            self.kernel = self.exact = 0.0
            begin, processor = time.time(), time.process_time()
            record = run(laboratory, one)
            processor = time.process_time() - processor
            return {
                **record,
                "begin": begin,
                "kernel": self.kernel,
                "exact": self.exact,
                "processor": processor,
            }

        compiled.run_game = episodes.run_game = timed_game  # type: ignore[attr-defined]
        trial.judged = timed_judged
        trial.Laboratory.run = noted_run  # type: ignore[method-assign]


def share_of_kernels(study: dict[str, Any], folder: Path, processes: int) -> dict[str, float]:
    """Make a study with helper processes, and return where their time went, in seconds of all of them."""
    Sweep(**{**study, "total_steps": 1_000, "seeds": 1}, folder=folder / "compiled").run(1)
    Sweep(**study, folder=folder / "study").run(processes)
    ended = time.time()
    records = list(StudyFolder(folder / "study").records().values())
    assert all(record["error"] is None for record in records)
    took = ended - min(record["begin"] for record in records)
    exact = sum(record["exact"] for record in records)
    kernel = sum(record["kernel"] for record in records)
    return {
        "runs": len(records),
        "seconds": took,
        "kernel": kernel,
        "exact": exact,
        "of_processor": kernel / (sum(record["processor"] for record in records) - exact),
        "runs_seconds": sum(record["seconds"] for record in records),
        "total": processes * took - exact,
        "share": kernel / (processes * took - exact),
        "steps_per_second": sum(record["steps"] for record in records) / took,
    }


def sweep_command(file: Path, folder: Path) -> list[str]:
    """Return the words of `dist-classicrl sweep`."""
    return [sys.executable, "-m", "dist_classicrl", "sweep", str(file), "--out", str(folder), "--quiet"]


def seconds_of_scripts(place: Path, steps: int, sample: int, processes: int) -> float:
    """Return the seconds that `xargs` takes for some runs, each by a script of its own."""
    script = place / "one_run.py"
    script.write_text(SCRIPT)
    line = ["xargs", "-P", str(processes), "-n", "1", sys.executable, str(script), str(steps)]
    begin = time.perf_counter()
    done = subprocess.run(
        line,
        input="\n".join(map(str, range(sample))),
        env=launch_environment(),
        check=True,
        text=True,
        stdout=subprocess.PIPE,
        timeout=_TIMEOUT,
    )
    took = time.perf_counter() - begin
    assert len([json.loads(text) for text in done.stdout.splitlines()]) == sample
    return took


def rate_on_ranks(ranks: int, file: Path, folder: Path) -> dict[str, float]:
    """Make a study on ranks; return its time, and steps a second from when all of them have made a run."""
    begin = time.perf_counter()
    job = subprocess.Popen(
        [*mpirun_command(ranks), *sweep_command(file, folder)],
        env={**launch_environment(), "OMPI_MCA_mpi_yield_when_idle": "1"},
    )
    reader = StudyFolder(folder)
    there, last, moment = None, 0, 0.0
    made = {}
    while job.poll() is None:
        time.sleep(_POLL_SECONDS)
        if there is None and len(list(folder.glob("records/*.jsonl"))) < ranks:
            continue
        made = reader.records()
        now = time.perf_counter()
        if there is None:
            there = now, len(made)
        if len(made) > last:
            last, moment = len(made), now
    assert job.returncode == 0
    took = time.perf_counter() - begin
    found = {"ranks": ranks, "seconds": took, "rate": float("nan"), "all_there": float("nan")}
    if there is not None and moment > there[0]:
        steps = next(iter(made.values()))["steps"]
        found["rate"] = (last - there[1]) * steps / (moment - there[0])
        found["all_there"] = there[0] - begin
    return found


def command_and_scripts(asked: Any, place: Path, file: Path, small: Path) -> dict[str, Any]:
    """Measure `dist-classicrl sweep` as it is typed, and scripts; return the seconds of both, by round."""
    runs, command, scripts = SETTINGS * asked.seeds, [], []
    for number in range(-1, asked.rounds):  # the first puts compiled code on disk
        sample = asked.sample if number >= 0 else 1
        took = seconds_of_scripts(place, asked.steps, sample, asked.processes)
        study_file = file if number >= 0 else small
        line = sweep_command(study_file, place / f"typed-{number}")
        typed = common.timed(lambda line=line: _run([*line, "--processes", str(asked.processes)]))
        if number >= 0:
            scripts.append(took / sample * runs)
            command.append(typed)
    ratio = common.median_ratio(scripts, command)
    common.show(
        [f"{runs:,} runs of {asked.steps:,} steps", "seconds", "times as fast"],
        [
            [f"xargs -P {asked.processes}, from {asked.sample}", f"{statistics.median(scripts):.1f}", "1.0"],
            ["dist-classicrl sweep", f"{statistics.median(command):.1f}", f"{ratio:.1f}"],
        ],
    )
    return {"scripts": scripts, "command": command, "ratio": ratio}


def rates_on_ranks(asked: Any, place: Path, file: Path) -> list[dict[str, float]]:
    """Measure the study under mpirun on each number of ranks that is asked for."""
    rates = [rate_on_ranks(ranks, file, place / f"ranks-{ranks}") for ranks in asked.ranks]
    common.show(
        ["ranks", "M steps/s", "all there after s", f"{SETTINGS * asked.rank_seeds:,} runs in s"],
        [
            [each["ranks"], f"{each['rate'] / 1e6:.1f}", f"{each['all_there']:.1f}", f"{each['seconds']:.1f}"]
            for each in rates
        ],
    )
    return rates


def shares_of_kernels(asked: Any, place: Path, file: Path) -> list[dict[str, float]]:
    """Measure where the time of a study goes, in each round."""
    Kernels()
    study = read_study(file)
    shares = [
        share_of_kernels(study, place / f"share-{number}", asked.processes) for number in range(asked.rounds)
    ]
    middle = sorted(shares, key=lambda each: each["share"])[len(shares) // 2]
    rows = [
        ["kernels", middle["kernel"]],
        ["the rest of the runs", middle["runs_seconds"] - middle["exact"] - middle["kernel"]],
        ["between runs, and waiting for the last", middle["total"] + middle["exact"]],
    ]
    rows[2][1] -= middle["runs_seconds"]
    common.show(
        [f"{asked.processes} processes, {middle['steps_per_second'] / 1e6:.1f} M steps/s", "s", "share"],
        [[name, f"{seconds:.2f}", f"{seconds / middle['total']:.3f}"] for name, seconds in rows],
    )
    print(f"Kernels had {middle['of_processor']:.3f} of the processor time of the runs.")
    return shares


def main() -> None:
    """Measure the parts that are asked for, and print a table of each."""
    parser = common.parser(__doc__, "sweep.json")
    parser.add_argument("--steps", type=int, default=2_000_000, help="of a run")
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--rank-seeds", type=int, default=100, help="of the studies on ranks")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--sample", type=int, default=12, help="scripts that are run")
    parser.add_argument("--rounds", type=int, default=3, help="of the share, and of command against scripts")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4, 8, 17])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="one or more (default: all)")
    parser.add_argument("--quick", action="store_true", help="3 seeds, 1 round, 1 and 3 ranks")
    asked = parser.parse_args()
    if asked.quick:
        asked.seeds, asked.rank_seeds, asked.sample, asked.rounds, asked.ranks = 3, 6, 4, 1, [1, 3]
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        file, of_ranks, small = (place / f"{kind}.toml" for kind in ("study", "ranks", "small"))
        small.write_text(STUDY.format(steps=1_000, seeds=1))
        file.write_text(STUDY.format(steps=asked.steps, seeds=asked.seeds))
        of_ranks.write_text(STUDY.format(steps=asked.steps, seeds=asked.rank_seeds))
        if "command" in asked.parts:
            results |= command_and_scripts(asked, place, file, small)
            print()
        if "ranks" in asked.parts:
            results["ranks"] = rates_on_ranks(asked, place, of_ranks)
            print()
        if "share" in asked.parts:  # last: it changes what runs of this process do
            results["shares"] = shares_of_kernels(asked, place, file)
    common.save(asked.output, results, **vars(asked))


def _run(line: list[str]) -> None:
    subprocess.run(line, env=launch_environment(), check=True, stdout=subprocess.DEVNULL, timeout=_TIMEOUT)


if __name__ == "__main__":
    main()
