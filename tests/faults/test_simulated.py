"""Random histories of deaths, hangs and cuts over the protocol; `simulated` runs them by the thousand."""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import simulated
import simulated_calls
import simulated_rows
import simulated_saves
from simulated_network import Killed, Plan
from simulated_saves import AGAIN, Event

from dist_classicrl import settings
from dist_classicrl.agent import beginning
from dist_classicrl.comm.envelope import Kind
from dist_classicrl.engines import schedule
from dist_classicrl.engines.decentralized.messages import RoundsBegin
from dist_classicrl.engines.outcome import Tally
from dist_classicrl.engines.progress import Observer
from dist_classicrl.engines.roles.participants import Participant
from dist_classicrl.engines.rounds.messages import RoundOrder
from dist_classicrl.engines.run import LossPolicy
from dist_classicrl.engines.supersteps import training as superstep_training
from dist_classicrl.engines.supersteps.divided_server import DividedServer
from dist_classicrl.engines.supersteps.part import Part
from dist_classicrl.engines.supersteps.rows_server import RowsServer
from dist_classicrl.engines.supersteps.server import SuperstepServer
from dist_classicrl.membership.group import Timing
from dist_classicrl.process.stop import Stop


@pytest.mark.parametrize("seeds", ["known", "fresh"])
@pytest.mark.parametrize(
    ("name", "histories"),
    [
        pytest.param("elections", 10, marks=pytest.mark.core),
        ("calls", 50),
        ("rounds", 30),
        ("ends", 20),
        ("round-ends", 10),
        ("cuts", 30),
        ("takeovers", 20),
        ("trees", 15),
        ("decentralized", 15),
        ("supersteps", 8),
        ("rows", 10),
        ("divided", 10),
        ("same-rows", 20),
        ("saves", 5),
        ("saved-trees", 2),
        ("saved-decentralized", 2),
        ("saved-supersteps", 2),
        ("saved-rows", 2),
        ("saved-divided", 1),
    ],
)
def test_whatever_happens_to_ranks_and_network_no_rule_is_broken(name, histories, seeds):
    first = random.SystemRandom().randrange(10**9) if seeds == "fresh" else 1
    seed, wrong, _ = simulated.check_seeds(name, range(first, first + histories))
    assert not wrong, f"python tests/faults/simulated.py --kinds {name} --tell {seed}: " + "; ".join(wrong)


@pytest.mark.core
@pytest.mark.parametrize(
    ("name", "seed"),
    [
        # A coordinator counted the promises of ranks that were dead by MPI's word since, beyond a cut.
        ("cuts", 795382133),
        # Who had held the vote was cut off before it named the server, and served alone beside another one.
        ("takeovers", 7),
        ("takeovers", 14),
        # One that had voted for it, and was to join it, was cut off: those who were left were too few.
        ("takeovers", 99015),
        # Rounds of one step over a slow network, which took long and were no hang.
        ("decentralized", 739165768),
        # Who coordinated was lost before the others knew how far the run was.
        ("decentralized", 677811556),
        # A rank that had served before reported steps before it had begun to serve again.
        ("calls", 677811685),
    ],
)
def test_what_was_wrong_once_is_right(name, seed):
    assert not simulated.check_seeds(name, [seed])[1]


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        # A rank that was away came back while the others stopped, and was waited for without being told to.
        ("rows", 22),
        # A host came back while the others were told the rows of the checkpoint, and was not told them.
        ("rows", 1169),
        # A worker that answered so often that it said nothing else was taken for stuck.
        ("rows", 100617),
        # A server that was away and made all steps alone found at the very end that another one saves.
        ("rows", 126),
        # Ranks that a death had met in the setup, some before and some after the table was divided.
        ("divided", 515),
        # A rank that was let in had not come to have rows of its host.
        ("divided", 3205),
    ],
)
def test_what_was_wrong_once_of_rows_is_right(name, seed):
    assert not simulated.check_seeds(name, [seed])[1]


def test_walkers_that_were_sent_before_a_loss_are_not_taken_for_others_after_it():
    assert not simulated.check_seeds("supersteps", [5061])[1]


@pytest.mark.core
@pytest.mark.parametrize("seed", [2043, 2297])
def test_a_rank_that_composes_gets_another_route_before_its_last_push_has_come(seed):
    """As one that learns, with new leases (2043), or to compose again (2297)."""
    _, wrong, _ = simulated.check_seeds("trees", [seed])
    assert not wrong, "; ".join(wrong)


@pytest.mark.core
@pytest.mark.parametrize("policy", [LossPolicy("abort"), LossPolicy(min_workers=1)])
def test_the_last_worker_that_takes_over_does_not_go_on_alone_against_the_policy(policy, monkeypatch):
    def plan(network, *_):
        network.ranks[0].plan = Plan(Kind.REPLY, 5, after_sending=True)

    monkeypatch.setattr(simulated_calls, "plan_faults", plan)
    ends = set()
    for seed in range(1, 60):
        history = simulated_calls.Calls(seed)
        if history.network.size == 2 and history.network.conditions.has_word:
            history.policy = policy
            history.check()
            ends.add(tuple(history.ends()))
    assert ("killed", "RankLostError") in ends
    assert ("killed", "done") not in ends


@pytest.mark.core
def test_what_histories_change_in_the_schedule_of_rounds_is_put_back():
    assert not simulated.check_seeds("rounds", [1])[1]
    assert schedule.ROUND_UPDATES == settings.ROUND_UPDATES and schedule.MOVING_LOAD < 1.0


@pytest.mark.core
def test_a_seed_gives_the_same_history_every_time():
    def logged():
        history = simulated.HISTORIES["calls"](5, log=True)
        history.check()
        return history.network.log

    assert logged() == logged()


@pytest.mark.parametrize(("name", "kind", "count"), [("calls", Kind.REPLY, 9), ("rounds", Kind.MERGED, 3)])
def test_whoever_takes_over_knows_the_steps_that_an_earlier_job_has_made(name, kind, count, monkeypatch):
    check_with_a_dying_server(monkeypatch, name, kind, count, "take_over")


@pytest.mark.parametrize("name", ["calls", "rounds"])
def test_whoever_takes_over_at_the_end_counts_earlier_steps_once(name, monkeypatch):
    check_with_a_dying_server(monkeypatch, name, Kind.DONE, 1, "end_as")


@pytest.mark.core
@pytest.mark.parametrize(
    ("name", "kind", "where"), [("rounds", RoundOrder, "start"), ("decentralized", RoundsBegin, "cut")]
)
def test_with_each_table_that_a_server_tells_comes_what_was_counted(name, kind, where, monkeypatch):
    """Whoever takes over may have counted as a server before, what the table that it goes on from lacks."""
    tallies, make = [], kind.__init__

    def note(told, *arguments, **named):
        make(told, *arguments, **named)
        tallies.append(getattr(told, where).tally)

    monkeypatch.setattr(kind, "__init__", note)
    simulated.check_seeds(name, range(1, 4))
    assert tallies and None not in tallies


def check_with_a_dying_server(monkeypatch, name, kind, count, taken):
    """Let rank 0 die after its `count`-th message of a kind; another goes on by that method of `Tally`."""
    earlier, method = [], getattr(Tally, taken)

    def note(tally, *arguments):
        earlier.append(tally.earlier_steps)
        method(tally, *arguments)

    def plan(network, *_):
        network.ranks[0].plan = Plan(kind, count, after_sending=True)

    monkeypatch.setattr(Tally, taken, note)
    monkeypatch.setattr(simulated_calls, "plan_faults", plan)
    seed, wrong, _ = simulated.check_seeds(name, range(1, 31))
    assert not wrong, f"seed {seed}: " + "; ".join(wrong)
    assert any(earlier), "no run that had been resumed was taken over"


@pytest.mark.core
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("calls", Kind.REPLY),
        ("rounds", Kind.MERGED),
        ("trees", Kind.REPLY),
        ("decentralized", Kind.ROUNDS_PLAY),
    ],
)
def test_who_is_elected_and_dies_before_it_serves_leaves_no_loss_untold(name, kind, monkeypatch):
    """All know by then that it was elected, and by a view without the rank that served before."""

    def plan(network, *_):
        network.hosts[:] = [0] * network.size
        network.conditions.has_word = True
        network.ranks[0].plan = Plan(kind, 9, after_sending=True)

    def die(participant, worker):
        group, network = participant.group, participant.group.wire.network
        if sum(sim.died is not None for sim in network.ranks) == 1 and not group.joining:
            network.kill(group.rank)
            raise Killed
        return take_over(participant, worker)

    take_over = Participant._take_over
    monkeypatch.setattr(Participant, "_take_over", die)
    monkeypatch.setattr(simulated_calls, "plan_faults", plan)
    ends = []
    for seed in range(1, 7):
        history = simulated.HISTORIES[name](seed)
        wrong = history.check()
        assert not wrong, f"seed {seed}: " + "; ".join(wrong)
        ends.append(history.ends())
    assert any(each.count("killed") == 2 and "done" in each for each in ends)


@pytest.mark.parametrize("seed", [7, 17])
def test_a_cut_between_those_who_play_rounds_and_those_who_wait_is_noticed(seed, monkeypatch):
    """Rounds are shorter than the silence of a rank that is given up, and all that play are on one host."""
    monkeypatch.setattr(simulated_calls, "plan_faults", lambda *_: None)
    history = simulated_calls.Rounds(seed)
    network = history.network
    history.calls, history.steps, history.cores = 1, 4 * history.steps, 64
    history.settings = replace(history.settings, logical_workers=2)
    beyond = list(range(3, network.size))
    network.hosts[:] = [0] * 3 + [1] * len(beyond)
    network.conditions.has_word, network.conditions.tail = False, 0.0
    network.at(2.0, lambda: network.cut(frozenset({1}), None, False))
    assert not history.check()
    assert history.ends() == ["done"] * 3 + ["CutOffError"] * len(beyond)
    excluded = [
        event["rank"]
        for runs in history.runs
        for _, outcome in runs.values()
        for event in outcome.events
        if event["kind"] == "excluded"
    ]
    assert set(excluded) == set(beyond)


def test_a_server_that_answers_is_not_taken_for_stuck_by_those_who_compose(monkeypatch):
    """They get neither leases nor signs of life from it, as long as there are answers."""
    monkeypatch.setattr(simulated_calls, "plan_faults", lambda *_: None)
    timing = simulated_calls.TIMING
    monkeypatch.setattr(simulated_calls, "TIMING", Timing(timing.interval, timing.silence, timing.silence))
    for seed in (3, 8, 10):
        history = simulated_calls.Trees(seed)
        conditions = history.network.conditions
        conditions.delay, conditions.tail, conditions.nap = 1e-3, 0.0, 0.03
        assert not history.check()
        outcomes = [outcome for runs in history.runs for _, outcome in runs.values()]
        assert not [event for outcome in outcomes for event in outcome.events if event["kind"] == "excluded"]


@pytest.mark.parametrize(
    ("name", "seed", "saves"),
    [("rows", 2, 0.0), ("divided", 4, 0.9), ("divided", 5, 0.6), ("divided", 7, 0.7)],
)
def test_who_comes_back_when_all_others_are_told_the_end_has_the_whole_table(name, seed, saves, monkeypatch):
    """The last rank is away after its last rows, told the end or not; others delay the very end.

    Where the table is divided, one delays its last checkpoint by what it `saves`.
    """
    kind, told = {"rows": RowsServer, "divided": DividedServer}[name], []
    tell_end = kind.tell_end

    def note(server, peer, message):
        told.append(peer.rank)
        tell_end(server, peer, message)

    monkeypatch.setattr(simulated_calls, "plan_faults", lambda *_: None)
    sent = quiet_history(name, seed).network.ranks
    monkeypatch.setattr(kind, "tell_end", note)
    history = quiet_history(name, seed, is_run=False)
    ranks = history.network.ranks
    last = {"rows": Kind.SOME_ROWS, "divided": Kind.ROWS}[name]
    ranks[-1].plan = Plan(last, sent[-1].sent[last], True, 1.4)
    if name == "divided":
        ranks[1].plan = Plan(Kind.SAVED_ROWS, sent[1].sent[Kind.SAVED_ROWS], False, saves)
    ranks[1 if name == "rows" else 2].plan = Plan(Kind.BYE, 1, False, 0.8)
    assert not history.check() and set(history.ends()) == {"done"}
    assert len(ranks) - 1 in told


def divided_history_that_one_is_missing_from(orders, monkeypatch):
    """Return a history in which a host is away from one order to the end, and another rank at the end."""
    monkeypatch.setattr(simulated_calls, "plan_faults", lambda *_: None)
    history = quiet_history("divided", 3, is_run=False)
    history.network.hosts[:] = [0, 0, 0, 1]
    history.steps_between_checkpoints = history.steps * 4 // 5
    ranks = history.network.ranks
    ranks[-1].plan, ranks[1].plan = Plan(Kind.PLAYED, orders, True, 1.9), Plan(Kind.BYE, 1, False, 0.8)
    return history


@pytest.mark.parametrize("orders", [23, 19])
def test_a_host_that_comes_back_at_the_end_is_told_who_has_its_rows(orders, monkeypatch):
    """The others went back without it; it is let in before they are told the end, or after."""
    history = divided_history_that_one_is_missing_from(orders, monkeypatch)
    assert not history.check() and set(history.ends()) == {"done"}


@pytest.mark.parametrize("orders", [19, 21, 23])
def test_who_has_the_end_hears_who_owns_what_from_a_new_server_too(orders, monkeypatch):
    """The server dies before it releases those who have the end, and a host that came back has it as well."""
    history = divided_history_that_one_is_missing_from(orders, monkeypatch)
    history.network.ranks[0].plan = Plan(Kind.RELEASE, 1, False, 0.0)
    assert not history.check() and set(history.ends()) <= {"done", "killed"}


def divided_history_that_one_leaves(monkeypatch, when):
    """Return a history on three hosts, of which one with a single rank leaves `when` that says so."""
    monkeypatch.setattr(simulated_calls, "plan_faults", lambda *_: None)
    history = quiet_history("divided", 4, is_run=False)
    history.network.hosts[:] = [0, 1, 2, 0]
    history.steps, history.cores, run_of = 600, 64, history.run_of

    def run_that_leaves(group, *begin, **more):
        run = run_of(group, *begin, **more)
        if group is not None and group.rank == 1:
            run.wants_to_leave = lambda: "a test" if when() else None
        return run

    history.run_of = run_that_leaves
    return history


def check_rows_saved(history):
    """Check that each checkpoint has all rows, as often as it was written."""
    assert history._parts
    for parts in history._parts.values():
        times = np.bincount(np.concatenate([rows for rows, _, _ in parts]), minlength=16)
        assert (times == times[0]).all() and times[0] > 0


@pytest.mark.parametrize("when", ["before anything has begun", "while rows move out"])
def test_what_a_divided_call_saves_as_it_stops_has_all_rows(when, monkeypatch):
    moved = []
    move_out = DividedServer._move_out
    monkeypatch.setattr(
        DividedServer, "_move_out", lambda server, *given: (move_out(server, *given), moved.append(True))
    )
    monkeypatch.setattr(StoppingSaver, "looks", [])
    is_asked = when.startswith("before")
    monkeypatch.setattr(StoppingSaver, "is_asked", lambda *_: is_asked or bool(moved), raising=False)
    monkeypatch.setattr(simulated_rows, "_Saver", StoppingSaver)
    history = divided_history_that_one_leaves(monkeypatch, lambda: history.network.now > 3.0)
    history.steps_between_checkpoints = 10**6
    history.check()
    assert "TrainingStopped" in history.ends() and bool(moved) != is_asked
    check_rows_saved(history)


@pytest.mark.parametrize("is_ended", [False, True], ids=["a checkpoint", "a callback's end"])
def test_what_is_due_where_rows_have_just_moved_out_has_all_rows(is_ended, monkeypatch):
    """The hosts that have got them know of it before anything else."""
    steps_at_once, play, asked = SuperstepServer._steps_at_once, SuperstepServer._play, []

    def play_until(server, until):
        if server.start + until - server._first >= history.first + 300:
            asked.append(True)
        return play(server, until)

    monkeypatch.setattr(SuperstepServer, "_steps_at_once", lambda server: min(steps_at_once(server), 50))
    monkeypatch.setattr(SuperstepServer, "_play", play_until)
    history = divided_history_that_one_leaves(monkeypatch, lambda: bool(asked))
    history.steps_between_checkpoints = 100
    if is_ended:
        monkeypatch.setattr(simulated_calls._Recording, "reported", lambda _, told: told.steps < 300)
        monkeypatch.setattr(history, "_check_results", lambda: None)
    history.check()
    check_rows_saved(history)


def test_a_server_that_dies_before_others_have_left_the_setup_has_written_no_rows(monkeypatch):
    """There is one core: it learns alone. The others, who have no checkpoint, would begin with its rows."""

    def die(part, *arguments):
        played = play(part, *arguments)
        network = part.group.wire.network
        if network.ranks[0].is_alive:
            network.kill(0)
            raise Killed
        return played

    play = Part.play
    monkeypatch.setattr(Part, "play", die)
    monkeypatch.setattr(simulated_calls, "plan_faults", lambda *_: None)
    for seed in range(1, 9):
        history = quiet_history("rows", seed, is_run=False)
        history.network.hosts[:] = [0] * history.network.size
        history.cores, history.network.conditions.delay = 1, 0.1
        assert not history.check()


def test_a_callback_may_end_a_call_where_a_checkpoint_is_due(monkeypatch):
    """It is told of these steps before they are saved. No superstep comes after them, of no steps either."""
    monkeypatch.setattr(simulated_calls, "plan_faults", lambda *_: None)
    history = quiet_history("divided", 4, is_run=False)
    half = history.steps_between_checkpoints
    monkeypatch.setattr(simulated_calls._Recording, "reported", lambda _, told: told.steps < half)
    monkeypatch.setattr(history, "_check_results", lambda: None)
    assert not history.check() and set(history.ends()) == {"done"}
    assert history.runs[0][0][1].steps == half


@pytest.mark.parametrize(("name", "seed"), [("calls", 8), ("calls", 52), ("divided", 38)])
def test_who_has_the_end_and_is_away_learns_on_with_who_serves_since(name, seed, monkeypatch):
    """The server dies when one alone has the end, and the others elect one who has not.

    It may come back too late, when all is over, but breaks nothing.
    """
    monkeypatch.setattr(simulated_calls, "plan_faults", lambda *_: None)
    for away in (1.7, 2.1):
        history = (
            quiet_history(name, seed, is_run=False) if name == "divided" else simulated.HISTORIES[name](seed)
        )
        history.calls, conditions = 1, history.network.conditions
        conditions.has_word, conditions.tail, conditions.nap, conditions.eager = True, 0.0, 0.03, 1.0
        ranks = history.network.ranks
        ranks[0].plan, ranks[1].plan = Plan(Kind.DONE, 1, True, 0.0), Plan(Kind.BYE, 1, True, away)
        assert not history.check() and set(history.ends()) <= {"done", "killed", "CutOffError"}


def quiet_history(name, seed, is_run=True):
    """Return a history in which nothing goes wrong by itself, the last rank on another host."""
    history = simulated.HISTORIES[name](seed)
    history.calls, size = 1, history.network.size
    history.network.hosts[:] = [0] * (size - 1) + [1] if name == "rows" else [0] + [1] * (size - 1)
    conditions = history.network.conditions
    conditions.has_word, conditions.tail, conditions.nap = True, 0.0, 0.03
    conditions.eager = 1.0  # what somebody has sent who is away then does arrive
    history.steps_between_checkpoints = math.inf if name == "rows" else history.steps // 2
    history.slices = 3
    assert not is_run or not history.check()
    return history


class StoppingSaver(simulated_rows._Saver):
    """Is asked to stop when the looks at steps, of all savers of a history, are as `is_asked` says."""

    looks: ClassVar[list[int]] = []
    is_asked: Callable[[list[int]], bool]

    def look(self, steps):
        super().look(steps)
        self.looks.append(steps)
        return Stop(75, "a test") if self.is_asked(again(self.looks)) else None

    def save_last(self, values, counts, position, meanwhile):
        self.save_and_wait(values, counts, position, meanwhile)
        return "checkpoint"


def again(looks):
    """Return those looks that are at steps before those of an earlier one."""
    furthest = itertools.accumulate(looks, max)
    return [step for step, before in zip(looks, furthest, strict=True) if step < before]


class Saved:
    """Calls that are saved when they stop."""

    def __init__(self, seed, log=False):
        super().__init__(seed, log)
        self.disks, self.slices, self.steps_between_checkpoints = [simulated_rows._Disk()], 0, math.inf

    def run_of(self, group, *begin, **more):
        run = super().run_of(group, *begin, **more)
        if group is not None and group.is_server:
            run.saver = StoppingSaver(self, 0, group)
        return run


class SavedSupersteps(Saved, simulated_calls.Supersteps):
    """Such calls in supersteps."""


class SavedCalls(Saved, simulated_calls.Calls):
    """Such calls with a server."""


def test_a_server_that_waits_for_the_last_push_of_one_rank_is_not_missed_by_the_others(monkeypatch):
    monkeypatch.setattr(simulated_calls, "plan_faults", lambda *_: None)
    monkeypatch.setattr(StoppingSaver, "looks", [])
    monkeypatch.setattr(StoppingSaver, "is_asked", lambda *_: StoppingSaver.looks[-1] > 100, raising=False)
    history = SavedCalls(7)
    history.calls, history.network.conditions.tail = 1, 0.0
    history.network.ranks[-1].plan = Plan(Kind.PUSH, 3, False, 3.0)
    history.check()
    assert set(history.ends()) == {"TrainingStopped"} and history.servers == {0: 0}


def stopped_history(name, seed, n_again, plans, monkeypatch):
    """Return a history that stops at so many looks at steps that are made again, after plans of ranks."""
    monkeypatch.setattr(simulated_calls, "plan_faults", lambda *_: None)
    monkeypatch.setattr(SuperstepServer, "_seconds_between_copies", lambda server: math.inf)
    monkeypatch.setitem(simulated.HISTORIES, "supersteps", SavedSupersteps)
    monkeypatch.setattr(simulated_rows, "_Saver", StoppingSaver)
    monkeypatch.setattr(StoppingSaver, "looks", [])
    asked = staticmethod(lambda looks: len(looks) >= n_again)
    monkeypatch.setattr(StoppingSaver, "is_asked", asked, raising=False)
    history = quiet_history(name, seed, is_run=False)
    history._may_be_alone, history.steps, history.cores = False, 600, 64
    history.steps_between_checkpoints = math.inf if name == "supersteps" else 50
    for rank, plan in plans.items():
        history.network.ranks[rank].plan = plan
    history.check()
    assert set(history.ends()) == {"killed", "TrainingStopped"}
    return history


def check_saved(name, history):
    """Check that the checkpoint has what a process alone has after as many steps."""
    saved = history.disks[0].saved
    values, counts = history.disks[0].values, history.disks[0].counts
    if name == "divided":
        values, counts = history._table(saved.checkpoint.rpartition("/")[2])
    run = history.run_of(None, *history.beginning()[:2], history.first, saved.made, 1, Observer(), math.inf)
    alone = superstep_training.train(run, None, None)
    assert (saved.tally["steps"], saved.tally["episodes"]) == (saved.made, alone.episodes)
    np.testing.assert_array_equal(np.ravel(values), run.values)
    np.testing.assert_array_equal(np.ravel(counts), run.counts)


@pytest.mark.parametrize(
    ("name", "seed", "orders"), [("supersteps", 1, 9), ("rows", 1, 9), ("divided", 4, 22)]
)
@pytest.mark.parametrize("n_again", [1, 2])
def test_a_stop_is_heard_before_all_steps_are_made_again_that_a_loss_cost(
    name, seed, orders, n_again, monkeypatch
):
    history = stopped_history(name, seed, n_again, {-1: Plan(Kind.PLAYED, orders)}, monkeypatch)
    begin = history.first
    assert history.disks[0].saved.made == again(StoppingSaver.looks)[-1] - begin
    assert again(StoppingSaver.looks)[-1] < max(StoppingSaver.looks)
    check_saved(name, history)


def test_who_takes_over_and_has_to_stop_at_once_saves_no_rows_of_a_superstep_that_was_not_finished(
    monkeypatch,
):
    """The host of the server that was lost had rows that nobody else has."""
    history = stopped_history("divided", 4, 1, {0: Plan(Kind.PLAY, 66)}, monkeypatch)
    assert not [wrong for wrong in history.wrong if "TrainingStopped" not in wrong]
    check_saved("divided", history)


def test_a_call_ends_where_a_callback_wants_it_though_the_rank_that_is_to_tell_its_rows_is_lost(monkeypatch):
    """The steps before are made again, and no more than those."""
    monkeypatch.setattr(simulated_calls, "plan_faults", lambda *_: None)
    monkeypatch.setattr(SuperstepServer, "_seconds_between_copies", lambda server: math.inf)
    report = simulated_calls._Recording.reported

    def reported(observer, progress):
        return report(observer, progress) and progress.steps < 150

    monkeypatch.setattr(simulated_calls._Recording, "reported", reported)
    history = quiet_history("supersteps", 1, is_run=False)
    history._may_be_alone, history.steps, history.cores = False, 600, 64
    history.network.ranks[-1].plan = Plan(Kind.ROWS, 1)
    history.check()
    assert history.ends() == [*["done"] * (history.network.size - 1), "killed"]
    run, outcome = history.runs[0][0]
    assert outcome.steps == history.records[0].reports[-1][0]
    alone = history.run_of(
        None, *history.beginning()[:2], history.first, outcome.steps, 1, Observer(), math.inf
    )
    assert superstep_training.train(alone, None, None).episodes == outcome.episodes
    np.testing.assert_array_equal(run.values, alone.values)
    assert 150 <= outcome.steps < 200


def test_two_hosts_whose_ranks_leave_at_once_both_leave_their_rows_to_who_stays(monkeypatch):
    monkeypatch.setattr(simulated_calls, "plan_faults", lambda *_: None)
    history = quiet_history("divided", 4, is_run=False)
    network, run_of = history.network, history.run_of
    network.hosts[:] = [0, 1, 2, 0]
    history.steps, history.cores, history.steps_between_checkpoints = 600, 64, math.inf

    def leaving(group, *begin, **more):
        run = run_of(group, *begin, **more)
        if group is not None and network.hosts[group.rank] != 0:
            run.wants_to_leave = lambda: "a test" if network.now > 3.0 else None
        return run

    history.run_of = leaving
    history.check()
    assert history.ends() == ["done", "WorkerLeft", "WorkerLeft", "done"]
    history.wrong.clear()  # that ranks left, which no other history lets them
    history._check_results()
    assert not history.wrong


def saved_history(name, planned, monkeypatch, sizes=(4,)):
    """Return a history of jobs: in all but the last what is planned happens, and nothing else."""
    planned = [*planned, []]
    monkeypatch.setattr(simulated_saves.Job, "_random_events", lambda job, *_: planned[job.number])
    history = simulated.HISTORIES[name](1)
    history.sizes, history.n_jobs, history.goes_on = sizes, len(planned), False
    history.calls, history.sync_frequency, history.step_seconds = [200, 800], 20, 4e-3
    return history


@pytest.mark.parametrize(
    ("by", "kind", "count"), [(0, "TOLD", 7), (0, "TOLD", 11), (0, "TOLD", 19), (1, "GATHER", 2)]
)
def test_a_rank_that_is_lost_before_the_first_step_costs_nothing_of_a_checkpoint(
    by, kind, count, monkeypatch
):
    """Some ranks have heard of it by then, and some have not; one of those may have to serve."""
    planned = [Event("PUSH", 30, None, "stop", 0)], [Event(kind, count, by, "kill", None)]
    history = saved_history("saves", planned, monkeypatch)
    assert not history.check()
    (stopped_at,) = {sim.error.steps for sim in history.jobs[0].network.ranks}
    assert 200 < stopped_at < 1000  # in the second call


def test_a_server_that_is_lost_once_all_hosts_have_found_the_folder_leaves_it_to_be_looked_through(
    monkeypatch,
):
    """Another one took the place for one whose checkpoint it had, and began anew."""
    planned = [Event("PLAY", 8, None, "stop", 0)], [Event("TOLD", 7, 0, "kill", None)]
    history = saved_history("saved-divided", planned, monkeypatch)
    history.calls, history.interval = [600], 10**9
    history.random_hosts = lambda *_: [0, 0, 1, 1]
    assert not history.check() and 0 < history.jobs[0].network.ranks[0].error.steps < 600


def test_who_goes_on_after_a_stop_without_the_rank_that_served_reads_what_that_has_saved(monkeypatch):
    """The others had heard how many steps were made, and no table with these."""
    planned = [Event("PUSH", 12, None, "stop", 0), Event(AGAIN, 1, 0, "kill", None)]
    history = saved_history("saves", [planned], monkeypatch)
    history.calls, history.goes_on, history.interval = [800], True, 10**9
    assert not history.check()
    assert [sim.result for sim in history.jobs[0].network.ranks] == [None, "done", "done", "done"]


def test_who_cannot_read_what_the_rank_that_is_lost_had_says_what_is_not_there(monkeypatch, caplog):
    """Its steps count, as all ranks were told of them."""
    monkeypatch.setattr(beginning, "find", lambda *_: None)
    planned = [Event("PUSH", 12, None, "stop", 0), Event(AGAIN, 1, 0, "kill", None)]
    history = saved_history("saves", [planned], monkeypatch)
    history.calls, history.goes_on, history.interval = [800], True, 10**9
    history.check()
    assert [sim.result for sim in history.jobs[0].network.ranks] == [None, "done", "done", "done"]
    (lost,) = (each for each in caplog.messages if "a checkpoint of it could not be taken up" in each)
    assert re.match(r"The rank that had the table of step \d+ is lost", lost)
