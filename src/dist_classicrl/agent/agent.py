"""`DistAsyncQLearning`: the class that scripts use, on one rank or on many."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from dist_classicrl.agent.result import TrainingResult
from dist_classicrl.comm.world import watch_for_unhandled_errors
from dist_classicrl.engines.progress import Progress
from dist_classicrl.evaluation.episodes import EvaluationResult, evaluate
from dist_classicrl.model import model_file
from dist_classicrl.model.agent_state import AgentState
from dist_classicrl.schedules import PerVisit
from dist_classicrl.settings import Settings

if TYPE_CHECKING:
    from dist_classicrl.engines.engine import Engine

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
        converges. A rule may have a default of its own, here and for `epsilon`.
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
    algorithm : str or NamedTuple
        "q_learning", or a rule of your own, by its name or its hyper-parameters; docs/learning-rules.md has
        one.
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
        learning_rate: Any = Settings.learning_rate,
        discount_factor: float = 0.99,
        epsilon: Any = Settings.epsilon,
        batch_size: int = 32,
        sync_frequency: int | str = "auto",
        compression_threshold: float = 0.0,
        async_updates: bool = True,
        buffer_size: int = 10_000,
        prefetch_factor: int = 2,
        communication_backend: str = "mpi",
        algorithm: Any = "q_learning",
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
        given = locals()
        settings = Settings(**{each.name: given[each.name] for each in fields(Settings)})
        self._state = AgentState(settings)
        self._comm = comm

    # State that can be read and set between calls of train

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        return self._state.settings

    @property
    def seed(self) -> int | None:
        """The seed of all random numbers: that of the settings, or what was drawn; None before training."""
        return self._state.seed

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
        from dist_classicrl.agent.training import rank_of

        return rank_of(self._comm, self._state.settings)

    @property
    def steps(self) -> int:
        """Environment steps learned so far, by all ranks, in all calls of `train`: where schedules stand."""
        return self._state.steps

    @property
    def q_table(self) -> np.ndarray:
        """The action values, ndarray of shape (states, actions), which may be written to.

        Of a rule that learns several tables it is their mean, which is read-only; what is assigned to it goes
        into each of them.

        Raises
        ------
        NotTrainedError
            If the shape is not known yet: neither given, nor told by an environment.
        """
        return self._state.q_table

    @q_table.setter
    def q_table(self, values: Any) -> None:
        self._state.set_values(values)

    @property
    def visits(self) -> np.ndarray:
        """How often each state-action pair was visited, ndarray(int64) of shape (states, actions)."""
        return self._state.visits

    @property
    def epsilon(self) -> float:
        """The current chance of a random action; set it to a number or a schedule."""
        return self._state.settings.epsilon.at(self._state.steps)

    @epsilon.setter
    def epsilon(self, value: Any) -> None:
        self._state.change(epsilon=value)

    @property
    def learning_rate(self) -> Any:
        """The current step size, or the `PerVisit` schedule; set it to a number or a schedule."""
        schedule = self._state.settings.learning_rate
        return schedule if isinstance(schedule, PerVisit) else schedule.at(self._state.steps)

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        self._state.change(learning_rate=value)

    # Training

    def train(
        self,
        env: Any,
        steps: int | None = None,
        total_steps: int | None = None,
        *,
        progress: Callable[[Progress], None] | None = None,
        progress_interval: float = 5.0,
        progress_bar: bool | None = None,
        verbose: bool | int = False,
        checkpoint_dir: str | os.PathLike[str] | None = None,
        checkpoint_interval: int | str = "30s",
        keep_last: int = 3,
        keep_every: int | None = None,
        resume: str | bool = "auto",
        strict: bool = True,
        time_limit: float | str | None = None,
        stop_signals: Iterable[int | str] = ("SIGUSR1", "SIGUSR2", "SIGTERM"),
        checkpoint_mode: int = 0o600,
        leave_signals: Iterable[int | str] = (),
        callbacks: Any = None,
        placement: str | Engine = "auto",
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
        progress_bar : bool, optional
            Whether the rank that serves shows how far it is. By default there is a bar on a terminal and in a
            notebook, and nothing elsewhere: in files, pipes, batch jobs, and under a launcher. True: there, a
            line every 10 seconds on standard error.
        verbose : bool
            Say on standard error what is trained and what came of it, and show a line for each worker below
            the bar.
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
        placement : "auto", "replicated" or Engine
            Where the table is and how the training is spread, the same on all ranks. With "replicated" every
            rank has the whole table: a process alone learns by itself, and several ranks learn with a server,
            or in rounds in the reproducible mode. "auto" is that, too. An engine of your own, as
            `dist_classicrl.engines.engine` describes it, is used as it is.

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
        TrainingInterrupted
            After Ctrl-C, also where nothing is saved and this process trains alone. It is a `TrainingStopped`
            and a `KeyboardInterrupt`; at a prompt and in a notebook the latter alone is raised.

        Notes
        -----
        Checkpoints count the steps asked for since the agent was made, in all calls: a script that is started
        again returns at once from the calls whose steps have all been made, with the results that they had,
        and goes on in the one that was not finished.

        After an exception one process alone keeps what it had learned, and `steps` says how much that is. On
        many ranks the table is what the server had by then on rank 0 and as before on the others, and `steps`
        is as before; rank 0's table counts at the next call.
        """
        given = locals()
        from dist_classicrl.agent.request import Request
        from dist_classicrl.agent.training import train

        return train(self, self._state, Request.of(given), self._comm)

    def leave(self, why: str = "leave() was called") -> None:
        """Let this worker leave the training in good order, from another thread or a callback.

        It pushes what it has learned, others make the steps that it had still to make, and its `train` raises
        `WorkerLeft`, a `SystemExit` with code 0. A server, and a process that trains alone, cannot leave:
        they take no note, and are stopped by a stop signal instead.
        """
        self._state.leaving.ask(why)

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
        return evaluate(env, self._state, episodes, seed, max_steps)

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
        return self._state.greedy_action(observation, action_mask)

    def save_model(self, path: str | os.PathLike[str]) -> Path:
        """Write table, visits and settings to exactly `path`, with whatever suffix.

        The file is written whole or not at all, and holds no pickle.
        """
        return model_file.write(path, self._state.to_model())

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
        agent = cls(**saved.settings.arguments(), comm=comm)
        agent._state.take_model(saved)
        if env is not None:
            agent._state.get_to_know(env).close()
        return agent


def state_of(agent: DistAsyncQLearning) -> AgentState:
    """Return what an agent holds, for the other parts of this library."""
    return agent._state
