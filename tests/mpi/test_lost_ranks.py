"""What the settings about lost ranks do: workers that hang, fail by themselves, or leave.

Servers are lost in tests/faults.
"""

import ctypes
import os
import signal
import time

import numpy as np
import pytest
from mpi4py import MPI
from rank_environments import Corridor, SteppedLake

from dist_classicrl.callbacks import BaseCallback
from dist_classicrl.engines.roles import members
from dist_classicrl.errors import CutOffError, RankLostError, RemoteRankError, SettingsError, WorkerLeft
from dist_classicrl.process import exit as process_exit
from dist_classicrl.process import leave as leaving

SHORT_TIMEOUT = 4.0
# What a step takes on the other ranks, so that they are still at work when somebody is lost.
SLOWLY = 5e-4
# How long they wait for that, at their fifth step.
PATIENCE = 120.0


@pytest.fixture
def comm(world):
    """Give a communicator of the test's own: on the others nobody is away afterwards."""
    if world.size == 1:
        pytest.skip("takes a rank that can be lost")
    own = world.Dup()
    yield own
    world.Barrier()
    process_exit.note_hanging(None)  # all have come here, so that this process may end as others do


@pytest.fixture
def culprit(world):
    """Give the rank that is lost."""
    return world.size - 1


def check_went_on(result, agent, world, culprit, kind, detail):
    """Check that the others made all steps, and that the record says who was lost, and why."""
    assert result.steps == agent.visits.sum() == agent.steps
    assert result.lost_workers == (culprit,)
    assert [(event["kind"], event["rank"]) for event in result.events] == [(kind, culprit)]
    assert detail in result.events[0]["detail"]


def wait_for(path):
    """Wait until somebody has made this file."""
    deadline = time.monotonic() + PATIENCE
    while not path.exists():
        assert time.monotonic() < deadline, f"{path.name} did not come"
        time.sleep(0.005)


class Lake(SteppedLake):
    """A lake that makes the file `path` and calls `act` at step 20, or, without it, a slow one.

    The fifth step of a slow one waits for the file.
    """

    def __init__(self, path, act=None):
        super().__init__()
        self.made, self.path, self.act = 0, path, act

    def step(self, action):
        self.made += 1
        if self.act is None:
            if self.made == 5:
                wait_for(self.path)
            time.sleep(SLOWLY)
        elif self.made == 20:
            self.path.touch()
            self.act()
        return super().step(action)


@pytest.mark.core
@pytest.mark.parametrize(
    "error, said",
    [
        (ValueError("thin ice"), "ValueError: thin ice"),
        (SystemExit(3), r"ExitCalledError: sys.exit(3) was called in fail,"),
    ],
)
def test_an_error_costs_its_worker_alone_where_that_is_asked_for(
    world, comm, culprit, make_agent, folder, caplog, error, said
):
    agent = make_agent(comm=comm, n_envs=1, on_error="exclude")
    broken = world.rank == culprit

    def fail():
        raise error

    act = fail if broken else None
    result = agent.train(lambda: Lake(folder / "broken", act), total_steps=2_000)
    check_went_on(result, agent, world, culprit, "excluded", said)
    assert len(set(world.allgather(agent.q_table.tobytes()))) == 1  # who waits has the table as well
    assert ("learns no more" in caplog.text) == broken


@pytest.mark.core
@pytest.mark.parametrize(
    "by, async_updates", [("leave()", True), ("SIGHUP", True), ("leave()", False)], ids=str
)
def test_a_worker_leaves_in_good_order(
    world, comm, culprit, make_agent, lake, folder, monkeypatch, by, async_updates
):
    aside, mark = [], folder / "leaves"
    monkeypatch.setattr(process_exit, "note_aside", lambda: aside.append(world.rank))
    before = signal.getsignal(signal.SIGHUP)
    agent = make_agent(comm=comm, n_envs=1, async_updates=async_updates, logical_workers=2)
    leave = {"leave()": agent.leave, "SIGHUP": lambda: os.kill(os.getpid(), signal.SIGHUP)}[by]
    if async_updates:
        env, steps = lambda: Lake(mark, leave if world.rank == culprit else None), 2_000
    else:  # a compiled environment, whose rounds can be played again, cannot call anything
        env, steps = lake, 200_000
        if world.rank == culprit:
            leave()
    if world.rank == culprit:
        with pytest.raises(WorkerLeft) as left:
            agent.train(env, total_steps=steps, leave_signals=("SIGHUP",))
        assert (left.value.code, left.value.rank) == (0, culprit)
    else:
        result = agent.train(env, total_steps=steps, leave_signals=("SIGHUP",))
        check_went_on(result, agent, world, culprit, "left", by)
        assert agent.train(env, total_steps=steps).steps == steps
        # Who left in a call before is nobody that hangs: no rank has to end the job for that.
        assert process_exit._process.abort is process_exit._process.say_ended is None
    assert aside == ([culprit] if world.rank == culprit else [])
    guarded = leaving._guard.hear if before == signal.SIG_DFL else before  # for the next call
    assert signal.getsignal(signal.SIGHUP) == guarded


def test_a_signal_cannot_both_stop_and_let_leave(make_agent, comm, lake, tmp_path):
    agent = make_agent(comm=comm)
    with pytest.raises((SettingsError, RemoteRankError), match="leave_signals holds SIGUSR1, which stops"):
        agent.train(lake, total_steps=10, leave_signals=("SIGUSR1",), checkpoint_dir=tmp_path)


def hanging_env(world, culprit, mark):
    """Return what makes environments: the one of the culprit hangs until there is the file `mark`."""
    return lambda: Corridor(hangs_until=mark) if world.rank == culprit else Corridor(seconds=2e-3)


class Told(BaseCallback):
    """Makes the file `mark` when somebody is lost."""

    def __init__(self, mark):
        super().__init__()
        self.mark = mark

    def _on_worker_lost(self, event):
        self.mark.touch()


@pytest.mark.parametrize(
    "settings, text",
    [
        (lambda size: {"on_failure": "abort"}, 'on_failure="abort" ends the run'),
        (lambda size: {"min_workers": size - 1}, "fewer than min_workers="),
    ],
    ids=["abort", "min_workers"],
)
def test_a_loss_that_is_one_too_many_ends_the_run(
    world, comm, culprit, make_agent, folder, unless_held_up, settings, text
):
    if world.size == 2:
        pytest.skip("shown with more ranks")
    make_agent(comm=comm, n_envs=1).train(Corridor, total_steps=100)  # what has to be compiled is

    def ends_the_run(timeout):
        mark = folder / f"lost after {timeout:g} s"
        agent = make_agent(
            comm=comm, timeout=timeout, n_envs=1, sync_frequency=1, batch_size=1, **settings(world.size)
        )
        with pytest.raises((RankLostError, RemoteRankError, CutOffError)) as caught:
            agent.train(hanging_env(world, culprit, mark), total_steps=10**12, callbacks=Told(mark))
        mark.touch()
        if world.rank == 0:
            assert type(caught.value) is RankLostError
            assert f"Rank {culprit} is lost (its main loop made no progress" in str(caught.value)
            assert text in str(caught.value)
        elif world.rank != culprit:
            assert type(caught.value) is RemoteRankError and text in str(caught.value)

    unless_held_up(ends_the_run, SHORT_TIMEOUT, 12.0, 36.0)


class Recorder:
    """Stands for `Replacements`: takes note of what it is asked for, and starts nothing."""

    made, path = [], None

    def __init__(self, limit, mark, clock):
        self.limit, self.mark, self.lost = limit, mark, 0
        Recorder.made.append(self)

    def wanted(self, n_lost):
        self.lost += n_lost
        self.path.touch()

    def start(self, now):
        return False

    def poll(self):
        return []


def test_a_loss_asks_for_as_many_replacements_as_are_allowed(
    world, comm, culprit, make_agent, folder, monkeypatch, unless_held_up
):
    monkeypatch.setattr(members, "Replacements", Recorder)
    monkeypatch.setattr(Recorder, "made", [])
    make_agent(comm=comm, n_envs=1).train(Corridor, total_steps=100)
    assert Recorder.made == []

    def asks(timeout):
        Recorder.made.clear()
        monkeypatch.setattr(Recorder, "path", folder / f"lost after {timeout:g} s")
        agent = make_agent(
            comm=comm, timeout=timeout, n_envs=1, batch_size=1, on_failure="replace", max_replacements=7
        )
        # A run does not end while what the culprit has been given is not made.
        result = agent.train(
            hanging_env(world, culprit, Recorder.path), total_steps=3_000 * max(world.size - 2, 1)
        )
        assert result.steps == agent.visits.sum()
        if world.rank == 0:
            (asked,) = Recorder.made
            assert (asked.limit, asked.mark, asked.lost) == (7, "2", 1)
        assert np.isfinite(agent.q_table).all()

    unless_held_up(asks, SHORT_TIMEOUT, 12.0, 36.0)


def test_with_fewer_workers_than_asked_for_nothing_begins(world, comm, make_agent, lake):
    agent = make_agent(comm=comm, min_workers=world.size)
    with pytest.raises(SettingsError, match=f"min_workers={world.size} asks for a server and {world.size} w"):
        agent.train(lake, total_steps=100)
    if world.size > 1:
        assert make_agent(comm=comm, min_workers=world.size - 1).train(lake, total_steps=100).steps == 100


def test_open_mpi_is_told_to_wait_for_nobody_as_it_ends():
    if not MPI.Get_library_version().startswith("Open MPI v5"):
        pytest.skip("of Open MPI 5")
    with open("/proc/self/maps") as maps:
        (file,) = {line.split()[-1] for line in maps if "/libmpi.so" in line}
    waits_for_nobody = ctypes.c_bool.in_dll(ctypes.CDLL(file), "ompi_async_mpi_finalize")
    before = waits_for_nobody.value
    try:
        process_exit._finalize_without_others()
        assert (before, waits_for_nobody.value) == (False, True)
    finally:
        waits_for_nobody.value = before
