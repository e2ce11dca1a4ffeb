"""Studies whose runs numba's CUDA simulator makes; run as a program, NUMBA_ENABLE_CUDASIM=1 set before.

The first argument is a folder.
"""

import json
import logging
import sys
from pathlib import Path
from typing import NamedTuple

import numba
import numpy as np

from dist_classicrl import DistAsyncQLearning, Study, Sweep, TabularMDP
from dist_classicrl.cli.main import main
from dist_classicrl.environments import trial as trying
from dist_classicrl.environments.resolve import resolve
from dist_classicrl.environments.simulate import CompiledSimulator
from dist_classicrl.learning.card import runs as card_runs
from dist_classicrl.learning.card.cards import cards
from dist_classicrl.learning.card.runs import CardRuns
from dist_classicrl.schedules import Exponential, Linear, PerVisit
from dist_classicrl.settings import Settings
from dist_classicrl.sweep import SuccessiveHalving
from dist_classicrl.sweep.folder import Member, StudyFolder
from dist_classicrl.sweep.kept.records import is_record
from dist_classicrl.sweep.trial import Laboratory

MODEL = TabularMDP.garnet(6, 2, 2, seed=1)
VARY = {"learning_rate": [0.1, PerVisit(0.7)], "discount_factor": [0.8, 0.9]}
FOLDER = Path(sys.argv[1]) if __name__ == "__main__" else Path()


class Launches:
    """Notes how many runs were asked for at once while it is entered, and which were made alone."""

    def __enter__(self):
        self.sizes, self.alone = [], []
        self._learn, self._run = CardRuns.learn, Laboratory.run

        def learn(card_runs, runs, ends):
            self.sizes.append(len(runs))
            return self._learn(card_runs, runs, ends)

        def run(laboratory, trial):
            self.alone.append(trial.number)
            return self._run(laboratory, trial)

        CardRuns.learn, Laboratory.run = learn, run
        return self

    def __exit__(self, *_):
        CardRuns.learn, Laboratory.run = self._learn, self._run


def study(name, device, env=MODEL, processes=1, **changes):
    settings = {"device": device, **changes.pop("settings", {})}
    given = {"total_steps": 400, "seeds": 5, "vary": VARY, "points": 3, "eval_episodes": 5}
    sweep = Sweep(env, folder=FOLDER / f"{name}-{device}", settings=settings, **{**given, **changes})
    return sweep.run(processes)


def tables(made):
    return [(made.folder / name).read_bytes() for name in ("results.csv", "curves.csv")]


def records(made):
    return list(StudyFolder(made.folder).records().values())


def slices_make_the_tables_of_a_core():
    """Runs of several settings, cut anywhere; also where rates bend, and more runs than a block has."""
    both = [
        Settings(learning_rate=Linear(0.5, 0.1, fraction=0.3), epsilon=Exponential(1.0, 0.1, fraction=0.8)),
        Settings(learning_rate=0.2, discount_factor=0.7, initial_value=2.0),
    ]
    asked = [(both[seed % 2], seed) for seed in range(5)]
    before = card_runs._FIRST_SLICE, card_runs._THREADS
    card_runs._FIRST_SLICE, card_runs._THREADS = 70, 2
    (made,) = CardRuns(resolve(MODEL, 1, None), cards()[0]).learn(asked, [100, 150, 333])
    card_runs._FIRST_SLICE, card_runs._THREADS = before
    for run, (settings, seed) in enumerate(asked):
        agent = DistAsyncQLearning(**{**settings.arguments(), "seed": seed})
        result = agent.train(env=MODEL, total_steps=333)
        assert np.array_equal(made.q_table(run), agent.q_table), run
        assert np.array_equal(made.visits(run), agent.visits), run
        assert made.totals[-1, run, 0] == result.episodes
        assert made.totals[-1, run, 1] / result.episodes == result.mean_return


def a_study_on_a_card_is_that_of_a_core():
    on_cores = study("whole", "cpu")
    with Launches() as launches:
        on_card = study("whole", "cuda")
    assert launches.sizes == [10, 10] and launches.alone == []
    assert tables(on_card) == tables(on_cores)
    assert {record["device"] for record in records(on_cores)} == {"cpu"}
    assert {record["device"] for record in records(on_card)} == {"cuda"}
    assert all(is_record(json.loads(json.dumps(record))) for record in records(on_card))
    assert on_card.scores() == on_cores.scores() and on_card.done == 20


def a_study_that_is_interrupted_goes_on_with_the_runs_that_are_left():
    keep, kept = Member.keep, []

    def interrupted(member, record):
        if len(kept) == 13:
            raise KeyboardInterrupt
        kept.append(record)
        keep(member, record)

    Member.keep = interrupted
    try:
        study("interrupted", "cuda")
    except KeyboardInterrupt:
        pass
    else:
        raise AssertionError("was not interrupted")
    finally:
        Member.keep = keep
    with Launches() as launches:
        again = study("interrupted", "cuda")
    assert launches.sizes == [7]
    assert tables(again) == tables(Study(FOLDER / "whole-cpu"))


class Rare(NamedTuple):
    """A game whose reward is now and then another one."""

    reward: float


@numba.njit
def reset(data, memory, random):
    return 0


@numba.njit
def step(data, memory, state, action, random):
    is_rare = (random >> np.uint64(20)) % np.uint64(1024) == np.uint64(0)
    return (state + action) % 3, data.reward if is_rare else 1.0, state == 2


def runs_that_fail_fail_alone_with_the_words_of_a_core():
    trying.TRIAL_STEPS = 0  # else the game is found out before
    for name, reward, word in (("nan", np.nan, "RewardError"), ("huge", 1e308, "DivergenceError")):
        game = CompiledSimulator.game("rare", 3, 2, Rare(reward), reset, step, max_episode_steps=20)
        vary = {"learning_rate": [0.1]}
        on_cores, on_card = (study(name, device, game, seeds=8, vary=vary) for device in ("cpu", "cuda"))
        assert 0 < on_card.failed < 8, on_card
        assert all(row["error"] is None or row["error"].startswith(word) for row in on_card.rows())
        assert tables(on_card) == tables(on_cores)
        (FOLDER / f"{name}-cuda" / "results.csv").unlink()
        with Launches() as launches:
            sweep = Sweep(
                game, 400, 8, {"device": "cuda"}, vary, points=3, eval_episodes=5, folder=on_card.folder
            )
            again = sweep.run(1, retry_failed=True)
        assert launches.sizes == [on_card.failed] and tables(again) == tables(on_cores)


def runs_that_have_no_room_at_once_are_made_in_several_launches():
    real, rooms = card_runs.free_memory, []
    made = CardRuns._made

    def noted(self, groups, numbers, seeds, ends):
        rooms.append(len(seeds))
        return made(self, groups, numbers, seeds, ends)

    CardRuns._made = noted
    try:
        vary = {"discount_factor": [0.8, 0.9], "learning_rate": [0.1]}
        card_runs.free_memory = lambda card: 10_000
        assert tables(study("room", "cuda", vary=vary)) == tables(study("room", "cpu", vary=vary))
    finally:
        card_runs.free_memory, CardRuns._made = real, made
    assert sum(rooms) == 10 and 1 < max(rooms) < 10, rooms


def what_cannot_be_made_at_once_is_made_one_after_the_other(heard):
    with Launches() as launches:
        made = study("float32", "cuda", total_steps=20, vary=None, seeds=2, settings={"dtype": "float32"})
    assert launches.sizes == [] and launches.alone == [0, 1] and made.done == 2
    assert {record["device"] for record in records(made)} == {"cuda"}
    assert any("one after the other" in line and "float32" in line for line in heard)
    with Launches() as launches:
        made = study("replay", "cuda", vary=None, seeds=2, settings={"replay_ratio": 1.0})
    assert launches.alone == [0, 1] and made.failed == 2
    assert made.rows()[0]["error"].startswith('DeviceError: device="cuda" cannot be had')


def early_stopping_and_helper_processes_know_it():
    stopping = SuccessiveHalving(factor=2, rungs=2)
    on_cores, on_card = (study("halved", device, early_stopping=stopping) for device in ("cpu", "cuda"))
    assert tables(on_card) == tables(on_cores)
    vary = {"device": ["cpu", "cuda"], "learning_rate": [0.1, PerVisit(0.7)]}
    given = {"total_steps": 400, "seeds": 5, "points": 3, "eval_episodes": 5}
    mixed = Sweep(MODEL, vary=vary, folder=FOLDER / "mixed", **given).run(3)
    rows = mixed.rows()
    assert mixed.done == 20
    for one, other in zip(rows[:10], rows[10:], strict=True):
        assert one["training_return"] == other["training_return"]
    makers = {maker for maker, record in StudyFolder(mixed.folder).news() if record["device"] == "cuda"}
    assert len(makers) == 1


def the_command_makes_such_a_study():
    file = FOLDER / "lake.toml"
    lines = ['environment = "FrozenLake-v1"', "total_steps = 300", "seeds = 3", "points = 3"]
    file.write_text("\n".join([*lines, "[settings]", 'device = "cuda"']))
    with Launches() as launches:
        assert main(["sweep", str(file), "--out", str(FOLDER / "lake"), "--quiet"]) in (0, None)
    assert launches.sizes == [3] and Study(FOLDER / "lake").done == 3


class _Heard(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


if __name__ == "__main__":
    handler = _Heard()
    logging.getLogger("dist_classicrl").addHandler(handler)
    logging.getLogger("dist_classicrl").setLevel(logging.INFO)
    slices_make_the_tables_of_a_core()
    a_study_on_a_card_is_that_of_a_core()
    a_study_that_is_interrupted_goes_on_with_the_runs_that_are_left()
    runs_that_have_no_room_at_once_are_made_in_several_launches()
    what_cannot_be_made_at_once_is_made_one_after_the_other(handler.lines)
    early_stopping_and_helper_processes_know_it()
    the_command_makes_such_a_study()
    runs_that_fail_fail_alone_with_the_words_of_a_core()
    print("all is well")
