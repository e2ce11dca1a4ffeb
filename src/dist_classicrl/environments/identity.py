"""What is kept of an environment to tell later whether another one is the same process."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

_ADDED = ("may_tell_masks", "env_id", "env_arguments")  # which files have not always had


@dataclass(frozen=True)
class Identity:
    """Which process a table was learned on."""

    name: str
    n_states: int
    n_actions: int
    fingerprint: str  # of the process with its arguments, wrappers and time limit
    is_batch: bool = False  # of a vector environment, whose own environments cannot be looked into
    is_numbered: bool = True  # its observations are the states, integers from 0 on
    may_tell_masks: bool = False  # it may give an action mask in `info`, which is obeyed
    #: What Gymnasium makes it of, without wrappers; no id where that is not known.
    env_id: str = field(default="", compare=False)
    env_arguments: dict[str, Any] = field(default_factory=dict, compare=False)

    def is_same(self, other: Identity) -> bool:
        """Whether both are the same process, as far as can be told.

        A batch and the environment that it is made of have different fingerprints; so have batches of
        different sizes. Of these, names and sizes are compared.
        """
        if self.is_batch or other.is_batch:
            return self._looks == other._looks
        return self.fingerprint == other.fingerprint

    @property
    def _looks(self) -> tuple[str, int, int]:
        return self.name, self.n_states, self.n_actions

    def __str__(self) -> str:
        states = f"{self.n_states:,} states" if self.n_states else "keys as states"
        return f"{self.name} ({states}, {self.n_actions:,} actions)"

    @property
    def text(self) -> str:
        """Its name and the beginning of its fingerprint, which checkpoints are compared by."""
        return f"{self.name} ({self.fingerprint[:12]})"

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Any) -> Identity | None:
        """Return what `to_dict` described; None where `data`, which was read from a file, is not that."""
        model = asdict(cls("", 0, 0, ""))
        if not isinstance(data, dict):
            return None
        given = {**{key: model[key] for key in _ADDED}, **data}
        if any(type(given.get(key)) is not type(model[key]) for key in model):
            return None
        return cls(**{key: given[key] for key in model})
