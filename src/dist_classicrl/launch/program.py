"""Run a script as `python script.py` does, and decide how its process ends; `launch` starts it on each rank.

python -m dist_classicrl.launch.program [--replacement] script.py [argument ...]
python -m dist_classicrl.launch.program [--replacement] -m module [argument ...]
"""

from __future__ import annotations

# First: what it registers for the interpreter's end is then called last.
from dist_classicrl.process import exit as process_exit  # isort: skip

import importlib.util
import os
import re
import sys
import types
from collections.abc import Sequence
from contextlib import suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import Any

from dist_classicrl._hints import local_rank_of_environment
from dist_classicrl.errors import LauncherError
from dist_classicrl.launch.segments import remove_unused_segments
from dist_classicrl.process.exit_record import ExitRecord, record_of_environment
from dist_classicrl.process.parent import find_parent

_MODULE = "dist_classicrl.launch.program"
_REPLACEMENT = "--replacement"
_LONG_OPTION = "--check-hash-based-pycs"  # the only one that takes a value


def command(words: Sequence[str], *, options: Sequence[str] = (), replacement: bool = False) -> list[str]:
    """Return the command that runs `words`, which are a script or `-m module` and arguments, on each rank.

    `options` are the interpreter's. A `replacement` joins a job that is running: its end is then not that of
    the job.
    """
    return [sys.executable, *options, "-m", _MODULE, *([_REPLACEMENT] if replacement else []), *words]


def own_words(original: Sequence[str] | None = None) -> tuple[list[str], list[str]]:
    """Return this process's options of Python, and the script, or `-m` and the module, and the arguments.

    `original` is the interpreter's command line, by default `sys.orig_argv`. LauncherError if it has no
    script, as in an interactive session.
    """
    given = list(sys.orig_argv if original is None else original)
    options: list[str] = []
    words = given[1:]
    while words and words[0].startswith("-") and words[0] != "-":
        # Letters may stand together, as in -um, and a value in the same word, as in -Wall.
        short = re.fullmatch("(-[^-cmWX]*)([cmWX])(.*)", words[0], re.DOTALL)
        if short is not None and short[2] in "cm":
            options += [short[1]] if len(short[1]) > 1 else []
            words = [f"-{short[2]}", *([short[3]] if short[3] else []), *words[1:]]
            break
        n = 2 if words[0] == _LONG_OPTION or (short is not None and not short[3]) else 1
        options += words[:n]
        del words[:n]
    if words[:2] == ["-m", _MODULE]:
        words = words[2:]
        if words[:1] == [_REPLACEMENT]:
            words = words[1:]
    if not words or words[0] in ("-", "-c"):
        raise not_again(f"was started as {' '.join(given)!r}")
    return options, words


def not_again(what: str) -> LauncherError:
    """Return the error of a process that cannot be started again; `what` it runs, or was started as."""
    return LauncherError(
        f"This process {what}, which cannot be started again on another rank. Write the program into a "
        "file, and start that."
    )


def main(words: Sequence[str]) -> int:
    """Run a script, or `-m` and a module, with its arguments as `__main__`, and return the exit status.

    SystemExit of the script is passed on.
    """
    words = list(words)
    replacement = words[:1] == [_REPLACEMENT]
    if replacement:
        del words[0]
    if not words or words == ["-m"]:
        sys.stderr.write(f"{__doc__}")
        return os.EX_USAGE
    record = record_of_environment()
    process_exit.manage(record, replacement)
    if record is not None:
        sys.meta_path.insert(0, _StartOfMpi(record))
        if local_rank_of_environment() == 0:
            remove_unused_segments()
    if replacement:
        # The rank that started this process waits until MPI has begun here, and hears of no death before.
        find_parent()
    try:
        code, module = _load(words)
        exec(code, module.__dict__)
    except SystemExit as end:
        process_exit.script_ended(end)
        raise
    except BaseException as error:
        status = process_exit.script_ended(error)
        # Through the hook, which may have to end the whole job, and without the frames of this module.
        error = error.with_traceback(_trimmed(error.__traceback__))
        sys.excepthook(type(error), error, error.__traceback__)
        return status
    return process_exit.script_ended(None)


class _StartOfMpi(MetaPathFinder):
    """Tells the launcher when MPI starts in this process, by the import of mpi4py, and when it runs."""

    def __init__(self, record: ExitRecord) -> None:
        self._record = record

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """Find `mpi4py.MPI` as if this finder were not there, and see its loading."""
        if name != "mpi4py.MPI":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: types.ModuleType) -> None:
                self._note(runs=False)
                load(module)
                self._note(runs=True)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec

    def _note(self, runs: bool) -> None:
        with suppress(OSError):  # the first beat has told, on each host
            self._record.note_mpi(runs)


def _load(words: list[str]) -> tuple[Any, types.ModuleType]:
    """Return the code of a script or a module, and the module to run it in, set up as Python does."""
    spec: ModuleSpec | None = None
    if words[0] == "-m":
        sys.argv = words[1:]
        spec = _find(words[1])
        loader: Any = spec.loader
        code, path = loader.get_code(spec.name), spec.origin
        sys.argv[0] = path or words[1]
    else:
        sys.argv = words
        path = words[0]
        if not getattr(sys.flags, "safe_path", False):  # there, nothing was put in front
            sys.path[0] = os.path.dirname(os.path.realpath(path))
        try:
            with open(path, "rb") as file:
                source = file.read()
        except OSError as error:
            sys.stderr.write(f"{sys.executable}: can't open file {os.path.abspath(path)!r}: {error}\n")
            raise SystemExit(2) from error
        code = compile(source, path, "exec", dont_inherit=True)
    module = types.ModuleType("__main__")
    module.__dict__.update(
        __file__=path,
        __spec__=spec,
        __package__=None if spec is None else spec.parent,
        __loader__=None if spec is None else spec.loader,
        __builtins__=sys.modules["builtins"],
    )
    # For good: threads and what the script registered for the interpreter's end find it there.
    sys.modules["__main__"] = module
    return code, module


def _find(name: str) -> ModuleSpec:
    """Return where the module is that `python -m name` runs."""
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):  # one that its package imports
            raise
        spec = None
    if spec is None:
        sys.stderr.write(f"{sys.executable}: No module named {name}\n")
        raise SystemExit(1)
    return spec


def _trimmed(trace: types.TracebackType | None) -> types.TracebackType | None:
    """Return the part of a traceback below this module; all of it where there is none."""
    each = trace
    while each is not None and each.tb_frame.f_code.co_filename == __file__:
        each = each.tb_next
    return each


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
