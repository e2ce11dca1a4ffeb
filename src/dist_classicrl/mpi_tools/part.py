"""What the parts that ranks use together have in common: how they are made and closed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Any, TypeVar

from dist_classicrl.checks import checked_positive
from dist_classicrl.comm.collectives import own_communicator
from dist_classicrl.comm.rooted import RootedCollectives
from dist_classicrl.errors import SettingsError

_ALIKE = "its arguments, to compare them"

AnyPart = TypeVar("AnyPart", bound="Part")


class Part:
    """Something over a duplicate of a communicator, which every rank constructs, and closes."""

    def __init__(self, comm: Any, timeout: Any, between_groups: bool = False) -> None:
        self._is_closed, self._close_once = False, Lock()
        self._seconds = checked_positive("timeout", timeout)
        self._comm = own_communicator(comm, self._seconds, type(self).__name__, between_groups)

    def close(self) -> None:
        """Stop listening, and give the communicator back to MPI; every rank should close its own.

        It waits for the other ranks' closing, but no longer than a second, or four in a `DistributedMonitor`.
        A `CompressedAllreduce` or `DistributedDebugger` first waits until the others have taken what it has
        sent, or none of them has taken any for `timeout` seconds.
        """
        with self._close_once:  # several threads may close what several use
            if self._is_closed:
                return
            self._is_closed = True
        self._leave()

    def _leave(self) -> None:
        raise NotImplementedError

    def _check_open(self) -> None:
        if self._is_closed:
            name = type(self).__name__
            raise SettingsError(f"This {name} is closed. Construct another one on all ranks.")

    def __enter__(self: AnyPart) -> AnyPart:
        return self

    def __exit__(self, kind: Any = None, error: Any = None, trace: Any = None) -> None:
        self.close()


class RootedPart(Part):
    """A part whose ranks take steps together that rank 0 leads."""

    def __init__(self, comm: Any, timeout: Any) -> None:
        super().__init__(comm, timeout)
        self._collectives = RootedCollectives.over(self._comm, self._seconds)

    @property
    def _rooted(self) -> RootedCollectives:
        self._check_open()
        return self._collectives

    def _agree(self, refusal: str, arguments: str) -> None:
        """Raise a SettingsError on all ranks if one refuses its arguments, or they are not the same."""
        with self._rooted.operation():
            gathered = self._rooted.gather(_Arguments(refusal, arguments), _ALIKE)
            answer = _Refused(
                refusals(
                    {rank: given.refusal for rank, given in gathered.items()},
                    {rank: given.arguments for rank, given in gathered.items()},
                )
            )
            refused = self._rooted.tell(answer, _Refused, _ALIKE).texts
            if refused:
                raise SettingsError(f"{'; '.join(refused)}.")

    def _leave(self) -> None:
        self._collectives.free(self._comm)


@dataclass(frozen=True)
class _Arguments:
    """What a rank calls with: what is wrong with it, if anything, and what has to be the same on all."""

    refusal: str
    arguments: str


@dataclass(frozen=True)
class _Refused:
    """What rank 0 makes of that."""

    texts: list[str]


def refusals(own: Mapping[int, str], arguments: Mapping[int, str]) -> list[str]:
    """Return what to say on all ranks: why some refuse `own` arguments, or whose are not those of rank 0.

    Both are by rank, and begin with rank 0; who has nothing to refuse gives no text.
    """
    return [f"rank {rank}: {refusal}" for rank, refusal in own.items() if refusal] or [
        f"rank {rank} has {given}, rank 0 {arguments[0]}; give all ranks the same"
        for rank, given in arguments.items()
        if given != arguments[0]
    ]
