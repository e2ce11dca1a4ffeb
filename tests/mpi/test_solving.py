"""Optimal values by several ranks together."""

import function_models
import numpy as np
import pytest

from dist_classicrl import TabularMDP
from dist_classicrl.errors import RankMismatchError, RemoteRankError, SettingsError
from dist_classicrl.evaluation.over_ranks import solve_over_ranks


@pytest.mark.parametrize(
    "tables", [pytest.param(True, marks=pytest.mark.core), False], ids=["arrays", "function"]
)
def test_values_have_the_same_bits_at_any_number_of_ranks(world, alone, tables):
    if not tables and world.size != 2:
        pytest.skip("each process compiles the function's loops, for seconds: done on 2 ranks")
    stored, model = (
        TabularMDP.from_function(function_models.sell, **function_models.STOCKED, tables=each)
        for each in (True, tables)
    )
    found = solve_over_ranks(model, 0.9, world, timeout=60)
    expected = stored.solve(0.9)
    np.testing.assert_allclose(found.v, expected.v, atol=1e-9)
    np.testing.assert_allclose(stored.policy_value(found.policy, 0.9), expected.v, atol=1e-8)
    assert found.residual < 1e-10 and "6 states" in repr(found)
    np.testing.assert_array_equal(found.v, solve_over_ranks(model, 0.9, alone).v)


@pytest.mark.core
def test_ranks_hear_of_another_model_and_of_an_error(world):
    models = [TabularMDP.garnet(9, 2, 2, seed=seed) for seed in (0, 1)]
    is_last = world.rank == world.size - 1
    if world.size > 1:
        with pytest.raises(RankMismatchError, match=f"Rank {world.size - 1} was given another model"):
            solve_over_ranks(models[int(is_last)], 0.9, world, timeout=60)
        with pytest.raises(SettingsError if is_last else RemoteRankError, match="must be below 1"):
            solve_over_ranks(models[0], 1.0 if is_last else 0.9, world, timeout=60)
    found = solve_over_ranks(models[0], 0.9, world, timeout=60)
    np.testing.assert_allclose(found.v, models[0].solve(0.9).v, atol=1e-9)
