"""A policy as text: moves and values on a map, boards of TicTacToe, and tables of states."""

from __future__ import annotations

import numpy as np

from dist_classicrl.model.policy import Policy

_ARROWS = {"left": "←", "down": "↓", "right": "→", "up": "↑"}
_ASCII = str.maketrans("←↓→↑·", "<v>^.")
_UNSEEN = "·"
_MARKS = " XO"

Cells = list[list[str]]  # by line


def in_ascii(text: str) -> str:
    """Return `text` for output that knows no arrows."""
    return text.translate(_ASCII)


def moves(policy: Policy) -> Cells:
    """Return the greedy action of each cell of the map: an arrow, or the action's number where it is no move.

    A letter of the map stands where nobody acts, and a dot where a state has not been visited.
    """
    arrows = [_ARROWS.get(name, str(action)) for action, name in enumerate(policy.action_names)]
    return _on_map(policy, [arrows[action] for action in policy.greedy])


def values(policy: Policy) -> Cells:
    """Return the value of the greedy action in each cell of the map, otherwise as `moves`."""
    return _on_map(policy, [_number(value) for value in policy.values])


def _on_map(policy: Policy, texts: list[str]) -> Cells:
    letters = policy.labels.letters
    assert letters is not None  # asked for only where there is a map
    # A table from elsewhere may come without counts.
    seen = policy.visits.sum(axis=1) > 0 if policy.visits.any() else np.ones(policy.n_states, bool)
    rows, columns = letters.shape
    cells = [
        str(letter).strip() or (text if known else _UNSEEN)
        for letter, text, known in zip(letters.flat, texts, seen, strict=False)
    ]
    return [cells[row * columns : (row + 1) * columns] for row in range(rows)]


def board(policy: Policy, state: int) -> Cells:
    """Return a board of TicTacToe: marks, and in empty squares the values, the greedy one in brackets."""
    assert policy.labels.boards is not None  # asked for only where there are boards
    cells = [
        _MARKS[mark] if mark else _bracketed(_number(policy.q[state, square]), square == policy.greedy[state])
        for square, mark in enumerate(policy.labels.boards[state])
    ]
    return [cells[row : row + 3] for row in (0, 3, 6)]


def _bracketed(text: str, chosen: bool) -> str:
    return f"[{text}]" if chosen else f" {text} "


def aligned(cells: Cells, centered: bool = False) -> list[str]:
    """Return lines in which all cells are as wide as the widest."""
    width = max(len(cell) for row in cells for cell in row)
    return [
        " ".join(cell.center(width) if centered else cell.rjust(width) for cell in row).rstrip()
        for row in cells
    ]


def state_table(policy: Policy, states: list[int]) -> tuple[list[str], Cells]:
    """Return headers and a row for each of `states`: what it is, its values, visits and greedy action."""
    told = policy.has_observations
    headers = ["state", *(["observation"] if told else []), *policy.action_names, "visits", "greedy"]
    rows = [
        [
            str(state),
            *([policy.state_text(state)] if told else []),
            *map(_number, policy.q[state]),
            f"{policy.visits[state].sum():,}",
            policy.action_names[policy.greedy[state]],
        ]
        for state in states
    ]
    return headers, rows


def action_table(policy: Policy, state: int) -> tuple[list[str], Cells]:
    """Return headers and a row for each action in `state`: value, visits, and what is to be said of it."""
    legal = np.ones(policy.n_actions, bool) if policy.legal is None else policy.legal[state]
    rows = [
        [
            str(action),
            name,
            _number(policy.q[state, action]),
            f"{policy.visits[state, action]:,}",
            "greedy" if action == policy.greedy[state] else "" if legal[action] else "illegal",
        ]
        for action, name in enumerate(policy.action_names)
    ]
    return ["action", "name", "value", "visits", ""], rows


def _number(value: float) -> str:
    """Return a value with three digits after the point, or in short where that would say nothing."""
    return f"{value:.3g}" if 0.0 < abs(value) < 0.0005 or abs(value) >= 1e6 else f"{value:.3f}"
