"""How processes end: in children, since what is tested is the end of a whole process."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from dist_classicrl.comm.remote_errors import without_exit
from dist_classicrl.errors import ExitCalledError, LauncherError
from dist_classicrl.launch import program
from dist_classicrl.process.exit import fault_tolerant, has_deaths, survival_advice
from dist_classicrl.process.exit_record import ExitRecord

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ("-m", "dist_classicrl.launch.program")
# Stands in for an MPI that has been started, in which exceptions and ends are as in the real one.
MPI = """
import sys, types
mpi = sys.modules["mpi4py.MPI"] = types.ModuleType("mpi4py.MPI")
class MPIError(RuntimeError):
    def __init__(self, number):
        self.number = number
    def Get_error_class(self):
        return self.number
mpi.Exception, mpi.ERR_PROC_FAILED, mpi.ERR_TRUNCATE = MPIError, 75, 15
mpi.Is_initialized = lambda: True
mpi.Is_finalized = lambda: False
from dist_classicrl.process import exit as process_exit
"""


@pytest.fixture
def run(tmp_path):
    """Give a function that runs a script with Python, or as a rank of a launch, and returns its end."""
    folder = tmp_path / "record"
    folder.mkdir()

    def run(text, *arguments, words=PROGRAM, launched=True, env=None):
        script = tmp_path / "scripts" / "script.py"  # elsewhere than where it is started
        script.parent.mkdir(exist_ok=True)
        script.write_text(text)
        fixed = {"PYTHONPATH": str(ROOT / "src"), "PYTHONUNBUFFERED": ""}
        environment = {**os.environ, **fixed, **(env or {})}
        if launched:
            environment["DIST_CLASSICRL_LAUNCH"] = str(folder)
        done = subprocess.run(
            [sys.executable, *words, str(script), *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            cwd=tmp_path,
        )
        done.record = ExitRecord(folder)
        return done

    return run


# Scripts run as Python runs them

SCRIPTS = {
    "arguments": "import sys; print(sys.argv, sys.path[0], __name__, __file__, __spec__, __package__)",
    "main module": "import sys; x = 5; print(sys.modules['__main__'].x, sys.modules['__main__'].__file__)",
    "at the end": "import atexit\nx = 7\natexit.register(lambda: print('later', x))\nprint('now')",
    "threads": "import threading, time\nx = 7\n"
    "threading.Thread(target=lambda: (time.sleep(0.3), print('thread', x))).start()\nprint('main')",
    "status": "import sys; sys.exit(7)",
    "no status": "raise SystemExit",
    "words": "raise SystemExit('these words')",
    "large": "raise SystemExit(1 << 8 | 5)",
    "error": "def f(): return 1 / 0\ndef g():\n    try: f()\n    except ZeroDivisionError: [][1]\ng()",
    "syntax": "print('never')\nprint(=)",
    "future": "def f(x: unknown): pass",
}


@pytest.mark.slow
@pytest.mark.parametrize("text", SCRIPTS.values(), ids=SCRIPTS)
def test_a_script_runs_and_ends_as_under_python(run, text):
    plain, ranked = run(text, "a", "-n", words=()), run(text, "a", "-n")
    code = plain.returncode
    assert (ranked.returncode, ranked.stdout) == (code, plain.stdout)
    if "f()" in text:  # a frame that Python marks with ^^^^ may differ in nothing but that
        assert ranked.stderr.splitlines()[-1] == plain.stderr.splitlines()[-1]
        assert "program.py" not in ranked.stderr
    else:
        assert ranked.stderr == plain.stderr
    (ending,) = ranked.record.endings()
    assert ending.code == code
    assert ranked.record.is_complete == (code == 0)


def test_a_script_that_is_not_there_is_named_as_python_names_it(run, tmp_path):
    done = run("", words=(*PROGRAM, "absent.py"))
    assert done.returncode == 2
    assert f"can't open file '{tmp_path / 'absent.py'}'" in done.stderr
    assert [ending.code for ending in done.record.endings()] == [2]


@pytest.mark.parametrize("name", ["package", "package.module"])
def test_a_module_runs_as_under_python(run, tmp_path, name):
    (tmp_path / "package").mkdir()
    text = "import sys; print(sys.argv, sys.path[0], __name__, __package__, __spec__.name, __file__)"
    for file in ("__init__", "__main__", "module"):
        (tmp_path / "package" / f"{file}.py").write_text("" if file == "__init__" else text)
    plain, ranked = run("", words=("-m", name)), run("", words=(*PROGRAM, "-m", name))
    assert (ranked.stdout, ranked.returncode) == (plain.stdout, 0)
    assert "__main__" in ranked.stdout


def test_a_module_that_is_not_there_is_named(run):
    done = run("", words=(*PROGRAM, "-m", "absent.module"))
    assert (done.returncode, "No module named absent.module" in done.stderr) == (1, True)


@pytest.mark.parametrize("name", ["package", "package.module", "package.absent"])
def test_what_a_package_lacks_is_not_taken_for_the_package(run, tmp_path, name):
    (tmp_path / "package").mkdir()
    for file, text in (("__init__", "import lacking"), ("__main__", ""), ("module", "")):
        (tmp_path / "package" / f"{file}.py").write_text(text)
    done = run("", words=(*PROGRAM, "-m", name))
    assert done.returncode == 1 and "ModuleNotFoundError: No module named 'lacking'" in done.stderr
    assert f"No module named {name}" not in done.stderr


def test_ctrl_c_gives_130(run):
    done = run("raise KeyboardInterrupt")
    assert done.returncode == 130
    assert [ending.code for ending in done.record.endings()] == [130]


PYCS = ("--check-hash-based-pycs", "never")


@pytest.mark.parametrize(
    "original, options, words",
    [
        (["train.py", "-n", "3"], [], ["train.py", "-n", "3"]),
        (["-u", "-Xdev", "-Wall", "-W", "m", "a.py"], ["-u", "-Xdev", "-Wall", "-W", "m"], ["a.py"]),
        (["-OX", "dev", *PYCS, "a.py"], ["-OX", "dev", *PYCS], ["a.py"]),
        (["-m", "package.train", "x"], [], ["-m", "package.train", "x"]),
        (["-um", "package.train", "-O"], ["-u"], ["-m", "package.train", "-O"]),
        (["-OO", "-mpackage.train"], ["-OO"], ["-m", "package.train"]),
        (["-u", *PROGRAM, "train.py", "x"], ["-u"], ["train.py", "x"]),
        ([*PROGRAM, "--replacement", "-m", "train", "x"], [], ["-m", "train", "x"]),
    ],
)
def test_a_process_knows_with_which_words_to_start_another(original, options, words):
    assert program.own_words(["python", *original]) == (options, words)
    started = [sys.executable, *options, *PROGRAM, "--replacement", *words]
    assert program.command(words, options=options, replacement=True) == started
    assert program.own_words(started) == (options, words)


@pytest.mark.parametrize(
    "original", [["python"], ["python", "-uc", "x"], ["python", "-cx"], ["python", "-u", "-"]]
)
def test_what_was_typed_in_cannot_be_started_again(original):
    with pytest.raises(LauncherError, match="into a file"):
        program.own_words(original)


@pytest.mark.parametrize("code", [0, 74, 75, 79, 130, 256 + 75])
def test_sys_exit_where_ranks_train_is_no_stop_in_order_whatever_its_status(code):
    error = without_exit(SystemExit(code))
    assert (type(error), error.code) == (ExitCalledError, 1)
    assert without_exit(SystemExit(3)).code == 3


# What the launcher hears

VERDICTS = {
    "the end": ("", "code"),
    "status": ("raise SystemExit(3)", "code"),
    "error": ("raise ValueError('mine')", "error"),
    "death": ("raise MPIError(75)", "lost"),
    "misuse": ("raise MPIError(15)", "error"),
    "of a death": ("try: raise MPIError(75)\nexcept MPIError as e: raise ValueError('mine') from e", "lost"),
    "while": ("try: raise MPIError(75)\nexcept MPIError: raise ValueError('mine')", "lost"),
    "not of": ("try: raise MPIError(75)\nexcept MPIError: raise ValueError('mine') from None", "error"),
    "silence": ("from dist_classicrl.errors import *; raise RankTimeoutError('x')", "lost"),
    "loss": ("from dist_classicrl.errors import *; raise RankLostError('x')", "lost"),
    "cut": ("from dist_classicrl.errors import *; raise CutOffError('x')", "lost"),
    # Who starts the same run twice must not have the two take it from each other in turn.
    "fenced": ("from dist_classicrl.errors import *; raise CheckpointFencedError('x')", "error"),
    "remote": ("from dist_classicrl.errors import *; raise RemoteRankError(1, 'h', 's', 't')", "told"),
    "aside": ("process_exit.note_aside(); raise ValueError('mine')", "left"),
    "announced": ("process_exit.announce(4, 'abort'); raise ValueError('mine')", "error"),
}


@pytest.mark.slow
@pytest.mark.parametrize("text, kind", VERDICTS.values(), ids=VERDICTS)
def test_the_launcher_hears_what_kind_of_end_it_was(run, text, kind):
    (ending,) = run(MPI + text).record.endings()
    assert ending.kind == kind
    assert ("mine" in ending.reason) == (
        text.startswith("raise ValueError") or "'mine'" in text and "announce" not in text
    )


@pytest.mark.parametrize(
    "rank, note, done", [(0, "", True), (1, "", False), (0, "False", False), (1, "True", True)]
)
def test_only_the_head_marks_the_work_as_done(run, rank, note, done):
    text = f"{MPI}\nprocess_exit.note_head({note})" if note else ""
    finished = run(text, env={"OMPI_COMM_WORLD_RANK": str(rank)})
    assert finished.returncode == 0
    assert finished.record.is_complete == done
    assert [(each.rank, each.is_head) for each in finished.record.endings()] == [(rank, done)]


@pytest.mark.parametrize("rank", [0, 2])
def test_a_head_of_a_part_marks_that_part_alone(run, rank):
    text = f"""{MPI}
for part in (0, 2):
    process_exit.note_part(part)
    process_exit.note_head(part == {rank}, part)
"""
    record = run(text, env={"OMPI_COMM_WORLD_RANK": str(rank)}).record
    assert not record.is_complete
    record.complete(2 - rank)
    assert record.is_complete


def test_the_mark_comes_after_all_that_the_script_has_to_do(run):
    text = (
        "import atexit, os\nfolder = os.environ['DIST_CLASSICRL_LAUNCH']\n"
        "atexit.register(lambda: print(os.path.exists(folder + '/done-0')))"
    )
    finished = run(text)
    assert (finished.stdout, finished.record.is_complete) == ("False\n", True)


def test_a_replacement_neither_marks_the_work_as_done_nor_fails_the_job(run):
    finished = run("", words=(*PROGRAM, "--replacement"))
    assert not finished.record.is_complete
    assert [ending.kind for ending in finished.record.endings()] == ["left"]


def test_a_rank_that_fails_before_mpi_says_so(run):
    assert [each.before_mpi for each in run("raise ValueError").record.endings()] == [True]
    assert sorted(each.before_mpi for each in run(MPI).record.endings()) == [False, True]


def test_a_folder_that_cannot_be_reached_is_told_once(run, tmp_path):
    (tmp_path / "record").rmdir()
    finished = run("print('fine')")
    assert (finished.returncode, finished.stdout) == (0, "fine\n")
    assert finished.stderr.count("--state-dir") == 2  # when it starts, and when the mark is lost
    other = run("", env={"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_LOCAL_RANK": "1"})
    assert other.stderr == ""


# The end after losses

LOSSES = (
    MPI
    + """
import atexit, logging, os
logging.basicConfig()
atexit.register(lambda: print("registered"))
class Finalize:  # as mpi4py does, when the interpreter has ended all else
    def __del__(self, write=os.write):
        write(2, b"finalized ")
sys.finalize = Finalize()
process_exit.note_losses()
"""
)


@pytest.mark.parametrize("end, code", [("", 0), ("sys.exit(75)", 75), ("raise ValueError('x')", 1)])
def test_after_losses_nobody_waits_for_the_dead(run, end, code):
    finished = run(f"{LOSSES}\nprint('out', end=' ')\n{end}", env={"OMPI_MCA_mpi_ft_enable": "1"})
    assert (finished.returncode, finished.stdout) == (code, "out registered\n")
    assert "finalized" not in finished.stderr
    assert finished.record.is_complete == (code == 0)


@pytest.mark.parametrize("end, code", [("", 0), ("raise ValueError('x')", 1)])
def test_without_a_launcher_the_workers_do_not_wait_either(run, end, code):
    env = {"OMPI_MCA_mpi_ft_enable": "1", "OMPI_COMM_WORLD_RANK": "2"}
    finished = run(f"{LOSSES}\n{end}", words=(), launched=False, env=env)
    assert (finished.returncode, finished.stdout) == (code, "registered\n")
    assert "finalized" not in finished.stderr


def test_where_a_death_would_end_the_job_the_others_are_waited_for(run):
    finished = run(LOSSES)
    assert (finished.returncode, "finalized" in finished.stderr) == (0, True)


def test_without_losses_mpi_is_ended_in_order(run):
    text = LOSSES.replace("process_exit.note_losses()", "")
    assert "finalized" in run(text, env={"OMPI_MCA_mpi_ft_enable": "1"}).stderr


@pytest.mark.parametrize("size", [0, 2])
def test_asking_for_deaths_leaves_no_group_behind(size):
    groups = []

    def get_failed():
        groups.append(SimpleNamespace(Get_size=lambda: size, Free=lambda: groups.pop()))
        return groups[-1]

    assert has_deaths(SimpleNamespace(Get_failed=get_failed)) is (size > 0)
    assert groups == []


@pytest.mark.parametrize("deaths, waits", [(0, True), (1, False)])
def test_nobody_waits_for_the_dead_of_another_part_of_the_job(run, deaths, waits):
    world = (
        f"import types\ngroup = types.SimpleNamespace(Get_size=lambda: {deaths}, Free=lambda: None)\n"
        "sys.modules['mpi4py.MPI'].COMM_WORLD = types.SimpleNamespace(Get_failed=lambda: group)"
    )
    text = LOSSES.replace("process_exit.note_losses()", world)
    finished = run(text, env={"OMPI_MCA_mpi_ft_enable": "1"})
    assert (finished.returncode, "finalized" in finished.stderr) == (0, waits)


@pytest.mark.parametrize("words, launched", [((), False), (PROGRAM, True)])
def test_a_wait_for_the_dead_has_a_limit(run, words, launched):
    hang = (
        "import time\nprocess_exit._HEAD_SECONDS = 0.3\n"
        "Finalize.__del__ = lambda self, sleep=time.sleep: sleep(60)"
    )
    env = {} if launched else {"OMPI_MCA_mpi_ft_enable": "1"}
    finished = run(LOSSES + hang, words=words, launched=launched, env=env)
    assert finished.returncode == -14  # SIGALRM: 142, as shells have it
    assert finished.stdout == "registered\n"


@pytest.mark.parametrize(
    "end, head, launched, aborted",
    [("", 0, True, "79"), ("sys.exit(75)", 0, True, "75"), ("", 0, False, "79"), ("", 1, True, "")],
)
def test_the_head_ends_a_job_in_which_a_rank_hangs(run, end, head, launched, aborted):
    text = f"{MPI}\nprocess_exit.note_hanging(lambda code: print(code, flush=True))\n{end}"
    words = PROGRAM if launched else ()
    finished = run(text, words=words, launched=launched, env={"OMPI_COMM_WORLD_RANK": str(head)})
    assert finished.stdout.strip() == aborted
    assert finished.record.is_complete == (launched and head == 0 and not end)


@pytest.mark.parametrize("rank, told", [(0, "script waited aborted"), (1, "script ended")])
def test_the_head_lets_the_others_end_first(run, rank, told):
    text = f"""{MPI}
process_exit.note_hanging(
    lambda code: print("aborted"),
    lambda seconds: print("waited", end=" "),
    lambda: print("ended"),
)
process_exit.note_head({rank == 0})
print("script", end=" ")
"""
    assert run(text, env={"OMPI_COMM_WORLD_RANK": str(rank)}).stdout.strip() == told


def test_a_hanging_rank_that_is_back_does_not_end_the_job(run):
    text = f"{MPI}\nprocess_exit.note_hanging(lambda code: print(code))\nprocess_exit.note_hanging(None)"
    assert run(text).stdout == ""


def test_a_forked_child_does_not_end_for_its_parent(run):
    text = (
        MPI
        + """
import os
process_exit.note_hanging(lambda code: print("aborted by", os.getpid() == parent, flush=True))
parent = os.getpid()
if os.fork() == 0:
    sys.exit(0)
os.wait()
"""
    )
    assert run(text).stdout == "aborted by True\n"


# What is said to who could lose a job


@pytest.mark.parametrize(
    "value, expected", [("1", True), ("true", True), ("0", False), ("", False), (None, False)]
)
def test_survival_is_read_from_the_environment(value, expected):
    assert fault_tolerant({} if value is None else {"OMPI_MCA_mpi_ft_enable": value}) is expected


def test_the_advice_names_the_command():
    assert "python -m dist_classicrl launch -n 5 " in survival_advice(environ={"OMPI_COMM_WORLD_SIZE": "5"})


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"OMPI_COMM_WORLD_SIZE": "1"},
        {"OMPI_COMM_WORLD_SIZE": "5", "OMPI_MCA_mpi_ft_enable": "1"},
        {"OMPI_COMM_WORLD_SIZE": "5", "DIST_CLASSICRL_LAUNCH": "/x"},
    ],
)
def test_who_survives_or_is_alone_gets_no_advice(environ):
    assert survival_advice(environ=environ) is None


# A rank of MPICH's mpirun that fails, and reads itself what its mpirun would.
OF_HYDRA = """
import atexit, os, socket
ours, theirs = socket.socketpair()
theirs.setblocking(False)
file = open("a file of its own", "w+")
def tell():
    try:
        print(theirs.recv(99).decode(), end="")
    except BlockingIOError:
        print(file.seek(0, 2), "bytes in the file")
atexit.register(tell)
os.environ["PMI_FD"] = str(ours.fileno())
from dist_classicrl import DistAsyncQLearning
{before}
raise ValueError("no data here")
"""
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "3", "MPI_LOCALRANKID": "1"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "before, env, said",
    [
        ("", HYDRA, "cmd=abort exitcode=1\n"),
        ("", {"PMI_RANK": "1", "PMI_SIZE": "3"}, "0 bytes in the file\n"),  # of SLURM
        (MPI + "mpi.COMM_WORLD = types.SimpleNamespace(Get_size=lambda: 1)", HYDRA, "0 bytes in the file\n"),
        ('os.environ["PMI_FD"] = str(file.fileno())', HYDRA, "0 bytes in the file\n"),
    ],
    ids=["rank", "slurm", "MPI has begun", "a file"],
)
def test_a_failure_before_mpi_ends_the_job_also_where_mpirun_would_wait(run, before, env, said):
    done = run(OF_HYDRA.format(before=before), words=(), launched=False, env=env)
    assert (done.returncode, done.stdout) == (1, said)
    assert "ValueError: no data here" in done.stderr
