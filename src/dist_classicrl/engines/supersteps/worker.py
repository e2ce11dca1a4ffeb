"""The ranks that do not serve where all learn in supersteps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from dist_classicrl.checkpoint.arrays import ArrayEntry
from dist_classicrl.comm.messages import decode, encode
from dist_classicrl.comm.transport import Backoff, Channel
from dist_classicrl.engines.roles.messages import Final
from dist_classicrl.engines.roles.ordered import OrderedWorker, Superseded
from dist_classicrl.engines.supersteps.host_lines import HostLines
from dist_classicrl.engines.supersteps.messages import (
    AskRows,
    Begin,
    Cut,
    GotRows,
    Halt,
    Halted,
    Keep,
    LoadRows,
    Play,
    PutRows,
    SavedRows,
    SaveRows,
    SomeRows,
    TellRows,
)
from dist_classicrl.engines.supersteps.part import Part
from dist_classicrl.errors import CutOffError, ProtocolError
from dist_classicrl.membership.election import Base
from dist_classicrl.tables.maps import Refresh

Order = Begin | Play | TellRows | Halt | AskRows | SomeRows | PutRows | SaveRows | LoadRows


@dataclass(eq=False)
class SuperstepWorker(OrderedWorker[Part, Order]):
    """Owns rows in one call of `train`, for one server after another if need be.

    The run's table, at `cut`, is what it would go on with as a server: it is as new as `begun_with`.
    """

    cut: Cut
    begun_with: Base

    @property
    def base(self) -> Base:
        """How new this rank's table is."""
        return Base.finished(self.final_term) if self.final is not None else self.begun_with

    def begin_anew(self, channel: Channel, sequence: int) -> None:
        """Follow the server on `channel`, which tells the table."""
        self.begun_with = Base()
        self.follow_on(channel)

    def run(self) -> Final | None:
        """See `OrderedWorker`."""
        self.part.note_rows()
        return super().run()

    def take_in_common(self, told: object) -> None:
        """See `WorkerBase`: who has the end hears from a new server, which tells it anew, who owns what."""
        if isinstance(told, Begin) and self.final is not None:
            self.part.note_owners(told.players, told.owners)
        else:
            super().take_in_common(told)

    def _obey(self, order: Order) -> None:
        part = self.part
        match order:
            case Begin() if self.group.rank in order.players:  # else it only says who owns what at the end
                self._begin(order)
            case Play() if order.attempt == part.attempt:
                self.channel.send(encode(part.play(order.until, self._tend)))
            case TellRows() if order.attempt == part.attempt:
                self.channel.send(encode(part.rows()))
            case Halt():
                part.close()
                self.channel.send(encode(Halted(order.attempt)))
            case AskRows(attempt, first, last) if attempt == part.attempt:
                rows = HostLines(part)
                told = rows.told(rows.of_host(self.group.host_of(self.group.rank), first, last))
                self.channel.send(encode(SomeRows(attempt, first, told)))
            case SomeRows(attempt, first, lines):
                rows = HostLines(part)
                rows.put(slice(first, first + lines.size // rows.width), lines)
                self.channel.send(encode(GotRows(attempt, first)))
            case PutRows(attempt, first, rows_there, lines):
                HostLines(part).put(rows_there, lines)
                self.channel.send(encode(GotRows(attempt, first)))
            case SaveRows(attempt, name, number):
                self._tell_of(attempt, name, partial(part.save_rows, name, number))
            case LoadRows(attempt, name):
                self._tell_of(attempt, name, partial(part.load_rows, name))

    def _begin(self, order: Begin) -> None:
        """Own rows from here on, unless the memory for them is gone with a server, or with another order."""
        try:
            self.part.begin(order.attempt, order.players, order.cut, order.owners, order.rows)
        except CutOffError:
            wire = self.group.wire
            backoff, last = Backoff(wire.sleep), wire.now() + self.group.timing.silence
            while wire.now() < last:
                self._tend_idle()
                is_other = bool(self._orders) and isinstance(self._orders[0], Begin | Halt)
                if is_other or self.final is not None or self.was_released:
                    raise Superseded from None
                backoff.wait()
            raise

    def _tell_of(
        self, attempt: int, name: str, work: Callable[[Callable[[], None]], dict[str, ArrayEntry]]
    ) -> None:
        """Write or read rows of a checkpoint while this rank says that it is there; tell what came of it."""
        error, entries = "", {}
        try:
            written = work(self._tend_idle)
            entries = {key: entry.to_dict() for key, entry in written.items()}
        except OSError as caught:
            error = str(caught)
        self.channel.send(encode(SavedRows(attempt, name, error, entries)))

    def _keep(self, refresh: Refresh, cut: Cut) -> None:
        term, base = self.group.view.term, self.begun_with
        if refresh.entries is None:
            self.part.take(refresh)
        elif refresh.since != base.version or base.term != term or refresh.entries.size:
            raise ProtocolError(
                f"A table from version {refresh.since} on came to a base of version {base.version}."
            )
        self.begun_with = Base(term, refresh.version)
        self.cut = cut

    def _take_in(self) -> None:
        while self.final is None and (message := self.channel.poll()) is not None:
            match decode(message):
                case (Begin() | Halt()) as order:
                    self._orders.clear()  # they were of what came before
                    self._orders.append(order)
                    if isinstance(order, Begin):
                        # At once: what comes next may tell what is new since then, or be the end.
                        self._keep(order.refresh, order.cut)
                        self.part.note_owners(order.players, order.owners)
                    self.note_server_progress()
                case (Play() | TellRows() | AskRows() | SomeRows()) as order:
                    self._orders.append(order)
                    self.note_server_progress()
                case (PutRows() | SaveRows() | LoadRows()) as order:
                    self._orders.append(order)
                    self.note_server_progress()
                case Keep(cut, refresh):
                    self._keep(refresh, cut)
                    self.note_server_progress()
                case told:
                    self.take_in_common(told)
