"""What a callback does where it cannot write its files."""

from __future__ import annotations

import logging

from dist_classicrl.errors import MetricsError

logger = logging.getLogger(__name__)


def refuse_or_warn(error: OSError, what: str, callback: str, step: int) -> None:
    """Report that `what` cannot be written: by a `MetricsError` at step 0, and by a warning later.

    A training that goes on runs unattended, where an error would only cost time.
    """
    text = f"{what}: {error.strerror or error}."
    if step == 0:
        raise MetricsError(f"{text} Give {callback} a folder that this user may write to.") from error
    logger.warning("%s The training goes on without.", text)
