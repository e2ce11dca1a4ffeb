"""A table of two billion entries, 16 GB in float32, on one machine: trained alone and on several ranks.

The model is random and given by a function (see `large_models.garnet_model`), of which nothing is stored: 8
actions, 2 possible next states anywhere. One run goes through several jobs, each of which goes on from the
checkpoint of the one before: alone, on 2 ranks, alone again. Each says how many million steps a second it
made, how long it took to read and to write the table, and how much memory each rank had of its own and shared
with others at the end, and both at most. Then actions are predicted.
At last it is tried with ``--refused``, values of float64, which need twice as much.

Checkpoints take 12 bytes an entry; while one is written there are two.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import common
import large_models
import numpy as np

from dist_classicrl import DistAsyncQLearning
from dist_classicrl.errors import SettingsError
from dist_classicrl.schedules import PerVisit


def _kilobytes(path: str) -> dict[str, int]:
    lines = [line.split() for line in Path(path).read_text().splitlines()]
    return {words[0].rstrip(":"): int(words[1]) for words in lines if words[-1] == "kB"}


class Most:
    """The most memory that this process had, in bytes, looked at every tenth of a second.

    Files that are read are left out: the system takes their memory back when it is needed.
    """

    def __init__(self) -> None:
        self.own = self.all = 0
        threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        while True:
            now = _kilobytes("/proc/self/status")
            self.own = max(self.own, now["RssAnon"] << 10)
            self.all = max(self.all, now["RssAnon"] + now["RssShmem"] << 10)
            time.sleep(0.1)


def run_rank(states: int, dtype: str, steps: list[int], folder: str) -> None:
    """Be one rank of a job: make all steps that are not made yet, save, predict; print JSON."""
    most = Most()
    model = large_models.garnet_model(states)
    agent = DistAsyncQLearning(
        learning_rate=PerVisit(0.7), epsilon=0.2, discount_factor=0.9, seed=1, dtype=dtype
    )
    saved: dict[str, Any] = {"checkpoint_dir": folder, "checkpoint_interval": "1h", "keep_last": 1}
    begin = time.perf_counter()
    for total in steps:
        result = agent.train(model, total_steps=total, placement="sharded", **saved)
    seconds = time.perf_counter() - begin
    asked = np.random.default_rng(1).integers(states, size=1000)
    begin = time.perf_counter()
    actions, values = agent.predict(asked), agent.action_values(asked)
    predicting = time.perf_counter() - begin
    assert (values[np.arange(asked.size), actions] == values.max(axis=1)).all()
    now = _kilobytes("/proc/self/status")
    print(
        json.dumps(
            {
                "rank": agent.rank,
                "steps": agent.steps,
                "rate": result.steps_per_second,
                "learning": result.seconds,
                "reading and writing": seconds - result.seconds,
                "milliseconds of 1000 predictions": 1e3 * predicting,
                "values": float(np.abs(values).mean()),
                "own": now["RssAnon"] << 10,
                "shared": now["RssShmem"] << 10,
                "most own": most.own,
                "most": most.all,
            }
        ),
        flush=True,
    )


def show_refused(states: int) -> None:
    """Print what is said of a table of float64."""
    try:
        DistAsyncQLearning(dtype="float64").train(large_models.garnet_model(states), total_steps=1)
    except SettingsError as error:
        print(json.dumps({"refused": str(error)}))
    else:
        print(json.dumps({"refused": None}))


def main() -> None:
    """Run all jobs and show what they say."""
    parser = common.parser(__doc__, "huge_table.json")
    parser.add_argument("--states", type=int, default=250_000_000)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--steps", type=int, default=100_000_000, help="of each job")
    parser.add_argument("--ranks", type=int, nargs="+", default=(1, 2, 1), help="of each job")
    parser.add_argument("--folder", help="where there is room for checkpoints")
    parser.add_argument("--refused", action="store_true", help="try float64, too")
    parser.add_argument("--as_rank", nargs="+", help="used by its jobs: a folder, and the steps of each call")
    arguments = parser.parse_args()
    if arguments.as_rank is not None:
        folder, *steps = arguments.as_rank
        run_rank(arguments.states, arguments.dtype, [int(each) for each in steps], folder)
        return
    here = str(Path(__file__).resolve())
    results, rows = [], []
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        for job, ranks in enumerate(arguments.ranks, 1):
            words = [here, "--states", str(arguments.states), "--dtype", arguments.dtype]
            words += ["--as_rank", folder, *[str(arguments.steps)] * job]
            if ranks == 1:
                done = subprocess.run([sys.executable, *words], stdout=subprocess.PIPE, text=True, check=True)
                output = done.stdout
            else:
                output = common.mpi_output(ranks, words, 1800.0)
            said = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
            said.sort(key=lambda each: each["rank"])
            results.append({"ranks": ranks, "said": said})
            first = said[0]
            gigabytes = [[each[name] / 1e9 for each in said] for name in ("own", "shared", "most")]
            rows.append(
                [
                    ranks,
                    f"{first['steps']:,}",
                    f"{first['rate'] / 1e6:.2f}",
                    f"{first['reading and writing']:.0f}",
                    *(", ".join(f"{each:.2f}" for each in sizes) for sizes in gigabytes),
                    f"{first['milliseconds of 1000 predictions']:.1f}",
                ]
            )
            header = ["ranks", "steps", "M steps/s", "s of files", "GB own", "GB shared", "most", "ms"]
            common.show(header, rows)
    if arguments.refused:
        show_refused(arguments.states)
    common.save(arguments.output, results, states=arguments.states, dtype=arguments.dtype)


if __name__ == "__main__":
    main()
