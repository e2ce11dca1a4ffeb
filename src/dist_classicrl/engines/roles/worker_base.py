"""What workers have in common: the server that they follow, how they lose it, and how it all ends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from dist_classicrl.comm.messages import Bye, decode, encode, kind_of
from dist_classicrl.comm.remote_errors import Failed, raise_remote
from dist_classicrl.comm.transport import Backoff, Channel
from dist_classicrl.engines.roles.messages import AskToStop, Final, Leave, Stopped
from dist_classicrl.errors import ProtocolError
from dist_classicrl.membership.election import Base, Deposed, Prepare, answer
from dist_classicrl.membership.group import Group, NewView, Over, Release
from dist_classicrl.membership.heartbeat import Beat, say_beat
from dist_classicrl.process.stop import StopWatch


class ServerLost(Exception):
    """The server is lost, or another rank asks to do without it: an election is due."""


@dataclass(eq=False)
class Working(ABC):
    """A worker's dealings with the server."""

    group: Group
    watch: StopWatch | None = field(default=None, kw_only=True)  # tells when this rank was asked to stop
    #: Tells why this rank is to leave in good order, once it is.
    wants_to_leave: Callable[[], str | None] = field(default=lambda: None, kw_only=True)

    channel: Channel = field(init=False)  # to the server that this rank follows

    def __post_init__(self) -> None:
        self.progress = 0  # turns of the main loop
        self.final: Final | None = None  # the final table and the result, once they have come
        self.final_term = -1  # of the server that they are of
        self.was_released = self._leaving = False
        self._term = -1
        self._server_progress = -1
        self._progressed_at = self._woken = self.group.wire.now()

    @property
    @abstractmethod
    def base(self) -> Base:
        """How new what this rank holds is."""

    @abstractmethod
    def run(self) -> Final | None:
        """Work until the server says that the run is done; None: this rank has left in good order.

        It raises what `take_in_common` and `look_around` do: after `ServerLost` and `Deposed` the worker may
        go on with another server, and run again.
        """

    def give_up_server(self) -> None:
        """Take nothing from the server any more."""
        self.channel.close()
        self._leaving = False

    def hand_in(self, admission: int) -> None:
        """Follow the server of a new view, which gets what it lacks."""
        self.follow(admission)

    @abstractmethod
    def begin_anew(self, channel: Channel, sequence: int) -> None:
        """Follow the server on `channel`, which took this rank for lost, and has its pushes to `sequence`."""

    def follow(self, admission: int) -> None:
        """Work for the server of the group's view from now on, which counts this as admission `admission`."""
        group = self.group
        self.follow_on(group.wire.channel(group.view.server, group.tag(group.view.term, admission)))

    def follow_on(self, channel: Channel) -> None:
        """Work for the server at the other end of `channel` from now on.

        What it has said while this rank made ready is still to be taken in: that was no silence.
        """
        self.channel = channel
        if self.watch is not None:
            self.watch.tell_again()
        self._term = self.group.view.term
        self._progressed_at = self._woken = channel.last_heard = self.group.wire.now()

    def close(self, linger: float) -> None:
        """Close what leads to the server, which is given so many seconds for what was sent last."""
        self.channel.close(linger)

    @property
    def channels(self) -> list[Channel]:
        """Where this rank has to be heard."""
        return [self.channel]

    @property
    def is_new(self) -> bool:
        """Whether it has followed no server yet."""
        return self._term < 0

    def beat(self) -> Beat:
        """Return this rank's sign of life."""
        return Beat(self.progress, self.group.view.key)

    def wake(self) -> float:
        """Begin a turn of the main loop, and return the time.

        Time in which nothing was received here, such as a long step of the environment, is not the server's
        silence.
        """
        now = self.group.wire.now()
        self.progress += 1
        gap = now - self._woken
        if gap > self.group.timing.interval:
            self.channel.last_heard += gap
            self._progressed_at += gap
        self._woken = now
        return now

    def show_progress(self) -> None:
        """Let others see, in the middle of a turn, that this rank does not hang, by its signs of life."""
        self.progress += 1

    def look_around(self, now: float) -> None:
        """Take in control messages, and judge whether the server is lost: at time `now`.

        All that came until then was taken in. `ServerLost` is raised if it is, or another rank says so and
        this one has no better knowledge; `Deposed` if this rank has to follow another server, or is not in
        the run any more.
        """
        group = self.group
        say_beat([self.channel], self.beat(), group.timing.interval, now)
        if group.is_due() or self.channel.lost is not None:
            has_lost_server = partial(self._has_lost_server, now)
            for sender, control in group.poll():
                match control:
                    case NewView() if (view := group.accept(control)) is not None:
                        if view.term > self._term or group.rank not in view.members:
                            raise Deposed(view)
                        self.channel.send(encode(self.beat()))  # which tells that it is known
                    case Prepare() if answer(group, sender, control, self.base, has_lost_server):
                        raise ServerLost(f"rank {sender} asks to do without it")
                    case Release() | Over():
                        self.was_released = self.was_released or self.final is not None
        if not self.was_released and (why := self._why_lost(now, group.timing.election)):
            raise ServerLost(why)

    def _has_lost_server(self, now: float) -> bool:
        return self._why_lost(now, self.group.timing.silence) is not None

    def _why_lost(self, now: float, silence: float) -> str | None:
        """Return why the server counts as lost, or None: it does not."""
        channel = self.channel
        if channel.lost is not None or self.group.view.server in self.group.dead:
            return "MPI reports its death"
        if now - channel.last_heard > silence:
            return f"silent for {now - channel.last_heard:.1f} s"
        if now - self._progressed_at > self.group.timing.stuck:
            return f"its main loop made no progress for {now - self._progressed_at:.1f} s"
        return None

    def take_in_common(self, told: object) -> None:
        """Take in what any server may send at any time.

        A `RemoteRankError` is raised if another rank failed, and `TrainingStopped` if the run has stopped.
        """
        match told:
            case Final():
                self.final, self.final_term = told, self._term
                self.channel.send(encode(Bye()))
            case Release():
                self.was_released = True
            case Stopped():
                self.channel.send(encode(Bye()))
                raise told.stop.error(told.checkpoint, told.steps)
            case Failed():
                raise_remote(self.channel, told)
            case Beat():
                if told.progress == self._server_progress:
                    return
                self._server_progress = told.progress
            case _:
                raise ProtocolError(f"The server sent {kind_of(told).name} where a reply belongs.")
        self._progressed_at = self.group.wire.now()

    def note_server_progress(self) -> None:
        """Take note that the server's main loop is alive."""
        self._progressed_at = self._woken

    def await_release(self) -> None:
        """Wait, with the final table in hand, until all others have it; raises as `look_around`."""
        backoff = Backoff(self.group.wire.sleep)
        while not self.was_released:
            now = self.wake()
            while (message := self.channel.poll()) is not None:
                self.take_in_common(decode(message))
            if not self.was_released:
                self.look_around(now)
                self.channel.reap()
                backoff.wait()
        self.group.tell_released()

    def _leave_if_asked(self) -> None:
        """Tell the server, once, that this rank learns no more and goes, if it is to leave."""
        why = None if self._leaving else self.wants_to_leave()
        if why is not None:
            self._leaving = True
            self.channel.send(encode(Leave("left", why, waits=False)))

    def pass_on_stop(self) -> None:
        """Tell the server, once, if this rank was asked to stop."""
        stop = None if self.watch is None else self.watch.untold()
        if stop is not None:
            self.channel.send(encode(AskToStop(stop)))
