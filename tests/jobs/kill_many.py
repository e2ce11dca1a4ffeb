"""Kill jobs many times while they write checkpoints as fast as they can, and show what came of it.

    python tests/jobs/kill_many.py --kills 200

The kills are spread over one process and three ranks, asynchronous and reproducible. After five of them a
run may come to its end. What test_kills.py checks is checked here after each kill: the first thing that is
not as it should be ends the program with a traceback and leaves the folder as it is.
"""

import argparse
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit"))

from killing import SETTINGS, Kills, kill_and_finish, uninterrupted

STEPS = {"alone": 100_000_000, "rounds": 25_000_000, "async-3": 50_000_000, "rounds-3": 8_000_000}
KILLS_PER_RUN = 5


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kills", type=int, default=200, help="in all (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments (default: %(default)s)")
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    begun = time.monotonic()
    print(f"{'':10} kills  ended before  torn  resumed  finished  largest gap  tables  seconds")
    for number, (way, (_, ranks)) in enumerate(SETTINGS.items()):
        asked = arguments.kills * (number + 1) // len(SETTINGS) - arguments.kills * number // len(SETTINGS)
        seen, since = Kills(), time.monotonic()
        while seen.kills < asked:
            folder = tempfile.mkdtemp(prefix=f"kills-{way}-")
            kill_and_finish(way, STEPS[way], folder, min(KILLS_PER_RUN, asked - seen.kills), chance, seen)
            shutil.rmtree(folder)
        tables = str(len(seen.tables))
        if ranks is None or way.startswith("rounds"):
            assert seen.tables == {uninterrupted(way, STEPS[way])}
            tables = "right"
        print(
            f"{way:10} {seen.kills:5}  {seen.ended:12}  {seen.torn:4}  {seen.resumed:7}  {seen.finished:8}  "
            f"{seen.largest_gap:11.3g}  {tables:>6}  {time.monotonic() - since:7.0f}",
            flush=True,
        )
    print(f"in all {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
