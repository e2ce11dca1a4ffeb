"""The checkpoints of one agent in one folder: reading, writing, and which of them are kept."""

from __future__ import annotations

import errno
import logging
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from dist_classicrl._version import __version__
from dist_classicrl.checkpoint import arrays as array_files
from dist_classicrl.checkpoint import manifest
from dist_classicrl.checkpoint.fence import Fence, time_text
from dist_classicrl.checkpoint.location import open_storage
from dist_classicrl.checkpoint.manifest import MANIFEST
from dist_classicrl.checkpoint.names import CheckpointName, checkpoints_in
from dist_classicrl.checkpoint.parts import is_part, whole_table
from dist_classicrl.errors import CheckpointError, CheckpointFencedError, CheckpointUnreadableError

logger = logging.getLogger(__name__)

# What is raised, and what the system says, where there is no file or something else in its place.
_NO_FILE = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
_NO_FILE_CODES = (errno.ELOOP, errno.EINVAL, errno.ENXIO)


@dataclass(frozen=True)
class Saved:
    """One checkpoint as it was read."""

    name: str  # its folder's
    url: str  # where it is, for people
    body: dict[str, Any]  # what its writer said of it, and what the folder added: fence, sequence and so on
    arrays: dict[str, np.ndarray]


class CheckpointFolder:
    """The checkpoints of one agent: the subfolder `agent` of `location`, a path or a URL that fsspec knows.

    A process claims the folder by its `fence` before it writes: then every earlier claim is refused. Reading
    needs no claim. Of a run the last `keep_last` checkpoints stay, and those whose sequence number is a
    multiple of `keep_every`. `mode` are the permissions of files on local file systems; folders are as open
    as their files.
    """

    def __init__(
        self,
        location: str | os.PathLike[str],
        agent: str,
        keep_last: int = 3,
        keep_every: int | None = None,
        mode: int = 0o600,
    ) -> None:
        self.keep_last, self.keep_every = keep_last, keep_every
        self.storage = open_storage(location, agent, mode)
        self.fence = Fence(self.storage)
        self._warned: set[CheckpointName | str] = set()  # what was skipped, and "rotation"
        self._discarded = 0  # the last sequence number of those that were
        self._cleared = 0  # the fence under which `clear` was done; 0: it is to be done
        # Complete checkpoints that stay, with the run and the rule of keeping for which that was found.
        self._settled: tuple[tuple[Any, ...], set[CheckpointName]] = ((), set())

    @property
    def url(self) -> str:
        """Where the folder is, for people."""
        return self.storage.url

    def url_of(self, name: str) -> str:
        """Return where the checkpoint `name` is, for people."""
        return f"{self.url}/{name}"

    def names(self) -> list[str]:
        """Return the names of the complete checkpoints, newest first."""
        return [str(name) for name in reversed(self._checkpoints()) if self.has(name)]

    def newest(self) -> CheckpointName | None:
        """Return the newest complete checkpoint; None if there is none. Older ones are not looked into."""
        return next(filter(self.has, reversed(self._checkpoints())), None)

    def has(self, name: CheckpointName | str) -> bool:
        """Whether the checkpoint `name` is there, complete."""
        return MANIFEST in self.storage.listed(str(name))

    def has_any(self, run: str) -> bool:
        """Whether there is a complete checkpoint of this run."""
        return any(name.run == run and self.has(name) for name in reversed(self._checkpoints()))

    # Reading

    def read(self, name: str, is_verified: bool = False, look: Callable[[], None] = lambda: None) -> Saved:
        """Return the checkpoint `name`; nothing in it is ever run.

        A table in parts is read when it is looked at, after all of it was checked; `is_verified`: another
        process has done that. `look` is called before each piece that is read. CheckpointError if there is
        none of that name, or it is truncated, damaged or foreign; CheckpointUnreadableError where that cannot
        be found out for now, or it is whole and of another version of this package.
        """
        try:
            parsed = CheckpointName.parse(name)
            if parsed is None:
                raise ValueError("its name is not that of a checkpoint")
            look()
            body, entries = manifest.checked(self._read_manifest(name), parsed, self.url_of(name))
            arrays: dict[str, Any] = {}
            for key, entry in entries.items():
                if not is_part(key):
                    arrays[key] = self._read_array(name, key, entry, look)
                elif not is_verified:
                    self._read_array(name, key, entry, look, array_files.verify)
            if any(map(is_part, entries)):
                arrays |= whole_table(self.storage, name, entries, look)
        except (MemoryError, CheckpointUnreadableError):  # says nothing about the checkpoint
            raise
        except Exception as error:  # remote stores raise errors of many kinds
            is_damage = isinstance(error, (ValueError, *_NO_FILE))
            if not is_damage and getattr(error, "errno", None) not in _NO_FILE_CODES:
                raise CheckpointUnreadableError(
                    f"{self.url_of(name)} cannot be read: {str(error) or type(error).__name__}. It may be as "
                    "good as ever: try again once this user can reach and read it. If it never can be read, "
                    "move it away to go on from the one before it."
                ) from error
            raise CheckpointError(
                f"{self._refusal(name, error)} Use an earlier one, or a copy of its folder from a backup."
            ) from error
        return Saved(name, self.url_of(name), body, arrays)

    def read_newest(self, look: Callable[[], None] = lambda: None) -> Saved | None:
        """Return the newest checkpoint that can be used, see `read`; None if there is no checkpoint at all.

        Only one of the same run takes the place of one that is damaged: CheckpointError if none of the newest
        one's run can be used. CheckpointUnreadableError where it may be good: an older one would undo it.
        """
        refused: dict[CheckpointName, str] = {}
        # Listed again after each failure: meanwhile a writer may have replaced all that was there.
        while True:
            name, other = self._best_but(refused)
            if name is None:
                break
            try:
                saved = self.read(str(name), look=look)
            except CheckpointError as error:
                if not self.has(name):
                    continue  # its writer has removed it meanwhile
                if isinstance(error, CheckpointUnreadableError):
                    raise
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

    def _best_but(
        self, refused: Mapping[CheckpointName, str]
    ) -> tuple[CheckpointName | None, CheckpointName | None]:
        """Return the newest checkpoint of the newest run, and the newest one of other runs.

        Those that were `refused` are passed over. The second is looked for only where there is no first.
        """
        newest = other = None
        for name in filter(self.has, reversed(self._checkpoints())):
            newest = newest or name
            if name in refused:
                continue
            if name.run == newest.run:
                return name, None
            other = other or name
        return None, other

    # Writing

    def write(
        self,
        arrays: Mapping[str, np.ndarray | array_files.InSlices],
        body: dict[str, Any],
        run: str,
        look: Callable[[], None] = lambda: None,
        name: CheckpointName | None = None,
        parts: Mapping[str, array_files.ArrayEntry] | None = None,
    ) -> str:
        """Write a checkpoint, verify it, remove what is no longer kept, and return its name. See `clear`.

        `look` is called before each piece of an array is written, or read back, and right before the
        manifest; what it raises, such as GivenUp, comes through, and nothing is left. The `arrays` must not
        change until then; `body` is plain data for JSON, with "steps"; `run` has 8 hexadecimal digits: only
        checkpoints of the same run are ever removed.
        `parts` are entries of arrays that others have written to a folder whose `name` was `next_name`.

        CheckpointFencedError if another process has claimed the folder. Whatever else the storage raises
        comes through. In either case what was half written is removed where that is possible.
        """
        name = self.next_name(body["steps"], run) if name is None else name
        if CheckpointName.parse(str(name)) != name or not all(map(manifest.ARRAY_NAME.fullmatch, arrays)):
            raise ValueError(f"{name} and {', '.join(arrays)} are no names of a checkpoint and its arrays")
        taken = sorted(set(body) & set(manifest.OWN_KEYS))
        if taken:
            raise ValueError(f"{', '.join(taken)} are given by the folder itself, not by the caller")
        self.clear(name)
        try:
            self._write(name, arrays, body, look, parts or {})
        except BaseException:
            with suppress(Exception):
                self.discard(name)
            self.check_replaced()  # who has taken over removes what is here half written
            raise
        self._rotate(name)
        return str(name)

    def next_name(self, steps: int, run: str) -> CheckpointName:
        """Return the name of the next checkpoint; CheckpointFencedError as for `write`."""
        fence = self.fence.check()
        sequence = max([self._discarded, *(other.sequence for other in self._checkpoints())]) + 1
        return CheckpointName(fence, sequence, steps, run)

    def check_replaced(self) -> None:
        """Raise CheckpointFencedError if another process has claimed the folder, and nothing else."""
        try:
            self.fence.check()
        except CheckpointFencedError:
            raise
        except Exception:  # a disk that does not say so: what has failed there is told
            return

    def clear(self, newest: CheckpointName) -> None:
        """Remove what was left half written before `newest`, of any run: it may be what fills the disk.

        That is done before the first checkpoint of each claim, and before the next one after a failure.
        Whoever writes there still has been replaced, or is too late. Behind a complete one there is nothing
        to look for: who wrote that has looked.
        """
        if self._cleared == newest.fence:
            return
        self._cleared = newest.fence
        with self._telling_once():
            for name in reversed(self._checkpoints()):
                with self._telling_once():
                    if self.has(name):
                        break
                    self._remove_half_written(name, newest)

    def discard(self, name: CheckpointName) -> None:
        """Remove what there is of a checkpoint that is not written; its name is not taken again."""
        self._discarded = max(self._discarded, name.sequence)  # somebody who is late may still write there
        self._cleared = 0
        self._remove(name)

    def _write(
        self,
        name: CheckpointName,
        arrays: Mapping[str, np.ndarray | array_files.InSlices],
        body: dict[str, Any],
        look: Callable[[], None],
        parts: Mapping[str, array_files.ArrayEntry],
    ) -> None:
        folder, entries = str(name), {}
        for key, array in arrays.items():
            file = array_files.ArrayFile(array)
            self.storage.write(f"{folder}/{key}.npy", file.chunks(look))
            entries[key] = file.entry()
        self.storage.sync(folder)
        for key, entry in entries.items():
            with self.storage.open(f"{folder}/{key}.npy") as written:
                array_files.verify(written, entry, look)
        content = manifest.as_bytes(
            {
                **body,
                "format": manifest.FORMAT,
                "format_version": manifest.FORMAT_VERSION,
                "package_version": __version__,
                "fence": name.fence,
                "sequence": name.sequence,
                "written": time_text(),
                "host": socket.gethostname(),
                "arrays": {
                    key: {"file": f"{key}.npy", **entry.to_dict()}
                    for key, entry in {**entries, **parts}.items()
                },
            }
        )
        self.fence.check()
        look()
        self.storage.write(f"{folder}/{MANIFEST}", [content])
        self.storage.sync(folder)
        self.storage.sync("")
        if self._read_manifest(folder) != content:
            raise OSError(f"{self.url_of(folder)}/{MANIFEST} does not hold what was written to it")
        # Whoever has claimed the folder since may have removed the arrays before the manifest was there.
        self.fence.check()

    def _rotate(self, newest: CheckpointName) -> None:
        """Remove checkpoints of the same run that are not kept, and what others left half written.

        One that cannot be removed does not keep the others.
        """
        rule = (newest.run, self.keep_last, self.keep_every)
        if self._settled[0] != rule:
            self._settled = (rule, set())
        settled = self._settled[1]
        ours = 0
        with self._telling_once():
            # Looking into each folder takes time where there are thousands, or behind a URL.
            for name in reversed([name for name in self._checkpoints() if name not in settled]):
                with self._telling_once():
                    if not self.has(name):
                        self._remove_half_written(name, newest)
                    elif name.run != newest.run:
                        settled.add(name)
                    else:
                        ours += 1
                        if ours <= self.keep_last:
                            continue
                        if self.keep_every is not None and name.sequence % self.keep_every == 0:
                            settled.add(name)
                        else:
                            self._remove(name)

    def _remove_half_written(self, name: CheckpointName, newest: CheckpointName) -> None:
        """Remove what a listing has without a manifest, unless another one may write it, or it has one."""
        if name < newest and not self._has_manifest(name):
            self._remove(name)

    @contextmanager
    def _telling_once(self) -> Iterator[None]:
        """Log the first time that an old checkpoint cannot be removed, which is no trouble of new ones."""
        try:
            yield
        except Exception as error:  # remote stores raise errors of many kinds
            if "rotation" not in self._warned:
                self._warned.add("rotation")
                logger.warning("Old checkpoints in %s cannot be removed: %s", self.url, error)

    def _remove(self, name: CheckpointName) -> None:
        # The manifest first: without it, nobody takes the rest for a checkpoint.
        self.storage.remove(f"{name}/{MANIFEST}")
        self.storage.remove(str(name))

    # What is in the folder

    def _checkpoints(self) -> list[CheckpointName]:
        """Return all that is named like a checkpoint, complete or not, oldest first."""
        return checkpoints_in(self.storage.listed())

    def _has_manifest(self, name: CheckpointName) -> bool:
        """Whether it has one by name, as a listing may lag behind; what is no folder is not one of ours."""
        try:
            self.storage.open(f"{name}/{MANIFEST}").close()
        except FileNotFoundError:
            return False
        except NotADirectoryError:
            pass
        return True

    def _read_manifest(self, name: str) -> bytes:
        try:
            with self.storage.open(f"{name}/{MANIFEST}") as file:
                return manifest.read_bytes(file)
        except FileNotFoundError as error:
            raise ValueError(f"it has no {MANIFEST}") from error

    def _read_array(
        self,
        name: str,
        key: str,
        entry: array_files.ArrayEntry,
        look: Callable[[], None],
        read: Callable[..., Any] = array_files.read,
    ) -> Any:
        """Return what `read` does of an array's file; ValueError where it is missing or damaged."""
        try:
            look()
            with self.storage.open(f"{name}/{key}.npy") as file:
                return read(file, entry, look)
        except FileNotFoundError as error:
            raise ValueError(f"{key}.npy is missing") from error
        except ValueError as error:
            raise ValueError(f"{key}.npy is damaged: {error}") from error

    def _refusal(self, name: str, error: BaseException | None) -> str:
        why = str(error) or type(error).__name__
        return f"{self.url_of(name)} is no usable checkpoint: {why}."
