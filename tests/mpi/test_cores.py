"""Where ranks wait for each other only as many of a host learn as it has cores: the table is the same."""

import pytest

from dist_classicrl import TabularMDP
from dist_classicrl.callbacks import BaseCallback
from dist_classicrl.engines.roles import cores
from dist_classicrl.engines.rounds.part import RoundPart
from dist_classicrl.engines.supersteps.part import Part
from dist_classicrl.tables import large_table


@pytest.fixture
def played(monkeypatch):
    """Give a list to which is added, on each rank, what it learned in."""
    found = []

    def noted(kind, name):
        play = getattr(kind, name)

        def play_and_note(self, *asked):
            if kind is RoundPart or self.group.wire.size > 1:
                found.append(kind)
            return play(self, *asked)

        monkeypatch.setattr(kind, name, play_and_note)

    noted(Part, "play")
    noted(RoundPart, "play")
    return found


class Lasts(BaseCallback):
    """Ends a training after so many seconds."""

    def __init__(self, seconds):
        super().__init__()
        self.seconds = seconds

    def _on_step(self):
        return self.progress.seconds < self.seconds


class Workers(BaseCallback):
    """Notes which ranks learn, by the reports of a training."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def _on_training_start(self):
        self._note()

    def _on_step(self):
        self._note()

    def _note(self):
        progress = self.progress
        assert progress.workers == len(progress.ranks)
        self.seen.add(tuple(each.rank for each in progress.ranks))


def few_cores(monkeypatch, n):
    monkeypatch.setattr(cores, "bound_cores", lambda: list(range(n)))


@pytest.mark.core
@pytest.mark.parametrize("n_cores", [1, 2])
@pytest.mark.parametrize("kind", ["supersteps", "rows of the host", "rounds", "replayed rounds"])
def test_as_many_ranks_learn_as_there_are_cores(
    world, alone, several_ranks, make_agent, digests, monkeypatch, played, kind, n_cores
):
    few_cores(monkeypatch, n_cores)
    if kind == "rows of the host":
        monkeypatch.setattr(large_table, "FROM_ENTRIES", 1)
    placement = "replicated" if "rounds" in kind else "sharded"
    settings = {"async_updates": False, "replay_ratio": 0.5 if kind == "replayed rounds" else 0.0}
    model = TabularMDP.garnet(300, 4, 3, seed=1)
    together, single = (make_agent(**settings, comm=comm) for comm in (world, alone))
    workers = Workers()
    first = 1 if kind == "replayed rounds" else 0  # else the server learns as well
    learning = tuple(range(first, min(first + n_cores, world.size)))
    for steps in (30_011, 9_973):
        result = together.train(model, total_steps=steps, placement=placement, callbacks=workers)
        single.train(model, total_steps=steps, placement=placement)
        assert result.steps == steps and result.workers == len(learning)
        assert set(digests(together)) == set(digests(single))
    learned = [bool(kinds) for kinds in world.allgather(played)]
    assert learned == [rank in learning for rank in range(world.size)]
    assert workers.seen == ({learning} if world.rank == 0 else set())


def test_who_waits_hears_of_a_training_that_takes_longer_than_its_deadline(
    world, several_ranks, make_agent, monkeypatch, unless_held_up
):
    few_cores(monkeypatch, 1)
    model = TabularMDP.garnet(300, 4, 3, seed=1)
    make_agent(async_updates=False).train(model, total_steps=1_000, placement="replicated")

    def hears(timeout):
        beats = {"heartbeat_interval": timeout / 10, "heartbeat_timeout": timeout / 2}
        agent = make_agent(async_updates=False, timeout=timeout, **beats)
        asked = {"placement": "replicated", "progress_interval": 0.1}
        result = agent.train(model, total_steps=10**15, **asked, callbacks=Lasts(2 * timeout))
        assert "excluded" not in [event["kind"] for event in result.events]

    unless_held_up(hears, 2.0, 8.0, 32.0)
