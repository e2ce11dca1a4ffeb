"""What callbacks hear on the rank that serves, and how one of them ends the run."""

import os
import signal
import socket
import threading
import time

import numpy as np
import pytest
from own_signals import own_signals
from rank_environments import Corridor

from dist_classicrl.callbacks import BaseCallback
from dist_classicrl.checkpoint.folder import CheckpointFolder
from dist_classicrl.engines.server import training
from dist_classicrl.errors import RemoteRankError, SettingsError, TrainingStopped
from dist_classicrl.model import places

# Nobody makes so many steps before what ends the run.
LONG = 10**12


@pytest.fixture(autouse=True)
def only_the_signals_of_this_test(monkeypatch):
    """Leave the handlers of signals as they were."""
    with own_signals(monkeypatch):
        yield


class Listener(BaseCallback):
    """Notes all that it hears; ends the run after so many steps."""

    def __init__(self, ends_after=None):
        super().__init__()
        self.ends_after = ends_after
        self.heard, self.reports, self.sums, self.pushed = [], [], [], 0

    def _on_training_start(self):
        self.heard.append("start")

    def _on_rollout_start(self):
        self.heard.append("learning")

    def _on_rollout_end(self):
        self.heard.append("report")

    def _on_step(self):
        self.reports.append(self.progress)
        self.sums.append(int(self.model.visits.sum()))
        return self.ends_after is None or self.progress.steps < self.ends_after

    def _on_training_end(self):
        self.heard.append("end")

    def _on_checkpoint(self, steps, name):
        self.heard.append(("checkpoint", steps))

    def _on_push(self, rank, steps, staleness, n_bytes):
        self.pushed += steps


@pytest.mark.core
@pytest.mark.parametrize("async_updates", [True, False])
def test_reports_add_up_to_the_result(world, make_agent, lake, async_updates, tmp_path_factory, monkeypatch):
    monkeypatch.setattr(training.AsyncRoles, "ramp_seconds", 0.0)  # all learn from the first step on
    folder = world.bcast(str(tmp_path_factory.mktemp("saved")) if world.rank == 0 else None)
    listener = Listener()
    agent = make_agent(async_updates=async_updates, logical_workers=4, epsilon=0.3)
    result = agent.train(
        lake,
        total_steps=400_000,
        callbacks=listener,
        progress_interval=0.02,
        checkpoint_dir=folder,
        checkpoint_interval=100_000,
    )
    if world.rank:
        assert listener.heard == [] and listener.result is None
        return
    reports = listener.reports
    assert listener.heard[:3] == ["start", "learning", "report"] and listener.heard[-1] == "end"
    assert listener.result == result and listener.num_timesteps == 400_000 == agent.steps
    steps = [report.steps for report in reports]
    assert steps == sorted(steps) and steps[-1] == 400_000
    assert sum(report.episodes for report in reports) == result.episodes > 0
    returns = sum(report.mean_return * report.episodes for report in reports if report.episodes)
    assert returns == pytest.approx(result.mean_return * result.episodes)
    assert sum(report.bytes_pushed for report in reports) == result.bytes_pushed
    assert sum(report.pushes for report in reports) == result.pushes
    # A report at each checkpoint's step, so that records of a run that goes on from there have no gap.
    saved = [heard[1] for heard in listener.heard if heard[0] == "checkpoint"]
    assert saved and set(saved) <= set(steps)
    # The agent that callbacks see is that of the moment.
    assert all(seen == report.steps for seen, report in zip(listener.sums, reports, strict=True))
    # In rounds the rank that serves plays as well where that makes the longest part shorter: of 2 ranks.
    workers = 2 if world.size == 2 and not async_updates else max(1, world.size - 1)
    learning = min(workers, 4) if not async_updates else workers
    for report in reports:
        assert len(report.ranks) == report.workers == workers
        assert {rank.host for rank in report.ranks} == {socket.gethostname()}
        assert 0 <= report.communication_fraction <= 1 and report.epsilon == 0.3
    assert sum(rank.steps for report in reports for rank in report.ranks) == 400_000
    assert len({rank.rank for report in reports for rank in report.ranks if rank.steps}) == learning
    assert listener.pushed == 400_000
    # Rewards are 0 or 1, so values stay below 1. Without a step since the last report there is no error.
    errors = [report.td_error for report in reports if not np.isnan(report.td_error)]
    assert errors and all(0.0 < error < 1.0 for error in errors)


@pytest.mark.core
@pytest.mark.parametrize("async_updates", [True, False])
def test_a_callback_ends_the_run_early_and_it_stays_ended(
    world, make_agent, lake, async_updates, tmp_path_factory
):
    folder = world.bcast(str(tmp_path_factory.mktemp("saved")) if world.rank == 0 else None)

    def train(agent, ends_after, steps=LONG):
        return agent.train(
            lake,
            total_steps=steps,
            callbacks=[Listener(ends_after)],
            progress_interval=0.01,
            checkpoint_dir=folder,
        )

    agent = make_agent(async_updates=async_updates, logical_workers=4)
    result = train(agent, 100_000)
    made = world.allgather((result.steps, agent.steps, int(agent.visits.sum()), agent.q_table.tobytes()))
    assert len(set(made)) == 1
    assert 100_000 <= result.steps == agent.steps == agent.visits.sum() < LONG
    # The next call goes on from there.
    second = train(agent, None, 1_000)
    assert second.steps == 1_000 and agent.steps == result.steps + 1_000


def test_a_run_that_was_ended_early_is_not_taken_up_again(
    world, make_agent, lake, tmp_path_factory, monkeypatch
):
    folder = world.bcast(str(tmp_path_factory.mktemp("saved")) if world.rank == 0 else None)
    first, listener = make_agent(), Listener(100_000)
    settings = {"total_steps": LONG, "checkpoint_dir": folder, "progress_interval": 0.01}
    ended = first.train(lake, callbacks=listener, **settings)
    # The same script in another process.
    monkeypatch.setattr(places, "_agents", {})
    again = make_agent()
    result = again.train(lake, callbacks=Listener(), **settings)
    assert (result.steps, again.steps) == (ended.steps, ended.steps) and result.resumed_from is not None
    assert again.q_table.tobytes() == first.q_table.tobytes()
    # A larger number of steps is another call: it goes on.
    monkeypatch.setattr(places, "_agents", {})
    further = make_agent()
    result = further.train(lake, **{**settings, "total_steps": ended.steps + 1_000})
    assert result.steps == further.steps == further.visits.sum() == ended.steps + 1_000


class Slow(BaseCallback):
    """Takes longer than the time between two reports."""

    def _on_step(self):
        time.sleep(0.02)
        return True


@pytest.mark.parametrize("async_updates", [True, False])
def test_a_callback_that_is_slower_than_its_interval_leaves_time_to_learn(
    world, make_agent, lake, async_updates
):
    agent = make_agent(async_updates=async_updates, logical_workers=2)
    listener = Listener()
    result = agent.train(lake, total_steps=200_000, callbacks=[Slow(), listener], progress_interval=0.01)
    assert result.steps == agent.visits.sum() == 200_000
    # Were the next report due as soon as one is over, leases would shrink to a step.
    if world.rank == 0:
        assert len(listener.reports) < 300  # 200 by steps, and some by time


def test_an_early_end_does_not_wait_for_what_was_given_out(world, make_agent):
    agent = make_agent(n_envs=1, batch_size=4, sync_frequency=1)
    result = agent.train(
        lambda: Corridor(seconds=5e-3), total_steps=10**9, callbacks=Listener(16), progress_interval=0.02
    )
    # A first lease has 1,000 steps.
    assert 16 <= result.steps == agent.steps == agent.visits.sum() < 500 * max(1, world.size - 1)


def test_a_callback_cannot_train_the_agent_that_trains(world, make_agent, lake):
    agent = make_agent()

    def train_again(told):
        agent.train(lake, total_steps=1_000)

    with pytest.raises((SettingsError, RemoteRankError), match="for an agent that is training"):
        agent.train(lake, total_steps=100_000, callbacks=train_again, progress_interval=0.0)
    assert agent.train(lake, total_steps=1_000).steps == 1_000


def test_a_thread_cannot_train_over_ranks_that_train(world, make_agent, lake, several_ranks):
    agent, other = make_agent(), make_agent()
    told = []

    def train_another():
        with pytest.raises(SettingsError, match=r"comm=comm\.Dup\(\)") as refused:
            other.train(lake, total_steps=1000)
        told.append(refused.value)

    def report(progress):
        if not told:
            thread = threading.Thread(target=train_another)
            thread.start()
            thread.join()

    agent.train(lake, total_steps=200_000, progress=report)
    assert len(told) == (world.rank == 0)
    assert other.train(lake, total_steps=1000).steps == 1000


def test_agents_train_in_threads_over_communicators_of_their_own(world, make_agent, lake, several_ranks):
    comms = [world.Dup(), world.Dup()]
    steps = [0, 0]

    def train(number):
        agent = make_agent(comm=comms[number])
        steps[number] = sum(agent.train(lake, total_steps=50_000).steps for _ in range(2))

    threads = [threading.Thread(target=train, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert steps == [100_000, 100_000]
    for comm in comms:
        comm.Free()


class Breaking(BaseCallback):
    """Stops the run by a signal, and fails at the report that comes of it."""

    has_stopped = False

    def _on_step(self):
        if self.has_stopped:
            raise ValueError("no room")
        if self.progress.steps > 50_000:
            self.has_stopped = True
            os.kill(os.getpid(), signal.SIGUSR1)


@pytest.mark.parametrize("async_updates", [True, False])
def test_what_was_learned_is_saved_though_a_callback_fails_at_the_stop(
    world, make_agent, lake, async_updates, tmp_path_factory
):
    folder = world.bcast(str(tmp_path_factory.mktemp("saved")) if world.rank == 0 else None)
    agent = make_agent(async_updates=async_updates, logical_workers=2)
    # Where no step was made since the last report, none comes of the stop.
    with pytest.raises((ValueError, RemoteRankError, TrainingStopped)):
        agent.train(
            lake, total_steps=10**10, callbacks=Breaking(), progress_interval=0.02, checkpoint_dir=folder
        )
    saved = CheckpointFolder(folder, "agent-0").read_newest()
    assert saved is not None and saved.body["steps"] > 50_000
    assert saved.arrays["visits"].sum() == saved.body["steps"]


def test_one_rank_shows_lines_if_asked_to(world, make_agent, lake, capsys):
    agent = make_agent(seed=1)
    agent.train(lake, total_steps=2_000)
    assert capsys.readouterr() == ("", "")
    agent.train(lake, total_steps=2_000, progress_bar=True, verbose=True)
    said = capsys.readouterr()
    first_words = [line.split()[0] for line in said.err.splitlines()]
    assert said.out == ""
    assert first_words == (["training", "100%", "trained"] if world.rank == 0 else [])
    with pytest.raises((SettingsError, RemoteRankError), match="progress_bar must be True or False"):
        agent.train(lake, total_steps=2_000, progress_bar="no" if world.rank == 0 else None)


@pytest.mark.core
def test_all_ranks_know_whose_records_they_would_go_on_with(world, make_agent, lake, folder, restart):
    def run_id(*calls):
        restart()
        agent = make_agent()
        for steps in calls:
            agent.train(lake, total_steps=steps, checkpoint_dir=folder / "saved")
        return agent.run_id

    first = run_id(20_000)
    assert set(world.allgather(first)) == {first}
    assert set(world.allgather(run_id(20_000, 10_000))) == {first}  # as in a new process
    other = make_agent()
    other.train(lake, total_steps=1_000)
    assert len({*world.allgather(other.run_id), first}) == 2
