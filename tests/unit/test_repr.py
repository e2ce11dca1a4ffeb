"""What a notebook or a terminal shows of an object: a line, with rounded numbers."""

import re

import numpy as np
import pytest

from dist_classicrl import (
    CompiledSimulator,
    DistAsyncQLearning,
    EvaluationResult,
    Progress,
    TabularMDP,
    TrainingResult,
)
from dist_classicrl.callbacks import MetricsCallback
from dist_classicrl.evaluation.exact import ExactValue, exact_value
from dist_classicrl.monitoring import read_metrics
from dist_classicrl.schedules import PerVisit

MODEL = TabularMDP.from_gymnasium("FrozenLake-v1")
NUMBER = r"-?\d[\d,]*(\.\d+)?(e[+-]\d+)?"


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """What is shown of each object that a small training leaves."""
    folder = tmp_path_factory.mktemp("run")
    agent = DistAsyncQLearning(learning_rate=PerVisit(0.7), seed=3)
    reports = []
    result = agent.train(
        MODEL, total_steps=100_000, progress=reports.append, callbacks=MetricsCallback(folder)
    )
    evaluation = agent.evaluate(MODEL, episodes=100)
    things = [agent, result, reports[-1], evaluation, MODEL.solve(0.99), agent.policy]
    things += [CompiledSimulator.from_model(MODEL), exact_value(MODEL, agent.q_table, 0.99)]
    return {type(thing).__name__: repr(thing) for thing in [*things, read_metrics(folder)]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (
            "DistAsyncQLearning",
            r"100,000 steps in FrozenLake-v1 \(16 states, 4 actions\), algorithm='q_learning', learning_rate="
            r"PerVisit\(.*0\.7.*\), epsilon=.*, discount_factor=0\.99, seed=3",
        ),
        (
            "TrainingResult",
            r"100,000 steps, [\d,]+ episodes, mean return N, mean length N, N s, N steps/s, 1 worker",
        ),
        ("Progress", r"100,000 of 100,000 steps, N s, N steps/s, [\d,]+ episodes, mean return N"),
        ("EvaluationResult", r"100 episodes, \d+ of them cut off, mean return N ± N, mean length N"),
        ("Solution", r"16 states, 4 actions, values from 0 to 0\.8628, [\d,]+ iterations, residual N"),
        ("Policy", r"16 states, 4 actions, 11 states visited"),
        ("CompiledSimulator", r"'FrozenLake-v1', 16 states, 4 actions, max_episode_steps=100"),
        ("ExactValue", r"N, the best is 0\.542, N% below it, discount factor 0\.99"),
        ("Metrics", r"\d+ reports to step 100,000, columns .*mean_return.*"),
    ],
)
def test_each_is_shown_in_a_line_with_what_matters(shown, kind, words):
    text = shown[kind]
    assert re.fullmatch(rf"{kind}\({words.replace('N', NUMBER)}\)", text), text
    assert "\n" not in text and (len(text) < 250 or kind == "Metrics")
    assert not re.search(r"\d\.\d{6}", text), "numbers are rounded"


def test_what_has_nothing_to_show_is_shown_as_well():
    assert re.fullmatch(r"DistAsyncQLearning\(0 steps, algorithm=.*, seed=None\)", repr(DistAsyncQLearning()))
    assert repr(ExactValue(0.9, 1.0 + 1e-9, 1.0)) == (
        "ExactValue(1, the best is 1, 0.00% below it, discount factor 0.9)"
    )
    assert repr(TrainingResult()) == "TrainingResult(0 steps, 0 episodes, 0 s, 0 steps/s, 0 workers)"
    lost = repr(TrainingResult(steps=5, workers=2, lost_workers=(1, 3), resumed_from="saved/agent-0/f1"))
    assert lost.endswith("2 workers, lost 1, 3, resumed from saved/agent-0/f1)")
    assert repr(Progress(0, 10)) == "Progress(0 of 10 steps, 0 s, 0 steps/s, 0 episodes)"
    one = EvaluationResult(np.array([2.0]), np.array([7]))
    assert repr(one) == "EvaluationResult(1 episode, mean return 2, mean length 7)"
    cut = EvaluationResult(np.array([2.0, 2.0]), np.array([7, 9]), 1)
    assert repr(cut).startswith("EvaluationResult(2 episodes, 1 of them cut off, mean return 2 ±")
