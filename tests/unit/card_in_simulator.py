"""What numba's CUDA simulator makes of a card's kernels; run as a program, NUMBA_ENABLE_CUDASIM=1 set before.

The first argument is a folder for checkpoints.
"""

import dataclasses
import os
import signal
import sys

import numpy as np
import pytest
from card_twin import OnCore, OneOnCore, RowsOnCore, learned, made

from dist_classicrl import DistAsyncQLearning, TabularMDP
from dist_classicrl.agent.agent import state_of
from dist_classicrl.errors import DeviceError
from dist_classicrl.learning.card import choosing, plan
from dist_classicrl.learning.card.in_copies import InCopies
from dist_classicrl.learning.card.in_one_table import InOneTable
from dist_classicrl.learning.card.in_rows import InRows
from dist_classicrl.learning.card.runs import learn_runs
from dist_classicrl.model import places
from dist_classicrl.schedules import PerVisit
from dist_classicrl.settings import Settings
from dist_classicrl.tables import large_table

MODEL = TabularMDP.garnet(6, 2, 2, seed=1)
GIVEN = {"discount_factor": 0.9, "epsilon": 0.5, "learning_rate": PerVisit(0.7), "seed": 4}
STATES = np.arange(20)[:, np.newaxis]
MASKED = dataclasses.replace(
    TabularMDP.garnet(20, 3, 2, seed=2, terminal_states=4),
    action_mask=(np.arange(3) != STATES % 3) | (STATES < 4),
)


def kernels_make_the_table_of_a_core():
    few = TabularMDP.garnet(4, 2, 2, seed=1)  # a thread for each entry: see `InCopies._make_round`
    for env, algorithm, shared, dtype in (
        (MODEL, "q_learning", True, np.float64),
        (MODEL, "n_step_sarsa", False, np.float64),
        (MASKED, "double_q_learning", True, np.float32),
        (few, "q_learning", True, np.float64),
    ):
        settings = Settings(**GIVEN, algorithm=algorithm)
        here, there = (made(kind, env, settings, dtype=dtype) for kind in (OnCore, InCopies))
        if not shared:
            there._shared_bytes, there._room = 0, None
            there._launchers.clear()
            there._round = there._make_round()
        one, other = learned(here, 150), learned(there, 150)
        for name in one:
            assert np.array_equal(one[name], other[name]), (algorithm, name)
        assert np.array_equal(here.totals.values, there.totals.values)
        assert np.array_equal(here.state(0)["position"], there.state(0)["position"])


def kernels_of_one_table_make_that_of_a_core():
    ramp = plan.Shape(4, 32, 1)
    apart = plan.Shape(4, 1, 8)  # blocks take their turns here, and threads would not
    for env, algorithm, shape, steps, start, given in (
        (MODEL, "q_learning", None, 100, 0, {}),
        (MODEL, "sarsa", None, 83, 0, {"dtype": np.float32}),
        (MASKED, "double_q_learning", None, 100, 0, {}),
        (MODEL, "n_step_sarsa", ramp, 1100, 255_000, {}),
        (MODEL, "sarsa", apart, 203, 0, {"rows": True, "dtype": np.float32}),
        (MASKED, "double_q_learning", apart, 300, 0, {"is_alone": True}),
        (MODEL, "n_step_sarsa", apart, 1100, 255_000, {"is_alone": True}),
    ):
        settings = Settings(**GIVEN, algorithm=algorithm)
        kinds = (RowsOnCore, InRows) if shape is apart else (OneOnCore, InOneTable)
        here, there = (made(kind, env, settings, shape, **given) for kind in kinds)
        for learner in (here, there):
            learned(learner, steps, start=start)
        one, other = learned(here, 9, key=8, start=start), learned(there, 9, key=8, start=start)
        for name in one:
            assert np.array_equal(one[name], other[name]), (algorithm, given, name)
        assert one["updates"].sum() == steps + 9 or "sarsa" in algorithm  # which lets steps wait
        assert np.array_equal(here.totals.values, there.totals.values)
        mine, its = here.state(0), there.state(0)
        assert all(np.array_equal(mine[name], its[name]) for name in mine)


def targets_beyond_the_bound_are_added_once_more():
    by = dataclasses.replace(MODEL, outcome_reward=MODEL.outcome_reward * 2.0**33)
    here, there = (made(kind, by, Settings(**GIVEN)) for kind in (OneOnCore, InOneTable))
    one, other = learned(here, 200), learned(there, 200)
    assert np.array_equal(one["q"], other["q"]) and other["updates"].sum() == 200
    assert there.state(0)["bound"][0] == here.state(0)["bound"][0] == 2.0**40


def agent(device, **given):
    """Return an agent that saves where those of earlier processes did."""
    places._agents.clear()
    return DistAsyncQLearning(device=device, **{**GIVEN, **given})


def an_agent_learns_and_its_checkpoint_goes_on_on_cores_and_back(folder, **given):
    saving = {"checkpoint_dir": folder, "checkpoint_interval": 50, "env": MODEL}
    first = agent("cuda", **given)
    result = first.train(steps=100, **saving)
    assert (result.steps, result.device) == (100, "cuda") and first.visits.sum() == 100
    again = agent("cuda", **given)
    again.train(env=MODEL, steps=100)
    assert np.array_equal(first.q_table, again.q_table)  # a seed makes the same table from run to run
    on_cores = agent("cpu", **given)
    assert on_cores.train(steps=100, **saving).steps == 100  # made before
    assert np.array_equal(on_cores.q_table, first.q_table)
    assert np.array_equal(on_cores.visits, first.visits)
    result = on_cores.train(steps=150, **saving)
    assert result.device == "cpu" and on_cores.visits.sum() == 250
    back = agent("cuda", **given)
    for steps in (100, 150, 50):
        back.train(steps=steps, **saving)
    assert back.visits.sum() == 300


def auto_goes_by_what_was_asked_for_and_not_by_what_is_left(folder):
    usual, choosing.AUTO_STEPS = choosing.AUTO_STEPS, 200
    asked = {"env": MODEL, "steps": 300, "checkpoint_dir": folder}

    def stop(locals_):
        if locals_["num_timesteps"] >= 256:
            os.kill(os.getpid(), signal.SIGTERM)

    whole = agent("auto")
    assert whole.train(env=MODEL, steps=300).device == "cuda"
    with pytest.raises(SystemExit):
        agent("auto").train(callbacks=stop, **asked)
    places._agents.clear()
    rest = agent("auto")
    assert rest.train(**asked).device == "cuda" and rest.steps == 300
    assert np.array_equal(rest.q_table, whole.q_table)
    choosing.AUTO_STEPS = usual


def an_agent_with_a_large_table_does_so_too(folder):
    """In one table on the card: with one that it has as rows alone, a smaller one, and workers' maps."""
    plan.LARGEST_COPY = 0
    usual, large_table.FROM_ENTRIES = large_table.FROM_ENTRIES, 12
    for dtype in ("float64", "float32"):
        one = agent("cuda", dtype=dtype)
        one.train(env=MODEL, steps=40)
        assert state_of(one).large is not None and one.visits.sum() == 40
        one.q_table[2] = 1.5
        one.train(env=MODEL, steps=40)
        assert one.visits.sum() == 80
        an_agent_learns_and_its_checkpoint_goes_on_on_cores_and_back(f"{folder}/{dtype}", dtype=dtype)
    large_table.FROM_ENTRIES = usual
    tables = []
    for placement in ("auto", "sharded"):
        one = agent("cuda")
        one.train(env=MODEL, steps=40, placement=placement)
        tables.append(one.q_table.copy())
    assert state_of(one).large is None and np.array_equal(*tables)
    an_agent_learns_and_its_checkpoint_goes_on_on_cores_and_back(f"{folder}/small")
    rounds_of_logical_workers_are_the_same_to_the_bit()


def rounds_of_logical_workers_are_the_same_to_the_bit():
    tables = []
    for _ in range(2):
        one = agent("cuda", async_updates=False, logical_workers=2, batch_size=8)
        one.train(env=MODEL, steps=128)
        tables.append(one.q_table)
    assert np.array_equal(*tables)


def many_runs_at_once_are_those_of_a_core_to_the_bit():
    given = {"discount_factor": 0.9}  # exploration falls over half of the run
    runs = learn_runs(MODEL, range(5), 500, Settings(**given))
    for seed in range(5):
        one = DistAsyncQLearning(seed=seed, **given)
        result = one.train(env=MODEL, steps=500)
        assert np.array_equal(runs.q_tables[seed], one.q_table)
        assert np.array_equal(runs.visits[seed], one.visits)
        assert runs.episodes[seed] == result.episodes
        assert np.isclose(runs.mean_returns[seed], result.mean_return)
    for refused in ({"dtype": "float32"}, {"replay_ratio": 1.0}):
        with pytest.raises(DeviceError, match=next(iter(refused))):
            learn_runs(MODEL, [1], 10, Settings(**refused))


if __name__ == "__main__":
    plan.IN_SIMULATOR = plan.Shape(2, 4, 8)
    kernels_make_the_table_of_a_core()
    kernels_of_one_table_make_that_of_a_core()
    targets_beyond_the_bound_are_added_once_more()
    an_agent_learns_and_its_checkpoint_goes_on_on_cores_and_back(f"{sys.argv[1]}/copies")
    auto_goes_by_what_was_asked_for_and_not_by_what_is_left(f"{sys.argv[1]}/auto")
    rounds_of_logical_workers_are_the_same_to_the_bit()
    many_runs_at_once_are_those_of_a_core_to_the_bit()
    plan.ONE_TABLE_IN_SIMULATOR, plan.ROWS_IN_SIMULATOR = plan.Shape(2, 4, 1), plan.Shape(8, 1, 8)
    an_agent_with_a_large_table_does_so_too(sys.argv[1])
    print("all is well")
