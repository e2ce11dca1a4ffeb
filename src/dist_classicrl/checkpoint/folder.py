"""The checkpoints of one agent in one folder: who may write, what is whole, what is kept."""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import re
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, BinaryIO

import numpy as np

from dist_classicrl.checkpoint import arrays as array_files
from dist_classicrl.checkpoint.storage import open_storage
from dist_classicrl.errors import CheckpointError, CheckpointFencedError, SettingsError

logger = logging.getLogger(__name__)

FORMAT = "dist_classicrl checkpoint"
FORMAT_VERSION = 3
MANIFEST = "manifest.json"
_MAX_MANIFEST = 64 * 2**20
_ARRAY_NAME = re.compile("[a-z0-9_]+")
_CLAIM_SECONDS = 10.0
_OWN_KEYS = ("format", "format_version", "package_version", "fence", "sequence", "written", "host", "arrays")


@dataclass(frozen=True)
class Saved:
    """One checkpoint as it was read.

    Attributes
    ----------
    name : str
        Its folder's name.
    url : str
        Where it is, for people.
    body : dict
        What its writer said of it, and what the folder added: fence, sequence, time and so on.
    arrays : dict of str to ndarray
    """

    name: str
    url: str
    body: dict[str, Any]
    arrays: dict[str, np.ndarray]


@dataclass(frozen=True, order=True)
class _Name:
    """A checkpoint's name; sorted by fence, then sequence: a server that was replaced may write late."""

    fence: int
    sequence: int
    steps: int
    run: str

    def __str__(self) -> str:
        return f"f{self.fence:06d}-c{self.sequence:08d}-step{self.steps:015d}-{self.run}"

    @classmethod
    def parse(cls, name: str) -> _Name | None:
        """Return what `name` says, or None if no checkpoint is named like that."""
        match = re.fullmatch("f([0-9]{6,20})-c([0-9]{8,20})-step([0-9]{15,20})-([0-9a-f]{8})", name)
        if match is None:
            return None
        fence, sequence, steps, run = match.groups()
        parsed = cls(int(fence), int(sequence), int(steps), run)
        return parsed if str(parsed) == name else None


class _NotWanted(Exception):
    """Nobody wants the checkpoint any more that is being written."""


class CheckpointFolder:
    """The checkpoints of one agent.

    Whoever writes holds the folder: `claim` takes the next fencing number, and from then on every earlier
    holder is refused by `check_fence`, and so by `write`. Reading needs no claim.

    Parameters
    ----------
    location : str or path-like
        A folder's path, or a URL that fsspec knows.
    agent : str
        Name of the subfolder.
    keep_last : int
        How many checkpoints of a run stay.
    keep_every : int or None
        Those whose sequence number is a multiple of this stay as well.
    mode : int
        Permissions of files on local file systems; folders are as open as their files.
    """

    def __init__(
        self,
        location: str | os.PathLike[str],
        agent: str,
        keep_last: int = 3,
        keep_every: int | None = None,
        mode: int = 0o600,
    ) -> None:
        self.keep(keep_last, keep_every)
        self._storage = open_storage(location, agent, mode)
        self.mode = mode
        self._fence: int | None = None
        self._token = ""
        self._warned: set[_Name | str] = set()  # what was skipped, and "rotation"
        # Complete checkpoints that stay, by the rule of a run and what is kept of it.
        self._settled: tuple[tuple[Any, ...], set[_Name]] = ((), set())

    def keep(self, keep_last: int, keep_every: int | None) -> None:
        """Set how many checkpoints stay from the next one on; see the constructor's arguments."""
        _check_count("keep_last", keep_last)
        if keep_every is not None:
            _check_count("keep_every", keep_every, ", or None")
        self._keep_last = keep_last
        self._keep_every = keep_every

    @property
    def mode(self) -> int:
        """Permissions of files that are written from now on."""
        return self._storage.mode

    @mode.setter
    def mode(self, mode: int) -> None:
        if not isinstance(mode, int) or not 0 <= mode <= 0o777 or mode & 0o600 != 0o600:
            raise SettingsError(
                "checkpoint_mode must be permissions that let the owner read and write, "
                f"from 0o600 to 0o777, got {mode if not isinstance(mode, int) else oct(mode)}."
            )
        self._storage.mode = mode

    @property
    def url(self) -> str:
        """Where the folder is, for people."""
        return self._storage.url

    def url_of(self, name: str) -> str:
        """Return where the checkpoint `name` is, for people."""
        return f"{self.url}/{name}"

    def names(self) -> list[str]:
        """Return the names of the complete checkpoints, newest first.

        Raises
        ------
        CheckpointError
            If the folder cannot be listed.
        """
        return [str(name) for name in reversed(self._checkpoints()) if self._is_complete(name)]

    def newest_steps(self) -> int | None:
        """Return the global step of the newest complete checkpoint; None if there is none.

        Raises
        ------
        CheckpointError
            If the folder cannot be listed.
        """
        return next((name.steps for name in reversed(self._checkpoints()) if self._is_complete(name)), None)

    # Reading

    def read(self, name: str) -> Saved:
        """Return the checkpoint `name`.

        Raises
        ------
        CheckpointError
            If there is none of that name, or it is truncated, damaged or foreign. Nothing in it is ever run.
        """
        try:
            parsed = _Name.parse(name)
            if parsed is None:
                raise ValueError("its name is none of a checkpoint")
            body, entries = _checked(self._read_manifest(name), parsed)
            arrays = {key: self._read_array(name, key, entry) for key, entry in entries.items()}
        except MemoryError:  # says nothing about the checkpoint
            raise
        except Exception as error:  # damaged files and remote stores raise errors of many kinds
            raise CheckpointError(
                f"{self._refusal(name, error)} Use an earlier one, or a copy of its folder from a backup."
            ) from error
        return Saved(name, self.url_of(name), body, arrays)

    def read_newest(self) -> Saved | None:
        """Return the newest checkpoint that can be used; None if there is no checkpoint at all.

        Only one of the same run takes the place of one that is damaged.

        Raises
        ------
        CheckpointError
            If there are checkpoints, but none of the newest one's run can be used.
        """
        refused: dict[_Name, str] = {}
        # Listed again after each failure: meanwhile a writer may have replaced all that was there.
        while True:
            name, other = self._best_but(refused)
            if name is None:
                break
            try:
                saved = self.read(str(name))
            except CheckpointError as error:
                refused[name] = self._refusal(str(name), error.__cause__)
                continue
            for skipped, why in refused.items():
                if skipped not in self._warned:
                    self._warned.add(skipped)
                    logger.warning("%s Using %s instead.", why, name)
            return saved
        if not refused:
            return None
        message = f"There is no usable checkpoint in {self.url}: {' '.join(refused.values())} "
        if other is not None:
            raise CheckpointError(
                f"{message}{self.url_of(str(other))} is of another run, which began apart from this one: to "
                f"go on from it, move {', '.join(map(str, refused))} away; to start from nothing, give "
                "another checkpoint_dir."
            )
        raise CheckpointError(
            f"{message}To start from nothing, give another checkpoint_dir or move these folders away."
        )

    def _best_but(self, refused: Mapping[_Name, str]) -> tuple[_Name | None, _Name | None]:
        """Return the newest checkpoint of the newest one's run, and the newest one of others.

        Those that were `refused` are passed over. The second is looked for only where there is no first.
        """
        newest = other = None
        for name in filter(self._is_complete, reversed(self._checkpoints())):
            newest = newest or name
            if name in refused:
                continue
            if name.run == newest.run:
                return name, None
            other = other or name
        return None, other

    # Writing

    def claim(self) -> int:
        """Take the next fencing number: all who held the folder before are refused from now on.

        Raises
        ------
        CheckpointError
            If the folder cannot be made or written to.
        """
        self._storage.create()
        number, pause = 0, 0.01
        deadline = time.monotonic() + _CLAIM_SECONDS
        try:
            while True:
                # A listing may lag behind: what was refused is taken, whether listed or not.
                used = [number, *self._fences(), *(name.fence for name in self._checkpoints())]
                number = max(used) + 1
                token = secrets.token_hex(16)
                holder = {
                    "number": number,
                    "token": token,
                    "host": socket.gethostname(),
                    "pid": os.getpid(),
                    "time": _now(),
                }
                if self._storage.write_new(_fence_file(number), json.dumps(holder).encode()):
                    # Somebody may have taken this number and a later one, and removed it, since the listing.
                    if max(self._fences(), default=0) == number:
                        break
                if time.monotonic() > deadline:
                    raise CheckpointError(
                        f"The checkpoint folder {self.url} could not be claimed within {_CLAIM_SECONDS:g} s: "
                        f"each number that is free by its listing is taken, the last one was {number}. Other "
                        "processes claim it all the time, or its listing lags behind, as on a network file "
                        "system that keeps old ones. End those processes, or give another checkpoint_dir."
                    )
                time.sleep(pause)
                pause = min(2.0 * pause, 0.5)
        except CheckpointError:
            raise
        except Exception as error:  # remote stores raise errors of many kinds
            raise CheckpointError(
                f"The checkpoint folder {self.url} cannot be claimed: {error}. "
                "Give a folder in which files can be listed, read, written and removed."
            ) from error
        self._fence, self._token = number, token
        for earlier in self._fences():
            if earlier < number:
                with suppress(Exception):  # it means nothing any more
                    self._storage.remove(_fence_file(earlier))
        return number

    def check_fence(self) -> None:
        """Make sure that nobody else has claimed the folder since this object did.

        Raises
        ------
        CheckpointFencedError
            If somebody has.
        CheckpointError
            If that cannot be found out, or the folder was never claimed.
        """
        if self._fence is None:
            raise CheckpointError(f"The checkpoint folder {self.url} was not claimed. Call claim() first.")
        newest = max(self._fences(), default=None)
        if newest is None:
            raise CheckpointError(
                f"The checkpoint folder {self.url} has been removed or emptied. "
                "Put it back, or start the program again."
            )
        holder = self._holder(newest)
        if newest == self._fence and holder.get("token") == self._token:
            return
        who = ", ".join(f"{key} {holder[key]!a}" for key in ("host", "pid", "time") if key in holder)
        raise CheckpointFencedError(
            f"The checkpoint folder {self.url} now belongs to another server ({who or 'unknown'}; "
            f"fencing number {newest}, this process has {self._fence}). This process has been replaced and "
            "must stop. If both should run, give each its own checkpoint_dir."
        )

    def write(
        self,
        arrays: Mapping[str, np.ndarray],
        body: dict[str, Any],
        run: str,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> str | None:
        """Write a checkpoint, verify it, remove what is no longer kept, and return its name.

        Return None, and leave nothing of it, if it is no longer wanted.

        Parameters
        ----------
        arrays : mapping of str to ndarray
            Plain numbers; nobody may change them while the checkpoint is wanted.
        body : dict
            Plain data for JSON, with "steps".
        run : str
            8 hexadecimal digits; only checkpoints of the same run are ever removed.
        is_wanted : callable
            Asked before each array, and right before the manifest: whether to go on.

        Raises
        ------
        CheckpointFencedError
            If somebody else has claimed the folder. Nothing is left of this checkpoint then.
        Exception
            Whatever the storage raises. What was half written is removed where that is possible.
        """
        self.check_fence()
        assert self._fence is not None
        present = self._checkpoints()
        name = _Name(
            self._fence, max((other.sequence for other in present), default=0) + 1, body["steps"], run
        )
        if _Name.parse(str(name)) != name or not all(map(_ARRAY_NAME.fullmatch, arrays)):
            raise ValueError(f"{name} and {', '.join(arrays)} are no names of a checkpoint and its arrays")
        taken = sorted(set(body) & set(_OWN_KEYS))
        if taken:
            raise ValueError(f"{', '.join(taken)} are given by the folder itself, not by the caller")
        try:
            self._write(name, arrays, body, is_wanted)
        except BaseException as error:
            # The manifest first: without it, nobody takes the rest for a checkpoint.
            with suppress(Exception):
                self._remove(name)
            if isinstance(error, _NotWanted):
                return None
            raise
        try:
            self._rotate(name)
        except Exception as error:
            if "rotation" not in self._warned:
                self._warned.add("rotation")
                logger.warning("Old checkpoints in %s cannot be removed: %s", self.url, error)
        return str(name)

    def _write(
        self,
        name: _Name,
        arrays: Mapping[str, np.ndarray],
        body: dict[str, Any],
        is_wanted: Callable[[], bool],
    ) -> None:
        from dist_classicrl import __version__

        folder = str(name)
        entries = {}
        for key, array in arrays.items():
            _check_wanted(is_wanted)
            file = array_files.ArrayFile(array)
            self._storage.write(f"{folder}/{key}.npy", file.chunks())
            entries[key] = file.entry()
        self._storage.sync(folder)
        for key, entry in entries.items():
            _check_wanted(is_wanted)
            with self._storage.open(f"{folder}/{key}.npy") as written:
                array_files.verify(written, entry)
        manifest = _manifest(
            {
                **body,
                "format": FORMAT,
                "format_version": FORMAT_VERSION,
                "package_version": __version__,
                "fence": name.fence,
                "sequence": name.sequence,
                "written": _now(),
                "host": socket.gethostname(),
                "arrays": {key: {"file": f"{key}.npy", **entry.to_dict()} for key, entry in entries.items()},
            }
        )
        self.check_fence()
        _check_wanted(is_wanted)
        self._storage.write(f"{folder}/{MANIFEST}", [manifest])
        self._storage.sync(folder)
        self._storage.sync("")
        if self._read_manifest(folder) != manifest:
            raise OSError(f"{self.url_of(folder)}/{MANIFEST} does not hold what was written to it")

    def _rotate(self, newest: _Name) -> None:
        """Remove checkpoints of the same run that are not kept, and what others left half written.

        One that cannot be removed does not keep the others; the first such error is raised at the end.
        """
        rule = (newest.run, self._keep_last, self._keep_every)
        if self._settled[0] != rule:
            self._settled = (rule, set())
        settled = self._settled[1]
        ours = 0
        trouble: Exception | None = None
        # Looking into each folder takes time where there are thousands, or behind a URL.
        for name in reversed([name for name in self._checkpoints() if name not in settled]):
            try:
                if not self._is_complete(name):
                    if name < newest:
                        self._remove(name)
                elif name.run != newest.run:
                    settled.add(name)
                else:
                    ours += 1
                    if ours <= self._keep_last:
                        continue
                    if self._keep_every is not None and name.sequence % self._keep_every == 0:
                        settled.add(name)
                    else:
                        self._remove(name)
            except Exception as error:  # remote stores raise errors of many kinds
                trouble = trouble or error
        if trouble is not None:
            raise trouble

    def _remove(self, name: _Name) -> None:
        self._storage.remove(f"{name}/{MANIFEST}")
        self._storage.remove(str(name))

    # What is in the folder

    def _checkpoints(self) -> list[_Name]:
        """Return all that is named like a checkpoint, complete or not, oldest first."""
        return sorted(name for name in map(_Name.parse, self._listed()) if name is not None)

    def _is_complete(self, name: _Name) -> bool:
        return MANIFEST in self._listed(str(name))

    def _fences(self) -> list[int]:
        matches = (re.fullmatch("fence-([0-9]{6,20})[.]json", name) for name in self._listed())
        return [int(match[1]) for match in matches if match]

    def _listed(self, folder: str = "") -> list[str]:
        try:
            return self._storage.names(folder)
        except Exception as error:  # remote stores raise errors of many kinds
            raise CheckpointError(
                f"The checkpoint folder {self.url} cannot be listed: {error}. "
                "Give a folder that this user may read."
            ) from error

    def _holder(self, number: int) -> dict[str, Any]:
        """Return what a fence file says of its holder; nothing where it is damaged or half written."""
        try:
            with self._storage.open(_fence_file(number)) as file:
                holder = json.loads(file.read(10_000))
        except (FileNotFoundError, ValueError, RecursionError):
            return {}
        return holder if isinstance(holder, dict) else {}

    def _read_manifest(self, name: str) -> bytes:
        try:
            with self._storage.open(f"{name}/{MANIFEST}") as file:
                return _take(file)
        except FileNotFoundError as error:
            raise ValueError(f"it has no {MANIFEST}") from error

    def _read_array(self, name: str, key: str, entry: array_files.Entry) -> np.ndarray:
        try:
            with self._storage.open(f"{name}/{key}.npy") as file:
                return array_files.read(file, entry)
        except FileNotFoundError as error:
            raise ValueError(f"{key}.npy is missing") from error
        except ValueError as error:
            raise ValueError(f"{key}.npy is damaged: {error}") from error

    def _refusal(self, name: str, error: BaseException | None) -> str:
        why = str(error) or type(error).__name__
        return f"{self.url_of(name)} is no usable checkpoint: {why}."


def _check_wanted(is_wanted: Callable[[], bool]) -> None:
    if not is_wanted():
        raise _NotWanted


def _take(file: BinaryIO) -> bytes:
    """Return a manifest's bytes."""
    size = file.seek(0, io.SEEK_END)
    if size > _MAX_MANIFEST:
        raise ValueError(f"its manifest has {size} bytes, allowed are {_MAX_MANIFEST}")
    file.seek(0)
    return file.read(size)


def _manifest(body: dict[str, Any]) -> bytes:
    """Return the manifest's bytes for `body`."""
    # As it will be read: the checksum must not depend on keys that JSON turns into strings.
    plain = json.loads(json.dumps(body, allow_nan=False))
    text = _canonical(plain)
    manifest = f'{{"body":{text},"sha256":"{hashlib.sha256(text.encode()).hexdigest()}"}}'.encode()
    if len(manifest) > _MAX_MANIFEST:
        raise ValueError(f"the manifest would have {len(manifest)} bytes, allowed are {_MAX_MANIFEST}")
    return manifest


def _checked(data: bytes, name: _Name) -> tuple[dict[str, Any], dict[str, array_files.Entry]]:
    """Return the body and the arrays' entries of the manifest of the checkpoint `name`."""
    try:
        manifest = json.loads(data.decode(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"its manifest is damaged ({error})") from error
    if not isinstance(manifest, dict) or set(manifest) != {"body", "sha256"}:
        raise ValueError("its manifest is none of a checkpoint")
    body = manifest["body"]
    if hashlib.sha256(_canonical(body).encode()).hexdigest() != manifest["sha256"]:
        raise ValueError("the checksum of its manifest does not match")
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        raise ValueError("it was not written by this library")
    if body.get("format_version") != FORMAT_VERSION:
        raise ValueError(
            f"its format version is {body.get('format_version')!a}, this library reads {FORMAT_VERSION}"
        )
    expected = {"fence": name.fence, "sequence": name.sequence, "steps": name.steps}
    # As text: Python takes JSON's true and 1.0 for equal to 1.
    if _canonical({key: body.get(key) for key in expected}) != _canonical(expected):
        raise ValueError("its name and its manifest contradict each other")
    if not isinstance(body.get("arrays"), dict):
        raise ValueError("its manifest lists no arrays")
    return body, dict(_entries(body["arrays"]))


def _entries(arrays: dict[str, Any]) -> Iterator[tuple[str, array_files.Entry]]:
    for key, data in arrays.items():
        if _ARRAY_NAME.fullmatch(key) is None:
            raise ValueError(f"{key!a} is no name of an array")
        try:
            entry = array_files.Entry.of(data)
        except ValueError as error:
            raise ValueError(f"its manifest describes {key} wrongly: {error}") from error
        if data.get("file") != f"{key}.npy":
            raise ValueError(f"{data.get('file')!a} is not the file of {key}")
        yield key, entry


def _canonical(body: Any) -> str:
    return json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _fence_file(number: int) -> str:
    return f"fence-{number:06d}.json"


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _check_count(name: str, value: Any, otherwise: str = "") -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise SettingsError(f"{name} must be a whole number of at least 1{otherwise}, got {value!r}.")
