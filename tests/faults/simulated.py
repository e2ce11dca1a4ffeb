"""Histories of ranks that die, hang and are cut off, over the real protocol code and a simulated network.

    python tests/faults/simulated.py --histories 10000 [--seed 1] [--processes 2]

A history follows from its seed, and can be told with all its messages:

    python tests/faults/simulated.py --kinds elections --tell 17
"""

from __future__ import annotations

import argparse
import itertools
import logging
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

from simulated_calls import (
    Calls,
    Cuts,
    Decentralized,
    Elections,
    Ends,
    RoundEnds,
    Rounds,
    Supersteps,
    Takeovers,
    Trees,
)
from simulated_rows import Divided, SameRows, SharedRows
from simulated_saves import (
    SavedDecentralized,
    SavedDivided,
    SavedRows,
    SavedSupersteps,
    SavedTrees,
    Saves,
)

KINDS = (
    Elections,
    Calls,
    Rounds,
    Ends,
    RoundEnds,
    Cuts,
    Takeovers,
    Trees,
    Decentralized,
    Supersteps,
    SharedRows,
    Divided,
    SameRows,
    Saves,
    SavedTrees,
    SavedDecentralized,
    SavedSupersteps,
    SavedRows,
    SavedDivided,
)
HISTORIES: dict[str, type] = {kind.name: kind for kind in KINDS}


def check_seeds(name: str, seeds: Sequence[int]) -> tuple[int, list[str], Counter[str]]:
    """Let histories happen, up to the first with something wrong.

    Return its seed, or -1, what was wrong, and how many ranks ended how.
    """
    logging.disable(logging.CRITICAL)
    ends: Counter[str] = Counter()
    try:
        for seed in seeds:
            history = HISTORIES[name](seed)
            wrong = history.check()
            ends.update(history.ends())
            if wrong:
                return seed, wrong, ends
    finally:
        logging.disable(logging.NOTSET)
    return -1, [], ends


def tell(name: str, seed: int) -> list[str]:
    """Print all that happens in one history. Return what was wrong."""
    logging.disable(logging.CRITICAL)
    history = HISTORIES[name](seed, log=True)
    wrong = history.check()
    print("\n".join(history.network.log))
    for sim, end in zip(history.network.ranks, history.ends(), strict=True):
        print(f"rank {sim.rank}: {sim.trace or end}")
    print("\n".join(wrong) or "all is well")
    return wrong


def main() -> None:
    """Run many histories, or tell one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--histories", type=int, default=1000, help="of each kind")
    parser.add_argument("--seed", type=int, default=None, help="of the first; a fresh one by default")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--kinds", nargs="+", choices=sorted(HISTORIES), default=sorted(HISTORIES))
    parser.add_argument("--tell", type=int, default=None, metavar="SEED", help="tell one history of one kind")
    options = parser.parse_args()
    if options.tell is not None:
        sys.exit(bool(tell(options.kinds[0], options.tell)))
    first = random.SystemRandom().randrange(10**9) if options.seed is None else options.seed
    for name in options.kinds:
        begin = time.monotonic()
        chunks = [
            range(n, min(n + 20, first + options.histories))
            for n in range(first, first + options.histories, 20)
        ]
        ends: Counter[str] = Counter()
        done = 0
        with ProcessPoolExecutor(options.processes) as pool:
            for chunk, (seed, wrong, its_ends) in zip(
                chunks, pool.map(check_seeds, itertools.repeat(name), chunks), strict=True
            ):
                ends.update(its_ends)
                if wrong:
                    pool.shutdown(wait=False, cancel_futures=True)
                    print(f"{name}, seed {seed}:", *wrong, sep="\n  ")
                    print(f"Tell it with: python tests/faults/simulated.py --kinds {name} --tell {seed}")
                    sys.exit(1)
                done += len(chunk)
                if done % 1000 < len(chunk):
                    print(f"{name}: {done} histories, {time.monotonic() - begin:.0f} s", flush=True)
        told = ", ".join(f"{end}: {count}" for end, count in ends.most_common())
        print(f"{name}: {done} histories from seed {first} on, nothing wrong. Ranks: {told}", flush=True)


if __name__ == "__main__":
    main()
