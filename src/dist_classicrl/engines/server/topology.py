"""Whether a tree of servers is worth the ranks that do not learn, for ``topology="auto"``."""

from __future__ import annotations

from collections.abc import Callable

PROBE_BYTES = 1 << 18
PROBE_SECONDS = 2.0
"""How long an answer is waited for; a link that takes longer is taken to be as slow as that."""

_PROBES = 3
_MOST_HOSTS = 4
_MOST_SHARE = 0.1
# What a worker sends and gets of an entry (map, and value with count), and how often at least where it pushes
# by "auto": see `pacing`.
_ENTRY_BYTES = 28 + 20
_PUSHES_PER_SECOND = 10


def bytes_per_second_over(ranks: list[int], seconds_there_and_back: Callable[[int], float]) -> float:
    """Return the bandwidth of the slowest of the links to these ranks, of some at most.

    `seconds_there_and_back` sends a rank `PROBE_BYTES` and gets them again.
    """
    tried = ranks[:_MOST_HOSTS]
    slowest = max(min(seconds_there_and_back(rank) for _ in range(_PROBES)) for rank in tried)
    return 2.0 * PROBE_BYTES / max(slowest, 1e-9)


def is_worth_a_tree(entries: int, remote_workers: int, bytes_per_second: float) -> tuple[bool, str]:
    """Return whether flat might keep the server's link busy for over a tenth of the time, and the reason.

    That is where the server exchanges a table of so many `entries` with all workers of other hosts ten times
    a second.
    """
    needed = float(entries) * _ENTRY_BYTES * _PUSHES_PER_SECOND * remote_workers
    share = needed / bytes_per_second
    why = (
        f"{remote_workers} workers on other hosts may exchange {needed / 1e6:.3g} MB/s with the server, "
        f"which is {share:.0%} of the {bytes_per_second / 1e6:.3g} MB/s that the link was measured to carry"
    )
    return share > _MOST_SHARE, why
