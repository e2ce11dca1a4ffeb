"""Exceptions that cross ranks.

They are JSON on the way, `RemoteRankError` on arrival, and stand once in the job's output.
"""

from __future__ import annotations

import os
import socket
import sys
import time
import traceback
from typing import Any

import numpy as np

from dist_classicrl.distributed import messages
from dist_classicrl.distributed.transport import Channel
from dist_classicrl.errors import RemoteRankError

_GRACE_SECONDS = 10.0


def failure_text(error: BaseException, rank: int) -> np.ndarray:
    """Return `error` as JSON for a message.

    A `RemoteRankError` is passed on as what it was where it was raised.
    """
    if isinstance(error, RemoteRankError):
        return messages.text(error.to_dict())
    summary = traceback.format_exception_only(type(error), error)[-1].strip()
    return messages.text(
        {
            "rank": rank,
            "host": socket.gethostname(),
            "summary": summary,
            "remote_traceback": "".join(traceback.format_exception(type(error), error, error.__traceback__)),
        }
    )


def raise_remote(channel: Channel, parts: list[np.ndarray]) -> None:
    """Raise the `RemoteRankError` of a FAILED message that came on `channel`."""
    channel.peer_failed = True
    raise RemoteRankError(**messages.from_text(parts[0]))


def mark_as_told_elsewhere(error: BaseException) -> None:
    """Note that another rank raises the same and prints it, if nobody handles it."""
    error._told_elsewhere = True  # type: ignore[attr-defined]


_installed = False


def end_job_on_unhandled_errors() -> None:
    """Let an exception that nobody handles end the whole MPI job with its traceback.

    Otherwise it would leave ranks waiting. The rank that raised it prints it and aborts. Ranks that got it as
    `RemoteRankError`, or raise the same, give it time to.
    """
    global _installed
    if _installed:
        return
    _installed = True
    previous = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        told = isinstance(error, RemoteRankError) or getattr(error, "_told_elsewhere", False)
        if told and _is_running():
            time.sleep(_GRACE_SECONDS)
        previous(kind, error, trace)
        if _is_running():
            from mpi4py import MPI

            sys.stdout.flush()
            sys.stderr.flush()
            MPI.COMM_WORLD.Abort(1)
            os._exit(1)

    sys.excepthook = hook


def _is_running() -> bool:
    """Whether MPI was started here, with more than one rank, and is not over."""
    module = sys.modules.get("mpi4py.MPI")
    return (
        module is not None
        and module.Is_initialized()
        and not module.Is_finalized()
        and module.COMM_WORLD.Get_size() > 1
    )
