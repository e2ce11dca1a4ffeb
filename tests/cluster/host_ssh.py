"""Real ssh between emulated hosts: a server on each, and a client that keeps its files in a test's folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from hosts import NETWORK, Hosts

# Where the emulated hosts answer otherwise.
AGENT_PORT = 2022
SECONDS = 120.0
_SERVER = """
ListenAddress {address}
HostKey {key}
AuthorizedKeysFile {home}/.ssh/authorized_keys
PasswordAuthentication no
PermitRootLogin yes
StrictModes no
UsePAM no
PidFile none
"""
_CLIENT = """
UserKnownHostsFile {home}/.ssh/known_hosts
GlobalKnownHostsFile none
IdentityFile {home}/.ssh/id_ed25519
"""


def why_not() -> str | None:
    """Say why there can be no server of ssh here; None if there can."""
    missing = [name for name in ("ssh", "sshd", "ssh-keygen", "ssh-keyscan") if _path(name) is None]
    return f"there is no {', no '.join(missing)}" if missing else None


_PROBE = """
import socket, time
until = time.monotonic() + {1}
while True:
    try:
        socket.create_connection(({0!r}, 22), timeout=1.0)
    except OSError:
        if time.monotonic() > until:
            raise
        time.sleep(0.05)
    else:
        break
"""


class SshHosts(Hosts):
    """Hosts that call themselves node1, node2, ..., with a server of ssh each; here they stay h1, h2, ...

    `home` is where people's files are on all of them; there is no key yet, and no host is known.
    """

    def __init__(self, count: int, home: Path) -> None:
        super().__init__(count, agent_port=AGENT_PORT)
        self.home = home
        try:
            self._serve()
        except BaseException:
            self.close()
            raise

    def _serve(self) -> None:
        (self.home / ".ssh").mkdir(mode=0o700)
        client = self.home / "client"
        client.write_text(_CLIENT.format(home=self.home))
        programs = self.home / "bin"
        programs.mkdir()
        # ssh looks for its files where the system says that a person's are, and not in HOME.
        ssh = programs / "ssh"
        ssh.write_text(f'#!/bin/sh\nexec {_path("ssh")} -F {client} "$@"\n')
        ssh.chmod(0o755)
        command = programs / "dist-classicrl"
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -m dist_classicrl "$@"\n')
        command.chmod(0o755)
        with open(self.folder / "hosts", "a", encoding="utf-8") as names:
            names.writelines(f"{NETWORK}.{number} node{number}\n" for number, _ in enumerate(self.names, 1))
        for number, name in enumerate(self.names, 1):
            key, settings = self.folder / f"{name}.key", self.folder / f"{name}.sshd"
            subprocess.run(
                [_path("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-f", key], check=True, timeout=SECONDS
            )
            settings.write_text(_SERVER.format(address=f"{NETWORK}.{number}", key=key, home=self.home))
            # The folder that it wants is made on this host alone.
            server = f"mount -t tmpfs run /run && mkdir /run/sshd && exec {_path('sshd')} -f {settings}"
            start = f"hostname node{number} && {server}"
            subprocess.run(self.command(name, ["sh", "-c", start]), check=True, timeout=SECONDS)
            # It goes into the background before it listens.
            probe = self.command(name, [sys.executable, "-c", _PROBE.format(f"{NETWORK}.{number}", SECONDS)])
            subprocess.run(probe, check=True, timeout=2 * SECONDS)

    def environment(self, **variables: str) -> dict[str, str]:
        """Return the environment of somebody who works on these hosts."""
        path = os.pathsep.join([str(self.home / "bin"), os.path.dirname(sys.executable), os.environ["PATH"]])
        return {**os.environ, "HOME": str(self.home), "PATH": path, **variables}


def _path(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")
