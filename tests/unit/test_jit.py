"""Machine code on disk is used again, and never after a kernel changed, in whichever file it stands."""

import fcntl
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import numba
import numpy as np
import pytest
from numba.core import caching
from numba.core.registry import CPUDispatcher

import dist_classicrl
from dist_classicrl import _jit
from dist_classicrl._jit import machine_code
from dist_classicrl._random import below, mix
from dist_classicrl.environments.simulate import begin
from dist_classicrl.learning.behavior import expected_value
from dist_classicrl.learning.rules import find
from dist_classicrl.rules import registry
from dist_classicrl.tables.rows import value_of

pytestmark = pytest.mark.slow  # processes of their own compile anew

INNER = "from package._jit import jit, jit_inline\n\n@{how}\ndef inner(x):\n    return x + {number}\n"
OUTER = """
from package._jit import jit
from package.inner import inner

@jit
def outer(x):
    return 10 * inner(x)
"""
SCRIPT = """
from package.outer import outer
print(outer(1), sum(outer.stats.cache_hits.values()))
"""


def run(folder, script=SCRIPT, errors=""):
    environment = {key: value for key, value in os.environ.items() if key != "NUMBA_CACHE_DIR"}
    # The copied module takes what it needs of this package from wherever that is.
    environment["PYTHONPATH"] = os.pathsep.join([str(folder), str(Path(dist_classicrl.__file__).parents[1])])
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(errors) == 1 if errors else done.stderr == ""
    return [int(word) for word in done.stdout.split()]


@pytest.fixture
def package(tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "_jit").mkdir()
    for path in Path(_jit.__file__).parent.glob("*.py"):
        source = path.read_text().replace("dist_classicrl._jit.", "package._jit.")
        (package / "_jit" / path.name).write_text(source)
    (package / "outer.py").write_text(OUTER)
    (package / "inner.py").write_text(INNER.format(how="jit", number=1))
    return package


def test_a_change_in_another_file_is_noticed(tmp_path, package):
    assert run(tmp_path) == [20, 0]
    assert run(tmp_path) == [20, 1]
    (package / "inner.py").write_text(INNER.format(how="jit_inline", number=5))
    assert run(tmp_path) == [60, 0]


def test_damaged_machine_code_is_made_anew(tmp_path, package):
    run(tmp_path)
    indexes = list(package.rglob("*.nbi"))
    assert len(indexes) == 2
    for path in indexes:
        path.write_bytes(path.read_bytes()[:20])
    assert run(tmp_path) == [20, 0]
    assert run(tmp_path) == [20, 1]


def test_machine_code_of_other_types_in_its_place_is_not_taken(tmp_path, package):
    """As where another process begins the folder anew, after this one has read where to look."""
    whole = "from package.outer import outer\nprint(outer(1), sum(outer.stats.cache_hits.values()))"
    real = "from package.outer import outer\nprint(int(10 * outer(0.5)))"
    run(tmp_path, whole)
    run(tmp_path, real)
    first, second = sorted(package.rglob("outer*.nbc"))
    shutil.copy(second, first)
    assert run(tmp_path, whole) == [20, 0]


def test_machine_code_from_before_a_change_in_its_place_is_not_taken(tmp_path, package):
    """As where another process has written the index, and not yet the machine code."""
    assert run(tmp_path) == [20, 0]
    (package / "inner.py").write_text(INNER.format(how="jit_inline", number=5))
    late = "from numba.core import caching\ncaching.IndexDataCacheFile._save_data = lambda *arguments: None\n"
    assert run(tmp_path, late + SCRIPT) == [60, 0]
    assert run(tmp_path) == [60, 0]
    assert run(tmp_path) == [60, 1]


FAILS = """
import errno, os
from numba.core import caching
def fail(*arguments):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
caching.{what} = fail
"""
FULL = FAILS.format(what="IndexDataCacheFile.save")


@pytest.mark.parametrize(
    "missing, words",
    [
        ("_CacheLocator.ensure_cache_path", "There is no folder in which compiled code can be kept"),
        ("IndexDataCacheFile.save", "(No space left on device)"),
    ],
)
def test_where_machine_code_cannot_be_kept_it_is_made_each_time(tmp_path, package, missing, words):
    for _ in range(2):
        assert run(tmp_path, FAILS.format(what=missing) + SCRIPT, words) == [20, 0]


SLOWLY = """
import time
from numba.core.dispatcher import _FunctionCompiler
at_once = _FunctionCompiler.compile
def compile_slowly(*arguments):
    time.sleep(3.0)
    return at_once(*arguments)
_FunctionCompiler.compile = compile_slowly
"""


def test_one_of_several_processes_compiles_and_the_others_wait_for_it(tmp_path, package):
    with ThreadPoolExecutor() as pool:
        done = list(pool.map(lambda _: run(tmp_path, SLOWLY + SCRIPT), range(3)))
    assert sorted(done) == [[20, 0], [20, 1], [20, 1]]


TOGETHER = """
import stat, time
from pathlib import Path
from numba.core.dispatcher import _FunctionCompiler
from package._jit import machine_code

def come(place, n):
    (Path("met") / f"{place}-{os.getpid()}").touch()
    end = time.monotonic() + 60.0
    while len(list(Path("met").glob(f"{place}-*"))) < n:
        assert time.monotonic() < end, place
        time.sleep(0.01)

def lock_until(handle, end):
    if stat.S_ISREG(os.fstat(handle).st_mode):
        come("waits", 0)
    return lock(handle, end)

def compile(*arguments):
    try:
        os.mkdir("met/first")
    except FileExistsError:
        come("compiles", 2)
    else:
        come("waits", 3)
    return compile_now(*arguments)

lock, machine_code._lock_until = machine_code._lock_until, lock_until
compile_now, _FunctionCompiler.compile = _FunctionCompiler.compile, compile
from package.inner import inner
print(inner(1))
"""


def test_where_nothing_can_be_kept_those_who_waited_compile_at_the_same_time(tmp_path, package):
    (tmp_path / "met").mkdir()
    with ThreadPoolExecutor() as pool:
        done = list(pool.map(lambda _: run(tmp_path, FULL + TOGETHER, "(No space left on device)"), range(3)))
    assert done == [[2], [2], [2]]


NO_TURNS = """
import stat
from package._jit import machine_code
from package.inner import inner
print(inner(1))
def lock_until(handle, end):
    assert stat.S_ISDIR(os.fstat(handle).st_mode), "waits for a turn"
    return True
machine_code._lock_until = lock_until
"""


def test_where_something_could_not_be_kept_no_turn_is_waited_for(tmp_path, package):
    (package / "other").mkdir()  # whose code would be in another folder
    (package / "outer.py").rename(package / "other" / "outer.py")
    outer = SCRIPT.replace("package.outer", "package.other.outer")
    assert run(tmp_path, FULL + NO_TURNS + outer, "(No space left on device)") == [2, 20, 0]


# A user's game of two modules, of which a step is made; how often its kernel was taken from disk.
GAME = """
from typing import NamedTuple
import numba
import numpy as np
from dist_classicrl._jit import jit_for
from dist_classicrl.environments.problems.env import _advance
from dist_classicrl.environments.simulate import CompiledSimulator
import rewards

class Line(NamedTuple):
    length: int

@numba.njit
def reset(data, memory, random):
    return 0

@numba.njit
def step(data, memory, state, action, random):
    return min(state + 1, data.length - 1), rewards.reward(state) + MORE, state + 1 >= data.length

MORE = 0.0
line = CompiledSimulator.game("line", 4, 2, Line(4), reset, step)
{between}
kernel = jit_for(_advance, type(line.tables))
_, reward, _ = kernel(line.tables, np.zeros(0, np.int64), 3, 0, np.uint64(0), 2)
print(int(reward), sum(kernel.stats.cache_hits.values()))
"""
REWARDS = """
import numba

BASE = {base}

@numba.njit
def more(state):
    return {inner}

@numba.njit
def reward(state):
    return more(state) + BASE
"""


def play(folder, base=1, inner="0.0", between=""):
    (folder / "rewards.py").write_text(REWARDS.format(base=base, inner=inner))
    return start(folder, "game", GAME.format(between=between))


def start(folder, name, source):
    (folder / f"{name}.py").write_text(source)
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder / "code")}
    # Python takes kept bytecode for a source of the same size that was written within the same second.
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    environment["PYTHONPATH"] = str(Path(dist_classicrl.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, str(folder / f"{name}.py")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return [int(word) for word in done.stdout.split()]


def test_machine_code_with_a_users_functions_is_used_again_until_any_of_them_does_something_else(tmp_path):
    (tmp_path / "code").mkdir(mode=0o700)
    assert play(tmp_path) == [1, 0]
    assert play(tmp_path) == [1, 1]
    assert play(tmp_path, base=2) == [2, 0]
    assert play(tmp_path, inner="1.0 * (state == 3)") == [2, 0]
    # What is used from around a function may change after the game was made.
    assert play(tmp_path, between="MORE = 2.0") == [3, 0]
    assert play(tmp_path) == [1, 1]
    assert play(tmp_path, base=2) == [2, 1]


RULE = """
from typing import NamedTuple
from dist_classicrl import DistAsyncQLearning, TabularMDP
from dist_classicrl._jit import _of_users
from dist_classicrl.learning.rules.kernel import best_value, rule_function, update
from dist_classicrl.rules import LearningRule, register

class Paid(NamedTuple):
    fee: float = 0.5

@rule_function
def learn(rule, context, now, step, learned):
    return update(context, now, step.state, step.action, {target}, learned)

register(LearningRule("paid", Paid, learn))
line = TabularMDP(1, 1, [0, 1], [1.0], [0], [1.0], [True], [1.0])
agent = DistAsyncQLearning(algorithm=Paid(0.25), learning_rate=1.0, seed=1)
agent.train(line, total_steps=100)
hits = [kernel for kernel in _of_users.values() if sum(kernel.stats.cache_hits.values())]
print(int(100 * agent.q_table[0, 0]), len(hits))
"""


def test_loops_with_a_users_rule_are_kept(tmp_path):
    (tmp_path / "code").mkdir(mode=0o700)
    assert start(tmp_path, "rule", RULE.format(target="step.reward - rule.fee")) == [75, 0]
    assert start(tmp_path, "rule", RULE.format(target="step.reward - rule.fee")) == [75, 1]
    assert start(tmp_path, "rule", RULE.format(target="step.reward + rule.fee")) == [125, 0]


# A model that a function gives: how many of its loops were taken from disk, of those that were needed.
MODEL = """
from typing import NamedTuple
import numba
from dist_classicrl.environments.function_model import FunctionMDP

class Line(NamedTuple):
    reward: float

@numba.njit
def transition(data, state, action, number):
    return 1.0, min(state + 1, 3), data.reward + MORE, state >= 2

MORE = {more}
model = FunctionMDP(transition, 4, 1, 1, start=0, data=Line({reward}))
solved = int(round(model.solve(0.5).v[0]))
loops = [loop for loop in model._kernels() if loop.stats.cache_hits or loop.stats.cache_misses]
print(solved, sum(bool(loop.stats.cache_hits) for loop in loops), len(loops))
"""


def test_loops_of_a_model_that_a_function_gives_are_kept(tmp_path):
    (tmp_path / "code").mkdir(mode=0o700)
    solved, hits, loops = start(tmp_path, "model", MODEL.format(more=0.0, reward=4.0))
    assert (solved, hits) == (7, 0) and loops >= 3
    assert start(tmp_path, "model", MODEL.format(more=0.0, reward=8.0)) == [14, loops, loops]
    assert start(tmp_path, "model", MODEL.format(more=4.0, reward=8.0)) == [21, 0, loops]


def test_what_was_used_longest_ago_is_removed_where_users_functions_take_too_much(tmp_path, monkeypatch):
    monkeypatch.setattr(machine_code, "_MOST_BYTES", 250)
    for age, name in enumerate(["a.of-1", "b.of-1", "a.of-2", "c"]):
        for end in ("nbi", "1.nbc"):
            path = tmp_path / f"{name}.{end}"
            path.write_bytes(bytes(50))
            os.utime(path, (1e9 - age, 1e9 - age))
    os.utime(tmp_path / "a.of-2.nbi")  # used now
    machine_code._remove_oldest(tmp_path)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {f"{name}.{end}" for name in ("a.of-1", "a.of-2", "c") for end in ("nbi", "1.nbc")}


TRAINS = """
import logging, sys
from dist_classicrl import DistAsyncQLearning
logging.getLogger("dist_classicrl.progress").setLevel(logging.INFO)
logging.getLogger("dist_classicrl.progress").addHandler(logging.StreamHandler(sys.stdout))
DistAsyncQLearning(seed=1).train("FrozenLake-v1", total_steps=1_000)
"""


def test_a_first_training_says_that_it_compiles_and_compiles_only_what_it_calls(tmp_path):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    environment["PYTHONPATH"] = str(Path(dist_classicrl.__file__).parents[1])
    command = [sys.executable, "-c", TRAINS]
    said = [
        subprocess.run(
            command, env=environment, check=True, capture_output=True, text=True, timeout=120
        ).stdout
        for _ in range(2)
    ]
    assert said == [f"{machine_code.COMPILING}\n", ""]
    compiled = {path.name.split("-")[0] for path in tmp_path.rglob("*.nbi")}
    assert "loops.learn_steps" in compiled
    assert not compiled & {
        "kernels.settle_maps",
        "simulate._alias_slots",
        "kernels.pack_maps",
        "kernels.undo_maps",
        "kernels.reapply",
        "kernels.set_base",
    }


def test_a_function_without_an_entry_for_python_can_be_called_from_there():
    assert mix.targetoptions["no_cpython_wrapper"]
    assert mix(np.uint64(5)) == 13168350753275463132
    assert below(np.uint64(2**32 - 1), 4) == 3


class Pair(NamedTuple):
    first: int
    second: int


def test_only_kernels_are_optimized_to_the_end_and_not_their_entries():
    @_jit.jit_inline
    def part(numbers):
        total = 0
        for number in numbers:
            total += number
        return total

    @_jit.jit
    def kernel(numbers):
        return part(numbers)

    @_jit.jit
    def each(numbers):
        for number in numbers:
            yield 2 * number

    numbers = np.arange(100)
    assert kernel(numbers) == 4_950 and sum(each(numbers)) == 9_900
    (of_part,), (of_kernel,) = (function.inspect_llvm().values() for function in (part, kernel))
    defined = re.findall(
        r"^define [^\n]*@(\w+)\([^\n]* #(\d+) \{\n(.*?)^\}", of_kernel, re.MULTILINE | re.DOTALL
    )
    bodies = {"entry" if "cpython" in name else "kernel": (number, body) for name, number, body in defined}
    # The loop of the kernel takes several numbers at a time, into which its part was compiled before that.
    assert bodies["kernel"][1].count("load i64") > of_part.count("load i64") == 1
    assert f"attributes #{bodies['entry'][0]} = {{ noinline optnone }}" in of_kernel
    assert f"attributes #{bodies['kernel'][0]} = {{ noinline optnone }}" not in of_kernel


def test_tuples_of_derived_classes_are_found_by_the_quick_way(monkeypatch):
    asked = []
    by_types = CPUDispatcher._compile_for_args

    def compile_for(self, *arguments):
        asked.append(type(arguments[0]))
        return by_types(self, *arguments)

    monkeypatch.setattr(CPUDispatcher, "_compile_for_args", compile_for)
    kinds = [Pair, *(_jit.class_of_its_own(Pair) for _ in range(2))]
    total = numba.njit(lambda pair: pair.first + pair.second)
    for kind in kinds * 3:
        assert total(kind(1, 2)) == 3
    assert asked == kinds


def test_files_are_kept_one_at_a_time_and_nobody_waits_for_ever(tmp_path, monkeypatch):
    with machine_code._alone_in(str(tmp_path)):
        other = os.open(tmp_path, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    monkeypatch.setattr(machine_code, "_LOCK_SECONDS", 0.01)
    with machine_code._alone_in(str(tmp_path)):  # the other keeps the lock
        pass
    os.close(other)
    with machine_code._alone_in(str(tmp_path / "nowhere")):
        pass


LINEAR_ALGEBRA = """
import sys
import numba
import numpy as np
from dist_classicrl import DistAsyncQLearning

DistAsyncQLearning(seed=0).train("FrozenLake-v1", total_steps=1000)
print("scipy.linalg" in sys.modules, "dist_classicrl.learning.supersteps.share" in sys.modules)
product = numba.njit(lambda a: np.dot(a, a))(np.full((2, 2), 2.0))
spread = numba.njit(lambda a: np.cov(a))(np.array([[1.0, 2.0], [1.0, 4.0]]))
print(product.tolist(), spread.tolist())
"""


def test_a_training_loads_neither_linear_algebra_nor_what_it_does_not_use():
    done = subprocess.run(
        [sys.executable, "-c", LINEAR_ALGEBRA], capture_output=True, text=True, timeout=120.0
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["False False", "[[8.0, 8.0], [8.0, 8.0]] [[0.5, 1.5], [1.5, 4.5]]"]


NOTHING_COMPILED = """
from dist_classicrl import DistAsyncQLearning, TabularMDP
from dist_classicrl.errors import SettingsError

line, agent = TabularMDP(1, 1, [0, 1], [1.0], [0], [1.0], [True], [1.0]), DistAsyncQLearning(seed=1)
told = []
for env in (line, "dist_classicrl/CartPole-v0", "dist_classicrl/LostSales-v0"):
    try:
        agent.train(env, total_steps=10)
    except SettingsError as error:
        told.append(str(error))
assert len(told) == 3 and all("unset NUMBA_DISABLE_JIT" in each for each in told), told
assert line.solve(0.5).q.tolist() == [[1.0]]  # what needs no kernel of tables is done
"""


def test_where_nothing_is_compiled_a_training_says_what_to_unset():
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run(
        [sys.executable, "-c", NOTHING_COMPILED], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("function", [value_of, begin, expected_value])
def test_what_stands_for_jitted_code_refuses_calls_from_python_by_its_name(function):
    assert function.__module__.startswith("dist_classicrl.") and function.__doc__.startswith("Return the")
    with pytest.raises(NotImplementedError, match=f"^{function.__name__} is for jitted code$"):
        function(None, action=0)


@pytest.mark.parametrize("name", [*registry.BUILT_IN, "tables.blocks"])
def test_what_is_kept_is_of_kernels_as_they_are_written_now(name, tmp_path, monkeypatch):
    monkeypatch.setattr(machine_code, "_PACKAGE", tmp_path)
    module = find(name)[0].learn.__module__ if name in registry.BUILT_IN else f"dist_classicrl.{name}"
    source, home = Path(import_module(module).__file__).read_text(), tmp_path / "kernels.py"
    home.write_text(source)
    before = machine_code._kernel_sources.__wrapped__()
    home.write_text(f"{source}# changed")
    assert machine_code._kernel_sources.__wrapped__() != before


def test_constants_beside_kernels_tell_of_another_machine_code(tmp_path, monkeypatch):
    monkeypatch.setattr(machine_code, "_PACKAGE", tmp_path)
    for room in ("learning/deep", "cli"):
        (tmp_path / room).mkdir(parents=True)
    (tmp_path / "learning" / "kernels.py").write_text("from package._jit import jit\n")
    stamps = []
    for written in ("learning/deep/bits.py", "learning/bits.py", "cli/bits.py", "bits.py"):
        (tmp_path / written).write_text("BITS = 3\n")
        stamps.append(machine_code._kernel_sources.__wrapped__())
    assert len(set(stamps[:2])) == 2 and len(set(stamps[1:])) == 1
    (tmp_path / "random.py").write_text("@intrinsic\n")
    assert machine_code._kernel_sources.__wrapped__() != stamps[-1]


def test_a_folder_for_machine_code_is_tried_once_and_another_one_anew(tmp_path, monkeypatch):
    tried, attempt = [], caching.tempfile.TemporaryFile
    monkeypatch.setattr(
        caching.tempfile, "TemporaryFile", lambda dir: tried.append(Path(dir).parent) or attempt(dir=dir)
    )
    places = [tmp_path / "one", tmp_path / "other", tmp_path / "one"]
    for place in places:
        monkeypatch.setattr(numba.config, "CACHE_DIR", str(place))
        for function in (below.py_func, mix.py_func):
            assert Path(machine_code.kept(function, {}, lambda kinds: True).stats.cache_path).parent == place
    assert tried == places[:2]


def test_a_folder_that_cannot_be_written_to_is_not_taken_for_one_that_can(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "file"))
    for function in (below.py_func, mix.py_func):
        compiled = machine_code.kept(function, {}, lambda kinds: True)
        assert not Path(compiled.stats.cache_path or "/").is_relative_to(tmp_path)
    (tmp_path / "file").unlink()
    assert Path(machine_code.kept(below.py_func, {}, lambda kinds: True).stats.cache_path).parent == (
        tmp_path / "file"
    )


def test_a_function_that_exec_has_made_is_of_no_package():
    made = {}
    exec("def f(): pass", made)
    assert made["f"].__module__ is None and not _jit.is_of_package(made["f"])
    assert _jit.is_of_package(_jit.is_of_package)
