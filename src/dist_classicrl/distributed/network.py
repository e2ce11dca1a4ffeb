"""Which of a host's networks the messages of a job go over."""

from __future__ import annotations

import ipaddress
import socket

from dist_classicrl.distributed.launcher import Launcher
from dist_classicrl.errors import LauncherError

_ANY_PORT = 9  # nothing is sent there


def network_words(launcher: Launcher, network: str | None) -> list[str]:
    """Give the words with which a job keeps to one network, in this launcher's own form.

    Parameters
    ----------
    launcher : Launcher
    network : str or None
        `10.1.0.0/16`, or the name of a card, such as `eth1`, that is the same on all hosts. What the MPI
        chooses by itself, if left out.

    Raises
    ------
    LauncherError
        There is no such network here, or it is not known how this launcher wants it said.
    """
    if network is None:
        return []
    if launcher.family == "hydra":
        if "/" in network:
            raise LauncherError(
                f"--network {network}: {launcher} takes the name of a network card, which has to be the same "
                f"on all hosts. Write one of this host's: {_cards()}."
            )
        _check_card(network)
        return ["-iface", network]
    if launcher.family != "openmpi":
        raise LauncherError(
            f"{launcher} is not known, and neither is how it takes a network. Write its own words as `launch "
            "--mpirun-options=...`."
        )
    if "/" in network:
        _check_addresses(network)
    else:
        _check_card(network)
    # The ranks, and what starts them on each host.
    of_daemons = (
        ["--prtemca", "prte_if_include"] if launcher.version >= (5,) else ["--mca", "oob_tcp_if_include"]
    )
    return ["--mca", "btl_tcp_if_include", network, *of_daemons, network]


def _check_card(name: str) -> None:
    if name not in (card for _, card in socket.if_nameindex()):
        raise LauncherError(
            f"--network {name}: this host has no network card of that name. Write one of its cards "
            f"({_cards()}) if it has the same name on all hosts, or a network such as 10.1.0.0/16."
        )


def _check_addresses(text: str) -> None:
    try:
        network = ipaddress.IPv4Network(text, strict=False)
    except ValueError as error:
        raise LauncherError(
            f"--network {text} is no network ({error}). Write its address and the length of its prefix, such "
            "as 10.1.0.0/16, or the name of a card, such as eth1."
        ) from error
    if str(network) != text:
        raise LauncherError(f"--network {text} is the address of a host. Write --network {network}.")
    if not _is_in(network):
        raise LauncherError(
            f"--network {text}: this host, where mpirun is started, has no address in it. Write one "
            "that all hosts are in (`ip -4 address` shows this host's), or --mca btl_tcp_if_include for the "
            "ranks alone."
        )


def _is_in(network: ipaddress.IPv4Network) -> bool:
    """Tell whether this host would send from an address of this network to another one of it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((str(network[min(1, network.num_addresses - 1)]), _ANY_PORT))
        except OSError:
            return False
        return ipaddress.IPv4Address(probe.getsockname()[0]) in network


def _cards() -> str:
    return ", ".join(name for _, name in socket.if_nameindex())
