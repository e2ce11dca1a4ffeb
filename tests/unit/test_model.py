"""`TabularMDP`: what it refuses and keeps, which pairs can be reached, and the forms that it is made from."""

import numpy as np
import pytest

from dist_classicrl.environments.model import TabularMDP
from dist_classicrl.errors import ActionMaskError, ModelError, RewardError, SettingsError


def two_states(**changes):
    """State 0: action 0 stays or moves on, action 1 ends. State 1: action 0 goes back, action 1 ends in 1."""
    arguments = dict(
        n_states=2,
        n_actions=2,
        outcome_ptr=[0, 2, 3, 4, 5],
        outcome_prob=[0.25, 0.75, 1.0, 1.0, 1.0],
        outcome_next=[0, 1, 1, 0, 1],
        outcome_reward=[1.0, -2.0, 5.0, 0.0, -1.0],
        outcome_terminated=[False, False, True, False, True],
        start_prob=[1.0, 0.0],
    )
    arguments.update(changes)
    return TabularMDP(**arguments)


@pytest.mark.parametrize(
    "changes, error, message",
    [
        (dict(n_states=0), ModelError, "n_states is 0"),
        (dict(n_states=2.0), ModelError, "n_states is 2.0"),
        (dict(n_actions=True), ModelError, "n_actions is True"),
        (dict(max_episode_steps=0), SettingsError, "max_episode_steps .*, or None for no time limit, got 0"),
        (dict(max_episode_steps=2.5), SettingsError, "max_episode_steps must be a whole number .* got 2.5"),
        (dict(outcome_ptr=[0, 2, 3, 5]), ModelError, r"outcome_ptr has shape \(4,\)"),
        (dict(outcome_ptr=[0, 3, 2, 4, 5]), ModelError, "never fall"),
        (dict(outcome_ptr=[1, 2, 3, 4, 5]), ModelError, "starts at 1"),
        (dict(outcome_ptr=[0, 2, 3, 4, 6]), ModelError, "ends at 6"),
        (dict(outcome_ptr=[0, 2.0, 3, 4, 5]), ModelError, "outcome_ptr has dtype float64"),
        (dict(outcome_next=[0, 2, 1, 0, 1]), ModelError, "action 0 in state 0 leads to state 2"),
        (dict(outcome_next=[0, 1, 1, -1, 1]), ModelError, "action 0 in state 1 leads to state -1"),
        (dict(outcome_next=[0, 1, 1, 0]), ModelError, r"outcome_next has shape \(4,\)"),
        (dict(outcome_next=[0.0, 1.0, 1.0, 0.0, 1.0]), ModelError, "outcome_next has dtype"),
        (dict(outcome_prob=[0.25, 0.7, 1.0, 1.0, 1.0]), ModelError, "action 0 in state 0 .* add up to 0.95"),
        (dict(outcome_prob=[0.25, 0.75, 1.0, 1.0, 1.1]), ModelError, "action 1 in state 1 .* add up to 1.1"),
        (dict(outcome_prob=[-0.25, 1.25, 1.0, 1.0, 1.0]), ModelError, r"outcome_prob\[0\] is -0.25"),
        (dict(outcome_prob=[0.25, 0.75, np.nan, 1.0, 1.0]), ModelError, r"outcome_prob\[2\] is nan"),
        (dict(outcome_prob=[0.25, 0.75, np.inf, 1.0, 1.0]), ModelError, r"outcome_prob\[2\] is inf"),
        (dict(outcome_prob=[[0.25, 0.75, 1.0, 1.0, 1.0]]), ModelError, "one dimension"),
        (dict(outcome_prob=[[0.25], [0.75, 1.0]]), ModelError, "outcome_prob is no array"),
        (dict(outcome_ptr=[0, 3, 3, 4, 5]), ModelError, "add up to"),
        (dict(outcome_reward=[1.0, np.nan, 5.0, 0.0, -1.0]), RewardError, "action 0 in state 0 .* nan"),
        (dict(outcome_reward=[1.0, 0.0, 5.0, 0.0, -np.inf]), RewardError, "action 1 in state 1 .* -inf"),
        (dict(outcome_reward=[1.0, 0.0, 5.0, 0.0]), ModelError, "outcome_reward has shape"),
        (dict(outcome_terminated=[0, 0, 1, 0, 1]), ModelError, "outcome_terminated has dtype int64"),
        (dict(start_prob=[0.5, 0.4]), ModelError, "start_prob adds up to 0.9"),
        (dict(start_prob=[1.5, -0.5]), ModelError, r"start_prob\[1\] is -0.5"),
        (dict(start_prob=[1.0]), ModelError, r"start_prob has shape \(1,\)"),
        (dict(action_mask=[[True, True]]), ActionMaskError, r"shape \(1, 2\)"),
        (dict(action_mask=[[2, 1], [1, 1]]), ActionMaskError, "other than True and False"),
        (
            dict(action_mask=[[False, False], [True, True]]),
            ActionMaskError,
            "state 0, where episodes can start",
        ),
        (dict(action_mask=[[True, True], [False, False]]), ActionMaskError, "state 1, .* without ending"),
        (dict(action_mask=[[1], [1, 0]]), ModelError, "action_mask is no array"),
        (dict(max_episode_steps=2**70), SettingsError, r"max_episode_steps must be below 2\*\*62, got"),
        (dict(grid_shape=(3, 1)), ModelError, "grid_shape"),
        (dict(grid_shape=np.array(3)), ModelError, r"grid_shape is array\(3\); it must be \(rows, columns\)"),
        (dict(grid_shape=2), ModelError, r"grid_shape is 2; it must be \(rows, columns\)"),
        (dict(grid_shape="12"), ModelError, r"grid_shape is '12'; it must be \(rows, columns\)"),
        (dict(grid_shape=(2, 1, 1)), ModelError, "grid_shape"),
    ],
)
def test_refuses(changes, error, message):
    with pytest.raises(error, match=message):
        two_states(**changes)


def test_keeps_what_it_is_given():
    mask = np.array([[1, 1], [0, 1]], dtype=np.int8)
    model = two_states(max_episode_steps=np.int64(7), action_mask=mask, grid_shape=[1, 2], name="pair")
    assert (model.n_states, model.n_actions, model.max_episode_steps) == (2, 2, 7)
    assert model.grid_shape == (1, 2) and model.name == "pair"
    np.testing.assert_array_equal(model.outcome_ptr, [0, 2, 3, 4, 5])
    np.testing.assert_array_equal(model.outcome_prob, [0.25, 0.75, 1.0, 1.0, 1.0])
    np.testing.assert_array_equal(model.outcome_next, [0, 1, 1, 0, 1])
    np.testing.assert_array_equal(model.outcome_reward, [1.0, -2.0, 5.0, 0.0, -1.0])
    np.testing.assert_array_equal(model.outcome_terminated, [False, False, True, False, True])
    assert [a.dtype for a in (model.outcome_ptr, model.outcome_next)] == [np.int64] * 2
    assert [a.dtype for a in (model.outcome_prob, model.outcome_reward, model.start_prob)] == [np.float64] * 3
    assert model.outcome_terminated.dtype == model.action_mask.dtype == np.bool_


def test_owns_its_arrays():
    fields = (
        "outcome_ptr",
        "outcome_prob",
        "outcome_next",
        "outcome_reward",
        "outcome_terminated",
        "start_prob",
    )
    given = {field: np.array(getattr(two_states(), field)) for field in fields}
    given["action_mask"] = np.ones((2, 2), dtype=bool)
    model = two_states(**given)
    for field, array in given.items():
        array[0] = 1 - array[0] if array.dtype != np.bool_ else ~array[0]
        assert not np.array_equal(getattr(model, field), array)
    for array in (model.outcome_ptr, model.outcome_prob, model.start_prob, model.action_mask):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
    with pytest.raises(AttributeError):
        model.n_states = 3
    legal = model.legal_pairs()
    legal[0] = False
    assert model.action_mask.all()


def test_sums_within_the_tolerance_are_divided_out():
    model = two_states(outcome_prob=[0.25, 0.75 + 8e-9, 1.0, 1.0 - 8e-9, 1.0], start_prob=[1.0 + 5e-9, 0.0])
    assert model.outcome_prob[:2].sum() == pytest.approx(1.0, abs=1e-15)
    assert model.outcome_prob[0] / model.outcome_prob[1] == pytest.approx(0.25 / (0.75 + 8e-9), rel=1e-14)
    assert model.outcome_prob[3] == 1.0 and model.start_prob[0] == 1.0
    with pytest.raises(ModelError):
        two_states(outcome_prob=[0.25, 0.75 + 2e-8, 1.0, 1.0, 1.0])


def test_outcomes_of_probability_zero_are_dropped():
    model = two_states(outcome_prob=[0.0, 1.0, 1.0, 1.0, 1.0])
    np.testing.assert_array_equal(model.outcome_ptr, [0, 1, 2, 3, 4])
    np.testing.assert_array_equal(model.outcome_next, [1, 1, 0, 1])
    np.testing.assert_array_equal(model.outcome_reward, [-2.0, 5.0, 0.0, -1.0])
    np.testing.assert_array_equal(model.outcome_terminated, [False, True, False, True])


def test_a_mask_frees_pairs_and_terminal_states_from_having_outcomes():
    model = TabularMDP(
        n_states=2,
        n_actions=2,
        outcome_ptr=[0, 1, 1, 1, 1],
        outcome_prob=[1.0],
        outcome_next=[1],
        outcome_reward=[3.0],
        outcome_terminated=[True],
        start_prob=[1.0, 0.0],
        action_mask=[[True, False], [False, False]],
    )
    np.testing.assert_array_equal(model.reachable_pairs(), [[True, False], [False, False]])
    mask = [[True, False], [True, True]]
    with pytest.raises(ModelError, match="action 1 in state 0 .* add up to 0.5"):
        two_states(outcome_prob=[0.25, 0.75, 0.5, 1.0, 1.0], action_mask=mask)
    with pytest.raises(ModelError, match="action 1 in state 0 .* add up to 0.0"):
        two_states(outcome_ptr=[0, 2, 2, 4, 5], outcome_prob=[0.25, 0.75, 0.5, 0.5, 1.0])


def test_fingerprint_is_of_the_process():
    model = two_states()
    again = TabularMDP(
        **{
            field: getattr(model, field)
            for field in model.__dataclass_fields__
            if field not in ("name", "grid_shape")
        },
        name="another name",
        grid_shape=(2, 1),
    )
    assert model == again and hash(model) == hash(again) and model.fingerprint() == again.fingerprint()
    assert len(model.fingerprint()) == 64 and int(model.fingerprint(), 16) >= 0
    others = [
        two_states(max_episode_steps=5),
        two_states(action_mask=np.ones((2, 2), dtype=bool)),
        two_states(action_mask=[[1, 1], [0, 1]]),
        two_states(start_prob=[0.5, 0.5]),
        two_states(outcome_prob=[0.5, 0.5, 1.0, 1.0, 1.0]),
        two_states(outcome_next=[0, 1, 1, 1, 1]),
        two_states(outcome_reward=[1.0, -2.0, 5.0, 0.0, -1.5]),
        two_states(outcome_terminated=[False, False, True, False, False]),
        two_states(
            outcome_ptr=[0, 2, 3, 4, 5, 5, 5],
            n_states=3,
            start_prob=[1.0, 0, 0],
            action_mask=[[1, 1], [1, 1], [0, 0]],
        ),
    ]
    assert len({model.fingerprint(), *(other.fingerprint() for other in others)}) == 1 + len(others)
    assert all(model != other for other in others) and model != "model"


def test_minus_zero_is_zero():
    assert two_states(outcome_reward=[1.0, -2.0, 5.0, -0.0, -1.0]) == two_states()


def random_model(seed):
    """A sparse random model with terminations, an action mask, and several start states."""
    rng = np.random.default_rng(seed)
    S, A = 12, 2
    mask = rng.random((S, A)) < 0.7
    mask[np.arange(S), rng.integers(A, size=S)] = True
    transition = np.zeros((S, A, S))
    for s in range(S):
        for a in range(A):
            following = rng.choice(S, size=2, replace=False)
            transition[s, a, following] = 0.5
    start = np.zeros(S)
    start[rng.choice(S, size=2, replace=False)] = 0.5
    return transition, rng.normal(size=(S, A, S)), start, rng.random((S, A, S)) < 0.4, mask


def brute_force_reachable(transition, start, terminated, mask):
    """Add pairs that a reached state allows, and states that a reached pair leads to, until all is known."""
    S, A, _ = transition.shape
    states, pairs = {s for s in range(S) if start[s] > 0}, set()
    while True:
        new_pairs = {(s, a) for s in states for a in range(A) if mask[s, a]}
        new_states = states | {
            t for s, a in new_pairs for t in range(S) if transition[s, a, t] > 0 and not terminated[s, a, t]
        }
        if new_pairs == pairs and new_states == states:
            return pairs
        states, pairs = new_states, new_pairs


def test_reachable_pairs_agree_with_brute_force():
    sizes = set()
    for seed in range(40):
        transition, reward, start, terminated, mask = random_model(seed)
        model = TabularMDP.from_arrays(transition, reward, start, terminated=terminated, action_mask=mask)
        expected = brute_force_reachable(transition, start, terminated, mask)
        assert {tuple(map(int, pair)) for pair in np.argwhere(model.reachable_pairs())} == expected
        sizes.add(len(expected))
    # The cases differ, and none is trivial.
    assert min(sizes) < 10 < max(sizes)


def test_a_start_state_that_is_also_terminal_counts_as_acting():
    model = two_states(outcome_terminated=[True, True, True, True, True], start_prob=[0.5, 0.5])
    assert model.reachable_pairs().all()
    model = two_states(outcome_terminated=[True, True, True, True, True])
    np.testing.assert_array_equal(model.reachable_pairs(), [[True, True], [False, False]])


def test_start_value_is_the_mean_over_start_states():
    model = two_states(start_prob=[0.25, 0.75])
    assert model.start_value([2.0, 10.0]) == pytest.approx(0.25 * 2 + 0.75 * 10)
    with pytest.raises(ModelError, match="one value per state"):
        model.start_value([1.0, 2.0, 3.0])
    with pytest.raises(ModelError, match="dtype <U1; it needs one value per state, numbers"):
        model.start_value(["1", "2"])


def outcomes_of(model, s, a):
    pair = s * model.n_actions + a
    window = slice(model.outcome_ptr[pair], model.outcome_ptr[pair + 1])
    return list(
        zip(
            model.outcome_prob[window].tolist(),
            model.outcome_next[window].tolist(),
            model.outcome_reward[window].tolist(),
            model.outcome_terminated[window].tolist(),
            strict=True,
        )
    )


def test_from_arrays_places_every_transition():
    transition, reward, start, terminated, mask = random_model(3)
    model = TabularMDP.from_arrays(
        transition, reward, start, terminated=terminated, action_mask=mask, max_episode_steps=9
    )
    for s in range(12):
        for a in range(2):
            expected = [
                (transition[s, a, t], t, reward[s, a, t], terminated[s, a, t])
                for t in range(12)
                if transition[s, a, t] > 0
            ]
            assert outcomes_of(model, s, a) == expected
    np.testing.assert_array_equal(model.start_prob, start)
    np.testing.assert_array_equal(model.action_mask, mask)
    assert model.max_episode_steps == 9


def test_from_arrays_takes_rewards_by_pair_and_terminal_states():
    transition, _, start, _, _ = random_model(5)
    by_pair = np.arange(24.0).reshape(12, 2)
    terminal = np.arange(12) % 3 == 0
    model = TabularMDP.from_arrays(transition, by_pair, start, terminated=terminal)
    pair = np.repeat(np.arange(24), np.diff(model.outcome_ptr))
    np.testing.assert_array_equal(model.outcome_reward, pair)
    np.testing.assert_array_equal(model.outcome_terminated, model.outcome_next % 3 == 0)
    assert not TabularMDP.from_arrays(transition, by_pair, start).outcome_terminated.any()


@pytest.mark.parametrize(
    "changes, message",
    [
        (dict(transition=np.ones((2, 1, 3)) / 3), "transition has shape"),
        (dict(transition=np.ones((1, 2, 2))), r"actions first, write np.moveaxis\(transition, 0, 1\)"),
        (dict(transition=np.ones((2, 1, 3)) / 3), r"\(states, actions, states\)$"),
        (dict(reward=np.zeros((1, 2, 2))), r"actions first, write np.moveaxis\(reward, 0, 1\)"),
        (dict(reward=np.zeros(2)), "reward has shape"),
        (dict(terminated=np.zeros((2, 1), dtype=bool)), "terminated has shape"),
        (dict(terminated=np.zeros(2)), "dtype float64"),
        (dict(transition=np.full((2, 1, 2), np.nan)), "is nan"),
        (dict(transition=np.full((3, 1, 3), np.float32(1 / 3))), "float32 have to be divided by their sums"),
        (dict(transition=[[1, 2], [3]]), "transition is no array"),
        (dict(reward=[[1, 2], [3]]), "reward is no array"),
        (dict(terminated=[[True], [True, False]]), "terminated is no array"),
    ],
)
def test_from_arrays_refuses(changes, message):
    start = np.eye(len(changes.get("transition", "ab")))[0]
    arguments = dict(transition=np.ones((2, 1, 2)) / 2, reward=np.zeros((start.size, 1)), start_prob=start)
    with pytest.raises(ModelError, match=message):
        TabularMDP.from_arrays(**{**arguments, **changes})


@pytest.mark.parametrize("form", ["csr_matrix", "coo_matrix", "csc_array"])
@pytest.mark.parametrize("as_given", [list, tuple, "objects", "rows"])
def test_sparse_matrices_are_what_their_dense_arrays_are(form, as_given):
    make = getattr(pytest.importorskip("scipy.sparse"), form)
    transition, reward, start, ends, mask = random_model(5)
    S, A, _ = transition.shape

    def given(dense):
        if as_given == "rows":
            return make(dense.reshape(S * A, S))
        matrices = [make(dense[:, a]) for a in range(A)]
        if as_given != "objects":
            return as_given(matrices)
        filled = np.empty(A, dtype=object)
        filled[:] = matrices
        return filled

    def model(transition, reward, ends):
        return TabularMDP.from_arrays(transition, reward, start, terminated=ends, action_mask=mask)

    dense = model(transition, reward, ends)
    assert model(given(transition), given(reward), given(ends)) == dense
    assert model(given(transition), reward, ends) == model(transition, given(reward), given(ends)) == dense
    by_pair, by_state = reward[:, :, 0], ends[0, 0]
    assert model(given(transition), by_pair, by_state) == model(transition, by_pair, by_state)
    nothing = model(transition, given(np.zeros((S, A, S))), given(np.zeros((S, A, S), dtype=bool)))
    assert nothing == model(transition, np.zeros((S, A)), None)


def test_entries_of_sparse_matrices_that_are_stored_twice_are_added():
    sparse = pytest.importorskip("scipy.sparse")
    twice = sparse.csr_matrix(([0.25, 0.75, 1.0], [1, 1, 0], [0, 2, 3]), shape=(2, 2))
    model = TabularMDP.from_arrays([twice], np.zeros((2, 1)), [1.0, 0.0])
    assert model == TabularMDP.from_arrays([[[0.0, 1.0]], [[1.0, 0.0]]], np.zeros((2, 1)), [1.0, 0.0])
    assert twice.nnz == 3


def test_sparse_matrices_of_wrong_shapes_are_refused():
    sparse = pytest.importorskip("scipy.sparse")
    one, three, dense = sparse.identity(2, format="csr"), sparse.identity(3), np.eye(2)
    for transition, reward, terminated, message in (
        (
            [one, three],
            np.zeros((2, 2)),
            None,
            r"transition is csr_matrix of shape \(2, 2\), dia_matrix of .*\(S, S\)",
        ),
        ([one, dense], np.zeros((2, 2)), None, "transition is csr_matrix .* ndarray of shape"),
        (
            sparse.csr_matrix((5, 2)),
            np.zeros((2, 2)),
            None,
            r"shape \(5, 2\); .* or one of shape \(S \* A, S\)",
        ),
        (one, sparse.csr_matrix((2, 3)), None, "What is given by pair must be dense"),
        (one, [one, one], None, r"reward is .*\(2, 2\) for each of the 1 actions"),
        (one, np.zeros((1, 2)), None, r"reward has shape \(1, 2\); it must have shape \(2, 1, 2\)"),
        (one, np.zeros((2, 1)), one, "terminated is sparse, of dtype float64; .*astype.bool"),
        (-one, np.zeros((2, 1)), None, r"outcome_prob\[0\] is -1.0"),
    ):
        with pytest.raises(ModelError, match=message):
            TabularMDP.from_arrays(transition, reward, [1.0, 0.0], terminated=terminated)


def test_from_dict_keeps_order_and_forbids_what_is_not_listed():
    P = {
        1: {0: [(1.0, 0, -1, False)], 2: [(1.0, 1, 0.5, True)]},
        0: {0: [(0.5, 1, 1, False), (0.5, 1, 1, False)], 1: [(1.0, 0, 0, True)], 2: []},
    }
    model = TabularMDP.from_dict(P, [1.0, 0.0], name="listed")
    np.testing.assert_array_equal(model.action_mask, [[True, True, False], [True, False, True]])
    assert outcomes_of(model, 0, 0) == [(0.5, 1, 1.0, False)] * 2
    assert outcomes_of(model, 1, 0) == [(1.0, 0, -1.0, False)]
    assert outcomes_of(model, 1, 2) == [(1.0, 1, 0.5, True)]
    assert outcomes_of(model, 1, 1) == []
    listed = [[P[0][0], P[0][1], P[0][2]], [P[1][0], [], P[1][2]]]
    assert TabularMDP.from_dict(listed, [1.0, 0.0]) == model
    masked = TabularMDP.from_dict(P, [1.0, 0.0], action_mask=[[1, 0, 0], [1, 0, 0]])
    assert masked.reachable_pairs().sum() == 2


@pytest.mark.parametrize(
    "P, message",
    [
        ({1: {0: [(1.0, 0, 0, True)]}}, "keys must be 0 to 0; they begin with"),
        ({}, "P has 0 states"),
        ({0: {0: [(1.0, 0, True)]}}, r"P\[0\]\[0\] has the outcome"),
        ({0: {-1: [(1.0, 0, 0, True)]}}, r"P\[0\] has an action -1"),
        (None, "P is None; it must be a mapping, or a list"),
        (np.array(3), r"P is array\(3\); it must be a mapping, or a list"),
        ({0: 5}, r"P\[0\] is 5; it must be a mapping, or a list"),
        ({0: {0: None}}, r"P\[0\]\[0\] is None; it must be a list of outcomes"),
        ({0: {0: [7]}}, r"P\[0\]\[0\] has the outcome 7"),
        ({0: {"left": [(1.0, 0, 0, True)]}}, r"P\[0\] has an action 'left'"),
        ({0: {0: [(0.5, 0, 0, True)]}}, "add up to 0.5"),
        ({0: {0: [(1.0, 0, 0, "yes")]}}, r"P\[0\]\[0\] has an outcome whose terminated is 'yes'"),
    ],
)
def test_from_dict_refuses(P, message):
    with pytest.raises(ModelError, match=message):
        TabularMDP.from_dict(P, [1.0])


@pytest.mark.parametrize(
    ("outcome", "message"),
    [
        ((1.0, 1.5, 0.0, False), "next state is 1.5; it must be a whole number"),
        ((1.0, 0, "1", False), "reward is '1'; it must be a number"),
        ((None, 0, 0.0, False), "probability is None; it must be a number"),
        ((1.0, 0, 0.0, 1), "terminated is 1; it must be True or False"),
    ],
)
def test_from_dict_names_the_state_and_the_action_of_an_outcome_of_another_kind(outcome, message):
    right = [(0.5, 0, 0.0, False), (0.5, 1, 0.0, True)]
    with pytest.raises(ModelError, match=rf"P\[1\]\[0\] has an outcome whose {message}"):
        TabularMDP.from_dict({0: {0: right, 1: right}, 1: {0: [outcome], 1: right}}, [1.0, 0.0])


def test_from_dict_takes_a_number_of_actions():
    P = {0: {0: [(1.0, 0, 0, True)]}}
    assert TabularMDP.from_dict(P, [1.0], n_actions=3).action_mask.tolist() == [[True, False, False]]
    with pytest.raises(ModelError, match="n_actions is 0; .* or None to take it from P"):
        TabularMDP.from_dict(P, [1.0], n_actions=0)
    with pytest.raises(
        ModelError, match="1 states and 300,000,000 actions, .* at most 67,108,864 can be listed"
    ):
        TabularMDP.from_dict(P, [1.0], n_actions=3 * 10**8)


def test_from_dict_refuses_a_mask_of_another_size():
    with pytest.raises(ActionMaskError, match=r"shape \(1, 2\)"):
        TabularMDP.from_dict({0: {0: [(1.0, 0, 0, True)]}}, [1.0], action_mask=[[True, True]])
