"""What the doctor says of hosts: what stands in for ssh is a script, and all hosts are this machine."""

import json
import os
import resource
import shlex
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from dist_classicrl.cli.signals import cleaned_up
from dist_classicrl.diagnosis import communication, examination, files, on_host
from dist_classicrl.diagnosis.cluster import hosts, pairs, sameness, troubles
from dist_classicrl.diagnosis.marked import MARK
from dist_classicrl.diagnosis.plan import TrainingPlan
from dist_classicrl.errors import LauncherError
from dist_classicrl.launch import hosts as hosts_module
from dist_classicrl.launch.hosts import Host, command_on, read_hostfile, slurm_hosts
from dist_classicrl.launch.launcher import Launcher
from dist_classicrl.launch.remote_commands import RemoteCommands
from dist_classicrl.mpi_tools.communication_profile import (
    POINT_TO_POINT,
    CommunicationProfile,
    Measurement,
    pairs_of_hosts,
)
from dist_classicrl.process.jobs import is_running
from dist_classicrl.settings import Settings

SECONDS = 60.0
HERE = socket.gethostname()


def program(folder, name, script):
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def plan_of(agent, *names, seconds=SECONDS):
    return TrainingPlan(
        ranks=len(names),
        settings=Settings(),
        hostfile="hosts",
        hosts=tuple(Host(name, 1) for name in names),
        agent=agent,
        seconds=seconds,
    )


def examined(plan, wanted=None):
    cluster = hosts.Cluster()
    return cluster, {finding.check: finding for finding in hosts.examine(cluster, plan, wanted or {})}


# Whether they answer


TROUBLES = {  # what ssh or a shell writes, its exit status, what the doctor says, and a part of the remedy
    "nameless": (
        "ssh: Could not resolve hostname x: Name or service not known",
        255,
        "its name is not known here",
        "enter nameless in DNS",
    ),
    "off": ("ssh: connect to host x port 22: Connection timed out", 255, "it cannot be reached", "off is up"),
    "refusing": (
        "ssh: connect to host x port 22: Connection refused",
        255,
        "it refuses the connection",
        "Start sshd on refusing",
    ),
    "locked": (
        "me@x: Permission denied (publickey,password).",
        255,
        "it does not let this user in without a password",
        "ssh-copy-id locked",
    ),
    "strange": ("Host key verification failed.", 255, "ssh does not know its key", "ssh-keyscan strange"),
    "bare": (
        "env: /venv/bin/python: No such file or directory",
        127,
        f"there is no {sys.executable}",
        "at the same path on every host",
    ),
    "old": (
        "Traceback: ModuleNotFoundError: No module named dist_classicrl",
        1,
        f"{sys.executable} cannot run dist_classicrl there",
        "`ssh old",
    ),
    "odd": ("nobody knows what", 3, "it cannot be asked", "`ssh odd true`"),
}


@pytest.mark.slow
def test_why_a_host_does_not_answer_is_told_with_its_name(tmp_path):
    for name, (said, _, _, _) in TROUBLES.items():
        (tmp_path / name).write_text(said)
    statuses = "".join(f"{name}) exit {status};; " for name, (_, status, _, _) in TROUBLES.items())
    agent = program(tmp_path, "agent", f"cat {tmp_path}/$1; case $1 in {statuses} esac")
    cluster, found = examined(plan_of(agent, HERE, *TROUBLES))
    finding = found["hosts"]
    assert finding.status == "failure" and cluster.hosts == (Host(HERE, 1),)
    assert finding.data["answer"] == [HERE]
    lines, remedies = finding.found.splitlines(), finding.remedy.splitlines()
    for name, (said, _, what, remedy) in TROUBLES.items():
        assert finding.data["do_not_answer"][name] == what
        place = next(place for place, line in enumerate(lines) if line.startswith(f"{name}: "))
        assert lines[place] == f"{name}: {what} ({said})"
        assert remedy in remedies[place]
    assert troubles.before_the_first_word("sh: python: Permission denied", 126) is troubles._NO_PYTHON


GREETING = "Unauthenticated access is refused.\nA password is asked for.\nPermission denied to others.\n\n"


@pytest.mark.parametrize(
    "said, status, what",
    [
        (GREETING, None, "it does not answer in time"),
        (f"{GREETING}Welcome.\nHost key verification failed.", 255, "ssh does not know its key"),
        (
            f"{GREETING}ssh: connect to host x port 22: No route to host",
            255,
            "it cannot be reached",
        ),
        (f"{GREETING}a\nb\nc: not known", 1, "it cannot be asked"),
        ("Connection refused for a\nme@x: Permission denied (password).", 255, "it does not let"),
    ],
)
def test_what_ssh_says_last_counts_and_not_a_greeting(said, status, what):
    assert troubles.before_the_first_word(said, status).what.startswith(what)


@pytest.mark.slow
def test_hosts_with_the_same_trouble_are_told_together(tmp_path):
    agent = program(tmp_path, "agent", "echo Connection refused; exit 255")
    _, found = examined(plan_of(agent, HERE, *(f"far{n}" for n in range(10))))
    shown = ", ".join(f"far{n}" for n in range(8))
    assert f"{shown} and 2 more: it refuses the connection (Connection refused)" in found["hosts"].found
    assert len(found["hosts"].remedy.splitlines()) == 1


@pytest.mark.slow
def test_an_agent_that_is_not_there_is_told(tmp_path):
    _, found = examined(plan_of(str(tmp_path / "missing"), HERE, "far"))
    assert found["hosts"].status == "failure" and str(tmp_path / "missing") in found["hosts"].found
    assert (
        "what should ask it cannot be started" in found["hosts"].found and "--agent" in found["hosts"].remedy
    )


FIRST_WORD = {
    **{"host": "h", "port": 1, "token": "01234567", "addresses": [["eth0", "127.0.0.1"]]},
    **{"working_folder": "/", "package": "/p"},
}


@pytest.fixture
def canned(tmp_path, monkeypatch):
    """Hosts answer by rote: what they are, and that they reach each other, or whom not."""

    def can(**unreached):
        reached = MARK + json.dumps({"troubles": unreached})
        words = {**FIRST_WORD, "addresses": [], "done": True}  # so that it is connected to by its name
        report = f"echo '{MARK}{json.dumps(words)}'; exec sleep 600"
        script = f"case $3 in report) {report};; *) echo '{reached}';; esac"
        monkeypatch.setattr(hosts, "PYTHON", program(tmp_path, "python", script))
        return program(tmp_path, "agent", 'case $1 in deaf*) exec sleep 600;; *) exec sh -c "$2";; esac')

    return can


@pytest.mark.slow
def test_a_host_that_says_nothing_holds_up_nobody(canned):
    cluster, found = examined(plan_of(canned(), HERE, "deaf1", "deaf2", "near", seconds=3.0))
    assert found["hosts"].status == "failure"
    assert "deaf1, deaf2: it does not answer in time" in found["hosts"].found
    assert f"Ranks are started on {HERE}, near alone" in found["hosts"].found
    assert [host.name for host in cluster.hosts] == [HERE, "near"]
    assert found["connections"].status == "ok"


@pytest.mark.slow
def test_hosts_that_are_well_say_what_is_there_and_reach_each_other(tmp_path):
    agent = program(tmp_path, "agent", 'cd /; exec env -u PYTHONPATH sh -c "$2"')
    (tmp_path / "file").touch()
    wanted = {"seen": str(tmp_path / "file"), "unseen": str(tmp_path / "nothing")}
    cluster, found = examined(plan_of(agent, "a", "b"), wanted)
    assert (found["hosts"].status, found["connections"].status) == ("ok", "ok")
    assert [host.name for host in cluster.hosts] == ["a", "b"]
    assert set(cluster.said) == {HERE, "a", "b"}  # this one takes part, where mpirun runs
    assert "all 3 pairs" in found["connections"].found
    for said in cluster.said.values():
        assert said["files"] == {"seen": {"sees": True}, "unseen": {"sees": False}}
        assert said["versions"]["dist_classicrl"] == cluster.said["a"]["versions"]["dist_classicrl"]
        assert said["working_folder"] == os.getcwd() and "path" in said["cache"] and said["library"]
    assert next(sameness.examine(cluster.said)).status == "ok"


@pytest.mark.parametrize(
    "said, part",
    [
        ({}, "at folders"),
        ({"files": {}, "versions": {}}, "at its MPI library"),
        ({"files": {}, "versions": {}, "library": "x"}, "at compiled code"),
    ],
)
def test_a_host_whose_answer_breaks_off_is_a_trouble_of_its_own(tmp_path, canned, said, part):
    canned()
    words = MARK + json.dumps({**FIRST_WORD, **said})
    script = f"[ $1 = broken ] && {{ echo '{words}'; echo 'Aborted (core dumped)'; exit 134; }}"
    agent = program(tmp_path, "agent", f'{script}; exec sh -c "$2"')
    cluster, found = examined(plan_of(agent, HERE, "broken", "near"))
    assert found["hosts"].status == "failure"
    line = found["hosts"].found.splitlines()[0]
    assert line.startswith("broken: its answer broke off") and part in line
    assert line.endswith("with exit status 134 (Aborted (core dumped))")
    assert "doctor` on broken" in found["hosts"].remedy
    assert set(cluster.said) == {HERE, "near"} == {host.name for host in cluster.hosts}
    assert found["connections"].status == "ok"


def test_a_part_that_cannot_be_told_ends_no_report(monkeypatch, capfd):
    def broken(*_):
        raise TypeError("odd")

    for place, name in [(on_host, "versions"), (on_host, "own_addresses")]:
        monkeypatch.setattr(place, name, broken)
    for name in ("library", "cache"):
        monkeypatch.setattr(on_host.trials, name, broken)
    monkeypatch.setattr(on_host, "_LOOK_SECONDS", 0.01)
    on_host.report({"seconds": 0.0, "files": {}})
    said = hosts.said_in(capfd.readouterr().out)
    assert said["done"] and said["addresses"] == []
    assert said["versions"]["dist_classicrl"] == said["library"] == said["cache"]["error"] == "TypeError: odd"
    peer = {**said, "to": ["127.0.0.1"]}
    assert on_host.find_trouble(peer, SECONDS, on_host.END) == ""


@pytest.mark.slow
@pytest.mark.parametrize("gone", ["reader", "parent"])
def test_a_report_that_nobody_waits_for_ends(gone):
    request = json.dumps({"files": {}, "seconds": 600.0})
    words = shlex.join([sys.executable, "-m", on_host.__name__, "report", request])
    command = ["sh", "-c", f"{words} & echo $!; wait"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as shell:
        try:
            pid = int(shell.stdout.readline())
            while "done" not in hosts.said_in(shell.stdout.readline()):
                assert is_running(pid)
            if gone == "reader":
                shell.stdout.close()
            else:
                shell.kill()
            deadline = time.monotonic() + SECONDS
            while is_running(pid):
                assert time.monotonic() < deadline
                time.sleep(0.02)
        finally:
            os.killpg(shell.pid, signal.SIGKILL)


@pytest.fixture
def told_to_end(monkeypatch):
    """Who is told to end, by name; three at once, or nobody."""
    together, told = threading.Barrier(3), {}

    def find_trouble(peer, seconds, word=b""):
        together.wait(SECONDS)
        (name,) = peer["to"]
        told[name] = (word, seconds <= 1.0)
        return ""

    monkeypatch.setattr(on_host, "find_trouble", find_trouble)
    return told


def test_hosts_are_told_to_end_all_at_once_unless_they_cannot_be_reached(canned, told_to_end):
    examined(plan_of(canned(lost="no route"), HERE, "a", "b", "lost"))
    assert told_to_end == dict.fromkeys([HERE, "a", "b"], (on_host.END, True))


@pytest.mark.parametrize("at", ["the first finding", "connections"])
def test_hosts_are_told_to_end_where_the_examination_is_broken_off(canned, told_to_end, monkeypatch, at):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(hosts, "_connections", interrupted)
    findings = hosts.examine(hosts.Cluster(), plan_of(canned(), HERE, "a", "b"), {})
    assert next(findings).check == "hosts"
    if at == "connections":
        with pytest.raises(KeyboardInterrupt):
            next(findings)
    else:
        findings.close()
    assert told_to_end == dict.fromkeys([HERE, "a", "b"], (on_host.END, True))


# Whether they reach each other


PEER = {"to": ["127.0.0.1"], "token": "01234567"}


@pytest.fixture
def listening():
    with socket.create_server(("127.0.0.1", 0)) as server:
        peer, ended = {**PEER, "port": server.getsockname()[1]}, threading.Event()
        thread = threading.Thread(target=on_host._be_reached, args=(server, b"01234567", ended), daemon=True)
        thread.start()
        yield peer, ended
        if not ended.is_set():
            on_host.find_trouble(peer, SECONDS, on_host.END)
        thread.join(SECONDS)


def test_a_host_is_reached_until_it_is_told_to_end(listening):
    peer, ended = listening
    assert on_host.find_trouble(peer, SECONDS) == ""
    assert not ended.is_set()
    assert "is another host" in on_host.find_trouble({**peer, "token": "76543210"}, SECONDS)
    assert not ended.is_set()
    assert on_host.find_trouble(peer, SECONDS, on_host.END) == ""
    assert ended.wait(SECONDS)


def test_every_address_of_a_host_is_tried(listening):
    peer, _ = listening
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        closed = {**PEER, "port": unused.getsockname()[1]}
        assert on_host.find_trouble(closed, SECONDS) == "127.0.0.1: Connection refused"
    # Other networks of the other host may not be reached from here.
    assert on_host.find_trouble({**peer, "to": ["127.0.0.2", "127.0.0.1"]}, SECONDS) == ""
    assert "no address in that network" in on_host.find_trouble({**peer, "to": []}, SECONDS)


@pytest.mark.parametrize(
    "network, to",
    [
        (None, ["10.1.0.5", "192.168.0.5"]),
        ("192.168.0.0/24", ["192.168.0.5"]),
        ("10.0.0.0/8", ["10.1.0.5"]),
        ("eth0", ["10.1.0.5"]),
        ("eth9", []),
    ],
)
def test_hosts_are_reached_in_the_network_that_was_named(network, to):
    said = {"port": 1, "token": "t", "addresses": [["eth0", "10.1.0.5"], ["eth1", "192.168.0.5"]]}
    assert hosts._peer("name", said, network) == {"port": 1, "token": "t", "to": to}
    assert hosts._peer("name", {**said, "addresses": []}, None)["to"] == ["name"]


def connections(tmp_path, answers, *names):
    """The finding, where hosts answer so when they are asked whom they reach."""
    agent = program(
        tmp_path, "agent", "\n".join(f"[ $1 = {name} ] && cat {tmp_path}/{name}" for name in answers)
    )
    for name, answer in answers.items():
        (tmp_path / name).write_text("" if answer is None else MARK + json.dumps({"troubles": answer}))
    peer = {"port": 1, "token": "t", "addresses": []}
    cluster = hosts.Cluster(tuple(Host(name, 1) for name in names), dict.fromkeys(names, peer))
    return cluster, hosts._connections(cluster, plan_of(agent, *names))


def test_hosts_that_do_not_reach_each_other_are_named_and_left_out(tmp_path):
    answers = {"a": {"b": "", "c": ""}, "b": {"a": "", "c": "no route"}, "c": {"a": "", "b": "timed out"}}
    cluster, finding = connections(tmp_path, answers, "a", "b", "c")
    assert finding.status == "failure" and "--network" in finding.remedy
    assert "b does not reach c by TCP (no route)" in finding.found
    assert "c does not reach b by TCP (timed out)" in finding.found
    assert [host.name for host in cluster.hosts] == ["a", "b"]
    assert {"from": "b", "to": "c", "why": "no route"} in finding.data["missing"]


def test_one_way_is_not_enough_and_silence_is_no_connection(tmp_path):
    answers = {"a": {"b": "", "c": ""}, "b": None, "c": {"a": "", "b": ""}}
    cluster, finding = connections(tmp_path, answers, "a", "b", "c")
    assert finding.status == "failure" and "b does not reach a" in finding.found
    assert [host.name for host in cluster.hosts] == ["a", "c"]
    answers = {"a": {"b": "refused"}, "b": {"a": ""}}
    cluster, finding = connections(tmp_path, answers, "a", "b")
    assert finding.status == "failure" and [host.name for host in cluster.hosts] == ["a"]
    answers = {"a": {"b": ""}, "b": {"a": ""}}
    cluster, finding = connections(tmp_path, answers, "a", "b")
    assert finding.status == "ok" and len(cluster.hosts) == 2


# What is the same


GOOD = {
    "versions": {"Python": "3.11.7", "dist_classicrl": "0.1.0, code aaaa", "numpy": "2.0.0"},
    "library": "Open MPI v5.0.11, package",
    "cache": {"path": "/cache"},
    "working_folder": os.getcwd(),
    "package": "/shared/dist_classicrl",
    "files": {},
}


def compared(**others):
    return {each.check: each for each in sameness.examine({"h1": GOOD, "h2": GOOD, **others})}


def with_version(**changed):
    return {**GOOD, "versions": {**GOOD["versions"], **changed}}


@pytest.mark.parametrize(
    "said, status, text",
    [
        (with_version(numpy="1.9"), "warning", "numpy differs: 2.0.0 on h1, h2; 1.9 on h3"),
        (with_version(Python="3.9"), "warning", "Python differs"),
        (
            {**with_version(dist_classicrl="0.1.0, code bbbb"), "package": "/home/dist_classicrl"},
            "failure",
            "code aaaa in /shared/dist_classicrl on h1, h2; 0.1.0, code bbbb in /home/dist_classicrl on h3",
        ),
        (
            {**GOOD, "library": "MPICH Version: 4.2"},
            "failure",
            "MPI library differs: Open MPI 5.0.11 on h1, h2; MPICH 4.2",
        ),
        ({key: value for key, value in GOOD.items() if key != "library"}, "failure", "does not answer on h3"),
    ],
)
def test_versions_that_differ_are_named_with_their_hosts(said, status, text):
    finding = compared(h3=said)["same versions"]
    assert finding.status == status and text in finding.found
    assert "same versions on every host" in finding.remedy
    assert finding.data["h1"]["numpy"] == "2.0.0"


def test_what_is_the_same_is_shown_once():
    found = compared(h3=GOOD)
    assert {each.status for each in found.values()} == {"ok"}
    assert found["same versions"].found.count("Open MPI 5.0.11") == 1


def named(**own):
    return sameness.examine_names({name: {"host": host} for name, host in own.items()})


def test_hosts_that_are_named_otherwise_than_they_name_themselves_are_found():
    assert named(h1="h1", h2="h2").status == "ok"
    assert sameness.examine_names({"h1.cluster": {"host": "h1"}, "h2": {"host": "h2.cluster"}}).status == "ok"
    finding = named(h1="h1", localhost="h1", h2="h2")
    assert finding.status == "warning" and "h1, localhost are one host, h1" in finding.found
    assert "all of its slots" in finding.remedy
    finding = sameness.examine_names({"h1": {"host": "h1"}, "10.0.0.2": {"host": "h2"}, "x": {"host": "h3"}})
    assert finding.status == "warning"
    assert finding.found == "other names than their own: 10.0.0.2 is h2, x is h3"
    assert "`hostname`" in finding.remedy


def test_only_names_in_the_hostfile_are_looked_at(tmp_path, monkeypatch):
    said = {"h1": {**GOOD, "host": "h1"}, "h1.cluster": {**GOOD, "host": "h1"}, "h2": {**GOOD, "host": "h2"}}

    def examine(cluster, plan, wanted):
        cluster.said = said  # h1 is this machine, which is asked, too
        yield from ()

    monkeypatch.setattr(hosts, "examine", examine)
    plan = replace(plan_of(None, "h1.cluster", "h2"), state_dir=str(tmp_path))

    def found(plan):
        findings = examination._examine_hosts(hosts.Cluster(), plan, files.Traces())
        return {finding.check: finding.status for finding in findings}

    assert found(plan)["host names"] == "ok"
    assert found(replace(plan, hosts=(*plan.hosts, Host("h1", 1))))["host names"] == "warning"
    assert "host names" not in found(replace(plan, hosts=(), nodes=plan.hosts))


def test_a_working_folder_that_is_not_on_every_host_is_found():
    finding = compared(h3={**GOOD, "working_folder": "/root"})["working folder"]
    assert finding.status == "warning" and finding.found.endswith("is not there on h3")


@pytest.mark.parametrize(
    "cache, text",
    [
        ({"path": "/c", "unwritable": "read-only"}, "/c cannot be written to: read-only"),
        ({"error": "no locator"}, "cannot be loaded: no locator"),
        (None, "not loaded within the time"),
        ({"unused": True, "path": None}, "other users may write to its place"),
    ],
)
def test_hosts_that_cannot_keep_compiled_code_are_named(cache, text):
    finding = compared(h3={**GOOD, "cache": cache})["numba's cache on hosts"]
    assert finding.status == "warning" and finding.found.startswith("h3: ") and text in finding.found
    assert "NUMBA_CACHE_DIR" in finding.remedy


def shared(*reports):
    return list(sameness.examine_shared("shared folder", "--checkpoint-dir", "it is needed", reports))


def test_hosts_that_do_not_see_a_folder_or_cannot_write_there_are_named():
    seen = {"sees": True}
    assert [each.status for each in shared(("a", seen), ("b", seen))] == ["ok"]
    assert shared(("a", seen), ("a", seen)) == []  # one host has nobody to share with
    (finding,) = shared(("a", seen), ("b", {"sees": False}))
    assert finding.status == "warning" and "not the same one on b" in finding.found
    assert "--checkpoint-dir" in finding.remedy
    (finding,) = shared(("a", seen), ("b", {"sees": True, "unwritable": "Permission denied"}))
    assert "cannot be written to on b (Permission denied)" in finding.found


@pytest.mark.skipif(
    not os.path.isdir("/proc/self/fd"), reason="takes a file system that is read-only even to root"
)
def test_whether_a_file_can_be_written_is_tried(tmp_path):
    (tmp_path / "file").touch()
    assert on_host._sight(str(tmp_path / "file")) == {"sees": True}
    assert on_host._sight(str(tmp_path / "none")) == {"sees": False}
    assert "unwritable" in on_host._sight("/proc/self/status")


def test_another_copy_of_the_code_has_another_fingerprint(tmp_path):
    def copy(name, **content):
        for file, text in content.items():
            path = tmp_path / name / f"{file}.py"
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        return on_host.fingerprint(tmp_path / name)

    one = copy("one", a="1", b="2")
    assert one == copy("same", a="1", b="2")
    assert len({one, copy("changed", a="1", b="3"), copy("moved", a="12", b=""), copy("less", a="1")}) == 4


# Clocks and pairs


def test_clocks_that_are_far_apart_are_named():
    def clock(offset):
        return [
            {"rank": 1, "offset": 1e-4, "uncertainty": 1e-5},
            {"rank": 2, "offset": offset, "uncertainty": 1e-5},
        ]

    assert pairs._clocks(["a", "b", "c"], clock(-0.9)).status == "ok"
    for offset in (1.5, -1.5):
        finding = pairs._clocks(["a", "b", "c"], clock(offset))
        assert finding.status == "warning" and finding.found.startswith("far apart on c; from a's: b +0.1 ms")
        assert finding.data["c"] == {"offset": offset, "uncertainty": 1e-5}


def profile_of(hosts, bandwidth, measured=None):
    """What was measured, where `bandwidth` tells that of two hosts."""
    found = []
    for pair in pairs_of_hosts(hosts)[:measured]:
        for size, seconds in ((8, 1e-5), (1 << 20, (1 << 20) / bandwidth(*(hosts[rank] for rank in pair)))):
            found.append(Measurement(POINT_TO_POINT, pair, False, size, 5, seconds, seconds))
    return CommunicationProfile(tuple(hosts), tuple(found))


@pytest.mark.parametrize("hosts", ["abc", "abcdefgh", "aabbcc"])
def test_a_host_that_is_slow_to_all_others_is_named(hosts):
    finding = pairs._pairs(profile_of(hosts, lambda a, b: 1e7 if "b" in (a, b) else 1e9))
    assert finding.status == "warning" and finding.found.startswith("b is far slower than the others")
    assert finding.data["pairs"][0] == {
        "hosts": ["a", "b"],
        "latency": 1e-5,
        "bandwidth": pytest.approx(1e7),
    }
    healthy = pairs._pairs(profile_of(hosts, lambda a, b: 5e8 if "b" in (a, b) else 1e9))
    assert healthy.status == "ok" and len(healthy.data["pairs"]) == len(pairs_of_hosts(hosts))


def test_a_single_pair_that_is_slow_is_named():
    finding = pairs._pairs(profile_of("abcd", lambda a, b: 1e7 if a + b == "cd" else 1e9))
    assert finding.found.startswith("c - d is far slower than the others; all 6 pairs")
    finding = pairs._pairs(profile_of("abcd", lambda a, b: {"ab": 2e7, "cd": 1e7}.get(a + b, 1e9)))
    assert finding.found.startswith("c - d, a - b are far slower")


def test_two_hosts_alone_have_no_others_to_compare_with():
    finding = pairs._pairs(profile_of("ab", lambda a, b: 1e6))
    assert finding.status == "ok" and "one pair" in finding.found


def test_what_was_not_measured_in_time_is_told():
    finding = pairs._pairs(profile_of("abcdef", lambda a, b: 1e9, measured=4))
    assert "enough for 4 of 15" in finding.found
    finding = pairs._pairs(profile_of("abcdef", lambda a, b: 1e9))
    assert "all 15 pairs; the 10 slowest" in finding.found and len(finding.data["pairs"]) == 15


def test_many_hosts_are_measured_in_a_ring_and_with_the_first():
    assert len(pairs_of_hosts("abcdefgh")) == 28
    many = pairs_of_hosts("abcdefghi")
    assert many == sorted([(0, n) for n in range(1, 9)] + [(n, n + 1) for n in range(1, 8)])
    assert pairs_of_hosts("aab") == [(0, 2)]
    finding = pairs._pairs(profile_of("abcdefghi", lambda a, b: 1e9))
    assert "15 pairs: each host with a, and with the next one" in finding.found


# How they are asked


def test_nodes_of_slurm_are_asked_by_srun(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    program(tmp_path, "scontrol", 'echo "$1 $2 $3" > $0.asked; echo n1; echo n2')
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-2]")
    assert slurm_hosts() == (Host("n1", None), Host("n2", None))
    assert (tmp_path / "scontrol.asked").read_text() == "show hostnames n[1-2]\n"
    program(tmp_path, "scontrol", "echo a warning >&2; echo n1")
    assert slurm_hosts() == (Host("n1", None),)
    program(tmp_path, "scontrol", "echo n1; exit 1")
    assert slurm_hosts() == ()
    monkeypatch.delenv("SLURM_JOB_NODELIST")
    assert slurm_hosts() == ()
    srun = command_on("n2", "echo 'a b'", None, True)
    assert srun[0] == "srun" and srun[-5:] == ["--nodelist", "n2", "/bin/sh", "-c", "echo 'a b'"]
    assert command_on("n2", "true", "my agent", True) == ["my", "agent", "n2", "true"]
    assert command_on("n2", "true", None, False) == ["ssh", "-o", "BatchMode=yes", "n2", "true"]
    assert command_on(HERE, "true", None, True) == ["/bin/sh", "-c", "true"]


def test_a_state_folder_that_cannot_be_used_is_found(tmp_path):
    (tmp_path / "file").touch()
    traces = files.Traces()
    plan = replace(plan_of(None, "a"), state_dir=str(tmp_path / "file" / "state"))
    (finding,) = files.examine_state_folder(traces, plan)
    assert finding.status == "failure" and "--state-dir" in finding.remedy and traces.file == ""
    plan = replace(plan, state_dir=str(tmp_path / "new" / "state"))
    assert list(files.examine_state_folder(traces, plan)) == []
    assert Path(traces.file).exists()
    traces.remove(SECONDS)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_ranks_are_started_on_the_hosts_that_are_left(tmp_path):
    plan = replace(plan_of("agent", "a", "b", "c"), ranks=3)
    launcher = Launcher("/m", "openmpi", (5, 0, 11))
    left = hosts.Cluster(hosts=(Host("a", 1), Host("c", 1)))
    reduced = examination._on_hosts_left(plan, left, launcher, tmp_path)
    assert (reduced.ranks, reduced.hosts) == (2, left.hosts)
    assert Path(reduced.hostfile).read_text() == "a slots=1\nc slots=1\n"
    nodes = replace(plan, hostfile=None, hosts=(), nodes=plan.hosts)
    assert examination._on_hosts_left(nodes, hosts.Cluster(hosts=plan.hosts), launcher, tmp_path) is nodes


@pytest.mark.parametrize("family, line", [("openmpi", "h1 slots=4"), ("hydra", "h1:4")])
@pytest.mark.parametrize("text", ["h1:4\nh2\n", "h1 slots=4\nh2\n"])
def test_the_launcher_gets_a_hostfile_of_its_own_kind(tmp_path, monkeypatch, family, line, text):
    (tmp_path / "given").write_text(text)
    named = read_hostfile(tmp_path / "given")
    launcher = Launcher(program(tmp_path, "mpirun", f"cat {tmp_path}/*/hosts; exit 1"), family, (5, 0, 11))
    plan = replace(plan_of("agent"), ranks=5, hosts=named, hostfile=str(tmp_path / "given"))
    for cluster in (hosts.Cluster(hosts=named), hosts.Cluster()):  # without others nobody is asked
        written = examination._on_hosts_left(plan, cluster, launcher, tmp_path)
        assert (written.ranks, Path(written.hostfile).read_text()) == (5, f"{line}\nh2\n")
    monkeypatch.setattr(communication, "find_launcher", lambda: launcher)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    profiled = communication.ProfilePlan((8,), 1, 0.1, SECONDS, 5, named, "agent")
    with pytest.raises(LauncherError, match=f"They wrote:\n{line}\nh2"):
        communication.measure_in_job(profiled)


def test_more_hosts_can_be_asked_than_files_can_be_open(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    n_open = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 64
    names = [f"h{n}" for n in range(40)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (n_open + 20, limits[1]))
    try:
        with RemoteCommands({name: ["echo", name] for name in names}) as asked:
            asked.wait(SECONDS)
            assert [asked.output(name) for name in names] == [f"{name}\n" for name in names]
            assert asked.not_started == {}
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert list(tmp_path.iterdir()) == []


def test_what_was_begun_ends_where_the_rest_cannot_be(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    with pytest.raises(LauncherError, match="TMPDIR"):
        RemoteCommands({"a": ["true"]})
    (tmp_path / "tmp").mkdir()
    begun = []

    def start(command, **kwargs):
        if command == ["interrupted"]:
            raise KeyboardInterrupt
        begun.append(Popen(command, **kwargs))
        return begun[-1]

    Popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", start)
    with pytest.raises(KeyboardInterrupt):
        RemoteCommands({"a": ["sleep", "600"], "b": ["interrupted"]})
    assert [process.returncode for process in begun] == [-signal.SIGKILL]
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_comes_while_a_host_is_asked_ends_the_question(tmp_path, monkeypatch, number):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    begun, Popen = [], subprocess.Popen

    def start(command, **kwargs):
        process = Popen(command, **kwargs)
        begun.append(process)
        signal.raise_signal(number)  # it runs, and nobody has its id yet
        return process

    monkeypatch.setattr(subprocess, "Popen", start)
    with pytest.raises((KeyboardInterrupt, SystemExit)), cleaned_up():
        RemoteCommands({"a": ["sleep", "600"], "b": ["sleep", "600"]})
    assert [process.returncode for process in begun] == [-signal.SIGKILL]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["h1:1\nh2:1\nh2:3\n", "h2\nh1 slots=2\nh2 slots=3\n"])
def test_a_host_that_is_named_again_with_slots_is_refused(tmp_path, text):
    (tmp_path / "hosts").write_text(text)
    with pytest.raises(LauncherError, match="names 'h2' 2 times. .*`h2 slots=4`"):
        read_hostfile(tmp_path / "hosts")


def test_lines_of_the_same_host_are_counted(tmp_path):
    (tmp_path / "hosts").write_text("h1\nh2\nh2\nh3 slots=4\nh2\n")
    assert read_hostfile(tmp_path / "hosts") == (Host("h1", 1), Host("h2", 3), Host("h3", 4))


def test_the_name_of_this_machine_is_known(monkeypatch):
    assert hosts_module.is_here(HERE) and hosts_module.is_here("localhost")
    assert hosts_module.is_here("127.0.0.2") and not hosts_module.is_here("10.255.255.254")
