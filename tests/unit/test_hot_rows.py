"""Rows that get most of the visits, where ranks exchange messages: copies for all, and the same bits."""

from dataclasses import replace

import numpy as np
import pytest
from own_rules import DoubleQ, registered
from superstep_runs import KEY, learned, play, problem_of, shares_of
from test_supersteps import by_remainder, garnet, settings_of

from dist_classicrl.errors import ProtocolError
from dist_classicrl.learning.learner import Stream
from dist_classicrl.learning.supersteps import share
from dist_classicrl.learning.supersteps.by_messages import hot_rows
from dist_classicrl.learning.supersteps.by_messages.exchanges import packed, together, unpacked
from dist_classicrl.learning.supersteps.by_messages.hot_rows import HotRows
from dist_classicrl.learning.supersteps.copies import fill, new_copies
from dist_classicrl.learning.supersteps.share import supersteps
from dist_classicrl.rules import ExpectedSarsa, NStepSarsa, Sarsa
from dist_classicrl.rules.behaviors import FixedPolicy

# Each kernel here takes long to compile.
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("fast_ramp")]

STEPS = 60_000


def short(forbidden=True, **more):
    """Return a model with episodes of four steps at most, which all begin in one state."""
    model = garnet(forbidden, max_episode_steps=4, **more)
    start = np.zeros(model.n_states)
    start[41] = 1.0
    return replace(model, start_prob=start)


@pytest.fixture
def chosen(monkeypatch):
    """Let rows be hot with few walkers and soon; return how many were, at each choice on any rank."""
    monkeypatch.setattr(hot_rows, "LEAST_WALKERS", 1)
    monkeypatch.setattr(hot_rows, "WINDOW", 16)
    seen, choose = [], HotRows.choose

    def noted(self, parts, owners_of):
        changed = choose(self, parts, owners_of)
        seen.append(len(self))
        return changed

    monkeypatch.setattr(HotRows, "choose", noted)
    return seen


@pytest.fixture
def at_random(chosen, monkeypatch):
    """Let any rows of a rank be candidates, as often as they may be, others each time."""
    random = np.random.default_rng(7)
    candidates = HotRows.candidates

    def any_rows(self):
        if self._own_states is not None:
            self._visited = [random.choice(self._own_states, self._own_states.size // 3)]
            self._weights = [1e6]
        return candidates(self)

    monkeypatch.setattr(HotRows, "candidates", any_rows)
    return chosen


def without_hot_rows(monkeypatch):
    monkeypatch.setattr(share, "most_copies", lambda ranks: 0)


def check_same(problem, chosen, monkeypatch, steps=STEPS, cuts=()):
    one = learned(problem, steps)
    for ranks, partition in ((2, "range"), (3, "hash"), (5, "range")):
        assert learned(problem, steps, ranks, partition) == one
        assert max(chosen) > 0
        chosen.clear()
    if cuts:
        assert learned(problem, steps, 2, "range", cuts=cuts) == one
    chosen.clear()
    with monkeypatch.context() as patched:
        without_hot_rows(patched)
        assert learned(problem, steps, 3) == one and not chosen
    return one


CUTS = ((256, 3, "hash"), (25_600, 5, "range"), (25_856, 2, "hash"), (50_176, 4, "hash"))


def test_ranks_and_partitions_learn_the_same_with_hot_rows(chosen, monkeypatch):
    problem = problem_of(short(), settings_of())
    one = check_same(problem, chosen, monkeypatch, cuts=CUTS)
    assert one.counts.sum() == STEPS and one.totals[0] > STEPS / 5


def test_whichever_rows_are_hot_and_however_often_that_changes(at_random, monkeypatch):
    check_same(problem_of(short(), settings_of()), at_random, monkeypatch, cuts=CUTS)


def test_targets_of_steps_that_wait_come_to_the_owners_of_hot_rows(at_random, monkeypatch):
    problem = problem_of(short(forbidden=False), settings_of(algorithm=NStepSarsa(n=3)))
    one = learned(problem, STEPS, 2)
    with monkeypatch.context() as patched:
        without_hot_rows(patched)
        assert learned(problem, STEPS, 2) == one
    assert learned(problem, STEPS, 5) == one and max(at_random) > 5


@pytest.mark.parametrize("rule", [ExpectedSarsa(), Sarsa(), DoubleQ()])
def test_rules(rule, at_random, monkeypatch):
    with registered():
        problem = problem_of(short(), settings_of(algorithm=rule, dtype="float32"))
        one = learned(problem, STEPS, 2)
        for ranks in (3, 5):
            assert learned(problem, STEPS, ranks) == one
        without_hot_rows(monkeypatch)
        assert learned(problem, STEPS, 2) == one


def test_a_partition_of_the_users_and_a_policy(at_random, monkeypatch):
    model = short(forbidden=False)
    policy = np.random.default_rng(3).dirichlet(np.ones(5), model.n_states)
    for settings in (settings_of(), settings_of(behavior=FixedPolicy(policy))):
        problem = problem_of(model, settings)
        found = learned(problem, STEPS, 3, by_remainder)
        with monkeypatch.context() as patched:
            without_hot_rows(patched)
            assert learned(problem, STEPS, 3, by_remainder) == found


def loads(ranks):
    """Return how many steps each of so many ranks makes of those in which all walkers move."""
    problem = problem_of(short(n_states=2000), settings_of())
    shares, moved = shares_of(problem, ranks), np.zeros(ranks, np.int64)
    stream = Stream(KEY, 0)
    stream.last = 200_000
    for stretch, done, size in supersteps(stream, problem.rates, 256, stream.last):
        together([each.superstep(stretch, done, size) for each in shares])
        if stream.used > 50_000:
            moved += [each.moved for each in shares]
    return moved


def test_no_rank_has_more_to_do_because_it_owns_a_hot_row(chosen, monkeypatch):
    moved = loads(8)
    assert moved.max() < 1.3 * moved.mean()
    without_hot_rows(monkeypatch)
    moved = loads(8)
    assert moved.max() > 1.8 * moved.mean()


def test_few_walkers_make_no_row_hot():
    problem = problem_of(short(), settings_of())
    for ranks, n_walkers in ((5, 51), (3, 85)):
        shares = shares_of(problem, ranks)
        play(shares, Stream(KEY, 0), STEPS, problem.rates)
        assert (shares[0].n_hot_rows > 0) == (n_walkers >= hot_rows.LEAST_WALKERS)
        assert len({each.n_hot_rows for each in shares}) == 1


# What goes wrong


@pytest.fixture
def hot_shares(chosen):
    """Return two shares with hot rows of both."""
    problem = problem_of(short(), settings_of())
    shares = shares_of(problem, 2)
    play(shares, Stream(KEY, 0), 20_000, problem.rates)
    hot = shares[0]._hot
    assert len(hot) and set(hot._owners.tolist()) == {0, 1}
    return shares


def test_rows_of_others_are_refused(hot_shares):
    zero, one = (each._hot for each in hot_shares)
    told = [zero.candidates()[0], one.candidates()[0]]
    row = np.concatenate([[one._states[one._own[0]], 9], zero._last_told[0]])[np.newaxis]
    with pytest.raises(ProtocolError, match="Rows that are not the sender's"):
        zero.choose([row, told[1]], hot_shares[0]._whose)
    row[0, 0] = 90
    with pytest.raises(ProtocolError, match="Rows that are not the sender's"):
        zero.choose([row, told[1]], hot_shares[0]._whose)
    changed = np.concatenate([[zero._own[0]], zero._last_told[0]])[np.newaxis]
    nothing = changed[:0]
    zero.take_changed([changed, nothing])
    for which in (zero._own[0], -1, len(zero)):
        changed[0, 0] = which
        with pytest.raises(ProtocolError, match="Rows that are not the sender's"):
            zero.take_changed([nothing, changed])
    with pytest.raises(ProtocolError, match="Rows of another length"):
        zero.take_changed([nothing, changed[:, 1:]])


def test_targets_that_cannot_be_are_refused(hot_shares):
    first, hot, crew = hot_shares[0], hot_shares[0]._hot, hot_shares[0]._crew
    own, other = hot._states[hot._own[0]], hot._states[hot._owners == 1][0]
    crew.sizes[:] = 0
    good = np.array([[own, (7 << 32) | (2 << 8), 0]])
    nothing = good[:0]
    hot.take_told(crew, 256, [nothing, good])
    assert (crew.sizes[0], crew.numbers[0], crew.actions[0], crew.pairs[0]) == (1, 7, 2, own * 5 + 2)
    for state, what in ((other, 7 << 32), (own, 256 << 32), (own, -1 << 32), (own, 5 << 8), (own, 1)):
        crew.sizes[:] = 0
        with pytest.raises(ProtocolError, match="Targets of no entry"):
            hot.take_told(crew, 256, [nothing, np.array([[state, what, 0]])])
    crew.sizes[:] = 0
    with pytest.raises(ProtocolError, match="Targets of no entry"):
        hot.take_told(crew, 256, [good, good])
    record, reply = np.zeros((1, first.words), np.int64), np.zeros((1, 1))
    for place, state, message in ((1, own, "no record"), (-1, own, "no record"), (0, 91, "not hot")):
        asked = [np.array([[place, state]]), nothing[:, :2]]
        with pytest.raises(ProtocolError, match=message):
            hot.tell(record, np.array([1, 0]), reply, asked)


def test_two_arrays_in_one_part():
    first, second = np.arange(8.0).reshape(4, 2), np.arange(3).reshape(1, 3)
    part = packed(first, second)
    found = unpacked(part, 2, 3)
    np.testing.assert_array_equal(found[0].view(np.float64), first)
    np.testing.assert_array_equal(found[1], second)
    for wrong in (part[:0], part[:-1], part[:7], np.array([[-1]])):
        with pytest.raises(ProtocolError, match="not what it was asked for"):
            unpacked(wrong, 2, 3)


def test_copies_are_found_where_slots_are_taken():
    copies, states = new_copies(16), np.arange(0, 88, 8)
    fill(copies, states, states + 1, states % 3)
    assert sorted(copies.states.tolist()) == [-1] * 5 + states.tolist()
    fill(copies, states[:2], states[:2], states[:2])
    assert sorted(copies.states.tolist()) == [-1] * 14 + [0, 8]
