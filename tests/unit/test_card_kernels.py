"""A card's kernels: in the CUDA simulator, compiled to PTX without a card, and on one where there is one."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="the extra gpu is not installed")

import numba
from card_twin import NO_CARD, OnCore, OneOnCore, learned, made, run_in_simulator

from dist_classicrl import TabularMDP
from dist_classicrl.errors import DistClassicRLError
from dist_classicrl.learning.card import cards, kernels
from dist_classicrl.learning.card.in_copies import InCopies
from dist_classicrl.learning.card.in_one_table import InOneTable
from dist_classicrl.learning.card.plan import Round, Shape, Units
from dist_classicrl.learning.card.runs import learn_runs
from dist_classicrl.learning.learner import Stream
from dist_classicrl.schedules import PerVisit
from dist_classicrl.settings import Settings

HERE = Path(__file__).parent
MODEL = TabularMDP.garnet(6, 2, 2, seed=1)


@pytest.mark.slow
def test_kernels_in_the_simulator_make_the_table_of_a_core_and_agents_learn_with_them(tmp_path):
    run_in_simulator("card_in_simulator.py", tmp_path)


def _can_compile():
    from numba import cuda

    try:
        return bool(cuda.compile_ptx(lambda: None, (), cc=(9, 0)))
    except Exception:  # NVVM or NVRTC is not there, which is said in many ways
        return False


class _Unlaunched:
    """Has all that kernels are called with, and compiles nothing for a core."""

    def add(self, number, source, seed):
        self._crews[number] = self._crew(number)


class _UnlaunchedRound(_Unlaunched, OnCore):
    def arguments(self):
        simulation, parts, _ = self._parts(self._crews[0][1])
        parts = parts._replace(step_sizes=self._step_sizes_for(1))
        moment = self._moment(Stream(np.uint64(3), 0), 0, Round(4, 2), Units.for_bound(2.0**20, 4))
        walkers, problem = self._crews[0][0], self._problem
        return problem.parameters, simulation, walkers, parts, self._arrays(1), self._copies(1), moment


class _UnlaunchedStep(_Unlaunched, OneOnCore):
    """Its kernels keep what each of them is called with."""

    def _make_kernels(self):
        called = self.called = {}

        class Kernel:
            def __init__(self, name):
                self.name = name

            def __getitem__(self, grid):
                return self

            def __call__(self, *arguments):
                called.setdefault(self.name, arguments)

        return kernels.WalkKernels(*map(Kernel, kernels.WalkKernels._fields))


def _parameters(value):
    """Return how many parameters of a kernel an argument becomes: of arrays 5, and 2 for each dimension."""
    if isinstance(value, tuple):
        return sum(map(_parameters, value))
    return 5 + 2 * value.ndim if isinstance(value, np.ndarray) else 1


@pytest.mark.slow
@pytest.mark.skipif(
    not _can_compile(), reason="NVVM and NVRTC are not installed: pip install 'numba-cuda[cu13]'"
)
@pytest.mark.parametrize(
    ("algorithm", "dtype", "in_shared"),
    [("q_learning", np.float64, True), ("q_learning", np.float32, False), ("sarsa", np.float64, True)],
)
def test_kernels_compile_to_ptx_with_exact_sums_and_the_parameters_that_they_are_given(
    algorithm, dtype, in_shared, monkeypatch
):
    from numba import cuda
    from numba.cuda import dispatcher

    # Functions that a kernel calls are compiled for the card that is there, and there is none.
    hopper = type("Device", (), {"compute_capability": (9, 0)})
    monkeypatch.setattr(dispatcher, "get_current_device", lambda: hopper)
    settings = Settings(algorithm=algorithm, learning_rate=PerVisit(0.7))
    learner = made(_UnlaunchedRound, MODEL, settings, dtype=dtype)
    learner._in_shared = in_shared
    arguments = learner.arguments()
    kernel = kernels.python_of_round(learner._letters, np.dtype(dtype).itemsize, in_shared)
    signature = numba.types.void(*map(numba.typeof, arguments))
    with kernels.exact_arithmetic():
        text, _ = cuda.compile_ptx(kernel, signature, cc=(9, 0))
    assert ".target sm_90" in text
    assert "fma.rn" not in text  # else a card would round once where a core rounds twice
    where = "shared" if in_shared else "global"
    assert f"atom.{where}.add.u64" in text and f"atom.{where}.add.u32" in text
    head = text[text.index(".entry") :]
    assert head[: head.index(")")].count(".param") == _parameters(arguments)
    assert len(re.findall(r"bar\.sync", text)) == 3


@pytest.mark.slow
@pytest.mark.skipif(
    not _can_compile(), reason="NVVM and NVRTC are not installed: pip install 'numba-cuda[cu13]'"
)
@pytest.mark.parametrize(
    ("algorithm", "given"),
    [
        ("q_learning", {"is_alone": True, "dtype": np.float32}),
        ("double_q_learning", {"is_alone": True}),
        ("sarsa", {}),
    ],
)
def test_kernels_of_one_table_compile_to_ptx_with_exact_sums(algorithm, given, monkeypatch):
    from numba import cuda
    from numba.cuda import dispatcher

    hopper = type("Device", (), {"compute_capability": (9, 0)})
    monkeypatch.setattr(dispatcher, "get_current_device", lambda: hopper)
    settings = Settings(algorithm=algorithm, learning_rate=PerVisit(0.7) if given else 0.1)
    learner = made(_UnlaunchedStep, MODEL, settings, **given)
    learner._compile(0)
    python = {
        "walk": kernels.python_of_walk,
        "add": kernels.python_of_add,
        "move": kernels.python_of_move,
        "add_up": kernels.python_of_sums,
    }
    text = {}
    for name, arguments in learner.called.items():
        signature = numba.types.void(*map(numba.typeof, arguments))
        with kernels.exact_arithmetic():
            text[name], _ = cuda.compile_ptx(python[name](), signature, cc=(9, 0))
        head = text[name][text[name].index(".entry") :]
        assert head[: head.index(")")].count(".param") == _parameters(arguments), name
        assert ".target sm_90" in text[name] and "fma.rn" not in text[name], name
    assert list(text) == ["walk", "move", "add", "add_up"]
    for name in ("walk", "add"):
        assert "atom.global.add.u64" in text[name] and "atom.global.add.u32" in text[name]
    assert "atom.global.exch.b32" in text["move"] and "atom.global.add" not in text["move"]
    is_float32 = given.get("dtype") is np.float32
    assert ("cvt.rn.f32.f64" in text["move"]) == is_float32  # what is drawn, is drawn there


@pytest.mark.slow
@pytest.mark.skipif(
    not _can_compile(), reason="NVVM and NVRTC are not installed: pip install 'numba-cuda[cu13]'"
)
@pytest.mark.parametrize("learning_rate", [PerVisit(0.7), 0.1])
def test_whole_runs_compile_to_ptx_with_exact_sums(monkeypatch, learning_rate):
    from numba import cuda
    from numba.cuda import dispatcher

    hopper = type("Device", (), {"compute_capability": (9, 0)})
    monkeypatch.setattr(dispatcher, "get_current_device", lambda: hopper)
    compiled = []

    class Kernel:
        def __getitem__(self, grid):
            return self

        def __call__(self, *arguments):
            signature = numba.types.void(*map(numba.typeof, arguments))
            assert 8 * sum(map(_parameters, arguments)) < 4096  # bytes, more than which no older card takes
            if not compiled:
                compiled.append(cuda.compile_ptx(kernels.python_of_runs(), signature, cc=(9, 0))[0])

    monkeypatch.setattr(kernels, "on_card", lambda value: value)
    monkeypatch.setattr(kernels, "from_card", lambda array: array)
    monkeypatch.setattr(kernels, "runs_kernel", Kernel)
    learn_runs(MODEL, [1, 2], 10, Settings(learning_rate=learning_rate), NO_CARD)
    assert ".target sm_90" in compiled[0] and "fma.rn" not in compiled[0]


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
    learner = made(_UnlaunchedStep, MODEL, Settings(), is_alone=True)
    learner._compile(0)
    arguments = learner.called["move"]
    move = kernels.walk_kernels().move
    with kernels.used(NO_CARD):
        move[3, 32](*arguments)
        move[5, 64](*arguments)
    ((typed, types),) = compiled
    assert types == tuple(map(numba.typeof, arguments))
    assert [each[0] for each in launched] == [typed, typed]
    assert [(each[2].griddim[0], each[2].blockdim[0]) for each in launched] == [(3, 32), (5, 64)]
    assert isinstance(typed.targetoptions["extensions"][0], kernels.NoneArguments)
    typed.overloads.clear()  # of which there is nothing to give back


def test_what_is_none_takes_the_place_of_a_pointer():
    prepare = kernels.NoneArguments.prepare_args
    assert prepare(numba.types.none, None, stream=0, retr=[]) == (numba.types.uint64, 0)
    assert prepare(numba.types.int64, 5, stream=0, retr=[]) == (numba.types.int64, 5)


def _has_card():
    try:
        return not cards.cards()[0].is_simulated
    except DistClassicRLError:
        return False


@pytest.mark.card
@pytest.mark.skipif(not _has_card(), reason="there is no CUDA card")
@pytest.mark.parametrize("algorithm", ["q_learning", "sarsa", "double_q_learning"])
def test_a_cards_table_is_that_of_a_core_to_the_bit(algorithm):
    settings = Settings(algorithm=algorithm, discount_factor=0.9, learning_rate=PerVisit(0.7))
    shape = Shape(8, 64, 32)
    here = made(OnCore, MODEL, settings, shape)
    there = made(InCopies, MODEL, settings, shape, card=cards.cards()[0])
    one, other = learned(here, 2_000_000), learned(there, 2_000_000)
    for name in one:
        assert np.array_equal(one[name], other[name]), name


@pytest.mark.card
@pytest.mark.skipif(not _has_card(), reason="there is no CUDA card")
@pytest.mark.parametrize("given", [{}, {"is_alone": True}, {"is_alone": True, "dtype": np.float32}])
@pytest.mark.parametrize("algorithm", ["q_learning", "sarsa", "double_q_learning"])
def test_one_table_on_a_card_is_that_of_a_core_to_the_bit(algorithm, given):
    settings = Settings(algorithm=algorithm, discount_factor=0.9, learning_rate=PerVisit(0.7))
    shape = Shape(8, 64, 1)
    here = made(OneOnCore, MODEL, settings, shape, **given)
    there = made(InOneTable, MODEL, settings, shape, card=cards.cards()[0], **given)
    one, other = learned(here, 2_000_000), learned(there, 2_000_000)
    for name in one:
        assert np.array_equal(one[name], other[name]), name


@pytest.mark.slow
def test_the_benchmark_refuses_to_measure_where_no_card_is(tmp_path):
    environ = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    program = [sys.executable, str(HERE.parents[1] / "benchmarks" / "card.py")]
    done = subprocess.run(program, env=environ, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2 and done.stderr.startswith(
        "Nothing can be measured in numba's CUDA simulator"
    )
