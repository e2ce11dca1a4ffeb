"""A program that trains with checkpoints, for tests: `python checkpoint_program.py OPTIONS`.

OPTIONS is a JSON object:

    environment   "garnet" (by default), or the name of a class in this file, or a Gymnasium id
    agent         arguments of the constructor
    train         arguments of each call of train
    calls         further arguments of each call, in order; "agent" chooses the agent, 0 by default
    signal        a signal that this process sends to itself as soon as train listens for it, on rank 0
    slow_disk     seconds that each file takes longer to be on disk
    patience      seconds for which a rank that stops waits for the goodbye of the others, 60 by default: on a
                  busy machine one may be held up for longer than the package waits

Each rank prints one JSON object per line: "event" is "started", "trained" after each call, "stepping" at the
first step of a corridor, "stopped" where training was stopped in order, or "failed", with what was raised
on whichever rank it was.
"""

import hashlib
import json
import os
import signal
import sys
import threading
import time

import gymnasium
import numpy as np
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv

from dist_classicrl import DistAsyncQLearning
from dist_classicrl.engines.roles import shutdown
from dist_classicrl.environments.model import TabularMDP
from dist_classicrl.errors import RemoteRankError, TrainingStopped
from dist_classicrl.schedules import PerVisit

DISCOUNT = 0.9


class SlowCorridor(gymnasium.Env):
    """Five places in a row; each step takes so many `seconds`."""

    seconds = 0.3

    observation_space = gymnasium.spaces.Discrete(5)
    action_space = gymnasium.spaces.Discrete(2)
    stepping = False

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = 0
        return 0, {}

    def step(self, action):
        if not SlowCorridor.stepping:
            SlowCorridor.stepping = True
            say("stepping")
        time.sleep(self.seconds)
        self.place = min(4, max(0, self.place + 2 * int(action) - 1))
        return self.place, float(self.place == 4), self.place == 4, False, {}


class StuckCorridor(SlowCorridor):
    """The same, with steps that nobody waits for."""

    seconds = 600.0


class ThinIce(FrozenLakeEnv):
    """A frozen lake that breaks on the rank, and after the steps, that the variable THIN_ICE tells."""

    rank, left = map(int, os.environ.get("THIN_ICE", "0 0").split())

    def step(self, action):
        if ThinIce.rank == agents[0].rank:
            ThinIce.left -= 1
            if ThinIce.left == 0:
                raise ZeroDivisionError("thin ice")
        return super().step(action)


def say(event, **data):
    """Print what happened on this rank."""
    print(json.dumps({"event": event, "rank": agents[0].rank, **data}), flush=True)


def signal_myself(number, handler):
    """Send the signal that train has just begun to listen for."""
    while signal.getsignal(number) == handler:
        time.sleep(1e-4)
    os.kill(os.getpid(), number)


def value_of(q_table, model):
    """Return the exact value of the greedy policy, and the best there is."""
    policy = q_table[: model.n_states, : model.n_actions].argmax(axis=1)
    value = model.start_value(model.policy_value(policy, DISCOUNT))
    return {"value": value, "optimum": model.start_value(model.solve(DISCOUNT).v)}


def slow_down(function, seconds):
    """Return a function that does the same, and takes longer."""

    def slowly(*arguments):
        time.sleep(seconds)
        return function(*arguments)

    return slowly


options = json.loads(sys.argv[1])
shutdown._BYE_SECONDS = options.get("patience", 60.0)
os.fsync = slow_down(os.fsync, options.get("slow_disk", 0.0))
calls = options["calls"]
model = TabularMDP.garnet(60, 3, 4, seed=5)
name = options.get("environment", "garnet")
environment = {"garnet": model}.get(name, globals().get(name, name))
settings = {"discount_factor": DISCOUNT, "epsilon": 0.5, "learning_rate": PerVisit(0.7), "seed": 11}
agents = [
    DistAsyncQLearning(**{**settings, **options.get("agent", {})})
    for _ in range(1 + max(call.get("agent", 0) for call in calls))
]
say("started", pid=os.getpid())
if "signal" in options and agents[0].rank == 0:
    wanted = signal.Signals[options["signal"]]
    threading.Thread(target=signal_myself, args=(wanted, signal.getsignal(wanted)), daemon=True).start()
for number, call in enumerate(calls):
    arguments = {**options.get("train", {}), **call}
    agent = agents[arguments.pop("agent", 0)]
    if isinstance(arguments.get("steps"), list):
        arguments["steps"] = arguments["steps"][agent.rank]
    if options.get("tells"):
        arguments["progress"] = lambda told: say("under way", steps=told.steps)
    begun = time.monotonic()
    try:
        result = agent.train(environment, **arguments)
    except TrainingStopped as stopped:
        say(
            "stopped",
            call=number,
            code=stopped.code,
            reason=stopped.reason,
            checkpoint=stopped.checkpoint,
            steps=stopped.steps,
            agent_steps=agent.steps,
            time=time.time(),
        )
        raise
    except Exception as error:
        told = error.summary if isinstance(error, RemoteRankError) else f"{type(error).__name__}: {error}"
        say("failed", call=number, error=told)
        raise
    say(
        "trained",
        call=number,
        steps=result.steps,
        agent_steps=agent.steps,
        visits=int(agent.visits.sum()),
        resumed_from=result.resumed_from,
        result={key: value for key, value in result.to_dict().items() if key != "resumed_from"},
        seconds=time.monotonic() - begun,
        sha256=hashlib.sha256(np.ascontiguousarray(agent.q_table).tobytes()).hexdigest(),
        **(value_of(agent.q_table, model) if name == "garnet" else {}),
    )
