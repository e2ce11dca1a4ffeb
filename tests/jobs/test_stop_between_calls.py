"""Jobs that are stopped between two calls of train, while ranks wait for each other, or while one hangs."""

import json
import os
import random
import signal
import time
from pathlib import Path

import pytest
import slowly
from background_job import (
    PROGRAM,
    appearance,
    check_finished,
    check_stopped,
    check_with_numpy_alone,
    complete_checkpoints,
    events,
    program,
)

# The program of other tests, with what these need. The second argument says it, in JSON:
#   meet    [rank, call, file]: this rank begins that call, from 0 on, only when the file is there; the others
#           make a file each, with their rank in its name, when they wait for it
#   hang    [rank, file]: where this rank makes its 3000th step of "Hanging-v0" it makes the file, and hangs
#   slow    where slowly.py is, if learners are to take their time from the second call on
#   fail    whether the last progress report of the last call raises an error on rank 0
PRELUDE = """
import json, pathlib, runpy, sys, time
import gymnasium
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv
from dist_classicrl import DistAsyncQLearning
from dist_classicrl.agent import training

del sys.argv[0]
extra = json.loads(sys.argv.pop(1))
train, group_of, calls, agents = DistAsyncQLearning.train, training.group_of, [], []

def train_here(agent, *arguments, **options):
    calls.append(agent.rank)
    agents[:] = [agent]
    if "meet" in extra and [agent.rank, len(calls) - 1] == extra["meet"][:2]:
        deadline = time.monotonic() + 300
        while not pathlib.Path(extra["meet"][2]).exists() and time.monotonic() < deadline:
            time.sleep(0.005)
    return train(agent, *arguments, **options, progress=report)

def wait_for_others(*arguments):
    if "meet" in extra and [calls[-1], len(calls) - 1] != extra["meet"][:2]:
        pathlib.Path(f"{extra['meet'][2]}-{len(calls) - 1}-{calls[-1]}").touch()
    return group_of(*arguments)

def report(progress):
    if extra.get("fail") and progress.steps == progress.total_steps:
        raise LookupError("no place for the last report")

class Hanging(FrozenLakeEnv):
    left = 3000

    def step(self, action):
        Hanging.left -= 1
        if Hanging.left == 0 and agents[0].rank == extra["hang"][0]:
            pathlib.Path(extra["hang"][1]).touch()
            time.sleep(1000)
        return super().step(action)

gymnasium.register("Hanging-v0", Hanging, max_episode_steps=100)
DistAsyncQLearning.train, training.group_of = train_here, wait_for_others
if extra.get("slow"):
    slow_down = runpy.run_path(extra["slow"])["slow_down"]
    slow_down(calls=1)
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def changed_program(extra, **options):
    """Return the arguments with which Python runs `checkpoint_program.py` with the prelude."""
    return ["-c", PRELUDE, PROGRAM, json.dumps(extra, default=os.fspath), *program(**options)[1:]]


def check_made(output, ranks, steps):
    """Check that each of the ranks has made exactly these steps in the end."""
    last = {each["rank"]: each for each in events(output, "trained")}
    assert sorted(last) == list(range(ranks)), output
    assert {(each["agent_steps"], each["visits"]) for each in last.values()} == {(steps, steps)}, output


def test_ranks_that_wait_for_a_busy_rank_0_and_that_one_stop_in_order(start_python, run_python, tmp_path):
    folder, go = tmp_path / "saved", tmp_path / "go"
    options = {
        "train": {"checkpoint_dir": folder},
        "calls": [{"total_steps": 20_000}, {"total_steps": 20_000_000}],
    }
    job = start_python(*changed_program({"meet": [0, 1, go], "slow": slowly.__file__}, **options), ranks=3)
    wait = [Path(f"{go}-1-{rank}") for rank in (1, 2)]
    job.must_wait_for(lambda: all(path.exists() for path in wait), "ranks 1 and 2 to wait")
    job.must_wait_for(lambda: len(job.events("trained")) == 3, "the end of the first call")
    since = time.time()
    job.send(signal.SIGUSR1)
    time.sleep(0.3)
    assert job.process.poll() is None, job.output
    go.touch()
    made = check_stopped(job, 3, "SIGUSR1 ", since, folder)
    assert {each["call"] for each in job.events("stopped")} == {1} and 20_000 <= made < 20_020_000
    check_made(run_python(*program(**options)).output, 1, 20_020_000)


def test_a_rank_that_waits_for_the_first_call_of_another_hears_signals(start_python, tmp_path):
    folder, go = tmp_path / "saved", tmp_path / "go"
    job = start_python(
        *changed_program(
            {"meet": [0, 0, go]}, train={"checkpoint_dir": folder}, calls=[{"total_steps": 10**15}]
        ),
        ranks=3,
    )
    waits = Path(f"{go}-0-1")
    job.must_wait_for(lambda: waits.exists() and len(job.events("started")) == 3, "rank 1 to wait")
    since = time.time()
    job.send_to_rank(1, signal.SIGUSR1)
    time.sleep(0.1)
    go.touch()
    check_stopped(job, 3, "SIGUSR1 on rank 1 ", since, folder)


def test_the_signal_may_come_to_another_rank_a_little_later(start_python, tmp_path):
    folder = tmp_path / "saved"
    job = start_python(*program(train={"checkpoint_dir": folder}, calls=[{"total_steps": 10**15}]), ranks=3)
    job.must_wait_for(appearance(folder, "agent-0/fence*"), "the folder to be claimed")
    since = time.time()
    job.send_to_rank(0, signal.SIGUSR1)
    time.sleep(0.12)
    try:
        job.send_to_rank(2, signal.SIGUSR1)
    except ProcessLookupError:  # it has ended already
        pass
    check_stopped(job, 3, "SIGUSR1 on rank ", since, folder)


def test_a_rank_that_hangs_is_ended_with_the_job(start_python, tmp_path):
    folder, hanging = tmp_path / "saved", tmp_path / "hanging"
    options = {
        "environment": "Hanging-v0",
        "patience": 20.0,
        "train": {"checkpoint_dir": folder, "checkpoint_interval": 1},
    }
    job = start_python(
        *changed_program({"hang": [2, hanging]}, **options, calls=[{"total_steps": 10**15}]), ranks=3
    )
    written = appearance(folder, "agent-0/f*/manifest.json")
    job.must_wait_for(lambda: hanging.exists() and written(), "the rank to hang, and the first checkpoint")
    since = time.time()
    job.send(signal.SIGUSR1)
    job.wait(75)
    stopped = job.events("stopped")
    assert sorted(each["rank"] for each in stopped) == [0, 1], job.output
    newest = folder / "agent-0" / complete_checkpoints(folder / "agent-0")[0]
    assert {each["checkpoint"] for each in stopped} == {str(newest)}
    made = check_with_numpy_alone(newest)["steps"]
    assert {each["steps"] for each in stopped} == {made} and made > 0
    assert (newest / "manifest.json").stat().st_mtime > since - 0.05  # file systems count in ticks
    assert "Rank 2 did not stop within 22 s" in job.output


def test_many_short_calls_and_a_signal_at_any_moment(start_python, run_python, tmp_path):
    folder = tmp_path / "saved"
    draw = random.Random(7)
    arguments = program(train={"checkpoint_dir": folder}, calls=[{"total_steps": 20_000}] * 30)
    for _ in range(4):
        claimed = appearance(folder, "agent-0/fence*")
        job = start_python(*arguments, ranks=2)
        # Before that, at its start, a process has no handlers yet.
        if job.wait_for(claimed, "the folder to be claimed") is not None:
            time.sleep(draw.uniform(0.0, 0.3))
            job.send(signal.SIGUSR1)
        job.wait()
        if job.process.returncode not in (0, 75):
            raise job.error(f"ended with status {job.process.returncode}")
        stopped = job.events("stopped")
        assert len(stopped) == (2 if job.process.returncode else 0), job.output
    check_made(run_python(*arguments).output, 1, 30 * 20_000)


@pytest.mark.parametrize("ranks", [None, 3])
def test_an_error_of_the_last_progress_report_costs_nothing_that_was_learned(run_python, tmp_path, ranks):
    folder = tmp_path / "saved"
    options = {"train": {"checkpoint_dir": folder}, "calls": [{"total_steps": 20_000}]}
    job = run_python(*changed_program({"fail": True}, **options), ranks=ranks, status=1)
    failed = {each["error"] for each in events(job.output, "failed")}
    assert failed == {"LookupError: no place for the last report"}
    newest = folder / "agent-0" / complete_checkpoints(folder / "agent-0")[0]
    assert check_with_numpy_alone(newest)["steps"] == 20_000
    check_finished(run_python(*program(**options)).output, 1, 20_000, 20_000)
