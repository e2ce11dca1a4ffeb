"""What is other in the plan of a study than in another one, in the words of who gave it."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

#: What `Sweep` calls what a plan has under another name, and a word for what it does not call anything.
_CALLED = {
    "sampler": "search",
    "seed": "search_seed",
    "stopping": "early_stopping",
    "variants": "number of settings",
    "varied": "vary",
}
_BY_ENVIRONMENTS = "numbered"  # which follows from how many environments there are
_MOST_SETTINGS = 10_000  # that are looked through for values

_REPR = reprlib.Repr()
_REPR.maxlist, _REPR.maxdict, _REPR.maxstring = 10, 10, 80


def differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """Return what differs between two plans as plain data: "total_steps: 1000 there, 2000 here" and so on."""
    changed = ((name, both) for name, both in _changed(there, here) if name != _BY_ENVIRONMENTS)
    return list(chain.from_iterable(_of(name, *both) for name, both in changed))


def _changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[tuple[str, tuple[Any, Any]]]:
    for name in {**old, **new}:
        # As text: whole numbers and floats that are equal are drawn in other ways.
        if text(old.get(name)) != text(new.get(name)):
            yield name, (old.get(name), new.get(name))


def _of(name: str, old: Any, new: Any) -> Iterator[str]:
    are_lists = isinstance(old, list) and isinstance(new, list)
    are_mappings = isinstance(old, Mapping) and isinstance(new, Mapping)
    if name == "variants" and are_lists:
        yield from _of_variants(old, new) if old and new else ()  # else a search proposes them
    elif name == "environments" and are_mappings:
        yield from _of_environments(old, new)
    elif name == "search" and are_mappings:
        for inner, values in _changed(old, new):
            yield from _of(inner, *values)
    elif name == "search":
        yield said(name, _sampler(old), _sampler(new))
    elif name in ("shared", "space") and are_mappings:
        for setting, values in _changed(old, new):
            yield said(setting, *values)
    else:
        yield said(name, old, new)


def _sampler(search: Any) -> Any:
    return search.get("sampler") if isinstance(search, Mapping) else ["grid", "random"]


def text(data: Any) -> str:
    """Return plain data as JSON, alike for equal data."""
    return json.dumps(data, sort_keys=True, indent=1)


def _of_variants(old: list[Any], new: list[Any]) -> Iterator[str]:
    if len(old) != len(new):
        yield said("variants", len(old), len(new))
    before, now = _values(old), _values(new)
    changed = list(_changed(before, now))
    for name, values in changed:
        yield said(name, *map(_one, values))
    if not changed and len(old) == len(new):
        yield "settings: the same values in other combinations"


def _of_environments(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    if list(old) != list(new):
        yield said("environments", list(old), list(new))
    else:
        names = (name for name, _ in _changed(old, new))
        yield f"environments: other ones of the same name as {', '.join(names)}"


def _values(variants: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the values that each setting has in some of these variants, in order."""
    found: dict[str, dict[str, Any]] = {}
    for _, settings in zip(range(_MOST_SETTINGS), variants, strict=False):
        for name, value in settings.items() if isinstance(settings, Mapping) else ():
            found.setdefault(name, {}).setdefault(text(value), value)
    return {name: list(values.values()) for name, values in found.items()}


def _one(values: list[Any] | None) -> Any:
    return values[0] if values and len(values) == 1 else values


def said(name: str, old: Any, new: Any) -> str:
    """Return what a setting is in a study that is there, and here."""
    if name == "seeds":
        return f"seeds: {shown_seeds(old)} there, {shown_seeds(new)} here"
    return f"{_CALLED.get(name, name)}: {_REPR.repr(_plain(old))} there, {_REPR.repr(_plain(new))} here"


def shown_seeds(seeds: Any) -> str:
    """Return seeds as `Sweep` is mostly given them: how many."""
    is_usual = isinstance(seeds, list) and seeds == list(range(len(seeds)))
    return _REPR.repr(len(seeds) if is_usual else seeds)


def _plain(value: Any) -> Any:
    """Return a setting as it is mostly given: a constant as its number."""
    if isinstance(value, list):
        return [_plain(each) for each in value]
    is_constant = isinstance(value, Mapping) and value.get("kind") == "Constant" and "value" in value
    return value["value"] if is_constant else value
