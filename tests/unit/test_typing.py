"""What users write is checked by mypy against the types that the package ships."""

import dataclasses
import re
import subprocess
import sys
import typing
from pathlib import Path

import pytest

from dist_classicrl import DistAsyncQLearning
from dist_classicrl.checkpoint.plan import CheckpointPlan
from dist_classicrl.checks import OneOf, Or
from dist_classicrl.settings import Settings

ROOT = Path(__file__).resolve().parents[2]

RIGHT = """
from collections.abc import Callable

import gymnasium as gym
import numpy as np
from dist_classicrl import DistAsyncQLearning, EvaluationResult, Policy, TabularMDP, TrainingResult
from dist_classicrl.callbacks import BaseCallback, EvalCallback
from dist_classicrl.schedules import Linear, PerVisit, Piecewise


class Corridor(gym.Env[int, int]):
    pass


def make() -> gym.Env[int, int]:
    return Corridor()


def heard(told: dict[str, object]) -> bool:
    return True


agent = DistAsyncQLearning(learning_rate=PerVisit(0.7), epsilon=Linear(1.0, 0.1, 1000), dtype=np.float32)
falls = Piecewise([(0, 1.0), (50_000, 0.1)])
course = Piecewise.from_function(lambda made: 1.0 - made**2, fraction=1.0)
stairs = Piecewise(np.array([[0.0, 0.5], [1.0, 0.1]]), steps=100)
scheduled = DistAsyncQLearning(epsilon=falls, learning_rate=stairs)
other = DistAsyncQLearning(learning_rate=1, epsilon=0.5, sync_frequency="auto", algorithm="q_learning")
model = TabularMDP.from_arrays([[[1.0]]], [[0.0]], [1.0], max_episode_steps=3, name="one")
calls: list[BaseCallback] = [EvalCallback("FrozenLake-v1")]
for env in ("FrozenLake-v1", make, Corridor, Corridor(), model, gym.make_vec("FrozenLake-v1")):
    pass
agent.train("FrozenLake-v1", total_steps=3, callbacks=calls, resume="must")
agent.train(make, 3, callbacks=heard)
agent.train(Corridor, 3, callbacks=[heard, EvalCallback(make)])
agent.train(Corridor(), 3, new_env=True)
agent.train(model, 3)
result: TrainingResult = agent.train(gym.make_vec("FrozenLake-v1"), 3)
policy: Policy = agent.policy
values: np.ndarray = agent.action_values([0, 1])
evaluation: EvaluationResult = agent.evaluate(lambda: gym.make("FrozenLake-v1"))
loaded: DistAsyncQLearning = DistAsyncQLearning.load_model("x", env=make)
reveal_type(DistAsyncQLearning.load_model("x"))
"""

# Each line has what mypy must say of it.
WRONG = """
from dist_classicrl import DistAsyncQLearning, TabularMDP
from dist_classicrl.schedules import PerVisit

agent = DistAsyncQLearning(learning_rat=0.1)  # "learning_rat"
DistAsyncQLearning(learning_rate="fast")  # "learning_rate" .* "str"
DistAsyncQLearning(epsilon=PerVisit(0.7))  # "epsilon" .* "PerVisit"
DistAsyncQLearning(on_failure="retry")  # "on_failure"
agent.train(3, total_steps=10)  # "train" .* "int"
agent.train("FrozenLake-v1", total_step=10)  # "total_step"
agent.train("FrozenLake-v1", 10, callbacks=7)  # "callbacks" .* "int"
agent.train("FrozenLake-v1", 10, resume="yes")  # "resume"
agent.evaluate("FrozenLake-v1", n_eval_episodes=3)  # "n_eval_episodes"
agent.learn("logged.npz", method="batch")  # "learn"
TabularMDP.from_arrays([[[1.0]]], [[0.0]], [1.0], max_steps=3)  # "max_steps"
"""


def mypy(path):
    """Return the lines that mypy says of a script, which finds the package as an installed one."""
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports", "silent", "--hide-error-context"]
    command += ["--no-error-summary", "--config-file", str(path.parent / "none.ini")]
    (path.parent / "none.ini").write_text("[mypy]\n[mypy-numba.*,fsspec.*]\nignore_missing_imports = True\n")
    found = {"MYPYPATH": str(ROOT / "src"), "PATH": ""}
    done = subprocess.run(
        [*command, "--cache-dir", str(ROOT / ".mypy_cache" / "user"), str(path)],
        capture_output=True,
        text=True,
        env=found,
        timeout=300.0,
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.slow
def test_mypy_finds_what_is_wrong_in_a_users_script_and_nothing_else(tmp_path):
    (tmp_path / "wrong.py").write_text(WRONG)
    said = dict(re.findall(r"wrong\.py:(\d+): error: (.*)", "\n".join(mypy(tmp_path / "wrong.py"))))
    expected = {
        str(number): line.split("  # ")[1]
        for number, line in enumerate(WRONG.splitlines(), 1)
        if "  # " in line
    }
    assert set(said) == set(expected)
    for number, words in expected.items():
        assert re.search(words, said[number]), (words, said[number])
    (tmp_path / "right.py").write_text(RIGHT)
    (line,) = [line for line in mypy(tmp_path / "right.py") if "note: See" not in line]
    assert re.search(r'Revealed type is ".*DistAsyncQLearning"', line)
    (tmp_path / "typed.py").write_text((ROOT / "examples" / "typed.py").read_text())
    assert mypy(tmp_path / "typed.py") == []


@pytest.mark.parametrize(
    ("function", "kind"),
    [(DistAsyncQLearning.__init__, Settings), (DistAsyncQLearning.train, CheckpointPlan)],
)
def test_the_words_in_a_signature_are_those_that_the_settings_allow(function, kind):
    annotations = function.__wrapped__.__annotations__
    names = {"Literal": typing.Literal, "Any": typing.Any}
    checked = []
    for field in dataclasses.fields(kind):
        check, told = field.metadata["check"], annotations[field.name]
        words = re.findall(r"Literal\[.*?\]", told)
        if words:
            literal = set(typing.get_args(eval(words[0], names)))
            allowed = {check.word} if isinstance(check, Or) else set(check.words)
            assert literal == allowed, field.name
            checked.append(field.name)
        elif isinstance(check, OneOf):
            assert field.name in ("algorithm", "behavior", "compression", "dtype"), (
                f"{field.name} has words, and its type does not say so"
            )
    assert checked
