"""Kinds of values of options: how each is written on the command line and in a TOML file."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import click

from dist_classicrl import durations
from dist_classicrl._urls import has_password, without_password
from dist_classicrl._words import nearest
from dist_classicrl.checks import as_float

_MOST = 2**63 - 1
_ROUNDED = 2.0**53  # from here on, a float may stand for another whole number than was written

Decorator = Callable[[Any], Any]


def option(*words: str, help: str, shown: str | None = None, **about: Any) -> Decorator:
    """Return an option whose help ends with its default: as it is `shown`, or a text or a number as it is."""
    default = about.get("default")
    if shown is None and isinstance(default, (str, int, float)):
        shown = f"{default:g}" if isinstance(default, float) else str(default)
    return click.option(*words, help=f"{help}  [default: {shown}]" if shown else help, **about)


def together(*decorators: Decorator) -> Decorator:
    """Return what does the same as these decorators, each in a line."""
    return lambda function: reduce(lambda made, decorator: decorator(made), reversed(decorators), function)


class Kind(click.ParamType):
    """A kind of value."""

    name = "value"  # how the help names a value
    allowed = "a value"  # what is allowed, in words

    def of_text(self, text: str) -> Any:
        """Return what a word of the command line means; ValueError if that is nothing of this kind."""
        raise NotImplementedError

    def of_data(self, data: Any) -> Any:
        """Return what a value of a TOML file means: a text, what it means on the command line."""
        if not isinstance(data, str):
            raise ValueError
        return self.of_text(data)

    def to_data(self, value: Any) -> Any:
        """Return the value of a TOML file that means `value`."""
        return value

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return what a word of the command line means, as click asks for it."""
        if not isinstance(value, str):
            return value
        try:
            return self.of_text(value)
        except ValueError as error:
            self.fail(self.complaint(value, error), param, ctx)

    def complaint(self, value: Any, error: ValueError) -> str:
        """Return what is wrong with `value`, which raised `error`."""
        return f"{value!r} is not {self.allowed}. {str(error).strip()}".strip()


class Whole(Kind):
    """Whole numbers, also as 1e8."""

    name = "integer"
    allowed = "a whole number, such as 1000 or 1e8"

    def __init__(self, least: int | None = None, most: int = _MOST) -> None:
        self._least, self._most = least, most
        if least is not None:
            self.allowed = f"a whole number of at least {least}"

    def of_text(self, text: str) -> int:
        """Read a number; underscores may part its digits."""
        try:
            value = int(text)
        except ValueError:
            return self.of_data(_number(text))
        return self.of_data(value)

    def of_data(self, data: Any) -> int:
        """Take a whole number, also one that is written as a float."""
        value = int(data) if isinstance(data, float) and data.is_integer() else data
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if not is_whole or (self._least is not None and value < self._least):
            raise ValueError(_quotes(data))
        if abs(value) > self._most:
            raise ValueError(f"It is too large: the most is {self._most}.")
        if isinstance(data, float) and abs(data) >= _ROUNDED:
            raise ValueError("From 2**53 on, write all its digits: with a point or an e it is rounded.")
        return value


class Real(Kind):
    """Finite numbers."""

    name = "number"
    allowed = "a number, such as 0.1"

    def __init__(self, least: float = -math.inf) -> None:
        self._least = least
        if least > -math.inf:
            self.allowed = f"a number of at least {least:g}"

    def of_text(self, text: str) -> float:
        """Read a number."""
        return self.of_data(_number(text))

    def of_data(self, data: Any) -> float:
        """Take a number."""
        if isinstance(data, bool) or not isinstance(data, (int, float)) or not math.isfinite(as_float(data)):
            raise ValueError(_quotes(data))
        if data < self._least:
            raise ValueError
        return float(data)


class Flag(Kind):
    """Yes or no: `--name` and `--no-name`."""

    name = "flag"
    allowed = "true or false"

    def of_text(self, text: str) -> bool:
        """Read true or false."""
        if text.lower() not in ("true", "false"):
            raise ValueError
        return text.lower() == "true"

    def of_data(self, data: Any) -> bool:
        """Take a boolean."""
        if not isinstance(data, bool):
            raise ValueError(_quotes(data))
        return data


class Text(Kind):
    """Any text."""

    name = "text"
    allowed = "a text in quotes"

    def of_text(self, text: str) -> str:
        """Take a text."""
        return text


class Choice(Text):
    """One of several words; `reasons` say of known others why they are refused."""

    def __init__(self, *words: str, reasons: Mapping[str, str] | None = None) -> None:
        self.words = words
        self._reasons = reasons or {}
        self.name = "|".join(words)
        self.allowed = f"one of {', '.join(words)}"

    def of_text(self, text: str) -> str:
        """Take one of the words."""
        if text not in self.words:
            raise ValueError(self._reasons.get(text) or nearest(text, self.words))
        return text


class _OrWord(Kind):
    """What another kind takes, or one word."""

    def __init__(self, word: str, least: int) -> None:
        super().__init__(least)  # type: ignore[call-arg]  # of the other kind
        self._word = word
        self.name = f"{self.name}|{word}"
        self.allowed = f"{self.allowed}, or {word}"

    def of_text(self, text: str) -> Any:
        """Read a number, or take the word."""
        return text if text == self._word else super().of_text(text)

    def of_data(self, data: Any) -> Any:
        """Take a number or the word."""
        return data if data == self._word else super().of_data(data)


class WholeOr(_OrWord, Whole):
    """Whole numbers of at least 1, or one word."""

    def __init__(self, word: str) -> None:
        super().__init__(word, 1)


class RealOrAuto(_OrWord, Real):
    """Numbers of at least 0, or auto."""

    def __init__(self) -> None:
        super().__init__("auto", 0)


class StepsOrTime(Kind):
    """Steps, or a time with its unit."""

    name = "steps|time"
    allowed = "a number of steps, such as 1e6, or a time with its unit, such as 30s or 5min"

    def of_text(self, text: str) -> Any:
        """Read steps or a time."""
        return text if durations.with_unit(text) else Whole(1).of_text(text)

    def of_data(self, data: Any) -> Any:
        """Take steps or a time."""
        return data if isinstance(data, str) and durations.with_unit(data) else Whole(1).of_data(data)


class Time(Kind):
    """Seconds, or a time with its unit or in SLURM's notation."""

    name = "time"
    allowed = "a time, such as 90 (seconds), 55min or 1:30:00"

    def of_text(self, text: str) -> Any:
        """Read a time."""
        if durations.with_unit(text) or durations.of_clock(text):
            return text
        return self.of_data(_number(text))

    def of_data(self, data: Any) -> Any:
        """Take seconds, or a time as text."""
        return self.of_text(data) if isinstance(data, str) else Real(0.0).of_data(data)


class Names(Kind):
    """Texts, separated by commas on the command line."""

    name = "names"
    allowed = "names separated by commas, such as SIGUSR1,SIGTERM; in a file a list of them"

    def of_text(self, text: str) -> tuple[str, ...]:
        """Split at the commas."""
        return tuple(name.strip() for name in text.split(",") if name.strip())

    def of_data(self, data: Any) -> tuple[str, ...]:
        """Take a list of texts."""
        if not isinstance(data, list) or not all(isinstance(each, str) for each in data):
            raise ValueError
        return tuple(data)

    def to_data(self, value: Sequence[str]) -> list[str]:
        """Return a list."""
        return list(value)


class Mode(Kind):
    """Permission bits in octal digits."""

    name = "mode"
    allowed = 'permission bits, such as 640; in a file "640" or 0o640'

    def of_text(self, text: str) -> int:
        """Read octal digits."""
        if not re.fullmatch("(0o)?[0-7]{3,4}", text):
            raise ValueError
        return int(text.removeprefix("0o"), 8)

    def of_data(self, data: Any) -> int:
        """Take a number, or octal digits as text."""
        return self.of_text(data) if isinstance(data, str) else Whole(0).of_data(data)

    def to_data(self, value: int) -> str:
        """Return octal digits."""
        return f"{value:o}"


class Folder(Text):
    """A path, in a file or on the command line relative to the current folder; or a URL without password."""

    name = "path"
    allowed = "a path, or a URL without a password"

    def of_text(self, text: str) -> str:
        """Take a path or a URL."""
        if has_password(text):
            raise ValueError(
                "ps would show the password to everybody on this host, and the run's config.toml would keep "
                "it. Set FSSPEC_SFTP_PASSWORD for sftp://, or the variables of the store, or use a key."
            )
        return os.path.expanduser(text)

    def complaint(self, value: Any, error: ValueError) -> str:
        """Return what is wrong with `value`, without its password."""
        return super().complaint(without_password(str(value)), error)


class Place(click.Path):
    """A file or folder by its path. An empty one, as of a variable that is not set, would be this folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path, of the type that was asked for."""
        if not os.fspath(value):
            self.fail("'' is no path. Write . for this folder.", param, ctx)
        return super().convert(value, param, ctx)


class OutFolder(click.Path):
    """The folder of a run or a study, on a file system."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the path."""
        text = os.fspath(value)
        if not text or "://" in text:
            what = without_password(text)
            self.fail(f"{what!r} is not the path of a folder. Write for instance runs/lake.", param, ctx)
        return Path(os.path.expanduser(text))


SCHEDULES = {
    "constant": "Constant",
    "linear": "Linear",
    "exponential": "Exponential",
    "piecewise": "Piecewise",
    "per_visit": "PerVisit",
}


class Schedule(Kind):
    """A number, or a schedule of `dist_classicrl.schedules`; one of visits is offered where it may be."""

    name = "number|schedule"

    def __init__(self, of_visits: bool = True) -> None:
        self._offered = [name for name in SCHEDULES if of_visits or name != "per_visit"]
        last = "exponential:1.0:0.05:1e6, " if of_visits else "exponential:1.0:0.05:1e6 or "
        self.allowed = (
            "a number, or a schedule such as linear:1.0:0.05:1e6 (from, to, steps), "
            f"linear:1.0:0.05:fraction=0.5 (of the steps first asked for), {last}piecewise:0=1.0:1e6=0.1 "
            f"(place=value){' or per_visit:0.7' if of_visits else ''}; in a file also a table such as "
            '{ kind = "linear", initial = 1.0, final = 0.05, fraction = 0.5 }'
        )

    def of_text(self, text: str) -> Any:
        """Read a number, or the name of a schedule and its arguments, by place or as name=value."""
        name, *words = text.split(":")
        if not words and name not in SCHEDULES:
            try:
                return _number(text)
            except ValueError:
                raise ValueError(nearest(name, self._offered)) from None
        kind, named = self._schedule(name), [word.partition("=") for word in words if "=" in word]
        values = [_number(word) for word in words if "=" not in word]
        if name not in ("piecewise", "Piecewise"):
            return _made(kind, values, {key: _number(value) for key, _, value in named})
        others = kind.__dataclass_fields__
        points = [(_number(key), _number(value)) for key, _, value in named if key not in others]
        if values or len(points) < 2:
            raise ValueError(
                "It takes two points or more, each as place=value; if places are shares, steps or fraction."
            )
        return _made(kind, [points], {key: _number(value) for key, _, value in named if key in others})

    def of_data(self, data: Any) -> Any:
        """Take a number, a text as on the command line, or a table."""
        if not isinstance(data, Mapping):
            return self.of_text(data) if isinstance(data, str) else Real().of_data(data)
        arguments = dict(data)
        return _made(self._schedule(str(arguments.pop("kind", ""))), [], arguments)

    def to_data(self, value: Any) -> Any:
        """Return a number, or the text that means the schedule."""
        if isinstance(value, (int, float)):
            return float(value)
        from dist_classicrl.schedules import kinds as schedules

        given = schedules.to_dict(schedules.without_call(value))
        names = {full: name for name, full in SCHEDULES.items()}
        words, points = [names[given.pop("kind")]], given.pop("points", [])
        words += [f"{place}={each}" for place, each in points]
        words += [
            f"{name}={each}" if points or name == "fraction" else str(each) for name, each in given.items()
        ]
        return ":".join(words)

    def _schedule(self, name: str) -> Any:
        from dist_classicrl.schedules import kinds as schedules

        offered = {each: SCHEDULES[each] for each in self._offered}
        known = {**offered, **{full: full for full in offered.values()}}
        if name not in known:
            raise ValueError(nearest(name, offered) or f"The kinds are {', '.join(offered)}.")
        return getattr(schedules, known[name])


def _made(kind: Any, values: Sequence[Any], named: dict[str, Any]) -> Any:
    """Return the schedule with these arguments; ValueError if they are too few, too many or not its own."""
    known = [name for name in kind.__dataclass_fields__ if name != "call"]  # which `train` fills in
    for name in named:
        if name not in known:
            raise ValueError(f"It has no {name!r}.{nearest(name, known)} Known are {', '.join(known)}.")
    try:
        return kind(*values, **named)
    except TypeError as error:
        raise ValueError(f"It takes {', '.join(known)}.") from error


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError from None


def _quotes(data: Any) -> str:
    """Return what is the matter with a number that is written as a text."""
    try:
        float(data if isinstance(data, str) else "no text")
    except ValueError:
        return ""
    return "Leave out the quotes."
