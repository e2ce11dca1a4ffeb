"""Which numbers of a data set each rank takes in an epoch, without a message."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from dist_classicrl.checks import OneOf, WholeNumber, checked_whole, is_whole
from dist_classicrl.comm.collectives import checked_communicator
from dist_classicrl.errors import SettingsError

UNEVEN = ("keep", "drop", "pad")


class DistributedSampler:
    """Splits ``range(length)`` over the ranks, in a new order in each epoch.

    The order follows from `seed` and the epoch alone, so ranks that were given the same arguments need no
    message to agree. Rank r of n takes each n-th place of it, from place r on. `batches` goes through an
    epoch, `state` says where it stands, and `restore` goes on from there, on any number of ranks.

    Parameters
    ----------
    length : int
        How many samples there are; 0 is allowed, and an epoch's order takes 16 bytes for each.
    comm : mpi4py.MPI.Comm
        Whose ranks share them.
    seed : int, default=0
        The same on all ranks.
    uneven : {"keep", "drop", "pad"}, default="keep"
        Where `length` is no multiple of the number of ranks: ``"keep"`` gives some ranks one sample more,
        and each sample goes to exactly one rank; ``"drop"`` leaves the last few of the epoch's order out, and
        no sample goes to two ranks; ``"pad"`` repeats the first few, so that none is left out.

    Raises
    ------
    SettingsError
        If an argument is not what is described here.

    Examples
    --------
    >>> from mpi4py import MPI
    >>> from dist_classicrl.mpi_tools import DistributedSampler
    >>> sampler = DistributedSampler(10, MPI.COMM_SELF, seed=1)
    >>> sorted(sampler.indices(epoch=3).tolist()) == list(range(10))
    True
    >>> for batch in sampler.batches(4):
    ...     print(len(batch), sampler.state()["taken"])
    4 4
    4 8
    2 10
    >>> sampler.epoch
    1
    """

    def __init__(self, length: int, comm: Any, *, seed: int = 0, uneven: str = "keep") -> None:
        self.length = WholeNumber(0, bits=48)("length", length)
        self.seed = checked_whole("seed", seed, 0)
        self.uneven = OneOf(UNEVEN)("uneven", uneven)
        own = checked_communicator(comm)
        self._rank, self._size = own.Get_rank(), own.Get_size()
        self._stand(0, 0)

    def _stand(self, epoch: int, begun_at: int) -> None:
        """Be where so many places of an epoch are taken, before the rest is shared out."""
        self._epoch, self._begun_at = epoch, begun_at
        self._taken = 0  # samples of its share of that rest that this rank has taken
        self._was_short = False  # whether the last batch had fewer than it could: all shares are used up

    @property
    def epoch(self) -> int:
        """Which epoch `batches` goes through next, or is in."""
        return self._epoch

    def indices(self, epoch: int) -> np.ndarray:
        """Return what this rank takes in an epoch, which is a whole number of at least 0.

        Returns
        -------
        ndarray(int64, ndim=1)
            Of the same length on all ranks, but with ``"keep"``, where it differs by one at most.

        Raises
        ------
        SettingsError
            If `epoch` is not what is described here, or the order of so many samples is beyond all memory.
        """
        return self._share(checked_whole("epoch", epoch, 0), 0)

    def batches(self, size: int) -> Iterator[np.ndarray]:
        """Go through what is left of this rank's samples in this epoch, and then begin the next epoch.

        Parameters
        ----------
        size : int
            Samples in a batch, at least 1; the last one may have fewer.

        Yields
        ------
        ndarray(int64, ndim=1)
            Ranks have equally many batches of equal sizes, but with ``"keep"``, where the last one of some
            ranks has a sample less, or is left out if that was its only one.

        Raises
        ------
        SettingsError
            If `size` is not what is described here, or the order of so many samples is beyond all memory.
        """
        size = checked_whole("size", size, 1)
        return self._batches(size)

    def _batches(self, size: int) -> Iterator[np.ndarray]:
        share = self._share(self._epoch, self._begun_at)
        while self._taken < len(share):
            batch = share[self._taken : self._taken + size].copy()
            self._taken += len(batch)
            self._was_short = len(batch) < size
            yield batch
        self._stand(self._epoch + 1, 0)

    def state(self) -> dict[str, Any]:
        """Return where this rank stands, for `restore`, as plain data for JSON.

        Returns
        -------
        dict
            `length`, `seed` and `uneven`, the ``"epoch"``, and how many places of its order all ranks have
            ``"taken"``. The same on all ranks that have taken equally many batches.
        """
        taken = min(self._begun_at + self._taken * self._size, self.length)
        if self._was_short and self.uneven == "keep":
            taken = self.length  # a rank whose share has a sample more has taken that in the same batch
        return {**self._kept(), "epoch": self._epoch, "taken": taken}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on where a `state` was told, with `batches` begun anew; the number of ranks may be another.

        What is left of the epoch is shared out over the ranks that there are now: no sample comes twice in
        it, and none is left out but by `uneven`. On as many ranks, each gets what it would have had.

        Raises
        ------
        SettingsError
            If it is no such state, or one of a sampler that was made with other arguments.
        """
        wanted = self.state()
        if not isinstance(state, Mapping) or set(state) != set(wanted):
            raise SettingsError(
                f"state must be what state() returned, with {', '.join(wanted)}; got {state!r}."
            )
        for name, own in self._kept().items():
            if not _is_same(state[name], own):
                raise SettingsError(
                    f"The state is of a sampler with {name}={state[name]!r}, and this one has {own!r}. "
                    "Make it with the same arguments."
                )
        epoch, taken = (checked_whole(name, state[name], 0) for name in ("epoch", "taken"))
        if taken > self.length:
            raise SettingsError(f"taken must be at most length ({self.length}), got {taken}.")
        self._stand(epoch, taken)

    def _kept(self) -> dict[str, Any]:
        return {"length": self.length, "seed": self.seed, "uneven": self.uneven}

    def _share(self, epoch: int, begun_at: int) -> np.ndarray:
        """Return this rank's samples of an epoch of which so many places were taken before."""
        try:
            order = np.random.default_rng((self.seed, epoch)).permutation(self.length).astype(np.int64)
        except MemoryError:
            raise SettingsError(
                f"The order of an epoch of length={self.length} takes {16 * self.length / 2**30:,.1f} GiB, "
                "which are not there. Give the number of files as the length, and shuffle within each."
            ) from None
        left = order[begun_at:]
        rest = len(left) % self._size
        if rest and self.uneven == "drop":
            left = left[: len(left) - rest]
        elif rest and self.uneven == "pad":
            left = np.concatenate([left, np.resize(order, self._size - rest)])
        return left[self._rank :: self._size].copy()


def _is_same(given: Any, own: int | str) -> bool:
    """Whether an argument in a state is that of this sampler; arrays and the like are none."""
    if isinstance(own, str):
        return isinstance(given, str) and given == own
    return is_whole(given) and bool(given == own)
