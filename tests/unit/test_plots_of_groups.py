"""Runs in groups, evaluations, the best policy, and what is left out: what is drawn, not how it looks."""

import re

import gymnasium
import hand_made_metrics as hand_made
import numpy as np
import pytest
from learned_runs import make_run, run_command

from dist_classicrl import TabularMDP
from dist_classicrl.cli import config
from dist_classicrl.errors import PlotError
from dist_classicrl.evaluation.best import best_return
from dist_classicrl.monitoring.reading import read_metrics
from dist_classicrl.plotting import (
    Greedy,
    RunRecords,
    canvas,
    map_of,
    plot_curves,
    plot_groups,
    plot_maps,
    plot_overview,
    read_evaluations,
)


def a_run(folder, level, reports=20, every=100, greedy=None, **settings):
    """Write a run whose error is `level` all the time, and give its folder."""
    lines = [
        hand_made.report(every * i, 0.5 * i, td_error=level, mean_return=level, communication_fraction=0.0)
        for i in range(1, reports + 1)
    ]
    hand_made.write(folder, lines)
    if settings:
        config.write(folder / "config.toml", settings, "a test")
    if greedy is not None:
        np.savez(
            folder / "evaluations.npz",
            timesteps=np.array([500, 1000]),
            results=np.array([[greedy, greedy], [greedy + 2, np.nan]]),
        )
    return folder


def records(folder, level, **about):
    return RunRecords(read_metrics(a_run(folder, level, **about)), folder.name)


def legend_of(figure):
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def titles_of(figure):
    return [axes.get_title(loc="left") for axes in figure.axes]


# Groups


def test_each_group_has_its_mean_and_interval_on_common_steps(tmp_path):
    low = [records(tmp_path / f"low{i}", level, every=90 + 10 * i) for i, level in enumerate((1.0, 2.0, 6.0))]
    high = [records(tmp_path / "high", 9.0)]
    figure, compared = plot_groups({"rate=0.1": low, "rate=0.5": high})
    shown = compared["rate=0.1"]["td_error", "steps"]
    assert (shown.x[0], shown.x[-1]) == (110, 1800)  # where all were reported
    half = 4.302653 * np.std([1.0, 2.0, 6.0], ddof=1) / np.sqrt(3)
    np.testing.assert_allclose(shown.middle, 3.0)
    np.testing.assert_allclose(shown.high - shown.middle, half, rtol=1e-6)
    assert compared["rate=0.5"]["td_error", "steps"].curves[0].y.tolist() == [9.0] * 20
    assert legend_of(figure) == ["rate=0.1 (3 runs)", "rate=0.5", "95 % t-interval"]
    colors = {line.get_color() for axes in figure.axes for line in axes.get_lines()}
    assert len(colors) == 2


@pytest.mark.slow
@pytest.mark.parametrize("count", [4, 10, 30])
@pytest.mark.parametrize(
    "label",
    ["rate={}", "environment=FrozenLake8x8-v1, learning_rate=PerVisit(0.{}, 1.5)", "x={} " + "long " * 60],
)
def test_a_legend_of_many_groups_is_whole_and_takes_nothing_from_the_panels(tmp_path, count, label):
    run = records(tmp_path / "run", 1.0)
    few, _ = plot_groups({"rate=1": [run]})
    figure, _ = plot_groups({label.format(number): [run] for number in range(count)})
    for each in few, figure:
        each.draw_without_rendering()
    legend = figure.legends[0].get_window_extent()
    assert figure.bbox.x0 <= legend.x0 < legend.x1 <= figure.bbox.x1
    assert figure.bbox.y0 <= legend.y0 < legend.y1 <= figure.bbox.y1
    assert len(legend_of(figure)) == count
    heights = [each.axes[0].get_window_extent().height for each in (few, figure)]
    assert heights[1] > 0.8 * heights[0]


def test_the_median_has_quartiles(tmp_path):
    runs = [records(tmp_path / str(level), level) for level in (1.0, 2.0, 3.0, 4.0, 100.0)]
    figure, compared = plot_groups({"all": runs}, average="median")
    shown = compared["all"]["td_error", "steps"]
    assert (shown.low[0], shown.middle[0], shown.high[0]) == (2.0, 3.0, 4.0)
    assert legend_of(figure) == ["each run", "quartiles", "median of 5 runs"]
    with pytest.raises(PlotError, match="average must be 'mean' or 'median', got 'mode'"):
        plot_groups({"all": runs}, average="mode")
    with pytest.raises(PlotError, match="Each group needs a run"):
        plot_groups({"all": runs, "none": []})


def test_two_runs_have_a_middle_without_an_interval(tmp_path):
    runs = [records(tmp_path / str(level), level) for level in (1.0, 2.0)]
    for groups in {"x": runs}, {"x": runs, "y": runs[:1]}:
        figure, compared = plot_groups(groups)
        shown = compared["x"]["td_error", "steps"]
        np.testing.assert_array_equal(shown.middle, 1.5)
        assert np.isnan([shown.low, shown.high]).all() and not shown.has_interval
        assert not any(axes.collections for axes in figure.axes)
        assert "95 % t-interval" not in legend_of(figure)


def test_runs_of_a_group_without_a_common_range_are_drawn_each_by_itself(tmp_path):
    near, far = records(tmp_path / "near", 1.0, reports=2), records(tmp_path / "far", 2.0, every=1000)
    _, compared = plot_groups({"x": [near, far], "y": [near]})
    shown = compared["x"]["td_error", "steps"]
    assert shown.x.size == 0 and [curve.x[0] for curve in shown.curves] == [100, 1000]


# Evaluations, the best policy, and what is left out


def test_evaluations_have_a_panel_and_the_best_policy_is_a_dashed_line(tmp_path):
    folder = a_run(tmp_path / "run", 0.5, greedy=3.0)
    greedy = read_evaluations(folder, best=7.5)
    assert greedy.returns.tolist() == [3.0, 5.0]  # of the second one, a single episode
    for x, places in (("steps", [500, 1000]), ("time", [2.5, 5.0])):
        figure, curves = plot_curves(read_metrics(folder), x, "run", greedy)
        assert curves["greedy_return", x].x.tolist() == places
        assert titles_of(figure)[:2] == ["Return while exploring", "Return of the greedy policy"]
        for axes in figure.axes[:2]:
            (best,) = [line for line in axes.get_lines() if line.get_linestyle() == "--"]
            assert list(best.get_ydata()) == [7.5, 7.5]
        assert not [line for line in figure.axes[2].get_lines() if line.get_linestyle() == "--"]


def test_groups_share_the_mark_of_the_best_policy_only_where_it_is_the_same(tmp_path):
    metrics = read_metrics(a_run(tmp_path / "run", 0.5))
    one, same, other = (RunRecords(metrics, "r", Greedy(best=best)) for best in (1.0, 1.0, 2.0))
    dashed = []
    for groups in ({"a": [one], "b": [same]}, {"a": [one], "b": [other]}, {"a": [one, other]}):
        figure, _ = plot_groups(groups)
        lines = [line for line in figure.axes[0].get_lines() if line.get_linestyle() == "--"]
        dashed.append([line.get_ydata()[0] for line in lines])
    assert dashed == [[1.0], [1.0, 2.0], []]


def test_a_damaged_file_of_evaluations_is_said_and_stays(tmp_path):
    folder = a_run(tmp_path / "run", 0.5)
    assert read_evaluations(folder).steps.size == 0
    folder.joinpath("evaluations.npz").write_bytes(b"PK nothing")
    with pytest.raises(PlotError, match="evaluations.npz is none of EvalCallback's files"):
        read_evaluations(folder)
    assert folder.joinpath("evaluations.npz").exists()


@pytest.mark.parametrize(
    "steps, results",
    [
        ([500], 3.0),
        (500, [[3.0]]),
        ([500, 1000], [[3.0]]),
        ([500, 1000], [[3.0], [np.nan]]),
        ([500], [3.0]),
        ([0.5], [[3.0]]),
        ([500], [["three"]]),
    ],
)
def test_a_file_of_evaluations_with_other_arrays_is_refused(tmp_path, steps, results):
    np.savez(tmp_path / "evaluations.npz", timesteps=np.array(steps), results=np.array(results))
    with pytest.raises(PlotError, match="evaluations.npz is none of EvalCallback's files"):
        read_evaluations(tmp_path)


def test_an_array_alone_under_the_name_of_evaluations_is_refused(tmp_path):
    with open(tmp_path / "evaluations.npz", "wb") as file:
        np.save(file, np.arange(3))
    with pytest.raises(PlotError, match="evaluations.npz is none of EvalCallback's files"):
        read_evaluations(tmp_path)


def test_the_best_policy_collects_what_solving_the_model_says():
    lake = TabularMDP.from_gymnasium(gymnasium.make("FrozenLake-v1", is_slippery=False))
    assert best_return(lake, 0.99) == 1.0
    assert best_return(lake, 1.0) == 1.0  # to wait is worth as much there, and never collects it
    assert best_return("CliffWalking-v1", 0.99) == -13.0
    assert best_return("Blackjack-v1", 0.99) is None


def test_one_process_has_no_panel_of_communication_and_no_row_of_workers(tmp_path):
    lines = [
        hand_made.report(100 * i, i, [hand_made.rank(0, 100)], communication_fraction=0.0)
        for i in range(1, 9)
    ]
    metrics = read_metrics(hand_made.write(tmp_path / "alone", lines))
    figure, curves = plot_curves(metrics)
    assert titles_of(figure) == ["Return while exploring", "Temporal-difference error", "Throughput"]
    assert {axis for _, axis in curves} == {"steps"}  # nothing is drawn twice
    figure, drawn = plot_overview(metrics)
    assert set(drawn) == {"curves"} and len(figure.axes) == 3
    lost = hand_made.write(tmp_path / "lost", [*lines, hand_made.event("excluded", 1, 800, 8.0)])
    assert "timeline" in plot_overview(read_metrics(lost))[1]


def test_the_last_report_of_a_few_steps_or_little_time_makes_no_spike(tmp_path):
    lines = [hand_made.report(1000 * i, i, steps_per_second=1000.0, td_error=0.1) for i in range(1, 10)]
    quick = hand_made.report(9001, 9.0001, steps_per_second=10_000.0, td_error=0.0)
    slow = hand_made.report(9001, 10.0, steps_per_second=1.0, td_error=0.0, communication_fraction=0.95)
    for name, last in (("quick", quick), ("slow", slow)):
        curves = plot_curves(read_metrics(hand_made.write(tmp_path / name, [*lines, last])))[1]
        rates = curves["steps_per_second", "steps"]
        assert rates.x[-1] == 9001 and rates.y[:9].tolist() == [1000.0] * 9
        expected = {"quick": 1000.0 + 9000.0 * 1e-4 / 1.0001, "slow": 500.5}[name]
        assert rates.y[-1] == pytest.approx(expected)
        assert curves["td_error", "steps"].y[-1] == pytest.approx(0.1 * 1000 / 1001)
    communication = curves["communication_fraction", "steps"].y
    assert communication[-1] == pytest.approx((0.02 + 0.95) / 2)


# Maps of any two numbers


class Plane(gymnasium.Env):
    """Walks that end in a corner; nothing is known of it but its spaces."""

    spaces = {
        "multi": gymnasium.spaces.MultiDiscrete([3, 5]),
        "tuple": gymnasium.spaces.Tuple(
            (gymnasium.spaces.Discrete(3), gymnasium.spaces.Discrete(5, start=-2))
        ),
        "dict": gymnasium.spaces.Dict(x=gymnasium.spaces.Discrete(3), y=gymnasium.spaces.Discrete(5)),
        "three": gymnasium.spaces.MultiDiscrete([3, 5, 2]),
    }
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, kind="multi", masked=False):
        self.observation_space = self.spaces[kind]
        self.info = {"action_mask": np.array([1, 0], np.int8)} if masked else {}

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), self.info

    def step(self, action):
        return self.observation_space.sample(), -1.0, False, False, self.info


@pytest.mark.parametrize(
    "kind, first, names",
    [
        ("multi", 0, ("observation[0]", "observation[1]")),
        ("tuple", -2, ("observation[0]", "observation[1]")),
        ("dict", 0, ("observation['x']", "observation['y']")),
    ],
)
def test_observations_of_two_numbers_have_a_map(kind, first, names):
    q = np.zeros((15, 2))
    q[7] = (1.0, 3.0)  # the second row's third cell
    visits = np.ones((15, 2), np.int64)
    visits[14] = 0
    figure, drawn = plot_maps(q, lambda: Plane(kind), visits)
    assert drawn.values.shape == (3, 5) and drawn.values[1, 2] == 3.0 and np.isnan(drawn.values[2, 4])
    assert drawn.greedy[1, 2].tolist() == [False, True]
    left, right = figure.axes[:2]
    assert (left.get_ylabel(), left.get_xlabel()) == names
    assert right.get_title(loc="left").endswith("greedy action")
    assert left.images[0].get_extent() == [first - 0.5, first + 4.5, 2.5, -0.5]
    np.testing.assert_array_equal(right.images[0].get_array()[1], [0, 0, 1, 0, 0])


@pytest.mark.parametrize(
    "space, n_actions, names",
    [
        (gymnasium.spaces.Discrete(3, start=-1), 3, ["-1", "0", "1"]),
        (gymnasium.spaces.MultiDiscrete([2, 2]), 4, ["[0, 0]", "[0, 1]", "[1, 0]", "[1, 1]"]),
        (gymnasium.spaces.Discrete(45, start=5), 45, [str(5 + 3 * i) for i in range(15)]),
    ],
)
def test_actions_are_called_what_predict_returns(space, n_actions, names):
    def make():
        plane = Plane()
        plane.action_space = space
        return plane

    figure, _ = plot_maps(np.zeros((15, n_actions)), make)
    bar = figure.axes[-1]
    assert bar.get_ylabel() == "action"
    assert [label.get_text() for label in bar.get_yticklabels()] == names


def test_where_actions_are_masked_only_those_that_were_taken_count():
    q = np.full((15, 2), -1.0)
    q[:, 1] = 0.0  # never taken
    visits = np.tile([4, 0], (15, 1))
    assert (map_of(q, lambda: Plane(masked=True), visits).values == -1.0).all()
    assert (map_of(q, lambda: Plane(), visits).values == 0.0).all()


def test_observations_of_three_numbers_have_none():
    with pytest.raises(PlotError, match=r"is no grid.*MultiDiscrete\(\[30, 30\]\).*--kind curves"):
        map_of(np.zeros((30, 2)), lambda: Plane("three"))


# The command


@pytest.fixture
def drawn(monkeypatch, tmp_path):
    """Draw nothing, in a folder of its own; give the figures that would have been."""
    figures = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(canvas, "save", lambda figure, path: figures.append(figure) or path)
    return figures


def plot(capsys, *words):
    status, out, err = run_command(capsys, "plot", *map(str, words))
    assert status == 0, err
    return out, err


LAKE = {"environment": "FrozenLake-v1", "discount_factor": 0.99, "algorithm": "q_learning"}


def make_runs(place, *settings):
    return [
        a_run(place / f"run{i}", float(i), seed=i, **LAKE | each, greedy=0.5)
        for i, each in enumerate(settings)
    ]


def test_runs_are_grouped_by_any_setting_and_by_what_differs(drawn, tmp_path, capsys):
    rates = [{"learning_rate": rate, "ranks": ranks} for rate in (0.1, 0.02) for ranks in (1, 2)]
    runs = make_runs(tmp_path, *rates)
    lines = ["learning_rate=0.02 (2 runs)", "learning_rate=0.1 (2 runs)", "best policy"]
    for asked in ([], ["--group-by", "learning_rate"], ["--group-by", "lr"]):
        out, err = plot(capsys, *runs, *asked)
        assert out == "plot.png: 4 runs in 2 groups, 80 reports\n" and not err
        assert legend_of(drawn[-1]) == lines
    plot(capsys, *runs, "--group-by", "ranks")
    assert legend_of(drawn[-1])[:2] == ["ranks=1 (2 runs)", "ranks=2 (2 runs)"]
    plot(capsys, *runs, "--group-by", "algorithm", "--group-by", "env")
    assert drawn[-1].get_suptitle() == "4 runs by algorithm, environment"
    assert "mean of 4 runs" in legend_of(drawn[-1])
    out, _ = plot(capsys, *runs, "--group-by", "none", "--average", "median")
    assert out == "plot.png: 4 runs, 80 reports\n" and "median of 4 runs" in legend_of(drawn[-1])
    for some in (runs, runs[:1]):
        status, _, err = run_command(capsys, "plot", *map(str, some), "--group-by", "learning-rat")
        assert status == 2 and "there is no setting 'learning-rat'. Did you mean 'learning_rate'?" in err
    plot(capsys, runs[0], "--kind", "curves", "--group-by", "learning-rate")


@pytest.mark.slow
def test_an_argument_of_the_environment_is_not_the_setting_of_the_same_name(drawn, tmp_path, capsys):
    """A garnet has a seed of its own."""
    same, other = ({"environment_arguments": {"seed": seed, "states": 9}} for seed in (7, 8))
    environments = {"environment": "garnet"}
    alike = make_runs(tmp_path / "alike", *[same | environments] * 3)
    out, _ = plot(capsys, *alike)
    assert out == "plot.png: 3 runs, 60 reports\n"  # they differ in the seed of the training alone
    both = [*alike, *make_runs(tmp_path / "other", other | environments)]
    named = ["env_arg.seed=7 (3 runs)", "env_arg.seed=8"]
    for asked in ([], ["--group-by", "env-arg.seed"]):
        plot(capsys, *both, *asked)
        assert legend_of(drawn[-1])[:2] == named
    plot(capsys, *alike, "--group-by", "seed")
    assert legend_of(drawn[-1])[:3] == ["seed=0", "seed=1", "seed=2"]
    plot(capsys, *alike, "--group-by", "env_arg.states")
    assert drawn[-1].get_suptitle() == "3 runs by states"


@pytest.mark.parametrize("command", ["plot", "report"])
def test_a_folder_of_runs_stands_for_them(drawn, tmp_path, capsys, command):
    runs = make_runs(tmp_path / "runs", {}, {})
    (tmp_path / "runs" / "picture").mkdir()
    status, out, err = run_command(capsys, command, str(tmp_path / "runs"))
    assert status == 0 and not err
    assert out == "plot.png: 2 runs, 40 reports\n" or all(str(run) in out for run in runs)
    status, _, err = run_command(capsys, command, str(tmp_path / "runs" / "picture"))
    assert status == 2 and "metrics.jsonl cannot be read" in err


def test_one_run_that_is_named_twice_is_drawn_as_one(drawn, tmp_path, capsys, monkeypatch):
    run, other = make_runs(tmp_path / "runs", {}, {})
    monkeypatch.chdir(tmp_path)
    spelled = [run, "runs/run0", run / "metrics.jsonl", "./runs/../runs/run0", "--kind", "curves"]
    assert plot(capsys, *spelled)[0] == f"{run / 'curves.png'}: 20 reports\n"
    assert plot(capsys, run, "runs", run)[0] == "plot.png: 2 runs, 40 reports\n"


def test_different_environments_are_warned_of(drawn, tmp_path, capsys):
    runs = make_runs(tmp_path, {}, {}, {"environment": "CliffWalking-v1"})
    _, err = plot(capsys, *runs)
    assert "different environments (CliffWalking-v1: 1, FrozenLake-v1: 2)" in err
    assert legend_of(drawn[-1])[:2] == ["environment=CliffWalking-v1", "environment=FrozenLake-v1 (2 runs)"]
    arguments = [{"environment_arguments": {"map_name": name}} for name in ("4x4", "8x8")]
    _, err = plot(capsys, *make_runs(tmp_path / "maps", *arguments))
    assert "FrozenLake-v1 (map_name=4x4): 1, FrozenLake-v1 (map_name=8x8): 1" in err
    assert plot(capsys, *runs[:2])[1] == ""


def test_the_warning_of_different_environments_says_how_to_draw_them_apart(drawn, tmp_path, capsys):
    """And nothing of it where each group has one environment."""

    def advice_of(runs, *words):
        _, err = plot(capsys, *runs, *words)
        assert "different environments" in err
        return re.findall(r"Draw .*", err)

    maps = [{"environment_arguments": {"map_name": name}} for name in ("4x4", "8x8") * 2]
    lakes = make_runs(tmp_path / "maps", *maps)
    by_map = ["--group-by", "map_name"]
    assert advice_of(lakes) == advice_of(lakes, *by_map) == []
    for asked in (["--group-by", "none"], ["--group-by", "environment"], ["--group-by", "ranks"]):
        (advice,) = advice_of(lakes, *asked)
        words = re.findall(r"with (--group-by .*)\.$", advice)[0].split()
        assert words == ([] if "none" in asked else asked) + by_map
        assert advice_of(lakes, *words) == []
        assert [line for line in legend_of(drawn[-1]) if "map_name=4x4 (2 runs)" in line]
    both = [*lakes, *make_runs(tmp_path / "cliff", {"environment": "CliffWalking-v1"})]
    assert advice_of(both) == []
    assert advice_of(both, "--group-by", "none") == [
        "Draw each by itself, or with --group-by environment --group-by map_name."
    ]


def test_rates_of_different_environments_are_warned_of(tmp_path, capsys):
    runs = make_runs(tmp_path, {}, {}, {"environment": "CliffWalking-v1"})
    status, out, err = run_command(capsys, "report", *map(str, runs))
    assert status == 0 and "speed-up" in out
    assert "different environments (CliffWalking-v1: 1, FrozenLake-v1: 2), so speed-up" in err
    assert run_command(capsys, "report", *map(str, runs[:2]))[2] == ""
    assert run_command(capsys, "report", str(runs[2]))[2] == ""


def test_a_run_that_does_not_tell_its_settings_is_drawn_with_a_warning(drawn, tmp_path, capsys):
    runs = make_runs(tmp_path, {}, {}, {}, {})
    assert plot(capsys, *runs)[1] == ""
    said = []
    for some in (runs[1:2], runs[2:3], runs[:1] + runs[3:]):
        for run in some:
            (run / "config.toml").unlink()
        out, err = plot(capsys, *runs)
        assert out == "plot.png: 4 runs, 80 reports\n"
        said.append(err)
    of_one, of_two, of_all = said
    assert of_one.startswith(
        f"Warning: {runs[1]} has no config.toml, so nobody knows whether it is of the same"
    )
    assert of_two.startswith(
        f"Warning: {runs[1]}, {runs[2]} have no config.toml, so nobody knows whether they"
    )
    assert of_one.count("\n") == of_two.count("\n") == 1
    assert of_all == ""  # where none tells, there is nothing that they could differ from


@pytest.mark.parametrize("command", ["plot", "report"])
def test_a_folder_without_records_is_left_out_with_a_warning(drawn, tmp_path, capsys, command):
    good = [hand_made.learning_run(tmp_path / name, reports=4) for name in ("a", "b")]
    failed = tmp_path / "failed"
    failed.mkdir()
    empty = hand_made.write(tmp_path / "empty", [])
    status, out, err = run_command(capsys, command, *map(str, [failed, *good, empty]))
    assert status == 0 and err.count("Warning: ") == 2
    assert f"Warning: {failed} is left out." in err and f"Warning: {empty} is left out." in err
    assert ("2 runs, 8 reports" in out) if command == "plot" else str(good[1]) in out
    status, _, err = run_command(capsys, command, str(failed))
    assert status == 2 and "metrics.jsonl cannot be read" in err
    status, _, err = run_command(capsys, command, str(failed), str(empty))
    assert status == 2 and "metrics.jsonl cannot be read" in err
    status, _, err = run_command(capsys, command, str(good[0]), str(tmp_path / "mistyped"))
    assert status == 2 and "mistyped" in err


@pytest.mark.parametrize("command", ["plot", "report"])
def test_broken_runs_in_a_folder_are_left_out_with_a_warning_each(drawn, tmp_path, capsys, command):
    cut, edited, without, *good = make_runs(tmp_path / "runs", {}, {}, {}, {}, {})
    (cut / "metrics.jsonl").write_text('{"kind": "prog\n')
    (edited / "config.toml").write_text("environment = [")
    (without / "config.toml").unlink()
    status, out, err = run_command(capsys, command, str(tmp_path / "runs"))
    broken = [(cut, "line 1: it is no JSON"), (without, "no config.toml")]
    broken += [(edited, "is no TOML")] if command == "plot" else []  # a report needs no settings
    assert status == 0 and err.count("Warning: ") == len(broken)
    for run, why in broken:
        (line,) = [line for line in err.splitlines() if line.startswith(f"Warning: {run} is left out. ")]
        assert why in line
    assert out == "plot.png: 2 runs, 40 reports\n" or all(str(run) in out for run in good)
    for run in good:
        (run / "config.toml").write_text("environment = [")
    status, _, err = run_command(capsys, "plot", str(tmp_path / "runs"))
    assert status == 2 and "line 1: it is no JSON" in err


def test_a_run_of_one_process_is_drawn_with_its_evaluations_and_the_best_policy(drawn, tmp_path, capsys):
    (run,) = make_runs(tmp_path, {})
    out, _ = plot(capsys, run, "--kind", "curves")
    assert out == f"{run / 'curves.png'}: 20 reports\n"
    assert titles_of(drawn[-1])[1] == "Return of the greedy policy"
    (best,) = [line for line in drawn[-1].axes[1].get_lines() if line.get_linestyle() == "--"]
    assert best.get_ydata()[0] == pytest.approx(0.74, abs=0.03)


def test_a_map_does_not_take_the_place_of_the_picture_of_the_run(tmp_path, capsys):
    run = tmp_path / "run"
    make_run(run, "FrozenLake-v1", TabularMDP.from_gymnasium("FrozenLake-v1").solve(0.99).q)
    run.joinpath("plot.png").write_text("kept")
    assert plot(capsys, run, "--kind", "maps")[0] == f"{run / 'map.png'}: the map of FrozenLake-v1\n"
    assert run.joinpath("plot.png").read_text() == "kept"
