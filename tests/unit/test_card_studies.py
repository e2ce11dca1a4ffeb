"""Studies that ask for a card: in the CUDA simulator, with a core in its place, and without one."""

from dataclasses import replace
from types import SimpleNamespace
from typing import NamedTuple

import numba
import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="the extra gpu is not installed")

from card_twin import NO_CARD, make_runs_on_a_core, run_in_simulator

from dist_classicrl import DistAsyncQLearning, Sweep, TabularMDP
from dist_classicrl.environments import trial
from dist_classicrl.environments.simulate import CompiledSimulator
from dist_classicrl.errors import DeviceError
from dist_classicrl.learning.card import kernels, runs
from dist_classicrl.learning.rules.kernel import Learned, bits, rule_function, update
from dist_classicrl.rules import LearningRule
from dist_classicrl.rules.registry import register, unregister
from dist_classicrl.schedules import PerVisit
from dist_classicrl.sweep import making, plan
from dist_classicrl.sweep.plan import Plan

pytestmark = pytest.mark.slow  # each kernel here takes long to compile

MODEL = TabularMDP.garnet(6, 2, 2, seed=1)


def test_studies_in_the_simulator_are_those_of_cores_to_the_bit(tmp_path):
    run_in_simulator("card_studies.py", tmp_path)


def a_study(folder, device, env=MODEL, **changes):
    settings = {"device": device, "learning_rate": PerVisit(0.7), **changes.pop("settings", {})}
    given = {"total_steps": 300, "seeds": 4, "points": 3, "eval_episodes": 5}
    return Sweep(env, settings=settings, folder=folder / device, **{**given, **changes}).run(1)


def tables(study):
    return [(study.folder / name).read_bytes() for name in ("results.csv", "curves.csv")]


class Nothing(NamedTuple):
    number: int


class Blind(NamedTuple):
    """A rule that now and then learns infinity, and tells of no error."""


@rule_function
def learn_blindly(rule, context, now, step, learned):
    is_rare = bits(now, 0) % np.uint64(512) == np.uint64(0)
    found = update(context, now, step.state, step.action, np.inf if is_rare else step.reward, learned)
    return Learned(found.touched, learned.error)


def test_a_value_beyond_all_numbers_ends_its_run_alone(tmp_path, monkeypatch):
    make_runs_on_a_core(monkeypatch)
    rule = register(LearningRule("blind", Blind, learn_blindly))
    try:
        given = {"seeds": 8, "settings": {"algorithm": "blind"}}
        here, there = (a_study(tmp_path, device, **given) for device in ("cpu", "cuda"))
    finally:
        unregister(rule)
    assert 0 < there.failed < 8 and tables(there) == tables(here)
    errors = [row["error"] for row in there.rows() if row["error"] is not None]
    assert all(each.startswith("DivergenceError: The value of action") for each in errors)


@pytest.mark.parametrize(
    ("env", "settings"),
    [
        ("FrozenLake-v1", {"algorithm": "double_q_learning", "exploring_starts": True, "initial_value": 0.5}),
        ("Taxi-v4", {"use_action_mask": True}),
        (MODEL, {"algorithm": "dyna_q", "state_size": 9}),
    ],
)
def test_what_an_agent_can_be_set_to_holds_there_as_well(tmp_path, monkeypatch, env, settings):
    make_runs_on_a_core(monkeypatch)
    here, there = (a_study(tmp_path, device, env, settings=settings) for device in ("cpu", "cuda"))
    assert there.done == 4 and tables(there) == tables(here)


@numba.njit
def begin(data, memory, random):
    return 0


@numba.njit
def sometimes_go_where_nothing_is_legal(data, memory, state, action, random):
    return 2 if random % np.uint64(256) == np.uint64(0) else np.int64(state == 0), 1.0, False


def a_trap():
    legal = np.array([[True, True], [True, True], [False, False]])
    functions = begin, sometimes_go_where_nothing_is_legal
    return CompiledSimulator.game("trap", 3, 2, Nothing(0), *functions, legal=legal)


def endlessly_rich():
    return replace(MODEL, outcome_reward=np.full(MODEL.outcome_reward.size, 1e308))


@pytest.mark.parametrize(("make", "word"), [(a_trap, "ActionMaskError"), (endlessly_rich, "DivergenceError")])
def test_a_run_fails_in_the_words_of_a_core(tmp_path, monkeypatch, make, word):
    monkeypatch.setattr(trial, "TRIAL_STEPS", 0)  # a core would find out before
    make_runs_on_a_core(monkeypatch)
    here, there = (a_study(tmp_path, device, make()) for device in ("cpu", "cuda"))
    assert tables(there) == tables(here) and there.failed > 0
    assert all(row["error"] is None or row["error"].startswith(word) for row in there.rows())


@pytest.mark.parametrize(
    ("steps_a_second", "launched"),
    [(2.0**20, [16_384, 32_768, 65_536, 131_072, 154_240]), (2.0**14, [16_384] + [8192] * 46 + [6784])],
)
def test_launches_take_half_a_second_and_change_no_bit(monkeypatch, steps_a_second, launched):
    make_runs_on_a_core(monkeypatch)
    made, now = [], [0.0]

    class Kernel(kernels.runs_kernel):
        def __call__(self, *arguments):
            super().__call__(*arguments)
            if lines := int(arguments[4].steps[0].sum()):
                made.append(lines)
            now[0] += lines / steps_a_second

    monkeypatch.setattr(kernels, "runs_kernel", Kernel)
    monkeypatch.setattr(runs, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    found = runs.learn_runs(MODEL, [3, 4], 400_000, None, NO_CARD)
    assert made == launched
    for place, seed in enumerate((3, 4)):
        agent = DistAsyncQLearning(seed=seed)
        agent.train(env=MODEL, total_steps=400_000)
        assert np.array_equal(found.q_tables[place], agent.q_table)
        assert np.array_equal(found.visits[place], agent.visits)


def test_without_a_card_each_run_tells_why(tmp_path, monkeypatch):
    def none():
        raise DeviceError("There is no card.")

    monkeypatch.setattr(making, "card_of_this_rank", none)
    study = a_study(tmp_path, "cuda")
    assert study.failed == 4
    assert {row["error"] for row in study.rows()} == {"DeviceError: There is no card."}


def test_a_parcel_holds_runs_that_a_card_makes_at_once_and_they_come_first(monkeypatch):
    monkeypatch.setattr(plan, "_RUNS_AT_ONCE", 4)
    made = Plan({"a": ""}, ({}, {}, {}), (), tuple(range(6)), 300, 5, 5)
    trials = [made.trial(number) for number in range(made.n_runs)]
    kinds = {0: None, 1: "one", 2: "one"}
    parcels = made.parcels(trials, {"a": 1.0}, lambda trial: kinds[trial.variant])
    assert [len(parcel.trials) for parcel in parcels] == [4, 4, 4, 6]
    assert {trial.variant for parcel in parcels[:3] for trial in parcel.trials} == {1, 2}
    assert sorted(trial.number for parcel in parcels for trial in parcel.trials) == list(range(18))
    assert len({parcel.name for parcel in parcels}) == 4
