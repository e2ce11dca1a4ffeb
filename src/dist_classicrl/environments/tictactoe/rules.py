"""The rules of TicTacToe against a uniformly random machine player, as small read-only tables.

This is the only place that knows the rules. The Gymnasium environment (`env.py`), the compiled simulator
(`simulator.py`) and the finite model (`model.py`) all read these tables.

Squares are numbered 0 to 8, row by row. A board has one number per square: 0 empty, 1 the mark of the player
who moves first (X), 2 the mark of the other (O). Its code is ``sum(board[i] * 3**i)``, below 3**9 = 19683.

A state is a position with the agent to move, up to the eight symmetries of the square, and an action is
a square of the state's canonical board. Squares that a symmetry of the position makes equivalent stay
separate actions. A turn is the agent's move and the machine's reply to it. What a turn may lead to is a list
of equally likely slots, one per square that the machine may answer on.
"""

from __future__ import annotations

from functools import cache
from typing import Literal, NamedTuple, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from dist_classicrl.errors import SettingsError

AgentPlays = Literal["first", "second", "both"]

N_SQUARES = 9
EMPTY, FIRST, SECOND = 0, 1, 2

# A slot of a turn that goes on holds the next state. One that ends the game holds one of these, chosen so
# that the agent's reward is the slot plus 2.
WIN, DRAW, LOSS = -1, -2, -3
SLOT_TO_REWARD = 2

NO_SQUARE = -1

_POWERS = 3 ** np.arange(N_SQUARES, dtype=np.int32)
_LINES = np.array(
    [[0, 1, 2], [3, 4, 5], [6, 7, 8], [0, 3, 6], [1, 4, 7], [2, 5, 8], [0, 4, 8], [2, 4, 6]], dtype=np.intp
)


class BoardTables(NamedTuple):
    """Facts about each of the 19683 boards, indexed by the board's code.

    The canonical board of a board is ``canonical_board[i] == board[squares[symmetry, i]]``.
    """

    boards: NDArray[np.int8]  # (19683, 9): the board itself
    winner: NDArray[np.int8]  # (19683,): whose three marks stand in a line: 1, 2, or 0 for nobody
    marks: NDArray[np.int8]  # (19683,): number of squares taken
    canonical: NDArray[np.int32]  # (19683,): the smallest code among the board's eight images
    symmetry: NDArray[np.int8]  # (19683,): row of `squares` that leads to the canonical board
    squares: NDArray[np.int8]  # (8, 9): a symmetry's entry i is the board's square that becomes square i


class Rules(NamedTuple):
    """The game as the agent meets it, for one choice of who moves first.

    The slots of pair ``state * 9 + action`` are ``slot_ptr[pair]`` up to ``slot_ptr[pair + 1]``. They are
    equally likely, and each pair has at least one: an illegal action has the single slot `LOSS`.
    """

    boards: NDArray[np.int8]  # (n_states, 9): canonical boards, ordered by the number of marks, then by code
    legal: NDArray[np.bool_]  # (n_states, 9): where an action's square is empty
    slot_ptr: NDArray[np.int32]  # (n_states * 9 + 1,)
    slots: NDArray[np.int16]  # (n_slots,): the next state, or `WIN`, `DRAW` or `LOSS` where the game ends
    replies: NDArray[np.int8]  # (n_slots,): the canonical square where the machine plays, or `NO_SQUARE`
    starts: NDArray[np.int16]  # (n_starts,): equally likely first states of an episode
    openings: NDArray[np.int8]  # (n_starts,): where the machine has opened, or `NO_SQUARE`


_Tables = TypeVar("_Tables", BoardTables, Rules)


@cache
def board_tables() -> BoardTables:
    """Return the facts about every board, computed at the first call (some milliseconds)."""
    codes = np.arange(3**N_SQUARES, dtype=np.int32)
    boards = (codes[:, None] // _POWERS % 3).astype(np.int8)

    winner = np.zeros(len(codes), dtype=np.int8)
    for line in _LINES:
        owner = boards[:, line[0]]
        complete = (owner == boards[:, line[1]]) & (owner == boards[:, line[2]]) & (owner != EMPTY)
        winner[complete] = owner[complete]

    squares = _square_symmetries()
    images = np.stack([boards[:, row] @ _POWERS for row in squares], axis=1)
    return _read_only(
        BoardTables(
            boards=boards,
            winner=winner,
            marks=np.count_nonzero(boards, axis=1).astype(np.int8),
            canonical=images.min(axis=1),
            symmetry=images.argmin(axis=1).astype(np.int8),
            squares=squares,
        )
    )


def rules(agent_plays: AgentPlays = "first") -> Rules:
    """Return the game's tables, computed at the first call (some milliseconds) and kept.

    The first move is the agent's (338 states), the machine's (289), or that of either with probability 1/2,
    drawn for every game (627).
    """
    if not isinstance(agent_plays, str) or agent_plays not in get_args(AgentPlays):
        raise SettingsError(
            f"agent_plays={agent_plays!r} is not known. Write 'first' where the agent always moves first, "
            "'second' where the machine does, or 'both' to draw it anew for every game."
        )
    return _rules(agent_plays)


@cache
def _rules(agent_plays: AgentPlays) -> Rules:
    tables = board_tables()
    state_codes = _state_codes(tables, agent_plays)
    state_of = np.full(len(tables.boards), -1, dtype=np.int16)
    state_of[state_codes] = np.arange(len(state_codes))
    state_of = state_of[tables.canonical]

    slot_ptr, slots, replies = _turns(tables, state_codes, state_of)
    openings = _openings(agent_plays)
    start_codes = np.where(openings == NO_SQUARE, 0, FIRST * _POWERS[openings])
    boards = tables.boards[state_codes]
    return _read_only(
        Rules(
            boards=boards,
            legal=boards == EMPTY,
            slot_ptr=slot_ptr,
            slots=slots,
            replies=replies,
            starts=state_of[start_codes],
            openings=openings,
        )
    )


def _square_symmetries() -> NDArray[np.int8]:
    """Return the four rotations and their mirror images as permutations, the identity first."""
    grid = np.arange(N_SQUARES, dtype=np.int8).reshape(3, 3)
    rotations = [np.rot90(grid, quarter_turns) for quarter_turns in range(4)]
    return np.array([image.ravel() for image in rotations + [np.fliplr(image) for image in rotations]])


def _state_codes(tables: BoardTables, agent_plays: AgentPlays) -> NDArray[np.int64]:
    """Return the codes of the canonical boards that the agent may have to move in, in the states' order.

    A board without a winner was reached by any order of its moves, so equal numbers of marks (or one X more)
    and the absence of a line are all that it takes to be reachable.
    """
    codes = np.arange(len(tables.boards))
    n_second = np.count_nonzero(tables.boards == SECOND, axis=1)
    first_to_move = tables.marks == 2 * n_second
    second_to_move = tables.marks == 2 * n_second + 1
    agent_to_move = {
        "first": first_to_move,
        "second": second_to_move,
        "both": first_to_move | second_to_move,
    }[agent_plays]
    undecided = (tables.winner == EMPTY) & (tables.marks < N_SQUARES)
    found = np.flatnonzero(agent_to_move & undecided & (tables.canonical == codes))
    return found[np.argsort(tables.marks[found], kind="stable")]


def _turns(
    tables: BoardTables, state_codes: NDArray[np.int64], state_of: NDArray[np.int16]
) -> tuple[NDArray[np.int32], NDArray[np.int16], NDArray[np.int8]]:
    """Play every action of every state and every reply to it; return `slot_ptr`, `slots` and `replies`."""
    n_states = len(state_codes)
    empty = tables.boards[state_codes] == EMPTY
    agent = FIRST + tables.marks[state_codes] % 2
    machine = FIRST + SECOND - agent

    # Codes of boards, by (state, action) and by (state, action, reply). Where a square is taken the sum is no
    # board's code; `legal` and `replied` keep these out; code 0 takes its place to stay inside the tables.
    moved = np.where(empty, state_codes[:, None] + agent[:, None] * _POWERS, 0)
    agent_won = empty & (tables.winner[moved] == agent[:, None])
    drawn = empty & ~agent_won & (tables.marks[moved] == N_SQUARES)
    goes_on = empty & ~agent_won & ~drawn

    replied = goes_on[:, :, None] & (tables.boards[moved] == EMPTY)
    answered = np.where(replied, moved[:, :, None] + machine[:, None, None] * _POWERS, 0)
    lost = tables.winner[answered] == machine[:, None, None]
    full = tables.marks[answered] == N_SQUARES
    after_reply = np.where(lost, LOSS, np.where(full, DRAW, state_of[answered]))
    without_reply = np.where(agent_won, WIN, np.where(drawn, DRAW, LOSS))

    # Nine slots per pair, of which the used ones are kept: the squares of the replies, or the first alone.
    used = replied.copy()
    used[:, :, 0] |= ~goes_on
    slots = np.where(replied, after_reply, without_reply[:, :, None])
    replies = np.where(replied, np.arange(N_SQUARES), NO_SQUARE)
    slot_ptr = np.zeros(n_states * N_SQUARES + 1, dtype=np.int32)
    np.cumsum(np.count_nonzero(used, axis=2).ravel(), out=slot_ptr[1:])
    return slot_ptr, slots[used].astype(np.int16), replies[used].astype(np.int8)


def _openings(agent_plays: AgentPlays) -> NDArray[np.int8]:
    """Return the machine's equally likely openings; `NO_SQUARE` counts nine times to have probability 1/2."""
    agent_opens = {"first": 1, "second": 0, "both": N_SQUARES}[agent_plays]
    machine_opens = 0 if agent_plays == "first" else N_SQUARES
    return np.concatenate([np.full(agent_opens, NO_SQUARE), np.arange(machine_opens)]).astype(np.int8)


def _read_only(tables: _Tables) -> _Tables:
    for array in tables:
        array.flags.writeable = False
    return tables
