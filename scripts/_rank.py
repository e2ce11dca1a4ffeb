"""Run a program as one rank, so that rank 0 alone is heard: `_rank.py FOLDER PROGRAM ...`.

What ranks above 0 write goes to FOLDER/rank-N.log.
"""

from __future__ import annotations

import os
import sys

from dist_classicrl._hints import rank_of_environment

folder, program = sys.argv[1], sys.argv[2:]
if rank := rank_of_environment():
    log = os.open(os.path.join(folder, f"rank-{rank}.log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
os.execv(program[0], program)
