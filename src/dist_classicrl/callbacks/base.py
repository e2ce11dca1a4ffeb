"""What a callback is, a list of them, and what else `train` takes for one."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from typing import TYPE_CHECKING, Any

from dist_classicrl.checks import checked_verbosity, is_row, is_whole, takes_one
from dist_classicrl.errors import SettingsError, UnknownAttributeError

if TYPE_CHECKING:
    from dist_classicrl.engines.outcome import Outcome
    from dist_classicrl.engines.progress import Progress

logger = logging.getLogger(__name__)

# What callbacks of Stable-Baselines3 have besides, and what takes its place here.
_OF_OTHERS = {
    "logger": "write self.record(name, value) in place of self.logger.record(name, value).",
    "locals": "what a report tells is in self.progress.",
    "globals": "what a report tells is in self.progress.",
    "training_env": "environments are with the ranks that learn; self.model.evaluate(env) plays in one.",
}


class BaseCallback:
    """Follows a training on the rank that serves. Override the methods that begin with an underscore.

    ``_on_step`` is called at each report: at 200 points that are evenly spread over the steps of a call of
    `train`, at the steps that any callback asks for by ``_next_step`` (several of these are one report where
    a push or a round goes beyond them), after `progress_interval` seconds without a report, at each
    checkpoint and at the end, unless the last report has all of it. What it does, the server does not,
    so it should be quick. An exception ends the training on all ranks, and reaches the caller of `train`
    unchanged on this one.

    Parameters
    ----------
    verbose : int
        0: silent; 1: what the callback decides is logged. 2, which Stable-Baselines3 has as well, says no
        more in the callbacks of this package. `SettingsError` for what is none of them, nor a flag.

    Attributes
    ----------
    model : DistAsyncQLearning
        The agent that trains: its `q_table` and `visits` are those of the moment.
    num_timesteps : int
        Environment steps of all ranks in all calls of `train`, as of the last report.
    reported_timesteps : int
        When this rank begins to serve: up to which of `num_timesteps` there are reports that count.
    n_calls : int
        Calls of `_on_step`.
    progress : Progress or None
        The last report.
    result : dist_classicrl.TrainingResult or None
        What the training did, once it has ended.
    parent : BaseCallback or None
        The callback that calls this one, lists of callbacks apart; None: the training does. It is not kept
        for this one's sake.
    recorded : dict of str to (int, float)
        The step and the value of what callbacks recorded last, by name; one for a whole `CallbackList`.
    """

    #: Whether reports at the steps that ``_next_step`` asks for, and at the end, are enough. Where that is so
    #: of all callbacks, there are no others, and what is reported does not depend on time.
    only_own_steps = False

    def __init__(self, verbose: int = 0) -> None:
        self.verbose = checked_verbosity(verbose)
        self.model: Any = None
        self.num_timesteps = self.reported_timesteps = 0
        self.n_calls = 0
        self._end_is_said = False
        self.progress: Progress | None = None
        self.result: Outcome | None = None
        self._parent: weakref.ref[BaseCallback] | None = None  # a circle would keep the agent
        self.recorded: dict[str, tuple[int, float]] = {}

    if not TYPE_CHECKING:  # else every name would pass

        def __getattr__(self, name: str) -> Any:
            no_such = f"{type(self).__name__!r} object has no attribute {name!r}"
            if name in _OF_OTHERS:
                raise UnknownAttributeError(f"{no_such}: {_OF_OTHERS[name]}")
            if "n_calls" not in vars(self):
                raise UnknownAttributeError(f"{no_such}: let its __init__ call super().__init__() first.")
            raise UnknownAttributeError(f"{no_such}.")

    # For users to override

    def _init_callback(self) -> None:
        """Prepare; `model` is known."""

    def _on_training_start(self) -> None:
        """Act when this rank begins to serve; `num_timesteps` is where the training begins or goes on."""

    def _on_rollout_start(self) -> None:
        """Act when learning begins, or goes on after a report."""

    def _on_step(self) -> bool:
        """Look at a report. Return False to end the training in order, with fewer steps, on all ranks."""
        return True

    def _next_step(self, after: int) -> int | None:
        """Return the first step above `after`, as `num_timesteps` counts, at which there has to be a report.

        None: at none. It is asked for when the training begins and after each report. Where one process
        learns alone, the report comes exactly then in a compiled environment, and in one that is stepped at
        the end of the batch; in the reproducible mode at the end of the round; else when as many steps have
        come to the server. `num_timesteps` says how many those are.
        """
        return None

    def _on_rollout_end(self) -> None:
        """Act when a report is there, before any `_on_step`."""

    def _on_training_end(self) -> None:
        """Act when the training has ended; `result` is known."""

    def _on_close(self) -> None:
        """Release what this callback holds, such as open files, however the training ended."""

    def _on_worker_lost(self, event: dict[str, Any]) -> None:
        """Act when a rank is lost, or has left; see `TrainingResult.events`."""

    def _on_worker_joined(self, event: dict[str, Any]) -> None:
        """Act when a rank is back, or a new process has taken its place."""

    def _on_failover(self, event: dict[str, Any]) -> None:
        """Act when this rank has taken the place of a lost server."""

    def _on_checkpoint(self, steps: int, name: str) -> None:
        """Act when the checkpoint `name`, of global step `steps`, is on disk."""

    def _on_push(self, rank: int, steps: int, staleness: int, n_bytes: int) -> None:
        """Act on a push. It is called many times a second, and only where it is overridden.

        Parameters
        ----------
        rank : int
            Whose push it is.
        steps : int
            Steps that it contains.
        staleness : int
            Pushes of other workers that it did not know of.
        n_bytes : int
            Its size.
        """

    def record(self, name: str, value: float) -> None:
        """Record a number as of now, for `TensorBoardCallback` and the trackers to write.

        A `SettingsError` is raised if it is none, or the name is no text.
        """
        if not isinstance(name, str):
            raise SettingsError(f"record takes a name, as text, and a number, got {name!r} as the name.")
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError) as error:
            raise SettingsError(
                f"record({name!r}, ...) takes a number, got {value!r}. Give each number a name."
            ) from error
        self.recorded[name] = self.num_timesteps, number

    # What the training calls

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_parent": None}  # who calls a copy is known once it is called

    @property
    def parent(self) -> BaseCallback | None:
        """The callback that calls this one, lists of callbacks apart; None: the training does."""
        return None if self._parent is None else self._parent()

    @parent.setter
    def parent(self, parent: BaseCallback | None) -> None:
        self._parent = None if parent is None else weakref.ref(parent)

    @property
    def children(self) -> Sequence[BaseCallback]:
        """The callbacks that this one calls."""
        return ()

    @property
    def wants_pushes(self) -> bool:
        """Whether `on_push` is to be called: somebody overrides `_on_push`."""
        own = type(self)._on_push is not BaseCallback._on_push
        return own or any(child.wants_pushes for child in self.children)

    def next_step(self, after: int) -> int | None:
        """Return the first step above `after` at which this callback or a child asks for a report, if any.

        A `SettingsError` is raised if an answer is no such step.
        """
        asked = [self._own_next_step(after), *(child.next_step(after) for child in self.children)]
        return min((at for at in asked if at is not None), default=None)

    def _own_next_step(self, after: int) -> int | None:
        at = self._next_step(after)
        if at is None or is_whole(at) and at > after:
            return None if at is None else int(at)
        raise SettingsError(
            f"{type(self).__name__}._next_step({after}) must return a whole number above {after}, or None, "
            f"got {at!r}."
        )

    def init_callback(self, agent: Any) -> None:
        """Tell the agent that trains. Where one raises, those that were told before hear `on_close`."""
        self.model = agent
        for child in self.children:
            child.parent, child.recorded = self._caller, self.recorded
        self._init_callback()
        told = [self._on_close]
        try:
            for child in self.children:
                child.init_callback(agent)
                told.append(child.on_close)
        except BaseException:
            if (error := _first_error(told)) is not None:  # why they are closed is to be raised
                logger.error("A callback could not be closed.", exc_info=error)
            raise

    def on_training_start(self, progress: Progress, reported: int | None = None) -> None:
        """Tell that this rank serves from now on, how far the training is, and how far it was reported.

        By default all of it was.
        """
        self._take(progress)
        self._end_is_said = False
        self.reported_timesteps = self.num_timesteps if reported is None else reported
        self._on_training_start()
        for child in self.children:
            child.on_training_start(progress, reported)

    def on_rollout_start(self) -> None:
        """Tell that learning begins or goes on."""
        _tell(self, "on_rollout_start")

    def on_rollout_end(self, progress: Progress) -> None:
        """Give a report, before `on_step`."""
        self._take(progress)
        self._on_rollout_end()
        for child in self.children:
            child.on_rollout_end(progress)

    def on_step(self, progress: Progress) -> bool:
        """Give a report, and return whether the training is to go on."""
        self._take(progress)
        self.n_calls += 1
        # A callback that returns nothing lets the training go on.
        answer = self._on_step()
        try:
            return answer is None or bool(answer)
        except ValueError as error:  # an array of several numbers is neither
            raise SettingsError(
                f"{type(self).__name__}._on_step() must return True or False, or nothing, got {answer!r}."
            ) from error

    def on_training_end(self, result: Outcome) -> None:
        """Tell that the training has ended, and how."""
        self.result = result
        self._on_training_end()
        for child in self.children:
            child.on_training_end(result)

    def on_close(self) -> None:
        """Tell that the call of `train` is over, after `on_training_end` or after an exception.

        All are told, even if one of them raises; the first error is raised then.
        """
        error = _first_error([self._on_close, *(child.on_close for child in self.children)])
        if error is not None:
            raise error

    def _say_end(self, why: str) -> None:
        """Log why this ends the training, where it is to say what it decides.

        Once: there may be reports of what was on its way.
        """
        if self.verbose > 0 and not self._end_is_said:
            logging.getLogger(type(self).__module__).info(
                "Training ends after %s steps: %s.", f"{self.num_timesteps:,}", why
            )
        self._end_is_said = True

    def on_worker_lost(self, event: dict[str, Any]) -> None:
        """Tell that a rank is lost, or has left."""
        _tell(self, "on_worker_lost", event)

    def on_worker_joined(self, event: dict[str, Any]) -> None:
        """Tell that a rank is back, or replaced."""
        _tell(self, "on_worker_joined", event)

    def on_failover(self, event: dict[str, Any]) -> None:
        """Tell that this rank has taken the place of a lost server."""
        _tell(self, "on_failover", event)

    def on_checkpoint(self, steps: int, name: str) -> None:
        """Tell that a checkpoint is on disk."""
        _tell(self, "on_checkpoint", steps, name)

    def on_push(self, rank: int, steps: int, staleness: int, n_bytes: int) -> None:
        """Tell of a push, where `wants_pushes` says so."""
        self._on_push(rank, steps, staleness, n_bytes)
        for child in self.children:
            if child.wants_pushes:
                child.on_push(rank, steps, staleness, n_bytes)

    @property
    def _caller(self) -> BaseCallback | None:
        """What the children see as their parent."""
        return self

    def _take(self, progress: Progress) -> None:
        self.progress = progress
        self.num_timesteps = self.model.steps


def _tell(callback: BaseCallback, event: str, *what: Any) -> None:
    """Call a callback's own method for an event, and tell its children of it."""
    getattr(callback, f"_{event}")(*what)
    for child in callback.children:
        getattr(child, event)(*what)


class CallbackList(BaseCallback):
    """Several callbacks, called in order.

    Parameters
    ----------
    callbacks : sequence of BaseCallback or function
        The attribute of that name has them as a list of BaseCallback.

    Raises
    ------
    SettingsError
        If it is something else.
    """

    def __init__(self, callbacks: Sequence[CallbackLike]) -> None:
        super().__init__()
        if isinstance(callbacks, (str, Mapping)) or not is_row(callbacks):
            raise SettingsError(
                f"CallbackList takes a list of callbacks, got {callbacks!r}. Write CallbackList([...])."
            )
        self.callbacks = [_callback(one) for one in callbacks]

    @property
    def children(self) -> Sequence[BaseCallback]:
        """The callbacks."""
        return self.callbacks

    @property
    def needs_own_steps_alone(self) -> bool:
        """Whether there are callbacks, and all of them have `only_own_steps`."""
        return bool(self.callbacks) and all(
            child.needs_own_steps_alone if isinstance(child, CallbackList) else child.only_own_steps
            for child in self.callbacks
        )

    @property
    def _caller(self) -> BaseCallback | None:
        return self.parent

    def on_step(self, progress: Progress) -> bool:
        """Give a report to all callbacks, even if one of them ends the training."""
        super().on_step(progress)
        return all([child.on_step(progress) for child in self.callbacks])


class ConvertCallback(BaseCallback):
    """A function as a callback.

    Parameters
    ----------
    callback : callable
        Called at each report with a dict: "self" is the agent, "progress" the report, "num_timesteps" the
        steps of all ranks in all calls. The training ends in order where it returns False.
    verbose : int
        1: that it ends the training is logged.

    Raises
    ------
    SettingsError
        If it is no function of one argument.
    """

    def __init__(self, callback: Callable[[dict[str, Any]], Any], verbose: int = 0) -> None:
        super().__init__(verbose)
        if isinstance(callback, type):
            is_ours = issubclass(callback, BaseCallback)
            allowed = f"Write {callback.__name__}(...), with ()." if is_ours else _ALLOWED
            raise SettingsError(f"callbacks got the class {callback.__name__}. {allowed}")
        if not callable(callback):
            raise SettingsError(f"{_ALLOWED[:-1]}, got {callback!r}.")
        if not takes_one(callback):
            raise SettingsError(
                f"The callback {callback!r} must take one argument, a dict with self, progress and "
                "num_timesteps."
            )
        self.callback = callback

    def on_step(self, progress: Progress) -> bool:
        """Give a report, and return whether the training is to go on."""
        goes_on = super().on_step(progress)
        if not goes_on:
            self._say_end(f"the callback {self.callback!r} asks for it")
        return goes_on

    def _on_step(self) -> bool:
        return self.callback(
            {"self": self.model, "progress": self.progress, "num_timesteps": self.num_timesteps}
        )


CallbackLike = BaseCallback | Callable[[dict[str, Any]], Any]
CallbacksLike = CallbackLike | Sequence[CallbackLike] | None
"""What `train` takes as callbacks."""


def callback_list(callbacks: CallbacksLike) -> CallbackList:
    """Return what `train` takes for callbacks as a list: a callback, a function, a sequence of them, or None.

    Raises
    ------
    SettingsError
        If it is something else.
    """
    if isinstance(callbacks, CallbackList):
        return callbacks
    if callbacks is None:
        return CallbackList([])
    given: Any = callbacks if isinstance(callbacks, (list, tuple)) else [callbacks]
    return CallbackList(given)


def one_callback(callbacks: CallbacksLike) -> BaseCallback:
    """Return the same as one callback: itself where it is one."""
    return callbacks if isinstance(callbacks, BaseCallback) else callback_list(callbacks)


_ALLOWED = "A callback must be a BaseCallback, or a function of one argument, or a list of these."


def _first_error(closings: Sequence[Callable[[], None]]) -> BaseException | None:
    """Call all of these, even if one of them raises; return the first error."""
    first: BaseException | None = None
    for close in closings:
        try:
            close()
        except BaseException as error:
            first = first or error
    return first


def _callback(given: Any) -> BaseCallback:
    if not isinstance(given, BaseCallback):
        return ConvertCallback(given)
    try:
        takes_none = not signature(given.on_step, follow_wrapped=False).parameters
    except (TypeError, ValueError):  # Python does not know
        return given
    if takes_none:
        name = type(given).__name__
        raise SettingsError(f"{name}.on_step(self) is called _on_step here: write def _on_step(self).")
    return given
