"""`DistAsyncQLearning`: the class that scripts use, on one rank or on many."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from dist_classicrl._arguments import (
    OURS,
    means_another,
    named_arguments,
    read_only_attribute,
    unknown_attribute,
)
from dist_classicrl.agent.class_methods import OfTheClass, OtherNames
from dist_classicrl.agent.learned_table import LearnedTable
from dist_classicrl.agent.result import TrainingResult
from dist_classicrl.checks import checked_path
from dist_classicrl.comm.world import checked_comm, watch_for_unhandled_errors
from dist_classicrl.engines.progress import Progress
from dist_classicrl.model import model_file
from dist_classicrl.model.agent_state import AgentState
from dist_classicrl.model.fit import check_made_for, get_to_know
from dist_classicrl.schedules import Constant, Exponential, Linear, Piecewise
from dist_classicrl.schedules.kinds import Schedule
from dist_classicrl.settings import Settings, read_back

if TYPE_CHECKING:
    import numpy.typing as npt
    from mpi4py import MPI

    from dist_classicrl.callbacks.base import CallbacksLike
    from dist_classicrl.data.result import BatchResult
    from dist_classicrl.engines.engine import Engine
    from dist_classicrl.environments.resolve import EnvLike

# From here on and not only once there is an agent: a rank whose script fails before that would leave the
# others waiting in train(), and wait for them itself in MPI's finalisation.
watch_for_unhandled_errors()

_Self = TypeVar("_Self", bound="DistAsyncQLearning")

#: What is given when an agent is made.
_GIVEN = {each.name for each in fields(Settings)}


class DistAsyncQLearning(LearnedTable, metaclass=OtherNames):
    """Tabular Q-learning over MPI: one parameter server, any number of workers, or one process alone.

    The same script runs as ``python train.py`` and as ``mpirun -n 16 python train.py``. Rank 0 serves the
    table; every other rank learns in its own environments and pushes what it learned as affine maps.

    Parameters
    ----------
    state_size, action_size : int, optional
        Shape of the table. By default what the environment needs, and never less than that.
    max_states : int, optional
        Most states of the table. Where the states of a game are keys, which nobody has counted, training ends
        with `StateLimitError` when one more comes. By default there are as many as memory has room for. Where
        a Gymnasium environment that is stepped has more observations than that, these are keys.
    learning_rate : float or schedule
        Step size in (0, 1], or a schedule of `dist_classicrl.schedules`: `Constant`, `Linear`,
        `Exponential` and `Piecewise` follow the global step, ``PerVisit(0.7)`` is n**-0.7 at the n-th visit
        of an entry and converges. By default it is about 0.5 for the first hundred visits and falls like
        n**-0.7 from there on, so that values come through quickly over many steps; where returns are short
        and noisy, as in a game of cards or a bandit, ``PerVisit(1.0)`` or ``PerVisit(0.7)`` is much better. A
        rule may have a default of its own, here and for `epsilon`.
    discount_factor : float
        In [0, 1].
    epsilon : float or schedule
        Chance of a uniformly random action, in [0, 1]; a schedule of the global step. By default it falls
        from 1 to 0.1 over the first half of the first call of `train`, however long that is, and stays there
        in each later call, also where the first was ended early.
    batch_size : int
        An update is this many transitions: environments that Gymnasium steps are learned from in such
        batches, and `sync_frequency` counts updates.
    sync_frequency : int or "auto"
        Updates of a worker between two pushes. "auto" keeps N k a (N workers, k visits of an entry per push,
        step size a) at or below 4 on the busiest entries while values still move, spending up to half of a
        worker's time on it, and talks for under 2 % of the time otherwise. In the reproducible mode
        it is the length of a round; "auto" is 32 while values move, and more as they settle, where the
        environment is compiled.
    compression_threshold : float
        Maps that move a value by less stay with the worker and compose with later ones, seven times in eight.
        0: all go. Where a worker is lost, what waits there is not learned again, though its steps count.
    async_updates : bool
        False: the reproducible mode, in which the table is the same bit for bit on any number of ranks.
    buffer_size : int
        Transitions that each worker keeps for replay; see `replay_ratio`.
    prefetch_factor : int
        Pushes that a worker may have in flight.
    communication_backend : str
        "mpi".
    algorithm : str or NamedTuple
        A learning rule: "q_learning", or another one of docs/rules.md by its name, or its hyper-parameters,
        such as ``DifferentialQLearning(eta=0.5)`` of `dist_classicrl.rules`; or a rule of your own, as
        docs/learning-rules.md has one.
    behavior : str, NamedTuple or array_like of float, shape (states, actions)
        How actions are chosen while learning: "epsilon_greedy", "epsilon_ladder", "boltzmann" or "ucb", or
        with hyper-parameters of its own an object such as ``Boltzmann(temperature=0.5)`` of
        `dist_classicrl.rules`; or the chances of actions of a policy that stays as it is.
    exploring_starts : bool
        Episodes of the training begin in each state that one can come to from where the environment begins,
        and act in, all equally likely: in a `TabularMDP`, and what is known to be one. The first action is
        chosen as all are.
    initial_value : float
        Of all entries of a new table. More than can be collected lets everything be tried: values can only
        fall then.
    compression : str, NamedTuple or None
        How pushes and refreshes go in fewer bytes. None or "none", or "threshold" where there is a
        `compression_threshold`: as they are. "delta": in shorter forms of numbers, and "lossless": by
        Zstandard besides (extra `compression`), each where messages get smaller by a tenth at least, with no
        bit of the table changed. Likewise as "delta", "top_k" or ``TopK(share=0.1)`` of
        `dist_classicrl.compression`: the maps that move values most go, and the others stay with the worker
        and compose with later ones; "quantized" or ``Quantized(bits=16)``: shifts of maps are rounded, and
        what is lost goes with the next push. At the end of a run all has gone. Where a worker is lost with
        what "top_k" holds back, of at most `most_waiting` entries, that is not learned again, though its
        steps count as made: docs/fault-tolerance.md says how many they can be. "auto": the link between hosts
        is measured, and what changes no bit is taken where the link is slow; on one host "none".
    topology : str
        "flat": all workers push to rank 0. "tree": on each other host with three ranks or more one of them
        does not learn, but composes the maps of the others, and pushes them as one. Nothing of them changes
        by that, and a fraction of the bytes goes between hosts. "auto": a tree where workers on other hosts
        may keep the server's link busy for over a tenth of the time, by the size of the table and the speed
        of the link, which is measured; the log says why. "decentralized": all ranks learn, rank 0 too, and
        exchange what they learned in rounds, while they learn on; see docs/topologies.md.
    exchange_pattern : str
        Who sends what to whom in such a round: "doubling", "ring", "tree" or "two_level"; "auto" takes
        the last of these, which on one host is a tree.
    tree_group_size : int, optional
        Of a tree: as many ranks, by their numbers, make a group with a server of its own, and groups are
        grouped likewise; at least 3. By default the ranks of a host are a group.
    max_staleness : int, optional
        How many versions of the table, each of which is a push of another worker, a worker may be behind and
        learn on. One that is further behind, or may be by now for all that it knows, waits for the server's
        answer, which brings it up to date. By default nobody waits.
    merging : str
        How the server puts a push into the table where others pushed what its worker did not know of.
        "affine": its maps are applied to what is there, within their share. "order_free": targets get
        weights as if the maps had come in no order at all. "staleness_weighted": small step sizes are divided
        by 1 and the push's staleness, larger ones by less, and those of 1 count in full. "reject_stale": what
        is more than `max_staleness` behind is refused, and nobody waits: its steps count as made, and what
        was learned in them, visits too, is dropped.
    dtype : str
        Of the table, "float64" or "float32". Maps and targets are float64 in either case.
    placement : str
        Where the table is, in each call of `train` that does not say so itself; see there.
    device : str
        Where this rank learns. "cpu": on a core. "cuda": on a CUDA card, each rank on its own, with many
        walkers at a time; needs the extra `gpu`. "auto": on a card where there is one and the problem suits
        it, which the log says with the reason. Ranks may differ in it, but not in the reproducible mode. See
        docs/cards.md.
    seed : int, optional
        Of all random streams. By default rank 0 draws one.
    comm : mpi4py.MPI.Comm, optional
        The ranks that train together. By default the world that the launcher made, or this process alone.
        For each communicator that it trains over this library keeps a duplicate until MPI ends, and MPI has a
        limited number, MPICH about 2,000: make one, and give it to all agents of these ranks, not
        ``comm.Dup()`` to each call.
    logical_workers : int
        Of the reproducible mode: a constant of the experiment, not the number of ranks; below 4096.
    replay_ratio : float
        Replayed updates per step, drawn uniformly from the last `buffer_size` transitions of the worker.
    n_envs : int
        Copies per worker of an environment that is stepped through Gymnasium and given as an id or a
        function; below 4096.
    use_action_mask : bool, optional
        Whether action masks are followed; by default yes, except Taxi's, which Gymnasium does not enforce.
    allow_singletons : bool
        Train alone although the launcher promised several ranks.
    timeout : float
        Seconds that preparations may take, and without progress of a rank's main loop after which it counts
        as lost: more than one step of all `n_envs` environments of a rank, one after the other, can take.
    heartbeat_interval : float
        Seconds of silence after which a rank says that it is there, from a thread of its own.
    heartbeat_timeout : float
        Seconds of silence after which a rank counts as lost, at least 4 times `heartbeat_interval`. A server
        counts as lost after 1.5 times that. Where MPI itself reports a death nobody waits for so long.
    on_failure : str
        What the loss of a worker means. "continue": the others make its steps. "replace": a new process takes
        its place, where MPI can start one. "abort": the run ends with `RankLostError`, after a checkpoint.
    min_workers : int
        With fewer workers no run begins, and one that a loss leaves with fewer ends with `RankLostError`. 0:
        the server goes on alone if it must. Where the topology is decentralized each rank is a worker.
    max_replacements : int
        Most processes that one call of `train` starts where `on_failure` is "replace".
    on_error : str
        What an exception in a worker's environment, or a call of sys.exit, means. "raise": it is raised on
        every rank. "exclude": it is logged, and costs that worker.

    Raises
    ------
    SettingsError
        If a setting is not allowed.
    """

    @named_arguments("DistAsyncQLearning")
    def __init__(
        self,
        state_size: int | None = None,
        action_size: int | None = None,
        learning_rate: float | Schedule = Settings.learning_rate,
        discount_factor: float = 0.99,
        epsilon: float | Constant | Linear | Exponential | Piecewise = Settings.epsilon,
        batch_size: int = 32,
        sync_frequency: int | Literal["auto"] = "auto",
        compression_threshold: float = 0.0,
        async_updates: bool = True,
        buffer_size: int = 10_000,
        prefetch_factor: int = 2,
        communication_backend: Literal["mpi"] = "mpi",
        algorithm: str | tuple[Any, ...] | Mapping[str, Any] = "q_learning",
        dtype: npt.DTypeLike = "float64",
        seed: int | None = None,
        comm: MPI.Comm | None = None,
        *,
        placement: Literal["auto", "replicated", "sharded"] = "auto",
        device: Literal["cpu", "cuda", "auto"] = "cpu",
        behavior: str | tuple[Any, ...] | Mapping[str, Any] | npt.ArrayLike = "epsilon_greedy",
        exploring_starts: bool = False,
        initial_value: float = 0.0,
        compression: str | tuple[Any, ...] | Mapping[str, Any] | None = "none",
        topology: Literal["flat", "tree", "decentralized", "auto"] = "flat",
        exchange_pattern: Literal["auto", "doubling", "ring", "tree", "two_level"] = "auto",
        tree_group_size: int | None = None,
        max_staleness: int | None = None,
        merging: Literal["affine", "order_free", "staleness_weighted", "reject_stale"] = "affine",
        logical_workers: int = 16,
        max_states: int | None = None,
        replay_ratio: float = 0.0,
        n_envs: int = 16,
        use_action_mask: bool | None = None,
        allow_singletons: bool = False,
        timeout: float = 600.0,
        heartbeat_interval: float = 1.0,
        heartbeat_timeout: float = 30.0,
        on_failure: Literal["continue", "replace", "abort"] = "continue",
        min_workers: int = 0,
        max_replacements: int = 3,
        on_error: Literal["raise", "exclude"] = "raise",
    ) -> None:
        given = locals()
        settings = Settings(**{each.name: given[each.name] for each in fields(Settings)})
        settings.check_given()
        super().__init__(AgentState(settings))
        self._comm = checked_comm(comm)

    def __copy__(self: _Self) -> _Self:
        """Return another agent, as `copy.deepcopy` does: two agents with one table would train each other."""
        return copy.deepcopy(self)

    if not TYPE_CHECKING:  # else every name would pass for one of these

        def __getattr__(self, name: str) -> Any:
            raise unknown_attribute(self, name)

        def __setattr__(self, name: str, value: Any) -> None:
            if OURS.get(name, name) in _GIVEN and not hasattr(type(self), name):
                raise unknown_attribute(self, name)
            known = getattr(type(self), name, None)
            if isinstance(known, property) and known.fset is None:
                raise read_only_attribute(self, name)
            if type(self) is DistAsyncQLearning:  # whoever writes a class of their own has names of their own
                if known is None and means_another(name):
                    raise unknown_attribute(self, name)
                is_method = callable(known) and name in dir(type(self)) and not name.startswith("_")
                if is_method and not callable(value):  # a function in its place is called, as tests want it
                    raise read_only_attribute(self, name)
            super().__setattr__(name, value)

    # Training

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

    @named_arguments("train")
    def train(
        self,
        env: EnvLike,
        steps: int | None = None,
        total_steps: int | None = None,
        *,
        total_episodes: int | None = None,
        new_env: bool = False,
        progress: Callable[[Progress], None] | None = None,
        progress_interval: float | str = "auto",
        progress_bar: bool | None = None,
        verbose: bool | int = False,
        checkpoint_dir: str | os.PathLike[str] | None = None,
        checkpoint_interval: int | str = "30s",
        keep_last: int = 3,
        keep_every: int | None = None,
        resume: Literal["auto", "must", "never"] | bool = "auto",
        strict: bool = True,
        time_limit: float | str | None = None,
        stop_signals: Iterable[int | str] = ("SIGUSR1", "SIGUSR2", "SIGTERM"),
        checkpoint_mode: int = 0o600,
        leave_signals: Iterable[int | str] = (),
        callbacks: CallbacksLike = None,
        placement: Literal["auto", "replicated", "sharded"] | Engine | None = None,
        walkers: int | None = None,
        partition: Literal["hash", "range"] | Callable[[int], int] = "hash",
    ) -> TrainingResult:
        """Learn for a number of environment steps; every rank of the communicator calls this.

        Afterwards `q_table` is the same array of numbers on every rank, unless it is divided between hosts.
        Called again, it goes on where it stopped, with new episodes.

        Parameters
        ----------
        env : str, gymnasium.Env, gymnasium.vector.VectorEnv, callable, TabularMDP or CompiledSimulator
            The same on every rank: a Gymnasium id, an environment, a function that makes one, or a model.
            What is known to be the same process in compiled code runs there.
        steps : int
            This rank's share: all ranks together make the sum of their shares, whoever is fast.
        total_steps : int
            The sum itself, the same on every rank. Exactly one of the two is given, or `total_episodes`.
        total_episodes : int, optional
            The call ends, too, when so many episodes of all ranks have ended, at the first look after that:
            alone with a few more, or about as many as are under way at a time, on many ranks likewise, or
            up to a third more where episodes still get shorter, and in the reproducible mode with a whole
            round. Where no steps are given, they are as many as these episodes can take by the environment's
            time limit; schedules that are a share of the call are one of those steps.
        new_env : bool
            Whether `env` may be another process than the one that the table was learned in, as in a
            curriculum: with other transitions, rewards, wrappers or time limit. The table goes on as it is.
        progress : callable, optional
            Called on rank 0 with a `Progress` at 200 points that are evenly spread over the steps of the
            call, or fewer where one push or round goes beyond several of them; besides after
            `progress_interval` seconds without a report, at each checkpoint, and at the end.
        progress_interval : float or "auto"
            In seconds. The server waits while the callback runs, so it should be quick. "auto" is 1 second.
            In the reproducible mode it is no time at all, and checkpoints are not reported either: so what
            callbacks hear depends on steps alone, and is the same on any number of ranks.
        progress_bar : bool, optional
            Whether the rank that serves shows how far it is. By default there is a bar on a terminal and in a
            notebook, and nothing elsewhere: in files, pipes, batch jobs, and under a launcher. True: there, a
            line every 10 seconds on standard error.
        verbose : bool or int
            1: say on standard error what is trained and what came of it, and show a line for each worker
            below the bar. 2, which Stable-Baselines3 has as well, says no more here.
        checkpoint_dir : str or path, optional
            Folder, or URL that fsspec knows, in which the run is saved while it goes on; each agent of a
            script has a subfolder of its own there. Rank 0's counts. By default nothing is saved.
        checkpoint_interval : int or str
            Steps, or a time such as "30s", between checkpoints. Those by steps are at multiples, of the steps
            in all calls. The next one never begins before the last one is on disk. Where all wait for that,
            a time counts from its end, and is at least as long as writing it took.
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
            With `checkpoint_dir`: seconds, or a time such as "55m" or "1:30:00", after which this call has
            stopped, from its first step on: what is compiled before that comes on top, and what a callback,
            or a round of the reproducible mode, takes that is under way then. However short it is, some steps
            are made: until the first are at the rank that serves, this call goes on for as long again, or
            30 s if that is more. By default what SLURM leaves to the job, or none.
        stop_signals : iterable of str or int
            Signals that stop the training in order, whichever rank hears them, besides Ctrl-C, and SIGUSR1
            under `dist-classicrl launch` and `train --ranks`. A second one ends the process at once.
        checkpoint_mode : int
            Permissions of the files; folders get the same, and the right to enter. Not for URLs.
        leave_signals : iterable of str or int
            Signals on which a worker leaves, as after `leave`; after one that comes between two calls, in the
            next that has such. A process alone says that it goes on, and a second one ends it; SIGTERM ends
            one that `multiprocessing` started. By default none.
        callbacks : BaseCallback, callable, or sequence of them, optional
            What `dist_classicrl.callbacks` has, or of its kind: called on rank 0, or the rank that took its
            place, whenever `progress` is, and when something happens. A callback can end the run early.
        placement : "auto", "replicated", "sharded" or Engine, optional
            Where the table is and how the training is spread, the same on all ranks; by default the agent's
            `placement`, which is "auto" where none was given. With "replicated" every
            rank has the whole table: a process alone learns by itself, and several ranks learn with a server,
            or in rounds in the reproducible mode. With "sharded" there is one table for all. The ranks of
            one host learn in the same rows in shared memory, each with 32 episodes at a time. On several
            hosts, and in the reproducible mode, each rank owns a part of the rows, and walkers, which are
            episodes under way, travel between the owners in supersteps: the table is the same bit for bit
            at any number of ranks, also alone, and any `partition`. "auto" takes "sharded" where a table is
            so large that copies do not fit into a core's cache, in compiled environments, on one host or in
            the reproducible mode, and "replicated" elsewhere, or where settings are given that say how copies
            are merged: `sync_frequency`, in the reproducible mode `logical_workers` and else
            `prefetch_factor`, which "sharded" refuses. Tables of a game whose states are keys have no copies:
            a warning says there, on one rank as on several, that these three play no part. An engine of your
            own, as `dist_classicrl.engines.engine` describes it, is used as it is.
        walkers : int, optional
            How many episodes are under way at most, in all ranks together, where walkers travel: a power of
            two, 16,384 by default, and 256 where environments are stepped in Python, which do not travel
            themselves: so many are made. Each superstep moves them all once, and less at the beginning, so
            that none learns from a table that lacks more than a thousandth of what was learned. With another
            number another table is learned.
        partition : "hash", "range" or callable
            Which rank owns which states where walkers travel: a hash of the state, which divides any load
            evenly; ranges of states; or a function compiled with numba.njit that returns the rank which owns
            a state, for environments in which near states follow each other.

        Returns
        -------
        TrainingResult
            The same on every rank.

        Raises
        ------
        SettingsError
            If the arguments or the size of the table do not fit.
        MissingExtraError
            If the settings need a package that is not installed.
        EnvError
            If the environment cannot be learned in.
        DivergenceError
            If values, or sums of rewards, grow beyond what the table and the records can hold.
        StateLimitError
            On all ranks, if the states are keys and there come more of them than `max_states`, or memory,
            allows. What was learned is kept, of several ranks by the one that serves, mostly rank 0: raise
            `max_states` and call `train` again, on all, which tells it to the others. That is a later call,
            in which `epsilon` is what its schedule ends with: set it before, as in
            ``agent.epsilon = Linear(agent.epsilon, 0.1, fraction=0.5)``, to explore on.
        EnvMismatchError
            If the table was learned in another one, and `new_env` does not allow it.
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
        ExitCalledError
            On many ranks, where an environment or a callback calls `sys.exit`.
        TrainingStopped
            On all ranks, after a stop signal or at a time limit, once a checkpoint is on disk. It is a
            `SystemExit` with code 75, or 130 after Ctrl-C: the same command goes on from there. The code is
            74 where no checkpoint of the run could be written.
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
        if placement is None:
            given = {**given, "placement": self._state.settings.placement}
        from dist_classicrl.agent.request import Request
        from dist_classicrl.agent.training import train

        return train(self, self._state, Request.of(given), self._comm)

    @named_arguments("learn")
    def learn(
        self,
        transitions: Any,
        epochs: int | None = None,
        method: Literal["incremental", "sweeps"] = "incremental",
        env: Any = None,
    ) -> BatchResult:
        """Learn from transitions that were logged, without an environment; every rank calls this.

        "q_learning" and "double_q_learning" learn what the best actions are worth, "expected_sarsa" what
        `behavior` is worth, with the epsilon or temperature that its schedule ends in, and "sarsa" and "td"
        what that behavior is worth which was logged: for "sarsa" the action that was chosen next must be
        known, which it is not where an episode was cut off. Other rules are refused.

        Actions that are in no transition of a state play no part in the value of that state, and a state in
        which none was taken is worth 0. Afterwards `q_table` is the same array of numbers on every rank.
        `visits` counts what was learned, `steps` does not: these are no steps of an environment. `train` goes
        on from there.

        Parameters
        ----------
        transitions : Transitions, dict, NamedTuple, str, path, Minari data set, or iterable of episodes
            What `dist_classicrl.data.Transitions.of` takes, the same on every rank. Where the agent has no
            table yet, it gets one for the largest state and action. States and actions are rows and columns
            of the table, or, where `env` or an environment that was trained in has `Discrete` spaces that do
            not count from 0, the numbers of these.
        epochs : int, optional
            Times that "incremental" learns each transition, by default 10; "sweeps" has none.
        method : str
            "incremental" learns transition by transition with the agent's step sizes, in an order that the
            seed draws anew for each epoch. A learning rate that follows the global step begins at `steps`
            and moves on with each transition; one with a `fraction` takes that share of this call if `train`
            was not called before, and its final value after. Ranks divide each epoch, and merge what they
            have learned before the entries that are learned most have forgotten what they were. "sweeps"
            solves the model that the transitions suggest, in which the targets of a pair are averaged: exact,
            on rank 0, and the same bits at any number of ranks.
        env : str, gymnasium.Env or other, optional
            Of which the transitions are, as `train` takes it: how it counts states and actions, and which
            are legal. Not needed once it was trained in, nor where both are counted from 0 on.

        Returns
        -------
        BatchResult
            With the coverage of the table.

        Raises
        ------
        SettingsError
            If an argument is not allowed, or the rule is none that learns from logged transitions.
        EnvError
            If `env` cannot be learned in, or is larger than the table.
        EnvMismatchError
            If the agent was trained in another one than `env`.
        DataError
            If the transitions cannot be read, or do not fit into the table.
        RewardError
            If a reward is NaN or infinite.
        ConvergenceError
            If at discount factor 1 the transitions lead nowhere, and the method is "sweeps".
        DivergenceError
            If values grow beyond what the table can hold.
        RankMismatchError
            If ranks have different transitions or settings.
        RemoteRankError, RankTimeoutError, RankLostError
            If another rank raised an exception, did not call `learn` within `timeout`, or died.
        """
        from dist_classicrl.agent.batch import learn

        with self._state.room_on_trial():
            return learn(self._state, transitions, epochs, method, env, self._comm)

    def leave(self, why: str = "leave() was called") -> None:
        """Let this worker leave the training in good order, from another thread or a callback.

        It pushes what it has learned, others make the steps that it had still to make, and its `train` raises
        `WorkerLeft`, a `SystemExit` with code 0. A server, and a process that trains alone, cannot leave:
        they go on, and are stopped by a stop signal instead.
        """
        self._state.leaving.ask(why)

    # Going on from what was saved

    @OfTheClass
    @named_arguments("load_model")
    def load_model(
        cls: type[_Self],
        path: str | os.PathLike[str],
        comm: MPI.Comm | None = None,
        env: EnvLike | None = None,
    ) -> _Self:
        """Return the agent that `save_model` wrote to `path`, or that checkpoints there are of.

        It is made by the class on which this is called, with all settings and `comm` as keyword arguments.
        Called on an agent it is refused: it does not change one.

        Parameters
        ----------
        path : str or path
            A model file; or a folder or URL, for the agent as of the newest good checkpoint there: a
            `checkpoint_dir` of `train` that holds one agent, an agent's subfolder, or one checkpoint.
        comm : mpi4py.MPI.Comm, optional
            As in the constructor.
        env : optional
            The environment that was trained in, as in `train`. A game whose states are keys and that forbids
            actions is needed for `predict` and `action_values` of states that were never met; and files that
            were written before they kept the spaces need their environment, to take its observations and
            number its actions.

        Raises
        ------
        FileNotFoundError
            If there is no such file or folder.
        ModelFileError
            If it is truncated, damaged, anything but a model file, or of a rule that is not registered here.
        CheckpointError
            If there is no checkpoint in the folder, none that can be used, or more than one agent.
        EnvError
            If `env` is larger than the table, or has other states, observations or actions than it is of.
        """
        path = checked_path("path", path)
        if "://" in path or os.path.isdir(path):
            from dist_classicrl.agent.saved_runs import saved_model_of

            saved = saved_model_of(path)
        else:
            saved = model_file.read(path)
        with read_back():
            agent = cls(**saved.settings.arguments(), comm=comm)
        agent._state.take_model(saved)
        if env is not None:
            check_made_for(agent._state, env)
            get_to_know(agent._state, env).close()
        return agent


def state_of(agent: DistAsyncQLearning) -> AgentState:
    """Return what an agent holds, for the other parts of this library."""
    return agent._state


TabularAgent = DistAsyncQLearning
"""Another name of it, since it has other rules than Q-learning, too."""
