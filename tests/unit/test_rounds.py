"""The reproducible mode's schedule, and that it does not matter who plays whose part."""

import numpy as np
import pytest
from made_learners import learner_of

from dist_classicrl.engines.rounds.server import carriers
from dist_classicrl.engines.schedule import play, round_steps, rounds
from dist_classicrl.environments.model import TabularMDP
from dist_classicrl.schedules import Linear, PerVisit
from dist_classicrl.settings import ROUND_UPDATES, Settings
from dist_classicrl.tables.shared import RoundMerge, SharedTable

MODEL = TabularMDP.garnet(15, 3, 3, seed=1, max_episode_steps=40)


@pytest.mark.parametrize("steps", [0, 1, 5, 16, 95, 96, 97, 1000])
@pytest.mark.parametrize("workers", [1, 3, 16])
def test_quotas_are_the_steps_cut_into_rounds(workers, steps):
    settings = Settings(async_updates=False, logical_workers=workers, sync_frequency=2, batch_size=3)
    at = 700
    dealt = list(rounds(settings, 700, steps))
    for number, quotas in enumerate(dealt):
        assert [quota.worker for quota in quotas] == list(range(workers))
        sizes = [quota.steps for quota in quotas]
        assert max(sizes) - min(sizes) <= 1 and max(sizes) > 0
        if number + 1 < len(dealt):
            assert sizes == [6] * workers
        for quota in quotas:
            assert quota.start == at
            at += quota.steps
    assert at == 700 + steps


def test_auto_is_a_fixed_number():
    assert round_steps(Settings(batch_size=10)) == 10 * ROUND_UPDATES == 320
    assert round_steps(Settings(batch_size=10, sync_frequency=7)) == 70


def test_logical_workers_are_spread_evenly():
    settings = Settings(async_updates=False, logical_workers=10)
    carried = carriers(settings, [1, 2, 5])
    assert sorted(carried) == list(range(10))
    counts = [list(carried.values()).count(rank) for rank in (1, 2, 5)]
    assert sorted(counts) == [3, 3, 4]


@pytest.mark.parametrize("learning_rate", [0.3, PerVisit(0.7)])
def test_the_table_is_the_same_bits_whoever_plays(learning_rate):
    settings = Settings(
        async_updates=False, logical_workers=5, sync_frequency=3, batch_size=10,
        learning_rate=learning_rate, epsilon=Linear(1.0, 0.1, 1500),
    )  # fmt: skip

    def trained(ranks):
        shared = SharedTable(np.zeros(45), np.zeros(45, np.int64))
        merge = RoundMerge(shared)
        learners = [learner_of(MODEL, settings, 5, range(rank, 5, ranks)) for rank in range(ranks)]
        rng = np.random.default_rng(ranks)
        for quotas in rounds(settings, 0, 1517):
            maps = {}
            for i in rng.permutation(5):  # ranks are not equally fast
                learner = learners[i % ranks]
                table = learner.table
                before = table.q.copy(), table.visits.copy()
                maps[int(i)] = play(quotas[i], learner, seed=9)
                assert table.q.tolist() == before[0].tolist() and table.visits.tolist() == before[1].tolist()
            version = shared.version
            merge.merge([maps[logical] for logical in range(5)])
            for table in (learner.table for learner in learners):
                table.rebase(shared.refresh(version), [])
                assert table.q.tolist() == shared.values.tolist()
                assert table.visits.tolist() == shared.counts.tolist()
        assert shared.counts.sum() == 1517
        return shared.values.tobytes(), shared.counts.tobytes()

    expected = trained(1)
    assert [trained(ranks) for ranks in (2, 3, 5)] == [expected] * 3
