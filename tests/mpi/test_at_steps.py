"""What is asked for at a step happens there, or on the first table of the server that contains as many."""

import numpy as np
import pytest

from dist_classicrl.callbacks import (
    BaseCallback,
    EvalCallback,
    MetricsCallback,
    StopTrainingOnReturn,
    StopTrainingOnRewardThreshold,
)
from dist_classicrl.checkpoint.folder import CheckpointFolder
from dist_classicrl.environments import TabularMDP
from dist_classicrl.monitoring import read_metrics
from dist_classicrl.monitoring.reading import COLUMNS

#: What a row says besides: how fast it was, how many ranks there were, and what they told each other.
OF_RANKS = {"time", "seconds", "steps_per_second", "communication_fraction", "workers"}
OF_RANKS |= {"bytes_pushed", "bytes_pulled"}


def rows(folder):
    metrics = read_metrics(folder)
    return {name: metrics[name].tolist() for name in COLUMNS if name not in OF_RANKS}


def test_rows_of_the_reproducible_mode_are_those_of_one_process(world, alone, make_agent, folder, tmp_path):
    env = TabularMDP.garnet(30, 3, 4, seed=3, max_episode_steps=17)
    found = []
    for comm, where in ((world, folder / "together"), (alone, tmp_path / f"alone-{world.rank}")):
        agent = make_agent(async_updates=False, logical_workers=5, sync_frequency=4, batch_size=8, comm=comm)
        evaluation = EvalCallback(env, eval_freq=3_000, n_eval_episodes=3, log_path=where)
        stop = StopTrainingOnReturn(1e9)
        result = agent.train(
            env,
            total_steps=40_000,
            callbacks=[evaluation, stop, MetricsCallback(where)],
            checkpoint_dir=where / "saved",
            checkpoint_interval="5ms",
        )
        assert result.steps == 40_000
        world.Barrier()
        with np.load(where / "evaluations.npz", allow_pickle=False) as saved:
            told = {name: saved[name].tolist() for name in saved.files if name != "run"}  # each has a name
            found.append((rows(where), told))
    together, single = found
    assert repr(together) == repr(single)
    full = 5 * 4 * 8
    assert together[1]["timesteps"] == [-(-step // full) * full for step in range(3_000, 40_000, 3_000)]
    assert len(together[0]["step"]) >= 200


def test_a_reproducible_run_ends_at_the_same_step_on_any_number_of_ranks(world, alone, make_agent, lake):
    made = []
    for comm in (world, alone):
        stop = StopTrainingOnRewardThreshold(0.5)
        evaluation = EvalCallback(lake, callback_on_new_best=stop, eval_freq=4_000, n_eval_episodes=100)
        agent = make_agent(async_updates=False, logical_workers=5, sync_frequency=10, epsilon=0.3, comm=comm)
        result = agent.train(lake, total_steps=10**9, callbacks=evaluation)
        made.append((result.steps, agent.q_table.tobytes()))
    assert made[0] == made[1]
    assert made[0][0] % (5 * 10 * 32) == 0


class Tables(BaseCallback):
    """Notes how many steps there are in each table of the server, and of which of them it hears."""

    def __init__(self, every, ends_after=None):
        super().__init__()
        self.every, self.ends_after = every, ends_after
        self.tables, self.heard = [], []

    def _next_step(self, after):
        return (after // self.every + 1) * self.every

    def _on_training_start(self):
        self.tables.append(self.num_timesteps)

    def _on_push(self, rank, steps, staleness, n_bytes):
        self.tables.append(self.tables[-1] + steps)

    def _on_step(self):
        assert self.num_timesteps == self.model.visits.sum() == self.tables[-1]
        self.heard.append(self.num_timesteps)
        return self.ends_after is None or self.num_timesteps < self.ends_after


@pytest.mark.core
@pytest.mark.parametrize("sync_frequency", ["auto", 7])
def test_the_server_reports_the_first_table_that_contains_as_many_steps(
    world, make_agent, lake, sync_frequency
):
    tables = Tables(every=9_000)
    agent = make_agent(sync_frequency=sync_frequency)
    agent.train(lake, total_steps=300_000, callbacks=tables)
    if world.rank:
        return
    points = [-(-point * 300_000 // 200) for point in range(1, 201)]
    firsts = {
        min(made for made in tables.tables if made >= asked)
        for asked in [*points, *range(9_000, 300_000, 9_000)]
    }
    assert firsts <= set(tables.heard)


def test_a_callback_ends_an_asynchronous_run_at_the_first_table_with_its_step(world, make_agent, lake):
    tables = Tables(every=100_000, ends_after=300_000)
    result = make_agent().train(lake, total_steps=10**12, callbacks=tables)
    assert 300_000 <= result.steps < 10**12
    if world.rank == 0:
        first = min(made for made in tables.tables if made >= 300_000)
        # Then come the workers' last pushes, which are reported with the end.
        assert min(step for step in tables.heard if step >= 300_000) == first
        assert [step for step in tables.heard if step > first] in ([], [result.steps])


@pytest.mark.parametrize("async_updates", [True, False])
def test_checkpoints_by_steps_begin_at_multiples(world, make_agent, lake, folder, async_updates):
    agent = make_agent(async_updates=async_updates, logical_workers=5, sync_frequency=10)
    agent.train(lake, total_steps=700_000, checkpoint_dir=folder, checkpoint_interval=200_000, keep_last=100)
    if world.rank:
        return
    store = CheckpointFolder(folder, "agent-0")
    first, *_, last = sorted(int(name.split("step")[1].split("-")[0]) for name in store.names())
    assert 200_000 <= first and last == 700_000
    if world.size == 1 or not async_updates:
        assert first == (200_000 if async_updates else -(-200_000 // 1_600) * 1_600)
