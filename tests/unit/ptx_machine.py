"""A machine for PTX: it plays on a core what NVVM made of a kernel, instruction by instruction.

Numba's CUDA simulator runs a kernel's Python, where numbers have other types and each thread waits its turn.
Here the threads of all blocks are played in a random order, a few instructions of one and then of another. A
launch ends with an error where a thread reads or writes what no argument has, where an address is not a
multiple of what is read at once, where threads of a block wait at different barriers, and where two threads
touch the same bytes, one of them writes, and no barrier and no atomic operation is between them.

Not there: what ptxas makes of the PTX, the order in which a card lets one thread see another's writes, and
what threads of a warp tell each other.
"""

from __future__ import annotations

import operator
import re
import struct
from functools import cache
from typing import Any, NamedTuple

import numba
import numpy as np
import ptx_program
from ptx_operations import DTYPES, branches, functions
from ptx_program import CHANGES, FLOW, READS, SPECIAL, Program


class _Shadow(NamedTuple):
    """Who touched each word of four bytes last; readers of more than one thread are -2."""

    writer: np.ndarray
    write_time: np.ndarray
    was_atomic: np.ndarray
    reader: np.ndarray
    read_time: np.ndarray
    read_block: np.ndarray

    @classmethod
    def of(cls, words: int) -> _Shadow:
        nobody = [np.full(words, -1, np.int64) for _ in range(6)]
        return cls(*nobody)


@numba.njit(forceinline=True)
def _is_race(shadow, word, thread, block, threads, time, kind):
    """Note who touches a word, and tell whether another one did so whom no barrier is between."""
    writer, raced = shadow.writer[word], False
    if writer >= 0 and writer != thread and not (kind == CHANGES and shadow.was_atomic[word]):
        raced = writer // threads != block or shadow.write_time[word] == time
    reader = shadow.reader[word]
    if kind != READS:
        if reader != -1 and reader != thread:
            raced |= shadow.read_block[word] != block or shadow.read_time[word] == time
        shadow.writer[word], shadow.write_time[word], shadow.was_atomic[word] = thread, time, kind == CHANGES
    else:
        if reader == -1 or (shadow.read_block[word] == block and shadow.read_time[word] < time):
            reader = thread
        elif reader != thread:
            reader = -2
        if shadow.reader[word] == -1:
            shadow.read_block[word] = block
        elif shadow.read_block[word] != block:
            shadow.read_block[word] = -2
        shadow.reader[word], shadow.read_time[word] = reader, time
    return raced


FINE, OUTSIDE, CROOKED, RACED, PARTED, TRAPPED, ENDLESS = range(7)
_WRONG = {
    OUTSIDE: "touches what is no argument's",
    CROOKED: "touches an address that is no multiple of its bytes",
    RACED: "touches what another thread does, with no barrier between",
    PARTED: "waits at a barrier while others wait at another",
    TRAPPED: "comes to a trap",
    ENDLESS: "does not end",
}


class _Memory(NamedTuple):
    """What threads may touch, in the order of addresses."""

    first: np.ndarray
    end: np.ndarray
    shift: np.ndarray  # bytes before it in its allocation, which a card aligns
    word: np.ndarray  # its first in the shadow
    shared: int  # which of them is the shared memory of all blocks
    local: int


@numba.njit(forceinline=True)
def _find(memory, sizes, address, size, aligned, shared_at, local_at):
    """Return in which of all places an address is, or -1, and whether it is as aligned as it has to be."""
    found = np.searchsorted(memory.first, address, side="right") - 1
    if found < 0:
        return -1, False
    begin, end = memory.first[found], memory.end[found]
    if found == memory.shared:
        begin, end = shared_at, shared_at + sizes[0]
    elif found == memory.local:
        begin, end = local_at, local_at + sizes[1]
    if address < begin or address + size > end:
        return -1, False
    return found, (address - begin + memory.shift[found]) % aligned == 0


_LOOP = """
def run(code, views, begins, sizes, memory, shadow, watched, blocks, threads, seed, burst, most):
    total = blocks * threads
    where, time = np.zeros(total, np.int64), np.zeros(blocks, np.int64)
    ready, n_ready = np.arange(total), total
    n_waiting, n_living = np.zeros(blocks, np.int64), np.full(blocks, threads)
    waits_at = np.full(total, -1)
    random = np.uint64(seed)
    for _ in range(most):
        if n_ready == 0:
            return FINE, 0, 0, np.uint64(0)
        random = random * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
        chosen = np.int64((random >> np.uint64(33)) % np.uint64(n_ready))
        turns = 1 + np.int64((random >> np.uint64(13)) % np.uint64(burst))
        t = ready[chosen]
        block = t // threads
        shared_at = begins[0] + np.uint64(block) * sizes[0]
        local_at = begins[1] + np.uint64(t) * sizes[1]
        VIEWS
        at = where[t]
        for _ in range(turns):
            now = at
            op, guard = code.op[now], code.guard[now]
            at += 1
            if guard != 0 and (u64[abs(guard)] != 0) != (guard > 0):
                continue
            address, size = np.uint64(0), np.uint64(code.bytes[now])
            if size > 0:
                space, base = code.space[now], u64[code.a[now]]
                if space & NARROW:
                    base &= np.uint64(0xFFFFFFFF)
                address = base + np.uint64(code.offset[now])
                if space & 3 == SHARED:
                    address += shared_at
                elif space & 3 == LOCAL:
                    address += local_at
                aligned = np.uint64(code.aligned[now])
                found, is_even = _find(memory, sizes, address, size, aligned, shared_at, local_at)
                if found < 0 or not is_even:
                    return CROOKED if found >= 0 else OUTSIDE, now, t, address
                if watched[found]:
                    word = memory.word[found] + np.int64((address - memory.first[found]) // np.uint64(4))
                    for each in range(word, word + max(np.int64(size) // 4, 1)):
                        if _is_race(shadow, each, t, block, threads, time[block], code.kind[now]):
                            return RACED, now, t, address
            a, b, c, d, e = code.a[now], code.b[now], code.c[now], code.d[now], code.e[now]
            if op == BRANCH:
                at = d
            elif op == RETURN or op == BARRIER:
                where[t] = at
                n_ready -= 1
                ready[chosen] = ready[n_ready]
                if op == RETURN:
                    n_living[block] -= 1
                else:
                    n_waiting[block] += 1
                    waits_at[t] = at
                if n_waiting[block] == n_living[block]:
                    first = -1
                    for other in range(block * threads, (block + 1) * threads):
                        if waits_at[other] >= 0:
                            if first >= 0 and waits_at[other] != first:
                                return PARTED, now, other, np.uint64(0)
                            first, waits_at[other] = waits_at[other], -1
                            ready[n_ready] = other
                            n_ready += 1
                    n_waiting[block] = 0
                    time[block] += 1
                break
            elif op == TRAP:
                return TRAPPED, now, t, np.uint64(0)
            OPERATIONS
        else:
            where[t] = at
    return ENDLESS, where[t], t, np.uint64(0)
"""


@cache
def _machine() -> Any:
    """Return what plays a program, jitted; statements stand in its loop, as calls take five times as long."""
    text = _LOOP
    views = [f"{name} = views[{at}][t]" for at, name in enumerate(DTYPES)]
    for mark, lines in ("VIEWS", views), ("OPERATIONS", branches(len(FLOW))):
        indent = re.search(rf"\n( *){mark}\n", text)[1]
        text = text.replace(mark, f"\n{indent}".join(lines))
    names = {**vars(ptx_program), **globals(), **functions()}
    exec(text, names)
    return numba.njit(names["run"], error_model="numpy")


def flat(value: Any, name: str = "") -> list[tuple[int, np.ndarray | None, str]]:
    """Return the bits of a kernel's parameters for an argument, and the array and name that they are of."""
    if isinstance(value, tuple):
        names = getattr(value, "_fields", [name] * len(value))
        return [one for each, its in zip(value, names, strict=True) for one in flat(each, its)]
    if isinstance(value, np.ndarray):
        sizes = (0, 0, value.size, value.itemsize, value.ctypes.data, *value.shape, *value.strides)
        return [(size, value if at == 4 else None, name) for at, size in enumerate(sizes)]
    if value is None:
        return [(0, None, name)]
    if isinstance(value, float | np.floating):
        is_short = isinstance(value, np.float32)
        return [(int.from_bytes(struct.pack("<f" if is_short else "<d", value), "little"), None, name)]
    return [(operator.index(value) & 0xFFFFFFFFFFFFFFFF, None, name)]


def play(
    program: Program,
    grid: tuple[int, ...],
    arguments: tuple[Any, ...],
    seed: int = 0,
    burst: int = 64,
    in_disorder: tuple[str, ...] = (),
    most: int = 1 << 40,
) -> None:
    """Play a kernel with so many blocks of so many threads.

    Parameters
    ----------
    program : Program
        The kernel.
    grid : tuple of int
        The blocks, the threads of each, anything, and the bytes of shared memory that each has besides.
    arguments : tuple
        Arrays, numbers, None, and tuples of these.
    seed, burst : int
        What the order in which threads move follows from, and the most instructions that one makes at a time.
    in_disorder : tuple of str
        Fields of arguments with arrays in which threads may write while others look.
    most : int
        Turns of threads after which it is taken not to end.

    Raises
    ------
    AssertionError
        If a thread does what it must not, with the instruction.
    """
    blocks, threads = grid[:2]
    shared_bytes = program.static_bytes + (grid[3] if len(grid) > 3 else 0)
    bits, arrays = [], []
    for value, array, name in flat(arguments):
        bits.append(value)
        if array is not None and array.size:
            arrays.append((array, name))
    assert len(bits) == len(program.parameters), (len(bits), len(program.parameters))
    shared = np.zeros(max(blocks * shared_bytes, 16), np.uint8)
    local = np.zeros(max(blocks * threads * program.local_bytes, 16), np.uint8)
    # Who is given memory of its own finds anything there.
    shared[:], local[:] = 0xA5, 0x5A
    given: dict[tuple[int, int], tuple[np.ndarray, bool]] = {}
    for array, name in arrays:
        first = array.ctypes.data
        key = first, first + array.nbytes
        _, is_watched = given.get(key, (array, True))
        given[key] = array, is_watched and name not in in_disorder
    for array in (shared, local):
        given[array.ctypes.data, array.ctypes.data + array.nbytes] = array, array is shared
    spans = sorted(given)
    for (_, end), (first, _) in zip(spans, spans[1:], strict=False):
        assert end <= first, "Arguments overlap."
    words = np.cumsum([0, *((end - first + 3) // 4 for first, end in spans)])
    memory = _Memory(
        np.array([first for first, _ in spans], np.uint64),
        np.array([end for _, end in spans], np.uint64),
        np.array([_bytes_before(given[span][0]) for span in spans], np.uint64),
        words[:-1],
        spans.index((shared.ctypes.data, shared.ctypes.data + shared.nbytes)),
        spans.index((local.ctypes.data, local.ctypes.data + local.nbytes)),
    )
    registers = np.zeros((blocks * threads, len(program.registers)), np.uint64)
    for register, value in (*program.constants.items(), *zip(program.parameters, bits, strict=True)):
        registers[:, register] = value
    numbers = np.arange(blocks * threads)
    special = numbers % threads, threads, numbers // threads, blocks, shared_bytes - program.static_bytes
    for name, value in zip(SPECIAL, special, strict=True):
        registers[:, program.registers[name]] = value
    fault, at, thread, address = _machine()(
        program.code,
        tuple(registers.view(dtype) for dtype in DTYPES.values()),
        np.array([shared.ctypes.data, local.ctypes.data], np.uint64),
        np.array([shared_bytes, program.local_bytes], np.uint64),
        memory,
        _Shadow.of(words[-1]),
        np.array([given[span][1] for span in spans]),
        blocks,
        threads,
        seed,
        burst,
        most,
    )
    if fault:
        where = [name for array, name in arrays if name and 0 <= address - array.ctypes.data < array.nbytes]
        raise AssertionError(
            f"Thread {thread % threads} of block {thread // threads} {_WRONG[fault]}"
            f"{' in ' + ' and '.join(where) if where else ''}: {program.lines[at]}"
        )


def _bytes_before(array: np.ndarray) -> int:
    whole = array
    while isinstance(whole.base, np.ndarray):
        whole = whole.base
    return (array.ctypes.data - whole.ctypes.data) % 256
