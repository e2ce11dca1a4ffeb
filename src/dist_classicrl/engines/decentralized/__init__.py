"""The engine without a server in the data path: all ranks learn, and exchange what they learned in rounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dist_classicrl._lazy import lazy_names

if TYPE_CHECKING:
    from dist_classicrl.engines.decentralized.engine import Decentralized
    from dist_classicrl.engines.decentralized.patterns import ExchangePattern, Step, Sums

_HOMES = {
    "Decentralized": "dist_classicrl.engines.decentralized.engine",
    "ExchangePattern": "dist_classicrl.engines.decentralized.patterns",
    "Step": "dist_classicrl.engines.decentralized.patterns",
    "Sums": "dist_classicrl.engines.decentralized.patterns",
}

__all__ = ["Decentralized", "ExchangePattern", "Step", "Sums"]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
