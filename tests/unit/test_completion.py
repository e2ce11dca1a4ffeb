import dataclasses
import os
import subprocess
import sys

import pytest

from dist_classicrl.process.exit_record import Ending, ExitRecord, record_of_environment

ENDING = Ending(rank=3, code=1, kind="error", reason="ValueError: naïve", is_head=False, before_mpi=True)


def test_what_ranks_write_is_what_the_launcher_reads(tmp_path):
    record = ExitRecord(tmp_path)
    record.add(ENDING)
    assert ExitRecord(tmp_path).endings() == [ENDING]
    assert not ExitRecord(tmp_path).is_complete
    record.complete()
    assert ExitRecord(tmp_path).is_complete


def test_the_work_is_done_when_that_of_each_part_is(tmp_path):
    record = ExitRecord(tmp_path)
    for part in (2, 4):
        record.note_part(part)
    said = []
    for part in (2, 0, 4):
        record.complete(part)
        said.append(record.is_complete)
    assert said == [False, False, True]


def test_processes_of_the_same_rank_do_not_overwrite_each_other(tmp_path):
    # A rank that a job starts for one that it lost has a world, and a rank, of its own.
    program = (
        "from dist_classicrl.process.exit_record import *\n"
        f"ExitRecord({str(tmp_path)!r}).add(Ending(3, 0, 'left', '', False, False))"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    ExitRecord(tmp_path).add(ENDING)
    assert sorted(ending.kind for ending in ExitRecord(tmp_path).endings()) == ["error", "left"]


def test_endings_come_by_rank(tmp_path):
    record = ExitRecord(tmp_path)
    for rank in (10, 2):
        record.add(dataclasses.replace(ENDING, rank=rank))
    assert [ending.rank for ending in record.endings()] == [2, 10]


def test_what_is_told_takes_no_room_on_a_full_disk(tmp_path):
    program = (
        "import resource\n"
        "from dist_classicrl.process.exit_record import *\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
        f"record = ExitRecord({str(tmp_path)!r})\n"
        "record.add(Ending(3, 2, 'error', 'OSError: no room', True, False))\n"
        "record.complete()"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    assert ExitRecord(tmp_path).endings() == [Ending(3, 2, "error", "", True, False)]
    assert ExitRecord(tmp_path).is_complete and len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    "told", ["", "1-host-1", "1-0-odd-0-0-host-1", "1-x-code-0-0-host-1", "1-0-code-2-0-h-1"]
)
def test_what_is_not_an_ending_is_passed_over(tmp_path, told):
    (tmp_path / f"ended-{told}").touch()
    assert ExitRecord(tmp_path).endings() == []


def test_a_beat_is_seen(tmp_path):
    record = ExitRecord(tmp_path)
    assert record.last_beat() is None
    record.beat()
    os.utime(tmp_path / "alive", ns=(5, 5))
    assert record.last_beat() == 5
    record.beat()
    assert record.last_beat() > 5


def test_a_folder_that_is_not_there_says_nothing_and_takes_nothing(tmp_path):
    record = ExitRecord(tmp_path / "absent")
    assert (record.last_beat(), record.endings(), record.is_complete) == (None, [], False)
    for write in (record.beat, lambda: record.add(ENDING), lambda: record.complete()):
        with pytest.raises(OSError):
            write()


def test_nothing_is_read_while_it_is_written(tmp_path, monkeypatch):
    seen = []
    replace = os.replace

    def look(source, target):
        seen.append((record.is_complete, len(record.endings())))
        replace(source, target)

    record = ExitRecord(tmp_path)
    monkeypatch.setattr(os, "replace", look)
    record.add(ENDING)
    assert seen == [(False, 0)]


def test_the_environment_tells_the_folder():
    assert record_of_environment({}) is None
    assert record_of_environment({"DIST_CLASSICRL_LAUNCH": "/a/b"}).folder.as_posix() == "/a/b"
