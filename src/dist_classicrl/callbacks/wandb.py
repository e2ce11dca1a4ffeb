"""Progress of a run for Weights & Biases."""

from __future__ import annotations

import os
from typing import Any

from dist_classicrl.callbacks.tracking import TrackingCallback
from dist_classicrl.checks import checked_path, require_package


class WandbCallback(TrackingCallback):
    """Writes settings, the numbers of each report and what callbacks `record` to Weights & Biases.

    The numbers have the names that `TensorBoardCallback` gives them, and `num_timesteps` as their step. The
    environment variables of wandb are obeyed: with ``WANDB_MODE=offline`` nothing is sent, and ``wandb sync``
    sends the folder later.

    Parameters
    ----------
    project : str, optional
        By default what ``WANDB_PROJECT`` says.
    name : str, optional
        The name that the run is shown under; by default wandb makes one.
    folder : str or path, optional
        Where wandb makes its folder ``wandb``; by default what ``WANDB_DIR`` says, or here.
    run_id : str, optional
        A run to go on with, or the id of a new one. Weights & Biases keeps what it has of a step, and takes
        nothing for earlier ones.
    verbose : int
        1: the id of the run is logged.

    Attributes
    ----------
    run_id : str or None
        Id of the run, once it has begun. Later calls of `train` go on with it.

    Raises
    ------
    MissingExtraError
        If the package wandb is not installed.
    SettingsError
        If an argument is none of those above.
    """

    project: str | None
    name: str | None

    _service = "Weights & Biases"
    _remedy = "Write wandb login, or set WANDB_MODE=offline, and see that its folder can be written to."

    def __init__(
        self,
        project: str | None = None,
        name: str | None = None,
        folder: str | os.PathLike[str] | None = None,
        run_id: str | None = None,
        verbose: int = 0,
    ) -> None:
        super().__init__(verbose, run_id=run_id, project=project, name=name)
        require_package("wandb", "WandbCallback", "wandb")
        self.folder = None if folder is None else checked_path("folder", folder)

    def _errors(self) -> tuple[type[Exception], ...]:
        from wandb import Error

        return OSError, Error

    def _open(self, config: dict[str, Any]) -> Any:
        import wandb

        if self.folder is not None:
            os.makedirs(self.folder, exist_ok=True)  # wandb would take a temporary one
        run = wandb.init(
            project=self.project,
            name=self.name,
            dir=self.folder,
            id=self.run_id,
            resume=None if self.run_id is None else "allow",
            config=config,
            # A run that the caller has open stays that: this one is closed with the training.
            reinit="create_new",
            # What the ranks print is theirs, and a job's launcher takes it.
            settings=wandb.Settings(console="off", silent=True),
            allow_val_change=True,
        )
        self.run_id = run.id
        return run

    def _log(self, step: int, scalars: dict[str, float]) -> None:
        self._run.log(scalars, step=step)

    def _finish(self, run: Any, has_ended: bool) -> None:
        run.finish(exit_code=0 if has_ended else 1)
