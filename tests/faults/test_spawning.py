"""Replacements that MPI really spawns, after a rank was really killed: the program is spawning_program.py."""

import os
import sys
from pathlib import Path

import pytest

from dist_classicrl.launch.launcher import find_launcher, launch_environment
from dist_classicrl.launch.mpirun import survival_words
from dist_classicrl.process.jobs import run_job

PROGRAM = Path(__file__).with_name("spawning_program.py")
SOURCE = Path(__file__).resolve().parents[2] / "src"
SECONDS = 400.0


@pytest.fixture
def spawn(survivable, tmp_path):
    """Give a function that runs the program one `way` and gives what its processes wrote."""

    def run(way):
        launcher = find_launcher()
        # All slots are taken: those of dead ranks are not given back. Without the last words mpirun's exit
        # status is that of what was spawned and killed.
        words = [
            *[launcher.path, "-n", "3", "--host", "localhost:3", "--bind-to", "none"],
            *[*survival_words(launcher), "--prtemca", "prte_state_base_recoverable", "1"],
        ]
        path = os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")])
        job = run_job(
            [*words, sys.executable, str(PROGRAM), way],
            timeout=SECONDS,
            env=launch_environment({**os.environ, "PYTHONPATH": path}),
            cwd=tmp_path,
        )
        assert not job.timed_out and job.returncode == 0, job.output
        return job.output

    return run


def test_a_killed_rank_is_replaced_and_so_is_its_killed_replacement(spawn):
    output = spawn("kill")
    assert output.count("arrived while messages went on") == 2, output
    for line in (
        "replacement at work of world 1 was told [1, 0]",
        "server hears that the first is dead",
        "second says 3 and 0 are on the way",
        "replacement at work of world 1 was told [2, 0]",
        "replacement hears that its server is dead",
        "witness was told [2, 0]",
    ):
        assert line in output, output


def test_a_replacement_that_ends_before_it_starts_mpi_is_given_up_and_the_next_one_comes(spawn):
    output = spawn("early")
    for line in (
        "Replacement 1 of at most 2 has not started MPI within 1.5 s, and is no longer awaited.",
        "second says 3 and 1 are on the way",
        "replacement at work of world 1 was told [2, 0]",
        "witness was told [2, 0]",
    ):
        assert line in output, output
    assert output.count("arrived while messages went on") == 1, output
