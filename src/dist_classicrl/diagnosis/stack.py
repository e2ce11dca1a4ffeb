"""Which MPI is here: the library that mpi4py loads, the launcher, and whether the two are of one MPI."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass

from dist_classicrl._hints import how_to_get_mpi, how_to_install
from dist_classicrl.diagnosis.children import make_trial
from dist_classicrl.diagnosis.findings import Finding, failure, ok
from dist_classicrl.errors import LauncherError
from dist_classicrl.launch.launcher import Launcher, find_launcher, identify, own_programs

_ALONE = "One process alone trains without MPI: python train.py."

_FAMILIES = (
    (r"Open MPI v?([\d.]+)", "openmpi", "Open MPI"),
    (r"Intel\(R\) MPI Library\D*([\d.]+)", "hydra", "Intel MPI"),
    (r"MVAPICH\d*\s+Version\s*:\s*([\d.]+)", "hydra", "MVAPICH"),
    (r"MPICH Version:\s*([\d.]+)", "hydra", "MPICH"),
)


@dataclass(frozen=True)
class Library:
    """An MPI library."""

    family: str  # as `Launcher` has it
    name: str
    version: str

    @classmethod
    def of_text(cls, text: str) -> Library:
        """Return what `MPI_Get_library_version` describes."""
        for pattern, family, name in _FAMILIES:
            found = re.search(pattern, text)
            if found:
                return cls(family, name, found[1].strip("."))
        return cls("unknown", (text.splitlines() or ["nothing"])[0][:60], "")

    @property
    def major(self) -> int | None:
        """The first number of the version."""
        return int(self.version.split(".")[0]) if self.version else None

    def __str__(self) -> str:
        return f"{self.name} {self.version}".strip()


@dataclass
class Stack:
    """What was found of the MPI so far."""

    library: Library | None = None
    launcher: Launcher | None = None


def examine(stack: Stack, seconds: float) -> Iterator[Finding]:
    """Find library and launcher, which are then in `stack`, and compare them."""
    yield _library(stack, seconds)
    yield _launcher(stack)
    if stack.library is not None:
        yield from _match(stack.library, stack.launcher)


def _library(stack: Stack, seconds: float) -> Finding:
    check = "MPI library"
    child = make_trial("library", seconds=seconds)
    cure = f"{how_to_get_mpi()} {_ALONE}"
    if child.data is None:
        return failure(check, f"mpi4py does not load it: {child.trouble}", cure)
    if "missing" in child.data:
        return failure(
            check, f"mpi4py cannot be imported: {child.data['missing']}", f"pip install mpi4py. {cure}"
        )
    by = f"mpi4py {child.data['mpi4py']}"
    if "error" in child.data:
        return failure(check, f"no MPI library: {by} cannot load any ({child.data['error']})", cure)
    stack.library = Library.of_text(child.data["library"])
    return ok(check, f"{stack.library}, loaded by {by} from {child.data['file'] or 'an unknown place'}")


def _launcher(stack: Stack) -> Finding:
    check = "mpirun"
    try:
        stack.launcher = find_launcher()
    except LauncherError as error:
        return failure(check, str(error), f"{how_to_get_mpi()} {_ALONE}")
    return ok(check, str(stack.launcher))


def _match(library: Library, launcher: Launcher | None) -> Iterator[Finding]:
    """Compare the library with the launcher that this package takes, and with the one that is typed."""
    check = "library and mpirun"
    if launcher is None:
        return
    typed = _typed_launcher(launcher)
    if not fit(library, launcher):
        yield failure(
            check,
            f"mpi4py loads {library}, but {launcher} starts ranks of another MPI: each would be alone",
            _cure_of_mismatch(library, launcher),
        )
    elif typed is not None and not fit(library, typed):
        yield failure(
            check,
            f"mpi4py loads {library}, but `mpirun` on PATH is {typed}: its ranks would each be alone",
            f"Put {os.path.dirname(launcher.path)} first on PATH (activate the environment), or start jobs "
            "by `dist-classicrl train --ranks N` and `dist-classicrl launch`, which take the right one.",
        )
    else:
        yield ok(check, "of one MPI")


def _cure_of_mismatch(library: Library, launcher: Launcher) -> str:
    load = f"let mpi4py load the library of {launcher} (load only one MPI module; the variable MPI4PY_LIBMPI"
    if os.path.dirname(launcher.path) == own_programs():
        return (
            "The mpirun of this Python environment is taken wherever it is there. Where two MPIs were "
            f"installed into it: {how_to_install()}. Otherwise {load}, where it is set, may name another)."
        )
    return f"Put the mpirun of {library} first on PATH, or {load} names a library's file)."


def fit(library: Library, launcher: Launcher) -> bool:
    """Return whether a launcher may start ranks that load a library, as far as their names tell."""
    if "unknown" in (library.family, launcher.family):
        return True
    if library.family != launcher.family:
        return False
    # MPICH and its relatives start each other's programs; Open MPI 4 and 5 do not.
    is_open_mpi = library.family == "openmpi" and bool(launcher.version) and library.major is not None
    return not is_open_mpi or launcher.version[0] == library.major


def _typed_launcher(used: Launcher) -> Launcher | None:
    """Return what starts when a person types mpirun, if that is another program."""
    path = shutil.which("mpirun")
    if path is None or os.path.realpath(path) == os.path.realpath(used.path):
        return None
    try:
        return identify(path)
    except LauncherError:
        return Launcher(path, "unknown", ())
