"""What is asked for at a step happens there: in one process, alone and in the rounds of logical workers."""

import math
import re

import gymnasium
import numpy as np
import pytest
from own_signals import own_signals, stop_after

from dist_classicrl import DistAsyncQLearning, TabularMDP
from dist_classicrl.callbacks import (
    BaseCallback,
    EvalCallback,
    EveryNTimesteps,
    MetricsCallback,
    StopTrainingOnReturn,
    StopTrainingOnRewardThreshold,
)
from dist_classicrl.checkpoint.folder import CheckpointFolder
from dist_classicrl.cli.main import main
from dist_classicrl.engines.outcome import Tally
from dist_classicrl.errors import SettingsError, TrainingStopped
from dist_classicrl.model import places
from dist_classicrl.monitoring import read_metrics
from dist_classicrl.monitoring.reading import COLUMNS

LAKE = TabularMDP.from_gymnasium("FrozenLake-v1")
MODES = pytest.mark.parametrize("async_updates", [True, False], ids=["alone", "reproducible"])
ROUND = 3 * 4 * 8
#: A round has 96 steps.
IN_ROUNDS = {"async_updates": False, "logical_workers": 3, "sync_frequency": 4, "batch_size": 8}
TIMES = {"time", "seconds", "steps_per_second", "communication_fraction"}


@pytest.fixture(autouse=True)
def only_the_signals_of_this_test(monkeypatch):
    with own_signals(monkeypatch):
        yield


@pytest.fixture
def restart(monkeypatch):
    """Give a function after which agents are numbered as in a new process."""
    monkeypatch.setattr(places, "_agents", {})
    return places._agents.clear


class Steps(BaseCallback):
    """Notes the steps of reports."""

    def __init__(self):
        super().__init__()
        self.reported = []

    def _on_step(self):
        assert self.num_timesteps == self.model.visits.sum()  # the agent is that of this step
        self.reported.append(self.num_timesteps)


def points(total, begin=0):
    """Return where 200 reports of a call are, by the definition."""
    return [begin + math.ceil(point * total / 200) for point in range(1, 201)]


def ends_of_rounds(steps, total, size=ROUND):
    """Return the end of the first round at or after each of these steps, once each."""
    return sorted({min(total, -(-step // size) * size) for step in steps})


def test_evaluations_are_at_the_multiples_that_the_command_line_asks_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ("--total-steps", "1e6", "--eval-every", "1e5", "--eval-episodes", "2", "-q")
    assert main(["train", "FrozenLake-v1", *words, "--out", "run"]) == 0
    with np.load("run/evaluations.npz", allow_pickle=False) as saved:
        assert saved["timesteps"].tolist() == list(range(100_000, 1_000_001, 100_000))
    # Where a second passes, there is a report besides.
    assert set(points(1_000_000)) <= set(read_metrics("run")["step"].tolist())


def test_a_run_ends_with_the_evaluation_that_is_good_enough():
    stop = StopTrainingOnRewardThreshold(0.6)
    evaluation = EvalCallback(LAKE, callback_on_new_best=stop, eval_freq=7_000, n_eval_episodes=200)
    agent = DistAsyncQLearning(seed=1, epsilon=0.3)
    result = agent.train(LAKE, total_steps=50_000_000, callbacks=evaluation)
    *before, last = evaluation.log.means
    assert result.steps == agent.steps == agent.visits.sum() == 7_000 * len(evaluation.log.means)
    assert last >= 0.6 and all(mean < 0.6 for mean in before)
    # The table of the last evaluation, and no step beyond.
    other = DistAsyncQLearning(seed=1, epsilon=0.3)
    other.train(LAKE, total_steps=result.steps)
    assert other.q_table.tobytes() == agent.q_table.tobytes()


@MODES
def test_a_run_ends_at_the_point_at_which_its_return_is_high_enough(async_updates):
    agent = DistAsyncQLearning(seed=1, epsilon=0.3, async_updates=async_updates)
    result = agent.train(LAKE, total_steps=1_000_000, callbacks=StopTrainingOnReturn(0.05))
    expected = points(1_000_000)
    if not async_updates:
        expected = ends_of_rounds(expected, 1_000_000, 16 * 32 * 32)
    assert result.steps in expected[:-1]
    assert result.steps == agent.visits.sum()


@pytest.mark.parametrize("total", [3_000_000, 4_001, 77])
def test_a_run_is_recorded_at_two_hundred_points_whatever_its_length(total, tmp_path):
    DistAsyncQLearning(seed=1).train(LAKE, total_steps=total, callbacks=MetricsCallback(tmp_path))
    assert read_metrics(tmp_path)["step"].tolist() == sorted(set(points(total)))


def test_a_second_call_has_points_of_its_own_and_the_same_multiples():
    agent, steps, every = DistAsyncQLearning(seed=1), Steps(), Steps()
    agent.train(LAKE, total_steps=1_234)
    agent.train(LAKE, total_steps=10_000, callbacks=[steps, EveryNTimesteps(3_000, every)])
    asked = range(3_000, 11_234, 3_000)
    assert every.reported == list(asked)
    assert steps.reported == sorted({*points(10_000, 1_234), *asked})


@pytest.mark.slow
@MODES
def test_what_a_run_learns_does_not_depend_on_what_is_asked_for_on_the_way(async_updates):
    env = TabularMDP.garnet(30, 3, 4, seed=3, max_episode_steps=17)
    plain, asked = (DistAsyncQLearning(seed=4, async_updates=async_updates) for _ in range(2))
    without = plain.train(env, total_steps=70_001)
    callbacks = [EvalCallback(env, eval_freq=777, n_eval_episodes=1), EveryNTimesteps(13_001, Steps())]
    with_them = asked.train(env, total_steps=70_001, callbacks=callbacks)
    assert plain.q_table.tobytes() == asked.q_table.tobytes()
    assert plain.visits.tobytes() == asked.visits.tobytes()
    told = ("steps", "episodes", "mean_return", "mean_length")
    assert [getattr(without, name) for name in told] == [getattr(with_them, name) for name in told]


class Corridor(gymnasium.Env):
    """Three places, stepped."""

    observation_space = gymnasium.spaces.Discrete(3)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = 0
        return 0, {}

    def step(self, action):
        self.place = min(2, self.place + int(action))
        return self.place, float(self.place == 2), self.place == 2, False, {}


@pytest.mark.slow
def test_in_a_stepped_environment_it_is_at_the_end_of_the_batch():
    every = Steps()
    agent = DistAsyncQLearning(seed=1, batch_size=8, n_envs=4)
    agent.train(Corridor, total_steps=1_001, callbacks=EveryNTimesteps(100, every))
    assert every.reported == [-(-step // 8) * 8 for step in range(100, 1_001, 100)]


def test_in_the_reproducible_mode_it_is_at_the_end_of_the_round():
    every, steps = Steps(), Steps()
    agent = DistAsyncQLearning(seed=1, **IN_ROUNDS)
    # Neither time nor checkpoints are reported.
    agent.train(LAKE, total_steps=30_000, callbacks=[EveryNTimesteps(1_000, every), steps])
    asked = list(range(1_000, 30_001, 1_000))
    assert every.reported == ends_of_rounds(asked, 30_000)
    assert steps.reported == ends_of_rounds([*asked, *points(30_000)], 30_000)


@pytest.mark.slow
@pytest.mark.parametrize("interval", ["1ms", 1_000])
def test_rows_of_a_reproducible_run_that_was_stopped_are_those_of_one_that_was_not(
    interval, tmp_path, restart
):
    env = TabularMDP.garnet(30, 3, 4, seed=3, max_episode_steps=17)

    def train(name, **more):
        agent = DistAsyncQLearning(seed=2, **IN_ROUNDS)
        saving = {"checkpoint_dir": tmp_path / name / "saved", "checkpoint_interval": interval}
        metrics = MetricsCallback(tmp_path / name)
        return agent.train(env, total_steps=40_000, callbacks=[metrics], **saving, **more)

    def rows(name):
        metrics = read_metrics(tmp_path / name)
        return {column: metrics[column].tolist() for column in COLUMNS if column not in TIMES}

    train("whole")
    restart()
    for steps in (1, 9_999, 20_000):
        arguments = stop_after(steps)
        del arguments["progress_interval"]
        with pytest.raises(TrainingStopped):
            train("stopped", **arguments)
        restart()
    assert train("stopped").resumed_from
    assert rows("stopped") == rows("whole")
    assert rows("whole")["step"] == ends_of_rounds(points(40_000), 40_000)


@pytest.mark.slow
@MODES
def test_checkpoints_by_steps_are_at_multiples_and_so_are_those_after_a_stop(
    async_updates, tmp_path, restart
):
    settings = {"seed": 1} if async_updates else {"seed": 1, **IN_ROUNDS}
    saving = {"checkpoint_dir": tmp_path, "checkpoint_interval": 300_000, "keep_last": 100}
    with pytest.raises(TrainingStopped) as stopped:
        DistAsyncQLearning(**settings).train(LAKE, total_steps=1_000_000, **saving, **stop_after(450_001))
    restart()
    DistAsyncQLearning(**settings).train(LAKE, total_steps=1_000_000, **saving)
    names = [path.name for path in tmp_path.glob("agent-0/*step*")]
    saved = sorted(int(re.search(r"step(\d+)", name)[1]) for name in names)
    multiples = [300_000, 600_000, 900_000]
    if not async_updates:
        multiples = ends_of_rounds(multiples, 1_000_000)
    # One at which the last is not on disk yet is left out.
    assert saved[:2] == [multiples[0], stopped.value.steps] and saved[-1] == 1_000_000
    assert set(saved[2:-1]) <= set(multiples)


def test_a_checkpoint_that_does_not_say_what_was_reported_is_taken_up(tmp_path, restart, monkeypatch):
    """As those of earlier versions are."""
    with monkeypatch.context() as patch:
        to_dict = Tally.to_dict

        def as_it_was(self, seconds):
            data = to_dict(self, seconds)
            del data["reported"]
            return data

        patch.setattr(Tally, "to_dict", as_it_was)
        with pytest.raises(TrainingStopped):
            agent = DistAsyncQLearning(seed=1)
            agent.train(LAKE, total_steps=100_000, checkpoint_dir=tmp_path, **stop_after(20_000))
    (folder,) = tmp_path.iterdir()
    saved = CheckpointFolder(tmp_path, folder.name).read_newest()
    assert saved is not None and "reported" not in saved.body["tally"]
    restart()
    reports = []
    result = DistAsyncQLearning(seed=1).train(
        LAKE, total_steps=100_000, checkpoint_dir=tmp_path, progress=reports.append
    )
    assert result.resumed_from and result.steps == 100_000
    before = saved.body["tally"]["episodes"]
    assert before + sum(report.episodes for report in reports) == result.episodes


@pytest.mark.parametrize("answer", [0, 99, 100, 100.5, "101", True])
def test_a_callback_that_asks_for_a_step_that_is_over_is_refused(answer):
    class Wrong(BaseCallback):
        def _next_step(self, after):
            return answer if after == 100 else 100

    with pytest.raises(SettingsError, match=r"Wrong._next_step\(100\) must return a whole number above 100"):
        DistAsyncQLearning(seed=1).train(LAKE, total_steps=1_000, callbacks=Wrong())


def test_reports_by_time_come_besides_where_that_is_asked_for(tmp_path):
    steps = Steps()
    agent = DistAsyncQLearning(seed=1, **IN_ROUNDS)
    agent.train(LAKE, total_steps=4 * 200 * ROUND, callbacks=steps, progress_interval=0.0)
    assert set(points(4 * 200 * ROUND)) < set(steps.reported)
