"""Engines: which of them trains, and one of this file's own that is plugged in."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from dist_classicrl import DistAsyncQLearning, TabularMDP, TrainingResult
from dist_classicrl.engines import engine as engines
from dist_classicrl.engines.engine import SHARDED_FROM, SUPERSTEPS_FROM, Layout, engine_for
from dist_classicrl.engines.idle import idle_settings, told
from dist_classicrl.engines.saving import Position
from dist_classicrl.errors import SettingsError
from dist_classicrl.model import places
from dist_classicrl.settings import Settings

LAKE = TabularMDP.from_gymnasium("FrozenLake-v1")
PAIRS = 16 * 4


class Walk:
    """Visits one pair of state and action after the other, and values each by its number."""

    name = "walk"

    def __init__(self, most_ranks=1, fails_after=None):
        self.most_ranks = most_ranks
        self.fails_after = fails_after
        self.asked = []
        self.started = []

    def suits(self, settings, ranks):
        self.asked.append((settings, ranks))
        return ranks <= self.most_ranks

    def train(self, run, group, start):
        self.started.append((run.start, run.steps, group, start))
        try:
            run.reporter.begin(0.0, [])
            for step in range(run.start, run.start + run.steps):
                if step == self.fails_after:
                    raise OSError("a stone on the way")
                run.values[step % run.values.size] = step % run.values.size
                run.counts[step % run.counts.size] += 1
                run.kept += 1
                run.tally.steps += 1
        finally:
            run.close([])
        outcome = run.tally.result(seconds=2.0, compile_seconds=0.5, workers=1)
        if run.saver is not None:
            position = Position(run.start + run.kept, run.tally.to_dict(2.0), "async")
            run.saver.finish(run.values, run.counts, position, outcome)
        run.reporter.report(2.0, [])
        return outcome


@pytest.fixture
def registered():
    """Give a function that registers an engine for the time of the test."""
    names = []

    def register(engine):
        engines.register(engine)
        names.append(engine.name)
        return engine

    yield register
    for name in names:
        engines.unregister(name)


@pytest.mark.parametrize("async_updates", [True, False])
@pytest.mark.parametrize(
    "given, message",
    [
        ({"prefetch_factor": 4}, "prefetch_factor=4: nothing is pushed .* Write prefetch_factor=2"),
        ({"sync_frequency": 64}, 'sync_frequency=64: nobody pushes, .* Write sync_frequency="auto"'),
        ({"logical_workers": 4}, "logical_workers=4: there are no rounds .* Write logical_workers=16"),
    ],
)
def test_what_is_said_of_copies_alone_is_refused_where_there_are_none(given, message, async_updates):
    settings = Settings(async_updates=async_updates, **given)
    copies = ("local", "server" if async_updates else "rounds")
    for ranks, engine in zip((1, 3), copies, strict=True):
        with pytest.raises(SettingsError, match=f'placement="sharded" cannot be had with {message}'):
            engine_for(settings, ranks, "sharded")
        assert engine_for(settings, ranks, "replicated").name == engine


@pytest.mark.parametrize("async_updates", [True, False])
@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize(
    "given, why",
    [
        ({"prefetch_factor": 4}, "nothing is pushed"),
        ({"sync_frequency": 64}, "nobody pushes"),
        ({"logical_workers": 4}, "there are no rounds"),
        ({}, ""),
    ],
)
def test_keys_which_have_no_copies_are_learned_on_any_ranks_whatever_is_said_of_these(
    given, why, ranks, async_updates
):
    settings, keyed = Settings(async_updates=async_updates, **given), Layout(is_compiled=True, is_keyed=True)
    engine = engine_for(settings, ranks, "auto", keyed)
    assert engine.name == ("local" if ranks == 1 and async_updates else "supersteps")
    said = told(settings, idle_settings(settings, engine, keyed))
    expected = [
        f"{name}={value} plays no part where ranks have no copies of the table: {why}"
        for name, value in given.items()
    ]
    assert said.count(" no part ") == len(given) and all(said.startswith(text) for text in expected)


def test_what_asks_for_more_than_copies_can_do_is_refused_by_owners_of_keys():
    keyed = Layout(is_compiled=True, is_keyed=True)
    for given in ({"max_staleness": 3}, {"compression": "delta"}, {"topology": "tree"}):
        settings = Settings(prefetch_factor=4, **given)
        message = f"keys cannot be learned by their owners with {next(iter(given))}="
        with pytest.raises(SettingsError, match=message):
            engine_for(settings, 3, "auto", keyed)


@pytest.mark.parametrize("hosts", [1, 3])
def test_auto_has_copies_where_that_is_what_settings_ask_for(hosts):
    layout = Layout(entries=SHARDED_FROM, hosts=hosts, is_compiled=True, can_travel=True, is_one_step=True)
    in_one = "sharded" if hosts == 1 else "supersteps"
    for given, name in (
        ({}, in_one),
        ({"prefetch_factor": 4}, "server"),
        ({"sync_frequency": 64}, "server"),
        ({"logical_workers": 4}, in_one),  # which copies have no use for either
    ):
        assert engine_for(Settings(**given), 3, "auto", layout).name == name
    same = engine_for(Settings(async_updates=False, prefetch_factor=4), 3, "auto", layout)
    assert same.name == "supersteps"  # rounds push nothing either


@pytest.mark.parametrize("placement", ["auto", "replicated"])
@pytest.mark.parametrize(
    "ranks, async_updates, name",
    [(1, True, "local"), (1, False, "local"), (2, True, "server"), (9, True, "server"), (2, False, "rounds")],
)
def test_the_engines_of_the_library(ranks, async_updates, name, placement):
    assert engine_for(Settings(async_updates=async_updates), ranks, placement).name == name


LARGE = Layout(entries=SHARDED_FROM, is_compiled=True, can_travel=True)


@pytest.mark.parametrize("device", ["cpu", "auto"])
@pytest.mark.parametrize("hosts", [1, 3])
@pytest.mark.parametrize("ranks", [1, 2, 9])
def test_large_tables_are_learned_in_supersteps_where_they_are_to_be_the_same_on_any_ranks(
    ranks, hosts, device
):
    layout, settings = replace(LARGE, hosts=hosts), Settings(async_updates=False, device=device)
    assert engine_for(settings, ranks, "auto", layout).name == "supersteps"
    assert engine_for(settings, ranks, "replicated", layout).name == ("local" if ranks == 1 else "rounds")
    asynchronous = "local" if ranks == 1 else "sharded" if hosts == 1 else "server"
    assert engine_for(Settings(), ranks, "auto", layout).name == asynchronous


@pytest.mark.parametrize(
    "changes, settings, name",
    [
        ({}, {}, "supersteps"),
        ({"hosts": 1}, {}, "sharded"),
        ({"hosts": 1}, {"device": "auto"}, "sharded"),
        ({"hosts": 1}, {"device": "cuda"}, "server"),
        ({}, {"device": "cuda"}, "server"),
        ({"entries": SHARDED_FROM - 1}, {}, "server"),
        ({"is_one_step": False}, {}, "server"),
        ({"can_travel": False}, {}, "server"),
        ({}, {"compression": "auto"}, "server"),
        ({}, {"topology": "auto"}, "server"),
        ({}, {"sync_frequency": 64}, "server"),
        ({}, {"device": "auto"}, "server"),
        ({}, {"max_staleness": 3}, "server"),
    ],
)
def test_large_tables_of_several_hosts_are_learned_in_supersteps_unless_maps_are_asked_for(
    changes, settings, name
):
    layout = replace(LARGE, **{"hosts": 3, "is_one_step": True, **changes})
    assert engine_for(Settings(**settings), 9, "auto", layout).name == name
    assert engine_for(Settings(**settings), 1, "auto", layout).name == "local"


@pytest.mark.parametrize("ranks", [1, 2, 9])
def test_smaller_ones_are_too_by_rules_whose_steps_move_one_entry(ranks):
    layout, settings = (
        replace(LARGE, entries=SUPERSTEPS_FROM, is_one_step=True),
        Settings(async_updates=False),
    )
    assert engine_for(settings, ranks, "auto", layout).name == "supersteps"
    rounds, asynchronous = ("local", "local") if ranks == 1 else ("rounds", "server")
    assert engine_for(settings, ranks, "auto", replace(layout, is_one_step=False)).name == rounds
    assert engine_for(settings, ranks, "auto", replace(layout, entries=SUPERSTEPS_FROM - 1)).name == rounds
    assert engine_for(settings, ranks, "replicated", layout).name == rounds
    assert engine_for(Settings(), ranks, "auto", layout).name == asynchronous


@pytest.mark.parametrize(
    "changes, settings",
    [
        ({"entries": SHARDED_FROM - 1}, {}),
        ({"is_compiled": False}, {}),
        ({"can_travel": False}, {}),
        ({}, {"sync_frequency": 64}),
        ({}, {"logical_workers": 4}),
        ({}, {"replay_ratio": 1.0}),
        ({}, {"device": "cuda"}),
    ],
)
def test_what_supersteps_cannot_do_or_who_asks_for_rounds_has_these(changes, settings):
    settings = Settings(async_updates=False, **settings)
    assert engine_for(settings, 3, "auto", replace(LARGE, **changes)).name == "rounds"


@pytest.mark.slow
def test_a_large_reproducible_training_says_why_it_takes_supersteps_and_learns_the_same(caplog):
    model = TabularMDP.garnet(SUPERSTEPS_FROM // 2, 2, 2, seed=1)
    tables = []
    with caplog.at_level("INFO", "dist_classicrl"):
        for asked in ({}, {"placement": "sharded"}):
            agent = DistAsyncQLearning(seed=2, async_updates=False)
            agent.train(model, total_steps=20_000, **asked)
            tables.append(agent.q_table)
    np.testing.assert_array_equal(*tables)
    assert tables[0].any()
    assert caplog.text.count("is learned in supersteps: the same on any number of ranks") == 1
    agent = DistAsyncQLearning(seed=2, async_updates=False, algorithm="q_lambda")
    agent.train(model, total_steps=20_000)
    assert caplog.text.count("is learned in supersteps") == 1


def test_an_engine_that_is_given_trains_as_it_is():
    engine, reports = Walk(most_ranks=0), []
    agent = DistAsyncQLearning(seed=5)
    result = agent.train(LAKE, total_steps=100, placement=engine, progress=reports.append)
    assert type(result) is TrainingResult
    assert (result.steps, result.seconds, result.compile_seconds, result.workers) == (100, 2.0, 0.5, 1)
    assert engine.started == [(0, 100, None, None)] and engine.asked == []
    assert agent.q_table.reshape(-1).tolist() == list(range(PAIRS))
    assert agent.visits.sum() == agent.steps == 100 and agent.visits.max() == 2
    assert [progress.steps for progress in reports] == [100]
    # The next call goes on there, with any engine.
    assert agent.train(LAKE, total_steps=28, placement=engine).steps == 28
    assert engine.started[1] == (100, 28, None, None) and (agent.visits == 2).all()
    agent.train(LAKE, total_steps=1_000)
    assert agent.steps == agent.visits.sum() == 1_128 and len(engine.started) == 2


def test_a_table_that_is_larger_than_the_environment_gets_what_an_engine_learned():
    agent = DistAsyncQLearning(state_size=20, action_size=6, seed=5)
    agent.q_table[:] = -1.0
    agent.train(LAKE, total_steps=PAIRS, placement=Walk())
    assert (agent.visits[:16, :4] == 1).all() and agent.visits.sum() == PAIRS
    assert agent.q_table[:16, :4].reshape(-1).tolist() == list(range(PAIRS))
    assert (agent.q_table[16:] == -1.0).all() and (agent.q_table[:, 4:] == -1.0).all()


def test_checkpoints_are_written_and_read_by_an_engine_of_ones_own(tmp_path, monkeypatch):
    def train(calls):
        monkeypatch.setattr(places, "_agents", {})
        agent, engine = DistAsyncQLearning(seed=5), Walk()
        results = [
            agent.train(LAKE, total_steps=40, checkpoint_dir=tmp_path, placement=engine) for _ in range(calls)
        ]
        return agent, engine, results

    _, _, before = train(2)
    agent, engine, results = train(3)
    assert engine.started == [(80, 40, None, None)]
    assert [result.steps for result in results] == [40, 40, 40]
    assert results[1].seconds == before[1].seconds and results[1].resumed_from is not None
    assert agent.steps == agent.visits.sum() == 120 and agent.visits.min() == 1


def test_what_an_engine_has_made_before_an_error_is_kept():
    agent = DistAsyncQLearning(seed=5)
    with pytest.raises(OSError, match="a stone on the way"):
        agent.train(LAKE, total_steps=100, placement=Walk(fails_after=30))
    assert agent.steps == agent.visits.sum() == 30
    assert agent.train(LAKE, total_steps=10, placement=Walk()).steps == 10 and agent.visits[8:10].all()


def test_an_engine_that_is_registered_is_taken_where_it_suits(registered):
    engine = registered(Walk())
    settings = Settings()
    assert engine_for(settings, 1, "auto") is engine_for(settings, 1, "replicated") is engine
    assert engine.asked == [(settings, 1)] * 2
    assert engine_for(settings, 2, "auto").name == "server"
    agent = DistAsyncQLearning(seed=5)
    assert agent.train(LAKE, total_steps=10).seconds == 2.0 and len(engine.started) == 1
    engines.unregister("walk")
    assert engine_for(settings, 1, "auto").name == "local"
    engines.register(engine)


def test_the_engine_that_was_registered_last_comes_first(registered):
    first, last = registered(Walk()), Walk()
    last.name = "run"
    assert engine_for(Settings(), 1, "auto") is first
    registered(last)
    assert engine_for(Settings(), 1, "auto") is last
    last.most_ranks = 0
    assert engine_for(Settings(), 1, "auto") is first


def test_engines_that_cannot_be_registered(registered):
    registered(Walk())
    with pytest.raises(SettingsError, match="an engine 'walk' already. Give this one another name"):
        engines.register(Walk())
    local = Walk()
    local.name = "local"
    with pytest.raises(SettingsError, match="an engine 'local' already"):
        engines.register(local)
    for bad in (Walk, "walk", None):
        with pytest.raises(SettingsError, match="An engine has a name and methods suits and train, got "):
            engines.register(bad)
    with pytest.raises(SettingsError, match="No engine 'swim' was registered, but 'walk'"):
        engines.unregister("swim")


@pytest.mark.parametrize("placement", ["shared", "", 1, Walk, object()])
def test_what_is_no_placement_is_refused(placement):
    agent = DistAsyncQLearning(seed=5)
    with pytest.raises(
        SettingsError, match="placement must be one of 'auto', 'replicated', 'sharded', or an engine.*got"
    ):
        agent.train(LAKE, total_steps=100, placement=placement)
    assert agent.steps == 0 and agent.train(LAKE, total_steps=10).steps == 10


def test_a_call_that_says_nothing_of_placement_takes_the_agents():
    def learned(given, **asked):
        agent = DistAsyncQLearning(seed=5, async_updates=False, **given)
        agent.train(LAKE, total_steps=2_000, **asked)
        return agent.q_table

    by_owners, in_rounds = learned({}, placement="sharded"), learned({}, placement="replicated")
    assert not np.array_equal(by_owners, in_rounds)
    np.testing.assert_array_equal(learned({"placement": "sharded"}), by_owners)
    np.testing.assert_array_equal(learned({"placement": "sharded"}, placement="replicated"), in_rounds)
    np.testing.assert_array_equal(learned({"placement": "replicated"}, placement="sharded"), by_owners)


@pytest.mark.slow
def test_a_process_alone_loads_no_other_engine():
    program = (
        "import sys\nfrom dist_classicrl import DistAsyncQLearning\n"
        "DistAsyncQLearning(seed=1).train('FrozenLake-v1', total_steps=100)\n"
        "print(*(name for name in sys.modules if name.startswith('dist_classicrl.engines.')))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    loaded = {name.removeprefix("dist_classicrl.engines.") for name in done.stdout.split()}
    assert "local.training" in loaded
    others = ("roles.participants", "roles.server_base", "rounds.", "server.")
    assert not [name for name in loaded if name.startswith(others)]
