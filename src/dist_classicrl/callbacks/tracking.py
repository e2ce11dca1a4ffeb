"""What callbacks share that keep a run at a tracking service."""

from __future__ import annotations

import logging
from typing import Any

from dist_classicrl._version import __version__
from dist_classicrl.callbacks.files import refuse_or_warn
from dist_classicrl.callbacks.scalars import ScalarsCallback
from dist_classicrl.errors import SettingsError

logger = logging.getLogger(__name__)


class TrackingCallback(ScalarsCallback):
    """Opens a run when the training begins, writes to it, and closes it however the training ends.

    `words` are what a service is told, and `run_id` among them: attributes of these names; SettingsError for
    what is neither text nor None.

    A service that does not answer costs a warning and what was to be written. It is tried again at the next
    report, and after each failure in a row at twice as many reports, since it may take long to fail.
    """

    _service: str
    _remedy: str

    run_id: str | None

    def __init__(self, verbose: int, **words: str | None) -> None:
        super().__init__(verbose)
        for name, word in words.items():
            if word is not None and not isinstance(word, str):
                raise SettingsError(f"{name} must be text, or None, got {word!r}.")
            setattr(self, name, word)
        self._run: Any = None
        self._has_ended = False
        self._pause = self._passed_over = 0  # what is passed over after a failure, and what still is

    # What services differ in

    def _errors(self) -> tuple[type[Exception], ...]:
        """Return what the service's package raises where the service cannot do what is asked."""
        raise NotImplementedError

    def _open(self, config: dict[str, Any]) -> Any:
        """Return a run of these settings: the one of `run_id` where there is one, else a new one."""
        raise NotImplementedError

    def _log(self, step: int, scalars: dict[str, float]) -> None:
        """Write numbers as of `step` into `_run`."""
        raise NotImplementedError

    def _finish(self, run: Any, has_ended: bool) -> None:
        """Close the run; it has failed where the training has not ended in order."""
        raise NotImplementedError

    # What the training calls

    def _on_training_start(self) -> None:
        self._close()
        self._has_ended = False
        self._pause = self._passed_over = 0
        try:
            self._run = self._open(self._config())
        except self._errors() as error:
            self._close()
            what = f"{self._service} cannot begin a run"
            refuse_or_warn(error, what, type(self).__name__, self.num_timesteps, self._remedy)
            return
        if self.verbose > 0:
            logger.info("%s has this run as %s.", self._service, self.run_id)

    def _on_training_end(self) -> None:
        self._has_ended = True

    def _write_scalars(self, step: int, scalars: dict[str, float]) -> None:
        if self._run is None:
            return
        if self._passed_over > 0:
            self._passed_over -= 1
            return
        try:
            self._log(step, scalars)
            self._pause = 0
        except self._errors() as error:
            if self._pause == 0:
                logger.warning(
                    "%s does not take what is reported: %s. The training goes on, and it is tried again.",
                    self._service, error,
                )  # fmt: skip
            self._passed_over, self._pause = self._pause, 2 * self._pause + 1

    def _close(self) -> None:
        run, self._run = self._run, None
        if run is None:
            return
        try:
            self._finish(run, self._has_ended)
        except self._errors() as error:
            logger.warning("%s cannot close run %s: %s.", self._service, self.run_id, error)

    def _config(self) -> dict[str, Any]:
        assert self.progress is not None  # it came with the start
        return {
            **self.model.settings.to_dict(),
            "seed": self.model.seed,
            "total_steps": self.progress.total_steps,
            "dist_classicrl": __version__,
        }
