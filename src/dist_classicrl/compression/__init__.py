"""Ways in which pushes and refreshes go in fewer bytes: their names, and objects with their settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from dist_classicrl._words import name_of
from dist_classicrl.checks import as_float, is_real, is_whole
from dist_classicrl.errors import SettingsError


class TopK(NamedTuple):
    """The maps that move values most go, the others stay with the worker and compose with later ones.

    What waits at a worker that is lost is not learned again, though its steps count as made.

    Attributes
    ----------
    share : float
        Of the entries with maps, how many go with a push, above 0 and at most 1. Of these a quarter are those
        that wait longest, rounded down: of fewer than four none.
    """

    share: float = 0.1


class Quantized(NamedTuple):
    """Shifts of maps are rounded to whole numbers of so many bits; what is lost goes with the next push.

    Weights and visits go as they are.

    Attributes
    ----------
    bits : int
        8 or 16.
    """

    bits: int = 8


NAMED: Mapping[str, type | None] = {
    "none": None,
    "threshold": None,
    "delta": None,
    "lossless": None,
    "top_k": TopK,
    "quantized": Quantized,
    "auto": None,
}
"""What `compression` may be by name, with the class of its settings where it has some."""


def to_data(compression: Any) -> str | dict[str, Any]:
    """Return a kind of compression as plain data for JSON: its name, and settings that are not the defaults.

    Parameters
    ----------
    compression : str, NamedTuple, dict or None
        A name; an object of one of the classes here; what this function returned; or None, which is "none".

    Raises
    ------
    SettingsError
        If it is none, or a setting is not allowed.
    """
    if compression is None:
        return "none"
    if isinstance(compression, str):
        if compression in NAMED:
            return compression
    elif isinstance(compression, dict):
        kind = NAMED.get(str(compression.get("name")))
        given = {key: value for key, value in compression.items() if key != "name"}
        if kind is not None and set(given) <= set(kind._fields):  # type: ignore[attr-defined]
            return to_data(kind(**given))
    elif isinstance(compression, TopK):
        share = compression.share
        if not (is_real(share) and 0.0 < as_float(share) <= 1.0):
            raise SettingsError(f"TopK: share must be a number above 0 and at most 1, got {share!r}.")
        return "top_k" if share == TopK().share else {"name": "top_k", "share": float(share)}
    elif isinstance(compression, Quantized):
        bits = compression.bits
        if not (is_whole(bits) and bits in (8, 16)):
            raise SettingsError(f"Quantized: bits must be 8 or 16, got {bits!r}.")
        return "quantized" if bits == Quantized().bits else {"name": "quantized", "bits": int(bits)}
    hint = ""
    if isinstance(compression, type) and compression in (TopK, Quantized):
        hint = f" Write {compression.__name__}() for its usual settings."
    raise SettingsError(
        f"compression must be one of {', '.join(map(repr, NAMED))}, or TopK(share=0.1) or Quantized(bits=16) "
        f"of dist_classicrl.compression, got {compression!r}.{hint}"
    )


class Carry(NamedTuple):
    """What of a worker's maps may wait: what a kind of compression comes to for its table."""

    threshold: float = 0.0  # changes of values below this, seven times in eight
    share: float = 1.0  # of the entries go, those that change most
    bits: int = 0  # of the numbers to which shifts are rounded; 0: they are not

    @property
    def is_some(self) -> bool:
        """Whether anything may."""
        return self.threshold > 0.0 or self.share < 1.0 or self.bits > 0

    @classmethod
    def of(cls, data: str | Mapping[str, Any], threshold: float = 0.0) -> Carry:
        """Return it for a kind of compression as plain data, and ``compression_threshold``."""
        kind = NAMED[name_of(data)]
        given = {} if isinstance(data, str) else {key: data[key] for key in data if key != "name"}
        return cls(threshold, **({} if kind is None else kind(**given)._asdict()))


SEND_ALL = Carry()
