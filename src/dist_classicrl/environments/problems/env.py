"""The problems as environments that Gymnasium makes."""

from __future__ import annotations

import operator
from dataclasses import fields
from typing import Any, SupportsIndex

import gymnasium
import numpy as np
from gymnasium import spaces

from dist_classicrl._jit import jit, jit_for
from dist_classicrl.environments.function_model import FunctionMDP
from dist_classicrl.environments.model import TabularMDP
from dist_classicrl.environments.problems.registry import problem_of
from dist_classicrl.environments.simulate import CompiledSimulator, advance, begin
from dist_classicrl.errors import EnvError, IllegalActionError, SettingsError


@jit
def _begin(simulation: Any, memory: np.ndarray, random: np.uint64) -> Any:
    return begin(simulation, memory, random)


@jit
def _advance(
    simulation: Any, memory: np.ndarray, state: int, action: int, random: np.uint64, n_actions: int
) -> Any:
    return advance(simulation, memory, state, action, random, n_actions)


class ProblemEnv(gymnasium.Env[Any, Any]):
    """A problem of `dist_classicrl.environments.registry()`, stepped by the code that training runs.

    ``gymnasium.make(id)`` makes it, and adds the time limit. Observations and actions are ``Discrete``: the
    numbers of the problem's states and actions. `train` and `evaluate` know what it is, and step nothing.

    Parameters
    ----------
    problem : str
        The id.
    **arguments
        Of the problem, see `Problem.arguments`, but for `max_episode_steps`, which is `gymnasium.make`'s.

    Raises
    ------
    EnvError
        There is no such problem.
    SettingsError
        An argument is not allowed.
    """

    def __init__(self, problem: str, **arguments: Any) -> None:
        if "max_episode_steps" in arguments:
            raise SettingsError(
                "max_episode_steps is counted by a wrapper, and ProblemEnv has none: write "
                f"gymnasium.make({problem!r}, max_episode_steps={arguments['max_episode_steps']!r})."
            )
        self.problem = problem_of(problem)
        self.arguments = arguments
        self.model = self.problem.make(**arguments)
        self.observation_space = spaces.Discrete(self.model.n_states)
        self.action_space = spaces.Discrete(self.model.n_actions)
        self._state = -1
        self._played: CompiledSimulator | None = None

    def simulator(self, max_episode_steps: int | None) -> CompiledSimulator:
        """Return the same process with this time limit as what a training loop runs."""
        model = self.model
        if max_episode_steps != model.max_episode_steps:
            model = self.problem.make(**{**self.arguments, "max_episode_steps": max_episode_steps})
        if isinstance(model, CompiledSimulator):
            return model
        return model.simulator() if isinstance(model, FunctionMDP) else CompiledSimulator.from_model(model)

    def model_fields(self) -> dict[str, Any]:
        """Return the fields of its model, a `TabularMDP`; EnvError if it is none."""
        if not isinstance(self.model, TabularMDP):
            raise EnvError(
                f"{self.problem.id} has no tables: registry()[{self.problem.id!r}].make(), from "
                f"dist_classicrl.environments, gives what it is, a {type(self.model).__name__}"
            )
        return {field.name: getattr(self.model, field.name) for field in fields(TabularMDP)}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[int, dict[str, Any]]:
        """Begin an episode; `seed` makes those from here on reproducible, and `options` are not used."""
        super().reset(seed=seed)
        if self._played is None:
            self._played = self.simulator(self.model.max_episode_steps)
            self._memory = np.zeros(self._played.memory_size, np.int64)
        kernel = jit_for(_begin, type(self._played.tables))
        self._state = int(kernel(self._played.tables, self._memory, self._random()))
        return self._state, {}

    def step(self, action: SupportsIndex) -> tuple[int, float, bool, bool, dict[str, Any]]:
        """Play an action.

        Raises
        ------
        IllegalActionError
            It is not one of the numbers of `action_space`.
        gymnasium.error.ResetNeeded
            No episode is under way.
        """
        if self._state < 0 or self._played is None:
            raise gymnasium.error.ResetNeeded("No episode is under way: call reset() before step().")
        try:
            index = operator.index(action)
        except TypeError:
            index = -1
        if not 0 <= index < self.model.n_actions:
            raise IllegalActionError(
                f"Action {action!r} is not known. An action of {self.problem.id} is an integer from 0 to "
                f"{self.model.n_actions - 1}."
            )
        tables, memory = self._played.tables, self._memory
        kernel = jit_for(_advance, type(tables))
        state, reward, ends = kernel(
            tables, memory, np.int64(self._state), np.int64(index), self._random(), self.model.n_actions
        )
        self._state = -1 if ends else int(state)
        return int(state), float(reward), bool(ends), False, {}

    def _random(self) -> np.uint64:
        return self.np_random.integers(1 << 64, dtype=np.uint64)
