"""Callbacks: who is called when, what ends a training, evaluations and early stopping."""

import copy
import errno
import functools
import inspect
import logging
import math
import pickle
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import gymnasium
import numpy as np
import pytest
from callback_reports import Reports, event
from rank_environments import SteppedLake

from dist_classicrl import DistAsyncQLearning, callbacks
from dist_classicrl.agent.agent import state_of
from dist_classicrl.callbacks import (
    BaseCallback,
    CallbackList,
    ConvertCallback,
    EvalCallback,
    EveryNTimesteps,
    MetricsCallback,
    MlflowCallback,
    StopTrainingOnNoModelImprovement,
    StopTrainingOnNoReturnImprovement,
    StopTrainingOnReturn,
    StopTrainingOnRewardThreshold,
    WandbCallback,
    callback_list,
)
from dist_classicrl.engines.outcome import Tally
from dist_classicrl.engines.progress import Reporter
from dist_classicrl.environments import TabularMDP
from dist_classicrl.environments.identity import Identity
from dist_classicrl.errors import CheckpointError, SettingsError, UnknownAttributeError
from dist_classicrl.model import places
from dist_classicrl.model.places import Places
from dist_classicrl.monitoring import read_metrics
from dist_classicrl.process.leave import LeaveWatch


class Diary(BaseCallback):
    """Notes what it hears."""

    def __init__(self, answer=True):
        super().__init__()
        self.answer = answer
        self.heard = []

    def _note(self, what):
        self.heard.append((what, self.num_timesteps))

    def _init_callback(self):
        self._note("init")

    def _on_training_start(self):
        self._note("training_start")

    def _on_rollout_start(self):
        self._note("rollout_start")

    def _on_rollout_end(self):
        self._note("rollout_end")

    def _on_step(self):
        self._note("step")
        return self.answer

    def _on_training_end(self):
        self._note(f"training_end {self.result}")

    def _on_close(self):
        self._note("close")

    def _on_worker_lost(self, event):
        self._note(f"lost {event['rank']}")

    def _on_worker_joined(self, event):
        self._note(f"joined {event['rank']}")

    def _on_failover(self, event):
        self._note(f"failover {event['rank']}")

    def _on_checkpoint(self, steps, name):
        self._note(f"checkpoint {name} {steps}")


def test_callbacks_before_one_that_cannot_begin_are_closed():
    class Failing(Diary):
        def _init_callback(self):
            super()._init_callback()
            raise RuntimeError("no beginning")

    class Stuck(Diary):
        def _on_close(self):
            super()._on_close()
            raise OSError("no end")

    first, failing, last = Stuck(), Failing(), Diary()
    with pytest.raises(RuntimeError, match="no beginning"):
        DistAsyncQLearning(seed=1).train(
            corridor(), total_steps=100, callbacks=[first, CallbackList([failing, last])]
        )
    assert [what for what, _ in first.heard] == ["init", "close"]
    assert [what for what, _ in failing.heard] == ["init"] and not last.heard


class PushDiary(Diary):
    def _on_push(self, rank, steps, staleness, n_bytes):
        self._note((rank, steps, staleness, n_bytes))


def test_the_public_names():
    for name in callbacks.__all__:
        assert getattr(callbacks, name).__name__ == name
        assert name in dir(callbacks)
    assert "train(checkpoint_dir=" in callbacks.__doc__
    code = "import sys, dist_classicrl.callbacks as c; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize(
    ("name", "written", "argument"),
    [
        ("CheckpointCallback", r"train\(checkpoint_dir=\.\.\.", "checkpoint_dir"),
        ("LogEveryNTimesteps", r"train\(progress_interval=\.\.\.\), in seconds", "progress_interval"),
        ("ProgressBarCallback", r"train\(progress_bar=True", "progress_bar"),
        ("StopTrainingOnMaxEpisodes", r"train\(total_episodes=", "total_episodes"),
    ],
)
def test_what_is_no_callback_here_is_told_where_it_is_asked_for(name, written, argument):
    with pytest.raises(ImportError, match=f"dist_classicrl.callbacks has no {name}: write {written}"):
        exec(f"from dist_classicrl.callbacks import EvalCallback, {name}")
    with pytest.raises(AttributeError, match=f"has no {name}: write {written}"):
        getattr(callbacks, name)
    assert not hasattr(callbacks, name) and name not in dir(callbacks)
    assert argument in inspect.signature(DistAsyncQLearning.train).parameters
    with pytest.raises(ImportError, match="cannot import name 'EvilCallback'"):
        exec("from dist_classicrl.callbacks import EvilCallback")


# Lists, functions, and what each hears


def test_everything_is_heard_in_order():
    first, second = Diary(), Diary()
    run = Reports([first, CallbackList([second])])
    run.start(100, before=40)
    assert run.report(160)
    run.callbacks.on_worker_lost(event("left", 3))
    run.callbacks.on_worker_joined(event("replaced", 3))
    run.callbacks.on_failover(event("failover", 1))
    run.callbacks.on_checkpoint(160, "c1")
    run.end("done")
    assert first.heard == [
        ("init", 0),
        ("training_start", 100),
        ("rollout_start", 100),
        ("rollout_end", 160),
        ("step", 160),
        ("rollout_start", 160),
        ("lost 3", 160),
        ("joined 3", 160),
        ("failover 1", 160),
        ("checkpoint c1 160", 160),
        ("training_end done", 160),
        ("close", 160),
    ]
    assert second.heard == first.heard
    for one in (first, second):
        assert one.model is run.agent and one.parent is None and one.n_calls == 1
        assert one.progress.steps == 120 and one.result == "done"


def test_pushes_are_heard_by_those_who_want_them():
    plain, wanting = Diary(), PushDiary()
    assert not callback_list([plain]).wants_pushes
    every = EveryNTimesteps(10, wanting)
    both = Reports([plain, every]).start()
    assert both.callbacks.wants_pushes
    before = list(plain.heard)
    both.callbacks.on_push(2, 30, 1, 512)
    assert wanting.heard[-1] == ((2, 30, 1, 512), 0)
    assert plain.heard == before


@pytest.mark.parametrize(
    ("answer", "goes_on"), [(True, True), (None, True), (False, False), (np.False_, False)]
)
def test_whose_answer_is_false_ends_the_training_but_all_are_asked(answer, goes_on):
    before, after = Diary(), Diary()
    assert Reports([before, Diary(answer), after]).start().report(10) is goes_on
    assert ("step", 10) in before.heard and ("step", 10) in after.heard


@pytest.mark.parametrize(("answer", "goes_on"), [(True, True), (None, True), (False, False)])
def test_a_function(answer, goes_on):
    told = []

    def function(locals_):
        told.append(locals_)
        return answer

    run = Reports(function).start(5, before=5)
    assert run.report(10) is goes_on
    ((one,),) = [told]
    assert one["self"] is run.agent and one["num_timesteps"] == 10 and one["progress"].steps == 5


def test_a_function_that_does_not_tell_what_it_takes():
    assert Reports(max).start().report(10) is True


def test_all_are_closed_and_the_first_error_is_raised():
    class Breaks(Diary):
        def _on_close(self):
            super()._on_close()
            raise KeyError(self.answer)

    all_of_them = [Breaks("first"), Diary(), Breaks("second"), Diary()]
    run = Reports([CallbackList(all_of_them[:3]), EveryNTimesteps(10, all_of_them[3])]).start()
    with pytest.raises(KeyError, match="first"):
        run.callbacks.on_close()
    assert [one.heard[-1][0] for one in all_of_them] == ["close"] * 4


def test_what_is_recorded_is_a_number():
    callback = Diary()
    Reports(callback).start()
    for wrong in ("abc", [1.0, 2.0], None, 10**400):
        with pytest.raises(SettingsError, match=r"record\('loss', ...\) takes a number, got"):
            callback.record("loss", wrong)
    with pytest.raises(SettingsError, match="record takes a name, as text, and a number, got 5 as the name"):
        callback.record(5, 1.0)
    callback.record("found", np.bool_(True))
    assert callback.recorded == {"found": (0, 1.0)}


def test_an_exception_travels_unchanged():
    def function(locals_):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        Reports([Diary(), function]).start().report(10)


def test_nothing_is_an_empty_list():
    assert callback_list(None).callbacks == []
    assert Reports(None).start().report(10) is True
    given = CallbackList([Diary()])
    assert callback_list(given) is given


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (7, "must be a BaseCallback.*got 7"),
        (["diary"], "must be a BaseCallback.*got 'diary'"),
        ([np.float32], "got the class float32. A callback must be a BaseCallback, or a function"),
        (Diary, r"Write Diary\(...\), with \(\)"),
        (lambda: True, "must take one argument"),
        (lambda locals_, globals_: True, "must take one argument"),
    ],
)
def test_what_is_no_callback(given, complaint):
    with pytest.raises(SettingsError, match=complaint):
        callback_list(given)


def test_a_callback_that_another_one_calls_can_be_copied_and_pickled():
    parent = EveryNTimesteps(100, StopTrainingOnReturn(1.0))
    (child,) = parent.children
    child.parent = parent
    assert pickle.loads(pickle.dumps(child)).parent is None and copy.deepcopy(child).parent is None
    assert child.parent is parent


def test_every_so_many_steps():
    diary = Diary()
    run = Reports(EveryNTimesteps(100, diary)).start(250)
    for step in (260, 299, 300, 350, 399, 640, 650, 700):
        run.report(step)
    assert [step for what, step in diary.heard if what == "step"] == [300, 640, 700]
    assert diary.parent is run.callbacks.callbacks[0]
    diary.answer = False
    assert run.report(750) and not run.report(800)
    with pytest.raises(SettingsError, match="n_steps"):
        EveryNTimesteps(0, diary)


def test_every_so_many_steps_it_hears_what_all_reports_since_counted():
    heard = []
    run = Reports(EveryNTimesteps(100, lambda told: heard.append(told["progress"]))).start(50)
    run.report(90, episodes=30, mean_return=1.0, td_error=1.0, events=(event(),))
    run.report(100, episodes=10, mean_return=5.0, td_error=2.0, events=(event("cleared"),))
    run.report(150, episodes=1, mean_return=3.0, td_error=math.nan)
    run.report(250, episodes=0, mean_return=math.nan, td_error=0.5)
    first, second = heard
    assert (first.episodes, first.mean_return, first.pushes) == (40, 2.0, 8)
    assert first.td_error == pytest.approx((40 * 1.0 + 10 * 2.0) / 50)
    assert first.steps_per_second == pytest.approx(50 / 0.05)  # a step takes a millisecond
    assert [each["kind"] for each in first.events] == ["excluded", "cleared"]
    assert (second.episodes, second.mean_return, second.td_error) == (1, 3.0, 0.5)


def test_the_end_is_reported_once():
    def end(told):
        heard.append(told["progress"])
        return told["num_timesteps"] < 500

    for episodes in (None, 5):
        heard, reports = [], []
        agent = DistAsyncQLearning(seed=1)
        agent.train("FrozenLake-v1", 1_000, total_episodes=episodes, callbacks=end, progress=reports.append)
        steps = [each.steps for each in heard]
        assert reports == heard and steps == sorted(set(steps)) and heard[-1].steps_per_second > 0.0


def test_a_process_that_goes_on_at_the_end_reports_it_though_another_may_have():
    told = []
    tally = Tally(steps=100, total_steps=100)
    tally.reported = tally.copy()
    reporter = Reporter(
        tally,
        SimpleNamespace(
            reported=lambda progress: told.append(progress.steps) or True,
            started=lambda progress, reported: None,
            next_step=lambda steps, total: math.inf,
        ),
    )
    for _ in range(2):
        reporter.report_end(1.0, [])
    assert told == [100]


# Evaluation

DISCOUNT = 0.5


def corridor(**options):
    """Four places: action 1 goes on and is paid 1 at the end, action 0 ends the episode at 0.25."""
    transition, reward = np.zeros((4, 2, 4)), np.zeros((4, 2, 4))
    for place in range(3):
        transition[place, 0, 3] = transition[place, 1, place + 1] = 1.0
        reward[place, 0, 3] = 0.25
    reward[2, 1, 3] = 1.0
    transition[3, :, 3] = 1.0
    return TabularMDP.from_arrays(
        transition, reward, [1.0, 0, 0, 0], terminated=[False, False, False, True], **options
    )


VALUES = {"end": 0.25, "go on": 0.25, "tie": 0.5 * 0.25 + 0.5 * DISCOUNT * (0.5 * 0.25 + 0.5 * DISCOUNT)}


def test_the_model_of_these_tests():
    model = corridor()
    assert model.start_value(model.solve(DISCOUNT).v) == 0.25


class Learner:
    """An agent that plays as it is told, and the reports of its training."""

    def __init__(self, callback, **settings):
        self.run = Reports(callback, discount_factor=DISCOUNT, **settings)
        self.q = self.run.agent.q_table

    def plays(self, actions, steps):
        """Report, with an agent that prefers these actions in the first three places; None: either."""
        self.q[:] = 0.0
        for place, action in enumerate(actions):
            if action is not None:
                self.q[place, action] = 1.0
        return self.run.report(steps)


END, ON, TWICE, TIE = (0, 0, 0), (1, 1, 1), (1, 1, 0), (None, None, 1)


def test_mean_return_and_exact_value(tmp_path):
    evaluation = EvalCallback(corridor(), n_eval_episodes=400, eval_freq=100, log_path=tmp_path)
    learner = Learner(evaluation)
    learner.run.start()
    assert evaluation.last_mean_reward == evaluation.best_mean_reward == -math.inf
    learner.plays(ON, 99)
    assert evaluation.log.timesteps == []
    for steps, actions, mean, exact in (
        (100, TWICE, 0.25, DISCOUNT**2 * 0.25),
        (250, END, 0.25, 0.25),
        (300, TIE, None, VALUES["tie"]),
        (400, ON, 1.0, DISCOUNT**2),
    ):
        assert learner.plays(actions, steps)
        assert evaluation.last_exact_value == pytest.approx(exact)
        if mean is None:
            assert evaluation.last_mean_reward == pytest.approx(0.75 * 0.25 + 0.25 * 1.0, abs=0.08)
        else:
            assert evaluation.last_mean_reward == mean
        learner.plays(END, steps + 49)  # not yet
    with np.load(tmp_path / "evaluations.npz", allow_pickle=False) as saved:
        assert saved["timesteps"].tolist() == [100, 250, 300, 400]
        assert saved["results"].shape == saved["ep_lengths"].shape == (4, 400)
        assert (saved["results"][3] == 1.0).all() and (saved["ep_lengths"][3] == 3).all()
        np.testing.assert_allclose(saved["exact_values"], [0.0625, 0.25, VALUES["tie"], 0.25])
    assert learner.run.callbacks.recorded is evaluation.recorded
    assert evaluation.recorded["eval/mean_reward"] == (400, 1.0)
    assert evaluation.recorded["eval/mean_ep_length"] == (400, 3.0)
    assert evaluation.recorded["eval/exact_value"] == (400, 0.25)


def test_the_best_model_is_kept_by_its_exact_value(tmp_path):
    evaluation = EvalCallback(corridor(), eval_freq=100, best_model_save_path=tmp_path / "best")
    learner = Learner(evaluation)
    learner.run.start()
    best = []
    for steps, actions in ((100, TWICE), (200, END), (300, TIE), (400, ON), (500, END)):
        learner.plays(actions, steps)
        best.append(DistAsyncQLearning.load_model(tmp_path / "best" / "best_model.npz").steps)
    assert best == [100, 200, 200, 200, 200]
    assert evaluation.best_exact_value == evaluation.best_mean_reward == 0.25
    assert not evaluation.has_improved


class Corridor(gymnasium.Env):
    """The same, stepped."""

    observation_space = gymnasium.spaces.Discrete(4)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = 0
        return 0, {}

    def step(self, action):
        self.place = self.place + 1 if action else 3
        return self.place, (1.0 if action else 0.25) * (self.place == 3), self.place == 3, False, {}


@pytest.mark.parametrize("env", [Corridor, corridor()], ids=["stepped", "too large"])
def test_the_best_model_is_kept_by_its_mean_return_where_no_value_is_known(env, tmp_path):
    evaluation = EvalCallback(env, eval_freq=100, best_model_save_path=tmp_path, exact_states=3)
    learner = Learner(evaluation)
    learner.run.start()
    best = []
    for steps, actions in ((100, TWICE), (200, END), (400, ON), (500, END)):
        learner.plays(actions, steps)
        best.append(DistAsyncQLearning.load_model(tmp_path / "best_model.npz").steps)
    assert best == [100, 100, 400, 400]
    assert evaluation.best_mean_reward == 1.0 and math.isnan(evaluation.last_exact_value)
    assert "eval/exact_value" not in evaluation.recorded


def test_an_evaluation_takes_nothing_from_the_training():
    evaluation = EvalCallback(corridor(), eval_freq=1)
    agents = []
    for more in ((), (evaluation,)):
        learner = Learner([*more])
        learner.run.start()
        learner.plays(TIE, 10)
        agents.append(learner.run.agent)
    one, other = map(state_of, agents)
    np.testing.assert_array_equal(one.q_table, other.q_table)
    np.testing.assert_array_equal(one.visits, other.visits)
    own = {name for name, value in vars(one).items() if not isinstance(value, (tuple, LeaveWatch, Places))}
    assert {"steps", "requested", "finished", "seed", "pending", "settings"} <= own
    for name in own:
        assert getattr(one, name) == getattr(other, name), name


def test_each_evaluation_has_episodes_of_its_own_and_the_same_ones_when_made_again():
    def returns(seed=None):
        evaluation = EvalCallback(corridor(), n_eval_episodes=30, eval_freq=100, seed=seed)
        learner = Learner(evaluation)
        learner.run.start()
        learner.plays(TIE, 100)
        learner.plays(TIE, 200)
        return [each.tolist() for each in evaluation.log.results]

    assert returns() == returns() == returns(3)  # the agent's seed
    assert returns()[0] != returns()[1]
    assert returns(4) != returns()


def test_a_policy_that_never_ends(caplog):
    """At discount factor 1 its value is minus infinity: the mean of what was played counts instead."""
    transition = np.zeros((2, 2, 2))
    transition[0, 0, 0] = transition[0, 1, 1] = transition[1, :, 1] = 1.0
    model = TabularMDP.from_arrays(transition, -np.ones((2, 2, 2)), [1.0, 0.0], terminated=[False, True])
    evaluation = EvalCallback(model, n_eval_episodes=2, eval_freq=1, max_steps=50, verbose=1)
    run = Reports(evaluation, discount_factor=1.0).start()
    with caplog.at_level(logging.INFO):
        for step, action, improved in ((1, 0, True), (2, 1, True), (3, 0, False)):
            run.agent.q_table[:] = 0.0
            run.agent.q_table[0, action] = 1.0
            run.report(step)
            assert evaluation.has_improved is improved
    assert [each.tolist() for each in evaluation.log.ep_lengths] == [[50, 50], [1, 1], [50, 50]]
    np.testing.assert_array_equal(evaluation.log.exact_values, [math.nan, -1.0, math.nan])
    assert caplog.text.count("Evaluation after") == 3 and caplog.text.count("the best so far") == 2
    assert evaluation.improvements() == [True, True, False]


def test_undiscounted_values_of_a_policy_whose_episodes_end(tmp_path):
    """It may go round in states that its episodes never come to."""
    transition = np.zeros((3, 2, 3))
    transition[0, 0, 2] = transition[0, 1, 1] = transition[1, 0, 1] = transition[1, 1, 2] = 1.0
    transition[2, :, 2] = 1.0
    model = TabularMDP.from_arrays(
        transition, -np.ones((3, 2, 3)), [1.0, 0.0, 0.0], terminated=[False, False, True]
    )
    evaluation = EvalCallback(model, eval_freq=1, best_model_save_path=tmp_path)
    run = Reports(evaluation, discount_factor=1.0).start()
    run.agent.q_table[:3] = [[1.0, 0.0], [1.0, 0.0], [0.0, 0.0]]
    run.report(1)
    assert evaluation.best_exact_value == -1.0 and (tmp_path / "best_model.npz").exists()


def test_an_environment_that_does_not_fit_is_refused_at_the_start():
    with pytest.raises(SettingsError, match="16 states"):
        Reports(EvalCallback("FrozenLake-v1")).start()


def test_a_run_that_goes_on_goes_on_with_its_best_model(tmp_path):
    def begin(steps):
        evaluation = EvalCallback(corridor(), eval_freq=100, best_model_save_path=tmp_path)
        learner = Learner(evaluation)
        learner.run.start(steps)
        return evaluation, learner

    evaluation, learner = begin(0)
    for steps, actions in ((100, TWICE), (200, TIE), (300, END)):
        learner.plays(actions, steps)
    evaluation, learner = begin(250)
    assert evaluation.log.timesteps == [100, 200]
    assert evaluation.best_exact_value == VALUES["tie"]  # that of step 300 was lost
    learner.plays(TIE, 310)
    assert not evaluation.has_improved
    with np.load(tmp_path / "evaluations.npz", allow_pickle=False) as saved:
        assert saved["timesteps"].tolist() == [100, 200, 310]
    _, learner = begin(320)
    learner.plays(END, 400)
    # As good as what is in the file, though the steps of that, and its evaluation, were lost.
    assert DistAsyncQLearning.load_model(tmp_path / "best_model.npz").steps == 300

    begin(0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best_model.1.npz", "evaluations.1.npz"]


def test_what_was_lost_makes_no_difference_to_what_ends_a_training(tmp_path):
    plays = {100: TWICE, 200: END, 300: ON, 400: ON, 500: END, 600: END}

    def process(folder, start, stop):
        best, none = StopTrainingOnRewardThreshold(0.9), StopTrainingOnNoModelImprovement(2)
        learner = Learner(EvalCallback(Corridor, best, none, eval_freq=100, log_path=folder))
        learner.run.start(start)
        return [learner.plays(plays[step], step) for step in plays if start < step <= stop], none

    whole, counts = process(tmp_path / "whole", 0, 600)
    assert whole == [True, True, False, True, True, False]
    before, _ = process(tmp_path / "resumed", 0, 300)
    after, again = process(tmp_path / "resumed", 250, 600)
    assert before[:2] + after == whole
    assert again.no_improvement_evals == counts.no_improvement_evals == 3


def _evaluated_until(steps, env, folder, stop=None, **run):
    """Return an evaluation in `env` after so many steps of a run, which goes on there if it is not at 0."""
    evaluation = EvalCallback(env, eval_freq=100, best_model_save_path=folder, callback_after_eval=stop)
    learner = Learner(evaluation, **run)
    learner.run.start(steps - 100)
    goes_on = learner.plays(END, steps)
    return evaluation, goes_on


@pytest.mark.parametrize("run", ["0a1b2c3d", "another0"])
@pytest.mark.parametrize("env", [corridor(), Corridor], ids=["the same", "another"])
def test_evaluations_of_another_environment_or_agent_do_not_count(run, env, tmp_path, caplog):
    learner = Learner(EvalCallback(corridor(), eval_freq=100, best_model_save_path=tmp_path))
    learner.run.start()
    learner.plays(ON, 100)  # 1.0: no later one is better
    stop = StopTrainingOnRewardThreshold(0.9)
    evaluation, goes_on = _evaluated_until(200, env, tmp_path, stop, run=run)
    is_same = env is not Corridor and run == "0a1b2c3d"
    assert goes_on is not is_same
    assert evaluation.log.timesteps == ([100, 200] if is_same else [200])
    assert evaluation.best_mean_reward == (1.0 if is_same else 0.25)
    assert DistAsyncQLearning.load_model(tmp_path / "best_model.npz").steps == (100 if is_same else 200)
    for moved in ("evaluations.1.npz", "best_model.1.npz"):
        assert (tmp_path / moved).exists() is not is_same
    assert caplog.text.count("An earlier run's") == (0 if is_same else 2)


def test_evaluations_that_do_not_say_whose_they_are_do_not_count(tmp_path):
    _evaluated_until(200, corridor(), tmp_path)
    path = tmp_path / "evaluations.npz"
    with np.load(path, allow_pickle=False) as saved:
        arrays = dict(saved)
    assert {"run", "environment", "fingerprint"} < set(arrays)
    del arrays["run"]
    np.savez(path, **arrays)
    assert _evaluated_until(300, corridor(), tmp_path)[0].log.timesteps == [300]
    assert (tmp_path / "evaluations.1.npz").exists()


@pytest.mark.parametrize("change", ["run", "environment"])
def test_one_callback_for_several_runs_forgets_the_others(change):
    stop = StopTrainingOnNoModelImprovement(1)
    evaluation = EvalCallback(corridor(), eval_freq=100, callback_after_eval=stop)
    learner = Learner(evaluation)
    learner.run.start()
    for steps, goes_on in ((100, True), (200, True), (300, False)):
        assert learner.plays(ON, steps) is goes_on
    learner.run.end().start(300)  # the same goes on
    assert evaluation.log.timesteps == [100, 200, 300] and stop.no_improvement_evals == 2

    if change == "run":
        state_of(learner.run.agent).places.run = "another0"
    else:
        evaluation.eval_env = Corridor
    learner.run.end().start(300)
    assert evaluation.log.timesteps == [] and evaluation.best_mean_reward == -math.inf
    assert stop.no_improvement_evals == 0 and stop.n_calls == 0
    assert learner.plays(END, 400) and evaluation.has_improved


def test_each_stage_of_a_curriculum_has_a_best_model_of_its_own(tmp_path):
    calm = TabularMDP.from_gymnasium("FrozenLake-v1", is_slippery=False)
    agent = DistAsyncQLearning(seed=1)
    stages = []
    for env, goal in ((calm, 0.99), ("FrozenLake-v1", 0.99)):
        stages.append(
            EvalCallback(
                env,
                eval_freq=10_000,
                best_model_save_path=tmp_path,
                callback_after_eval=StopTrainingOnRewardThreshold(goal),
            )
        )
        result = agent.train(env, total_steps=50_000, callbacks=stages[-1], new_env=True)
    assert result.steps == 50_000 and stages[0].best_mean_reward == 1.0
    assert min(stages[1].log.timesteps) > max(stages[0].log.timesteps)
    assert DistAsyncQLearning.load_model(tmp_path / "best_model.npz").steps in stages[1].log.timesteps


def test_a_new_process_that_goes_on_from_a_checkpoint_goes_on_with_its_records(tmp_path, monkeypatch):
    def process(*calls):
        monkeypatch.setattr(places, "_agents", {})
        agent = DistAsyncQLearning(seed=1)
        evaluation = EvalCallback("FrozenLake-v1", eval_freq=1_000, log_path=tmp_path)
        callbacks = [evaluation, MetricsCallback(tmp_path)]
        for steps in calls:
            agent.train(
                "FrozenLake-v1", total_steps=steps, callbacks=callbacks, checkpoint_dir=tmp_path / "saved"
            )
        return agent, evaluation

    first, _ = process(2_000)
    again, evaluation = process(2_000, 1_000)
    assert again.run_id == first.run_id and len(first.run_id) == 8
    assert evaluation.log.timesteps == [1_000, 2_000, 3_000]
    assert read_metrics(tmp_path)["step"][[0, -1]].tolist() == [10, 3_000]
    assert not [path.name for path in tmp_path.iterdir() if ".1." in path.name]

    first.save_model(tmp_path / "model.npz")
    loaded = DistAsyncQLearning.load_model(tmp_path / "model.npz")
    assert loaded.run_id != first.run_id and loaded.learned_in == first.learned_in
    loaded.train("FrozenLake-v1", total_steps=100, callbacks=MetricsCallback(tmp_path))
    assert read_metrics(tmp_path)["step"].min() > 2_000
    assert (tmp_path / "metrics.1.jsonl").exists()


def test_a_damaged_log_is_renamed(tmp_path, caplog):
    (tmp_path / "evaluations.npz").write_bytes(b"PK\x03\x04 and no more")
    evaluation = EvalCallback(corridor(), eval_freq=100, log_path=tmp_path)
    learner = Learner(evaluation)
    learner.run.start(100)
    learner.plays(ON, 200)
    assert (tmp_path / "evaluations.1.npz").read_bytes() == b"PK\x03\x04 and no more"
    assert "cannot be read" in caplog.text
    with np.load(tmp_path / "evaluations.npz", allow_pickle=False) as saved:
        assert saved["timesteps"].tolist() == [200]


def test_a_log_of_evaluations_of_different_lengths(tmp_path):
    for start, episodes in ((0, 3), (100, 5), (200, 2)):
        evaluation = EvalCallback(corridor(), n_eval_episodes=episodes, eval_freq=100, log_path=tmp_path)
        learner = Learner(evaluation)
        learner.run.start(start)
        learner.plays(ON, start + 100)
    assert [each.size for each in evaluation.log.results] == [3, 5, 2]
    with np.load(tmp_path / "evaluations.npz", allow_pickle=False) as saved:
        assert np.isfinite(saved["results"]).sum(axis=1).tolist() == [3, 5, 2]


def test_where_nothing_can_be_written(tmp_path, caplog):
    (tmp_path / "file").touch()
    evaluation = EvalCallback(corridor(), eval_freq=100, best_model_save_path=tmp_path / "file" / "best")
    with pytest.raises(SettingsError, match="EvalCallback cannot write to"):
        Learner(evaluation).run.start()
    learner = Learner(evaluation)
    learner.run.start(100)
    assert learner.plays(ON, 200)
    assert "cannot be saved" in caplog.text


def test_that_nothing_can_be_saved_is_told_once_until_it_can(tmp_path, caplog):
    learner = Learner(EvalCallback(corridor(), eval_freq=100, best_model_save_path=tmp_path))
    learner.run.start()
    saved = tmp_path / "evaluations.npz"
    for steps, is_full in ((100, True), (200, True), (300, False), (400, True)):
        saved.unlink(missing_ok=True)
        if is_full:
            saved.mkdir(exist_ok=True)
            learner.plays(ON, steps)
            saved.rmdir()
        else:
            learner.plays(ON, steps)
    assert caplog.text.count("cannot be saved") == 2


def test_a_best_model_that_could_not_be_saved_gives_way_to_the_next_best(tmp_path, monkeypatch):
    evaluation = EvalCallback(corridor(), eval_freq=100, best_model_save_path=tmp_path)
    learner = Learner(evaluation)
    learner.run.start()
    learner.plays(TWICE, 100)

    def full(agent, path):
        raise OSError(errno.ENOSPC, "no room")

    saved = []
    with monkeypatch.context() as patch:
        patch.setattr(DistAsyncQLearning, "save_model", full)
        learner.plays(END, 200)
        with np.load(tmp_path / "evaluations.npz", allow_pickle=False) as log:
            assert log["timesteps"].tolist() == [100, 200]
    for steps, actions in ((300, TWICE), (400, TIE), (500, END), (600, ON)):
        learner.plays(actions, steps)
        saved.append(DistAsyncQLearning.load_model(tmp_path / "best_model.npz").steps)
        assert not evaluation.has_improved
    assert saved == [100, 400, 500, 500]


def test_a_best_model_that_could_not_be_saved_is_not_taken_for_saved_by_who_goes_on(tmp_path, monkeypatch):
    def process(start):
        learner = Learner(EvalCallback(corridor(), eval_freq=100, best_model_save_path=tmp_path))
        learner.run.start(start)
        return learner

    learner = process(0)
    learner.plays(TWICE, 100)
    (tmp_path / "best_model.npz").rename(tmp_path / "first.npz")
    (tmp_path / "best_model.npz").mkdir()  # so it cannot be written
    learner.plays(END, 200)
    (tmp_path / "best_model.npz").rmdir()
    (tmp_path / "first.npz").rename(tmp_path / "best_model.npz")
    process(200).plays(TIE, 300)
    assert DistAsyncQLearning.load_model(tmp_path / "best_model.npz").steps == 300


@pytest.mark.parametrize("error", [CheckpointError("It is fenced."), ValueError("it is not finite")])
def test_a_best_model_that_cannot_be_saved_as_a_folder_is_told(tmp_path, monkeypatch, caplog, error):
    def refuse(agent, path):
        raise error

    learner = Learner(EvalCallback(corridor(), eval_freq=100, best_model_save_path=tmp_path))
    learner.run.start()
    monkeypatch.setattr(DistAsyncQLearning, "save_model", refuse)
    assert learner.plays(ON, 100)
    assert f"cannot be saved: {str(error).rstrip('.')}." in caplog.text


def test_a_best_model_that_is_a_folder_is_renamed(tmp_path):
    folder = tmp_path / "best_model.npz"  # of a table that was divided between hosts
    folder.mkdir()
    (folder / "inside").touch()
    (tmp_path / "best_model.1.npz").mkdir()
    learner = Learner(EvalCallback(corridor(), eval_freq=100, best_model_save_path=tmp_path))
    learner.run.start()
    learner.plays(ON, 100)
    assert (tmp_path / "best_model.2.npz" / "inside").exists()
    assert DistAsyncQLearning.load_model(folder).steps == 100


def test_callbacks_of_an_evaluation():
    new_best, after = Diary(), Diary()
    evaluation = EvalCallback(corridor(), new_best, [after], eval_freq=100)
    learner = Learner(evaluation)
    learner.run.start()
    for steps, actions in ((50, ON), (100, TWICE), (200, TWICE), (300, END)):
        assert learner.plays(actions, steps)
    assert [step for what, step in new_best.heard if what == "step"] == [100, 300]
    assert [step for what, step in after.heard if what == "step"] == [100, 200, 300]
    assert new_best.parent is after.parent is evaluation
    after.answer = False
    assert not learner.plays(END, 400)
    after.answer, new_best.answer = True, False
    evaluation._best_score = -math.inf
    assert not learner.plays(END, 500)
    assert after.heard[-2] == ("step", 500)


# Early stopping


def test_a_mean_return_that_is_high_enough(caplog):
    stop = StopTrainingOnRewardThreshold(0.9, verbose=1)
    learner = Learner(EvalCallback(Corridor, stop, eval_freq=100))
    learner.run.start()
    assert learner.plays(TWICE, 100)
    with caplog.at_level(logging.INFO):
        assert not learner.plays(ON, 200)
    assert "Training ends after 200 steps: an evaluation's mean return is 1, and 0.9" in caplog.text


def test_a_mean_return_is_high_enough_though_another_model_has_the_better_value():
    stop = StopTrainingOnRewardThreshold(0.9)
    evaluation = EvalCallback(corridor(), callback_after_eval=stop, eval_freq=100)
    learner = Learner(evaluation)
    learner.run.start()
    assert learner.plays(END, 100)
    assert not learner.plays(ON, 200)
    assert not evaluation.has_improved and evaluation.best_mean_reward == 0.25


def test_a_new_best_mean_return_is_heard_of_though_no_model_is_better(tmp_path):
    def begun(steps):
        heard, none = Diary(), StopTrainingOnNoModelImprovement(9)
        both = [heard, StopTrainingOnRewardThreshold(0.9)]
        learner = Learner(EvalCallback(corridor(), both, none, eval_freq=100, best_model_save_path=tmp_path))
        learner.run.start(steps)
        return learner, heard, none

    def calls(heard):
        return [step for what, step in heard.heard if what == "step"]

    learner, heard, none = begun(0)
    # END has a better value than TIE, and a lower mean return.
    assert [learner.plays(each, 100 * n) for n, each in enumerate((END, END, TIE), 1)] == [True] * 3
    assert calls(heard) == [100, 300] and none.no_improvement_evals == 2
    learner, heard, none = begun(300)
    assert learner.plays(END, 400) and calls(heard) == []  # no higher than those of the process before
    assert not learner.plays(ON, 500) and calls(heard) == [500] and none.no_improvement_evals == 4
    assert DistAsyncQLearning.load_model(tmp_path / "best_model.npz").steps == 100


def test_evaluations_of_the_process_before_count_where_none_was_better(tmp_path):
    def begun(steps):
        stop = StopTrainingOnNoModelImprovement(2, min_evals=1)
        learner = Learner(
            EvalCallback(corridor(), callback_after_eval=stop, eval_freq=100, log_path=tmp_path)
        )
        learner.run.start(steps)
        return learner, stop

    learner, stop = begun(0)
    assert [learner.plays(actions, 100 * n) for n, actions in enumerate((ON, END, END), 1)] == [True] * 3
    assert stop.no_improvement_evals == 2
    learner, stop = begun(300)
    assert stop.no_improvement_evals == 2 and stop.n_calls == 3
    assert not learner.plays(END, 400)


def test_evaluations_have_the_seed_that_was_drawn():
    streams = set()
    for seed in (1, 2):
        evaluation = EvalCallback(corridor())
        run = Reports(evaluation)
        state = state_of(run.agent)
        state.settings = replace(state.settings, seed=None)
        state.seed = seed
        run.start()
        streams.add(evaluation._stream())
    assert len(streams) == 2


def test_no_better_model():
    stop = StopTrainingOnNoModelImprovement(1, min_evals=3)
    learner = Learner(EvalCallback(corridor(), callback_after_eval=stop, eval_freq=100))
    learner.run.start()
    plays = [TWICE, TWICE, TWICE, TWICE, END, TIE, TWICE]
    assert [learner.plays(actions, 100 * n) for n, actions in enumerate(plays, 1)] == [True] * 6 + [False]
    assert stop.no_improvement_evals == 2


@pytest.mark.parametrize("stop", [StopTrainingOnRewardThreshold(1.0), StopTrainingOnNoModelImprovement(1)])
def test_what_looks_at_evaluations_needs_some(stop):
    with pytest.raises(SettingsError, match=f"EvalCallback.env, callback_after_eval={type(stop).__name__}"):
        Reports([stop]).start()


def test_a_training_return_that_is_high_enough():
    run = Reports(StopTrainingOnReturn(2.0, episodes=50)).start()
    assert run.report(10, episodes=49, mean_return=9.0)  # too few
    assert run.report(20, episodes=50, mean_return=1.5)
    assert run.report(30, episodes=0, mean_return=math.nan)
    assert run.report(40, episodes=25, mean_return=2.25)  # 25 at 2.25, 50 at 1.5
    assert not run.report(50, episodes=25, mean_return=2.0)
    assert not run.report(60, episodes=500, mean_return=2.0)
    assert run.report(70, episodes=500, mean_return=1.9)


@pytest.mark.parametrize(
    "stop",
    [
        StopTrainingOnReturn(0.5, episodes=10, verbose=1),
        StopTrainingOnNoReturnImprovement(100, episodes=10, verbose=1),
        ConvertCallback(lambda heard: False, verbose=1),
    ],
)
def test_why_a_training_ends_is_said_once(stop, caplog):
    run = Reports(stop)
    with caplog.at_level(logging.INFO):
        for call in (1, 2):
            run.start(call * 1_000)
            for steps in (100, 200, 300):
                goes_on = run.report(call * 1_000 + steps)
            run.end()
            assert not goes_on and caplog.text.count("Training ends after") == call


def test_a_training_return_that_rises_no_more():
    stop = StopTrainingOnNoReturnImprovement(100, min_improvement=0.5, min_steps=300, episodes=10)
    run = Reports(stop).start()
    assert run.report(0, episodes=5, mean_return=9.0)
    for steps, mean, goes_on in (
        (50, 1.0, True),
        (100, 1.5, True),
        (149, 1.4, True),
        (160, 1.5, True),  # waited long enough, but 300 steps come first
        (290, 1.6, True),  # that is above 1.0 + 0.5
        (389, 2.0, True),
        (390, 2.1, False),
        (400, 2.2, True),
    ):
        assert run.report(steps, mean_return=mean) is goes_on, steps
    assert stop.best == 2.2


@pytest.mark.parametrize("change", ["run", "environment"])
def test_training_returns_of_another_agent_or_environment_are_forgotten(change):
    high = StopTrainingOnReturn(2.0, episodes=50)
    rises = StopTrainingOnNoReturnImprovement(1_000, episodes=10)
    run = Reports([high, rises]).start()
    assert not run.report(100, episodes=500, mean_return=9.0)
    run.end().start(100)  # the same goes on
    assert not run.report(200, episodes=0, mean_return=math.nan) and rises.best == 9.0

    state = state_of(run.agent)
    if change == "run":
        state.places.run = "another0"
    else:
        state.environment = Identity("Corridor", 4, 2, "0123456789abcdef")
    run.end().start(200)
    assert rises.best == -math.inf
    assert run.report(300, episodes=20, mean_return=1.0) and rises.best == 1.0


def test_what_a_callback_calls_is_asked_for_its_steps():
    class Both(BaseCallback):
        def __init__(self, *parts):
            super().__init__()
            self.parts = parts

        @property
        def children(self):
            return self.parts

        def _on_step(self):
            return all([part.on_step(self.progress) for part in self.parts])

    heard = []
    inner = EveryNTimesteps(1_234, lambda told: heard.append(told["num_timesteps"]))
    assert Both(inner, Both(EveryNTimesteps(900, print))).next_step(1_000) == 1_234
    assert Both().next_step(0) is None
    DistAsyncQLearning(seed=1).train("FrozenLake-v1", total_steps=4_000, callbacks=Both(inner))
    assert heard == [1_234, 2_468, 3_702]
    # What hears of events only is not asked for others.
    assert EveryNTimesteps(1_000, EveryNTimesteps(300, print)).next_step(0) == 1_000


def test_a_list_takes_functions_and_says_what_it_does_not_take():
    heard = []
    DistAsyncQLearning(seed=1).train(
        "FrozenLake-v1", total_steps=500, callbacks=CallbackList([lambda told: heard.append(told)])
    )
    assert heard
    for wrong in (3, None, "x", {}, np.array(3), EveryNTimesteps(5, print)):
        with pytest.raises(SettingsError, match=r"takes a list of callbacks, got .*CallbackList\(\[...\]\)"):
            CallbackList(wrong)
    with pytest.raises(SettingsError, match="A callback must be"):
        CallbackList([3])


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (StopTrainingOnReturn, "threshold"),
        (StopTrainingOnRewardThreshold, "reward_threshold"),
        (lambda value: StopTrainingOnNoReturnImprovement(5, min_improvement=value), "min_improvement"),
    ],
)
def test_limits_of_returns_are_numbers(make, name):
    for wrong in ("x", None, math.nan, True, [1.0]):
        with pytest.raises(SettingsError, match=f"^{name} must be a number, got"):
            make(wrong)
    for lowest in (np.float32(-math.inf), -(10**400)):
        assert vars(make(lowest))[name] == -math.inf


@pytest.mark.slow
@pytest.mark.parametrize("async_updates", [True, False])
def test_in_an_environment_that_is_stepped_a_report_comes_at_the_end_of_the_batch(async_updates):
    heard = []
    agent = DistAsyncQLearning(
        seed=1, n_envs=2, batch_size=32, async_updates=async_updates, logical_workers=2, sync_frequency=1
    )
    agent.train(
        lambda: gymnasium.wrappers.TransformReward(gymnasium.make("Blackjack-v1"), float),
        total_steps=640,
        callbacks=EveryNTimesteps(100, lambda told: heard.append(told["num_timesteps"])),
        progress_interval=1e6,
    )
    whole = 32 if async_updates else 64
    assert heard == [-(-at // whole) * whole for at in range(100, 700, 100)]
    assert "end of the batch" in BaseCallback._next_step.__doc__ and "end of the batch" in " ".join(
        EvalCallback.__doc__.split()
    )


def test_what_callbacks_of_stable_baselines3_have_besides_is_told_by_its_name_here():
    class Logs(BaseCallback):
        def _on_step(self):
            self.logger.record("a", 1)

    class Forgets(BaseCallback):
        def __init__(self):
            self.own = 1

    agent = DistAsyncQLearning(seed=1)
    with pytest.raises(UnknownAttributeError, match=r"self\.record"):
        agent.train("FrozenLake-v1", total_steps=100, callbacks=Logs())
    with pytest.raises(UnknownAttributeError, match=r"super\(\).__init__\(\)"):
        agent.train("FrozenLake-v1", total_steps=100, callbacks=Forgets())
    with pytest.raises(SettingsError, match="True or False"):
        agent.train("FrozenLake-v1", total_steps=100, callbacks=Diary(np.ones(2)))


def test_an_environment_of_the_training_is_not_played_in_however_it_is_given():
    env, vector = SteppedLake(), gymnasium.vector.SyncVectorEnv([SteppedLake])
    wrapped = gymnasium.wrappers.TimeLimit(env, 50)
    given = (
        (env, lambda: env),
        (env, lambda: wrapped),
        (lambda: wrapped, lambda: env),
        (lambda: env, wrapped),
        (vector, lambda: vector),
        (vector, vector.envs[0]),
    )
    for trained, played in given:
        agent = DistAsyncQLearning(seed=1, n_envs=1)
        with pytest.raises(SettingsError, match="steps through.*makes a new one at every call"):
            agent.train(trained, 500, callbacks=lambda _, agent=agent, env=played: agent.evaluate(env))
        assert not vector.closed and agent.evaluate(env, 1, max_steps=5).episodes == 1


@pytest.mark.parametrize("wrapped", [lambda env: env, lambda env: gymnasium.wrappers.TimeLimit(env, 50)])
def test_an_environment_that_the_training_steps_through_is_not_played_in(wrapped):
    env = SteppedLake()
    agent = DistAsyncQLearning(seed=1)
    with pytest.raises(SettingsError, match="steps through.*Give a second environment, or a function"):
        agent.train(env, total_steps=500, callbacks=EvalCallback(wrapped(env), eval_freq=100))
    with pytest.raises(SettingsError, match="steps through"):
        agent.train(wrapped(env), total_steps=500, callbacks=lambda _: agent.evaluate(env, 1) and True)
    assert agent.evaluate(env, 1, max_steps=5).episodes == 1
    for other in (SteppedLake, SteppedLake()):  # a class makes another one
        agent.train(SteppedLake, 100, new_env=True, callbacks=EvalCallback(other, max_steps=5, eval_freq=50))
    compiled = gymnasium.make("FrozenLake-v1")
    DistAsyncQLearning(seed=1).train(compiled, 100, callbacks=EvalCallback(compiled, eval_freq=50))


@pytest.mark.parametrize(
    "make",
    [
        lambda verbose: EvalCallback("FrozenLake-v1", verbose=verbose),
        lambda verbose: StopTrainingOnReturn(0.5, verbose=verbose),
        lambda verbose: MetricsCallback("runs", verbose),
        lambda verbose: ConvertCallback(print, verbose),
        BaseCallback,
    ],
)
def test_how_much_a_callback_says_is_looked_at_when_it_is_made(make):
    for wrong in (None, "x", np.array([1, 2]), -1, 0.5, 3):
        with pytest.raises(SettingsError, match="^verbose must be True or False, or 0, 1 or 2, got"):
            make(wrong)
    assert [make(given).verbose for given in (False, True, np.bool_(True), 2)] == [0, 1, 1, 2]


@pytest.mark.parametrize("verbose", [0, 1, 2])
def test_a_verbose_callback_says_where_it_writes_and_that_it_ends_the_training(verbose, tmp_path, caplog):
    def enough(heard):
        return heard["num_timesteps"] < 200

    with caplog.at_level(logging.INFO, "dist_classicrl.callbacks"):
        run = Reports([MetricsCallback(tmp_path, verbose), ConvertCallback(enough, verbose)]).start()
        assert run.report(100) and not run.report(200)
    begins, ends = (
        f"Metrics of this run are written to {tmp_path}.",
        "Training ends after 200 steps: the callb",
    )
    assert (begins in caplog.text) == (ends in caplog.text) == (verbose > 0)


@pytest.mark.parametrize(
    "make, told",
    [
        (lambda: ConvertCallback(5), "A callback must be .*, got 5"),
        (lambda: ConvertCallback(lambda: None), "must take one argument, a dict with self"),
        (lambda: ConvertCallback(EvalCallback), r"the class EvalCallback. Write EvalCallback\(...\)"),
        (lambda: EvalCallback("Taxi-v4", n_eval_episodes=2**31), r"n_eval_episodes must be below 2\*\*31"),
        (lambda: EvalCallback("Taxi-v4", max_steps=2**62), r"max_steps must be below 2\*\*62"),
        (lambda: EvalCallback("Taxi-v4", seed=2**63), r"seed must be below 2\*\*63"),
        (lambda: WandbCallback(5), "project must be text, or None, got 5"),
        (lambda: WandbCallback(name=["x"]), r"name must be text, or None, got \['x'\]"),
        (lambda: WandbCallback(run_id=5), "run_id must be text, or None, got 5"),
        (lambda: MlflowCallback(5), "experiment must be text, or None, got 5"),
        (lambda: MlflowCallback(tracking_uri=5), "tracking_uri must be text, or None, got 5"),
    ],
)
def test_a_callback_that_could_not_do_its_work_is_not_made(make, told):
    with pytest.raises(SettingsError, match=told):
        make()


def test_who_writes_on_step_as_a_method_of_ones_own_is_told_what_it_is_called():
    class Mine(BaseCallback):
        def on_step(self):
            return True

    for given in (Mine(), [Mine()]):
        with pytest.raises(SettingsError, match=r"Mine.on_step\(self\) is called _on_step here"):
            callbacks.callback_list(given)


def test_what_takes_a_report_by_other_ways_is_taken():
    def adapted(method):
        @functools.wraps(method)
        def inner(self, progress):
            return method(self)

        return inner

    class Adapted(BaseCallback):
        @adapted
        def on_step(self):
            return True

    of_c = Adapted()
    of_c.on_step = {}.update
    for given in (Adapted(), of_c, Mock(spec=BaseCallback)):
        assert callbacks.callback_list(given).callbacks == [given]
