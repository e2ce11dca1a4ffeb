"""Under a real SLURM of two nodes: each way to start ranks, what is refused, and what SLURM tells a job."""

import json
import os
import re
import shlex
import signal
import time
from contextlib import suppress
from pathlib import Path

import kill_sweeps
import pytest
from slurm_cluster import ENDED, NODES, SlurmCluster
from slurm_jobs import (
    DISCOUNT,
    EXAMPLE,
    SETUP,
    TRAIN,
    check_learned,
    learning,
    result,
    run_folder,
    script,
)

from dist_classicrl.launch.launcher import launch_environment
from dist_classicrl.process.jobs import run_job
from dist_classicrl.sweep.kept.records import records_in

STEPS = 20_000_000
EIGHT_TASKS = ("--nodes=2", "--ntasks-per-node=4")
LAKE = ("--env", "FrozenLake-v1", "--epsilon", "0.5", "--discount", str(DISCOUNT), "--output", "model.npz")
# Tells how much time is left, asked of each of SLURM's commands, which a busy machine keeps waiting.
ASK = """\
import json, os, sys, time
from dist_classicrl.launch.slurm import seconds_left
passed = time.time() - float(sys.argv[1])
alone = {}
for name in ("squeue", "scontrol"):
    os.makedirs(f"without-{name}", exist_ok=True)
    with open(f"without-{name}/{name}", "w") as file:
        file.write("#!/bin/sh\\nexit 1\\n")
    os.chmod(file.name, 0o755)
    path = os.path.abspath(f"without-{name}") + ":" + os.environ["PATH"]
    alone[name] = seconds_left({**os.environ, "PATH": path}, 120.0)
told = {name: os.environ.get(name) for name in ("SLURM_NTASKS", "SLURM_NNODES", "SLURM_JOB_END_TIME")}
left = [seconds_left(command_seconds=120.0), *alone.values()]
print(json.dumps([*left, passed, time.time() - float(sys.argv[1]), told]), flush=True)
"""
# Each run is a parcel: a job can be killed in the midst of them.
STUDY = """\
environment = "FrozenLake-v1"
total_steps = 12_000_000
seeds = 10
points = 5
[vary]
discount_factor = [0.9, 0.95]
"""
STUDY_SECONDS = 300.0
STUDIES = 5  # until one is caught in its midst
# What SLURM takes at most to start a script, and to count in its own rhythm, however busy the machine is.
STARTING_SECONDS = 240.0


@pytest.fixture(scope="module")
def cluster(slurm_possible):
    with SlurmCluster() as cluster:
        yield cluster


@pytest.fixture(scope="module", autouse=True)
def asked(cluster):
    """Jobs that ask how much time is left, and run while other tests do."""
    ask = f"#!/bin/bash\nbegan=$(date +%s)\n{SETUP}\nsleep 4\npython -c {shlex.quote(ASK)} $began\n"
    again = ask + '[ -n "$SLURM_RESTART_COUNT" ] || { scontrol requeue $SLURM_JOB_ID; sleep 30; }\n'
    size = ("--nodes=2", "--ntasks=4")
    return {
        "plain": cluster.submit(ask, "--time=10", *size),
        "unlimited": cluster.submit(ask, "--time=UNLIMITED", *size),
        "array": cluster.submit(ask, "--time=20", "--array=3-4", *size),
        "queued again": cluster.submit(again, "--time=10", "--requeue", "--open-mode=append", *size),
    }


def test_the_plain_script_trains_on_all_tasks_of_two_nodes(cluster):
    words = ("FrozenLake-v1", "--total-steps", str(STEPS), *learning(1))
    job = cluster.submit(script("plain.sbatch", *words), *EIGHT_TASKS)
    assert cluster.wait(job, ENDED)["JobState"] == "COMPLETED", cluster.output(job)
    folder = run_folder(cluster.place(job))
    assert (result(folder)["steps"], result(folder)["workers"]) == (STEPS, 7)
    check_learned(folder / "model.npz", STEPS)


def test_mpirun_in_a_batch_script_takes_the_nodes_from_slurm(cluster):
    look = "mpirun --bind-to none sh -c 'echo runs on $(hostname)'"
    example = shlex.join([*EXAMPLE, "--steps", str(STEPS), *LAKE])
    job = cluster.submit(
        f"#!/bin/bash\n{SETUP}\n{look}\nexec mpirun --bind-to none python {example}\n", *EIGHT_TASKS
    )
    assert cluster.wait(job, ENDED)["JobState"] == "COMPLETED", cluster.output(job)
    hosts = re.findall(r"runs on (\w+)", cluster.output(job))
    assert sorted(hosts) == ["h1"] * 4 + ["h2"] * 4
    assert "on 7 workers" in cluster.output(job)
    check_learned(cluster.place(job) / "model.npz", STEPS)


def test_srun_starts_the_ranks_of_the_example(cluster):
    words = (*EXAMPLE, "--steps", str(STEPS), *LAKE)
    job = cluster.submit(script("srun.sbatch", *words), *EIGHT_TASKS)
    assert cluster.wait(job, ENDED)["JobState"] == "COMPLETED", cluster.output(job)
    assert "on 7 workers" in cluster.output(job)
    # Open MPI says so where it misses a part of SLURM's PMIx.
    assert "Sorry" not in cluster.output(job)
    check_learned(cluster.place(job) / "model.npz", STEPS)


@pytest.mark.parametrize(("pmi", "program"), [("none", "script"), ("pmi2", "train")])
def test_tasks_that_do_not_find_each_other_are_refused(cluster, pmi, program):
    forever = str(10**14)
    words = {
        "script": [*EXAMPLE, "--steps", forever],
        "train": [*TRAIN, "FrozenLake-v1", "--total-steps", forever],
    }[program]
    job = cluster.submit(f"#!/bin/bash\n{SETUP}\nsrun --mpi={pmi} python {shlex.join(words)}\n", "--ntasks=2")
    assert cluster.wait(job, ENDED)["JobState"] == "FAILED"
    said = cluster.output(job)
    assert said.count("The environment promises 2 ranks") == 2, said
    assert "srun --mpi=pmix" in said
    if program == "train":
        assert "Traceback" not in said and "exit code 2" in said
    else:
        assert said.count("dist_classicrl.errors.SingletonError:") == 2


def test_an_array_is_a_run_for_each_seed(cluster):
    words = ("FrozenLake-v1", "--total-steps", str(STEPS), *learning())
    job = cluster.submit(script("sweep.sbatch", *words), "--array=0-1", "--ntasks=2", "--nodes=1")
    tables = []
    for task in (0, 1):
        about = cluster.wait(f"{job}_{task}", ENDED)
        assert about["JobState"] == "COMPLETED", cluster.output(f"{job}_{task}")
        folder = cluster.place(f"{job}_{task}") / "runs" / f"FrozenLake8x8-v1-{task}"
        check_learned(folder / "model.npz", STEPS)
        assert f"seed = {task}\n" in (folder / "config.toml").read_text()
        tables.append((folder / "model.npz").read_bytes())
    assert tables[0] != tables[1]


def frozen_over_a_claim(cluster, job, shared):
    """Stop both tasks of a job that makes runs of a study, one of them with runs that it has not made yet.

    Return their process ids; None if the job has ended before it was caught.
    """
    deadline = time.monotonic() + STUDY_SECONDS
    while time.monotonic() < deadline:
        about = cluster.about(job)
        if about["JobState"] in ENDED:
            return None
        tasks = {pid: node for node in NODES for pid in cluster.pids(node, about["JobId"], "sweep")}
        try:
            if have_a_claim_when_stopped(tasks, shared):
                return list(tasks)
        except OSError:  # one of them has just ended
            pass
        for pid in tasks:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        time.sleep(0.05)
    raise AssertionError(f"no task had a claim within {STUDY_SECONDS:g} s: {cluster.output(job)}")


def have_a_claim_when_stopped(tasks, shared):
    """Stop the two tasks, whose nodes are known, if both are members; tell whether one has runs to make."""
    members = [
        member.name
        for pid, node in tasks.items()
        for member in shared.glob(f"members/{node}.{pid_on_its_host(pid)}.*")
    ]
    if len(members) != 2:
        return False
    for pid in tasks:
        os.kill(pid, signal.SIGSTOP)
    made = {key for path in shared.glob("records/*.jsonl") for key in keys_in(path)}
    return any(
        claim.read_text() in members and claim.name.rpartition("-")[0] not in made
        for claim in shared.glob("claims/*.0")
    )


def pid_on_its_host(pid):
    found = re.search(r"^NSpid:.*\s(\d+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return int(found[1])


def keys_in(path):
    return [record["key"] for record in records_in(path.read_bytes())]


def test_jobs_of_an_array_share_a_study_and_take_over_from_one_that_is_killed(cluster, tmp_path):
    study, quiet = tmp_path / "study.toml", tmp_path / "quiet"
    study.write_text(STUDY)
    for number in range(STUDIES):
        shared = tmp_path / f"shared-{number}"
        text = script("study.sbatch", str(study), "--out", str(shared))
        job = cluster.submit(text, "--array=0-1", "--nodes=2", "--ntasks-per-node=1", "--ntasks=2")
        if killed := frozen_over_a_claim(cluster, f"{job}_0", shared):
            break
    assert killed, f"{STUDIES} studies were over before they were caught"
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    done = run_job(kill_sweeps.command(study, quiet), timeout=STUDY_SECONDS, env=launch_environment())
    assert done.returncode == 0, done.output
    assert cluster.wait(f"{job}_0", ENDED)["JobState"] != "COMPLETED"
    assert cluster.wait(f"{job}_1", ENDED)["JobState"] == "COMPLETED", cluster.output(f"{job}_1")
    # Its two tasks left a sign of life each, and parcels that somebody had to claim once more.
    assert len(list(shared.glob("members/h*"))) == 2
    assert list(shared.glob("claims/*.1"))
    assert kill_sweeps.tables(shared) == kill_sweeps.tables(quiet)


def test_what_slurm_says_of_the_time_that_is_left(cluster, asked):
    said = {}
    for name, job in asked.items():
        for part in (f"{job}_3", f"{job}_4") if name == "array" else (job,):
            assert cluster.wait(part, ENDED)["JobState"] == "COMPLETED", cluster.output(part)
            said[part] = [json.loads(line) for line in cluster.output(part).splitlines() if line[0] == "["]
    runs = {"plain": 1, "unlimited": 1, "queued again": 2}
    limits = {"plain": 600.0, "unlimited": None, "array": 1200.0, "queued again": 600.0}
    for name, job in asked.items():
        for part in (f"{job}_3", f"{job}_4") if name == "array" else (job,):
            assert len(said[part]) == runs.get(name, 1)
            for *seconds, passed, passed_in_all, told in said[part]:
                assert (told["SLURM_NTASKS"], told["SLURM_NNODES"]) == ("4", "2")
                for left in seconds:
                    if limits[name] is None:
                        assert left is None
                    else:
                        # Each run has the whole of it, less what has passed. SLURM counts in its own rhythm.
                        assert limits[name] - passed_in_all - STARTING_SECONDS < left
                        assert left < limits[name] - passed + 2.0
