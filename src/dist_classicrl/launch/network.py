"""Which of a host's networks the messages of a job go over."""

from __future__ import annotations

import ctypes
import fcntl
import ipaddress
import socket
import struct
import sys

from dist_classicrl.errors import LauncherError
from dist_classicrl.launch.launcher import Launcher

_SIOCGIFCONF = 0x8912
_ENTRY = struct.Struct("16s 4x 4s 16x")  # what it gives for each address
_MOST_ADDRESSES = 1024
_LOOPBACK = "lo"


def network_words(launcher: Launcher, network: str | None) -> list[str]:
    """Return the words with which a job keeps to one network, in this launcher's own form.

    `network` is such as `10.1.0.0/16`, or the name of a card, such as `eth1`, that is the same on all hosts.
    LauncherError if there is no such network here, several cards are in it, or this launcher has no words for
    it.
    """
    if network is None:
        return []
    if launcher.family == "hydra":
        raise LauncherError(
            f"--network {network}: {launcher} has no words for it that all its devices keep to, and -iface "
            "is for the old one, ch3, alone. Where `mpichversion` says ch3, write "
            "--mpirun-options='-iface eth1'; else see to it that hosts reach each other over any card, or "
            "take Open MPI."
        )
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


def own_addresses() -> list[tuple[str, str]]:
    """Return the IPv4 addresses of this host, each with the name of its card, without the loopback's."""
    room = bytearray(_MOST_ADDRESSES * _ENTRY.size)
    place = (ctypes.c_char * len(room)).from_buffer(room)
    request = bytearray(struct.pack("iP", len(room), ctypes.addressof(place)))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCGIFCONF, request)
    (filled,) = struct.unpack_from("i", request)
    found = []
    for label, packed in _ENTRY.iter_unpack(bytes(room[:filled])):
        card = label.partition(b"\0")[0].decode().partition(":")[0]  # eth0:1 is another address of eth0
        found.append((card, socket.inet_ntoa(packed)))
    return [(card, address) for card, address in found if not address.startswith("127.")]


def _check_card(name: str) -> None:
    if name == _LOOPBACK:
        raise LauncherError(_loopback(name))
    if name not in _cards():
        raise LauncherError(
            f"--network {name}: this host has no network card of that name. Write one of its cards ("
            f"{', '.join(_cards())}) if it has the same name on all hosts, or a network such as 10.1.0.0/16."
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
    if network.is_loopback:
        raise LauncherError(_loopback(text))
    if not sys.platform.startswith("linux"):
        return  # own addresses cannot be listed there
    own = own_addresses()
    inside = [(card, address) for card, address in own if ipaddress.IPv4Address(address) in network]
    if not inside:
        raise LauncherError(
            f"--network {text}: this host, where mpirun is started, has no address in it ({_named(own)}). "
            "Write one that all hosts are in, or --mca btl_tcp_if_include for the ranks alone."
        )
    if len({card for card, _ in inside}) > 1:
        raise LauncherError(
            f"--network {text}: several cards of this host are in it ({_named(inside)}). Write one "
            "that only one of them is in, or the name of that card where it is the same on all hosts."
        )


def _cards() -> list[str]:
    return [name for _, name in socket.if_nameindex() if name != _LOOPBACK]


def _named(addresses: list[tuple[str, str]]) -> str:
    return ", ".join(f"{card} {address}" for card, address in addresses) or "it has none"


def _loopback(text: str) -> str:
    return (
        f"--network {text} is the loopback, on which each host reaches only itself. Leave --network out if "
        f"there is one host; else write one of its cards ({', '.join(_cards())}), or a network such as "
        "10.1.0.0/16."
    )
