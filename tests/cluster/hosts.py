"""Hosts of a made-up cluster on this machine, whose network can be cut, delayed and made to lose packets.

A host is a set of namespaces: its own network card, name, /dev/shm, temporary folder and process numbers.
The cards are TAP devices, and a thread of this process is the switch between them. The first process of a
host answers what stands in for ssh, over that network. Nothing is made outside of the namespaces but one
temporary folder, and a host and all its processes end when this object is closed or this process dies.

    with Hosts(3) as hosts:
        run_job(hosts.command("h1", ["mpirun", "--prtemca", "plm_ssh_agent", hosts.agent, ...]), timeout=60)
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import itertools
import json
import os
import random
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

NETWORK = "10.77.0"
SECOND_NETWORK = "10.78.0"
# What a container engine gives itself, on every host the same.
BRIDGE, BRIDGE_ADDRESS = "docker0", "172.17.0.1"
SSH_PORT = 22
# What a client of a host that does not answer ends with: ssh's own code.
UNREACHABLE = 255
CONNECT_SECONDS = 12.0
STARTING_SECONDS = 120.0
ENDING_SECONDS = 60.0
PROCESS_IDS = 5_000
# What a shell on the other host has of itself; all else is passed on by whoever starts a program, or lost.
LOGIN_VARIABLES = ("PATH", "HOME", "USER", "LANG", "PYTHONPATH", "VIRTUAL_ENV", "LD_LIBRARY_PATH")

_NAMESPACES = ("--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
_TUNSETIFF, _IFF_TAP, _IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
_FRAMES_IN_TURN = 64
_OPTIONS_WITH_A_VALUE = ("-o", "-p", "-l", "-i", "-F")
# What a host answers: pieces of output, and last the exit status.
_HEADER = struct.Struct("!BI")
_OUTPUT, _STATUS = 0, 1
_LOOK_SECONDS = 0.05


def why_not() -> str | None:
    """Say why hosts cannot be made here; None if they can."""
    if not sys.platform.startswith("linux"):
        return "network namespaces are a part of Linux"
    for program in ("ip", "unshare", "mount"):
        if shutil.which(program) is None:
            return f"there is no program {program}"
    if os.geteuid() != 0:
        return "only root may make network namespaces"
    trial = [*_NAMESPACES, "ip", "tuntap", "add", "dev", "eth0", "mode", "tap"]
    made = subprocess.run(["unshare", *trial], capture_output=True, text=True)
    if made.returncode != 0:
        return f"network namespaces with TAP devices cannot be made: {made.stderr.strip()}"
    return None


class Hosts:
    """Hosts h1, h2, ... with addresses 10.77.0.1, 10.77.0.2, ..., all links up and fast.

    Parameters
    ----------
    count : int
        How many.
    variables : mapping, optional
        More environment variables that a shell has on every host.
    more_cards : bool
        Whether each host also has eth1, with 10.78.0.1, 10.78.0.2, ..., over which the hosts reach each other
        as well, and docker0, with 172.17.0.1 on every host, which leads nowhere.
    agent_port : int
        Where hosts answer the agent. With another than ssh's, there is room for a real server of ssh.
    """

    def __init__(
        self,
        count: int,
        variables: Mapping[str, str] | None = None,
        *,
        more_cards: bool = False,
        agent_port: int = SSH_PORT,
    ) -> None:
        self.names = [f"h{number}" for number in range(1, count + 1)]
        self.folder = Path(tempfile.mkdtemp(prefix="hosts-"))
        login = {name: os.environ[name] for name in LOGIN_VARIABLES if name in os.environ}
        self._login = {**login, **(variables or {})}
        self._first: dict[str, subprocess.Popen[bytes]] = {}
        self._process_spaces: dict[str, str] = {}
        self._lifelines: list[socket.socket] = []
        self._port = agent_port
        self._networks = [NETWORK, SECOND_NETWORK] if more_cards else [NETWORK]
        self._switches: list[_Switch] = []
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        addresses = {name: f"{NETWORK}.{number}" for number, name in enumerate(self.names, 1)}
        names = "".join(f"{address} {name}\n" for name, address in addresses.items())
        (self.folder / "hosts").write_text(f"127.0.0.1 localhost\n{names}")
        agent = Path(self.agent)
        agent.write_text(
            f'#!/bin/sh\nexec {sys.executable} {Path(__file__).resolve()} ssh {self._port} "$@"\n'
        )
        agent.chmod(0o755)
        cards: list[dict[str, int]] = [{} for _ in self._networks]
        for number, name in enumerate(self.names, 1):
            ours, theirs = socket.socketpair()
            self._lifelines.append(ours)
            words = [
                name,
                str(number),
                str(self.folder),
                str(theirs.fileno()),
                _name_space(),
                str(self._port),
            ]
            with theirs:
                self._first[name] = subprocess.Popen(
                    ["unshare", *_NAMESPACES, sys.executable, __file__, "host", *words, *self._networks],
                    stdin=subprocess.DEVNULL,
                    env=self._login,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
            ours.settimeout(STARTING_SECONDS)
            _, received, _, _ = socket.recv_fds(ours, 1, len(cards))
            if not received:
                raise RuntimeError(f"The emulated host {name} did not start; see above.")
            for of_network, card in zip(cards, received, strict=True):
                of_network[name] = card
            self._process_spaces[name] = os.readlink(f"/proc/{self._first[name].pid}/ns/pid_for_children")
        self._switches = [_Switch(of_network) for of_network in cards]

    def __enter__(self) -> Hosts:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def agent(self) -> str:
        """A program that is called like ssh, for `plm_ssh_agent` and its kin."""
        return str(self.folder / "agent")

    def hostfile(self, slots: int, names: Iterable[str] | None = None) -> str:
        """Write a host file of these hosts, all of them if left out, with `slots` ranks each."""
        path = self.folder / f"hostfile-{time.monotonic_ns()}"
        path.write_text("".join(f"{name} slots={slots}\n" for name in names or self.names))
        return str(path)

    def command(self, host: str, words: Sequence[str]) -> list[str]:
        """Give the command that runs `words` on a host, in this environment, whatever its network does.

        SIGTERM, SIGINT and SIGUSR1 reach the program, and its exit status comes back.
        """
        console = str(self.folder / f"{host}.socket")
        return [sys.executable, str(Path(__file__).resolve()), "console", console, *words]

    def cut(self, *names: str) -> None:
        """Let nothing into these hosts or out of them."""
        for switch in self._switches:
            switch.cut |= set(names)

    def heal(self, *names: str) -> None:
        """Connect these hosts again."""
        for switch in self._switches:
            switch.cut -= set(names)

    def impair(self, *, delay_ms: float = 0.0, loss: float = 0.0) -> None:
        """Delay every packet by that long on its way, and lose this fraction of them."""
        for switch in self._switches:
            switch.delay, switch.loss = delay_ms / 1e3, loss

    def carried(self, network: str = NETWORK) -> int:
        """Return the bytes that a network has taken in so far."""
        return self._switches[self._networks.index(network)].carried

    def kill_host(self, host: str, *, silently: bool = False) -> None:
        """Kill every process of a host at the same moment.

        The kernel closes their connections, which the other hosts see; `silently`, as when the power fails,
        nobody hears of it.
        """
        if silently:
            self.cut(host)
        self._end([host])

    def processes(self, host: str) -> dict[int, str]:
        """Give what was started on a host and has not ended: the command lines by process id as seen here."""
        space = self._process_spaces.get(host)
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if os.readlink(folder / "ns/pid") != space:
                    continue
                line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            except OSError:
                continue
            if line and f"{Path(__file__).name} host " not in line:
                found[int(folder.name)] = line
        return found

    def close(self) -> None:
        """End all processes of all hosts, and remove the folder."""
        self._end(list(self._first))
        for switch in self._switches:
            switch.close()
        for lifeline in self._lifelines:
            lifeline.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _end(self, names: Iterable[str]) -> None:
        """Kill the first process of each host, with which the kernel ends all others."""
        for name in names:
            self._first[name].kill()
        deadline = time.monotonic() + ENDING_SECONDS
        for name in names:
            self._first[name].wait()
            while self.processes(name) and time.monotonic() < deadline:
                time.sleep(0.01)


class _Switch(threading.Thread):
    """Carries Ethernet frames between the cards of the hosts."""

    def __init__(self, cards: Mapping[str, int]) -> None:
        super().__init__(name="switch between hosts", daemon=True)
        self.cards = dict(cards)
        self.cut: frozenset[str] = frozenset()
        self.delay = 0.0
        self.loss = 0.0
        self.carried = 0
        self._where: dict[bytes, str] = {}
        self._waiting: list[tuple[float, int, str, str, bytes]] = []
        self._number = itertools.count()
        self._wake_read, self._wake_write = os.pipe()
        for card in self.cards.values():
            os.set_blocking(card, False)
        self.start()

    def run(self) -> None:
        names = {card: name for name, card in self.cards.items()}
        poll = select.poll()
        for descriptor in (*names, self._wake_read):
            poll.register(descriptor, select.POLLIN)
        while True:
            wait = None
            if self._waiting:
                wait = max(0.0, self._waiting[0][0] - time.monotonic()) * 1e3
            for descriptor, _ in poll.poll(wait):
                if descriptor == self._wake_read:
                    return
                try:
                    self._take_in(names[descriptor], descriptor)
                except OSError:
                    # The host has ended, and its card with it.
                    poll.unregister(descriptor)
            while self._waiting and self._waiting[0][0] <= time.monotonic():
                _, _, source, target, frame = heapq.heappop(self._waiting)
                self._hand_out(source, target, frame)

    def _take_in(self, source: str, card: int) -> None:
        for _ in range(_FRAMES_IN_TURN):
            try:
                frame = os.read(card, 65536)
            except BlockingIOError:
                return
            self._where[frame[6:12]] = source
            self.carried += len(frame)
            if self.loss and random.random() < self.loss:
                continue
            target = self._where.get(frame[:6])
            for name in self.cards if target is None else (target,):
                if name != source:
                    due = time.monotonic() + self.delay
                    heapq.heappush(self._waiting, (due, next(self._number), source, name, frame))

    def _hand_out(self, source: str, target: str, frame: bytes) -> None:
        if source in self.cut or target in self.cut:
            return
        try:
            os.write(self.cards[target], frame)
        except OSError:
            # A full queue or a dead host: a network loses such a frame too.
            return

    def close(self) -> None:
        os.write(self._wake_write, b"x")
        self.join()
        for descriptor in (*self.cards.values(), self._wake_read, self._wake_write):
            os.close(descriptor)


def _name_space() -> str:
    """Say in which of the spaces with a host name of their own this process is."""
    return os.readlink("/proc/self/ns/uts")


def _do(*words: str) -> None:
    """Run a program, which must succeed."""
    subprocess.run(words, check=True)


def _card(device: str, address: str) -> int:
    """Make a network card of this host, and return what a switch reads its frames from."""
    card = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(card, _TUNSETIFF, struct.pack("16sH22x", device.encode(), _IFF_TAP | _IFF_NO_PI))
    _do("ip", "address", "add", address, "dev", device)
    _do("ip", "link", "set", device, "txqueuelen", "10000", "up")
    return card


def _be_host(
    name: str,
    number: int,
    folder: Path,
    lifeline: socket.socket,
    outside: str,
    port: int,
    networks: Sequence[str],
) -> None:
    """Be the first process of a host: make its cards, and run what it is asked to, until its maker ends."""
    if _name_space() == outside:
        raise RuntimeError(f"This machine itself would be called {name}: there is no new namespace.")

    socket.sethostname(name)
    os.environ["TMPDIR"] = str(folder / f"{name}.tmp")
    os.mkdir(os.environ["TMPDIR"])
    # No two hosts of few processes have the same process ids: programs name files after them.
    Path("/proc/sys/kernel/ns_last_pid").write_text(str(PROCESS_IDS * number))
    _do("mount", "-t", "tmpfs", "shm", "/dev/shm")
    _do("mount", "--bind", str(folder / "hosts"), "/etc/hosts")
    cards = [_card(f"eth{index}", f"{network}.{number}/24") for index, network in enumerate(networks)]
    if len(networks) > 1:
        _do("ip", "link", "add", BRIDGE, "type", "bridge")
        _do("ip", "address", "add", f"{BRIDGE_ADDRESS}/16", "dev", BRIDGE)
        _do("ip", "link", "set", BRIDGE, "up")
    _do("ip", "link", "set", "lo", "up")
    network = socket.create_server((f"{NETWORK}.{number}", port))
    console = socket.socket(socket.AF_UNIX)
    console.bind(str(folder / f"{name}.socket"))
    console.listen()
    # Orphans come to the first process, and the kernel reaps them.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    socket.send_fds(lifeline, [b"+"], cards)
    for card in cards:
        os.close(card)
    while True:
        ready = select.select([lifeline, network, console], [], [])[0]
        if lifeline in ready:
            shutil.rmtree(folder, ignore_errors=True)
            return
        for door in ready:
            caller, _ = door.accept()
            if os.fork() == 0:
                try:
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    for inherited in (lifeline, network, console):
                        inherited.close()
                    _answer(caller)
                finally:
                    os._exit(0)
            caller.close()


def _answer(caller: socket.socket) -> None:
    """Run what one caller asks for, hand on its output and the caller's signals, and tell the exit status."""
    request = json.loads(caller.makefile("r").readline())
    environment = {**os.environ, **request["env"], "TMPDIR": os.environ["TMPDIR"]}
    try:
        child = subprocess.Popen(
            request["words"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=request["cwd"],
            start_new_session=True,
        )
    except OSError as error:
        _send(caller, _OUTPUT, f"{error}\n".encode())
        _send(caller, _STATUS, b"127")
        return
    assert child.stdout is not None

    def hand_on_signals() -> None:
        with contextlib.suppress(OSError):
            while number := caller.recv(1):
                child.send_signal(number[0])

    threading.Thread(target=hand_on_signals, daemon=True).start()
    # What the program leaves running may keep its output open.
    ended = False
    while not ended:
        ended = child.poll() is not None
        while select.select([child.stdout], [], [], _LOOK_SECONDS)[0]:
            output = os.read(child.stdout.fileno(), 65536)
            if not output:
                child.wait()
                ended = True
                break
            _send(caller, _OUTPUT, output)
    status = child.returncode
    _send(caller, _STATUS, str(status if status >= 0 else 128 - status).encode())


def _send(connection: socket.socket, kind: int, content: bytes) -> None:
    connection.sendall(_HEADER.pack(kind, len(content)) + content)


def _ask(connection: socket.socket, request: Mapping[str, object]) -> int:
    """Have a host run something, copy its output, and give its exit status."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, lambda number, _: connection.send(bytes([number])))
    connection.sendall(json.dumps(request).encode() + b"\n")
    answer = connection.makefile("rb")
    while len(header := answer.read(_HEADER.size)) == _HEADER.size:
        kind, length = _HEADER.unpack(header)
        content = answer.read(length)
        if kind == _STATUS:
            return int(content)
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    return UNREACHABLE


def _ssh(port: int, arguments: Sequence[str]) -> int:
    """Do as ssh does, as far as it can be seen from outside."""
    words = list(arguments)
    while words and words[0].startswith("-"):
        option = words.pop(0)
        if option in _OPTIONS_WITH_A_VALUE:
            words.pop(0)
    host, command = words[0], " ".join(words[1:])
    try:
        connection = socket.create_connection((host, port), timeout=CONNECT_SECONDS)
    except OSError as error:
        sys.stderr.write(f"connect to host {host} port {port}: {error}\n")
        return UNREACHABLE
    connection.settimeout(None)
    return _ask(connection, {"words": ["/bin/sh", "-c", command], "env": {}, "cwd": "/"})


def main(arguments: Sequence[str]) -> int:
    """Be a host, a program that is called like ssh, or somebody at a host's own keyboard."""
    role, *rest = arguments
    if role == "host":
        name, number, folder, descriptor, outside, port, *networks = rest
        lifeline = socket.socket(fileno=int(descriptor))
        _be_host(name, int(number), Path(folder), lifeline, outside, int(port), networks)
        return 0
    if role == "ssh":
        return _ssh(int(rest[0]), rest[1:])
    console = socket.socket(socket.AF_UNIX)
    console.connect(rest[0])
    return _ask(console, {"words": rest[1:], "env": dict(os.environ), "cwd": os.getcwd()})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
