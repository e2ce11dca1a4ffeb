"""Line plots as SVG, from the results alone: no library, and colors that can be read on white and on black.

A plot is a dict: "x" and "y" say what the axes are, "log_x" and "log_y" whether they are logarithmic, and
"lines" has by name the points [x, y] or, with a band, [x, y, lowest, highest]. A y of None breaks the line.
"""

from __future__ import annotations

import math
from html import escape
from typing import Any

WIDTH, HEIGHT = 760, 380
LEFT, RIGHT, TOP, BOTTOM = 70, 230, 16, 46
INK = "#7a7a7a"
COLORS = ("#2f7fc1", "#d9822b", "#2f9e6e", "#c05bb0", "#c0504d", "#8a7bd8", "#8c8f2a", "#4aa7a7")
DASHES = ("", "6 3", "2 3", "8 3 2 3")


class Axis:
    """Places of values between two ends, in pixels."""

    def __init__(self, values: list[float], is_log: bool, first: float, last: float) -> None:
        self._log, self._first, self._last = is_log, first, last
        least, most = min(values), max(values)
        if is_log:
            self.low, self.high = math.floor(math.log10(least)), math.ceil(math.log10(most))
            self.high += self.low == self.high
        else:
            self.low, self.high = min(least, 0.0), max(most, 0.0)
            self.high += self.low == self.high

    def at(self, value: float) -> float:
        """Return the place of a value."""
        value = math.log10(value) if self._log else value
        return self._first + (value - self.low) / (self.high - self.low) * (self._last - self._first)

    def ticks(self) -> list[float]:
        """Return the values at which a line is drawn."""
        if self._log:
            step = max(1, math.ceil((self.high - self.low) / 6))
            return [10.0**power for power in range(int(self.low), int(self.high) + 1, step)]
        rough = (self.high - self.low) / 5
        unit = 10.0 ** math.floor(math.log10(rough))
        step = unit * next(factor for factor in (1, 2, 5, 10) if factor * unit >= rough)
        return [step * k for k in range(math.ceil(self.low / step), math.floor(self.high / step + 1e-9) + 1)]


def short(value: float) -> str:
    """Return the label of a tick."""
    for unit, name in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= unit:
            return f"{value / unit:g}{name}"
    return f"{value:.3g}"


def svg(plot: dict[str, Any], title: str) -> str:
    """Return the picture of a plot."""
    log_x, log_y = bool(plot.get("log_x")), bool(plot.get("log_y"))
    lines = {name: [_drawable(point, log_y) for point in line] for name, line in plot["lines"].items()}
    points = [point for line in lines.values() for point in line if point[1] is not None]
    if not points:
        return ""
    x = Axis([point[0] for point in points], log_x, LEFT, WIDTH - RIGHT)
    y = Axis([value for point in points for value in point[1:]], log_y, HEIGHT - BOTTOM, TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'font-family="sans-serif" font-size="12">',
        f"<title>{escape(title)}</title>",
        *_grid(x, y, plot),
    ]
    for number, (name, line) in enumerate(lines.items()):
        parts += _line(name, line, number, x, y)
    return "\n".join([*parts, "</svg>", ""])


def _drawable(point: list[Any], log_y: bool) -> list[Any]:
    # What is 0 or below has no place on a logarithmic axis, and what is infinite on none.
    good = all(v is not None and math.isfinite(v) and (v > 0.0 or not log_y) for v in point[1:])
    return point if good else [point[0], None]


def _grid(x: Axis, y: Axis, plot: dict[str, Any]) -> list[str]:
    parts = []
    for value in x.ticks():
        at = x.at(value)
        parts.append(_stroke(f"M{at:.1f} {TOP}V{HEIGHT - BOTTOM}", INK, 'stroke-opacity="0.25"'))
        parts.append(_text(at, HEIGHT - BOTTOM + 16, short(value), "middle"))
    for value in y.ticks():
        at = y.at(value)
        parts.append(_stroke(f"M{LEFT} {at:.1f}H{WIDTH - RIGHT}", INK, 'stroke-opacity="0.25"'))
        parts.append(_text(LEFT - 6, at + 4, short(value), "end"))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, plot["x"], "middle"))
    middle = (TOP + HEIGHT - BOTTOM) / 2
    turned = f'transform="rotate(-90 14 {middle:g})"'
    return [*parts, _text(14, middle, plot["y"], "middle", turned)]


def _line(name: str, line: list[Any], number: int, x: Axis, y: Axis) -> list[str]:
    color = COLORS[number % len(COLORS)]
    dash = DASHES[number // len(COLORS) % len(DASHES)]
    extra = f'stroke-width="2" stroke-dasharray="{dash}"' if dash else 'stroke-width="2"'
    parts, path, move = [], "", "M"
    drawn = [point for point in line if point[1] is not None]
    banded = [point for point in drawn if len(point) == 4]
    if banded:
        there = [f"{x.at(p[0]):.1f} {y.at(p[3]):.1f}" for p in banded]
        back = [f"{x.at(p[0]):.1f} {y.at(p[2]):.1f}" for p in reversed(banded)]
        parts.append(f'<path d="M{"L".join(there + back)}Z" fill="{color}" fill-opacity="0.15"/>')
    for point in line:
        if point[1] is None:
            move = "M"
            continue
        path += f"{move}{x.at(point[0]):.1f} {y.at(point[1]):.1f}"
        move = "L"
    if path:
        parts.append(_stroke(path, color, extra))
    for point in drawn:
        parts.append(f'<circle cx="{x.at(point[0]):.1f}" cy="{y.at(point[1]):.1f}" r="2.5" fill="{color}"/>')
    at = TOP + 10 + 18 * number
    parts.append(_stroke(f"M{WIDTH - RIGHT + 14} {at - 4}h22", color, extra))
    parts.append(_text(WIDTH - RIGHT + 42, at, name, "start"))
    return parts


def _stroke(path: str, color: str, extra: str) -> str:
    return f'<path d="{path}" fill="none" stroke="{color}" {extra}/>'


def _text(x: float, y: float, text: str, anchor: str, extra: str = "") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{INK}"'
    return f"<text {place} {extra}>{escape(text)}</text>".replace(" >", ">")
