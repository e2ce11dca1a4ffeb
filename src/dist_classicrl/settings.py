"""All settings of an agent in one frozen dataclass, checked once where they enter."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from dist_classicrl import rules, schedules
from dist_classicrl.errors import SettingsError
from dist_classicrl.schedules import PerVisit, Schedule, as_schedule

ROUND_UPDATES = 32
"""What ``sync_frequency="auto"`` means in the reproducible mode: updates of a logical worker per round."""

_BACKENDS = ("mpi",)
_DTYPES = ("float64", "float32")
_ON_FAILURE = ("continue", "replace", "abort")
_ON_ERROR = ("raise", "exclude")


@dataclass(frozen=True)
class Settings:
    """Settings of `dist_classicrl.DistAsyncQLearning`; their meaning is in its docstring."""

    state_size: int | None = None  # rows of the table; None: as many as the environment has
    action_size: int | None = None  # columns, likewise
    learning_rate: Any = 0.1  # step size: a number in (0, 1] or a schedule
    discount_factor: float = 0.99  # in [0, 1]
    epsilon: Any = (
        0.1  # chance of a uniformly random action: a number in [0, 1] or a schedule of the global step
    )
    batch_size: int = 32  # transitions per update
    sync_frequency: int | str = "auto"  # updates between pushes
    compression_threshold: float = 0.0  # maps that move a value by less than this may wait
    async_updates: bool = True  # False: the reproducible mode
    buffer_size: int = 10_000  # transitions that each worker keeps for replay
    prefetch_factor: int = 2  # pushes in flight per worker
    communication_backend: str = "mpi"
    algorithm: Any = "q_learning"  # a name, or the hyper-parameters of a rule; kept as `rules.to_data`
    dtype: str = "float64"  # of the table
    seed: int | None = None  # None: one that nobody chose
    logical_workers: int = 16  # of the reproducible mode
    replay_ratio: float = 0.0  # replayed updates per step
    n_envs: int = 16  # copies per worker of an environment that is stepped through Gymnasium
    use_action_mask: bool | None = None  # None: follow masks, except Taxi's, which Gymnasium does not enforce
    allow_singletons: bool = False  # train alone although the launcher promised several ranks
    timeout: float = 600.0  # seconds without progress after which a rank counts as lost
    heartbeat_interval: float = 1.0  # seconds of silence after which a rank says that it is there
    heartbeat_timeout: float = 30.0  # seconds of silence after which a rank counts as lost
    on_failure: str = "continue"  # what a lost worker means: "continue", "replace" or "abort"
    min_workers: int = 0  # with fewer the run ends
    max_replacements: int = 3  # ranks started anew in one call of train, where on_failure is "replace"
    on_error: str = "raise"  # what an exception in a worker's environment means: "raise" or "exclude"

    def __post_init__(self) -> None:
        def put(name: str, value: Any) -> None:
            object.__setattr__(self, name, value)

        for name in ("state_size", "action_size"):
            value = getattr(self, name)
            if value is not None:
                put(name, checked_whole(name, value, 1, "None to take it from the environment"))
        put("learning_rate", as_schedule("learning_rate", self.learning_rate))
        put("epsilon", as_schedule("epsilon", self.epsilon))
        _check_learning_rate(self.learning_rate)
        _check_epsilon(self.epsilon)
        put("discount_factor", _real("discount_factor", self.discount_factor, 0.0, 1.0))
        put("batch_size", checked_whole("batch_size", self.batch_size, 1))
        if self.sync_frequency != "auto":
            put("sync_frequency", checked_whole("sync_frequency", self.sync_frequency, 1, '"auto"'))
        put(
            "compression_threshold", _real("compression_threshold", self.compression_threshold, 0.0, math.inf)
        )
        put("buffer_size", checked_whole("buffer_size", self.buffer_size, 1))
        put("prefetch_factor", checked_whole("prefetch_factor", self.prefetch_factor, 1))
        put("logical_workers", checked_whole("logical_workers", self.logical_workers, 1))
        put("n_envs", checked_whole("n_envs", self.n_envs, 1))
        put("replay_ratio", _real("replay_ratio", self.replay_ratio, 0.0, 1e6))
        put("timeout", _real("timeout", self.timeout, 1.0, 1e9))
        put("heartbeat_interval", _real("heartbeat_interval", self.heartbeat_interval, 0.01, 1e9))
        put("heartbeat_timeout", _real("heartbeat_timeout", self.heartbeat_timeout, 0.1, 1e9))
        if self.heartbeat_timeout < 4.0 * self.heartbeat_interval:
            raise SettingsError(
                "heartbeat_timeout must be at least 4 times heartbeat_interval, or a rank is lost for one "
                f"late sign of life; got heartbeat_timeout={self.heartbeat_timeout:g} and "
                f"heartbeat_interval={self.heartbeat_interval:g}."
            )
        put("min_workers", checked_whole("min_workers", self.min_workers, 0))
        put("max_replacements", checked_whole("max_replacements", self.max_replacements, 0))
        _one_of("on_failure", self.on_failure, _ON_FAILURE)
        _one_of("on_error", self.on_error, _ON_ERROR)
        if self.on_error == "exclude" and not self.async_updates:
            raise SettingsError(
                'on_error="exclude" has no place in the reproducible mode (async_updates=False), where each '
                'round needs all logical workers. Leave it at "raise", or use async_updates=True.'
            )
        for name in ("async_updates", "allow_singletons"):
            put(name, checked_flag(name, getattr(self, name)))
        if self.use_action_mask is not None:
            put("use_action_mask", checked_flag("use_action_mask", self.use_action_mask, " or None"))
        put("algorithm", rules.to_data(self.algorithm))
        put("dtype", _dtype(self.dtype))
        if self.communication_backend == "nccl":
            raise SettingsError(
                "communication_backend='nccl' needs one GPU per rank and tables in GPU memory; this "
                "library's tables live in main memory and travel by MPI. Write communication_backend='mpi'."
            )
        _one_of("communication_backend", self.communication_backend, _BACKENDS)
        if self.seed is not None:
            put("seed", checked_whole("seed", self.seed, 0, "None"))
            if self.seed >= 2**63:  # ranks tell each other the seed as an int64
                raise SettingsError(f"seed must be below 2**63, got {self.seed!r}.")
        if self.compression_threshold > 0.0 and not self.async_updates:
            raise SettingsError(
                "compression_threshold has no place in the reproducible mode (async_updates=False), where "
                "every round is merged whole. Leave it at 0.0, or use async_updates=True."
            )

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as plain data for JSON."""
        data = {field.name: getattr(self, field.name) for field in fields(self)}
        for name in ("learning_rate", "epsilon"):
            data[name] = schedules.to_dict(data[name])
        return data

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Settings:
        """Return the settings that `to_dict` described.

        Raises
        ------
        SettingsError
            If a name or a value is not one of a setting.
        """
        known = {field.name for field in fields(cls)}
        unknown = sorted(set(data) - known)
        if unknown:
            raise SettingsError(
                f"unknown settings {', '.join(unknown)}; known are {', '.join(sorted(known))}."
            )
        arguments = dict(data)
        for name in ("learning_rate", "epsilon"):
            if isinstance(arguments.get(name), dict):
                arguments[name] = schedules.from_dict(arguments[name])
        return cls(**arguments)


def _check_learning_rate(schedule: Schedule) -> None:
    if isinstance(schedule, PerVisit):
        return
    low, high = schedule.bounds
    if not (0.0 < low and high <= 1.0):
        raise SettingsError(
            f"learning_rate must be above 0 and at most 1, got {_shown(schedule)}. "
            "Write for instance learning_rate=0.1, or PerVisit(0.7) of dist_classicrl.schedules."
        )


def _check_epsilon(schedule: Schedule) -> None:
    if isinstance(schedule, PerVisit):
        raise SettingsError(
            "epsilon cannot follow the visits to an entry: it is drawn before there is one. Use a number, or "
            "Linear or Exponential of dist_classicrl.schedules, which follow the global step."
        )
    low, high = schedule.bounds
    if not (0.0 <= low and high <= 1.0):
        raise SettingsError(
            f"epsilon must be from 0 to 1, got {_shown(schedule)}. Write for instance epsilon=0.1."
        )


def _shown(schedule: Schedule) -> str:
    values = asdict(schedule)
    return repr(values["value"]) if set(values) == {"value"} else repr(schedule)


def checked_whole(name: str, value: Any, least: int, otherwise: str = "") -> int:
    """Return `value` as an int of at least `least`; SettingsError, which names `otherwise`, for others."""
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not whole or value < least:
        hint = f", or {otherwise}" if otherwise else ""
        raise SettingsError(f"{name} must be a whole number of at least {least}{hint}, got {value!r}.")
    return int(value)


def checked_positive(name: str, value: Any) -> float:
    """Return `value` as a finite float above 0; SettingsError for others."""
    if not _is_real(value) or not 0.0 < value < math.inf:
        raise SettingsError(f"{name} must be a finite number above 0, got {value!r}.")
    return float(value)


def _is_real(value: Any) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


def _real(name: str, value: Any, least: float, most: float) -> float:
    if not _is_real(value) or not least <= value <= most or math.isinf(value):
        limits = f"from {least:g} to {most:g}" if math.isfinite(most) else f"finite and at least {least:g}"
        raise SettingsError(f"{name} must be a number {limits}, got {value!r}.")
    return float(value)


def checked_flag(name: str, value: Any, otherwise: str = "") -> bool:
    """Return `value` as a bool; SettingsError, which names `otherwise`, for others."""
    if not isinstance(value, (bool, np.bool_)):
        raise SettingsError(f"{name} must be True or False{otherwise}, got {value!r}.")
    return bool(value)


def _one_of(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise SettingsError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}.")


def _dtype(value: Any) -> str:
    try:
        name = np.dtype(value).name
    except TypeError:
        name = None
    if name not in _DTYPES:
        raise SettingsError(f"dtype must be one of {', '.join(map(repr, _DTYPES))}, got {value!r}.")
    return name
