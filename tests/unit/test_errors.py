"""Errors go from process to process, as pools of processes bring them home, and can be copied."""

import copy
import inspect
import pickle
import re
from pathlib import Path

import pytest

from dist_classicrl import errors

ARGUMENTS = {
    "message": "what went wrong",
    "code": 74,
    "reason": "the time limit of 2 s",
    "checkpoint": "runs/agent-0",
    "steps": 500,
    "folder": Path("study"),
    "rank": 3,
    "host": "node7",
    "summary": "ValueError: no",
    "remote_traceback": "Traceback ...",
    "is_cut_off": True,
}
"""Of all constructors, by name."""

CLASSES = [
    each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, BaseException)
]


def made(kind):
    """Return an error with all that it can be given, and its arguments by name."""
    own = inspect.isfunction(kind.__init__)
    given = {name: ARGUMENTS[name] for name in (inspect.signature(kind).parameters if own else ["message"])}
    error = kind(*given.values())
    if kind is errors.StateLimitError:
        error.steps = given["steps"] = ARGUMENTS["steps"]
    return error, given


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize(
    "way", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy, copy.deepcopy], ids=["p", "c", "d"]
)
def test_an_error_that_was_pickled_or_copied_says_the_same(kind, way):
    error, given = made(kind)
    error.note = "of the user's own"
    again = way(error)
    assert type(again) is kind and again is not error
    assert str(again) == str(error) and vars(again) == vars(error) and again.args == error.args
    for name, value in given.items():
        if name == "message":
            assert str(again) == value
        else:
            assert getattr(again, name) == value


def test_all_errors_that_users_see_are_among_these():
    """Whatever else is a class of error in this package ends within it."""
    source = Path(errors.__file__).parent
    heads = re.compile(r"^class (\w+)\(([^)]*(?:DistClassicRLError|SystemExit)[^)]*)\)", re.MULTILINE)
    found = {head[0] for path in source.rglob("*.py") for head in heads.findall(path.read_text())}
    assert len(found) > 20 and found <= {kind.__name__ for kind in CLASSES}
