"""A learner that was saved and restored makes the very steps that it would have made; damage is refused."""

import io
from typing import NamedTuple

import gymnasium
import numba
import numpy as np
import pytest
from gymnasium import spaces
from made_learners import learner_of
from round_parts import play_rounds

from dist_classicrl.environments.model import TabularMDP
from dist_classicrl.environments.simulate import CompiledSimulator
from dist_classicrl.environments.tictactoe import simulator as tictactoe
from dist_classicrl.environments.tictactoe.rules import rules
from dist_classicrl.errors import CheckpointError
from dist_classicrl.learning.learner import Stream
from dist_classicrl.learning.state import MASKS, REPLAY_ARRAYS, check_replay, stack_states, unstack_states
from dist_classicrl.schedules import Linear, PerVisit
from dist_classicrl.settings import Settings
from dist_classicrl.tables.local import LocalTable
from dist_classicrl.tables.round_merge import RoundMerge
from dist_classicrl.tables.rows import VISIT_MASK
from dist_classicrl.tables.shape import TableShape
from dist_classicrl.tables.shared import SharedTable

KEY = np.uint64(2026)
STEPS, CUT, START = 10_000, 3_777, 500


class Moody(NamedTuple):
    """TicTacToe against a machine whose moves depend on everything that was ever played."""

    game: tictactoe.GameData


@numba.njit
def moody_reset(data, memory, random):
    memory[1] += 1
    return tictactoe.reset(data.game, memory, random)


@numba.njit
def moody_step(data, memory, state, action, random):
    memory[0] = memory[0] * 31 + action + memory[1]
    return tictactoe.step(data.game, memory, state, action, random ^ np.uint64(memory[0]))


def env_of(name):
    if name == "moody":
        legal = rules().legal
        data = Moody(tictactoe.game_data())
        return CompiledSimulator.game(
            "moody", *legal.shape, data, moody_reset, moody_step, legal, memory_size=2
        )
    if name == "garnet":
        return TabularMDP.garnet(15, 3, 3, seed=1, max_episode_steps=40)
    return name


def through_files(arrays):
    """Return what is left of `arrays` after a way through .npy files."""
    read = {}
    for name, array in arrays.items():
        file = io.BytesIO()
        np.save(file, array, allow_pickle=False)
        file.seek(0)
        read[name] = np.load(file, allow_pickle=False)
    return read


CASES = {
    "frozen lake": ("FrozenLake-v1", {}),
    "taxi": ("Taxi-v4", {"epsilon": Linear(1.0, 0.05, 6_000)}),
    "tictactoe": ("moody", {}),
    "cut off": ("garnet", {"learning_rate": Linear(0.5, 0.01, 9_000)}),
    "per visit": ("Taxi-v4", {"learning_rate": PerVisit(0.8)}),
    "replay": ("garnet", {"replay_ratio": 1.3, "buffer_size": 300}),
    "replay, not full": ("FrozenLake-v1", {"replay_ratio": 0.4, "learning_rate": PerVisit(0.6)}),
    "tictactoe with replay": ("moody", {"replay_ratio": 2.0, "buffer_size": 100}),
    "float32": ("garnet", {"dtype": "float32"}),
    "float32 tictactoe": ("moody", {"dtype": "float32", "learning_rate": PerVisit(0.7)}),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_the_next_steps_are_the_same_to_the_bit(case):
    name, more = CASES[case]
    env, settings = env_of(name), Settings(**{"epsilon": 0.3, **more})
    learner = learner_of(env, settings)
    table = learner.table
    learner.learn(0, Stream(KEY, START), STEPS)

    saved = learner_of(env, settings)
    first = saved.table
    stream = Stream(KEY, START)
    saved.learn(0, stream, CUT)
    first.pack()  # so that the visits are all in `visits`
    exact = first.exact()
    checkpoint = {"values": exact.astype(settings.dtype), "counts": first.visits, "exact": exact}
    read, state = through_files(checkpoint), saved.state(0)
    assert np.isfinite(read["exact"]).all()
    restored = learner_of(env, settings)
    second = restored.table
    second.load(read.pop("values"), read.pop("counts"), read.pop("exact"))
    restored.totals.values[:] = saved.totals.values
    saved.learn(0, Stream(KEY ^ np.uint64(1), 0), 100)  # shares nothing with the state that it gave
    restored.restore(0, through_files(state))
    restored.learn(0, Stream(KEY, START, stream.used), STEPS - CUT)

    assert second.q.tobytes() == table.q.tobytes()
    assert (second.visits + (second.updates & VISIT_MASK)).tolist() == (table.updates & VISIT_MASK).tolist()
    assert restored.totals.values.tobytes() == learner.totals.values.tobytes()
    assert learner.totals.values[0] > 50
    for name, array in learner.state(0).items():
        assert restored.state(0)[name].tobytes() == array.tobytes(), name


def test_float32_needs_the_exact_table():
    env, settings = env_of("garnet"), Settings(dtype="float32")
    learner = learner_of(env, settings)
    table = learner.table
    learner.learn(0, Stream(KEY, 0), CUT)
    values = table.exact().astype("f4")
    other = learner_of(env, settings).table
    other.load(values, table.visits)
    assert other.q.tolist() == values.tolist() != table.q.tolist()
    other.load(values, table.visits, table.exact())
    assert other.q.tobytes() == table.q.tobytes() and other.base.tolist() == values.tolist()
    assert other.best.tobytes() == table.best.tobytes() and other.greedy.tolist() == table.greedy.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("name", "ratio"), [("garnet", 0.0), ("garnet", 0.7), ("moody", 0.0)])
def test_rounds_go_on_the_same_to_the_bit(name, ratio, dtype):
    env = env_of(name)
    settings = Settings(
        async_updates=False, logical_workers=4, sync_frequency=2, batch_size=25, dtype=dtype,
        learning_rate=PerVisit(0.7), epsilon=Linear(1.0, 0.1, 3_000), replay_ratio=ratio, buffer_size=200,
    )  # fmt: skip

    def begin(values, counts, states):
        learner = learner_of(env, settings, 4, range(4))
        learner.table.load(values, counts)
        for number, state in enumerate(states):
            learner.restore(number, state)
        return SharedTable(values, counts), learner

    def go_on(shared, learner, start, steps):
        play_rounds(shared, RoundMerge(shared), learner, settings, start, steps, 9)

    size = learner_of(env, settings).table.q.size
    whole, all_at_once = begin(np.zeros(size, dtype), np.zeros(size, np.int64), [])
    go_on(whole, all_at_once, 0, 4_000)
    shared, learner = begin(np.zeros(size, dtype), np.zeros(size, np.int64), [])
    go_on(shared, learner, 0, 1_400)
    states = stack_states([learner.state(number) for number in range(4)])
    read = through_files({"values": shared.values, "counts": shared.counts, **states})
    again, restored = begin(read.pop("values"), read.pop("counts"), unstack_states(read, 4))
    restored.totals.values[:] = learner.totals.values
    go_on(again, restored, 1_400, 2_600)
    assert again.values.tobytes() == whole.values.tobytes()
    assert again.counts.tobytes() == whole.counts.tobytes()
    assert restored.totals.values.tobytes() == all_at_once.totals.values.tobytes()
    positions = [all_at_once.state(number)["position"].tolist() for number in range(4)]
    assert positions == [restored.state(number)["position"].tolist() for number in range(4)]


# Stepped environments


class Pays(gymnasium.Env):
    """One state, two actions; rewards -1, -2, -3, ...

    `masked`: whether `info` says that action 1 is illegal, "late": from the first step on.
    """

    observation_space = spaces.Discrete(1)
    action_space = spaces.Discrete(2)

    def __init__(self, masked, at=0):
        self.masked = masked
        self.info = {"action_mask": np.array([1, 0], np.int8)} if masked else {}
        self.at = at

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {} if self.masked == "late" else self.info

    def step(self, action):
        self.at -= 1
        return 0, float(self.at), False, False, self.info


def stepped(masked=True, ratio=3.0, capacity=30, at=0):
    settings = Settings(
        learning_rate=0.3, discount_factor=0.5, epsilon=0.0, batch_size=10,
        replay_ratio=ratio, buffer_size=capacity,
    )  # fmt: skip
    return learner_of(lambda: Pays(masked, at), settings, n_envs=2)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [20, 200])
def test_a_stepped_learner_keeps_its_replay_memory(steps):
    learner = stepped()
    table = learner.table
    stream = Stream(KEY, 0)
    learner.learn(0, stream, steps)
    state = through_files(learner.state(0))
    assert set(state) == {*REPLAY_ARRAYS, MASKS}
    table.pack()
    restored = stepped(at=-steps // 2)
    restored.table.load(table.q, table.visits)
    restored.restore(0, state)
    for again, before in ((restored, stream.used), (learner, stream.used)):
        again.learn(0, Stream(KEY, 0, before), 100)
    assert restored.table.q.tobytes() == table.q.tobytes()
    for name, array in learner.state(0).items():
        assert restored.state(0)[name].tolist() == array.tolist()


@pytest.mark.slow
def test_a_stepped_learner_without_replay_has_no_state():
    learner = stepped(ratio=0.0)
    assert learner.state(0) == {}
    learner.restore(0, {})
    with pytest.raises(CheckpointError, match="the array replay_masks is there, allowed is only nothing"):
        learner.restore(0, {"replay_masks": np.ones((30, 2), bool)})


@pytest.mark.slow
def test_masks_are_optional_for_a_stepped_learner():
    plain = stepped(masked=False)
    plain.learn(0, Stream(KEY, 0), 40)
    without = plain.state(0)
    assert "replay_masks" not in without
    masked = stepped()
    masked.learn(0, Stream(KEY, 0), 40)
    with_masks = masked.state(0)
    assert with_masks["replay_masks"].tolist() == [[True, False]] * 30

    masked.restore(0, without)
    assert masked.state(0)["replay_masks"].all()
    late = stepped("late")  # has had no mask yet
    assert "replay_masks" not in late.state(0)
    late.restore(0, with_masks)
    assert late.state(0)["replay_masks"].tolist() == with_masks["replay_masks"].tolist()
    late.learn(0, Stream(KEY, 0), 40)
    late.table.pack()
    assert late.table.visits[1] <= 2  # by the two environments, before they said that it is illegal

    both = stack_states([with_masks, without])
    assert set(both) == set(with_masks) and both["replay_masks"].shape == (2, 30, 2)
    first, second = unstack_states(both, 2)
    assert first["replay_masks"].tolist() == with_masks["replay_masks"].tolist()
    assert second["replay_masks"].all()
    for name, array in without.items():
        assert second[name].tolist() == array.tolist()


def test_another_number_of_learners_is_refused():
    states = [{"position": np.array([i, 1]), "running": np.zeros(1)} for i in range(3)]
    stacked = stack_states(states)
    assert list(stacked) == ["position", "running"] and stacked["position"].tolist() == [
        [0, 1],
        [1, 1],
        [2, 1],
    ]
    assert unstack_states(stacked, 3)[2]["position"].tolist() == [2, 1]
    for number in (2, 4):
        with pytest.raises(CheckpointError, match=rf"position has the shape \(3, 2\), .* is {number}"):
            unstack_states(stacked, number)
    with pytest.raises(CheckpointError, match=r"running has the shape \(\)"):
        unstack_states({"running": np.array(1.0)}, 1)
    assert stack_states([]) == {} and unstack_states({}, 2) == [{}, {}]


# What is refused


LEGAL = np.array([[True, True], [True, False], [False, False]])
CAPACITY = 8


class Line(NamedTuple):
    """Two states, then the end, where nothing is legal."""

    length: int


@numba.njit
def line_reset(data, memory, random):
    return 0


@numba.njit
def line_step(data, memory, state, action, random):
    return state + 1, 1.0, state + 1 == data.length


def line_learner(**more):
    simulator = CompiledSimulator.game(
        "line", 3, 2, Line(2), line_reset, line_step, LEGAL, memory_size=1, max_episode_steps=9
    )
    return learner_of(simulator, Settings(**{"replay_ratio": 1.0, "buffer_size": CAPACITY, **more}))


def good_state(held=CAPACITY, place=3):
    return {
        "position": np.array([1, 4, 77]),
        "running": np.array([2.5]),
        "replay_entries": np.array([0, 1, 2, 0, 1, 2, 0, 1]),
        "replay_rewards": np.ones(CAPACITY),
        "replay_targets": np.array([2, 2, 5, 2, 2, 5, 2, 2]),
        "replay_ring": np.array([held, place, 0.25]),
    }


@pytest.mark.slow
def test_what_is_allowed_comes_back():
    learner = line_learner()
    for held, place in ((CAPACITY, 0), (CAPACITY, CAPACITY - 1), (0, 0), (5, 5)):
        state = good_state(held, place)
        if held == 5:
            state["replay_entries"][5:] = 99  # not held: overwritten before it is read
        learner.restore(0, state)
        assert {name: array.tolist() for name, array in learner.state(0).items()} == {
            name: array.tolist() for name, array in state.items()
        }
    fresh = line_learner()
    learner.restore(0, fresh.state(0))
    assert learner.state(0)["position"].tolist() == [-1, 0, 0]
    learner.state(0)["position"][0] = 1
    assert learner.state(0)["position"][0] == -1  # a copy


WRONG = {
    "position 0 above": ("position", 0, 3, r"position, the state, goes from 3 to 3, allowed is from -1 to 2"),
    "position 0 below": ("position", 0, -2, "the state, goes from -2 to -2, allowed is from -1 to 2"),
    "stuck": ("position", 0, 2, "is in state 2, allowed is a state in which some action is legal"),
    "elapsed below": (
        "position",
        1,
        -1,
        "the steps of the episode, goes from -1 to -1, allowed is from 0 to 8",
    ),
    "elapsed above": ("position", 1, 9, "goes from 9 to 9, allowed is from 0 to 8"),
    "running nan": ("running", 0, np.nan, "running is the return nan, allowed is a finite number"),
    "running inf": ("running", 0, -np.inf, "running is the return -inf"),
    "entry above": ("replay_entries", 7, 6, "replay_entries goes from 0 to 6, allowed is from 0 to 5"),
    "entry below": ("replay_entries", 7, -1, "replay_entries goes from -1 to 2"),
    "entry illegal": ("replay_entries", 7, 3, "replay_entries holds an illegal action"),
    "target above": ("replay_targets", 0, 6, "replay_targets goes from 2 to 6, allowed is from 0 to 5"),
    "target below": ("replay_targets", 0, -1, "replay_targets goes from -1 to 5"),
    "reward": ("replay_rewards", 4, np.inf, "replay_rewards holds NaN or infinity"),
    "held above": (
        "replay_ring",
        0,
        9,
        "replay_ring holds 9.0 transitions, allowed is a whole number from 0 to 8",
    ),
    "held below": ("replay_ring", 0, -1, "replay_ring holds -1.0 transitions"),
    "held broken": ("replay_ring", 0, 7.5, "replay_ring holds 7.5 transitions"),
    "held nan": ("replay_ring", 0, np.nan, "replay_ring holds nan transitions"),
    "held without place": ("replay_ring", 0, 5, "has 3.0 as the next place while it holds 5, allowed is 5"),
    "place above": ("replay_ring", 1, 8, "has 8.0 as the next place while it holds 8, .* from 0 to 7"),
    "place below": ("replay_ring", 1, -1, "has -1.0 as the next place"),
    "place broken": ("replay_ring", 1, 0.5, "has 0.5 as the next place"),
    "place nan": ("replay_ring", 1, np.nan, "has nan as the next place"),
    "owed below": (
        "replay_ring",
        2,
        -0.1,
        "replay_ring owes -0.1 updates, allowed is a number of at least 0",
    ),
    "owed above": ("replay_ring", 2, 1e300, "replay_ring owes 1e"),
    "owed nan": ("replay_ring", 2, np.nan, "replay_ring owes nan"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", WRONG)
def test_numbers_that_no_learner_could_have_are_refused(case):
    name, index, value, message = WRONG[case]
    state = good_state()
    state[name][index] = value
    refuses(line_learner(), state, message)


def refuses(learner, state, message):
    before = {name: array.tolist() for name, array in learner.state(0).items()}
    with pytest.raises(CheckpointError, match=message) as caught:
        learner.restore(0, state)
    assert "damaged or from other settings" in str(caught.value)
    assert {name: array.tolist() for name, array in learner.state(0).items()} == before


def test_what_is_replayed_happened_in_a_state():
    # A rule may have several tables, and shared numbers behind them; transitions are remembered once.
    table = LocalTable(3, 2, np.dtype("f8"), shape=TableShape(3, 2, n_tables=2, n_shared=1))
    check_replay(good_state(), table)
    with pytest.raises(CheckpointError, match="replay_entries goes from 0 to 6, allowed is from 0 to 5"):
        check_replay({**good_state(), "replay_entries": np.array([0, 6] * 4)}, table)


FORMS = {
    "missing": (lambda s: s.pop("running"), "the array running is missing"),
    "missing replay": (lambda s: s.pop("replay_ring"), "the array replay_ring is missing"),
    "extra": (
        lambda s: s.update(speed=np.zeros(1)),
        "the array speed is there, allowed is only position, running",
    ),
    "masks": (lambda s: s.update(replay_masks=np.ones((8, 2), bool)), "the array replay_masks is there"),
    "memory": (
        lambda s: s.update(position=np.zeros(2, np.int64)),
        r"position is int64 of shape \(2,\), .* \(3,\)",
    ),
    "type": (lambda s: s.update(position=np.zeros(3)), "position is float64 of shape .*, allowed is int64"),
    "order": (lambda s: s.update(position=np.zeros(3, ">i8")), "position is >i8 of shape"),
    "capacity": (
        lambda s: s.update(replay_entries=np.zeros(9, np.int64)),
        r"replay_entries is int64 of shape \(9,\), allowed is int64 of shape \(8,\)",
    ),
    "dimensions": (lambda s: s.update(running=np.zeros((1, 1))), r"running is float64 of shape \(1, 1\)"),
    "list": (lambda s: s.update(running=[0.0]), "running is list, allowed is float64"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", FORMS)
def test_arrays_of_another_kind_are_refused(case):
    change, message = FORMS[case]
    state = good_state()
    change(state)
    refuses(line_learner(), state, message)


@pytest.mark.slow
def test_replay_and_no_replay_do_not_mix():
    state = good_state()
    refuses(
        line_learner(replay_ratio=0.0), state, "replay_entries is there, allowed is only position, running"
    )
    refuses(line_learner(), line_learner(replay_ratio=0.0).state(0), "replay_entries is missing")


@pytest.mark.slow
def test_a_stepped_learner_checks_its_replay_memory():
    learner = stepped()
    state = learner.state(0)
    refuses(learner, {**state, "replay_masks": np.ones((30, 3), bool)}, r"\(30, 3\), allowed is .* \(30, 2\)")
    state["replay_ring"][:] = (1, 1, 0)
    state["replay_entries"][0] = 2
    refuses(learner, state, "replay_entries goes from 2 to 2, allowed is from 0 to 1")
