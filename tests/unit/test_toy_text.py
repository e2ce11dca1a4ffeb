"""Compiled toy text against Gymnasium itself: outcomes, start states, time limits, and what is refused."""

from collections import Counter

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.toy_text.cliffwalking import CliffWalkingEnv
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv
from gymnasium.envs.toy_text.taxi import TaxiEnv

from dist_classicrl.environments import registry
from dist_classicrl.environments.model import TabularMDP
from dist_classicrl.environments.resolve import known_model
from dist_classicrl.errors import EnvError, RewardError

CHECKERBOARD = ["SFH", "FSF", "HFG", "FFF"]

# Gymnasium draws an outcome by comparing a uniform number with sums of probabilities. Each probability here
# is a multiple of 1 / `divisions`: within each of so many parts of the unit interval the outcome is the same.
CASES = [
    pytest.param(FrozenLakeEnv, dict(map_name="4x4"), 3, id="4x4"),
    pytest.param(FrozenLakeEnv, dict(map_name="8x8"), 3, id="8x8"),
    pytest.param(FrozenLakeEnv, dict(map_name="4x4", is_slippery=False), 1, id="4x4 dry"),
    pytest.param(FrozenLakeEnv, dict(map_name="8x8", is_slippery=False), 1, id="8x8 dry"),
    pytest.param(FrozenLakeEnv, dict(map_name="4x4", success_rate=0.75), 8, id="4x4 0.75"),
    pytest.param(FrozenLakeEnv, dict(map_name="4x4", success_rate=1.0), 1, id="4x4 1.0"),
    pytest.param(FrozenLakeEnv, dict(map_name="4x4", success_rate=0.0), 2, id="4x4 0.0"),
    pytest.param(FrozenLakeEnv, dict(desc=CHECKERBOARD, reward_schedule=(7, -3, -0.25)), 3, id="own map"),
    pytest.param(TaxiEnv, dict(), 1, id="taxi"),
    pytest.param(TaxiEnv, dict(is_rainy=True), 10, id="taxi in the rain"),
    pytest.param(TaxiEnv, dict(is_rainy=True, rainy_probability=0.5), 4, id="taxi 0.5"),
    pytest.param(CliffWalkingEnv, dict(), 1, id="cliff"),
    pytest.param(CliffWalkingEnv, dict(is_slippery=True), 3, id="slippery cliff"),
]


class Uniform:
    """Stands in for the random generator of an environment, and returns the number that it is told."""

    value = 0.0

    def random(self):
        return self.value


def driven_outcomes(env, s, a, divisions):
    """Step Gymnasium's environment from state `s` once for each part of the unit interval."""
    found = Counter()
    for part in range(divisions):
        env.np_random.value = (part + 0.5) / divisions
        env.s = s
        follow, reward, terminated, truncated, _ = env.step(a)
        assert not truncated
        found[follow, float(reward), bool(terminated)] += 1 / divisions
    return found


def model_outcomes(model, s, a):
    found = Counter()
    pair = s * model.n_actions + a
    for o in range(model.outcome_ptr[pair], model.outcome_ptr[pair + 1]):
        key = (
            int(model.outcome_next[o]),
            float(model.outcome_reward[o]),
            bool(model.outcome_terminated[o]),
        )
        found[key] += float(model.outcome_prob[o])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("make, options, divisions", CASES)
def test_every_pair_has_the_outcomes_of_gymnasium(make, options, divisions):
    env = make(**options)
    model = known_model(env)
    env.np_random = Uniform()
    assert (model.n_states, model.n_actions) == (env.observation_space.n, env.action_space.n)
    for s in range(model.n_states):
        for a in range(model.n_actions):
            assert model_outcomes(model, s, a) == pytest.approx(
                driven_outcomes(env, s, a, divisions), abs=1e-12
            )


@pytest.mark.parametrize("make, options, divisions", CASES)
def test_the_same_random_number_draws_the_same_outcome(make, options, divisions):
    """The order of the outcomes is kept: only this lets a test compare whole episodes."""
    env = make(**options)
    model = known_model(env)
    env.np_random = Uniform()
    rng = np.random.default_rng(1)
    for _ in range(300):
        s, a = int(rng.integers(model.n_states)), int(rng.integers(model.n_actions))
        env.s, env.np_random.value = s, float(rng.random())
        follow, reward, terminated, _, _ = env.step(a)
        first, last = (
            model.outcome_ptr[s * model.n_actions + a],
            model.outcome_ptr[s * model.n_actions + a + 1],
        )
        o = first + int(
            np.searchsorted(np.cumsum(model.outcome_prob[first:last]), env.np_random.value, "right")
        )
        assert (model.outcome_next[o], model.outcome_reward[o]) == (follow, reward)
        assert model.outcome_terminated[o] == terminated


@pytest.mark.slow
@pytest.mark.parametrize("make, options, divisions", CASES)
def test_start_distribution(make, options, divisions):
    env = make(**options)
    model = known_model(env)
    draws = 6_000
    env.reset(seed=11)
    counts = np.bincount([env.reset()[0] for _ in range(draws)], minlength=model.n_states)
    possible = model.start_prob > 0
    assert counts[~possible].sum() == 0
    expected = draws * model.start_prob[possible]
    chi_square = ((counts[possible] - expected) ** 2 / expected).sum()
    freedom = possible.sum() - 1
    # Mean and variance of chi-square are its degrees of freedom and twice that.
    assert chi_square <= freedom + 5 * np.sqrt(2 * freedom) + 1e-9


def test_start_distribution_by_formula():
    taxi = TabularMDP.from_gymnasium("Taxi-v4")
    for s in range(500):
        passenger, destination = s // 4 % 5, s % 4
        assert taxi.start_prob[s] == pytest.approx(
            (passenger < 4 and passenger != destination) / 300, abs=1e-15
        )
    lake = TabularMDP.from_gymnasium("FrozenLake-v1", desc=CHECKERBOARD)
    np.testing.assert_array_equal(np.flatnonzero(lake.start_prob), [0, 4])
    assert lake.grid_shape == (4, 3)
    cliff = TabularMDP.from_gymnasium("CliffWalking-v1")
    np.testing.assert_array_equal(cliff.start_prob, np.arange(48) == 36)
    assert cliff.grid_shape == (4, 12)


def test_what_makes_environments_is_told_to_make_one():
    with pytest.raises(EnvError, match=r"^FrozenLakeEnv is a class or function .*Give FrozenLakeEnv\(\) in"):
        TabularMDP.from_gymnasium(FrozenLakeEnv)
    with pytest.raises(EnvError, match=r"^<lambda> is a class or function that .*Give what it returns in"):
        TabularMDP.from_gymnasium(lambda: FrozenLakeEnv(), use_action_mask=True)


def test_the_problems_of_this_package_are_known_by_their_ids():
    id = "dist_classicrl/RiverSwim-v0"
    made = registry()[id].make()
    for env in (id, gymnasium.make(id)):
        model = TabularMDP.from_gymnasium(env)
        assert model.fingerprint() == made.fingerprint() and model.max_episode_steps == made.max_episode_steps
    limited = TabularMDP.from_gymnasium(id, max_episode_steps=7)
    assert limited.max_episode_steps == 7 and limited.solve(0.9).v.tolist() == made.solve(0.9).v.tolist()
    without = next(each.id for each in registry().values() if not isinstance(each.make(), TabularMDP))
    with pytest.raises(EnvError, match=rf"{without} has no tables: registry\(\)\['{without}'\].make"):
        TabularMDP.from_gymnasium(without)


@pytest.mark.parametrize("name", ["FrozenLake-v1", "Taxi-v4", "CliffWalkingSlippery-v1"])
def test_frequencies_of_real_draws(name):
    """With Gymnasium's own generator, each outcome of some pairs comes up as often as the model says."""
    env = gymnasium.make(name).unwrapped
    model = known_model(env)
    env.reset(seed=5)
    draws = 2_000
    pairs = np.argwhere(model.reachable_pairs())
    for s, a in pairs[:: len(pairs) // 6]:
        found = Counter()
        for _ in range(draws):
            env.s = int(s)
            follow, reward, terminated, _, _ = env.step(int(a))
            found[follow, float(reward), bool(terminated)] += 1
        for outcome, probability in model_outcomes(model, s, a).items():
            deviation = np.sqrt(draws * probability * (1 - probability))
            assert abs(found.pop(outcome) - draws * probability) <= 4.5 * deviation + 1e-6
        assert not found


@pytest.mark.parametrize("name", ["FrozenLake8x8-v1", "Taxi-v4", "CliffWalkingSlippery-v1"])
def test_whole_episodes_stay_within_the_model(name):
    env = gymnasium.make(name, max_episode_steps=30)
    model = known_model(env)
    assert model.max_episode_steps == 30
    reachable = model.reachable_pairs()
    rng = np.random.default_rng(2)
    state, _ = env.reset(seed=2)
    steps = truncations = 0
    for _ in range(3_000):
        action = int(rng.integers(model.n_actions))
        assert reachable[state, action]
        follow, reward, terminated, truncated, _ = env.step(action)
        steps += 1
        assert model_outcomes(model, state, action)[follow, float(reward), bool(terminated)] > 0
        assert truncated == (steps == model.max_episode_steps)
        truncations += truncated
        state = follow
        if terminated or truncated:
            state, _ = env.reset()
            steps = 0
    assert truncations > 5


@pytest.mark.parametrize("name, count", [("FrozenLake-v1", 11), ("FrozenLake8x8-v1", 53), ("Taxi-v4", 400)])
def test_reachable_states(name, count):
    """Of a lake all but holes and goal; of a Taxi all but those whose passenger is where it wants to be."""
    reachable = TabularMDP.from_gymnasium(name).reachable_pairs()
    assert reachable.all(axis=1).sum() == reachable.any(axis=1).sum() == count


def test_reachable_states_of_the_cliff():
    # Neither the cliff, from which one is put back to the start, nor the goal, which ends the episode.
    for name in ("CliffWalking-v1", "CliffWalkingSlippery-v1"):
        reachable = TabularMDP.from_gymnasium(name).reachable_pairs()
        np.testing.assert_array_equal(reachable.all(axis=1), np.arange(48) <= 36)
        np.testing.assert_array_equal(reachable.any(axis=1), np.arange(48) <= 36)


def test_known_optimal_values():
    assert TabularMDP.from_gymnasium("CliffWalking-v1").solve(1.0).v[36] == -13
    dry = TabularMDP.from_gymnasium("FrozenLake8x8-v1", is_slippery=False)
    assert dry.solve(0.99).v[0] == pytest.approx(0.99**13, rel=1e-9)
    # Without a time limit the goal is reached with probability 14/17.
    lake = TabularMDP.from_gymnasium("FrozenLake-v1")
    assert lake.solve(1.0).v[0] == pytest.approx(14 / 17, abs=1e-9)


@pytest.mark.parametrize("options", [dict(), dict(is_rainy=True)])
def test_the_taxi_mask_forbids_what_has_no_effect(options):
    env = gymnasium.make("Taxi-v4", **options)
    plain = known_model(env)
    model = known_model(env, use_action_mask=True)
    assert plain.action_mask is None and plain != model
    _, info = env.reset(seed=3)
    rng = np.random.default_rng(3)
    state = env.unwrapped.s
    for _ in range(500):
        np.testing.assert_array_equal(model.action_mask[state], info["action_mask"])
        state, _, terminated, truncated, info = env.step(int(rng.integers(6)))
        if terminated or truncated:
            state, info = env.reset()
    forbidden = plain.reachable_pairs() & ~model.action_mask
    assert forbidden.sum() > 100
    for s, a in np.argwhere(forbidden):
        assert {follow for follow, _, _ in model_outcomes(model, s, a)} == {s}
        assert not any(terminated for _, _, terminated in model_outcomes(model, s, a))
    assert (model.reachable_pairs() == plain.reachable_pairs() & model.action_mask).all()
    # What has no effect is never better than what has.
    np.testing.assert_allclose(model.solve(0.99).v, plain.solve(0.99).v, atol=1e-9)


def test_lakes_have_no_mask():
    assert TabularMDP.from_gymnasium("FrozenLake-v1", use_action_mask=True).action_mask is None


def test_time_limits():
    assert TabularMDP.from_gymnasium("FrozenLake-v1").max_episode_steps == 100
    assert TabularMDP.from_gymnasium("FrozenLake8x8-v1").max_episode_steps == 200
    assert TabularMDP.from_gymnasium("CliffWalking-v1").max_episode_steps is None
    assert TabularMDP.from_gymnasium("Taxi-v4", max_episode_steps=17).max_episode_steps == 17
    assert TabularMDP.from_gymnasium("Taxi-v4", max_episode_steps=-1).max_episode_steps is None
    env = gymnasium.make("FrozenLake-v1")
    assert known_model(gymnasium.wrappers.TimeLimit(env, 20)).max_episode_steps == 20
    assert known_model(gymnasium.wrappers.TimeLimit(env, 300)).max_episode_steps == 100
    assert known_model(env.unwrapped).max_episode_steps is None
    assert known_model(gymnasium.wrappers.TimeLimit(env.unwrapped, 300)).max_episode_steps == 300


@pytest.fixture
def registered():
    name = "RegisteredByTest-v0"
    gymnasium.register(
        id=name,
        entry_point="gymnasium.envs.toy_text.frozen_lake:FrozenLakeEnv",
        kwargs=dict(map_name="8x8", is_slippery=False),
        max_episode_steps=33,
    )
    yield name
    del gymnasium.registry[name]


def test_a_registered_id_keeps_its_options(registered):
    model = TabularMDP.from_gymnasium(registered)
    assert model == TabularMDP.from_gymnasium("FrozenLake8x8-v1", is_slippery=False, max_episode_steps=33)
    assert model == TabularMDP.from_gymnasium(gymnasium.spec(registered))
    assert model.name == registered
    slippery = TabularMDP.from_gymnasium(registered, is_slippery=True)
    assert slippery == TabularMDP.from_gymnasium("FrozenLake8x8-v1", max_episode_steps=33)


def test_the_instance_is_read_not_its_id():
    env = gymnasium.make("FrozenLake-v1")
    original = known_model(env)
    env.unwrapped.P[14][2] = [(1.0, 15, 5.0, True)]
    assert model_outcomes(known_model(env), 14, 2) == {(15, 5.0, True): 1.0}
    env.unwrapped.initial_state_distrib = np.eye(16)[4]
    assert known_model(env).start_prob[4] == 1.0
    assert known_model(gymnasium.make("FrozenLake-v1")) == original


class ChangedLake(FrozenLakeEnv):
    def step(self, a):
        follow, reward, terminated, truncated, info = super().step(a)
        return follow, reward - 1, terminated, truncated, info


class ChangedTimeLimit(gymnasium.wrappers.TimeLimit):
    def step(self, action):
        return self.env.step(action)


def with_own_step():
    env = gymnasium.make("FrozenLake-v1")
    env.unwrapped.step = lambda a: (0, 1.0, False, False, {})
    return env


def with_own_wrapper_step():
    env = gymnasium.make("FrozenLake-v1")
    env.step = lambda a: (0, 1.0, False, False, {})
    return env


def with_other_spaces():
    env = gymnasium.make("FrozenLake-v1")
    env.action_space = gymnasium.spaces.Discrete(4, start=1)
    return env


def with_fewer_actions():
    env = FrozenLakeEnv()
    env.action_space = gymnasium.spaces.Discrete(3)
    return env


def with_a_pair_without_outcomes():
    env = FrozenLakeEnv()
    env.P[3][1] = []
    return env


def without_start():
    env = FrozenLakeEnv()
    env.initial_state_distrib = np.full(16, np.nan)
    return env


@pytest.mark.parametrize(
    "make, reason",
    [
        (lambda: ChangedLake(), "ChangedLake has no known model"),
        (lambda: gymnasium.make("CartPole-v1"), "CartPoleEnv has no known model"),
        (lambda: gymnasium.make("Taxi-v4", fickle_passenger=True), "fickle_passenger=True"),
        (
            lambda: gymnasium.wrappers.TransformReward(gymnasium.make("FrozenLake-v1"), lambda r: r),
            "the wrapper TransformReward",
        ),
        (lambda: gymnasium.wrappers.Autoreset(gymnasium.make("FrozenLake-v1")), "the wrapper Autoreset"),
        (lambda: ChangedTimeLimit(FrozenLakeEnv(), 10), "the wrapper ChangedTimeLimit"),
        (lambda: gymnasium.make_vec("FrozenLake-v1", 2), "SyncVectorEnv has no known model"),
        (with_own_step, "FrozenLakeEnv has its own step"),
        (with_own_wrapper_step, "TimeLimit has its own step"),
        (with_other_spaces, "action_space is"),
        (with_fewer_actions, "action_space is"),
        (with_a_pair_without_outcomes, "pairs without outcomes"),
        (without_start, r"start_prob\[0\] is nan"),
        (lambda: FrozenLakeEnv(success_rate=1.5), "is -0.25"),
        (lambda: None, "NoneType has no known model"),
    ],
)
def test_anything_else_is_not_compiled(make, reason):
    env = make()
    assert known_model(env) is None
    with pytest.raises(EnvError, match=reason):
        TabularMDP.from_gymnasium(env)


def test_wrappers_that_change_nothing():
    env = gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make("Taxi-v4"))
    assert known_model(env) == TabularMDP.from_gymnasium("Taxi-v4")
    bare = gymnasium.wrappers.OrderEnforcing(gymnasium.wrappers.PassiveEnvChecker(CliffWalkingEnv()))
    assert known_model(bare) == TabularMDP.from_gymnasium("CliffWalking-v1")


def test_the_instance_is_not_disturbed():
    env = gymnasium.make("Taxi-v4")
    twin = gymnasium.make("Taxi-v4")
    env.reset(seed=8), twin.reset(seed=8)
    known_model(env, use_action_mask=True)
    for action in (0, 2, 4, 5, 1):
        assert env.step(action)[:4] == twin.step(action)[:4]
    assert env.reset()[0] == twin.reset()[0]


def test_infinite_rewards_are_named():
    for reward in (np.nan, np.inf):
        with pytest.raises(RewardError, match="rewards must be finite"):
            known_model(FrozenLakeEnv(reward_schedule=(reward, 0, 0)))


def test_what_gymnasium_cannot_make_is_named():
    for env, options in (("NoSuchThing-v0", {}), ("FrozenLake-v1", {"map_name": "9x9"})):
        with pytest.raises(EnvError, match=f"make\\('{env}'.* raised .*Correct the id or its options"):
            TabularMDP.from_gymnasium(env, **options)


def test_options_need_an_id():
    with pytest.raises(EnvError, match="give its id instead"):
        TabularMDP.from_gymnasium(gymnasium.make("FrozenLake-v1"), is_slippery=False)


def test_an_environment_with_tables_of_its_own_is_told_how_to_make_a_model_of_them():
    class Own(gymnasium.Env):
        observation_space, action_space = gymnasium.spaces.Discrete(2), gymnasium.spaces.Discrete(1)
        P = {0: {0: [(1.0, 1, 1.0, True)]}, 1: {0: [(1.0, 1, 0.0, True)]}}

    with pytest.raises(EnvError, match=r"write TabularMDP.from_dict\(env.unwrapped.P, start_prob=\.\.\.\)"):
        TabularMDP.from_gymnasium(Own())
    env = ChangedLake()
    with pytest.raises(EnvError, match=r"start_prob=env\.unwrapped\.initial_state_distrib\)"):
        TabularMDP.from_gymnasium(env)
    told = TabularMDP.from_dict(env.unwrapped.P, start_prob=env.unwrapped.initial_state_distrib)
    assert told.n_states == 16
