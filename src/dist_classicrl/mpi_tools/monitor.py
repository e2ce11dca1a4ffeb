"""Records of a training loop on many ranks, over any communicator."""

from __future__ import annotations

import logging
import math
import os
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dist_classicrl.checks import WholeNumber, is_real
from dist_classicrl.comm.envelope import Kind
from dist_classicrl.comm.messages import message
from dist_classicrl.comm.transport import Wire
from dist_classicrl.errors import SettingsError
from dist_classicrl.monitoring.loop_records import COLUMNS, LoopRecords
from dist_classicrl.mpi_tools.links import Link, close, receive
from dist_classicrl.mpi_tools.part import Part

if TYPE_CHECKING:
    from matplotlib.figure import Figure

logger = logging.getLogger(__name__)

_TAG = 1
_MESSAGE_BYTES = 1 << 12
_MOST_PENDING = 10_000  # points that wait for that: 400 kB
_POINTS_PER_MESSAGE = 64
_STEP_BITS = 53  # points travel as float64
_LISTEN_SECONDS = 0.05
_PATIENCE_SECONDS = 10.0
_END_SECONDS = 2.0


@message(Kind.POINTS)
@dataclass(frozen=True)
class _Points:
    """Of each of some intervals its number and what was measured in it, one after the other."""

    rows: np.ndarray


class _Peer(Link):
    """What is known of the rank at the other end."""

    most_untaken = 8
    reached = -1  # the last interval that it told of


class DistributedMonitor(Part):
    """Brings together on rank 0 what the ranks of a training loop measure.

    For loops that are written by hand over MPI: every rank calls `log_metrics` at each step, or as often as
    it likes, and rank 0 has the averages. None of the methods is collective, and only `close` and
    `plot_training_curves` wait for other ranks, for a few seconds at most.

    A point stands for `log_interval` steps. Each rank averages what it logged in them and sends that to rank
    0, which averages over ranks; throughputs are added up. A rank that **lags** holds up nobody: its part is
    added to the point when it comes, and ``metrics["ranks"]`` says how many ranks a point has so far. Of a
    rank that **died** the points contain what it had sent. If rank 0 does not listen for long, the others
    keep their last 10,000 points for it; if it dies, the records die with it and the others go on.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        The messages go over a duplicate. **Every rank of the communicator has to construct the monitor**, at
        the same point of the program and with the same `log_interval`.
    log_interval : int, default=1000
        Steps per point, below 2**53.
    timeout : float, default=60
        Seconds that the construction waits for the other ranks to construct theirs.

    Raises
    ------
    SettingsError
        If an argument is not what is described here.
    RankTimeoutError, RankLostError
        If not every rank constructs its monitor within `timeout`, or one has died.

    Notes
    -----
    By `close` a rank sends what is left: what was logged since the last point makes one more, at the next
    multiple of `log_interval`.

    Rank 0 takes in what has come when it calls `log_metrics`. Each point is written to the log of this module
    (level INFO) when all ranks that are there have told theirs, or ten seconds after the first one has.

    Examples
    --------
    >>> from mpi4py import MPI
    >>> from dist_classicrl import DistributedMonitor
    >>> with DistributedMonitor(MPI.COMM_SELF, log_interval=10) as monitor:
    ...     for step in range(30):
    ...         monitor.log_metrics(step, reward=float(step), loss=1.0, throughput=100.0, comm_time=0.0)
    >>> monitor.metrics["step"].tolist()
    [0, 10, 20, 30]
    >>> monitor.metrics["reward"].tolist()  # of the steps since the point before
    [0.0, 5.5, 15.5, 25.0]
    """

    def __init__(self, comm: Any, log_interval: int = 1000, *, timeout: float = 60.0) -> None:
        self._interval = WholeNumber(1, bits=_STEP_BITS)("log_interval", log_interval)
        super().__init__(comm, timeout)
        self._wire = Wire(self._comm)
        others = range(1, self._wire.size) if self._wire.rank == 0 else (0,)
        self._peers = {rank: _Peer(self._wire.channel(rank, _TAG, _MESSAGE_BYTES)) for rank in others}
        self._records = LoopRecords(self._interval)
        self._pending: deque[np.ndarray] = deque(maxlen=_MOST_PENDING)
        self._step = -1
        self._reached = -1
        self._start_interval()
        self._next_listen = 0.0

    def log_metrics(
        self,
        step: int,
        reward: float = math.nan,
        loss: float = math.nan,
        throughput: float = math.nan,
        comm_time: float = math.nan,
    ) -> None:
        """Tell what this rank measured. Never waits.

        Parameters
        ----------
        step : int
            Of the loop, below 2**53 and never less than in the call before. A point is made by the first
            call, and by each that reaches or passes a multiple of `log_interval`.
        reward, loss : float
            Averaged over calls and ranks. NaN, as when left out, is no measurement.
        throughput : float
            Steps per second, or what you like: averaged over this rank's calls, added up over ranks.
        comm_time : float
            Seconds of communication; averaged.

        Raises
        ------
        SettingsError
            If the step is less than the one before, something is not a number, or the monitor is closed.
        """
        self._check_open()
        step = WholeNumber(0, bits=_STEP_BITS)("step", step)
        if step < self._step:
            raise SettingsError(
                f"step is {step} after {self._step}, but steps never go back. Use a new monitor for a new "
                "loop."
            )
        values = (reward, loss, throughput, comm_time)
        numbers = [_as_number(name, value) for name, value in zip(COLUMNS, values, strict=True)]
        for i, number in enumerate(numbers):
            if number == number:
                self._sums[i] += number
                self._counts[i] += 1
        self._step = step
        if step // self._interval > self._reached:
            self._finish_interval(step // self._interval)
        elif self._wire.now() >= self._next_listen:
            self._work()

    @property
    def metrics(self) -> dict[str, np.ndarray]:
        """The points so far, oldest first; empty on all ranks but rank 0.

        ``"step"`` is the multiple of `log_interval` that a point was made at; ``"reward"``, ``"loss"`` and
        ``"comm_time"`` are averages and ``"throughput"`` is a sum over those ranks, whose number is
        ``"ranks"``, that told of it.
        """
        return self._records.columns

    @property
    def lost_ranks(self) -> frozenset[int]:
        """The ranks of which MPI has told this one that they died."""
        return frozenset(rank for rank, peer in self._peers.items() if peer.channel.lost is not None)

    def plot_training_curves(self, path: str | os.PathLike[str] | None = None) -> Figure | None:
        """Draw reward, loss, throughput and communication over the steps.

        May be called on all ranks, or on rank 0 alone, also after `close`.

        Parameters
        ----------
        path : path, optional
            Where to write the picture: a name that ends in .png, .svg or .pdf.

        Returns
        -------
        matplotlib.figure.Figure or None
            None on all ranks but rank 0.

        Raises
        ------
        MissingExtraError
            If matplotlib is not installed, which the extra ``plot`` brings.
        PlotError
            If the file cannot be written.
        """
        if self._wire.rank == 0:
            from dist_classicrl.plotting import canvas

            canvas.require_matplotlib()
        if not self._is_closed:
            self._wait(self._is_settled)
        if self._wire.rank != 0:
            return None
        from dist_classicrl.plotting.loop_curves import plot_loop_curves

        figure = plot_loop_curves(self.metrics)
        if path is not None:
            canvas.save(figure, path)
        return figure

    def _leave(self) -> None:
        if any(self._counts):
            self._finish_interval(self._reached + 1)
        if self._wire.rank == 0:
            self._wait(lambda: not any(peer.is_present for peer in self._peers.values()))
        else:
            self._wait(self._is_settled)
        for peer in self._peers.values():
            peer.say_goodbye()
        if self._wire.rank:
            self._wait(lambda: not self._peers[0].is_present)
        self._log(math.inf)
        close(self._wire, self._comm, list(self._peers.values()))

    def _start_interval(self) -> None:
        self._sums = [0.0] * len(COLUMNS)
        self._counts = [0] * len(COLUMNS)

    def _finish_interval(self, reached: int) -> None:
        means = [total / n if n else math.nan for total, n in zip(self._sums, self._counts, strict=True)]
        self._start_interval()
        self._reached = reached
        if self._wire.rank == 0:
            self._records.add(reached, np.array(means), self._wire.now())
        else:
            if len(self._pending) == self._pending.maxlen:
                logger.warning("Rank 0 does not take what is logged here; the oldest points are dropped.")
            self._pending.append(np.array([reached, *means]))
        self._work()

    def _work(self) -> None:
        """Take in what has come, and send what may be sent."""
        self._next_listen = self._wire.now() + _LISTEN_SECONDS
        listening = [peer for peer in self._peers.values() if not peer.has_left]
        for peer, points in receive(self._wire, listening):
            for row in points.rows.reshape(-1, 1 + len(COLUMNS)):
                peer.reached = int(row[0])
                self._records.add(peer.reached, row[1:], self._wire.now())
        if self._wire.rank == 0:
            told = [peer.reached for peer in self._peers.values() if peer.is_present]
            self._log(min([self._reached, *told]))
        else:
            self._send_pending(self._peers[0])

    def _send_pending(self, peer: _Peer) -> None:
        if peer.channel.lost is not None:
            self._pending.clear()
        while self._pending and peer.has_room:
            n_points = min(len(self._pending), _POINTS_PER_MESSAGE)
            rows = np.concatenate([self._pending.popleft() for _ in range(n_points)])
            peer.send(_Points(rows))

    def _is_settled(self) -> bool:
        """Whether there is nothing to wait for: on rank 0, that all who are there have told what it has."""
        present = [peer for peer in self._peers.values() if peer.is_present]
        if self._wire.rank:
            return not present or (not self._pending and present[0].channel.reap())
        return all(peer.reached >= self._reached for peer in present)

    def _log(self, complete: float) -> None:
        for line in self._records.news(complete, self._wire.now() - _PATIENCE_SECONDS):
            logger.info("%s", line)

    def _wait(self, ready: Any) -> None:
        """Work until `ready()`, for two seconds at most."""
        deadline = self._wire.now() + _END_SECONDS
        self._work()
        while not ready() and self._wire.now() < deadline:
            self._wire.sleep(1e-3)
            self._work()


def _as_number(name: str, value: Any) -> float:
    """Return what was measured, a real number or an array of one, as a float; SettingsError for others."""
    try:
        number = value.item() if hasattr(value, "item") else value
        if is_real(number):
            return float(number)
    except (TypeError, ValueError, OverflowError):
        pass
    raise SettingsError(f"{name} must be a number, got {value!r}.")
