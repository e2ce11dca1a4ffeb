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
    from dist_classicrl.callbacks.base import (
        BaseCallback,
        CallbackList,
        ConvertCallback,
        callback_list,
    )
    from dist_classicrl.callbacks.early_stopping import (
        StopTrainingOnNoModelImprovement,
        StopTrainingOnNoReturnImprovement,
        StopTrainingOnReturn,
        StopTrainingOnRewardThreshold,
    )
    from dist_classicrl.callbacks.evaluation import EvalCallback
    from dist_classicrl.callbacks.events import EventCallback, EveryNTimesteps
    from dist_classicrl.callbacks.metrics import MetricsCallback
    from dist_classicrl.callbacks.tensorboard import TensorBoardCallback

__all__ = [
    "BaseCallback",
    "CallbackList",
    "ConvertCallback",
    "EvalCallback",
    "EventCallback",
    "EveryNTimesteps",
    "MetricsCallback",
    "StopTrainingOnNoModelImprovement",
    "StopTrainingOnNoReturnImprovement",
    "StopTrainingOnReturn",
    "StopTrainingOnRewardThreshold",
    "TensorBoardCallback",
    "callback_list",
]

_BASE = "dist_classicrl.callbacks.base"
_EARLY_STOPPING = "dist_classicrl.callbacks.early_stopping"
_HOMES = {
    "BaseCallback": _BASE,
    "CallbackList": _BASE,
    "ConvertCallback": _BASE,
    "EvalCallback": "dist_classicrl.callbacks.evaluation",
    "EventCallback": "dist_classicrl.callbacks.events",
    "EveryNTimesteps": "dist_classicrl.callbacks.events",
    "MetricsCallback": "dist_classicrl.callbacks.metrics",
    "StopTrainingOnNoModelImprovement": _EARLY_STOPPING,
    "StopTrainingOnNoReturnImprovement": _EARLY_STOPPING,
    "StopTrainingOnReturn": _EARLY_STOPPING,
    "StopTrainingOnRewardThreshold": _EARLY_STOPPING,
    "TensorBoardCallback": "dist_classicrl.callbacks.tensorboard",
    "callback_list": _BASE,
}


__getattr__, __dir__ = lazy_names(__name__, _HOMES)
