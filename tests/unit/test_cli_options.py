import dataclasses
import inspect
import re

import pytest

from dist_classicrl import DistAsyncQLearning
from dist_classicrl.checks import OneOf
from dist_classicrl.cli import options
from dist_classicrl.cli.main import main
from dist_classicrl.cli.option_types import (
    Choice,
    Flag,
    Mode,
    Names,
    Real,
    Schedule,
    StepsOrTime,
    Text,
    Time,
    Whole,
    WholeOr,
)
from dist_classicrl.cli.options import OF_SETTINGS, OF_TRAIN, OPTIONS
from dist_classicrl.engines.engine import PARTITIONS
from dist_classicrl.errors import SettingsError
from dist_classicrl.learning.supersteps.owners import check_partition
from dist_classicrl.schedules import Constant, Exponential, Linear, PerVisit, Piecewise
from dist_classicrl.settings import ByRule, Settings

# Of train: what is no setting, but an object, or one of two ways to say the same. A run has one environment.
# Of the last two the command has its own: --quiet, --verbose, and a bar where its output is a terminal.
NO_OPTIONS = {
    *("self", "env", "new_env", "steps", "progress", "callbacks"),
    *("progress_bar", "verbose"),
    "placement",  # a setting, which a call may override
}


def test_every_setting_is_an_option_with_the_default_of_the_library():
    fields = {field.name: field.default for field in dataclasses.fields(Settings)}
    assert {option.name: option.default for option in OF_SETTINGS} == fields
    constructor = inspect.signature(DistAsyncQLearning).parameters
    assert set(constructor) - {"comm"} == set(fields)


def test_every_argument_of_train_is_an_option_with_the_default_of_the_library():
    parameters = inspect.signature(DistAsyncQLearning.train).parameters
    assert {option.name for option in OF_TRAIN} == set(parameters) - NO_OPTIONS
    # These are not left to the library: a run needs a length, and a terminal wants to see more.
    own = {"total_steps", "progress_interval"}
    for option in OF_TRAIN:
        assert option.name in own or option.default == parameters[option.name].default, option.name


def test_the_words_to_choose_from_are_those_of_the_library():
    checks = {field.name: field.metadata["check"] for field in dataclasses.fields(Settings)}
    words = {name: check.words for name, check in checks.items() if isinstance(check, OneOf)}
    assert {"algorithm", "dtype", "communication_backend", "on_failure", "on_error"} <= set(words)
    assert {name: OPTIONS[name].kind.words for name in words} == words


@pytest.mark.parametrize(
    ("name", "word", "said"),
    [
        ("device", "gpu", "is written device='cuda'"),
        ("communication_backend", "nccl", "needs one GPU per rank"),
    ],
)
def test_a_word_that_the_library_refuses_for_a_reason_is_refused_for_it(name, word, said):
    with pytest.raises(SettingsError, match=said):
        Settings(**{name: word})
    with pytest.raises(ValueError, match=said):
        OPTIONS[name].kind.of_text(word)


def test_partitions_to_choose_from_are_those_of_the_library():
    for partition in PARTITIONS:
        check_partition(partition)
    with pytest.raises(SettingsError) as caught:
        check_partition("even")
    named = str(caught.value).partition(", or a function")[0]
    assert named == "partition must be " + ", ".join(f'"{each}"' for each in PARTITIONS)


def test_no_option_is_there_twice():
    every = [*OF_SETTINGS, *OF_TRAIN, *options.OF_COMMAND]
    assert len(OPTIONS) == len(every)


def test_the_help_of_train_has_every_option_and_its_default(capsys):
    main(["train", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    for option in OPTIONS.values():
        assert f"--{option.name.replace('_', '-')} " in said
    for shown in (
        "[default: linear:1.0:0.1:fraction=0.5]",
        "[default: SIGUSR1,SIGUSR2,SIGTERM]",
        "[default: 600]",
        "[default: yes]",
    ):
        assert shown in said


@pytest.mark.parametrize("option", OPTIONS.values(), ids=OPTIONS)
def test_a_default_is_the_same_after_a_file(option):
    if option.default is not None:
        default = option.default.usual if isinstance(option.default, ByRule) else option.default
        assert option.kind.of_data(option.kind.to_data(default)) == default


@pytest.mark.parametrize(
    "kind, text, value",
    [
        (Whole(), "1e8", 100_000_000),
        (Whole(), "1_000", 1000),
        (Whole(), "9007199254740993", 9007199254740993),
        (Real(), "1e-3", 0.001),
        (WholeOr("auto"), "auto", "auto"),
        (WholeOr("auto"), "12", 12),
        (StepsOrTime(), "1e6", 1_000_000),
        (StepsOrTime(), "1.5min", "1.5min"),
        (Time(), "90", 90.0),
        (Time(), "1:30:00", "1:30:00"),
        (Names(), "SIGUSR1, SIGTERM", ("SIGUSR1", "SIGTERM")),
        (Names(), "", ()),
        (Mode(), "640", 0o640),
        (Mode(), "0o640", 0o640),
        (Flag(), "TRUE", True),
        (Choice("a", "b"), "b", "b"),
        (Schedule(), "0.25", 0.25),
        (Schedule(), "constant:0.25", Constant(0.25)),
        (Schedule(), "linear:1.0:0.05:1e6", Linear(1.0, 0.05, 1_000_000)),
        (Schedule(), "linear:1.0:0.05:fraction=0.07", Linear(1.0, 0.05, fraction=0.07)),
        (Schedule(), "exponential:1.0:0.05:fraction=1.0", Exponential(1.0, 0.05, fraction=1.0)),
        (Schedule(), "exponential:1:0.05:1e3", Exponential(1.0, 0.05, 1000)),
        (
            Schedule(),
            "piecewise:0=1.0:1e3=0.5:1000=0.2:2e3=0",
            Piecewise([(0, 1), (1e3, 0.5), (1e3, 0.2), (2e3, 0)]),
        ),
        (Schedule(), "piecewise:0=1:0.5=0.1:fraction=0.9", Piecewise([(0, 1), (0.5, 0.1)], fraction=0.9)),
        (Schedule(), "per_visit:0.7", PerVisit(0.7)),
        (Schedule(), "PerVisit:0.7:0.5", PerVisit(0.7, 0.5)),
        (Schedule(), "per_visit:0.6:offset=30", PerVisit(0.6, offset=30.0)),
    ],
)
def test_words_of_the_command_line_mean_values(kind, text, value):
    found = kind.convert(text, None, None)
    assert (found, type(found)) == (value, type(value))
    if not isinstance(kind, Flag):
        assert kind.of_data(kind.to_data(found)) in (value, getattr(value, "value", value))


@pytest.mark.parametrize(
    "kind, data, value",
    [
        (Whole(), 1e8, 100_000_000),
        (Real(), 1, 1.0),
        (Whole(0), 0, 0),
        (Mode(), 0o640, 0o640),
        (Names(), ["SIGTERM"], ("SIGTERM",)),
        (Schedule(), {"kind": "linear", "initial": 1, "final": 0.1, "steps": 1e5}, Linear(1.0, 0.1, 100_000)),
        (Schedule(), {"kind": "PerVisit", "exponent": 0.7}, PerVisit(0.7)),
        (Time(), 90, 90.0),
    ],
)
def test_values_of_a_file_mean_values(kind, data, value):
    found = kind.of_data(data)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    "kind, text, match",
    [
        (Whole(1), "0", "whole number of at least 1"),
        (Whole(), "1.5", "whole number"),
        (Whole(), "inf", "whole number"),
        (Whole(), "9.007199254740993e15", "write all its digits"),
        (Whole(), "123456789012345678.0", "write all its digits"),
        (Whole(0), "-1", "whole number of at least 0"),
        (Real(0.0), "-1", "at least 0"),
        (Real(), "nan", "a number"),
        (StepsOrTime(), "30 parsecs", "30s or 5min"),
        (Time(), "soon", "1:30:00"),
        (Mode(), "999", "permission bits"),
        (Choice("float64", "float32"), "flaot64", "one of float64, float32. Did you mean 'float64'?"),
        (Schedule(), "linaer:1:0:5", "Did you mean 'linear'?"),
        (Schedule(), "linear", "It takes initial, final, steps"),
        (Schedule(), "linear:1:0:x", "linear:1.0:0.05:1e6"),
        (Schedule(), "linear:1:0:0", "steps must be a whole number of at least 1"),
        (Schedule(), "linear:1:0", "exactly one of them; got steps=None and fraction=None"),
        (Schedule(), "linear:1:0:fraction=2", "fraction must be above 0 and at most 1"),
        (Schedule(), "linear:1:0:fraktion=0.5", "It has no 'fraktion'. Did you mean 'fraction'?"),
        (Schedule(), "linear:1:0:1e6:call=1", "It has no 'call'"),
        (Schedule(), "perhaps", "per_visit:0.7"),
    ],
)
def test_words_that_mean_nothing_are_refused(kind, text, match):
    with pytest.raises(ValueError) as caught:
        kind.of_text(text)
    assert match in kind.complaint(text, caught.value)


@pytest.mark.parametrize("given", ["per_visit:0.7", {"kind": "PerVisit", "exponent": 0.7}])
def test_a_chance_that_follows_visits_is_refused_with_the_kinds_there_are(given):
    with pytest.raises(ValueError, match=r"The kinds are constant, linear, exponential, piecewise\."):
        OPTIONS["epsilon"].kind.of_data(given)


@pytest.mark.parametrize("name", ["epsilon", "learning_rate"])
@pytest.mark.parametrize(
    "text",
    [
        "linear:1:0.1",
        "linear",
        "exponential:1:0",
        "per_visit:2",
        "perhaps",
        "linaer:1:0.1:100",
        "piecewise:0=1",
    ],
)
def test_schedules_are_offered_as_they_are_written_and_where_they_may_be(name, text):
    """A chance cannot follow visits, and nobody types Linear(...) on the command line."""
    kind = OPTIONS[name].kind
    with pytest.raises(ValueError) as caught:
        kind.of_text(text)
    said = kind.complaint(text, caught.value).removeprefix(repr(text))
    assert "linear:1.0:0.05:fraction=0.5" in said and "exponential:1.0:0.05:1e6" in said
    assert ("per_visit:0.7" in said) == (name == "learning_rate")
    assert not re.search(r"\b(Linear|Exponential|Piecewise|PerVisit)\(", said)
    with pytest.raises(ValueError, match="The kinds are constant, linear, exponential") as caught:
        kind.of_data({"initial": 1.0})
    assert ("per_visit" in str(caught.value)) == (name == "learning_rate")


@pytest.mark.parametrize(
    "kind, data, hint",
    [
        (Whole(), "1e8", "Leave out the quotes."),
        (Whole(), "many", ""),
        (
            Whole(),
            9007199254740993.0,
            "From 2**53 on, write all its digits: with a point or an e it is rounded.",
        ),
        (Real(), True, ""),
        (Real(), 10**400, ""),
        (Schedule(), 10**400, ""),
        (Flag(), 1, ""),
        (Text(), 1, ""),
        (Names(), "SIGTERM", ""),
        (Schedule(), {"kind": "linear", "initial": 1, "finl": 0, "steps": 5}, "Did you mean 'final'?"),
        (Schedule(), {"kind": "liner"}, "Did you mean 'linear'?"),
        (Schedule(), {"initial": 1}, "The kinds are constant, linear, exponential, piecewise, per_visit."),
        (Schedule(), [1, 2], ""),
    ],
)
def test_values_of_another_type_are_refused(kind, data, hint):
    with pytest.raises(ValueError) as caught:
        kind.of_data(data)
    assert hint in str(caught.value) and bool(hint) == bool(str(caught.value).strip())
