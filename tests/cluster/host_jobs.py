"""Jobs that `launch` starts on emulated hosts, to be waited for, and what their ranks said."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from dist_classicrl.launch.launcher import launch_environment
from dist_classicrl.process.jobs import run_job

PROGRAM = Path(__file__).with_name("host_program.py")
SECONDS = 300.0


def launch(hosts, folder, words, *, slots, launch_words=()):
    """Run a script and its arguments under `launch` on h1; return what it wrote.

    `slots` are those of each host, by name.
    """
    hostfile = Path(folder, "hostfile")
    hostfile.write_text("".join(f"{name} slots={number}\n" for name, number in slots.items()))
    command = [
        sys.executable,
        "-m",
        "dist_classicrl",
        "launch",
        "--hostfile",
        hostfile,
        "--agent",
        hosts.agent,
    ]
    command += ["--state-dir", Path(folder, "launch"), *launch_words, *words]
    job = run_job(hosts.command("h1", [*map(str, command)]), timeout=SECONDS, env=launch_environment())
    assert not job.timed_out and job.returncode == 0, job.output
    return job.output


def train(hosts, folder, options, *, slots, launch_words=()):
    """Run `host_program.py` on these slots; return what each rank said, in the order of their numbers."""
    words = [PROGRAM, json.dumps(options)]
    output = launch(hosts, folder, words, slots=slots, launch_words=launch_words)
    said = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    said.sort(key=lambda line: line["rank"])
    assert [line["rank"] for line in said] == [*range(sum(slots.values()))], output
    for line in said:
        assert line["steps"] == line["visits"] == options["steps"]
    return said
