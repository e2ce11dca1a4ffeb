"""What is done with maps, in C: packing a push, applying it at the server, taking in a refresh."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

C_SOURCE = r"""
#include <math.h>
#include <stdint.h>

typedef int32_t i32; typedef uint32_t u32; typedef int64_t i64;

static const i64 mask = 0xFFFFFFFFll;

int apply(i64 n, const i32 *entries, const double *weights, const double *shifts, const u32 *visits,
          const u32 *known, double *values, i64 *counts, double limit) {
    i64 lost = -1;
    for (i64 i = 0; i < n; i++) {
        const i64 entry = entries[i], own = visits[i], others = (counts[entry] - (i64)known[i]) & mask;
        double weight = weights[i], shift = shifts[i];
        counts[entry] += own;
        if (others > 0) {
            const double k = own > 1 ? own : 1, load = 4.0 * (k / (k + (double)others));
            if (weight * (1.0 + load * (1.0 + 0.5 * load)) < 1.0) {
                const double least = exp(-load);
                if (weight < least) {
                    shift = (1.0 - least) * (shift / (1.0 - weight));
                    weight = least;
                }
            }
        }
        const double value = weight * values[entry] + shift;
        if (fabs(value) <= limit) values[entry] = value; else lost = entry;
    }
    return lost;
}

i64 pack(i64 n, const i64 *touched, double *weight, double *shift, i64 *updates, i64 *table_visits,
         const double *q, double limit, i32 *entries, double *weights, double *shifts, u32 *visits,
         u32 *known) {
    i64 lost = -1;
    for (i64 i = 0; i < n; i++) {
        const i64 entry = touched[i], own = updates[entry] & mask;
        if (!(fabs(q[entry]) <= limit && fabs(shift[entry]) < INFINITY)) lost = entry;
        entries[i] = (i32)entry;
        weights[i] = weight[entry];
        shifts[i] = shift[entry];
        visits[i] = (u32)own;
        known[i] = (u32)table_visits[entry];
        table_visits[entry] += own;
        weight[entry] = 1.0;
        shift[entry] = 0.0;
        updates[entry] = 0;
    }
    return lost;
}

void rebase(i64 n, const i32 *changed, const double *new_values, const i64 *new_counts, double *base,
            double *q, i64 *table_visits, i32 *stamp, i32 now, i64 m, const i32 *entries,
            const double *weights, const double *shifts, const u32 *visits, double *best, i32 *greedy) {
    for (i64 i = 0; i < n; i++) {
        const i64 entry = changed ? changed[i] : i;
        base[entry] = q[entry] = new_values[i];
        table_visits[entry] = new_counts[i];
        stamp[entry] = now;
    }
    for (i64 i = 0; i < m; i++) {
        const i64 entry = entries[i];
        if (stamp[entry] == now) {
            q[entry] = weights[i] * q[entry] + shifts[i];
            table_visits[entry] += visits[i];
        }
    }
    i64 last = -1;
    for (i64 i = 0; i < n; i += changed ? 1 : N_ACTIONS) {
        const i64 row = (changed ? changed[i] : i) / N_ACTIONS;
        if (row == last) continue;
        last = row;
        const double *values = q + row * N_ACTIONS;
        i32 at = 0, ties = 1;
        for (i32 action = 1; action < N_ACTIONS; action++) {
            if (values[action] > values[at]) at = action, ties = 1;
            else ties += values[action] == values[at];
        }
        best[row] = values[at];
        greedy[row] = ties > 1 ? -1 : at;
    }
}
"""


class Twins:
    """The three functions, compiled by gcc for tables of so many actions."""

    def __init__(self, folder: str, n_actions: int, *options: str) -> None:
        source, library = Path(folder, "maps.c"), Path(folder, f"maps{n_actions}.so")
        source.write_text(C_SOURCE)
        flags = [
            "-O3",
            "-march=native",
            "-std=gnu11",
            f"-DN_ACTIONS={n_actions}",
            *options,
            "-shared",
            "-fPIC",
        ]
        subprocess.run(["gcc", *flags, "-o", str(library), str(source), "-lm"], check=True)
        self._library = ctypes.CDLL(str(library))

    def prepared(self, name: str, *arguments: Any) -> Callable[[], None]:
        """Return a call of a function with arrays, whole numbers and floats, which are kept."""
        function = getattr(self._library, name)
        function.restype = None
        given = [_as_c(argument) for argument in arguments]

        def call(kept: Any = arguments) -> None:  # the arrays, of which C has the addresses alone
            function(*given)

        return call


def _as_c(argument: Any) -> Any:
    if argument is None or isinstance(argument, np.ndarray):
        return ctypes.c_void_p(None if argument is None else argument.ctypes.data)
    return ctypes.c_double(argument) if isinstance(argument, float) else ctypes.c_int64(argument)
