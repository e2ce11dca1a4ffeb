"""Memory that the ranks of a host share, and that is gone with the last of them, however they end.

It has no name in any folder: one rank makes an anonymous file, and the others open it where the kernel shows
that rank's open files. Where they may not look there, it is a file in the temporary folder, whose name is
taken away as soon as all have it.
"""

from __future__ import annotations

import errno
import mmap
import os
import secrets
import tempfile
import weakref
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from dist_classicrl import _memory
from dist_classicrl.comm import envelope
from dist_classicrl.errors import CutOffError, SettingsError
from dist_classicrl.membership.handshake import Setup
from dist_classicrl.tables.large_table import LargeTable, check_room

_MARK = 64
"""Bytes in front, which tell that it is the right memory."""

_FRONT = mmap.PAGESIZE
"""Bytes before the memory itself, which begins with a page."""

_TOLD_BYTES = 1 << 24


@dataclass(eq=False)
class HostMemory:
    """`size` bytes in an open file that others can open until this is closed, or gone."""

    descriptor: int
    size: int
    mark: str  # hexadecimal digits
    is_a_file: bool = False  # since not all ranks see each other's open files

    def __post_init__(self) -> None:
        self._close = weakref.finalize(self, os.close, self.descriptor)

    @classmethod
    def new(cls, size: int, is_sparse: bool = False) -> HostMemory:
        """Make memory, all zero; SettingsError where there is not as much.

        `is_sparse`: most will not be used, and take no memory until they are.
        """
        if not is_sparse:
            check_room(size, "The table", 'Take more hosts or a smaller table, or dtype="float32".')
        if hasattr(os, "memfd_create"):
            descriptor = os.memfd_create("dist_classicrl", os.MFD_CLOEXEC)
        else:
            with tempfile.TemporaryFile() as file:
                descriptor = os.dup(file.fileno())
        return cls._of_new_file(descriptor, size)

    @classmethod
    def _of_new_file(cls, descriptor: int, size: int) -> HostMemory:
        mark = secrets.token_hex(_MARK // 2)
        os.truncate(descriptor, _FRONT + size)
        os.pwrite(descriptor, mark.encode(), 0)
        return cls(descriptor, size, mark)

    @classmethod
    def opened(cls, path: str, size: int, mark: str) -> HostMemory:
        """Open memory that another process made; OSError where that cannot be."""
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        memory = cls(descriptor, size, mark)
        if os.pread(descriptor, _MARK, 0) != mark.encode() or os.fstat(descriptor).st_size != _FRONT + size:
            memory.close()
            raise OSError(f"{path} is something else")
        return memory

    @property
    def told(self) -> dict[str, Any]:
        """Where other processes of this host find it, for JSON, while this process keeps it open."""
        return {"path": f"/proc/{os.getpid()}/fd/{self.descriptor}", "size": self.size, "mark": self.mark}

    def array(self, in_small_pages: bool = False, is_taken: bool = False) -> np.ndarray:
        """Return the bytes, uint8; they stay there when this is closed. See `_memory.shared`.

        `is_taken`: all of them will be used, and take their memory now, see `_memory.take`.
        """
        array = _memory.shared(self.descriptor, _FRONT + self.size, in_small_pages)
        if is_taken:
            _memory.take(array)
        return array[_FRONT:]

    @property
    def taken(self) -> int:
        """Bytes of memory that it takes: of what nothing was written to, none."""
        return os.fstat(self.descriptor).st_blocks * 512

    def close(self) -> None:
        """Let nobody find it here any more."""
        self._close()


def share(setup: Setup, size: int, is_sparse: bool = False, own: HostMemory | None = None) -> HostMemory:
    """Return memory of `size` bytes that all ranks have, which are on one host; all call it together.

    It is the head's `own` where that has some already and the others can open it, or have it.
    """
    memory = own if setup.is_head else None
    error: BaseException | None = None
    if setup.is_head and memory is None:
        try:
            memory = HostMemory.new(size, is_sparse)
        except BaseException as caught:  # whatever it is, the others must hear of it
            error = caught
    setup.agree(error, {}, [], "the memory of the table")
    told = None if memory is None else memory.told
    memory, has_it = _opened_by_all(setup, memory, told, own)
    if not has_it:
        memory = _by_a_file(setup, size)
    assert memory is not None
    return memory


def share_rows(large: LargeTable, setup: Setup) -> None:
    """Let the ranks of each host have the rows of the head in memory of theirs; all call it together.

    Where they come into new memory each keeps what it had until all are known to have them: if the head is
    lost, another one's count. The head gives its own back as it copies them: they would be lost with it.
    """
    before = large.shared
    is_one_host = len(setup.here) == len(setup.members)
    if is_one_host:
        memory = share(setup, large.size, True, before)
    else:
        first = setup.head if setup.head in setup.here else setup.here[0]
        memory = share_by_host(setup, large.size, first, before)
    error: BaseException | None = None
    try:
        if setup.is_head:
            large.move_to(memory, True)
    except BaseException as caught:  # whatever it is, the others must hear of it
        error = caught
    setup.agree(error, {}, [], "the server to have its table where the ranks of its host see it")
    if not is_one_host:
        _tell_hosts(memory.array(), setup, setup.rank == first)
        setup.agree(None, {}, [], "all hosts to have the server's table")
    large.move_to(memory, False)
    if memory is not before:
        large.take_part(setup.here.index(setup.rank), len(setup.here))


def _tell_hosts(own: np.ndarray, setup: Setup, is_first: bool) -> None:
    """Write the head's bytes of a table into those of each host; `is_first`: this rank writes its host's."""
    for begin in range(0, own.size, _TOLD_BYTES):
        rows = own[begin : begin + _TOLD_BYTES]
        told = None
        if setup.is_head:
            told = rows if rows.any() else rows[:0]
        told = setup.broadcast_message(told, "the server's table")
        if is_first and not setup.is_head and (told.size or rows.any()):
            rows[:] = told if told.size else 0


def share_by_host(setup: Setup, size: int, first: int, own: HostMemory | None) -> HostMemory:
    """Return memory of `size` bytes that the ranks of this host have, of which rank `first` makes it."""
    memory = own if setup.rank == first else None
    error: BaseException | None = None
    if setup.rank == first and memory is None:
        try:
            memory = HostMemory.new(size, is_sparse=True)
        except BaseException as caught:  # whatever it is, the others must hear of it
            error = caught
    where = [0] * (2 + _MARK // 8)
    if memory is not None:
        where = [os.getpid(), memory.descriptor, *np.frombuffer(memory.mark.encode(), np.int64).tolist()]
    told = setup.agree(error, {}, where, "the memory of the table")[setup.members.index(first)]
    mark = told[2:].tobytes().decode()
    if memory is None and own is not None and own.mark == mark:
        memory = own
    elif memory is None:
        with suppress(OSError):
            memory = HostMemory.opened(f"/proc/{told[0]}/fd/{told[1]}", size, mark)
    everyone = setup.agree(None, {}, [memory is not None], "all ranks to open the memory of the table")
    if not everyone.all():
        without = ", ".join(str(rank) for rank, has in zip(setup.members, everyone, strict=True) if not has)
        setup.agree(
            SettingsError(
                f"Rank {without} cannot open the memory of the table that another rank of its host has made. "
                "The ranks of a host must see each other's open files in /proc; where they may not, write "
                'placement="replicated".'
            ),
            {},
            [],
        )
    assert memory is not None
    return memory


def opened_later(told: dict[str, Any], size: int) -> HostMemory:
    """Open the memory of a call that the others have begun, where they `told` that it is."""
    try:
        return HostMemory.opened(told["path"], size, told["mark"])
    except OSError as error:
        raise CutOffError(
            f"This rank cannot open the memory of the others, {told['path']}: {error}. It must be on their "
            "host, and see their open files in /proc."
        ) from error


def _opened_by_all(
    setup: Setup,
    memory: HostMemory | None,
    told: dict[str, Any] | None,
    own: HostMemory | None = None,
) -> tuple[HostMemory | None, bool]:
    """Open what the head tells of its memory; return it, and whether all ranks could."""
    text = None if told is None else envelope.text(told)
    where = envelope.from_text(setup.broadcast_message(text, "the memory of the table"))
    if memory is None and own is not None and own.mark == where["mark"]:
        memory = own
    elif memory is None:
        with suppress(OSError):
            memory = HostMemory.opened(**where)
    everyone = setup.agree(None, {}, [memory is not None], "all ranks to open the memory of the table")
    return memory, bool(everyone.all())


def _takes_room(descriptor: int, size: int) -> bool:
    """Take the room of a file now, and return whether there was any: writing to what has none is SIGBUS."""
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(descriptor, 0, _FRONT + size)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            return False
    return True


def _by_a_file(setup: Setup, size: int) -> HostMemory:
    """Share a file in the temporary folder, which has no name any more when this returns."""
    memory: HostMemory | None = None
    told: dict[str, Any] | None = None
    error: BaseException | None = None
    path: str | None = None
    has_room = True
    try:
        if setup.is_head:
            descriptor, path = tempfile.mkstemp(prefix="dist-classicrl-table-")
            memory = HostMemory._of_new_file(descriptor, size)
            told = {**memory.told, "path": path}
            has_room = _takes_room(descriptor, size)
    except BaseException as caught:  # whatever it is, the others must hear of it
        error = caught
    try:
        if not setup.agree(error, {}, [has_room], "a file for the table").all():
            if memory is not None:
                memory.close()
            setup.agree(
                SettingsError(
                    "The ranks do not see each other's open files in /proc, and the temporary folder in "
                    f"which they could share a file instead has no room for one of {size / 2**20:.3g} MiB. "
                    'Let TMPDIR name a larger one that all see, or write placement="replicated".'
                ),
                {},
                [],
            )
        memory, has_it = _opened_by_all(setup, memory, told)
    finally:
        if path is not None:
            with suppress(OSError):
                os.unlink(path)
    if memory is not None:
        memory.is_a_file = True
    if not has_it:
        setup.agree(
            SettingsError(
                "The ranks cannot share memory: they see neither each other's open files in /proc nor the "
                f"same temporary folder ({tempfile.gettempdir()}). Let them see one of both, or write "
                'placement="replicated".'
            ),
            {},
            [],
        )
    assert memory is not None
    return memory
