"""What a callback does where it cannot write its files."""

from __future__ import annotations

import logging

from dist_classicrl.errors import MetricsError

logger = logging.getLogger(__name__)


def refuse_or_warn(error: Exception, what: str, callback: str, step: int, remedy: str = "") -> None:
    """Report that `what` cannot be written: by a `MetricsError` at step 0, and by a warning later.

    A training that goes on runs unattended, where an error would only cost time. By default `remedy` is
    another folder.
    """
    text = f"{what}: {getattr(error, 'strerror', None) or str(error).strip().rstrip('.')}."
    if step == 0:
        remedy = remedy or f"Give {callback} a folder that this user may write to."
        raise MetricsError(f"{text} {remedy}") from error
    logger.warning("%s The training goes on without.", text)
