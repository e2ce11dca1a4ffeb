"""Which words keep a job to one network, and what is refused before anything is started."""

import re
import socket

import pytest

from dist_classicrl.__main__ import main
from dist_classicrl.distributed.launcher import Launcher
from dist_classicrl.distributed.network import network_words
from dist_classicrl.errors import LauncherError

FIVE = Launcher("/m", "openmpi", (5, 0, 11))
FOUR = Launcher("/m", "openmpi", (4, 1, 4))
HYDRA = Launcher("/m", "hydra", (4, 2, 1))

pytestmark = pytest.mark.skipif(
    "lo" not in dict(map(reversed, socket.if_nameindex())), reason="a card called lo is looked for"
)


@pytest.mark.parametrize("network", ["127.0.0.0/8", "lo"])
def test_ranks_and_what_starts_them_keep_to_the_network(network):
    ranks = ["--mca", "btl_tcp_if_include", network]
    assert network_words(FIVE, network) == [*ranks, "--prtemca", "prte_if_include", network]
    assert network_words(FOUR, network) == [*ranks, "--mca", "oob_tcp_if_include", network]


def test_mpich_takes_a_card():
    assert network_words(HYDRA, "lo") == ["-iface", "lo"]
    with pytest.raises(
        LauncherError, match=r"MPICH or kin 4.2.1 \(/m\) takes the name of a network card.*: lo"
    ):
        network_words(HYDRA, "127.0.0.0/8")


@pytest.mark.parametrize("launcher", [FIVE, FOUR, HYDRA, Launcher("/m", "unknown", ())])
def test_without_a_network_nothing_is_said(launcher):
    assert network_words(launcher, None) == []


def test_an_unknown_launcher_is_refused():
    with pytest.raises(LauncherError, match="unknown MPI.*--mpirun-options"):
        network_words(Launcher("/m", "unknown", ()), "lo")


@pytest.mark.parametrize(
    "network, why",
    [
        ("eth77", r"--network eth77: this host has no network card of that name.*\blo\b.*10\.1\.0\.0/16"),
        ("eth0,eth1", "--network eth0,eth1: this host has no network card of that name"),
        ("127.0.0.1", "--network 127.0.0.1: this host has no network card of that name"),
        ("127.0.0.1/8", "is the address of a host. Write --network 127.0.0.0/8"),
        ("127.0/8", "is no network .*such as 10.1.0.0/16, or the name of a card"),
        ("127.0.0.0/40", "is no network"),
        ("", "this host has no network card"),
        # For documentation (RFC 5737): nobody has it.
        (
            "203.0.113.0/24",
            "--network 203.0.113.0/24: this host, where mpirun is started, has no address in it",
        ),
    ],
)
@pytest.mark.parametrize("launcher", [FIVE, FOUR])
def test_what_is_no_network_of_this_host_is_refused(launcher, network, why):
    with pytest.raises(LauncherError, match=why):
        network_words(launcher, network)


def test_launch_and_train_take_a_network(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr("dist_classicrl.distributed.launch.find_launcher", lambda: FIVE)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    assert main(["launch", "-n", "2", "--network", "lo", "--dry-run", "train.py"]) == 0
    words = "--mca btl_tcp_if_include lo --prtemca prte_if_include lo .*train.py"
    assert re.search(words, capfd.readouterr().out)
    for command in (["launch", "-n", "2"], ["train", "--ranks", "2"]):
        script = "train.py" if command[0] == "launch" else "FrozenLake-v1"
        assert main([*command, "--network", "eth77", script]) == 2
        assert "--network eth77: this host has no network card" in capfd.readouterr().err
