"""Records of a job that is killed in the middle of a line, under mpirun, and of the job that goes on."""

import csv
import json
import re

from slowly import slowly

from dist_classicrl.monitoring import read_metrics
from dist_classicrl.monitoring.reading import COLUMNS

STEPS = 1_000_000
PROGRAM = """
import glob, json, os, signal, sys, time
from dist_classicrl import DistAsyncQLearning
from dist_classicrl.callbacks import BaseCallback, MetricsCallback
from dist_classicrl.environments import TabularMDP
from dist_classicrl.learning.compiled import CompiledLearner


class Killer(BaseCallback):
    '''Kills this process in the middle of a line, the second or a later one after the newest checkpoint.'''

    newest, lines = None, 0

    def _on_checkpoint(self, steps, name):
        self.newest, self.lines = name, 0

    def write(self, handle, data):
        self.lines += b'"kind": "progress"' in data
        if self.newest is not None and self.lines >= 2 and b'"kind": "progress"' in data:
            begun = max(glob.glob("f*-c*", root_dir="run/checkpoints/agent-0"))
            if self.newest.endswith(begun):
                write(handle, data[: len(data) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
        return write(handle, data)


killer, write = Killer(), os.write
learn = CompiledLearner.learn


def learn_slowly(self, walker, stream, steps):
    '''Wait for a checkpoint that has begun to be complete, and then learn little until the next one.'''
    learn(self, walker, stream, steps)
    deadline = time.monotonic() + 60.0
    while (begun := glob.glob("run/checkpoints/agent-0/f*-c*")) and time.monotonic() < deadline:
        if os.path.exists(max(begun) + "/manifest.json"):
            time.sleep(0.5)
            break
        time.sleep(0.05)


if sys.argv[1] == "kill":
    os.write, CompiledLearner.learn = killer.write, learn_slowly
agent = DistAsyncQLearning(seed=1, discount_factor=0.9, epsilon=0.3)
result = agent.train(
    TabularMDP.garnet(60, 3, 4, seed=5, max_episode_steps=50),
    total_steps=int(sys.argv[2]),
    callbacks=[killer, MetricsCallback("run")],
    progress_interval=0.06,
    checkpoint_dir="run/checkpoints",
    # In the slow run two workers take two seconds for these.
    checkpoint_interval=200_000,
)
print(json.dumps(result.to_dict()))
"""


def lines_of(file):
    return file.read_bytes().splitlines(keepends=True)


def check_csv(folder, metrics):
    with open(folder / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows] == metrics["step"].tolist()
    assert list(rows[0]) == list(COLUMNS)


def test_killed_in_the_middle_of_a_line_there_is_neither_a_gap_nor_a_double(
    run_python, start_python, tmp_path
):
    folder = tmp_path / "run"
    (tmp_path / "program.py").write_text(PROGRAM)
    with start_python(*slowly(["program.py", "kill", STEPS]), ranks=3) as job:
        job.wait()
        assert job.process.returncode != 0, job.output
    *before, torn = lines_of(folder / "metrics.jsonl")
    assert not torn.endswith(b"\n")
    killed = read_metrics(folder)  # readable as it is
    assert len(killed) == sum(b'"kind": "progress"' in line for line in before) >= 2

    output = run_python("program.py", "go on", STEPS, ranks=3).output
    result = json.loads(next(line for line in output.splitlines() if line.startswith("{")))
    resumed_at = int(re.search(r"step0*(\d+)", result["resumed_from"])[1])
    assert 0 < resumed_at < killed["step"][-1]
    metrics = read_metrics(folder)
    kept = [line for line in before if json.loads(line)["step"] <= resumed_at]
    assert lines_of(folder / "metrics.jsonl")[: len(kept)] == kept
    assert lines_of(folder / "metrics.lost.jsonl") == before[len(kept) :] != []
    reports = sum(b'"kind": "progress"' in line for line in kept)
    assert metrics["step"][reports - 1] == resumed_at  # no gap before where it goes on
    assert metrics["step"][-1] == STEPS and (metrics["step"][1:] > metrics["step"][:-1]).all()
    assert (metrics["time"][1:] > metrics["time"][:-1]).all()
    assert metrics["episodes"].sum() == result["episodes"]
    # What came after the last step, without a step of its own, is in no line.
    assert result["pushes"] - 4 <= metrics["pushes"].sum() <= result["pushes"]
    assert sum(rank["steps"].sum() for rank in metrics.ranks.values()) == STEPS
    assert sorted(metrics.ranks) == [1, 2]
    check_csv(folder, metrics)
