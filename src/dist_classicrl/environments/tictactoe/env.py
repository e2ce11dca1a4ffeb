"""TicTacToe against a uniformly random machine player, as a Gymnasium environment."""

from __future__ import annotations

import operator
import sys
from typing import Any, Literal, SupportsIndex, get_args

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from dist_classicrl.environments.tictactoe.rules import (
    FIRST,
    N_SQUARES,
    NO_SQUARE,
    SECOND,
    SLOT_TO_REWARD,
    AgentPlays,
    board_tables,
    rules,
)
from dist_classicrl.errors import IllegalActionError, SettingsError

IllegalAction = Literal["lose", "raise"]

_SIGNS = ".XO"


class TicTacToeEnv(gymnasium.Env[Any, Any]):
    """TicTacToe against a machine that plays a uniformly random empty square.

    A step is the agent's move and, unless that ends the game, the machine's answer. The reward is 1 for a
    win, -1 for a loss, and 0 for a draw and for every step before the end.

    **Observation**: ``Discrete(n)``, the position with the agent to move, up to the eight symmetries of the
    board: n = 338 where the agent moves first, 289 where it moves second, 627 where it may do either. In a
    finished game nobody is to move; the last observation is then the position that the agent made its last
    move in, and it comes with ``terminated=True``.

    **Action**: ``Discrete(9)``, a square of the observed position's canonical board (the image of the board
    with the smallest code). The environment maps it back to the board in play, see `square_of`. Squares are
    numbered row by row.

    **Info**: ``info["action_mask"]`` is an int8 array of shape (9,), 1 for the legal actions. It belongs to
    the observation that it comes with, the last one of a game included, so it is never empty.

    **Illegal actions**: playing a taken square loses the game at once, reward -1, with the board left as it
    is. With ``illegal_action="raise"`` it raises an error instead. A number outside 0 to 8 always raises.

    It is registered as "dist_classicrl/TicTacToe-v0", which ``gymnasium.make`` finds once this package is
    imported.

    Parameters
    ----------
    agent_plays : {"first", "second", "both"}
        Who makes a game's first move: the agent, the machine, or either, drawn with probability 1/2 at
        every reset. The one who moves first plays X.
    illegal_action : {"lose", "raise"}
        What happens when the agent plays a taken square.
    render_mode : {None, "ansi", "human"}
        "ansi": `render` returns the board as text. "human": each reset and step writes it to standard output.

    Raises
    ------
    SettingsError
        If an argument is not one of the allowed values.
    """

    metadata = {"render_modes": ["ansi", "human"], "render_fps": 4}

    def __init__(
        self,
        agent_plays: AgentPlays = "first",
        illegal_action: IllegalAction = "lose",
        render_mode: Literal["ansi", "human"] | None = None,
    ) -> None:
        self._rules = rules(agent_plays)
        if not isinstance(illegal_action, str) or illegal_action not in get_args(IllegalAction):
            raise SettingsError(
                f"illegal_action={illegal_action!r} is not known. Write 'lose' to end the game with reward "
                "-1 where a taken square is played, or 'raise' to get an IllegalActionError."
            )
        is_known = isinstance(render_mode, str) and render_mode in self.metadata["render_modes"]
        if render_mode is not None and not is_known:
            raise SettingsError(
                f"render_mode={render_mode!r} is not known. Write None, 'ansi' to get text from render(), or "
                "'human' to see every position on standard output."
            )
        self.agent_plays = agent_plays
        self.illegal_action = illegal_action
        self.render_mode = render_mode
        self.observation_space = spaces.Discrete(len(self._rules.boards))
        self.action_space = spaces.Discrete(N_SQUARES)
        self._tables = board_tables()
        self._code = 0
        self._agent = FIRST
        self._state = 0
        self._in_play = False

    @property
    def board(self) -> NDArray[np.int8]:
        """A copy of the board in play, int8 of shape (3, 3): 0 empty, 1 an X, 2 an O."""
        return self._tables.boards[self._code].reshape(3, 3).copy()

    @property
    def agent_mark(self) -> int:
        """The agent's mark in this game: 1 (X) where it moved first, else 2 (O)."""
        return self._agent

    def square_of(self, action: SupportsIndex) -> int:
        """Return the square of the board in play, 0 to 8 row by row, where `action` would play now.

        Raises
        ------
        IllegalActionError
            If `action` is not an integer from 0 to 8.
        """
        return int(self._to_board()[self._checked(action)])

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[int, dict[str, Any]]:
        """Begin a game; where the machine moves first, it does so here.

        Parameters
        ----------
        seed : int or None
            Makes the games from here on reproducible. None goes on with the present random stream.
        options : dict or None
            Not used.

        Returns
        -------
        observation : int
            The position that the agent has to move in.
        info : dict
            Holds "action_mask".
        """
        super().reset(seed=seed)
        start = self.np_random.integers(len(self._rules.starts))
        opening = int(self._rules.openings[start])
        self._code = 0
        self._agent = FIRST if opening == NO_SQUARE else SECOND
        self._place(opening, FIRST)
        self._state = int(self._rules.starts[start])
        self._in_play = True
        if self.render_mode == "human":
            self.render()
        return self._state, self._info()

    def step(self, action: SupportsIndex) -> tuple[int, float, bool, bool, dict[str, Any]]:
        """Play the agent's move and the machine's answer.

        Parameters
        ----------
        action : int
            A square of the observed position's canonical board, 0 to 8.

        Returns
        -------
        observation : int
            The position that the agent has to move in next; where the game is over, the one it has just
            moved in.
        reward : float
            1 for a win, -1 for a loss or an illegal action, else 0.
        terminated : bool
            True where the game is over.
        truncated : bool
            Always False.
        info : dict
            Holds "action_mask".

        Raises
        ------
        IllegalActionError
            If `action` is not an integer from 0 to 8, or is illegal here and ``illegal_action="raise"``.
            The game stands as before.
        gymnasium.error.ResetNeeded
            If no game is in play.
        """
        if not self._in_play:
            raise gymnasium.error.ResetNeeded("No game is in play: call reset() before step().")
        action = self._checked(action)
        legal = bool(self._rules.legal[self._state, action])
        if not legal and self.illegal_action == "raise":
            raise IllegalActionError(
                f"Action {action} is a taken square in position {self._state}. Allowed here are "
                f"{np.flatnonzero(self._rules.legal[self._state]).tolist()}: choose where "
                "info['action_mask'] is 1, or make the environment with illegal_action='lose'."
            )

        pair = self._state * N_SQUARES + action
        slot = self.np_random.integers(self._rules.slot_ptr[pair], self._rules.slot_ptr[pair + 1])
        outcome, reply = int(self._rules.slots[slot]), int(self._rules.replies[slot])
        if legal:
            # Both squares are those of the board that the agent saw, so both are looked up before either is
            # played.
            to_board = self._to_board()
            self._place(to_board[action], self._agent)
            self._place(NO_SQUARE if reply == NO_SQUARE else to_board[reply], FIRST + SECOND - self._agent)
        self._in_play = outcome >= 0
        if self._in_play:
            self._state = outcome
        if self.render_mode == "human":
            self.render()
        reward = 0.0 if self._in_play else float(outcome + SLOT_TO_REWARD)
        return self._state, reward, not self._in_play, False, self._info()

    def render(self) -> str | None:
        """Return the board as text ("ansi"), or write it to standard output ("human")."""
        if self.render_mode is None:
            gymnasium.logger.warn(
                "render() shows nothing without a render mode: make the environment with "
                "render_mode='ansi' or render_mode='human'."
            )
            return None
        rows = "\n".join(" ".join(_SIGNS[mark] for mark in row) for row in self.board)
        text = f"agent {_SIGNS[self._agent]}, machine {_SIGNS[FIRST + SECOND - self._agent]}\n{rows}\n"
        if self.render_mode == "ansi":
            return text
        sys.stdout.write(text + "\n")
        return None

    def _to_board(self) -> NDArray[np.int8]:
        """Return the square of the board in play for each square of its canonical board."""
        return self._tables.squares[self._tables.symmetry[self._code]]

    def _place(self, square: int | np.integer, mark: int) -> None:
        if square != NO_SQUARE:
            self._code += mark * 3 ** int(square)

    def _checked(self, action: SupportsIndex) -> int:
        try:
            index = operator.index(action)
        except TypeError:
            index = -1
        if not 0 <= index < N_SQUARES:
            raise IllegalActionError(
                f"Action {action!r} is not known. An action is an integer from 0 to 8, a square "
                "of the canonical board: write one where info['action_mask'] is 1."
            )
        return index

    def _info(self) -> dict[str, Any]:
        return {"action_mask": self._rules.legal[self._state].astype(np.int8)}
