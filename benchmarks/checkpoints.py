"""What saving costs while training goes on.

Small table: FrozenLake 8x8 under mpirun, trainings with and without a checkpoint every --interval in turns,
in one job; throughput as a ratio with a 95 % confidence interval of its mean. The last checkpoint of a
training, which it waits for, is not in its time.

Large table (--states): a walk on a square grid of that many states and 4 actions, likewise. Besides, how long
the server's copying held it up at a time, how long a whole copy took, and how long writing the files took.
"""

from __future__ import annotations

import json
import shutil
import statistics
import time
from pathlib import Path
from typing import Any, NamedTuple

import common
import numba
import numpy as np

from dist_classicrl import CompiledSimulator, DistAsyncQLearning
from dist_classicrl.checkpoint.writer import Writer
from dist_classicrl.tables.snapshot import TableSnapshot

_EPISODE = 1000


class Grid(NamedTuple):
    """A square grid, closed to a torus."""

    side: int


@numba.njit
def _reset(grid, memory, random):
    return np.int64(random % np.uint64(grid.side * grid.side))


@numba.njit
def _step(grid, memory, state, action, random):
    row, column = state // grid.side, state % grid.side
    if action < 2:
        row = (row + 2 * action - 1) % grid.side
    else:
        column = (column + 2 * action - 5) % grid.side
    there = row == 0 and column == 0
    return row * grid.side + column, 1.0 if there else 0.0, there


def walk(states: int) -> CompiledSimulator:
    """Return the walk on a grid of about `states` states; an episode ends in a corner or after 1000 steps."""
    side = int(states**0.5)
    return CompiledSimulator.game(
        f"walk on {side} x {side}", side * side, 4, Grid(side), _reset, _step, max_episode_steps=_EPISODE
    )


class Clock:
    """Notes how long each stretch of copying and each write takes, of all that this process does."""

    def __init__(self) -> None:
        self.copies: list[float] = []
        self.writes: list[float] = []
        advance, write = TableSnapshot.advance, Writer._write

        def timed_advance(snapshot: TableSnapshot, seconds: float) -> bool:
            begin = time.perf_counter()
            done = advance(snapshot, seconds)
            self.copies.append(time.perf_counter() - begin)
            return done

        def timed_write(writer: Writer, *arguments: Any) -> None:
            self.writes.append(common.timed(lambda: write(writer, *arguments)))

        TableSnapshot.advance = timed_advance  # type: ignore[method-assign]
        Writer._write = timed_write  # type: ignore[method-assign]


def run_rank(states: int, seconds: float, interval: str, pairs: int, folder: Path) -> None:
    """Be one rank of the job; rank 0 prints the figures as JSON."""
    env: Any = walk(states) if states else common.problem(common.FROZEN_LAKE)
    clock = Clock()
    steps = 0
    results = []
    for number in range(-1, pairs):
        rates, counts = {}, []
        for saving in (number % 2 == 0, number % 2 != 0):
            agent = DistAsyncQLearning(learning_rate=0.1, seed=0)
            if steps == 0:
                steps = int(max(0.5, seconds / 8) * agent.train(env, total_steps=2_000_000).steps_per_second)
                agent = DistAsyncQLearning(learning_rate=0.1, seed=0)
            clock.copies.clear()
            clock.writes.clear()
            options = {"checkpoint_dir": folder, "checkpoint_interval": interval, "resume": False}
            if saving:
                result = agent.train(env, total_steps=steps, **options)
                counts = [len(clock.writes) - 1]
                copies, writes = list(clock.copies), list(clock.writes)
            else:
                result = agent.train(env, total_steps=steps)
            rates[saving] = result.steps_per_second
            if number < 0:  # the first trainings find out how many steps take so long
                steps = int(seconds * result.steps_per_second)
        if agent.rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
        if number >= 0:
            results.append(
                {
                    "with": rates[True],
                    "without": rates[False],
                    "checkpoints": counts[0],
                    "longest_pause": max(copies, default=0.0),
                    "copying": sum(copies) / max(1, counts[0]),
                    "longest_write": max(writes, default=0.0),
                }
            )
    if agent.rank == 0:
        print(json.dumps(results))


def main() -> None:
    """Start the job, or be a rank of it."""
    parser = common.parser(__doc__, "checkpoints.json")
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=11.0, help="length of each training")
    parser.add_argument("--interval", default="5s", help="between checkpoints (default: %(default)s)")
    parser.add_argument("--states", type=int, default=0, help="of the large table; 0: the small one")
    parser.add_argument("--folder", type=Path, default=Path("checkpoints-benchmark"), help="is removed")
    parser.add_argument("--as_rank", action="store_true", help="used by the job that this starts")
    arguments = parser.parse_args()
    if arguments.as_rank:
        run_rank(
            arguments.states,
            arguments.seconds,
            arguments.interval,
            arguments.pairs,
            arguments.folder.resolve(),
        )
        return
    program = [str(Path(__file__).resolve()), "--as_rank"]
    for name in ("pairs", "seconds", "interval", "states", "folder"):
        program += [f"--{name}", str(getattr(arguments, name))]
    limit = 300.0 + 6.0 * arguments.seconds * (arguments.pairs + 1)
    found = json.loads(common.mpi_output(arguments.ranks, program, limit).splitlines()[-1])
    ratios = [run["with"] / run["without"] for run in found]
    common.show(
        ["pairs", "checkpoints", "with, M/s", "without, M/s", "with / without", "median"],
        [
            [
                len(found),
                sum(run["checkpoints"] for run in found),
                f"{statistics.median(run['with'] for run in found) / 1e6:.1f}",
                f"{statistics.median(run['without'] for run in found) / 1e6:.1f}",
                common.mean_with_interval(ratios),
                f"{statistics.median(ratios):.4f}",
            ]
        ],
    )
    common.show(
        ["longest pause of the server, ms", "copying, s per checkpoint", "longest write, s"],
        [
            [
                f"{max(run['longest_pause'] for run in found) * 1e3:.2f}",
                f"{statistics.median(run['copying'] for run in found):.3f}",
                f"{max(run['longest_write'] for run in found):.3f}",
            ]
        ],
    )
    common.save(
        arguments.output,
        found,
        ranks=arguments.ranks,
        seconds=arguments.seconds,
        interval=arguments.interval,
        states=arguments.states,
    )


if __name__ == "__main__":
    main()
