"""`DistAsyncQLearning`: the class that scripts use, on one rank or on many."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from dist_classicrl import schedules
from dist_classicrl._random import fresh_seed
from dist_classicrl.checkpoint.plan import (
    DEFAULT_INTERVAL,
    DEFAULT_KEEP_LAST,
    DEFAULT_MODE,
    DEFAULT_SIGNALS,
    plan_of,
)
from dist_classicrl.comm.world import find_world, watch_for_unhandled_errors
from dist_classicrl.engines.outcome import TrainingResult
from dist_classicrl.engines.progress import Progress
from dist_classicrl.errors import EnvError, NotTrainedError, SettingsError
from dist_classicrl.evaluation.episodes import EvaluationResult
from dist_classicrl.model import model_file
from dist_classicrl.process.leave import LeaveWatch
from dist_classicrl.settings import Settings

logger = logging.getLogger(__name__)

# From here on and not only once there is an agent: a rank whose script fails before that would leave the
# others waiting in train(), and wait for them itself in MPI's finalisation.
watch_for_unhandled_errors()

_Self = TypeVar("_Self", bound="DistAsyncQLearning")


class DistAsyncQLearning:
    """Tabular Q-learning over MPI: one parameter server, any number of workers, or one process alone.

    The same script runs as ``python train.py`` and as ``mpirun -n 16 python train.py``. Rank 0 serves the
    table; every other rank learns in its own environments and pushes what it learned as affine maps.

    Parameters
    ----------
    state_size, action_size : int, optional
        Shape of the table. By default what the environment needs, and never less than that.
    learning_rate : float or schedule
        Step size in (0, 1], or a schedule of `dist_classicrl.schedules`: `Constant`, `Linear` and
        `Exponential` follow the global step, ``PerVisit(0.7)`` is n**-0.7 at the n-th visit of an entry and
        converges.
    discount_factor : float
        In [0, 1].
    epsilon : float or schedule
        Chance of a uniformly random action, in [0, 1]; a schedule of the global step.
    batch_size : int
        An update is this many transitions: environments that Gymnasium steps are learned from in such
        batches, and `sync_frequency` counts updates.
    sync_frequency : int or "auto"
        Updates of a worker between two pushes. "auto" keeps N k a (N workers, k visits of an entry per push,
        step size a) at or below 4 on the busiest entries while values still move, spending up to half of a
        worker's time on it, and talks for under 2 % of the time otherwise. In the reproducible mode "auto" is
        32.
    compression_threshold : float
        Maps that move a value by less stay with the worker and compose with later ones, seven times in eight.
        0: all go.
    async_updates : bool
        False: the reproducible mode, in which the table is the same bit for bit on any number of ranks.
    buffer_size : int
        Transitions that each worker keeps for replay; see `replay_ratio`.
    prefetch_factor : int
        Pushes that a worker may have in flight.
    communication_backend : str
        "mpi".
    algorithm : str
        "q_learning".
    dtype : str
        Of the table, "float64" or "float32". Maps and targets are float64 in either case.
    seed : int, optional
        Of all random streams. By default rank 0 draws one.
    comm : mpi4py.MPI.Comm, optional
        The ranks that train together. By default the world that the launcher made, or this process alone.
    logical_workers : int
        Of the reproducible mode: a constant of the experiment, not the number of ranks.
    replay_ratio : float
        Replayed updates per step, drawn uniformly from the last `buffer_size` transitions of the worker.
    n_envs : int
        Copies per worker of an environment that is stepped through Gymnasium and given as an id or a
        function.
    use_action_mask : bool, optional
        Whether action masks are followed; by default yes, except Taxi's, which Gymnasium does not enforce.
    allow_singletons : bool
        Train alone although the launcher promised several ranks.
    timeout : float
        Seconds that preparations may take, and without progress of a rank's main loop after which it counts
        as lost: more than one step of an environment can take.
    heartbeat_interval : float
        Seconds of silence after which a rank says that it is there, from a thread of its own.
    heartbeat_timeout : float
        Seconds of silence after which a rank counts as lost, at least 4 times `heartbeat_interval`. A server
        counts as lost after 1.5 times that. Where MPI itself reports a death nobody waits for so long.
    on_failure : str
        What the loss of a worker means. "continue": the others make its steps. "replace": a new process takes
        its place, where MPI can start one. "abort": the run ends with `RankLostError`, after a checkpoint.
    min_workers : int
        With fewer workers the run ends with `RankLostError`. 0: the server goes on alone if it must.
    max_replacements : int
        Most processes that one call of `train` starts where `on_failure` is "replace".
    on_error : str
        What an exception in a worker's environment means. "raise": it is raised on every rank. "exclude": it
        is logged, and costs that worker.

    Raises
    ------
    SettingsError
        If a setting is not allowed.
    """

    def __init__(
        self,
        state_size: int | None = None,
        action_size: int | None = None,
        learning_rate: Any = 0.1,
        discount_factor: float = 0.99,
        epsilon: Any = 0.1,
        batch_size: int = 32,
        sync_frequency: int | str = "auto",
        compression_threshold: float = 0.0,
        async_updates: bool = True,
        buffer_size: int = 10_000,
        prefetch_factor: int = 2,
        communication_backend: str = "mpi",
        algorithm: str = "q_learning",
        dtype: str = "float64",
        seed: int | None = None,
        comm: Any = None,
        *,
        logical_workers: int = 16,
        replay_ratio: float = 0.0,
        n_envs: int = 16,
        use_action_mask: bool | None = None,
        allow_singletons: bool = False,
        timeout: float = 600.0,
        heartbeat_interval: float = 1.0,
        heartbeat_timeout: float = 30.0,
        on_failure: str = "continue",
        min_workers: int = 0,
        max_replacements: int = 3,
        on_error: str = "raise",
    ) -> None:
        self._settings = Settings(
            state_size=state_size,
            action_size=action_size,
            learning_rate=learning_rate,
            discount_factor=discount_factor,
            epsilon=epsilon,
            batch_size=batch_size,
            sync_frequency=sync_frequency,
            compression_threshold=compression_threshold,
            async_updates=async_updates,
            buffer_size=buffer_size,
            prefetch_factor=prefetch_factor,
            communication_backend=communication_backend,
            algorithm=algorithm,
            dtype=dtype,
            seed=seed,
            logical_workers=logical_workers,
            replay_ratio=replay_ratio,
            n_envs=n_envs,
            use_action_mask=use_action_mask,
            allow_singletons=allow_singletons,
            timeout=timeout,
            heartbeat_interval=heartbeat_interval,
            heartbeat_timeout=heartbeat_timeout,
            on_failure=on_failure,
            min_workers=min_workers,
            max_replacements=max_replacements,
            on_error=on_error,
        )
        self._comm = comm
        self._leaving = LeaveWatch()
        self._is_training = False
        self._seed = seed
        self._steps = 0
        self._requested = 0  # steps asked for in the calls of train that have ended
        self._finished: list[dict[str, Any]] = []  # begin, end and result of calls of train
        self._places: dict[str, Any] = {}  # where it is saved, by checkpoint_dir
        self._told_places: dict[str, dict[str, Any]] = {}  # where another rank saves it, likewise
        self._pending: Any = None  # where a checkpoint said that learning goes on
        self._taken: tuple[np.ndarray, np.ndarray] | None = None  # its table, until learning goes on
        self._behind: Any = (
            None  # checksum of a table that is older than rank 0's because training did not end
        )
        self._q: np.ndarray | None = None
        self._visits: np.ndarray | None = None
        self._n_actions: int | None = None  # of the environment, where the table may have more
        self._legal: np.ndarray | None = None  # of a compiled environment
        self._observations: Any = None
        self._actions: Any = None
        if state_size is not None and action_size is not None:
            self._allocate(self._settings.state_size or 0, self._settings.action_size or 0)

    # State that can be read and set between calls of train

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        return self._settings

    @property
    def seed(self) -> int | None:
        """The seed of all random numbers: that of the settings, or what was drawn; None before training."""
        return self._seed

    @property
    def rank(self) -> int:
        """Rank of this process among those that train together.

        0 is the server, and 0 where a process is alone. Where another rank had to take the server's place, it
        is 0 from then on, and the one that was has its number. A process that was started to replace a lost
        rank has a number of its own.

        Raises
        ------
        SingletonError
            If the launcher promised several ranks and this process is alone.
        """
        from dist_classicrl.membership.group import serving_rank
        from dist_classicrl.process.parent import find_parent

        parent = find_parent()
        if parent is not None:
            from dist_classicrl.agent.replacements import visit_of

            return visit_of(parent).rank
        world = find_world(self._comm, self._settings.allow_singletons)
        if world is None:
            return 0
        own, server = world.Get_rank(), serving_rank(world)
        return {server: 0, 0: server}.get(own, own)

    @property
    def steps(self) -> int:
        """Environment steps learned so far, by all ranks, in all calls of `train`: where schedules stand."""
        return self._steps

    @property
    def q_table(self) -> np.ndarray:
        """The action values, ndarray of shape (states, actions), which may be written to.

        Raises
        ------
        NotTrainedError
            If the shape is not known yet: neither given, nor told by an environment.
        """
        return self._table()[0]

    @q_table.setter
    def q_table(self, values: Any) -> None:
        given = np.asarray(values)
        if given.ndim != 2 or (self._q is not None and given.shape != self._q.shape):
            allowed = "two dimensions" if self._q is None else f"the shape {self._q.shape}"
            raise SettingsError(
                f"q_table must have {allowed} (states, actions), got an array of shape {given.shape}."
            )
        if given.dtype.kind not in "fiu" or not np.isfinite(given).all():
            raise SettingsError(
                f"q_table must hold finite numbers, got {given.dtype} with NaN, infinity or no numbers."
            )
        if self._q is None:
            settings = self._settings
            wanted = (settings.state_size or given.shape[0], settings.action_size or given.shape[1])
            if given.shape != wanted:
                raise SettingsError(
                    f"q_table has the shape {given.shape}, but state_size={settings.state_size} and "
                    f"action_size={settings.action_size} ask for {wanted}."
                )
            self._allocate(*given.shape)
        self.q_table[:] = given

    @property
    def visits(self) -> np.ndarray:
        """How often each state-action pair was visited, ndarray(int64) of shape (states, actions)."""
        return self._table()[1]

    @property
    def epsilon(self) -> float:
        """The current chance of a random action; set it to a number or a schedule."""
        return self._settings.epsilon.at(self._steps)

    @epsilon.setter
    def epsilon(self, value: Any) -> None:
        self._settings = dataclasses.replace(self._settings, epsilon=value)

    @property
    def learning_rate(self) -> Any:
        """The current step size, or the `PerVisit` schedule; set it to a number or a schedule."""
        schedule = self._settings.learning_rate
        return schedule if isinstance(schedule, schedules.PerVisit) else schedule.at(self._steps)

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        self._settings = dataclasses.replace(self._settings, learning_rate=value)

    def _table(self) -> tuple[np.ndarray, np.ndarray]:
        if self._q is None or self._visits is None:
            raise NotTrainedError(
                "The table has no shape yet. Call train(env=...), or give state_size and action_size to the "
                "constructor."
            )
        return self._q, self._visits

    def _allocate(self, states: int, actions: int) -> None:
        try:
            self._q = np.zeros((states, actions), self._settings.dtype)
            self._visits = np.zeros((states, actions), np.int64)
        except (MemoryError, ValueError) as error:
            size = states * actions * (np.dtype(self._settings.dtype).itemsize + 8)
            raise SettingsError(
                f"A table of {states} states and {actions} actions needs {size / 2**30:.3g} GiB with its "
                "visits, which cannot be had. Leave state_size and action_size out to take what the "
                "environment needs."
            ) from error

    # Training

    def train(
        self,
        env: Any,
        steps: int | None = None,
        total_steps: int | None = None,
        *,
        progress: Callable[[Progress], None] | None = None,
        progress_interval: float = 5.0,
        checkpoint_dir: str | os.PathLike[str] | None = None,
        checkpoint_interval: int | str = DEFAULT_INTERVAL,
        keep_last: int = DEFAULT_KEEP_LAST,
        keep_every: int | None = None,
        resume: str | bool = "auto",
        strict: bool = True,
        time_limit: float | str | None = None,
        stop_signals: Iterable[int | str] = DEFAULT_SIGNALS,
        checkpoint_mode: int = DEFAULT_MODE,
        leave_signals: Iterable[int | str] = (),
        callbacks: Any = None,
    ) -> TrainingResult:
        """Learn for a number of environment steps; every rank of the communicator calls this.

        Afterwards `q_table` is the same array of numbers on every rank. Called again, it goes on where it
        stopped, with new episodes.

        Parameters
        ----------
        env : str, gymnasium.Env, gymnasium.vector.VectorEnv, callable, TabularMDP or CompiledSimulator
            The same on every rank: a Gymnasium id, an environment, a function that makes one, or a model.
            What is known to be the same process in compiled code runs there.
        steps : int
            This rank's share: all ranks together make the sum of their shares, whoever is fast.
        total_steps : int
            The sum itself, the same on every rank. Exactly one of the two is given.
        progress : callable, optional
            Called on rank 0 with a `Progress` every `progress_interval` seconds, at each checkpoint, and at
            the end.
        progress_interval : float
            In seconds. The server waits while the callback runs, so it should be quick.
        checkpoint_dir : str or path, optional
            Folder, or URL that fsspec knows, in which the run is saved while it goes on; each agent of a
            script has a subfolder of its own there. Rank 0's counts. By default nothing is saved.
        checkpoint_interval : int or str
            Steps, or a time such as "30s", between checkpoints. The next one never begins before the last one
            is on disk.
        keep_last : int
            How many of the newest are kept.
        keep_every : int, optional
            Besides, keep every so many-th for good.
        resume : "auto", "must" or "never"
            "auto": go on from the newest good checkpoint, or begin afresh if there is none; "must" (True)
            refuses to begin afresh; "never" (False) begins afresh and leaves older checkpoints alone. It
            matters when an agent first trains with a folder; later calls go on from what the agent holds.
        strict : bool
            Whether a checkpoint of another algorithm, environment, table or seed is refused. False: what fits
            of its table is taken over, with its steps.
        time_limit : float or str, optional
            Seconds, or a time such as "55m" or "1:30:00", after which this call has stopped. By default what
            SLURM leaves to the job, or none.
        stop_signals : iterable of str or int
            Signals that stop the training in order, whichever rank hears them, besides Ctrl-C. A second one
            ends the process at once.
        checkpoint_mode : int
            Permissions of the files; folders get the same, and the right to enter. Not for URLs.
        leave_signals : iterable of str or int
            Signals on which a worker leaves, as after `leave`. By default none.
        callbacks : BaseCallback, callable, or sequence of them, optional
            What `dist_classicrl.callbacks` has, or of its kind: called on rank 0, or the rank that took its
            place, whenever `progress` is, and when something happens. A callback can end the run early.

        Returns
        -------
        TrainingResult
            The same on every rank.

        Raises
        ------
        SettingsError
            If the arguments or the size of the table do not fit.
        EnvError
            If the environment cannot be learned in.
        SingletonError
            If the launcher promised several ranks and this process is alone.
        RankMismatchError
            If ranks have different settings or environments.
        RemoteRankError
            If another rank raised an exception, which is raised there as it is.
        RankTimeoutError
            If not all ranks came within `timeout` seconds before training began.
        RankLostError
            If so many ranks are lost that the run ends, by `on_failure` or `min_workers`.
        CutOffError
            If this rank hears too few of the others, who may go on without it, or they have ended without it.
        WorkerLeft
            On a rank that was asked to leave. It is a `SystemExit` with code 0.
        CheckpointError
            If there are checkpoints and none can be used, or the folder cannot.
        CheckpointMismatchError
            If the checkpoint is of something else than this agent is to learn.
        CheckpointFencedError
            If another process has taken over the folder, for instance the same job started twice.
        TrainingStopped
            On all ranks, after a stop signal or at a time limit, once a checkpoint is on disk. It is a
            `SystemExit` with code 75, or 130 after Ctrl-C: the same command goes on from there.

        Notes
        -----
        Checkpoints count the steps asked for since the agent was made, in all calls: a script that is started
        again returns at once from the calls whose steps have all been made, with the results that they had,
        and goes on in the one that was not finished.

        After an exception one process alone keeps what it had learned, and `steps` says how much that is. On
        many ranks the table is what the server had by then on rank 0 and as before on the others, and `steps`
        is as before; rank 0's table counts at the next call.
        """
        from dist_classicrl.agent.request import Request
        from dist_classicrl.agent.training import train

        make_plan = partial(
            plan_of,
            checkpoint_dir,
            checkpoint_interval,
            keep_last,
            keep_every,
            resume,
            strict,
            time_limit,
            stop_signals,
            checkpoint_mode,
        )
        return train(
            self,
            Request(
                env, steps, total_steps, progress, progress_interval, make_plan, leave_signals, callbacks
            ),
        )

    def leave(self, why: str = "leave() was called") -> None:
        """Let this worker leave the training in good order, from another thread or a callback.

        It pushes what it has learned, others make the steps that it had still to make, and its `train` raises
        `WorkerLeft`, a `SystemExit` with code 0. A server, and a process that trains alone, cannot leave:
        they take no note, and are stopped by a stop signal instead.
        """
        self._leaving.ask(why)

    # Using what was learned

    def evaluate(
        self, env: Any, episodes: int = 100, seed: int | None = None, max_steps: int = 1_000_000
    ) -> EvaluationResult:
        """Play the greedy policy, ties broken at random. Local: other ranks take no part.

        Parameters
        ----------
        env
            As in `train`.
        episodes : int
        seed : int, optional
            By default the agent's.
        max_steps : int
            An episode that is longer is cut off there, for environments without a time limit.
        """
        from dist_classicrl.evaluation.episodes import evaluate

        seed = self._seed if seed is None else seed
        return evaluate(
            env, self.q_table, self._settings, episodes, fresh_seed() if seed is None else seed, max_steps
        )

    def predict(self, observation: Any, action_mask: Any = None) -> Any:
        """Return the greedy action for `observation`, the first of several that are equally good.

        Parameters
        ----------
        observation
            An observation of the environment that was trained in, or an integer state.
        action_mask : array_like of bool, shape (actions of the environment,), optional
            Legal actions. By default what the observation says, if it is a dict with an `action_mask`, or
            else what is known of a compiled environment; otherwise all.

        Raises
        ------
        SettingsError
            If the observation is no state of the table, or the mask does not fit.
        OutsideSpaceError
            If the observation is not in the environment's space.
        """
        state = observation if self._observations is None else self._observations.encode(observation)
        values = self.q_table
        if not isinstance(state, (int, np.integer)) or not 0 <= state < values.shape[0]:
            raise SettingsError(
                f"observation must be a state from 0 to {values.shape[0] - 1}, got {observation!r}. "
                "Observations of another kind can be given after train(env=...) or load_model(path, "
                "env=...), which tell how to number them."
            )
        row = values[state, : self._n_actions].astype(np.float64)
        if action_mask is None and isinstance(observation, dict):
            action_mask = observation.get("action_mask")
        if action_mask is None and self._legal is not None and state < len(self._legal):
            # A state in which a game has ended has no legal action, and any answer will do.
            action_mask = self._legal[state] if self._legal[state].any() else None
        if action_mask is not None:
            mask = np.asarray(action_mask)
            if mask.shape != row.shape or not mask.any():
                raise SettingsError(
                    f"action_mask must have shape {row.shape} and allow an action, got shape {mask.shape} "
                    f"with {int(mask.sum())}."
                )
            row[~mask.astype(bool)] = -np.inf
        action = int(np.argmax(row))
        return action if self._actions is None else self._actions.decode(action)

    def save_model(self, path: str | os.PathLike[str]) -> Path:
        """Write table, visits and settings to exactly `path`, with whatever suffix.

        The file is written whole or not at all, and holds no pickle.
        """
        q, visits = self._table()
        model = model_file.SavedModel(self._settings, q, visits, self._steps, self._n_actions, self._legal)
        return model_file.write(path, model)

    @classmethod
    def load_model(
        cls: type[_Self], path: str | os.PathLike[str], comm: Any = None, env: Any = None
    ) -> _Self:
        """Return the agent that `save_model` wrote to `path`, or that checkpoints there are of.

        It is made by the class on which this is called, with all settings and `comm` as keyword arguments.

        Parameters
        ----------
        path : str or path
            A model file; or a folder or URL, for the agent as of the newest good checkpoint there: a
            `checkpoint_dir` of `train` that holds one agent, an agent's subfolder, or one checkpoint.
        comm : mpi4py.MPI.Comm, optional
            As in the constructor.
        env : optional
            The environment that was trained in, as in `train`, so that `predict` can take its observations.
            Not needed where they are integers from 0 on.

        Raises
        ------
        FileNotFoundError
            If there is no such file or folder.
        ModelFileError
            If it is truncated, damaged, or anything but a model file.
        CheckpointError
            If there is no checkpoint in the folder, none that can be used, or more than one agent.
        EnvError
            If `env` is larger than the table.
        """
        if "://" in os.fspath(path) or os.path.isdir(path):
            from dist_classicrl.agent.saved_runs import saved_model_of

            saved = saved_model_of(path)
        else:
            saved = model_file.read(path)
        arguments = {
            field.name: getattr(saved.settings, field.name) for field in dataclasses.fields(Settings)
        }
        agent = cls(**arguments, comm=comm)
        agent._q = saved.q_table
        agent._visits = saved.visits
        agent._steps = agent._requested = saved.steps
        agent._n_actions = saved.actions
        agent._legal = saved.legal
        if env is not None:
            from dist_classicrl.agent.agent_run import get_to_know

            get_to_know(agent, env).close()
        return agent

    def _check_size(self, n_states: int, n_actions: int) -> None:
        """Make the table if there is none, and check that an environment of this size fits."""
        if self._q is None:
            self._allocate(self._settings.state_size or n_states, self._settings.action_size or n_actions)
        states, actions = self.q_table.shape
        if states < n_states or actions < n_actions:
            raise EnvError(
                f"The environment needs a table of {n_states} states and {n_actions} actions, but this one "
                f"has {states} and {actions}. Leave state_size and action_size out, or give at least "
                f"state_size={n_states}, action_size={n_actions}."
            )
        self._n_actions = n_actions
