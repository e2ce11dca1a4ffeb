"""Which side of a cut goes on, whoever has heard of which views; and what ranks believe of each other."""

from types import SimpleNamespace

import pytest
from timed_channel import TimedChannel, group_of, stop_clock

from dist_classicrl.comm.envelope import Kind
from dist_classicrl.comm.messages import decode_stamped, encode
from dist_classicrl.engines.outcome import Tally
from dist_classicrl.engines.roles import members as members_module
from dist_classicrl.engines.roles.members import Members
from dist_classicrl.engines.roles.messages import Leave
from dist_classicrl.engines.roles.peers import PeerState
from dist_classicrl.engines.roles.worker_base import Working
from dist_classicrl.engines.run import LossPolicy
from dist_classicrl.errors import CutOffError
from dist_classicrl.membership import handshake
from dist_classicrl.membership.election import Base, Deposed, Election, Prepare, Promise, Refuse, answer
from dist_classicrl.membership.group import Group, NewView, Timing
from dist_classicrl.membership.handshake import Setup
from dist_classicrl.membership.heartbeat import Beat
from dist_classicrl.membership.view import Announced, View, may_elect, may_serve

INTERVAL, SILENCE, STUCK = 1.0, 30.0, 600.0
ALL = View(0, 0, 0, (0, 1, 2, 3))


def host_of(rank):
    return "elsewhere" if rank == 1 else "here"


class Link:
    """A channel that keeps what is sent."""

    lost = unfinished = late = None

    def __init__(self, peer):
        self.peer, self.sent = peer, []

    def send(self, message):
        self.sent.append(decode_stamped(message)[1])

    def reap(self):
        return True

    def close(self, linger=0.0):
        pass


def group(rank, size=5):
    """Return a group in a call, each rank on a host of its own, to which nobody says anything."""
    wire = SimpleNamespace(
        rank=rank, size=size, tag_limit=32767, now=lambda: 0.0, sleep=None,
        channel=lambda peer, *_: Link(peer), receive=lambda _: [],
    )  # fmt: skip
    made = Group(wire, [f"host {each}" for each in range(size)])
    made.begin_call(Timing(INTERVAL, SILENCE, STUCK))
    return made


def test_a_new_server_needs_half_of_those_who_may_not_have_heard_of_its_election():
    """They may have promised another rank since, and follow it."""
    announced = Announced(ALL.followed_by(5, 1, (1, 2)))
    announced.change((1, 2))
    assert announced.may_serve({1, 2}, {0}, host_of)
    assert not announced.may_serve({1}, {0}, host_of)
    announced.echo(2, (5, 1))
    assert not announced.may_serve({1}, {0}, host_of)  # half of the four; the others may be two and be served
    announced.settle({0})
    assert announced.may_serve({1}, {0}, host_of)


def test_who_hears_of_an_election_counts_for_the_view_before_it_as_well():
    """Of six, three are in the new view; two others and one of the three may have elected another server."""
    elected = View(0, 0, 0, tuple(range(6))).followed_by(7, 1, (1, 2, 3))
    dead = {0, 1, 3}  # the two others live
    assert not may_elect(elected, {2}, dead, lambda _: "here")
    assert may_elect(elected, {2, 4}, dead, lambda _: "here")
    assert may_elect(elected.known_to((1, 2, 3)), {2}, dead, lambda _: "here")
    assert not may_elect(elected.known_to((1, 2)), {2}, dead, lambda _: "here")


def test_a_change_of_members_counts_only_once_a_majority_knows_it():
    """Of seven, the server excluded three, which a fourth joined that had not heard of that."""
    announced = Announced(View(0, 3, 0, tuple(range(7))))
    view = announced.change((0, 1, 2, 3))
    assert not may_elect(view, {1, 2}, {0}, lambda _: "here")
    assert not may_serve(view, {0, 1, 2}, (), lambda _: "here")
    for rank in (1, 2, 3):
        assert not announced.is_outdated
        announced.echo(rank, view.key)
    assert announced.is_outdated
    view = announced.change((0, 1, 2, 3))
    assert may_elect(view, {1, 2}, {0}, lambda _: "here") and not announced.is_outdated


def test_a_change_of_members_counts_once_half_know_it_with_the_server():
    """One of two nodes of three ranks is gone, which can elect nobody; the other one can when 0 dies, too."""
    announced = Announced(View(0, 0, 0, tuple(range(6))))
    view = announced.change((0, 1, 2))
    assert not may_elect(view, {1, 2}, {0, 3, 4, 5}, lambda rank: f"node {rank // 3}")
    for rank in (1, 2):
        announced.echo(rank, view.key)
    view = announced.change((0, 1, 2))
    assert view.before == ()
    assert may_elect(view, {1, 2}, {0, 3, 4, 5}, lambda rank: f"node {rank // 3}")


def test_of_a_view_before_of_which_nobody_lives_nothing_is_needed():
    """Rank 1 came back, and 0 died before most knew."""
    assert may_elect(View(0, 3, 0, (0, 1), ((0,),)), {1}, {0}, lambda _: "here")


def test_a_worker_says_at_once_that_it_knows_a_new_view(monkeypatch):
    """Where it says so much else that it never beats, the server would not hear of it."""
    stop_clock(monkeypatch)
    made = group(1)
    heard = [(0, NewView(View(0, 1, 0, (0, 1, 2)), (), ()))]
    made.is_due, made.poll = lambda: True, lambda: [heard.pop()] if heard else []
    link = TimedChannel(0)
    worker = SimpleNamespace(
        group=made, channel=link, beat=lambda: Beat(3, made.view.key), was_released=False, final=None,
        _term=0, base=Base(), _has_lost_server=lambda now: False, _why_lost=lambda now, silence: None,
    )  # fmt: skip
    for _ in range(2):
        Working.look_around(worker, link.last_sent)
    assert link.kinds_sent == [Kind.BEAT]


def test_a_death_while_others_are_about_to_join_is_waited_out(monkeypatch):
    """Of five, 0 died, 1 and 2 voted for 3 and are to join it, and 4 dies before they have."""
    stop_clock(monkeypatch)
    serving = group_of(3, [TimedChannel(4)], INTERVAL, SILENCE, STUCK)
    serving.dead.add(0)
    serving.adopt(View(0, 0, 0, tuple(range(5))).followed_by(8, 3, (3, 4)))
    serving.joining = (1, 2)
    service = SimpleNamespace(new_client=lambda _: None)
    members = Members(serving, None, LossPolicy(), Tally(total_steps=1), {}, service)
    members.begin_in_place_of(tuple(range(5)))
    members.peers.present[4].channel.lost = "its process ended"
    begin = serving.wire.now()
    assert members.judge(begin) == {}
    with pytest.raises(CutOffError, match="too few of those who voted"):
        members.judge(begin + 2.1 * SILENCE)


def test_views_before_are_told_until_those_with_the_same_members_are_the_newest():
    announced = Announced(ALL)
    assert announced.change((0, 1, 2)).before == (ALL.members,)
    assert announced.change((0, 1, 2, 3)).before == ((0, 1, 2),)
    assert announced.change((0, 1, 2, 3)).before == ((0, 1, 2),)
    elected = announced.change((0, 1)).followed_by(5, 1, (1, 2))
    assert set(elected.before) == {(0, 1, 2), ALL.members, (0, 1)}
    assert Announced(elected).change((1,)).before == (*elected.before, (1, 2))


def test_the_server_tells_when_the_views_before_are_over(monkeypatch):
    stop_clock(monkeypatch)
    channels = [TimedChannel(rank) for rank in (1, 2)]
    serving = group_of(0, channels, INTERVAL, SILENCE, STUCK)
    told = []
    monkeypatch.setattr(serving, "send", lambda rank, control: told.append((rank, control.view)))
    serving.adopt(View(0, 1, 0, (0, 1, 2), ((0, 1, 2, 3),)))
    service = SimpleNamespace(new_client=lambda _: None)
    members = Members(serving, None, LossPolicy(), Tally(total_steps=1), {}, service)
    members.look(serving.wire.now())
    assert not told
    for peer in members.peers:
        members.note_progress(peer, 1, (0, 1))
    members.look(serving.wire.now())
    assert told == [(rank, View(0, 2, 0, (0, 1, 2))) for rank in (1, 2)]
    members.look(serving.wire.now())
    assert len(told) == 2


def test_whoever_is_heard_on_a_channel_of_a_new_server_knows_of_its_election(monkeypatch):
    stop_clock(monkeypatch)
    serving = group_of(1, [TimedChannel(rank) for rank in (0, 2, 3)], INTERVAL, SILENCE, STUCK)
    serving.adopt(ALL.followed_by(5, 1, (1, 2, 3)))
    members = Members(
        serving, None, LossPolicy(), Tally(total_steps=1), {}, SimpleNamespace(new_client=lambda _: None)
    )
    members.begin_in_place_of(ALL.members)
    assert not members.may_serve([])
    for peer in members.peers:
        assert serving.view.before == (ALL.members,)
        members.heard(peer, serving.wire.now())
    members.look(serving.wire.now())
    assert serving.view == View(5, 2, 1, (1, 2, 3))


def test_who_was_excluded_is_asked_while_it_may_take_part_in_an_election(monkeypatch):
    mine = group(2)
    mine.adopt(View(0, 1, 0, (0, 2, 3), (tuple(range(5)),)))
    mine.dead.add(0)
    election = Election(mine, Base(0, 3))
    assert election._coordinate() is None
    asked = {peer for peer, link in mine._links.items() if link.sent}
    assert asked == {0, 1, 3, 4}
    number = election._ballot.number
    election._take_in(3, Promise(number, Base(0, 2), ALL, [], ()))
    election._take_in(4, Refuse(number, 0, mine.view, []))
    assert election._coordinate() is None  # two of those five: somebody else may have three
    election._take_in(1, Promise(number, Base(0, 9), ALL, [], ()))
    view = election._coordinate()
    assert (view.server, view.members) == (2, (2, 3))  # what the excluded one has was given to others
    assert set(view.before) == {tuple(range(5)), (0, 2, 3)}


def test_where_all_have_answered_and_are_too_few_the_election_is_over():
    mine = group(2)
    mine.adopt(View(0, 1, 0, (0, 2, 3), (tuple(range(5)),)))
    election = Election(mine, Base(0, 3))
    election._coordinate()
    election._take_in(3, Promise(election._ballot.number, Base(0, 2), ALL, [], (0, 1, 4)))
    with pytest.raises(CutOffError):
        election._coordinate()


@pytest.mark.parametrize("votes", [(6, 13), (6, 9, 13)])
def test_a_promise_is_void_once_its_vote_is_given_up_for_an_older_server(votes):
    """3 follows 1, which decided late and nobody else could follow; 4 may still decide vote 9."""
    mine, elected = group(2), View(6, 0, 1, (1, 2, 3, 4))
    now = 0.0
    mine.wire.now = lambda: now
    election = Election(mine, Base(0, 3))
    for vote in votes:
        election._take_in(vote % 5, Prepare(vote, (0,)))
    assert mine.accept(NewView(elected, [])) is None
    now = 2.0 * SILENCE
    election._coordinate()
    for rank in (1, 3):
        election._take_in(rank, Refuse(election._ballot.number, 6, elected, []))
    election._coordinate()
    may_follow = 9 not in votes
    assert election._give_in() == (elected if may_follow else None)
    assert mine.promised == (6 if may_follow else 9)


# Terms


def test_a_setup_without_somebody_has_a_term_that_no_vote_can_have(monkeypatch):
    """Its head may have been elected in a vote of another rank, which goes on counting from there."""
    monkeypatch.setattr(handshake, "RootedCollectives", lambda *_: None)
    elected = View(6, 3, 2, (1, 2, 3, 4))
    head, other = group(2), group(1)
    for each in (head, other):
        each.adopt(elected)
    with pytest.raises(Deposed) as deposed:
        Setup(head, 60.0)._go_on_without({4})
    election = Election(other, Base())
    election._begin(0.0)
    term = deposed.value.view.term
    assert term > elected.term and term % 5 == 2
    assert election._ballot.number != term
    assert head.new_term() > term and head.new_term(40) == 47


@pytest.mark.parametrize("lost", [{0}, {0, 1}, {1, 3}])
def test_who_is_lost_before_training_is_an_event_of_all_who_go_on(monkeypatch, lost):
    """Also of who was the head, and of who died with it: whoever serves then has heard of it nowhere else."""
    monkeypatch.setattr(handshake, "RootedCollectives", lambda *_: None)
    first, *others = sorted(set(range(5)) - lost)
    mine = group(first)
    for rank in lost:
        mine.note_death(rank, "MPI says so")
    waiting = SimpleNamespace(begun=0.0, what="", missing={0})
    rooted = SimpleNamespace(channels={rank: Link(rank) for rank in ([0] if first else others)}, seconds=9.0)
    ballots = []
    monkeypatch.setattr(Election, "run", lambda election: ballots.append(election) or mine.view)
    with pytest.raises(Deposed):
        Setup(mine, 60.0)._attend(rooted, waiting)
    for election in ballots:
        election._coordinate()
        for rank in others:
            election._take_in(rank, Promise(election._ballot.number, Base(), mine.view, [], ()))
        assert election._coordinate().members == (first, *others)
    told = {rank: mine._links[rank].sent[-1] for rank in others}
    for events in (mine.events.entries, *(each.events for each in told.values())):
        assert [(event["kind"], event["rank"]) for event in events] == [("excluded", r) for r in sorted(lost)]


def test_who_only_does_not_answer_yet_before_training_is_no_loss():
    """It may be in its script, and can still join: a replacement would be one too many."""
    mine, noted = group(1), []
    mine.note_death(0, "MPI says so")
    election = Election(mine, Base(), noted.append)
    election._coordinate()
    for rank in (2, 3):
        election._take_in(rank, Promise(election._ballot.number, Base(), mine.view, [], ()))
    mine.wire.now = lambda: 2.0 * SILENCE  # nobody waits for rank 4 any longer
    assert election._coordinate().members == (1, 2, 3)
    assert noted == [{0}]


def test_who_is_lost_while_others_train_is_an_event_of_who_serves_then():
    mine = group(1)
    mine.note_death(0, "MPI says so")
    election = Election(mine, Base(), lambda lost: pytest.fail("who serves knows by its own view"))
    election._coordinate()
    for rank in (2, 3, 4):
        election._take_in(rank, Promise(election._ballot.number, Base(0, 1), mine.view, [], ()))
    assert election._coordinate().server == 2


# What is told of losses, and who is replaced, whoever dies meanwhile


def event(kind, rank):
    return {"kind": kind, "rank": rank, "seconds": 1.0, "steps_returned": 0, "detail": f"{kind} before"}


class Wanted:
    """In place of what starts replacements: it counts how many are wanted."""

    def __init__(self, *_):
        self.number = 0

    def wanted(self, number):
        self.number += number

    def start(self, now):
        return False

    def poll(self):
        return []


def new_server(monkeypatch, told, others, policy):
    """Return what rank 9 of ten has to do with its workers, when it begins to serve with them."""
    stop_clock(monkeypatch)
    monkeypatch.setattr(members_module, "Replacements", Wanted)
    serving = group_of(9, [TimedChannel(rank) for rank in range(9)], INTERVAL, SILENCE, STUCK)
    serving.events.take(told)
    serving.adopt(View(0, 4, 0, (0, *others, 9)).followed_by(19, 9, (*others, 9)))
    service = SimpleNamespace(
        new_client=lambda _: None,
        has_admitted=lambda _: None,
        take_in=lambda *_: None,
        counts_as_worker=False,
    )
    return Members(serving, None, policy, Tally(total_steps=1), {}, service)


@pytest.mark.parametrize(
    ("at_first", "told", "others", "lost", "wanted"),
    [
        ([0, 1, 2, 9], [], [1, 2], [0], 1),
        # The server before was elected in place of 0, and died before it could say so.
        ([0, 1, 2, 9], [], [2], [0, 1], 2),
        # It died after it had said so, and started nobody.
        ([0, 1, 2, 9], [("excluded", 0), ("failover", 1)], [2], [1], 2),
        # A worker was lost shortly before the server.
        ([0, 1, 2, 9], [("excluded", 1)], [2], [0], 2),
        ([0, 1, 2, 9], [("excluded", 1), ("replaced", 10)], [2], [0], 1),
        ([0, 1, 2, 9], [("excluded", 1), ("excluded", 2), ("replaced", 10)], [], [0], 2),
        ([0, 1, 2, 9], [("excluded", 1), ("replaced", 10), ("excluded", 10)], [2], [0], 2),
        # It is back, before and after somebody was started in its place.
        ([0, 1, 2, 9], [("excluded", 1), ("readmitted", 1)], [1, 2], [0], 1),
        ([0, 1, 2, 9], [("excluded", 1), ("replaced", 10), ("readmitted", 1)], [1, 2], [0], 1),
        ([0, 1, 2, 9], [("excluded", 1), ("readmitted", 1)], [2], [0, 1], 2),
        # It came late, and was lost with the server.
        ([0, 2, 9], [("readmitted", 1)], [2], [0, 1], 2),
        # It has left, or waits for the end after an error of its environment.
        ([0, 1, 2, 9], [("left", 1)], [2], [0], 1),
        ([0, 1, 2, 9], [("excluded", 1)], [1, 2], [0], 1),
        ([0, 1, 2, 9], [("excluded", 1), ("left", 1)], [2], [0], 1),
        ([0, 1, 2, 3, 9], [("excluded", 1), ("left", 1), ("excluded", 3), ("replaced", 10)], [2], [0], 1),
        ([0, 1, 2, 3, 9], [("excluded", 1), ("excluded", 3), ("replaced", 10)], [1, 2], [0], 1),
    ],
)
def test_a_new_server_tells_each_loss_once_and_replaces_who_was_not_replaced(
    monkeypatch, at_first, told, others, lost, wanted
):
    told = [event(*each) for each in told]
    members = new_server(monkeypatch, told, others, LossPolicy("replace"))
    members.begin_in_place_of(at_first)
    new = members.group.events.entries[len(told) :]
    assert [(each["kind"], each["rank"]) for each in new] == [
        *(("excluded", rank) for rank in lost),
        ("failover", 9),
    ]
    members.check_earlier_losses()
    assert members._replacements.number == wanted
    members.check_earlier_losses()
    assert members._replacements.number == wanted


def test_losses_that_nobody_replaces_are_those_of_the_election_alone(monkeypatch):
    """Others that serve look for those among them that may still write: who was lost long ago does not."""
    members = new_server(monkeypatch, [event("excluded", 1)], [2], LossPolicy("continue"))
    members.begin_in_place_of([0, 1, 2, 9])
    assert members.lost_before == [(0, "it had no part in the election")]


@pytest.mark.parametrize("told", [[], ["excluded"], ["excluded", "readmitted"]])
def test_who_waits_after_an_error_of_its_environment_is_told_once(monkeypatch, told):
    """It says so to each new server."""
    told = [event(kind, 1) for kind in told]
    members = new_server(monkeypatch, told, [1, 2], LossPolicy("continue"))
    members.service.has_lost = lambda rank: 0
    for rank in (1, 2):
        members._add(rank, TimedChannel(rank), PeerState.LEARNING, True)
    members.let_go(members.peers.present[1], Leave("excluded", "ValueError: odd", waits=True))
    new = [each["kind"] for each in members.group.events.entries[len(told) :]]
    assert new == ([] if len(told) == 1 else ["excluded"])


def test_all_hear_that_somebody_was_replaced_as_soon_as_it_is(monkeypatch):
    members = new_server(monkeypatch, [event("excluded", 1)], [2], LossPolicy("replace"))
    told = []
    monkeypatch.setattr(members.group, "send", lambda rank, control: told.append((rank, control)))
    came = TimedChannel(10, (0.0, encode(Beat(1, (0, 0)))))
    members._add(10, came, PeerState.EXPECTED, False)
    members.look(members.group.wire.now())
    ((rank, new),) = told
    assert rank == 2 and new.view.members == (2, 9)
    assert [(each["kind"], each["rank"]) for each in new.events] == [("excluded", 1), ("replaced", 10)]


@pytest.mark.parametrize("kind", [Promise, Refuse])
def test_with_a_view_of_which_a_vote_tells_comes_what_happened(kind):
    """Who holds the vote had not heard that 3 has left."""
    mine, newer = group(1), View(0, 1, 0, (0, 1, 2, 4), (tuple(range(5)),))
    mine.note_death(0, "MPI says so")
    election = Election(mine, Base(0, 3))
    election._coordinate()
    number, left = election._ballot.number, [event("left", 3)]
    if kind is Refuse:
        election._take_in(2, Refuse(number, 0, newer, left))
    else:
        for rank in (2, 3, 4):
            election._take_in(rank, Promise(number, Base(0, 2), newer, left, ()))
        assert election._coordinate().members == (1, 2, 4)
        assert mine._links[2].sent[-1].events == left
    assert mine.events.entries == left and mine.events.left == {3}


def test_who_answers_a_vote_tells_what_happened_with_its_view():
    mine = group(2)
    mine.events.take([event("left", 3)])
    for number, has_lost in ((6, True), (5, False)):
        answer(mine, 1, Prepare(number, (0,) if has_lost else ()), Base(), lambda: False)
    promise, refuse = mine._links[1].sent
    assert isinstance(promise, Promise) and isinstance(refuse, Refuse)
    assert promise.events == refuse.events == [event("left", 3)]


def test_what_happened_is_what_came_with_the_newest_view():
    """A server that nobody followed may have told more of what nobody else goes by."""
    mine = group(2)
    mine.events.take([event("excluded", 3), event("readmitted", 3)])
    mine.accept(NewView(View(6, 0, 1, (1, 2, 4)), [event("excluded", 0)]))
    assert mine.events.entries == [event("excluded", 0)]


def test_who_hears_late_that_the_others_went_on_without_it_asks_to_join_the_next_call(monkeypatch):
    """It has the end of the call before, and would wait in this one for those who have another head."""
    monkeypatch.setattr(handshake, "RootedCollectives", lambda *_: None)
    mine, elected = group(0), View(6, 0, 1, (1, 2, 3, 4), (tuple(range(5)),))
    mine.begin_call(Timing(INTERVAL, SILENCE, STUCK))
    told = [encode(NewView(elected, [event("excluded", 0)]), 1)]
    mine.wire.receive = lambda links: [(links[0], told.pop())] if told else []
    rooted = SimpleNamespace(channels={1: Link(1)}, seconds=60.0)
    with pytest.raises(Deposed) as deposed:
        Setup(mine, 60.0)._attend(rooted, SimpleNamespace(begun=0.0))
    assert deposed.value.view.members == (1, 2, 3, 4) and not mine.is_member
    assert not mine.view.before and not mine.events.entries  # of that call alone


# Who has died, by the word of others


def test_nobody_believes_that_it_has_died_itself():
    mine = group(1)
    election = Election(mine, Base(0, 5))
    election._take_in(2, Promise(11, Base(0, 1), View(0, 0, 0, tuple(range(5))), [], (0, 1)))
    assert mine.dead == {0}
    answer(mine, 3, Prepare(8, (1, 3)), Base(), lambda: True)
    assert mine.dead == {0, 3}


def test_who_is_elected_was_heard_by_others_and_lives_unless_mpi_says_otherwise():
    mine = group(2)
    mine.note_death(3, "MPI says so")
    answer(mine, 4, Prepare(9, (0, 1)), Base(), lambda: True)
    assert mine.dead == {0, 1, 3}
    assert mine.accept(NewView(View(11, 0, 1, (1, 2, 3, 4)), [])) is not None
    assert mine.dead == {0, 3}
    mine.end_call(0.0)
    mine.begin_call(mine.timing)
    assert sorted(mine._links) == [1, 4]


def test_who_is_let_in_again_has_spoken_since_it_was_said_to_have_died():
    mine = group(2)
    mine.adopt(View(0, 1, 0, (0, 2, 3, 4), (tuple(range(5)),)))
    mine.hear_of_deaths((1, 3))
    assert mine.accept(NewView(View(0, 2, 0, tuple(range(5))), [])) is not None
    assert mine.dead == {3}
