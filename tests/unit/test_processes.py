import os
import signal
import sys
import time

import pytest

from dist_classicrl.process import jobs as processes
from dist_classicrl.process.jobs import (
    JOB_VARIABLE,
    is_running,
    kill_job,
    processes_of,
    run_job,
    start_job,
)

# A child in a session of its own that ignores SIGTERM, as the daemons of an MPI are; it tells its id.
DAEMON = """
import os, signal, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", '''
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(600)
'''], start_new_session=True, stdout=subprocess.PIPE, text=True)
child.stdout.readline()
print(child.pid, os.environ["DIST_CLASSICRL_JOB"], flush=True)
"""


needs_proc = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="processes are found through /proc")


def test_output_and_status_come_back():
    program = "import os, sys; os.write(1, b'out '); os.write(2, b'err'); sys.exit(3)"
    job = run_job([sys.executable, "-c", program], timeout=60)
    assert (job.output, job.returncode, job.timed_out) == ("out err", 3, False)


def test_environment_and_folder_are_those_asked_for(tmp_path):
    program = "import os; print(os.getcwd(), os.environ['COLOUR'], 'HOME' in os.environ)"
    job = run_job([sys.executable, "-c", program], timeout=60, env={"COLOUR": "red"}, cwd=tmp_path)
    assert job.output.split() == [str(tmp_path), "red", "False"]


@pytest.mark.slow
@needs_proc
@pytest.mark.parametrize("ending", ["import time; time.sleep(600)", "pass", "raise SystemExit(4)"])
def test_nothing_is_left_however_the_job_ends(ending):
    for seconds in (3, 20, 60):  # a busy machine may take longer than that to start them
        job = run_job([sys.executable, "-c", DAEMON + ending], timeout=seconds)
        if job.output:
            break
    daemon, name = job.output.split()[:2]
    assert not is_running(int(daemon))
    assert processes_of(name) == []
    assert job.timed_out == ("sleep" in ending)


@pytest.mark.slow
@needs_proc
def test_the_first_process_may_clean_up_before_it_is_killed():
    program = "import signal, time\nsignal.signal(15, lambda *_: (print('cleaned', flush=True), exit(9)))\n"
    for seconds in (1.5, 10, 60):  # a busy machine may take longer than that to start it
        job = run_job([sys.executable, "-c", program + "time.sleep(600)"], timeout=seconds)
        if job.output:
            break
    assert (job.output, job.returncode, job.timed_out) == ("cleaned\n", 9, True)


# A child that its parent kills at the end, and that takes a while to go, for the memory that it has.
LARGE_CHILD = """
import os, signal, sys, time
child = os.fork()
if not child:
    memory = b"x" * (1 << 29)
    print(os.getpid(), flush=True)
    time.sleep(600)
signal.signal(signal.SIGTERM, lambda *_: (os.kill(child, signal.SIGKILL), os._exit(9)))
time.sleep(600)
"""


@pytest.mark.slow
@needs_proc
def test_a_process_that_the_first_one_has_killed_is_waited_for():
    for seconds in (1.5, 10, 60):  # a busy machine may take longer than that to start them
        job = run_job([sys.executable, "-c", LARGE_CHILD], timeout=seconds)
        if job.output:
            break
    assert (job.returncode, is_running(int(job.output))) == (9, False)


@needs_proc
def test_only_processes_of_the_job_are_found(monkeypatch):
    monkeypatch.setenv(JOB_VARIABLE, "another")
    job = run_job([sys.executable, "-c", "import os; print(os.environ['DIST_CLASSICRL_JOB'])"], timeout=60)
    assert job.output.strip() != "another"
    assert os.getpid() not in processes_of(job.output.strip())


@needs_proc
def test_a_process_that_cannot_be_ended_does_not_hold_up_the_caller(monkeypatch):
    monkeypatch.setattr(processes, "_GRACE_SECONDS", 0.2)
    looks = []

    def always_one(job):  # as a process held by a dead file system: there, and deaf to SIGKILL
        looks.append(job)
        if len(looks) > 1_000:
            raise TimeoutError("looked for ever")
        return [2**22 + 1]  # above any process's id

    monkeypatch.setattr(processes, "processes_of", always_one)
    job = run_job([sys.executable, "-c", "print('done')"], timeout=60)
    assert (job.output, job.returncode) == ("done\n", 0)
    assert len(looks) > 1


@needs_proc
def test_what_is_found_only_when_the_time_for_it_is_over_is_killed(monkeypatch):
    process, job = start_job(["/bin/sleep", "600"])
    try:
        deadline = time.monotonic() + 60.0
        while not processes_of(job):  # it has no environment yet
            assert time.monotonic() < deadline
        monkeypatch.setattr(processes, "_GRACE_SECONDS", 0.0)  # as for one that was suspended meanwhile
        kill_job(job)
        assert process.wait(10.0) == -signal.SIGKILL
    finally:
        process.kill()
        process.wait()


@needs_proc
def test_an_exception_in_the_caller_also_ends_the_job(monkeypatch):
    import subprocess

    started = []
    wait = subprocess.Popen.wait

    def interrupted(process, timeout=None):
        if not started:
            started.append(process.pid)
            time.sleep(0.2)
            raise KeyboardInterrupt
        return wait(process, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_job(["/bin/sleep", "600"], timeout=60)
    assert not is_running(started[0])


@needs_proc
def test_ctrl_c_twice_also_ends_the_job(monkeypatch):
    import subprocess

    waits, wait = [], subprocess.Popen.wait

    def interrupted(process, timeout=None):
        waits.append(process.pid)
        if len(waits) == 1:
            time.sleep(0.2)
            raise KeyboardInterrupt
        if len(waits) == 2:  # for the job to end by SIGTERM
            signal.raise_signal(signal.SIGINT)
        return wait(process, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", interrupted)
    monkeypatch.setattr(processes, "_GRACE_SECONDS", 0.5)
    with pytest.raises(KeyboardInterrupt):
        run_job(["/bin/sh", "-c", "trap '' TERM; exec /bin/sleep 600"], timeout=60)
    assert not is_running(waits[0])


@needs_proc
def test_a_signal_that_comes_while_the_job_is_started_ends_the_job_as_well(monkeypatch):
    import subprocess

    started, Popen = [], subprocess.Popen

    def interrupted(command, **settings):
        process = Popen(command, **settings)
        started.append(process.pid)
        signal.raise_signal(signal.SIGINT)  # it runs, and nobody has its id yet
        return process

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_job(["/bin/sleep", "600"], timeout=60)
    assert len(started) == 1 and not is_running(started[0])
