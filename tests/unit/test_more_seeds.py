"""A study gets more seeds: what is made stays, what is missing is made, and all readers see it."""

import json
import shutil
from types import SimpleNamespace

import pytest

from dist_classicrl import Study, Sweep, TabularMDP
from dist_classicrl.cli.live import watching
from dist_classicrl.cli.live.study_view import StudyView
from dist_classicrl.cli.main import main
from dist_classicrl.errors import StudyError
from dist_classicrl.report.page import Page
from dist_classicrl.report.study_sections import study_sections
from dist_classicrl.sweep import SuccessiveHalving
from dist_classicrl.sweep import folder as folder_module
from dist_classicrl.sweep.comparison import caution
from dist_classicrl.sweep.folder import Member, StudyFolder
from dist_classicrl.sweep.plan import Plan
from dist_classicrl.sweep.trial import Laboratory

GARNET = TabularMDP.garnet(n_states=20, n_actions=3, branching=3, seed=1)
OTHER = TabularMDP.garnet(n_states=8, n_actions=2, branching=2, seed=2)
VARY = {"learning_rate": [0.1, 0.4]}


def a_sweep(folder, seeds, env=GARNET, **changes):
    given = {"total_steps": 500, "vary": VARY, "points": 2, "eval_episodes": 2}
    return Sweep(env, seeds=seeds, folder=folder, **{**given, **changes})


def tables(folder):
    return [(folder / name).read_bytes() for name in ("results.csv", "curves.csv")]


def records(folder):
    return {path.name: path.read_bytes() for path in (folder / "records").iterdir()}


class Runs(list):
    """Environment, settings and seed of each run that is made; the one that is `stop` is interrupted once."""

    stop = None


@pytest.fixture
def made(monkeypatch):
    found, real = Runs(), Laboratory.run

    def run(self, trial):
        found.append((trial.environment, trial.variant, trial.seed))
        if found[-1] == found.stop:
            found.stop = None
            raise KeyboardInterrupt
        return real(self, trial)

    monkeypatch.setattr(Laboratory, "run", run)
    return found


# What is made


def test_more_seeds_make_what_is_missing_and_end_with_the_tables_of_a_study_that_had_them(tmp_path, made):
    envs = {"b": GARNET, "a": OTHER}
    a_sweep(tmp_path / "grown", 2, envs).run(1)
    before = records(tmp_path / "grown")
    assert len(made) == 8
    made.clear()
    made.stop = ("b", 0, 3)
    with pytest.raises(KeyboardInterrupt):  # in the middle of those that were added
        a_sweep(tmp_path / "grown", 4, envs).run(1)
    assert Study(tmp_path / "grown").plan.seeds == (0, 1, 2, 3)
    a_sweep(tmp_path / "grown", 4, envs).run(1)
    missing = [(env, variant, seed) for env in "ab" for variant in (0, 1) for seed in (2, 3)]
    assert sorted(made) == sorted([*missing, ("b", 0, 3)])
    study = a_sweep(tmp_path / "grown", [0, 1, 2, 3, 9], envs).run(2)  # and once more
    assert (study.done, study.failed) == (20, 0)
    a_sweep(tmp_path / "fresh", [0, 1, 2, 3, 9], envs).run(1)
    assert tables(tmp_path / "grown") == tables(tmp_path / "fresh")
    assert study.scores() == Study(tmp_path / "fresh").scores() and not study.left_out()
    assert before.items() <= records(tmp_path / "grown").items()  # what was there is as it was
    made.clear()
    again = a_sweep(tmp_path / "grown", [9, 3, 2, 1, 0], envs).run(1)  # in whatever order they are named
    assert made == [] and again.rows() == study.rows()


def test_seeds_that_were_added_in_another_order_are_the_same_runs(tmp_path, made):
    a_sweep(tmp_path, [5]).run(1)
    first = a_sweep(tmp_path, [5, 2**62, 0]).run(1)
    assert [row["seed"] for row in first.rows()] == [5, 2**62, 0] * 2
    # Taken out and added in other parts: nothing is another run, or made once more.
    shutil.rmtree(tmp_path / "more_seeds")
    assert len(Study(tmp_path).rows()) == 2 and Study(tmp_path).is_made
    made.clear()
    a_sweep(tmp_path, [5, 0]).run(1)
    second = a_sweep(tmp_path, [5, 0, 7, 2**62]).run(1)
    assert made == [(GARNET.name, 0, 7), (GARNET.name, 1, 7)]
    strip = [{name: row[name] for name in row if name != "run"} for row in first.rows()]
    assert all(
        row in [{k: v for k, v in each.items() if k != "run"} for each in second.rows()] for row in strip
    )


def test_a_study_of_an_earlier_version_gets_more_seeds(tmp_path, made):
    """Its folder has no place for them, and its runs are called by their numbers."""
    a_sweep(tmp_path, 2).run(1)
    (tmp_path / "more_seeds").rmdir()
    assert [record["key"] for record in StudyFolder(tmp_path).records().values()] == [
        f"{number}-500" for number in range(4)
    ]
    assert "added" not in json.loads((tmp_path / "study.json").read_text())
    assert a_sweep(tmp_path, 3).run(1).done == 6 and len(made) == 6


def test_failed_runs_are_made_again_where_that_is_asked_for_and_not_by_adding_seeds(tmp_path, monkeypatch):
    real, fails = Laboratory._trained, True

    def trained(self, trial):
        if fails and trial.seed == 1:
            raise RuntimeError("no luck")
        return real(self, trial)

    monkeypatch.setattr(Laboratory, "_trained", trained)
    a_sweep(tmp_path, 2).run(1)
    fails = False
    study = a_sweep(tmp_path, 3).run(1)
    assert (study.done, study.failed) == (4, 2)
    failed = [row["run"] for row in study.rows() if row["error"]]
    assert failed == [1, 4]  # as they stand in the table now
    assert a_sweep(tmp_path, 3).run(1, retry_failed=True).done == 6


# What cannot be


@pytest.mark.parametrize(
    ("seeds", "said"),
    [
        (
            2,
            "1 seed that would be left out (seeds: 3 there, 2 here), and keeps what it has. Give seeds=3,",
        ),
        ([0, 1, 5], "(seeds: 3 there, [0, 1, 5] here), and keeps what it has. Give seeds=[0, 1, 2, 5], or"),
    ],
)
def test_seeds_that_are_there_cannot_be_left_out_and_nothing_is_lost(tmp_path, seeds, said):
    a_sweep(tmp_path, 3).run(1)
    before = [tables(tmp_path), records(tmp_path)]
    with pytest.raises(StudyError) as caught:
        a_sweep(tmp_path, seeds).run(1)
    assert said in str(caught.value) and "more_seeds" not in str(caught.value)
    assert [tables(tmp_path), records(tmp_path)] == before and Study(tmp_path).plan.seeds == (0, 1, 2)


def test_seeds_that_were_added_by_mistake_can_be_left_out_again_as_the_error_says(tmp_path, made):
    a_sweep(tmp_path, 2).run(1)
    made.stop = (GARNET.name, 0, 4)
    with pytest.raises(KeyboardInterrupt):
        a_sweep(tmp_path, 500).run(1)
    with pytest.raises(StudyError) as caught:
        a_sweep(tmp_path, 5).run(1)
    (file,) = (tmp_path / "more_seeds").iterdir()
    assert f"What was added last is left out again once {file} is removed" in str(caught.value)
    file.unlink()
    made.clear()
    study = a_sweep(tmp_path, 3).run(1)
    assert [row["seed"] for row in study.rows()] == [0, 1, 2] * 2 and study.done == 6
    assert made == [(GARNET.name, 1, 2)]  # that of the other settings is of those that were added by mistake


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"search": "tpe", "n_variants": 2}, "by their scores its settings were proposed"),
        ({"early_stopping": SuccessiveHalving(2, 2)}, "by their scores settings are stopped early"),
    ],
)
def test_a_study_that_has_chosen_by_the_scores_of_its_seeds_gets_no_others(tmp_path, changes, why):
    a_sweep(tmp_path, 2, **changes).run(1)
    before = [tables(tmp_path), records(tmp_path)]
    for seeds in (3, 1):
        with pytest.raises(StudyError) as caught:
            a_sweep(tmp_path, seeds, **changes).run(1)
        said = str(caught.value)
        assert f"keeps its seeds (seeds: 2 there, {seeds} here): {why}" in said
        assert "Give seeds=2 to go on" in said and f"compare {tmp_path} --until-significant" in said
    assert [tables(tmp_path), records(tmp_path)] == before and not Study(tmp_path).can_grow
    assert a_sweep(tmp_path, 2, **changes).run(1).rows() == Study(tmp_path).rows()


@pytest.mark.parametrize("text", ["[2, ", "[]", "[1]", "{}", "3", '["x"]', "[[2]]", "[-1]"])
def test_an_addition_that_is_damaged_is_named(tmp_path, text):
    a_sweep(tmp_path, 2).begin()
    (tmp_path / "more_seeds" / "2.json").write_text(text)
    for read in (lambda: Study(tmp_path), a_sweep(tmp_path, 3).begin):
        with pytest.raises(StudyError, match=r"more_seeds/2.json is damaged .* Remove it, and add its seeds"):
            read()


# Several at once


def test_who_was_told_of_fewer_seeds_makes_his_own_and_counts_no_others(tmp_path, monkeypatch):
    few, told = a_sweep(tmp_path, 2), []
    few.begin()
    real = Laboratory.run

    def run(self, trial):
        monkeypatch.setattr(Laboratory, "run", real)
        a_sweep(tmp_path, 4).begin()
        sweep = a_sweep(tmp_path, 4)
        sweep.begin()
        with Member(StudyFolder(tmp_path)) as other:  # who makes two of those that were added
            laboratory = Laboratory(sweep.plan, sweep._environments, tmp_path)
            for number in (2, 7):
                other.keep(laboratory.run(sweep.plan.trial(number)))
        return real(self, trial)

    monkeypatch.setattr(Laboratory, "run", run)
    study = few.run(1, told.append)
    assert (told[-1].done, told[-1].total, told[-1].seconds_left) == (4, 4, 0.0)
    assert (study.done, study.plan.n_runs, study.is_made) == (6, 8, False)
    assert {row["seed"] for row in study.rows()} == {0, 1, 2, 3}


def test_those_who_add_seeds_at_the_same_time_agree(tmp_path, monkeypatch):
    a_sweep(tmp_path, 2).begin()
    real = folder_module.make_once

    def make_once(path, text):
        monkeypatch.setattr(folder_module, "make_once", real)
        if path.parent.name != "more_seeds":
            monkeypatch.setattr(folder_module, "make_once", make_once)
            return real(path, text)
        a_sweep(tmp_path, [0, 1, 8, 4]).begin()  # somebody is faster
        return real(path, text)

    monkeypatch.setattr(folder_module, "make_once", make_once)
    sweep = a_sweep(tmp_path, [0, 1, 3, 4, 8])
    sweep.begin()
    assert sweep.plan.seeds == Study(tmp_path).plan.seeds == (0, 1, 8, 4, 3)
    assert sweep.plan.added == (2, 4)
    # Who wanted fewer than they have now is told.
    with pytest.raises(StudyError, match="has 1 seed that would be left out"):
        a_sweep(tmp_path, [0, 1, 8, 4]).begin()


def test_parcels_of_runs_that_were_there_stay_what_they_are():
    begun = Plan({"a": "", "b": ""}, ({}, {}), (), (0, 1, 2), 9_000_000, 5, 5)
    grown = Plan({"a": "", "b": ""}, ({}, {}), (), (0, 1, 2, 7, 5), 9_000_000, 5, 5, added=(3,))
    costs = {"a": 1.0, "b": 2.0}

    def parcels(plan):
        made = plan.parcels([plan.trial(number) for number in range(plan.n_runs)], costs)
        return [(each.name, [(one.key, one.seed) for one in each.trials]) for each in made]

    few, many = parcels(begun), parcels(grown)
    assert many[: len(few)] == few
    assert sorted(seed for _, trials in many[len(few) :] for _, seed in trials) == [5] * 4 + [7] * 4
    assert len({key for _, trials in many for key, _ in trials}) == grown.n_runs == 20
    for number in range(grown.n_runs):
        assert grown.number_of(grown.trial(number).run) == number
        assert begun.number_of(grown.trial(number).run) == (
            None if number % 5 > 2 else number // 5 * 3 + number % 5
        )


# Who reads it


def test_what_was_open_before_seeds_were_added_shows_them(tmp_path, monkeypatch):
    a_sweep(tmp_path, 2).run(1)
    study, view, slept = Study(tmp_path), StudyView(tmp_path, ""), []
    view.picture([])
    assert study.is_made and study.trainings == 4
    watching.wait_until_done(tmp_path)
    a_sweep(tmp_path, 4).begin()
    assert not study.is_made and study.trainings == 8 and study.rows()[2]["run"] == 4

    def sleep(seconds):
        slept.append(seconds)
        a_sweep(tmp_path, 4).run(1)

    monkeypatch.setattr(watching, "time", SimpleNamespace(sleep=sleep))
    watching.wait_until_done(tmp_path)  # for what was added, though all that was begun with is made
    assert len(slept) == 1 and study.is_made
    view.picture([])
    assert {group: len(found.scores) for group, found in view._by_settings.items()} == {
        (GARNET.name, f"learning_rate={rate}"): 4 for rate in VARY["learning_rate"]
    }
    assert [row["seed"] for row in study.rows()] == [0, 1, 2, 3] * 2


@pytest.mark.slow
def test_a_page_warns_of_the_seeds_that_are_made_and_not_of_those_that_are_asked_for(tmp_path):
    a_sweep(tmp_path, 3).run(1)
    a_sweep(tmp_path, 12).begin()
    page = Page("T").add(*study_sections(Study(tmp_path), resamples=100)).html
    assert caution(3) in page and "cannot be decided with 3 seeds" in page


FILE = """
environment = "FrozenLake-v1"
total_steps = 20_000
seeds = 3
points = 2
eval_episodes = 2
[vary]
epsilon = [0.3, 0.0]
"""


@pytest.fixture
def typed(tmp_path, capsys):
    """A function that types a command on a study of 3 seeds, and returns its status and what it said."""
    file, folder = tmp_path / "study.toml", tmp_path / "made"

    def run(command, *words, seeds=3):
        file.write_text(FILE.replace("seeds = 3", f"seeds = {seeds}"))
        line = ["sweep", str(file), "--out", str(folder), "--processes", "1"] if command == "sweep" else None
        status = main([*(line or [command, str(folder)]), *words])
        return status, "".join(capsys.readouterr())

    assert run("sweep")[0] == 0
    return folder, run


@pytest.mark.slow
def test_what_compare_advises_can_be_done(typed):
    folder, run = typed
    status, said = run("compare")
    assert "cannot be decided with 3 seeds: at least 4 seeds each" in said and status == 0
    assert "With more seeds in the study's file `dist-classicrl sweep` makes the runs" in said
    status, said = run("sweep", seeds=10)
    assert status == 0
    assert f"20 runs of 20,000 steps each, in {folder}: 7 seeds besides the 3 that it was begun with" in said
    status, said = run("show")
    assert "20 of 20 runs done" in said
    status, said = run("compare")
    assert "epsilon=0.3  0.0" not in said and "better" in said and "cannot be decided" not in said
    assert "too narrow" not in said and "With more seeds" not in said
    assert run("sweep", seeds=3)[0] == 2 and Study(folder).done == 20


@pytest.mark.slow
def test_while_added_seeds_are_under_way_settings_are_compared_by_those_before(typed, made):
    folder, run = typed
    before, scores = json.loads(run("compare", "--json")[1]), Study(folder).scores()
    assert before["seeds"] == 3
    made.stop = ("FrozenLake-v1", 1, 5)
    assert run("sweep", seeds=6)[0] == 130
    study = Study(folder)
    assert study.done > 6 and not study.is_made and study.whole_seeds == 3
    assert study.scores() == scores and not study.left_out()
    assert json.loads(run("compare", "--json")[1]) == before
    said = run("compare")[1]
    assert "These are scores of the first 3 seeds. Of 3 more, which were added, runs are missing" in said
    assert run("sweep", seeds=6)[0] == 0 and study.whole_seeds == 6
    assert {len(each) for each in study.scores()["FrozenLake-v1"].values()} == {6}
    assert "These are scores" not in run("compare")[1]


@pytest.mark.slow
def test_a_comparison_on_new_seeds_takes_none_of_those_that_were_added(typed):
    folder, run = typed
    until = ["--until-significant", "--stages", "1", "--seeds-per-stage", "6", "--processes", "1"]
    assert run("compare", *until)[0] == 0  # with seeds 3 to 8
    # By a script: the file in the folder still says 3.
    Sweep(
        "FrozenLake-v1", 20_000, 30, vary={"epsilon": [0.3, 0.0]}, points=2, eval_episodes=2, folder=folder
    ).run(1)
    assert "seeds = 3" in (folder / "study.toml").read_text()
    assert run("compare", *until)[0] == 0
    (test,) = folder.glob("new_seeds/*/test.json")
    begun = json.loads(test.read_text())
    assert begun.pop("first_seed") == 3
    test.write_text(json.dumps(begun))  # as earlier versions did
    assert run("compare", *until)[0] == 0
    status, said = run("compare", *until, "--level", "0.01")
    assert status == 2 and "whose seeds are 30 and more" in said
    shutil.rmtree(folder / "new_seeds")
    assert run("compare", *until)[0] == 0
    assert json.loads(test.read_text())["first_seed"] == 30
