"""A card's kernels: in the CUDA simulator, compiled to PTX without a card, and on one where there is one."""

import ctypes
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="the extra gpu is not installed")

import card_games
import gymnasium
import numba
from card_ptx import needs_nvvm, ptx_of
from card_twin import (
    MODEL,
    NO_CARD,
    OnCore,
    OneOnCore,
    RowsOnCore,
    begin_at_0,
    learned,
    made,
    run_in_simulator,
)

from dist_classicrl import CompiledSimulator, DistAsyncQLearning, TabularMDP
from dist_classicrl.environments.sampling import packing
from dist_classicrl.errors import (
    DeviceError,
    DeviceMemoryError,
    DistClassicRLError,
    DivergenceError,
    EnvError,
    SettingsError,
)
from dist_classicrl.learning.card import cards, kernels, launching, plan, steps, transfer
from dist_classicrl.learning.card.in_copies import InCopies
from dist_classicrl.learning.card.in_one_table import InOneTable
from dist_classicrl.learning.card.in_rows import InRows
from dist_classicrl.learning.card.plan import Round, Shape, Units
from dist_classicrl.learning.card.runs import learn_runs
from dist_classicrl.learning.learner import Stream
from dist_classicrl.rules import DynaQ, NStepSarsa, UCBQLearning
from dist_classicrl.schedules import PerVisit
from dist_classicrl.settings import Settings

HERE = Path(__file__).parent


@pytest.mark.slow
def test_kernels_in_the_simulator_make_the_table_of_a_core_and_agents_learn_with_them(tmp_path):
    run_in_simulator("card_in_simulator.py", tmp_path)


class _Unlaunched:
    """Has all that kernels are called with, and compiles nothing for a core."""

    def add(self, number, source, seed):
        self._crews[number], self._bounds[number] = self._crew(number), self._first_bound


class _UnlaunchedRound(_Unlaunched, OnCore):
    def arguments(self):
        there, rule = self._crew_there(0), self._problem.parameters
        sizes = self._step_sizes_for(1)
        parts = there.parts._replace(step_sizes=sizes, block_sizes=sizes)
        moment = self._moment(Stream(np.uint64(3), 0), 0, Round(4, 2), Units.for_bound(2.0**20, 4))
        return rule, there.simulation, there.walkers, parts, *self._there(), self._moments([moment]), 0


class _Kept:
    """A kernel that keeps what it is called with."""

    def __init__(self, name, called):
        self._name, self._called = name, called

    def __getitem__(self, grid):
        return self

    def __call__(self, *arguments):
        self._called.setdefault(self._name, arguments)


class _UnlaunchedStep(_Unlaunched, OneOnCore):
    """Its kernels keep what each of them is called with."""

    def __init__(self, problem):
        self.called = {}
        super().__init__(problem)

    def _make_kernels(self):
        return kernels.WalkKernels(*(_Kept(name, self.called) for name in kernels.WalkKernels._fields))


class _UnlaunchedRows(_Unlaunched, RowsOnCore):
    """Likewise."""

    def __init__(self, problem):
        self.called = {}
        super().__init__(problem)

    def _make_kernel(self):
        return _Kept("rows", self.called)

    def _make_add_up(self):
        return _Kept("add_up", self.called)


def _parameters(value):
    """Return how many parameters of a kernel an argument becomes: of arrays 5, and 2 for each dimension."""
    if isinstance(value, tuple):
        return sum(map(_parameters, value))
    return 5 + 2 * value.ndim if isinstance(value, np.ndarray) else 1


@pytest.mark.slow
@needs_nvvm
@pytest.mark.parametrize(
    ("algorithm", "dtype", "in_shared", "by_letters"),
    [
        ("q_learning", np.float64, True, False),
        ("q_learning", np.float64, True, True),
        ("q_learning", np.float32, False, True),
        ("sarsa", np.float64, True, False),
    ],
)
def test_kernels_compile_to_ptx_with_exact_sums_and_the_parameters_that_they_are_given(
    algorithm, dtype, in_shared, by_letters
):
    settings = Settings(algorithm=algorithm, learning_rate=PerVisit(0.7))
    learner = made(_UnlaunchedRound, MODEL, settings, dtype=dtype)
    learner._shared_bytes = in_shared and learner._shared_bytes
    arguments = learner.arguments()
    kernel = kernels.python_of_round(learner._letters, np.dtype(dtype).itemsize, in_shared, by_letters)
    text = ptx_of(kernel, arguments)
    assert ".target sm_90" in text
    assert "fma.rn" not in text  # else a card would round once where a core rounds twice
    # A card adds halves of numbers up in shared memory at once, and whole ones in its own.
    added = ["shared.add.u32"] if in_shared else ["global.add.u32", "global.add.u64"]
    assert sorted(set(re.findall(r"atom\.(\w+\.add\.\w+)", text))) == added
    head = text[text.index(".entry") :]
    assert head[: head.index(")")].count(".param") == _parameters(arguments)
    assert len(re.findall(r"bar\.sync", text)) == 3
    memory = "shared" if in_shared else "global"
    assert text.count(f"atom.{memory}.exch.b32") == by_letters  # in place of a look at all entries
    assert text.count("ld.global.v4.u32") == 1  # a slot of the model, but for its rewards


@pytest.mark.parametrize(("entries", "by_letters"), [(512, False), (514, True)])
def test_a_copy_is_looked_through_where_each_entry_has_a_thread(entries, by_letters, monkeypatch):
    asked = []
    monkeypatch.setattr(kernels, "round_kernel", lambda *given: asked.append(given))
    monkeypatch.setattr(plan, "IN_SIMULATOR", plan.ON_CARD)
    made(_UnlaunchedRound, TabularMDP.garnet(entries // 2, 2, 2, seed=1), Settings())
    assert [given[3] for given in asked] == [by_letters]


@pytest.mark.slow
@needs_nvvm
@pytest.mark.parametrize(
    ("algorithm", "learning_rate"), [("q_learning", PerVisit(0.7)), ("sarsa", 0.1)], ids=str
)
def test_kernels_of_one_table_compile_to_ptx_with_exact_sums(algorithm, learning_rate):
    settings = Settings(algorithm=algorithm, learning_rate=learning_rate)
    learner = made(_UnlaunchedStep, MODEL, settings)
    learner._compile(0)
    python = {
        "walk": kernels.python_of_walk,
        "add": kernels.python_of_add,
        "move": kernels.python_of_move,
    }
    text = {}
    for name, arguments in learner.called.items():
        text[name] = ptx_of(python[name](), arguments)
        head = text[name][text[name].index(".entry") :]
        assert head[: head.index(")")].count(".param") == _parameters(arguments), name
        assert ".target sm_90" in text[name] and "fma.rn" not in text[name], name
    assert list(text) == ["walk", "move", "add"]
    for name in ("walk", "add"):
        assert "atom.global.add.u64" in text[name] and "atom.global.add.u32" in text[name]
    assert "atom.global.exch.b32" in text["move"] and "atom.global.add" not in text["move"]


@pytest.mark.slow
@needs_nvvm
@pytest.mark.parametrize("n_actions", [3, 8, 20])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_kernels_of_rows_compile_to_ptx_that_loads_a_row_at_once(dtype, n_actions):
    learner = made(
        _UnlaunchedRows, TabularMDP.garnet(6, n_actions, 2, seed=1), Settings(), dtype=dtype, is_alone=True
    )
    learner._compile(0)
    for name, python in (("rows", kernels.python_of_rows), ("add_up", kernels.python_of_sums)):
        arguments = learner.called[name]
        text = ptx_of(python(), arguments)
        head = text[text.index(".entry") :]
        assert head[: head.index(")")].count(".param") == _parameters(arguments)
        assert ".target sm_90" in text and "fma.rn" not in text and "atom" not in text
        if name == "rows":
            # Longer rows are searched in blocks that may begin anywhere.
            vector = "ld.global.v4.f32" if dtype is np.float32 else "ld.global.v2.f64"
            of_slot = dtype is np.float64  # as its two rewards are
            assert (text.count(vector) > of_slot) == (n_actions <= 16)
            check_loads_of_a_step(text)


def check_loads_of_a_step(text):
    """A load takes its time wherever it goes: of an entry and its count there is one, and of a slot."""
    ((end, count),) = [(one.end(), one[1]) for one in re.finditer(r"st\.global\.u32 \s*\[(\S+)\]", text)]
    entry = re.search(r"st\.global\.f\d\d \s*\[(\S+)\]", text[end:])[1]
    for place in (count, entry):
        assert len(re.findall(rf"ld\.global\.\S+ \s*\S+ \[{place}\]", text)) == 1, place
    assert text.count("ld.global.v4.u32") == 1


@pytest.mark.slow
@needs_nvvm
def test_a_compact_slot_is_one_load(monkeypatch):
    monkeypatch.setattr(packing, "_FEW_SLOTS", 0)
    monkeypatch.setattr(packing, "_COMPACT_FROM", 1)
    model = TabularMDP.garnet(6, 8, 2, seed=1)
    model = replace(model, outcome_reward=np.ones_like(model.outcome_reward))
    learner = made(_UnlaunchedRows, model, Settings(), dtype=np.float32, is_alone=True)
    learner._compile(0)
    arguments = learner.called["rows"]
    text = ptx_of(kernels.python_of_rows(), arguments)
    check_loads_of_a_step(text)
    assert "ld.global.v2.f64" not in text  # where rewards of wider ones are


def _compile_walk(step, data):
    """Compile a game's steps in one table for a card that need not be there, as a learner does."""
    game = CompiledSimulator.game("Four", 4, 2, data, begin_at_0, step)
    learner = made(_UnlaunchedStep, game, Settings(learning_rate=0.1))
    with launching.compiling(learner._problem):
        learner._compile(0)
        return ptx_of(kernels.python_of_walk(), learner.called["walk"])


@pytest.mark.slow
@needs_nvvm
@pytest.mark.parametrize(
    ("step", "says"),
    [
        (card_games.raising_rarely, r"raising_rarely \(card_games.py, line \d+\) raises ValueError"),
        (card_games.asserting, r"asserting \(card_games.py, line \d+\) raises AssertionError"),
        (card_games.calling, r"counted \(card_games.py, line \d+\) raises RuntimeError"),
        (
            card_games.raising_with_numbers,
            r"raising_with_numbers \(.*, line \d+\) raises ValueError",
        ),
        (card_games.asserting_with_number, r"asserting_with_number \(.*, line \d+\) raises AssertionError"),
        (card_games.catching, "AttributeError: .*try"),
        (card_games.drawing, "RecursionError"),
    ],
)
def test_what_a_card_cannot_do_is_refused_where_it_is_compiled(step, says):
    """A thread that raised would leave its kernel, and tables would be wrong without a word."""
    for _ in range(2):  # what was compiled before is refused, too
        with pytest.raises(DeviceError, match=f"Four .* cannot be compiled for a card.*says: {says}"):
            _compile_walk(step, card_games.Data(np.ones(4)))


@pytest.mark.slow
@needs_nvvm
def test_what_nobody_comes_to_is_compiled():
    assert ".target sm_90" in _compile_walk(card_games.never_raising, card_games.Data(np.ones(4)))


@pytest.mark.slow
@needs_nvvm
def test_what_a_package_raises_whose_name_begins_like_numbas_is_refused():
    path = Path(numba.__file__).parents[1] / "numba_games" / "steps.py"
    names = {"__name__": "numba_games.steps"}
    exec(compile(Path(card_games.__file__).read_text(), path, "exec"), names)
    with pytest.raises(DeviceError, match=r"says: counted \(steps.py, line \d+\) raises RuntimeError"):
        _compile_walk(names["calling"], names["Data"](np.ones(4)))


@pytest.mark.slow
@needs_nvvm
def test_what_a_kernel_of_the_users_own_called_before_is_refused(tmp_path):
    (tmp_path / "helpers.py").write_text(Path(card_games.__file__).read_text())
    run = """
import sys
import numba
import numpy as np
from numba import cuda
from numba.cuda import dispatcher

sys.path[:0] = sys.argv[1:]
dispatcher.get_current_device = lambda: type("Device", (), {"compute_capability": (9, 0)})
import helpers

arrays = numba.types.void(numba.int64[::1])

@cuda.jit("int64(int64)", device=True)
def for_cards_alone(x):
    return x + 1

def own(x):
    x[0] = helpers.counted(for_cards_alone(x[0]))

def another(x):
    x[1] = helpers.counted(for_cards_alone(x[0]))

cuda.compile_ptx(own, arrays, cc=(9, 0))
from dist_classicrl.learning.card import launching

def of_a_training(x):
    x[1] = helpers.counted(x[0])

try:
    with launching.exact_arithmetic():
        cuda.compile_ptx(of_a_training, arrays, cc=(9, 0))
except launching._RaisesError as error:
    print("refused:", error)
cuda.compile_ptx(another, arrays, cc=(9, 0))
"""
    told = subprocess.run(
        [sys.executable, "-c", run, tmp_path], capture_output=True, text=True, check=True
    ).stdout
    assert re.fullmatch(r"refused: counted \(helpers.py, line \d+\) raises RuntimeError\n", told)


@pytest.mark.slow
@needs_nvvm
def test_kernels_of_the_users_own_are_compiled_as_always(hopper):
    """Also while another thread trains, and after trainings in this one that overlapped."""
    from numba import cuda

    def own(x):
        if x[0] > 3.0:
            raise ValueError("above 3")
        x[0] = x[1] * x[2] + x[3]

    def with_number(x):
        if x[0] > 3.0:
            raise ValueError(x[0])

    def compiled(function):
        return cuda.compile_ptx(function, numba.types.void(numba.float64[::1]), cc=(9, 0))[0]

    other = launching.exact_arithmetic()
    with ThreadPoolExecutor(1) as pool:  # in which another enters later and leaves later
        one = launching.exact_arithmetic()
        one.__enter__()
        pool.submit(other.__enter__).result()
        with pytest.raises(launching._RaisesError, match=r"own \(.* raises ValueError"):
            pool.submit(compiled, own).result()
        one.__exit__(None, None, None)
        texts = [compiled(own)]
        with pytest.raises(Exception, match="return_dynamic_user_exc"):
            compiled(with_number)
        with pytest.raises(launching._RaisesError, match=r"with_number \(.* raises ValueError"):
            pool.submit(compiled, with_number).result()
        pool.submit(other.__exit__, None, None, None).result()
        texts.append(pool.submit(compiled, own).result())
    assert all("fma.rn.f64" in text and "raises" not in text for text in texts)


def ptx_of_runs(monkeypatch, **settings):
    """Return what many runs at once are compiled to for a card that need not be there."""
    compiled = []

    class Kernel:
        def __getitem__(self, grid):
            return self

        def __call__(self, *arguments):
            assert 8 * sum(map(_parameters, arguments)) < 4096  # bytes, more than which no older card takes
            if not compiled:
                compiled.append(ptx_of(kernels.python_of_runs(), arguments))

    monkeypatch.setattr(transfer, "on_card", lambda value: value)
    monkeypatch.setattr(transfer, "from_card", lambda array: array)
    monkeypatch.setattr(kernels, "runs_kernel", Kernel)
    learn_runs(MODEL, [1, 2], 10, Settings(**settings), NO_CARD)
    (text,) = compiled
    return text


@pytest.mark.slow
@needs_nvvm
@pytest.mark.parametrize("learning_rate", [PerVisit(0.7), 0.1])
def test_whole_runs_compile_to_ptx_with_exact_sums(monkeypatch, learning_rate):
    text = ptx_of_runs(monkeypatch, learning_rate=learning_rate)
    assert ".target sm_90" in text and "fma.rn" not in text


@pytest.mark.slow
@needs_nvvm
@pytest.mark.parametrize("algorithm", [UCBQLearning(horizon=5), DynaQ(bonus=0.1)], ids=str)
def test_whole_runs_of_rules_with_settings_compile_to_ptx(monkeypatch, algorithm):
    """All others are played: see test_card_ptx.py."""
    discount_factor = 1.0 if "UCB" in str(algorithm) else 0.9
    text = ptx_of_runs(monkeypatch, algorithm=algorithm, discount_factor=discount_factor)
    assert ".target sm_90" in text


@pytest.mark.slow
@needs_nvvm
def test_the_kernel_that_merges_compiles_to_ptx_with_exact_sums():
    arguments = made(_UnlaunchedRound, MODEL, Settings())._there()[0], True, 1
    text = ptx_of(kernels.python_of_merge(8, 32), arguments)
    assert "fma.rn" not in text and "mul.rn.f64" in text and len(re.findall(r"bar\.sync", text)) == 2


@pytest.fixture
def hopper(monkeypatch):
    """Let kernels be compiled for a card that is not there."""
    from numba.cuda import codegen, dispatcher

    kind = type("Device", (), {"compute_capability": (9, 0)})
    monkeypatch.setattr(dispatcher, "get_current_device", lambda: kind)
    library = codegen.CUDACodeLibrary
    monkeypatch.setattr(library, "_ensure_cc", lambda self, cc: cc or (9, 0, "a"))
    module = SimpleNamespace(initialized=True)
    monkeypatch.setattr(library, "get_cufunc", lambda self: SimpleNamespace(module=module, kernel=None))
    launching._kept.cache_clear()
    launching.check_exact.cache_clear()
    yield library
    launching._kept.cache_clear()
    launching.check_exact.cache_clear()


@needs_nvvm
def test_whether_products_and_sums_stay_apart_is_looked_at(hopper, monkeypatch):
    from numba.cuda import decorators

    monkeypatch.setattr(decorators, "_have_nvjitlink", lambda: True)  # as where a card is
    with launching.exact_arithmetic():
        launching.check_exact()
    launching.check_exact.cache_clear()
    with pytest.raises(DeviceError, match="contracts products and sums although it is asked not to"):
        launching.check_exact()  # with what is usual
    monkeypatch.setattr(launching, "_kernel", numba.cuda.jit)
    with (
        launching.exact_arithmetic(),
        pytest.raises(DeviceError, match="contracts products and sums although it is asked not to"),
    ):
        launching.check_exact()


def test_what_is_linked_is_what_was_compiled(monkeypatch):
    """Else it would be optimized once more, with contracted products and sums: that is usual."""
    from numba.cuda import decorators

    monkeypatch.setattr(decorators, "_have_nvjitlink", lambda: True)
    launching._kept.cache_clear()
    assert decorators.jit(lambda x: None).targetoptions["lto"] is True
    for typed in (*kernels.walk_kernels(), kernels.merge_kernel(), kernels.runs_kernel()):
        assert typed._kernel.targetoptions["lto"] is False
    options = kernels.round_kernel(1, 8, True, False, 100)._kernel.targetoptions
    assert options["lto"] is False
    assert options["max_registers"] * plan.ON_CARD.threads * 2 <= 65_536  # two blocks on a multiprocessor


def test_kernels_are_compiled_once_in_a_process():
    one, other = kernels.walk_kernels(), kernels.walk_kernels()
    assert one.walk._kernel is other.walk._kernel and one.walk is not other.walk
    rounds = [
        kernels.round_kernel(*given)._kernel
        for given in ((1, 8, True, False, 100), (1, 8, True, False, 200), (1, 8, True, True, 100))
    ]
    assert rounds[0] is rounds[1] is not rounds[2]
    assert kernels.merge_kernel()._kernel is kernels.merge_kernel()._kernel
    assert kernels.runs_kernel()._kernel is kernels.runs_kernel()._kernel


def test_classes_of_one_name_are_compiled_for_apart():
    def made_anew():
        class Rule(NamedTuple):
            number: int

        return Rule

    one, other = (numba.typeof(made_anew()(1)) for _ in range(2))
    assert str(one) == str(other) and one != other


@pytest.mark.filterwarnings("error")
def test_kernels_of_one_table_look_at_the_types_of_arguments_once(monkeypatch):
    """And nobody is warned that few walkers move at first."""
    from numba.cuda import dispatcher

    monkeypatch.setattr(dispatcher, "get_current_device", lambda: SimpleNamespace(compute_capability=(9, 0)))
    compiled, launched = [], []
    kind = dispatcher.CUDADispatcher

    def compile_for(kernel, types):
        kernel.overloads[types] = None
        compiled.append((kernel, types))

    monkeypatch.setattr(kind, "compile", compile_for)
    monkeypatch.setattr(kind, "call", lambda self, arguments, grid: launched.append((self, arguments, grid)))
    learner = made(_UnlaunchedStep, MODEL, Settings())
    learner._compile(0)
    arguments = learner.called["move"]
    move = kernels.walk_kernels().move
    with launching.used(NO_CARD):
        move[3, 32](*arguments)
        move[5, 64](*arguments)
    ((typed, types),) = compiled
    assert types == tuple(map(numba.typeof, arguments))
    assert [each[0] for each in launched] == [typed, typed]
    assert [(each[2].griddim[0], each[2].blockdim[0]) for each in launched] == [(3, 32), (5, 64)]
    assert isinstance(typed.targetoptions["extensions"][0], launching.NoneArguments)
    typed.overloads.clear()  # of which there is nothing to give back
    launching._kept.cache_clear()


class _Here:
    """Main memory as a card's, at an address of its own."""

    def __init__(self, size):
        self.size = size

    __cuda_memory__ = True
    device_ctypes_pointer = ctypes.c_void_p(1 << 40)
    device_pointer = device_pointer_value = handle = 1 << 40


def test_launches_differ_in_a_number_alone_and_have_the_arguments_of_an_ordinary_one(monkeypatch):
    """Those are made ready once, by names of numba-cuda that it may have no more."""
    from cuda import core
    from numba.cuda import dispatcher
    from numba.cuda.cudadrv import devicearray

    def there(array):
        return devicearray.DeviceNDArray(
            array.shape, array.strides, array.dtype, gpu_data=_Here(array.nbytes)
        )

    class Given(NamedTuple):
        table: object
        rate: float
        nothing: object
        pair: tuple

    given = Given(there(np.zeros((3, 4))), 0.5, None, (there(np.zeros(5, np.uint32)), 7))
    plain = Given(np.zeros((3, 4)), 0.5, None, (np.zeros(5, np.uint32), 7))
    kinds = numba.typeof(plain), numba.types.uint64, numba.types.int64
    arguments = given, np.uint64(3)
    compiled = object.__new__(dispatcher._Kernel)
    compiled.signature = numba.types.void(*kinds)
    compiled.extensions, compiled.debug, compiled.cooperative = [launching.NoneArguments()], False, False
    function = SimpleNamespace(kernel="the kernel")
    compiled._codelibrary = SimpleNamespace(get_cufunc=lambda: function)
    launched = []

    def launch(stream, config, kernel, *values):
        numbers = [getattr(value, "value", value) for value in values]
        launched.append((stream, config.grid, config.block, config.shmem_size, kernel, numbers))

    monkeypatch.setattr(dispatcher, "launch", launch)
    monkeypatch.setattr(core, "launch", launch)
    monkeypatch.setattr(dispatcher.driver, "_to_core_stream", lambda stream: "the stream")
    kernel = launching._kernel(lambda given, seed, number: None)
    kernel.overloads[kinds] = compiled
    kernel._specialized = True
    typed = launching.TypedOnce(kernel)
    typed._is_typed = True
    ready = typed.with_arguments(*arguments)
    with launching.used(NO_CARD):
        for number in (0, 5):
            ready((3, 32, 0, 64), number)
            typed[3, 32, 0, 64](*arguments, number)
    assert launched[0] == launched[1] and launched[2] == launched[3]
    assert [one[-1][-1] for one in launched] == [0, 0, 5, 5]
    assert launched[0][1:5] == ((3, 1, 1), (32, 1, 1), 64, "the kernel")
    assert launched[0][-1][:5] == [0, 0, 12, 8, 1 << 40]

    def gone(*_):
        raise AttributeError("_prepare_args")

    usual = dispatcher._Kernel._prepare_args
    monkeypatch.setattr(dispatcher._Kernel, "_prepare_args", gone)
    ready = typed.with_arguments(*arguments)
    monkeypatch.setattr(dispatcher._Kernel, "_prepare_args", usual)
    with launching.used(NO_CARD):
        ready((3, 32, 0, 64), 5)
    assert launched[4] == launched[3]
    kernel.overloads.clear()


def test_a_card_is_asked_for_shared_memory_beyond_what_is_usual(monkeypatch):
    from numba.cuda.cudadrv import driver

    asked = []
    library = SimpleNamespace(cuKernelSetAttribute=lambda *given: asked.append(given))
    monkeypatch.setattr(driver, "driver", library)
    function = SimpleNamespace(handle="the kernel", device=SimpleNamespace(id=3))
    compiled = SimpleNamespace(_codelibrary=SimpleNamespace(get_cufunc=lambda: function))
    kernel = SimpleNamespace(overloads={(): compiled})
    kernel.specialize = lambda *arguments: kernel
    for shared_bytes in (48 << 10, 232_448):
        typed = launching.TypedOnce(kernel, shared_bytes)
        typed._is_typed = False
        assert typed._typed(1) is kernel
        typed._typed(1)
    ((kind, size, *which),) = asked
    assert kind.name == "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES"
    assert (size, which) == (232_448, ["the kernel", 3])


def test_what_is_one_memory_here_is_one_on_the_card(monkeypatch):
    """The slots of a model are seen as numbers of three types: each copy would be read from elsewhere."""
    sent = []

    def to_device(array):
        sent.append(array.nbytes)
        return array.copy()

    monkeypatch.setattr(transfer, "is_simulated", lambda: False)
    monkeypatch.setattr(transfer, "cuda", SimpleNamespace(to_device=to_device))
    memory, other = np.arange(8, dtype=np.int32), np.arange(8.0)
    (half, some), sent[:] = transfer.on_card((other[:4], other[::2])), []
    assert not np.shares_memory(half, some) and some.tolist() == [0.0, 2.0, 4.0, 6.0]
    whole, nothing, (again, real, apart) = transfer.on_card(
        (memory, None, (memory, memory.view(np.float64), other))
    )
    assert sent == [32, 64] and nothing is None and apart.dtype == np.float64
    assert np.shares_memory(whole, real) and np.shares_memory(whole, again) and real.dtype == np.float64
    assert plan.bytes_of_arrays((memory, None, (memory, memory.view(np.float64), other))) == 96


def test_sums_of_halves_are_those_of_whole_numbers():
    numbers = np.random.default_rng(1).integers(-(2**62), 2**62, 2000)
    numbers[:4] = -1, 1, 2**32 - 1, -(2**32)
    low = high = 0
    for whole, total in zip(numbers, np.cumsum(numbers), strict=True):
        added, upper = steps.words_of(whole)
        upper = steps.with_carry(np.uint32(upper), np.uint32(added), np.uint32(low))
        low, high = (low + int(added)) % 2**32, (high + int(upper)) % 2**32
        assert steps.of_words(np.uint32(low), np.uint32(high)) == total


class CudaAPIError(Exception):
    """By its name it is a driver's."""

    __module__ = "numba.cuda.cudadrv.driver"


FULL = "[2] Call to cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY"
NEWER = "[222] Call to cuModuleLoadDataEx results in CUDA_ERROR_UNSUPPORTED_PTX_VERSION"
BROKEN = "[700] Call to cuMemcpyDtoH results in CUDA_ERROR_ILLEGAL_ADDRESS"


@pytest.mark.parametrize(
    ("raised", "told", "match"),
    [
        (CudaAPIError(FULL), DeviceMemoryError, "The memory of numba's CUDA simulator is full"),
        (CudaAPIError(BROKEN), DeviceError, "A call to numba's CUDA simulator failed: .*ILLEGAL_ADDRESS"),
        (CudaAPIError(NEWER), DeviceError, r"newer CUDA.*pip install --upgrade .numba-cuda\[cu13\]"),
        (CudaAPIError("Unsupported .version 9.5"), DeviceError, "cannot have what kernels are compiled to"),
        (KeyError(np.exp), DeviceError, r"a function calls np\.exp, which .* Write math\.exp in place of it"),
        (
            numba.core.errors.TypingError("no"),
            DeviceError,
            "cannot be compiled for a card.*says: TypingError.*no",
        ),
        (KeyError("exp"), DeviceError, "cannot be compiled for a card.*says: KeyError: .exp"),
        (
            NotImplementedError("(unicode_type, 'abc')"),
            DeviceError,
            "have arrays, numbers and flags for data",
        ),
        (MemoryError("of the host"), MemoryError, "of the host"),
        (SettingsError("of ours"), SettingsError, "of ours"),
    ],
)
def test_what_a_card_and_a_compiler_raise_is_told_apart(raised, told, match):
    problem = made(_UnlaunchedStep, MODEL, Settings())._problem
    with pytest.raises(told, match=match) as caught:
        with launching.used(NO_CARD), launching.compiling(problem):
            raise raised
    assert caught.type is told


def test_what_fails_first_is_told_where_a_card_fails_again_when_it_is_left(monkeypatch):
    class Left:
        def __enter__(self):
            return self

        def __exit__(self, *error):
            raise CudaAPIError("Call to cuCtxPopCurrent results in CUDA_ERROR_ILLEGAL_ADDRESS")

    monkeypatch.setattr(launching, "cuda", SimpleNamespace(gpus=[Left()]))
    card = replace(NO_CARD, name="H100", is_simulated=False)
    for raised, told, match in (
        (CudaAPIError(BROKEN), DeviceError, "cuMemcpyDtoH"),
        (DivergenceError("beyond"), DivergenceError, "beyond"),
    ):
        with pytest.raises(told, match=match), launching.used(card):
            raise raised


def test_a_card_that_fails_in_a_step_is_not_read_once_more():
    learner = made(_UnlaunchedStep, MODEL, Settings())
    reads = []

    def fail(*_):
        raise CudaAPIError(BROKEN)

    learner._steps = fail
    learner._held.has_changed = lambda: reads.append(1)
    with pytest.raises(DeviceError, match="cuMemcpyDtoH"):
        learner.learn(0, Stream(np.uint64(7), 0), 8)
    assert not reads

    def diverge(*_):
        raise DivergenceError("beyond")

    learner._steps = diverge
    with pytest.raises(DivergenceError):
        learner.learn(0, Stream(np.uint64(7), 0), 8)
    assert reads  # it is all there


def test_what_is_none_takes_the_place_of_a_pointer():
    prepare = launching.NoneArguments.prepare_args
    assert prepare(numba.types.none, None, stream=0, retr=[]) == (numba.types.uint64, 0)
    assert prepare(numba.types.int64, 5, stream=0, retr=[]) == (numba.types.int64, 5)


def _has_card():
    try:
        return not cards.cards()[0].is_simulated
    except DistClassicRLError:
        return False


IN_COPIES, IN_ONE_TABLE = (OnCore, InCopies, Shape(8, 64, 32)), (OneOnCore, InOneTable, Shape(8, 64, 1))
IN_ROWS = RowsOnCore, InRows, Shape(1, 1, 32)


@pytest.mark.card
@pytest.mark.skipif(not _has_card(), reason="there is no CUDA card")
@pytest.mark.parametrize("algorithm", ["q_learning", "sarsa", "double_q_learning"])
@pytest.mark.parametrize(
    ("kinds", "steps", "given"),
    [
        (IN_COPIES, 2_000_000, {}),
        (IN_ONE_TABLE, 2_000_000, {}),
        (IN_ROWS, 200_000, {"is_alone": True}),
        (IN_ROWS, 200_000, {"is_alone": True, "dtype": np.float32}),
    ],
    ids=["copies", "one table", "rows where one walks", "rows of float32 where one walks"],
)
def test_what_a_card_learns_is_what_a_core_does_to_the_bit(algorithm, kinds, steps, given):
    settings = Settings(algorithm=algorithm, discount_factor=0.9, learning_rate=PerVisit(0.7))
    on_core, on_card, shape = kinds
    one = learned(made(on_core, MODEL, settings, shape, **given), steps)
    other = learned(made(on_card, MODEL, settings, shape, card=cards.cards()[0], **given), steps)
    for name in one:
        assert np.array_equal(one[name], other[name]), name


@pytest.mark.card
@pytest.mark.skipif(not _has_card(), reason="there is no CUDA card")
@pytest.mark.parametrize(("states", "least"), [(1 << 14, 0.2), (1 << 19, 0.8)])
def test_rows_on_a_card_come_to_the_truth_where_many_walk(states, least):
    """Some visits are lost where two write to an entry at once, the more the fewer entries there are."""
    model = TabularMDP.garnet(states, 4, 2, seed=3)
    settings = Settings(discount_factor=0.9, epsilon=0.5, learning_rate=PerVisit(0.7))
    learner = made(InRows, model, settings, plan.ROWS_ON_CARD, is_alone=True, card=cards.cards()[0])
    found = learned(learner, 100_000 * states)
    often = found["updates"] > 1000
    error = (found["q"] - model.solve(0.9).q.ravel())[often]
    assert np.sqrt(np.mean(error**2)) < 0.1 and often.mean() > 0.5  # of values around 8
    assert least < found["updates"].sum() / (100_000 * states) <= 1.0


@pytest.mark.card
@pytest.mark.skipif(not _has_card(), reason="there is no CUDA card")
@pytest.mark.parametrize(
    ("step", "data", "says"),
    [
        (card_games.raising_rarely, card_games.Data(np.ones(4)), "raising_rarely .* raises ValueError"),
        (card_games.never_raising, card_games.Named(np.ones(4), "four"), "NotImplementedError: .*four"),
    ],
)
def test_a_game_that_a_card_cannot_play_is_refused_by_its_name(step, data, says):
    game = CompiledSimulator.game("Four", 4, 2, data, begin_at_0, step)
    assert DistAsyncQLearning(seed=1).train(env=game, steps=1000).steps == 1000
    with pytest.raises(DeviceError, match=f"Four .* cannot be compiled for a card.*says: {says}"):
        DistAsyncQLearning(device="cuda", seed=1).train(env=game, steps=1000)


@pytest.mark.card
@pytest.mark.skipif(not _has_card(), reason="there is no CUDA card")
@pytest.mark.parametrize("waits", [1, 16, 256])
def test_a_thread_on_a_card_has_no_larger_stack_than_was_counted(waits):
    learner = made(InCopies, MODEL, Settings(algorithm=NStepSarsa(n=waits)), card=cards.cards()[0])
    with launching.used(learner.card):
        stack = learner._round._kernel.get_local_mem_per_thread()
    assert 12 * learner._letters <= stack <= plan.bytes_of_stacks(learner._letters, 1)


@pytest.mark.slow
def test_the_benchmark_refuses_to_measure_where_no_card_is(tmp_path):
    environ = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    program = [sys.executable, str(HERE.parents[1] / "benchmarks" / "card.py")]
    done = subprocess.run(program, env=environ, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2 and done.stderr.startswith(
        "Nothing can be measured in numba's CUDA simulator"
    )


@pytest.mark.parametrize(
    "seeds, settings, error, says",
    [
        (3, None, SettingsError, "seeds must name one run at least, got 3"),
        ([], None, SettingsError, "seeds must name one run at least"),
        ([0.5], None, SettingsError, "seeds must be a whole number"),
        ([-1], None, SettingsError, "seeds must be a whole number"),
        ([1], {"discount_factor": 0.9}, SettingsError, "settings must be Settings or None"),
        ([1], Settings(state_size=100), SettingsError, "state_size=100.* Leave state_size out"),
        ([1], Settings(behavior=np.full((4, 4), 0.25)), SettingsError, "behavior"),
        ([1], Settings(algorithm="differential_q_learning"), EnvError, "end"),
        ([1], Settings(min_workers=2), DeviceError, "min_workers=2 asks for more.*Write min_workers=0"),
    ],
)
def test_what_train_refuses_many_runs_refuse(seeds, settings, error, says):
    lake = TabularMDP.from_gymnasium("FrozenLake-v1")
    with pytest.raises(error, match=says):
        learn_runs(lake, seeds, 10, settings, NO_CARD)


def test_many_runs_close_the_environment_that_they_make():
    closed = []

    class Stepped(gymnasium.Env):
        observation_space = gymnasium.spaces.Discrete(3)
        action_space = gymnasium.spaces.Discrete(2)

        def close(self):
            closed.append(self)

    with pytest.raises(DeviceError, match="is stepped through Gymnasium"):
        learn_runs(Stepped, [1], 10, None, NO_CARD)
    assert len(closed) == 1
