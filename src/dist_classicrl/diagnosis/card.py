"""Whether there is a CUDA card that ranks could learn on."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

from dist_classicrl._words import counted
from dist_classicrl.diagnosis.findings import Finding, ok, warning
from dist_classicrl.errors import DistClassicRLError
from dist_classicrl.learning.card import cards

CHECK = "cards"


def examine() -> Iterator[Finding]:
    """Report the cards that a process sees, or why there is none. That none is wanted is no trouble."""
    if find_spec("numba_cuda") is None:
        yield ok(CHECK, 'not looked for: device="cuda" would need the extra gpu, which is not installed')
        return
    try:
        cards.numba_cuda()
    except DistClassicRLError as error:  # it is installed, and of no use
        yield warning(CHECK, _first_sentence(error), _rest(error))
        return
    try:
        if not cards.is_simulated():
            cards.driver_version()
    except DistClassicRLError as error:
        yield ok(CHECK, f"none: {_first_sentence(error)}")
        return
    try:
        found = cards.cards()
    except DistClassicRLError as error:
        yield warning(CHECK, _first_sentence(error), _rest(error))
        return
    data = {"cards": [{"name": each.name, "bytes": each.memory} for each in found]}
    yield ok(CHECK, f"{counted(len(found), 'card')}: {'; '.join(map(str, found))}", data)


def _first_sentence(error: Exception) -> str:
    return str(error).partition(". ")[0].rstrip(".")


def _rest(error: Exception) -> str:
    return str(error).partition(". ")[2]
