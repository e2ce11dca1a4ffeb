"""Whatever is given to the public calls, they work or raise an error of this library, and they end.

Values of all kinds are put in the place of arguments, by the signatures, and in the place of what an
environment returns.
"""

import functools
import inspect
import math
import signal
from contextlib import contextmanager
from decimal import Decimal
from fractions import Fraction

import gymnasium
import numpy as np
import pytest
from function_models import STOCKED, sell
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from gymnasium.wrappers import TimeLimit, TransformObservation
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dist_classicrl import CompiledSimulator, DistAsyncQLearning, TabularMDP
from dist_classicrl.errors import ActionMaskError, DistClassicRLError, EnvError, OutsideSpaceError

MODEL = TabularMDP.garnet(3, 2, 2, seed=0)
SECONDS = 60  # for one call; all of them take less than one
MOST_STEPS = 2_000  # that a call is really asked for

ODD = [
    None, True, False, 0, -1, 1, 2, 3, 7, 10**6, 10**9, 2**31, 2**62, 2**63, 2**64, 10**400, -(10**400),
    0.5, 2.5, -0.5, 1e-300, 1e308, math.nan, math.inf, -math.inf, 1j, Fraction(1, 3), Decimal("0.1"),
    "", "x", "auto", "q_learning", "float32", "1.0", "nan", "30s", "9" * 500 + "s", "9" * 5000 + ":00",
    "a\0b", "\ud800", b"bytes", [], [1, 2], ["q_learning"], (), (1,), {}, {"name": "q_learning"}, {1, 2},
    {"name": np.array(["q_learning"])}, {"kind": "Linear"}, [[1], [1, 2]],
    np.float32(0.1), np.float64("nan"), np.int64(3), np.uint64(2**63), np.bool_(True), np.array(3),
    np.array([0.1]), np.array([1, 2]), np.array([[True, False]]), np.array(["mpi", "auto"]), np.array([]),
    np.array([None]), np.datetime64("2020-01-01"), np.dtype("float32"), np.float32,
    object(), object, int, len, Exception("odd"), NotImplemented, ..., slice(3), range(3), MODEL,
]  # fmt: skip
VALUES = (
    st.sampled_from(ODD)
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(st.characters(exclude_characters="/.\\~"), max_size=8)
    | st.lists(st.sampled_from(ODD), max_size=3)
)


@contextmanager
def named_errors_only():
    """Let errors of this library pass, and those of the system that name a file; nothing takes for ever."""

    def too_long(number, frame):
        raise AssertionError(f"it took more than {SECONDS} s")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(SECONDS)
    try:
        yield
    except DistClassicRLError as error:
        assert str(error)
    except OSError as error:
        if error.filename is None:
            raise
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def arguments_of(function, **usual):
    """Give dicts of arguments, of which up to three are odd and the others as `usual`."""
    names = [name for name in inspect.signature(function).parameters if name != "self"]
    odd = st.dictionaries(st.sampled_from(names), VALUES, min_size=1, max_size=3)
    return odd.map(lambda chosen: {**usual, **chosen})


def is_work(value, most=MOST_STEPS):
    """Whether a number is one of steps or episodes that would really be made."""
    return isinstance(value, (int, float, np.number)) and not isinstance(value, bool) and value > most


def construct(arguments):
    agent = DistAsyncQLearning(**arguments)
    if agent.settings.replay_ratio < 100 and (agent.settings.state_size or 1) < 10**4 > agent_columns(agent):
        agent.train(MODEL, total_steps=100)


def agent_columns(agent):
    return agent.settings.action_size or 1


def train(arguments):
    asked = dict(arguments)
    if "steps" in asked:
        asked.setdefault("total_steps", None)
    if any(is_work(asked.get(name)) and asked[name] < 2**62 for name in ("steps", "total_steps")):
        return
    if any(callable(asked.get(name)) for name in ("progress", "callbacks")):
        return  # what a user's own function raises comes through
    asked.setdefault("total_steps", 100)
    DistAsyncQLearning(seed=1, n_envs=2).train(**asked)


def evaluate(arguments):
    if is_work(arguments.get("episodes"), 100):
        return
    made_agent().evaluate(**arguments)


@functools.cache
def made_agent():
    agent = DistAsyncQLearning(seed=1, n_envs=2)
    agent.train(MODEL, total_steps=100)
    return agent


def fuzzed(examples):
    return settings(
        max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), database=None
    )


CALLS = {
    "constructor": (construct, arguments_of(DistAsyncQLearning)),
    "train": (train, arguments_of(DistAsyncQLearning.train, env=MODEL)),
    "evaluate": (evaluate, arguments_of(DistAsyncQLearning.evaluate, env=MODEL, episodes=2)),
    "predict": (
        lambda given: made_agent().predict(**given),
        arguments_of(DistAsyncQLearning.predict, observation=0),
    ),
    "save_model": (
        lambda given: made_agent().save_model(**given),
        arguments_of(DistAsyncQLearning.save_model),
    ),
    "load_model": (
        lambda given: DistAsyncQLearning.load_model(**given),
        arguments_of(DistAsyncQLearning.load_model, path="model.npz"),
    ),
    "epsilon": (lambda given: setattr(DistAsyncQLearning(), "epsilon", given), VALUES),
    "learning_rate": (lambda given: setattr(DistAsyncQLearning(), "learning_rate", given), VALUES),
    "q_table": (lambda given: setattr(DistAsyncQLearning(state_size=2), "q_table", given), VALUES),
}


def check_calls(name, examples, folder, monkeypatch):
    """Make so many calls in a folder of their own, in which a model is."""
    call, arguments = CALLS[name]
    monkeypatch.chdir(folder)
    made_agent().save_model("model.npz")

    @fuzzed(examples)
    @given(arguments)
    def check(given):
        with named_errors_only():
            call(given)

    check()


@pytest.mark.slow
@pytest.mark.parametrize("name", list(CALLS))
def test_odd_arguments_work_or_are_refused_by_name(name, tmp_path, monkeypatch):
    check_calls(name, 150, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(CALLS))
def test_many_odd_arguments_work_or_are_refused_by_name(name, tmp_path, monkeypatch):
    check_calls(name, 2_000, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "call", "usual"),
    [(DistAsyncQLearning, construct, {}), (DistAsyncQLearning.train, train, {"env": MODEL})],
    ids=["constructor", "train"],
)
def test_each_argument_takes_each_odd_value_or_refuses_it_by_name(
    function, call, usual, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    wrong = []
    for name in inspect.signature(function).parameters:
        for value in ODD if name != "self" else ():
            try:
                with named_errors_only():
                    call({**usual, name: value})
            except Exception as error:
                wrong.append(f"{name}={value!r:.80}: {error!r:.80}")
    assert wrong == []


# Environments

GOOD_STEP = (1, 1.0, False, False, {})


class Odd(gymnasium.Env):
    """Returns what it is told to: `result` from the function `where`, from its third call on."""

    def __init__(self, where, result):
        self.observation_space = gymnasium.spaces.Discrete(3)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.where, self.result, self.calls = where, result, 0
        if where.endswith("space"):
            setattr(self, where, result)

    def _returned(self, where, usual):
        self.calls += self.where == where
        return self.result if self.where == where and self.calls > 2 else usual

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._returned("reset", (0, {}))

    def step(self, action):
        self.steps = getattr(self, "steps", 0) + 1
        return self._returned("step", (1, 1.0, self.steps % 5 == 0, False, {}))


def replaced(usual, place, value):
    return (*usual[:place], value, *usual[place + 1 :])


PLACES = (
    st.tuples(st.just("step"), st.builds(replaced, st.just(GOOD_STEP), st.integers(0, 4), VALUES))
    | st.tuples(st.just("reset"), st.builds(replaced, st.just((0, {})), st.integers(0, 1), VALUES))
    | st.tuples(st.sampled_from(["step", "reset", "observation_space", "action_space"]), VALUES)
    | st.tuples(st.just("step"), VALUES.map(lambda mask: (1, 1.0, False, False, {"action_mask": mask})))
)


def check_environments(examples):
    @fuzzed(examples)
    @given(PLACES, st.booleans())
    def check(place, is_evaluated):
        with named_errors_only():
            if is_evaluated:
                made_agent().evaluate(lambda: Odd(*place), episodes=3, max_steps=20)
            else:
                DistAsyncQLearning(seed=1, n_envs=2, batch_size=4).train(lambda: Odd(*place), total_steps=40)

    check()


@pytest.mark.slow
def test_odd_environments_work_or_are_refused_by_name():
    check_environments(200)


@pytest.mark.slow
def test_many_odd_environments_work_or_are_refused_by_name():
    check_environments(3_000)


@pytest.mark.parametrize(
    ("where", "result", "message"),
    [
        ("step", (1, 1.0, False, {}), r"step of environment 0 returned \(1, 1.0, False, {}\), and must ret"),
        ("step", (1, 1.0, False, False, None), "step of environment 0 returned .* of which info is a dict"),
        ("step", None, "step of environment 0 returned None"),
        ("reset", 0, "reset of environment 0 returned 0, and must return the tuple"),
        ("reset", (0, None), "reset of environment 0 returned"),
        ("step", (1, np.ones(2), False, False, {}), r"reward of environment 0 is array\(\[1., 1.\]\), of t"),
        ("step", (1, "1.0", False, False, {}), "reward of environment 0 is '1.0', of type str, and must be"),
        ("step", (1, None, False, False, {}), "reward of environment 0 is None, of type NoneType"),
        ("step", (1, 1.0, "no", False, {}), "terminated of environment 0 is 'no', of type str, .* True or F"),
        ("step", (1, 1.0, False, 0.5, {}), "truncated of environment 0 is 0.5, of type float"),
    ],
)
def test_what_an_environment_must_not_return_is_told(where, result, message):
    with pytest.raises(DistClassicRLError, match=message):
        DistAsyncQLearning(seed=1, n_envs=2).train(lambda: Odd(where, result), total_steps=200)


def limited(where, result):
    return TimeLimit(Odd(where, result), 10)


class Passing(gymnasium.Wrapper):
    pass


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: limited("step", (1, 1.0, False, {})),
            r"step of environment 0 returned what TimeLimit around it cannot unpack \(not enough values to "
            r"unpack \(expected 5, got 4.*\), and must return the tuple \(observation, reward, term.*shimmy",
        ),
        (
            lambda: limited("step", None),
            "step of environment 0 .* TimeLimit .*cannot unpack non-iterable",
        ),
        (lambda: Passing(limited("step", None)), "step of environment 0 returned what TimeLimit"),
        (
            lambda: TransformObservation(Odd("reset", 0), lambda seen: seen, None),
            r"reset of environment 0 returned what TransformObservation around it cannot unpack \(cannot "
            r"unpack non-iterable int object\), and must return the tuple \(observation, info\)",
        ),
        (
            lambda: SyncVectorEnv([lambda: Odd("step", (1, 1.0, False, {}))] * 2),
            "step of an environment returned what SyncVectorEnv around it cannot unpack",
        ),
        (
            lambda: SyncVectorEnv([lambda: Odd("reset", 0)] * 2),
            "reset of an environment returned what SyncVectorEnv around it cannot unpack",
        ),
    ],
)
def test_what_a_wrapper_of_gymnasium_cannot_unpack_is_told_of_the_environment(make, message):
    with pytest.raises(EnvError, match=message) as caught:
        DistAsyncQLearning(seed=1, n_envs=2).train(make, total_steps=200)
    assert "unpack" in str(caught.value.__cause__)


class OwnUnpacking(Odd):
    """Fails itself at what a wrapper would fail at, or a wrapper in it does."""

    def __init__(self, where, inner):
        super().__init__("step", GOOD_STEP)
        self.where, self.inner = where, inner

    def reset(self, *, seed=None, options=None):
        if self.inner is not None:
            self.inner.reset(seed=seed)
        observation, info = 0 if self.where == "reset" else (0, {})
        return observation, info

    def step(self, action):
        if self.inner is not None:
            return self.inner.step(action)
        observation, reward, terminated, truncated, info = 1, 2
        return observation, reward, terminated, truncated, info


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: TimeLimit(OwnUnpacking("step", None), 10),
            r"^not enough values to unpack \(expected 5, got",
        ),
        (lambda: TimeLimit(OwnUnpacking("reset", None), 10), "^cannot unpack non-iterable int object$"),
        (lambda: OwnUnpacking("step", limited("step", (1, 2))), r"^not enough values to unpack \(expected 5"),
        (
            lambda: SyncVectorEnv([lambda: OwnUnpacking("step", None)]),
            r"^not enough values to unpack \(expected 5, got",
        ),
    ],
)
def test_what_an_environment_raises_itself_is_not_told_otherwise(make, message):
    with pytest.raises((TypeError, ValueError), match=message) as caught:
        DistAsyncQLearning(seed=1).train(make, total_steps=200)
    assert type(caught.value) in (TypeError, ValueError)


def of_processes(where, result):
    return lambda: AsyncVectorEnv([lambda: Odd("step", GOOD_STEP), lambda: Odd(where, result)])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Gymnasium tells the traceback of a process as a warning
@pytest.mark.parametrize(
    ("where", "result", "message"),
    [
        (
            "step",
            (1, 1.0, False, {}),
            r"^Environment 1 gave .* AsyncVectorEnv .* \(ValueError: not enough val",
        ),
        (
            "step",
            None,
            "^Environment 1 gave what AsyncVectorEnv around it cannot use .* non-iterable NoneType",
        ),
        (
            "reset",
            0,
            r"^Environment 1 gave .* reset\(\*, seed=None, options=None\) the tuple \(observation, in",
        ),
        (
            "reset",
            ("a", {}),
            "^Environment 1 gave what AsyncVectorEnv around it cannot use .*invalid literal",
        ),
        ("step", (np.zeros(3), *GOOD_STEP[1:]), "^Environment 1 gave what .* could not broadcast"),
        (
            "step",
            (1, "a", False, False, {}),
            "^An environment gave what AsyncVectorEnv .* string to float: 'a'",
        ),
        (
            "step",
            (1, 1.0, False, False, None),
            "^An environment gave what AsyncVectorEnv .* no attribute 'items'",
        ),
    ],
)
def test_what_environments_in_processes_must_not_return_is_told_and_the_processes_end(where, result, message):
    make = of_processes(where, result)
    for is_given in (False, True):
        env = make()
        with pytest.raises(EnvError, match=message):
            DistAsyncQLearning(seed=1).train(env if is_given else lambda env=env: env, total_steps=200)
        if is_given and "An environment" in message and result[4] == {}:
            assert [process.is_alive() for process in env.processes] == [True, True]  # they can go on
            env.close()
        assert env.closed and not any(process.is_alive() for process in env.processes)
    with pytest.raises(EnvError, match="Give a vector environment that is open"):
        DistAsyncQLearning(seed=1).train(env, total_steps=200)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (
            (1, "a", False, False, {}),
            r"^An environment gave what SyncVectorEnv .* \(ValueError: could not conv",
        ),
        (
            ("a", *GOOD_STEP[1:]),
            r"^An environment gave what SyncVectorEnv around it cannot use \(TypeError: Ca",
        ),
        ((1, 1.0, False, False, None), "^An environment gave what SyncVectorEnv .* no attribute 'items'"),
    ],
)
def test_what_a_vector_environment_of_gymnasium_cannot_use_is_told_of_the_environment(result, message):
    make = [lambda: Odd("step", GOOD_STEP), lambda: Odd("step", result)]
    with pytest.raises(EnvError, match=message):
        DistAsyncQLearning(seed=1).train(lambda: SyncVectorEnv(make), total_steps=200)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_what_an_environment_in_a_process_raises_itself_is_not_told_otherwise():
    make = [lambda: OwnUnpacking("step", None)] * 2
    with pytest.raises(ValueError, match=r"^not enough values to unpack \(expected 5") as caught:
        DistAsyncQLearning(seed=1).train(lambda: AsyncVectorEnv(make), total_steps=200)
    assert type(caught.value) is ValueError


def test_a_mark_of_masks_that_is_of_another_length_is_told():
    class Marked(SyncVectorEnv):
        def step(self, actions):
            *step, _ = super().step(actions)
            return *step, {"action_mask": np.ones((2, 2), bool), "_action_mask": "x"}

    make = [lambda: Odd("step", GOOD_STEP)] * 2
    with pytest.raises(
        ActionMaskError, match=r"^infos\['_action_mask'\] is 'x', and must say for each of the 2 "
    ):
        DistAsyncQLearning(seed=1).train(lambda: Marked(make), total_steps=200)


def test_a_class_without_a_space_and_a_reset_without_a_seed_are_told_what_to_write():
    class Spaceless(gymnasium.Env):
        observation_space = gymnasium.spaces.Discrete(3)

    class Seedless(Spaceless):
        action_space = gymnasium.spaces.Discrete(2)

        def reset(self):
            return 0, {}

    class OwnError(Seedless):
        def reset(self, *, seed=None, options=None):
            return {}[0] if seed is None else len(3)

    for env, message in (
        (Spaceless, "Spaceless has no action_space.*action_space = gymnasium.spaces.Discrete"),
        (Seedless, r"keyword argument 'seed': Gymnasium gives a seed .*`def reset\(self, \*, seed=None"),
    ):
        with pytest.raises(EnvError, match=message):
            DistAsyncQLearning(seed=1).train(env, total_steps=10)
    with pytest.raises(TypeError, match="has no len"):  # its own, as it is
        DistAsyncQLearning(seed=1).train(OwnError, total_steps=10)


@pytest.mark.parametrize("what", [(40, 10, 0), 3, [(20, 10, 0), (20, 99, 0)], "ace", (1, 2)])
def test_who_asks_for_what_is_no_observation_is_not_told_of_an_environment(what):
    agent = DistAsyncQLearning(seed=1, n_envs=1)
    agent.train("Blackjack-v1", total_steps=100)
    for ask in (agent.predict, agent.policy, agent.action_values):
        with pytest.raises(
            OutsideSpaceError, match=r"was given lies outside the observation space .*Discrete\(11\)"
        ) as told:
            ask(what)
        assert "environment" not in str(told.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"comm": "x"}, "comm must be a communicator of mpi4py"),
        ({"on_failure": np.array(["continue", "abort"])}, "on_failure must be one of 'continue'"),
        ({"algorithm": {"name": np.array(["q_learning"])}}, "algorithm must be one of"),
        ({"dtype": [("a", "f8")]}, "dtype must be one of 'float64', 'float32'"),
        ({"discount_factor": 10**400}, "discount_factor must be a number from 0 to 1"),
        ({"learning_rate": 10**400}, "value must be finite"),
        ({"compression_threshold": 10**400}, "compression_threshold must be a number finite"),
        ({"batch_size": 10**9}, r"batch_size must be below 2\*\*20"),
        ({"n_envs": 10**6}, r"n_envs must be below 2\*\*12"),
        ({"logical_workers": 10**6}, r"logical_workers must be below 2\*\*12"),
        ({"logical_workers": 4_000, "n_envs": 4_000, "async_updates": False}, "16,000,000 environments"),
    ],
)
def test_settings_that_cannot_be_are_told(arguments, message):
    with pytest.raises(DistClassicRLError, match=message):
        DistAsyncQLearning(**arguments)


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ("NoSuchThing-v0", "'NoSuchThing-v0' is no environment that Gymnasium can make"),
        ("no_such_module:Thing-v0", "is no environment that Gymnasium can make"),
        (len, "is no function that makes environments: it is called without arguments"),
        (dict, r"The factory returned {}\. It must return a gymnasium.Env or a gymnasium.vector.VectorEnv"),
        (lambda: MODEL, r"The factory returned TabularMDP\(.*\. Give that itself as the environment"),
        (lambda: CompiledSimulator.from_model(MODEL), r"returned CompiledSimulator\(.*\. Give that itself"),
        pytest.param(
            lambda: TabularMDP.from_function(sell, **STOCKED, tables=False),
            r"returned FunctionMDP\(.*\. Give that itself",
            marks=pytest.mark.slow,
        ),
        (lambda: "FrozenLake-v1", r"The factory returned 'FrozenLake-v1'\. Give that itself"),
    ],
)
def test_what_makes_no_environment_is_told(env, message):
    with pytest.raises(DistClassicRLError, match=message):
        DistAsyncQLearning().train(env, total_steps=100)
