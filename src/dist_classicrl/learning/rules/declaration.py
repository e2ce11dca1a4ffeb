"""What a learning rule says of itself, for everything that does not learn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from dist_classicrl.tables.shape import TableShape

if TYPE_CHECKING:
    import numpy as np

    from dist_classicrl.environments.model import TabularMDP
    from dist_classicrl.settings import Settings


@dataclass(frozen=True)
class Shared:
    """Numbers that a rule learns besides its tables.

    Attributes
    ----------
    name : str
    merge : str
        What becomes of it where several workers learn. "affine": each update moves it towards a target, as an
        entry of a table, and is merged like one. "sum": what each worker adds is added up. "owner": every
        walker keeps its own, which nobody else sees; checkpoints hold it where they hold the walkers.
    size : int or callable
        How many numbers; a callable gets the hyper-parameters, the number of states and the number of
        actions.
    """

    name: str
    merge: Literal["affine", "sum", "owner"]
    size: int | Callable[[Any, int, int], int] = 1

    def count(self, parameters: Any, n_states: int, n_actions: int) -> int:
        """Return how many numbers it is in a problem of this size."""
        return self.size if isinstance(self.size, int) else int(self.size(parameters, n_states, n_actions))


@dataclass(frozen=True)
class LearningRule:
    """A learning rule: its hyper-parameters, its jitted functions, and what others have to know of it.

    `dist_classicrl.learning.rules.kernel` says what the functions are called with, and has what they are made
    of.

    Attributes
    ----------
    name : str
        What `algorithm` calls it.
    parameters : type
        A NamedTuple of its hyper-parameters, all of which have defaults. Its class picks the functions.
    learn : callable
        Learns from a transition.
    truth : callable
        Returns what its table converges to, ndarray of shape (states, actions), in a model, with
        hyper-parameters and settings: with step sizes that fall and every pair visited again and again.
    on_action : callable, optional
        Is called when an action has been chosen, before it is played: what waits for that can be learned
        then.
    preference : callable, optional
        Returns the number by which actions are compared in a state; by default the value in the first table.
    tables : tuple of str
        Names of its tables, each of states times actions. The agent's `q_table` is their mean.
    memory : callable
        Returns, for hyper-parameters, how many whole and how many real numbers a walker carries along.
    shared : tuple of Shared
    defaults : mapping of str to object
        Settings (`learning_rate`, `epsilon`) that it takes where none are given.
    check : callable, optional
        Raises a `SettingsError` if a hyper-parameter is not allowed.
    can_replay : bool
        Whether `learn` may be called again with an old transition: its target must come from that alone.
    is_reproducible : bool
        Whether it gives the same table at any number of ranks in the reproducible mode.
    """

    name: str
    parameters: type
    learn: Any
    truth: Callable[[TabularMDP, Any, Settings], np.ndarray]
    on_action: Any = None
    preference: Any = None
    tables: tuple[str, ...] = ("q",)
    memory: Callable[[Any], tuple[int, int]] = lambda parameters: (0, 0)
    shared: tuple[Shared, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    check: Callable[[Any], None] | None = None
    can_replay: bool = False
    is_reproducible: bool = True

    def table_shape(self, parameters: Any, n_states: int, n_actions: int) -> TableShape:
        """Return what stands in its tables in a problem of this size."""
        merged = (shared for shared in self.shared if shared.merge != "owner")
        n_shared = sum(shared.count(parameters, n_states, n_actions) for shared in merged)
        return TableShape(n_states, n_actions, len(self.tables), n_shared)

    def owned(self, parameters: Any, n_states: int, n_actions: int) -> int:
        """Return how many of the shared numbers each walker keeps for itself."""
        kept = (shared for shared in self.shared if shared.merge == "owner")
        return sum(shared.count(parameters, n_states, n_actions) for shared in kept)
