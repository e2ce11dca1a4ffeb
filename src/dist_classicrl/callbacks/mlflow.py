"""Progress of a run for MLflow."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dist_classicrl.callbacks.tracking import TrackingCallback
from dist_classicrl.checks import require_package

logger = logging.getLogger(__name__)

_LONGEST = 500
"""Characters of a parameter that every store of MLflow takes."""

_AT_ONCE = 100
"""Parameters that a server of MLflow takes at once."""

_REFUSED = "INVALID_PARAMETER_VALUE"
"""What MLflow answers to what it does not take, whoever sends it."""


class MlflowCallback(TrackingCallback):
    """Writes settings, the numbers of each report and what callbacks `record` to MLflow.

    The numbers have the names that `TensorBoardCallback` gives them, and `num_timesteps` as their step. A
    setting that has parts is a parameter for each, such as ``learning_rate.kind``; what is longer than 500
    characters is cut off. A number whose name MLflow does not take is left out, which is logged once. The run
    is no active one of `mlflow`: those of the caller stay as they are.

    Parameters
    ----------
    experiment : str, optional
        Made if it is missing; by default MLflow's own.
    name : str, optional
        The name that the run is shown under; by default MLflow makes one.
    tracking_uri : str or path, optional
        A server, a store such as "sqlite:///mlflow.db", or the path of a folder; by default what
        `mlflow.get_tracking_uri` says, which obeys ``MLFLOW_TRACKING_URI``.
    run_id : str, optional
        A run to go on with. It keeps the parameters that it has.
    verbose : int
        1: the id of the run is logged.

    Attributes
    ----------
    run_id : str or None
        Id of the run, once it has begun. Later calls of `train` go on with it.

    Raises
    ------
    MissingExtraError
        If neither the package mlflow nor mlflow-skinny is installed.
    SettingsError
        If an argument is none of those above.
    """

    experiment: str | None
    name: str | None
    tracking_uri: str | None

    _service = "MLflow"
    _remedy = "Give MlflowCallback a tracking_uri that can be reached, such as 'sqlite:///mlflow.db'."

    def __init__(
        self,
        experiment: str | None = None,
        name: str | None = None,
        tracking_uri: str | os.PathLike[str] | None = None,
        run_id: str | None = None,
        verbose: int = 0,
    ) -> None:
        if isinstance(tracking_uri, os.PathLike):
            tracking_uri = Path(tracking_uri).absolute().as_uri()
        super().__init__(verbose, run_id=run_id, experiment=experiment, name=name, tracking_uri=tracking_uri)
        require_package("mlflow", "MlflowCallback", "mlflow", "mlflow-skinny")
        self._client: Any = None
        self._refused: set[str] = set()  # names

    def _errors(self) -> tuple[type[Exception], ...]:
        from mlflow.exceptions import MlflowException

        return OSError, MlflowException, ImportError  # a store's own packages may be missing

    def _open(self, config: dict[str, Any]) -> Any:
        from mlflow import MlflowClient
        from mlflow.entities import Param

        client = self._client = MlflowClient(tracking_uri=self.tracking_uri)
        if self.run_id is None:
            run = client.create_run(self._experiment_id(), run_name=self.name)
            self.run_id = run.info.run_id
        else:
            client.update_run(self.run_id, status="RUNNING")
            run = client.get_run(self.run_id)
        self._run = run  # to be closed if its parameters are not taken
        known = run.data.params
        params = [Param(name, text) for name, text in _flat(config) if name not in known]
        for first in range(0, len(params), _AT_ONCE):
            client.log_batch(self.run_id, params=params[first : first + _AT_ONCE])
        return run

    def _experiment_id(self) -> str:
        if self.experiment is None:
            return "0"
        found = self._client.get_experiment_by_name(self.experiment)
        return str(self._client.create_experiment(self.experiment) if found is None else found.experiment_id)

    def _log(self, step: int, scalars: dict[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [
            Metric(name, value, now, step) for name, value in scalars.items() if name not in self._refused
        ]
        if not metrics or (error := self._refusal(metrics)) is None:
            return
        # It has taken none of them; which it refuses shows where each comes alone.
        refusals = {metric.key: self._refusal([metric]) for metric in metrics}
        if metrics[1:] and all(refusals.values()):  # not for their names
            raise error
        for name, why in refusals.items():
            if why is not None:
                logger.warning("MLflow does not take the name %r: %s", name, why)
                self._refused.add(name)

    def _refusal(self, metrics: list[Any]) -> Exception | None:
        """Write numbers, all or none of them, and return why MLflow refuses them, if it does."""
        from mlflow.exceptions import MlflowException

        try:
            self._client.log_batch(self.run_id, metrics=metrics)
        except MlflowException as error:
            if error.error_code != _REFUSED:
                raise
            return error
        return None

    def _finish(self, run: Any, has_ended: bool) -> None:
        self._client.set_terminated(run.info.run_id, "FINISHED" if has_ended else "FAILED")


def _flat(config: dict[str, Any], of: str = "") -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each setting, and of each part of those that have parts."""
    for name, value in config.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{of}{name}.")
        else:
            text = value if isinstance(value, str) else json.dumps(value)
            yield of + name, text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
