"""What a rank cannot learn on is said on all of them."""

from importlib.util import find_spec

import pytest

from dist_classicrl import DistAsyncQLearning, TabularMDP
from dist_classicrl.errors import DeviceError, DistClassicRLError, RemoteRankError
from dist_classicrl.learning.card.cards import cards

MODEL = TabularMDP.garnet(6, 2, 2, seed=1)


def _has_card():
    try:
        return bool(cards())
    except DistClassicRLError:
        return False


@pytest.mark.skipif(_has_card(), reason="there is a card")
def test_that_there_is_no_card_is_raised_on_every_rank():
    agent = DistAsyncQLearning(device="cuda", seed=1)
    why = "none that works here" if find_spec("numba_cuda") else "needs numba-cuda"
    with pytest.raises((DistClassicRLError, RemoteRankError), match=why):
        agent.train(env=MODEL, steps=100)


def test_what_cannot_be_on_a_card_is_raised_on_every_rank():
    agent = DistAsyncQLearning(device="cuda", algorithm="dyna_q", seed=1)
    with pytest.raises((DeviceError, RemoteRankError), match="the rule 'dyna_q' keeps a model"):
        agent.train(env=MODEL, steps=100)


def test_auto_goes_on_on_cores_where_few_steps_are_asked_for():
    agent = DistAsyncQLearning(device="auto", seed=1)
    result = agent.train(env=MODEL, total_steps=5000)
    assert (result.steps, result.device) == (5000, "cpu") and agent.visits.sum() == 5000
