"""Pictures of runs: what is drawn, not how it looks."""

import shutil
import sys
from decimal import Decimal
from xml.etree import ElementTree

import hand_made_metrics as hand_made
import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb, to_rgba

from dist_classicrl import DistAsyncQLearning, plotting
from dist_classicrl._student import t_quantile
from dist_classicrl.callbacks import EvalCallback, MetricsCallback
from dist_classicrl.cli.commands.plot import command
from dist_classicrl.environments.model import TabularMDP
from dist_classicrl.errors import MetricsError, MissingExtraError, PlotError, SettingsError
from dist_classicrl.monitoring.reading import read_metrics
from dist_classicrl.plotting import (
    canvas,
    map_of,
    plot_curves,
    plot_groups,
    plot_maps,
    plot_overview,
    plot_scaling,
    plot_several_runs,
    plot_timeline,
    save,
)
from dist_classicrl.plotting.curves import pooled
from dist_classicrl.plotting.several_runs import RunRecords
from dist_classicrl.plotting.timeline import Timeline, draw_timeline


@pytest.fixture
def metrics(tmp_path):
    return read_metrics(hand_made.learning_run(tmp_path / "run", reports=40, workers=3))


def lines_of(axes):
    return [np.column_stack(line.get_data()) for line in axes.get_lines()]


def legend_of(figure):
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


# Curves


def test_curves_have_a_point_for_each_report_over_steps_and_over_time(metrics):
    figure, curves = plot_curves(metrics, x=("steps", "time"))
    names = ("mean_return", "td_error", "steps_per_second", "communication_fraction")
    assert set(curves) == {(name, x) for name in names for x in ("steps", "time")}
    for (name, x), curve in curves.items():
        np.testing.assert_array_equal(curve.x, metrics["step" if x == "steps" else "time"])
        np.testing.assert_array_equal(curve.y, metrics[name])
    panels = np.array(figure.axes).reshape(4, 2)
    np.testing.assert_array_equal(
        lines_of(panels[0, 0])[0], np.column_stack((metrics["step"], metrics["mean_return"]))
    )
    np.testing.assert_allclose(lines_of(panels[3, 1])[0][:, 1], 100 * metrics["communication_fraction"])
    assert panels[3, 0].get_xlabel() and panels[3, 1].get_xlabel() == "training time (s)"
    assert all(axes.get_ylabel() for axes in panels[:, 0])


def test_smooth_return_is_the_mean_of_the_episodes_around(metrics):
    curve = plot_curves(metrics, x="steps")[1]["mean_return", "steps"]
    assert curve.window == 3
    for i in (0, 1, 20, 39):
        around = slice(max(i - 1, 0), i + 2)
        expected = np.average(curve.y[around], weights=metrics["episodes"][around])
        assert curve.smooth[i] == pytest.approx(expected)
    assert np.abs(np.diff(curve.smooth)).mean() < 0.6 * np.abs(np.diff(curve.y)).mean()


def test_a_very_large_return_leaves_the_means_of_later_reports_alone(tmp_path):
    lines = [hand_made.report(100 * i, i, mean_return=1e20 if i == 1 else 1.0) for i in range(1, 9)]
    curve = plot_curves(read_metrics(hand_made.write(tmp_path, lines)))[1]["mean_return", "steps"]
    assert curve.window == 3 and curve.smooth.tolist() == [5e19, 1e20 / 3, *[1.0] * 6]


def pooled_one_by_one(y, weights, *extents):
    """Return what `pooled` does, by going back from each report until there is enough."""
    least, result = [0.3 * float(np.median(extent)) for extent in extents], y.copy()
    for i in range(y.size):
        first = i
        while first > 0 and any(e[first : i + 1].sum() < low for e, low in zip(extents, least, strict=True)):
            first -= 1
        if first < i and weights[first : i + 1].sum() > 0:
            result[i] = np.average(y[first : i + 1], weights=weights[first : i + 1])
    return result


@pytest.mark.parametrize(
    "kind", ["even", "short last", "uneven", "half of nothing", "few with weight", "one"]
)
def test_reports_of_little_are_joined_with_those_before(kind):
    rng = np.random.default_rng(0)
    n = 1 if kind == "one" else 120
    seconds, steps = np.full(n, 5.0), rng.integers(1, 1_000, n)
    weights = steps.astype(float)
    if kind == "short last":
        seconds[-1], steps[-2:] = 1e-3, 1
    elif kind == "uneven":
        seconds, steps = rng.exponential(size=n) ** 4, np.maximum(1, 1e4 * rng.random(n) ** 8).astype(int)
    elif kind == "half of nothing":
        seconds[n // 2 + 1 :] = 0.0
        seconds[:3] = 0.0
    elif kind == "few with weight":
        weights[rng.random(n) < 0.9] = 0.0
        seconds[::2] = 1e-5
    y = rng.standard_normal(n)
    found, expected = pooled(y, weights, seconds, steps), pooled_one_by_one(y, weights, seconds, steps)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert (found == y).all() == (kind == "one")


VERY_LARGE = {
    "growing to the largest": lambda i: 1.6e308 if i == 39 else 10.0 ** (7.7 * i),
    "the largest throughout": lambda i: 1.6e308,
    "to both sides": lambda i: (-1) ** i * 1.2e308,
}


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", VERY_LARGE)
def test_values_near_the_largest_number_can_be_drawn(tmp_path, kind):
    names = ("td_error", "mean_return", "steps_per_second", "communication_fraction")
    lines = [hand_made.report(100 * i, i, **dict.fromkeys(names, VERY_LARGE[kind](i))) for i in range(1, 40)]
    records = read_metrics(hand_made.write(tmp_path, lines))
    one, curves = plot_curves(records, ("steps", "time"))
    several = plot_several_runs([records] * 3, list("abc"))[0]
    save(one, tmp_path / "one.svg")
    save(several, tmp_path / "several.svg")
    assert {curve.y.size for curve in curves.values()} == {39}
    for axes in one.axes + several.axes:
        assert np.isfinite([*axes.get_xlim(), *axes.get_ylim()]).all()
        assert all(np.isfinite(line).all() for line in lines_of(axes))


@pytest.mark.slow
def test_reports_without_a_value_are_left_out(tmp_path):
    lines = [hand_made.report(1000 * i, i, mean_return=None if i == 2 else 0.1 * i) for i in (1, 2, 3)]
    curves = plot_curves(read_metrics(hand_made.write(tmp_path, lines)), x=("steps", "time"))[1]
    np.testing.assert_array_equal(curves["mean_return", "steps"].x, [1000, 3000])
    assert curves["td_error", "time"].x.size == 3


@pytest.mark.slow
def test_an_error_that_falls_by_far_is_on_a_logarithmic_axis(tmp_path):
    lines = [hand_made.report(1000 * i, i, td_error=10.0**-i) for i in range(1, 6)]
    figure, _ = plot_curves(read_metrics(hand_made.write(tmp_path, lines)), x="steps")
    assert [axes.get_yscale() for axes in figure.axes] == ["linear", "log", "linear", "linear"]


@pytest.mark.slow
def test_names_are_no_formulas_and_powers_of_ten_are(tmp_path):
    lines = [hand_made.report(1000 * i, i, td_error=10.0**-i) for i in range(1, 6)]
    metrics = read_metrics(hand_made.write(tmp_path / "a$_$b", lines))
    figure, _ = plot_curves(metrics, x="steps", title="a$_$b")
    save(figure, tmp_path / "one.svg")
    assert "<!-- a$_$b -->" in (tmp_path / "one.svg").read_text()
    powers = [text for text in figure.axes[1].get_yticklabels(which="both") if "$" in text.get_text()]
    assert len(powers) >= 5 and all(text.get_parse_math() for text in powers)
    several, _ = plot_several_runs([metrics, metrics], names=["a$_$b", "$^$"])
    save(several, tmp_path / "two.png")


def test_what_cannot_be_drawn_is_said_with_the_name_of_the_run(tmp_path):
    empty = read_metrics(hand_made.write(tmp_path / "empty", []))
    with pytest.raises(PlotError, match="records of runs/x hold no report"):
        plot_curves(empty, title="runs/x")
    with pytest.raises(PlotError, match="say nothing about any worker"):
        plot_timeline(empty)
    lines = [hand_made.report(1000, 1.0, [hand_made.rank(1, 1000)], mean_return=None, episodes=0)]
    still = read_metrics(
        hand_made.write(tmp_path / "still", [hand_made.report(9, 1.0, [hand_made.rank(1, 0)])])
    )
    with pytest.raises(PlotError, match="nothing about any worker that learned"):
        plot_timeline(still)
    endless = read_metrics(hand_made.write(tmp_path / "endless", lines))
    assert plot_timeline(endless)[1].ranks == (1,)
    with pytest.raises(PlotError, match="'steps' or 'time'"):
        plot_curves(empty, x="episodes")


def test_a_run_without_an_ended_episode_shows_all_but_its_return(tmp_path):
    lines = [
        hand_made.report(1000 * i, i, [hand_made.rank(1, 1000)], mean_return=None, episodes=0) for i in (1, 2)
    ]
    endless = read_metrics(hand_made.write(tmp_path / "endless", lines))
    for draw in (plot_curves, plot_overview, lambda run, x: plot_several_runs([run] * 3, ["a", "b", "c"], x)):
        figure, _ = draw(endless, x="steps")
        said = [[text.get_text() for text in axes.texts] for axes in figure.axes[:4]]
        assert said == [["no episode has ended"], [], [], []]
        assert all(axes.lines and len(axes.lines[-1].get_xdata()) for axes in figure.axes[1:4])
    blank = dict.fromkeys(("mean_return", "td_error", "steps_per_second", "communication_fraction"))
    nothing = read_metrics(hand_made.write(tmp_path / "nothing", [hand_made.report(1000, 1.0, **blank)]))
    with pytest.raises(PlotError, match="tell neither return nor error"):
        plot_curves(nothing)


# Several runs


def straight_run(folder, slope, reports):
    """A run whose return is a straight line, by a report each 100 steps."""
    steps = 100 * np.arange(1, reports + 1)
    lines = [
        hand_made.report(int(s), s / 10, mean_return=slope * s, episodes=10, td_error=0.1 + slope)
        for s in steps
    ]
    return read_metrics(hand_made.write(folder, lines))


def test_several_runs_have_their_mean_and_t_interval_where_all_were_reported(tmp_path):
    slopes = (1.0, 2.0, 6.0)
    runs = [straight_run(tmp_path / str(i), s, 20 + i) for i, s in enumerate(slopes)]
    figure, compared = plot_several_runs(runs, ["a", "b", "c"], x="steps")
    shown = compared["td_error", "steps"]
    assert (shown.x[0], shown.x[-1]) == (100, 2000)
    assert len(shown.curves) == 3 and shown.curves[2].x.size == 22
    values = np.array(slopes) + 0.1
    half = 4.302653 * values.std(ddof=1) / np.sqrt(3)
    np.testing.assert_allclose(shown.middle, values.mean())
    np.testing.assert_allclose((shown.high - shown.low) / 2, half, rtol=1e-6)
    # Inside, the mean of a straight line around a place is the line.
    inner = compared["mean_return", "steps"]
    middle = (inner.x > 300) & (inner.x < 1800)
    np.testing.assert_allclose(inner.middle[middle], 3.0 * inner.x[middle])
    assert legend_of(figure) == ["each run", "95 % t-interval", "mean of 3 runs"]


def test_two_runs_have_a_line_each(tmp_path):
    runs = [straight_run(tmp_path / str(i), 1.0 + i, 10) for i in range(2)]
    figure, compared = plot_several_runs(runs, ["first", "second"])
    assert compared["mean_return", "steps"].x.size == 0
    drawn = [line[:, 1] for line in lines_of(figure.axes[1])]
    np.testing.assert_allclose(drawn, [[1.1] * 10, [2.1] * 10])
    assert legend_of(figure) == ["first", "second"]


def test_runs_without_a_common_range_and_single_ones_are_refused(tmp_path):
    near = straight_run(tmp_path / "near", 1.0, 3)
    far = read_metrics(
        hand_made.write(tmp_path / "far", [hand_made.report(900 + i, 9.0 + i) for i in range(3)])
    )
    with pytest.raises(PlotError, match="no range of steps in common: one begins at 900.*ended at 300"):
        plot_several_runs([near, near, far], "abc")
    with pytest.raises(PlotError, match="Use plot_curves"):
        plot_several_runs([near], ["a"])
    once = straight_run(tmp_path / "once", 1.0, 1)
    with pytest.raises(PlotError, match="one has a single report"):
        plot_several_runs([once] * 3, "abc")
    with pytest.raises(PlotError, match="Both runs are called 'q'.*a name of its own"):
        plot_several_runs([near, far], ["q", "q"])


def test_names_that_begin_with_an_underscore_are_in_the_legend(tmp_path):
    run = straight_run(tmp_path, 1.0, 3)
    figure, _ = plot_several_runs([run, run], ["_first", "second"])
    assert [text.strip() for text in legend_of(figure)] == ["_first", "second"]


@pytest.mark.parametrize(
    ("freedom", "expected"), [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (9, 2.2622), (30, 2.0423)]
)
def test_t_quantiles_are_those_of_the_tables(freedom, expected):
    assert t_quantile(freedom, 0.95) == pytest.approx(expected, abs=5e-5)


def test_t_quantiles_of_other_shares_and_many_degrees():
    assert t_quantile(1, 0.5) == pytest.approx(1.0) and t_quantile(2, 0.99) == pytest.approx(9.92484)
    for confidence in (0.5, 0.95, 0.9999):
        series = [t_quantile(freedom, confidence) for freedom in (999, 1000, 1001, 1002)]
        assert np.all(np.diff(series) < 0) and np.diff(series, 3) == pytest.approx(0.0, abs=1e-9)
    assert t_quantile(10**9, 0.95) == pytest.approx(1.959964, abs=1e-6)


# Timelines


@pytest.fixture
def eventful(tmp_path):
    """Rank 2 is lost in the second of four reports' time and back in the fourth; rank 9 never learned."""
    lines = []
    for i in range(1, 5):
        ranks = [hand_made.rank(1, 1000 * i)]
        if i in (1, 4):
            ranks.append(hand_made.rank(2, 500))
        if i == 2:
            ranks.append(hand_made.rank(2, 0))
        lines.append(hand_made.report(10_000 * i, 5.0 * i, ranks))
    happened = [("suspected", 2, 6.0), ("excluded", 2, 8.0), ("checkpoint", 0, 10.0), ("readmitted", 2, 16.0)]
    happened += [("failover", 1, 17.0), ("replaced", 9, 18.0), ("left", 9, 19.0)]
    lines[2:2] = [hand_made.event(kind, rank, 20_000, time) for kind, rank, time in happened]
    return read_metrics(hand_made.write(tmp_path, lines))


@pytest.mark.parametrize(
    "times", [(5.0, 10.0, 8.0, 9.0, 12.0), (5.0, 4.0, 3.0, 2.0, 1.0), (-2.0, -1.0, 0.0, 1.0, 2.0)]
)
def test_records_whose_time_goes_back_have_curves_and_a_timeline(tmp_path, times):
    ranks = [hand_made.rank(1, 1_000), hand_made.rank(2, 500)]
    lines = [hand_made.report(1_000 * i, time, ranks) for i, time in enumerate(times, start=1)]
    records = read_metrics(hand_made.write(tmp_path, lines))
    plot_curves(records, ("steps", "time"))
    assert set(plot_timeline(records)[1].learned) == {1, 2}


def test_a_timeline_has_a_row_for_each_rank_with_when_it_learned_and_what_happened(eventful):
    figure, timeline = plot_timeline(eventful)
    assert timeline.ranks == (1, 2, 9)
    np.testing.assert_array_equal(
        timeline.learned[1], [[0, 5, 200], [5, 10, 400], [10, 15, 600], [15, 20, 800]]
    )
    np.testing.assert_array_equal(timeline.learned[2], [[0, 5, 100], [15, 20, 100]])
    assert [event["kind"] for event in timeline.events] == [
        "suspected", "excluded", "checkpoint", "readmitted", "failover", "replaced", "left",
    ]  # fmt: skip
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "rank 1", "rank 2", "rank 9", "checkpoints",
    ]  # fmt: skip
    assert [len(bars.get_paths()) for bars in axes.collections] == [4, 2]
    marks = {tuple(place) for line in lines_of(axes) for place in line.tolist()}
    assert {(6.0, 1.0), (8.0, 1.0), (10.0, 3.0), (16.0, 1.0), (17.0, 0.0), (18.0, 2.0), (19.0, 2.0)} == marks
    assert "replacement started" in legend_of(figure) and "heard again" not in legend_of(figure)


def test_a_moment_between_two_reports_does_not_make_all_other_rates_pale():
    reports = 100
    ends = np.arange(1.0, reports + 1)
    ends[50:] -= 0.999  # the 51st follows the 50th at once
    spans = np.column_stack((np.concatenate(([0.0], ends[:-1])), ends, np.full(reports, 100.0)))
    spans[50, 2] = 100_000.0
    figure = canvas.new_figure(3.0)
    draw_timeline(figure, Timeline((1,), {1: spans}, ()), "")
    bars, scale = figure.axes
    assert scale.get_ylim() == (0.0, 100.0)
    faces = bars.collections[0].get_facecolor()
    np.testing.assert_allclose(faces, np.tile(to_rgba(canvas.BLUE), (reports, 1)), atol=0.01)


def test_every_worker_of_a_large_run_has_its_row(tmp_path):
    metrics = read_metrics(hand_made.learning_run(tmp_path, reports=3, workers=100))
    figure, timeline = plot_timeline(metrics)
    assert timeline.ranks == tuple(range(1, 101))
    assert len(figure.axes[0].collections) == 100
    assert len(figure.axes[0].get_yticks()) <= 40


# Maps


def make_lake(**arguments):
    import gymnasium

    return gymnasium.make("FrozenLake-v1", **arguments)


@pytest.mark.slow
def test_a_map_of_any_lake_has_its_cells_its_values_and_where_actions_lead():
    q = np.zeros((6, 4))
    q[0] = (0.1, 0.5, 0.2, 0.0)  # down
    q[1] = (0.0, 0.0, 0.3, 0.3)  # right and up are equally good
    q[3] = (0.0, 0.0, 0.9, 0.0)  # right
    visits = np.ones((6, 4), np.int64)
    visits[1, :3] = visits[4] = 0  # state 1 was visited all the same
    figure, drawn = plot_maps(q, make_lake(desc=["SFH", "FFG"]), visits)
    assert drawn.grid.letters.tolist() == [[" ", " ", "H"], [" ", " ", "G"]]
    assert drawn.grid.starts.tolist() == [[True, False, False], [False, False, False]]
    np.testing.assert_allclose(drawn.grid.directions, [(0, -1), (1, 0), (0, 1), (-1, 0)], atol=1e-12)
    np.testing.assert_array_equal(drawn.values, [[0.5, 0.3, np.nan], [0.9, np.nan, np.nan]])
    assert np.argwhere(drawn.greedy).tolist() == [[0, 0, 1], [0, 1, 2], [0, 1, 3], [1, 0, 2]]
    axes = figure.axes[0]
    assert {text.get_text() for text in axes.texts} == {"0.5", "0.3", "0.9", "H", "G"}
    arrows = axes.collections[0]
    np.testing.assert_allclose(np.sign(np.round(arrows.U, 9)), [0, 1, 0, 1])
    np.testing.assert_allclose(np.sign(np.round(arrows.V, 9)), [1, 0, -1, 0])
    assert "light grey: never visited" in axes.get_xlabel()


def test_cliff_walking_and_models_with_a_grid_have_maps():
    cliff = map_of(np.arange(48.0 * 4).reshape(48, 4), "CliffWalking-v1")
    assert "".join(cliff.grid.letters[3]) == " CCCCCCCCCCG"
    np.testing.assert_allclose(cliff.grid.directions, [(-1, 0), (0, 1), (1, 0), (0, -1)], atol=1e-12)
    assert np.isnan(cliff.values[3, 1:]).all() and np.isfinite(cliff.values[:3]).all()
    # Two cells beside each other: stay, or go to the other one, where the episode ends.
    move = np.zeros((2, 2, 2))
    move[0, 0, 0] = move[0, 1, 1] = move[1, :, 1] = 1.0
    model = TabularMDP.from_arrays(
        move, np.zeros((2, 2)), [1.0, 0.0], terminated=[False, True], grid_shape=(1, 2)
    )
    drawn = map_of(np.array([[2.0, 1.0], [0.0, 0.0]]), model)
    assert drawn.grid.directions.tolist() == [[0, 0], [0, 1]]
    assert drawn.values[0, 0] == 2.0 and np.isnan(drawn.values[0, 1])


def test_what_is_no_grid_or_does_not_fit_has_no_map():
    with pytest.raises(PlotError, match="Taxi-v4 is no grid.*--kind curves"):
        map_of(np.zeros((500, 6)), "Taxi-v4")
    with pytest.raises(PlotError, match="16 states and 4 actions, the table only 9 and 4"):
        map_of(np.zeros((9, 4)), "FrozenLake-v1")
    agent = DistAsyncQLearning(seed=1, max_states=100)
    agent.train("Blackjack-v1", total_steps=32)
    with pytest.raises(PlotError, match="States of this agent are keys.*Leave env out"):
        agent.plot("Blackjack-v1")
    for table, words in (
        (agent.q_table, "KeyedValues"),
        (agent.policy, "Policy"),
        ([[1.0], [1.0, 2.0]], "list"),
        (np.zeros(64), r"ndarray of shape \(64,\)"),
        ([["a"] * 4] * 16, "list of shape .*<U1"),
    ):
        with pytest.raises(PlotError, match=rf"q_table must be numbers of shape .*, got {words}"):
            map_of(table, "FrozenLake-v1")
    with pytest.raises(PlotError, match=r"visits must have the shape of q_table, \(16, 4\), got \(16, 3\)"):
        map_of([[0.0] * 4] * 16, "FrozenLake-v1", np.ones((16, 3)))


def test_values_as_large_as_there_are_have_a_map():
    q = np.zeros((16, 4))
    q[0], q[1] = 1.7e308, -1.7e308
    figure, drawn = plot_maps(q, "FrozenLake-v1")
    figure.draw_without_rendering()
    assert drawn.values[0, 0] == 1.7e308  # what is drawn is less, what is told is not
    faces = figure.axes[0].images[0].get_array()[0]
    np.testing.assert_allclose(faces[:2, :3], [to_rgb("#fde725"), to_rgb("#440154")], atol=0.01)


# Files


@pytest.mark.slow
def test_an_overview_has_all_and_is_written_1200_pixels_wide(eventful, tmp_path):
    import matplotlib
    from matplotlib.image import imread

    grid_map = map_of(np.zeros((16, 4)), "FrozenLake-v1")
    figure, drawn = plot_overview(eventful, grid_map, x="steps", title="runs/x")
    assert drawn["timeline"].ranks == (1, 2, 9) and drawn["map"] is grid_map
    assert drawn["curves"]["mean_return", "steps"].y.size == 4
    picture = imread(save(figure, tmp_path / "deep" / "x.png"))
    assert picture.shape[1] == 1200 and picture[:, :, :3].std() > 0.05
    for name in ("axes.titlelocation", "axes.grid", "font.size"):  # the caller's settings are left alone
        assert matplotlib.rcParams[name] == matplotlib.rcParamsDefault[name]
    with pytest.raises(PlotError, match=r"must end in \.png, \.svg, \.pdf.*x\.png"):
        save(figure, tmp_path / "x.jpeg")


def test_without_matplotlib_the_extra_is_named(metrics, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for draw in (
        plot_curves,
        plot_timeline,
        lambda _: plot_maps(np.zeros((16, 4)), "FrozenLake-v1"),
        plot_scaling,
    ):
        with pytest.raises(MissingExtraError, match=r"pip install matplotlib"):
            draw(metrics)


# The command


@pytest.fixture
def run(tmp_path):
    """The folder of a run of four by four cells, with a model."""
    from dist_classicrl import DistAsyncQLearning

    folder = hand_made.learning_run(tmp_path / "run", reports=5)
    folder.joinpath("config.toml").write_text('environment = "FrozenLake-v1"\n')
    agent = DistAsyncQLearning(state_size=16, action_size=4)
    agent.save_model(folder / "model.npz")
    return folder


def test_the_command_writes_a_picture(run, tmp_path):
    target = tmp_path / "deep" / "x.svg"
    done = CliRunner().invoke(
        command, [str(run), "--kind", "maps", "--out", str(target)], catch_exceptions=False
    )
    assert done.output == f"{target}: the map of FrozenLake-v1\n"
    assert ElementTree.parse(target).getroot().tag.endswith("svg")


def test_the_command_draws_what_is_asked_for(run, tmp_path, monkeypatch):
    def said(*words):
        done = CliRunner().invoke(command, [str(word) for word in words], catch_exceptions=False)
        return done.output if done.exit_code == 0 else (done.exit_code, done.output)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(canvas, "save", lambda figure, path: path)  # drawing takes a second each time
    assert said(run) == f"{run / 'plot.png'}: 5 reports, 3 workers, map\n"
    assert said(run / "metrics.jsonl", "--kind", "timeline") == f"{run / 'timeline.png'}: 3 ranks, 0 events\n"
    assert said(run, "--kind", "maps") == f"{run / 'map.png'}: the map of FrozenLake-v1\n"
    assert said(run, "--kind", "curves", "--x", "both") == f"{run / 'curves.png'}: 5 reports\n"
    assert said(run, "--x", "time", "--kind", "curves", "--out", "x.pdf") == "x.pdf: 5 reports\n"
    for kind, words in (("timeline", ("--x", "time")), ("maps", ("--average", "median"))):
        status, message = said(run, "--kind", kind, *words)
        assert status == 2 and f"{words[0]} is about curves, and --kind {kind} draws none" in message
    others = [shutil.copytree(run, tmp_path / name) for name in ("second", "third")]
    assert said(run, *others) == "plot.png: 3 runs, 15 reports\n"
    status, message = said(run, others[0], "--kind", "maps")
    assert status == 2 and "maps are of one run" in message
    run.joinpath("config.toml").write_text('environment = "Taxi-v4"\n')
    assert said(run) == f"{run / 'plot.png'}: 5 reports, 3 workers\n"
    with pytest.raises(PlotError, match="Taxi-v4 is no grid"):
        said(run, "--kind", "maps")
    alone = run.joinpath("model.npz").rename(tmp_path / "model.npz")
    with pytest.raises(MetricsError, match="archive of arrays, such as a model file"):
        said(alone, "--out", "x.png")
    with pytest.raises(PlotError, match="does not tell which environment"):
        said(alone, "--kind", "maps", "--out", "x.png")
    assert "has neither a model nor a checkpoint yet" in said(run)


@pytest.mark.parametrize(
    "draw",
    [
        lambda metrics: plot_curves(None),
        lambda metrics: plot_curves({"step": [1]}),
        lambda metrics: plot_several_runs([metrics, 3], ["a", "b"]),
        lambda metrics: plot_groups({"a": [metrics]}),
    ],
)
def test_what_is_no_run_is_refused_with_what_to_write(metrics, draw):
    with pytest.raises(PlotError, match="read_metrics"):
        draw(metrics)


@pytest.mark.parametrize(
    "use",
    [
        read_metrics,
        MetricsCallback,
        lambda path: save(None, path),
        lambda path: EvalCallback("Taxi-v4", log_path=path or 3),
        lambda path: EvalCallback("Taxi-v4", best_model_save_path=path or 3),
    ],
)
@pytest.mark.parametrize("path", [None, 3, "a\0b"])
def test_what_is_no_path_is_refused(use, path):
    with pytest.raises(SettingsError, match="must be a path"):
        use(path)


LINE = ([1, 2], [0, 1], [2, 3])
PAIR = {"v": (1, 0, 2), "w": (3, 2, 4)}


@pytest.mark.parametrize(
    "draw, same",
    [
        (
            lambda: plotting.plot_comparison({"a": pd.DataFrame(PAIR)}, pd.Series({"a": 0.5})),
            lambda: plotting.plot_comparison({"a": PAIR}, {"a": 0.5}),
        ),
        (
            lambda: plotting.plot_comparison({"a": PAIR}, {"a": np.array(1.0)}, title=None),
            lambda: plotting.plot_comparison({"a": PAIR}, {"a": 1.0}),
        ),
        (
            lambda: plotting.plot_comparison({"a": PAIR}, {"a": True}, title=7),
            lambda: plotting.plot_comparison({"a": PAIR}, {"a": Decimal(1)}, title="7"),
        ),
        (
            lambda: plotting.plot_sensitivity({"a": (pd.Series(["x", "y"]), *LINE)}, {"a": np.array(0.5)}),
            lambda: plotting.plot_sensitivity({"a": ("xy", *LINE)}, {"a": 0.5}),
        ),
        (
            lambda: plotting.plot_learning_curves([1, 2], pd.DataFrame({"a": pd.Series(LINE)})),
            lambda: plotting.plot_learning_curves([1, 2], {"a": LINE}),
        ),
    ],
)
def test_tables_arrays_and_numbers_are_drawn_as_what_they_hold(draw, same):
    pictures = []
    for each in (draw, same):
        drawn = FigureCanvasAgg(each())
        drawn.draw()
        pictures.append(np.asarray(drawn.buffer_rgba()))
    np.testing.assert_array_equal(*pictures)


def test_rows_of_any_kind_name_runs_groups_and_axes(metrics):
    _, expected = plot_several_runs([metrics, metrics], ["a", "b"], ["steps", "time"])
    by_name = {"a": metrics, "b": metrics}
    rows = (
        (by_name.values(), by_name.keys(), dict.fromkeys(("steps", "time"))),
        ((metrics, metrics), np.array(["a", "b"]), np.array(["steps", "time"])),
        (iter([metrics, metrics]), iter("ab"), {"steps", "time"}),
    )
    for given in rows:
        _, compared = plot_several_runs(*given)
        assert compared.keys() == expected.keys() and {axis for _, axis in compared} == {"steps", "time"}
        for key, each in compared.items():
            np.testing.assert_array_equal(each.middle, expected[key].middle)
    runs = {"one": RunRecords(metrics, "a"), "two": RunRecords(metrics, "b")}
    _, groups = plotting.plot_groups({"g": runs.values()}, x="steps")
    assert list(groups) == ["g"] and groups["g"].keys() == {key for key in expected if key[1] == "steps"}


@pytest.mark.parametrize(
    "draw, told",
    [
        (lambda: plotting.plot_groups([1]), r"groups must be a dict by name, got \[1\]"),
        (lambda: plotting.plot_groups({"a": 5}), "Each group needs a run"),
        (lambda: plotting.plot_learning_curves([1, 2], [LINE]), "curves must be a dict by name"),
        (lambda: plotting.plot_learning_curves([1, 2], {"a": 5}), "'a' has arrays of shapes .*Give three"),
        (lambda: plotting.plot_learning_curves([1, 2], {"a": "xyz"}), "What 'a' has must be numbers"),
        (
            lambda: plotting.plot_learning_curves([1, 2], {"a": (["x"], [0], [1])}),
            "What 'a' has must be numbers",
        ),
        (lambda: plotting.plot_learning_curves("x", {"a": LINE}), "horizontal axis must be numbers"),
        (
            lambda: plotting.plot_learning_curves([1, 2], {"a": LINE}, title=np.array(["a", "b"])),
            r"title must be text, got array\(\['a', 'b'\]",
        ),
        (lambda: plotting.plot_profiles([1, 2], None), "profiles must be a dict by name, got None"),
        (lambda: plotting.plot_sensitivity([1], {}), "settings must be a dict by name"),
        (lambda: plotting.plot_sensitivity({"a": ("xy", *LINE)}, None), "explained must be a dict by name"),
        (lambda: plotting.plot_sensitivity({"a": (["x", "y"], *LINE)}, {"a": "x"}), "'a' has no share"),
        (lambda: plotting.plot_sensitivity({"a": 5}, {"a": 0.5}), "'a' has arrays of shapes"),
        (lambda: plotting.plot_comparison([1]), "figures must be a dict by name"),
        (lambda: plotting.plot_comparison({"a": [1]}), r"nothing to draw in \[1\]. Give a dict"),
        (lambda: plotting.plot_comparison({"a": {"v": (1, 0, 2)}}, marks=5), "marks must be a dict by name"),
        (
            lambda: plotting.plot_comparison({"a": {"v": (1, 0, 2)}}, {"a": "x"}),
            "mark of 'a' must be a number",
        ),
        (
            lambda: plotting.plot_comparison({"a": {"v": (1, 0, 2)}}, {"a": None}),
            "must be a number, got None",
        ),
        (lambda: plotting.plot_comparison({"a": {}}), r"nothing to draw in \{\}. Give a dict"),
        (lambda: plotting.plot_curves(None, x=5), "x must be 'steps' or 'time', or both, got 5"),
        (lambda: plotting.plot_curves(None, x=[["steps"]]), "x must be 'steps' or 'time'"),
        (lambda: plotting.plot_curves(None, greedy=None), "greedy must be what read_evaluations"),
        (lambda: plotting.plot_several_runs(None, None), "got 0 and 0 names"),
        (lambda: plotting.plot_timeline(None), "must be what read_metrics"),
        (lambda: plotting.plot_map(None), "grid_map must be what map_of"),
        (lambda: plotting.plot_map(plotting.GridMap), "grid_map must be what map_of"),
        (lambda: plotting.plot_scaling(None), "report must be a ScalingReport, got None"),
        (lambda: plotting.save("figure", "x.png"), "What is saved is a figure, .* got 'figure'"),
    ],
)
def test_what_cannot_be_drawn_by_any_function_is_refused(draw, told):
    with pytest.raises(PlotError, match=told):
        draw()
