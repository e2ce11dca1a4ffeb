"""What is measured between hosts, with one rank on each: clocks, and the speed of every pair."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dist_classicrl.diagnosis import marked
from dist_classicrl.diagnosis.children import last_lines
from dist_classicrl.diagnosis.cluster.hosts import listed
from dist_classicrl.diagnosis.findings import Finding, failure, ok, warning
from dist_classicrl.diagnosis.plan import TrainingPlan
from dist_classicrl.diagnosis.running import run_probe
from dist_classicrl.launch.hosts import Host, write_hostfile
from dist_classicrl.launch.launcher import Launcher
from dist_classicrl.mpi_tools.communication_profile import (
    MOST_HOSTS_IN_PAIRS,
    CommunicationProfile,
    pairs_of_hosts,
)

_FAR_APART_SECONDS = 1.0
_FAR_BELOW = 3.0
_MOST_ROWS = 10
_SHARE_OF_TIME = 0.5


@dataclass(frozen=True)
class _Pair:
    """How fast two hosts talk: seconds of a small message, and bytes per second with large ones."""

    hosts: tuple[str, str]
    latency: float
    bandwidth: float

    @property
    def row(self) -> str:
        """A line of a table."""
        names = f"{self.hosts[0]} - {self.hosts[1]}"
        return f"{names:<24}{self.latency * 1e6:>10,.1f} us{self.bandwidth / 1e6:>10,.1f} MB/s"


def examine(plan: TrainingPlan, launcher: Launcher, names: Sequence[str], folder: Path) -> Iterator[Finding]:
    """Start a rank on each of these hosts, and have them measured; `folder` is for a hostfile."""
    check = "pairs of hosts"
    path = folder / "one-rank-each"
    write_hostfile(path, [Host(name, 1) for name in names], launcher.family)
    job = run_probe(plan, launcher, len(names), path, "hosts", _SHARE_OF_TIME * plan.seconds)
    if isinstance(job, Finding):
        yield job
        return
    for said in marked.read(job.output):
        if "clocks" in said:
            profile = CommunicationProfile.from_dict(said["profile"])
            yield _clocks(profile.hosts, said["clocks"])
            yield _pairs(profile)
            return
    how = f"did not end within {plan.seconds:g} s" if job.timed_out else f"ended with status {job.returncode}"
    yield failure(
        check,
        f"{len(names)} ranks, one on each host, {how}\n{last_lines(job.output)}",
        "What mpirun says above names the cause. Where hosts may choose different networks, name the one "
        "that all share by --network. Or give --timeout more seconds.",
    )


def _clocks(hosts: Sequence[str], clocks: Sequence[dict[str, Any]]) -> Finding:
    check = "clocks"
    texts = [
        f"{hosts[each['rank']]} {each['offset'] * 1e3:+,.3g} ms (+-{each['uncertainty'] * 1e3:.2g})"
        for each in clocks
    ]
    data = {
        hosts[each["rank"]]: {"offset": each["offset"], "uncertainty": each["uncertainty"]} for each in clocks
    }
    wrong = [hosts[each["rank"]] for each in clocks if abs(each["offset"]) > _FAR_APART_SECONDS]
    found = f"from {hosts[0]}'s: {', '.join(texts)}"
    if wrong:
        return warning(
            check,
            f"far apart on {listed(wrong)}; {found}",
            "Let NTP or chrony set them. Training does not depend on clocks, but times in logs, TensorBoard "
            "and checkpoints do, and so does when a job stops where SLURM tells it the end of its time.",
            data,
        )
    return ok(check, found, data)


def _pairs(profile: CommunicationProfile) -> Finding:
    check = "pairs of hosts"
    pairs = _measured(profile)
    names = list(dict.fromkeys(profile.hosts))
    planned = len(pairs_of_hosts(profile.hosts))
    rows = sorted(pairs, key=lambda pair: pair.bandwidth)[:_MOST_ROWS]
    if len(names) > MOST_HOSTS_IN_PAIRS:
        scope = f"{len(pairs)} pairs: each host with {names[0]}, and with the next one"
    else:
        scope = "one pair" if planned == 1 else f"all {planned} pairs"
    if len(pairs) < planned:
        scope += f" were to be measured; the time was enough for {len(pairs)} of {planned}"
    if len(rows) < len(pairs):
        scope += f"; the {len(rows)} slowest"
    table = "\n".join([scope, *(pair.row for pair in rows)])
    data = {
        "pairs": [{"hosts": list(e.hosts), "latency": e.latency, "bandwidth": e.bandwidth} for e in pairs]
    }
    slow = _far_below(pairs)
    if slow:
        return warning(
            check,
            f"{_named(slow, pairs)}; {table}",
            "Look at the link, the cable and the switch port there (ethtool says at what speed a card runs), "
            "and whether all hosts take the same network. Leave such a host out of the hostfile meanwhile.",
            data,
        )
    return ok(check, table, data)


def _measured(profile: CommunicationProfile) -> list[_Pair]:
    """Return the pairs that were measured with small and with large messages."""
    found = []
    for pair in pairs_of_hosts(profile.hosts):
        each = sorted((m for m in profile.measurements if m.ranks == pair), key=lambda m: m.bytes)
        if len(each) > 1:
            hosts = (profile.hosts[pair[0]], profile.hosts[pair[1]])
            found.append(_Pair(hosts, each[0].seconds, each[-1].bandwidth))
    return found


def _far_below(pairs: Sequence[_Pair]) -> list[_Pair]:
    """Return the pairs whose bandwidth is far below what the fastest quarter has.

    Not below the median: where one of three hosts is slow, so are two of three pairs.
    """
    if len(pairs) < 2:
        return []
    bandwidths = sorted(pair.bandwidth for pair in pairs)
    usual = bandwidths[math.ceil(0.75 * len(bandwidths)) - 1]
    return [pair for pair in pairs if pair.bandwidth < usual / _FAR_BELOW]


def _named(slow: Sequence[_Pair], pairs: Sequence[_Pair]) -> str:
    """Return what is slow: a host, where exactly its pairs are, or pairs."""
    for host in slow[0].hosts:
        if list(slow) == [pair for pair in pairs if host in pair.hosts]:
            slowest = min(slow, key=lambda pair: pair.bandwidth)
            return f"{host} is far slower than the others ({' - '.join(slowest.hosts)} is the slowest pair)"
    names = listed([" - ".join(pair.hosts) for pair in sorted(slow, key=lambda pair: pair.bandwidth)])
    return f"{names} {'is' if len(slow) == 1 else 'are'} far slower than the others"
