"""What Python passes over when it ends: what numba made, and never what a program wants written."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import dist_classicrl

pytestmark = pytest.mark.slow

TELL = "import atexit, gc\natexit.register(lambda: print('spared', gc.get_freeze_count()))\n"
IMPORT = "from dist_classicrl import DistAsyncQLearning\n"
IN_A_FUNCTION = "def main():\n    from dist_classicrl import DistAsyncQLearning\nmain()\n"
TRAIN = (
    f"{IMPORT}DistAsyncQLearning(seed=1).train('FrozenLake-v1', total_steps=100, checkpoint_dir='saved')\n"
)
COMMAND = """
import sys
from dist_classicrl.cli.main import main
sys.argv = ["dist-classicrl", "train", "FrozenLake-v1", "--total-steps", "100", "--quiet", "--out", "run"]
main()
"""

CIRCLE = """
import os, zipfile
class Own:
    def __del__(self, open=os.open, write=os.write, how=os.O_CREAT | os.O_WRONLY):
        write(open("kept", how), b"all of it")
def writing():
    try:
        yield
    finally:
        Own()
class Awaited:
    def __await__(self): return writing()
async def awaiting():
    await Awaited()
class One: pass
one = One()
one.itself = one
one.thing = """
KEPT = {
    "text": "open('kept', 'w')\none.thing.write('all of it')\n",
    "bytes": "open('kept', 'wb')\none.thing.write(b'all of it')\n",
    "archive": "zipfile.ZipFile('kept', 'w')\none.thing.writestr('name', 'all of it')\n",
    "own": "Own()\n",
    "generator": "writing()\nnext(one.thing)\n",
    "coroutine": "awaiting()\none.thing.send(None)\n",
}


def told(folder, program):
    """Return what a script prints, and at its end how many objects are spared."""
    (folder / "script.py").write_text(TELL + program)
    made = subprocess.run(
        [sys.executable, "script.py"],
        env={**os.environ, "PYTHONPATH": str(Path(dist_classicrl.__file__).parents[1])},
        cwd=folder,
        check=True,
        timeout=120,
        capture_output=True,
        text=True,
    )
    *said, last = made.stdout.splitlines()
    assert last.startswith("spared ") and not made.stderr
    return said, int(last.split()[1])


@pytest.mark.parametrize(
    "program", [IMPORT, IN_A_FUNCTION, TRAIN, COMMAND], ids=["import", "function", "training", "command"]
)
def test_what_numba_made_is_spared_at_the_end_and_not_before(tmp_path, program):
    said, count = told(tmp_path, program + "print(gc.get_freeze_count())\n")
    assert said == ["0"] and count > 50_000


def test_without_numba_there_is_nothing_to_spare(tmp_path):
    assert told(tmp_path, "import dist_classicrl\n") == ([], 0)


@pytest.mark.parametrize("is_made_first", [True, False])
@pytest.mark.parametrize("what", KEPT)
def test_what_ends_something_when_it_is_freed_does_so_in_a_circle_too(tmp_path, what, is_made_first):
    make = CIRCLE + KEPT[what]
    _, count = told(tmp_path, make + IMPORT if is_made_first else IMPORT + make)
    assert count == 0 and b"all of it" in (tmp_path / "kept").read_bytes()


def test_where_native_code_that_is_not_known_is_loaded_all_is_freed(tmp_path):
    """Its objects may be written as they are freed, and be nothing that Python looks through for circles."""
    _, count = told(
        tmp_path,
        f"{IMPORT}import sys, types\nfrom importlib.machinery import ExtensionFileLoader, ModuleSpec\n"
        "stranger = sys.modules['stranger'] = types.ModuleType('stranger')\n"
        "stranger.__spec__ = ModuleSpec('stranger', ExtensionFileLoader('stranger', 'stranger.so'))\n",
    )
    assert count == 0


def test_classes_that_cannot_be_looked_at_are_no_error(tmp_path):
    _, count = told(
        tmp_path,
        f"{IMPORT}class Kind(type):\n    def __eq__(self, other): return self is other\n"
        "class Odd(metaclass=Kind): pass\nodd = Odd()\nodd.itself = odd\n",
    )
    assert count == 0
