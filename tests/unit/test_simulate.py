"""Compiled simulation: alias tables hold exactly the model's chances, and games run that users write."""

import random as python_random
import types
from typing import NamedTuple

import numba
import numpy as np
import pytest
from made_learners import learner_of
from slow_learner import SlowModel, splitmix

from dist_classicrl._jit import jit_for
from dist_classicrl.environments.model import TabularMDP
from dist_classicrl.environments.sampling import packing
from dist_classicrl.environments.simulate import (
    CompiledSimulator,
    ModelTables,
    advance,
    begin,
    compile_model,
)
from dist_classicrl.errors import ActionMaskError, ModelError, SettingsError
from dist_classicrl.evaluation.episodes import evaluate
from dist_classicrl.learning.learner import Stream
from dist_classicrl.learning.loops import learn_steps
from dist_classicrl.learning.rules.q_learning import QLearning
from dist_classicrl.model.agent_state import AgentState
from dist_classicrl.settings import Settings


def uneven_model(seed, n_states, n_actions, sizes, terminated=0.2):
    """Return a model whose outcomes' chances span many orders of magnitude, each with a reward of its own."""
    rng = np.random.default_rng(seed)
    counts = rng.choice(sizes, n_states * n_actions)
    ptr = np.concatenate([[0], np.cumsum(counts)])
    weights = 10.0 ** rng.uniform(-12, 0, ptr[-1])
    start = 10.0 ** rng.uniform(-12, 0, n_states)
    start[rng.random(n_states) < 0.3] = 0.0
    start[0] = 0.5
    return TabularMDP(
        n_states=n_states,
        n_actions=n_actions,
        outcome_ptr=ptr,
        outcome_prob=weights / np.add.reduceat(weights, ptr[:-1]).repeat(counts),
        outcome_next=rng.integers(n_states, size=ptr[-1]),
        outcome_reward=rng.normal(size=ptr[-1]),
        outcome_terminated=rng.random(ptr[-1]) < terminated,
        start_prob=start / start.sum(),
    )


def distribution(tables, low, high):
    """Return {(next state, reward, terminated): chance} of slots `low` to `high` - 1, all equally likely."""
    chances = {}
    for slot in range(low, high):
        threshold, targets, rewards = tables.slot(slot)
        first = (threshold + 1) / 2**32
        for target, reward, chance in zip(targets, rewards, (first, 1.0 - first), strict=True):
            outcome = (target // 2, reward, target % 2 == 1)
            chances[outcome] = chances.get(outcome, 0.0) + chance / (high - low)
    return chances


MODELS = {
    "padded": (lambda: uneven_model(1, 30, 3, [1, 2, 5]), False),
    "ragged": (lambda: uneven_model(2, 30, 3, [1, 1, 1, 1, 1, 1, 1, 1, 40]), True),
    "one outcome": (lambda: uneven_model(3, 10, 2, [1]), False),
    "wide": (lambda: uneven_model(4, 5, 2, [1000]), False),
    "garnet": (lambda: TabularMDP.garnet(40, 3, 7, seed=5, terminal_states=3), False),
    "frozenlake": (lambda: TabularMDP.from_gymnasium("FrozenLake-v1", map_name="8x8"), False),
    "taxi": (lambda: TabularMDP.from_gymnasium("Taxi-v4"), False),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_slots_hold_each_pairs_distribution(name):
    make, ragged = MODELS[name]
    model = make()
    tables = compile_model(model)
    assert (tables.first is not None) == ragged
    for pair in range(model.n_states * model.n_actions):
        low, high = (pair * tables.width, (pair + 1) * tables.width)
        if tables.first is not None:
            low, high = tables.first[pair], tables.first[pair + 1]
        expected = {}
        for i in range(model.outcome_ptr[pair], model.outcome_ptr[pair + 1]):
            outcome = (
                int(model.outcome_next[i]), float(model.outcome_reward[i]), bool(model.outcome_terminated[i])
            )  # fmt: skip
            expected[outcome] = expected.get(outcome, 0.0) + float(model.outcome_prob[i])
        found = distribution(tables, int(low), int(high))
        assert set(found) <= {*expected, *found} and sum(found.values()) == pytest.approx(1.0, abs=1e-12)
        for outcome in {*expected, *found}:
            # Slots are rounded to 2**-32 each; what outcomes of equal look share adds up.
            assert abs(found.get(outcome, 0.0) - expected.get(outcome, 0.0)) <= 2.0**-31


def test_chances_that_slots_can_hold_are_held_exactly():
    rng = np.random.default_rng(6)
    P = {state: {0: []} for state in range(40)}
    for state in range(40):
        size = 2 ** int(rng.integers(1, 4))
        cuts = np.sort(rng.choice(np.arange(1, 64), size - 1, replace=False))
        for number, part in enumerate(np.diff(cuts, prepend=0, append=64)):
            P[state][0].append((float(part) / 64, number, float(number), False))
    model = TabularMDP.from_dict(P, np.full(40, 1 / 40))
    tables = compile_model(model)
    for state in range(40):
        bounds = (state * tables.width, (state + 1) * tables.width)
        if tables.first is not None:
            bounds = (int(tables.first[state]), int(tables.first[state + 1]))
        expected = {(number, reward, False): chance for chance, number, reward, _ in P[state][0]}
        assert distribution(tables, *bounds) == expected


@pytest.mark.parametrize(
    ("chance", "threshold"), [(0.25, 2**30 - 1), (0.75, 3 * 2**30 - 1), (1.0 - 2.0**-53, 2**32 - 2)]
)
def test_two_outcomes_take_one_slot(chance, threshold):
    P = {0: {0: [(chance, 0, 1.0, False), (1.0 - chance, 1, 2.0, True)]}, 1: {0: [(1.0, 0, 0.0, False)]}}
    tables = compile_model(TabularMDP.from_dict(P, [1.0, 0.0]))
    assert tables.first is None and tables.width == 1
    assert tables.slot(0) == (threshold, [0, 3], [1.0, 2.0])


def test_an_outcome_rarer_than_a_slot_can_tell_never_comes():
    P = {0: {0: [(2.0**-40, 0, 1.0, False), (1.0 - 2.0**-40, 1, 2.0, True)]}, 1: {0: [(1.0, 0, 0.0, False)]}}
    assert compile_model(TabularMDP.from_dict(P, [1.0, 0.0])).slot(0)[1] == [3, 3]


@pytest.mark.slow
def test_few_slots_are_filled_without_compiling_and_alike(monkeypatch):
    models = [
        TabularMDP.garnet(40, 4, 3, seed=5),
        *(TabularMDP.from_gymnasium(name) for name in ("FrozenLake-v1", "CliffWalking-v1")),
        one_of_many_outcomes(),
    ]
    monkeypatch.setattr(packing, "_FEW_SLOTS", 0)
    compiled = [compile_model(model) for model in models]
    monkeypatch.undo()
    assert [tables.first is None for tables in compiled] == [True, True, True, False]
    for kernel in ("alias", "store"):
        in_python = types.SimpleNamespace(py_func=getattr(packing, kernel).py_func)
        monkeypatch.setattr(packing, kernel, in_python)
    monkeypatch.setattr(packing, "_pack", packing.python_of(packing._pack))  # as if it were not loaded
    for model, tables in zip(models, compiled, strict=True):
        for one, other in zip(compile_model(model), tables, strict=True):
            np.testing.assert_array_equal(one, other)


def one_of_many_outcomes():
    """Return a model of which one pair has 40 outcomes, the others one or two, or none."""
    P = {state: {0: [(1.0, state, 0.5, state % 3 == 0)], 1: []} for state in range(40)}
    P[3][0] = [(1 / 40, follow, float(follow), False) for follow in range(40)]
    P[5][0] = [(0.3, 1, 1.0, False), (0.7, 2, -1.0, True)]
    mask = np.ones((40, 2), bool)
    mask[:, 1] = False
    return TabularMDP.from_dict(P, np.full(40, 1 / 40), action_mask=mask)


def test_what_packs_models_is_used_once_it_is_loaded_and_from_1500_drawn_outcomes_on(monkeypatch):
    asked = []
    monkeypatch.setattr(packing, "_pack_few", lambda *_: asked.append("python"))
    monkeypatch.setattr(packing, "pack", lambda *_: asked.append("compiled"))
    few, many = (TabularMDP.garnet(states, 5, 3, seed=1) for states in (100, 101))
    sure = TabularMDP.garnet(900, 5, 1, seed=1)
    for signatures in ((), ("one",)):
        monkeypatch.setattr(packing, "_pack", types.SimpleNamespace(signatures=signatures))
        for model in (few, many, sure):
            compile_model(model)
    assert asked == ["python", "compiled", "python", "compiled", "compiled", "python"]


@pytest.mark.parametrize("name", MODELS)
def test_start_slots_hold_the_start_distribution(name):
    model = MODELS[name][0]()
    tables = compile_model(model)
    chances = np.zeros(model.n_states)
    slots = tables.start_threshold.size
    for slot in range(slots):
        first = (int(tables.start_threshold[slot]) + 1) / 2**32
        chances[tables.start_states[2 * slot]] += first / slots
        chances[tables.start_states[2 * slot + 1]] += (1.0 - first) / slots
    assert np.abs(chances - model.start_prob).max() <= 2.0**-31
    assert not chances[model.start_prob == 0.0].any()


@numba.njit
def play(simulation, memory, randoms, states, actions, n_actions, starts, nexts, rewards, ends):
    for i in range(randoms.size):
        starts[i] = begin(simulation, memory, randoms[i])
        nexts[i], rewards[i], ends[i] = advance(
            simulation, memory, states[i], actions[i], randoms[i], n_actions
        )


def played(simulator, randoms, states, actions):
    n = randoms.size
    out = (np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(n), np.zeros(n, bool))
    memory = np.zeros(simulator.memory_size, np.int64)
    # Each game by itself: numba's dispatch takes NamedTuples of the same types for the same.
    playing = jit_for(play, type(simulator.tables))
    playing(simulator.tables, memory, randoms, states, actions, simulator.n_actions, *out)
    return out


@pytest.mark.slow
@pytest.mark.parametrize("name", ["padded", "ragged"])
def test_the_kernel_reads_the_slots_as_documented(name):
    model = MODELS[name][0]()
    simulator = CompiledSimulator.from_model(model)
    rng = np.random.default_rng(7)
    randoms = rng.integers(2**64, size=3000, dtype=np.uint64)
    states, actions = rng.integers(30, size=3000), rng.integers(3, size=3000)
    starts, nexts, rewards, ends = played(simulator, randoms, states, actions)
    slow = SlowModel(simulator.tables, 3)
    for i in range(3000):
        assert starts[i] == slow.begin(int(randoms[i]))
        assert (nexts[i], rewards[i], ends[i]) == slow.advance(
            int(states[i]), int(actions[i]), int(randoms[i])
        )


@pytest.mark.parametrize("name", ["padded", "ragged"])
def test_outcomes_come_as_often_as_they_should(name):
    model = MODELS[name][0]()
    simulator = CompiledSimulator.from_model(model)
    pair = int(np.argmax(np.diff(model.outcome_ptr)))
    n = 200_000
    randoms = np.array([splitmix(i) for i in range(n)], np.uint64)
    _, nexts, rewards, _ = played(simulator, randoms, np.full(n, pair // 3), np.full(n, pair % 3))
    low, high = model.outcome_ptr[pair], model.outcome_ptr[pair + 1]
    for i in range(low, high):
        chance = model.outcome_prob[i]
        count = np.count_nonzero((rewards == model.outcome_reward[i]) & (nexts == model.outcome_next[i]))
        assert abs(count - n * chance) <= 5.0 * np.sqrt(n * chance) + 5.0


def test_a_model_with_too_many_states_is_refused():
    class Huge:
        n_states = 2**30

    with pytest.raises(ModelError, match="at most 1073741823 states, got 1073741824"):
        compile_model(Huge())


# Games


class WalkData(NamedTuple):
    """A walk of some length: action 1 goes on, action 0 back to the start; the end pays."""

    length: int
    prize: np.ndarray


@numba.njit
def walk_reset(data, memory, random):
    memory[0] += 1  # episodes begun
    return 0


@numba.njit
def walk_step(data, memory, state, action, random):
    if action == 0:
        return 0, 0.0, False
    if state + 1 == data.length:
        return state, data.prize[0], True
    return state + 1, 0.0, False


@numba.njit
def other_step(data, memory, state, action, random):
    return 0, 0.0, True


@numba.njit
def another_step(data, memory, state, action, random):
    return walk_step(data, memory, state, action, random)


def walk(**more):
    arguments = dict(
        name="walk", n_states=5, n_actions=2, data=WalkData(5, np.array([10.0])),
        reset=walk_reset, step=walk_step, memory_size=1,
    )  # fmt: skip
    return CompiledSimulator.game(**{**arguments, **more})


@numba.njit
def slips():
    return np.random.random() < 0.5  # noqa: NPY002


@numba.njit
def slipping_step(data, memory, state, action, random):
    return state if slips() else np.int64(0), 0.0, False


@numba.njit
def python_step(data, memory, state, action, random):
    return np.int64(python_random.randint(0, 2)), 0.0, False


@numba.njit
def seeding_step(data, memory, state, action, random):
    np.random.seed(random & 0xFFFFFFFF)  # noqa: NPY002
    return np.int64(np.random.randint(3)), 0.0, False  # noqa: NPY002


@numba.njit
def python_seeding_step(data, memory, state, action, random):
    python_random.seed(random & 0xFFFFFFFF)
    return np.int64(python_random.randint(0, 2)), 0.0, False


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (slipping_step, "np.random.random"),
        (python_step, "python_random.randint"),
        (seeding_step, None),
        (python_seeding_step, None),
        (walk_step, None),
    ],
)
def test_a_game_that_draws_by_what_no_seed_reaches_is_told(function, told, caplog):
    CompiledSimulator.game("slippery", 3, 2, walk().tables, walk_reset, function)
    assert caplog.text.count("two runs with the same seed differ") == (told is not None)
    assert told is None or f"slippery: its functions draw by {told}" in caplog.text


def test_kernels_for_a_users_game_have_files_of_their_own():
    assert jit_for(learn_steps, ModelTables, QLearning) is learn_steps
    assert learn_steps.stats.cache_path is not None
    own = jit_for(learn_steps, type(walk().tables), QLearning)
    assert own is not learn_steps and ".of-" in own._cache._cache_file._index_name
    assert jit_for(learn_steps, type(walk().tables), QLearning) is own  # all learners of a process share it
    # What a class of somebody else's does nobody knows: it is compiled in each process.
    assert jit_for(learn_steps, WalkData, QLearning).stats.cache_path is None


@pytest.mark.slow
def test_a_users_game_is_learned():
    learner = learner_of(
        walk(max_episode_steps=50), Settings(learning_rate=0.5, discount_factor=0.9, epsilon=0.3)
    )

    def episodes_begun():
        return learner.state(0)["position"][2]

    assert episodes_begun() == 0  # compiling plays nothing
    learner.learn(0, Stream(np.uint64(1), 0), 20_000)
    values = learner.table.q.reshape(5, 2)
    ahead = 10.0 * 0.9 ** np.arange(4, -1, -1)
    assert values[:, 1] == pytest.approx(ahead, abs=1e-9)
    assert values[:, 0] == pytest.approx(np.full(5, 0.9 * ahead[0]), abs=1e-9)
    assert episodes_begun() == learner.totals.values[0] + 1


@pytest.mark.slow
def test_a_games_mask_is_followed():
    legal = np.array([[False, True]] * 5)
    learner = learner_of(walk(legal=legal.tolist()), Settings(learning_rate=0.5, epsilon=1.0))
    learner.learn(0, Stream(np.uint64(1), 0), 100)
    assert learner.totals.take()[:3].tolist() == [20.0, 200.0, 100.0]
    assert not learner.table.updates.reshape(5, 2)[:, 0].any()


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["q_learning", "td"])
def test_a_game_that_goes_on_where_nothing_is_legal_is_refused(algorithm):
    legal = [[False, True]] * 4 + [[False, False]]  # the walk ends with a step from there
    learner = learner_of(walk(legal=legal), Settings(learning_rate=0.5, algorithm=algorithm))
    learner.learn(0, Stream(np.uint64(1), 0), 4)
    with pytest.raises(ActionMaskError, match="came to state 4, where its mask forbids every action"):
        learner.learn(0, Stream(np.uint64(1), 4), 1)


class Allocating(NamedTuple):
    prizes: np.ndarray


@numba.njit
def allocating_reset(data, memory, random):
    return np.argmin(np.array([1, 0, 1]))


@numba.njit
def allocating_step(data, memory, state, action, random):
    prizes = 2.0 * data.prizes
    return 0, prizes[action], True


@pytest.mark.slow
def test_a_game_may_make_arrays():
    game = CompiledSimulator.game(
        "allocating", 2, 2, Allocating(np.array([1.0, 3.0])), allocating_reset, allocating_step
    )
    learner = learner_of(game, Settings(learning_rate=1.0, epsilon=1.0))
    learner.learn(0, Stream(np.uint64(1), 0), 100)
    assert learner.table.q.tolist() == [0.0, 0.0, 2.0, 6.0]
    agent = AgentState(Settings())
    agent.set_values([[0.0, 1.0]] * 2)
    assert evaluate(game, agent, 3, 0, 9).returns.tolist() == [6.0] * 3


@pytest.mark.slow
def test_a_function_that_was_written_anew_makes_another_game_of_the_same_class():
    """In a notebook a cell is run again, and each time its functions are new ones."""
    first, shorter = walk(), walk(data=WalkData(3, np.zeros(1)))
    written_again = walk(step=numba.njit(walk_step.py_func))  # and does the same
    assert type(first.tables) is type(shorter.tables) is type(written_again.tables) is not WalkData
    other, again = walk(step=other_step), walk(step=other_step)
    assert type(other.tables) is type(again.tables) is not type(first.tables)
    assert isinstance(other.tables, WalkData) and other.tables == first.tables
    for game, steps in ((first, 5.0), (other, 1.0), (walk(), 5.0)):  # each plays its own, also afterwards
        agent = AgentState(Settings())
        agent.set_values([[0.0, 1.0]] * 5)
        assert evaluate(game, agent, 3, 0, 9).lengths.tolist() == [steps] * 3


def test_games_that_cannot_run_are_refused():
    with pytest.raises(ModelError, match="step must be compiled with numba.njit"):
        walk(step=lambda data, memory, state, action, random: (0, 0.0, True))
    with pytest.raises(ModelError, match="reset must be compiled with numba.njit"):
        walk(reset=walk_reset.py_func)
    for data in ((5, 1.0), {"length": 5}, None):
        with pytest.raises(ModelError, match="data must be a NamedTuple"):
            walk(data=data)
    for name, bad in (("n_states", 0), ("n_actions", 2.0), ("memory_size", -1), ("max_episode_steps", "5")):
        with pytest.raises(SettingsError, match=f"{name} must be a whole number"):
            walk(**{name: bad})
    with pytest.raises(SettingsError, match="check must be True or False"):
        walk(check=1)
    with pytest.raises(SettingsError, match="model must be the TabularMDP of the same process, got int"):
        walk(model=3)
    with pytest.raises(ActionMaskError, match=r"legal has shape \(2, 5\), it must be .* \(5, 2\)"):
        walk(legal=np.ones((2, 5), bool))
    with pytest.raises(ModelError, match="legal is no array"):
        walk(legal=[[1, 0], [1]])
    for wrong in (np.full((5, 2), 7.5), [["a", "b"]] * 5):
        with pytest.raises(ActionMaskError, match="legal holds something other than True and False"):
            walk(legal=wrong)


def test_fingerprints_tell_processes_apart():
    assert walk().fingerprint == walk().fingerprint
    assert walk().fingerprint != walk(max_episode_steps=7).fingerprint
    assert (
        CompiledSimulator.from_model(MODELS["padded"][0]()).fingerprint == MODELS["padded"][0]().fingerprint()
    )
    # Ranks whose games differ in their data or in their mask must be told so.
    assert walk().fingerprint != walk(data=WalkData(5, np.array([11.0]))).fingerprint
    assert walk().fingerprint != walk(legal=[[False, True]] * 5).fingerprint
    # And in what their functions do.
    assert walk().fingerprint != walk(step=another_step).fingerprint
