"""Steps that ranks take together: who waits for what, what belongs to which step, and how a wait ends."""

from collections import deque
from dataclasses import dataclass

import numpy as np
import pytest

from dist_classicrl.comm import rooted as module
from dist_classicrl.comm.rooted import RootedCollectives
from dist_classicrl.errors import ProtocolError, RankLostError, RankTimeoutError, RemoteRankError

SECONDS = 10.0


@dataclass(frozen=True)
class Word:
    text: str
    numbers: np.ndarray


@dataclass(frozen=True)
class Number:
    number: int


def word(text):
    return Word(text, np.arange(len(text)))


class Channel:
    def __init__(self, net, rank, peer):
        self.net, self.lost = net, None
        self.last_sent = self.last_heard = net.now
        self.way_here = net.waiting.setdefault((peer, rank), deque())
        self.way_there = net.waiting.setdefault((rank, peer), deque())

    def send(self, message):
        self.last_sent = self.net.now
        self.way_there.append(message)

    def reap(self):
        return True

    def close(self, linger):
        pass


class Wire:
    def __init__(self, net, rank):
        self.net, self.rank = net, rank

    def now(self):
        return self.net.now

    def sleep(self, seconds):
        self.net.now += seconds

    def receive(self, channels):
        heard = [channel for channel in channels if channel.way_here]
        for channel in heard:
            channel.last_heard = self.net.now
        return [(channel, channel.way_here.popleft()) for channel in heard]


class Net:
    """Ranks with rank 1 as their root; whoever waits lets `meanwhile` happen."""

    def __init__(self, size=3):
        self.now, self.waiting = 1000.0, {}
        self.meanwhile = deque()
        self.seen = []
        self.ranks = []
        for rank in range(size):
            peers = [peer for peer in range(size) if peer != rank] if rank == 1 else [1]
            channels = {peer: Channel(self, rank, peer) for peer in peers}
            self.ranks.append(RootedCollectives(Wire(self, rank), 1, channels, SECONDS, self.attend))

    def attend(self, rooted, waiting):
        self.seen.append((rooted.rank, sorted(waiting.missing), waiting.what))
        if self.meanwhile:
            self.meanwhile.popleft()()
        else:
            module._lose_patience(rooted, waiting)


@pytest.fixture
def net():
    return Net()


def test_what_all_give_comes_to_the_root_by_rank(net):
    low, root, high = net.ranks
    for rooted in net.ranks:
        rooted.begin_step()
    net.meanwhile += [lambda: high.gather(word("high"), "words"), lambda: low.gather(word("low"), "words")]
    found = root.gather(word("root"), "words")
    assert [(rank, each.text, each.numbers.size) for rank, each in found.items()] == [
        (0, "low", 3),
        (1, "root", 4),
        (2, "high", 4),
    ]
    assert net.seen == [(1, [0, 2], "words"), (1, [0], "words")]
    assert high.gather(word("again"), "words") == {}


def test_what_the_root_tells_comes_to_all(net):
    low, root, high = net.ranks
    told = root.tell(word("so"), Word, "orders")
    assert told.text == "so"
    assert [rooted.tell(None, Word, "orders").text for rooted in (low, high)] == ["so", "so"]


def test_what_all_share_is_known_to_all(net):
    low, root, high = net.ranks
    answers = {}
    low.send([1], word("low"))
    high.send([1], word("high"))
    answers[1] = root.share(word("root"), "shares")
    for rooted in (low, high):
        rooted.channels[1].way_there.clear()
        answers[rooted.rank] = rooted.share(word(""), "shares")
    for found in answers.values():
        assert {rank: each.text for rank, each in found.items()} == {0: "low", 1: "root", 2: "high"}
        assert list(found) == [0, 1, 2]


def test_sharing_waits_for_one_rank_after_the_other(net):
    low, root, high = net.ranks
    net.meanwhile += [lambda: high.send([1], word("high")), lambda: low.send([1], word("low"))]
    root.share(word("root"), "shares")
    assert [missing for _, missing, _ in net.seen] == [[0], [0]]


def test_what_is_left_of_a_step_that_was_given_up_is_not_taken_for_part_of_a_later_one(net):
    low, root, high = net.ranks
    with pytest.raises(RankTimeoutError), root.operation():
        root.receive([0, 2], Word, "words")
    # Each hears of it in its own step, and of nothing else.
    for rooted in (low, high):
        with pytest.raises(RemoteRankError, match="RankTimeoutError"), rooted.operation():
            rooted.send([1], word("late"))
            rooted.receive([1], Word, "answers")
    for rooted in (low, high):
        with rooted.operation():
            rooted.gather(word("new"), "words")
    with root.operation():
        found = root.gather(word("root"), "words")
        root.send([0, 2], word("thanks"))
    assert [each.text for each in found.values()] == ["new", "root", "new"]
    assert [rooted.receive([1], Word, "answers")[1].text for rooted in (low, high)] == ["thanks"] * 2


def test_a_root_that_comes_when_a_rank_has_given_up_fails_as_well_though_that_rank_gave_its_part(net):
    low, root, high = net.ranks
    high.begin_step()
    high.gather(word("high"), "words")
    with pytest.raises(RankTimeoutError), low.operation():
        low.gather(word("low"), "words")
        low.tell(None, Word, "answers")
    with pytest.raises(RemoteRankError, match="RankTimeoutError"), root.operation():
        root.gather(word("root"), "words")
    with pytest.raises(RemoteRankError, match="RankTimeoutError"):
        high.tell(None, Word, "answers")


def test_a_failure_in_a_step_that_this_rank_was_through_with_is_none_of_the_next(net):
    low, root, _ = net.ranks
    with low.operation():
        low.gather(word("low"), "words")
    with pytest.raises(KeyError), root.operation():
        raise KeyError
    with root.operation():
        root.send([0], word("next"))
    with low.operation():
        assert low.receive([1], Word, "orders")[1].text == "next"


@pytest.mark.parametrize("early", [True, False])
def test_ranks_that_do_not_make_the_same_steps_are_told_so(net, early):
    low, root, _ = net.ranks
    ahead, behind = (low, root) if early else (root, low)
    ahead.begin_step()
    low.send([1], word("low"))
    with pytest.raises(ProtocolError, match=r"Rank 0 sent Given of step \d where Given of step \d belongs"):
        root.receive([0], Word, "words")


def test_what_is_of_another_form_is_refused(net):
    low, root, _ = net.ranks
    low.send([1], Number(1))
    with pytest.raises(ProtocolError, match="message of kind Word came"):
        root.receive([0], Word, "words")


def test_a_rank_that_is_at_work_is_waited_for_and_one_that_says_nothing_is_not(net):
    low, root, _ = net.ranks
    begun = net.now

    def work():
        net.now += 0.9 * SECONDS
        low.beat()

    net.meanwhile += [work] * 5
    with pytest.raises(
        RankTimeoutError, match="Nothing came from rank 0 for 10 s, while rank 1 waited for words"
    ):
        root.receive([0], Word, "words")
    assert 5.4 * SECONDS < net.now - begun < 5.7 * SECONDS


def test_a_message_that_comes_in_pieces_is_waited_for(net):
    _, root, _ = net.ranks
    begun = net.now

    def piece():
        net.now += 0.9 * SECONDS
        root.channels[0].last_heard = net.now

    net.meanwhile += [piece] * 5
    with pytest.raises(RankTimeoutError, match="Nothing came from rank 0 for 10 s"):
        root.receive([0], Word, "words")
    assert 5.4 * SECONDS < net.now - begun < 5.7 * SECONDS


def test_beats_are_no_closer_than_they_need_to_be(net):
    low, root, _ = net.ranks
    for _ in range(100):
        net.now += 0.1
        low.beat()
    assert 16 <= len(net.waiting[0, 1]) <= 20


def test_who_waits_says_that_it_is_there(net):
    low, root, high = net.ranks
    with pytest.raises(RankTimeoutError, match="ranks 0, 2 for 10 s"):
        root.receive([0, 2], Word, "words")
    assert len(net.waiting[1, 0]) >= 10


def test_nobody_waits_for_the_dead(net):
    _, root, _ = net.ranks
    root.channels[2].lost = "gone"
    with pytest.raises(RankLostError, match="Rank 2 died while rank 1 waited for words"):
        root.receive([0, 2], Word, "words")
