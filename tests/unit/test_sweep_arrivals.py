"""Studies whose runs depend on what came out so far: Optuna's sampler, and asynchronous halving."""

import json
import math
import re
import sys
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import TransformReward

from dist_classicrl import Study, Sweep, TabularMDP
from dist_classicrl.cli.live.study_view import StudyView
from dist_classicrl.errors import MissingExtraError, StudyError
from dist_classicrl.sweep import Range, SuccessiveHalving
from dist_classicrl.sweep.arrivals import Arrivals
from dist_classicrl.sweep.choosing.sampling import Told, proposed, values_of
from dist_classicrl.sweep.folder import StudyFolder
from dist_classicrl.sweep.plan import Plan
from dist_classicrl.sweep.trial import Laboratory

GARNET = TabularMDP.garnet(n_states=20, n_actions=3, branching=3, seed=1)
SPACE = {"learning_rate": Range(0.001, 1.0, log=True), "buffer_size": Range(1, 40), "epsilon": [0.1, 0.3]}
TIMES = ("seconds", "train_seconds")


def a_sweep(folder, env=GARNET, **changes):
    given = {"total_steps": 900, "seeds": 2, "points": 3, "eval_episodes": 2}
    given |= {"vary": SPACE, "search": "tpe", "n_variants": 14, "settings": {"replay_ratio": 0.5}}
    return Sweep(env, folder=folder, **{**given, **changes})


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


# Scales of several environments


MODELS = {"a": GARNET, "b": TabularMDP.garnet(8, 1, 2, seed=1)}  # of b all policies are worth the same


@pytest.mark.parametrize(
    "env, changes",
    [
        ({"a": GARNET, "b": TabularMDP.garnet(8, 2, 2, seed=1)}, {"vary": {"discount_factor": [0.8, 0.9]}}),
        ({"a": GARNET, "b": "dist_classicrl/CartPole-v0"}, {}),
        ({"a": GARNET, "b": lambda: TransformReward(gymnasium.make("FrozenLake-v1"), float)}, {}),
    ],
)
def test_a_search_by_scores_of_several_scales_is_refused_where_that_is_known(tmp_path, env, changes):
    folder = tmp_path / "study"
    with pytest.raises(StudyError, match="proposes settings are returns, on a scale .* each of a, b.*Make a"):
        a_sweep(folder, env, **changes)
    assert not folder.exists()
    vary = {"learning_rate": [0.1, 0.2]}
    for allowed in ({"search": "random"}, {"search": "grid", "n_variants": None}):
        a_sweep(folder, env, **{"vary": vary, **changes, **allowed})
    a_sweep(folder, dict(sorted(env.items())[:1]), **changes)


def test_a_search_that_an_earlier_version_began_on_several_scales_goes_on(tmp_path, monkeypatch):
    env = {"a": GARNET, "b": TabularMDP.garnet(8, 2, 2, seed=1)}
    given = {"vary": {"discount_factor": [0.8, 0.9]}, "n_variants": 3, "settings": {}}
    with monkeypatch.context() as patched:
        patched.setattr("dist_classicrl.sweep.sweep._check_scales", lambda *_: None)
        a_sweep(tmp_path, env, **given).begin()
    assert a_sweep(tmp_path, env, **given).run(1).done == 12
    with pytest.raises(StudyError, match="on a scale of its own in each of a, b"):
        a_sweep(tmp_path, env, **{**given, "n_variants": 4})


@pytest.mark.parametrize("models", [MODELS, {**MODELS, "b": TabularMDP.garnet(8, 2, 2, seed=1)}])
def test_what_a_search_is_told_adds_up_no_scores_of_several_scales(tmp_path, monkeypatch, models):
    heard = []

    def listening(vary, seed, number, told):
        heard.append([each.score for each in told])
        return proposed(vary, seed, number, told)

    monkeypatch.setattr("dist_classicrl.sweep.sweep.proposed", listening)
    study = a_sweep(tmp_path, models, n_variants=12).run(1)
    scores = {}
    for row in study.rows():
        scores.setdefault((row["variant"], row["environment"]), []).append(row["score"])
    found = [[np.mean(scores[variant, name]) for name in models] for variant in range(11)]
    if study.bounds is None:

        def share_below(one, place):
            others = [each[place] for each in found]
            return np.mean([(each < one[place]) + 0.5 * (each == one[place]) for each in others])

        found = [[share_below(one, place) for place in range(2)] for one in found]
    assert (study.bounds is None) == (models is MODELS) and len(set(map(tuple, found))) > 3
    np.testing.assert_allclose(heard[-1], np.mean(found, axis=1), rtol=1e-12)


def test_who_failed_or_is_under_way_has_no_place_among_scores_of_several_scales():
    plan = Plan({"a": "", "b": ""}, [{}] * 5, (), (0, 1), 10, 1, 1)
    scale = {"optimal_value": 2.0, "random_value": 1.0, "error": None}
    returns = {**scale, "optimal_value": None, "exact_value": None}
    of = {  # by environment; of four settings, as the fifth is under way
        "a": [{**scale, "exact_value": 1.0 + place} for place in (0.2, 0.4, 0.6, 0.4)],
        "b": [{**returns, "final_return": place} for place in (300.0, -5.0, 10.0, 300.0)],
    }
    of["b"][1] = {"error": "it failed"}
    of["a"].append(of["a"][0])
    made = {
        trial.key: record
        for name, those in of.items()
        for variant, record in enumerate(those)
        for trial in plan.trials(name, variant, 10)
    }
    folder = SimpleNamespace(records_read=made, withdrawn=0)
    told = Arrivals(plan, None, folder, None, None).scores(range(5))
    # Who failed in b has a place in a: the share there is of four, and in b of three.
    assert list(told) == list(range(5)) and told[4] is None and math.isnan(told[1])
    places_a, places_b = (0.5, 2.0, 3.5, 2.0), (2.0, None, 0.5, 2.0)
    for one in (0, 2, 3):
        assert told[one] == pytest.approx((places_a[one] / 4 + places_b[one] / 3) / 2)


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
