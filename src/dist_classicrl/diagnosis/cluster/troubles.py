"""Why a host does not answer: told by what ssh, a shell or Python wrote, with what to do about it."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

PYTHON = sys.executable  # what hosts are asked with, since ranks are started with it, too
_LAST_LINES = 3  # a greeting may come before
_PARTS = {
    "files": "folders",
    "versions": "versions",
    "library": "its MPI library",
    "cache": "compiled code",
}


@dataclass(frozen=True)
class Trouble:
    """Why a host does not answer; `HOST` stands for its name in the remedy."""

    what: str
    remedy: str


NOT_STARTED = Trouble(
    "what should ask it cannot be started", "Look at the command of --agent; without it, install ssh."
)
_NO_PYTHON = Trouble(
    f"there is no {PYTHON}",
    "Install the environment at the same path on every host, or in a folder that all hosts see.",
)
_NO_PACKAGE = Trouble(
    f"{PYTHON} cannot run dist_classicrl there",
    f"Make `ssh HOST {PYTHON} -c 'import dist_classicrl.diagnosis.on_host'` work: install the same release "
    "on every host, or in a folder that all hosts see.",
)
_SILENT = Trouble(
    "it does not answer in time",
    "Look whether HOST is up, and whether `ssh HOST true` comes to an end; or give --timeout more seconds.",
)
_NO_KEY = Trouble(
    "ssh does not know its key",
    "Look at `ssh HOST`; then ssh-keyscan HOST >> ~/.ssh/known_hosts.",
)
_LOCKED = Trouble(
    "it does not let this user in without a password",
    "Let `ssh -o BatchMode=yes HOST true` work: ssh-keygen, then ssh-copy-id HOST; ssh-add for a key "
    "with a passphrase.",
)
_OF_SSH = {  # what ssh itself says first, then single words
    r"permission denied": _LOCKED,
    r"host key|identification has changed": _NO_KEY,
    r"could not resolve|name or service not known|name resolution|no address associated": Trouble(
        "its name is not known here",
        "Correct it in the hostfile, or enter HOST in DNS or in /etc/hosts of every host.",
    ),
    r"refused": Trouble(
        "it refuses the connection",
        "Start sshd on HOST, or name its port in ~/.ssh/config.",
    ),
    r"timed out|no route|unreachable|connection closed|reset by": Trouble(
        "it cannot be reached",
        "Look whether HOST is up, and at the network and firewall in between.",
    ),
    r"password|passphrase|authenticat": _LOCKED,
}
_UNKNOWN = Trouble(
    "it cannot be asked", "Let `ssh HOST true`, or the same with --agent, work without a question."
)


def before_the_first_word(output: str, status: int | None) -> Trouble:
    """Return why a host has said nothing of itself, by what was written instead.

    `status` is that with which the command ended; None if it has not.
    """
    if status is None:
        return _SILENT
    if status in (126, 127):
        return _NO_PYTHON
    if "Traceback" in output or PYTHON in output:
        return _NO_PACKAGE
    lines = [line for line in output.splitlines() if line.strip()]
    for line in reversed(lines[-_LAST_LINES:]):
        for pattern, trouble in _OF_SSH.items():
            if re.search(pattern, line, re.IGNORECASE):
                return trouble
    return _UNKNOWN


def broken_off(said: Mapping[str, Any], status: int) -> Trouble:
    """Return where a host's answer broke off, by what it has `said`."""
    part = next((text for key, text in _PARTS.items() if key not in said), "itself")
    return Trouble(
        f"its answer broke off when it looked at {part}, with exit status {status}",
        "Run `dist-classicrl doctor` on HOST itself, which looks for the cause.",
    )
