"""What people write without a library: environments and learners in plain Python and NumPy.

The drivers of peers use this in an environment that has NumPy and Gymnasium, and not this package.
"""

from __future__ import annotations

import random
import time
from bisect import bisect
from collections import defaultdict
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import gymnasium
import numpy as np

STEP_SIZE, DISCOUNT, EPSILON = 0.1, 0.99, 0.1
LINES = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]


class PlainTicTacToe(gymnasium.Env):
    """Crosses, which move first, against a random machine player; an illegal move loses."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Discrete(3**9)
        self.action_space = gymnasium.spaces.Discrete(9)
        self._board = [0] * 9
        self._random = random.Random(0)

    def _code(self) -> int:
        code = 0
        for square in self._board:
            code = 3 * code + square
        return code

    def _won(self, mark: int) -> bool:
        board = self._board
        return any(board[i] == board[j] == board[k] == mark for i, j, k in LINES)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        """Clear the board."""
        super().reset(seed=seed)
        if seed is not None:
            self._random = random.Random(seed)
        self._board = [0] * 9
        return 0, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        """Set a cross, and let the machine answer."""
        board = self._board
        if board[action]:
            return self._code(), -1.0, True, False, {}
        board[action] = 1
        if self._won(1):
            return self._code(), 1.0, True, False, {}
        empty = [square for square in range(9) if not board[square]]
        if not empty:
            return self._code(), 0.0, True, False, {}
        board[self._random.choice(empty)] = 2
        if self._won(2):
            return self._code(), -1.0, True, False, {}
        return self._code(), 0.0, False, False, {}


@lru_cache(1)
def model_arrays(path: str) -> dict[str, Any]:
    """Return the arrays of a model from an .npz, which all its environments share.

    They are those of `TabularMDP`, with "until", the sums of outcome_prob over all outcomes up to each: those
    of a pair end at one more than those of the pair before.
    """
    with np.load(path, allow_pickle=False) as arrays:
        found = dict(arrays)
    return {**found, "until": np.cumsum(found["outcome_prob"])}


class ModelEnv(gymnasium.Env):
    """A finite model that is played in plain Python.

    Parameters
    ----------
    arrays : mapping of str to ndarray
        As `model_arrays` returns them. An episode starts anywhere and ends after 100 steps.
    """

    def __init__(self, arrays: dict[str, Any]) -> None:
        self._actions = int(arrays["n_actions"])
        self._states = int(arrays["n_states"])
        self.observation_space = gymnasium.spaces.Discrete(self._states)
        self.action_space = gymnasium.spaces.Discrete(self._actions)
        self._first, self._until = arrays["outcome_ptr"], arrays["until"]
        self._next, self._reward = arrays["outcome_next"], arrays["outcome_reward"]
        self._ends = arrays["outcome_terminated"]
        self._random = random.Random(0)
        self._state = self._elapsed = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        """Start somewhere."""
        super().reset(seed=seed)
        if seed is not None:
            self._random = random.Random(seed)
        self._state, self._elapsed = self._random.randrange(self._states), 0
        return self._state, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        """Draw one of the outcomes of the pair."""
        pair = self._state * self._actions + int(action)
        first, last = int(self._first[pair]), int(self._first[pair + 1]) - 1
        place = bisect(self._until, pair + self._random.random(), first, last)
        self._state = int(self._next[place])
        self._elapsed += 1
        return self._state, float(self._reward[place]), bool(self._ends[place]), self._elapsed >= 100, {}


def environment(name: str, folder: str) -> gymnasium.Env:
    """Return what Gymnasium or this module has under a name of `options.CASES`.

    Garnets are read from `folder`: an .npz of the arrays of `ModelEnv` has the name of the case.
    """
    if name == "TicTacToe":
        return PlainTicTacToe()
    if name.startswith("Garnet"):
        return ModelEnv(model_arrays(f"{folder}/{name}.npz"))
    ids = {
        "FrozenLake 4x4": ("FrozenLake-v1", {}),
        "FrozenLake 8x8": ("FrozenLake-v1", {"map_name": "8x8"}),
        "Taxi": (_taxi(), {}),
        "CliffWalking": ("CliffWalking-v1", {}),
        "Blackjack": ("Blackjack-v1", {}),
    }
    id_, options = ids[name]
    return gymnasium.make(id_, **options)


def _taxi() -> str:
    return "Taxi-v4" if "Taxi-v4" in gymnasium.registry else "Taxi-v3"


def sizes_of(space: gymnasium.Space) -> tuple[int, ...]:
    """Return the number of values of each part of an observation."""
    parts = space.spaces if isinstance(space, gymnasium.spaces.Tuple) else (space,)
    return tuple(int(part.n) for part in parts)


class PlainLoop:
    """Q-learning with one environment and a dictionary, as tutorials teach it.

    Parameters
    ----------
    env : gymnasium.Env
    step_size : callable, optional
        The step size of a visit, counted from 1; None: always `STEP_SIZE`.
    epsilon : float
    seed : int
    """

    def __init__(
        self,
        env: gymnasium.Env,
        step_size: Callable[[int], float] | None = None,
        epsilon: float = EPSILON,
        seed: int = 0,
    ) -> None:
        n_actions = int(env.action_space.n)
        self.q: Any = defaultdict(lambda: np.zeros(n_actions))
        self._visits: Any = defaultdict(lambda: np.zeros(n_actions, int))
        self._env, self._step_size, self._epsilon = env, step_size, epsilon
        self._random = random.Random(seed)
        env.action_space.seed(seed)
        self._state, _ = env.reset(seed=seed)

    def learn(self, steps: int) -> float:
        """Make so many steps; return the seconds."""
        env, q, state, step_size, visits = self._env, self.q, self._state, self._step_size, self._visits
        begin = time.perf_counter()
        for _ in range(steps):
            if self._random.random() < self._epsilon:
                action = int(env.action_space.sample())
            else:
                action = int(np.argmax(q[state]))
            following, reward, terminated, truncated, _ = env.step(action)
            best = 0.0 if terminated else np.max(q[following])
            alpha = STEP_SIZE
            if step_size is not None:
                visits[state][action] += 1
                alpha = step_size(visits[state][action])
            q[state][action] += alpha * (reward + DISCOUNT * best - q[state][action])
            state = env.reset()[0] if terminated or truncated else following
        self._state = state
        return time.perf_counter() - begin


class VectorLoop:
    """Q-learning in NumPy on a `SyncVectorEnv`, one vectorized update for all environments.

    Parameters
    ----------
    factory : callable
        Makes one environment.
    n_envs : int
    exponent : float
        Step sizes are ``visit ** -exponent``; 0: always `STEP_SIZE`.
    epsilon : float
    seed : int
    """

    def __init__(
        self,
        factory: Callable[[], gymnasium.Env],
        n_envs: int,
        exponent: float = 0.0,
        epsilon: float = EPSILON,
        seed: int = 0,
    ) -> None:
        mode = gymnasium.vector.AutoresetMode.SAME_STEP
        self.n_envs = n_envs
        self._envs = gymnasium.vector.SyncVectorEnv([factory] * n_envs, autoreset_mode=mode)
        self._n_actions = int(self._envs.single_action_space.n)
        self.q = np.zeros((*sizes_of(self._envs.single_observation_space), self._n_actions))
        self._visits = np.zeros(self.q.shape)
        self._exponent, self._epsilon = exponent, epsilon
        self._states = self._index(self._envs.reset(seed=seed * n_envs)[0])
        self._random = np.random.default_rng(seed)
        self.returns = 0.0
        self.episodes = 0

    @staticmethod
    def _index(observations: Any) -> tuple[np.ndarray, ...]:
        return observations if isinstance(observations, tuple) else (observations,)

    def learn(self, steps: int) -> float:
        """Make `steps` steps, rounded up to whole steps of all environments; return the seconds."""
        q, states, draw, n_envs = self.q, self._states, self._random, self.n_envs
        begin = time.perf_counter()
        for _ in range(-(-steps // n_envs)):
            greedy = q[states].argmax(axis=1)
            explore = draw.random(n_envs) < self._epsilon
            actions = np.where(explore, draw.integers(self._n_actions, size=n_envs), greedy)
            observed, rewards, terminated, truncated, infos = self._envs.step(actions)
            following = self._index(observed)
            # Where an episode ended, `following` is the next one's beginning. The mask below leaves its value
            # out; where the time was up, the value of the last state is asked for.
            reached = following
            if truncated.any():
                reached = tuple(part.copy() for part in following)
                for place in np.flatnonzero(truncated):
                    last = self._index(infos["final_obs"][place])
                    for part, value in zip(reached, last, strict=True):
                        part[place] = value
            targets = rewards + DISCOUNT * q[reached].max(axis=1) * ~terminated
            entries = (*states, actions)
            alpha: Any = STEP_SIZE
            if self._exponent:
                self._visits[entries] += 1.0
                alpha = self._visits[entries] ** -self._exponent
            q[entries] += alpha * (targets - q[entries])
            self.returns += float(rewards.sum())
            self.episodes += int((terminated | truncated).sum())
            states = following
        self._states = states
        return time.perf_counter() - begin

    def close(self) -> None:
        """Close the environments."""
        self._envs.close()


def bare_stepping(env: gymnasium.Env, steps: int) -> float:
    """Return the seconds of `steps` steps with actions drawn beforehand; nothing is learned."""
    actions = np.random.default_rng(0).integers(int(env.action_space.n), size=steps).tolist()
    env.reset(seed=0)
    begin = time.perf_counter()
    for action in actions:
        _, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            env.reset()
    return time.perf_counter() - begin
