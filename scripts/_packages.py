"""Packages of Debian and Ubuntu that the test bed of tests/cluster is made of."""

from __future__ import annotations

import os
import shutil
import subprocess

from _setup import say

# By package: the program that shows that it is there, however it came; without one, dpkg is asked.
PACKAGES = {
    "debootstrap": "debootstrap",
    "iproute2": "ip",
    "libpmix-dev": "",
    "munge": "munged",
    "nftables": "nft",
    "openssh-client": "ssh",
    "openssh-server": "sshd",
    "slurm-client": "sbatch",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "util-linux": "unshare",
}
SECONDS = 300
_FOLDERS = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"])


def install_packages() -> None:
    """Install what is missing, where that is possible; the tests say what they lack where it is not."""
    missing = sorted(name for name, program in PACKAGES.items() if not _is_there(name, program))
    if not missing:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        why = "this is not root" if os.geteuid() != 0 else "there is no apt-get"
        say(f"not installed, since {why}: {', '.join(missing)}")
        return
    say(f"installing {', '.join(missing)}")
    # Without the lists of a fresh container nothing is found at first.
    if _apt_get("install", *missing) or (_apt_get("update") and _apt_get("install", *missing)):
        return
    lacking = [name for name in missing if not _apt_get("install", name)]
    if lacking:
        say(f"cannot be installed, so that tests that need them are skipped: {', '.join(lacking)}")


def _is_there(package: str, program: str) -> bool:
    if program:
        return shutil.which(program, path=_FOLDERS) is not None
    return _is_installed(package)


def _is_installed(package: str) -> bool:
    if shutil.which("dpkg-query") is None:
        return False
    query = ["dpkg-query", "--show", "--showformat", "${db:Status-Status}", package]
    done = subprocess.run(query, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return done.returncode == 0 and done.stdout == "installed"


def _apt_get(verb: str, *packages: str) -> bool:
    # RUNLEVEL: packages of services start none of them.
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    options = ["-y", "-q=2", "-o", "DPkg::Lock::Timeout=60", "--no-install-recommends"]
    try:
        done = subprocess.run(
            ["apt-get", *options, verb, *packages],
            env=environment,
            stdin=subprocess.DEVNULL,
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired:
        say(f"apt-get {verb} did not end within {SECONDS} s")
        return False
    return done.returncode == 0
