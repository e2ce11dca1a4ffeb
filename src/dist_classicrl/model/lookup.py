"""What a table says for observations, one or a batch of them, as the environment gives them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dist_classicrl.checks import as_array
from dist_classicrl.environments.stepped.masks import MASK_KEY
from dist_classicrl.errors import SettingsError

if TYPE_CHECKING:
    from dist_classicrl.environments.stepped.spaces import SpaceIndex


_BATCHES = (np.ndarray, list, range)  # of states; a tuple is rather an observation
_SHOWN = 32  # entries of a mask that an error repeats


@dataclass(frozen=True)
class Lookup:
    """Values and greedy actions of observations; `DistAsyncQLearning.action_values` says what they may be."""

    n_states: int
    rows: Callable[[np.ndarray], np.ndarray]  # of states, in an array of its own: float64 (B, actions)
    legal: np.ndarray | None = None  # bool, (states, actions), perhaps of fewer states; None: all are
    observations: SpaceIndex | None = None  # None: they are the states themselves
    actions: SpaceIndex | None = None  # likewise
    is_numbered: bool = True  # False: observations are something else than states, and not known
    obeys_masks: bool = True  # of Dict observations
    #: Whether an action of a state may be chosen where no mask says so, bool (B, actions); None: all may.
    tried: Callable[[np.ndarray], np.ndarray] | None = None
    #: Values and visits of one state, views of shape (actions,), where they stand in one table that is here.
    row: Callable[[int], tuple[np.ndarray, np.ndarray]] | None = None

    def action_values(self, observation: Any, action_mask: Any = None) -> np.ndarray:
        """Return the value of each action, -inf where it is illegal, float64 (A,) or (B, A)."""
        states, is_batch = self._states(observation)
        values = self._legal_values(states, is_batch, observation, action_mask)
        return values if is_batch else values[0]

    def state_values(self, observation: Any, action_mask: Any = None) -> Any:
        """Return the largest value of a legal action, float or float64 (B,); 0 where no action is legal."""
        states, is_batch = self._states(observation)
        values = self._legal_values(states, is_batch, observation, action_mask).max(axis=1)
        if action_mask is None and self.legal is not None:
            known = states < len(self.legal)
            values[known] = np.where(self.legal[states[known]].any(axis=1), values[known], 0.0)
        return values if is_batch else float(values[0])

    def choose(self, observation: Any, action_mask: Any = None) -> Any:
        """Return the first of the best legal actions, as the environment takes it, or a batch of them."""
        one = self._best_of_one(observation) if action_mask is None else None
        if one is None:
            states, is_batch = self._states(observation)
            best = self._legal_values(states, is_batch, observation, action_mask).argmax(axis=1)
            if is_batch:
                return best if self.actions is None else self.actions.decode_batch(best)
            one = int(best[0])
        if self.actions is None:
            return one
        return np.int64(one) if self.actions.is_plain else self.actions.decode(one)

    def _best_of_one(self, observation: Any) -> int | None:
        """Return the first of the best legal actions of one observation, where few looks tell it, else None.

        The first of the best actions is that of the best legal ones as well, where it is legal.
        """
        if self.row is None or isinstance(observation, list):
            return None
        first = observation[0] if isinstance(observation, tuple) and observation else observation
        if isinstance(first, dict) and (first is not observation or MASK_KEY in first):
            return None
        state: int | None = None
        if self.observations is not None:
            state = self.observations.index_of(observation)
        elif isinstance(observation, (int, np.integer)) and type(observation) is not bool:
            state = int(observation)
        if state is None or not 0 <= state < self.n_states:
            return None
        values, visits = self.row(state)
        best = int(values.argmax())
        if self.legal is None:
            return best if self.tried is None or visits[best] > 0 else None
        if state < len(self.legal) and not self.legal[state, best]:
            legal = self.legal[state, : values.size]
            return int(np.where(legal, values, -np.inf).argmax()) if legal.any() else best
        return best

    def _states(self, observation: Any) -> tuple[np.ndarray, bool]:
        """Return the states, int64 (B,), and whether there was a batch of observations."""
        if self.observations is not None:
            states, is_batch = self.observations.encode_any(observation)
        else:
            given = as_array("observation", observation)
            if given.shape == (0,) and isinstance(observation, list):
                given = given.astype(np.int64)
            is_batch = given.ndim == 1 and isinstance(observation, _BATCHES) and self.is_numbered
            if given.dtype.kind not in "iu" or not (given.ndim == 0 or is_batch):
                raise self._no_state(observation)
            states = np.atleast_1d(given)
        outside = (states < 0) | (states >= self.n_states)
        if outside.any():
            raise self._no_state(states[outside][0].item())
        return states.astype(np.int64, copy=False), is_batch

    def _no_state(self, given: Any) -> SettingsError:
        return SettingsError(
            f"observation must be a state from 0 to {self.n_states - 1}, got {given!r}. A list or an "
            "array of states is a batch. Observations of another kind can be given after train(env=...) or "
            "load_model(path, env=...), which tell how to number them."
        )

    def _legal_values(
        self, states: np.ndarray, is_batch: bool, observation: Any, action_mask: Any
    ) -> np.ndarray:
        """Return the rows of values with -inf at what is illegal."""
        values = self.rows(states)
        if action_mask is None and self.obeys_masks:
            action_mask = _mask_told_by(observation)
        if action_mask is not None:
            values[~self._checked_mask(action_mask, values if is_batch else values[0])] = -np.inf
        elif self.legal is not None:
            known = np.flatnonzero(states < len(self.legal))
            legal = self.legal[states[known], : values.shape[1]]
            # A state in which a game has ended has no legal action, and any answer will do.
            values[known] = np.where(legal | ~legal.any(axis=1, keepdims=True), values[known], -np.inf)
        elif self.tried is not None:
            values[~self.tried(states)] = -np.inf
        return values

    def _checked_mask(self, action_mask: Any, values: np.ndarray) -> np.ndarray:
        mask = as_array("action_mask", action_mask)
        is_mask = mask.dtype.kind in "biu" and mask.shape == values.shape and mask.any(axis=-1).all()
        if not is_mask or not ((mask == 0) | (mask == 1)).all():
            got = f"{action_mask!r}, " if mask.size <= _SHOWN else ""
            raise SettingsError(
                f"action_mask must have shape {values.shape}, be of booleans (or 0 and 1) and allow an "
                f"action, got {got}{mask.dtype} of shape {mask.shape}. It says of each action whether it is "
                "legal, and does not list those that are."
            )
        return np.atleast_2d(mask.astype(bool))


def _mask_told_by(observation: Any) -> Any:
    """Return the mask in a Dict observation, or those in a list of them, a row each; None: there is none."""
    if isinstance(observation, dict):
        return observation.get(MASK_KEY)
    is_list = isinstance(observation, (list, tuple)) and all(isinstance(each, dict) for each in observation)
    masks = [each.get(MASK_KEY) for each in observation] if is_list else []
    lacking = [number for number, mask in enumerate(masks) if mask is None]
    if len(lacking) == len(masks):
        return None
    if lacking:
        raise SettingsError(
            f"{len(masks) - len(lacking)} of {len(masks)} observations have an '{MASK_KEY}', and number "
            f"{lacking[0]} has none. Give one in each of them or in none, or all as the argument action_mask."
        )
    return masks


def tried(values: np.ndarray, visits: np.ndarray, initial: float) -> np.ndarray:
    """Return which actions may be chosen in states whose masks were told as they were met, bool (B, actions).

    An action of which nothing is known, neither a visit nor another value than the `initial` one, may have
    been forbidden: where others were played in its state, it is left out.
    """
    return (values != values.dtype.type(initial)) | (visits > 0) | ~visits.any(axis=1, keepdims=True)
