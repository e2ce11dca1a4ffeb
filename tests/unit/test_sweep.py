"""Studies of many runs: what they are, that they go on, and that nothing depends on who makes them."""

import asyncio
import csv
import errno
import json
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
from own_rules import N_STEP_SARSA, registered

from dist_classicrl import DistAsyncQLearning, Study, Sweep, TabularMDP
from dist_classicrl.cli.main import main
from dist_classicrl.cli.shown_study import teller
from dist_classicrl.cli.study_file import keep_study_file, read_study
from dist_classicrl.errors import (
    MissingExtraError,
    SettingsError,
    StudyError,
    SweepStopped,
    TrainingStopped,
    WorkerLeft,
)
from dist_classicrl.rules import UCB, Boltzmann, QLambda
from dist_classicrl.schedules import Constant, Exponential, Linear, PerVisit
from dist_classicrl.sweep import Range, SuccessiveHalving
from dist_classicrl.sweep import sweep as sweep_module
from dist_classicrl.sweep import trial as trial_module
from dist_classicrl.sweep.choosing.search import variants
from dist_classicrl.sweep.comparison import interquartile_mean
from dist_classicrl.sweep.folder import Member, StudyFolder, written
from dist_classicrl.sweep.kept.records import is_record
from dist_classicrl.sweep.new_seeds import compare_on_new_seeds
from dist_classicrl.sweep.plan import Plan
from dist_classicrl.sweep.progress import SweepProgress
from dist_classicrl.sweep.study import score_of
from dist_classicrl.sweep.trial import THIS_PROCESS, Laboratory, judged

GARNET = TabularMDP.garnet(n_states=20, n_actions=3, branching=3, seed=1)
VARY = {"learning_rate": [0.1, PerVisit(0.7)], "discount_factor": [0.8, 0.9]}


def a_sweep(folder, **changes):
    given = {"total_steps": 2_000, "seeds": 3, "vary": VARY, "points": 4, "eval_episodes": 5}
    return Sweep(GARNET, folder=folder, **{**given, **changes})


def tables(folder):
    return [(folder / name).read_bytes() for name in ("results.csv", "curves.csv")]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A study that one process has made without a break."""
    folder = tmp_path_factory.mktemp("whole") / "study"
    return a_sweep(folder).run(processes=1)


# What is tried


def test_a_grid_has_all_combinations_the_last_name_fastest():
    assert variants({"a": [1, 2], "b": "x y".split()}) == [
        {"a": 1, "b": "x"},
        {"a": 1, "b": "y"},
        {"a": 2, "b": "x"},
        {"a": 2, "b": "y"},
    ]
    assert variants({}) == [{}]


def test_random_draws_are_in_their_ranges_and_the_first_ones_stay():
    vary = {"a": Range(0.001, 1.0, log=True), "b": Range(2, 5), "c": [7, 8], "d": Range(-1.0, 0.5)}
    few, many = (variants(vary, "random", n, seed=3) for n in (5, 2_000))
    assert many[:5] == few != variants(vary, "random", 5, seed=4)
    logs = np.log10([each["a"] for each in many])
    assert -3.0 <= logs.min() and logs.max() <= 0.0
    assert abs(logs.mean() + 1.5) < 4 * 3.0 / math.sqrt(12 * 2_000)  # uniform: a variance of 9/12
    assert {each["b"] for each in many} == {2, 3, 4, 5} and {each["c"] for each in many} == {7, 8}
    assert all(isinstance(each["b"], int) and -1.0 <= each["d"] <= 0.5 for each in many)


def test_whole_numbers_of_a_logarithmic_range_stand_for_what_is_rounded_to_them():
    drawn = [each["a"] for each in variants({"a": Range(1, 4, log=True)}, "random", 4_000)]
    shares = np.bincount(drawn)[1:] / 4_000
    expected = np.diff(np.log([0.5, 1.5, 2.5, 3.5, 4.5])) / math.log(9)
    np.testing.assert_allclose(shares, expected, atol=4 * math.sqrt(0.25 / 4_000))


@pytest.mark.parametrize(
    "vary, more, word",
    [
        ({"a": []}, {}, "no values"),
        ({"a": 3}, {}, "list of values"),
        ({"a": "xy"}, {}, "list of values"),
        ({"a": Range(0, 1)}, {}, "grid"),
        ({"a": [1]}, {"n_variants": 3}, "belongs to"),
        ({"a": [1]}, {"search": "bayes"}, "grid"),
        ({"a": [1]}, {"search": "random"}, "n_variants"),
        ({"a": [1]}, {"search": "random", "n_variants": 2, "seed": -1}, "seed"),
    ],
)
def test_a_search_that_cannot_be_is_refused_by_name(vary, more, word):
    with pytest.raises(StudyError, match=word):
        variants(vary, **more)


@pytest.mark.parametrize("twice", [[0.1, 0.2, 0.1], [0.1, Constant(0.1)]])
def test_a_value_that_stands_twice_is_refused(twice, tmp_path):
    vary = {"learning_rate": twice, "discount_factor": [0.9, 0.99]}
    with pytest.raises(StudyError, match="same settings twice, learning_rate=.*0.1.*, discount_factor=0.9:"):
        Sweep("FrozenLake-v1", total_steps=100, vary=vary, folder=tmp_path)
    # What is drawn at random may be drawn again.
    Sweep("FrozenLake-v1", 100, vary={"learning_rate": [0.1]}, search="random", n_variants=3, folder=tmp_path)


@pytest.mark.parametrize("ends", [(1.0, 1.0), (2, 1), (math.nan, 1.0), (0.0, math.inf), ("a", 1)])
def test_a_range_without_order_is_refused(ends):
    with pytest.raises(StudyError):
        Range(*ends)
    with pytest.raises(StudyError, match="above 0"):
        Range(0.0, 1.0, log=True)


@pytest.mark.parametrize(
    "given, word",
    [
        ((0, 10**20), r"2\*\*63 - 1.* write 0.0 and 1e\+20"),
        ((0, 10**400), "one finite number to another, got 0.0 and inf"),
        ((0, 10**5_000), "one finite number"),
        ((0.1, 1.0, "false"), "log of a range must be True or False.*got 'false'"),
        ((0.1, 1.0, 1), "log of a range"),
    ],
)
def test_a_range_that_cannot_be_drawn_from_is_refused(given, word):
    with pytest.raises(StudyError, match=word):
        Range(*given)


def test_a_range_of_all_whole_numbers_can_be_drawn_from():
    for log in (False, True):
        numbers = [each["a"] for each in variants({"a": Range(1, 2**63 - 1, log)}, "random", 50)]
        assert all(isinstance(each, int) and 1 <= each < 2**63 for each in numbers) and max(numbers) > 2**55


@pytest.mark.parametrize(
    "changes",
    [
        {"vary": dict.fromkeys("abcdefghijkl", range(100))},
        {"vary": {"a": Range(0.1, 1.0)}, "search": "random", "n_variants": 10**12},
        {"vary": {"a": range(5_000_001)}, "seeds": 2},
    ],
)
def test_more_runs_than_a_study_may_have_are_counted_and_not_listed(tmp_path, changes):
    with pytest.raises(StudyError, match="at most 10,000,000 runs, got .*Give fewer seeds"):
        a_sweep(tmp_path / "study", **changes)


@pytest.mark.parametrize(
    "changes, word",
    [
        ({"total_steps": 0}, "total_steps"),
        ({"points": 0}, "points"),
        ({"points": 3_000}, "points"),
        ({"seeds": 0}, "seeds"),
        ({"seeds": [1, 1]}, "twice"),
        ({"seeds": [-1]}, "seeds"),
        ({"vary": {"seed": [1]}}, "seed"),
        ({"vary": {"learning_rat": [1]}}, "learning_rat"),
        ({"vary": {"learning_rate": [0.1, 2.0]}}, "learning_rate"),
        ({"settings": {"learning_rate": 0.2}}, "settings and in vary"),
        ({"settings": {1: 2}}, "unknown settings 1; known are"),
        ({"settings": {1: 2}, "vary": {1: [2]}}, "1 stands in settings and in vary"),
        ({"search_seed": "abc"}, "search_seed='abc' belongs to search=\"random\".*Leave it out"),
        ({"search_seed": 3}, "search_seed=3 belongs to"),
        ({"search": np.array([1, 2])}, r'search must be "grid", "random" or "tpe", got array\(\[1, 2\]\)'),
        ({"early_stopping": 3}, "SuccessiveHalving"),
        ({"early_stopping": SuccessiveHalving(3, 8)}, "Give 2,187 steps or more, or fewer rungs"),
    ],
)
def test_a_study_that_cannot_be_is_refused_before_anything_is_made(tmp_path, changes, word):
    with pytest.raises(StudyError, match=word):
        a_sweep(tmp_path / "study", **changes)
    assert not (tmp_path / "study").exists()


@pytest.mark.parametrize(
    "how, told",
    [
        ({"processes": 0}, "processes must be a whole number of 1 or more, got 0"),
        ({"progress": 5}, "progress must be a function that takes a SweepProgress, or None, got 5"),
        ({"progress": lambda: None}, "progress must be a function that takes a SweepProgress"),
        ({"retry_failed": "no"}, "retry_failed must be True or False, got 'no'"),
        ({"retry_failed": 0}, "retry_failed must be True or False, got 0"),
    ],
)
def test_how_a_study_is_made_is_looked_at_before_anything_is_made(tmp_path, how, told):
    for make in (a_sweep(tmp_path / "study").run, partial(compare_on_new_seeds, a_sweep(tmp_path / "study"))):
        with pytest.raises(StudyError, match=told):
            make(**how)
    assert not (tmp_path / "study").exists()


@pytest.mark.parametrize(
    "given, told",
    [
        (("studies/lake",), "is made by the Sweep of the study, got 'studies/lake'"),
        ((None, 5), "names must be a list of settings as Study.name_of has them, or None, got 5"),
        ((None, "learning_rate=0.1"), "names must be a list .* got 'learning_rate=0.1'"),
        ((None, [1, 2]), "names must be a list"),
    ],
)
def test_what_is_compared_on_new_seeds_is_looked_at_first(tmp_path, given, told):
    sweep = given[0] or a_sweep(tmp_path / "study")
    with pytest.raises(StudyError, match=told):
        compare_on_new_seeds(sweep, *given[1:])
    assert not (tmp_path / "study").exists()


@pytest.mark.slow
def test_as_many_settings_as_a_study_has_are_compared_on_new_seeds(tmp_path):
    rates = [number / 1_000 for number in range(1, 101)]
    sweep = a_sweep(tmp_path, total_steps=10, seeds=1, vary={"learning_rate": rates})
    few = {"stages": 1, "seeds_per_stage": 3, "permutations": 999, "processes": 1}
    sweep.run(1)
    verdicts = compare_on_new_seeds(sweep, **few)
    assert len(verdicts) == 100 * 99 / 2
    (name,) = (path.name for path in (tmp_path / "new_seeds").iterdir())
    assert name.startswith("100-settings-")
    # It is found again, in whatever order; one of less is another, whose folder is called as it always was.
    made = Study(tmp_path / "new_seeds" / name / "stage-0").rows()
    names = [first for first, _ in verdicts]
    names = [*dict.fromkeys(names), "learning_rate=0.1"]
    assert compare_on_new_seeds(sweep, names[::-1], **few) == verdicts
    assert Study(tmp_path / "new_seeds" / name / "stage-0").rows() == made
    compare_on_new_seeds(sweep, names[:9], **few)
    compare_on_new_seeds(sweep, names[:99], **few)
    folders = {path.name for path in (tmp_path / "new_seeds").iterdir()}
    assert len(folders) == 3 and {name, "0-1-2-3-4-5-6-7-8"} < folders


def test_a_policy_is_named_by_a_digest_of_its_numbers(tmp_path):
    even, other = np.full((20, 3), 1 / 3), np.tile([0.5, 0.25, 0.25], (20, 1))

    def names(folder, **vary):
        a_sweep(tmp_path / folder, vary=vary).begin()
        study = Study(tmp_path / folder)
        return [study.name_of(number) for number in study.variants()]

    first, second, last = names("study", behavior=[even, other, "ucb"])
    assert last == "behavior=ucb" and first != second
    assert all(re.fullmatch("behavior=policy [0-9a-f]{8}", name) for name in (first, second))
    # The same array has the same name in another study.
    assert names("other", behavior=[other], learning_rate=[0.1, 0.2])[1] == f"{second} learning_rate=0.2"


def test_a_comparison_goes_on_where_its_settings_had_other_names_in_an_earlier_version(tmp_path):
    sweep = a_sweep(tmp_path, total_steps=20, vary={"learning_rate": [0.1, 0.2]})
    few = {"stages": 1, "seeds_per_stage": 6, "processes": 1}
    sweep.run(1)
    verdicts = compare_on_new_seeds(sweep, **few)
    (test,) = tmp_path.glob("new_seeds/*/test.json")
    begun = json.loads(test.read_text())
    assert begun["settings"] == ["learning_rate=0.1", "learning_rate=0.2"]
    test.write_text(json.dumps({**begun, "settings": ["behavior={...}", "behavior={....}"]}))
    assert compare_on_new_seeds(sweep, **few) == verdicts
    with pytest.raises(StudyError, match=r"begun with level=0\.05\. To change"):
        compare_on_new_seeds(sweep, level=0.1, **few)


def test_a_single_environment_that_cannot_be_made_again_is_refused(tmp_path):
    class Mine(gymnasium.Env):
        observation_space = action_space = gymnasium.spaces.Discrete(2)

        def reset(self, seed=None, options=None):
            return 0, {}

        def step(self, action):
            return 0, float(action), True, False, {}

    with pytest.raises(StudyError, match="a function that makes it"):
        Sweep(Mine(), 100, folder=tmp_path)
    study = Sweep({"mine": Mine}, 100, seeds=2, points=2, eval_episodes=2, folder=tmp_path / "study").run(1)
    assert [(row["environment"], row["score"]) for row in study.rows()] == [("mine", 1.0)] * 2


def test_a_score_is_between_a_random_policy_and_the_best():
    values = {"exact_value": 3.0, "optimal_value": 4.0, "random_value": 2.0}
    record = {"error": None, "final_return": 9.0, **values}
    assert score_of(record, ("epsilon",)) == 0.5
    assert score_of(record, ("epsilon", "discount_factor")) == score_of(record, ("use_action_mask",)) == 9.0
    for unknown in ("optimal_value", "random_value"):
        assert score_of(record | {unknown: None}, ()) == 9.0
    # Undiscounted, of a policy that never ends: what it was paid until it was cut off, and no praise.
    assert score_of(record | {"exact_value": None, "final_return": -96.0}, ()) == -49.0
    assert score_of(record | {"exact_value": None, "final_return": 3.9}, ()) == 0.0
    assert score_of(record | {"random_value": 4.0, "exact_value": 4.0}, ()) == 9.0  # nothing to learn
    assert math.isnan(score_of(record | {"error": "no luck"}, ()))


def test_a_policy_without_a_value_leaves_the_scale_to_the_others():
    transition = np.zeros((2, 2, 2))
    transition[0, 0, 0] = transition[0, 1, 1] = transition[1, :, 1] = 1.0
    model = TabularMDP.from_arrays(transition, -np.ones((2, 2, 2)), [1.0, 0.0], terminated=[False, True])
    known = judged(lambda: np.array([[1.0, 0.0], [0.0, 0.0]]), model, 1.0)
    assert known == {"exact_value": None, "optimal_value": -1.0, "random_value": -2.0}


# Runs


@pytest.mark.slow
def test_a_run_is_a_training_with_these_settings_and_this_seed(whole):
    agent = DistAsyncQLearning(learning_rate=PerVisit(0.7), discount_factor=0.9, seed=2, comm=THIS_PROCESS)
    result = agent.train(GARNET, total_steps=2_000)
    (row,) = [each for each in whole.rows() if each["variant"] == 3 and each["seed"] == 2]
    assert (row["learning_rate"], row["discount_factor"]) == ("PerVisit(0.7)", 0.9)
    assert row["steps"] == result.steps == 2_000 and row["episodes"] == result.episodes
    values = agent.q_table
    greedy = values.argmax(axis=1)
    value = GARNET.start_value(GARNET.policy_value(greedy, 0.9))
    best = GARNET.start_value(GARNET.solve(0.9).v)
    random = GARNET.start_value(GARNET.policy_value(np.full((20, 3), 1 / 3), 0.9))
    assert row["exact_value"] == pytest.approx(value) and row["optimal_value"] == pytest.approx(best)
    assert row["random_value"] == pytest.approx(random) and whole.bounds is None
    assert row["score"] == row["final_return"]  # with another discount factor other values are the best


@pytest.mark.slow
def test_a_curve_is_at_evenly_spread_steps_and_adds_up_to_the_whole(whole):
    lake = Sweep("FrozenLake-v1", total_steps=1_000, seeds=1, points=7, folder=whole.folder / "lake").run(1)
    (row,) = lake.rows()
    curve = lake.curves()
    assert [point["step"] for point in curve] == [-(-1_000 * k // 7) for k in range(1, 8)]
    assert sum(point["episodes"] for point in curve) == row["episodes"]
    total = sum(point["episodes"] * point["mean_return"] for point in curve if point["episodes"])
    assert total == pytest.approx(row["episodes"] * row["training_return"])


@pytest.mark.slow
def test_results_are_those_of_their_environments_in_whatever_order_these_are_given(tmp_path):
    models = {"b": TabularMDP.garnet(8, 2, 2, seed=1), "a": TabularMDP.garnet(9, 2, 2, seed=2)}
    given = {"total_steps": 2_000, "seeds": 2, "vary": {"discount_factor": [0.8, 0.9]}}
    best = {
        (name, d): model.start_value(model.solve(d).v) for name, model in models.items() for d in (0.8, 0.9)
    }
    for order in ("ba", "ab"):  # the second time there is nothing left to do
        sweep = Sweep({name: models[name] for name in order}, folder=tmp_path / "study", **given)
        for study in (sweep.run(processes=1), Study(tmp_path / "study")):
            rows = study.rows()
            assert len(rows) == 8
            for row in rows:
                known = best[row["environment"], float(row["discount_factor"])]
                assert row["optimal_value"] == pytest.approx(known)
                assert row["exact_value"] <= row["optimal_value"] + 1e-9
    stopped = SuccessiveHalving(factor=2, rungs=2)
    early = Sweep(
        {name: models[name] for name in "ba"}, folder=tmp_path / "early", early_stopping=stopped, **given
    )
    for row in early.run(processes=1).rows():
        assert row["optimal_value"] == pytest.approx(best[row["environment"], float(row["discount_factor"])])


def test_scores_of_several_scales_are_not_added_up(tmp_path, capsys):
    models = {"a": GARNET, "b": TabularMDP.garnet(8, 1, 2, seed=1)}  # of b all policies are worth the same
    vary = {"epsilon": [0.1, 0.9]}
    study = Sweep(models, 500, 2, vary=vary, points=2, eval_episodes=2, folder=tmp_path / "study").run(1)
    assert study.bounds is None
    assert main(["compare", str(tmp_path / "study")]) == 2
    assert "on a scale of its own in each of a, b" in capsys.readouterr().err


def test_a_study_of_several_environments_by_an_earlier_version_is_refused(tmp_path):
    models = {"a": GARNET, "b": TabularMDP.garnet(8, 2, 2, seed=1)}
    sweep = Sweep(models, 100, folder=tmp_path)
    sweep.begin()
    path = tmp_path / "study.json"
    plan = json.loads(path.read_text())
    path.write_text(json.dumps({name: plan[name] for name in plan if name != "numbered"}))
    for again in (sweep.begin, lambda: Study(tmp_path)):
        with pytest.raises(StudyError, match="by an earlier version, which may show what one gave under"):
            again()


def test_environments_have_names_of_their_own(tmp_path):
    with pytest.raises(StudyError, match="Two environments have the same name: 1, '1'"):
        Sweep({1: GARNET, "1": GARNET}, 100, folder=tmp_path)


def test_whole_numbers_and_equal_floats_are_other_plans(tmp_path):
    folder = StudyFolder(tmp_path)
    ends = Range(np.int64(1), np.int64(10))
    assert (type(ends.low), type(ends.high)) == (int, int)
    folder.begin({"space": {"low": ends.low}})
    folder.begin({"space": {"low": 1}})
    with pytest.raises(StudyError, match="holds another study: low: 1 there, 1.0 here. Give it"):
        folder.begin({"space": {"low": 1.0}})


class Maze(gymnasium.Env):
    """Of a user, who calls something of it its model, and whose errors are of any text."""

    observation_space = action_space = gymnasium.spaces.Discrete(2)
    model = "grid"
    fails = False

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {}

    def step(self, action):
        if self.fails:
            raise ValueError("10%\r20% \ud800")
        return int(action), float(action), bool(action), False, {}


class Torn(Maze):
    fails = True


def test_an_environment_may_have_a_model_of_its_own_and_an_error_any_text(tmp_path):
    envs = {"maze": Maze, "torn": Torn}
    study = Sweep(envs, 50, 1, points=2, eval_episodes=2, folder=tmp_path).run(1)
    well, failed = study.rows()
    assert well["error"] is None and well["optimal_value"] is None
    assert failed["error"] == "ValueError: 10%\n20% \\ud800"
    study.write_tables()
    with (tmp_path / "results.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == 2


def test_means_of_runs_with_other_numbers_of_steps_are_not_told(whole, monkeypatch):
    study = Study(whole.folder)
    rows = study.rows()
    assert study.summary()[0]["mean_score"] is not None
    rows[1]["steps"] -= 1
    monkeypatch.setattr(study, "_rows", lambda: rows)
    means = [row["mean_score"] for row in study.summary()]
    assert means[0] is None and None not in means[1:]


def test_environments_may_be_a_list_of_names(tmp_path):
    sweep = Sweep(["Taxi-v4", "FrozenLake-v1"], folder=tmp_path / "study", total_steps=1_000)
    assert list(sweep.plan.environments) == ["FrozenLake-v1", "Taxi-v4"]
    for wrong in (["Taxi-v4", "Taxi-v4"], [GARNET]):
        with pytest.raises(StudyError, match="a list must have names of environments, each once"):
            Sweep(wrong, folder=tmp_path / "study", total_steps=1_000)


def test_two_processes_make_the_same_tables_as_one(whole, tmp_path):
    seen = []
    study = a_sweep(tmp_path).run(processes=2, progress=seen.append)
    assert tables(tmp_path) == tables(whole.folder)
    assert study.done == 12 and study.failed == 0
    assert (seen[-1].done, seen[-1].failed, seen[-1].total, seen[-1].seconds_left) == (12, 0, 12, 0.0)


@pytest.mark.slow
def test_a_sweep_goes_on_where_it_was_and_makes_no_run_twice(whole, tmp_path, monkeypatch):
    made, real = [], Laboratory.run

    def run(self, trial):
        made.append(trial.number)
        if len(made) == 5:
            raise KeyboardInterrupt
        return real(self, trial)

    monkeypatch.setattr(Laboratory, "run", run)
    with pytest.raises(KeyboardInterrupt):
        a_sweep(tmp_path).run(processes=1)
    assert Study(tmp_path).done == 4
    a_sweep(tmp_path).run(processes=1)
    assert sorted(made) == sorted([*range(12), made[4]])
    assert tables(tmp_path) == tables(whole.folder)


def test_another_study_in_the_folder_is_refused_and_stays(whole):
    before = tables(whole.folder)
    for changes, said in (
        ({"total_steps": 3_000, "seeds": 4}, "total_steps: 2000 there, 3000 here"),
        ({"settings": {"dtype": "float32"}}, "dtype: 'float64' there, 'float32' here"),
        (
            {"vary": {**VARY, "discount_factor": [0.8, 0.9, 0.95]}},
            "number of settings: 4 there, 6 here; discount_factor: [0.8, 0.9] there, [0.8, 0.9, 0.95] here",
        ),
        (
            {"vary": {"learning_rate": [0.1, 0.2], "epsilon": [0.1, 0.2]}},
            "discount_factor: [0.8, 0.9] there, 0.99 here; epsilon: {'final': 0.1, 'fraction': 0.5, "
            "'initial': 1.0, 'kind': 'Linear'} there, [0.1, 0.2] here; learning_rate: [0.1, {'exponent': "
            "0.7, 'kind': 'PerVisit', 'scale': 1.0}] there, [0.1, 0.2] here; vary: ['learning_rate', "
            "'discount_factor'] there, ['learning_rate', 'epsilon'] here",
        ),
        (
            {"vary": dict(reversed(VARY.items()))},
            "settings: the same values in other combinations; vary: ['learning_rate', 'discount_factor'] "
            "there, ['discount_factor', 'learning_rate'] here",
        ),
        (
            {"early_stopping": SuccessiveHalving()},
            "early_stopping: None there, {'factor': 3, 'rungs': 3} here",
        ),
    ):
        with pytest.raises(StudyError) as caught:
            a_sweep(whole.folder, **changes).run(1)
        assert f"holds another study: {said}. Give it as it was" in str(caught.value)
    other = TabularMDP.garnet(n_states=20, n_actions=3, branching=3, seed=2)
    with pytest.raises(StudyError, match="environments"):
        Sweep(other, 2_000, 3, vary=VARY, points=4, eval_episodes=5, folder=whole.folder).run(1)
    with pytest.raises(StudyError, match=r"environments: \['Garnet.*'\] there, \['1', '2'\] here;"):
        Sweep({1: GARNET, 2: other}, 2_000, 3, vary=VARY, points=4, folder=whole.folder).begin()
    assert tables(whole.folder) == before


class Walk(gymnasium.Env):
    """Three steps to a goal that pays `reward`; Gymnasium knows nothing of it."""

    observation_space, action_space = gymnasium.spaces.Discrete(4), gymnasium.spaces.Discrete(2)

    def __init__(self, reward=1.0):
        self.reward, self.place = reward, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = 0
        return 0, {}

    def step(self, action):
        self.place = min(3, self.place + int(action))
        return self.place, self.reward * (self.place == 3), self.place == 3, False, {}


def test_a_study_of_an_environment_with_other_arguments_is_another_one(tmp_path):
    def begun(env):
        given = Sweep({"walk": env}, 100, 2, points=1, folder=tmp_path)
        given.begin()
        return given.plan.environments["walk"]

    assert begun(partial(Walk, reward=1.0)) == begun(partial(Walk, reward=1.0))
    for other in (partial(Walk, reward=2.0), partial(Walk, 1.0), partial(Walk), Walk):
        with pytest.raises(
            StudyError, match="another study: environments: other ones of the same name as walk"
        ):
            begun(other)
    # Where nothing was given, and where Gymnasium tells, a folder of old goes on.
    for env in (partial(Walk), partial(gymnasium.make, "FrozenLake-v1", is_slippery=False)):
        assert "{" not in Sweep({"walk": env}, 100, 2, points=1).plan.environments["walk"]
    file = tmp_path / "study.toml"
    text = f'environment = "{__name__}:Walk"\ntotal_steps = 100\n[environment_arguments]\nreward = '
    told = set()
    for reward in ("1.0", "2.0"):
        file.write_text(text + reward)
        told |= set(Sweep(**{**read_study(file), "points": 1}).plan.environments.values())
    assert len(told) == 2


@pytest.mark.parametrize(
    "line, said",
    [
        ('env = "FrozenLake-v1"', "env is called environment here. Write environment = ..."),
        ("timesteps = 200", "timesteps is called total_steps here. Write total_steps = ..."),
        ("settings = { gamma = 0.9 }", "gamma is called discount_factor here. Write discount_factor = ..."),
        ("vary = { lr = [0.1] }", "lr is called learning_rate here. Write learning_rate = ..."),
        ("alpha = 0.1", "there is no key 'alpha' here. There are environment,"),  # none of a study itself
    ],
)
def test_what_a_key_of_a_study_is_called_here_is_told(line, said, tmp_path):
    file = tmp_path / "study.toml"
    file.write_text(f'{line}\nenvironment = "FrozenLake-v1"\ntotal_steps = 200\n')
    with pytest.raises(StudyError) as caught:
        read_study(file)
    assert str(caught.value).startswith(f"{file}: {said}")
    is_setting = "write learning_rate below [settings], or [vary]." in str(caught.value)
    assert is_setting == line.startswith("alpha")


LAKE = 'environment = "FrozenLake-v1"\ntotal_steps = 200\n'


def test_a_study_file_has_hyper_parameters_as_the_table_of_a_study_shows_them(tmp_path):
    file = tmp_path / "study.toml"
    file.write_text(
        LAKE
        + """[vary]
algorithm = ["sarsa", { name = "q_lambda", trace_decay = 0.5 }, { name = "q_lambda", trace_decay = 0.9 }]
behavior = [
    "ucb",
    { name = "ucb", exploration = 2 },
    { name = "boltzmann", temperature = "exponential:1.0:0.1:fraction=0.5" },
]
"""
    )
    sweep = Sweep(**read_study(file), folder=tmp_path / "study")
    falling = Boltzmann(Exponential(1.0, 0.1, fraction=0.5))
    vary = {"algorithm": ["sarsa", QLambda(0.5), QLambda()], "behavior": ["ucb", UCB(2.0), falling]}
    same = Sweep("FrozenLake-v1", 200, vary=vary, folder=tmp_path / "study")
    assert sweep.plan.to_dict() == same.plan.to_dict()
    sweep.begin()
    study = Study(tmp_path / "study")
    shown = [study.name_of(number).partition(" behavior")[0] for number in study.variants()]
    said = 'algorithm={"name": "q_lambda", "trace_decay": 0.5}'
    assert [*dict.fromkeys(shown)] == ["algorithm=sarsa", said, "algorithm=q_lambda"]
    # What it shows may stand in a file, with = in place of the colons.
    data = json.loads(said.partition("=")[2])
    table = ", ".join(f"{key} = {json.dumps(value)}" for key, value in data.items())
    file.write_text(f"{LAKE}[settings]\nalgorithm = {{ {table} }}\n")
    assert Sweep(**read_study(file)).plan.to_dict()["variants"][0]["algorithm"] == data


@pytest.mark.parametrize(
    "line, said",
    [
        ('{ name = "q_lambda", trace_decay = 7 }', "trace_decay must be from 0 to 1, got 7"),
        ('{ name = "q_lambda", trace_decay = "a" }', "trace_decay must be a finite number, got 'a'"),
        (
            '{ name = "q_lambda", decay = 7 }',
            "'q_lambda' has no hyper-parameter 'decay'. .*It has trace_decay",
        ),
        ('{ name = "q_lamda" }', "algorithm must be one of 'q_learning', "),
        ("{ trace_decay = 0.5 }", "algorithm must be one of 'q_learning', "),
        ("[1]", "algorithm must be one of q_learning, "),
    ],
)
def test_a_table_of_hyper_parameters_that_there_are_not_is_refused(line, said, tmp_path):
    file = tmp_path / "study.toml"
    for text in (f"[settings]\nalgorithm = {line}\n", f"[vary]\nalgorithm = ['sarsa', {line}]\n"):
        file.write_text(LAKE + text)
        with pytest.raises(StudyError, match=said) as caught:
            read_study(file)
        assert str(caught.value).startswith(f"{file}: ")


@pytest.mark.parametrize(
    "line, said",
    [
        ('behavior = { name = "ucb", exploration = -1.0 }', "exploration must be a finite number at least 0"),
        ('behavior = { name = "ucb", bonus = 1.0 }', 'behavior = { name = "boltzmann", temperature = 0.5 }'),
        (
            'behavior = { name = "boltzmann", temperature = "lin:1" }',
            "temperature must be a number, or a sch",
        ),
        ("trace_decay = 0.5", 'algorithm = { name = "q_lambda", trace_decay = 0.5 }'),
    ],
)
def test_how_hyper_parameters_are_written_in_a_study_file_is_told(line, said, tmp_path):
    file = tmp_path / "study.toml"
    file.write_text(f"{LAKE}[settings]\n{line}\n")
    with pytest.raises(StudyError) as caught:
        read_study(file)
    assert str(caught.value).startswith(f"{file}: ") and said in str(caught.value)


@pytest.mark.parametrize("text", ["", "[1]", "{}", '{"seeds": 3}', "{", "\x00"])
def test_a_damaged_study_is_named(tmp_path, text):
    (tmp_path / "study.json").write_text(text)
    with pytest.raises(StudyError, match="damaged"):
        Study(tmp_path)
    with pytest.raises(StudyError):
        a_sweep(tmp_path).run(1)


def test_no_study_is_named(tmp_path):
    with pytest.raises(StudyError, match="no study"):
        Study(tmp_path / "nothing")


def test_a_torn_or_foreign_line_costs_its_run_only(whole, tmp_path):
    a_sweep(tmp_path).run(1)
    (file,) = (tmp_path / "records").glob("*.jsonl")
    lines = file.read_bytes().splitlines(keepends=True)
    assert "maker" in json.loads(lines.pop(0))
    file.write_bytes(b"".join([b"\0\0\0\n", b"7\n", *lines[:3], lines[3][: len(lines[3]) // 2]]))
    assert Study(tmp_path).done == 3
    a_sweep(tmp_path).run(1)
    assert tables(tmp_path) == tables(whole.folder)


@pytest.mark.parametrize(
    "changes",
    [
        {"run": None},
        {"run": "3"},
        {"run": 10**6},
        {"run": True},
        {"key": 3},
        {"error": 7},
        {"final_return": None},
        {"steps": "many"},
        {"exact_value": "high"},
        {"optimal_value": "low"},
        {"curve": [1, 2]},
        {"curve": [[500, "x", 2]]},
        {"curve": None},
        {"device": 1},
    ],
)
def test_a_record_that_somebody_has_changed_counts_as_none(whole, tmp_path, changes):
    shutil.copytree(whole.folder, tmp_path / "study")
    (file,) = (tmp_path / "study" / "records").glob("*.jsonl")
    head, *lines = file.read_text().splitlines()
    changed = [json.loads(line) for line in lines]
    changed[3] |= changes
    file.write_text("\n".join([head, *map(json.dumps, changed)]) + "\n")
    study = Study(tmp_path / "study")
    assert (study.done, study.failed, len(study.curves())) == (11, 0, 44)
    (missing,) = set(range(12)) - {row["run"] for row in study.rows()}
    assert [f"2 of 3 runs are made in {GARNET.name}"] == list(study.left_out().values())
    one = json.loads(lines[3])
    assert one["run"] == missing and is_record(one)


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
@pytest.mark.parametrize("name", ["records/a.jsonl", "retries/a.json", "study.json", "more_seeds/3.json"])
def test_a_file_of_a_study_that_cannot_be_read_is_named(tmp_path, name, make):
    a_sweep(tmp_path, vary={}).begin()
    (tmp_path / name).unlink(missing_ok=True)
    make(tmp_path / name)
    said = f"{name} of a study cannot be read.*move it away"
    with pytest.raises(StudyError, match=said):
        a_sweep(tmp_path, vary={}).run(processes=1)
    with pytest.raises(StudyError, match=f"^[^(]*{said}"):
        Study(tmp_path).rows()
    if name.startswith("records"):
        with pytest.raises(StudyError, match=said):
            Study(tmp_path).makers()


def test_a_claim_that_cannot_be_read_is_named(tmp_path):
    folder = StudyFolder(tmp_path)
    folder.begin({})
    (tmp_path / "claims" / "p.0").mkdir()
    with Member(folder) as member, pytest.raises(StudyError, match="p.0 of a study cannot be read"):
        member.claim("p")


def test_a_record_lacks_nothing_and_tells_of_its_own_run(whole):
    (file,) = (whole.folder / "records").glob("*.jsonl")
    record = json.loads(file.read_text().splitlines()[1])
    assert is_record(record) and is_record({**record, "training_return": None})
    assert is_record({"key": "3-2000", "run": 3, "error": "ValueError: no"})
    assert not any(is_record({**record, "key": key}) for key in ("99-2000", "", "1"))
    told = [name for name in record if not is_record({k: v for k, v in record.items() if k != name})]
    assert sorted([*told, "device"]) == sorted(record)  # records of older studies have none


def test_a_study_without_room_for_its_records_says_so(tmp_path, monkeypatch):
    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    sweep = a_sweep(tmp_path)
    sweep.begin()
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StudyError, match="No space left on device.*Make room"), written(tmp_path):
        os.fsync(0)
    with pytest.raises(StudyError, match="No space left on device"):
        sweep.run(1)
    monkeypatch.undo()
    member = Member(StudyFolder(tmp_path))
    file = tmp_path / "study.toml"
    file.touch()
    with member:
        monkeypatch.setattr(os, "replace", lambda *_: full(0))
        for write in (
            lambda: member.claim("0-1"),
            Member(StudyFolder(tmp_path)).__enter__,
            lambda: keep_study_file(file, tmp_path),
            lambda: StudyFolder(tmp_path).propose(0, {"settings": {}}),
        ):
            with pytest.raises(StudyError, match="No space left on device.*Make room"):
                write()
        monkeypatch.undo()
        assert member.claim("0-1")


@pytest.mark.parametrize("when", ["start", "join"])
def test_a_process_that_a_stop_signal_interrupts_as_it_begins_or_ends_is_no_member_any_more(
    when, tmp_path, monkeypatch
):
    def stopped(*_):
        raise KeyboardInterrupt

    StudyFolder(tmp_path).begin({})
    member = Member(StudyFolder(tmp_path))
    monkeypatch.setattr(threading.Thread, when, stopped)
    with pytest.raises(KeyboardInterrupt), member:
        assert when == "join" and any((tmp_path / "members").iterdir())
    assert not any((tmp_path / "members").iterdir())


@pytest.mark.slow
def test_a_study_is_made_where_standard_output_is_closed_and_its_table_is_an_error(tmp_path):
    file = tmp_path / "study.toml"
    file.write_text('environment = "FrozenLake-v1"\ntotal_steps = 200\nseeds = 2\n')
    words = [sys.executable, "-m", "dist_classicrl"]
    close = 'exec "$@" >&-'
    for more in (
        ["sweep", file, "--out", tmp_path / "made", "--processes", "2"],
        ["show", tmp_path / "made"],
    ):
        done = subprocess.run(
            ["sh", "-c", close, "sh", *words, *map(str, more)], stderr=subprocess.PIPE, text=True, timeout=120
        )
        told = "Error: Standard output cannot be written: it is closed. Let it go to a file, with > FILE."
        assert (done.returncode, done.stderr.splitlines()[-1]) == (2, told)
    assert Study(tmp_path / "made").done == 2


def test_runs_and_studies_have_folders_of_their_own(tmp_path, capsys):
    file = tmp_path / "study.toml"
    file.write_text('environment = "FrozenLake-v1"\ntotal_steps = 200\n')
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.toml").write_text('environment = "FrozenLake-v1"\n')
    assert main(["sweep", str(file), "--out", str(run)]) == 2
    assert f"{run} is the folder of a run, and a study needs one of its own" in capsys.readouterr().err
    assert [path.name for path in run.iterdir()] == ["config.toml"]
    assert main(["sweep", str(file), "--out", "s3://bucket/study"]) == 2
    assert "'s3://bucket/study' is not the path of a folder" in capsys.readouterr().err

    study = tmp_path / "made"
    Sweep("FrozenLake-v1", total_steps=200, folder=study).begin()
    there = sorted(study.iterdir())
    assert main(["train", "FrozenLake-v1", "--total-steps", "200", "--out", str(study)]) == 2
    assert f"{study} is the folder of a study, and a run needs one of its own" in capsys.readouterr().err
    assert sorted(study.iterdir()) == there


def test_a_folder_of_another_program_is_refused(tmp_path):
    (tmp_path / "study.json").write_text('{"direction": "minimize", "trials": []}')
    with pytest.raises(StudyError, match="no study of this program"):
        Study(tmp_path)
    with pytest.raises(StudyError, match="none that `dist-classicrl sweep`.*total_steps"):
        a_sweep(tmp_path).run(1)


def test_a_run_that_fails_costs_itself_and_can_be_made_again(whole, tmp_path, monkeypatch):
    real = Laboratory._trained

    def fails(self, trial):
        if trial.number == 7:
            raise RuntimeError("no luck")
        return real(self, trial)

    monkeypatch.setattr(Laboratory, "_trained", fails)
    study = a_sweep(tmp_path).run(1)
    assert (study.done, study.failed) == (11, 1)
    assert study.rows()[7]["error"] == "RuntimeError: no luck" and study.rows()[7]["score"] is None
    assert [len(each) for each in study.scores().values()] == [3]  # settings of which a seed is missing
    monkeypatch.setattr(Laboratory, "_trained", real)
    assert a_sweep(tmp_path).run(1).failed == 1
    study = a_sweep(tmp_path).run(1, retry_failed=True)
    assert [each["runs"] for each in study.makers()] in ([11, 1], [1, 11])
    assert {each["host"] for each in study.makers()} == {socket.gethostname()}
    assert tables(tmp_path) == tables(whole.folder)


def test_an_environment_that_exits_costs_its_run_and_a_signal_ends_the_study(whole, tmp_path, monkeypatch):
    real, raised = Laboratory._trained, [SystemExit(3)]

    def exits(self, trial):
        if trial.number == 7:
            raise raised[-1]
        return real(self, trial)

    def ended(*_):
        raise SystemExit(143)

    def is_told_to_end(self, trial):
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(Laboratory, "compile", lambda self, made: None)
    monkeypatch.setattr(Laboratory, "_trained", exits)
    study = a_sweep(tmp_path).run(1)
    assert study.done == 11 and study.rows()[7]["error"] == "SystemExit: 3"
    monkeypatch.setattr(Laboratory, "_trained", is_told_to_end)
    before = signal.signal(signal.SIGTERM, ended)
    try:
        with pytest.raises(SystemExit, match="143"):
            a_sweep(tmp_path).run(1, retry_failed=True, stop_signals=())
        with pytest.raises(SweepStopped, match="SIGTERM"):
            a_sweep(tmp_path).run(1, retry_failed=True)
        assert signal.getsignal(signal.SIGTERM) is ended
    finally:
        signal.signal(signal.SIGTERM, before)
    stopped = TrainingStopped(75, "a signal", None, 1)
    for raised, expected in ((stopped, SweepStopped), (WorkerLeft(1), WorkerLeft)):
        monkeypatch.setattr(Laboratory, "_trained", lambda *_, raised=raised: (_ for _ in ()).throw(raised))
        with pytest.raises(expected) as caught:
            a_sweep(tmp_path).run(1, retry_failed=True)
        assert caught.value.code == raised.code


def test_a_stop_signal_that_an_environment_passes_over_stops_the_sweep_after_its_run(tmp_path, monkeypatch):
    real, folder = Laboratory._trained, tmp_path / "study"

    def passes_over(self, trial):
        with suppress(BaseException):
            signal.raise_signal(signal.SIGUSR1)
        return real(self, trial)

    monkeypatch.setattr(Laboratory, "compile", lambda self, made: None)
    monkeypatch.setattr(Laboratory, "_trained", passes_over)
    with pytest.raises(SweepStopped) as stopped:
        a_sweep(folder).run(1)
    assert (stopped.value.code, stopped.value.reason, stopped.value.folder) == (75, "SIGUSR1", folder)
    assert str(stopped.value) == f"SIGUSR1; study: {folder}"
    assert len(StudyFolder(folder).records()) == 1


class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    "raised, said",
    [
        (Unspeakable(), "Unspeakable, whose text cannot be told: asking it for that raised RuntimeError"),
        (asyncio.CancelledError("given up"), "CancelledError: given up"),
        (pytest.fail.Exception("not like this"), "Failed: not like this"),
    ],
)
def test_whatever_an_environment_raises_costs_its_run_alone(raised, said, tmp_path):
    class Raises(Maze):
        def step(self, action):
            if self.np_random.random() < 0.02:
                raise raised
            return super().step(action)

    study = Sweep(Raises, 60, 8, points=2, eval_episodes=2, folder=tmp_path).run(1)
    errors = [row["error"] for row in study.rows()]
    assert len(errors) == 8 and set(errors) == {None, said}


def test_a_signal_handler_of_the_program_ends_the_study_with_whatever_it_raises(tmp_path, monkeypatch):
    class OutOfTime(BaseException):
        pass

    def hear(*_):
        raise OutOfTime

    monkeypatch.setattr(Laboratory, "compile", lambda self, made: None)
    monkeypatch.setattr(Laboratory, "_trained", lambda self, trial: signal.raise_signal(signal.SIGALRM))
    before = signal.signal(signal.SIGALRM, hear)
    try:
        with pytest.raises(OutOfTime):
            a_sweep(tmp_path).run(1)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert StudyFolder(tmp_path).records() == {}


@pytest.mark.parametrize("signals", ["SIGTERM", ["SIGKILL"], ["SIGNONE"]])
def test_what_cannot_stop_a_sweep_is_refused(signals, tmp_path):
    with pytest.raises(SettingsError, match="stop_signals"):
        a_sweep(tmp_path / "study").run(1, stop_signals=signals)
    assert not (tmp_path / "study").exists()


def test_who_makes_failed_runs_again_takes_nothing_from_others_at_work(whole, tmp_path):
    def record(run, error=None):
        made = next(iter(StudyFolder(whole.folder).records().values()))
        return {**made, "key": f"{run}-2000", "run": run, "error": error}

    def errors(folder):
        return {key.partition("-")[0]: each["error"] for key, each in folder.records().items()}

    reader, folder = StudyFolder(tmp_path), StudyFolder(tmp_path)
    a_sweep(tmp_path).begin()
    with Member(folder) as before:
        before.keep(record(0, "before"))
        before.keep(record(1, "before"))
        assert errors(reader) == {"0": "before", "1": "before"}
        with Member(folder) as first, Member(StudyFolder(tmp_path)) as second:
            assert first.forget_failed() and errors(reader) == {} and reader.withdrawn == 2
            before.keep(record(2))  # into the file that it has had open
            first.keep(record(0))
            first.keep(record(1, "once more"))
            # It comes later than the other, which has made the same runs again: what that came to stands.
            assert not second.forget_failed()
            assert errors(reader) == {"2": None, "0": None, "1": "once more"} == errors(StudyFolder(tmp_path))
        assert sorted(each["runs"] for each in reader.makers()) == [1, 2]
        with Member(StudyFolder(tmp_path)) as later:
            assert later.forget_failed() and errors(reader) == {"2": None, "0": None}
            before.keep(record(1, "at last"))
            assert errors(reader)["1"] == "at last" == errors(StudyFolder(tmp_path))["1"]


def test_a_run_that_somebody_has_made_again_meanwhile_is_made_at_the_end(whole, tmp_path, monkeypatch):
    real, numbers = Laboratory._trained, []

    def trained(self, trial):
        numbers.append(trial.number)
        if numbers == [0]:
            raise RuntimeError("no luck")
        if len(numbers) == 12:
            with Member(StudyFolder(tmp_path)) as other:
                assert other.forget_failed()
        return real(self, trial)

    monkeypatch.setattr(Laboratory, "_trained", trained)
    monkeypatch.setattr(Laboratory, "compile", lambda self, made: None)
    study = a_sweep(tmp_path).run(1)
    assert numbers == [*range(12), 0] and (study.done, study.failed) == (12, 0)
    assert tables(tmp_path) == tables(whole.folder)


def test_records_that_are_taken_away_while_they_are_made_are_missed(tmp_path, monkeypatch):
    monkeypatch.setattr(Member, "keep", lambda self, record: None)
    with pytest.raises(StudyError, match="run 0 .* is not there"):
        a_sweep(tmp_path, vary={}).run(1)


def test_a_long_run_goes_on_from_its_checkpoint_to_the_same_record(tmp_path, monkeypatch):
    def made(folder, interrupt=None):
        sweep = Sweep(GARNET, 40_000, seeds=1, points=8, eval_episodes=5, folder=folder)
        laboratory = Laboratory(sweep.plan, sweep._environments, folder)
        if interrupt:
            with monkeypatch.context() as patch:
                patch.setattr(trial_module.Curve, "_on_step", interrupt)
                assert "Interrupted on purpose" in laboratory.run(sweep.plan.trial(0))["error"]
            with open(folder / "checkpoints" / "0-40000" / "curve.jsonl", "a") as file:
                file.write("[25000, 0.")  # the power fails
        return laboratory.run(sweep.plan.trial(0)), sweep, laboratory

    plain, *_ = made(tmp_path / "plain")
    real = trial_module.Curve._on_step

    def interrupt(self):
        real(self)
        if self.num_timesteps >= 20_000:
            raise RuntimeError("Interrupted on purpose")

    monkeypatch.setattr(trial_module, "LONG_STEPS", 1_000)
    monkeypatch.setattr(trial_module, "_CHECKPOINT_INTERVAL", 7_000)
    resumed, sweep, laboratory = made(tmp_path / "long", interrupt)
    times = ("seconds", "train_seconds")
    assert {k: v for k, v in resumed.items() if k not in times} == {
        k: v for k, v in plain.items() if k not in times
    }
    # Until its record is on disk: what has no record is made again, from there.
    place = tmp_path / "long" / "checkpoints" / "0-40000"
    assert place.exists()
    laboratory.tidy([sweep.plan.trial(0)])
    assert not place.exists()


def test_checkpoints_of_a_long_run_are_there_until_its_record_is_on_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(trial_module, "LONG_STEPS", 1_000)
    seen = []
    real = Member.make_durable

    def make_durable(self):
        seen.append(sorted(path.name for path in (tmp_path / "checkpoints").iterdir()))
        real(self)

    monkeypatch.setattr(Member, "make_durable", make_durable)
    Sweep(GARNET, 2_000, seeds=2, points=2, eval_episodes=2, folder=tmp_path).run(1)
    assert sorted(name for names in seen for name in names) == ["0-2000", "1-2000"]
    assert list((tmp_path / "checkpoints").iterdir()) == []


# Claims


def test_who_lives_keeps_its_claim_and_who_has_died_loses_it(tmp_path):
    folder = StudyFolder(tmp_path)
    folder.begin({})
    program = (
        "import sys, time; from dist_classicrl.sweep.folder import *\n"
        "with Member(StudyFolder(sys.argv[1])) as member:\n"
        "    print(member.claim('p'), flush=True); time.sleep(600)"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout.readline() == "True\n"
        with Member(folder) as member:
            assert not member.claim("p") and member.claim("q") and member.claim("q")
            other.send_signal(signal.SIGKILL)
            other.wait()
            assert member.claim("p")
            with Member(StudyFolder(tmp_path)) as late:
                assert not late.claim("p") and not late.claim("q")
    finally:
        other.kill()
        other.wait()
        other.stdout.close()


def test_a_process_of_another_host_is_lost_after_a_silence(tmp_path, monkeypatch):
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr("dist_classicrl.sweep.folder.time", SimpleNamespace(monotonic=lambda: clock.now))
    folder = StudyFolder(tmp_path)
    folder.begin({})
    (tmp_path / "members" / "far").write_text(json.dumps({"host": "far", "pid": 1, "start": "1"}))
    (tmp_path / "claims" / "p.0").write_text("far")
    with Member(folder, silence=40.0) as member:
        assert not member.claim("p")
        clock.now += 30.0
        os.utime(tmp_path / "members" / "far", (1000.0, 1000.0))  # a sign of life, by whatever clock
        assert not member.claim("p")
        clock.now += 30.0
        assert not member.claim("p")
        clock.now += 30.0
        assert member.claim("p")


def test_the_number_of_a_process_that_is_another_one_now_is_not_taken_for_it(tmp_path):
    folder = StudyFolder(tmp_path)
    folder.begin({})
    about = {"host": socket.gethostname(), "pid": os.getpid(), "start": "0"}
    (tmp_path / "members" / "before").write_text(json.dumps(about))
    (tmp_path / "claims" / "p.0").write_text("before")
    with Member(folder) as member:
        assert member.claim("p")


def test_parcels_hold_each_run_once_the_longest_first_and_get_smaller_at_the_end():
    plan = Plan({"a": "", "b": ""}, ({}, {}), (), tuple(range(50)), 3_000_000, 5, 5)
    trials = [plan.trial(number) for number in range(plan.n_runs)]
    parcels = plan.parcels(trials, {"a": 1.0, "b": 300.0})
    taken = [trial.number for parcel in parcels for trial in parcel.trials]
    assert sorted(taken) == list(range(200)) and taken[0] == 100
    assert {len(parcel.trials) for parcel in parcels[:100]} == {1}
    sizes = [len(parcel.trials) for parcel in parcels[100:]]
    assert sizes[0] == 3 and sizes == sorted(sizes, reverse=True) and sizes[-32:] == [1] * 32
    many = plan.parcels([plan.trial(number, 300_000) for number in range(plan.n_runs)], {"a": 1.0, "b": 1.0})
    assert [len(parcel.trials) for parcel in many][:1] == [8] and sum(
        len(each.trials) for each in many
    ) == 200
    assert len({parcel.name for parcel in parcels}) == len(parcels)


# Early stopping


def test_the_best_third_goes_on_and_nan_is_the_worst():
    halving = SuccessiveHalving(factor=3, rungs=3)
    assert [halving.steps(rung, 900) for rung in range(3)] == [100, 300, 900]
    scores = {0: [1.0, 0.0], 1: [0.6, 0.6], 2: [math.nan, 5.0], 3: [0.2], 4: [0.6, 0.6], 5: []}
    assert halving.survivors(scores) == [1, 4]
    assert halving.survivors({7: [math.nan]}) == [7]


@pytest.mark.parametrize("given", [{"factor": 1}, {"rungs": 1}, {"factor": 2.5}, {"rungs": True}])
def test_early_stopping_that_stops_nothing_is_refused(given):
    with pytest.raises(StudyError):
        SuccessiveHalving(**given)


def test_who_gets_to_the_end_is_what_it_is_without_early_stopping(whole, tmp_path):
    stopping = SuccessiveHalving(factor=2, rungs=2)
    told = []
    study = a_sweep(tmp_path, early_stopping=stopping).run(2, told.append)
    # A rung of four settings and one of two, with three seeds each.
    assert (told[-1].done, told[-1].total, told[-1].seconds_left) == (18, 18, 0.0) and study.trainings == 18
    rows = study.rows()
    assert [row["steps"] for row in rows].count(2_000) == 6 and len(rows) == 12
    ended = [row for row in rows if not row["stopped"]]
    times = ("seconds", "train_seconds")
    plain = {row["run"]: row for row in whole.rows()}
    for row in ended:
        assert row["steps"] == 2_000
        assert all(row[key] == plain[row["run"]][key] for key in row if key not in times)
    assert sum(len(each) for each in study.scores().values()) == 2
    stopped = {row["variant"]: [] for row in rows}
    for row in rows:
        if row["stopped"]:
            stopped[row["variant"]].append(row["score"])
    assert sum(bool(scores) for scores in stopped.values()) == 2


# Results


@pytest.mark.slow
def test_the_frame_has_a_line_per_run(whole, tmp_path):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frame = whole.frame()
    assert list(frame["seed"]) == [0, 1, 2] * 4
    assert list(frame[frame.learning_rate == 0.1].run) == [0, 1, 2, 3, 4, 5]
    assert set(frame.learning_rate[6:]) == {"PerVisit(0.7)"}
    back = pandas.read_parquet(whole.to_parquet(tmp_path / "study.parquet"))
    assert list(back.learning_rate) == ["0.1"] * 6 + ["PerVisit(0.7)"] * 6
    both = (each.drop(columns="learning_rate") for each in (back, frame))
    pandas.testing.assert_frame_equal(*both)


@pytest.mark.slow
def test_settings_are_numbers_and_flags_in_the_table(tmp_path):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    vary = {
        "learning_rate": [0.5, 0.25, PerVisit(0.7)],
        "initial_value": [0.0, 10.0],
        "exploring_starts": [True, False],
        "state_size": [None, 100],
    }
    sweep = a_sweep(tmp_path, total_steps=10, seeds=1, points=1, eval_episodes=1, vary=vary)
    study = sweep.run(1)
    assert not study.failed
    row = study.rows()[0]
    assert [row[name] for name in vary] == [0.5, 0.0, True, None]
    assert [type(row[name]) for name in ("learning_rate", "initial_value")] == [float, float]
    frame = study.frame()
    assert len(frame[frame.learning_rate == 0.5]) == len(frame[frame.learning_rate == "PerVisit(0.7)"]) == 8
    assert list(frame.sort_values("initial_value", kind="stable").initial_value) == [0.0] * 12 + [10.0] * 12
    assert len(frame[frame.exploring_starts]) == frame.state_size.isna().sum() == 12
    back = pandas.read_parquet(study.to_parquet(tmp_path / "study.parquet"))
    assert list(back.dtypes[["initial_value", "exploring_starts"]]) == ["float64", "bool"]
    assert set(back.learning_rate) == {"0.5", "0.25", "PerVisit(0.7)"} and back.state_size.max() == 100
    # Text has always been what it is.
    with open(tmp_path / "results.csv", newline="") as file:
        first = next(csv.DictReader(file))
    assert [first[name] for name in ("learning_rate", "exploring_starts", "state_size")] == [
        "0.5",
        "True",
        "None",
    ]


@pytest.mark.parametrize("package", ["pandas", "pyarrow"])
def test_a_table_names_the_package_that_it_lacks(whole, tmp_path, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"package {package}, .* pip install '\.\[sweep\]'"):
        whole.to_parquet(tmp_path / "study.parquet")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "path, told", [(None, "path must be a path"), (".", "writes a file, and .* is a folder")]
)
def test_a_table_is_written_to_a_file(whole, path, told):
    with pytest.raises(SettingsError, match=told):
        whole.to_parquet(path)


def test_rows_are_the_callers_own_and_follow_the_records(whole, tmp_path):
    whole.rows()[0]["score"] = "mine"
    assert whole.rows()[0]["score"] != "mine"
    sweep = a_sweep(tmp_path, seeds=1)
    StudyFolder(tmp_path).begin(sweep.plan.to_dict())
    study = Study(tmp_path)
    assert (study.done, study.rows()) == (0, [])
    sweep.run(1)
    assert study.done == len(study.rows()) == 4


def test_the_summary_has_means_and_errors_of_seeds(whole):
    first = whole.summary()[0]
    scores = [row["score"] for row in whole.rows()[:3]]
    assert first["mean_score"] == pytest.approx(np.mean(scores))
    assert first["standard_error"] == pytest.approx(np.std(scores, ddof=1) / math.sqrt(3))
    assert first["settings"] == "learning_rate=0.1 discount_factor=0.8" and first["runs"] == 3
    groups = [[row["score"] for row in whole.rows() if row["variant"] == number] for number in range(4)]
    names = [each["settings"] for each in whole.summary()]
    assert whole.scores() == {GARNET.name: dict(zip(names, groups, strict=True))}


def test_a_line_says_how_far_a_sweep_is_as_on_a_clock(capsys):
    tell = teller()
    tell(SweepProgress(3, 1, 240, 2e6, 10.0, 493.3))
    tell(SweepProgress(4, 1, 240, 2e6, 10.5, 490.0))  # too soon after the one before
    tell(SweepProgress(239, 1, 240, 2e6, 20.0, 0.0))
    tell(SweepProgress(239, 1, 240, 2e6, 20.1, 0.0))  # the end, once more
    first, last = capsys.readouterr().err.splitlines()
    assert first == "3 of 240 runs, 1 failed, 2 M steps/s, 8:13 left"
    assert last == "239 of 240 runs, 1 failed, 2 M steps/s"


def test_before_a_run_has_ended_there_is_no_line_each_second(capsys):
    tell = teller()
    for second in range(1, 61):
        tell(SweepProgress(0, 0, 240, 0.0, float(second), math.nan))
    lines = capsys.readouterr().err.splitlines()
    assert 5 < len(lines) < 25 and set(lines) == {"0 of 240 runs"}


def test_a_study_is_shown_as_a_table_and_named_where_a_run_is_asked_for(whole, capsys):
    folder = str(whole.folder)
    assert main(["show", folder]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"{folder}: 12 of 12 runs done\n")
    assert all(each["settings"] in text for each in whole.summary())
    for words in (["--observation", "3"], ["--states", "5"], ["--env", "Taxi-v4"], ["--env-arg", "a=1"]):
        assert main(["show", folder, *words]) == 2
        assert f"Leave them out of {folder}, which is a study" in capsys.readouterr().err
    assert main(["show", folder, "--live", "--json"]) == 2
    assert "--json writes for programs: give one of them" in capsys.readouterr().err
    assert main(["show", folder, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["done"], told["failed"], told["runs"]) == (12, 0, 12)
    assert told["settings"] == whole.summary()
    for line in (["evaluate", folder], ["report", folder], ["plot", folder, "--out", "no.png"]):
        assert main(line) == 2
        assert f"dist-classicrl compare {folder}" in capsys.readouterr().err


@pytest.mark.slow
def test_settings_are_compared_by_a_command(whole, capsys):
    names = [each["settings"] for each in whole.summary()]
    assert main(["compare", str(whole.folder), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["comparisons"]
    assert len(told) == 6 and {one["first"]["name"] for one in told} <= set(names)
    middle = interquartile_mean(whole.scores()[GARNET.name][names[0]])
    assert told[0]["first"]["iqm"]["value"] == pytest.approx(middle)
    assert told[0]["first"]["optimality_gap"] is None  # scores are returns, as discount_factor is varied
    assert main(["compare", str(whole.folder), names[0], names[3]]) == 0
    assert "interquartile mean" in capsys.readouterr().out
    assert main(["compare", str(whole.folder), names[0], "nothing"]) == 2
    assert main(["compare", str(whole.folder), names[0]]) == 2
    assert main(["compare", str(whole.folder / "nothing")]) == 2


@pytest.mark.slow
def test_results_of_a_rule_of_ones_own_are_read_where_nobody_knows_it(tmp_path, monkeypatch, capsys):
    real = Laboratory.settings_of

    def learned_otherwise(self, variant):
        return replace(real(self, variant), algorithm="q_learning")

    monkeypatch.setattr(Laboratory, "settings_of", learned_otherwise)  # spares its compilation
    with registered():
        own = N_STEP_SARSA.parameters(n=2)
        vary = {"algorithm": [own, "q_learning"], "epsilon": [0.1, Linear(1.0, 0.1, steps=9)]}
        study = a_sweep(tmp_path / "study", vary=vary).run(1)
        names = [study.name_of(variant) for variant in study.variants()]
        sampled = {"search": "tpe", "n_variants": 3, "settings": {"algorithm": own}, "seeds": 1}
        a_sweep(tmp_path / "searched", vary={"epsilon": Range(0.1, 0.3)}, **sampled).begin()
    assert names[0] == f'algorithm={{"n": 2, "name": "{N_STEP_SARSA.name}"}} epsilon=0.1'
    again = Study(study.folder)
    assert [again.name_of(variant) for variant in again.variants()] == names
    assert (again.rows(), again.scores()) == (study.rows(), study.scores())
    for name in ("results.csv", "curves.csv"):
        before = (again.folder / name).read_bytes()
        again.write_tables()
        assert (again.folder / name).read_bytes() == before
    for folder in (study.folder, tmp_path / "searched"):
        page = tmp_path / f"{folder.name}.html"
        assert main(["show", str(folder)]) == main(["report", str(folder), "--html", str(page)]) == 0
        assert N_STEP_SARSA.name in page.read_text()
    assert main(["compare", str(study.folder)]) == 0 and names[0] in capsys.readouterr().out
    with pytest.raises(StudyError, match=f"cannot be trained.*{N_STEP_SARSA.name}.*Register a rule"):
        a_sweep(study.folder, vary={"algorithm": [{"name": N_STEP_SARSA.name, "n": 2}, "q_learning"]})


@pytest.mark.parametrize("variants", [[1], ["epsilon"], [[["epsilon", 0.1]]], [{"epsilon": {"kind": "x"}}]])
def test_settings_of_a_study_that_are_none_are_named(tmp_path, variants):
    a_sweep(tmp_path, vary={"epsilon": [0.1, 0.2]}).begin()
    plan = json.loads((tmp_path / "study.json").read_bytes()) | {"variants": variants}
    (tmp_path / "study.json").write_text(json.dumps(plan))
    with pytest.raises(StudyError, match="damaged|is no schedule"):
        Study(tmp_path)


@pytest.mark.parametrize("tasks, is_alone", [("1", True), ("2", False)])
def test_one_task_of_slurm_is_no_rank(tasks, is_alone, monkeypatch, tmp_path):
    """As in a shell that SLURM has given: then all cores work, and nobody else has to see the folder."""
    monkeypatch.setenv("SLURM_NTASKS", tasks)
    monkeypatch.setenv("SLURM_PROCID", "0")
    used = []
    monkeypatch.setattr(sweep_module, "usable_cores", lambda: used.append(True) or 1)
    if not is_alone:
        with pytest.raises(StudyError, match="Several ranks need one folder"):
            Sweep("FrozenLake-v1", total_steps=1_000, seeds=1)
        return
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    Sweep("FrozenLake-v1", total_steps=1_000, seeds=1).run()
    assert used
