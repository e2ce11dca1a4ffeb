"""What an agent holds between and during calls of `train`: its table, and how far it is."""

from __future__ import annotations

import dataclasses
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from dist_classicrl._random import fresh_seed
from dist_classicrl.checks import as_array
from dist_classicrl.environments.identity import Identity
from dist_classicrl.environments.resolve import Source, resolve
from dist_classicrl.errors import DivergenceError, NotTrainedError, SettingsError
from dist_classicrl.learning.rules import check_settings, named_shared, table_shape
from dist_classicrl.model.keyed import KeyedLookup, KeyedRows
from dist_classicrl.model.lookup import Lookup, tried
from dist_classicrl.model.model_file import SavedModel, are_known
from dist_classicrl.model.places import Places
from dist_classicrl.process.leave import LeaveWatch
from dist_classicrl.settings import Settings
from dist_classicrl.tables import large_table
from dist_classicrl.tables.large_table import LargeTable, check_room
from dist_classicrl.tables.shape import TableShape

if TYPE_CHECKING:
    from dist_classicrl.engines.progress import Progress
    from dist_classicrl.engines.run import Resumed
    from dist_classicrl.environments.stepped.base import SteppedEnv
    from dist_classicrl.environments.stepped.spaces import SpaceIndex

_BLOCK_BYTES = 1 << 15
_WITHOUT_COPY = (
    "Without one, compiled environments without action masks and without replay learn in one process or with "
    'placement="sharded", in a table of exactly the environment\'s size.'
)


@dataclass(frozen=True, eq=False)
class Pending:
    """A checkpoint that an agent was brought to, until it has learned more."""

    begin: int  # global step at which the call of `train` began in which it was written
    resumed: Resumed  # what it says of that call
    #: As much of its `AgentState.values` and `counts` as the agent's have room for, two-dimensional.
    values: np.ndarray
    counts: np.ndarray
    keys: np.ndarray | None = None  # of its states, where they are such
    legal: np.ndarray | None = None  # legal actions in these


@dataclass(frozen=True, eq=False)
class Corner:
    """The part of an agent's table that an environment uses.

    `values` and `counts` are views where the table is as large as the environment, else copies.
    """

    state: AgentState
    shape: tuple[int, int]  # rows of the table, which are the environment's states if it is one; and actions
    values: np.ndarray  # float64 or float32, shape (rows * actions,)
    counts: np.ndarray  # int64, shape (rows * actions,): visits
    #: The whole table, where an engine learns in its rows: `values` and `counts` are these, (rows, actions).
    large: LargeTable | None = None

    def put_back(self) -> None:
        """Let the agent's table be what `values` and `counts` are."""
        rows, actions = self.shape
        if self.state.keyed is not None or self.large is not None:  # learners write into its own
            return
        if self.state.large is not None:
            self.state.large.put(self.values.reshape(self.shape), self.counts.reshape(self.shape))
            return
        for table, part in zip(self.state.table, (self.values, self.counts), strict=True):
            if part.base is not table and not np.may_share_memory(table, part):
                table[:rows, :actions] = part.reshape(self.shape)

    def put_back_when_read(self, settle: Callable[[], None]) -> None:
        """Let the agent's table be what `values` and `counts` are after `settle()`, whenever it is read.

        By the thread that learns, that is: others see what it wrote there last, since it may be in the middle
        of a step.
        """
        learns = threading.get_ident()

        def freshen() -> None:
            if threading.get_ident() == learns:
                settle()
                self.put_back()

        self.state.freshen = freshen


@dataclass(eq=False)
class AgentState:
    """What an agent holds."""

    settings: Settings
    steps: int = 0  # environment steps learned so far, by all ranks, in all calls of `train`
    requested: int = 0  # global step at which the next call begins: where the last one was to end, or did
    finished: list[dict[str, Any]] = field(default_factory=list)  # begin, end and result of calls that ended
    pending: Pending | None = None  # the checkpoint from which the next steps go on
    behind: int | None = None  # digest of a table that is older than rank 0's, because a call failed
    lacks_steps: bool = False  # whether `steps` has some that were learned in that call, which was stopped
    places: Places = field(default_factory=Places)  # where the agent is saved
    environment: Identity | None = None  # the process that the steps were learned in, where it is known
    reports: tuple[Progress, ...] = ()  # of the last call of `train`, where somebody listened
    n_actions: int | None = None  # actions of the environment; the table may have more
    legal: np.ndarray | None = None  # its legal actions, where it is compiled
    observations: SpaceIndex | None = None  # between its own values and the integers, where it is stepped
    actions: SpaceIndex | None = None
    leaving: LeaveWatch = field(default_factory=LeaveWatch)  # was this rank asked to leave?
    is_training: bool = False
    trains_in: SteppedEnv | None = None  # what a training steps through, while it does
    said: set[str] = field(default_factory=set)  # of settings that play no part: each is said once
    is_loaded: bool = False  # its settings were read, and nobody may have written them now
    is_of_study: bool = False  # which says of all its runs what is idle, and how they go on

    def __post_init__(self) -> None:
        check_settings(self.settings)
        self.seed = self.settings.seed  # of all random numbers; None: not drawn yet
        self._shape: TableShape | None = None
        self._table: tuple[np.ndarray, np.ndarray] | None = None
        self.large: LargeTable | None = None  # instead of `_table`, where that would be large
        self.keyed: KeyedRows | None = None  # where states are keys
        #: Brings the table up to date where it is not: it is called before anybody reads it.
        self.freshen: Callable[[], None] | None = None
        #: Tells whether the training that is under way is to stop; None: it is not known, or there is none.
        self.is_asked_to_stop: Callable[[], bool] | None = None
        if self.settings.state_size is not None and self.settings.action_size is not None:
            self.make_table(self.settings.state_size, self.settings.action_size)

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy begins with: another agent, at rest, with the table as it is now.

        SettingsError where the table is divided between hosts, or there is no memory for another one.
        """
        if self._shape is not None:
            self.check_room_for_copy("A copy of the agent", "Train with checkpoint_dir to keep it instead.")
            self._fresh_table()
        own: dict[str, Any] = {"freshen": None, "is_training": False, "trains_in": None}
        own |= {"is_asked_to_stop": None}
        own |= {"places": Places(), "leaving": LeaveWatch()}
        if self.is_training:  # a copy has ended this call, and goes on in the next one
            own |= {"requested": self.steps, "pending": None}
        return vars(self) | own

    @property
    def reached(self) -> int:
        """The global step at which rates stand: after calls that were made before, where the last one ended.

        A script that sets a rate between its calls by what that is does so when it is started again, too.
        """
        return self.steps if self.is_training else min(self.steps, self.requested)

    # The table

    @property
    def values(self) -> np.ndarray:
        """All that the rule learns, in rows as `shape` says, ndarray of shape (rows, actions).

        NotTrainedError where the shape is not known yet.
        """
        return self._fresh_table()[0]

    @property
    def counts(self) -> np.ndarray:
        """How often each entry of `values` was visited, int64 of the same shape, uint32 in a large table."""
        return self._fresh_table()[1]

    @property
    def has_table(self) -> bool:
        """Whether there is a table, of whatever size."""
        return self._shape is not None

    @property
    def shape(self) -> TableShape:
        """What stands in which row of `values`."""
        if self._shape is None:
            raise _unknown_shape()
        return self._shape

    @property
    def q_table(self) -> np.ndarray:
        """What `DistAsyncQLearning.q_table` is."""
        return self._as_given(self.shape.q_table(self.values))

    @property
    def visits(self) -> np.ndarray:
        """What `DistAsyncQLearning.visits` is."""
        return self._as_given(self.shape.visits(self.counts))

    @property
    def shared(self) -> dict[str, np.ndarray]:
        """What `DistAsyncQLearning.shared` is."""
        if self.large is not None and self.large.is_divided:  # of one table and nothing else
            return {}
        found = self.shape.shared(self.values).astype(np.float64)
        return named_shared(self.settings.algorithm, *self.shape.of_table, found)

    def _as_given(self, rows: np.ndarray) -> np.ndarray:
        """Return rows as they are given to a user: read-only where other ranks have the same, or learn."""
        if not self.is_training and (self.large is None or self.large.shared is None):
            if self.large is not None:
                self.large.is_given = True
            return rows
        view = rows.view()
        view.flags.writeable = False
        return view

    @property
    def table(self) -> tuple[np.ndarray, np.ndarray]:
        """`values` and `counts`, which need not be up to date while the agent trains, nor filled before."""
        if self.large is not None:
            return self.large.unfilled.values, self.large.unfilled.counts
        if self._table is None:
            raise _unknown_shape()
        return self._table

    def freshen_table(self) -> None:
        """Bring the table up to date."""
        if self.freshen is not None:
            self.freshen()

    def _fresh_table(self) -> tuple[np.ndarray, np.ndarray]:
        if self.large is not None and self.large.is_divided:
            raise SettingsError(
                "The table is divided between hosts, and nobody has all of its "
                f"{self.large.size / 2**30:.3g} GiB. action_values, state_values and predict ask the hosts "
                "for the states that they are given, evaluate plays with it, and save_model writes it into a "
                "folder."
            )
        self.freshen_table()
        if self.large is not None:
            return self.large.rows.values, self.large.rows.counts
        return self.table

    def rows_of(self, states: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return all rows of these states, values and visits, each of shape (tables, states, A)."""
        if self.large is None or not self.large.is_divided:
            return self.shape.tables(self.values)[:, states], self.shape.tables(self.counts)[:, states]
        self.freshen_table()
        values, counts = self.large.answering_desk.rows(states)
        return values[np.newaxis], counts[np.newaxis]

    def set_values(self, values: Any) -> None:
        """Overwrite the action values, in each of the rule's tables; where there is none yet, make it.

        SettingsError where they are no finite numbers, or the shape does not fit.
        """
        if self.keyed is not None:
            raise SettingsError(
                "q_table cannot be assigned where states are keys: its rows belong to the states that were "
                "met. Load a model with load_model, or train."
            )
        given = as_array("q_table", values)
        shape = None if self._shape is None else self._shape.of_table
        if given.ndim != 2 or 0 in given.shape or (shape is not None and given.shape != shape):
            allowed = "two dimensions, none of them empty," if shape is None else f"the shape {shape}"
            raise SettingsError(
                f"q_table must have {allowed} (states, actions), got an array of shape {given.shape}."
            )
        largest = np.finfo(self.settings.dtype).max
        if given.dtype.kind not in "fiu" or not (np.abs(given.astype(np.float64)) <= largest).all():
            raise SettingsError(
                f"q_table must hold finite numbers up to {largest:.3g}, got {given.dtype} with NaN, "
                "infinity, larger ones or no numbers."
            )
        if shape is None:
            settings = self.settings
            wanted = (settings.state_size or given.shape[0], settings.action_size or given.shape[1])
            if given.shape != wanted:
                raise SettingsError(
                    f"q_table has the shape {given.shape}, but state_size={settings.state_size} and "
                    f"action_size={settings.action_size} ask for {wanted}."
                )
            self.make_table(*given.shape)
        if self.large is not None:
            self.large.take_room()
        self.shape.tables(self.values)[:] = given

    def check_values(self) -> None:
        """Check that the table holds what can be learned from: a user may have written others into it."""
        is_divided = self.large is not None and self.large.is_divided  # then nobody can write into it
        if self._shape is not None and not is_divided and not self._is_finite():
            raise SettingsError(
                "q_table must hold finite numbers, and NaN or infinity was written into it. Write others: "
                "such a table can be neither learned from nor saved."
            )
        if self._shape is not None and self.large is None and not are_known(self.counts):
            least, most = self.counts.min(), self.counts.max()
            raise SettingsError(
                f"visits must be from 0 to 2**48 - 1, and {least if least < 0 else most} was written into "
                "it. Write others: step sizes go by them."
            )

    def _is_finite(self) -> bool:
        if self.large is None:
            return bool(np.isfinite(self.values).all())
        if not self.large.is_written:  # zeros, of which there may be more than memory
            return True
        try:
            self.large.rows.check_finite()
        except DivergenceError:
            return False
        return True

    def make_table(self, states: int, actions: int) -> None:
        """Have a table of this size, all `initial_value`; SettingsError where there is no memory for it."""
        dtype = np.dtype(self.settings.dtype)
        self._shape = table_shape(self.settings.algorithm, states, actions)
        rows = self._shape.n_rows
        self.large = self._table = None
        try:
            if self._shape.size >= large_table.FROM_ENTRIES and self.keyed is None:
                self.large = LargeTable(self._shape, dtype)
            else:
                self._table = np.zeros((rows, actions), dtype), np.zeros((rows, actions), np.int64)
        except (MemoryError, ValueError, OverflowError, OSError) as error:
            size = rows * actions * (dtype.itemsize + 8)
            raise SettingsError(
                f"A table of {states} states and {actions} actions needs {size / 2**30:.3g} GiB with its "
                "visits, which cannot be had. Leave state_size and action_size out to take what the "
                "environment needs."
            ) from error
        if self.settings.initial_value != 0.0 and self.keyed is None:
            if self.large is not None:
                self.large.begin_with(self.settings.initial_value)
            else:
                self._shape.tables(self.values)[:] = self.settings.initial_value

    def forget_table(self) -> None:
        """Have no table any more: nothing was learned in it, and it is for something else."""
        self.keyed = self._table = self._shape = self.large = None

    @contextmanager
    def room_on_trial(self) -> Iterator[None]:
        """Forget the table that is made in here where this ends in an error before a step was learned."""
        had_table = self.has_table
        try:
            yield
        except BaseException:
            if not had_table and self.steps == 0:
                self.forget_table()
            raise

    def corner(self, source: Source, in_rows: bool = False) -> Corner:
        """Return the part of the table that an environment uses.

        `in_rows`: the rows of a large one, all of which it `fills`.
        """
        shape = self.corner_shape(source)
        if in_rows and self.large is not None:
            return Corner(self, shape, *self.table, self.large)
        inner = tuple(map(slice, shape))
        if self.large is not None:
            self.large.rows  # noqa: B018  # what they begin with takes memory of its own
            self.check_room_for_copy("A copy of the table, as this way of learning needs it,", _WITHOUT_COPY)
        values, counts = self.values[inner].reshape(-1), self.counts[inner].reshape(-1)
        return Corner(self, shape, values, counts.astype(np.int64, copy=False))

    def fills(self, source: Source) -> bool:
        """Whether the table is a large one, which an environment uses all of, with all actions legal."""
        is_free = source.simulator is None or source.simulator.legal is None
        return self.large is not None and is_free and self.corner_shape(source) == self.table[0].shape

    def check_room_for_copy(self, what: str, remedy: str) -> None:
        """Raise SettingsError where a copy of a large table and its visits does not fit into memory."""
        if self.large is not None:
            check_room(self.shape.size * (np.dtype(self.settings.dtype).itemsize + 8), what, remedy)

    def put(self, values: np.ndarray, counts: np.ndarray, look: Callable[[], None] = lambda: None) -> None:
        """Let the first rows and actions be these, two-dimensional; see `LargeTable.put`."""
        if self.large is not None:
            self.large.put(values, counts, look)
            return
        rows, columns = values.shape
        self.values[:rows, :columns] = values
        self.counts[:rows, :columns] = counts

    def corner_shape(self, source: Source | Identity) -> tuple[int, int]:
        """Return how many rows and actions of the table an environment uses."""
        is_part = self.shape.is_one_table and self.keyed is None
        return source.n_states if is_part else self.shape.n_rows, source.n_actions

    def digests(self) -> list[int]:
        """Return numbers that differ where values, or visits, or the keys of states, of two agents differ.

        Of large tables they tell nothing: reading these takes seconds.
        """
        if self.large is not None:
            return [0, 0]
        found = [digest(self.values), digest(self.counts)]
        return found if self.keyed is None else [*found, digest(self.keyed.keys)]

    # The environment

    def resolved(self, env: Any, n_envs: int) -> Source:
        """Return `env` as a `Source`; if it is stepped, its states are keys where those of the table are."""
        has_keys = self.keyed is not None and self.keyed.keys.size > 0
        most = 0 if has_keys else self.settings.max_states
        return resolve(env, n_envs, self.settings.use_action_mask, max_states=most)

    def take_note_of(self, source: Source) -> None:
        """Take observations and actions from now on as those of this environment."""
        self.n_actions = source.n_actions
        if self.keyed is not None and source.simulator is not None:
            self.keyed.know(source.simulator)
        else:
            self.legal = None if source.simulator is None else source.simulator.legal
        self.observations, self.actions = source.spaces

    def lookup(self) -> Lookup:
        """Return what the table says for observations of the environment, while it goes on learning."""
        obeys_masks = self.settings.use_action_mask is not False
        if self.keyed is not None:
            visits = self.visits if self.has_told_masks else None
            return KeyedLookup(
                self.keyed.index,
                self.q_table,
                self.legal,
                self.keyed.game,
                self.actions,
                visits,
                obeys_masks,
                self.stored_initial_value,
            )
        return Lookup(
            self.shape.n_states,
            self._rows,
            self.legal,
            self.observations,
            self.actions,
            self.environment is None or self.environment.is_numbered,
            obeys_masks,
            self._tried if self.has_told_masks else None,
            self._row if self._is_at_hand else None,
        )

    @property
    def has_told_masks(self) -> bool:
        """Whether the environment may have told its action masks only as its states were met."""
        return self.environment is not None and self.environment.may_tell_masks

    @property
    def stored_initial_value(self) -> float:
        """The initial value as `q_table` has it where nothing was learned."""
        return self.shape.mean_of_equal(self.settings.initial_value, np.dtype(self.settings.dtype))

    def _tried(self, states: np.ndarray) -> np.ndarray:
        visits = self.rows_of(states)[1][:, :, : self.n_actions].sum(axis=0)
        return tried(self._rows(states), visits, self.stored_initial_value)

    def _rows(self, states: np.ndarray) -> np.ndarray:
        """Return the values of these states, float64 (B, actions of the environment), in a new array."""
        if self._is_at_hand:
            return self.values[states, : self.n_actions].astype(np.float64)
        return self.shape.mean_of(self.rows_of(states)[0][:, :, : self.n_actions]).astype(np.float64)

    def _row(self, state: int) -> tuple[np.ndarray, np.ndarray]:
        """Return values and visits of a state, views, where the table `_is_at_hand`."""
        values, counts = self._fresh_table()
        return values[state, : self.n_actions], counts[state, : self.n_actions]

    @property
    def _is_at_hand(self) -> bool:
        """Whether there is one table, and all of it is here."""
        return self.shape.is_one_table and not (self.large is not None and self.large.is_divided)

    # Settings, and what is kept

    def check_at_rest(self, name: str) -> None:
        """Raise SettingsError where a user sets something that a training under way would not take."""
        if self.is_training:
            raise SettingsError(
                f"{name} cannot be set while the agent trains: the training has taken it at its beginning. "
                "Set it between two calls of train(), which a callback ends by returning False; epsilon and "
                "learning_rate may be schedules, such as Linear(1.0, 0.1, fraction=0.5)."
            )

    def change(self, **settings: Any) -> None:
        """Put other values in place of some settings; SettingsError where one is not allowed."""
        if all(value is getattr(self.settings, name) for name, value in settings.items()):
            return
        changed = dataclasses.replace(self.settings, **settings)
        check_settings(changed)
        self.settings = changed

    def drawn_seed(self) -> int:
        """Return the seed, which is drawn now where there is none."""
        if self.seed is None:
            self.seed = fresh_seed()
        return self.seed

    def to_model(self) -> SavedModel:
        """Return what a model file holds of the agent; SettingsError where that is no finite number."""
        self.check_values()
        self.check_room_for_copy(
            "A copy of the table, as a model file is written of it,",
            "Train with checkpoint_dir: load_model takes that folder, too.",
        )
        arrays = self.shape.to_arrays(self.values, self.counts.astype(np.int64, copy=False))
        table = arrays.pop("q_table"), arrays.pop("visits")
        keys = None if self.keyed is None else self.keyed.keys
        return SavedModel(
            self.settings,
            *table,
            self.steps,
            self.n_actions,
            self.legal,
            arrays,
            self.environment,
            self.observations,
            self.actions,
            keys,
            self.seed,
        )

    def take_model(self, saved: SavedModel) -> None:
        """Be what a model file holds, apart from the settings, which a subclass may have changed.

        SettingsError where the rule has other tables now.
        """
        self._shape = table_shape(self.settings.algorithm, *saved.q_table.shape)
        table = self._shape.from_arrays(saved.arrays())
        if table is None:
            raise SettingsError(
                f"The model was learned with algorithm={saved.settings.algorithm!r}, and "
                f"{self.settings.algorithm!r}, which the class that loads it sets, has other tables. Let its "
                "__init__ pass on the algorithm that it is given, or train anew."
            )
        self._table, self.large = None, None
        if self._shape.size >= large_table.FROM_ENTRIES and saved.keys is None:
            self.make_table(*saved.q_table.shape)
            self.put(*table)
        else:
            self._table = np.asarray(table[0], self.settings.dtype), np.asarray(table[1])
        self.steps, self.requested, self.is_loaded = saved.steps, saved.steps, True
        self.seed = saved.seed if self.seed is None else self.seed
        self.n_actions, self.legal = saved.actions, saved.legal
        self.environment = saved.environment
        self.observations, self.actions = saved.observation_index, saved.action_index
        if saved.keys is not None:
            self.keyed = KeyedRows(self, saved.keys)


def _unknown_shape() -> NotTrainedError:
    return NotTrainedError(
        "The table has no shape yet. Call train(env=...), or give state_size and action_size to the "
        "constructor."
    )


def digest(array: np.ndarray) -> int:
    """Return a number that differs where arrays differ, at the speed of reading them."""
    words = array.reshape(-1).view(np.uint8)
    whole = words[: words.size // _BLOCK_BYTES * _BLOCK_BYTES].view(np.uint64).reshape(-1, _BLOCK_BYTES // 8)
    digest = zlib.crc32(np.add.reduce(whole, axis=1).data)
    digest = zlib.crc32(np.bitwise_xor.reduce(whole, axis=1).data, digest)
    return zlib.crc32(words[whole.nbytes :].data, digest)
