"""Learners: their kinds and their walkers; in stepped environments, each transition once and in order."""

import re
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from made_learners import learner_of

from dist_classicrl.environments.model import TabularMDP
from dist_classicrl.environments.resolve import resolve
from dist_classicrl.environments.stepped.batches import LoopedEnvs
from dist_classicrl.errors import ActionMaskError, RewardError
from dist_classicrl.learning.compiled import CompiledLearner
from dist_classicrl.learning.kinds import LearnerKind, new_learner, problem_of, register, unregister
from dist_classicrl.learning.learner import Stream, Totals
from dist_classicrl.learning.loops import Batch, choose_actions, learn_batch
from dist_classicrl.learning.rates import Rates
from dist_classicrl.learning.rules.q_learning import QLearning
from dist_classicrl.learning.stepped import SteppedLearner
from dist_classicrl.schedules import Exponential, Linear, PerVisit
from dist_classicrl.settings import Settings

KEY = np.uint64(77)


class Ticker(gymnasium.Env):
    """One state, one action; the reward tells step and copy, and every `ends` steps an episode ends."""

    observation_space = spaces.Discrete(1)
    action_space = spaces.Discrete(1)

    def __init__(self, number, ends):
        self.number, self.ends, self.at = number, ends, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {}

    def step(self, action):
        self.at += 1
        ended = self.ends > 0 and self.at % self.ends == 0
        return 0, 10.0 * self.at + self.number, ended, False, {}


def rewards_in_order(n_envs):
    """Yield the rewards of all copies, step after step."""
    at = 1
    while True:
        for number in range(n_envs):
            yield 10.0 * at + number
        at += 1


@pytest.mark.slow
@pytest.mark.parametrize("ends", [0, 5])
@pytest.mark.parametrize("kind", ["one by one", "vector"])
@pytest.mark.parametrize(("n_envs", "batch_size"), [(1, 4), (3, 8), (5, 2), (4, 4)])
def test_every_transition_is_learned_once_and_in_order(n_envs, batch_size, kind, ends):
    numbers = iter(range(n_envs))
    if kind == "vector":
        env = gymnasium.vector.SyncVectorEnv(
            [lambda number=number: Ticker(number, ends) for number in range(n_envs)],
            autoreset_mode=AutoresetMode.SAME_STEP,
        )
    else:

        def env():
            return Ticker(next(numbers), ends)

    settings = Settings(learning_rate=Linear(0.9, 0.1, 150), batch_size=batch_size, discount_factor=0.0)
    learner = learner_of(env, settings, n_envs=n_envs)
    table = learner.table
    rng = np.random.default_rng(n_envs)
    expected, used, total = 0.0, 0, 0
    rewards = rewards_in_order(n_envs)
    for start in (0, 100):  # two leases
        stream = Stream(KEY, start)
        used = 0
        for _ in range(12):
            steps = int(rng.integers(1, 3 * batch_size))
            learner.learn(0, stream, steps)
            for _ in range(steps):
                alpha = settings.learning_rate.at(start + used)
                expected += alpha * (next(rewards) - expected)
                used += 1
            assert stream.used == used
            assert table.q[0] == pytest.approx(expected, rel=1e-12)
        total += used
        assert table.updates[0] == total
    # All episodes of the transitions made are counted, whether these were learned yet or not.
    episodes, _, lengths = learner.totals.take()[:3]
    assert (episodes > 0) == (ends > 0) and lengths == episodes * ends
    learner.close()


class Moody(gymnasium.Env):
    """Of 12 numbered places; what it gives is of other types at some steps, and it masks from one step on.

    If `masks_from` is below 0 that is with the first episode that begins after so many.
    """

    def __init__(self, kind, masks_from=None, breaks_at=None, breakage=None):
        self.kind, self.masks_from, self.at = kind, masks_from, 0
        self.breaks_at, self.breakage = breaks_at, breakage
        self.observation_space = {
            "number": spaces.Discrete(12, start=-3),
            "pair": spaces.Tuple((spaces.Discrete(3), spaces.Discrete(4, start=1))),
            "array": spaces.Dict(a=spaces.MultiDiscrete([3, 4], start=[0, 1])),
            "with a mask": spaces.Dict(at=spaces.Discrete(12), action_mask=spaces.MultiBinary(3)),
        }[kind]
        self.action_space = spaces.Discrete(3, start=5) if kind == "number" else spaces.MultiDiscrete([3])
        self.given = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left, self.place = int(self.np_random.integers(1, 9)), int(self.np_random.integers(12))
        if self.masks_from is not None and self.at >= -self.masks_from > 0:
            self.masks_from, self.place = 0, 4
        return self.shown(), self.info()

    def shown(self):
        row, column = divmod(self.place, 4)
        if self.kind == "number":
            return self.place - 3 if self.at % 5 else np.array(self.place - 3)  # an array of no axis
        if self.kind == "with a mask":
            return {"at": self.place, "action_mask": self.mask()}
        return (row, column + 1) if self.kind == "pair" else {"a": np.array([row, column + 1], np.int8)}

    def mask(self):
        mask = np.array([1, self.place % 2, 0], (bool, np.int8, np.uint64)[self.at % 3])
        if self.at == self.breaks_at and isinstance(self.breakage, list):
            mask = np.array(self.breakage)
        return mask.tolist() if self.at % 7 == 3 else mask

    def info(self):
        masks = self.masks_from is not None and self.at >= self.masks_from >= 0
        return {"action_mask": self.mask()} if masks and self.place != 5 else {}

    def step(self, action):
        self.at, self.left = self.at + 1, self.left - 1
        action = int(action) - 5 if self.kind == "number" else int(action[0])
        self.given.append((self.place, action))
        self.place = (5 * self.place + 7 * action + int(self.np_random.integers(3))) % 12
        reward = (float, np.float32, int)[self.at % 3](action - self.place % 4)
        if self.at == self.breaks_at:
            if self.breakage == "raises":
                raise OSError
            if self.breakage is None:
                reward = float("nan")
            else:
                self.left, self.place = 3, 6
        over = self.left == 0
        truncated = np.array(over) if self.at % 11 == 0 else over and self.at % 2 == 0
        return self.shown(), reward, over and self.at % 2 == 1, truncated, self.info()


def learned_of(env, algorithm, cut_at, monkeypatch, plays, batch_size=8):
    """Learn in an environment as one that plays, or step by step; return all that came of it."""
    epsilon = Linear(0.9, 0.1, 150)
    settings = Settings(
        algorithm=algorithm, learning_rate=PerVisit(0.7), epsilon=epsilon, batch_size=batch_size
    )
    if not plays:
        monkeypatch.setattr(LoopedEnvs, "plays", False)
    learner = learner_of(env, settings)
    walkers, played = learner._batches[0], []
    play = walkers._env.play
    monkeypatch.setattr(walkers._env, "play", lambda *given: played.append(play(*given)) or played[-1])
    stream, error = Stream(KEY, 0, 0, lambda: env.at in cut_at), None
    try:
        for workers, steps in enumerate((3, 50, 1, 100, 46), 1):
            walkers._rates.set_workers(workers)
            try:
                learner.learn(0, stream, steps)
            except OSError:
                learner.learn(0, stream, steps)
            assert walkers._stepping.context.step_sizes is walkers._rates.table
    except (RewardError, ActionMaskError) as raised:
        error = str(raised)
    monkeypatch.undo()
    table = learner.table
    totals = learner.totals.values.tolist()
    visits = (table.arrays.visits + (table.arrays.updates & 0xFFFFFFFF)).tolist()
    return played, (table.q.tolist(), visits, totals, env.given, stream.used, error)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["number", "pair", "array", "with a mask"])
@pytest.mark.parametrize(
    ("what", "masks_from", "breaks_at", "breakage", "says"),
    [
        ("plain", None, None, None, None),
        ("masks later", 60, None, None, None),
        ("masks with a reset", -60, None, None, None),
        ("an error in between", None, 105, "raises", None),
        ("masks at once", 0, None, None, None),
        ("cut", None, None, None, None),
        ("NaN", None, 104, None, "the reward nan for action"),
        ("masks and NaN", 0, 104, None, "the reward nan for action"),
        ("no action", 0, 104, [0, 0, 0], "forbids every action in state 6"),
        ("a wrong number", 0, 104, [1, 2, 0], "must be boolean .* gave .1, 2, 0."),
        ("a wrong shape", 0, 104, [1, 0], "must be boolean .* shape"),
    ],
)
def test_an_only_environment_that_plays_gives_what_steps_give(
    kind, what, masks_from, breaks_at, breakage, says, monkeypatch
):
    cut_at = (13, 40, 41, 90) if what == "cut" else ()
    if kind == "with a mask" and masks_from != 0:
        pytest.skip("it has masks from the beginning on")

    def learned(plays, algorithm="q_learning"):
        env = Moody(kind, None if kind == "with a mask" else masks_from, breaks_at, breakage)
        return learned_of(env, algorithm, cut_at, monkeypatch, plays)

    (played, one), (stepped, other) = learned(True), learned(False)
    assert one == other
    assert played.count(True) > 1 and not stepped
    q, visits, totals, given, used, error = one
    assert totals[0] > 5 and sum(visits) == used
    if says is not None:
        assert re.search(says, error) and len(given) == 104
    elif cut_at:
        assert used < 200
    else:
        assert used == (248 if breakage == "raises" else 200)  # 48 of the 100 steps, and these 100
        assert used <= len(given) < used + 8
    if masks_from == 0:
        assert {action for _, action in given} == {0, 1, 2} - ({2} if kind == "with a mask" else set())


def twin(learner, settings, leases):
    """Do what a learner does, transition by transition, with its environments and its table."""
    walkers, rates = learner._batches[0], learner._batches[0]._rates
    env, has, waiting, draws = walkers._env, walkers._stepping, [], 0
    actions = np.zeros(env.n_envs, np.int64)
    for stream, steps in leases:
        for first in range(0, steps, settings.batch_size):
            size = min(settings.batch_size, steps - first)
            while len(waiting) < size:
                epsilon = settings.epsilon.at(stream.start + stream.used)
                choose_actions(has.rule, has.context, env.states, None, epsilon, has.key, draws, actions)
                draws += env.n_envs
                env.step(actions)
                for e in np.flatnonzero(env.valid):
                    step = e, env.before[e], actions[e], env.next_states[e], env.rewards[e]
                    ends = env.terminated[e], env.truncated[e] and not env.terminated[e]
                    waiting.append(Batch(*(np.array([value]) for value in (*step, *ends))))
                learner.totals.values[:2] += len(env.episode_returns), sum(env.episode_returns)
                learner.totals.values[2] += sum(env.episode_lengths)
            for transition in waiting[:size]:
                now = stream.stretch(rates, 1)
                learn_batch(has.rule, transition, 0, has.context, has.replay, now, learner.totals.values)
                stream.used += 1
            del waiting[:size]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["one", "three", "NEXT_STEP", "SAME_STEP"])
@pytest.mark.parametrize("batch_size", [1, 3, 8])
@pytest.mark.parametrize(
    ("algorithm", "learning_rate", "replay_ratio"),
    [
        ("q_learning", PerVisit(0.7), 0.0),
        ("q_learning", Exponential(0.9, 0.01, 300), 1.5),
        ("n_step_sarsa", Linear(0.9, 0.1, 37), 0.0),
    ],
)
def test_stepped_learning_equals_a_plain_twin(algorithm, learning_rate, replay_ratio, batch_size, how):
    settings = Settings(
        algorithm=algorithm,
        learning_rate=learning_rate,
        epsilon=Exponential(0.9, 0.05, 90),  # both have several lines in a lease, also within a batch
        batch_size=batch_size,
        replay_ratio=replay_ratio,
    )

    def env():
        return Moody("number")

    def learned(learn):
        given = env() if how == "one" else env
        if how.endswith("STEP"):
            given = gymnasium.vector.SyncVectorEnv([env] * 3, autoreset_mode=AutoresetMode[how])
        learner = learner_of(given, settings, n_envs=1 if how == "one" else 3)
        leases, start = [], 0
        for number, steps in enumerate((50, 1, 7, 64, 78)):
            leases.append((Stream(np.uint64(number), start), steps))
            start += steps
        learn(learner, leases)
        table, totals = learner.table, learner.totals.values.tolist()
        visits = (table.arrays.visits + (table.arrays.updates & 0xFFFFFFFF)).tolist()
        return table.q.tolist(), visits, totals, [stream.used for stream, _ in leases]

    def in_leases(learner, leases):
        for stream, steps in leases:
            learner.learn(0, stream, steps)

    one, other = learned(in_leases), learned(lambda learner, leases: twin(learner, settings, leases))
    assert one == other
    assert sum(one[1]) > 185 and one[2][0] > 5  # an n-step rule still waits for the last of each walker


@pytest.mark.slow
def test_rules_that_note_masks_hear_of_each(monkeypatch):
    (played, one), (stepped, other) = (
        learned_of(Moody("with a mask"), "dyna_q", (), monkeypatch, plays) for plays in (True, False)
    )
    assert one == other and not played and not stepped


class Short(Moody):
    """Its episodes are a step or two, so that a first mask soon comes with a reset."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 1 + self.left % 2
        return self.shown(), self.info()


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["dyna_q", "prioritized_sweeping"])
def test_rules_with_a_model_know_of_the_first_mask_before_they_learn_the_step(algorithm, monkeypatch):
    for masks_from in range(-25, -3):
        (played, one), (_, other) = (
            learned_of(Short("number", masks_from), algorithm, (), monkeypatch, plays, 1)
            for plays in (True, False)
        )
        assert one == other and any(played)


def learn_after(env, error, steps):
    """Learn until an error comes, and so many steps more; return the learner and its stream."""
    learner = learner_of(env, Settings(epsilon=Linear(0.9, 0.1, 5), batch_size=8))
    stream = Stream(KEY, 0)
    with pytest.raises(error):
        learner.learn(0, stream, 60)
    for some in steps:
        learner.learn(0, stream, some)
    return learner, stream


class RaisesInReset(Ticker):
    """Its second episode cannot begin at first."""

    resets = 0

    def reset(self, *, seed=None, options=None):
        self.resets += 1
        if self.resets == 2:
            raise OSError
        return super().reset(seed=seed)


def test_a_lease_after_an_error_is_learned_as_it_was_asked_for():
    # The batch is full with the step that ends the episode, and the line of epsilon ends within it.
    learner, stream = learn_after(RaisesInReset(0, 8), OSError, (1, 7, 20))
    assert stream.used == learner.table.updates[0] == 28


class WrongFirst(Ticker):
    """Only action 0 is legal from the sixth step on; the mask of that is another."""

    observation_space = spaces.Discrete(5)
    action_space = spaces.Discrete(3)

    def __init__(self, first):
        super().__init__(0, 4)
        self.first, self.illegal = first, []

    def step(self, action):
        if self.at > 6 and self.at % 4 and action:  # with a reset comes no mask
            self.illegal.append(self.at)
        _, *rest, _ = super().step(action)
        mask = self.first if self.at == 6 else [1, 0, 0]
        return self.at % 5, *rest, {"action_mask": np.array(mask, np.int8)} if self.at >= 6 else {}


@pytest.mark.parametrize("first", [[1, 2, 0], [0, 0, 0]])
def test_masks_hold_after_a_first_one_that_was_wrong(first):
    env = WrongFirst(first)
    learn_after(env, ActionMaskError, (40,))
    assert env.at > 40 and not env.illegal


def test_masks_are_those_of_where_the_environment_stands_after_an_error():
    for breaks_at in range(9, 30):
        learner, _ = learn_after(Moody("number", 0, breaks_at, "raises"), OSError, ())
        env = learner._batches[0]._env
        place = int(env.states[0])
        legal = [True, True, True] if place == 5 else [True, place % 2 == 1, False]
        assert env.masks[0].tolist() == legal


class OneLegalAction(gymnasium.Env):
    """One state; a step gives -1; action 1 is illegal, as `info` tells at once or from the first step on."""

    observation_space = spaces.Discrete(1)
    action_space = spaces.Discrete(2)

    def __init__(self, told_at_once):
        self.told_at_once = told_at_once

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {"action_mask": np.array([1, 0], np.int8)} if self.told_at_once else {}

    def step(self, action):
        return 0, -1.0, False, False, {"action_mask": np.array([1, 0], np.int8)}


@pytest.mark.slow
@pytest.mark.parametrize("told_at_once", [True, False])
@pytest.mark.parametrize("replay_ratio", [0.0, 4.0])
def test_replay_keeps_to_the_mask(replay_ratio, told_at_once):
    settings = Settings(
        learning_rate=0.3, discount_factor=0.5, replay_ratio=replay_ratio, buffer_size=10, batch_size=2
    )
    learner = learner_of(lambda: OneLegalAction(told_at_once), settings, n_envs=2)
    table = learner.table
    learner.learn(0, Stream(KEY, 0), 200)
    # Q = -1 + 0.5 Q. The illegal action's value, which is above that, must not count.
    assert table.q[0] == pytest.approx(-2.0, rel=1e-6)
    assert table.q[1] > table.q[0] + 0.1
    learner.close()


class Closed(Ticker):
    """Tells that it was closed."""

    def __init__(self, closed):
        super().__init__(0, 0)
        self.closed = closed

    def close(self):
        self.closed.append(self)


@pytest.mark.slow
def test_a_walker_of_the_same_number_is_replaced():
    closed, settings = [], Settings(learning_rate=1.0, discount_factor=0.0, batch_size=1)
    source = resolve(lambda: Closed(closed), 2, None)
    learner = new_learner(problem_of(source, settings, Rates(settings, 1)))
    learner.add(5, source, 1)
    learner.add(3, source.another(), 2)
    assert learner.walkers == [5, 3] and not closed and learner.quantum == 2
    learner.learn(5, Stream(KEY, 0), 4)
    assert learner.table.q.tolist() == [20.0]
    learner.add(5, source.another(), 3)
    assert len(closed) == 2 and learner.walkers == [5, 3]
    learner.learn(5, Stream(KEY, 0), 2)  # from its own first step on
    assert learner.table.q.tolist() == [10.0]
    learner.close()
    assert len(closed) == 6


@pytest.mark.slow
def test_a_compiled_walker_of_the_same_number_is_replaced():
    settings = Settings(learning_rate=0.5, replay_ratio=1.0, buffer_size=5)
    source = resolve(TabularMDP.garnet(9, 3, 2, seed=1), 1, None)
    learner = new_learner(problem_of(source, settings, Rates(settings, 1)))
    for number in (0, 1):
        learner.add(number, source, 0)
    fresh = {name: array.tolist() for name, array in learner.state(0).items()}
    for number in (0, 1):
        learner.learn(number, Stream(KEY, 0), 7 + number)
    other = {name: array.tolist() for name, array in learner.state(1).items()}
    learner.add(0, source, 0)
    assert {name: array.tolist() for name, array in learner.state(0).items()} == fresh
    assert {name: array.tolist() for name, array in learner.state(1).items()} == other != fresh


def test_the_newest_kind_of_learner_that_suits_is_taken():
    settings = Settings()
    compiled = resolve("FrozenLake-v1", 1, None)
    steps_it = resolve(lambda: Ticker(0, 0), 1, None)
    own = register(LearnerKind("own", lambda problem: problem.source.n_states == 16, lambda problem: problem))
    try:
        problem = new_learner(problem_of(compiled, settings, Rates(settings, 3)))
        assert problem.source is compiled and problem.settings is settings and problem.rates.workers == 3
        assert (problem.table.n_states, problem.table.n_actions) == (16, 4)
        assert (problem.rule.name, problem.parameters) == ("q_learning", QLearning())
        assert isinstance(new_learner(problem_of(steps_it, settings, Rates(settings, 1))), SteppedLearner)
    finally:
        unregister(own)
    assert isinstance(new_learner(problem_of(compiled, settings, Rates(settings, 1))), CompiledLearner)
    with pytest.raises(TypeError, match="no kind of learner for nothing"):
        new_learner(
            problem_of(replace(compiled, simulator=None, name="nothing"), settings, Rates(settings, 1))
        )


def test_totals_are_taken_once():
    totals = Totals()
    totals.values += (2, 3.5, 40, 0.5)
    assert totals.take().tolist() == [2.0, 3.5, 40.0, 0.5] and totals.take().tolist() == [0.0] * 4
