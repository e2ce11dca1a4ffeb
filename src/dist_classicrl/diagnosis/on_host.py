"""What a host says of itself when it is asked, before any rank is started there.

python -m dist_classicrl.diagnosis.on_host (report | reach) JSON

What is said is written as lines of JSON after a mark, each as soon as it is known, since what comes after it
may hang or crash.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import platform
import secrets
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import dist_classicrl
from dist_classicrl._words import error_told
from dist_classicrl.diagnosis import marked, trials
from dist_classicrl.errors import LauncherError
from dist_classicrl.launch.launcher import find_launcher
from dist_classicrl.launch.network import own_addresses

END = b"end"  # what a host is sent when the examination is over
_TOKEN_BYTES = 8
_WORD_SECONDS = 1.0
_LOOK_SECONDS = 0.5
_CONNECTIONS_AT_ONCE = 32
_PLACE = Path(dist_classicrl.__file__).parent
_OWN = "dist_classicrl"
_PACKAGES = ("numpy", "numba", "mpi4py")
_Found = TypeVar("_Found")


def report(request: dict[str, Any]) -> None:
    """Report what is here, and let other hosts connect.

    This lasts for ``"seconds"``, or until `END` arrives, or until the process that asked ends. ``"files"``
    has the paths of files that should be seen here, by what they are for.
    """
    parent, deadline = os.getppid(), time.monotonic() + request["seconds"]
    ended = threading.Event()
    server = socket.create_server(("", 0))
    token = secrets.token_hex(_TOKEN_BYTES // 2).encode()
    threading.Thread(target=_be_reached, args=(server, token, ended), daemon=True).start()
    marked.write(
        host=socket.gethostname(),
        port=server.getsockname()[1],
        token=token.decode(),
        addresses=_tried(own_addresses, lambda text: []),
        working_folder=os.getcwd(),
        package=str(_PLACE),
    )
    marked.write(files={label: _sight(path) for label, path in request["files"].items()})
    marked.write(versions=_tried(versions, lambda text: {_OWN: text}))
    library = _tried(trials.library, lambda text: {"error": text})
    marked.write(library=library.get("library") or library.get("error") or library.get("missing"))
    marked.write(cache=_tried(trials.cache, lambda text: {"error": text}), done=True)
    with contextlib.suppress(OSError):
        while not ended.wait(_LOOK_SECONDS) and time.monotonic() < deadline and os.getppid() == parent:
            marked.write()  # which fails once the process that asked has ended


def reach(request: dict[str, Any]) -> None:
    """Say why a connection from here to each of ``"peers"``, hosts by name, fails within ``"seconds"``."""
    peers: dict[str, dict[str, Any]] = request["peers"]
    with ThreadPoolExecutor(_CONNECTIONS_AT_ONCE) as pool:
        found = pool.map(lambda peer: find_trouble(peer, request["seconds"]), peers.values())
    marked.write(troubles=dict(zip(peers, found, strict=True)))


def find_trouble(peer: dict[str, Any], seconds: float, word: bytes = b"") -> str:
    """Return why nothing can be sent to a host; nothing if it can, and then `word` is sent.

    `peer` has the ``"token"`` and the ``"port"`` that the host gave in `report`, and in ``"to"`` the
    addresses to try, each for so many seconds.
    """
    troubles = [] if peer["to"] else ["it has no address in that network"]
    for address in peer["to"]:
        try:
            with socket.create_connection((address, peer["port"]), timeout=seconds) as connection:
                if connection.recv(_TOKEN_BYTES, socket.MSG_WAITALL) == peer["token"].encode():
                    connection.sendall(word)
                    return ""
            troubles.append(f"{address} is another host")
        except OSError as error:
            troubles.append(f"{address}: {error.strerror or error}")
    return ", ".join(troubles)


def versions() -> dict[str, str]:
    """Return the versions of what has to be the same on all hosts."""
    found = {"Python": platform.python_version()}
    found[_OWN] = f"{dist_classicrl.__version__}, code {fingerprint(_PLACE)}"
    for name in _PACKAGES:
        try:
            found[name] = str(importlib.import_module(name).__version__)
        except Exception as error:  # whatever a broken installation raises
            found[name] = error_told(error)
    try:
        found["mpirun"] = str(find_launcher()).rpartition(" (")[0]
    except LauncherError:
        found["mpirun"] = "none"
    return found


def fingerprint(place: Path) -> str:
    """Return a short text that is the same for the same source files."""
    digest = hashlib.sha256()
    for path in sorted(place.rglob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(place)} {len(content)} ".encode())
        digest.update(content)
    return digest.hexdigest()[:8]


def _be_reached(server: socket.socket, token: bytes, ended: threading.Event) -> None:
    """Send the token to every host that connects, until one says `END`."""
    while not ended.is_set():
        connection, _ = server.accept()
        try:
            with connection:
                connection.settimeout(_WORD_SECONDS)
                connection.sendall(token)
                if connection.recv(len(END), socket.MSG_WAITALL) == END:
                    ended.set()
        except OSError:  # of a host that connects and goes away
            continue


def _tried(find: Callable[[], _Found], otherwise: Callable[[str], _Found]) -> _Found:
    """Return what is found, or `otherwise` with the error, so that one part does not end the others."""
    try:
        return find()
    except Exception as error:  # whatever a broken installation raises
        return otherwise(error_told(error))


def _sight(path: str) -> dict[str, Any]:
    """Return whether a file is seen here, and whether one can be written beside it."""
    said: dict[str, Any] = {"sees": os.path.exists(path)}
    if said["sees"]:
        try:
            tempfile.TemporaryFile(dir=os.path.dirname(path)).close()
        except OSError as error:
            said["unwritable"] = str(error)
    return said


if __name__ == "__main__":
    {"report": report, "reach": reach}[sys.argv[1]](json.loads(sys.argv[2]))
    sys.stdout.flush()
    os._exit(0)  # not waiting for what a library has started
