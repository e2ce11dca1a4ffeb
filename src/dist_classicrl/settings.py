"""All settings of an agent in one frozen dataclass: defaults, checks, and what the command line says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, fields
from functools import partial
from importlib.util import find_spec
from typing import Any

from dist_classicrl import compression as compressions
from dist_classicrl._arguments import OURS, unset_settings
from dist_classicrl._words import name_of
from dist_classicrl.checks import (
    Checked,
    NumberType,
    OneOf,
    Or,
    RealNumber,
    WholeNumber,
    YesOrNo,
    is_whole,
    setting,
)
from dist_classicrl.errors import MissingExtraError, SettingsError
from dist_classicrl.rules import behaviors, registry
from dist_classicrl.schedules import Linear, PerVisit
from dist_classicrl.schedules import kinds as schedules
from dist_classicrl.schedules.kinds import Schedule, as_schedule

ROUND_UPDATES = 32
"""Updates of a logical worker in the first rounds of the reproducible mode with ``sync_frequency="auto"``."""

LOGICAL_WORKERS = 16
"""By default, in the reproducible mode."""

TEMPERATURE = "temperature"
"""What `Settings.schedules` calls that of the behavior."""

DEVICES = ("cpu", "cuda", "auto")
"""What `Settings.device` may be."""

PLACEMENTS = ("auto", "replicated", "sharded")
"""What an agent takes for `placement`, and `train` besides an engine."""

MERGINGS = ("affine", "order_free", "staleness_weighted", "reject_stale")
"""Ways in which a server puts pushes into its table, see `dist_classicrl.tables.merging`."""

BY_STALENESS = ("staleness_weighted", "reject_stale")
"""Those for which it matters how old the base of a push is, so that several cannot come as one."""

_SCHEDULES = ("learning_rate", "epsilon")
_MOST_OF_FLOAT32 = 3.4e38
_MOST_ENVS = 2**16

_NO_ZSTANDARD = (
    'compression="lossless" needs zstandard, which is an extra: pip install ".[compression]" in a clone of '
    'this project, or pip install zstandard. Else write compression="none".'
)

_NO_NCCL = (
    "communication_backend='nccl' needs one GPU per rank and tables in GPU memory; what ranks tell each "
    "other here, those with device='cuda' too, lies in main memory and travels by MPI. Write "
    "communication_backend='mpi'."
)


_IS_READ_BACK = ContextVar("is_read_back", default=False)


@contextmanager
def read_back() -> Iterator[None]:
    """Let agents be made with saved settings, which earlier versions let contradict each other."""
    token = _IS_READ_BACK.set(True)
    try:
        yield
    finally:
        _IS_READ_BACK.reset(token)


class Algorithm(OneOf):
    """Learning rules: names, hyper-parameters, or plain data, as which `registry.to_data` keeps them."""

    def __call__(self, name: str, value: Any) -> Any:
        """Return it as plain data."""
        return registry.to_data(value)


class Compression(OneOf):
    """Kinds of compression, as `dist_classicrl.compression.to_data` takes and keeps them."""

    def __call__(self, name: str, value: Any) -> Any:
        """Return it as plain data."""
        return compressions.to_data(value)


@dataclass(frozen=True)
class OneOfOurs(OneOf):
    """Words for what this library has; what is of a user's own, by its methods, is told where it goes."""

    methods: tuple[str, ...] = ()
    advice: str = ""  # with {own} for its class

    def __call__(self, name: str, value: Any) -> str:
        """Return the word."""
        if all(hasattr(value, method) for method in self.methods):
            own = value.__name__ if isinstance(value, type) else type(value).__name__
            raise SettingsError(
                f"{name} must be one of {', '.join(map(repr, self.words))}, got {value!r}. "
                + self.advice.format(own=own)
            )
        return super().__call__(name, value)


class Behavior(OneOf):
    """How actions are chosen, as `dist_classicrl.rules.behaviors.to_data` takes and keeps it."""

    def __call__(self, name: str, value: Any) -> Any:
        """Return it as plain data."""
        return behaviors.to_data(value)


class Device(OneOf):
    """Where ranks learn: words, of which several cards in one rank are refused by name."""

    def __call__(self, name: str, value: Any) -> str:
        """Return the word."""
        numbered = isinstance(value, str) and value.startswith(("cuda:", "gpu:", "cuda,"))
        if numbered or isinstance(value, list | tuple) or (is_whole(value) and not isinstance(value, str)):
            raise SettingsError(
                f"{name}={value!r} names cards. Each rank takes one, by its number on its host, and several "
                f"cards in one rank cannot be had: write {name}='cuda', start one rank for each card and one "
                "that serves, and let CUDA_VISIBLE_DEVICES say which cards there are."
            )
        return super().__call__(name, value)


class TableSize(WholeNumber):
    """Numbers of states or actions; of what other libraries give first, it is said where it goes."""

    def __call__(self, name: str, value: Any) -> int:
        """Return the number."""
        try:
            return super().__call__(name, value)
        except SettingsError as error:
            if not isinstance(value, str):
                raise
            raise SettingsError(
                f"{error} An agent is given no policy, as its table is one, and no environment: write "
                'DistAsyncQLearning() and train("FrozenLake-v1", total_steps=100_000).'
            ) from None


def checked_step_size(name: str, value: Any) -> Schedule:
    """Return the schedule that a value means, above 0 and at most 1; SettingsError for others."""
    schedule = as_schedule(name, value)
    if not isinstance(schedule, PerVisit):
        low, high = schedule.bounds
        if not (0.0 < low and high <= 1.0):
            raise SettingsError(
                f"{name} must be above 0 and at most 1, got {shown(schedule)}. "
                f"Write for instance {name}=0.1, or PerVisit(0.7) of dist_classicrl.schedules."
            )
    return schedule


def checked_chance(name: str, value: Any) -> Schedule:
    """Return the schedule of the global step that a value means, from 0 to 1; SettingsError for others."""
    schedule = as_schedule(name, value)
    if isinstance(schedule, PerVisit):
        raise SettingsError(
            f"{name} cannot follow the visits to an entry: it is drawn before there is one. Use a "
            "number, or Linear, Exponential or Piecewise of dist_classicrl.schedules, which follow the "
            "global step."
        )
    low, high = schedule.bounds
    if not (0.0 <= low and high <= 1.0):
        raise SettingsError(
            f"{name} must be from 0 to 1, got {shown(schedule)}. Write for instance {name}=0.1."
        )
    return schedule


@dataclass(frozen=True)
class ByRule:
    """The default of a setting for which a learning rule may have another."""

    usual: Schedule

    def __repr__(self) -> str:
        return repr(self.usual)


def defaults_of_rule(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the `given` settings that are `ByRule`, as the algorithm among them would have them."""
    own = registry.defaults(given["algorithm"])
    return {name: own.get(name, value.usual) for name, value in given.items() if isinstance(value, ByRule)}


def shown(schedule: Schedule) -> str:
    """Return a schedule as it may be written: a constant one as its number."""
    values = asdict(schedule)
    return repr(values["value"]) if set(values) == {"value"} else repr(schedule)


_learning = partial(setting, section="Learning", is_kept=True)
COMMUNICATION = "Communication and lost ranks"
"""The section of the settings that are about other ranks."""

_talking = partial(setting, section=COMMUNICATION)
_SIZE = Or(None, TableSize(1, "None to take it from the environment", bits=62))


@unset_settings
@dataclass(frozen=True, kw_only=True)
class Settings(Checked):
    """Settings of `dist_classicrl.DistAsyncQLearning`, whose docstring says what they mean.

    They stand in the order of `train --help`.
    """

    algorithm: Any = _learning("q_learning", Algorithm(tuple(registry.BUILT_IN)), "Learning rule.")
    learning_rate: Any = _learning(
        ByRule(PerVisit(0.7, scale=0.5, offset=100)),
        checked_step_size,
        "Step size; per_visit:0.7 is n^-0.7 at the n-th visit.",
    )
    discount_factor: float = _learning(0.99, RealNumber(0.0, 1.0), "From 0 to 1.")
    epsilon: Any = _learning(
        ByRule(Linear(1.0, 0.1, fraction=0.5)),
        checked_chance,
        "Chance of a random action; a schedule follows the global step.",
    )
    behavior: Any = _learning(
        "epsilon_greedy", Behavior(tuple(behaviors.NAMED)), "How actions are chosen while learning."
    )
    initial_value: float = _learning(
        0.0, RealNumber(-1e300, 1e300), "Of all entries of a new table; a large one lets all be tried."
    )
    exploring_starts: bool = _learning(
        False, YesOrNo(), "Episodes begin in any state, where the model is known."
    )
    seed: int | None = _learning(
        None, Or(None, WholeNumber(0, "None", bits=63)), "Of all random numbers; drawn if left out."
    )  # ranks tell each other the seed as an int64
    dtype: str = _learning("float64", NumberType(("float64", "float32")), "Of the table.")
    placement: str = setting(
        "auto",
        OneOfOurs(
            PLACEMENTS,
            methods=("suits", "train"),
            advice="An engine of your own is given to train: leave this out, and write placement= there.",
        ),
        "Where the table is: a copy on each rank, or one that all ranks learn in.",
        section="Learning",
    )  # not kept: what one way has begun another one goes on with
    device: str = setting(
        "cpu",
        Device(DEVICES, {"gpu": "device='gpu' is written device='cuda'."}),
        "Where ranks learn: on cores or CUDA cards; auto: on a card where one is and the problem suits it.",
        section="Learning",
    )  # not kept: what was begun on a card goes on on cores, and back
    state_size: int | None = _learning(
        None, _SIZE, "Rows of the table; by default what the environment needs."
    )
    action_size: int | None = _learning(None, _SIZE, "Columns, likewise.")
    max_states: int | None = _learning(
        None,
        Or(None, WholeNumber(1, "None for as many as memory has room for", bits=40)),
        "Most states of the table, where nobody has counted them.",
    )
    use_action_mask: bool | None = _learning(
        None, Or(None, YesOrNo("None")), "Follow action masks; by default yes, except Taxi's."
    )
    replay_ratio: float = _learning(0.0, RealNumber(0.0, 1e6), "Replayed updates per step.")
    buffer_size: int = _learning(
        10_000, WholeNumber(1, bits=31), "Transitions that each worker keeps for replay."
    )
    batch_size: int = _learning(32, WholeNumber(1, bits=20), "Transitions per update.")
    n_envs: int = _learning(
        16, WholeNumber(1, bits=12), "Copies per worker of an environment that is stepped."
    )
    async_updates: bool = _learning(True, YesOrNo(), "No: the same table bit for bit on any number of ranks.")
    logical_workers: int = _learning(LOGICAL_WORKERS, WholeNumber(1, bits=12), "Of that reproducible mode.")

    sync_frequency: int | str = _talking(
        "auto", Or("auto", WholeNumber(1, '"auto"', bits=31)), "Updates of a worker between two pushes."
    )
    compression_threshold: float = _talking(0.0, RealNumber(0.0), "Changes of values below this may wait.")
    compression: Any = _talking(
        "none",
        Compression(tuple(compressions.NAMED)),
        "How messages go in fewer bytes.",
    )
    prefetch_factor: int = _talking(2, WholeNumber(1, bits=31), "Pushes in flight per worker.")
    topology: str = _talking(
        "flat",
        OneOf(("flat", "tree", "decentralized", "auto")),
        "What maps go through on their way.",
    )
    exchange_pattern: str = _talking(
        "auto",
        OneOfOurs(
            ("auto", "doubling", "ring", "tree", "two_level"),
            methods=("suits", "exchange"),
            advice="An exchange pattern of your own is given to train, as an engine: leave this out, and "
            "write placement=Decentralized({own}()), by dist_classicrl.engines.decentralized.",
        ),
        "Who sends what to whom in a round where the topology is decentralized.",
    )
    tree_group_size: int | None = _talking(
        None,
        Or(None, WholeNumber(3, "None to take those of each host", bits=31)),
        "Ranks with a server of their own in a tree.",
    )
    max_staleness: int | None = _talking(
        None,
        Or(None, WholeNumber(0, "None for as many as there are", bits=31)),
        "Versions of the table that a worker may be behind and learn on; beyond, it waits.",
    )
    merging: str = _talking(
        "affine", OneOf(MERGINGS), "How the server puts pushes into the table that others pushed to."
    )
    communication_backend: str = _talking(
        "mpi", OneOf(("mpi",), {"nccl": _NO_NCCL}), "What carries messages."
    )
    timeout: float = _talking(
        600.0, RealNumber(1.0, 1e9), "Seconds without progress after which a rank counts as lost."
    )
    heartbeat_interval: float = _talking(
        1.0, RealNumber(0.01, 1e9), "Seconds of silence after which a rank says that it is there."
    )
    heartbeat_timeout: float = _talking(
        30.0, RealNumber(0.1, 1e9), "Seconds of silence after which a rank counts as lost."
    )
    on_failure: str = _talking(
        "continue", OneOf(("continue", "replace", "abort")), "What a lost worker means."
    )
    min_workers: int = _talking(0, WholeNumber(0, bits=31), "With fewer no run begins or goes on.")
    max_replacements: int = _talking(
        3, WholeNumber(0, bits=31), "Most ranks started anew where --on-failure is replace."
    )
    on_error: str = _talking(
        "raise", OneOf(("raise", "exclude")), "What an exception in an environment means."
    )
    allow_singletons: bool = _talking(False, YesOrNo(), "Train alone although several ranks were promised.")

    def __post_init__(self) -> None:
        for name, value in defaults_of_rule(vars(self)).items():
            object.__setattr__(self, name, value)
        super().__post_init__()
        if self.heartbeat_timeout < 4.0 * self.heartbeat_interval:
            raise SettingsError(
                "heartbeat_timeout must be at least 4 times heartbeat_interval, or a rank is lost for one "
                f"late sign of life; got heartbeat_timeout={self.heartbeat_timeout:g} and "
                f"heartbeat_interval={self.heartbeat_interval:g}."
            )
        if not self.async_updates and self.logical_workers * self.n_envs > _MOST_ENVS:
            raise SettingsError(
                f"logical_workers={self.logical_workers} times n_envs={self.n_envs} are "
                f"{self.logical_workers * self.n_envs:,} environments; at most {_MOST_ENVS:,} are allowed. "
                "Make one of them smaller."
            )
        if self.on_error == "exclude" and not self.async_updates:
            raise SettingsError(
                'on_error="exclude" has no place in the reproducible mode (async_updates=False), where each '
                'round needs all logical workers. Leave it at "raise", or use async_updates=True.'
            )
        if self.compression_threshold > 0.0 and not self.async_updates:
            raise SettingsError(
                "compression_threshold has no place in the reproducible mode (async_updates=False), where "
                "every round is merged whole. Leave it at 0.0, or use async_updates=True."
            )
        if self.dtype == "float32" and abs(self.initial_value) > _MOST_OF_FLOAT32:
            raise SettingsError(
                f"initial_value={self.initial_value:g} does not fit into a table of float32, whose numbers "
                f"go up to {_MOST_OF_FLOAT32:g}. Make it smaller, or write dtype='float64'."
            )
        self._check_compression(name_of(self.compression))
        if self.compression == "threshold":  # which is none besides
            object.__setattr__(self, "compression", "none")
        if self.topology == "tree" and not self.async_updates:
            raise SettingsError(
                f'topology="{self.topology}" has no place in the reproducible mode (async_updates=False), '
                'where maps are merged in a fixed order. Leave it at "flat", or use async_updates=True.'
            )
        if self.tree_group_size is not None and not self.async_updates:
            raise SettingsError(
                f"tree_group_size={self.tree_group_size} has no place in the reproducible mode "
                "(async_updates=False), where maps are merged in a fixed order, by no tree. Leave it out, or "
                "use async_updates=True."
            )
        self._check_staleness()
        if self.tree_group_size is not None and self.topology in ("flat", "decentralized"):
            raise SettingsError(
                f"tree_group_size={self.tree_group_size} is the size of groups of a tree, and "
                f'topology="{self.topology}" has none. Write topology="tree" as well.'
            )
        if self.exchange_pattern != "auto" and self.topology != "decentralized":
            raise SettingsError(
                f'exchange_pattern="{self.exchange_pattern}" says how ranks exchange maps where no server '
                f'does, and with topology="{self.topology}" one does. Write topology="decentralized" as well.'
            )

    def check_given(self) -> None:
        """Raise SettingsError where they contradict each other, unless they are `read_back`."""
        if _IS_READ_BACK.get():
            return
        if self.on_failure == "replace" and self.max_replacements == 0:
            raise SettingsError(
                'on_failure="replace" starts a new process for each worker that is lost, and '
                'max_replacements=0 allows none. Write max_replacements=1 or more, or on_failure="continue".'
            )
        if self.max_states is not None and (self.state_size or 0) > self.max_states:
            raise SettingsError(
                f"state_size={self.state_size:,} makes a table of more states than max_states="
                f"{self.max_states:,} allows. Leave one of them out."
            )

    def _check_staleness(self) -> None:
        """Refuse what is about stale workers where there are none, or what to do with their maps."""
        given = None
        if self.max_staleness is not None:
            given = f"max_staleness={self.max_staleness}", "max_staleness=None"
        elif self.merging != "affine":
            given = f'merging="{self.merging}"', 'merging="affine"'
        if given is not None and not self.async_updates:
            raise SettingsError(
                f"{given[0]} has no place in the reproducible mode (async_updates=False), where all learn "
                "from the same version, and maps are merged in a way that is free of their order. Write "
                f"{given[1]}, or use async_updates=True."
            )
        if given is not None and self.topology not in ("flat", "tree", "auto"):
            raise SettingsError(
                f'{given[0]} is about the versions of one server, and topology="{self.topology}" has none. '
                f'Write topology="flat" or "tree", or {given[1]}.'
            )
        if self.merging == "reject_stale" and self.max_staleness is None:
            raise SettingsError(
                'merging="reject_stale" refuses pushes that are more than max_staleness versions behind, and '
                "max_staleness is None. Write for instance max_staleness=32 as well."
            )
        if self.topology == "tree" and self.merging in BY_STALENESS:
            raise SettingsError(
                f'merging="{self.merging}" goes by how stale each push is, and in a tree those of several '
                'workers come as one. Write merging="affine" or "order_free", or topology="flat".'
            )

    def _check_compression(self, name: str) -> None:
        """Refuse a kind of compression with settings that it cannot be had with, or without."""
        if name == "threshold" and self.compression_threshold == 0.0:
            raise SettingsError(
                'compression="threshold" lets changes wait that are below compression_threshold, and that is '
                "0: none is. Write compression_threshold=0.01 as well, or another number."
            )
        if name in ("top_k", "quantized") and not self.async_updates:
            raise SettingsError(
                f'compression="{name}" has no place in the reproducible mode (async_updates=False): what '
                "waits at a worker would depend on the number of ranks. Write compression='lossless', which "
                "keeps every bit, or use async_updates=True."
            )
        if name == "top_k" and self.compression_threshold > 0.0:
            raise SettingsError(
                f'compression="top_k" says itself which changes wait, so compression_threshold='
                f"{self.compression_threshold:g} has no place beside it. Leave one of them out."
            )

    def longest_part(self, ranks: int) -> int:
        """Return the most logical workers that one of so many ranks carries."""
        return -(-self.logical_workers // ranks)

    def check_packages(self, ranks: int) -> None:
        """Raise MissingExtraError where a training of so many ranks needs a package that is not installed."""
        is_needed = ranks > 1 and name_of(self.compression) == "lossless"
        if is_needed and find_spec("zstandard") is None:
            raise MissingExtraError(_NO_ZSTANDARD)

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as plain data for JSON, `placement` where it is not "auto".

        What was kept before there was that setting stays the same so: a study goes on in its folder.
        """
        data = self.arguments()
        if self.placement == "auto":
            del data["placement"]
        data.update({name: schedules.to_dict(getattr(self, name)) for name in _SCHEDULES})
        return data

    @property
    def may_take_card(self) -> bool:
        """Whether a rank may learn on a card: by "auto" none does whose table must not depend on that."""
        return self.device == "cuda" or self.device == "auto" and self.async_updates

    @property
    def schedules(self) -> dict[str, Schedule]:
        """Those of the settings that are schedules, by name, and the temperature of the behavior."""
        found = {name: getattr(self, name) for name in _SCHEDULES}
        temperature = behaviors.temperature_of(self.behavior)
        return found if temperature is None else {**found, TEMPERATURE: temperature}

    @staticmethod
    def of_schedules(found: Mapping[str, Schedule]) -> dict[str, Any]:
        """Return the settings by name that have these `schedules`."""
        given: dict[str, Any] = {name: found[name] for name in _SCHEDULES if name in found}
        if TEMPERATURE in found:
            given["behavior"] = behaviors.with_temperature(found[TEMPERATURE])
        return given

    def arguments(self) -> dict[str, Any]:
        """Return the keyword arguments that make the same settings, or an agent with them."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Settings:
        """Return the settings that `to_dict` described; SettingsError for other names or values."""
        known = sorted(cls.__dataclass_fields__)
        unknown = sorted(map(str, set(data).difference(known)))
        if unknown:
            told = (
                f"{name}, which is called {OURS[name]} here" if OURS.get(name) in known else name
                for name in unknown
            )
            raise SettingsError(f"unknown settings {', '.join(told)}; known are {', '.join(known)}.")
        return cls(**{name: value_of_data(name, value) for name, value in data.items()})


def value_of_data(name: str, value: Any) -> Any:
    """Return a setting as `Settings` has it, of what `Settings.to_dict` made of it."""
    return schedules.from_dict(value) if name in _SCHEDULES and isinstance(value, dict) else value
