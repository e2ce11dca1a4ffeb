"""Large tables learned by one process: walkers that take turns against plain C, and against one walker.

The problem is random: 8 actions, each with 2 possible next states anywhere, so that almost every step waits
for memory twice. The C loop is compiled when this runs, with ``gcc -O3 -march=native``, the number of actions
a constant of it. It does what `dist_classicrl.learning.walkers.walk` does, with the same draws, in the same
model and rows of the same kind: 32 walkers, three passes, memory asked for ahead. It knows one learning rule,
no time limits and no masks, and stores what it learns in float32 as it comes, without rounding by chance.
Before it is timed it is compiled once more without contraction to fused multiply-adds, and must learn the
same values in float64.

"learner" is the training loop, called for some seconds at a time, "train" `DistAsyncQLearning.train` with all
that belongs to it but the time to read and write the table before and after. "one walker" is the loop that
small tables are learned with.

With ``--from-entries`` the question is another: from which number of entries on, by the number of actions, do
walkers that take turns learn faster than one?
"""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import common
import numpy as np

from dist_classicrl import DistAsyncQLearning
from dist_classicrl._memory import zeros
from dist_classicrl._random import stream_key
from dist_classicrl.environments.resolve import resolve
from dist_classicrl.environments.simulate import CompiledSimulator, ModelTables
from dist_classicrl.learning import interleaved
from dist_classicrl.learning.kinds import new_learner, problem_of
from dist_classicrl.learning.learner import Stream
from dist_classicrl.learning.rates import Rates
from dist_classicrl.schedules import PerVisit
from dist_classicrl.settings import Settings
from dist_classicrl.tables.line_table import LineTable
from dist_classicrl.tables.shape import TableShape

C_SOURCE = r"""
#include <stdint.h>

enum { WALKERS = 32 };

struct slot { uint32_t threshold; int32_t next[2], unused; double reward[2]; };
struct row { VALUE value[N_ACTIONS]; uint32_t count[N_ACTIONS]; } __attribute__((aligned(64)));

static const uint64_t gamma_64 = 0x9E3779B97F4A7C15ull;

static inline uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

static inline int64_t below(uint64_t random, int64_t n) {
    return (int64_t)(((random & 0xFFFFFFFFull) * (uint64_t)n) >> 32);
}

static inline VALUE largest(const struct row *row) {
    VALUE top = row->value[0];
    for (int action = 1; action < N_ACTIONS; action++)
        top = row->value[action] > top ? row->value[action] : top;
    return top;
}

static inline int64_t greedy(const struct row *row, uint64_t random) {
    const VALUE top = largest(row);
    int64_t best = 0, n_best = 0;
    for (int action = N_ACTIONS - 1; action >= 0; action--) {
        best = row->value[action] == top ? action : best;
        n_best += row->value[action] == top;
    }
    if (__builtin_expect(n_best > 1, 0))
        for (int64_t pick = below(random, n_best);; best++)
            if (row->value[best] == top && pick-- == 0) break;
    return best;
}

static inline double step_size_of_visit(const double *step_sizes, int64_t visit) {
    int octave = 64 - 13 - __builtin_clzll((uint64_t)visit);
    if (octave < 0) octave = 0;
    return step_sizes[((int64_t)octave << 12) + (visit >> octave)];
}

void learn(const struct slot *slots, struct row *rows, const double *step_sizes, double epsilon,
           double discount, uint64_t key, int64_t steps, int64_t *states, double *error) {
    int64_t actions[WALKERS], next_states[WALKERS];
    double rewards[WALKERS];
    uint8_t ended[WALKERS];
    const double explore_below = epsilon * 4294967296.0;
    double sum = 0;
    for (int64_t done = 0; done < steps; done += WALKERS) {
        for (int k = 0; k < WALKERS; k++) {
            const uint64_t random = mix(key + 3 * k * gamma_64);
            if ((double)(int64_t)(random >> 32) < explore_below)
                actions[k] = below(random, N_ACTIONS);
            else
                actions[k] = greedy(rows + states[k], random);
            __builtin_prefetch(slots + states[k] * N_ACTIONS + actions[k]);
            if (sizeof(struct row) > 64) __builtin_prefetch(rows[states[k]].count + actions[k]);
        }
        for (int k = 0; k < WALKERS; k++) {
            const uint64_t random = mix(key + (3 * k + 1) * gamma_64);
            const struct slot *slot = slots + states[k] * N_ACTIONS + actions[k];
            const int other = (uint32_t)(random >> 32) > slot->threshold;
            next_states[k] = slot->next[other] >> 1;
            ended[k] = slot->next[other] & 1;
            rewards[k] = slot->reward[other];
            const char *row = (const char *)(rows + next_states[k]);
            for (int at = 0; at < (int)(N_ACTIONS * sizeof(VALUE)); at += 64) __builtin_prefetch(row + at, 1);
        }
        for (int k = 0; k < WALKERS; k++) {
            struct row *row = rows + states[k];
            double target = rewards[k];
            if (!ended[k]) target += discount * largest(rows + next_states[k]);
            const double step_size = step_size_of_visit(step_sizes, ++row->count[actions[k]]);
            const double old = row->value[actions[k]];
            row->value[actions[k]] = old + step_size * (target - old);
            sum += target > old ? target - old : old - target;
            states[k] = ended[k] ? 0 : next_states[k];
        }
        key += 3 * WALKERS * gamma_64;
    }
    *error += sum;
}
"""

EPSILON, DISCOUNT, STEP_SIZE = 0.2, 0.9, PerVisit(0.7)
LOG_STATES = (17, 22, 24)
ACTIONS = 8
ENDLESS = 2**63


def random_problem(log_states: int, n_actions: int) -> CompiledSimulator:
    """Return a compiled model with 2 next states a pair and no end, filled where it is kept."""
    n_states = 1 << log_states
    slots = zeros(8 * n_states * n_actions, np.int32)
    rewards = slots.view(np.float64).reshape(-1, 4)
    rng = np.random.default_rng(0)
    for first in range(0, n_states * n_actions, 1 << 20):
        part = slots.reshape(-1, 8)[first : first + (1 << 20)]
        part[:, 0] = rng.integers(-(2**31), 2**31, len(part))
        part[:, 1:3] = 2 * rng.integers(0, n_states, (len(part), 2))
        rewards[first : first + len(part), 2:] = rng.random((len(part), 1))
    tables = ModelTables(
        first=None,
        width=1,
        thresholds=slots.view(np.uint32),
        outcomes=slots,
        rewards=slots.view(np.float64),
        start_threshold=np.full(1, 2**32 - 1, np.uint32),
        start_states=np.zeros(2, np.int64),
    )
    name = f"random, {n_states:,} states"
    return CompiledSimulator(n_states, n_actions, tables, None, 0, None, None, name, f"{name}, {n_actions}")


def build(folder: str, n_actions: int, dtype: str, *options: str) -> Any:
    """Compile the C source; return its function `learn`."""
    source = Path(folder, "learn.c")
    library = Path(folder, f"{n_actions}{dtype}{len(options)}.so")
    source.write_text(C_SOURCE)
    value = "float" if dtype == "float32" else "double"
    flags = ["-O3", "-march=native", "-std=gnu11", "-shared", "-fPIC", "-fno-signed-zeros", *options]
    constants = [f"-DN_ACTIONS={n_actions}", f"-DVALUE={value}"]
    subprocess.run(["gcc", *flags, *constants, "-o", str(library), str(source)], check=True)
    function = ctypes.CDLL(str(library)).learn
    address, real = ctypes.c_void_p, ctypes.c_double
    function.argtypes = [*[address] * 3, real, real, ctypes.c_uint64, ctypes.c_int64, address, address]
    function.restype = None
    return function


class CLearner:
    """A table that the C loop learns."""

    def __init__(self, function: Any, simulator: CompiledSimulator, dtype: str) -> None:
        self._function, self._simulator = function, simulator
        self.table = LineTable(TableShape(simulator.n_states, simulator.n_actions), np.dtype(dtype))
        self._step_sizes = STEP_SIZE.table(1)
        self._states = np.zeros(interleaved.WALKERS, np.int64)
        self._error = np.zeros(1)

    def learn(self, key: int, steps: int) -> float:
        """Learn so many steps of stream `key`; return seconds."""
        return common.timed(
            lambda: self._function(
                self._simulator.tables.outcomes.ctypes.data,
                self.table.arrays.values.ctypes.data,
                self._step_sizes.ctypes.data,
                EPSILON,
                DISCOUNT,
                key,
                steps,
                self._states.ctypes.data,
                self._error.ctypes.data,
            )
        )


class PackageLearner:
    """A table that the package's training loop learns, with walkers that take turns or with one."""

    def __init__(self, simulator: CompiledSimulator, dtype: str, takes_turns: bool = True) -> None:
        settings = Settings(learning_rate=STEP_SIZE, epsilon=EPSILON, discount_factor=DISCOUNT, dtype=dtype)
        source = resolve(simulator, 1, None)
        with table_size_from(0 if takes_turns else ENDLESS):
            self._learner = new_learner(
                problem_of(source, settings, Rates(settings, 1), np.dtype(dtype), is_alone=True)
            )
        self._learner.add(0, source, 0)
        self.table: Any = self._learner.table

    def learn(self, key: int, steps: int) -> float:
        """Learn so many steps of stream `key`; return seconds."""
        return common.timed(lambda: self._learner.learn(0, Stream(np.uint64(key), 0), steps))


class Agent:
    """A table that an agent learns."""

    def __init__(self, simulator: CompiledSimulator, dtype: str) -> None:
        self._simulator = simulator
        self._agent = DistAsyncQLearning(
            learning_rate=STEP_SIZE, epsilon=EPSILON, discount_factor=DISCOUNT, dtype=dtype, seed=0
        )

    def learn(self, key: int, steps: int) -> float:
        """Learn so many steps, of a stream that is the agent's own; return seconds."""
        with table_size_from(0):
            return self._agent.train(self._simulator, total_steps=steps).seconds


@contextmanager
def table_size_from(entries: int) -> Iterator[None]:
    """Let walkers take turns in tables of at least so many entries."""
    usual, interleaved.FROM_ENTRIES = interleaved.FROM_ENTRIES, entries
    try:
        yield
    finally:
        interleaved.FROM_ENTRIES = usual


def has_room(n_bytes: float) -> bool:
    """Whether so much memory is available, and a fifth of it besides."""
    text = Path("/proc/meminfo").read_text()
    return int(text.split("MemAvailable:")[1].split()[0]) * 1024 > 1.2 * n_bytes


def steps_in(learner: Any, seconds: float) -> int:
    """Return how many steps take about so long, after warming up; whole turns."""
    learner.learn(1, 1 << 20)
    learner.learn(2, 1 << 22)
    return max(1, int(seconds * (1 << 22) / learner.learn(3, 1 << 22)) >> 5) << 5


def compared(one: Any, other: Any, rounds: int, seconds: float) -> tuple[float, float, float]:
    """Return the steps per second of two learners, and the median over rounds of the ratio."""
    learners = {"one": one, "other": other}
    steps = {name: steps_in(learner, seconds) for name, learner in learners.items()}

    def run(name: str) -> Callable[[int], float]:
        return lambda number: (
            steps[name] / learners[name].learn(int(stream_key(1, "round", number)), steps[name])
        )

    found = common.interleave({name: run(name) for name in learners}, rounds)
    medians = [float(np.median(found[name])) for name in learners]
    return medians[0], medians[1], common.median_ratio(found["one"], found["other"])


def largest_difference(folder: str) -> float:
    """Return by how much the package and C differ after the same steps of a small problem."""
    simulator = random_problem(12, ACTIONS)
    twin = CLearner(build(folder, ACTIONS, "float64", "-ffp-contract=off"), simulator, "float64")
    package = PackageLearner(simulator, "float64")
    for learner in (twin, package):
        learner.learn(12345, 3_200_000)
    return float(np.abs(twin.table.values - package.table.values).max())


def against_c(folder: str, log_states: int, rounds: int, seconds: float) -> list[dict[str, Any]]:
    """Compare on one size of a table, in both types of values."""
    entries = ACTIONS << log_states
    if not has_room(32 * entries + 16 * 2 * entries):
        print(f"{entries:,} entries: left out for want of memory", file=sys.stderr)
        return []
    simulator = random_problem(log_states, ACTIONS)
    rows = []
    for dtype in ("float32", "float64"):
        twin = CLearner(build(folder, ACTIONS, dtype), simulator, dtype)
        row: dict[str, Any] = {"entries": entries, "dtype": dtype}
        kinds: dict[str, tuple[int, Callable[[], Any]]] = {
            "learner": (16, lambda dtype=dtype: PackageLearner(simulator, dtype)),
            "train": (48, lambda dtype=dtype: Agent(simulator, dtype)),
            "one walker": (64, lambda dtype=dtype: PackageLearner(simulator, dtype, takes_turns=False)),
        }
        for name, (entry_bytes, make) in kinds.items():
            gc.collect()
            if has_room(entry_bytes * entries):
                rate, c_rate, ratio = compared(make(), twin, rounds, seconds)
                row[name] = {"steps_per_second": rate, "c_steps_per_second": c_rate, "ratio": ratio}
            print(entries, dtype, name, row.get(name, "left out for want of memory"), file=sys.stderr)
        rows.append(row)
    return rows


def against_one_walker(log_entries: int, n_actions: int, rounds: int, seconds: float) -> dict[str, Any]:
    """Compare walkers that take turns with one, in a table of about so many entries."""
    log_states = log_entries - round(np.log2(n_actions))
    simulator = random_problem(log_states, n_actions)
    row: dict[str, Any] = {"actions": n_actions, "entries": n_actions << log_states}
    for dtype in ("float32", "float64"):
        learners = [PackageLearner(simulator, dtype, takes_turns) for takes_turns in (True, False)]
        _, _, row[dtype] = compared(*learners, rounds, seconds)
    print(row, file=sys.stderr)
    return row


def main() -> None:
    """Measure all sizes."""
    parser = common.parser(__doc__, "large_tables.json")
    parser.add_argument("--rounds", type=int, default=9, help="interleaved runs")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each run")
    parser.add_argument("--states", type=int, nargs="+", default=LOG_STATES, help="their binary logarithms")
    parser.add_argument("--from-entries", action="store_true", help="find where walkers should take turns")
    parser.add_argument("--actions", type=int, nargs="+", default=(4, 8, 100), help="for --from-entries")
    parser.add_argument(
        "--entries", type=int, nargs="+", default=range(10, 23, 2), help="for --from-entries; logarithms"
    )
    arguments = parser.parse_args()
    how = {"rounds": arguments.rounds, "seconds": arguments.seconds}
    if arguments.from_entries:
        rows = [
            against_one_walker(log_entries, n_actions, **how)
            for n_actions in arguments.actions
            for log_entries in arguments.entries
        ]
        common.show(
            ["actions", "entries", "turns / one walker, float32", "float64"],
            [
                [row["actions"], f"{row['entries']:,}", f"{row['float32']:.2f}", f"{row['float64']:.2f}"]
                for row in rows
            ],
        )
        common.save(arguments.output, rows, **how)
        return
    with tempfile.TemporaryDirectory() as folder:
        difference = largest_difference(folder)
        rows = [row for log_states in arguments.states for row in against_c(folder, log_states, **how)]
    print(f"largest difference to C in float64: {difference:.0e}")
    names = ("learner", "train", "one walker")
    common.show(
        [
            "entries",
            "values",
            "C, M/s",
            *(f"{name}, M/s" for name in names),
            *(f"{name} / C" for name in names),
        ],
        [
            [
                f"{row['entries']:,}",
                row["dtype"],
                f"{row['learner']['c_steps_per_second'] / 1e6:.1f}",
                *(cell(row, name, lambda found: f"{found['steps_per_second'] / 1e6:.1f}") for name in names),
                *(cell(row, name, lambda found: f"{found['ratio']:.2f}") for name in names),
            ]
            for row in rows
        ],
    )
    common.save(arguments.output, rows, largest_difference=difference, **how)


def cell(row: dict[str, Any], name: str, text: Callable[[Any], str]) -> str:
    """Return what a row of the table says of a kind of learning, if it was measured."""
    return text(row[name]) if name in row else ""


if __name__ == "__main__":
    main()
