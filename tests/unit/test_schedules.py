"""Schedules against their formulas, and every refusal."""

import json
import math
from fractions import Fraction

import numpy as np
import pytest
from slow_learner import visit_slot

from dist_classicrl import DistAsyncQLearning
from dist_classicrl.environments import TabularMDP
from dist_classicrl.errors import SettingsError
from dist_classicrl.rules import Boltzmann
from dist_classicrl.schedules import Constant, Exponential, Linear, PerVisit, Piecewise
from dist_classicrl.schedules import kinds as schedules

FOLLOW_THE_STEP = [
    Constant(0.3),
    Linear(1.0, 0.1, 1000),
    Linear(0.1, 0.9, 7),
    Linear(0.5, 0.5, 1),
    Exponential(1.0, 0.01, 1000),
    Exponential(0.001, 1.0, 50_000),
    Exponential(0.5, 0.5, 100),
    Exponential(1.0, 1e-9, 3),
    Linear(1.0, 0.1, fraction=0.5, call=(300, 1000)),
    Linear(1.0, 0.1, fraction=1e-9, call=(98, 10)),
    Exponential(1.0, 0.01, fraction=0.25, call=(99, 4000)),
    Linear(1.0, 0.1, fraction=0.5),
    Exponential(1.0, 0.1, fraction=1.0),
    Piecewise([(0, 1.0), (100, 0.2), (1000, 0.4)]),
    Piecewise([(7, 0.5), (50, 0.5), (50, 0.1), (100, 0.1), (100, 0.9), (100, 0.3)]),
    Piecewise([(0, 0.1), (0, 0.3), (2**40, 0.6)]),
    Piecewise([(0.0, 1.0), (0.1, 0.2), (0.5, 0.2), (0.5, 0.4)], fraction=0.5, call=(98, 804)),
    Piecewise([(0.25, 0.3), (1.0, 0.1)], fraction=1.0, call=(3, 5)),
    Piecewise([(0.0, 1.0), (0.25, 0.1), (0.3, 0.6), (1.0, 0.2)], fraction=1.0, call=(99, 2)),
    Piecewise([(0.0, 1.0), (0.1, 0.5), (0.1, 0.2), (1.0, 0.2)], 30),
    Piecewise([(0.0, 1.0), (1.0, 0.1)], fraction=1.0),
]
STEPS = [*range(0, 60), 99, 100, 101, 499, 500, 998, 999, 1000, 1001, 49_999, 50_000, 10**7, 2**61]


def formula(schedule, step):
    if isinstance(schedule, Constant):
        return schedule.value
    if isinstance(schedule, Piecewise):
        return through(schedule, step)
    if schedule.steps is not None:
        begin, steps = 0, schedule.steps
    elif schedule.call is not None:
        begin, steps = schedule.call[0], max(1, schedule.fraction * schedule.call[1])
    else:
        return schedule.initial  # until a call begins
    share = max(0.0, min(1.0, (step - begin) / steps))
    if isinstance(schedule, Linear):
        return (1.0 - share) * schedule.initial + share * schedule.final
    return math.exp((1.0 - share) * math.log(schedule.initial) + share * math.log(schedule.final))


def through(schedule, step):
    """The value at a step, of a line from each point to the next: fractions have no rounding."""
    if schedule.fraction is not None and schedule.call is None:
        return schedule.points[0][1]
    begin, length = 0, schedule.steps or 1
    if schedule.call is not None:
        begin, length = schedule.call[0], max(1, round(schedule.fraction * schedule.call[1]))
    places = [begin + Fraction(str(place)) * length for place, _ in schedule.points]
    points = list(zip(places, (value for _, value in schedule.points), strict=True))
    value = points[0][1]
    for (first, one), (last, other) in zip(points, [*points[1:], (math.inf, points[-1][1])], strict=True):
        if first <= step:
            value = (
                one
                if last == first
                else one + (other - one) * min(1.0, float((step - first) / (last - first)))
            )
    return value


@pytest.mark.parametrize("schedule", FOLLOW_THE_STEP)
def test_values(schedule):
    for step in STEPS:
        assert schedule.at(step) == pytest.approx(formula(schedule, step), rel=1e-12)
        low, high = schedule.bounds
        assert low * (1 - 1e-12) <= schedule.at(step) <= high * (1 + 1e-12)


@pytest.mark.parametrize("schedule", FOLLOW_THE_STEP)
def test_straight_stretches_follow_the_values(schedule):
    for step in STEPS:
        segment = schedule.segment(step)
        assert segment.start <= step < segment.end
        chord = segment.value + segment.slope * (step - segment.start)
        assert chord == pytest.approx(formula(schedule, step), rel=2e-5)
        # The stretch is a matter of the schedule, not of the step that was asked for.
        for other in {segment.start, (segment.start + min(segment.end, 10**8)) // 2, segment.end - 1}:
            if segment.start <= other:
                assert schedule.segment(other) == segment


def test_stretches_of_an_exponential_are_long():
    schedule, step, stretches = Exponential(1.0, 0.01, 1_000_000), 0, 0
    while step < 1_000_000:
        step = schedule.segment(step).end
        stretches += 1
    assert step == 1_000_000 and stretches < 500


@pytest.mark.parametrize("offset", [0.0, 30.0])
@pytest.mark.parametrize("workers", [1, 16])
def test_per_visit_tables(workers, offset):
    schedule = PerVisit(0.7, 0.5, offset)
    table = schedule.table(workers)
    assert table.dtype == np.float64 and table.max() == 0.5 and table.min() > 0.0
    for visits in [*range(1, 8192, 13), 8191, 8192, 10_000, 123_456_789, 2**40 + 12345, 2**48 - 1]:
        clock = max(visits / workers, 1.0)
        exact = visits < 8192
        held = offset / workers
        formula = 0.5 * ((clock + held) / (1 + held)) ** -0.7
        assert schedule.at_visit(visits, workers) == pytest.approx(formula, rel=1e-12)
        assert table[visit_slot(visits)] == pytest.approx(formula, rel=1e-12 if exact else 1 / 4096)
    assert (np.diff(table) <= 0.0).all()


def test_what_schedules_refuse():
    for make, match in (
        (lambda: Constant("0.1"), "Constant: value must be a number, got '0.1' of type str"),
        (lambda: Constant(True), "must be a number, got True"),
        (lambda: Constant(None), "must be a number, got None"),
        (lambda: Constant(math.nan), "must be finite, got nan"),
        (lambda: Constant(math.inf), "must be finite, got inf"),
        (lambda: Linear(1.0, 0.1, 0), "Linear: steps must be a whole number of at least 1, got 0"),
        (lambda: Linear(1.0, 0.1, 1.5), "steps must be a whole number of at least 1, got 1.5"),
        (lambda: Linear(1.0, 0.1, -3), "steps must be a whole number"),
        (lambda: Linear(1.0, 0.1, math.inf), "steps must be finite"),
        (lambda: Linear(1.0, "x", 10), "Linear: final must be a number"),
        (lambda: Linear([1.0], 0.0, 10), "Linear: initial must be a number"),
        (lambda: Exponential(1.0, 0.0, 10), "Exponential: final must be above 0, got 0.0.*or Linear"),
        (lambda: Exponential(-1.0, 0.1, 10), "Exponential: initial must be above 0"),
        (lambda: Exponential(1.0, 0.1, 0), "Exponential: steps must be"),
        (lambda: Exponential(1e-320, 1.0, 100), "from 1e-320 to 1.0 is a factor that float64 .* Bring"),
        (lambda: Exponential(1e200, 1e-200, 100), "a factor that float64 cannot hold"),
        (lambda: Linear(1.0, 0.1), "Linear takes steps, .* or fraction, .* exactly one .*fraction=0.5"),
        (lambda: Linear(1.0, 0.1, 10, fraction=0.5), "exactly one of them; got steps=10 and fraction=0.5"),
        (lambda: Linear(1.0, 0.1, fraction=0.0), "Linear: fraction must be above 0 and at most 1, got 0.0"),
        (lambda: Exponential(1.0, 0.1, fraction=1.5), "fraction must be .* got 1.5: .*Write steps"),
        (lambda: Linear(1.0, 0.1, fraction="half"), "fraction must be a number, got 'half'"),
        (lambda: Linear(1.0, 0.1, fraction=math.nan), "fraction must be finite"),
        (lambda: Linear(1.0, 0.1, 10, call=(0, 10)), "Linear: call must be .* belongs to a fraction; got"),
        (lambda: Linear(1.0, 0.1, fraction=0.5, call=(0, 0)), "its steps, .*got \\(0, 0\\). Leave it out"),
        (lambda: Linear(1.0, 0.1, fraction=0.5, call=3), "got 3. Leave it out: train fills it in"),
        (lambda: Linear(1.0, 0.1, fraction=0.5, call=(-1, 9)), "call must be"),
        (lambda: Piecewise([(0, 1.0)]), "pairs of a place and the value there, from 2 to .*got .*Write"),
        (lambda: Piecewise([(0, 1.0)] * 10_001), "from 2 to 10,000 of them"),
        (lambda: Piecewise({0: 1.0, 9: 0.5}), "must be pairs"),
        (lambda: Piecewise({(0, 1.0), (9, 0.5)}), "must be pairs"),
        (lambda: Piecewise([0.5, 0.2]), "must be pairs"),
        (lambda: Piecewise([np.array(0.5), np.array(0.2)]), "must be pairs"),
        (lambda: Piecewise("ab"), "must be pairs"),
        (lambda: Piecewise([(9, 1.0), (3, 0.5)]), "places must be in order, got 9.0 before 3.0"),
        (lambda: Piecewise([(0, 1.0), (9, math.nan)]), "a value must be finite"),
        (lambda: Piecewise([("0", 1.0), (9, 0.5)]), "a place must be a number, got '0'"),
        (lambda: Piecewise([(0, 1.0), (0.5, 0.5)]), "whole numbers .*got 0.5.*Shares .* fraction=1.0"),
        (lambda: Piecewise([(-1, 1.0), (5, 0.5)]), "from 0 on .*got places from -1.0 to 5.0"),
        (lambda: Piecewise([(0, 1.0), (0, 0.5)]), "the last one at least 1, got places from 0.0 to 0.0"),
        (lambda: Piecewise([(0, 1.0), (9, 0.5)], fraction=1.0), "from 0 to 1, got places from 0.0 to 9.0"),
        (lambda: Piecewise([(0, 1.0), (9, 0.5)], steps=9), "from 0 to 1, .* global steps need neither"),
        (lambda: Piecewise([(0, 1.0), (1, 0.5)], 9, fraction=1.0), "exactly one of them; got steps=9"),
        (lambda: Piecewise([(0, 1.0), (1, 0.5)], fraction=2), "fraction must be above 0 and at most 1"),
        (lambda: Piecewise([(0, 1.0), (9, 0.5)], call=(0, 9)), "call must be .* belongs to a fraction"),
        (lambda: Piecewise.from_function(math.cos), "takes steps, .* or fraction.* exactly one"),
        (lambda: Piecewise.from_function(0.5, fraction=1.0), "function must take a share .*got 0.5"),
        (
            lambda: Piecewise.from_function(math.cos, fraction=1, points=1),
            "points must be a whole number from 2 .*got 1",
        ),
        (lambda: Piecewise.from_function(str, fraction=1), "a value must be a number, got '0.0'"),
        (lambda: Piecewise.from_function(math.cos, steps=0), "steps must be a whole number"),
        (
            lambda: PerVisit(0.0),
            "PerVisit: exponent must be above 0 and at most 1, got 0.0.*exponent=0.7",
        ),
        (lambda: PerVisit(1.1), "exponent must be above 0 and at most 1, got 1.1"),
        (lambda: PerVisit(math.nan), "exponent must be finite"),
        (lambda: PerVisit(0.7, 0.0), "scale must be above 0 and at most 1, got 0.0"),
        (lambda: PerVisit(0.7, 1.5), "scale must be above 0 and at most 1, got 1.5"),
        (lambda: PerVisit(0.7, 0.5, -1), "offset must be a number of visits, at least 0, got -1"),
        (lambda: PerVisit(0.7, 0.5, math.inf), "offset must be finite"),
        (
            lambda: schedules.as_schedule("epsilon", "often"),
            "epsilon must be a number or a schedule .*got 'often'",
        ),
        (lambda: schedules.as_schedule("epsilon", True), "epsilon must be a number or a schedule"),
        (
            lambda: schedules.from_dict({"kind": "Sine", "value": 1.0}),
            "is no schedule; known kinds are Constant",
        ),
        (lambda: schedules.from_dict({"value": 1.0}), "is no schedule"),
        (lambda: schedules.from_dict({"kind": "Constant", "other": 1.0}), "is no schedule"),
        (lambda: schedules.from_dict({"kind": "Constant"}), "is no schedule"),
    ):
        with pytest.raises(SettingsError, match=match):
            make()


class Cosine(Linear):
    """Says one thing, and would be learned with as a line."""

    def __init__(self):
        super().__init__(1.0, 0.1, fraction=0.5)

    def at(self, step):
        return 0.0


def test_schedules_of_ones_own_are_refused_wherever_they_are_given():
    agent = DistAsyncQLearning(seed=1)
    for give, name in (
        (lambda own: DistAsyncQLearning(epsilon=own), "epsilon"),
        (lambda own: DistAsyncQLearning(learning_rate=own), "learning_rate"),
        (lambda own: DistAsyncQLearning(behavior=Boltzmann(own)), "Boltzmann: temperature"),
        (lambda own: setattr(agent, "epsilon", own), "epsilon"),
        (lambda own: setattr(agent, "learning_rate", own), "learning_rate"),
    ):
        with pytest.raises(SettingsError, match=f"{name} must be .*got Cosine.*write Piecewise.from_fun"):
            give(Cosine())
    with pytest.raises(SettingsError, match="of a function .* write Piecewise.from_function.function, fr"):
        DistAsyncQLearning(epsilon=lambda left: left)
    with pytest.raises(SettingsError, match="of type type.$"):
        DistAsyncQLearning(epsilon=Linear)


def test_a_schedule_of_a_function_follows_it_and_has_nothing_of_it():
    def cosine(made):
        return 0.5 + 0.5 * math.cos(math.pi * made)

    by_steps = Piecewise.from_function(cosine, steps=1_000_003)
    by_share = schedules.in_call(Piecewise.from_function(cosine, fraction=0.5), 70, 2_000_006, 70)
    for step in range(0, 1_000_003, 997):
        exact = cosine(step / 1_000_003)
        assert by_steps.at(step) == pytest.approx(exact, abs=2e-5)
        assert by_share.at(70 + step) == pytest.approx(exact, abs=2e-5)
    assert by_steps.at(10**9) == by_share.at(10**9) == 0.0
    few = Piecewise.from_function(cosine, fraction=1.0, points=3)
    assert few == Piecewise(
        np.array([(0.0, 1.0), (0.5, 0.5 + 0.5 * math.cos(math.pi / 2)), (1.0, 0.0)]), fraction=1
    )
    assert hash(by_steps) == hash(Piecewise(by_steps.points, 1_000_003))


@pytest.mark.parametrize("steps", [1, 2, 3, 10, 256, 257, 1000])
def test_a_straight_function_is_a_straight_line_however_short_the_call(steps):
    line = schedules.in_call(Linear(1.0, 0.1, fraction=1.0), 5, steps, 5)
    same = schedules.in_call(
        Piecewise.from_function(lambda made: 1.0 - 0.9 * made, fraction=1.0), 5, steps, 5
    )
    for step in range(steps + 9):
        assert same.at(step) == pytest.approx(line.at(step), rel=1e-12)
    ends = schedules.in_call(Piecewise([(0, 1.0), (1, 0.1)], fraction=1.0), 5, steps, 5)
    assert ends.segment(5) == line.segment(5) and ends.segment(4 + steps) == line.segment(4 + steps)


def test_a_text_of_many_points_is_short_and_tells_them_apart():
    points = [(place, 1.0 / (1 + place)) for place in range(300)]
    other = [*points[:100], (100, 0.5), *points[101:]]
    assert len(repr(Piecewise(points))) < 150 and repr(Piecewise(points)) != repr(Piecewise(other))
    few = Piecewise([(0.0, 1.0), (1.0, 0.5)], fraction=0.5)
    assert eval(repr(few)) == few and eval(repr(Piecewise(points[:8]))) == Piecewise(points[:8])


def test_the_value_before_a_call_is_the_one_that_it_begins_with():
    begins = Piecewise([(0.0, 0.1), (0.0, 0.3), (1.0, 0.2)], fraction=1.0)
    assert begins.at(0) == 0.3 == schedules.in_call(begins, 7, 100, 7).at(7)
    later = schedules.in_call(Piecewise([(0.5, 0.1), (0.5, 0.3), (1.0, 0.2)], fraction=1.0), 7, 100, 7)
    assert later.at(0) == later.at(56) == 0.1 and later.at(57) == 0.3


@pytest.mark.parametrize("schedule", [each for each in FOLLOW_THE_STEP if each.bounds[1] <= 1.0])
def test_the_highest_value_of_some_steps(schedule):
    for first, last in ((0, 0), (3, 60), (40, 120), (0, 1500)):
        values = [schedule.at(step) for step in range(first, last + 1)]
        assert schedules.highest(schedule, first, last) == pytest.approx(max(values), rel=2e-5)


def test_training_follows_the_points():
    """With a step size of 1 at last, an entry is its last target: of 1, since nothing follows."""
    agent = DistAsyncQLearning(
        seed=1, learning_rate=Piecewise([(0, 1e-9), (3_000, 1e-9), (3_000, 1.0)]), discount_factor=0.0
    )
    walk = TabularMDP.from_arrays(np.ones((1, 2, 1)), np.ones((1, 2)), start_prob=[1.0])
    agent.train(walk, total_steps=3_000, progress_bar=False)
    assert 0.0 < agent.q_table.max() < 1e-5
    agent.train(walk, total_steps=100, progress_bar=False)
    assert (agent.q_table == 1.0).all() and agent.learning_rate == 1.0


def test_numbers_become_constants():
    for value in (0.25, np.float32(0.25), np.float64(0.25)):
        assert schedules.as_schedule("epsilon", value) == Constant(0.25)
    assert schedules.as_schedule("epsilon", 1) == Constant(1.0)
    assert Linear(np.int64(1), 0, np.int32(5)) == Linear(1.0, 0.0, 5)
    kept = PerVisit(0.7)
    assert schedules.as_schedule("learning_rate", kept) is kept


@pytest.mark.parametrize("schedule", [*FOLLOW_THE_STEP, PerVisit(0.7, 0.5), PerVisit(0.7, 0.5, 9)])
def test_schedules_survive_json(schedule):
    plain = schedules.to_dict(schedules.without_call(schedule))
    assert json.loads(json.dumps(plain)) == plain
    assert schedules.from_dict(json.loads(json.dumps(schedules.to_dict(schedule)))) == schedule


def test_a_share_of_a_call_is_one_of_the_first_call_that_begins():
    schedule = Linear(1.0, 0.1, fraction=0.5)
    assert repr(schedule) == "Linear(initial=1.0, final=0.1, fraction=0.5)"
    assert schedules.in_call(schedule, 7, 0, 7) is schedule  # a call without steps
    failed = schedules.in_call(schedule, 200, 9, 200)
    first = schedules.in_call(failed, 200, 1000, 200)  # nothing came of the one before
    assert [first.at(step) for step in (0, 200, 450, 700, 10**9)] == [1.0, 1.0, 0.55, 0.1, 0.1]
    assert schedules.in_call(first, 200, 10**6, 201) is first  # goes on
    assert schedules.in_call(first, 1200, 10**6, 1200) is first  # which holds what it has come to
    assert schedules.without_call(first) == schedule != first
    for other in (Constant(0.1), PerVisit(0.7), Linear(1.0, 0.1, 500)):
        assert schedules.in_call(other, 200, 1000, 200) == schedules.without_call(other) == other


def test_a_share_of_a_call_is_bit_for_bit_what_it_is_in_steps():
    for kind in (Linear, Exponential):
        shares = schedules.in_call(kind(1.0, 0.1, fraction=0.3), 0, 1_000_003, 0)
        steps = kind(1.0, 0.1, round(0.3 * 1_000_003))
        for step in (0, 1, 77, 150_001, 300_000, 300_001, 10**9):
            assert shares.segment(step) == steps.segment(step) and shares.at(step) == steps.at(step)


def test_schedules_of_older_files_are_read():
    assert schedules.from_dict({"kind": "Linear", "initial": 1.0, "final": 0.1, "steps": 9}) == Linear(
        1, 0.1, 9
    )
    assert schedules.to_dict(PerVisit(0.7)) == {"kind": "PerVisit", "exponent": 0.7, "scale": 1.0}
    assert "fraction" not in schedules.to_dict(Linear(1, 0.1, 9))  # nor is it in new ones of that kind


def test_a_later_call_holds_the_final_value_also_where_the_first_was_ended_early():
    first = schedules.in_call(Linear(1.0, 0.1, fraction=0.5), 200, 1000, 200)
    assert schedules.in_call(first, 200, 50, 400) is first  # the same call goes on from a checkpoint
    later = schedules.in_call(first, 400, 50, 400)
    assert later == Linear(1.0, 0.1, fraction=0.5, call=(200, 200)) and later.at(400) == later.at(425) == 0.1
    assert schedules.in_call(later, 400, 50, 400) is later
    assert schedules.in_call(later, 200, 1000, 450) is later  # a script that is started again begins in front
    assert schedules.in_call(later, 400, 50, 420) is later


def test_a_share_of_a_call_ends_at_the_nearest_step():
    assert 0.29 * 100 < 29.0
    shares = schedules.in_call(Linear(1.0, 0.0, fraction=0.29), 0, 100, 0)
    assert shares.at(28) > 0.0 == shares.at(29) and shares.segment(29).slope == 0.0
