"""A card's kernels as NVVM compiles them for one, which need not be there, and learners that play them so."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numba
import ptx_machine
import pytest
from card_twin import CoreMemory, OneOnCore, RowsOnCore
from ptx_program import Program

from dist_classicrl.learning.card import kernels, launching
from dist_classicrl.learning.card.in_copies import InCopies
from dist_classicrl.learning.card.kernels import WalkKernels

HOPPER = type("Device", (), {"compute_capability": (9, 0)})
"""The card that they are compiled for."""


def _can_compile():
    from numba import cuda

    try:
        return bool(cuda.compile_ptx(lambda: None, (), cc=HOPPER.compute_capability))
    except Exception:  # NVVM or NVRTC is not there, which is said in many ways
        return False


needs_nvvm = pytest.mark.skipif(
    not _can_compile(), reason="NVVM and NVRTC are not installed: pip install 'numba-cuda[cu13]'"
)


def ptx_of(python, arguments):
    """Return the PTX of a kernel for arguments like these, exact as those of trainings are."""
    from numba import cuda
    from numba.cuda import dispatcher

    signature = numba.types.void(*map(numba.typeof, arguments))
    # Functions that a kernel calls are compiled for the card that is there.
    with (
        mock.patch.object(dispatcher, "get_current_device", lambda: HOPPER),
        mock.patch.object(launching, "is_simulated", lambda: False),
        launching.exact_arithmetic(),
    ):
        return cuda.compile_ptx(python, signature, cc=HOPPER.compute_capability)[0]


class Played:
    """A kernel that is compiled when it is first launched, and played in another order each time."""

    def __init__(self, python, in_disorder=("faults",), burst=64):
        self._python, self._in_disorder, self._burst = python, in_disorder, burst
        self._program: Program | None = None
        self._launches = 0

    def __getitem__(self, grid):
        return lambda *arguments: self._launch(grid, arguments)

    def _launch(self, grid: Any, arguments: tuple[Any, ...]) -> None:
        if self._program is None:
            self._program = Program(ptx_of(self._python, arguments))
        self._launches += 1
        given = {"seed": self._launches, "burst": self._burst, "in_disorder": self._in_disorder}
        ptx_machine.play(self._program, grid, arguments, **given)


class _Played:
    """What learners here have in common."""

    memory = CoreMemory

    def _make_add_up(self):
        return Played(kernels.python_of_sums())


class CopiesPlayed(_Played, InCopies):
    """Plays a card's rounds with copies in shared memory, all of whose entries are looked at."""

    def __init__(self, problem):
        super().__init__(problem)
        self._merge = Played(kernels.python_of_merge(*kernels.merge_shape()))

    in_shared, by_letters = True, False

    def _make_round(self):
        assert self._shared_bytes or not self.in_shared, "The copy is too large."
        self._shared_bytes *= self.in_shared
        given = self._letters, self._itemsize, self.in_shared, self.by_letters
        return Played(kernels.python_of_round(*given))


class CopiesByLetters(CopiesPlayed):
    """Plays rounds in which a copy is merged where letters went."""

    by_letters = True


class CopiesInDeviceMemory(CopiesByLetters):
    """Plays rounds with copies in the card's memory."""

    in_shared = False


class OnePlayed(_Played, OneOnCore):
    """Plays a card's steps in one table."""

    def _make_kernels(self):
        makers = kernels.python_of_walk, kernels.python_of_add, kernels.python_of_move
        return WalkKernels(*(Played(make()) for make in makers))


class RowsPlayed(_Played, RowsOnCore):
    """Lets the walkers of a card learn in the same rows, in any order: there they write while others look."""

    def _make_kernel(self):
        return Played(kernels.python_of_rows(), ("faults", "values", "counts"), burst=16)
