"""What a call of `train` comes to: the environment, the engine and the steps, on which all ranks agree."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from dist_classicrl.agent.agreement import Agreement
from dist_classicrl.agent.request import Request
from dist_classicrl.engines.engine import (
    Engine,
    Layout,
    all_learn,
    check_workers,
    engine_for,
    engine_named,
    learns_in_rows,
)
from dist_classicrl.engines.supersteps.checks import check_asked, check_supersteps, names_walkers
from dist_classicrl.engines.supersteps.division import Division
from dist_classicrl.environments.resolve import Source, with_exploring_starts
from dist_classicrl.errors import RankLostError, SettingsError
from dist_classicrl.learning.behavior_checks import check_behavior
from dist_classicrl.learning.card.cards import Card
from dist_classicrl.learning.card.choosing import card_for
from dist_classicrl.learning.keyed import check_keyed
from dist_classicrl.learning.rules import check_source, contents, find
from dist_classicrl.learning.supersteps.owners import described as described_partition
from dist_classicrl.membership.group import Group
from dist_classicrl.model.agent_state import AgentState
from dist_classicrl.model.fit import get_to_know, look_at
from dist_classicrl.rules import behaviors
from dist_classicrl.schedules.kinds import to_dict, without_call


@dataclass(frozen=True)
class Agreed:
    """What is trained: the same on all ranks, but for the card."""

    source: Source
    engine: Engine
    layout: Layout
    in_rows: bool  # whether the engine learns in the rows of the agent's large table
    total: int  # steps asked of all ranks together
    card: Card | None  # on which this rank learns; None: on cores
    why: str  # it does so
    device: str = "cpu"  # on which the ranks learn


@dataclass(frozen=True)
class Settling:
    """Finds out what a call comes to."""

    state: AgentState
    asked: Request
    group: Group | None  # None: this process is alone
    is_saved: bool

    @property
    def ranks(self) -> int:
        """How many there are, with those that were lost."""
        return 1 if self.group is None else self.group.wire.size

    def agree(self, agreement: Agreement, error: BaseException | None, until_training: ExitStack) -> Agreed:
        """Return what all ranks are to train; `error` is what this one found wrong before.

        Also says on all of them whether the large table is divided.
        """
        state, asked = self.state, self.asked
        own: Agreed | None = None
        described: dict[str, Any] = {}
        steps, divides = 0, False
        try:
            steps = asked.checked_steps(state.steps, len(agreement.members))
            state.check_values()
            state.settings.check_packages(self.ranks)
            # What is asked for is said to be wrong first.
            self._check_workers(
                len(agreement.members), engine_for(state.settings, self.ranks, asked.placement)
            )
            if error is None:
                source = look_at(state, asked.env)
                until_training.callback(source.close)
                source = self._as_trained_in(source)
                steps = asked.bounded_steps(steps, source, state.steps)
                own, divides = self._of_this_rank(source, steps)
                if len(agreement.members) > 1:
                    described = self._description(own, steps)
        except BaseException as caught:  # whatever it is, the others must hear of it
            error = caught
        numbers = [steps, int(own is not None and own.card is not None), int(divides)]
        try:
            everyone = agreement.agree(error, described, numbers, "all ranks to prepare their environments")
        finally:
            del error  # see `Alone.agree`
        assert own is not None  # else there was an error, which agree() raised
        if state.large is not None:
            state.large.is_divided = bool(everyone[:, 2].any())
        on_cards, learners = int(everyone[:, 1].sum()), max(1, len(agreement.members) - 1)
        device = "cpu" if on_cards == 0 else "cuda" if on_cards >= learners else "cuda and cpu"
        return replace(own, total=steps if asked.names_total else int(everyone[:, 0].sum()), device=device)

    def get_to_know(self) -> Source:
        """Return the environment of a call that others have begun."""
        return self._as_trained_in(get_to_know(self.state, self.asked.env))

    def joined(self, source: Source, told: dict[str, Any], ranks: int, total: int) -> Agreed:
        """Return what is trained in a call that `ranks` ranks have begun, as they told it."""
        engine = engine_named(told["engine"], self.state.settings, ranks, self.asked.placement)
        chosen = self._choose_card(source, engine, ranks, total)
        return Agreed(
            source, engine, self._layout(source), told["in_rows"], total, *chosen, device=told["device"]
        )

    def _as_trained_in(self, source: Source) -> Source:
        return with_exploring_starts(source) if self.state.settings.exploring_starts else source

    def _of_this_rank(self, source: Source, steps: int) -> tuple[Agreed, bool]:
        """Return what this rank finds, and whether a large table is divided or to be."""
        asked, settings, layout = self.asked, self.state.settings, self._layout(source)
        engine = engine_for(settings, self.ranks, asked.placement, layout)
        in_rows = self.state.fills(source) and learns_in_rows(engine, settings, layout, asked.placement)
        divides = self._take_room(engine, in_rows)
        check_keyed(source, settings, self.ranks, engine.name)
        check_source(settings, source)
        check_behavior(source, settings, engine.name)
        # Of the steps asked for, so that who goes on from a checkpoint comes to the same.
        total = steps if asked.names_total else steps * self.ranks
        chosen = self._choose_card(source, engine, self.ranks, total)
        check_asked(engine.name, asked.walkers, asked.partition, source.keys)
        if engine.name == "supersteps":
            check_supersteps(source, settings, asked.walkers)
        return Agreed(source, engine, layout, in_rows, total, *chosen), divides

    def _choose_card(self, source: Source, engine: Engine, ranks: int, total: int) -> tuple[Card | None, str]:
        """Return the card that this rank learns on or none, and why; `total` steps are asked of all ranks."""
        steps = total // max(1, ranks - 1)  # of several ranks one serves
        serves = self.group is not None and self.group.is_server and engine.name != "rounds"
        place = self._place_on_host(engine, ranks)
        return card_for(source, self.state.settings, engine.name, ranks, serves, steps, place)

    def _place_on_host(self, engine: Engine, ranks: int) -> tuple[int, int] | None:
        """Return the number of this rank among those of its host that learn, and how many these are.

        None for a process alone. Of all `ranks`, so that a loss changes nobody's number, and no replacement
        gets that of a rank that goes on. Rank 0 serves first; where it learns, it has the server's number.
        """
        group = self.group
        if group is None:
            return None
        host, first = group.host_of(group.rank), int(engine.name != "rounds")
        learning = [rank for rank in range(first, ranks) if group.host_of(rank) == host]
        own = group.rank if group.rank >= first else group.view.server
        if own in learning:
            return learning.index(own), len(learning)
        return len(learning), len(learning) + 1

    def _take_room(self, engine: Engine, in_rows: bool) -> bool:
        """Whether a large table is divided or to be; SettingsError where it, or a share, does not fit."""
        large, group = self.state.large, self.group
        if large is None:
            return False
        if large.is_divided and not in_rows:
            raise SettingsError(
                "The table is divided between hosts since an earlier call of train, and the engine "
                f"{engine.name!r} needs all of it on each rank, {large.size / 2**30:.3g} GiB. Write "
                'placement="sharded", or take another agent.'
            )
        hosts = [] if group is None else [group.host_of(rank) for rank in group.view.members]
        if group is None or len(set(hosts)) == 1 or not in_rows:
            large.take_room()
            return large.is_divided
        if not (large.is_divided or large.is_too_large_to_copy()):
            large.take_room()
            return False
        shape = self.state.shape
        if not shape.is_one_table:
            raise SettingsError(
                f"The algorithm {self.state.settings.algorithm!r} has more than one table, and these are too "
                f"large for a host: {large.size / 2**30:.3g} GiB. Only one table can be divided between "
                'hosts: write algorithm="q_learning", or take hosts with four times that memory.'
            )
        if large.division is None:
            row_bytes = large.size // shape.n_rows
            planned = Division(self.asked.partition, shape.n_states, row_bytes, hosts, self.ranks)
            large.take_room(planned.bytes_of(group.host_of(group.rank)))
        return True

    def _layout(self, source: Source) -> Layout:
        hosts = {0} if self.group is None else {self.group.host_of(rank) for rank in self.group.view.members}
        entries, is_keyed = source.n_states * source.n_actions, source.keys is not None
        rule, _ = find(self.state.settings.algorithm)
        is_compiled, can_travel = source.simulator is not None, self._can_travel(source)
        one_step, named = rule.is_one_step, names_walkers(self.asked.walkers, self.asked.partition)
        return Layout(entries, len(hosts), is_compiled, is_keyed, can_travel, one_step, named)

    def _can_travel(self, source: Source) -> bool:
        settings = self.state.settings
        if source.simulator is None:
            return False
        try:
            check_supersteps(source, settings, self.asked.walkers)
            check_behavior(source, settings, "supersteps")
        except SettingsError:
            return False
        return True

    def _check_workers(self, members: int, engine: Engine) -> None:
        """Check that as many workers begin as the settings ask for."""
        check_workers(self.state.settings, self.ranks, engine)
        least, workers = self.state.settings.min_workers, members - int(not all_learn(engine))
        if workers < least:
            raise RankLostError(
                f"Ranks were lost before the first step, which leaves {workers} workers: fewer than "
                f"min_workers={least}. Start the job again, or lower min_workers."
            )

    def _description(self, own: Agreed, steps: int) -> dict[str, Any]:
        """Return what must be the same on all ranks."""
        state, asked, source = self.state, self.asked, own.source
        settings = state.settings.to_dict()
        del settings["epsilon"]  # rank 0's counts
        if state.settings.async_updates:
            del settings["device"]  # some ranks may learn on cards, and others on cores
        else:
            settings["device"] = "cpu" if own.card is None else "cuda"
        settings["learning_rate"] = to_dict(without_call(state.settings.learning_rate))
        settings["behavior"] = behaviors.without_call(settings["behavior"])
        rows = f"{state.shape.n_rows} rows" if state.keyed is None else "a row for each key"
        placement = asked.placement if isinstance(asked.placement, str) else "engine"
        return {
            **settings,
            "table": list(state.shape.of_table) if state.keyed is None else ["keys", state.shape.n_actions],
            "tables of the rule": f"{contents(settings['algorithm'])}: {rows}",
            "environment": source.identity.text,
            "new_env": bool(asked.new_env),
            "total_steps": steps if asked.names_total else None,
            "total_episodes": asked.episodes,
            "steps so far": state.requested,  # the steps of a checkpoint are the head's to tell
            # Where it is, rank 0 alone needs to know.
            "checkpoints": self.is_saved,
            "placement": f"{placement} ({own.engine.name})",
            "walkers": asked.n_walkers,
            "partition": described_partition(asked.partition, source.n_states, self.ranks),
        }
