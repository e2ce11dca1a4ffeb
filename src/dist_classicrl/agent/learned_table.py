"""What an agent has learned, as its users read it, ask it, set it, play it and save it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dist_classicrl._arguments import named_arguments
from dist_classicrl._html import facts_of
from dist_classicrl._urls import without_password
from dist_classicrl.checks import checked_file, checked_path
from dist_classicrl.environments.identity import Identity
from dist_classicrl.errors import SettingsError
from dist_classicrl.evaluation import LONGEST_EPISODE
from dist_classicrl.evaluation.episodes import EvaluationResult, evaluate
from dist_classicrl.model import model_file
from dist_classicrl.model.agent_state import AgentState
from dist_classicrl.schedules import Constant, PerVisit
from dist_classicrl.schedules.kinds import as_schedule, without_call
from dist_classicrl.settings import Settings

if TYPE_CHECKING:
    import numpy.typing as npt
    from matplotlib.figure import Figure

    from dist_classicrl.environments.resolve import EnvLike
    from dist_classicrl.model.keyed import KeyedValues
    from dist_classicrl.model.policy import Policy


class LearnedTable:
    """A table of action values with the settings that it is learned by: what an agent is between trainings.

    `DistAsyncQLearning` is one that trains. Nothing here has to be called on all ranks together.
    """

    def __init__(self, state: AgentState) -> None:
        self._state = state

    def __repr__(self) -> str:
        settings, state = self.settings, self._state
        where = "" if state.environment is None else f" in {state.environment}"
        names = ("algorithm", "learning_rate", "epsilon", "discount_factor")
        shown = {name: getattr(settings, name) for name in names} | {"seed": self.seed}
        values = (
            f"{name}={value.value if isinstance(value, Constant) else value!r}"
            for name, value in shown.items()
        )
        return f"{type(self).__name__}({self.steps:,} steps{where}, {', '.join(values)})"

    def _repr_html_(self) -> str:
        return facts_of(repr(self))

    # State that can be read and set between calls of train

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        return self._state.settings

    @property
    def seed(self) -> int | None:
        """The seed of all random numbers: that of the settings, or what was drawn; None before training."""
        return self._state.seed

    @property
    def run_id(self) -> str:
        """The name of what is learned here from one beginning on: eight hexadecimal digits.

        It is the same on all ranks, and in a process that goes on from a checkpoint. Another agent has
        another one, also one that `load_model` returns. Records say by it whose they are.
        """
        return self._state.places.run

    @property
    def learned_in(self) -> Identity | None:
        """The environment that was trained in last, by name and fingerprint; None before, or not known."""
        return self._state.environment

    @property
    def steps(self) -> int:
        """Environment steps learned so far, by all ranks, in all calls of `train`: where schedules stand."""
        return self._state.steps

    @property
    def q_table(self) -> np.ndarray | Any:
        """The action values, ndarray of shape (states, actions): to be written to between calls of `train`.

        Of a rule that learns several tables it is their mean, which is read-only; what is assigned to it goes
        into each of them. A large table is the rows that are learned in; where ranks share these it is
        read-only, and what is assigned is there for all. One that is divided between hosts cannot be had as a
        whole: ask `action_values` for states. Where states are keys it is a mapping from these to
        rows, a `KeyedValues`, which cannot be assigned. In another thread than
        the one that trains, this and all that reads it are as they were up to about a second ago.

        Raises
        ------
        NotTrainedError
            If the shape is not known yet: neither given, nor told by an environment.
        """
        return self._by_keys(self._state.q_table)

    @q_table.setter
    def q_table(self, values: Any) -> None:
        self._state.check_at_rest("q_table")
        self._state.set_values(values)

    @property
    def visits(self) -> np.ndarray | Any:
        """How often each state-action pair was visited, ndarray(int64) of shape (states, actions).

        Of a large table, from 33,554,432 entries on, it is uint32. Where states are keys, a mapping as
        `q_table` is. Tables that all ranks learn in, and those of compiled environments with 16,384
        entries or more, count up to 2^32 - 1 visits of a pair; more, as a card may have counted, become that.
        """
        return self._by_keys(self._state.visits)

    def _by_keys(self, rows: np.ndarray) -> np.ndarray | KeyedValues:
        from dist_classicrl.model.keyed import KeyedValues

        keyed = self._state.keyed
        return rows if keyed is None else KeyedValues(keyed.index.by_key, rows)

    @property
    def shared(self) -> dict[str, np.ndarray]:
        """What the rule learns besides its tables, by name: copies, ndarray(float64) of shape (numbers,).

        Of differential Q-learning "mean_reward", one number, the mean reward per step. Most rules have none.

        Raises
        ------
        NotTrainedError
            If the shape of the table is not known yet.
        """
        return self._state.shared

    @property
    def max_states(self) -> int | None:
        """Most states of the table, where they are keys; set it to a number, or None for what memory has."""
        return self._state.settings.max_states

    @max_states.setter
    def max_states(self, value: Any) -> None:
        self._state.check_at_rest("max_states")
        self._state.change(max_states=value)

    @property
    def epsilon(self) -> float:
        """The current chance of a random action; set it to a number or a schedule.

        A schedule with a `fraction` is one of the next call of `train`, wherever it was taken from.
        """
        return self._state.settings.epsilon.at(self._state.reached)

    @epsilon.setter
    def epsilon(self, value: Any) -> None:
        self._state.check_at_rest("epsilon")
        self._state.change(epsilon=without_call(as_schedule("epsilon", value)))

    @property
    def learning_rate(self) -> Any:
        """The current step size, or the `PerVisit` schedule; set it to a number or a schedule."""
        schedule = self._state.settings.learning_rate
        return schedule if isinstance(schedule, PerVisit) else schedule.at(self._state.reached)

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        self._state.check_at_rest("learning_rate")
        self._state.change(learning_rate=without_call(as_schedule("learning_rate", value)))

    # Using what was learned

    @named_arguments("evaluate")
    def evaluate(
        self,
        env: EnvLike,
        episodes: int = 100,
        seed: int | None = None,
        max_steps: int = LONGEST_EPISODE,
        stops_with_training: bool = False,
    ) -> EvaluationResult:
        """Play the greedy policy, ties broken at random. Local: other ranks take no part.

        Parameters
        ----------
        env
            As in `train`. In a callback it must not be the object that the training steps through.
        episodes : int
        seed : int, optional
            By default the agent's.
        max_steps : int
            An episode that is longer is cut off there, as in an environment without a time limit one need
            not come to an end. How many were, or ran into the environment's own limit, is in the result's
            `cut_off`.
        stops_with_training : bool
            In a callback, and an environment that is stepped: whether to end when the training is to stop,
            since a signal came or a time limit is near. No stop, and no checkpoint, comes before the end of a
            callback.

        Raises
        ------
        EvaluationStopped
            If that was asked for, and came: there is no result.
        EnvError
            If `env` has other states, observations or actions than the table is of. One that was made with
            `state_size` may be of several environments.
        DivergenceError
            If the rewards of an episode add up to more than the numbers of float64.
        """
        return evaluate(env, self._state, episodes, seed, max_steps, stops_with_training)

    @property
    def policy(self) -> Policy:
        """The greedy policy as it is now: a `Policy`, which is called with observations as `predict` is.

        It is a copy of the table, and stays as it is when the agent goes on. ``policy.greedy``,
        ndarray(int64) of shape (states,), is the action of each state, ``policy.values`` what that is worth.
        """
        from dist_classicrl.model.policy import policy_of

        return policy_of(self._state, is_copy=True)

    def plot(self, env: EnvLike | None = None) -> Figure:
        """Draw the learning curves of the last call of `train`, and a map of what was learned on a grid.

        Parameters
        ----------
        env : str, gymnasium.Env, callable or TabularMDP, optional
            The grid for the map, as for `dist_classicrl.plotting.plot_maps`. By default what was trained in,
            where that is known to be one of Gymnasium's toy texts. There are curves where somebody listened
            to the training: see `TrainingResult.reports`.

        Raises
        ------
        PlotError
            If there is neither a curve nor a map, or `env` is no grid, or larger than the table.
        MissingExtraError
            Without matplotlib, the extra `plot`.
        """
        from dist_classicrl.plotting.training import plot_agent

        return plot_agent(self._state, env)

    @named_arguments("action_values")
    def action_values(self, observation: Any, action_mask: npt.ArrayLike | None = None) -> np.ndarray:
        """Return the value of each action, and -inf where it is illegal.

        Parameters
        ----------
        observation
            As in `predict`, one or a batch of B. In a state without legal actions, in which a game has ended,
            nothing is masked.
        action_mask
            As in `predict`.

        Returns
        -------
        ndarray of float64, shape (actions of the environment,) or (B, actions of the environment)
        """
        return self._state.lookup().action_values(observation, action_mask)

    @named_arguments("state_values")
    def state_values(self, observation: Any, action_mask: npt.ArrayLike | None = None) -> Any:
        """Return what the greedy action is worth: the largest value of a legal action.

        Parameters
        ----------
        observation, action_mask
            As in `predict`.

        Returns
        -------
        float, or ndarray of float64, shape (B,)
            0 where a game has ended.
        """
        return self._state.lookup().state_values(observation, action_mask)

    @named_arguments("predict")
    def predict(self, observation: Any, action_mask: npt.ArrayLike | None = None) -> Any:
        """Return the greedy action for `observation`, the first of several that are equally good.

        Parameters
        ----------
        observation
            An observation of the environment that was trained in, or an integer state; or a batch of them,
            for a batch of actions: as a vector environment gives them, or an array or list of states.
            Where states are keys, a key is a whole number, of Python or NumPy, or a 0-d array of one. A key
            of 128 bits is ``high << 64 | low``, or its halves: a tuple ``(high, low)`` of whole numbers below
            2**64, as the functions of the game return it, or uint64 of shape (2,). A batch of such is a list,
            or uint64 of shape (B, 2).
        action_mask : array_like of bool, shape (actions of the environment,), optional
            Legal actions, one row per observation of a batch. By default what the observation says, if it is
            a dict with an `action_mask`, or a list of such, and `use_action_mask` is not False, or else what
            is known of a compiled environment; otherwise all.

        Raises
        ------
        SettingsError
            If the observation is no state of the table, or the mask does not fit.
        OutsideSpaceError
            If the observation is not in the environment's space, or is no key.
        """
        return self._state.lookup().choose(observation, action_mask)

    @named_arguments("save_model")
    def save_model(self, path: str | os.PathLike[str]) -> Path:
        """Write table, visits and settings to exactly `path`, with whatever suffix.

        The file is written whole or not at all, and holds no pickle. Folders that the path needs are made. A
        URL is refused. Where the table is divided between hosts `path` is a folder, as of a checkpoint, which
        `load_model` takes, too: rows are asked for and written some at a time.
        """
        target = checked_path("path", path)
        if "://" in target:
            raise SettingsError(
                f"save_model writes to a path, and {without_password(target)} is a URL. Save to a path and "
                "copy the file there, or write train(..., checkpoint_dir=URL): load_model takes such a URL."
            )
        large = self._state.large
        if large is not None and large.is_divided:
            from dist_classicrl.agent.divided_model import save_divided

            return save_divided(target, self._state)
        return model_file.write(checked_file("save_model", target, "model.npz"), self._state.to_model())
