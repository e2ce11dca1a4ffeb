"""Which words keep a job to one network, and what is refused before anything is started."""

import ipaddress
import re
import socket
import sys
from socket import if_nameindex

import pytest

from dist_classicrl.__main__ import main
from dist_classicrl.errors import LauncherError
from dist_classicrl.launch import network
from dist_classicrl.launch.launcher import Launcher
from dist_classicrl.launch.network import network_words, own_addresses

FIVE = Launcher("/m", "openmpi", (5, 0, 11))
FOUR = Launcher("/m", "openmpi", (4, 1, 4))
HYDRA = Launcher("/m", "hydra", (4, 2, 1))

ADDRESSES = [("eth0", "10.77.0.1"), ("eth0", "10.90.0.1"), ("eth1", "10.78.0.1"), ("docker0", "172.17.0.1")]


@pytest.fixture(autouse=True)
def cards(monkeypatch):
    """Give this host some cards."""
    names = ["lo", *dict(ADDRESSES)]
    monkeypatch.setattr(network.socket, "if_nameindex", lambda: [*enumerate(names, 1)])
    monkeypatch.setattr(network, "own_addresses", lambda: ADDRESSES)


@pytest.mark.parametrize("named", ["10.77.0.0/24", "10.78.0.0/16", "10.90.0.0/30", "eth1"])
def test_ranks_and_what_starts_them_keep_to_the_network(named):
    ranks = ["--mca", "btl_tcp_if_include", named]
    assert network_words(FIVE, named) == [*ranks, "--prtemca", "prte_if_include", named]
    assert network_words(FOUR, named) == [*ranks, "--mca", "oob_tcp_if_include", named]


@pytest.mark.parametrize("named", ["eth1", "10.78.0.0/24"])
def test_what_mpich_would_ignore_is_refused(named):
    why = rf"--network {named}: MPICH or kin 4.2.1 \(/m\) has no words .*--mpirun-options='-iface eth1'"
    with pytest.raises(LauncherError, match=why):
        network_words(HYDRA, named)


@pytest.mark.parametrize("launcher", [FIVE, FOUR, HYDRA, Launcher("/m", "unknown", ())])
def test_without_a_network_nothing_is_said(launcher):
    assert network_words(launcher, None) == []


def test_an_unknown_launcher_is_refused():
    with pytest.raises(LauncherError, match="unknown MPI.*--mpirun-options"):
        network_words(Launcher("/m", "unknown", ()), "eth1")


@pytest.mark.parametrize(
    "named, why",
    [
        (
            "eth77",
            r"--network eth77: .* no network card of that name.*\(eth0, eth1, docker0\).*10\.1\.0\.0/16",
        ),
        ("eth0,eth1", "--network eth0,eth1: this host has no network card of that name"),
        ("10.77.0.1", "--network 10.77.0.1: this host has no network card of that name"),
        ("10.77.0.1/8", "is the address of a host. Write --network 10.0.0.0/8"),
        ("10.77/8", "is no network .*such as 10.1.0.0/16, or the name of a card"),
        ("10.0.0.0/40", "is no network"),
        ("", "this host has no network card"),
        ("lo", r"--network lo is the loopback.*Leave --network out.*\(eth0, eth1, docker0\)"),
        ("127.0.0.0/8", "--network 127.0.0.0/8 is the loopback"),
        ("127.1.0.0/16", "--network 127.1.0.0/16 is the loopback"),
        ("10.79.0.0/24", r"has no address in it \(eth0 10.77.0.1, eth0 10.90.0.1, eth1 10.78.0.1, docker0"),
        ("10.76.0.0/14", r"several cards of this host are in it \(eth0 10.77.0.1, eth1 10.78.0.1\)"),
        ("10.0.0.0/8", "several cards of this host are in it"),
    ],
)
@pytest.mark.parametrize("launcher", [FIVE, FOUR])
def test_what_is_no_network_of_this_host_is_refused(launcher, named, why):
    with pytest.raises(LauncherError, match=why):
        network_words(launcher, named)


def test_launch_and_train_take_a_network(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr("dist_classicrl.launch.plan.find_launcher", lambda: FIVE)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    assert main(["launch", "-n", "2", "--network", "eth1", "--dry-run", "train.py"]) == 0
    words = "--mca btl_tcp_if_include eth1 --prtemca prte_if_include eth1 .*train.py"
    assert re.search(words, capfd.readouterr().out)
    for command in (["launch", "-n", "2"], ["train", "--ranks", "2"]):
        script = "train.py" if command[0] == "launch" else "FrozenLake-v1"
        assert main([*command, "--network", "eth77", script]) == 2
        assert "--network eth77: this host has no network card" in capfd.readouterr().err


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="own addresses are asked for in Linux's way")
def test_own_addresses_are_those_of_cards_and_not_the_loopbacks():
    cards = {name for _, name in if_nameindex()}
    for card, address in own_addresses():
        assert card in cards and not ipaddress.IPv4Address(address).is_loopback
        with socket.socket() as server:
            server.bind((address, 0))  # so it is one of this host's


@pytest.mark.slow
@pytest.mark.parametrize(
    "named, what", [("eth1", "a card of that name"), ("10.78.0.0/24", "an address in that network")]
)
def test_a_job_that_does_not_start_asks_for_the_network_on_all_hosts(
    tmp_path, monkeypatch, capfd, named, what
):
    (tmp_path / "mpirun").write_text("#!/bin/sh\nexit 213\n")
    (tmp_path / "mpirun").chmod(0o700)
    launcher = Launcher(str(tmp_path / "mpirun"), "openmpi", (5, 0, 11))
    monkeypatch.setattr("dist_classicrl.launch.plan.find_launcher", lambda: launcher)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    assert main(["launch", "-n", "2", "--restart-delay", "0", "--network", named, "train.py"]) == 2
    said = capfd.readouterr().err
    assert f"--network {named} was given: each host needs {what}" in said and "No rank has started" in said
    assert "--mpirun-options" not in said
