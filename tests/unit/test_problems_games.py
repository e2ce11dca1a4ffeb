"""Gridworlds and Blackjack: against shortest ways, the figures of the book, and games written once more."""

from collections import deque
from functools import cache

import gymnasium
import numpy as np
import pytest

from dist_classicrl.environments import registry
from dist_classicrl.environments.problems.gridworlds import KEY_AND_DOOR
from dist_classicrl.errors import SettingsError

pytestmark = pytest.mark.slow


def make(name, **arguments):
    return registry()[f"dist_classicrl/{name}-v0"].make(**arguments)


def fewest_steps(desc):
    """Return how many steps the goal is away, by a breadth-first search of its own."""
    cells = {(r, c): letter for r, row in enumerate(desc) for c, letter in enumerate(row)}
    start = next(place for place, letter in cells.items() if letter == "S")
    queue, seen = deque([(start, "", 0)]), {(start, "")}
    while queue:
        (r, c), keys, steps = queue.popleft()
        if cells[r, c] == "G":
            return steps
        for place in ((r, c - 1), (r, c + 1), (r - 1, c), (r + 1, c)):
            letter = cells.get(place, "#")
            if letter == "#" or (letter.isupper() and letter in "ABCDE" and letter.lower() not in keys):
                continue
            holds = "".join(sorted({*keys, letter})) if letter in "abcde" else keys
            if (place, holds) not in seen:
                seen.add((place, holds))
                queue.append((place, holds, steps + 1))
    raise AssertionError("no way")


@pytest.mark.parametrize("desc", [KEY_AND_DOOR, ["S.#a.", "b.B..", "##A##", "G...."]])
def test_the_best_policy_takes_the_shortest_way_past_the_doors(desc):
    model = make("Gridworld", desc=list(desc))
    value = model.start_value(model.solve(0.999).v)
    assert value == pytest.approx(-(1 - 0.999 ** fewest_steps(desc)) / 0.001)


def test_values_of_the_random_policy_are_those_of_figure_4_1():
    model = make("Gridworld", desc=["G...", "....", "....", "...G"])
    value = model.policy_value(np.full((16, 4), 0.25), 1.0).reshape(4, 4)
    assert value[0] == pytest.approx([0, -14, -20, -22], abs=1e-6)
    assert value[1] == pytest.approx([-14, -18, -20, -20], abs=1e-6)
    assert model.start_prob.tolist() == [0] + [1 / 14] * 14 + [0]


def test_wind_keys_and_slips_do_what_they_say():
    windy = make("WindyGridworld", moves=8)
    assert make("Gridworld", moves=np.int8(4)) == make("Gridworld")
    assert windy.start_value(windy.solve(1.0).v) == pytest.approx(-7)
    model = make("Gridworld", desc=["#..", "a..", "S.."], wind=[1, 0, -1], slip=0.4, stochastic_wind=True)
    pair = 6 * 4 + 2  # to the right from the start
    which = slice(model.outcome_ptr[pair], model.outcome_ptr[pair + 1])
    chances = {}
    for chance, state in zip(model.outcome_prob[which], model.outcome_next[which], strict=True):
        chances[int(state)] = chances.get(int(state), 0.0) + chance
    # A move to the right comes in 0.7, each other in 0.1; the wind is 0, 1 or 2 cells then, up to the wall in
    # column 0, where the key lies on the way: with it states count from 9.
    third = 1 / 3
    assert chances == pytest.approx(
        {
            **{7: 0.7 * third, 4: 0.7 * third, 1: 0.7 * third},
            **{6: 0.2 * third, 9 + 3: 0.4 * third + 0.3 * third},
        }
    )


@pytest.mark.parametrize("speed", [10**7, 2**70])
@pytest.mark.parametrize("stochastic", [False, True])
def test_no_wind_blows_farther_than_the_board_is_high(speed, stochastic):
    strong, enough = (
        make("Gridworld", desc=["G.a", "#..", ".S."], wind=[-wind, wind, wind], stochastic_wind=stochastic)
        for wind in (speed, 4)
    )
    assert strong == enough


@pytest.mark.parametrize(
    "wrong, said",
    [
        ({"desc": ["S.", "G"]}, "rows of the same length"),
        ({"desc": 3}, "rows of the same length"),
        ({"desc": ["S?G"]}, "desc has '\\?'"),
        ({"desc": ["SAG"]}, "door A and no key a"),
        ({"desc": ["#G"]}, "no cell to begin in"),
        ({"moves": 5}, "moves must be 4, 8 or 9, got 5"),
        ({"wind": [1, 2]}, "each of the 8 columns"),
        ({"wind": np.array(3)}, "each of the 8 columns"),
        ({"slip": 1.5}, "slip must be a number from 0 to 1"),
    ],
)
def test_a_wrong_map_is_refused(wrong, said):
    with pytest.raises(SettingsError, match=said):
        make("Gridworld", **wrong)


CHANCES = {card: (4 if card == 10 else 1) / 13 for card in range(1, 11)}


def score(hand):
    total = sum(hand)
    if 1 in hand and total <= 11:
        total += 10
    return 0 if total > 21 else total


@cache
def dealer_ends(hand):
    """Return the dealer's last scores with their chances, and whether the first two cards decide."""
    if score(hand) == 0 or score(hand) >= 17:
        return {(score(hand), sorted(hand) == [1, 10]): 1.0}
    ends = {}
    for card, chance in CHANCES.items():
        for end, further in dealer_ends((*hand, card)).items():
            ends[end] = ends.get(end, 0) + chance * further
    return ends


@cache
def best(hand, shown, rule):
    """Return what the best play of a hand collects: the game over hands of cards, written once more."""
    stick = 0
    special = list(hand) == [1, 10]
    for (dealer, also), chance in dealer_ends((shown,)).items():
        reward = (score(hand) > dealer) - (score(hand) < dealer)
        if rule == "sab" and special and not also:
            reward = 1
        elif rule == "natural" and special and reward == 1:
            reward = 1.5
        stick += chance * reward
    hit = 0
    for card, chance in CHANCES.items():
        after = tuple(sorted((*hand, card)))
        hit += chance * (best(after, shown, rule) if score(after) else -1)
    return max(stick, hit)


@pytest.mark.parametrize("rule, collects", [("", -0.046556), ("natural", -0.025729), ("sab", -0.043113)])
def test_blackjack_collects_what_a_search_over_all_hands_says(rule, collects):
    model = make("Blackjack", **{} if rule == "sab" else {"sab": False, "natural": rule == "natural"})
    value = model.start_value(model.solve(1.0).v)
    exact = sum(
        CHANCES[shown] * CHANCES[one] * CHANCES[two] * best(tuple(sorted((one, two))), shown, rule)
        for shown in CHANCES
        for one in CHANCES
        for two in CHANCES
    )
    assert value == pytest.approx(exact, abs=1e-12) and value == pytest.approx(collects, abs=6e-7)


def test_the_best_policy_is_that_of_figure_5_2():
    policy = make("Blackjack").solve(1.0).policy[:704].reshape(32, 11, 2)[:, 1:]
    sticks_from = 12 + (policy[12:22] == 1).sum(axis=0)
    assert sticks_from[:, 0].tolist() == [17, 13, 13, 12, 12, 12, 17, 17, 17, 17]
    assert sticks_from[:, 1].tolist() == [19, 18, 18, 18, 18, 18, 18, 18, 19, 19]


def finished(hand):
    """Give the hands with which a dealer ends who has this one, and their chances."""
    if score(hand) == 0 or score(hand) >= 17:
        yield hand, 1.0
        return
    for card, chance in CHANCES.items():
        for end, further in finished((*hand, card)):
            yield end, chance * further


@pytest.mark.parametrize("hand", [(1, 10), (1, 4, 6), (10, 10), (5, 7)])
@pytest.mark.parametrize("shown", [1, 6, 10])
def test_gymnasiums_own_blackjack_pays_the_same_in_the_mean_against_all_hands_of_the_dealer(hand, shown):
    model, env = make("Blackjack"), gymnasium.make("Blackjack-v1").unwrapped
    env.reset(seed=1)
    mean = 0.0
    for dealer, chance in finished((shown,)):
        env.player, env.dealer = list(hand), list(dealer)
        mean += chance * env.step(0)[1]
    state = 704 + shown if hand == (1, 10) else (score(hand) * 11 + shown) * 2 + (1 in hand)
    assert model.solve(1.0).q[state, 0] == pytest.approx(mean, abs=1e-12)
    assert model.start_prob[state] > 0.0 or len(hand) == 3
