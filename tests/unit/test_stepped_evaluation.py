"""Evaluation in stepped environments: what compiled code counts is what a loop in plain Python does."""

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from test_learners import Moody

from dist_classicrl._random import stream_key
from dist_classicrl.environments.stepped.make import make_stepped
from dist_classicrl.evaluation.stepped import play_stepped
from dist_classicrl.learning.loops import choose_actions
from dist_classicrl.learning.memory import RuleMemory
from dist_classicrl.learning.rules.q_learning import RULE, QLearning
from dist_classicrl.tables.local import LocalTable

SEED = 5


def twin(env, table, episodes, max_steps):
    """Do what `play_stepped` does, one step and one environment at a time."""
    shares = np.full(env.n_envs, episodes // env.n_envs)
    shares[: episodes % env.n_envs] += 1
    returns, lengths, cut_off, draws = [], [], 0, 0
    running, elapsed = np.zeros(env.n_envs), np.zeros(env.n_envs, np.int64)
    waits, actions = np.zeros(env.n_envs, bool), np.zeros(env.n_envs, np.int64)
    key = stream_key(SEED, "evaluation")
    context = RuleMemory(RULE, QLearning(), table, 0).context(table, None, 1.0)
    env.reset(int(stream_key(SEED, "evaluation environment") >> np.uint64(33)))
    while len(returns) < episodes:
        choose_actions(QLearning(), context, env.states, env.masks, 0.0, key, draws, actions)
        draws += env.n_envs
        env.step(actions)
        counts = env.valid & ~waits
        running += env.rewards * counts
        elapsed += counts
        cut = elapsed >= max_steps
        ended = (env.terminated | env.truncated | cut) & ~waits
        for e in np.flatnonzero(ended):
            if elapsed[e] and shares[e] > 0:
                returns.append(running[e])
                lengths.append(elapsed[e])
                cut_off += not env.terminated[e]
                shares[e] -= 1
            running[e], elapsed[e] = 0.0, 0
        if waits.any() or cut.any():
            waits |= ended
            if waits.all():
                env.reset()
                waits[:] = False
    return returns, lengths, cut_off


@pytest.mark.slow
@pytest.mark.parametrize("max_steps", [10_000, 5, 1])
@pytest.mark.parametrize("how", ["one", "three", *AutoresetMode.__members__])
@pytest.mark.parametrize(
    ("kind", "masks_from"),
    [("number", None), ("number", 0), ("array", 40), ("pair", -40), ("with a mask", None)],
)
def test_stepped_evaluation_equals_a_plain_twin(kind, masks_from, how, max_steps):
    if masks_from is not None and how in AutoresetMode.__members__:
        pytest.skip("SyncVectorEnv has no such masks")

    def made():
        def env():
            return Moody(kind, masks_from)

        if how in AutoresetMode.__members__:
            return make_stepped(SyncVectorEnv([env] * 3, autoreset_mode=AutoresetMode[how]), 3)
        return make_stepped(env() if how == "one" else env, 1 if how == "one" else 3)

    table = LocalTable(12, 3, np.float64)
    values = np.random.default_rng(1).integers(3, size=36).astype(float)  # with ties
    table.load(values, np.zeros(36, np.int64))
    for episodes in (1, 2, 7, 40):
        returns, lengths, cut_off = play_stepped(made(), table, episodes, SEED, max_steps, lambda: False)
        assert (returns.tolist(), lengths.tolist(), cut_off) == twin(made(), table, episodes, max_steps)
    assert len(set(lengths.tolist())) > 1 or max_steps == 1


@pytest.mark.slow
def test_what_is_over_in_between_gives_the_episodes_that_have_ended():
    env, table = Moody("pair"), LocalTable(12, 3, np.float64)
    asked = make_stepped(env, 1), table, 40, SEED, 10_000
    whole = play_stepped(*asked, lambda: False)
    env = Moody("pair")
    asked = make_stepped(env, 1), table, 40, SEED, 10_000
    returns, lengths, _ = play_stepped(*asked, lambda: env.at >= 50)
    assert env.at == 50 and 50 - 8 <= lengths.sum() <= 50
    assert returns.tolist() == whole[0][: returns.size].tolist()
