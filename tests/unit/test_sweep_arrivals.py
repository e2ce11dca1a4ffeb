"""Studies whose runs depend on what came out so far: Optuna's sampler, and asynchronous halving."""

import json
import math
import re
import sys

import numpy as np
import pytest

from dist_classicrl import Study, Sweep, TabularMDP
from dist_classicrl.cli.live.study_view import StudyView
from dist_classicrl.errors import MissingExtraError, StudyError
from dist_classicrl.sweep import Range, SuccessiveHalving
from dist_classicrl.sweep.choosing.sampling import Told, proposed, values_of
from dist_classicrl.sweep.folder import StudyFolder
from dist_classicrl.sweep.trial import Laboratory

GARNET = TabularMDP.garnet(n_states=20, n_actions=3, branching=3, seed=1)
SPACE = {"learning_rate": Range(0.001, 1.0, log=True), "buffer_size": Range(1, 40), "epsilon": [0.1, 0.3]}
TIMES = ("seconds", "train_seconds")


def a_sweep(folder, **changes):
    given = {"total_steps": 900, "seeds": 2, "points": 3, "eval_episodes": 2}
    given |= {"vary": SPACE, "search": "tpe", "n_variants": 14, "settings": {"replay_ratio": 0.5}}
    return Sweep(GARNET, folder=folder, **{**given, **changes})


def decided(folder):
    return {path.name: path.read_bytes() for path in (folder / "proposed").iterdir()}


def rows(study):
    return [{key: value for key, value in row.items() if key not in TIMES} for row in study.rows()]


def records(folder):
    """Return all records of a study, of each rung, without times."""
    found = StudyFolder(folder).records().items()
    return {key: {name: one[name] for name in one if name not in TIMES} for key, one in found}


def interrupted(monkeypatch, sweep, at):
    """Run a sweep until its run number `at` begins, and return which runs it has made."""
    made, real = [], Laboratory.run

    def run(self, trial):
        if len(made) == at:
            raise KeyboardInterrupt
        made.append(trial.key)
        return real(self, trial)

    with monkeypatch.context() as patch:
        patch.setattr(Laboratory, "run", run)
        with pytest.raises(KeyboardInterrupt):
            sweep.run(1)
    return made


# Proposals


def test_proposals_are_in_the_space_go_where_scores_are_high_and_follow_from_what_was_told():
    told = []
    for number in range(40):
        drawn = proposed(SPACE, 5, number, told)
        assert 0.001 <= drawn["learning_rate"] <= 1.0 and drawn["buffer_size"] in range(1, 41)
        assert values_of(SPACE, drawn)["epsilon"] == [0.1, 0.3][drawn["epsilon"]]
        score = -abs(math.log10(drawn["learning_rate"]) + 1.0) - drawn["epsilon"]  # best: 0.1, with 0.1
        told.append(Told(drawn, math.nan if number == 3 else None if number == 4 else score))
    late = [each.drawn for each in told[20:]]
    # Of draws at random the mean distance would be 0.83, and half would have the worse epsilon.
    assert np.mean([abs(math.log10(one["learning_rate"]) + 1.0) for one in late]) < 0.5
    assert sum(one["epsilon"] for one in late) < 7
    assert proposed(SPACE, 5, 20, told[:20]) == late[0] != proposed(SPACE, 6, 20, told[:20])


def test_a_search_by_scores_is_the_same_when_one_process_makes_it_and_goes_on_when_killed(
    tmp_path, monkeypatch
):
    whole = a_sweep(tmp_path / "whole").run(1)
    assert whole.done == 28 and len(whole.variants()) == 14
    names = [whole.name_of(number) for number in whole.variants()]
    assert all(
        re.fullmatch(r"learning_rate=0\.0*\d{1,4} buffer_size=\d+ epsilon=0\.[13]", name) for name in names
    )
    sweep = a_sweep(tmp_path / "killed")
    made = interrupted(monkeypatch, sweep, 13)
    before = decided(sweep.folder)
    assert len(before) == 7 and len(made) == 13
    study = a_sweep(sweep.folder).run(1)
    assert before.items() <= decided(sweep.folder).items() == decided(whole.folder).items()
    for name in ("results.csv", "curves.csv"):
        assert (study.folder / name).read_bytes() == (whole.folder / name).read_bytes()
    with pytest.raises(StudyError, match="search"):
        a_sweep(sweep.folder, search_seed=1).run(1)


def test_each_run_of_a_search_is_what_it_is_in_any_study(tmp_path):
    study = a_sweep(tmp_path / "searched").run(2)
    assert study.done == 28
    fixed = {"vary": {}, "search": "grid", "n_variants": None}
    for number in (0, 13):
        settings = json.loads(decided(study.folder)[f"{number}.json"])["settings"]
        assert settings["discount_factor"] == 0.99 and isinstance(settings["buffer_size"], int)
        again = a_sweep(tmp_path / str(number), settings=settings, **fixed).run(1)
        theirs = [row for row in study.rows() if row["variant"] == number]
        for row, other in zip(theirs, again.rows(), strict=True):
            assert all(row[key] == other[key] for key in other if key not in (*TIMES, "run", "variant"))


def test_settings_that_are_proposed_later_are_shown_while_a_search_is_under_way(tmp_path):
    sweep = a_sweep(tmp_path, n_variants=2, vary={"epsilon": Range(0.1, 0.3)})
    sweep.begin()
    view, before = StudyView(tmp_path, "Ctrl-C ends it"), Study(tmp_path)
    view.picture([])
    study = sweep.run(1)
    assert before.group_of(0) == study.group_of(0) == (GARNET.name, study.name_of(0))
    view.picture([])
    assert sorted(view._by_settings) == sorted((GARNET.name, study.name_of(number)) for number in (0, 1))


def test_settings_that_are_proposed_twice_keep_names_of_their_own(tmp_path):
    study = a_sweep(tmp_path, vary={"epsilon": [0.1, 0.3]}, n_variants=4).run(1)
    names = [study.name_of(number) for number in study.variants()]
    assert len(set(names)) == 4 and "epsilon=0.1" in names
    assert all(len(scores) == 2 for scores in study.scores()[GARNET.name].values()) and not study.left_out()


@pytest.mark.parametrize(
    "changes, error, word",
    [
        ({"n_variants": None}, StudyError, "n_variants"),
        ({"vary": {"epsilon": 3}}, StudyError, "list of values"),
        ({"vary": {"learning_rate": Range(0.5, 1.3)}}, StudyError, "learning_rate.*got 1.3"),
        ({"vary": {"learning_rate": Range(-1e-9, 1.0)}}, StudyError, "learning_rate.*-1e-09"),
        ({"early_stopping": SuccessiveHalving()}, StudyError, "asynchronous=True"),
    ],
)
def test_a_search_by_scores_that_cannot_be_is_refused(tmp_path, changes, error, word):
    with pytest.raises(error, match=word):
        a_sweep(tmp_path, **changes)


def test_without_optuna_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(MissingExtraError, match=r"pip install '\.\[optuna\]'"):
        a_sweep(tmp_path)


def test_an_optuna_that_cannot_be_imported_is_named(tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "optuna"]:
        monkeypatch.delitem(sys.modules, name)
    (tmp_path / "optuna.py").write_text("import a_part_that_is_not_here\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        MissingExtraError, match="cannot be imported .*a_part_that_is_not_here.*Install it anew"
    ):
        a_sweep(tmp_path)


# Asynchronous halving


ASHA = SuccessiveHalving(factor=3, rungs=3, asynchronous=True)
GRID = {"search": "grid", "n_variants": None, "vary": {"learning_rate": [0.01 * k for k in range(1, 11)]}}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """The same study without early stopping."""
    return a_sweep(tmp_path_factory.mktemp("plain"), **GRID).run(1)


@pytest.mark.parametrize("processes", [1, 2])
def test_asynchronous_halving_gives_the_best_all_steps_and_changes_no_run(plain, tmp_path, processes):
    study = a_sweep(tmp_path, early_stopping=ASHA, **GRID).run(processes)
    keys = list(records(tmp_path))
    of_rung = [sum(key.endswith(f"-{steps}") for key in keys) // 2 for steps in (100, 300, 900)]
    assert of_rung[0] == 10 and of_rung[1] >= 4 and of_rung[2] >= 2
    without = {row["run"]: row for row in rows(plain)}
    ended = [row for row in rows(study) if not row["stopped"]]
    assert len(ended) == 2 * of_rung[2] and len(study.rows()) == 20
    assert all(row == without[row["run"]] for row in ended)
    assert (
        len(study.left_out()) == 10 - of_rung[2]
        and study.scores()[GARNET.name].keys() & study.left_out() == set()
    )


def test_asynchronous_halving_goes_on_when_killed(tmp_path, monkeypatch):
    sweep = a_sweep(tmp_path, early_stopping=ASHA, **GRID)
    made = interrupted(monkeypatch, sweep, 17)
    assert any(key.endswith("-300") for key in made)  # before all of the first rung has ended
    assert sum(key.endswith("-100") for key in made) < 20
    before = records(tmp_path)
    study = a_sweep(tmp_path, early_stopping=ASHA, **GRID).run(1)
    after = records(tmp_path)
    assert len(after) > len(before) == 17 and all(after[key] == before[key] for key in before)
    assert (
        len(study.rows()) == 20
        and a_sweep(tmp_path, early_stopping=ASHA, **GRID).run(1).rows() == study.rows()
    )
    with pytest.raises(StudyError, match="stopping"):
        a_sweep(tmp_path, early_stopping=SuccessiveHalving(3, 3), **GRID).run(1)


def test_another_search_in_the_folder_is_refused_with_what_is_other(tmp_path):
    a_sweep(tmp_path).begin()
    grid = {"search": "grid", "n_variants": None, "vary": {"epsilon": [0.1, 0.3]}}
    fewer = {**SPACE, "buffer_size": Range(1, 20)}
    for changes, said in (
        ({"n_variants": 20}, "n_variants: 14 there, 20 here"),
        ({"search_seed": 1, "seeds": 3}, "search_seed: 0 there, 1 here. Give"),
        (
            {"vary": fewer},
            "buffer_size: {'high': 40, 'log': False, 'low': 1} there, {'high': 20, 'log': False, 'low'",
        ),
        ({"settings": {"replay_ratio": 0.5, "dtype": "float32"}}, "dtype: 'float64' there, 'float32' here"),
        (
            grid,
            "search: 'tpe' there, ['grid', 'random'] here; vary: ['learning_rate', 'buffer_size', 'epsilon']",
        ),
    ):
        with pytest.raises(StudyError) as caught:
            a_sweep(tmp_path, **changes).begin()
        assert f"holds another study: {said}" in str(caught.value)
    other = tmp_path / "grid"
    a_sweep(other, **grid).begin()
    with pytest.raises(
        StudyError, match=r"study: vary: .* here; search: \['grid', 'random'\] there, 'tpe' here\. Give"
    ):
        a_sweep(other).begin()


def test_a_search_and_asynchronous_halving_go_together(tmp_path):
    study = a_sweep(tmp_path, early_stopping=ASHA).run(2)
    assert len(study.rows()) == 28 and 0 < len(study.left_out()) < 14
    assert Study(tmp_path).plan.search["sampler"] == "tpe"
    with pytest.raises(StudyError, match="asynchronous"):
        SuccessiveHalving(asynchronous=3)
