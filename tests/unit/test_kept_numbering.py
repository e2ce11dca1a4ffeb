"""An agent that is loaded numbers observations and actions as it learned them, without its environment."""

import json

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from older_models import without

from dist_classicrl import DistAsyncQLearning
from dist_classicrl.environments.stepped import space_data
from dist_classicrl.environments.stepped.spaces import SpaceIndex
from dist_classicrl.errors import ModelFileError
from dist_classicrl.model import model_file, places

OBSERVATIONS = {
    "from 3": spaces.Discrete(4, start=3),
    "from -2, small": spaces.Discrete(3, start=-2, dtype=np.int8),
    "several": spaces.MultiDiscrete([[2, 3]], start=[[1, 5]]),
    "bits": spaces.MultiBinary([2, 2]),
    "box": spaces.Box(np.array([1, 7], np.int16), np.array([2, 9], np.int16), dtype=np.int16),
    "nested": spaces.Dict(
        [
            ("z", spaces.Tuple([spaces.Discrete(2), spaces.Discrete(2, start=9)])),
            ("a", spaces.MultiBinary(1)),
            ("action_mask", spaces.MultiBinary(2)),
        ]
    ),
}
ACTIONS = {
    "from 5": spaces.Discrete(2, start=5),
    "pair": spaces.MultiDiscrete([1, 2], start=[4, 8]),
    "words": spaces.Dict({"left": spaces.Discrete(2, start=3)}),
}


def environment(seen, played):
    class Any(gymnasium.Env):
        observation_space, action_space = seen, played

        def _seen(self):
            value = self.observation_space.sample()
            if isinstance(value, dict):
                value["action_mask"] = np.array([1, 1], np.int8)
            return value

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.observation_space.seed(seed)
            return self._seen(), {}

        def step(self, action):
            assert self.action_space.contains(action)
            return self._seen(), self.np_random.normal(), self.np_random.random() < 0.2, False, {}

    return Any


@pytest.mark.slow
@pytest.mark.parametrize("seen", OBSERVATIONS.values(), ids=OBSERVATIONS)
@pytest.mark.parametrize("played", ACTIONS.values(), ids=ACTIONS)
def test_values_are_numbered_as_they_were_learned(tmp_path, seen, played):
    agent = DistAsyncQLearning(seed=1, n_envs=2, state_size=40, action_size=5)
    agent.train(environment(seen, played), total_steps=400, checkpoint_dir=tmp_path / "saved")
    places._agents.clear()
    once = DistAsyncQLearning.load_model(agent.save_model(tmp_path / "once"))
    twice = DistAsyncQLearning.load_model(once.save_model(tmp_path / "twice"))
    saved = DistAsyncQLearning.load_model(tmp_path / "saved")
    seen.seed(2)
    for value in [seen.sample() for _ in range(20)]:
        if isinstance(value, dict):
            value["action_mask"] = np.array([1, 0], np.int8)
        action = agent.predict(value)
        assert played.contains(action)
        for other in (once, twice, saved, once.policy):
            found = other(value) if other is once.policy or callable(other) else other.predict(value)
            assert played.contains(found) and str(found) == str(action)
        np.testing.assert_array_equal(once.action_values(value), agent.action_values(value))


def test_a_file_of_an_earlier_version_is_read(tmp_path):
    agent = DistAsyncQLearning(seed=1, n_envs=2)
    env = environment(OBSERVATIONS["from 3"], ACTIONS["from 5"])
    agent.train(env, total_steps=100)
    path = without(agent.save_model(tmp_path / "old"), "spaces")
    assert DistAsyncQLearning.load_model(path).steps == 100
    assert DistAsyncQLearning.load_model(path, env=env).predict(3) in (5, 6)


def test_spaces_that_json_has_no_keys_for_are_left_out():
    odd = SpaceIndex(spaces.Dict([((1, 2), spaces.Discrete(2))]))
    assert space_data.to_data(odd, SpaceIndex(ACTIONS["from 5"], "action")) is None
    assert space_data.from_data(None) == (None, None)


DISCRETE = {"kind": "Discrete", "dtype": "int64", "n": 2, "start": 0}
DEEP = {"kind": "Tuple", "parts": []}
for _ in range(100):
    DEEP = {"kind": "Tuple", "parts": [DEEP]}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (7, "its spaces cannot be used"),
        ({"observation": DISCRETE}, "its spaces cannot be used"),
        ({**DISCRETE, "n": 10**6}, "its observation space has 1,000,000 values, and its table 4"),
        ({**DISCRETE, "n": "2"}, "'2' is no whole number"),
        ({**DISCRETE, "start": 10**400}, "its spaces cannot be used"),
        ({**DISCRETE, "dtype": "float64"}, "its numbers are float64"),
        ({**DISCRETE, "kind": "os.system"}, "a space of the kind 'os.system'"),
        ({"kind": "MultiBinary", "shape": [10**10]}, "a MultiBinary of shape"),
        ({**DISCRETE, "kind": "MultiDiscrete", "n": [1.5]}, "float64 are no whole numbers"),
        ({**DISCRETE, "kind": "Box", "low": [0], "high": [[1, 2]]}, "its spaces cannot be used"),
        (DEEP, "more than 64 deep"),
        ({"kind": "Text"}, "its spaces cannot be used"),
    ],
)
def test_spaces_that_nobody_wrote_are_refused(tmp_path, data, message):
    path = DistAsyncQLearning(state_size=4, action_size=3).save_model(tmp_path / "model")
    with np.load(path) as archive:
        arrays = dict(archive)
    about = json.loads(arrays["about"].tobytes())
    whole = isinstance(data, int) or "observation" in data
    about["spaces"] = data if whole else {"observation": data, "action": DISCRETE}
    arrays["about"] = np.frombuffer(json.dumps(about).encode(), np.uint8)
    with open(path, "wb") as file:
        np.savez_compressed(file, **arrays)
    with pytest.raises(ModelFileError, match=message):
        model_file.read(path)
