"""Games in compiled code that give what they must not: the error says what it was, and nothing crashes."""

from typing import NamedTuple

import numba
import numpy as np
import pytest
from made_learners import learner_of

from dist_classicrl import DistAsyncQLearning
from dist_classicrl.environments import trial
from dist_classicrl.environments.simulate import CompiledSimulator
from dist_classicrl.errors import ModelError, OutsideSpaceError, RewardError
from dist_classicrl.evaluation.episodes import evaluate
from dist_classicrl.learning.learner import Stream
from dist_classicrl.model.agent_state import AgentState
from dist_classicrl.settings import Settings

KEY = np.uint64(5)
N_STATES, N_ACTIONS = 6, 3


class Course(NamedTuple):
    """From state to state, until after `length` steps of an episode it gives what it was told to."""

    length: int
    start: int  # of every episode but the first
    state: int
    reward: float
    prices: np.ndarray  # of actions
    read: bool  # whether they are looked up


@numba.njit
def reset(data, memory, random):
    memory[0] = 0
    memory[1] += 1
    return data.start if memory[1] > 1 else 0


@numba.njit
def step(data, memory, state, action, random):
    memory[0] += 1
    price = data.prices[action] if data.read else 0.0
    if memory[0] == data.length:
        return data.state, data.reward, False
    return (state + 1) % N_STATES, price, memory[0] == data.length + 1


class Plain(NamedTuple):
    number: int


class Listed(NamedTuple):
    values: object


@numba.njit
def begin_at_0(data, memory, random):
    return 0


@numba.njit
def step_to_1(data, memory, state, action, random):
    return 1, 1.0, True


def course(length=3, start=0, state=1, reward=0.0, n_prices=N_ACTIONS, read=False, **more):
    data = Course(length, start, state, reward, np.zeros(n_prices), read)
    return CompiledSimulator.game("course", N_STATES, N_ACTIONS, data, reset, step, memory_size=2, **more)


def trained(game, steps=100_000):
    DistAsyncQLearning(seed=1).train(game, total_steps=steps)


@pytest.fixture(params=["trial", "loop", "checked loop", "evaluation"])
def play(request, monkeypatch):
    """What plays a game: the trial before the first step, the training loop, or an evaluation."""
    if request.param == "evaluation":

        def play(**wrong):
            agent = AgentState(Settings())
            agent.set_values(np.zeros((N_STATES, N_ACTIONS)))
            evaluate(course(**wrong), agent, 3, 0, 50)

        return play
    if request.param != "trial":
        monkeypatch.setattr(trial, "TRIAL_STEPS", 0)
    return lambda **wrong: trained(course(**wrong, check=request.param == "checked loop"))


@pytest.mark.slow
@pytest.mark.parametrize("state", [N_STATES, -1, 2**40, -(2**62)])
def test_a_state_that_is_none_is_told_with_what_led_to_it(play, state):
    with pytest.raises(
        OutsideSpaceError,
        match=rf"course: step in state 2 with action [0-2] gave the state {state}\. States go from 0 to 5, "
        "as n_states=6 says: correct the game's step function, or n_states",
    ):
        play(state=state)


@pytest.mark.slow
def test_a_state_that_an_episode_cannot_begin_in_is_told(play):
    with pytest.raises(OutsideSpaceError, match=r"course: reset gave the state 6\. .* reset function"):
        play(start=6)


@pytest.mark.slow
@pytest.mark.parametrize("reward", [np.nan, np.inf, -np.inf])
def test_a_reward_that_is_no_finite_number_is_told(play, reward):
    with pytest.raises(RewardError, match=rf"step in state 2 with action [0-2] gave the reward {reward}"):
        play(reward=reward)


@pytest.mark.slow
def test_nothing_wrong_is_learned(monkeypatch):
    monkeypatch.setattr(trial, "TRIAL_STEPS", 0)
    learner = learner_of(course(reward=np.nan), Settings(learning_rate=0.5))
    with pytest.raises(RewardError):
        learner.learn(0, Stream(KEY, 0), 100)
    assert np.isfinite(learner.table.q).all() and learner.table.n_touched[0] == 2
    assert learner.table.updates.sum() == 2


def test_an_action_that_the_games_arrays_do_not_have_is_found_in_the_trial():
    with pytest.raises(
        OutsideSpaceError,
        match="step in state [0-5] with action 2 read or wrote an array .* 6 states and 3 actions",
    ):
        trained(course(n_prices=2, read=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    "wrong",
    [
        lambda data, memory, state, action, random: (state, 1.0),
        lambda data, memory, state, action, random: None,
        lambda data, memory, state, action, random: (state, "1", True),
        lambda data, memory, state, action: (state, 1.0, True),
    ],
)
def test_functions_that_cannot_be_compiled_are_named_with_what_they_must_return(wrong):
    game = CompiledSimulator.game("oops", 2, 2, Plain(1), begin_at_0, numba.njit(wrong))
    with pytest.raises(ModelError, match="oops: its functions cannot be compiled.*Numba says why") as raised:
        trained(game, 10)
    assert "next state, reward and whether the episode is over" in str(raised.value)
    agent = AgentState(Settings())
    agent.set_values(np.zeros((2, 2)))
    with pytest.raises(ModelError, match="oops: its functions cannot be compiled"):
        evaluate(game, agent, 3, 0, 50)


@pytest.mark.slow
@pytest.mark.parametrize("data", [Listed([1.0]), Listed({1: 2})])
def test_data_that_compiled_code_cannot_read_is_named(data):
    game = CompiledSimulator.game("oops", 2, 2, data, begin_at_0, step_to_1)
    with pytest.raises(ModelError, match="oops: its functions cannot be compiled.* data has arrays, numbers"):
        trained(game, 10)


@pytest.mark.slow
def test_a_state_that_is_no_whole_number_is_named_and_not_rounded():
    half = numba.njit(lambda data, memory, random: 0.5)
    with pytest.raises(OutsideSpaceError, match=r"reset gave the state 0\.5\. States are whole numbers"):
        trained(CompiledSimulator.game("oops", 2, 2, Plain(1), half, step_to_1), 10)
    more = numba.njit(lambda data, memory, state, action, random: (state + 0.25, 1.0, False))
    with pytest.raises(OutsideSpaceError, match=r"step in state 0 with action [01] gave the state 0\.25\."):
        trained(CompiledSimulator.game("oops", 2, 2, Plain(1), begin_at_0, more), 10)
    whole = numba.njit(lambda data, memory, state, action, random: (1.0, 1.0, True))
    trained(CompiledSimulator.game("float", 2, 2, Plain(1), begin_at_0, whole), 10)


@pytest.mark.slow
def test_with_check_each_index_is_checked_in_every_step(monkeypatch):
    monkeypatch.setattr(trial, "TRIAL_STEPS", 0)
    with pytest.raises(OutsideSpaceError, match="with action 2 read or wrote an array"):
        trained(course(n_prices=2, read=True, check=True))
    agent = AgentState(Settings())
    agent.set_values([[0.0, 0.0, 1.0]] * N_STATES)
    with pytest.raises(OutsideSpaceError, match="state 0 with action 2 read or wrote an array"):
        evaluate(course(n_prices=2, read=True, check=True), agent, 3, 0, 50)


def test_a_game_that_goes_wrong_late_is_found_as_well():
    with pytest.raises(OutsideSpaceError, match="gave the state 17"):
        trained(course(length=50_000, state=17))


def test_a_good_game_passes_and_learns_what_it_would_have_learned_unchecked():
    tables = []
    for check in (False, True):
        agent = DistAsyncQLearning(seed=1)
        agent.train(course(reward=2.0, check=check), total_steps=5_000)
        tables.append(agent.q_table)
    assert np.array_equal(*tables) and tables[0].any()


@pytest.mark.slow
def test_the_trial_plays_legal_actions_only():
    legal = np.ones((N_STATES, N_ACTIONS), bool)
    legal[:, 2] = False
    trained(course(n_prices=2, read=True, legal=legal), 100)
