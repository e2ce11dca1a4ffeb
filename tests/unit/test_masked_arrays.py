"""What a masked array hides counts nowhere as a number: each part refuses it, and says what to give."""

import numpy as np
import pytest

from dist_classicrl import DistAsyncQLearning, TabularMDP
from dist_classicrl.data import Transitions, estimate_value
from dist_classicrl.environments.problems.queues import access_control
from dist_classicrl.errors import ModelError, PlotError, SettingsError, StudyError
from dist_classicrl.plotting import map_of
from dist_classicrl.sweep.comparison import compare
from dist_classicrl.sweep.summaries import curve_with_interval

MODEL = TabularMDP.garnet(2, 2, 1, seed=1)
CHANCES = np.ma.array([[0.5, 0.5], [0.5, 0.5]], mask=[[0, 0], [0, 1]])
LOGGED = Transitions([0, 1], [0, 1], [1.0, 0.0], [1, 0], [False, True])
TWO = np.ma.array([1.0, 2.0], mask=[0, 1])


def of_scores(hidden):
    compare({"t": {"a": hidden, "b": [0.3, 0.4]}}, "a", "b", resamples=100, permutations=100)


def assign_table(hidden):
    DistAsyncQLearning(state_size=2, action_size=2).q_table = hidden


def predict_masked(hidden):
    agent = DistAsyncQLearning(state_size=2, action_size=2)
    agent.q_table = np.eye(2)
    agent.predict(0, hidden)


def model_of(hidden):
    transition = np.zeros((2, 2, 2))
    transition[:, :, 1] = 1.0
    TabularMDP.from_arrays(transition, hidden, [1, 0], terminated=np.ones((2, 2, 2), bool))


@pytest.mark.parametrize(
    "use, hidden, error, told",
    [
        (of_scores, np.ma.array([0.1, 1e6], mask=[0, 1]), StudyError, "Scores of 'a' in 't'"),
        (curve_with_interval, CHANCES, StudyError, "Curves"),
        (assign_table, CHANCES, SettingsError, "q_table"),
        (predict_masked, np.ma.array([True, True], mask=[1, 0]), SettingsError, "action_mask"),
        (model_of, np.ma.array([[1.0, 999.0], [0.0, 0.0]], mask=[[0, 1], [0, 0]]), ModelError, "reward"),
        (lambda hidden: DistAsyncQLearning(behavior=hidden), CHANCES, SettingsError, "behavior"),
        (lambda hidden: MODEL.policy_value(hidden, 0.9), CHANCES, SettingsError, "policy"),
        (
            lambda hidden: MODEL.solve_finite_horizon(2, final_values=hidden),
            TWO,
            SettingsError,
            "final_values",
        ),
        (lambda hidden: MODEL.start_value(hidden), TWO, ModelError, "v"),
        (lambda hidden: estimate_value(LOGGED, hidden, 0.9), CHANCES, SettingsError, "policy"),
        (lambda hidden: access_control(payments=hidden), TWO, SettingsError, "payments"),
        (lambda hidden: map_of(hidden, "FrozenLake-v1"), CHANCES, PlotError, "q_table"),
    ],
)
def test_what_is_hidden_is_no_number(use, hidden, error, told):
    with pytest.raises(error, match=rf"^{told} is a masked array that hides 1 of its numbers.*\.filled\("):
        use(hidden)


def test_a_masked_array_that_hides_nothing_is_an_array():
    agent = DistAsyncQLearning(state_size=2, action_size=2)
    agent.q_table = np.ma.array(np.eye(2))
    assert agent.predict([0, 1], np.ma.array([[True, True], [True, False]])).tolist() == [0, 0]
