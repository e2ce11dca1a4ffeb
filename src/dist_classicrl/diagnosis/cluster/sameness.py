"""What has to be the same on all hosts: versions, folders, and a place for compiled code."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from dist_classicrl.diagnosis.cluster.hosts import grouped, listed
from dist_classicrl.diagnosis.files import CACHE_UNUSED, OWN_CACHE
from dist_classicrl.diagnosis.findings import Finding, failure, ok, warning
from dist_classicrl.diagnosis.stack import Library

_OWN = "dist_classicrl"
_MUST_BE_SAME = (_OWN, "MPI library")


def examine(said: Mapping[str, dict[str, Any]]) -> Iterator[Finding]:
    """Compare what hosts said in `on_host.report`, by name."""
    versions = {name: _versions_of(each) for name, each in said.items()}
    yield _versions(versions, {name: str(each["package"]) for name, each in said.items()})
    yield _working_folder(said)
    yield from _caches(said)


def examine_names(said: Mapping[str, dict[str, Any]]) -> Finding:
    """Compare the names in a hostfile with those that the hosts have themselves."""
    check = "host names"
    own = {name: str(each["host"]) for name, each in said.items()}
    lines = [
        f"{listed(those)} are one host, {host}" for host, those in grouped(own).items() if len(those) > 1
    ]
    others = {name: host for name, host in own.items() if not _is_same_name(name, host)}
    if others:
        lines.append(
            f"other names than their own: {listed([f'{n} is {host}' for n, host in others.items()])}"
        )
    if not lines:
        return ok(check, "each host is named as it names itself")
    return warning(
        check,
        "\n".join(lines),
        "Write each host once, by the name that `hostname` says there, and with all of its slots: otherwise "
        "mpirun may start a daemon too many, and not end. Two machines need a name of their own each.",
    )


def _is_same_name(name: str, other: str) -> bool:
    """Return whether names are the same but for a domain, which launchers leave out."""
    return name == other or (not _is_address(name) and name.partition(".")[0] == other.partition(".")[0])


def _is_address(name: str) -> bool:
    return name.replace(".", "").isdecimal()


def _versions_of(said: Mapping[str, Any]) -> dict[str, str]:
    if "library" not in said:
        return {**said.get("versions", {}), "MPI library": "does not answer"}
    return {**said.get("versions", {}), "MPI library": str(Library.of_text(said["library"] or ""))}


def _versions(versions: Mapping[str, dict[str, str]], places: Mapping[str, str]) -> Finding:
    """Compare versions by host; where the package itself differs, its place is told, too."""
    check = "same versions"
    differences = {}
    for part in dict.fromkeys(part for each in versions.values() for part in each):
        hosts_by_version = grouped({name: each.get(part, "not told") for name, each in versions.items()})
        if len(hosts_by_version) > 1:
            differences[part] = hosts_by_version
    if not differences:
        same = next(iter(versions.values()))
        return ok(check, ", ".join(f"{part} {version}" for part, version in same.items()), dict(versions))
    lines = []
    for part, each in differences.items():
        texts = [
            f"{version}{f' in {places[those[0]]}' if part == _OWN else ''} on {listed(those)}"
            for version, those in each.items()
        ]
        lines.append(f"{part} differs: {'; '.join(texts)}")
    remedy = "Install the same versions on every host, or one environment in a folder that all hosts see."
    if any(part in differences for part in _MUST_BE_SAME):
        return failure(check, "\n".join(lines), remedy, dict(versions))
    return warning(check, "\n".join(lines), remedy, dict(versions))


def _working_folder(said: Mapping[str, dict[str, Any]]) -> Finding:
    check = "working folder"
    own = os.getcwd()
    elsewhere = [name for name, each in said.items() if each["working_folder"] != own]
    if elsewhere:
        return warning(
            check,
            f"{own} is not there on {listed(elsewhere)}",
            "Work in a folder that all hosts see: scripts and files that are named without a full path are "
            "looked for in it.",
        )
    return ok(check, f"{own} is there on all hosts")


def examine_shared(
    check: str, option: str, use: str, reports: Iterable[tuple[str, dict[str, Any]]]
) -> Iterator[Finding]:
    """Report whether a folder is the same one on all hosts, by whether they see a file in it.

    `option` names the folder, and `use` says what it is needed for. The reports are of hosts by name: whether
    one ``"sees"`` the file, and in ``"unwritable"`` why it can write none there.
    """
    reports = list(reports)
    blind = sorted({name for name, each in reports if not each["sees"]})
    unwritable = sorted({(name, each["unwritable"]) for name, each in reports if "unwritable" in each})
    if blind:
        yield warning(
            check,
            f"it is not the same one on {listed(blind)}",
            f"Give a {option} that all hosts see: {use}.",
        )
    if unwritable:
        yield warning(
            check,
            f"it cannot be written to on {listed([name for name, _ in unwritable])} ({unwritable[0][1]})",
            f"Give a {option} that this user may write to on all hosts: {use}.",
        )
    if not blind and not unwritable and len({name for name, _ in reports}) > 1:
        yield ok(check, "all hosts see it")


def _caches(said: Mapping[str, dict[str, Any]]) -> Iterator[Finding]:
    """Report hosts that cannot keep compiled code; it need not be the same place everywhere."""
    troubles = {name: _trouble_of(each.get("cache")) for name, each in said.items()}
    for trouble, those in grouped(troubles).items():
        if trouble:
            yield warning(
                "numba's cache on hosts",
                f"{listed(those)}: {trouble}",
                OWN_CACHE
                if trouble == CACHE_UNUSED
                else "Let NUMBA_CACHE_DIR name a folder that can be written to there, such as one below "
                "/tmp: else every start compiles anew.",
            )


def _trouble_of(cache: Mapping[str, Any] | None) -> str:
    if cache is None:
        return "compiled code is not loaded within the time"
    if "error" in cache:
        return f"compiled code cannot be loaded: {cache['error']}"
    if "unused" in cache:
        return CACHE_UNUSED
    return f"{cache['path']} cannot be written to: {cache['unwritable']}" if "unwritable" in cache else ""
