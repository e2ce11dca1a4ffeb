"""What `learn` returns."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from dist_classicrl._words import counted
from dist_classicrl.data.coverage import Coverage


@dataclass(frozen=True, repr=False)
class BatchResult:
    """What `learn` did; the same on every rank, but for `seconds`.

    Attributes
    ----------
    method : str
    epochs : int
        Times that each transition was learned; 0 for sweeps, which solve the model that they suggest.
    updates : int
        Transitions learned by all ranks together.
    ranks : int
        Among which they were divided; 1 for sweeps, which one rank does for all.
    seconds : float
    coverage : Coverage
        Of the agent's table.
    """

    method: str
    epochs: int
    updates: int
    ranks: int
    seconds: float
    coverage: Coverage

    def __repr__(self) -> str:
        return (
            f"BatchResult({self.method}, {counted(self.updates, 'update')} on {counted(self.ranks, 'rank')} "
            f"in {self.seconds:.3g} s, {self.coverage})"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data for JSON."""
        return asdict(self)
