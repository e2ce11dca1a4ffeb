"""Hosts of different speeds: each makes as many steps as it can, and none keeps the others waiting."""

import json
from pathlib import Path

import host_jobs
import pytest

PAUSE = 0.01
SLOWER = 3.0
SECONDS = 5.0
RANKS = {"h1": 3, "h2": 2, "h3": 2}
# A rank that the machine keeps waiting between its steps makes fewer of them, and then nothing is learned of
# its share. One that the others keep waiting makes fewer each time.
TRIES = 5

# The program for hosts, which then tells how long the steps of each rank took: longer on a busy machine.
PROGRAM = f"""
import os, sys, time
sys.path.insert(0, {str(Path(__file__).parent)!r})
import host_program
from mpi4py import MPI

class Timed(host_program.Lake):
    spent = 0.0

    def step(self, action):
        begin = time.monotonic()
        answer = super().step(action)
        Timed.spent += time.monotonic() - begin
        return answer

host_program.Lake = Timed
host_program.main()
os.write(1, f"\\nspent {{MPI.COMM_WORLD.rank}} {{Timed.spent}}\\n".encode())
"""


def test_a_host_that_takes_three_times_as_long_makes_a_third_of_the_steps(three_hosts, tmp_path):
    seen = []
    for number in range(TRIES):
        folder = tmp_path / f"try-{number}"
        folder.mkdir()
        made, shares = one_training(three_hosts, folder)
        # Sixteen environments are stepped in turn, and a share may be so many steps more or less.
        if all(made[rank] == pytest.approx(shares[rank], abs=0.05 * shares[rank] + 16) for rank in made):
            return
        seen.append((made, shares))
    pytest.fail(f"no rank made its share in any training: {seen}")


def one_training(hosts, folder):
    """Return the steps that each worker made, and its share of them by how long its own took."""
    steps = int(SECONDS / PAUSE * (4 + 2 / SLOWER))
    options = {"pause": PAUSE, "factors": {"h3": SLOWER}, "steps": steps}
    program = folder / "program.py"
    program.write_text(PROGRAM)
    output = host_jobs.launch(hosts, folder, [program, json.dumps(options)], slots=RANKS)
    said = {line["rank"]: line for line in map(json.loads, lines(output, "{"))}
    spent = {int(rank): float(seconds) for _, rank, seconds in map(str.split, lines(output, "spent "))}
    made = {rank: said[rank]["made"] for rank in sorted(said)}
    assert [said[rank]["host"] for rank in made] == ["h1"] * 3 + ["h2"] * 2 + ["h3"] * 2
    assert made.pop(0) == 0
    assert all(line["steps"] == line["visits"] == steps for line in said.values())
    if not all(made.values()):
        return made, dict.fromkeys(made, 0.0)
    seconds_of_step = {rank: spent[rank] / made[rank] for rank in made}
    assert all(seconds_of_step[rank] >= PAUSE * (SLOWER if rank in (5, 6) else 1.0) for rank in made)
    seconds = steps / sum(1.0 / each for each in seconds_of_step.values())
    return made, {rank: seconds / seconds_of_step[rank] for rank in made}


def lines(output, begin):
    """Return the lines that begin so."""
    return [line for line in output.splitlines() if line.startswith(begin)]
