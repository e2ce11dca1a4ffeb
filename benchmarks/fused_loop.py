"""The package's training loop, its visit counts included, against a plain C loop.

The C loop is compiled when this runs, with ``gcc -O3 -march=native``. Both use SplitMix64 with the same
draws, the same alias tables, the same table layout (float64, state * actions + action), the same fair
tie-breaking and, for per-visit step sizes, the same step-size table with a count per entry. The package is
called as a process alone calls it, which keeps no affine maps, and as a worker calls it: stretches of 50,000
steps, each followed by packing the maps. Before it is timed,
the C loop is compiled once more without contraction to fused multiply-adds, which Python's compiler does not
do either, and must learn the same values.

"C, actions fixed" is the same source with the number of actions as a compile-time constant.
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import common
import numpy as np

from dist_classicrl._random import stream_key
from dist_classicrl.environments.resolve import Source, resolve
from dist_classicrl.environments.simulate import CompiledSimulator
from dist_classicrl.learning.learner import Stream
from dist_classicrl.schedules import PerVisit
from dist_classicrl.settings import Settings

C_SOURCE = r"""
#include <math.h>
#include <stdint.h>

static const uint64_t gamma_64 = 0x9E3779B97F4A7C15ull;

static inline uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

static inline int64_t below(uint64_t random, int64_t n) {
    return (int64_t)(((random & 0xFFFFFFFFull) * (uint64_t)n) >> 32);
}

static inline double step_size_of_visit(const double *step_sizes, int64_t visit) {
    int octave = 64 - 13 - __builtin_clzll((uint64_t)visit);
    if (octave < 0) octave = 0;
    return step_sizes[((int64_t)octave << 12) + (visit >> octave)];
}

struct slot { uint32_t threshold; int32_t outcome[2], unused; double reward[2]; };

struct model {
    const struct slot *slots;
    const uint32_t *start_threshold;
    const int64_t *start_states;
    int64_t width, n_starts, n_actions, time_limit;
};

static int64_t begin_episode(const struct model *m, uint64_t random) {
    int64_t slot = below(random, m->n_starts);
    return m->start_states[2 * slot + ((uint32_t)(random >> 32) > m->start_threshold[slot])];
}

void learn(const struct model *m, double *restrict q, int64_t *restrict visits,
           const double *restrict step_sizes, double step_size, double epsilon, double discount,
           uint64_t key, uint64_t offset, int64_t steps,
           int64_t *position, double *running_return, double *totals) {
#ifdef N_ACTIONS
    const int64_t n_actions = N_ACTIONS;
#else
    const int64_t n_actions = m->n_actions;
#endif
    const struct slot *restrict slots = m->slots;
    const int64_t width = m->width, time_limit = m->time_limit;
    const double explore_below = epsilon * 4294967296.0;
    uint64_t counter = key + offset * 3 * gamma_64;
    int64_t state = position[0], elapsed = position[1];
    double collected = *running_return;
    if (state < 0) state = begin_episode(m, mix(~counter));
    for (int64_t step = 0; step < steps; step++) {
        uint64_t random = mix(counter);
        const double *row = q + state * n_actions;
        int64_t action = 0;
        if ((double)(int64_t)(random >> 32) < explore_below) {
            action = below(random, n_actions);
        } else {
            double top = row[0];
            int64_t ties = 1;
            for (int64_t a = 1; a < n_actions; a++) {
                if (row[a] > top) {
                    top = row[a];
                    action = a;
                    ties = 1;
                } else if (row[a] == top) {
                    ties++;
                }
            }
            if (ties > 1) {
                int64_t pick = below(random, ties);
                for (action = 0;; action++)
                    if (row[action] == top && pick-- == 0) break;
            }
        }
        int64_t entry = state * n_actions + action;
        random = mix(counter + gamma_64);
        const struct slot *slot = slots + entry * width + below(random, width);
        int other = (uint32_t)(random >> 32) > slot->threshold;
        int32_t outcome = slot->outcome[other];
        double reward = slot->reward[other];
        int64_t next_state = outcome >> 1;
        int terminated = outcome & 1;
        double target = reward;
        if (!terminated) {
            const double *next_row = q + next_state * n_actions;
            double top = next_row[0];
            for (int64_t a = 1; a < n_actions; a++)
                if (next_row[a] > top) top = next_row[a];
            target += discount * top;
        }
        double alpha = step_size;
        if (step_sizes) alpha = step_size_of_visit(step_sizes, ++visits[entry]);
        q[entry] += alpha * (target - q[entry]);
        collected += reward;
        elapsed++;
        state = next_state;
        if (terminated || elapsed >= time_limit) {
            totals[0] += 1;
            totals[1] += collected;
            totals[2] += elapsed;
            collected = 0;
            elapsed = 0;
            state = begin_episode(m, mix(counter + 2 * gamma_64));
        }
        counter += 3 * gamma_64;
    }
    position[0] = state;
    position[1] = elapsed;
    *running_return = collected;
}
"""

EPSILON, DISCOUNT = 0.1, 0.99
NEVER = 1 << 62
STEP_SIZES: dict[str, Any] = {"0.1": 0.1, "n^-0.7": PerVisit(0.7)}


class CModel(ctypes.Structure):
    """The C source's `struct model`."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("slots", "start_threshold", "start_states")),
        *((name, ctypes.c_int64) for name in ("width", "n_starts", "n_actions", "time_limit")),
    ]


def build(folder: str, name: str, *options: str) -> Any:
    """Compile the C source with gcc -O3 -march=native and `options`; return its function `learn`."""
    source, library = Path(folder, "learn.c"), Path(folder, f"{name}.so")
    source.write_text(C_SOURCE)
    flags = ["-O3", "-march=native", "-std=gnu11", *options, "-shared", "-fPIC"]
    subprocess.run(["gcc", *flags, "-o", str(library), str(source)], check=True)
    function = ctypes.CDLL(str(library)).learn
    real, whole, address = ctypes.c_double, ctypes.c_int64, ctypes.c_void_p
    unsigned = ctypes.c_uint64
    function.argtypes = [*[address] * 4, real, real, real, unsigned, unsigned, whole, *[address] * 3]
    function.restype = None
    return function


class CLearner:
    """A table that the C loop learns."""

    def __init__(self, function: Any, simulator: CompiledSimulator, step_size: Any) -> None:
        tables = simulator.tables
        self._kept = tables
        self.q = np.zeros(simulator.n_states * simulator.n_actions)
        self._visits = np.zeros(self.q.size, np.int64)
        self._position = np.array([-1, 0], np.int64)
        self._return = np.zeros(1)
        self._totals = np.zeros(3)
        per_visit = isinstance(step_size, PerVisit)
        self._rates = step_size.table(1) if per_visit else None
        self._model = CModel(
            tables.outcomes.ctypes.data,
            tables.start_threshold.ctypes.data,
            tables.start_states.ctypes.data,
            tables.width,
            tables.start_threshold.size,
            simulator.n_actions,
            simulator.max_episode_steps or NEVER,
        )
        self._function = function
        self._first = (
            ctypes.addressof(self._model),
            self.q.ctypes.data,
            self._visits.ctypes.data,
            None if self._rates is None else self._rates.ctypes.data,
            0.0 if per_visit else step_size,
            EPSILON,
            DISCOUNT,
        )
        self._last = (self._position.ctypes.data, self._return.ctypes.data, self._totals.ctypes.data)

    def learn(self, key: int, steps: int, chunk: int) -> None:
        """Learn `steps` steps of stream `key`."""
        for offset in range(0, steps, chunk):
            self._function(*self._first, key, offset, chunk, *self._last)


class PackageLearner:
    """A table that the package learns, as a worker does, or a process alone."""

    def __init__(self, source: Source, step_size: Any, is_alone: bool = False) -> None:
        settings = Settings(learning_rate=step_size, epsilon=EPSILON, discount_factor=DISCOUNT)
        self._learner = common.learner_in(source, settings, is_alone=is_alone)
        self.table = self._learner.table
        self._is_alone = is_alone
        self._pack()

    def _pack(self) -> None:
        if not self._is_alone:
            self.table.pack()

    def learn(self, key: int, steps: int, chunk: int) -> None:
        """Learn `steps` steps of stream `key`, packing the maps after each chunk if they are kept."""
        stream = Stream(np.uint64(key), 0)
        while stream.used < steps:
            self._learner.learn(0, stream, chunk)
            self._pack()


def measure(name: str, step_size: str, steps: int, chunk: int, rounds: int, folder: str) -> dict[str, Any]:
    """Compare values, then time, on one environment."""
    source = resolve(common.problem(name), 1, None)
    simulator = source.simulator
    assert simulator is not None
    if simulator.tables.first is not None:
        raise SystemExit(f"{name}: the C loop reads padded alias tables only")
    rate = STEP_SIZES[step_size]
    actions = f"-DN_ACTIONS={simulator.n_actions}"
    twin = CLearner(build(folder, f"twin{simulator.n_actions}", "-ffp-contract=off"), simulator, rate)
    package = PackageLearner(source, rate, is_alone=True)
    for learner in (twin, package):
        learner.learn(int(stream_key(0, "check")), 2_000_000, chunk)
    difference = float(np.abs(twin.q - package.table.q).max())
    learners: dict[str, Any] = {
        "package": PackageLearner(source, rate, is_alone=True),
        "worker": PackageLearner(source, rate),
        "c": CLearner(build(folder, "plain"), simulator, rate),
        "c_fixed": CLearner(build(folder, f"fixed{simulator.n_actions}", actions), simulator, rate),
    }

    def run(learner: Any, number: int) -> float:
        key = int(stream_key(1, "round", number))
        return common.timed(lambda: learner.learn(key, steps, chunk))

    seconds = common.interleave(
        {label: lambda number, learner=learner: run(learner, number) for label, learner in learners.items()},
        rounds,
    )
    return {
        "environment": name,
        "step_size": step_size,
        "steps_per_second": {label: steps / float(np.median(found)) for label, found in seconds.items()},
        "ratio": common.median_ratio(seconds["c"], seconds["package"]),
        "ratio_fixed": common.median_ratio(seconds["c_fixed"], seconds["package"]),
        "ratio_worker": common.median_ratio(seconds["c"], seconds["worker"]),
        "largest_difference": difference,
    }


def main() -> None:
    """Measure all environments and step sizes."""
    parser = common.parser(__doc__, "fused_loop.json")
    parser.add_argument("--steps", type=int, default=5_000_000, help="of each timed run")
    parser.add_argument("--chunk", type=int, default=50_000, help="steps between two packs")
    parser.add_argument("--rounds", type=int, default=9, help="interleaved runs")
    arguments = parser.parse_args()
    steps = -(-arguments.steps // arguments.chunk) * arguments.chunk
    with tempfile.TemporaryDirectory() as folder:
        rows = [
            measure(name, step_size, steps, arguments.chunk, arguments.rounds, folder)
            for name in common.PROBLEMS
            for step_size in STEP_SIZES
        ]
    common.show(
        [
            "environment",
            "step size",
            "package, M/s",
            "C, M/s",
            "package / C",
            "package / C, actions fixed",
            "worker / C",
            "|dQ|",
        ],
        [
            [
                row["environment"],
                row["step_size"],
                f"{row['steps_per_second']['package'] / 1e6:.1f}",
                f"{row['steps_per_second']['c'] / 1e6:.1f}",
                f"{row['ratio']:.2f}",
                f"{row['ratio_fixed']:.2f}",
                f"{row['ratio_worker']:.2f}",
                f"{row['largest_difference']:.0e}",
            ]
            for row in rows
        ],
    )
    common.save(arguments.output, rows, steps=steps, chunk=arguments.chunk, rounds=arguments.rounds)


if __name__ == "__main__":
    main()
