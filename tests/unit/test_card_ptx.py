"""A card's kernels as NVVM compiles them, played by a machine for PTX: they make the tables of a core."""

from typing import NamedTuple

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="the extra gpu is not installed")

import card_ptx
import numba
from card_ptx import (
    CopiesByLetters,
    CopiesInDeviceMemory,
    CopiesPlayed,
    OnePlayed,
    Played,
    RowsPlayed,
    needs_nvvm,
    ptx_of,
)
from card_twin import MASKED, MODEL, OnCore, OneOnCore, RowsOnCore, learned, made, make_runs_on_a_core

from dist_classicrl import CompiledSimulator, Sweep, TabularMDP
from dist_classicrl.environments import TicTacToeEnv
from dist_classicrl.learning.card import kernels
from dist_classicrl.learning.card.plan import Shape
from dist_classicrl.rules.behaviors import Boltzmann
from dist_classicrl.rules.registry import BUILT_IN
from dist_classicrl.schedules import PerVisit
from dist_classicrl.settings import Settings

pytestmark = [pytest.mark.slow, needs_nvvm]
GIVEN = {"discount_factor": 0.9, "epsilon": 0.5, "learning_rate": PerVisit(0.7), "seed": 4}
ALONE = Shape(1, 1, 8)
"""One walker: in rows the order in which several of them write makes another table."""
TWINS = {RowsPlayed: RowsOnCore, OnePlayed: OneOnCore}


def check_that_it_is_that_of_a_core(kind, env, settings, **given):
    """Compare tables, totals and walkers after two calls."""
    if kind is RowsPlayed:
        given = {"shape": ALONE, "is_alone": True, **given}
    here, there = (made(one, env, settings, **given) for one in (TWINS.get(kind, OnCore), kind))
    for learner in (here, there):
        learned(learner, 300)
    one, other = learned(here, 90, key=8), learned(there, 90, key=8)
    for name in one:
        assert np.array_equal(one[name], other[name]), name
    assert one["updates"].sum() > 200
    assert np.array_equal(here.totals.values, there.totals.values)
    mine, its = here.state(0), there.state(0)
    assert all(np.array_equal(mine[name], its[name]) for name in mine)


@pytest.mark.parametrize(
    ("kind", "env", "algorithm", "dtype"),
    [
        (CopiesPlayed, MODEL, "q_learning", np.float64),
        (CopiesByLetters, MASKED, "double_q_learning", np.float32),
        (CopiesByLetters, MASKED, "tree_backup", np.float64),
        (CopiesInDeviceMemory, MASKED, "n_step_sarsa", np.float64),
        (CopiesInDeviceMemory, MODEL, "sarsa", np.float32),
        (OnePlayed, MASKED, "sarsa_lambda", np.float64),
        (OnePlayed, MODEL, "q_learning", np.float32),
        (RowsPlayed, MASKED, "expected_sarsa", np.float32),
        (RowsPlayed, MASKED, "double_q_learning", np.float64),
        (RowsPlayed, MODEL, "q_lambda", np.float64),
    ],
)
def test_kernels_make_the_table_of_a_core_to_the_bit_in_any_order(kind, env, algorithm, dtype):
    check_that_it_is_that_of_a_core(kind, env, Settings(**GIVEN, algorithm=algorithm), dtype=dtype)


def test_exponentials_are_those_of_a_core_to_the_bit():
    """Not so logarithms: these begin with what a card alone comes to, as `UCB` does."""
    settings = Settings(**GIVEN, behavior=Boltzmann(0.5))
    check_that_it_is_that_of_a_core(CopiesByLetters, MASKED, settings)


@pytest.mark.parametrize(
    ("kind", "env"), [(CopiesInDeviceMemory, TicTacToeEnv()), (RowsPlayed, "Blackjack-v1")], ids=str
)
def test_games_are_those_of_a_core_to_the_bit(kind, env):
    check_that_it_is_that_of_a_core(kind, env, Settings(**GIVEN), dtype=np.float32)


class Cliff(NamedTuple):
    width: int
    falls: np.ndarray


@numba.njit
def begin(data, memory, random):
    return random % np.uint64(data.width)


@numba.njit
def step(data, memory, state, action, random):
    after = max(state - 1, 0) if action == 0 else min(state + 1 + random % np.uint64(2), data.width - 1)
    memory[0] += 1
    reward = -100.0 if data.falls[after] else -1.0 / (1 + memory[0])
    return after, reward, after == data.width - 1 or data.falls[after]


def test_a_game_of_the_users_own_is_that_of_a_core_to_the_bit():
    falls = np.arange(9) == 4
    game = CompiledSimulator.game("Cliff", 9, 2, Cliff(9, falls), begin, step, memory_size=1)
    for kind in (CopiesByLetters, RowsPlayed):
        check_that_it_is_that_of_a_core(kind, game, Settings(**GIVEN))


def test_walkers_in_the_same_rows_lose_visits_at_most_and_keep_to_the_bounds():
    """Whatever a walker finds is a convex combination of what was there and a target, in any order."""
    model = TabularMDP.garnet(12, 3, 2, seed=1)
    there = made(RowsPlayed, model, Settings(**GIVEN), shape=Shape(2, 16, 8), is_alone=True)
    learned(there, 6_000)
    found = learned(there, 6_000, key=8)
    low, high = model.outcome_reward.min() / 0.1, model.outcome_reward.max() / 0.1
    assert min(low, 0.0) <= found["q"].min() and found["q"].max() <= max(high, 0.0)
    assert 6_000 < found["updates"].sum() < 12_000  # some were lost, so walkers did meet


@pytest.mark.parametrize("barrier", range(3))
def test_without_any_one_of_its_barriers_a_round_is_a_race(barrier, monkeypatch):
    """So the machine would tell if one were missing."""

    def without(python, arguments):
        waits = "\tbar.sync \t0;\n"
        parts = ptx_of(python, arguments).split(waits)
        if python.__name__ == "play_round":
            assert len(parts) == 4
            parts[barrier : barrier + 2] = ["".join(parts[barrier : barrier + 2])]
        return waits.join(parts)

    monkeypatch.setattr(card_ptx, "ptx_of", without)
    with pytest.raises(Exception, match=r"touches what another thread does, with no barrier between"):
        learned(made(CopiesByLetters, MASKED, Settings(**GIVEN)), 300)


@pytest.mark.parametrize("algorithm", sorted(BUILT_IN))
def test_whole_trainings_of_all_rules_are_those_of_cores_to_the_bit(algorithm, tmp_path, monkeypatch):
    python = kernels.python_of_runs()
    make_runs_on_a_core(monkeypatch)
    monkeypatch.setattr(kernels, "runs_kernel", lambda: Played(python))
    settings = {"algorithm": algorithm, "learning_rate": PerVisit(0.7)}
    tables = []
    for device in ("cpu", "cuda"):
        sweep = Sweep(
            MODEL if algorithm == "differential_q_learning" else MASKED,  # in which episodes end
            settings={**settings, "device": device},
            folder=tmp_path / device,
            total_steps=300,
            seeds=4,
            points=3,
            eval_episodes=5,
        )
        study = sweep.run(1)
        assert study.failed == 0
        tables.append([(study.folder / name).read_bytes() for name in ("results.csv", "curves.csv")])
    assert tables[0] == tables[1]
