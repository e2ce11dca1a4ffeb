"""Logged transitions: reading and checking them, what they cover, and what they say about a policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dist_classicrl._lazy import lazy_names

if TYPE_CHECKING:
    from dist_classicrl.data.action_values import ActionValueEstimate, estimate_action_values
    from dist_classicrl.data.coverage import Coverage
    from dist_classicrl.data.estimates import ValueEstimate, estimate_value
    from dist_classicrl.data.playing import play_episodes
    from dist_classicrl.data.result import BatchResult
    from dist_classicrl.data.transitions import Transitions

__all__ = [
    "ActionValueEstimate",
    "BatchResult",
    "Coverage",
    "Transitions",
    "ValueEstimate",
    "estimate_action_values",
    "estimate_value",
    "play_episodes",
]

_HOMES = {
    "ActionValueEstimate": "dist_classicrl.data.action_values",
    "BatchResult": "dist_classicrl.data.result",
    "Coverage": "dist_classicrl.data.coverage",
    "Transitions": "dist_classicrl.data.transitions",
    "ValueEstimate": "dist_classicrl.data.estimates",
    "estimate_action_values": "dist_classicrl.data.action_values",
    "estimate_value": "dist_classicrl.data.estimates",
    "play_episodes": "dist_classicrl.data.playing",
}


__getattr__, __dir__ = lazy_names(__name__, _HOMES)
