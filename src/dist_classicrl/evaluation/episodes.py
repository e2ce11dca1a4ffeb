"""How good a table is: episodes under its greedy policy, compiled where the environment is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dist_classicrl._arguments import OF_EVALUATION, other_names
from dist_classicrl._jit import jit_for
from dist_classicrl._random import fresh_seed, stream_key
from dist_classicrl._words import counted
from dist_classicrl.checks import YesOrNo
from dist_classicrl.environments.resolve import Source
from dist_classicrl.environments.simulate import CAME, CompiledSimulator
from dist_classicrl.environments.state_keys import name_of_kind, words_of
from dist_classicrl.environments.trial import compiling, run_game
from dist_classicrl.errors import DivergenceError, EvaluationStopped, SettingsError
from dist_classicrl.evaluation import EPISODES, LONGEST_EPISODE, SEED, STEPS
from dist_classicrl.evaluation.divided import AskedRows, play_divided
from dist_classicrl.evaluation.greedy import play_greedily
from dist_classicrl.evaluation.returns import deviation_of, error_of_mean, mean_of
from dist_classicrl.evaluation.stepped import play_stepped
from dist_classicrl.learning.keyed_table import KeyedTable
from dist_classicrl.model.agent_state import AgentState
from dist_classicrl.model.fit import check_fits, check_not_trained_in
from dist_classicrl.settings import Settings
from dist_classicrl.tables.large_table import LargeTable
from dist_classicrl.tables.line_table import LineTable
from dist_classicrl.tables.local import LocalTable

if TYPE_CHECKING:
    from dist_classicrl.environments.stepped.base import SteppedEnv


def _never() -> bool:
    return False


@other_names(OF_EVALUATION)
@dataclass(frozen=True, repr=False, eq=False)
class EvaluationResult:
    """Episodes under the greedy policy; DivergenceError where a return is beyond all numbers.

    Attributes
    ----------
    returns : ndarray(float64), shape (episodes,)
        Undiscounted.
    lengths : ndarray(int64), shape (episodes,)
        In steps.
    cut_off : int
        How many ran into a limit of their length, the environment's or ours, before an end of their own.
    """

    returns: np.ndarray
    lengths: np.ndarray
    cut_off: int = 0

    def __post_init__(self) -> None:
        if not np.isfinite(self.returns).all():
            raise DivergenceError(
                "The undiscounted return of an episode is beyond the numbers of float64, which go up to "
                "1.8e308. Make the rewards smaller, in a wrapper for instance."
            )

    def __repr__(self) -> str:
        error = f" ± {self.standard_error:.2g}" if self.episodes > 1 else ""
        cut = f", {self.cut_off:,} of them cut off" if self.cut_off else ""
        return (
            f"EvaluationResult({counted(self.episodes, 'episode')}{cut}, "
            f"mean return {self.mean_return:.4g}{error}, mean length {self.mean_length:.4g})"
        )

    @property
    def episodes(self) -> int:
        """Number of episodes."""
        return self.returns.size

    @property
    def mean_return(self) -> float:
        """Mean undiscounted return."""
        return mean_of(self.returns)

    @property
    def std_return(self) -> float:
        """Standard deviation of the returns."""
        return deviation_of(self.returns)

    @property
    def standard_error(self) -> float:
        """Standard error of the mean return; NaN for a single episode."""
        return error_of_mean(self.returns)

    def in_short(self) -> dict[str, float | int | str | None]:
        """Return what stays of it where a run is summed up, as plain data for JSON."""
        return {
            "mean_return": self.mean_return,
            "std_return": self.std_return,
            "mean_length": self.mean_length,
            "episodes": self.episodes,
            "hint": self.hint,
        }

    @property
    def hint(self) -> str | None:
        """What to think of returns that are all alike, where a policy has probably not learned; or None."""
        value = float(self.returns[0])
        if (self.returns != value).any():
            return None
        if self.cut_off == self.episodes:
            return (
                f"every return is {value + 0.0:g}, and every episode was cut off after "
                f"{self.lengths.max():,} steps: none came to an end of its own, such as a goal. "
                "If there is one, the policy has not learned to reach it: train for more steps, "
                "explore more (a higher epsilon for longer), or reward what leads there."
            )
        if value == 0.0 and self.episodes > 1:
            return (
                "every return is 0, so the policy may have learned nothing: train for more steps, "
                "explore more (a higher epsilon for longer), or reward what leads to the goal."
            )
        return None

    @property
    def mean_length(self) -> float:
        """Mean length in steps."""
        return float(self.lengths.mean())


def evaluate(
    env: Any,
    agent: AgentState,
    episodes: int,
    seed: int | None = None,
    max_steps: int = LONGEST_EPISODE,
    stops_with_training: bool = False,
) -> EvaluationResult:
    """Play `episodes` greedy episodes of an agent in `env`; see `DistAsyncQLearning.evaluate`."""
    stops = YesOrNo()("stops_with_training", stops_with_training)
    is_over = agent.is_asked_to_stop if stops and agent.is_asked_to_stop is not None else _never
    settings, large = agent.settings, agent.large
    is_divided = large is not None and large.is_divided
    q_table = agent.table[0] if is_divided else agent.q_table
    seed = agent.seed if seed is None else SEED("seed", seed)
    seed = fresh_seed() if seed is None else seed
    episodes, max_steps = EPISODES("episodes", episodes), STEPS("max_steps", max_steps)
    source = agent.resolved(env, min(settings.n_envs, episodes))
    source.give_hints()
    if source.stepped is not None:
        check_not_trained_in(agent, source.stepped)  # before there is anything to close: it is in use
    try:
        if source.keys is not None or agent.keyed is not None:
            return _evaluate_keyed(source, agent, episodes, seed, max_steps, is_over)
        if q_table.shape[0] < source.n_states or q_table.shape[1] < source.n_actions:
            raise SettingsError(
                f"The environment has {source.n_states} states and {source.n_actions} actions, the table "
                f"only {q_table.shape[0]} and {q_table.shape[1]}. Evaluate in the environment that was "
                "trained in."
            )
        check_fits(agent, source)
        if large is not None and is_divided:
            return _evaluate_divided(source, large, episodes, seed, max_steps, is_over)
        if agent.fills(source) and large is not None and agent.shape.is_one_table:
            rows = large.rows
            if source.stepped is not None:
                return _evaluate_stepped(source.stepped, rows, episodes, seed, max_steps, is_over)
            assert source.simulator is not None  # a Source has one of the two
            return _evaluate_compiled(source.simulator, rows, episodes, seed, max_steps)
        agent.check_room_for_copy("A copy of the table, to play it,", "Take a smaller table.")
        values = q_table[: source.n_states, : source.n_actions]
        if source.stepped is not None:
            table = _table_of(values, None)
            return _evaluate_stepped(source.stepped, table, episodes, seed, max_steps, is_over)
        assert source.simulator is not None  # a Source has one of the two
        return play_table(source.simulator, values, episodes, seed, max_steps)
    finally:
        source.close()


def _evaluate_divided(
    source: Source,
    large: LargeTable,
    episodes: int,
    seed: int,
    max_steps: int,
    is_over: Callable[[], bool],
) -> EvaluationResult:
    """Play with rows of which other hosts have some."""
    if source.stepped is None:
        assert source.simulator is not None  # a Source has one of the two
        return EvaluationResult(*play_divided(source.simulator, large, episodes, seed, max_steps))
    asked = AskedRows(large, source.stepped.n_envs)
    return _evaluate_stepped(source.stepped, asked.table, episodes, seed, max_steps, is_over, asked.ask)


def _evaluate_keyed(
    source: Source,
    agent: AgentState,
    episodes: int,
    seed: int,
    max_steps: int,
    is_over: Callable[[], bool],
) -> EvaluationResult:
    """Play in a game whose states are keys; where nothing is known, one of the legal actions is drawn."""
    keyed, simulator = agent.keyed, source.simulator
    if keyed is None or source.keys is None or source.n_actions != agent.shape.n_actions:
        raise SettingsError(
            f"{source.name} is not what was trained in: of the table and the environment one has keys as "
            "states, or they have different actions. Evaluate in the environment that was trained in."
        )
    values = agent.q_table
    if simulator is None:
        check_fits(agent, source)
        assert source.stepped is not None  # a Source has one of the two
        index, whole = keyed.index.by_key, np.concatenate([values, np.zeros((1, source.n_actions))])

        def rows(keys: np.ndarray) -> np.ndarray:
            return index.encode_any(keys)[0]

        table_of_rows = _table_of(whole.astype(values.dtype), None)
        return _evaluate_stepped(source.stepped, table_of_rows, episodes, seed, max_steps, is_over, rows)
    if simulator.keys is None or words_of(simulator.keys) != words_of(keyed.keys.dtype):
        raise SettingsError(
            f"{source.name} has keys of {name_of_kind(source.keys)} as states, and those of the table are of "
            f"{name_of_kind(keyed.keys.dtype)}. Evaluate in the environment that was trained in."
        )
    table = KeyedTable(simulator, Settings(), values.dtype, keyed.keys.size)
    table.load_keys(keyed.keys, values.reshape(-1), np.zeros(values.size, np.int64))
    n_words = words_of(simulator.keys)
    return _play(simulator, table.game(), table.arrays, n_words, episodes, seed, max_steps)


def play_table(
    simulator: CompiledSimulator, values: np.ndarray, episodes: int, seed: int, max_steps: int
) -> EvaluationResult:
    """Play greedy episodes of a table of values, of shape (states, actions), in a compiled environment."""
    return _evaluate_compiled(simulator, _table_of(values, simulator.legal), episodes, seed, max_steps)


def _table_of(values: np.ndarray, legal: np.ndarray | None) -> LocalTable:
    table = LocalTable(values.shape[0], values.shape[1], values.dtype, legal)
    table.load(values.reshape(-1), np.zeros(values.size, np.int64))
    return table


def _evaluate_compiled(
    simulator: CompiledSimulator, table: LocalTable | LineTable, episodes: int, seed: int, max_steps: int
) -> EvaluationResult:
    # One compilation serves any number of actions: this is no loop to wait for. Rows of lines are searched by
    # their shape: blocks wider than a row would reach outside of the table.
    arrays: Any = table.arrays if isinstance(table, LineTable) else table.arrays._replace(row_shape=None)
    return _play(simulator, simulator.tables, arrays, 0, episodes, seed, max_steps)


def _play(
    simulator: CompiledSimulator,
    simulation: Any,
    table: Any,
    own_memory: int,
    episodes: int,
    seed: int,
    max_steps: int,
) -> EvaluationResult:
    """Play in `simulation`, which has so many numbers of its own behind what a game keeps in its memory."""
    play = jit_for(play_greedily, type(simulator.tables))
    returns, lengths = np.zeros(episodes), np.zeros(episodes, np.int64)
    limit = min(simulator.max_episode_steps or max_steps, max_steps)
    memory = np.zeros(simulator.memory_size + own_memory, np.int64)
    key = stream_key(seed, "evaluation")
    came, cut_off = np.full(CAME, -1), np.zeros(1, np.int64)
    arguments = simulation, memory, limit, table, key, returns, lengths, cut_off, came
    with compiling(simulator):
        run_game(simulator, came, returns, play, *arguments)
    return EvaluationResult(returns, lengths, int(cut_off[0]))


def _evaluate_stepped(
    env: SteppedEnv,
    table: LocalTable | LineTable,
    episodes: int,
    seed: int,
    max_steps: int,
    is_over: Callable[[], bool],
    rows_of: Callable[[np.ndarray], np.ndarray] | None = None,
) -> EvaluationResult:
    """Play as `play_stepped` does; EvaluationStopped as soon as it `is_over`."""
    result = play_stepped(env, table, episodes, seed, max_steps, is_over, rows_of)
    if result[0].size < episodes:
        raise EvaluationStopped(
            f"The evaluation was ended after {result[0].size} of {episodes} episodes, "
            "as the training is to stop."
        )
    return EvaluationResult(*result)
