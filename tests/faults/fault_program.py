"""A program that trains while somebody kills or stops its processes: `python fault_program.py OPTIONS`.

OPTIONS is a JSON object:

    folder        where each process writes `<process id>.jsonl`, and `<process id>.steps` if it counts
    environment   "lake", "taxi" (compiled), or "counted": stepped through Gymnasium, every step counted
    pause         seconds that a step of the last takes longer, until there is a file `hurry` in the folder
    slow          whether the others make few steps per second until then, which they do not by default
    by_messages   whether owners of rows exchange walkers as on several hosts
    rows_once     whether the table is a large one, which is there once for the ranks of a host
    cores         how many there are on a host: as many as ranks, if nothing is said
    hosts         on how many hosts the ranks are, as far as they know
    divided       whether the large table is divided between these
    agent         arguments of the constructor
    train         arguments of train, total_steps among them

While there is a file `full` in the folder, there is no room for anything that is saved.

The lines of a process: "started"; "progress", of whoever serves; "log" for each record of the package's
loggers; at the end "trained", "stopped", or "lost" where what was learned is lost. Each has the time of day,
the rank in the world in which the process was started, and whether it is a replacement. SIGQUIT shows where
all threads stand.
"""

import dataclasses
import errno
import faulthandler
import hashlib
import json
import logging
import os
import signal
import sys
import time
import traceback
from functools import cache
from pathlib import Path

import gymnasium
import numpy as np
from mpi4py import MPI

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit"))

from slowly import STEPS_PER_SECOND, slow_down

from dist_classicrl import DistAsyncQLearning
from dist_classicrl._hints import rank_of_environment
from dist_classicrl.agent.agent import state_of
from dist_classicrl.checkpoint.local import LocalStorage
from dist_classicrl.engines.roles import cores
from dist_classicrl.engines.supersteps import training
from dist_classicrl.environments.model import TabularMDP
from dist_classicrl.errors import RankLostError, RemoteRankError, TrainingStopped
from dist_classicrl.learning import loops
from dist_classicrl.learning.supersteps import share as superstep_share
from dist_classicrl.learning.supersteps.by_messages.steps import MessageSteps
from dist_classicrl.learning.supersteps.together import DONE
from dist_classicrl.membership.group import Group
from dist_classicrl.schedules import PerVisit
from dist_classicrl.tables import large_table

DISCOUNT = 0.95
loops.STEPS_PER_WALKER = 16  # runs are short, and are to have many walkers
PLACES, SLIP = 6, 0.2


def ring_model():
    """Return the model of `CountedRing`."""
    transition = np.zeros((PLACES, 2, PLACES))
    reward = np.zeros((PLACES, 2))
    for place in range(PLACES):
        for action in range(2):
            for move, chance in ((2 * action - 1, 1 - SLIP), (1 - 2 * action, SLIP)):
                after = (place + move) % PLACES
                transition[place, action, after] += chance
                reward[place, action] += chance * (after == 0)
    return TabularMDP.from_arrays(transition, reward, np.full(PLACES, 1 / PLACES))


class CountedRing(gymnasium.Env):
    """Places in a ring; a step goes to the left or the right, or slips the other way; place 0 is good.

    What all copies in this process have stepped is counted in a file, which outlives a process.
    """

    observation_space = gymnasium.spaces.Discrete(PLACES)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self):
        self.count = count_of_this_process()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = int(self.np_random.integers(PLACES))
        return self.place, {}

    def step(self, action):
        if options["pause"]:
            time.sleep(options["pause"])
            options["pause"] *= not os.path.exists(HURRY)
        move = 2 * int(action) - 1
        if self.np_random.random() < SLIP:
            move = -move
        self.place = (self.place + move) % PLACES
        self.count[0] += 1
        return self.place, float(self.place == 0), False, False, {}


def slow_supersteps():
    """Do to supersteps what `slow_down` does to learners: these are deaths in their midst, on any machine."""
    play_together, superstep = superstep_share.Share.play_together, MessageSteps.superstep

    def rest(steps):
        if not os.path.exists(HURRY):
            time.sleep(steps / STEPS_PER_SECOND)

    def play_slowly(share, stream, *arguments):
        state = share._boxes.state
        before = stream.used + state[DONE]
        is_made = play_together(share, stream, *arguments)
        rest(stream.used + state[DONE] - before)
        return is_made

    def superstep_slowly(share, stretch, done, size):
        yield from superstep(share, stretch, done, size)
        rest(size)

    superstep_share.Share.play_together, MessageSteps.superstep = play_slowly, superstep_slowly


def let_the_disk_be_full():
    """Refuse to write for checkpoints as long as there is a file that says so."""
    full = os.path.join(options["folder"], "full")
    for name in ("write", "write_new"):
        write = getattr(LocalStorage, name)

        def write_if_there_is_room(storage, path, data, write=write):
            if os.path.exists(full):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
            return write(storage, path, data)

        setattr(LocalStorage, name, write_if_there_is_room)


@cache
def count_of_this_process():
    """Return the array of one number, on disk."""
    path = os.path.join(options["folder"], f"{os.getpid()}.steps")
    return np.memmap(path, np.int64, mode="w+", shape=1)


def problem(name):
    """Return the environment and its model."""
    if name == "counted":
        return CountedRing, ring_model()
    made = {"lake": ("FrozenLake-v1", {"map_name": "8x8"}), "taxi": ("Taxi-v4", {})}[name]
    model = TabularMDP.from_gymnasium(made[0], **made[1])
    return model, model


class Lines(logging.Handler):
    """Writes lines of JSON, each at once, so that a process that is killed has written all."""

    def __init__(self):
        super().__init__()
        self.file = os.open(
            os.path.join(options["folder"], f"{os.getpid()}.jsonl"), os.O_WRONLY | os.O_CREAT | os.O_APPEND
        )

    def say(self, event, **data):
        who = {"pid": os.getpid(), "rank": rank, "replacement": replacement}
        line = {"event": event, "time": time.time(), **who, **data}
        os.write(self.file, (json.dumps(line) + "\n").encode())

    def emit(self, record):
        self.say("log", level=record.levelname, text=record.getMessage())


faulthandler.register(signal.SIGQUIT)
options = json.loads(sys.argv[1])
HURRY = os.path.join(options["folder"], "hurry")
if options.get("slow"):
    slow_down(until=HURRY, steps_per_second=200_000)
    slow_supersteps()
if options.get("by_messages"):
    training._memory = lambda run, group, start: None
if options.get("rows_once"):
    large_table.FROM_ENTRIES = 1
if options.get("divided"):
    large_table.WHOLE_SHARE = 0.0
let_the_disk_be_full()
cores.bound_cores = lambda: list(range(options.get("cores") or 64))
cores.core_quota = lambda: None
if hosts := options.get("hosts"):
    Group.host_of = lambda self, rank: f"host {rank % hosts}"
rank, replacement = rank_of_environment() or 0, False
lines = Lines()
logging.getLogger("dist_classicrl").addHandler(lines)
logging.getLogger("dist_classicrl").setLevel(logging.INFO)
environment, model = problem(options["environment"])
settings = {"discount_factor": DISCOUNT, "epsilon": 0.5, "learning_rate": PerVisit(0.7), "seed": 11}
agent = DistAsyncQLearning(**{**settings, **options["agent"]})
replacement = MPI.Comm.Get_parent() != MPI.COMM_NULL
lines.say("started")
try:
    result = agent.train(
        environment,
        progress=lambda progress: lines.say("progress", **dataclasses.asdict(progress)),
        **{"progress_interval": 0.05, **options["train"]},
    )
except TrainingStopped as stopped:
    lines.say("stopped", code=stopped.code, steps=stopped.steps, visits=int(agent.visits.sum()))
    raise
except (RankLostError, RemoteRankError) as error:
    lines.say("lost", error=f"{type(error).__name__}: {error}")
    raise
except BaseException:
    lines.say("ended", error=traceback.format_exc())
    raise
if options.get("divided"):  # nobody has all of it
    (q_table,), (visits,) = state_of(agent).rows_of(np.arange(model.n_states))
else:
    q_table, visits = agent.q_table, agent.visits
policy = q_table[: model.n_states, : model.n_actions].argmax(axis=1)
lines.say(
    "trained",
    steps=result.steps,
    agent_steps=agent.steps,
    visits=int(visits.sum()),
    value=model.start_value(model.policy_value(policy, DISCOUNT)),
    optimum=model.start_value(model.solve(DISCOUNT).v),
    sha256=hashlib.sha256(np.ascontiguousarray(q_table).tobytes()).hexdigest(),
    result=result.to_dict(),
)
