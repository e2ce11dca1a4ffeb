"""Which process may write to a folder of checkpoints: the one that took the highest fencing number."""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime, timezone
from typing import Any, Literal, NamedTuple

from dist_classicrl._words import error_told
from dist_classicrl.checkpoint.names import checkpoints_in
from dist_classicrl.checkpoint.storage import Storage
from dist_classicrl.errors import CheckpointError, CheckpointFencedError

_CLAIM_SECONDS = 10.0
_SIGHT_SECONDS = 0.2


class Succession(NamedTuple):
    """In whose place a process claims that serves a run instead of one that was lost."""

    first: int  # the number under which the run's first server, in this call of `train`, claimed
    term: int  # this server's: a later one has a higher number


class Fence:
    """The claim of one process to a folder.

    Each claim is a file with the next number, which only one process can create. A process with a lower one
    has been replaced. One that is forked from this one has claimed nothing.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._number = 0  # none yet
        self._token = ""
        self._pid = 0  # of the process that claimed it

    @property
    def number(self) -> int:
        """The number under which this process claimed the folder; 0 if it has not."""
        return self._number if self._pid == os.getpid() else 0

    def missing(self) -> Literal["folder", "claim"] | None:
        """Return what is gone that this process claimed; None: nothing, or nobody knows.

        "folder": it was removed or emptied; "claim": no claim is there, of anybody, but checkpoints are.
        """
        if self.number == 0:
            return None
        try:
            listed = self._storage.listed()
        except CheckpointError:
            return None
        if _fences_in(listed):
            return None
        return "claim" if checkpoints_in(listed) else "folder"

    def claim(self, succession: Succession | None = None) -> int:
        """Take the next fencing number: every earlier claim is refused from now on.

        CheckpointError if the folder cannot be made or written to. With a `succession`, which may be long
        ago, CheckpointFencedError where the folder belongs to another run by now, or to a later server of
        this one.
        """
        self._storage.create()
        try:
            number, self._token = self._take_number(succession)
        except CheckpointError:
            raise
        except Exception as error:  # remote stores raise errors of many kinds
            raise CheckpointError(
                f"The checkpoint folder {self._storage.url} cannot be claimed: {error_told(error)}. "
                "Give one in which files can be listed, read, written and removed, or try again once its "
                "disk or its store answers."
            ) from error
        self._number, self._pid = number, os.getpid()
        for earlier in _fences_in(self._storage.listed()):
            if earlier < number:
                with suppress(Exception):  # it no longer means anything
                    self._storage.remove(_fence_file(earlier))
        return number

    def _take_number(self, succession: Succession | None) -> tuple[int, str]:
        """Create the next fence file, and return its number and the token in it."""
        # Not below the own earlier claim, whose file may be gone.
        number, pause = max(self._number, 0 if succession is None else succession.first), 0.01
        deadline = time.monotonic() + _CLAIM_SECONDS
        while True:
            # A listing may lag behind: what was refused is taken, whether listed or not.
            listed = self._storage.listed()
            if succession is not None:
                self._check_succession(succession, listed)
            used = [number, *_fences_in(listed), *(name.fence for name in checkpoints_in(listed))]
            number, token = max(used) + 1, secrets.token_hex(16)
            holder = {
                "number": number,
                "token": token,
                "host": socket.gethostname(),
                "pid": os.getpid(),
                "time": time_text(),
                **({} if succession is None else succession._asdict()),
            }
            if self._storage.write_new(_fence_file(number), json.dumps(holder).encode()):
                # Somebody may have taken this number and a later one, and removed it, since the listing.
                if max(_fences_in(self._storage.listed()), default=0) == number:
                    return number, token
            if time.monotonic() > deadline:
                raise CheckpointError(
                    f"The checkpoint folder {self._storage.url} could not be claimed within "
                    f"{_CLAIM_SECONDS:g} s: each number that is free by its listing is taken, the last one "
                    f"was {number}. Other processes claim it all the time, or its listing lags behind, as on "
                    "a network file system that keeps old ones. End those processes, or give another "
                    "checkpoint_dir."
                )
            time.sleep(pause)
            pause = min(2.0 * pause, 0.5)

    def _check_succession(self, succession: Succession, listed: Iterable[str]) -> None:
        """Raise CheckpointFencedError where nobody may claim by `succession` any more."""
        newest = max(_fences_in(listed), default=0)
        if newest <= succession.first:
            return
        holder = self._holder(newest)
        if not holder:
            listed = self._storage.listed()
            if newest not in _fences_in(listed):  # a later one has taken its place
                return self._check_succession(succession, listed)
            raise self._damaged(newest, "If no other process trains with this folder, remove that file.")
        term = holder.get("term")
        if (
            holder.get("first") != succession.first
            or not isinstance(term, int)
            or term > succession.term  # of the same term: this process's, which did not come back from it
        ):
            raise self._fenced(newest, holder, f"this process was to follow number {succession.first}")

    def check(self) -> int:
        """Return the number of this claim; CheckpointFencedError if another process has claimed the folder.

        CheckpointError if that cannot be found out, or the folder was never claimed.
        """
        if self._number == 0:
            raise CheckpointError(
                f"The checkpoint folder {self._storage.url} was not claimed. Call claim() first."
            )
        self.check_process()
        newest = max(_fences_in(self._storage.listed()), default=None)
        if newest is None:
            raise CheckpointError(
                f"The checkpoint folder {self._storage.url} has been removed or emptied. "
                "Put it back, or call train again, which makes it anew."
            )
        try:
            holder = self._holder(newest)
        except Exception:  # remote stores raise errors of many kinds
            if newest <= self._number:
                raise
            holder = {}  # whoever it is has replaced this process
        if newest == self._number:
            if holder.get("token") == self._token:
                return self._number
            if not holder:
                if newest not in _fences_in(self._storage.listed()):  # a later one has taken its place
                    return self.check()
                raise self._damaged(newest, "Where it stays so, start the program again.")
        raise self._fenced(newest, holder, f"this process has {self._number}")

    def check_process(self) -> None:
        """Raise CheckpointFencedError in a process that was forked from the one which claimed the folder."""
        if self.number != self._number:
            raise CheckpointFencedError(
                f"The checkpoint folder {self._storage.url} belongs to process {self._pid}, from which this "
                "one was forked in the middle of a training: it must not save that as well. Let the new "
                "process call train itself, with a checkpoint_dir of its own if both are to go on."
            )

    def _damaged(self, number: int, instead: str) -> CheckpointError:
        return CheckpointError(
            f"{_fence_file(number)} in {self._storage.url}, which says who may write there, is damaged or "
            f"not complete yet. {instead}"
        )

    def _fenced(self, newest: int, holder: dict[str, Any], own: str) -> CheckpointFencedError:
        who = ", ".join(f"{key} {holder[key]!a}" for key in ("host", "pid", "time") if key in holder)
        return CheckpointFencedError(
            f"The checkpoint folder {self._storage.url} now belongs to another server ({who or 'unknown'}; "
            f"fencing number {newest}, {own}). This process has been replaced and must stop. If both should "
            "run, give each its own checkpoint_dir."
        )

    @property
    def claimed(self) -> tuple[int, str]:
        """The number of this claim, and what stands in its file alone: see `sees`."""
        return self._number, self._token

    def sees(self, claimed: tuple[int, str], seconds: float) -> bool:
        """Return whether another process's claim is here, as it is in the same folder.

        It is looked for as long as that: a network file system may tell of it late. CheckpointError where the
        store cannot be reached at all, such as for want of a package.
        """
        number, token = claimed
        deadline = time.monotonic() + seconds
        while True:
            try:
                if self._holder(number).get("token") == token:
                    return True
            except CheckpointError:
                raise
            except Exception:  # remote stores raise errors of many kinds
                pass
            if time.monotonic() > deadline:
                return False
            time.sleep(_SIGHT_SECONDS)

    def _holder(self, number: int) -> dict[str, Any]:
        """Return what a fence file says of its holder; nothing where it is damaged or half written."""
        try:
            with self._storage.open(_fence_file(number)) as file:
                holder = json.loads(file.read(10_000))
        except (FileNotFoundError, ValueError, RecursionError):
            return {}
        return holder if isinstance(holder, dict) else {}


def _fence_file(number: int) -> str:
    return f"fence-{number:06d}.json"


def _fences_in(listed: Iterable[str]) -> list[int]:
    """Return the numbers of the fence files among the names in a folder."""
    matches = (re.fullmatch("fence-([0-9]{6,18})[.]json", name) for name in listed)
    return [int(match[1]) for match in matches if match]


def time_text() -> str:
    """Return the time of day in UTC, as fence files and manifests hold it."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
