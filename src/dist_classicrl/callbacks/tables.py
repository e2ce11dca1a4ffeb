"""What callbacks see of a table of which no rank may have the whole."""

from __future__ import annotations

from typing import Any

from dist_classicrl.errors import SettingsError


def whole_table(agent: Any) -> Any | None:
    """Return `agent.q_table`; None where it is divided between hosts, and `agent.learned_in` is known.

    Such a table is of exactly that environment's size, and `agent.action_values` asks the hosts for states.
    SettingsError where the environment is not known either.
    """
    try:
        return agent.q_table
    except SettingsError:
        if agent.learned_in is None:
            raise
        return None
