"""A curve drawn with characters: braille, of which each has eight dots, or stars."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from dist_classicrl.callbacks.bar import short

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

_EMPTY = 0x2800  # of Unicode's braille patterns, which stand in the order of these bits, by row and column:
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
_LABEL = 9  # columns


def dots(xs: Sequence[float], ys: Sequence[float], width: int, height: int) -> np.ndarray:
    """Return which dots of a picture a curve covers; values that are not finite are left out.

    `xs` do not fall. Each column has the mean of the values there, and is joined with the one before.

    Returns
    -------
    ndarray(bool), shape (height, width)
        The first row is the uppermost.
    """
    picture = np.zeros((height, width), bool)
    x, y = np.asarray(xs, float), np.asarray(ys, float)
    x, y = x[np.isfinite(y)], y[np.isfinite(y)]
    if not y.size:
        return picture
    span = x[-1] - x[0]
    column = np.zeros(len(x), int) if span <= 0.0 else ((x - x[0]) / span * (width - 1)).round().astype(int)
    columns = np.unique(column)
    means = np.array([y[column == each].mean() for each in columns])
    low, high = float(means.min()), float(means.max())
    share = np.full(len(means), 0.5) if high == low else (means - low) / (high - low)
    rows = ((1.0 - share) * (height - 1)).round().astype(int)
    before, at = int(columns[0]), int(rows[0])
    picture[at, before] = True
    for here, row in zip(columns[1:], rows[1:], strict=True):
        for step in range(before + 1, here + 1):
            now = round(at + (int(row) - at) * (step - before) / (here - before))
            last = round(at + (int(row) - at) * (step - 1 - before) / (here - before))
            picture[min(now, last) : max(now, last) + 1, step] = True
        before, at = int(here), int(row)
    return picture


def braille(picture: np.ndarray) -> list[str]:
    """Return dots, of shape (4 rows, 2 columns) for each character, as lines of braille."""
    height, width = picture.shape
    cells = picture.reshape(height // 4, 4, width // 2, 2)
    codes = (cells * np.array(_DOTS)[np.newaxis, :, np.newaxis, :]).sum(axis=(1, 3))
    return ["".join(chr(_EMPTY + code) for code in line) for line in codes]


class Chart:
    """A curve over steps with the numbers at its ends, as large as the place that it is given.

    Parameters
    ----------
    xs, ys : sequence of float
    empty : str
        What stands there as long as there is no value.
    """

    def __init__(self, xs: Sequence[float], ys: Sequence[float], empty: str) -> None:
        self._xs, self._ys, self._empty = xs, ys, empty

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw it."""
        from rich.text import Text

        known = [(x, y) for x, y in zip(self._xs, self._ys, strict=True) if math.isfinite(y)]
        height = (options.height or 12) - 1
        width = options.max_width - _LABEL - 1
        if not known or height < 1 or width < 2:
            yield Text(self._empty, style="dim")
            return
        xs, ys = zip(*known, strict=True)
        has_braille = options.encoding.lower().startswith("utf")
        if has_braille:
            lines = braille(dots(xs, ys, 2 * width, 4 * height))
        else:
            lines = ["".join(" *"[dot] for dot in line) for line in dots(xs, ys, width, height).astype(int)]
        bounds = {0: max(ys), len(lines) - 1: min(ys)} if len(lines) > 1 else {0: ys[-1]}
        for number, line in enumerate(lines):
            label = f"{bounds[number]:.4g}" if number in bounds else ""
            yield Text.assemble((f"{label:>{_LABEL}} ", "dim"), (line, "cyan"))
        first, last = short(xs[0]), f"{short(xs[-1])} steps"
        room = max(1, width - len(first) - len(last))
        yield Text(" " * (_LABEL + 1) + first + " " * room + last, style="dim", no_wrap=True)
