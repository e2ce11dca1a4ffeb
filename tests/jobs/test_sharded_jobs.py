"""Jobs whose ranks learn in the same rows, and lose ranks."""

import json

import pytest

from dist_classicrl.launch.launcher import find_launcher
from dist_classicrl.launch.mpirun import survival_words

LAUNCH = ("-m", "dist_classicrl", "launch", "--restart-delay", "0")
STEPS = 60_000_000

PROGRAM = """
import json, os, pathlib, signal, sys
from dist_classicrl import DistAsyncQLearning, TabularMDP
from dist_classicrl.callbacks import BaseCallback
from dist_classicrl._hints import rank_of_environment

steps, dead, mark, on_failure = int(sys.argv[1]), json.loads(sys.argv[2]), *sys.argv[3:]
rank = rank_of_environment()


class Timed(BaseCallback):
    came = False

    def on_step(self, progress):
        if progress.steps > steps // 4 and not os.path.exists(mark):
            open(mark, "a").close()
            # This rank as the last; the run does not end before it is through with this.
            for one in sorted(dead, key=lambda one: one == rank):
                os.kill(int(pathlib.Path(f"pid-{one}").read_text()), signal.SIGKILL)
        return not self.came

    def on_worker_joined(self, event):
        self.came = on_failure == "replace"


pathlib.Path(f"pid-{rank}").write_text(str(os.getpid()))
model = TabularMDP.garnet(2000, 8, 2, seed=1)
agent = DistAsyncQLearning(seed=1, discount_factor=0.9, on_failure=on_failure)
result = agent.train(
    model,
    total_steps=10**15 if on_failure == "replace" else steps,
    placement="sharded",
    checkpoint_dir="saved",
    checkpoint_interval="1s",
    callbacks=Timed(),
)
best = model.start_value(model.solve(0.9).v)
gap = 1 - model.start_value(model.policy_value(agent.policy.greedy, 0.9)) / best
print("told", json.dumps([rank, result.steps, result.workers, int(agent.visits.sum()), gap]), flush=True)
"""


def run(run_python, folder, *options, dead, on_failure="continue"):
    """Run the program on 4 ranks, of which some die when a quarter is done; return what the others told.

    Where they are replaced it trains until somebody has come.
    """
    (folder / "script.py").write_text(PROGRAM)
    words = ("script.py", STEPS, json.dumps(dead), folder / "mark", on_failure)
    own = folder / "tmp"
    own.mkdir()
    job = run_python(*LAUNCH, "-n", 4, *options, *words, env={"TMPDIR": str(own)})
    assert list(own.iterdir()) == []
    lines = [line.partition("told ")[2] for line in job.output.splitlines() if "told [" in line]
    return [json.loads(line) for line in lines], job.output


def check(told):
    for _, steps, _, visits, gap in told:
        assert steps == STEPS
        # What the dead had not reported is made again, and some visits are lost to races.
        assert 0.9 * STEPS < visits < 1.2 * STEPS
        assert abs(gap) < 0.01


@pytest.mark.skipif(not survival_words(find_launcher()), reason="a death ends the job in this MPI")
@pytest.mark.parametrize("dead", [[0], [2], [1, 3]])
def test_survivors_go_on_in_the_same_rows(run_python, tmp_path, dead):
    told, output = run(run_python, tmp_path, dead=dead)
    check(told)
    if "starts again" not in output:  # MPI may fail as a whole when ranks die at the same moment
        assert sorted(rank for rank, *_ in told) == [rank for rank in range(4) if rank not in dead]


@pytest.mark.skipif(not survival_words(find_launcher()), reason="a death ends the job in this MPI")
def test_a_replacement_learns_in_the_same_rows(run_python, tmp_path):
    """It opens the memory of the others where the server has told it to."""
    told, output = run(run_python, tmp_path, dead=[2], on_failure="replace")
    assert "was started as a replacement" in output and "lost before it could begin" not in output
    assert sorted(rank for rank, *_ in told) == [0, 1, 3]
    assert {workers for _, _, workers, *_ in told} == {4}


def test_where_nobody_survives_the_job_goes_on_from_its_checkpoint(run_python, tmp_path):
    told, output = run(run_python, tmp_path, "--no-ulfm", dead=[1])
    check(told)
    assert len(told) == 4 and "starts again" in output
