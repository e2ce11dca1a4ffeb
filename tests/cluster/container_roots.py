"""Root file systems of containers on a machine without a container engine, and programs that run in them.

`command` gives what runs a program in a root as an engine would: as the first process of namespaces of its
own, with /proc, /dev, /sys and the mounts that are asked for, as some user who can gain no rights. Nothing
stays mounted and no process is left when the program ends, or whoever started it.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeVar

from dist_classicrl.process.jobs import run_job

MIRROR = "http://deb.debian.org/debian"
SUITE = "bookworm"
PREFIX = "container-roots-"
# What Debian's own images add to what debootstrap makes.
SLIM = "force-unsafe-io\npath-exclude /usr/share/doc/*\npath-include /usr/share/doc/*/copyright\n" + "".join(
    f"path-exclude /usr/share/{name}/*\n" for name in ("man", "info", "locale", "lintian", "linda", "groff")
)
NO_CACHES = """
Dir::Cache { pkgcache ""; srcpkgcache ""; }
DPkg::Post-Invoke { "rm -f /var/cache/apt/archives/*.deb"; };
"""
SOURCES = f"""
deb {MIRROR} {SUITE} main
deb {MIRROR} {SUITE}-updates main
deb {MIRROR}-security {SUITE}-security main
"""
# Where pip and apt find what is around this machine; an engine's host hands over as much.
SETTINGS_OF_THE_NETWORK = (
    *("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
    *("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST", "PIP_DEFAULT_TIMEOUT", "PIP_PROXY"),
)
CERTIFICATES_INSIDE = "/dev/certificates.crt"
PROBE_SECONDS = 10.0
DEBOOTSTRAP_SECONDS = 240.0
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")

_NAMESPACES = ("--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--propagation", "private")
_PR_SET_NO_NEW_PRIVS = 38

T = TypeVar("T")


def why_not() -> str | None:
    """Say why no root can be made and entered here; None if it can."""
    if os.geteuid() != 0:
        return "only root may enter another root file system"
    for program in ("debootstrap", "unshare", "setpriv", "mount", "cp"):
        if shutil.which(program) is None:
            return f"there is no program {program}"
    trial = subprocess.run(["unshare", *_NAMESPACES, "true"], capture_output=True, text=True)
    if trial.returncode != 0:
        return f"namespaces cannot be made: {trial.stderr.strip()}"
    try:
        urllib.request.urlopen(f"{MIRROR}/dists/{SUITE}/Release", timeout=PROBE_SECONDS).close()
    except (OSError, urllib.error.URLError) as error:
        return f"{MIRROR} does not answer: {error}"
    return None


@contextmanager
def folder_of_roots() -> Iterator[Path]:
    """Give a folder for roots, and remove it in the end; also those that killed processes have left."""
    parent = Path(tempfile.gettempdir())
    for left in parent.glob(f"{PREFIX}*"):
        _remove(left)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    folder.chmod(0o755)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield folder
        finally:
            subprocess.run(["rm", "-rf", folder], check=True)


def _remove(left: Path) -> None:
    """Remove a folder of roots if nobody has it any longer."""
    try:
        with (left / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left)
    except OSError:
        return


def make_base(folder: Path) -> Path:
    """Make a Debian root as in Debian's own slim images, as far as debootstrap's mirror has it."""
    root = folder / "base"
    words = ["debootstrap", "--variant=minbase", SUITE, str(root), MIRROR]
    job = run_job(["setpriv", "--pdeathsig", "KILL", *words], timeout=DEBOOTSTRAP_SECONDS)
    if job.returncode != 0:
        raise RuntimeError(f"debootstrap ended with {job.returncode}:\n{job.output[-2000:]}")
    for package in (root / "var/cache/apt/archives").glob("*.deb"):
        package.unlink()
    for lists in (root / "var/lib/apt/lists").glob("*_*"):
        lists.unlink()
    (root / "etc/dpkg/dpkg.cfg.d/docker").write_text(SLIM)
    (root / "etc/apt/apt.conf.d/docker").write_text(NO_CACHES)
    (root / "etc/apt/sources.list").write_text(SOURCES)
    # No package starts a service when it is installed.
    starter = root / "usr/sbin/policy-rc.d"
    starter.write_text("#!/bin/sh\nexit 101\n")
    starter.chmod(0o755)
    return root


def copy_root(source: Path, target: Path) -> Path:
    """Copy a root."""
    subprocess.run(["cp", "-a", "--reflink=auto", source, target], check=True)
    return target


def size_of(folder: Path) -> float:
    """Return the size of all files below, in MB."""
    seen, total = set(), 0
    for path in folder.rglob("*"):
        found = path.lstat()
        if stat.S_ISREG(found.st_mode) and found.st_ino not in seen:
            seen.add(found.st_ino)
            total += found.st_size
    return total / 1e6


@dataclass(frozen=True)
class Container:
    """How a program runs in a root; words are those of the program.

    `mounts` are folders and files by the path inside at which they are seen, "ro:" before what may not be
    written; "tmpfs" is an empty one in memory.
    """

    root: str
    user: str = "0:0"
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str = "/"
    host: str = ""
    read_only: bool = False
    mounts: Mapping[str, str] = field(default_factory=dict)

    def command(self, words: Sequence[str]) -> list[str]:
        """Give the command that runs `words`, and with whose end all ends that they have started."""
        request = json.dumps({**asdict(self), "words": list(words)})
        enter = ["unshare", *_NAMESPACES, sys.executable, str(Path(__file__).resolve()), request]
        return ["setpriv", "--pdeathsig", "KILL", *enter]


class Running:
    """A container that runs, with what it writes in a file."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self.log = log
        with log.open("w") as output:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        """All that was written so far."""
        return self.log.read_text(errors="replace")

    def wait(self, seconds: float) -> int:
        """Wait for the end and return the exit status."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"did not end within {seconds:g} s; it wrote:\n{self.output}") from None

    def wait_for(self, condition: Callable[[], T], what: str, seconds: float) -> T:
        """Wait until `condition()` is true and return it; the container must not end before."""
        deadline = time.monotonic() + seconds
        while not (value := condition()):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"no {what}; it wrote:\n{self.output}")
            time.sleep(0.02)
        return value

    def send(self, number: int) -> None:
        """Send a signal to the first process inside, as an engine does that stops a container."""
        pid = self.process.pid
        (first,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        os.kill(int(first), number)

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it, and all that it started."""
        self.process.kill()
        self.process.wait()


def network_settings() -> tuple[dict[str, str], dict[str, str]]:
    """Return environment variables and mounts with which apt and pip reach what they reach out here."""
    env = {name: os.environ[name] for name in SETTINGS_OF_THE_NETWORK if name in os.environ}
    mounts = {"/etc/resolv.conf": "ro:/etc/resolv.conf"}
    certificates = os.environ.get("PIP_CERT") or os.environ.get("SSL_CERT_FILE")
    if certificates and os.path.isfile(certificates):
        mounts[CERTIFICATES_INSIDE] = f"ro:{os.path.realpath(certificates)}"
        env |= {"PIP_CERT": CERTIFICATES_INSIDE, "SSL_CERT_FILE": CERTIFICATES_INSIDE}
    links = os.environ.get("PIP_FIND_LINKS", "")
    if os.path.isdir(links):
        mounts["/dev/links"] = f"ro:{links}"
        env["PIP_FIND_LINKS"] = "/dev/links"
    return env, mounts


def _mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True)


def _enter(request: Mapping) -> None:
    """Become the program, inside of the root."""
    root = Path(request["root"])
    _mount("--bind", str(root), str(root))
    _mount("-t", "proc", "proc", str(root / "proc"))
    _mount("-t", "tmpfs", "-o", "mode=755", "dev", str(root / "dev"))
    for name in DEVICES:
        (root / "dev" / name).touch()
        _mount("--bind", f"/dev/{name}", str(root / "dev" / name))
    for name, target in {"fd": "", "stdin": "/0", "stdout": "/1", "stderr": "/2"}.items():
        (root / "dev" / name).symlink_to(f"/proc/self/fd{target}")
    _mount("--rbind", "-o", "ro", "/sys", str(root / "sys"))
    for target, source in {"/dev/shm": "tmpfs", **request["mounts"]}.items():
        _mount_one(source, root / target.removeprefix("/"))
    if request["read_only"]:
        _mount("-o", "remount,bind,ro", str(root))
    if request["host"]:
        socket.sethostname(request["host"])
    os.chroot(root)
    os.chdir(request["cwd"])
    user, _, group = request["user"].partition(":")
    if int(user):
        os.setgroups([])
        ctypes.CDLL(None).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    os.setgid(int(group))
    os.setuid(int(user))
    os.execvpe(request["words"][0], request["words"], request["env"])


def _mount_one(source: str, target: Path) -> None:
    read_only, path = source.startswith("ro:"), source.removeprefix("ro:")
    if path == "tmpfs":
        target.mkdir(parents=True, exist_ok=True)
        _mount("-t", "tmpfs", "-o", "mode=1777,noexec,nosuid,nodev", "tmpfs", str(target))
        return
    if os.path.isdir(path):
        target.mkdir(parents=True, exist_ok=True)
    elif not target.exists():
        target.touch()
    _mount("--bind", path, str(target))
    if read_only:
        _mount("-o", "remount,bind,ro", str(target))


if __name__ == "__main__":
    _enter(json.loads(sys.argv[1]))
