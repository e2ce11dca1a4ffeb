"""A server, a rank on a card in numba's simulator, and one on cores; the card's kills itself in a call.

With the argument "one" there are no copies of the table on the card.
"""

import os
import signal
import sys
import time
from pathlib import Path

DYING = "dying"  # a file in the folder in which all run
RANK = int(os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK", "0")))
if RANK == 1:
    os.environ["NUMBA_ENABLE_CUDASIM"] = "1"  # before numba is imported

from dist_classicrl import DistAsyncQLearning, TabularMDP  # noqa: E402
from dist_classicrl.learning.compiled import CompiledLearner  # noqa: E402


def before_each_call(kind, act):
    usual, calls = kind.learn, [0]

    def learn(self, walker, stream, steps):
        calls[0] += 1
        act(calls[0])
        usual(self, walker, stream, steps)

    kind.learn = learn


def die(call):
    if call == 4:
        Path(DYING).touch()
        os.kill(os.getpid(), signal.SIGKILL)


def wait(call):
    """Leave steps to the rank on a card until it dies, however late it comes."""
    while call == 2 and not Path(DYING).exists():
        time.sleep(0.05)


if RANK == 1:
    from dist_classicrl.learning.card import plan
    from dist_classicrl.learning.card.learner import CardLearner

    plan.IN_SIMULATOR, plan.ONE_TABLE_IN_SIMULATOR = plan.Shape(2, 4, 8), plan.Shape(2, 4, 1)
    if "one" in sys.argv:
        plan.LARGEST_COPY = 0
    before_each_call(CardLearner, die)
elif RANK == 2:
    before_each_call(CompiledLearner, wait)

agent = DistAsyncQLearning(device="cuda" if RANK == 1 else "cpu", seed=4, sync_frequency=4)
result = agent.train(env=TabularMDP.garnet(6, 2, 2, seed=1), total_steps=2000, progress_bar=False)
print(f"rank {RANK}: {result.steps} {agent.visits.sum()} {result.lost_workers} {result.device}", flush=True)
