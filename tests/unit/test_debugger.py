"""How far apart numbers are, and the debugger on one rank. tests/mpi has several ranks."""

import math

import numpy as np
import pytest

from dist_classicrl import DistributedDebugger
from dist_classicrl.cli.commands.profile import Sizes
from dist_classicrl.cli.main import main
from dist_classicrl.errors import SettingsError
from dist_classicrl.launch.launcher import Launcher
from dist_classicrl.mpi_tools import communication_profile
from dist_classicrl.mpi_tools.communication_profile import COLLECTIVES, CommunicationProfile, Measurement
from dist_classicrl.mpi_tools.consistency import BLOCK_BYTES, Consistency, Difference, _Blocks, distances


def far(here, there, dtype):
    return distances(np.array(here, dtype), np.array(there, dtype)).tolist()


def test_distances_of_reals():
    inf, nan = math.inf, math.nan
    here = [1.0, nan, nan, 0.0, inf, inf, -inf, inf, -0.0]
    there = [1.5, nan, 2.0, nan, inf, -inf, 3.0, nan, 0.0]
    assert far(here, there, float) == [0.5, 0.0, inf, inf, 0.0, inf, inf, inf, 0.0]
    assert far([1e38], [-1e38], np.float32) == [pytest.approx(2e38)]  # more than the type holds


def test_distances_of_whole_numbers_are_exact():
    least, most = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    assert far([least, most, 2**60], [most, least, 2**60 + 1], np.int64) == [2**64 - 1, 2**64 - 1, 1]
    assert far([-128, 3], [127, 3], np.int8) == [255, 0]
    assert far([0, 2**64 - 1], [2**64 - 1, 2**64 - 2], np.uint64) == [2**64 - 1, 1]
    assert far([True, False], [False, False], bool) == [1, 0]


def test_distances_of_complex_numbers():
    assert far([3 + 4j, complex(math.nan, 0), 1j], [0, 1, 1j], complex) == [5.0, math.inf, 0.0]


@pytest.mark.parametrize("dtype", ["f8", "f4", "i1", "c16", ">f8", "?"])
def test_blocks_are_the_array_in_order(dtype):
    array = np.arange(300_000).astype(dtype).reshape(-1, 3)[::2].T  # not in one piece
    blocks = _Blocks(array)
    n_blocks = blocks.digests(lambda: None).size // 16
    parts = [blocks.block(number) for number in range(n_blocks)]
    np.testing.assert_array_equal(np.concatenate(parts), array.ravel())
    assert all(part.nbytes <= BLOCK_BYTES for part in parts)
    assert {part.dtype for part in parts} == {array.dtype}
    other = array.copy()
    other[-1, -1] = ~other[-1, -1] if dtype == "?" else other[-1, -1] + 1
    different = blocks.digests(lambda: None).reshape(-1, 16) != _Blocks(other).digests(lambda: None).reshape(
        -1, 16
    )
    assert np.flatnonzero(different.any(axis=1)).tolist() == [n_blocks - 1]


def test_what_is_said_of_a_difference():
    one = Difference(3, "values", (4, 1), "2.5", "2.0", 0.5, 1)
    assert (
        str(one) == "rank 3 differs from rank 0 in 1 place, first at [4, 1]: 2.5 and not 2.0; by 0.5 at most"
    )
    other = Difference(1, "shape", None, "(3,)", "(2,)", math.inf, 0)
    found = Consistency((other, one))
    assert not found and str(found) == f"rank 1 has shape (3,), rank 0 has (2,); {one}"


@pytest.fixture
def alone():
    from mpi4py import MPI

    with DistributedDebugger(MPI.COMM_SELF) as debugger:
        yield debugger


def test_one_rank_is_consistent_and_has_nobody_to_talk_to(alone):
    assert alone.check_data_consistency(np.full(5, math.nan))
    profile = alone.profile_communication(1000, 3)
    assert (profile["point_to_point"], profile["collective"]) == ([], {})


@pytest.mark.parametrize("array", ["text", [None], [[1.0], [1.0, 2.0]], np.zeros(2, [("a", int)])])
def test_what_are_no_numbers_is_refused(alone, array):
    with pytest.raises(SettingsError, match="rank 0: array must be an array of numbers"):
        alone.check_data_consistency(array)


@pytest.mark.parametrize("tolerance", [-1e-9, math.nan, math.inf, 10**400, "small", None, True])
def test_a_tolerance_that_is_none_is_refused(alone, tolerance):
    with pytest.raises(SettingsError, match="tolerance must be a finite number of at least 0"):
        alone.check_data_consistency([1.0], tolerance)


def test_what_is_measured_between_which_ranks():
    plan = communication_profile._plan(("a", "a", "b", "b"), [8, 64], COLLECTIVES)
    pairs = [(step.ranks, step.size) for step in plan if step.operation == "point-to-point"]
    assert pairs == [((0, 1), 8), ((0, 1), 64), ((0, 2), 8), ((0, 2), 64)]
    assert [step.size for step in plan if step.operation == "barrier"] == [0]
    assert all(step.ranks == (0, 1, 2, 3) for step in plan[4:])
    hosts = ("a", "b", "a", "c", "b", "d")
    plan = communication_profile._plan(hosts, [8], (), "all")
    assert [step.ranks for step in plan] == [(0, 2), (1, 4), (0, 1), (0, 3), (0, 5), (1, 3), (1, 5), (3, 5)]
    many = [str(rank) for rank in range(10)]
    assert len(communication_profile.pairs_of_hosts(many)) == 9 + 8
    assert len(communication_profile.pairs_of_hosts(many, "all")) == 45
    too_large = communication_profile._plan(
        ("a", "a"), [communication_profile.MOST_GATHERED_BYTES], COLLECTIVES
    )
    assert {step.operation for step in too_large} == {"point-to-point", "barrier", "bcast", "allreduce"}


MEASURED = CommunicationProfile(
    ("a", "b"),
    (
        Measurement("point-to-point", (0, 1), False, 2_000_000, 17, 0.001, 0.0005),
        Measurement("barrier", (0, 1), False, 0, 1000, 2e-6, 1e-6),
    ),
)


def test_a_profile_survives_json():
    data = MEASURED.to_dict()
    assert data["measurements"][0]["bandwidth"] == 2e9
    assert CommunicationProfile.from_dict(data) == MEASURED


def test_the_table_of_a_profile(monkeypatch, capsys):
    seen = []
    monkeypatch.setattr("dist_classicrl._hints.rank_of_environment", lambda environ=None: None)
    monkeypatch.setattr(
        "dist_classicrl.diagnosis.communication.measure_in_job", lambda plan: seen.append(plan) or MEASURED
    )
    assert main(["profile", "--ranks", "2", "--sizes", "8,2MB"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert " ".join(lines[0]) == "Communication of 2 ranks on 2 hosts"
    assert lines[2][-6:] == ["0-1", "2,000,000", "1,000.0", "500.0", "2,000.0", "17"]
    assert lines[3][-6:] == ["2", "0", "2.0", "1.0", "-", "1,000"]
    assert (seen[0].sizes, seen[0].ranks) == ((8, 2_000_000), 2)


def test_ranks_that_cannot_measure_are_an_error_that_quotes_them(monkeypatch, tmp_path, capsys):
    path = tmp_path / "mpirun"
    path.write_text("#!/bin/sh\necho no such host; exit 1\n")
    path.chmod(0o755)
    monkeypatch.setattr("dist_classicrl._hints.rank_of_environment", lambda environ=None: None)
    monkeypatch.setattr(
        "dist_classicrl.diagnosis.communication.find_launcher", lambda: Launcher(str(path), "openmpi", (5,))
    )
    assert main(["profile", "--ranks", "2"]) == 2
    said = capsys.readouterr().err
    assert "ended with status 1" in said and "no such host" in said


def test_a_job_of_one_rank_has_nothing_to_measure(monkeypatch, capsys):
    monkeypatch.setattr("dist_classicrl._hints.rank_of_environment", lambda environ=None: 0)
    monkeypatch.setattr(
        "dist_classicrl.diagnosis.communication.find_world", lambda comm, allow_singletons: None
    )
    assert main(["profile"]) == 2
    assert "One rank has nobody to talk to" in capsys.readouterr().err
    assert main(["profile", "--ranks", "2"]) == 2
    assert "have no place in a job that runs already" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["--sizes", "8,lots"], ["--ranks", "1"], ["--sizes", "0"], ["--sizes", "9GiB"]]
)
def test_mistakes_in_the_command_are_told(capsys, words):
    assert main(["profile", *words]) == 2
    assert words[1].split(",")[-1] in capsys.readouterr().err


def test_sizes_are_read_with_units():
    assert Sizes().of_text("8, 1k,1KiB,2MB,1GiB,8") == (8, 1000, 1024, 2_000_000, 1 << 30)
