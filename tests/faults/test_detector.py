"""Parts of `mpi_tools` by themselves, where a process really dies and where one is stopped for a while."""

import json
import os
import sys
from pathlib import Path

import pytest

from dist_classicrl.launch.launcher import launch_environment
from dist_classicrl.launch.mpirun import mpirun_command
from dist_classicrl.process.jobs import run_job

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(__file__).with_name("detector_program.py")
TOOLS = Path(__file__).with_name("tools_program.py")
SECONDS = 400.0


def run(what, options, folder):
    """Return what the ranks said, by rank."""
    program = [str(TOOLS)] if what == "tools" else [str(PROGRAM), what]
    command = [*mpirun_command(3), *options, sys.executable, *program]
    source = {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}
    job = run_job(command, timeout=SECONDS, env=launch_environment({**os.environ, **source}), cwd=folder)
    assert not job.timed_out, job.output
    said = [json.loads(line) for line in job.output.splitlines() if line.startswith('{"rank"')]
    return {each["rank"]: each for each in said}, job.output


@pytest.mark.core
def test_mpi_says_that_a_rank_was_killed(survivable, tmp_path):
    said, output = run("killed", ["--with-ft", "ulfm"], tmp_path)
    assert sorted(said) == [0, 1], output
    for each in said.values():
        assert each["told"] == [["failure", 2]]
        assert "MPI reports" in each["reasons"][0]


def test_a_rank_that_died_before_is_not_waited_for(survivable, tmp_path):
    said, output = run("dead", ["--with-ft", "ulfm"], tmp_path)
    assert sorted(said) == [0, 1], output
    for each in said.values():
        assert "A rank died while this one waited" in each["error"]


def test_a_stopped_rank_fails_by_its_silence_and_recovers(tmp_path):
    said, output = run("stopped", [], tmp_path)
    assert sorted(said) == [0, 1, 2], output
    for rank in (0, 1):
        assert [what for what, peer in said[rank]["told"] if peer == 2] == ["failure", "recovery"]
        assert "silent for" in said[rank]["reasons"][0]
    # It had not listened, and does not take that for the others' silence.
    assert said[2]["told"] == []


def test_barriers_survive_a_rank_that_was_killed_and_others_say_that_it_was(survivable, tmp_path):
    said, output = run("tools", ["--with-ft", "ulfm"], tmp_path)
    assert sorted(said) == [0, 1], output
    for each in said.values():
        assert each["came"] == [[0, 1, 2], [0, 1, 2], [0, 1], [0, 1]]
        levels, barrier, sync = each["errors"]
        assert levels.startswith("MPI could not do its part of a TwoLevel operation")
        assert "ranks came to barrier 2, where 3 have to come; missing: " in barrier
        assert "2. Too many of them have died" in barrier
        assert sync.startswith("Rank 2 died before synchronization 1 was complete.")
