"""Arrays of numbers in fewer bytes, with what was left out: what a compressed sum is made of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

KINDS = ("threshold", "top_k", "int8", "int16")


@dataclass(frozen=True)
class Packed:
    """An array: values of all entries (no `indices`) or of some, in units of `scale`.

    Whole numbers of 8 or 16 `bits` stand in `values` as bytes; with 0 bits they are float64.
    """

    indices: np.ndarray | None
    values: np.ndarray
    scale: float
    bits: int = 0

    @property
    def bytes(self) -> int:
        """Bytes of what travels."""
        return self.values.nbytes + (0 if self.indices is None else self.indices.nbytes) + 8

    def add_to(self, total: np.ndarray) -> None:
        """Add it to a flat float64 array."""
        where = slice(None) if self.indices is None else self.indices
        total[where] += (self.values.view(f"int{self.bits}") if self.bits else self.values) * self.scale


def dense(flat: np.ndarray) -> Packed:
    """Pack all of a flat float64 array as it is."""
    return Packed(None, flat, 1.0)


def sparse(flat: np.ndarray, indices: np.ndarray) -> Packed:
    """Pack the entries at `indices`, or all, whichever is smaller."""
    narrow = indices.astype(np.int32 if flat.size < 2**31 else np.int64)
    some = Packed(narrow, flat[indices], 1.0)
    return some if some.bytes < flat.nbytes else dense(flat)


def quantized(flat: np.ndarray, bits: int) -> Packed:
    """Pack all entries as whole multiples, of a quantum, with an error of half of one at most."""
    most = 2 ** (bits - 1) - 1
    largest = float(np.abs(flat).max(initial=0.0))
    scale = largest / most
    if scale * most > np.finfo(float).max:  # rounded up, at the end of all numbers
        scale = float(np.nextafter(scale, 0.0))
    numbers = np.rint(flat / scale) if scale > 0.0 else np.zeros_like(flat)
    whole = np.clip(numbers, -most, most).astype(f"int{bits}")
    return Packed(None, whole.view(np.uint8), scale, bits)


def pack(flat: np.ndarray, kind: str, threshold: float | None, k: int | None) -> Packed:
    """Pack a flat, finite float64 array."""
    if kind == "threshold":
        return sparse(flat, np.flatnonzero((np.abs(flat) >= threshold) & (flat != 0.0)))
    if kind == "top_k":
        assert k is not None
        # Stable, so that of equal amounts the first go, everywhere.
        return sparse(flat, np.sort(np.argsort(-np.abs(flat), kind="stable")[:k]))
    return quantized(flat, int(kind.removeprefix("int")))
