"""TicTacToe against a random machine player in plain Python over raw boards: the truth for the tests.

A board is a tuple of nine characters out of ".XO". Nothing here comes from the package.
"""

from collections import Counter
from fractions import Fraction
from functools import cache

LINES = [
    *[(row, row + 1, row + 2) for row in (0, 3, 6)],
    *[(column, column + 3, column + 6) for column in (0, 1, 2)],
    (0, 4, 8),
    (2, 4, 6),
]
EMPTY_BOARD = (".",) * 9
REWARD = {"win": 1, "draw": 0, "loss": -1}


def has_line(board, sign):
    return any(all(board[square] == sign for square in line) for line in LINES)


def to_move(board):
    return "X" if board.count("X") == board.count("O") else "O"


def empty_squares(board):
    return [square for square in range(9) if board[square] == "."]


def place(board, square, sign):
    return board[:square] + (sign,) + board[square + 1 :]


def key(board):
    """One representative of the board's eight images under rotation and reflection."""
    images = []
    for _ in range(4):
        board = tuple(board[3 * (2 - column) + row] for row in range(3) for column in range(3))
        images += [board, tuple(board[3 * row + 2 - column] for row in range(3) for column in range(3))]
    return min(images)


def openings(agent_plays):
    """The first boards of the agent, with their probabilities."""
    answered = {place(EMPTY_BOARD, square, "X"): Fraction(1, 9) for square in range(9)}
    if agent_plays == "first":
        return {EMPTY_BOARD: Fraction(1)}
    if agent_plays == "second":
        return answered
    return {EMPTY_BOARD: Fraction(1, 2), **{board: p / 2 for board, p in answered.items()}}


@cache
def turn(board, square):
    """Probabilities of the agent's next boards, or of "win", "draw", "loss", after it plays `square`."""
    agent = to_move(board)
    board = place(board, square, agent)
    if has_line(board, agent):
        return {"win": Fraction(1)}
    replies = empty_squares(board)
    if not replies:
        return {"draw": Fraction(1)}
    outcomes = Counter()
    for reply in replies:
        machine = to_move(board)
        after = place(board, reply, machine)
        result = "loss" if has_line(after, machine) else after if empty_squares(after) else "draw"
        outcomes[result] += Fraction(1, len(replies))
    return dict(outcomes)


def agent_boards(agent_plays):
    """Every board that the agent may have to move in."""
    found = set(openings(agent_plays))
    todo = list(found)
    while todo:
        board = todo.pop()
        for square in empty_squares(board):
            new = {after for after in turn(board, square) if after not in REWARD} - found
            found |= new
            todo += new
    return found


@cache
def best_value(board):
    """Expected final reward under perfect play from here."""
    return max(_action_value(board, square, best_value) for square in empty_squares(board))


@cache
def random_value(board):
    """Expected final reward of an agent that plays uniformly random empty squares from here."""
    squares = empty_squares(board)
    return sum(_action_value(board, square, random_value) for square in squares) / len(squares)


def _action_value(board, square, value):
    return sum(p * (REWARD[o] if o in REWARD else value(o)) for o, p in turn(board, square).items())


def from_numbers(board):
    """Return the board of the package's numbers 0, 1, 2 in any shape."""
    return tuple(".XO"[number] for number in board.ravel())


def expected_transitions(boards):
    """Return {(next state, reward, terminated): probability} for every legal (state, action).

    `boards` are those of the package's states, by which a board up to symmetry gets its state. A game
    that ends stays in its state, as the package's documentation has it.
    """
    boards = [from_numbers(board) for board in boards]
    state_of = {key(board): state for state, board in enumerate(boards)}
    expected = {}
    for state, board in enumerate(boards):
        for square in empty_squares(board):
            cells = Counter()
            for outcome, p in turn(board, square).items():
                ended = outcome in REWARD
                cells[(state, REWARD[outcome], True) if ended else (state_of[key(outcome)], 0, False)] += p
            expected[state, square] = dict(cells)
    return expected


def expected_starts(boards, agent_plays):
    """Return {state: probability} of the first state."""
    state_of = {key(from_numbers(board)): state for state, board in enumerate(boards)}
    starts = Counter()
    for board, p in openings(agent_plays).items():
        starts[state_of[key(board)]] += p
    return dict(starts)
