"""Whole programs that go on from checkpoints, on other numbers of ranks and in whichever call of train."""

import re
import signal
import time

import pytest
from background_job import (
    BackgroundJob,
    appearance,
    check_finished,
    check_stopped,
    complete_checkpoints,
    events,
    program,
)
from slowly import slowly

GAP = 0.02
# By async_updates.
STEPS = {True: 20_000_000, False: 2_500_000}


def start_and_stop(arguments, folder, ranks, rank=None):
    """Start a program, and stop it after its first checkpoint, by a signal to mpirun or to one rank.

    Return the steps that the last checkpoint contains.
    """
    written = appearance(folder, "agent-0/f*/manifest.json")
    with BackgroundJob(slowly(arguments, at_least=0.3), ranks=ranks) as job:
        job.must_wait_for(written, "the first checkpoint")
        since = time.time()
        if rank is None:
            job.send(signal.SIGUSR1)
            reason = "SIGUSR1 on rank " if ranks else "SIGUSR1"
            return check_stopped(job, ranks or 1, reason, since, folder)
        job.send_to_rank(rank, signal.SIGTERM)
        return check_stopped(job, ranks, f"SIGTERM on rank {rank} ", since, folder)


def finish(arguments, ranks=None):
    """Run a program to its end, and return what it wrote."""
    with BackgroundJob(arguments, ranks=ranks) as job:
        return job.wait(0)


@pytest.mark.parametrize("async_updates", STEPS)
def test_from_five_ranks_to_two_to_one_to_four(tmp_path, async_updates):
    folder, steps = tmp_path / "saved", STEPS[async_updates]
    agent = {"async_updates": async_updates, "logical_workers": 4}
    calls = [{"total_steps": steps}]
    train = {"checkpoint_dir": folder, "checkpoint_interval": 1}
    arguments = program(agent=agent, train=train, calls=calls)
    made = [0]
    for ranks, rank in ((5, None), (2, 1), (None, None)):
        made.append(start_and_stop(arguments, folder, ranks, rank))
    assert made == sorted(set(made)) and made[-1] < steps
    said = check_finished(finish(arguments, 4), 4, steps, made[-1])
    assert all(each["optimum"] - each["value"] < GAP for each in said)
    if not async_updates:
        uninterrupted = finish(program(agent=agent, calls=calls))
        assert {each["sha256"] for each in said + events(uninterrupted, "trained")} == {said[0]["sha256"]}


def test_stopped_alone_it_ends_with_the_same_bits(start_python, run_python, tmp_path):
    folder = tmp_path / "saved"
    calls = [{"total_steps": 12_000_000}]
    agent = {"dtype": "float32", "replay_ratio": 0.5}
    uninterrupted = start_python(*program(agent=agent, calls=calls))
    train = {"checkpoint_dir": folder, "checkpoint_interval": 1}
    arguments = program(agent=agent, train=train, calls=calls)
    made = start_and_stop(arguments, folder, None)
    (trained,) = check_finished(run_python(*arguments).output, 1, 12_000_000, made)
    (expected,) = events(uninterrupted.wait(0), "trained")
    assert trained["sha256"] == expected["sha256"]
    assert trained["result"]["episodes"] == expected["result"]["episodes"]


# Scripts that call train more than once

TEN_CALLS = [{"total_steps": 20_000_000 if number == 6 else 1_000_000} for number in range(10)]


def test_killed_in_the_seventh_of_ten_calls(start_python, run_python, tmp_path):
    folder = tmp_path / "saved"
    arguments = program(train={"checkpoint_dir": folder, "checkpoint_interval": 1}, calls=TEN_CALLS)
    job = start_python(*slowly(arguments, calls=6))
    uninterrupted = start_python(*program(calls=TEN_CALLS))

    def in_the_seventh():
        return any(6_000_000 < int(re.search(r"step(\d+)", name)[1]) for name in complete())

    def complete():
        return complete_checkpoints(folder / "agent-0")

    job.must_wait_for(in_the_seventh, "a checkpoint of the seventh call")
    job.kill()
    before = job.events("trained")
    assert len(before) == 6
    newest = complete()[0]

    again = run_python(*arguments)
    trained = events(again.output, "trained")
    assert [each["result"] for each in trained[:6]] == [each["result"] for each in before]
    assert [each["steps"] for each in trained] == [call["total_steps"] for call in TEN_CALLS]
    assert all(newest in each["resumed_from"] for each in trained[:7])
    assert [each["resumed_from"] for each in trained[7:]] == [None] * 3
    assert again.output.count("nothing to do") == 6
    assert trained[-1]["agent_steps"] == trained[-1]["visits"] == 29_000_000

    expected = events(uninterrupted.wait(0), "trained")
    assert trained[-1]["sha256"] == expected[-1]["sha256"]
    episodes = [[each["result"]["episodes"] for each in calls] for calls in (trained, expected)]
    assert episodes[0] == episodes[1]

    # A finished command typed again does nothing and says so.
    finished = run_python(*arguments)
    idle = events(finished.output, "trained")
    assert [each["result"] for each in idle] == [each["result"] for each in trained]
    assert {each["sha256"] for each in idle} == {trained[-1]["sha256"]}
    assert finished.output.count("nothing to do") == 10


def test_shares_of_ranks_add_up_on_other_numbers_of_ranks(start_python, run_python, tmp_path):
    folder = tmp_path / "saved"
    train = {"checkpoint_dir": folder, "checkpoint_interval": 1}
    on_three = [{"steps": [0, 1_000_000, 2_000_000]}, {"steps": [5_000_000, 0, 15_000_000]}]
    job = start_python(*slowly(program(train=train, calls=on_three), calls=1), ranks=3)
    job.must_wait_for(lambda: job.events("trained"), "the end of the first call")
    job.must_wait_for(appearance(folder, "agent-0/f*/manifest.json"), "a checkpoint of the second call")
    job.send(signal.SIGUSR1)
    job.wait(75)
    assert {each["call"] for each in job.events("stopped")} == {1}
    made = job.events("stopped")[0]["steps"]
    alone = [{"steps": 3_000_000}, {"steps": 20_000_000}]
    trained = events(run_python(*program(train=train, calls=alone)).output, "trained")
    assert [each["steps"] for each in trained] == [3_000_000, 20_000_000]
    assert trained[0]["result"] == job.events("trained")[0]["result"]
    assert f"step{made:015d}" in trained[1]["resumed_from"]
    assert trained[1]["agent_steps"] == trained[1]["visits"] == 23_000_000
    on_two = run_python(*program(train=train, calls=[{"steps": 10_000_000}, {"steps": 1_500_000}]), ranks=2)
    assert {each["visits"] for each in events(on_two.output, "trained")} == {23_000_000}
    assert on_two.output.count("nothing to do") == 2


def test_two_agents_of_one_script(start_python, run_python, tmp_path):
    folder = tmp_path / "saved"
    train = {"checkpoint_dir": folder, "checkpoint_interval": 1}
    calls = [{"agent": 0, "total_steps": 2_000_000}, {"agent": 1, "total_steps": 15_000_000}]
    arguments = program(train=train, calls=calls)
    job = start_python(*slowly(arguments, calls=1))
    uninterrupted = start_python(*program(calls=calls))
    job.must_wait_for(lambda: len(complete_checkpoints(folder / "agent-1")) > 1, "the second agent's")
    job.kill()
    assert len(job.events("trained")) == 1
    newest = complete_checkpoints(folder / "agent-1")[0]
    again = events(run_python(*arguments).output, "trained")
    assert again[0]["result"] == job.events("trained")[0]["result"]
    assert again[0]["sha256"] == job.events("trained")[0]["sha256"]
    assert "/agent-0/" in again[0]["resumed_from"] and newest in again[1]["resumed_from"]
    assert [each["agent_steps"] for each in again] == [each["visits"] for each in again]
    expected = events(uninterrupted.wait(0), "trained")
    assert [each["sha256"] for each in again] == [each["sha256"] for each in expected]


# Scripts that keep their own state

OWN_STATE = """
import json, os, sys
import numpy as np
from mpi4py import MPI
from dist_classicrl import DistAsyncQLearning
rank = MPI.COMM_WORLD.rank
path = f"state-{rank}.npz"
agent = DistAsyncQLearning(seed=5, epsilon=1.0)
done = 0
if os.path.exists(path):
    with np.load(path, allow_pickle=False) as state:
        agent.q_table, agent.epsilon, done = state["q_table"], float(state["epsilon"]), int(state["done"])
    print(json.dumps({"event": "set", "rank": rank, "done": done, "epsilon": agent.epsilon}), flush=True)
while done < 4:
    # The third call takes so long that it can be killed.
    result = agent.train("FrozenLake-v1", steps=10**12 if done == 2 and "long" in sys.argv else 100_000)
    done += 1
    agent.epsilon = agent.epsilon - 0.2
    np.savez("new-" + path, q_table=agent.q_table, epsilon=agent.epsilon, done=done)
    os.replace("new-" + path, path)
    print(json.dumps({"event": "saved", "rank": rank, "done": done, "steps": result.steps,
                      "value": float(agent.q_table[0].max())}), flush=True)
"""


def test_a_script_that_keeps_its_own_state_per_rank_works_as_it_stands(start_python, run_python, tmp_path):
    (tmp_path / "own.py").write_text(OWN_STATE)
    job = start_python("own.py", "long", ranks=2)
    job.must_wait_for(lambda: len(job.events("saved")) == 4, "two calls on two ranks")
    time.sleep(0.3)
    job.kill()
    again = run_python("own.py", ranks=2)
    assert sorted((each["rank"], each["done"]) for each in events(again.output, "set")) == [
        (0, 2),
        (1, 2),
    ]
    assert [each["epsilon"] for each in events(again.output, "set")] == pytest.approx([0.6] * 2)
    saved = events(again.output, "saved")
    assert sorted(each["done"] for each in saved) == [3, 3, 4, 4]
    assert {each["steps"] for each in saved} == {200_000}
    assert {each["value"] for each in saved if each["done"] == 4} != {0.0}
    assert [line for line in again.output.splitlines() if not line.startswith('{"event"')] == []


def test_what_rank_0_holds_counts_and_others_are_told(run_python, tmp_path):
    program_text = """
import json
from mpi4py import MPI
import numpy as np
from dist_classicrl import DistAsyncQLearning
rank = MPI.COMM_WORLD.rank
agent = DistAsyncQLearning(seed=5, state_size=16, action_size=4)
agent.q_table = np.full((16, 4), 7.0 + (rank == 2))
agent.epsilon = 0.25 if rank == 1 else 0.5
agent.train("FrozenLake-v1", total_steps=3000)
# A state that ends episodes is never learned from.
print(json.dumps({"event": "trained", "rank": rank, "last": agent.q_table[15].tolist(),
                  "epsilon": agent.epsilon}), flush=True)
"""
    output = run_python("-c", program_text, ranks=3).output
    trained = events(output, "trained")
    assert len(trained) == 3
    assert all(each["last"] == [7.0] * 4 and each["epsilon"] == 0.5 for each in trained), output
    assert output.count("agent.q_table on rank 2 is not what it is on rank 0") == 1
    assert output.count("agent.epsilon on rank 1 is not what it is on rank 0") == 1
    assert output.count("is not what it is on rank 0") == 2
