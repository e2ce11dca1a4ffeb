import contextlib
import json
import mmap
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from dist_classicrl.__main__ import main
from dist_classicrl._streams import is_output_closed
from dist_classicrl.errors import LauncherError
from dist_classicrl.launch import restart, segments, silence
from dist_classicrl.launch.endings import Attempt
from dist_classicrl.launch.folders import launch_folder, session_folder
from dist_classicrl.launch.hosts import Host, hosts_that_answer, ranks_on, read_hostfile, write_hostfile
from dist_classicrl.launch.launcher import Launcher
from dist_classicrl.launch.mpirun import export_words, host_words, survival_words
from dist_classicrl.launch.plan import LaunchOptions, LaunchPlan
from dist_classicrl.launch.restart import Supervisor
from dist_classicrl.process.exit_record import ExitRecord
from dist_classicrl.process.jobs import is_running, start_of

ROOT = Path(__file__).resolve().parents[2]

needs_proc = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="processes are found through /proc")

# What an mpirun of shell can say for its ranks, in the folder of its attempt.
FUNCTIONS = """
place=$DIST_CLASSICRL_LAUNCH
attempt=${place##*-}
done_() { touch $place/done-0; }
ended() { # rank code kind is_head reason before_mpi
  printf %s "$5" > $place/ended-$1-$2-$3-$4-${6:-0}-host-1
}
"""


@pytest.fixture
def supervise(tmp_path, monkeypatch):
    """Give a function that runs the job of a made-up mpirun, and returns the exit status."""
    monkeypatch.setattr(restart, "_LATE_SECONDS", 0.05)
    monkeypatch.setattr(silence, "LOOK_SECONDS", 0.1)

    def run(script, **settings):
        plan = {"launcher": fake(tmp_path, script), "ranks": 2, "words": ("train.py",)}
        plan |= {name: settings.pop(name) for name in vars(PLANNED) if name in settings}
        said = settings.pop("said_by_ranks", ())
        options = replace(OPTIONS, state_dir=tmp_path / "state", **settings)
        return Supervisor(LaunchPlan(**plan, options=options), said_by_ranks=said).run()

    yield run
    assert not (tmp_path / "state").exists()


@pytest.fixture
def no_silence(monkeypatch):
    """It is not silence that ends the job, and the test fails if nothing else does."""
    deadline = time.monotonic() + 120.0

    def look(watch, now, *limits):
        assert now < deadline

    monkeypatch.setattr(silence.SilenceWatch, "look", look)


OPTIONS = LaunchOptions(restart_delay=0.01, grace=0.3, silence=30.0)
PLANNED = LaunchPlan(Launcher("mpirun", "hydra", ()), 2, ())


def fake(folder, script):
    path = folder / "mpirun"
    path.write_text(f"#!/bin/sh\n{FUNCTIONS}\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return Launcher(str(path), "hydra", ())


def starts(folder):
    return (folder / "starts").read_text().split()


def test_a_job_that_marks_its_work_as_done_is_started_once(supervise, tmp_path, capfd):
    assert supervise(f"echo $attempt >> {tmp_path}/starts; done_") == 0
    assert starts(tmp_path) == ["1"]
    assert capfd.readouterr().err == ""


def test_status_0_without_the_marker_is_a_death(supervise, tmp_path, capfd):
    assert supervise(f"echo $attempt >> {tmp_path}/starts; [ $attempt = 3 ] && done_; exit 0") == 0
    assert starts(tmp_path) == ["1", "2", "3"]
    assert "returned 0, though the work was not done" in capfd.readouterr().err


def test_the_marker_counts_for_more_than_the_status(supervise, capfd):
    assert supervise("done_; exit 137") == 0
    assert "the work is done; mpirun returned 137, SIGKILL" in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    "says, grace",
    [("touch $place/part-1; done_; sleep 1", 0.3), ("done_; sleep 0.2; touch $place/part-1; sleep 6", 5.0)],
)
def test_a_part_that_is_done_does_not_end_the_others(supervise, tmp_path, no_silence, says, grace):
    script = f"{says}; echo ended >> {tmp_path}/starts; echo > $place/done-1"
    assert supervise(script, grace=grace) == 0
    assert starts(tmp_path) == ["ended"]


@pytest.mark.slow
@needs_proc
@pytest.mark.parametrize("said", ["done_", "ended 0 0 code 1; ended 1 0 code 0"])
def test_an_mpirun_that_does_not_end_is_killed_with_all_that_it_started(
    supervise, tmp_path, no_silence, said
):
    hanging = f"trap '' TERM; sleep 600 & echo $! $$ >> {tmp_path}/pids; {said}; wait; sleep 600"
    assert supervise(hanging, max_restarts=0) == (0 if said == "done_" else 128 + signal.SIGKILL)
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 2
    assert [pid for pid in pids if is_running(pid)] == []


def test_an_error_of_a_rank_is_no_death(supervise, tmp_path):
    assert supervise(f"echo $attempt >> {tmp_path}/starts; ended 1 3 error 0; exit 9") == 3
    assert starts(tmp_path) == ["1"]


def test_an_error_of_a_rank_ends_a_job_that_does_not_end_itself(supervise, no_silence):
    assert supervise("ended 1 1 error 0; sleep 600") == 1


def test_an_error_that_comes_of_a_death_is_none(supervise, tmp_path):
    script = "[ $attempt = 2 ] && { done_; exit; }; ended 0 1 lost 1; ended 1 1 told 0; exit 1"
    assert supervise(f"echo $attempt >> {tmp_path}/starts; {script}") == 0
    assert starts(tmp_path) == ["1", "2"]


@pytest.mark.slow
@pytest.mark.parametrize("said", ["1 1 left 0", "0 1 lost 1", "1 3 code 0"])
def test_a_rank_without_which_the_job_may_go_on_does_not_end_it(supervise, said):
    assert supervise(f"ended {said}; sleep 0.6; done_", grace=0.0, max_restarts=0) == 0


def test_a_rank_that_is_gone_without_a_word_ends_the_job_once_all_others_have_ended(
    supervise, no_silence, monkeypatch, capfd
):
    monkeypatch.setattr(silence.SilenceWatch, "_missing", lambda watch: 1)
    assert supervise("ended 1 0 code 0; sleep 600", max_restarts=0) == 128 + signal.SIGTERM
    assert "a rank of this host was gone, and had not said why, and all others had" in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("said", ["1 0 code 1", "0 0 left 0"])
def test_it_does_not_where_another_may_have_something_to_say(supervise, monkeypatch, said):
    monkeypatch.setattr(silence.SilenceWatch, "_missing", lambda watch: 1)
    assert supervise(f"ended {said}; sleep 0.6; done_", grace=0.0, max_restarts=0) == 0


def test_a_rank_that_others_wait_for_at_the_start_ends_the_job(supervise, no_silence):
    assert supervise("ended 1 2 code 0 '' 1; sleep 600") == 2


def test_ranks_that_wait_in_the_start_of_mpi_for_one_that_has_ended_have_no_grace(supervise, no_silence):
    """They have nothing to save."""
    ends = "ended 1 2 error 0 '' 1"
    assert supervise(f"touch $place/mpi-starts; {ends}; sleep 600", grace=600.0) == 2


@pytest.mark.slow
def test_where_the_work_is_done_who_has_not_come_to_the_start_of_mpi_has_the_grace(
    supervise, tmp_path, monkeypatch
):
    """The rank that waits there cannot go on, but another may have something else to end."""
    monkeypatch.setattr(restart, "_WORDS_SECONDS", 0.0)
    script = f"touch $place/mpi-starts; done_; sleep 0.8; touch {tmp_path}/ended"
    assert supervise(script, grace=60.0) == 0
    assert (tmp_path / "ended").exists()


def test_ranks_that_do_not_come_through_the_start_of_mpi_have_a_limit_of_their_own(supervise, capfd):
    waits = "touch $place/alive $place/mpi-starts; sleep 600"
    assert supervise(waits, start_limit=0.3, max_restarts=0) == 128 + signal.SIGTERM
    assert "MPI had not started on all ranks" in capfd.readouterr().err


@pytest.mark.slow
def test_the_limit_of_the_start_is_over_when_mpi_runs(supervise):
    runs = "touch $place/alive $place/mpi-starts $place/mpi-runs; sleep 1; done_"
    assert supervise(runs, start_limit=0.1, max_restarts=0) == 0
    assert supervise("touch $place/alive; sleep 1; done_", start_limit=0.1, max_restarts=0) == 0


@pytest.mark.parametrize(
    "status, expected", [(75, 75), (130, 130), (137, 137)], ids=["stopped", "interrupted", "killed"]
)
def test_a_stop_counts_where_mpirun_agrees(supervise, status, expected):
    # Who kills a job sends SIGTERM first, and a rank may be quick enough to take that for a request to stop.
    code = status if status != 137 else 75
    assert supervise(f"ended 1 {code} code 0; exit {status}", max_restarts=0) == expected


def test_an_end_of_which_the_ranks_have_told_is_told_once(supervise, capfd):
    stop = "ended 0 75 code 1 'TrainingStopped: SIGUSR1'; exit 75"
    assert supervise(stop) == 75
    assert "rank 0 ended with exit status 75 (TrainingStopped: SIGUSR1)" in capfd.readouterr().err
    assert supervise(stop, said_by_ranks=(75,)) == 75
    assert capfd.readouterr().err == ""
    assert supervise("ended 0 3 error 1; exit 3", said_by_ranks=(75,)) == 3
    assert "rank 0 ended with exit status 3" in capfd.readouterr().err


@pytest.mark.parametrize(
    "reason, expected", [("TrainingStopped: the time limit", 75), ("SIGTERM on rank 0", 1)]
)
def test_a_stop_for_another_reason_than_sigterm_counts_whatever_mpirun_says(supervise, reason, expected):
    # After a death, mpirun was seen to return 0 for 75.
    assert supervise(f"ended 0 75 code 1 '{reason}'", max_restarts=0) == expected


def test_after_the_last_restart_each_start_is_listed(supervise, capfd):
    assert supervise("kill -9 $$", max_restarts=2) == 137
    said = capfd.readouterr().err
    assert "died 3 times" in said
    assert [line.split()[:3] for line in said.splitlines()[-3:]] == [
        [f"{n}:", "2", "ranks,"] for n in (1, 2, 3)
    ]


def test_a_job_that_dies_with_status_0_does_not_give_0(supervise):
    assert supervise("exit 0", max_restarts=0) == 1


def test_the_delay_between_starts_grows_up_to_its_limit(supervise, monkeypatch):
    waited = []
    monkeypatch.setattr(Supervisor, "_is_stopped_within", lambda self, seconds: waited.append(seconds))
    assert supervise("touch $place/alive; exit 1", restart_delay=20.0, max_restarts=4) == 1
    assert waited == [20.0, 40.0, 60.0, 60.0]


def test_the_delay_stays_a_number_however_often_a_job_is_started(supervise, monkeypatch):
    waited = []
    monkeypatch.setattr(Supervisor, "_is_stopped_within", lambda self, seconds: waited.append(seconds))
    monkeypatch.setattr(Supervisor, "_attempt", lambda *_: Attempt(2, 0.0, 1, True, "it died"))
    assert supervise("", max_restarts=1100) == 1
    assert waited[-1] == 60.0 and len(waited) == 1100


@pytest.mark.slow
def test_a_job_without_a_sign_of_life_is_ended(supervise, tmp_path, capfd):
    # A busy machine may hold up a later attempt, too.
    script = "touch $place/alive; [ $attempt != 1 ] && { done_; exit; }; sleep 600"
    assert supervise(script, silence=1.5) == 0
    assert "no rank gave a sign of life for 1.5 s" in capfd.readouterr().err


def test_ranks_that_never_start_are_named_as_such(supervise, capfd):
    supervise("sleep 600", silence=1.0, max_restarts=0)
    assert "no rank had said that it started for 1 s" in capfd.readouterr().err


def test_signs_of_life_end_a_silence_and_a_suspended_launcher_counts_none(tmp_path):
    record = ExitRecord(tmp_path)
    now = time.monotonic()
    watch = silence.SilenceWatch("no job", record, now)

    def looks(number, step=1.0):
        nonlocal now
        said = None
        for _ in range(number):
            now += step
            said = said or watch.look(now, 10.0, 10.0)
        return said

    record.beat()
    assert looks(10) is None
    record.beat()
    assert looks(10) is None
    assert looks(1, step=3600.0) is None  # it was suspended itself
    assert "no rank gave a sign of life for 10 s" in looks(2)


@pytest.mark.slow
@needs_proc
def test_silence_is_short_where_all_ranks_of_this_host_are_gone(supervise, monkeypatch, capfd):
    monkeypatch.setattr(silence, "_WITHOUT_RANKS_HERE_SECONDS", 1.0)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    script = f"""echo 'import time; time.sleep(1.5)' > $place/train.py
{sys.executable} -m dist_classicrl.launch.program $place/train.py &
wait; sleep 600"""
    supervise(script, max_restarts=0)
    assert "all ranks of this host had ended" in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    "script, times", [("exit 213", 2), ("exit $((210 + attempt))", 4), ("kill -9 $$", 4)]
)
def test_what_mpirun_says_twice_before_any_rank_is_a_refusal(supervise, tmp_path, script, times):
    try:
        assert (
            supervise(f"echo $attempt >> {tmp_path}/starts; {script}", mpirun_words=("--bogus",))
            and times == 4
        )
    except LauncherError as error:
        assert times == 2 and "mpirun returned 213 twice" in str(error) and "--bogus" in str(error)
    assert len(starts(tmp_path)) == times


@pytest.mark.slow
@pytest.mark.parametrize(
    "script, times",
    [
        ("exit 16", 2),
        ("exit $((15 + attempt))", 4),
        ("touch $place/mpi-runs; exit 16", 4),
        ("exit 9", 4),  # of MPICH's mpirun, and
        ("exit 137", 4),  # of Open MPI's, where a rank was killed
        ("kill -9 $$", 4),
    ],
)
def test_an_mpi_that_ends_all_ranks_as_it_starts_twice_alike_is_of_another_kind(
    supervise, tmp_path, script, times
):
    starting = f"echo $attempt >> {tmp_path}/starts; touch $place/alive $place/mpi-starts; {script}"
    try:
        assert supervise(starting) and times == 4
    except LauncherError as error:
        assert times == 2 and "mpirun returned 16 twice" in str(error)
        assert str(tmp_path / "mpirun") in str(error) and "dist-classicrl doctor" in str(error)
    assert len(starts(tmp_path)) == times


@pytest.mark.slow
@pytest.mark.parametrize("lacks", [":", "touch $place/alive $place/mpi-starts"])
def test_a_job_that_has_had_mpi_is_started_again_while_a_host_is_away(supervise, tmp_path, lacks):
    script = f"""echo $attempt >> {tmp_path}/starts
case $attempt in
  1) touch $place/alive $place/mpi-starts $place/mpi-runs; exit 137 ;;
  2|3) {lacks}; exit 15 ;;
  *) done_ ;;
esac"""
    assert supervise(script, max_restarts=10) == 0
    assert starts(tmp_path) == ["1", "2", "3", "4"]


def test_a_job_whose_output_nobody_reads_is_not_started_again(supervise, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(restart, "is_output_closed", lambda: True)
    assert supervise(f"echo $attempt >> {tmp_path}/starts; kill -PIPE $$") == 128 + signal.SIGPIPE
    assert starts(tmp_path) == ["1"]
    assert "the program that its output goes to has ended" in capfd.readouterr().err
    assert supervise("done_; kill -PIPE $$") == 0


@pytest.mark.slow
def test_a_launcher_whose_words_nobody_reads_ends_with_the_jobs_status(tmp_path):
    fake(tmp_path, f"echo $attempt >> {tmp_path}/starts; sleep 0.5; echo a line; kill -PIPE $$")
    code = (
        "import sys, pathlib; from dist_classicrl.launch.launcher import Launcher\n"
        "from dist_classicrl.launch.plan import LaunchOptions, LaunchPlan\n"
        "from dist_classicrl.launch.restart import Supervisor\n"
        f"launcher = Launcher({str(tmp_path / 'mpirun')!r}, 'hydra', ())\n"
        "plan = LaunchPlan(launcher, 2, ('x',), options=LaunchOptions(restart_delay=0.0))\n"
        "status = Supervisor(plan).run(); print('after it', file=sys.stderr); sys.exit(status)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    words = [sys.executable, "-c", code]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        words, cwd=tmp_path, env=environment, stdout=pipe, stderr=subprocess.STDOUT
    ) as process:
        process.stdout.close()
        assert process.wait(timeout=60) == 128 + signal.SIGPIPE
    assert starts(tmp_path) == ["1"]


def test_a_pipe_is_closed_when_its_reader_is(tmp_path):
    reader, writer = os.pipe()
    with os.fdopen(writer), open(tmp_path / "file", "w") as file:
        assert not is_output_closed([writer, file.fileno()])
        os.close(reader)
        assert is_output_closed([file.fileno(), writer]) and not is_output_closed([file.fileno()])
    assert not is_output_closed([writer])


def left(folder, age=0.0, **owner):
    """Make a folder as a launcher leaves it, which was changed so many seconds ago; return it."""
    attempt = folder / "attempt-1"
    attempt.mkdir(parents=True)
    then = time.time() - age
    for path in (attempt / "alive", folder / "launcher.json"):
        path.write_text(json.dumps(owner))
    for path in (*attempt.iterdir(), attempt, *folder.iterdir(), folder):
        os.utime(path, (then, then))
    return folder


@pytest.fixture
def dead():
    child = subprocess.Popen(["true"])
    child.wait()
    return child.pid


HERE, DAY = socket.gethostname(), 25 * 3600


def test_folders_of_dead_launchers_of_this_host_are_removed_after_a_day(tmp_path, dead):
    gone = left(tmp_path / "launch-gone", DAY, host=HERE, pid=dead)
    stay = [
        left(tmp_path / "launch-fresh", 3600, host=HERE, pid=dead),
        left(tmp_path / "launch-lives", DAY, host=HERE, pid=os.getpid()),
        left(tmp_path / "launch-elsewhere", DAY, host="another", pid=dead),
        left(tmp_path / "launch-unknown", DAY),
        left(tmp_path / "launch-beats", DAY, host=HERE, pid=dead),
    ]
    os.utime(stay[-1] / "attempt-1" / "alive")
    with launch_folder(tmp_path) as folder:
        assert folder.is_dir() and not gone.exists()
    assert sorted(tmp_path.iterdir()) == sorted(stay)


@needs_proc
def test_mpiruns_files_are_removed_when_launcher_and_job_are_gone(tmp_path, dead):
    def of(name, **owner):
        return left(tmp_path / f"dist-classicrl-{name}", **owner)

    at = {"host": HERE, "numbers": os.readlink("/proc/self/ns/pid")}
    gone = [
        of("gone", **at, pid=dead, start="1"),
        of("another-has-its-number", **at, pid=os.getpid(), start="1"),
        of("of-an-older-version", host=HERE, pid=dead),
    ]
    used = of("used", **at, pid=dead, start="1")
    stay = [
        of("lives", **at, pid=os.getpid(), start=start_of(os.getpid())),
        of("in-another-container", host=HERE, numbers="pid:[1]", pid=dead, start="1"),
        of("elsewhere", host="another", pid=dead, start="1"),
        of("unknown"),
    ]
    environment = {"PRTE_MCA_prte_local_tmpdir_base": str(used)}
    with (
        subprocess.Popen(["/bin/sleep", "600"], env=environment) as process,
        mock.patch.object(tempfile, "tempdir", str(tmp_path)),
    ):
        try:
            with session_folder() as made:
                assert not any(folder.exists() for folder in gone)
                assert sorted(tmp_path.iterdir()) == sorted([*stay, used, Path(made)])
        finally:
            process.kill()
        process.wait()
        with session_folder():
            assert not used.exists()
    assert sorted(tmp_path.iterdir()) == sorted(stay)


@needs_proc
def test_shared_memory_that_no_process_has_mapped_is_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(segments, "_PLACE", tmp_path)
    short, own = HERE.partition(".")[0], os.geteuid()

    def segment(name):
        path = tmp_path / name
        path.write_bytes(bytes(4096))
        return path

    gone = [segment(f"sm_segment.{short}.{own}.1.0"), segment(f"vader_segment.{HERE}.{own}.1.1")]
    gone.append(segment("mpich_shm_3eaa8235_0"))
    used = [segment(f"sm_segment.{short}.{own}.2.0"), segment("mpich_shm_3eaa8236_0")]
    stay = [segment(f"sm_segment.another.{own}.1.0"), segment(f"sm_segment.{short}.{own + 1}.1.0")]
    stay.append(segment("mine"))
    with contextlib.ExitStack() as mapped:
        for path in used:
            file = mapped.enter_context(open(path, "r+b"))
            mapped.enter_context(mmap.mmap(file.fileno(), 4096))
        segments.remove_unused_segments()
        assert not any(path.exists() for path in gone)
        assert sorted(tmp_path.iterdir()) == sorted([*stay, *used])
    segments.remove_unused_segments()
    assert sorted(tmp_path.iterdir()) == sorted(stay)


def test_an_mpirun_that_cannot_be_started_is_named(supervise):
    with pytest.raises(LauncherError, match="/nonexistent/mpirun cannot be started"):
        supervise("", launcher=Launcher("/nonexistent/mpirun", "hydra", ()))


def test_a_state_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    options = LaunchOptions(state_dir=tmp_path / "file" / "state")
    plan = LaunchPlan(fake(tmp_path, "done_"), 2, ("train.py",), options=options)
    with pytest.raises(LauncherError, match="--state-dir"):
        Supervisor(plan).run()


def test_a_state_folder_that_somebody_removes_is_made_again(supervise, tmp_path, capfd):
    script = """
touch $place/alive
rm -rf ${place%/*/*}
for i in $(seq 300); do [ -d $place ] && break; sleep 0.05; done
done_
"""
    assert supervise(f"echo $attempt >> {tmp_path}/starts; {script}") == 0
    assert starts(tmp_path) == ["1"]
    assert "was removed, and is made again" in capfd.readouterr().err


def test_a_job_that_removes_its_state_folder_and_dies_is_started_again(supervise, tmp_path):
    script = f"echo $attempt >> {tmp_path}/starts; [ $attempt = 2 ] && done_ || rm -rf ${{place%/*/*}}"
    assert supervise(script) == 0
    assert starts(tmp_path) == ["1", "2"]


def test_only_a_state_folder_that_was_not_there_is_removed(tmp_path):
    (tmp_path / "mine").mkdir()
    for name in ("mine", "made/for/it"):
        with launch_folder(tmp_path / name) as folder:
            assert folder.parent == tmp_path / name
    assert [path.name for path in sorted((tmp_path / "made").rglob("*"))] == ["for"]
    assert list((tmp_path / "mine").iterdir()) == []


@needs_proc
def test_the_state_folder_of_a_launcher_that_is_killed_goes_as_if_it_had_ended(tmp_path):
    program = (
        "import os, signal, sys, time\nfrom pathlib import Path\n"
        "from dist_classicrl.launch.folders import launch_folder\n"
        "from dist_classicrl.launch.guard import guarded\n"
        "with launch_folder(Path(sys.argv[1])) as folder, guarded('no job', [folder]):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    (tmp_path / "mine").mkdir()
    for name in ("mine", "made"):
        killed = subprocess.run([sys.executable, "-c", program, tmp_path / name], cwd=tmp_path)
        assert killed.returncode == -signal.SIGKILL
    deadline = time.monotonic() + 60.0
    while sorted(tmp_path.rglob("*")) != [tmp_path / "mine"]:
        assert time.monotonic() < deadline, sorted(tmp_path.rglob("*"))
        time.sleep(0.05)


def test_a_state_folder_that_another_launch_removes_meanwhile_is_made_again(tmp_path, monkeypatch):
    made = []
    mkdir = Path.mkdir

    def also_removed_once(path, *arguments, **options):
        made.append(path.name)
        mkdir(path, *arguments, **options)
        if made == ["state"]:
            path.rmdir()

    monkeypatch.setattr(Path, "mkdir", also_removed_once)
    with launch_folder(tmp_path / "state") as folder:
        assert folder.is_dir()
    assert made.count("state") == 2


# Signals

LAUNCH = """
import sys
sys.prefix = "/nonexistent"
from dist_classicrl.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def start_launch(tmp_path):
    """Give a function that starts the command with a made-up mpirun, and waits until that runs."""
    started = []

    def start(script, *options, says="HYDRA"):
        version = f'[ "$1" = --version ] && echo "{says}" && exit'
        fake(tmp_path, f"{version}\ntouch {tmp_path}/on-$attempt\n{script}")
        (tmp_path / "train.py").touch()
        process = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, "launch", "-n", "2", *options, "train.py"],
            env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT / "src")},
            cwd=tmp_path,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        started.append(process)
        wait_for(tmp_path / "on-1")
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def wait_for(path):
    deadline = time.monotonic() + 120
    while not path.exists():
        assert time.monotonic() < deadline, f"{path.name} did not come"
        time.sleep(0.01)


STOPS_IN_ORDER = """
trap 'echo USR1 >> heard; ended 0 75 code 1; exit 75' USR1
trap 'echo USR2 >> heard; ended 0 75 code 1; exit 75' USR2
trap 'echo rough >> heard; exit 1' TERM INT HUP
touch $place/alive ready; while :; do sleep 0.05; done
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "says, number, heard, status",
    [
        ("HYDRA", signal.SIGUSR1, "USR1", 75),
        ("HYDRA", signal.SIGUSR2, "USR1", 75),  # Hydra ends of USR2
        ("Open MPI 4.1", signal.SIGUSR2, "USR2", 75),
        ("HYDRA", signal.SIGTERM, "USR1", 75),
        ("HYDRA", signal.SIGHUP, "USR1", 75),
        ("HYDRA", signal.SIGINT, "USR1", 130),
    ],
)
def test_signals_reach_mpirun_in_a_form_that_lets_ranks_save(
    start_launch, tmp_path, says, number, heard, status
):
    process = start_launch(STOPS_IN_ORDER, says=says)
    wait_for(tmp_path / "ready")
    process.send_signal(number)
    said = process.communicate(timeout=120)[1]
    assert (process.returncode, (tmp_path / "heard").read_text().split()) == (status, [heard])
    name = "Ctrl-C" if number == signal.SIGINT else number.name
    assert (f"{name}: the ranks are asked to stop" in said) == (number.name != f"SIG{heard}")


@pytest.mark.slow
@needs_proc
@pytest.mark.parametrize("number, status", [(signal.SIGUSR1, 75), (signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_signals_reach_what_an_mpirun_that_is_a_script_has_started(start_launch, tmp_path, number, status):
    (tmp_path / "mpiexec.hydra").symlink_to("/bin/sh")  # as Intel's mpirun does, which hands nothing on
    (tmp_path / "job").write_text(f"{FUNCTIONS}\n{STOPS_IN_ORDER}")
    process = start_launch(f"{tmp_path}/mpiexec.hydra {tmp_path}/job; exit $?", says="Intel(R) MPI 2021.18")
    wait_for(tmp_path / "ready")
    process.send_signal(number)
    process.communicate(timeout=120)
    assert (process.returncode, (tmp_path / "heard").read_text().split()) == (status, ["USR1"])


def again_until_it_ends(process, number):
    """Send a process that has got a signal further ones, and return what it said.

    Of two that come at the same moment, as to a process that is held up, the second is the same request.
    """
    for _ in range(20):
        time.sleep(0.4)  # sooner, it would be the same request
        process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=6)[1]
    raise AssertionError("further signals do not end it")


DEAF = "trap '' USR1; touch $place/alive; echo $$ > pid; mv pid ready; while :; do sleep 0.05; done"


@pytest.mark.slow
@needs_proc
@pytest.mark.parametrize(
    "first, status", [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGUSR1, 138)]
)
def test_a_second_signal_ends_everything_at_once(start_launch, tmp_path, first, status):
    process = start_launch(DEAF)
    wait_for(tmp_path / "ready")
    process.send_signal(first)
    said = again_until_it_ends(process, signal.SIGTERM)
    assert process.returncode == status
    assert "ended by a second signal" in said
    assert not is_running(int((tmp_path / "ready").read_text()))


def test_a_signal_that_comes_with_the_end_stops_the_restarting(supervise, tmp_path):
    script = f"echo $attempt >> {tmp_path}/starts; touch $place/alive; kill -USR1 $PPID; exit 1"
    assert supervise(script) == 128 + signal.SIGUSR1
    assert starts(tmp_path) == ["1"]


@pytest.mark.slow
@pytest.mark.parametrize("number, status", [(signal.SIGUSR1, 75), (signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_a_signal_before_any_rank_runs_ends_the_job_and_mpirun_hears_nothing(
    start_launch, tmp_path, number, status
):
    process = start_launch("trap 'touch heard' USR1 USR2; touch ready; while :; do sleep 0.05; done")
    wait_for(tmp_path / "ready")
    process.send_signal(number)
    said = process.communicate(timeout=120)[1]
    assert (process.returncode, (tmp_path / "heard").exists()) == (status, False)
    assert "no rank had begun" in said and "The same command starts the job again" in said


@pytest.mark.slow
def test_a_job_that_does_not_stop_is_ended(start_launch, tmp_path):
    process = start_launch(f"while :; do touch $place/alive; sleep 0.1; done & {DEAF}", "--silence", "10")
    wait_for(tmp_path / "ready")
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=120)[1]
    assert (process.returncode, "did not stop within 10 s" in said) == (143, True)


@pytest.mark.slow
def test_a_signal_that_stops_nothing_is_forgotten(start_launch, tmp_path):
    script = (
        "[ $attempt = 2 ] && { done_; exit; }; trap : USR1; touch $place/alive ready\n"
        "for i in $(seq 60); do touch $place/alive; sleep 0.2; done; exit 1"
    )
    process = start_launch(script, "--silence", "10", "--restart-delay", "0")
    wait_for(tmp_path / "ready")
    process.send_signal(signal.SIGUSR2)
    process.communicate(timeout=120)
    assert (process.returncode, (tmp_path / "on-2").exists()) == (0, True)


@pytest.mark.slow
@pytest.mark.parametrize("number, status", [(signal.SIGUSR1, 75), (signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_a_signal_between_two_starts_stops_the_restarting(start_launch, tmp_path, number, status):
    process = start_launch("exit 1", "--restart-delay", "30")
    while "starts again in 30 s" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(number)
    process.communicate(timeout=120)
    assert (process.returncode, (tmp_path / "on-2").exists()) == (status, False)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells of a parent's death")
def test_mpirun_hears_of_the_sudden_death_of_its_launcher(start_launch, tmp_path):
    process = start_launch("trap 'touch told; exit' TERM; touch ready; while :; do sleep 0.05; done")
    wait_for(tmp_path / "ready")
    process.kill()
    wait_for(tmp_path / "told")


# Hosts


def hostfile(folder, text):
    path = folder / "hosts"
    path.write_text(text)
    return path


def test_hostfiles_of_both_kinds_are_read(tmp_path):
    text = "# mine\n\nnode1 slots=4\nnode-2.cluster slots = 2 max_slots=8 # big\n10.0.0.3:5\nnode4\n"
    assert read_hostfile(hostfile(tmp_path, text)) == (
        *(Host("node1", 4), Host("node-2.cluster", 2, 8), Host("10.0.0.3", 5), Host("node4", None)),
    )


def test_lines_of_a_host_without_slots_are_slots_and_the_others_keep_what_they_say(tmp_path):
    text = "\ufeffnode1 slots=4 max_slots=8\nnode2\nnode3\nnode2\n"  # begun as some editors do
    assert read_hostfile(hostfile(tmp_path, text)) == (
        Host("node1", 4, 8),
        Host("node2", 2),
        Host("node3", 1),
    )


@pytest.mark.parametrize(
    "text, match",
    [
        ("node1 slots=4\nnode2 lots=3\n", "Line 2 of the hostfile .*'node2 lots=3'"),
        ("node1 slots=four\n", "Line 1"),
        (f"node1 slots={'9' * 5_000}\n", "Line 1"),
        ("node1 node2\n", "Line 1"),
        ("node1 slots=4 max_slots=many\n", "Line 1"),
        ("node1 slots=0\n", "no slots"),
        ("node0\nnode1:2 slots=4\n", "Line 2 of .*'node1:2 slots=4', which contradicts itself"),
        ("node1 slots=4 slots=8\n", "Line 1 .*contradicts itself"),
        ("node1 slots=4 max_slots=2\n", "Line 1 .*contradicts itself"),
        ("node1 max_slots=0\n", "Line 1 .*contradicts itself"),
        ("# nobody\n", "names no host"),
    ],
)
def test_a_hostfile_that_means_nothing_is_refused(tmp_path, text, match):
    with pytest.raises(LauncherError, match=match):
        read_hostfile(hostfile(tmp_path, text))


def test_a_hostfile_that_is_not_there_is_named(tmp_path):
    with pytest.raises(LauncherError, match="absent"):
        read_hostfile(tmp_path / "absent")


@pytest.mark.parametrize("family, line", [("openmpi", "node1 slots=4"), ("hydra", "node1:4")])
def test_the_hostfile_has_the_form_of_the_launcher(tmp_path, family, line):
    path = tmp_path / "written"
    write_hostfile(path, [Host("node1", 4), Host("node2", None)], family)
    assert path.read_text().splitlines() == [line, "node2"]
    assert read_hostfile(path) == (Host("node1", 4), Host("node2", None))


def test_most_slots_reach_open_mpi_and_are_refused_for_who_knows_none(tmp_path):
    path, hosts = tmp_path / "written", (Host("node1", 4, 8), Host("node2", None, 2))
    write_hostfile(path, hosts, "openmpi")
    assert path.read_text().splitlines() == ["node1 slots=4 max_slots=8", "node2 max_slots=2"]
    assert read_hostfile(path) == hosts
    with pytest.raises(LauncherError, match="'node1' max_slots=8, which MPICH and its kin do not know"):
        write_hostfile(path, hosts, "hydra")


def test_ranks_fit_on_the_hosts_that_are_left():
    known = [Host("a", 4), Host("b", 2), Host("c", 2)]
    assert ranks_on(known, known, 20) == 20
    assert ranks_on(known[1:], known, 8) == 4
    assert ranks_on(known[:2], known, 3) == 3
    unknown = [Host("a", None), Host("b", 4), Host("c", None)]
    assert ranks_on(unknown[:2], unknown, 12) == 8
    assert ranks_on(unknown[:1], unknown, 2) == 1


AGENT = """#!/bin/sh
case $1 in dead) exit 255;; deaf) exec sleep 600;; *) shift; exec "$@";; esac
"""


@pytest.fixture
def agent(tmp_path):
    path = tmp_path / "agent"
    path.write_text(AGENT)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_hosts_are_asked_whether_they_answer(agent):
    hosts = [Host(name, 1) for name in ("localhost", "dead", "live", "deaf", "127.0.0.2")]
    left = hosts_that_answer(hosts, agent, 1.0, lambda: False)
    assert [host.name for host in left] == ["localhost", "live", "127.0.0.2"]


def test_a_missing_agent_reaches_only_this_host():
    hosts = [Host("localhost", 1), Host("live", 1)]
    assert hosts_that_answer(hosts, "/nonexistent/ssh", 1.0, lambda: False) == hosts[:1]


@pytest.mark.parametrize("name", ["PBS_NODEFILE", "PE_HOSTFILE"])
def test_hosts_of_a_job_are_kept_where_no_other_can_be_asked(monkeypatch, agent, name):
    monkeypatch.setenv(name, "/nodes")
    hosts = [Host("localhost", 1), Host("dead", 1), Host("live", 1)]
    assert hosts_that_answer(hosts, "/nonexistent/ssh", 1.0, lambda: False) == hosts
    assert hosts_that_answer(hosts, agent, 30.0, lambda: False) == [hosts[0], hosts[2]]


def test_hosts_of_slurm_are_asked_by_srun(monkeypatch, tmp_path):
    srun = tmp_path / "srun"
    srun.write_text('#!/bin/sh\nshift 5; [ $1 = live ] && shift && exec "$@"\n')
    srun.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    hosts = [Host("localhost", 1), Host("dead", 1), Host("live", 1)]
    assert hosts_that_answer(hosts, None, 30.0, lambda: False) == [hosts[0], hosts[2]]


def test_a_job_starts_again_on_the_hosts_that_answer(supervise, tmp_path, agent, monkeypatch, capfd):
    monkeypatch.setattr(restart, "_PROBE_SECONDS", 1.0)
    hosts = (Host("live", 3), Host("dead", 2), Host("deaf", 1))
    script = f"echo $2 $4 >> {tmp_path}/starts; cat $4 >> {tmp_path}/hosts; [ $attempt = 2 ] && done_; exit 1"
    assert supervise(script, ranks=6, hosts=hosts, agent=agent) == 0
    first, second = [line.split() for line in (tmp_path / "starts").read_text().splitlines()]
    assert (first[0], second[0]) == ("6", "3")
    assert (tmp_path / "hosts").read_text().split() == ["live:3", "dead:2", "deaf:1", "live:3"]
    assert "left out: dead, deaf" in capfd.readouterr().err


def test_where_no_host_answers_all_are_tried(supervise, tmp_path, agent, capfd):
    script = f"echo $2 >> {tmp_path}/starts; [ $attempt = 2 ] && done_; exit 1"
    assert supervise(script, hosts=(Host("dead", 2),), agent=agent) == 0
    assert starts(tmp_path) == ["2", "2"]
    assert "No host answers (dead)" in capfd.readouterr().err


# The words for mpirun


def test_the_words_are_those_that_each_launcher_takes(tmp_path):
    five, four = Launcher("/m", "openmpi", (5, 0, 11)), Launcher("/m", "openmpi", (4, 1, 4))
    mpich, other = Launcher("/m", "hydra", (4, 2, 1)), Launcher("/m", "unknown", ())
    assert survival_words(five)[:5] == ["--with-ft", "ulfm", "--mca", "pml", "ob1"]
    assert survival_words(four) == survival_words(mpich) == survival_words(other) == []
    assert host_words(five, "f", "a b") == ["--hostfile", "f", "--prtemca", "plm_ssh_agent", "a b"]
    assert host_words(four, "f", "a") == ["--hostfile", "f", "--mca", "plm_rsh_agent", "a"]
    assert host_words(mpich, "f", "a") == ["-f", "f", "-launcher", "ssh", "-launcher-exec", "a"]
    assert host_words(other, None, None) == host_words(five, None, None) == []
    assert export_words(five, ["A", "B"]) == ["-x", "A", "-x", "B"]
    assert export_words(mpich, ["A"]) == []
    with pytest.raises(LauncherError, match="--mpirun-options"):
        host_words(other, "f", None)


@pytest.mark.parametrize("answer, words", [("no", []), ("yes", ["--with-ft", "ulfm"])])
def test_an_open_mpi_that_cannot_survive_is_started_without(tmp_path, answer, words):
    info = tmp_path / "ompi_info"
    info.write_text(f"#!/bin/sh\necho '          FT MPI support: {answer}'\n")
    info.chmod(info.stat().st_mode | stat.S_IXUSR)
    assert survival_words(Launcher(str(tmp_path / "mpirun"), "openmpi", (5, 0, 0)))[:2] == words


# The command line


@pytest.fixture
def launch(tmp_path, monkeypatch):
    """Give a function that runs the command with an mpirun of MPICH that would mark its work as done.

    It is of what the variable SAYS says, where that is set.
    """
    mpirun = fake(tmp_path, '[ "$1" = --version ] && echo ${SAYS:-HYDRA} && exit; done_')
    monkeypatch.setattr(sys, "prefix", "/nonexistent")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("SLURM_NTASKS", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    return lambda *words: (mpirun.path, main(["launch", *map(str, words)]))


def test_the_script_gets_its_own_options(launch, capsys):
    path, status = launch("--dry-run", "-n", 3, "train.py", "-n", "7", "--dry-run", "a b")
    assert status == 0
    program = f"{sys.executable} -m dist_classicrl.launch.program"
    assert capsys.readouterr().out == f"{path} -n 3 {program} train.py -n 7 --dry-run 'a b'\n"


def test_a_module_can_be_run_in_place_of_a_script(launch, capsys):
    launch("--dry-run", "-n", 3, "-m", "package.train", "-n", "7")
    assert capsys.readouterr().out.endswith("program -m package.train -n 7\n")


def test_words_for_mpirun_are_passed_on(launch, monkeypatch, capsys):
    launch("--dry-run", "-n", 3, "--mpirun-options=--x 'y z'", "train.py")
    assert " -n 3 --x 'y z' " in capsys.readouterr().out
    monkeypatch.setenv("SAYS", "Open MPI 4.1")
    launch("--dry-run", "-n", 3, "--mca", "a", "b", "--mpirun-options=--x 'y z'", "train.py")
    assert " --mca a b --x 'y z' " in capsys.readouterr().out
    launch("--dry-run", "-n", 3, "--mpirun-options=--map-by node", "train.py")
    assert capsys.readouterr().out.count("--map-by") == 1


def test_the_number_of_ranks_is_that_of_the_hostfile_or_of_slurm(launch, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SLURM_NTASKS", "5")
    launch("--dry-run", "train.py")
    launch("--dry-run", "--hostfile", hostfile(tmp_path, "a slots=3\nb slots=4\n"), "train.py")
    launch("--dry-run", "--hostfile", hostfile(tmp_path, "a slots=3\nb\n"), "train.py")
    launch("--dry-run", "-n", 2, "train.py")
    assert [line.split()[2] for line in capsys.readouterr().out.splitlines()] == ["5", "7", "5", "2"]


@pytest.mark.parametrize(
    "says, given, written",
    [
        ("HYDRA", "a slots=3\nb slots=4\n", "a:3\nb:4\n"),
        ("HYDRA", "a:3\nb:4\n", None),
        ("Open MPI 4.1", "a slots=3\n", None),
        ("Open MPI 4.1", "a\na\nb\n", "a slots=2\nb slots=1\n"),
    ],
)
def test_a_hostfile_that_mpirun_gets_in_another_form_is_shown(
    launch, tmp_path, monkeypatch, capsys, says, given, written
):
    monkeypatch.setenv("SAYS", says)
    path = hostfile(tmp_path, given)
    assert launch("--dry-run", "-n", 3, "--hostfile", path, "train.py")[1] == 0
    text = f"In place of {path} this mpirun gets a file with these lines:\n{written}" if written else ""
    assert capsys.readouterr().err == text


@pytest.mark.parametrize(
    "words, match",
    [
        (["-n", "2"], "script is missing"),
        (["-n", "2", "--mca", "btl", "tcp,self", "train.py"], "--mca btl tcp,self: MPICH or kin"),
        (["-n", "2", "-m"], "script is missing"),
        (["-n", "2", "absent.py"], "no script 'absent.py'"),
        (["train.py"], "How many ranks"),
        (["train.py", "-n", "2"], "-n is the script's here. Options of launch come before the script."),
        (["train.py", "-n2"], "-n2 is the script's here. Options of launch come before the script."),
        (["train.py", "a", "--ranks=2"], "--ranks=2 is the script's here"),
        (["-n", "2", "python", "train.py"], "leave 'python' out"),
        (["-n", "2", sys.executable, "train.py"], f"leave {sys.executable!r} out"),
        (["-n", "2", "--hostfile", "absent", "train.py"], "hostfile 'absent'"),
        (["-n", "2", "--mpirun-options='", "train.py"], "cannot be split"),
        (["-n", "2", "--agent", "ssh '", "train.py"], '--agent "ssh \'" cannot be split'),
        (["-n", "2", "--hostfiles", "hosts", "train.py"], "--hostfile"),
    ],
)
def test_what_cannot_be_started_is_said(launch, capsys, words, match):
    assert launch(*words)[1] == 2
    assert match in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["-n", "0"], ["-n", "two"], ["--max-restarts", "-1"], ["--grace", "nan"], ["--silence", "soon"]]
)
def test_numbers_are_checked(launch, words):
    assert launch(*words, "train.py")[1] == 2


def test_the_command_shows_what_it_starts_if_asked(launch, capfd):
    path, status = launch("-v", "-n", 2, "train.py")
    assert status == 0
    assert f"{path} -n 2 {sys.executable} -m" in capfd.readouterr().err


@pytest.mark.parametrize("place", [0, 1, 2])
def test_m_begins_the_script_wherever_the_options_end(launch, monkeypatch, capsys, place):
    monkeypatch.setenv("SAYS", "Open MPI 4.1")
    options = [["--mca", "a", "-m"], ["--grace=2"], ["-n", "3"]]
    words = [word for option in options[place:] for word in option]
    launch("--dry-run", "-n", 2, *words, "-m", "package.train", "-m", "x")
    assert capsys.readouterr().out.endswith("program -m package.train -m x\n")


@pytest.mark.parametrize("words", [["-vn", 3], ["-vn3"], ["-n3"], ["-v", "-n3"]])
def test_m_begins_the_script_after_options_in_one_word(launch, capsys, words):
    launch("--dry-run", *words, "-m", "package.train", "-n", "x")
    said = capsys.readouterr().out
    assert said.endswith("program -m package.train -n x\n") and " -n 3 " in said


def test_the_help_shows_a_full_example(capsys):
    assert main(["launch", "--help"]) == 0
    said = capsys.readouterr().out
    assert "  python -m dist_classicrl launch -n 16 --hostfile hosts train.py" in said
    # With exec nothing is left that puts the job back into the queue.
    assert "--requeue" not in said and "dist-classicrl slurm" in said
