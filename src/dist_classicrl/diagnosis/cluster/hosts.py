"""Hosts that are asked before any rank is started there: whether they answer, and reach each other."""

from __future__ import annotations

import ipaddress
import json
import os
import shlex
import socket
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from dist_classicrl.diagnosis import marked, on_host
from dist_classicrl.diagnosis.children import last_lines
from dist_classicrl.diagnosis.cluster import troubles
from dist_classicrl.diagnosis.cluster.troubles import PYTHON, Trouble
from dist_classicrl.diagnosis.findings import Finding, failure, ok
from dist_classicrl.diagnosis.marked import MARK
from dist_classicrl.diagnosis.plan import TrainingPlan
from dist_classicrl.launch.hosts import Host, command_on, is_here
from dist_classicrl.launch.remote_commands import RemoteCommands

_REACH_SECONDS = 5.0
_END_SECONDS = 1.0  # for each address of a host that did answer
_ENDED_AT_ONCE = 64
_MOST_NAMES = 8

_Value = TypeVar("_Value")


@dataclass
class Cluster:
    """What is known of the hosts of a plan.

    `said` has the answers of `on_host.report` by the name of the host. This machine is always among them,
    whether it is in the hostfile or not.
    """

    hosts: tuple[Host, ...] = ()  # those that answer and all reach each other
    said: dict[str, dict[str, Any]] = field(default_factory=dict)
    unreached: set[str] = field(default_factory=set)  # those that this machine cannot connect to

    @property
    def names(self) -> list[str]:
        """The names of `hosts`, each once."""
        return list(dict.fromkeys(host.name for host in self.hosts))


def examine(cluster: Cluster, plan: TrainingPlan, files: dict[str, str]) -> Iterator[Finding]:
    """Ask all hosts at once, each to look for `files`, by what they are for; `cluster` has the answers."""
    here = socket.gethostname()
    everybody = plan.hosts or plan.nodes
    names = list(dict.fromkeys(host.name for host in everybody))
    if not any(map(is_here, names)):
        names = [here, *names]
    request = {"files": files, "seconds": 2.0 * plan.seconds}
    commands = {name: _command(plan, name, "report", request) for name in names}
    begun = time.monotonic()
    with RemoteCommands(commands) as asked:
        try:
            asked.wait(0.5 * plan.seconds, lambda output: MARK in output)
            asked.wait(
                begun + plan.seconds - time.monotonic(),
                lambda output: MARK not in output or "done" in said_in(output),
            )
            troubled = {name: trouble for name in names if (trouble := _trouble(asked, name))}
            outputs = {name: asked.output(name) for name in names}
            cluster.said = {name: said_in(outputs[name]) for name in names if name not in troubled}
            cluster.hosts = tuple(host for host in everybody if host.name in cluster.said)
            yield _answers(outputs, troubled, cluster)
            if len(cluster.said) > 1:
                yield _connections(cluster, plan)
        finally:
            said = {name: said_in(asked.output(name)) for name in names}
            _end({name: each for name, each in said.items() if each and name not in cluster.unreached})


def _trouble(asked: RemoteCommands, name: str) -> Trouble | None:
    """Return why a host has not answered, or not to the end; None if it has, or may still do so."""
    if name in asked.not_started:
        return troubles.NOT_STARTED
    status = asked.status(name)
    output = asked.output(name)  # read after the status: of a command that has ended everything is there
    if MARK not in output:
        return troubles.before_the_first_word(output, status)
    said = said_in(output)
    return None if status is None or "done" in said else troubles.broken_off(said, status)


def _end(said: dict[str, dict[str, Any]]) -> None:
    """Tell all hosts at once that the examination is over."""
    with ThreadPoolExecutor(_ENDED_AT_ONCE) as pool:
        for name, each in said.items():
            pool.submit(on_host.find_trouble, _peer(name, each, None), _END_SECONDS, on_host.END)


def said_in(output: str) -> dict[str, Any]:
    """Return what a host said, all lines of it together."""
    return {key: value for part in marked.read(output) for key, value in part.items()}


def listed(names: Sequence[str]) -> str:
    """Return names for people: all of a few, or how many there are more."""
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def grouped(values: Mapping[str, _Value]) -> dict[_Value, list[str]]:
    """Return the names that have each value."""
    found = defaultdict(list)
    for name, value in values.items():
        found[value].append(name)
    return dict(found)


def _command(plan: TrainingPlan, name: str, word: str, request: dict[str, Any]) -> list[str]:
    """Return the command that asks a host, as ranks are started: in this folder and with this PYTHONPATH."""
    words = [PYTHON, "-m", on_host.__name__, word, json.dumps(request)]
    if "PYTHONPATH" in os.environ:
        words = ["env", f"PYTHONPATH={os.environ['PYTHONPATH']}", *words]
    # With exec, the command that asks is its parent, so it sees when that ends.
    text = f"cd {shlex.quote(os.getcwd())}; exec {shlex.join(words)}"
    return command_on(name, text, plan.agent, bool(plan.nodes))


def _answers(outputs: dict[str, str], troubled: dict[str, Trouble], cluster: Cluster) -> Finding:
    check = "hosts"
    names = cluster.names
    if not troubled:
        return ok(check, f"{listed(names)} answer, and have Python and the package", {"answer": names})
    lines, remedies = [], []
    for trouble, those in grouped(troubled).items():
        quoted = last_lines(_unmarked(outputs[those[0]]))
        lines.append(f"{listed(those)}: {trouble.what}" + (f" ({quoted})" if quoted else ""))
        remedies.append(trouble.remedy.replace("HOST", those[0]))
    lines.append(_what_follows(names))
    data = {"answer": names, "do_not_answer": {name: trouble.what for name, trouble in troubled.items()}}
    return failure(check, "\n".join(lines), "\n".join(remedies), data)


def _unmarked(output: str) -> str:
    return "\n".join(line for line in output.splitlines() if MARK not in line)


def _what_follows(names: Sequence[str]) -> str:
    return f"Ranks are started on {listed(names)} alone." if names else "No host is left to start ranks on."


def _connections(cluster: Cluster, plan: TrainingPlan) -> Finding:
    """Let every host connect to every other one, and keep those that all can."""
    check = "connections"
    said, missing = cluster.said, {}
    commands = {}
    for name in said:
        peers = {other: _peer(other, each, plan.network) for other, each in said.items() if other != name}
        request = {"peers": peers, "seconds": _REACH_SECONDS}
        commands[name] = _command(plan, name, "reach", request)
    with RemoteCommands(commands) as asked:
        asked.wait(plan.seconds)
        answers = {name: said_in(asked.output(name)).get("troubles") for name in said}
    for name, answer in answers.items():
        silent = {other: "it did not say within the time" for other in said if other != name}
        found = silent if answer is None else answer
        missing.update({(name, other): text for other, text in found.items() if text})
    cluster.unreached = {other for name, other in missing if is_here(name)}
    n_pairs = len(said) * (len(said) - 1) // 2
    if not missing:
        who = "both hosts" if n_pairs == 1 else f"all {n_pairs} pairs of hosts"
        return ok(check, f"{who} reach each other by TCP, on ports of their choice")
    kept: list[str] = []
    for name in sorted(said, key=lambda name: not is_here(name)):  # mpirun runs here
        if all((name, other) not in missing and (other, name) not in missing for other in kept):
            kept.append(name)
    cluster.hosts = tuple(host for host in cluster.hosts if host.name in kept)
    lines = [f"{name} does not reach {other} by TCP ({text})" for (name, other), text in missing.items()]
    return failure(
        check,
        "\n".join([*lines[:_MOST_NAMES], _what_follows(cluster.names)]),
        "Ranks talk to each other directly, on ports of the system's choice, which a firewall may close "
        "where ssh is open. Open them between all hosts, or name the network that all share, here and to "
        "train and launch: --network 10.1.0.0/16 and the like.",
        {"missing": [{"from": name, "to": other, "why": text} for (name, other), text in missing.items()]},
    )


def _peer(name: str, said: dict[str, Any], network: str | None) -> dict[str, Any]:
    """Return what others need to connect to a host: at any of its addresses, or those in a network."""
    addresses: list[tuple[str, str]] = said["addresses"]
    if network is None:
        to = [address for _, address in addresses] or [name]
    elif "/" in network:
        inside = ipaddress.IPv4Network(network)
        to = [address for _, address in addresses if ipaddress.IPv4Address(address) in inside]
    else:
        to = [address for card, address in addresses if card == network]
    return {"port": said["port"], "token": said["token"], "to": to}
