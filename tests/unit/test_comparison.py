"""Comparisons of trainings: figures against rliable's and closed forms, levels and power by simulation."""

import math
import tracemalloc
from itertools import permutations, product

import numpy as np
import pandas as pd
import pytest

from dist_classicrl import plotting
from dist_classicrl.errors import PlotError, StudyError
from dist_classicrl.sweep import comparison
from dist_classicrl.sweep.comparison import (
    compare,
    compare_all,
    holm,
    interquartile_mean,
    least_p_value,
    normalized,
    optimality_gap,
    permutation_p_value,
)
from dist_classicrl.sweep.sequential import (
    DIFFERENT,
    NOT_FOUND,
    UNDECIDABLE,
    UNDECIDED,
    AdaStop,
    SequentialComparison,
    compare_until_significant,
)
from dist_classicrl.sweep.summaries import curve_with_interval, performance_profile, sensitivity

# Runs by tasks, with two ties within a task. What rliable 1.2 says of them is in RLIABLE.
A = np.array(
    [
        [0.96, -0.17, 0.73],
        [0.43, 0.46, 0.54],
        [-0.01, 0.53, 0.34],
        [1.6, 0.67, 0.49],
        [0.52, 0.4, 0.28],
        [0.48, 0.74, 0.53],
        [0.89, 0.54, 0.61],
    ]
)
B = np.array(
    [
        [0.96, 0.66, 0.35],
        [0.45, 0.66, 1.08],
        [0.42, 0.43, 0.8],
        [0.23, 0.41, 0.76],
        [0.67, 0.53, 0.7],
        [-0.35, 0.81, 0.21],
        [-0.0, 0.58, 0.71],
        [0.37, 0.18, 0.51],
        [0.48, 0.92, 0.72],
    ]
)
RLIABLE = {
    "iqm": (0.5272727272727273, 0.5533333333333333),
    "optimality_gap": (0.47809523809523824, 0.47518518518518515),
    "improvement": 0.47354497354497355,
}
SCORES = {task: {"a": A[:, i], "b": B[:, i]} for i, task in enumerate("xyz")}
UNIT = {task: (0.0, 1.0) for task in SCORES}
FAST = {"resamples": 200, "permutations": 200}


@pytest.mark.slow
def test_figures_are_those_of_rliable():
    found = compare(SCORES, "a", "b", bounds=UNIT, **FAST)
    assert (found.first.iqm.value, found.second.iqm.value) == pytest.approx(RLIABLE["iqm"], abs=1e-12)
    gaps = found.first.optimality_gap.value, found.second.optimality_gap.value
    assert gaps == pytest.approx(RLIABLE["optimality_gap"], abs=1e-12)
    assert found.probability_of_improvement.value == pytest.approx(RLIABLE["improvement"], abs=1e-12)
    assert found.difference.value == pytest.approx(RLIABLE["iqm"][0] - RLIABLE["iqm"][1])
    assert found.better is None and (found.first.runs, found.second.runs) == (21, 27)
    for each in (found.first.iqm, found.difference, found.probability_of_improvement):
        assert each.low < each.value < each.high


@pytest.mark.slow
def test_the_probability_of_improvement_needs_no_memory_for_all_pairs():
    rng = np.random.default_rng(0)
    a, b = (rng.integers(50, size=(4, n)).astype(float) for n in (900, 1100))  # with many ties
    comparison.stats()
    tracemalloc.start()
    found = comparison._improvement([a], [b])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    above = a[:, :, None] - b[:, None, :]
    np.testing.assert_array_equal(found, ((above > 0) + (above == 0) / 2).mean(axis=(1, 2)))
    assert peak < above.nbytes / 20


def test_figures_by_hand():
    assert interquartile_mean([100.0, 1.0, 2.0, -50.0]) == 1.5
    assert optimality_gap([0.5, 3.0]) == 0.25  # not (1 - 1.75)
    assert holm([0.01, 0.04, 0.03, 0.9]) == pytest.approx([0.04, 0.09, 0.09, 0.9])


def test_the_seed_decides_and_bounds_normalize():
    one, same = (compare(SCORES, "a", "b", **FAST, seed=4) for _ in range(2))
    assert one == same != compare(SCORES, "a", "b", **FAST, seed=5)
    shifted = {task: {name: 3 + 2 * x for name, x in each.items()} for task, each in SCORES.items()}
    found = compare(shifted, "a", "b", bounds={task: (3.0, 5.0) for task in SCORES}, **FAST)
    assert found.first.iqm.value == pytest.approx(RLIABLE["iqm"][0])
    assert one.first.optimality_gap is None


def test_few_runs_have_an_exact_p_value():
    rng = np.random.default_rng(0)
    # Only the two extreme ways of 6 over 3 come to that.
    assert permutation_p_value([np.arange(3.0)], [np.arange(10.0, 13.0)], 9_999, rng) == 2 / math.comb(6, 3)
    assert permutation_p_value([np.arange(3.0)], [np.arange(3.0)], 9_999, rng) == 1.0
    # Two tasks, dealt out independently, counted one by one: the middle half of 4 is the 2 in the middle, and
    # where these are as far apart the sums of all decide.
    first, second = [np.arange(2.0), np.arange(4.0, 6.0)], [np.array([0.5, 12.0]), np.array([5.5, 11.0])]
    differences = []
    for ways in product(*(permutations([*a, *b]) for a, b in zip(first, second, strict=True))):
        ours, theirs = (sorted(x for way in ways for x in way[part]) for part in (slice(2), slice(2, 4)))
        middles = abs(sum(ours[1:3]) - sum(theirs[1:3]))
        differences.append((middles, abs(sum(ours) - sum(theirs))))
    seen = differences[0]  # as they stand
    truth = np.mean([each >= seen for each in differences])  # halves have no rounding
    assert truth < np.mean([middles >= seen[0] for middles, _ in differences])
    assert 0.0 < truth < 1.0 and permutation_p_value(first, second, 9_999, rng) == pytest.approx(truth)
    drawn = permutation_p_value(first, second, 35, rng)  # one less than there are ways
    assert drawn >= 1 / 36


@pytest.mark.parametrize(
    "sizes", [[(2, 2)], [(3, 3)], [(4, 4)], [(5, 5)], [(4, 5)], [(2, 2), (2, 2)], [(3, 2)] * 2]
)
def test_no_scores_have_a_smaller_p_value_than_those_that_do_not_overlap(sizes):
    rng, least = np.random.default_rng(0), least_p_value(sizes, 9_999)
    apart = [
        permutation_p_value(
            [np.arange(float(a)) for a, _ in sizes], [100.0 + np.arange(b) for _, b in sizes], 9_999, rng
        )
    ]
    drawn = [
        permutation_p_value(
            [rng.standard_normal(a) for a, _ in sizes],
            [rng.standard_normal(b) + 1.0 for _, b in sizes],
            9_999,
            rng,
        )
        for _ in range(100)
    ]
    assert apart[0] == pytest.approx(least) and min(drawn) >= least - 1e-12
    # Nor where ways are drawn, of which none may be as far.
    far = permutation_p_value([np.arange(8.0)], [np.arange(8.0) + 100.0], 100, rng)
    assert far >= least_p_value([(8, 8)], 100) == 1 / 101
    assert least_p_value([(4, 4)], 60) == 2 / math.comb(8, 4) > 1 / 61


def far_apart(seeds, names, tasks=1):
    """Return scores that differ by a thousand from variant to variant, and by one within."""
    return {
        str(task): {name: 1e3 * place + np.arange(float(seeds)) for place, name in enumerate(names)}
        for task in range(tasks)
    }


@pytest.mark.parametrize(
    ("names", "enough", "tasks"),
    [("ab", 4, 1), ("abc", 5, 1), ("abcd", 5, 1), ("abcde", 6, 1), ("abcd", 3, 2)],
)
def test_too_few_seeds_are_named_and_with_as_many_as_it_says_all_is_found(names, enough, tasks):
    for found in compare_all(far_apart(enough - 1, names, tasks), resamples=100):
        assert found.better is None and found.adjusted_p_value > 0.05
        assert f"cannot be decided with {enough - 1} seeds" in str(found)
        assert str(found).endswith(f": at least {enough} seeds each")
        assert (f"{math.comb(len(names), 2)} pairs" in str(found)) == (len(names) > 2)
    for found in compare_all(far_apart(enough, names, tasks), resamples=100):
        assert found.better == found.second.name and found.undecidable is None
        assert str(found).endswith(f"{found.better} is better")


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (2, 4, "cannot be decided with 2 and 4 seeds: at least 4 seeds each"),
        (2, 5, "b is better"),
        (3, 10, "b is better"),
    ],
)
def test_variants_with_unequal_numbers_of_seeds_are_compared(first, second, said):
    scores = {"x": {"a": np.arange(float(first)), "b": 100.0 + np.arange(second)}}
    found = compare(scores, "a", "b", resamples=100)
    assert str(found).endswith(f": {said}")
    assert found.p_value == pytest.approx(1 / math.comb(first + second, first))
    several = {"x": {**scores["x"], "c": 200.0 + np.arange(second)}}
    why = {one.undecidable for one in compare_all(several, resamples=100) if one.first.name == "a"}
    few = f"cannot be decided with {first} and {second} seeds and 3 pairs: at least 5 seeds each"
    assert why == {None if second == 10 else few}


@pytest.mark.slow
def test_equal_variants_with_unequal_numbers_of_seeds_are_seldom_called_different():
    """With 3 seeds against 10, of scores as skewed as any, for which few seeds have another middle."""
    rng = np.random.default_rng(0)
    drawn = [(rng.exponential(size=3), rng.exponential(size=10)) for _ in range(400)]
    p_values = [permutation_p_value([a], [b], 9_999, rng) for a, b in drawn]
    assert (
        0.05 * 400 - 4 * math.sqrt(19.0)
        < sum(p <= 0.05 for p in p_values)
        <= 0.05 * 400 + 4 * math.sqrt(19.0)
    )


def test_where_nothing_was_found_that_could_have_been_it_says_so():
    scores = {"x": {"a": [1.0, 2.0, 3.0, 4.0, 5.0], "b": [1.1, 2.1, 2.9, 3.9, 5.1]}}
    assert str(compare(scores, "a", "b", resamples=100)).endswith(": no difference found")
    few = compare_all(far_apart(8, "abcd"), resamples=100, permutations=100)
    assert {each.undecidable for each in few} == {
        "cannot be decided with 100 permutations and 6 pairs: at least 119"
    }
    assert all(each.better for each in compare_all(far_apart(8, "abcd"), resamples=100, permutations=9_999))


def outcome(variants, tasks, stages, seeds):
    """Return what comes of the farthest apart of several variants that do not overlap."""
    names = [*"abc"[:variants]]
    # So many permutations that chance makes no 0.05 of 0.056, which is what two tasks of two seeds have.
    test, scores = AdaStop(names, stages, seeds, permutations=99_999), far_apart(seeds, names, tasks)
    while test.undecided:
        test.add({name: {task: scores[task][name] for task in scores} for name in test.undecided})
    return test.verdicts["a", names[-1]].outcome


@pytest.mark.parametrize(
    ("variants", "tasks", "stages", "seeds", "enough"),
    [
        (2, 1, 1, 2, (3, 4)),
        (2, 1, 1, 3, (2, 4)),
        (3, 1, 1, 2, (2, 3)),
        (2, 2, 1, 2, (2, 3)),
        (2, 1, 2, 2, (3, 3)),
    ],
)
def test_a_comparison_that_can_find_nothing_is_refused_with_what_could(
    variants, tasks, stages, seeds, enough
):
    more, larger = enough
    with pytest.raises(
        StudyError, match=f"cannot show that any .* at least stages={more} or seeds_per_stage={larger}"
    ):
        outcome(variants, tasks, stages, seeds)
    assert outcome(variants, tasks, more, seeds) == outcome(variants, tasks, stages, larger) == DIFFERENT
    # What is refused would have found nothing.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AdaStop, "check_power", lambda self, tasks: None)
        assert outcome(variants, tasks, stages, larger - 1) == UNDECIDABLE
        assert outcome(variants, tasks, more - 1, seeds) == UNDECIDABLE


def test_intervals_cover_the_truth():
    rng = np.random.default_rng(6)
    inside = 0
    for _ in range(60):
        scores = {"x": {"a": rng.normal(1.0, 1.0, 30), "b": rng.normal(0.0, 1.0, 30)}}
        found = compare(scores, "a", "b", resamples=200, permutations=100).difference
        inside += found.low <= 1.0 <= found.high
    assert 49 <= inside  # 0.95 less a little for percentiles and 30 seeds; 4 standard errors


@pytest.mark.slow
@pytest.mark.parametrize(("seeds", "share"), [(2, 50), (3, 75), (5, 90)])
def test_intervals_of_few_seeds_cover_as_often_as_is_said(seeds, share):
    assert f"of {seeds}" in comparison.caution(seeds) and f"{share}" in comparison.caution(9)
    assert comparison.caution(10) == ""
    rng = np.random.default_rng(seeds)
    inside = 0
    for _ in range(400):
        found = comparison.bootstrap([rng.standard_normal(seeds)], interquartile_mean, 500, rng)
        inside += found.low <= 0.0 <= found.high
    assert 100 * inside / 400 == pytest.approx(share, abs=8.0)  # about 3 standard errors


@pytest.mark.slow
@pytest.mark.parametrize("seeds, effect", [(10, 2.0), (30, 1.1)])
def test_fixed_studies_keep_their_level_and_find_differences(seeds, effect):
    rng = np.random.default_rng(seeds)
    alarms = found = 0
    for _ in range(200):
        first, second = rng.standard_normal((2, seeds))
        alarms += permutation_p_value([first], [second], 199, rng) <= 0.05
        found += permutation_p_value([first + effect], [second], 199, rng) <= 0.05
    assert 1 <= alarms <= 22  # 10 expected, 4 standard deviations
    assert found >= 0.87 * 200


@pytest.mark.slow
def test_sequential_studies_keep_their_level_over_all_stages():
    rng = np.random.default_rng(2)
    alarms = found = 0
    for number in range(400):
        equal, other = (SequentialComparison(5, 5, permutations=199, seed=number) for _ in range(2))
        for test, effect in ((equal, 0.0), (other, 1.5)):
            verdict = None
            while verdict is None or verdict.more_seeds:
                verdict = test.add(rng.standard_normal(5) + effect, rng.standard_normal(5))
            if effect:
                found += verdict.better == "first"
            else:
                alarms += verdict.outcome == DIFFERENT
    assert 2 <= alarms <= 37
    assert found >= 0.95 * 400


def test_runs_are_made_until_it_is_decided():
    asked = []

    def far_apart(seeds):
        asked.extend(seeds)
        return {"x": [0.01 * seed for seed in seeds]}, {"x": [5 + 0.01 * seed for seed in seeds]}

    verdict = compare_until_significant(far_apart, seeds_per_stage=5, first_seed=100)
    assert (verdict.outcome, verdict.better, verdict.seeds, verdict.more_seeds) == (DIFFERENT, "second", 5, 0)
    assert asked == list(range(100, 105)) and verdict.difference == pytest.approx(-5.0)
    verdict = compare_until_significant(lambda seeds: (list(seeds), list(seeds)), stages=3)
    assert str(verdict) == "no difference found" and verdict.seeds == 15
    test = SequentialComparison(stages=2, seeds_per_stage=3)
    assert str(test.add([1, 2, 3], [1, 2, 3])) == "undecided: run 3 more"


def test_of_several_variants_equal_ones_are_seldom_called_different_and_the_others_found():
    """At most one study in 20 has a false alarm; here two are equal, and one is better."""
    rng = np.random.default_rng(3)
    alarms = found = 0
    for number in range(200):
        test = AdaStop(list("abc"), 4, 5, permutations=199, seed=number)
        while test.undecided:
            test.add({name: rng.standard_normal(5) + 2.0 * (name == "c") for name in test.undecided})
        alarms += test.verdicts["a", "b"].outcome == DIFFERENT
        found += test.verdicts["a", "c"].better == test.verdicts["b", "c"].better == "c"
    assert 1 <= alarms <= 22  # 10 expected, 4 standard deviations
    assert found >= 0.9 * 200


def test_a_variant_whose_pairs_are_decided_needs_no_more_seeds():
    test = AdaStop(["far", "one", "two"], stages=3, seeds_per_stage=6, seed=1)
    assert test.undecided == ("far", "one", "two")
    near = np.arange(6.0)
    first = test.add({"far": {"x": near + 90}, "one": {"x": near}, "two": {"x": near + 0.1}})
    assert first["far", "one"].better == first["far", "two"].better == "far"
    assert (
        first["far", "one"].difference == pytest.approx(90.0) and str(first["one", "two"])[:9] == "undecided"
    )
    assert test.undecided == ("one", "two")
    with pytest.raises(StudyError, match="needs scores of"):
        test.add({"far": {"x": near}, "one": {"x": near}, "two": {"x": near}})
    for _ in range(2):
        test.add({"one": {"x": near}, "two": {"x": near}})
    assert test.verdicts["one", "two"].outcome == NOT_FOUND and test.verdicts["one", "two"].seeds == 18
    assert test.verdicts["far", "one"].seeds == 6 and test.undecided == ()


@pytest.mark.parametrize(
    ("stages", "seeds", "tasks", "left"),
    [(1, 3, "x", UNDECIDABLE), (1, 3, "xy", DIFFERENT), (1, 4, "x", DIFFERENT), (2, 4, "x", UNDECIDED)],
)
def test_a_pair_that_is_left_and_cannot_be_decided_any_more_says_so(stages, seeds, tasks, left):
    """There are 1,680 ways to deal out three variants of three seeds, and 20 for the two that are left."""
    test, near = AdaStop(["far", "one", "two"], stages, seeds), np.arange(float(seeds))
    given = {"far": near + 900, "one": near, "two": near + 90}  # which do not even overlap
    found = test.add({name: dict.fromkeys(tasks, scores) for name, scores in given.items()})
    assert found["far", "one"].better == found["far", "two"].better == "far"
    last = found["one", "two"]
    assert last.outcome == left and last.more_seeds == seeds * (left == UNDECIDED)
    assert (last.undecidable is None) == (left != UNDECIDABLE) and bool(test.undecided) == (left == UNDECIDED)
    if left == UNDECIDABLE:
        assert (
            str(last)
            == last.undecidable
            == (
                "cannot be decided with 2 variants left and 1 stage of 3 seeds: at least stages=2 or "
                "seeds_per_stage=4"
            )
        )


@pytest.mark.parametrize("offset", [0.0, 1e3, -1e9])
def test_scores_far_from_0_are_as_different_as_others(offset):
    """The same data, but for what it is counted from, with the same permutations."""
    rng = np.random.default_rng(5)
    a, b, far = (offset + rng.normal(middle, 1e-4, 8) for middle in (0.0, 1e-3, 1e3))
    found = SequentialComparison(seeds_per_stage=8, permutations=999).add(a, b)
    assert found.better == "second" and found.difference == pytest.approx(-1e-3, rel=0.2)
    verdicts = AdaStop(["a", "b", "far"], 1, 8).add({"a": a, "b": b, "far": far})
    assert verdicts["a", "b"].better == "b" and verdicts["b", "far"].better == "far"
    # What rounding makes of equal scores is no difference.
    a = offset + rng.normal(1.0, 1.0, 8)
    found = SequentialComparison(1, 8).add(a, np.nextafter(a, np.inf))
    assert found.outcome == NOT_FOUND


def test_step_down_finds_what_the_largest_difference_hid():
    """Failures of c make all boundaries wide: of a and b alone the difference is beyond what chance does."""
    rng = np.random.default_rng(0)
    a, b = rng.normal(0.0, 1.0, 8), rng.normal(6.0, 1.0, 8)
    c = rng.normal(1e3, 500.0, 8)
    verdicts = AdaStop(list("abc"), 1, 8).add({"a": a, "b": b, "c": c})
    assert {pair: verdict.better for pair, verdict in verdicts.items()} == {
        ("a", "b"): "b",
        ("a", "c"): "c",
        ("b", "c"): "c",
    }


def test_tables_of_pandas_are_scores_like_dicts():
    table = {"a": [1.0, 2.0, 4.0], "b": [3.0, 5.0, 6.0]}
    given, bounds = {"x": pd.DataFrame(table)}, pd.Series({"x": (0, 4)})
    expected = normalized({"x": table}, {"x": (0, 4)})
    assert expected["x"]["a"].tolist() == [0.25, 0.5, 1.0]
    for made in (normalized(given, {"x": (0, 4)}), normalized(given, bounds)):
        assert {name: each.tolist() for name, each in made["x"].items()} == {
            name: each.tolist() for name, each in expected["x"].items()
        }
    assert compare(given, "a", "b", bounds=bounds) == compare({"x": table}, "a", "b", bounds={"x": (0, 4)})
    assert compare_all(given) == compare_all({"x": table})
    made = normalized(pd.DataFrame({"x": {"a": 1.0, "b": 3.0}}), {"x": (0, 4)})
    assert {name: float(each) for name, each in made["x"].items()} == {"a": 0.25, "b": 0.75}


def test_a_single_number_has_a_middle_and_a_gap():
    assert interquartile_mean(3.0) == 3.0 and optimality_gap(0.25, axis=None) == 0.75


def test_holm_makes_many_equal_variants_no_different_ones():
    rng = np.random.default_rng(1)
    scores = {"x": {name: rng.standard_normal(12) for name in "abcd"}}
    found = compare_all(scores, **FAST)
    assert len(found) == 6
    assert all(each.adjusted_p_value >= each.p_value for each in found)
    scores["x"]["a"] = scores["x"]["a"] + 5.0
    assert [each.better for each in compare_all(scores, resamples=100)][:3] == ["a"] * 3


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: compare({"x": {"a": [1.0], "b": [1, 2]}}, "a", "b"), "1 seed, and 2 are the fewest"),
        (lambda: compare({"x": {"a": [1.0, np.nan], "b": [1, 2]}}, "a", "b"), "seed number 1"),
        (lambda: compare({**SCORES, "new": {"a": [1, 2]}}, "a", "b"), "'b' has no scores in .'new'"),
        (lambda: compare(SCORES, "a", "c"), r"no variant 'c'. Give one of \['a', 'b'\]"),
        (lambda: curve_with_interval(np.ones((2, 3)), average=np.array([1, 2])), "average must be 'iqm' or"),
        (lambda: compare(SCORES, "a", np.array([1, 2])), r"no variant array\(\[1, 2\]\). Give one of"),
        (lambda: compare(SCORES, "a", "a"), "compared with itself"),
        (lambda: compare(SCORES, "a", "b", bounds={"x": (0, 1)}), "Task 'y' has no bounds"),
        (lambda: compare(SCORES, "a", "b", bounds=dict.fromkeys("xyz", (1, 0))), "first must be below"),
        (lambda: compare(SCORES, "a", "b", level=5), "level must be between"),
        (lambda: compare(SCORES, "a", "b", resamples=3), "resamples must be a whole number of at least 100"),
        (lambda: compare_all({"x": {"a": [1, 2]}}), "needs two variants"),
        (lambda: SequentialComparison().add([1, 2], [1, 2]), "2 seeds, and a stage has 5"),
        (lambda: AdaStop("a"), "names of two variants"),
        (lambda: AdaStop(["a", "a"]), "names of two variants"),
        (lambda: AdaStop(["a", "b"]).check_power(0), "tasks must be a whole number of at least 1, got 0"),
        (lambda: AdaStop(["a", "b"]).check_power(math.nan), "tasks must be a whole number .* got nan"),
        (lambda: AdaStop(["a", "b"]).check_power("x"), "tasks must be a whole number .* got 'x'"),
        (lambda: AdaStop(["a", "b"], level=1e-3, permutations=998), "Give at least 999, or a larger level"),
        (lambda: SequentialComparison().add({1: range(5), "x": range(5)}, [1]), "tasks are text, got 1"),
        (lambda: SequentialComparison(1, 2).add({"x": [1, 2]}, {"y": [1, 2]}), "Tasks differ"),
        (lambda: curve_with_interval(np.ones((1, 5))), "2 seeds at least"),
        (lambda: curve_with_interval(np.ones((2, 5)), "median"), "average must be 'iqm' or 'mean'"),
        (lambda: sensitivity({"lr": [1]}, [1.0, 2.0]), "has 1 values, and there are 2 scores"),
        (lambda: compare(SCORES, "a", "b", bounds=dict.fromkeys("xyz", (0, 1, 2))), "two finite numbers"),
        (lambda: compare(SCORES, "a", "b", bounds=dict.fromkeys("xyz", ("0", "1"))), "two finite numbers"),
        (lambda: compare(SCORES, "a", "b", bounds=dict.fromkeys("xyz", 1.0)), "two finite numbers"),
        (lambda: compare(SCORES, "a", "b", bounds=[(0, 1)]), "bounds must be a dict of tasks, got list"),
        (lambda: compare(SCORES, "a", "b", bounds=dict.fromkeys("xyz", np.array(1.0))), "two finite numbers"),
        (lambda: compare({"x": {"a": [10**400, 1], "b": [1, 2]}}, "a", "b"), "must be numbers, .* too large"),
        (lambda: normalized([1], {"x": (0, 1)}), "must be a dict of tasks.*got list"),
        (lambda: normalized({"x": {"a": ["p"]}}, {"x": (0, 1)}), "Scores of 'a' in 'x' must be numbers"),
        (lambda: holm(0.1), "P-values must be numbers in a row, as a list, got 0.1"),
        (lambda: holm([[0.1, 0.2]]), "P-values must be numbers in a row"),
        (lambda: optimality_gap(0.5), "Scores must be numbers in a row, as a list, got 0.5"),
        (lambda: interquartile_mean(["x"]), "Values must be numbers"),
        (lambda: AdaStop(["a", "b"], permutations=10**400), "permutations must be below 2..63"),
        (lambda: compare([[1.0, 2.0]], "a", "b"), "must be a dict of tasks.*got list"),
        (lambda: compare_all([1, 2]), "must be a dict of tasks.*got list"),
        (lambda: compare_all({"a": [1.0, 2.0]}), "a dict of variants"),
        (lambda: curve_with_interval([[1.0, 2.0], [1.0]]), "Curves must be numbers"),
        (lambda: curve_with_interval([["a", "b"], ["c", "d"]]), "Curves must be numbers"),
        (lambda: curve_with_interval(np.ones((2, 5)), seed=-1), "seed must be a whole number"),
        (lambda: performance_profile(SCORES, "a", [0.5], seed="x"), "seed must be a whole number"),
        (lambda: performance_profile(SCORES, "a", ["x"]), "Thresholds must be numbers"),
        (lambda: performance_profile(SCORES, "a", [[0.5]]), r"in a row, got shape \(1, 1\)"),
        (lambda: performance_profile(SCORES, "a", [math.nan]), "Thresholds must be finite"),
        (lambda: sensitivity([1, 2], [1.0, 2.0]), "settings must be a dict of lists, got list"),
        (lambda: sensitivity({"lr": [[1], [2]]}, [1.0, 2.0]), "must be words or finite numbers"),
        (lambda: sensitivity({"lr": [1.0, math.nan]}, [1.0, 2.0]), "must be words or finite numbers"),
        (lambda: sensitivity({"lr": 3}, [1.0, 2.0]), "must be words or finite numbers"),
        (lambda: sensitivity({"lr": np.array(3)}, [1.0, 2.0]), "must be words or finite numbers"),
        (lambda: performance_profile(SCORES, "a", []), r"in a row, got shape \(0,\)"),
        (lambda: compare_until_significant(3), "must be a function"),
        (lambda: compare_until_significant(lambda seeds: None), "must return the scores of both"),
        (lambda: compare_until_significant(print, first_seed="x"), "first_seed must be a whole number"),
    ],
)
def test_what_cannot_be_compared_is_said(call, words):
    with pytest.raises(StudyError, match=words):
        call()


def test_after_the_end_no_more_seeds_are_looked_at():
    test = SequentialComparison(1, 5)
    test.add(range(5), range(10, 15))
    with pytest.raises(StudyError, match="has ended"):
        test.add(range(5), range(5))


def test_small_whole_numbers_of_numpy_are_counts_like_others():
    def seen(stages, per_stage, permutations, first):
        asked = []

        def runs(seeds):
            asked.append(list(seeds))
            return [seed % 3 for seed in seeds], [seed % 3 for seed in seeds]

        verdict = compare_until_significant(
            runs, stages=stages, seeds_per_stage=per_stage, permutations=permutations, first_seed=first
        )
        return asked, verdict.seeds

    small = seen(np.int8(5), np.int8(30), np.int16(2**15 - 1), np.int8(100))
    assert small == seen(5, 30, 2**15 - 1, 100)
    assert str(compare_all(SCORES, permutations=np.int16(2**15 - 1))) == str(
        compare_all(SCORES, permutations=2**15 - 1)
    )


def test_curves_and_profiles():
    curves = np.random.default_rng(0).normal(size=(40, 3)) + np.array([0.0, 5.0, 10.0])
    band = curve_with_interval(curves, "mean")
    assert band.middle == pytest.approx(curves.mean(axis=0))
    # A percentile interval of means is about 1.96 standard errors wide on each side.
    standard_errors = curves.std(axis=0) / math.sqrt(40)
    assert (band.high - band.low) / (2 * standard_errors) == pytest.approx(np.full(3, 1.96), rel=0.1)
    profile = performance_profile(SCORES, "a", [-1.0, 0.5, 2.0])
    assert profile.middle == pytest.approx([1.0, (A > 0.5).mean(), 0.0])
    assert (profile.low <= profile.middle).all() and (profile.middle <= profile.high).all()
    assert profile.low[0] == 1.0 and profile.high[2] == 0.0


def test_a_setting_that_matters_explains_the_variance():
    rng = np.random.default_rng(3)
    rate, other = np.repeat([0.1, 0.5], 200), rng.permutation(np.repeat(["u", "v"], 200)).tolist()
    # Half of the variance is of the rate: its values are 2 apart, and noise has a standard deviation of 1.
    scores = 2.0 * (rate == 0.5) + rng.standard_normal(400)
    found = sensitivity({"other": other, "rate": rate.tolist(), "size": rng.random(400).tolist()}, scores)
    assert next(iter(found)) == "rate"
    assert found["rate"].explained == pytest.approx(0.5, abs=0.08) and found["other"].explained < 0.05
    assert found["rate"].values == ("0.1", "0.5") and found["rate"].means == pytest.approx([0, 2], abs=0.3)
    assert len(found["size"].values) == 5 and found["size"].runs.sum() == 400


def test_a_value_that_most_runs_have_is_no_range_with_others():
    for rare in ([0.2, 0.3, 0.4, 0.5, 0.6], [0.02, 0.03, 0.04, 0.2, 0.3], [0.2, 0.3, 0.4, 0.5, 0.5]):
        rates = [0.1] * 95 + rare
        found = sensitivity({"rate": rates}, [0.0] * 95 + [1.0] * 5, bins=4)["rate"]
        assert found.explained == pytest.approx(1.0) and found.runs.sum() == 100
        common = found.values.index("0.1")
        assert found.runs[common] == 95 and found.means[common] == 0.0
        assert np.delete(found.means, common) == pytest.approx(1.0)
    assert found.values == ("0.1", "0.2 to 0.5")
    # 1 is of 2 in 10 runs, 10 of 4; what is between is halved.
    sizes = [1] * 2 + [2, 3, 4, 5] + [10] * 4
    found = sensitivity({"size": sizes}, np.arange(10.0), bins=5)["size"]
    assert found.values == ("1", "2 to 3", "4 to 5", "10") and found.runs.tolist() == [2, 2, 2, 4]
    assert found.means == pytest.approx([0.5, 2.5, 4.5, 7.5])


def test_pictures_show_what_they_are_given(tmp_path):
    x, band = np.arange(3.0), (np.array([1, 2, 3]), np.array([0, 1, 2]), np.array([2, 3, 4]))
    figure = plotting.plot_learning_curves(x, {"one": band, "two": band}, "Curves")
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["one", "two"]
    assert figure.axes[0].lines[0].get_ydata().tolist() == [1, 2, 3]
    figure = plotting.plot_profiles(x, {"one": tuple(each / 4 for each in band)})
    assert figure.axes[0].get_ylabel() == "fraction of runs above it"
    figure = plotting.plot_sensitivity({"rate": ("abc", *band)}, {"rate": 0.25})
    assert figure.axes[0].get_title(loc="left") == "rate: 25% of the variance"
    figure = plotting.plot_comparison({"IQM": {"one": (1, 0.5, 2)}}, {"IQM": 0.0})
    (bar,) = figure.axes[0].patches
    assert (bar.get_x(), bar.get_width()) == (0.5, 1.5)
    assert plotting.save(figure, tmp_path / "bars.png").stat().st_size > 1_000
    with pytest.raises(PlotError, match="nothing to draw"):
        plotting.plot_profiles(x, {})
    with pytest.raises(PlotError, match="Give three of shape"):
        plotting.plot_learning_curves(x, {"one": (x, x, x[:2])})
