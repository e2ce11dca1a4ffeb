"""What another user of a host can do to a job there; it becomes that user before it does anything.

python security_stranger.py files FOLDER ...     what of these folders can be read, changed or made
python security_stranger.py processes            what can be seen of other processes
python security_stranger.py connect SECONDS      sends nonsense to every port, and holds connections open
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import sys
import time
from pathlib import Path

USER = 12_345  # nobody has an account with this number
SSH_PORT = 22
LISTENING = "0A"
CONNECT_SECONDS = 1.0
MADE = "of a stranger"
MOST_HELD = 200
ROUNDS = 3  # over all ports at least, however busy the machine is


def become_stranger():
    """Give up all rights."""
    os.setgroups([])
    os.setgid(USER)
    os.setuid(USER)


def ports():
    """Give the ports on which something listens, which is for everybody to see."""
    found = set()
    for name in ("tcp", "tcp6"):
        for line in Path("/proc/net", name).read_text().splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            if state == LISTENING:
                found.add(int(local.rpartition(":")[2], 16))
    return sorted(found - {SSH_PORT})


def files(folders):
    """Try to read and to change all that is in some folders, and to make something there."""
    done = {"read": [], "changed": [], "made": [], "seen": []}
    for folder in folders:
        for place, _, names in os.walk(folder):
            with contextlib.suppress(OSError):
                Path(place, MADE).touch()
                done["made"].append(place)
            for name in names:
                path = os.path.join(place, name)
                done["seen"].append(path)
                for what, flag in (("read", os.O_RDONLY), ("changed", os.O_RDWR)):
                    with contextlib.suppress(OSError):
                        os.close(os.open(path, flag | os.O_NONBLOCK))
                        done[what].append(path)
    return done


def processes():
    """Give the command lines that can be read, and the processes whose environment or memory can be."""
    done = {"commands": [], "environments": [], "memories": []}
    for folder in Path("/proc").glob("[0-9]*"):
        if int(folder.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            done["commands"].append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        for what, name in (("environments", "environ"), ("memories", "mem")):
            with contextlib.suppress(OSError):
                os.close(os.open(folder / name, os.O_RDONLY))
                done[what].append(folder.name)
    return done


def nonsense(chance):
    """Give something to send: nothing, noise of some length, or the beginning of what somebody may expect."""
    return chance.choice(
        (
            b"",
            chance.randbytes(chance.choice((1, 7, 64, 65_536))),
            b"GET / HTTP/1.0\r\n\r\n",
            b"OPAL-TCP-BTL\0" + chance.randbytes(chance.choice((3, 8, 11, 4096))),
            b"\0" * chance.choice((20, 4096)),
            b"\xff" * chance.choice((20, 28, 4096)),
        )
    )


def connect(seconds):
    """Send nonsense to every port for so long; give how often that could be done, and to how many."""
    chance, held, reached, sent = random.Random(1), [], set(), 0
    end, rounds = time.monotonic() + seconds, 0
    while rounds < ROUNDS or time.monotonic() < end:
        rounds += 1
        for port in ports():
            caller = socket.socket()
            caller.settimeout(CONNECT_SECONDS)
            try:
                caller.connect(("127.0.0.1", port))
                caller.sendall(nonsense(chance))
            except OSError:
                caller.close()
                continue
            reached.add(port)
            sent += 1
            if chance.random() < 0.5:
                caller.close()
            else:
                held.append(caller)
        while len(held) > MOST_HELD:
            held.pop(chance.randrange(len(held))).close()
        time.sleep(0.01)
    return {"ports": sorted(reached), "sent": sent}


def main(role, *words):
    """Do it and print what came of it."""
    become_stranger()
    if role == "files":
        answer = files(words)
    elif role == "processes":
        answer = processes()
    else:
        answer = connect(float(words[0]))
    print(json.dumps(answer))


if __name__ == "__main__":
    main(*sys.argv[1:])
