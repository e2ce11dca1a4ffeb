"""Pieces of HTML, with everything escaped: tables for notebooks and for the pages of reports."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape

_NUMBER = r"-?\d[\d,]*(?:\.\d+)?(?:e[+-]\d+)?"


def facts_of(text: str) -> str:
    """Return what `__repr__` says, such as ``Name(a, b=2, c)``, as a compact table with a row for each fact.

    So a notebook shows the same as a terminal does, in whatever order a class tells it.
    """
    name, _, inner = text.partition("(")
    rows = (_split(part) for part in _parts(inner[:-1] if inner.endswith(")") else inner))
    return f"<div><strong>{escape(name)}</strong>{table((), rows)}</div>"


def table(headers: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """Return a table; with no `headers`, the first cell of each row is what the others are about."""
    head = "".join(f'<th scope="col">{escape(str(cell))}</th>' for cell in headers)
    body = []
    for row in rows:
        first, *others = (escape(str(cell)) for cell in row)
        opening = f"<td>{first}</td>" if headers else f'<th scope="row" style="text-align:left">{first}</th>'
        body.append(f"<tr>{opening}{''.join(f'<td>{cell}</td>' for cell in others)}</tr>")
    above = f"<thead><tr>{head}</tr></thead>" if headers else ""
    return f"<table>{above}<tbody>{''.join(body)}</tbody></table>"


def _parts(text: str) -> list[str]:
    """Return what commas and blanks part in `text`, but not within brackets, quotes or a list of ranks."""
    parts, depth, quote, begin = [], 0, "", 0
    for place, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
        elif letter == "," and depth == 0 and re.match(r", (?!\d+(, |$))", text[place:]):
            parts.append(text[begin:place])
            begin = place + 2
    parts.append(text[begin:])
    return [part for part in parts if part]


def _split(fact: str) -> tuple[str, str]:
    """Return what a fact is about and what it says: of ``seed=3``, ``16 states`` or ``mean return 0.5``."""
    name, is_named, value = fact.partition("=")
    if is_named and name.isidentifier():
        return name, value
    if counted := re.fullmatch(rf"({_NUMBER}) (\S+(?: \S+)?)", fact):
        return counted[2], counted[1]
    if told := re.fullmatch(rf"([^\s,]+(?: [^\s,]+)*?) ({_NUMBER}(?: ± {_NUMBER})?)", fact):
        return told[1], told[2]
    return "", fact
