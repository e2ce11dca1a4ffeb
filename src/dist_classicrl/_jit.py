"""The one way this package compiles a function, so that every kernel is cached and compiled alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba


def jit(function: Callable[..., Any]) -> Any:
    """Compile `function` with numba, keeping the machine code on disk for the next process.

    `fastmath` stays off: it reorders sums and drops the NaN checks that the kernels rely on.
    The GIL is released, so that a thread can write a checkpoint or send a heartbeat meanwhile.
    """
    return numba.njit(cache=True, nogil=True, error_model="numpy", boundscheck=False)(function)


def jit_inline(function: Callable[..., Any]) -> Any:
    """Compile like `jit`, and always into the caller.

    For small functions that a hot loop calls: a call with ten arrays costs more than a step of learning.
    """
    return numba.njit(cache=True, nogil=True, error_model="numpy", boundscheck=False, forceinline=True)(
        function
    )
