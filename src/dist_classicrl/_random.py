"""Counter-based random streams: SplitMix64.

Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014.

Draw number c of a stream with key z is ``mix(z + c * GAMMA)``: no state is carried but the counter, so a
stream can be entered anywhere and is the same on every machine. Streams are keyed by the seed and by what
they are for, for instance (seed, lease): two keys are two pseudo-random points of a cycle of 2**64.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import Any

import numpy as np

from dist_classicrl._jit import jit_inline

GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLIER_1 = np.uint64(0xBF58476D1CE4E5B9)
_MULTIPLIER_2 = np.uint64(0x94D049BB133111EB)
LOW_32 = np.uint64(0xFFFFFFFF)
_S11, _S27, _S30, _S31, SHIFT_32 = map(np.uint64, (11, 27, 30, 31, 32))
_2_53 = 2.0**-53


def _mix(z: Any) -> Any:
    """Turn the uint64 counter `z`, or an array of such, into 64 uniform random bits."""
    z = (z ^ (z >> _S30)) * _MULTIPLIER_1
    z = (z ^ (z >> _S27)) * _MULTIPLIER_2
    return z ^ (z >> _S31)


mix = jit_inline(_mix)


def mixed(counters: np.ndarray) -> np.ndarray:
    """Return what `mix` makes of an array of counters, uint64."""
    bits: np.ndarray = _mix(counters)
    return bits


def unmixed(bits: np.ndarray) -> np.ndarray:
    """Return the counters that `mix` turns into these bits, uint64."""
    z = bits ^ (bits >> _S31) ^ (bits >> np.uint64(62))
    z = z * _inverse(_MULTIPLIER_2)
    z = z ^ (z >> _S27) ^ (z >> np.uint64(54))
    z = z * _inverse(_MULTIPLIER_1)
    counters: np.ndarray = z ^ (z >> _S30) ^ (z >> np.uint64(60))
    return counters


def _inverse(multiplier: np.uint64) -> np.uint64:
    return np.uint64(pow(int(multiplier), -1, 1 << 64))


@jit_inline
def below(bits, n):
    """Return an int64 in 0..n-1 from the low 32 of the uint64 `bits`, by multiply and shift.

    The bias is under n / 2**32.
    """
    return np.int64(((bits & LOW_32) * np.uint64(n)) >> SHIFT_32)


@jit_inline
def unit(bits):
    """Return a number from 0 to below 1, by the high 53 of the uint64 `bits`."""
    return np.float64(np.int64(bits >> _S11)) * _2_53


def stream_key(seed: int, *purpose: int | str) -> np.uint64:
    """Return the key of the stream that belongs to `seed` and `purpose`.

    A cryptographic hash makes keys of neighbouring leases, rounds and seeds unrelated.
    """
    text = "/".join(str(part) for part in (seed, *purpose))
    return np.uint64(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little"))


def stream_keys(count: int, seed: int, *purpose: int | str) -> np.ndarray:
    """Return the keys of `count` streams of one purpose, uint64 of shape (count,).

    They are draws of the stream of that key, which takes a tenth of the time of as many hashes.
    """
    return keys_of(stream_key(seed, *purpose), range(count))


def keys_of(key: np.uint64, places: range) -> np.ndarray:
    """Return the keys at some places, counted from 0, that are draws of the stream of a `key`: uint64."""
    return mixed(key + GAMMA * np.arange(places.start + 1, places.stop + 1, dtype=np.uint64))


@jit_inline
def key_at(key, place):
    """Return the one at a place, counted from 0."""
    return mix(key + GAMMA * np.uint64(place + 1))


def fresh_seed() -> int:
    """Return a seed that nobody chose, in 0..2**63-1."""
    return secrets.randbits(63)
