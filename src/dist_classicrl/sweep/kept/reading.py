"""Reading the files of a study: one that cannot be read is named."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dist_classicrl._files import open_regular
from dist_classicrl.errors import StudyError


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn what the system says of a file or folder that cannot be read into a StudyError.

    A FileNotFoundError stays what it is.
    """
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StudyError(
            f"{path} of a study cannot be read ({error.strerror}). Let this user read it. Where it is no "
            "file of the study, or lost, move it away: runs whose records are not there are made again."
        ) from error


def read_kept(path: Path, begin: int = 0) -> bytes | None:
    """Return what a file of a study holds from this byte on, None if it is not there; or raise StudyError."""
    with suppress(FileNotFoundError), readable(path), open_regular(path) as file:
        file.seek(begin)
        return file.read()
    return None
