"""Processes that were forked from one which saves: each claims the folder, and the last one has it."""

import subprocess
import sys

import pytest

from dist_classicrl import DistAsyncQLearning
from dist_classicrl.checkpoint.folder import CheckpointFolder

HEAD = """
import os, sys, threading, traceback
import numpy as np
from dist_classicrl import DistAsyncQLearning, TabularMDP
from dist_classicrl.checkpoint.plan import checkpoint_plan
from dist_classicrl.errors import CheckpointError
from dist_classicrl.model.places import Places

PARENT, RUN = os.getpid(), "0123abcd"

def told(who, attempt):
    try:
        print(who, attempt(), flush=True)
    except CheckpointError as error:
        print(who, type(error).__name__, flush=True)

def forked(work, end=os._exit):
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        end(0)
    return lambda: os.waitpid(child, 0)[1] and sys.exit(1)
"""

TRAINING = f"""{HEAD}
agent = DistAsyncQLearning(seed=1)

lake = TabularMDP.from_gymnasium("FrozenLake-v1")

def train(steps):
    return agent.train(lake, total_steps=steps, checkpoint_dir=sys.argv[1])
"""


def lines_of(program, folder):
    """Return what a program says in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", program, folder], capture_output=True, text=True, timeout=120.0
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


AT_A_WRITE = f"""{HEAD}
place = Places().of(checkpoint_plan(checkpoint_dir=sys.argv[1]))
place.claim(None)
write, entered, goes_on = place.folder.write, threading.Event(), threading.Event()

def late(*arguments):
    entered.set()
    assert os.getpid() != PARENT or goes_on.wait(60.0)
    return write(*arguments)

def save(steps):
    place.writer.submit({{"a": np.full(5, float(steps))}}, {{"steps": steps}}, RUN)
    return "written" if place.writer.wait(60.0) and not place.writer.failed else "not written"

def in_child():
    told("child", place.writer.check)
    told("child", place.folder.fence.check)
    told("child", lambda: place.claim(None))
    told("child", place.folder.fence.check)
    told("child", lambda: save(2))

place.folder.write = late
threading.Thread(target=lambda: told("parent", lambda: save(1))).start()
assert entered.wait(60.0)
forked(in_child, sys.exit)()
goes_on.set()
assert place.writer.wait(60.0)
told("parent", place.writer.check)
told("parent", lambda: place.claim(None))
told("parent", place.folder.fence.check)
"""


@pytest.mark.slow
def test_the_writer_of_a_parent_neither_holds_up_nor_claims_for_what_is_forked(tmp_path):
    """It is forked in the middle of a write, whose thread is not in the new process."""
    assert sorted(lines_of(AT_A_WRITE, tmp_path)) == sorted(
        [
            "child CheckpointFencedError",
            "child CheckpointFencedError",
            "child True",
            "child 2",
            "child written",
            "parent not written",
            "parent CheckpointFencedError",
            "parent True",
            "parent CheckpointFencedError",
        ]
    )
    (name,) = CheckpointFolder(tmp_path, "agent-0").names()
    assert name.startswith("f000002-") and "-step000000000000002-" in name


ONE_AFTER_ANOTHER = f"""{TRAINING}
train(1_000)
forked(lambda: told("child", lambda: train(5_000).steps))()
told("parent", lambda: train(500))
told("parent", lambda: agent.steps)
"""


@pytest.mark.slow
def test_a_forked_process_goes_on_with_the_agent_and_its_parent_is_refused(tmp_path):
    lines = lines_of(ONE_AFTER_ANOTHER, tmp_path)
    assert lines == ["child 5000", "parent CheckpointFencedError", "parent 1500"]
    assert DistAsyncQLearning.load_model(tmp_path).steps == 6_000


PARENT_FIRST = f"""{TRAINING}
train(1_000)
begins, goes_on = os.pipe()

def in_child():
    os.close(goes_on)
    os.read(begins, 1)
    if sys.argv[1].endswith("further"):
        agent.train(lake, total_steps=9_000)
    told("child", lambda: train(1_500) and agent.steps)

end = forked(in_child)
told("parent", lambda: train(2_000).steps)
os.write(goes_on, b"x")
end()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "who, expected", [("behind", ["child 3000"]), ("further", ["child CheckpointMismatchError"])]
)
def test_a_forked_process_goes_on_from_what_its_parent_saved_since(tmp_path, who, expected):
    lines = lines_of(PARENT_FIRST, tmp_path / who)
    assert lines == ["parent 2000", *expected]
