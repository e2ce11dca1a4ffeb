"""The form of the suite of benchmarks, with candidates that measure nothing, and the page that it draws."""

import json
import math
import re
import shutil
from pathlib import Path

import gymnasium
import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def on_path(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


def test_candidates_take_turns_and_rounds_give_medians_and_spreads():
    from suite.form import measure

    calls = []

    def candidate(name, steps):
        def run(number):
            calls.append((name, number))
            return steps, 0.5 + 0.25 * max(number, 0)

        return run

    candidates = {"ours": candidate("ours", 600.0), "other": candidate("other", 6.0)}
    row = measure("learning", "Taxi", "steps/s", candidates, rounds=3)
    assert calls == [(name, number) for number in (-1, 0, 1, 2) for name in ("ours", "other")]
    assert row["figures"]["ours"] == {"median": 800.0, "lowest": 600.0, "highest": 1200.0, "rounds": 3}
    # Seconds for one thing done, of which less is better.
    row = measure("planning", "Taxi", "s", candidates, rounds=1, warm_up=0)
    assert math.isclose(row["figures"]["other"]["median"], 0.5 / 6.0)


def test_the_table_says_how_many_times_as_fast_ours_is():
    from suite import page

    def row(unit, ours, other):
        figures = {"ours": ours, "other": other}
        figures = {name: {"median": m, "lowest": m / 2, "highest": 2 * m} for name, m in figures.items()}
        return {"unit": unit, "figures": figures, "left_out": {}}

    assert "| other | 2,000 | 1,000 to 4,000 | 0.5 |" in page.table_of(row("steps/s", 1_000.0, 2_000.0))
    assert "| other | 3 | 1.5 to 6 | 6 |" in page.table_of(row("s", 0.5, 3.0))
    assert [page.number(value) for value in (0.012345, 99.94, 1_234_567.0)] == ["0.0123", "99.9", "1,230,000"]


def test_a_candidate_that_cannot_take_part_is_named_and_the_others_go_on():
    from suite import page
    from suite.form import LeftOutError, measure

    def fails(number):
        if number == 1:
            raise LeftOutError("it ended | with status 9")
        return 1.0, 1.0

    row = measure("learning", "Taxi", "steps/s", {"ours": lambda _: (8.0, 2.0), "peer": fails}, rounds=3)
    assert set(row["figures"]) == {"ours"} and row["left_out"] == {"peer": "it ended | with status 9"}
    assert "| peer | left out: it ended / with status 9 | | |" in page.table_of(row)


def test_runs_grow_until_they_take_their_time():
    from suite.form import Sized

    asked = []

    def run(steps):
        asked.append(steps)
        return steps * 1e-6

    sized = Sized(run, seconds=0.3, first=1_000)
    steps, seconds = sized(-1)
    assert abs(steps - 300_000) <= 1 and math.isclose(seconds, 0.3, rel_tol=1e-4)
    before = len(asked)
    assert sized(0)[0] == steps and len(asked) == before + 1
    # A first run that is long enough is brought to the length, too.
    assert abs(Sized(run, seconds=0.3, first=200_000)(-1)[0] - 300_000) <= 1


def test_a_peer_that_is_not_there_or_ends_is_left_out_and_its_last_words_are_told(tmp_path):
    from suite.form import LeftOutError
    from suite.peers import Peers

    with Peers({"mushroom-rl": "it does not install: no network"}) as peers:
        with pytest.raises(LeftOutError, match="no network"):
            peers.ask("mushroom", steps=1)
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\nread line\necho '{\"seconds\": 2.5}'\nread line\nexit 7\n")
    script.chmod(0o700)
    with Peers({}, script) as peers:
        assert peers.ask("envpool", steps=1) == {"seconds": 2.5}
        with pytest.raises(LeftOutError, match="status 7"):
            peers.ask("envpool", steps=1)


def test_arguments_choose_cases_and_wrong_ones_are_refused(capsys):
    from suite.options import CASES, RESULTS, parse

    everything = parse([])
    assert len(everything.only) == sum(map(len, CASES.values())) and everything.output == RESULTS
    chosen = parse(["--only", "policy", "learning/Taxi"])
    assert chosen.only == ["learning/Taxi", "policy/FrozenLake 8x8", "policy/Taxi"] and chosen.output is None
    for wrong, why in ((["--only", "Tax"], "there is no 'Tax'"), (["--merge"], "--merge goes with --only")):
        with pytest.raises(SystemExit) as ended:
            parse(wrong)
        assert ended.value.code == 2 and why in capsys.readouterr().err
    assert parse(["--only", "policy", "--merge"]).output == RESULTS


@pytest.mark.parametrize(
    ("has_script", "has_card", "why"),
    [(False, False, "nothing of this package runs"), (True, False, "no graphics card"), (True, True, None)],
)
def test_a_card_is_measured_where_there_is_one_and_a_script_for_it(
    tmp_path, monkeypatch, capsys, has_script, has_card, why
):
    from suite import options

    script = tmp_path / "card.py"
    if has_script:
        script.write_text('"""What a card does."""')
    monkeypatch.setattr(options, "CARD", script)
    monkeypatch.setattr(options.shutil, "which", lambda name: "/usr/bin/nvidia-smi" if has_card else None)
    if why is None:
        assert options.parse(["--card"]).card
        return
    if has_script and Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has a card")
    with pytest.raises(SystemExit) as ended:
        options.parse(["--card"])
    assert ended.value.code == 2 and why in capsys.readouterr().err


def test_scripts_run_by_name_and_their_figures_go_where_the_others_are(capsys):
    from suite.options import parse, script_command, scripts

    found = scripts()
    assert found["fused_loop"].startswith("The package's training loop") and "common" not in found
    command = script_command("fused_loop", ["--rounds", "3"])
    assert command[0].endswith("benchmarks/fused_loop.py") and command[1:3] == ["--rounds", "3"]
    assert command[3] == "--output" and command[4].endswith("benchmarks/results/fused_loop.json")
    assert script_command("fused_loop", ["--output=here.json"])[1:] == ["--output=here.json"]
    with pytest.raises(SystemExit):
        parse(["--list"])
    listed = capsys.readouterr().out
    assert "learning/Taxi\n" in listed and all(f"  {name} " in listed for name in found)
    for path in (ROOT / "benchmarks" / f"{name}.py" for name in found):
        assert "common.parser(" in path.read_text(), f"{path} does not take --output as the others do"


def test_what_is_measured_again_takes_the_place_of_what_was_before():
    from suite.__main__ import in_order

    def row(subject, case, value):
        return {"subject": subject, "case": case, "value": value}

    kept = [row("policy", "Taxi", 1), row("learning", "Taxi", 2), row("learning", "no longer there", 3)]
    assert in_order([*kept, row("learning", "Taxi", 4)]) == [
        row("learning", "Taxi", 4),
        row("policy", "Taxi", 1),
    ]


def test_a_table_of_its_own_has_its_headers_and_what_was_left_out():
    from suite import page
    from suite.form import table_row

    left_out = {"sharded": "no | memory"}
    row = table_row("scaling", "small", ["ranks", "rate", "note"], [[2, 1234.5, None]], left_out)
    lines = page.table_of(row).splitlines()
    assert lines[0] == "| ranks | rate | note |" and lines[2] == "| 2 | 1,230 |  |"
    assert lines[3] == "| sharded | left out: no / memory | |"


def test_aims_are_counted_and_the_largest_gap_of_each_part_is_named():
    from suite import gaps

    def row(subject, case, unit, **figures):
        return {
            "subject": subject,
            "case": case,
            "unit": unit,
            "figures": {name: {"median": value} for name, value in figures.items()},
        }

    rows = [
        row("c", "Taxi", "steps/s", ours=30.0, C=20.0),
        row("c", "CliffWalking", "steps/s", ours=18.0, C=20.0),
        row(
            "startup",
            "1 process",
            "s",
            **{"ours, until the first step": 3.0, "bare imports, and exit": 2.0},
        ),
        row("planning", "Taxi", "s", ours=1.0, **{"ours, too": 2.0, "peer": 4.0, "slow peer": 9.0}),
        {
            "subject": "server",
            "case": "small",
            "figures": {"push: maps": {"ours": {"median": 1.0}, "C": {"median": 4.0}}},
        },
    ]
    found = gaps.largest_gaps(rows)
    assert found["kernel"][1] == (0.9, "CliffWalking") and found["solver"][1] == (4.0, "Taxi")
    assert found["push"][1] == (0.25, "small") and "apply" not in found and "stepping" not in found
    text = gaps.tables(rows)
    assert "| as fast as C | 1 of 2 cases | 0.90 | CliffWalking |" in text
    assert "| start-up under 1.3 of bare imports | 0 of 1 cases | 1.50 | 1 process |" in text


def test_what_ranks_told_is_found_before_what_sets_a_terminal_right():
    import common

    assert common.last_told('noise\n{"a": 1}\n{"a": 2}\n\x1b[0m\x1b[0m') == {"a": 2}


def test_engines_whose_copies_need_too_much_memory_are_left_out_with_the_numbers():
    from suite.form import FULL, QUICK
    from suite.options import CASES
    from suite.scaling import ENGINES, STATES, engines_for

    assert engines_for("256 entries", 32) == (list(ENGINES), {})
    assert engines_for("100,000,000 entries", 1) == (["sharded"], {})
    engines, left_out = engines_for("100,000,000 entries", 2)
    assert engines == ["sharded"] and set(left_out) == {"server", "rounds"}
    assert "2 ranks would need 40 GB" in left_out["server"]
    assert set(CASES["scaling"]) == set(STATES) == set(QUICK.ranks) == set(FULL.ranks)
    assert max(FULL.ranks["256 entries"]) == 32 and FULL.seeds >= 10


def test_what_a_death_costs_is_read_from_what_processes_wrote():
    from suite import failure

    progress = [{"time": 0.1 * k, "steps": 10 * k, "pid": 1} for k in range(11)]
    before, after = failure._halves(progress, 0.55)
    assert len(before) == 6 and after[0]["steps"] == 60
    assert math.isclose(failure._mean_rate(before), 100.0)
    rates = failure._rates(progress, 0.5)
    assert all(math.isclose(rate, 100.0) for _, rate in rates) and rates[0][0] < 0.0 < rates[-1][0]
    assert math.isnan(failure._mean_rate(before[:1]))


def test_plots_place_points_by_their_axes_and_have_no_color_of_their_own_for_the_page():
    import xml.etree.ElementTree as ElementTree

    from suite import plots

    x = plots.Axis([1.0, 100.0], True, 0.0, 200.0)
    assert [x.at(value) for value in (1.0, 10.0, 100.0)] == [0.0, 100.0, 200.0]
    y = plots.Axis([2.0, 10.0], False, 100.0, 0.0)
    assert [y.at(value) for value in (0.0, 5.0, 10.0)] == [100.0, 50.0, 0.0] and 0.0 in y.ticks()
    lines = {"a < b": [[1, 2.0, 1.0, 3.0], [10, None], [100, 4.0, 2.0, 8.0]], "nothing": [[1, None]]}
    text = plots.svg({"x": "steps", "y": "error", "log_x": True, "log_y": True, "lines": lines}, "title")
    tree = ElementTree.fromstring(text)
    name = "{http://www.w3.org/2000/svg}"
    assert len(tree.findall(f"{name}circle")) == 2 and "a < b" in [t.text for t in tree.iter(f"{name}text")]
    # A gray that has a contrast of 3.5 and more with white and with the dark page.
    assert {each.get("fill") for each in tree.iter(f"{name}text")} == {plots.INK} and 'fill="#fff' not in text


def test_a_dump_of_valgrind_is_read_by_the_name_of_its_part():
    from suite import valgrind

    dump = (
        "version: 1\ndesc: Trigger: Client Request: learn x2\nevents: Ir Dr DLmr\n"
        "fn=(1)\n0 5 5 1\nsummary: 120 40 3\n"
    )
    assert valgrind.read(dump) == {"learn x2": {"Ir": 120, "Dr": 40, "DLmr": 3}}
    assert valgrind.read(dump.replace("Client Request: learn x2", "Program termination")) == {}
    ran = []
    valgrind.Parts().part("outside of valgrind", lambda: ran.append(1))
    assert ran == [1]


def test_what_is_done_with_maps_in_c_is_what_the_package_does(tmp_path):
    from suite import server
    from suite.twins import Twins

    if shutil.which("gcc") is None:
        pytest.skip("there is no gcc on this machine")
    twins = Twins(str(tmp_path), server.ACTIONS, "-ffp-contract=off")
    for entries, pushed in ((256, 256), (4_000, 1_000)):
        ours, twin = server.Maps(entries, pushed), server.Maps(entries, pushed)
        in_c = twin.in_c(twins)
        for _ in range(2):  # the second time others have visited all
            ours.apply()
            in_c["apply"]()
        np.testing.assert_allclose(ours.shared.values, twin.shared.values, rtol=1e-15)
        assert (ours.shared.counts == twin.shared.counts).all() and ours.shared.counts.max() > 0
        ours.rebase()
        in_c["rebase"]()
        for name in ("q", "best", "greedy", "visits"):
            assert (getattr(ours.table, name) == getattr(twin.table, name)).all(), name
        for maps, pack in ((ours, ours.table.pack), (twin, in_c["pack"])):
            maps.touch()
            pack()
        for name in ("weight", "shift", "updates", "visits"):
            assert (getattr(ours.table, name) == getattr(twin.table, name)).all(), name


def test_workers_that_are_averaged_or_added_up_start_from_one_table():
    from suite.curves import PUSH_STEPS, Team

    tables = {}
    for way in ("maps", "averaging", "summing"):
        team = Team("FrozenLake 8x8", 2, way, seed=3)
        team.learn(2 * PUSH_STEPS)
        assert team.server.counts.sum() == 2 * PUSH_STEPS
        tables[way] = team.server.values.copy()
        if way == "averaging":
            own = [learner.table.q for learner in team.learners]
    np.testing.assert_allclose(tables["averaging"], np.mean(own, axis=0))
    np.testing.assert_allclose(tables["summing"], np.sum(own, axis=0))  # from 0


class OneStep(gymnasium.Env):
    """An episode is one step from state 0 to state 1, and pays the action."""

    observation_space = gymnasium.spaces.Discrete(2)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, is_truncated):
        self._is_truncated = is_truncated

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {}

    def step(self, action):
        return 1, float(action), not self._is_truncated, self._is_truncated, {}


@pytest.mark.parametrize(("is_truncated", "value"), [(False, 1.0), (True, 1.0 + 0.99 * 50.0)])
def test_the_loops_of_tutorials_ask_for_the_last_value_only_where_the_time_was_up(is_truncated, value):
    from suite import plain

    loop, vector = plain.PlainLoop(OneStep(is_truncated)), plain.VectorLoop(lambda: OneStep(is_truncated), 2)
    for q in (loop.q, vector.q):
        q[1] = np.full(2, 50.0)
    assert loop.learn(2_000) > 0.0 and vector.learn(4_000) > 0.0
    vector.close()
    for q in (loop.q, vector.q):
        assert math.isclose(q[0][1], value, rel_tol=1e-6) and list(q[1]) == [50.0, 50.0]
    assert vector.episodes == 4_000


def test_the_pages_are_what_the_results_make():
    from suite import page
    from suite.options import CASES, RESULTS

    data = json.loads(RESULTS.read_text())
    for path, text in page.drawn().items():
        assert path.read_text() == text, f"{path} is not what the results make: run python -m suite.page"
    assert {row["subject"] for row in data["results"]} <= set(CASES) == set(page.SUBJECTS)
    faster = json.loads(RESULTS.read_text())
    row = next(row for row in faster["results"] if "figures" in row and "table" not in row)
    row["figures"][next(iter(row["figures"]))]["median"] *= 3.0
    assert page.page_of(faster) != page.page_of(data)
    assert re.search(r"^# Benchmarks$", page.page_of(data), re.MULTILINE)
    for name in re.findall(r"figures/benchmarks/([^)]+)", page.page_of(data)):
        assert (page.FIGURES / name).exists()
