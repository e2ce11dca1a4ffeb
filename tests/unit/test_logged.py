"""Learning from logged transitions, and estimates of what policies are worth by them."""

import sys
from collections import namedtuple
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest

from dist_classicrl import DistAsyncQLearning, TabularMDP
from dist_classicrl._random import mixed, unmixed
from dist_classicrl.data import (
    Coverage,
    Transitions,
    estimate_action_values,
    estimate_value,
    play_episodes,
)
from dist_classicrl.data.empirical import empirical_model
from dist_classicrl.errors import (
    DataError,
    EnvMismatchError,
    MissingExtraError,
    NotTrainedError,
    RewardError,
    SettingsError,
)
from dist_classicrl.learning.logged import LoggedLearner
from dist_classicrl.learning.rules import truths
from dist_classicrl.rules import TD
from dist_classicrl.schedules import Exponential, Linear
from dist_classicrl.settings import Settings
from dist_classicrl.tables.shape import TableShape

pytestmark = pytest.mark.slow

DISCOUNT = 0.9
MODEL = TabularMDP.garnet(12, 3, 2, seed=4, terminal_states=2, termination_probability=0.1)
EVEN = np.full((12, 3), 1 / 3)

#: The policy that is asked about, and the one that plays.
ASKED = np.random.default_rng(2).dirichlet(np.full(3, 3.0), size=12)
PLAYS = 0.5 * ASKED + 0.5 * EVEN


def played(model, policy, episodes, seed, limit=200):
    """Play episodes in plain NumPy; return one array of each kind."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(episodes):
        s = rng.choice(model.n_states, p=model.start_prob)
        for t in range(limit):
            a = rng.choice(model.n_actions, p=policy[s])
            pair = s * model.n_actions + a
            first, last = model.outcome_ptr[pair : pair + 2]
            o = first + rng.choice(last - first, p=model.outcome_prob[first:last])
            follow, end = model.outcome_next[o], model.outcome_terminated[o]
            rows.append((s, a, model.outcome_reward[o], follow, end, not end and t == limit - 1))
            s = follow
            if end:
                break
    names = ("states", "actions", "rewards", "next_states", "terminated", "truncated")
    return {name: np.array(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}


LOGGED = played(MODEL, EVEN, 60, 1, limit=20)


def test_episodes_are_played_as_the_model_and_the_policy_say():
    """Pairs as often as the policy takes them, and outcomes as often as the model has them."""
    policy = np.random.default_rng(0).dirichlet(np.ones(3), size=12)
    data = play_episodes(MODEL, policy, 20_000, seed=3, max_steps=50)
    assert data.starts.size == 20_000
    begun = np.bincount(data.states[data.starts], minlength=12) / 20_000
    np.testing.assert_allclose(begun, MODEL.start_prob, atol=0.015)
    for state in np.flatnonzero(np.bincount(data.states, minlength=12) > 5_000):
        of_state = data.states == state
        taken = np.bincount(data.actions[of_state], minlength=3) / of_state.sum()
        np.testing.assert_allclose(taken, policy[state], atol=0.03)
    for pair in range(36):
        of_pair = data.states * 3 + data.actions == pair
        here = slice(*MODEL.outcome_ptr[pair : pair + 2])
        known = np.stack(
            [MODEL.outcome_next[here], MODEL.outcome_reward[here], MODEL.outcome_terminated[here]]
        )
        known, alike = np.unique(known, axis=1, return_inverse=True)
        chances = np.bincount(alike.ravel(), weights=MODEL.outcome_prob[here])
        met = np.stack([data.next_states[of_pair], data.rewards[of_pair], data.terminated[of_pair]])
        found = np.array([(met == outcome[:, None]).all(axis=0).sum() for outcome in known.T])
        assert found.sum() == of_pair.sum()
        if of_pair.sum() > 5_000:
            np.testing.assert_allclose(found / of_pair.sum(), chances, atol=0.03)
    lengths = np.diff(np.append(data.starts, len(data)))
    ends = np.append(data.starts[1:], len(data)) - 1
    assert lengths.max() == 50 and (data.truncated[ends] == ((lengths == 50) & ~data.terminated[ends])).all()
    again = play_episodes(MODEL, policy, 20_000, seed=3, max_steps=50)
    assert again.fingerprint() == data.fingerprint()
    assert play_episodes(MODEL, policy, 20_000, seed=4, max_steps=50).fingerprint() != data.fingerprint()


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"model": "FrozenLake-v1"}, "play_episodes takes a TabularMDP, got str. Write for instance"),
        ({"policy": np.ones((12, 3))}, "the policy's probabilities in state"),
        ({"episodes": 0}, "episodes must be"),
        ({"seed": -1}, "seed must be"),
        ({"max_steps": 0}, "max_steps must be"),
    ],
)
def test_what_cannot_be_played_is_refused(changed, match):
    with pytest.raises(SettingsError, match=match):
        play_episodes(**({"model": MODEL, "policy": EVEN, "episodes": 2, "seed": 1} | changed))


def solved_by_hand(data, discount, n_states, n_actions, sweeps=400):
    """Average the targets of each pair again and again; a state without data is worth 0."""
    q, seen = {}, {}
    steps = list(zip(*(data[name].tolist() for name in data), strict=True))
    for s, a, *_ in steps:
        seen.setdefault(s, set()).add(a)
        q[s, a] = 0.0
    for _ in range(sweeps):
        targets = {}
        for s, a, r, t, end, _ in steps:
            best = max((q[t, b] for b in seen.get(t, ())), default=0.0)
            targets.setdefault((s, a), []).append(r + (0.0 if end else discount * best))
        q = {pair: sum(each) / len(each) for pair, each in targets.items()}
    table = np.zeros((n_states, n_actions))
    for pair, value in q.items():
        table[pair] = value
    return table


@pytest.fixture(scope="module")
def truth():
    table = solved_by_hand(LOGGED, DISCOUNT, 12, 3)
    seen = np.zeros((12, 3), bool)
    seen[LOGGED["states"], LOGGED["actions"]] = True
    assert not seen.all() and (table[~seen] == 0).all()
    return table


def test_sweeps_give_the_solution_of_the_empirical_model(truth):
    agent = DistAsyncQLearning(seed=1, discount_factor=DISCOUNT, state_size=12, action_size=3)
    agent.q_table[~(truth != 0)] = 77.0  # what is not in the data is left as it is, and plays no part
    result = agent.learn(LOGGED, method="sweeps")
    seen = agent.visits > 0
    np.testing.assert_allclose(agent.q_table[seen], truth[seen], atol=1e-8)
    assert (agent.q_table[~seen] == 77.0).all()
    assert agent.visits.sum() == len(LOGGED["states"]) == result.coverage.transitions
    assert result.updates == 0 and agent.steps == 0
    doubled = DistAsyncQLearning(
        discount_factor=DISCOUNT, algorithm="double_q_learning", state_size=12, action_size=3
    )
    doubled.learn(LOGGED, method="sweeps")
    np.testing.assert_allclose(doubled.q_table[seen], truth[seen], atol=1e-8)


@pytest.mark.parametrize("algorithm", ["q_learning", "double_q_learning"])
def test_increments_come_to_the_same_within_a_hundredth(truth, algorithm):
    rule = {"algorithm": algorithm, "discount_factor": DISCOUNT}
    agents = [DistAsyncQLearning(seed=seed, **rule) for seed in (1, 1, 2)]
    for agent in agents:
        result = agent.learn(Transitions(**LOGGED), epochs=1_500)
    scale = np.abs(truth).max()
    for agent in agents:
        seen = agent.visits > 0
        shape = agent.q_table.shape
        assert np.abs(agent.q_table - truth[: shape[0], : shape[1]])[seen].max() < 0.01 * scale
        assert agent.visits.sum() == 1_500 * len(LOGGED["states"]) == result.updates
    np.testing.assert_array_equal(agents[0].q_table, agents[1].q_table)
    assert (agents[0].q_table != agents[2].q_table).any()
    assert agents[0].predict(int(LOGGED["states"][0])) == truth[LOGGED["states"][0]].argmax()


def test_ranks_divide_an_epoch_and_shuffle_the_next_one_anew():
    data, shape = Transitions(**LOGGED), TableShape(12, 3)
    of = [LoggedLearner(data, Settings(), shape, 0, (5, 0), rank, 3) for rank in range(3)]
    shares = [[learner.share_of(epoch) for learner in of] for epoch in (0, 1)]
    for epoch in shares:
        np.testing.assert_array_equal(np.sort(np.concatenate(epoch)), np.arange(len(data)))
    assert (shares[0][0] != shares[1][0]).any()


ONE_PAIR = {
    "states": np.zeros(300, int),
    "actions": np.zeros(300, int),
    "rewards": np.random.default_rng(0).normal(size=300),
    "next_states": np.ones(300, int),
    "terminated": np.ones(300, bool),
}


def moved(sizes, visits, seed=1):
    """Move a value towards the rewards of `ONE_PAIR`, which agents shuffle so, by these step sizes."""
    value, sizes = 0.0, iter(sizes)
    for epoch in range(4):
        for i in np.random.default_rng([seed, visits, epoch]).permutation(300):
            value += next(sizes) * (ONE_PAIR["rewards"][i] - value)
    return value


def test_a_learning_rate_goes_on_with_the_transitions():
    steps = np.arange(1200)
    falls, share = Linear(1.0, 0.001, steps=1000), Exponential(1.0, 0.001, fraction=0.5)
    for rate, sizes in (
        (falls, np.maximum(1.0 - 0.999 * steps / 1000, 0.001)),
        (share, np.maximum(0.001 ** (steps / 600), 0.001)),
    ):
        agent = DistAsyncQLearning(learning_rate=rate, seed=1, state_size=2, action_size=1)
        agent.learn(ONE_PAIR, epochs=4)
        assert agent.q_table[0, 0] == pytest.approx(moved(sizes, 0), rel=1e-3)
        assert agent.steps == 0 and agent.settings.learning_rate == rate


def test_a_learning_rate_goes_on_where_train_ended():
    loop = TabularMDP.from_dict([{0: [(1.0, s, 0.0, False)]} for s in range(2)], [0.0, 1.0])
    for rate, sizes in (
        (Linear(1.0, 0.1, steps=2_000), 1.0 - 0.9 * np.arange(400, 1600) / 2_000),
        (Linear(1.0, 0.5, fraction=0.5), np.full(1200, 0.5)),
    ):
        agent = DistAsyncQLearning(learning_rate=rate, seed=1)
        agent.train(loop, total_steps=400)
        agent.learn(ONE_PAIR, epochs=4)
        assert agent.q_table[0, 0] == pytest.approx(moved(sizes, 400), rel=1e-12)


def test_ranks_have_the_step_sizes_of_their_transitions(monkeypatch):
    data, shape = Transitions(**LOGGED), TableShape(12, 3)
    falls = Linear(0.5, 0.1, steps=4 * len(data))
    of = [LoggedLearner(data, Settings(learning_rate=falls), shape, 7, (5, 0), rank, 3) for rank in range(3)]
    sizes = np.full(len(data), np.nan)
    for rank, learner in enumerate(of):
        found = []
        monkeypatch.setattr(learner, "_learn", lambda rule, logged, *rest: found.append(logged.step_sizes))  # noqa: B023
        for part in range(4):
            learner.learn(1, part, 4)
        sizes[rank::3] = np.concatenate(found)
    first = 7 + len(data)
    assert sizes == pytest.approx([falls.at(first + i) for i in range(len(data))], rel=1e-12)
    assert of[0].merges(0) > of[0].merges(3) > of[0].merges(9)


STEPS = [(0, 1, 1.0, 1, False), (1, 0, -1.0, 0, False), (0, 0, 2.0, 1, True)]
ARRAYS = {
    "states": [0, 1, 0],
    "actions": [1, 0, 0],
    "rewards": [1.0, -1.0, 2.0],
    "next_states": [1, 0, 1],
    "terminated": [False, False, True],
}
Given = namedtuple("Given", ARRAYS)
EPISODE = SimpleNamespace(
    observations=np.array([0, 1, 0, 1]),
    actions=np.array([1, 0, 0]),
    rewards=np.array([1.0, -1.0, 2.0]),
    terminations=np.array([False, False, True]),
    truncations=np.zeros(3, bool),
)


@pytest.mark.parametrize(
    "given",
    [
        ARRAYS,
        Given(**ARRAYS),
        [STEPS],
        [STEPS[:2], STEPS[2:]],
        [ARRAYS],
        [EPISODE],
        SimpleNamespace(iterate_episodes=lambda: [EPISODE]),
    ],
    ids=[
        "dict",
        "NamedTuple",
        "steps",
        "two episodes",
        "episode of arrays",
        "Minari's episode",
        "Minari's data set",
    ],
)
def test_transitions_are_read_from_all_that_holds_them(given, tmp_path):
    data = Transitions.of(given)
    for name, values in ARRAYS.items():
        assert getattr(data, name).tolist() == values
    parts = 2 if isinstance(given, list) and len(given) == 2 else 1
    assert data.starts.tolist() == [0, 2][:parts] and data.truncated.sum() == parts - 1
    saved = Transitions.of(data.save(tmp_path / "logged.npz"))
    with pytest.raises(
        SettingsError, match=r"save writes a file, and .* is a folder. Write save\('.*transitions.npz'"
    ):
        data.save(tmp_path)
    assert saved.fingerprint() == data.fingerprint()


def test_an_episode_ends_where_the_next_transition_is_elsewhere():
    data = Transitions(
        [0, 1, 0, 2, 3], [0] * 5, [0.0] * 5, [1, 2, 1, 3, 0], [False, False, True, False, False]
    )
    assert data.starts.tolist() == [0, 2, 3] and (data.n_states, data.n_actions) == (4, 1)
    found = Coverage.of(data, 6, 2)
    assert (found.states_seen, found.pairs_seen, found.states_without_actions) == (4, 4, 0)
    assert (found.fewest, found.median, found.most, found.episodes) == (1, 1, 2, 3)
    assert "4 of 12 pairs" in repr(found) and found.to_dict()["transitions"] == 5


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        (
            {**ARRAYS, "rewards": np.ma.array([1.0, 0.0, 2.0], mask=[0, 1, 0])},
            DataError,
            "rewards is a masked array that hides 1 of its numbers",
        ),
        ({**ARRAYS, "rewards": [1.0, np.nan, 2.0]}, RewardError, "reward of transition 1 is nan"),
        ({**ARRAYS, "actions": [1, 0]}, DataError, "lengths: states 3, actions 2"),
        ({**ARRAYS, "states": [0, -1, 0]}, DataError, "states has -1 at transition 1"),
        ({**ARRAYS, "states": [0.0, 1.0, 0.0]}, DataError, "states has shape .3,. and dtype float64"),
        ({**ARRAYS, "terminated": [0, 0, 1]}, DataError, "terminated has .* it must be bool"),
        ({**ARRAYS, "states": [[0], [1, 2], 0]}, DataError, "states has shape .. and dtype object"),
        ({**ARRAYS, "terminated": [[False], [False, True], 0]}, DataError, "terminated has .* must be bool"),
        ({**ARRAYS, "states": [0, 2**40, 0]}, DataError, "learn.. needs one of which each rank has a copy"),
        ({**ARRAYS, "dones": [0]}, DataError, "have dones"),
        ({"states": [0]}, DataError, "lack actions, rewards, next_states, terminated"),
        ({name: [] for name in ARRAYS}, DataError, "at least 1"),
        ([], DataError, "no episodes"),
        ([STEPS, [(0, 1)]], DataError, "episode 1 cannot be read"),
        ([{"states": [0]}], DataError, "lack .* terminated[.] Give a((?!Give).)*$"),
        ([STEPS, [(0, 1, np.inf, 0, False)]], RewardError, "episode 1: the reward of transition 0 is inf"),
        (np.array(3), DataError, "transitions are ndarray. Give a dict"),
        (1_000_000, DataError, r"transitions are int.*train\(env"),
        ([SimpleNamespace(**{**vars(EPISODE), "observations": np.zeros((4, 2))})], DataError, "observations"),
    ],
)  # fmt: skip
def test_what_cannot_be_learned_is_named(given, error, words):
    agent = DistAsyncQLearning()
    with pytest.raises(error, match=words):
        agent.learn(given)
    assert not agent._state.has_table


def test_foreign_files_and_missing_packages_are_named(tmp_path, monkeypatch):
    agent = DistAsyncQLearning(state_size=2, action_size=1)
    foreign = tmp_path / "foreign.npz"
    np.savez(foreign, q_table=np.zeros(3))
    with pytest.raises(DataError, match="foreign.npz: the transitions lack states.* and have q_table"):
        agent.learn(foreign)
    (tmp_path / "text.npz").write_text("no archive")
    for name in ("text.npz", "nothing.npz"):
        with pytest.raises(DataError, match=f"{name} is no .npz file of transitions"):
            agent.learn(tmp_path / name)
    with pytest.raises(DataError, match="actions has 1 at transition 0; there are 1 of them"):
        agent.learn(ARRAYS)
    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(MissingExtraError, match="minari, which is an extra"):
        agent.learn("minari:toy/random-v0")
    for more, words in (
        (dict(method="batch"), "method is 'batch'; it must be one of 'incremental', 'sweeps'"),
        (dict(method=np.array(["sweeps", "incremental"])), r"method is array\("),
        (dict(epochs=0), "epochs"),
    ):
        with pytest.raises(SettingsError, match=words):
            agent.learn(ARRAYS, **more)


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"algorithm": "n_step_sarsa"}, "'n_step_sarsa': it learns from several steps in a row.*'sarsa' and"),
        ({"algorithm": TD(n=2)}, "'td': it learns from several steps in a row"),
        ({"algorithm": "dyna_q"}, "'dyna_q': it learns a model of its own"),
        ({"algorithm": "differential_q_learning"}, "what never ends, and a log ends"),
        ({"algorithm": "ucb_q_learning"}, "in a log nothing can be"),
        (
            {"algorithm": "expected_sarsa", "behavior": "ucb"},
            "behavior='ucb' depends on workers or on visits",
        ),
        (
            {"algorithm": "expected_sarsa", "behavior": EVEN},
            r"has the shape \(12, 3\), and the table \(2, 2\)",
        ),
    ],
)
def test_rules_that_cannot_learn_from_a_log_say_why(settings, words):
    with pytest.raises(SettingsError, match=words):
        DistAsyncQLearning(**settings).learn(ARRAYS)


def test_sweeps_are_for_what_the_best_actions_are_worth():
    with pytest.raises(SettingsError, match="'sarsa' does not learn. Write method='incremental'"):
        DistAsyncQLearning(algorithm="sarsa").learn(ARRAYS, method="sweeps")


def averaged(key_of, next_of, sweeps=300):
    """Average r + gamma V of what comes next, again and again, over the transitions of each key."""
    values = {}
    names = ("states", "actions", "rewards", "next_states", "terminated")
    steps = list(zip(*(LOGGED[name].tolist() for name in names), strict=True))
    for _ in range(sweeps):
        targets = {}
        for i, (s, a, r, t, end) in enumerate(steps):
            after = 0.0 if end else next_of(i, t, values)
            if after is not None:
                targets.setdefault(key_of(s, a), []).append(r + DISCOUNT * after)
        values = {key: sum(each) / len(each) for key, each in targets.items()}
    return values


def of_policy(i, t, values):
    """Return what the policy that is asked about is worth among the actions that were taken."""
    known = {a: values[t, a] for a in range(3) if (t, a) in values}
    weights = sum(ASKED[t, a] for a in known)
    return sum(ASKED[t, a] * value for a, value in known.items()) / weights if known else 0.0


def of_next_action(i, t, values):
    """Return the value of the action that was chosen next; None where an episode was cut off."""
    if i + 1 == len(LOGGED["states"]) or LOGGED["truncated"][i]:
        return None
    return values.get((t, LOGGED["actions"][i + 1]), 0.0)


@pytest.mark.parametrize(
    "settings, key_of, next_of",
    [
        ({"algorithm": "expected_sarsa", "behavior": "asked"}, lambda s, a: (s, a), of_policy),
        ({"algorithm": "sarsa"}, lambda s, a: (s, a), of_next_action),
        ({"algorithm": "td"}, lambda s, a: s, lambda i, t, values: values.get(t, 0.0)),
    ],
    ids=["expected_sarsa", "sarsa", "td"],
)
def test_values_of_a_policy_come_to_the_averages_within_a_hundredth(settings, key_of, next_of):
    if "behavior" in settings:
        settings = {**settings, "behavior": ASKED}
    agent = DistAsyncQLearning(seed=1, discount_factor=DISCOUNT, state_size=12, action_size=3, **settings)
    agent.learn(LOGGED, epochs=1_500)
    expected = averaged(key_of, next_of)
    scale = max(map(abs, expected.values()))
    seen = set(zip(LOGGED["states"].tolist(), LOGGED["actions"].tolist(), strict=True))
    for s, a in seen:
        if key_of(s, a) in expected:
            assert abs(agent.q_table[s, a] - expected[key_of(s, a)]) < 0.01 * scale, (s, a)
    assert len(expected) >= 10


def test_draws_of_two_epochs_are_complements():
    """So each of two tables learns all transitions once; `unmixed` is the inverse of `mix`."""
    bits = np.random.default_rng(1).integers(0, 2**64, 1_000, np.uint64, endpoint=False)
    np.testing.assert_array_equal(mixed(unmixed(bits)), bits)
    agent = DistAsyncQLearning(seed=1, algorithm="double_q_learning")
    agent.learn(LOGGED, epochs=4)
    first, second = agent._state.shape.tables(agent._state.counts)
    np.testing.assert_array_equal(first, second)
    agent.learn(LOGGED, epochs=1)
    first, second = agent._state.shape.tables(agent._state.counts)
    assert (first != second).any()


@pytest.fixture(scope="module")
def samples():
    """Many samples of 150 short episodes each."""
    ends = TabularMDP.garnet(12, 3, 2, seed=4, termination_probability=0.4)
    return ends, [played(ends, PLAYS, 150, seed) for seed in range(120)]


@pytest.mark.parametrize("method", ["ordinary", "weighted", "per_decision", "model"])
@pytest.mark.parametrize("behavior", [PLAYS, None], ids=["told", "counted"])
def test_estimates_are_right_and_their_intervals_cover_the_truth(samples, method, behavior):
    model, data = samples
    value = model.start_value(model.policy_value(ASKED, DISCOUNT))
    found = [estimate_value(each, ASKED, DISCOUNT, method, behavior) for each in data]
    covered = np.mean([each.low <= value <= each.high for each in found])
    assert 0.89 <= covered  # 120 intervals of 95 %: within three standard errors of 0.02
    errors = np.array([each.value - value for each in found])
    assert abs(errors.mean()) < 4 * errors.std() / np.sqrt(errors.size) + 0.02 * abs(value)
    spread = np.mean([each.standard_error for each in found]) / errors.std()
    assert 0.8 < spread < 1.25
    assert found[0].episodes == 150 and 20 < found[0].effective_episodes <= 150.0001


def test_estimates_of_a_few_episodes_by_hand():
    # Behavior: even. The policy takes action 1 first, then 0: only the second episode is its own.
    episodes = [
        [(0, 0, 1.0, 1, False), (1, 0, 4.0, 1, True)],
        [(0, 1, 2.0, 1, False), (1, 0, 8.0, 1, True)],
        [(0, 1, 3.0, 1, True)],
    ]
    even, policy = np.full((2, 2), 0.5), np.array([1, 0])
    value = {
        m: estimate_value(episodes, policy, 0.5, m, even).value
        for m in ("ordinary", "weighted", "per_decision")
    }
    assert value["ordinary"] == pytest.approx((4 * 6 + 2 * 3) / 3)
    assert value["weighted"] == pytest.approx((4 * 6 + 2 * 3) / 6)
    assert value["per_decision"] == pytest.approx((2 * 2 + 0.5 * 4 * 8 + 2 * 3) / 3)
    by_model = estimate_value(episodes, policy, 0.5, "model").value
    assert by_model == pytest.approx(0.5 * (2 + 3) + 0.5 * 0.5 * 6)


def off_policy_by_the_book(data, discount, behavior):
    """Weighted importance sampling of pairs, Sutton and Barto (2018), page 110, step by step."""
    q, c = np.full((12, 3), np.nan), np.zeros((12, 3))
    starts = [*data.starts, len(data)]
    for first, end in zip(starts, starts[1:], strict=False):
        g, w = 0.0, 1.0
        for t in range(end - 1, first - 1, -1):
            s, a = data.states[t], data.actions[t]
            g = discount * g + data.rewards[t]
            c[s, a] += w
            if w > 0.0:
                q[s, a] = w / c[s, a] * g + (1.0 - w / c[s, a]) * (q[s, a] if c[s, a] > w else 0.0)
            w *= ASKED[s, a] / behavior[s, a]
    return q


def test_what_pairs_are_worth_is_the_books_estimate_and_comes_to_the_truth(samples):
    model, data = samples
    few = Transitions.of(data[0])
    expected = off_policy_by_the_book(few, DISCOUNT, PLAYS)
    found = estimate_action_values(few, ASKED, DISCOUNT, behavior=PLAYS)
    np.testing.assert_allclose(found.q, expected, rtol=1e-12)
    assert (found.visits == 0).tolist() == np.isnan(expected).tolist() and "weighted" in repr(found)
    many = play_episodes(model, PLAYS, 60_000, seed=1)
    v = model.policy_value(ASKED, DISCOUNT)
    truth = truths.backed_up(model, v, DISCOUNT)
    for method in ("weighted", "ordinary", "per_decision"):
        for behavior in (PLAYS, None):
            found = estimate_action_values(many, ASKED, DISCOUNT, method, behavior)
            error = np.sqrt(((found.q - truth) ** 2).mean())
            assert error < 0.04, (method, behavior is None)  # what played has pairs worth 0.08 more or less
            assert (found.effective_visits <= found.visits + 1e-6).all()


def test_what_pairs_are_worth_by_hand_and_where_nothing_tells():
    even, policy = np.full((2, 2), 0.5), np.array([1, 0])
    episodes = [[(0, 0, 1.0, 1, False), (1, 1, 4.0, 1, True)], [(0, 0, 2.0, 1, False), (1, 0, 8.0, 1, True)]]
    q = {
        m: estimate_action_values(episodes, policy, 0.5, m, even).q
        for m in ("weighted", "ordinary", "per_decision")
    }
    assert q["weighted"] == pytest.approx(np.array([[6.0, np.nan], [8.0, 4.0]]), nan_ok=True)
    assert q["ordinary"] == pytest.approx(np.array([[(0 * 3 + 2 * 6) / 2, np.nan], [8.0, 4.0]]), nan_ok=True)
    assert q["per_decision"][0, 0] == pytest.approx((1.0 + 2.0 + 2 * 0.5 * 8.0) / 2)
    never = estimate_action_values(episodes[:1], policy, 0.5, behavior=even)
    assert np.isnan(never.q[0, 0]) and never.visits[0, 0] == 1 and never.effective_visits[0, 0] == 0.0


def test_weights_beyond_all_numbers_are_refused():
    long = [[(0, 0, 1.0, 0, t == 1_999) for t in range(2_000)]] * 2
    even, policy = np.full((1, 2), 0.5), np.array([0])
    advice = {estimate_value: "'weighted' or 'model', sh", estimate_action_values: "'weighted', sh"}
    for estimate, others in advice.items():
        for method in ("ordinary", "per_decision"):
            with pytest.raises(DataError, match=f"beyond all numbers; use method={others}"):
                estimate(long, policy, 0.9999, method, even)
        with pytest.raises(SettingsError, match="method is"):
            estimate(long, policy, 0.9, np.array(["a", "b"]), even)


def test_an_interval_of_two_episodes_is_as_wide_as_students_t():
    episodes = [[(0, 0, 1.0, 1, True)], [(0, 0, 0.0, 1, True)]]
    found = estimate_value(episodes, np.array([0, 0]), 0.9, "model", confidence=0.99)
    assert (found.high - found.value) / found.standard_error == pytest.approx(63.65674)


def test_estimates_refuse_what_does_not_tell():
    episodes = [[(0, 0, 1.0, 1, True)], [(0, 0, 0.0, 1, True)]]
    with pytest.raises(DataError, match="action 1 in state 0, which it comes to"):
        estimate_value(episodes, np.array([1, 0]), 0.9, "model")
    for method in ("weighted", "ordinary", "per_decision"):
        with pytest.raises(DataError, match="weights are all 0; use method='model', or"):
            estimate_value(episodes, np.array([1, 0]), 0.9, method)
    longer = [[(0, 0, 1.0, 1, False), (1, 0, 1.0, 1, True)]] * 2
    for method in ("weighted", "ordinary"):
        with pytest.raises(DataError, match="weights are all 0; use method='per_decision' or 'model'"):
            estimate_value(longer, np.array([0, 1]), 0.9, method)
    assert estimate_value(longer, np.array([0, 1]), 0.9, "per_decision").value == 1.0
    with pytest.raises(DataError, match="one episode only"):
        estimate_value(episodes[:1], np.array([0, 0]), 0.9)
    with pytest.raises(DataError, match="probability 0 in behavior"):
        estimate_value(episodes, np.array([0, 0]), 0.9, behavior=np.array([[0.0, 1.0], [0.5, 0.5]]))
    with pytest.raises(SettingsError, match="confidence is 1"):
        estimate_value(episodes, np.array([0, 0]), 0.9, confidence=1)
    for no_policy in (np.zeros(2), [[1.0], [0.5, 0.5]]):
        with pytest.raises(SettingsError, match="policy has shape"):
            estimate_value(episodes, no_policy, 0.9)


def test_the_empirical_model_has_the_shares_that_were_seen():
    model = empirical_model(
        Transitions.of([[(0, 0, 1.0, 1, False), (1, 0, 2.0, 0, True)], [(0, 0, 4.0, 2, False)]]), 3, 2
    )
    assert model.outcome_prob.tolist() == [0.5, 0.5, 1.0] and model.outcome_reward.tolist() == [1.0, 4.0, 2.0]
    assert model.outcome_terminated.tolist() == [False, True, True]  # nothing is known of state 2
    assert model.legal_pairs().tolist() == [[True, False], [True, False], [False, False]]


class Corridor(gymnasium.Env):
    """Eleven cells, 5 to 15, the last of which pays; its two actions are 3, back, and 4."""

    first, back = 5, 3

    def __init__(self):
        self.observation_space = gymnasium.spaces.Discrete(11, start=self.first)
        self.action_space = gymnasium.spaces.Discrete(2, start=self.back)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = self.first
        return self.at, {}

    def step(self, action):
        self.at = max(self.first, self.at + 2 * int(action - self.back) - 1)
        last = self.at == self.first + 10
        return self.at, float(last), last, False, {}


class CorridorBelow(Corridor):
    """Cells -12 to -2; its actions are -1, back, and 0."""

    first, back = -12, -1


def corridor():
    return gymnasium.wrappers.TimeLimit(Corridor(), 20)


def corridor_below():
    return gymnasium.wrappers.TimeLimit(CorridorBelow(), 20)


def logged_in(kind):
    """Return the way from the first cell to the last."""
    cells = np.arange(kind.first, kind.first + 10)
    return {
        "states": cells,
        "actions": np.full(10, kind.back + 1),
        "rewards": (np.arange(10) == 9).astype(float),
        "next_states": cells + 1,
        "terminated": np.arange(10) == 9,
    }


def test_numbers_of_an_environment_that_does_not_count_from_0_are_learned_in_their_rows():
    agent = DistAsyncQLearning(seed=1, discount_factor=0.5)
    agent.train(corridor, total_steps=32)
    agent.q_table[:] = 0.0
    given, cells = logged_in(Corridor), np.arange(5, 15)
    agent.learn(given, method="sweeps")
    np.testing.assert_allclose(agent.q_table[:10, 1], 0.5 ** np.arange(9.0, -1.0, -1.0))
    assert agent.predict(14) == 4 and agent.action_values(13)[1] == 0.5
    with pytest.raises(DataError, match=r"^states: .*Discrete\(11, start=5\): got 0"):
        agent.learn({**given, "states": cells - 5})
    with pytest.raises(DataError, match=r"^actions: .*Discrete\(2, start=3\): got 1"):
        agent.learn({**given, "actions": np.ones(10, int)})


def test_a_state_that_the_policy_never_comes_to_needs_no_value():
    ends = [(0, 0, 1.0, 2, True)]
    wanders = [(0, 1, 0.0, 1, False), (1, 0, -1.0, 1, False), (1, 1, 0.0, 2, True)]
    found = estimate_value([ends, wanders] * 10, np.array([0, 0, 0]), 1.0, method="model")
    assert found.value == pytest.approx(1.0)


@pytest.mark.parametrize("kind, env", [(Corridor, corridor), (CorridorBelow, corridor_below)])
def test_an_environment_that_is_given_says_how_it_counts_before_it_is_trained_in(kind, env):
    agent = DistAsyncQLearning(seed=1, discount_factor=0.5)
    agent.learn(logged_in(kind), method="sweeps", env=env)
    assert agent.q_table.shape == (11, 2)
    np.testing.assert_allclose(agent.q_table[:10, 1], 0.5 ** np.arange(9.0, -1.0, -1.0))
    agent.train(env, total_steps=32)
    assert agent.predict(kind.first + 9) == kind.back + 1


@pytest.mark.parametrize("kind, env", [(Corridor, corridor), (CorridorBelow, corridor_below)])
def test_estimates_of_an_agents_policy_take_the_numbers_of_its_environment(kind, env):
    agent = DistAsyncQLearning(seed=1, discount_factor=0.5)
    agent.learn(logged_in(kind), method="sweeps", env=env)
    steps = list(zip(*logged_in(kind).values(), strict=True))
    for method in ("weighted", "model"):
        found = estimate_value([steps, steps], agent.policy, 0.5, method)
        assert found.value == pytest.approx(0.5**9)
    pairs = estimate_action_values([steps, steps], agent.policy, 0.5)
    assert pairs.q.shape == (11, 2) and pairs.q[:10, 1] == pytest.approx(agent.q_table[:10, 1])
    outside = [(kind.first + 11, kind.back, 0.0, kind.first, True)]
    with pytest.raises(DataError, match="^states: .*lies outside"):
        estimate_value([steps, outside], agent.policy, 0.5)
    if kind is CorridorBelow:
        with pytest.raises(DataError, match=r"states has -12 at transition 0.*estimate_value.*agent.policy"):
            estimate_value([steps, steps], agent.policy.greedy, 0.5)
        with pytest.raises(DataError, match=r"states has -12 at transition 0.*write learn\(..., env="):
            DistAsyncQLearning().learn(logged_in(kind))


def test_what_is_refused_changes_nothing_of_what_the_agent_says():
    agent = DistAsyncQLearning(seed=1, discount_factor=0.5)
    with pytest.raises(DataError, match="^states: "):
        agent.learn(logged_in(Corridor), env=corridor_below)
    with pytest.raises(NotTrainedError):  # nor is there a table
        _ = agent.q_table
    agent.learn(logged_in(Corridor), method="sweeps", env=corridor)
    with pytest.raises(DataError, match="^states: "):
        agent.learn(logged_in(Corridor), env=corridor_below)
    assert agent.predict(14) == 4
    agent.train(corridor, total_steps=32)
    with pytest.raises(EnvMismatchError, match=r"learned in .* for 32 steps, and learn.*leave env out"):
        agent.learn(logged_in(CorridorBelow), env=corridor_below)
    assert agent.predict(14) == 4 and agent.learn(logged_in(Corridor), env=corridor).updates == 100
