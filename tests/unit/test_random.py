"""Random streams against the published SplitMix64, and that different purposes get different streams."""

import numpy as np
import pytest
from slow_learner import share_of

from dist_classicrl import _random


@pytest.mark.parametrize(
    ("seed", "published"),
    [
        # What splitmix64.c of Vigna gives for these seeds, as published on Rosetta Code and elsewhere.
        (
            1234567,
            [
                6457827717110365317,
                3203168211198807973,
                9817491932198370423,
                4593380528125082431,
                16408922859458223821,
            ],
        ),
        (0, [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]),
    ],
)
def test_the_stream_is_splitmix64(seed, published):
    # The reference adds GAMMA before each output: draw c of key z is mix(z + c * GAMMA), from c = 1.
    with np.errstate(over="ignore"):
        draws = [
            int(_random.mix(np.uint64(seed) + np.uint64(c) * _random.GAMMA))
            for c in range(1, len(published) + 1)
        ]
    assert draws == published


def test_below_takes_the_low_bits_and_stays_below():
    rng = np.random.default_rng(1)
    for n in (1, 2, 3, 7, 1000, 2**31):
        for bits in (0, 2**32 - 1, 2**64 - 1, *rng.integers(2**64, size=200, dtype=np.uint64).tolist()):
            value = _random.below(np.uint64(bits), n)
            assert value == share_of(bits, n) and 0 <= value < n
            assert value == _random.below(np.uint64(bits ^ (0xABCD << 40)), n)


def test_below_is_even():
    n = 7
    draws = np.array([_random.below(np.uint64(_random.mix(np.uint64(i))), n) for i in range(35_000)])
    counts = np.bincount(draws, minlength=n)
    assert ((counts - 5000) ** 2 / 5000).sum() < 22.5  # 99.9 % of 6 degrees of freedom


def test_streams_of_different_purposes_are_different():
    purposes = [
        (seed, *purpose)
        for seed in (*range(20), 2**63 - 1)
        for purpose in [
            (),
            ("lease", 1),
            ("lease", 11),
            ("round", 1, 1),
            ("round", 11),
            ("round", 1, 11),
            ("alone", 0),
        ]
    ]
    keys = [_random.stream_key(*purpose) for purpose in purposes]
    assert len({int(key) for key in keys}) == len(purposes)
    assert all(key.dtype == np.uint64 for key in keys)
    # The same on every machine and in every process: the first 8 bytes of BLAKE2b of 1/lease/0.
    assert [_random.stream_key(*purpose) for purpose in purposes] == keys
    assert int(_random.stream_key(1, "lease", 0)) == 313960574502721974


def test_neighbouring_streams_are_unrelated():
    # Half of the bits of two neighbours' draws differ.
    keys = [_random.stream_key(1, "lease", number) for number in range(200)]
    bits = [
        bin(int(_random.mix(a)) ^ int(_random.mix(b))).count("1")
        for a, b in zip(keys, keys[1:], strict=False)
    ]
    assert abs(np.mean(bits) - 32) < 5 * 4 / np.sqrt(199)


def test_a_fresh_seed_is_nobodys_choice():
    seeds = {_random.fresh_seed() for _ in range(50)}
    assert len(seeds) == 50 and all(0 <= seed < 2**63 for seed in seeds)
