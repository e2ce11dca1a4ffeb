"""Quantiles of Student's t, for intervals around means."""

from __future__ import annotations

import math
from statistics import NormalDist

_MOST_EXACT = 1000  # degrees of freedom; above, the expansion is as good as exact


def t_quantile(freedom: int, confidence: float) -> float:
    """Return the t with P(abs(T) < t) = `confidence` for Student's T with `freedom` >= 1 degrees of freedom.

    By the finite series of Abramowitz and Stegun (1964), 26.7.3 and 26.7.4; for more than 1,000 degrees by
    the expansion 26.7.5 around the normal quantile.
    """
    if freedom > _MOST_EXACT:
        return _near_normal(freedom, -NormalDist().inv_cdf((1.0 - confidence) / 2))
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < confidence else (low, middle)
    return math.sqrt(freedom) * math.tan(low)


def _within(angle: float, freedom: int) -> float:
    """Return P(abs(T) < sqrt(freedom) tan(angle)), by its finite series of powers of the cosine."""
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term, total = (cosine if odd else 1.0), 0.0
    for k in range(1 + odd, freedom, 2):
        total += term
        term *= k / (k + 1) * cosine**2
    return 2 / math.pi * (angle + sine * total) if odd else sine * total


def _near_normal(freedom: int, z: float) -> float:
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + sum(term / freedom ** (k + 1) for k, term in enumerate(terms))
