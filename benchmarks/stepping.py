"""What learning adds to the time of stepping environments through Gymnasium.

For each environment, in turns: learning, as a worker does it; the package's own stepping of the same batch
with actions drawn beforehand; and, where there is one, Gymnasium's SyncVectorEnv with actions drawn
beforehand. 16 environments each. The learner explores with probability 1, so that episodes are as long as
under the actions drawn beforehand.

Then one environment object, as it is given to `train`, over Q-learning as tutorials write it, a loop in plain
Python with a dictionary: both explore one time in ten.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import common
import gymnasium
import numpy as np
from suite import plain

from dist_classicrl._random import stream_key
from dist_classicrl.environments.resolve import resolve
from dist_classicrl.learning.learner import Stream
from dist_classicrl.schedules import PerVisit
from dist_classicrl.settings import Settings

N_ENVS = 16


class GridWalk(gymnasium.Env):
    """A walk over a grid, observed as two coordinates and a flag: MultiDiscrete, and cheap to step."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.MultiDiscrete([10, 10, 2])
        self.action_space = gymnasium.spaces.Discrete(4)
        self._place = np.zeros(3, np.int64)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        """Start in a corner."""
        super().reset(seed=seed)
        self._place[:] = 0
        return self._place.copy(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Move, and end at the far corner."""
        axis, forward = action % 2, action < 2
        place = self._place
        place[axis] = min(9, place[axis] + 1) if forward else max(0, place[axis] - 1)
        place[2] = self.np_random.random() < 0.5
        done = place[0] == 9 and place[1] == 9
        return place.copy(), 1.0 if done else 0.0, bool(done), False, {}


class PlainGrid(gymnasium.Env):
    """A walk over a grid of 10 x 10 numbered places, in Python without arrays: nothing is cheaper to step."""

    observation_space = gymnasium.spaces.Discrete(100)
    action_space = gymnasium.spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        """Start in a corner."""
        super().reset(seed=seed)
        self._place = 0
        return 0, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        """Move, and end at the far corner."""
        row, column = divmod(self._place, 10)
        if action < 2:
            row = min(9, row + 1) if action else max(0, row - 1)
        else:
            column = min(9, column + 1) if action == 3 else max(0, column - 1)
        self._place = 10 * row + column
        done = self._place == 99
        return self._place, float(done), done, False, {}


class Bandit(gymnasium.Env):
    """Ten arms, each pull of which is an episode: what beginning one costs."""

    observation_space = gymnasium.spaces.Discrete(1)
    action_space = gymnasium.spaces.Discrete(10)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        """Begin."""
        super().reset(seed=seed)
        return 0, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        """Pull an arm."""
        return 0, 0.1 * int(action), True, False, {}


class VectorWalk(gymnasium.vector.VectorEnv):
    """A user's own vector environment, whose step is a few numpy operations.

    There is nothing cheaper to add to.
    """

    metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.NEXT_STEP}

    def __init__(self, num_envs: int = N_ENVS, length: int = 100) -> None:
        self.num_envs = num_envs
        self.single_observation_space = gymnasium.spaces.Discrete(length)
        self.single_action_space = gymnasium.spaces.Discrete(2)
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, num_envs)
        self._length = length
        self._place = np.zeros(num_envs, np.int64)
        self._done = np.zeros(num_envs, bool)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        """Start at the left end."""
        super().reset(seed=seed)
        self._place[:] = 0
        self._done[:] = False
        return self._place.copy(), {}

    def step(
        self, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Move left or right, slipping one time in ten; the right end pays 1 and ends the episode."""
        slips = self.np_random.random(self.num_envs) < 0.1
        moves = np.where(slips, -1, 2 * actions - 1)
        self._place = np.clip(np.where(self._done, 0, self._place + moves), 0, self._length - 1)
        self._done = (self._place == self._length - 1) & ~self._done
        return (
            self._place.copy(),
            self._done.astype(np.float64),
            self._done.copy(),
            np.zeros(self.num_envs, bool),
            {},
        )


def frozen_lake() -> gymnasium.Env:
    """Return the environment that the package would compile, were it not told to step it."""
    return gymnasium.make("FrozenLake-v1", map_name="8x8")


def sync_vector(factory: Callable[[], gymnasium.Env]) -> gymnasium.vector.VectorEnv:
    """Return Gymnasium's own vector of `N_ENVS` environments."""
    return gymnasium.vector.SyncVectorEnv([factory] * N_ENVS)


CASES: dict[str, tuple[Callable[[], Any], bool]] = {
    # name: what makes the environment, and whether the result is what the user hands in, instead of a factory
    "FrozenLake 8x8, stepped": (frozen_lake, False),
    "MultiDiscrete grid": (GridWalk, False),
    "SyncVectorEnv of FrozenLake": (lambda: sync_vector(frozen_lake), True),
    "numpy VectorEnv": (VectorWalk, True),
}


def measure(name: str, step_size: str, steps: int, rounds: int) -> dict[str, Any]:
    """Time the candidates on one environment; `steps` are steps of the whole batch."""
    factory, is_instance = CASES[name]
    given = factory() if is_instance else factory
    step_rate = PerVisit(0.7) if step_size == "n^-0.7" else float(step_size)
    settings = Settings(learning_rate=step_rate, epsilon=1.0)
    source = resolve(given, N_ENVS, None, compile_env=False)
    learner = common.learner_in(source, settings)
    stepped = resolve(factory() if is_instance else factory, N_ENVS, None, compile_env=False).stepped
    assert stepped is not None
    stepped.reset(0)
    vector = factory() if is_instance else sync_vector(factory)
    vector.reset(seed=0)
    drawn = np.random.default_rng(0).integers(source.n_actions, size=(steps, N_ENVS))
    stream = Stream(stream_key(0, "benchmark"), 0)

    def step_only() -> None:
        for actions in drawn:
            stepped.step(actions)

    def step_vector() -> None:
        for actions in drawn:
            vector.step(actions)

    seconds = common.interleave(
        {
            "learn": lambda _: common.timed(lambda: learner.learn(0, stream, steps * N_ENVS)),
            "step": lambda _: common.timed(step_only),
            "gymnasium": lambda _: common.timed(step_vector),
        },
        rounds,
    )
    for env in (source, stepped, vector):
        env.close()
    return {
        "environment": name,
        "step_size": step_size,
        "microseconds": {label: 1e6 * statistics.median(found) / steps for label, found in seconds.items()},
        "over_stepping": common.median_ratio(seconds["learn"], seconds["step"]),
        "over_gymnasium": common.median_ratio(seconds["learn"], seconds["gymnasium"]),
    }


ALONE: dict[str, Callable[[], gymnasium.Env]] = {
    "FrozenLake 8x8, stepped": frozen_lake,
    "grid in plain Python": lambda: gymnasium.wrappers.TimeLimit(PlainGrid(), 200),
    "bandit, each step an episode": Bandit,
}


def measure_alone(name: str, batch_size: int, steps: int, rounds: int) -> dict[str, Any]:
    """Time learning in one environment object and the plain loop."""
    source = resolve(ALONE[name](), 1, None, compile_env=False)
    settings = Settings(learning_rate=plain.STEP_SIZE, epsilon=0.1, batch_size=batch_size)
    learner = common.learner_in(source, settings)
    loop = plain.PlainLoop(ALONE[name](), epsilon=0.1)
    stream = Stream(stream_key(0, "benchmark"), 0)
    seconds = common.interleave(
        {
            "learn": lambda _: common.timed(lambda: learner.learn(0, stream, steps)),
            "loop": lambda _: loop.learn(steps),
        },
        rounds,
    )
    source.close()
    return {
        "environment": name,
        "batch_size": batch_size,
        "microseconds": {label: 1e6 * statistics.median(found) / steps for label, found in seconds.items()},
        "over_loop": common.median_ratio(seconds["learn"], seconds["loop"]),
    }


def main() -> None:
    """Measure every case."""
    parser = common.parser(__doc__, "stepping.json")
    parser.add_argument("--steps", type=int, default=2_000, help="of the batch of 16, in each timed run")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--step_sizes", nargs="+", default=["0.1", "n^-0.7"])
    arguments = parser.parse_args()
    rows = [
        measure(name, step_size, arguments.steps, arguments.rounds)
        for name in CASES
        for step_size in arguments.step_sizes
    ]
    common.show(
        [
            "environment",
            "step size",
            "learning, us",
            "stepping, us",
            "Gymnasium, us",
            "/ stepping",
            "/ Gymnasium",
        ],
        [
            [
                row["environment"],
                row["step_size"],
                *(f"{row['microseconds'][label]:.0f}" for label in ("learn", "step", "gymnasium")),
                f"{row['over_stepping']:.2f}",
                f"{row['over_gymnasium']:.2f}",
            ]
            for row in rows
        ],
    )
    print("Microseconds are for one step of all 16 environments.\n")
    alone = [
        measure_alone(name, batch_size, arguments.steps * N_ENVS, arguments.rounds)
        for name in ALONE
        for batch_size in (1, Settings().batch_size)
    ]
    common.show(
        ["one object", "batch size", "learning, us", "plain loop, us", "/ plain loop"],
        [
            [
                row["environment"],
                row["batch_size"],
                *(f"{row['microseconds'][label]:.1f}" for label in ("learn", "loop")),
                f"{row['over_loop']:.2f}",
            ]
            for row in alone
        ],
    )
    common.save(arguments.output, rows + alone, steps=arguments.steps, rounds=arguments.rounds)


if __name__ == "__main__":
    main()
