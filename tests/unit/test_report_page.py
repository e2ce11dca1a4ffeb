"""The page of HTML about a run, and what notebooks show of objects."""

import re
import sys
from html import escape

import hand_made_metrics as hand_made
import numpy as np
import pytest
from click.testing import CliRunner
from function_models import STOCKED, sell
from html_pages import BROWSER, Tags, look
from learned_runs import make_run, run_command
from matplotlib.figure import Figure

from dist_classicrl import DistAsyncQLearning, Progress, TabularMDP, TrainingResult
from dist_classicrl.cli.commands.report import command
from dist_classicrl.errors import MissingExtraError, PlotError
from dist_classicrl.evaluation.exact import ExactValue
from dist_classicrl.monitoring.reports import ReportHistory
from dist_classicrl.report.page import Page, Section
from dist_classicrl.report.sections import RunFacts, run_sections

LAKE = TabularMDP.from_gymnasium("FrozenLake-v1")
SHOP = TabularMDP.from_function(sell, **STOCKED, tables=False)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a run with a table, records, and an event whose words would be a script."""
    folder = tmp_path_factory.mktemp("runs") / "<i>lake"
    q_table = LAKE.solve(0.99).q
    make_run(folder, "FrozenLake-v1", q_table, np.ones(q_table.shape, np.int64))
    ranks = [hand_made.rank(1, 300), hand_made.rank(2, 700)]
    lines = [hand_made.report(1000 * i, 5.0 * i, ranks, mean_return=0.1 * i) for i in range(1, 9)]
    died = hand_made.event("excluded", 2, 8000, 40.0)
    died["event"] |= {"detail": "<script>alert(1)</script>", "steps_returned": 123}
    hand_made.write(folder, [*lines, died, hand_made.event("checkpoint", 0, 8000, 41.0)])
    return folder


@pytest.fixture(scope="module")
def page(run, tmp_path_factory):
    target = tmp_path_factory.mktemp("pages") / "page.html"
    done = CliRunner().invoke(command, [str(run), "--html", str(target)], catch_exceptions=False)
    assert done.exit_code == 0 and "policy map" in done.output
    return target


@pytest.mark.slow
def test_a_page_tells_all_of_a_run_and_needs_nothing_but_itself(page):
    text = page.read_text()
    tags = Tags(text)
    assert tags.open == []
    assert [link for link in tags.links if not link.startswith(("#", "data:"))] == []
    assert not re.search(r"url\((?!#)|@import", text)
    said = " ".join(tags.text)
    for title in ("Exact gap", "Learning curves", "Policy map", "Workers", "Events", "Settings"):
        assert f">{title}</h2>" in text
    assert len(re.findall('<svg role="img"', text)) == 3
    assert "1,234,567" in said and "node1, node2" in said and "0.542026" in said
    # What comes from a run is text, never a part of the page.
    assert "<script" not in text and "<script>alert(1)</script>" in said
    assert "<i>lake" in said and "<i>" not in text
    assert 'name="viewport"' in text and "prefers-color-scheme: dark" in text


@pytest.mark.slow
def test_the_exact_gap_is_that_of_the_table(run, tmp_path, capsys):
    worse = make_run(tmp_path / "worse", "FrozenLake-v1", np.zeros((16, 4)))
    status, told, _ = run_command(capsys, "report", worse, "--html", str(tmp_path / "worse.html"))
    assert status == 0 and "learning curves" not in told and "exact gap" in told
    uniform = LAKE.start_value(LAKE.policy_value(np.full((16, 4), 0.25), 0.99))
    assert f"{uniform:.6g}" in (tmp_path / "worse.html").read_text()


@pytest.mark.slow
def test_a_saved_agent_has_a_page_too(run, tmp_path, capsys):
    target = tmp_path / "saved.html"
    assert run_command(capsys, "report", str(run / "model.npz"), "--html", str(target))[0] == 0
    assert ">Policy map</h2>" in target.read_text() and ">discount_factor<" in target.read_text()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--html", "page.pdf"], "must end in .html"),
        (["--html", "page.html", "--json"], "--html goes without"),
    ],
)
def test_what_no_page_can_be_is_refused(run, capsys, words, why):
    status, _, error = run_command(capsys, "report", str(run), *words)
    assert status != 0 and why in error


def test_a_gap_that_is_rounding_is_shown_as_evaluate_does():
    exact = ExactValue(0.99, 1.0 + 2.0**-52, 1.0)
    (html,) = [each.html for each in run_sections(RunFacts("x", exact=exact)) if each.title == "Exact gap"]
    assert [text for text in Tags(html).text if text.strip()][-3:] == ["0", "discount factor", "0.99"]


def test_words_about_a_picture_are_kept_whatever_they_are():
    said = r"runs\users\1 \g<0> \n"
    (picture,) = Section("x").add_figure(Figure(), said).html.splitlines()[:1]
    assert f'aria-label="{escape(said)}" ' in picture


def test_sections_are_added_in_order_and_escaped(tmp_path):
    first = Section("A & B").add_text("1 < 2").add_table(("x",), [("<td>",)])
    text = Page("T").add(first, Section("C")).save(tmp_path / "deep" / "p.html").read_text()
    assert "A &amp; B" in text and "1 &lt; 2" in text and "&lt;td&gt;" in text
    assert text.index("A &amp; B</h2>") < text.index("C</h2>")


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="There is no chromium.")
@pytest.mark.parametrize(("scheme", "ground"), [(1, "rgb(255, 255, 255)"), (0, "rgb(20, 24, 29)")])
def test_a_browser_shows_it_on_a_phone_in_light_and_dark(page, tmp_path, scheme, ground):
    """In a frame as wide as a phone nothing but tables and pictures scrolls sideways; no error is logged."""
    title, log = look(page, tmp_path, scheme)
    assert title == f"390 390 {ground}"
    assert "CONSOLE" not in log


# Plots of an agent and of a result


@pytest.fixture(scope="module")
def trained():
    agent = DistAsyncQLearning(seed=1)
    reports = []
    return agent, agent.train("FrozenLake-v1", total_steps=50_000, progress=reports.append), reports


def test_a_result_and_an_agent_plot_the_training_that_somebody_listened_to(trained):
    agent, result, reports = trained
    rising = [report.steps for report in reports]
    assert [report.steps for report in result.reports] == sorted(set(rising))
    figure = result.plot()
    assert isinstance(figure, Figure)
    (curve,) = (axes for axes in figure.axes if axes.get_title(loc="left") == "Return while exploring")
    np.testing.assert_array_equal(curve.lines[0].get_xdata()[-1], result.steps)
    titles = [axes.get_title(loc="left") for axes in agent.plot().axes]
    assert "FrozenLake-v1: greedy value and policy" in titles and "Return while exploring" in titles
    assert "reports" not in result.to_dict() and TrainingResult.from_dict(result.to_dict()) == result


def test_what_cannot_be_plotted_is_said(trained, monkeypatch):
    agent = DistAsyncQLearning(seed=1)
    result = agent.train(LAKE, total_steps=1000)
    for thing in (result, agent):
        with pytest.raises(PlotError, match="Nobody listened.*MetricsCallback"):
            thing.plot()
    with pytest.raises(PlotError, match="no grid"):
        agent.plot("Blackjack-v1")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for thing in trained[:2]:
        with pytest.raises(MissingExtraError, match="pip install matplotlib"):
            thing.plot()


def test_a_long_history_keeps_all_episodes_and_some_thousand_reports():
    history = ReportHistory()
    for i in range(1, 10_001):
        history.add(Progress(10 * i, 100_000, seconds=i / 100, episodes=2, mean_return=float(i % 2)))
    kept = history.reports
    assert 1000 <= len(kept) < 2000 and kept[-1].steps == 100_000
    assert sum(report.episodes for report in kept) == 20_000
    assert kept[500].mean_return == 0.5 and kept[500].steps_per_second == pytest.approx(1000.0)
    assert len({later.steps - each.steps for each, later in zip(kept, kept[1:-1], strict=False)}) == 1


# What notebooks show


def test_notebooks_show_what_a_terminal_does_as_a_table(trained):
    agent, result, _ = trained
    for thing in (agent, result, LAKE, SHOP, agent.policy):
        text = thing._repr_html_()
        tags = Tags(text)
        assert tags.open == [] and tags.text[0] == type(thing).__name__
        words = re.findall(r"[\w.]+", repr(thing))
        assert sorted(re.findall(r"[\w.]+", " ".join(tags.text))) == sorted(words)
    assert re.search("discount_factor</th><td>0.99</td>", agent._repr_html_())
    assert re.search("states</th><td>16</td>", agent.policy._repr_html_())
    assert f"episodes</th><td>{result.episodes:,}</td>" in result._repr_html_()
    assert re.search(r"mean return</th><td>0\.\d+</td>", result._repr_html_())


def test_names_in_what_notebooks_show_are_escaped():
    arrays = np.ones((1, 1, 1)), np.zeros((1, 1)), [1.0]
    model = TabularMDP.from_arrays(*arrays, name="<b>, (x")
    assert "<b>" not in model._repr_html_() and "&lt;b&gt;, (x" in model._repr_html_()
    assert "lost 1, 3" in TrainingResult(workers=2, lost_workers=(1, 3))._repr_html_()


def test_a_page_with_letters_that_no_file_can_hold_is_written(tmp_path):
    assert "caf?" in Page("caf\udce9").save(tmp_path / "page.html").read_text()
