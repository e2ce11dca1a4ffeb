"""Which numbers of a data set each rank takes in an epoch, without a message."""

from __future__ import annotations

from typing import Any

import numpy as np

from dist_classicrl.checks import OneOf, checked_whole
from dist_classicrl.comm.collectives import checked_communicator

UNEVEN = ("keep", "drop", "pad")


class DistributedSampler:
    """Splits ``range(length)`` over the ranks, in a new order in each epoch.

    The order follows from `seed` and the epoch alone, so ranks that were given the same arguments need no
    message to agree. Rank r of n takes each n-th place of it, from place r on.

    Parameters
    ----------
    length : int
        How many samples there are; 0 is allowed.
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
    """

    def __init__(self, length: int, comm: Any, *, seed: int = 0, uneven: str = "keep") -> None:
        self.length = checked_whole("length", length, 0)
        self.seed = checked_whole("seed", seed, 0)
        self.uneven = OneOf(UNEVEN)("uneven", uneven)
        own = checked_communicator(comm)
        self._rank, self._size = own.Get_rank(), own.Get_size()

    def indices(self, epoch: int) -> np.ndarray:
        """Return what this rank takes in an epoch, which is a whole number of at least 0.

        Returns
        -------
        ndarray(int64, ndim=1)
            Of the same length on all ranks, but with ``"keep"``, where it differs by one at most.
        """
        epoch = checked_whole("epoch", epoch, 0)
        order = np.random.default_rng((self.seed, epoch)).permutation(self.length).astype(np.int64)
        rest = self.length % self._size
        if rest and self.uneven == "drop":
            order = order[: self.length - rest]
        elif rest and self.uneven == "pad":
            order = np.resize(order, self.length - rest + self._size)
        return order[self._rank :: self._size].copy()
