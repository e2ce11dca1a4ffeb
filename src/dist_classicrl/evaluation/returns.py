"""Mean and deviation of returns, whose sums and squares may be beyond the numbers of float64."""

from __future__ import annotations

import numpy as np

_EXPONENT = 480  # of 2: the squares of 2**31 such numbers can be added up


def mean_of(returns: np.ndarray) -> float:
    """Return the mean."""
    small, scale = _as_small(returns)
    return float(small.mean()) * scale


def deviation_of(returns: np.ndarray) -> float:
    """Return the standard deviation of these returns."""
    small, scale = _as_small(returns)
    return float(small.std()) * scale


def error_of_mean(returns: np.ndarray) -> float:
    """Return the standard error of the mean; NaN for a single return."""
    small, scale = _as_small(returns)
    n = returns.size
    return float(small.std(ddof=1) / np.sqrt(n)) * scale if n > 1 else float("nan")


def _as_small(values: np.ndarray) -> tuple[np.ndarray, float]:
    """Return values whose squares can be added up, and by what they were divided: mostly 1."""
    _, exponent = np.frexp(np.abs(values).max(initial=0.0))
    scale = 2.0 ** max(0, int(exponent) - _EXPONENT)
    return values / scale, scale
