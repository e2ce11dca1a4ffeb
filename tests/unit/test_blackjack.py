"""Gymnasium's Blackjack in compiled code: against all hands, and against Gymnasium's own steps and draws."""

import os
import signal
from collections import Counter
from functools import cache, wraps

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.toy_text import blackjack as of_gymnasium
from gymnasium.envs.toy_text.blackjack import BlackjackEnv
from gymnasium.spaces import Discrete, Tuple

from dist_classicrl import DistAsyncQLearning, TabularMDP
from dist_classicrl.callbacks import BaseCallback, EvalCallback, EveryNTimesteps
from dist_classicrl.environments import registry, resolve
from dist_classicrl.environments.blackjack import rules, simulator
from dist_classicrl.environments.stepped.make import make_stepped
from dist_classicrl.errors import EnvError, EnvMismatchError, TrainingStopped
from dist_classicrl.model import places
from dist_classicrl.schedules import PerVisit

RULES = [
    pytest.param(natural, sab, id=f"natural={natural}, sab={sab}")
    for natural in (False, True)
    for sab in (False, True)
]
CHANCES = {card: (4 if card == 10 else 1) / 13 for card in range(1, 11)}
SEEN = Tuple((Discrete(32), Discrete(11), Discrete(2)))
STICK, HIT = 0, 1


def source_of(env, **options):
    return resolve.resolve(env, 2, None, **options)


def made(natural, sab):
    return gymnasium.make("Blackjack-v1", natural=natural, sab=sab)


def seen(hand, shown):
    """Return what the player sees, as the integer that a tuple of such spaces has."""
    total, ace = sum(hand), 0
    if 1 in hand and total <= 11:
        total, ace = total + 10, 1
    return (total * 11 + shown) * 2 + ace


def score(hand):
    total = sum(hand)
    total += 10 if 1 in hand and total <= 11 else 0
    return 0 if total > 21 else total


@cache
def dealer_ends(hand):
    """Return hands that the dealer ends with, one for each score and natural or not, and their chances."""
    if score(hand) == 0 or score(hand) >= 17:
        return {(score(hand), sorted(hand) == [1, 10]): (hand, 1.0)}
    ends = {}
    for card, chance in CHANCES.items():
        for kind, (end, further) in dealer_ends((*hand, card)).items():
            ends[kind] = end, ends.get(kind, (end, 0.0))[1] + chance * further
    return ends


def with_card(hand, card):
    """Return a hand of more than two cards, of few cards: those with the same sum, or an ace, are one."""
    total = sum(hand) + card
    return (0, 1, total - 1) if 1 in (*hand, card) else (0, total)


def pays(hand, dealer, natural, sab):
    """Return what sticking pays, by the words of Gymnasium's documentation."""
    usual = float(score(hand) > score(dealer)) - float(score(hand) < score(dealer))
    if sorted(hand) != [1, 10]:
        return usual
    if sab:
        return usual if sorted(dealer) == [1, 10] else 1.0
    return 1.5 if natural and usual == 1.0 else usual


@cache
def of_hand(hand, shown, action, natural, sab):
    """Return the chances of (next hand, reward, whether it ends)."""
    found = Counter()
    if action == HIT:
        for card, chance in CHANCES.items():
            after = with_card(hand, card)
            found[after, 0.0 if score(after) else -1.0, not score(after)] += chance
    else:
        for dealer, chance in dealer_ends((shown,)).values():
            found[hand, pays(hand, dealer, natural, sab), True] += chance
    return found


@cache
def hands():
    """Return how often a hand comes in a game in which both actions are equally likely."""
    often = Counter()
    under_way = Counter()
    for one, first in CHANCES.items():
        for two, second in CHANCES.items():
            under_way[tuple(sorted((one, two)))] += first * second
    while under_way:
        often += under_way
        following = Counter()
        for hand, chance in under_way.items():
            for card, further in CHANCES.items():
                after = with_card(hand, card)
                if score(after):
                    following[after] += chance * 0.5 * further
        under_way = following
    return often


@cache
def often(natural, sab):
    """Return how often (seen, action, seen next, reward, end) comes in a game of random actions."""
    found = Counter()
    for shown, dealt in CHANCES.items():
        for hand, chance in hands().items():
            for action in (STICK, HIT):
                for (after, reward, ends), further in of_hand(hand, shown, action, natural, sab).items():
                    key = seen(hand, shown), action, seen(after, shown), reward, ends
                    found[key] += dealt * chance * 0.5 * further
    return found


def check_frequencies(counts, expected):
    """Compare counts with what is expected of them, rare ones together, by chi-square."""
    total = sum(counts.values())
    scale = total / sum(expected.values())
    assert not set(counts) - set(expected)
    rare = {key for key, chance in expected.items() if chance * scale < 10}
    cells = [(counts[key], chance * scale) for key, chance in expected.items() if key not in rare]
    if rare:
        cells.append((sum(counts[key] for key in rare), sum(expected[key] for key in rare) * scale))
    observed, mean = np.array(cells).T
    freedom = len(cells) - 1
    # Mean and variance of chi-square are its degrees of freedom and about twice that.
    assert freedom > 10
    assert ((observed - mean) ** 2 / mean).sum() <= freedom + 5 * np.sqrt(2 * freedom)


def check_all_and_those_of_21(counts, expected):
    """Compare all counts, and by themselves those in which it matters what is hidden."""
    hidden = {key for key in expected if divided(key[0])[::2] == (21, 1) and key[1] == STICK}
    for keys in (set(expected), hidden):
        check_frequencies(
            Counter({key: count for key, count in counts.items() if key in keys or key not in expected}),
            {key: expected[key] for key in keys},
        )


def outcomes(model, state, action):
    found = Counter()
    pair = state * 2 + action
    for o in range(model.outcome_ptr[pair], model.outcome_ptr[pair + 1]):
        what = int(model.outcome_next[o]), float(model.outcome_reward[o]), bool(model.outcome_terminated[o])
        found[what] += float(model.outcome_prob[o])
    return found


def state_of(hand, shown, hidden):
    return 704 + shown if hidden and hand == (1, 10) else seen(hand, shown)


@pytest.mark.parametrize("natural, sab", RULES)
def test_each_hand_has_the_outcomes_that_its_cards_say(natural, sab):
    model = TabularMDP(**rules.fields_of(natural, sab))
    hidden = natural or sab
    start = np.zeros(model.n_states)
    for shown, dealt in CHANCES.items():
        for hand in hands():
            state = state_of(hand, shown, hidden)
            for action in (STICK, HIT):
                expected = Counter()
                for (after, reward, ends), chance in of_hand(hand, shown, action, natural, sab).items():
                    expected[state_of(after, shown, hidden), reward, ends] += chance
                assert outcomes(model, state, action) == pytest.approx(+expected, abs=1e-12)
        for one, first in CHANCES.items():
            for two, second in CHANCES.items():
                start[state_of(tuple(sorted((one, two))), shown, hidden)] += dealt * first * second
    np.testing.assert_allclose(model.start_prob, start, atol=1e-15)
    looks = [state if state < 704 else seen((1, 10), state - 704) for state in range(model.n_states)]
    assert rules.seen_of(model.n_states).tolist() == looks


class Draws:
    """Stands in for the random generator, and draws the card that it is told."""

    def choice(self, deck):
        return self.card


@pytest.mark.parametrize("natural, sab", RULES)
def test_each_hand_has_the_outcomes_of_gymnasiums_own_step(natural, sab):
    env = BlackjackEnv(natural=natural, sab=sab)
    model = TabularMDP(**rules.fields_of(natural, sab))
    env._np_random = Draws()
    for shown in CHANCES:
        for hand in hands():
            state = state_of(hand, shown, natural or sab)
            found = Counter()
            for dealer, chance in dealer_ends((shown,)).values():
                env.player, env.dealer = list(hand), list(dealer)
                after, reward, ends, _, _ = env.step(STICK)
                assert after == divided(seen(hand, shown))
                found[state, reward, ends] += chance
            assert outcomes(model, state, STICK) == pytest.approx(found, abs=1e-12)
            found.clear()
            for card, chance in CHANCES.items():
                env.player, env.dealer, env._np_random.card = list(hand), [shown, 5], card
                after, reward, ends, _, _ = env.step(HIT)
                found[joined(after), reward, ends] += chance
            assert outcomes(model, state, HIT) == pytest.approx(found, abs=1e-12)


def joined(observation):
    total, shown, ace = observation
    return (total * 11 + shown) * 2 + ace


def divided(number):
    return number // 22, number // 2 % 11, number % 2


@pytest.mark.slow
@pytest.mark.parametrize("natural, sab", RULES)
def test_draws_of_gymnasium_come_as_often_as_the_hands_say(natural, sab):
    env = made(natural, sab).unwrapped
    observation, _ = env.reset(seed=7)
    actions = np.random.default_rng(8).integers(0, 2, 60_000).tolist()
    counts = Counter()
    for action in actions:
        after, reward, ends, _, _ = env.step(action)
        counts[joined(observation), action, joined(after), reward, ends] += 1
        observation = env.reset()[0] if ends else after
    check_all_and_those_of_21(counts, often(natural, sab))


def play(compiled, steps, seed):
    """Return how often (state, action, next state, reward, end) came in a compiled game's random steps."""
    from dist_classicrl.environments.problems.env import _advance, _begin

    rng = np.random.default_rng(seed)
    words = rng.integers(0, 1 << 64, 2 * steps, dtype=np.uint64)
    actions = rng.integers(0, 2, steps)
    memory = np.zeros(compiled.memory_size, np.int64)
    counts, state = Counter(), -1
    for step, action in enumerate(actions.tolist()):
        if state < 0:
            state = int(_begin(compiled.tables, memory, words[2 * step]))
        after, reward, ends = _advance(compiled.tables, memory, state, action, words[2 * step + 1], 2)
        counts[state, action, int(after), float(reward), bool(ends)] += 1
        state = -1 if ends else int(after)
    return counts


@pytest.mark.slow
@pytest.mark.parametrize("natural, sab", RULES)
def test_draws_of_the_compiled_game_come_as_often_as_the_hands_say(natural, sab):
    source = source_of(made(natural, sab))
    assert (source.simulator.model is None) == (natural or sab)
    check_all_and_those_of_21(play(source.simulator, 400_000, 9), often(natural, sab))


def best_values(natural, sab):
    """Return what Q-learning comes to, (704, 2), whose behavior plays both actions alike."""
    values = np.zeros((704, 2))
    pairs = Counter()
    for (state, action, *_), chance in often(natural, sab).items():
        pairs[state, action] += chance
    for _ in range(22):  # a hit adds a card, or takes the ace for 1
        before = values.max(axis=1)
        values = np.zeros((704, 2))
        for (state, action, after, reward, ends), chance in often(natural, sab).items():
            values[state, action] += chance / pairs[state, action] * (reward + (not ends) * before[after])
    return values


def test_the_best_values_are_those_of_the_books_game():
    exact = TabularMDP.from_gymnasium("Blackjack-v1", natural=False, sab=False).solve(1.0)
    reached = [state for state, *_ in often(False, False)]
    np.testing.assert_allclose(exact.q[reached], best_values(False, False)[reached], atol=1e-12)


def learned(env, steps=3_000_000, **asked):
    agent = DistAsyncQLearning(
        seed=3, discount_factor=1.0, learning_rate=PerVisit(1.0), epsilon=1.0, **asked.pop("settings", {})
    )
    agent.train(env, total_steps=steps, verbose=0, **asked)
    return agent


def errors_of(agent, natural, sab):
    """Return how far off values are, in units of what chance makes of a mean of so many rewards."""
    visits = agent.visits
    is_often = visits >= 1_000
    assert is_often.sum() > 300
    return (np.abs(agent.q_table - best_values(natural, sab)) * np.sqrt(visits))[is_often]


@pytest.mark.parametrize("natural, sab", RULES)
def test_what_is_learned_are_the_values_of_what_is_seen(natural, sab):
    agent = learned(lambda: made(natural, sab))
    # Rewards are within -1 and 1.5; a value also has some error of those that it leads to.
    assert errors_of(agent, natural, sab).max() < 8
    assert agent.predict((20, 10, 0)) == STICK and agent.predict((11, 10, 0)) == HIT
    assert agent.q_table.shape == (704, 2)
    same_but_for_naturals = [joined((20, shown, 0)) for shown in CHANCES]
    plain = best_values(False, False)
    np.testing.assert_allclose(agent.q_table[same_but_for_naturals], plain[same_but_for_naturals], atol=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "asked",
    [
        {"settings": {"async_updates": False}},
        {"settings": {"async_updates": False}, "placement": "replicated"},
        {"settings": {"async_updates": False}, "placement": "sharded"},
        {"placement": "sharded"},
    ],
)
def test_every_engine_takes_it(asked):
    agent = learned("Blackjack-v1", 1_000_000, **asked)
    assert agent.steps == 1_000_000
    # Walkers side by side merge what they learned; the values are the same in the mean.
    assert np.median(errors_of(agent, False, True)) < 2
    # A policy that is nearly the best one collects -0.0431 a game: three deviations of the mean are 0.007.
    assert agent.evaluate("Blackjack-v1", episodes=160_000, seed=4).mean_return == pytest.approx(
        -0.0431, abs=0.009
    )


def test_it_is_what_it_was_when_it_was_stepped():
    for kwargs in ({}, {"sab": False}, {"natural": True, "sab": False}, {"max_episode_steps": 5}):
        for use_action_mask in (None, False):

            def make(kwargs=kwargs):
                return gymnasium.make("Blackjack-v1", **kwargs)

            stepped = make_stepped(make, 2, use_action_mask=use_action_mask)
            source = resolve.resolve(make, 2, use_action_mask)
            assert source.simulator is not None and source.stepped is None
            assert source.fingerprint == stepped.fingerprint()
            assert source.max_episode_steps == stepped.max_episode_steps
            assert [index.parts() for index in source.spaces] == [
                index.parts() for index in (stepped.observations, stepped.actions)
            ]
            assert not source.identity.is_numbered and source.identity.env_id == "Blackjack-v1"


def test_wrappers_that_change_nothing_and_arguments_that_change_the_game():
    plain = source_of("Blackjack-v1")
    recorded = source_of(gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make("Blackjack-v1")))
    assert recorded.identity.is_same(plain.identity) and recorded.hints
    others = [
        source_of(made(natural, sab)) for natural, sab in ((False, False), (True, False), (True, True))
    ] + [source_of(gymnasium.wrappers.TimeLimit(gymnasium.make("Blackjack-v1"), 5))]
    assert len({source.fingerprint for source in (plain, *others)}) == 5
    env = gymnasium.make("Blackjack-v1")
    env.unwrapped.sab = False  # what is played, not what it was made with
    changed = source_of(env)
    assert changed.simulator.model == source_of(made(False, False)).simulator.model
    assert changed.fingerprint not in {plain.fingerprint, others[0].fingerprint}
    bare = BlackjackEnv(), BlackjackEnv(sab=True)
    assert source_of(bare[0]).simulator.model is not None and source_of(bare[1]).simulator.model is None
    assert not source_of(bare[0]).identity.is_same(source_of(bare[1]).identity)


@pytest.mark.parametrize("settings", [{}, {"async_updates": False}, {"use_action_mask": False}])
def test_an_agent_that_learned_by_steps_goes_on(tmp_path, monkeypatch, settings):
    with monkeypatch.context() as patch:
        patch.setattr(resolve, "_blackjack", lambda env, use_action_mask: None)
        assert source_of("Blackjack-v1").stepped is not None
        agent = DistAsyncQLearning(seed=1, n_envs=1, **settings)
        agent.train("Blackjack-v1", total_steps=300, checkpoint_dir=tmp_path / "run")
        path = agent.save_model(tmp_path / "model.npz")
    loaded = DistAsyncQLearning.load_model(path)
    assert loaded.predict((20, 10, 0)) == agent.predict((20, 10, 0))
    loaded.train("Blackjack-v1", total_steps=300, verbose=0)
    assert loaded.steps == 600
    monkeypatch.setattr(places, "_agents", {})  # as in another process
    again = DistAsyncQLearning(seed=1, n_envs=1, **settings)
    result = again.train("Blackjack-v1", total_steps=1_000, checkpoint_dir=tmp_path / "run")
    assert result.resumed_from is not None and again.steps == again.visits.sum() == 1_000
    with pytest.raises(EnvMismatchError, match="another Blackjack-v1, with other rewards"):
        loaded.train(lambda: made(False, False), total_steps=10)


class Stop(BaseCallback):
    """Asks the training to stop."""

    def _on_step(self):
        os.kill(os.getpid(), signal.SIGUSR1)
        return True


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"replay_ratio": 1.0},
        {"algorithm": "dyna_q"},
        {"algorithm": "prioritized_sweeping"},
        {"algorithm": "dyna_q", "async_updates": False},
    ],
)
def test_a_call_that_was_begun_by_steps_ends_in_compiled_code(tmp_path, monkeypatch, settings):
    asked = {"total_steps": 20_000, "checkpoint_dir": tmp_path}
    with monkeypatch.context() as patch:
        patch.setattr(resolve, "_blackjack", lambda env, use_action_mask: None)
        begun = DistAsyncQLearning(seed=1, n_envs=1, **settings)
        with pytest.raises(TrainingStopped):
            begun.train("Blackjack-v1", callbacks=EveryNTimesteps(500, Stop()), **asked)
    assert 500 <= begun.steps < 20_000
    monkeypatch.setattr(places, "_agents", {})  # as in another process
    agent = DistAsyncQLearning(seed=1, n_envs=1, **settings)
    result = agent.train("Blackjack-v1", **asked)
    assert result.resumed_from is not None and result.steps == agent.steps == agent.visits.sum() == 20_000


@pytest.mark.parametrize("env", ["Blackjack-v1", lambda: made(False, False)])
def test_it_is_evaluated_while_it_is_learned(env):
    callback = EvalCallback(env, eval_freq=1_000)
    DistAsyncQLearning(seed=1).train(env, total_steps=3_000, callbacks=callback)
    assert len(callback.log.means) == 3 and all(-1.0 <= mean <= 1.0 for mean in callback.log.means)


def test_its_observations_are_tuples_for_whoever_asks(tmp_path):
    agent = DistAsyncQLearning(seed=1)
    agent.train("Blackjack-v1", total_steps=100_000)
    loaded = DistAsyncQLearning.load_model(agent.save_model(tmp_path / "model.npz"))
    env = gymnasium.make("Blackjack-v1")
    observation, _ = env.reset(seed=1)
    for _ in range(200):
        action = loaded.policy(observation)
        assert action == agent.predict(observation) and env.action_space.contains(action)
        assert agent.action_values(observation).tolist() == agent.q_table[joined(observation)].tolist()
        observation, _, ends, _, _ = env.step(action)
        if ends:
            observation, _ = env.reset()


def test_observations_are_keys_where_there_are_more_than_are_allowed():
    agent = DistAsyncQLearning(seed=1, n_envs=1, max_states=400)
    agent.train("Blackjack-v1", total_steps=500)
    assert agent.steps == 500 and agent.predict((20, 10, 0)) in (STICK, HIT)
    assert source_of("Blackjack-v1", max_states=703).is_keyed
    assert source_of("Blackjack-v1", max_states=704).simulator is not None


class Changed(BlackjackEnv):
    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, 2.0 * reward, *rest


def with_own(name):
    env = gymnasium.make("Blackjack-v1")
    setattr(env.unwrapped, name, getattr(env.unwrapped, name))
    return env


def with_space(name, space):
    env = gymnasium.make("Blackjack-v1")
    setattr(env.unwrapped, name, space)
    return env


def with_flag(**flags):
    env = gymnasium.make("Blackjack-v1")
    for name, value in flags.items():
        setattr(env.unwrapped, name, value)
    return env


@pytest.mark.parametrize(
    "make, reason",
    [
        (Changed, "Changed has no known model"),
        (lambda: with_own("step"), "has its own step"),
        (lambda: with_own("reset"), "has its own reset"),
        (lambda: with_own("_get_obs"), "has its own _get_obs"),
        (lambda: with_space("action_space", Discrete(3)), r"action_space is Discrete\(3\)"),
        (
            lambda: with_space("observation_space", Tuple((Discrete(32), Discrete(11), Discrete(3)))),
            "observation_space is Tuple",
        ),
        (lambda: with_flag(natural="yes"), "natural='yes'"),
        (lambda: with_flag(sab=np.ones(2)), "must be True or False"),
        (
            lambda: gymnasium.wrappers.TransformReward(gymnasium.make("Blackjack-v1"), lambda r: r),
            "the wrapper TransformReward",
        ),
        (
            lambda: gymnasium.make("Blackjack-v1"),
            "whether 21 came with the first two cards is hidden",
        ),
    ],
)
def test_what_is_no_model(make, reason):
    with pytest.raises(EnvError, match=reason):
        TabularMDP.from_gymnasium(make())
    is_compiled = reason.endswith("hidden")
    assert (source_of(make()).simulator is not None) == is_compiled


def test_the_model_that_is_told_of_where_there_is_none_has_the_same_best_return():
    with pytest.raises(EnvError) as told:
        TabularMDP.from_gymnasium("Blackjack-v1", natural=True)
    call = str(told.value).partition("registry()")[2].partition(", from")[0]
    model = eval(f"registry(){call}", {"registry": registry})
    assert model.start_value(model.solve(1.0).v) == pytest.approx(-0.043113, abs=1e-6)


def other_draw(np_random):
    return int(np_random.choice(of_gymnasium.deck))


def wrapped_step(self, action):
    observation, reward, *rest = STEP(self, action)
    return observation, 2.0 * reward, *rest


STEP = BlackjackEnv.step


@pytest.mark.parametrize(
    "place, name, other",
    [
        (of_gymnasium, "deck", [1, 10]),
        (of_gymnasium, "deck", np.array([1, 10])),
        (of_gymnasium, "draw_card", other_draw),
        (of_gymnasium, "is_natural", wraps(of_gymnasium.is_natural)(lambda hand: False)),
        (of_gymnasium, "sum_hand", sum),
        (BlackjackEnv, "step", wraps(STEP)(wrapped_step)),
    ],
)
def test_another_game_in_the_place_of_gymnasiums_is_stepped(monkeypatch, place, name, other):
    assert source_of("Blackjack-v1").simulator is not None
    monkeypatch.setattr(place, name, other)
    assert source_of("Blackjack-v1").stepped is not None
    with pytest.raises(EnvError, match="the source of Gymnasium's Blackjack is not the one that is known"):
        TabularMDP.from_gymnasium("Blackjack-v1", sab=False)


def test_without_the_source_it_is_stepped(monkeypatch):
    def gone(code):
        raise OSError("could not get source code")

    monkeypatch.setattr(rules.inspect, "getsource", gone)
    assert source_of("Blackjack-v1").stepped is not None
    assert DistAsyncQLearning(seed=1).train("Blackjack-v1", total_steps=20).episodes > 0


def test_the_packed_tables_are_made_once():
    assert source_of("Blackjack-v1").simulator is source_of("Blackjack-v1").simulator
    assert simulator.simulator_of.cache_info().maxsize < 100
