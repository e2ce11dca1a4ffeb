"""Memory for large arrays that are read and written here and there."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np

LINE = 64
"""Bytes of a cache line."""

HUGE_PAGE = 1 << 21
"""Bytes of a huge page."""

_HUGE_FROM = 2 * HUGE_PAGE

# Of Linux: MAP_NORESERVE, which Python names from 3.13 on, MAP_FIXED and MADV_COLLAPSE.
_NO_RESERVE, _FIXED, _COLLAPSE = 0x4000, 0x10, 25

_FAILED = ctypes.c_void_p(-1).value
_TRIES = 3
_MOST_SECONDS = 10.0
"""After so long the rest stays in small pages: where memory is in pieces, others' has to be moved for it."""


def zeros(n: int, dtype: Any, is_sparse: bool = False) -> np.ndarray:
    """Return `n` zeros of `dtype` that begin with a cache line; large ones in huge pages where there are any.

    One in a table of a gigabyte is found two to three times as fast in pages of 2 MB as in pages of 4 kB.
    `is_sparse`: most will not be used, and take no memory until they are. OSError where there is not that
    much room for addresses.
    """
    size = max(1, n * np.dtype(dtype).itemsize)
    reserve = _NO_RESERVE if is_sparse and sys.platform == "linux" else 0
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | reserve)
    _ask_for_huge_pages(memory, size)
    return np.frombuffer(memory, dtype, n)


def shared(descriptor: int, size: int, in_small_pages: bool = False) -> np.ndarray:
    """Return the `size` bytes, uint8, of an open file that other processes map as well.

    A large one begins where a huge page may begin, see `take`. `in_small_pages`: what is touched here and
    there takes no more memory than it has to.
    """
    if size >= _HUGE_FROM and sys.platform == "linux" and not in_small_pages:
        return _shared_from_huge_page(descriptor, size)
    memory = mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED)
    if in_small_pages and hasattr(mmap, "MADV_NOHUGEPAGE"):
        with suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, np.uint8, size)


def _shared_from_huge_page(descriptor: int, size: int) -> np.ndarray:
    memory = mmap.mmap(-1, size + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)
    start = np.frombuffer(memory, np.uint8).ctypes.data
    first = -start % HUGE_PAGE
    # In place of that part of `memory`, which takes both away in the end.
    flags = mmap.MAP_SHARED | _FIXED
    if _libc().mmap(start + first, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, descriptor, 0) == _FAILED:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    _ask_for_huge_pages(memory, size)
    return np.frombuffer(memory, np.uint8, size, first)


def take(array: np.ndarray) -> bool:
    """Take the memory of what `shared` returned, or of a part: in huge pages if the system has them.

    Linux gives shared memory none of itself, unless an administrator lets it (`shmem_enabled`), but 6.1 and
    newer do when they are told to (MADV_COLLAPSE). Others may use the memory meanwhile. Return whether all is
    in huge pages but for what is too short for one.
    """
    if sys.platform != "linux":
        return False
    start, deadline = array.ctypes.data, time.monotonic() + _MOST_SECONDS
    for first in range(-start % HUGE_PAGE, array.size - HUGE_PAGE + 1, HUGE_PAGE):
        if time.monotonic() > deadline:
            return False
        array[first].item()  # where there is nothing yet, nothing could be moved to a huge page
        for _ in range(_TRIES):
            is_huge = _libc().madvise(start + first, HUGE_PAGE, _COLLAPSE) == 0
            if is_huge or ctypes.get_errno() != errno.EAGAIN:  # another process is at the same page
                break
        if not is_huge:
            return False
    return True


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return libc


def give_back(array: np.ndarray, part: slice) -> None:
    """Let the system have the memory of these bytes of what `zeros` returned; they are 0 from now on."""
    first = -(-part.start // mmap.PAGESIZE) * mmap.PAGESIZE
    length = part.stop // mmap.PAGESIZE * mmap.PAGESIZE - first
    memory: Any = array.base
    if length > 0 and hasattr(mmap, "MADV_DONTNEED"):
        memory.obj.madvise(mmap.MADV_DONTNEED, first, length)


def _ask_for_huge_pages(memory: mmap.mmap, size: int) -> None:
    if size >= _HUGE_FROM and hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)


def memory_left(root: str = "/") -> int | None:
    """Return the bytes of memory that processes on this host may still take; None where it cannot be told.

    The least of what the machine has and what control groups allow: that of this process, as a batch system
    makes it, and all that it is in. `root` is the folder in which the system tells of itself.
    """
    limits = list(_left_in_control_groups(Path(root)))
    try:
        with open(Path(root, "proc/meminfo")) as file:
            fields = dict(line.split(":", 1) for line in file)
        limits.append(int(fields["MemAvailable"].split()[0]) * 1024)
    except (OSError, KeyError, ValueError):
        pass
    return min(limits, default=None)


class _ControlGroups(NamedTuple):
    """Where a kind of control groups tells of memory: a folder, and in that of each group these files."""

    folder: str
    limit: str
    used: str
    cached: str  # the line of memory.stat with what was read from files and is given up where room is needed

    def left(self, root: Path, group: PurePosixPath) -> int | None:
        """Return the bytes that are left in a group; None where it has no limit, or is not seen here."""
        place = root / self.folder / group
        try:
            limit, used = (int((place / name).read_text()) for name in (self.limit, self.used))
        except (OSError, ValueError):  # "max" where there is no limit
            return None
        try:
            lines = (place / "memory.stat").read_text().splitlines()
            cached = int(dict(line.split(maxsplit=1) for line in lines)[self.cached])
        except (OSError, ValueError, KeyError):
            cached = 0
        return max(0, limit - used + cached)


_GROUPS = _ControlGroups("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file")
_GROUPS_OF_MEMORY = _ControlGroups(  # of version 1, where each resource has groups of its own
    "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
)


def _left_in_control_groups(root: Path) -> Iterator[int]:
    """Yield what is left in each control group that this process is in and that has a limit."""
    found = {(groups, PurePosixPath()) for groups in (_GROUPS, _GROUPS_OF_MEMORY)}
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, _, rest = line.partition(":")
        resources, _, path = rest.partition(":")
        group = PurePosixPath(path.lstrip("/"))
        if ".." in group.parts or not (resources == "" or "memory" in resources.split(",")):
            continue  # it is outside of what a container sees, or not about memory
        groups = _GROUPS_OF_MEMORY if resources else _GROUPS
        found |= {(groups, each) for each in (group, *group.parents)}
    lefts = (groups.left(root, group) for groups, group in found)
    return (left for left in lefts if left is not None)


def takes_huge_pages() -> bool:
    """Return whether this system has huge pages for shared memory, given or taken; see `take`."""
    if not hasattr(os, "memfd_create"):
        return False
    descriptor = os.memfd_create("dist_classicrl", os.MFD_CLOEXEC)
    try:
        os.truncate(descriptor, _HUGE_FROM)
        return take(shared(descriptor, _HUGE_FROM))
    finally:
        os.close(descriptor)


def huge_pages_for_shared_memory() -> str | None:
    """Return when the system gives them, in the kernel's words ("never", "advise"); None: it does not say."""
    try:
        with open("/sys/kernel/mm/transparent_hugepage/shmem_enabled") as file:
            words = file.read()
    except OSError:
        return None
    return words.partition("[")[2].partition("]")[0] or None
