"""Whether what is installed works: another project may lie over this package, or a version not fit."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata

from dist_classicrl.diagnosis.children import make_trial
from dist_classicrl.diagnosis.findings import Finding, failure, ok, warning

DISTRIBUTION = "dist-classicrl-mpi"
"""The name under which a package index has this project."""

_OTHER = "dist-classicrl"


def examine() -> Iterator[Finding]:
    """Report a distribution of another project that has its files in the folder of this package.

    Its name is that of this package, so that pip brings it to whoever guesses. Nothing is reported where
    there is none, and an editable installation under that name has no files there.
    """
    try:
        other = metadata.distribution(_OTHER)
    except metadata.PackageNotFoundError:
        return
    if any(path.parts[0] == "dist_classicrl" for path in other.files or ()):
        yield warning(
            "installation",
            f"{_OTHER} {other.version}, which the index has from another project, is installed here, too: "
            "both have their files in the folder dist_classicrl, and those of the later one are used",
            f"pip uninstall {_OTHER}, and then install this project again: pip install --force-reinstall "
            f"--no-deps '.' in a clone. On the index its name is {DISTRIBUTION}.",
        )


def examine_training(seconds: float) -> Finding:
    """Learn for a moment, within so many seconds with all that is compiled for it."""
    check = "training"
    child = make_trial("training", seconds=seconds)
    said = child.data
    if said is None or "error" in said:
        return failure(
            check,
            f"nothing can be learned here: {child.trouble if said is None else said['error']}",
            "`pip check` names packages that are too old or too new for this one; `pip install '.'` in a "
            f"clone brings others, or `pip install {DISTRIBUTION}`. Where it took too long, raise --timeout.",
        )
    return ok(check, f"{said['steps']:,} steps of a compiled game: {said['seconds']:.1f} s with compiling it")
