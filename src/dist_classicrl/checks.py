"""What values of settings and arguments may be: each check returns the value as it is kept, or refuses it.

A check takes the name of a setting and a value, and raises `SettingsError` with what is allowed. Those of a
dataclass stand at its fields (`setting`, `Checked`), where the command line finds them, too.
"""

from __future__ import annotations

import inspect
import math
import numbers
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, field, fields
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from dist_classicrl.errors import MissingExtraError, SettingsError

if TYPE_CHECKING:
    import numpy as np

Check = Callable[[str, Any], Any]


def setting(default: Any, check: Check, help: str, section: str, is_kept: bool = False) -> Any:
    """Return a field of a `Checked` dataclass; `help` is its line in a `section` of `train --help`.

    A run keeps for good what `is_kept`: with another value it would be another experiment.
    """
    described = {"check": check, "help": help, "section": section, "is_kept": is_kept}
    return field(default=default, metadata=described)


@dataclass(frozen=True, kw_only=True)
class Checked:
    """A dataclass whose fields are settings, each checked when an instance is made."""

    def __post_init__(self) -> None:
        sound = _sound[type(self)]
        for each in fields(self):
            given = getattr(self, each.name)
            if sound.get(each.name, MISSING) is given:
                continue
            if (checked := each.metadata["check"](each.name, given)) is not given:
                object.__setattr__(self, each.name, checked)
            elif type(given) in _UNCHANGING:
                sound[each.name] = given


_UNCHANGING = (bool, int, float, str, type(None))


#: Of each kind, by name, the value that the check of a field left as it was last: it is checked once.
_sound: defaultdict[type, dict[str, Any]] = defaultdict(dict)


@dataclass(frozen=True)
class WholeNumber:
    """Whole numbers of at least `least`, below 2 to the power of `bits` if given, as int.

    `otherwise` names for the message what may be written in place of a number.
    """

    least: int
    otherwise: str = ""
    bits: int | None = None

    def __call__(self, name: str, value: Any) -> int:
        """Return the number."""
        if not is_whole(value) or value < self.least:
            hint = f", or {self.otherwise}" if self.otherwise else ""
            raise SettingsError(
                f"{name} must be a whole number of at least {self.least}{hint}, got {value!r}."
            )
        if self.bits is not None and value >= 2**self.bits:
            raise SettingsError(f"{name} must be below 2**{self.bits}, got {value!r}.")
        return int(value)


@dataclass(frozen=True)
class RealNumber:
    """Finite numbers from `least` to `most`, as float."""

    least: float
    most: float = math.inf

    def __call__(self, name: str, value: Any) -> float:
        """Return the number."""
        least, most = self.least, self.most
        if not is_real(value) or not least <= value <= most or math.isinf(as_float(value)):
            limits = (
                f"from {least:g} to {most:g}" if math.isfinite(most) else f"finite and at least {least:g}"
            )
            raise SettingsError(f"{name} must be a number {limits}, got {value!r}.")
        return float(value)


@dataclass(frozen=True)
class YesOrNo:
    """True or False; `otherwise` names for the message what may be written in place of them."""

    otherwise: str = ""

    def __call__(self, name: str, value: Any) -> bool:
        """Return the flag."""
        if not is_flag(value):
            hint = f" or {self.otherwise}" if self.otherwise else ""
            raise SettingsError(f"{name} must be True or False{hint}, got {value!r}.")
        return bool(value)


@dataclass(frozen=True)
class OneOf:
    """One of several words; `reasons` say of known others why they are refused."""

    words: tuple[str, ...]
    reasons: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, name: str, value: Any) -> str:
        """Return the word."""
        if isinstance(value, str) and value in self.reasons:
            raise SettingsError(self.reasons[value])
        return self.chosen(name, value, value)

    def chosen(self, name: str, value: Any, word: Any) -> str:
        """Return `word`, which `value` means, if it is one of them."""
        if not isinstance(word, str) or word not in self.words:  # of an array, `in` asks each element
            raise SettingsError(f"{name} must be one of {', '.join(map(repr, self.words))}, got {value!r}.")
        return word


class NumberType(OneOf):
    """NumPy's name of a type of numbers, from whatever NumPy takes for one."""

    def __call__(self, name: str, value: Any) -> str:
        """Return the name."""
        import numpy as np

        try:
            word = np.dtype(value).name
        except Exception:  # NumPy's parser raises errors of many kinds
            word = None
        return self.chosen(name, value, word)


@dataclass(frozen=True)
class Or:
    """One `word`, or None, besides what another check allows."""

    word: str | None
    check: Check

    def __call__(self, name: str, value: Any) -> Any:
        """Return the value."""
        is_word = value is None if self.word is None else isinstance(value, str) and value == self.word
        return value if is_word else self.check(name, value)


def checked_whole(name: str, value: Any, least: int) -> int:
    """Return `value` as an int of at least `least`; SettingsError for others."""
    return WholeNumber(least)(name, value)


def checked_positive(name: str, value: Any) -> float:
    """Return `value` as a finite float above 0; SettingsError for others."""
    if not is_real(value) or not 0.0 < as_float(value) < math.inf:
        raise SettingsError(f"{name} must be a finite number above 0, got {value!r}.")
    return float(value)


def checked_limit(name: str, value: Any) -> float:
    """Return `value`, a number that others are compared with, as a float; SettingsError for others."""
    if not is_real(value) or math.isnan(as_float(value)):
        raise SettingsError(f"{name} must be a number, got {value!r}.")
    return as_float(value)


def checked_verbosity(value: Any) -> int:
    """Return what `verbose` says, on Stable-Baselines3's scale from 0 to 2; SettingsError for others."""
    if not is_flag(value) and not (is_whole(value) and value in range(3)):
        raise SettingsError(f"verbose must be True or False, or 0, 1 or 2, got {value!r}.")
    return int(value)


def takes_one(function: Any) -> bool:
    """Whether a callable can be called with one argument, as far as it tells."""
    return takes(function, 1)


def takes(function: Any, arguments: int) -> bool:
    """Whether a callable can be called with so many arguments, as far as it tells."""
    try:
        inspect.signature(function).bind(*[None] * arguments)
    except TypeError:
        return False
    except ValueError:  # a function of C whose arguments are not known
        pass
    return True


def is_row(value: Any) -> bool:
    """Whether `value` can be gone through; an array without dimensions only calls itself iterable."""
    return isinstance(value, Iterable) and getattr(value, "ndim", None) != 0


def as_row(value: Any) -> tuple[Any, ...]:
    """Return what is in a row, nothing of what is none."""
    return tuple(value) if is_row(value) else ()


def is_mapping(value: Any) -> bool:
    """Whether `value` has entries by name, as a dict, and a table or column of pandas."""
    return not isinstance(value, type) and all(
        hasattr(value, has) for has in ("keys", "items", "__getitem__")
    )


def is_whole(value: Any) -> bool:
    """Whether `value` is a whole number of Python's or NumPy's, which counts its own among `numbers`."""
    return type(value) is int or isinstance(value, numbers.Integral) and not isinstance(value, bool)


def is_real(value: Any) -> bool:
    """Whether `value` is a real number of Python's or NumPy's."""
    return type(value) is float or isinstance(value, numbers.Real) and not isinstance(value, bool)


def as_float(value: Any) -> float:
    """Return a real number as a float: infinity where it is beyond all of them, as 10**400 is."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def require_package(package: str, who: str, extra: str, or_install: str = "") -> None:
    """Raise `MissingExtraError` where a package that `who` needs is not installed.

    `extra` brings it, and so does pip under the name `or_install`, by default that of the package.
    """
    if find_spec(package) is None:
        raise MissingExtraError(
            f"{who} needs the package {package}, which is the extra {extra} of this project: "
            f"pip install '.[{extra}]' in a clone of it, or pip install {or_install or package}."
        )


@contextmanager
def importing(package: str, who: str) -> Iterator[None]:
    """Raise `MissingExtraError` where a package that `who` needs is installed, but cannot be imported."""
    try:
        yield
    except ImportError as error:
        raise MissingExtraError(
            f"{who} needs the package {package}, which is installed here but cannot be imported ({error}). "
            f"Install it anew: pip install --force-reinstall {package}."
        ) from error


def is_file_name(text: str) -> bool:
    """Whether the system can have a file of this name; it has none for NUL and for half a character."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def checked_path(name: str, value: Any) -> str:
    """Return a path, with ~ as the user's home, or the URL of a file, as text; SettingsError for others."""
    text = os.fspath(value) if isinstance(value, (str, os.PathLike)) else value
    if not isinstance(text, str) or not text or not is_file_name(text):
        raise SettingsError(f"{name} must be a path, as text or pathlib.Path, got {value!r}.")
    return os.path.expanduser(text)


def checked_file(called: str, path: Any, example: str) -> str:
    """Return the path of a file that the function `called` is to write; SettingsError for a folder.

    `example` is what such a file may be called.
    """
    target = checked_path("path", path)
    if os.path.isdir(target):
        raise SettingsError(
            f"{called} writes a file, and {target} is a folder. Write "
            f"{called}({os.path.join(target, example)!r})."
        )
    return target


def is_flag(value: Any) -> bool:
    """Whether `value` is True or False, of Python or of NumPy."""
    if isinstance(value, bool):
        return True
    import numpy as np  # not before: `--help` has no need of it

    return isinstance(value, np.bool_)


def as_array(name: str, value: Any, error: type[Exception] = SettingsError) -> np.ndarray:
    """Return what a user gave as an array, one of objects where it makes none.

    An `error` is raised where a masked array hides some of its numbers.
    """
    import numpy as np

    check_shown(name, value, error)
    try:
        return np.asarray(value)
    except Exception:  # what is ragged, or pretends to be an array, raises errors of many kinds
        return np.empty((), object)


def hidden_numbers(value: Any) -> str:
    """Return, in words, that `value` is a masked array that hides some of its numbers; nothing if not.

    NumPy itself takes what is hidden for numbers like the others.
    """
    import numpy as np

    if not (isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value)):
        return ""
    return f"is a masked array that hides {np.ma.count_masked(value)} of its numbers"


def check_shown(name: str, value: Any, error: type[Exception] = SettingsError) -> None:
    """Raise an `error` if `value` is a masked array that hides some of its numbers."""
    if hidden := hidden_numbers(value):
        raise error(
            f"{name} {hidden}; give what its .filled(number) returns, with a number to stand for those"
        )


def as_floats(name: str, values: Any, error: type[Exception]) -> np.ndarray:
    """Return `values` as an array of float64; an `error` where they are no numbers, or some are hidden."""
    import numpy as np

    check_shown(name, values, error)
    try:
        return np.asarray(values, float)
    except (OverflowError, TypeError, ValueError) as caught:
        raise error(f"{name} must be numbers, in rows of the same length: {caught}.") from caught


def sum_tolerance(rows: np.ndarray) -> float:
    """Return how far rows of probabilities may be from adding up to 1: by 1e-8, or their own rounding."""
    import numpy as np

    rounding = np.finfo(rows.dtype).eps if rows.dtype.kind == "f" else 0.0
    return max(1e-8, rows.shape[-1] * float(rounding))
