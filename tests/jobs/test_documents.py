"""The code in the documents runs as it stands: a file's Python as one program in a folder, and the shell."""

import ast
import inspect
import itertools
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from signal_masks import listens

from dist_classicrl import DistAsyncQLearning
from dist_classicrl.algorithms.learners import STATE_ARRAYS
from dist_classicrl.checkpoint.folder import CheckpointFolder

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
CHECKPOINTS = ROOT / "docs" / "checkpoints.md"


def blocks(document, language="python"):
    return re.findall(rf"^```{language}\n(.*?)^```", document.read_text(), re.MULTILINE | re.DOTALL)


def write_program(document, folder):
    script = folder / f"{document.name}.py"
    # The table read back, where a document reads one, is the one that was trained before.
    reads = "\nif 'q_table' in globals():\n    print('read', q_table.shape)\n"
    script.write_text("\n".join(blocks(document)) + reads)
    return script


@pytest.mark.parametrize("ranks", [None, 3])
def test_the_blocks_of_all_documents_run(run_python, tmp_path, ranks):
    assert {"README.md", "design.md", "checkpoints.md"} <= {document.name for document in DOCUMENTS}
    for document in DOCUMENTS:
        if document.name == "design.md" and ranks:  # it is about one process
            continue
        job = run_python(write_program(document, tmp_path), ranks=ranks)
        if document.name == "README.md":
            assert re.search(r"greedy return: 0\.[78]\d", job.output)
        if document.name == "design.md":
            assert "read (16, 4)" in job.output
        if document.name == "checkpoints.md":
            assert "began afresh" in job.output
            assert "2000000 {'q_table': (dtype('float64'), (16, 4)), 'visits':" in job.output


def test_a_document_that_was_run_before_goes_on_from_its_checkpoints(run_python, tmp_path):
    script = write_program(CHECKPOINTS, tmp_path)
    run_python(script)
    job = run_python(script)
    assert re.search(r"went on from .*/checkpoints/agent-0/f000001-c\d+-step000000002000000", job.output)
    assert "began afresh" not in job.output


def test_five_lines_read_a_checkpoint_with_numpy_alone(tmp_path, monkeypatch):
    reading, verifying = blocks(CHECKPOINTS)[-2:]
    assert len([line for line in reading.splitlines() if line]) == 5
    assert "dist_classicrl" not in reading + verifying and "np.load" in reading
    monkeypatch.chdir(tmp_path)
    agent = DistAsyncQLearning(seed=1, async_updates=False, logical_workers=2, dtype="float32")
    for _ in range(2):
        agent.train("FrozenLake-v1", total_steps=1_000, checkpoint_dir="checkpoints")
    known = {}
    exec(reading, known)
    assert known["body"]["steps"] == 2_000
    assert known["arrays"]["q_table"].tobytes() == agent.q_table.tobytes()
    assert known["arrays"]["visits"].tobytes() == agent.visits.tobytes()
    exec(verifying, known)
    path = known["newest"].parent / "visits.npy"
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    with pytest.raises(AssertionError):
        exec(verifying, known)
    known["body"]["steps"] += 1
    path.write_bytes(path.read_bytes()[:-1] + b"\x00")
    with pytest.raises(AssertionError):
        exec(verifying, known)


def rows(heading):
    """Return what is in backquotes in the first column of the table with this `heading`."""
    lines = CHECKPOINTS.read_text().split(heading)[1].splitlines()[2:]
    cells = [line.split(" | ")[0] for line in itertools.takewhile(lambda line: line.startswith("|"), lines)]
    return [name for cell in cells for name in re.findall("`([^`]+)`", cell)]


def test_the_tables_of_arguments_arrays_and_keys_are_complete(tmp_path):
    DistAsyncQLearning(seed=1).train("FrozenLake-v1", total_steps=1_000, checkpoint_dir=tmp_path)
    body = CheckpointFolder(tmp_path, "agent-0").read_newest().body
    assert sorted(rows("| key of `body` |")) == sorted(body)
    assert sorted(rows("| array | type, shape |")) == sorted(
        ["q_table", "visits", "legal", "exact", *STATE_ARRAYS]
    )
    parameters = inspect.signature(DistAsyncQLearning.train).parameters
    known = list(parameters)[list(parameters).index("checkpoint_dir") :]
    (first, *others) = rows("| argument of `train` |")
    assert [first, *(text.split("=")[0] for text in others)] == known
    for text in others:
        name, default = text.split("=")
        assert ast.literal_eval(default) == parameters[name].default


@pytest.fixture
def batch_script(tmp_path):
    """Start the batch script with stand-ins for mpirun and SLURM; give a function that ends it with a status.

    The stand-in of mpirun ends with `code`, or with 75 when it hears USR1.
    """
    (script,) = blocks(CHECKPOINTS, "bash")
    (tmp_path / "job.sh").write_text(script)
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    stand_ins = {
        "mpirun": 'trap "exit 75" USR1\necho "$*" > started\n[ -z "$CODE" ] || exit "$CODE"\n'
        "for i in $(seq 600); do sleep 0.05; done",
        "scontrol": 'echo "$*" >> asked',
    }
    for name, text in stand_ins.items():
        (bin_folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (bin_folder / name).chmod(0o755)
    processes = []

    def run(code="", warn=False):
        environment = {
            **os.environ,
            "PATH": f"{bin_folder}:{os.environ['PATH']}",
            "SLURM_JOB_ID": "17",
            "CODE": str(code),
        }
        process = subprocess.Popen(
            ["bash", "job.sh"],
            env=environment,
            cwd=tmp_path,
            start_new_session=True,
            stdout=subprocess.DEVNULL,
        )
        processes.append(process)
        if warn:
            deadline = time.monotonic() + 30.0
            while not ((tmp_path / "started").exists() and listens(process.pid, signal.SIGUSR1)):
                assert time.monotonic() < deadline and process.poll() is None
                time.sleep(0.01)
            process.send_signal(signal.SIGUSR1)  # to the script alone, as SLURM does with B:
        return process.wait(timeout=60.0)

    yield run
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def asked_of_slurm(tmp_path):
    path = tmp_path / "asked"
    return path.read_text().splitlines() if path.exists() else []


def test_the_batch_script_is_one_for_bash(tmp_path):
    (script,) = blocks(CHECKPOINTS, "bash")
    checked = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, timeout=30.0)
    assert (checked.returncode, checked.stderr) == (0, "")
    # SLURM takes its own lines from the top of the script only.
    lines = script.splitlines()
    last = max(number for number, line in enumerate(lines) if line.startswith("#SBATCH"))
    assert lines[0] == "#!/bin/bash" and all(line.startswith("#SBATCH --") for line in lines[1 : last + 1])


def test_the_warning_goes_on_to_mpirun_and_the_job_back_into_the_queue(batch_script, tmp_path):
    assert batch_script(warn=True) == 75
    assert (tmp_path / "started").read_text() == "--bind-to none python train.py\n"
    assert asked_of_slurm(tmp_path) == ["requeue 17"]


@pytest.mark.parametrize(
    ("code", "asked"), [(0, []), (75, ["requeue 17"]), (138, ["requeue 17"]), (1, []), (137, [])]
)
def test_only_what_was_stopped_in_order_is_queued_again(batch_script, tmp_path, code, asked):
    assert batch_script(code) == code
    assert asked_of_slurm(tmp_path) == asked
