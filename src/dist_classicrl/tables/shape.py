"""What stands where in the flat arrays of a table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TableShape:
    """What stands in the flat arrays of a table.

    First the states of each of the rule's tables, one table after the other, then what the rule shares
    besides, in rows of its own.

    Attributes
    ----------
    n_states, n_actions : int
        S and A.
    n_tables : int
    n_shared : int
        Numbers that are shared.
    """

    n_states: int
    n_actions: int
    n_tables: int = 1
    n_shared: int = 0

    @property
    def n_rows(self) -> int:
        """Rows of A entries."""
        return self.n_tables * self.n_states + -(-self.n_shared // self.n_actions)

    @property
    def size(self) -> int:
        """Entries."""
        return self.n_rows * self.n_actions
