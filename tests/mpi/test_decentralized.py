"""All ranks learn and exchange what they learned: steps are exact, tables right and the same everywhere."""

import numpy as np
import pytest
from own_signals import own_signals, stop_after
from pairs_pattern import ForgetfulPairs
from rank_environments import BrokenLake, SteppedLake

from dist_classicrl.callbacks import BaseCallback
from dist_classicrl.comm import transport
from dist_classicrl.engines.decentralized import Decentralized, Step
from dist_classicrl.engines.decentralized.part import PlayerPart
from dist_classicrl.errors import (
    ProtocolError,
    RankTimeoutError,
    RemoteRankError,
    SettingsError,
    TrainingStopped,
)
from dist_classicrl.membership.group import Group
from dist_classicrl.schedules import PerVisit

STEPS = 300_000
NEVER = 1 << 60
SETTINGS = {
    "topology": "decentralized",
    "learning_rate": PerVisit(0.7),
    "discount_factor": 0.9,
    "epsilon": 1.0,
}


@pytest.fixture(autouse=True)
def only_the_signals_of_this_test(monkeypatch):
    """Leave the handlers of signals as they were."""
    with own_signals(monkeypatch):
        yield


class Star:
    """An exchange pattern of this file's own: one rank adds up what all send it, and sends them the sum."""

    def suits(self, hosts):
        """Whether there are few enough ranks for one of them to hear all."""
        return len(hosts) <= 64

    def exchange(self, place, hosts, own):
        """Give to the rank at place 0, and take from it."""
        others = tuple(range(1, len(hosts)))
        if place:
            came = yield Step({0: own}, (0,))
            return came[0]
        came = yield Step(awaits=others)
        total = own
        for other in others:
            total = total.plus(came[other])
        yield Step(dict.fromkeys(others, total))
        return total


class Deaf(Star):
    """The same, but the rank at place 0 tells nobody."""

    def exchange(self, place, hosts, own):
        """Give, and wait for what never comes."""
        came = yield Step({0: own} if place else {}, (0,) if place else tuple(range(1, len(hosts))))
        for other in sorted(came):
            own = own.plus(came[other])
        return own


def check_learned(world, lake, agent, digests):
    error = (agent.q_table - lake.solve(0.9).q)[lake.reachable_pairs()]
    assert np.sqrt(np.mean(error**2)) < 0.05  # of 24 trainings from 0.009 to 0.028, and 0.22 of no training
    assert len(set(digests(agent))) == 1


@pytest.mark.parametrize("asked", [SETTINGS, {"async_updates": False}])
def test_calls_leave_no_channels_open(several_ranks, make_agent, lake, asked):
    agent = make_agent(**asked)
    placement = None if "topology" in asked else "sharded"
    agent.train(lake, total_steps=500, placement=placement)
    open_after_one = len(transport._open)
    for _ in range(3):
        agent.train(lake, total_steps=500, placement=placement)
    assert len(transport._open) == open_after_one


@pytest.mark.core
@pytest.mark.parametrize("pattern", ["doubling", "ring", "tree", "two_level"])
def test_two_calls_by_each_pattern(world, several_ranks, make_agent, lake, digests, pattern, monkeypatch):
    monkeypatch.setattr(Group, "host_of", lambda group, rank: f"h{rank // 2}")
    agent = make_agent(**SETTINGS, exchange_pattern=pattern)
    for calls in (1, 2):
        result = agent.train(lake, total_steps=STEPS)
        assert result.steps == STEPS and agent.steps == agent.visits.sum() == calls * STEPS
        assert result.workers == world.size
        assert result.episodes > STEPS / 100 and result.bytes_pushed > 0
    check_learned(world, lake, agent, digests)


def test_a_pattern_of_ones_own(world, several_ranks, make_agent, lake, digests):
    settings = {**SETTINGS, "topology": "flat", "sync_frequency": 100, "compression": "delta"}
    agent = make_agent(**settings)
    result = agent.train(lake, total_steps=STEPS, placement=Decentralized(Star()))
    assert result.steps == agent.visits.sum() == STEPS and result.workers == world.size
    check_learned(world, lake, agent, digests)


def test_a_pattern_that_leaves_a_rank_out_or_one_waiting_is_found_out(
    world, several_ranks, make_agent, lake, monkeypatch
):
    if world.size == 2:
        pytest.skip("two ranks are a pair")
    with pytest.raises((ProtocolError, RemoteRankError), match="exactly once"):
        make_agent().train(lake, total_steps=NEVER, placement=Decentralized(ForgetfulPairs()))
    monkeypatch.setattr(PlayerPart, "patience", 0.5)
    with pytest.raises((RankTimeoutError, RemoteRankError), match="has waited for 0.5 s for the sums of"):
        make_agent().train(lake, total_steps=NEVER, placement=Decentralized(Deaf()))


def test_a_process_alone_has_nobody_to_exchange_with(world, make_agent, alone, lake):
    with pytest.raises(SettingsError, match="needs several ranks"):
        make_agent(**SETTINGS, comm=alone).train(lake, total_steps=1000)


def test_each_rank_is_a_worker_also_the_one_that_coordinates(world, several_ranks, make_agent, lake):
    for settings in ({"topology": "decentralized"}, {}):
        placement = "auto" if settings else Decentralized(Star())
        agent = make_agent(**settings, min_workers=world.size)
        assert agent.train(lake, total_steps=1000, placement=placement).workers == world.size
        more = world.size + 1
        with pytest.raises(
            SettingsError, match=f"asks for {more} workers, but {world.size} ranks learn. Sta"
        ):
            make_agent(**settings, min_workers=more).train(lake, total_steps=1000, placement=placement)


class Listener(BaseCallback):
    """Notes how many steps each report has, and how many visits the table then; may end the run."""

    def __init__(self, ends_after=None):
        super().__init__()
        self.ends_after, self.heard = ends_after, []

    def _on_step(self):
        self.heard.append((self.progress.steps, int(self.model.visits.sum()), len(self.progress.ranks)))
        return self.ends_after is None or self.progress.steps < self.ends_after


def test_callbacks_hear_of_the_table_at_their_steps_and_may_end_the_run(
    world, several_ranks, make_agent, lake, digests
):
    listener = Listener(ends_after=40_000)
    agent = make_agent(**SETTINGS)
    result = agent.train(lake, total_steps=NEVER, callbacks=listener, progress_interval=0.01)
    steps = world.bcast(result.steps)
    assert result.steps == agent.visits.sum() == steps >= 40_000
    assert len(set(digests(agent))) == 1
    if world.rank == 0:
        assert all(steps == visits and ranks == world.size for steps, visits, ranks in listener.heard)


def test_a_stopped_run_goes_on_from_its_checkpoint(
    world, several_ranks, make_agent, lake, folder, restart, digests
):
    agent = make_agent(**SETTINGS)
    with pytest.raises(TrainingStopped) as stopped:
        agent.train(
            lake,
            total_steps=STEPS,
            checkpoint_dir=folder,
            checkpoint_interval=20_000,
            **stop_after(STEPS // 3),
        )
    assert stopped.value.checkpoint is not None
    restart()
    again = make_agent(**SETTINGS)
    result = again.train(lake, total_steps=STEPS, checkpoint_dir=folder)
    assert result.resumed_from == stopped.value.checkpoint
    assert result.steps == again.visits.sum() == STEPS
    check_learned(world, lake, again, digests)


def test_an_environment_that_is_stepped(world, several_ranks, make_agent, digests):
    agent = make_agent(topology="decentralized", batch_size=8)
    result = agent.train(SteppedLake, total_steps=1_003)
    assert result.steps == agent.visits.sum() == 1_003
    assert len(set(digests(agent))) == 1


def test_an_error_on_one_rank_is_raised_everywhere(world, several_ranks, make_agent):
    culprit = world.size - 1
    expected = ValueError if world.rank == culprit else RemoteRankError
    with pytest.raises(expected, match="thin ice"):
        make_agent(topology="decentralized").train(
            lambda: BrokenLake(200 if world.rank == culprit else NEVER, ValueError("thin ice")),
            total_steps=NEVER,
        )
