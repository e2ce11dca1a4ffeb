"""What an agent held is free on all ranks once it is gone, before the interpreter looks for circles."""

import pytest
from freed_agents import held_by, nobody_looking_for_circles

from dist_classicrl.errors import RemoteRankError
from dist_classicrl.tables import large_table

ENGINES = {
    "server": ({}, {"placement": "replicated"}),
    "sharded": ({}, {"placement": "sharded"}),
    "rounds": ({"async_updates": False}, {"placement": "replicated"}),
    "supersteps": ({"async_updates": False}, {"placement": "sharded"}),
    "decentralized": ({"topology": "decentralized"}, {}),
}


@pytest.fixture(autouse=True)
def nobody_looks_for_circles():
    with nobody_looking_for_circles():
        yield


@pytest.fixture
def left_of(world, make_agent, lake):
    """Give a function that returns on how many ranks something is left of an agent that has trained."""

    def after(
        name, act=lambda agent, asked: agent.train(asked.pop("env"), total_steps=3_000, **asked), **more
    ):
        settings, asked = ENGINES[name]
        agent = make_agent(**settings)
        act(agent, {"env": lake, **asked, **more})
        held = held_by(agent)
        del agent
        return world.allreduce(int(any(each() is not None for each in held)))

    return after


@pytest.mark.parametrize("name", ENGINES)
def test_after_a_training(several_ranks, left_of, folder, name):
    assert left_of(name) == 0
    assert left_of(name, checkpoint_dir=folder, callbacks=lambda told: True) == 0


@pytest.mark.parametrize("name", ["sharded", "supersteps"])
def test_a_large_table_after_a_training_in_its_rows(several_ranks, left_of, monkeypatch, name):
    monkeypatch.setattr(large_table, "FROM_ENTRIES", 64)
    assert left_of(name) == 0


@pytest.mark.parametrize("name", ENGINES)
def test_after_a_callback_has_failed(world, several_ranks, left_of, name):
    def fail(progress):
        raise LookupError("this callback fails")

    def act(agent, asked):
        with pytest.raises(LookupError if world.rank == 0 else RemoteRankError, match="this callback fails"):
            agent.train(asked.pop("env"), total_steps=3_000, progress=fail, **asked)

    assert left_of(name, act) == 0
