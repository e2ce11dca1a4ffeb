"""Environments whose steps take seconds: batches that are cut for the sake of others, and others not."""

import os
import time

import gymnasium
import pytest
from exchanging_ranks import rank_of

from dist_classicrl import DistAsyncQLearning
from dist_classicrl.callbacks import EvalCallback
from dist_classicrl.comm.compression import Codec
from dist_classicrl.engines import loops
from dist_classicrl.engines.decentralized.patterns import PATTERNS
from dist_classicrl.engines.local import training
from dist_classicrl.engines.progress import Company
from dist_classicrl.errors import EvaluationStopped, RankTimeoutError, TrainingStopped


@pytest.fixture
def clock(monkeypatch):
    """A clock that steps of environments move, and nothing else; where it stands is its item 0."""
    now = [1000.0]
    for name in ("monotonic", "perf_counter"):
        monkeypatch.setattr(time, name, lambda: now[0])
    return now


class SlowWalk(gymnasium.Env):
    """Eight states in a circle; a step takes so many seconds of a clock."""

    observation_space, action_space = gymnasium.spaces.Discrete(8), gymnasium.spaces.Discrete(2)

    def __init__(self, clock, seconds):
        self.clock, self.seconds, self.made, self.state = clock, seconds, 0, 0

    def reset(self, *, seed=None, options=None):
        self.state = 0
        return 0, {}

    def step(self, action):
        self.clock[0] += self.seconds
        self.made += 1
        self.state = (self.state + 1 + action) % 8
        return self.state, float(self.state == 7), self.state == 7, False, {}


def looks_of(monkeypatch, clock, seconds, has_company, steps=96):
    """Train alone; return after how many steps each the loop looked around."""
    env, looks = SlowWalk(clock, seconds), []
    is_there = Company(is_there=lambda: looks.append(env.made) or False)

    class Loop(loops.StepLoop):
        def __init__(self, run, learner):
            super().__init__(run, learner, is_there if has_company else None)
            self._company = is_there

    monkeypatch.setattr(training, "StepLoop", Loop)
    result = DistAsyncQLearning(seed=1, n_envs=1).train(env, steps)
    assert result.steps == env.made == looks[-1] == steps
    return looks


def test_who_learns_alone_until_others_come_back_looks_for_them_within_a_second(monkeypatch, clock):
    looks = looks_of(monkeypatch, clock, 0.3, True)
    assert max(after - before for before, after in zip([0, *looks], looks, strict=False)) == 4


@pytest.mark.parametrize(("seconds", "has_company"), [(0.3, False), (0.001, True)])
def test_batches_stay_whole_where_nobody_waits_and_where_steps_are_quick(
    monkeypatch, clock, seconds, has_company
):
    assert {look % 32 for look in looks_of(monkeypatch, clock, seconds, has_company)} == {0}


def test_a_time_limit_holds_in_the_middle_of_a_batch(tmp_path, clock):
    env = SlowWalk(clock, 0.25)
    with pytest.raises(TrainingStopped) as stopped:
        DistAsyncQLearning(seed=1, n_envs=1).train(env, 10_000, checkpoint_dir=tmp_path, time_limit=5.1)
    assert env.made == stopped.value.steps == 20  # a checkpoint may take the 0.2 s before the limit
    assert stopped.value.code == os.EX_TEMPFAIL


@pytest.mark.parametrize("n_envs", [1, 3])
def test_a_time_limit_holds_in_the_middle_of_an_evaluation_which_does_not_count(
    tmp_path, clock, caplog, n_envs
):
    """All 200 episodes would take 200 s."""
    made = []
    evaluation = EvalCallback(
        lambda: made.append(SlowWalk(clock, 0.25)) or made[-1], n_eval_episodes=200, eval_freq=64
    )
    agent = DistAsyncQLearning(seed=1, n_envs=n_envs)
    with pytest.raises(TrainingStopped) as stopped:
        agent.train(
            SlowWalk(clock, 0.0) if n_envs == 1 else lambda: SlowWalk(clock, 0.0), 10_000,
            callbacks=evaluation, checkpoint_dir=tmp_path, time_limit=5.1,
        )  # fmt: skip
    assert stopped.value.steps == 64 and stopped.value.checkpoint is not None
    assert sum(env.made for env in made) * 0.25 <= 5.0 + n_envs * 0.25 and clock[0] < 1006.0
    assert len(evaluation.log.means) == 0 and not evaluation.has_improved
    assert "No evaluation after 64 steps: The evaluation was ended after " in caplog.text


def test_an_evaluation_of_ones_own_is_played_to_its_end_unless_asked_otherwise(tmp_path, clock):
    played, agent = [], DistAsyncQLearning(seed=1, n_envs=1)

    def evaluate(progress):
        if not played:
            clock[0] += 6.0
            played.append(agent.evaluate(SlowWalk(clock, 0.25), 20).episodes)
            with pytest.raises(EvaluationStopped, match="after 0 of 20 episodes"):
                agent.evaluate(SlowWalk(clock, 0.25), 20, stops_with_training=True)

    with pytest.raises(TrainingStopped):
        agent.train(SlowWalk(clock, 0.0), 1000, callbacks=evaluate, checkpoint_dir=tmp_path, time_limit=5.0)
    assert played == [20]
    assert agent.evaluate(SlowWalk(clock, 0.25), 20, stops_with_training=True).episodes == 20


def slow_part(clock, rank, on_their_way):
    """Return a part of two ranks, whose steps take 0.3 s each and may be cut, and the sizes of its calls."""
    part = rank_of(rank, 2, PATTERNS["ring"](), on_their_way, Codec())
    part.group.wire.now = lambda: clock[0]
    learn, calls = part._learner.learn, []

    def learn_slowly(walker, stream, steps):
        used = stream.used
        for step in range(steps):
            if step and stream.is_cut():
                break
            clock[0] += 0.3
            learn(walker, stream, 1)
        calls.append(stream.used - used)

    part._learner.learn = learn_slowly
    return part, calls


def test_a_rank_without_a_server_looks_around_between_two_slow_steps(clock):
    part, calls = slow_part(clock, 0, {})
    tended = []
    part._learn(64, lambda: tended.append(clock[0]))
    assert calls == [1] * 32 and len(tended) == 32


def test_what_a_rank_learned_meanwhile_is_no_time_that_it_has_waited_for_others(clock):
    """A round takes it 9.6 s, and it waits for 10 s."""
    on_their_way = {}
    (first, _), (second, _) = (slow_part(clock, rank, on_their_way) for rank in (0, 1))
    first._exchange(first._learn(64, lambda: None), 64)
    clock[0] += 30.0

    def second_is_there(seconds):
        clock[0] += seconds
        if second._number < 0:
            second._exchange(second._learn(64, lambda: None), 64)

    first.group.wire.sleep = second_is_there
    first._finish(lambda: None)
    assert first.made == 64


def test_a_rank_that_does_not_come_is_not_waited_for_without_end(clock):
    part, _ = slow_part(clock, 0, {})
    part._exchange(part._learn(64, lambda: None), 64)
    part.group.wire.sleep = lambda seconds: clock.__setitem__(0, clock[0] + 1.0)
    begun = clock[0]
    with pytest.raises(RankTimeoutError, match="has waited for 10 s"):
        part._finish(lambda: None)
    assert clock[0] - begun == pytest.approx(11.0)
