"""Large tables: walkers that take turns, against a slow twin in plain Python, and agents that have them."""

import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from dist_classicrl import DistAsyncQLearning, TabularMDP
from dist_classicrl._random import GAMMA
from dist_classicrl.callbacks import BaseCallback
from dist_classicrl.environments.resolve import resolve
from dist_classicrl.errors import CheckpointError, DivergenceError, TrainingStopped
from dist_classicrl.learning import interleaved
from dist_classicrl.learning.interleaved import WALKERS, InterleavedLearner
from dist_classicrl.learning.kinds import new_learner, problem_of
from dist_classicrl.learning.learner import Stream
from dist_classicrl.learning.rates import Rates
from dist_classicrl.model import places
from dist_classicrl.schedules import Linear, PerVisit
from dist_classicrl.settings import Settings

pytestmark = pytest.mark.slow  # each kernel here takes long to compile

MASK = (1 << 64) - 1
STRIDE = 3 * int(GAMMA)
KEY = np.uint64(12345)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Let tables of any size be learned so."""
    monkeypatch.setattr(interleaved, "FROM_ENTRIES", 1)


def mix(z):
    z &= MASK
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK
    return z ^ (z >> 31)


def below(bits, n):
    return (bits & 0xFFFFFFFF) * n >> 32


def learner_of(model, settings):
    source = resolve(model, 1, None)
    learner = new_learner(
        problem_of(source, settings, Rates(settings, 1), np.dtype(settings.dtype), is_alone=True)
    )
    assert isinstance(learner, InterleavedLearner)
    learner.add(0, source, 1)
    return learner


def twin(model, tables, steps, settings):
    """Learn as `walk` does, one Python step at a time; return values, counts, episodes and their returns."""
    legal = np.ones((model.n_states, model.n_actions), bool)
    if model.action_mask is not None:
        legal = model.action_mask
    lists = [np.flatnonzero(row).tolist() for row in legal]
    q = np.where(legal, 0.0, -np.inf)
    n = np.zeros(q.shape, np.int64)
    step_sizes = Rates(settings, 1).table
    walkers = [dict(state=-1, elapsed=0, collected=0.0) for _ in range(WALKERS)]
    totals = [0, 0.0]
    counter, done = int(KEY), 0

    def begin(random):
        slot = below(random, tables.start_threshold.size)
        other = (random >> 32) > int(tables.start_threshold[slot])
        return int(tables.start_states[2 * slot + other])

    while done < steps:
        moving = min(WALKERS, steps - done)
        for k in range(moving):
            walker, at = walkers[k], counter + k * STRIDE
            random = mix(at)
            if walker["state"] < 0:
                walker["state"] = begin(mix(~at))
            state = walker["state"]
            epsilon = settings.epsilon.at(done + k)
            if (random >> 32) * 2.0**-32 < epsilon:
                action = lists[state][below(random, len(lists[state]))]
            else:
                best = np.flatnonzero(q[state] == q[state].max())
                action = int(best[below(random, best.size)]) if best.size > 1 else int(best[0])
            walker["action"] = action
        for k in range(moving):
            walker = walkers[k]
            random = mix(counter + k * STRIDE + int(GAMMA))
            pair = walker["state"] * model.n_actions + walker["action"]
            threshold, outcomes, rewards = tables.slot(pair * tables.width + below(random, tables.width))
            other = (random >> 32) > threshold
            walker["next"], walker["ended"] = outcomes[other] >> 1, bool(outcomes[other] & 1)
            walker["reward"] = rewards[other]
        for k in range(moving):
            walker, at = walkers[k], counter + k * STRIDE
            walker["elapsed"] += 1
            walker["collected"] += walker["reward"]
            top = q[walker["next"]].max()
            future = 0.0 if walker["ended"] or top == -np.inf else top
            target = walker["reward"] + settings.discount_factor * future
            where = walker["state"], walker["action"]
            if step_sizes is None:
                step_size = settings.learning_rate.at(done + k)
            else:  # the sizes below 8192 visits stand where the visits say
                step_size = step_sizes[n[where] + 1]
            n[where] += 1
            q[where] += step_size * (target - q[where])
            limit = model.max_episode_steps
            if walker["ended"] or (limit is not None and walker["elapsed"] >= limit):
                totals[0] += 1
                totals[1] += walker["collected"]
                walker["next"] = begin(mix(at + 2 * int(GAMMA)))
                walker["elapsed"], walker["collected"] = 0, 0.0
            walker["state"] = walker["next"]
        done += moving
        counter += moving * STRIDE
    return np.where(legal, q, 0.0), n, totals


def settled(learner):
    shape = learner.table.shape
    values, counts = np.zeros(shape.size, learner.table.values.dtype), np.zeros(shape.size, np.int64)
    learner.table.settle(values, counts)
    return values.reshape(shape.of_table), counts.reshape(shape.of_table)


def garnet(forbidden=False, actions=5):
    """Return a model with time limit; where actions are forbidden, one in each state is."""
    model = TabularMDP.garnet(
        40, actions, 3, seed=4, terminal_states=3, termination_probability=0.05, max_episode_steps=17
    )
    if not forbidden:
        return model
    mask = np.ones((40, actions), bool)
    mask[np.arange(40), np.arange(40) % actions] = False
    return replace(model, action_mask=mask)


# Rates bend between two turns of all walkers: within one, the first of them would move once more.
@pytest.mark.parametrize("forbidden", [False, True])
@pytest.mark.parametrize("rate", [PerVisit(0.7), Linear(0.5, 0.1, 960)])
@pytest.mark.parametrize(("steps", "actions"), [(1, 5), (31, 5), (32, 5), (3001, 5), (3001, 21)])
def test_it_learns_as_plain_python_does(rate, steps, actions, forbidden):
    settings = Settings(learning_rate=rate, epsilon=Linear(1.0, 0.2, 640), discount_factor=0.9)
    model = garnet(forbidden, actions)
    learner = learner_of(model, settings)
    learner.learn(0, Stream(KEY, 0), steps)
    values, counts = settled(learner)
    tables = resolve(model, 1, None).simulator.tables
    wanted, visits, (episodes, returns) = twin(model, tables, steps, settings)
    assert counts.sum() == steps
    np.testing.assert_array_equal(counts, visits)
    np.testing.assert_allclose(values, wanted, rtol=1e-12, atol=1e-12)
    assert learner.totals.values[0] == episodes and (steps < 3000 or episodes > 100)
    assert learner.totals.values[1] == pytest.approx(returns)


def test_cut_between_turns_it_learns_the_same():
    settings = Settings(learning_rate=PerVisit(0.7), epsilon=0.3)
    whole, parts = (learner_of(garnet(), settings) for _ in range(2))
    whole.learn(0, Stream(KEY, 0), 320 * WALKERS)
    stream = Stream(KEY, 0)
    for turns in (1, 19, 200, 100):
        parts.learn(0, stream, turns * WALKERS)
    np.testing.assert_array_equal(settled(parts)[0], settled(whole)[0])
    np.testing.assert_array_equal(parts.totals.values, whole.totals.values)


def test_where_rates_bend_within_a_turn_it_may_be_cut_between_turns_all_the_same():
    """Slices end where time says: what is learned must not show it. Every bend cuts a turn."""
    settings = Settings(learning_rate=Linear(0.5, 0.1, 70), epsilon=Linear(1.0, 0.2, 101))
    whole, parts = (learner_of(garnet(), settings) for _ in range(2))
    whole.learn(0, Stream(KEY, 0), 20 * WALKERS)
    stream = Stream(KEY, 0)
    for turns in (5, 1, 14):
        parts.learn(0, stream, turns * WALKERS)
    np.testing.assert_array_equal(settled(parts)[0], settled(whole)[0])
    assert parts.state(0)["position"][:, 1].tolist() == whole.state(0)["position"][:, 1].tolist()


def test_the_state_of_its_walkers_is_all_that_the_next_steps_depend_on():
    settings = Settings(learning_rate=PerVisit(0.7), epsilon=0.3)
    one, other = (learner_of(garnet(), settings) for _ in range(2))
    stream = Stream(KEY, 0)
    one.learn(0, stream, 40 * WALKERS)
    other.restore(0, one.state(0))
    other.table.load(*(array.ravel() for array in settled(one)))
    again = Stream(KEY, 0, stream.used)
    one.learn(0, stream, 1000)
    other.learn(0, again, 1000)
    np.testing.assert_array_equal(settled(one)[0], settled(other)[0])


@pytest.mark.parametrize(("column", "value"), [(0, 40), (0, -2), (1, 17), (1, -1)])
def test_no_walker_is_put_where_none_can_be(column, value):
    learner = learner_of(garnet(), Settings())
    state = learner.state(0)
    state["position"][3, column] = value
    with pytest.raises(CheckpointError, match=str(value)):
        learner.restore(0, state)


def one_state(rewards):
    """Return a model of one state and one action, which gives one of these rewards, each as often."""
    outcomes = [(1.0 / len(rewards), 0, reward, False) for reward in rewards]
    return TabularMDP.from_dict({0: {0: outcomes}}, [1.0])


def test_rewards_beyond_all_numbers_are_told():
    learner = learner_of(one_state([1e308]), Settings(discount_factor=1.0, learning_rate=1.0))
    with pytest.raises(DivergenceError):
        for _ in range(10):
            learner.learn(0, Stream(KEY, 0), WALKERS)
            settled(learner)


def test_small_steps_are_not_lost_in_float32():
    """The mean of a million rewards of 10,000 and a million of 10,100: each moves it by a tenth of an ulp."""
    settings = Settings(learning_rate=PerVisit(1.0), epsilon=0.0, discount_factor=0.0, dtype="float32")
    learner = learner_of(one_state([10_100.0]), settings)
    learner.table.load(np.array([10_000.0], np.float32), np.array([1_000_000]))
    learner.learn(0, Stream(KEY, 0), 1_000_000)
    values, counts = settled(learner)
    np.testing.assert_allclose(values, 10_050.0, atol=2.0)
    assert counts.sum() == 2_000_000


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_an_agent_learns_the_optimum_with_it(dtype):
    model = garnet()
    agent = DistAsyncQLearning(seed=3, discount_factor=0.9, dtype=dtype)
    agent.train(model, total_steps=2_000_000)
    solution = model.solve(0.9)
    reached = model.policy_value(agent.q_table.argmax(axis=1), 0.9)
    assert model.start_value(reached) >= model.start_value(solution.v) - 0.01 * abs(
        model.start_value(solution.v)
    )
    assert agent.visits.sum() == 2_000_000


def test_callbacks_read_what_was_learned_so_far():
    seen = []
    agent = DistAsyncQLearning(seed=3)

    def look(progress):
        seen.append((progress.steps, int(agent.visits.sum())))

    agent.train(garnet(), total_steps=200_000, progress=look)
    assert len(seen) > 100 and all(steps == visits for steps, visits in seen)


def test_a_stopped_training_goes_on_as_if_nothing_had_been(tmp_path, monkeypatch):
    monkeypatch.setattr(places, "_agents", {})

    def agent():
        return DistAsyncQLearning(seed=3, epsilon=0.2)

    whole = agent()
    whole.train(garnet(), total_steps=300_000)
    parts = agent()
    with pytest.raises(TrainingStopped):
        parts.train(garnet(), total_steps=300_000, checkpoint_dir=tmp_path, callbacks=StopAt(100_000))
    places._agents.clear()  # as in a process of its own
    resumed = agent()
    resumed.train(garnet(), total_steps=300_000, checkpoint_dir=tmp_path)
    assert len(list(tmp_path.iterdir())) == 1
    np.testing.assert_array_equal(resumed.q_table, whole.q_table)


class StopAt(BaseCallback):
    """Asks this process to stop, as a batch system does, at a step."""

    def __init__(self, step):
        super().__init__()
        self.step = step

    def on_step(self, progress):
        if progress.steps >= self.step:
            signal.raise_signal(signal.SIGTERM)
        return True


def test_where_rates_bend_within_a_turn_the_time_that_slices_take_does_not_show():
    """A schedule that bends at step 1000: 31 turns, and 8 of the walkers."""
    settings = Settings(learning_rate=PerVisit(0.7), epsilon=Linear(1.0, 0.1, 1000))
    tables = []
    for slices in ([3200], [960, 2240], [1024, 64, 2112], [32] * 100):
        learner, stream = learner_of(garnet(), settings), Stream(KEY, 0)
        for steps in slices:
            learner.learn(0, stream, steps)
        tables.append(settled(learner)[0])
    for table in tables[1:]:
        np.testing.assert_array_equal(table, tables[0])


GAME = """
import sys
from typing import NamedTuple
import numba, numpy as np
from dist_classicrl import CompiledSimulator, DistAsyncQLearning

class Data(NamedTuple):
    n: int

@numba.njit
def reset(data, memory, random):
    return np.int64({begin})

@numba.njit
def step(data, memory, state, action, random):
    return state, 1.0, True

agent = DistAsyncQLearning(seed=1, async_updates={is_async})
game = CompiledSimulator.game("g", 50_000, 4, Data(3), reset, step)
agent.train(game, total_steps=320, placement="sharded")
print(np.flatnonzero(agent.visits.any(axis=1)))
"""


@pytest.mark.parametrize("is_async", [True, False])
def test_a_game_that_was_written_anew_is_compiled_anew(is_async, tmp_path):
    """In a module, whose classes another process knows by the same name."""
    said = []
    for begin in (5, 7):
        (tmp_path / "own_game.py").write_text(GAME.format(begin=begin, is_async=is_async))
        words = [sys.executable, "-c", "import own_game"]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=True)
        said.append(done.stdout.split())
    assert said == [["[5]"], ["[7]"]]
