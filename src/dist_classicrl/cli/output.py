"""What commands write to standard output: tables, in color on a terminal and plain elsewhere, and JSON."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from typing import Any

import click

_NUMBER = re.compile(r"[-+]?[\d.,]+(e[-+]?\d+)?(%| [kM])?|-|")


def show_table(headers: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> None:
    """Write a table to standard output, with numbers to the right."""
    to_the_right = [all(_NUMBER.fullmatch(row[column]) for row in rows) for column in range(len(headers))]
    if sys.stdout is None or not sys.stdout.isatty():  # there is none after `>&-`
        _show_plain(headers, rows, title, to_the_right)
        return
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    table = Table(
        title=title or None,
        title_justify="left",
        title_style="bold",
        box=SIMPLE_HEAD,
        show_header=any(headers),
    )
    for header, right in zip(headers, to_the_right, strict=True):
        table.add_column(header, justify="right" if right else "left")
    for row in rows:
        table.add_row(*map(Text, row))
    if table.__rich_measure__(console, console.options.update(max_width=10_000)).maximum > console.width:
        _show_plain(headers, rows, title, to_the_right)  # folded cells could not be read
    else:
        console.print(table)


def _show_plain(
    headers: Sequence[str], rows: Sequence[Sequence[str]], title: str, to_the_right: Sequence[bool]
) -> None:
    if title:
        click.echo(title)
    lines = [list(headers), *rows] if any(headers) else list(rows)
    widths = [max(len(line[column]) for line in lines) for column in range(len(headers))]
    for line in lines:
        cells = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, to_the_right, strict=True)
        ]
        click.echo("  ".join(cells).rstrip())


def show_json(data: Any) -> None:
    """Write plain data to standard output."""
    click.echo(json.dumps(data, indent=2))
