"""Callbacks of `train`, which follow a training while it goes on, and may end it.

They run on the rank that serves (rank 0, or the one that took its place), between messages, under the names
and with the methods that users of Stable-Baselines3 know. Its `CheckpointCallback` has no counterpart:
``train(checkpoint_dir=..., checkpoint_interval=...)`` writes checkpoints, and also goes on from them.

The public names are imported when they are first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dist_classicrl._lazy import lazy_names

if TYPE_CHECKING:
    from dist_classicrl.callbacks.base import BaseCallback, CallbackList, ConvertCallback, callback_list
    from dist_classicrl.callbacks.early_stopping import (
        StopTrainingOnNoModelImprovement,
        StopTrainingOnNoReturnImprovement,
        StopTrainingOnReturn,
        StopTrainingOnRewardThreshold,
    )
    from dist_classicrl.callbacks.evaluation import EvalCallback
    from dist_classicrl.callbacks.events import EventCallback, EveryNTimesteps
    from dist_classicrl.callbacks.metrics import MetricsCallback
    from dist_classicrl.callbacks.mlflow import MlflowCallback
    from dist_classicrl.callbacks.tensorboard import TensorBoardCallback
    from dist_classicrl.callbacks.wandb import WandbCallback

__all__ = [
    "BaseCallback",
    "CallbackList",
    "ConvertCallback",
    "EvalCallback",
    "EventCallback",
    "EveryNTimesteps",
    "MetricsCallback",
    "MlflowCallback",
    "StopTrainingOnNoModelImprovement",
    "StopTrainingOnNoReturnImprovement",
    "StopTrainingOnReturn",
    "StopTrainingOnRewardThreshold",
    "TensorBoardCallback",
    "WandbCallback",
    "callback_list",
]

_NAMES = {
    "base": ("BaseCallback", "CallbackList", "ConvertCallback", "callback_list"),
    "early_stopping": tuple(name for name in __all__ if name.startswith("StopTraining")),
    "evaluation": ("EvalCallback",),
    "events": ("EventCallback", "EveryNTimesteps"),
    "metrics": ("MetricsCallback",),
    "mlflow": ("MlflowCallback",),
    "tensorboard": ("TensorBoardCallback",),
    "wandb": ("WandbCallback",),
}
_HOMES = {name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names}

_INSTEAD = {
    "CheckpointCallback": "write train(checkpoint_dir=..., checkpoint_interval=...).",
    "LogEveryNTimesteps": "write train(progress_interval=...), in seconds.",
    "ProgressBarCallback": "write train(progress_bar=True).",
    "StopTrainingOnMaxEpisodes": "write train(total_episodes=...).",
}
"""What is written in place of callbacks that Stable-Baselines3 has besides."""

__getattr__, __dir__ = lazy_names(__name__, _HOMES, _INSTEAD)
