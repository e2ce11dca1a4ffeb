"""The code in the documents runs as it stands: a page's Python as one program, and batch scripts."""

import ast
import inspect
import itertools
import json
import os
import re
import shlex
import signal
import subprocess
import time
from pathlib import Path

import click
import documents
import pytest
from card_twin import OnCore, RowsOnCore, made
from documents import ROOT
from signal_masks import listens

from dist_classicrl import DistAsyncQLearning, TabularMDP
from dist_classicrl.checkpoint.arrays import DTYPES
from dist_classicrl.checkpoint.folder import CheckpointFolder
from dist_classicrl.cli.commands.launch import command as launch
from dist_classicrl.cli.config import tomllib
from dist_classicrl.cli.options import OPTIONS
from dist_classicrl.engines.saving import MODES
from dist_classicrl.environments.resolve import resolve
from dist_classicrl.learning.compiled import CompiledLearner
from dist_classicrl.learning.interleaved import InterleavedLearner
from dist_classicrl.learning.kinds import new_learner, problem_of
from dist_classicrl.learning.learner import TAKEN
from dist_classicrl.learning.rates import Rates
from dist_classicrl.learning.state import MASKS, REPLAY_ARRAYS, RULE_ARRAYS, stack_states
from dist_classicrl.membership.events import KINDS
from dist_classicrl.settings import ByRule, Settings

CHECKPOINTS = ROOT / "docs" / "checkpoints.md"
DESIGN = ROOT / "docs" / "design.md"
FAULT_TOLERANCE = ROOT / "docs" / "fault-tolerance.md"
# Arguments of train that have nothing to do with checkpoints.
ELSEWHERE = ("leave_signals", "callbacks", "placement", "walkers", "partition")
# Pages whose programs are for several ranks, too.
TOGETHER = [ROOT / "README.md", ROOT / "docs" / "tutorial.md", CHECKPOINTS, FAULT_TOLERANCE]
PROGRAM = Path(documents.__file__)


def texts(page, language="python"):
    return [block.text for block in documents.blocks(page, language)]


def check_what_they_print(folder, rank=0):
    """Check what the programs in `TOGETHER` printed, wherever they ran."""
    readme, tutorial, checkpoints, faults = (documents.output(folder, page, rank) for page in TOGETHER)
    assert "lost on the way: nobody" in faults
    assert faults.count("nobody has failed") == 1
    assert re.search(r"greedy return: 0\.[78]\d", readme)
    assert "began afresh" in checkpoints
    assert "2000000 {'q_table': (dtype('float64'), (16, 4)), 'visits':" in checkpoints
    assert "went on from None" in tutorial
    (share,) = re.findall(r"([\d.]+)% of the optimal value", tutorial)
    assert 90.0 < float(share) <= 100.0


def test_the_python_of_all_pages_runs(run_python, tmp_path):
    pages = [page for page in documents.PAGES if texts(page)]
    assert {*TOGETHER, DESIGN} < set(pages)
    # The design notes read a model file of any agent's.
    agent = DistAsyncQLearning(state_size=16, action_size=4)
    (tmp_path / DESIGN.stem).mkdir()
    agent.save_model(tmp_path / DESIGN.stem / "frozen_lake.npz")
    run_python(PROGRAM, tmp_path, *pages, timeout=900.0)
    assert "(16, 4)" in documents.output(tmp_path, DESIGN)
    check_what_they_print(tmp_path)
    # The same command again goes on from the checkpoints that are there.
    run_python(PROGRAM, tmp_path, CHECKPOINTS)
    again = documents.output(tmp_path, CHECKPOINTS)
    assert re.search(r"went on from .*/checkpoints/agent-0/f000001-c\d+-step000000002000000", again)
    assert "began afresh" not in again


def test_the_python_of_pages_about_ranks_runs_on_three(run_python, tmp_path):
    run_python(PROGRAM, tmp_path, *TOGETHER, ranks=3)
    check_what_they_print(tmp_path)
    for rank in (1, 2):
        assert documents.output(tmp_path, ROOT / "README.md", rank) == ""
        assert documents.output(tmp_path, FAULT_TOLERANCE, rank).count("nobody has failed") == 1


@pytest.mark.core
def test_five_lines_read_a_checkpoint_with_numpy_alone(tmp_path, monkeypatch):
    reading, verifying = texts(CHECKPOINTS)[-2:]
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


def rows(heading, document=CHECKPOINTS):
    """Return what is in backquotes in the first column of the table with this `heading`."""
    lines = document.read_text().split(heading)[1].splitlines()[2:]
    cells = [line.split(" | ")[0] for line in itertools.takewhile(lambda line: line.startswith("|"), lines)]
    return [name for cell in cells for name in re.findall("`([^`]+)`", cell)]


def states_of_learners():
    """Return the state of a learner of each kind that can go on where it was, as a checkpoint has it."""
    model, settings = TabularMDP.garnet(6, 2, 2, seed=1), Settings(algorithm="n_step_sarsa", replay_ratio=0.0)
    source = resolve(model, 1, None)
    problem = problem_of(source, settings, Rates(settings, 1))
    learners = [
        CompiledLearner(problem_of(source, Settings(replay_ratio=0.5), Rates(settings, 1))),
        CompiledLearner(problem),
        InterleavedLearner(problem),
        new_learner(problem_of(source, settings, Rates(settings, 1), walkers=4)),
    ]
    for learner in learners:
        learner.add(0, source, 0)
    learners += [made(OnCore, model, settings), made(RowsOnCore, model, settings, rows=True)]
    return [stack_states([learner.state(0)]) for learner in learners]


@pytest.mark.core
def test_the_table_of_arrays_is_that_of_what_learners_save():
    table = CHECKPOINTS.read_text().split("| array | type, shape |")[1].split("\n\n")[0]
    told = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", table, re.MULTILINE))
    states = states_of_learners()
    saved = {name for state in states for name in state}
    assert {"position", "bound", "walkers", *RULE_ARRAYS[:2], *REPLAY_ARRAYS} <= saved
    assert set(rows("| array | type, shape |")) == {*TAKEN, MASKS, *RULE_ARRAYS, *saved}
    for name, array in ((name, array) for state in states for name, array in state.items()):
        shapes = re.findall(r"\((.*?)\)", told[name])
        assert array.dtype.name in told[name] or "the same" in told[name], name
        assert not shapes or array.ndim in [shape.count(",") + 1 for shape in shapes], name
    (modes,) = re.findall(r"^\| `mode` \| (.*)", CHECKPOINTS.read_text(), re.MULTILINE)
    assert sorted(re.findall('`"(.*?)"`', modes)) == sorted(MODES)
    (types,) = re.findall(r"of the types (.*?), and nothing", CHECKPOINTS.read_text(), re.DOTALL)
    assert re.findall("`(.*?)`", types) == list(DTYPES)


@pytest.mark.core
def test_the_tables_of_arguments_and_keys_are_complete(tmp_path):
    DistAsyncQLearning(seed=1).train("FrozenLake-v1", total_steps=1_000, checkpoint_dir=tmp_path)
    body = CheckpointFolder(tmp_path, "agent-0").read_newest().body
    assert sorted(rows("| key of `body` |")) == sorted(body)
    assert f"`format_version` | `{json.dumps(body['format'])}`, {body['format_version']} |" in (
        CHECKPOINTS.read_text()
    )
    parameters = inspect.signature(DistAsyncQLearning.train).parameters
    known = list(parameters)[list(parameters).index("checkpoint_dir") :]
    (first, *others) = rows("| argument of `train` |")
    assert [first, *(text.split("=")[0] for text in others)] == [
        name for name in known if name not in ELSEWHERE
    ]
    check_defaults(others, parameters)


def check_defaults(texts, parameters):
    """Check that each text is `name=default`."""
    for text in texts:
        name, default = text.split("=")
        assert ast.literal_eval(default) == parameters[name].default


@pytest.mark.core
def test_the_tables_of_settings_events_and_options_are_complete():
    parameters = inspect.signature(DistAsyncQLearning).parameters
    names = list(parameters)
    settings = rows("| argument | meaning |", FAULT_TOLERANCE)
    assert {text.split("=")[0] for text in settings} == set(names[names.index("timeout") :])
    check_defaults(settings, parameters)
    assert sorted(rows("| kind of event |", FAULT_TOLERANCE)) == sorted(KINDS)
    options = [param for param in launch.params if isinstance(param, click.Option)]
    known = [word for option in options for word in option.opts]
    said = [re.match(r"-[-\w]+", word) for word in rows("| option | default |", FAULT_TOLERANCE)]
    assert sorted(word[0] for word in said if word) == sorted([*known, "-m"])
    table = FAULT_TOLERANCE.read_text().split("| option | default |")[1]
    for option in options:
        if isinstance(option.default, (int, float, Path)) and not isinstance(option.default, bool):
            told = re.search(rf"`{option.opts[-1]} .*?\| (.*?) \|", table)
            assert str(option.default).removesuffix(".0") in told[1], option.name


@pytest.mark.core
def test_the_table_of_keys_is_complete_with_its_defaults():
    table = (ROOT / "docs" / "command-line.md").read_text().split("| key of a file |")[1]
    told = dict(re.findall(r"^\| `(\w+)` \| (?:`(.+?)` )?\| ", table, re.MULTILINE))
    lines = "\n".join(f"{name} = {text}" for name, text in told.items() if text)
    assert set(told) == set(OPTIONS)
    assert tomllib.loads(lines) == {
        name: option.kind.to_data(
            option.default.usual if isinstance(option.default, ByRule) else option.default
        )
        for name, option in OPTIONS.items()
        if option.default not in (None, ())
    }


@pytest.fixture
def batch_script(request, tmp_path):
    """Start a batch script with stand-ins for what it runs; give a function that ends it with a status.

    The stand-in of mpirun, and of Python as the launcher, ends with `code`, or with 75 when it hears
    USR1. The document is the one that the test asks for.
    """
    (script,) = texts(getattr(request, "param", CHECKPOINTS), "bash")
    (tmp_path / "job.sh").write_text(script)
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    job = (
        'trap "exit 75" USR1\necho "$*" > started\n[ -z "$CODE" ] || exit "$CODE"\n'
        "for i in $(seq 600); do sleep 0.05; done"
    )
    stand_ins = {"mpirun": job, "python": job, "scontrol": 'echo "$*" >> asked'}
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
        return process.wait(timeout=240.0)

    yield run
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def asked_of_slurm(tmp_path):
    path = tmp_path / "asked"
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.parametrize("document", [CHECKPOINTS, FAULT_TOLERANCE], ids=lambda path: path.stem)
def test_the_batch_script_is_one_for_bash(document):
    (script,) = texts(document, "bash")
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


@pytest.mark.parametrize("batch_script", [FAULT_TOLERANCE], indirect=True)
def test_the_warning_goes_on_to_launch_and_the_job_back_into_the_queue(batch_script, tmp_path):
    assert batch_script(warn=True) == 75
    package, *words = shlex.split((tmp_path / "started").read_text())[1:]
    assert (package, words.pop(0)) == ("dist_classicrl", "launch")
    script = launch.make_context("launch", words).params["script"]
    assert script == ("train.py", "--checkpoint-dir", "saved")
    assert asked_of_slurm(tmp_path) == ["requeue 17"]


@pytest.mark.parametrize("batch_script", [FAULT_TOLERANCE], indirect=True)
@pytest.mark.parametrize("code", [0, 1])
def test_what_launch_ends_otherwise_is_not_queued_again(batch_script, tmp_path, code):
    assert batch_script(code) == code
    assert asked_of_slurm(tmp_path) == []


@pytest.mark.parametrize(
    ("code", "asked"), [(0, []), (75, ["requeue 17"]), (138, ["requeue 17"]), (1, []), (137, [])]
)
def test_only_what_was_stopped_in_order_is_queued_again(batch_script, tmp_path, code, asked):
    assert batch_script(code) == code
    assert asked_of_slurm(tmp_path) == asked
