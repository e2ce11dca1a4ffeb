"""Trainings for a real SLURM: the scripts that users copy, with something shorter to train."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

from slurm_cluster import SlurmCluster

from dist_classicrl import DistAsyncQLearning
from dist_classicrl.environments.model import TabularMDP
from dist_classicrl.errors import LauncherError
from dist_classicrl.launch.launcher import find_launcher

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts" / "slurm"
DISCOUNT = 0.95
# By how much of the best policy's value the learned one may be worse. On slippery ice the best first move is
# better than the next by 0.008, and to take that costs 16 %, which a worker that was held up for seconds of a
# run of two can lead to. Nine of ten policies drawn by chance are worth less than 15 % of the best.
GAP, SLIPPERY_GAP = 0.01, 0.5
EXAMPLE = (str(ROOT / "examples" / "train.py"),)
TRAIN = ("-m", "dist_classicrl", "train")
FOUR_TASKS = ("--ntasks=4", "--nodes=2", "--ntasks-per-node=2")
# The words that the scripts have in the place of these.
TRAINED = {
    "plain.sbatch": "FrozenLake8x8-v1 --total-steps 1e9",
    "requeue.sbatch": "FrozenLake8x8-v1 --total-steps 1e11",
    "sweep.sbatch": "FrozenLake8x8-v1 --total-steps 1e9",
    "study.sbatch": "study.toml --out studies/lake",
    "srun.sbatch": "examples/train.py --steps 100000000000 --checkpoint-dir saved",
}
# The package is found where this one was found, installed or not.
_PYTHONPATH = f"{ROOT / 'src'}:{Path(__file__).parent}:$PYTHONPATH"
SETUP = f"export PATH={Path(sys.executable).parent}:$PATH PYTHONPATH={_PYTHONPATH}"


def why_not() -> str | None:
    """Say why these jobs cannot run with the MPI at hand; None if they can."""
    try:
        launcher = find_launcher()
    except LauncherError as error:
        return str(error)
    if launcher.family != "openmpi" or launcher.version < (5,):
        return f"these jobs are for Open MPI 5 and newer, and this is {launcher}"
    return None


def script(name: str, *words: str) -> str:
    """Return a script of scripts/slurm that trains with `words`, in this Python environment."""
    text = (SCRIPTS / name).read_text()
    for old, new in ((TRAINED[name], shlex.join(words)), ("# set-up", SETUP)):
        assert text.count(old) == 1
        text = text.replace(old, new)
    return text


def slow_words(steps: int, interval: str) -> tuple[str, ...]:
    """Return the words with which `train` takes its time until `hurry`, and saves at this interval."""
    saving = ("--checkpoint-interval", interval, "--eval-episodes", "1")
    return ("slurm_lake:SlowLake", "--total-steps", str(steps), *saving, *learning(1))


def learning(seed: int | None = None) -> tuple[str, ...]:
    """Return the words with which `train` learns well in few steps."""
    words = ("--epsilon", "0.5", "--discount-factor", str(DISCOUNT), "--learning-rate", "per_visit:0.7")
    return words if seed is None else (*words, "--seed", str(seed))


def run_folder(place: Path) -> Path:
    """Return the folder of the one run of a job, which may not be there yet."""
    found = list(place.glob("runs/*"))
    assert len(found) < 2
    return found[0] if found else place / "runs" / "none"


def steps_made(folder: Path) -> int:
    """Return how many steps the run in a folder has told of."""
    path = folder / "metrics.jsonl"
    *lines, _ = path.read_text().split("\n") if path.exists() else [""]
    return max((json.loads(line).get("steps", 0) for line in lines), default=0)


def wait_until_it_trains(cluster: SlurmCluster, job: str, steps: int = 1) -> Path:
    """Wait until a job has told of so many steps, and return the folder of its run."""

    def trains(about: dict[str, str]) -> bool:
        return steps_made(run_folder(Path(about["WorkDir"]))) >= steps

    return run_folder(Path(cluster.wait_for(job, trains, f"{steps} steps")["WorkDir"]))


def hurry(cluster: SlurmCluster, job: str) -> None:
    """Let a job that takes its time come to its end, now and when it is started again."""
    (cluster.place(job) / "hurry").touch()


def checkpoints_in(folder: Path) -> list[Path]:
    """Return the complete checkpoints of the run in a folder."""
    return sorted(path.parent for path in folder.glob("checkpoints/agent-0/*/manifest.json"))


def result(folder: Path) -> dict:
    """Return the result of the run in a folder."""
    return json.loads((folder / "result.json").read_bytes())


def check_learned(file: Path, steps: int, *, slow: bool = False) -> None:
    """Check a model of FrozenLake, or SlowLake: learned in so many steps, and as good as can be."""
    agent = DistAsyncQLearning.load_model(file)
    assert int(agent.visits.sum()) == agent.steps == steps
    model = TabularMDP.from_gymnasium("FrozenLake-v1", is_slippery=not slow)
    policy = agent.q_table[: model.n_states, : model.n_actions].argmax(axis=1)
    value = model.start_value(model.policy_value(policy, DISCOUNT))
    assert value > (1 - (GAP if slow else SLIPPERY_GAP)) * model.start_value(model.solve(DISCOUNT).v)
