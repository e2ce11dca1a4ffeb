"""What `train` takes about checkpoints and stopping: what it means, and what is refused and how."""

import math
import os
import signal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dist_classicrl import durations
from dist_classicrl.checkpoint.plan import checkpoint_plan
from dist_classicrl.errors import SettingsError


def plan(**arguments):
    return checkpoint_plan(**{"checkpoint_dir": "/tmp/run", **arguments})


def refused(**arguments):
    with pytest.raises(SettingsError) as caught:
        plan(**arguments)
    assert all(name in str(caught.value) for name in arguments)
    return str(caught.value)


def test_the_defaults():
    made = plan()
    assert made.checkpoint_dir == "/tmp/run"
    assert made.checkpoint_interval == (None, 30.0)
    assert (made.keep_last, made.keep_every, made.resume, made.strict) == (3, None, "auto", True)
    assert made.time_limit is None
    assert made.stop_signals == (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM)
    assert made.checkpoint_mode == 0o600


# Without a folder


def test_without_a_folder_there_is_no_plan_and_equal_ways_to_write_the_defaults_are_taken():
    assert plan(checkpoint_dir=None) is None
    same = {
        "checkpoint_interval": "0.5min",
        "keep_last": np.int64(3),
        "strict": np.True_,
        "stop_signals": ["TERM", signal.SIGUSR2, signal.SIGUSR1.value],
        "checkpoint_mode": 384,
    }
    assert plan(checkpoint_dir=None, **same) is None


DIFFERENT = {
    "checkpoint_interval": 30,
    "keep_last": 4,
    "keep_every": 10,
    "resume": "never",
    "strict": False,
    "time_limit": "1h",
    "stop_signals": (),
    "checkpoint_mode": 0o640,
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_without_a_folder_no_argument_is_ignored(name):
    with pytest.raises(SettingsError, match=f"^{name} would be ignored.*checkpoint_dir=.*leave out {name}"):
        plan(checkpoint_dir=None, **{name: DIFFERENT[name]})


def test_all_the_ignored_are_named():
    with pytest.raises(SettingsError) as caught:
        plan(checkpoint_dir=None, **DIFFERENT)
    assert ", ".join(DIFFERENT) + " would be ignored" in str(caught.value)


def test_without_a_folder_nonsense_is_still_nonsense():
    with pytest.raises(SettingsError, match="keep_last must be a whole number"):
        plan(checkpoint_dir=None, keep_last="many")


# checkpoint_dir


def test_a_relative_folder_is_absolute_at_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = plan(checkpoint_dir="runs/../one")
    monkeypatch.chdir("/")
    assert made.checkpoint_dir == str(tmp_path / "one")


def test_a_relative_folder_in_a_directory_that_is_gone_is_named(tmp_path, monkeypatch):
    (gone := tmp_path / "gone").mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert "checkpoint_dir='one' is a path below the working directory, which has been removed" in refused(
        checkpoint_dir="one"
    )
    assert plan(checkpoint_dir=tmp_path / "one").checkpoint_dir == str(tmp_path / "one")


@pytest.mark.parametrize("value", ["one/a b:c", Path("one/a b:c"), "./one//a b:c/"])
def test_ways_to_write_a_folder(tmp_path, monkeypatch, value):
    monkeypatch.chdir(tmp_path)
    assert plan(checkpoint_dir=value).checkpoint_dir == f"{tmp_path}/one/a b:c"


@pytest.mark.parametrize("url", ["s3://bucket/run", "simplecache::s3://b/x"])
def test_permissions_behind_a_url_are_refused_and_not_ignored(url):
    assert plan(checkpoint_dir=url, checkpoint_mode=0o600).checkpoint_dir == url
    assert "0o640 would be ignored" in refused(checkpoint_dir=url, checkpoint_mode=0o640)


@pytest.mark.parametrize(
    "url", ["s3://bucket/run", "memory://run", "gs://b/a%20b", "abfss://c@a.dfs/x", "simplecache::s3://b/x"]
)
def test_urls_stay_as_they_are_but_for_a_slash_at_the_end(url):
    assert plan(checkpoint_dir=url).checkpoint_dir == url
    assert plan(checkpoint_dir=f"{url}/").checkpoint_dir == url


def test_a_scheme_has_one_spelling():  # agents are numbered per folder
    assert plan(checkpoint_dir="S3://Bucket/Run").checkpoint_dir == "s3://Bucket/Run"


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("file:///a/b", "/a/b"),
        ("FILE:///a/b/", "/a/b"),
        ("file://localhost/a/b", "/a/b"),
        ("local:///a/b", "/a/b"),
        (Path("/a/b ü#?%").as_uri(), "/a/b ü#?%"),
    ],
)
def test_a_file_url_becomes_a_path(url, path):
    assert plan(checkpoint_dir=url).checkpoint_dir == path


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("~/ck", "/home/me/ck"),
        (Path("~/ck"), "/home/me/ck"),
        ("~", "/home/me"),
        ("./~/ck", f"{os.getcwd()}/~/ck"),
        ("file:///~/ck", "/~/ck"),
        ("s3://~/ck", "s3://~/ck"),
    ],
)
def test_the_home_of_the_user_has_its_short_name(given, path, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert plan(checkpoint_dir=given).checkpoint_dir == path


def test_a_folder_whose_name_looks_like_a_url(tmp_path):
    assert plan(checkpoint_dir="/a/s3://b").checkpoint_dir == "/a/s3:/b"
    assert plan(checkpoint_dir="./s3:/b").checkpoint_dir == os.path.abspath("s3:/b")


class BytesPath:
    def __fspath__(self):
        return b"run"


@pytest.mark.parametrize("value", ["", "  ", b"run", BytesPath(), 3, True, ["run"], Path])
def test_what_is_no_folder(value):
    assert "path of a folder" in refused(checkpoint_dir=value)


@pytest.mark.parametrize("url", ["s3://", "://b", "3s://b", "s 3://b"])
def test_an_incomplete_url(url):
    assert "no complete URL" in refused(checkpoint_dir=url)


def test_a_url_that_went_through_pathlib():
    assert '"./s3:/bucket/run"' in refused(checkpoint_dir=Path("s3://bucket/run"))


@pytest.mark.parametrize("url", ["file://server/a", "file://a", "file://./a"])
def test_a_file_url_of_another_machine_or_relative(url):
    assert "file:///path" in refused(checkpoint_dir=url)


@pytest.mark.parametrize("value", ["a\0b", "file:///a%00b"])
def test_a_path_with_a_nul(value):
    assert "NUL" in refused(checkpoint_dir=value)


# checkpoint_interval


@pytest.mark.parametrize("value", [1, 10_000, np.int32(7), np.uint64(8), 1e6, np.float32(64.0), 2**70])
def test_an_interval_in_steps(value):
    made = plan(checkpoint_interval=value)
    assert type(made.checkpoint_interval.steps) is int and made.checkpoint_interval.steps == value
    assert made.checkpoint_interval.seconds is None


TEXTS = [
    ("30s", 30),
    ("500ms", 0.5),
    ("1.5min", 90),
    ("5m", 300),
    ("2h", 7200),
    ("1d", 86400),
    (" 0.25 s ", 0.25),
]


@pytest.mark.parametrize(("text", "seconds"), TEXTS)
def test_an_interval_in_seconds(text, seconds):
    made = plan(checkpoint_interval=text)
    assert made.checkpoint_interval.steps is None
    assert type(
        made.checkpoint_interval.seconds
    ) is float and made.checkpoint_interval.seconds == pytest.approx(seconds, rel=1e-15)


@pytest.mark.parametrize(
    "value",
    [0, -1, True, np.True_, 1.5, math.nan, math.inf, None, (30,), b"30s"]
    + [
        "",
        "0s",
        "-1s",
        "1e3s",
        "nans",
        "infs",
        "9" * 400 + "s",
        "30S",
        "5M",
        "30 sec",
        "1h30m",
        "٣s",
        "5:00",
        "s",
    ],
)
def test_what_is_no_interval(value):
    message = refused(checkpoint_interval=value)
    assert "100_000" in message and '"30s"' in message


@pytest.mark.parametrize("text", ["30", " 30 "])
def test_a_bare_number_as_an_interval(text):
    message = refused(checkpoint_interval=text)
    assert '"30s" for seconds, "30min" for minutes, or 30 without quotes for steps' in message


# time_limit


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(3300, 3300), (0.5, 0.5), (np.float64(9), 9), (np.int8(9), 9)]
    + TEXTS
    + [("55:00", 3300), ("2:30", 150), ("90:00", 5400), ("0:01", 1), ("01:00:00", 3600), ("48:00:01", 172801)]
    + [("1-0", 86400), ("2-12", 216000), ("1-02:30", 95400), ("1-02:03:04", 93784), ("0-0:01", 60)],
)
def test_a_time_limit(value, seconds):
    limit = plan(time_limit=value).time_limit
    assert type(limit) is float and limit == pytest.approx(seconds, rel=1e-15)


@pytest.mark.parametrize(
    "value",
    [
        0,
        -1,
        True,
        math.nan,
        math.inf,
        (1,),
        b"1h",
        "",
        "0:00",
        "0s",
        "1:60",
        "1:2",
        "1:60:00",
        "1-24",
        "-1:00",
    ]
    + [
        "1-",
        "1-2-3",
        "1:2:3:4",
        "1-02:60",
        "1-02:03:60",
        "1-02:03:04:05",
        "UNLIMITED",
        "inf",
        "1:00:00h",
        "9" * 400 + ":00",
    ],
)
def test_what_is_no_time_limit(value):
    message = refused(time_limit=value)
    assert '"55min"' in message and "D-HH:MM:SS" in message


def test_a_bare_number_as_a_time_limit():
    message = refused(time_limit="55")
    assert '"55s" for seconds, "55min" for minutes, or "55:00" for minutes' in message


# Durations


@given(st.floats(0.001, 1e8) | st.integers(1, 10**7) | st.integers(1, 10**4).map(lambda n: 60 * n))
def test_a_duration_shown_is_one_that_can_be_written(seconds):
    assert durations.with_unit(durations.shown(seconds)) == pytest.approx(seconds, rel=1e-9)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(3300, "55 min"), (5400, "90 min"), (7200, "2 h"), (86400, "1 d"), (90, "90 s"), (0.5, "0.5 s")],
)
def test_a_duration_is_shown_in_a_unit_that_fits(seconds, text):
    assert durations.shown(seconds) == text


# What is left


@pytest.mark.parametrize("name", ["keep_last", "keep_every"])
@pytest.mark.parametrize("value", [0, -1, 1.0, True, "3", math.inf])
def test_what_is_no_number_to_keep(name, value):
    assert "at least 1" in refused(**{name: value})


def test_numbers_to_keep():
    made = plan(keep_last=1, keep_every=np.int64(10))
    assert (made.keep_last, made.keep_every) == (1, 10)
    assert "keep_last must be a whole number of at least 1, got None" in refused(keep_last=None)


@pytest.mark.parametrize(
    ("value", "meaning"),
    [("auto", "auto"), ("must", "must"), (True, "must"), (np.True_, "must")]
    + [("never", "never"), (False, "never"), (np.False_, "never")],
)
def test_resume(value, meaning):
    assert plan(resume=value).resume == meaning


@pytest.mark.parametrize("value", [None, 1, 0, 1.0, "AUTO", "", "yes", ["auto"]])
def test_what_is_no_resume(value):
    message = refused(resume=value)
    assert '"auto"' in message and '"must"' in message and '"never"' in message


def test_strict():
    assert plan(strict=False).strict is False
    assert "True or False" in refused(strict="no")


@pytest.mark.parametrize(
    ("value", "signals"),
    [
        ((), ()),
        (["USR1"], (signal.SIGUSR1,)),
        ((signal.SIGTERM, "SIGTERM", "TERM", np.int64(signal.SIGTERM)), (signal.SIGTERM,)),
        (np.array([signal.SIGUSR2, signal.SIGHUP]), (signal.SIGHUP, signal.SIGUSR2)),
        (["RTMIN", "QUIT"], (signal.SIGQUIT, signal.SIGRTMIN)),
    ],
)
def test_stop_signals(value, signals):
    made = plan(stop_signals=value).stop_signals
    assert made == signals and all(type(each) is signal.Signals for each in made)


@pytest.mark.parametrize("value", ["SIGUSR1", b"SIGUSR1", None, signal.SIGUSR1, 10])
def test_what_is_no_list_of_signals(value):
    message = refused(stop_signals=value)
    assert '("SIGUSR1",)' in message and "() for none" in message


@pytest.mark.parametrize("value", ["SIGUSR3", "usr1", "", "SIG_DFL", 0, 1000, -1, True, 10.0, None, b"USR1"])
def test_what_is_no_signal(value):
    assert f"holds {value!r}, which is no signal" in refused(stop_signals=[value])


@pytest.mark.parametrize(
    ("names", "why"),
    [
        ("KILL STOP", "no program can catch it"),
        ("INT", "it stops the training always"),
        ("SEGV BUS FPE ILL ABRT TRAP SYS", "crashed"),
        ("CHLD CONT URG WINCH TSTP TTIN TTOU", "asks no program to end"),
    ],
)
def test_signals_that_cannot_ask_to_stop(names, why):
    for name in names.split():
        message = refused(stop_signals=("SIGUSR1", name))
        assert f"must not hold SIG{name}: " in message and why in message


@pytest.mark.parametrize("value", [0o600, 0o640, 0o644, 0o660, 0o664, 0o666, np.int64(0o600)])
def test_modes(value):
    mode = plan(checkpoint_mode=value).checkpoint_mode
    assert type(mode) is int and mode == value


@pytest.mark.parametrize(
    "value",
    [0, 0o400, 0o200, 0o066, 0o700, 0o610, 0o601, 0o1600, 0o4644, 640, 644, -1, True, "640", 384.0, None],
)
def test_what_is_no_mode(value):
    assert "Write 0o640 to let your group read" in refused(checkpoint_mode=value)


def test_a_mode_in_decimal_digits_is_shown_in_octal_ones():
    assert "640 (0o1200)" in refused(checkpoint_mode=640)
