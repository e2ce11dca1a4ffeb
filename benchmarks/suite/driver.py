"""Runs in the environment of the peers: answers questions on standard input, a line of JSON for each.

A question is {"what": ..., other arguments}; an answer is what the function of that name below returns, or
{"left_out": why}. What is made for one question is kept for the next of the same kind.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import json
import os
import sys
import time
import types
from functools import cache, lru_cache
from typing import Any

import gymnasium
import numpy as np
import plain

ENVPOOL_ENVS = 256
MOST_ITERATIONS = 500
"""Where actions have the same value, but for rounding, policy iteration of peers goes to and fro for ever."""
ENVPOOL_IDS = {
    "FrozenLake 4x4": "FrozenLake-v1",
    "FrozenLake 8x8": "FrozenLake8x8-v1",
    "Taxi": "Taxi-v3",
    "CliffWalking": "CliffWalking-v1",
    "Blackjack": "Blackjack-v1",
}


class _AnyClass(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _AnyClass(name, (), {})


class _EmptyModule(types.ModuleType):
    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _AnyClass(name, (), {})


class _WithoutTorch(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives empty modules for torch, which MushroomRL imports and its tables never call."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.split(".")[0] == "torch":
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        return _EmptyModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


@cache
def _mushroom() -> Any:
    """Return what of MushroomRL learns tables, with an environment that adapts Gymnasium's."""
    if importlib.util.find_spec("torch") is None:
        sys.meta_path.append(_WithoutTorch())
    # The package's own module would import deep learning; those of tables lie beside it.
    values = types.ModuleType("mushroom_rl.algorithms.value")
    folders = importlib.util.find_spec("mushroom_rl").submodule_search_locations
    values.__path__ = [os.path.join(folders[0], "algorithms", "value")]
    sys.modules[values.__name__] = values
    from mushroom_rl.algorithms.value.td import SARSA, QLearning
    from mushroom_rl.core import Core, Environment, MDPInfo
    from mushroom_rl.policy import EpsGreedy
    from mushroom_rl.utils import spaces
    from mushroom_rl.utils.parameters import ExponentialParameter, Parameter

    class Adapted(Environment):
        """A Gymnasium environment; observations that are tuples are numbered."""

        def __init__(self, env: gymnasium.Env, horizon: float) -> None:
            self._env = env
            self._sizes = plain.sizes_of(env.observation_space)
            n_states, n_actions = int(np.prod(self._sizes)), int(env.action_space.n)
            super().__init__(
                MDPInfo(spaces.Discrete(n_states), spaces.Discrete(n_actions), plain.DISCOUNT, horizon)
            )

        def _state(self, observation: Any) -> np.ndarray:
            if isinstance(observation, tuple):
                observation = np.ravel_multi_index(observation, self._sizes)
            return np.array([observation])

        def reset(self, state: Any = None) -> np.ndarray:
            """Begin an episode."""
            return self._state(self._env.reset()[0])

        def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, dict[str, Any]]:
            """Make a step; the time limit is the horizon."""
            observation, reward, terminated, _, info = self._env.step(int(action[0]))
            return self._state(observation), reward, terminated, info

    rules = {"Q-learning": QLearning, "SARSA": SARSA}
    return types.SimpleNamespace(
        rules=rules,
        Core=Core,
        EpsGreedy=EpsGreedy,
        Adapted=Adapted,
        Parameter=Parameter,
        ExponentialParameter=ExponentialParameter,
    )


@lru_cache(2)
def _mushroom_core(rule: str, case: str, folder: str, exponent: float, epsilon: float, attempt: int) -> Any:
    parts = _mushroom()
    env = plain.environment(case, folder)
    limit = env.spec.max_episode_steps if env.spec is not None else None
    # A model's own limit, and a game's end, are told as the end of an episode.
    horizon = limit or (100 if isinstance(env, plain.ModelEnv) else np.inf)
    adapted = parts.Adapted(env.unwrapped, horizon)
    if exponent:
        step_size = parts.ExponentialParameter(1.0, exp=exponent, size=adapted.info.size)
    else:
        step_size = parts.Parameter(plain.STEP_SIZE)
    agent = parts.rules[rule](adapted.info, parts.EpsGreedy(parts.Parameter(epsilon)), step_size)
    return parts.Core(agent, adapted)


def mushroom(
    rule: str,
    case: str,
    folder: str,
    steps: int,
    exponent: float = 0.0,
    epsilon: float = plain.EPSILON,
    attempt: int = 0,
    table: bool = False,
) -> dict[str, Any]:
    """Learn with MushroomRL; step sizes are constant, or ``visit ** -exponent``.

    Questions of the same attempt go on with the same table.
    """
    core = _mushroom_core(rule, case, folder, exponent, epsilon, attempt)
    begin = time.perf_counter()
    core.learn(n_steps=steps, n_steps_per_fit=1, quiet=True)
    answer = {"seconds": time.perf_counter() - begin}
    return {**answer, "table": core.agent.Q.table.tolist()} if table else answer


@lru_cache(2)
def _envpool_env(case: str, threads: int) -> Any:
    # The module of that name lists all environments, and wants the data files of all games for it.
    sys.modules.setdefault("envpool.entry", types.ModuleType("envpool.entry"))
    import envpool
    import envpool.toy_text.registration

    env = envpool.make_gymnasium(ENVPOOL_IDS[case], num_envs=ENVPOOL_ENVS, num_threads=threads)
    env.reset()
    return env


def envpool(case: str, threads: int, steps: int) -> dict[str, Any]:
    """Step EnvPool's environments with actions drawn beforehand."""
    if case not in ENVPOOL_IDS:
        return {"left_out": "EnvPool has no such environment"}
    env = _envpool_env(case, threads)
    shape = (-(-steps // ENVPOOL_ENVS), ENVPOOL_ENVS)
    actions = np.random.default_rng(0).integers(int(env.action_space.n), size=shape).astype(np.int32)
    begin = time.perf_counter()
    for each in actions:
        env.step(each)
    return {"seconds": (time.perf_counter() - begin) * steps / actions.size}


@lru_cache(1)
def _model(path: str) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as arrays:
        return dict(arrays)


@lru_cache(1)
def _sparse(path: str) -> tuple[Any, np.ndarray]:
    """Return transitions, of shape (pairs, states + 1), and rewards; the last state is the end."""
    from scipy import sparse

    model = _model(path)
    states, actions = int(model["n_states"]), int(model["n_actions"])
    pairs = states * actions
    rows = np.repeat(np.arange(pairs), np.diff(model["outcome_ptr"]))
    to = np.where(model["outcome_terminated"], states, model["outcome_next"])
    ends = np.arange(pairs, pairs + actions)
    matrix = sparse.coo_matrix(
        (
            np.append(model["outcome_prob"], np.ones(actions)),
            (np.append(rows, ends), np.append(to, np.full(actions, states))),
        ),
        shape=(pairs + actions, states + 1),
    ).tocsr()
    rewards = np.bincount(rows, model["outcome_prob"] * model["outcome_reward"], pairs + actions)
    return matrix, rewards


def quantecon(path: str, discount: float, tolerance: float, method: str) -> dict[str, Any]:
    """Solve a model with QuantEcon's DiscreteDP; to make that is not counted."""
    from quantecon.markov import DiscreteDP

    matrix, rewards = _sparse(path)
    pairs = np.arange(rewards.size)
    actions = int(_model(path)["n_actions"])
    problem = DiscreteDP(rewards, matrix, discount, pairs // actions, pairs % actions)
    begin = time.perf_counter()
    solution = problem.solve(method=method, epsilon=tolerance, max_iter=MOST_ITERATIONS)
    seconds = time.perf_counter() - begin
    if solution.num_iter >= MOST_ITERATIONS:
        return {"left_out": f"it does not end within {MOST_ITERATIONS} iterations"}
    return {"seconds": seconds, "values": solution.v[:-1].tolist()}


def pymdptoolbox(path: str, discount: float, tolerance: float, method: str) -> dict[str, Any]:
    """Solve a model with a class of pymdptoolbox; to make that is not counted."""
    import warnings

    from mdptoolbox import mdp

    warnings.simplefilter("ignore")
    matrix, rewards = _sparse(path)
    actions = int(_model(path)["n_actions"])
    transitions = [matrix[action::actions] for action in range(actions)]
    options = {} if method == "PolicyIteration" else {"epsilon": tolerance}
    problem = getattr(mdp, method)(
        transitions, rewards.reshape(-1, actions), discount, max_iter=MOST_ITERATIONS, **options
    )
    begin = time.perf_counter()
    problem.run()
    seconds = time.perf_counter() - begin
    if problem.iter >= MOST_ITERATIONS:
        return {"left_out": f"it does not end within {MOST_ITERATIONS} iterations"}
    return {"seconds": seconds, "values": list(map(float, problem.V[:-1]))}


def versions(names: list[str]) -> dict[str, Any]:
    """Return the versions of what is installed."""
    found = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


QUESTIONS = {each.__name__: each for each in (mushroom, envpool, quantecon, pymdptoolbox, versions)}


def main() -> None:
    """Answer until the input ends. What libraries print goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        question = json.loads(line)
        try:
            answer = QUESTIONS[question.pop("what")](**question)
        except Exception as error:
            answer = {"left_out": f"{type(error).__name__}: {str(error)[:300]}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
