"""Finite spaces as integers, against `itertools.product` and Gymnasium's own batching."""

from __future__ import annotations

import itertools

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import (
    Box,
    Dict,
    Discrete,
    Graph,
    MultiBinary,
    MultiDiscrete,
    OneOf,
    Sequence,
    Text,
    Tuple,
)
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from dist_classicrl import DistAsyncQLearning
from dist_classicrl.environments.stepped import spaces
from dist_classicrl.environments.stepped.spaces import SpaceIndex, check_row_size
from dist_classicrl.errors import OutsideSpaceError, SpaceError

FINITE = {
    "discrete": Discrete(5),
    "discrete from -2": Discrete(4, start=-2),
    "discrete int32": Discrete(3, dtype=np.int32),
    "one value": Discrete(1, start=7),
    "multi-discrete": MultiDiscrete([3, 2, 4]),
    "multi-discrete int32": MultiDiscrete([2, 3], dtype=np.int32),
    "multi-discrete with start": MultiDiscrete([3, 2], start=[-1, 5]),
    "multi-discrete 2-d": MultiDiscrete([[2, 3], [1, 2]], start=[[0, 1], [2, -3]]),
    "multi-binary": MultiBinary(4),
    "multi-binary 2-d": MultiBinary((2, 3)),
    "box of ints": Box(np.array([-1, 3], np.int8), np.array([1, 4], np.int8), dtype=np.int8),
    "tuple": Tuple((Discrete(3, start=1), MultiBinary(2))),
    "dict": Dict({"b": MultiDiscrete([2, 2]), "a": Discrete(3)}),
    "nested": Dict(
        {"x": Tuple((Discrete(2), Dict({"z": MultiBinary(1), "y": Discrete(3)}))), "w": MultiDiscrete([2, 1])}
    ),
}


def all_values(space):
    """Every value in the order of itertools.product, straight from the definition of each space."""
    if isinstance(space, Discrete):
        return [int(space.start) + i for i in range(int(space.n))]
    if isinstance(space, (MultiDiscrete, MultiBinary, Box)):
        if isinstance(space, MultiBinary):
            low, high = np.zeros(space.shape, int), np.ones(space.shape, int)
        elif isinstance(space, MultiDiscrete):
            low, high = space.start, space.start + space.nvec - 1
        else:
            low, high = space.low, space.high
        ranges = [range(int(a), int(b) + 1) for a, b in zip(low.ravel(), high.ravel(), strict=True)]
        return [np.array(digits, space.dtype).reshape(space.shape) for digits in itertools.product(*ranges)]
    if isinstance(space, Tuple):
        return [tuple(parts) for parts in itertools.product(*map(all_values, space.spaces))]
    keys = list(space.spaces)
    parts = itertools.product(*(all_values(space[key]) for key in keys))
    return [dict(zip(keys, values, strict=True)) for values in parts]


def same(one, other):
    """Equal values of equal nesting."""
    if isinstance(one, dict):
        return (
            isinstance(other, dict) and list(one) == list(other) and all(same(one[k], other[k]) for k in one)
        )
    if isinstance(one, tuple):
        return isinstance(other, tuple) and len(one) == len(other) and all(map(same, one, other))
    return np.array_equal(one, other)


@pytest.mark.parametrize("space", FINITE.values(), ids=FINITE)
def test_indices_follow_the_order_of_the_product(space):
    values = all_values(space)
    index = SpaceIndex(space)
    assert index.n == len(values)
    assert [index.encode(value) for value in values] == list(range(len(values)))
    for i, value in enumerate(values):
        assert same(index.decode(i), value)
        assert space.contains(index.decode(i))


@pytest.mark.parametrize("space", FINITE.values(), ids=FINITE)
def test_batches_equal_single_values(space):
    values = all_values(space)
    order = np.random.default_rng(1).permutation(len(values))
    index = SpaceIndex(space, "action")
    shuffled = [values[i] for i in order]
    batch = concatenate(space, shuffled, create_empty_array(space, len(order)))

    assert index.encode_batch(batch).tolist() == order.tolist()
    out = np.full(len(order), -9, np.int64)
    assert index.encode_batch(batch, out) is out and out.tolist() == order.tolist()
    assert index.encode_each(shuffled).tolist() == order.tolist()

    decoded = index.decode_batch(order)
    assert same(decoded, batch)
    assert batch_space(space, len(order)).contains(decoded)
    for one, single, expected in zip(
        iterate(batch_space(space, len(order)), decoded), index.decode_each(order), shuffled, strict=True
    ):
        assert same(one, expected) and same(single, expected)


@pytest.mark.parametrize("space", FINITE.values(), ids=FINITE)
def test_a_few_values_have_the_indices_that_many_have(space):
    """Few are joined one by one, many as arrays."""
    values = all_values(space)
    index = SpaceIndex(space)
    for value, number in zip(values, range(len(values)), strict=True):
        out = np.full(3, -9, np.int64)
        index.encode_each([value], out[1:2])
        assert out.tolist() == [-9, number, -9]
        assert index.encode_each([value] * 40).tolist() == [number] * 40


@pytest.mark.parametrize(
    "value", [2, True, np.int8(2), np.uint64(2), np.bool_(True), np.array(2)], ids=lambda value: type(value)
)
@pytest.mark.parametrize("count", [1, 2, 40])
def test_whole_numbers_of_any_type_are_values(count, value):
    index = SpaceIndex(Tuple((Discrete(3), Discrete(3, start=1))))
    assert index.encode_each([(0, value)] * count).tolist() == [int(value) - 1] * count


@pytest.mark.parametrize("value", [3, 0, 1.0, None, "1", np.float64(1), 2**70])
@pytest.mark.parametrize("count", [1, 2, 40])
def test_few_and_many_values_outside_their_space_are_named_alike(count, value):
    index = SpaceIndex(Discrete(2, start=1))
    with pytest.raises(OutsideSpaceError, match="outside the observation space"):
        index.encode_each([1] * (count - 1) + [value])


def test_decoded_actions_are_copies():
    actions = np.array([1, 2], np.int64)
    decoded = SpaceIndex(Discrete(3), "action").decode_batch(actions)
    decoded[0] = 0
    assert actions.tolist() == [1, 2]


def test_the_mask_is_no_part_of_the_index():
    space = Dict({"z": Discrete(3), "action_mask": MultiBinary(4), "a": Discrete(2)})
    index = SpaceIndex(space, mask_key="action_mask")
    assert index.n == 6 and index.mask_space == MultiBinary(4)
    values = [{"z": z, "action_mask": np.ones(4, np.int8), "a": a} for a in range(2) for z in range(3)]
    assert [index.encode(value) for value in values] == list(range(6))
    assert SpaceIndex(space).n == 6 * 16
    assert SpaceIndex(Discrete(2), mask_key="action_mask").mask_space is None


@pytest.mark.parametrize(
    ("space", "value"),
    [
        (Discrete(3), 3),
        (Discrete(3), -1),
        (Discrete(3, start=1), 0),
        (Discrete(3), 1.0),
        (Discrete(3), None),
        (Discrete(3), [1]),
        (MultiDiscrete([2, 3]), [0, 3]),
        (MultiDiscrete([2, 3]), [2, 0]),  # 2 * 3 + 0 is an index beyond the end, [1, 3] would alias it
        (MultiDiscrete([2, 3]), [1, 3]),
        (MultiDiscrete([2, 3]), [0, 1, 1]),
        (MultiBinary(2), [0.5, 1.0]),
        (Tuple((Discrete(2), Discrete(2))), (1,)),
        (Dict({"a": Discrete(2)}), {"b": 1}),
        (Dict({"a": Discrete(2)}), 1),
    ],
)
def test_values_outside_their_space_are_named(space, value):
    with pytest.raises(OutsideSpaceError, match="outside the observation space"):
        SpaceIndex(space).encode(value)


def test_the_message_names_the_environment_and_the_place():
    index = SpaceIndex(Dict({"a": Discrete(2), "b": MultiDiscrete([2, 2])}))
    batch = {"a": np.array([0, 1, 1]), "b": np.array([[0, 1], [1, 0], [1, 2]])}
    with pytest.raises(OutsideSpaceError, match=r"environment 2 gave \[1, 2\] at \['b'\]"):
        index.encode_batch(batch)
    with pytest.raises(OutsideSpaceError, match="environment 9 gave 4"):
        SpaceIndex(Discrete(3)).encode_each([0, 4], rows=[5, 9])
    with pytest.raises(OutsideSpaceError, match="differ in shape"):
        SpaceIndex(MultiBinary(2)).encode_each([[0, 1], [1]])
    with pytest.raises(OutsideSpaceError, match=r"shape \(2,\).*for 3 environment"):
        SpaceIndex(Discrete(3)).encode_batch(np.array([0, 1]), np.empty(3, np.int64))
    for i in (-1, 3):
        with pytest.raises(OutsideSpaceError, match="allowed are 0 to 2"):
            SpaceIndex(Discrete(3)).decode(i)


class _Shapes(gymnasium.Env):
    """An environment that only has spaces."""

    def __init__(self, observation_space, action_space):
        self.observation_space = observation_space
        self.action_space = action_space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        return self.observation_space.sample(), 0.0, False, False, {}


def follow_the_advice(error, env):
    """Run the code in an error message, as a user who pastes it."""
    code = "\n".join(line[4:] for line in str(error).split("\n") if line.startswith("    "))
    names = {
        "env": env,
        "n": 2,
        "number_of": lambda observation: 1,
        "action_of": lambda action: env.action_space.sample(),
    }
    exec(code, names)
    return names["env"]


@pytest.mark.parametrize(
    ("space", "wrapper"),
    [
        (Box(-1.0, 1.0, (2,)), "DiscretizeObservation"),
        (Box(np.array([0.0, -np.inf]), np.array([np.inf, 1.0]), dtype=np.float64), "DiscretizeObservation"),
        (Box(-3e38, 3e38, (1,)), "DiscretizeObservation"),
        (Box(0.0, np.inf, (1,)), "DiscretizeObservation"),
        (Box(-np.inf, 1.0, (1,)), "DiscretizeObservation"),
        (Box(0.0, 1.0, (8,)), "DiscretizeObservation"),
        (Dict({"observation": Box(-1.0, 1.0, (2,)), "action_mask": MultiBinary(2)}), "TransformObservation"),
        (Tuple((Discrete(2), Box(0.0, 1.0, (1,)))), "TransformObservation"),
        (Text(3), "TransformObservation"),
        (OneOf((Discrete(2), Discrete(3))), "TransformObservation"),
        (Sequence(Discrete(2)), "TransformObservation"),
        (Graph(Discrete(2), Discrete(2)), "TransformObservation"),
    ],
)
def test_the_advice_for_an_infinite_observation_works_as_printed(space, wrapper):
    env = _Shapes(space, Discrete(2))
    fault = "has no numbers of its own" if isinstance(space, (Text, OneOf)) else "is not finite"
    with pytest.raises(SpaceError, match=f"{fault}.*cannot be counted as 0..n-1") as caught:
        SpaceIndex(env.observation_space)
    assert f"gymnasium.wrappers.{wrapper}" in str(caught.value)
    wrapped = follow_the_advice(caught.value, env)
    index = SpaceIndex(wrapped.observation_space, mask_key="action_mask")
    assert 1 < index.n <= 10_000
    wrapped.reset(seed=0)
    for _ in range(20):
        assert 0 <= index.encode(wrapped.step(wrapped.action_space.sample())[0]) < index.n


@pytest.mark.parametrize(
    ("space", "wrapper"),
    [
        (Box(-2.0, 2.0, (1,)), "DiscretizeAction"),
        (Box(-np.inf, np.inf, (2,)), "DiscretizeAction"),
        (Dict({"a": Box(0.0, 1.0, (1,))}), "TransformAction"),
    ],
)
def test_the_advice_for_an_infinite_action_works_as_printed(space, wrapper):
    env = _Shapes(Discrete(2), space)
    with pytest.raises(SpaceError, match="action space .* is not finite") as caught:
        SpaceIndex(env.action_space, "action")
    assert f"gymnasium.wrappers.{wrapper}" in str(caught.value)
    wrapped = follow_the_advice(caught.value, env)
    index = SpaceIndex(wrapped.action_space, "action")
    wrapped.reset(seed=0)
    for i in range(min(index.n, 20)):
        wrapped.step(index.decode(i))


class _Own(gymnasium.vector.VectorEnv):
    """A vector environment that says nothing of what it is made of."""

    num_envs = 2
    single_observation_space, single_action_space = Box(0.0, 1.0, (1,)), Discrete(2)


def _vector_of(space, actions=Discrete(2), kind=gymnasium.vector.SyncVectorEnv):  # noqa: B008
    return kind([lambda: _Shapes(space, actions)] * 2)


@pytest.mark.parametrize(
    ("make", "wrapper"),
    [
        (lambda: gymnasium.make_vec("CartPole-v1", 2), "DiscretizeObservation"),
        (lambda: _vector_of(Box(-1.0, 1.0, (2,))), "DiscretizeObservation"),
        (
            lambda: _vector_of(Box(-1.0, 1.0, (2,)), kind=gymnasium.vector.AsyncVectorEnv),
            "DiscretizeObservation",
        ),
        (lambda: lambda: _vector_of(Box(-1.0, 1.0, (2,))), "DiscretizeObservation"),
        (lambda: _vector_of(Dict(p=Box(-1.0, 1.0, (2,)), k=Discrete(3))), "TransformObservation"),
        (lambda: _vector_of(Discrete(2), Box(-np.inf, np.inf, (1,))), "DiscretizeAction"),
        (lambda: _vector_of(Tuple((Discrete(2), Box(0.0, 1.0, (1,))))), "TransformObservation"),
    ],
)
def test_the_advice_for_a_vector_environment_works_as_printed(make, wrapper):
    env = make()
    with pytest.raises(SpaceError, match="is not finite") as caught:
        DistAsyncQLearning(n_envs=2).train(env, total_steps=10)
    assert f"gymnasium.wrappers.{wrapper}" in str(caught.value) and "n_envs=2" in str(caught.value)
    wrapped = follow_the_advice(caught.value, env)
    assert DistAsyncQLearning(seed=1, n_envs=2).train(wrapped, total_steps=10).steps == 10
    if not callable(env):
        env.close()


def test_the_advice_for_a_vector_environment_keeps_the_arguments_that_it_was_made_with():
    with pytest.raises(
        SpaceError,
        match=r"env = gymnasium.make\('CartPole-v1', sutton_barto_reward=True, max_episode_steps=9\)",
    ):
        DistAsyncQLearning().train(
            gymnasium.make_vec("CartPole-v1", 2, sutton_barto_reward=True, max_episode_steps=9),
            total_steps=10,
        )


def test_what_is_not_known_of_a_vector_environment_is_said_to_be_filled_in():
    with pytest.raises(SpaceError, match=r"(?s)give train a function that makes one, .*env = YourEnv\(\)"):
        DistAsyncQLearning().train(_Own(), total_steps=10)
    wide = _vector_of(Box(-(2**63), 2**63 - 1, (1,), np.int64))
    with pytest.raises(
        SpaceError, match=r"(?s)about 10.19 .*Transform.*makes one, .*env = first\(\)\n *# here"
    ):
        DistAsyncQLearning().train(wide, total_steps=10)
    with pytest.raises(SpaceError, match=r"Use gymnasium.spaces.Discrete\(1\) there.$"):
        DistAsyncQLearning().train(_vector_of(Tuple(())), total_steps=10)


def test_sizes_too_large_are_named_with_their_size():
    with pytest.raises(SpaceError, match=r"about 10\^3010 values"):
        SpaceIndex(MultiBinary(10_000))
    with pytest.raises(SpaceError, match=r"about 10\^19 values"):
        SpaceIndex(Box(-(2**63), 2**63 - 1, (1,), np.int64))
    with pytest.raises(SpaceError, match="starts beyond"):
        SpaceIndex(Box(2**64 - 2, 2**64 - 1, (1,), np.uint64))
    with pytest.raises(SpaceError, match="holds nothing"):
        SpaceIndex(Tuple(()))
    with pytest.raises(SpaceError, match="nothing else"):
        SpaceIndex(Dict({"action_mask": MultiBinary(2)}), mask_key="action_mask")


def test_the_largest_index_is_exact():
    space = MultiDiscrete([2**31, 2**31])
    index = SpaceIndex(space)
    assert index.n == 2**62
    assert index.encode(np.array([2**31 - 1, 2**31 - 2])) == 2**62 - 2
    assert index.decode(2**62 - 2).tolist() == [2**31 - 1, 2**31 - 2]
    wide = Box(np.array([-5], np.int64), np.array([2**60], np.int64), dtype=np.int64)
    assert SpaceIndex(wide).n == 2**60 + 6  # beyond what a float64 can tell apart


def test_more_actions_than_a_row_may_have_are_refused(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(spaces, "MAX_TABLE_BYTES", 32_000)
        check_row_size(4000)
        patch.setattr(spaces, "MAX_TABLE_BYTES", 31_999)
        with pytest.raises(SpaceError, match="^The action space has 4,000 values, .* take 32,000 bytes"):
            check_row_size(4000)
    with pytest.raises(SpaceError, match=r"\(22\.4 GiB\); at most 17,179,869,184 \(16\.0 GiB\)"):
        check_row_size(3 * 10**9)


def test_description_tells_spaces_apart():
    described = [str(SpaceIndex(space).describe()) for space in FINITE.values()]
    assert len(set(described)) == len(FINITE)
    assert SpaceIndex(MultiDiscrete([3, 2])).describe() != SpaceIndex(MultiDiscrete([3, 4])).describe()
    assert SpaceIndex(MultiDiscrete([3, 2])).describe() == SpaceIndex(MultiDiscrete([3, 2])).describe()
