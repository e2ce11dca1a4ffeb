"""What ranks settle before training, from the side of one that is not the head. tests/faults has the rest."""

from functools import partial

import pytest
from timed_channel import TimedChannel, group_of, stop_clock

from dist_classicrl.comm.messages import encode
from dist_classicrl.comm.parts import from_parts, to_parts
from dist_classicrl.comm.rooted import Given, Told, _Everyone
from dist_classicrl.errors import RankMismatchError, RankTimeoutError
from dist_classicrl.membership.handshake import Setup, _Description, _Summary

TIMEOUT = 60.0


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    stop_clock(monkeypatch)


class Head(TimedChannel):
    """A head, rank 0, that answers each step with what it and `others` say besides the rank that asks."""

    def __init__(self, others, *answers):
        super().__init__(0)
        self._others = others
        self._answers = list(answers)

    def send(self, message):
        super().send(message)
        _, (stamp, *parts) = self.sent[-1]
        if self._answers:
            own = from_parts(Given, parts)
            given = {rank: self._answers[0](rank, own) for rank in (0, *self._others)} | {1: own}
            everyone = _Everyone(tuple(sorted(given)), tuple(given[rank] for rank in sorted(given)))
            told = encode(Told(tuple(to_parts(everyone))), int(stamp[0]))
            self.coming.append((self.seconds + 1.0, told))
            del self._answers[0]


def setup_with(head, size=4):
    others = [TimedChannel(rank) for rank in range(2, size)]
    return Setup(group_of(1, [head, *others], 1.0, 30.0, 600.0), TIMEOUT)


def as_the_asker(rank, own):
    return own


def test_who_has_not_heard_that_a_rank_is_excluded_learns_it_from_the_head():
    setup = setup_with(Head([3], as_the_asker))
    assert setup.members == (0, 1, 2, 3)
    assert setup.agree(None, {"size": 5}, [7, 8]).tolist() == [[7, 8]] * 3
    assert setup.members == (0, 1, 3)


def test_a_difference_is_told_of_the_ranks_that_it_is_between():
    def of_other_settings(rank, own):
        return Given(tuple(to_parts(_Summary(False, "another digest" if rank == 3 else "", ()))))

    def the_settings(rank, own):
        return Given(tuple(to_parts(_Description({"size": 6 if rank == 3 else 5}))))

    setup = setup_with(Head([3], of_other_settings, the_settings))
    with pytest.raises(RankMismatchError, match="size: 5 on rank 0, 6 on rank 3"):
        setup.agree(None, {"size": 5}, [])


def test_a_head_that_says_nothing_is_not_waited_for_any_longer_than_asked_for():
    head = Head([2, 3])
    with pytest.raises(RankTimeoutError, match="Waited 60 s for all ranks to prepare.*; rank 0 is missing"):
        setup_with(head).agree(None, {}, [])
    assert TIMEOUT < head.seconds < TIMEOUT + 1.0


@pytest.mark.parametrize(
    "hosts, own", [("aaaa", [1]), ("aabb", [1, 3]), ("abbb", [0, 3]), ("abcd", [0, 1, 2, 3])]
)
def test_ranks_of_one_host_share_out_what_is_to_be_compiled(hosts, own):
    setup = setup_with(Head([2, 3], as_the_asker))
    setup._group.host_of = hosts.__getitem__
    done = []
    setup.compile_together([partial(done.append, part) for part in range(4)])
    assert done == own
