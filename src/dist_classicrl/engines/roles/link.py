"""What ``compression="auto"`` comes to: the link between hosts is measured, and the server chooses by it."""

from __future__ import annotations

import logging
from dataclasses import replace
from importlib.util import find_spec

from dist_classicrl._words import name_of
from dist_classicrl.engines.run import Run
from dist_classicrl.membership.admission import Entry
from dist_classicrl.membership.group import Group
from dist_classicrl.membership.handshake import LinkSpeed, Setup

logger = logging.getLogger(__name__)

_KEY = "compression"
_KINDS = ("none", "delta", "lossless")
_ENTRY_BYTES = 28  # of a message
_FAST = 3e8
"""Bytes per second from which a link carries what is spared in the time that sparing it takes.

Zstandard spares some 12 of an entry's bytes, in some 40 ns on both ends."""


def settle_compression(run: Run, group: Group, start: Setup | Entry) -> None:
    """Let the run's settings say which kind of compression its messages have, where that was "auto"."""
    if name_of(run.settings.compression) != "auto":
        return
    if isinstance(start, Entry):
        kind = str(start.told.get(_KEY, "none"))
    else:
        kind = _agreed(group, start, run.values.size)
    run.told[_KEY] = kind  # to a rank that joins later
    run.settings = replace(run.settings, compression=kind)


def _agreed(group: Group, setup: Setup, entries: int) -> str:
    """Return what the head of all ranks chooses."""
    hosts = {group.host_of(rank) for rank in setup.members}
    if len(hosts) == 1:
        kind, why = choose(None, entries, False)
        if setup.is_head:
            logger.info(why)
        return kind
    has_library = setup.agree(None, {}, [int(find_spec("zstandard") is not None)])
    link = setup.measure_link()
    kind, why = choose(link, entries, bool(has_library.all()))
    if setup.is_head:
        logger.info(why)
    return _KINDS[int(setup.agree_on_first(_KINDS.index(kind)))]


def choose(link: LinkSpeed | None, entries: int, has_library: bool) -> tuple[str, str]:
    """Return the kind of compression for a link and a table, and why; None: all ranks are on one host.

    No bit of a table is worth a guess, so it is one that changes none: who wants less than that to go says
    how much less.
    """
    begin = 'compression="auto": '
    if link is None:
        return "none", f"{begin}all ranks are on one host, so messages go as they are."
    measured = (
        f"{begin}{link.round_trip * 1e3:.2g} ms there and back between hosts, "
        f"{link.bytes_per_second / 1e6:.3g} MB/s, {entries:,} entries"
    )
    if link.bytes_per_second >= _FAST:
        return "none", f"{measured}: messages go as they are, which is faster than to compress them."
    # Of a small table the calls that compress it take longer than what they spare.
    if link.ranks * entries * _ENTRY_BYTES / link.bytes_per_second < link.round_trip / 2.0:
        return "none", f"{measured}: messages go as they are, as all of them together take less than one way."
    if not has_library:
        return "delta", f'{measured}: "delta", as zstandard, which "lossless" needs, is not on all ranks.'
    return "lossless", f'{measured}: "lossless".'
