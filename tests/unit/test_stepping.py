"""Stepped environments against copies that are driven by hand, in every way of making and resetting them."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
from functools import partial
from itertools import cycle

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from dist_classicrl import DistAsyncQLearning
from dist_classicrl.environments.resolve import resolve
from dist_classicrl.environments.stepped import spaces
from dist_classicrl.environments.stepped.make import make_stepped
from dist_classicrl.errors import (
    ActionMaskError,
    EnvError,
    OutsideSpaceError,
    RewardError,
    SettingsError,
    SpaceError,
)
from dist_classicrl.schedules import PerVisit

N_STATES, N_ACTIONS = 24, 6


class Timetable(gymnasium.Env):
    """Deterministic given its seed. Episodes last 1, 4, 2, 3, 1, 4, ... steps and end by turns in both ways.

    The core is a number 0..23 that depends on all that happened; `style` says how it is shown:

    - "plain": Discrete observations and actions, no masks;
    - "info": the same, with masks in `info` at every third number, all False at the end of an episode;
    - "dict": the mask in a Dict observation, all False at the end of an episode;
    - "nested": nested observations and Tuple actions with a start.
    """

    def __init__(self, style="plain", break_at=None, breakage=None):
        self.style, self.break_at, self.breakage = style, break_at, breakage
        self.observation_space = {
            "plain": Discrete(N_STATES),
            "info": Discrete(N_STATES, start=-3),
            "dict": Dict({"observation": MultiDiscrete([4, 6]), "action_mask": MultiBinary(N_ACTIONS)}),
            "nested": Dict(
                {"a": Tuple((Discrete(2, start=5), MultiDiscrete([[3], [2]]))), "b": MultiBinary(1)}
            ),
        }[style]
        pair = Tuple((Discrete(3, start=1), Discrete(2)))
        self.action_space = pair if style == "nested" else Discrete(N_ACTIONS)
        self.steps_ever = 0
        self.closed = False

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.episode = -1
        self.episode += 1
        self.left = (1, 4, 2, 3)[self.episode % 4]
        self.core = int(self.np_random.integers(N_STATES))
        return self.show(False)

    def step(self, action):
        self.steps_ever += 1
        if self.style == "nested":
            action = (int(action[0]) - 1) * 2 + int(action[1])
        assert 0 <= action < N_ACTIONS and self.left > 0
        reward = self.core / 4 + action
        self.core = (5 * self.core + 7 * int(action) + int(self.np_random.integers(3))) % N_STATES
        self.left -= 1
        over = self.left == 0
        observation, info = self.show(over)
        if self.steps_ever == self.break_at:
            if self.breakage == "raise":
                raise ZeroDivisionError("the user's own bug")
            if self.breakage == "observation":
                observation = N_STATES
            elif self.breakage == "mask":
                info["action_mask"] = np.zeros(N_ACTIONS, np.int8)
            else:
                reward = self.breakage
        return observation, reward, over and self.episode % 2 == 0, over and self.episode % 2 == 1, info

    def mask(self, over):
        return np.array([not over and (self.core + a) % 3 != 0 for a in range(N_ACTIONS)])

    def show(self, over):
        c = self.core
        if self.style == "plain":
            return c, {"core": c}
        if self.style == "info":
            return c - 3, {"action_mask": self.mask(over).astype(np.int8)} if over or c % 3 == 0 else {}
        if self.style == "dict":
            pair = np.array([c // 6, c % 6])
            return {"observation": pair, "action_mask": self.mask(over).astype(np.int8)}, {}
        digits = (c // 12 + 5, np.array([[c // 4 % 3], [c // 2 % 2]]))
        return {"a": digits, "b": np.array([c % 2], np.int8)}, {}

    def shown_mask(self, over):
        """The mask that a learner should see for what `show` gave."""
        if self.style == "dict" or (self.style == "info" and (over or self.core % 3 == 0)):
            return self.mask(over)
        return np.ones(N_ACTIONS, bool)

    def close(self):
        self.closed = True


STYLES = ("plain", "info", "dict", "nested")
for one_style in STYLES:
    gymnasium.register(f"StepTest/Timetable-{one_style}-v0", Timetable, kwargs={"style": one_style})


def chosen_action(t, mask):
    """The action of an environment's t-th transition: a rule that needs no random numbers."""
    legal = np.flatnonzero(mask)
    return int(legal[(7 * t + t // 3) % len(legal)])


def by_hand(style, seed, steps):
    """The first transitions of one environment, stepped as Gymnasium's documentation says; its episodes."""
    env = Timetable(style)
    env.reset(seed=seed)
    transitions, episodes, rewards = [], [], []
    for t in range(steps):
        state, mask = env.core, env.shown_mask(False)
        action = chosen_action(t, mask)
        raw = (action // 2 + 1, action % 2) if style == "nested" else action
        _, reward, terminated, truncated, _ = env.step(raw)
        over = terminated or truncated
        next_mask = env.shown_mask(over).tolist()
        transitions.append((state, mask.tolist(), action, reward, env.core, next_mask, terminated, truncated))
        rewards.append(reward)
        if over:
            episodes.append((sum(rewards), len(rewards)))
            rewards = []
            env.reset()
    return transitions, episodes


def by_stepping(stepped, seed, calls):
    """What each environment of the batch went through: transitions and episodes, per environment."""
    stepped.reset(seed)
    transitions = [[] for _ in range(stepped.n_envs)]
    episodes = [[] for _ in range(stepped.n_envs)]
    all_legal = np.ones((stepped.n_envs, stepped.n_actions), bool)
    for _ in range(calls):
        states = stepped.states.copy()
        masks = all_legal if stepped.masks is None else stepped.masks.copy()
        actions = np.array([chosen_action(len(transitions[e]), masks[e]) for e in range(stepped.n_envs)])
        stepped.step(actions)
        next_masks = all_legal if stepped.next_masks is None else stepped.next_masks
        over = []
        for e in np.flatnonzero(stepped.valid):
            transitions[e].append(
                (
                    states[e],
                    masks[e].tolist(),
                    actions[e],
                    stepped.rewards[e],
                    stepped.next_states[e],
                    next_masks[e].tolist(),
                    stepped.terminated[e],
                    stepped.truncated[e],
                )
            )
            if stepped.terminated[e] or stepped.truncated[e]:
                over.append(e)
        invalid = ~stepped.valid
        assert not stepped.rewards[invalid].any()
        assert not stepped.terminated[invalid].any() and not stepped.truncated[invalid].any()
        assert stepped.n_valid == stepped.valid.sum()
        assert len(over) == len(stepped.episode_returns) == len(stepped.episode_lengths)
        for e, value, length in zip(over, stepped.episode_returns, stepped.episode_lengths, strict=True):
            episodes[e].append((value, length))
    return transitions, episodes


def vector(mode, kind=SyncVectorEnv, n=3):
    return lambda style: kind([lambda: Timetable(style)] * n, autoreset_mode=mode)


WAYS = {
    "id": lambda style: make_stepped(f"StepTest/Timetable-{style}-v0", 3),
    "spec": lambda style: make_stepped(gymnasium.spec(f"StepTest/Timetable-{style}-v0"), 3),
    "factory": lambda style: make_stepped(lambda: Timetable(style), 3),
    "instance": lambda style: make_stepped(Timetable(style), 3),
    "next step": lambda style: make_stepped(vector(AutoresetMode.NEXT_STEP)(style)),
    "same step": lambda style: make_stepped(vector(AutoresetMode.SAME_STEP)(style)),
    "disabled": lambda style: make_stepped(vector(AutoresetMode.DISABLED)(style)),
    "vector factory": lambda style: make_stepped(lambda: vector("SameStep")(style)),
    "async next step": lambda style: make_stepped(lambda: vector("NextStep", AsyncVectorEnv, 2)(style)),
    "async same step": lambda style: make_stepped(lambda: vector("SameStep", AsyncVectorEnv, 2)(style)),
    "async disabled": lambda style: make_stepped(lambda: vector("Disabled", AsyncVectorEnv, 2)(style)),
}


@pytest.mark.slow
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("way", WAYS)
def test_transitions_are_those_of_an_environment_driven_by_hand(way, style):
    stepped = WAYS[way](style)
    try:
        assert (stepped.n_states, stepped.n_actions) == (N_STATES, N_ACTIONS)
        assert stepped.n_envs == (1 if way == "instance" else 2 if "async" in way else 3)
        transitions, episodes = by_stepping(stepped, seed=5, calls=40)
        assert (stepped.masks is not None) == (style in ("info", "dict"))
        for e in range(stepped.n_envs):
            expected, expected_episodes = by_hand(style, 5 + e, len(transitions[e]))
            assert transitions[e] == expected
            assert episodes[e] == expected_episodes
            assert any(t[6] for t in expected) and any(t[7] for t in expected)
            resets = sum(t[6] or t[7] for t in expected[:-1])
            if "next step" in way:
                assert 40 - len(expected) in (resets, resets + 1)
            else:
                assert len(expected) == 40
    finally:
        stepped.close()


@pytest.mark.parametrize("way", ["factory", "next step", "same step", "disabled"])
def test_the_seed_fixes_everything_and_reset_starts_anew(way):
    stepped = WAYS[way]("info")
    first = by_stepping(stepped, seed=11, calls=23)
    assert by_stepping(stepped, seed=12, calls=23) != first
    assert by_stepping(stepped, seed=np.int64(11), calls=23) == first


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_the_vector_environment_steps_like_gymnasium_s_own_seeds(mode):
    """Whatever the mode, environment i gets seed + i, as the loop over single environments seeds it too."""
    stepped, single = make_stepped(vector(mode)("plain")), make_stepped(lambda: Timetable(), 3)
    stepped.reset(3)
    single.reset(3)
    expected, _ = vector(mode)("plain").reset(seed=3)
    assert stepped.states.tolist() == single.states.tolist() == expected.tolist()


def test_without_masks_everything_is_legal_and_masks_can_be_ignored():
    for style in ("info", "dict"):
        for env in (lambda: Timetable(style), vector("NextStep")(style), vector("SameStep")(style)):  # noqa: B023
            stepped = make_stepped(env, 3, use_action_mask=False)
            stepped.reset(0)
            for _ in range(10):
                stepped.step(np.zeros(3, np.int64))
                assert stepped.masks is None and stepped.next_masks is None
            assert stepped.n_states == N_STATES


def test_masks_of_an_environment_that_is_only_called_like_taxi_are_followed():
    class Named(Timetable):
        spec = gymnasium.envs.registration.EnvSpec("Taxi-Rank-v1")

    assert make_stepped(lambda: Named("info"), 1).mask_source == "info"
    assert make_stepped("Taxi-v4", 1).mask_source is None


def test_taxi_s_masks_are_advice_unless_asked_for():
    """Gymnasium plays the actions that Taxi's mask leaves out, so by default they stay legal."""
    for env in ("Taxi-v4", lambda: gymnasium.make_vec("Taxi-v4", 2, vectorization_mode="sync")):
        stepped = make_stepped(env, 2)
        stepped.reset(0)
        assert stepped.masks is None
        followed = make_stepped(env, 2, use_action_mask=True)
        followed.reset(0)
        taxi = gymnasium.make("Taxi-v4").unwrapped
        for _ in range(30):
            expected = np.array([taxi.action_mask(s) for s in followed.states], bool)
            np.testing.assert_array_equal(followed.masks, expected)
            followed.step(np.argmax(followed.masks, axis=1))


def test_a_mask_in_the_observation_is_meant_also_taxi_s():
    class Masked(gymnasium.Wrapper):
        def __init__(self):
            super().__init__(gymnasium.make("Taxi-v4"))
            spaces = {"observation": self.env.observation_space, "action_mask": MultiBinary(6)}
            self.observation_space = Dict(spaces)

        def _of(self, state):
            return {"observation": state, "action_mask": self.env.unwrapped.action_mask(state)}

        def reset(self, **kwargs):
            state, info = self.env.reset(**kwargs)
            return self._of(state), info

        def step(self, action):
            state, *rest = self.env.step(action)
            return self._of(state), *rest

    stepped = make_stepped(Masked, 2)
    stepped.reset(0)
    assert stepped.mask_source == "observation" and not stepped.masks.all()
    assert make_stepped(Masked, 2, use_action_mask=False).mask_source is None


# Mistakes of the environment


BROKEN_WAYS = {
    "loop": lambda make: make_stepped(make, 2),
    "next step": lambda make: make_stepped(SyncVectorEnv([make] * 2)),
    "same step": lambda make: make_stepped(SyncVectorEnv([make] * 2, autoreset_mode="SameStep")),
}


def run_until_error(way, *arguments):
    """Step environments of which number 1 breaks at its second step; return where that was."""
    made = []

    def make():
        style = "info" if arguments[1] == "mask" else "plain"
        made.append(Timetable(style, *(arguments if len(made) == 1 else ())))
        return made[-1]

    stepped = BROKEN_WAYS[way](make)
    stepped.reset(1)
    for _ in range(10):
        where = int(stepped.states[1])
        legal = None if stepped.masks is None else stepped.masks.argmax(axis=1)
        stepped.step(np.full(2, 4) if legal is None else legal)
    raise AssertionError(f"nothing was raised, in {where}")


@pytest.mark.parametrize("way", BROKEN_WAYS)
@pytest.mark.parametrize("reward", [float("nan"), float("inf"), -np.inf])
def test_rewards_that_are_no_numbers_are_named(way, reward):
    env = Timetable()
    env.reset(seed=2)
    env.step(4)
    env.reset()
    message = (
        rf"Environment 1 gave the reward {reward} for action 4 in state {env.core} \(observation {env.core}\)"
    )
    with pytest.raises(RewardError, match=message):
        run_until_error(way, 2, reward)


@pytest.mark.parametrize("way", BROKEN_WAYS)
def test_observations_outside_the_space_are_named(way):
    with pytest.raises(OutsideSpaceError, match=f"environment 1 gave {N_STATES}"):
        run_until_error(way, 2, "observation")


@pytest.mark.parametrize("way", BROKEN_WAYS)
def test_a_mask_that_forbids_everything_while_the_episode_goes_on_is_named(way):
    with pytest.raises(ActionMaskError, match="mask of environment 1 forbids every action in state"):
        run_until_error(way, 2, "mask")


@pytest.mark.parametrize("way", BROKEN_WAYS)
def test_errors_of_the_environment_come_through_unchanged(way):
    with pytest.raises(ZeroDivisionError, match="the user's own bug"):
        run_until_error(way, 2, "raise")


class MaskedFromTheStart(gymnasium.Env):
    """Gives the same mask always."""

    observation_space, action_space = Discrete(2), Discrete(3)

    def __init__(self, mask):
        self.given = mask

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {"action_mask": self.given}

    def step(self, action):
        return 1, 0.0, False, False, {"action_mask": self.given}


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (np.ones(2, bool), r"shape \(3,\)"),
        (np.ones((1, 3), bool), r"shape \(3,\)"),
        (np.ones(3), "dtype float64"),
        (np.array([1, 0, 2]), r"environment 0 gave \[1, 0, 2\]"),
        (np.array([1, 0, -1], np.int8), r"environment 0 gave \[1, 0, -1\]"),
        (np.zeros(3, bool), "environment 0 forbids every action in state 0"),
        ("101", "dtype"),
    ],
)
def test_malformed_masks_are_named(mask, message, batch):
    make = lambda: MaskedFromTheStart(mask)  # noqa: E731
    stepped = make_stepped(SyncVectorEnv([make, make]) if batch else make, 2)
    with pytest.raises(ActionMaskError, match=message):
        stepped.reset(0)


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("mask", [[1, 0, 1], (True, False, True), np.array([1, 0, 1], np.uint8)])
def test_masks_of_any_integer_kind_are_read(mask, batch):
    make = lambda: MaskedFromTheStart(mask)  # noqa: E731
    stepped = make_stepped(SyncVectorEnv([make, make]) if batch else make, 2)
    stepped.reset(0)
    assert stepped.masks.tolist() == [[True, False, True]] * 2
    stepped.step(np.array([0, 2]))
    assert stepped.masks.tolist() == stepped.next_masks.tolist() == [[True, False, True]] * 2


class Fixed(gymnasium.Env):
    """Shows one fixed observation of a given space."""

    action_space = Discrete(3)

    def __init__(self, observation_space, observation):
        self.observation_space, self.observation = observation_space, observation

    def reset(self, *, seed=None, options=None):
        return self.observation, {}


def test_masks_in_observations_must_fit():
    space = Dict({"observation": Discrete(2), "action_mask": MultiBinary(4)})
    with pytest.raises(ActionMaskError, match=r"MultiBinary\(3\)"):
        make_stepped(Fixed(space, None))
    assert make_stepped(Fixed(space, None), use_action_mask=False).n_states == 2
    space = Dict({"observation": Discrete(2), "action_mask": MultiBinary(3)})
    with pytest.raises(ActionMaskError, match="has none"):
        make_stepped(Fixed(space, {"observation": 1})).reset(0)
    ragged = iter([[1, 1, 1], [1, 1]])
    with pytest.raises(ActionMaskError, match="differ in shape"):
        make_stepped(lambda: MaskedFromTheStart(next(ragged)), 2).reset(0)


class Actions(Fixed):
    """Has a given number of actions."""

    def __init__(self, n_actions):
        super().__init__(Discrete(2), 0)
        self.action_space = Discrete(n_actions)


class NoFinal(VectorEnv):
    """Says that it resets in the same step, and hides the last observation."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
    num_envs, spec = 1, None
    single_observation_space, single_action_space = Discrete(2), Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.int64), {}

    def step(self, actions):
        return np.zeros(1, np.int64), np.zeros(1, np.float32), np.ones(1, bool), np.zeros(1, bool), {}


def test_the_mode_that_a_vector_environment_holds_counts_more_than_shared_metadata():
    batch = vector(AutoresetMode.SAME_STEP)("plain")
    batch.metadata["autoreset_mode"] = AutoresetMode.NEXT_STEP
    transitions, _ = by_stepping(make_stepped(batch), seed=0, calls=12)
    assert transitions[0] == by_hand("plain", 0, 12)[0]


def test_vector_environments_must_say_what_ended_and_when_they_reset(caplog):
    env = NoFinal()
    stepped = make_stepped(env)
    stepped.reset(0)
    with pytest.raises(EnvError, match="no 'final_obs'"):
        stepped.step(np.zeros(1, np.int64))

    env.metadata = {"autoreset_mode": "tomorrow"}
    with pytest.raises(EnvError, match="'tomorrow'; allowed are"):
        make_stepped(env)

    env.metadata = {}
    with caplog.at_level(logging.WARNING, "dist_classicrl"):
        stepped = make_stepped(env)
    assert "taking AutoresetMode.NEXT_STEP" in caplog.text
    stepped.reset(0)
    stepped.step(np.zeros(1, np.int64))
    stepped.step(np.zeros(1, np.int64))
    assert not stepped.valid[0]


# Making and closing


def test_what_is_no_environment_is_refused():
    with pytest.raises(EnvError, match="42 is no environment"):
        make_stepped(42)
    with pytest.raises(SettingsError, match="n_envs=0"):
        make_stepped("FrozenLake-v1", 0)
    with pytest.raises(EnvError, match="The factory returned 'Timetable'"):
        make_stepped(lambda: "Timetable", 2)
    with pytest.raises(
        EnvError, match="'NoSuchThing-v0' is no environment that Gymnasium can make: .*doesn't"
    ):
        make_stepped("NoSuchThing-v0")
    for text in (":", ".near:Env-v0", "os path:Env-v0"):
        with pytest.raises(EnvError, match="before the colon, is no module"):
            make_stepped(text)
    one = Timetable()
    with pytest.raises(EnvError, match="the same .* twice"):
        make_stepped(lambda: gymnasium.wrappers.TimeLimit(one, 5), 2)
    styles = iter(["plain", "info"])
    with pytest.raises(EnvError, match="must make equal environments"):
        make_stepped(lambda: Timetable(next(styles)), 2)
    actions = iter([2, 3])
    with pytest.raises(EnvError, match=r"Discrete\(3\), and environment 0 has .* Discrete\(2\)"):
        make_stepped(lambda: Actions(next(actions)), 2)


@pytest.mark.parametrize("style", ["info", "dict"])
def test_the_first_of_a_batch_can_be_stepped_and_the_others_stay(style, monkeypatch):
    stepped, first = make_stepped(lambda: Timetable(style), 3), cycle((3, 1, 1, 2, 3))

    def step(actions):
        n = next(first)
        stepped.step_first(n, actions[:n])

    monkeypatch.setattr(stepped, "step", step)
    transitions, episodes = by_stepping(stepped, seed=4, calls=20)
    assert [len(each) for each in transitions] == [20, 12, 8]
    for e in range(3):
        assert (transitions[e], episodes[e]) == by_hand(style, 4 + e, len(transitions[e]))


def test_too_many_actions_are_refused_and_too_many_states_are_keys(monkeypatch):
    made = []

    def make():
        made.append(Timetable())
        return made[-1]

    monkeypatch.setattr(spaces, "MAX_TABLE_BYTES", N_ACTIONS * 8 - 1)
    with pytest.raises(SpaceError, match=f"^The action space .* take {N_ACTIONS * 8:,} bytes"):
        make_stepped(make, 3)
    assert len(made) == 3 and all(env.closed for env in made)
    for room, keys in ((N_STATES * N_ACTIONS * 8 - 1, np.int64), (N_STATES * N_ACTIONS * 8, None)):
        monkeypatch.setattr(spaces, "MAX_TABLE_BYTES", room)
        assert resolve(make, 3, None).keys == keys
    with pytest.raises(SpaceError, match="DiscretizeObservation"):
        make_stepped(Fixed(Box(0.0, 1.0, (1,)), None))


def test_only_what_was_made_is_closed(caplog):
    made = []

    def make():
        made.append(Timetable())
        return made[-1]

    make_stepped(make, 2).close()
    assert [env.closed for env in made] == [True, True]

    with caplog.at_level(logging.INFO, "dist_classicrl"):
        stepped = make_stepped(make(), 8)
    assert "would give a batch of 8" in caplog.text
    stepped.close()
    assert not made[-1].closed

    batch = SyncVectorEnv([make])
    make_stepped(batch).close()
    assert not batch.closed and not made[-1].closed
    stepped = make_stepped(lambda: batch)
    stepped.close()
    assert batch.closed and made[-1].closed


class Ending(Timetable):
    """Ends its process in its second step."""

    def step(self, action):
        if self.steps_ever == 1:
            os._exit(7)
        return super().step(action)


@pytest.mark.parametrize(("copies", "code"), [((Timetable, Ending), 7), ((Timetable, Timetable), -9)])
def test_a_process_of_the_environment_that_has_ended_is_named_and_not_waited_for(copies, code):
    batch = AsyncVectorEnv(copies)
    stepped = make_stepped(lambda: batch)
    stepped.reset(0)
    if code < 0:
        batch.processes[1].kill()
        batch.processes[1].join()
    with pytest.raises(EnvError, match=f"process 1 ended with exit code {code} in the middle of the run"):
        for _ in range(9):
            stepped.step(np.zeros(2, np.int64))
    closing = threading.Thread(target=stepped.close, daemon=True)
    closing.start()
    closing.join(20)
    assert not closing.is_alive() and batch.closed
    assert not any(process.is_alive() for process in batch.processes)


def test_an_environment_without_spaces_is_named():
    class Bare(gymnasium.Env):
        action_space = Discrete(2)

    for env in (Bare, Bare()):
        with pytest.raises(EnvError, match="Bare.* has no observation_space.*Discrete"):
            make_stepped(env, 2)
    with pytest.raises(EnvError, match="Bare.* has no observation_space"):
        DistAsyncQLearning(seed=1).train(lambda: gymnasium.wrappers.OrderEnforcing(Bare()), total_steps=10)


# What the environment is

DESCRIBE = """
import functools, json, sys, warnings
warnings.simplefilter("ignore")
import gymnasium
from dist_classicrl.environments.stepped.make import make_stepped
make = functools.partial(gymnasium.make, "FrozenLake-v1", map_name="8x8", is_slippery=False)
lake = make_stepped(make, 2)
wrapped = make_stepped(gymnasium.wrappers.TransformReward(gymnasium.make("CliffWalking-v1"), lambda r: r / 2))
print(json.dumps([lake.describe(), lake.fingerprint(), wrapped.describe(), wrapped.fingerprint()]))
"""


@pytest.mark.slow
def test_fingerprints_agree_between_processes_and_differ_between_environments():
    outputs = [
        subprocess.run([sys.executable, "-c", DESCRIBE], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    assert outputs[0] == outputs[1]
    lake, lake_print, wrapped, _ = json.loads(outputs[0])
    assert lake["environment"]["id"] == "FrozenLake-v1"
    assert lake["environment"]["arguments"]["map_name"] == "8x8"
    assert "TransformReward" in wrapped["environment"]["layers"][0]["class"]

    options = {"map_name": "8x8", "is_slippery": False}
    assert make_stepped(partial(gymnasium.make, "FrozenLake-v1", **options), 5).fingerprint() == lake_print
    assert make_stepped(gymnasium.make("FrozenLake-v1", **options)).fingerprint() == lake_print
    prints = {
        lake_print,
        make_stepped("FrozenLake-v1", 2).fingerprint(),
        make_stepped(partial(gymnasium.make, "FrozenLake-v1", map_name="8x8"), 2).fingerprint(),
        make_stepped(partial(gymnasium.make, "FrozenLake-v1", max_episode_steps=7), 2).fingerprint(),
        make_stepped("FrozenLake-v1", 2, use_action_mask=False).fingerprint(),
        make_stepped(lambda: gymnasium.make_vec("FrozenLake-v1", 2, vectorization_mode="sync")).fingerprint(),
        make_stepped("StepTest/Timetable-plain-v0", 2).fingerprint(),
        make_stepped("StepTest/Timetable-nested-v0", 2).fingerprint(),
    }
    assert len(prints) == 8


@pytest.mark.parametrize("mode", AutoresetMode)
def test_infos_that_are_lists_are_told_to_be_left_as_they_are(mode):
    env = SyncVectorEnv([Timetable] * 2, autoreset_mode=mode)
    wrapped = gymnasium.wrappers.vector.RecordEpisodeStatistics(env)
    with pytest.raises(EnvError, match=r"Leave DictInfoToList out\.$"):
        make_stepped(gymnasium.wrappers.vector.DictInfoToList(wrapped))
    make_stepped(wrapped).reset(seed=1)


@pytest.mark.parametrize("asked", [{}, {"async_updates": False}, {"n_envs": 3}])
@pytest.mark.parametrize("steps", [1, 100, 1001])
def test_episodes_are_those_of_the_steps_that_are_learned(asked, steps):
    """All environments are stepped at a time, and at the end of a call there are more than steps to learn."""

    class Once(gymnasium.Env):
        observation_space, action_space = Discrete(1), Discrete(2)

        def reset(self, *, seed=None, options=None):
            return 0, {}

        def step(self, action):
            return 0, 1.0 + action, True, False, {}

    agent = DistAsyncQLearning(seed=1, epsilon=1.0, learning_rate=PerVisit(1.0), **asked)
    for calls in (1, 2):
        result = agent.train(Once, total_steps=steps, progress_bar=False)
        assert (result.steps, result.episodes, result.mean_length) == (steps, steps, 1.0)
        assert agent.visits.sum() == agent.steps == calls * steps
        if calls == 1:  # each return is 1 or 2, by the action
            assert result.mean_return == 1.0 + agent.visits[0, 1] / steps
