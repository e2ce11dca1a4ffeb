"""`slurm`: a batch script that bash takes, that asks SLURM for what was said, and that hears the warning."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time

import pytest
from background_job import BackgroundJob
from learned_runs import run_command
from signal_masks import listens

from dist_classicrl.errors import SettingsError
from dist_classicrl.launch.slurm_script import BatchJob, word_of

TRAIN = ["--", "FrozenLake-v1", "--total-steps", "1e9"]


@pytest.fixture
def script_of(capsys):
    """Give a function that returns the directives and the other lines of the script for some words."""

    def make(*words):
        status, out, err = run_command(capsys, "slurm", *words)
        assert (status, err) == (0, "")
        checked = subprocess.run(["bash", "-n"], input=out, text=True, capture_output=True, timeout=30.0)
        assert (checked.returncode, checked.stderr) == (0, "")
        lines = out.splitlines()
        directives = [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH ")]
        assert lines[0] == "#!/bin/bash"
        assert lines[1 : 1 + len(directives)] == [
            f"#SBATCH {each}" for each in directives
        ]  # none further down
        return directives, lines[1 + len(directives) :]

    return make


def test_what_is_asked_for_is_in_the_directives(script_of):
    asked = "--ntasks 16 --nodes 2 --time 1-12:00:00 --partition=long --account lab --mem 16G --job-name lake"
    directives, lines = script_of(
        *asked.split(), "--directive=--constraint=avx2", "--setup", "module load openmpi", *TRAIN
    )
    assert directives == [
        "--job-name=lake",
        "--ntasks=16",
        "--nodes=2",
        "--time=1-12:00:00",
        "--partition=long",
        "--account=lab",
        "--mem=16G",
        "--signal=B:USR1@120",
        "--requeue",
        "--open-mode=append",
        "--constraint=avx2",
    ]
    # It listens before anything that may take a while.
    assert lines[1] == "job=" and lines[2].startswith("trap ") and lines[2].endswith(" USR1")
    assert lines[3] == "module load openmpi"
    assert shlex.split(lines[4]) == [
        sys.executable, "-m", "dist_classicrl", "train", "--ranks", "$SLURM_NTASKS", *TRAIN[1:], "&",
    ]  # fmt: skip


def test_without_requeueing_the_command_takes_the_place_of_the_script(script_of):
    directives, lines = script_of("--ntasks", "4", "--no-requeue", "--signal", "60", "--time", "30", *TRAIN)
    assert directives == ["--ntasks=4", "--time=30", "--signal=B:USR1@60", "--no-requeue"]
    assert len(lines) == 2 and lines[1].startswith(f"exec {sys.executable} -m dist_classicrl train ")
    directives, _ = script_of("--ntasks", "4", "--signal", "0", "--time", "1", *TRAIN)
    assert not any("signal" in line for line in directives)


def test_the_tasks_of_a_study_are_started_by_srun_without_mpi_and_may_be_one(
    script_of, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.toml").write_text('environment = "FrozenLake-v1"\ntotal_steps = 1000\n')
    words = ["sweep", "study.toml", "--out", "studies/lake"]
    _, lines = script_of("--ntasks", "1", "--array", "0-3", "--no-requeue", "--", *words)
    command = [sys.executable, "-m", "dist_classicrl", *words]
    assert shlex.split(lines[-1]) == ["exec", "srun", "--mpi=none", *command]


def test_a_study_that_is_elsewhere_is_not_looked_for_here(script_of, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for words in (["--setup", "cd /project", "sweep", "a.toml"], ["sweep", "$SLURM_ARRAY_TASK_ID.toml"]):
        _, lines = script_of("--ntasks", "4", "--no-requeue", *words)
        assert lines[-1].startswith(f"exec srun --mpi=none {sys.executable} -m dist_classicrl sweep ")


@pytest.mark.parametrize(
    "words", [["train.py", "--n", "3"], ["-m", "own.train", "x"], ["launch", "train.py"]]
)
def test_a_script_of_ones_own_is_started_by_launch(script_of, words):
    _, lines = script_of("--ntasks", "4", "--no-requeue", "--python", "/opt/py thon", "--", *words)
    own = words[1:] if words[0] == "launch" else words
    assert shlex.split(lines[1]) == ["exec", "/opt/py thon", "-m", "dist_classicrl", "launch", *own]


@pytest.mark.parametrize(
    ("words", "started"),
    [
        (["train.py", "--n", "3"], ["train.py", "--n", "3"]),
        (["-m", "own.train"], ["-m", "own.train"]),
        (["train", "FrozenLake-v1"], ["-m", "dist_classicrl", "train", "FrozenLake-v1"]),
    ],
)
def test_srun_starts_the_ranks_without_a_launcher(script_of, words, started):
    _, lines = script_of("--ntasks", "4", "--no-requeue", "--srun", "pmix", "--python", "py", "--", *words)
    assert lines[2:-1] == ["export PMIX_MCA_psec=native PMIX_MCA_gds=hash"]
    for own, seen in ((None, "1"), ("3", "3")):
        environment = {"PATH": os.environ["PATH"], **({} if own is None else {"OMP_NUM_THREADS": own})}
        shell = ["bash", "-c", f"{lines[1]}; env"]
        told = subprocess.run(shell, env=environment, capture_output=True, text=True, timeout=30.0)
        assert f"OMP_NUM_THREADS={seen}" in told.stdout.splitlines()
    assert shlex.split(lines[-1]) == ["exec", "srun", "--mpi=pmix", "py", *started]
    _, lines = script_of("--ntasks", "4", "--no-requeue", "--srun", "pmi2", "--python", "py", "--", *words)
    assert [shlex.split(line) for line in lines[2:]] == [["exec", "srun", "--mpi=pmi2", "py", *started]]


def test_a_module_needs_no_dashes_before_it(script_of):
    words = ("-m", "own.train", "--steps", "3")
    _, with_dashes = script_of("--ntasks", "4", "--no-requeue", "--", *words)
    _, lines = script_of("--ntasks", "4", "--no-requeue", *words)
    assert lines == with_dashes and "launch -m own.train --steps 3" in lines[-1]


def test_each_job_of_an_array_has_a_folder_and_a_seed(script_of):
    directives, lines = script_of("--ntasks", "2", "--array", "0-9%4", *TRAIN)
    assert "--array=0-9%4" in directives
    assert lines[3].endswith(
        '--out "runs/FrozenLake-v1-$SLURM_ARRAY_TASK_ID" --seed "$SLURM_ARRAY_TASK_ID" &'
    )
    assert '    scontrol requeue "${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}"' in lines
    own = ["-o", "my runs/${SLURM_ARRAY_TASK_ID}", "--seed", "7", "--epsilon", "0.$SLURM_ARRAY_TASK_ID"]
    _, lines = script_of("--ntasks", "2", "--array", "1,3", *TRAIN, *own)
    assert lines[3].endswith(
        '-o "my runs/${SLURM_ARRAY_TASK_ID}" --seed 7 --epsilon "0.$SLURM_ARRAY_TASK_ID" &'
    )
    _, lines = script_of("--ntasks", "2", "--array", "1,3", *TRAIN, "--seed", "1$SLURM_ARRAY_TASK_ID")
    assert '--seed "1$SLURM_ARRAY_TASK_ID"' in lines[3]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--ntasks", "1", *TRAIN], "at least 2 tasks"),
        (["--ntasks", "4", "--nodes", "5", *TRAIN], "from 1 to the number of tasks, 4"),
        (["--ntasks", "4", "--time", "4 hours", *TRAIN], "such as 4:00:00 for four hours"),
        (["--ntasks", "4", "--time", "1:60:00", *TRAIN], "HH:MM:SS"),
        (["--ntasks", "4", "--time", "0", *TRAIN], "HH:MM:SS"),
        (["--ntasks", "4", "--time", "4294967296", *TRAIN], "seconds up to 2147483647, which are 24855 days"),
        (["--ntasks", "4", "--time", "99999999-00", *TRAIN], "'99999999-00'; SLURM counts seconds up to"),
        (["--ntasks", "4", "--time", "9" * 400, *TRAIN], "SLURM counts seconds up to"),
        (["--ntasks", "4294967296", *TRAIN], "SLURM counts tasks up to 2147483647"),
        (["--ntasks", "4", "--signal", "70000", "--time", "100:00:00", *TRAIN], "from 1 s to 65535 s before"),
        (["--ntasks", "4", "--array", "9-0", *TRAIN], "which go up and are at most 4000000"),
        (["--ntasks", "4", "--array", "0-9,0-99999999%4", *TRAIN], "at most 4000000"),
        (["--ntasks", "4", "--", "--total-steps", "10"], "Which environment"),
        (["--ntasks", "4", ""], "Which environment"),
        (
            ["--ntasks", "4", "-m"],
            "After -m comes the name of a module. Write for instance -m package.module",
        ),
        (["--ntasks", "4", "-m", "a b"], "and 'a b' is none"),
        (["--ntasks", "4", "--time", "2:00", *TRAIN], "does not fit into a job of 2 min"),
        (["--ntasks", "4", "--mem", "16 GB", *TRAIN], "such as 16G"),
        (["--ntasks", "4", "--array", "0..9", *TRAIN], "0-99%10"),
        (["--ntasks", "4", "--partition", "a b", *TRAIN], "--partition is 'a b'"),
        (["--ntasks", "4", "--directive=constraint=x", *TRAIN], "begins with a dash"),
        (["--ntasks", "4", *TRAIN, "--ranks", "3"], "that of the tasks, --ntasks 4: leave --ranks"),
        (
            ["--ntasks", "4", "--", "launch", "-n", "8", "train.py"],
            "leave --ranks out of the words of launch",
        ),
        (["--ntasks", "4", "--", "launch", "-n8", "-m", "own.train"], "leave --ranks out"),
        (["--ntasks", "4", "--", "launch", "--max-restart", "1", "train.py"], "--max-restarts"),
        (["--ntasks", "4", *TRAIN, "--live"], "`dist-classicrl show --live FOLDER` in a terminal"),
        (["--ntasks", "4", "--", "sweep", "study.toml", "--live"], "a job has none: leave it out"),
        (
            ["--ntasks", "4", "--srun", "none", *TRAIN],
            "Write --srun pmix for Open MPI, --srun pmi2 for MPICH",
        ),
        (["--ntasks", "4", "--srun", "none", "--", "train.py"], "no rank of a training finds another one"),
        (
            ["--ntasks", "4", "--srun", "pmix", *TRAIN, "--no-ulfm"],
            "--no-ulfm is for ranks that train starts",
        ),
        (["--ntasks", "4", "--", "sweep", "nosuch.toml"], "'nosuch.toml' cannot be read: No such file"),
        (["--ntasks", "4", *TRAIN, "--see", "3"], "--seed"),
        (["--ntasks", "4", "--srun", "pmix", "launch", "train.py"], "without launch"),
        (["--ntasks", "4", "--srun", "", *TRAIN], "--srun is ''"),
        (["--ntasks", "4", "--array", "0-9", *TRAIN, "--out", "here"], "--out 'here-$SLURM_ARRAY_TASK_ID'"),
        (
            ["--ntasks", "4", "--array", "0-9", *TRAIN, "--checkpoint-dir", "saved"],
            "--checkpoint-dir 'saved-$SLURM_ARRAY_TASK_ID'",
        ),
        (["--ntasks", "4", "--array", "0-9", *TRAIN, "--log-dir", "x"], "--log-dir 'x-$SLURM_ARRAY_TASK_ID'"),
        (["--ntasks", "4", "--array", "0-9", *TRAIN, "--seed", "3"], "the same training, with --seed 3"),
        (
            ["--ntasks", "4", "--array", "0-9", *TRAIN, "--seed", "3", "--out", "a-$SLURM_ARRAY_TASK_ID"],
            "Leave it out: each job has its number as its seed",
        ),
        (["--ntasks", "4", *TRAIN, "--resume", "never"], "--no-requeue"),
        (["--ntasks", "4", *TRAIN, "--time-limit", "10min"], "With --time-limit the job"),
        (["--ntasks", "4", "train"], "What is there to train?"),
        (["--ntasks", "4"], "WORDS"),
        (TRAIN, "--ntasks"),
    ],
)
def test_what_cannot_be_is_refused_with_what_to_write(capsys, words, said):
    status, out, err = run_command(capsys, "slurm", *words)
    assert (status, out) == (2, "") and said in err


def test_what_a_file_says_counts_as_if_it_were_typed(script_of, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "saved.toml").write_text('environment = "Taxi-v4"\ncheckpoint_dir = "saved"\n')
    (tmp_path / "anew.toml").write_text('environment = "Taxi-v4"\nresume = "never"\n')
    words = ("--ntasks", "2", "--array", "0-9", "--", "train", "--config")
    status, _, err = run_command(capsys, "slurm", *words, "saved.toml")
    assert status == 2 and "--checkpoint-dir 'saved-$SLURM_ARRAY_TASK_ID'" in err
    _, lines = script_of(*words, "saved.toml", "--checkpoint-dir", "s3://a/$SLURM_ARRAY_TASK_ID")
    assert '--out "runs/Taxi-v4-$SLURM_ARRAY_TASK_ID"' in lines[3]
    assert run_command(capsys, "slurm", *words, "anew.toml")[0] == 2
    assert "--config anew.toml" in script_of("--no-requeue", *words, "anew.toml")[1][1]
    assert '--config "$SLURM_ARRAY_TASK_ID.toml"' in script_of(*words, "$SLURM_ARRAY_TASK_ID.toml")[1][3]


def test_a_script_that_may_not_tell_its_jobs_apart_is_pointed_out(capsys):
    words = ("slurm", "--ntasks", "2", "--array", "0-9", "train.py")
    assert "'$SLURM_ARRAY_TASK_ID'" in run_command(capsys, *words)[2]
    assert run_command(capsys, *words, "--seed", "$SLURM_ARRAY_TASK_ID")[2] == ""


def test_words_come_through_the_shell_as_they_are_but_for_variables_of_slurm():
    words = [
        "a b",
        "$HOME",
        'q"',
        "`x`",
        "\\",
        "",
        "*",
        '--x=$SLURM_JOB_ID $HOME `q` " \\',
        "${SLURM_JOB_ID}",
    ]
    line = " ".join(map(word_of, words))
    told = subprocess.run(
        ["bash", "-c", f"{sys.executable} -c 'import json,sys;print(json.dumps(sys.argv[1:]))' {line}"],
        env={**os.environ, "SLURM_JOB_ID": "17"},
        capture_output=True,
        text=True,
        timeout=30.0,
    )
    assert json.loads(told.stdout) == [*words[:-2], '--x=17 $HOME `q` " \\', "17"]


@pytest.mark.slow
def test_tasks_that_do_not_find_each_other_are_told_what_to_write_instead(tmp_path):
    # As srun starts a task, of which MPI knows nothing.
    variables = {"SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3"}
    words = ["-m", "dist_classicrl", "train", "FrozenLake-v1"]
    with BackgroundJob(words, cwd=tmp_path, env=variables) as job:
        said = job.wait(status=2)
    assert said.startswith("Error: The environment promises 4 ranks") and "srun --mpi=pmix" in said
    assert "Traceback" not in said


def test_a_line_more_could_not_be_smuggled_in():
    with pytest.raises(SettingsError):
        BatchJob(2, further=("--x\n#SBATCH --y",))


# What stands in for Python: it writes down that it runs, and ends in order when it is told to stop.
PROGRAM = 'trap "exit 75" USR1\necho "$*" > started\nfor i in $(seq 600); do sleep 0.05; done\n'


@pytest.fixture
def started(tmp_path):
    """Give a function that starts the script of a job, with stand-ins for what it runs."""
    jobs = []

    def start(batch_job, program=PROGRAM):
        for name, text in (("python", program), ("scontrol", 'echo "$*" >> asked\n')):
            (tmp_path / name).write_text(f"#!/bin/bash\n{text}")
            (tmp_path / name).chmod(0o755)
        (tmp_path / "job.sh").write_text(batch_job.script([str(tmp_path / "python"), "train.py"]))
        variables = {"SLURM_JOB_ID": "17", "SLURM_ARRAY_JOB_ID": "16", "SLURM_ARRAY_TASK_ID": "2"}
        job = subprocess.Popen(
            ["bash", "job.sh"],
            cwd=tmp_path,
            env={**os.environ, **variables, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=(tmp_path / "said").open("w"),
        )
        jobs.append(job)
        return job

    yield start
    for job in jobs:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()


def warn(job, folder):
    """Send the script alone what SLURM sends it, once what it runs has started."""
    deadline = time.monotonic() + 30.0
    while not (folder / "started").exists() or not listens(job.pid, signal.SIGUSR1):
        assert time.monotonic() < deadline and job.poll() is None
        time.sleep(0.01)
    os.kill(job.pid, signal.SIGUSR1)


def asked_of_slurm(folder):
    return (folder / "asked").read_text() if (folder / "asked").exists() else None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("requeue", "array", "asked"),
    [(True, None, "requeue 17\n"), (True, "0-3", "requeue 16_2\n"), (False, None, None)],
)
def test_the_warning_stops_the_training_and_the_job_goes_back_into_the_queue(
    started, tmp_path, requeue, array, asked
):
    job = started(BatchJob(2, requeue=requeue, array=array))
    warn(job, tmp_path)
    assert job.wait(timeout=30.0) == 75
    assert asked_of_slurm(tmp_path) == asked


DEAF = "kill -USR1 $$; sleep 30\n"  # what ends by the warning


def test_a_warning_before_the_training_can_hear_it_ends_nothing_for_good(started, tmp_path):
    assert started(BatchJob(2), DEAF).wait(timeout=30.0) == 128 + signal.SIGUSR1
    assert asked_of_slurm(tmp_path) == "requeue 17\n"


def test_what_never_hears_the_warning_does_not_begin_anew_for_ever(started, tmp_path):
    job = started(BatchJob(2, setup=("SECONDS=300",)), DEAF)
    assert job.wait(timeout=30.0) == 128 + signal.SIGUSR1
    assert asked_of_slurm(tmp_path) is None
    assert re.search(r"Not queued again: USR1 ended it after 3\d\d s", (tmp_path / "said").read_text())


def test_in_a_short_job_what_never_hears_the_warning_does_not_either(started, tmp_path):
    """The warning comes 120 s after its start, and up to a minute early."""
    job = started(BatchJob(2, time="4:00", setup=("SECONDS=60",)), DEAF)
    assert job.wait(timeout=30.0) == 128 + signal.SIGUSR1
    assert asked_of_slurm(tmp_path) is None
    assert started(BatchJob(2, time="4:00"), DEAF).wait(timeout=30.0) == 128 + signal.SIGUSR1
    assert asked_of_slurm(tmp_path) == "requeue 17\n"


def test_a_shell_that_ends_at_the_first_failure_still_puts_the_job_back(started, tmp_path):
    assert started(BatchJob(2, setup=("set -eu",)), "exit 75\n").wait(timeout=30.0) == 75
    assert asked_of_slurm(tmp_path) == "requeue 17\n"


def test_a_warning_before_the_training_is_begun_does_not_end_the_job(started, tmp_path):
    setup = ("touch started", "while [ ! -e go ]; do sleep 0.01; done")
    job = started(BatchJob(2, setup=setup), "exit 3\n")
    warn(job, tmp_path)
    (tmp_path / "go").touch()
    assert job.wait(timeout=30.0) == 3
    assert asked_of_slurm(tmp_path) is None


@pytest.mark.slow
def test_a_failure_right_after_the_warning_is_no_stop(started, tmp_path):
    # The script takes its time to hand the warning on, so that it finds nothing to wait for then.
    slow = 'kill() { builtin kill "$@" || return; sleep 0.5; }'
    job = started(BatchJob(2, setup=(slow,)), PROGRAM.replace("exit 75", "exit 2"))
    warn(job, tmp_path)
    assert job.wait(timeout=30.0) == 2
    assert asked_of_slurm(tmp_path) is None


@pytest.mark.parametrize("words", [["FrozenLake-v1"], ["--", "FrozenLake-v1"], ["sweep", "study.toml"]])
def test_options_of_slurm_after_the_words_are_told_their_place(capsys, words):
    assert (
        "--no-requeue is an option of slurm"
        in run_command(capsys, "slurm", "--ntasks", "4", *words, "--no-requeue")[2]
    )
    status, out, err = run_command(capsys, "slurm", "--ntasks", "4", *words, "--time", "1:00")
    assert (status, out) == (2, "")
    assert "--time is an option of slurm" in err and "come before these: dist-classicrl slurm --time" in err


@pytest.mark.parametrize(
    "words", [["FrozenLak-v1"], ["--", "--env", "FrozenLak-v1"], ["--array", "0-3", "--", "FrozenLak-v1"]]
)
def test_an_id_that_nobody_knows_is_told_before_the_job_waits_for_its_turn(capsys, words):
    status, out, err = run_command(capsys, "slurm", "--ntasks", "4", *words)
    assert (status, out) == (2, "") and "Did you mean 'FrozenLake-v1'?" in err


def test_an_environment_of_a_module_is_not_imported_for_a_script(capsys):
    for name in ("no_such_module:make", "no_such_module:Own-v0", "dist_classicrl/DeepSea-v0", "tictactoe"):
        assert run_command(capsys, "slurm", "--ntasks", "4", "--", name)[0] == 0


@pytest.mark.parametrize(
    "other", [["--python", "/opt/other/bin/python"], ["--setup", "source venv/bin/activate"]]
)
def test_another_python_may_have_environments_that_this_one_has_not(capsys, other):
    status, out, _ = run_command(capsys, "slurm", "--ntasks", "4", *other, "--", "ALE/Breakout-v5")
    assert status == 0 and "ALE/Breakout-v5" in out
