"""The form of the suite of benchmarks, with candidates that measure nothing, and the page that it draws."""

import json
import math
import re
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
    assert "| peer | left out | it ended / with status 9 | |" in page.table_of(row)


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
    for wrong, why in ((["--card"], "graphics cards"), (["--only", "Tax"], "there is no 'Tax'")):
        with pytest.raises(SystemExit) as ended:
            parse(wrong)
        assert ended.value.code == 2 and why in capsys.readouterr().err


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


def test_the_page_is_what_the_results_make():
    from suite import page
    from suite.options import CASES, RESULTS

    data = json.loads(RESULTS.read_text())
    assert page.PAGE.read_text() == page.page_of(data)
    assert {row["subject"] for row in data["results"]} <= set(CASES) == set(page.SUBJECTS)
    faster = json.loads(RESULTS.read_text())
    first = faster["results"][0]["figures"][next(iter(faster["results"][0]["figures"]))]
    first["median"] *= 3.0
    assert page.page_of(faster) != page.page_of(data)
    assert re.search(r"^# Benchmarks$", page.page_of(data), re.MULTILINE)
