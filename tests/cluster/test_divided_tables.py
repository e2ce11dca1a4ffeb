"""A table of which each of three hosts has its share, in memory and in checkpoints."""

import json
from pathlib import Path

import host_jobs

PROGRAM = Path(__file__).with_name("divided_program.py")
RANKS = {"h1": 2, "h2": 1, "h3": 1}


def said_by(hosts, folder, slots, **options):
    """Return what each rank said."""
    words = [PROGRAM, json.dumps({"states": 100_000, "steps": [200_000, 400_000], **options})]
    output = host_jobs.launch(hosts, folder, words, slots=slots)
    said = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return sorted(said, key=lambda line: line["rank"])


def test_each_host_takes_the_memory_of_its_share_and_writes_its_part(three_hosts, tmp_path):
    saved = {"checkpoint_dir": str(tmp_path / "saved"), "walkers": 2048}
    said = said_by(three_hosts, tmp_path, RANKS, train=saved)
    assert [line["host"] for line in said] == ["h1", "h1", "h2", "h3"]
    for line in said:
        assert abs(line["share"] - RANKS[line["host"]] / 4) < 0.01
        assert line["taken"] < 1.1 * line["share"] * line["size"]
        assert line["digest"] == said[0]["digest"]
    newest = max((tmp_path / "saved" / "agent-0").glob("f0*"))
    assert len(list(newest.glob("values_*.npy"))) == 3 and not list(newest.glob("q_table*"))
    # Two hosts go on from the parts of three: there is nothing left to do, and the table is the same.
    again = said_by(three_hosts, tmp_path, {"h1": 1, "h2": 1}, train=saved)
    assert {line["digest"] for line in again} == {said[0]["digest"]}
    for line in again:
        assert line["taken"] < 1.1 * line["share"] * line["size"] and line["steps"] == 600_000
