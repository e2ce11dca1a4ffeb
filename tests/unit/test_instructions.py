"""No kernel takes more instructions than it did; times are measured elsewhere, and gate nothing."""

import json
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def instructions(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import instructions

    return instructions


def test_what_has_grown_beyond_the_tolerance_is_named_with_both_counts(instructions):
    kept = {"learn": 100.0, "apply": 50.0}
    assert instructions.grown({"learn": 102.0, "apply": 20.0}, kept) == {}
    assert list(instructions.grown({"learn": 104.0, "apply": 50.0}, kept)) == ["learn"]
    assert "104.0 instructions, where it took 100.0" in instructions.grown({"learn": 104.0}, kept)["learn"]


def test_counts_of_another_compiler_are_not_compared(instructions):
    kept = json.loads(instructions.KEPT.read_text())
    assert set(kept["results"]) == set(instructions.LOOPS) > set(instructions.GUARDED)
    other = {**kept, "machine": {**kept["machine"], "numba": "0.1.0"}}
    assert "Numba 0.1" in instructions.why_not_compared(other)


@pytest.mark.slow  # compiles the loops once more, for a processor that valgrind knows
def test_no_kernel_takes_more_instructions_than_it_did(instructions):
    kept = json.loads(instructions.KEPT.read_text())
    reason = instructions.why_not_compared(kept)
    if reason:
        pytest.skip(reason)
    found = instructions.count(instructions.GUARDED)
    assert all(count > 10.0 for count in found.values()), found
    worse = instructions.grown(found, kept["results"])
    assert not worse, (
        f"{'; '.join(worse.values())}. If that is worth it, run python benchmarks/instructions.py "
        "--output benchmarks/results/instructions.json"
    )
