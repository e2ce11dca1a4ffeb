"""The page of HTML about a study."""

import re
import socket
import sys

import numpy as np
import pytest
from click.testing import CliRunner
from html_pages import BROWSER, Tags, look

from dist_classicrl import Study, Sweep, TabularMDP
from dist_classicrl.cli.commands.report import command
from dist_classicrl.errors import MissingExtraError
from dist_classicrl.report.page import Page
from dist_classicrl.report.study_sections import study_sections
from dist_classicrl.schedules import PerVisit
from dist_classicrl.sweep.comparison import caution, interquartile_mean
from dist_classicrl.sweep.folder import StudyFolder
from dist_classicrl.sweep.trial import Laboratory

GARNET = TabularMDP.garnet(n_states=20, n_actions=3, branching=3, seed=1)
FEW = {"total_steps": 2_000, "points": 4, "eval_episodes": 5}


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A study one run of which has failed, with words that would be a script."""
    folder = tmp_path_factory.mktemp("studies") / "<b>study"
    real = Laboratory._trained

    def trained(self, trial):
        if trial.number == 5:
            raise RuntimeError("<script>alert(1)</script> at s3://me:secret@store")
        return real(self, trial)

    vary = {"learning_rate": [0.1, 0.4], "epsilon": [0.1, 0.3]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Laboratory, "_trained", trained)
        return Sweep({"one": GARNET, "two": GARNET}, seeds=3, vary=vary, folder=folder, **FEW).run(1)


@pytest.fixture(scope="module")
def page(study, tmp_path_factory):
    target = tmp_path_factory.mktemp("pages") / "page.html"
    done = CliRunner().invoke(command, [str(study.folder), "--html", str(target)], catch_exceptions=False)
    assert done.exit_code == 0 and "performance profiles" in done.output
    return target


@pytest.mark.slow
def test_a_page_tells_all_of_a_study_and_needs_nothing_but_itself(page, study):
    text = page.read_text()
    tags = Tags(text)
    assert tags.open == [] and [link for link in tags.links if not link.startswith(("#", "data:"))] == []
    said = " ".join(" ".join(tags.text).split())
    titles = (
        "Settings compared, Intervals, Learning curves, Performance profiles, What each setting matters, "
        "Exact gaps, Failed runs, How it was made, Machines and versions"
    )
    for title in titles.split(", "):
        assert f">{title}</h2>" in text
    assert len(re.findall('<svg role="img"', text)) == 2 + 2 + 1 + 2
    # Beside the table, the intervals, the curves and the profiles.
    assert said.count(caution(3)) == 4
    assert "cannot be decided" not in said  # 3 seeds in each of two environments can be enough
    assert (
        "23 of 24 ended well" in said and socket.gethostname() in said and f"numpy {np.__version__}" in said
    )
    # What comes from runs and folders is text, never a part of the page, and holds no password.
    assert (
        "<script" not in text and "RuntimeError: <script>alert(1)</script>" in said and "secret" not in said
    )
    assert "<b>study" in said and "<b>" not in text


@pytest.mark.slow
def test_tables_have_the_figures_of_the_runs(page, study):
    text = page.read_text()
    for environment in ("one", "two"):
        rows = [row for row in study.rows() if row["environment"] == environment and row["variant"] == 2]
        middle = interquartile_mean([row["score"] for row in rows])
        name = study.name_of(2)
        assert re.search(f"<td>{re.escape(name)}</td><td>{environment}</td>.*?<td>{middle:.4g}</td>", text)
        gap = np.mean([row["optimal_value"] - row["exact_value"] for row in rows])
        assert re.search(rf"<td>{re.escape(name)}</td><td>{environment}</td>.*?<td>{gap:.3g} \(", text)


@pytest.mark.slow
def test_settings_with_a_run_that_failed_have_no_middle_and_come_last(page, study):
    (name,) = {each["settings"] for each in study.summary() if each["failed"]}
    (found,) = [each for each in study.summary() if each["failed"]]
    assert found["mean_score"] is None and found["standard_error"] is None
    (compared,) = re.findall("Settings compared</h2>.*?</table>", page.read_text(), re.DOTALL)
    rows = re.findall("<tr>(.*?)</tr>", compared, re.DOTALL)
    (place,) = [place for place, row in enumerate(rows) if name in row and ">one<" in row]
    assert rows[place].count("<td>-</td>") == 2 and ">two<" in rows[place + 1]


def test_a_gap_is_infinite_where_a_value_is_and_seeds_may_be_far_apart(tmp_path, monkeypatch):
    real = Laboratory._trained

    def trained(self, trial):
        return real(self, trial) | ({"exact_value": None} if trial.number == 1 else {})

    monkeypatch.setattr(Laboratory, "_trained", trained)
    page = Page("T").add(
        *study_sections(Sweep(GARNET, seeds=[3, 1_234_567_890], folder=tmp_path, **FEW).run(1))
    )
    assert re.search("<td>-inf</td><td>inf</td><td>inf</td>", page.html)
    assert "3, 1234567890" in page.html
    assert "compare says, but one cannot be decided with 2 seeds: at least 4 seeds each." in page.html


@pytest.mark.slow
def test_a_study_of_one_seed_that_is_under_way_or_was_stopped_early_has_a_page(tmp_path):
    sweep = Sweep(GARNET, seeds=1, vary={"learning_rate": [0.1, 0.4]}, folder=tmp_path, **FEW)
    StudyFolder(tmp_path).begin(sweep.plan.to_dict())
    assert "left" in Page("T").add(*study_sections(Study(tmp_path))).html
    titles = [section.title for section in study_sections(sweep.run(1))]
    assert "Learning curves" in titles and "Intervals" not in titles and "Performance profiles" not in titles


def test_with_early_stopping_scores_are_compared_after_the_same_number_of_steps(tmp_path, monkeypatch):
    """What a setting matters is told by the first rung; stopped settings are in the order of their rungs."""
    from dist_classicrl.report import study_sections as sections
    from dist_classicrl.sweep.choosing.halving import SuccessiveHalving

    vary = {"learning_rate": [0.0001, 0.01, 0.1, 0.2, 0.3, 0.4]}
    stopping = SuccessiveHalving(factor=2, rungs=3)
    few = {"total_steps": 8_000, "points": 4, "eval_episodes": 5}
    study = Sweep(GARNET, seeds=2, vary=vary, early_stopping=stopping, folder=tmp_path, **few).run(1)
    seen = []
    real = sections.sensitivity
    monkeypatch.setattr(sections, "sensitivity", lambda *given: seen.append(given) or real(*given))
    page = Page("T").add(*study_sections(study)).html
    ((settings, scores),) = seen
    assert sorted(set(settings["learning_rate"])) == vary["learning_rate"] and len(scores) == 12
    assert "the first rung, of 2,000 steps" in page
    (compared,) = re.findall("Settings compared</h2>.*?</table>", page, re.DOTALL)
    told = [
        (name, int(steps.replace(",", "")))
        for name, steps in re.findall(r"<td>(learning_rate=[^<]*)</td><td>([\d,]+)</td>", compared)
    ]
    assert [steps for _, steps in told] == sorted((steps for _, steps in told), reverse=True)
    assert {steps for _, steps in told} == {2_000, 4_000, 8_000}


@pytest.mark.slow
def test_what_flags_and_schedules_matter_is_told_by_their_words(tmp_path, monkeypatch):
    from dist_classicrl.report import study_sections as sections

    vary = {"learning_rate": [0.1, PerVisit(0.7)], "exploring_starts": [True, False], "initial_value": [0, 1]}
    few = {"total_steps": 10, "points": 1, "eval_episodes": 1}
    study = Sweep(GARNET, seeds=2, vary=vary, folder=tmp_path, **few).run(1)
    seen = []
    real = sections.sensitivity
    monkeypatch.setattr(sections, "sensitivity", lambda *given: seen.append(given) or real(*given))
    study_sections(study, resamples=100)
    ((settings, _),) = seen
    told = {name: sorted({*values}) for name, values in settings.items()}
    words = {"learning_rate": ["0.1", "PerVisit(0.7)"], "exploring_starts": ["False", "True"]}
    assert told == {**words, "initial_value": [0.0, 1.0]}


@pytest.mark.parametrize(
    "varied", [["discount_factor"], ["use_action_mask"], ["discount_factor", "use_action_mask"]]
)
def test_a_page_says_why_scores_are_returns(tmp_path, varied):
    values = {"discount_factor": [0.9, 0.95], "use_action_mask": [True, False]}
    vary = {name: values[name] for name in varied}
    sweep = Sweep("Taxi-v4", seeds=1, vary=vary, folder=tmp_path, total_steps=200, points=1, eval_episodes=1)
    page = Page("T").add(*study_sections(sweep.run(1))).html
    assert (
        f"the mean return of the greedy policy, as settings differ in {' and '.join(varied)}, and so in"
        in page
    )
    assert "0 for a random" not in page


@pytest.mark.slow
def test_without_matplotlib_it_says_what_to_install(study, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match="pip install matplotlib"):
        study_sections(study)


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="There is no chromium.")
@pytest.mark.parametrize(("scheme", "ground"), [(1, "rgb(255, 255, 255)"), (0, "rgb(20, 24, 29)")])
def test_a_browser_shows_it_on_a_phone_in_light_and_dark(page, tmp_path, scheme, ground):
    title, log = look(page, tmp_path, scheme)
    assert title == f"390 390 {ground}"
    assert "CONSOLE" not in log
