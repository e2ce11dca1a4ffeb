"""How many ranks of a host learn at once where all wait for each other: as many as it has cores for them.

In rounds and supersteps a rank without a core of its own holds up all. Of who learns the table tells
nothing: it is the same bits. Who does not takes the place of one that is lost. Environments in Python may
well wait for something else than a core, as learners on cards do, so there all learn; and where rows are
divided between hosts, any rank may have to tell those of its host.
"""

from __future__ import annotations

import logging
import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from dist_classicrl._hints import bound_cores, core_quota
from dist_classicrl._words import counted
from dist_classicrl.engines.run import Run
from dist_classicrl.membership.admission import Entry
from dist_classicrl.membership.group import Group
from dist_classicrl.membership.handshake import Setup

logger = logging.getLogger(__name__)

_KEY = "cores"  # of what is told: for each host; {} where it does not matter


def settle_cores(run: Run, group: Group, start: Setup | Entry, serves_only: bool) -> None:
    """Let all ranks know how many cores each host has for them; who joins was told.

    `serves_only`: the head need not learn, and needs no core while the others do.
    """
    if isinstance(start, Entry):
        return
    run.told[_KEY] = {}
    if run.source.simulator is None or (run.large is not None and run.large.is_divided):
        return
    own = bound_cores()
    which = zlib.crc32(repr(own).encode())
    numbers = [len(own), which, core_quota() or sys.maxsize, run.card is not None, max(own, default=0)]
    everyone = start.agree(None, {}, numbers).tolist()
    if any(has_card for _, _, _, has_card, _ in everyone):
        return
    bound: dict[str, dict[int, int]] = {}  # of each host the cores of each set that ranks are bound to
    quotas: dict[str, int] = {}
    learning = [rank for rank in start.members if not (serves_only and rank == start.head)]
    ranks = Counter(group.host_of(rank) for rank in learning)
    for rank, (cores, which, quota, _, _) in zip(start.members, everyone, strict=True):
        host = group.host_of(rank)
        bound.setdefault(host, {})[which] = cores
        quotas[host] = quota
    there = {host: sum(sets.values()) for host, sets in bound.items()}
    if any(len(sets) > 1 and max(sets.values()) > 1 for sets in bound.values()):  # which may overlap
        most = max(last for *_, last in everyone) + 1
        marks = start.agree(None, {}, _marked(own, most)).astype(np.uint32)
        there = {
            host: _count_marked(marks[[group.host_of(rank) == host for rank in start.members]])
            for host in bound
        }
    run.told[_KEY] = {host: min(cores, quotas[host]) for host, cores in there.items()}
    for host, cores in run.told[_KEY].items() if start.is_head else ():
        if ranks[host] > cores:
            logger.info(
                "%s has %s for %s that could learn: so many do, and the others wait to take the place of one "
                "that is lost.",
                host or "This host",
                counted(cores, "core"),
                counted(ranks[host], "rank"),
            )


def _marked(own: list[int], most: int) -> list[int]:
    """Return a bit for each of `most` cores, set for `own`, in words of 32."""
    bits = np.zeros(-(-most // 32) * 32, bool)
    bits[own] = True
    words: list[int] = np.packbits(bits).view(np.uint32).tolist()
    return words


def _count_marked(marks: np.ndarray) -> int:
    """Return how many bits are set in any of these rows of words, uint32 of shape (ranks, words)."""
    return int(np.unpackbits(np.bitwise_or.reduce(marks, axis=0).view(np.uint8)).sum())


def knows_cores(told: Mapping[str, Any]) -> bool:
    """Whether it matters how many cores hosts have: `told` is `Run.told`."""
    return bool(told.get(_KEY))


def with_cores(told: Mapping[str, Any], group: Group, ranks: Iterable[int]) -> list[int]:
    """Return those of these ranks for whom there are cores: `told` is `Run.told`."""
    room: dict[str, int] = dict(told.get(_KEY, {}))
    found = []
    for rank in ranks:
        host = group.host_of(rank)
        left = room.get(host, 1)
        if left > 0:
            found.append(rank)
        if host in room:
            room[host] = left - 1
    return found
