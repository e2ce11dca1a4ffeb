"""device=: what it may be, which card a rank takes, and why a card cannot be had, each by name."""

import importlib
import logging
import math
import os
import subprocess
import sys
from types import SimpleNamespace

import gymnasium
import numba
import numpy as np
import pytest

from dist_classicrl import CompiledSimulator, DistAsyncQLearning, TabularMDP
from dist_classicrl.agent.settling import Settling
from dist_classicrl.engines import loops
from dist_classicrl.engines.progress import Observer
from dist_classicrl.engines.roles.messages import Leave
from dist_classicrl.engines.run import Run
from dist_classicrl.engines.server.training import AsyncRoles
from dist_classicrl.engines.server.worker import Worker
from dist_classicrl.environments.resolve import resolve
from dist_classicrl.errors import DeviceError, DeviceMemoryError, MissingExtraError, SettingsError
from dist_classicrl.learning.card import cards as _cards
from dist_classicrl.learning.card import choosing
from dist_classicrl.learning.card.cards import Card
from dist_classicrl.learning.card.choosing import card_for, letters_of, why_not
from dist_classicrl.learning.card.plan import check_memory
from dist_classicrl.learning.compiled import CompiledLearner
from dist_classicrl.learning.kinds import LearnerKind, register, unregister
from dist_classicrl.learning.rates import Rates
from dist_classicrl.learning.rules import find
from dist_classicrl.membership.view import View
from dist_classicrl.rules import NStepSarsa
from dist_classicrl.settings import Settings

MODEL = TabularMDP.garnet(6, 2, 2, seed=1)
CARDS = [Card(number, "H100", (9, 0), 80 << 30, 132) for number in range(2)]


def source_of(env=MODEL):
    return resolve(env, 1, None)


def test_a_device_is_one_of_three_words():
    assert [Settings(device=word).device for word in ("cpu", "cuda", "auto")] == ["cpu", "cuda", "auto"]
    with pytest.raises(SettingsError, match="device must be one of 'cpu', 'cuda', 'auto', got 'tpu'"):
        Settings(device="tpu")
    with pytest.raises(SettingsError, match="device='gpu' is written device='cuda'"):
        Settings(device="gpu")


@pytest.mark.parametrize("named", ["cuda:1", "cuda:0,1", [0, 1], 2])
def test_several_cards_in_one_rank_are_refused_by_name(named):
    with pytest.raises(SettingsError, match="Each rank takes one.*several cards in one rank cannot be had"):
        Settings(device=named)


def test_nccl_stays_refused_with_cards():
    with pytest.raises(SettingsError, match="'nccl'.*device='cuda'.*Write communication_backend='mpi'"):
        Settings(device="cuda", communication_backend="nccl")


@pytest.mark.parametrize(
    ("given", "engine", "why"),
    [
        ({}, "sharded", 'rows that they share or own.*Write placement="replicated"'),
        ({}, "supersteps", "rows that they share or own"),
        ({}, "decentralized", 'ranks without a server.*Write topology="flat"'),
        ({}, "gossip", "the engine 'gossip' is none that knows of cards. Take one of the library's"),
        ({"replay_ratio": 1.0}, "local", "replay_ratio=1.*Write replay_ratio=0"),
        ({"algorithm": "dyna_q"}, "local", "'dyna_q' keeps a model.*as each run of learn_runs has"),
        ({"algorithm": "differential_q_learning"}, "local", "'differential_q_learning' shares"),
        ({"algorithm": "ucb_q_learning"}, "local", "'ucb_q_learning' looks at the entry"),
        ({"algorithm": "td"}, "local", "'td' moves all actions of a state at once"),
        ({"algorithm": "monte_carlo"}, "local", "'monte_carlo' does not declare"),
        ({"algorithm": NStepSarsa(n=300)}, "local", "lets 300 steps wait, and at most 256 may"),
    ],
)
def test_what_cannot_be_on_a_card_is_named_with_the_reason(given, engine, why):
    import re

    assert re.search(why, why_not(source_of(), Settings(**given), engine), re.DOTALL)


@pytest.mark.parametrize(
    "algorithm", ["q_learning", "sarsa", "expected_sarsa", "double_q_learning", "n_step_sarsa", "q_lambda"]
)
@pytest.mark.parametrize("engine", ["local", "server", "rounds"])
def test_rules_that_move_entries_towards_targets_can_be_on_a_card(algorithm, engine):
    assert why_not(source_of(), Settings(algorithm=algorithm), engine) is None
    rule, parameters = find(algorithm)
    assert letters_of(rule, parameters) >= (1 if rule.waits is None else rule.waits(parameters) + 1)


@numba.njit
def _reset(data, memory, random):
    return 0


@numba.njit
def _step(data, memory, state, action, random):
    return 0, 1.0, True


def test_environments_that_python_steps_and_games_with_checks_or_keys_are_refused():
    class Stepped(gymnasium.Env):
        observation_space = gymnasium.spaces.Discrete(3)
        action_space = gymnasium.spaces.Discrete(2)

    from typing import NamedTuple

    class Nothing(NamedTuple):
        size: int = 1

    class Other(NamedTuple):
        size: int = 1

    assert "is stepped through Gymnasium" in why_not(source_of(Stepped()), Settings(), "local")
    checked = CompiledSimulator.game("checked", 2, 2, Nothing(), _reset, _step, check=True)
    assert "check=True" in why_not(source_of(checked), Settings(), "local")
    keyed = CompiledSimulator.game("keyed", None, 2, Other(), _reset, _step, keyed=True)
    for engine in ("local", "sharded"):  # that of several ranks, which have no other one for keys
        assert "are keys" in why_not(source_of(keyed), Settings(), engine)


def test_without_numba_cuda_the_error_says_what_to_install(monkeypatch):
    _cards.numba_cuda.cache_clear()
    monkeypatch.setattr(_cards, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r'pip install "\.\[gpu\]".*numba-cuda\[cu13\]'):
        _cards.cards()
    with pytest.raises(MissingExtraError, match="needs numba-cuda"):
        DistAsyncQLearning(device="cuda").train(env=MODEL, steps=10)
    _cards.numba_cuda.cache_clear()


@pytest.mark.slow
def test_numba_cuda_is_found_where_python_runs_no_pth_files():
    """As where PYTHONPATH leads to what pip --target installed."""
    pytest.importorskip("numba_cuda", reason="the extra gpu is not installed")
    program = "from dist_classicrl.learning.card import cards; print(cards.numba_cuda().implementation)"
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-S", "-c", program], env=environ, capture_output=True, text=True)
    assert done.stdout == "NVIDIA\n", done.stderr


def test_numbas_own_cuda_is_not_taken_for_that_of_numba_cuda(library, monkeypatch):
    library()
    monkeypatch.setattr(_Library, "implementation", "Built-in", raising=False)
    monkeypatch.setattr(_Library, "__file__", "/packages/numba/cuda/__init__.py", raising=False)
    with pytest.raises(
        DeviceError, match=r"numba's own numba\.cuda, /packages/numba.*write import _numba_cuda_redirector"
    ):
        _cards.cards()


class _Library:
    """numba.cuda, as far as cards are looked for there."""

    def __init__(self, driver, toolkit, gpus, linker):
        self.gpus = gpus
        self.context = _Context()

        def total(number):
            return 80 << 30

        self._modules = {
            "numba.cuda": self,
            "numba.core.config": SimpleNamespace(ENABLE_CUDASIM=False),
            "numba.cuda.cudadrv.driver": SimpleNamespace(
                driver=SimpleNamespace(get_version=driver, cuDeviceTotalMem=total)
            ),
            "numba.cuda.cudadrv.nvrtc": SimpleNamespace(get_lowest_supported_cc=lambda: (7, 5)),
            "cuda.bindings.nvjitlink": SimpleNamespace(version=linker),
            "numba.cuda.cudadrv.nvvm": SimpleNamespace(NVVM=lambda: None),
            "numba.cuda.cudadrv.runtime": SimpleNamespace(get_version=lambda: toolkit),
        }

    def __call__(self, name):
        return self._modules[name] if name in self._modules else importlib.import_module(name)

    def current_context(self):
        return self.context


def _without_a_library(name):
    raise ImportError("libcudart.so")


class _Context:
    """Has 10 GiB that were given back and not returned yet."""

    kept = 10 << 30

    @property
    def deallocations(self):
        return SimpleNamespace(clear=lambda: setattr(self, "kept", 0))

    def get_memory_info(self):
        return SimpleNamespace(total=80 << 30, free=(70 << 30) - self.kept)


class _Gpu:
    name, compute_capability, MULTIPROCESSOR_COUNT, id = b"NVIDIA H100", (9, 0), 132, 0
    MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, MAX_THREADS_PER_MULTIPROCESSOR = 232_448, 2048
    begun = 0

    def __enter__(self):
        type(self).begun += 1
        return self

    def __exit__(self, *error):
        pass


@pytest.fixture
def library(monkeypatch):
    def use(driver=(13, 0), toolkit=(13, 1), gpus=(), linker=lambda: (13, 1)):
        def version():
            if driver is None:
                raise ImportError("Error at driver init: \n\nCUDA driver library cannot be found.\n:")
            return driver

        _cards.numba_cuda.cache_clear()
        monkeypatch.setattr(_cards, "import_module", _Library(version, toolkit, list(gpus), linker))
        monkeypatch.setattr(_cards, "find_spec", lambda name: object())

    yield use
    monkeypatch.undo()
    _cards.numba_cuda.cache_clear()


def test_no_driver_an_old_one_and_no_card_are_told_apart(library, monkeypatch):
    library(driver=None)
    with pytest.raises(DeviceError, match="none that works here: CUDA driver library cannot be found. See"):
        _cards.cards()
    library(driver=(12, 4))
    with pytest.raises(
        DeviceError, match=r"driver is too old: it runs CUDA up to 12\.4.*CUDA 13\.1.*numba-cuda\[cu12\]"
    ):
        _cards.cards()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    library(driver=None)
    with pytest.raises(
        DeviceError, match="none that works among those that CUDA_VISIBLE_DEVICES='-1' lets this process see"
    ):
        _cards.cards()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    library()
    with pytest.raises(DeviceError, match="There is a driver, but no card that works here"):
        _cards.cards()


class _Old(_Gpu):
    name, compute_capability = b"Tesla P100", (6, 0)


class _Lost(_Gpu):
    @property
    def MULTIPROCESSOR_COUNT(self):
        raise RuntimeError("Unknown Error")


def test_cards_that_cannot_be_had_leave_the_others_alone(library):
    library(gpus=[_Old(), _Lost(), _Gpu()])
    assert [card.number for card in _cards.cards()] == [2]
    library(gpus=[_Old(), _Lost()])
    with pytest.raises(
        DeviceError,
        match=r"card 0, Tesla P100 \(.*too old for CUDA 13\.1.*numba-cuda\[cu12\]; card 1 does not answer",
    ):
        _cards.cards()


def test_a_missing_linker_is_named_where_the_driver_is_older_than_the_compiler(library):
    def missing():
        raise RuntimeError("Failure finding libnvJitLink.so.13")

    library(gpus=[_Gpu()], linker=missing)
    with pytest.raises(
        DeviceError,
        match=r'nvJitLink is not found: .* CUDA 13\.1, .* 13\.0, .*pip install "numba-cuda\[cu13\]"',
    ):
        _cards.cards()
    library(driver=(13, 1), gpus=[_Gpu()], linker=missing)
    assert len(_cards.cards()) == 1


def test_a_card_that_fails_when_its_memory_is_asked_for_is_named(library):
    class CudaAPIError(Exception):  # by its name it is told
        pass

    class Broken(_Gpu):
        def __enter__(self):
            raise CudaAPIError("[999] Call to cuDevicePrimaryCtxRetain results in CUDA_ERROR_UNKNOWN")

    library(gpus=[Broken()])
    (card,) = _cards.cards()
    with pytest.raises(DeviceError, match=r"A call to card 0, NVIDIA H100 .*failed.*CUDA_ERROR_UNKNOWN"):
        _cards.free_memory(card)


def test_cards_are_listed_with_what_they_are_and_not_begun_to_be_used(library):
    library(gpus=[_Gpu(), _Gpu()])
    first, second = _cards.cards()
    assert _Gpu.begun == 0  # a card may let only one process do so
    assert (first.number, second.number, first.name) == (0, 1, "NVIDIA H100")
    assert str(second) == ("card 1, NVIDIA H100 (compute capability 9.0, 80 GiB, 132 multiprocessors)")
    assert second.threads == 132 * 2048
    assert second.shared_bytes == 232_448 and CARDS[0].shared_bytes == 48 << 10
    assert _cards.free_memory(second) == 70 << 30


@pytest.fixture
def alone(monkeypatch):
    for name in list(os.environ):
        if name.startswith(("OMPI_", "MPI_LOCAL", "MV2_", "SLURM_", "PALS_", "FLUX_")):
            monkeypatch.delenv(name)


def test_each_rank_of_a_host_takes_a_card_of_its_own(monkeypatch, caplog):
    monkeypatch.setattr(choosing, "cards", lambda: CARDS)
    taken = []
    for number in range(3):
        card, _ = card_for(source_of(), Settings(device="cuda"), "server", 4, False, 10, (number, 3))
        taken.append(card.number)
    assert taken == [0, 1, 0]
    assert caplog.text.count("3 ranks of this host want a card, and it has 2: some share one") == 1
    assert card_for(source_of(), Settings(device="cuda"), "server", 4, True, 10)[0] is None
    card, why = card_for(source_of(), Settings(device="auto"), "server", 4, False, 10**10, (2, 3))
    assert card is None and "the 2 cards of this host are for other ranks of the 3 there" in why


def test_the_place_of_a_rank_among_those_of_its_host_that_learn_is_the_groups_to_say():
    """Nothing that a launcher says plays a part: srun says other things than mpirun."""
    hosts = ["a", "a", "b", "b", "a"]

    def places(engine, server=0, members=(0, 1, 2, 3, 4)):
        view = View(1, 1, server, members)
        found = []
        for rank in members:
            group = SimpleNamespace(rank=rank, view=view, host_of=hosts.__getitem__)
            settling = SimpleNamespace(group=group)
            found.append(Settling._place_on_host(settling, SimpleNamespace(name=engine), len(hosts)))
        return found

    assert places("server")[1:] == [(0, 2), (0, 2), (1, 2), (1, 2)]  # rank 0 serves, on its own host alone
    assert places("rounds") == [(0, 3), (1, 3), (0, 2), (1, 2), (2, 3)]
    assert Settling._place_on_host(SimpleNamespace(group=None), None, 1) is None
    # A loss leaves all others where they are, and who replaces a rank has its number.
    assert places("server", server=3, members=(1, 2, 3, 4)) == [(0, 2), (0, 2), (1, 2), (1, 2)]
    assert places("server", members=(0, 2, 3))[1:] == [(0, 2), (1, 2)]
    assert places("server", members=(0, 2, 3, 4))[1:] == [(0, 2), (1, 2), (1, 2)]
    # Rank 0, which served first, comes back, and learns where the rank did that serves now, if that is there.
    assert places("server", server=1, members=(0, 1, 2, 3, 4))[0] == (0, 2)
    assert places("server", server=4, members=(0, 1, 2, 3, 4))[0] == (1, 2)
    assert places("server", server=2, members=(0, 1, 2, 3, 4))[0] == (2, 3)


@pytest.mark.parametrize(
    ("told", "place"),
    [
        ({}, (0, 1)),
        ({"OMPI_COMM_WORLD_LOCAL_RANK": 1, "OMPI_COMM_WORLD_LOCAL_SIZE": 2, "SLURM_LOCALID": 0}, (1, 2)),
        ({"SLURM_LOCALID": 2, "SLURM_NODEID": 1, "SLURM_STEP_TASKS_PER_NODE": "4(x2),3"}, (2, 4)),
        ({"SLURM_LOCALID": 2, "SLURM_NODEID": 2, "SLURM_STEP_TASKS_PER_NODE": "4(x2),3"}, (2, 3)),
        ({"PALS_LOCAL_RANKID": 3, "PALS_LOCAL_SIZE": 4}, (3, 4)),
        ({"FLUX_TASK_LOCAL_ID": 1}, (1, 2)),
    ],
)
def test_processes_that_train_alone_go_by_what_launchers_say(alone, monkeypatch, told, place):
    for name, number in told.items():
        monkeypatch.setenv(name, str(number))
    assert _cards.place_on_host() == place


def test_a_task_that_sees_only_its_own_card_takes_it(alone, monkeypatch):
    monkeypatch.setattr(choosing, "cards", lambda: CARDS[:1])
    monkeypatch.setattr(choosing, "free_memory", lambda card: card.memory)
    third = source_of(), Settings(device="auto"), "server", 4, False, 10**10, (2, 3)
    assert card_for(*third)[0] is None
    monkeypatch.setenv("SLURM_LOCALID", "3")
    monkeypatch.setenv("SLURM_GPUS_PER_TASK", "1")
    assert card_for(*third)[0] == CARDS[0]
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_RANK", "3")  # mpirun starts ranks that see all of a host
    assert card_for(*third)[0] is None


@pytest.mark.slow
def test_auto_takes_a_card_where_the_problem_suits_it_and_says_why_not(monkeypatch, caplog):
    monkeypatch.setattr(choosing, "cards", lambda: CARDS)
    monkeypatch.setattr(choosing, "free_memory", lambda card: card.memory)
    monkeypatch.delenv("OMPI_COMM_WORLD_LOCAL_RANK", raising=False)
    auto = Settings(device="auto")
    assert card_for(source_of(), auto, "local", 1, False, 10**9)[0] == CARDS[0]
    assert "fewer than 1,000,000,000" in card_for(source_of(), auto, "local", 1, False, 10**8)[1]
    slow = Settings(device="auto", replay_ratio=1.0)
    assert "replay_ratio=1" in card_for(source_of(), slow, "local", 1, False, 10**9)[1]
    with pytest.raises(DeviceError, match='device="cuda" cannot be had: replay_ratio=1'):
        card_for(source_of(), Settings(device="cuda", replay_ratio=1.0), "local", 1, False, 10**9)

    rounds = Settings(device="auto", async_updates=False)
    for ranks, engine in ((1, "local"), (3, "rounds")):  # who has a card must not show in the table
        card, why = card_for(source_of(), rounds, engine, ranks, False, 10**10)
        assert card is None and "a seed's table must not depend on who has a card" in why

    large = source_of(TabularMDP.garnet(9000, 2, 2, seed=1))
    assert card_for(large, auto, "local", 1, False, 10**9)[0] == CARDS[0]
    monkeypatch.setattr(choosing, "free_memory", lambda card: 1 << 19)  # others have the rest
    card, why = card_for(large, auto, "local", 1, False, 10**9)
    assert card is None and "GiB at least, and card 0, H100" in why and "0.000488 GiB that nobody uses" in why

    def taken(card):
        raise DeviceError("A call to card 0 failed: it is another process's alone.")

    monkeypatch.setattr(choosing, "free_memory", taken)
    card, why = card_for(source_of(), auto, "local", 1, False, 10**9)
    assert card is None and "another process's alone" in why

    def nothing():
        raise DeviceError("There is no card.")

    monkeypatch.setattr(choosing, "cards", nothing)
    with caplog.at_level(logging.INFO, "dist_classicrl"):
        choosing.say_choice(auto, *card_for(source_of(), auto, "local", 1, False, 10**9))
    assert "Learning on cores: There is no card." in caplog.text


class _Full(CompiledLearner):
    """Stands for a card's learner that finds no room, or cannot be compiled, once it is there."""

    def add(self, number, source, seed):
        raise DeviceMemoryError("The table needs 2 GiB, and card 0 has 1 GiB that nobody uses.")


@pytest.fixture
def full(monkeypatch):
    card = Card(0, "full", (0, 0), 1 << 30, 1, is_simulated=True)
    kind = register(LearnerKind("full", lambda problem: problem.card is not None, _Full))
    monkeypatch.setattr(choosing, "cards", lambda: [card])
    monkeypatch.setattr(choosing, "free_memory", lambda card: card.memory)
    monkeypatch.setattr(choosing, "AUTO_STEPS", 1000)
    yield card
    unregister(kind)


def test_a_card_that_cannot_have_the_problem_is_left_for_cores_by_auto_alone(full, caplog):
    agent, here = DistAsyncQLearning(device="auto", seed=1), DistAsyncQLearning(seed=1)
    assert agent.train(env=MODEL, steps=1000).device == "cpu"
    here.train(env=MODEL, steps=1000)
    assert np.array_equal(agent.q_table, here.q_table)
    assert "Learning on cores, and not on numba's CUDA simulator: The table needs 2 GiB" in caplog.text
    with pytest.raises(DeviceMemoryError, match="needs 2 GiB"):
        DistAsyncQLearning(device="cuda", seed=1).train(env=MODEL, steps=1000)


def test_a_worker_leaves_such_a_card_as_well(full):
    for device in ("auto", "cuda"):
        settings = Settings(device=device)
        table = np.full(12, 3.0), np.zeros(12, np.int64)
        run = Run(settings, source_of(), *table, 0, 100, 1, Observer(), math.inf, card=full, device="cuda")
        roles = AsyncRoles(run, SimpleNamespace(), Rates(settings, 1))
        if device == "cuda":
            with pytest.raises(DeviceMemoryError):
                roles.ready_learner(1)
        else:
            learner = roles.ready_learner(1)
            assert type(learner) is CompiledLearner and learner.walkers == [1]
            assert roles.ready_learner(1) is learner and np.array_equal(learner.table.q, table[0])


def test_a_number_of_steps_between_pushes_that_is_too_small_for_a_card_is_told(caplog):
    for frequency, card, is_told in ((64, CARDS[0], True), (64, None, False), ("auto", CARDS[0], False)):
        settings = Settings(device="cuda", sync_frequency=frequency, batch_size=2)
        run = SimpleNamespace(settings=settings, card=card, source=source_of())
        roles = AsyncRoles(run, SimpleNamespace(rank=3), Rates(settings, 1))
        caplog.clear()
        for interval in (128, 1 << 24):
            roles.say_short_pushes(interval, 1 << 24)
        assert caplog.text.count("sync_frequency=64 lets rank 3 push after 128 steps") == is_told
        assert len(caplog.records) == is_told


class Untold(Exception):
    def __str__(self):
        raise OSError


@pytest.mark.parametrize(
    ("error", "what", "told"),
    [
        (DeviceError("gone"), "learns no more, as its card failed.", "DeviceError: gone"),
        (ValueError("odd"), "learns no more, as its environment raised an exception.", "ValueError: odd"),
        (Untold(), "learns no more, as its environment raised an exception.", "Untold, whose text"),
    ],
)
def test_a_worker_that_gives_up_says_what_failed(caplog, error, what, told):
    def learn():
        raise error

    said, table = [], SimpleNamespace(waiting=0)
    worker = SimpleNamespace(survives_errors=True, _learn=learn, group=SimpleNamespace(rank=3), _table=table)
    worker.__dict__.update(_leases=[1], _forget_since_push=lambda: None, _say_once_all_arrived=said.append)
    Worker._learn_or_give_up(worker)
    assert f"Rank 3 {what}" in caplog.text and worker._leases == []
    (leave,) = said
    assert leave.why.startswith(told) and leave == Leave("excluded", leave.why, waits=True)


def test_too_little_memory_is_refused_by_how_much(monkeypatch):
    from dist_classicrl.learning.card import plan

    monkeypatch.setattr(plan, "free_memory", lambda card: 1 << 30)
    check_memory(1 << 30, CARDS[0], "A table")
    with pytest.raises(
        DeviceMemoryError, match=r"A table needs 1\.50 GiB.*1\.00 GiB that nobody uses: 0\.50"
    ):
        check_memory(3 << 29, CARDS[0], "A table")


def test_what_a_card_fails_with_first_is_told_and_what_came_back_before_is_kept(monkeypatch):
    calls = []
    learn, settle = CompiledLearner.learn, Run.settle

    def failing(self, walker, stream, steps):
        calls.append(stream.used)
        if stream.used > 50_000:
            raise DeviceError("A call to the card failed.")
        learn(self, walker, stream, steps)

    def no_card(self, table):
        if calls and calls[-1] > 50_000:
            raise DeviceError("The card was asked once more.")
        settle(self, table)

    monkeypatch.setattr(CompiledLearner, "learn", failing)
    monkeypatch.setattr(Run, "settle", no_card)
    monkeypatch.setattr(loops, "_FOLD_SECONDS", 0.0)
    agent = DistAsyncQLearning(seed=1)
    with pytest.raises(DeviceError, match=r"A call to the card failed\."):
        agent.train(env=MODEL, steps=10**7)
    assert 0 < agent.steps == agent.visits.sum()


@pytest.mark.slow
def test_device_auto_without_a_card_trains_on_cores(library):
    library(driver=None)
    agent = DistAsyncQLearning(device="auto", seed=1)
    here = DistAsyncQLearning(seed=1)
    assert agent.train(env=MODEL, steps=1000).steps == here.train(env=MODEL, steps=1000).steps
    assert np.array_equal(agent.q_table, here.q_table)
    with pytest.raises(DeviceError, match="none that works here"):
        DistAsyncQLearning(device="cuda").train(env=MODEL, steps=10)


def test_doctor_lists_cards_or_says_why_there_is_none(library, monkeypatch):
    from dist_classicrl.diagnosis import card

    library(gpus=[_Gpu()])
    (found,) = card.examine()
    assert (found.status, found.data) == ("ok", {"cards": [{"name": "NVIDIA H100", "bytes": 80 << 30}]})
    assert found.found.startswith("1 card: card 0, NVIDIA H100")
    library(driver=None)
    (found,) = card.examine()
    assert found.status == "ok" and found.found.startswith("none: ")
    library(driver=(12, 4))
    (found,) = card.examine()
    assert found.status == "warning" and "driver is too old" in found.found
    assert "Install a newer driver" in found.remedy
    _cards.numba_cuda.cache_clear()
    monkeypatch.setattr(_cards, "import_module", _without_a_library)
    (found,) = card.examine()
    assert found.status == "warning" and "cannot be imported: libcudart.so" in found.found
    assert "Install it anew" in found.remedy
    monkeypatch.setattr(card, "find_spec", lambda name: None)
    (found,) = card.examine()
    assert found.status == "ok" and "the extra gpu, which is not installed" in found.found
