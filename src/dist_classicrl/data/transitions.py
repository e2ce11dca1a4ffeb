"""Transitions that were logged, as arrays that were checked."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from dist_classicrl._files import open_regular, whole_file
from dist_classicrl.checks import as_array, checked_file, checked_path, hidden_numbers, is_row
from dist_classicrl.errors import DataError, OutsideSpaceError, RewardError, SettingsError

#: The arrays of a transition; the last one may be missing.
NAMES = ("states", "actions", "rewards", "next_states", "terminated", "truncated")
_GIVE = (
    "Give a dict or NamedTuple of the arrays states, actions, rewards, next_states, terminated and, where "
    "episodes were cut off, truncated; the path of an .npz file of these; a Minari data set; or an iterable "
    "of episodes."
)
_TRAIN = "To learn in an environment write train(env, total_steps=100_000)."


@dataclass(frozen=True, eq=False, repr=False)
class Transitions:
    """N transitions in the order in which they were made, checked, copied and read-only.

    An episode ends where `terminated` or `truncated` says so, where the next transition begins in another
    state than this one led to, and with the last transition.

    Parameters
    ----------
    states, actions, next_states : array_like of int, shape (N,)
        Below 2**62, and above -2**62: below 0 only where a `Discrete` space has such numbers.
    rewards : array_like of float, shape (N,)
        Finite.
    terminated : array_like of bool, shape (N,)
        Whether nothing can be collected from the next state on.
    truncated : array_like of bool, shape (N,), optional
        Whether the episode was cut off; the value of the next state still counts. None: nowhere.

    Raises
    ------
    DataError
        The arrays are empty, of different lengths, or hold other things.
    RewardError
        A reward is NaN or infinite.
    """

    states: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    next_states: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray | None = None

    def __post_init__(self) -> None:
        given = {name: getattr(self, name) for name in NAMES}
        if given["truncated"] is None:
            given["truncated"] = np.zeros(_checked("terminated", given["terminated"]).shape, bool)
        arrays = {name: _checked(name, value) for name, value in given.items()}
        sizes = {name: array.size for name, array in arrays.items()}
        if len(set(sizes.values())) > 1 or not arrays["states"].size:
            told = ", ".join(f"{name} {size:,}" for name, size in sizes.items())
            raise DataError(f"the arrays have these lengths: {told}; they must be alike, and at least 1")
        wrong = np.flatnonzero(~np.isfinite(arrays["rewards"]))
        if wrong.size:
            raise RewardError(
                f"the reward of transition {wrong[0]} is {arrays['rewards'][wrong[0]]}; rewards must be "
                "finite numbers: leave such transitions out, or correct them"
            )
        for name, array in arrays.items():
            array.setflags(write=False)
            object.__setattr__(self, name, array)

    @classmethod
    def of(cls, data: Any) -> Transitions:
        """Return what `data` holds.

        Parameters
        ----------
        data : Transitions, Mapping, NamedTuple, str, path, Minari data set, or iterable of episodes
            A dict or NamedTuple has the arrays of the constructor. A path is that of an .npz file with them.
            "minari:" and an id is a local Minari data set (extra: minari), whose observations and actions are
            whole numbers. An episode is a dict or NamedTuple of such arrays, what Minari gives as an episode,
            or a sequence of tuples (state, action, reward, next_state, terminated[, truncated]). It ends with
            its last transition.

        Raises
        ------
        DataError, RewardError
            As the constructor, or what was given is none of these.
        MissingExtraError
            Minari is not installed.
        """
        if isinstance(data, cls):
            return data
        arrays = _fields_of(data)
        if arrays is not None:
            return cls(**arrays)
        if isinstance(data, str) and data.startswith("minari:"):
            from dist_classicrl.data.minari import load

            return cls.of(load(data.removeprefix("minari:")))
        if isinstance(data, (str, os.PathLike)):
            return cls(**_read(Path(checked_path("transitions", data))))
        if hasattr(data, "iterate_episodes"):
            return cls.of(data.iterate_episodes())
        if is_row(data):
            return cls._joined([cls._of_episode(number, each) for number, each in enumerate(data)])
        raise DataError(f"transitions are {type(data).__name__}. {_GIVE} {_TRAIN}")

    @classmethod
    def _of_episode(cls, number: int, episode: Any) -> Transitions:
        try:
            if isinstance(episode, Transitions):
                return episode
            arrays = _fields_of(episode)
            if arrays is None and hasattr(episode, "terminations"):
                from dist_classicrl.data.minari import arrays_of

                arrays = arrays_of(episode)
            if arrays is None:
                rows = [tuple(step) for step in episode]
                if not rows or not all(len(row) == len(rows[0]) in (5, 6) for row in rows):
                    raise DataError("its steps are no tuples of 5 or 6 that are alike")
                arrays = dict(zip(NAMES, map(np.array, zip(*rows, strict=True)), strict=False))
            return cls(**arrays)
        except RewardError as error:
            raise RewardError(f"episode {number}: {error}") from None
        except (DataError, TypeError, ValueError) as error:
            why = str(error).removesuffix(f". {_GIVE}").removesuffix(".")
            raise DataError(f"episode {number} cannot be read: {why}. {_GIVE}") from error

    @classmethod
    def _joined(cls, episodes: list[Transitions]) -> Transitions:
        if not episodes:
            raise DataError(f"there are no episodes. {_GIVE}")
        arrays = {name: np.concatenate([getattr(each, name) for each in episodes]) for name in NAMES}
        last = np.cumsum([len(each) for each in episodes]) - 1
        arrays["truncated"][last] |= ~arrays["terminated"][last]
        return cls(**arrays)

    def __len__(self) -> int:
        return int(self.states.size)

    def __repr__(self) -> str:
        return f"Transitions({len(self):,} transitions, {self.starts.size:,} episodes)"

    @cached_property
    def starts(self) -> np.ndarray:
        """The first transition of each episode, int64, shape (episodes,)."""
        assert self.truncated is not None
        ends = self.terminated[:-1] | self.truncated[:-1] | (self.next_states[:-1] != self.states[1:])
        return np.append(0, np.flatnonzero(ends) + 1)

    @property
    def n_states(self) -> int:
        """The least number of states that there must be."""
        return int(max(self.states.max(), self.next_states.max())) + 1

    @property
    def n_actions(self) -> int:
        """The least number of actions that there must be."""
        return int(self.actions.max()) + 1

    def in_rows(self, observations: Any, actions: Any) -> Transitions:
        """Return them by rows and columns of a table, where its `Discrete` spaces have other numbers.

        The indices of the spaces are `SpaceIndex`, or None. DataError where a number is outside of its space,
        SettingsError where states are keys.
        """
        from gymnasium.spaces import Discrete

        found = {}
        for name, index in (("states", observations), ("next_states", observations), ("actions", actions)):
            if index is not None and not hasattr(index, "is_plain"):
                raise SettingsError(
                    f"logged states are numbers, and those of the policy are {index.space}: count the "
                    "states from 0 on, and give the policy as an array"
                )
            if index is not None and isinstance(index.space, Discrete) and not index.is_plain:
                try:
                    found[name] = index.encode_any(getattr(self, name))[0]
                except OutsideSpaceError as error:
                    raise DataError(f"{name}: {error}") from None
        return replace(self, **found)

    def check_size(self, n_states: int, n_actions: int) -> None:
        """Raise DataError where a state or an action is below 0 or beyond these numbers."""
        for name, most in (("states", n_states), ("next_states", n_states), ("actions", n_actions)):
            below = np.flatnonzero(getattr(self, name) < 0)
            if below.size:
                raise DataError(
                    f"{name} has {getattr(self, name)[below[0]]} at transition {below[0]}; they are counted "
                    "from 0 on where no environment says otherwise: count them so, or write "
                    "learn(..., env=) or estimate_value(..., agent.policy)"
                )
            beyond = np.flatnonzero(getattr(self, name) >= most)
            if beyond.size:
                raise DataError(
                    f"{name} has {getattr(self, name)[beyond[0]]} at transition {beyond[0]}; there are "
                    f"{most:,} of them, from 0 to {most - 1}: leave such transitions out, or make room with "
                    "state_size and action_size"
                )

    def fingerprint(self) -> str:
        """Return the SHA-256 of the arrays in hexadecimal."""
        digest = hashlib.sha256()
        for each in fields(self):
            digest.update(np.ascontiguousarray(getattr(self, each.name)).tobytes())
        return digest.hexdigest()

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the arrays to an .npz file, whole or not at all, and return its path."""
        target = Path(checked_file("save", path, "transitions.npz"))
        with whole_file(target) as file:
            np.savez_compressed(file, **{name: getattr(self, name) for name in NAMES})
        return target


def _fields_of(data: Any) -> dict[str, Any] | None:
    """Return the arrays of a dict or NamedTuple, None if it is neither; DataError where they are others."""
    if isinstance(data, tuple) and hasattr(data, "_asdict"):
        data = data._asdict()
    if not isinstance(data, Mapping):
        return None
    missing = [name for name in NAMES[:-1] if name not in data]
    unknown = [str(name) for name in data if name not in NAMES]
    if missing or unknown:
        lacks = f"lack {', '.join(missing)}" if missing else ""
        has = f"have {', '.join(unknown)}" if unknown else ""
        raise DataError(f"the transitions {' and '.join(filter(None, (lacks, has)))}. {_GIVE}")
    return dict(data)


def _checked(name: str, value: Any) -> np.ndarray:
    if hidden := hidden_numbers(value):
        raise DataError(f"{name} {hidden}: leave such transitions out")
    array = as_array(name, value)
    kinds, what = {
        "rewards": ("fiu", "numbers"),
        "terminated": ("b", "bool"),
        "truncated": ("b", "bool"),
    }.get(name, ("iu", "whole numbers"))
    if array.ndim != 1 or (array.dtype.kind not in kinds and array.size):
        raise DataError(
            f"{name} has shape {array.shape} and dtype {array.dtype}; it must be {what} with one dimension"
        )
    if kinds == "iu" and array.size and (array.min() <= -(2**62) or array.max() >= 2**62):
        first = int(np.flatnonzero((array <= -(2**62)) | (array >= 2**62))[0])
        raise DataError(
            f"{name} has {array[first]} at transition {first}; it must be above -2**62 and below 2**62: "
            "count states and actions from 0 on"
        )
    return array.astype({"fiu": np.float64, "b": np.bool_, "iu": np.int64}[kinds])


def _read(path: Path) -> dict[str, np.ndarray]:
    try:
        with open_regular(path) as opened, np.load(opened, allow_pickle=False) as file:
            if not hasattr(file, "files"):
                raise ValueError("it holds one array only")
            found = {name: file[name] for name in file.files}
    except Exception as error:  # zipfile, zlib and numpy have many
        raise DataError(f"{path} is no .npz file of transitions: {error}. {_GIVE} {_TRAIN}") from error
    try:
        arrays = _fields_of(found)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    assert arrays is not None
    return arrays
