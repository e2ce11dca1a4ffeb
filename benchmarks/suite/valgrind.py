"""Instructions and cache misses of parts of a program, counted by valgrind's callgrind.

The program runs in a process of its own, compiled for a processor that valgrind knows (x86-64-v3), and tells
valgrind by requests where counting begins and ends, so that starting and compiling are not simulated in
detail. Counts repeat from run to run and from machine to machine, where times do not. The caches are those
of the processor, simulated: one core, no prefetch by hardware.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

FEATURES = "+avx2,+bmi,+bmi2,+lzcnt,+popcnt,+fma,+sse4.2"
TARGET = f"x86-64-v3 {FEATURES}"
# rax = address of the request, rdx = 0; four rotations by 128 bits in all and an exchange of rbx with itself
# are what valgrind looks for, and nothing to a processor; return rdx.
_CODE = bytes.fromhex("4889f8 31d2 48c1c703 48c1c70d 48c1c73d 48c1c733 4887db 4889d0 c3")
_TOOL = ord("C") << 24 | ord("T") << 16
_ZERO, _DUMP_AT, _START, _STOP = _TOOL + 1, _TOOL + 3, _TOOL + 4, _TOOL + 5


def why_not() -> str | None:
    """Say why nothing can be counted here; None if it can."""
    if platform.machine() != "x86_64" or sys.platform != "linux":
        return f"counted on Linux on x86-64 only, and this is {sys.platform} on {platform.machine()}"
    return None if shutil.which("valgrind") else "there is no valgrind on this machine"


def compiled_for_all(cache: str) -> dict[str, str]:
    """Return the environment of a process whose kernels are compiled for `TARGET`, and kept in `cache`."""
    return {
        **os.environ,
        "NUMBA_CPU_NAME": "x86-64-v3",
        "NUMBA_CPU_FEATURES": FEATURES,
        "NUMBA_CACHE_DIR": cache,
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONHASHSEED": "0",
        "PYTHONPATH": str(Path(__file__).resolve().parents[1]),
    }


def counted(words: Sequence[str], cache: str, folder: str, caches: bool = False) -> dict[str, dict[str, int]]:
    """Run Python with the arguments `words`; return by the name of each part that it marks what was counted.

    A part's counts are by callgrind's names of events: Ir, and with `caches` also Dr, DLmr and so on.

    Raises
    ------
    subprocess.CalledProcessError
        The program failed.
    """
    environment = compiled_for_all(cache)
    # Compiles; what is kept in `cache` is then loaded.
    subprocess.run([sys.executable, *words], env=environment, check=True, stdout=subprocess.DEVNULL)
    tool = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--cache-sim={'yes' if caches else 'no'}"]
    tool += ["-q", f"--callgrind-out-file={folder}/counts.%p"]
    subprocess.run([*tool, sys.executable, *words], env=environment, check=True, stdout=subprocess.DEVNULL)
    found: dict[str, dict[str, int]] = {}
    for path in sorted(Path(folder).glob("counts.*")):
        found |= read(path.read_text())
        path.unlink()
    return found


def read(text: str) -> dict[str, dict[str, int]]:
    """Return the counts of a dump by the name of its part; nothing where it has none."""
    name = re.search(r"^desc: Trigger: Client Request: (.+)$", text, re.MULTILINE)
    events = re.search(r"^events: (.+)$", text, re.MULTILINE)
    totals = re.search(r"^(?:summary|totals): (.+)$", text, re.MULTILINE)
    if name is None or events is None or totals is None:
        return {}
    numbers = [int(word) for word in totals[1].split()]
    return {name[1].strip(): dict(zip(events[1].split(), numbers, strict=False))}


class Parts:
    """Marks parts of this process for callgrind; without it, it only runs them."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        self._memory.write(_CODE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._request = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p)(address)

    def _ask(self, code: int, text: bytes = b"") -> None:
        words = (ctypes.c_uint64 * 6)(code, ctypes.cast(text, ctypes.c_void_p).value or 0)
        self._request(ctypes.addressof(words))

    def part(self, name: str, run: Callable[[], object]) -> None:
        """Run a part and count it by this name, with some thousand instructions of Python around it."""
        self._ask(_START)
        self._ask(_ZERO)
        run()
        self._ask(_DUMP_AT, name.encode())
        self._ask(_STOP)
