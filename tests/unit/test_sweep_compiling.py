"""What the runs of a study need is compiled once on each host, before the first of them."""

import gc
import threading

from dist_classicrl import Sweep, TabularMDP
from dist_classicrl.schedules import PerVisit
from dist_classicrl.settings import Settings
from dist_classicrl.sweep.hosts import compiling
from dist_classicrl.sweep.hosts.compiling import kind_of, once_on_each_host
from dist_classicrl.sweep.trial import Laboratory

SECONDS = 30.0


def test_one_process_compiles_and_then_all_others_at_once(tmp_path):
    """A lock belongs to an open file, so that threads are to it what processes are."""
    begun, may_end, order = threading.Event(), threading.Event(), []

    def first():
        begun.set()
        assert may_end.wait(SECONDS)
        order.append("first")

    meeting = threading.Barrier(2, timeout=SECONDS)

    def other():
        meeting.wait()  # both are in here at the same time
        order.append("other")

    threads = [threading.Thread(target=once_on_each_host, args=(tmp_path, first))]
    threads[0].start()
    assert begun.wait(SECONDS)
    threads += [threading.Thread(target=once_on_each_host, args=(tmp_path, other)) for _ in range(2)]
    for thread in threads[1:]:
        thread.start()
    threads[1].join(0.3)
    assert order == []
    may_end.set()
    for thread in threads:
        thread.join(SECONDS)
    assert order == ["first", "other", "other"]


def test_who_compiles_too_long_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(compiling, "_MOST_SECONDS", 0.1)
    done = []

    def first():
        once_on_each_host(tmp_path, lambda: done.append("other"))
        done.append("first")

    once_on_each_host(tmp_path, first)
    assert done == ["other", "first"]


def test_where_no_file_can_be_made_each_compiles_by_itself(tmp_path):
    done = []
    once_on_each_host(tmp_path / "nothing", lambda: done.append(1))
    assert done == [1]


def test_numbers_of_settings_make_no_other_kind_and_schedules_and_rules_do():
    plain = kind_of(Settings(learning_rate=0.1, discount_factor=0.9))
    assert kind_of(Settings(learning_rate=0.2, discount_factor=0.8)) == plain
    others = [
        {"learning_rate": PerVisit(0.7)},
        {"algorithm": "sarsa"},
        {"behavior": "ucb"},
        {"dtype": "float32"},
        {"replay_ratio": 1.0},
    ]
    kinds = {kind_of(Settings(**{"learning_rate": 0.1, **each})) for each in others}
    assert len(kinds | {plain}) == 6


def test_a_tiny_run_of_each_kind_that_is_left_comes_before_all_others(tmp_path, monkeypatch):
    asked, real = [], Laboratory._trained

    def trained(self, trial, eval_episodes=None):
        asked.append((trial.variant, trial.total_steps, eval_episodes))
        return real(self, trial, eval_episodes)

    monkeypatch.setattr(Laboratory, "_trained", trained)
    garnet = TabularMDP.garnet(n_states=20, n_actions=3, branching=3, seed=1)
    vary = {"learning_rate": [0.1, PerVisit(0.7)], "discount_factor": [0.8, 0.9]}
    given = {"seeds": 3, "vary": vary, "points": 4, "eval_episodes": 5, "folder": tmp_path}
    sweep = Sweep(garnet, 2_000, **given)
    study = sweep.run(1)
    assert asked[:2] == [(0, 4, 1), (2, 4, 1)] and len(asked) == 2 + 12
    assert all(each[1:] == (2_000, None) for each in asked[2:]) and study.done == 12
    assert gc.get_freeze_count() == 0  # what a sweep spares the collector, it gives back
    del asked[:]
    Sweep(garnet, 2_000, **given).run(1)
    assert asked == []
