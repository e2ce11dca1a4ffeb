"""What an agent has learned: the greedy policy, as it is used, shown and exported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

import numpy as np

from dist_classicrl._arguments import OF_POLICY, named_arguments, other_names
from dist_classicrl._html import facts_of
from dist_classicrl.checks import as_array
from dist_classicrl.environments.labels import Labels, labels_of
from dist_classicrl.environments.simulate import CompiledSimulator
from dist_classicrl.environments.stepped.spaces import SpaceIndex
from dist_classicrl.errors import OutsideSpaceError, SettingsError
from dist_classicrl.model.agent_state import AgentState
from dist_classicrl.model.fit import check_fits, look_at
from dist_classicrl.model.keyed import KeyedLookup, KeyIndex
from dist_classicrl.model.lookup import Lookup, tried

_CHUNK = 1 << 16


@other_names(OF_POLICY)
@dataclass(frozen=True, repr=False, eq=False)
class Policy:
    """The greedy policy of a table, as `DistAsyncQLearning.policy` returns it.

    Called with an observation it returns the action that `DistAsyncQLearning.predict` does; with a batch of
    observations, a batch of actions. It obeys action masks, and does not change when the agent goes on.

    Attributes
    ----------
    q : ndarray of float64 or float32, shape (states, actions)
        The action values, of the states and actions that the environment has. All arrays are read-only.
    visits : ndarray of int64, shape (states, actions)
    legal : ndarray of bool, shape (states, actions), or None
        The legal actions, where they are known to depend on the state alone.
    observations : SpaceIndex, KeyIndex or None
        Between the environment's own observations and states; None where they are states, from 0 on.
    actions : SpaceIndex or None
        Between the environment's own actions and those of the table, likewise.
    labels : Labels
        What states and actions are called where a policy is shown.
    is_numbered : bool
        False: observations are something else than states, and not known.
    obeys_masks : bool
        Whether the action mask in a ``Dict`` observation is obeyed.
    has_told_masks : bool
        Whether masks may have been told only as states were met: what nothing is known of is not played.
    initial_value : float
        What an action is worth of which nothing is known.
    game : CompiledSimulator or None
        The game, where states are keys: it tells what is legal in those that are not known.

    Raises
    ------
    SettingsError
        Where one of these is no array of two dimensions, or rows that make none.
    """

    q: np.ndarray
    visits: np.ndarray
    legal: np.ndarray | None = None
    observations: SpaceIndex | KeyIndex | None = None
    actions: SpaceIndex | None = None
    labels: Labels = field(default_factory=Labels)
    is_numbered: bool = True
    obeys_masks: bool = True
    has_told_masks: bool = False
    initial_value: float = 0.0
    game: CompiledSimulator | None = None

    def __post_init__(self) -> None:
        for name in ("q", "visits", "legal"):
            if (given := getattr(self, name)) is not None:
                array = as_array(name, given)
                if array.ndim != 2 or array.dtype == object:
                    raise SettingsError(
                        f"{name} must be an array of shape (states, actions), or rows of one length, "
                        f"got {given!r:.200}."
                    )
                object.__setattr__(self, name, _read_only(array))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(getattr(self, each.name) for each in fields(self))

    @named_arguments("policy")
    def __call__(self, observation: Any, action_mask: Any = None) -> Any:
        """Return the greedy action, or actions, as `DistAsyncQLearning.predict` does."""
        return self.lookup.choose(observation, action_mask)

    def __repr__(self) -> str:
        return (
            f"Policy({self.n_states:,} states, {self.n_actions:,} actions, "
            f"{np.count_nonzero(self.visits.any(axis=1)):,} states visited"
            f"{'' if self.legal is None else ', with action masks'})"
        )

    def _repr_html_(self) -> str:
        return facts_of(repr(self))

    @cached_property
    def lookup(self) -> Lookup:
        """What the table says for observations."""
        if isinstance(self.observations, KeyIndex):
            visits = self.visits if self.has_told_masks else None
            return KeyedLookup(
                self.observations,
                self.q,
                self.legal,
                self.game,
                self.actions,
                visits,
                self.obeys_masks,
                self.initial_value,
            )
        return Lookup(
            self.n_states,
            lambda states: self.q[states].astype(np.float64),
            self.legal,
            self.observations,
            self.actions,
            self.is_numbered,
            self.obeys_masks,
            self._tried if self.has_told_masks else None,
            lambda state: (self.q[state], self.visits[state]),
        )

    def _tried(self, states: np.ndarray) -> np.ndarray:
        return tried(self.q[states], self.visits[states], self.initial_value)

    @property
    def n_states(self) -> int:
        """Number of states."""
        return int(self.q.shape[0])

    @property
    def n_actions(self) -> int:
        """Number of actions."""
        return int(self.q.shape[1])

    @cached_property
    def greedy(self) -> np.ndarray:
        """The first of the best legal actions of each state, int64, shape (states,).

        0 in a state without legal actions, in which a game has ended.
        """
        greedy = np.empty(self.n_states, np.int64)
        for first in range(0, self.n_states, _CHUNK):
            greedy[first : first + _CHUNK] = self._allowed(first, first + _CHUNK).argmax(axis=1)
        return _read_only(greedy)

    @cached_property
    def values(self) -> np.ndarray:
        """The value of each state's greedy action, float64, shape (states,); 0 where no action is legal."""
        values = self.q[np.arange(self.n_states), self.greedy].astype(np.float64)
        if self.legal is not None:
            values[~self.legal.any(axis=1)] = 0.0
        return _read_only(values)

    def allowed(self, first: int, last: int) -> np.ndarray:
        """Return which actions may be played from state `first` to before `last`, bool (states, actions).

        Those that are legal; where masks were told only as states were met, those that were tried. None where
        a game has ended.
        """
        if self.legal is not None:
            return self.legal[first:last]
        return self._allowed(first, last) > -np.inf

    def _allowed(self, first: int, last: int) -> np.ndarray:
        """Return the values of a chunk of states, with -inf where an action is illegal."""
        values = self.q[first:last].astype(np.float64)
        if self.legal is not None:
            legal = self.legal[first:last]
            values[~legal & legal.any(axis=1, keepdims=True)] = -np.inf
        elif self.has_told_masks:
            values[~tried(values, self.visits[first:last], self.initial_value)] = -np.inf
        return values

    @cached_property
    def action_names(self) -> tuple[str, ...]:
        """What each action is called: its name, or else the value that the environment takes."""
        if self.labels.actions is not None and len(self.labels.actions) == self.n_actions:
            return self.labels.actions
        if self.actions is not None:
            return tuple(map(repr, self.env_actions()))
        return tuple(str(action) for action in range(self.n_actions))

    def env_actions(self) -> list[Any]:
        """Return what the environment takes for each action, as plain Python data."""
        if self.actions is None:
            return list(range(self.n_actions))
        every = np.arange(self.n_actions, dtype=np.int64)
        return [plain_value(value) for value in self.actions.decode_each(every)]

    def state_of(self, observation: Any) -> int:
        """Return the state of an observation; OutsideSpaceError where the space does not have it."""
        if self.observations is not None:
            return self.observations.encode(observation)
        if not isinstance(observation, (int, np.integer)) or not 0 <= observation < self.n_states:
            raise OutsideSpaceError(
                f"Observations are whole numbers from 0 to {self.n_states - 1} here, got {observation!r}. "
                "Give one of them; observations of another kind are known where the environment is."
            )
        return int(observation)

    def observation_of(self, state: int) -> Any:
        """Return the observation of a state, as plain Python data."""
        return state if self.observations is None else plain_value(self.observations.decode(state))

    @property
    def has_observations(self) -> bool:
        """Whether there is more to say of a state than its number."""
        return self.observations is not None or self.labels.state is not None

    def state_text(self, state: int) -> str:
        """Return what a state means, or else its observation."""
        if self.labels.state is not None:
            return self.labels.state(state)
        return repr(self.observation_of(state))

    def shown_states(self, count: int) -> list[int]:
        """Return the first states that were visited, up to `count`; where none was, the first of all.

        Where states are keys, and so in no order, those that were visited most.
        """
        if isinstance(self.observations, KeyIndex):
            return self.most_visited(count)
        visited: Sequence[int] = np.flatnonzero(self.visits.any(axis=1))[:count].tolist()
        return list(visited or range(min(count, self.n_states)))

    def most_visited(self, count: int) -> list[int]:
        """Return up to `count` states, of which no other was visited more often; the most visited first.

        Those that were visited; where none was, as in a table from elsewhere, the first of all.
        """
        visits = self.visits.sum(axis=1)
        found = np.flatnonzero(visits) if visits.any() else np.arange(min(count, self.n_states))
        chosen: list[int] = found[np.argsort(-visits[found], kind="stable")[:count]].tolist()
        return chosen


def policy_of(agent: AgentState, env: Any = None, is_copy: bool = False) -> Policy:
    """Return what an agent has learned in `env`, as `train` takes it; views of its arrays, or a copy.

    Without it, names and observations are known only where the agent itself has trained, or was loaded with
    it. EnvError where the table is of another environment, see `check_fits`; NotTrainedError where there is
    none yet.
    """
    if env is not None:
        source = look_at(agent, env)
        source.close()
        check_fits(agent, source)
        agent.take_note_of(source)
    states, actions = agent.shape.of_table if agent.keyed is None else agent.q_table.shape
    keyed = agent.keyed
    states = states if agent.observations is None or keyed is not None else agent.observations.n
    actions = agent.n_actions or actions
    if is_copy:
        agent.check_room_for_copy(
            "A policy, which has a copy of the table,",
            "Ask the agent's predict, action_values and state_values, which read what is asked for.",
        )
    legal = None
    if agent.legal is not None:
        legal = np.ones((states, actions), bool)
        legal[: len(agent.legal)] = agent.legal[:, :actions]
    q, visits = agent.q_table[:states, :actions], agent.visits[:states, :actions]
    return Policy(
        q.copy() if is_copy else q,
        visits.astype(np.int64) if is_copy else visits,
        legal,
        agent.observations if keyed is None else keyed.index,
        agent.actions,
        labels_of(env),
        agent.environment is None or agent.environment.is_numbered,
        agent.settings.use_action_mask is not False,
        agent.has_told_masks,
        agent.stored_initial_value,
        None if keyed is None else keyed.game,
    )


def _read_only(array: np.ndarray) -> np.ndarray:
    """Return the same numbers in an array that cannot be written to."""
    view = array.view()
    view.flags.writeable = False
    return view


def plain_value(value: Any) -> Any:
    """Return a value of a space as Python numbers, with lists for arrays, and its tuples and dicts."""
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    if isinstance(value, tuple):
        return tuple(plain_value(part) for part in value)
    if isinstance(value, dict):
        return {plain_value(key): plain_value(part) for key, part in value.items()}
    return value
