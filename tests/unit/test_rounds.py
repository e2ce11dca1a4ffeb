"""The reproducible mode's schedule, and that it does not matter who plays whose part."""

import time

import numpy as np
import pytest
from made_learners import learner_of
from round_parts import sums_of

from dist_classicrl import DistAsyncQLearning
from dist_classicrl.checkpoint.manifest import MANIFEST
from dist_classicrl.engines.rounds.messages import RoundMaps
from dist_classicrl.engines.rounds.server import carriers
from dist_classicrl.engines.schedule import (
    MOVING_LOAD,
    SETTLED_LOAD,
    Pace,
    RoundPlayer,
    next_quotas,
)
from dist_classicrl.environments.model import TabularMDP
from dist_classicrl.learning.learner import Stream
from dist_classicrl.model import places
from dist_classicrl.schedules import Linear, PerVisit
from dist_classicrl.settings import ROUND_UPDATES, Settings
from dist_classicrl.tables import round_kernels
from dist_classicrl.tables.maps import PackedSums
from dist_classicrl.tables.round_merge import Parts, RoundMerge, group_size, parts_of
from dist_classicrl.tables.shared import SharedTable

MODEL = TabularMDP.garnet(15, 3, 3, seed=1, max_episode_steps=40)


@pytest.mark.parametrize("steps", [0, 1, 5, 16, 95, 96, 97, 1000])
@pytest.mark.parametrize("workers", [1, 3, 16])
def test_quotas_are_the_steps_cut_into_rounds(workers, steps):
    settings = Settings(async_updates=False, logical_workers=workers, batch_size=3)
    at, end, keys = 700, 700 + steps, []
    while at < end:
        quotas = next_quotas(settings, 2, at, end - at, 1)
        assert [quota.worker for quota in quotas.each()] == list(range(workers))
        sizes = [quota.steps for quota in quotas.each()]
        assert sum(sizes) == quotas.total
        assert max(sizes) - min(sizes) <= 1 and max(sizes) > 0
        for quota in quotas.each():
            assert quota.start == at
            at += quota.steps
            keys.append(int(quota.key))
        if at < end:
            assert sizes == [6] * workers
    assert at == end
    assert len(set(keys)) == len(keys)


def test_logical_workers_of_a_rank_are_neighbors_and_none_has_more_than_one_must():
    for n_workers in (1, 10, 16, 17):
        settings = Settings(async_updates=False, logical_workers=n_workers)
        for n_ranks in range(1, 20):
            carried = list(carriers(settings, list(range(1, n_ranks + 1))).values())
            assert len(carried) == n_workers and carried == sorted(carried)
            assert max(map(carried.count, carried)) == -(-n_workers // n_ranks)


@pytest.mark.parametrize("n_workers", [1, 2, 5, 16, 17, 100])
def test_parts_are_whole_groups_or_single_workers(n_workers):
    size = group_size(n_workers)
    assert size**2 >= n_workers > (size // 2) ** 2
    for first in range(n_workers):
        for end in range(first, n_workers + 1):
            parts = list(parts_of(first, end, n_workers))
            assert [worker for part in parts for worker in part] == list(range(first, end))
            for part in parts:
                is_group = part.start % size == 0 and part.stop == min(part.start + size, n_workers)
                assert is_group or len(part) == 1


def slowly_merged(learner, shared, merge, quotas):
    """Play a round and merge it in plain steps: each worker's maps, then groups by hand; return N k a."""
    table, parts = learner.table, []
    for quota in quotas.each():
        learner.learn(quota.worker, Stream(quota.key, quota.start), quota.steps)
        packed = table.pack()
        table.undo(packed)
        parts.append(Parts.one(quota.worker, sums_of(packed)))
    return merge.merge(parts)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"learning_rate": 0.3},
        {"learning_rate": PerVisit(0.7), "epsilon": 0.2},
        {"learning_rate": PerVisit(0.7), "replay_ratio": 0.5, "buffer_size": 50},
    ],
    ids=["constant", "per visit", "replay"],
)
def test_the_table_is_the_same_bits_whoever_plays(settings):
    settings = Settings(**{
        "async_updates": False, "logical_workers": 6, "sync_frequency": 3, "batch_size": 10,
        "epsilon": Linear(1.0, 0.1, 1500), **settings,
    })  # fmt: skip

    def trained(ranks):
        shared = SharedTable(np.zeros(45), np.zeros(45, np.int64))
        merge = RoundMerge(shared)
        each = -(-6 // max(1, ranks))
        learners = [learner_of(MODEL, settings, 6, range(6)) for _ in range(max(1, ranks))]
        players = [RoundPlayer(learner) for learner in learners]
        rng = np.random.default_rng(ranks)
        loads, start = [], 0
        while start < 1517:
            quotas = next_quotas(settings, 3, start, 1517 - start, 9)
            version = shared.version
            if ranks == 0:
                loads.append(slowly_merged(learners[0], shared, merge, quotas))
            else:
                parts = {}
                for rank in rng.permutation(ranks):  # they are not equally fast
                    table = learners[rank].table
                    before = table.q.copy(), table.visits.copy()
                    carried = range(rank * each, min(6, (rank + 1) * each))
                    parts[carried.start], _ = players[rank].play(quotas.of(carried))
                    assert np.array_equal(table.q, before[0]) and np.array_equal(table.visits, before[1])
                loads.append(merge.merge([parts[first] for first in sorted(parts)]))
            for table in (learner.table for learner in learners):
                table.rebase(shared.refresh(version), [])
                assert np.array_equal(table.q, shared.values) and np.array_equal(table.visits, shared.counts)
                # What it puts rows back to is kept, and not searched for in each round.
                assert np.array_equal(table.start.best, table.best)
                assert np.array_equal(table.start.greedy, table.greedy)
            start += quotas.total
        assert shared.counts.sum() == 1517
        return shared.values.tobytes(), shared.counts.tobytes(), loads

    expected = trained(0)
    assert [trained(ranks) for ranks in (1, 2, 3, 6)] == [expected] * 4


@pytest.mark.slow
def test_the_order_in_which_entries_were_seen_does_not_show():
    rng = np.random.default_rng(4)
    sums = [
        PackedSums(np.arange(500), rng.random(500), rng.normal(size=500), visits.astype(float), visits)
        for visits in rng.integers(1, 50, (3, 500))
    ]
    found = set()
    for order in (np.arange(500), np.arange(500)[::-1], rng.permutation(500)):
        shared = SharedTable(np.zeros(500), np.zeros(500, np.int64))
        each = [PackedSums(*(array[order] for array in one)) for one in sums]
        load = RoundMerge(shared).merge([Parts.one(number, one) for number, one in enumerate(each)])
        found.add((load, shared.values.tobytes(), shared.counts.tobytes()))
    assert len(found) == 1 and load > 0.0


def test_maps_of_others_are_read_only_where_their_parts_are_what_they_should_be():
    sums = PackedSums(np.arange(5, dtype=np.int32), *np.ones((3, 5)), np.ones(5, np.int64))

    def is_taken(first=4, counts=(4, 1), ends=(3, 5), sums=sums, totals=20):
        parts = Parts(first, np.array(counts), np.array(ends), sums)
        maps = RoundMaps(1, 5, 0.0, 0.0, np.zeros(totals), parts, {})
        return maps.is_of(range(4, 9), 16)

    assert is_taken() and is_taken(ends=(0, 5)) and is_taken(ends=(5, 5))
    for wrong in [
        {"first": 3}, {"counts": (1, 4)}, {"counts": (5,)}, {"ends": (3, 6)}, {"ends": (3, 4)},
        {"ends": (6, 5)}, {"ends": (-1, 5)}, {"ends": (5,)}, {"ends": (0, 3, 5)}, {"totals": 16},
        *({"sums": sums._replace(**{name: getattr(sums, name)[:4]})} for name in sums._fields),
    ]:  # fmt: skip
        assert not is_taken(**wrong), wrong


@pytest.mark.slow
def test_what_is_abandoned_leaves_nothing_behind():
    settings = Settings(async_updates=False, logical_workers=4, replay_ratio=0.5, buffer_size=10)
    learner = learner_of(MODEL, settings, 4, range(4))
    player = RoundPlayer(learner)
    quotas = next_quotas(settings, 1, 0, 10_000, 3)
    assert player.play(quotas.of(range(2)), lambda: False) is None
    with pytest.raises(ZeroDivisionError):
        player.play(quotas.of(range(2)), lambda: 1 / 0)
    whole, _ = RoundPlayer(learner_of(MODEL, settings, 4, range(4))).play(quotas)
    for number in range(4):
        learner.add(number, None, 0)  # as new
    again, _ = player.play(quotas)
    assert again.ends.tolist() == whole.ends.tolist()
    assert [array.tobytes() for array in again.sums] == [array.tobytes() for array in whole.sums]


def test_the_logarithm_of_weights_is_near_enough():
    for weight in [1.0, 0.999, 0.75, 0.5000001, 0.5, 1e-3, 2.0**-1022]:
        assert round_kernels.halvings(weight) == pytest.approx(-np.log2(weight), abs=0.09)
    assert round_kernels.halvings(1.0) == 0.0 and round_kernels.halvings(0.25) == 2.0
    assert round_kernels.halvings(0.0) == round_kernels.halvings(1e-320) == 1023.0


# The length of rounds


SETTINGS = Settings(async_updates=False, batch_size=10)


def paces(values_of, load, rounds, settings=SETTINGS, is_compiled=True):
    """Return the pace after each of so many rounds, whose table is `values_of` the steps made."""
    pace, found = Pace.first(settings, is_compiled), []
    for _ in range(rounds):
        steps = pace.updates * settings.logical_workers * settings.batch_size
        values = np.full(8, values_of(pace.made + steps))
        pace = pace.after(steps, load(pace.updates), values, settings)
        found.append(pace)
    return found


def test_rounds_are_short_while_values_move_and_grow_once_they_stand():
    def load(updates):
        return 1.0 * updates / ROUND_UPDATES

    moving = paces(lambda made: float(made), load, 300)
    assert {pace.updates for pace in moving} == {ROUND_UPDATES} and moving[-1].is_moving
    for values_of in (lambda made: 5.0, lambda made: 5.0 + (made // 5120) % 2):  # still; up and down
        settled = paces(values_of, load, 300)
        assert not settled[-1].is_moving
        assert load(settled[-1].updates) == pytest.approx(SETTLED_LOAD, rel=0.1)
    few = paces(lambda made: float(made), lambda updates: 5e-4 * updates, 3000)  # few visits
    assert few[-1].updates * 5e-4 == pytest.approx(MOVING_LOAD, rel=0.1)
    for before, pace in zip(few, few[1:], strict=False):
        assert pace.updates <= 2 * before.updates
        assert pace.updates * 160 <= max(pace.made / 32, ROUND_UPDATES * 160)


def test_values_that_move_again_make_rounds_short_again():
    end = 200 * 5120
    found = paces(lambda made: 5.0 + max(0, made - end), lambda updates: updates / ROUND_UPDATES, 600)
    longest = max(found, key=lambda pace: pace.updates)
    assert longest.updates > 8 * ROUND_UPDATES and longest.made < 3 * end
    assert found[-1].is_moving and found[-1].updates == ROUND_UPDATES


def test_noise_that_goes_one_way_for_a_while_does_not_make_rounds_short():
    def drifting(share):
        """Return the value after so many steps: up and down, and then one way by `share` in each quarter."""

        def value_of(made):
            looks = max(0.0, np.log(made / end) / np.log(1.25))
            return 5.0 * (1.0 + share * looks) + (made // 5120) % 2 * (made < end)

        return value_of

    end = 200 * 5120
    for share, moves in ((0.03, False), (0.2, True)):
        found = paces(drifting(share), lambda updates: updates / ROUND_UPDATES, 400)
        assert found[-1].made > 3.5 * end
        assert len(set(found[-1].ways)) == 1  # it went one way in the last looks
        assert found[-1].is_moving is moves


def test_rounds_are_as_long_as_asked_for_or_as_an_environment_that_is_stepped_needs():
    fixed = Settings(async_updates=False, sync_frequency=7, batch_size=10)
    assert {pace.updates for pace in paces(lambda made: 5.0, lambda updates: 0.0, 50, fixed)} == {7}
    stepped = paces(lambda made: 5.0, lambda updates: 0.0, 50, is_compiled=False)
    assert {pace.updates for pace in stepped} == {ROUND_UPDATES}


def test_the_pace_goes_through_files_and_nothing_else_passes_for_one():
    pace = paces(lambda made: 5.0 + (made // 5120) % 2, lambda updates: 0.1, 40)[-1]
    data = pace.to_dict()
    assert Pace.is_described_by(data) and Pace.from_dict(data) == pace
    wrong = [
        ("updates", 0), ("updates", 1.5), ("may_grow", 1), ("made", -1), ("looked", pace.made + 1),
        ("mean", float("nan")), ("mean", 1), ("ways", [2]), ("ways", [0] * 6), ("ways", "0"),
    ]  # fmt: skip
    for name, value in wrong:
        assert not Pace.is_described_by({**data, name: value}), name
    for other in (None, {}, {**data, "more": 1}, [data]):
        assert not Pace.is_described_by(other)


@pytest.mark.slow
def test_a_call_of_train_makes_its_rounds_longer(monkeypatch):
    lengths = []
    after = Pace.after

    def noting(self, steps, *rest):
        lengths.append(steps)
        return after(self, steps, *rest)

    monkeypatch.setattr(Pace, "after", noting)
    agent = DistAsyncQLearning(seed=1, async_updates=False, discount_factor=0.9)
    agent.train(MODEL, total_steps=3_000_000)
    assert sum(lengths) == 3_000_000
    assert lengths[0] == 16 * 32 * ROUND_UPDATES < max(lengths) <= 3_000_000 / 32


@pytest.mark.slow
def test_a_run_that_goes_on_from_a_checkpoint_makes_rounds_as_long(monkeypatch, tmp_path):
    def trained(**saved):
        monkeypatch.setattr(places, "_agents", {})  # agents are numbered as in a new process
        agent = DistAsyncQLearning(seed=1, async_updates=False, discount_factor=0.9)
        agent.train(MODEL, total_steps=3_000_000, **saved)
        return agent.q_table.tobytes(), agent.visits.tobytes()

    expected = trained()
    after, lengths = Pace.after, []

    def failing(self, steps, *rest):
        lengths.append(self.updates)
        if self.made > 2_700_000:
            while not any(tmp_path.rglob(MANIFEST)):  # the first checkpoint is being written
                time.sleep(0.01)
            raise ZeroDivisionError
        return after(self, steps, *rest)

    saved = {"checkpoint_dir": tmp_path, "checkpoint_interval": 500_000}
    with monkeypatch.context() as patched:
        patched.setattr(Pace, "after", failing)
        with pytest.raises(ZeroDivisionError):
            trained(**saved)
    assert lengths[-1] > ROUND_UPDATES
    begun = []
    monkeypatch.setattr(Pace, "after", lambda self, *rest: begun.append(self) or after(self, *rest))
    assert trained(**saved) == expected
    assert begun[0].made >= 500_000 and begun[0].looked > 0  # not from the beginning
