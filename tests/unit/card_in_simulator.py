"""What numba's CUDA simulator makes of a card's kernels; run as a program, NUMBA_ENABLE_CUDASIM=1 set before.

The first argument is a folder for checkpoints.
"""

import sys

import numpy as np
from card_twin import OnCore, learned, made

from dist_classicrl import DistAsyncQLearning, TabularMDP
from dist_classicrl.errors import DeviceError
from dist_classicrl.learning.card import plan
from dist_classicrl.learning.card.learner import CardLearner
from dist_classicrl.learning.card.runs import learn_runs
from dist_classicrl.model import places
from dist_classicrl.schedules import PerVisit
from dist_classicrl.settings import Settings

MODEL = TabularMDP.garnet(6, 2, 2, seed=1)
GIVEN = {"discount_factor": 0.9, "epsilon": 0.5, "learning_rate": PerVisit(0.7), "seed": 4}


def kernels_make_the_table_of_a_core():
    for shared in (True, False):
        here, there = (made(kind, MODEL, Settings(**GIVEN)) for kind in (OnCore, CardLearner))
        if not shared:
            there._in_shared = False
            there._round = there._make_round()
        one, other = learned(here, 300), learned(there, 300)
        for name in one:
            assert np.array_equal(one[name], other[name]), name
        assert np.array_equal(here.totals.values, there.totals.values)
        assert np.array_equal(here.state(0)["position"], there.state(0)["position"])


def agent(device, **given):
    """Return an agent that saves where those of earlier processes did."""
    places._agents.clear()
    return DistAsyncQLearning(device=device, **{**GIVEN, **given})


def an_agent_learns_and_its_checkpoint_goes_on_on_cores_and_back(folder):
    saving = {"checkpoint_dir": folder, "checkpoint_interval": 100, "env": MODEL}
    first = agent("cuda")
    result = first.train(steps=200, **saving)
    assert (result.steps, result.device) == (200, "cuda") and first.visits.sum() == 200
    again = agent("cuda")
    again.train(env=MODEL, steps=200)
    assert np.array_equal(first.q_table, again.q_table)  # a seed makes the same table from run to run
    on_cores = agent("cpu")
    assert on_cores.train(steps=200, **saving).steps == 200  # made before
    assert np.array_equal(on_cores.q_table, first.q_table)
    result = on_cores.train(steps=300, **saving)
    assert result.device == "cpu" and on_cores.visits.sum() == 500
    back = agent("cuda")
    for steps in (200, 300, 100):
        back.train(steps=steps, **saving)
    assert back.visits.sum() == 600


def rounds_of_logical_workers_are_the_same_to_the_bit():
    tables = []
    for _ in range(2):
        one = agent("cuda", async_updates=False, logical_workers=2, batch_size=8)
        one.train(env=MODEL, steps=128)
        tables.append(one.q_table)
    assert np.array_equal(*tables)


def many_runs_at_once_are_those_of_a_core_to_the_bit():
    given = {"discount_factor": 0.9}  # exploration falls over half of the run
    runs = learn_runs(MODEL, range(5), 1000, Settings(**given))
    for seed in range(5):
        one = DistAsyncQLearning(seed=seed, **given)
        result = one.train(env=MODEL, steps=1000)
        assert np.array_equal(runs.q_tables[seed], one.q_table)
        assert np.array_equal(runs.visits[seed], one.visits)
        assert runs.episodes[seed] == result.episodes
        assert np.isclose(runs.mean_returns[seed], result.mean_return)
    for refused in ({"dtype": "float32"}, {"replay_ratio": 1.0}):
        try:
            learn_runs(MODEL, [1], 10, Settings(**refused))
        except DeviceError as error:
            assert next(iter(refused)) in str(error)
        else:
            raise AssertionError(refused)


if __name__ == "__main__":
    plan.IN_SIMULATOR = plan.Shape(2, 4, 8)
    kernels_make_the_table_of_a_core()
    an_agent_learns_and_its_checkpoint_goes_on_on_cores_and_back(sys.argv[1])
    rounds_of_logical_workers_are_the_same_to_the_bit()
    many_runs_at_once_are_those_of_a_core_to_the_bit()
    print("all is well")
