"""`dist-classicrl compare`: settings of a study by their scores, and with new seeds until it is decided."""

import json

import pytest

from dist_classicrl import Study
from dist_classicrl.cli.main import main
from dist_classicrl.sweep.trial import Laboratory

STUDY = """
environment = "FrozenLake-v1"
total_steps = 20_000
seeds = 4
points = 2
eval_episodes = 2
[vary]
epsilon = [0.3, 0.0]
"""
UNTIL = ["--until-significant", "--stages", "2", "--seeds-per-stage", "6"]


def made(folder, text=STUDY):
    file = folder / "study.toml"
    file.write_text(text)
    assert main(["sweep", str(file), "--out", str(folder / "made"), "--processes", "1", "--quiet"]) == 0
    return folder / "made"


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return made(tmp_path_factory.mktemp("compared"))


def told(capsys, *words):
    capsys.readouterr()
    assert main(["compare", *map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_the_level_decides_what_counts_as_a_difference(study, capsys):
    (one,) = told(capsys, study)["comparisons"]
    p = one["adjusted_p_value"]
    assert 0.0 < p < 0.1 and one["difference"]["value"] > 0.5
    (at,) = told(capsys, study, "--level", p)["comparisons"]
    (below,) = told(capsys, study, "--level", 0.99 * p)["comparisons"]
    assert (at["better"], below["better"]) == ("epsilon=0.3", None)
    assert main(["compare", str(study), "--level", "1.5"]) == 2
    assert "level must be between 0 and 1" in capsys.readouterr().err


def test_new_seeds_are_run_until_it_is_decided_also_after_a_kill(study, capsys, monkeypatch):
    ran, real = [], Laboratory.run

    def run(self, trial):
        ran.append((trial.variant, trial.seed))
        if len(ran) == 5:
            raise KeyboardInterrupt
        return real(self, trial)

    monkeypatch.setattr(Laboratory, "run", run)
    words = ["compare", str(study), *UNTIL, "--processes", "1"]
    assert main(words) == 130
    (verdict,) = told(capsys, study, *UNTIL, "--processes", "1")["verdicts"]
    assert (verdict["outcome"], verdict["better"], verdict["seeds"]) == ("different", "epsilon=0.3", 6)
    # Of six new seeds each run was made once, but for that which was under way.
    assert sorted(ran) == sorted([(variant, seed) for variant in (0, 1) for seed in range(4, 10)] + [ran[4]])
    # Once more there is nothing left to run, and the study itself is what it was.
    assert main(words) == 0 and "epsilon=0.3" in capsys.readouterr().out and len(ran) == 13
    assert Study(study).done == 8
    assert main([*words, "--level", "0.01"]) == 2
    said = capsys.readouterr().err
    assert "was begun with level=0.05" in said and "remove" not in said
    assert "whose seeds are 16 and more" in said  # two stages of 6 follow the study's 4


def test_settings_are_compared_in_any_order_also_those_that_a_random_search_has_drawn_twice(tmp_path, capsys):
    text = STUDY.replace("seeds = 4", 'seeds = 1\nsearch = "random"\nn_variants = 6').replace(
        "20_000", "2_000"
    )
    folder = made(tmp_path, text)
    study = Study(folder)
    names = [study.name_of(variant) for variant in study.variants()]
    twice = next(name for name in names if "(settings " in name)
    other = next(name for name in names if name.split()[0] != twice.split()[0])
    until = [*UNTIL[:2], "1", *UNTIL[3:], "--processes", "1"]
    there = told(capsys, folder, twice, other, *until)
    assert there["verdicts"][0]["seeds"] == 6
    assert told(capsys, folder, other, twice, *until) == there
    assert len([*(folder / "new_seeds").iterdir()]) == 1
    # Who has seen that may choose by it: another comparison has other seeds, and this one keeps its own.
    third = next(name for name in names if name not in (twice, other))
    told(capsys, folder, third, other, *until)
    told(capsys, folder, twice, other, *until)
    stages = [Study(path.parent).plan.seeds for path in folder.glob("new_seeds/*/stage-0/study.json")]
    assert sorted(stages) == [tuple(range(1, 7)), tuple(range(7, 13))]


def test_seeds_that_can_show_nothing_are_not_run(study, capsys):
    capsys.readouterr()
    before = sorted(study.rglob("*"))
    assert main(["compare", str(study), *UNTIL[:1], "--stages", "1", "--seeds-per-stage", "2"]) == 2
    assert "at least stages=3 or seeds_per_stage=4" in capsys.readouterr().err
    assert sorted(study.rglob("*")) == before


def test_a_pair_that_is_left_and_cannot_be_decided_is_told_as_such(tmp_path, capsys, monkeypatch):
    real = Laboratory._trained

    def trained(self, trial, *more):
        """Scores of three settings that do not even overlap."""
        value = (0.9, 0.0, 0.1)[trial.variant] + trial.seed % 3 / 1_000
        return real(self, trial, *more) | {"exact_value": value, "optimal_value": 1.0, "random_value": 0.0}

    monkeypatch.setattr(Laboratory, "_trained", trained)
    text = STUDY.replace("20_000", "200").replace("[0.3, 0.0]", "[0.3, 0.2, 0.1]")
    folder = made(tmp_path, text)
    few = ["--until-significant", "--stages", "1", "--seeds-per-stage", "3", "--processes", "1"]
    verdicts = told(capsys, folder, *few)["verdicts"]
    assert [each["better"] for each in verdicts] == ["epsilon=0.3", "epsilon=0.3", None]
    assert verdicts[2]["outcome"] == "cannot be decided"
    assert main(["compare", str(folder), *few]) == 0
    said = capsys.readouterr().out
    assert "no difference found" not in said and said.splitlines()[3].endswith("cannot be decided")
    assert (
        "A difference cannot be decided with 2 variants left and 1 stage of 3 seeds: at least stages=2"
        in said
    )


def test_new_seeds_that_fail_decide_nothing(study, capsys, monkeypatch):
    def failing(self, trial):
        raise RuntimeError("no luck")

    words = ["compare", str(study), "--until-significant", "--seeds-per-stage", "2", "--processes", "1"]
    names = ["epsilon=0.0", "epsilon=0.3"]
    copy = ["--stages", "3"]
    other = study.parent / "other"
    other.mkdir()
    words[1] = str(made(other))
    with monkeypatch.context() as patch:
        patch.setattr(Laboratory, "_trained", failing)
        assert main([*words, *copy, *names]) == 2
    assert "RuntimeError: no luck" in capsys.readouterr().err
    assert main([*words, *copy, *names, "--retry-failed"]) == 0


@pytest.mark.slow
def test_who_was_stopped_early_is_named_and_not_compared_by_its_scores(tmp_path, capsys):
    text = STUDY.replace("[0.3, 0.0]", "[0.3, 0.0, 0.2, 0.01]") + "[early_stopping]\nfactor = 2\nrungs = 2\n"
    folder = made(tmp_path, text)
    stopped = Study(folder).left_out()
    assert len(stopped) == 2 and set(stopped.values()) == {"stopped early in FrozenLake-v1"}
    assert told(capsys, folder)["left_out"] == stopped
    assert main(["compare", str(folder)]) == 0
    said = capsys.readouterr().out
    assert all(f"  {name}: stopped early" in said for name in stopped) and "flattering" in said
    assert main(["compare", str(folder), *list(stopped)]) == 2
    assert "stopped early in FrozenLake-v1. Add --until-significant" in capsys.readouterr().err


def test_a_study_with_too_few_settings_to_compare_says_why_and_what_to_type(tmp_path, capsys):
    text = STUDY.replace("20_000", "2_000") + "[early_stopping]\nfactor = 2\nrungs = 2\n"
    folder = made(tmp_path, text)
    (name,) = Study(folder).left_out()
    for more in ([], ["--until-significant"]):
        assert main(["compare", str(folder), *more]) == 2
        said = capsys.readouterr().err
        assert f"Left out are {name}: stopped early in FrozenLake-v1" in said
        assert "FIRST and SECOND with --until-significant" in said
    (tmp_path / "one").mkdir()
    alone = made(tmp_path / "one", text.partition("[vary]")[0])
    assert main(["compare", str(alone)]) == 2
    assert "has default alone. Give a setting several values below [vary]" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["compare", "show"])
def test_of_a_folder_of_studies_one_is_named(command, tmp_path, capsys):
    folder = made(tmp_path, STUDY.replace("20_000", "200"))
    assert main([command, str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "ame one of" in said and str(folder) in said


def test_too_few_seeds_for_a_difference_are_told(tmp_path, capsys):
    folder = made(tmp_path, STUDY.replace("20_000", "200").replace("seeds = 4", "seeds = 3"))
    assert main(["compare", str(folder)]) == 0
    said = capsys.readouterr().out
    assert "A difference cannot be decided with 3 seeds: at least 4 seeds each." in said
    assert "no difference found" not in said and "Intervals of fewer than 10 seeds are too narrow" in said
    (one,) = told(capsys, folder)["comparisons"]
    assert one["undecidable"] == "cannot be decided with 3 seeds: at least 4 seeds each"


def test_what_cannot_be_compared_so_is_refused(study, tmp_path, capsys):
    assert main(["compare", str(study), "--stages", "3"]) == 2
    assert "belong to --until-significant" in capsys.readouterr().err
    assert main(["compare", str(study), "epsilon=0.3", "nothing", "--until-significant"]) == 2
    assert "no settings 'nothing'" in capsys.readouterr().err
    (made(tmp_path) / "study.toml").unlink()
    assert main(["compare", str(tmp_path / "made"), "--until-significant"]) == 2
    assert "has no study.toml" in capsys.readouterr().err
